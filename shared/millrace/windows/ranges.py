"""Tumbling, hopping, calendar and global windows: where a window begins and ends is known beforehand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from millrace.parts.accumulators import BoundAggregate
from millrace.process import Context
from millrace.time import NO_WATERMARK
from millrace.windows.assigners import CalendarDays, Global, Hopping, Ranges
from millrace.windows.definition import WindowDefinition
from millrace.windows.emission import CellWindows
from millrace.windows.process import register


class RangeWindows(CellWindows):
    """Adds each event to the windows that it is in."""

    def __init__(self, definition: WindowDefinition, bound: tuple[BoundAggregate, ...]) -> None:
        super().__init__(definition, bound)
        kind = definition.assigner
        if not isinstance(kind, Ranges):
            raise TypeError(f"not windows that are known beforehand: {kind!r}")
        self._ranges = kind.ranges

    def process(self, event: Any, ctx: Context) -> None:
        """Add an event that is on time: none of its windows has closed."""
        windows = self.windows
        for start, end in self._ranges(ctx.event_time):
            cell = windows.get(start)
            if cell is None:
                cell = self.open(start, end, ctx, NO_WATERMARK)
            if self._quiet and not cell.closed:
                cell.accs = self._update(cell.accs, event, ctx.event_time)
            else:
                self.add(start, cell, event, ctx)

    def on_late(self, event: Any, ctx: Context) -> None:
        """Add an event to those of its windows that still take it; if none does, it is late."""
        line = ctx.watermark
        taken = False
        for start, end in self._ranges(ctx.event_time):
            if end - 1 + self._lateness <= line:
                continue
            taken = True
            cell = self.windows.get(start)
            if cell is None:
                cell = self.open(start, end, ctx, line)
            self.add(start, cell, event, ctx)
        if not taken:
            self.emit_late(event, ctx)


class TumblingWindows(RangeWindows):
    """The one window of each event, without a list of it: most windows are of this kind."""

    def __init__(self, definition: WindowDefinition, bound: tuple[BoundAggregate, ...]) -> None:
        super().__init__(definition, bound)
        kind = definition.assigner
        if not isinstance(kind, Hopping) or kind.step_ms != kind.size_ms:
            raise TypeError(f"not a tumbling window: {kind!r}")
        self._size, self._offset = kind.size_ms, kind.offset_ms

    def process(self, event: Any, ctx: Context) -> None:
        """Add an event that is on time: its window has not closed."""
        at = ctx.event_time
        start = at - (at - self._offset) % self._size
        cell = self.windows.get(start)
        if cell is None:
            cell = self.open(start, start + self._size, ctx, NO_WATERMARK)
        if self._quiet and not cell.closed:
            cell.accs = self._update(cell.accs, event, at)
        else:
            self.add(start, cell, event, ctx)

    def process_key(self, events: Iterator[Any], ctx: Context) -> None:
        """Add events that are on time; those of one window that follow each other find it once."""
        windows, update, quiet = self.windows, self._update, self._quiet
        size, offset = self._size, self._offset
        cell, end = None, NO_WATERMARK
        for event in events:
            at = ctx.event_time
            if at >= end or cell is None:  # the events of a key come in order of time
                start = at - (at - offset) % size
                end = start + size
                cell = windows.get(start)
                if cell is None:
                    cell = self.open(start, end, ctx, NO_WATERMARK)
            if quiet and not cell.closed:
                cell.accs = update(cell.accs, event, at)
            else:
                self.add(start, cell, event, ctx)


register(Hopping, lambda kind: TumblingWindows if kind.size_ms == kind.step_ms else RangeWindows)
register(CalendarDays, lambda _: RangeWindows)
register(Global, lambda _: RangeWindows)
