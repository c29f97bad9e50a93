"""Kafka from Python: emitted records by a plain producer, without a record at a time through the JVM."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from millrace.errors import MillraceError
from millrace.host.chunks import OutputChunk

#: How long Kafka may take for the last records of a batch, s.
_FLUSH_S = 60
#: How often a full queue is looked at, s.
_WAIT_S = 0.1

#: A Kafka record: key, value and headers; the client makes UTF-8 of text.
Record = tuple[str | bytes, bytes | None, list[tuple[str, str | bytes | None]]]
#: What the client takes for "any partition" and "now".
_ANY_PARTITION = -1
_NOW = 0


class DeliveryFailed(MillraceError):
    """Kafka did not take the records of a batch."""


class Delivery:
    """Sends records, and says at the end whether all of them have arrived.

    Args:
        client_options: Options of the Kafka client, ``bootstrap.servers`` included.

    Example:
        >>> delivery = Delivery({"bootstrap.servers": "localhost:9092"})  # doctest: +SKIP
        >>> delivery.send("decisions", [(b"card-1", b"{}", [])])  # doctest: +SKIP
        >>> delivery.flush()  # doctest: +SKIP
    """

    def __init__(self, client_options: Mapping[str, Any]) -> None:
        from confluent_kafka import Producer

        from millrace.kafka.admin import quiet_config

        self._failures: list[str] = []
        self._producer = Producer(
            {
                "enable.idempotence": True,
                "compression.type": "lz4",
                # Only while more comes: a flush waits for nothing. With 2 ms the broker is at work longer.
                "linger.ms": 10,
                # A call of Python for every record that arrived would cost as much as sending it.
                "delivery.report.only.error": True,
                **quiet_config(),
                **client_options,
            }
        )

    def send(self, topic: str, records: Iterable[Record]) -> None:
        """Hand records over; waits while the producer's queue is full."""
        produce, poll, delivered = self._producer.produce, self._producer.poll, self._delivered
        for key, value, headers in records:
            while True:
                try:
                    # By position: topic, value, key, partition, the callback by its older name and by its
                    # newer one, timestamp, headers. Names take the client a microsecond a record.
                    produce(topic, value, key, _ANY_PARTITION, delivered, None, _NOW, headers)
                    break
                except BufferError:
                    poll(_WAIT_S)

    def flush(self) -> None:
        """Wait until all records have arrived.

        Raises:
            DeliveryFailed: Some did not.
        """
        left = self._producer.flush(_FLUSH_S)
        failures, self._failures = self._failures, []
        if left or failures:
            why = failures[0] if failures else f"no answer within {_FLUSH_S} s"
            raise DeliveryFailed(f"Kafka did not take {left + len(failures)} records: {why}")

    def _delivered(self, error: Any, _message: Any) -> None:
        if error is not None:
            self._failures.append(str(error))


def event_records(rows: OutputChunk) -> Iterator[Record]:
    """Iterate over emitted records as Kafka has them: the process's key, the JSON, the identity as a header.

    >>> list(event_records(OutputChunk(["e1"], ["1:a"], [5], b"1", [b"{}"])))
    [('a', b'{}', [('event_id', 'e1')])]
    """
    for identity, key, payload in zip(rows.event_ids, rows.keys, rows.payloads, strict=True):
        # As topic_key(…), for every record.
        yield key.partition(":")[2], payload, [] if identity is None else [("event_id", identity)]


def topic_key(key: str) -> str:
    """Return a process's key as Kafka records have it; empty where a record has none.

    Args:
        key: As chunks have it (:func:`~millrace.host.groups.encode_key`).

    >>> topic_key("6:card-1"), topic_key("")
    ('card-1', '')
    """
    return key.partition(":")[2]
