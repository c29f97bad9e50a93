"""The Spark host: a process over key groups inside ``transformWithState``.

:func:`keyed` takes any streaming DataFrame and gives it a key and an event time;
:meth:`KeyedStream.process` runs a :class:`~millrace.KeyedProcess` over it and returns its outputs as
DataFrames. The plan is: find key, time and key group, in the JVM or in workers that pack events
(:mod:`millrace.host.packing`) → declare the watermark and project its column away (so that Spark drops
nothing) → shuffle by key group → one Python call per group and batch, whose outputs come as chunks
(:mod:`millrace.host.chunks`). Event decoding and all meaning are in the worker, in
:mod:`millrace.host.runner`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as t

from millrace.errors import UserError
from millrace.host.chunks import CONTROL, DATA, FUTURE, NO_TIME
from millrace.host.groups import group_labels
from millrace.host.packing import CHAINED_SCHEMA, FIRST_MS, LAST_MS, PACKED_SCHEMA, Packer, Repacker
from millrace.host.spark_records import ROWS_SCHEMA, RowReader, TypedReader
from millrace.host.spark_types import META_FIELDS, output_types, struct_type, structs_in
from millrace.host.spark_worker import OUTPUT_SCHEMA, BoundedGroups, JsonEvents, KeyGroupProcessor
from millrace.host.system import IDLE_PREFIX
from millrace.process import KeyedProcess, check_process, order_of
from millrace.state.layout import ENCODING_VERSION
from millrace.state.specs import type_name
from millrace.time.durations import to_ms

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from millrace.host.spark_sink import Target

# What a field of a key may be; its restrictions are judged when the whole event is decoded.
_KEY_TYPES: dict[type[t.DataType], type] = {t.StringType: str, t.LongType: int, t.BooleanType: bool}

#: How events travel to the state operator; see :func:`keyed`.
Profile = Literal["latency", "throughput"]


class KeyingError(UserError):
    """The key, event time or other columns given to :func:`keyed` do not fit the DataFrame."""


def keyed(
    df: DataFrame,
    *,
    by: str | Sequence[str],
    event_time: str,
    value: str | None = None,
    out_of_orderness: str | int | timedelta = 0,
    source_id: str | Column | None = None,
    headers: str | Column | None = None,
    keep_headers: Literal["all", "unreadable"] = "all",
    control: Column | None = None,
    arrived_at: str | Column | None = None,
    max_future_skew: str | int | timedelta | None = None,
    key_groups: int = 64,
    profile: Profile = "latency",
) -> KeyedStream:
    """Give a DataFrame a key and an event time.

    Args:
        df: A streaming DataFrame.
        by: Name of the key field, or names of several: columns of ``df``, or fields of the JSON in
            ``value``.
        event_time: Name of the event-time field: a timestamp, or UTC milliseconds as an integer.
        value: Name of a binary or string column with JSON events, decoded (and validated against the
            event type) in the worker; ``None``: the events are the columns themselves.
        out_of_orderness: How far events may come out of order, ms, ``timedelta`` or text
            (``"10 seconds"``); the watermark stays that far behind the newest event.
        source_id: A column that identifies an event in its source, the root of output identities.
        headers: A column (Kafka's headers, or any other) that goes with an event into the dead letters.
        keep_headers: ``all``: of every event; ``unreadable``: only of those whose key or time cannot be
            read. Making text of the headers of every event costs about a quarter of the JVM's work.
        control: True for the rows that are control events: they go to every key group and do not
            move the watermark. The rows come through ``value``.
        arrived_at: When an event was received (a timestamp), for ``max_future_skew``.
        max_future_skew: Events whose time is more than this after ``arrived_at`` go to the dead
            letters before the watermark sees them.
        key_groups: Number of key groups; fixed for the life of a checkpoint.
        profile: ``latency``: a row per event. ``throughput``: events are packed by key group in front of
            the shuffle, which takes about half the CPU time per event and some milliseconds more per
            batch; it needs ``value``. The state is the same: a restart may change the profile.

    Raises:
        KeyingError: A named column is missing, or the arguments contradict each other.

    Example:
        >>> balances = keyed(transactions, by="user", event_time="at",
        ...                  out_of_orderness="10 seconds").process(RunningBalance())  # doctest: +SKIP
        >>> balances["main"]  # doctest: +SKIP
        DataFrame[user: string, amount: double, ...]
    """
    keys = (by,) if isinstance(by, str) else tuple(by)
    wanted = [value] if value is not None else [*keys, event_time]
    if not keys:
        raise KeyingError("no key: `by` names no field")
    missing = [name for name in wanted if name not in df.columns]
    if missing:
        raise KeyingError(f"no column {', '.join(missing)} in the stream; it has {', '.join(df.columns)}")
    if control is not None and value is None:
        raise KeyingError("control rows need `value`, the column with their JSON")
    if max_future_skew is not None and arrived_at is None:
        raise KeyingError("max_future_skew needs `arrived_at`, the time events are compared with")
    if key_groups < 1:
        raise KeyingError(f"key_groups must be at least 1, not {key_groups}")
    return KeyedStream(
        df=df,
        keys=keys,
        event_time=event_time,
        value=value,
        bound_ms=to_ms(out_of_orderness),
        source_id=_column(source_id),
        headers=_column(headers),
        keep_all_headers=keep_headers == "all",
        control=control,
        arrived_at=_column(arrived_at),
        skew_ms=None if max_future_skew is None else to_ms(max_future_skew),
        key_groups=key_groups,
        profile=profile if value is not None else "latency",
    )


def _column(column: str | Column | None) -> Column | None:
    return F.col(column) if isinstance(column, str) else column


@dataclass(frozen=True)
class KeyedStream:
    """A DataFrame with a key and an event time; made by :func:`keyed`."""

    df: DataFrame
    keys: tuple[str, ...]
    event_time: str
    value: str | None
    bound_ms: int
    source_id: Column | None
    headers: Column | None
    keep_all_headers: bool
    control: Column | None
    arrived_at: Column | None
    skew_ms: int | None
    key_groups: int
    profile: Profile

    def process(self, process: KeyedProcess[Any, Any]) -> ProcessedStream:
        """Run ``process`` over the stream; nothing starts before a query does.

        Raises:
            ProcessDefinitionError: The process class is not complete.
        """
        check_process(process)
        _refuse_local_types(process)
        if self.control is None and self.df.isStreaming and process.needs_ticks():
            raise KeyingError(
                f"{process.name} uses processing time, which ticks among the control rows bring: "
                "give keyed() a `control`"
            )
        if self.value is not None:
            events = JsonEvents(process.event_type, process.control_type)
        else:
            fields = list(_event_fields(process))
            missing = [name for name in fields if name not in self.df.columns]
            if missing:
                raise KeyingError(
                    f"{process.name} reads {', '.join(missing)}, which the stream does not have; "
                    f"it has {', '.join(self.df.columns)}"
                )
            events = JsonEvents(process.event_type, None, strict=False)
        packed = self.profile == "throughput"
        prepared = self._packed(process) if packed else self._with_time(process)
        if self.df.isStreaming:
            prepared = prepared.withWatermark("_watermark", f"{self.bound_ms + 1} milliseconds")
        rows = prepared.select("_group", "_chunk") if packed else self._with_group(prepared, process)
        return ProcessedStream(
            process=process,
            keyed_by=_Keyed(self.keys, self.key_groups, self.bound_ms),
            plan=_Plan(rows, events, packed),
        )

    def _packed(self, process: KeyedProcess[Any, Any]) -> DataFrame:
        """Find key, event time and key group in workers, and make a row per key group."""
        columns = [F.col(self.value or "").cast("binary").alias("_value")]
        if self.source_id is not None:
            columns.append(self.source_id.cast("string").alias("_source_id"))
        if self.headers is not None:
            columns.append(self.headers.alias("_headers"))
        if self.control is not None:
            columns.append(F.coalesce(self.control, F.lit(False)).alias("_control"))
        if self.skew_ms is not None and self.arrived_at is not None:
            arrived = F.unix_millis(self.arrived_at.cast("timestamp")).cast("double")
            columns.append(F.coalesce(arrived, F.lit(float("inf"))).alias("_arrived"))
        is_ms = self._event_time_is_ms(process)
        schema = struct_type(process.event_type)
        packer = Packer(
            keys=tuple(_key_types(process, schema, self.keys).items()),
            event_time=(self.event_time, int if is_ms else datetime),
            labels=group_labels(self.key_groups),
            skew_ms=self.skew_ms,
            keep_all_headers=self.keep_all_headers,
        )
        return self.df.select(*columns).mapInArrow(packer, PACKED_SCHEMA)

    def _event_time_is_ms(self, process: KeyedProcess[Any, Any]) -> bool:
        fields = _event_fields(process)
        absent = [name for name in (*self.keys, self.event_time) if name not in fields]
        if absent:
            raise KeyingError(f"{process.name}'s event type has no field {', '.join(absent)}")
        schema = struct_type(process.event_type)
        _key_types(process, schema, self.keys)
        kind = schema[self.event_time].dataType
        if not isinstance(kind, t.LongType | t.TimestampType):
            raise KeyingError(
                f"the event time {self.event_time} of {process.name} is a {kind.simpleString()}; "
                "it must be a datetime or UTC milliseconds as an int"
            )
        return isinstance(kind, t.LongType)

    def _with_time(self, process: KeyedProcess[Any, Any]) -> DataFrame:
        """Add key text, event time (ms), row kind and the column that carries the watermark."""
        df, keys, when = self._key_and_time_columns(process)
        when = F.when(when.between(FIRST_MS, LAST_MS), when)
        control = F.coalesce(self.control, F.lit(False)) if self.control is not None else F.lit(False)
        text = F.concat(*[F.concat(F.octet_length(k).cast("string"), F.lit(":"), k) for k in keys])
        df = df.withColumn("_key", F.when(~control, text)).withColumn("_time", F.when(~control, when))
        future = F.lit(False)
        if self.skew_ms is not None and self.arrived_at is not None:
            future = F.coalesce(
                F.col("_time") > F.unix_millis(self.arrived_at.cast("timestamp")) + self.skew_ms, F.lit(False)
            )
        kind = F.when(control, CONTROL).when(future, FUTURE).otherwise(DATA)
        moves = F.when(F.col("_kind") == DATA, F.col("_time"))
        if self.control is not None and self.value is not None:
            text = F.col(self.value).cast("string")
            idle = control & text.startswith(IDLE_PREFIX.decode())
            moves = F.when(idle, F.get_json_object(text, "$.at").cast("long")).otherwise(moves)
        return df.withColumn("_kind", kind).withColumn("_watermark", F.timestamp_millis(moves))

    def _key_and_time_columns(
        self, process: KeyedProcess[Any, Any]
    ) -> tuple[DataFrame, list[Column], Column]:
        if self.value is None:
            when = F.col(self.event_time)
            kind = self.df.schema[self.event_time].dataType
            if isinstance(kind, t.TimestampType):
                when = F.unix_millis(when)
            elif not isinstance(kind, t.IntegralType):
                raise KeyingError(
                    f"the event time {self.event_time} is a {kind.simpleString()}; "
                    "it must be a timestamp (with time zone) or UTC milliseconds as an integer"
                )
            return self.df, [F.col(k).cast("string") for k in self.keys], when.cast("long")
        is_ms = self._event_time_is_ms(process)
        wanted = [t.StructField(k, t.StringType()) for k in dict.fromkeys(self.keys)]
        wanted.append(t.StructField(self.event_time, t.LongType() if is_ms else t.TimestampType()))
        parsed = F.from_json(F.col(self.value).cast("string"), t.StructType(wanted))
        # A column of its own, so that the JSON is parsed once and not once per field.
        df = self.df.withColumn("_parsed", parsed)
        when = F.col("_parsed").getField(self.event_time)
        return df, [F.col("_parsed").getField(k) for k in self.keys], when if is_ms else F.unix_millis(when)

    def _headers(self, df: DataFrame) -> Column:
        """Return the headers as text: JSON of what is not text already."""
        headers = self.headers if self.headers is not None else F.lit(None).cast("string")
        if not isinstance(df.select(headers).schema[0].dataType, t.StringType):
            headers = F.to_json(headers)
        if self.keep_all_headers:
            return headers
        return F.when(F.col("_key").isNull() | F.col("_time").isNull(), headers)

    def _with_group(self, df: DataFrame, process: KeyedProcess[Any, Any]) -> DataFrame:
        """Route every row to its key group, control rows to all, and keep what the worker needs."""
        labels = F.array(*[F.lit(label) for label in group_labels(self.key_groups)])
        # An event without a key still needs a place: by its bytes, if there are any.
        places = [F.col("_key")] if self.value is None else [F.col("_key"), F.col(self.value)]
        hashed = F.coalesce(*(p.cast("binary") for p in places), F.lit(b""))
        label = F.element_at(labels, (F.crc32(hashed) % self.key_groups + 1).cast("int"))
        label = F.coalesce(label, F.lit(group_labels(1)[0]))  # never null, as in chunks (packing.py)
        if self.control is not None:
            label = F.explode(F.when(F.col("_kind") == CONTROL, labels).otherwise(F.array(label)))
        null = F.lit(None).cast("string")
        columns = [
            label.alias("_group"),
            F.col("_key"),
            F.coalesce(F.col("_time"), F.lit(NO_TIME)).alias("_time"),
            F.col("_kind"),
            (self.source_id if self.source_id is not None else null).cast("string").alias("_source_id"),
        ]
        columns.append(self._event(process).alias("_value"))
        if self.headers is not None:
            columns.append(self._headers(df).alias("_headers"))
        return df.select(*columns)

    def _event(self, process: KeyedProcess[Any, Any]) -> Column:
        """Return the event as JSON bytes, which keep what pandas would not: nulls beside large integers."""
        if self.value is not None:
            return F.col(self.value).cast("binary")
        fields = []
        wants = struct_type(process.event_type)
        for name in _event_fields(process):
            column = F.col(name)
            is_time = isinstance(self.df.schema[name].dataType, t.TimestampType)
            if is_time and wants[name].dataType == t.LongType():
                column = F.unix_millis(column)
            fields.append(column.alias(name))
        return F.to_json(F.struct(*fields), {"ignoreNullFields": "false"}).cast("binary")


def _refuse_local_types(process: KeyedProcess[Any, Any]) -> None:
    """Refuse types that lose their fields on the way to Spark's workers.

    What is defined in a script or notebook is pickled by value, and msgspec's structs are not themselves
    any more then: every event would be a dead letter.
    """
    declared = [process.event_type, process.output_type, process.control_type]
    declared += [tag.type for tag in process.side_outputs] + [state.type for state in process.states]
    for tp in declared:
        for struct in structs_in(tp):
            if struct.__module__ == "__main__":
                raise KeyingError(
                    f"{struct.__name__} is defined in the script or notebook itself, where Spark's workers "
                    "cannot import it: put it into a module and import that"
                )


def _event_fields(process: KeyedProcess[Any, Any]) -> tuple[str, ...]:
    try:
        return tuple(f.encode_name for f in msgspec.structs.fields(process.event_type))
    except TypeError:
        raise KeyingError(
            f"{process.name}'s events are {type_name(process.event_type)}; here they must be a msgspec struct"
        ) from None


@dataclass(frozen=True)
class _Keyed:
    """How a stage's events are keyed."""

    keys: tuple[str, ...]
    key_groups: int
    bound_ms: int


@dataclass(frozen=True)
class _Plan:
    """A process's input: rows by key group, single events or chunks."""

    rows: DataFrame
    events: JsonEvents
    packed: bool


@dataclass(frozen=True)
class ProcessedStream:
    """The outputs of a process, or of a chain of them: one typed stream, a DataFrame per output.

    Attributes:
        process: The process; the last one of a chain.
        keyed_by: How its events are keyed.
        plan: Its input.
        before: The stream that the chain's link before this one made.
        taken: The output of it that this one takes.
    """

    process: KeyedProcess[Any, Any]
    keyed_by: _Keyed
    plan: _Plan
    before: ProcessedStream | None = None
    taken: str = ""

    @cached_property
    def raw(self) -> DataFrame:
        """All outputs in one DataFrame of chunks (output, records, chunk).

        So the state is computed once however many are written; :meth:`rows` and :meth:`select` unpack it.
        """
        return self._run(forwards=False)

    def _run(self, *, forwards: bool) -> DataFrame:
        """Run the process: in the state operator, or all at once where the input is bounded."""
        rows, process, events, packed = self.plan.rows, self.process, self.plan.events, self.plan.packed
        speaker = group_labels(self.keyed_by.key_groups)[0]
        if not rows.isStreaming:
            groups = BoundedGroups(
                process,
                events,
                packed=packed,
                speaker=speaker,
                forwards=forwards,
                bound_ms=self.keyed_by.bound_ms,
            )
            # Spark looks at what it is given with `inspect`, which wants a function.
            return rows.groupBy("_group").applyInArrow(lambda key, table: groups(key, table), OUTPUT_SCHEMA)
        return rows.groupBy("_group").transformWithState(
            statefulProcessor=KeyGroupProcessor(
                process, events, packed=packed, speaker=speaker, forwards=forwards
            ),
            outputStructType=OUTPUT_SCHEMA,
            outputMode="Append",
            timeMode="EventTime",
        )

    @property
    def sources(self) -> dict[str, tuple[KeyedProcess[Any, Any], str]]:
        """Output → the process that emits it and its name there.

        The outputs of the last process have their own names: ``main``, the side outputs, ``late``,
        ``dead_letters``. Those of the ones before it are led by their process's: ``Cards.late``.
        """
        found = {output: (self.process, output) for output in output_types(self.process)}
        if self.before is not None:
            names = self.before._passing()
            found |= {names[o]: s for o, s in self.before.sources.items() if o in names and o != self.taken}
        return found

    @property
    def types(self) -> dict[str, Any]:
        """Output → type of its records."""
        return {name: output_types(process)[output] for name, (process, output) in self.sources.items()}

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs; see :attr:`sources`."""
        return tuple(self.sources)

    def _passing(self) -> dict[str, str]:
        """Output → the name under which it passes the next process of a chain."""
        return {o: o if "." in o else f"{self.process.name}.{o}" for o in self.sources}

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
        return raw.select("output", "chunk").mapInArrow(RowReader(), ROWS_SCHEMA)

    def key_by(
        self, by: str | Sequence[str], *, output: str = "main", key_groups: int | None = None
    ) -> EmittedStream:
        """Give the records of an output new keys, for the next process of a chain.

        All is one query. The records have the time of their cause and are not judged for lateness
        again; what is on time is merged with the next process's timers in order of time. The other
        outputs pass it by, named ``Process.output``. Control events go on to it.

        Args:
            by: Field of the records that is the key, or several.
            output: The output whose records go on.
            key_groups: Number of key groups; as before, unless given.

        Raises:
            KeyingError: The output or a field of it does not exist, or cannot be a key.

        Example:
            >>> cards = keyed(transactions, by="card", event_time="at").process(Cards())  # doctest: +SKIP
            >>> cards.key_by("terminal").process(Terminals())["main"]  # doctest: +SKIP
            DataFrame[terminal: string, ...]
        """
        if output not in self.sources:
            raise KeyingError(
                f"{self.process.name} has no output '{output}'; it has {', '.join(self.sources)}"
            )
        keys = (by,) if isinstance(by, str) else tuple(by)
        schema = struct_type(self.types[output])
        return EmittedStream(self, output, _key_types(self.process, schema, keys), key_groups)

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
        process = self.process
        states = {s.name: s.describe() for s in process.states}
        made = {
            "process": process.name,
            "version": process.version,
            "key": list(self.keyed_by.keys),
            "key_groups": self.keyed_by.key_groups,
            "hash": "crc32",
            "encoding": ENCODING_VERSION,
            "time_domain": "event_time",
            "order": order_of(process).mode,
            **({"definition": described} if (described := process.describe()) else {}),
            "states": states,
        }
        return made if self.before is None else _chained(self.before.contract(), made, self.taken)


def _chained(before: dict[str, Any], last: dict[str, Any], taken: str) -> dict[str, Any]:
    """Return the contract of a chain: what each link depends on, and the states of all of them."""

    def of_link(contract: dict[str, Any]) -> dict[str, Any]:
        name = contract["process"]

        def led(text: str) -> str:
            return f"{name}.{text}"

        return {
            led(state): {**about, **({"alias": list(map(led, about["alias"]))} if "alias" in about else {})}
            for state, about in contract["states"].items()
        }

    links = before.get("links") or [_without_state(before)]
    return {
        "process": f"{before['process']} > {last['process']}",
        "links": [*links, {**_without_state(last), "takes": taken}],
        "states": {**(before["states"] if "links" in before else of_link(before)), **of_link(last)},
    }


def _without_state(contract: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in contract.items() if name != "states"}


@dataclass(frozen=True)
class EmittedStream:
    """What a process emitted, by a new key; made by :meth:`ProcessedStream.key_by`."""

    stream: ProcessedStream
    output: str
    keys: dict[str, type]
    key_groups: int | None = None

    def process(self, process: KeyedProcess[Any, Any]) -> ProcessedStream:
        """Run the next process of the chain over the records; nothing starts before a query does.

        Raises:
            ProcessDefinitionError: The process class is not complete.
            KeyingError: It is in the chain already.
        """
        check_process(process)
        _refuse_local_types(process)
        before = self.stream
        if any(process.name == p.name for p, _ in before.sources.values()):
            raise KeyingError(f"{process.name} is in the chain already: give one of them another `name`")
        groups = self.key_groups or before.keyed_by.key_groups
        keyed_by = _Keyed(tuple(self.keys), groups, before.keyed_by.bound_ms)
        names = {o: n for o, n in before._passing().items() if o != self.output}
        repacker = Repacker(self.output, tuple(self.keys.items()), group_labels(groups), names)
        rows = before._run(forwards=True).mapInArrow(repacker, CHAINED_SCHEMA)
        events = JsonEvents(process.event_type, process.control_type)
        return ProcessedStream(process, keyed_by, _Plan(rows, events, True), before, self.output)


def _key_types(process: KeyedProcess[Any, Any], schema: t.StructType, keys: Sequence[str]) -> dict[str, type]:
    """Return the fields that make a key with their types.

    Raises:
        KeyingError: One of them is not there, or cannot be part of a key.
    """
    found: dict[str, type] = {}
    for key in keys:
        if key not in schema.names:
            raise KeyingError(
                f"{process.name} has no field {key} to key by; it has {', '.join(schema.names)}"
            )
        kind = type(schema[key].dataType)
        if kind not in _KEY_TYPES:
            raise KeyingError(
                f"the key {key} of {process.name} is a {schema[key].dataType.simpleString()}; "
                "keys are text, whole numbers or bools"
            )
        found[key] = _KEY_TYPES[kind]
    return found
