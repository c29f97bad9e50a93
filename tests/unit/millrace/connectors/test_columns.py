"""Tables of an earlier version of an app get what was added since, beside columns and within them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from millrace.connectors.driver_writer import ColumnChanged, _add_columns
from millrace.connectors.merging import AppendedTable

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


FLOAT, TIME = pa.float64(), pa.timestamp("us", "UTC")


@pytest.mark.parametrize(
    ("was", "now", "told"),
    [
        (WHOLE, TEXT, "x was whole number, is now string"),
        (WHOLE, FLOAT, "x was whole number, is now number"),
        (TEXT, pa.list_(TEXT), "x was string, is now array"),
        (pa.struct([("a", WHOLE), ("b", TEXT)]), pa.struct([("a", FLOAT)]), "x.a was whole number"),
        (pa.list_(WHOLE), pa.list_(TEXT), r"x\[\] was whole number"),
        (pa.map_(TEXT, WHOLE), pa.map_(TEXT, pa.bool_()), r"x\[\] was whole number, is now boolean"),
        (TIME, pa.date32(), "x was time, is now date"),
    ],
)
def test_a_column_of_another_type_is_told_before_anything_is_written(
    tmp_path: Path, was: pa.DataType, now: pa.DataType, told: str
) -> None:
    """Else its first batch would fail, now and after each restart."""
    path = str(tmp_path / "t")
    write_deltalake(path, pa.schema([("id", TEXT), ("x", was)]).empty_table())
    with pytest.raises(ColumnChanged, match=rf"{told}.*another table"):
        _add_columns(DeltaTable(path), pa.schema([("id", TEXT), ("x", now), ("y", TEXT)]))
    assert DeltaTable(path).version() == 0


@pytest.mark.parametrize(
    ("was", "now", "value"),
    [(FLOAT, WHOLE, 2), (pa.int32(), WHOLE, 7), (pa.float32(), FLOAT, 1.5), (TIME, TIME, None)],
)
def test_values_of_one_kind_go_into_a_column_that_is_there(
    tmp_path: Path, was: pa.DataType, now: pa.DataType, value: object
) -> None:
    write_deltalake(str(tmp_path / "t"), pa.schema([("x", was)]).empty_table())
    _add_columns(DeltaTable(str(tmp_path / "t")), pa.schema([("x", now)]))
    table = AppendedTable("t", str(tmp_path / "t"), lambda: DeltaTable(str(tmp_path / "t")), "a", keeps=False)
    table.add(pa.table({"x": pa.array([value], now)}), 0)
    assert DeltaTable(str(tmp_path / "t")).to_pyarrow_table()["x"].to_pylist() == [value]
