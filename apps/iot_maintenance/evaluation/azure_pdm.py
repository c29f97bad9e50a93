"""Failures of components within 24 hours: Microsoft's predictive-maintenance sample, by the app's own join.

Telemetry, errors, maintenance and machines come as events; what the table ``machine_features`` says at the
end of each hour is learned from, and tested on machines (or times) that the model has not seen. The same is
done with telemetry alone and with events alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from millrace.errors import UserError
from millrace.models.tables import CannotTrain
from millrace_apps.iot_maintenance.evaluation.azure import QUANTITIES, events_of, read_table, read_tables
from millrace_apps.iot_maintenance.evaluation.stream import Engine, run, settings_for, written
from millrace_apps.iot_maintenance.foresight.training import (
    RISK,
    Boosting,
    fold_of,
    learn_risk,
    matrix_of,
    named,
)

if TYPE_CHECKING:
    import pandas as pd

HOUR_MS: Final = 3_600_000
#: A component fails within so many hours.
HORIZON_MS: Final = 24 * HOUR_MS
#: Stands for whether any component fails: as likely as the likeliest.
ANY: Final = "any"
#: Beginnings of the features that come of telemetry, of events, and of both.
_TELEMETRY: Final = (*(f"{quantity}." for quantity in QUANTITIES), "most.")
_EVENTS: Final = ("errors", "days_since.", "parts.")
_MASTER: Final = ("is.", "age_h")
SOURCES: Final[Mapping[str, tuple[str, ...]]] = {
    "joined": (*_TELEMETRY, *_EVENTS, *_MASTER),
    "telemetry": (*_TELEMETRY, *_MASTER),
    "events": (*_EVENTS, *_MASTER),
}
#: From this probability on a failure is foreseen.
THRESHOLD: Final = 0.5
#: All events of an hour may come within it in any order.
_DISORDER_MS: Final = HOUR_MS
_BATCH: Final = 5_000
_ROUNDS: Final = 1_000


class Split(NamedTuple):
    """What is learned from and what is tested.

    Attributes:
        folds: Parts in which machines are held out; ``None``: by time.
        train_until_ms: Last step that is learned from, UTC ms.
        test_from_ms: First step that is tested, UTC ms.
        gap_ms: Least time between the two.
    """

    folds: int | None
    train_until_ms: int
    test_from_ms: int
    gap_ms: int

    @classmethod
    def of(cls, folds: int | None, train_until: str | None, test_from: str | None, gap_ms: int) -> Split:
        """Return the split that options name.

        Raises:
            UserError: They name none, or both kinds, or times that are none or too near to each other.

        >>> Split.of(None, None, None, 0).folds
        6
        """
        if gap_ms < 0:
            raise UserError("--gap: a gap is no less than nothing")
        if train_until is None and test_from is None:
            return cls(folds or 6, 0, 0, gap_ms)
        if folds is not None or train_until is None or test_from is None:
            raise UserError("give --folds, or --train-until and --test-from together")
        until, since = _time("--train-until", train_until), _time("--test-from", test_from)
        if since < until + gap_ms:
            raise UserError("--test-from is less than the gap after --train-until")
        return cls(None, until, since, gap_ms)

    def parts(self, machines: npt.NDArray[Any], at: npt.NDArray[np.int64]) -> list[tuple[Any, Any]]:
        """Return for each fold the rows that are learned from and those that are tested, as masks (n,)."""
        if self.folds is None:
            return [(at <= self.train_until_ms, at >= self.test_from_ms)]
        fold = fold_of(machines, self.folds, 0)
        return [(fold != one, fold == one) for one in range(int(fold.max()) + 1)]


class Counted(msgspec.Struct, frozen=True):
    """How failures of a component were foreseen.

    Attributes:
        failures: Failures in the time of the test.
        steps: Steps within 24 hours before one.
        f1: F1 of these steps; no number without any.
    """

    failures: int
    steps: int
    f1: float


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What the evaluation found.

    Attributes:
        machines: Machines tested.
        folds: Parts in which machines were held out, at most as many as machines; 0: the split is by time.
        gap_h: Least time between steps of training and of test where the split is by time, and between the
            last step that is tested and the end, h; that is 24 at least.
        steps: Steps tested, an hour each.
        positives: Of these, those within 24 hours before a failure.
        binary_f1: F1 of "something fails within 24 hours".
        binary_precision: Its precision.
        binary_recall: Its recall.
        macro_f1: Mean F1 of "nothing fails" and of each component that failed.
        f1_telemetry: Binary F1 with telemetry and master data alone.
        f1_events: Binary F1 with errors, maintenance and master data alone.
        over_telemetry: Ends of the 95 % interval of the joined F1 less that of telemetry, machines resampled.
        over_events: The same of events.
        components: Component → how its failures were foreseen.
        failures: Failures (machine and time) in the time of the test.
        foreseen: Of these, those that were foreseen at least an hour before.
        lead_h: Median time from the first warning within 24 hours, h.
        false_alarms: Runs of warnings that no failure followed within 24 hours, a machine and 30 days.
        events: Events streamed.
        events_per_s: How many of them a second.
        seconds: How long the stream took.
        engine: Where it ran.
    """

    machines: int
    folds: int
    gap_h: float
    steps: int
    positives: int
    binary_f1: float
    binary_precision: float
    binary_recall: float
    macro_f1: float
    f1_telemetry: float
    f1_events: float
    over_telemetry: tuple[float, float]
    over_events: tuple[float, float]
    components: dict[str, Counted]
    failures: int
    foreseen: int
    lead_h: float
    false_alarms: float
    events: int
    events_per_s: float
    seconds: float
    engine: str


