"""Keyed state: what a process declares, and how an entry is kept.

A process declares its state as class attributes::

    class Counter(KeyedProcess[Click, Count]):
        count = value_state(int, default=0)
        per_page = map_state(str, int, ttl=hours(1))
        last = list_state(Click, ttl=minutes(5))
        largest = reducing_state(int, max)
        price = versioned_state(float, history=days(1))

and reads and writes it, inside a callback, as the state of the current key.
"""

from typing import Any, Final

from millrace.state.accumulate import AggregatingState, ListState, ReducingState
from millrace.state.declare import (
    Aggregator,
    aggregating_state,
    broadcast_state,
    list_state,
    map_state,
    reducing_state,
    value_state,
    versioned_state,
)
from millrace.state.handles import BroadcastState, MapState, ValueState
from millrace.state.paged import list_handle, map_handle
from millrace.state.specs import StateSpec
from millrace.state.versions import Version, VersionedState

#: Kind of state → the handle of it; hosts make one per declared state: ``HANDLES[spec.kind](cursor, spec)``.
HANDLES: Final[dict[str, Any]] = {
    "value": ValueState,
    "map": map_handle,
    "list": list_handle,
    "reducing": ReducingState,
    "aggregating": AggregatingState,
    "versioned": VersionedState,
    "broadcast": BroadcastState,
}

__all__ = [
    "HANDLES",
    "AggregatingState",
    "Aggregator",
    "BroadcastState",
    "ListState",
    "MapState",
    "ReducingState",
    "StateSpec",
    "ValueState",
    "Version",
    "VersionedState",
    "aggregating_state",
    "broadcast_state",
    "list_state",
    "map_state",
    "reducing_state",
    "value_state",
    "versioned_state",
]
