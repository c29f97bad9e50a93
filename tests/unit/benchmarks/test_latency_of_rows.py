"""When rows of a table were first there, also of one whose files have been gathered since."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from millrace.connectors.gathering import files_of, gather_files
from millrace_apps.benchmarks.app_latency import _row_latencies


def test_a_row_counts_from_its_own_commit_however_its_file_was_gathered(tmp_path: Path) -> None:
    for number in range(4):
        write_deltalake(str(tmp_path), pa.table({"event_time_ms": [number * 10]}), mode="append")
    table = DeltaTable(tmp_path)
    assert gather_files(table, tmp_path, files_of(table))
    for number, commit in enumerate(sorted((tmp_path / "_delta_log").glob("*.json"))):
        os.utime(commit, (number + 1, number + 1))
    found = _row_latencies(tmp_path)
    assert [at for at, _ in found] == [0, 10, 20, 30]
    assert [after for _, after in found] == pytest.approx([1_000, 1_990, 2_980, 3_970])