def read_failures(folder: Path) -> pd.DataFrame:
    """Return the failures of a folder: machineID, failure, at (UTC ms).

    Raises:
        DataMissing: There is no such file, it cannot be read, or it lacks columns.
    """
    import pandas as pd

    found = read_table(folder, "failures")
    at = found["datetime"].astype("int64")
    return pd.DataFrame({"machineID": found["machineID"].astype(str), "failure": found["failure"], "at": at})


def labels(
    machines: npt.NDArray[Any], at: npt.NDArray[np.int64], failures: pd.DataFrame
) -> dict[str, npt.NDArray[np.bool_]]:
    """Return component → whether it fails in (t, t + 24 h], shape (n,); and whether any does.

    Args:
        machines: Machine of each step, shape (n,).
        at: Time of each step, UTC ms, shape (n,).
        failures: As :func:`read_failures` has them.
    """
    found: dict[str, npt.NDArray[np.bool_]] = {}
    for component, rows in failures.groupby("failure"):
        truth = np.zeros(len(at), dtype=bool)
        for machine, end in zip(rows["machineID"], rows["at"], strict=True):
            truth |= (machines == machine) & (at < end) & (at >= end - HORIZON_MS)
        found[str(component)] = truth
    found[ANY] = np.any(list(found.values()), axis=0) if found else np.zeros(len(at), dtype=bool)
    return found


class Steps(NamedTuple):
    """What is known of machines at the end of each hour.

    Attributes:
        machines: Machine of each step, shape (n,).
        at: Its time, UTC ms, shape (n,).
        features: Its features.
    """

    machines: npt.NDArray[Any]
    at: npt.NDArray[np.int64]
    features: list[dict[str, float]]


def steps_of(rows: Sequence[dict[str, Any]], last_ms: int) -> Steps:
    """Return the steps of rows of ``machine_features``, by machine and time.

    Args:
        rows: The rows.
        last_ms: Later steps are left out: what comes after them is not known.
    """
    kept = sorted(
        (row for row in rows if row["event_time_ms"] <= last_ms),
        key=lambda row: (row["machine_id"], row["event_time_ms"]),
    )
    return Steps(
        np.array([row["machine_id"] for row in kept]),
        np.array([row["event_time_ms"] for row in kept], dtype=np.int64),
        [dict(row["features"]) for row in kept],
    )


