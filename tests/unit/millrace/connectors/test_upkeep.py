"""Upkeep of Delta tables: few files of many, old ones removed, nothing lost, beside a writer."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from typer.testing import CliRunner

from millrace.checkpoints.positions import TablePosition, ids_written_after, position_of
from millrace.cli.tables import app as tables
from millrace.connectors.upkeep import alone, compact, expire, find_tables, state_of, vacuum
from millrace.errors import UserError

HOUR = 3_600_000


def append(table: Path, *ids: str, batch: int | None = None) -> None:
    """Append rows in a file of their own, as a batch does."""
    commit = None
    if batch is not None:
        commit = CommitProperties(app_transactions=[Transaction("app:0123456789ab:t", batch)])
    write_deltalake(
        str(table),
        pa.table({"_event_id": list(ids), "n": list(range(len(ids)))}),
        mode="append",
        commit_properties=commit,
    )


def ids(table: Path) -> list[str]:
    return sorted(DeltaTable(str(table)).to_pyarrow_table()["_event_id"].to_pylist())


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table of five files."""
    path = tmp_path / "tables" / "alerts"
    for number in range(5):
        append(path, f"a{number}", f"b{number}")
    return path


def test_a_compaction_changes_files_and_nothing_else(table: Path) -> None:
    before = ids(table)
    assert (state_of(table).files, state_of(table).rows) == (5, 10)

    done = compact(table)

    assert (done.before, done.after) == (5, 1)
    assert (state_of(table).files, state_of(table).rows) == (1, 10)
    assert ids(table) == before
    assert compact(table).before == 0


def test_vacuum_removes_what_no_version_has_and_keeps_what_readers_may_need(table: Path) -> None:
    before = ids(table)
    compact(table)

    assert vacuum(table, keep_ms=24 * HOUR).files == 0
    foreseen = vacuum(table, keep_ms=0, dry_run=True)
    assert foreseen.files == 5
    assert foreseen.size > 0
    assert len(list(table.glob("*.parquet"))) == 6

    assert vacuum(table, keep_ms=0) == foreseen
    assert len(list(table.glob("*.parquet"))) == 1
    assert ids(table) == before


