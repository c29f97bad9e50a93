"""Tables maintained by schedule: when it is quiet, never in the way of a merge, and nothing is lost."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from pathlib import Path

import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from millrace.cli.tables import app as tables
from millrace.connectors import maintenance
from millrace.connectors.maintenance import Care, Maintained, is_running, maintain
from millrace.connectors.merging import waiting_files
from millrace.connectors.upkeep import alone, state_of
from millrace.errors import UserError
from millrace.runtime.contract import owned
from tests.unit.millrace.connectors.test_merging import rows, version, writer
from tests.unit.millrace.connectors.test_upkeep import append, ids
from tests.unit.millrace.connectors.test_upsert import Session, batch

NOW = Care(keep_ms=0, quiet_s=0.0, patience_s=0.0)
NONE: frozenset[str] = frozenset()


def one(root: Path, name: str, merged: frozenset[str] = NONE, care: Care = NOW) -> Maintained:
    (done,) = maintain(root, [root / "tables" / name], merged, care)
    return done


def many(root: Path, files: int = 20) -> Path:
    table = root / "tables" / "alerts"
    for number in range(files):
        append(table, f"a{number}")
    return table


def test_a_table_of_many_files_becomes_one_and_old_ones_go(tmp_path: Path) -> None:
    table = many(tmp_path)
    before = ids(table)
    done = one(tmp_path, "alerts")
    assert (done.what, done.before, done.after, done.removed) == ("compacted", 20, 1, 20)
    assert (ids(table), state_of(table).files, len(list(table.glob("*.parquet")))) == (before, 1, 1)
    assert one(tmp_path, "alerts").what == "few files"


def test_a_table_that_is_written_to_is_left_alone_until_it_is_quiet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = many(tmp_path)
    busy = Care(keep_ms=0, quiet_s=1.0, patience_s=0.2)
    assert one(tmp_path, "alerts", care=busy).what == "not quiet"
    assert state_of(table).files == 20
    patient = Care(keep_ms=0, quiet_s=0.3, patience_s=20.0)
    assert one(tmp_path, "alerts", care=patient).what == "compacted"
    assert time.time() - state_of_log(table) < 20
    for number in range(20):
        append(table, f"b{number}")
    monkeypatch.setattr(maintenance, "MOST_FILES", 18)
    assert one(tmp_path, "alerts", care=busy).what == "compacted"


def state_of_log(table: Path) -> float:
    return max(file.stat().st_mtime for file in (table / "_delta_log").glob("*.json"))


def test_beside_a_job_a_table_that_is_merged_into_is_the_jobs(tmp_path: Path) -> None:
    folder = tmp_path / "tables"
    into = writer(folder)
    for number in range(20):
        into.write(batch(Session(f"u{number}", 1, 1, 1)), number)
        into.flush()
        DeltaTable(str(folder / "sessions"))
    into.write(batch(Session("u1", 1, 2, 5)), 20)
    before, was = rows(folder), version(folder)
    files = state_of(folder / "sessions").files
    merged = frozenset({"sessions"})
    care = Care(keep_ms=0, quiet_s=0.0, patience_s=0.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(maintenance, "ENOUGH_FILES", 1)
        with owned(tmp_path):
            assert is_running(tmp_path)
            assert one(tmp_path, "sessions", merged, care).what == "the job does it"
            assert (version(folder), state_of(folder / "sessions").files) == (was, files)
        assert not is_running(tmp_path)
        with alone(folder / "sessions"):
            assert one(tmp_path, "sessions", merged, care).what == "somebody else does it"
        assert one(tmp_path, "sessions", merged, care).what == "compacted"
    assert (rows(folder), len(waiting_files(folder / "sessions"))) == (before, 1)
    into.close()
    assert rows(folder) == {**before, ("u1", 1): (2, 5)}


@pytest.mark.parametrize("seed", range(4))
def test_beside_merges_and_appends_nothing_is_lost_or_doubled(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if nobody knew of the job: merges go on by themselves while tables are compacted and vacuumed."""
    monkeypatch.setattr(maintenance, "ENOUGH_FILES", 2)
    chance, folder = random.Random(seed), tmp_path / "tables"
    into = writer(folder, 0.002)
    into.prepare()
    table, wanted, sent = folder / "alerts", {}, []
    append(table, "first")
    ended = threading.Event()

    def keep_on() -> None:
        while not ended.is_set():
            list(maintain(tmp_path, [table, folder / "sessions"], NONE, Care(3_600_000, 0.0, 0.0)))

    beside = threading.Thread(target=keep_on)
    beside.start()
    try:
        for number in range(25):
            made = Session(chance.choice("abc"), chance.randrange(4), number, chance.randrange(9))
            into.write(batch(made), number)
            append(table, f"a{number}")
            wanted[made.user, made.n] = (made.revision, made.clicks)
            sent.append(f"a{number}")
    finally:
        ended.set()
        beside.join()
        into.close()
    assert rows(folder) == wanted
    assert ids(table) == sorted(["first", *sent])


def test_the_command_does_it_once_or_until_it_is_told_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = many(tmp_path)
    monkeypatch.chdir(tmp_path)
    where = ["fraud", "-s", f"storage.root={tmp_path}", "--quiet-for", "0s", "--keep", "0h"]
    done = CliRunner().invoke(tables, ["maintain", *where, "--format", "json"])
    assert json.loads(done.stdout) == {
        "name": "alerts", "what": "compacted", "before": 20, "after": 1, "removed": 20,
        "freed": json.loads(done.stdout)["freed"],
    }  # fmt: skip
    later = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM))
    later.start()
    done = CliRunner().invoke(tables, ["maintain", *where, "--every", "1h"])
    later.join()
    assert (done.exit_code, done.stdout.count("few files")) == (0, 1)
    assert state_of(table).rows == 20


@pytest.mark.parametrize("every", ["0s", "10ms"])
def test_upkeep_without_a_pause_is_refused(tmp_path: Path, every: str) -> None:
    append(tmp_path / "tables" / "alerts", "a")
    words = ["maintain", "fraud", "-s", f"storage.root={tmp_path}", "--every", every]
    with owned(tmp_path):
        done = CliRunner().invoke(tables, words)
    assert isinstance(done.exception, UserError)
    assert f"--every {every}: a second or more" in str(done.exception)
