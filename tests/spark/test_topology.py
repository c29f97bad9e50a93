"""Topologies on Spark: links that take several outputs, unions across links and in tables, as in memory."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from millrace import Context, KeyedProcess, arrival, keyed, multiplex, value_state
from millrace.host.memory_chain import MemoryChain
from millrace.host.spark_types import UnsupportedType, struct_type
from millrace.runtime.apps import App, Topic, Topics
from millrace.runtime.replay import Record, run_records
from millrace.runtime.settings import AppSettings, load_settings
from millrace.topology import Input, KeyingError, Topology, read
from millrace.topology.contract import contract_of
from tests.unit.millrace.topology.random_steps import Item, counted, list_outputs, made
from tests.unit.millrace.topology.shop import Audit, Back, Cards, Sale, Shops, Turnover, shop


def topics(settings: Any) -> Topics:
    return Topics(
        reads=(Topic("shop.sales"), Topic("shop.backs", clock=False), Topic("shop.control", 1)),
        control="shop.control",
    )


def told(name: str) -> AppSettings:
    return load_settings(
        AppSettings, app=name, overrides=["spark.key_groups=4", "stream.out_of_orderness=0s"]
    )


def happened(seed: int, count: int) -> list[Sale | Back]:
    rng = random.Random(seed)
    found: list[Sale | Back] = []
    for at in range(1, count):
        card = f"c{rng.randrange(9)}"
        if rng.random() < 0.2:
            found.append(Back(card, rng.randrange(100), at))
        else:
            found.append(Sale(card, f"s{rng.randrange(5)}", rng.randrange(1_000), at))
    return found


def topic_of(event: Sale | Back) -> str:
    return "shop.sales" if isinstance(event, Sale) else "shop.backs"


def test_a_topology_gives_on_spark_what_it_gives_in_memory(spark: SparkSession, tmp_path: Path) -> None:
    events = happened(1, 200)
    chain, expected = MemoryChain(shop()), Counter[tuple[str, Any]]()
    batches, left = [], events
    for size in (1, 70, 200):
        batch, left = left[:size], left[size:]
        rows = [(e.card, e.at, e, "sales" if isinstance(e, Sale) else "backs") for e in batch]
        expected.update((e.output, e.payload) for e in chain.run_batch(rows))
        batches.append(
            [
                Record(
                    "shop.sales" if isinstance(e, Sale) else "shop.backs", msgspec.json.encode(e), b"", e.at
                )
                for e in batch
            ]
        )
    app = App("shop", "", AppSettings, lambda _: shop(), topics)
    done = run_records(app, told("shop"), tmp_path, batches, session=spark)
    for output, table in {"main": "seen", "Shops.main": "turnovers"}.items():
        found = Counter(
            msgspec.json.encode({k: v for k, v in row.items() if not k.startswith("_")})
            for row in done.table(table).to_pylist()
        )
        assert found == Counter(
            raw for (name, raw), n in expected.items() for _ in range(n) if name == output
        )
    letters = Counter(row["error"] for row in done.table("dead_seen").to_pylist())
    assert letters == {"the event has no key": sum(isinstance(e, Back) for e in events)}
    totals = {row["card"]: row["cents"] for row in done.table("totals").to_pylist()}
    assert totals == {
        card: sum((e.cents if isinstance(e, Sale) else -e.cents) for e in events if e.card == card)
        for card in totals
    }


@pytest.mark.parametrize("seed", [3, *(pytest.param(n, marks=pytest.mark.matrix) for n in range(4, 12))])
def test_random_topologies_give_on_spark_what_they_give_in_memory(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    topology = made(random.Random(seed))
    tables = {output: f"t{n}" for n, output in enumerate(list_outputs(topology))}
    topology = replace(topology.write(tables=tables), control="control")
    rng = random.Random(seed)
    items = [
        Item(rng.choice("xyz"), rng.randrange(5), rng.choice([True, False, None]), at) for at in range(40)
    ]
    chain, batches, expected = MemoryChain(topology), [items[:15], items[15:]], Counter[tuple[str, str]]()
    for batch in batches:
        for e in chain.run_batch([(item.a, item.at, item) for item in batch]):
            if e.output in tables:
                expected[e.output, msgspec.json.decode(e.payload)["way"]] += 1
    reads = Topics(reads=(Topic("t"), Topic("control", 1)), control="control")
    app = App("random", "", AppSettings, lambda _: topology, lambda _: reads)
    records = [[Record("t", msgspec.json.encode(item), b"", item.at) for item in batch] for batch in batches]
    done = run_records(app, told("random"), tmp_path, records, session=spark)
    found = Counter[tuple[str, str]]()
    for output, table in tables.items():
        if (tmp_path / "tables" / table).exists():
            found.update((output, way) for way in done.table(table)["way"].to_pylist())
    assert found.total() > 20
    assert counted(found, topology) == counted(expected, topology)


def test_keyed_builds_the_same_topology(spark: SparkSession) -> None:
    sales = spark.createDataFrame([("c1", "s1", 5, 1)], "card string, shop string, cents long, at long")
    stream = keyed(sales, by="card", event_time="at", key_groups=8).process(Shops())
    made = read(Input("", "card", "at")).process(Shops())
    assert stream.topology == Topology(made.inputs, stream.topology.links)
    assert contract_of(stream.topology, [8]) == {**contract_of(made, [8])} == stream.contract()
    with pytest.raises(KeyingError, match="no output 'sold'"):
        stream.key_by("shop", output="sold")
    assert [type(link.process) for link in stream.key_by("shop").process(Again()).topology.links] == [
        Shops, Again
    ]  # fmt: skip


class Again(KeyedProcess[Turnover, int]):
    order = arrival(commutes=True)

    def process(self, event: Turnover, ctx: Context) -> None:
        ctx.emit(event.sales)


class On(msgspec.Struct, tag=True, frozen=True):
    car: str
    at: int
    seats: int | None = None


class Off(msgspec.Struct, tag=True, frozen=True):
    car: str
    at: int
    why: str = ""
    detail: dict[str, str] = {}


class Cars(KeyedProcess[Sale, On | Off]):
    order = arrival(commutes=True)

    def process(self, event: Sale, ctx: Context) -> None:
        ctx.emit(On(event.card, event.at, 4))
        ctx.emit(Off(event.card, event.at, "night", {"by": event.shop}))


class Counts(KeyedProcess[On | Off, On | Off]):
    order = arrival(commutes=True)
    offs = value_state(int, default=0)

    def process(self, event: On | Off, ctx: Context) -> None:
        self.offs.value += isinstance(event, Off)
        ctx.emit(event)


def cars(settings: Any) -> Topology:
    return (
        read(Input("shop.sales", "card", "at"), control="shop.control")
        .process(Cars())
        .key_by("car")
        .process(Counts())
        .write(tables={"main": "cars", "Cars.main": "all"})
    )


def test_tagged_unions_cross_links_and_their_tables_have_the_columns_of_all(
    spark: SparkSession, tmp_path: Path
) -> None:
    app = App("cars", "", AppSettings, cars, topics)
    sale = msgspec.json.encode(Sale("c1", "s1", 5, 1))
    done = run_records(app, told("cars"), tmp_path, [[Record("shop.sales", sale, b"", 1)]], session=spark)
    for table in ("cars", "all"):
        rows = sorted(done.table(table).to_pylist(), key=lambda row: row["type"])
        bare = [{k: v for k, v in row.items() if not k.startswith("_")} for row in rows]
        assert [{**row, "detail": dict(row["detail"] or {})} for row in bare] == [
            {"type": "Off", "car": "c1", "at": 1, "seats": None, "why": "night", "detail": {"by": "s1"}},
            {"type": "On", "car": "c1", "at": 1, "seats": 4, "why": None, "detail": {}},
        ]


class Other(msgspec.Struct, tag=True):
    car: int


def test_structs_that_contradict_each_other_make_no_table() -> None:
    assert struct_type(On | Off).simpleString() == (
        "struct<type:string,car:string,at:bigint,seats:bigint,why:string,detail:map<string,string>>"
    )
    with pytest.raises(UnsupportedType, match="car is string in one struct and bigint in Other"):
        struct_type(On | Other)


def test_a_topology_needs_topics_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    inputs = {name: Input("", "card", "at") for name in ("sales", "backs")}
    app = App("none", "", AppSettings, lambda _: read(inputs).process(Cards()), topics)
    with pytest.raises(KeyingError, match="the inputs come by topics; sales, backs names none"):
        run_records(app, told("none"), tmp_path, [[Record("shop.sales", b"{}", b"", 1)]], session=spark)


def both(settings: Any) -> Topology:
    members = {"cards": Cards(), "shops": Shops()}
    inputs = {
        "cards_sales": Input("shop.sales", "card", "at"),
        "cards_backs": Input("shop.backs", "card", "at", clock=False),
        "shops": Input("shop.others", "shop", "at"),
    }
    return (
        read(inputs, control="shop.control")
        .process(multiplex(members, name="Both"))
        .key_by("shop", output={"totals": "cards", "turnovers": "shops", "sales": "sold"})
        .process(Audit())
        .write(tables={"main": "seen", "Both.shops": "turnovers", "Both.cards": "totals"})
    )


def test_several_processes_in_one_operator_give_what_they_give_in_memory(
    spark: SparkSession, tmp_path: Path
) -> None:
    reads = (
        Topic("shop.sales"),
        Topic("shop.backs", clock=False),
        Topic("shop.others"),
        Topic("shop.control", 1),
    )
    app = App("both", "", AppSettings, both, lambda _: Topics(reads=reads, control="shop.control"))
    chain, expected, batches = MemoryChain(both(None)), Counter[tuple[str, bytes]](), []
    events = happened(7, 120)
    for batch in (events[:50], events[50:]):
        rows, records = [], []
        for e in batch:
            sale = isinstance(e, Sale)
            input = ("shops" if e.cents % 2 else "cards_sales") if sale else "cards_backs"
            topic = {"shops": "shop.others", "cards_sales": "shop.sales", "cards_backs": "shop.backs"}[input]
            rows.append((e.shop if input == "shops" else e.card, e.at, e, input))  # type: ignore[union-attr]
            records.append(Record(topic, msgspec.json.encode(e), b"", e.at))
        expected.update((e.output, e.payload) for e in chain.run_batch(rows))
        batches.append(records)
    done = run_records(app, told("both"), tmp_path, batches, session=spark)
    for output, table in {"main": "seen", "Both.shops": "turnovers", "Both.cards": "totals"}.items():
        found = Counter(
            msgspec.json.encode({k: v for k, v in row.items() if not k.startswith("_")})
            for row in done.table(table).to_pylist()
        )
        assert found == Counter(raw for name, raw in expected.elements() if name == output), output
        assert found.total() > 20


def test_a_bounded_frame_runs_a_topology_without_a_state_store(spark: SparkSession) -> None:
    events = happened(5, 80)
    rows = [(topic_of(e), bytearray(msgspec.json.encode(e))) for e in events]
    frame = spark.createDataFrame(rows, "topic string, value binary")
    stream = keyed(
        frame,
        value="value",
        by={"sales": "card", "backs": "card"},
        tag=F.when(F.col("topic") == "shop.sales", "sales").when(F.col("topic") == "shop.backs", "backs"),
        event_time="at",
        key_groups=4,
    ).run(shop())
    expected: Counter[tuple[str, bytes]] = Counter()
    chain = MemoryChain(shop())
    for e in events:
        expected.update(
            (out.output, out.payload)
            for out in chain.run_batch([(e.card, e.at, e, "sales" if isinstance(e, Sale) else "backs")])
        )
    for output in ("main", "Shops.main", "Cards.sold"):
        found = Counter(
            msgspec.json.encode({k: v for k, v in row.asDict().items() if not k.startswith("_")})
            for row in stream[output].collect()
        )
        assert found == Counter(raw for name, raw in expected.elements() if name == output), output


def test_topics_and_inputs_that_disagree_on_what_is_a_clock_are_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    reads = (Topic("shop.sales"), Topic("shop.backs"), Topic("shop.control", 1))
    app = App(
        "shop", "", AppSettings, lambda _: shop(), lambda _: Topics(reads=reads, control="shop.control")
    )
    with pytest.raises(
        KeyingError, match=r"topic shop.backs is a clock, its input backs is none: say the same"
    ):
        run_records(app, told("shop"), tmp_path, [[Record("shop.sales", b"{}", b"", 1)]], session=spark)
