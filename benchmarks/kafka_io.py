"""Filling a topic in bulk or at a steady rate, and reading results back with the time they were there.

``python -m millrace_apps.benchmarks.kafka_io {…}`` is the producer of a steady rate, in a process of its own.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import msgspec
import numpy as np

from millrace.errors import MillraceError
from millrace_apps.benchmarks.digest import digest
from millrace_apps.benchmarks.inputs import Events, Ints, as_json, card_name, make_events
from millrace_apps.benchmarks.oracles import scores

_QUIET_S = 30.0
#: For the client the time at which a message is handed over.
_NOW = 0
#: Events that are made ready at a time.
_PART = 20_000


class NotDelivered(MillraceError):
    """The broker did not take or give what was expected of it."""


class Result(msgspec.Struct, gc=False):
    """A result as it stands in the topic."""

    id: int
    n: int
    z: float


class Results(NamedTuple):
    """The results of a topic; repeats of an id, which a crash may leave, are taken once.

    Attributes:
        id: Event.
        n: The card's events with it.
        z: Its score.
        at: When the broker had it, ms.
        repeats: How many were left out.
        contradictions: How many of those said something else.
    """

    id: Ints
    n: Ints
    z: Any
    at: Ints
    repeats: int
    contradictions: int

    def is_correct(self, events: Events) -> bool:
        """Say whether these are the scores of these events, each of them and no other."""
        return self.contradictions == 0 and digest(self.id, self.n, self.z) == digest(*scores(events))


def _producer(bootstrap: str, linger_ms: int) -> Any:
    from confluent_kafka import Producer

    from millrace.kafka.admin import client_config

    return Producer(
        {
            **client_config(bootstrap),
            "linger.ms": linger_ms,
            "batch.num.messages": 50_000,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 1_000_000,
            "compression.type": "lz4",
        }
    )


def preload(bootstrap: str, topic: str, events: Events, first_id: int = 0) -> None:
    """Write the events to a topic by card, in order, as fast as the broker takes them.

    Each arrives when it happens: where the topic keeps senders' times, records carry those of their events.

    Raises:
        NotDelivered: It did not take all of them.
    """
    producer = _producer(bootstrap, 50)
    columns = zip(events.card.tolist(), events.at.tolist(), as_json(events, first_id), strict=True)
    for card, at, value in columns:
        _produce(producer, topic, card_name(card), value, at)
    if left := producer.flush(120):
        raise NotDelivered(f"the broker did not take {left} events")


def _produce(producer: Any, topic: str, key: str, value: bytes, at_ms: int) -> None:
    while True:
        try:
            producer.produce(topic, value, key, timestamp=at_ms)
            return
        except BufferError:
            producer.poll(0.05)


@dataclass(frozen=True)
class Pace:
    """Events at a steady rate.

    Attributes:
        bootstrap: The broker.
        topic: Where to.
        rate: Events per second.
        rows: Events.
        keys: Cards.
        exponent: Of Zipf's law; 0: all cards alike.
        first_id: Id of the first event.
        seed: Of everything that is random.
        start_ms: When the first is due, by the clock of this machine.
    """

    bootstrap: str
    topic: str
    rate: int
    rows: int
    keys: int
    exponent: float = 1.1
    first_id: int = 0
    seed: int = 5
    start_ms: int = 0

    def events(self) -> Events:
        """Return the events; each has the time at which it is due."""
        made = make_events(self.rows, self.keys, exponent=self.exponent, seed=self.seed)
        return replace(made, at=self.start_ms + np.arange(self.rows, dtype=np.int64) * 1_000 // self.rate)


def produce_paced(pace: Pace, stop: threading.Event) -> int:
    """Send each event when it is due; one that is sent late keeps its time, so that waiting counts.

    Args:
        pace: The events.
        stop: Ends it before the last of them.

    Returns:
        How many were sent.

    Raises:
        NotDelivered: The broker did not take all of them.
    """
    producer = _producer(pace.bootstrap, 2)
    sent = 0
    for at, card, value in _due(pace):
        while (wait := at / 1_000 - time.time()) > 0 and not stop.is_set():
            producer.poll(0)
            time.sleep(min(wait, 0.005))
        if stop.is_set():
            break
        _produce(producer, pace.topic, card_name(card), value, _NOW)
        sent += 1
    if left := producer.flush(60):
        raise NotDelivered(f"the broker did not take {left} events")
    return sent


def _due(pace: Pace) -> Iterator[tuple[int, int, bytes]]:
    """Yield the events with their time and card, a part after the other: there may be millions."""
    events = pace.events()
    for start in range(0, len(events), _PART):
        part = events.part(start, start + _PART)
        yield from zip(
            part.at.tolist(), part.card.tolist(), as_json(part, pace.first_id + start), strict=True
        )


def read_values(bootstrap: str, topic: str) -> Iterator[tuple[bytes, int]]:
    """Yield value and time (ms) of every message that a topic has now.

    Raises:
        NotDelivered: The broker stops giving them.
    """
    from confluent_kafka import Consumer, TopicPartition

    from millrace.kafka.admin import client_config, end_offsets

    ends = {p: end for p, end in end_offsets(bootstrap, topic).items() if end}
    consumer = Consumer({**client_config(bootstrap), "group.id": "bench", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, p, 0) for p in ends])
    left, deadline = sum(ends.values()), time.monotonic() + _QUIET_S
    try:
        while left > 0:
            for message in consumer.consume(min(left, 10_000), 1.0):
                if message.error() is None and (message.offset() or 0) < ends[message.partition() or 0]:
                    left -= 1
                    deadline = time.monotonic() + _QUIET_S
                    yield message.value() or b"", message.timestamp()[1]
            if time.monotonic() > deadline:
                raise NotDelivered(f"{left} messages of {topic} cannot be read")
    finally:
        consumer.close()


def read_results(bootstrap: str, topic: str) -> Results:
    """Return all results that a topic has now."""
    return results_of(read_values(bootstrap, topic))


def results_of(messages: Iterable[tuple[bytes, int]]) -> Results:
    """Return results from messages (value, time in ms)."""
    decode = msgspec.json.Decoder(Result).decode
    first: dict[int, tuple[int, float, int]] = {}
    repeats = contradictions = 0
    for value, at in messages:
        result = decode(value)
        if (known := first.get(result.id)) is None:
            first[result.id] = (result.n, result.z, at)
        else:
            repeats += 1
            contradictions += known[:2] != (result.n, result.z)
    kept = list(first.values())
    return Results(
        np.array(list(first), dtype=np.int64),
        np.array([k[0] for k in kept], dtype=np.int64),
        np.array([k[1] for k in kept], dtype=np.float64),
        np.array([k[2] for k in kept], dtype=np.int64),
        repeats,
        contradictions,
    )


def paced_command(pace: Pace) -> list[str]:
    """Return the command that runs :func:`produce_paced` in a process of its own; it prints how many."""
    return [sys.executable, "-m", "millrace_apps.benchmarks.kafka_io", json.dumps(asdict(pace))]


def main(pace: Pace) -> None:
    """Send events until the last, or SIGTERM, and print how many were sent."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    print(produce_paced(pace, stop), flush=True)


if __name__ == "__main__":
    main(Pace(**json.loads(sys.argv[1])))
