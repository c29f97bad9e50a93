"""Runs of the sizing benchmark in pieces: what was measured is kept, and not measured again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from millrace.errors import UserError
from millrace.sizing.model import Costs, Point
from millrace_apps.benchmarks import sizing
from millrace_apps.benchmarks.sizing import QUICK, Run, Sizes

TRUTH = Costs(200.0, 30.0, 100.0, 40.0)


class Machine:
    """Runs anything, until it is ended behind so many runs."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.ran: list[Run] = []

    def measured(self, run: Run, sizes: Sizes) -> Point:
        if len(self.ran) == self.most:
            raise KeyboardInterrupt
        self.ran.append(run)
        seconds = run.every_s or 0.5
        return Point(run.rows, run.cards / 10, TRUTH.batch_ms(run.rows, run.cards / 10, seconds), seconds)


def test_a_run_that_is_ended_is_gone_on_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = tmp_path / "points.json"
    first, then = Machine(2), Machine(99)
    monkeypatch.setattr(sizing, "measured", first.measured)
    with pytest.raises(KeyboardInterrupt):
        sizing.sizing(QUICK, points)
    monkeypatch.setattr(sizing, "measured", then.measured)
    found = sizing.sizing(QUICK, points)
    assert (first.ran, then.ran) == (list(QUICK.runs[:2]), list(QUICK.runs[2:]))
    monkeypatch.setattr(sizing, "measured", Machine(99).measured)
    assert found == sizing.sizing(QUICK), "in pieces as in one"
    assert [one["rows"] for one in found["points"]] == [run.rows for run in QUICK.runs]
    assert found["worst_left_out"] < 0.01


def test_points_of_other_sizes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = tmp_path / "points.json"
    monkeypatch.setattr(sizing, "measured", Machine(99).measured)
    sizing.sizing(QUICK, points)
    assert len(json.loads(points.read_text())["points"]) == len(QUICK.runs)
    with pytest.raises(UserError, match="--warm 2 --batches 3"):
        sizing.sizing(Sizes(5, 5, QUICK.runs), points)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "[" * 3_000, "\udcff", '{"warm": 2, "batches": 3, "points": [{"run": {}}]}']
)
def test_a_file_that_has_no_points_is_told_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    points = tmp_path / "points.json"
    points.write_bytes(text.encode("utf-8", "surrogateescape"))
    machine = Machine(0)
    monkeypatch.setattr(sizing, "measured", machine.measured)
    with pytest.raises(UserError, match="has no points of this benchmark"):
        sizing.sizing(QUICK, points)
