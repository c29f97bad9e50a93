"""The handle of a versioned state: reads as of an earlier time, over a kept history.

After the versioned stores of Kafka Streams (KIP-889): a put has a valid-from time, late ones find
their place, ``None`` is a deletion, and versions that were replaced longer ago than the history,
measured from the newest time the key has seen, are gone. The newest version stays.
"""

from __future__ import annotations

import operator
from datetime import timedelta
from typing import Any, Generic, NamedTuple, TypeVar

from millrace.parts.versions import forget_versions, place_at, put_version
from millrace.state.cursor import Cursor, Life, refuse_ttl
from millrace.state.slots import next_forgetting
from millrace.state.specs import StateSpec

T = TypeVar("T")


class Version(NamedTuple, Generic[T]):
    """A value and when it was valid.

    Attributes:
        value: The value.
        valid_from: First time (ms) at which it was valid.
        valid_to: First time (ms) at which it was no longer, ``None`` for the newest.
    """

    value: T
    valid_from: int
    valid_to: int | None


class VersionedState(Generic[T]):
    """One value of the current key that can be read as of an earlier time."""

    __slots__ = ("_cursor", "_history", "_life", "_name")

    def __init__(self, cursor: Cursor, spec: StateSpec) -> None:
        self._cursor = cursor
        self._name = spec.name
        self._history = spec.history_ms or 0
        self._life = Life(cursor, spec) if spec.expires else None

    def put(self, value: T | None, at: int | None = None, *, ttl: timedelta | int | None = None) -> bool:
        """Keep ``value`` as valid from ``at`` until the next version there is.

        Args:
            value: What is valid from then on; ``None``: nothing is.
            at: Event time, ms; the time of the callback unless given. A second put at one time
                replaces the first.
            ttl: How long all versions live, instead of the declared time to live (``timedelta`` or ms).

        Returns:
            Whether it was kept: ``False`` if ``at`` is longer ago than the history.

        Raises:
            StateAccessError: ``ttl`` is given, and the state is declared without.
        """
        if self._life is None:
            refuse_ttl(self._name, ttl)
        at = self._cursor.now if at is None else operator.index(at)
        versions = self._versions()
        if at < self._horizon(versions):
            return False
        put_version(versions, (at, value))
        self._keep(versions, ttl)
        return True

    def get(self, at: int | None = None) -> Version[T] | None:
        """Return the version that was valid at ``at`` (event time, ms; now unless given).

        Returns:
            The version; ``None`` where nothing was valid, or it is longer ago than the history and
            not the newest.
        """
        at = self._cursor.now if at is None else at
        versions = self._versions(read=True)
        place = place_at(versions, at) - 1
        if place < 0 or versions[place][1] is None:
            return None
        newest = place + 1 == len(versions)
        if not newest and at < self._horizon(versions):
            return None
        return Version(versions[place][1], versions[place][0], None if newest else versions[place + 1][0])

    @property
    def value(self) -> T | None:
        """The newest version's value, ``None`` where there is none."""
        versions = self._versions(read=True)
        return versions[-1][1] if versions else None

    def versions(self, since: int | None = None, until: int | None = None) -> list[Version[T]]:
        """Return the versions that were valid at some time from ``since`` to ``until``, oldest first.

        Args:
            since: Event time, ms; ``None``: as far back as the history goes.
            until: Event time, ms, included; ``None``: up to the newest.
        """
        versions = self._versions(read=True)
        horizon = self._horizon(versions)
        found = []
        for place, (start, value) in enumerate(versions):
            end = versions[place + 1][0] if place + 1 < len(versions) else None
            # What has been replaced is read as far back as the history goes.
            first = since if end is None else horizon if since is None else max(since, horizon)
            overlaps = (end is None or first is None or end > first) and (
                until is None or (start <= until and (end is None or first is None or first <= until))
            )
            if overlaps and value is not None:
                found.append(Version(value, start, end))
        return found

    def prune(self, before: int | None = None) -> None:
        """Forget the versions that were replaced at or before ``before``.

        Args:
            before: Event time, ms; unless given, the end of the history. What has expired is never
                returned and goes by itself: this is for making a history shorter by hand.
        """
        versions = self._versions()
        horizon = self._horizon(versions)
        forget_versions(versions, horizon if before is None else max(before, horizon))
        if not versions:
            self.clear()

    def clear(self) -> None:
        """Forget all versions."""
        setattr(self._cursor.entry, self._name, [] if self._life is None else None)

    def __len__(self) -> int:
        return len(self.versions())

    def _versions(self, *, read: bool = False) -> list[tuple[int, Any]]:
        """Return the kept versions, deletions among them; a new list where there are none."""
        entry, life = self._cursor.entry, self._life
        found: Any = getattr(entry, self._name)
        if life is None:
            return found  # type: ignore[no-any-return]
        if found is None or found[0] <= life.now():
            return []
        if read and life.on_read:
            setattr(entry, self._name, (life.longer(found[0]), found[1]))
        return found[1]  # type: ignore[no-any-return]

    def _horizon(self, versions: list[tuple[int, Any]]) -> int:
        """Return how far back (ms) reads and puts go: the history behind the newest time seen."""
        newest = versions[-1][0] if versions else self._cursor.now
        return max(self._cursor.now, newest) - self._history

    def _keep(self, versions: list[tuple[int, Any]], ttl: timedelta | int | None) -> None:
        forget_versions(versions, self._horizon(versions))
        cursor, life = self._cursor, self._life
        cursor.min_expiry = min(cursor.min_expiry, next_forgetting(versions, self._history))
        if life is not None:
            found = getattr(cursor.entry, self._name)
            expiry = life.until(ttl) if found is None else life.longer(found[0], ttl)
            setattr(cursor.entry, self._name, (expiry, versions) if versions else None)
