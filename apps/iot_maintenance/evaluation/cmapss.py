"""Remaining life of turbofan engines: NASA's C-MAPSS, streamed cycle by cycle through the app's pipeline.

A cycle is an hour, an engine a machine. Regimes, features and settings are learned and chosen on the training
engines alone; the test engines come as events, and what the table ``remaining_life`` says is judged.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from millrace.errors import UserError
from millrace.models.exports import CHAMPION, Exports
from millrace_apps.iot_maintenance.contracts.events import Reading
from millrace_apps.iot_maintenance.evaluation.stream import Engine, Sent, run, settings_for, written
from millrace_apps.iot_maintenance.foresight.baseline import Baseline, fitted
from millrace_apps.iot_maintenance.foresight.condition import Life
from millrace_apps.iot_maintenance.foresight.models import FEATURES_VERSION, LIFE_NAME, RISK_NAME
from millrace_apps.iot_maintenance.foresight.training import (
    LIFE,
    Boosting,
    Examples,
    LifeModel,
    learn_life,
    matrix_of,
    named,
)

if TYPE_CHECKING:
    import pandas as pd

HOUR_MS: Final = 3_600_000
#: When all engines begin, UTC ms.
START_MS: Final = 1_420_070_400_000
CONDITIONS: Final = ("op1", "op2", "op3")
SENSORS: Final = tuple(f"s{n}" for n in range(1, 22))
COLUMNS: Final = ("unit", "cycle", *CONDITIONS, *SENSORS)
SUBSETS: Final = ("FD001", "FD002", "FD003", "FD004")
#: What lives are judged up to, and what the capped figures cap them at, cycles.
CAP: Final = 125
#: A sensor that varies by less of its size says nothing.
_STILL: Final = 1e-6
#: Ways of learning that the training engines choose from, and their ceilings, cycles.
WAYS: Final = (
    (LIFE, float(CAP)),
    (msgspec.structs.replace(LIFE, leaves=31, least=200), float(CAP)),
)
_ROUNDS: Final = 1_000
_BATCH: Final = 20_000
#: Numbers of engines and cycles are so large at most: an event's time is made of them.
_LARGEST: Final = 10_000_000


class NotCmapss(UserError):
    """A folder or file is not of this data set."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What the evaluation found; lives are in cycles.

    Attributes:
        subset: Which part of the data set.
        train_engines: Engines learned from.
        test_engines: Engines forecast.
        regimes: Conditions of operation that were told apart.
        rmse_raw: Root mean squared error at the last cycle of each test engine.
        rmse_capped: The same, what was left and the forecast capped at 125.
        s_raw: The data set's score, which has late forecasts cost more than early ones; uncapped.
        s_capped: The same, both capped at 125.
        coverage_90: Of all cycles of test engines with at most 125 left, those within the 90 % interval.
        coverage_low: Lower end of its 95 % interval, engines resampled.
        coverage_high: Upper end.
        width: Mean width of these intervals.
        cv_rmse: Error on training engines that were held out, cut off at random as test engines are.
        cv_rmse_capped: The same, capped.
        cv_coverage: Coverage on training engines, of intervals that others gave.
        chosen: The way of learning that these figures chose.
        ways: What each way came to.
        features: Features of the model.
        features_differ: Test cycles whose features in the stream differ from those by a look at the table.
        rows: Test cycles forecast.
        events: Events streamed.
        events_per_s: How many of them a second.
        seconds: How long the stream took.
        engine: Where it ran.
    """

    subset: str
    train_engines: int
    test_engines: int
    regimes: int
    rmse_raw: float
    rmse_capped: float
    s_raw: float
    s_capped: float
    coverage_90: float
    coverage_low: float
    coverage_high: float
    width: float
    cv_rmse: float
    cv_rmse_capped: float
    cv_coverage: float
    chosen: str
    ways: list[str]
    features: int
    features_differ: int
    rows: int
    events: int
    events_per_s: float
    seconds: float
    engine: str


def read_engines(folder: Path, name: str) -> pd.DataFrame:
    """Return the cycles of engines, by engine and cycle.

    Args:
        folder: Has ``NAME.parquet``, ``NAME.txt`` or ``NAME.txt.gz``; texts have 26 columns and no heading.
        name: E.g. ``train_FD001``.

    Raises:
        NotCmapss: There is no such file, it is of something else, or a value in it is no number.
    """
    import pandas as pd

    parquet = folder / f"{name}.parquet"
    texts = [path for path in (folder / f"{name}.txt", folder / f"{name}.txt.gz") if path.is_file()]
    try:
        if parquet.is_file():
            found = pd.read_parquet(parquet)
        elif texts:
            found = pd.read_csv(texts[0], sep=r"\s+", header=None)
            if found.shape[1] != len(COLUMNS):
                raise NotCmapss(f"{texts[0]} has {found.shape[1]} columns, C-MAPSS has {len(COLUMNS)}")
            found.columns = pd.Index(COLUMNS)
        else:
            raise NotCmapss(f"{folder} has no {name}.parquet and no {name}.txt")
    except (OSError, ValueError) as error:
        raise NotCmapss(f"{folder / name} cannot be read: {' '.join(str(error).split())}") from None
    if missing := [column for column in COLUMNS if column not in found]:
        raise NotCmapss(f"{name} has no column {missing[0]}: it is not C-MAPSS")
    if found.empty:
        raise NotCmapss(f"{name} has no rows")
    return _numbers(found[list(COLUMNS)], name).sort_values(["unit", "cycle"], ignore_index=True)


def _numbers(engines: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return engines with whole numbers for unit and cycle, and finite ones for all else.

    Raises:
        NotCmapss: A value is no such number, or an engine has a cycle twice.
    """
    import pandas as pd

    found: pd.DataFrame = engines.apply(pd.to_numeric, errors="coerce")
    for column in COLUMNS:
        values = found[column].to_numpy(dtype=float)
        wrong = ~np.isfinite(values)
        if column in ("unit", "cycle"):
            wrong |= ~(np.abs(values) <= _LARGEST) | (values != np.floor(values))
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            kind = "whole number" if column in ("unit", "cycle") else "number"
            raise NotCmapss(f"{name}, row {row + 1}: {column} is no {kind}: {engines[column].iloc[row]}")
    found = found.astype({"unit": "int64", "cycle": "int64"})
    if (twice := found.duplicated(["unit", "cycle"])).any():
        unit, cycle = found.loc[twice, ["unit", "cycle"]].iloc[0]
        raise NotCmapss(f"{name}: engine {unit} has cycle {cycle} twice")
    return found


