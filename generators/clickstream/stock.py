"""Item changes of the shop: the catalogue when it opens, then what is sold out and comes back."""

from __future__ import annotations

import math
from itertools import count
from typing import Final

from millrace_apps.clickstream.contracts.events import ItemChange
from millrace_apps.generators.clickstream import truths
from millrace_apps.generators.clickstream.catalogue import Catalogue, Item
from millrace_apps.generators.clickstream.profile import DOMAIN_NAME, ClickstreamProfile, Names
from millrace_apps.generators.engine.randomness import substream
from millrace_apps.generators.engine.simulated import Simulated

#: How long an item is sold out: mean, and at least, ms.
MEAN_OUT_MS: Final = 20 * 60_000
_LEAST_OUT_MS: Final = 60_000
#: The catalogue is told within the first minute.
_OPENING_MS: Final = 60_000
_MOST_PIECES: Final = 200


class Stock:
    """Plans changes of items, from random numbers that nothing else uses.

    Popular items are sold out more often; one that is sold out is not sold out once more meanwhile.

    Args:
        profile: Gives ``seed``, ``start_ms`` and ``sold_out``.
        names: Makes identifiers.
        catalogue: The items.
    """

    def __init__(self, profile: ClickstreamProfile, names: Names, catalogue: Catalogue) -> None:
        self._names, self._catalogue = names, catalogue
        self._start_ms = profile.start_ms
        self._draw = substream(profile.seed, DOMAIN_NAME, "stock").random
        self._numbers = count(1)
        self._out_until: dict[str, int] = {}
        #: Items that are sold out, in a second of event time.
        self.per_second = profile.sold_out * len(catalogue.items) / (MEAN_OUT_MS / 1_000)

    def open(self) -> list[Simulated]:
        """Return what is said of all items when the shop opens."""
        items = self._catalogue.items
        return [
            self._change(item, self._start_ms + place * _OPENING_MS // len(items), self._pieces())
            for place, item in enumerate(items)
        ]

    def sell_out(self, at_ms: int) -> list[Simulated]:
        """Return the change of an item that is sold out now, and that of its coming back."""
        item = self._catalogue.popular(self._draw())
        out_ms = max(_LEAST_OUT_MS, int(-MEAN_OUT_MS * math.log(1.0 - self._draw())))
        pieces = self._pieces()
        begin = max(at_ms, self._start_ms + _OPENING_MS)
        if self._out_until.get(item.item_id, 0) >= begin:
            return []
        self._out_until[item.item_id] = begin + out_ms
        return [self._change(item, begin, 0), self._change(item, begin + out_ms, pieces)]

    def _pieces(self) -> int:
        return 1 + int(self._draw() * _MOST_PIECES)

    def _change(self, item: Item, at_ms: int, pieces: int) -> Simulated:
        change = self._names.of("item-change", next(self._numbers))
        event = ItemChange(change, item.item_id, at_ms, item.category, item.price, stock=pieces)
        truth = truths.item_changed(event)
        return Simulated("items", item.item_id, event, at_ms, (truth,))
