"""The front of a plan on Spark: rows of a DataFrame with their key, event time and key group."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, Final

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as t

from millrace.errors import UserError
from millrace.host.chunks import CONTROL, DATA, FUTURE, NO_TIME, UNKNOWN_VERSION
from millrace.host.groups import group_labels
from millrace.host.key_times import FIRST_MS, LAST_MS, KeyFields
from millrace.host.packing import PACKED_SCHEMA, Packer
from millrace.host.spark_types import struct_type
from millrace.host.system import IDLE_PREFIX
from millrace.inputs import NO_INPUT
from millrace.state.specs import type_name

#: What a field of a key may be; its restrictions are judged when the whole event is decoded.
KEY_TYPES: Final[dict[type[t.DataType], type]] = {t.StringType: str, t.LongType: int, t.BooleanType: bool}


class KeyingError(UserError):
    """The key, event time or other columns given to :func:`keyed` do not fit the DataFrame."""


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
    skew_ms: int | None
    key_groups: int
    unknown_version: Column | None = None
    tag: Column | None = None

    def key_names(self, inputs: Iterable[str] = ("",)) -> tuple[str, ...]:
        """Return the names of the key's parts; what inputs name differently has all its names.

        Args:
            inputs: The inputs, in the order that stands in a contract.
        """
        return joined_names([self.by[name].keys for name in inputs])


def joined_names(keys: Sequence[Sequence[KeyPart]]) -> tuple[str, ...]:
    """Return the names of the parts of a key that comes by several inputs.

    >>> joined_names([["unit", "shop"], ["machine", "shop"]])
    ('unit = machine', 'shop')
    """
    named = [[part if isinstance(part, str) else "(expression)" for part in parts] for parts in keys]
    return tuple(" = ".join(dict.fromkeys(names)) for names in zip(*named, strict=True))


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
        types = key_types(self.owner, schema, keying.fields)
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
            if isinstance(part, str):
                given.append(None)
            else:
                text = F.try_validate_utf8(part.cast("string"))
                given.append(texts.setdefault(id(part), text))
        return self._each(given)

    def packed(self, bound_ms: int) -> DataFrame:
        """Find key, event time and key group in workers, and make a row per key group.

        Args:
            bound_ms: How far the watermark stays behind the newest event.
        """
        inputs = [of.key_fields for of in self.events]
        columns = [F.col(self.source.value or "").cast("binary").alias("_value")]
        if self.source.source_id is not None:
            columns.append(self.source.source_id.cast("string").alias("_source_id"))
        if self.source.headers is not None:
            columns.append(self.source.headers.alias("_headers"))
        if self.source.control is not None:
            columns.append(self._control.alias("_control"))
        if self.source.skew_ms is not None and self.source.arrived_at is not None:
            arrived = F.unix_millis(self.source.arrived_at.cast("timestamp")).cast("double")
            columns.append(F.coalesce(arrived, F.lit(float("inf"))).alias("_arrived"))
        if self.source.unknown_version is not None:
            columns.append(self.source.unknown_version.alias("_unknown_version"))
        if self.source.tag is not None:
            places = [F.lit(place) for place in range(len(inputs))]
            columns.append(self._each(places).cast("int").alias("_input"))
        parts = [of.keying.keys for of in self.events]
        given = [
            p for p, of in enumerate(zip(*parts, strict=True)) if not all(isinstance(k, str) for k in of)
        ]
        columns += [self._given_key(place).alias(_given_name(place)) for place in given]
        packer = Packer(
            inputs=tuple(inputs),
            labels=group_labels(self.source.key_groups),
            skew_ms=self.source.skew_ms,
            keep_all_headers=self.source.keep_all_headers,
            bound_ms=bound_ms if self.source.df.isStreaming else None,
        )
        return self._df.select(*columns).mapInArrow(packer, PACKED_SCHEMA)

    def timed(self) -> DataFrame:
        """Add key text, event time (ms), row kind and the column that carries the watermark."""
        df, keys, when = self._key_and_time_columns()
        when = F.when(when.between(FIRST_MS, LAST_MS), when)
        control = self._control
        text = F.concat(*[F.concat(F.octet_length(k).cast("string"), F.lit(":"), k) for k in keys])
        df = df.withColumn("_key", F.when(~control, text)).withColumn("_time", F.when(~control, when))
        future = F.lit(False)
        if self.source.skew_ms is not None and self.source.arrived_at is not None:
            future = F.coalesce(
                F.col("_time")
                > F.unix_millis(self.source.arrived_at.cast("timestamp")) + self.source.skew_ms,
                F.lit(False),
            )
        unknown = F.lit(False) if self.source.unknown_version is None else self.source.unknown_version
        kind = F.when(control, CONTROL).when(unknown, UNKNOWN_VERSION).when(future, FUTURE).otherwise(DATA)
        moves = F.when(F.col("_kind") == DATA, F.col("_time"))
        if self.source.control is not None and self.source.value is not None:
            text = F.col(self.source.value).cast("string")
            idle = control & text.startswith(IDLE_PREFIX.decode())
            moves = F.when(idle, F.get_json_object(text, "$.at").cast("long")).otherwise(moves)
        return df.withColumn("_kind", kind).withColumn("_watermark", F.timestamp_millis(moves))

    def _key_and_time_columns(self) -> tuple[DataFrame, list[Column], Column]:
        parts = range(len(self.events[0].keying.keys))
        if self.source.value is None:
            keying = self.events[0].keying
            when = F.col(keying.event_time)
            kind = self.source.df.schema[keying.event_time].dataType
            if isinstance(kind, t.TimestampType):
                when = F.unix_millis(when)
            elif not isinstance(kind, t.IntegralType):
                raise KeyingError(
                    f"the event time {keying.event_time} is a {kind.simpleString()}; "
                    "it must be a timestamp (with time zone) or UTC milliseconds as an integer"
                )
            texts_of = [(F.col(k) if isinstance(k, str) else k).cast("string") for k in keying.keys]
            return self.source.df, texts_of, when.cast("long")
        kinds = self._read_before_the_shuffle()
        wanted = t.StructType([t.StructField(name, kind) for name, kind in kinds.items()])
        parsed = F.from_json(F.col(self.source.value).cast("string"), wanted)
        # A column of its own, so that the JSON is parsed once and not once per field.
        df = self._df.withColumn("_parsed", parsed)
        texts = {name: F.col("_parsed").getField(name).cast("string") for name in kinds}
        times = {
            name: F.col("_parsed").getField(name) if kind == t.LongType()
            else F.unix_millis(F.col("_parsed").getField(name))
            for name, kind in kinds.items() if kind != t.StringType()
        }  # fmt: skip
        keys = []
        for place in parts:
            named = [of.keying.keys[place] for of in self.events]
            columns = [texts[name] if isinstance(name, str) else None for name in named]
            found = [self._each(columns)] if any(isinstance(name, str) for name in named) else []
            if not all(isinstance(name, str) for name in named):
                found.append(self._given_key(place))
            keys.append(F.coalesce(*found))
        return df, keys, self._each([times[of.keying.event_time] for of in self.events])

    def _read_before_the_shuffle(self) -> dict[str, t.DataType]:
        """Return the fields of keys and times with the types that they are read as; keys are text.

        Raises:
            KeyingError: A field is one thing in an input and another in the next.
        """
        kinds: dict[str, t.DataType] = {}
        for of in self.events:
            fields = of.key_fields
            name, kind = fields.event_time
            own: dict[str, t.DataType] = {k: t.StringType() for k, tp in fields.keys if tp is not None}
            own[name] = t.LongType() if kind is int else t.TimestampType()
            for field, read_as in own.items():
                if kinds.setdefault(field, read_as) != read_as:
                    raise KeyingError(
                        f"{of.owner} reads {field} as {read_as.simpleString()}, another input as "
                        f"{kinds[field].simpleString()}: the inputs of one stream must agree"
                    )
        return kinds

    def _header_text(self, df: DataFrame) -> Column:
        """Return the headers as text: JSON of what is not text already."""
        headers = self.source.headers if self.source.headers is not None else F.lit(None).cast("string")
        if not isinstance(df.select(headers).schema[0].dataType, t.StringType):
            headers = F.to_json(headers)
        if self.source.keep_all_headers:
            return headers
        unreadable = F.col("_key").isNull() | F.col("_time").isNull()
        return F.when(unreadable | F.col("_kind").isin(FUTURE, UNKNOWN_VERSION), headers)

    def grouped(self, df: DataFrame, *, headers: bool | None = None, keep: tuple[str, ...] = ()) -> DataFrame:
        """Route every row to its key group, control rows to all, and keep what the worker needs.

        Args:
            df: What :meth:`timed` made.
            headers: Whether there is a column of headers, also where this source has none.
            keep: Further columns to keep.
        """
        labels = F.array(*[F.lit(label) for label in group_labels(self.source.key_groups)])
        # An event without a key still needs a place: by its bytes, if there are any.
        places = [F.col("_key")] if self.source.value is None else [F.col("_key"), F.col(self.source.value)]
        hashed = F.coalesce(*(p.cast("binary") for p in places), F.lit(b""))
        label = F.element_at(labels, (F.crc32(hashed) % self.source.key_groups + 1).cast("int"))
        label = F.coalesce(label, F.lit(group_labels(1)[0]))  # never null, as in chunks (packing.py)
        if self.source.control is not None:
            label = F.explode(F.when(F.col("_kind") == CONTROL, labels).otherwise(F.array(label)))
        null = F.lit(None).cast("string")
        columns = [
            label.alias("_group"),
            F.col("_key"),
            F.coalesce(F.col("_time"), F.lit(NO_TIME)).alias("_time"),
            F.col("_kind"),
            (self.source.source_id if self.source.source_id is not None else null)
            .cast("string")
            .alias("_source_id"),
        ]
        event = self._event()
        marks = [F.lit(of.mark) for of in self.events if of.mark]
        if marks:
            mark = F.coalesce(self._each(marks), F.lit(NO_INPUT))
            marked = F.concat(mark, F.coalesce(event, F.lit(b"")))
            event = F.when(F.col("_kind") == CONTROL, event).otherwise(marked)
        columns.append(event.alias("_value"))
        if headers if headers is not None else self.source.headers is not None:
            columns.append(self._header_text(df).alias("_headers"))
        return df.select(*columns, *keep)

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


def key_types(owner: str, schema: t.StructType, keys: Sequence[str]) -> dict[str, type]:
    """Return the fields that make a key with their types.

    Raises:
        KeyingError: One of them is not there, or cannot be part of a key.
    """
    found: dict[str, type] = {}
    for key in keys:
        if key not in schema.names:
            raise KeyingError(f"{owner} has no field {key} to key by; it has {', '.join(schema.names)}")
        kind = type(schema[key].dataType)
        if kind not in KEY_TYPES:
            raise KeyingError(
                f"the key {key} of {owner} is a {schema[key].dataType.simpleString()}; "
                "keys are text, whole numbers or bools"
            )
        found[key] = KEY_TYPES[kind]
    return found
