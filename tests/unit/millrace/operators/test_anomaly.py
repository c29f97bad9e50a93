"""Anomaly scores against their definition computed from whole arrays; nothing is known of what is to come."""

from __future__ import annotations

import math
import random
import time
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import UserError
from millrace.operators import anomaly_scores, novelty
from millrace.operators.anomaly import Novelty, NoveltyState, Score
from millrace.testing.properties import invariant, leaks
from tests.cases import case_count
from tests.unit.millrace.operators.cases import DAY, HOUR, MINUTE, Ev, examples, run

Series = list[tuple[float, int]]
_encode, _decode = msgspec.msgpack.encode, msgspec.msgpack.Decoder(NoveltyState).decode


def series(n: int, seed: int = 5, step: int = 5 * MINUTE) -> Series:
    """A daily wave with noise, a weekend that is lower, some jumps, a flat piece and a wild one."""
    rng = random.Random(seed)
    found = []
    for i in range(n):
        at = 1_700_000_000_000 + i * step
        wave = 10 * math.sin(2 * math.pi * (at % DAY) / DAY) * (0.4 if at // DAY % 7 > 4 else 1.0)
        noise = (
            0.0 if n // 2 < i < n // 2 + 40 else rng.gauss(0, 5 if n * 3 // 4 < i < n * 3 // 4 + 30 else 1)
        )
        found.append((50 + wave + noise + (30 if rng.random() < 0.002 else 0), at))
    return found


def scored(detector: Novelty, values: Series, cuts: tuple[int, ...] = ()) -> list[Score | None]:
    """Return the scores of values; at the cuts the state is packed and unpacked."""
    state, found = detector.new(), []
    for i, (value, at) in enumerate(values):
        if i in cuts:
            state = _decode(_encode(state))
        found.append(detector.add(state, value, at))
    return found


# -- the definition, from whole arrays --------------------------------------------------------------


def _means(x: np.ndarray, gain: np.ndarray | float) -> np.ndarray:
    """Weighted means after each value, from explicit weights; the first ones are plain means."""
    out = np.empty(len(x))
    most = np.maximum(gain, 1 / np.arange(1, len(x) + 1))
    for i in range(len(x)):
        gains = most[: i + 1]
        kept = np.concatenate([np.cumprod((1 - gains)[::-1])[::-1][1:], [1.0]])
        out[i] = (kept * gains) @ x[: i + 1]
    return out


def _beyond(x: np.ndarray, forget: np.ndarray, resolution: float) -> np.ndarray:
    """How far each is beyond the range of those before it, which began at 0."""
    centre = half = 0.0
    out = np.zeros(len(x))
    for i, value in enumerate(x):
        low, high = centre - half, centre + half
        if not low <= value <= high:
            width = 2 * half + resolution + 1e-9 * max(abs(low), abs(high)) + 1e-12
            out[i] = (value - (high if value > high else low)) / width
            low, high = min(low, value), max(high, value)
        centre, half = (low + high) / 2, (high - low) / 2 * (1 - forget[i])
    return out


def oracle(values: Series, detector: Novelty) -> np.ndarray:
    """Return the scores by the definition."""
    x = np.array([value for value, _ in values])
    at = np.array([when for _, when in values])
    watched = np.clip(np.diff(at, prepend=at[0]), 0, HOUR)
    forget, slowly = (1 - np.exp(-watched / ms) for ms in (detector.memory_ms, detector.long_memory_ms))
    level = np.zeros(len(x))
    for gain in detector.levels:
        away = x[1:] - _means(x, gain)[:-1]
        level[1:] += _beyond(away, forget[1:], detector.resolution) / len(detector.levels)
    usual: dict[int, float] = {}
    more: dict[int, float] = {}
    where, away = [], []
    for i, value in enumerate(x):
        hour, quarter = int(at[i] % DAY // HOUR), int((at[i] // HOUR + 72) % 168 // 6)
        if hour in usual:
            expected = usual[hour] + more.get(quarter, 0.0)
            where.append(i)
            away.append(value - expected)
            days = (at[i] - at[0]) // DAY
            kept = usual[hour] + max(0.05, 1 / (3 * days + 3)) * (value - usual[hour])
            added = more.get(quarter, 0.0)
            added += max(0.1, 1 / (3 * (days // 7) + 6)) * (value - expected)
            usual[hour], more[quarter] = float(np.float32(kept)), float(np.float32(added))
        else:
            usual[hour] = float(np.float32(value))
    season = np.zeros(len(x))
    season[where] = _beyond(np.array(away), slowly[where], detector.resolution)
    steps, restless = np.abs(np.diff(x)), np.zeros(len(x))
    if len(steps):
        long = _means(steps, forget[1:]) + detector.resolution + 1e-12
        for gain in detector.changes:
            restlessness = np.log(_means(steps, gain) / long + 0.05)
            restless[1:] += _beyond(restlessness, slowly[1:], 0.0) / len(detector.changes)
    sides = [
        np.abs(level),
        detector.season_weight * np.abs(season),
        detector.change_weight * np.abs(restless),
    ]
    most = np.max(sides, axis=0)
    return np.asarray(most / (most + detector.tolerance))


@pytest.mark.parametrize(
    "detector",
    [
        novelty(learn=1),
        novelty(learn=1, season_weight=0, change_weight=0),
        novelty(learn=1, resolution=0.5, levels=(0.3,), changes=(0.1, 0.02), season_weight=2.0),
        novelty(learn=1, tolerance=0.2, memory=DAY, long_memory=3 * DAY, change_weight=3.0),
    ],
)
def test_scores_are_those_of_the_definition(detector: Novelty) -> None:
    for values in (series(900), series(500, seed=8, step=HOUR)):
        found = [0.0 if score is None else score.score for score in scored(detector, values)]
        assert found[1:] == pytest.approx(oracle(values, detector)[1:], abs=1e-6)


@examples(60)
@given(
    steps=st.lists(st.tuples(st.integers(-40, 40), st.integers(0, 9 * HOUR)), min_size=2, max_size=80),
    resolution=st.sampled_from([0.0, 0.5]),
)
def test_scores_of_any_series_are_those_of_the_definition(
    steps: list[tuple[int, int]], resolution: float
) -> None:
    at, values = 0, []
    for value, later in steps:
        at += later
        values.append((float(value), at))
    detector = novelty(learn=1, resolution=resolution)
    found = [0.0 if score is None else score.score for score in scored(detector, values)]
    assert found[1:] == pytest.approx(oracle(values, detector)[1:], abs=1e-5)


# -- online -----------------------------------------------------------------------------------------


def test_a_series_in_two_halves_scores_as_in_one() -> None:
    values, detector = series(1_000), novelty()
    whole = scored(detector, values)
    assert scored(detector, values, cuts=(500,)) == whole
    # The first half scores the same whatever is to come.
    rest = [(value * 1e6 - 7, at) for value, at in values[500:]]
    assert scored(detector, values[:500] + rest)[:500] == whole[:500]
    assert scored(detector, values[:500]) == whole[:500]


def test_any_prefix_scores_the_same_wherever_it_is_cut() -> None:
    rng, detector = random.Random(3), novelty(learn=20)
    for case in range(case_count(10_000, share=10) // 100):
        values = series(100, seed=case, step=rng.choice([MINUTE, 40 * MINUTE, 3 * HOUR]))
        whole = scored(detector, values)
        for _ in range(100):
            n = rng.randrange(1, 101)
            state = detector.new()
            cut = rng.randrange(n)
            for i, (value, at) in enumerate(values[:n]):
                if i == cut:
                    state = _decode(_encode(state))
                last = detector.add(state, value, at)
            assert last == whole[n - 1]


def test_no_value_is_scored_while_the_series_is_learned() -> None:
    found = scored(novelty(learn=60), series(100))
    assert [score is None for score in found] == [i < 60 for i in range(100)]


# -- what it says -----------------------------------------------------------------------------------


def said(values: list[float], step: int = MINUTE, **how: Any) -> Score:
    """Return the score of the last value."""
    last = scored(novelty(**how), [(value, i * step) for i, value in enumerate(values)])[-1]
    assert last is not None
    return last


@pytest.mark.parametrize(
    ("last", "why"), [(30.0, "above the recent level"), (-10.0, "below the recent level")]
)
def test_a_value_far_from_the_level_says_so_and_what_was_expected(last: float, why: str) -> None:
    rng = random.Random(1)
    found = said([*(rng.gauss(10, 1) for _ in range(300)), last])
    assert (found.why, found.score > 0.9) == (why, True)
    assert found.expected == pytest.approx(10, abs=1)
    assert found.residual == last - found.expected
    assert found.low < 10 < found.high
    assert not found.low <= last <= found.high


@pytest.mark.parametrize(("hour", "sign", "word"), [(3, 1, "above"), (15, -1, "below")])
def test_a_value_that_is_usual_at_another_hour_says_so(hour: int, sign: int, word: str) -> None:
    """By night it is 10, by day 50: 50 at night and 10 by day are within all that was seen."""
    rng = random.Random(2)
    values = [(50 if 8 <= i // 60 % 24 < 20 else 10) + rng.gauss(0, 1) for i in range(6 * 24 * 60)]
    usual = said(values[: (5 * 24 + hour) * 60 + 1], change_weight=0)
    assert usual.score < 0.5
    odd = [*values[: (5 * 24 + hour) * 60], values[(5 * 24 + hour) * 60] + sign * 40]
    without = said(odd, change_weight=0, season_weight=0, levels=(1.0,))
    found = said(odd, change_weight=0, levels=(1.0,))
    assert (found.why, found.score > 0.9) == (f"{word} what is usual at this hour", True)
    assert found.score > without.score
    assert found.expected == pytest.approx(30 - sign * 20, abs=3)


def test_a_day_of_the_week_has_its_own_usual() -> None:
    """On Sundays it is 10, on other days 50; after four weeks a Sunday with 50 is odd, one with 10 is not."""
    rng = random.Random(4)
    values = [(10 if i // 24 % 7 == 3 else 50) + rng.gauss(0, 1) for i in range((4 * 7 + 3) * 24)]
    how: dict[str, Any] = {"step": HOUR, "change_weight": 0, "levels": (1.0,), "memory": 3_650 * DAY}
    sunday, odd = said([*values, 10.0], **how), said([*values, 50.0], **how)
    assert sunday.score < 0.5
    assert (odd.why, odd.score > sunday.score + 0.1) == ("above what is usual at this hour", True)


def test_a_series_that_becomes_restless_or_stands_still_says_so() -> None:
    rng = random.Random(3)
    values = [rng.gauss(10, 1) for _ in range(1_000)]
    wild = [10 + 3.2 * (-1) ** i for i in range(40)]
    whys = {
        score.why for score in scored(novelty(), at_minutes(values + wild)) if score and score.score > 0.5
    }
    assert "more restless than usual" in whys
    found = [score for score in scored(novelty(), at_minutes([*values, *[values[-1]] * 200])) if score][-200:]
    assert max(found).why == "calmer than usual"
    assert 0.2 < max(found).score < 0.5  # it comes little by little


def at_minutes(values: list[float]) -> Series:
    return [(value, i * MINUTE) for i, value in enumerate(values)]


def test_what_was_seen_is_not_told_again_and_after_long_it_is() -> None:
    rng = random.Random(6)
    noise = [rng.uniform(9, 11) for _ in range(60_000)]
    soon = [*noise[:500], 30.0, *noise[500:600], 30.0]
    late = [*noise[:500], 30.0, *noise[500:], 30.0]
    how: dict[str, Any] = {"change_weight": 0, "season_weight": 0, "memory": 10 * DAY}
    assert said(soon, **how).score < 0.5 < said(soon[:501], **how).score
    assert said(late, **how).score > 0.5


def test_time_without_values_forgets_an_hour_at_most() -> None:
    rng = random.Random(6)
    before = [(rng.uniform(9, 11) if i != 500 else 30.0, i * MINUTE) for i in range(600)]
    how: dict[str, Any] = {"change_weight": 0, "season_weight": 0, "memory": 10 * DAY}
    hour, year = (
        scored(novelty(**how), [*before, (10.0, 600 * MINUTE + gap), (30.0, 601 * MINUTE + gap)])[-1]
        for gap in (HOUR, 365 * DAY)
    )
    assert hour == year
    assert hour is not None
    assert hour.score < 0.5


def test_a_sensors_resolution_makes_its_last_digit_no_news() -> None:
    values = [20.0] * 300 + [20.1]
    assert said(values).score > 0.9
    assert said(values, resolution=10.0).score < 0.5


def test_a_constant_is_nothing_unusual() -> None:
    found = [score for score in scored(novelty(), at_minutes([45.0] * 3_000)) if score]
    assert max(score.score for score in found) < 0.001
    assert {(score.expected, score.residual) for score in found} == {(45.0, 0.0)}


# -- what is kept, what it costs --------------------------------------------------------------------


def test_what_is_kept_of_a_series_is_less_than_half_a_kib() -> None:
    detector, rng = novelty(), random.Random(9)
    state = detector.new()
    for i in range(20_000):
        detector.add(state, rng.gauss(0, 1e20), 4_000_000_000_000 + i * 7 * MINUTE)
    assert len(_encode(state)) <= 512


def test_a_value_costs_less_than_100_microseconds() -> None:
    values, detector = series(20_000), novelty()
    state = detector.new()
    before = time.process_time()
    for value, at in values:
        detector.add(state, value, at)
    assert (time.process_time() - before) / len(values) < 100e-6


@pytest.mark.parametrize("value", [1e31, -math.inf, math.nan])
def test_a_value_that_cannot_be_kept_leaves_what_is_kept_as_it_was(value: float) -> None:
    detector = novelty()
    state = detector.new()
    for x, at in series(150):
        detector.add(state, x, at)
    before = _encode(state)
    with pytest.raises(OverflowError, match="too large"):
        detector.add(state, value, DAY)
    assert _encode(state) == before


def test_what_contradicts_itself_is_refused() -> None:
    for how in (
        {"tolerance": 0},
        {"learn": 0},
        {"resolution": -1},
        {"levels": ()},
        {"levels": (1.5,)},
        {"changes": (0,)},
        {"season_weight": -1},
        {"change_weight": math.nan},
        {"memory": 0},
        {"long_memory": -5},
    ):
        with pytest.raises(UserError):
            novelty(**how)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="needs a detector"):
        anomaly_scores(Ev, "x", "novelty", idle=DAY)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="least"):
        anomaly_scores(Ev, "x", novelty(), idle=DAY, least=1.5)


# -- as a process -----------------------------------------------------------------------------------


@pytest.mark.parametrize("restart_after", [None, 137])
def test_a_process_tells_what_the_detector_finds(restart_after: int | None) -> None:
    values = [(round(value, 3), at) for value, at in series(300)]
    process = anomaly_scores(Ev, "x", novelty(learn=50), idle=DAY, least=0.3, keep="id")
    events = [("pump", at, Ev(id=i, x=value)) for i, (value, at) in enumerate(values)]
    told = run(process, events, restart_after=restart_after).values()
    wanted = [
        (i, value, *score)
        for i, (value, score) in enumerate(zip((v for v, _ in values), scored(novelty(learn=50), values)))  # noqa: B905
        if score is not None and score.score >= 0.3
    ]
    assert wanted
    got = [(r.id, r.value, r.score, r.expected, r.residual, r.low, r.high, r.why) for r in told]
    assert got == wanted


def test_scores_do_not_hang_on_cuts_and_nothing_is_left() -> None:
    process = anomaly_scores(Ev, "x", novelty(learn=5), idle=DAY)
    events = [(k, i * MINUTE, Ev(id=i, x=float(i % 7))) for i in range(60) for k in ("a", "b")]
    invariant(process, events)
    leaks(process, events)
