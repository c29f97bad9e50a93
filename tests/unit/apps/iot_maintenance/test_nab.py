"""The benchmark's scoring against one by its words; and scores through the pipeline."""

from __future__ import annotations

import csv
import json
import math
import random
import shutil
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from millrace.errors import UserError
from millrace.operators import novelty
from millrace_apps.iot_maintenance.evaluation import anomalies
from millrace_apps.iot_maintenance.evaluation.anomalies import (
    CANDIDATES,
    alone,
    choose,
    judge,
    read_folder,
    write_scores,
)
from millrace_apps.iot_maintenance.evaluation.cli import app
from millrace_apps.iot_maintenance.evaluation.nab import NotNab, read_series
from millrace_apps.iot_maintenance.evaluation.nab_baselines import ewma, windowed_gaussian
from millrace_apps.iot_maintenance.evaluation.nab_scoring import (
    Judge,
    best,
    curve,
    normalised,
    points,
    probation,
    steady,
    tally,
)

Windows = list[tuple[int, int]]
WEIGHTS = {"standard": (0.11, 1.0), "low_fp": (0.22, 1.0), "low_fn": (0.11, 2.0)}


# -- the scoring ------------------------------------------------------------------------------------


def brute(
    lengths: Sequence[int],
    windows: Sequence[Windows],
    scores: Sequence[Sequence[float]],
    threshold: float,
    profile: str,
) -> float | None:
    """Score as the benchmark's description reads: all rewards of a window, its best; each false one alone."""
    a_fp, a_fn = WEIGHTS[profile]
    total = 0.0
    count = 0

    def s(y: float) -> float:
        return float(2 / (1 + np.exp(5 * y)) - 1)

    for n, spans, given in zip(lengths, windows, scores, strict=True):
        count += len(spans)
        quiet = min(math.floor(0.15 * n), math.floor(0.15 * 5_000))
        detected = [i for i in range(n) if i >= quiet and given[i] >= threshold]
        for left, right in spans:
            rewards = [
                s(-(right - i + 1) / (right - left + 1)) / s(-1) for i in detected if left <= i <= right
            ]
            total += max(rewards) if rewards else -a_fn
        for i in detected:
            if any(left <= i <= right for left, right in spans):
                continue
            before = [(left, right) for left, right in spans if right < i]
            if not before:
                total -= a_fp
                continue
            left, right = max(before, key=lambda span: span[1])
            away = math.inf if right == left else (i - right) / (right - left)
            total += a_fp * (-1.0 if away > 3 else s(away))
    if not count:
        return None
    null, perfect = -a_fn * count, float(count)
    return 100 * (total - null) / (perfect - null)


def made(rng: random.Random) -> tuple[list[int], list[Windows], list[list[float]]]:
    """Some series with windows, and scores that are often the same."""
    lengths, windows, scores = [], [], []
    for _ in range(rng.randrange(1, 4)):
        n = rng.randrange(8, 60)
        edges = sorted(rng.sample(range(n), 2 * rng.randrange(0, 3)))
        lengths.append(n)
        windows.append(list(zip(edges[::2], edges[1::2], strict=True)))
        scores.append([rng.choice([0.0, 0.2, 0.4, 0.6, 0.8, 1.0]) * rng.choice([0, 1, 1]) for _ in range(n)])
    return lengths, windows, scores


def test_the_scoring_is_that_of_the_benchmarks_words() -> None:
    rng = random.Random(11)
    for _ in range(10_000):
        lengths, windows, scores = made(rng)
        judges = [Judge.of(n, spans) for n, spans in zip(lengths, windows, strict=True)]
        threshold = rng.choice([0.1, 0.2, 0.5, 0.8, 1.0, 1.1])
        found = tally(judges, scores, threshold)
        for profile in WEIGHTS:
            wanted = brute(lengths, windows, scores, threshold, profile)
            got = getattr(found, profile)
            assert (got is None) == (wanted is None)
            if wanted is not None:
                assert got == pytest.approx(wanted, abs=1e-9)


