"""A card against its own last 30 days: gaps, places, whom it has dealt with."""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

import msgspec

from apps.fraud.events import Transaction
from apps.fraud.feature_types import CardFeatures
from apps.fraud.geo import Place, distance_km, speed_kmh
from apps.fraud.history import DAY_MS, HORIZON_MS, History, Look, link_of

MINUTE_MS: Final = 60_000
#: Places of a purchase's links in a card's history, and how many there are.
TERMINALS, DEVICES, IPS = range(3)
LINKS: Final = 3
#: The gaps that a card's usual gap is the median of.
_GAPS: Final = 64


def links_of(tx: Transaction) -> tuple[int, int, int]:
    """Return the links of a purchase, in the order of the columns."""
    return link_of(tx.terminal_id), link_of(tx.device_id), link_of(tx.ip)


def card_features(look: Look, tx: Transaction, cents: int, place: Place | None) -> CardFeatures:
    """Return what is known of a card.

    Args:
        look: The card's history before the transaction.
        tx: The transaction.
        cents: Its amount, cents; 0 for a refund or top-up.
        place: Where the card was last.
    """
    # This runs for every transaction, so it reads the columns once, and nothing where nothing is.
    this, end, times, time = 1 if cents else 0, look.end, look.times, look.time
    km, kmh = travel(tx, place) if tx.latitude is not None else (None, None)
    fastest = None if place is None else place.fastest_kmh
    terminal, device, ip = links_of(tx) if this else (0, 0, 0)
    start = look.start(HORIZON_MS)
    total = cents / 100
    if start == end:
        old, seen = look.gaps(_GAPS) if end else [], 1 if this else 0
        median = sorted(old)[(len(old) - 1) // 2] / 1000 if old else None
        known = (0, 0 if device else None, 0 if ip else None)
        return CardFeatures(
            None, median, this, total, this, total, this, total, None, None, seen, seen,
            1 if device else 0, 1 if ip else 0, *known, km, kmh, fastest, False,
        )  # fmt: skip
    start_7d = bisect_right(times, time - 7 * DAY_MS, start, end)
    start_24h = bisect_right(times, time - DAY_MS, start_7d, end)
    start_10m = bisect_right(times, time - 10 * MINUTE_MS, start_24h, end)
    upto, totals, gaps = look.totals[end] + cents, look.totals, look.gaps(_GAPS)
    gaps.sort()
    amounts, links = look.amounts(start), look.links(start, LINKS)
    terminals, devices, ips = links[0::3], links[1::3], links[2::3]
    last_minute = (
        amounts[bisect_right(times, time - MINUTE_MS, start_10m, end) - start :] if start_10m < end else None
    )
    return CardFeatures(
        (time - times[end - 1]) / 1000,
        gaps[(len(gaps) - 1) // 2] / 1000 if gaps else None,
        end - start_10m + this,
        (upto - totals[start_10m]) / 100,
        end - start_7d + this,
        (upto - totals[start_7d]) / 100,
        end - start + this,
        (upto - totals[start]) / 100,
        max(amounts) / 100,
        min(last_minute) / 100 if last_minute else None,
        _different(terminals[start_24h - start :], terminal),
        _different(terminals, terminal),
        _different(devices, device),
        _different(ips[start_24h - start :], ip),
        terminals.count(terminal) if terminal else 0,
        devices.count(device) if device else None,
        ips.count(ip) if ip else None,
        km,
        kmh,
        fastest,
        look.history is not None and look.history.dropped > 0,
    )


def travel(tx: Transaction, place: Place | None) -> tuple[float | None, float | None]:
    """Return how far and how fast a card has come, km and km/h; None without two positions."""
    if place is None or tx.latitude is None or tx.longitude is None:
        return None, None
    km = distance_km(place, tx.latitude, tx.longitude)
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
    found = set(links)
    found.add(this)
    return len(found) - (0 in found)


def counted(history: History | None, tx: Transaction, cents: int) -> History:
    """Return the card's history with a purchase more."""
    if history is None:
        history = History(since=tx.event_time_ms)
    elif tx.event_time_ms < history.since:
        history.since = tx.event_time_ms
    history.add(tx.event_time_ms, cents, links_of(tx))
    return history
