from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest

from millrace.state.evolution import state_differences
from millrace.state.schema import describe_type
from millrace.testing import TestDriver
from millrace_apps.fraud.contracts.control_events import ResetThreshold, SetThreshold
from millrace_apps.fraud.contracts.events import Alert, Control
from millrace_apps.fraud.processes.scoring import THRESHOLD_NAMES, Thresholds
from millrace_apps.fraud.state.card import Recent
from tests.unit.apps.fraud.cases import (
    DAY,
    HOUR,
    MINUTE,
    SECOND,
    START_MS,
    decide,
    driver,
    send,
    send_each,
    transaction,
)


def habits(amount: float = 20.0, *, number: int = 12, every_ms: int = HOUR) -> list[Any]:
    """A top-up, then purchases of 90 %, 100 % and 110 % of an amount in turn."""
    bought = [
        transaction(i * every_ms, round(amount * (0.9 + 0.1 * (i % 3)), 2)) for i in range(1, number + 1)
    ]
    return [transaction(0, 10_000, kind="top_up"), *bought]


def alerts(target: TestDriver) -> list[Alert]:
    return target.values("alerts")


def test_every_transaction_gets_one_decision_with_its_own_fields() -> None:
    target = driver()
    tx = transaction(0, 12.34, kind="top_up")
    decision = decide(target, tx)
    billed = {"billing_amount": 12.34, "billing_currency": "EUR", "billing_rate": 1.0}
    for name, value in {**msgspec.structs.asdict(tx), **billed}.items():
        assert getattr(decision, name) == value
    assert (decision.score, decision.action, decision.reasons) == (0.0, "approve", [])
    assert len(target.emissions) == 1


def test_a_repeat_of_a_transaction_goes_to_the_dead_letters_and_changes_nothing() -> None:
    target, undisturbed = driver(), driver()
    first, second = transaction(0, 10), transaction(HOUR, 30)
    send_each(target, [first, first, second, second])
    send_each(undisturbed, [first, second])
    assert target.values() == undisturbed.values()
    assert [(d["reason"], d["key"]) for d in target.values("dead_letters")] == [("duplicate", "6:card-1")] * 2
    assert first.transaction_id in target.values("dead_letters")[0]["error"]
    last = transaction(2 * HOUR, 5)
    assert decide(target, last) == decide(undisturbed, last)
    assert target.state("card-1") == undisturbed.state("card-1")


def test_a_repeat_in_the_same_batch_and_after_a_restart_is_a_duplicate() -> None:
    target = driver()
    tx = transaction(0, 10)
    send(target, tx, tx)
    target.restart()
    send(target, tx)
    assert len(target.values()) == 1
    assert [d["reason"] for d in target.values("dead_letters")] == ["duplicate"] * 2


def test_an_id_of_another_card_is_no_duplicate() -> None:
    target = driver()
    send(target, transaction(0, 10, id="a"), transaction(0, 10, id="a", card="card-2"))
    assert len(target.values()) == 2


def test_an_id_is_remembered_for_24_hours_and_not_longer() -> None:
    target = driver(out_of_orderness_ms=DAY)
    send_each(target, [transaction(0, 10, id="a"), transaction(DAY - 1, 11, id="a")])
    assert len(target.values()) == 1
    send(target, transaction(DAY, 12, id="a"))
    assert [d.amount for d in target.values()] == [10, 12]
    send(target, transaction(2 * DAY - 1, 13, id="a"))
    assert len(target.values()) == 2


def test_a_late_transaction_goes_to_late_once_and_changes_no_feature() -> None:
    target, undisturbed = driver(), driver()
    late = transaction(0, 99)
    for each in (target, undisturbed):
        send(each, transaction(HOUR, 10))
    send_each(target, [late, late])
    target.restart()
    send(target, late)
    assert [(r.event, r.lateness_ms) for r in target.values("late_transactions")] == [(late, HOUR - 1)]
    assert [d["reason"] for d in target.values("dead_letters")] == ["duplicate"] * 2
    last = transaction(HOUR + 1, 20)
    assert decide(target, last) == decide(undisturbed, last)


def test_a_late_repeat_of_a_decided_transaction_is_a_duplicate_and_not_late() -> None:
    target = driver()
    tx = transaction(0, 10)
    send_each(target, [tx, transaction(HOUR, 20), tx])
    assert target.values("late_transactions") == []
    assert [d["reason"] for d in target.values("dead_letters")] == ["duplicate"]


