"""Interval joins: every left event meets every right event that is not too far from it in time.

Events come in order of event time. One is kept as long as a partner may come: space bound per key: the
events of the last ``backward`` (right ones) and ``forward`` (left ones), a sweep more, and those that wait
for the watermark.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from operator import attrgetter
from typing import Any, Final

import msgspec

from millrace.joins.definition import IntervalDefinition
from millrace.joins.process import LEFT, RIGHT, JoinProcess
from millrace.joins.records import Merge
from millrace.process import Context, Timer
from millrace.state import ValueState, value_state
from millrace.time import NEVER

_ALONE: Final = "alone"
_SWEEP: Final = "sweep"
#: How many times within the interval a key is swept, and how often at most, ms.
_SWEEPS: Final = 8
_LEAST_SWEEP_MS: Final = 1_000

_at = attrgetter("at")


class Kept(msgspec.Struct, array_like=True, gc=False):
    """An event for which a partner may still come.

    Attributes:
        at: Its event time, ms.
        event: The event, packed.
        matched: Whether it has had one.
    """

    at: int
    event: bytes
    matched: bool = False


class IntervalJoin(JoinProcess):
    """Emits a row for each pair when the later of the two comes, and for those who stay alone."""

    lefts: ValueState[list[Kept]]
    rights: ValueState[list[Kept]]
    definition: IntervalDefinition

    def __init__(self, definition: IntervalDefinition, merge: Merge) -> None:
        super().__init__(definition, merge)
        within, how = definition.within, definition.how
        #: How long after an event of a side its partners may come, ms; before it, it is the other's.
        self._ahead = {LEFT: within.forward_ms, RIGHT: within.backward_ms}
        self._alone = {LEFT: how in ("left", "outer"), RIGHT: how in ("right", "outer")}
        self._sweep = max(max(within.backward_ms, within.forward_ms) // _SWEEPS, _LEAST_SWEEP_MS)

    @classmethod
    def declare(cls, definition: IntervalDefinition) -> dict[str, Any]:
        """Return the states of the process."""
        return {
            "lefts": value_state(list[Kept], default_factory=list),
            "rights": value_state(list[Kept], default_factory=list),
        }

    def process(self, event: Any, ctx: Context) -> None:
        """Emit the pairs of an event with those before it, and keep it for those after it."""
        at, side = ctx.event_time, ctx.input
        other = RIGHT if side == LEFT else LEFT
        partners = self._kept(other)
        first = bisect_left(partners, at - self._ahead[other], key=_at)
        unpack = self._packs[other].unpack
        for partner in partners[first:]:
            partner.matched = True
            self._pair(side, event, at, unpack(partner.event), partner.at, ctx)
        kept = Kept(at, self._packs[side].pack(event), first < len(partners))
        mine = self._kept(side)
        mine.append(kept)
        due = at + self._ahead[side]
        if self._alone[side] and not kept.matched:
            self._wake(due, _ALONE, ctx)
        if len(mine) == 1:  # the others' sweep stands
            self._wake(due + -due % self._sweep, _SWEEP, ctx)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """Emit those who stayed alone, and forget those for whom no partner can come any more."""
        alone, following = NEVER, NEVER
        for side in (LEFT, RIGHT):
            kept, ahead = self._kept(side), self._ahead[side]
            if not kept:
                continue
            # Timers stand after the events of their instant: who could be a partner has been here.
            over = bisect_right(kept, timer.at - ahead, key=_at)
            if self._alone[side]:
                for row in kept[:over]:
                    if not row.matched:
                        self._emit_alone(side, row, ctx)
            del kept[:over]
            if kept:
                following = min(following, kept[0].at + ahead)
            if self._alone[side]:
                alone = min(alone, next((k.at + ahead for k in kept if not k.matched), NEVER))
        if alone != NEVER:
            self._wake(alone, _ALONE, ctx)
        if following != NEVER:
            self._wake(following + -following % self._sweep, _SWEEP, ctx)

    def _kept(self, side: str) -> list[Kept]:
        return self.lefts.value if side == LEFT else self.rights.value

    def _pair(self, side: str, event: Any, at: int, partner: Any, partner_at: int, ctx: Context) -> None:
        if side == LEFT:
            ctx.emit(self._joined(event, partner, at, partner_at))
        else:
            ctx.emit(self._joined(partner, event, partner_at, at))

    def _emit_alone(self, side: str, row: Kept, ctx: Context) -> None:
        event = self._packs[side].unpack(row.event)
        if side == LEFT:
            ctx.emit(self._joined(event, None, row.at, None))
        else:
            ctx.emit(self._joined(None, event, None, row.at))

    @staticmethod
    def _wake(at: int, name: str, ctx: Context) -> None:
        pending = ctx.timers.pending(name)
        if pending is None or at < pending:
            ctx.timers.at(at, name)
