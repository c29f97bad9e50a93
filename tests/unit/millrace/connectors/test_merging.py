"""Rows that wait for their merge: whatever is cut off where, tables come to what their batches said."""

from __future__ import annotations

import random
import shutil
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from millrace.checkpoints.positions import WAITING, forget_waiting, has_moved, position_of, roll_back
from millrace.checkpoints.savepoints import SavepointError, _wait_for_merges
from millrace.connectors import merging
from millrace.connectors.driver_writer import DriverWriter
from millrace.connectors.gathering import as_columns
from millrace.connectors.merging import MergeFailed, Merger, wait_for_merges, waiting_rows
from millrace.connectors.router import DeadLetterLimit, Outputs, Router
from millrace.connectors.upkeep import compact, vacuum
from millrace.runtime.contract import owned
from tests.cases import case_count
from tests.unit.millrace.connectors.test_upsert import BY_REVISION, Session, batch, rows

#: Rows wait until somebody asks for them.
NEVER = 1e6


def writer(folder: Path, interval_s: float = NEVER, app_id: str = "a") -> DriverWriter:
    stream: Any = SimpleNamespace(types={"main": Session})
    outputs = Outputs(stream, {"main": BY_REVISION})
    limit = DeadLetterLimit()
    return DriverWriter(
        outputs, lambda table: str(folder / table), {}, app_id, limit, merge_interval_s=interval_s
    )


def cut_off(one: DriverWriter) -> None:
    """End as a killed process does: the thread is gone, nothing more is merged."""
    one._merger.end()


def waits(folder: Path) -> list[str]:
    return sorted(file.name for file in (folder / "sessions" / WAITING).glob("*"))


def threads() -> list[str]:
    return [
        t.name for t in threading.enumerate() if t.name.startswith(("millrace-merges", "millrace-appends"))
    ]


def version(folder: Path) -> int:
    return DeltaTable(str(folder / "sessions")).version()


def test_batches_are_merged_together_and_leave_nothing_behind(tmp_path: Path) -> None:
    into = writer(tmp_path)
    into.prepare()
    for number in range(5):
        into.write(batch(Session("a", 1, number, number), Session("b", number, 1, 7)), number)
    assert (rows(tmp_path), version(tmp_path), len(waits(tmp_path))) == ({}, 0, 5)
    into.close()
    assert rows(tmp_path) == {("a", 1): (4, 4)} | {("b", number): (1, 7) for number in range(5)}
    assert (version(tmp_path), waits(tmp_path), threads()) == (1, [], [])
    assert DeltaTable(str(tmp_path / "sessions")).transaction_version("a:sessions") == 4


def test_what_waits_is_merged_after_the_interval_without_another_batch(tmp_path: Path) -> None:
    into = writer(tmp_path, 0.05)
    into.write(batch(Session("a", 1, 1, 10)), 0)
    end = time.monotonic() + 20
    while not rows(tmp_path) and time.monotonic() < end:
        time.sleep(0.01)
    assert rows(tmp_path) == {("a", 1): (1, 10)}
    into.close()


def test_without_an_interval_a_batch_is_in_the_table_when_it_is_done(tmp_path: Path) -> None:
    into = writer(tmp_path, 0.0)
    into.write(batch(Session("a", 1, 1, 10)), 0)
    assert (rows(tmp_path), waits(tmp_path), threads()) == ({("a", 1): (1, 10)}, [], [])
    into.close()


def test_who_begins_again_merges_what_is_there(tmp_path: Path) -> None:
    first = writer(tmp_path)
    first.write(batch(Session("a", 1, 1, 10)), 0)
    first.write(batch(Session("a", 1, 2, 20), Session("b", 1, 1, 1)), 1)
    cut_off(first)
    (tmp_path / "sessions" / WAITING / "000000000002.tmp").write_bytes(b"ARROW")  # torn

    again = writer(tmp_path)
    again.prepare()
    assert rows(tmp_path) == {("a", 1): (2, 20), ("b", 1): (1, 1)}
    assert waits(tmp_path) == []
    done = version(tmp_path)
    again.write(batch(Session("a", 1, 2, 20), Session("b", 1, 1, 1)), 1)  # it was not committed
    again.close()
    assert version(tmp_path) == done


