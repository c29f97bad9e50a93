"""Rows that wait to be appended: whatever is cut off where, each committed one is in its table once."""

from __future__ import annotations

import os
import random
import shutil
import threading
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from millrace.checkpoints.positions import forget_waiting, has_moved, position_of, roll_back
from millrace.checkpoints.savepoints import SavepointError, _wait_for_merges
from millrace.connectors import merging
from millrace.connectors.driver_writer import DriverWriter
from millrace.connectors.gathering import as_columns
from millrace.connectors.merging import (
    GATHER_EVERY,
    AppendedTable,
    MergedTable,
    MergeFailed,
    Merger,
    open_with_waiting,
    waiting_files,
)
from millrace.connectors.router import DeadLetterLimit, Outputs
from millrace.connectors.upkeep import compact, vacuum
from millrace.dashboard.tables import DeltaReader
from millrace.host.json_columns import is_unread
from millrace.query.catalog import AppTable
from millrace.query.tables import asking
from millrace.topology import Upsert
from tests.cases import case_count
from tests.unit.millrace.connectors.test_merging import cut_off, threads
from tests.unit.millrace.connectors.test_upsert import BY_REVISION, Session, batch

#: Rows wait until somebody asks for them.
NEVER = 1e6


class Panic(BaseException):
    """As a native library raises it: no Exception."""


def writer(folder: Path, interval_s: float = NEVER, app_id: str = "a") -> DriverWriter:
    """A writer of a table that is appended to, and of one that is merged into."""
    stream: Any = SimpleNamespace(types={"main": Session})
    outputs = Outputs(stream, {"main": ("events", BY_REVISION)})
    limit = DeadLetterLimit()
    return DriverWriter(
        outputs, lambda table: str(folder / table), {}, app_id, limit, merge_interval_s=interval_s
    )


def still(one: DriverWriter) -> DriverWriter:
    """Have nothing done behind the batches, as if the disk were slow: only who asks brings rows in."""
    one._merger.told = lambda: None  # type: ignore[method-assign]
    return one


def rows(folder: Path) -> Counter[tuple[str, int, int]]:
    found = DeltaTable(str(folder / "events")).to_pyarrow_table().to_pylist()
    return Counter((r["user"], r["n"], r["revision"]) for r in found)


def waits(folder: Path) -> list[Path]:
    return waiting_files(folder / "events")


def until(true: Any, limit_s: float = 20.0) -> None:
    end = time.monotonic() + limit_s
    while not true() and time.monotonic() < end:
        time.sleep(0.005)
    assert true()


def test_rows_are_appended_behind_the_batch_without_another_one(tmp_path: Path) -> None:
    into = writer(tmp_path)  # whatever other tables wait for
    into.write(batch(Session("a", 1, 1, 10), Session("a", 1, 1, 10)), 0)
    until(lambda: not waits(tmp_path))
    assert rows(tmp_path) == {("a", 1, 1): 2}
    into.close()
    assert threads() == []


def test_each_batch_has_a_commit_of_its_own(tmp_path: Path) -> None:
    into = still(writer(tmp_path))
    into.prepare()
    for number in range(4):
        into.write(batch(Session("a", number, 1, 1)), number)
    assert (rows(tmp_path), len(waits(tmp_path))) == (Counter(), 4)
    into.close()
    assert rows(tmp_path) == {("a", number, 1): 1 for number in range(4)}
    assert DeltaTable(str(tmp_path / "events")).version() == 4
    assert DeltaTable(str(tmp_path / "events")).transaction_version("a:events") == 3


