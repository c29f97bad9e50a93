"""A card against its own last 30 days: gaps, places, whom it has dealt with."""

from __future__ import annotations

from bisect import bisect_right
from typing import Final, Protocol

import msgspec

from millrace.parts.lookback import Look, link_of
from millrace.places import distance_m
from millrace_apps.fraud.contracts.events import Transaction
from millrace_apps.fraud.contracts.feature_types import CardFeatures
from millrace_apps.fraud.processes.geo import Place, speed_kmh
from millrace_apps.fraud.state.history import DAY_MS, HORIZON_MS, History
from millrace_apps.fraud.state.kinds import kind_of, purchase_of

MINUTE_MS: Final = 60_000
_TEN_MINUTES_MS: Final = 10 * MINUTE_MS
_WEEK_MS: Final = 7 * DAY_MS
_LONG: Final = {"10m": _TEN_MINUTES_MS, "7d": _WEEK_MS, "30d": HORIZON_MS}
#: Places of a purchase's links in a card's history.
TERMINALS, DEVICES, IPS = range(3)
Links = tuple[int, int, int]
NOBODY: Final[Links] = (0, 0, 0)


class Steps(Protocol):
    """Authorisations of a card."""

    def declined(self, after: int, until: int) -> int:
        """Return how many payments were declined in (after, until], ms."""


class Authorised(Protocol):
    """Where they are kept: a state, or anything like it."""

    @property
    def value(self) -> Steps | None:
        """The authorisations; ``None``: there are none."""


class CardLook(Look):
    """What is seen of a card at one time: its purchases with their kinds, and its authorisations.

    Args:
        kept: The card's history.
        at: The time, ms.
        authorised: Its authorisations, read when a rule asks for them; ``None``: there are none.
    """

    __slots__ = ("authorised", "history")

    def __init__(self, kept: History | None, at: int, authorised: Authorised | None = None) -> None:
        super().__init__(kept, at, None if kept is None else kept.tail)
        self.history, self.authorised = kept, authorised

    def numbers_from(self, start: int) -> bytes:
        """Return which of the known kinds the purchases from an index on are, a byte each."""
        history = self.history
        return b"" if history is None or not history.known else history.numbers[start : self.end]

    @property
    def known(self) -> list[int]:
        """The kinds, by their numbers."""
        return [] if self.history is None else self.history.known

    def declined(self, window_ms: int) -> int:
        """Return how many payments were declined in the window, and before this one."""
        steps = None if self.authorised is None else self.authorised.value
        return 0 if steps is None else steps.declined(self.at - window_ms, self.at - 1)


def links_of(tx: Transaction) -> Links:
    """Return the links of a purchase, in the order of the columns."""
    device, ip = tx.device_id, tx.ip
    return (
        link_of(tx.terminal_id),
        0 if device is None else link_of(device),
        0 if ip is None else link_of(ip),
    )


