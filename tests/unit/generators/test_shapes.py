"""Shapes of the rate and laws of delay: what they add up to, and what they refuse."""

from __future__ import annotations

import doctest
import importlib
import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import UserError
from millrace_apps.generators.engine import Generated
from millrace_apps.generators.engine.delay import parse_delay
from millrace_apps.generators.engine.pace import pace
from millrace_apps.generators.engine.shape import Shape, parse_shape

MONDAY_MS = 1_767_571_200_000  # 2026-01-05T00:00Z
SHAPES = [
    "constant",
    "ramp(start=0.5, end=3, over=10m)",
    "ramp(start=0, end=1, over=1m)",
    "burst(every=1m, length=5s, times=10)",
    "sine(period=1h, depth=1)",
    "day(low=0, peak=18)",
    "week(low=0.3, peak=9, weekend=0.25)",
]


@pytest.mark.parametrize("text", SHAPES)
@given(st.floats(0, 1_000_000))
def test_when_is_the_inverse_of_progress(text: str, seconds: float) -> None:
    shape = parse_shape(text, MONDAY_MS + 12_345_678)
    found = shape.when(shape.progress(seconds))
    # Where the factor is 0 many times have one progress: that is the same for all of them.
    assert shape.progress(found) == pytest.approx(shape.progress(seconds), rel=1e-9, abs=1e-4)


@pytest.mark.parametrize("text", SHAPES)
def test_progress_is_the_integral_of_a_rate_that_is_never_negative(text: str) -> None:
    shape = parse_shape(text, MONDAY_MS)
    values = [shape.progress(second * 150.0) for second in range(5_000)]
    assert values[0] == 0
    assert all(a <= b + 1e-6 for a, b in pairwise(values))


def factor(shape: Shape, at_s: float) -> float:
    return (shape.progress(at_s + 0.01) - shape.progress(at_s - 0.01)) / 0.02


def test_factors_are_those_asked_for() -> None:
    sine = parse_shape("sine(period=1h, depth=0.5)", 0)
    assert factor(sine, 900) == pytest.approx(1.5, abs=1e-3)
    assert factor(sine, 2_700) == pytest.approx(0.5, abs=1e-3)
    ramp = parse_shape("ramp(start=1, end=3, over=100s)", 0)
    assert [factor(ramp, at) for at in (1, 50, 200)] == pytest.approx([1.02, 2.0, 3.0], abs=1e-3)
    burst = parse_shape("burst(every=1m, length=5s, times=10)", 0)
    assert [factor(burst, at) for at in (2, 30, 62)] == pytest.approx([10, 1, 10], abs=1e-3)


def test_a_week_has_its_peaks_and_its_weekend_and_is_1_on_average() -> None:
    week = parse_shape("week(low=0.2, peak=18, weekend=0.5)", MONDAY_MS)
    day, hour = 86_400.0, 3_600.0
    high, low = factor(week, 18 * hour), factor(week, 6 * hour)
    assert low / high == pytest.approx(0.2, rel=1e-3)
    assert factor(week, 5 * day + 18 * hour) / high == pytest.approx(0.5, rel=1e-3)
    assert week.progress(7 * day) == pytest.approx(7 * day, rel=1e-9)
    # Each working day has as much as another.
    days = [week.progress((n + 1) * day) - week.progress(n * day) for n in range(5)]
    assert days == pytest.approx([days[0]] * 5, rel=1e-9)


class Clock:
    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds


def sent_at(text: str, speed: float = 1.0) -> list[float]:
    clock = Clock()
    times = range(0, 120_000, 100)
    stream = iter([Generated(str(at), b"k", b"v", [], at, "", 0) for at in times])
    shape = parse_shape(text, 0)
    return [clock.time for _ in pace(stream, speed=speed, start_ms=0, clock=clock, shape=shape)]


def test_a_burst_sends_its_events_sooner_and_none_is_early() -> None:
    """60 s hold 5 s of 10 events per slot of one, then 55 s of one: 105 s of a constant stream."""
    at = sent_at("burst(every=1m, length=5s, times=10)")
    assert sum(time < 5 for time in at) == pytest.approx(500, abs=2)
    assert sum(time < 60 for time in at) == pytest.approx(1_050, abs=2)


def test_a_shape_goes_with_the_streams_own_time() -> None:
    slow, fast = sent_at("sine(period=1m, depth=0.9)"), sent_at("sine(period=1m, depth=0.9)", speed=60)
    assert [time * 60 for time in fast] == pytest.approx(slow, abs=0.3)


@pytest.mark.parametrize(
    ("text", "mean_ms", "max_ms"),
    [
        ("none", 0, 0),
        ("uniform(max=500ms)", 250, 500),
        ("exponential(mean=200ms)", 200, 1_801),
        ("exponential(mean=200ms, max=300ms)", 200 * (1 - math.exp(-1.5)), 300),
        ("lognormal(median=100ms, sigma=1)", 100 * math.exp(0.5), 3_877),
    ],
)
def test_a_law_has_its_mean_and_its_bound(text: str, mean_ms: float, max_ms: int) -> None:
    law = parse_delay(text)
    # Whole ms are cut down from fractions: half a ms less on average.
    mean = sum(law.quantiles_ms) / len(law.quantiles_ms)
    assert mean == pytest.approx(mean_ms, rel=0.02, abs=1)
    assert law.max_ms == pytest.approx(max_ms, rel=0.05)
    assert list(law.quantiles_ms) == sorted(law.quantiles_ms)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("gamma(mean=1s)", "--delay is one of none, uniform"),
        ("uniform", "needs max"),
        ("uniform(mean=1s)", "uniform takes max"),
        ("uniform(max=0)", "max of uniform"),
        ("exponential(mean=1s, mean=2s)", "each once"),
        ("lognormal(median=1s, sigma=no)", "sigma of lognormal"),
        ("exponential(mean=5h)", "a day at most"),
        ("uniform(max=soon)", "is not a duration"),
    ],
)
def test_a_law_that_cannot_be_meant_is_named(text: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        parse_delay(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("square", "--shape is one of constant, ramp"),
        ("sine(depth=2)", "depth of sine"),
        ("burst(every=1s, length=2s)", "length of burst"),
        ("ramp(end=0)", "end of ramp"),
        ("day(peak=25)", "peak of day"),
    ],
)
def test_a_shape_that_cannot_be_meant_is_named(text: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        parse_shape(text, 0)


@pytest.mark.parametrize(
    "name",
    ["engine.delay", "engine.disturb", "engine.encode", "engine.shape", "engine.terms", "options", "timing"],
)
def test_the_examples_of_the_documentation_run(name: str) -> None:
    found = doctest.testmod(importlib.import_module(f"millrace_apps.generators.{name}"))
    assert found.attempted > 0
    assert found.failed == 0
