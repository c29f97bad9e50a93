"""Window joins: every left event meets every right event of the same window.

The windows are those of :mod:`millrace.windows`; what they aggregate are the events of both sides. Space
bound per key: the events of the windows whose grace is not over, once for each window that they are in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from millrace.joins.definition import WindowJoinDefinition
from millrace.joins.process import LEFT, RIGHT, JoinProcess, register
from millrace.joins.records import Column, Merge
from millrace.parts.accumulators import BoundAggregate
from millrace.process import Context, arrival
from millrace.time import NEVER
from millrace.windows.assigners import Assigner, Hopping, Session
from millrace.windows.definition import Pane, WindowDefinition
from millrace.windows.emission import CellWindows
from millrace.windows.fields import list_of
from millrace.windows.ranges import RangeWindows, TumblingWindows
from millrace.windows.sessions import SessionWindows


class Sided(msgspec.Struct, array_like=True, gc=False, order=True):
    """An event of a window: by side, time and bytes, so that rows do not hang on who came first.

    Attributes:
        right: Whether it is a right one.
        at: Its event time, ms.
        packed: The event, packed.
    """

    right: bool
    at: int
    packed: bytes


#: Times (ms) and events of one side of a window.
_Side = list[tuple[int, Any]]


class _Arrived(msgspec.Struct, gc=False):
    """An event on its way into its windows."""

    event: Any
    kept: Sided


def _add(kept: list[Sided], arrived: _Arrived, _at: int) -> list[Sided]:
    kept.append(arrived.kept)
    return kept


#: "Aggregates" a window's events to a list of them.
_EVENTS = BoundAggregate(
    accumulator=list_of(Sided),
    result_type=int,
    create=list,
    add=_add,
    merge=lambda left, right: [*left, *right],
    result=len,
)


class WindowJoin(JoinProcess, CellWindows):
    """What joins over all kinds of windows share; the kind of window is the next base class."""

    definition: Any

    def __init__(self, definition: WindowJoinDefinition, merge: Merge) -> None:
        types = (definition.left, definition.right)
        windows = WindowDefinition(types, definition.assigner, (), allowed_lateness_ms=definition.grace_ms)
        # Behind JoinProcess in the order of classes comes the kind of window.
        super(JoinProcess, self).__init__(windows, (_EVENTS,))
        JoinProcess.__init__(self, definition, merge)

    @classmethod
    def declare(cls, definition: Any, bound: tuple[BoundAggregate, ...] = (_EVENTS,)) -> dict[str, Any]:
        """Return the states of the process."""
        return super(JoinProcess, cls).declare(definition, bound)

    @classmethod
    def columns(cls, definition: WindowJoinDefinition) -> Sequence[Column]:
        """Return the columns: also the window."""
        return [("window_start_ms", int), ("window_end_ms", int), *super().columns(definition)]

    def process(self, event: Any, ctx: Context) -> None:
        """Add an event that is on time to its windows."""
        super(JoinProcess, self).process(self._arrived(event, ctx), ctx)  # type: ignore[safe-super]

    def on_late(self, event: Any, ctx: Context) -> None:
        """Add an event to those of its windows that are not complete; if all are, it is late."""
        super(JoinProcess, self).on_late(self._arrived(event, ctx), ctx)

    def emit_late(self, event: Any, ctx: Context) -> None:
        """Send an event to the side output ``late``."""
        super().emit_late(event.event, ctx)

    def _arrived(self, event: Any, ctx: Context) -> _Arrived:
        packed = self._packs[ctx.input].pack(event)
        return _Arrived(event, Sided(ctx.input == RIGHT, ctx.event_time, packed))

    def _emit_pane(self, start: int, cell: Any, ctx: Context, pane: Pane) -> None:
        """Emit the pairs of a window that is complete, or those of the event that has come since."""
        cell.changes = 0
        kept: list[Sided] = cell.accs[0]
        of = kept[-1] if pane == "late" else None
        lefts, rights = self._sides([k for k in kept if of is None or k is of or k.right != of.right])
        end, merge = cell.end, self._joined
        # What a late event adds is its own; the window's result is the window's.
        name = None if pane == "late" else f"{start}:{end}"
        for left_at, left in lefts:
            for right_at, right in rights:
                ctx.emit(merge(left, right, start, end, left_at, right_at), identity=name)

    def _on_due(self, start: int, cell: Any, now: int, ctx: Context) -> int:
        """Also emit the rows of those who have nobody, once nobody can come any more."""
        following = super()._on_due(start, cell, now, ctx)
        if following == NEVER:
            self._end(start, cell, ctx)
        return following

    def _end(self, start: int, cell: Any, ctx: Context) -> None:
        """Emit what can be said only when a window takes no more events."""
        how, end, merge = self.definition.how, cell.end, self._joined
        if how == "inner" or len({kept.right for kept in cell.accs[0]}) > 1:
            return
        lefts, rights = self._sides(cell.accs[0])
        name = f"{start}:{end}"
        if how in ("left", "outer"):
            for left_at, left in lefts:
                ctx.emit(merge(left, None, start, end, left_at, None), identity=name)
        if how in ("right", "outer"):
            for right_at, right in rights:
                ctx.emit(merge(None, right, start, end, None, right_at), identity=name)

    def _sides(self, kept: list[Sided]) -> tuple[_Side, _Side]:
        """Return times and events of both sides, in an order that does not hang on who came first."""
        sides: dict[bool, _Side] = {False: [], True: []}
        for one in sorted(kept):
            unpack = self._packs[RIGHT if one.right else LEFT].unpack
            sides[one.right].append((one.at, unpack(one.packed)))
        return sides[False], sides[True]


class TumblingWindowJoin(WindowJoin, TumblingWindows):
    """A join over tumbling windows."""


class RangeWindowJoin(WindowJoin, RangeWindows):
    """A join over hopping windows, or windows of days."""


class SessionWindowJoin(WindowJoin, SessionWindows):
    """A join over sessions, which the events of both sides make.

    A late event may lengthen a session, or make one of two: rows come when its bounds are what they are.
    """

    def _emit_pane(self, start: int, cell: Any, ctx: Context, pane: Pane) -> None:
        cell.changes = 0

    def _end(self, start: int, cell: Any, ctx: Context) -> None:
        super()._emit_pane(start, cell, ctx, "on_time")
        super()._end(start, cell, ctx)

    def end_of(self, event: _Arrived, at: int) -> int:
        """Return when (ms) the session of this event alone would end."""
        return super().end_of(event.event, at)


def join_of_windows(assigner: Assigner) -> type[WindowJoin]:
    """Return the process class for windows of a kind."""
    if isinstance(assigner, Session):
        return SessionWindowJoin
    if isinstance(assigner, Hopping) and assigner.size_ms == assigner.step_ms:
        return TumblingWindowJoin
    return RangeWindowJoin


register(WindowJoinDefinition, lambda join: (join_of_windows(join.assigner), arrival(commutes=True)))
