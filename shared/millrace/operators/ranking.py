"""Top-n: the best items of every window, by what was aggregated of each; also as a changelog.

It is a window whose one aggregate keeps an accumulator per item, so triggers, lateness and closing are
those of windows; what differs is that a result is a row per rank.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from millrace.defined_process import class_for
from millrace.operators.base import (
    Names,
    OperatorDefinitionError,
    key_fields,
    name_for,
    names_of,
    record_type,
    whole,
)
from millrace.parts.accumulators import BoundAggregate
from millrace.parts.top import best, rise_or_fall
from millrace.process import Context, arrival
from millrace.windows.aggregates import Aggregate, count
from millrace.windows.assigners import CalendarDays, Duration, Global, Hopping, whole_ms
from millrace.windows.definition import Change, Pane, WindowDefinition
from millrace.windows.fields import Of, list_of, select, tuple_of
from millrace.windows.process import WindowProcess
from millrace.windows.ranges import RangeWindows
from millrace.windows.triggers import AT_WATERMARK, Trigger

#: Items and their values, best first.
Ranking = tuple[tuple[Any, Any], ...]
_BEST = "best"


@dataclass(frozen=True)
class Best(Aggregate):
    """The ``n`` best items by an aggregate of each: the larger value first; of equals, the smaller item.

    Attributes:
        n: How many.
        item: What is ranked: a field (``str`` or ``int``) or a function of the event.
        by: What is aggregated of each item.
        type: What a function in ``item`` gives.
    """

    n: int
    item: Of
    by: Aggregate
    type: Any = None

    def bind(self, event_type: Any) -> BoundAggregate:
        """Bind; see :class:`Aggregate`."""
        chosen = select(self.item, event_type, self.type)
        if chosen.type not in (str, int):
            raise OperatorDefinitionError(
                f"top_n: an item is str or int, not {getattr(chosen.type, '__name__', chosen.type)}; "
                "for a function say which: item_type=str"
            )
        each = self.by.bind(event_type)
        if not each.commutes:
            raise OperatorDefinitionError("top_n: by= is an aggregate that gives the same in any order")
        create, add_one, n, item = each.create, each.add, self.n, chosen.get

        def add(acc: dict[Any, Any], event: Any, at: int) -> dict[Any, Any]:
            which = item(event)
            if which is not None:
                acc[which] = add_one(acc[which] if which in acc else create(), event, at)
            return acc

        def merge(left: dict[Any, Any], right: dict[Any, Any]) -> dict[Any, Any]:
            merged = dict(left)
            for which, part in right.items():
                merged[which] = each.merge(merged[which], part) if which in merged else part
            return merged

        def result(acc: dict[Any, Any]) -> Ranking:
            valued = [(which, each.result(part)) for which, part in acc.items()]
            return tuple(best(valued, n))

        entry = tuple_of(chosen.type, value_type(each))
        return BoundAggregate(
            _dict_of(chosen.type, each.accumulator), list_of(entry), dict, add, merge, result
        )


def value_type(each: BoundAggregate) -> Any:
    """Return the type of the values that items are ranked by.

    Raises:
        OperatorDefinitionError: They are no numbers.
    """
    kinds = [int, float]
    for kind in kinds:
        if each.result_type in (kind, kind | None):
            return kind
    raise OperatorDefinitionError("top_n: by= is an aggregate that gives a number, such as count()")


def _dict_of(key: Any, value: Any) -> Any:
    return dict[key, value]


@dataclass(frozen=True)
class RankingDefinition:
    """See :func:`top_n`; ``windows`` are the windows that are ranked, with :class:`Best` as aggregate."""

    windows: WindowDefinition

    def build(self) -> WindowProcess:
        """Return the process.

        Raises:
            OperatorDefinitionError: It contradicts itself.
            WindowDefinitionError: The windows do, or the event has no such field.
        """
        definition = self.windows
        if not isinstance(definition.assigner, Hopping | CalendarDays | Global):
            raise OperatorDefinitionError("top_n ranks tumbling, hopping and calendar windows")
        if definition.emit == "updates" or (definition.emit == "final" and definition.trigger.is_early):
            raise OperatorDefinitionError("top_n: for rankings before the end of a window, emit='changelog'")
        trigger = definition.trigger
        if trigger.before is not None or trigger.when is not None or trigger.discard:
            raise OperatorDefinitionError("top_n: its triggers take neither when=, before= nor discard=")
        definition.check()
        best = definition.aggregates[0][1]
        assert isinstance(best, Best)  # noqa: S101 - made by top_n
        bound = best.bind(definition.event_type)
        item, value = bound.result_type.__args__[0].__args__
        more: list[tuple[str, Any]] = []
        if definition.may_repeat:
            more = [("revision", int), ("pane", Pane)]
        if definition.emit == "changelog":
            more.append(("change", Change))
        window: list[tuple[str, Any]] = [("window_start_ms", int), ("window_end_ms", int)]
        place: list[tuple[str, Any]] = [("rank", int), ("item", item), ("value", value)]
        cls = class_for(
            RankedWindows,
            name=definition.name,
            event_type=definition.event_type,
            output_type=record_type(
                definition.event_type, "Rank", key_fields(definition.key), window, place, more
            ),
            order=arrival(commutes=True),
            processing_time=definition.trigger.clock == "processing_time",
            **RankedWindows.declare(definition, (bound,)),
        )
        process: RankedWindows = cls(definition, (bound,))
        return process


def rebuild_ranking(definition: RankingDefinition) -> WindowProcess:
    """Return the process of a definition; what unpickling calls."""
    return definition.build()


class RankedWindows(RangeWindows):
    """Says a row per rank; as a changelog, the rows of the items whose place or value has changed."""

    def __init__(self, definition: WindowDefinition, bound: tuple[BoundAggregate, ...]) -> None:
        super().__init__(definition, bound)
        best: Any = definition.aggregates[0][1]
        self._n = best.n
        self._item = select(best.item, definition.event_type, best.type).get
        self._value_of = best.by.bind(definition.event_type).result

    def describe(self) -> dict[str, Any]:
        """Return the ranking as a checkpoint's contract has it; what was told has so many items."""
        best: Any = self.definition.aggregates[0][1]
        item = "function" if callable(best.item) else best.item
        return {**super().describe(), "operator": {"kind": "top_n", "item": item, "n": best.n}}

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return rebuild_ranking, (RankingDefinition(self.definition),)

    def add(self, start: int, cell: Any, event: Any, ctx: Context) -> None:
        """Add an event; a ranking that is told at every event is changed where its item stands."""
        if not self._each:
            super().add(start, cell, event, ctx)
            return
        cell.accs = self._update(cell.accs, event, ctx.event_time)
        which = self._item(event)
        if which is not None:
            after = self._after(_told(cell), which, cell.accs[0])
            self._emit_changes(start, cell, after, ctx, "late" if cell.closed else "early")

    def _after(self, before: Ranking, which: Any, accs: dict[Any, Any]) -> Ranking:
        """Return the ranking after the value of one item has changed."""
        new = (which, self._value_of(accs[which]))
        after = rise_or_fall(before, new, self._n)
        return tuple(self._results[0](accs) if after is None else after)

    def _emit_pane(self, start: int, cell: Any, ctx: Context, pane: Pane) -> None:
        ranking = tuple(self._results[0](cell.accs[0]))
        cell.changes = 0
        if self._changelog:
            self._emit_changes(start, cell, ranking, ctx, pane)
            return
        if self._many:
            cell.revision += 1
        for rank, entry in enumerate(ranking, 1):
            self._rank(start, cell, rank, entry, ctx, pane)

    def _emit_changes(self, start: int, cell: Any, ranking: Ranking, ctx: Context, pane: Pane) -> None:
        """Emit what has changed since the last ranking: what left, what moved, what is new."""
        before = {item: (rank, value) for rank, (item, value) in enumerate(_told(cell), 1)}
        after = {item: (rank, value) for rank, (item, value) in enumerate(ranking, 1)}
        if before == after:
            return
        cell.said = (ranking,)
        cell.revision += 1
        for item, (rank, value) in before.items():
            if item not in after:
                self._rank(start, cell, rank, (item, value), ctx, pane, "delete")
        for item, (rank, value) in after.items():
            old = before.get(item)
            if old is None:
                self._rank(start, cell, rank, (item, value), ctx, pane, "insert")
            elif old != (rank, value):
                self._rank(start, cell, old[0], (item, old[1]), ctx, pane, "update_before")
                self._rank(start, cell, rank, (item, value), ctx, pane, "update_after")

    def _rank(
        self, start: int, cell: Any, rank: int, entry: tuple[Any, Any], ctx: Context, pane: Pane, *change: str
    ) -> None:
        more = (cell.revision, pane, *change) if self._many else ()
        record = self._record(*self.key_parts(ctx), start, cell.end, rank, *entry, *more)
        ctx.emit(
            record,
            on_time=False if pane == "late" else None,
            revision=max(cell.revision, 0),
            identity=f"{start}:{cell.end}:{rank}:{''.join(change)}",
        )


