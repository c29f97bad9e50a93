"""When points cross limits of their rules: what is told, what rules can ask, and what is kept."""

from __future__ import annotations

import itertools
import random

import msgspec
import pytest

from millrace.operators import limit_forecast
from millrace.rules import PublishRule, Rule
from millrace.runtime.settings import load_settings
from millrace.testing import TestDriver
from millrace.testing.properties import invariant
from millrace_apps.iot_maintenance.alarms.rule import AlarmRule, Level
from millrace_apps.iot_maintenance.contracts.events import Equipment, MeasuringPoint, Reading
from millrace_apps.iot_maintenance.processes.anomalies import Scoring
from millrace_apps.iot_maintenance.processes.forecasts import Forecasting, PointForecast
from millrace_apps.iot_maintenance.processes.liveness_monitor import Monitoring
from millrace_apps.iot_maintenance.processes.monitor import MachineMonitor
from millrace_apps.iot_maintenance.settings import IotSettings, forecasting
from tests.unit.apps.iot_maintenance.monitor_cases import (
    DAY,
    HOUR,
    M1,
    MINUTE,
    START,
    Event,
    equipment,
    reading,
    rule,
    send,
    told,
    until,
)

QUICK = Forecasting(forecast=limit_forecast(every=MINUTE, ahead=8 * HOUR, learn=20))
HOT = rule(Level(above=75.0))


def monitor(*rules: AlarmRule, forecasting: Forecasting = QUICK, **rest: int) -> MachineMonitor:
    how = {"sensor_least_ms": 10 * DAY, "grace_ms": 0, **rest}
    return MachineMonitor(Monitoring(rules=rules, judge=False, **how), Scoring(), forecasting)  # type: ignore[arg-type]


def driven(*rules: AlarmRule, forecasting: Forecasting = QUICK, **rest: int) -> TestDriver:
    return TestDriver(monitor(*rules, forecasting=forecasting, **rest))


def rising(n: int, per_h: float = 3.0, start: float = 60.0, quantity: str = "oil") -> list[Event]:
    rng = random.Random(2)
    return [reading(i * MINUTE, start + i * per_h / 60 + rng.uniform(-0.2, 0.2), quantity) for i in range(n)]


def forecasts(target: TestDriver) -> list[PointForecast]:
    found: list[PointForecast] = target.values("forecasts")
    return found


def test_a_rising_point_is_told_with_the_limit_and_the_time() -> None:
    target = driven(HOT)
    send(target, *rising(180))
    until(target, 4 * HOUR)
    last = forecasts(target)[-1]
    assert (last.side, last.limit, last.subject) == ("above", 75.0, "oil")
    assert last.in_h == pytest.approx(5 - 179 / 60, abs=0.25)
    assert last.earliest_h is not None
    assert last.in_h is not None
    assert last.earliest_h <= last.in_h <= (last.latest_h or 99)
    assert last.trend_per_h == pytest.approx(3.0, abs=0.3)
    assert last.event_time_ms == START + 179 * MINUTE


def test_when_it_no_longer_rises_that_is_told_once() -> None:
    target = driven(HOT)
    events = rising(120)
    flat = [reading((120 + i) * MINUTE, 66.0 - i * 0.05) for i in range(120)]
    send(target, *events, *flat)
    until(target, 5 * HOUR)
    sides = [row.side for row in forecasts(target)]
    assert sides[-1] == "none"
    assert sides.count("none") <= 3
    assert all(one != two or one != "none" for one, two in itertools.pairwise(sides))


def test_the_limits_are_those_of_the_machines_kind_and_both_sides_count() -> None:
    high = Level(severity="high", above=75.0)
    rules = (
        AlarmRule("pumps", (Level(above=70.0), high), quantities=("oil",), kinds=("pump",)),
        AlarmRule("others", (Level(above=65.0),), quantities=("oil",), kinds=("turbine",)),
        AlarmRule("cold", (Level(below=50.0),), quantities=("oil",)),
    )  # fmt: skip
    up, down = driven(*rules), driven(*rules)
    send(up, equipment(0, "pump"), *rising(120))
    send(down, equipment(0, "pump"), *rising(120, per_h=-3.0))
    for target in (up, down):
        until(target, 3 * HOUR)
    assert {row.limit for row in forecasts(up)[40:]} == {70.0}
    assert {(row.side, row.limit) for row in forecasts(down)[40:]} == {("below", 50.0)}


