"""Rules on what is foreseen, tried on the past: against the alarms that the stream raised with them."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from typer.testing import CliRunner

from millrace.cli import build
from millrace_apps.iot_maintenance.alarms.rule import AlarmRule, Level
from millrace_apps.iot_maintenance.contracts.events import MachineError, Maintenance, Status
from millrace_apps.iot_maintenance.contracts.records import EnrichedReading
from millrace_apps.iot_maintenance.evaluation.stream import Sent, run, settings_for, written
from millrace_apps.iot_maintenance.foresight.past import Foreseen, read_foreseen
from millrace_apps.iot_maintenance.operations import backtest as trying
from millrace_apps.iot_maintenance.operations.backtest import Report, backtest, read_table
from millrace_apps.iot_maintenance.processes.monitor import Monitoring
from millrace_apps.iot_maintenance.settings import monitoring
from tests.unit.apps.iot_maintenance.foresight_cases import HOUR, START, publish_both, streamed, wearing
from tests.unit.apps.iot_maintenance.test_backtest import put

Rows = list[dict[str, Any]]
EVER = 1 << 61


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("exports")
    events = wearing(6, seed=9)
    publish_both(folder, streamed(events)["machine_features"], events)
    return folder


def soon(rule_id: str, when: str, **more: Any) -> AlarmRule:
    level = Level("high", when=when, on_delay=more.pop("on_delay", 0))
    return AlarmRule(rule_id, (level,), source="foresight", **more)


def plant(seed: int) -> list[Sent]:
    """Machines that wear out, with statuses, errors and parts that are replaced; some pause for long."""
    rng = random.Random(seed)
    events = wearing(5, seed=40 + seed)
    machines = sorted({one.event.machine_id for one in events})
    gap = START + rng.randrange(5, 30) * HOUR
    events = [one for one in events if one.event.machine_id != "m0" or not gap < one.event.event_time_ms < gap
              + 9 * HOUR]  # fmt: skip
    for number in range(60):
        machine, at = rng.choice(machines), START + rng.randrange(80 * HOUR)
        events.append(
            rng.choice(
                [
                    Sent("status", Status(f"s{number}", machine, rng.choice(["running", "paused"]), at)),
                    Sent("errors", MachineError(f"e{number}", machine, "E1", at)),
                    Sent("maintenance", Maintenance(f"r{number}", machine, "belt", at, "scheduled", 0)),
                ]
            )
        )
    return sorted(events, key=lambda one: one.event.event_time_ms)


def rules_of(seed: int) -> list[AlarmRule]:
    rng = random.Random(seed)
    hours, risk = rng.randint(5, 50), rng.uniform(0.05, 0.9)
    return [
        soon("short", f"remaining_life < {hours}", ack=False),
        soon("likely", f"risk('pump') > {risk}", on_delay=rng.choice((0, 1, 3)) * HOUR, ack=False),
        soon("any", f"risk('*') > {risk} and remaining_life < {hours}", suppress_in=("paused",), ack=False),
        soon("known", f"remaining_life < {hours + 20} and errors('E1') > 0", ack=False),
        soon("worn", f"risk('seal') > 0.02 and age_days('belt') > {rng.uniform(0, 1)}", ack=False),
        soon("of-others", "remaining_life > 0", kinds=("fan",)),
    ]


def both(
    folder: Path, models: Path, seed: int, rules: list[AlarmRule], *overrides: str
) -> tuple[Rows, Monitoring, dict[str, Rows]]:
    """The stream's alarms, what its monitor goes by, and the tables, which stand in the folder."""
    with written(rules) as fleet:
        settings = settings_for(
            [
                *(f"monitor.fleet_file={fleet}", "monitor.judge=false", "monitor.sensor_least=30d"),
                *("monitor.grace=0s", "foresight.on=true", f"foresight.exports={models}"),
                *overrides,
            ]
        )
        wanted = ["alarm_history", "risks", "remaining_life", "readings"]
        tables = run(plant(seed), settings, wanted, engine="memory", batch=100).rows
        told = monitoring(settings)
    readings = [msgspec.convert(row, EnrichedReading) for row in tables["readings"]]
    put(folder / "readings", readings[::-1])
    for name in ("risks", "remaining_life"):
        rows = tables[name]
        random.Random(seed).shuffle(rows)
        write_deltalake(str(folder / name), pa.Table.from_pylist(rows))
    mine = {rule.id for rule in rules}
    last = max(row.event_time_ms for row in readings)
    history = [r for r in tables["alarm_history"] if r["rule_id"] in mine and r["event_time_ms"] <= last]
    return history, told, tables


def changes(history: Rows) -> list[tuple[Any, ...]]:
    names = ("entity_id", "rule_id", "event_time_ms", "number", "change", "reason")
    return sorted(tuple(row[name] for name in names) for row in history)


