"""Emitted records as rows and typed columns: for DataFrames in Spark's workers, for tables in the driver."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from millrace.host.chunks import OutputChunk, decode_output
from millrace.host.spark_types import META_FIELDS, is_record, output_types, struct_type

if TYPE_CHECKING:
    from millrace.process import KeyedProcess

#: Records of all outputs as they were emitted.
ROWS_SCHEMA: Final = (
    "output string, event_id string, key string, event_time_ms long, on_time boolean, payload binary"
)
_META = tuple(f.name for f in META_FIELDS)


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
        self._wanted = pa.schema([self.schema.field(n) for n in self._names])
        self._by_arrow = is_record(tp) and _arrow_reads(self._wanted)
        self._decoder: msgspec.json.Decoder[list[Any]] = msgspec.json.Decoder(list[tp])
        self._fields = {f.encode_name: f.name for f in msgspec.structs.fields(tp)} if is_record(tp) else None

    def records(self, payloads: Sequence[bytes]) -> list[Any]:
        """Return the records themselves."""
        return self._decoder.decode(b"[" + b",".join(payloads) + b"]")

    def table(self, chunk: OutputChunk) -> pa.Table:
        """Return records with typed columns: their own, then identity, time and whether on time."""
        when = pa.array(chunk.times, pa.int64())
        meta = [
            pa.array(chunk.event_ids, pa.string()),
            pc.multiply(when, 1000).cast(pa.timestamp("us", "UTC")),
            pa.array([byte == 1 for byte in chunk.on_time], pa.bool_()),
        ]
        return pa.Table.from_arrays([*self._columns(chunk.payloads), *meta], schema=self.schema)

    def _columns(self, payloads: Sequence[bytes]) -> Sequence[Any]:
        if self._by_arrow:
            return _read_json(payloads, self._wanted)
        records = self.records(payloads)
        if self._fields is None:
            values = [records]
        else:
            values = [[_plain(getattr(r, self._fields[name])) for r in records] for name in self._names]
        return [pa.array(v, f.type) for v, f in zip(values, self._wanted, strict=True)]


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
                    pa.array([byte == 1 for byte in chunk.on_time], pa.bool_()),
                    pa.array(chunk.payloads, pa.binary()),
                ]
                names = ["output", "event_id", "key", "event_time_ms", "on_time", "payload"]
                yield pa.RecordBatch.from_arrays(columns, names=names)


def _arrow_reads(schema: pa.Schema) -> bool:
    """Return whether Arrow's JSON reader gives every column as it was written.

    It takes base64 for text and knows not all forms of a time.
    """

    def plain(kind: pa.DataType) -> bool:
        if pa.types.is_struct(kind):
            return all(plain(field.type) for field in kind)
        if pa.types.is_list(kind):
            return plain(kind.value_type)
        return any(is_a(kind) for is_a in (pa.types.is_string, pa.types.is_int64, pa.types.is_float64,
                                           pa.types.is_boolean))  # fmt: skip

    return all(plain(field.type) for field in schema)


def _read_json(payloads: Sequence[bytes], schema: pa.Schema) -> list[pa.ChunkedArray]:
    """Return the columns of one JSON object per payload."""
    from pyarrow import json as arrow_json

    text = b"\n".join(payloads)
    table = arrow_json.read_json(
        pa.BufferReader(text),
        read_options=arrow_json.ReadOptions(block_size=max(1 << 20, min(len(text) + 1, 8 << 20))),
        parse_options=arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
    )
    return [table[name] for name in schema.names]


def _plain(value: Any) -> Any:
    """Return a field as plain data where it holds structs."""
    if isinstance(value, msgspec.Struct) or (
        isinstance(value, Sequence) and value and isinstance(value[0], msgspec.Struct)
    ):
        return msgspec.to_builtins(value)
    if isinstance(value, dict):
        return {name: _plain(of) for name, of in value.items()}
    return value
