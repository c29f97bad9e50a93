"""Aggregates over a queue: events come at one end and leave at the other, in amortised constant time.

Two ways, by aggregate. One that can *subtract* (counts, sums, means, collected values) keeps a total:
what comes is added to it, what leaves is taken out. Any other that merges (min, max, reduce) keeps
*two stacks*: new panes on the back one with their total; old panes on the front one, each with the
total of itself and all newer ones there; when the front is empty, the back is turned over. A pane is
handled a fixed number of times in either (Tangwongsan, Hirzel, Schneider 2017, "Low-Latency
Sliding-Window Aggregation in Worst-Case Constant Time").
"""

from __future__ import annotations

from collections.abc import Sequence
from types import GenericAlias
from typing import Any, Final

import msgspec

from millrace.parts.accumulators import BoundAggregate, together

_COMPACT_FROM: Final = 32


class _Totals:
    """The part of a queue whose aggregates can subtract."""

    def __init__(self, bound: Sequence[BoundAggregate]) -> None:
        self._bound = bound
        self._update = together([b.add for b in bound])
        self._subtracts = [b.subtract for b in bound if b.subtract is not None]
        accs = _tuple_of([b.accumulator for b in bound])
        self.type: Any = msgspec.defstruct(
            "Totals",
            [
                ("total", accs),
                ("head", int, 0),
                ("panes", _list_of(_tuple_of([int, accs])), msgspec.field(default_factory=list)),
            ],
            array_like=True,
        )

    def new(self) -> Any:
        return self.type(self._nothing())

    def _nothing(self) -> list[Any]:
        return [b.create() for b in self._bound]

    def add(self, kept: Any, at: int, event: Any, new_pane: bool | None) -> None:
        update, panes = self._update, kept.panes
        kept.total = update(kept.total, event, at)
        if new_pane is None:
            new_pane = not panes or panes[-1][0] != at
        start, pane = (at, self._nothing()) if new_pane else panes.pop()
        panes.append((start, update(pane, event, at)))

    def times(self, kept: Any) -> tuple[int, int] | None:
        panes = kept.panes
        return (panes[kept.head][0], panes[-1][0]) if panes else None

    def drop(self, kept: Any, until: int) -> None:
        """Drop the panes before index ``until``."""
        panes = kept.panes
        if until >= len(panes):
            kept.total, kept.head, kept.panes = self._nothing(), 0, []
            return
        total, subtracts = kept.total, self._subtracts
        for _, pane in panes[kept.head : until]:
            total = [s(acc, part) for s, acc, part in zip(subtracts, total, pane, strict=True)]
        kept.total = total
        if until >= _COMPACT_FROM and 2 * until >= len(panes):  # as much work as was put in
            del panes[:until]
            until = 0
        kept.head = until

    def drop_oldest(self, kept: Any) -> None:
        self.drop(kept, kept.head + 1)

    def drop_before(self, kept: Any, time: int) -> None:
        panes, head = kept.panes, kept.head
        until, end = head, len(panes)
        while until < end and panes[until][0] < time:
            until += 1
        if until > head:
            self.drop(kept, until)

    def totals(self, kept: Any) -> Sequence[Any]:
        return kept.total  # type: ignore[no-any-return]


class _Stacks:
    """The part of a queue whose aggregates only merge."""

    def __init__(self, bound: Sequence[BoundAggregate]) -> None:
        self._bound = bound
        self._update = together([b.add for b in bound])
        self._merges = [b.merge for b in bound]
        accs = _tuple_of([b.accumulator for b in bound])
        stack: Any = (_list_of(_tuple_of([int, accs])), msgspec.field(default_factory=list))
        self.type: Any = msgspec.defstruct(
            "Stacks", [("total", accs), ("front", *stack), ("back", *stack)], array_like=True
        )

    def new(self) -> Any:
        return self.type(self._nothing())

    def _nothing(self) -> list[Any]:
        return [b.create() for b in self._bound]

    def add(self, kept: Any, at: int, event: Any, new_pane: bool | None) -> None:
        update, back = self._update, kept.back
        kept.total = update(kept.total, event, at)
        # A pane that went to the front cannot be added to: a second one of its time does as well.
        fresh = not back or (back[-1][0] != at if new_pane is None else new_pane)
        start, pane = (at, self._nothing()) if fresh else back.pop()
        back.append((start, update(pane, event, at)))

    def times(self, kept: Any) -> tuple[int, int] | None:
        front, back = kept.front, kept.back
        if not front and not back:
            return None
        return (front[-1] if front else back[0])[0], (back[-1] if back else front[0])[0]

    def drop_oldest(self, kept: Any) -> None:
        if not kept.front:
            self._turn_over(kept)
        kept.front.pop()

    def drop_before(self, kept: Any, time: int) -> None:
        while (times := self.times(kept)) is not None and times[0] < time:
            self.drop_oldest(kept)

    def _turn_over(self, kept: Any) -> None:
        total: Sequence[Any] | None = None
        for at, pane in reversed(kept.back):
            total = pane if total is None else self._merged(pane, total)
            kept.front.append((at, total))
        kept.back, kept.total = [], self._nothing()

    def _merged(self, older: Sequence[Any], newer: Sequence[Any]) -> list[Any]:
        return [merge(o, n) for merge, o, n in zip(self._merges, older, newer, strict=True)]

    def totals(self, kept: Any) -> Sequence[Any]:
        if not kept.front:
            return kept.total  # type: ignore[no-any-return]
        return self._merged(kept.front[-1][1], kept.total)


