"""Session windows: an event opens one from its time to its time plus the gap, and those that meet merge."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from millrace.parts.accumulators import BoundAggregate
from millrace.parts.sessions import meeting
from millrace.process import Context
from millrace.time import NO_WATERMARK, ms
from millrace.windows.assigners import Session
from millrace.windows.definition import WindowDefinition
from millrace.windows.emission import CellWindows
from millrace.windows.process import register


class SessionWindows(CellWindows):
    """Sessions of any length: what merges into what does not depend on the order of events."""

    def __init__(self, definition: WindowDefinition, bound: tuple[BoundAggregate, ...]) -> None:
        super().__init__(definition, bound)
        kind = definition.assigner
        if not isinstance(kind, Session):
            raise TypeError(f"not a session: {kind!r}")
        self._gap = kind.gap
        # If an event at the very end of a session joins it, that instant belongs to the session:
        # it is complete one millisecond later than one that the end is outside of.
        self.closing_ms = 0 if kind.exact_gap == "merge" else 1
        self._merges = [b.merge for b in bound]

    def process(self, event: Any, ctx: Context) -> None:
        """Add an event that is on time: the session that it is in has not closed."""
        self.join(event, ctx, NO_WATERMARK)

    def on_late(self, event: Any, ctx: Context) -> None:
        """Add an event if the session that it would be in has not gone yet; otherwise it is late."""
        if not self.join(event, ctx, ctx.watermark):
            self.emit_late(event, ctx)

    def end_of(self, event: Any, at: int) -> int:
        """Return when (ms) the session of this event alone would end."""
        gap = self._gap
        if not callable(gap):
            return at + gap
        length = ms(gap(event))
        if length <= 0:
            raise ValueError(f"{self.name}: a session's gap must be positive, not {length} ms")
        return at + length

    def beside(self, at: int) -> Iterable[tuple[int, Any]]:
        """Return the sessions that an event of a time (ms) may connect: start and session."""
        return self.windows.items()

    def join(self, event: Any, ctx: Context, line: int) -> bool:
        """Add an event to its session, merging what it connects; return whether it was in time.

        Args:
            event: The event.
            ctx: The context.
            line: What is complete by this time (ms) has closed; see :meth:`CellWindows.open`.
        """
        at = ctx.event_time
        end = self.end_of(event, at)
        inside = self.closing_ms
        start, end, touched = meeting(self.beside(at), at, end, inside)
        if end - inside + self._lateness <= line:
            return False
        if not touched:
            cell = self.open(start, end, ctx, line)
        elif len(touched) == 1 and touched[0][0] == start and touched[0][1].end == end:
            cell = touched[0][1]
        else:
            cell = self._merge(start, end, touched, ctx, line)
        self.add(start, cell, event, ctx)
        return True

    def _merge(self, start: int, end: int, touched: list[tuple[int, Any]], ctx: Context, line: int) -> Any:
        """Make one window of those touched, from ``start`` to ``end``."""
        touched.sort(key=lambda item: item[0])
        cell = touched[0][1]
        for other, old in touched:
            if (other, old.end) != (start, end):
                self.retract(other, old, ctx)
            if other != start:
                self.windows.remove(other)
        for _, old in touched[1:]:
            cell.accs = [merge(a, b) for merge, a, b in zip(self._merges, cell.accs, old.accs, strict=True)]
            cell.revision = max(cell.revision, old.revision)
            cell.changes += old.changes
        was_closed = cell.closed
        # Whichever of them has not spoken yet will, now for all of them.
        cell.closed = end - self.closing_ms <= line and all(old.closed for _, old in touched)
        cell.end = end
        if touched[0][0] != start:
            self.windows.put(start, cell)
        # A timer that stands earlier finds nothing due and moves on: cheaper than to move it at every event.
        if was_closed:
            self.wake(self._due(cell), ctx)
        return cell


class CutSessionWindows(SessionWindows):
    """Sessions that are cut where time is a multiple: those on both sides know nothing of each other."""

    def __init__(self, definition: WindowDefinition, bound: tuple[BoundAggregate, ...]) -> None:
        super().__init__(definition, bound)
        self._cut: int = definition.assigner.cut_every_ms  # type: ignore[attr-defined] # it has one

    def end_of(self, event: Any, at: int) -> int:
        """Return when (ms) the session of this event alone would end: at the next cut at the latest."""
        return min(super().end_of(event, at), at - at % self._cut + self._cut)

    def beside(self, at: int) -> Iterable[tuple[int, Any]]:
        """Return the sessions between the same two cuts as a time (ms)."""
        part = at // self._cut
        return [(start, cell) for start, cell in self.windows.items() if start // self._cut == part]


class CappedSessionWindows(SessionWindows):
    """Sessions that are cut at a length; events come in order of event time.

    A session that reaches the length ends there, and the next event begins another.
    """

    def __init__(self, definition: WindowDefinition, bound: tuple[BoundAggregate, ...]) -> None:
        super().__init__(definition, bound)
        kind = definition.assigner
        self._limit: int = kind.max_length_ms  # type: ignore[attr-defined] # it has one

    def join(self, event: Any, ctx: Context, line: int) -> bool:
        """Add an event to the session that it is in, or begin one; return whether it was in time."""
        at = ctx.event_time
        end, inside = self.end_of(event, at), self.closing_ms
        start = None
        for other, cell in self.windows.items():
            if other <= at < other + self._limit and at <= cell.end - inside:
                start = other if start is None or other > start else start
            elif at < other <= end - inside:
                return False  # late, and it would move the start of a session and with it the cut
        begin = at if start is None else start
        end = min(end, begin + self._limit)
        cell = None if start is None else self.windows.get(start)
        if cell is not None:
            end = max(end, cell.end)
        if end - inside <= line:
            return False
        if cell is None:
            cell = self.open(begin, end, ctx, line)
        elif cell.end != end:
            self.retract(begin, cell, ctx)
            cell.end = end
        self.add(begin, cell, event, ctx)
        return True


def _kind_of(kind: Any) -> type[SessionWindows]:
    if kind.cut_every_ms is not None:
        return CutSessionWindows
    return SessionWindows if kind.max_length_ms is None else CappedSessionWindows


register(Session, _kind_of)
