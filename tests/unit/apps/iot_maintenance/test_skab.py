"""Control charts on files of the benchmark's form, and its judgement against one by its words."""

from __future__ import annotations

import json
import random
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from millrace_apps.iot_maintenance.evaluation.cli import app
from millrace_apps.iot_maintenance.evaluation.skab import (
    TRAIN,
    WINDOW_MS,
    NotSkab,
    change_points,
    read_folder,
    read_recording,
)
from tests.cases import case_count

SENSORS = (
    "Accelerometer1RMS", "Accelerometer2RMS", "Current", "Pressure", "Temperature", "Thermocouple",
    "Voltage", "Volume Flow RateRMS",
)  # fmt: skip


def brute(true: list[list[int]], told: list[list[int]], price: float, lost: float) -> float | None:
    """Judge change points by the table of the benchmark's scale, a thousand steps to a minute."""
    steps = np.linspace(-np.pi / 2, np.pi / 2, 100_001)
    worth = -(1 + price) / 2 * np.tanh(steps) / np.tanh(np.pi / 2) + (1 + price) / 2 - price
    score, count = 0.0, 0
    for points, found in zip(true, told, strict=True):
        spans = [[p, p + WINDOW_MS] for p in points]
        for i in range(1, len(spans)):
            spans[i][0] = max(spans[i][0], spans[i - 1][1])
        taken = set()
        for low, high in spans:
            count += 1
            inside = sorted(t for t in found if low <= t <= high and t not in taken)
            taken.update(inside)
            if not inside:
                score -= lost
            else:
                place = (inside[0] - low) / (high - low) if high > low else 0
                score += worth[round(place * 100_000)]
        score -= price * sum(t not in taken for t in found)
    return None if not count else 100 * (score + lost * count) / (count + lost * count)


def test_change_points_are_judged_by_the_benchmarks_words() -> None:
    rng = random.Random(5)
    for _ in range(case_count(2_000, share=10)):
        true = [sorted(rng.sample(range(0, 600_000, 1_000), rng.randrange(4))) for _ in range(2)]
        told = [sorted(rng.sample(range(0, 600_000, 1_000), rng.randrange(6))) for _ in range(2)]
        found = change_points(true, told)
        for name, (price, lost) in {
            "standard": (0.11, 1.0),
            "low_fp": (0.22, 1.0),
            "low_fn": (0.11, 2.0),
        }.items():
            wanted = brute(true, told, price, lost)
            got = getattr(found, name)
            assert (got is None) == (wanted is None)
            if wanted is not None:
                assert got == pytest.approx(wanted, abs=0.02)
        assert found.found + found.missed == sum(map(len, true))


def test_nothing_is_0_and_every_change_at_once_is_100() -> None:
    points = [[0, 100_000], [50_000]]
    assert change_points(points, [[], []]).standard == 0
    assert change_points(points, points).standard == 100
    late = change_points([[0]], [[WINDOW_MS]])
    assert (late.standard, late.found) == (pytest.approx(100 * (1 - 0.11) / 2, abs=0.01), 1)
    assert change_points([[]], [[5]]).standard is None


# -- files ------------------------------------------------------------------------------------------


def recording(path: Path, *, seed: int, begin: int = 700, end: int = 900, rows: int = 1_100) -> None:
    """Eight sensors with three causes; for a while one of them leaves the others."""
    rng = np.random.default_rng(seed)
    mixed = rng.normal(size=(rows, 3)) @ np.random.default_rng(0).normal(size=(3, 8))
    values = mixed + 0.2 * rng.normal(size=(rows, 8)) + np.arange(8) * 10
    values[begin:end, 2] += 4.0
    start = datetime.fromisoformat("2020-03-09 10:00:00")
    lines = [";".join(("datetime", *SENSORS, "anomaly", "changepoint"))]
    for i, row in enumerate(values.tolist()):
        cells = [str(start + timedelta(seconds=i)), *(f"{x:.6f}" for x in row)]
        lines.append(";".join([*cells, f"{float(begin <= i < end)}", f"{float(i in (begin, end))}"]))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def folder(tmp_path: Path) -> Path:
    for number, name in enumerate(("valve1/0", "valve1/1", "valve2/0", "other/3")):
        recording(tmp_path / f"{name}.csv", seed=number + 1)
    free = tmp_path / "anomaly-free" / "anomaly-free.csv"
    recording(free, seed=9, begin=0, end=0)
    lines = [line.rsplit(";", 2)[0] for line in free.read_text().splitlines()]
    free.write_text("\n".join(lines))
    return tmp_path


