"""A champion's swap under kill -9: every forecast, and what is normal, once, by one of the models."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from deltalake import DeltaTable

from millrace.runtime.replay import Record, RecordFiles
from millrace_apps.iot_maintenance.contracts.events import Equipment
from millrace_apps.iot_maintenance.contracts.signals import KEYS
from millrace_apps.iot_maintenance.evaluation.stream import Sent, plain, run, settings_for
from tests.crash.killed_foresight import NORMAL, OVERRIDES, settings_in
from tests.unit.apps.iot_maintenance.foresight_cases import HOUR, START, normal_of, publish_both, wearing
from tests.unit.apps.iot_maintenance.test_normal import publish as publish_normal

pytestmark = pytest.mark.matrix  # three starts of Spark

BATCH = 120


def killed(point: str, batch: int, folder: Path) -> int:
    command = [sys.executable, "-m", "tests.crash.killed_foresight", point, str(batch), str(folder)]
    return subprocess.run(command, timeout=250, check=False, capture_output=True).returncode


def rows_of(folder: Path, table: str) -> list[dict[str, Any]]:
    found = DeltaTable(str(folder / "tables" / table)).to_pyarrow_table().to_pylist()
    return [plain(row) for row in found]


def place(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["machine_id"], row["event_time_ms"], row.get("component", "")


def bare(row: dict[str, Any]) -> dict[str, Any]:
    """A row without what the watch over many rows says, whose past is of several models here."""
    found = {name: value for name, value in row.items() if name != "change" and not name.startswith("_")}
    return {**found, "contributions": dict(found["contributions"])}


@pytest.mark.parametrize("points", [[("state", 2), ("tables", 5)], [("offsets", 3), ("table", 4)]])
def test_a_swap_of_the_champion_loses_and_doubles_nothing(
    points: list[tuple[str, int]], tmp_path: Path
) -> None:
    events = [Sent("equipment", Equipment(f"m{n}", START, "pump")) for n in range(8)] + wearing(8)
    names = ["machine_features", "maintenance"]
    wanted = run(events, settings_for(OVERRIDES), names, engine="memory").rows["machine_features"]
    publish_both(tmp_path / "exported", wanted, events, "1")
    publish_normal(tmp_path / "exported", normal_of(1), "1", HOUR)
    # What each of the models alone says is normal.
    alone: dict[str, dict[tuple[Any, ...], dict[str, Any]]] = {}
    for version in ("1", "2", "3"):
        publish_normal(tmp_path / version, normal_of(int(version)), version, HOUR)
        told = settings_for([*OVERRIDES, *NORMAL, f"health.exports={tmp_path / version}"])
        rows = run(events, told, ["machine_health"], engine="memory").rows["machine_health"]
        alone[version] = {place(row): row for row in rows}
    settings, files = settings_in(tmp_path), RecordFiles(tmp_path / "records")
    for low in range(0, len(events), BATCH):
        files.add(
            Record(
                getattr(settings.topics, sent.topic),
                msgspec.json.encode(sent.event),
                getattr(sent.event, KEYS[sent.topic]).encode(),
                sent.event.event_time_ms,
            )
            for sent in events[low : low + BATCH]
        )
    for number, (point, batch) in enumerate(points):
        assert killed(point, batch, tmp_path) == -signal.SIGKILL
        publish_both(tmp_path / "exported", wanted, events, str(number + 2))
        publish_normal(tmp_path / "exported", normal_of(number + 2), str(number + 2), HOUR)
    assert killed("never", 0, tmp_path) == 0

    steps = {place(row): dict(row["features"]) for row in wanted}
    found = rows_of(tmp_path, "machine_features")
    assert len(found) == len(wanted)
    assert {place(row): dict(row["features"]) for row in found} == steps
    lives, risks = rows_of(tmp_path, "remaining_life"), rows_of(tmp_path, "risks")
    assert sorted(map(place, lives)) == sorted(steps)
    assert sorted(map(place, risks)) == sorted((*s[:2], c) for s in steps for c in ("pump", "seal"))
    versions = {row["model"] for row in lives}
    assert versions <= {"1", "2", "3"}
    assert {"1", "3"} <= versions
    # All of one step are of one version of their model.
    by_step: dict[tuple[Any, ...], set[str]] = {}
    for row in risks:
        by_step.setdefault(place(row)[:2], set()).add(row["model"])
    assert all(len(of) == 1 for of in by_step.values())
    assert len(rows_of(tmp_path, "maintenance")) == 8
    # Plans go by the intervals, and alarms are judged behind them: nothing is put aside there.
    begins = {place(row): row["event_time_ms"] + round(row["low_h"] * HOUR) for row in lives}
    plans = [row for row in rows_of(tmp_path, "maintenance_plan") if row["reason"] == "interval"]
    assert plans
    assert all(begins[place({**row, "component": ""})] == row["latest_ms"] for row in plans)
    assert not (tmp_path / "tables" / "dead_warnings").exists() or not rows_of(tmp_path, "dead_warnings")
    # What is normal: every interval once, and as the model says that its row names.
    health = rows_of(tmp_path, "machine_health")
    assert len(health) == len(alone["1"])
    assert {row["model"] for row in health} >= {"1", "3"}
    for row in health:
        assert bare(row) == bare(alone[row["model"]][place(row)])