class AggregateQueue:
    """Several aggregates over one queue of panes: the definition of a part, whose state is :attr:`type`.

    A pane is one event, or several that leave together. :func:`millrace.windows.queue_of` makes one of the
    aggregates of windows.

    Args:
        bound: The aggregates, bound by ``bind_sliding``.

    Attributes:
        type: Type of the queue, to be kept in ``value_state``.

    Example:
        >>> import msgspec
        >>> from millrace.windows import count, max_of, queue_of
        >>> class Reading(msgspec.Struct):
        ...     celsius: float
        >>> recent = queue_of(Reading, count(), max_of("celsius"))
        >>> queue = recent.new()
        >>> for at, celsius in [(0, 21.0), (40_000, 19.5), (70_000, 20.0)]:
        ...     recent.add(queue, at, Reading(celsius))
        >>> recent.value(queue)
        [3, 21.0]
        >>> recent.prune(queue, 10_000)
        >>> recent.value(queue)
        [2, 20.0]
    """

    def __init__(self, bound: Sequence[BoundAggregate]) -> None:
        self._results = [b.result for b in bound]
        subtracting = [i for i, b in enumerate(bound) if b.subtract is not None]
        merging = [i for i, b in enumerate(bound) if b.subtract is None]
        self._parts: list[tuple[str, list[int], _Totals | _Stacks]] = []
        if subtracting:
            self._parts.append(("totals", subtracting, _Totals([bound[i] for i in subtracting])))
        if merging:
            self._parts.append(("stacks", merging, _Stacks([bound[i] for i in merging])))
        self.type: Any = msgspec.defstruct(
            "Fifo", [(name, part.type) for name, _, part in self._parts], array_like=True
        )

    def new(self) -> Any:
        """Return an empty queue."""
        return self.type(*[part.new() for _, _, part in self._parts])

    def add(self, queue: Any, at: int, event: Any, *, new_pane: bool | None = None) -> None:
        """Add an event of time ``at`` (ms).

        Args:
            queue: The queue.
            at: The event's time; never before that of the newest pane.
            event: The event.
            new_pane: Whether it begins a pane or goes to the newest one; ``None``: one pane per time.
        """
        for name, _, part in self._parts:
            part.add(getattr(queue, name), at, event, new_pane)

    def times(self, queue: Any) -> tuple[int, int] | None:
        """Return the times (ms) of the oldest and the newest pane, ``None`` where there is none."""
        name, _, part = self._parts[0]
        return part.times(getattr(queue, name))

    def drop_oldest(self, queue: Any) -> None:
        """Drop the oldest pane."""
        for name, _, part in self._parts:
            part.drop_oldest(getattr(queue, name))

    def prune(self, queue: Any, before: int) -> None:
        """Drop the panes before ``before`` (ms)."""
        for name, _, part in self._parts:
            part.drop_before(getattr(queue, name), before)

    def value(self, queue: Any) -> list[Any]:
        """Return the results over all panes, in the order of the aggregates."""
        if len(self._parts) == 1:
            name, _, part = self._parts[0]
            return [r(acc) for r, acc in zip(self._results, part.totals(getattr(queue, name)), strict=True)]
        results: list[Any] = [None] * len(self._results)
        for name, places, part in self._parts:
            for place, acc in zip(places, part.totals(getattr(queue, name)), strict=True):
                results[place] = self._results[place](acc)
        return results


def _tuple_of(parts: Sequence[Any]) -> Any:
    return GenericAlias(tuple, tuple(parts))


def _list_of(item: Any) -> Any:
    return GenericAlias(list, (item,))
