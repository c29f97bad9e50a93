"""Committed state that is read by files is what Spark reads, at every batch of random histories."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.matrix
def test_state_read_by_files_is_what_spark_reads_at_every_batch(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.spark.committed_job", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-2_000:]
    found = json.loads(done.stdout)
    assert found.keys() == {"chain-1-False", "chain-1-True", "station-1-True", "station-3-False"}
    for seen in found.values():
        assert seen["batches"] >= 8
        assert seen["keys"] > 50
        assert seen["snapshots"] >= 1
