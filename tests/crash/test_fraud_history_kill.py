"""The Handbook's features after kill -9: the same bits, every payment once."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from deltalake import DeltaTable

from millrace_apps.fraud.evaluation.history_app import HistorySettings
from millrace_apps.fraud.evaluation.oracle import handbook_features, mismatches
from millrace_apps.fraud.evaluation.recorded import numbers, write_records
from millrace_apps.fraud.state.labels import DAY_MS
from millrace_apps.generators.handbook import HandbookProfile, simulate_handbook

pytestmark = pytest.mark.matrix  # three starts of Spark


def run(point: str, batch: int, folder: Path) -> int:
    command = [sys.executable, "-m", "tests.crash.killed_history", point, str(batch), str(folder)]
    return subprocess.run(command, timeout=200, check=False, capture_output=True).returncode


@pytest.mark.parametrize("points", [[("state", 1), ("tables", 3)], [("offsets", 2), ("table", 4)]])
def test_features_are_the_same_after_two_deaths(points: list[tuple[str, int]], tmp_path: Path) -> None:
    world = HandbookProfile(seed=5, customers=150, terminals=300, days=45, radius=12)
    frame = simulate_handbook(world).transactions.to_pandas()
    frame["at"] = frame["TX_DATETIME"].astype("datetime64[ms]").astype("int64")
    batches = write_records(frame, tmp_path / "records", HistorySettings().topics.payments, 2_500)
    assert batches > 4
    for point, batch in points:
        assert run(point, batch, tmp_path) == -signal.SIGKILL
    assert run("never", 0, tmp_path) == 0
    found: pd.DataFrame = DeltaTable(str(tmp_path / "tables" / "features")).to_pandas()
    found["TRANSACTION_ID"] = numbers(found["transaction_id"])
    found = found.sort_values("TRANSACTION_ID", ignore_index=True)
    assert found["TRANSACTION_ID"].tolist() == frame["TRANSACTION_ID"].tolist()
    assert mismatches(found, handbook_features(frame, 7 * DAY_MS)) == 0
