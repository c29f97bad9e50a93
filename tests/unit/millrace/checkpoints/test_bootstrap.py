"""Entries that are made of a table's rows: what a process finds in them is what it would have kept itself."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from millrace import Context, KeyedProcess, arrival, list_state, map_state
from millrace.checkpoints.bootstrap import EntryFiller
from millrace.checkpoints.groups import packed_group
from millrace.checkpoints.reshape import GroupShape
from millrace.host.memory import MemoryHost, _Snapshot, _snapshot
from millrace.process import kept_states
from millrace.state.cells import Cell


class Bought(msgspec.Struct):
    item: str
    pieces: int


class Stock(KeyedProcess[Bought, str]):
    """Counts pieces by item, and keeps the order in which items came; says all that it finds."""

    order = arrival(in_order_per_key=True)
    pieces = map_state(str, int, paged=True)
    items = list_state(str, paged=True)

    def process(self, event: Bought, ctx: Context) -> None:
        before = self.pieces.get(event.item)
        self.pieces.put(event.item, (before or 0) + event.pieces)
        if before is None:
            self.items.append(event.item)
        if event.pieces == 0:
            self.pieces.remove(event.item)
        ctx.emit(f"{event.item}: {before}, {len(list(self.items))} items")


def filled(rows: dict[str, dict[str, int]]) -> MemoryHost:
    """A host that begins with what a table says, as Spark would."""
    process = Stock()
    specs = list(process.states)
    fill = EntryFiller(
        kept_states(process), [s.name for s in specs], ("shop",), GroupShape("Stock", 1, None, None), None
    )
    table = pa.table(
        {
            "shop": list(rows),
            "pieces": pa.array([list(p.items()) for p in rows.values()], pa.map_(pa.string(), pa.int64())),
            "items": pa.array([list(p) for p in rows.values()], pa.list_(pa.string())),
        }
    )
    cells = pa.Table.from_batches(fill(table.to_batches()))
    rows_of = zip(*(cells.column(name).to_pylist() for name in ("key", "schema", "cell")), strict=True)
    entries = {key: (schema, msgspec.msgpack.decode(cell, type=Cell)) for key, schema, cell in rows_of}
    (schema,) = {schema for schema, _ in entries.values()}
    # A host in memory has one page, whatever its size.
    group = packed_group({key: cell for key, (_, cell) in entries.items()}, schema, page_bytes=1 << 30)
    host = MemoryHost(process)
    kept = _snapshot.decode(host.snapshot())
    rest = (kept.watermark, kept.newest, kept.sequence, None, kept.processing_time, 0, kept.own)
    host.restore(msgspec.msgpack.encode(_Snapshot((group.header or None, group.pages), *rest)))
    return host


@pytest.mark.parametrize("size", [1, 63, 65, 3_000])
def test_paged_states_of_a_table_are_those_of_a_process_that_was_told_the_same(size: int) -> None:
    draw = random.Random(size)
    rows = {shop: {f"{shop}-{n}": draw.randrange(1, 9) for n in range(size)} for shop in ("a", "b")}
    told = MemoryHost(Stock())
    told.run_batch([(shop, 1, Bought(i, n)) for shop, own in rows.items() for i, n in own.items()])
    begun = filled(rows)

    def events(at: int) -> list[Any]:
        shops = draw.choices(["a", "b", "new"], k=20)
        return [(s, at, Bought(f"{s}-{draw.randrange(size + 3)}", draw.randrange(3))) for s in shops]

    for at in range(2, 8):
        batch = events(at)
        assert [e.payload for e in begun.run_batch(batch)] == [e.payload for e in told.run_batch(batch)]
        if at % 2:
            snapshot = begun.snapshot()
            begun = MemoryHost(Stock())
            begun.restore(snapshot)
