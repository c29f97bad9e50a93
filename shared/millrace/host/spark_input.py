"""The front of a plan on Spark: rows of a DataFrame with their key, event time and key group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, Final, Literal

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as t

from millrace.contracts.formats import Format, Formatted, format_of
from millrace.errors import UserError
from millrace.host.groups import group_labels
from millrace.host.key_times import KeyFields
from millrace.host.packing import PACKED_SCHEMA, ClockNow, Masking, Packer
from millrace.host.spark_types import struct_type
from millrace.state.specs import type_name
from millrace.time.clock import Follow
from millrace.topology.keys import KeyingError, key_types

#: How a topology runs; see :func:`millrace.host.spark.keyed`.
Plan = Literal["chain", "station"]
#: Stands for the identity of a Kafka record, ``topic:partition:offset``, which is made where it is needed.
KAFKA_PLACE: Final = "$place"
#: A part of a key: the name of a field, or an expression.
KeyPart = str | Column


@dataclass(frozen=True)
class Keying:
    """Where the events of an input have their key and their time.

    Args:
        keys: Parts of the key.
        event_time: Field of the event time.
    """

    keys: tuple[KeyPart, ...]
    event_time: str

    @property
    def fields(self) -> tuple[str, ...]:
        """The parts of the key that are fields of the events."""
        return tuple(key for key in self.keys if isinstance(key, str))


@dataclass(frozen=True)
class Source:
    """A DataFrame with a key and an event time; :func:`millrace.host.spark.keyed` says what is what.

    Attributes:
        by: Input → where its events have key and time; the only one of a stream without ``tag`` is ``""``.
        tag: Of a stream that has all inputs of a process: the name of each row's.
        future_ms: How far an event's time may be ahead of its arrival, ms.
        place: The columns that tell where a row stands: source, partition of it, offset.
        clock: Whether the stream, or each of its inputs, is a clock.
        clock_skew_ms: How much after its arrival an event may claim to have happened; ``None``: any time.
        limit: The most that one batch takes, or that of each of several readers by their topics; ``None``: as
            the plan says.
        full_batches: So many full batches in a row hold time back together.
        follow: Whether time is that of the source which is ahead, or of the one that is behind.
        idle_after_ms: How long a source that is behind is waited for.
        control_time: Text of the event time from which on a control event holds.
        plan: ``chain`` or ``station``: whether key groups are told apart before events get to them.
        stations: How many stations there are; events are told apart by the first part of their keys.
        locality: Name of that part; ``None``: keys do not begin with the same one.
        masking: What is done to events, headers and keys where they are read.
        format: Format of the events, or of those of each input.
        registry: Where their schemas are; ``None``: they are JSON and nothing else.
        by_place: Whether a row's identity is its place, in which case there is no ``source_id``.
    """

    df: DataFrame
    by: dict[str, Keying]
    value: str | None
    bound_ms: int
    source_id: Column | None
    headers: Column | None
    keep_all_headers: bool
    control: Column | None
    arrived_at: Column | None
    future_ms: int | None
    key_groups: int
    unknown_version: Column | None = None
    tag: Column | None = None
    place: tuple[Column | None, Column | None, Column | None] = (None, None, None)
    clock: bool | Mapping[str, bool] = True
    clock_skew_ms: int | None = 0
    limit: int | Mapping[str, int] | None = None
    full_batches: int = 2
    follow: Follow = "furthest"
    idle_after_ms: int | None = None
    control_time: Column | None = None
    plan: Plan = "chain"
    stations: int = 1
    locality: str | None = None
    masking: Masking | None = None
    format: Format | Mapping[str, Format] = "json"
    registry: str | Mapping[str, Any] | None = field(default=None, repr=False)
    by_place: bool = False

    @property
    def is_station(self) -> bool:
        """Whether all that comes goes to one place, or to one of several stations."""
        return self.plan == "station" and self.df.isStreaming

    def clocks(self, inputs: Iterable[str] = ("",)) -> tuple[bool, ...]:
        """Return whether each input is a clock."""
        if isinstance(self.clock, bool):
            return tuple(self.clock for _ in inputs)
        return tuple(self.clock.get(name, True) for name in inputs)


@dataclass(frozen=True)
class EventsOf:
    """The events of one input of a process.

    Args:
        owner: Name of the process, and of the input if there are several, for errors.
        event_type: Type of the events.
        keying: Where they have key and time.
        name: Name of the input in the source's ``tag``.
        mark: What goes in front of each event to say by which input it came.
    """

    owner: str
    event_type: Any
    keying: Keying
    name: str = ""
    mark: bytes = b""

    @cached_property
    def fields(self) -> tuple[str, ...]:
        """Names of the events' fields."""
        try:
            return tuple(f.encode_name for f in msgspec.structs.fields(self.event_type))
        except TypeError:
            raise KeyingError(
                f"{self.owner}'s events are {type_name(self.event_type)}; here they must be a msgspec struct"
            ) from None

    @cached_property
    def key_fields(self) -> KeyFields:
        """Where workers find key and time; the types are checked.

        Raises:
            KeyingError: The event type does not have what is named.
        """
        keying, fields = self.keying, self.fields
        absent = [name for name in (*keying.fields, keying.event_time) if name not in fields]
        if absent:
            raise KeyingError(f"{self.owner}'s event type has no field {', '.join(absent)}")
        schema = struct_type(self.event_type)
        types = key_types(self.owner, self.event_type, keying.fields)
        kind = schema[keying.event_time].dataType
        if not isinstance(kind, t.LongType | t.TimestampType):
            raise KeyingError(
                f"the event time {keying.event_time} of {self.owner} is a {kind.simpleString()}; "
                "it must be a datetime or UTC milliseconds as an int"
            )
        keys = [
            (k, types[k]) if isinstance(k, str) else (_given_name(i), None) for i, k in enumerate(keying.keys)
        ]
        time = (keying.event_time, int if isinstance(kind, t.LongType) else datetime)
        return KeyFields(tuple(keys), time, self.mark)