def test_a_transaction_that_is_days_late_is_remembered_from_when_it_came() -> None:
    target = driver()
    late = transaction(0, 10)
    send_each(target, [transaction(10 * DAY, 1), late, transaction(10 * DAY + 23 * HOUR, 1), late])
    assert len(target.values("late_transactions")) == 1
    assert [d["reason"] for d in target.values("dead_letters")] == ["duplicate"]


def test_late_transactions_alone_leave_no_state() -> None:
    target = driver()
    send(target, transaction(10 * DAY, 1, card="card-2"))
    send(target, transaction(0, 10))
    assert target.timers("card-1") == {"expire": START_MS + 11 * DAY - 1}
    target.advance_watermark(START_MS + 11 * DAY - 1)
    assert target.state("card-1") is None


def test_an_amount_far_above_the_cards_own_is_an_alert_with_its_baseline() -> None:
    target = driver()
    send_each(target, habits(20.0))
    decision = decide(target, transaction(13 * HOUR, 200))
    assert decision.action == "review"
    (reason, *beside) = decision.reasons
    assert (reason.code, reason.value) == ("AMOUNT_DEVIATION", 200.0)
    assert [r.weight for r in beside] == [0.0, 0.0]  # what is usual, to compare with
    assert (reason.baseline, reason.limit) == (decision.mean_before, 4 * decision.mean_before)
    assert reason.baseline == pytest.approx(20.0)
    (alert,) = alerts(target)
    assert (alert.transaction_id, alert.card_id) == (decision.transaction_id, "card-1")
    assert (alert.score, alert.action, alert.reasons) == (decision.score, "review", decision.reasons)
    assert alert.thresholds == Thresholds().as_dict()


def test_the_same_amount_is_nothing_on_a_card_that_spends_it_every_day() -> None:
    target = driver()
    send_each(target, habits(180.0))
    assert decide(target, transaction(13 * HOUR, 200)).reasons == []


def test_an_amount_on_a_card_without_history_is_no_deviation() -> None:
    target = driver()
    send_each(target, habits(20.0, number=9))
    assert decide(target, transaction(13 * HOUR, 2_000)).reasons == []


def test_card_testing_is_caught_at_its_fifth_purchase() -> None:
    target = driver()
    send_each(target, habits(20.0))
    start = 13 * HOUR
    tests = [transaction(start + i * 5 * SECOND, 1.5) for i in range(8)]
    send_each(target, tests)
    decisions = target.values()[-8:]
    assert [d.small_count_1m for d in decisions] == list(range(1, 9))
    assert [d.action for d in decisions] == ["approve"] * 4 + ["block"] * 4
    reason = decisions[4].reasons[0]
    assert (reason.code, reason.value, reason.limit) == ("CARD_TESTING", 5.0, 5.0)
    assert reason.baseline == pytest.approx(decisions[4].per_hour_before / 60)


def test_card_testing_is_caught_on_a_card_without_history() -> None:
    target = driver()
    send_each(target, [transaction(i * 5 * SECOND, 1.5) for i in range(8)])
    assert [d.action for d in target.values()] == ["approve"] * 4 + ["block"] * 4


def test_small_purchases_are_no_card_testing_where_they_are_usual() -> None:
    """Coffee at 1.80, now and then something for 3.50."""
    target = driver()
    send_each(target, [transaction(i * 5 * SECOND, 3.5 if i % 3 == 0 else 1.8) for i in range(60)])
    assert not any(r.code == "CARD_TESTING" for d in target.values()[10:] for r in d.reasons)


def test_a_spree_is_caught_at_its_fourth_purchase() -> None:
    target = driver()
    send_each(target, habits(20.0))
    amounts = [62, 75, 98, 70, 84, 66]
    send_each(target, [transaction(13 * HOUR + i * 30 * SECOND, a) for i, a in enumerate(amounts)])
    decisions = target.values()[-6:]
    assert [d.large_count_5m for d in decisions] == [1, 2, 3, 4, 5, 6]
    assert [[r.code for r in d.reasons if r.code == "SPREE"] for d in decisions] == [[]] * 3 + [["SPREE"]] * 3
    assert all(d.action != "approve" for d in decisions[3:])


