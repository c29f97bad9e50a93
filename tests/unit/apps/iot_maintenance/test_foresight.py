"""What looks ahead: nothing from the future, nothing that grows, nothing lost."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import ExtraTreesRegressor, HistGradientBoostingRegressor, VotingRegressor

from apps.iot_maintenance.evaluation.stream import Sent, run, settings_for, written
from apps.iot_maintenance.foresight import condition
from apps.iot_maintenance.foresight.baseline import Baseline, Usual, fitted, read_baseline
from apps.iot_maintenance.foresight.condition import FIRST, LONG, MIDDLE, SHORT, Awaited, Life
from apps.iot_maintenance.foresight.distribution import (
    LEVELS,
    Adaptive,
    Calibration,
    calibrated,
    level_of,
    value_at,
)
from apps.iot_maintenance.foresight.lifetimes import Lifetimes, Promises
from apps.iot_maintenance.foresight.models import Forecaster, calibration_of, risk_rows
from apps.iot_maintenance.foresight.process import Foresight, Looking
from apps.iot_maintenance.foresight.records import LifeForecast, LifeTruth
from apps.iot_maintenance.foresight.training import fold_of, learnable
from apps.iot_maintenance.foresight.trees import Boosted, Risks
from apps.iot_maintenance.pipeline import topology
from apps.iot_maintenance.records import EnrichedReading
from millrace.errors import UserError
from millrace.models.manifest import BrokenModel
from millrace.models.tables import CannotTrain
from millrace.testing import TestDriver
from tests.unit.apps.iot_maintenance.foresight_cases import (
    HOUR,
    SMALL,
    START,
    errors_of,
    learned,
    publish_both,
    risky,
    wearing,
)

TABLES = ["machine_features", "risks", "remaining_life", "maintenance_plan", "maintenance"]


def streamed(events: list[Sent], *overrides: str, batch: int = 500) -> dict[str, list[dict[str, Any]]]:
    """The tables after events went through the whole topology in memory."""
    with written([]) as fleet:
        told = [f"monitor.fleet={fleet}", "monitor.judge=false", "monitor.sensor_least=30d"]
        settings = settings_for([*told, "monitor.grace=0s", "foresight.on=true", *overrides])
        tables = run(events, settings, TABLES, engine="memory", batch=batch).rows
    for rows in tables.values():
        rows.sort(key=lambda row: (row["machine_id"], row["event_time_ms"]))
    return tables


def by_pandas(values: list[float]) -> pd.DataFrame:
    """The features of one point, computed over the whole series by pandas."""
    series = pd.Series(values)
    means = {span: series.ewm(span=span, adjust=True).mean() for span in (SHORT, MIDDLE, LONG)}
    first = pd.Series([series[: min(n + 1, FIRST)].mean() for n in range(len(series))])
    return pd.DataFrame(
        {
            f"heat.mean_{SHORT}": means[SHORT],
            f"heat.mean_{MIDDLE}": means[MIDDLE],
            f"heat.mean_{LONG}": means[LONG],
            f"heat.spread_{LONG}": series.ewm(span=LONG, adjust=True).std(bias=True).fillna(0.0),
            "heat.change": means[SHORT] - first,
            "heat.slope": means[SHORT] - means[LONG],
            "heat.drift": means[MIDDLE] - means[LONG],
        }
    )


def test_streamed_features_are_those_of_pandas_over_the_whole_series() -> None:
    events = wearing(3)
    rows = streamed(events)["machine_features"]
    for machine in ("m0", "m1", "m2"):
        values = [
            s.event.value
            for s in events
            if s.topic == "readings" and s.event.machine_id == machine and s.event.quantity == "heat"
        ]
        wanted = by_pandas(values)
        mine = [row for row in rows if row["machine_id"] == machine]
        assert len(mine) == len(wanted)
        for name in wanted:
            found = [row["features"][name] for row in mine]
            assert np.allclose(found, wanted[name], rtol=1e-9, atol=1e-9), name


@pytest.mark.parametrize("cut", [30, 117, 260])
def test_a_prefix_has_the_features_of_the_whole(cut: int) -> None:
    events = wearing(4)
    whole, part = streamed(events)["machine_features"], streamed(events[:cut])["machine_features"]
    last = events[cut - 1].event.event_time_ms
    early = [row for row in part if row["event_time_ms"] < last]
    assert early == [row for row in whole if row["event_time_ms"] < last]
    assert early


def test_what_comes_later_changes_nothing_before_it() -> None:
    events = wearing(4)
    middle = len(events) // 2
    at = events[middle].event.event_time_ms
    wrong = [
        Sent(s.topic, msgspec.structs.replace(s.event, value=9e9))
        if s.topic == "readings" and s.event.event_time_ms > at
        else s
        for s in events
    ]
    before, after = streamed(events)["machine_features"], streamed(wrong)["machine_features"]
    assert [r for r in before if r["event_time_ms"] <= at] == [r for r in after if r["event_time_ms"] <= at]
    assert before != after


@pytest.mark.parametrize("batch", [1, 37, 10_000])
def test_tables_do_not_depend_on_where_batches_are_cut(batch: int, tmp_path: Path) -> None:
    events = wearing(4)
    publish_both(tmp_path, streamed(events)["machine_features"], events)
    found = [streamed(events, f"foresight.exports={tmp_path}", batch=size) for size in (batch, 200)]
    for name in TABLES:
        key = msgspec.json.Encoder(order="deterministic").encode
        one, other = (sorted(map(key, tables[name])) for tables in found)
        assert one == other
        assert one, name


def test_a_failure_ends_a_life_and_judges_its_forecasts(tmp_path: Path) -> None:
    events = wearing(6)
    publish_both(tmp_path, streamed(events)["machine_features"], events)
    tables = streamed(events, f"foresight.exports={tmp_path}")
    lives = tables["remaining_life"]
    ends = {s.event.machine_id: s.event.event_time_ms for s in events if s.topic == "maintenance"}
    assert {(r["machine_id"], r["event_time_ms"]) for r in lives} == {
        (s.event.machine_id, s.event.event_time_ms) for s in events if s.topic == "readings"
    }
    assert len(lives) == len({(r["machine_id"], r["event_time_ms"]) for r in lives})
    assert max(r["judged"] for r in lives) == 5  # that of the last machine has no forecast after it
    for row in lives:
        assert 0 <= row["low_h"] <= row["high_h"] <= row["ceiling_h"]
        assert row["judged"] <= sum(end <= row["event_time_ms"] for end in ends.values())
    assert {(r["component"], r["horizon_h"]) for r in tables["risks"]} == {("pump", 24.0), ("seal", 24.0)}
    assert all(0 <= r["probability"] <= 1 for r in tables["risks"])
    assert all(r["latest_ms"] >= r["event_time_ms"] for r in tables["maintenance_plan"])
    assert {r["reason"] for r in tables["maintenance_plan"]} == {"remaining life", "risk"}
    near = [r["remaining_h"] for r in lives if ends[r["machine_id"]] - r["event_time_ms"] <= 3 * HOUR]
    assert np.mean(near) < 0.5 * np.mean([r["remaining_h"] for r in lives])
    assert len(tables["maintenance"]) == 6


def test_a_machine_that_never_fails_keeps_a_few_forecasts(tmp_path: Path) -> None:
    events = wearing(3)
    publish_both(tmp_path, streamed(events)["machine_features"], events)
    driver = TestDriver(Foresight(Looking(forecaster=Forecaster(str(tmp_path)))))
    for hour in range(1, 260):
        at = START + hour * HOUR
        row = EnrichedReading(
            f"r{hour}", "s", "m1", "heat", 50.0, "1", at, 0, False, False, "good", "", "running", at, "pump",
            {}, {}, {}, {},
        )  # fmt: skip
        driver.send("m1", row, at=at, input="readings")
    driver.advance_watermark(at)
    assert len(driver.values("forecasts")) == 259
    assert len(driver.state("m1")["life"].awaited) == 8
    driver.drain()  # and a machine that nothing is heard of is forgotten
    assert driver.is_empty()


def test_a_new_life_begins_after_a_repair() -> None:
    events = wearing(1, shortest=50, longest=50)
    again = [
        Sent(
            s.topic,
            msgspec.structs.replace(
                s.event, event_time_ms=s.event.event_time_ms + 60 * HOUR, reading_id=f"{s.event.reading_id}b"
            ),
        )
        for s in events
        if s.topic == "readings"
    ]
    rows = streamed(events + again)["machine_features"]
    assert {row["begun_ms"] for row in rows} == {START + HOUR, START + 51 * HOUR}
    fresh = next(row for row in rows if row["begun_ms"] == START + 51 * HOUR)
    assert fresh["features"]["heat.change"] == pytest.approx(0.0, abs=1e-9)
    assert fresh["features"]["heat.slope"] == pytest.approx(0.0, abs=1e-9)


def test_without_models_features_are_told_and_nothing_is_foreseen() -> None:
    tables = streamed(wearing(2))
    assert tables["machine_features"]
    assert not any(tables[name] for name in ("remaining_life", "risks", "maintenance_plan"))


def test_models_that_do_not_fit_are_refused_and_the_stream_goes_on(tmp_path: Path) -> None:
    events = wearing(3)
    rows = streamed(events)["machine_features"]
    publish_both(tmp_path, rows, events)
    for file in (tmp_path / "iot-life").glob("*.skops"):
        file.write_bytes(file.read_bytes()[:-9])
    tables = streamed(events, f"foresight.exports={tmp_path}")
    assert not tables["remaining_life"]
    assert len(tables["risks"]) == 2 * len(tables["machine_features"])
    assert {r["reason"] for r in tables["maintenance_plan"]} == {"risk"}


# -- state ---------------------------------------------------------------------------------------


def full_life() -> Life:
    """A machine with as much as is kept of one with 21 sensors."""
    rng = random.Random(1)
    life = Life(begun=START)
    names = [f"s{n}" for n in range(1, 22)]
    usual = {name: Usual(500.0, 0.7) for name in names if int(name[1:]) not in (1, 5, 10, 16, 18, 19)}
    keys = ("op1", "op2", "op3")
    flight = Baseline(keys, tuple((float(n), n / 10, 100.0) for n in range(6)), (1.0, 1.0, 1.0), (usual,) * 6)
    for step in range(300):
        life.due = START + step * HOUR
        for name in (*names, *keys):
            if flight.wants(name):
                life.take(name, rng.gauss(500, 1) if name in usual else 1.0)
        errors = {f"error{n}": 3 for n in range(40)}
        replaced = {f"component{n}": START + n for n in range(40)}
        attributes = {f"attribute{n}": "x" * (n + 10) for n in range(60)}
        life.know("turbofan", errors, replaced, attributes)
        life.close(flight)
        life.awaited.append(Awaited(START + step * HOUR, 100.123))
        del life.awaited[:-8]
    life.due = START + 301 * HOUR
    return life


def test_what_is_kept_of_a_machine_stays_below_2_kib() -> None:
    life = full_life()
    assert len(life.points) == 18
    assert len(msgspec.msgpack.encode(life)) <= 2_048


def test_points_and_facts_beyond_the_bounds_are_left_out() -> None:
    life = Life(begun=0)
    for number in range(1_000):
        life.take(f"q{number}", 1.0)
    life.know("", {f"e{n}": 1 for n in range(99)}, {f"c{n}": 1 for n in range(99)}, {"long": "x" * 500})
    assert len(life.points) == condition.MOST_POINTS
    assert len(life.errors) == len(life.replaced) == condition.MOST_FACTS
    assert life.attributes == {}


def test_attributes_are_numbers_or_that_they_are_so() -> None:
    life = Life(begun=0, due=24 * HOUR)
    life.know("", {"e1": 2}, {"pump": 0}, {"age": "7", "model": "m3", "odd": "inf"})
    assert life.close(Baseline()) == {
        "age_h": 24.0,
        "most.slope": 0.0,
        "most.second": 0.0,
        "most.change": 0.0,
        "errors.e1": 2.0,
        "errors": 2.0,
        "days_since.pump": 1.0,
        "parts.newest": 1.0,
        "parts.oldest": 1.0,
        "is.age": 7.0,
        "is.model=m3": 1.0,
        "is.odd=inf": 1.0,
    }


# -- regimes -------------------------------------------------------------------------------------


def flights(rows: int = 3_000, seed: int = 2) -> dict[str, Any]:
    """Six conditions, and a sensor that says what it says because of them."""
    rng = np.random.default_rng(seed)
    at = rng.integers(0, 6, rows)
    middle = np.array(
        [[0, 0, 100], [10, 0.25, 100], [20, 0.7, 100], [25, 0.62, 60], [35, 0.84, 100], [42, 0.84, 100]]
    )
    keys = middle[at] + rng.normal(0, [0.003, 0.0003, 0.0], (rows, 3))
    hidden = rng.normal(0, 1, rows)
    return {
        "op1": keys[:, 0], "op2": keys[:, 1], "op3": keys[:, 2], "at": at, "hidden": hidden,
        "s1": 500 + 80.0 * at + (1 + at) * hidden,
    }  # fmt: skip


def test_regimes_are_found_and_values_are_scored_by_them() -> None:
    table = flights()
    found = fitted(("op1", "op2", "op3"), ["s1"], table)
    assert len(found.usual) == 6
    for row in range(200):
        values = {name: float(table[name][row]) for name in ("op1", "op2", "op3", "s1")}
        assert found.scores(values)["s1"] == pytest.approx(table["hidden"][row], abs=0.2)
    assert found.scores({"s1": 500.0}) == {}  # what tells the regime is not there


def test_noise_in_the_conditions_is_one_regime() -> None:
    rng = np.random.default_rng(0)
    noise = {"op1": rng.normal(0, 0.002, 900), "op2": rng.normal(0, 3e-4, 900), "op3": np.full(900, 100.0)}
    found = fitted(("op1", "op2", "op3"), ["s1"], {**noise, "s1": rng.normal(5, 2, 900)})
    assert (found.by, len(found.usual)) == ((), 1)
    assert found.scores({"s1": 7.0, "other": 1.0}) == {"s1": pytest.approx(1.0, abs=0.2)}


def test_a_baseline_is_read_from_its_file_alone(tmp_path: Path) -> None:
    made = Baseline((), (), (), ({"heat": Usual(50.0, 5.0)},))
    path = tmp_path / "b.json"
    path.write_bytes(msgspec.json.encode(made))
    assert read_baseline(str(path)) == made
    assert read_baseline("") == Baseline()
    path.write_text("[]")
    with pytest.raises(UserError, match="is no baseline"):
        read_baseline(str(path))


# -- intervals -----------------------------------------------------------------------------------


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


def test_a_forecaster_without_exports_says_nothing(tmp_path: Path) -> None:
    asked = Forecaster(str(tmp_path / "none"))
    assert asked.life({}) is None
    assert asked.risks({}) is None
    assert asked.calibration() is None


def test_the_topology_is_the_one_before_unless_the_app_looks_ahead() -> None:
    off, on = (topology(settings_for([f"foresight.on={value}"])) for value in ("false", "true"))
    assert [link.name for link in off.links] == ["MachineMonitor", "PlantMonitor"]
    assert [link.name for link in on.links] == ["MachineMonitor", "Foresight", "Lifetimes", "PlantMonitor"]
    assert set(off.tables) < set(on.tables)


def test_levels_are_symmetric() -> None:
    assert [round(1 - level, 4) for level in reversed(LEVELS)] == list(LEVELS)
    assert replace(Promises(), early=2.0).share == pytest.approx(2 / 11)
    assert SMALL.rounds == 12
