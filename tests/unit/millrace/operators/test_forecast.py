"""Holt-Winters against statsmodels and river, the error-correction form, and series it must get right."""

from __future__ import annotations

import math
import sys
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import UserError
from millrace.host.memory_chain import MemoryChain
from millrace.operators import fit_holt_winters, holt_winters
from millrace.testing import TestDriver
from millrace.testing.properties import invariant, leaks
from millrace.windows import first, sum_of, tumbling, window
from tests.unit.millrace.operators.cases import DAY, HOUR, Ev, examples, run

VALUES = [
    112.0, 118.0, 132.0, 129.0, 121.0, 135.0, 148.0, 148.0, 136.0, 119.0, 104.0, 118.0,
    115.0, 126.0, 141.0, 135.0, 125.0, 149.0, 170.0, 170.0, 158.0, 133.0, 114.0, 140.0,
]  # fmt: skip

#: One-step forecasts from the ninth value on by statsmodels 0.15.0, ExponentialSmoothing with known initial
#: values: level 113.21875, trend 3.8125, season as in ``begin``; 0.5, 0.1 and 0.4, season of 4.
STATSMODELS = {
    ("additive", 1.0): [
        140.81519, 149.331209, 145.325453, 119.573053, 106.026696, 108.017734, 122.973871, 144.968655,
        133.193692, 131.097119, 146.919442, 161.384581, 161.681899, 174.5757, 162.051722, 130.92997,
    ],
    ("additive", 0.9): [
        137.842968, 146.256588, 142.317465, 116.883606, 103.786271, 106.183735, 121.333814, 143.254003,
        131.418546, 129.364763, 145.187639, 159.485425, 159.488354, 172.09096, 159.571711, 128.846175,
    ],
    ("multiplicative", 1.0): [
        139.2049, 149.605187, 145.872899, 120.534265, 108.518397, 110.223636, 122.937028, 144.650503,
        132.959223, 132.190396, 147.312896, 160.659047, 159.205699, 177.089066, 163.33158, 131.816422,
    ],
    ("multiplicative", 0.9): [
        136.458468, 146.645657, 142.677398, 117.711872, 106.28729, 108.334239, 121.289281, 143.308934,
        131.460502, 130.492013, 145.436073, 158.828346, 157.328787, 174.759932, 160.653232, 129.53627,
    ],
}  # fmt: skip


def forecasts(values: list[float | None], cut: int | None = None, **how: Any) -> list[Any]:
    events = [("k", at, Ev(x=x)) for at, x in enumerate(values) if x is not None]
    return run(holt_winters(Ev, "x", **{"idle": 10**9, **how}), events, restart_after=cut).values()


@pytest.mark.parametrize(("seasonal", "damping"), STATSMODELS)
@pytest.mark.parametrize("cut", [None, 3, 8, 15])
def test_forecasts_are_those_that_statsmodels_gave(seasonal: Any, damping: float, cut: int | None) -> None:
    rows = forecasts(
        VALUES, cut, season=4, seasonal=seasonal, alpha=0.5, beta=0.1, gamma=0.4, damping=damping
    )
    assert rows[0].expected is None
    assert [round(r.expected, 6) for r in rows[1:]] == STATSMODELS[seasonal, damping]
    assert [r.value for r in rows] == VALUES[7:]
    assert all(r.error == r.value - r.expected for r in rows[1:])


def by_errors(
    values: list[float | None], m: int, seasonal: str, alpha: float, beta: float, gamma: float, phi: float
) -> list[float | None]:
    """Use the error-correction form (Hyndman et al. 2008): every part moves by a share of the error."""
    length = max(m, 1)
    seasons = np.array([math.nan if v is None else v for v in values[: 2 * length]]).reshape(2, length)
    low, high = np.nanmean(seasons[0]), np.nanmean(seasons[1])
    b = (high - low) / length
    level = low - b * (length + 1) / 2
    line = level + b * np.arange(1, 2 * length + 1).reshape(2, length)
    plus = seasonal == "additive"
    s = (
        np.nanmean(seasons - line if plus else seasons / line, axis=0)
        if m
        else np.array([0.0 if plus else 1.0])
    )
    expected: list[float | None] = []
    for t, y in enumerate(values):
        base, at = level + phi * b, t % length
        guess = base + s[at] if plus else base * s[at]
        expected.append(float(guess))
        e = 0.0 if y is None else y - guess
        share = e if plus else e / s[at]
        level, b = base + alpha * share, phi * b + alpha * beta * share
        if m:
            s[at] += gamma * (e if plus else e / base)
    return expected


