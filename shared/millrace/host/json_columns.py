"""Columns of records that are JSON: read from it at once, or carried along unread until they are wanted.

Reading a thousand records of sixty fields takes as long as a tenth of their batch. Whoever only has to keep
rows safe leaves those columns in the JSON that they came in, and reads them when there is time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
from pyarrow import json as arrow_json

#: Name of the column that has the JSON of what is not read yet.
UNREAD: Final = "millrace.unread"
#: In a schema's metadata: the schema of the rows once they are read.
_WHOLE: Final = b"millrace.columns"
_BLOCK_BYTES: Final = 1 << 20
_MOST_BLOCK_BYTES: Final = 8 << 20
#: Types of the values of maps that are read here.
_PYTHON: Final[dict[pa.DataType, Any]] = {
    pa.string(): str, pa.int64(): int, pa.float64(): float, pa.bool_(): bool,
}  # fmt: skip
#: What reading records raises of which one has a value that its column cannot have.
MISFIT: Final = (pa.ArrowException, msgspec.DecodeError, ValueError, TypeError, OverflowError)


class RecordMisfits(Exception):
    """Records have values that their columns cannot have; Spark tells of it by this name."""


class Misfit(NamedTuple):
    """A record that its table cannot take: a value of it is beyond its column's type.

    Attributes:
        event_id: Its identity, if it has one.
        event_time_ms: Time of its cause, ms.
        payload: The record as JSON.
        error: What is wrong with it.
    """

    event_id: str | None
    event_time_ms: int
    payload: bytes
    error: Exception


def arrow_reads(kind: pa.DataType) -> bool:
    """Return whether Arrow's JSON reader gives a column as it was written.

    It takes base64 for text, knows not all forms of a time, and wants maps as lists of pairs.
    """
    if pa.types.is_struct(kind):
        return all(arrow_reads(field.type) for field in kind)
    if pa.types.is_list(kind):
        return arrow_reads(kind.value_type)
    return any(is_a(kind) for is_a in (pa.types.is_string, pa.types.is_int64, pa.types.is_float64,
                                       pa.types.is_boolean))  # fmt: skip


def reads_map(kind: pa.DataType) -> bool:
    """Return whether :func:`read_maps` gives a column as it was written: names with a number or text each."""
    return (
        pa.types.is_map(kind)
        and pa.types.is_string(kind.key_type)
        and any(kind.item_type.equals(known) for known in _PYTHON)
    )


def read_maps(payloads: Sequence[bytes], schema: pa.Schema) -> dict[str, Any]:
    """Return columns of maps of one JSON object per payload; other members are left unread.

    Args:
        payloads: The objects.
        schema: The columns, of types of which :func:`reads_map`.

    Example:
        >>> schema = pa.schema({"a": pa.map_(pa.string(), pa.int64())})
        >>> read_maps([b'{"a":{"x":1},"b":2}', b'{}'], schema)["a"].to_pylist()
        [[('x', 1)], None]
    """
    if not schema.names:
        return {}
    names = {f"map_{number}": name for number, name in enumerate(schema.names)}
    fields: Any = [
        (name, dict[str, _PYTHON[schema.field(column).type.item_type] | None] | None, None)  # type: ignore[misc]
        for name, column in names.items()
    ]
    read_one = msgspec.json.Decoder(msgspec.defstruct("Maps", fields, rename=names)).decode
    rows = list(map(read_one, payloads))
    return {
        column: pa.array([getattr(row, name) for row in rows], schema.field(column).type)
        for name, column in names.items()
    }


def read_json(payloads: Sequence[bytes], schema: pa.Schema) -> dict[str, pa.ChunkedArray]:
    """Return columns of one JSON object per payload; other members are left unread.

    Args:
        payloads: The objects, without line breaks.
        schema: The columns, of types that :func:`arrow_reads`.

    Example:
        >>> read_json([b'{"a":1,"b":"x"}', b'{}'], pa.schema({"a": pa.int64()}))["a"].to_pylist()
        [1, None]
    """
    text = b"\n".join(payloads)
    block = max(_BLOCK_BYTES, min(len(text) + 1, _MOST_BLOCK_BYTES))
    if len(text) >= block:  # a block has at least one whole object
        block = max(block, max(map(len, payloads)) + 1)
    table = arrow_json.read_json(
        pa.BufferReader(text),
        read_options=arrow_json.ReadOptions(use_threads=False, block_size=block),
        parse_options=arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
    )
    return {name: table[name] for name in schema.names}


def unread(payloads: Sequence[bytes], others: dict[str, Any], schema: pa.Schema) -> pa.Table:
    """Return rows some of whose columns are still the JSON that they came in.

    Args:
        payloads: A JSON object per row.
        others: Columns by name that are not in it, or that Arrow's reader does not read.
        schema: Of the rows once they are read.

    Example:
        >>> schema = pa.schema({"a": pa.int64(), "id": pa.string()})
        >>> rows = unread([b'{"a":1}'], {"id": ["x"]}, schema)
        >>> rows.column_names, read(rows).to_pylist()
        (['millrace.unread', 'id'], [{'a': 1, 'id': 'x'}])
    """
    fields = [pa.field(UNREAD, pa.binary()), *(schema.field(name) for name in others)]
    about = {_WHOLE: schema.serialize().to_pybytes()}
    return pa.table([list(payloads), *others.values()], schema=pa.schema(fields, about))


def is_unread(rows: pa.Table) -> bool:
    """Return whether some columns of rows are still the JSON that they came in."""
    return _WHOLE in (rows.schema.metadata or {})


def read(rows: pa.Table) -> pa.Table:
    """Return rows with all of their columns; those that have them as they are.

    Raises:
        Exception: One of ``MISFIT``: a value does not fit its column.
    """
    if not is_unread(rows):
        return rows
    schema = pa.ipc.read_schema(pa.py_buffer(rows.schema.metadata[_WHOLE]))
    if not rows.num_rows:
        return schema.empty_table()
    wanted = pa.schema([field for field in schema if field.name not in rows.column_names])
    payloads = rows[UNREAD].to_pylist()
    maps = pa.schema([field for field in wanted if pa.types.is_map(field.type)])
    found = read_maps(payloads, maps)
    if others := [field for field in wanted if field.name not in found]:
        found |= read_json(payloads, pa.schema(others))
    return pa.table([found[name] if name in found else rows[name] for name in schema.names], schema=schema)


def read_fitting(rows: pa.Table) -> tuple[pa.Table, list[Misfit]]:
    """Return rows as :func:`read` does, without those that do not fit, and these.

    Example:
        >>> schema = pa.schema({"a": pa.int64(), "_event_id": pa.string(), "_event_time": pa.timestamp("us")})
        >>> rows = unread(
        ...     [b'{"a":1}', b'{"a":1e9}'], {"_event_id": ["x", "y"], "_event_time": [0, 5_000]}, schema
        ... )
        >>> found, misfits = read_fitting(rows)
        >>> found["a"].to_pylist(), [misfit[:3] for misfit in misfits]
        ([1], [('y', 5, b'{"a":1e9}')])
    """
    parts, misfits = in_halves(rows.num_rows, lambda first, end: read(rows.slice(first, end - first)))
    found = pa.concat_tables(parts) if parts else read(rows.slice(0, 0))
    of: list[Misfit] = []
    for place, error in misfits:
        one = rows.slice(place, 1)
        at_us = one["_event_time"].cast(pa.int64())[0].as_py()
        of.append(Misfit(one["_event_id"][0].as_py(), at_us // 1000, one[UNREAD][0].as_py(), error))
    return found, of


def in_halves(
    count: int, read_part: Callable[[int, int], pa.Table]
) -> tuple[list[pa.Table], list[tuple[int, Exception]]]:
    """Read rows in as few parts as can be read; return these in order, which rows cannot be, and why.

    Args:
        count: How many rows there are.
        read_part: Reads those from a place up to another; raises one of ``MISFIT``.
    """
    parts: list[pa.Table] = []
    misfits: list[tuple[int, Exception]] = []
    left = [(0, count)] if count else []
    while left:
        first, end = left.pop()
        try:
            parts.append(read_part(first, end))
        except MISFIT as error:
            if end - first == 1:
                misfits.append((first, error))
            else:
                middle = (first + end) // 2
                left += [(middle, end), (first, middle)]
    return parts, misfits
