"""Anomaly scores on series of the Numenta Anomaly Benchmark, through the app's pipeline.

Each series is a sensor whose every reading is scored. The benchmark's rows are judged in the order of the
file; where its clock goes back or stands still, a row is a millisecond after the one before.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from millrace.operators import novelty
from millrace.operators.anomaly import Novelty
from millrace_apps.iot_maintenance.contracts.events import Reading
from millrace_apps.iot_maintenance.evaluation.nab import NotNab, as_ms, name_of, read_windows
from millrace_apps.iot_maintenance.evaluation.nab_baselines import BASELINES
from millrace_apps.iot_maintenance.evaluation.nab_scoring import (
    Judge,
    Tally,
    best,
    normalised,
    points,
    steady,
    tally,
)
from millrace_apps.iot_maintenance.evaluation.stream import Engine, Sent, run, settings_for, written
from millrace_apps.iot_maintenance.settings import IotSettings

#: From which score on the app calls a value an anomaly.
SHIPPED: Final[float] = IotSettings.model_fields["scores"].default.threshold
WINDOWS: Final = "combined_windows.json"
#: What is chosen from on the other folders: parts of the detector, and other gains.
CANDIDATES: Final[dict[str, Novelty]] = {
    "level": novelty(season_weight=0, change_weight=0),
    "level+season": novelty(change_weight=0),
    "level+change": novelty(season_weight=0),
    "level+season+change": novelty(),
    "level+season+change, equal weights": novelty(season_weight=1, change_weight=1),
    "level+season+change, faster level": novelty(levels=(0.1, 0.05)),
    "level+season+change, slower level": novelty(levels=(0.02, 0.01)),
}


class Rows(NamedTuple):
    """A series in the order of its file.

    Attributes:
        name: Folder and file, as the windows name it.
        stamps: Times as the file has them.
        times: Times, ms, each after the one before.
        values: Values.
        judge: What is judged.
        labels: Whether a row is in a labelled window.
    """

    name: str
    stamps: list[str]
    times: list[int]
    values: list[float]
    judge: Judge
    labels: list[bool]

    @property
    def folder(self) -> str:
        """The folder it is in."""
        return self.name.split("/")[0]


class Chosen(msgspec.Struct, frozen=True):
    """What was chosen without a folder, and what it came to on that folder."""

    detector: str
    threshold: float
    result: Tally


class Nested(msgspec.Struct, frozen=True):
    """Detector and threshold chosen on the other folders, for each folder.

    Attributes:
        standard: Score over all folders.
        threshold_alone: The same where the detector is the shipped one, and its threshold is chosen.
        by_folder: What was chosen for each.
    """

    standard: float | None
    threshold_alone: float | None
    by_folder: dict[str, Chosen]


class Baseline(msgspec.Struct, frozen=True):
    """Another detector, with the threshold that is best on these very labels."""

    standard: float | None
    threshold: float


class ScoresReport(msgspec.Struct, frozen=True):
    """What the evaluation found.

    Attributes:
        standard: Score of the standard profile, of these files alone.
        low_fp: Score of the profile that rewards few false detections.
        low_fn: Score of the profile that rewards few missed windows.
        threshold: The one threshold.
        files: Series.
        rows: Their rows.
        windows: Labelled windows in them.
        windows_found: Those with a detection.
        false_detections: Detections outside of windows.
        by_folder: The same of each folder.
        best_threshold: The threshold that is best on these labels, as the benchmark's scoreboard takes it.
        best_standard: The score there.
        baselines: Other detectors on the same files.
        engine: Where it ran.
        seconds: How long the scoring took.
        nested: Where it was asked for: all chosen on the other folders.
    """

    standard: float | None
    low_fp: float | None
    low_fn: float | None
    threshold: float
    files: int
    rows: int
    windows: int
    windows_found: int
    false_detections: int
    by_folder: dict[str, Tally]
    best_threshold: float
    best_standard: float | None
    baselines: dict[str, Baseline]
    engine: str
    seconds: float
    nested: Nested | None = None


def read_rows(path: Path, windows: Sequence[tuple[int, int]]) -> Rows:
    """Return the series of a file.

    Args:
        path: The file.
        windows: First and last time of each labelled window, ms.

    Raises:
        NotNab: It cannot be read, or has no timestamps and values.
    """
    name = name_of(path)
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            found = [(row["timestamp"], float(row["value"])) for row in csv.DictReader(lines)]
        stamps, values = [stamp for stamp, _ in found], [value for _, value in found]
        told = [as_ms(stamp) for stamp in stamps]
    except (OSError, KeyError, TypeError, ValueError, csv.Error) as error:
        raise NotNab(f"{path} is no series of timestamp and value: {error}") from None
    if not found or not all(map(math.isfinite, values)):
        raise NotNab(f"{path} has {'values that are no numbers' if found else 'no values'}")
    times: list[int] = []
    for at in told:
        times.append(at if not times or at > times[-1] else times[-1] + 1)
    spans = [span for low, high in windows if (span := _span(told, low, high)) is not None]
    labels = [False] * len(times)
    for first, last in spans:
        labels[first : last + 1] = [True] * (last - first + 1)
    return Rows(name, stamps, times, values, Judge.of(len(times), spans), labels)


def _span(told: Sequence[int], low: int, high: int) -> tuple[int, int] | None:
    """Return first and last row of a window: those of its very times, where a clock goes back the first."""
    inside = [row for row, at in enumerate(told) if low <= at <= high]
    if not inside:
        return None
    first = inside[0]
    return first, next((row for row in inside if row >= first and told[row] == high), inside[-1])


def read_folder(data: Path) -> list[Rows]:
    """Return the series of a folder: ``FOLDER/FILE.csv``, or these in ``data``, and their windows beside.

    Raises:
        NotNab: There are none, or one has no windows.
    """
    labelled = read_windows(data / WINDOWS)
    root = data / "data" if (data / "data").is_dir() else data
    files = sorted(root.glob("*/*.csv"))
    if not files:
        raise NotNab(f"{root} has no FOLDER/FILE.csv")
    found = []
    for path in files:
        name = name_of(path)
        if name not in labelled:
            raise NotNab(f"{data / WINDOWS} has no entry {name}")
        found.append(read_rows(path, labelled[name]))
    return found


def evaluate(
    data: Path,
    *,
    threshold: float | None,
    nested: bool,
    engine: Engine,
    told: Callable[[int, int], None],
) -> tuple[ScoresReport, Mapping[str, list[float]], list[Rows]]:
    """Stream series, and judge the scores.

    Args:
        data: Folder with the series and their windows.
        threshold: The one threshold; ``None``: the app's.
        nested: Whether detector and threshold are also chosen on the other folders, for each folder.
        engine: Where it runs.
        told: Called with how many batches are done, of how many.

    Returns:
        The report, the score of each row by series, and the series.

    Raises:
        NotNab: There are no series, or no windows; or one folder only, where others are to be chosen on.
    """
    series = read_folder(data)
    if nested:
        _others_are_needed(series)
    scores, seconds = stream(series, engine=engine, told=told)
    report = judge(series, scores, SHIPPED if threshold is None else threshold, engine, seconds)
    if nested:
        report = msgspec.structs.replace(report, nested=choose(series))
    return report, {rows.name: scores[i] for i, rows in enumerate(series)}, series


def stream(
    series: Sequence[Rows], *, engine: Engine, told: Callable[[int, int], None]
) -> tuple[list[list[float]], float]:
    """Return the scores of each series' rows through the app's pipeline, and how long it took (s)."""
    sent = [
        Sent("readings", _reading(number, at, value))
        for number, rows in enumerate(series)
        for at, value in zip(rows.times, rows.values, strict=True)
    ]
    sent.sort(key=lambda one: one.event.event_time_ms)
    with written([]) as fleet:
        overrides = [f"monitor.fleet_file={fleet}", "monitor.sensor_least=3650d", "monitor.grace=0"]
        overrides += ["monitor.judge=false", "scores.interval=0", "spark.quick_start=true"]
        result = run(sent, settings_for(overrides), ["scores"], engine=engine, told=told)
    places = [{at: row for row, at in enumerate(rows.times)} for rows in series]
    scores = [[0.0] * len(rows.times) for rows in series]
    for row in result.rows["scores"]:
        number = int(row["machine_id"].removeprefix("series"))
        scores[number][places[number][row["event_time_ms"]]] = row["score"]
    return scores, result.seconds


def _reading(number: int, at: int, value: float) -> Reading:
    machine, quantity = f"series{number}", f"q{number}"
    return Reading(f"{machine}.{at}", f"{machine}.{quantity}", machine, "gateway", quantity, value, "1", at)


def judge(
    series: Sequence[Rows], scores: Sequence[Sequence[float]], threshold: float, engine: str, seconds: float
) -> ScoresReport:
    """Return what scores come to."""
    judges = [rows.judge for rows in series]
    whole = tally(judges, scores, threshold)
    folders = {}
    for folder in sorted({rows.folder for rows in series}):
        of = [i for i, rows in enumerate(series) if rows.folder == folder]
        folders[folder] = tally([judges[i] for i in of], [scores[i] for i in of], threshold)
    at, raw = best(judges, scores)
    others = {}
    for name, baseline in BASELINES.items():
        given = [baseline(rows.values) for rows in series]
        limit, reached = best(judges, given)
        others[name] = Baseline(normalised(reached, whole.windows), limit)
    return ScoresReport(
        standard=whole.standard,
        low_fp=whole.low_fp,
        low_fn=whole.low_fn,
        threshold=threshold,
        files=len(series),
        rows=sum(len(rows.times) for rows in series),
        windows=whole.windows,
        windows_found=whole.windows_found,
        false_detections=whole.false_detections,
        by_folder=folders,
        best_threshold=at,
        best_standard=normalised(raw, whole.windows),
        baselines=others,
        engine=engine,
        seconds=round(seconds, 2),
    )


def choose(series: Sequence[Rows], candidates: Mapping[str, Novelty] | None = None) -> Nested:
    """Choose detector and threshold for each folder on the others (nested leave-one-folder-out).

    Args:
        series: The series.
        candidates: Name → detector; :data:`CANDIDATES` unless given.

    Raises:
        NotNab: There is one folder only.
    """
    named = CANDIDATES if candidates is None else candidates
    windows = sum(rows.judge.windows for rows in series)
    shipped = [alone(novelty(), rows) for rows in series]
    raw_alone, _ = _held_out(series, {"shipped": shipped})
    scored = {name: [alone(detector, rows) for rows in series] for name, detector in named.items()}
    raw, by_folder = _held_out(series, scored)
    return Nested(normalised(raw, windows), normalised(raw_alone, windows), by_folder)


def _others_are_needed(series: Sequence[Rows]) -> list[str]:
    """Return the folders of series; one alone has no others to choose on."""
    folders = sorted({rows.folder for rows in series})
    if len(folders) < 2:
        raise NotNab("nested: there is one folder only; others are needed to choose on")
    return folders


def _held_out(
    series: Sequence[Rows], scored: Mapping[str, Sequence[Sequence[float]]]
) -> tuple[float, dict[str, Chosen]]:
    """Judge each folder with what is best on the others; return the raw points, and what was chosen."""
    total, chosen = 0.0, {}
    for folder in _others_are_needed(series):
        inside = [i for i, rows in enumerate(series) if rows.folder == folder]
        others = [i for i, rows in enumerate(series) if rows.folder != folder]
        judges = [series[i].judge for i in others]
        found = {name: steady(judges, [given[i] for i in others]) for name, given in scored.items()}
        name = max(found, key=lambda each: found[each][1])
        threshold = found[name][0]
        here, given = [series[i].judge for i in inside], [scored[name][i] for i in inside]
        total += points(here, given, threshold)
        chosen[folder] = Chosen(name, threshold, tally(here, given, threshold))
    return total, chosen


def alone(detector: Novelty, rows: Rows) -> list[float]:
    """Return the scores of a detector without a pipeline."""
    state, found = detector.new(), []
    for at, value in zip(rows.times, rows.values, strict=True):
        score = detector.add(state, value, at)
        found.append(0.0 if score is None else score.score)
    return found


def write_scores(folder: Path, series: Sequence[Rows], scores: Mapping[str, list[float]]) -> None:
    """Write the rows with their scores, in the benchmark's form: ``FOLDER/FILE.csv``.

    Raises:
        UserError: A file cannot be written.
    """
    from millrace.operations.report import write_text

    for rows in series:
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(("timestamp", "value", "anomaly_score", "label"))
        for row in zip(rows.stamps, rows.values, scores[rows.name], map(int, rows.labels), strict=True):
            writer.writerow(row)
        write_text(folder / rows.name, out.getvalue())