@examples(20)
@given(
    values=st.lists(st.floats(50, 150) | st.none(), min_size=10, max_size=25),
    m=st.sampled_from([0, 2, 3, 5]),
    seasonal=st.sampled_from(["additive", "multiplicative"]),
    parts=st.tuples(*[st.floats(0.05, 1.0)] * 4),
)
def test_forecasts_agree_with_the_error_correction_form_with_steps_that_lack_a_value(
    values: list[float | None], m: int, seasonal: Any, parts: tuple[float, float, float, float]
) -> None:
    alpha, beta, gamma, phi = parts
    first_ones = 2 * max(m, 1)
    values = [100.0 if v is None and (i < first_ones or m == 0) else v for i, v in enumerate(values)]
    wanted = by_errors(values, m, seasonal, alpha, beta, gamma, phi)
    if not all(0 < w < 1_000 for w in wanted if w is not None):
        return  # where a multiplicative season runs away there is nothing to hold on to
    how = {"alpha": alpha, "beta": beta, "gamma": gamma, "damping": phi, "seasonal": seasonal, "season": m}
    rows = {r.event_time_ms: r for r in forecasts(values, every=1, **how)}
    for t, value in enumerate(values):
        if value is not None and t >= first_ones:
            assert rows[t].expected == pytest.approx(wanted[t], rel=1e-6)
            after = rows[t].ahead[0]
            if t + 1 < len(values):
                assert after == pytest.approx(wanted[t + 1], rel=1e-6)


@pytest.mark.parametrize("seasonal", ["additive", "multiplicative"])
@pytest.mark.parametrize("missing", [1, 3, 5, 6])
def test_a_step_without_a_value_is_passed_over_also_before_there_is_a_forecast(
    seasonal: Any, missing: int
) -> None:
    values: list[float | None] = [*VALUES]
    values[missing] = None
    wanted = by_errors(values, 4, seasonal, 0.5, 0.3, 0.4, 0.9)
    how = {"alpha": 0.5, "beta": 0.3, "gamma": 0.4, "damping": 0.9, "seasonal": seasonal, "season": 4}
    rows = forecasts(values, every=1, **how)
    assert [r.expected for r in rows[1:]] == pytest.approx(wanted[8:])


@pytest.mark.parametrize("seasonal", ["additive", "multiplicative"])
def test_a_straight_line_with_a_season_is_forecast_as_it_goes_on(seasonal: Any) -> None:
    def true(t: int) -> float:
        line, s = 100 + 2.0 * t, (t * 7 % 5)
        return line + s if seasonal == "additive" else 100 * (1 + s / 10)

    how = {"season": 5, "seasonal": seasonal, "ahead": 12, "every": 1}
    there: list[float | None] = [true(t) for t in range(30)]
    there += [None] * 8 + [true(38)]
    rows = forecasts(there, **how)
    assert [r.expected for r in rows[1:]] == pytest.approx([r.value for r in rows[1:]])
    assert rows[-1].ahead == pytest.approx([true(39 + i) for i in range(12)])


def test_the_season_is_bound_to_the_clock_where_steps_have_a_length() -> None:
    """It begins at seven in the morning, and noon is high."""
    process = holt_winters(Ev, "x", season=24, every=HOUR, idle=30 * DAY, beta=None, ahead=24)
    hours = range(7, 7 + 60)
    events = [("k", h * HOUR, Ev(x=100.0 if h % 24 == 12 else 10.0)) for h in hours]
    last = run(process, events).values()[-1]
    noon = next(i for i in range(24) if (hours[-1] + 1 + i) % 24 == 12)
    assert int(np.argmax(last.ahead)) == noon
    assert last.ahead[noon] == pytest.approx(100.0)


def test_a_second_value_in_one_step_is_a_dead_letter() -> None:
    driver = TestDriver(holt_winters(Ev, "x", every=10, idle=DAY, in_order=True))
    for at in (0, 10, 11, 20):
        driver.send("k", Ev(x=float(at)), at=at)
    assert [r.event_time_ms for r in driver.values()] == [10, 20]
    assert [d["event_time_ms"] for d in driver.values("dead_letters")] == [11]


@pytest.mark.parametrize(
    ("season", "missed", "goes_on"), [(0, 10, True), (0, 11, False), (3, 30, True), (3, 31, False)]
)
def test_after_too_long_a_gap_all_begins_anew(season: int, missed: int, goes_on: bool) -> None:
    begun = [float(10 + i) for i in range(2 * max(season, 1))]
    rows = forecasts([*begun, *[None] * missed, 5.0], every=1, season=season)
    assert len(rows) == 1 + goes_on


def test_a_gap_of_more_than_a_season_before_there_is_a_forecast_begins_anew() -> None:
    assert forecasts([1.0, 2.0, 3.0, *[None] * 4, 4.0, 5.0, 6.0], every=1, season=3) == []
    assert len(forecasts([1.0, 2.0, 3.0, *[None] * 3, 4.0], every=1, season=3)) == 1


