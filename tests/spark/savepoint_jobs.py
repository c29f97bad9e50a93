"""Processes and a small job for the tests of savepoints: balances of payments that come in files."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import SparkSession

from millrace import (
    Context,
    KeyedProcess,
    Timer,
    arrival,
    days,
    keyed,
    map_state,
    minutes,
    value_state,
    versioned_state,
)
from millrace.host.spark import ProcessedStream
from millrace.host.spark_input import Plan
from millrace.host.spark_sink import write_to

START = 1_700_000_000_000
SCHEMA = "user string, at bigint, amount bigint, shop string, source string"


class Payment(msgspec.Struct):
    """An event."""

    user: str
    at: int
    amount: int
    shop: str = "corner"


class Balance(msgspec.Struct):
    """A result."""

    user: str
    total: int
    why: str = "payment"


class Place(msgspec.Struct):
    """A value with a structure."""

    name: str
    visits: int = 0


class Balances(KeyedProcess[Payment, Balance]):
    """The balance after every payment, and again when a user has been idle for ten minutes."""

    order = arrival(in_order_per_key=True)
    total = value_state(int, default=0)

    def process(self, event: Payment, ctx: Context) -> None:
        """Add a payment."""
        self.total.value += event.amount
        ctx.emit(Balance(ctx.key, self.total.value))
        ctx.timers.after(minutes(10), "idle")

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """Tell the balance of who is idle."""
        ctx.emit(Balance(ctx.key, self.total.value, timer.name))


class BalancesByShop(Balances):
    """The next version: it counts visits, too."""

    name = "Balances"
    version = 2
    shops = map_state(str, int, ttl=days(1))
    last = value_state(Place, ttl=days(1))
    rate = versioned_state(float, history=days(1))

    def process(self, event: Payment, ctx: Context) -> None:
        """Add a payment and count the visit."""
        super().process(event, ctx)
        self.shops.put(event.shop, (self.shops.get(event.shop) or 0) + 1)


class BalancesAsText(Balances):
    """A version that cannot read what the first one kept."""

    name = "Balances"
    version = 3
    total = value_state(str, default="")  # type: ignore[assignment]


class Totals(KeyedProcess[Balance, str]):
    """The next process of a chain: how often a total was reached, over all users."""

    order = arrival(commutes=True)
    seen = value_state(int, default=0)

    def process(self, event: Balance, ctx: Context) -> None:
        """Count a total."""
        self.seen.value += 1
        ctx.emit(f"{ctx.key} {event.why}: {self.seen.value}")


class Payments:
    """A folder that is read as a stream, some files per batch."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark, self._folder, self._files = spark, folder, 0
        folder.mkdir(parents=True)

    def add(self, *payments: Payment) -> None:
        """Add a file."""
        path = self._folder / f"{self._files:05}.json"
        rows = [{**msgspec.to_builtins(p), "source": f"f{self._files}:{i}"} for i, p in enumerate(payments)]
        path.write_bytes(b"\n".join(map(msgspec.json.encode, rows)))
        os.utime(path, (1_000_000_000 + self._files, 1_000_000_000 + self._files))
        self._files += 1

    def add_some(self, numbers: range) -> None:
        """Add a file for each number, with payments of eight users at its minute."""
        for n in numbers:
            self.add(*(Payment(f"u{i}", START + n * 60_000 + i, n * 10 + i) for i in range(8)))

    def stream(
        self,
        process: KeyedProcess[Any, Any],
        *,
        key_groups: int = 4,
        per_batch: int = 1,
        plan: Plan = "chain",
    ) -> ProcessedStream:
        """Return the stream of a process over the files."""
        df = self._spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", per_batch)
        return keyed(
            df.json(str(self._folder)), by="user", event_time="at", source_id="source",
            key_groups=key_groups, plan=plan,
        ).process(process)  # fmt: skip

    def run(self, stream: ProcessedStream, tables: dict[str, Any], root: Path, table_format: Any) -> None:
        """Run a stream over all files that are there."""
        query = write_to(stream, tables, root, trigger={"availableNow": True}, table_format=table_format)
        try:
            assert query.awaitTermination(150), "the query does not end"
        finally:
            query.stop()


def rows_of(spark: SparkSession, table: Path, table_format: str) -> Counter[tuple[Any, ...]]:
    """Return the records of a table with their identities."""
    df = spark.read.format(table_format).load(str(table))
    columns = [c for c in df.columns if c not in ("batch",)]
    return Counter(tuple(row) for row in df.select(*columns).collect())
