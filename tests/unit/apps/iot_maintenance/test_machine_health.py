"""What a machine's sensors say together: learned by kind and status, and held against it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd
import pytest
from deltalake import write_deltalake
from typer.testing import CliRunner

from millrace.errors import UserError
from millrace.operators.control import Chart
from millrace.runtime.settings import load_settings
from millrace.testing import TestDriver
from millrace.testing.properties import invariant
from millrace_apps.iot_maintenance.alarms.rule import AlarmRule, Level
from millrace_apps.iot_maintenance.operations.cli import app as iot
from millrace_apps.iot_maintenance.operations.health_cli import learn
from millrace_apps.iot_maintenance.processes.anomalies import Scoring
from millrace_apps.iot_maintenance.processes.forecasts import Forecasting
from millrace_apps.iot_maintenance.processes.liveness_monitor import Monitoring
from millrace_apps.iot_maintenance.processes.machine_health import Charts, MachineHealth, read_charts
from millrace_apps.iot_maintenance.processes.monitor import MachineMonitor
from millrace_apps.iot_maintenance.settings import IotSettings, charts
from tests.unit.apps.iot_maintenance.monitor_cases import (
    DAY,
    HOUR,
    MINUTE,
    START,
    Event,
    equipment,
    reading,
    rows,
    send,
    status,
    told,
    until,
)

SENSORS = ("current", "flow", "power")


def monitor(*rules: AlarmRule, by_kind: dict[str, Chart] | None = None, **rest: int) -> MachineMonitor:
    how = {"sensor_least_ms": 10 * DAY, "grace_ms": 0, **rest}
    off = Scoring(enabled=False), Forecasting(enabled=False)
    return MachineMonitor(Monitoring(rules=rules, judge=False, **how), *off, Charts(by_kind or {}))  # type: ignore[arg-type]


def pump(minutes: int, *, seed: int = 1, begin: int = 0, leak_from: int | None = None) -> list[Event]:
    """Three sensors with one load, which is high while it runs and low while it idles; a leak takes flow."""
    rng = random.Random(seed)
    events = [equipment(begin * MINUTE, "pump")]
    for minute in range(begin, begin + minutes):
        running = minute // 60 % 2 == 0
        if minute % 60 == 0 or minute == begin:
            events.append(status(minute * MINUTE, "running" if running else "idle"))
        load = rng.gauss(10, 1) if running else rng.gauss(2, 0.2)
        leak = 3.0 if leak_from is not None and minute >= leak_from else 0.0
        for second in (10, 40):
            at = minute * MINUTE + second * 1_000
            noise = [rng.gauss(0, 0.1) for _ in SENSORS]
            events.append(reading(at, 3 * load + noise[0], "current"))
            events.append(reading(at, load - leak + noise[1], "flow"))
            events.append(reading(at, 2 * load + noise[2], "power"))
    return events


def learned() -> dict[str, Chart]:
    """What is learned from the table of readings of a normal period."""
    target = TestDriver(monitor())
    target.send_batch(pump(12 * 60))
    until(target, 13 * HOUR)
    found, _ = learn([msgspec.to_builtins(row) for row in rows(target)], MINUTE)
    return found


LEARNED = learned()


def driven(*rules: AlarmRule, **rest: int) -> TestDriver:
    return TestDriver(monitor(*rules, by_kind=LEARNED, **rest))


def health(target: TestDriver) -> list[MachineHealth]:
    found: list[MachineHealth] = target.values("machine_health")
    return found


def test_what_is_normal_is_learned_by_kind_and_status_from_the_table() -> None:
    assert set(LEARNED) == {"pump"}
    assert LEARNED["pump"].sensors == SENSORS
    assert set(LEARNED["pump"].regimes) == {"running", "idle"}
    running, idle = LEARNED["pump"].regimes["running"], LEARNED["pump"].regimes["idle"]
    assert running.mean == pytest.approx((30, 10, 20), rel=0.05)
    assert idle.mean == pytest.approx((6, 2, 4), rel=0.05)
    assert 300 <= running.rows <= 360


def test_only_what_is_believed_counts_and_too_little_is_told() -> None:
    target = TestDriver(monitor())
    target.send_batch(pump(12 * 60))
    until(target, 13 * HOUR)
    table: list[dict[str, Any]] = [msgspec.to_builtins(row) for row in rows(target)]
    wrong = [{**row, "value": 1e6, "quality": "bad"} for row in table[:500]]
    wrong += [{**row, "value": 1e6, "late": True} for row in table[:500]]
    wrong += [{**row, "value": 1e6, "revision": 1} for row in table[:500]]
    assert learn([*table, *wrong], MINUTE)[0] == LEARNED
    few = [row for row in table if row["status"] == "running" or row["event_time_ms"] < START + 70 * MINUTE]
    found, lines = learn(few, MINUTE)
    assert set(found["pump"].regimes) == {"running"}
    assert len(lines) == 1
    with pytest.raises(UserError, match="enough readings"):
        learn(table[:100], MINUTE)
    with pytest.raises(UserError, match="takes time"):
        learn(table, 0)


def test_a_machine_that_is_as_it_was_is_well_and_a_leak_is_found_and_named() -> None:
    target = driven()
    target.send_batch(pump(8 * 60, seed=7, leak_from=6 * 60))
    until(target, 9 * HOUR)
    found = health(target)
    assert len(found) >= 8 * 60 - 20
    leak = START + 6 * HOUR
    before = [row for row in found if row.event_time_ms <= leak]
    after = [row for row in found if leak < row.event_time_ms <= leak + HOUR]
    assert sum(row.score > 0.5 for row in before) <= 0.02 * len(before)
    assert min(row.score for row in after) > 0.5
    assert {(row.statistic, row.sensor) for row in after} == {("q", "flow")}
    assert {row.regime for row in before} == {"running", "idle"}
    assert any(row.change == "up" for row in after[:10])
    for row in found:
        assert sum(row.contributions.values()) == pytest.approx(1)
        regime = LEARNED["pump"].regimes[row.regime]
        share = max(row.t2 / regime.t2_limit, row.q / regime.q_limit)
        assert row.score == pytest.approx(share / (1 + share))
        assert (row.t2_limit, row.q_limit) == (regime.t2_limit, regime.q_limit)


def test_a_minute_in_which_the_status_changes_is_not_judged_nor_one_without_a_sensor() -> None:
    target = driven()
    events = pump(30)
    split = [status(15 * MINUTE + 30_000, "idle"), status(16 * MINUTE, "running")]
    send(target, *sorted([*events, *split], key=lambda e: e[1]))
    until(target, HOUR)
    judged = {(row.event_time_ms - START) // MINUTE for row in health(target)}
    assert 16 not in judged
    assert {15, 17} <= judged
    silent = driven()
    send(
        silent,
        *(e for e in pump(40) if getattr(e[2], "quantity", "") != "flow" or e[1] < START + 10 * MINUTE),
    )
    until(silent, HOUR)
    last = max((row.event_time_ms - START) // MINUTE for row in health(silent))
    # Its last value stands for ten minutes.
    assert last == 19


def test_machines_of_other_kinds_and_statuses_are_held_against_nothing() -> None:
    other, unknown = driven(), driven()
    send(other, equipment(0, "turbine"), *pump(20)[1:])
    stopped = [e if getattr(e[2], "status", "") == "" else status(e[1] - START, "cleaning") for e in pump(20)]
    send(unknown, *stopped)
    for target in (other, unknown):
        until(target, HOUR)
        assert health(target) == []


def test_an_alarm_rule_can_ask_for_the_health() -> None:
    ill = AlarmRule("ill", (Level(when="health_score > 0.6"),), quantities=("power",))
    target = driven(ill)
    send(target, *pump(100, leak_from=80))
    until(target, 2 * HOUR)
    assert told(target)[-1] == ((80 + 1) * 60 + 10, "active")


def test_health_does_not_depend_on_cuts_and_ends_with_the_machine() -> None:
    invariant(monitor(by_kind=LEARNED), pump(40, leak_from=20), bound_ms=20 * MINUTE, runs=6)
    target = driven(keep_ms=DAY)
    send(target, *pump(20))
    until(target, 3 * DAY)
    assert target.is_empty()


def test_a_file_of_charts_is_read_and_one_that_is_none_refused(tmp_path: Path) -> None:
    path = tmp_path / "normal.json"
    path.write_bytes(msgspec.json.encode(LEARNED))
    assert read_charts(path) == LEARNED
    overrides = [f"health.charts={path}", "health.interval=5m"]
    settings = load_settings(IotSettings, app="iot", overrides=overrides, env={})
    assert charts(settings) == Charts(LEARNED, 5 * MINUTE)
    assert charts(load_settings(IotSettings, app="iot", env={})) == Charts()
    broken: Any = msgspec.to_builtins(LEARNED)
    broken["pump"]["regimes"]["idle"]["mean"] = [1.0]
    for content in (b"{", b'{"pump": 3}', msgspec.json.encode(broken)):
        path.write_bytes(content)
        with pytest.raises(UserError) as raised:
            read_charts(path)
        assert "\n" not in str(raised.value)
    with pytest.raises(UserError, match="no charts"):
        read_charts(tmp_path / "none.json")


def test_the_command_learns_from_the_table_and_writes_what_a_job_reads(tmp_path: Path) -> None:
    target = TestDriver(monitor())
    target.send_batch(pump(4 * 60))
    until(target, 13 * HOUR)
    columns = ("machine_id", "quantity", "value", "event_time_ms", "revision", "late", "quality")
    table = pd.DataFrame(
        [{name: getattr(row, name) for name in (*columns, "status", "kind")} for row in rows(target)]
    )
    write_deltalake(str(tmp_path / "tables" / "readings"), table)
    out = tmp_path / "normal.json"
    arguments = ["health", "train", "--root", str(tmp_path), "--out", str(out)]
    done = CliRunner().invoke(iot, [*arguments, "--until", str(START + 3 * HOUR)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "pump, running: 120 rows of current, flow, power" in done.output
    assert read_charts(out)["pump"].regimes["idle"].rows == 60
    for odd in (["--kind", "turbine"], ["--from", str(START + 9 * HOUR)]):
        with pytest.raises(UserError, match="enough readings"):
            CliRunner().invoke(iot, [*arguments, *odd], catch_exceptions=False)
