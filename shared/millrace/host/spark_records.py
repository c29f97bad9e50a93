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
from millrace.host.json_columns import (
    MISFIT,
    Misfit,
    RecordMisfits,
    arrow_reads,
    in_halves,
    read_json,
    read_maps,
    reads_map,
    unread,
)
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
        self._by_arrow = pa.schema([field for field in own if whole and arrow_reads(field.type)])
        self._others = [field for field in own if field.name not in self._by_arrow.names]
        #: The other columns, where they are all maps that are read from JSON as the rest is.
        self._maps: pa.Schema | None = None
        if self._by_arrow.names and all(reads_map(field.type) for field in self._others):
            self._maps = pa.schema(self._others)
        self._decoder: msgspec.json.Decoder[list[Any]] = msgspec.json.Decoder(list[tp])
        self._read_others = self._decoder.decode
        self._fields: dict[str, Callable[[Any], Any]] | None = None
        self._come_plain: set[str] = set()
        if is_record(tp) and isinstance(tp, type):
            fields = msgspec.structs.fields(tp)
            self._fields = {f.encode_name: attrgetter(f.name) for f in fields}
            kinds = {f.encode_name: msgspec.inspect.type_info(f.type) for f in fields}
            self._come_plain = {name for name, kind in kinds.items() if _comes_plain(kind)}
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

    def unread(self, chunk: OutputChunk) -> pa.Table:
        """Return records as :meth:`table` does, but for what is quicker left in their JSON for now.

        Of many records at once nothing is: what was read takes less room.
        """
        if not self._by_arrow.names or len(chunk.payloads) > _AT_ONCE:
            return self.table(chunk)
        now = {} if self._maps is not None else self._other_columns(chunk.payloads)
        return unread(chunk.payloads, {**now, **self._meta(chunk)}, self.schema)

    def fitting(self, chunk: OutputChunk) -> tuple[pa.Table, list[Misfit]]:
        """Return records as :meth:`table` does, without those that do not fit its columns, and these."""
        parts, misfits = in_halves(len(chunk.payloads), lambda first, end: self.table(chunk.part(first, end)))
        return pa.concat_tables(parts) if parts else self.schema.empty_table(), [
            Misfit(chunk.event_ids[place], chunk.times[place], chunk.payloads[place], error)
            for place, error in misfits
        ]

    def _table(self, chunk: OutputChunk) -> pa.Table:
        found = {**self._other_columns(chunk.payloads), **self._meta(chunk)}
        if self._by_arrow.names:
            found |= read_json(chunk.payloads, self._by_arrow)
        return pa.Table.from_arrays([found[name] for name in self.schema.names], schema=self.schema)

    def _meta(self, chunk: OutputChunk) -> dict[str, Any]:
        """Return the columns that all tables have: identity, time and whether on time."""
        when = pa.array(chunk.times, pa.int64())
        columns = (
            pa.array(chunk.event_ids, pa.string()),
            pc.multiply(when, 1000).cast(pa.timestamp("us", "UTC")),
            pa.array([bool(byte & 1) for byte in chunk.on_time], pa.bool_()),
        )
        return dict(zip(_META, columns, strict=True))

    def _other_columns(self, payloads: Sequence[bytes]) -> dict[str, Any]:
        """Return the columns that Arrow does not read by itself."""
        if self._maps is not None:
            return read_maps(payloads, self._maps)
        found: dict[str, Any] = {}
        if self._others:
            records = self._read_others(_array(payloads))
            for field in self._others:
                values = records
                if self._fields is not None:
                    values = list(map(self._fields[field.name], records))
                    if field.name not in self._come_plain:
                        values = list(map(self._plain, values))
                found[field.name] = pa.array(values, field.type)
        return found

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
                try:
                    table = columns.table(decode_output(chunk))
                except MISFIT as error:
                    raise RecordMisfits(f"{self.process.name}.{self.output}: {error}") from error
                yield from table.to_batches()


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


def _comes_plain(tp: msgspec.inspect.Type) -> bool:
    """Return whether values of a type are what Arrow takes, as they come from JSON."""
    info = msgspec.inspect
    if isinstance(tp, info.DictType):
        return isinstance(tp.key_type, info.StrType) and _comes_plain(tp.value_type)
    if isinstance(tp, info.ListType):
        return _comes_plain(tp.item_type)
    if isinstance(tp, info.UnionType):
        return all(map(_comes_plain, tp.types))
    return isinstance(tp, info.IntType | info.FloatType | info.BoolType | info.StrType | info.NoneType)


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
