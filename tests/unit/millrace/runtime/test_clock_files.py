"""What stands beside a checkpoint of its clock: settings by batch, and how far it was after each."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.runtime import clock_files
from millrace.runtime.clock_files import (
    Epoch,
    keep_settings,
    read_settings,
    read_status,
    read_watermark,
    settings_of,
    write_status,
)
from millrace.time import END_OF_TIME, NO_WATERMARK
from millrace.time.clock import ClockSettings, ClockStatus


def clock(bound_ms: int, **of: Any) -> ClockSettings:
    return ClockSettings(bound_ms=bound_ms, **of)


def plan(root: Path, *batches: int) -> None:
    """Have the engine plan batches, as it notes them: with a checksum beside each."""
    offsets = root / "checkpoint" / "offsets"
    offsets.mkdir(parents=True, exist_ok=True)
    for batch in batches:
        (offsets / f"{batch}").write_text("v1\n{}\n-\n")
        (offsets / f".{batch}.crc").write_bytes(b"crc")


def names(root: Path) -> list[str]:
    return sorted(p.name for p in root.iterdir())


# -- settings -----------------------------------------------------------------------------------------


def test_a_query_begins_with_its_settings_at_its_first_batch(tmp_path: Path) -> None:
    assert read_settings(tmp_path) == []
    kept = keep_settings(tmp_path / "new" / "query", clock(5))
    assert kept == [Epoch(0, clock(5))] == read_settings(tmp_path / "new" / "query")
    assert names(tmp_path / "new" / "query") == ["clock.json"]


def test_all_settings_are_read_as_they_were_written(tmp_path: Path) -> None:
    own = ClockSettings(
        bound_ms=7,
        limits=(None, 500),
        skews=(None, -20),
        clocks=((True, False), (True,)),
        topics=("in", "ü"),
        full_batches=3,
        follow="slowest",
        idle_after_ms=60_000,
        incarnation="ab12",
    )
    keep_settings(tmp_path, own)
    assert read_settings(tmp_path) == [Epoch(0, own)]


def test_a_batch_that_was_planned_runs_again_under_what_it_was_planned_under(tmp_path: Path) -> None:
    """Batch 4 was planned and not committed; the restart brings another bound."""
    keep_settings(tmp_path, clock(5))
    plan(tmp_path, 0, 1, 2, 3, 4)
    epochs = keep_settings(tmp_path, clock(7))
    assert epochs == [Epoch(0, clock(5)), Epoch(5, clock(7))] == read_settings(tmp_path)
    assert [settings_of(epochs, batch).bound_ms for batch in (3, 4, 5, 6, 1_000)] == [5, 5, 7, 7, 7]


@pytest.mark.parametrize(
    "changed",
    [
        {"limits": (10,)},
        {"skews": (None,)},
        {"clocks": ((False,),)},
        {"topics": ("in",)},
        {"full_batches": 3},
        {"follow": "slowest"},
        {"idle_after_ms": 5},
        {"incarnation": "ab12"},
    ],
)
def test_whatever_changes_holds_for_batches_to_come(tmp_path: Path, changed: dict[str, Any]) -> None:
    keep_settings(tmp_path, clock(5))
    plan(tmp_path, 0)
    assert keep_settings(tmp_path, clock(5, **changed)) == [Epoch(0, clock(5)), Epoch(1, clock(5, **changed))]


def test_a_restart_with_the_same_settings_changes_nothing(tmp_path: Path) -> None:
    keep_settings(tmp_path, clock(5))
    before = os.stat(tmp_path / "clock.json")
    plan(tmp_path, 0, 1)
    assert keep_settings(tmp_path, clock(5)) == [Epoch(0, clock(5))]
    after = os.stat(tmp_path / "clock.json")
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_settings_under_which_nothing_was_planned_go(tmp_path: Path) -> None:
    """Two restarts one after the other, and a third that has the first settings again."""
    keep_settings(tmp_path, clock(5))
    assert keep_settings(tmp_path, clock(6)) == [Epoch(0, clock(6))]
    plan(tmp_path, 0, 1, 2)
    assert keep_settings(tmp_path, clock(7)) == [Epoch(0, clock(6)), Epoch(3, clock(7))]
    assert keep_settings(tmp_path, clock(8)) == [Epoch(0, clock(6)), Epoch(3, clock(8))]
    assert keep_settings(tmp_path, clock(6)) == [Epoch(0, clock(6))] == read_settings(tmp_path)


def test_settings_of_batches_that_are_done_go(tmp_path: Path) -> None:
    for batch, bound in enumerate((5, 6, 7, 8)):
        keep_settings(tmp_path, clock(bound))
        plan(tmp_path, batch)
    assert read_settings(tmp_path) == [Epoch(2, clock(7)), Epoch(3, clock(8))]
    plan(tmp_path, 4)
    assert keep_settings(tmp_path, clock(9)) == [Epoch(3, clock(8)), Epoch(5, clock(9))]


def test_the_last_planned_batch_is_the_greatest_number_of_those_that_are_kept(tmp_path: Path) -> None:
    """Old notes are removed, names are no numbers, and 10 comes after 9."""
    plan(tmp_path, 9, 10)
    (tmp_path / "checkpoint" / "offsets" / ".11.8f2a.tmp").write_text("half")
    (tmp_path / "checkpoint" / "offsets" / "_metadata").write_text("")
    assert keep_settings(tmp_path, clock(5)) == [Epoch(11, clock(5))]
    plan(tmp_path, 11)
    assert keep_settings(tmp_path, clock(6)) == [Epoch(11, clock(5)), Epoch(12, clock(6))]


def test_a_checkpoint_that_has_no_settings_yet_goes_on_with_those_of_now(tmp_path: Path) -> None:
    """One that was restored or converted: what it has planned is done, or is judged by what there is."""
    plan(tmp_path, 4)
    epochs = keep_settings(tmp_path, clock(5))
    assert epochs == [Epoch(5, clock(5))]
    assert [settings_of(epochs, batch).bound_ms for batch in (4, 5, 6)] == [5, 5, 5]


def test_a_write_that_was_cut_off_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_settings(tmp_path, clock(5))
    plan(tmp_path, 0)

    def fail(_: int) -> None:
        raise OSError("the disk is full")

    with monkeypatch.context() as cut:
        cut.setattr(clock_files.os, "fsync", fail)
        with pytest.raises(OSError, match="full"):
            keep_settings(tmp_path, clock(6))
    assert read_settings(tmp_path) == [Epoch(0, clock(5))]
    (tmp_path / "clock.part").write_bytes(b'[[0,{"bound_ms":')
    assert read_settings(tmp_path) == [Epoch(0, clock(5))]
    assert keep_settings(tmp_path, clock(7)) == [Epoch(0, clock(5)), Epoch(1, clock(7))]
    assert read_settings(tmp_path) == [Epoch(0, clock(5)), Epoch(1, clock(7))]


def test_settings_of_a_version_that_knew_fewer_are_read(tmp_path: Path) -> None:
    (tmp_path / "clock.json").write_bytes(b'[[3,{"bound_ms":5}]]')
    assert read_settings(tmp_path) == [Epoch(3, clock(5))]


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("restart"), st.integers(1, 3)),
            st.tuples(st.just("plan"), st.integers(1, 3)),
        ),
        max_size=20,
    )
)
def test_every_batch_runs_and_runs_again_under_the_settings_that_held_when_it_was_planned(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    """At every restart the last planned batch, and all that follow, are asked for their settings."""
    root = tmp_path_factory.mktemp("query")
    epochs = keep_settings(root, clock(1))
    now, planned_under, last = 1, {}, -1
    for what, number in steps:
        if what == "restart":
            now = number
            epochs = keep_settings(root, clock(now))
            if last >= 0:
                assert settings_of(epochs, last).bound_ms == planned_under[last]
            assert epochs == read_settings(root)
            assert len(epochs) <= 2
        else:
            for _ in range(number):
                last += 1
                plan(root, last)
                planned_under[last] = now
                assert settings_of(epochs, last).bound_ms == now


# -- how far it was -----------------------------------------------------------------------------------

STATUS = ClockStatus(5, 9, 15, 14, True, "in:3")


@pytest.mark.parametrize(
    "status",
    [
        STATUS,
        ClockStatus(NO_WATERMARK, NO_WATERMARK),
        ClockStatus(-90, -80, -70, None, False, ""),
        ClockStatus(NO_WATERMARK, END_OF_TIME, 15, 14),
        ClockStatus(1, 2, 3, 4, False, "ü:0"),
    ],
)
def test_how_far_the_clock_was_is_read_as_it_was_written(tmp_path: Path, status: ClockStatus) -> None:
    write_status(tmp_path, 3, status)
    assert read_status(tmp_path, 3) == status
    told = None if status.watermark in (NO_WATERMARK, END_OF_TIME) else status.watermark
    assert read_watermark(tmp_path, 3) == told  # neither is a time


def test_of_a_batch_that_nobody_noted_nothing_is_known(tmp_path: Path) -> None:
    assert (read_status(tmp_path, 0), read_watermark(tmp_path, 0)) == (None, None)
    write_status(tmp_path, 3, STATUS)
    assert (read_status(tmp_path, 2), read_watermark(tmp_path, 4)) == (None, None)


def test_a_batch_that_runs_again_says_the_same_over_what_was_there(tmp_path: Path) -> None:
    write_status(tmp_path, 3, ClockStatus(0, 0))
    write_status(tmp_path, 3, STATUS)
    assert read_status(tmp_path, 3) == STATUS
    assert names(tmp_path / "clock") == ["3"]


@pytest.mark.parametrize("length", [0, 1, 10, -1])
def test_a_note_that_was_cut_off_is_none(tmp_path: Path, length: int) -> None:
    write_status(tmp_path, 3, STATUS)
    path = tmp_path / "clock" / "3"
    path.write_bytes(path.read_bytes()[:length])
    assert (read_status(tmp_path, 3), read_watermark(tmp_path, 3)) == (None, None)


@pytest.mark.parametrize(
    "content", [b"null", b"[1,2]", b"{}", b'{"before":1}', b'{"before":1,"watermark":2,"later":3}', b"\xff"]
)
def test_a_note_that_says_something_else_is_none(tmp_path: Path, content: bytes) -> None:
    write_status(tmp_path, 3, STATUS)
    (tmp_path / "clock" / "3").write_bytes(content)
    assert read_status(tmp_path, 3) in (None, ClockStatus(1, 2))


def test_a_write_that_is_cut_off_leaves_the_note_before_it(tmp_path: Path) -> None:
    write_status(tmp_path, 3, STATUS)
    (tmp_path / "clock" / ".3.part").write_bytes(b'{"bef')
    assert read_status(tmp_path, 3) == STATUS
    write_status(tmp_path, 3, ClockStatus(0, 1))
    assert read_status(tmp_path, 3) == ClockStatus(0, 1)
    assert names(tmp_path / "clock") == ["3"]


def test_notes_of_batches_of_long_ago_are_removed(tmp_path: Path) -> None:
    for batch in range(450):
        write_status(tmp_path, batch, ClockStatus(batch, batch + 1))
    kept = sorted(int(name) for name in names(tmp_path / "clock"))
    assert kept == list(range(250, 450))
    assert read_watermark(tmp_path, 449) == 450
    assert read_watermark(tmp_path, 100) is None


def test_notes_are_text_with_names_for_whoever_has_no_millrace(tmp_path: Path) -> None:
    write_status(tmp_path, 3, STATUS)
    assert msgspec.json.decode((tmp_path / "clock" / "3").read_bytes()) == {
        "before": 5,
        "watermark": 9,
        "furthest": 15,
        "arrival": 14,
        "is_full": True,
        "held_by": "in:3",
    }
