"""What alarm rules would have done, against what the stream did with the same rules."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from typer.testing import CliRunner

from millrace.cli import build
from millrace.errors import UserError
from millrace.host.memory import MemoryHost
from millrace.host.memory_chain import MemoryChain
from millrace_apps.generators.iot import IotProfile, simulate
from millrace_apps.iot_maintenance.alarms.record import AlarmEvent
from millrace_apps.iot_maintenance.alarms.rule import AlarmRule, Level, ReAlarm
from millrace_apps.iot_maintenance.contracts.records import EnrichedReading
from millrace_apps.iot_maintenance.contracts.signals import INPUTS, as_row
from millrace_apps.iot_maintenance.operations.backtest import BacktestError, Report, backtest, read_table
from millrace_apps.iot_maintenance.processes.monitor import Monitoring
from millrace_apps.iot_maintenance.processes.plant import PlantMonitor
from millrace_apps.iot_maintenance.processes.windows import AlarmKpi
from millrace_apps.iot_maintenance.settings import IotSettings, monitoring
from millrace_apps.iot_maintenance.topology import topology

START = 1_767_261_600_000
MINUTE = 60_000


class Plant(NamedTuple):
    """What the stream made of some minutes of a fleet, and the table that it wrote."""

    monitoring: Monitoring
    rows: list[EnrichedReading]
    history: list[dict[str, Any]]
    root: Path

    @property
    def table(self) -> Path:
        return self.root / "tables" / "readings"


def put(path: Path, rows: list[EnrichedReading]) -> None:
    """Write rows as the app's table has them, in any order."""
    columns = {name: [getattr(row, name) for row in rows] for name in EnrichedReading.__struct_fields__}
    maps = {
        "attributes": pa.string(),
        "last_maintenance_ms": pa.int64(),
        "component_age_days": pa.float64(),
        "errors_24h": pa.int64(),
    }
    arrays = {
        name: pa.array([list(v.items()) for v in values], pa.map_(pa.string(), maps[name]))
        if name in maps
        else pa.array(values)
        for name, values in columns.items()
    }
    write_deltalake(str(path), pa.table(arrays))


@pytest.fixture(scope="module")
def plant(tmp_path_factory: pytest.TempPathFactory) -> Plant:
    profile = IotProfile(
        seed=6, start_ms=START, machines=12, machines_per_line=3, event_rate=400.0, acceleration=60.0,
        failure_scale=8, sensor_fault_rate=1000.0, outage_rate=0.0, events=40_000,
    )  # fmt: skip
    chain = MemoryChain(topology(IotSettings()), out_of_orderness_ms=1_000, records=True)
    told: dict[str, list[Any]] = defaultdict(list)
    last = 0
    batch: list[Any] = []

    def take(emissions: Any) -> None:
        for e in emissions:
            told[e.output].append(e.payload)

    for simulated in simulate(profile):
        event = msgspec.convert(simulated.event, INPUTS[simulated.stream], from_attributes=True)
        last = max(last, event.event_time_ms)
        batch.append(as_row(simulated.stream, event))
        if len(batch) == 3_000:
            take(chain.run_batch(batch))
            batch = []
    take(chain.run_batch(batch))
    take(chain.advance_watermark(last))
    root = tmp_path_factory.mktemp("iot")
    rows = told["MachineMonitor.main"]
    put(root / "tables" / "readings", rows[::-1])
    history = [msgspec.to_builtins(a) for a in told["main"]]
    return Plant(monitoring(IotSettings()), rows, history, root)


