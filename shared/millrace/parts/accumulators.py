"""Accumulators: what is kept of many events in place of them, and the functions that work on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

#: Adds one event to an accumulator: (accumulator, event, event time in ms) → accumulator.
Add = Callable[[Any, Any, int], Any]


@dataclass(frozen=True)
class BoundAggregate:
    """An aggregate at work on one type of events.

    Attributes:
        accumulator: Type of the accumulator; msgpack keeps it.
        result_type: Type of the result.
        create: Makes the accumulator of nothing.
        add: Adds one event; may change the accumulator in place, and returns it.
        merge: Returns the accumulator of both; changes neither.
        result: Returns the result; changes nothing.
        subtract: Takes the oldest part out of the whole; may change the whole in place, and returns it.
        commutes: Whether the order of adding and merging makes no difference to the result.
    """

    accumulator: Any
    result_type: Any
    create: Callable[[], Any]
    add: Add
    merge: Callable[[Any, Any], Any]
    result: Callable[[Any], Any]
    subtract: Callable[[Any, Any], Any] | None = None
    commutes: bool = True


def together(adds: Sequence[Add]) -> Callable[[Sequence[Any], Any, int], list[Any]]:
    """Return a function that adds one event to several accumulators and returns them.

    It is called for every event and window, so the usual numbers of aggregates are written out.
    """
    if len(adds) == 1:
        (a,) = adds
        return lambda accs, event, at: [a(accs[0], event, at)]
    if len(adds) == 2:
        a, b = adds
        return lambda accs, event, at: [a(accs[0], event, at), b(accs[1], event, at)]
    if len(adds) == 3:
        a, b, c = adds
        return lambda accs, event, at: [a(accs[0], event, at), b(accs[1], event, at), c(accs[2], event, at)]
    return lambda accs, event, at: [add(acc, event, at) for add, acc in zip(adds, accs, strict=True)]
