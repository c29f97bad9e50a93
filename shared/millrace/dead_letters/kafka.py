"""The two ends of a replay in Kafka: events where they stand, and the producer that sends them again."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from millrace.dead_letters.letters import Position
from millrace.dead_letters.replay import Original, Outgoing, Undelivered
from millrace.errors import MillraceError

#: A wanted event further ahead than this is sought, not read up to.
_SEEK_FROM: Final = 1_000
_DELIVERY_S: Final = 60.0


class BrokerSilent(MillraceError):
    """A broker answered no more."""


class KafkaOriginals:
    """Reads single events by their positions.

    Args:
        bootstrap: ``host:port``, several with commas.
        options: Further client options, security among them.
        timeout_s: How long to wait for an answer, seconds.
    """

    def __init__(
        self, bootstrap: str, options: Mapping[str, str] | None = None, *, timeout_s: float = 30.0
    ) -> None:
        from confluent_kafka import Consumer

        from millrace.kafka.admin import client_config

        self._timeout_s = timeout_s
        self._consumer: Any = Consumer(
            {
                **client_config(bootstrap, options),
                "group.id": "millrace-dlq",  # demanded, and never joined: partitions are assigned by hand
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
            }
        )

    def fetch(self, positions: Sequence[Position]) -> dict[Position, Original]:
        """Return the events that are still there.

        Args:
            positions: Where they stand.

        Raises:
            BrokerSilent: No answer in time.
        """
        wanted: dict[tuple[str, int], set[int]] = {}
        for one in positions:
            wanted.setdefault((one.topic, one.partition), set()).add(one.offset)
        found: dict[Position, Original] = {}
        for (topic, partition), offsets in sorted(wanted.items()):
            self._read(topic, partition, sorted(offsets), found)
        return found

    def close(self) -> None:
        """Close the connection."""
        self._consumer.close()

    def _read(self, topic: str, partition: int, offsets: list[int], found: dict[Position, Original]) -> None:
        from confluent_kafka import KafkaException, TopicPartition

        try:
            low, high = self._consumer.get_watermark_offsets(
                TopicPartition(topic, partition), timeout=self._timeout_s
            )
        except KafkaException as error:
            if error.args[0].code() in _gone():
                return
            raise BrokerSilent(f"cannot look up events of {topic}: {error.args[0].str()}") from error
        left = [offset for offset in offsets if low <= offset < high]
        if not left:
            return
        self._consumer.assign([TopicPartition(topic, partition, left[0])])
        try:
            self._consume(topic, partition, left, found)
        finally:
            self._consumer.unassign()

    def _consume(self, topic: str, partition: int, left: list[int], found: dict[Position, Original]) -> None:
        from confluent_kafka import KafkaError, TopicPartition

        deadline = time.monotonic() + self._timeout_s
        at = left[0]
        while left:
            if left[0] - at > _SEEK_FROM:
                self._consumer.assign([TopicPartition(topic, partition, left[0])])
            message = self._consumer.poll(0.2)
            if message is None:
                if time.monotonic() > deadline:
                    raise BrokerSilent(f"no answer from {topic} within {self._timeout_s:.0f} s")
                continue
            if message.error() is not None:
                if message.error().code() == KafkaError._PARTITION_EOF:
                    return
                raise BrokerSilent(f"cannot look up events of {topic}: {message.error().str()}")
            deadline = time.monotonic() + self._timeout_s
            at = message.offset()
            if at == left[0]:
                original = Original(message.key(), message.value(), message.headers() or [])
                found[Position(topic, partition, at)] = original
            while left and left[0] <= at:
                left.pop(0)


class KafkaSender:
    """Sends records and waits until a broker has them.

    Args:
        bootstrap: ``host:port``, several with commas.
        options: Further client options, security among them.
        timeout_s: How long a record may take, seconds.
    """

    def __init__(
        self, bootstrap: str, options: Mapping[str, str] | None = None, *, timeout_s: float = _DELIVERY_S
    ) -> None:
        from confluent_kafka import Producer

        from millrace.kafka.admin import client_config

        self._timeout_s = timeout_s
        self._producer: Any = Producer(
            {
                "enable.idempotence": True,
                "compression.type": "lz4",
                "linger.ms": 5,
                # As the Java clients, for records that go to another topic than they came by.
                "partitioner": "murmur2_random",
                "message.timeout.ms": int(timeout_s * 1000),
                **client_config(bootstrap, options),
            }
        )

    def send(self, records: Sequence[Outgoing]) -> dict[str, Undelivered]:
        """Send records and wait for their delivery.

        Args:
            records: The records.

        Returns:
            Identity of a dead letter → why it was not delivered.
        """
        pending = {record.letter_id for record in records}
        failed: dict[str, Undelivered] = {}
        for record in records:
            self._produce(record, pending, failed)
        self._producer.flush(self._timeout_s + 5)
        return failed | dict.fromkeys(pending, Undelivered("no answer from the broker", in_doubt=True))

    def _produce(self, record: Outgoing, pending: set[str], failed: dict[str, Undelivered]) -> None:
        from confluent_kafka import KafkaException

        def delivered(error: Any, _message: Any) -> None:
            pending.discard(record.letter_id)
            if error is not None:
                failed[record.letter_id] = Undelivered(error.str(), error.code() in _unanswered())

        where = {} if record.partition is None else {"partition": record.partition}
        while True:
            try:
                self._producer.produce(
                    record.topic, record.value, record.key, headers=list(record.headers),
                    on_delivery=delivered, **where,
                )  # fmt: skip
                return
            except BufferError:
                self._producer.poll(0.1)
            except KafkaException as error:
                delivered(error.args[0], None)
                return


def _unanswered() -> tuple[int, ...]:
    """Return the errors after which a broker may have a record all the same."""
    from confluent_kafka import KafkaError

    return (KafkaError._MSG_TIMED_OUT, KafkaError._TIMED_OUT, KafkaError.REQUEST_TIMED_OUT)


def _gone() -> tuple[int, ...]:
    """Return the errors that say that a topic or partition is not there any more."""
    from confluent_kafka import KafkaError

    return (KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART)
