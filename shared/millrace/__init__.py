"""Millrace: stateful streaming in Python on Apache Spark.

The names that a developer needs to write a process; ``millrace.keyed`` (Spark) is imported on use,
so that processes and their tests need no engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millrace.multiplexed import multiplex
from millrace.process import BroadcastContext, Context, KeyedProcess, Late, Timer, arrival, event_time
from millrace.side_outputs import OutputTag, side_output
from millrace.state import (
    AggregatingState,
    Aggregator,
    BroadcastState,
    ListState,
    MapState,
    ReducingState,
    ValueState,
    Version,
    VersionedState,
    aggregating_state,
    broadcast_state,
    list_state,
    map_state,
    reducing_state,
    value_state,
    versioned_state,
)
from millrace.time import days, hours, minutes, seconds

if TYPE_CHECKING:
    from millrace.host.spark import connect, keyed
    from millrace.playback import play

__all__ = [
    "AggregatingState",
    "Aggregator",
    "BroadcastContext",
    "BroadcastState",
    "Context",
    "KeyedProcess",
    "Late",
    "ListState",
    "MapState",
    "OutputTag",
    "ReducingState",
    "Timer",
    "ValueState",
    "Version",
    "VersionedState",
    "aggregating_state",
    "arrival",
    "broadcast_state",
    "connect",
    "days",
    "event_time",
    "hours",
    "keyed",
    "list_state",
    "map_state",
    "minutes",
    "multiplex",
    "play",
    "reducing_state",
    "seconds",
    "side_output",
    "value_state",
    "versioned_state",
]


def __getattr__(name: str) -> Any:
    if name in ("connect", "keyed"):
        from millrace.host import spark

        return getattr(spark, name)
    if name == "play":
        from millrace.playback import play

        return play
    raise AttributeError(f"module 'millrace' has no attribute {name!r}")
