"""Control charts on series of the Skoltech Anomaly Benchmark, as its authors judge them.

Each file is a machine with eight sensors, and a regime of its own: what is normal is learned from its first
rows (400, as published). A row is an outlier where T² or Q, medians of five rows, is beyond its limit; a
change point is where that begins or ends.
"""

from __future__ import annotations

import csv
import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from millrace.errors import UserError
from millrace.operators import control_chart, cusum, fit_chart
from millrace.operators.control import Chart
from millrace.runtime.apps import App, Topic, Topics
from millrace.runtime.settings import AppSettings, load_settings
from millrace.time import days
from millrace.topology import Input, Topology, read
from millrace_apps.iot_maintenance.evaluation.stream import Engine

FOLDERS: Final = ("valve1", "valve2", "other")
#: The folder of what has no anomaly, and no labels: what is told there is a false alarm.
FREE: Final = "anomaly-free"
TRAIN: Final = 400
SMOOTH: Final = 5
#: A change point is found in time for so long, ms.
WINDOW_MS: Final = 60_000
_ROWS, _CONTROL = "rows", "control"
_LABELS: Final = ("datetime", "anomaly", "changepoint")
#: What a false detection and a missed change point cost, by profile; a found one earns 1 at most.
_PROFILES: Final = {"standard": (0.11, 1.0), "low_fp": (0.22, 1.0), "low_fn": (0.11, 2.0)}


class NotSkab(UserError):
    """A folder or a file is not of the benchmark."""


class SensorRow(msgspec.Struct, frozen=True):
    """What a machine's sensors say at a time."""

    file: str
    values: tuple[float, ...]
    event_time_ms: int


class Recording(NamedTuple):
    """A file.

    Attributes:
        name: Folder and file.
        sensors: Names of its sensors.
        times: Times, ms, each after the one before.
        values: Values of the sensors.
        outliers: Whether a row is an outlier.
        changes: Times of its change points, ms.
    """

    name: str
    sensors: tuple[str, ...]
    times: list[int]
    values: list[tuple[float, ...]]
    outliers: list[bool]
    changes: list[int]


class Outliers(msgspec.Struct, frozen=True):
    """How rows were told.

    Attributes:
        f1: F1 of outliers.
        far: False alarms, per cent of the rows that are none.
        mar: Missed outliers, per cent.
        rows: Rows judged.
    """

    f1: float
    far: float
    mar: float
    rows: int


class Changes(msgspec.Struct, frozen=True):
    """How change points were found, on the scale from none (0) to each at once and nothing else (100).

    Attributes:
        standard: The standard profile.
        low_fp: The profile that rewards few false detections.
        low_fn: The profile that rewards few missed ones.
        found: Change points found within a minute.
        missed: Those that were not.
        false: Detections that are none.
    """

    standard: float | None
    low_fp: float | None
    low_fn: float | None
    found: int
    missed: int
    false: int


class SkabReport(msgspec.Struct, frozen=True):
    """What the evaluation found.

    Attributes:
        outlier_f1: F1 over all rows of all files, as published.
        far: False alarms, per cent.
        mar: Missed outliers, per cent.
        changepoint_nab: Change points, standard profile: where outliers begin or end, as published.
        outliers: The same figures over all rows, those that were learned from included.
        after_training: Over the rows after those.
        changes: Change points in full.
        changes_cusum: Change points found by a CUSUM of the score instead.
        by_folder: Outliers of each folder.
        files: Files judged.
        rows: Their rows.
        engine: Where it ran.
        seconds: How long it took.
        anomaly_free: False alarms in the folder of that name, per cent of the rows after those that were
            learned from; in none of the other figures. ``None``: there is no such file.
        left_out: Files of that folder that are too short, or of other sensors.
    """

    outlier_f1: float
    far: float
    mar: float
    changepoint_nab: float | None
    outliers: Outliers
    after_training: Outliers
    changes: Changes
    changes_cusum: Changes
    by_folder: dict[str, Outliers]
    files: int
    rows: int
    engine: str
    seconds: float
    anomaly_free: float | None = None
    left_out: list[str] = []