def test_a_table_that_is_appended_to_stays_at_few_files_in_the_order_of_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AppendedTable, "_many_files", 20)
    into, most = writer(tmp_path, 0.0), 0
    for number in range(120):
        into.write(batch(Session("a", number, 1, 1), Session("b", number, 1, 1)), number)
        most = max(most, len(DeltaTable(str(tmp_path / "events")).file_uris()))
    into.close()
    assert 20 < most <= 20 + GATHER_EVERY
    found = DeltaReader(tmp_path / "events", lambda: 0)
    assert found.latest(500, ["n"])["n"].to_pylist() == [number for number in range(120) for _ in "ab"]
    again = writer(tmp_path)
    again.write(batch(Session("a", 119, 1, 1)), 119)  # it is there already
    again.close()
    assert sum(rows(tmp_path).values()) == 240


@pytest.mark.parametrize("at_work", ["merge", "gather"])
def test_rows_are_appended_while_others_are_merged_or_files_are_gathered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_work: str
) -> None:
    """Both take seconds of large tables."""
    began, may_end = threading.Event(), threading.Event()

    def hold(*given: Any, **named: Any) -> int:
        began.set()
        assert may_end.wait(20)
        return 0

    if at_work == "merge":
        monkeypatch.setattr(MergedTable, "_bring", hold)
    else:
        monkeypatch.setattr(merging, "gather", hold)
        monkeypatch.setattr(merging, "GATHER_EVERY", 2)
        monkeypatch.setattr(AppendedTable, "_many_files", 1)
    into = writer(tmp_path, interval_s=0.01 if at_work == "merge" else NEVER)
    for number in range(2):
        into.write(batch(Session("a", number, 1, 10)), number)
    assert began.wait(20)
    try:
        for number in range(2, 9):
            into.write(batch(Session("a", number, 1, 10)), number)
        until(lambda: not waits(tmp_path))
        assert rows(tmp_path) == {("a", number, 1): 1 for number in range(9)}
    finally:
        may_end.set()
        into.close()
    assert threads() == []


def test_of_tables_that_wait_the_one_that_has_waited_longest_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where appends are slower than batches, no table waits for ever behind another."""
    tables = [
        AppendedTable(n, str(tmp_path / n), lambda: None, "a", keeps=True)  # type: ignore[arg-type, return-value]
        for n in "abc"
    ]
    brought: list[str] = []
    merger = Merger(tables, NEVER)
    more = iter(range(30))

    def bring(table: AppendedTable, batches: Any, app_id: str) -> None:
        brought.append(table.name)
        for number, other in zip(more, tables[:2], strict=False):  # the next batch is quicker than an append
            other.add(pa.table({"n": [number]}), 10 + number)

    monkeypatch.setattr(AppendedTable, "_open", lambda _: None)
    monkeypatch.setattr(AppendedTable, "prepare", lambda _: None)
    monkeypatch.setattr(AppendedTable, "_bring", bring)
    for number, table in enumerate(tables):
        (tmp_path / table.name).mkdir()
        table.add(pa.table({"n": [number]}), number)
        table._since -= 100 - number  # however slow the machine is, they came one after the other
    merger.told()
    until(lambda: "c" in brought and not next(more, None))
    merger.close()
    assert brought.index("c") == 2


def test_files_are_gathered_in_their_turn_however_much_is_to_be_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where merges take so long that some are always due, or one table's files are always many."""
    a, b = (
        AppendedTable(n, str(tmp_path / n), lambda: None, "a", keeps=True)  # type: ignore[arg-type, return-value]
        for n in "ab"
    )
    merged = MergedTable(BY_REVISION, str(tmp_path / "m"), lambda: None, "a", keeps=True)  # type: ignore[arg-type, return-value]
    merger = Merger([a, b, merged], NEVER)
    done: list[str] = []

    def work(table: Any) -> None:
        done.append(table.name)
        table.untidy_since = time.monotonic()  # there are many again

    monkeypatch.setattr(AppendedTable, "tidy", work)
    monkeypatch.setattr(MergedTable, "merge", work)
    began = time.monotonic()
    a.untidy_since, b.untidy_since = began - 100, began - 200
    for due_in_s in (-150.0, -150.0, -50.0, -50.0):
        monkeypatch.setattr(merged, "due_in_s", lambda _, due_in_s=due_in_s: due_in_s)
        found = merger._next(merger._merges)
        assert found is not None
        found()
    assert done == ["b", "sessions", "a", "sessions"]