def test_what_two_queries_left_is_merged_under_the_name_of_each(tmp_path: Path) -> None:
    for app_id, numbers in (("before", (4, 5)), ("after", (6, 7))):
        one = writer(tmp_path / app_id, app_id=app_id)
        for number in numbers:
            one.write(batch(Session("a", 1, number, number)), number)
        cut_off(one)
    shutil.copytree(
        tmp_path / "after" / "sessions" / WAITING,
        tmp_path / "before" / "sessions" / WAITING,
        dirs_exist_ok=True,
    )
    writer(tmp_path / "before", app_id="last").prepare()
    assert rows(tmp_path / "before") == {("a", 1): (7, 7)}
    table = DeltaTable(str(tmp_path / "before" / "sessions"))
    done = [table.transaction_version(f"{app_id}:sessions") for app_id in ("before", "after", "last")]
    assert done == [5, 7, None]


def test_who_begins_again_merges_all_that_is_there_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred merges into a large table would be minutes in which no batch runs."""
    first = writer(tmp_path)
    for number in range(20):
        first.write(batch(Session("a", 1, number, number)), number)
    cut_off(first)
    monkeypatch.setattr(merging, "MOST_ROWS", 11)
    again = writer(tmp_path, app_id="b")
    again.prepare()
    assert (rows(tmp_path), version(tmp_path), waits(tmp_path)) == ({("a", 1): (19, 19)}, 2, [])
    again.close()


@pytest.mark.parametrize("error", [OSError("the disk is full"), OverflowError("date value out of range")])
def test_a_compaction_that_fails_fails_no_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def is_full(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(merging, "GATHER_EVERY", 1)
    monkeypatch.setattr(merging, "gather", is_full)
    into = writer(tmp_path)
    for number in range(3):
        into.write(batch(Session("a", 1, number, number)), number)
        into.flush()
    into.close()
    assert (rows(tmp_path), waits(tmp_path)) == ({("a", 1): (2, 2)}, [])


def test_a_merge_whose_files_were_not_removed_is_not_done_again(tmp_path: Path) -> None:
    first = writer(tmp_path)
    first.write(batch(Session("a", 1, 1, 10)), 0)
    kept = (tmp_path / "sessions" / WAITING / "000000000000.arrow").read_bytes()
    first.close()
    (tmp_path / "sessions" / WAITING / "000000000000.arrow").write_bytes(kept)
    done = version(tmp_path)
    writer(tmp_path).prepare()
    assert (version(tmp_path), waits(tmp_path)) == (done, [])


def test_what_another_query_left_is_merged_before_what_this_one_says(tmp_path: Path) -> None:
    first = writer(tmp_path, app_id="before")
    first.write(batch(Session("a", 1, 1, 10)), 7)
    cut_off(first)
    second = writer(tmp_path, app_id="after")
    second.write(batch(Session("a", 1, 2, 20)), 0)
    second.close()
    assert rows(tmp_path) == {("a", 1): (2, 20)}
    table = DeltaTable(str(tmp_path / "sessions"))
    assert (table.transaction_version("before:sessions"), table.transaction_version("after:sessions")) == (
        7,
        0,
    )


def test_rows_that_an_earlier_version_left_get_the_columns_of_today(tmp_path: Path) -> None:
    writer(tmp_path).prepare()
    earlier = pa.table({"user": ["a"], "n": pa.array([1], pa.int32()), "revision": [3], "clicks": [4]})
    merging._keep(tmp_path / "sessions" / WAITING / "000000000003.arrow", earlier, "a:sessions", 3)
    writer(tmp_path).prepare()
    assert rows(tmp_path) == {("a", 1): (3, 4)}


def test_rows_that_an_earlier_version_left_get_the_fields_of_today_within_their_columns() -> None:
    inner = pa.struct([("a", pa.int64())])
    told = pa.array([[{"a": 1}, {"a": 2}], None], pa.list_(inner))
    before = pa.table({"event": pa.array([{"a": 1}, None], inner), "told": told})
    wider = pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string())), ("c", inner)])
    now = pa.schema([("told", pa.list_(wider)), ("new", inner), ("event", wider)])
    more = {"b": None, "c": None}
    assert as_columns(before, now).to_pylist() == [
        {"told": [{"a": 1} | more, {"a": 2} | more], "new": None, "event": {"a": 1} | more},
        {"told": None, "new": None, "event": None},
    ]


@pytest.mark.parametrize("damage", ["text", "cut off", "of nobody"])
def test_a_file_that_cannot_be_read_is_named_and_stays(tmp_path: Path, damage: str) -> None:
    writer(tmp_path).prepare()
    (tmp_path / "sessions" / WAITING).mkdir()
    broken = tmp_path / "sessions" / WAITING / "000000000003.arrow"
    rows = pa.table({"user": ["a"]})
    if damage == "of nobody":
        with pa.ipc.new_file(broken, rows.schema) as into:
            into.write_table(rows)
    else:
        merging._keep(broken, rows, "a:sessions", 3)
        broken.write_bytes(b"not rows" if damage == "text" else broken.read_bytes()[:-40])
    for look in (merging.waiting_batches, lambda folder: list(waiting_rows(folder))):
        with pytest.raises(MergeFailed, match=r"000000000003\.arrow .*cannot be read"):
            look(tmp_path / "sessions")
    with pytest.raises(MergeFailed, match=r"000000000003\.arrow .*cannot be read"):
        writer(tmp_path).prepare()
    assert broken.exists()


def test_a_merge_that_fails_fails_the_next_batch_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    into = writer(tmp_path, 0.01)
    into.prepare()

    def is_full(*_: Any) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(merging, "_merge", is_full)
    into.write(batch(Session("a", 1, 1, 10)), 0)
    end = time.monotonic() + 20
    while into._tables["sessions"].failed is None and time.monotonic() < end:
        time.sleep(0.01)
    with pytest.raises(MergeFailed, match="sessions: the disk is full"):
        into.write(batch(Session("a", 1, 2, 20)), 1)
    with pytest.raises(MergeFailed, match="full"):
        into.close()
    assert (waits(tmp_path), threads()) == (["000000000000.arrow"], [])

    monkeypatch.undo()
    again = writer(tmp_path)
    again.write(batch(Session("a", 1, 2, 20)), 1)
    again.close()
    assert rows(tmp_path) == {("a", 1): (2, 20)}


def test_many_rows_do_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "MOST_ROWS", 3)
    into = writer(tmp_path)
    into.write(batch(*[Session("a", n, 1, 1) for n in range(3)]), 0)
    assert rows(tmp_path) == {}
    into.write(batch(Session("b", 0, 1, 1)), 1)
    assert len(rows(tmp_path)) == 4
    into.close()


def test_a_large_table_is_merged_into_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    into = writer(tmp_path)
    table = into._tables["sessions"]
    take = merging._merge

    def slow(*arguments: Any) -> None:
        nonlocal now
        take(*arguments)
        now += 1.5

    monkeypatch.setattr(merging, "_merge", slow)
    assert table.due_in_s(2.0) == float("inf")
    into.write(batch(Session("a", 1, 1, 1)), 0)
    assert table.due_in_s(2.0) == 2.0
    table.merge()
    into.write(batch(Session("a", 1, 2, 1)), 1)
    assert table.due_in_s(2.0) == 13.5
    assert table.due_in_s(20.0) == 20.0
    now += 13.5
    monkeypatch.setattr(merging, "_REST", 900.0)
    table.merge()
    into.write(batch(Session("a", 1, 3, 1)), 2)
    assert table.due_in_s(2.0) == merging.MOST_WAIT_S
    cut_off(into)


def test_the_large_writer_finds_the_tables_at_the_batch_before(tmp_path: Path) -> None:
    found: list[Any] = []

    def large(_: Any, number: int) -> dict[str, int]:
        found.append((number, rows(tmp_path)))
        return {}

    small = writer(tmp_path)
    router = Router(small, SimpleNamespace(write=large), driver_write_max_records=1)
    router(batch(Session("a", 1, 1, 1), Session("b", 1, 1, 1)), 0)
    router(batch(Session("a", 1, 2, 1)), 1)
    assert found == [(1, {("a", 1): (1, 1), ("b", 1): (1, 1)})]
    router = Router(writer(tmp_path), SimpleNamespace(write=large))
    router(batch(Session("a", 1, 3, 3)), 2)
    router.close()
    assert rows(tmp_path) == {("a", 1): (3, 3), ("b", 1): (1, 1)}
    small.close()


def test_flush_brings_every_table_it_can(tmp_path: Path) -> None:
    told: list[str] = []

    def merge(name: str, *, fails: bool) -> Any:
        def go() -> None:
            told.append(name)
            if fails:
                raise OSError(name)

        return SimpleNamespace(merge=go, gathers=True)

    merger = Merger([merge("a", fails=False), merge("b", fails=True), merge("c", fails=False)], 1.0)
    with pytest.raises(OSError, match="b"):
        merger.flush()
    assert sorted(told) == ["a", "b", "c"]


@pytest.mark.parametrize("merged_after", [(1, 2, 3, 4, 5, 6), (6,), (3, 6), (2, 5, 6), (1, 4, 6)])
def test_where_a_table_stood_after_a_batch_has_all_that_was_said_up_to_it(
    tmp_path: Path, merged_after: tuple[int, ...]
) -> None:
    """Rolled back to where it stood after any batch, and given what came then again, it is what it was."""
    into = writer(tmp_path, app_id="app:inc")
    into.prepare()
    made = [batch(Session("a", 1, n, n), Session("b", n, 1, n)) for n in range(7)]
    for number, frame in enumerate(made):
        into.write(frame, number)
        if number in merged_after:
            into.flush()
    into.close()
    wanted = rows(tmp_path)
    for after in range(1, 7):
        kept = position_of(tmp_path / "sessions", "delta", "inc", after)
        assert kept is not None
        folder = tmp_path / f"copy{after}"
        shutil.copytree(tmp_path / "sessions", folder / "sessions")
        (folder / "sessions" / WAITING).mkdir(exist_ok=True)
        (folder / "sessions" / WAITING / "000000000009.arrow").write_bytes(b"of a batch that came after")
        forget_waiting(folder / "sessions")
        if has_moved(folder / "sessions", kept):
            roll_back(folder / "sessions", kept)
        assert not waits(folder)
        found = rows(folder)
        assert found["a", 1][0] >= after
        assert {("b", n) for n in range(after + 1)} <= found.keys()
        again = writer(folder, app_id="app:other")
        for number in range(after + 1, 7):
            again.write(made[number], number)
        again.close()
        assert rows(folder) == wanted


def test_a_savepoint_waits_for_what_is_not_merged_and_says_where_nobody_merges_it(tmp_path: Path) -> None:
    root = tmp_path / "app"
    into = writer(root / "tables", app_id="app:inc")
    (root / "tables").mkdir(parents=True)
    into.write(batch(Session("a", 1, 1, 10)), 0)
    with pytest.raises(SavepointError, match=r"left for sessions are not .*start the job once"):
        _wait_for_merges(root, 5.0)
    with owned(root):  # a job runs
        later = threading.Timer(0.2, into.flush)
        later.start()
        _wait_for_merges(root, 20.0)
        later.join()
    into.close()
    _wait_for_merges(root, 0.0)


def test_what_waits_is_waited_for(tmp_path: Path) -> None:
    into = writer(tmp_path)
    into.write(batch(Session("a", 1, 1, 10)), 0)
    folders = [tmp_path / "sessions", tmp_path / "none"]
    assert [len(found) for found in waiting_rows(tmp_path / "sessions")] == [1]
    assert wait_for_merges(folders, patience_s=0.0) == ["sessions"]
    later = threading.Timer(0.2, into.flush)
    later.start()
    assert wait_for_merges(folders, patience_s=20.0) == []
    later.join()
    assert rows(tmp_path) == {("a", 1): (1, 10)}
    into.close()


@pytest.mark.parametrize("seed", range(case_count(30)))
def test_any_history_of_batches_cuts_and_compactions_leaves_the_newest_rows(
    tmp_path: Path, seed: int
) -> None:
    """The oracle goes through the committed records one by one and knows nothing of batches."""
    chance = random.Random(seed)
    into, revision = writer(tmp_path, chance.choice((NEVER, 0.005))), 0
    wanted: dict[tuple[str, int], tuple[int, int]] = {}
    number = 0
    into.prepare()
    while number < 25:
        made = []
        for _ in range(chance.randrange(5)):
            revision += 1
            gone = chance.random() < 0.2
            made.append(
                Session(chance.choice("ab"), chance.randrange(4), revision, chance.randrange(9), gone)
            )
        frame = batch(*made) if made else None
        if frame is not None:
            into.write(frame, number)
        did = chance.random()
        if did < 0.15:  # killed, before or after the batch is committed
            cut_off(into)
            into = writer(tmp_path, chance.choice((NEVER, 0.005)))
            into.prepare()
            if frame is not None and chance.random() < 0.5:
                into.write(frame, number)
        elif did < 0.25:
            into.flush()
        elif did < 0.3:
            compact(tmp_path / "sessions")
        elif did < 0.35:
            into.close()
            into = writer(tmp_path)
            into.prepare()
        for s in made:
            if s.gone:
                wanted.pop((s.user, s.n), None)
            else:
                wanted[s.user, s.n] = (s.revision, s.clicks)
        number += 1
    cut_off(into)
    vacuum(tmp_path / "sessions", keep_ms=0)  # nothing that waits is taken for a leftover
    into.close()
    assert rows(tmp_path) == wanted
    assert (waits(tmp_path), threads()) == ([], [])
