"""Labels count from when they are known, and not before."""

from __future__ import annotations

import statistics
from random import Random
from typing import Any

import msgspec
import pytest

from millrace.host.memory_chain import MemoryChain
from millrace.runtime.settings import load_settings
from millrace_apps.fraud.handbook.events import OWN, Payment, PaymentFeatures
from millrace_apps.fraud.handbook.process import CustomerHistory, TerminalHistory
from millrace_apps.fraud.settings import FraudSettings
from millrace_apps.fraud.state.known_labels import LabelRules
from millrace_apps.fraud.state.labels import DAY_MS, FRAUD, GENUINE, LONG_AGO_DAYS, PENDING, LabelLog
from tests.unit.apps.fraud.handbook_cases import DAY, START_MS, label, of_table, payment, streamed, table


def run(
    *events: Payment, unlabelled_is_genuine: bool = False, delay: int = 7 * DAY
) -> dict[str, PaymentFeatures]:
    """Features of payments and labels in order of time, by transaction."""
    terminal = TerminalHistory(delay, unlabelled_is_genuine=unlabelled_is_genuine)
    chain = MemoryChain(CustomerHistory(), ("terminal_id", terminal))
    emitted = []
    for event in events:
        emitted += chain.run_batch([(event.customer_id, event.event_time_ms, event)])
    emitted += chain.drain()
    found = [msgspec.json.decode(e.payload, type=PaymentFeatures) for e in emitted if e.output == "main"]
    return {row.transaction_id: row for row in found}


def brute_force(log: list[tuple[int, int, bool]], now: int) -> dict[str, Any]:
    """What a terminal's log says, from (time, label or PENDING, high), by lists and loops."""
    known = [(at, what, high) for at, what, high in log if what != PENDING]
    genuine = [at for at, what, _ in known if what == GENUINE]
    normal = [at for at, what, high in known if what == FRAUD and not high]
    places = [i for i, (_, what, _) in enumerate(log) if what == GENUINE]
    after = places[-1] if places else -1
    run = [at for at, what, high in log[after + 1 :] if what == FRAUD and not high]

    def days(at: int | None) -> float:
        return LONG_AGO_DAYS if at is None else (now - at) / DAY_MS

    return {
        "terminal_fraud_run": len(run),
        "terminal_run_first_days": days(run[0] if run else None),
        "terminal_run_last_days": days(run[-1] if run else None),
        "terminal_run_open_days": days(genuine[-1] if run and genuine else None),
        "terminal_frauds": len(normal),
        "terminal_frauds_high": sum(what == FRAUD and high for _, what, high in known),
        "terminal_last_label": 0 if not known else 1 if known[-1][1] == GENUINE else 3 if known[-1][2] else 2,
        "terminal_last_label_days": days(known[-1][0] if known else None),
        "terminal_genuine_days": days(genuine[-1] if genuine else None),
        "terminal_pending": len(log) - len(known),
        "terminal_known": len(known),
    }


@pytest.mark.parametrize("seed", range(20))
def test_what_is_known_equals_a_brute_force_count(seed: int) -> None:
    rng = Random(seed)
    log, plain, at = LabelLog(), [], 0
    for _ in range(40):
        at += rng.randint(0, DAY)
        what, high = rng.choice([PENDING, GENUINE, FRAUD, FRAUD]), rng.random() < 0.3
        log.add(at, what, high=high)
        plain.append((at, what, high))
    risk = log.risk(at + 5)
    for name, value in brute_force(plain, at + 5).items():
        assert getattr(risk, name.removeprefix("terminal_")) == value, name


@pytest.mark.parametrize("seed", range(2))
def test_no_feature_depends_on_a_label_that_is_not_known_yet(seed: int) -> None:
    """Turn all labels of the last week around: the features of the newest payment stay as they are."""
    frame = table(Random(seed), 100)
    before = streamed([of_table(frame)])[-1]
    turned = frame.copy()
    hidden = turned["at"] > turned["at"].iloc[-1] - 7 * DAY
    turned.loc[hidden, "TX_FRAUD"] = 1 - turned.loc[hidden, "TX_FRAUD"]
    after = streamed([of_table(turned)])[-1]
    assert hidden.sum() > 1
    assert {n: before[n] for n in OWN} == {n: after[n] for n in OWN}
    turned.loc[~hidden, "TX_FRAUD"] = 1 - turned.loc[~hidden, "TX_FRAUD"]
    last = streamed([of_table(turned)])[-1]
    assert {n: before[n] for n in OWN} != {n: last[n] for n in OWN}


def test_a_label_counts_from_the_moment_it_comes() -> None:
    """T ──p0──────p1───L(p0 fraud)───p2──: p1 does not know, p2 does."""
    p0, p1, p2 = (payment(at * DAY, number=at) for at in range(3))
    found = run(p0, p1, label(DAY + 10, p0, fraud=True), p2)
    assert [found[p.transaction_id].terminal_fraud_run for p in (p0, p1, p2)] == [0, 0, 1]
    assert found[p2.transaction_id].terminal_pending == 1