def test_who_writes_after_a_flush_is_alone_at_the_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's writer takes itself for the only one who commits."""
    began, may_end = threading.Event(), threading.Event()
    begun: list[int] = []
    ended: list[int] = []

    def hold(*_: Any, **__: Any) -> int:
        begun.append(1)
        began.set()
        assert may_end.wait(20)
        ended.append(1)
        return 0

    monkeypatch.setattr(merging, "gather", hold)
    monkeypatch.setattr(merging, "GATHER_EVERY", 2)
    monkeypatch.setattr(AppendedTable, "_many_files", 1)
    into = writer(tmp_path)
    for number in range(2):
        into.write(batch(Session("a", number, 1, 10)), number)
    assert began.wait(20)
    seen: list[tuple[int, int]] = []

    def flush() -> None:
        into.flush()
        seen.append((len(begun), len(ended)))

    flushing = threading.Thread(target=flush)
    try:
        for number in range(2, 4):  # there are many again
            into.write(batch(Session("a", number, 1, 10)), number)
        until(lambda: not waits(tmp_path))
        flushing.start()
        flushing.join(0.2)
        assert flushing.is_alive()
        may_end.set()
        flushing.join(20)
        into._merger.told()
        time.sleep(0.05)
        assert seen == [(len(begun), len(begun))]
    finally:
        may_end.set()
        into.close()
    table = into._tables["events"]
    table.untidy_since = 0.0  # chosen, but not begun
    into.flush()
    into._merger._tidy(table)
    assert seen == [(len(begun), len(begun))]


def test_only_files_of_this_machine_are_looked_at_beside_appends(tmp_path: Path) -> None:
    tables = [
        AppendedTable("a", folder, lambda: None, "a", keeps=keeps)  # type: ignore[arg-type, return-value]
        for folder, keeps in (("s3://bucket/a", False), (str(tmp_path / "a"), True))
    ]
    with Merger(tables, NEVER) as merger:
        merger.told()
        assert [table.is_tidied_beside for table in tables] == [False, True]


def test_files_are_gathered_beside_appends_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AppendedTable, "_many_files", 6)
    monkeypatch.setattr(merging, "GATHER_EVERY", 2)
    into = writer(tmp_path)
    made = 0

    def gathered() -> int:
        return len([*(tmp_path / "events").glob("gathered-*.parquet")])

    for number in range(60):
        into.write(batch(Session("a", number, 1, 1), Session("b", number, 1, 1)), number)
        if number % 3 == 0:
            until(lambda: not waits(tmp_path))
        if number % 20 == 19:
            until(lambda: gathered() > made)  # noqa: B023
            made = gathered()
    until(lambda: len(DeltaTable(str(tmp_path / "events")).file_uris()) < 30)
    into.close()
    assert made > 2
    assert rows(tmp_path) == {(user, number, 1): 1 for number in range(60) for user in "ab"}
    found = DeltaReader(tmp_path / "events", lambda: 0)
    assert found.latest(500, ["n"])["n"].to_pylist() == [number for number in range(60) for _ in "ab"]
    assert DeltaTable(str(tmp_path / "events")).transaction_version("a:events") == 59