def card_features(
    look: CardLook, tx: Transaction, cents: int, place: Place | None, links: Links
) -> CardFeatures:
    """Return what is known of a card.

    Args:
        look: The card's history before the transaction.
        tx: The transaction.
        cents: Its amount, cents; 0 for a refund or top-up, and where it is not known.
        place: Where the card was last.
        links: Of a purchase whom it has to do with (see :func:`links_of`), else nobody.
    """
    # This runs for every transaction: where a comparison tells the answer nothing is searched or copied.
    terminal, device, ip = links
    this, end, times, time = 1 if terminal else 0, look.end, look.times, look.at
    km = kmh = fastest = None
    if place is not None:
        fastest = place.fastest_kmh
        if tx.latitude is not None:
            km, kmh = travel(tx, place)
    gap = look.usual_gap()
    median = None if gap is None else gap / 1000
    if not end or (last := times[end - 1]) <= time - HORIZON_MS:
        total = cents / 100
        return CardFeatures(
            gap_s=None,
            gap_median_s=median,
            count_10m=this,
            sum_10m=total,
            count_7d=this,
            sum_7d=total,
            count_30d=this,
            sum_30d=total,
            max_30d=None,
            min_1m=None,
            terminals_24h=this,
            terminals_30d=this,
            devices_30d=1 if device else 0,
            ips_24h=1 if ip else 0,
            terminal_before=0,
            device_before=0 if device else None,
            ip_before=0 if ip else None,
            km=km,
            kmh=kmh,
            fastest_kmh=fastest,
            truncated=False,
        )
    totals, amounts = look.totals, look.amounts
    start = 0 if times[0] > time - HORIZON_MS else bisect_right(times, time - HORIZON_MS, 0, end)
    start_7d = start if times[start] > time - _WEEK_MS else bisect_right(times, time - _WEEK_MS, start, end)
    upto = totals[end] + cents
    terminals, devices, ips = (
        look.link(start, TERMINALS),
        look.link(start, DEVICES),
        look.link(start, IPS),
    )
    start_10m, least = end, None
    terminals_24h, ips_24h = this, 1 if ip else 0
    if last > time - DAY_MS:
        start_24h = bisect_right(times, time - DAY_MS, start_7d, end)
        terminals_24h = _different(terminals[start_24h - start :], terminal)
        ips_24h = _different(ips[start_24h - start :], ip)
        if last > time - _TEN_MINUTES_MS:
            start_10m = bisect_right(times, time - _TEN_MINUTES_MS, start_24h, end)
            if last > time - MINUTE_MS:
                start_1m = bisect_right(times, time - MINUTE_MS, start_10m, end)
                smallest = min(filter(None, amounts[start_1m:end]), default=None)
                least = None if smallest is None else smallest / 100
    features = CardFeatures(
        gap_s=(time - last) / 1000,
        gap_median_s=median,
        count_10m=end - start_10m + this,
        sum_10m=(upto - totals[start_10m]) / 100,
        count_7d=end - start_7d + this,
        sum_7d=(upto - totals[start_7d]) / 100,
        count_30d=end - start + this,
        sum_30d=(upto - totals[start]) / 100,
        max_30d=max(amounts[start:end]) / 100,
        min_1m=least,
        terminals_24h=terminals_24h,
        terminals_30d=_different(terminals, terminal),
        devices_30d=_different(devices, device),
        ips_24h=ips_24h,
        terminal_before=terminals.count(terminal) if terminal else 0,
        device_before=devices.count(device) if device else None,
        ip_before=ips.count(ip) if ip else None,
        km=km,
        kmh=kmh,
        fastest_kmh=fastest,
        truncated=look.history is not None and look.history.dropped > 0,
        home_country=_home(look, start),
    )
    return features if look.tail is None else _busy(features, look, this, cents, links)


def _home(look: CardLook, start: int) -> str | None:
    """Return the country of most of a card's purchases from an index on."""
    numbers, known = look.numbers_from(start), look.known
    found: dict[str, int] = {}
    for number in set(numbers):
        country = purchase_of(known[number]).country
        if country is not None:
            found[country] = found.get(country, 0) + numbers.count(number)
    return min(found, key=lambda country: (-found[country], country), default=None)


def _busy(features: CardFeatures, look: Look, this: int, cents: int, links: Links) -> CardFeatures:
    """Return the features of a card that has more purchases than are kept one by one."""
    numbers: dict[str, float] = {}
    for name, window in _LONG.items():
        count, total = look.numbers(window)
        numbers[f"count_{name}"] = count + this
        numbers[f"sum_{name}"] = (total + cents) / 100
    return msgspec.structs.replace(
        features,
        **numbers,
        max_30d=look.largest(HORIZON_MS) / 100,
        terminals_24h=look.different(DAY_MS, TERMINALS, links[TERMINALS]),
        terminals_30d=look.different(HORIZON_MS, TERMINALS, links[TERMINALS]),
        devices_30d=look.different(HORIZON_MS, DEVICES, links[DEVICES]),
        ips_24h=look.different(DAY_MS, IPS, links[IPS]),
        truncated=True,
    )


def travel(tx: Transaction, place: Place | None) -> tuple[float | None, float | None]:
    """Return how far and how fast a card has come, km and km/h; None without two positions."""
    if place is None or tx.latitude is None or tx.longitude is None:
        return None, None
    km = distance_m(place.latitude, place.longitude, tx.latitude, tx.longitude) / 1_000
    return km, speed_kmh(km, tx.event_time_ms - place.time)


def moved(tx: Transaction, place: Place | None, features: CardFeatures, max_kmh: float) -> Place | None:
    """Return where the card is after a purchase.

    A journey that nobody makes (above ``max_kmh``) is not counted as the card's fastest, and one that comes
    out of order does not move it back.
    """
    if tx.latitude is None or tx.longitude is None:
        return place
    fastest = place.fastest_kmh if place else 0.0
    if features.kmh is not None and fastest < features.kmh <= max_kmh:
        fastest = features.kmh
    if place is not None and tx.event_time_ms < place.time:
        return msgspec.structs.replace(place, fastest_kmh=fastest)
    return Place(tx.event_time_ms, tx.latitude, tx.longitude, fastest)


def _different(links: list[int], this: int) -> int:
    found = {*links, this}
    return len(found) - (0 in found)


def counted(history: History | None, tx: Transaction, cents: int, links: Links) -> History:
    """Return the card's history with a purchase more."""
    if history is None:
        history = History(since=tx.event_time_ms)
    history.add_of_kind(tx.event_time_ms, cents, links, kind_of(tx))
    return history
