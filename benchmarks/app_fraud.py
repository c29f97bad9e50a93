"""The fraud app for the benchmarks: a decision for every transaction, an alert for some."""

from __future__ import annotations

from typing import Final

from millrace_apps.benchmarks.app_bench import Answers, AppBench, Record, Rows, Sent


def check(rows: Rows, sent: Sent) -> Record:
    """Compare the decisions with the transactions: each has one."""
    wanted = sum(1 for _ in sent("transactions"))
    found = rows("transactions", ["transaction_id"])
    return {"rows_in_table": len(found), "correct": len(found) == wanted}


bench: Final = AppBench(
    name="fraud",
    streams=("transactions", "labels", "authorisations"),
    entities="cards",
    usual=50_000,
    answers=Answers(
        name="alert",
        topic="alerts",
        stream="transactions",
        asked=lambda event: event["transaction_id"],
        answered=lambda alert: alert["transaction_id"],
    ),
    check=check,
    preload={},
    catch_up=(),
    live={},
    timed_rows="transactions",
    drain=False,
)