@pytest.mark.parametrize("is_readable", [True, False])
@pytest.mark.parametrize(
    "error", [OSError("gone"), OverflowError("date value out of range"), Panic("index out of bounds")]
)
def test_gathering_beside_appends_that_fails_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, is_readable: bool
) -> None:
    tried = []

    def cannot() -> None:
        raise DeltaError("too many open files")

    def fail(table: DeltaTable, *_: Any, **__: Any) -> int:
        tried.append(1)
        if not is_readable:
            monkeypatch.setattr(table, "update_incremental", cannot)
        raise error

    monkeypatch.setattr(merging, "gather", fail)
    monkeypatch.setattr(merging, "GATHER_EVERY", 2)
    monkeypatch.setattr(AppendedTable, "_many_files", 0)
    into = writer(tmp_path)
    for number in range(8):
        into.write(batch(Session("a", number, 1, 1)), number)
        until(lambda: not waits(tmp_path))
        until(lambda: len(tried) >= number // 2)  # noqa: B023
    into.close()
    assert len(tried) >= 3
    assert sum(rows(tmp_path).values()) == 8


def test_what_somebody_else_has_written_meanwhile_is_seen_before_each_append(tmp_path: Path) -> None:
    one, other = still(writer(tmp_path)), still(writer(tmp_path))
    for number in range(6):
        first = one if number % 3 else other
        first.write(batch(Session("a", number, 1, 1)), number)
        first.flush()
        for again in (one, other):  # the batch is there already
            again.write(batch(Session("a", number, 1, 1)), number)
            again.flush()
    for left in (one, other):
        left.close()
    assert rows(tmp_path) == {("a", number, 1): 1 for number in range(6)}
    assert DeltaTable(str(tmp_path / "events")).version() == 6


def test_nothing_is_appended_to_a_table_that_was_removed(tmp_path: Path) -> None:
    into = still(writer(tmp_path))
    into.write(batch(Session("a", 1, 1, 1)), 0)
    into.flush()
    shutil.rmtree(tmp_path / "events" / "_delta_log")
    into.write(batch(Session("a", 2, 1, 1)), 1)
    with pytest.raises(MergeFailed, match="table events"):
        into.flush()
    assert not (tmp_path / "events" / "_delta_log").exists()
    assert len(waits(tmp_path)) == 1


@pytest.mark.parametrize("beside", [True, False])
@pytest.mark.parametrize(("retention", "is_cleaned"), [("1 hour", True), ("30 days", False)])
def test_now_and_then_the_log_loses_what_it_need_not_keep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, retention: str, is_cleaned: bool, beside: bool
) -> None:
    monkeypatch.setattr(merging, "CLEAN_EVERY", 64)
    into = writer(tmp_path, NEVER if beside else 0.0)
    into.prepare()
    table, log = DeltaTable(str(tmp_path / "events")), tmp_path / "events" / "_delta_log"
    table.alter.set_table_properties({"delta.logRetentionDuration": f"interval {retention}"})
    old = time.time() - 7_200
    for number in range(64):
        into.write(batch(Session("a", number, 1, 1)), number)
        until(lambda: not waits(tmp_path))
        for commit in log.glob("*.json") if number in (40, 55) else ():
            os.utime(commit, (old, old))
    until(lambda: len([*log.glob("*.json")]) < 30 or not is_cleaned)
    into.close()
    commits = sorted(int(commit.stem) for commit in log.glob("*.json") if commit.stem.isdigit())
    assert (commits[0] > 20) is is_cleaned
    assert commits == [*range(commits[0], commits[-1] + 1)]
    assert rows(tmp_path) == {("a", number, 1): 1 for number in range(64)}


def test_without_an_interval_a_batch_is_in_the_table_when_it_is_done(tmp_path: Path) -> None:
    into = writer(tmp_path, 0.0)
    into.write(batch(Session("a", 1, 1, 10)), 0)
    assert (rows(tmp_path), waits(tmp_path), threads()) == ({("a", 1, 1): 1}, [], [])
    into.close()


def test_the_same_batch_again_appends_nothing(tmp_path: Path) -> None:
    first = still(writer(tmp_path))
    first.write(batch(Session("a", 1, 1, 10)), 0)
    kept = waits(tmp_path)[0]
    held = kept.read_bytes()
    first.write(batch(Session("a", 1, 1, 10)), 0)  # it waits
    first.close()
    kept.write_bytes(held)  # appended, and its file was not removed any more
    again = writer(tmp_path)
    again.write(batch(Session("a", 1, 1, 10)), 0)
    again.close()
    assert (rows(tmp_path), waits(tmp_path)) == ({("a", 1, 1): 1}, [])


