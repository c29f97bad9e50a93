"""Spark Connect: the same process, over a session that only speaks to a server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.matrix
def test_a_process_runs_over_spark_connect(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.connect_run"],
        cwd=Path(__file__).parents[2],
        env=os.environ
        | {
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "TMPDIR": str(tmp_path),
            "JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={tmp_path}",  # the server leaves its artifacts
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    balances = [["a", 5], ["a", 12], ["b", 7]]
    assert said.pop("session") == "pyspark.sql.connect.session"
    assert said == {"bounded": balances, "written": balances, "streamed": balances}
