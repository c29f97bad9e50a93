"""The web shop as a whole: visits begin, go on side by side, and have consequences later."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import count, islice
from typing import Final

import msgspec

from millrace_apps.generators.clickstream import truths
from millrace_apps.generators.clickstream.answers import Answers, OfferMade
from millrace_apps.generators.clickstream.bots import BOT_VISIT_EVENTS, Bots
from millrace_apps.generators.clickstream.catalogue import Catalogue
from millrace_apps.generators.clickstream.lists import ListMade, Lists
from millrace_apps.generators.clickstream.profile import DOMAIN_NAME, ClickstreamProfile, Names
from millrace_apps.generators.clickstream.seasons import Arrivals
from millrace_apps.generators.clickstream.stock import Stock
from millrace_apps.generators.clickstream.visits import Plan, Visits
from millrace_apps.generators.engine.randomness import substream
from millrace_apps.generators.engine.simulated import Simulated, Truth

#: Mean number of events of a visit with all that follows from it; a test holds it to what is simulated.
VISIT_EVENTS: Final = 4.65
#: A slot of the calendar is 2^10 ms.
_SLOT_BITS: Final = 10


def simulate(profile: ClickstreamProfile) -> Iterator[Simulated]:
    """Yield the events of a web shop in event time; equal profiles give equal events.

    Every visit is planned when it begins. Memory is that of the visits in progress, of people who have ever
    come (at most ``people``), and of returns and refunds to come.

    Args:
        profile: What it is made from; ``events`` of its events are yielded, of all streams together.

    >>> first = next(simulate(ClickstreamProfile(seed=7)))
    >>> first.stream, first.event.page_type, [truth.kind for truth in first.truths]
    ('clicks', 'home', ['uplift', 'session'])
    """
    return islice(_begin(profile), profile.events)


def _begin(profile: ClickstreamProfile) -> Iterator[Simulated]:
    events = Shop(profile).run()
    truth = truth_of_offers(profile)
    for first in islice(events, 1):
        yield msgspec.structs.replace(first, truths=(truth, *first.truths))
    yield from events


def truth_of_offers(profile: ClickstreamProfile) -> Truth:
    """Return what an offer does to carts that were left."""
    return truths.uplift(Names(profile).run, profile.recovery, profile.offer_uplift)


class Shop:
    """Merges what goes on at the same time into one stream in event time.

    Args:
        profile: What it is made from.
        answers: Whether visitors react to offers, so that the carts they leave are remembered.
    """

    def __init__(self, profile: ClickstreamProfile, *, answers: bool = False) -> None:
        names = Names(profile)
        catalogue = Catalogue(profile.seed, profile.items, profile.item_skew)
        self._ties = count()
        #: What begins later: moment, tie, plan.
        self._agenda: list[tuple[int, int, Plan]] = []
        self._waiting = _Calendar()
        self._answers = Answers(profile, names) if answers else None
        self._lists = Lists(profile, names, catalogue) if answers and profile.list_clicks else None
        self._visits = Visits(profile, names, catalogue, self._later, self._answers, self._lists)
        self._bots = Bots(profile, names, catalogue)
        rate, seed = profile.event_rate, profile.seed
        arrivals = Arrivals(
            rate / VISIT_EVENTS,
            profile.start_ms,
            profile.season,
            substream(seed, DOMAIN_NAME, "arrival"),
            opening=True,
        )
        if profile.sold_out:
            stock = Stock(profile, names, catalogue)
            self._later(profile.start_ms, stock.open)
            stock_arrivals = Arrivals(
                stock.per_second, profile.start_ms, 0.0, substream(seed, DOMAIN_NAME, "stock_arrival")
            )
            self._repeat(stock_arrivals, stock.sell_out)
        self._repeat(arrivals, self._visits.plan)
        if profile.bots:
            bot_numbers = count(1, 2)
            bot_rate = rate * profile.bots / BOT_VISIT_EVENTS
            bot_arrivals = Arrivals(
                bot_rate, profile.start_ms, 0.0, substream(seed, DOMAIN_NAME, "bot_arrival")
            )
            self._repeat(bot_arrivals, lambda at_ms: self._bots.plan(next(bot_numbers), at_ms))

    def _later(self, at_ms: int, plan: Plan) -> None:
        heappush(self._agenda, (at_ms, next(self._ties), plan))

    def _repeat(self, arrivals: Arrivals, begin: Callable[[int], list[Simulated]]) -> None:
        """Let something begin again and again."""
        at_ms = arrivals.next_ms()

        def plan() -> list[Simulated]:
            self._repeat(arrivals, begin)
            return begin(at_ms)

        self._later(at_ms, plan)

    def run(self) -> Iterator[Simulated]:
        """Yield all events in event time, without end.

        At a thousand events a second a hundred thousand visits are in progress. A heap of them would miss
        the processor's caches at every step; a list per second, sorted when its time comes, does not.
        """
        while True:
            yield from self._second(self._next())

    def until(self, end_ms: int) -> Iterator[Simulated]:
        """Yield the events of all seconds that are over at a time, UTC ms."""
        while (slot := self._next()) + 1 << _SLOT_BITS <= end_ms:
            yield from self._second(slot)
        if self._answers is not None:
            self._answers.forget(end_ms)

    def offer(self, offer: OfferMade, now_ms: int) -> Truth | None:
        """Let a visitor react to an offer; return what is true of it, ``None`` if it has come before.

        Args:
            offer: The offer.
            now_ms: Up to when events have been yielded, UTC ms.
        """
        if self._answers is None or (found := self._answers.take(offer, now_ms)) is None:
            return None
        truth, left, returns = found
        if left is not None and returns is not None:
            self._visits.come_back(returns, shared=left.shared)
        return truth

    def read(self, made: ListMade, now_ms: int) -> Truth | None:
        """Let a visitor read a list of next items; return what is true of it, ``None`` if nobody reads it.

        Args:
            made: The list.
            now_ms: Up to when events have been yielded, UTC ms.
        """
        if self._lists is None or (found := self._lists.take(made, now_ms)) is None:
            return None
        truth, clicked = found
        if clicked is not None:
            self._later(clicked.event_time_ms, lambda: [clicked])
        return truth

    def _next(self) -> int:
        """Return the next second in which something happens."""
        return self._waiting.next_slot(self._agenda[0][0] >> _SLOT_BITS)

    def _second(self, slot: int) -> Iterator[Simulated]:
        agenda, waiting = self._agenda, self._waiting
        end = (slot + 1) << _SLOT_BITS
        while agenda[0][0] < end:
            _, tie, plan = heappop(agenda)
            waiting.add(tie, plan())
        for entry in waiting.take(slot):
            yield entry[3]


class _Calendar:
    """Events to come, by time slot; those of one moment come in order of tie and place."""

    def __init__(self) -> None:
        self._of_slot: dict[int, list[tuple[int, int, int, Simulated]]] = {}
        self._slots: list[int] = []

    def add(self, tie: int, events: list[Simulated]) -> None:
        """Take the events of one plan."""
        of_slot = self._of_slot
        for place, event in enumerate(events):
            at_ms = event.event_time_ms
            slot = at_ms >> _SLOT_BITS
            entries = of_slot.get(slot)
            if entries is None:
                of_slot[slot] = [(at_ms, tie, place, event)]
                heappush(self._slots, slot)
            else:
                entries.append((at_ms, tie, place, event))

    def next_slot(self, other: int) -> int:
        """Return the first slot that has events, or another one if that comes before it."""
        return min(self._slots[0], other) if self._slots else other

    def take(self, slot: int) -> list[tuple[int, int, int, Simulated]]:
        """Return and forget the events of the first slot, in their order."""
        entries = self._of_slot.pop(slot, [])
        if entries:
            heappop(self._slots)
        entries.sort()
        return entries
