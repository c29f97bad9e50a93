"""The iot models as the core's registry sees them: training data, metrics, gates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from millrace.models.commands import time_of
from millrace.models.gates import MEASURES, Gate, Judged
from millrace.models.learner import AppModel, Learner, Question
from millrace.models.tables import CannotTrain, TrainingTables
from millrace.time import ms
from millrace.time.durations import parse_duration
from millrace_apps.iot_maintenance.foresight.failures import (
    LATER_COLUMNS,
    REPAIR_COLUMNS,
    failures_of,
    is_broken,
)
from millrace_apps.iot_maintenance.foresight.models import (
    LIFE_NAME,
    LIFE_READER,
    RISK_NAME,
    RISK_READER,
    calibration_of,
    components_of,
    risk_rows,
)
from millrace_apps.iot_maintenance.foresight.training import Examples, matrix_of, named
from millrace_apps.iot_maintenance.processes.normal import NORMAL_NAME, NORMAL_READER

if TYPE_CHECKING:
    import numpy.typing as npt
    import pandas as pd

    from millrace.models.loading import LoadedModel
    from millrace.operators.control import Chart

HOUR_MS: Final = 3_600_000
FEATURE_COLUMNS: Final = ("machine_id", "event_time_ms", "begun_ms", "features")
READING_COLUMNS: Final = (
    "machine_id", "kind", "status", "quantity", "point", "value", "quality", "revision", "late",
    "event_time_ms",
)  # fmt: skip
_RISK, _LIFE, _NORMAL = "risk", "life", "normal"
#: Intervals are judged by failures that came within so long after them, h.
_FAILS_WITHIN_H: Final = 24.0


class Read(NamedTuple):
    """What models learn from and are judged by.

    Attributes:
        steps: Rows of ``machine_features``, by machine and time.
        failures: Rows of ``maintenance`` that were corrective, with ``failed_ms``: from then until
            ``event_time_ms`` the machine was broken.
    """

    steps: pd.DataFrame
    failures: pd.DataFrame

    @property
    def newest_ms(self) -> int:
        """Event time of the newest step, UTC ms."""
        return int(self.steps["event_time_ms"].max())

    def between(self, since_ms: int, upto_ms: int) -> Read:
        """Return the steps after a time and up to another, with the failures known by the latter."""
        at = self.steps["event_time_ms"]
        return Read(self.steps[(at > since_ms) & (at <= upto_ms)], self.failures).known(upto_ms)

    def known(self, at_ms: int) -> Read:
        """Return the same with the failures known by a time (ms): a failure is when its repair is done."""
        return self._replace(failures=self.failures[self.failures["event_time_ms"] <= at_ms])

    def running(self) -> Read:
        """Return the same without the steps in which a machine was broken: they say nothing of a failure."""
        steps = self.steps
        broken = is_broken(steps["machine_id"], steps["event_time_ms"], self.failures)
        return self._replace(steps=steps[~broken])

    def lives(self, inputs: tuple[str, ...] | None = None) -> tuple[Examples, npt.NDArray[np.int64]]:
        """Return the steps of lives that have ended, and when they were; a life ends when the machine fails.

        Args:
            inputs: The features to take; ``None``: all.

        Raises:
            CannotTrain: No life has ended.
        """
        ends: dict[str, list[int]] = {}
        for machine, at in sorted(zip(self.failures["machine_id"], self.failures["failed_ms"], strict=True)):
            ends.setdefault(machine, []).append(int(at))
        rows, left, life, times = [], [], [], []
        number: dict[tuple[str, int], int] = {}
        steps = self.running().steps
        columns = (steps[name].tolist() for name in ("machine_id", "event_time_ms", "features"))
        for machine, at, features in zip(*columns, strict=True):
            of = np.asarray(ends.get(machine, ()), dtype=np.int64)
            place = int(np.searchsorted(of, at, side="right"))
            if place < len(of):
                end = int(of[place])
                rows.append(dict(features))
                left.append((end - at) / HOUR_MS)
                life.append(number.setdefault((machine, end), len(number)))
                times.append(at)
        if not rows:
            raise CannotTrain(
                "no machine has failed yet: a life that has not ended teaches nothing of its end"
            )
        names = named(rows) if inputs is None else inputs
        found = Examples(matrix_of(rows, names), names, np.array(left), np.array(life, dtype=np.int64))
        return found, np.array(times, dtype=np.int64)

    def fails(self, horizon_ms: int) -> dict[str, npt.NDArray[np.bool_]]:
        """Return component → whether it failed after each step, within a horizon (ms), shape (n,)."""
        machines = self.steps["machine_id"].to_numpy()
        at = self.steps["event_time_ms"].to_numpy(dtype=np.int64)
        found = {}
        for component, rows in self.failures.groupby("component"):
            truth = np.zeros(len(at), dtype=bool)
            for machine, end in zip(rows["machine_id"], rows["failed_ms"], strict=True):
                truth |= (machines == machine) & (at < end) & (at >= end - horizon_ms)
            found[str(component)] = truth
        return found


def read_tables(tables: TrainingTables) -> Read:
    """Read features and failures.

    Raises:
        CannotTrain: A table is not there, or has no rows.
    """
    steps = tables.read("machine_features", FEATURE_COLUMNS)
    if steps.empty:
        raise CannotTrain("the table machine_features has no rows: run the app first")
    repairs = tables.find("maintenance", REPAIR_COLUMNS, optional=LATER_COLUMNS)
    if repairs is None:
        raise CannotTrain("there is no table maintenance: nothing has been repaired yet")
    steps = steps.sort_values(["machine_id", "event_time_ms"], ignore_index=True)
    return Read(steps, failures_of(repairs))


def ms_of(text: str) -> int:
    """Return a duration, ms."""
    return ms(parse_duration(text))


def judged(question: Question) -> Judged:
    """Return the steps after the training of both models whose truth is known, scored by both.

    Of the risks each component is judged by itself; a machine is a group.
    """
    shop, two = question.workshop, (question.champion, question.challenger)
    if shop.model.reader.kind == "anomaly":
        return _judged_normal(question)
    read = read_tables(shop.tables())
    now = time_of(question.as_of, read.newest_ms)
    since = max(model.trained_until_ms for model in two)
    if shop.model.reader.kind == "regressor":
        ceiling = min(calibration_of(model.about).ceiling for model in two)
        part = read.between(since, now)
        scores, truth, groups = [], np.zeros(0), np.zeros(0, dtype=np.int64)
        for model in two:
            examples, _ = part.lives(model.inputs)
            truth, groups = np.minimum(examples.left, ceiling), examples.life
            scores.append(np.clip(model.score_many(examples.x), 0.0, ceiling))
        return Judged(truth, scores[0], scores[1], groups, "steps", "lives")
    horizon = int(float(two[1].about.get("horizon_h", 24.0)) * HOUR_MS)
    part = read.between(since, now - max(horizon, ms_of(question.label_delay)))
    known = Read(part.steps, read.failures).known(now).running()
    fails = known.fails(horizon)
    both = sorted(set(components_of(two[0].inputs)) & set(components_of(two[1].inputs)))
    machines = known.steps["machine_id"].to_numpy()
    places = np.unique(machines, return_inverse=True)[1]
    never = np.zeros(len(machines), dtype=bool)
    failed = np.concatenate([fails.get(name, never) for name in both]) if both else never[:0]
    risks = [_risks(model, known, both) for model in two]
    return Judged(
        failed, risks[0], risks[1], np.tile(places, len(both)), "steps", "machines", "with failures"
    )


def _judged_normal(question: Question) -> Judged:
    """Return intervals after the training of both, scored by both; the truth: whether a failure followed."""
    from millrace_apps.iot_maintenance.operations.health_cli import intervals
    from millrace_apps.iot_maintenance.processes.normal import charts_of

    tables, two = question.workshop.tables(), (question.champion, question.challenger)
    readings = tables.read("readings", READING_COLUMNS)
    repairs = tables.find("maintenance", REPAIR_COLUMNS, optional=LATER_COLUMNS)
    now = time_of(question.as_of, int(readings["event_time_ms"].max()))
    since, horizon = max(model.trained_until_ms for model in two), int(_FAILS_WITHIN_H * HOUR_MS)
    upto = now - max(horizon, ms_of(question.label_delay))
    at = readings["event_time_ms"]
    rows = [dict(one) for one in readings[(at > since) & (at <= upto)].to_dict("records")]
    every = int(two[1].about.get("interval_ms", 60_000))
    charts = [charts_of(model) for model in two]
    spans: dict[str, list[tuple[int, int]]] = {}
    if repairs is not None:
        for row in failures_of(repairs).to_dict("records"):
            spans.setdefault(str(row["machine_id"]), []).append((row["failed_ms"], row["event_time_ms"]))
    truth, machines = [], []
    shares: tuple[list[float], list[float]] = ([], [])
    for (kind, machine, pane), (regime, values) in sorted(intervals(rows, every).items()):
        both = [_share(one.get(kind), regime, values) for one in charts]
        if both[0] is not None and both[1] is not None:
            end, of = (pane + 1) * every, spans.get(machine, ())
            if any(failed <= end < done for failed, done in of):
                continue
            truth.append(any(end < failed <= end + horizon for failed, _ in of))
            machines.append(machine)
            for found, share in zip(shares, both, strict=True):
                found.append(share / (1 + share) if share is not None else 0.0)
    groups = np.unique(np.array(machines, dtype=str), return_inverse=True)[1]
    return Judged(
        np.array(truth, dtype=bool), np.array(shares[0]), np.array(shares[1]), groups,
        "intervals", "machines", "with failures",
    )  # fmt: skip


def _share(chart: Chart | None, regime: str, values: Mapping[str, float]) -> float | None:
    """Return how far an interval is out, in shares of a limit; ``None``: its chart does not know."""
    if chart is None or any(sensor not in values for sensor in chart.sensors):
        return None
    found = chart.read(regime, [values[sensor] for sensor in chart.sensors])
    return None if found is None else found.share


def _risks(model: LoadedModel, read: Read, components: list[str]) -> npt.NDArray[np.float64]:
    """Return the risks of components at each step, component after component."""
    names = components_of(model.inputs)
    if not components or read.steps.empty:
        return np.zeros(0)
    rows = [row for features in read.steps["features"] for row in risk_rows(dict(features), model.inputs)]
    scores = model.score_many(np.array(rows, dtype=np.float32)).reshape(-1, len(names))
    found: npt.NDArray[np.float64] = np.concatenate([scores[:, names.index(name)] for name in components])
    return found


def skill(truth: Any, predicted: Any, weights: Any) -> float:
    """Return how good scores are: average precision of risks, of lives the share of variance explained."""
    if truth.dtype == bool:
        return MEASURES["average_precision"](truth, predicted, weights)
    mean = np.average(truth, weights=weights)
    spread = float(np.average((truth - mean) ** 2, weights=weights))
    if not spread:
        return float("nan")
    return 1.0 - float(np.average((predicted - truth) ** 2, weights=weights)) / spread


_MODELS: Final[Mapping[str, AppModel]] = {
    _RISK: AppModel(
        RISK_NAME,
        RISK_READER,
        ("machine_features", "maintenance"),
        "The probability that a component of a machine fails within the horizon.",
    ),
    _LIFE: AppModel(
        LIFE_NAME,
        LIFE_READER,
        ("machine_features", "maintenance"),
        "The hours that a machine runs until its next failure, up to a ceiling.",
    ),
    _NORMAL: AppModel(
        NORMAL_NAME,
        NORMAL_READER,
        ("readings", "maintenance"),
        "What the sensors of a kind of machine say together while nothing is wrong, by status.",
    ),
}
_LIMITS: Final = (
    "A failure of a kind that no machine has had is not foreseen.",
    "A component that is replaced on schedule is not known to have been about to fail.",
    "Lives longer than the ceiling are not told apart.",
    "Intervals are right on average over machines of a kind, not for each machine by itself.",
)
LEARNER: Final[Learner] = Learner(
    app="iot",
    models=_MODELS,
    judged=judged,
    gates=(Gate(metric="skill", min_groups=3),),
    measures={**MEASURES, "skill": skill},
    columns={"lives": "lives", "RMSE h": "cv_rmse", "coverage": "cv_coverage", "kinds": "kinds"},
    limits=_LIMITS,
)
