"""What is known of a quantity: resolution, off states, report by exception; windows, limits, time-outs."""

from __future__ import annotations

import math
import random
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from millrace.testing.properties import invariant
from millrace_apps.iot_maintenance.alarms.rule import AlarmRule, Level
from millrace_apps.iot_maintenance.alarms.spans import PANES
from millrace_apps.iot_maintenance.contracts.events import Equipment, MeasuringPoint
from millrace_apps.iot_maintenance.processes.quality import LEARN, Limits, Sensor
from millrace_apps.iot_maintenance.settings import IotSettings, monitoring
from tests.unit.apps.iot_maintenance.monitor_cases import (
    DAY,
    GATEWAY,
    HOUR,
    M1,
    MINUTE,
    SECOND,
    START,
    beat,
    driver,
    equipment,
    history,
    monitor,
    reading,
    rows,
    rule,
    send,
    status,
    until,
)

FAULT = AlarmRule("sensor-fault", (Level(off_delay="10s"),), source="quality", ack=False)


def whole_degrees(seed: int, count: int, noise: float = 0.3) -> list[float]:
    """A temperature that moves by some degrees in an hour, in whole degrees, at 1 Hz."""
    rng = random.Random(seed)
    return [float(round(40 + 4 * math.sin(n / 600) + rng.gauss(0, noise))) for n in range(count)]


# -- sensors that show steps, that are off, that speak by exception ---------------------------------


@pytest.mark.parametrize("noise", [0.05, 0.3, 1.0])
@pytest.mark.parametrize("seed", range(4))
def test_a_sensor_of_whole_degrees_at_1_hz_is_believed(seed: int, noise: float) -> None:
    """Twenty minutes, of which 65 % were bad, with 17 alarms."""
    target = driver(FAULT, judge=True)
    target.send_batch([reading(n * SECOND, v) for n, v in enumerate(whole_degrees(seed, 1_200, noise))])
    until(target, 1_300 * SECOND)
    bad = sum(row.quality == "bad" for row in rows(target))
    alarms = [e for e in history(target) if e.change == "active"]
    assert bad <= 0.02 * 1_200
    assert len(alarms) <= 1


@pytest.mark.parametrize("seed", range(4))
def test_with_its_resolution_and_a_time_not_one_value_is_bad_and_a_stuck_one_is_found(seed: int) -> None:
    known = Limits("degC", resolution=1.0, stuck_ms=10 * MINUTE)
    sensor = Sensor()
    values = [*whole_degrees(seed, 1_200), *[41.0] * 1_200]
    judged = [sensor.judge(n * SECOND, v, "degC", known) for n, v in enumerate(values)]
    assert {j.quality for j in judged[:1_200]} == {"good"}
    first = next(n for n, j in enumerate(judged) if j.fault == "stuck")
    assert 1_200 - 60 + 600 <= first <= 1_200 + 600
    assert {j.fault for j in judged[first:]} == {"stuck"}


def test_a_number_of_equal_values_can_be_said() -> None:
    rng = random.Random(1)
    sensor = Sensor()
    settled = [rng.gauss(10, 0.1) for _ in range(100)]
    values = [*settled, *[10.0] * 12]
    found = [sensor.judge(n * SECOND, v, "bar", Limits("bar", stuck=10)).fault for n, v in enumerate(values)]
    assert found[100:] == [""] * 9 + ["stuck"] * 3


def test_a_pump_that_is_switched_off_is_no_faulty_sensor_and_one_at_nought_that_runs_is() -> None:
    rng = random.Random(3)
    found = {}
    for word in ("off", "running"):
        target = driver(FAULT, judge=True)
        send(target, equipment(0, "pump"), status(0, "running"))
        target.send_batch([reading(n * SECOND, rng.gauss(40, 0.5), unit="A") for n in range(1, 200)])
        send(target, status(200 * SECOND, word))
        target.send_batch([reading(n * SECOND, 0.0, unit="A") for n in range(201, 500)])
        send(target, status(500 * SECOND, "running"))
        target.send_batch([reading(n * SECOND, rng.gauss(40, 0.5), unit="A") for n in range(501, 800)])
        until(target, 900 * SECOND)
        found[word] = [(e.change, e.reason) for e in history(target)][:1]
        bad = [row for row in rows(target) if row.quality == "bad"]
        assert (len(bad) == 0) is (word == "off")
    assert found == {"off": [], "running": [("active", "stuck")]}


def test_what_a_sensor_shows_while_its_machine_is_off_can_be_said() -> None:
    """A transmitter of 4-20 mA that shows 0.12 at rest."""
    rng = random.Random(3)
    found = {}
    for rest in (None, 0.2):
        sensor = Sensor()
        values = [*(rng.gauss(40, 0.5) for _ in range(100)), *[0.12] * 50]
        judged = [sensor.judge(n * SECOND, v, "A", Limits("A", rest=rest)) for n, v in enumerate(values)]
        found[rest] = {j.fault for j in judged[-20:]}
    assert found == {None: {"stuck"}, 0.2: {""}}


