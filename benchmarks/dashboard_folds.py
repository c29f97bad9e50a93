"""What a look at a page costs when a file is new: folded forward, or asked of the whole table by SQL.

``python -m millrace_apps.benchmarks.dashboard_folds`` writes tables of files of 1,000 rows, appends one more
again and again, and measures the CPU time until two panels have their rows: the labels of the fraud page and
the newest risk of each machine of the iot page. Both ways are held against each other at every look.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from millrace.dashboard.data import AppData
from millrace_apps.benchmarks.streams import BenchmarkFailed
from millrace_apps.fraud.app import app as fraud
from millrace_apps.fraud.cases.app import FraudCasesSettings
from millrace_apps.fraud.dashboard.data import LabelFigures, labels
from millrace_apps.fraud.settings import FraudSettings
from millrace_apps.iot_maintenance.app import app as iot
from millrace_apps.iot_maintenance.dashboard.fleet import newest_of
from millrace_apps.iot_maintenance.settings import IotSettings

ROWS: Final = 1_000
LOOKS: Final = 9
#: Which transactions have how many labels: some have a second one.
_AGAIN: Final = 0.1
_MACHINES: Final = 200
_COMPONENTS: Final = ("bearing", "drive", "hydraulics", "sensor")

LABELS_SQL: Final = """
SELECT transaction_id,
       last_value(is_fraud ORDER BY event_time_ms) AS is_fraud,
       max(event_time_ms) AS known_ms,
       first_value(event_time_ms - transaction_time_ms ORDER BY event_time_ms) AS delay_ms
FROM labels GROUP BY transaction_id
"""
RISKS_SQL: Final = """
SELECT machine_id, component, event_time_ms, horizon_h, probability FROM (
    SELECT *, row_number() OVER (PARTITION BY machine_id, component ORDER BY event_time_ms DESC) AS place
    FROM risks
) WHERE place = 1
"""


def label_rows(draws: random.Random, number: int) -> pa.Table:
    """Return the rows of a file of labels; times go on from file to file."""
    rows = []
    for place in range(ROWS):
        at = number * ROWS + place
        of = draws.randrange(at) if at and draws.random() < _AGAIN else at
        rows.append(
            {"transaction_id": f"t{of:08d}", "transaction_time_ms": of, "event_time_ms": 10**9 + at,
             "is_fraud": draws.random() < 0.01}
        )  # fmt: skip
    return pa.Table.from_pylist(rows)


def risk_rows(draws: random.Random, number: int) -> pa.Table:
    """Return the rows of a file of risks: of each machine and component the newest is one of many."""
    return pa.Table.from_pylist(
        [
            {"machine_id": f"m{draws.randrange(_MACHINES)}", "component": draws.choice(_COMPONENTS),
             "event_time_ms": number * ROWS + place, "horizon_h": 24.0, "probability": draws.random()}
            for place in range(ROWS)
        ]
    )  # fmt: skip


class Panel(NamedTuple):
    """Rows of a panel, by both ways.

    Attributes:
        table: Name of the table.
        rows: Random numbers and number of a file → its rows.
        data: Folder of an app → its data.
        folded: The data → what the page has.
        sql: The query.
        kept: Rows of the query → what the page has.
    """

    table: str
    rows: Callable[[random.Random, int], pa.Table]
    data: Callable[[Path], AppData]
    folded: Callable[[AppData], Mapping[Any, Any]]
    sql: str
    kept: Callable[[Iterable[Mapping[str, Any]]], Mapping[Any, Any]]


def _labels(rows: Iterable[Mapping[str, Any]]) -> Mapping[Any, Any]:
    return {r["transaction_id"]: LabelFigures(r["is_fraud"], r["known_ms"], r["delay_ms"]) for r in rows}


def _risks(rows: Iterable[Mapping[str, Any]]) -> Mapping[Any, Any]:
    return {(r["machine_id"], r["component"]): r for r in rows}


def _now() -> int:
    return round(time.time() * 1000)


PANELS: Final = (
    Panel(
        "labels",
        label_rows,
        lambda root: AppData(fraud, FraudSettings(), root, _now),
        lambda data: labels(data, FraudCasesSettings()),
        LABELS_SQL,
        _labels,
    ),
    Panel(
        "risks",
        risk_rows,
        lambda root: AppData(iot, IotSettings(), root, _now),
        lambda data: newest_of(data, "risks", ("horizon_h", "probability"), ("machine_id", "component")),
        RISKS_SQL,
        _risks,
    ),
)


def asked(table: DeltaTable, panel: Panel) -> Mapping[Any, Any]:
    """Return what a panel has by its query over the whole table."""
    engine = QueryBuilder().register(panel.table, table)
    return panel.kept(pa.table(engine.execute(panel.sql).read_all()).to_pylist())


class Cost(NamedTuple):
    """CPU time of a look after a file has come, median of several, ms.

    Attributes:
        files: How many files the table had.
        folded: By the fold.
        by_sql: By the query.
        by_log: Of the query's, reading the log anew (the fold's reader does it, too).
    """

    files: int
    folded: float
    by_sql: float
    by_log: float


def _ms(made: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.process_time()
    found = made()
    return (time.process_time() - begin) * 1000, found


def measured(panel: Panel, files: int, root: Path, *, looks: int = LOOKS) -> Cost:
    """Measure both ways over a table.

    Args:
        panel: The panel.
        files: How many files the table has before the first look.
        root: An empty folder.
        looks: How often a file comes and is looked for.

    Raises:
        BenchmarkFailed: Both ways do not give the same.
    """
    draws = random.Random(files)
    folder = root / "tables" / panel.table
    for number in range(files):
        write_deltalake(str(folder), panel.rows(draws, number), mode="append")
    data = panel.data(root)
    panel.folded(data)
    table = DeltaTable(str(folder))
    costs: list[tuple[float, float, float]] = []
    for look in range(looks):
        write_deltalake(str(folder), panel.rows(draws, files + look), mode="append")
        log_ms, _ = _ms(table.update_incremental)
        sql_ms, by_sql = _ms(lambda: asked(table, panel))
        time.sleep(0.6)  # a reader looks at the log twice a second
        fold_ms, folded = _ms(lambda: panel.folded(data))
        if dict(folded) != dict(by_sql):
            raise BenchmarkFailed(f"{panel.table}: fold and query differ")
        costs.append((fold_ms, log_ms + sql_ms, log_ms))
    return Cost(files, *(round(median(of), 1) for of in zip(*costs, strict=True)))


def main(args: list[str]) -> None:
    """Measure, and print a line for each panel and size."""
    told = argparse.ArgumentParser(description=__doc__)
    told.add_argument("--files", type=int, nargs="+", default=[20, 200, 1_000])
    chosen = told.parse_args(args)
    print(f"{'table':<8} {'rows':>9} {'fold ms':>8} {'SQL ms':>8} {'log ms':>7}")
    for panel in PANELS:
        for files in chosen.files:
            with tempfile.TemporaryDirectory(prefix="millrace-folds-") as folder:
                cost = measured(panel, files, Path(folder))
            rows = f"{files * ROWS:,}"
            print(
                f"{panel.table:<8} {rows:>9} {cost.folded:>8} {cost.by_sql:>8} {cost.by_log:>7}", flush=True
            )


if __name__ == "__main__":
    main(sys.argv[1:])
