"""Interval joins: every left event meets every right event that is not too far from it in time.

Events come in order of event time, but for late ones within the grace. One is kept as long as a partner
may come: space bound per key: the events of the last ``backward`` (right ones) and ``forward`` (left ones),
each by the grace longer, a sweep more, and those that wait for the watermark.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from operator import attrgetter
from typing import Any, Final

import msgspec

from millrace.joins.definition import IntervalDefinition
from millrace.joins.process import LEFT, RIGHT, JoinProcess, register
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
    """Emits a row for each pair when the later of the two comes, and for those who stay alone.

    That somebody stays alone is said when the grace is over, and so never has to be taken back.
    """

    lefts: ValueState[list[Kept]]
    rights: ValueState[list[Kept]]
    definition: IntervalDefinition

    def __init__(self, definition: IntervalDefinition, merge: Merge) -> None:
        super().__init__(definition, merge)
        within, how = definition.within, definition.how
        #: How long after an event of a side its partners may be, ms; before it, it is the other's.
        self._ahead = {LEFT: within.forward_ms, RIGHT: within.backward_ms}
        self._grace = grace = definition.grace_ms
        #: How far the watermark is past an event of a side when no partner can come any more, ms.
        self._over = {side: ahead + grace for side, ahead in self._ahead.items()}
        self._alone = {LEFT: how in ("left", "outer"), RIGHT: how in ("right", "outer")}
        self._sweep = max(max(self._over.values()) // _SWEEPS, _LEAST_SWEEP_MS)

    @classmethod
    def declare(cls, definition: IntervalDefinition) -> dict[str, Any]:
        """Return the states of the process."""
        return {
            "lefts": value_state(list[Kept], default_factory=list),
            "rights": value_state(list[Kept], default_factory=list),
        }

    def process(self, event: Any, ctx: Context) -> None:
        """Emit the pairs of an event with those that have come, and keep it for those that will."""
        at, side = ctx.event_time, ctx.input
        other = RIGHT if side == LEFT else LEFT
        partners = self._kept(other)
        first = bisect_left(partners, at - self._ahead[other], key=_at)
        last = len(partners)
        if last and partners[-1].at > at:  # a late event: there are some after it
            last = bisect_right(partners, at + self._ahead[side], key=_at)
        unpack = self._packs[other].unpack
        for partner in partners[first:last]:
            partner.matched = True
            self._pair(side, event, at, unpack(partner.event), partner.at, ctx)
        kept = Kept(at, self._packs[side].pack(event), first < last)
        mine = self._kept(side)
        place = len(mine)
        if place and mine[-1].at > at:
            place = bisect_right(mine, at, key=_at)
        mine.insert(place, kept)
        due = at + self._over[side]
        if self._alone[side] and not kept.matched:
            ctx.timers.bring_forward(due, _ALONE)
        if place == 0:  # the others' sweep stands
            ctx.timers.bring_forward(due + -due % self._sweep, _SWEEP)

    def on_late(self, event: Any, ctx: Context) -> None:
        """Take an event within the grace; a later one goes to the side output ``late``."""
        if ctx.event_time + self._grace > ctx.watermark:
            self.process(event, ctx)
        else:
            self.emit_late(event, ctx)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """Emit those who stayed alone, and forget those for whom no partner can come any more."""
        alone, following = NEVER, NEVER
        for side in (LEFT, RIGHT):
            kept, until = self._kept(side), self._over[side]
            if not kept:
                continue
            # Timers stand after the events of their instant: who could be a partner has been here.
            over = bisect_right(kept, timer.at - until, key=_at)
            if self._alone[side]:
                for row in kept[:over]:
                    if not row.matched:
                        self._emit_alone(side, row, ctx)
            del kept[:over]
            if kept:
                following = min(following, kept[0].at + until)
            if self._alone[side]:
                alone = min(alone, next((k.at + until for k in kept if not k.matched), NEVER))
        if alone != NEVER:
            ctx.timers.bring_forward(alone, _ALONE)
        if following != NEVER:
            ctx.timers.bring_forward(following + -following % self._sweep, _SWEEP)

    def last_due(self, latest: int) -> int:
        """Return when (ms) the last event is forgotten."""
        newest = [kept[-1].at + self._over[side] for side in (LEFT, RIGHT) if (kept := self._kept(side))]
        return max([latest, *newest]) + self._sweep

    def _kept(self, side: str) -> list[Kept]:
        return self.lefts.value if side == LEFT else self.rights.value

    def _pair(self, side: str, event: Any, at: int, partner: Any, partner_at: int, ctx: Context) -> None:
        if side == LEFT:
            ctx.emit(self._joined(event, partner, at, partner_at))
        else:
            ctx.emit(self._joined(partner, event, partner_at, at))

    def _emit_alone(self, side: str, row: Kept, ctx: Context) -> None:
        event = self._packs[side].unpack(row.event)
        name = f"{side}:{row.at}"  # all that are alone of one side and time are told together, in one order
        if side == LEFT:
            ctx.emit(self._joined(event, None, row.at, None), identity=name)
        else:
            ctx.emit(self._joined(None, event, None, row.at), identity=name)


register(IntervalDefinition, lambda _: (IntervalJoin, "event_time"))
