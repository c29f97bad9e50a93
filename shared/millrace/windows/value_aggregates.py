"""Aggregates that keep values: first, last, collect, top_n, distinct, reduce, and one's own.

Where the order of events matters, it is event time; ties go by the value's encoding, so that the
result hangs on the events alone and not on the order in which they came.
"""

from __future__ import annotations

import functools
from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from millrace.parts.accumulators import BoundAggregate
from millrace.state.declare import Aggregator
from millrace.windows.aggregates import Aggregate, is_missing, needs_type, skipping
from millrace.windows.fields import Of, WindowDefinitionError, list_of, or_none, select, set_of, tuple_of

_bytes = msgspec.msgpack.Encoder(order="deterministic").encode


def _place(timed: tuple[int, Any]) -> tuple[int, bytes]:
    """Return what orders (event time, value) among others."""
    return timed[0], _bytes(timed[1])


@dataclass(frozen=True)
class Pick(Aggregate):
    """See :func:`first` and :func:`last`."""

    of: Of = None
    latest: bool = False
    type: Any = None

    def bind(self, event_type: Any) -> BoundAggregate:
        """Bind; see :class:`Aggregate`."""
        selected = select(self.of, event_type, self.type)
        tp = needs_type(selected, "last" if self.latest else "first")
        better = _later if self.latest else _earlier

        def step(acc: Any, value: Any, at: int) -> Any:
            new = (at, value)
            return new if acc is None or better(new, acc) else acc

        def merge(left: Any, right: Any) -> Any:
            if left is None or right is None:
                return right if left is None else left
            return right if better(right, left) else left

        def result(acc: Any) -> Any:
            return None if acc is None else acc[1]

        return BoundAggregate(
            or_none(tuple_of(int, tp)), or_none(tp), _nothing, skipping(selected, step), merge, result
        )


def _nothing() -> None:
    return None


def _later(new: tuple[int, Any], old: tuple[int, Any]) -> bool:
    return new[0] > old[0] or (new[0] == old[0] and _bytes(new[1]) > _bytes(old[1]))


def _earlier(new: tuple[int, Any], old: tuple[int, Any]) -> bool:
    return new[0] < old[0] or (new[0] == old[0] and _bytes(new[1]) < _bytes(old[1]))


def first(of: Of = None, *, type: Any = None) -> Pick:
    """Value of the earliest event; of several at one time, the one that is first by its encoding.

    Args:
        of: A field's name or a function of the event; the event itself unless given.
        type: What a function of the event gives.
    """
    return Pick(of, False, type)


def last(of: Of = None, *, type: Any = None) -> Pick:
    """Value of the latest event; see :func:`first`."""
    return Pick(of, True, type)


@dataclass(frozen=True)
class Collect(Aggregate):
    """See :func:`collect`."""

    of: Of = None
    type: Any = None

    def bind(self, event_type: Any) -> BoundAggregate:
        """Bind; see :class:`Aggregate`."""
        selected = select(self.of, event_type, self.type)
        tp = needs_type(selected, "collect")

        def step(acc: list[Any], value: Any, at: int) -> list[Any]:
            acc.append((at, value))
            return acc

        def result(acc: list[Any]) -> list[Any]:
            return [value for _, value in sorted(acc, key=_place)]

        def subtract(acc: list[Any], part: list[Any]) -> list[Any]:
            del acc[: len(part)]  # the oldest, and they were added in order of time
            return acc

        return BoundAggregate(
            list_of(tuple_of(int, tp)),
            list_of(tp),
            list,
            skipping(selected, step),
            lambda left, right: [*left, *right],
            result,
            subtract,
        )


def collect(of: Of = None, *, type: Any = None) -> Collect:
    """All values in order of event time: the one aggregate whose state grows with every event."""
    return Collect(of, type)


@dataclass(frozen=True)
class CountDistinct(Aggregate):
    """See :func:`count_distinct`."""

    of: Of = None
    type: Any = None

    def bind(self, event_type: Any) -> BoundAggregate:
        """Bind; see :class:`Aggregate`."""
        selected = select(self.of, event_type, self.type)
        tp = needs_type(selected, "count_distinct")

        def step(acc: set[Any], value: Any, _at: int) -> set[Any]:
            acc.add(value)
            return acc

        return BoundAggregate(set_of(tp), int, set, skipping(selected, step), set.union, len)

    def bind_sliding(self, event_type: Any) -> BoundAggregate:
        """Bind: value → how often it is in the window, so that it can leave."""
        selected = select(self.of, event_type, self.type)
        return counting(selected, needs_type(selected, "count_distinct"))