def read_left(folder: Path, subset: str) -> list[int]:
    """Return the cycles that each test engine has left, in the order of the engines.

    Raises:
        NotCmapss: The file is not there, or has other things than numbers.
    """
    path = folder / f"RUL_{subset}.txt"
    try:
        return [int(float(text)) for text in path.read_text(encoding="utf-8").split()]
    except (OSError, ValueError, OverflowError) as error:
        raise NotCmapss(f"{path} cannot be read: {error}") from None


def baseline_of(train: pd.DataFrame) -> Baseline:
    """Return the regimes of the training engines, and what the sensors that vary are like in each."""
    spread = train[list(SENSORS)].std()
    size = train[list(SENSORS)].abs().max()
    moving = [name for name in SENSORS if spread[name] > _STILL * max(float(size[name]), 1e-12)]
    if not moving:
        raise NotCmapss("no sensor of the training engines varies")
    return fitted(CONDITIONS, moving, {name: train[name].to_numpy() for name in (*CONDITIONS, *moving)})


def features_of(engines: pd.DataFrame, baseline: Baseline) -> list[dict[str, float]]:
    """Return the features of each cycle, as the stream makes them, by a look at the table."""
    return list(_features(engines, baseline))


def _features(engines: pd.DataFrame, baseline: Baseline) -> Iterator[dict[str, float]]:
    """Yield the same one by one: all of them are some hundreds of MB."""
    wanted = [name for name in (*CONDITIONS, *SENSORS) if baseline.wants(name)]
    for _, cycles in engines.groupby("unit", sort=True):
        columns = [cycles[name].astype(float).tolist() for name in wanted]
        life = Life(begun=_at(int(cycles["cycle"].iloc[0])))
        for cycle, *values in zip(cycles["cycle"].tolist(), *columns, strict=True):
            life.due = _at(cycle)
            for name, value in zip(wanted, values, strict=True):
                life.take(name, value)
            yield life.close(baseline)