def test_the_sum_at_every_threshold_is_that_of_its_detections() -> None:
    rng = random.Random(12)
    for _ in range(300):
        lengths, windows, scores = made(rng)
        judges = [Judge.of(n, spans) for n, spans in zip(lengths, windows, strict=True)]
        sums = curve(judges, scores)
        for threshold, total in sums[1:]:
            assert total == pytest.approx(points(judges, scores, threshold), abs=1e-9)
        assert best(judges, scores)[1] == pytest.approx(max(total for _, total in sums))
        assert sums[0] == (math.inf, -sum(map(len, windows)))


def test_nothing_is_0_and_the_first_row_of_each_window_is_100() -> None:
    judges = [Judge.of(1_000, [(300, 400), (600, 620)]), Judge.of(500, [(100, 199)])]
    nothing = [[0.0] * 1_000, [0.0] * 500]
    assert tally(judges, nothing, 0.5).standard == 0
    perfect = [[float(i in (300, 600)) for i in range(1_000)], [float(i == 100) for i in range(500)]]
    found = tally(judges, perfect, 0.5)
    assert (found.standard, found.low_fp, found.low_fn) == pytest.approx((100, 100, 100))
    assert (found.windows_found, found.false_detections) == (3, 0)
    assert tally([Judge.of(100, [])], [[0.0] * 99 + [1.0]], 0.5).standard is None


def test_what_a_detection_is_worth() -> None:
    """Numbers of the published function, and the price of a false one: 11 hundredths of a window."""
    of = {row: (window, worth) for row, window, worth in Judge.of(1_000, [(500, 599)]).rows}
    assert min(of) == probation(1_000) == 150
    assert probation(22_695) == 750
    assert of[499] == (-1, -1.0)
    assert of[500] == (0, pytest.approx(1.0))
    assert of[549][1] == pytest.approx(math.tanh(2.5 * 0.51) / math.tanh(2.5))
    assert 0 < of[599][1] < 0.03
    assert of[600][1] == pytest.approx(-math.tanh(2.5 / 99))
    assert of[599 + 3 * 99][1] > -1.0
    assert of[599 + 3 * 99 + 1] == (-1, -1.0)
    judges = [Judge.of(1_000, [(500, 599)])]
    one, two = ([[float(i in rows) for i in range(1_000)]] for rows in ({500}, {500, 400}))
    assert points(judges, one, 1) - points(judges, two, 1) == pytest.approx(0.11)


def test_a_threshold_that_is_best_by_chance_is_not_taken() -> None:
    """One window is found at .9 alone; at .2 to .5 all of them are."""
    judges = [Judge.of(2_000, [(500, 549), (1_000, 1_049), (1_500, 1_549)])]
    scores = [0.0] * 2_000
    for row, score in ((500, 0.55), (1_000, 0.5), (1_500, 0.9)):
        scores[row] = score
    for row in range(310, 490, 2):
        scores[row] = 0.1
    threshold, reached = steady(judges, [scores])
    assert 0.1 < threshold <= 0.5
    assert 0 < reached <= 3


# -- reading ----------------------------------------------------------------------------------------


def folder(tmp_path: Path, *, seed: int = 1) -> Path:
    """Three folders of series with an excursion each, and their windows."""
    rng = random.Random(seed)
    begin, windows = datetime.fromisoformat("2014-03-01"), {}
    for name, rows, where in (
        ("quiet/calm.csv", 900, None),
        ("pumps/a.csv", 1_400, 800),
        ("pumps/b.csv", 1_200, 700),
        ("belts/a.csv", 1_300, 1_000),
    ):
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        stamps = [begin + timedelta(minutes=5 * i) for i in range(rows)]
        with path.open("w", newline="") as out:
            writer = csv.writer(out)
            writer.writerow(("timestamp", "value"))
            for i, stamp in enumerate(stamps):
                odd = where is not None and where <= i < where + 20
                writer.writerow((stamp, round(20 + rng.gauss(0, 1) + 15 * odd, 3)))
        spans = [] if where is None else [(stamps[where - 10], stamps[where + 50])]
        windows[name] = [[f"{low}.000000", f"{high}.000000"] for low, high in spans]
    windows["elsewhere/not_here.csv"] = [["2014-03-01 00:00:00.000000", "2014-03-02 00:00:00.000000"]]
    (tmp_path / "combined_windows.json").write_text(json.dumps(windows))
    return tmp_path


