"""What is known of payments that were decided on: blocked is not genuine (F2), silence takes its time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
import pandas as pd
import pytest

from millrace.errors import UserError
from millrace_apps.fraud.model.known import AUTHORISATION_COLUMNS, LABEL_COLUMNS, Maturity, known, weights

MATURITY = Maturity(chargeback_ms=20, feedback_ms=5)
Row = dict[str, Any]


def payment(n: str, action: str = "approve", at: int = 0, *, control: bool = False) -> Row:
    return {"transaction_id": n, "event_time_ms": at, "action": action, "control_group": control}


def said(n: str, fraud: bool, at: int, source: str = "feedback") -> Row:
    return {"transaction_id": n, "event_time_ms": at, "is_fraud": fraud, "source": source}


def told(
    payments: list[Row], labels: Sequence[Row] = (), as_of: int = 30, answers: list[Row] | None = None
) -> list[tuple[str, str, float]]:
    authorisations = None if answers is None else pd.DataFrame(answers, columns=list(AUTHORISATION_COLUMNS))
    found = known(
        pd.DataFrame(payments),
        pd.DataFrame(labels, columns=list(LABEL_COLUMNS)),
        as_of,
        MATURITY,
        authorisations=authorisations,
    )
    return list(zip(found["verdict"], found["why"], found["weight"], strict=True))


def test_card_testing_of_which_most_is_blocked_teaches_that_it_is_nothing_genuine() -> None:
    tried = [payment(f"t{n}", "block" if n >= 4 else "approve", at=n) for n in range(12)]
    back = [said(f"t{n}", True, 15 + n, "chargeback") for n in range(4)]
    found = told(tried, back, as_of=40)
    assert Counter(verdict for verdict, _, _ in found) == {"fraud": 4, "unknown": 8}
    assert {why for verdict, why, _ in found if verdict == "unknown"} == {"stopped"}


def test_silence_counts_once_the_holder_has_had_the_time_and_an_answer_before() -> None:
    paid = [payment("a"), payment("b", "review")]
    answer = [said("b", False, 1)]
    assert [v for v, _, _ in told(paid, answer, as_of=4)] == ["unknown", "unknown"]
    assert told(paid, answer, as_of=5) == [("unknown", "young", 1.0), ("genuine", "feedback", 1.0)]
    assert [v for v, _, _ in told(paid, answer, as_of=19)] == ["unknown", "genuine"]
    assert [w for _, w, _ in told(paid, answer, as_of=20)] == ["silence", "feedback"]


def test_a_quick_chargeback_waits_for_the_silence_of_the_others() -> None:
    paid, back = [payment("a"), payment("b")], [said("a", True, 2, "chargeback")]
    assert [(v, w) for v, w, _ in told(paid, back, as_of=19)] == [("unknown", "young")] * 2
    assert [v for v, _, _ in told(paid, back, as_of=20)] == ["fraud", "genuine"]


def test_what_the_customer_was_told_counts_before_what_was_decided() -> None:
    paid = [payment("passed-after-all", "block"), payment("declined"), payment("reversed")]
    answers = [
        {"transaction_id": "passed-after-all", "event_time_ms": 1, "status": "declined"},
        {"transaction_id": "passed-after-all", "event_time_ms": 2, "status": "approved"},
        {"transaction_id": "declined", "event_time_ms": 1, "status": "declined"},
        {"transaction_id": "reversed", "event_time_ms": 1, "status": "captured"},
        {"transaction_id": "reversed", "event_time_ms": 9, "status": "reversed"},
        {"transaction_id": "reversed", "event_time_ms": 99, "status": "declined"},  # not known yet
    ]
    assert [v for v, _, _ in told(paid, answers=answers)] == ["genuine", "unknown", "genuine"]
    assert [v for v, _, _ in told(paid)] == ["unknown", "genuine", "genuine"]


def test_the_control_group_stands_for_what_was_blocked() -> None:
    paid = [payment(f"b{n}", "block") for n in range(9)] + [payment("c", control=True), payment("a")]
    found = dict(zip((p["transaction_id"] for p in paid), told(paid, [said("b0", True, 3)]), strict=True))
    assert found["c"] == ("genuine", "silence", 10.0)
    assert found["b0"] == ("fraud", "feedback", 0.0)
    assert found["a"] == ("genuine", "silence", 1.0)


def test_estimates_by_weight_are_not_biased_by_who_is_blocked_and_looked_at() -> None:
    """Frauds of 300 worlds, by what is known of each, against what they are."""
    random = Random(11)
    estimated, true, naive = 0.0, 0, 0
    for _ in range(300):
        paid, labels = [], []
        for n in range(200):
            fraud, suspicious = random.random() < 0.2, random.random() < 0.3
            fraud = fraud or (suspicious and random.random() < 0.5)
            control = suspicious and random.random() < 0.2
            action = "block" if suspicious and not control else "approve"
            paid.append(payment(f"t{n}", action, control=control))
            true += fraud
            looked_at = action == "block" and random.random() < (0.5 if fraud else 0.1)
            if looked_at or (fraud and action != "block"):
                labels.append(said(f"t{n}", fraud, 3, "feedback" if looked_at else "chargeback"))
        found = told(paid, labels)
        estimated += sum(weight for verdict, _, weight in found if verdict == "fraud")
        naive += sum(verdict == "fraud" for verdict, _, _ in found)
    assert abs(estimated / true - 1) < 0.02
    assert naive / true < 0.85


def test_ten_thousand_payments_are_read_as_one_by_one() -> None:
    random = Random(5)
    for _ in range(200):
        paid = [
            payment(
                f"t{n}", random.choice(["approve", "review", "block"]), random.randrange(30),
                control=random.random() < 0.2,
            )
            for n in range(50)
        ]  # fmt: skip
        paid = [p | {"control_group": p["control_group"] and p["action"] == "approve"} for p in paid]
        labels = [
            said(f"t{random.randrange(60)}", random.random() < 0.5, at, random.choice(
                ["feedback", "chargeback", "correction"]))
            for at in random.sample(range(45), 40)
        ]  # fmt: skip
        answers = [
            {"transaction_id": f"t{random.randrange(60)}", "event_time_ms": at,
             "status": random.choice(["approved", "declined", "captured", "reversed"])}
            for at in random.sample(range(45), random.randrange(30))
        ]  # fmt: skip
        as_of = random.randrange(45)
        by_hand = [one_by_one(p, labels, answers, as_of) for p in paid]
        found = told(paid, labels, as_of, answers if answers else None)
        assert [(v, w) for v, w, _ in found] == by_hand


def one_by_one(paid: Row, labels: list[Row], answers: list[Row], now: int) -> tuple[str, str]:
    """Another reading of the same: in the order of what became known."""
    mine = sorted(
        (row for row in (*labels, *answers)
         if row["transaction_id"] == paid["transaction_id"] and row["event_time_ms"] <= now),
        key=lambda row: row["event_time_ms"],
    )  # fmt: skip
    passed, verdict, why, answered = paid["action"] != "block", None, "", False
    for row in mine:
        if "status" in row:
            passed = passed if row["status"] == "reversed" else row["status"] != "declined"
        else:
            verdict, why = ("fraud" if row["is_fraud"] else "genuine"), row["source"]
            answered = answered or why == "feedback"
    if verdict is None and not passed:
        return "unknown", "stopped"
    wait = MATURITY.feedback_ms if answered else MATURITY.chargeback_ms
    if now - paid["event_time_ms"] < wait:
        return "unknown", "young"
    return (verdict, why) if verdict else ("genuine", "silence")


def test_weights_add_up_to_what_there_is() -> None:
    random = np.random.default_rng(2)
    for _ in range(100):
        blocked = random.random(60) < 0.4
        control = blocked & (random.random(60) < 0.3)
        assert weights(blocked, control).sum() == pytest.approx(60)


def test_labels_mature_in_their_order() -> None:
    for wrong in ((5, 6), (5, -1)):
        with pytest.raises(UserError, match="mature"):
            Maturity.of(*wrong)
    assert Maturity.of(5) == (5, 5)


def test_tables_of_before_have_no_control_group() -> None:
    paid = pd.DataFrame([payment("a", "block")]).drop(columns="control_group")
    none = pd.DataFrame([], columns=list(LABEL_COLUMNS))
    assert known(paid, none, 30, MATURITY)["verdict"].tolist() == ["unknown"]
