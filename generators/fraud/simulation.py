"""Puts genuine life, frauds, and what becomes known of them into one stream in event time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from heapq import heappop
from itertools import count, islice
from typing import Final

from millrace_apps.fraud.contracts.events import Transaction
from millrace_apps.generators.engine.randomness import substream
from millrace_apps.generators.engine.simulated import Simulated, Truth
from millrace_apps.generators.fraud.authorisations import Authorisations
from millrace_apps.generators.fraud.frauds import ALL
from millrace_apps.generators.fraud.labels import LABELLED_GENUINE, Coming, Labels
from millrace_apps.generators.fraud.ordinary import Life, Ordinary, at_terminal, online
from millrace_apps.generators.fraud.profile import FraudProfile
from millrace_apps.generators.fraud.rhythm import day_and_night
from millrace_apps.generators.fraud.schemes import Plans, Purchase, Scheme
from millrace_apps.generators.fraud.world import NUMBERS, Card, Terminal, World


def simulate(profile: FraudProfile) -> Iterator[Simulated]:
    """Yield transactions, one per slot of the event rate, and what becomes known of them when it does.

    Args:
        profile: What the streams are made from; equal profiles give equal events.

    >>> first = next(simulate(FraudProfile(seed=7, cards=20, terminals=10)))
    >>> first.stream, first.event.kind, first.event_time_ms == first.event.event_time_ms
    ('transactions', 'top_up', True)
    """
    return islice(Simulation(profile).events(), profile.events)


_NOTHING: Final[tuple[Truth, ...]] = ()


class Simulation:
    """A running simulation.

    Every slot has a genuine transaction; a fraud that happens takes the place of one that comes later. That
    transaction is left out, but only its sending: cards, balances and random numbers go on as if it had
    been. So neither a fraud nor a whole scheme changes any other event.

    Args:
        profile: What the streams are made from.
    """

    def __init__(self, profile: FraudProfile) -> None:
        self._profile = profile
        world = self._world = World(profile)
        self._life = Life(profile, world)
        self._plans = Plans()
        self._coming = Coming()
        self._labels = Labels(profile.label_scale, self._coming)
        self._authorisations: Authorisations | None = None
        if profile.authorised:
            self._authorisations = Authorisations(
                profile.seed, profile.authorised, profile.label_scale, self._coming
            )
        self._schemes: list[Scheme] = [
            scheme(profile, world, self._plans, self._life.run)
            for scheme in ALL
            if scheme.kind in profile.kinds
        ]
        self._draw_within = substream(profile.seed, NUMBERS, "life", "within").random
        self._draw_chance = substream(profile.seed, NUMBERS, "label", "chance").random
        self._draw_label = substream(profile.seed, NUMBERS, "label", "genuine").random
        #: Frauds sent for which no genuine transaction has been left out yet.
        self._ahead = 0

    def held(self) -> dict[str, int]:
        """Return how much of everything that changes is held in memory."""
        places: list[Card | Terminal] = [*self._world.cards, *self._world.terminals]
        return {
            "coming": len(self._coming),
            "plans": len(self._plans.waiting),
            "watches": sum(place.watch is not None for place in places),
            "devices": sum(len(card.devices) for card in self._world.cards),
        }

    def events(self) -> Iterator[Simulated]:
        """Yield all events, without end unless the profile says how many transactions."""
        profile, labels, waiting = self._profile, self._labels, self._plans.waiting
        coming, authorisations = self._coming, self._authorisations
        step, chance_of, within = self._life.step, self._draw_chance, self._draw_within
        steady_ms, shaped = profile.slot_ms, day_and_night(profile.rhythm)
        last = None if profile.transactions is None else profile.transactions - 1
        next_strike, end_ms = self._next_strike(), shaped(steady_ms(0))
        for slot in count() if last is None else range(last + 1):
            begin_ms, end_ms = end_ms, shaped(steady_ms(slot + 1))
            # Anywhere in its slot: frauds come at any time, and a grid of the others would give them away.
            at_ms = begin_ms + int(within() * (end_ms - begin_ms))
            if slot >= next_strike:
                next_strike = self._strike(slot, begin_ms, end_ms)
            # So many slots before the last could still be left out; the last is sent.
            room = math.inf if last is None else last - slot
            if waiting and waiting[0][0] <= at_ms:
                yield from self._frauds(at_ms, room)
            made = step(slot, at_ms)
            chance = chance_of()
            if self._ahead and (self._ahead >= room or self._may_be_left_out(made, at_ms)) and slot != last:
                self._ahead -= 1
                if chance < LABELLED_GENUINE:
                    labels.genuine(made.event, chance, self._draw_label, known=False)
                continue
            if coming.next_ms <= at_ms:
                yield from coming.until(at_ms)
            if made.card.watch is None and made.terminal.watch is None:
                event, truths = made.event, _NOTHING
            else:
                event, truths = self._watched(made)
            if chance < LABELLED_GENUINE:
                known = not truths and event.kind == "purchase"
                labels.genuine(event, chance, self._draw_label, known=known)
            if authorisations is not None and event.kind == "purchase":
                authorisations.tell(event)
            yield Simulated("transactions", event.card_id, event, at_ms, truths)
        yield from coming.until(math.inf)

    def _next_strike(self) -> float:
        return min((scheme.next_slot for scheme in self._schemes), default=math.inf)

    def _strike(self, slot: int, begin_ms: int, end_ms: int) -> float:
        for scheme in self._schemes:
            if scheme.next_slot <= slot:
                scheme.advance()
                scheme.strike(begin_ms + int(scheme.draw_when() * (end_ms - begin_ms)))
        return self._next_strike()

    def _frauds(self, until_ms: int, room: float) -> Iterator[Simulated]:
        waiting = self._plans.waiting
        while waiting and waiting[0][0] <= until_ms:
            action = waiting[0][3]
            if not isinstance(action, Purchase):
                action(heappop(waiting)[0])
                continue
            if self._ahead >= room:
                # Too near to the end to make up for it: it would come after the last transaction.
                return
            at_ms = heappop(waiting)[0]
            self._ahead += 1
            yield from self._coming.until(at_ms)
            event = _bought(action, at_ms)
            self._labels.fraud(event, action.scheme.draw_label)
            if self._authorisations is not None:
                self._authorisations.tell(event)
            yield Simulated("transactions", event.card_id, event, at_ms, (action.truth,))

    def _may_be_left_out(self, made: Ordinary, at_ms: int) -> bool:
        if made.firm:
            return False
        card_watch, terminal_watch = made.card.watch, made.terminal.watch
        return not (card_watch and card_watch.covers(at_ms)) and not (
            terminal_watch and terminal_watch.covers(at_ms)
        )

    def _watched(self, made: Ordinary) -> tuple[Transaction, tuple[Truth, ...]]:
        event, truths = made.event, []
        for place in (made.card, made.terminal):
            watch = place.watch
            if watch is None:
                continue
            if not watch.covers(event.event_time_ms):
                place.watch = None
            elif event.kind == "purchase":
                truth, event = watch.scheme.saw(watch, event, made.card, made.terminal)
                if truth is not None:
                    truths.append(truth)
                    if len(truths) == 1:
                        self._labels.fraud(event, watch.scheme.draw_label)
        return event, tuple(truths)


def _bought(purchase: Purchase, at_ms: int) -> Transaction:
    transaction_id = purchase.scheme.next_id()
    card, terminal, cents, equipment = purchase.card, purchase.terminal, purchase.cents, purchase.equipment
    if equipment is None:
        return at_terminal(transaction_id, at_ms, card, terminal, cents)
    return online(transaction_id, at_ms, card, terminal, cents, *equipment)