def test_many_purchases_in_a_minute_are_measured_against_the_cards_own_rate() -> None:
    target = driver()
    send_each(target, habits(20.0))
    send_each(target, [transaction(13 * HOUR + i * SECOND, 20) for i in range(7)])
    reason = next(r for r in target.values()[-1].reasons if r.code == "VELOCITY_1M")
    # Twelve purchases from 1:00:00 on to one minute before 13:00:06.
    assert (reason.value, reason.baseline) == (7.0, pytest.approx(12 / (12 * 60 + 0.1 - 1)))
    busy = driver()
    send_each(busy, habits(20.0, number=200, every_ms=5 * SECOND))
    assert [d.reasons for d in busy.values() if d.reasons] == []
    assert busy.values()[-1].count_1m == 12


def test_a_slow_spree_is_measured_against_what_the_card_spent_before_that_hour() -> None:
    target = driver()
    send_each(target, habits(20.0, number=24))
    send_each(target, [transaction(25 * HOUR + i * 8 * MINUTE, 70) for i in range(7)])
    decisions = target.values()[-7:]
    assert [d.large_count_5m for d in decisions] == [1] * 7
    assert [d.action for d in decisions[-2:]] == ["review", "review"]
    reason = decisions[-1].reasons[0]
    assert (reason.code, reason.value) == ("SPEND_1H", 490.0)
    # 24 purchases, 480 in all, from 1:00 on to one hour before 25:48; of the two days the second counts more.
    first, second = 111, 114  # 64 times 2 to the power of 24/30, and of 25/30
    per_hour = (23 * first + 7 * second) / (23 * first + 1.8 * second)
    mean = (462 * first + (18 + 6 * 70) * second) / (23 * first + 7 * second)
    assert reason.baseline == pytest.approx((30 * mean - 420) / (30 / per_hour - 1))


def test_more_spent_than_the_balance_is_a_minor_reason() -> None:
    target = driver()
    decision = decide(target, transaction(0, 20))
    assert [(r.code, r.value, r.baseline) for r in decision.reasons] == [("OVERDRAWN", -20.0, 0.0)]
    assert (decision.score, decision.action) == (0.1, "approve")


def test_refunds_and_top_ups_are_never_suspicious() -> None:
    target = driver()
    send_each(target, habits(20.0))
    for kind in ("refund", "top_up"):
        decision = decide(target, transaction(13 * HOUR, 100_000, kind=kind))
        assert (decision.score, decision.reasons, decision.action) == (0.0, [], "approve")


def test_a_threshold_is_overridden_and_reset_while_running() -> None:
    target = driver()
    send_each(target, habits(20.0))
    target.broadcast(SetThreshold("deviation_ratio", 20), SetThreshold("review_score", 0.3))
    assert decide(target, transaction(13 * HOUR, 200)).reasons == []
    target.restart()
    assert decide(target, transaction(15 * HOUR, 200)).reasons == []
    target.broadcast(ResetThreshold("deviation_ratio"), SetThreshold("deviation_sigmas", 1))
    decision = decide(target, transaction(16 * HOUR, 300))
    assert decision.reasons[0].code == "AMOUNT_DEVIATION"
    expected = {**Thresholds().as_dict(), "review_score": 0.3, "deviation_sigmas": 1.0}
    assert alerts(target)[-1].thresholds == expected


def test_block_and_review_follow_the_thresholds() -> None:
    target = driver()
    send_each(target, habits(20.0))
    target.broadcast(SetThreshold("block_score", 0.7))
    assert decide(target, transaction(13 * HOUR, 200)).action == "block"
    target.broadcast(SetThreshold("review_score", 0.8), SetThreshold("block_score", 0.9))
    decision = decide(target, transaction(16 * HOUR, 350))
    assert [r.code for r in decision.reasons] == ["AMOUNT_DEVIATION"]
    assert decision.action == "approve"
    assert len(alerts(target)) == 1


@pytest.mark.parametrize("control", [SetThreshold("revue_score", 0.1), ResetThreshold("revue_score")])
def test_an_unknown_threshold_is_refused_and_changes_nothing(control: Control) -> None:
    target = driver()
    target.broadcast(SetThreshold("review_score", 0.3), control, SetThreshold("block_score", 0.9))
    (letter,) = target.values("dead_letters")
    assert (letter["reason"], letter["stage"]) == ("process_error", "broadcast")
    assert "revue_score" in letter["error"]
    assert all(name in letter["error"] for name in THRESHOLD_NAMES)
    send_each(target, habits(20.0))
    send(target, transaction(13 * HOUR, 200))
    expected = {**Thresholds().as_dict(), "review_score": 0.3, "block_score": 0.9}
    assert alerts(target)[-1].thresholds == expected


