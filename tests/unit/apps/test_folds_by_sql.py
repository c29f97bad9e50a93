"""Two folds of the dashboard beside SQL over the whole table: another way to the same rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace_apps.benchmarks.dashboard_folds import PANELS, Panel, measured


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel.table)
def test_what_is_folded_forward_file_by_file_is_what_a_query_finds_in_the_whole_table(
    panel: Panel, tmp_path: Path
) -> None:
    cost = measured(panel, 3, tmp_path, looks=2)
    assert cost.files == 3
