"""The generator on a real broker: what its ledger says is what the topic has."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from generators.fraud import FraudProfile, fraud_events
from millrace.kafka.admin import end_offsets, topic_partitions
from millrace.testing.kafka import TopicFactory, consume_all
from millrace.testing.ledger import read_ledger

COMMAND = [sys.executable, "-c", "from millrace.cli import main; main()", "generate", "fraud"]
FAULTS = ["--late", "0.02", "--lateness", "2s", "--duplicates", "0.02", "--malformed", "0.02"]


def test_the_topic_has_exactly_what_profile_and_ledger_say(
    kafka_bootstrap: str, topic_factory: TopicFactory, tmp_path: Path
) -> None:
    topic, ledger_path = topic_factory(4, prefix="generator"), tmp_path / "ledger.jsonl"
    flags = ["--rate", "max", "--events", "20000", "--seed", "5", "--start", "2026-11-01T00:00:00Z", *FAULTS]
    where = ["--bootstrap", kafka_bootstrap, "--topic", topic, "--ledger", str(ledger_path), "--quiet"]
    done = subprocess.run([*COMMAND, *flags, *where], capture_output=True, check=True)
    assert done.stdout + done.stderr == b""

    ledger = read_ledger(ledger_path)
    found = consume_all(kafka_bootstrap, topic)
    expected = list(fraud_events(FraudProfile(**ledger.run.parameters)))
    assert ledger.summary.sent == len(found) == len(expected)
    assert Counter((m.key(), m.value(), tuple(m.headers() or ())) for m in found) == Counter(
        (m.key, m.value, tuple(m.headers)) for m in expected
    )
    headers = Counter((dict(m.headers() or ())["ce_id"] or b"") for m in found)
    repeated = Counter(str(fault.transaction_id).encode() for fault in ledger.faults_of("duplicate"))
    assert {name: count - 1 for name, count in headers.items() if count > 1} == repeated


def test_a_missing_topic_is_created_with_the_partitions_asked_for(kafka_bootstrap: str) -> None:
    topic = f"generator-made-{time.time_ns()}"
    flags = ["--rate", "max", "--events", "10", "--partitions", "3", "--quiet"]
    subprocess.run([*COMMAND, *flags, "--bootstrap", kafka_bootstrap, "--topic", topic], check=True)
    try:
        assert topic_partitions(kafka_bootstrap)[topic] == 3
        assert len(consume_all(kafka_bootstrap, topic)) == 10
    finally:
        from millrace.kafka.admin import delete_topics

        delete_topics(kafka_bootstrap, [topic])


def test_sigterm_delivers_everything_that_the_ledger_counts(
    kafka_bootstrap: str, topic_factory: TopicFactory, tmp_path: Path
) -> None:
    topic, ledger_path = topic_factory(2, prefix="generator"), tmp_path / "ledger.jsonl"
    where = ["--bootstrap", kafka_bootstrap, "--topic", topic, "--ledger", str(ledger_path), "--quiet"]
    process = subprocess.Popen([*COMMAND, "--rate", "2000", *FAULTS, *where])
    try:
        deadline = time.monotonic() + 60
        while sum(end_offsets(kafka_bootstrap, topic).values()) < 3_000:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0
    finally:
        process.kill()
        process.wait()
    found = consume_all(kafka_bootstrap, topic)
    summary = read_ledger(ledger_path).summary
    assert summary.sent == len(found)
    readable = 0
    for message in found:
        try:
            readable += "transaction_id" in json.loads(message.value() or b"")
        except ValueError:
            continue
    assert summary.malformed > 0
    assert summary.valid_unique + summary.duplicates <= readable
