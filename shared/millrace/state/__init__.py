"""Keyed state: what a process declares, and how an entry is kept.

A process declares its state as class attributes::

    class Counter(KeyedProcess[Click, Count]):
        count = value_state(int, default=0)
        per_page = map_state(str, int, ttl=hours(1))

and reads and writes it, inside a callback, as the state of the current key.
"""

from millrace.state.handles import BroadcastState, MapState, ValueState
from millrace.state.specs import StateSpec, broadcast_state, map_state, value_state

__all__ = [
    "BroadcastState",
    "MapState",
    "StateSpec",
    "ValueState",
    "broadcast_state",
    "map_state",
    "value_state",
]
