"""Count windows: so many events each, in order of event time."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from millrace.parts.accumulators import BoundAggregate
from millrace.parts.queue import AggregateQueue
from millrace.process import Context, Timer
from millrace.state import ValueState, value_state
from millrace.windows.assigners import CountBased
from millrace.windows.definition import WindowDefinition
from millrace.windows.process import TIMER, WindowProcess, array_struct, register


class CountWindows(WindowProcess):
    """Keeps the events of the newest window, in panes that leave together."""

    slides = True
    counted: ValueState[Any]
    kept_type: ClassVar[Any]

    def __init__(self, definition: WindowDefinition, bound: tuple[BoundAggregate, ...]) -> None:
        super().__init__(definition, bound)
        kind = definition.assigner
        if not isinstance(kind, CountBased):
            raise TypeError(f"not a count window: {kind!r}")
        self._pane = math.gcd(kind.size, kind.step)
        self._panes = kind.size // self._pane
        self._leaving = kind.step // self._pane
        self._idle = kind.idle_ms
        self._queue = AggregateQueue(bound)

    @classmethod
    def declare(cls, definition: WindowDefinition, bound: tuple[BoundAggregate, ...]) -> dict[str, Any]:
        """Return the states of the process."""
        kept = array_struct(
            "Counted",
            [("queue", AggregateQueue(bound).type), ("panes", int, 0), ("filled", int, 0), ("last", int, 0)],
        )
        return {"kept_type": kept, "counted": value_state(kept)}

    def process(self, event: Any, ctx: Context) -> None:
        """Add an event; when it fills a window, emit the result."""
        at = ctx.event_time
        kept = self.counted.value
        if kept is None:
            kept = self.counted.value = self.kept_type(self._queue.new())
        self._queue.add(kept.queue, at, event, new_pane=kept.filled == 0)
        kept.filled += 1
        kept.last = at
        if kept.filled == self._pane:
            kept.filled = 0
            kept.panes += 1
            if kept.panes == self._panes:
                self._emit_window(kept, at, ctx)
        if self._idle is not None and kept.panes + kept.filled:
            self.wake(at + self._idle, ctx)

    def _emit_window(self, kept: Any, at: int, ctx: Context) -> None:
        times = self._queue.times(kept.queue)
        start = at if times is None else times[0]
        ctx.emit(self._record(*self.key_parts(ctx), start, at + 1, *self._queue.value(kept.queue)))
        for _ in range(self._leaving):
            self._queue.drop_oldest(kept.queue)
        kept.panes -= self._leaving
        if not kept.panes:
            self.counted.clear()
            ctx.timers.delete(TIMER)

    def last_due(self, latest: int) -> int:
        """Return when (ms) the key is forgotten."""
        kept = self.counted.value
        return latest if kept is None or self._idle is None else int(kept.last) + self._idle

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """Forget a key that has been idle for long."""
        kept = self.counted.value
        if kept is None or self._idle is None:
            return
        if kept.last + self._idle > timer.at:
            ctx.timers.at(kept.last + self._idle, TIMER)
        else:
            self.counted.clear()


register(CountBased, lambda _: CountWindows)
