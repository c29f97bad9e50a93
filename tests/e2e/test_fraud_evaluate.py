"""`millrace evaluate fraud` from a file to its report, through the real pipeline on Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from millrace_apps.generators.handbook import HandbookProfile, simulate_handbook

pytestmark = pytest.mark.matrix  # Spark, four forests and pandas: above a minute

#: A small world with as many frauds as it takes to train and judge a model.
WORLD = HandbookProfile(seed=3, customers=400, terminals=2_000, days=42, radius=8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("evaluate")


@pytest.fixture(scope="module")
def transactions(folder: Path) -> list[Path]:
    """The same world in two files that follow each other."""
    table = simulate_handbook(WORLD).transactions.to_pandas()
    cut = len(table) // 2
    files = [folder / "first.parquet", folder / "second.parquet"]
    table[:cut].to_parquet(files[0])
    table[cut:].to_parquet(files[1])
    return files


def evaluate(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "millrace", "evaluate", "fraud", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def start_of_test_week(files: list[Path]) -> str:
    last = pd.read_parquet(files[-1])["TX_DATETIME"].max()
    return str((last.normalize() - pd.Timedelta(days=6)).date())


@pytest.fixture(scope="module")
def report(folder: Path, transactions: list[Path]) -> dict[str, Any]:
    out, scores = folder / "report.json", folder / "scores.parquet"
    files = [part for path in transactions for part in ("--transactions", str(path))]
    ran = evaluate(
        *files, "--label-delay", "7d", "--test-week", start_of_test_week(transactions), "--seeds", "2",
        "--batch", "3000", "--out", str(out), "--scores", str(scores), "--set", "spark.quick_start=true",
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def test_the_stream_gives_the_handbooks_features_bit_for_bit(
    report: dict[str, Any], transactions: list[Path]
) -> None:
    assert report["rows"] == sum(len(pd.read_parquet(path)) for path in transactions)
    assert report["handbook_feature_mismatches"] == 0
    assert report["batches"] > 2
    assert (report["late"], report["dead_letters"]) == (0, 0)


def test_the_report_has_its_fields_and_its_means(report: dict[str, Any]) -> None:
    measures = ("auc", "ap", "cp100", "recall_at_01pct_fpr")
    (week,) = report["weeks"]
    for name in (*measures, "ap_hidden_terminal", "hidden_n", "hidden_prevalence"):
        assert report["mean"][name] == week[name]
        assert name in report["handbook"]["mean"]
    assert all(0 < week[name] <= 1 for name in measures)
    assert report["events_per_s"] > 0


def test_the_scores_stand_beside_the_transactions(report: dict[str, Any], folder: Path) -> None:
    scores = pd.read_parquet(folder / "scores.parquet")
    assert list(scores.columns) == ["TRANSACTION_ID", "TX_DATETIME", "score", "handbook_score", "decision"]
    assert len(scores) == report["weeks"][0]["rows"]
    assert scores["score"].between(0, 1).all()
    assert set(scores["decision"]) <= {"approve", "review", "block"}
    assert scores["decision"].eq("approve").mean() > 0.5


def test_what_cannot_be_evaluated_ends_in_one_line(transactions: list[Path], tmp_path: Path) -> None:
    for arguments, text in (
        (["--transactions", str(tmp_path / "no.parquet"), "--test-week", "2018-05-08"], "there is no file"),
        (["--transactions", str(transactions[0]), "--test-week", "8.5.2018"], "write a day as"),
        (
            ["--transactions", str(transactions[0]), "--test-week", "2018-05-08", "--label-delay", "x"],
            "duration",
        ),
    ):
        ran = evaluate(*arguments)
        assert ran.returncode == 2
        assert text in ran.stderr
        assert "Traceback" not in ran.stderr
