"""Emission of a window: early results, the result, refinements, retractions.

Shared by windows that are kept as cells with an end: tumbling, hopping, global and session windows.
"""

from __future__ import annotations

from typing import Any, ClassVar

from millrace.parts.accumulators import BoundAggregate, together
from millrace.process import Context, Timer
from millrace.state import MapState, map_state
from millrace.time import NEVER
from millrace.windows.definition import Pane, WindowDefinition
from millrace.windows.fields import or_none, tuple_of
from millrace.windows.process import TIMER, WindowProcess, accumulators, array_struct


def cell_type(bound: tuple[BoundAggregate, ...]) -> Any:
    """Return the type of what is kept of one window.

    Its fields: ``end`` (ms), ``accs`` (accumulators), ``closed`` (whether the watermark has passed its
    end), ``revision`` (of the last result, -1 before the first), ``changes`` (events since the last
    result), ``early_at`` (when the next early result is due, ms) and ``said`` (the values of the last
    result, where a changelog may have to take them back).
    """
    results = tuple_of(*(b.result_type for b in bound))
    return array_struct(
        "Window",
        [
            ("end", int),
            ("accs", accumulators(bound)),
            ("closed", bool, False),
            ("revision", int, -1),
            ("changes", int, 0),
            ("early_at", or_none(int), None),
            ("said", or_none(results), None),
        ],
    )


