"""Where state lives: in memory and in RocksDB, looked at from inside, and what a declaration makes of it.

Of thousands of articles an event changes one. In memory two declarations look alike. In RocksDB, Spark's
store, what an event changes is written whole: the entry of a key, or a part of a map.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import msgspec

from millrace import Context, KeyedProcess, arrival, days, keyed, map_state
from millrace.checkpoints import checkpoint, figures, reading
from millrace.playback import at, write_batches
from millrace.runtime.session import local_session
from millrace.testing import TestDriver

TEACHES = "state store, entries, pages, maps in parts, state as data"
ENGINES = ("spark",)


class Moved(msgspec.Struct):
    """Pieces of an article that came."""

    shop: str
    at: int
    article: str
    pieces: int


class InOneEntry(KeyedProcess[Moved, Moved]):
    """The stock is a map in the entry of its key."""

    order = arrival(commutes=True)
    stock = map_state(str, int, ttl=days(30))

    def process(self, event: Moved, ctx: Context) -> None:
        """Change an article."""
        self.stock.put(event.article, (self.stock.get(event.article) or 0) + event.pieces)


class InParts(InOneEntry):
    """The stock is a map in parts: an event reads and writes the part that its article is in."""

    stock = map_state(str, int, ttl=days(30), paged=True)


MOVES = [[Moved("rome", at("10:00"), f"a-{n:05}", n % 90 + 10) for n in range(4_000)]]
MOVES += [[Moved("rome", at("10:01") + n, f"a-{n:05}", -1)] for n in (7, 1_900, 3_999)]
TARGETS: Any = {"main": lambda rows, batch: None}  # nothing comes out
ONCE: Any = {"availableNow": True}


def run(process: KeyedProcess[Any, Any], folder: Path) -> dict[str, Any]:
    """Run the query over the moves, look into its checkpoint, and into the same in memory."""
    spark, memory = local_session(), TestDriver(process)
    source = spark.readStream.schema("shop string, at long, article string, pieces long")
    moves = keyed(source.option("maxFilesPerTrigger", 1).json(f"{folder}/moves"), by="shop", event_time="at")
    state = folder / process.name
    moves.process(process).write_to(TARGETS, state, trigger=ONCE).awaitTermination()
    memory.send_batch([(move.shop, move.at, move) for batch in MOVES for move in batch])
    kept = checkpoint.locate(str(state))
    with reading.view_of(spark, kept) as view:
        entry, pages = view.entry(("rome",)), figures.figures_of(view).pages
    kb = [round(batch.changelog_bytes / 1_000) for batch in figures.batch_sizes(kept)]
    print(f"{process.name:10}  {len(memory.snapshot()):,} bytes; {pages:2} pages, kB written: {kb}")
    return {"entry": entry, "pages": pages, "written": kb}


def main() -> dict[str, Any]:
    """Fill the shelves, change three articles, and look, for each of the two."""
    with tempfile.TemporaryDirectory() as name:
        write_batches(Path(name) / "moves", MOVES)
        return {process.name: run(process, Path(name)) for process in (InOneEntry(), InParts())}


if __name__ == "__main__":
    main()