def scored(
    steps: Steps,
    truth: Mapping[str, npt.NDArray[np.bool_]],
    split: Split,
    wanted: Sequence[str],
    how: Boosting = RISK,
) -> dict[str, npt.NDArray[np.float64]]:
    """Return component → probabilities by models that have not seen the step, shape (n,); no number: no test.

    Args:
        steps: The steps.
        truth: Component → what was true of each step.
        split: What is learned from and what is tested.
        wanted: Beginnings of the features to take.
        how: Settings of the models.

    Raises:
        CannotTrain: There is nothing to learn from, or to test.
    """
    inputs = named(steps.features, wanted)
    x = matrix_of(steps.features, inputs)
    found = {name: np.full(len(x), np.nan) for name in truth if name != ANY}
    for learned, tested in split.parts(steps.machines, steps.at):
        if not learned.any() or not tested.any():
            raise CannotTrain("the split leaves nothing to learn from, or nothing to test")
        for name in found:
            found[name][tested] = 0.0
        made = learn_risk(x[learned], inputs, {name: truth[name][learned] for name in found}, how)
        for place, name in enumerate(made.components):
            found[name][tested] = made.estimator.estimators_[place].predict_proba(x[tested])[:, 1]
    return {**found, ANY: np.max(list(found.values()), axis=0)}


def f1(truth: npt.NDArray[np.bool_], found: npt.NDArray[np.bool_]) -> float:
    """Return F1; no number where nothing is to be found and nothing was.

    >>> f1(np.array([True, True, False]), np.array([True, False, False]))
    0.6666666666666666
    """
    both = int((truth & found).sum())
    total = int(truth.sum()) + int(found.sum())
    return 2 * both / total if total else float("nan")


def gain(
    truth: npt.NDArray[np.bool_],
    one: npt.NDArray[np.bool_],
    other: npt.NDArray[np.bool_],
    machines: npt.NDArray[Any],
) -> tuple[float, float]:
    """Return the ends of the 95 % interval of one F1 less another on the same steps, machines resampled."""
    names, place = np.unique(machines, return_inverse=True)
    counts = np.zeros((len(names), 4))
    for column, of in enumerate((truth & one, one, truth & other, other)):
        counts[:, column] = np.bincount(place, weights=of, minlength=len(names))
    positives = np.bincount(place, weights=truth, minlength=len(names))
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, len(names), (_ROUNDS, len(names)))
    sums, total = counts[drawn].sum(axis=1), positives[drawn].sum(axis=1)
    with np.errstate(invalid="ignore"):
        gains = 2 * sums[:, 0] / (total + sums[:, 1]) - 2 * sums[:, 2] / (total + sums[:, 3])
    gains = gains[np.isfinite(gains)]
    low, high = np.quantile(gains, [0.025, 0.975]) if len(gains) else (float("nan"), float("nan"))
    return float(low), float(high)


def evaluate(
    folder: Path, split: Split, *, engine: Engine, told: Callable[[int, int], None] = lambda done, of: None
) -> tuple[Report, pd.DataFrame]:
    """Stream the tables of a folder, and learn and test what comes of the join.

    Args:
        folder: The data.
        split: What is learned from and what is tested.
        engine: Where it runs.
        told: Called with how many batches are done, of how many.

    Returns:
        The report, and the probabilities of every step that was tested.

    Raises:
        DataMissing: The folder does not have the data.
        CannotTrain: There is nothing to learn from, or to test.
    """
    import pandas as pd

    tables, failures = read_tables(folder), read_failures(folder)
    with_telemetry = set(tables["telemetry"]["machineID"].astype(str))
    failures = failures[failures["machineID"].isin(with_telemetry)]
    if failures.empty:
        raise CannotTrain("no machine with telemetry failed: there is nothing to foresee")
    if split.folds is not None and len(with_telemetry) < 2:
        raise CannotTrain(
            "one machine alone cannot be held out: split by time, with --train-until and --test-from"
        )
    events, _ = events_of(tables, _DISORDER_MS, 1, 0.0)
    with written([]) as fleet:
        overrides = [
            f"monitor.fleet_file={fleet}", "monitor.judge=false", "monitor.keep=3650d",
            "monitor.sensor_least=30d",
            f"monitor.grace={_DISORDER_MS}", f"stream.out_of_orderness={_DISORDER_MS}",
            "foresight.on=true", "spark.quick_start=true",
        ]  # fmt: skip
        settings = settings_for(overrides)
        result = run(events, settings, ["machine_features"], engine=engine, batch=_BATCH, told=told)
    rows = result.rows["machine_features"]
    newest = max((row["event_time_ms"] for row in rows), default=0)
    steps = steps_of(rows, newest - max(split.gap_ms, HORIZON_MS))
    truth = labels(steps.machines, steps.at, failures)
    scores = {name: scored(steps, truth, split, wanted) for name, wanted in SOURCES.items()}
    report = judged(steps, truth, scores, failures, split)
    table = {"machineID": steps.machines, "datetime": pd.to_datetime(steps.at, unit="ms")}
    table |= {f"{name}_true": values for name, values in truth.items()}
    table |= {f"{of}_{name}": v for of, each in scores.items() for name, v in each.items()}
    frame = pd.DataFrame(table)
    told_of = {
        "events": result.events,
        "events_per_s": round(result.events_per_s, 1),
        "seconds": round(result.seconds, 3),
        "engine": engine,
    }
    return msgspec.convert({**report, **told_of}, Report), frame[frame[f"joined_{ANY}"].notna()]


