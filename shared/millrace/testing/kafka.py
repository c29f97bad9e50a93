"""pytest fixtures and helpers for tests on a real Kafka broker.

List it as a plugin in a ``conftest.py``: ``pytest_plugins = ["millrace.testing.kafka"]``.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from millrace.kafka.admin import (
    SENT_TIME,
    TopicSpec,
    client_config,
    create_topics,
    delete_topics,
    end_offsets,
)
from millrace.kafka.broker import broker_or_embedded


@dataclass(frozen=True)
class Record:
    """A message to produce.

    Args:
        value: Payload; None is a tombstone.
        key: Key, if any.
        headers: Headers, in order.
        partition: Partition; by default the key's.
        timestamp_ms: Kafka time in milliseconds since the epoch; by default the clock's.
    """

    value: bytes | str | None
    key: bytes | str | None = None
    headers: list[tuple[str, bytes]] = field(default_factory=list)
    partition: int | None = None
    timestamp_ms: int | None = None


#: A record, or only its value, or its key and its value.
Producible: TypeAlias = Record | bytes | str | tuple[bytes | str | None, bytes | str | None]


class TopicFactory(Protocol):
    """Creates a topic of a name of its own, whose records keep the time they are given; returns the name."""

    def __call__(
        self, partitions: int = 1, *, prefix: str = "test", config: Mapping[str, str] | None = None
    ) -> str:
        """Create a topic."""


@pytest.fixture(scope="session")
def kafka_bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a broker for the whole session: ``KAFKA_BOOTSTRAP_SERVERS``, or an embedded one."""
    with broker_or_embedded(log_dir=tmp_path_factory.mktemp("kafka-logs")) as bootstrap:
        yield bootstrap


@pytest.fixture
def topic_factory(kafka_bootstrap: str) -> Iterator[TopicFactory]:
    """Make topics that no other test knows, and delete them after the test."""
    made: list[str] = []

    def make(partitions: int = 1, *, prefix: str = "test", config: Mapping[str, str] | None = None) -> str:
        name = f"{prefix}-{uuid.uuid4().hex[:12]}"
        create_topics(kafka_bootstrap, {name: TopicSpec(partitions, {**SENT_TIME, **(config or {})})})
        made.append(name)
        return name

    yield make
    delete_topics(kafka_bootstrap, made)


def produce(
    bootstrap: str,
    topic: str,
    messages: Iterable[Producible],
    *,
    options: Mapping[str, str] | None = None,
    timeout_s: float = 60.0,
) -> int:
    """Send messages, in order per partition, and return when the broker has them all.

    Args:
        bootstrap: The broker.
        topic: The topic.
        messages: What to send.
        options: Further client options.
        timeout_s: Seconds to wait at most.

    Returns:
        Their number.

    Raises:
        KafkaException: The broker refused one.
        TimeoutError: It has not confirmed all in time.
    """
    refused: list[KafkaError] = []

    def confirmed(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            refused.append(error)

    producer = Producer(client_config(bootstrap, options) | {"enable.idempotence": True, "linger.ms": 5})
    count = 0
    for message in messages:
        while True:
            try:
                producer.produce(topic, on_delivery=confirmed, **_arguments(message))
                break
            except BufferError:
                producer.poll(0.05)
        count += 1
        producer.poll(0)
    left = producer.flush(timeout_s)
    if refused:
        raise KafkaException(refused[0])
    if left:
        raise TimeoutError(f"{left} of {count} messages to {topic} were not confirmed within {timeout_s:g} s")
    return count


def consume_all(
    bootstrap: str,
    topic: str,
    *,
    count: int | None = None,
    options: Mapping[str, str] | None = None,
    timeout_s: float = 30.0,
) -> list[Message]:
    """Return a topic's messages from the beginning, committed ones only.

    Args:
        bootstrap: The broker.
        topic: The topic.
        count: Return as soon as there are that many, and wait for them; by default everything up to the
            offsets at which the topic ends now.
        options: Further client options.
        timeout_s: Seconds to wait at most.

    Raises:
        TimeoutError: They have not come in time.
    """
    ends = end_offsets(bootstrap, topic, options=options)
    consumer = Consumer(
        client_config(bootstrap, options)
        | {"group.id": f"test-{uuid.uuid4().hex}", "enable.auto.commit": False, "enable.partition.eof": True}
    )
    try:
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in ends])
        return _read(consumer, topic, ends, count, timeout_s)
    finally:
        consumer.close()


def _read(
    consumer: Consumer, topic: str, ends: Mapping[int, int], count: int | None, timeout_s: float
) -> list[Message]:
    deadline = time.monotonic() + timeout_s
    got: list[Message] = []
    reached = dict.fromkeys(ends, 0)
    while not _enough(got, count, reached, ends):
        if time.monotonic() > deadline:
            wanted = count if count is not None else "more"
            raise TimeoutError(f"{topic}: {len(got)} messages within {timeout_s:g} s, {wanted} were expected")
        for message in consumer.consume(1000, timeout=0.1):
            partition, offset, error = (
                int(message.partition() or 0),
                int(message.offset() or 0),
                message.error(),
            )
            if error is None and (count is not None or offset < ends[partition]):
                got.append(message)
            elif error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            # The end of a partition is an event of its own: transaction markers have offsets, too.
            reached[partition] = offset + (error is None)
    return got


def _enough(
    got: list[Message], count: int | None, reached: Mapping[int, int], ends: Mapping[int, int]
) -> bool:
    if count is not None:
        return len(got) >= count
    return all(reached[partition] >= end for partition, end in ends.items())


def _arguments(message: Producible) -> dict[str, Any]:
    if isinstance(message, tuple):
        return {"key": message[0], "value": message[1]}
    if not isinstance(message, Record):
        return {"value": message}
    arguments: dict[str, Any] = {"key": message.key, "value": message.value, "headers": message.headers}
    if message.partition is not None:
        arguments["partition"] = message.partition
    if message.timestamp_ms is not None:
        arguments["timestamp"] = message.timestamp_ms
    return arguments
