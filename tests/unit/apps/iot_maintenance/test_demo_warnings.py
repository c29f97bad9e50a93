"""Alarms of what is foreseen held against what is true, and the model that the demo has them from."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from millrace.demo import DemoRun
from millrace.models.exports import CHAMPION, Exports
from millrace_apps.benchmarks.iot_demo_models import WORLDS
from millrace_apps.benchmarks.iot_world import profile, run_world
from millrace_apps.iot_maintenance import demo
from millrace_apps.iot_maintenance.evaluation.demo_causes import AFTER_MS, degradations
from millrace_apps.iot_maintenance.evaluation.demo_foreseen import (
    LEAST_STEPS,
    Warned,
    expected,
    judge_warnings,
    warning_checks,
)
from millrace_apps.iot_maintenance.evaluation.stream import settings_for
from millrace_apps.iot_maintenance.foresight.models import RISK_NAME, Forecaster
from tests.cases import case_count
from tests.unit.apps.iot_maintenance.test_demo_causes import degrading

CASES = case_count(300)
SECOND = 1_000
END = 60
MACHINES = ("a", "b", "c", "d")


def alarm(machine: str, second: int, change: str = "active", announced: bool = True) -> dict[str, Any]:
    return {"entity_id": machine, "event_time_ms": second * SECOND, "change": change, "announced": announced}


@pytest.mark.parametrize("seed", range(CASES))
def test_alarms_are_judged_as_by_every_second_of_every_machine(seed: int) -> None:
    rnd = random.Random(seed)
    truths = []
    for _ in range(rnd.randrange(5)):
        begin, fails = rnd.randrange(50), rnd.random() < 0.8
        end = begin + rnd.randrange(1, 30)
        truths.append(degrading(rnd.choice(MACHINES), begin * SECOND, end * SECOND, ["oil"], fails=fails))
    # What a machine does at each second; before its first reading nobody knows.
    does = {}
    for machine in MACHINES:
        first, words = rnd.randrange(20), ["running", "off", "failed", "idle"]
        does[machine] = [None] * first + [rnd.choice(words) for _ in range(END // 5 + 1) for _ in range(5)]
    readings = [
        {"machine_id": machine, "event_time_ms": second * SECOND, "status": does[machine][second]}
        for machine in MACHINES
        for second in range(END)
        if does[machine][second] is not None or rnd.random() < 0.5
    ]
    steps = [(machine, s * SECOND) for machine in MACHINES for s in range(rnd.randrange(5), END, 2)]
    alarms = [
        alarm(
            rnd.choice(MACHINES), rnd.randrange(END), rnd.choice(("active", "inactive")), rnd.random() < 0.8
        )
        for _ in range(rnd.randrange(12))
    ]
    for rows in (readings, steps, alarms):
        rnd.shuffle(rows)  # type: ignore[arg-type]

    worn = {machine: set[int]() for machine in MACHINES}
    for truth in truths:
        end = truth.detail["failure_ms"] or truth.detail["service_ms"]
        worn[truth.entity] |= set(range(truth.detail["onset_ms"] // SECOND, end // SECOND + 1))
    runs = [
        (m, at // SECOND) for m, at in steps if does[m][at // SECOND] not in (None, "off", "failed")
    ]  # fmt: skip
    told = [(a["entity_id"], a["event_time_ms"] // SECOND) for a in alarms
            if a["change"] == "active" and a["announced"]]  # fmt: skip
    failures, by_chance, leads = 0, 0.0, []
    for truth in truths:
        fails = truth.detail["failure_ms"]
        begin = truth.detail["onset_ms"] // SECOND
        if (
            fails is None
            or fails >= END * SECOND
            or not any(m == truth.entity and s <= begin for m, s in runs)
        ):
            continue
        failures += 1
        inside = range(begin, fails // SECOND)
        none = (1 - sum(m == truth.entity and s in inside for m, s in runs) / len(runs)) ** len(told)
        by_chance += 1 - none
        hits = [s for m, s in told if m == truth.entity and s in inside]
        leads += [fails - min(hits) * SECOND] if hits else []
    well = []
    for machine in MACHINES:
        # The seconds without wear, and not right after it, as they follow each other.
        ends = [e for e in worn[machine] if e + 1 not in worn[machine]]
        stretch: list[int] = []
        for s in [*range(END), None]:
            if (
                s is not None
                and s not in worn[machine]
                and not any(0 < s - e <= AFTER_MS // SECOND for e in ends)
            ):
                stretch.append(s)
                continue
            if sum(m == machine and at in stretch for m, at in runs) >= LEAST_STEPS:
                well.append(any(m == machine and at in stretch for m, at in told))
            stretch = []

    found = judge_warnings(degradations(truths), alarms, steps, readings, ("off", "failed"), END * SECOND)
    assert (found.told, found.right) == (len(told), sum(s in worn[m] for m, s in told))
    assert found.chance == pytest.approx(sum(s in worn[m] for m, s in runs) / len(runs) if runs else 0.0)
    assert (found.failures, sorted(found.leads_ms)) == (failures, sorted(leads))
    assert found.by_chance == pytest.approx(by_chance)
    assert (found.well, found.doubted) == (len(well), sum(well))


@pytest.mark.parametrize("seed", range(CASES))
def test_alarms_that_come_at_any_time_do_not_hold_and_those_before_failures_do(seed: int) -> None:
    """Forty machines for a minute; of two in three a component degrades for a quarter of it."""
    rnd = random.Random(seed)
    machines = [f"m{n}" for n in range(40)]
    onset = {m: rnd.randrange(5, 40) for m in machines if rnd.random() < 0.66}
    truths = [degrading(m, at * SECOND, (at + 15) * SECOND, ["oil"]) for m, at in onset.items()]
    steps = [(m, s * SECOND) for m in machines for s in range(END)]
    readings = [{"machine_id": m, "event_time_ms": 0, "status": "running"} for m in machines]

    def held(alarms: list[dict[str, Any]]) -> list[bool]:
        found = judge_warnings(degradations(truths), alarms, steps, readings, ("off",), END * SECOND)
        return [check.holds for check in warning_checks(found, 720.0, 180.0)]

    informed = [alarm(m, at + rnd.randrange(3, 12)) for m, at in onset.items() if rnd.random() < 0.85]
    informed += [alarm(rnd.choice(machines), rnd.randrange(END)) for _ in range(3)]
    assert all(held(informed))
    blind = [alarm(m, at // SECOND) for m, at in rnd.sample(steps, 40)]
    assert not all(held(blind))


def test_of_few_alarms_and_failures_nothing_is_said() -> None:
    """As in a demo of six seconds, whose checks hold or have nothing to compare."""
    few = Warned(3, 0, 0.2, 2, 0.1, [], 1, 1)
    assert all(check.ok and check.is_empty for check in warning_checks(few, 720.0, 180.0))
    many = warning_checks(few._replace(told=9, failures=9, well=9, doubted=9), 360.0, 180.0)
    assert not any(check.ok for check in many)
    assert many[0].note == "precision 0%; false alarms 9: 18 in a machine's month"
    lead = warning_checks(few._replace(failures=3, leads_ms=[4_000, 8_000, 20_000]), 720.0, 180.0)[1]
    assert (lead.found, lead.note) == (3, "median 24 min of a machine's life ahead")
    assert expected(2.5) == pytest.approx(2.5 + 2 * 2.5**0.5)


def test_the_demo_has_a_model_of_its_own_of_other_worlds() -> None:
    """It is read as every model is, is small, and says of what it does not know what it says of nothing."""
    found = Exports(str(demo.MODELS), RISK_NAME).find(CHAMPION)
    assert found is not None
    assert found.manifest.size < 300_000
    assert found.manifest.about["failures"] > 300
    assert 7 not in {seed for seed, _ in WORLDS}  # the demo's own
    said = Forecaster(str(demo.MODELS)).risks({})
    assert said is not None
    assert "bearing" in said.of
    assert all(0.0 <= share <= 1.0 for share in said.of.values())
    worn = Forecaster(str(demo.MODELS)).risks(
        {"vibration.mean_10": 9.0, "vibration.change": 6.0, "age_h": 0.01}
    )
    assert worn is not None
    assert worn.of["bearing"] > said.of["bearing"]


@pytest.mark.matrix  # half a minute each
@pytest.mark.parametrize(("seed", "hour"), [(7, 10), (7, 2), (31, 15), (32, 20)])
def test_in_worlds_of_other_seeds_failures_are_foreseen(
    seed: int, hour: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_for(demo.settings(""))
    world = run_world(profile(seed, hour), settings)
    newest = {(row["machine_id"], row["subject"]): row for row in world.tables["forecasts"]}
    tables = {**world.tables, "forecasts": list(newest.values())}

    def rows(folder: Path, name: str, columns: list[str]) -> list[dict[str, Any]]:
        return [{column: row.get(column) for column in columns} for row in tables.get(name, ())]

    monkeypatch.setattr(demo, "app_rows", rows)
    told = {demo.FORECASTS: world.topics[settings.topics.forecasts]}
    run = DemoRun("", Path(), settings, 60.0, 1_000, seed, told)
    checks = demo.checks(run, world.ledger, {row["_event_id"] for row in tables["alarm_history"]})
    assert [check.name for check in checks if not check.ok] == []
    assert next(check for check in checks if check.name == "failures that were foreseen").holds