class CellWindows(WindowProcess):
    """Windows that are kept as cells: start → cell."""

    windows: MapState[int, Any]
    cell: ClassVar[Any]
    #: How long before its end (ms) a window is complete: 1 where the end itself does not belong to it.
    closing_ms: int = 1

    def __init__(self, definition: WindowDefinition, bound: tuple[BoundAggregate, ...]) -> None:
        super().__init__(definition, bound)
        trigger = definition.trigger
        self._lateness = definition.allowed_lateness_ms
        self._trigger = trigger
        self._results = [b.result for b in bound]
        self._creates = [b.create for b in bound]
        self._update = together([b.add for b in bound])
        self._each = definition.emit != "final" and not trigger.is_early
        #: Whether something may have to be said after each event even before the window closes.
        self._eager = trigger.is_early or self._each
        #: Whether an event is only added, as long as its window is open.
        self._quiet = not self._eager
        self._changelog = definition.emit == "changelog"
        self._many = definition.may_repeat
        self._ends = definition.assigner.ends

    @classmethod
    def declare(cls, definition: WindowDefinition, bound: tuple[BoundAggregate, ...]) -> dict[str, Any]:
        """Return the states of the process."""
        cell = cell_type(bound)
        return {"cell": cell, "windows": map_state(int, cell)}

    # -- events --------------------------------------------------------------------------------

    def open(self, start: int, end: int, ctx: Context, line: int) -> Any:
        """Return a new window that is kept from now on.

        Args:
            start: Its start, ms.
            end: Its end, ms.
            ctx: The context.
            line: What is complete by this time (ms) has closed: the watermark for a late event. For one
                that is on time nothing has, even if the watermark of its batch is ahead of it.
        """
        cell = self.cell(end, [create() for create in self._creates])
        cell.closed = end - self.closing_ms <= line
        self.windows.put(start, cell)
        self.wake(self._due(cell), ctx)
        return cell

    def add(self, start: int, cell: Any, event: Any, ctx: Context) -> None:
        """Add an event to a window, and say what is to be said about it."""
        before = self._trigger.before
        may_speak = before is not None and cell.changes and not cell.closed
        if may_speak and before(self._peek(start, cell, ctx), event):  # type: ignore[misc]
            self._emit_pane(start, cell, ctx, "early")
        cell.accs = self._update(cell.accs, event, ctx.event_time)
        if cell.closed:
            cell.changes += 1
            if self._each or cell.changes >= self._trigger.late_count:
                self._emit_pane(start, cell, ctx, "late")
        elif self._eager:
            cell.changes += 1
            self._maybe_early(start, cell, ctx)

    def _maybe_early(self, start: int, cell: Any, ctx: Context) -> None:
        trigger = self._trigger
        if (
            self._each
            or (trigger.count is not None and cell.changes >= trigger.count)
            or (trigger.when is not None and trigger.when(self._peek(start, cell, ctx)))
        ):
            self._emit_pane(start, cell, ctx, "early")
        elif trigger.every_ms is None:
            return
        elif trigger.clock == "processing_time":
            if ctx.processing_timers.pending(TIMER) is None:
                ctx.processing_timers.after(trigger.every_ms, TIMER)
        elif cell.early_at is None:
            next_ms = ctx.event_time - ctx.event_time % trigger.every_ms + trigger.every_ms
            if next_ms < cell.end - self.closing_ms:
                cell.early_at = next_ms
                self.wake(next_ms, ctx)

    # -- timers --------------------------------------------------------------------------------

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """Close, refine and forget the windows for which it is time."""
        if timer.domain == "processing_time":
            for start, cell in sorted(self.windows.items(), key=_start):
                if cell.changes and not cell.closed:
                    if self._ends:  # a pane is of its window, whose time this is, whenever it is told
                        ctx.event_time = cell.end - self.closing_ms
                    self._emit_pane(start, cell, ctx, "early")
            return
        now, following = timer.at, NEVER
        due = []
        for start, cell in self.windows.items():
            at = self._due(cell)
            if at <= now:
                due.append((start, cell))
            elif at < following:
                following = at
        if len(due) > 1:
            due.sort(key=_start)
        for start, cell in due:
            at = self._on_due(start, cell, now, ctx)
            if at < following:
                following = at
        if following != NEVER:
            ctx.timers.at(following, TIMER)

    def last_due(self, latest: int) -> int:
        """Return when (event time, ms) the last window is forgotten: one timer goes from each to the next."""
        ends = [cell.end for _, cell in self.windows.items()]
        return max(ends) - self.closing_ms + self._lateness if ends else latest

    def _due(self, cell: Any) -> int:
        """Return when (event time, ms) a window wants to be looked at."""
        close: int = cell.end - self.closing_ms
        if cell.closed:
            return close + self._lateness
        early: int | None = cell.early_at
        return close if early is None or early > close else early

    def _on_due(self, start: int, cell: Any, now: int, ctx: Context) -> int:
        """Do what is due for a window; return when (ms) it wants to be looked at again."""
        close: int = cell.end - self.closing_ms
        if cell.early_at is not None:
            cell.early_at = None
            if cell.changes and now < close:
                self._emit_pane(start, cell, ctx, "early")
        if close > now:
            return self._due(cell)
        if not cell.closed:
            self._close(start, cell, ctx)
        if close + self._lateness > now:
            return close + self._lateness
        if cell.changes:
            self._emit_pane(start, cell, ctx, "late")  # refinements that waited for more
        self.windows.remove(start)
        return NEVER

    def _close(self, start: int, cell: Any, ctx: Context) -> None:
        cell.closed = True
        emptied = self._trigger.discard and cell.revision >= 0 and not cell.changes
        if not self._each and not emptied:
            self._emit_pane(start, cell, ctx, "on_time")
        cell.changes = 0

    # -- results -------------------------------------------------------------------------------

    def _emit_pane(self, start: int, cell: Any, ctx: Context, pane: Pane) -> None:
        values = tuple([result(acc) for result, acc in zip(self._results, cell.accs, strict=True)])
        cell.changes = 0
        if not self._many:
            record = self._record(*self.key_parts(ctx), start, cell.end, *values)
            ctx.emit(record, identity=f"{start}:{cell.end}")
            return
        change = "insert"
        if self._changelog:
            if cell.said == values:
                return
            if cell.said is not None:
                self._row(start, cell, cell.said, ctx, pane, "update_before")
                change = "update_after"
            cell.said = values
        cell.revision += 1
        self._row(start, cell, values, ctx, pane, change)
        if self._trigger.discard:
            cell.accs = [create() for create in self._creates]

    def _row(
        self, start: int, cell: Any, values: tuple[Any, ...], ctx: Context, pane: Pane, change: str
    ) -> None:
        more = (change,) if self._changelog else ()
        record = self._record(*self.key_parts(ctx), start, cell.end, *values, cell.revision, pane, *more)
        on_time = False if pane == "late" else None
        # Not the pane: that says when it was told.
        ctx.emit(record, on_time=on_time, revision=cell.revision, identity=f"{start}:{cell.end}:{change}")

    def retract(self, start: int, cell: Any, ctx: Context) -> None:
        """Take back what was said of a window that is no more."""
        if cell.said is not None:
            self._row(start, cell, cell.said, ctx, "late" if cell.closed else "early", "delete")
            cell.said = None

    def _peek(self, start: int, cell: Any, ctx: Context) -> Any:
        """Return the result as it would be now, for a trigger to look at."""
        values = [result(acc) for result, acc in zip(self._results, cell.accs, strict=True)]
        more = ("insert",) if self._changelog else ()
        return self._record(*self.key_parts(ctx), start, cell.end, *values, cell.revision + 1, "early", *more)


def _start(item: tuple[int, Any]) -> int:
    return item[0]
