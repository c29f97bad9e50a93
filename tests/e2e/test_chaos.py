"""Hostile input by a real broker through Spark: the job goes on, and every record is accounted for."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.e2e.fraud_runs import MILLRACE


@pytest.mark.parametrize(
    "name",
    [
        "iot",
        pytest.param("fraud", marks=pytest.mark.matrix),
        pytest.param("ridesharing", marks=pytest.mark.matrix),
        pytest.param("clickstream", marks=pytest.mark.matrix),
    ],
)
def test_no_record_stops_the_job_and_none_is_lost(tmp_path: Path, name: str) -> None:
    report = tmp_path / "report.json"
    command = [
        *MILLRACE,
        "chaos",
        "input",
        "--app",
        name,
        "--host",
        "spark",
        "--events",
        "2000",
        "--seed",
        "1",
    ]
    done = subprocess.run(
        [*command, "--out", str(report)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(report.read_text())
    assert found["sent"] > 1_900
    assert sum(row["processed"] for row in found["rows"]) > 700
