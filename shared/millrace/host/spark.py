"""The Spark host: a process over key groups inside ``transformWithState``.

:func:`keyed` takes any streaming DataFrame and gives it a key and an event time
(:mod:`millrace.host.spark_streams`); :meth:`KeyedStream.process` runs a :class:`~millrace.KeyedProcess` over
it and returns its outputs as DataFrames (:mod:`millrace.host.spark_processed`). The plan is: find key, time
and key group in workers that pack events (:mod:`millrace.host.packing`) → shuffle by key group → one Python
call per group and batch, whose outputs come as chunks (:mod:`millrace.host.chunks`). Spark is told of no
watermark and keeps no timers: the groups keep the clock themselves (:mod:`millrace.time.clock`). Event
decoding and all meaning are in the worker, in :mod:`millrace.host.runner`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from millrace.contracts.formats import Format
from millrace.dead_letters import VERSION_HEADER
from millrace.host.packing import Masking
from millrace.host.spark_input import KAFKA_PLACE, Keying, KeyPart, Plan
from millrace.host.spark_processed import EmittedStream, ProcessedStream
from millrace.host.spark_streams import ConnectedStreams, KeyedStream, connect
from millrace.time.clock import Follow, skew_ms
from millrace.time.durations import to_ms
from millrace.topology.keys import KeyingError

__all__ = [
    "ConnectedStreams", "EmittedStream", "KeyedStream", "KeyingError", "ProcessedStream", "connect", "keyed",
]  # fmt: skip

#: A key: one part of it, or several.
Key = KeyPart | Sequence[KeyPart]


def keyed(
    df: DataFrame,
    *,
    by: Key | Mapping[str, Key],
    event_time: str | Mapping[str, str],
    tag: str | Column | None = None,
    value: str | None = None,
    out_of_orderness: str | int | timedelta = 0,
    source_id: str | Column | None = None,
    headers: str | Column | None = None,
    keep_headers: Literal["all", "unreadable"] = "all",
    control: Column | None = None,
    control_time: str | Column | None = None,
    arrived_at: str | Column | None = None,
    max_future_skew: str | int | timedelta | None = None,
    record_key: str | Column | None = None,
    versions: Sequence[str] | None = None,
    key_groups: int = 64,
    source: str | Column | None = None,
    offset: str | Column | None = None,
    clock: bool | Mapping[str, bool] = True,
    clock_skew: str | int | timedelta = 0,
    max_offsets: int | Mapping[str, int] | None = None,
    full_batches: int = 2,
    follow: Follow = "furthest",
    idle_after: str | int | timedelta | None = None,
    plan: Plan = "chain",
    stations: int = 1,
    locality: str | None = None,
    masking: Masking | None = None,
    format: Format | Mapping[str, Format] = "json",
    registry: str | Mapping[str, Any] | None = None,
) -> KeyedStream:
    """Give a DataFrame a key and an event time.

    Args:
        df: A streaming DataFrame.
        by: Name of the key field, or names of several: columns of ``df``, or fields of the JSON in
            ``value``. A part of the key may be an expression instead, whose text is taken. With ``tag``:
            input → its key.
        event_time: Name of the event-time field: a timestamp, or UTC milliseconds as an integer. With
            ``tag`` it may be told by input.
        tag: Of a stream that brings all inputs of a process: the name of the input that a row is of. A row
            of no input, which is no control event either, becomes a dead letter. It needs ``value``.
        value: Name of a binary or string column with JSON events, decoded (and validated against the
            event type) in the worker; ``None``: the events are the columns themselves.
        out_of_orderness: How far events of a source may come out of order, ms, ``timedelta`` or text
            (``"10 seconds"``); the watermark stays that far behind the newest event.
        source_id: A column that identifies an event in its source, the root of output identities;
            ``KAFKA_PLACE``: Kafka's topic, partition and offset do, with colons between, without a column
            that has this text for every event.
        headers: A column (Kafka's headers, or any other) that goes with an event into the dead letters.
        keep_headers: ``all``: of every event; ``unreadable``: only of those whose key or time cannot be
            read. Making text of the headers of every event costs about a quarter of the JVM's work.
        control: True for the rows that are control events: they go to every key group and do not
            move the watermark. The rows come through ``value``.
        control_time: From which event time on a control event holds, in processes in event-time order: a
            field of its JSON (ms, or ISO 8601), or a column (a timestamp, or ms). Without it, and where the
            field is null, it holds from the batch that brings it. While a backlog is read, control events
            hold time back as events do; one that comes behind the watermark holds at once, and is counted.
        arrived_at: When an event was received (a timestamp); unless given Kafka's ``timestamp``, where the
            stream has Kafka's columns. A device whose clock is ahead of that takes nobody's time with it.
        max_future_skew: Events whose time is more than this after ``arrived_at`` go to the dead
            letters before the watermark sees them.
        record_key: The Kafka key, a binary column: with ``arrived_at`` it goes into the dead letters
            wherever the headers do.
        versions: What the Kafka header ``schema_version`` may say; an event of another version goes to the
            dead letters undecoded. One without the header is read. Needs Kafka's ``headers``.
        key_groups: Number of key groups; fixed for the life of a checkpoint. Spark's shuffle partitions are
            at most as many: a warning in the log says where they are too many.
        source: A column that names the source of an event, within which events are in order but for
            ``out_of_orderness``; unless given Kafka's topic and partition, else all is one source.
        offset: A column with the event's place in its source; unless given Kafka's.
        clock: Whether the events move the watermark (and hold it back while a backlog is read): ``False``
            for what is dated in the past, labels and comments say. With ``tag`` it may be told by input.
        clock_skew: How much after its arrival an event may claim to have happened and still be believed
            by the watermark; may be negative; ``"off"``: all are believed, as simulated worlds want.
        max_offsets: The most that one batch takes, Kafka's ``maxOffsetsPerTrigger``; unless given as the
            stream's plan says. Of a stream with several readers: the topics of each (with commas between) →
            its limit; those that subscribe topics by name need not be told. A batch that takes half of it
            holds the watermark back by what is behind.
        full_batches: So many such batches in a row hold it back together; more for Kafka topics
            in which transactions are often aborted.
        follow: ``furthest``: the watermark follows the source that is ahead; ``slowest``: the one that is
            behind, for sources whose delays differ by more than ``out_of_orderness``.
        idle_after: With ``slowest``: how much later than a source's newest arrival another's must be for
            the first one to be waited for no longer.
        plan: ``chain``: each process is an operator with a shuffle in front, in as many partitions as
            there are shuffle partitions, for much data; ``station``: all processes run in one task, one after
            the other, for little delay. A station needs ``spark.sql.shuffle.partitions`` to be 1 when its
            query starts, and a checkpoint is of one plan.
        stations: How many stations there are; ``spark.sql.shuffle.partitions`` must be as many, and several
            need a ``locality``.
        locality: The field that the keys of all processes begin with (plant, tenant, shop): with several
            stations, what is of one locality is in one of them.
        masking: What replaces card numbers, or whatever must not be kept, in events, headers and keys of
            records where they are read: :class:`millrace.privacy.records.CardNumbers`. Needs ``value``.
        format: What is in ``value``: ``json``, or with a ``registry`` also ``avro`` or ``protobuf``, in the
            wire format of Confluent's schema registry. With ``tag`` it may be told by input: what is not told
            is JSON and nothing else, as control events are. What can be read goes on as JSON; what cannot is
            a dead letter with its bytes as they came, and a registry that does not answer ends the query:
            that is no event's fault.
        registry: Address of the schema registry, ``http://registry:8081``, or the configuration of
            ``confluent_kafka.schema_registry.SchemaRegistryClient``. Every worker asks it for each schema
            once. Needs ``pip install 'millrace[registry]'`` beside confluent-kafka.

    Raises:
        KeyingError: A named column is missing, or the arguments contradict each other.

    Example:
        >>> balances = keyed(transactions, by="user", event_time="at",
        ...                  out_of_orderness="10 seconds").process(RunningBalance())  # doctest: +SKIP
        >>> balances["main"]  # doctest: +SKIP
        DataFrame[user: string, amount: double, ...]
    """
    inputs = _keying(by, event_time, tagged=tag is not None)
    read = [name for of in inputs.values() for name in (*of.fields, of.event_time)]
    wanted = [value] if value is not None else read
    if tag is not None and value is None:
        raise KeyingError("a stream with a `tag` needs `value`, the column with the events' JSON")
    if value is None and (registry is not None or format != "json"):
        raise KeyingError("`format` and `registry` are of `value`, the column with the events' bytes")
    missing = [name for name in wanted if name not in df.columns]
    if missing:
        raise KeyingError(f"no column {', '.join(missing)} in the stream; it has {', '.join(df.columns)}")
    if control is not None and value is None:
        raise KeyingError("control rows need `value`, the column with their JSON")
    if control_time is not None and control is None:
        raise KeyingError("`control_time` is of control rows: say which these are with `control`")
    if max_future_skew is not None and arrived_at is None:
        raise KeyingError("max_future_skew needs `arrived_at`, the time events are compared with")
    if versions is not None and headers is None:
        raise KeyingError("versions need `headers`, one of which names an event's version")
    if masking is not None and value is None:
        raise KeyingError("masking needs `value`, the column with the events' JSON")
    if key_groups < 1:
        raise KeyingError(f"key_groups must be at least 1, not {key_groups}")
    if plan not in ("chain", "station"):
        raise KeyingError(f"plan is `chain` or `station`, not {plan!r}")
    if stations < 1 or (stations > 1 and plan != "station"):
        raise KeyingError(f"a {plan} has no {stations} stations")
    by_place = isinstance(source_id, str) and source_id == KAFKA_PLACE
    if by_place and not (_is_kafka(df) and source is None and offset is None):
        raise KeyingError("source_id=KAFKA_PLACE is Kafka's topic, partition and offset: here are others")
    given, arrived = _column(headers), _column(arrived_at)
    if arrived is None and _is_kafka(df):
        arrived = F.col("timestamp")
    return KeyedStream(
        df=df,
        by=inputs,
        value=value,
        bound_ms=to_ms(out_of_orderness),
        source_id=None if by_place else _column(source_id),
        headers=given if record_key is None else _record(given, _column(record_key), arrived),
        keep_all_headers=keep_headers == "all",
        control=control,
        arrived_at=arrived,
        future_ms=None if max_future_skew is None else to_ms(max_future_skew),
        key_groups=key_groups,
        unknown_version=None if versions is None or given is None else _unknown_version(given, versions),
        tag=_column(tag),
        place=_place(df, _column(source), _column(offset)),
        clock=clock,
        clock_skew_ms=skew_ms(clock_skew),
        limit=max_offsets,
        full_batches=full_batches,
        follow=follow,
        idle_after_ms=None if idle_after is None else to_ms(idle_after),
        plan=plan,
        stations=stations,
        locality=locality,
        masking=masking,
        format=format if isinstance(format, str) else dict(format),
        registry=registry,
        control_time=_control_time(df, control_time, value),
        by_place=by_place,
    )


def _control_time(df: DataFrame, told: str | Column | None, value: str | None) -> Column | None:
    """Return the event time from which on a control event holds, as text."""
    if told is None:
        return None
    if isinstance(told, str):
        return F.get_json_object(F.col(value or "").cast("string"), f"$['{told}']")
    given = df.select(told.alias("at")).schema["at"].dataType.simpleString()
    return F.unix_millis(told).cast("string") if given.startswith("timestamp") else told.cast("string")


def _is_kafka(df: DataFrame) -> bool:
    """Return whether a DataFrame has the columns that Spark's Kafka source gives."""
    return {"topic", "partition", "offset", "timestamp"} <= set(df.columns)


def _place(
    df: DataFrame, source: Column | None, offset: Column | None
) -> tuple[Column | None, Column | None, Column | None]:
    """Return the columns that tell where a row stands: its source, a partition of that, its offset."""
    if source is None and _is_kafka(df):
        return F.col("topic"), F.col("partition"), F.col("offset") if offset is None else offset
    return source, None, offset


def _keying(
    by: Key | Mapping[str, Key], event_time: str | Mapping[str, str], *, tagged: bool
) -> dict[str, Keying]:
    """Return where the events of each input have key and time; of one without a name, under ``""``."""
    if isinstance(by, Mapping) != tagged or (isinstance(event_time, Mapping) and not tagged):
        raise KeyingError("`tag` and a key for each input in `by` go together: {'readings': 'machine', ...}")
    keys = by if isinstance(by, Mapping) else {"": by}
    times = event_time if isinstance(event_time, Mapping) else dict.fromkeys(keys, event_time)
    found = {
        name: Keying((key,) if isinstance(key, str | Column) else tuple(key), times.get(name, ""))
        for name, key in keys.items()
    }
    if not found or not all(of.keys for of in found.values()):
        raise KeyingError("no key: `by` names no field")
    if len({len(of.keys) for of in found.values()}) > 1:
        raise KeyingError("the inputs of one stream need keys of as many parts")
    if unknown := [name for name in found if not found[name].event_time]:
        raise KeyingError(f"`event_time` names no field of {', '.join(unknown)}")
    return found


def _column(column: str | Column | None) -> Column | None:
    return F.col(column) if isinstance(column, str) else column


def _record(headers: Column | None, key: Column | None, arrived: Column | None) -> Column:
    """Return what dead letters keep of a Kafka record; see :func:`millrace.dead_letters.kept_of`."""
    columns = {"headers": headers, "key": key}
    columns["timestamp"] = None if arrived is None else F.unix_millis(arrived.cast("timestamp"))
    return F.struct(*[column.alias(name) for name, column in columns.items() if column is not None])


def _unknown_version(headers: Column, versions: Sequence[str]) -> Column:
    """Return whether Kafka headers name a version that is none of these.

    Built of what Spark compiles: a lambda over the headers would be interpreted for every event.
    """
    at = F.array_position(headers["key"], VERSION_HEADER).cast("int")
    found = F.get(headers["value"], at - 1)
    return F.coalesce(~found.isin(*[F.lit(version.encode()) for version in versions]), F.lit(False))
