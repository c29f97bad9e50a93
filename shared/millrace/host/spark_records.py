"""Emitted records as rows and typed columns: for DataFrames in Spark's workers, for tables in the driver."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from functools import lru_cache, partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from millrace.host.chunks import OutputChunk, decode_output
from millrace.host.spark_types import META_FIELDS, is_record, struct_type, structs_in
from millrace.outputs import output_types

if TYPE_CHECKING:
    from millrace.process import KeyedProcess

#: Records of all outputs as they were emitted.
ROWS_SCHEMA: Final = (
    "output string, event_id string, key string, event_time_ms long, on_time boolean, payload binary"
)
_META = tuple(f.name for f in META_FIELDS)
#: So many records are parsed at once.
_AT_ONCE: Final = 4_000
# What Arrow takes as it is.
_TAKEN: Final = frozenset({bool, bytes, date, datetime, float, int, str, type(None)})


class TypedColumns:
    """Turns the records of one output into typed columns.

    Args:
        tp: Type of the records.
    """

    def __init__(self, tp: Any) -> None:
        spark = t.StructType([*struct_type(tp).fields, *META_FIELDS])
        #: Schema of the tables that :meth:`table` makes.
        self.schema: pa.Schema = to_arrow_schema(spark, timezone="UTC")
        self._names = [name for name in self.schema.names if name not in _META]
        own = [self.schema.field(name) for name in self._names]
        whole = is_record(tp) and not _leaves_out(tp)
        self._plain = _whole if _leaves_out(tp) else _plain
        self._by_arrow = pa.schema([field for field in own if whole and _arrow_reads(field.type)])
        self._others = [field for field in own if field.name not in self._by_arrow.names]
        self._decoder: msgspec.json.Decoder[list[Any]] = msgspec.json.Decoder(list[tp])
        self._read_others = self._decoder.decode
        self._fields: dict[str, Callable[[Any], Any]] | None = None
        if is_record(tp) and isinstance(tp, type):
            self._fields = {f.encode_name: attrgetter(f.name) for f in msgspec.structs.fields(tp)}
            self._read_others = msgspec.json.Decoder(list[self._narrow(tp)]).decode  # type: ignore[misc]
        elif is_record(tp):  # a union
            self._fields = {name: partial(_field, name) for name in self._names}

    def records(self, payloads: Sequence[bytes]) -> list[Any]:
        """Return the records themselves."""
        return self._decoder.decode(_array(payloads))

    def table(self, chunk: OutputChunk) -> pa.Table:
        """Return records with typed columns: their own, then identity, time and whether on time."""
        count = len(chunk.payloads)
        if count <= _AT_ONCE:
            return self._table(chunk)
        # What one part took in memory is there again for the next one, and still near the processor: for
        # a large batch as a whole the system gives every page anew, filled with zeros first.
        parts = range(0, count, _AT_ONCE)
        return pa.concat_tables([self._table(chunk.part(at, at + _AT_ONCE)) for at in parts])

    def _table(self, chunk: OutputChunk) -> pa.Table:
        when = pa.array(chunk.times, pa.int64())
        meta = [
            pa.array(chunk.event_ids, pa.string()),
            pc.multiply(when, 1000).cast(pa.timestamp("us", "UTC")),
            pa.array([bool(byte & 1) for byte in chunk.on_time], pa.bool_()),
        ]
        return pa.Table.from_arrays([*self._columns(chunk.payloads), *meta], schema=self.schema)

    def _columns(self, payloads: Sequence[bytes]) -> list[Any]:
        found: dict[str, Any] = {}
        if self._by_arrow.names:
            found = _read_json(payloads, self._by_arrow)
        if self._others:
            records = self._read_others(_array(payloads))
            for field in self._others:
                values = records
                if self._fields is not None:
                    read = self._fields[field.name]
                    values = [self._plain(read(record)) for record in records]
                found[field.name] = pa.array(values, field.type)
        return [found[name] for name in self._names]

    def _narrow(self, tp: Any) -> Any:
        """Return a type with only the fields that Arrow does not read."""
        wanted = {field.name for field in self._others}
        if len(wanted) == len(self._names):
            return tp
        kept = [f for f in msgspec.structs.fields(tp) if f.encode_name in wanted]
        fields: Any = [(f.name, f.type) for f in kept]
        return msgspec.defstruct(tp.__name__, fields, rename={f.name: f.encode_name for f in kept}, gc=False)


@dataclass(frozen=True)
class TypedReader:
    """Turns chunks of one output into typed rows; pass it to ``mapInArrow``.

    Args:
        process: The process that emitted them.
        output: Name of the output.
    """

    process: KeyedProcess[Any, Any]
    output: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Unpack the chunks of one partition."""
        columns = TypedColumns(output_types(self.process)[self.output])
        for batch in batches:
            for chunk in batch["chunk"].to_pylist():
                yield from columns.table(decode_output(chunk)).to_batches()