def judged(
    steps: Steps,
    truth: Mapping[str, npt.NDArray[np.bool_]],
    scores: Mapping[str, Mapping[str, npt.NDArray[np.float64]]],
    failures: pd.DataFrame,
    split: Split,
) -> dict[str, Any]:
    """Return the figures of probabilities."""
    tested = ~np.isnan(scores["joined"][ANY])
    machines, at = steps.machines[tested], steps.at[tested]
    true = {name: values[tested] for name, values in truth.items()}
    warned = {of: each[ANY][tested] > THRESHOLD for of, each in scores.items()}
    said = warned["joined"]
    names = [name for name in true if name != ANY]
    each = np.column_stack([scores["joined"][name][tested] for name in names])
    which = np.where(said, each.argmax(axis=1), -1)
    in_test = failures[
        failures["machineID"].isin(set(machines))
        & (failures["at"] > at.min())
        & (failures["at"] <= at.max() + HOUR_MS)
    ]
    components = {
        name: Counted(
            int((in_test["failure"] == name).sum()),
            int(true[name].sum()),
            f1(true[name], which == place),
        )
        for place, name in enumerate(names)
    }
    ends = sorted({(str(m), int(end)) for m, end in zip(in_test["machineID"], in_test["at"], strict=True)})
    leads = []
    for machine, end in ends:
        before = at[(machines == machine) & said & (at < end) & (at >= end - HORIZON_MS)]
        if len(before):
            leads.append((end - int(before.min())) / HOUR_MS)
    both, positives = int((true[ANY] & said).sum()), int(true[ANY].sum())
    known = [c.f1 for c in components.values() if c.steps]
    days = len(at) / 24 / 30
    return {
        "machines": len(np.unique(machines)),
        "folds": 0 if split.folds is None else min(split.folds, len(np.unique(steps.machines))),
        "gap_h": split.gap_ms / HOUR_MS,
        "steps": len(at),
        "positives": positives,
        "binary_f1": f1(true[ANY], said),
        "binary_precision": both / max(int(said.sum()), 1),
        "binary_recall": both / max(positives, 1),
        "macro_f1": float(np.mean([f1(~true[ANY], ~said), *known])),
        "f1_telemetry": f1(true[ANY], warned["telemetry"]),
        "f1_events": f1(true[ANY], warned["events"]),
        "over_telemetry": gain(true[ANY], said, warned["telemetry"], machines),
        "over_events": gain(true[ANY], said, warned["events"], machines),
        "components": components,
        "failures": len(ends),
        "foreseen": len(leads),
        "lead_h": float(np.median(leads)) if leads else float("nan"),
        "false_alarms": _false_runs(machines, at, said, ends) / days,
    }


def _false_runs(
    machines: npt.NDArray[Any],
    at: npt.NDArray[np.int64],
    said: npt.NDArray[np.bool_],
    ends: Sequence[tuple[str, int]],
) -> int:
    """Return how many runs of warnings no failure followed."""
    of: dict[str, list[int]] = {}
    for machine, end in ends:
        of.setdefault(machine, []).append(end)
    runs, last = 0, ("", -HORIZON_MS)
    for machine, time in zip(machines[said].tolist(), at[said].tolist(), strict=True):
        if any(time < end <= time + HORIZON_MS for end in of.get(machine, ())):
            continue
        if machine != last[0] or time - last[1] > HORIZON_MS:
            runs += 1
        last = (machine, time)
    return runs


def _time(option: str, text: str) -> int:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise UserError(f"{option} {text}: write a time as 2015-03-01T00:00") from None
    return int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)
