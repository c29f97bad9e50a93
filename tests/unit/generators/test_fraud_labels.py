"""Labels of the world of payments: what becomes known, when, and how often wrongly."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import median, stdev

import pytest

from millrace_apps.fraud.contracts.events import Label, Transaction
from millrace_apps.generators.engine import substream
from millrace_apps.generators.engine.simulated import Simulated
from millrace_apps.generators.fraud import labels as law
from millrace_apps.generators.fraud import simulate
from millrace_apps.generators.fraud.labels import Coming, Labels
from tests.unit.generators.fraud_cases import (
    DAY_MS,
    HOUR_MS,
    PROFILE,
    simulated,
    transactions,
)


@pytest.fixture(scope="module")
def events() -> list[Simulated]:
    return simulated()


def test_a_label_follows_its_transaction(events: list[Simulated]) -> None:
    sent: dict[str, Transaction] = {}
    ids: set[str] = set()
    for event in events:
        if event.stream == "transactions":
            sent[event.event.transaction_id] = event.event
            continue
        label: Label = event.event
        about = sent[label.transaction_id]
        assert label.event_time_ms > label.transaction_time_ms == about.event_time_ms
        assert (label.card_id, label.terminal_id) == (about.card_id, about.terminal_id)
        assert about.kind == "purchase"
        assert label.label_id not in ids
        assert (label.corrects is None) == (label.source != "correction")
        assert label.corrects is None or label.corrects in ids
        ids.add(label.label_id)
    assert len(ids) > 300


def test_in_the_end_labels_say_what_is_true() -> None:
    profile = replace(PROFILE, transactions=20_000, label_scale=1.0)
    truth: dict[str, bool] = {}
    newest: dict[str, Label] = {}
    wrong_and_final = 0
    for event in simulate(profile):
        if event.stream == "transactions":
            truth[event.event.transaction_id] = bool(event.truths)
        else:
            newest[event.event.transaction_id] = event.event
    for transaction_id, label in newest.items():
        wrong_and_final += label.is_fraud != truth[transaction_id]
    # Only genuine purchases that were disputed, and of those the three in ten that nobody corrected.
    assert wrong_and_final <= 10
    known = sum(truth[name] for name in newest)
    share = law.FEEDBACK_OF_FRAUDS + (1 - law.FEEDBACK_OF_FRAUDS) * law.CHARGEBACK_OF_FRAUDS
    assert known / sum(truth.values()) == pytest.approx(share, abs=0.03)


def a_transaction(number: int) -> Transaction:
    return Transaction(f"t{number:06d}", "card", "term", "5411", "DE", 5.0, "EUR", "purchase", 1_000)


def labels_of_frauds(count: int, scale: float = 1.0) -> list[Label]:
    coming, draw = Coming(), substream(1, "test").random
    labels = Labels(scale, coming)
    for number in range(count):
        labels.fraud(a_transaction(number), draw)
    return [event.event for event in coming.until(math.inf)]


def test_labels_of_frauds_keep_to_their_law() -> None:
    made = labels_of_frauds(6_000)
    times = [label.event_time_ms for label in made]
    assert times == sorted(times)
    feedback = [label for label in made if label.source == "feedback"]
    charged = [label for label in made if label.source == "chargeback"]
    assert len(feedback) / 6_000 == pytest.approx(law.FEEDBACK_OF_FRAUDS, abs=0.02)
    assert len(charged) / 6_000 == pytest.approx(0.65 * law.CHARGEBACK_OF_FRAUDS, abs=0.02)
    assert sum(not label.is_fraud for label in feedback) / len(feedback) == pytest.approx(0.04, abs=0.015)
    hours = [(label.event_time_ms - 1_000) / HOUR_MS for label in feedback]
    days = [(label.event_time_ms - 1_000) / DAY_MS for label in charged]
    assert median(hours) == pytest.approx(6, rel=0.1)
    assert (min(hours) >= 5 / 60, max(hours) <= 120) == (True, True)
    assert median(days) == pytest.approx(21, rel=0.08)
    assert stdev(map(math.log, days)) == pytest.approx(0.6, abs=0.03)
    assert (min(days) >= 2, max(days) <= 120) == (True, True)


def test_every_wrong_feedback_is_corrected() -> None:
    made = labels_of_frauds(6_000)
    wrong = {label.label_id: label for label in made if not label.is_fraud}
    corrections = [label for label in made if label.source == "correction"]
    assert {label.corrects for label in corrections} == set(wrong)
    for label in corrections:
        assert label.is_fraud
        assert label.event_time_ms >= wrong[str(label.corrects)].event_time_ms + HOUR_MS


def test_the_scale_shortens_every_delay() -> None:
    usual, short = labels_of_frauds(500), labels_of_frauds(500, 0.001)
    delays = {label.label_id: label.event_time_ms - 1_000 for label in usual}
    for label in short:
        assert label.event_time_ms - 1_000 == pytest.approx(delays[label.label_id] * 0.001, abs=1.5)


def test_genuine_purchases_are_labelled_rarely_and_mostly_right(events: list[Simulated]) -> None:
    frauds = {event.event.transaction_id for event in transactions(events) if event.truths}
    about = [e for e in events if e.stream == "labels" and e.event.transaction_id not in frauds]
    assert len({event.event.transaction_id for event in about}) / 30_000 < 0.004
    assert len(about) > 30
    for event in about:
        first_wrong = event.event.source != "correction" and event.event.is_fraud
        assert (len(event.truths) == 1) == (first_wrong or event.event.source == "correction")
        for truth in event.truths:
            assert truth.kind == "wrong_label"
            assert truth.entity == event.event.transaction_id