def test_outliers_and_change_points_of_made_files_are_found(tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    scores = tmp_path / "scores"
    arguments = ["skab", "--data", str(folder(tmp_path)), "--out", str(out), "--engine", "memory"]
    arguments += ["--scores-dir", str(scores)]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    report = json.loads(out.read_text())
    assert (report["files"], report["rows"]) == (4, 4_400)
    assert report["outlier_f1"] > 0.9
    assert report["far"] < 5
    assert report["mar"] < 20
    assert report["after_training"]["rows"] == 4 * (1_100 - TRAIN)
    assert report["changepoint_nab"] > 50
    assert report["changes"]["found"] == 8
    assert report["changes_cusum"]["found"] >= 4
    assert set(report["by_folder"]) == {"valve1", "valve2", "other"}
    # What has no anomaly is judged for itself: each row that is told after what was learned is false.
    free = pd.read_csv(scores / "anomaly-free" / "anomaly-free.csv")
    assert not free["anomaly"].any()
    assert report["anomaly_free"] == round(100 * free["outlier"][TRAIN:].mean(), 2) < 5
    assert report["left_out"] == []
    # The rows say the same, and have the labels of their files.
    right = false = missed = 0
    for name in ("valve1/0", "valve1/1", "valve2/0", "other/3"):
        rows, given = (
            pd.read_csv(at / f"{name}.csv", sep=sep) for at, sep in ((scores, ","), (tmp_path, ";"))
        )
        assert list(rows["datetime"]) == list(given["datetime"])
        assert list(rows["anomaly"]) == list(given["anomaly"])
        assert list(rows["changepoint"]) == list(given["changepoint"])
        assert list(rows["outlier"]) == list((rows["score"] > 0.5).astype(int))
        right += int((rows["outlier"] & rows["anomaly"]).sum())
        false += int((rows["outlier"] & ~rows["anomaly"].astype(bool)).sum())
        missed += int((~rows["outlier"].astype(bool) & rows["anomaly"]).sum())
    assert report["outlier_f1"] == pytest.approx(right / (right + (false + missed) / 2), abs=1e-4)


def test_false_alarms_are_counted_where_nothing_is_wrong_and_in_no_other_figure(tmp_path: Path) -> None:
    """The same files beside one in which a sensor goes its own way though nobody has labelled that."""
    found = {}
    for name, begin in (("calm", 0), ("odd", 800)):
        data = folder(tmp_path / name)
        recording(data / "anomaly-free" / "anomaly-free.csv", seed=9, begin=begin, end=begin and 1_080)
        text = (data / "anomaly-free" / "anomaly-free.csv").read_text()
        unlabelled = [line.rsplit(";", 2)[0] for line in text.splitlines()]
        (data / "anomaly-free" / "anomaly-free.csv").write_text("\n".join(unlabelled))
        short = "\n".join(unlabelled[: TRAIN + 1])
        (data / "anomaly-free" / "short.csv").write_text(short)
        out = tmp_path / f"{name}.json"
        arguments = ["skab", "--data", str(data), "--out", str(out), "--engine", "memory"]
        arguments += ["--scores-dir", str(tmp_path / f"rows-{name}")]
        told = CliRunner().invoke(app, arguments, catch_exceptions=False)
        assert "anomaly-free/short.csv" in told.output
        found[name] = json.loads(out.read_text())
        assert found[name].pop("seconds") >= 0
        assert found[name].pop("left_out") == ["anomaly-free/short.csv"]
    calm, odd = (found[name].pop("anomaly_free") for name in ("calm", "odd"))
    assert calm < 5
    rows = pd.read_csv(tmp_path / "rows-odd" / "anomaly-free" / "anomaly-free.csv")
    assert odd == round(100 * rows["outlier"][TRAIN:].mean(), 2) > 10
    assert found["calm"] == found["odd"]


def test_without_a_file_that_is_free_of_anomalies_there_is_no_such_figure(tmp_path: Path) -> None:
    recording(tmp_path / "valve1" / "0.csv", seed=1)
    out = tmp_path / "r.json"
    arguments = ["skab", "--data", str(tmp_path), "--out", str(out), "--engine", "memory"]
    told = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert "no file" in told.output
    assert json.loads(out.read_text())["anomaly_free"] is None


def test_rows_keep_their_order_where_a_clock_stands_still(tmp_path: Path) -> None:
    path = tmp_path / "valve1" / "0.csv"
    recording(path, seed=1)
    lines = path.read_text().splitlines()
    lines[6] = ";".join([lines[5].split(";")[0], *lines[6].split(";")[1:]])
    path.write_text("\n".join(lines))
    found = read_recording(path)
    assert found.sensors == SENSORS
    assert found.times[5] == found.times[4] + 1
    assert found.times == sorted(set(found.times))
    assert found.changes == [found.times[700], found.times[900]]
    assert sum(found.outliers) == 200


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("datetime;a;anomaly;changepoint\n2020-03-09 10:00:00;x;0;0\n", "no rows"),
        ("datetime,a\n2020-03-09 10:00:00,1\n", "no rows"),
        ("datetime;anomaly\n2020-03-09 10:00:00;0\n", "no rows"),
        ("datetime;a;anomaly;changepoint\n2020-03-09 10:00:00;nan;0;0\n", "no rows"),
        ("datetime;a;anomaly;changepoint\n2020-03-09 10:00:00;1;0;0\n", "400 are learned from"),
        (f'datetime;a;anomaly;changepoint\n2020-03-09 10:00:00;"{"1" * 200_000}";0;0\n', "no rows"),
    ],
)
def test_a_file_of_another_kind_is_one_clear_line(tmp_path: Path, content: str, says: str) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "1.csv").write_text(content)
    with pytest.raises(NotSkab, match=says) as raised:
        read_folder(tmp_path)
    assert "\n" not in str(raised.value)


def test_a_folder_without_files_and_one_with_other_sensors_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotSkab, match="has no valve1"):
        read_folder(tmp_path)
    folder(tmp_path)
    odd = tmp_path / "valve2" / "7.csv"
    odd.write_text((tmp_path / "valve2" / "0.csv").read_text().replace("Current", "Amperes"))
    with pytest.raises(NotSkab, match="other sensors"):
        read_folder(tmp_path)
