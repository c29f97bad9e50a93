"""A query, also of a later version, goes on from a savepoint as if nothing had happened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from millrace.checkpoints import savepoints
from millrace.checkpoints.checkpoint import Checkpoint
from millrace.checkpoints.savepoints import SavepointError
from millrace.runtime.contract import ContractMismatch
from tests.spark.savepoint_jobs import (
    Balances,
    BalancesAsText,
    BalancesByShop,
    Payments,
    rows_of,
)
from tests.spark.state_history import snapshot_of


@pytest.mark.parametrize(
    ("table_format", "tables"),
    [
        pytest.param("delta", "rollback", marks=pytest.mark.matrix),
        ("parquet", "merge"),
        pytest.param("delta", "merge", marks=pytest.mark.matrix),
        pytest.param("parquet", "rollback", marks=pytest.mark.matrix),
    ],
)
def test_a_new_version_goes_on_from_a_savepoint_with_the_results_of_an_undisturbed_run(
    spark: SparkSession, tmp_path: Path, table_format: Any, tables: Any
) -> None:
    payments = Payments(spark, tmp_path / "input")
    payments.add_some(range(2))
    table, root = tmp_path / "balances", tmp_path / "old"
    payments.run(payments.stream(Balances()), {"main": table}, root, table_format)
    made = savepoints.create(Checkpoint(root, root / "checkpoint"))
    payments.add_some(range(2, 4))
    payments.run(payments.stream(Balances()), {"main": table}, root, table_format)  # goes on meanwhile
    with pytest.raises(SavepointError, match="something was written to"):
        savepoints.restore(made, tmp_path / "new")
    savepoints.restore(made, tmp_path / "new", tables=tables)
    payments.add_some(range(4, 6))
    payments.add_some(range(30, 31))  # everybody was idle
    newer = payments.stream(BalancesByShop(), per_batch=3)  # and the batches are cut otherwise
    payments.run(newer, {"main": table}, tmp_path / "new", table_format)
    payments.run(
        payments.stream(Balances(), per_batch=3), {"main": tmp_path / "calm"}, tmp_path / "c", table_format
    )
    found = rows_of(spark, table, table_format)
    assert found == rows_of(spark, tmp_path / "calm", table_format)
    assert max(found.values()) == 1


def test_a_version_that_cannot_read_the_savepoint_is_refused_before_it_starts(
    spark: SparkSession, tmp_path: Path
) -> None:
    payments = Payments(spark, tmp_path / "input")
    payments.add_some(range(1))
    root, to = tmp_path / "old", tmp_path / "new"
    payments.run(payments.stream(Balances()), {"main": tmp_path / "t"}, root, "parquet")
    savepoints.restore(savepoints.create(Checkpoint(root, root / "checkpoint")), to)
    before = snapshot_of(to)
    with pytest.raises(ContractMismatch, match=r'total\.type was "int", is now "str"'):
        payments.run(payments.stream(BalancesAsText()), {"main": tmp_path / "t"}, to, "parquet")
    assert snapshot_of(to) == before
