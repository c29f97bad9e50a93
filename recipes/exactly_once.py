"""Exactly once, shown by killing it: `kill -9` in the worst moment of a batch, a new start, and a count.

Batch 2 is in the table and not yet in the checkpoint when the process is killed. The next start runs it
again: the table takes it only once. A function that was called is called again.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from millrace import Context, KeyedProcess, arrival, days, keyed, side_output, value_state
from millrace.checkpoints.checkpoint import locate
from millrace.playback import at, write_batches
from millrace.runtime.session import local_session
from millrace.testing.killing import killed_child

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
SALES = [Sale("north", at("10:00") + n, amount) for n, amount in enumerate((10, 20, 300, 40, 50, 60))]


def query(folder: Path, call: Callable[[Any, int], None]) -> None:
    """Run the query over the files of a folder, to their end."""
    files = local_session().readStream.option("maxFilesPerTrigger", 1)
    sales = files.schema("shop string, at long, amount long").json(f"{folder}/sales")
    totals = keyed(sales, by="shop", event_time="at").process(Totals())
    targets: dict[str, Any] = {"main": f"{folder}/totals", "large": call}
    totals.write_to(targets, folder / "state", trigger={"availableNow": True}).awaitTermination()


def hanging(folder: Path) -> None:
    """Run the query, and hang when it tells of a large sale: this is what is killed."""

    def hang(rows: Any, batch: int) -> None:
        if not rows.isEmpty():
            (folder / "hangs").touch()
            time.sleep(600)

    query(folder, hang)


def read_totals(folder: Path) -> list[Any]:
    """Return the rows of the table, in order of time."""
    return local_session().read.format("delta").load(f"{folder}/totals").orderBy("_event_time").collect()


def main() -> dict[str, Any]:
    """Kill the query, start it again, and count."""
    with tempfile.TemporaryDirectory() as name:
        folder, told = Path(name), list[int]()
        write_batches(folder / "sales", [[sale] for sale in SALES])
        killed_child(hanging, folder, when=(folder / "hangs").exists)
        known, before = locate(f"{folder}/state").batches(), read_totals(folder)
        print(f"kill -9: batches 0 to {len(before) - 1} are in the table, 0 to {known[-1]} in the checkpoint")
        query(folder, lambda rows, batch: None if rows.isEmpty() else told.append(batch))
        after = read_totals(folder)
    print(f"a new start tells again of batch {told[0]}, and has the totals {[row.amount for row in after]}")
    return {"before": before, "committed": known, "after": after, "told": told}


if __name__ == "__main__":
    main()
