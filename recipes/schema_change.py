"""Streaming ETL whose messages change: new fields, a broken one, a new version of the job, one table.

Version 1 is the running balance of the recipe of that name. Payments come with vouchers before the job knows
of them. Version 2 reads them, keeps a state more and goes on: the sums stand, the table has a column more.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import msgspec

from millrace import Context, KeyedProcess, arrival, days, keyed, value_state
from millrace.playback import at, write_batches
from millrace.runtime.session import local_session

TEACHES = "schema change of messages, state and table, dead letters"
ENGINES = ("spark",)


class Payment(msgspec.Struct):
    """Money that comes in, or goes out, as version 1 knows it."""

    user: str
    at: int
    amount: float


class Balance(msgspec.Struct):
    """What a user has."""

    user: str
    total: float


class RunningBalance(KeyedProcess[Payment, Balance]):
    """Version 1: adds up the payments of each user."""

    order = arrival(commutes=True)
    total = value_state(float, default=0.0, ttl=days(90))

    def process(self, event: Payment, ctx: Context) -> None:
        """Add a payment and tell the sum."""
        self.total.value += event.amount
        ctx.emit(Balance(ctx.key, self.total.value))


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


ann, bob = ({"user": name, "at": at("10:00")} for name in ("ann", "bob"))
BEFORE: Any = [[ann | {"amount": 20.0}, bob | {"amount": 5.0}], [bob | {"amount": "five"}]]
BEFORE += [[ann | {"amount": 10.0, "voucher": "MAY"}]]
AFTER: Any = [[ann | {"amount": 1.0, "voucher": "JUNE"}], [bob | {"amount": 2.0}]]


def run_version(folder: Path, process: KeyedProcess[Any, Any]) -> None:
    """Run a version of the job over the files that its checkpoint does not know."""
    lines = local_session().readStream.option("maxFilesPerTrigger", 1).text(f"{folder}/payments")
    balances = keyed(lines, by="user", event_time="at", value="value").process(process)
    targets = {"main": f"{folder}/balances", "dead_letters": f"{folder}/dead"}
    balances.write_to(targets, folder / "state", trigger={"availableNow": True}).awaitTermination()


def main() -> dict[str, Any]:
    """Run version 1, and go on with version 2."""
    with tempfile.TemporaryDirectory() as name:
        folder, table = Path(name), local_session().read.format("delta")
        write_batches(folder / "payments", BEFORE)
        run_version(folder, RunningBalance())
        print(f"version 1: {table.load(f'{folder}/balances').columns[:2]}")
        write_batches(folder / "payments", AFTER, start=len(BEFORE))
        run_version(folder, NextBalance())
        rows = table.load(f"{folder}/balances").orderBy("user", "total").collect()
        dead = table.load(f"{folder}/dead").collect()
    for row in rows:
        print(f"version 2: user={row.user} total={row.total:.0f} vouchers={row.vouchers}")
    print(f"dead letters: {[(row.reason, row.error) for row in dead]}")
    return {"rows": rows, "dead": dead}


if __name__ == "__main__":
    main()
