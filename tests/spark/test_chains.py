"""Chains, event-time order, ticks and the end of the input on Spark: what memory gives, Spark gives."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from millrace import Context, KeyedProcess, Timer, arrival, keyed, map_state, side_output, value_state
from millrace.host.memory import MemoryHost
from millrace.host.memory_chain import MemoryChain
from millrace.host.runner import Emission
from millrace.host.spark import ProcessedStream
from millrace.host.system import Idle, SystemMessage, Tick, encode_system
from millrace.topology import KeyingError
from tests.spark.conftest import StreamFactory
from tests.spark.mirror import DRAIN

START = 1_700_000_040_000
MINUTE = 60_000
BOUND = 5_000


class Sale(msgspec.Struct, frozen=True):
    card: str
    shop: str
    at: int
    cents: int


class PerMinute(msgspec.Struct, frozen=True):
    card: str
    shop: str
    minute: int
    cents: int


class Standing(msgspec.Struct, frozen=True):
    shop: str
    cards: int
    cents: int
    times: list[int]
    on_time: bool = True


class Minutes(KeyedProcess[Sale, PerMinute]):
    """Sales of a card per shop and minute, out when the minute is over."""

    order = arrival(commutes=True)
    sums = map_state(str, int)
    large = side_output(Sale)

    def process(self, event: Sale, ctx: Context) -> None:
        if event.cents == 13:
            raise ValueError("thirteen")
        minute = event.at // MINUTE * MINUTE
        place = f"{minute}:{event.shop}"
        self.sums.put(place, (self.sums.get(place) or 0) + event.cents)
        ctx.timers.at(minute + MINUTE - 1, f"{minute}")
        if event.cents > 90:
            ctx.output(self.large, event)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        for place, cents in sorted(self.sums.items()):
            minute, _, shop = place.partition(":")
            if minute == timer.name:
                ctx.emit(PerMinute(ctx.key, shop, int(minute), cents))
                self.sums.remove(place)


class Shops(KeyedProcess[PerMinute, Standing]):
    """What a shop took from how many cards, in order of time; told a minute and a half after the first."""

    order = "event_time"
    cards = map_state(str, int)
    times = value_state(list[int], default_factory=list)

    def process(self, event: PerMinute, ctx: Context) -> None:
        if not len(self.cards):
            ctx.timers.after(MINUTE + MINUTE // 2, "tell")
        self.cards.put(event.card, (self.cards.get(event.card) or 0) + event.cents)
        self.times.value = [*self.times.value, ctx.event_time]

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        cents = [c for _, c in self.cards.items()]
        ctx.emit(Standing(ctx.key, len(cents), sum(cents), self.times.value))
        self.cards.clear()
        self.times.clear()


def sales(seed: int, count: int) -> list[list[tuple[str, int, Sale]]]:
    """Batches of sales, out of order and some of them late."""
    rng = random.Random(seed)
    head, batches = START, []
    for _ in range(count):
        batch = []
        for _ in range(30):
            head += rng.choice([0, 1, 1_000, 7_000])
            at = head - rng.choice([0, 0, 1_000, BOUND, BOUND + 1, 3 * MINUTE])
            sale = Sale(rng.choice("abcdé"), rng.choice("xyz"), at, rng.choice([1, 13, 50, 99]))
            batch.append((sale.card, at, sale))
        batches.append(batch)
    return batches


SCHEMA = "value string, source string, control boolean"


def rows_of(batch: Sequence[tuple[str, int, Sale]], offset: int) -> list[dict[str, Any]]:
    return [
        {"value": msgspec.json.encode(sale).decode(), "source": f"memory:0:{offset + i}", "control": False}
        for i, (_, _, sale) in enumerate(batch)
    ]


def system_row(message: SystemMessage) -> dict[str, Any]:
    return {"value": encode_system(message).decode(), "source": None, "control": True}


def source(df: DataFrame) -> Any:
    return keyed(
        df,
        by="card",
        event_time="at",
        value="value",
        out_of_orderness=BOUND,
        source_id="source",
        control=F.col("control"),
        key_groups=3,
    )


def chain(df: DataFrame) -> ProcessedStream:
    return source(df).process(Minutes()).key_by("shop").process(Shops())


def comparable(emissions: Sequence[Any]) -> Counter[str]:
    found = []
    for e in emissions:
        payload = e.payload if not isinstance(e.payload, bytes) else msgspec.json.decode(e.payload)
        if e.output.endswith("dead_letters"):
            payload = {k: v for k, v in payload.items() if k != "error_digest"}
        found.append(repr((e.output, e.event_id, e.key, e.event_time, e.on_time, payload)))
    return Counter(found)


@pytest.mark.matrix  # the fuzzing and the test of a bounded frame have chains every day
def test_a_chain_gives_on_spark_what_it_gives_in_memory_and_drains_empty(stream: StreamFactory) -> None:
    batches = sales(3, 6)
    host = MemoryChain(Minutes(), ("shop", Shops()), out_of_orderness_ms=BOUND)
    expected: list[Emission] = [e for batch in batches for e in host.run_batch(batch)]
    expected += host.drain()
    assert host.is_empty()
    spark_stream = stream(SCHEMA, chain)
    offset = 0
    for part in (batches[:3], batches[3:]):
        for batch in part:
            spark_stream.add(rows_of(batch, offset))
            offset += len(batch)
        spark_stream.run()
    spark_stream.add([system_row(DRAIN)])
    spark_stream.run()
    assert comparable(spark_stream.emitted) == comparable(expected)
    kinds = Counter(e.output for e in expected)
    assert min(kinds[k] for k in ("main", "Minutes.late", "Minutes.large", "Minutes.dead_letters")) > 3
    assert spark_stream.late_drops == 0
    told = [e.payload["times"] for e in spark_stream.emitted if e.output == "main"]
    assert all(times == sorted(times) for times in told)


def test_a_batch_brings_what_waits_for_it_through_the_whole_chain(stream: StreamFactory) -> None:
    """The first sale, a minute over, a minute and a half over: each batch ends at the watermark it brings."""
    spark_stream = stream(SCHEMA, chain)
    for number, at in enumerate((START, START + MINUTE + BOUND + 1, START + 3 * MINUTE + BOUND + 1)):
        sale = Sale("a", "x", at, 50)
        spark_stream.add(rows_of([("a", at, sale)], number))
    spark_stream.run()
    told = [batch for batch, rows in spark_stream.batches.items() for e in rows if e.output == "main"]
    # Batch 1 brings the end of the first minute, and batch 2 the time at which the shop tells of it.
    assert told[0] == 2


def test_outputs_of_every_link_have_typed_columns(stream: StreamFactory) -> None:
    spark_stream = stream(SCHEMA, chain)
    spark_stream.views = ("main", "Minutes.large", "Minutes.late")
    spark_stream.add(rows_of([("a", START, Sale("a", "x", START, 99))], 0))
    spark_stream.add([system_row(DRAIN)])
    spark_stream.run()
    (large,) = spark_stream.typed["Minutes.large"]
    (standing,) = spark_stream.typed["main"]
    assert (large.card, large.cents) == ("a", 99)
    assert (standing.shop, standing.cards, standing.cents) == ("x", 1, 99)
    assert spark_stream.output is not None
    assert set(spark_stream.output.outputs) == {
        "main", "late", "dead_letters", "Minutes.large", "Minutes.late", "Minutes.dead_letters",
    }  # fmt: skip


class Quiet(KeyedProcess[Sale, str]):
    """Tells when a card has been quiet on the wall clock, and how long its memory lasts on it."""

    order = arrival(in_order_per_key=True)
    processing_time = True
    last = value_state(str, ttl=10 * MINUTE, ttl_time="processing_time")

    def process(self, event: Sale, ctx: Context) -> None:
        ctx.emit(f"{event.shop} after {self.last.value} at {ctx.processing_time}")
        self.last.value = event.shop
        ctx.processing_timers.after(MINUTE, "quiet")
        ctx.timers.after(MINUTE, "event")

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        ctx.emit(f"{timer.domain} {timer.name} {timer.at} at {ctx.processing_time}, last {self.last.value}")


def test_ticks_drive_processing_time_and_idle_ticks_event_time(stream: StreamFactory) -> None:
    host = MemoryHost(Quiet(), out_of_orderness_ms=BOUND)
    spark_stream = stream(SCHEMA, lambda df: source(df).process(Quiet()))
    expected: list[Emission] = []
    offset = 0

    def send(*sold: tuple[str, int, Sale]) -> None:
        nonlocal offset, expected
        spark_stream.add(rows_of(sold, offset))
        offset += len(sold)
        expected += host.run_batch(sold)

    def tick(at: int) -> None:
        nonlocal expected
        spark_stream.add([system_row(Tick(at))])
        expected += host.advance_processing_time(at)

    send(("a", START, Sale("a", "x", START, 1)))
    tick(1_000_000)
    send(("a", START + 1, Sale("a", "y", START + 1, 1)), ("b", START + 2, Sale("b", "x", START + 2, 1)))
    tick(1_000_000 + MINUTE - 1)
    spark_stream.run()
    tick(1_000_000 + MINUTE)
    tick(1_000_000 + 10 * MINUTE)  # what was written at the first tick has gone
    send(("a", START + 3, Sale("a", "z", START + 3, 1)))
    spark_stream.add([system_row(Idle(START + 2 * MINUTE + BOUND + 1))])
    expected += host.advance_watermark(START + 2 * MINUTE)
    spark_stream.run()
    assert comparable(spark_stream.emitted) == comparable(expected)
    said = [e.payload for e in spark_stream.emitted]
    assert any("processing_time quiet" in text for text in said)
    assert any("event_time event" in text for text in said)
    assert any(text.startswith("z after None") for text in said)


def test_a_process_on_processing_time_is_refused_without_control_rows(spark: SparkSession) -> None:
    df = spark.readStream.format("rate").load().select(F.lit("{}").alias("value"))
    with pytest.raises(KeyingError, match="Quiet uses processing time, which ticks"):
        keyed(df, by="card", event_time="at", value="value").process(Quiet())


def test_a_control_event_that_nobody_takes_is_a_dead_letter_and_not_lost(stream: StreamFactory) -> None:
    spark_stream = stream(SCHEMA, lambda df: source(df).process(Minutes()))
    spark_stream.add([{"value": '{"limit": 3}', "source": "c:0:1", "control": True}])
    spark_stream.add([{"value": '{"$millrace":"never"}', "source": "c:0:2", "control": True}])
    spark_stream.run()
    letters = [e.payload for e in spark_stream.emitted if e.output == "dead_letters"]
    assert [(x["reason"], x["offset"]) for x in letters] == [("schema", 1), ("schema", 2)]
    assert "Minutes takes no control events" in letters[0]["error"]


def test_a_bounded_dataframe_gives_the_rows_of_the_stream(spark: SparkSession) -> None:
    events = [(k, at, s) for batch in sales(5, 4) for k, at, s in batch]
    # No event is late under the finest cut: in order, each within the bound.
    events = sorted(events, key=lambda e: e[1])
    host = MemoryChain(Minutes(), ("shop", Shops()), out_of_orderness_ms=BOUND)
    expected: list[Emission] = [e for event in events for e in host.run_batch([event])]
    expected += host.drain()
    shuffled = rows_of(events, 0)
    random.Random(2).shuffle(shuffled)
    result = chain(spark.createDataFrame(shuffled, SCHEMA))
    rows = result.rows(result.raw).collect()
    found = [Emission(*r) for r in rows]
    assert without_causes(found) == without_causes(expected)
    assert {r.shop for r in result["main"].collect()} == {"x", "y", "z"}


def without_causes(emissions: Sequence[Emission]) -> Counter[str]:
    """Ids of what timers emit hang on which of several events of one time set them last."""
    return Counter(
        repr((e.output, e.key, e.event_time, e.on_time, msgspec.json.decode(e.payload)))
        for e in emissions
        if not e.output.endswith("dead_letters")
    )


def test_key_by_refuses_what_is_not_there(spark: SparkSession) -> None:
    df = spark.createDataFrame([], SCHEMA)
    minutes = source(df).process(Minutes())
    with pytest.raises(KeyingError, match="no field town"):
        minutes.key_by("town")
    with pytest.raises(KeyingError, match="no output 'alerts'"):
        minutes.key_by("shop", output="alerts")
    with pytest.raises(KeyingError, match="Minutes is in the chain already"):
        minutes.key_by("shop", output="large").process(Minutes())
    contract = minutes.key_by("shop").process(Shops()).contract()
    assert set(contract["states"]) == {"Minutes.sums", "Shops.cards", "Shops.times"}
    assert [link["process"] for link in contract["links"]] == ["Minutes", "Shops"]