def examples_of(train: pd.DataFrame, features: Sequence[dict[str, float]]) -> Examples:
    """Return the cycles of engines that ran until they failed."""
    inputs = named(features)
    last = train.groupby("unit")["cycle"].transform("max")
    left = (last - train["cycle"]).to_numpy(dtype=float)
    return Examples(matrix_of(features, inputs), inputs, left, train["unit"].to_numpy(dtype=np.int64))


def _at(cycle: int) -> int:
    return START_MS + cycle * HOUR_MS


def events_of(engines: pd.DataFrame, baseline: Baseline) -> Iterator[Sent]:
    """Yield the readings of all engines, cycle by cycle."""
    names = (*CONDITIONS, *SENSORS)
    ordered = engines.sort_values(["cycle", "unit"])
    columns = [ordered[name].astype(float).tolist() for name in names]
    for unit, cycle, *values in zip(
        ordered["unit"].tolist(), ordered["cycle"].tolist(), *columns, strict=True
    ):
        machine, at = f"engine{unit}", _at(cycle)
        for name, value in zip(names, values, strict=True):
            yield Sent(
                "readings",
                Reading(f"{unit}.{name}.{cycle}", f"{unit}.{name}", machine, "gateway", name, value, "1", at),
            )


def export(model: LifeModel, inputs: Sequence[str], folder: Path) -> None:
    """Let workers find a model of remaining life as the champion."""
    Exports(str(folder), LIFE_NAME).publish_estimator(
        CHAMPION,
        model.estimator,
        inputs=tuple(inputs),
        features_version=FEATURES_VERSION,
        kind="regressor",
        about={"calibration": msgspec.to_builtins(model.calibration)},
    )


def evaluate(
    folder: Path,
    subset: str,
    *,
    engine: Engine,
    ways: Sequence[tuple[Boosting, float]] | None = None,
    said: Callable[[str], None] = lambda line: None,
    told: Callable[[int, int], None] = lambda done, of: None,
) -> tuple[Report, pd.DataFrame]:
    """Learn from the training engines, stream the test engines, and judge what was forecast.

    Args:
        folder: The data.
        subset: Which part of it, e.g. ``FD001``.
        engine: Where it runs.
        ways: Ways of learning that the training engines choose from; ``None``: :data:`WAYS`.
        said: Called with a line on each way of learning.
        told: Called with how many batches are done, of how many.

    Returns:
        The report, and the forecast of every test cycle.

    Raises:
        NotCmapss: The folder does not have the data.
    """
    train, test = read_engines(folder, f"train_{subset}"), read_engines(folder, f"test_{subset}")
    rest = read_left(folder, subset)
    units = sorted(test["unit"].unique().tolist())
    if len(rest) != len(units):
        raise NotCmapss(f"RUL_{subset}.txt has {len(rest)} lines for {len(units)} test engines")
    baseline = baseline_of(train)
    examples = examples_of(train, features_of(train, baseline))
    ways = WAYS if ways is None else ways
    lines: list[str] = []

    def note(line: str) -> None:
        lines.append(line)
        said(line)

    model, chosen = learn_life(examples, ways, cut=True, told=note)
    with tempfile.TemporaryDirectory(prefix="millrace-cmapss-") as name, written([]) as fleet:
        exports, kept = Path(name, "exported"), Path(name, "baseline.json")
        export(model, examples.inputs, exports)
        (exports / RISK_NAME).mkdir()  # of risks there is no model
        kept.write_bytes(msgspec.json.encode(baseline))
        overrides = [
            f"monitor.fleet_file={fleet}", "monitor.judge=false", "monitor.sensor_least=30d",
            "monitor.grace=0s",
            "foresight.on=true", f"foresight.baseline={kept}", f"foresight.exports={exports}",
            "spark.quick_start=true",
        ]  # fmt: skip
        tables = ["remaining_life", "machine_features"]
        result = run(
            list(events_of(test, baseline)), settings_for(overrides), tables,
            engine=engine, batch=_BATCH, told=told,
        )  # fmt: skip
    scores = scores_of(result.rows["remaining_life"], test, dict(zip(units, rest, strict=True)))
    differ = differing(result.rows["machine_features"], test, _features(test, baseline))
    report = _judged(scores, units)
    return (
        Report(
            subset=subset,
            train_engines=int(train["unit"].nunique()),
            test_engines=len(units),
            regimes=len(baseline.usual),
            **report,
            cv_rmse=model.figures.rmse,
            cv_rmse_capped=model.figures.capped,
            cv_coverage=model.figures.coverage,
            chosen=str(ways[chosen]),
            ways=lines,
            features=len(examples.inputs),
            features_differ=differ,
            rows=len(scores),
            events=result.events,
            events_per_s=round(result.events_per_s, 1),
            seconds=round(result.seconds, 3),
            engine=engine,
        ),
        scores,
    )


