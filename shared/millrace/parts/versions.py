"""Versions: what held from when on, and what held at a time of the past.

The logic is functions over a plain list of tuples in order of time, whose first item is the time (ms) from
which on the rest holds: state that stands in such a list uses them, as ``versioned_state`` (and as-of joins
with it) and the iot app do. :class:`Versions` is the list as a struct.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, Generic, TypeVar

import msgspec

from millrace.time import NEVER

T = TypeVar("T")

_from = itemgetter(0)


def place_at(versions: Sequence[tuple[Any, ...]], at: int) -> int:
    """Return how many versions are from ``at`` (ms) or before: the last of them held then.

    >>> place_at([(10, "a"), (20, "b")], 20), place_at([(10, "a"), (20, "b")], 9)
    (2, 0)
    """
    size = len(versions)
    if size and versions[-1][0] <= at:  # mostly the newest is asked for
        return size
    return bisect_right(versions, at, key=_from)


def put_version(versions: list[tuple[Any, ...]], version: tuple[Any, ...]) -> None:
    """Keep a version at its place in time; one of the same time is replaced.

    >>> kept = [(10, "a"), (30, "c")]
    >>> put_version(kept, (20, "b")); put_version(kept, (30, "d")); kept
    [(10, 'a'), (20, 'b'), (30, 'd')]
    """
    at = version[0]
    if not versions or versions[-1][0] < at:
        versions.append(version)
        return
    place = bisect_left(versions, at, key=_from)
    if place < len(versions) and versions[place][0] == at:
        versions[place] = version
    else:
        versions.insert(place, version)


def add_version(versions: list[tuple[Any, ...]], version: tuple[Any, ...]) -> bool:
    """Keep a version, of one time the greatest, whichever comes first; return whether it is news.

    >>> kept = [(10, "b")]
    >>> add_version(kept, (10, "a")), add_version(kept, (10, "c")), add_version(kept, (10, "c")), kept
    (False, True, False, [(10, 'c')])
    """
    at = version[0]
    if not versions or versions[-1][0] < at:
        versions.append(version)
        return True
    place = bisect_left(versions, at, key=_from)
    if place < len(versions) and versions[place][0] == at:
        if versions[place] >= version:
            return False
        versions[place] = version
    else:
        versions.insert(place, version)
    return True


def forget_versions(versions: list[tuple[Any, ...]], before: int) -> None:
    """Drop the versions that nobody who asks for ``before`` (ms) or later can see: those replaced by then.

    A deletion (a second item that is ``None``) that is the first of all says nothing any more, and goes, too.

    >>> kept = [(10, "a"), (20, "b"), (30, None)]
    >>> forget_versions(kept, 20); kept
    [(20, 'b'), (30, None)]
    >>> forget_versions(kept, 30); kept
    []
    """
    keep = max(place_at(versions, before) - 1, 0)
    if keep < len(versions) and versions[keep][1] is None and versions[keep][0] <= before:
        keep += 1
    if keep:
        del versions[:keep]


def next_change(versions: Sequence[tuple[Any, ...]], at: int) -> int:
    """Return the first time (ms) after ``at`` from which on another version holds, ``NEVER`` without one.

    >>> next_change([(10, "a"), (20, "b")], 10), next_change([(10, "a"), (20, "b")], 20) == NEVER
    (20, True)
    """
    place = place_at(versions, at)
    return int(versions[place][0]) if place < len(versions) else NEVER


class Versions(msgspec.Struct, Generic[T], array_like=True):
    """Versions of one thing.

    Attributes:
        kept: The time (ms) from which on each holds, and the value; in order of time.

    Example:
        >>> status = Versions[str]()
        >>> status.add(100, "running"), status.add(300, "off"), status.add(200, "failed")     # one is late
        (True, True, True)
        >>> status.value(99), status.value(250), status.at(250), status.until(250)
        (None, 'failed', (200, 'failed'), 300)
        >>> status.prune(300)                 # nobody asks for what held before any more
        >>> status.kept
        [(300, 'off')]
    """

    kept: list[tuple[int, T]] = []

    def __bool__(self) -> bool:
        return bool(self.kept)

    def add(self, at: int, value: T) -> bool:
        """Take what holds from ``at`` (ms) until the next version there is.

        Of two of one time the greater stays, whichever comes first, so that order makes no difference; where
        values have no order, or the later word counts, see :meth:`put`.

        Returns:
            Whether it is news.
        """
        return add_version(self.kept, (at, value))

    def put(self, at: int, value: T) -> None:
        """Take what holds from ``at`` (ms) on, instead of what was said of that time before."""
        put_version(self.kept, (at, value))

    def merge(self, other: Versions[T]) -> None:
        """Take all versions of another, as :meth:`add` would; the other stays as it is."""
        for version in other.kept:
            add_version(self.kept, version)

    def at(self, at: int) -> tuple[int, T] | None:
        """Return since when (ms) what held at a time did, and it; ``None`` before the first."""
        place = place_at(self.kept, at)
        return self.kept[place - 1] if place else None

    def value(self, at: int) -> T | None:
        """Return what held at a time (ms); ``None`` before the first."""
        place = place_at(self.kept, at)
        return self.kept[place - 1][1] if place else None

    def until(self, at: int) -> int:
        """Return the first time (ms) after ``at`` from which on another holds, ``NEVER`` without one."""
        return next_change(self.kept, at)

    def prune(self, before: int) -> None:
        """Forget what nobody who asks for ``before`` (ms) or later can see; the newest stays."""
        forget_versions(self.kept, before)
