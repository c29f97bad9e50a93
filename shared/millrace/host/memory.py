"""The in-memory host: a process at work in milliseconds, with no engine.

It runs the same :class:`~millrace.host.runner.Runner` as Spark does, over entries that are packed
and unpacked in the same way, so that what a test sees here is what the cluster does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from millrace.host.groups import encode_key
from millrace.host.runner import Emission, Row, Runner
from millrace.process import Key, KeyedProcess
from millrace.state.layout import EntryLayout
from millrace.state.pages import Cell, OpenEntry, PageInfo
from millrace.time import NEVER, NO_WATERMARK


class DictStore:
    """Entries of all keys, packed, in one dict.

    Args:
        layout: How entries are packed.
    """

    def __init__(self, layout: EntryLayout) -> None:
        self._layout = layout
        self.cells: dict[str, Cell] = {}
        self._open: dict[str, OpenEntry] = {}
        self._page = PageInfo(0, 0)
        self.encode = layout.encode
        self.decode = layout.decode

    def open(self, key: str) -> OpenEntry:
        """Return the entry of a key, a new one where there is none."""
        found = self._open.get(key)
        if found is None:
            cell = self.cells.get(key)
            entry = self._layout.new() if cell is None else self._layout.decode(cell.body)
            found = self._open[key] = OpenEntry(entry, cell, self._page)
        return found

    def due(self, watermark: int) -> list[str]:
        """Return the keys with a timer at or before ``watermark``."""
        if self._page.timer > watermark:
            return []
        return [k for k, c in self.cells.items() if c.timer <= watermark]

    def commit(self, watermark: int) -> None:
        """Keep the entries of this batch and sweep expired values."""
        for key, opened in self._open.items():
            if self._layout.is_empty(opened.entry):
                self.cells.pop(key, None)
                continue
            timer = min((t.at for t in opened.entry.timers_), default=NEVER)
            self._page.timer = min(self._page.timer, timer)
            self._page.expiry = min(self._page.expiry, opened.expiry)
            body = self._layout.encode(opened.entry)
            self._layout.check(body, key)
            self.cells[key] = Cell(timer, opened.expiry, msgspec.Raw(body))
        self._open.clear()
        if self._page.timer <= watermark:
            self._page.timer = min((c.timer for c in self.cells.values()), default=NEVER)
        self._sweep(watermark)

    def _sweep(self, watermark: int) -> None:
        slack = self._layout.sweep_slack_ms
        if not self._layout.has_ttl or self._page.expiry > watermark - slack:
            return
        for key in [k for k, c in self.cells.items() if c.expiry <= watermark - slack]:
            entry = self._layout.decode(self.cells[key].body)
            expiry = self._layout.purge(entry, watermark)
            if self._layout.is_empty(entry):
                del self.cells[key]
            else:
                body = msgspec.Raw(self._layout.encode(entry))
                self.cells[key] = Cell(self.cells[key].timer, expiry, body)
        self._page.expiry = min((c.expiry for c in self.cells.values()), default=NEVER)


class MemoryHost:
    """Runs one process over batches of events that are handed to it.

    Args:
        process: The process to run.
        out_of_orderness_ms: Bound by which the watermark stays behind the newest event, ms.

    Example:
        >>> from millrace import KeyedProcess, arrival, value_state
        >>> class Count(KeyedProcess[str, int]):
        ...     order = arrival(commutes=True)
        ...     n = value_state(int, default=0)
        ...     def process(self, event, ctx):
        ...         self.n.value += 1
        ...         ctx.emit(self.n.value)
        >>> host = MemoryHost(Count())
        >>> [e.payload for e in host.run_batch([("a", 1, "x"), ("a", 2, "y")])]
        [b'1', b'2']
    """

    def __init__(self, process: KeyedProcess[Any, Any], *, out_of_orderness_ms: int = 0) -> None:
        decode = msgspec.json.Decoder(process.event_type).decode
        self.runner = Runner(process, encode=msgspec.json.encode, decode=decode)
        self.store = DictStore(self.runner.layout)
        self.watermark = NO_WATERMARK
        self._bound = out_of_orderness_ms
        self._newest = NO_WATERMARK
        self._sequence = 0
        self._broadcast: bytes | None = None

    def run_batch(self, events: Iterable[tuple[Key, int, Any]]) -> list[Emission]:
        """Run one batch, then advance the watermark and fire what is due.

        Args:
            events: Tuples of key, event time (ms) and event.

        Returns:
            What was emitted, in order per key.
        """
        rows: dict[str, list[Row]] = {}
        newest = self._newest
        for key, event_time, event in events:
            text = encode_key((key,) if isinstance(key, str) else tuple(key))
            raw = msgspec.json.encode(event)
            row = Row(event_time, raw, f"memory:0:{self._sequence}", event)
            rows.setdefault(text, []).append(row)
            self._sequence += 1
            newest = max(newest, event_time)
        self._step(rows)
        self._newest = newest
        if newest - self._bound - 1 > self.watermark and newest != NO_WATERMARK:
            return self.take() + self.advance_watermark(newest - self._bound - 1)
        return self.take()

    def advance_watermark(self, to: int) -> list[Emission]:
        """Move the watermark to ``to`` (ms; it never goes back) and fire the timers it passes."""
        self.watermark = max(self.watermark, to)
        self._step({})
        return self.take()

    def broadcast(self, *controls: Any) -> list[Emission]:
        """Bring control events to every key."""
        rows = [
            Row(0, msgspec.json.encode(c), f"memory:control:{self._sequence + i}", c)
            for i, c in enumerate(controls)
        ]
        self._sequence += len(controls)
        changed = self.runner.run_broadcast(rows, self._broadcast, self.watermark, report=True)
        self._broadcast = self._broadcast if changed is None else changed
        return self.take()

    def take(self) -> list[Emission]:
        """Return and forget what was emitted since the last call."""
        taken = self.runner.emissions
        self.runner.emissions = []
        return taken

    def snapshot(self) -> bytes:
        """Return everything that is kept, packed; :meth:`restore` on a new host goes on from it."""
        return msgspec.msgpack.encode(
            [self.store.cells, self.watermark, self._newest, self._sequence, self._broadcast]
        )

    def restore(self, snapshot: bytes) -> None:
        """Go on from a :meth:`snapshot`."""
        kept = msgspec.msgpack.decode(snapshot, type=tuple[dict[str, Cell], int, int, int, bytes | None])
        cells, self.watermark, self._newest, self._sequence, self._broadcast = kept
        self.store = DictStore(self.runner.layout)
        self.store.cells = cells
        self.store._page.timer = min((c.timer for c in cells.values()), default=NEVER)
        self.store._page.expiry = min((c.expiry for c in cells.values()), default=NEVER)

    def _step(self, rows: dict[str, list[Row]]) -> None:
        self.runner.load_broadcast(self._broadcast)
        self.runner.run_batch(self.store, rows, self.watermark)
        self.store.commit(self.watermark)
