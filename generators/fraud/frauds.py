"""The ten schemes: three of the Fraud Detection Handbook's, seven known from practice."""

from __future__ import annotations

import math
from typing import ClassVar, Final

import msgspec

from millrace_apps.fraud.contracts.events import Transaction
from millrace_apps.generators.engine.simulated import Truth
from millrace_apps.generators.fraud.schemes import DAY_MS, HOUR_MS, MINUTE_MS, Scheme
from millrace_apps.generators.fraud.world import Card, Merchant, Terminal, Watch, distance_km

#: Cities that are farther apart are never one trip of an hour; those of one city are below 60 km.
FAR_KM: Final = 500
#: A jet does 900 km/h: the cloned card is always faster than this.
IMPOSSIBLE_KM_PER_HOUR: Final = 1_500


class HighAmount(Scheme):
    """One online purchase above every genuine amount, with the holder's own device."""

    kind: ClassVar = "high_amount"
    share: ClassVar = 0.1

    def strike(self, now_ms: int) -> None:
        """Begin a fraud, if there is somebody to hit."""
        card = self._victim(now_ms)
        if card is not None:
            truth = self._truth(card.card_id, [card], 1)
            self._buy(now_ms, card, self._shop(), self._between(60_000, 150_000), self._own(card), truth)


class CompromisedTerminal(Scheme):
    """Every purchase at one terminal is a fraud for 28 days; nothing else about it changes."""

    kind: ClassVar = "compromised_terminal"
    share: ClassVar = 0.03
    _MOST: Final = 60

    def strike(self, now_ms: int) -> None:
        """Take a terminal over, if one is found that is free."""
        terminal = self._world.terminals[int(self.draw() * len(self._world.terminals))]
        if _is_skimmed(terminal.merchant) or (terminal.watch and terminal.watch.covers(now_ms)):
            return
        until_ms = now_ms + round(28 * DAY_MS * self._scale)
        truth = self._truth(terminal.terminal_id, [], None, until_ms=until_ms, most=self._MOST)
        terminal.watch = Watch(self, until_ms, self._MOST, truth)

    def saw(
        self, watch: Watch, event: Transaction, card: Card, terminal: Terminal
    ) -> tuple[Truth | None, Transaction]:
        """Make the purchase a fraud."""
        watch.left -= 1
        return watch.truth, event


class CompromisedCard(Scheme):
    """A third of a card's purchases are the fraudster's, five times as high, for 14 days."""

    kind: ClassVar = "compromised_card"
    share: ClassVar = 0.07
    _MOST: Final = 20
    _FACTOR: Final = 5

    def strike(self, now_ms: int) -> None:
        """Get hold of a card."""
        card = self._victim(now_ms)
        if card is not None:
            until_ms = now_ms + round(14 * DAY_MS * self._scale)
            truth = self._truth(card.card_id, [card], None, until_ms=until_ms, most=self._MOST)
            card.watch = Watch(self, until_ms, self._MOST, truth)

    def saw(
        self, watch: Watch, event: Transaction, card: Card, terminal: Terminal
    ) -> tuple[Truth | None, Transaction]:
        """Raise every third purchase, but none that is going to be given back: a refund is the sum paid."""
        if self.draw() >= 1 / 3 or (card.owed is not None and card.owed[0] is terminal):
            return None, event
        watch.left -= 1
        raised = round(event.amount * 100) * self._FACTOR / 100
        billed = event.billing_amount
        if billed is not None:
            billed = round(billed * 100) * self._FACTOR / 100
        return watch.truth, msgspec.structs.replace(event, amount=raised, billing_amount=billed)


class CardTesting(Scheme):
    """Eight and more purchases of at most 2.00 at one shop within half a minute: which cards work?"""

    kind: ClassVar = "card_testing"
    share: ClassVar = 0.2

    def strike(self, now_ms: int) -> None:
        """Test a card."""
        card = self._victim(now_ms)
        if card is None:
            return
        shop, stolen = self._shop(), self._stolen()
        times = self._times(now_ms, self._count(8, 14), round(self._between(5_000, 25_000)))
        truth = self._truth(card.card_id, [card], len(times))
        for at_ms in times:
            self._buy(at_ms, card, shop, self._between(10, 200), stolen, truth)


