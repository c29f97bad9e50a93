"""What the fraud app must decide, computed from the whole list of events at once.

Written without the app's code and in another way: for every transaction its card's whole past is
looked through, with exact decimal and rational arithmetic, and what had become known of each purchase is
looked up in all that was said. Quadratic, and meant to be.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from typing import Any, NamedTuple

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
LIFE = 90 * DAY
#: What becomes known later than this after a payment changes nothing.
REMEMBERED = 30 * DAY
HALF_LIFE = 30

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
    "excluded_1m",
    "excluded_1h",
    "excluded_24h",
)


class Handled(NamedTuple):
    """A transaction as it counts for those after it."""

    identity: str
    time: int
    cents: int
    purchase: bool


class Said(NamedTuple):
    """What was said of a transaction: a label, or an authorisation."""

    known: int
    identity: str
    status: str
    cents: int | None


def expected_decisions(events: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the expected decision of every distinct transaction, by its id.

    Args:
        events: The on-time transactions (as plain mappings) in the order in which they are
            handled: batch after batch, a card's rows of one batch sorted by time. Duplicates may be
            among them, and labels and authorisations where they are handled. For a stream that is in order
            per card that is simply its order.

    Returns:
        Transaction id → fields of the transaction and :data:`FEATURES`. An id that comes again after
        24 hours counts as new and replaces the first.
    """
    cards: dict[str, list[Handled]] = defaultdict(list)
    said: dict[tuple[str, str, int], set[Said]] = defaultdict(set)
    decided: dict[tuple[str, str], int] = {}
    rows: dict[str, dict[str, Any]] = {}
    for event in events:
        card, identity = event["card_id"], event["transaction_id"]
        if "transaction_time_ms" in event:
            at = event["transaction_time_ms"]
            if event["event_time_ms"] - at <= REMEMBERED:
                said[card, identity, at].add(_said(event))
            continue
        time = event["event_time_ms"]
        if decided.get((card, identity), time - DAY) > time - DAY:
            continue
        decided[card, identity] = time
        this = Handled(identity, time, _cents(event["amount"]), event["kind"] == "purchase")
        of_card = {key[1:]: words for key, words in said.items() if key[0] == card}
        # All that the tests pay is paid in the app's currency; of other ones test_currencies has an oracle.
        billed = {"billing_amount": event["amount"], "billing_currency": event["currency"]}
        rows[identity] = {**event, **billed, "billing_rate": 1.0, **_features(cards[card], this, of_card)}
        cards[card].append(this)
    return rows


def _cents(amount: float) -> int:
    return int(Decimal(str(amount)) * 100)


def _said(event: Mapping[str, Any]) -> Said:
    if "label_id" in event:
        return Said(event["event_time_ms"], event["label_id"], str(event["is_fraud"]), None)
    settled = event["settled_amount"]
    cents = None if settled is None else _cents(settled)
    return Said(event["event_time_ms"], event["authorisation_id"], event["status"], cents)


def _outcome(purchase: Handled, words: Iterable[Said], now: int) -> tuple[int, bool]:
    """Return what was paid for a purchase, as it was known at a time, and whether it tells what is usual."""
    known = sorted((w for w in words if w.known <= now), key=lambda w: (w.known, w.identity))
    verdict, due, back = False, purchase.cents, 0
    for word in known:
        if word.status in ("True", "False"):
            verdict = word.status == "True"
        elif word.status == "declined":
            due = 0
        elif word.status == "captured":
            due = purchase.cents if word.cents is None else word.cents
    if any(word.status == "reversed" and word.cents is None for word in known):
        due = 0
    back = sum(word.cents or 0 for word in known if word.status == "reversed")
    paid = max(0, due - back)
    return paid, paid > 0 and not verdict


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


