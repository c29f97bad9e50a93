"""Forecasts of limits: when they are crossed, how sure that is, and that the intervals keep their word."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import msgspec
import pytest

from millrace.errors import UserError
from millrace.operators import limit_forecast
from millrace.operators.crossing import CrossingState
from tests.unit.millrace.operators.cases import HOUR, MINUTE

FORECAST = limit_forecast(every=MINUTE, ahead=8 * HOUR)
_encode, _decode = msgspec.msgpack.encode, msgspec.msgpack.Decoder(CrossingState).decode


def walk(rng: random.Random) -> Callable[[int], float]:
    at = [0.0]

    def value(i: int) -> float:
        at[0] += rng.gauss(0, 0.1)
        return at[0] + rng.gauss(0, 0.3)

    return value


def shapes(rng: random.Random) -> dict[str, Callable[[int], float]]:
    return {
        "noise": lambda i: 50 + rng.gauss(0, 1),
        "a walk": walk(rng),
        "days": lambda i: 50 + 10 * math.sin(2 * math.pi * i / 1_440) + rng.gauss(0, 1),
        "noise that grows": lambda i: 50 + rng.gauss(0, 1 if i < 10_000 else 5),
    }


@pytest.mark.parametrize("shape", ["noise", "a walk", "days", "noise that grows"])
@pytest.mark.parametrize("coverage", [0.8, 0.9])
def test_intervals_cover_what_they_say_however_a_series_changes(shape: str, coverage: float) -> None:
    """Not less than was asked for by more than a twentieth, at each horizon with 100 forecasts."""
    value = shapes(random.Random(1))[shape]
    forecast = limit_forecast(every=MINUTE, ahead=8 * HOUR, coverage=coverage)
    state = forecast.new()
    for i in range(20_000):
        forecast.add(state, value(i), i * MINUTE)
    for checked, missed in zip(state.checked, state.missed, strict=True):
        if checked >= 100:
            assert 1 - missed / checked >= coverage - 0.05
    # Nor much more where forecasts are many.
    assert 1 - state.missed[0] / state.checked[0] <= coverage + 0.05


def test_a_limit_is_crossed_when_it_was_said_and_within_what_was_said() -> None:
    within = told = bounded = 0
    off = []
    for case in range(40):
        rng = random.Random(case)
        start, slope, noise = rng.randrange(600, 2_000), rng.uniform(0.02, 0.1), rng.uniform(0.2, 1.0)
        sign = rng.choice([1, -1])
        limit, state = 50 + 25 * sign, FORECAST.new()
        crossed = start + 25 / slope
        for i in range(int(crossed)):
            value = 50 + sign * (max(0, i - start) * slope + rng.gauss(0, noise))
            found = FORECAST.add(
                state, value, i * MINUTE, above=75.0 if sign > 0 else None, below=25.0 if sign < 0 else None
            )
            if found is None or i < start + 120:
                continue
            told += 1
            true = (crossed - i) * MINUTE
            assert (found.side, found.limit) == ("above" if sign > 0 else "below", limit)
            within += found.earliest_ms <= true and (found.latest_ms is None or true <= found.latest_ms)
            bounded += found.latest_ms is not None
            off.append(abs(found.in_ms - true) / HOUR)
    assert told > 5_000
    assert within / told >= 0.9
    assert bounded / told > 0.2
    assert sum(off) / told < 0.5


def test_nothing_is_foreseen_where_nothing_moves_towards_a_limit() -> None:
    state = FORECAST.new()
    falling = [FORECAST.add(state, 50 - i / 60, i * MINUTE, above=60.0, below=-1e9) for i in range(600)]
    assert falling == [None] * 600
    state = FORECAST.new()
    beyond = [FORECAST.add(state, 70 + i / 60, i * MINUTE, above=60.0) for i in range(600)]
    assert beyond == [None] * 600
    state = FORECAST.new()
    slow = [FORECAST.add(state, 50 + i / 6_000, i * MINUTE, above=60.0) for i in range(600)]
    assert slow == [None] * 600


def test_a_line_is_carried_on_exactly() -> None:
    state, found = FORECAST.new(), None
    for i in range(400):
        found = FORECAST.add(state, 10 + i * 0.05, i * MINUTE, above=40.0)
    assert found is not None
    assert found.in_ms / MINUTE == pytest.approx((40 - 10 - 399 * 0.05) / 0.05, rel=0.01)
    assert found.trend_per_h == pytest.approx(3.0, rel=0.01)
    assert found.earliest_ms <= found.in_ms <= (found.latest_ms or math.inf)


def test_steps_without_values_are_passed_over_and_a_second_value_of_a_step_does_nothing() -> None:
    whole, gaps = FORECAST.new(), FORECAST.new()
    for i in range(600):
        FORECAST.add(whole, 10 + i * 0.02, i * MINUTE)
        if i % 3 == 0:
            FORECAST.add(gaps, 10 + i * 0.02, i * MINUTE)
            before = _encode(gaps)
            assert FORECAST.add(gaps, 1e6, i * MINUTE + 1, above=1e5) is None
            assert FORECAST.add(gaps, 1e6, (i - 5) * MINUTE, above=1e5) is None
            assert _encode(gaps) == before
    assert gaps.trend == pytest.approx(0.02, rel=0.02)
    assert gaps.trend == pytest.approx(whole.trend, rel=0.02)


def test_any_prefix_says_the_same_wherever_it_is_cut() -> None:
    rng = random.Random(4)
    for case in range(100):
        values = [50 + i * 0.05 + random.Random(case * 1_000 + i).gauss(0, 1) for i in range(120)]
        cuts = {rng.randrange(120) for _ in range(3)}
        one, cut = FORECAST.new(), FORECAST.new()
        for i, value in enumerate(values):
            if i in cuts:
                cut = _decode(_encode(cut))
            wanted = FORECAST.add(one, value, i * MINUTE, above=75.0)
            assert FORECAST.add(cut, value, i * MINUTE, above=75.0) == wanted


def test_what_is_kept_is_less_than_half_a_kib() -> None:
    rng, state = random.Random(2), FORECAST.new()
    for i in range(30_000):
        FORECAST.add(state, rng.gauss(0, 1e9), 1_800_000_000_000 + i * MINUTE, above=1e12)
    assert len(_encode(state)) <= 512


def test_what_contradicts_itself_is_refused() -> None:
    for how in (
        {"ahead": 10},
        {"ahead": 0},
        {"every": 0},
        {"alpha": 0},
        {"beta": 2},
        {"coverage": 1},
        {"learn": 1},
    ):
        with pytest.raises(UserError):
            limit_forecast(**{"every": MINUTE, "ahead": HOUR, **how})  # type: ignore[arg-type]
    assert limit_forecast(every=MINUTE, ahead=MINUTE).horizons == (1,)
    assert limit_forecast(every=MINUTE, ahead=6 * MINUTE).horizons == (1, 2, 4, 6)
