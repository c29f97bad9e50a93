"""Columns of records that are JSON: read from it at once, or carried along unread until they are wanted.

Reading a thousand records of sixty fields takes as long as a tenth of their batch. Whoever only has to keep
rows safe leaves those columns in the JSON that they came in, and reads them when there is time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
from pyarrow import json as arrow_json

#: Name of the column that has the JSON of what is not read yet.
UNREAD: Final = "millrace.unread"
#: In a schema's metadata: the schema of the rows once they are read.
_WHOLE: Final = b"millrace.columns"
_BLOCK_BYTES: Final = 1 << 20
_MOST_BLOCK_BYTES: Final = 8 << 20


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
    table = arrow_json.read_json(
        pa.BufferReader(text),
        read_options=arrow_json.ReadOptions(
            use_threads=False, block_size=max(_BLOCK_BYTES, min(len(text) + 1, _MOST_BLOCK_BYTES))
        ),
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
        pyarrow.ArrowInvalid: A value does not fit its column.
    """
    if not is_unread(rows):
        return rows
    schema = pa.ipc.read_schema(pa.py_buffer(rows.schema.metadata[_WHOLE]))
    if not rows.num_rows:
        return schema.empty_table()
    wanted = pa.schema([field for field in schema if field.name not in rows.column_names])
    found = read_json(rows[UNREAD].to_pylist(), wanted)
    return pa.table([found[name] if name in found else rows[name] for name in schema.names], schema=schema)
