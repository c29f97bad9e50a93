"""Rows that expire while some wait behind the batches: those come into their table first, or are told."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from millrace.cli import tables as command
from millrace.connectors.driver_writer import DriverWriter
from millrace.connectors.merging import waiting_files
from millrace.connectors.router import DeadLetterLimit, Outputs
from millrace.host.chunks import encode_emissions
from millrace.host.runner import Emission
from millrace.runtime.contract import owned
from millrace.topology import Upsert
from tests.unit.millrace.connectors.test_upsert import Session

DAY = 86_400_000
NOW = 1_767_225_600_000
NEWEST = Upsert("newest", key=("user", "n"), newest="revision")


def batch(*said: tuple[Session, int]) -> Any:
    emissions = [
        Emission("main", f"{s.user}-{s.n}-{s.revision}", f"1:{s.user}", at, True, msgspec.json.encode(s))
        for s, at in said
    ]
    outputs, counts, chunks = zip(*encode_emissions(emissions), strict=True)
    table = pa.table({"output": outputs, "records": counts, "chunk": pa.array(chunks, pa.binary())})
    return SimpleNamespace(toArrow=lambda: table)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job's folder: a row of each table is in it, the rows of two batches wait, and the job has died."""
    stream: Any = SimpleNamespace(types={"main": Session})
    into = DriverWriter(
        Outputs(stream, {"main": ("all", NEWEST)}), lambda table: str(tmp_path / "tables" / table), {},
        "app:0123456789ab", DeadLetterLimit(), {}, merge_interval_s=1e6,
    )  # fmt: skip
    monkeypatch.setattr(into._merger, "told", lambda: None)
    into.prepare()
    into.write(batch((Session("old", 1, 1, 1), NOW - 9 * DAY)), 0)
    into.flush()
    into.write(batch((Session("late", 1, 1, 1), NOW - 8 * DAY), (Session("old", 1, 2, 1), NOW)), 1)
    into.write(batch((Session("new", 1, 1, 1), NOW - DAY), (Session("late", 2, 1, 1), NOW - 7 * DAY - 1)), 2)
    return tmp_path


def expired(root: Path, *more: str) -> dict[str, tuple[int, int]]:
    words = [
        "expire",
        "fraud",
        "-s",
        f"storage.root={root}",
        "--now",
        "2026-01-01T00:00:00Z",
        "--format",
        "json",
    ]
    kept = [w for table in ("all", "newest") for w in ("-s", f"storage.retention.{table}=7d")]
    done = CliRunner().invoke(command.app, [*words, *kept, *more])
    assert done.exit_code == 0, done.output + str(done.exception)
    found = [json.loads(line) for line in done.output.splitlines()]
    return {one["name"]: (one["rows"], one["waiting"]) for one in found}


def kept(root: Path, table: str) -> list[tuple[str, int, int]]:
    rows = DeltaTable(str(root / "tables" / table)).to_pyarrow_table().to_pylist()
    return sorted((row["user"], row["n"], row["revision"]) for row in rows)


def test_what_a_job_that_died_has_left_is_brought_in_and_expires_with_the_rest(root: Path) -> None:
    """A row that a version which waits has made younger stays: it is looked at as it will be.

    ::

        line                     | 7 days ago
        in the table     old 1   |
        waits      late 1  late 2|     new, old 1 (again)
    """
    assert expired(root) == {"all": (3, 0), "newest": (2, 0)}
    assert kept(root, "all") == [("new", 1, 1), ("old", 1, 2)]
    assert kept(root, "newest") == [("new", 1, 1), ("old", 1, 2)]
    assert not any(waiting_files(root / "tables" / name) for name in ("all", "newest"))
    assert expired(root) == {"all": (0, 0), "newest": (0, 0)}


def test_what_a_job_that_runs_does_not_bring_in_is_told(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_MERGED_S", 0.2)
    with owned(root):
        assert expired(root) == {"all": (1, 2), "newest": (1, 2)}
    assert len(waiting_files(root / "tables" / "all")) == 2
    assert kept(root, "all") == []


def test_who_only_asks_is_told_and_nothing_is_touched(root: Path) -> None:
    assert expired(root, "--dry-run") == {"all": (1, 2), "newest": (1, 2)}
    assert len(waiting_files(root / "tables" / "all")) == 2
    assert kept(root, "all") == [("old", 1, 1)]
