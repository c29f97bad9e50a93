"""A station on Spark: it goes on where it was stopped, becomes a chain and one again, and is looked into."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millrace.checkpoints.bootstrap import bootstrap
from millrace.checkpoints.checkpoint import Checkpoint
from millrace.checkpoints.figures import figures_of
from millrace.checkpoints.reading import view_of
from millrace.checkpoints.rescale import RescaleError, rekey, repartition
from millrace.checkpoints.savepoints import create, restore
from millrace.checkpoints.tables import entries_of
from millrace.host.memory_chain import MemoryChain
from millrace.host.spark import KeyingError, ProcessedStream, keyed
from millrace.host.spark_input import Plan
from millrace.state.keyring import KEY_FILE_CONF, configured_keys, write_key_file
from tests.spark.conftest import StreamFactory, one_partition
from tests.spark.savepoint_jobs import Balances, Payments, Totals, rows_of
from tests.spark.state_history import ALL, History
from tests.unit.millrace.topology.random_steps import Item, made


def chain_of(payments: Payments, plan: Plan, groups: int = 4) -> ProcessedStream:
    stream = payments.stream(Balances(), key_groups=groups, plan=plan)
    return stream.key_by("total").process(Totals())


def test_a_history_of_stations_and_chains_loses_nothing(spark: SparkSession, tmp_path: Path) -> None:
    history = History(spark, tmp_path / "history")
    history.run(*ALL[:2])
    done = rekey(spark, history.checkpoint, plan="station")
    assert (done.partitions, done.key_groups) == (1, {"Everything": 4})
    history.plan = "station"
    history.run(*ALL[2:4])
    with view_of(spark, history.checkpoint) as view:
        assert {r.key for r in entries_of(view).select("key").collect()} == history.kept().keys()
        assert figures_of(view).entries == len(history.kept())
    with pytest.raises(RescaleError, match="is of a station, whose state has one partition"):
        repartition(spark, history.checkpoint, 2)
    with pytest.raises(RescaleError, match="needs --partitions"):
        rekey(spark, history.checkpoint, plan="chain")
    assert rekey(spark, history.checkpoint, plan="chain", partitions=2, key_groups=8).partitions == 2
    history.plan, history.key_groups = "chain", 8
    history.run(ALL[4])
    rekey(spark, history.checkpoint, plan="station", key_groups=3)
    history.plan, history.key_groups = "station", 3
    history.run(*ALL[5:])
    history.agrees()
    assert len(history.stream.clocks()) == 1


def test_a_chain_of_two_becomes_a_station_and_is_looked_into(spark: SparkSession, tmp_path: Path) -> None:
    payments = Payments(spark, tmp_path / "input")
    payments.add_some(range(2))
    root, table = tmp_path / "state", tmp_path / "totals"
    checkpoint = Checkpoint(root, root / "checkpoint")
    payments.run(chain_of(payments, "chain"), {"main": table}, root, "parquet")
    rekey(spark, checkpoint, plan="station")
    payments.add_some(range(2, 4))
    with one_partition(spark):
        payments.run(chain_of(payments, "station"), {"main": table}, root, "parquet")
    with view_of(spark, checkpoint, process="Balances") as balances:
        found = balances.entry(("u7",))
        assert found is not None
        assert found[0].states["total"].value == 88
    with view_of(spark, checkpoint, process="Totals") as totals:
        assert {r.key for r in entries_of(totals).collect()} >= {"0", "10", "24"}
        assert totals.entry(("no such",)) is None
    kept = create(checkpoint, name="first")
    restored = restore(kept, tmp_path / "again")
    payments.add_some(range(4, 6))
    with one_partition(spark):
        again = tmp_path / "totals-again"
        payments.run(chain_of(payments, "station"), {"main": again}, restored.checkpoint.root, "parquet")
        payments.run(chain_of(payments, "station"), {"main": table}, root, "parquet")
    payments.run(chain_of(payments, "chain"), {"main": tmp_path / "calm"}, tmp_path / "c", "parquet")
    assert rows_of(spark, table, "parquet") == rows_of(spark, tmp_path / "calm", "parquet")
    assert rows_of(spark, again, "parquet") < rows_of(spark, table, "parquet")


def test_a_station_is_encrypted_and_begun_with_a_table(spark: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    write_key_file(file)
    payments = Payments(spark, tmp_path / "input")
    root, table = tmp_path / "state", tmp_path / "balances"
    opening = spark.createDataFrame([(f"u{i}", 1_000) for i in range(8)], "user string, total bigint")
    spark.conf.set(KEY_FILE_CONF, str(file))
    try:
        payments.add_some(range(1))
        with one_partition(spark):
            stream = payments.stream(Balances(), plan="station")
            bootstrap(stream, opening, root)
            payments.run(stream, {"main": table}, root, "parquet")
    finally:
        spark.conf.unset(KEY_FILE_CONF)
    rows = spark.read.parquet(str(table)).collect()
    assert {r.user: r.total for r in rows} == {f"u{i}": 1_000 + i for i in range(8)}
    checkpoint = Checkpoint(root, root / "checkpoint")
    assert all(b"total" not in p.read_bytes() for p in checkpoint.folder.rglob("*.changelog"))
    rekey(spark, checkpoint, reseal=True, key_file=str(file), keys=None)
    with view_of(spark, checkpoint) as view:
        assert entries_of(view).count() == 8
    assert configured_keys(None, {}) is None


def test_a_station_is_refused_where_state_has_several_partitions(spark: SparkSession, tmp_path: Path) -> None:
    payments = Payments(spark, tmp_path / "input")
    with pytest.raises(KeyingError, match="a station runs in one partition"):
        chain_of(payments, "station").raw  # noqa: B018
    with pytest.raises(KeyingError, match="`chain` or `station`"):
        payments.stream(Balances(), plan="fast")  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", [3, 4, 11])
def test_random_topologies_give_what_they_give_in_memory(
    spark: SparkSession, stream: StreamFactory, seed: int
) -> None:
    rng = random.Random(seed)
    topology = made(rng)
    memory = MemoryChain(topology)
    expected: list[tuple[str, str, str]] = []
    with one_partition(spark):
        found = stream(
            "a string, b bigint, c boolean, at bigint, way string, source string",
            lambda df: keyed(
                df, by="a", event_time="at", source_id="source", key_groups=3, plan="station"
            ).run(topology),
        )
        number = 0
        for at in range(1, 4):
            batch, rows = [], []
            for _ in range(rng.randint(2, 12)):
                item = Item(rng.choice("xyz"), rng.randrange(5), rng.choice([True, False, None]), at)
                batch.append((item.a, at, item))
                rows.append({"a": item.a, "b": item.b, "c": item.c, "at": at, "way": "",
                             "source": f"memory:0:{number}"})  # fmt: skip
                number += 1
            expected += [(e.output, e.key, e.event_id or "") for e in memory.run_batch(batch)]
            found.add(rows)
            found.run()
    assert sorted((e.output, e.key, e.event_id or "") for e in found.emitted) == sorted(expected)
