"""The shop in a loop with an app: shoppers answer its offers, and click on its lists of next items."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from millrace_apps.generators.clickstream.answers import OfferMade
from millrace_apps.generators.clickstream.lists import ListMade
from millrace_apps.generators.clickstream.profile import ClickstreamProfile
from millrace_apps.generators.clickstream.simulation import Shop, truth_of_offers
from millrace_apps.generators.engine.loop import Loop
from millrace_apps.generators.engine.simulated import Simulated, Truth

#: Topics of an app's messages, and what is on them.
APP_TOPICS: Final[dict[str, type[Any]]] = {
    "clickstream.offers": OfferMade,
    "clickstream.recommendations": ListMade,
}


class ShopWorld:
    """A shop whose visitors react to offers.

    What nobody reacts to is as :func:`~millrace_apps.generators.clickstream.simulation.simulate` has it. Of
    each offer it is a truth whether it was shown, whether the cart would have been bought anyway, and whether
    the offer adds a purchase; the truth stands at the next event that happens. So it is of each list that
    somebody reads (``list_clicks``): how likely it was to be clicked, and what was.

    Args:
        profile: What it is made from; ``events`` is no concern of it.

    Example:
        >>> world = ShopWorld(ClickstreamProfile(seed=7, event_rate=5.0))
        >>> hour = list(world.advance(world.now_ms + 3_600_000))
        >>> len(hour) > 10_000, world.offers
        (True, 0)
    """

    def __init__(self, profile: ClickstreamProfile) -> None:
        self._shop = Shop(profile, answers=True)
        self.now_ms = profile.start_ms
        #: Offers that were taken.
        self.offers = 0
        #: Lists that were read.
        self.lists = 0
        self._told: list[Truth] = [truth_of_offers(profile)]

    def receive(self, message: OfferMade | ListMade) -> None:
        """Take an offer or a list; one that has come before is left out."""
        if isinstance(message, ListMade):
            read = self._shop.read(message, self.now_ms)
            if read is not None:
                self.lists += 1
                self._told.append(read)
            return
        truth = self._shop.offer(message, self.now_ms)
        if truth is not None:
            self.offers += 1
            self._told.append(truth)

    def advance(self, until_ms: int) -> Iterator[Simulated]:
        """Yield what happens before an event time, ms, to the second, and go on to it."""
        for event in self._shop.until(until_ms):
            if self._told:
                told, self._told = self._told, []
                yield msgspec.structs.replace(event, truths=(*told, *event.truths))
            else:
                yield event
        self.now_ms = until_ms


def time_of(message: OfferMade | ListMade) -> int:
    """Return the event time of an offer or a list, ms."""
    return message.event_time_ms if isinstance(message, ListMade) else message.at_ms


LOOP: Final = Loop(APP_TOPICS, ShopWorld, time_of)
