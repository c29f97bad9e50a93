"""Several stations on Spark: they give what one gives, become more and fewer, and are looked into."""

from __future__ import annotations

import os
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from millrace import Context, KeyedProcess, Timer, arrival, minutes, value_state
from millrace.checkpoints.bootstrap import bootstrap
from millrace.checkpoints.checkpoint import Checkpoint
from millrace.checkpoints.figures import figures_of
from millrace.checkpoints.reading import view_of
from millrace.checkpoints.rescale import RescaleError, rekey, repartition
from millrace.checkpoints.savepoints import create, restore
from millrace.checkpoints.tables import entries_of
from millrace.host.memory_chain import MemoryChain
from millrace.host.spark import KeyingError, ProcessedStream, keyed
from millrace.host.spark_sink import write_to
from millrace.runtime.contract import ContractMismatch
from millrace.state.keyring import KEY_FILE_CONF, write_key_file
from tests.spark.conftest import StreamFactory, one_partition
from tests.spark.savepoint_jobs import rows_of
from tests.spark.state_history import ALL, History
from tests.unit.millrace.topology.random_steps import Item, made

SCHEMA = "shop string, card string, at bigint, cents bigint, source string"
START = 1_700_000_000_000


class Sale(msgspec.Struct):
    shop: str
    card: str
    at: int
    cents: int


class Total(msgspec.Struct):
    shop: str
    card: str
    cents: int
    why: str = "sale"


class Cards(KeyedProcess[Sale, Total]):
    """What a card has bought in a shop, also when it has not been seen for ten minutes."""

    order = arrival(in_order_per_key=True)
    cents = value_state(int, default=0)

    def process(self, event: Sale, ctx: Context) -> None:
        self.cents.value += event.cents
        shop = "elsewhere" if event.cents == 666 else event.shop
        ctx.emit(Total(shop, event.card, self.cents.value))
        ctx.timers.after(minutes(10), "idle")

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        shop, card = ctx.key
        ctx.emit(Total(shop, card, self.cents.value, timer.name))


class Shops(KeyedProcess[Total, Total]):
    """How often anything was said of a shop."""

    order = arrival(commutes=True)
    said = value_state(int, default=0)

    def process(self, event: Total, ctx: Context) -> None:
        self.said.value += 1
        ctx.emit(Total(ctx.key, "", self.said.value, event.why))


