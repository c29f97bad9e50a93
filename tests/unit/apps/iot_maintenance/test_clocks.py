"""Clocks of devices: measured by when their gateway received what they sent; told where they are wrong."""

from __future__ import annotations

import random

import pytest

from millrace.testing import TestDriver
from millrace.testing.properties import invariant
from millrace_apps.iot_maintenance.alarms.rule import AlarmRule, Level
from millrace_apps.iot_maintenance.contracts.events import Heartbeat, Reading
from millrace_apps.iot_maintenance.evaluation.stream import settings_for
from millrace_apps.iot_maintenance.topology import topology
from tests.unit.apps.iot_maintenance.monitor_cases import (
    GATEWAY,
    M1,
    MINUTE,
    SECOND,
    START,
    Event,
    driver,
    history,
    monitor,
    send,
    until,
)

WRONG = AlarmRule("clock-wrong", (Level(),), source="clock", ack=False)


def received(at: int, ahead: int, *, way: int = 40, machine: str = M1) -> Event:
    """A reading that is sent ``at`` ms after the start, by a clock that is ahead."""
    time = START + at + ahead
    name = f"{machine}.{at}"
    event = Reading(name, machine, machine, GATEWAY, "oil", 1.0, "degC", time, "", START + at + way)
    return machine, time, event


def told(target: TestDriver) -> list[tuple[str, int, bool]]:
    return [(row.device_id, row.offset_ms, row.wrong) for row in target.values("clocks")]


@pytest.mark.parametrize("ahead", [30 * SECOND, 6 * SECOND, -30 * SECOND])
def test_a_clock_that_is_wrong_is_told_and_is_an_alarm_until_it_is_right(ahead: int) -> None:
    target = driver(WRONG)
    for second in range(0, 300, 10):
        send(target, received(second * SECOND, ahead, way=40 + second % 7))
    for second in range(400, 700, 10):
        send(target, received(second * SECOND, 0))
    until(target, 701 * SECOND)
    assert told(target)[0] == (M1, pytest.approx(ahead - 40, abs=7), True)
    assert told(target)[-1] == (M1, -40, False)
    side = "ahead" if ahead > 0 else "behind"
    assert [(e.alarm, e.category, e.change) for e in history(target)] == [
        (f"clock-wrong/{M1}", "clock", "active"),
        (f"clock-wrong/{M1}", "clock", "inactive"),
    ]
    assert history(target)[0].reason.endswith(side)


def test_clocks_that_are_right_are_measured_and_no_alarm() -> None:
    rng = random.Random(2)
    target = driver(WRONG)
    for second in range(0, 600, 5):
        send(target, received(second * SECOND, 0, way=rng.choice([30, 80, 2_000, 4_900])))
    until(target, 700 * SECOND)
    assert told(target) == [(M1, -30, False)]
    assert history(target) == []


@pytest.mark.parametrize("begin", [0, 60])
def test_what_was_held_up_is_no_wrong_clock(begin: int) -> None:
    """A machine that was cut off delivers an hour at once, at the begin or later, and goes on."""
    target = driver(WRONG, grace_ms=2 * MINUTE)
    for second in range(0, 300, 10):
        way = 3_600_000 if begin <= second < begin + 50 else 40
        send(target, received(second * SECOND, 0, way=way))
    until(target, 301 * SECOND)
    assert history(target) == []


def test_the_clock_of_each_device_of_a_gateway_is_its_own() -> None:
    target = driver(WRONG)
    for second in range(0, 300, 10):
        for device, ahead in ((GATEWAY, 0), (M1, 20 * SECOND), ("m2", 0)):
            at = START + second * SECOND
            kind = "gateway" if device == GATEWAY else "machine"
            event = Heartbeat(f"{device}.{second}", device, kind, GATEWAY, at + ahead, at + 50)  # type: ignore[arg-type]
            target.send(GATEWAY, event, at=at + ahead)
    until(target, 400 * SECOND)
    wanted = [("m2", -50, False), (GATEWAY, -50, False), (M1, 19_950, True)]
    assert sorted(told(target)) == sorted(wanted)
    assert [e.alarm for e in history(target)] == [f"clock-wrong/{M1}"]


def test_events_that_do_not_say_when_they_were_received_say_nothing_of_clocks() -> None:
    from tests.unit.apps.iot_maintenance.monitor_cases import beat, reading

    target = driver(WRONG)
    send(target, *(reading(n * SECOND, 1.0) for n in range(100)), beat(100 * SECOND))
    until(target, 200 * SECOND)
    assert told(target) == []


def test_what_is_told_of_clocks_hangs_on_no_cut() -> None:
    rng = random.Random(6)
    events = []
    for second in range(0, 900, 7):
        machine = rng.choice([M1, "m2"])
        ahead = 9 * SECOND if machine == "m2" and 200 < second < 500 else 0
        events.append(received(second * SECOND, ahead, way=rng.randrange(20, 4_000), machine=machine))
    invariant(monitor(WRONG), sorted(events, key=lambda e: e[1]), bound_ms=3 * SECOND, runs=3)


# -- corrected ---------------------------------------------------------------------------------------------


def corrected(how: str) -> TestDriver:
    said = [
        f"monitor.correct_clocks={how}",
        "monitor.clock_limit=5s",
        "monitor.grace=0s",
        "monitor.judge=false",
    ]
    return TestDriver(topology(settings_for([*said, "monitor.sensor_least=30d"])))


@pytest.mark.parametrize(
    ("how", "wanted"),
    [("off", [0, 10, 20, 3_620]), ("ahead", [0, 10, 20, 20]), ("both", [0, 10, 20, 20])],
)
def test_what_a_clock_that_is_ahead_dates_counts_as_of_its_receipt(how: str, wanted: list[int]) -> None:
    driver = corrected(how)
    good = [Reading(f"g{n}", "s1", "m1", "g", "heat", 50.0 + n, "1", START + n * 10_000,
                    received_ms=START + n * 10_000 + 300) for n in range(3)]  # fmt: skip
    wrong = Reading("w", "s2", "m2", "g", "heat", 60.0, "1", START + 3_620_000, received_ms=START + 20_000)
    driver.receive(*good, wrong, input="readings")
    driver.drain()
    rows = driver.values("MachineMonitor.main")
    assert sorted((row.event_time_ms - START) // 1000 for row in rows) == wanted
    # That the clock is wrong is told all the same, by what the device said.
    clocks = driver.values("MachineMonitor.clocks")
    assert [(row.device_id, row.wrong, row.offset_ms) for row in clocks if row.wrong] == [
        ("m2", True, 3_600_000)
    ]


def test_a_clock_that_is_behind_is_corrected_where_that_is_asked_for() -> None:
    for how, wanted in (("ahead", -600), ("both", 0)):
        driver = corrected(how)
        behind = Reading("b", "s", "m1", "g", "heat", 60.0, "1", START - 600_000, received_ms=START)
        driver.receive(behind, input="readings")
        driver.drain()
        (row,) = driver.values("MachineMonitor.main")
        assert (row.event_time_ms - START) // 1000 == wanted
