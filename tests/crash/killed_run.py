"""``millrace run`` that kills its own process (SIGKILL) at one point of one batch, as a power cut would.

``python -m tests.crash.killed_run POINT BATCH ARGUMENT…`` is ``millrace run ARGUMENT…`` but for that.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from functools import wraps
from typing import Any

from millrace import cli
from millrace.connectors.driver_writer import DriverWriter
from millrace.connectors.merging import AppendedTable
from millrace.connectors.router import DeadLetterLimit, Router
from millrace.connectors.spark_writer import SparkWriter
from millrace.topology.sinks import Table

#: The point at which the batch may be committed, and the next one have begun.
BEHIND = "behind"
#: Where a batch is cut off, in the order of its life: its offsets are written; its state is computed and
#: kept; its records are in the topics; they are with the first of its tables; with all of its tables, and the
#: batch is not committed; a table has got them behind the batches, and what waited for that is still there.
POINTS = ("offsets", "state", "topics", "table", "tables", BEHIND)


class Bomb:
    """Goes off at one point of one batch."""

    def __init__(self, point: str, batch: int) -> None:
        assert point in POINTS
        self._fatal = (point, batch)
        self.batch = -1

    def reached(self, point: str, batch: int | None = None) -> None:
        if (point, self.batch if batch is None else batch) == self._fatal:
            os.kill(os.getpid(), signal.SIGKILL)


def plant(bomb: Bomb) -> None:
    """Let router and writers tell the bomb how far they are."""

    def route(self: Router, frame: Any, batch_id: int) -> None:
        bomb.batch = batch_id
        bomb.reached("offsets")
        routed(self, frame, batch_id)
        bomb.reached("tables")

    def one_by_one(self: SparkWriter, frame: Any, tables: list[tuple[str, Table]], batch_id: int) -> None:
        for output_and_table in tables:
            written(self, frame, [output_and_table], batch_id)
            bomb.reached("table")

    def behind(self: AppendedTable, batches: Sequence[tuple[int, Any]], app_id: str) -> None:
        appended(self, batches, app_id)
        for number, _ in batches:
            bomb.reached(BEHIND, number)

    routed, written, appended = Router.__call__, SparkWriter._write_tables, AppendedTable._bring
    _replace(AppendedTable, "_bring", behind)
    _replace(Router, "__call__", route)
    _replace(SparkWriter, "_write_tables", one_by_one)
    # Writers ask the limit once a batch is computed, before they write anything of it.
    for owner, method, point in (
        (DeadLetterLimit, "check", "state"),
        (DriverWriter, "_flush", "topics"),
        (SparkWriter, "_write_topics", "topics"),
        (DriverWriter, "_write_table", "table"),
    ):
        _then(owner, method, bomb, point)


def _then(owner: type, method: str, bomb: Bomb, point: str) -> None:
    original = getattr(owner, method)

    @wraps(original)
    def reaching(*arguments: Any) -> Any:
        result = original(*arguments)
        bomb.reached(point)
        return result

    _replace(owner, method, reaching)


def _replace(owner: type, method: str, function: Any) -> None:
    assert hasattr(owner, method), f"{owner.__name__} has no {method} any more: this script no longer kills"
    setattr(owner, method, function)


if __name__ == "__main__":
    point, batch, *arguments = sys.argv[1:]
    plant(Bomb(point, int(batch)))
    sys.argv = ["millrace", "run", *arguments]
    cli.main()
