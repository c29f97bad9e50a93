"""The Spark host: a process over key groups inside ``transformWithState``.

:func:`keyed` takes any streaming DataFrame and gives it a key and an event time;
:meth:`KeyedStream.process` runs a :class:`~millrace.KeyedProcess` over it and returns its outputs as
DataFrames. The plan is: find key, time and key group in workers that pack events
(:mod:`millrace.host.packing`) → shuffle by key group → one Python call per group and batch, whose outputs
come as chunks (:mod:`millrace.host.chunks`). Spark is told of no watermark and keeps no timers: the groups
keep the clock themselves (:mod:`millrace.time.clock`). Event decoding and all meaning are in the worker, in
:mod:`millrace.host.runner`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as t

from millrace.contracts.formats import Format
from millrace.dead_letters import VERSION_HEADER
from millrace.host import spark_structs
from millrace.host.chunks import WATERMARK
from millrace.host.groups import group_labels
from millrace.host.intake import JsonEvents
from millrace.host.packing import CHAINED_SCHEMA, Going, Masking, Repacker
from millrace.host.spark_clock import BatchClock
from millrace.host.spark_input import (
    KAFKA_PLACE,
    EventsOf,
    Keying,
    KeyPart,
    Plan,
    ProcessInput,
    Source,
)
from millrace.host.spark_partitions import PARTITIONS_CONF, warn_of_partitions
from millrace.host.spark_readers import Readers, numbered, readers_of
from millrace.host.spark_records import ROWS_SCHEMA, RowReader, TypedReader
from millrace.host.spark_station import run_station
from millrace.host.spark_types import META_FIELDS, struct_type, structs_in
from millrace.host.spark_worker import OUTPUT_SCHEMA, BoundedGroups, KeyGroupProcessor
from millrace.host.station import StationLink, outputs_of_links
from millrace.inputs import mark_of
from millrace.outputs import output_types
from millrace.process import KeyedProcess, check_process, order_of
from millrace.state.keyring import CIPHER, KEY_FILE_CONF, KeyReference, configured_keys
from millrace.time.clock import ClockSettings, Follow, skew_ms
from millrace.time.durations import to_ms
from millrace.topology import Input, KeyedOutputs, Link, Topology
from millrace.topology.contract import STATION, contract_of, joined_names, key_names, station_contract
from millrace.topology.definition import check_inputs, check_locality
from millrace.topology.keys import Computed, KeyingError, key_types

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from millrace.host.spark_sink import Target

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


@dataclass(frozen=True)
class KeyedStream(Source):
    """A DataFrame with a key and an event time; made by :func:`keyed`."""

    def process(self, process: KeyedProcess[Any, Any]) -> ProcessedStream:
        """Run ``process`` over the stream; nothing starts before a query does.

        Raises:
            ProcessDefinitionError: The process class is not complete.
            KeyingError: The stream does not have what the process reads.
        """
        _check(process, [self])
        tagged = self.tag is not None
        if tagged:
            check_inputs(process, list(self.by))
        elif process.inputs:
            raise KeyingError(
                f"{process.name} has the inputs {', '.join(process.inputs)}: "
                "give it all of them by connect(...).process(...), or by one stream with a `tag`"
            )
        _check_locality(process, self)
        arriving = ProcessInput(self, _events_of(process, self.by))
        arriving.check()
        names = tuple(process.inputs) if tagged else ("",)
        readers = _readers([self])
        clocks = self.clocks(names)
        clock = _settings(process, [self], [clocks], readers)
        events = JsonEvents(
            process.event_type,
            process.control_type if self.value is not None else None,
            strict=self.value is not None and self.registry is None,
            inputs=process.inputs,
            formatted=_formatted([arriving]),
        )
        inputs = {
            name: _input(self.by[name], is_clock=is_clock)
            for name, is_clock in zip(names, clocks, strict=True)
        }
        rows = _rows(process, [arriving], clock, readers)
        return ProcessedStream(
            Topology(inputs, (Link(process),), locality=self.locality),
            _Front(rows, events, clock, self.key_groups, _keys(rows), self.plan, self.stations),
        )

    def run(self, topology: Topology) -> ProcessedStream:
        """Run a whole topology over the stream, whose inputs it brings; nothing starts before a query does.

        Raises:
            ProcessDefinitionError: A process class is not complete.
            KeyingError: The stream does not have what the first process reads, or has another locality.
        """
        for link in topology.links[1:]:
            _refuse_local_types(link.process)
        if self.locality not in (None, topology.locality):
            raise KeyingError(
                f"the stream's locality is {self.locality}, the topology's {topology.locality or 'none'}: "
                "let the topology alone say it"
            )
        local = replace(self, locality=topology.locality)
        return ProcessedStream(topology, local.process(topology.links[0].process).front)


def _settings(
    process: KeyedProcess[Any, Any],
    streams: Sequence[KeyedStream],
    clocks: Sequence[tuple[bool, ...]],
    readers: Readers,
) -> ClockSettings:
    """Return what the clock of some streams together goes by."""
    if not any(is_clock for of in clocks for is_clock in of):
        raise KeyingError("no input is a clock: time would never go on; leave one of them `clock=True`")
    follows = {stream.follow for stream in streams}
    idle = [stream.idle_after_ms for stream in streams]
    return ClockSettings(
        bound_ms=max(stream.bound_ms for stream in streams),
        limits=readers.limits,
        skews=tuple(stream.clock_skew_ms for stream in streams),
        clocks=tuple(clocks),
        full_batches=max(stream.full_batches for stream in streams),
        follow="slowest" if "slowest" in follows else "furthest",
        idle_after_ms=None if None in idle else max(i for i in idle if i is not None),
        patience_ms=order_of(process).patience_ms,
    )


def _readers(streams: Sequence[Source]) -> Readers:
    try:
        return numbered([readers_of(s.df, s.limit, str(place)) for place, s in enumerate(streams)])
    except ValueError as error:
        raise KeyingError(str(error)) from None


def _rows(
    process: KeyedProcess[Any, Any], inputs: list[ProcessInput], settings: ClockSettings, readers: Readers
) -> DataFrame:
    """Return the rows of all inputs on their way to the key groups."""
    streaming = inputs[0].source.df.isStreaming
    clock = BatchClock(settings) if streaming else None
    by_key = order_of(process).by_key
    frames = [
        arriving.packed(clock, place, own, by_key=by_key)
        for place, (arriving, own) in enumerate(zip(inputs, readers.of, strict=True))
    ]
    rows = functools.reduce(DataFrame.unionByName, frames)
    first = inputs[0].source
    return rows.coalesce(first.stations) if len(frames) > 1 and first.is_station else rows


def _check_locality(process: KeyedProcess[Any, Any], stream: KeyedStream) -> None:
    """Refuse a stream whose keys do not begin with its locality, or whose stations need one."""
    if stream.locality is None:
        if stream.stations > 1:
            raise KeyingError(
                f"{stream.stations} stations need a `locality`, the field that all keys begin with: "
                f"{process.name} has none"
            )
        return
    for name, keying in stream.by.items():
        check_locality(stream.locality, f"{process.name}.{name}" if name else process.name, keying.keys)


def _formatted(inputs: Sequence[ProcessInput]) -> list[str]:
    """Return the inputs whose events are not JSON alone."""
    return [
        of.name
        for arriving in inputs
        for of, format in zip(arriving.events, arriving.formats, strict=True)
        if format is not None
    ]


def _events_of(process: KeyedProcess[Any, Any], by: Mapping[str, Keying]) -> tuple[EventsOf, ...]:
    """Return the events that a process reads, by input in its order."""
    if not process.inputs:
        return (EventsOf(process.name, process.event_type, by[""]),)
    return tuple(
        EventsOf(f"{process.name}.{name}", tp, by[name], name, mark_of(rank))
        for rank, (name, tp) in enumerate(process.inputs.items())
    )


def connect(**streams: KeyedStream) -> ConnectedStreams:
    """Bring several streams to one process, each by the name of an input of it.

    They are keyed alike, so that what belongs together meets, and have one watermark: it stays behind
    the newest event of all of them that are clocks by the largest of their bounds, and no idle one holds it
    back.

    Args:
        streams: Input → stream.

    Raises:
        KeyingError: The streams do not fit together.

    Example:
        >>> joined = connect(
        ...     readings=keyed(readings, by="machine", event_time="at", out_of_orderness="10 seconds"),
        ...     status=keyed(status, by="machine", event_time="since"),
        ... ).process(LatestStatus())  # doctest: +SKIP
    """
    if len(streams) < 2:
        raise KeyingError("connect() takes two streams or more; a single one has .process() itself")
    if tagged := [name for name, s in streams.items() if s.tag is not None]:
        raise KeyingError(f"{', '.join(tagged)} has a `tag`: it brings all inputs of a process by itself")
    if len({s.key_groups for s in streams.values()}) > 1:
        found = ", ".join(f"{name}: {s.key_groups}" for name, s in streams.items())
        raise KeyingError(f"connected streams need the same number of key groups ({found})")
    keys = {name: joined_names([stream.by[""].keys]) for name, stream in streams.items()}
    if len({len(names) for names in keys.values()}) > 1:
        found = ", ".join(f"{name}: {', '.join(names)}" for name, names in keys.items())
        raise KeyingError(f"connected streams need keys of as many fields ({found})")
    if len({(s.plan, s.stations, s.locality) for s in streams.values()}) > 1:
        raise KeyingError("connected streams have one plan, one number of stations and one locality")
    if len({s.df.isStreaming for s in streams.values()}) > 1:
        raise KeyingError("connected streams are all streaming, or all of them are bounded")
    return ConnectedStreams(streams)


@dataclass(frozen=True)
class ConnectedStreams:
    """Several streams for one process; made by :func:`connect`."""

    streams: dict[str, KeyedStream]

    def process(self, process: KeyedProcess[Any, Any]) -> ProcessedStream:
        """Run ``process`` over the streams; nothing starts before a query does.

        Raises:
            ProcessDefinitionError: The process class is not complete.
            KeyingError: The streams are not the inputs of the process, or do not have what it reads.
        """
        streams = [self.streams[name] for name in process.inputs if name in self.streams]
        _check(process, streams)
        check_inputs(process, list(self.streams))
        events = _events_of(process, {name: stream.by[""] for name, stream in self.streams.items()})
        for stream in streams:
            _check_locality(process, stream)
        inputs = [ProcessInput(self.streams[of.name], (of,)) for of in events]
        for arriving in inputs:
            arriving.check()
        readers = _readers(streams)
        clock = _settings(process, streams, [s.clocks() for s in streams], readers)
        decoded = JsonEvents(
            process.event_type,
            process.control_type,
            strict=all(s.value is not None and s.registry is None for s in streams),
            inputs=process.inputs,
            formatted=_formatted(inputs),
        )
        rows = _rows(process, inputs, clock, readers)
        # The order of the streams is that of the inputs, so the names stand in a contract.
        taken = {
            name: _input(stream.by[""], is_clock=stream.clocks()[0], stream=place)
            for place, (name, stream) in enumerate(zip(process.inputs, streams, strict=True))
        }
        first = streams[0]
        return ProcessedStream(
            Topology(taken, (Link(process),), locality=first.locality),
            _Front(rows, decoded, clock, first.key_groups, _keys(rows), first.plan, first.stations),
        )


def _keys(rows: DataFrame) -> KeyReference | None:
    """Return where the keys are that state is encrypted with, of what streams."""
    if not rows.isStreaming:
        return None
    return configured_keys(rows.sparkSession.conf.get(KEY_FILE_CONF, None))


def _input(keying: Keying, *, is_clock: bool, stream: int = 0) -> Input:
    """Return what a topology says of the events of a stream."""
    parts = tuple(part if isinstance(part, str) else Computed() for part in keying.keys)
    return Input("", parts, keying.event_time, is_clock, stream)


def _check(process: KeyedProcess[Any, Any], streams: Sequence[KeyedStream]) -> None:
    """Refuse a process that is not complete, or that these streams cannot serve."""
    check_process(process)
    _refuse_local_types(process)
    controlled = any(s.control is not None for s in streams)
    if not controlled and any(s.df.isStreaming for s in streams) and process.needs_ticks():
        raise KeyingError(
            f"{process.name} uses processing time, which ticks among the control rows bring: "
            "give keyed() a `control`"
        )


def _refuse_local_types(process: KeyedProcess[Any, Any]) -> None:
    """Refuse types that do not come to Spark's workers as they are.

    What is defined in a script or notebook is pickled by value, structs by :mod:`spark_structs`.
    """
    takes_structs = spark_structs.install()
    declared = [*(process.inputs.values() or [process.event_type]), process.output_type, process.control_type]
    declared += [tag.type for tag in process.side_outputs] + [state.type for state in process.states]
    for tp in declared:
        for struct in structs_in(tp):
            if struct.__module__ != "__main__":
                continue
            if takes_structs:
                spark_structs.check_struct(struct)
            else:
                raise KeyingError(
                    f"{struct.__name__} is defined in the script or notebook itself, where Spark's workers "
                    "cannot import it: put it into a module and import that"
                )


@dataclass(frozen=True)
class _Front:
    """What a stream begins with: chunks by key group, and what their clock goes by.

    Attributes:
        rows: The chunks.
        events: How the first process's events are read.
        clock: What the clock goes by.
        key_groups: Number of key groups of the first process.
        keys: Where the keys are that state is encrypted with; ``None``: it is kept in clear.
        plan: How the topology runs.
        stations: How many stations there are.
    """

    rows: DataFrame
    events: JsonEvents
    clock: ClockSettings
    key_groups: int
    keys: KeyReference | None
    plan: Plan = "chain"
    stations: int = 1


@dataclass(frozen=True)
class ProcessedStream:
    """The outputs of a process, or of a chain of them: one typed stream, a DataFrame per output.

    Attributes:
        topology: The processes, and what each takes.
        front: What the first of them reads.
    """

    topology: Topology
    front: _Front

    @property
    def process(self) -> KeyedProcess[Any, Any]:
        """The process; the last one of a chain."""
        return self.topology.links[-1].process

    @property
    def keys(self) -> tuple[str, ...]:
        """Names of the parts of its key."""
        return key_names(self.topology, self.topology.links[-1])

    @cached_property
    def key_groups(self) -> tuple[int, ...]:
        """Number of key groups of each process."""
        found = [self.front.key_groups]
        for link in self.topology.links[1:]:
            found.append(link.key_groups or found[-1])
        return tuple(found)

    @cached_property
    def raw(self) -> DataFrame:
        """All outputs in one DataFrame of chunks (output, records, chunk).

        So the state is computed once however many are written; :meth:`rows` and :meth:`select` unpack it.
        """
        if self.is_station:
            return self._station()
        if self.front.rows.isStreaming:
            warn_of_partitions(self.front.rows.sparkSession, max(self.key_groups))
        links = self.topology.links
        emitted = self._run(0, self.front.rows, self.front.events)
        for place, link in enumerate(links[1:], 1):
            process = link.process
            events = JsonEvents(process.event_type, process.control_type, inputs=process.inputs)
            rows = emitted.mapInArrow(self._repacker(place), CHAINED_SCHEMA)
            emitted = self._run(place, rows, events)
        return emitted

    @property
    def is_station(self) -> bool:
        """Whether all links run in one operator; a bounded input runs in many tasks at any rate."""
        return self.front.plan == "station" and self.front.rows.isStreaming

    def _station(self) -> DataFrame:
        """Run all links in one operator, in a partition for each station."""
        partitions = self.front.rows.sparkSession.conf.get(PARTITIONS_CONF, None)
        stations = self.front.stations
        if partitions != str(stations):
            what = (
                "a station runs in one partition" if stations == 1 else f"{stations} stations run in as many"
            )
            raise KeyingError(
                f"{what}, and {PARTITIONS_CONF} is {partitions}: set it to {stations} before the query is "
                "made (a checkpoint keeps what it began with)"
            )
        names, onward = outputs_of_links(self.topology)
        links = [
            StationLink(
                link.process,
                JsonEvents(link.process.event_type, link.process.control_type, inputs=link.process.inputs)
                if place
                else self.front.events,
                self.key_groups[place],
                onward[place],
                names[place],
            )
            for place, link in enumerate(self.topology.links)
        ]
        clock = BatchClock(self.front.clock)
        return run_station(self.front.rows, links, self.state_keys, clock, stations)

    def _run(self, place: int, rows: DataFrame, events: JsonEvents) -> DataFrame:
        """Run a process: in the state operator, or all at once where the input is bounded."""
        process = self.topology.links[place].process
        speaker = group_labels(self.key_groups[place])[0]
        forwards = place < len(self.topology.links) - 1
        refuses = all(link.process.control_type is None for link in self.topology.links)
        if not rows.isStreaming:
            groups = BoundedGroups(
                process,
                events,
                speaker=speaker,
                forwards=forwards,
                refuses=refuses,
                bound_ms=self.front.clock.bound_ms,
            )
            # Spark looks at what it is given with `inspect`, which wants a function.
            return rows.groupBy("_group").applyInArrow(lambda key, table: groups(key, table), OUTPUT_SCHEMA)
        return rows.groupBy("_group").transformWithState(
            statefulProcessor=KeyGroupProcessor(
                process,
                events,
                speaker=speaker,
                forwards=forwards,
                refuses=refuses,
                keys=self.state_keys,
                clock=None if place else BatchClock(self.front.clock),
            ),
            outputStructType=OUTPUT_SCHEMA,
            outputMode="Append",
            timeMode="None",
        )

    def _repacker(self, place: int) -> Repacker:
        """Return what brings the outputs of the links before one to it, and past it."""
        links, outputs = self.topology.links, self.topology.outputs
        later = {(t.link, t.output) for link in links[place + 1 :] for t in link.takes}
        names: dict[str, str] = {}
        for before in links[:place]:
            for output in output_types(before.process):
                full = f"{before.name}.{output}"
                if full in outputs or (before.name, output) in later:
                    names[output if before is links[place - 1] else full] = full
        takes = []
        for taken in links[place].takes:
            owner = self.topology.link(taken.link).process
            kinds = key_types(owner.name, output_types(owner)[taken.output], taken.key)
            inputs = list(links[place].process.inputs)
            takes.append(
                Going(
                    taken.output if taken.link == links[place - 1].name else f"{taken.link}.{taken.output}",
                    tuple(kinds.items()),
                    mark_of(inputs.index(taken.input)) if inputs else b"",
                )
            )
        return Repacker(tuple(takes), group_labels(self.key_groups[place]), names)

    @property
    def clock(self) -> ClockSettings:
        """What the clock of the stream goes by."""
        return self.front.clock

    @property
    def state_keys(self) -> KeyReference | None:
        """Where the keys are that the state is encrypted with; ``None``: it is kept in clear.

        They are those of the session when the stream was made: ``spark.millrace.state.keyFile``, or the
        environment it was started in.
        """
        return self.front.keys

    @property
    def sources(self) -> dict[str, tuple[KeyedProcess[Any, Any], str]]:
        """Output → the process that emits it and its name there; see :class:`~millrace.topology.Topology`."""
        return self.topology.outputs

    @property
    def types(self) -> dict[str, Any]:
        """Output → type of its records."""
        return self.topology.types

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs; see :attr:`sources`."""
        return tuple(self.sources)

    def __getitem__(self, output: str) -> DataFrame:
        """Return one output as a typed DataFrame; a query on it alone has a state of its own."""
        return self.select(self.raw, output)

    def select(self, raw: DataFrame, output: str) -> DataFrame:
        """Return the rows of one output in ``raw`` (or a batch of it) with typed columns.

        The record's fields come first, then ``_event_id``, ``_event_time`` (timestamp of its cause)
        and ``_on_time``.
        """
        sources = self.sources
        if output not in sources:
            raise KeyingError(f"{self.process.name} has no output '{output}'; it has {', '.join(sources)}")
        schema = t.StructType([*struct_type(self.types[output]).fields, *META_FIELDS])
        chunks = raw.filter(F.col("output") == output).select("chunk")
        return chunks.mapInArrow(TypedReader(*sources[output]), schema)

    def rows(self, raw: DataFrame) -> DataFrame:
        """Return the records in ``raw`` (or a batch of it), whatever their output.

        Returns:
            Columns output, event_id, key (its text), event_time_ms, on_time and payload (JSON).
        """
        records = raw.filter(F.col("output") != WATERMARK)
        return records.select("output", "chunk").mapInArrow(RowReader(), ROWS_SCHEMA)

    def key_by(
        self,
        by: str | Sequence[str] | Mapping[str, str | Sequence[str]],
        *,
        output: str | Mapping[str, str] = "main",
        key_groups: int | None = None,
    ) -> EmittedStream:
        """Give the records of an output, or of several, new keys, for the next process of a chain.

        All is one query. The records have the time of their cause and are not judged for lateness
        again; what is on time is merged with the next process's timers in order of time. The other
        outputs pass it by, named ``Process.output``. Control events go on to it.

        Args:
            by: Field of the records that is the key, or several; of several outputs also input → its own.
            output: The output whose records go on; of a process before the last one ``Process.output``. For a
                process with several inputs: input → output.
            key_groups: Number of key groups; as before, unless given.

        Raises:
            KeyingError: The output or a field of it does not exist, or cannot be a key.

        Example:
            >>> cards = keyed(transactions, by="card", event_time="at").process(Cards())  # doctest: +SKIP
            >>> cards.key_by("terminal").process(Terminals())["main"]  # doctest: +SKIP
            DataFrame[terminal: string, ...]
        """
        return EmittedStream(self, self.topology.key_by(by, output=output, key_groups=key_groups))

    def write_to(
        self, outputs: Mapping[str, Target], checkpoint: str | Path, **options: Any
    ) -> StreamingQuery:
        """Start a query that writes outputs to tables or functions (:mod:`millrace.host.spark_sink`).

        Args:
            outputs: Output → path of a table, or a function of a DataFrame and the batch id.
            checkpoint: Folder of the checkpoint and its contract.
            options: ``trigger``, ``name`` and ``table_format``.
        """
        from millrace.host.spark_sink import write_to

        return write_to(self, outputs, checkpoint, **options)

    def contract(self) -> dict[str, Any]:
        """Return what a checkpoint of this process depends on, as plain data."""
        keys = self.state_keys
        encryption = {} if keys is None else {"encryption": {"cipher": CIPHER, "keys": list(keys.ids)}}
        plan: dict[str, Any] = {}
        if self.front.plan == "station":
            processes = [link.process for link in self.topology.links]
            kept = [p.stored_as for p in processes if p.keeps_broadcast()]
            plan = {STATION: station_contract(kept, self.front.stations, self.topology.locality)}
        return {**contract_of(self.topology, self.key_groups), **plan, **encryption}


@dataclass(frozen=True)
class EmittedStream:
    """What processes emitted, by new keys; made by :meth:`ProcessedStream.key_by`."""

    stream: ProcessedStream
    outputs: KeyedOutputs

    def process(self, process: KeyedProcess[Any, Any]) -> ProcessedStream:
        """Run the next process of the chain over the records; nothing starts before a query does.

        Raises:
            ProcessDefinitionError: The process class is not complete.
            KeyingError: It is in the chain already, or does not read what it would be given.
        """
        _refuse_local_types(process)
        return ProcessedStream(self.outputs.process(process), self.stream.front)
