"""What is known of cards and other entities at a transaction, looked up in the whole list each time.

Written without the app's code: every window is a scan over all transactions that came before.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from typing import Any

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
MONTH = 30 * DAY

FIELD = {
    "card": "card_id",
    "account": "account_id",
    "terminal": "terminal_id",
    "device": "device_id",
    "ip": "ip",
    "customer": "customer_id",
    "merchant": "merchant_id",
    "mcc": "mcc",
    "country": "country",
}


def within(seen: Sequence[Any], tx: Any, entity: str, window: int) -> list[Any]:
    """Return an entity's purchases in (t - window, t] that came before, and the transaction itself."""
    name = FIELD[entity]
    return [
        other
        for other in (*seen, tx)
        if other.kind == "purchase"
        and getattr(other, name) is not None
        and getattr(other, name) == getattr(tx, name)
        and tx.event_time_ms - window < other.event_time_ms <= tx.event_time_ms
    ]


def card_features(seen: Sequence[Any], tx: Any) -> dict[str, Any]:
    """Return :class:`millrace_apps.fraud.contracts.feature_types.CardFeatures`, without the journey."""
    before = [o for o in within(seen, tx, "card", MONTH) if o is not tx]
    times = sorted(o.event_time_ms for o in before)
    all_times = sorted(o.event_time_ms for o in seen if o.kind == "purchase" and o.card_id == tx.card_id
                       and o.event_time_ms <= tx.event_time_ms)  # fmt: skip
    gaps = [b - a for a, b in pairwise(all_times)][-64:]
    row: dict[str, Any] = {
        "truncated": False,
        "gap_s": (tx.event_time_ms - times[-1]) / 1000 if times else None,
        "gap_median_s": statistics.median_low(gaps) / 1000 if gaps else None,
        "max_30d": max((o.amount for o in before), default=None),
        "min_1m": min((o.amount for o in within(seen, tx, "card", MINUTE) if o is not tx), default=None),
    }
    for name, width in (("10m", 10 * MINUTE), ("7d", 7 * DAY), ("30d", MONTH)):
        inside = within(seen, tx, "card", width)
        row[f"count_{name}"] = len(inside)
        row[f"sum_{name}"] = round(sum(o.amount for o in inside), 2)
    month, day = within(seen, tx, "card", MONTH), within(seen, tx, "card", DAY)
    row["terminals_24h"] = len({o.terminal_id for o in day})
    row["terminals_30d"] = len({o.terminal_id for o in month})
    row["devices_30d"] = len({o.device_id for o in month} - {None})
    row["ips_24h"] = len({o.ip for o in day} - {None})
    row["terminal_before"] = (
        sum(o.terminal_id == tx.terminal_id for o in before) if tx.kind == "purchase" else 0
    )
    for name, field in (("device_before", "device_id"), ("ip_before", "ip")):
        mine = getattr(tx, field) if tx.kind == "purchase" else None
        row[name] = None if mine is None else sum(getattr(o, field) == mine for o in before)
    return row


def entity_features(seen: Sequence[Any], tx: Any, entity: str) -> dict[str, Any] | None:
    """Return :class:`millrace_apps.fraud.contracts.feature_types.EntityFeatures` less age and balance."""
    if getattr(tx, FIELD[entity]) is None:
        return None
    hour, day, month = (within(seen, tx, entity, w) for w in (HOUR, DAY, MONTH))
    return {
        "count_1h": len(hour),
        "sum_1h": round(sum(o.amount for o in hour), 2),
        "count_24h": len(day),
        "sum_24h": round(sum(o.amount for o in day), 2),
        "max_24h": max((o.amount for o in day), default=0.0),
        "count_30d": len(month),
        "mean_30d": sum(round(o.amount * 100) for o in month) / len(month) / 100 if month else None,
        "cards_1h": len({o.card_id for o in hour}),
        "cards_24h": len({o.card_id for o in day}),
        "cards_30d": len({o.card_id for o in month}),
        "pair_count_30d": sum(o.card_id == tx.card_id for o in month),
        "truncated": False,
    }


def home_country(seen: Sequence[Any], tx: Any) -> str | None:
    """Return where the card is at home: said, or where most of its purchases of 30 days before were."""
    if tx.home_country is not None:
        return str(tx.home_country)
    countries = [o.country for o in within(seen, tx, "card", MONTH) if o is not tx]
    return max(sorted(set(countries)), key=countries.count, default=None)


def local_time(tx: Any) -> tuple[int, int]:
    """Return hour (0 to 23) and weekday (Monday is 1) where a transaction happened."""
    minutes = 0 if tx.utc_offset_min is None else tx.utc_offset_min
    there = timezone(timedelta(minutes=minutes))
    at = datetime.fromtimestamp(tx.event_time_ms / 1000, there)
    return at.hour, at.isoweekday()


def declined(responses: Sequence[Any], tx: Any, width: int) -> int:
    """Return how many payments of the card were declined in (t - width, t), by the responses that came."""
    return len(
        {
            r.transaction_id
            for r in responses
            if r.status == "declined"
            and r.card_id == tx.card_id
            and tx.event_time_ms - width < r.event_time_ms < tx.event_time_ms
        }
    )


def window(
    seen: Sequence[Any], tx: Any, name: str, *arguments: Any, chosen: Callable[[Any], bool] | None = None
) -> float | None:
    """Return what a rule's window function gives, over the purchases that are chosen."""
    *_, entity, width = arguments
    if entity.startswith("card_"):
        field = FIELD[entity.removeprefix("card_")]
        if getattr(tx, field) is None:
            return None
        inside = [o for o in within(seen, tx, "card", width) if getattr(o, field) == getattr(tx, field)]
    else:
        inside = within(seen, tx, entity, width)
    if chosen is not None:
        inside = [o for o in inside if chosen(o)]
    amounts: list[float] = [o.amount for o in inside]
    if name == "distinct":
        return len({getattr(o, FIELD[arguments[0]]) for o in inside} - {None})
    if name == "count":
        return len(inside)
    if name == "sum":
        return round(sum(amounts), 2)
    if name == "mean":
        return sum(round(a * 100) for a in amounts) / len(amounts) / 100 if amounts else None
    if name == "largest":
        return max(amounts, default=0.0)
    return min(amounts, default=None)
