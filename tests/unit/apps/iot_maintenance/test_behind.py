"""Machines and gateways that are behind the stream, by clocks of their own: what is told stays in order.

What one of them has sent last waits for its next event: events of one come in pairs here.
"""

from __future__ import annotations

from millrace.testing import TestDriver
from millrace_apps.iot_maintenance.alarms.rule import AlarmRule, Level
from millrace_apps.iot_maintenance.contracts.records import Liveness, ShiftKpi
from tests.unit.apps.iot_maintenance.monitor_cases import (
    GATEWAY,
    HOUR,
    MINUTE,
    SECOND,
    START,
    Event,
    beat,
    driver,
    history,
    reading,
    rule,
    send,
    status,
    told,
    until,
)

SILENCE = AlarmRule("silent", (Level(),), source="silence", ack=False)
#: Of a device that is heard in time, which takes the stream with it.
OTHER_GATEWAY = "p01-l02-gw"


def behind(*rules: AlarmRule) -> TestDriver:
    return driver(*rules, clock="key", patience_ms=3 * HOUR)


def elsewhere(at: int) -> Event:
    return beat(at, OTHER_GATEWAY, OTHER_GATEWAY)


def live(target: TestDriver, gateway: str = GATEWAY) -> list[tuple[int, str]]:
    found: list[Liveness] = target.values("liveness")
    return [((r.event_time_ms - START) // SECOND, r.state) for r in found if r.device_id == gateway]


def test_a_device_that_is_behind_is_not_heard_again_before_it_was_silent() -> None:
    target = behind(SILENCE)
    send(target, beat(0, GATEWAY), beat(1, GATEWAY), elsewhere(12 * SECOND))
    assert live(target) == [(10, "silent")]
    send(target, beat(8 * SECOND, GATEWAY), beat(8 * SECOND + 1, GATEWAY))
    assert live(target) == [(10, "silent"), (10, "online")]
    times = [(e.change, e.event_time_ms - START, e.number) for e in history(target) if e.quantity == GATEWAY]
    assert times == [("active", 10 * SECOND, 0), ("inactive", 10 * SECOND, 1)]
    until(target, 17 * SECOND)
    assert len(live(target)) == 2
    until(target, 18 * SECOND)
    assert live(target)[2:] == [(18, "silent")]


def test_what_is_delivered_from_the_time_of_a_silence_does_not_end_it() -> None:
    target = behind(SILENCE)
    send(target, beat(0, GATEWAY), beat(1, GATEWAY), elsewhere(MINUTE))
    send(target, beat(20 * SECOND, GATEWAY), beat(21 * SECOND, GATEWAY))
    assert live(target) == [(10, "silent")]
    send(target, beat(55 * SECOND, GATEWAY), beat(56 * SECOND, GATEWAY))
    assert live(target) == [(10, "silent"), (55, "online")]


def test_a_reading_from_the_time_of_a_silence_does_not_end_no_data() -> None:
    target = behind(rule(Level(no_data="30s")))
    send(target, reading(0, 20.0), reading(1, 20.0), elsewhere(2 * MINUTE))
    assert told(target) == [(30, "active")]
    send(target, reading(10 * SECOND, 20.0), reading(11 * SECOND, 20.0))
    assert told(target) == [(30, "active")], "the readings are from the time of the silence"
    send(target, reading(110 * SECOND, 20.0), reading(111 * SECOND, 20.0))
    assert told(target) == [(30, "active"), (110, "inactive")]


def test_a_machine_that_is_behind_is_told_by_the_streams_end_of_shift_and_once_more_by_its_own() -> None:
    """A shift ends at 14:00, six hours after the start."""
    target = behind()
    end = 6 * HOUR
    send(target, status(0, "running"), status(end - 2 * HOUR, "idle"))
    send(target, status(end - 2 * HOUR + 1, "idle"), elsewhere(end + MINUTE))
    rows: list[ShiftKpi] = target.values("shifts")
    assert [(row.revision, row.operating_ms) for row in rows] == [(0, 4 * HOUR)]
    send(target, status(end - HOUR, "running"), status(end + SECOND, "idle"), status(end + MINUTE, "idle"))
    rows = target.values("shifts")
    assert [(row.revision, row.operating_ms) for row in rows] == [(0, 4 * HOUR), (1, 5 * HOUR)]
    assert {row.shift_start_ms for row in rows} == {START - 2 * HOUR}


def test_a_shift_of_a_machine_that_said_all_is_told_once() -> None:
    target = behind()
    end = 6 * HOUR
    send(target, status(0, "running"), elsewhere(end + MINUTE), status(end + SECOND, "running"))
    until(target, end + HOUR)
    rows: list[ShiftKpi] = target.values("shifts")
    assert [row.revision for row in rows] == [0]