def counting(selected: Any, tp: Any) -> BoundAggregate:
    """Return the number of distinct values in a window that values leave."""

    def step(acc: dict[Any, int], value: Any, _at: int) -> dict[Any, int]:
        acc[value] = acc.get(value, 0) + 1
        return acc

    def merge(left: dict[Any, int], right: dict[Any, int]) -> dict[Any, int]:
        total = dict(left)
        for value, n in right.items():
            total[value] = total.get(value, 0) + n
        return total

    def subtract(acc: dict[Any, int], part: dict[Any, int]) -> dict[Any, int]:
        for value, n in part.items():
            acc[value] -= n
            if not acc[value]:
                del acc[value]
        return acc

    return BoundAggregate(dict[tp, int], int, dict, skipping(selected, step), merge, len, subtract)


def count_distinct(of: Of = None, *, type: Any = None) -> CountDistinct:
    """Count distinct values exactly; keeps one of each. For many: ``approx_count_distinct``."""
    return CountDistinct(of, type)


@dataclass(frozen=True)
class Distinct(Aggregate):
    """See :func:`distinct`."""

    most: int
    of: Of = None
    type: Any = None

    def bind(self, event_type: Any) -> BoundAggregate:
        """Bind; see :class:`Aggregate`."""
        selected = select(self.of, event_type, self.type)
        tp, most = needs_type(selected, "distinct"), self.most

        def step(acc: list[Any], value: Any, _at: int) -> list[Any]:
            place = bisect_left(acc, value)
            if place < most and (place == len(acc) or acc[place] != value):
                acc.insert(place, value)
                del acc[most:]
            return acc

        def merge(left: list[Any], right: list[Any]) -> list[Any]:
            return sorted({*left, *right})[:most]

        return BoundAggregate(list_of(tp), list_of(tp), list, skipping(selected, step), merge, list)

    def bind_sliding(self, event_type: Any) -> BoundAggregate:
        """Bind: value → how often it is in the window, so that it can leave."""
        selected = select(self.of, event_type, self.type)
        tp = needs_type(selected, "distinct")
        counted = counting(selected, tp)
        return replace(counted, result_type=list_of(tp), result=lambda acc: sorted(acc)[: self.most])


def distinct(of: Of = None, *, most: int, type: Any = None) -> Distinct:
    """Distinct values in order, the ``most`` smallest of them: bounded, and the same for any order of events.

    Args:
        of: A field's name or a function of the event; values that can be compared.
        most: How many are kept.
        type: What a function of the event gives.

    Example:
        >>> class Bid(msgspec.Struct):
        ...     who: str
        >>> two = distinct("who", most=2).bind(Bid)
        >>> acc = two.create()
        >>> for at, name in enumerate("cabab"):
        ...     acc = two.add(acc, Bid(name), at)
        >>> two.result(acc)
        ['a', 'b']
    """
    if most < 1:
        raise WindowDefinitionError(f"distinct keeps at least one, not {most!r}")
    return Distinct(most, of, type)


@dataclass(frozen=True)
class TopN(Aggregate):
    """See :func:`top_n`."""

    n: int
    by: Of
    of: Of = None
    by_type: Any = None
    type: Any = None

    def bind(self, event_type: Any) -> BoundAggregate:
        """Bind; see :class:`Aggregate`."""
        return self._bind(event_type, self.n)

    def bind_sliding(self, event_type: Any) -> BoundAggregate:
        """Bind: keeps all in order, since the best may leave."""
        return self._bind(event_type, None)

    def _bind(self, event_type: Any, limit: int | None) -> BoundAggregate:
        ranked = select(self.by, event_type, self.by_type)
        chosen = select(self.of, event_type, self.type)
        tp = needs_type(chosen, "top_n")
        entry = tuple_of(needs_type(ranked, "top_n by"), int, tp)
        rank, value, n = ranked.get, chosen.get, self.n

        def add(acc: list[Any], event: Any, at: int) -> list[Any]:
            by = rank(event)
            if not is_missing(by) and (limit is None or len(acc) < limit or by >= acc[-1][0]):
                insort(acc, (by, at, value(event)), key=_RANK)
                if limit is not None:
                    del acc[limit:]
            return acc

        def merge(left: list[Any], right: list[Any]) -> list[Any]:
            return sorted([*left, *right], key=_RANK)[:limit]

        def subtract(acc: list[Any], part: list[Any]) -> list[Any]:
            for one in part:
                del acc[bisect_left(acc, _RANK(one), key=_RANK)]
            return acc

        return BoundAggregate(
            list_of(entry),
            list_of(tp),
            list,
            add,
            merge,
            lambda acc: [one[2] for one in acc[:n]],
            None if limit else subtract,
        )