def test_series_are_judged_in_the_order_of_their_file(tmp_path: Path) -> None:
    """A clock that is put back for an hour brings times again; a window ends at the first row of its end."""
    path = tmp_path / "x" / "y.csv"
    path.parent.mkdir()
    minutes = [*range(0, 60, 5), *range(30, 90, 5)]
    stamps = [f"2014-10-26 01:{m:02}:00" if m < 60 else f"2014-10-26 02:{m - 60:02}:00" for m in minutes]
    path.write_text("timestamp,value\n" + "".join(f"{s},{i}\n" for i, s in enumerate(stamps)))
    (tmp_path / "combined_windows.json").write_text(
        json.dumps({"x/y.csv": [["2014-10-26 01:20:00.000000", "2014-10-26 01:40:00.000000"]]})
    )
    (rows,) = read_folder(tmp_path)
    assert rows.values == list(map(float, range(len(stamps))))
    assert rows.stamps == stamps
    assert rows.times == sorted(set(rows.times))
    assert [i for i, label in enumerate(rows.labels) if label] == [4, 5, 6, 7, 8]
    assert rows.judge.windows == 1


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("time,number\n1,2\n", "no series"),
        ("timestamp,value\n2014-01-01 00:00:00,much\n", "no series"),
        ("timestamp,value\nyesterday,1\n", "no series"),
        ("timestamp,value\n2014-01-01 00:00:00,nan\n", "no numbers"),
        ("timestamp,value\n", "no values"),
        ("timestamp,value\n2014-01-01 00:00:00\n", "no series"),
        (f'timestamp,value\n2014-01-01 00:00:00,"{"1" * 200_000}"\n', "no series"),
    ],
)
def test_what_is_no_series_is_one_clear_line(tmp_path: Path, content: str, says: str) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "y.csv").write_text(content)
    (tmp_path / "combined_windows.json").write_text('{"x/y.csv": []}')
    with pytest.raises(NotNab, match=says) as raised:
        read_folder(tmp_path)
    assert "\n" not in str(raised.value)


def test_a_folder_without_windows_or_series_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotNab, match="no list of labelled windows"):
        read_folder(tmp_path)
    for text, why in (
        ("[1, 2]", "names no files"),
        ('{"a": [1]}', "no list"),
        ('{"a": [["x", "y"]]}', "no list"),
    ):
        (tmp_path / "combined_windows.json").write_text(text)
        with pytest.raises(NotNab, match=why):
            read_folder(tmp_path)
    (tmp_path / "combined_windows.json").write_text("{}")
    with pytest.raises(NotNab, match="has no FOLDER"):
        read_folder(tmp_path)
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "y.csv").write_text("timestamp,value\n2014-01-01 00:00:00,1\n")
    with pytest.raises(NotNab, match="no entry"):
        read_folder(tmp_path)


def test_what_is_linked_from_elsewhere_has_the_name_that_it_is_linked_by(tmp_path: Path) -> None:
    made, gathered = folder(tmp_path / "made"), tmp_path / "gathered"
    gathered.mkdir()
    (gathered / "wells").symlink_to(made / "data" / "pumps")
    (gathered / "belts").mkdir()
    (gathered / "belts" / "long.csv").symlink_to(made / "data" / "belts" / "a.csv")
    told = json.loads((made / "combined_windows.json").read_text())
    names = {"pumps/a.csv": "wells/a.csv", "pumps/b.csv": "wells/b.csv", "belts/a.csv": "belts/long.csv"}
    windows = {names[name]: spans for name, spans in told.items() if name in names}
    (gathered / "combined_windows.json").write_text(json.dumps(windows))
    found = read_folder(gathered)
    assert [rows.name for rows in found] == ["belts/long.csv", "wells/a.csv", "wells/b.csv"]
    assert {rows.folder for rows in found} == {"belts", "wells"}
    (by_alarms,) = [read_series(gathered / "belts" / "long.csv")]
    assert by_alarms.name == "belts/long.csv"


