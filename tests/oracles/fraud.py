"""What the fraud app must decide, computed from the whole list of transactions at once.

Written without the app's code and in another way: for every transaction its card's whole past is
looked through, with exact decimal and rational arithmetic. Quadratic, and meant to be.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from typing import Any, NamedTuple

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
LIFE = 90 * DAY

#: The fields of a decision that :func:`expected_decisions` gives besides those of the transaction.
FEATURES = (
    "purchases_before",
    "mean_before",
    "std_before",
    "median_before",
    "per_hour_before",
    "zscore",
    "count_1m",
    "sum_1m",
    "count_1h",
    "sum_1h",
    "count_24h",
    "sum_24h",
    "small_count_1m",
    "large_count_5m",
    "balance",
)


class Handled(NamedTuple):
    """A transaction as it counts for those after it."""

    time: int
    cents: int
    purchase: bool


def expected_decisions(transactions: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the expected decision of every distinct transaction, by its id.

    Args:
        transactions: The on-time transactions (as plain mappings) in the order in which they are
            handled: batch after batch, a card's rows of one batch sorted by time. Duplicates may be
            among them. For a stream that is in order per card that is simply its order.

    Returns:
        Transaction id → fields of the transaction and :data:`FEATURES`. An id that comes again after
        24 hours counts as new and replaces the first.
    """
    cards: dict[str, list[Handled]] = defaultdict(list)
    decided: dict[tuple[str, str], int] = {}
    rows: dict[str, dict[str, Any]] = {}
    for tx in transactions:
        card, identity, time = tx["card_id"], tx["transaction_id"], tx["event_time_ms"]
        if decided.get((card, identity), time - DAY) > time - DAY:
            continue
        decided[card, identity] = time
        this = Handled(time, int(Decimal(str(tx["amount"])) * 100), tx["kind"] == "purchase")
        # All that the tests pay is paid in the app's currency; of other ones test_currencies has an oracle.
        billed = {"billing_amount": tx["amount"], "billing_currency": tx["currency"], "billing_rate": 1.0}
        rows[identity] = {**tx, **billed, **_features(cards[card], this)}
        cards[card].append(this)
    return rows


def depends_on_cuts(transactions: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return the transactions whose decision may depend on where batches are cut.

    Args:
        transactions: The on-time transactions in order of arrival.

    A transaction does if one of its card that is not later in event time arrives after it: in the same
    batch it sees it, in an earlier batch it does not. Of two at the same instant both do.
    """
    by_card: dict[str, list[tuple[int, str]]] = defaultdict(list)
    seen: set[tuple[str, str]] = set()
    for tx in transactions:
        if (tx["card_id"], tx["transaction_id"]) not in seen:
            seen.add((tx["card_id"], tx["transaction_id"]))
            by_card[tx["card_id"]].append((tx["event_time_ms"], tx["transaction_id"]))
    found: set[str] = set()
    for arrivals in by_card.values():
        for i, (time, identity) in enumerate(arrivals):
            for later_time, later_identity in arrivals[i + 1 :]:
                if later_time <= time:
                    found.add(identity)
                if later_time == time:
                    found.add(later_identity)
    return found


def mismatches(
    expected: Mapping[str, Mapping[str, Any]], actual: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """Return what differs between the expected and the actual rows, a line each; floats to 1e-9."""
    lines = [f"{i}: missing" for i in expected.keys() - actual.keys()]
    lines += [f"{i}: not expected" for i in actual.keys() - expected.keys()]
    for identity in expected.keys() & actual.keys():
        for field, value in expected[identity].items():
            found = actual[identity][field]
            if not _same(value, found):
                lines.append(f"{identity}: {field} is {found!r}, expected {value!r}")
    return sorted(lines)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9)
    return bool(a == b)


def _features(handled: list[Handled], this: Handled) -> dict[str, Any]:
    """Return the features of ``this`` after ``handled``, in the order in which they were handled."""
    windowed = [h for h in handled if h.time <= this.time and h.purchase]
    life = handled
    for i, (before, after) in enumerate(pairwise([*handled, this])):
        if after.time >= before.time + LIFE:
            life = handled[i + 1 :]
    past = [h for h in life if h.time <= this.time]
    bought = [h for h in past if h.purchase]
    amounts = [h.cents for h in bought]
    mean = Fraction(sum(amounts), len(amounts)) if amounts else None
    std = statistics.stdev(amounts) if len(amounts) > 1 else None
    larger = [c for c in amounts if c > 200]
    median = _bucket_middle(statistics.median_low(larger)) if larger else None
    alive = this.time - min((h.time for h in bought), default=this.time)
    row: dict[str, Any] = {
        "purchases_before": len(amounts),
        "mean_before": None if mean is None else float(mean / 100),
        "std_before": None if std is None else std / 100,
        "median_before": None if median is None else float(median / 100),
        "per_hour_before": len(amounts) / (alive / HOUR) if alive > 0 else None,
        "zscore": float((this.cents - mean) / Fraction(std)) if this.purchase and mean and std else None,
    }
    for name, width in (("1m", MINUTE), ("1h", HOUR), ("24h", DAY)):
        inside = _within(windowed, this, width)
        row[f"count_{name}"] = len(inside)
        row[f"sum_{name}"] = sum(inside) / 100
    row["small_count_1m"] = row["large_count_5m"] = 0
    if this.purchase:
        if _is_small(this.cents, amounts):
            row["small_count_1m"] = sum(_is_small(c, amounts) for c in _within(windowed, this, MINUTE))
        elif median is not None and this.cents >= median * 5 / 2:
            nearby = _within(windowed, this, 5 * MINUTE)
            row["large_count_5m"] = sum(c >= median * 5 / 2 for c in nearby)
    row["balance"] = sum(-h.cents if h.purchase else h.cents for h in [*past, this]) / 100
    return row


def _within(windowed: list[Handled], this: Handled, width: int) -> list[int]:
    """Return the purchases in (t - width, t], with this one if it is a purchase."""
    inside = [h.cents for h in windowed if this.time - width < h.time <= this.time]
    return [*inside, this.cents] if this.purchase else inside


def _is_small(cents: int, before: list[int]) -> bool:
    """Return whether an amount is at most 2.00 and at most 30 % of the mean of the card's larger ones."""
    larger = [c for c in before if c > 200]
    if len(larger) >= 3 and Fraction(cents) > Fraction(3, 10) * Fraction(sum(larger), len(larger)):
        return False
    return cents <= 200


def _bucket_middle(cents: int) -> Fraction:
    """Return the middle of an amount's bucket: eight equal buckets to every doubling, whole cents."""
    width = 1
    while cents // width >= 16:
        width *= 2
    first = cents // width * width
    return Fraction(first + (first + width - 1), 2)
