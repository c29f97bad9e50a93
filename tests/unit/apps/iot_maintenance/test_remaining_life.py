"""Intervals that hold, plans that cost the least, and trees that are checked before they are followed."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import ExtraTreesRegressor, HistGradientBoostingRegressor, VotingRegressor

from millrace.models.boosted import Boosted
from millrace.models.manifest import BrokenModel
from millrace.models.tables import CannotTrain
from millrace.testing import TestDriver
from millrace_apps.iot_maintenance.foresight.distribution import (
    LEVELS,
    Adaptive,
    Calibration,
    calibrated,
    level_of,
    value_at,
)
from millrace_apps.iot_maintenance.foresight.lifetimes import Lifetimes, Promises
from millrace_apps.iot_maintenance.foresight.models import calibration_of, risk_rows
from millrace_apps.iot_maintenance.foresight.records import LifeForecast, LifeTruth
from millrace_apps.iot_maintenance.foresight.training import fold_of, learnable
from millrace_apps.iot_maintenance.foresight.trees import Risks
from tests.unit.apps.iot_maintenance.foresight_cases import (
    HOUR,
    SMALL,
    errors_of,
    learned,
    risky,
    streamed,
    wearing,
)


def test_intervals_of_the_calibration_hold_for_what_is_alike() -> None:
    kept = errors_of()
    rng = np.random.default_rng(9)
    truths = rng.uniform(0, 100, 4_000)
    forecasts = np.clip(truths + rng.normal(0, 10, 4_000), 0, 100)
    inside = 0
    for forecast, truth in zip(forecasts.tolist(), truths.tolist(), strict=True):
        values = kept.spread(forecast)
        assert values == sorted(values)
        inside += value_at(values, 0.05, 100.0) <= truth <= value_at(values, 0.95, 100.0)
    assert 0.88 <= inside / 4_000 <= 0.92


def test_intervals_are_narrow_where_forecasts_are_good() -> None:
    rng = np.random.default_rng(2)
    truths = rng.uniform(0, 100, 6_000)
    kept = calibrated(truths + rng.normal(0, 1 + truths / 5), truths, 130.0)
    narrow, wide = (
        value_at(values, 0.95, 130.0) - value_at(values, 0.05, 130.0)
        for values in (kept.spread(10.0), kept.spread(85.0))
    )
    assert narrow < 0.5 * wide


def test_a_level_is_where_its_value_is() -> None:
    kept, rng = errors_of(), random.Random(4)
    for _ in range(10_000):
        values = kept.spread(rng.uniform(20, 80))
        level = rng.uniform(0.0, 1.0)
        value = value_at(values, level, kept.ceiling)
        if 0 < value < kept.ceiling and len(set(values)) == len(values):
            assert level_of(values, value, kept.ceiling) == pytest.approx(level, abs=1e-9)
    assert value_at(kept.spread(50.0), -0.1, kept.ceiling) == 0.0
    assert value_at(kept.spread(50.0), 1.2, kept.ceiling) == kept.ceiling


def drifting(rate: float) -> float:
    """Coverage of the last 600 of 1,000 lives whose forecasts are off three times as much as they were."""
    kept, adaptive = errors_of(), Adaptive(0.05, 0.05)
    rng = np.random.default_rng(5)
    inside = total = 0
    for life in range(1_000):
        levels = []
        for _ in range(4):
            truth = float(rng.uniform(1, 99))
            forecast = float(np.clip(truth + rng.normal(12, 30), 0, 100))
            values = kept.spread(forecast)
            low, high = adaptive.interval(values, kept.ceiling)
            if life >= 400:
                inside += low <= truth <= high
                total += 1
            levels.append(level_of(values, truth, kept.ceiling))
        adaptive.learn(levels, miss=0.1, rate=rate)
    return inside / total


def test_intervals_hold_under_drift_because_they_follow_it() -> None:
    assert drifting(0.0) < 0.75
    assert 0.87 <= drifting(0.05) <= 0.93


def forecast(at: int, hours: float, kept: Calibration, **more: Any) -> LifeForecast:
    return LifeForecast("m1", "pump", at, hours, kept.spread(hours), kept.ceiling, "1", **more)


def test_an_interval_is_wider_after_lives_that_it_missed() -> None:
    kept, driver = errors_of(), TestDriver(Lifetimes(Promises()))
    driver.send("pump", forecast(1, 50.0, kept), at=1, input="forecasts")
    for at in range(2, 8):
        driver.send("pump", LifeTruth("m2", "pump", at, "seal", [0.001, 0.01, 0.02]), at=at, input="truths")
    driver.send("pump", forecast(9, 50.0, kept), at=9, input="forecasts")
    driver.drain()
    before, after = driver.values()
    assert after.low_h < before.low_h
    assert (before.judged, after.judged) == (0, 6)
    assert after.high_h <= before.high_h  # the other side has missed nothing


@pytest.mark.parametrize(("early", "late"), [(1.0, 9.0), (1.0, 1.0), (5.0, 1.0)])
def test_the_date_of_a_plan_costs_the_least(early: float, late: float) -> None:
    kept, promises = errors_of(), Promises(early=early, late=late)
    driver = TestDriver(Lifetimes(promises))
    driver.send("pump", forecast(0, 55.0, kept), at=0, input="forecasts")
    driver.drain()
    (plan,) = driver.values("plans")
    values = kept.spread(55.0)
    costs = [promises.cost(hours, values, kept.ceiling) for hours in np.arange(0.0, 100.0, 0.25)]
    assert plan.expected_cost <= min(costs) * 1.02
    assert plan.probability == pytest.approx(promises.share, abs=1e-9)
    # The same by drawing lives from the distribution.
    rng = np.random.default_rng(1)
    drawn = np.array([value_at(values, u, kept.ceiling) for u in rng.uniform(0, 1, 20_000)])
    hours = plan.latest_ms / HOUR
    cost = np.where(drawn > hours, early * (drawn - hours), late * (hours - drawn)).mean()
    assert plan.expected_cost == pytest.approx(cost, rel=0.05)


@pytest.mark.parametrize("seed", range(20))
def test_a_plan_by_the_interval_is_for_its_begin_as_what_came_true_has_moved_it(seed: int) -> None:
    rng = random.Random(seed)
    kept = errors_of(seed=seed)
    told = Promises(
        rate=rng.choice((0.05, 0.3)), early=rng.uniform(0.5, 3), late=rng.uniform(1, 9), by_interval=True
    )
    by_interval, by_cost = (
        TestDriver(Lifetimes(told)),
        TestDriver(Lifetimes(replace(told, by_interval=False))),
    )
    at = 0
    for _ in range(40):
        at += HOUR
        if rng.random() < 0.5:
            event, name = LifeTruth("m", "pump", at, "seal", [rng.random() ** 3 for _ in range(4)]), "truths"
        else:
            event, name = forecast(at, rng.uniform(5, 95), kept), "forecasts"  # type: ignore[assignment]
        for driver in (by_interval, by_cost):
            driver.send("pump", event, at=at, input=name)
    for driver in (by_interval, by_cost):
        driver.drain()
    lives, plans = by_interval.values(), by_interval.values("plans")
    assert len(plans) == len(lives) > 5
    assert [life.low_h for life in lives] == [life.low_h for life in by_cost.values()]
    assert [plan.latest_ms for plan in plans] == [
        life.event_time_ms + round(life.low_h * HOUR) for life in lives
    ]
    assert {plan.reason for plan in plans} == {"interval"}
    # What is foreseen to be lost is at least what it costs by the cheapest date, and what chance there is of
    # a failure before is what the distribution has below it.
    for life, plan, cheapest in zip(lives, plans, by_cost.values("plans"), strict=True):
        assert plan.expected_cost >= cheapest.expected_cost * 0.98
        values = kept.spread(life.remaining_h)
        assert value_at(values, plan.probability, kept.ceiling) == pytest.approx(life.low_h, abs=1e-6)
    assert by_interval.values("plans") != by_cost.values("plans")


def test_a_likely_failure_brings_the_date_forward() -> None:
    kept, promises = errors_of(), Promises()
    driver = TestDriver(Lifetimes(promises))
    risk = {"component": "seal", "probability": 0.8, "horizon_h": 24.0}
    driver.send("pump", forecast(0, 90.0, kept, **risk), at=0, input="forecasts")
    driver.drain()
    (plan,) = driver.values("plans")
    assert (plan.component, plan.reason) == ("seal", "risk")
    assert plan.latest_ms == round(24 * HOUR * 0.1 / 0.8)
    costs = [promises.cost_of_risk(h, 0.8, 24.0) for h in np.arange(0.0, 24.0, 0.1)]
    assert plan.expected_cost <= min(costs) * 1.001


# -- models --------------------------------------------------------------------------------------


def test_trees_score_as_scikit_learn_does_and_one_row_as_many() -> None:
    events = wearing(5)
    rows = streamed(events)["machine_features"]
    model, examples = learned(rows, events)
    x = examples.x.copy()
    x[::7, 3] = np.nan
    mine = Boosted.of(model.estimator, x.shape[1])
    wanted = model.estimator.predict(x)
    assert np.allclose(mine.score_many(x), wanted, rtol=1e-12, atol=1e-9)
    assert [mine.score(row) for row in x[:40].tolist()] == pytest.approx(wanted[:40].tolist(), rel=1e-12)
    assert mine.score_many(x[:5].tolist()) == pytest.approx(wanted[:5], rel=1e-12)
    risk = risky(rows, events)
    asked = np.array(
        [row for r in rows for row in risk_rows(dict(r["features"]), risk.inputs)], dtype=np.float32
    )
    found = Risks.of(risk.estimator, len(risk.inputs))
    both = [part[:, 1] for part in risk.estimator.predict_proba(asked[::2, : len(risk.inputs) - 2])]
    assert np.allclose(found.score_many(asked), np.stack(both, axis=1).ravel(), rtol=1e-9)
    assert found.score(asked[3].tolist()) == pytest.approx(found.score_many(asked)[3], rel=1e-9)


def small_model() -> Any:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 3))
    return HistGradientBoostingRegressor(max_iter=3, min_samples_leaf=5).fit(x, x[:, 0])


@pytest.mark.parametrize("field", ["left", "right", "feature_idx", "value", "num_threshold"])
def test_trees_that_lead_outside_of_themselves_are_refused(field: str) -> None:
    model = small_model()
    nodes = model._predictors[1][0].nodes
    place = int(np.flatnonzero(nodes["is_leaf"] == 0)[0])
    wrong = {"left": 10_000, "right": 0, "feature_idx": 3, "value": np.inf, "num_threshold": np.nan}
    nodes[field][place] = wrong[field]
    with pytest.raises(BrokenModel, match="outside of itself"):
        Boosted.of(model, 3)


def test_other_models_are_refused() -> None:
    x = np.random.default_rng(0).normal(size=(50, 2))
    for other in (
        ExtraTreesRegressor(2).fit(x, x[:, 0]),
        VotingRegressor([("a", ExtraTreesRegressor(2))]).fit(x, x[:, 0]),
    ):
        with pytest.raises(BrokenModel):
            Boosted.of(other, 2)
    with pytest.raises(BrokenModel):
        Risks.of(small_model(), 3)
    with pytest.raises(BrokenModel):
        calibration_of({"calibration": {"centres": "x"}})


def test_machines_are_held_out_whole() -> None:
    groups = np.repeat(np.arange(11), 5)
    parts = fold_of(groups, 4, 0)
    assert set(parts) == {0, 1, 2, 3}
    assert all(len(set(parts[groups == g])) == 1 for g in range(11))
    with pytest.raises(CannotTrain, match="two at least"):
        fold_of(np.zeros(3), 4, 0)


def test_what_no_row_knows_is_nothing_to_learn_from() -> None:
    x = np.array([[np.nan, 1.0], [np.nan, np.nan]], dtype=np.float32)
    found = learnable(x)
    assert found[:, 0].tolist() == [0.0, 0.0]
    assert np.isnan(found[1, 1])


def test_levels_are_symmetric() -> None:
    assert [round(1 - level, 4) for level in reversed(LEVELS)] == list(LEVELS)
    assert replace(Promises(), early=2.0).share == pytest.approx(2 / 11)
    assert SMALL.rounds == 12
