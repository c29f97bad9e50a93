"""Other partitions, other key groups, other keys: nothing of the state is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from millrace.checkpoints.checkpoint import Checkpoint, CheckpointError
from millrace.checkpoints.reading import view_of
from millrace.checkpoints.rescale import RescaleError, rekey, repartition
from millrace.checkpoints.stages import keys_for
from millrace.checkpoints.tables import entries_of
from millrace.host.spark import ProcessedStream
from millrace.state.cells import CLOCK_PAGE, SCHEMA_PAGE
from millrace.state.keyring import (
    KEY_FILE_CONF,
    configured_keys,
    read_ring,
    rotate_key_file,
    write_key_file,
)
from tests.spark.savepoint_jobs import (
    Balances,
    Payments,
    Totals,
    rows_of,
)
from tests.spark.state_history import ALL, History


@pytest.fixture
def history(spark: SparkSession, tmp_path: Path) -> History:
    return History(spark, tmp_path / "history")


@pytest.mark.matrix
def test_a_history_of_other_partitions_and_key_groups_loses_nothing(history: History) -> None:
    history.run(*ALL[:3])
    assert repartition(history.spark, history.checkpoint, 3).partitions == 3
    with pytest.raises(RescaleError, match="has 3 partitions already"):
        repartition(history.spark, history.checkpoint, 3)
    with pytest.raises(RescaleError, match="Everything has 4 key groups, so no more partitions"):
        repartition(history.spark, history.checkpoint, 5)
    history.run(ALL[3])
    done = rekey(history.spark, history.checkpoint, key_groups=16)
    assert (done.key_groups, done.partitions) == ({"Everything": 16}, 3)
    history.key_groups = 16
    history.run(*ALL[4:])
    history.agrees()
    assert len(history.stream.clocks()) == 1
    # Broadcast state and the last tick stay, with what the slots are, and the clock; no page of keys does.
    assert {r.user_map_key.page for r in history.stream.state("pages")} == {SCHEMA_PAGE, CLOCK_PAGE}


@pytest.mark.matrix
def test_a_history_of_restarts_in_ever_other_shapes_loses_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    history = History(spark, tmp_path / "history", key_groups=64)
    shapes: list[dict[str, Any]] = [
        {"partitions": 4}, {"partitions": 3}, {"key_groups": 256}, {}, {"key_groups": 16, "partitions": 4},
        {"partitions": 2}, {}, {"key_groups": 64, "partitions": 1}, {"partitions": 3}, {},
    ]  # fmt: skip
    for batch, shape in zip(ALL, [*shapes, {}], strict=False):
        history.run(batch)
        if "key_groups" in shape:
            rekey(spark, history.checkpoint, **shape)
            history.key_groups = shape["key_groups"]
        elif shape:
            repartition(spark, history.checkpoint, **shape)
        with view_of(spark, history.checkpoint) as view:
            assert {r.key for r in entries_of(view).select("key").collect()} == history.kept().keys()
    history.agrees()
    assert len(history.stream.clocks()) == 1


@pytest.mark.matrix
def test_a_batch_that_was_planned_and_had_no_effect_is_planned_anew_after_a_rescale(
    spark: SparkSession, tmp_path: Path
) -> None:
    payments = Payments(spark, tmp_path / "input")
    payments.add_some(range(3))
    root, table = tmp_path / "state", tmp_path / "balances"
    checkpoint = Checkpoint(root, root / "checkpoint")
    payments.run(payments.stream(Balances()), {"main": table}, root, "parquet")
    payments.add_some(range(3, 5))
    (checkpoint.folder / "offsets" / f"{checkpoint.last() + 1}").write_text(
        (checkpoint.folder / "offsets" / f"{checkpoint.last()}").read_text()
    )
    assert checkpoint.planned()
    rekey(spark, checkpoint, key_groups=8, partitions=3)
    assert checkpoint.planned() == []
    payments.run(payments.stream(Balances(), key_groups=8), {"main": table}, root, "parquet")
    payments.run(payments.stream(Balances()), {"main": tmp_path / "calm"}, tmp_path / "c", "parquet")
    assert rows_of(spark, table, "parquet") == rows_of(spark, tmp_path / "calm", "parquet")


def test_a_chain_is_reshaped_as_a_whole(spark: SparkSession, tmp_path: Path) -> None:
    payments = Payments(spark, tmp_path / "input")
    payments.add_some(range(2))
    root, table = tmp_path / "state", tmp_path / "totals"
    checkpoint = Checkpoint(root, root / "checkpoint")

    def chain(groups: int) -> ProcessedStream:
        return payments.stream(Balances(), key_groups=groups).key_by("total").process(Totals())

    payments.run(chain(4), {"main": table}, root, "parquet")
    with view_of(spark, checkpoint, process="Totals") as totals:
        assert {r.key for r in entries_of(totals).collect()} >= {"0", "10", "24"}
    with view_of(spark, checkpoint, process="Balances") as balances:
        found = balances.entry(("u7",))
        assert found is not None
        assert found[0].states["total"].value == 24
    assert rekey(spark, checkpoint, key_groups=16).key_groups == {"Balances": 16, "Totals": 16}
    payments.add_some(range(2, 4))
    payments.run(chain(16), {"main": table}, root, "parquet")
    payments.run(chain(4), {"main": tmp_path / "calm"}, tmp_path / "c", "parquet")
    assert rows_of(spark, table, "parquet") == rows_of(spark, tmp_path / "calm", "parquet")


@pytest.mark.matrix
def test_state_is_encrypted_and_given_new_keys_by_writing_it_anew(
    spark: SparkSession, tmp_path: Path
) -> None:
    payments = Payments(spark, tmp_path / "input")
    payments.add_some(range(1))
    root, table, file = tmp_path / "state", tmp_path / "balances", tmp_path / "keys"
    checkpoint = Checkpoint(root, root / "checkpoint")
    payments.run(payments.stream(Balances()), {"main": table}, root, "parquet")
    write_key_file(file)
    rekey(spark, checkpoint, reseal=True, keys=configured_keys(file, {}))
    rotate_key_file(file)
    rekey(spark, checkpoint, key_groups=8, key_file=str(file), reseal=True, keys=configured_keys(file, {}))
    assert checkpoint.contract()["encryption"]["keys"] == [read_ring(file).ids[0]]
    with pytest.raises(CheckpointError, match="name the file that has it with --key-file"):
        keys_for(checkpoint.contract())
    payments.add_some(range(1, 2))
    spark.conf.set(KEY_FILE_CONF, str(file))
    try:
        payments.run(payments.stream(Balances(), key_groups=8), {"main": table}, root, "parquet")
    finally:
        spark.conf.unset(KEY_FILE_CONF)
    with view_of(spark, checkpoint, key_file=str(file)) as view:
        found = view.entry(("u2",))
        assert found is not None
        assert found[0].states["total"].value == 2 + 12
    stored = b"".join(p.read_bytes() for p in (checkpoint.folder / "state").rglob("*") if p.is_file())
    assert b"u2" not in stored
