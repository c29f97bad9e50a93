"""Quality of readings and statistics of sensors."""

from __future__ import annotations

import random

import numpy as np
import pandas as pd
import pytest

from apps.iot_maintenance.quality import Limits, Sensor
from apps.iot_maintenance.running import ALPHA, COUNT, LEARN, PANE_MS, PANES, Running

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


def test_statistics_are_those_of_pandas() -> None:
    rng = random.Random(8)
    times = sorted(rng.sample(range(40 * 60_000), 600))
    values = [rng.gauss(5, 2) for _ in times]
    running = Running()
    series = pd.Series(values)
    ewm = series.ewm(alpha=ALPHA, adjust=False)
    mean, variance = ewm.mean(), ewm.var(bias=True)
    for i, (at, value) in enumerate(zip(times, values, strict=True)):
        zscore = running.add(at, value)
        assert running.average == pytest.approx(series[max(0, i - COUNT + 1) : i + 1].mean())
        panes = [v for t, v in zip(times[: i + 1], values, strict=False)
                 if t // PANE_MS > at // PANE_MS - PANES]  # fmt: skip
        assert running.average_by_time == pytest.approx(np.mean(panes))
        assert (running.low, running.high) == (min(values[: i + 1]), max(values[: i + 1]))
        assert (running.mean, running.variance) == (pytest.approx(mean[i]), pytest.approx(variance[i]))
        if i >= LEARN:
            assert zscore == pytest.approx((value - mean[i - 1]) / variance[i - 1] ** 0.5)
        else:
            assert zscore is None


def test_the_trend_is_a_weighted_line_through_the_panes() -> None:
    rng = random.Random(9)
    running = Running()
    times = sorted(rng.sample(range(PANES * PANE_MS), 300))
    values = [2.0 * at / 3_600_000 + rng.gauss(0, 0.001) for at in times]
    for at, value in zip(times, values, strict=True):
        running.add(at, value)
    running.add(PANES * PANE_MS, 1.0)  # a pane begins: the line through those before it is drawn
    frame = pd.DataFrame({"pane": [at // PANE_MS for at in times], "value": values})
    means = frame.groupby("pane")["value"].agg(["mean", "size"])
    line = np.polyfit(means.index, means["mean"], 1, w=np.sqrt(means["size"]))
    assert running.trend == pytest.approx(line[0] * 60)
    assert running.trend == pytest.approx(2.0, rel=0.05)


def test_a_silence_longer_than_the_panes_begins_them_anew() -> None:
    running = Running()
    running.add(0, 1.0)
    running.add(100 * PANE_MS, 3.0)
    assert (running.average_by_time, running.trend, running.average) == (3.0, None, 2.0)
