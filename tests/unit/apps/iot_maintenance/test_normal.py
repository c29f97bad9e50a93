"""What is normal as a registered model: the same charts, by another way too; refused where it is none."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pytest
from deltalake import write_deltalake

from millrace.errors import UserError
from millrace.models.commands import Training
from millrace.models.exports import CHAMPION, Exports
from millrace.models.learner import Question, Workshop
from millrace.models.loading import LoadedModel
from millrace.models.manifest import BrokenModel
from millrace.models.tables import CannotTrain, TrainingTables
from millrace.operators.control import Chart, Regime
from millrace.runtime.settings import load_settings
from millrace.testing import TestDriver
from millrace_apps.iot_maintenance.foresight.learner import LEARNER, READING_COLUMNS, judged
from millrace_apps.iot_maintenance.foresight.model_cli import _normal
from millrace_apps.iot_maintenance.operations.health_cli import intervals
from millrace_apps.iot_maintenance.processes.anomalies import Scoring
from millrace_apps.iot_maintenance.processes.forecasts import Forecasting
from millrace_apps.iot_maintenance.processes.liveness_monitor import Monitoring
from millrace_apps.iot_maintenance.processes.machine_health import Charts, MachineHealth
from millrace_apps.iot_maintenance.processes.monitor import MachineMonitor
from millrace_apps.iot_maintenance.processes.normal import (
    NORMAL_NAME,
    NORMAL_READER,
    Registered,
    charts_of,
    estimator_of,
)
from millrace_apps.iot_maintenance.settings import IotSettings, charts
from tests.unit.apps.iot_maintenance.monitor_cases import DAY, HOUR, MINUTE, rows, until
from tests.unit.apps.iot_maintenance.test_machine_health import learned, monitor, pump


def chart_of(rng: random.Random, sensors: int, regimes: int) -> Chart:
    found = {}
    for number in range(regimes):
        kept = rng.randint(1, sensors)
        basis = np.linalg.qr(np.array([[rng.gauss(0, 1) for _ in range(sensors)] for _ in range(sensors)]))[0]
        found[f"s{number}"] = Regime(
            tuple(rng.gauss(0, 9) for _ in range(sensors)),
            tuple(rng.uniform(0.1, 5) for _ in range(sensors)),
            tuple(tuple(row) for row in basis[:kept].tolist()),
            tuple(sorted((rng.uniform(0.1, 4) for _ in range(kept)), reverse=True)),
            rng.uniform(1, 20),
            rng.uniform(0.1, 9),
            rng.randint(10, 999),
        )
    return Chart(tuple(f"q{n}" for n in range(sensors)), found)


def publish(folder: Path, made: dict[str, Chart], version: str = "1", interval_ms: int = MINUTE) -> None:
    estimator, parts = estimator_of(made)
    inputs = tuple(sorted({sensor for chart in made.values() for sensor in chart.sensors}))
    about = {"parts": msgspec.to_builtins(parts), "interval_ms": interval_ms}
    Exports(str(folder), NORMAL_NAME).publish_estimator(
        CHAMPION, estimator, version=version, inputs=inputs, kind="anomaly", about=about
    )


def read(folder: Path) -> LoadedModel:
    exports = Exports(str(folder), NORMAL_NAME)
    found = exports.find(CHAMPION)
    assert found is not None
    return NORMAL_READER.read(found.manifest, exports.data(found.manifest))


@pytest.mark.parametrize("seed", range(8))
def test_charts_are_what_they_were_after_the_registry_and_as_scikit_learn_says(
    tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    made = {f"k{n}": chart_of(rng, rng.randint(2, 5), rng.randint(1, 3)) for n in range(rng.randint(1, 3))}
    publish(tmp_path, made)
    found = charts_of(read(tmp_path))
    assert found == made
    # Another way to the same numbers: scikit-learn's own transformation.
    estimator, _ = estimator_of(made)
    place = 0
    for _, chart in sorted(made.items()):
        for name in sorted(chart.regimes):
            values = [rng.gauss(0, 5) for _ in chart.sensors]
            pipeline = estimator.transformer_list[place][1]
            place += 1
            z = pipeline.named_steps["scaler"].transform([values])
            along = pipeline.named_steps["pca"].transform(z)[0]
            t2 = float((along**2 / pipeline.named_steps["pca"].explained_variance_).sum())
            said = chart.read(name, values)
            assert said is not None
            assert said.t2 == pytest.approx(t2)


def test_machines_are_held_against_the_champion_and_its_version_is_told(tmp_path: Path) -> None:
    normal = learned()
    publish(tmp_path, normal, "7")
    by_file, by_model = monitor(by_kind=normal), registered(tmp_path)
    found = []
    for process in (by_file, by_model):
        target = TestDriver(process)
        target.send_batch(pump(3 * 60, seed=5, leak_from=100))
        until(target, 4 * HOUR)
        found.append(target.values("machine_health"))
    assert [msgspec.structs.replace(row, model="") for row in found[1]] == found[0]
    assert {row.model for row in found[1]} == {"7"}
    assert found[0]
    assert max(row.score for row in found[0]) > 0.5


def registered(folder: Path, interval_ms: int = MINUTE) -> MachineMonitor:
    from_there = Registered(str(folder), NORMAL_NAME, interval_ms, poll_s=0.01)
    how: dict[str, Any] = {"sensor_least_ms": 10 * DAY, "grace_ms": 0, "judge": False}
    off = Scoring(enabled=False), Forecasting(enabled=False)
    return MachineMonitor(Monitoring(**how), *off, Charts(interval_ms=interval_ms, registered=from_there))


def test_a_new_champion_takes_over_while_the_stream_runs_and_loses_no_interval(tmp_path: Path) -> None:
    import time

    normal = learned()
    publish(tmp_path, normal, "1")
    source = Registered(str(tmp_path), NORMAL_NAME, MINUTE, poll_s=0.01)
    assert source.of("pump")[1] == "1"
    target = TestDriver(registered(tmp_path))
    target.send_batch(pump(60, seed=5))
    until(target, HOUR)
    wider = {
        regime: msgspec.structs.replace(known, t2_limit=2 * known.t2_limit)
        for regime, known in normal["pump"].regimes.items()
    }
    publish(tmp_path, {"pump": Chart(normal["pump"].sensors, wider)}, "2")
    end = time.monotonic() + 20
    while source.of("pump")[1] != "2" and time.monotonic() < end:
        time.sleep(0.01)
    target.send_batch(pump(60, seed=6, begin=60))
    until(target, 3 * HOUR)
    found: list[MachineHealth] = target.values("machine_health")
    assert {row.model for row in found} == {"1", "2"}
    for row in found:
        assert (
            row.t2_limit
            == (normal if row.model == "1" else {"pump": Chart((), wider)})["pump"]
            .regimes[row.regime]
            .t2_limit
        )
    times = [row.event_time_ms for row in found]
    assert times == sorted(set(times))
    assert len(times) >= 110


@pytest.mark.parametrize("seed", range(8))
def test_a_swap_between_a_batch_that_was_lost_and_its_repeat_loses_and_doubles_nothing(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a kill -9: what a batch had given is gone, and it runs again, maybe by another champion."""
    rng = random.Random(seed)
    normal = learned()["pump"]

    def version(number: int) -> Chart:
        said = {
            regime: msgspec.structs.replace(known, t2_limit=number * known.t2_limit)
            for regime, known in normal.regimes.items()
        }
        return Chart(normal.sensors, said)

    champion = [1]
    monkeypatch.setattr(Registered, "of", lambda self, kind: (version(champion[0]), str(champion[0])))
    events = pump(120, seed=seed, leak_from=80)
    cuts = sorted(rng.sample(range(1, len(events)), 8))
    batches = [events[low:high] for low, high in zip([0, *cuts], [*cuts, len(events)], strict=True)]
    once = TestDriver(registered(tmp_path))
    for batch in batches:
        once.send_batch(batch)
    until(once, 4 * HOUR)
    target, found, lost = TestDriver(registered(tmp_path)), [], 0
    for batch in batches:
        before, rows_before = target.snapshot(), len(target.values("machine_health"))
        while rng.random() < 0.5:
            target.send_batch(batch)
            lost += 1
            target = TestDriver(registered(tmp_path))  # the process is gone, and what it had given with it
            target.restore(before)
            rows_before = 0
            champion[0] += rng.random() < 0.6
        target.send_batch(batch)
        found += target.values("machine_health")[rows_before:]
    rows_before = len(target.values("machine_health"))
    until(target, 4 * HOUR)
    found += target.values("machine_health")[rows_before:]
    wanted: list[MachineHealth] = once.values("machine_health")
    assert lost
    assert [row.event_time_ms for row in found] == [row.event_time_ms for row in wanted]
    for row, by_first in zip(found, wanted, strict=True):
        # By the one that its row names, of the same values.
        assert row.t2_limit == version(int(row.model)).regimes[row.regime].t2_limit
        assert (row.t2, row.q) == (by_first.t2, by_first.q)
    assert champion[0] == 1 or {row.model for row in found} != {"1"} or found[-1].model == str(champion[0])


