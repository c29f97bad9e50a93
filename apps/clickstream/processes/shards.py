"""The process of shards: counts what is viewed and sold, who is there and which visits end, per window."""

from __future__ import annotations

from typing import Final

from millrace import Context, KeyedProcess, Timer, arrival, days, map_state, side_output, value_state
from millrace_apps.clickstream.contracts.messages import (
    ItemCount,
    ShardWindow,
    ToShard,
    VisitCount,
    segment_of,
)
from millrace_apps.clickstream.processes.counters import (
    MINUTE_MS,
    SPANS,
    Counted,
    ItemFeatures,
    Shard,
    item_features,
    window_rows,
)

_WINDOW: Final = "shard"
#: When a shard looks again for what it can drop, ms.
_DROP_MS: Final = 3_600_000
#: Longer than any window and what is kept of it, ms.
_END_MS: Final = 3 * 86_400_000


class Shards(KeyedProcess[ToShard, ShardWindow]):
    """Tells the boards what a shard has counted, when a window is over and when it is corrected.

    Args:
        lateness_ms: How long after its end a window is corrected by late events, ms.
    """

    name = "Shards"
    # Counts are sums.
    order = arrival(commutes=True)
    # Shards end by themselves; the time to live is for what nobody thought of.
    shard = value_state(Shard, ttl=days(7))
    # Of many items and a day: a batch writes the parts that it counts in.
    by_hour = map_state(str, list[int], ttl=days(7), paged=True)
    categories = map_state(str, str, ttl=days(7), paged=True)
    past = map_state(str, dict[str, list[int]], ttl=days(7), paged=True)
    items = side_output(ItemFeatures)

    def __init__(self, lateness_ms: int = 60 * MINUTE_MS) -> None:
        self._lateness_ms = lateness_ms

    def process(self, event: ToShard, ctx: Context) -> None:
        """Count something."""
        shard = self.shard.value
        if shard is None:
            shard = Shard()
        counted = Counted(shard, self.by_hour, self.categories, self.past)
        if isinstance(event, VisitCount):
            shard.visit(event)
        else:
            counted.count(event)
        self.shard.value = shard
        if ctx.on_time:
            # Where that is over already it fires in this batch: nobody has been told of that window yet.
            due = (event.at_ms // MINUTE_MS + 1) * MINUTE_MS - 1
        else:
            less = isinstance(event, ItemCount) and event.quantity < 0
            search = isinstance(event, ItemCount) and event.what == "search"
            self._correct(
                counted, event.at_ms // MINUTE_MS, ctx, also_empty=less, only="searches/1h" if search else ""
            )
            later = shard.next_end((ctx.watermark + 1) // MINUTE_MS)
            due = ctx.watermark + _DROP_MS if later is None else later * MINUTE_MS - 1
        ctx.timers.bring_forward(due, _WINDOW)

    def on_late(self, event: ToShard, ctx: Context) -> None:
        """Correct the windows that may still change."""
        self.process(event, ctx)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """Tell the windows that are over, and drop what none needs any more."""
        shard = self.shard.value
        if shard is None:
            return
        counted = Counted(shard, self.by_hour, self.categories, self.past)
        end = (timer.at + 1) // MINUTE_MS
        if end * MINUTE_MS == timer.at + 1:
            for told in window_rows(counted, ctx.key, end):
                ctx.emit(told)
            for row in () if segment_of(ctx.key) else item_features(counted, end):
                ctx.output(self.items, row)
        counted.forget(end - self._lateness_ms // MINUTE_MS)
        counted.set_aside(end)
        later = shard.next_end(end)
        if later is None:
            if shard.empty:
                self.shard.clear()
                return
            # Nothing to tell, but panes to drop once no late event can need them.
            later = end + _DROP_MS // MINUTE_MS
        self.shard.value = shard
        ctx.timers.at(later * MINUTE_MS - 1, _WINDOW)

    def last_due(self, latest: int) -> int:
        """Return what is later than the end of any window."""
        return latest + _END_MS + self._lateness_ms

    def _correct(
        self, counted: Counted, minute: int, ctx: Context, *, also_empty: bool, only: str = ""
    ) -> None:
        """Tell the windows again that are over and have changed, if they may still change.

        Args:
            counted: What was counted, with what came late.
            minute: When that was, minutes since the epoch.
            ctx: Where it is told.
            also_empty: Something was taken off: boards on which nothing is are told, too.
            only: The board that what came late can change; empty: any.
        """
        oldest = (ctx.watermark - self._lateness_ms) // MINUTE_MS
        ends: set[int] = set()
        over = (ctx.watermark + 1) // MINUTE_MS
        for length, every in SPANS.values():
            first = -(-(minute + 1) // every) * every
            ends.update(range(first, min(minute + length, over) + 1, every))
        for end in sorted(e for e in ends if e > oldest):
            for told in window_rows(counted, ctx.key, end, also_empty=also_empty):
                if told.board.startswith(only):
                    ctx.emit(told, on_time=True, revision=1)
