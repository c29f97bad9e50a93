"""Window joins: every left event meets every right event of the same window.

The windows are those of :mod:`millrace.windows`; what they aggregate are the events of both sides. Space
bound per key: the events of the windows that are not complete, once for each window that they are in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from millrace.joins.definition import WindowJoinDefinition
from millrace.joins.process import LEFT, RIGHT, JoinProcess
from millrace.joins.records import Column, Merge
from millrace.process import Context
from millrace.windows.aggregates import BoundAggregate
from millrace.windows.assigners import Assigner, Hopping, Session
from millrace.windows.definition import Pane, WindowDefinition
from millrace.windows.fields import list_of
from millrace.windows.panes import CellWindows
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
        windows = WindowDefinition((definition.left, definition.right), definition.assigner, ())
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

    def _say(self, start: int, cell: Any, ctx: Context, pane: Pane) -> None:
        """Emit the rows of a window that is complete."""
        sides: dict[bool, list[tuple[int, Any]]] = {False: [], True: []}
        for kept in sorted(cell.accs[0]):
            unpack = self._packs[RIGHT if kept.right else LEFT].unpack
            sides[kept.right].append((kept.at, unpack(kept.packed)))
        cell.changes = 0
        lefts, rights = sides[False], sides[True]
        how, end, merge = self.definition.how, cell.end, self._joined
        for left_at, left in lefts:
            for right_at, right in rights:
                ctx.emit(merge(left, right, start, end, left_at, right_at))
        if not rights and how in ("left", "outer"):
            for left_at, left in lefts:
                ctx.emit(merge(left, None, start, end, left_at, None))
        if not lefts and how in ("right", "outer"):
            for right_at, right in rights:
                ctx.emit(merge(None, right, start, end, None, right_at))


class TumblingWindowJoin(WindowJoin, TumblingWindows):
    """A join over tumbling windows."""


class RangeWindowJoin(WindowJoin, RangeWindows):
    """A join over hopping windows, or windows of days."""


class SessionWindowJoin(WindowJoin, SessionWindows):
    """A join over sessions, which the events of both sides make."""

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
