"""Tables of an earlier version of an app get what was added since, beside columns and within them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from millrace.connectors.driver_writer import _add_columns

TEXT, WHOLE = pa.string(), pa.int64()
ALL = pa.list_(pa.struct([("a", WHOLE)]))
OLD = pa.schema([("id", TEXT), ("event", pa.struct([("x", WHOLE)])), ("all", ALL)])
ROW = {"id": "a", "event": {"x": 1}, "all": [{"a": 1}]}


@pytest.mark.parametrize(
    ("field", "value", "before"),
    [
        (pa.field("event", pa.struct([("x", WHOLE), ("y", TEXT)])), {"x": 2, "y": "n"}, {"x": 1, "y": None}),
        (
            pa.field("event", pa.struct([("x", WHOLE), ("y", pa.struct([("z", TEXT)]))])),
            {"x": 2, "y": {"z": "n"}},
            {"x": 1, "y": None},
        ),
        (
            pa.field("all", pa.list_(pa.struct([("a", WHOLE), ("b", TEXT)]))),
            [{"a": 2, "b": "n"}],
            [{"a": 1, "b": None}],
        ),
        (pa.field("new", TEXT), "n", None),
    ],
)
def test_what_is_new_is_missing_in_rows_of_before(
    tmp_path: Path, field: pa.Field, value: object, before: object
) -> None:
    path = str(tmp_path / "t")
    write_deltalake(path, pa.Table.from_pylist([ROW], schema=OLD))
    fields = [field if own.name == field.name else own for own in OLD]
    schema = pa.schema(fields if field.name in OLD.names else [*fields, field])
    table = DeltaTable(path)
    _add_columns(table, schema)
    rows = [{**ROW, "id": "b", field.name: value}]
    write_deltalake(table, pa.Table.from_pylist(rows, schema=schema), mode="append")
    found = {row["id"]: row[field.name] for row in DeltaTable(path).to_pyarrow_table().to_pylist()}
    assert found == {"a": before, "b": value}
    version = table.version()
    _add_columns(table, schema)
    assert table.version() == version
