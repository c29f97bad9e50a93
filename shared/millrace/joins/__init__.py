"""Joins of two streams by key and event time: as-of, stream-table, interval, window.

A join is defined in one expression and is then a process with the inputs ``left`` and ``right``, which any
host runs::

    joined = asof_join(left=Reading, right=Status, keep=days(7), grace=minutes(10))
    connect(left=keyed(readings, ...), right=keyed(statuses, ...)).process(joined)
"""

# Each of these has kinds of joins, which it registers.
from millrace.joins import asof, intervals, windowed  # noqa: F401
from millrace.joins.building import FOREVER, asof_join, interval, interval_join, table_join, window_join
from millrace.joins.process import JoinProcess, build
from millrace.joins.records import JoinDefinitionError, Match

__all__ = [
    "FOREVER",
    "JoinDefinitionError",
    "JoinProcess",
    "Match",
    "asof_join",
    "build",
    "interval",
    "interval_join",
    "table_join",
    "window_join",
]
