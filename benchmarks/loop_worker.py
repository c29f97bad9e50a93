"""W1 as a plain Python loop over one partition, the floor to compare with: no durability, no late check.

Run as ``python -m millrace_apps.benchmarks.loop_worker BROKER IN OUT PARTITION END``; prints when it began,
when it ended and its CPU time (all in seconds) as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any, Final

import msgspec

from millrace_apps.benchmarks.w1_job import Purchase, Score, zscore

_CONSUMER: Final[dict[str, Any]] = {
    "group.id": "loop",
    "enable.auto.commit": False,
    "queued.min.messages": 500_000,
    # The default of a second is a wait each time the queue was full: half of the speed.
    "fetch.queue.backoff.ms": 5,
}
_PRODUCER: Final[dict[str, Any]] = {
    "linger.ms": 20,
    "batch.num.messages": 50_000,
    "batch.size": 524_288,
    "queue.buffering.max.messages": 1_000_000,
    "compression.type": "lz4",
}


def run(bootstrap: str, source: str, sink: str, partition: int, end: int) -> dict[str, float]:
    """Score all purchases of a partition.

    Args:
        bootstrap: The broker.
        source: Topic of purchases.
        sink: Topic of scores.
        partition: The partition.
        end: The offset after its last message.
    """
    from confluent_kafka import Consumer, Producer, TopicPartition

    from millrace.kafka.admin import client_config

    config = client_config(bootstrap)
    consumer = Consumer({**config, **_CONSUMER})
    consumer.assign([TopicPartition(source, partition, 0)])
    producer = Producer({**config, **_PRODUCER})
    state: dict[str, tuple[int, float, float]] = {}
    done, began, cpu = 0, 0.0, 0.0
    while done < end:
        messages = [m for m in consumer.consume(min(5_000, end - done), 1.0) if m.error() is None]
        if not began:
            began, cpu = time.time(), time.process_time()
        _handle(messages, state, producer, sink)
        done += len(messages)
    producer.flush(60)
    ended = time.time()
    consumer.close()
    return {"began": began, "ended": ended, "cpu": time.process_time() - cpu}


def _handle(
    messages: list[Any], state: dict[str, tuple[int, float, float]], producer: Any, sink: str
) -> None:
    decode, encode = _decoder.decode, _encoder.encode
    for message in messages:
        event = decode(message.value())
        cents = event.cents
        n, total, squares = state.get(event.card, (0, 0.0, 0.0))
        score = Score(event.id, n + 1, zscore(n, total, squares, cents))
        state[event.card] = (n + 1, total + cents, squares + cents * cents)
        while True:
            try:
                producer.produce(sink, encode(score), message.key())
                break
            except BufferError:
                producer.poll(0.01)
    producer.poll(0)


_decoder = msgspec.json.Decoder(Purchase)
_encoder = msgspec.json.Encoder()

if __name__ == "__main__":
    bootstrap, source, sink, partition, end = sys.argv[1:]
    print(json.dumps(run(bootstrap, source, sink, int(partition), int(end))))
