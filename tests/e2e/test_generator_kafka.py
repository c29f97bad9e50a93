"""The generator on a real broker: what its ledger says is what the topic has."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from typer.testing import CliRunner

from millrace.cli.doctor import app as doctor
from millrace.kafka.admin import SENT_TIME, delete_topics, end_offsets, topic_configs, topic_partitions
from millrace.runtime.apps import load_app
from millrace.runtime.job import Job
from millrace.runtime.settings import AppSettings, load_settings
from millrace.testing.kafka import TopicFactory, consume_all
from millrace.testing.world_ledger import ReadLedger, read_world_ledger
from millrace_apps.generators.engine import deliver_domain
from millrace_apps.generators.fraud import DOMAIN, FraudProfile
from tests.payments import transactions_of

COMMAND = [sys.executable, "-c", "from millrace.cli import main; main()", "generate", "fraud"]
#: Transactions alone.
ALONE = ["--label-scale", "0"]
FAULTS = ["--late", "0.02", "--lateness", "2s", "--duplicates", "0.02", "--malformed", "0.02"]


def to_topic(topic: str) -> list[str]:
    """Return the flags that send transactions there, and the other streams, which are empty, beside it."""
    beside = [f"{name}={topic}" for name in ("transactions", "labels", "authorisations")]
    return [*ALONE, *(part for name in beside for part in ("--topic", name))]


def profile_of(ledger: ReadLedger) -> FraudProfile:
    parameters = dict(ledger.run.parameters)
    del parameters["disturbances"], parameters["until_ms"]
    return FraudProfile(**parameters)


def test_the_topic_has_exactly_what_profile_and_ledger_say(
    kafka_bootstrap: str, topic_factory: TopicFactory, tmp_path: Path
) -> None:
    topic, ledger_path = topic_factory(4, prefix="generator"), tmp_path / "ledger.jsonl"
    flags = ["--rate", "max", "--events", "20000", "--seed", "5", "--start", "2026-11-01T00:00:00Z", *FAULTS]
    where = ["--bootstrap", kafka_bootstrap, *to_topic(topic), "--ledger", str(ledger_path), "--quiet"]
    done = subprocess.run([*COMMAND, *flags, *where], capture_output=True, check=True)
    assert done.stdout + done.stderr == b""

    ledger = read_world_ledger(ledger_path)
    found = consume_all(kafka_bootstrap, topic)
    expected = list(transactions_of(profile_of(ledger)))
    assert ledger.summary.sent == len(found) == len(expected)
    assert Counter((m.key(), m.value(), tuple(m.headers() or ())) for m in found) == Counter(
        (m.key, m.value, tuple(m.headers)) for m in expected
    )
    headers = Counter((dict(m.headers() or ())["ce_id"] or b"") for m in found)
    repeated = Counter(f.event_id.encode() for f in ledger.faults if f.kind == "duplicate")
    assert {name: count - 1 for name, count in headers.items() if count > 1} == repeated


def test_a_missing_topic_is_created_with_the_partitions_asked_for(kafka_bootstrap: str) -> None:
    topic = f"generator-made-{time.time_ns()}"
    flags = ["--rate", "max", "--events", "10", "--partitions", "3", "--quiet"]
    subprocess.run([*COMMAND, *flags, "--bootstrap", kafka_bootstrap, *to_topic(topic)], check=True)
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
    where = ["--bootstrap", kafka_bootstrap, *to_topic(topic), "--ledger", str(ledger_path), "--quiet"]
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
    summary = read_world_ledger(ledger_path).summary
    assert summary.sent == len(found)
    readable = 0
    for message in found:
        try:
            readable += "transaction_id" in json.loads(message.value() or b"")
        except ValueError:
            continue
    assert summary.faults["malformed"] > 0
    assert summary.valid_unique + summary.faults["duplicate"] <= readable


class TestTimesOfArrival:
    """Whose times records carry, from the topics that an app makes to what the doctor says of them."""

    @pytest.fixture
    def settings(self, kafka_bootstrap: str, tmp_path: Path) -> Iterator[AppSettings]:
        """The fraud app with topics of its own, which do not exist yet."""
        app, run = load_app("fraud"), uuid4().hex[:8]
        names = ("transactions", "labels", "authorisations", "control", "alerts", "dead_letters")
        own = [f"topics.{name}=arrivals-{name}-{run}" for name in names]
        sets = [f"kafka.bootstrap={kafka_bootstrap}", f"storage.root={tmp_path}", *own]
        settings = load_settings(app.settings, app="fraud", overrides=sets, env={})
        yield settings
        topics = app.topics(settings)
        delete_topics(kafka_bootstrap, [t.name for t in (*topics.reads, *topics.writes)])

    def generate(self, topics: Any, bootstrap: str, *flags: str) -> subprocess.CompletedProcess[str]:
        """Send 1,600 transactions and labels of some minutes in times to come."""
        usual = ["--rate", "max", "--events", "1600", "--event-rate", "5", "--seed", "5", "--quiet"]
        streams = ("transactions", "labels", "authorisations")
        where = ["--bootstrap", bootstrap]
        where += [part for name in streams for part in ("--topic", f"{name}={getattr(topics, name)}")]
        # A broker refuses times of the senders' that are an hour ahead, unless its topic allows them.
        world = [
            "--start",
            "2100-01-01T00:00:00Z",
            "--label-scale",
            "0.0001",
            "--fraud-rate",
            "5",
            "--partitions",
            "2",
        ]
        command = [*COMMAND, *usual, *where, *world, *FAULTS, *flags]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def test_topics_of_an_app_carry_when_the_broker_took_a_record(
        self, kafka_bootstrap: str, settings: AppSettings
    ) -> None:
        warnings: list[str] = []
        Job(load_app("fraud"), settings, on_warning=warnings.append)._check_broker()
        topics = load_app("fraud").topics(settings)
        configs = topic_configs(kafka_bootstrap, [t.name for t in (*topics.reads, *topics.writes)])
        assert {c["message.timestamp.type"] for c in configs.values()} == {"LogAppendTime"}
        assert len(configs) == 7
        names: Any = settings.topics  # type: ignore[attr-defined]
        # Simulated arrivals do not last there: who insists on them is refused, who does not is told.
        refused = self.generate(names, kafka_bootstrap, "--timestamps", "arrival")
        assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 1)
        assert f"{names.transactions}, {names.labels}, {names.authorisations} at" in refused.stderr
        began = time.time() * 1000
        told = self.generate(names, kafka_bootstrap)
        assert (told.returncode, told.stderr.startswith("warning: ")) == (0, True), told.stderr
        found = consume_all(kafka_bootstrap, names.transactions)
        assert len(found) > 1_500
        assert all(began - 1 <= m.timestamp()[1] <= time.time() * 1000 + 1 for m in found)
        # Topics that are there stay as they are.
        Job(load_app("fraud"), settings, on_warning=warnings.append)._check_broker()
        assert warnings == []

    def test_simulated_arrivals_are_what_the_doctor_measures(
        self, kafka_bootstrap: str, settings: AppSettings, tmp_path: Path
    ) -> None:
        names: Any = settings.topics  # type: ignore[attr-defined]
        path = tmp_path / "ledger.jsonl"
        done = self.generate(names, kafka_bootstrap, "--timestamps", "arrival", "--ledger", str(path))
        assert (done.returncode, done.stderr) == (0, "")
        config = topic_configs(kafka_bootstrap, [names.transactions])[names.transactions]
        assert {name: config[name] for name in SENT_TIME} == SENT_TIME
        sent = list(deliver_domain(DOMAIN, profile_of(read_world_ledger(path))))
        found = consume_all(kafka_bootstrap, names.transactions)
        assert Counter((m.value(), m.timestamp()[1]) for m in found) == Counter(
            (m.value, m.due_ms) for m in sent if m.stream == "transactions"
        )
        for partition in (0, 1):
            times = [m.timestamp()[1] for m in found if m.partition() == partition]
            assert times == sorted(times)

        warnings: list[str] = []
        Job(load_app("fraud"), settings, on_warning=warnings.append)._check_broker()
        assert [warning.split(" carry")[0] for warning in warnings] == [
            f"records of {names.transactions}, {names.labels}, {names.authorisations}"
        ]
        self.check_doctor(kafka_bootstrap, names, [m for m in sent if m.stream == "transactions"])

    def check_doctor(self, bootstrap: str, names: Any, sent: list[Any]) -> None:
        """Compare what the doctor says with what the ledger's own stream says, counted otherwise."""
        own = [
            part for name, topic in names if name != "partitions" for part in ("-s", f"topics.{name}={topic}")
        ]
        said = CliRunner().invoke(doctor, ["fraud", "--bootstrap", bootstrap, "--format", "json", *own])
        findings = {f["name"]: f for f in json.loads(said.stdout)}
        transactions = findings[f"fraud: {names.transactions}"]
        delays = []
        for message in sent:
            try:
                delays.append(message.due_ms - json.loads(message.value)["event_time_ms"])
            except (ValueError, KeyError, TypeError):
                continue
        delays.sort()
        figures = transactions["figures"]
        assert figures["events"] == len(delays)
        for share in (1, 50, 99):
            assert figures[f"delay_p{share}_ms"] == delays[math.ceil(len(delays) * share / 100) - 1]
        assert (transactions["status"], "LogAppendTime" in transactions["advice"]) == ("warning", True)
        # Late ones are more than one in a hundred: they decide on the bound.
        bound = findings["fraud: bound"]["figures"]["bound_ms"]
        assert 2_000 <= figures["disorder_p99_ms"] <= bound <= 3_500
        assert findings["fraud: bound"]["figures"]["clock_skew_ms"] == 0
        assert findings[f"fraud: {names.labels}"]["figures"]["events"] > 10
