"""What looks ahead: nothing from the future, nothing that grows, nothing lost."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pytest

from millrace.errors import UserError
from millrace.operators import fit_chart
from millrace.testing import TestDriver
from millrace_apps.iot_maintenance.alarms.rule import AlarmRule, Level
from millrace_apps.iot_maintenance.contracts.records import EnrichedReading
from millrace_apps.iot_maintenance.evaluation.stream import Sent, settings_for
from millrace_apps.iot_maintenance.foresight import condition
from millrace_apps.iot_maintenance.foresight.alarming import Ruling
from millrace_apps.iot_maintenance.foresight.baseline import Baseline, Usual, fitted, read_baseline
from millrace_apps.iot_maintenance.foresight.condition import FIRST, LONG, MIDDLE, SHORT, Awaited, Life
from millrace_apps.iot_maintenance.foresight.distribution import Calibration
from millrace_apps.iot_maintenance.foresight.models import ComponentRisks, Forecaster, Told
from millrace_apps.iot_maintenance.foresight.process import Foresight, Looking
from millrace_apps.iot_maintenance.processes.anomalies import Scoring
from millrace_apps.iot_maintenance.processes.forecasts import Forecasting
from millrace_apps.iot_maintenance.processes.liveness_monitor import Monitoring
from millrace_apps.iot_maintenance.processes.machine_health import Charts
from millrace_apps.iot_maintenance.processes.monitor import MachineMonitor
from millrace_apps.iot_maintenance.topology import topology
from tests.unit.apps.iot_maintenance import monitor_cases
from tests.unit.apps.iot_maintenance.foresight_cases import (
    HOUR,
    START,
    TABLES,
    errors_of,
    publish_both,
    streamed,
    wearing,
)
from tests.unit.apps.iot_maintenance.monitor_cases import DAY, equipment, rule
from tests.unit.apps.iot_maintenance.test_kpis import fleet_day


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


def test_machines_with_clocks_of_their_own_have_the_same_features() -> None:
    events = wearing(3)
    assert streamed(events) == streamed(events, "monitor.clock=key", "monitor.patience=3h")


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


def test_several_points_of_a_quantity_are_looked_at_apart() -> None:
    driver = TestDriver(Foresight(Looking()))
    for n, (point, value) in enumerate([("front", 50.0), ("back", 90.0)]):
        row = EnrichedReading(
            f"r{n}", f"s{n}", "m1", "heat", value, "1", START, 0, False, False, "good", "", "running", START,
            "pump", {}, {}, {}, {}, point=point,
        )  # fmt: skip
        driver.send("m1", row, at=START, input="readings")
    driver.advance_watermark(START)
    assert set(driver.state("m1")["life"].points) == {"heat@front", "heat@back"}


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


class Saying:
    """Says of every step that fifty hours remain, and that a seal may fail."""

    def __init__(self) -> None:
        self.kept = errors_of()

    def life(self, features: dict[str, float]) -> Told:
        return Told(50.0, self.kept.spread(50.0), self.kept.ceiling, "1")

    def risks(self, features: dict[str, float]) -> ComponentRisks:
        return ComponentRisks({"seal": 0.2, "bearing": 0.1}, 24.0, "1")

    def calibration(self) -> Calibration:
        return self.kept


def test_all_that_is_foreseen_adds_2_kib_a_machine_and_1_kib_a_point_and_stays_there() -> None:
    """Scores, limits, T² and Q, features, forecasts and an alarm of them, beside what is kept without them.

    A machine of six points in the second month as in the first; what it is held against is kept nowhere.
    """
    sensors = tuple(f"quantity{n}" for n in range(6))
    rng = np.random.default_rng(1)
    rows = {word: rng.normal(50, 1, (200, 6)).tolist() for word in ("running", "idle")}
    charts = Charts({"pump": fit_chart(rows, sensors)})
    hot = rule(quantities=("quantity0",))
    told = Monitoring(rules=(hot,), sensor_least_ms=10 * DAY, foresees=True)
    soon = AlarmRule("soon", (Level(when="risk('seal') > 0.1"),), source="foresight")
    off = TestDriver(MachineMonitor(told, Scoring(enabled=False), Forecasting(enabled=False)))
    on = TestDriver(MachineMonitor(told, Scoring(), Forecasting(), charts))
    saying: Any = Saying()
    ahead = TestDriver(Foresight(Looking(forecaster=saying), Ruling((soon,))))
    sizes, seen = [], 0
    for day in range(60):
        events = fleet_day(1, day) if day else [equipment(0, "pump", machine=MACHINE), *fleet_day(1, 0)]
        for driver in (off, on):
            driver.send_batch(events)
            driver.advance_watermark(monitor_cases.START + (day + 1) * DAY - HOUR)
        readings = on.values()
        for row in readings[seen:]:
            ahead.send(MACHINE, row, at=row.event_time_ms, input="readings")
        seen = len(readings)
        ahead.advance_watermark(monitor_cases.START + (day + 1) * DAY - HOUR)
        sizes.append(bytes_of(on) + bytes_of(ahead) - bytes_of(off))
    assert on.values("scores")
    assert on.values("machine_health")
    assert len(ahead.state(MACHINE)["life"].awaited) == 8
    assert ahead.values("alarms")[-1].active
    assert max(sizes) <= 2_048 + 6 * 1_024
    assert max(sizes[30:]) <= 1.05 * max(sizes[15:30])


MACHINE = "p01-l01-m000"


def bytes_of(driver: TestDriver) -> int:
    """What is kept of the one machine, as it is kept."""
    driver.snapshot()
    (cell,) = driver.host.store.cells.values()
    return len(cell.body)


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


def test_a_state_hangs_on_its_steps_and_its_baseline() -> None:
    usual = ({"heat": Usual(50.0, 5.0)},)
    told = [
        Foresight(looking).describe()
        for looking in (
            Looking(),
            Looking(every_ms=HOUR // 2),
            Looking(baseline=Baseline(usual=usual)),
            Looking(baseline=Baseline(usual=({"heat": Usual(51.0, 5.0)},))),
        )
    ]
    assert all(one != other for n, one in enumerate(told) for other in told[:n])


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


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"scale": (1.0, 1.0)}, "a scale, and a number of each centre"),
        ({"centres": ((0.0, 1.0), (10.0,))}, "a scale, and a number of each centre"),
        ({"centres": ()}, "a scale, and a number of each centre"),
        ({"by": (), "centres": (), "scale": ()}, "0 regimes, and what is usual in 2"),
        ({"usual": ({},)}, "2 regimes, and what is usual in 1"),
        ({"scale": (0.0,)}, "above 0"),
        ({"usual": ({}, {"heat": Usual(50.0, 0.0)})}, "above 0"),
    ],
)
def test_a_baseline_that_contradicts_itself_is_refused_at_the_start(
    tmp_path: Path, change: dict[str, Any], why: str
) -> None:
    right = Baseline(("load",), ((0.0,), (10.0,)), (1.0,), ({}, {"heat": Usual(50.0, 5.0)}))
    path = tmp_path / "b.json"
    path.write_bytes(msgspec.json.encode(right))
    assert read_baseline(str(path)) == right
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(right, **change)))
    with pytest.raises(UserError, match=f"is no baseline: .*{why}"):
        read_baseline(str(path))


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
