"""Top-n: the items with the largest numbers, of equals the smaller item first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import msgspec

K = TypeVar("K", str, int)
V = TypeVar("V")


def is_ranked(item: tuple[Any, Any]) -> bool:
    """Return whether an item has a place: what is ``None`` or no number (NaN) has none."""
    value = item[1]
    return value is not None and value == value


def place_of(item: tuple[Any, Any]) -> tuple[Any, Any]:
    """Return what ranked items are sorted by."""
    return -item[1], item[0]


def best(items: Iterable[tuple[K, V]], n: int) -> list[tuple[K, V]]:
    """Return the ``n`` best of some items, each once, with their numbers.

    The n-th largest number is found first, so that only what can have a place is sorted by name.

    Args:
        items: Item and number.
        n: How many, at least 1.

    Example:
        >>> best({"b": 2, "a": 2, "c": 1, "d": None}.items(), 2), best([], 3)
        ([('a', 2), ('b', 2)], [])
    """
    found: list[Any] = [item for item in items if item[1] is not None and item[1] == item[1]]
    if len(found) > n:
        least = sorted([item[1] for item in found], reverse=True)[n - 1]
        found = [item for item in found if item[1] >= least]
    found.sort(key=place_of)
    return found[:n]


def rise_or_fall(
    ranking: Iterable[tuple[K, V]], item: tuple[K, V | None], n: int
) -> list[tuple[K, V]] | None:
    """Return a ranking after one item's number has changed; ``None``: that can only be said with all items.

    Args:
        ranking: The ``n`` best before, or all where there are fewer.
        item: The item, and its number now.
        n: How many have a place.

    Example:
        >>> before = [("a", 5), ("b", 3)]
        >>> rise_or_fall(before, ("c", 4), 2), rise_or_fall(before, ("b", 6), 2)
        ([('a', 5), ('c', 4)], [('b', 6), ('a', 5)])
        >>> rise_or_fall(before, ("a", 4), 2)               # who is third, and may have more than 4?
    """
    before = list(ranking)
    others: list[Any] = [entry for entry in before if entry[0] != item[0]]
    ranked = is_ranked(item)
    if len(others) < len(before) == n:  # it has a place, and all have one
        old = next(entry for entry in before if entry[0] == item[0])
        if not ranked or place_of(item) > place_of(old):
            return None
    if ranked:
        others.append(item)
    others.sort(key=place_of)
    return others[:n]


class TopN(msgspec.Struct, array_like=True):
    """How often, or how much, of each item; and which are the best of them.

    All items are kept: which is among the best in the end cannot be known before. Of the last hour it is
    :class:`millrace.parts.panes.Sums`, whose window :func:`best` ranks.

    Attributes:
        numbers: Item → its number.

    Example:
        >>> sold = TopN()
        >>> for item in ("tea", "cup", "tea", "pot"):
        ...     sold.add(item)
        >>> sold.value(2)
        [('tea', 2), ('cup', 1)]
        >>> sold.prune(2)
        >>> sold.numbers
        {'tea': 2}
    """

    numbers: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self.numbers)

    def add(self, item: str, number: int = 1) -> None:
        """Add to the number of an item; what is taken back is negative, and what comes to nothing goes."""
        total = self.numbers.get(item, 0) + number
        if total:
            self.numbers[item] = total
        else:
            self.numbers.pop(item, None)

    def merge(self, other: TopN | Mapping[str, int]) -> None:
        """Add the numbers of another, which stays as it is."""
        numbers = other.numbers if isinstance(other, TopN) else other
        for item, number in numbers.items():
            self.add(item, number)

    def prune(self, least: int) -> None:
        """Forget the items whose number is less than ``least``: they begin anew, and may be told too low."""
        for item in [item for item, number in self.numbers.items() if number < least]:
            del self.numbers[item]

    def value(self, n: int) -> list[tuple[str, int]]:
        """Return the ``n`` best items with their numbers."""
        return best(self.numbers.items(), n)