def scores_of(rows: Sequence[dict[str, Any]], test: pd.DataFrame, rest: dict[int, int]) -> pd.DataFrame:
    """Return forecasts beside what was left: unit, cycle, left, remaining, low, high, by engine and cycle.

    Args:
        rows: Rows of ``remaining_life``.
        test: The test engines.
        rest: Engine → what it has left at its last cycle.

    Raises:
        NotCmapss: A cycle has no forecast, or two.
    """
    import pandas as pd

    last = test.groupby("unit")["cycle"].max()
    found = pd.DataFrame(
        [
            {
                "unit": int(row["machine_id"].removeprefix("engine")),
                "cycle": (row["event_time_ms"] - START_MS) // HOUR_MS,
                "remaining": row["remaining_h"],
                "low": row["low_h"],
                "high": row["high_h"],
            }
            for row in rows
        ],
        columns=["unit", "cycle", "remaining", "low", "high"],
    )
    found = test[["unit", "cycle"]].merge(found, on=["unit", "cycle"], how="outer", indicator=True)
    if len(found) != len(test) or (found["_merge"] != "both").any():
        raise NotCmapss("the stream did not forecast each cycle once")
    left = found["unit"].map(last) - found["cycle"] + found["unit"].map(rest)
    found.insert(2, "left", left.astype(int))
    return found.drop(columns="_merge").sort_values(["unit", "cycle"], ignore_index=True)


def differing(rows: Sequence[dict[str, Any]], test: pd.DataFrame, wanted: Iterable[dict[str, float]]) -> int:
    """Return how many cycles have other features in the stream than by a look at the table."""
    streamed = {
        (int(row["machine_id"].removeprefix("engine")), (row["event_time_ms"] - START_MS) // HOUR_MS): dict(
            row["features"]
        )
        for row in rows
    }
    differ = max(len(rows) - len(test), 0)
    for unit, cycle, mine in zip(test["unit"].tolist(), test["cycle"].tolist(), wanted, strict=True):
        other = streamed.get((unit, cycle), {})
        same = other.keys() == mine.keys() and all(
            abs(other[name] - value) <= 1e-9 * max(1.0, abs(value)) for name, value in mine.items()
        )
        differ += not same
    return differ


def score(off: Any) -> float:
    """Return the data set's score of errors (forecast less truth), cycles: late costs more than early."""
    off = np.asarray(off, dtype=float)
    return float(np.where(off < 0, np.exp(-off / 13) - 1, np.exp(off / 10) - 1).sum())


def _judged(scores: pd.DataFrame, units: Sequence[int]) -> dict[str, float]:
    at_end = scores.groupby("unit").tail(1)
    off = (at_end["remaining"] - at_end["left"]).to_numpy()
    capped = (at_end["remaining"].clip(upper=CAP) - at_end["left"].clip(upper=CAP)).to_numpy()
    within = scores[scores["left"] <= CAP]
    inside = ((within["low"] <= within["left"]) & (within["left"] <= within["high"])).to_numpy()
    by_unit = {unit: inside[(within["unit"] == unit).to_numpy()] for unit in units}
    sums = np.array([part.sum() for part in by_unit.values()])
    counts = np.array([len(part) for part in by_unit.values()])
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, len(units), (_ROUNDS, len(units)))
    shares = sums[drawn].sum(axis=1) / np.maximum(counts[drawn].sum(axis=1), 1)
    low, high = np.quantile(shares, [0.025, 0.975])
    return {
        "rmse_raw": float(np.sqrt(np.mean(off**2))),
        "rmse_capped": float(np.sqrt(np.mean(capped**2))),
        "s_raw": score(off),
        "s_capped": score(capped),
        "coverage_90": float(inside.mean()) if len(inside) else float("nan"),
        "coverage_low": float(low),
        "coverage_high": float(high),
        "width": float((within["high"] - within["low"]).mean()),
    }
