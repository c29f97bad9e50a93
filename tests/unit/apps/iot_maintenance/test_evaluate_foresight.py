"""The evaluations of what looks ahead on small data of the same formats, in memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from millrace.errors import UserError
from millrace_apps.iot_maintenance.evaluation import azure, azure_pdm, cmapss
from millrace_apps.iot_maintenance.evaluation.cli import app
from millrace_apps.iot_maintenance.foresight.condition import Life
from tests.unit.apps.iot_maintenance.foresight_cases import SMALL

MIDDLE = np.array(
    [[0, 0, 100], [10, 0.25, 100], [20, 0.7, 100], [25, 0.62, 60], [35, 0.84, 100], [42, 0.84, 100]]
)


def invoke(*arguments: str) -> str:
    result = CliRunner().invoke(app, [*arguments, "--engine", "memory"])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def engines(count: int, seed: int, regimes: int, cut: bool) -> tuple[pd.DataFrame, list[int]]:
    """Engines in as many conditions whose second and third sensors drift; cut off with so much left."""
    rng = np.random.default_rng(seed)
    rows, left = [], []
    for unit in range(1, count + 1):
        life = int(rng.integers(90, 150))
        rest = int(rng.integers(5, 50)) if cut else 0
        left.append(rest)
        for cycle in range(1, life - rest + 1):
            at = int(rng.integers(0, regimes))
            worn = (cycle / life) ** 3
            ops = MIDDLE[at] + rng.normal(0, [0.003, 0.0003, 0.0])
            sensors = [518.0] + [100.0 * n + 40 * at + rng.normal(0, 1) for n in range(2, 22)]
            sensors[1] += 9 * worn
            sensors[2] -= 7 * worn
            rows.append([unit, cycle, *ops, *sensors])
    found = pd.DataFrame(rows, columns=list(cmapss.COLUMNS))
    return found.astype({"unit": "int64", "cycle": "int64"}), left


@pytest.fixture
def six(tmp_path: Path) -> Path:
    """FD002 as text files, with six conditions."""
    train, _ = engines(14, 1, 6, cut=False)
    test, left = engines(8, 2, 6, cut=True)
    train.to_csv(tmp_path / "train_FD002.txt", sep=" ", header=False, index=False)
    test.to_csv(tmp_path / "test_FD002.txt", sep=" ", header=False, index=False)
    (tmp_path / "RUL_FD002.txt").write_text("\n".join(map(str, left)) + "\n")
    return tmp_path


def test_engines_in_six_conditions_are_forecast_cycle_by_cycle(
    six: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cmapss, "WAYS", ((SMALL, 125.0),))
    out, kept = tmp_path / "r.json", tmp_path / "s"
    arguments = ("--data", str(six), "--subset", "FD002", "--out", str(out), "--scores-dir", str(kept))
    told = invoke("cmapss", *arguments)
    report = json.loads(out.read_text())
    assert (report["regimes"], report["features_differ"], report["test_engines"]) == (6, 0, 8)
    assert report["rmse_raw"] < 25  # of lives of 120 cycles on average
    assert report["rmse_capped"] <= report["rmse_raw"] + 1e-9
    assert 0.5 < report["coverage_90"] <= 1
    assert report["coverage_low"] <= report["coverage_90"] <= report["coverage_high"]
    assert "cv_rmse" in told
    scores = pd.read_csv(tmp_path / "s" / "cmapss_FD002.csv")
    test = cmapss.read_engines(six, "test_FD002")
    assert len(scores) == len(test) == report["rows"]
    # The figures are those of the scores.
    last = scores.groupby("unit").tail(1)
    off = last["remaining"] - last["left"]
    assert last["left"].tolist() == cmapss.read_left(six, "FD002")
    assert np.sqrt((off**2).mean()) == pytest.approx(report["rmse_raw"])
    assert cmapss.score(off) == pytest.approx(report["s_raw"])
    within = scores[scores["left"] <= 125]
    assert within["left"].between(within["low"], within["high"]).mean() == pytest.approx(
        report["coverage_90"]
    )


def test_parquet_and_text_are_the_same(six: Path) -> None:
    before = cmapss.read_engines(six, "train_FD002")
    before.to_parquet(six / "train_FD002.parquet")
    (six / "train_FD002.txt").write_text("spoilt")
    pd.testing.assert_frame_equal(cmapss.read_engines(six, "train_FD002"), before)


def test_regimes_and_features_are_of_training_engines_and_the_past_alone(six: Path) -> None:
    train, test = (cmapss.read_engines(six, f"{name}_FD002") for name in ("train", "test"))
    baseline = cmapss.baseline_of(train)
    assert not baseline.wants("s1")  # it never varies
    whole = cmapss.features_of(test, baseline)
    spoilt = test.copy()
    late = spoilt["cycle"] > 40
    spoilt.loc[late, "s2"] = 1e6
    again = cmapss.features_of(spoilt, baseline)
    early = (~late).to_numpy()
    assert [f for f, e in zip(whole, early, strict=True) if e] == [
        f for f, e in zip(again, early, strict=True) if e
    ]
    assert whole != again
    life = Life(begun=0)
    assert life.points == {}


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("RUL_FD002.txt", "7\n", "1 lines for 8 test engines"),
        ("RUL_FD002.txt", "x\n", "cannot be read"),
        ("train_FD002.txt", "1 2 3\n", "has 3 columns, C-MAPSS has 26"),
    ],
)
def test_what_is_no_cmapss_is_said_in_a_line(six: Path, file: str, text: str, said: str) -> None:
    (six / file).write_text(text)
    with pytest.raises(UserError, match=said):
        invoke("cmapss", "--data", str(six), "--subset", "FD002", "--out", str(six / "r.json"))


CYCLE = " ".join(["0"] * 24)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (f"1 1 {CYCLE}\n1 2 nan {CYCLE[2:]}\n", "train_FD002, row 2: op1 is no number: nan"),
        (f"1 1 {CYCLE}\n1 2 {CYCLE[:-1]}x\n", "row 2: s21 is no number: x"),
        (f"1 1.5 {CYCLE}\n", r"row 1: cycle is no whole number: 1\.5"),
        (f"inf 1 {CYCLE}\n", "row 1: unit is no whole number: inf"),
        (f"1 1e12 {CYCLE}\n", "row 1: cycle is no whole number"),
        (f"1 1 {CYCLE}\n2 1 {CYCLE}\n2 1 {CYCLE}\n", "engine 2 has cycle 1 twice"),
        (f"1 1 {CYCLE}\n1 2 {CYCLE} 7\n", "cannot be read"),
        ("", "cannot be read"),
    ],
)
def test_a_row_that_is_no_cycle_is_named(six: Path, rows: str, said: str) -> None:
    (six / "train_FD002.txt").write_text(rows)
    with pytest.raises(cmapss.NotCmapss, match=said) as refused:
        cmapss.read_engines(six, "train_FD002")
    assert "\n" not in str(refused.value)


def test_whole_numbers_may_be_written_with_a_point(six: Path) -> None:
    (six / "train_FD002.txt").write_text(f"1.0 1.0000 {CYCLE}\n1.0 2e0 {CYCLE}\n")
    found = cmapss.read_engines(six, "train_FD002")
    assert found[["unit", "cycle"]].to_numpy().tolist() == [[1, 1], [1, 2]]
    assert {str(found[name].dtype) for name in ("unit", "cycle")} == {"int64"}


def test_what_is_left_is_a_number_without_end_is_said(six: Path) -> None:
    (six / "RUL_FD002.txt").write_text("inf\n" * 8)
    with pytest.raises(UserError, match=r"RUL_FD002\.txt cannot be read"):
        cmapss.read_left(six, "FD002")


@pytest.mark.parametrize(("lives", "said"), [((90,), "two at least"), ((3, 4), "too few or too short")])
def test_too_few_or_too_short_lives_teach_nothing(
    six: Path, lives: tuple[int, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cmapss, "WAYS", ((SMALL, 125.0),))
    train = cmapss.read_engines(six, "train_FD002")
    keep = [n for unit, life in enumerate(lives, 1)
            for n in np.flatnonzero((train["unit"] == unit) & (train["cycle"] <= life))]  # fmt: skip
    train.iloc[keep].to_csv(six / "train_FD002.txt", sep=" ", header=False, index=False)
    with pytest.raises(UserError, match=said):
        invoke("cmapss", "--data", str(six), "--subset", "FD002", "--out", str(six / "r.json"))


def test_a_subset_that_is_not_there_is_said(six: Path) -> None:
    with pytest.raises(UserError, match=r"no train_FD009\.parquet"):
        invoke("cmapss", "--data", str(six), "--subset", "FD009", "--out", str(six / "r.json"))


def test_late_forecasts_cost_more() -> None:
    assert cmapss.score([10.0]) == pytest.approx(np.e - 1)
    assert cmapss.score([-13.0]) == pytest.approx(np.e - 1)
    assert cmapss.score([0.0]) == 0.0


# -- azure-pdm -----------------------------------------------------------------------------------


@pytest.fixture
def plant(tmp_path: Path) -> Path:
    """Six machines for forty days: a component fails a day after its error where its quantity has drifted."""
    rng = np.random.default_rng(3)
    hours = pd.date_range("2015-01-01 06:00", periods=40 * 24, freq="h")
    telemetry, errors, maint, failures = [], [], [], []
    for machine in range(1, 7):
        values = {q: rng.normal(100, 3, len(hours)) for q in azure.QUANTITIES}
        for place in range(4):
            at = int(rng.integers(60 + 210 * place, 210 + 210 * place))
            quantity, component = (("volt", "comp1"), ("rotate", "comp2"))[place % 2]
            values[quantity][at - 48 : at] += 12
            code = ("error1", "error2")[place % 2]
            errors.append({"datetime": hours[at - 24], "machineID": machine, "errorID": code})
            failures.append({"datetime": hours[at], "machineID": machine, "failure": component})
            maint.append({"datetime": hours[at], "machineID": machine, "comp": component})
        for _ in range(8):  # errors that mean nothing
            at = int(rng.integers(0, len(hours)))
            errors.append(
                {"datetime": hours[at], "machineID": machine, "errorID": rng.choice(["error1", "error2"])}
            )
        telemetry.append(pd.DataFrame({"datetime": hours, "machineID": machine, **values}))
    pd.concat(telemetry).to_parquet(tmp_path / "telemetry_x.parquet")
    for name, rows in (("errors", errors), ("maint", maint), ("failures", failures)):
        pd.DataFrame(rows).to_csv(tmp_path / f"{name}_x.csv", index=False)
    machines = pd.DataFrame({"machineID": range(1, 7), "model": ["m1", "m2"] * 3, "age": range(1, 7)})
    machines.to_csv(tmp_path / "machines_x.csv", index=False)
    return tmp_path


def test_failures_are_foreseen_from_the_join(plant: Path, tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    told = invoke(
        "azure-pdm",
        "--data",
        str(plant),
        "--folds",
        "3",
        "--out",
        str(out),
        "--scores-dir",
        str(tmp_path / "s"),
    )
    report = json.loads(out.read_text())
    assert (report["machines"], report["folds"], report["failures"], report["gap_h"]) == (6, 3, 24, 24.0)
    assert report["binary_f1"] > 0.9
    assert report["binary_f1"] > report["f1_events"]
    assert {name: c["failures"] for name, c in report["components"].items()} == {"comp1": 12, "comp2": 12}
    assert report["macro_f1"] > 0.85
    assert "comp1: 12 failures, " in " ".join(told.split())
    scores = pd.read_csv(tmp_path / "s" / "azure_pdm.csv")
    assert len(scores) == report["steps"]
    said = scores[[c for c in scores if c.startswith("joined_")]].max(axis=1) > 0.5
    both = (said & scores["any_true"]).sum()
    assert 2 * both / (said.sum() + scores["any_true"].sum()) == pytest.approx(report["binary_f1"])


def test_by_time_what_is_tested_comes_after_the_gap(plant: Path, tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    arguments = ("azure-pdm", "--data", str(plant), "--out", str(out))
    invoke(
        *arguments, "--train-until", "2015-01-28", "--test-from", "2015-01-29", "--scores-dir", str(tmp_path)
    )
    scores = pd.read_csv(tmp_path / "azure_pdm.csv", parse_dates=["datetime"])
    assert scores["datetime"].min() == pd.Timestamp("2015-01-29")
    assert json.loads(out.read_text())["folds"] == 0
    for wrong in (
        ("--train-until", "2015-01-28"),
        ("--train-until", "2015-01-28", "--test-from", "2015-01-28T12:00"),
        ("--train-until", "x", "--test-from", "2015-01-28"),
        ("--folds", "3", "--train-until", "2015-01-20", "--test-from", "2015-01-28"),
    ):
        with pytest.raises(UserError, match="--"):
            invoke(*arguments, *wrong)


def test_labels_are_of_what_comes_within_24_hours_and_not_of_what_is() -> None:
    hours = np.arange(0, 60) * cmapss.HOUR_MS
    failures = pd.DataFrame({"machineID": ["1"], "failure": ["comp1"], "at": [40 * cmapss.HOUR_MS]})
    truth = azure_pdm.labels(np.array(["1"] * 60), hours, failures)
    assert np.flatnonzero(truth["comp1"]).tolist() == list(range(16, 40))
    assert not azure_pdm.labels(np.array(["2"] * 60), hours, failures)[azure_pdm.ANY].any()


def test_maintenance_at_a_failure_is_not_known_before_it(plant: Path) -> None:
    """Days since a replacement are none at the failure's own hour: that would tell of it."""
    tables = azure.read_tables(plant)
    frame = azure.oracle(tables)
    failures = azure_pdm.read_failures(plant)
    keys: Any = frame.set_index([frame["machineID"].astype(str), frame["datetime"].astype("int64")])
    for machine, component, at in failures[["machineID", "failure", "at"]].itertuples(index=False):
        assert keys.loc[(machine, at), f"days_since_{component}"] != 0.0


