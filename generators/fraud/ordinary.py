"""Genuine payments: purchases at terminals and online, trips, refunds, top-ups, new devices now and then."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from typing import Final, NamedTuple

from millrace_apps.fraud.contracts.events import Channel, Kind, Transaction
from millrace_apps.generators.engine.randomness import NORMAL, digest, substream
from millrace_apps.generators.fraud.names import ORDINARY, scattered
from millrace_apps.generators.fraud.profile import FraudProfile
from millrace_apps.generators.fraud.world import NUMBERS, PLACES, Card, Terminal, World, distance_km

HOUR_MS: Final = 3_600_000
#: Purchases that are given back, of those at a card that owes no refund yet.
_REFUNDED: Final = 0.012
#: Chance that a card's next event is the refund that it is owed.
_GIVEN_BACK: Final = 0.3
#: Purchases at a terminal after which the holder leaves for another city or, when away, for home.
_DEPARTS: Final = 0.002
_RETURNS: Final = 0.2
#: A trip takes this long for waiting and at this speed for moving: never an impossible one.
_WAITING_MS: Final = 2 * 3_600_000
_KM_PER_HOUR: Final = 600
#: Online purchases by a device just bought, through the mobile network, to an address of somebody else.
_NEW_DEVICE: Final = 0.004
_MOBILE: Final = 0.3
_ELSEWHERE: Final = 0.02
_STEPS: Final = len(NORMAL)
_OFFSETS_MIN: Final = tuple(place.offset_min for place in PLACES)
_SIGMA: Final = 0.5
#: Purchases are lognormal around the card's mean (mean 1, up to 5.6 times).
FACTORS: Final = tuple(math.exp(_SIGMA * z - _SIGMA * _SIGMA / 2) for z in NORMAL)


class Ordinary(NamedTuple):
    """One genuine transaction of a slot.

    Attributes:
        event: The transaction.
        card: Its card.
        terminal: Its terminal.
        firm: Whether later transactions rely on it, so that no fraud may take its slot.
    """

    event: Transaction
    card: Card
    terminal: Terminal
    firm: bool


class Life:
    """Makes the genuine transaction of every slot; knows nothing of frauds.

    Args:
        profile: Seed and shares.
        world: Everybody.
    """

    def __init__(self, profile: FraudProfile, world: World) -> None:
        self._world = world
        self._online = profile.online
        # Part of every id: runs with another seed or start must not look like repeats of this one.
        self.run = digest(NUMBERS, profile.seed, profile.start_ms)[:10]
        self._activity: list[float] = []
        total = 0.0
        for card in world.cards:
            total += card.weight
            self._activity.append(total)
        self._total = total
        # All terminals by city, those reached by a trip; nobody travels where there are none.
        self._places = [number for number, here in enumerate(world.at_place) if here]

        def draws(purpose: str) -> Callable[[], float]:
            return substream(profile.seed, NUMBERS, "life", purpose).random

        self._draw_card, self._draw_kind = draws("card"), draws("kind")
        self._draw_channel, self._draw_terminal = draws("channel"), draws("terminal")
        self._draw_amount, self._draw_refund = draws("amount"), draws("refund")
        self._draw_trip, self._draw_device = draws("trip"), draws("device")
        self._draw_ip, self._draw_address = draws("ip"), draws("address")

    def step(self, slot: int, at_ms: int) -> Ordinary:
        """Return the genuine transaction of a slot."""
        # All draws come first and always, so that no decision shifts the numbers of the next event.
        card = self._world.cards[bisect_right(self._activity, self._draw_card() * self._total)]
        kind_draw, channel_draw, terminal_draw = (
            self._draw_kind(),
            self._draw_channel(),
            self._draw_terminal(),
        )
        amount_draw, refund_draw, trip_draw = self._draw_amount(), self._draw_refund(), self._draw_trip()
        device_draw, ip_draw, address_draw = self._draw_device(), self._draw_ip(), self._draw_address()
        transaction_id = f"{self.run}-{scattered(slot, ORDINARY)}"
        account = card.account
        cents = max(10, round(card.mean * FACTORS[int(amount_draw * _STEPS)]))
        if card.owed is not None and kind_draw < _GIVEN_BACK:
            return self._refund(transaction_id, at_ms, card, card.owed)
        if account.balance < cents:
            return self._top_up(transaction_id, at_ms, card, cents, amount_draw)
        account.balance -= cents
        firm = refund_draw < _REFUNDED and card.owed is None
        if channel_draw < self._online or card.moving_until_ms > at_ms:
            shops = self._world.shops
            # Squared, so that a few shops have most of the customers.
            terminal = shops[int(terminal_draw * terminal_draw * len(shops))]
            device, ip, address = self._equipment(card, device_draw, ip_draw, address_draw)
            event = online(transaction_id, at_ms, card, terminal, cents, device, ip, address)
        else:
            terminal = self._terminal(card, terminal_draw)
            event = at_terminal(transaction_id, at_ms, card, terminal, cents)
            if trip_draw < _DEPARTS or (card.place != card.home and trip_draw < _RETURNS):
                self._leave(card, terminal, at_ms, trip_draw)
        if firm:
            card.owed = (terminal, cents)
        return Ordinary(event, card, terminal, firm)

    def _refund(self, transaction_id: str, at_ms: int, card: Card, owed: tuple[Terminal, int]) -> Ordinary:
        terminal, cents = owed
        card.owed = None
        card.account.balance += cents
        event = moved(transaction_id, at_ms, card, terminal, cents, "refund")
        return Ordinary(event, card, terminal, True)

    def _top_up(self, transaction_id: str, at_ms: int, card: Card, wanted: int, uniform: float) -> Ordinary:
        """Book a round sum that pays for what is wanted and for 15 to 25 purchases more."""
        bank = self._world.banks[card.usual[0].country]
        missing = wanted + card.mean * (15 + 10 * uniform) - card.account.balance
        cents = math.ceil(missing / 1_000) * 1_000
        card.account.balance += cents
        return Ordinary(moved(transaction_id, at_ms, card, bank, cents, "top_up"), card, bank, True)

    def _terminal(self, card: Card, uniform: float) -> Terminal:
        if card.place == card.home:
            return card.usual[int(uniform * len(card.usual))]
        here = self._world.at_place[card.place]
        return here[int(uniform * len(here))]

    def _leave(self, card: Card, terminal: Terminal, now_ms: int, uniform: float) -> None:
        if card.place != card.home:
            card.place = card.home
        else:
            # The draw is below the share of departures; scaled by it, it is uniform.
            card.place = self._places[int(uniform / _DEPARTS * len(self._places))]
        farthest = max(self._world.at_place[card.place], key=lambda there: distance_km(terminal, there))
        kilometres = distance_km(terminal, farthest)
        card.moving_until_ms = now_ms + _WAITING_MS + round(kilometres / _KM_PER_HOUR * 3_600_000)

    def _equipment(self, card: Card, device: float, ip: float, address: float) -> tuple[str, str, str]:
        if device < _NEW_DEVICE:
            # Replaces the oldest one, in a list of the card's own.
            card.devices = [*card.devices[1:], self._world.new_device()]
            used = card.devices[-1]
        else:
            used = card.devices[int(device * len(card.devices))]
        to = card.address_id
        if address < _ELSEWHERE:
            cards = self._world.cards
            to = cards[int(address / _ELSEWHERE * len(cards))].address_id
        return used, card.mobile_ip if ip < _MOBILE else card.ip, to


def at_terminal(transaction_id: str, at_ms: int, card: Card, terminal: Terminal, cents: int) -> Transaction:
    """Return a purchase at a terminal."""
    return _made(
        transaction_id, at_ms, card, terminal, cents, "purchase", terminal.place, "terminal",
        terminal.latitude, terminal.longitude,
    )  # fmt: skip


def online(
    transaction_id: str,
    at_ms: int,
    card: Card,
    shop: Terminal,
    cents: int,
    device: str,
    ip: str,
    address: str,
) -> Transaction:
    """Return an online purchase, by the clock of where the holder is."""
    return _made(
        transaction_id, at_ms, card, shop, cents, "purchase", card.place, "online", None, None,
        device, ip, address,
    )  # fmt: skip


def moved(
    transaction_id: str, at_ms: int, card: Card, terminal: Terminal, cents: int, kind: Kind
) -> Transaction:
    """Return a refund or a top-up: booked from afar, so without position, device and address."""
    return _made(transaction_id, at_ms, card, terminal, cents, kind, card.home, "online", None, None)


def _made(
    transaction_id: str,
    at_ms: int,
    card: Card,
    terminal: Terminal,
    cents: int,
    kind: Kind,
    place: int,
    channel: Channel,
    latitude: float | None,
    longitude: float | None,
    device: str | None = None,
    ip: str | None = None,
    address: str | None = None,
) -> Transaction:
    """Return a transaction of so many euro cents: in euros, or in what a shop abroad asks."""
    billed, money = cents / 100, terminal.money
    # By position: one is made for every payment.
    return Transaction(
        transaction_id,
        card.card_id,
        terminal.terminal_id,
        terminal.mcc,
        terminal.country,
        billed if money is None else max(round(cents / money.rate), 1) / 100,
        "EUR" if money is None else money.currency,
        kind,
        at_ms,
        card.customer_id,
        card.account.account_id,
        terminal.merchant.merchant_id,
        channel,
        latitude,
        longitude,
        device,
        ip,
        address,
        _OFFSETS_MIN[place] + summer_min(at_ms // HOUR_MS),
        card.home_country,
        None if money is None else billed,
        None if money is None else "EUR",
        None if money is None else money.rate,
    )


def billed_cents(event: Transaction) -> int:
    """Return what a transaction comes to, euro cents."""
    billed = event.billing_amount
    return round((event.amount if billed is None else billed) * 100)


@lru_cache(maxsize=16)
def summer_min(hour: int) -> int:
    """Return how far summer time is ahead in the euro area, minutes.

    It begins and ends everywhere at once, at 01:00 UTC of the last Sundays of March and October.

    Args:
        hour: Hours since the epoch.

    >>> from datetime import UTC, datetime
    >>> hours = [int(datetime(2026, *at, tzinfo=UTC).timestamp()) // 3600 for at in ((3, 29, 0), (3, 29, 1))]
    >>> [summer_min(hour) for hour in hours]
    [0, 60]
    """
    at = datetime.fromtimestamp(hour * 3600, UTC)
    begin, end = (
        datetime.combine(last - timedelta(days=last.isoweekday() % 7), time(1), UTC)
        for last in (date(at.year, 3, 31), date(at.year, 10, 31))
    )
    return 60 if begin <= at < end else 0