def test_a_kept_override_of_a_threshold_that_no_longer_exists_is_ignored() -> None:
    from millrace_apps.fraud.processes.scoring import thresholds_with

    assert thresholds_with((("gone", 1.0), ("review_score", 0.4))) == Thresholds(review_score=0.4)


def test_reasons_stand_heaviest_first_and_multiply_to_the_score() -> None:
    target = driver()
    send_each(target, habits(20.0))
    send_each(target, [transaction(13 * HOUR + i * SECOND, 600) for i in range(9)])
    for decision in target.values()[-9:]:
        weights = [r.weight for r in decision.reasons]
        assert weights == sorted(weights, reverse=True)
        innocent = 1.0
        for weight in weights:
            innocent *= 1 - weight
        assert decision.score == pytest.approx(1 - innocent, abs=1e-6)
    codes = {r.code for r in target.values()[-1].reasons}
    assert {"SPREE", "VELOCITY_1M", "SPEND_1H"} <= codes


def test_the_expiry_timer_is_not_moved_by_every_transaction() -> None:
    target = driver()
    send_each(target, [transaction(0, 1), transaction(MINUTE, 1), transaction(HOUR, 1)])
    assert target.timers("card-1") == {"expire": START_MS + DAY}
    target.advance_watermark(START_MS + DAY)
    assert target.timers("card-1") == {"expire": START_MS + HOUR + DAY}


def test_another_transaction_under_a_known_id_is_told_from_a_repeat() -> None:
    target = driver()
    first = transaction(0, 10)
    other = msgspec.structs.replace(first, amount=11.0)
    send_each(target, [first, other, first, transaction(HOUR, 20), other])  # the last one late
    target.restart()
    send_each(target, [other, first])
    assert len(target.values()) == 2
    reasons = [d["reason"] for d in target.values("dead_letters")]
    assert reasons == ["conflict", "duplicate", "conflict", "conflict", "duplicate"]


def test_what_was_said_goes_with_its_transaction() -> None:
    """Against a dictionary of what is known, some of it by an earlier version."""
    rng = Random(5)
    for _ in range(200):
        recent, known = Recent(), dict[str, tuple[int, int | None]]()
        now = 0
        for n in range(rng.randrange(6)):
            recent.seen[f"old{n}"] = 5 * n + 20
            known[f"old{n}"] = (5 * n + 20, None)
        for _ in range(60):
            now += rng.randrange(DAY // 10)
            name, content = rng.choice([f"t{rng.randrange(9)}", f"old{rng.randrange(6)}"]), rng.randrange(3)
            due, said = known.get(name, (0, None))
            expected = "new" if due <= now else "same" if said in (None, content) else "other"
            assert recent.remember(name, now, content) == expected
            if expected == "new":
                known[name] = (now + DAY, content)
            if rng.random() < 0.2:
                watermark = now - rng.randrange(DAY)
                recent.prune(watermark)
                known = {name: kept for name, kept in known.items() if kept[0] > watermark}
            assert recent.seen == {name: due for name, (due, _) in known.items()}


def test_what_an_earlier_version_remembers_is_a_repeat_whatever_it_said() -> None:
    class OldRecent(msgspec.Struct, array_like=True):
        until: int
        base: int
        times: list[int]
        totals: list[int]
        credits: list[tuple[int, int]]
        seen: dict[str, int]

    kept = msgspec.msgpack.encode(OldRecent(DAY, 0, [], [], [], {"t": DAY, "gone": 5}))
    recent = msgspec.msgpack.decode(kept, type=Recent)
    assert recent.remember("t", 10, 1) == "same"
    assert recent.remember("gone", 10, 1) == "new"
    assert recent.remember("gone", 11, 1) == "same"
    assert recent.remember("gone", 11, 2) == "other"
    recent.prune(2 * DAY)
    assert (recent.seen, recent.said) == ({}, b"")
    before, now = ({"recent": {"kind": "value", "type": describe_type(tp)}} for tp in (OldRecent, Recent))
    assert state_differences(before, now) == []
