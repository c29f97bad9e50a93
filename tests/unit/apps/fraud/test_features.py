from __future__ import annotations

import statistics
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millrace_apps.fraud.contracts.events import Transaction
from millrace_apps.fraud.state.amounts import SMALL_CENTS, bucket_middle, bucket_of
from millrace_apps.fraud.state.card import Recent
from millrace_apps.fraud.state.profile import Profile, begun
from tests.oracles.fraud import depends_on_cuts, expected_decisions, mismatches
from tests.unit.apps.fraud.cases import (
    DAY,
    HOUR,
    MINUTE,
    SECOND,
    START_MS,
    decide,
    driver,
    plain,
    purchases,
    rows,
    send,
    send_each,
    transaction,
)

WIDTHS = [("1m", MINUTE), ("1h", HOUR), ("24h", DAY)]
BOUND_MS = 5 * SECOND

GAPS = st.sampled_from(
    [0, 1, 7, 999, 59_999, MINUTE, MINUTE + 1, HOUR - 1, HOUR, DAY - 1, DAY, DAY + 1, 90 * DAY - 1, 90 * DAY]
)
AMOUNTS = st.one_of(st.integers(1, 200), st.integers(500, 5_000), st.integers(1, 100_000_000_000)).map(
    lambda cents: cents / 100
)


@st.composite
def arrivals(draw: st.DrawFn, *, disorder_ms: int = 0) -> list[Transaction]:
    """Transactions of two cards in order of arrival, none late, some repeated."""
    found: list[tuple[int, int, Transaction]] = []
    at = 0
    for i in range(draw(st.integers(1, 30))):
        # Where events may swap, no two of a card share an instant; that has a test of its own.
        at += draw(GAPS) + (1 if disorder_ms else 0)
        card = draw(st.sampled_from(["card-1", "card-2"]))
        kind = draw(st.sampled_from(["purchase", "purchase", "purchase", "refund", "top_up"]))
        tx = transaction(at, draw(AMOUNTS), id=f"t{i:03d}", card=card, kind=kind)
        found.append((at + draw(st.integers(0, disorder_ms)), i, tx))
        if draw(st.integers(0, 5)) == 0:
            found.append((at + disorder_ms, i, tx))
    return [tx for _, _, tx in sorted(found, key=lambda entry: entry[:2])]


def cut(transactions: list[Transaction], cuts: set[int]) -> list[list[Transaction]]:
    batches: list[list[Transaction]] = [[]]
    for i, tx in enumerate(transactions):
        if i in cuts and batches[-1]:
            batches.append([])
        batches[-1].append(tx)
    return batches


def handled(batches: list[list[Transaction]]) -> list[Transaction]:
    """The order in which the core hands batches to a process: by time, then by the event's bytes."""
    return [
        tx
        for batch in batches
        for tx in sorted(batch, key=lambda tx: (tx.event_time_ms, msgspec.json.encode(tx)))
    ]


def run(batches: list[list[Transaction]], restarts: set[int]) -> Any:
    target = driver(out_of_orderness_ms=BOUND_MS)
    for i, batch in enumerate(batches):
        send(target, *batch)
        if i in restarts:
            target.restart()
    assert target.values("late_transactions") == []
    return target


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
@given(arrivals(), st.sets(st.integers(0, 40)), st.sets(st.integers(0, 40)))
def test_features_equal_the_batch_computation_for_any_cut_and_restart(
    transactions: list[Transaction], cuts: set[int], restarts: set[int]
) -> None:
    batches = cut(transactions, cuts)
    target = run(batches, restarts)
    assert mismatches(expected_decisions(plain(handled(batches))), rows(target)) == []
    duplicates = len(transactions) - len({tx.transaction_id for tx in transactions})
    assert [d["reason"] for d in target.values("dead_letters")] == ["duplicate"] * duplicates


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
@given(arrivals(disorder_ms=BOUND_MS), st.sets(st.integers(0, 40)), st.sets(st.integers(0, 40)))
def test_features_equal_the_batch_computation_out_of_order(
    transactions: list[Transaction], cuts: set[int], restarts: set[int]
) -> None:
    batches = cut(transactions, cuts)
    target = run(batches, restarts)
    assert mismatches(expected_decisions(plain(handled(batches))), rows(target)) == []


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
@given(arrivals(disorder_ms=BOUND_MS), st.sets(st.integers(0, 40)))
def test_cuts_change_nothing_but_transactions_overtaken_by_earlier_ones(
    transactions: list[Transaction], cuts: set[int]
) -> None:
    one_by_one = rows(run([[tx] for tx in transactions], set()))
    together = rows(run(cut(transactions, cuts), set()))
    assert one_by_one.keys() == together.keys()
    changed = {i for i in one_by_one if one_by_one[i] != together[i]}
    assert changed <= depends_on_cuts(plain(transactions))