def test_a_gain_is_above_nothing_only_where_it_is() -> None:
    rng = np.random.default_rng(1)
    machines, truth = np.repeat(np.arange(12), 200), rng.uniform(size=2_400) < 0.1
    worse = np.where(rng.uniform(size=2_400) < 0.1, ~truth, truth)
    low, high = azure_pdm.gain(truth, truth, worse, machines)
    assert 0 < low < high
    low, high = azure_pdm.gain(truth, worse, worse, machines)
    assert (low, high) == (0.0, 0.0)


def only(plant: Path, machines: list[int]) -> None:
    """Leave other machines out of the telemetry."""
    frame = pd.read_parquet(plant / "telemetry_x.parquet")
    frame[frame["machineID"].isin(machines)].to_parquet(plant / "telemetry_x.parquet")


def test_one_machine_alone_is_split_by_time_only(plant: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only(plant, [3])
    out = plant / "r.json"
    with monkeypatch.context() as patch:
        patch.setattr(azure_pdm, "run", None)  # that is said before anything is streamed
        with pytest.raises(UserError, match="cannot be held out: split by time"):
            invoke("azure-pdm", "--data", str(plant), "--folds", "3", "--out", str(out))
    invoke("azure-pdm", "--data", str(plant), "--train-until", "2015-01-25", "--test-from", "2015-01-27",
           "--out", str(out))  # fmt: skip
    report = json.loads(out.read_text())
    assert (report["machines"], report["folds"]) == (1, 0)
    assert 0 < report["failures"] < 4


def test_there_are_no_more_parts_than_machines(plant: Path) -> None:
    only(plant, [1, 2, 3])
    out = plant / "r.json"
    invoke("azure-pdm", "--data", str(plant), "--folds", "9", "--out", str(out))
    report = json.loads(out.read_text())
    assert (report["machines"], report["folds"]) == (3, 3)


def test_a_split_that_leaves_nothing_is_said(plant: Path) -> None:
    only(plant, [1])
    arguments = ("azure-pdm", "--data", str(plant), "--out", str(plant / "r.json"))
    with pytest.raises(UserError, match="nothing to test"):
        invoke(*arguments, "--train-until", "2016-01-01", "--test-from", "2016-02-01")
    (plant / "failures_x.csv").write_text("datetime,machineID,failure\n")
    with pytest.raises(UserError, match="nothing to foresee"):
        invoke(*arguments)


def test_a_folder_without_failures_is_said(plant: Path) -> None:
    (plant / "failures_x.csv").unlink()
    with pytest.raises(UserError, match=r"has no failures\*\.csv"):
        invoke("azure-pdm", "--data", str(plant), "--out", str(plant / "r.json"))