def test_what_sparks_writer_has_written_meanwhile_is_not_appended_again(tmp_path: Path) -> None:
    into = still(writer(tmp_path))
    into.write(batch(Session("a", 1, 1, 10)), 5)
    table = DeltaTable(str(tmp_path / "events"))
    done = CommitProperties(app_transactions=[Transaction("a:events", 6)])
    write_deltalake(table, table.to_pyarrow_table(), mode="append", commit_properties=done)
    into.flush()
    assert rows(tmp_path) == Counter()
    into.close()


def test_an_append_that_fails_fails_the_next_batch_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import deltalake

    def is_full(*_: Any, **__: Any) -> None:
        raise OSError("the disk is full")

    into = writer(tmp_path)
    into.prepare()
    monkeypatch.setattr(deltalake, "write_deltalake", is_full)
    into.write(batch(Session("a", 1, 1, 10)), 0)
    until(lambda: into._tables["events"].failed is not None)
    with pytest.raises(MergeFailed, match="events: the disk is full"):
        into.write(batch(Session("a", 1, 2, 20)), 1)
    cut_off(into)
    monkeypatch.undo()
    again = writer(tmp_path)
    again.write(batch(Session("a", 1, 2, 20)), 1)
    again.close()
    assert rows(tmp_path) == {("a", 1, 1): 1, ("a", 1, 2): 1}


def test_a_savepoint_waits_for_what_is_not_appended(tmp_path: Path) -> None:
    root = tmp_path / "app"
    into = still(writer(root / "tables", app_id="app:inc"))
    (root / "tables").mkdir(parents=True)
    into.write(batch(Session("a", 1, 1, 10)), 0)
    into._tables["sessions"].merge()
    with pytest.raises(SavepointError, match=r"left for events are not .*start the job once"):
        _wait_for_merges(root, 5.0)
    into.close()
    _wait_for_merges(root, 0.0)


def test_a_query_sees_what_waits(tmp_path: Path) -> None:
    into = still(writer(tmp_path))
    into.write(batch(Session("a", 1, 1, 10), Session("b", 1, 1, 5)), 0)
    into.flush()
    into.write(batch(Session("a", 1, 1, 10)), 1)
    into.write(batch(Session("a", 2, 1, 1)), 2)
    table = AppTable("x", "events", tmp_path / "events")
    text = "SELECT user, n, count(*) AS many FROM events GROUP BY user, n ORDER BY user, n"
    with asking(text, [table], {}, "x") as answer:
        found = [tuple(row.values()) for part in answer.batches() for row in part.to_pylist()]
    assert found == [("a", 1, 2), ("a", 2, 1), ("b", 1, 1)]
    into.close()


def test_where_a_table_stood_after_a_batch_has_its_rows_and_no_later_ones(tmp_path: Path) -> None:
    """Rolled back to where it stood after any batch, and given what came then again, it is what it was."""
    into = still(writer(tmp_path, app_id="app:inc"))
    into.prepare()
    made = [batch(Session("a", n, n, n), Session("b", n, 1, n)) for n in range(6)]
    for number, frame in enumerate(made):
        into.write(frame, number)
        if number in (2, 5):  # of several at once
            into.flush()
    into.close()
    wanted = rows(tmp_path)
    for after in range(6):
        kept = position_of(tmp_path / "events", "delta", "inc", after)
        assert kept is not None
        folder = tmp_path / f"copy{after}"
        shutil.copytree(tmp_path / "events", folder / "events")
        forget_waiting(folder / "events")
        if has_moved(folder / "events", kept):
            roll_back(folder / "events", kept)
        assert rows(folder).total() == 2 * (after + 1)
        again = writer(folder, app_id="app:other")
        for number in range(after + 1, 6):
            again.write(made[number], number)
        again.close()
        assert rows(folder) == wanted