def _given_name(place: int) -> str:
    """Return the column that carries a part of the key which an expression gives."""
    return f"_key{place}"


@dataclass(frozen=True)
class ProcessInput:
    """A source as what a process reads: one input of it, or all that it has.

    Args:
        source: The source.
        events: Its events; of several inputs if the source has a tag.
    """

    source: Source
    events: tuple[EventsOf, ...]

    def check(self) -> None:
        """Refuse a source that does not have what the events need.

        Raises:
            KeyingError: It says what is missing.
        """
        if self.source.value is not None:
            return
        (of,) = self.events
        missing = [name for name in of.fields if name not in self.source.df.columns]
        if missing:
            raise KeyingError(
                f"{of.owner} reads {', '.join(missing)}, which the stream does not have; "
                f"it has {', '.join(self.source.df.columns)}"
            )

    @cached_property
    def formats(self) -> tuple[Formatted | None, ...]:
        """Format of each input's events; ``None`` where they are JSON and nothing else.

        Raises:
            KeyingError: It has no schema registry, or there is no such format.
        """
        source, found = self.source, []
        for of in self.events:
            told = source.format if isinstance(source.format, str) else source.format.get(of.name)
            registry = None if told is None else source.registry
            try:
                found.append(format_of(f"{of.owner}'s events", told or "json", registry, of.event_type))
            except UserError as error:
                raise KeyingError(str(error)) from error
        return tuple(found)

    @cached_property
    def _control(self) -> Column:
        control = self.source.control
        return F.lit(False) if control is None else F.coalesce(control, F.lit(False))

    @cached_property
    def _df(self) -> DataFrame:
        """The rows, with the name of the input that each is of if there are several.

        It is a column of its own, so that it is found once and not once per use.
        """
        if self.source.tag is None:
            return self.source.df
        return self.source.df.withColumn("_tag", F.when(~self._control, self.source.tag))

    def _each(self, values: Sequence[Column | None]) -> Column:
        """Return for every row what is given of its input; null where it has none.

        Args:
            values: What holds for each input; the same one is written down once.
        """
        if self.source.tag is None:
            return values[0] if values[0] is not None else F.lit(None)
        alike: dict[int, tuple[Column, list[str]]] = {}
        for of, value in zip(self.events, values, strict=True):
            if value is not None:
                alike.setdefault(id(value), (value, []))[1].append(of.name)
        cases = [F.when(F.col("_tag").isin(names), value) for value, names in alike.values()]
        return F.coalesce(*cases) if cases else F.lit(None)

    def _given_key(self, place: int) -> Column:
        """Return a part of the key where an expression gives it: as text, which others can read."""
        texts: dict[int, Column] = {}
        given: list[Column | None] = []
        for of in self.events:
            part = of.keying.keys[place]
            if not isinstance(part, str):
                text = F.try_validate_utf8(part.cast("string"))
                given.append(texts.setdefault(id(part), text))
            elif self.source.value is None:
                given.append(F.col(part).cast("string"))
            else:
                given.append(None)
        return self._each(given)

    def packed(
        self,
        clock: ClockNow | None,
        place: int = 0,
        readers: Mapping[str, int] | None = None,
        *,
        by_key: bool = False,
    ) -> DataFrame:
        """Find key, event time and key group in workers, and make rows of chunks for key groups.

        Args:
            clock: What the clock goes by; ``None``: the input is bounded and has none.
            place: Place of this stream among those that are connected.
            readers: What reads it, by number: topic → reader, ``""`` for all others.
            by_key: Whether keys have clocks of their own.
        """
        source = self.source
        columns = [self._event().alias("_value")]
        if source.source_id is not None:
            columns.append(source.source_id.cast("string").alias("_source_id"))
        if source.headers is not None:
            columns.append(source.headers.alias("_headers"))
        if source.control is not None:
            columns.append(self._control.alias("_control"))
        if source.control_time is not None:
            columns.append(F.when(self._control, source.control_time).alias("_control_time"))
        if source.arrived_at is not None:
            arrived = F.unix_millis(source.arrived_at.cast("timestamp")).cast("double")
            columns.append(F.when(arrived > 0, arrived).otherwise(float("inf")).alias("_arrived"))
        if clock is not None or source.by_place:
            names = zip(("_source", "_partition", "_offset"), ("string", "int", "long"), strict=True)
            columns += [
                column.cast(kind).alias(name)
                for column, (name, kind) in zip(source.place, names, strict=True)
                if column is not None
            ]
        if source.unknown_version is not None:
            columns.append(source.unknown_version.alias("_unknown_version"))
        if source.tag is not None:
            places = [F.lit(place) for place in range(len(self.events))]
            columns.append(self._each(places).cast("int").alias("_input"))
        if source.value is None:
            columns.append(self._time().alias("_time"))
        parts = zip(*[of.keying.keys for of in self.events], strict=True)
        given = [
            p for p, of in enumerate(parts) if source.value is None or not all(isinstance(k, str) for k in of)
        ]
        columns += [self._given_key(place).alias(_given_name(place)) for place in given]
        packer = Packer(
            inputs=tuple(self._key_fields(of) for of in self.events),
            labels=group_labels(source.stations if source.is_station else source.key_groups),
            future_ms=source.future_ms,
            keep_all_headers=source.keep_all_headers,
            clock=clock,
            place=place,
            readers=dict(readers or {"": 0}),
            by_key=by_key,
            by_locality=source.is_station and source.stations > 1,
            masking=source.masking,
            formats=self.formats if any(self.formats) else (),
            by_place=source.by_place,
        )
        rows = self._df.coalesce(source.stations) if source.is_station else self._df
        return rows.select(*columns).mapInArrow(packer, PACKED_SCHEMA)

    def _key_fields(self, of: EventsOf) -> KeyFields:
        """Return where workers find key and time of the events: of columns, beside the events."""
        if self.source.value is not None:
            return of.key_fields
        return KeyFields(
            tuple((_given_name(p), None) for p in range(len(of.keying.keys))), ("", int), of.mark
        )

    def _time(self) -> Column:
        """Return the event time of events that are columns, ms."""
        (of,) = self.events
        name = of.keying.event_time
        kind = self.source.df.schema[name].dataType
        if isinstance(kind, t.TimestampType):
            return F.unix_millis(F.col(name))
        if isinstance(kind, t.IntegralType):
            return F.col(name).cast("long")
        raise KeyingError(
            f"the event time {name} is a {kind.simpleString()}; "
            "it must be a timestamp (with time zone) or UTC milliseconds as an integer"
        )

    def _event(self) -> Column:
        """Return the event as JSON bytes, which keep what pandas would not: nulls beside large integers."""
        if self.source.value is not None:
            return F.col(self.source.value).cast("binary")
        fields = []
        (of,) = self.events
        wants = struct_type(of.event_type)
        for name in of.fields:
            column = F.col(name)
            is_time = isinstance(self.source.df.schema[name].dataType, t.TimestampType)
            if is_time and wants[name].dataType == t.LongType():
                column = F.unix_millis(column)
            fields.append(column.alias(name))
        return F.to_json(F.struct(*fields), {"ignoreNullFields": "false"}).cast("binary")