def _rank(left: tuple[Any, int, Any], right: tuple[Any, int, Any]) -> int:
    """Compare (rank, time, value): the larger rank first, then the earlier, then by encoding."""
    if left[0] != right[0]:
        return -1 if left[0] > right[0] else 1
    mine, other = _place(left[1:]), _place(right[1:])
    return (mine > other) - (mine < other)


_RANK = functools.cmp_to_key(_rank)


def top_n(n: int, by: Of, *, of: Of = None, by_type: Any = None, type: Any = None) -> TopN:
    """Values of the ``n`` events that are largest by ``by``, best first; of equals, the earlier one.

    Args:
        n: How many.
        by: What is compared: a field's name or a function of the event. An event without it (``None``, NaN)
            has no place.
        of: What is kept of each: a field's name or a function; the whole event unless given.
        by_type: What a function in ``by`` gives.
        type: What a function in ``of`` gives.

    Example:
        >>> class Bid(msgspec.Struct):
        ...     who: str
        ...     price: int
        >>> best = top_n(2, "price", of="who").bind(Bid)
        >>> acc = best.create()
        >>> for at, bid in enumerate([Bid("a", 1), Bid("b", 5), Bid("c", 3)]):
        ...     acc = best.add(acc, bid, at)
        >>> best.result(acc)
        ['b', 'c']
    """
    if n < 1:
        raise WindowDefinitionError(f"top_n keeps at least one, not {n!r}")
    return TopN(n, by, of, by_type, type)


@dataclass(frozen=True)
class Reduce(Aggregate):
    """See :func:`reduce`."""

    function: Callable[[Any, Any], Any]
    of: Of = None
    type: Any = None
    in_any_order: bool = False

    def bind(self, event_type: Any) -> BoundAggregate:
        """Bind; see :class:`Aggregate`."""
        selected = select(self.of, event_type, self.type)
        tp = or_none(needs_type(selected, "reduce"))
        combine = self.function

        def step(acc: Any, value: Any, _at: int) -> Any:
            return value if acc is None else combine(acc, value)

        def merge(left: Any, right: Any) -> Any:
            if left is None or right is None:
                return right if left is None else left
            return combine(left, right)

        return BoundAggregate(
            tp, tp, _nothing, skipping(selected, step), merge, lambda acc: acc, commutes=self.in_any_order
        )


def reduce(
    function: Callable[[Any, Any], Any], of: Of = None, *, type: Any = None, commutes: bool = False
) -> Reduce:
    """Combine values two by two, e.g. ``reduce(operator.or_, "flags")``.

    Args:
        function: Combines two values into a new one; associative: windows that merge combine what
            they have. It must not change its arguments.
        of: A field's name or a function of the event.
        type: What ``of`` gives, where it is a function.
        commutes: Whether order makes no difference; if not, events wait until the watermark has
            passed them, and are combined in order of event time.
    """
    return Reduce(function, of, type, commutes)


@dataclass(frozen=True)
class Custom(Aggregate):
    """See :func:`custom`."""

    aggregator: Aggregator[Any, Any, Any]
    result_type: Any
    of: Of = None
    in_any_order: bool = False

    def bind(self, event_type: Any) -> BoundAggregate:
        """Bind; see :class:`Aggregate`."""
        how = self.aggregator
        if how.accumulator_type is None:
            raise WindowDefinitionError(f"{type(how).__name__} must say its accumulator_type")

        def step(acc: Any, value: Any, _at: int) -> Any:
            return how.add(acc, value)

        return BoundAggregate(
            how.accumulator_type,
            self.result_type,
            how.create,
            skipping(select(self.of, event_type), step),
            how.merge,
            how.result,
            commutes=self.in_any_order,
        )


def custom(
    aggregator: Aggregator[Any, Any, Any], *, result_type: Any, of: Of = None, commutes: bool = False
) -> Custom:
    """Use an :class:`~millrace.state.Aggregator` of one's own in a window.

    Args:
        aggregator: How to create, add, merge (changing neither) and read the accumulator.
        result_type: Type of the result.
        of: What is added: a field's name or a function; the event unless given.
        commutes: Whether order makes no difference; see :func:`reduce`.
    """
    return Custom(aggregator, result_type, of, commutes)
