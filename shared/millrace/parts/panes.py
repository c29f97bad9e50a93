"""Panes: time cut into stretches of one length, of which any window of theirs is put together.

A pane is known by its start, in whatever unit the length is in (ms, minutes). The logic is functions over a
plain dict, start → what is kept of the pane: state that stands in such a dict uses them, as the clickstream
app's counters do. :class:`Panes` is the dict as a struct, :class:`Sums` one with sums by item.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import add
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

T = TypeVar("T")
K = TypeVar("K")


def pane_at(panes: dict[int, T], at: int, size: int, new: Callable[[], T]) -> T:
    """Return the pane that a time is in, a new one where there is none.

    >>> panes = {}
    >>> pane_at(panes, 125, 60, list).append("a"); pane_at(panes, 179, 60, list).append("b"); panes
    {120: ['a', 'b']}
    """
    start = at - at % size
    found = panes.get(start)
    if found is None:
        found = panes[start] = new()
    return found


def panes_between(panes: Mapping[int, T], start: int, end: int, size: int) -> list[T]:
    """Return the panes of a window, oldest first.

    Args:
        panes: Start → pane.
        start: Start of the window, where a pane begins.
        end: Its end, where a pane ends.
        size: Length of a pane.

    >>> panes_between({0: "a", 60: "b", 180: "c"}, 0, 180, 60)
    ['a', 'b']
    """
    if (end - start) // size > len(panes):  # a long window of which little is there
        return [panes[one] for one in sorted(panes) if start <= one < end]
    return [panes[one] for one in range(start, end, size) if one in panes]


def forget_panes(panes: dict[int, Any], before: int) -> None:
    """Drop the panes that begin before a time.

    >>> panes = {0: "a", 60: "b"}
    >>> forget_panes(panes, 60); panes
    {60: 'b'}
    """
    for start in [start for start in panes if start < before]:
        del panes[start]


def next_end(panes: Iterable[int], size: int, length: int, every: int, after: int) -> int | None:
    """Return when the next window with something in it ends; ``None``: none does.

    Args:
        panes: The panes' starts.
        size: Length of a pane.
        length: Length of a window; it ends where a pane does.
        every: Windows end at the multiples of this.
        after: The time after which it ends.

    >>> [next_end([0], 60, 300, 60, after) for after in (0, 59, 60, 299, 300)]
    [60, 60, 120, 300, None]
    """
    for start in sorted(start for start in panes if start + length > after):
        end = -(-max(after + 1, start + size) // every) * every
        if end - length <= start:
            return end
    return None


def sums_of(panes: Iterable[Mapping[K, list[int]]]) -> dict[K, list[int]]:
    """Return the sums of panes that hold numbers by item, as many of each; the panes stay as they are.

    >>> sums_of([{"tea": [2, 1]}, {"tea": [1, 0], "cup": [5, 5]}])
    {'tea': [3, 1], 'cup': [5, 5]}
    """
    sums: dict[K, list[int]] = {}
    for pane in panes:
        for item, numbers in pane.items():
            mine = sums.get(item)
            sums[item] = numbers.copy() if mine is None else list(map(add, mine, numbers))
    return sums


class Panes(msgspec.Struct, Generic[T], array_like=True):
    """Panes of any kind, for as long as somebody asks for a window that they are in.

    A subclass says how long a pane is (with ``array_like=True`` as well).

    Attributes:
        size: Length of a pane, in the unit of times.
        kept: Start → what is kept of the pane.

    Example:
        >>> class Seen(Panes[list[str]], array_like=True):
        ...     size = 60_000
        >>> seen = Seen()
        >>> for at, who in [(1_000, "ann"), (61_000, "bob"), (119_000, "cy")]:
        ...     seen.at(at, list).append(who)
        >>> seen.value(0, 120_000), seen.next_end(300_000, 60_000, after=60_000)
        ([['ann'], ['bob', 'cy']], 120000)
        >>> seen.prune(60_000)
        >>> seen.kept
        {60000: ['bob', 'cy']}
    """

    size: ClassVar[int] = 60_000

    kept: dict[int, T] = {}

    def __bool__(self) -> bool:
        return bool(self.kept)

    def at(self, at: int, new: Callable[[], T]) -> T:
        """Return the pane that a time is in, to be added to; one by ``new`` where there is none."""
        return pane_at(self.kept, at, self.size, new)

    def add(self, at: int, what: T, merge: Callable[[T, T], T]) -> None:
        """Add what is to be in the pane of a time.

        Args:
            at: The time.
            what: What is added.
            merge: Makes one of what was there and this.
        """
        start = at - at % self.size
        self.kept[start] = merge(self.kept[start], what) if start in self.kept else what

    def merge(self, other: Panes[T], merge: Callable[[T, T], T]) -> None:
        """Take over all panes of another, which is not to be used any more."""
        for start, what in other.kept.items():
            self.add(start, what, merge)

    def value(self, start: int, end: int) -> list[T]:
        """Return the panes of the window from ``start`` to before ``end``, oldest first."""
        return panes_between(self.kept, start, end, self.size)

    def next_end(self, length: int, every: int, after: int) -> int | None:
        """Return when the next window with something in it ends; see :func:`next_end`."""
        return next_end(self.kept, self.size, length, every, after)

    def prune(self, until: int) -> None:
        """Forget the panes that end at ``until`` or before."""
        forget_panes(self.kept, until - self.size + 1)


class Sums(msgspec.Struct, array_like=True):
    """Sums of numbers by item, over any window of whole panes.

    A subclass says how long a pane is (with ``array_like=True`` as well).

    Attributes:
        size: Length of a pane, in the unit of times.
        panes: Start → item → sums.

    Example:
        >>> from millrace.parts.top import best
        >>> shop = Sums()
        >>> for at, item, views, sold in [(0, "tea", 2, 1), (61_000, "cup", 3, 0), (62_000, "tea", 2, 0)]:
        ...     shop.add(at, item, views, sold)
        >>> shop.value(0, 120_000), shop.value(60_000, 120_000)
        ({'tea': [4, 1], 'cup': [3, 0]}, {'cup': [3, 0], 'tea': [2, 0]})
        >>> best(((item, views) for item, (views, _) in shop.value(0, 120_000).items()), 1)
        [('tea', 4)]
    """

    size: ClassVar[int] = 60_000

    panes: dict[int, dict[str, list[int]]] = {}

    def __bool__(self) -> bool:
        return bool(self.panes)

    def add(self, at: int, item: str, *numbers: int) -> None:
        """Add to the numbers of an item in the pane of a time, as many each time."""
        pane = pane_at(self.panes, at, self.size, dict)
        mine = pane.get(item)
        pane[item] = list(numbers) if mine is None else list(map(add, mine, numbers))

    def merge(self, other: Sums) -> None:
        """Add the sums of another, which stays as it is."""
        for start, pane in other.panes.items():
            self.panes[start] = sums_of([self.panes.get(start, {}), pane])

    def value(self, start: int, end: int) -> dict[str, list[int]]:
        """Return the sums by item of the window from ``start`` to before ``end``."""
        return sums_of(panes_between(self.panes, start, end, self.size))

    def next_end(self, length: int, every: int, after: int) -> int | None:
        """Return when the next window with something in it ends; see :func:`next_end`."""
        return next_end(self.panes, self.size, length, every, after)

    def prune(self, until: int) -> None:
        """Forget the panes that end at ``until`` or before."""
        forget_panes(self.panes, until - self.size + 1)