def test_a_sensor_that_reports_by_exception_has_no_gaps_and_no_interval() -> None:
    rng = random.Random(5)
    silent = AlarmRule("quiet", (Level(),), source="silence")
    times, at = [], 0
    for _ in range(200):
        at += rng.choice([1, 2, 5, 60, 900]) * SECOND
        times.append(at)
    told = {}
    for known in (Limits("degC"), Limits("degC", by_exception=True)):
        target = driver(silent, judge=True, sensor_least_ms=5 * SECOND, limits={"oil": known})
        target.send_batch([reading(t, rng.gauss(40, 1)) for t in times])
        until(target, at + HOUR)
        faults = {row.fault for row in rows(target)[LEARN:]}
        told[known.by_exception] = "gap" in faults, len(history(target)) > 0
    assert told == {False: (True, True), True: (False, False)}


def test_how_long_a_sensor_may_be_silent_can_be_said_of_a_quantity_and_of_a_point() -> None:
    silent = AlarmRule("quiet", (Level(),), source="silence")
    known = {"oil": Limits("degC", silent_ms=5 * MINUTE), "oil@gear": Limits("degC", silent_ms=20 * SECOND)}
    target = driver(silent, sensor_least_ms=SECOND, limits=known)
    from tests.unit.apps.iot_maintenance.test_registry import measured

    for n in range(10):
        send(
            target,
            measured(n * SECOND, 1.0, quantity="oil"),
            measured(n * SECOND, 1.0, "s2", point="gear", quantity="oil"),
        )
    until(target, HOUR)
    found = {row.device_id: (row.event_time_ms - START) // SECOND for row in target.values("liveness")}
    assert found == {f"{M1}.oil": 9 + 300, f"{M1}.oil@gear": 9 + 20}


def test_a_device_is_silent_by_the_time_of_its_kind() -> None:
    target = driver(device_timeout_ms=10 * SECOND, device_timeouts={"gateway": 60 * SECOND})
    send(target, beat(0, GATEWAY), beat(0, M1))
    until(target, 2 * MINUTE)
    found = {row.device_id: (row.event_time_ms - START) // SECOND for row in target.values("liveness")}
    assert found == {M1: 10, GATEWAY: 60}


def test_a_fleets_file_says_it_in_words_of_time(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(
        "device_timeouts: {gateway: 1m}\nstatuses: {Läuft: producing}\nrules: []\nquantities:\n"
        "  oil: {unit: degC, resolution: 0.5, stuck_for: 10m, silent_after: 2h, window: 1h, values: 9}\n"
        "  'oil@gear': {by_exception: true, rest: 0.1, stuck: 20}\n"
    )
    settings = IotSettings(monitor={"fleet_file": str(file)})  # type: ignore[arg-type]
    made = monitoring(settings)
    assert made.limits["oil"] == Limits(
        "degC", resolution=0.5, stuck_ms=10 * MINUTE, silent_ms=2 * HOUR, window_ms=HOUR, values=9
    )
    assert made.limits["oil@gear"] == Limits(by_exception=True, rest=0.1, stuck=20)
    assert made.device_timeouts == {"gateway": MINUTE}
    assert made.statuses.regime("läuft") == "producing"


# -- windows ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("interval", "window"), [(10, 120), (SECOND, 6 * MINUTE), (HOUR, 12 * HOUR), (DAY, 30 * DAY)]
)
def test_means_and_trends_have_windows_that_fit_from_10_ms_to_daily_sensors(
    interval: int, window: int
) -> None:
    target = driver(limits={"oil": Limits("degC", window_ms=window, values=3)}, keep_ms=10_000 * DAY)
    count = max(50, 2 * window // interval)
    target.send_batch([reading(n * interval, float(n)) for n in range(count)])
    until(target, count * interval)
    last = rows(target)[-1]
    assert last.average == count - 2
    assert last.trend == pytest.approx(HOUR / interval)
    pane = window // 6
    first = (START + (count - 1) * interval) // pane * pane - 5 * pane
    inside = [n for n in range(count) if START + n * interval >= first]
    assert last.average_by_time == pytest.approx(fmean(inside))


def test_the_windows_may_be_set_anew_and_what_was_kept_begins_anew() -> None:
    from millrace_apps.iot_maintenance.state.running import Running

    kept = Running()
    for n in range(100):
        kept.add(n * SECOND, 1.0, 10, 5)
    assert kept.pane > 100 * SECOND // HOUR
    kept.begin_panes()
    kept.add(100 * SECOND, 7.0, HOUR, 2)
    assert (kept.average, kept.average_by_time) == (4.0, 7.0)


@pytest.mark.parametrize("seed", range(5))
def test_windows_in_rules_equal_the_readings_of_their_panes(seed: int) -> None:
    """2,000 readings at random times: the level is asked with the mean that a look at all of them gives."""
    rng = random.Random(seed)
    length = rng.choice([120, 30 * MINUTE, DAY])
    unit = f"{length} ms"
    asked = rule(
        Level(
            when=f"mean(value, {unit}) > 50 and count(value, {unit}) >= 3 "
            f"and lowest(value, {unit}) > 20 and highest(value, {unit}) < 90"
        )
    )
    at, events, values = 0, [], []
    for _ in range(2_000):
        at += rng.randrange(1, max(2, length // 3))
        values.append((START + at, float(rng.choice([10, 40, 50, 60, 70, 95]))))
        events.append(reading(at, values[-1][1]))
    target = driver(asked, keep_ms=10_000 * DAY)
    target.send_batch(events)
    until(target, at + 1)
    wanted, before = [], False
    for n, (now, _) in enumerate(values):
        pane = now * PANES // length
        inside = [v for t, v in values[max(0, n - 500) : n + 1] if t * PANES // length > pane - PANES]
        holds = fmean(inside) > 50 and len(inside) >= 3 and min(inside) > 20 and max(inside) < 90
        if holds != before:
            wanted.append((now, "active" if holds else "inactive"))
        before = holds
    assert [(e.event_time_ms, e.change) for e in history(target)] == wanted
    assert len(wanted) > 20


def test_a_rule_may_ask_how_long_a_machine_has_been_held() -> None:
    target = driver(rule(Level(when="minutes_in('Held') > 10"), id="held"))
    send(target, status(0, "Execute"), status(MINUTE, "Held"))
    send(target, *(reading(n * MINUTE, 1.0) for n in range(2, 20)), status(20 * MINUTE, "Execute"))
    send(target, reading(21 * MINUTE, 1.0))
    until(target, HOUR)
    assert [((e.event_time_ms - START) // MINUTE, e.change) for e in history(target)] == [
        (12, "active"),
        (21, "inactive"),
    ]


# -- limits of assets ------------------------------------------------------------------------------


def test_the_limit_of_an_asset_stands_in_its_master_data_and_of_a_point_before_it() -> None:
    asked = rule(Level(when="value > attribute('limit')", until="value < attribute('limit') - 5"))
    target = driver(asked)
    points = MeasuringPoint("oil", "gear", "", 0, {"limit": "60"}), MeasuringPoint("oil", "tank")
    for machine, said in ((M1, {"limit": "80"}), ("m2", {}), ("m3", {"limit": "hot"})):
        send(target, (machine, START, Equipment(machine, START, "pump", said, points=[*points])))
    from tests.unit.apps.iot_maintenance.test_registry import measured

    def oil(at: int, value: float, point: str, machine: str = M1) -> Any:
        return measured(at, value, f"{machine}.{point}", point=point, quantity="oil", machine=machine)

    for at, value in ((1_000, 70.0), (2_000, 78.0), (3_000, 81.0), (4_000, 76.0), (5_000, 74.0)):
        for machine in (M1, "m2", "m3"):
            send(target, oil(at, value, "tank", machine))
        send(target, oil(at, value - 12, "gear"))
    until(target, 6_000)
    assert [((e.event_time_ms - START) // SECOND, e.alarm_id, e.change) for e in history(target)] == [
        (2, f"{M1}:hot/oil@gear", "active"),
        (3, f"{M1}:hot/oil@tank", "active"),
        (5, f"{M1}:hot/oil@tank", "inactive"),
    ]


def test_a_limit_by_regime() -> None:
    asked = rule(Level(when="value > 80 and regime == 'producing' or value > 60 and regime == 'idle'"))
    target = driver(asked)
    send(target, status(0, "Execute"), reading(1_000, 70.0), status(2_000, "Held"), reading(3_000, 70.0))
    until(target, 4_000)
    assert [(e.event_time_ms - START, e.change) for e in history(target)] == [(3_000, "active")]


def test_quality_and_windows_hang_on_no_cut() -> None:
    rng = random.Random(8)
    events: list[Any] = [equipment(0, "pump", limit="45")]
    for n, value in enumerate(whole_degrees(2, 400)):
        events.append(reading(n * SECOND, value if rng.random() < 0.9 else 0.0))
        if n % 50 == 0:
            events.append(status(n * SECOND, rng.choice(["running", "off", "Held"])))
    rules = (FAULT, rule(Level(when="mean(value, 1 min) > attribute('limit') - 3"), id="mean"))
    known = {"oil": Limits("degC", resolution=1.0, stuck_ms=MINUTE, window_ms=MINUTE)}
    invariant(monitor(*rules, judge=True, limits=known), events, bound_ms=3 * SECOND, runs=3)
