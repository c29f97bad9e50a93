"""Bounded reads of topics, from their beginning or a time on up to where they end now: for audits."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from millrace.errors import UserError
from millrace.operations.sending import NoBroker, reachable

if TYPE_CHECKING:
    from millrace.runtime.settings import KafkaSettings

__all__ = ["Stored", "read_on", "read_topics"]

_ANSWER_S: Final = 10.0
_Offsets = dict[tuple[str, int], int]


class Stored(NamedTuple):
    """A record as it stands on a topic.

    Attributes:
        topic: The topic.
        key: Its key, as text; empty: it has none.
        value: What it says; ``None``: nothing.
        at_ms: Its time: when the broker took it or, by the topic's setting, that of its sender, UTC ms.
        event_id: Identity that the library gives what an app says; empty: it has none.
    """

    topic: str
    key: str
    value: bytes | None
    at_ms: int
    event_id: str


def read_topics(
    kafka: KafkaSettings,
    topics: Sequence[str],
    take: Callable[[Stored], None],
    *,
    from_ms: int | None = None,
    needed: Collection[str] = (),
    whole: Collection[str] = (),
    quiet_s: float = 20.0,
) -> None:
    """Read all records of topics up to where these end now; what stood later in the list may end later.

    An effect whose topic stands before that of its cause is so never read without its cause. Of a partition
    records come in order, and of several in any.

    Args:
        kafka: The broker and how to reach it.
        topics: Their names; one that does not exist is empty.
        take: Called with each record, committed ones only.
        from_ms: Records of this time and later, UTC ms; ``None``: all.
        needed: Those that must exist.
        whole: Those of which all records are read that are left, of any time: what they say holds on.
        quiet_s: So long nothing may come before the end is reached, seconds.

    Raises:
        NoBroker: No answer, or none in time.
        UserError: A topic that is needed does not exist, or records that are asked for may be deleted.
    """
    from millrace.kafka.admin import topic_partitions

    bootstrap = reachable(kafka)
    partitions = topic_partitions(bootstrap, options=kafka.options)
    missing = [name for name in topics if name in needed and name not in partitions]
    if missing:
        raise UserError(f"there is no topic {missing[0]} at {bootstrap}: is it the app's broker?")
    with _consumer(kafka) as consumer:
        places = [(name, n) for name in topics for n in range(partitions.get(name, 0))]
        begins, ends = _bounds(consumer, places, from_ms, whole)
        _read(consumer, begins, ends, take, quiet_s)


def read_on(
    kafka: KafkaSettings,
    topic: str,
    begins: Mapping[int, int],
    take: Callable[[Stored], None],
    ends: Mapping[int, int] | None = None,
    *,
    quiet_s: float = 20.0,
) -> dict[int, int]:
    """Read a topic from where it was read up to; return where that is now: partition → offset.

    Args:
        kafka: The broker and how to reach it.
        topic: Its name; one that does not exist is empty.
        begins: Partition → offset to begin at; a partition that is left out is read from its begin, and so is
            one of which these records are deleted.
        take: Called with each record, committed ones only.
        ends: Partition → offset to end at; ``None``: where it ends now.
        quiet_s: So long nothing may come before the end is reached, seconds.

    Raises:
        NoBroker: No answer, or none in time.
    """
    from confluent_kafka import TopicPartition

    from millrace.kafka.admin import topic_partitions

    count = topic_partitions(reachable(kafka), options=kafka.options).get(topic, 0)
    first, last = _Offsets(), _Offsets()
    with _consumer(kafka) as consumer:
        for n in range(count):
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, n), timeout=_ANSWER_S)
            first[topic, n] = max(low, begins.get(n, 0))
            last[topic, n] = high if ends is None else min(high, ends.get(n, 0))
        _read(consumer, first, last, take, quiet_s)
    return {n: end for (_, n), end in last.items()}


@contextmanager
def _consumer(kafka: KafkaSettings) -> Iterator[Any]:
    """Give a consumer that joins no group.

    Raises:
        NoBroker: What the block reads cannot be read.
    """
    from confluent_kafka import Consumer, KafkaException

    from millrace.kafka.admin import client_config

    bootstrap = reachable(kafka)
    consumer = Consumer(
        {
            **client_config(bootstrap, dict(kafka.options)),
            "group.id": "millrace-audit",  # demanded, and never joined
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    try:
        yield consumer
    except KafkaException as error:
        raise NoBroker(f"topics cannot be read from {bootstrap}: {error.args[0].str()}") from None
    finally:
        consumer.close()


def _bounds(
    consumer: Any, places: Sequence[tuple[str, int]], from_ms: int | None, whole: Collection[str]
) -> tuple[_Offsets, _Offsets]:
    """Return where to begin and end in each partition, in their order; those without records are left out."""
    from confluent_kafka import TopicPartition

    begins, ends = _Offsets(), _Offsets()
    for place in places:
        low, high = consumer.get_watermark_offsets(TopicPartition(*place), timeout=_ANSWER_S)
        if low and from_ms is None and place[0] not in whole:
            raise UserError(
                f"the first {low:,} records of {place[0]} are deleted: say with --since what is to be judged"
            )
        if high > low:
            begins[place], ends[place] = low, high
    later = [place for place in begins if place[0] not in whole]
    if from_ms is not None and later:
        asked = [TopicPartition(*place, max(0, from_ms)) for place in later]
        for found in consumer.offsets_for_times(asked, timeout=_ANSWER_S):
            place = (found.topic, found.partition)
            if 0 < begins[place] == found.offset:
                raise UserError(
                    f"the first {found.offset:,} records of {found.topic} are deleted, and may have been "
                    "needed: give a later --since"
                )
            # Behind the newest record there is none: an offset below zero stands for the end.
            begins[place] = found.offset if found.offset >= 0 else ends[place]
    return begins, ends


def _read(
    consumer: Any, begins: _Offsets, ends: _Offsets, take: Callable[[Stored], None], quiet_s: float
) -> None:
    from confluent_kafka import KafkaError, TopicPartition

    left = {place for place, begin in begins.items() if begin < ends[place]}
    consumer.assign([TopicPartition(*place, begins[place]) for place in sorted(left)])
    deadline = time.monotonic() + quiet_s
    while left:
        messages = consumer.consume(1_000, timeout=0.5)
        if messages:
            deadline = time.monotonic() + quiet_s
        elif time.monotonic() > deadline:
            name, number = min(left)
            raise NoBroker(f"nothing came of {name}, partition {number}, for {quiet_s:g} s: read it again")
        for message in messages:
            place, error = (message.topic(), message.partition()), message.error()
            if error is None:
                if message.offset() < ends[place]:
                    take(_stored(message))
                if message.offset() + 1 >= ends[place]:
                    left.discard(place)
            elif error.code() == KafkaError._PARTITION_EOF:
                # Offsets at the end may be those of transactions, which hold no record.
                left.discard(place)
            elif not error.retriable():
                raise NoBroker(f"{place[0]} cannot be read: {error.str()}")


def _stored(message: Any) -> Stored:
    identity = dict(message.headers() or ()).get("event_id") or b""
    key = (message.key() or b"").decode("utf-8", "replace")
    return Stored(
        message.topic(), key, message.value(), message.timestamp()[1], identity.decode("utf-8", "replace")
    )
