"""The worlds on a real broker: what the ledger says is what the topics have, also after a crash."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import pytest
from typer.testing import CliRunner

from millrace.dead_letters import VERSION_HEADER, reason_of
from millrace.errors import UserError
from millrace.kafka.admin import end_offsets
from millrace.testing.kafka import TopicFactory, consume_all
from millrace.testing.world_ledger import ReadLedger, read_world_ledger
from millrace_apps.fraud.contracts.events import Transaction
from millrace_apps.generators import domains
from millrace_apps.generators.cli import app
from millrace_apps.generators.engine.disturb import Disturbances, partition_of
from millrace_apps.generators.engine.message import Generated
from millrace_apps.generators.engine.simulated import Domain
from millrace_apps.generators.engine.world import deliver_domain
from millrace_apps.generators.resume import bookmark_path
from tests.e2e.fraud_runs import MILLRACE, run_to_end, table
from tests.e2e.fraud_stream import FraudTopics

PARTITIONS = 3
START = ["--start", "2026-11-01T00:00:00Z", "--seed", "5"]
FAULTS = [
    "--late", "0.02", "--lateness", "5s", "--duplicates", "0.02", "--malformed", "0.02", "--loss", "0.02",
    "--drift", "0.02", "--unknown-version", "0.02", "--clock-skew", "0.05",
]  # fmt: skip
#: Topic, partition, key, value and headers.
Record: TypeAlias = tuple[str, int, bytes, bytes, tuple[tuple[str, bytes], ...]]


def topics_of(domain: Domain, topic_factory: TopicFactory) -> dict[str, str]:
    """Make a topic per stream."""
    return {name: topic_factory(PARTITIONS, prefix=f"{domain.name}-{name}") for name in domain.streams}


def flags_of(topics: dict[str, str]) -> list[str]:
    return [flag for stream, topic in topics.items() for flag in ("--topic", f"{stream}={topic}")]


def as_run(ledger: ReadLedger) -> list[Generated]:
    """Make the messages of a run again, from what its ledger says about it."""
    domain = domains.load(ledger.run.domain)
    parameters = dict(ledger.run.parameters)
    wrong = Disturbances(**parameters.pop("disturbances"))
    until_ms = parameters.pop("until_ms")
    return list(deliver_domain(domain, domain.profile(**parameters), wrong, until_ms))


def expected_records(messages: Sequence[Generated], topics: dict[str, str]) -> list[Record]:
    return [
        (topics[m.stream], partition_of(m.key, PARTITIONS), m.key, m.value, tuple(m.headers))
        for m in messages
        if not m.dropped
    ]


def records(bootstrap: str, topics: Sequence[str]) -> list[Record]:
    """Return what topics have, each partition in its order."""

    def as_record(topic: str, message: Any) -> Record:
        return topic, message.partition(), message.key(), message.value(), tuple(message.headers())

    return [as_record(topic, message) for topic in topics for message in consume_all(bootstrap, topic)]


def of_partition(found: Sequence[Record]) -> dict[tuple[str, int], list[tuple[bytes, bytes]]]:
    """Return values with their ids by partition, in order."""
    by_place: dict[tuple[str, int], list[tuple[bytes, bytes]]] = {}
    for topic, partition, _, value, headers in found:
        by_place.setdefault((topic, partition), []).append((dict(headers)["ce_id"], value))
    return by_place


@pytest.mark.parametrize("name", domains.names())
def test_topics_have_exactly_what_the_ledger_says(
    name: str, kafka_bootstrap: str, topic_factory: TopicFactory, tmp_path: Path
) -> None:
    topics, path = topics_of(domains.load(name), topic_factory), tmp_path / "ledger.jsonl"
    where = ["--bootstrap", kafka_bootstrap, *flags_of(topics), "--ledger", str(path), "--quiet"]
    own = (
        ["--customers", "60", "--terminals", "120", "--days", "12", "--radius", "25"]
        if name == "handbook"
        else []
    )
    flags = [name, "--rate", "max", "--events", "1000", *START, *FAULTS, *own, *where]
    done = CliRunner().invoke(app, flags, catch_exceptions=False)
    assert (done.exit_code, done.output) == (0, "")

    ledger = read_world_ledger(path)
    expected = expected_records(as_run(ledger), topics)
    found = records(kafka_bootstrap, list(topics.values()))
    assert ledger.summary.sent == len(found) == len(expected)
    # In every partition in the order of sending, byte for byte, under the partition of Java's clients.
    assert of_partition(found) == of_partition(expected)
    assert Counter(found) == Counter(expected)
    kinds = {fault.kind for fault in ledger.faults}
    assert kinds >= {"late", "duplicate", "malformed", "lost", "drifted", "unknown_version"}


# -- killed ----------------------------------------------------------------------------------------


def kill_and_resume(command: Sequence[str], reached: Callable[[], int], points: Sequence[int]) -> int:
    """Run a command to its end; kill it whenever so many messages have arrived.

    Returns:
        How often it was killed while it was still at work.
    """
    kills = 0
    for point in [*points, None]:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        try:
            deadline = time.monotonic() + 90
            while point is not None and process.poll() is None and reached() < point:
                assert time.monotonic() < deadline, f"never reached {point}"
                time.sleep(0.01)
            if point is not None and process.poll() is None:
                process.send_signal(signal.SIGKILL)
                kills += 1
                process.wait()
                continue
            _, said = process.communicate(timeout=90)
            assert process.returncode == 0, said.decode()
            return kills
        finally:
            process.kill()
            process.wait()
    return kills


def killed_at(seed: int, events: int, times: int) -> list[int]:
    """Return random points of a run."""
    numbers = random.Random(seed)
    return sorted(numbers.randrange(events // 20, events * 9 // 10) for _ in range(times))


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.matrix) for seed in range(2, 6))])
def test_a_world_that_is_killed_goes_on_in_kafka_without_a_gap_or_a_repeat(
    seed: int, kafka_bootstrap: str, topic_factory: TopicFactory, tmp_path: Path
) -> None:
    topics = topics_of(domains.load("orders"), topic_factory)
    (topic,), path, events = topics.values(), tmp_path / "ledger.jsonl", 9_000
    flags = [
        "--rate",
        "6000",
        "--speed",
        "60",
        "--events",
        str(events),
        *START,
        *FAULTS,
        "--resume",
        "--quiet",
    ]
    where = ["--bootstrap", kafka_bootstrap, *flags_of(topics), "--ledger", str(path)]

    def reached() -> int:
        try:
            return sum(end_offsets(kafka_bootstrap, topic).values())
        except UserError:  # a topic that has just been made has no leader for a moment
            return 0

    command = [*MILLRACE, "generate", "orders", *flags, *where]
    assert kill_and_resume(command, reached, killed_at(seed, events, 2 if seed == 1 else 4)) >= 2
    ledger = read_world_ledger(path)
    expected = expected_records(as_run(ledger), topics)
    found = records(kafka_bootstrap, [topic])
    assert Counter(found) == Counter(expected)
    assert of_partition(found) == of_partition(expected)
    assert ledger.summary.sent == len(expected)
    assert not bookmark_path(path).exists()


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.matrix) for seed in range(2, 6))])
def test_a_world_that_is_killed_goes_on_in_files_with_the_same_bytes(seed: int, tmp_path: Path) -> None:
    out, path, events = tmp_path / "out", tmp_path / "ledger.jsonl", 9_000
    flags = ["--rate", "6000", "--speed", "6", "--events", str(events), *START, *FAULTS]

    def target(folder: Path) -> list[str]:
        return ["--to", "jsonl", "--out", str(folder / "out"), "--ledger", str(folder / "ledger.jsonl")]

    def reached() -> int:
        return sum(f.read_bytes().count(b"\n") for f in out.glob("*.jsonl"))

    command = [*MILLRACE, "generate", "iot", *flags, "--resume", "--quiet"]
    points = killed_at(seed, events, 2 if seed == 1 else 4)
    assert kill_and_resume([*command, *target(tmp_path)], reached, points) >= 2
    whole = tmp_path / "whole"
    whole.mkdir()
    straight = ["iot", "--rate", "max", "--event-rate", "1000", *flags[4:], "--quiet", *target(whole)]
    assert CliRunner().invoke(app, straight, catch_exceptions=False).exit_code == 0
    for name in sorted(file.name for file in (whole / "out").iterdir()):
        assert (out / name).read_bytes() == (whole / "out" / name).read_bytes(), name
    assert path.read_bytes() == (whole / "ledger.jsonl").read_bytes()


# -- much trouble ----------------------------------------------------------------------------------


@pytest.mark.matrix
def test_the_fraud_app_finds_every_fault_of_the_chaos_profile(
    kafka_bootstrap: str, topic_factory: TopicFactory, tmp_path: Path
) -> None:
    """The transactions of payments have all that the app's contract asks for, and more."""
    topics, path = FraudTopics.make(topic_factory), tmp_path / "ledger.jsonl"
    names = {"transactions": topics.transactions, "labels": topic_factory(1, prefix="labels")}
    flags = [
        "--rate",
        "max",
        "--event-rate",
        "100",
        "--profile",
        "chaos",
        "--events",
        "12000",
        "--cards",
        "500",
    ]
    where = ["--bootstrap", kafka_bootstrap, *flags_of(names), "--ledger", str(path), "--quiet"]
    assert (
        CliRunner().invoke(app, ["payments", *flags, *START, *where], catch_exceptions=False).exit_code == 0
    )
    run_to_end(
        kafka_bootstrap,
        topics,
        tmp_path / "app",
        ["stream.max_offsets_per_trigger=3000", "stream.out_of_orderness=15 seconds"],
    )
    ledger = read_world_ledger(path)
    sent = [m for m in as_run(ledger) if not m.dropped and m.stream == "transactions"]
    root = tmp_path / "app"
    letters = Counter((_ce_id(row), row["reason"]) for row in table(root, "dead_letters"))
    ids = Counter(row["transaction_id"] for row in table(root, "transactions"))
    late = Counter(row["event"]["transaction_id"] for row in table(root, "late"))
    _check_letters(sent, letters)
    valid = Counter(m.transaction_id for m in sent if _broken(m) is None)
    # Nothing is lost and nothing is made up: every valid message is a row, late, or a repeat.
    repeats = Counter({name: count for (name, reason), count in letters.items() if reason == "duplicate"})
    assert ids + late + repeats == valid
    assert max(ids.values()) == 1
    # A clock that is ahead drags the watermark along, so others come late, too.
    assert len(late.keys() & {fault.event_id for fault in ledger.faults if fault.kind == "late"}) > 100


def _check_letters(sent: Sequence[Generated], letters: Counter[tuple[str, str]]) -> None:
    broken = Counter((m.transaction_id, reason) for m in sent if (reason := _broken(m)) is not None)
    assert Counter({of: n for of, n in letters.items() if of[1] != "duplicate"}) == broken
    reasons = Counter(reason for _, reason in letters)
    assert reasons.keys() == {"malformed", "schema", "range", "unknown_version", "duplicate"}
    assert min(reasons.values()) > 10


def _broken(message: Generated) -> str | None:
    """Return why the app must put a message aside: by its own contract, not by the generator's word."""
    if dict(message.headers)[VERSION_HEADER] != b"1":
        return "unknown_version"
    try:
        msgspec.json.decode(message.value, type=Transaction)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return reason_of(error)
    return None


def _ce_id(row: dict[str, Any]) -> str:
    headers: dict[str, str] = msgspec.json.decode(row["headers"])
    return headers["ce_id"]
