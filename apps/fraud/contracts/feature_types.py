"""Feature types: a transaction's card, and the other entities that it has to do with."""

from __future__ import annotations

import msgspec


class CardFeatures(msgspec.Struct, frozen=True, gc=False):
    """What is known of a card beside :class:`millrace_apps.fraud.processes.features.Features`.

    A window is (t - w, t]. A purchase counts in all of them; a refund or top-up does not.

    Attributes:
        gap_s: Seconds since the purchase before, at most 30 days ago.
        gap_median_s: Median of the last 64 gaps before (the lower of two).
        count_10m: Purchases in 10 minutes; so for 7 d and 30 d.
        sum_10m: Their sum; so for 7 d and 30 d.
        max_30d: The largest in 30 days, this one left out.
        min_1m: The smallest in the minute before this one.
        terminals_24h: Different terminals in 24 hours; so for 30 d.
        devices_30d: Different devices in 30 days.
        ips_24h: Different IP addresses in 24 hours.
        terminal_before: Purchases at this terminal in the 30 days before.
        device_before: Purchases with this device in the 30 days before; None where there is no device.
        ip_before: Purchases from this address in the 30 days before; None where there is none.
        km: Distance from where the card was last.
        kmh: The least speed that this takes (see :mod:`millrace_apps.fraud.processes.geo`).
        fastest_kmh: The fastest that the card was before.
        truncated: Whether the card is so busy that ``…_before`` see only the newest purchases of its 30 days,
            and what is older is counted in panes.
        home_country: The country of most of its purchases in the 30 days before; of equally many the first by
            its code.
    """

    gap_s: float | None
    gap_median_s: float | None
    count_10m: int
    sum_10m: float
    count_7d: int
    sum_7d: float
    count_30d: int
    sum_30d: float
    max_30d: float | None
    min_1m: float | None
    terminals_24h: int
    terminals_30d: int
    devices_30d: int
    ips_24h: int
    terminal_before: int
    device_before: int | None
    ip_before: int | None
    km: float | None
    kmh: float | None
    fastest_kmh: float | None
    truncated: bool
    home_country: str | None = None


class EntityFeatures(msgspec.Struct, frozen=True, gc=False):
    """What is known of an entity at a purchase, which counts in all of it.

    Attributes:
        count_1h: Purchases in (t - 1 h, t]; so for 24 h and 30 d.
        sum_1h: Their sum; so for 24 h.
        mean_30d: Their mean.
        max_24h: The largest.
        cards_1h: Different cards; so for 24 h and 30 d.
        pair_count_30d: Purchases of this card with this entity.
        age_s: Seconds since the entity was seen first (while it was seen at least every 31 days).
        balance: What has come in, less what has gone out.
        truncated: Whether it is so busy that ``cards_…`` are estimates, by a sample, or ``pair_count_30d``
            sees its newest purchases only.
    """

    count_1h: int
    sum_1h: float
    count_24h: int
    sum_24h: float
    max_24h: float
    count_30d: int
    mean_30d: float | None
    cards_1h: int
    cards_24h: int
    cards_30d: int
    pair_count_30d: int
    age_s: float
    balance: float
    truncated: bool
