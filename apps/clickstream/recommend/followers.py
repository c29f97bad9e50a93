"""Follower counts of items in sessions, of which the greatest are asked for."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import repeat
from typing import Final

import numpy as np
from numpy.typing import NDArray

#: Counts that differ by less are one: what is made of them may be equal though they are not.
_NEARLY: Final = 1.0 - 1e-9
#: So many followers of an item are kept, those with the greatest sums, whenever there are twice as many.
MOST: Final = 5_000


class Followers:
    """Items, by number, with the sum of 1 / clicks between them and the item that they followed.

    Args:
        most: So many are kept where there are twice as many; one that comes again begins at 0.

    Example:
        >>> followers = Followers()
        >>> for item, weight in ((7, 1.0), (8, 0.5), (7, 0.25)):
        ...     followers.add(item, weight)
        >>> followers.get(7), followers.strongest, followers.best(1), len(followers)
        (1.25, 1.25, [7], 2)
    """

    __slots__ = ("_items", "_most", "_places", "_values", "strongest")

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._places: dict[int, int] = {}
        self._items: array[int] = array("q")
        self._values: array[float] = array("d")
        #: The greatest sum.
        self.strongest = 0.0

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, item: int) -> bool:
        return item in self._places

    def add(self, item: int, weight: float) -> None:
        """Add to an item's sum."""
        place = self._places.get(item)
        if place is None:
            self._places[item] = len(self._items)
            self._items.append(item)
            self._values.append(weight)
            value = weight
            if len(self._items) > 2 * self._most:
                self._cut()
        else:
            value = self._values[place] + weight
            self._values[place] = value
        if value > self.strongest:
            self.strongest = value

    def _cut(self) -> None:
        """Keep the items of the greatest sums, in the order in which they came; of equal ones the newer."""
        values = np.array(self._values, np.float64)
        order = np.lexsort((np.arange(len(values)), values))[-self._most :]
        kept = np.sort(order)
        self._items = array("q", np.array(self._items, np.int64)[kept].tolist())
        self._values = array("d", values[kept].tolist())
        self._places = {item: place for place, item in enumerate(self._items)}

    def get(self, item: int) -> float:
        """Return an item's sum; 0 where it never followed."""
        place = self._places.get(item)
        return 0.0 if place is None else self._values[place]

    def top(
        self, most: int | None, near: Sequence[int] = ()
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return so many items of the greatest sums and these, in any order; also all that equal the last.

        Args:
            most: How many; ``None``: all.
            near: Different items that are wanted, too, whatever their sums.
        """
        if not self._items:
            return np.empty(0, np.int64), np.empty(0)
        # Copies: an array with a view on it cannot grow.
        items, values = np.array(self._items, np.int64), np.array(self._values, np.float64)
        if most is None or len(items) <= most:
            return items, values
        least = np.partition(values, len(values) - most)[len(values) - most]
        kept = values >= least * _NEARLY
        places = np.fromiter(map(self._places.get, near, repeat(-1)), np.int64, len(near))
        kept[places[places >= 0]] = True
        return items[kept], values[kept]

    def best(self, most: int) -> list[int]:
        """Return the items of the greatest sums, the greatest first; of equal ones the lesser number."""
        items, values = self.top(most)
        order = np.lexsort((items, -values))
        found: list[int] = items[order].tolist()
        return found[:most]
