"""Streaming ETL whose messages change: new fields, a broken one, a new version of the job, one table.

Version 1 is the running balance of the recipe of that name. Payments come with vouchers before the job knows
of them. Version 2 reads them, keeps a state more and goes on: the sums stand, the table has a column more.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from millrace import Context, KeyedProcess, arrival, days, keyed, value_state
from millrace_apps.recipes import kit
from millrace_apps.recipes.running_balance import Balance, Payment, RunningBalance

TEACHES = "schema change of messages, state and table, dead letters"
ENGINES = ("spark",)


class VoucherPayment(Payment):
    """A payment as version 2 knows it."""

    voucher: str | None = None


class VoucherBalance(Balance):
    """What a user has, and how many vouchers there were."""

    vouchers: int


class NextBalance(KeyedProcess[VoucherPayment, VoucherBalance]):
    """Version 2; states are found by their names: `total` goes on, `vouchers` begins."""

    name = "RunningBalance"
    order = arrival(commutes=True)
    total = value_state(float, default=0.0, ttl=days(90))
    vouchers = value_state(int, default=0, ttl=days(90))

    def process(self, event: VoucherPayment, ctx: Context) -> None:
        """Add a payment, and count its voucher."""
        self.total.value += event.amount
        self.vouchers.value += event.voucher is not None
        ctx.emit(VoucherBalance(ctx.key, self.total.value, self.vouchers.value))


ann, bob = ({"user": name, "at": kit.at("10:00")} for name in ("ann", "bob"))
BEFORE: Any = [[ann | {"amount": 20.0}, bob | {"amount": 5.0}], [bob | {"amount": "five"}]]
BEFORE += [[ann | {"amount": 10.0, "voucher": "MAY"}]]
AFTER: Any = [[ann | {"amount": 1.0, "voucher": "JUNE"}], [bob | {"amount": 2.0}]]


def run_version(spark: SparkSession, folder: Path, process: KeyedProcess[Any, Any]) -> None:
    """Run a version of the job over the files that its checkpoint does not know."""
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(f"{folder}/payments")
    balances = keyed(lines, by="user", event_time="at", value="value").process(process)
    targets = {"main": f"{folder}/balances", "dead_letters": f"{folder}/dead"}
    balances.write_to(targets, folder / "state", trigger={"availableNow": True}).awaitTermination()


def main(run: kit.Run) -> dict[str, Any]:
    """Run version 1, and go on with version 2."""
    folder, table = run.folder(), run.spark.read.format("delta")
    kit.write_batches(folder / "payments", BEFORE)
    run_version(run.spark, folder, RunningBalance())
    run.say(f"version 1: {table.load(f'{folder}/balances').columns[:2]}")
    kit.write_batches(folder / "payments", AFTER, start=len(BEFORE))
    run_version(run.spark, folder, NextBalance())
    for row in (rows := table.load(f"{folder}/balances").orderBy("user", "total").collect()):
        run.say(f"version 2: user={row.user} total={row.total:.0f} vouchers={row.vouchers}")
    dead = table.load(f"{folder}/dead").collect()
    run.say(f"dead letters: {[(row.reason, row.error) for row in dead]}")
    return {"rows": rows, "dead": dead}


if __name__ == "__main__":
    kit.script(__file__)
