"""What tests of commands stand on: a broker in this process, and what its topics hold."""

from __future__ import annotations

import time

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from tests.unit.millrace.dead_letters.test_kafka import MockBroker

__all__ = ["MockBroker", "messages_of", "records_of"]


def records_of(bootstrap: str, topic: str, partition: int = 0) -> list[tuple[bytes | None, bytes | None]]:
    """Return key and value of the messages of a partition, in order."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "look", "log_level": 0})
    try:
        place = TopicPartition(topic, partition, OFFSET_BEGINNING)
        _, high = consumer.get_watermark_offsets(place, timeout=10)
        consumer.assign([place])
        found: list[tuple[bytes | None, bytes | None]] = []
        deadline = time.monotonic() + 20
        while len(found) < high:
            assert time.monotonic() < deadline, f"{len(found)} of {high} messages"
            found += [(m.key(), m.value()) for m in consumer.consume(100, timeout=0.1)]
        return found
    finally:
        consumer.close()


def messages_of(bootstrap: str, topic: str, partition: int = 0) -> list[bytes]:
    """Return the values of the messages of a partition, in order."""
    return [value or b"" for _, value in records_of(bootstrap, topic, partition)]
