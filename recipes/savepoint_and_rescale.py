"""A savepoint of a query, and another one that goes on from it: a new version, in more partitions.

It is the running balance of the recipe of that name. The first query goes on as if nothing were. The other
one has its state as of the savepoint, in another shape, and one state more: the balances must be the same.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import Row

from millrace import Context, KeyedProcess, arrival, days, keyed, value_state
from millrace.checkpoints import rescale, savepoints
from millrace.checkpoints.checkpoint import locate
from millrace.playback import at, write_batches
from millrace.runtime.session import local_session

TEACHES = "savepoint, a new version of a process, rescaling"
ENGINES = ("spark",)


class Payment(msgspec.Struct):
    """Money that comes in, or goes out."""

    user: str
    at: int
    amount: float


class Balance(msgspec.Struct):
    """What a user has."""

    user: str
    total: float


class RunningBalance(KeyedProcess[Payment, Balance]):
    """Adds up the payments of each user."""

    order = arrival(commutes=True)
    total = value_state(float, default=0.0, ttl=days(90))

    def process(self, event: Payment, ctx: Context) -> None:
        """Add a payment and tell the sum."""
        self.total.value += event.amount
        ctx.emit(Balance(ctx.key, self.total.value))


class NumberedBalance(msgspec.Struct):
    """What a user has, and after how many payments since they are counted."""

    user: str
    total: float
    payments: int


class NextBalance(KeyedProcess[Payment, NumberedBalance]):
    """The next version of the running balance: it counts payments."""

    name = "RunningBalance"
    order = arrival(commutes=True)
    total = value_state(float, default=0.0, ttl=days(90))
    payments = value_state(int, default=0, ttl=days(90))

    def process(self, event: Payment, ctx: Context) -> None:
        """Add and count a payment."""
        self.total.value += event.amount
        self.payments.value += 1
        ctx.emit(NumberedBalance(ctx.key, self.total.value, self.payments.value))


PAYMENTS = [
    [Payment("ann", at("10:00") + n, 10.0 * n), Payment("bob", at("10:00") + n, 1.0)] for n in range(5)
]


def query(files: Path, folder: Path, process: Any, key_groups: int) -> list[Row]:
    """Run the query over the files that its checkpoint does not know, and return its table."""
    spark = local_session()
    payments = spark.readStream.schema("user string, at long, amount double").json(str(files))
    balances = keyed(payments, by="user", event_time="at", key_groups=key_groups).process(process)
    balances.write_to({"main": folder / "table"}, folder, trigger={"availableNow": True}).awaitTermination()
    rows = spark.read.format("delta").load(f"{folder}/table")
    return rows.orderBy("_event_time", "user").collect()


def main() -> dict[str, Any]:
    """Run, keep, and go on; then go on once more, from what was kept."""
    with tempfile.TemporaryDirectory() as name:
        files, old, new = (Path(name) / part for part in ("payments", "old", "new"))
        write_batches(files, PAYMENTS[:3])
        query(files, old, RunningBalance(), key_groups=4)
        kept = savepoints.create(locate(str(old)))
        write_batches(files, PAYMENTS[3:], start=3)
        undisturbed = query(files, old, RunningBalance(), key_groups=4)
        restored = savepoints.restore(kept, new, tables="keep").checkpoint
        shape = rescale.rekey(local_session(), restored, partitions=3, key_groups=16)
        again = query(files, new, NextBalance(), key_groups=16)
    print(f"without a break:    {[(row.user, row.total) for row in undisturbed[6:]]}")
    print(f"from the savepoint: {[(row.user, row.total, row.payments) for row in again]}")
    return {"undisturbed": undisturbed, "again": again, "shape": shape}


if __name__ == "__main__":
    main()
