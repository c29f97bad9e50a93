"""Quality of readings and statistics of sensors."""

from __future__ import annotations

import random

import msgspec
import pytest

from millrace_apps.iot_maintenance.processes.quality import Limits, Sensor
from millrace_apps.iot_maintenance.state.running import Running

SECOND = 1_000


def settled(unit: str = "bar", level: float = 10.0, noise: float = 0.1, count: int = 200) -> Sensor:
    """A sensor that has measured a level for a while."""
    rng = random.Random(4)
    sensor = Sensor()
    for at in range(count):
        sensor.judge(at * SECOND, rng.gauss(level, noise), unit, Limits())
    return sensor


def judge(sensor: Sensor, *values: float | None, unit: str = "bar") -> list[tuple[str, str]]:
    """Judge values, a second apart."""
    found = []
    for value in values:
        judged = sensor.judge(sensor.at + SECOND, value, unit, Limits("bar", -5, 500))
        found.append((judged.quality, judged.fault))
    return found


def test_noise_of_its_own_kind_is_good() -> None:
    rng = random.Random(5)
    assert set(judge(settled(), *(rng.gauss(10, 0.1) for _ in range(500)))) == {("good", "")}


def test_a_missing_and_an_impossible_value_are_bad() -> None:
    assert judge(settled(), None, 501.0, -5.5) == [("bad", "missing"), ("bad", "range"), ("bad", "range")]


def test_a_value_without_end_is_refused_and_spoils_nothing() -> None:
    sensor = Sensor()
    running = Running()
    for at in range(100):
        judged = sensor.judge(at * SECOND, 1e308 if at % 7 == 0 else 5.0 + at % 3, "1", Limits())
        assert (judged.fault == "range") is (at % 7 == 0)
        if judged.value is not None:
            running.add(at * SECOND, judged.value)
    assert 4 < running.mean < 8


def test_a_spike_is_uncertain_and_told_when_it_is_over() -> None:
    assert judge(settled(), 10.0, 40.0, 10.1, 9.9) == [
        ("good", ""),
        ("uncertain", "rate"),
        ("good", "spike"),
        ("good", ""),
    ]


def test_a_level_that_moves_is_believed_from_the_second_reading_on() -> None:
    assert judge(settled(), 30.0, 30.1, 29.9, 30.0) == [("uncertain", "rate")] + [("good", "")] * 3


def test_the_same_value_again_and_again_is_a_stuck_sensor() -> None:
    assert judge(settled(), *[10.05] * 8) == [("good", "")] * 5 + [("bad", "stuck")] * 3


def test_a_sensor_that_always_says_the_same_is_not_stuck() -> None:
    sensor = Sensor()
    assert {sensor.judge(at * SECOND, 5.0, "1", Limits()).quality for at in range(100)} == {"good"}


def test_a_loud_sensor_is_found_and_a_steep_ramp_is_not() -> None:
    rng = random.Random(6)
    found = judge(settled(), *(10 + 1.5 * rng.gauss(0, 1) for _ in range(40)))
    assert found.count(("bad", "noise")) > 20
    ramp = judge(settled(), *(10 + 0.8 * step + 0.05 * rng.gauss(0, 1) for step in range(40)))
    assert ("bad", "noise") not in ramp


def test_a_unit_that_the_reading_names_is_converted_and_told() -> None:
    sensor = settled()
    judged = sensor.judge(sensor.at + SECOND, 145.038, "psi", Limits("bar"))
    assert (judged.quality, judged.fault) == ("uncertain", "unit")
    assert judged.value == pytest.approx(10.0)
    assert sensor.judge(sensor.at + SECOND, 1.0, "parsec", Limits("bar")) == ("bad", "unit", None)


def test_a_unit_that_the_reading_does_not_name_is_found() -> None:
    found = judge(settled(), *[145.038 + 0.1 * step for step in range(5)], 10.0, 10.1)
    assert found == [("uncertain", "rate")] + [("bad", "unit")] * 4 + [("good", "")] * 2


def test_a_gap_is_told_by_the_reading_after_it() -> None:
    sensor = settled()
    after = sensor.judge(sensor.at + 10 * SECOND, 10.0, "bar", Limits())
    assert (after.quality, after.fault, after.value) == ("uncertain", "gap", 10.0)


def test_iots_statistics_are_packed_as_they_were_before_they_were_a_part() -> None:
    kept = Running()
    for minute in range(3):
        kept.add(minute * 60 * SECOND, 1.5 * minute)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(kept)) == [
        3, [0.0, 1.5, 3.0], 2, [0.0, 1.5, 3.0], [1, 1, 1], 0.0, 3.0, kept.mean, kept.variance, 90.0,
    ]  # fmt: skip
