"""Machines that wear out, and models of them, for the tests of what looks ahead."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from millrace.models.exports import CHAMPION, Exports
from millrace.models.files import sha256_of
from millrace.models.manifest import Manifest
from millrace.operators.control import Chart, fit_chart
from millrace_apps.iot_maintenance.contracts.events import Maintenance, Reading
from millrace_apps.iot_maintenance.evaluation.stream import Sent, run, settings_for, written
from millrace_apps.iot_maintenance.foresight.distribution import Calibration, calibrated
from millrace_apps.iot_maintenance.foresight.models import FEATURES_VERSION, LIFE_NAME, RISK_NAME
from millrace_apps.iot_maintenance.foresight.training import (
    Boosting,
    Examples,
    LifeModel,
    RiskModel,
    learn_life,
    learn_risk,
    matrix_of,
    named,
)

HOUR = 3_600_000
START = 1_767_600_000_000
TABLES = ["machine_features", "risks", "remaining_life", "maintenance_plan", "maintenance"]
SMALL = Boosting(rounds=12, rate=0.2, leaves=6, least=5, share=1.0)


def wearing(machines: int, seed: int = 1, shortest: int = 40, longest: int = 90) -> list[Sent]:
    """Machines whose two sensors drift until a corrective maintenance ends their lives; by time."""
    rng = random.Random(seed)
    found: list[Sent] = []
    for number in range(machines):
        machine, life = f"m{number}", rng.randint(shortest, longest)
        for hour in range(1, life + 1):
            worn = (hour / life) ** 3
            at = START + hour * HOUR
            for quantity, value in (
                ("heat", 50 + 20 * worn + rng.gauss(0, 1)),
                ("noise", 5 + rng.gauss(0, 1)),
            ):
                identity = f"{machine}.{quantity}.{hour}"
                event = Reading(identity, f"{machine}.{quantity}", machine, "g", quantity, value, "1", at)
                found.append(Sent("readings", event))
        component = "pump" if number % 2 else "seal"
        end = START + (life + 1) * HOUR
        broken = Maintenance(f"{machine}.w", machine, component, end, "corrective", 0)
        found.append(Sent("maintenance", broken))
    found.sort(key=lambda sent: (sent.event.event_time_ms, sent.topic, sent.event.machine_id))
    return found


def streamed(events: list[Sent], *overrides: str, batch: int = 500) -> dict[str, list[dict[str, Any]]]:
    """The tables after events went through the whole topology in memory."""
    with written([]) as fleet:
        told = [f"monitor.fleet_file={fleet}", "monitor.judge=false", "monitor.sensor_least=30d"]
        settings = settings_for([*told, "monitor.grace=0s", "foresight.on=true", *overrides])
        tables = run(events, settings, TABLES, engine="memory", batch=batch).rows
    for rows in tables.values():
        rows.sort(key=lambda row: (row["machine_id"], row["event_time_ms"]))
    return tables


def learned(rows: list[dict[str, Any]], events: list[Sent], seed: int = 0) -> tuple[LifeModel, Examples]:
    """A model of the remaining life of such machines, from rows of ``machine_features``."""
    ends = {s.event.machine_id: s.event.event_time_ms for s in events if s.topic == "maintenance"}
    features = [dict(row["features"]) for row in rows]
    names = sorted(ends)
    left = np.array([(ends[row["machine_id"]] - row["event_time_ms"]) / HOUR for row in rows])
    life = np.array([names.index(row["machine_id"]) for row in rows])
    inputs = named(features)
    examples = Examples(matrix_of(features, inputs), inputs, left, life)
    model, _ = learn_life(examples, [(SMALL, 60.0)], folds=3, seed=seed)
    return model, examples


def risky(rows: list[dict[str, Any]], events: list[Sent], seed: int = 0) -> RiskModel:
    """A model of the risk of the components of such machines."""
    ends = {s.event.machine_id: s.event for s in events if s.topic == "maintenance"}
    features = [dict(row["features"]) for row in rows]
    inputs = named(features)
    fails = {
        name: np.array(
            [
                ends[row["machine_id"]].component == name
                and 0 < ends[row["machine_id"]].event_time_ms - row["event_time_ms"] <= 24 * HOUR
                for row in rows
            ]
        )
        for name in ("pump", "seal")
    }
    return learn_risk(matrix_of(features, inputs), inputs, fails, SMALL, seed=seed)


def publish(
    folder: Path,
    name: str,
    estimator: Any,
    inputs: tuple[str, ...],
    version: str = "1",
    calibration: Calibration | None = None,
) -> None:
    """Make a model the champion that workers find."""
    import skops.io

    data = skops.io.dumps(estimator)
    manifest = Manifest(
        name=name,
        version=version,
        size=len(data),
        sha256=sha256_of(data),
        inputs=inputs,
        features_version=FEATURES_VERSION,
        kind="classifier" if name == RISK_NAME else "regressor",
        about={} if calibration is None else {"calibration": msgspec.to_builtins(calibration)},
    )
    Exports(str(folder), name).publish(CHAMPION, manifest, data)


def publish_both(folder: Path, rows: list[dict[str, Any]], events: list[Sent], version: str = "1") -> None:
    """Make models of both kinds the champions; another version has other seeds."""
    seed = int(version)
    model, examples = learned(rows, events, seed)
    publish(folder, LIFE_NAME, model.estimator, examples.inputs, version, model.calibration)
    risk = risky(rows, events, seed)
    publish(folder, RISK_NAME, risk.estimator, risk.inputs, version)


def errors_of(ceiling: float = 100.0, seed: int = 3, rows: int = 4_000, spread: float = 10.0) -> Calibration:
    """A calibration of forecasts that are off by so much."""
    rng = np.random.default_rng(seed)
    truths = rng.uniform(0, ceiling, rows)
    return calibrated(np.clip(truths + rng.normal(0, spread, rows), 0, ceiling), truths, ceiling)


def normal_of(seed: int) -> dict[str, Chart]:
    """What is normal for such machines, as one who has seen others of them would have it."""
    rng = np.random.default_rng(seed)
    rows = np.column_stack([rng.normal(52, 3, 200), rng.normal(5, 1, 200)])
    return {"pump": fit_chart({"": rows.tolist()}, ("heat", "noise"))}
