"""Kafka from Python: records by a plain producer, from the driver or from Spark's tasks.

Spark's own sink takes a record at a time through the JVM. Emissions come in chunks, which a task can take
apart and send where they are; the driver does the same for small batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from millrace.errors import MillraceError
from millrace.host.chunks import OutputChunk, decode_output

if TYPE_CHECKING:
    import pyarrow as pa

#: How long Kafka may take for the last records of a batch, s.
_FLUSH_S = 60
#: How often a full queue is looked at, s.
_WAIT_S = 0.1

#: A Kafka record: key, value and headers.
Record = tuple[bytes, bytes | None, list[tuple[str, str | bytes | None]]]


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
                "linger.ms": 2,
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
                    produce(topic, value, key, on_delivery=delivered, headers=headers)
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
    [(b'a', b'{}', [('event_id', b'e1')])]
    """
    for identity, key, payload in zip(rows.event_ids, rows.keys, rows.payloads, strict=True):
        headers: list[tuple[str, str | bytes | None]] = []
        if identity is not None:
            headers.append(("event_id", identity.encode()))
        yield key[key.index(":") + 1 :].encode(), payload, headers


#: Producers of a Spark worker by their options: it lives for many tasks, and a producer costs a connection.
_deliveries: dict[tuple[tuple[str, Any], ...], Delivery] = {}


@dataclass(frozen=True)
class TaskSender:
    """Sends outputs to their topics from Spark's tasks; pass it to ``mapInArrow``.

    The batches have the columns output, records and chunk; rows that somebody else still needs pass.

    Args:
        topics: Output → topic.
        passing: Outputs whose rows pass.
        client_options: Options of the Kafka client.
    """

    topics: dict[str, str]
    passing: frozenset[str]
    client_options: dict[str, Any] = field(repr=False)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Send the chunks of one partition; the task ends when all its records have arrived."""
        import pyarrow as pa

        delivery: Delivery | None = None
        for batch in batches:
            outputs = batch["output"].to_pylist()
            for output, chunk in zip(outputs, batch["chunk"], strict=True):
                if output in self.topics:
                    delivery = delivery or self._delivery()
                    delivery.send(self.topics[output], event_records(decode_output(chunk.as_py())))
            passing = pa.array([output in self.passing for output in outputs], pa.bool_())
            yield batch.filter(passing)
        if delivery is not None:
            try:
                delivery.flush()
            except DeliveryFailed:
                # What is left in its queue belongs to a batch that failed.
                _deliveries.pop(self._identity(), None)
                raise

    def _identity(self) -> tuple[tuple[str, Any], ...]:
        return tuple(sorted(self.client_options.items()))

    def _delivery(self) -> Delivery:
        found = _deliveries.get(self._identity())
        if found is None:
            found = _deliveries[self._identity()] = Delivery(self.client_options)
        return found