def read_recording(path: Path) -> Recording:
    """Return what a file has.

    Raises:
        NotSkab: It cannot be read, or has not what the benchmark's files have.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            reader = csv.DictReader(lines, delimiter=";")
            names = tuple(name for name in reader.fieldnames or () if name not in _LABELS)
            rows = list(reader)
        told = [
            int(datetime.fromisoformat(row["datetime"]).replace(tzinfo=UTC).timestamp() * 1000)
            for row in rows
        ]
        values = [tuple(float(row[name]) for name in names) for row in rows]
        outliers = [float(row.get("anomaly") or 0) > 0 for row in rows]
        marks = [float(row.get("changepoint") or 0) > 0 for row in rows]
    except (OSError, KeyError, TypeError, ValueError, csv.Error) as error:
        raise NotSkab(f"{path} has no rows of datetime;sensors…;anomaly;changepoint: {error}") from None
    if not names or not rows or not all(math.isfinite(x) for row in values for x in row):
        raise NotSkab(f"{path} has no rows of datetime;sensors…;anomaly;changepoint")
    times: list[int] = []
    for at in told:
        times.append(at if not times or at > times[-1] else times[-1] + 1)
    changes = [at for at, mark in zip(times, marks, strict=True) if mark]
    return Recording(f"{path.parent.name}/{path.name}", names, times, values, outliers, changes)


def read_folder(data: Path) -> list[Recording]:
    """Return the files of the folders valve1, valve2 and other, which are in ``data`` or in ``data/data``.

    Raises:
        NotSkab: There are none, or one is too short to be learned from.
    """
    root = data / "data" if (data / "data").is_dir() else data
    found = [read_recording(path) for name in FOLDERS for path in sorted((root / name).glob("*.csv"))]
    if not found:
        raise NotSkab(f"{root} has no valve1/*.csv, valve2/*.csv or other/*.csv")
    for one in found:
        if len(one.times) <= TRAIN:
            raise NotSkab(f"{one.name} has {len(one.times)} rows; {TRAIN} are learned from")
        if one.sensors != found[0].sensors:
            raise NotSkab(f"{one.name} has other sensors than {found[0].name}")
    return found


def read_free(data: Path, sensors: tuple[str, ...]) -> tuple[list[Recording], list[str]]:
    """Return the files of the folder anomaly-free that can be judged, and the names of those that cannot.

    Args:
        data: Has the folder, or has it in ``data``.
        sensors: Of which sensors they are to be.

    Raises:
        NotSkab: A file is none of the benchmark.
    """
    root = data / "data" if (data / "data").is_dir() else data
    found = [read_recording(path) for path in sorted((root / FREE).glob("*.csv"))]
    fits = [one for one in found if one.sensors == sensors and len(one.times) > TRAIN]
    return fits, [one.name for one in found if one not in fits]


def chart_app(chart: Chart) -> App:
    """Return the control chart as an app: rows of sensors, T² and Q of each."""

    def topology(_: AppSettings) -> Topology:
        process = control_chart(
            SensorRow, "values", chart, regime="file", smooth=SMOOTH, key="file_key", name="SkabChart",
            detector=cusum(learn=60, threshold=8.0), idle=days(1), in_order=True,
        )  # fmt: skip
        return (
            read(Input(_ROWS, "file"), control=_CONTROL)
            .process(process)
            .write(tables={"main": "health", "late": "late", "dead_letters": "dead_letters"})
        )

    def topics(_: Any) -> Topics:
        return Topics(reads=(Topic(_ROWS), Topic(_CONTROL)), control=_CONTROL)

    return App("iot-skab", "control charts of recorded machines", AppSettings, topology, topics)


def evaluate(
    data: Path, *, engine: Engine, told: Callable[[int, int], None], scores_dir: Path | None = None
) -> SkabReport:
    """Stream the files through a control chart, and judge what it says.

    Args:
        data: Folder with valve1, valve2 and other.
        engine: Where it runs.
        told: Called with how many batches are done, of how many.
        scores_dir: Where the rows with their scores go, as ``FOLDER/FILE.csv``; ``None``: nowhere.

    Raises:
        NotSkab: The folder has no such files.
    """
    files = read_folder(data)
    free, left_out = read_free(data, files[0].sensors)
    learned = {one.name: one.values[:TRAIN] for one in (*files, *free)}
    chart = fit_chart(learned, files[0].sensors)
    rows = [
        SensorRow(one.name, values, at)
        for one in (*files, *free)
        for at, values in zip(one.times, one.values, strict=True)
    ]
    rows.sort(key=lambda row: row.event_time_ms)
    found, seconds = (_on_spark if engine == "spark" else _in_memory)(chart_app(chart), rows, told)
    if scores_dir is not None:
        write_scores(scores_dir, [*files, *free], found)
    return judge(files, found, engine, seconds, free=free, left_out=left_out)


def write_scores(folder: Path, files: Sequence[Recording], found: Sequence[Any]) -> None:
    """Write the rows of each file with what the chart says of them.

    Args:
        folder: Gets ``FOLDER/FILE.csv`` with ``datetime`` (UTC), ``score`` (0.5 at the limit), ``outlier``
            and ``change`` as told, ``anomaly`` and ``changepoint`` as labelled.
        files: The files.
        found: Rows (``regime``, ``event_time_ms``, ``score``, ``change``), in any order.
    """
    from millrace.operations.report import write_text

    scores = {(row["regime"], row["event_time_ms"]): (row["score"], row["change"]) for row in found}
    for one in files:
        lines = ["datetime,score,outlier,change,anomaly,changepoint"]
        changes = set(one.changes)
        for at, true in zip(one.times, one.outliers, strict=True):
            score, change = scores.get((one.name, at), (0.0, ""))
            when = datetime.fromtimestamp(at / 1000, UTC).replace(tzinfo=None).isoformat(" ")
            lines.append(f"{when},{score!r},{int(score > 0.5)},{change},{int(true)},{int(at in changes)}")
        write_text(folder / one.name, "\n".join(lines) + "\n")


def judge(
    files: Sequence[Recording],
    found: Sequence[Any],
    engine: str,
    seconds: float,
    *,
    free: Sequence[Recording] = (),
    left_out: Sequence[str] = (),
) -> SkabReport:
    """Return what rows of the chart come to.

    Args:
        files: The files.
        found: Rows (``regime``, ``event_time_ms``, ``score``, ``change``), in any order.
        engine: Where it ran.
        seconds: How long it took.
        free: Files without anomalies.
        left_out: Names of such files that were not judged.
    """
    scores = {(row["regime"], row["event_time_ms"]): (row["score"], row["change"]) for row in found}
    calm = [[scores.get((one.name, at), (0.0, ""))[0] > 0.5 for at in one.times] for one in free]
    told: list[list[bool]] = []
    edges: list[list[int]] = []
    shifts: list[list[int]] = []
    for one in files:
        given = [scores.get((one.name, at), (0.0, "")) for at in one.times]
        states = [score > 0.5 for score, _ in given]
        told.append(states)
        edges.append([one.times[i] for i in range(1, len(states)) if states[i] != states[i - 1]])
        shifts.append([at for at, (_, change) in zip(one.times, given, strict=True) if change])
    whole = _outliers(files, told, 0)
    folders = {}
    for name in FOLDERS:
        inside = [i for i, one in enumerate(files) if one.name.startswith(f"{name}/")]
        if inside:
            folders[name] = _outliers([files[i] for i in inside], [told[i] for i in inside], 0)
    changes = change_points([one.changes for one in files], edges)
    return SkabReport(
        outlier_f1=whole.f1,
        far=whole.far,
        mar=whole.mar,
        changepoint_nab=changes.standard,
        outliers=whole,
        after_training=_outliers(files, told, TRAIN),
        changes=changes,
        changes_cusum=change_points([one.changes for one in files], shifts),
        by_folder=folders,
        files=len(files),
        rows=sum(len(one.times) for one in files),
        engine=engine,
        seconds=round(seconds, 2),
        anomaly_free=_outliers(free, calm, TRAIN).far if free else None,
        left_out=list(left_out),
    )


def _outliers(files: Sequence[Recording], told: Sequence[Sequence[bool]], since: int) -> Outliers:
    right = false = missed = calm = 0
    for one, states in zip(files, told, strict=True):
        for true, said in zip(one.outliers[since:], states[since:], strict=True):
            right += true and said
            false += said and not true
            missed += true and not said
            calm += not true and not said
    f1 = right / (right + (false + missed) / 2) if right else 0.0
    far = 100 * false / (false + calm) if false + calm else 0.0
    mar = 100 * missed / (missed + right) if missed + right else 0.0
    return Outliers(round(f1, 4), round(far, 2), round(mar, 2), right + false + missed + calm)


def change_points(true: Sequence[Sequence[int]], told: Sequence[Sequence[int]]) -> Changes:
    """Judge change points as the benchmark does: the first detection within a minute after each.

    It earns from 1 at once down to the price of a false one at the end of the minute, along a hyperbolic
    tangent; where two minutes overlap, the second begins where the first ends.

    Args:
        true: For each file its change points, ms.
        told: For each file the times of detections, ms.
    """
    raw = dict.fromkeys(_PROFILES, 0.0)
    found = missed = false = 0
    for points, detections in zip(true, told, strict=True):
        left = sorted(detections)
        end = -math.inf
        for point in sorted(points):
            begin, end = max(float(point), end), point + WINDOW_MS
            within = [at for at in left if begin <= at <= end]
            left = [at for at in left if not begin <= at <= end]
            if not within:
                missed += 1
                continue
            found += 1
            place = (within[0] - begin) / (end - begin) if end > begin else 0.0
            way = (place - 0.5) * math.pi
            for name, (price, _) in _PROFILES.items():
                middle = (1 + price) / 2
                raw[name] += middle - price - middle * math.tanh(way) / math.tanh(math.pi / 2)
        false += len(left)
    count = found + missed
    final: dict[str, float | None] = {}
    for name, (price, lost) in _PROFILES.items():
        total = raw[name] - price * false - lost * missed
        final[name] = round(100 * (total + lost * count) / (count + lost * count), 2) if count else None
    return Changes(**final, found=found, missed=missed, false=false)


def _batches(rows: Sequence[SensorRow], size: int = 5_000) -> Iterator[Sequence[SensorRow]]:
    for low in range(0, len(rows), size):
        yield rows[low : low + size]


def _in_memory(
    app: App, rows: Sequence[SensorRow], told: Callable[[int, int], None]
) -> tuple[list[Any], float]:
    import time

    from millrace.host.memory_chain import MemoryChain

    host = MemoryChain(app.topology(load_settings(AppSettings, app=app.name, env={})), out_of_orderness_ms=0)
    began, found = time.perf_counter(), []
    parts = list(_batches(rows))
    for number, part in enumerate(parts):
        for made in host.run_batch([(row.file, row.event_time_ms, row) for row in part]):
            if made.output == "main":
                found.append(msgspec.json.decode(made.payload))
        told(number + 1, len(parts))
    return found, time.perf_counter() - began


def _on_spark(
    app: App, rows: Sequence[SensorRow], told: Callable[[int, int], None]
) -> tuple[list[Any], float]:
    from millrace.runtime.replay import Record, run_records

    parts = list(_batches(rows))

    def records() -> Iterator[list[Record]]:
        for part in parts:
            yield [
                Record(_ROWS, msgspec.json.encode(row), row.file.encode(), row.event_time_ms) for row in part
            ]

    overrides = ["spark.quick_start=true", "stream.out_of_orderness=0s"]
    settings = load_settings(AppSettings, app=app.name, overrides=overrides, env={})
    with tempfile.TemporaryDirectory(prefix="millrace-skab-") as folder:
        done = run_records(
            app, settings, Path(folder), records(), on_batch=lambda batch, _: told(batch + 1, len(parts))
        )
        columns = ["regime", "event_time_ms", "score", "change"]
        return done.table("health", columns).to_pylist(), done.seconds
