"""``millrace models iot …``: train, list, compare, promote, roll back and describe what looks ahead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from millrace.models.commands import LABEL_DELAY, Delay, Learned, Training, command_line, training

if TYPE_CHECKING:
    from millrace.models.learner import Learner
    from millrace_apps.iot_maintenance.foresight.learner import Read


def _learning() -> Learner:
    from millrace_apps.iot_maintenance.foresight.learner import LEARNER

    return LEARNER


def learn(
    of: Training,
    label_delay: Delay = LABEL_DELAY,
    horizon: Annotated[str, typer.Option(help="How soon a component is to fail, of risks.")] = "24h",
    ceiling: Annotated[
        str, typer.Option(help="Longest life that is told apart, of remaining life.")
    ] = "125h",
    models: Annotated[int, typer.Option(min=1, help="Models of remaining life whose mean is taken.")] = 3,
    seed: Annotated[int, typer.Option(help="Seed of the models.")] = 0,
    since: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="TIME", help="Begin of the normal period, of normal (ms or ISO 8601)."
        ),
    ] = None,
    interval: Annotated[str, typer.Option(help="The means of so long are a row, of normal.")] = "1m",
    confidence: Annotated[
        float,
        typer.Option(min=0.5, max=0.999999, help="Share of what is normal that is within limits, of normal."),
    ] = 0.999,
) -> Learned:
    """Train a model on what machines were like before they failed, and let it challenge the champion.

    `--model risk` learns the risk of each component, `--model life` the remaining life with its intervals,
    `--model normal` what the sensors of a machine say together in a normal period (--from, --as-of).
    """
    from millrace_apps.iot_maintenance.foresight.learner import ms_of, read_tables

    kind, versions = of.shop.model.reader.kind, of.tables.versions
    if kind == "anomaly":
        return _normal(of, since, ms_of(interval), confidence)
    read = read_tables(of.tables)
    now, delay = of.until(read.newest_ms), ms_of(label_delay)
    if kind == "regressor":
        return _life(read, now, ms_of(ceiling) / 3_600_000, models, seed, versions)
    return _risk(read, now, max(delay, ms_of(horizon)), ms_of(horizon), seed, versions)


def _normal(of: Training, since: str | None, every: int, confidence: float) -> Learned:
    import msgspec

    from millrace.models.candidate import Candidate
    from millrace.models.tables import CannotTrain
    from millrace.time.moments import to_time_ms
    from millrace_apps.iot_maintenance.foresight.learner import READING_COLUMNS
    from millrace_apps.iot_maintenance.operations.health_cli import intervals, learn
    from millrace_apps.iot_maintenance.processes.normal import FEATURES_VERSION, estimator_of, within

    readings = of.tables.read("readings", READING_COLUMNS)
    if readings.empty:
        raise CannotTrain("the table readings has no rows: run the app first")
    low = 0 if since is None else to_time_ms(since)
    now = of.until(int(readings["event_time_ms"].max()))
    at = readings["event_time_ms"]
    rows = [dict(one) for one in readings[(at >= low) & (at <= now)].to_dict("records")]
    charts, told = learn(rows, every, confidence)
    estimator, parts = estimator_of(charts)
    judged = [
        (kind, regime, [values[sensor] for sensor in charts[kind].sensors])
        for (kind, _, _), (regime, values) in intervals(rows, every).items()
        if kind in charts and all(sensor in values for sensor in charts[kind].sensors)
    ]
    share = within(charts, judged)
    times = [row["event_time_ms"] for row in rows]
    candidate = Candidate(
        estimator=estimator,
        inputs=tuple(sorted({sensor for chart in charts.values() for sensor in chart.sensors})),
        since_ms=int(min(times)),
        until_ms=int(max(times)),
        rows=sum(part.rows for part in parts),
        features_version=FEATURES_VERSION,
        kind="anomaly",
        metrics={"within_limits": share},
        tables=dict(of.tables.versions),
        facts={"kinds": ", ".join(sorted(charts)), "confidence": confidence},
        about={"parts": msgspec.to_builtins(parts), "interval_ms": every, "confidence": confidence},
        trusted=(),
    )
    return Learned(candidate, [f"{'; '.join(told)}; {share:.2%} of them within the limits"])


def _life(read: Read, now: int, ceiling: float, models: int, seed: int, tables: Mapping[str, int]) -> Learned:
    import msgspec
    import numpy as np

    from millrace.models.boosted import BOOSTED
    from millrace.models.candidate import Candidate
    from millrace_apps.iot_maintenance.foresight.models import FEATURES_VERSION
    from millrace_apps.iot_maintenance.foresight.training import LIFE, learn_life

    examples, at = read.between(-1, now).lives()
    how = msgspec.structs.replace(LIFE, models=models)
    made, _ = learn_life(examples, [(how, ceiling)], seed=seed)
    figures, lives = made.figures, len(np.unique(examples.life))
    candidate = Candidate(
        estimator=made.estimator,
        inputs=examples.inputs,
        since_ms=int(at.min()),
        until_ms=int(at.max()),
        rows=len(at),
        features_version=FEATURES_VERSION,
        kind="regressor",
        metrics={"cv_rmse": figures.rmse, "cv_rmse_capped": figures.capped, "cv_coverage": figures.coverage},
        tables=dict(tables),
        facts={"lives": lives, "ceiling_h": ceiling},
        about={"calibration": msgspec.to_builtins(made.calibration)},
        trusted=BOOSTED,
    )
    told = f"{len(at):,} steps of {lives} lives; on lives held out: RMSE {figures.rmse:.1f} h"
    return Learned(candidate, [f"{told}, 90 % intervals hold for {figures.coverage:.1%}"])


def _risk(read: Read, now: int, delay: int, horizon: int, seed: int, tables: Mapping[str, int]) -> Learned:
    from millrace.models.boosted import BOOSTED
    from millrace.models.candidate import Candidate
    from millrace.models.tables import CannotTrain
    from millrace_apps.iot_maintenance.foresight.learner import HOUR_MS, Read
    from millrace_apps.iot_maintenance.foresight.models import FEATURES_VERSION
    from millrace_apps.iot_maintenance.foresight.training import RISK, learn_risk, matrix_of, named

    part = Read(read.between(-1, now - delay).steps, read.failures).known(now).running()
    steps = part.steps
    if steps.empty:
        raise CannotTrain("of no step is it known yet whether a component failed after it")
    rows = [dict(features) for features in steps["features"]]
    inputs = named(rows)
    fails = part.fails(horizon)
    made = learn_risk(matrix_of(rows, inputs), inputs, fails, RISK, seed=seed)
    failed = int(sum(fails[name].sum() for name in made.components))
    candidate = Candidate(
        estimator=made.estimator,
        inputs=made.inputs,
        since_ms=int(steps["event_time_ms"].min()),
        until_ms=int(steps["event_time_ms"].max()),
        rows=len(steps),
        features_version=FEATURES_VERSION,
        tables=dict(tables),
        facts={"horizon_h": horizon / HOUR_MS, "components": ", ".join(made.components)},
        about={"horizon_h": horizon / HOUR_MS},
        trusted=BOOSTED,
    )
    told = f"{len(steps):,} steps, {failed:,} before failures of {', '.join(made.components)}"
    return Learned(candidate, [told])


app = command_line("iot", _learning, {"train": training(_learning, learn)})
