"""What holds for each test of the fraud app."""

from __future__ import annotations

import pytest

from tests.unit.apps.fraud import cases


@pytest.fixture(autouse=True)
def ids_of_its_own() -> None:
    """Some models in tests score by the transaction's id: a test has the same ids wherever it runs."""
    cases.begin_ids()