def test_alarms_are_those_that_the_stream_raised_with_the_same_rules(plant: Plant) -> None:
    """Counted from the history: an alarm is told of when it becomes active and nothing holds it back."""
    tried = backtest(plant.monitoring.rules, plant.monitoring, read_table(plant.table))
    stream = Counter(a["rule_id"] for a in plant.history if a["change"] == "active" and a["announced"])
    found = {o.rule: o.alarms for o in tried.rules}
    assert {rule: n for rule, n in found.items() if n} == dict(stream)
    assert len([rule for rule, n in found.items() if n]) >= 5
    assert tried.together.alarms == stream.total() == sum(tried.by_day.values())
    skipped = [o for o in tried.rules if o.not_tried]
    assert [(o.rule, o.alarms) for o in skipped] == [
        ("errors-again", 0),
        ("component-fails-soon", 0),
        ("clock-wrong", 0),
    ]
    machines = {a["entity_id"] for a in plant.history if a["change"] == "active" and a["announced"]}
    assert tried.together.machines == len(machines)


def test_floods_are_those_of_the_plants_figures(plant: Plant) -> None:
    tried = backtest(plant.monitoring.rules, plant.monitoring, read_table(plant.table))
    host = MemoryHost(PlantMonitor(), records=True)
    alarms = [msgspec.convert(row, AlarmEvent) for row in plant.history]
    told = host.run_batch([(alarm.plant_id, alarm.event_time_ms, alarm) for alarm in alarms])
    told += host.advance_watermark(max(alarm.event_time_ms for alarm in alarms) + 20 * MINUTE)
    newest: dict[Any, AlarmKpi] = {}
    for kpi in sorted((e.payload for e in told if e.output == "kpis"), key=lambda k: k.revision):
        newest[kpi.plant_id, kpi.span, kpi.start_ms] = kpi
    tens = [kpi for (_, span, _), kpi in newest.items() if span == "10min"]
    assert tried.together.floods == sum(kpi.flood for kpi in tens) > 0
    assert tried.together.worst == max(kpi.alarms for kpi in tens)


def reading(at: int, value: float, machine: str = "p01-l01-m001", **more: Any) -> EnrichedReading:
    said: dict[str, Any] = {
        "reading_id": f"{machine}.{at}", "sensor_id": f"{machine}.oil", "machine_id": machine,
        "quantity": "oil", "value": value, "unit": "degC", "event_time_ms": START + at, "revision": 0,
        "corrected": False, "late": False, "quality": "good", "fault": "", "status": "running",
        "status_since_ms": START - MINUTE, "kind": "pump", "attributes": {}, "last_maintenance_ms": {},
        "component_age_days": {}, "errors_24h": {},
    }  # fmt: skip
    return EnrichedReading(**(said | more))


def tried(rule: AlarmRule, rows: list[EnrichedReading], folder: Path) -> Report:
    put(folder / "readings", rows)
    return backtest([rule], Monitoring(judge=False), read_table(folder / "readings"))


HOT = AlarmRule("hot", (Level(above=80.0, dead_band=5.0, on_delay="2s"),), quantities=("oil",))


def test_delays_dead_bands_and_suppression_are_those_of_the_rule(tmp_path: Path) -> None:
    rows = [reading(second * 1_000, 81.0 if 5 <= second < 9 else 70.0) for second in range(20)]
    assert tried(HOT, rows, tmp_path / "a").together.examples == [("p01-l01-m001:hot/oil", START + 7_000)]
    short = msgspec.structs.replace(HOT, levels=(Level(above=80.0, on_delay="5s"),))
    assert tried(short, rows, tmp_path / "b").together.alarms == 0
    stopped = [msgspec.structs.replace(row, status="off") for row in rows]
    quiet = msgspec.structs.replace(HOT, suppress_in=("off",))
    assert tried(quiet, stopped, tmp_path / "c").together.alarms == 0
    assert tried(quiet, rows, tmp_path / "d").together.alarms == 1