# -- through the pipeline ---------------------------------------------------------------------------


def invoke(*arguments: str) -> None:
    result = CliRunner().invoke(app, ["nab", *arguments, "--engine", "memory"], catch_exceptions=False)
    assert result.exit_code == 0, result.output


def test_the_pipeline_gives_the_scores_of_the_detector_and_the_report_is_of_these_files(
    tmp_path: Path,
) -> None:
    data, out, written = folder(tmp_path), tmp_path / "r.json", tmp_path / "rows"
    invoke("--data", str(data), "--out", str(out), "--scores-dir", str(written), "--nested")
    report = json.loads(out.read_text())
    series = read_folder(data)
    given, lengths, windows = [], [], []
    for rows in series:
        with (written / rows.name).open() as file:
            read = list(csv.DictReader(file))
        assert [row["timestamp"] for row in read] == rows.stamps
        assert [float(row["value"]) for row in read] == rows.values
        scores = [float(row["anomaly_score"]) for row in read]
        assert scores == alone(novelty(), rows)
        labels = [row["label"] == "1" for row in read]
        windows.append(
            [(labels.index(True), len(labels) - 1 - labels[::-1].index(True))] if any(labels) else []
        )
        given.append(scores)
        lengths.append(len(read))
    assert sum(map(len, windows)) == report["windows"] == 3
    for profile in WEIGHTS:
        wanted = brute(lengths, windows, given, anomalies.SHIPPED, profile)
        assert report[profile] == pytest.approx(wanted, abs=1e-9)
    assert report["standard"] > 40
    assert report["windows_found"] == 3
    assert report["threshold"] == anomalies.SHIPPED == 0.5
    assert report["by_folder"]["quiet"]["standard"] is None
    assert report["by_folder"]["pumps"]["windows"] == 2
    assert set(report["baselines"]) == {"windowed_gaussian", "ewma"}
    assert report["best_standard"] >= report["standard"]
    assert set(report["nested"]["by_folder"]) == {"belts", "pumps", "quiet"}
    # At a threshold that nothing reaches: no detection at all.
    invoke("--data", str(data), "--out", str(out), "--threshold", "1")
    assert json.loads(out.read_text())["standard"] == 0


def test_a_file_in_two_halves_scores_as_in_one_and_its_end_changes_no_score_before(tmp_path: Path) -> None:
    """What the pipeline says of the first half hangs on nothing that is to come."""
    data, written = folder(tmp_path / "whole"), tmp_path / "rows"
    invoke("--data", str(data), "--out", str(tmp_path / "r.json"), "--scores-dir", str(written / "whole"))
    half, turned = tmp_path / "half", tmp_path / "turned"
    for rows in read_folder(data):
        lines = (data / "data" / rows.name).read_text().splitlines()
        middle = len(lines) // 2
        rest = [f"{line.partition(',')[0]},{-1e6 + n}" for n, line in enumerate(lines[middle:])]
        for other, content in ((half, lines[:middle]), (turned, [*lines[:middle], *rest])):
            path = other / rows.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("\n".join(content) + "\n")
    for other in (half, turned):
        (other / "combined_windows.json").write_text((data / "combined_windows.json").read_text())
        arguments = ("--data", str(other), "--out", str(tmp_path / "r.json"))
        invoke(*arguments, "--scores-dir", str(written / other.name))

    def scores(of: str, name: str) -> list[str]:
        with (written / of / name).open() as file:
            return [row["anomaly_score"] for row in csv.DictReader(file)]

    for rows in read_folder(half):
        whole, first, other = (scores(of, rows.name) for of in ("whole", "half", "turned"))
        assert len(first) == len(rows.times) > 400
        assert first == whole[: len(first)] == other[: len(first)]
        assert other != whole


