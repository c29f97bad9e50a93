"""Sliding and look-back windows: ranges that move with every event."""

from __future__ import annotations

import operator
from typing import Any, ClassVar, Final

from millrace.parts.accumulators import BoundAggregate
from millrace.parts.queue import AggregateQueue
from millrace.process import Context, Timer
from millrace.state import ValueState, value_state
from millrace.windows.assigners import Lookback, Sliding
from millrace.windows.definition import WindowDefinition
from millrace.windows.fields import fields_of, list_of, or_none, tuple_of
from millrace.windows.process import TIMER, WindowProcess, array_struct, register


class SlidingWindows(WindowProcess):
    """A window that ends with each event, and one that begins just after it.

    In order of event time the windows complete in order of their ends, so one queue serves them all:
    at each end what is too old leaves, and what is left is the window. An event is added and dropped once.
    """

    slides = True
    queue: ValueState[Any]

    def __init__(self, definition: WindowDefinition, bound: tuple[BoundAggregate, ...]) -> None:
        super().__init__(definition, bound)
        kind = definition.assigner
        if not isinstance(kind, Sliding):
            raise TypeError(f"not a sliding window: {kind!r}")
        self._width = kind.width_ms
        self._queue = AggregateQueue(bound)

    @classmethod
    def declare(cls, definition: WindowDefinition, bound: tuple[BoundAggregate, ...]) -> dict[str, Any]:
        """Return the states of the process."""
        return {"queue": value_state(AggregateQueue(bound).type)}

    def process(self, event: Any, ctx: Context) -> None:
        """Add an event; the window that ends with it is complete when its time is over."""
        at = ctx.event_time
        queue = self.queue.value
        if queue is None:
            queue = self.queue.value = self._queue.new()
        self._queue.add(queue, at, event)
        self.wake(at, ctx)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """Emit the window that ends now, and wake when the next one ends."""
        last = timer.at
        queue = self.queue.value
        if queue is None:
            return
        self._queue.prune(queue, last - self._width)
        times = self._queue.times(queue)
        if times is None:
            self.queue.clear()
            return
        start, end = last - self._width, last + 1
        record = self._record(*self.key_parts(ctx), start, end, *self._queue.value(queue))
        ctx.emit(record, identity=f"{start}:{end}")
        # The oldest event leaves in the window that begins just after it.
        ctx.timers.at(times[0] + 1 + self._width, TIMER)

    def last_due(self, latest: int) -> int:
        """Return when (ms) the last event has left the windows."""
        times = None if self.queue.value is None else self._queue.times(self.queue.value)
        return latest if times is None else times[1] + 1 + self._width


#: Name of the timer that forgets a key without events.
FORGET: Final = "forget"


class LookbackWindows(WindowProcess):
    """The range before each event; a result per event."""

    slides = True
    looking: ValueState[Any]
    kept_type: ClassVar[Any]

    def __init__(self, definition: WindowDefinition, bound: tuple[BoundAggregate, ...]) -> None:
        super().__init__(definition, bound)
        kind = definition.assigner
        if not isinstance(kind, Lookback):
            raise TypeError(f"not a look-back: {kind!r}")
        self._width = kind.width_ms
        self._before_event = kind.closed == "left"
        # What is dropped: all before t - width, and t - width itself where that end is open.
        self._open_end = 1 if kind.closed == "right" else 0
        # How long an event is looked back to; its last instant itself must be over where it counts.
        self._stay = kind.width_ms + (0 if self._open_end else 1)
        self._keep = [operator.attrgetter(name) for name in kind.keep]
        self._queue = AggregateQueue(bound)

    @classmethod
    def declare(cls, definition: WindowDefinition, bound: tuple[BoundAggregate, ...]) -> dict[str, Any]:
        """Return the states of the process."""
        kind: Any = definition.assigner
        there = fields_of(definition.event_type)
        kept_fields = tuple_of(*(there[name] for name in kind.keep))
        results = tuple_of(*(b.result_type for b in bound))
        kept = array_struct(
            "Looking",
            [
                ("queue", AggregateQueue(bound).type),
                ("waiting", list_of(kept_fields), []),
                ("at", or_none(int), None),
                ("values", or_none(results), None),
            ],
        )
        return {"kept_type": kept, "looking": value_state(kept)}

    def process(self, event: Any, ctx: Context) -> None:
        """Add an event, and emit its result, or keep it until its time is over.

        A range that includes the event's own time is complete when no other event of that time can
        come; one that ends before it is complete already, and the same for all events of that time.
        """
        at = ctx.event_time
        kept = self.looking.value
        if kept is None:
            kept = self.looking.value = self.kept_type(self._queue.new())
        own = tuple([get(event) for get in self._keep])
        if self._before_event:
            if kept.at != at:
                self._queue.prune(kept.queue, at - self._width)
                kept.at, kept.values = at, tuple(self._queue.value(kept.queue))
            ctx.emit(self._record(*self.key_parts(ctx), at, *own, *kept.values))
            if ctx.timers.pending(FORGET) is None:
                ctx.timers.at(at + self._stay, FORGET)
        else:
            if not kept.waiting:
                ctx.timers.at(at, TIMER)
            kept.waiting.append(own)
        self._queue.add(kept.queue, at, event)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """Emit the results of the events of this time; forget what no later event looks back to."""
        now = timer.at
        kept = self.looking.value
        if kept is None:
            return
        self._queue.prune(kept.queue, now - self._width + self._open_end)
        if timer.name == TIMER:
            parts, values = self.key_parts(ctx), self._queue.value(kept.queue)
            for own in kept.waiting:
                ctx.emit(self._record(*parts, now, *own, *values))
            kept.waiting = []
            # Moved only when it fires: it may find that newer events are looked back to.
            if ctx.timers.pending(FORGET) is None:
                ctx.timers.at(now + self._stay, FORGET)
            return
        times = self._queue.times(kept.queue)
        if times is None or times[1] + self._stay <= now:
            self.looking.clear()
        else:
            ctx.timers.at(times[1] + self._stay, FORGET)

    def last_due(self, latest: int) -> int:
        """Return when (ms) no event looks back to the last one any more."""
        times = None if self.looking.value is None else self._queue.times(self.looking.value.queue)
        return latest if times is None else times[1] + self._stay


register(Sliding, lambda _: SlidingWindows)
register(Lookback, lambda _: LookbackWindows)
