"""The front of a plan on Spark: rows of a DataFrame with their key, event time and key group."""

from __future__ import annotations

from collections.abc import Sequence
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
from millrace.host.packing import FIRST_MS, LAST_MS, PACKED_SCHEMA, Packer
from millrace.host.spark_types import struct_type
from millrace.host.system import IDLE_PREFIX
from millrace.state.specs import type_name

#: What a field of a key may be; its restrictions are judged when the whole event is decoded.
KEY_TYPES: Final[dict[type[t.DataType], type]] = {t.StringType: str, t.LongType: int, t.BooleanType: bool}


class KeyingError(UserError):
    """The key, event time or other columns given to :func:`keyed` do not fit the DataFrame."""


@dataclass(frozen=True)
class Source:
    """A DataFrame with a key and an event time; :func:`millrace.host.spark.keyed` says what is what."""

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
    unknown_version: Column | None = None


@dataclass(frozen=True)
class ProcessInput:
    """A source as an input of a process.

    Args:
        source: The source.
        owner: Name of the process, for errors.
        event_type: Type of the events.
        mark: What goes in front of each event to say by which input it came.
    """

    source: Source
    owner: str
    event_type: Any
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

    def check(self) -> None:
        """Refuse a source that does not have what the events need.

        Raises:
            KeyingError: It says what is missing.
        """
        if self.source.value is not None:
            return
        missing = [name for name in self.fields if name not in self.source.df.columns]
        if missing:
            raise KeyingError(
                f"{self.owner} reads {', '.join(missing)}, which the stream does not have; "
                f"it has {', '.join(self.source.df.columns)}"
            )

    def packed(self) -> DataFrame:
        """Find key, event time and key group in workers, and make a row per key group."""
        columns = [F.col(self.source.value or "").cast("binary").alias("_value")]
        if self.source.source_id is not None:
            columns.append(self.source.source_id.cast("string").alias("_source_id"))
        if self.source.headers is not None:
            columns.append(self.source.headers.alias("_headers"))
        if self.source.control is not None:
            columns.append(F.coalesce(self.source.control, F.lit(False)).alias("_control"))
        if self.source.skew_ms is not None and self.source.arrived_at is not None:
            arrived = F.unix_millis(self.source.arrived_at.cast("timestamp")).cast("double")
            columns.append(F.coalesce(arrived, F.lit(float("inf"))).alias("_arrived"))
        if self.source.unknown_version is not None:
            columns.append(self.source.unknown_version.alias("_unknown_version"))
        is_ms = self._event_time_is_ms()
        schema = struct_type(self.event_type)
        packer = Packer(
            keys=tuple(key_types(self.owner, schema, self.source.keys).items()),
            event_time=(self.source.event_time, int if is_ms else datetime),
            labels=group_labels(self.source.key_groups),
            skew_ms=self.source.skew_ms,
            keep_all_headers=self.source.keep_all_headers,
            mark=self.mark,
        )
        return self.source.df.select(*columns).mapInArrow(packer, PACKED_SCHEMA)

    def _event_time_is_ms(self) -> bool:
        fields = self.fields
        absent = [name for name in (*self.source.keys, self.source.event_time) if name not in fields]
        if absent:
            raise KeyingError(f"{self.owner}'s event type has no field {', '.join(absent)}")
        schema = struct_type(self.event_type)
        key_types(self.owner, schema, self.source.keys)
        kind = schema[self.source.event_time].dataType
        if not isinstance(kind, t.LongType | t.TimestampType):
            raise KeyingError(
                f"the event time {self.source.event_time} of {self.owner} is a {kind.simpleString()}; "
                "it must be a datetime or UTC milliseconds as an int"
            )
        return isinstance(kind, t.LongType)

    def timed(self) -> DataFrame:
        """Add key text, event time (ms), row kind and the column that carries the watermark."""
        df, keys, when = self._key_and_time_columns()
        when = F.when(when.between(FIRST_MS, LAST_MS), when)
        control = (
            F.coalesce(self.source.control, F.lit(False)) if self.source.control is not None else F.lit(False)
        )
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
        if self.source.value is None:
            when = F.col(self.source.event_time)
            kind = self.source.df.schema[self.source.event_time].dataType
            if isinstance(kind, t.TimestampType):
                when = F.unix_millis(when)
            elif not isinstance(kind, t.IntegralType):
                raise KeyingError(
                    f"the event time {self.source.event_time} is a {kind.simpleString()}; "
                    "it must be a timestamp (with time zone) or UTC milliseconds as an integer"
                )
            return self.source.df, [F.col(k).cast("string") for k in self.source.keys], when.cast("long")
        is_ms = self._event_time_is_ms()
        wanted = [t.StructField(k, t.StringType()) for k in dict.fromkeys(self.source.keys)]
        wanted.append(t.StructField(self.source.event_time, t.LongType() if is_ms else t.TimestampType()))
        parsed = F.from_json(F.col(self.source.value).cast("string"), t.StructType(wanted))
        # A column of its own, so that the JSON is parsed once and not once per field.
        df = self.source.df.withColumn("_parsed", parsed)
        when = F.col("_parsed").getField(self.source.event_time)
        return (
            df,
            [F.col("_parsed").getField(k) for k in self.source.keys],
            when if is_ms else F.unix_millis(when),
        )

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
        if self.mark:
            event = F.when(F.col("_kind") == CONTROL, event).otherwise(F.concat(F.lit(self.mark), event))
        columns.append(event.alias("_value"))
        if headers if headers is not None else self.source.headers is not None:
            columns.append(self._header_text(df).alias("_headers"))
        return df.select(*columns, *keep)

    def _event(self) -> Column:
        """Return the event as JSON bytes, which keep what pandas would not: nulls beside large integers."""
        if self.source.value is not None:
            return F.col(self.source.value).cast("binary")
        fields = []
        wants = struct_type(self.event_type)
        for name in self.fields:
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
