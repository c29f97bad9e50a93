"""Exactly once, shown by killing it: `kill -9` in the worst moment of a batch, a new start, and a count.

Batch 2 is in the table and not yet in the checkpoint when the process is killed. The next start runs it
again: the table takes it only once. A function that was called is called again.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from millrace import Context, KeyedProcess, arrival, days, keyed, side_output, value_state
from millrace_apps.recipes import kit

TEACHES = "checkpoint, recovery, a table that takes a batch once, a function that is called again"
ENGINES = ("spark",)


class Sale(msgspec.Struct):
    """A sale in a shop; as a result, the sum of all so far."""

    shop: str
    at: int
    amount: int


class Totals(KeyedProcess[Sale, Sale]):
    """Adds up the sales of each shop."""

    order = arrival(commutes=True)
    total = value_state(int, default=0, ttl=days(1))
    large = side_output(Sale)

    def process(self, event: Sale, ctx: Context) -> None:
        """Add a sale, and tell of a large one."""
        self.total.value += event.amount
        ctx.emit(Sale(ctx.key, ctx.event_time, self.total.value))
        if event.amount > 100:
            ctx.output(self.large, event)


#: A batch each; the large sale is in batch 2.
SALES = [Sale("north", kit.at("10:00") + n, amount) for n, amount in enumerate((10, 20, 300, 40, 50, 60))]


def query(spark: Any, folder: Path, call: Callable[[Any, int], None]) -> None:
    """Run the query over the files of a folder, to their end."""
    files = spark.readStream.schema("shop string, at long, amount long").option("maxFilesPerTrigger", 1)
    totals = keyed(files.json(f"{folder}/sales"), by="shop", event_time="at").process(Totals())
    targets: dict[str, Any] = {"main": f"{folder}/totals", "large": call}
    totals.write_to(targets, folder / "state", trigger={"availableNow": True}).awaitTermination()


def hanging(folder: Path) -> None:
    """Run the query, and hang when it tells of a large sale: this is what is killed."""
    with kit.start_session() as spark:
        query(spark, folder, lambda rows, _: None if rows.isEmpty() else kit.hang(folder / "hangs"))


def main(run: kit.Run) -> dict[str, list[Any]]:
    """Kill the query, start it again, and count."""
    folder, told = run.folder(), list[int]()
    kit.write_batches(folder / "sales", [[sale] for sale in SALES])
    kit.killed_child(hanging, folder, when=(folder / "hangs").exists)
    known, before = kit.committed_batches(folder / "state"), kit.delta_rows(run.spark, folder / "totals")
    run.say(f"kill -9: batches 0 to {len(before) - 1} are in the table, 0 to {known[-1]} in the checkpoint")
    query(run.spark, folder, lambda rows, batch: None if rows.isEmpty() else told.append(batch))
    after = kit.delta_rows(run.spark, folder / "totals")
    run.say(f"a new start tells again of batch {told[0]}, and has the totals {[row.amount for row in after]}")
    return {"before": before, "committed": known, "after": after, "told": told}


if __name__ == "__main__":
    kit.script(__file__)