def _features(
    handled: list[Handled], this: Handled, said: Mapping[tuple[str, int], Iterable[Said]]
) -> dict[str, Any]:
    """Return the features of ``this`` after ``handled``, in the order in which they were handled."""
    windowed = [h for h in handled if h.time <= this.time and h.purchase]
    life = handled
    for i, (before, after) in enumerate(pairwise([*handled, this])):
        if after.time >= before.time + LIFE:
            life = handled[i + 1 :]
    past = [h for h in life if h.time <= this.time]
    fate = {h: _outcome(h, said.get((h.identity, h.time), ()), this.time) for h in past if h.purchase}
    counting = [h for h in fate if fate[h][1]]
    first_day = (this.time // DAY // HALF_LIFE - 3) * HALF_LIFE
    usual = [h for h in counting if h.time // DAY >= first_day]
    weights = [_weight(h.time // DAY, first_day) for h in usual]
    amounts = [h.cents for h in usual]
    mean, std, median = _moments(amounts, weights)
    since = min((h.time for h in counting), default=this.time)
    lasted = _weighted_time(max(since, first_day * DAY), this.time, first_day)
    row: dict[str, Any] = {
        "purchases_before": len(amounts),
        "mean_before": None if mean is None else float(mean / 100),
        "std_before": None if std is None else std / 100,
        "median_before": None if median is None else float(median / 100),
        "per_hour_before": float(sum(weights) * HOUR / lasted) if amounts and this.time > since else None,
        "zscore": float((this.cents - mean) / Fraction(std)) if this.purchase and mean and std else None,
    }
    for name, width in (("1m", MINUTE), ("1h", HOUR), ("24h", DAY)):
        inside = _within(windowed, this, width)
        row[f"count_{name}"] = len(inside)
        row[f"sum_{name}"] = sum(inside) / 100
        row[f"excluded_{name}"] = sum(
            1 for h, (_, counts) in fate.items() if not counts and this.time - width < h.time
        )
    row["small_count_1m"] = row["large_count_5m"] = 0
    if this.purchase:
        if _is_small(this.cents, amounts, median):
            nearby = _within(windowed, this, MINUTE)
            row["small_count_1m"] = sum(_is_small(c, amounts, median) for c in nearby)
        elif median is not None and this.cents >= median * 5 / 2:
            nearby = _within(windowed, this, 5 * MINUTE)
            row["large_count_5m"] = sum(c >= median * 5 / 2 for c in nearby)
    credits = sum(h.cents for h in [*past, this] if not h.purchase)
    spent = sum(paid for paid, _ in fate.values()) + (this.cents if this.purchase else 0)
    row["balance"] = (credits - spent) / 100
    return row


def _weight(day: int, first_day: int) -> int:
    """Return the weight of a purchase of a day: twice that of one a half-life earlier."""
    halves, rest = divmod(day - first_day, HALF_LIFE)
    return int(round(64 * math.exp2(rest / HALF_LIFE)) * 2**halves)


def _weighted_time(since: int, until: int, first_day: int) -> Fraction:
    """Return how long it is from one time to another, ms, each day with its weight."""
    found = Fraction(0)
    for day in range(since // DAY, until // DAY + 1):
        inside = min(until, (day + 1) * DAY) - max(since, day * DAY)
        found += _weight(day, first_day) * inside
    return found


def _moments(amounts: list[int], weights: list[int]) -> tuple[Fraction | None, float | None, Fraction | None]:
    """Return weighted mean, deviation, and lower median of those above 2.00 (its bucket's middle)."""
    if not amounts:
        return None, None, None
    larger = sorted((c, w) for c, w in zip(amounts, weights, strict=True) if c > 200)
    median: Fraction | None = None
    values: list[int | Fraction] = [*amounts]
    if larger:
        upto, reached = 0, {}
        for c, w in larger:
            upto += w
            reached[c] = upto  # of equal amounts the last one counts them all
        cents = next(c for c, weight in reached.items() if 2 * weight >= upto)
        first, width = _bucket(cents)
        median = _middle(first, width)
        if any(c >= 4 * (first + width) for c in amounts):
            # The bucket that is four times as high: what is above counts as if it were in it.
            most = 4 * first, 4 * width
            values = [c if c <= 200 else _middle(*min(_bucket(c), most)) for c in amounts]
    n, total = len(values), sum(weights)
    mean = Fraction(sum(v * w for v, w in zip(values, weights, strict=True))) / total
    if n < 2:
        return mean, None, median
    # Exact, so the mean of the squares less the square of the mean is what it should be.
    squares = Fraction(sum(w * v * v for v, w in zip(values, weights, strict=True))) / total
    variance = squares - mean**2
    return mean, math.sqrt(variance * n / (n - 1)), median


def _within(windowed: list[Handled], this: Handled, width: int) -> list[int]:
    """Return the purchases in (t - width, t], with this one if it is a purchase."""
    inside = [h.cents for h in windowed if this.time - width < h.time <= this.time]
    return [*inside, this.cents] if this.purchase else inside


def _is_small(cents: int, before: list[int], median: Fraction | None) -> bool:
    """Return whether an amount is at most 2.00 and at most 30 % of the median of the card's larger ones."""
    if sum(c > 200 for c in before) >= 3 and median is not None and cents > Fraction(3, 10) * median:
        return False
    return cents <= 200


def _bucket(cents: int) -> tuple[int, int]:
    """Return the least amount of an amount's bucket, and its width: eight equal ones to every doubling."""
    width = 1
    while cents // width >= 16:
        width *= 2
    return cents // width * width, width


def _middle(first: int, width: int) -> Fraction:
    return Fraction(2 * first + width - 1, 2)
