"""Topic checks of `millrace doctor`: whose times records carry, and how late they are."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from millrace.runtime.arrivals import Arrived, Delays, fit, measure
from millrace.runtime.doctor import Finding, Status
from millrace.time import ms
from millrace.time.durations import format_duration

if TYPE_CHECKING:
    from millrace.runtime.apps import App, Topic
    from millrace.runtime.settings import AppSettings

#: Newest records of a topic that are looked at.
SAMPLE: Final = 2_000
#: Clocks that are set by NTP are not further apart.
_NEAR_MS: Final = 100
_TIMEOUT_S: Final = 10.0
_POLL_S: Final = 0.2
_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode


@dataclass
class Sample:
    """The newest records of a topic.

    Attributes:
        partitions: Those that tell their event time, by partition, in their order.
        undated: How many do not.
        failure: Why they could not all be read.
    """

    partitions: dict[int, list[Arrived]] = field(default_factory=dict)
    undated: int = 0
    failure: str = ""


class Reader(Protocol):
    """The part of a Kafka consumer that is needed; tests bring their own."""

    def get_watermark_offsets(self, partition: Any, timeout: float) -> tuple[int, int]:
        """Return the first offset of a partition and the one after its last."""

    def assign(self, partitions: list[Any]) -> None:
        """Read these partitions from these offsets on."""

    def consume(self, num_messages: int, timeout: float) -> list[Any]:
        """Return up to so many messages; wait at most so long, seconds."""

    def close(self) -> None:
        """Leave the broker."""


def app_findings(
    app: App, settings: AppSettings, *, timeout_s: float = _TIMEOUT_S, only_if_used: bool = False
) -> list[Finding]:
    """Return what is found in the topics that an app reads.

    Args:
        app: The app.
        settings: Its settings; without a broker nothing is found.
        timeout_s: Seconds to read at most.
        only_if_used: Nothing is to be said of an app of whose topics none exists.

    Raises:
        UserError: No broker answers, or its options cannot be used.
    """
    from confluent_kafka import Consumer

    from millrace.kafka.admin import client_config, topic_configs, topic_partitions

    kafka = settings.kafka
    if kafka.bootstrap is None:
        return []
    partitions = topic_partitions(kafka.bootstrap, options=kafka.options, timeout_s=timeout_s)
    topics = [topic for topic in app.topics(settings).reads if topic.name in partitions]
    if not topics:
        found = "none of its topics exists yet: `millrace run` makes them"
        return [] if only_if_used else [Finding(f"{app.name}: topics", "ok", found)]
    configs = topic_configs(kafka.bootstrap, [t.name for t in topics], options=kafka.options)
    config = {
        **client_config(kafka.bootstrap, kafka.options),
        "group.id": "millrace-doctor",  # demanded, and never joined
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        # Where the records before have been deleted meanwhile.
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
    }
    fields = {topic.name: topic.event_time for topic in topics if topic.event_time is not None}
    samples = newest(lambda: Consumer(config), {t: partitions[t] for t in fields}, fields, timeout_s)
    measured = {name: measure(sample.partitions.values()) for name, sample in samples.items()}
    findings = [
        topic_finding(
            app.name,
            topic,
            configs.get(topic.name, {}),
            samples.get(topic.name),
            measured.get(topic.name),
            future_ms=ms(settings.stream.max_future_skew),
            bootstrap=kafka.bootstrap,
        )
        for topic in topics
    ]
    clocks = [of for topic in topics if topic.clock and (of := measured.get(topic.name)) is not None]
    return [*findings, *bound_finding(app.name, clocks, ms(settings.stream.out_of_orderness))]


def newest(
    connect: Callable[[], Reader],
    partitions: Mapping[str, int],
    fields: Mapping[str, str],
    timeout_s: float,
    records: int = SAMPLE,
) -> dict[str, Sample]:
    """Return the newest records of topics.

    Args:
        connect: Makes the consumer.
        partitions: Topic → number of its partitions.
        fields: Topic → field of its events with their time.
        timeout_s: Seconds at most; what has not come by then is left out.
        records: So many of each topic, as many of each of its partitions.
    """
    from confluent_kafka import KafkaError, KafkaException, TopicPartition

    samples = {topic: Sample() for topic in partitions}
    deadline = time.monotonic() + timeout_s
    consumer = connect()
    try:
        left: dict[tuple[str, int], int] = {}
        begin: dict[tuple[str, int], int] = {}
        for topic, count in partitions.items():
            for number in range(count):
                asked, wait_s = TopicPartition(topic, number), max(0.1, deadline - time.monotonic())
                try:
                    low, end = consumer.get_watermark_offsets(asked, timeout=wait_s)
                except KafkaException as failure:
                    samples[topic].failure = failure.args[0].str()
                    break
                if end > low:
                    left[topic, number] = end
                    begin[topic, number] = max(low, end - max(1, records // count))
        consumer.assign([TopicPartition(*place, offset) for place, offset in begin.items()])
        while left and time.monotonic() < deadline:
            for message in consumer.consume(1_000, timeout=_POLL_S):
                place = message.topic(), message.partition()
                error = message.error()
                if error is None:
                    if message.offset() < left.get(place, 0):
                        _take(samples[place[0]], message, fields[place[0]])
                    if message.offset() + 1 >= left.get(place, 0):
                        left.pop(place, None)
                elif error.code() == KafkaError._PARTITION_EOF:
                    left.pop(place, None)
                elif place in left and not error.retriable():
                    samples[place[0]].failure = error.str()
                    del left[place]
        for topic, _ in left:
            samples[topic].failure = samples[topic].failure or f"not all were read within {timeout_s:g} s"
    finally:
        consumer.close()
    return samples


def _take(sample: Sample, message: Any, name: str) -> None:
    event_ms = event_time_of(message.value(), name)
    if event_ms is None:
        sample.undated += 1
    else:
        arrived = Arrived(message.timestamp()[1], event_ms)
        sample.partitions.setdefault(message.partition(), []).append(arrived)


def event_time_of(value: bytes | None, name: str) -> int | None:
    """Return the time that a JSON event has in a field, UTC ms; ``None`` if it cannot be told.

    >>> event_time_of(b'{"at": 5}', "at"), event_time_of(b'{"at": "1970-01-01T00:00:01Z"}', "at")
    (5, 1000)
    """
    try:
        found = _decode(value or b"").get(name)
        if isinstance(found, str):
            when = datetime.fromisoformat(found)
            found = round((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError, OverflowError):
        return None
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def topic_finding(
    app: str,
    topic: Topic,
    config: Mapping[str, str],
    sample: Sample | None,
    delays: Delays | None,
    *,
    future_ms: int,
    bootstrap: str = "HOST:PORT",
) -> Finding:
    """Return what is said of a topic.

    Args:
        app: Name of the app.
        topic: The topic, as the app describes it.
        config: Its settings, as far as they are known.
        sample: Its newest records; ``None``: its events have no time.
        delays: What they say.
        future_ms: The app's ``stream.max_future_skew``, ms.
        bootstrap: The broker.
    """
    from millrace.kafka.admin import APPEND_TIME, SENT_TIME, TIMESTAMP_TYPE

    broken: list[str] = []
    wrong: list[str] = []
    advice: list[str] = []
    sent = SENT_TIME[TIMESTAMP_TYPE]
    if config.get(TIMESTAMP_TYPE) == sent != topic.config.get(TIMESTAMP_TYPE):
        wrong.append(f"records carry their senders' times ({TIMESTAMP_TYPE}={sent})")
        advice.append(
            f"unless arrivals are simulated, run: kafka-configs.sh --bootstrap-server {bootstrap} --alter "
            f"--entity-type topics --entity-name {topic.name} "
            f"--add-config {TIMESTAMP_TYPE}={APPEND_TIME[TIMESTAMP_TYPE]}"
        )
    if topic.event_time is not None and "compact" in config.get("cleanup.policy", ""):
        broken.append("compacted (cleanup.policy=compact), so what is behind is not all that came")
        advice.append("events need a topic with cleanup.policy=delete")
    if sample is not None and sample.failure:
        wrong.append(sample.failure)
        advice.append("look again, or ask who runs the broker")
    if sample is not None and sample.undated:
        said = f"{sample.undated:,} of the newest records have no {topic.event_time}"
        if delays is None:
            wrong.append(said)
            advice.append("the app's topic names the field of the event time (event_time)")
        else:
            advice.append(f"{said}: dead letters")
    figures: dict[str, int] = {}
    found = "no records yet" if sample is not None else "exists"
    if delays is not None:
        found, figures = _said(delays), _figures(delays)
        if delays.unknown:
            wrong.append(f"{delays.unknown:,} records have no time of arrival")
            advice.append("their clocks are not judged; let the broker write the time")
        if delays.delay_ms is not None and (ahead := -delays.delay_ms.p1) > _NEAR_MS:
            wrong.append(f"events are ahead of their arrival, by {_about(ahead)} (1 in 100 by more)")
            advice.append(
                f"set the senders' clocks, or the broker's: beyond {format_duration(future_ms)} "
                "(stream.max_future_skew) such events are dead letters, below they wait"
            )
    status: Status = "broken" if broken else "warning" if wrong else "ok"
    return Finding(
        f"{app}: {topic.name}", status, "; ".join([*broken, *wrong, found]), "; ".join(advice), figures
    )


def _said(delays: Delays) -> str:
    text = f"{delays.events:,} newest records"
    if delays.delay_ms is not None:
        p1, p50, p99 = map(_about, delays.delay_ms)
        text += f": arrival - event time p1 {p1}, p50 {p50}, p99 {p99}"
    text += f"; out of order p99 {_about(delays.disorder_ms)}"
    return f"{text}; they came faster than they happened" if delays.in_bulk else text


def _figures(delays: Delays) -> dict[str, int]:
    known = {} if delays.delay_ms is None else delays.delay_ms._asdict()
    return {
        "events": delays.events,
        **{f"delay_{name}_ms": value for name, value in known.items()},
        "disorder_p99_ms": delays.disorder_ms,
    }


def bound_finding(app: str, clocks: Sequence[Delays], bound_ms: int) -> list[Finding]:
    """Return whether an app's bound fits its inputs; nothing where none has records.

    Args:
        app: Name of the app.
        clocks: What the inputs say that tell what time it is.
        bound_ms: Its ``stream.out_of_orderness``, ms.
    """
    needed = fit(clocks)
    if needed is None:
        return []
    fits = f"stream.out_of_orderness={format_duration(needed.bound_ms)}"
    skew = f"stream.clock_skew={_signed(needed.skew_ms)}"
    figures = {"bound_ms": needed.bound_ms, "clock_skew_ms": needed.skew_ms}
    has = f"stream.out_of_orderness is {format_duration(bound_ms)}"
    found = f"{has}; {fits} with {skew} fits all but 1 in 100 of these records"
    return [
        Finding(f"{app}: bound", "ok", found, "", figures)
        if bound_ms >= needed.bound_ms
        else Finding(f"{app}: bound", "warning", found, f"set {fits} and {skew}", figures)
    ]


def _signed(duration_ms: int) -> str:
    return f"{'-' if duration_ms < 0 else ''}{format_duration(abs(duration_ms))}"


def _about(duration_ms: int) -> str:
    """Return a duration in its two largest units.

    >>> _about(-3_723_004), _about(250)
    ('-1h 2m', '250ms')
    """
    return " ".join(_signed(duration_ms).split()[:2])


def sent_times_warning(topics: Sequence[Topic], configs: Mapping[str, Mapping[str, str]]) -> str | None:
    """Return what is to be said of topics whose records carry their senders' times, unless they are to.

    Args:
        topics: Topics that exist, as the app describes them.
        configs: Topic → its settings, as far as they are known.
    """
    from millrace.kafka.admin import SENT_TIME, TIMESTAMP_TYPE

    carried = SENT_TIME[TIMESTAMP_TYPE]
    sent = [
        t.name for t in topics
        if configs.get(t.name, {}).get(TIMESTAMP_TYPE) == carried != t.config.get(TIMESTAMP_TYPE)
    ]  # fmt: skip
    if not sent:
        return None
    return (
        f"records of {', '.join(sent)} carry their senders' times ({TIMESTAMP_TYPE}={carried}), not those of "
        "their arrival: clocks that are wrong go unnoticed; see 'Times of arrival' in docs/operations.md"
    )