def test_a_long_stream_equals_the_batch_computation() -> None:
    random = Random(11)
    stream = purchases(random, 30, 1_500, every_ms=4 * MINUTE)
    target = driver(out_of_orderness_ms=BOUND_MS)
    for i in range(0, len(stream), 40):
        send(target, *stream[i : i + 40])
    assert mismatches(expected_decisions(plain(stream)), rows(target)) == []


@pytest.mark.parametrize(("name", "width"), WIDTHS)
def test_an_event_exactly_one_width_old_is_outside_the_window(name: str, width: int) -> None:
    target = driver()
    send_each(target, [transaction(0, 7), transaction(1, 11)])
    decision = decide(target, transaction(width, 13))
    assert (getattr(decision, f"count_{name}"), getattr(decision, f"sum_{name}")) == (2, 24.0)


@pytest.mark.parametrize(("name", "width"), WIDTHS)
def test_an_event_one_ms_younger_than_the_width_is_inside_the_window(name: str, width: int) -> None:
    target = driver()
    send(target, transaction(0, 7))
    decision = decide(target, transaction(width - 1, 13))
    assert (getattr(decision, f"count_{name}"), getattr(decision, f"sum_{name}")) == (2, 20.0)


def test_an_out_of_order_event_sees_its_own_window_and_not_its_future() -> None:
    """The purchase at 30 s arrives last.

    card-1   10 (0 s) ----- 30 (30 s) ----- 70 (70 s)
    """
    target = driver(out_of_orderness_ms=MINUTE)
    send_each(target, [transaction(0, 10), transaction(0, 500, kind="top_up"), transaction(70 * SECOND, 70)])
    send(target, transaction(71 * SECOND, 9, kind="refund"))
    decision = decide(target, transaction(30 * SECOND, 30))
    assert (decision.count_1m, decision.sum_1m, decision.count_24h, decision.sum_24h) == (2, 40.0, 2, 40.0)
    assert (decision.purchases_before, decision.mean_before, decision.std_before) == (1, 10.0, None)
    assert decision.balance == 460.0
    after = decide(target, transaction(72 * SECOND, 1))
    assert (after.count_1m, after.sum_1m, after.purchases_before) == (3, 101.0, 3)
    assert after.balance == 398.0


def test_an_event_behind_the_bound_keeps_its_window_until_the_watermark_passes() -> None:
    target = driver(out_of_orderness_ms=MINUTE)
    send(target, transaction(0, 10))
    send(target, transaction(DAY + MINUTE - 1, 20, card="card-2"))
    decision = decide(target, transaction(DAY - 1, 30))
    assert (decision.count_24h, decision.sum_24h) == (2, 40.0)


def test_refunds_and_top_ups_move_the_balance_and_count_in_no_window() -> None:
    target = driver()
    send(target, transaction(0, 100.10, kind="top_up"))
    assert decide(target, transaction(1, 30.05)).balance == 70.05
    decision = decide(target, transaction(2, 10.01, kind="refund"))
    assert (decision.balance, decision.count_1m, decision.sum_1m, decision.purchases_before) == (
        80.06,
        1,
        30.05,
        1,
    )
    assert decision.zscore is None


def test_running_moments_equal_those_of_the_statistics_module() -> None:
    random = Random(5)
    amounts = [random.randrange(1, 100_000_000_000) / 100 for _ in range(200)]
    target = driver()
    send_each(target, [transaction(i * MINUTE, a) for i, a in enumerate(amounts)])  # of one day
    decision = decide(target, transaction(200 * MINUTE, 55.5))
    assert decision.purchases_before == 200
    assert decision.mean_before == pytest.approx(statistics.fmean(amounts), rel=1e-12)
    assert decision.std_before == pytest.approx(statistics.stdev(amounts), rel=1e-12)
    assert decision.median_before == pytest.approx(statistics.median_low(amounts), rel=0.0625)
    z = (55.5 - statistics.fmean(amounts)) / statistics.stdev(amounts)
    assert decision.zscore == pytest.approx(z, rel=1e-12)


