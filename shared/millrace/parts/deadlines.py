"""Deadlines: many things of one key that are due at times of their own, with one timer for the first of them.

What is put off, again and again, is mostly known elsewhere (when a device was last heard): such a deadline
stays where it is and is looked at again when it comes, which costs nothing at every event. The logic is a
function over a plain list, a heap of tuples whose first item is the time (ms), for state that stands in one,
as in ridesharing's book; :class:`Deadlines` is the list as a struct.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush, heapreplace
from typing import Any, TypeVar

import msgspec

from millrace.time import NEVER

D = TypeVar("D", bound=tuple[Any, ...])


def take_due(heap: list[D], now: int, later: Callable[[D], int] | None = None) -> D | None:
    """Take and return the first deadline up to a time, ``None`` where there is none.

    Of several at one time they come by their other items.

    Args:
        heap: The deadlines; the one returned is gone.
        now: That time, ms.
        later: Says of a deadline that has come when it really is, ms: if that is after ``now`` it is put off
            and not returned.

    >>> heap = [(10, "a"), (20, "b")]
    >>> take_due(heap, 15, later=lambda due: {"a": 30, "b": 20}[due[1]]), heap
    (None, [(20, 'b'), (30, 'a')])
    >>> take_due(heap, 20), heap
    ((20, 'b'), [(30, 'a')])
    """
    while heap and heap[0][0] <= now:
        first = heap[0]
        if later is None or (at := later(first)) <= now:
            return heappop(heap)
        put_off: Any = (at, *first[1:])
        heapreplace(heap, put_off)
    return None


class Deadlines(msgspec.Struct, array_like=True):
    """Deadlines of one key.

    A deadline need not be taken back: it carries a mark (a revision, when somebody came), and one that no
    longer holds is passed over when it comes.

    Attributes:
        heap: Time (ms), what for, about whom, and the mark.

    Example:
        >>> heard = {"ann": 0, "bob": 0}
        >>> waits = Deadlines()
        >>> for who in heard:
        ...     waits.add(100, 1, who)
        >>> heard["ann"] = 50
        >>> waits.take(100, later=lambda due: heard[due[2]] + 100)
        (100, 1, 'bob', 0)
        >>> waits.take(100, later=lambda due: heard[due[2]] + 100), waits.next_ms
        (None, 150)
    """

    heap: list[tuple[int, int, str, int]] = []

    def __bool__(self) -> bool:
        return bool(self.heap)

    def add(self, at: int, what: int, about: str = "", mark: int = 0) -> None:
        """Set a deadline.

        Args:
            at: When, ms.
            what: What for; of several at one time the smaller is first.
            about: About whom.
            mark: By which it is known whether it still holds.
        """
        heappush(self.heap, (at, what, about, mark))

    @property
    def next_ms(self) -> int:
        """When the first is (ms), ``NEVER`` where there is none: where the key's timer belongs."""
        return self.heap[0][0] if self.heap else NEVER

    def take(
        self, now: int, later: Callable[[tuple[int, int, str, int]], int] | None = None
    ) -> tuple[int, int, str, int] | None:
        """Take and return the first deadline up to a time; see :func:`take_due`."""
        return take_due(self.heap, now, later)

    def value(self, now: int) -> list[tuple[int, int, str, int]]:
        """Return the deadlines up to a time (ms), in order; they stay."""
        return sorted(due for due in self.heap if due[0] <= now)

    def merge(self, other: Deadlines) -> None:
        """Take over the deadlines of another, which stays as it is."""
        self.heap += other.heap
        heapify(self.heap)

    def prune(self, holds: Callable[[tuple[int, int, str, int]], bool]) -> None:
        """Forget the deadlines that hold no more, before they come."""
        self.heap = [due for due in self.heap if holds(due)]
        heapify(self.heap)