def test_the_log_has_statistics_of_times_alone_of_what_is_appended(tmp_path: Path) -> None:
    """An append looks at those of all files; a merge finds by them which files may have its keys."""
    into = writer(tmp_path)
    for number in range(4):
        into.write(batch(Session("a", number, 1, 10_000 * number)), number)
    into.close()

    def known(table: str) -> set[str]:
        actions = pa.table(DeltaTable(str(tmp_path / table)).get_add_actions(flatten=True))
        return {name for name in actions.column_names if name.startswith("max.")}

    assert known("events") == {"max._event_time"}
    assert known("sessions") > {"max._event_time", "max.user", "max.n"}
    reader = DeltaReader(tmp_path / "events", lambda: 0)
    assert reader.rows == 4
    assert reader.latest(2)["n"].to_pylist() == [2, 3]


@pytest.mark.parametrize("seed", range(case_count(30)))
def test_any_history_of_batches_cuts_and_compactions_has_each_row_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """The oracle counts the committed records and knows nothing of batches."""
    chance = random.Random(seed)
    monkeypatch.setattr(AppendedTable, "_many_files", chance.choice((1, 3, 128)))
    monkeypatch.setattr(merging, "GATHER_EVERY", chance.choice((1, 2, GATHER_EVERY)))

    def begin() -> DriverWriter:
        made = writer(tmp_path, chance.choice((NEVER, 0.005, 0.0)))
        made.prepare()
        return made if chance.random() < 0.5 else still(made)

    into, wanted = begin(), Counter[tuple[str, int, int]]()
    for number in range(20):
        many = range(chance.randrange(5))
        made = [Session(chance.choice("ab"), chance.randrange(3), chance.randrange(3), 0) for _ in many]
        frame = batch(*made) if made else None
        if frame is not None:
            into.write(frame, number)
        did = chance.random()
        if did < 0.25:  # killed, before or after the batch is committed
            cut_off(into)
            for torn in ("events", "sessions"):
                if chance.random() < 0.3:
                    (tmp_path / torn / "_waiting").mkdir(exist_ok=True)
                    (tmp_path / torn / "_waiting" / f"{number:012d}.tmp").write_bytes(b"ARROW")
            into = begin()
            if frame is not None and chance.random() < 0.5:
                into.write(frame, number)
        elif did < 0.35:
            into.flush()
        elif did < 0.4:
            compact(tmp_path / "events")
            if chance.random() < 0.5:
                vacuum(tmp_path / "events", keep_ms=3_600_000)
        elif did < 0.45:
            into.close()
            into = begin()
        wanted.update((s.user, s.n, s.revision) for s in made)
    into.close()
    assert rows(tmp_path) == wanted
    assert (waits(tmp_path), threads()) == ([], [])


def test_what_a_writer_left_unread(tmp_path: Path) -> None:
    """Columns that wait in their JSON are seen, and come into the table, as if they had been read at once."""
    written = [
        batch(*(Session(f'"é\\{n}', n, place, place, place == n + 2) for n in range(3))) for place in range(5)
    ]
    for folder, interval_s in ((tmp_path / "at once", 0.0), (tmp_path / "behind", NEVER)):
        into = still(writer(folder, interval_s))
        into.prepare()
        for number, one in enumerate(written):
            into.write(one, number)
        cut_off(into)
    assert all(is_unread(kept_rows(file)) for file in waits(tmp_path / "behind"))
    wanted = DeltaTable(str(tmp_path / "at once" / "events")).to_pyarrow_table().sort_by("_event_id")
    none, waiting = open_with_waiting(tmp_path / "behind" / "events")
    assert none.to_pyarrow_table().num_rows == 0
    assert as_columns(pa.concat_tables(waiting).sort_by("_event_id"), wanted.schema).equals(wanted)

    again = writer(tmp_path / "behind")
    again.prepare()
    found = DeltaTable(str(tmp_path / "behind" / "events")).to_pyarrow_table().sort_by("_event_id")
    assert found.equals(wanted)
    by_user = [
        sorted(map(str, DeltaTable(str(tmp_path / name / "sessions")).to_pyarrow_table().to_pylist()))
        for name in ("at once", "behind")
    ]
    assert by_user[0] == by_user[1]
    again.close()