def test_a_key_begins_anew_after_it_was_idle() -> None:
    process = holt_winters(Ev, "x", idle=10, in_order=True)
    driver = run(process, [("k", at, Ev(x=1.0)) for at in (0, 5, 9, 19, 22)])
    assert [r.event_time_ms for r in driver.values()] == [5, 9, 22]
    assert driver.is_empty()


@pytest.mark.parametrize(
    ("x", "seasonal"), [(math.inf, "additive"), (0.0, "multiplicative"), (-1.0, "multiplicative")]
)
def test_what_cannot_be_part_of_the_series_is_a_dead_letter(x: float, seasonal: Any) -> None:
    driver = TestDriver(holt_winters(Ev, "x", season=2, seasonal=seasonal, idle=DAY, in_order=True))
    for at, value in enumerate([1.0, 2.0, x, 1.0, 2.0, 1.0]):
        driver.send("k", Ev(x=value), at=at)
    assert len(driver.values()) == 2
    assert len(driver.values("dead_letters")) == 1


def test_what_a_window_gives_is_forecast_in_a_chain() -> None:
    class Sale(msgspec.Struct):
        shop: str
        amount: float

    hourly = window(Sale, tumbling(HOUR), key="of").aggregate(total=sum_of("amount"), shop=first("shop"))
    ahead = holt_winters(hourly.output_type, "total", every=HOUR, idle=DAY, key="shop")
    chain = MemoryChain(hourly, ("shop", ahead))
    out = []
    for half_hour in range(12):
        out += chain.run_batch([("s", half_hour * HOUR // 2, Sale("s", float(half_hour // 2)))])
    out += chain.drain()
    rows = [msgspec.json.decode(e.payload) for e in out]
    assert [r["value"] for r in rows] == [2.0, 4.0, 6.0, 8.0, 10.0]
    assert rows[-1]["ahead"] == pytest.approx([12.0])
    assert chain.is_empty()


SERIES = st.lists(
    st.tuples(st.sampled_from(["k1", "k2"]), st.integers(0, 100), st.builds(Ev, x=st.floats(1, 9))),
    max_size=30,
    unique_by=lambda e: (e[0], e[1] // 4),
)


@examples(12)
@given(events=SERIES, seed=st.integers(0, 1_000), season=st.sampled_from([0, 2, 3]))
def test_forecasts_do_not_hang_on_how_events_are_brought(events: Any, seed: int, season: int) -> None:
    process = holt_winters(Ev, "x", season=season, seasonal="multiplicative", every=4, idle=1_000, keep="v")
    invariant(process, events, bound_ms=30, runs=4, seed=seed)
    assert leaks(process, events, bound_ms=30) == []


def test_what_is_kept_of_a_key_is_its_season_and_little_more() -> None:
    driver = TestDriver(holt_winters(Ev, "x", season=24, idle=DAY, in_order=True))
    sizes = []
    for at in range(200):
        driver.send("k", Ev(x=1.0 + at % 24), at=at)
        kept = driver.state("k")
        assert kept is not None
        known = kept["known"][1]
        sizes.append(len(known.begun) + (len(known.series.season) if known.series else 0))
    assert max(sizes) == 47
    assert set(sizes[48:]) == {24}


def test_without_statsmodels_a_fit_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "statsmodels.tsa.holtwinters", None)
    monkeypatch.setitem(sys.modules, "statsmodels", None)
    with pytest.raises(UserError, match="needs statsmodels"):
        fit_holt_winters(VALUES, season=4)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"of": "kind"}, "holt_winters needs a number"),
        ({"season": 1}, "a season has at least 2 steps"),
        ({"season": 2.5}, "season is a whole number"),
        ({"seasonal": "both"}, "seasonal is 'additive' or 'multiplicative'"),
        ({"alpha": 0.0}, "alpha is in"),
        ({"beta": 1.1}, "beta is in"),
        ({"damping": -1.0}, "damping is in"),
        ({"ahead": 0}, "ahead is a whole number of at least 1"),
        ({"every": 0}, "every must be positive"),
        ({"keep": "nope"}, "no field 'nope'"),
    ],
)
def test_what_contradicts_itself_is_refused_in_one_line(arguments: dict[str, Any], says: str) -> None:
    given_ = {"of": "x", "idle": DAY, **arguments}
    with pytest.raises(UserError, match=says) as refused:
        holt_winters(Ev, given_.pop("of"), **given_)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"values": [1.0] * 7, "season": 4}, "needs 8 values"),
        ({"values": [1.0] * 3}, "needs 4 values"),
        ({"values": [0.0] * 8, "season": 4, "seasonal": "multiplicative"}, "takes positive values"),
        ({"values": VALUES, "season": 4, "seasonal": "both"}, "seasonal is 'additive' or"),
    ],
)
def test_a_series_that_cannot_be_fitted_is_refused_in_one_line(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        fit_holt_winters(**arguments)
