"""Forecasts and change detectors beside statsmodels and river, value by value, where these are installed.

What the two gave for fixed series stands in ``test_operators_forecast.py`` and ``test_operators_drift.py``.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from millrace.operators import adwin, fit_holt_winters, page_hinkley
from millrace.operators.series import Smoothness
from tests.unit.millrace.operators.test_drift import levels, places
from tests.unit.millrace.operators.test_forecast import VALUES, forecasts


@pytest.mark.parametrize("season", [0, 4])
@pytest.mark.parametrize("seasonal", ["additive", "multiplicative"])
@pytest.mark.parametrize("trend", [False, True])
@pytest.mark.parametrize("damping", [1.0, 0.8])
def test_forecasts_are_those_of_statsmodels(season: int, seasonal: Any, trend: bool, damping: float) -> None:
    how = Smoothness(0.4, 0.2 if trend else None, 0.3, damping, season, seasonal)
    begun = how.begin(VALUES[: how.first], 0)
    damped = trend and damping < 1
    model = pytest.importorskip("statsmodels.tsa.holtwinters").ExponentialSmoothing(
        VALUES,
        trend="add" if trend else None,
        damped_trend=damped,
        seasonal=seasonal[:3] if season else None,
        seasonal_periods=season or None,
        initialization_method="known",
        initial_level=begun.level,
        initial_trend=begun.trend if trend else None,
        initial_seasonal=begun.season or None,
    )
    fitted = model.fit(
        smoothing_level=0.4,
        smoothing_trend=0.2 if trend else None,
        smoothing_seasonal=0.3 if season else None,
        damping_trend=damping if damped else None,
        optimized=False,
    ).fittedvalues
    rows = forecasts(
        VALUES, season=season, seasonal=seasonal, alpha=0.4, beta=how.beta, gamma=0.3, damping=damping
    )
    assert [r.expected for r in rows[1:]] == pytest.approx(list(fitted)[how.first :])


@pytest.mark.parametrize("seasonal", ["additive", "multiplicative"])
def test_forecasts_are_those_of_river(seasonal: Any) -> None:
    model = pytest.importorskip("river.time_series").HoltWinters(
        alpha=0.4, beta=0.2, gamma=0.3, seasonality=4, multiplicative=seasonal == "multiplicative"
    )
    begun = Smoothness(0.4, 0.2, 0.3, 1.0, 4, seasonal).begin(VALUES[:8], 0)
    model.level.append(begun.level)
    model.trend.append(begun.trend)
    model.season.extend(begun.season)
    model._initialized = True
    for value in VALUES:
        model.learn_one(value)
    rows = forecasts(VALUES, season=4, seasonal=seasonal, alpha=0.4, beta=0.2, gamma=0.3, ahead=6)
    assert rows[-1].ahead == pytest.approx(model.forecast(6))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("direction", ["both", "up", "down"])
def test_page_hinkley_is_that_of_river(seed: int, direction: Any) -> None:
    values = levels(0, 2, -1, 5, seed=seed)
    other = pytest.importorskip("river.drift").PageHinkley(
        min_instances=20, delta=0.1, threshold=15, mode=direction
    )
    wanted = []
    for i, x in enumerate(values):
        other.update(x)
        if other.drift_detected:
            wanted.append(i)
    assert places(page_hinkley(threshold=15, delta=0.1, min_n=20, direction=direction), values) == wanted


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("every", "buckets", "min_side"), [(1, 5, 5), (32, 5, 5), (8, 3, 10)])
def test_adwin_is_that_of_river_until_it_begins_anew(
    seed: int, every: int, buckets: int, min_side: int
) -> None:
    """River forgets the newer part of the window too, so that only the first change can be compared."""
    values = levels(0, 2, -1, 5, seed=seed)
    other = pytest.importorskip("river.drift").ADWIN(
        clock=every, max_buckets=buckets, min_window_length=min_side
    )
    first = None
    for i, x in enumerate(values):
        other.update(x)
        if other.drift_detected:
            first = i
            break
    assert places(adwin(every=every, buckets=buckets, min_side=min_side), values)[0] == first


def test_arguments_can_be_fitted_to_a_past_series() -> None:
    rng = np.random.default_rng(3)
    past = [50 + 0.5 * t + 10 * math.sin(2 * math.pi * t / 6) + rng.normal(0, 2) for t in range(120)]
    fitted = fit_holt_winters(past, season=6)

    def squares(**how: Any) -> float:
        return sum(r.error**2 for r in forecasts(past, **how)[1:])

    assert squares(**fitted) < squares(season=6)
