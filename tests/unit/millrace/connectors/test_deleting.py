"""Rows that are deleted: those that stay are as old as before, and what the log says is true of them."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from millrace.connectors import deleting, gathering
from millrace.connectors.gathering import Written, files_of, is_gathered, written_of
from millrace.connectors.upkeep import compact, expire
from millrace.dashboard.tables import DeltaReader
from millrace.privacy.erasure import Names, delete_rows, delete_where


def append(folder: Path, *numbers: int) -> None:
    rows = {
        "n": list(numbers),
        "user": [None if n % 4 == 3 else f"u{n % 4}" for n in numbers],
        "event": pa.array(
            [None if n % 5 == 4 else {"card_id": f"c{n % 5}"} for n in numbers],
            pa.struct([("card_id", pa.string())]),
        ),
        "score": [float("nan") if n % 6 == 5 else n / 2 for n in numbers],
        "_event_time": pa.array([n * 1_000_000 for n in numbers], pa.timestamp("us", "UTC")),
    }
    write_deltalake(str(folder), pa.table(rows), mode="append")
    time.sleep(0.002)  # so that each is dated by itself


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table of a large file, of five that were appended, and of two small ones."""
    monkeypatch.setattr(gathering, "_GROUP_ROWS", 4)
    for n in range(5):
        append(tmp_path / "t", *range(n * 3, n * 3 + 3))
    compact(tmp_path / "t")
    append(tmp_path / "t", 15, 16)
    append(tmp_path / "t", 17)
    return tmp_path / "t"


def dated(folder: Path) -> list[tuple[int, int]]:
    """Return numbers and when each was written, in the order of writing."""
    found = []
    for file in files_of(DeltaTable(str(folder))):
        numbers = DeltaReader(folder, lambda: 0)._read(str(folder / file.name), ["n"])["n"].to_pylist()
        whole = [Written(file.at_ms, len(numbers))]
        times = written_of(folder / file.name) if is_gathered(file.name) else whole
        found += zip(numbers, (one.at_ms for one in times for _ in range(one.rows)), strict=True)
    return found


def test_rows_that_stay_are_as_old_and_in_the_order_as_before(table: Path) -> None:
    before, files = dated(table), files_of(DeltaTable(str(table)))
    assert delete_where(table, {"user": ["u1", "it's"], "event.card_id": ["c0"]}) == 8
    gone = {n for n in range(18) if n % 4 == 1 or n % 5 == 0}
    assert dated(table) == [(n, at) for n, at in before if n not in gone]
    assert [file.at_ms for file in files_of(DeltaTable(str(table)))] == [files[0].at_ms, files[1].at_ms]
    assert delete_where(table, {"user": ["u1"], "event.card_id": []}) == 0
    assert delete_where(table, {}) == delete_where(table / "none", {"user": ["u1"]}) == 0


def test_a_file_without_such_rows_stays_and_one_of_such_alone_goes(table: Path) -> None:
    version, files = DeltaTable(str(table)).version(), files_of(DeltaTable(str(table)))
    assert expire(table, before_ms=15_000).rows == 15
    assert [file.name for file in files_of(DeltaTable(str(table)))] == [file.name for file in files[1:]]
    assert expire(table, before_ms=15_000).rows == 0
    assert DeltaTable(str(table)).version() == version + 1


def test_what_the_log_says_of_columns_is_true_of_what_stays(table: Path) -> None:
    names = Names(("u0",))
    assert delete_rows(table, ("user", "no_such"), names) == 5
    assert expire(table, before_ms=5_000).rows == 3
    stay = [n for n in range(5, 15) if n % 4]
    said = {
        key: value
        for key, value in files_of(DeltaTable(str(table)))[0].statistics.items()
        if value is not None
    }
    assert {key: said.get(key) for key in ("num_records", "min.n", "max.n", "min.user", "max.user")} == {
        "num_records": len(stay), "min.n": 5, "max.n": 14, "min.user": "u1", "max.user": "u2",
    }  # fmt: skip
    assert said["null_count.user"] == sum(n % 4 == 3 for n in stay)
    assert said["min._event_time"] == datetime.fromtimestamp(5, UTC)
    assert said["max._event_time"] == datetime.fromtimestamp(14, UTC)
    assert (said["min.score"], said["max.score"]) == (3.0, 7.0)
    for n in range(18):
        rows = DeltaTable(str(table)).to_pyarrow_table(filters=[("n", "=", n)])
        assert rows.num_rows == (n in stay or n in (15, 17))


def test_what_somebody_else_changes_meanwhile_is_deleted_from_too(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = deleting.replace
    left = ["optimizes", "appends"]

    def late(*args: Any, **more: Any) -> bool:
        if left:
            if left.pop() == "appends":
                append(table, 20)
            else:
                DeltaTable(str(table)).optimize.compact()
        return replace(*args, **more)

    monkeypatch.setattr(deleting, "replace", late)
    assert delete_where(table, {"user": ["u2"]}) == 4  # beside an append
    assert delete_where(table, {"user": ["u1"]}) == 5  # again, behind a compaction
    found = DeltaTable(str(table)).to_pyarrow_table()["n"].to_pylist()
    assert sorted(found) == [n for n in [*range(18), 20] if n % 4 not in (1, 2)]
    held = {file.name for file in files_of(DeltaTable(str(table)))}
    made = [path.name for path in table.glob("*gathered-*") if path.name not in held]
    assert sum(name.startswith("_") for name in made) == 0


def test_nothing_is_left_of_what_fails(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {path.name for path in table.iterdir()}

    def failing(*args: Any, **more: Any) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", failing)
    with pytest.raises(OSError, match="full"):
        delete_where(table, {"user": ["u1"]})
    assert {path.name for path in table.iterdir()} == before


def test_of_a_table_that_is_more_than_its_files_the_library_deletes(tmp_path: Path) -> None:
    for n in range(6):
        rows = pa.table({"n": [n], "day": ["a"], "user": [f"u{n % 2}"]})
        write_deltalake(str(tmp_path / "t"), rows, mode="append", partition_by=["day"])
    assert delete_where(tmp_path / "t", {"user": ["u1"]}) == 3
    assert sorted(DeltaTable(str(tmp_path / "t")).to_pyarrow_table()["n"].to_pylist()) == [0, 2, 4]