def test_a_label_that_comes_with_the_payment_it_precedes_is_not_lost_in_one_batch() -> None:
    p0, p2 = payment(0, number=0), payment(2 * DAY, number=2)
    chain = MemoryChain(CustomerHistory(), ("terminal_id", TerminalHistory()))
    events = [p0, label(DAY, p0, fraud=True), p2]
    emitted = chain.run_batch([(e.customer_id, e.event_time_ms, e) for e in events]) + chain.drain()
    assert msgspec.json.decode(emitted[-1].payload)["terminal_fraud_run"] == 1


def test_a_correction_takes_a_label_back_from_then_on() -> None:
    p0, p2, p4 = (payment(at * DAY, number=at) for at in (0, 2, 4))
    found = run(p0, label(DAY, p0, fraud=True), p2, label(3 * DAY, p0, fraud=False), p4)
    assert found[p2.transaction_id].terminal_frauds == 1
    assert found[p4.transaction_id].terminal_frauds == 0
    assert found[p4.transaction_id].terminal_last_label == 1


def test_a_label_on_what_is_forgotten_changes_nothing() -> None:
    old = payment(0, number=0)
    recent = [payment(day * DAY, number=day) for day in range(60, 80)]
    found = run(old, *recent, label(80 * DAY, old, fraud=True), payment(81 * DAY, number=81))
    assert found[f"{81:012}"].terminal_frauds == 0


def test_silence_is_taken_for_genuine_only_where_that_is_said() -> None:
    p0, p9 = payment(0, number=0), payment(9 * DAY, number=9)
    assert run(p0, p9)[p9.transaction_id].terminal_pending == 1
    found = run(p0, p9, unlabelled_is_genuine=True)[p9.transaction_id]
    assert (found.terminal_pending, found.terminal_known, found.terminal_last_label) == (0, 1, 1)


def test_the_former_name_of_the_setting_is_taken_and_checkpoints_keep_it() -> None:
    for key in ("silence_is_genuine", "unlabelled_is_genuine"):
        found = load_settings(FraudSettings, app="fraud", overrides=[f"labels.{key}=false"], env={})
        assert found.labels.rules() == LabelRules(unlabelled_is_genuine=False)
    stored = {"label_delay_ms": 7 * DAY, "silence_is_genuine": True}
    assert TerminalHistory(unlabelled_is_genuine=True).describe() == stored


def test_late_word_after_silence_still_counts() -> None:
    p0, p9, p12 = (payment(at * DAY, number=at) for at in (0, 9, 12))
    found = run(p0, p9, label(11 * DAY, p0, fraud=True), p12, unlabelled_is_genuine=True)
    assert found[p12.transaction_id].terminal_frauds == 1


def test_a_fraud_of_a_high_amount_makes_no_run() -> None:
    """A stolen card used at a terminal does not make the terminal suspicious."""
    usual = [payment(hour * 3_600_000, 10.0, number=hour, fraud=False) for hour in range(8)]
    stolen = payment(DAY, 90.0, number=20, fraud=True)
    later = payment(9 * DAY, number=30)
    found = run(*usual, stolen, later)[later.transaction_id]
    assert (found.terminal_frauds, found.terminal_frauds_high, found.terminal_fraud_run) == (0, 1, 0)
    assert found.terminal_last_label == 3


def test_habits_equal_a_brute_force_median_of_the_last_sixty() -> None:
    rng = Random(4)
    amounts: list[float] = []
    payments = [payment(i * 7_200_000, rng.randint(100, 9_000) / 100, number=i) for i in range(90)]
    found = run(*payments)
    for p in payments:
        row = found[p.transaction_id]
        if amounts:
            median = statistics.median(round(a * 100) for a in amounts[-60:])
            assert row.customer_median == median / 100
            assert row.customer_ratio == round(p.amount * 100) / median
        assert row.customer_seen == min(60, len(amounts))
        amounts.append(p.amount)


def test_raised_amounts_are_counted_for_two_weeks() -> None:
    usual = [payment(hour * 3_600_000, 10.0, number=hour) for hour in range(10)]
    raised = payment(DAY, 35.0, number=20)
    inside, outside = payment(15 * DAY - 1, 10.0, number=30), payment(15 * DAY, 10.0, number=31)
    found = run(*usual, raised, inside, outside)
    counts = [
        (row.customer_raised, row.customer_high, row.customer_higher, row.customer_highest, row.customer_most)
        for row in (found[p.transaction_id] for p in (raised, inside, outside))
    ]
    assert counts == [(0, 0, 0, 0, 0.0), (1, 1, 1, 0, 3.5), (0, 0, 0, 0, 0.0)]


def test_start_of_times_in_the_cases_is_a_sunday() -> None:
    assert START_MS // DAY % 7 == 3
