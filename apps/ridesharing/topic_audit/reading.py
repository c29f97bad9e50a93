"""Reads the app's topics, once and up to where they end now, for an audit of what stands on them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from apps.ridesharing.events import CLOCKS, INPUTS
from apps.ridesharing.topic_audit.evidence import OUTPUTS, Evidence
from millrace.errors import UserError
from millrace.operations.sending import NoBroker, reachable
from millrace.time import ms

if TYPE_CHECKING:
    from apps.ridesharing.settings import RidesharingSettings

#: Records are read from so long before what is judged: where drivers were, and what they had to do, ms.
LOOK_BACK_MS: Final = 7_200_000
_QUIET_S: Final = 20.0
_ANSWER_S: Final = 10.0


def read_evidence(
    settings: RidesharingSettings, *, since_ms: int | None = None, margin_ms: int = 200,
    quiet_s: float = _QUIET_S,
) -> Evidence:  # fmt: skip
    """Read the app's topics from their beginning to where they end now.

    The app's own topics are read up to where they ended before those of its inputs are looked at, so that
    nothing is found whose reason is not.

    Args:
        settings: The app's settings: broker, topics, how it dispatches, how late events may be.
        since_ms: What is judged begins then: records from two hours before are read, UTC ms; ``None``: all.
        margin_ms: Records that came within so long may have been read in another order, ms.
        quiet_s: So long nothing may come before the end is reached, seconds.

    Returns:
        What was read, not closed yet.

    Raises:
        NoBroker: No answer, or none in time.
        UserError: A topic of an input does not exist; records that are needed have been deleted.
    """
    from confluent_kafka import Consumer, KafkaException

    from millrace.kafka.admin import client_config, topic_partitions

    kafka = settings.kafka
    bootstrap, options = reachable(kafka), dict(kafka.options)
    partitions = topic_partitions(bootstrap, options=options)
    names = {getattr(settings.topics, stream): stream for stream in (*OUTPUTS, *INPUTS)}
    missing = [name for name, stream in names.items() if name not in partitions and stream in CLOCKS]
    if missing:
        raise UserError(f"there is no topic {missing[0]} at {bootstrap}: is it the app's broker?")
    evidence = Evidence(
        settings.dispatch_config(),
        bound_ms=ms(settings.stream.out_of_orderness),
        margin_ms=margin_ms,
        future_ms=ms(settings.stream.max_future_skew),
    )
    consumer = Consumer(
        {
            **client_config(bootstrap, options),
            "group.id": "millrace-audit",  # demanded, and never joined
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    try:
        places = [(name, n) for name in names for n in range(partitions.get(name, 0))]
        begins, ends = _bounds(consumer, places, since_ms)
        _read(consumer, begins, ends, names, evidence, quiet_s)
    except KafkaException as error:
        raise NoBroker(f"topics cannot be read from {bootstrap}: {error.args[0].str()}") from None
    finally:
        consumer.close()
    return evidence


_Offsets = dict[tuple[str, int], int]


def _bounds(
    consumer: Any, places: Sequence[tuple[str, int]], since_ms: int | None
) -> tuple[_Offsets, _Offsets]:
    """Return where to begin and end in each partition, in their order; those without records are left out."""
    from confluent_kafka import TopicPartition

    begins, ends = _Offsets(), _Offsets()
    for place in places:
        low, high = consumer.get_watermark_offsets(TopicPartition(*place), timeout=_ANSWER_S)
        if low and since_ms is None:
            raise UserError(
                f"the first {low:,} records of {place[0]} are deleted: say with --since what is to be judged"
            )
        if high > low:
            begins[place], ends[place] = low, high
    if since_ms is not None and begins:
        from_ms = max(0, since_ms - LOOK_BACK_MS)
        asked = [TopicPartition(*place, from_ms) for place in begins]
        for found in consumer.offsets_for_times(asked, timeout=_ANSWER_S):
            place = (found.topic, found.partition)
            if 0 < begins[place] == found.offset:
                raise UserError(
                    f"records of {found.topic} from within two hours before --since may be deleted already: "
                    "give a later one"
                )
            # Behind the newest record there is none: an offset below zero stands for the end.
            begins[place] = found.offset if found.offset >= 0 else ends[place]
    return begins, ends


def _read(
    consumer: Any, begins: _Offsets, ends: _Offsets, names: Mapping[str, str], evidence: Evidence,
    quiet_s: float,
) -> None:  # fmt: skip
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
                    _take(evidence, names[place[0]], message)
                if message.offset() + 1 >= ends[place]:
                    left.discard(place)
            elif error.code() == KafkaError._PARTITION_EOF:
                # Offsets at the end may be those of transactions, which hold no record.
                left.discard(place)
            elif not error.retriable():
                raise NoBroker(f"{place[0]} cannot be read: {error.str()}")


def _take(evidence: Evidence, stream: str, message: Any) -> None:
    identity = dict(message.headers() or ()).get("event_id", b"").decode() if stream in OUTPUTS else ""
    key = (message.key() or b"").decode("utf-8", "replace")
    evidence.read(stream, key, message.value(), message.timestamp()[1], identity)
