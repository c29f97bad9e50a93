"""Starting, stopping and refusing to start: what an operator sees, in exit codes and single lines."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from millrace.kafka.broker import EmbeddedBroker
from millrace.kafka.launch import free_port
from millrace.testing.kafka import TopicFactory
from millrace_apps.generators.engine import Generated
from millrace_apps.generators.engine.message import Fault
from tests.e2e.fraud_runs import (
    MILLRACE,
    Command,
    check_tables,
    committed_batches,
    run_arguments,
    table,
)
from tests.e2e.fraud_stream import PARTITIONS, FraudTopics, ordered_stream

TOPICS = FraudTopics("in", "control", "alerts", "dlq")
BROKEN = b'{"broken'


def only_line(command: Command) -> str:
    """Return the one line that a command has printed as its error."""
    lines = command.err.splitlines()
    assert len(lines) == 1, command.err
    return lines[0]


def refused(arguments: list[str], folder: Path) -> str:
    """Run a command that must end with exit code 2, and return its one line."""
    with Command([*MILLRACE, "run", *arguments], folder) as command:
        assert command.wait() == 2, f"{command.out}\n{command.err}"
        command.check_nothing_left()
        return only_line(command)


def test_a_broker_that_is_down_is_said_in_one_line_before_spark_starts(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    began = time.monotonic()
    refused(run_arguments(address, TOPICS, tmp_path / "app", ["stream.nothing=1"]), tmp_path)
    # What a command takes on this machine, at this hour, to say anything.
    start_s = time.monotonic() - began
    began = time.monotonic()
    line = refused(run_arguments(address, TOPICS, tmp_path / "app"), tmp_path)
    assert time.monotonic() - began < 10 + 3 * start_s  # a broker has ten seconds to answer
    assert address in line
    assert not (tmp_path / "app" / "logs").exists(), "Spark was started"


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("stream.trigger_intervall=1s", "stream.trigger_intervall"),
        ("stream.max_dead_letter_ratio=2", "stream.max_dead_letter_ratio"),
        ("spark.driver_memory=much", "spark.driver_memory"),
        ("storage.root=s3a://bucket/app", "storage.root"),
        ("topics.partitions=0", "topics.partitions"),
    ],
)
def test_a_bad_setting_is_named_in_one_line(tmp_path: Path, setting: str, said: str) -> None:
    arguments = run_arguments("127.0.0.1:9", TOPICS, tmp_path / "app", [setting])
    assert said in refused(arguments, tmp_path)


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.matrix)])
def test_a_signal_while_spark_starts_ends_it_and_leaves_nothing(
    kafka_bootstrap: str, topic_factory: TopicFactory, tmp_path: Path, number: signal.Signals
) -> None:
    topics = FraudTopics.make(topic_factory)
    with Command(
        [*MILLRACE, "run", *run_arguments(kafka_bootstrap, topics, tmp_path / "app")], tmp_path
    ) as command:
        command.until(lambda: any(p.name() == "java" for p in command.processes()), "a JVM starts")
        command.signal(number)
        assert command.wait() == 0, command.err
        command.check_nothing_left()
        assert command.err == ""
    assert not (tmp_path / "app" / "checkpoint").exists()


@pytest.mark.matrix
def test_a_checkpoint_outlives_stops_refusals_a_bad_deploy_and_a_broker_that_goes_away(
    tmp_path: Path,
) -> None:
    """One stream, one checkpoint, four starts of Spark.

    ::

        start 1   |--- batches ---x SIGTERM            a second start meanwhile is refused
        start 2   refused: other key groups
        start 3   |--- x 1                             mostly broken events: nothing of them is written
        start 4   |--- goes on --- broker dies, is back --- goes on ---x SIGINT
    """
    with EmbeddedBroker(log_dir=tmp_path / "logs") as broker:
        life = _Life(broker, tmp_path)
        life.send_first()
        life.stopped_by_sigterm_while_it_has_work()
        life.refused_with_other_key_groups()
        life.stopped_by_broken_events()
        life.goes_on_without_its_broker_for_a_while()
        check_tables(life.stream, life.topics, life.root)


class _Life:
    def __init__(self, broker: EmbeddedBroker, folder: Path) -> None:
        self.broker, self.folder, self.root = broker, folder, folder / "app"
        self.topics = TOPICS
        # What is sent to a running query spans less than the two hours by which its partitions may differ.
        ordered = ordered_stream(3_000, seed=4, cards=50, hours=9)
        at = 2_400
        broken = [_broken(number, ordered.messages[at]) for number in range(4_000)]
        messages = [*ordered.messages[:at], *broken, *ordered.messages[at:]]
        self.stream = replace(ordered, messages=messages)
        #: Messages that are sent at first, and how many decisions they make.
        self.first = at + len(broken)
        self.decided = sum(message.fault is None for message in messages[: self.first])

    def start(self, *settings: str) -> Command:
        arguments = run_arguments(self.broker.bootstrap, self.topics, self.root, settings)
        return Command([*MILLRACE, "run", *arguments], self.folder)

    def send_first(self) -> None:
        from millrace.kafka.admin import SENT_TIME, TopicSpec, create_topics

        partitions = {self.topics.transactions: PARTITIONS}
        specs = {n: TopicSpec(partitions.get(n, 1), SENT_TIME) for n in self.topics}
        create_topics(self.broker.bootstrap, specs)
        self.stream.send(self.broker.bootstrap, self.topics, last=self.first)

    def stopped_by_sigterm_while_it_has_work(self) -> None:
        with self.start("stream.max_offsets_per_trigger=150") as command:
            command.until_said("batch 0:")
            self.refused_while_it_runs(command.pid)
            command.until_said("batch 2:")
            command.signal(signal.SIGTERM)
            assert command.wait() == 0, command.err
            command.check_nothing_left()
            assert command.err == ""
        reported = [int(number) for number in re.findall(r"^batch (\d+):", command.out, re.MULTILINE)]
        assert committed_batches(self.root) == reported, "every batch that was begun is committed"
        assert not self.has_decided(self.decided)(), "there must be work left when it is stopped"

    def refused_while_it_runs(self, pid: int) -> None:
        with self.start() as second:
            assert second.wait() == 2
            line = only_line(second)
        assert f"pid {pid} " in line
        assert str(self.root) in line

    def refused_with_other_key_groups(self) -> None:
        with self.start("spark.key_groups=32") as command:
            assert command.wait() == 2, command.out
            command.check_nothing_left()
            assert "key_groups was 64, is now 32" in only_line(command)

    def stopped_by_broken_events(self) -> None:
        with self.start() as command:
            assert command.wait() == 1, command.out
            command.check_nothing_left()
            line = only_line(command)
        assert re.search(r"batch \d+: 4,\d{3} of \d,\d{3} records are dead letters", line)
        assert "stream.max_dead_letter_ratio" in line
        written = [row["offset"] for row in table(self.root, "dead_letters") if row["value"] == BROKEN]
        assert written == []

    def goes_on_without_its_broker_for_a_while(self) -> None:
        with self.start("stream.max_dead_letter_ratio=1") as command:
            command.until(self.has_decided(self.decided), "it goes on where it was stopped")
            self.broker.kill()
            self.broker.restart()
            self.stream.send(self.broker.bootstrap, self.topics, first=self.first)
            command.until(self.has_decided(len(self.stream.decisions)), "it goes on with the broker")
            command.signal(signal.SIGINT)
            assert command.wait() == 0, command.err
            command.check_nothing_left()
            assert command.err == ""

    def has_decided(self, number: int) -> Callable[[], bool]:
        return lambda: len(table(self.root, "transactions")) >= number


def _broken(number: int, like: Generated) -> Generated:
    made = Generated(
        f"broken-{number}",
        f"card-{number}".encode(),
        BROKEN,
        [],
        like.event_time_ms,
        "",
        0,
        fault=Fault("malformed", "dead_letter", reason="malformed"),
    )
    made.due_ms = like.due_ms
    return made
