"""Labels beside the transactions of ``fraud``: as they become known, and nothing else moved by them."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from millrace_apps.fraud.contracts.events import Label
from millrace_apps.generators.fraud import FraudProfile, fraud_events
from millrace_apps.generators.ledger import LedgerWriter, read_ledger
from millrace_apps.generators.run import run
from millrace_apps.generators.sinks import LineSink

PROFILE = FraudProfile(
    seed=3, events=6_000, event_rate=5, cards=200, fraud_rate=4, late=0.01, duplicates=0.01, malformed=0.01
)
WITH = replace(PROFILE, label_scale=0.0005)


def labels_of(profile: FraudProfile) -> list[Any]:
    return [m for m in fraud_events(profile) if m.topic]


def test_labels_change_no_transaction_and_not_the_order_of_sending() -> None:
    plain = [(m.value, m.due_ms) for m in fraud_events(PROFILE)]
    assert [(m.value, m.due_ms) for m in fraud_events(WITH) if not m.topic] == plain
    assert labels_of(PROFILE) == []
    assert [m.value for m in labels_of(WITH)] == [m.value for m in labels_of(WITH)]


def test_labels_are_those_of_the_contract_and_come_when_they_are_known() -> None:
    sold: dict[str, Any] = {}
    said, frauds = [], set()
    newest = 0
    for message in fraud_events(WITH):
        assert message.due_ms >= newest
        newest = max(newest, message.due_ms if message.topic else 0)
        if message.topic:
            assert message.topic == "fraud.labels"
            said.append(msgspec.json.decode(message.value, type=Label))
            assert message.due_ms == said[-1].event_time_ms
            assert message.key.decode() == said[-1].card_id
        elif message.fault is None or message.fault.kind == "late":
            sold[message.transaction_id] = json.loads(message.value)
            if message.episode is not None:
                frauds.add(message.transaction_id)
    assert len(said) > 40
    for label in said:
        of = sold[label.transaction_id]
        assert (label.card_id, label.terminal_id) == (of["card_id"], of["terminal_id"])
        assert label.transaction_time_ms == of["event_time_ms"]
        assert of["kind"] == "purchase"
    newest_word = {label.transaction_id: label.is_fraud for label in said}
    right = sum(fraud == (identity in frauds) for identity, fraud in newest_word.items())
    assert right > 0.9 * len(newest_word)
    assert {label.source for label in said} >= {"feedback", "chargeback"}


def test_the_ledger_counts_labels_apart(tmp_path: Path) -> None:
    paths = []
    for profile in (PROFILE, WITH):
        path = tmp_path / f"{profile.label_scale}.jsonl"
        ledger = LedgerWriter(path, domain="fraud", seed=3, schema_version="1", parameters={})
        with LineSink.to_file(tmp_path / "out.jsonl") as sink, ledger:
            run(fraud_events(profile), sink, ledger, threading.Event())
        paths.append(path)
    plain, labelled = (read_ledger(path).summary for path in paths)
    assert labelled.labels == len(labels_of(WITH))
    assert msgspec.structs.replace(labelled, labels=0) == plain
