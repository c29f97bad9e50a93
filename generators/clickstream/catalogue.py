"""The catalogue of the shop: categories, prices, popularity, and items that are looked at together."""

from __future__ import annotations

import math
from bisect import bisect_right
from itertools import accumulate
from typing import Final

from millrace_apps.generators.clickstream.profile import DOMAIN_NAME
from millrace_apps.generators.engine.randomness import normal, substream

#: Category, share of the items, median price in cents, and the category that goes with it.
CATEGORIES: Final = (
    ("clothing", 0.22, 3_500, "shoes"),
    ("shoes", 0.10, 6_500, "clothing"),
    ("accessories", 0.09, 2_000, "clothing"),
    ("electronics", 0.12, 12_000, "accessories"),
    ("home", 0.11, 4_000, "kitchen"),
    ("kitchen", 0.08, 3_000, "home"),
    ("sports", 0.08, 4_500, "shoes"),
    ("beauty", 0.07, 1_800, "accessories"),
    ("books", 0.06, 1_400, "toys"),
    ("toys", 0.04, 2_200, "books"),
    ("garden", 0.03, 3_800, "home"),
)
_PRICE_SPREAD: Final = 0.6
#: From an item, the item so many places further in its category is looked at next with this probability.
NEIGHBOURS: Final = ((1, 0.40), (-1, 0.20), (2, 0.13), (-2, 0.07))
#: Otherwise the item at the same place of the category that goes with it.
_NEIGHBOUR_BOUNDS: Final = tuple(accumulate(share for _, share in NEIGHBOURS))
CROSS_SHARE: Final = 1.0 - _NEIGHBOUR_BOUNDS[-1]


class Item:
    """Something for sale; price in cents, and what of it stands in events."""

    __slots__ = ("category", "cents", "item_id", "place", "price", "section", "url")

    def __init__(self, item_id: str, section: int, cents: int) -> None:
        self.item_id = item_id
        self.section = section
        self.category = CATEGORIES[section][0]
        self.cents = cents
        self.price = cents / 100
        self.url = f"https://shop.example/item/{item_id}"
        #: Where it stands in its category.
        self.place = 0


class Catalogue:
    """All items, the popular ones first.

    Every category is a ring of its items in an order of its own. Who looks at an item next looks at a
    neighbour on the ring, or at the item at the same place of the category that goes with it: that is what
    a recommender can learn, and :meth:`related` says it.

    Args:
        seed: The run's seed.
        size: Number of items.
        skew: Zipf exponent of popularity.

    >>> catalogue = Catalogue(7, 100, 1.0)
    >>> sum(share for _, share in catalogue.related(catalogue.items[0]))
    1.0
    """

    def __init__(self, seed: int, size: int, skew: float) -> None:
        draw_category = substream(seed, DOMAIN_NAME, "catalogue", "category").random
        draw_price = substream(seed, DOMAIN_NAME, "catalogue", "price").random
        draw_name = substream(seed, DOMAIN_NAME, "catalogue", "name").random
        draw_place = substream(seed, DOMAIN_NAME, "catalogue", "place").random
        bounds = list(accumulate(share for _, share, _, _ in CATEGORIES))
        numbers = sorted(range(size), key=[draw_name() for _ in range(size)].__getitem__)
        self.items: list[Item] = []
        for rank in range(size):
            # The first ranks go round the categories, so that none of them is empty.
            section = (
                rank
                if rank < len(CATEGORIES)
                else min(bisect_right(bounds, draw_category()), len(CATEGORIES) - 1)
            )
            cents = _cents(CATEGORIES[section][2], draw_price())
            self.items.append(Item(f"item-{numbers[rank]:06d}", section, cents))
        self._bounds = list(accumulate((rank + 1) ** -skew for rank in range(size)))
        self._by_section: list[list[Item]] = [[] for _ in CATEGORIES]
        self._section_bounds: list[list[float]] = [[] for _ in CATEGORIES]
        for rank, item in enumerate(self.items):
            self._by_section[item.section].append(item)
            before = self._section_bounds[item.section]
            before.append((before[-1] if before else 0.0) + (rank + 1) ** -skew)
        self._rings = [sorted(items, key=lambda _: draw_place()) for items in self._by_section]
        for ring in self._rings:
            for place, item in enumerate(ring):
                item.place = place
        names = [name for name, _, _, _ in CATEGORIES]
        self._partners = [names.index(partner) for _, _, _, partner in CATEGORIES]

    def popular(self, uniform: float) -> Item:
        """Return an item by popularity."""
        return self.items[bisect_right(self._bounds, uniform * self._bounds[-1])]

    def popular_in(self, section: int, uniform: float) -> Item:
        """Return an item of a category by popularity."""
        bounds = self._section_bounds[section]
        return self._by_section[section][bisect_right(bounds, uniform * bounds[-1])]

    def next_to(self, item: Item, uniform: float) -> Item:
        """Return an item that is looked at after this one."""
        ring = self._rings[item.section]
        for (offset, _), bound in zip(NEIGHBOURS, _NEIGHBOUR_BOUNDS, strict=True):
            if uniform < bound:
                return ring[(item.place + offset) % len(ring)]
        return self._partner(item)

    def related(self, item: Item) -> list[tuple[Item, float]]:
        """Return the items that are looked at after this one, each with its probability."""
        ring = self._rings[item.section]
        near = [(ring[(item.place + offset) % len(ring)], share) for offset, share in NEIGHBOURS]
        return [*near, (self._partner(item), CROSS_SHARE)]

    def _partner(self, item: Item) -> Item:
        ring = self._rings[self._partners[item.section]]
        return ring[item.place * len(ring) // len(self._rings[item.section])]


def _cents(median: int, uniform: float) -> int:
    """Return a price around the median, lognormal, that ends in 9 or 99."""
    cents = median * math.exp(_PRICE_SPREAD * normal(uniform))
    step = 100 if cents >= 1_000 else 10
    return max(round(cents / step), 10) * step - 1
