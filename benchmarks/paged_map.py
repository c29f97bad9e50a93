"""One entry of a map that has a million: what reading and writing it costs, with the map in parts and whole.

The store is the one that a key group has on Spark, opened for each batch, over bytes in memory.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Final

import msgspec

from millrace import Context, KeyedProcess, arrival, map_state
from millrace.host.rows import Row
from millrace.host.runner import Runner
from millrace.state.pages import PagedStore
from millrace.time import NO_WATERMARK
from millrace_apps.benchmarks.paged import Stored

_KEY: Final = "1:k"


@dataclass(frozen=True)
class Sizes:
    """How much is measured.

    Attributes:
        entries: Entries of the map in parts.
        whole: Entries of the map that is one entry: it is read and written as a whole.
        batches: Batches, of which the median counts.
    """

    entries: int = 1_000_000
    whole: int = 20_000
    batches: int = 50


QUICK: Final = Sizes(20_000, 5_000, 10)


class Fill(msgspec.Struct):
    """So many entries, from a number on; none: one is read and written."""

    first: int
    count: int = 0


class Paged(KeyedProcess[Fill, int]):
    """Reads one entry and writes it."""

    name = "Large"
    order = arrival(commutes=True)
    items = map_state(str, int, paged=True)

    def process(self, event: Fill, ctx: Context) -> None:
        """Fill the map, or count at one of its entries."""
        for number in range(event.first, event.first + event.count):
            self.items.put(f"item-{number}", number)
        if not event.count:
            key = f"item-{event.first}"
            found = self.items.get(key, -1)
            self.items.put(key, (found or 0) + 1)
            ctx.emit(found if found is not None else -1)


class Whole(Paged):
    """The same with a map that is part of its key's entry."""

    name = "Large"
    items = map_state(str, int)


class _Counted(Stored):
    """A key group's bytes, and how many have been read."""

    def __init__(self) -> None:
        super().__init__()
        self.read = 0

    def get_pages(self, pages: Sequence[int]) -> list[bytes]:
        found = super().get_pages(pages)
        self.read += sum(map(len, found))
        return found


def configuration(sizes: Sizes) -> dict[str, Any]:
    """Return what is measured, for the report."""
    return asdict(sizes)


def paged_state(sizes: Sizes) -> dict[str, Any]:
    """Measure batches that read and write one entry.

    Returns:
        Of the map in parts, of the same with as few entries as the whole one, and of the whole one: ms of a
        batch, bytes read and written, bytes of the header and of all; and whether what was read is right.
    """
    return {
        "paged": _measured(Paged(), sizes.entries, sizes.batches),
        "paged_small": _measured(Paged(), sizes.whole, sizes.batches),
        "whole": _measured(Whole(), sizes.whole, sizes.batches),
    }


def _measured(process: KeyedProcess[Any, Any], entries: int, batches: int) -> dict[str, Any]:
    stored = _Counted()
    runner = Runner(process, encode=msgspec.json.encode, decode=msgspec.json.Decoder(Fill).decode)

    def run(event: Fill) -> PagedStore:
        store = PagedStore(stored, runner.layout)
        row = Row(1, msgspec.json.encode(event), None, event)
        runner.run_batch(store, {_KEY: [row]}, NO_WATERMARK + 1)
        store.commit(NO_WATERMARK + 1)
        return store

    step = 50_000
    for first in range(0, entries, step):
        run(Fill(first, min(step, entries - first)))
    took, read, written, correct = [], [], [], True
    for number in range(batches):
        place = number * 7_919 % entries
        stored.read = 0
        before = time.perf_counter()
        store = run(Fill(place))
        took.append((time.perf_counter() - before) * 1e3)
        read.append(stored.read + len(stored.header or b""))
        written.append(store.metrics.bytes_written)
        correct = correct and runner.emissions.pop().payload == b"%d" % place
    return {
        "entries": entries,
        "batch_ms": round(median(took), 3),
        "bytes_read": int(median(read)),
        "bytes_written": int(median(written)),
        "header_bytes": len(stored.header or b""),
        "stored_bytes": stored.size,
        "correct": correct,
    }
