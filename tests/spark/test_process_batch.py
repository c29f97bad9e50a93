"""``process_batch`` beside timers, in a chain: what single events give in memory, Spark gives."""

from __future__ import annotations

import numpy as np
from pyspark.sql import DataFrame

from millrace import Context, KeyedProcess, Timer, arrival, keyed, value_state
from millrace.batch import Batch
from millrace.host.memory_chain import MemoryChain
from millrace.host.spark import ProcessedStream
from tests.spark.conftest import StreamFactory
from tests.spark.mirror import DRAIN
from tests.spark.test_chains import (
    BOUND,
    SCHEMA,
    Sale,
    comparable,
    rows_of,
    sales,
    system_row,
)


class Taken(KeyedProcess[Sale, Sale]):
    """The running total of a key; a timer, set by one in eleven cents, doubles it."""

    order = arrival(commutes=True)
    cents = value_state(int, default=0, ttl=60_000)

    def process(self, event: Sale, ctx: Context) -> None:
        self.cents.value += event.cents
        ctx.emit(Sale(event.card, event.shop, event.at, self.cents.value))
        if event.cents == 11:
            ctx.timers.at(event.at + 9_000, "double")

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        self.cents.value *= 2
        ctx.emit(Sale("timer", "x", timer.at, self.cents.value))


class TakenTogether(Taken):
    name = "Taken"

    def process_batch(self, batch: Batch[Sale]) -> None:
        cents = batch.column("cents", int)
        if (cents == 11).any():
            raise NotImplementedError("a timer is set")
        starts, of = batch.starts, batch.key_of_row
        sums = np.cumsum(cents)
        before = np.concatenate([[0], sums])[starts[:-1]]
        totals = sums - before[of] + np.array(batch.read(self.cents))[of]
        batch.write(self.cents, totals[starts[1:] - 1])
        batch.emit(Sale(e.card, e.shop, e.at, t) for e, t in zip(batch.events, totals.tolist(), strict=True))


class OfShops(Taken):
    """The same, of the next stage."""


class OfShopsTogether(TakenTogether):
    name = "OfShops"


def chain(df: DataFrame) -> ProcessedStream:
    stream = keyed(
        df,
        by="card",
        event_time="at",
        value="value",
        out_of_orderness=BOUND,
        source_id="source",
        control="control",
        key_groups=3,
    )
    return stream.process(TakenTogether()).key_by("shop").process(OfShopsTogether())


def test_process_batch_beside_timers_gives_on_spark_what_single_events_give_in_memory(
    stream: StreamFactory,
) -> None:
    batches = [
        [(c, at, Sale(s.card, s.shop, at, 11 if number % 2 and n % 7 == 0 else 1)) for n, (c, at, s) in batch]
        for number, batch in enumerate(map(list, map(enumerate, sales(5, 6))))
    ]
    host = MemoryChain(Taken(), ("shop", OfShops()), out_of_orderness_ms=BOUND)
    expected = [e for batch in batches for e in host.run_batch(batch)] + host.drain()
    spark_stream = stream(SCHEMA, chain)
    offset = 0
    for batch in batches:
        spark_stream.add(rows_of(batch, offset))
        offset += len(batch)
    spark_stream.add([system_row(DRAIN)])
    spark_stream.run()
    assert comparable(spark_stream.emitted) == comparable(expected)
    of_timers = [e for e in spark_stream.emitted if e.output == "main" and e.payload["card"] == "timer"]
    assert len(of_timers) > 10