class Sales:
    """A folder that is read as a stream, a file per batch."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark, self._folder, self._files = spark, folder, 0
        folder.mkdir()

    def add(self, *sales: tuple[str | None, str, int]) -> None:
        at = START + self._files * 60_000
        rows = [
            {"shop": shop, "card": card, "at": at + n, "cents": cents, "source": f"f{self._files}:{n}"}
            for n, (shop, card, cents) in enumerate(sales)
        ]
        path = self._folder / f"{self._files:05}.json"
        path.write_bytes(b"\n".join(map(msgspec.json.encode, rows)))
        os.utime(path, (1_000_000_000 + self._files, 1_000_000_000 + self._files))
        self._files += 1

    def add_some(self, count: int) -> None:
        """Add files, of six shops with three cards each."""
        for _ in range(count):
            self.add(*((f"s{n % 6}", f"c{n // 6}", n + self._files) for n in range(18)))

    def stream(self, stations: int, *, locality: str | None = "shop", groups: int = 4) -> ProcessedStream:
        """Return the stream over the files: of no stations, a chain."""
        df = self._spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        return keyed(
            df.json(str(self._folder)), by=("shop", "card"), event_time="at", source_id="source",
            key_groups=groups, plan="station" if stations else "chain", stations=stations or 1,
            locality=locality,
        ).process(Cards())  # fmt: skip

    def run(self, stations: int, tables: dict[str, Any], root: Path) -> None:
        """Run a query over all files that are there."""
        with one_partition(self._spark, stations or 2):
            of_shops = self.stream(stations).key_by("shop").process(Shops())
            ended(write_to(of_shops, tables, root, trigger={"availableNow": True}, table_format="parquet"))


def ended(query: StreamingQuery) -> None:
    try:
        assert query.awaitTermination(150), "the query does not end"
    finally:
        query.stop()


def test_a_history_of_more_stations_loses_nothing(spark: SparkSession, tmp_path: Path) -> None:
    history = History(spark, tmp_path / "history")
    history.plan, history.stations = "station", 2
    history.run(ALL[0], *ALL[2:4])
    with view_of(spark, history.checkpoint) as view:
        kept = history.kept()
        assert {r.key for r in entries_of(view).select("key").collect()} == kept.keys()
        assert figures_of(view).entries == len(kept)
        one, other = view.clocks().values()
        assert one == other
        for key in ("who-1", "who-2", "who-3", "who-4"):
            found = view.entry((key,))
            assert found is not None
            # What has expired may stay until its key group is looked through.
            for name in ("number", "place", "given"):
                assert found[0].as_data()["states"][name] == kept[key]["states"][name]
    with pytest.raises(RescaleError, match="is of 2 stations, whose state has one partition each"):
        repartition(spark, history.checkpoint, 3)
    done = rekey(spark, history.checkpoint, stations=3, key_groups=3)
    assert (done.partitions, done.key_groups) == (3, {"Everything": 3})
    history.stations, history.key_groups = 3, 3
    history.run(*ALL[4:7], ALL[8])
    history.agrees()
    assert len(history.stream.clocks()) == 1


def test_stations_give_what_one_and_a_chain_give_also_after_a_savepoint(
    spark: SparkSession, tmp_path: Path
) -> None:
    sales = Sales(spark, tmp_path / "input")
    sales.add_some(1)
    root, table, again = tmp_path / "state", tmp_path / "shops", tmp_path / "again"
    checkpoint = Checkpoint(root, root / "checkpoint")
    sales.run(0, {"main": table}, root)
    with pytest.raises(RescaleError, match="a chain has no --stations"):
        rekey(spark, checkpoint, plan="chain", stations=2)
    rekey(spark, checkpoint, plan="station", stations=2)
    with pytest.raises(ContractMismatch, match="stations was 2, is now 3"):
        sales.run(3, {"main": table}, root)
    sales.add_some(1)
    sales.run(2, {"main": table}, root)
    with view_of(spark, checkpoint, process="Shops") as view:
        found = {row.key: row.states.said for row in entries_of(view).collect()}
        assert found == {f"s{n}": 6 for n in range(6)}
        assert len({row["key"][0] for row in stored(view)}) == 2, "both stations have some"
    restored = restore(create(checkpoint, name="first"), tmp_path / "restored")
    sales.add_some(1)
    sales.run(2, {"main": again}, restored.checkpoint.root)
    assert rekey(spark, checkpoint, stations=1).partitions == 1
    sales.run(1, {"main": table}, root)
    calm = tmp_path / "calm"
    sales.run(2, {"main": calm}, tmp_path / "c")
    whole = rows_of(spark, calm, "parquet")
    assert rows_of(spark, table, "parquet") == whole
    assert rows_of(spark, again, "parquet") < whole
    assert sum(rows_of(spark, again, "parquet").values()) == sum(whole.values()) // 3


def stored(view: Any) -> list[Any]:
    reader = view.spark.read.format("statestore").option("path", str(view.checkpoint.folder))
    return reader.option("stateVarName", "station").load().collect()  # type: ignore[no-any-return]


def test_a_batch_that_fails_in_the_sink_is_done_once(spark: SparkSession, tmp_path: Path) -> None:
    sales = Sales(spark, tmp_path / "input")
    sales.add_some(2)
    seen: list[Counter[str]] = []

    def keep(frame: DataFrame, batch: int) -> None:
        rows = Counter(f"{r.shop} {r.cents} {r.why}" for r in frame.collect())
        if batch == 1 and not (tmp_path / "failed").exists():
            (tmp_path / "failed").touch()
            raise RuntimeError("the sink is away")
        seen.append(rows)

    with pytest.raises(StreamingQueryException, match="the sink is away"):
        sales.run(2, {"main": keep}, tmp_path / "state")
    sales.run(2, {"main": keep}, tmp_path / "state")
    told = Counter[str]()
    for rows in seen:
        told += rows
    assert told == Counter(f"s{shop} {n} sale" for shop in range(6) for n in range(1, 7))


def test_a_record_of_another_locality_stops_the_query(spark: SparkSession, tmp_path: Path) -> None:
    sales = Sales(spark, tmp_path / "input")
    sales.add(("s1", "c1", 5), ("s1", "c1", 666))
    said = re.escape("Cards.main has a record of the locality 9:elsewhere, from a key of 2:s1")
    with pytest.raises(StreamingQueryException, match=said):
        sales.run(2, {"main": tmp_path / "shops"}, tmp_path / "state")


def test_events_without_a_locality_are_put_aside_once(spark: SparkSession, tmp_path: Path) -> None:
    sales = Sales(spark, tmp_path / "input")
    sales.add((None, "c1", 5), ("s1", "c1", 5), (None, "c2", 5), ("s2", "c1", 5))
    letters, table = tmp_path / "letters", tmp_path / "shops"
    sales.run(2, {"main": table, "Cards.dead_letters": letters}, tmp_path / "state")
    assert [(r.reason, r.stage) for r in spark.read.parquet(str(letters)).collect()] == [
        ("schema", "decode")
    ] * 2
    assert spark.read.parquet(str(table)).count() == 2


def test_stations_are_encrypted_and_begun_with_a_table(spark: SparkSession, tmp_path: Path) -> None:
    write_key_file(tmp_path / "keys")
    sales = Sales(spark, tmp_path / "input")
    root, table = tmp_path / "state", tmp_path / "cards"
    opening = [(f"s{s}", f"c{c}", 1_000) for s in range(6) for c in range(3)]
    spark.conf.set(KEY_FILE_CONF, str(tmp_path / "keys"))
    try:
        with one_partition(spark, 2):
            stream = sales.stream(2)
            bootstrap(stream, spark.createDataFrame(opening, "shop string, card string, cents bigint"), root)
            sales.add_some(1)
            ended(
                write_to(
                    stream, {"main": table}, root, trigger={"availableNow": True}, table_format="parquet"
                )
            )
    finally:
        spark.conf.unset(KEY_FILE_CONF)
    rows = spark.read.parquet(str(table)).collect()
    assert sorted(r.cents for r in rows) == [1_000 + n for n in range(18)]
    checkpoint = Checkpoint(root, root / "checkpoint")
    assert all(b"cents" not in p.read_bytes() for p in checkpoint.folder.rglob("*.changelog"))
    assert checkpoint.contract()["station"]["stations"] == 2
    file = str(tmp_path / "keys")
    rekey(spark, checkpoint, reseal=True, key_file=file, keys=None, plan="chain", partitions=2)
    assert "station" not in checkpoint.contract()
    with view_of(spark, checkpoint) as view:
        assert sorted(row.states.cents for row in entries_of(view).collect()) == [
            1_000 + n for n in range(18)
        ]


def test_what_has_no_locality_has_no_stations(spark: SparkSession, tmp_path: Path) -> None:
    sales = Sales(spark, tmp_path / "input")
    with pytest.raises(KeyingError, match="2 stations need a `locality`"):
        sales.stream(2, locality=None)
    with pytest.raises(
        KeyingError, match=r"key of Cards is shop, card, and the locality card: .*\(card, shop\)"
    ):
        sales.stream(2, locality="card")
    with one_partition(spark, 3), pytest.raises(KeyingError, match=r"2 stations .* is 3: set it to 2"):
        sales.stream(2).raw  # noqa: B018
    with pytest.raises(KeyingError, match=r"the key of Cards\.main is card"):
        sales.stream(2).key_by("card").process(Shops())


@pytest.mark.parametrize("seed", [4])
def test_random_topologies_give_what_they_give_in_memory(
    spark: SparkSession, stream: StreamFactory, seed: int
) -> None:
    rng = random.Random(seed)
    topology = made(rng, "a")
    memory = MemoryChain(topology)
    expected: list[tuple[str, str, str]] = []
    with one_partition(spark, 2):
        found = stream(
            "a string, b bigint, c boolean, at bigint, way string, source string",
            lambda df: keyed(
                df, by="a", event_time="at", source_id="source", key_groups=3, plan="station", stations=2
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