def told_of(history: Rows) -> Counter[str]:
    """How many spans of alarms (from active to inactive) operators were told of, by rule."""
    found: Counter[str] = Counter()
    for alarm in {row["alarm_id"] for row in history}:
        rows = sorted(
            (row for row in history if row["alarm_id"] == alarm),
            key=lambda row: (row["event_time_ms"], row["number"]),
        )
        ends = [n for n, row in enumerate(rows) if not row["active"]]
        for begin, end in zip([0, *(n + 1 for n in ends)], [*ends, len(rows)], strict=True):
            if any(row["announced"] for row in rows[begin:end]):
                found[rows[0]["rule_id"]] += 1
    return found


@pytest.mark.parametrize(
    ("seed", "by"), [*((seed, "forecast") for seed in range(6)), (1, "interval"), (4, "interval")]
)
def test_they_are_those_that_the_stream_raised_however_the_past_is_read(
    models: Path, seed: int, by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = rules_of(seed)
    history, told, _ = both(tmp_path, models, seed, rules, f"foresight.judged_by={by}")
    table = read_table(tmp_path / "readings")
    raised = told_of(history)
    last = table.column("event_time_ms")[-1].as_py()
    for batch in (20_000, 1, random.Random(seed).randrange(2, 60)):
        monkeypatch.setattr(trying, "_BATCH", batch)
        past = read_foreseen(tmp_path, since_ms=0, until_ms=EVER, by_interval=by == "interval")
        assert past is not None
        found = [msgspec.to_builtins(a) for a in trying._alarms_ahead(told, table, last, past, HOUR)]
        assert changes(found) == changes(history)
    assert len(raised) >= 3
    past = read_foreseen(tmp_path, since_ms=0, until_ms=EVER, by_interval=by == "interval")
    report: Report = backtest(rules, told, table, foreseen=past, every_ms=HOUR)
    assert {o.rule: o.alarms for o in report.rules if o.alarms} == dict(raised)
    assert report.together.alarms == sum(report.by_day.values()) == raised.total()
    assert not any(o.not_tried for o in report.rules)


def test_where_nothing_was_foreseen_or_at_other_times_it_is_said(models: Path, tmp_path: Path) -> None:
    rules = [
        soon("short", "remaining_life < 900"),
        AlarmRule("hot", (Level("low", above=55.0),), quantities=("heat",)),
    ]
    _, told, tables = both(tmp_path, models, 1, rules)
    table = read_table(tmp_path / "readings")
    assert read_foreseen(tmp_path / "none", since_ms=0, until_ms=EVER) is None
    assert read_foreseen(tmp_path, since_ms=EVER, until_ms=EVER) is None
    without = backtest(rules, told, table)
    assert "no table has what models said" in without.rules[0].not_tried
    assert without.rules[1].alarms > 0
    past = read_foreseen(tmp_path, since_ms=0, until_ms=EVER)
    other = backtest(rules, told, table, foreseen=past, every_ms=7 * HOUR // 13)
    assert "said nothing at the ends of steps" in other.rules[0].not_tried
    assert other.rules[1].alarms == without.rules[1].alarms
    # Of the time of the readings alone.
    at = START + 20 * HOUR
    some = read_foreseen(tmp_path, since_ms=at, until_ms=at)
    assert some is not None
    some.pass_to(EVER)
    there = {r["machine_id"] for r in tables["remaining_life"] if r["event_time_ms"] == at}
    assert there
    assert all(some.at(machine, at) is not None for machine in there)
    assert some.at(min(there), at - HOUR) is None
    assert some.found == len(there)


def test_what_was_said_is_forgotten_as_time_passes() -> None:
    past = Foreseen((at, "m1", "pump", at / 1_000) for at in range(1_000))
    for at in range(0, 1_000, 50):
        past.pass_to(at + 49, at - 10)
        assert len(past._known) <= 60
        assert past.at("m1", at + 49) == ({"pump": (at + 49) / 1_000}, None)
    assert past.at("m1", 100) is None


def test_the_command_tries_them_on_the_tables_beside_the_readings(models: Path, tmp_path: Path) -> None:
    rules = rules_of(3)
    history, _, _ = both(tmp_path / "tables", models, 3, rules)
    file, out = tmp_path / "rules.json", tmp_path / "report.json"
    file.write_bytes(msgspec.json.encode([rule for rule in rules if rule.id == "short"]))
    command = ["rules", "iot", "backtest", str(file), "--root", str(tmp_path), "--out", str(out)]
    done = CliRunner().invoke(build(), command, catch_exceptions=False)
    assert "not tried" not in done.output
    [short] = json.loads(out.read_text())["rules"]
    assert short["alarms"] == told_of(history)["short"] > 0