class RowReader:
    """Turns chunks into rows of ``ROWS_SCHEMA``; pass it to ``mapInArrow``."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Unpack the chunks of one partition."""
        for batch in batches:
            for output, packed in zip(batch["output"].to_pylist(), batch["chunk"].to_pylist(), strict=True):
                chunk = decode_output(packed)
                columns = [
                    pa.array([output] * len(chunk.keys), pa.string()),
                    pa.array(chunk.event_ids, pa.string()),
                    pa.array(chunk.keys, pa.string()),
                    pa.array(chunk.times, pa.int64()),
                    pa.array([bool(byte & 1) for byte in chunk.on_time], pa.bool_()),
                    pa.array(chunk.payloads, pa.binary()),
                ]
                names = ["output", "event_id", "key", "event_time_ms", "on_time", "payload"]
                yield pa.RecordBatch.from_arrays(columns, names=names)


def _array(payloads: Sequence[bytes]) -> bytes:
    return b"[" + b",".join(payloads) + b"]"


def _leaves_out(tp: Any) -> bool:
    """Return whether some of a record may not be written, and is known by its default: Arrow has none."""
    return any(of.__struct_config__.omit_defaults for of in structs_in(tp))  # type: ignore[attr-defined]


def _arrow_reads(kind: pa.DataType) -> bool:
    """Return whether Arrow's JSON reader gives a column as it was written.

    It takes base64 for text, knows not all forms of a time, and wants maps as lists of pairs.
    """
    if pa.types.is_struct(kind):
        return all(_arrow_reads(field.type) for field in kind)
    if pa.types.is_list(kind):
        return _arrow_reads(kind.value_type)
    return any(is_a(kind) for is_a in (pa.types.is_string, pa.types.is_int64, pa.types.is_float64,
                                       pa.types.is_boolean))  # fmt: skip


def _read_json(payloads: Sequence[bytes], schema: pa.Schema) -> dict[str, pa.ChunkedArray]:
    """Return columns of one JSON object per payload; other members are left unread."""
    from pyarrow import json as arrow_json

    text = b"\n".join(payloads)
    table = arrow_json.read_json(
        pa.BufferReader(text),
        read_options=arrow_json.ReadOptions(
            use_threads=False, block_size=max(1 << 20, min(len(text) + 1, 8 << 20))
        ),
        parse_options=arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
    )
    return {name: table[name] for name in schema.names}


def _plain(value: Any) -> Any:
    """Return a field as Arrow takes it: structs as dicts, times and bytes as they are."""
    return (
        value if type(value) in _TAKEN else msgspec.to_builtins(value, builtin_types=(bytes, date, datetime))
    )


def _whole(value: Any) -> Any:
    """Return a field as :func:`_plain` does, of a record that has fields with their default left out."""
    if isinstance(value, msgspec.Struct):
        config = value.__struct_config__
        tagged = {config.tag_field: config.tag} if config.tag_field is not None else {}
        return tagged | {
            name: _whole(getattr(value, field)) for name, field in _fields_of(type(value)).items()
        }
    if isinstance(value, dict):
        return {_plain(key): _whole(of) for key, of in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_whole(of) for of in value]
    return _plain(value)


def _field(name: str, record: Any) -> Any:
    """Return a column of one struct of a union: null where it has none."""
    config = record.__struct_config__
    if name == config.tag_field:
        return config.tag
    attribute = _fields_of(record.__class__).get(name)
    return None if attribute is None else getattr(record, attribute)


@lru_cache(maxsize=1_000)
def _fields_of(tp: type[msgspec.Struct]) -> dict[str, str]:
    """Return how the fields of a record are called, and its attributes."""
    return {field.encode_name: field.name for field in msgspec.structs.fields(tp)}