def test_equal_amounts_have_no_deviation_and_no_zscore() -> None:
    """Floats would leave a remainder of about 1e-8 here."""
    target = driver()
    send_each(target, [transaction(i, 1_234_567.89) for i in range(3)])
    decision = decide(target, transaction(3, 1_234_567.89))
    assert (decision.mean_before, decision.std_before, decision.zscore) == (1_234_567.89, 0.0, None)


def test_the_profile_is_forgotten_90_days_after_the_last_transaction() -> None:
    target = driver()
    send(target, transaction(0, 10))
    assert decide(target, transaction(90 * DAY - 1, 20)).purchases_before == 1
    again = decide(target, transaction(180 * DAY - 1, 30))
    assert (again.purchases_before, again.mean_before, again.balance) == (0, None, -30.0)


@given(st.lists(st.integers(1, 100_000_000_000), min_size=1, max_size=60), st.data())
def test_a_profile_does_not_depend_on_order_and_can_be_taken_back(
    cents: list[int], data: st.DataObject
) -> None:
    def profile(order: list[int]) -> Profile:
        made = begun(30, START_MS)
        for amount in order:
            made.buy(START_MS, amount)
        return made

    shuffled = data.draw(st.permutations(cents))
    whole = profile(cents)
    assert whole == profile(shuffled)
    larger = [c for c in cents if c > SMALL_CENTS]
    median = bucket_middle(bucket_of(statistics.median_low(larger))) if larger else None
    assert whole.median_cents() == median
    split = data.draw(st.integers(0, len(cents)))
    kept = profile(cents[:split])
    past = whole.without([(START_MS, c) for c in cents[split:]], 0, START_MS)
    for field in ("count", "weight", "balance", "big_count", "small_total", "small_squares", "big_weight"):
        assert getattr(past, field) == getattr(kept, field)
    for high, low in (("total_high", "total_low"), ("squares_high", "squares_low")):
        assert (getattr(past, high), getattr(past, low)) == (getattr(kept, high), getattr(kept, low))
    assert past.median_cents() == kept.median_cents()
    assert not split or past.usual() == kept.usual()
    assert whole == profile(cents)


@given(st.integers(1, 10**12))
def test_the_middle_of_a_bucket_is_within_a_sixteenth_of_its_amounts(cents: int) -> None:
    assert abs(bucket_middle(bucket_of(cents)) - cents) <= cents / 16
    assert bucket_of(cents) <= bucket_of(cents + 1) <= bucket_of(cents) + 1


def test_what_is_kept_of_a_card_follows_the_last_24_hours_and_not_its_life() -> None:
    target = driver()
    send_each(target, [transaction(i * HOUR, 5) for i in range(24 * 40)])
    recent = target.state("card-1")["recent"]
    assert isinstance(recent, Recent)
    # The newest 24, and two that the watermark of the last batch had not passed by 24 hours.
    assert len(recent.times) == len(recent.totals) == 26
    assert len(recent.seen) == 26
    assert recent.times[-1] == START_MS + (24 * 40 - 1) * HOUR


def test_an_idle_card_keeps_no_window_24_hours_after_its_last_transaction() -> None:
    target = driver()
    send_each(target, [transaction(0, 5), transaction(HOUR, 5)])
    target.advance_watermark(START_MS + HOUR + DAY - 1)
    assert target.state("card-1")["recent"] is not None
    target.advance_watermark(START_MS + HOUR + DAY)
    assert target.state("card-1")["recent"] is None
    assert target.timers("card-1") == {}
    assert target.state("card-1")["profile"] is not None


def test_nothing_is_left_when_the_watermark_has_passed_everything() -> None:
    random = Random(3)
    target = driver(out_of_orderness_ms=BOUND_MS)
    for card in range(40):
        send(target, *purchases(random, 20, 10, every_ms=HOUR, card=f"card-{card}"))
    send(target, transaction(0, 5, card="late-only"))
    assert target.values("late_transactions")
    newest = max(e.event_time for e in target.emissions)
    target.advance_watermark(newest + 90 * DAY + 90 * DAY // 16 + 2 * DAY)
    assert target.is_empty()