def test_without_a_champion_or_with_one_of_other_intervals_nothing_is_normal(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert Registered(str(tmp_path / "none"), NORMAL_NAME, MINUTE).of("pump") == (None, "")
    publish(tmp_path, learned())
    assert Registered(str(tmp_path), NORMAL_NAME, HOUR).of("pump") == (None, "1")
    assert Registered(str(tmp_path), NORMAL_NAME, MINUTE).of("fan") == (None, "1")
    told = [record.message for record in caplog.records if record.name.endswith("normal")]
    assert len(told) == 1
    assert told[0].endswith("is not taken: it is of means of 60000 ms, not of 3600000 ms")


def test_who_asks_for_other_intervals_or_in_another_folder_does_not_get_what_another_was_given(
    tmp_path: Path,
) -> None:
    publish(tmp_path / "a", learned())
    publish(tmp_path / "b", {"fan": learned()["pump"]})
    for _ in range(2):  # in turns
        assert Registered(str(tmp_path / "a"), NORMAL_NAME, HOUR).of("pump") == (None, "1")
        assert Registered(str(tmp_path / "a"), NORMAL_NAME, MINUTE).of("pump")[0] is not None
        assert Registered(str(tmp_path / "b"), NORMAL_NAME, MINUTE).of("pump") == (None, "1")
        assert Registered(str(tmp_path / "b"), NORMAL_NAME, MINUTE).of("fan")[0] is not None


def test_models_that_contradict_themselves_are_refused(tmp_path: Path) -> None:
    rng = random.Random(1)
    made = {"k": chart_of(rng, 3, 2)}
    publish(tmp_path, made)
    model = read(tmp_path)
    parts = model.about["parts"]

    def about(**change: Any) -> LoadedModel:
        return LoadedModel(model.version, model.inputs, model.predictor, about={"parts": parts} | change)

    for broken, why in (
        (about(parts=None), "without its limits"),
        (about(parts=parts[:1]), "limits of 1"),
        (about(parts=[parts[0] | {"sensors": ["a"]}, parts[1]]), "differ"),
        (about(parts=[parts[0] | {"q_limit": 0.0}, parts[1]]), "limit that is none"),
        (about(parts=[parts[0] | {"sensors": ["a", "b", "c"]}, parts[1]]), "differ"),
    ):
        with pytest.raises(BrokenModel, match=why):
            charts_of(broken)
    estimator, _ = estimator_of(made)
    estimator.transformer_list[0][1].named_steps["scaler"].scale_[0] = 0.0
    with pytest.raises(BrokenModel, match="scale or a variance"):
        NORMAL_READER.predictor(estimator, 3)
    estimator.transformer_list[0][1].named_steps["scaler"].scale_[0] = float("nan")
    with pytest.raises(BrokenModel, match="number that is none"):
        NORMAL_READER.predictor(estimator, 3)
    with pytest.raises(BrokenModel, match="no scaler"):
        NORMAL_READER.predictor(object(), 3)
    with pytest.raises(BrokenModel, match="by kind and status"):
        model.score([1.0])


def test_the_settings_name_one_source(tmp_path: Path) -> None:
    def settings(*overrides: str) -> IotSettings:
        return load_settings(
            IotSettings, app="iot", overrides=[*overrides, f"storage.root={tmp_path}"], env={}
        )

    found = charts(settings("health.registered=true"))
    assert found.registered == Registered(str(tmp_path / "models" / "exported"), NORMAL_NAME, MINUTE)
    assert charts(settings("health.registered=true", "health.exports=/x")).registered == Registered(
        "/x", NORMAL_NAME, MINUTE
    )
    assert charts(settings()).registered is None
    file = tmp_path / "normal.json"
    file.write_bytes(msgspec.json.encode(learned()))
    with pytest.raises(UserError, match="by one of them"):
        charts(settings("health.registered=true", f"health.charts={file}"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Readings of a normal day, and of one on which flow leaks until the pump fails."""
    target = TestDriver(monitor())
    target.send_batch(pump(12 * 60))
    target.send_batch(pump(6 * 60, seed=2, begin=12 * 60, leak_from=15 * 60))
    until(target, 19 * HOUR)
    found = [msgspec.to_builtins(row) for row in rows(target)]
    for row in found:
        for name in ("attributes", "last_maintenance_ms", "component_age_days", "errors_24h"):
            del row[name]
    write_deltalake(str(tmp_path / "tables" / "readings"), pd.DataFrame(found))
    first = min(row["event_time_ms"] for row in found)
    failure = {
        "machine_id": found[0]["machine_id"], "component": "seal", "kind": "corrective",
        "event_time_ms": first + 40 * HOUR, "duration_ms": 0,
    }  # fmt: skip
    write_deltalake(str(tmp_path / "tables" / "maintenance"), pd.DataFrame([failure]))
    return tmp_path


def moment(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%dT%H:%M:%S}"


def test_the_command_learns_what_the_file_does_and_versions_are_compared(root: Path) -> None:
    table = pd.DataFrame(TrainingTables(root / "tables").read("readings", ("event_time_ms",)))
    first = int(table["event_time_ms"].min())
    tables = TrainingTables(root / "tables")
    until_ms = moment(first + 12 * HOUR)
    shop = Workshop(LEARNER, "normal", root)
    candidate, (said,) = _normal(Training(shop, tables, None, until_ms), None, MINUTE, 0.999)
    assert "within the limits" in said
    assert candidate.metrics["within_limits"] > 0.98
    assert (candidate.kind, candidate.facts["kinds"]) == ("anomaly", "pump")
    made = NORMAL_READER.predictor(candidate.estimator, len(candidate.inputs))
    model = LoadedModel(
        "1", candidate.inputs, made, trained_until_ms=candidate.until_ms, about=candidate.about
    )
    again = charts_of(model)["pump"]
    other = learned()["pump"]
    assert again.sensors == other.sensors
    for regime, known in other.regimes.items():
        assert again.regimes[regime].mean == pytest.approx(known.mean, abs=0.05)
    worse_chart = chart_of(random.Random(3), 3, 1)
    worse = {"pump": Chart(again.sensors, dict.fromkeys(again.regimes, worse_chart.regimes["s0"]))}
    estimator, parts = estimator_of(worse)
    second = LoadedModel(
        "2", model.inputs, NORMAL_READER.predictor(estimator, 3), trained_until_ms=candidate.until_ms,
        about={"parts": msgspec.to_builtins(parts), "interval_ms": MINUTE},
    )  # fmt: skip
    found = judged(Question(shop, model, second, moment(first + 43 * HOUR), "1h"))
    assert len(found.truth) == len(found.champion) == len(found.challenger) > 300
    # By hand: an interval's truth is whether the failure came within a day of its end.
    readings = TrainingTables(root / "tables").read("readings", READING_COLUMNS)
    later = [dict(row) for row in readings[readings["event_time_ms"] > candidate.until_ms].to_dict("records")]
    ends = [(pane + 1) * MINUTE for (_, _, pane) in sorted(intervals(later, MINUTE))]
    assert found.truth.tolist() == [end < first + 40 * HOUR <= end + 24 * HOUR for end in ends]
    leaking = np.array(ends) > first + 15 * HOUR
    assert np.median(found.champion[leaking]) > 0.5 > np.median(found.champion[~leaking])


def test_nothing_to_learn_from_is_told(tmp_path: Path) -> None:
    shop = Workshop(LEARNER, "normal", tmp_path)
    with pytest.raises(CannotTrain):
        _normal(Training(shop, TrainingTables(shop.root / "tables"), None, None), None, MINUTE, 0.999)
