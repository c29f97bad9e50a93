"""The state of a second version in the first one's place: only from the same offsets, time and results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from millrace.checkpoints.checkpoint import Checkpoint, CheckpointError
from millrace.dashboard.progress import offsets_of
from millrace.runtime.clock_files import write_status
from millrace.time.clock import ClockStatus
from millrace.upgrading import own_state
from millrace.upgrading.differences import TableDifference
from millrace.upgrading.own_state import OwnState, StateNotTaken, beyond, differences
from millrace.upgrading.sent import SentDifference
from millrace.upgrading.started import Started
from millrace.upgrading.starting import Begun
from millrace.upgrading.trial import Compared
from tests.unit.millrace.upgrading.test_trial import planned

STARTED = Started(("python", "-m", "millrace"), ("fraud", "--set=a=b"), Path("/"), {})


class Query:
    """The second version: what it is started with, and what it leaves."""

    def __init__(self, root: Path, *, commits: bool = True, watermark: int = 50) -> None:
        self.root, self.commits, self.watermark = root, commits, watermark
        self.started: list[tuple[str, ...]] = []

    def start(self, started: Started, root: Path, *, after: int, **_: Any) -> Begun:
        self.started.append(started.arguments)
        batch = after + 1
        process: Any = type("Ended", (), {"is_alive": lambda _: False, "stop": lambda *_, **__: None})()
        if not self.commits:
            return Begun(process, None, 0.0, "no disk")
        (root / "checkpoint" / "commits" / str(batch)).write_text("v1\n{}")
        # The batch that it had planned when it was told to end, and refused.
        offsets = root / "checkpoint" / "offsets"
        (offsets / str(batch + 1)).write_text((offsets / str(batch)).read_text())
        write_status(root, batch, ClockStatus(0, self.watermark, 90))
        return Begun(process, batch, 0.1)


def versions(tmp_path: Path, *, blue: int = 20, green: int = 12) -> tuple[Path, Path]:
    """Two folders: the first has ended at an offset, the second behind it, both with a batch planned."""
    roots = tmp_path / "app", tmp_path / "app-green"
    planned(roots[0], {4: 10, 5: blue, 6: 31}, committed=5)
    planned(roots[1], {1: 3, 2: green, 3: 17}, committed=2)
    write_status(roots[0], 5, ClockStatus(0, 50, 90))
    write_status(roots[1], 2, ClockStatus(0, 50, 90))
    return roots


def taking(roots: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, query: Query, **said: Any) -> OwnState:
    found = Compared("fraud", "", "", {}, {}, True, {}, **said)
    monkeypatch.setattr(own_state, "compare", lambda *_, **__: found)
    monkeypatch.setattr(own_state, "start_and_wait", query.start)
    kept: Any = lambda checkpoint, name: (checkpoint.last(), name)  # noqa: E731
    monkeypatch.setattr(own_state.savepoints, "create", kept)
    app: Any = None
    return OwnState(app, app, *roots, STARTED, timeout_s=0.2)


def test_the_second_version_runs_one_batch_that_ends_where_the_first_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it had planned when it was told to end is planned anew.

    ::

        first    committed 20 | planned 31, refused
        second   committed 12 | planned 17, refused -> planned 20, run
    """
    roots = versions(tmp_path)
    query = Query(roots[1])
    found: Any = taking(roots, monkeypatch, query)(print)
    assert found == (3, "switch-3")
    assert query.started == [("fraud", "--set=a=b", "--until-batch=3")]
    green = Checkpoint(roots[1], roots[1] / "checkpoint")
    assert offsets_of(green.position(3).sources) == {"in": {0: 20, 1: 5}}


def test_a_second_version_that_is_there_runs_no_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roots = versions(tmp_path, green=20)
    query = Query(roots[1])
    found: Any = taking(roots, monkeypatch, query)(print)
    assert (found, query.started) == ((2, "switch-2"), [])


@pytest.mark.parametrize(
    ("green", "query", "said", "why"),
    [
        (21, {}, {}, "has read in:0 further"),
        (12, {"commits": False}, {}, "did not run its batch: no disk"),
        (12, {"watermark": 49}, {}, r"other times \(\(50, 90\) and \(49, 90\), ms\)"),
        (12, {}, {"sent": {"alerts": SentDifference(only_blue=1)}}, "differ in alerts"),
        (12, {}, {"not_compared": ["forget"]}, "differ in forget"),
    ],
)  # fmt: skip
def test_what_would_lose_or_double_something_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, green: int, query: Any, said: Any, why: str
) -> None:
    roots = versions(tmp_path, green=green)
    with pytest.raises(StateNotTaken, match=why):
        taking(roots, monkeypatch, Query(roots[1], **query), **said)(print)


def test_the_first_version_is_waited_for_until_it_has_read_what_the_second_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roots = versions(tmp_path, blue=20, green=25)
    own = taking(roots, monkeypatch, Query(roots[1]))
    with pytest.raises(StateNotTaken, match="does not run, and has not read"):
        own.wait_for_blue(print)
    runs: Any = lambda _: object()  # noqa: E731
    monkeypatch.setattr(own_state, "job_in", runs)
    with pytest.raises(StateNotTaken, match="still reads what the second one has read"):
        own.wait_for_blue(print)
    (roots[0] / "checkpoint" / "commits" / "6").write_text("v1\n{}")
    own.wait_for_blue(print)


def test_what_only_the_second_says_where_the_first_has_no_table_is_no_difference() -> None:
    tables = {
        "new": TableDifference(only_green=3, columns_only_green=["_event_id"]),
        "more": TableDifference(same=3, columns_only_green=["score"]),
        "lost": TableDifference(only_blue=1), "added": TableDifference(only_green=1),
        "other": TableDifference(differ=1), "twice": TableDifference(twice_green=1),
        "less": TableDifference(columns_only_blue=["score"]),
    }  # fmt: skip
    found = Compared("fraud", "", "", {}, {}, False, tables)
    assert differences(found, tables.keys() - {"new"}) == ["added", "less", "lost", "other", "twice"]
    assert beyond({"in": {0: 5, 1: 7}}, {"in": {0: 5, 1: 7}}) == ""
    assert beyond({"in": {0: 5, 2: 1}}, {"in": {0: 5, 1: 7}}) == "in:2"


def test_a_batch_is_planned_behind_the_last_committed_one_in_place_of_what_was_planned(
    tmp_path: Path,
) -> None:
    planned(tmp_path, {1: 3, 2: 12, 3: 17, 4: 18}, committed=2)
    checkpoint = Checkpoint(tmp_path, tmp_path / "checkpoint")
    crc = tmp_path / "checkpoint" / "offsets" / ".3.crc"
    crc.write_text("of what was planned before")
    assert checkpoint.plan((json.dumps({"in": {"0": 15}}),)) == 3
    assert checkpoint.planned() == [3]
    assert offsets_of(checkpoint.position(3).sources) == {"in": {0: 15}}
    assert checkpoint.position(3).metadata["conf"] == {}
    assert not crc.exists()
    with pytest.raises(CheckpointError, match="reads 1 sources, and offsets of 2"):
        checkpoint.plan(("{}", None))
