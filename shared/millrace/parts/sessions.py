"""Sessions: stretches of events that are not too far from each other; those that meet become one.

What becomes one does not hang on the order in which events come. The logic is :func:`meeting`, for whatever
is kept by its start and knows its end, as in session windows; :class:`Sessions` is such a dict as a struct.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

import msgspec

from millrace.time import NEVER

T = TypeVar("T")


def meeting(
    sessions: Iterable[tuple[int, Any]], start: int, end: int, inside: int = 0
) -> tuple[int, int, list[tuple[int, Any]]]:
    """Return what a new session becomes with those that it meets.

    Args:
        sessions: Start (ms) and session, which has the attribute ``end`` (ms).
        start: Start of the new one: the time of its only event.
        end: Its end: that time and the gap.
        inside: 0: two meet where one ends as the other begins; 1: one must begin before the other's end.

    Returns:
        Start and end of what they are together, and those that it meets, as they come.

    >>> class Session:
    ...     end = 30
    >>> start, end, met = meeting([(10, Session)], 30, 50)
    >>> start, end, len(met), meeting([(10, Session)], 30, 50, inside=1)
    (10, 50, 1, (30, 50, []))
    """
    met = []
    first, last = start, end
    for other, session in sessions:
        if other <= end - inside and start <= session.end - inside:
            met.append((other, session))
            if other < first:
                first = other
            if session.end > last:
                last = session.end
    return first, last, met


class Session(msgspec.Struct, Generic[T], array_like=True):
    """A session.

    Attributes:
        end: Its end: from then on it is over (ms).
        what: What is kept of its events.
    """

    end: int
    what: T


class Sessions(msgspec.Struct, Generic[T], array_like=True):
    """The sessions of one key that events may still come into; mostly one.

    Attributes:
        kept: Start (ms) → session.

    Example:
        >>> visits = Sessions[int]()
        >>> def both(mine: int, other: int) -> int:
        ...     return mine + other
        >>> for at in (0, 50_000, 20_000):                  # the one that comes last lies between the others
        ...     visits.add(at, at + 30_000, 1, both)
        >>> visits.value(60_000)
        (0, 80000, 3)
        >>> visits.next_ms, visits.prune(80_000), visits.kept
        (80000, [(0, 80000, 3)], {})
    """

    kept: dict[int, Session[T]] = {}

    def __bool__(self) -> bool:
        return bool(self.kept)

    def add(self, at: int, end: int, what: T, merge: Callable[[T, T], T]) -> None:
        """Add an event to the session that it is in, a new one if it is in none.

        Args:
            at: Its time, ms.
            end: Until when others may join it, that instant included: its time and the gap, ms.
            what: What is kept of it.
            merge: Makes one of what is kept of the older and of the newer; the event is the newest.
        """
        start, end, met = meeting(self.kept.items(), at, end)
        if len(met) == 1 and met[0][0] == start:  # nearly always
            session = met[0][1]
            session.end, session.what = end, merge(session.what, what)
        else:
            self._join(start, end, met, what, merge)

    def merge(self, other: Sessions[T], merge: Callable[[T, T], T]) -> None:
        """Take over the sessions of another, which is not to be used any more."""
        for start, session in other.kept.items():
            first, last, met = meeting(self.kept.items(), start, session.end)
            self._join(first, last, met, session.what, merge)

    def _join(
        self, start: int, end: int, met: list[tuple[int, Any]], what: T, merge: Callable[[T, T], T]
    ) -> None:
        met.sort(key=_start)
        for place, (other, session) in enumerate(met):
            del self.kept[other]
            met[place] = other, session.what
        together = [older for _, older in met] + [what]
        whole = together[0]
        for newer in together[1:]:
            whole = merge(whole, newer)
        self.kept[start] = Session(end, whole)

    def value(self, at: int) -> tuple[int, int, T] | None:
        """Return start, end and what is kept of the session that a time (ms) is in, ``None`` without one."""
        for start, session in self.kept.items():
            if start <= at <= session.end:
                return start, session.end, session.what
        return None

    @property
    def next_ms(self) -> int:
        """When the first session is over (ms), ``NEVER`` where there is none."""
        return min((session.end for session in self.kept.values()), default=NEVER)

    def prune(self, until: int) -> list[tuple[int, int, T]]:
        """Return the sessions that are over at a time (ms), by their start, and forget them."""
        over = sorted(start for start, session in self.kept.items() if session.end <= until)
        return [(start, session.end, session.what) for start in over if (session := self.kept.pop(start))]


def _start(item: tuple[int, Any]) -> int:
    return item[0]