def kept_rows(file: Path) -> pa.Table:
    with pa.ipc.open_file(file) as found:
        return found.read_all()


# -- what gets in the way ----------------------------------------------------------------------------------


def test_an_append_goes_on_where_somebody_changes_the_table_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import deltalake

    into = still(writer(tmp_path))
    into.prepare()
    left = 2

    def between(*arguments: Any, **named: Any) -> None:
        nonlocal left
        if left := left - 1:
            DeltaTable(str(tmp_path / "events")).alter.set_table_properties({"delta.checkpointInterval": "7"})
        write_deltalake(*arguments, **named)

    monkeypatch.setattr(deltalake, "write_deltalake", between)
    into.write(batch(Session("a", 1, 1, 10)), 0)
    into.close()
    assert (left, rows(tmp_path), waits(tmp_path)) == (0, {("a", 1, 1): 1}, [])


def test_an_append_that_somebody_is_always_in_the_way_of_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import deltalake

    into, tries = still(writer(tmp_path)), 0

    def refused(*_: Any, **__: Any) -> None:
        nonlocal tries
        tries += 1
        raise CommitFailedError("metadata changed")

    monkeypatch.setattr(deltalake, "write_deltalake", refused)
    into.write(batch(Session("a", 1, 1, 10)), 0)
    with pytest.raises(MergeFailed, match="events: metadata changed"):
        into.flush()
    assert (tries, len(waits(tmp_path))) == (merging._MERGE_ATTEMPTS, 1)


@pytest.mark.parametrize("fault", [OSError("the disk is full"), Panic("index out of bounds")])
def test_a_fault_that_passes_is_told_and_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fault: BaseException
) -> None:
    """Without another batch it is tried again after a while; the next batch tries it at once."""
    import deltalake

    fails = True

    def sometimes(*arguments: Any, **named: Any) -> None:
        if fails:
            raise fault
        write_deltalake(*arguments, **named)

    monkeypatch.setattr(deltalake, "write_deltalake", sometimes)
    into = writer(tmp_path)
    into.prepare()
    into.write(batch(Session("a", 1, 1, 10)), 0)
    until(lambda: into._tables["events"].failed is not None)
    assert f"cannot be written: table events: {fault}" in caplog.text
    assert 0 < into._tables["events"].due_in_s(NEVER) <= merging.AGAIN_S
    fails = False
    into.write(batch(Session("a", 1, 2, 20)), 1)
    until(lambda: not waits(tmp_path))
    assert rows(tmp_path) == {("a", 1, 1): 1, ("a", 1, 2): 1}

    fails = True
    monkeypatch.setattr(merging, "AGAIN_S", 0.05)
    into.write(batch(Session("a", 1, 3, 20)), 2)
    until(lambda: into._tables["events"].failed is not None)
    fails = False
    until(lambda: not waits(tmp_path))
    assert rows(tmp_path).total() == 3
    assert into._tables["events"].failed is None
    into.close()
    assert threads() == []


def test_files_do_not_pile_up_behind_a_table_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import deltalake

    def is_full(*_: Any, **__: Any) -> None:
        raise OSError("the disk is full")

    into = writer(tmp_path)
    into.prepare()
    monkeypatch.setattr(deltalake, "write_deltalake", is_full)
    into.write(batch(Session("a", 1, 1, 10)), 0)
    until(lambda: into._tables["events"].failed is not None)
    for number in range(1, 5):
        with pytest.raises(MergeFailed, match="the disk is full"):
            into.write(batch(Session("a", number, 1, 10)), number)
    assert len(waits(tmp_path)) == 1
    cut_off(into)