def _told(cell: Any) -> Ranking:
    """Return the ranking that was told last."""
    return tuple(cell.said[0]) if cell.said else ()


def top_n(
    event_type: Any,
    n: int,
    *,
    item: Of,
    window: Hopping | CalendarDays | Global,
    by: Aggregate | None = None,
    emit: Literal["final", "changelog"] = "final",
    allowed_lateness: Duration = 0,
    trigger: Trigger | None = None,
    item_type: Any = None,
    key: Names = "key",
    name: str = "",
) -> WindowProcess:
    """Rank the items of every window by an aggregate, and emit the ``n`` best, a row per rank.

    The larger value comes first; of items with the same value, the smaller item: a ranking hangs on the
    events alone. A row has the key, the window, ``rank`` (from 1), ``item`` and ``value``.

    State: an accumulator per item and open window. Where a key has very many items, aggregate by item
    first and rank the results in a chain with ``window(...).aggregate(best=windows.top_n(n, ...))``, which
    keeps ``n`` and spreads the work.

    Args:
        event_type: Type of the events.
        n: How many.
        item: What is ranked within a key: a field (``str`` or ``int``) or a function of the event; an
            event without one is left out.
        window: ``tumbling(...)``, ``hopping(...)`` or ``global_window()``, whose ranking never ends and
            keeps all items.
        by: What items are ranked by: ``count()`` unless given, ``sum_of("price")``, ``max_of(...)``, ...
        emit: ``"final"``: the ranking when the window is complete (and refinements of it); ``"changelog"``:
            at every event the items whose rank or value has changed, ``change`` saying ``insert``,
            ``update_before`` and ``update_after``, or ``delete`` for an item that is not among the best
            any more. With an early ``trigger``, when it says so.
        allowed_lateness: How long after a window's end late events still change it.
        trigger: When there are results; see :func:`millrace.windows.window`.
        item_type: What a function in ``item`` gives: ``str`` or ``int``.
        key: Name of the key's column, or of each of its parts.
        name: Name of the process in contracts and identities.

    Raises:
        OperatorDefinitionError: Something contradicts itself.
        WindowDefinitionError: The event has no such field, or the windows contradict themselves.

    Example:
        >>> import msgspec
        >>> from millrace.testing import TestDriver
        >>> from millrace.windows import tumbling
        >>> class Sale(msgspec.Struct):
        ...     product: str
        >>> driver = TestDriver(top_n(Sale, 2, item="product", window=tumbling(3_600_000), key="shop"))
        >>> for at, product in enumerate(["pen", "ink", "cup", "ink", "cup"]):
        ...     driver.send("berlin", Sale(product), at=at)
        >>> driver.drain()
        >>> [(r.rank, r.item, r.value) for r in driver.values()]
        [(1, 'cup', 2), (2, 'ink', 2)]
    """
    best = Best(whole(n, "top_n: n"), item, count() if by is None else by, item_type)
    if not isinstance(best.by, Aggregate):
        raise OperatorDefinitionError(f"top_n: by= is an aggregate such as count(), not {by!r}")
    if not isinstance(window, Hopping | CalendarDays | Global):
        raise OperatorDefinitionError("top_n ranks tumbling, hopping and calendar windows")
    return RankingDefinition(
        WindowDefinition(
            event_type,
            window,
            ((_BEST, best),),
            AT_WATERMARK if trigger is None else trigger,
            whole_ms(allowed_lateness, "allowed_lateness"),
            emit,
            None,
            names_of(key),
            name_for(event_type, f"top_{n}_{window.label}", name),
        )
    ).build()
