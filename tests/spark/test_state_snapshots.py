"""Snapshots of state, which every query has that has run for a while, are read without a stream."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def test_state_is_read_from_snapshots_in_a_session_that_has_no_stream(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.spark.snapshot_job", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr[-2_000:]
    found = json.loads(done.stdout)
    assert found.pop("snapshots") >= 2
    assert found == {"total": (0 + 10 + 20) + 3 * 3, "entries": 8}