def aged(table: Path, days: int) -> None:
    """Have a table's last commit be of some days ago."""
    commit = max((table / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    for removed in [action["remove"] for action in actions if "remove" in action]:
        removed["deletionTimestamp"] -= days * 24 * HOUR
    commit.write_text("".join(json.dumps(action, separators=(",", ":")) + "\n" for action in actions))
    then = time.time() - days * 86_400
    for file in (commit, *table.glob("*.parquet")):
        os.utime(file, (then, then))


def test_vacuum_removes_what_checkpoints_of_the_log_have_left_out(table: Path) -> None:
    before = ids(table)
    compact(table)
    aged(table, 8)
    append(table, "c")
    DeltaTable(str(table)).create_checkpoint()  # it has nothing of what was replaced over a week ago
    assert vacuum(table, keep_ms=9 * 24 * HOUR).files == 0
    foreseen = vacuum(table, keep_ms=7 * 24 * HOUR, dry_run=True)
    assert (foreseen.files, len(list(table.glob("*.parquet")))) == (5, 7)
    assert vacuum(table, keep_ms=7 * 24 * HOUR) == foreseen
    assert len(list(table.glob("*.parquet"))) == 2
    assert ids(table) == [*before, "c"]


def test_vacuum_keeps_old_files_that_were_replaced_lately(table: Path) -> None:
    compact(table)
    aged(table, 8)
    then = time.time() - 20 * 86_400
    for file in table.glob("*.parquet"):
        os.utime(file, (then, then))
    append(table, "c")
    DeltaTable(str(table)).create_checkpoint()
    # Versions of nine days ago have them, however long ago they were written.
    assert vacuum(table, keep_ms=9 * 24 * HOUR).files == 0
    assert vacuum(table, keep_ms=7 * 24 * HOUR).files == 5


def test_vacuum_removes_what_was_cut_off_and_not_what_is_being_written(table: Path) -> None:
    for name in ("_gathered-1", "gathered-2", "part-3", "part-4"):
        (table / f"{name}.parquet").write_bytes(b"rows of somebody")
    then = time.time() - 2 * 86_400
    os.utime(table / "part-4.parquet", (then, then))
    (table / "_waiting").mkdir()
    (table / "_waiting" / "000000000007.arrow").write_bytes(b"rows that wait")
    with alone(table):  # somebody gathers
        assert vacuum(table, keep_ms=0, dry_run=True).files == 1
    assert vacuum(table, keep_ms=0, dry_run=True).files == 3
    assert vacuum(table, keep_ms=0).files == 3
    files = [path for path in table.rglob("*") if path.is_file()]
    left = {path.name for path in files if path.read_bytes().startswith(b"rows")}
    assert left == {"part-3.parquet", "000000000007.arrow"}
    assert len(ids(table)) == 10


def test_a_time_that_is_no_whole_hours_is_refused(table: Path) -> None:
    with pytest.raises(UserError, match="whole hours, not for 1m 30s"):
        vacuum(table, keep_ms=90_000)


def test_a_writer_goes_on_as_if_nothing_had_happened(table: Path) -> None:
    writer = DeltaTable(str(table))
    append(table, "c", batch=7)
    compact(table)
    writer.update_incremental()
    assert writer.transaction_version("app:0123456789ab:t") == 7
    append(table, "d", batch=8)

    assert ids(table)[-2:] == ["c", "d"]
    assert position_of(table, "delta", "0123456789ab", 7) is not None


def test_what_came_after_a_savepoint_is_known_after_a_vacuum_too(table: Path) -> None:
    kept = TablePosition("delta", DeltaTable(str(table)).version(), "0123456789ab")
    append(table, "c1", "c2", batch=8)
    append(table, "d1", batch=9)
    assert ids_written_after(table, kept) == {"c1", "c2", "d1"}

    compact(table)
    vacuum(table, keep_ms=0)

    assert {"c1", "c2", "d1"} <= ids_written_after(table, kept)


def test_tables_are_found_by_name(table: Path) -> None:
    append(table.parent / "late", "x")

    assert [t.name for t in find_tables(table.parent)] == ["alerts", "late"]
    assert find_tables(table.parent, ["late"]) == [table.parent / "late"]
    with pytest.raises(UserError, match=r"no table nope in .*; there is alerts, late"):
        find_tables(table.parent, ["nope"])


def test_the_commands(table: Path) -> None:
    def run(*arguments: str) -> str:
        root = f"storage.root={table.parent.parent}"
        result = CliRunner().invoke(tables, [*arguments, "fraud", "-s", root])
        assert result.exit_code == 0, result.output
        return result.output

    assert "10 rows" in run("list")
    assert json.loads(run("compact", "--format", "json")) == {"name": "alerts", "before": 5, "after": 1}
    assert "nothing to do" in run("compact", "--table", "alerts")
    assert "5 files" in run("vacuum", "--keep", "0h", "--dry-run")
    assert len(list(table.glob("*.parquet"))) == 6
    assert "removed" in run("vacuum", "--keep", "0h")
    assert len(list(table.glob("*.parquet"))) == 1


def test_rows_expire_by_their_event_time_and_others_stay(tmp_path: Path) -> None:
    path = tmp_path / "tables" / "alerts"
    day, now = 24 * HOUR, 1_767_225_600_000
    times = [now - 400 * day - 1, now - 400 * day, now - 399 * day, now]
    for numbers in ([0, 1], [2], [3]):  # what is at the bound stands beside what is before it
        at = pa.array([times[n] * 1000 for n in numbers], pa.timestamp("us", "UTC"))
        rows = {"_event_id": [f"r{n}" for n in numbers], "_event_time": at}
        write_deltalake(str(path), pa.table(rows), mode="append")
    assert expire(path, before_ms=now - 400 * day, dry_run=True).rows == 1
    assert ids(path) == ["r0", "r1", "r2", "r3"]
    command = ["expire", "fraud", "-s", f"storage.root={tmp_path}", "--now", "2026-01-01T00:00:00Z"]
    done = CliRunner().invoke(tables, [*command, "-s", "storage.retention.alerts=400d", "--format", "json"])
    assert json.loads(done.output) == {
        "name": "alerts",
        "before_ms": now - 400 * day,
        "rows": 1,
        "waiting": 0,
    }
    assert ids(path) == ["r1", "r2", "r3"]
    assert isinstance(CliRunner().invoke(tables, command).exception, UserError)
    append(tmp_path / "tables" / "other", "a")
    with pytest.raises(UserError, match="no column _event_time"):
        expire(tmp_path / "tables" / "other", before_ms=now)


@pytest.mark.parametrize("left", ["", '{"commitInfo'])
def test_a_table_that_cannot_be_read_is_named_and_the_others_are_looked_after(table: Path, left: str) -> None:
    """It is being made, or its log was cut off."""
    log = table.parent / "a-broken" / "_delta_log"
    log.mkdir(parents=True)
    if left:
        (log / f"{0:020}.json").write_text(left)
    where = ["fraud", "-s", f"storage.root={table.parent.parent}"]
    for words in (["list"], ["compact"], ["vacuum"]):
        done = CliRunner().invoke(tables, [*words, *where])
        assert (done.exit_code, done.stdout.split()[0]) == (2, "alerts")
        assert done.stderr.startswith("millrace: table a-broken cannot be read: ")
        assert done.stderr.count("\n") == 1
    done = CliRunner().invoke(tables, ["maintain", *where, "--format", "json"])
    said = [(one["name"], one["what"]) for one in map(json.loads, done.stdout.splitlines())]
    assert (done.exit_code, said) == (2, [("a-broken", "cannot be read"), ("alerts", "few files")])
    keep = ["-s", "storage.retention.a-broken=1d"]
    assert CliRunner().invoke(tables, ["expire", *where, *keep]).exit_code == 2


def test_an_app_without_tables_says_so(tmp_path: Path) -> None:
    result = CliRunner().invoke(tables, ["list", "fraud", "-s", f"storage.root={tmp_path}"])

    assert result.exit_code != 0
    assert isinstance(result.exception, UserError)
    assert "fraud has no tables" in str(result.exception)
