"""The walk through the core runs in Jupyter, memory and Spark, and says what stands in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace_apps.recipes.catalogue.notebook import executed, printed, read


@pytest.mark.long
def test_the_notebook_says_what_stands_in_it(tmp_path: Path) -> None:
    stands = read()
    found = executed(stands, tmp_path)
    assert [printed(cell) for cell in found.cells] == [printed(cell) for cell in stands.cells]
    assert sum(bool(printed(cell)) for cell in found.cells) >= 10
    assert list(tmp_path.iterdir()) == []