class AccountTakeover(Scheme):
    """Two to five high purchases from a device, an IP address and to an address new to the card."""

    kind: ClassVar = "account_takeover"
    share: ClassVar = 0.15

    def strike(self, now_ms: int) -> None:
        """Take an account over."""
        card = self._victim(now_ms)
        if card is None:
            return
        stolen = self._stolen()
        times = self._times(now_ms, self._count(2, 5), self._span(10 * MINUTE_MS, 90 * MINUTE_MS))
        truth = self._truth(
            card.card_id, [card], len(times), device_id=stolen.device, address_id=stolen.address
        )
        for at_ms in times:
            # Genuine purchases are at most 5.6 times the card's mean.
            self._buy(at_ms, card, self._shop(), card.mean * self._between(6, 10), stolen, truth)


class ImpossibleTravel(Scheme):
    """After a purchase at a terminal, a clone of the card is used too far away to have been carried there."""

    kind: ClassVar = "impossible_travel"
    share: ClassVar = 0.15

    def strike(self, now_ms: int) -> None:
        """Clone a card; the clone is used after the card's next purchase at a terminal."""
        card = self._victim(now_ms)
        if card is not None:
            card.watch = Watch(self, math.inf, 1)

    def saw(
        self, watch: Watch, event: Transaction, card: Card, terminal: Terminal
    ) -> tuple[Truth | None, Transaction]:
        """Use the clone, if this purchase says where the card is."""
        if terminal.place < 0:
            return None, event
        terminals = self._world.terminals
        there = terminals[int(self.draw() * len(terminals))]
        kilometres = distance_km(terminal, there)
        if kilometres < FAR_KM:
            return None, event
        watch.left = 0
        longest_ms = kilometres / IMPOSSIBLE_KM_PER_HOUR * HOUR_MS * min(self._scale, 1.0)
        first_ms = event.event_time_ms + max(1, round(longest_ms * self._between(0.05, 1.0)))
        nearby = self._world.at_place[there.place]
        times = self._times(first_ms, self._count(1, 3), self._span(2 * MINUTE_MS, 20 * MINUTE_MS))
        truth = self._truth(
            card.card_id,
            [card],
            len(times),
            genuine_transaction_id=event.transaction_id,
            kilometres=round(kilometres),
            seconds=round((first_ms - event.event_time_ms) / 1000, 3),
        )
        for number, at_ms in enumerate(times):
            used = there if number == 0 else nearby[int(self.draw() * len(nearby))]
            self._buy(at_ms, card, used, card.mean * self._between(1, 3), None, truth)
        return None, event


class DeviceRing(Scheme):
    """Four to eight cards of several holders, used in turn from one device and sent to one address."""

    kind: ClassVar = "device_ring"
    share: ClassVar = 0.05

    def strike(self, now_ms: int) -> None:
        """Let a ring work through its cards; given up if it has too few."""
        found = [self._victim(now_ms) for _ in range(self._count(4, 8))]
        cards = list({card.card_id: card for card in found if card is not None}.values())
        if len(cards) < 4:
            return
        stolen = self._stolen()
        buys = [card for card in cards for _ in range(self._count(1, 3))]
        times = self._times(now_ms, len(buys), self._span(HOUR_MS, DAY_MS))
        truth = self._truth(stolen.device, cards, len(buys), address_id=stolen.address)
        for at_ms, card in zip(times, buys, strict=True):
            self._buy(at_ms, card, self._shop(), card.mean * self._between(1, 4), stolen, truth)