def test_an_alarm_that_rises_is_one_and_one_that_is_told_again_is_counted_again(tmp_path: Path) -> None:
    values = {**dict.fromkeys(range(5, 9), 81.0), **dict.fromkeys(range(9, 20), 95.0)}
    rows = [reading(second * 1_000, values.get(second, 70.0)) for second in range(20)]
    levels = (Level("medium", above=80.0), Level("high", above=90.0))
    rising = AlarmRule("rising", levels, quantities=("oil",))
    assert tried(rising, rows, tmp_path / "a").together.alarms == 1
    again = msgspec.structs.replace(rising, re_alarm=ReAlarm("5s", 2))
    told = tried(again, rows, tmp_path / "b").together
    assert [at - START for _, at in told.examples] == [5_000, 10_000, 15_000]
    assert told.alarms == 3


def test_what_a_machine_was_and_when_it_was_mended_is_told_as_the_readings_saw_it(tmp_path: Path) -> None:
    day = 86_400_000
    old = AlarmRule(
        "old",
        (Level(when="age_days('seal') > 30 and attribute('model') == 'x' and kind == 'pump'"),),
        quantities=("oil",),
    )
    worn, new = {"seal": START - 29 * day}, {"seal": START + 2 * day + 100}
    rows = [
        reading(0, 1.0, attributes={"model": "x"}, last_maintenance_ms=worn),
        reading(2 * day, 1.0, attributes={"model": "x"}, last_maintenance_ms=worn),
        reading(2 * day + 500, 1.0, attributes={"model": "x"}, last_maintenance_ms=new),
        reading(3 * day, 1.0, machine="p01-l01-m002", attributes={"model": "y"}),
    ]
    assert tried(old, rows, tmp_path).together.examples == [("p01-l01-m001:old/oil", START + 2 * day)]


def test_late_rows_and_corrections_were_in_no_alarm(tmp_path: Path) -> None:
    rows = [
        reading(0, 70.0),
        reading(1_000, 99.0, late=True),
        reading(2_000, 99.0, revision=1, corrected=True),
        reading(3_000, 70.0),
    ]
    found = tried(msgspec.structs.replace(HOT, levels=(Level(above=80.0),)), rows, tmp_path)
    assert (found.readings, found.together.alarms) == (2, 0)


def test_only_the_last_days_are_tried(plant: Plant) -> None:
    rows = read_table(plant.table, last_ms=5_000)
    newest = max(row.event_time_ms for row in plant.rows)
    came = [r for r in plant.rows if not r.late and not r.revision]
    wanted = {r.reading_id for r in came if r.event_time_ms > newest - 5_000}
    assert set(rows["reading_id"].to_pylist()) == wanted
    assert len(rows) == len(wanted) < len(plant.rows)


def test_no_table_or_another_one_is_told(tmp_path: Path) -> None:
    with pytest.raises(BacktestError, match="there is no table of readings"):
        read_table(tmp_path / "none")
    write_deltalake(str(tmp_path / "other"), pa.table({"x": [1]}))
    with pytest.raises(BacktestError, match="is no table of readings: it has no column 'reading_id'"):
        read_table(tmp_path / "other")
    with pytest.raises(BacktestError, match="there is no reading"):
        backtest([HOT], Monitoring(), pa.table({}))


def test_the_command_shows_alarms_a_day_and_floods(plant: Plant, tmp_path: Path) -> None:
    rules, out = tmp_path / "rules.yaml", tmp_path / "r" / "report.json"
    rules.write_text(
        "- {id: busy, quantities: [vibration, current], levels: [{above: 0}]}\n"
        "- {id: errs, source: error, levels: [{when: \"code == 'E1'\"}]}\n"
    )
    command = ["rules", "iot", "backtest", str(rules), "--root", str(plant.root)]
    done = CliRunner().invoke(build(), [*command, "--out", str(out)], catch_exceptions=False)
    assert "not tried: it is of errors" in done.output
    busy, errors = json.loads(out.read_text())["rules"]
    assert busy["alarms"] > 10
    assert errors["not_tried"]
    with pytest.raises(UserError, match="alarms have no labels"):
        CliRunner().invoke(build(), [*command, "--labels", "x"], catch_exceptions=False)
