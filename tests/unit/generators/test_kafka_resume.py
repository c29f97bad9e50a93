"""Several topics, and a killed run gone on with, against librdkafka's in-process broker."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from millrace.errors import UserError
from millrace.kafka.admin import client_config
from millrace_apps.generators import resume as resuming
from millrace_apps.generators.command import Destination, execute, found_bookmark
from millrace_apps.generators.engine import Generated
from millrace_apps.generators.engine.world import deliver_domain
from millrace_apps.generators.kafka_position import TopicEnds
from millrace_apps.generators.resume import load
from millrace_apps.generators.sinks import KafkaSink
from tests.unit.generators.test_resume import AT_ONCE, Crash, job
from tests.unit.generators.world import METERS, MeterProfile

TOPICS = [spec.topic for spec in METERS.streams.values()]
PARTITIONS = 4


class MockBroker:
    """An in-process broker with the topics of the meters; it lives as long as its client."""

    def __init__(self) -> None:
        self._client = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "mock", "log_level": 0})
        for topic in TOPICS:
            # Asking for a topic creates it, here with four partitions.
            metadata = self._client.list_topics(topic, timeout=10)
        self.bootstrap = ",".join(f"{b.host}:{b.port}" for b in metadata.brokers.values())

    def read(self, count: int) -> Counter[tuple[Any, ...]]:
        consumer = Consumer({**client_config(self.bootstrap), "group.id": "test"})
        where = [(topic, number) for topic in TOPICS for number in range(PARTITIONS)]
        try:
            ends = [consumer.get_watermark_offsets(TopicPartition(*place))[1] for place in where]
            assert sum(ends) == count
            consumer.assign([TopicPartition(*place, 0) for place in where])
            found: Counter[tuple[Any, ...]] = Counter()
            deadline = time.monotonic() + 30
            while found.total() < count:
                assert time.monotonic() < deadline, f"{found.total()} of {count} messages"
                for m in consumer.consume(1_000, timeout=0.1):
                    found[m.topic(), m.key(), m.value(), tuple(m.headers() or ())] += 1
            return found
        finally:
            consumer.close()


@pytest.fixture
def broker() -> Iterator[MockBroker]:
    mock = MockBroker()
    yield mock
    del mock


def meters() -> list[Generated]:
    return list(deliver_domain(METERS, MeterProfile(seed=3, events=600, duplicates=0.1, malformed=0.1)))


def identities(messages: list[Generated]) -> Counter[tuple[Any, ...]]:
    return Counter((m.topic, m.key, m.value, tuple(m.headers)) for m in messages)


def test_every_message_goes_to_its_topic(broker: MockBroker) -> None:
    sent = meters()
    with KafkaSink(broker.bootstrap, TOPICS[0], topics=TOPICS) as sink:
        for message in sent:
            sink.write(message)
        sink.flush()
    assert broker.read(len(sent)) == identities(sent)


@pytest.mark.parametrize(("marked", "reached"), [(0, 1), (200, 350), (200, 200), (0, 600)])
def test_what_was_sent_after_the_bookmark_is_not_sent_again(
    marked: int, reached: int, broker: MockBroker
) -> None:
    """The bookmark is at ``marked``; ``reached`` messages were delivered when the run was killed."""
    sent = meters()
    with KafkaSink(broker.bootstrap, TOPICS[0], topics=TOPICS) as sink:
        for message in sent[:marked]:
            sink.write(message)
        position = sink.position()
        for message in sent[marked:reached]:
            sink.write(message)
        sink.flush()
    assert position is not None
    assert sum(position.values()) == marked
    with KafkaSink(broker.bootstrap, TOPICS[0], topics=TOPICS, after=position) as sink:
        for message in sent[marked:]:
            sink.write(message)
        sink.flush()
    assert broker.read(len(sent)) == identities(sent)


def test_a_topic_that_was_made_anew_is_refused(broker: MockBroker) -> None:
    with pytest.raises(UserError, match=r"meters\.reports/0 ends at 0, but 9 messages were sent"):
        KafkaSink(broker.bootstrap, TOPICS[0], topics=TOPICS, after={"meters.reports/0": 9})


@pytest.mark.parametrize(("period_s", "marked"), [(0.0, 256 * 3), (1_000.0, 0)])
def test_a_crashed_run_that_is_gone_on_with_leaves_every_message_once(
    period_s: float, marked: int, broker: MockBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a bookmark after every look, and with none but the one at the start."""
    monkeypatch.setattr(resuming, "PERIOD_S", period_s)
    topics = {name: spec.topic for name, spec in METERS.streams.items()}
    destination = Destination("kafka", broker.bootstrap, topics, PARTITIONS, None)
    ledger = tmp_path / "ledger.jsonl"

    def generate(crash_at: int | None) -> None:
        bookmark = found_bookmark(ledger, "kafka", resume=True)
        execute(job(crash_at), AT_ONCE, destination, ledger_path=ledger, quiet=True, bookmark=bookmark)

    for crash_at in (333, 1_111):
        with pytest.raises(Crash):
            generate(crash_at)
    mark = load(ledger)
    assert mark is not None
    assert mark.messages >= marked
    generate(None)
    expected = [message for message in job().stream if not message.dropped]
    assert broker.read(len(expected)) == identities(expected)


class Electing:
    """A consumer of a broker that answers with errors first."""

    def __init__(self, *errors: int) -> None:
        self._errors = list(errors)

    def list_topics(self, topic: str, timeout: float) -> Any:
        return SimpleNamespace(topics={topic: SimpleNamespace(partitions={0: None})})

    def get_watermark_offsets(self, where: Any, timeout: float) -> tuple[int, int]:
        if self._errors:
            raise KafkaException(KafkaError(self._errors.pop(0)))
        return 0, 7


@pytest.mark.parametrize(
    ("errors", "ends"),
    [
        ([KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE], {"t/0": 7}),
        ([KafkaError._TRANSPORT], None),
    ],
)
def test_a_partition_without_a_leader_is_asked_again_and_a_broker_that_is_away_is_not(
    errors: list[int], ends: dict[str, int] | None
) -> None:
    """A topic that has just been made has no leader; a run must know where it begins."""
    asked = TopicEnds({"bootstrap.servers": "127.0.0.1:1", "log_level": 0}, ["t"])
    asked.close()
    asked._consumer = Electing(*errors)  # type: ignore[assignment]
    assert asked.ends() == ends