def test_that_there_are_no_other_folders_is_said_before_anything_is_streamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = folder(tmp_path)
    for other in ("quiet", "belts"):
        shutil.rmtree(data / "data" / other)
    monkeypatch.setattr(anomalies, "run", None)
    with pytest.raises(NotNab, match="one folder only"):
        invoke("--data", str(data), "--out", str(tmp_path / "r.json"), "--nested")


def test_scores_that_cannot_be_written_are_one_clear_line(tmp_path: Path) -> None:
    data, place = folder(tmp_path), tmp_path / "taken"
    place.write_text("a file")
    series = read_folder(data)
    with pytest.raises(UserError, match="cannot be written"):
        write_scores(place, series, {rows.name: [0.0] * len(rows.times) for rows in series})


def test_nested_chooses_on_the_other_folders_alone(tmp_path: Path) -> None:
    series = read_folder(folder(tmp_path))
    few = {name: CANDIDATES[name] for name in ("level", "level+season+change")}
    before = choose(series, few)
    # What a folder's labels say has no influence on what is chosen for it, and none on its scores.
    often = [(row, row + 5) for row in range(200, 1_300, 20)]
    turned = [
        rows._replace(judge=Judge.of(len(rows.times), often)) if rows.folder == "belts" else rows
        for rows in series
    ]
    after = choose(turned, few)
    chosen, anew = before.by_folder["belts"], after.by_folder["belts"]
    assert (chosen.detector, chosen.threshold) == (anew.detector, anew.threshold)
    assert chosen.result.standard != anew.result.standard
    assert before.standard is not None
    with pytest.raises(NotNab, match="one folder only"):
        choose([rows for rows in series if rows.folder == "pumps"], few)


def test_a_report_is_normalised_by_the_windows_of_its_files(tmp_path: Path) -> None:
    series = read_folder(folder(tmp_path))
    scores = [alone(novelty(), rows) for rows in series]
    whole = judge(series, scores, 0.5, "none", 0.0)
    some = [i for i, rows in enumerate(series) if rows.folder == "pumps"]
    part = judge([series[i] for i in some], [scores[i] for i in some], 0.5, "none", 0.0)
    assert part.standard == whole.by_folder["pumps"].standard
    raw = sum(points([rows.judge], [given], 0.5) for rows, given in zip(series, scores, strict=True))
    assert whole.standard == pytest.approx(normalised(raw, 3))


# -- what it is compared with -----------------------------------------------------------------------


def test_the_windowed_gaussian_is_that_of_the_benchmark() -> None:
    rng = np.random.default_rng(4)
    values = rng.normal(5, 2, 7_000)
    values[3_000:3_010] = 30
    window: list[float] = []
    step: list[float] = []
    wanted, mean, std = [], 0.0, 1.0
    for value in values:
        score = 0.0
        if window:
            x = value if value >= mean else 2 * mean - value
            score = 1 - 0.5 * math.erfc((x - mean) / std / 1.4142)
        wanted.append(score)
        if len(window) < 6_400:
            window.append(value)
            mean, std = float(np.mean(window)), float(np.std(window)) or 0.000001
        else:
            step.append(value)
            if len(step) == 100:
                window, step = window[100:] + step, []
                mean, std = float(np.mean(window)), float(np.std(window)) or 0.000001
    assert windowed_gaussian(values.tolist()) == pytest.approx(wanted, abs=1e-9)


def test_a_z_score_that_fades_is_no_score_before_it_knows_anything() -> None:
    rng = random.Random(2)
    found: list[Any] = ewma([*(rng.gauss(0, 1) for _ in range(200)), 50.0])
    assert found[:30] == [0.0] * 30
    assert found[-1] == max(found) > 0.8
