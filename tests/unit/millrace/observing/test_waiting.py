"""What is told of tables for which committed rows wait: in figures, of a job that died, in lists."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest
from typer.testing import CliRunner

from millrace.cli.tables import app as tables
from millrace.connectors.merging import rows_waiting
from millrace.connectors.upkeep import state_of
from millrace.console.jobs_view import _facts
from millrace.observing.figures import WaitingFigures, write_figures
from millrace.observing.observer import Observer
from millrace.observing.reading import Jobs
from millrace.observing.waiting import waits_of
from millrace.runtime.monitor import QueryMonitor
from tests.cases import case_count
from tests.unit.millrace.connectors.test_appending import still, writer
from tests.unit.millrace.connectors.test_upsert import Session, batch
from tests.unit.millrace.observing.cases import NOW, figures, record


def left(root: Path, table: str, number: int, at_ms: int, end: str = "arrow") -> None:
    """Leave what a batch leaves for a table."""
    file = root / "tables" / table / "_waiting" / f"{number:012d}.{end}"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    os.utime(file, ns=(at_ms * 1_000_000, at_ms * 1_000_000))


@pytest.mark.parametrize("seed", range(case_count(100)))
def test_batches_and_the_oldest_of_them_are_told_by_table(tmp_path: Path, seed: int) -> None:
    """What is half written (its batch is not committed), and what lies beside, is none of it."""
    chance = random.Random(seed)
    expected: dict[str, list[int]] = {}
    for table in (f"t{number}" for number in range(chance.randrange(6))):
        (tmp_path / "tables" / table / "_delta_log").mkdir(parents=True)
        for number in range(chance.randrange(5)):
            at_ms, end = NOW - chance.randrange(10_000), chance.choice(["arrow", "arrow", "tmp"])
            left(tmp_path, table, number, at_ms, end)
            if end == "arrow":
                expected.setdefault(table, []).append(at_ms)
        (tmp_path / "tables" / table / "part.parquet").touch()
    assert waits_of(tmp_path) == {
        table: WaitingFigures(len(times), min(times)) for table, times in expected.items()
    }


def test_the_figures_of_a_job_have_them(tmp_path: Path) -> None:
    seen = Observer(record(tmp_path), QueryMonitor(), wall_ms=lambda: NOW)
    assert seen.figures().waiting == {}
    left(tmp_path, "alarms", 7, NOW - 4_000)
    assert seen.figures().waiting == {"alarms": WaitingFigures(1, NOW - 4_000)}


def test_of_a_job_that_died_it_is_told_which_rows_are_in_no_table_and_what_brings_them_in(
    tmp_path: Path,
) -> None:
    write_figures(tmp_path, figures(tmp_path, job=record(tmp_path, process_started=1.0), waiting={}))
    left(tmp_path, "alarms", 7, NOW - 61_000)
    left(tmp_path, "alarms", 8, NOW - 3_000)
    jobs = Jobs(tmp_path / "jobs", wall_ms=lambda: NOW)
    found = jobs.of_root("fraud", tmp_path)
    assert (found.state, found.waiting) == ("died", {"alarms": WaitingFigures(2, NOW - 61_000)})
    assert dict(_facts(found, NOW))["tables"] == (
        "rows wait for alarms (2 batches, 1 min 1 s); `millrace run fraud` brings them in"
    )
    found.state = "running"
    assert dict(_facts(found, NOW))["tables"] == "rows wait for alarms (2 batches, 1 min 1 s)"
    found.waiting = {}
    assert "tables" not in dict(_facts(found, NOW))


def test_a_list_of_tables_counts_rows_that_are_committed_and_in_no_table(tmp_path: Path) -> None:
    folder = tmp_path / "tables"
    into = still(writer(folder))
    into.prepare()
    for number in range(3):
        into.write(batch(Session("a", number, 1, 1), Session("b", number, 1, 1)), number)
    events, sessions = folder / "events", folder / "sessions"
    assert {name: w.batches for name, w in waits_of(tmp_path).items()} == {"events": 3, "sessions": 3}
    assert (state_of(events).rows, rows_waiting(events)) == (0, 6)
    done = CliRunner().invoke(tables, ["list", "fraud", "--format", "json", "-s", f"storage.root={tmp_path}"])
    assert done.exit_code == 0, done.output
    told = {one["name"]: (one["rows"], one["waiting"]) for one in map(json.loads, done.output.splitlines())}
    assert told["events"] == (0, 6)
    shown = CliRunner().invoke(tables, ["list", "fraud", "-s", f"storage.root={tmp_path}"]).output
    assert "6 rows wait" in shown
    into.close()
    assert (state_of(events).rows, rows_waiting(events)) == (6, 0)
    assert (state_of(sessions).rows, rows_waiting(sessions)) == (6, 0)
    assert waits_of(tmp_path) == {}
    shown = CliRunner().invoke(tables, ["list", "fraud", "-s", f"storage.root={tmp_path}"]).output
    assert "wait" not in shown
