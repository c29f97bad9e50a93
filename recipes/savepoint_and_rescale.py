"""A savepoint of a query, and another one that goes on from it: a new version, in more partitions.

It is the running balance of the recipe of that name. The first query goes on as if nothing were. The other
one has its state as of the savepoint, in another shape, and one state more: the balances must be the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import Row, SparkSession

from millrace import Context, KeyedProcess, arrival, days, keyed, value_state
from millrace.inspect import rescale, savepoints
from millrace.inspect.checkpoint import locate
from millrace_apps.recipes import kit
from millrace_apps.recipes.running_balance import Payment, RunningBalance

TEACHES = "savepoint, a new version of a process, rescaling"
ENGINES = ("spark",)


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
    [Payment("ann", kit.at("10:00") + n, 10.0 * n), Payment("bob", kit.at("10:00") + n, 1.0)]
    for n in range(5)
]


def query(spark: SparkSession, files: Path, folder: Path, process: Any, key_groups: int) -> list[Row]:
    """Run the query over the files that its checkpoint does not know, and return its table."""
    payments = spark.readStream.schema("user string, at long, amount double").json(str(files))
    balances = keyed(payments, by="user", event_time="at", key_groups=key_groups).process(process)
    balances.write_to({"main": folder / "table"}, folder, trigger={"availableNow": True}).awaitTermination()
    return kit.delta_rows(spark, folder / "table")


def main(run: kit.Run) -> dict[str, Any]:
    """Run, keep, and go on; then go on once more, from what was kept."""
    files, old, new = run.folder(), run.folder(), run.folder()
    kit.write_batches(files, PAYMENTS[:3])
    query(run.spark, files, old, RunningBalance(), key_groups=4)
    kept = savepoints.create(locate(str(old)))
    kit.write_batches(files, PAYMENTS[3:], start=3)
    undisturbed = query(run.spark, files, old, RunningBalance(), key_groups=4)
    restored = savepoints.restore(kept, new, tables="keep").checkpoint
    shape = rescale.rekey(run.spark, restored, partitions=3, key_groups=16)
    again = query(run.spark, files, new, NextBalance(), key_groups=16)
    run.say(f"without a break:    {[(row.user, row.total) for row in undisturbed[6:]]}")
    run.say(f"from the savepoint: {[(row.user, row.total, row.payments) for row in again]}")
    return {"undisturbed": undisturbed, "again": again, "shape": shape}


if __name__ == "__main__":
    kit.script(__file__)
