"""Records in files through a real pipeline, and tables with one row per key by both writers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
from pyspark.sql import SparkSession

from millrace import Context, KeyedProcess, Timer, arrival, value_state
from millrace.errors import UserError
from millrace.runtime.apps import App, Topic, Topics
from millrace.runtime.replay import Record, RecordFiles, run_records
from millrace.runtime.settings import AppSettings, load_settings
from millrace.topology import Input, RecordKey, Topology, Upsert, read


class Click(msgspec.Struct):
    user: str
    at: int


class Control(msgspec.Struct):
    what: str


class Total(msgspec.Struct):
    user: str
    clicks: int
    closed: bool


class Clicks(KeyedProcess[Click, Total]):
    order = arrival(commutes=True)
    control_type: ClassVar[object] = Control
    clicks = value_state(int, default=0)

    def process(self, event: Click, ctx: Context) -> None:
        self.clicks.value += 1
        ctx.timers.at(10_000_000, "close")
        ctx.emit(Total(ctx.key, self.clicks.value, False))

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        ctx.emit(Total(ctx.key, self.clicks.value, True))
        self.clicks.clear()


def topology(settings: AppSettings) -> Topology:
    return (
        read(Input("clicks", "user", "at"), control="control")
        .process(Clicks())
        .write(
            tables={
                "main": Upsert("totals", key=("user",), newest=("clicks", "user")),
                "dead_letters": "dead_letters",
            },
            topics={"main": "nobody"},
        )
    )


def topics(settings: Any) -> Topics:
    return Topics(reads=(Topic("clicks"), Topic("control", 1)), control="control")


APP = App(name="clicks", summary="", settings=AppSettings, topology=topology, topics=topics)
CLICKS = [("a", 1), ("b", 2), ("a", 3), ("c", 4), ("a", 5), ("b", 6)]


def batches(size: int) -> list[list[Record]]:
    records = [Record("clicks", msgspec.json.encode(Click(u, at)), u.encode()) for u, at in CLICKS]
    records.append(Record("clicks", b"{broken"))
    return [records[i : i + size] for i in range(0, len(records), size)]


def settings(*overrides: str) -> AppSettings:
    return load_settings(AppSettings, app="clicks", overrides=overrides)


@pytest.mark.parametrize(
    ("size", "driver_write_max_records"),
    [
        pytest.param(2, 500_000, id="driver"),
        pytest.param(3, 0, id="spark", marks=pytest.mark.matrix),
    ],
)
def test_records_in_files_go_through_the_pipeline(
    spark: SparkSession, tmp_path: Path, size: int, driver_write_max_records: int
) -> None:
    said = settings(f"stream.driver_write_max_records={driver_write_max_records}")
    done = run_records(APP, said, tmp_path, batches(size), session=spark)

    assert done.rows == len(CLICKS) + 2  # the broken one, and the end
    totals = done.table("totals", ["user", "clicks", "closed"]).to_pylist()
    assert sorted((r["user"], r["clicks"], r["closed"]) for r in totals) == [
        ("a", 3, True),
        ("b", 2, True),
        ("c", 1, True),
    ]
    (letter,) = done.table("dead_letters").to_pylist()
    assert letter["topic"] == "clicks"
    assert done.batches == len(list((tmp_path / "records").iterdir()))
    assert done.outputs["dead_letters"] == 1


class Loose(Clicks):
    """Gives some of what it emits values that their columns cannot have."""

    name = "Clicks"

    def process(self, event: Click, ctx: Context) -> None:
        count: Any = {3: 2**63, 4: 1.5}.get(event.at, event.at)
        ctx.emit(Total(event.user, count, False))

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """Set by nobody."""


@pytest.mark.parametrize(
    "driver_write_max_records",
    [pytest.param(500_000, id="driver"), pytest.param(0, id="spark", marks=pytest.mark.matrix)],
)
def test_records_that_a_table_cannot_take_do_not_stop_a_job(
    spark: SparkSession, tmp_path: Path, driver_write_max_records: int
) -> None:
    def loose(settings: AppSettings) -> Topology:
        return (
            read(Input("clicks", "user", "at"), control="control")
            .process(Loose())
            .write(tables={"main": "totals", "dead_letters": "dead_letters"})
        )

    app = App(name="clicks", summary="", settings=AppSettings, topology=loose, topics=topics)
    said = settings(f"stream.driver_write_max_records={driver_write_max_records}")
    done = run_records(app, said, tmp_path, batches(3), session=spark)
    assert sorted(done.table("totals", ["clicks"])["clicks"].to_pylist()) == [1, 2, 5, 6]
    letters = done.table("dead_letters").to_pylist()
    assert sorted(
        (x["stage"], x["process"], x["event_time_ms"]) for x in letters if x["stage"] == "table"
    ) == [
        ("table", "Clicks", 3),
        ("table", "Clicks", 4),
    ]
    assert len(letters) == 3


class Order(msgspec.Struct):
    order_id: str
    event_time_ms: int
    cents: int


class Refund(msgspec.Struct):
    event_time_ms: int
    cents: int


class Kept(KeyedProcess[Order | Refund, Total]):
    """What an order costs after its refunds."""

    order = arrival(commutes=True)
    inputs: ClassVar = {"orders": Order, "refunds": Refund}
    cents = value_state(int, default=0)

    def process(self, event: Order | Refund, ctx: Context) -> None:
        self.cents.value += event.cents if ctx.input == "orders" else -event.cents
        ctx.emit(Total(ctx.key, self.cents.value, False))


def topology_of_two(settings: AppSettings) -> Topology:
    inputs = {"orders": Input("shop.orders", "order_id"), "refunds": Input("shop.refunds", RecordKey())}
    return (
        read(inputs, control="control")
        .process(Kept())
        .write(tables={"main": "totals", "dead_letters": "dead_letters"})
    )


def test_several_topics_are_inputs_of_one_scan_and_dead_letters_have_what_came(
    spark: SparkSession, tmp_path: Path
) -> None:
    app = App(name="shop", summary="", settings=AppSettings, topology=topology_of_two, topics=topics)
    headers = (("schema_version", b"1"), ("trace", b"t1"))
    good = [
        Record("shop.orders", b'{"order_id":"o1","event_time_ms":1,"cents":500}', b"any", 1, headers),
        Record("shop.refunds", b'{"event_time_ms":2,"cents":200}', b"o1", 2, headers),
    ]
    bad = [
        Record("shop.refunds", b'{"event_time_ms":3,"cents":"all"}', b"o1", 3, headers),
        Record("shop.orders", b'{"event_time_ms":4,"cents":1}', b"o1", 4, headers),
        Record("shop.refunds", b'{"event_time_ms":5,"cents":1}', b"\xff", 5, headers),
        Record("shop.refunds", b" no json", b"o1", 6, headers),
    ]
    overrides = ["spark.key_groups=4", "stream.keep_headers=all"]
    said = load_settings(AppSettings, app="shop", overrides=overrides)
    done = run_records(app, said, tmp_path, [good, bad], session=spark)

    assert sorted(done.table("totals")["clicks"].to_pylist()) == [300, 500]
    letters = sorted(done.table("dead_letters").to_pylist(), key=lambda row: row["timestamp_ms"])
    found = [(r["topic"], r["value"], r["kafka_key"], r["timestamp_ms"], r["offset"]) for r in letters]
    assert found == [
        (r.topic, r.value, r.key, r.timestamp_ms, offset)
        for r, offset in zip(bad, [1, 1, 2, 3], strict=True)
    ]  # fmt: skip
    assert {r["headers"] for r in letters} == {'{"schema_version":"1","trace":"t1"}'}
    assert [(r["reason"], r["key"]) for r in letters] == [
        ("schema", "2:o1"), ("schema", None), ("schema", None), ("malformed", "2:o1"),
    ]  # fmt: skip


def test_without_the_end_timers_wait(spark: SparkSession, tmp_path: Path) -> None:
    done = run_records(APP, settings(), tmp_path, batches(9), drain=False, session=spark)
    assert done.table("totals")["closed"].to_pylist() == [False] * 3


def test_no_records_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no records"):
        run_records(APP, settings(), tmp_path, [])


def test_offsets_go_on_per_topic(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    files = RecordFiles(tmp_path)
    files.add([Record("a", b"1"), Record("b", b"2"), Record("a", b"3", headers=[("h", b"v")])])
    files.add([])
    files.add_columns("a", [b"4"])
    first, second = (pq.read_table(p).to_pylist() for p in sorted(tmp_path.iterdir()))
    assert [(r["topic"], r["offset"]) for r in (*first, *second)] == [("a", 0), ("b", 0), ("a", 1), ("a", 2)]
    assert first[2]["headers"] == [{"key": "h", "value": b"v"}]