def measured(at: int, value: float, point: str) -> Event:
    name = f"{point}.{at}"
    event = Reading(name, f"{M1}.{point}", M1, "gw", "oil", value, "degC", START + at, point)
    return M1, START + at, event


def test_the_limit_of_a_point_is_that_of_its_own_master_data_else_of_its_machines() -> None:
    """Three points that rise alike; one has a limit of its own. Then the machine's is another."""
    rules = (
        rule(Level(when="value > attribute('limit') and regime != 'off'")),
        rule(id="x", quantities=("x",)),
    )
    target = driven(*rules)
    points = [
        MeasuringPoint("oil", "front", attributes={"limit": "71"}),
        MeasuringPoint("oil", "back"),
        MeasuringPoint("oil", "top", attributes={"limit": "hot"}),
    ]

    def registry(at: int, limit: str) -> Event:
        told = Equipment(M1, START + at, "pump", {"limit": limit}, points=points)
        return M1, START + at, told

    events = [registry(0, "75")]
    for point in ("front", "back", "top"):
        events += [measured(at - START, event.value, point) for _, at, event in rising(180)]
    target.send_batch(events)
    until(target, 180 * MINUTE)
    sides = {(row.subject, row.side, row.limit) for row in forecasts(target) if row.side != "none"}
    assert sides == {("oil@front", "above", 71.0), ("oil@back", "above", 75.0)}
    before = len(forecasts(target))
    later = [measured(181 * MINUTE, 69.0, "back"), measured(182 * MINUTE, 69.05, "back")]
    send(target, registry(180 * MINUTE + 1, "73"), *later)
    until(target, 183 * MINUTE)
    assert {row.limit for row in forecasts(target)[before:]} == {73.0}


def test_a_rule_that_is_only_tried_has_no_limit_that_is_foreseen() -> None:
    for state, wanted in (("active", {75.0}), ("shadow", set())):
        target = driven()
        text = msgspec.json.encode(HOT).decode()
        target.broadcast(PublishRule(Rule("hot", text), 1, "ann", 0, state, 0))  # type: ignore[arg-type]
        send(target, *rising(180))
        until(target, 4 * HOUR)
        assert {row.limit for row in forecasts(target) if row.side != "none"} == wanted


def test_nothing_is_foreseen_without_a_limit_or_where_it_is_off() -> None:
    free = driven(rule(Level(when="rate > 75 and zscore > 3")))
    off = driven(HOT, forecasting=Forecasting(enabled=False))
    for target in (free, off):
        send(target, *rising(180))
        until(target, 4 * HOUR)
        assert forecasts(target) == []


def test_an_alarm_rule_can_ask_in_how_many_hours() -> None:
    soon = AlarmRule("soon", (Level(when="crosses_in_h < 2"),), quantities=("oil",))
    target = driven(HOT, soon)
    send(target, *rising(240))
    until(target, 4 * HOUR + MINUTE)
    found = told(target)
    # It rises by 3 an hour from 60 on: two hours before 75 are over after three.
    assert found[-1][1] == "active"
    assert found[-1][0] == pytest.approx(3 * 3_600, abs=1_500)


def test_forecasts_do_not_depend_on_cuts_and_restarts_and_end_with_their_machine() -> None:
    soon = AlarmRule("soon", (Level(when="crosses_in_h < 2"),), quantities=("oil",))
    invariant(monitor(HOT, soon), rising(90, per_h=8.0), bound_ms=20 * MINUTE, runs=6)
    target = driven(HOT, keep_ms=DAY)
    send(target, *rising(90))
    until(target, 3 * DAY)
    assert target.is_empty()


def test_settings_say_how_far_ahead_is_looked() -> None:
    assert forecasting(load_settings(IotSettings, app="iot", env={})) == Forecasting()
    overrides = ["forecast.enabled=false", "forecast.every=10m", "forecast.ahead=3d", "forecast.coverage=0.8"]
    made = forecasting(load_settings(IotSettings, app="iot", overrides=overrides, env={}))
    wanted = limit_forecast(every=10 * MINUTE, ahead=3 * DAY, coverage=0.8)
    assert made == Forecasting(enabled=False, forecast=wanted)