def test_large_rows_do_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "MOST_BYTES", 3_500)
    into = still(writer(tmp_path))
    into.write(batch(Session("a" * 1_000, 1, 1, 10)), 0)
    assert rows(tmp_path) == Counter()
    into.write(batch(Session("b" * 1_000, 1, 1, 10)), 1)
    assert rows(tmp_path).total() == 2
    into.close()


class Later(msgspec.Struct):
    """The records of a later version."""

    user: str
    n: int
    revision: int
    clicks: int
    gone: bool = False
    note: str = "-"


@pytest.mark.parametrize("interval_s", [0.0, NEVER])
def test_an_earlier_version_goes_on_with_the_tables_of_a_later_one(tmp_path: Path, interval_s: float) -> None:
    """As Spark's writer does: what it does not know is null."""
    for number, kind in enumerate((Session, Later, Session, Session)):
        stream: Any = SimpleNamespace(types={"main": kind})
        outputs, limit = Outputs(stream, {"main": ("events", BY_REVISION)}), DeadLetterLimit()
        into = DriverWriter(
            outputs, lambda t: str(tmp_path / t), {}, "a", limit, merge_interval_s=interval_s
        )  # fmt: skip
        into.write(batch(kind("a", number, 1, 1)), number)
        into.close()
    for table in ("events", "sessions"):
        found = DeltaTable(str(tmp_path / table)).to_pyarrow_table().to_pylist()
        notes = {row["n"]: row["note"] for row in found}
        assert notes == {0: None, 1: "-", 2: None, 3: None}, table


# -- tables that are not written any more ------------------------------------------------------------------


@pytest.mark.parametrize("upsert", [BY_REVISION, Upsert("sessions", ("user",), ("revision", "n"))])
def test_what_waits_for_tables_that_are_not_written_any_more_is_brought_in(
    tmp_path: Path, upsert: Upsert
) -> None:
    stream: Any = SimpleNamespace(types={"main": Session})

    def of(*tables: Any) -> DriverWriter:
        outputs, limit = Outputs(stream, {"main": tables}), DeadLetterLimit()
        return DriverWriter(outputs, lambda t: str(tmp_path / t), {}, "a", limit, merge_interval_s=NEVER)

    first = still(of("events", upsert, "others"))
    first.write(batch(Session("a", 1, 1, 10), Session("a", 1, 2, 20)), 0)
    first.write(batch(Session("a", 1, 1, 30)), 1)
    cut_off(first)
    second = of("others")
    second.prepare()
    assert rows(tmp_path) == {("a", 1, 1): 2, ("a", 1, 2): 1}
    assert [r["clicks"] for r in DeltaTable(str(tmp_path / "sessions")).to_pyarrow_table().to_pylist()] == [
        20
    ]
    assert not list(tmp_path.glob("*/_waiting/*"))
    second.close()


def test_what_an_earlier_version_left_for_such_a_table_is_told_and_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = still(writer(tmp_path))
    first.write(batch(Session("a", 1, 1, 10)), 0)
    cut_off(first)
    file = waits(tmp_path)[0]
    kept, app_id, number = merging._kept(file)
    said = {merging._APP_ID: app_id.encode(), merging._BATCH: str(number).encode()}
    with pa.ipc.new_file(file, kept.schema.with_metadata(said)) as written:
        written.write_table(kept.replace_schema_metadata(said))
    stream: Any = SimpleNamespace(types={"main": Session})
    outputs, limit = Outputs(stream, {"main": BY_REVISION}), DeadLetterLimit()
    DriverWriter(outputs, lambda table: str(tmp_path / table), {}, "a", limit).prepare()
    assert "events: rows of an earlier version wait for it" in caplog.text
    assert waits(tmp_path) == [file]
    assert merging.bring_in_left(tmp_path, {"events"}) == []
