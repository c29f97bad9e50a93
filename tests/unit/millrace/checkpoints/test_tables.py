"""Real Delta tables after a restore: brought back, or left without what they have already."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from millrace.checkpoints import positions
from millrace.checkpoints.positions import TablePosition, TablePositionError
from millrace.connectors.driver_writer import DriverWriter
from millrace.connectors.router import DeadLetterLimit, Outputs
from millrace.host.chunks import OutputChunk


class Balance(msgspec.Struct):
    user: str
    total: int


def writer(folder: Path, app_id: str, written: dict[str, Path] | None = None) -> DriverWriter:
    stream: Any = SimpleNamespace(types={"main": Balance})
    outputs = Outputs(stream, {"main": "balances"})
    return DriverWriter(outputs, lambda table: str(folder / table), {}, app_id, DeadLetterLimit(), written)


def batch(*numbers: int) -> OutputChunk:
    payloads = [msgspec.json.encode(Balance(f"u{n}", n)) for n in numbers]
    return OutputChunk(
        [f"id-{n}" for n in numbers],
        ["1:u"] * len(payloads),
        list(numbers),
        b"\x01" * len(payloads),
        payloads,
    )


def totals(table: Path) -> list[int]:
    return sorted(DeltaTable(str(table)).to_pyarrow_table().column("total").to_pylist())


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table with four batches of a query: 0, 1-2, 3-4, 5-6."""
    old = writer(tmp_path, "app:old")
    for number, rows in enumerate([(0,), (1, 2), (3, 4), (5, 6)]):
        old._write_table("main", "balances", batch(*rows), number)
    return tmp_path / "balances"


def test_a_table_is_brought_back_to_where_a_batch_left_it(table: Path) -> None:
    kept = positions.position_of(table, "delta", "old", 1)
    assert kept is not None
    assert positions.has_moved(table, kept)
    told = positions.roll_back(table, kept)
    assert told.endswith("back at version 2 (2 files taken out)")
    assert totals(table) == [0, 1, 2]


def test_a_version_that_is_not_kept_any_more_is_told_of(table: Path) -> None:
    with pytest.raises(TablePositionError, match="cannot be brought back to version 99"):
        positions.roll_back(table, TablePosition("delta", 99, "old"))


def test_what_a_table_has_already_is_left_out_of_the_batches_of_a_restored_query(
    table: Path, tmp_path: Path
) -> None:
    kept = positions.position_of(table, "delta", "old", 1)
    assert kept is not None
    ids = positions.ids_written_after(table, kept)
    assert ids == {"id-3", "id-4", "id-5", "id-6"}
    positions.keep_ids(tmp_path / "state", {table: ids})
    (known,) = positions.kept_ids(tmp_path / "state").items()
    new = writer(tmp_path, "app:new", {"balances": known[1]})
    new._write_table("main", "balances", batch(3), 2)  # cut otherwise than before
    new._write_table("main", "balances", batch(4, 5), 3)
    new._write_table("main", "balances", batch(6, 7, 8), 4)
    new._write_table("main", "balances", batch(6, 7, 8), 4)
    assert totals(table) == list(range(9))


def test_what_was_written_since_cannot_be_told_of_a_log_that_was_cleaned(table: Path) -> None:
    kept = positions.position_of(table, "delta", "old", 1)
    assert kept is not None
    (table / "_delta_log" / f"{kept.version + 1:020d}.json").unlink()
    with pytest.raises(TablePositionError, match=f"does not reach back to version {kept.version} any more"):
        positions.ids_written_after(table, kept)


def test_records_without_an_identity_cannot_be_told_apart(table: Path) -> None:
    kept = positions.position_of(table, "delta", "old", 9)
    assert kept is not None
    rows = DeltaTable(str(table)).to_pyarrow_table().slice(0, 1)
    at = rows.schema.get_field_index("_event_id")
    nameless = rows.set_column(at, rows.schema.field(at), pa.array([None], pa.string()))
    write_deltalake(
        str(table), nameless, mode="append",
        commit_properties=CommitProperties(app_transactions=[Transaction("app:old:balances", 10)]),
    )  # fmt: skip
    with pytest.raises(TablePositionError, match="records without an _event_id"):
        positions.ids_written_after(table, kept)


def test_records_of_a_parquet_table_are_those_of_its_later_batches(tmp_path: Path) -> None:
    table = tmp_path / "t"
    for number in range(3):
        folder = table / f"batch=abc-{number:08}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"_event_id": [f"id-{number}"]}), folder / "part-0.parquet")
    kept = positions.position_of(table, "parquet", "abc", 0)
    assert kept is not None
    assert positions.ids_written_after(table, kept) == {"id-1", "id-2"}