class MerchantCompromise(Scheme):
    """A merchant leaks the cards that it sees for some days; later they are misused elsewhere."""

    kind: ClassVar = "merchant_compromise"
    share: ClassVar = 0.05
    _FEWEST: Final = 3
    _MOST_SEEN: Final = 40

    def strike(self, now_ms: int) -> None:
        """Get into a merchant's terminals, if one is found that is free."""
        terminal = self._world.terminals[int(self.draw() * len(self._world.terminals))]
        merchant = terminal.merchant
        span_ms = self._span(2 * DAY_MS, 7 * DAY_MS)
        if not _is_skimmed(merchant) or (terminal.watch and terminal.watch.covers(now_ms)):
            return
        watch = Watch(self, now_ms + span_ms, self._MOST_SEEN)
        for skimmed in merchant.terminals:
            skimmed.watch = watch
        self._plans.add(now_ms + span_ms, self, lambda at_ms: self._misuse(watch, merchant, at_ms))

    def saw(
        self, watch: Watch, event: Transaction, card: Card, terminal: Terminal
    ) -> tuple[Truth | None, Transaction]:
        """Remember the card; the purchase itself is genuine."""
        if all(card is not seen for seen, _ in watch.seen):
            watch.left -= 1
            watch.seen.append((card, event.transaction_id))
        return None, event

    def _misuse(self, watch: Watch, merchant: Merchant, now_ms: int) -> None:
        taken = watch.seen[: self._count(self._FEWEST, 12)]
        if len(taken) < self._FEWEST:
            return
        plan = []
        for card, _ in taken:
            first_ms = now_ms + self._span(DAY_MS, 21 * DAY_MS)
            times = self._times(first_ms, self._count(1, 2), self._span(MINUTE_MS, HOUR_MS))
            plan += [(at_ms, card, stolen) for stolen in (self._stolen(),) for at_ms in times]
        truth = self._truth(
            merchant.merchant_id,
            [card for card, _ in taken],
            len(plan),
            exposed_by=[transaction_id for _, transaction_id in taken],
            exposed_until_ms=now_ms,
        )
        for at_ms, card, stolen in plan:
            self._buy(at_ms, card, self._shop(), card.mean * self._between(2, 5), stolen, truth)


class SmallThenLarge(Scheme):
    """A purchase below 1.00 and, within a minute, one above 500.00, as in Flink's walk-through."""

    kind: ClassVar = "small_then_large"
    share: ClassVar = 0.1

    def strike(self, now_ms: int) -> None:
        """Try a card out, then use it."""
        card = self._victim(now_ms)
        if card is not None:
            truth = self._truth(card.card_id, [card], 2)
            own = self._own(card)
            self._buy(now_ms, card, self._shop(), self._between(10, 99), own, truth)
            later_ms = now_ms + round(self._between(2_000, 55_000))
            self._buy(later_ms, card, self._shop(), self._between(50_001, 90_000), own, truth)


class Spree(Scheme):
    """Six and more purchases of three to five times the mean within half a minute, where the holder shops."""

    kind: ClassVar = "spree"
    share: ClassVar = 0.1

    def strike(self, now_ms: int) -> None:
        """Spend what a stolen card gives."""
        card = self._victim(now_ms)
        if card is None:
            return
        times = self._times(now_ms, self._count(6, 10), round(self._between(8_000, 30_000)))
        truth = self._truth(card.card_id, [card], len(times))
        for at_ms in times:
            terminal = card.usual[int(self.draw() * len(card.usual))]
            self._buy(at_ms, card, terminal, card.mean * self._between(3, 5), None, truth)


ALL: Final[tuple[type[Scheme], ...]] = (
    HighAmount,
    CompromisedTerminal,
    CompromisedCard,
    CardTesting,
    AccountTakeover,
    ImpossibleTravel,
    DeviceRing,
    MerchantCompromise,
    SmallThenLarge,
    Spree,
)


def _is_skimmed(merchant: Merchant) -> bool:
    """Say which of the two schemes that hit terminals may hit this merchant's."""
    return int(merchant.merchant_id[-1]) % 2 == 0
