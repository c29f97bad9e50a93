"""The models that the iot demo looks ahead with, learned on worlds of other seeds by the app's learning.

``python -m millrace_apps.benchmarks.iot_demo_models`` writes ``apps/iot_maintenance/demo_models``. Failures
are foreseen by six worlds of a minute, at six hours of the day, of a hundred machines each; they are those of
the ledger, where the demo's own maintenance is hours of a machine's life later, when its minute is nearly
over. What is normal for a kind of machine is learned of worlds in which nothing wears and no sensor lies.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec
import pandas as pd

from millrace.models.exports import CHAMPION, Exports
from millrace.models.files import sha256_of
from millrace.models.manifest import Manifest
from millrace.operations.report import write
from millrace.operators.control import Chart
from millrace_apps.benchmarks.iot_world import World, profile, run_world
from millrace_apps.benchmarks.report import tell
from millrace_apps.iot_maintenance import demo
from millrace_apps.iot_maintenance.evaluation.demo_causes import degradations
from millrace_apps.iot_maintenance.evaluation.stream import settings_for
from millrace_apps.iot_maintenance.foresight.failures import failures_of
from millrace_apps.iot_maintenance.foresight.learner import HOUR_MS, Read
from millrace_apps.iot_maintenance.foresight.models import FEATURES_VERSION, RISK_NAME
from millrace_apps.iot_maintenance.foresight.training import Boosting, RiskModel, learn_risk, matrix_of, named
from millrace_apps.iot_maintenance.operations.health_cli import learn
from millrace_apps.iot_maintenance.settings import IotSettings

#: Seed and hour of the worlds that it is learned on: none of those that the demo's bounds are held to.
WORLDS: Final = ((911, 10), (912, 2), (913, 15), (914, 21), (915, 7), (916, 12))
_MACHINES: Final = 100
#: The same of the worlds in which nothing is wrong, all around the day, since halls are colder by night; and
#: for how long events are sent in each, s.
WELL_WORLDS: Final = tuple((921 + n, 2 * n) for n in range(12))
_WELL_S: Final = 25.0
#: How many of what is normal are within the limits.
CONFIDENCE: Final = 0.999
#: How soon a component is to fail: three quarters of an hour of a machine's life.
HORIZON_MS: Final = 15_000
#: Steps end so long after the last event at most, ms.
_DRAINED_MS: Final = 60_000
#: Few trees, so that the file is small.
HOW: Final = Boosting(rounds=20, rate=0.2, leaves=4, least=5, share=0.5)


def _settings(*more: str) -> IotSettings:
    """Return the demo's settings without what is not needed to learn, or is learned here."""
    told = [one for one in demo.settings("") if one not in demo.WELL]
    return settings_for([*told, "scores.enabled=false", "forecast.enabled=false", *more])


def history() -> Iterator[World]:
    """Yield the worlds; what is not needed for features is left out."""
    settings = _settings()
    for seed, hour in WORLDS:
        yield run_world(profile(seed, hour, machines=_MACHINES), settings)
        tell(f"world {seed} at {hour} h")


def read_of(worlds: Iterator[World] | list[World]) -> Read:
    """Return steps and failures of worlds, as the tables of a plant have them.

    What is not repaired when a world ends is broken until then.
    """
    steps: list[dict[str, Any]] = []
    failures: list[dict[str, Any]] = []
    for number, world in enumerate(worlds):
        for row in world.tables["machine_features"]:
            steps.append({**row, "machine_id": f"{number}.{row['machine_id']}"})
        components = {
            (truth.entity, int(truth.detail["onset_ms"])): truth.detail["component"]
            for truth in world.ledger.truths
            if "onset_ms" in truth.detail and "component" in truth.detail
        }
        repaired = {
            (row["machine_id"], row["failed_ms"]): row["event_time_ms"]
            for row in world.tables["maintenance"] if row["kind"] == "corrective"
        }  # fmt: skip
        last = world.ledger.summary.last_event_time_ms or 0
        failures += [
            {"machine_id": f"{number}.{one.machine}", "component": components[one.machine, one.begin],
             "event_time_ms": repaired.get((one.machine, one.end), max(last, one.end) + _DRAINED_MS),
             "kind": "corrective", "failed_ms": one.end}
            for one in degradations(world.ledger.truths) if one.fails
        ]  # fmt: skip
    return Read(pd.DataFrame(steps), failures_of(pd.DataFrame(failures)))


def learned(read: Read) -> RiskModel:
    """Return the model that is learned of steps and failures, as ``millrace models iot train`` learns it."""
    run = read.running()
    rows = [dict(features) for features in run.steps["features"]]
    inputs = named(rows)
    return learn_risk(matrix_of(rows, inputs), inputs, run.fails(HORIZON_MS), HOW)


def publish(made: RiskModel, folder: Path, facts: dict[str, Any]) -> int:
    """Make a model the champion in a folder of exports; return the bytes of its file.

    What only training needs, the bounds of the bins of features, is left out, and the file is packed.
    """
    import skops.io

    for one in made.estimator.estimators_:
        one.__dict__.pop("_bin_mapper", None)
    data = skops.io.dumps(made.estimator, compression=zipfile.ZIP_DEFLATED, compresslevel=9)
    about = {"horizon_h": HORIZON_MS / HOUR_MS, **facts}
    manifest = Manifest(
        name=RISK_NAME, version="demo", size=len(data), sha256=sha256_of(data), inputs=made.inputs,
        features_version=FEATURES_VERSION, about=about,
    )  # fmt: skip
    Exports(str(folder), RISK_NAME).publish(CHAMPION, manifest, data)
    return len(data)


def normal() -> dict[str, Chart]:
    """Return what is normal by kind of machine and status, as ``millrace iot health train`` learns it."""
    settings = _settings("foresight.on=false")
    rows: list[dict[str, Any]] = []
    for seed, hour in WELL_WORLDS:
        well = {"failure_scale": 0.0, "worn": 0.0, "sensor_fault_rate": 0.0, "outage_rate": 0.0}
        world = run_world(replace(profile(seed, hour, seconds=_WELL_S), **well), settings)  # type: ignore[arg-type]
        # Machines of different worlds have the same names.
        rows += [{**row, "machine_id": f"{seed}.{row['machine_id']}"} for row in world.tables["readings"]]
        tell(f"world {seed} at {hour} h")
    charts, told = learn(rows, demo.TOGETHER_MS, CONFIDENCE)
    tell("\n".join(told))
    return charts


def main(arguments: list[str]) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="iot_demo_models", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=demo.MODELS, help="Folder of the exports.")
    parser.add_argument("--only", choices=("risk", "normal"), help="One of the two.")
    told = parser.parse_args(arguments)
    out: Path = told.out
    if told.only != "normal":
        read = read_of(history())
        made = learned(read)
        shutil.rmtree(out / RISK_NAME, ignore_errors=True)
        size = publish(made, out, {"failures": len(read.failures), "steps": len(read.steps)})
        (out / RISK_NAME / ".lock").unlink()
        print(f"{len(read.steps):,} steps, {len(read.failures)} failures: {size:,} bytes")
    if told.only != "risk":
        write(out / demo.NORMAL.name, msgspec.to_builtins(normal()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
