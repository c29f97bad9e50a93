"""`millrace bench tumbling-windows`, `session-windows`, `sliding-sums`: Spark's own beside ours."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from millrace import KeyedProcess, minutes, seconds
from millrace_apps.benchmarks import oracles
from millrace_apps.benchmarks.case import CARD, Case, Sizes, on_purchases, over
from millrace_apps.benchmarks.digest import Digest, digest
from millrace_apps.benchmarks.inputs import Events

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Job = Literal["tumbling", "session", "sliding"]

TUMBLING_MS = minutes(1)
GAP_MS = seconds(10)
LOOKBACK_MS = minutes(5)

_WINDOW = (CARD, "window_start_ms", "window_end_ms", "n", "cast(total as double)")
_LOOKBACK = ("id", "n", "cast(total as double)")


def process_of(job: Job) -> KeyedProcess[Any, Any]:
    """Return the process of a job."""
    from millrace.windows import count, lookback, session, sum_of, tumbling, window
    from millrace_apps.benchmarks.w1_job import Purchase

    if job == "sliding":
        last = window(Purchase, lookback(LOOKBACK_MS, keep="id"), key="card")
        return last.aggregate(n=count(), total=sum_of("cents"))
    kind = tumbling(TUMBLING_MS) if job == "tumbling" else session(GAP_MS)
    return window(Purchase, kind, key="card").aggregate(n=count(), total=sum_of("cents"))


def native(job: Job, events: DataFrame) -> DataFrame:
    """Return what Spark's own windows make of the events, with the columns of ours."""
    from pyspark.sql import functions as F

    timed = events.withColumn("ts", F.timestamp_millis("at")).withWatermark("ts", "1 milliseconds")
    kind = (
        F.window("ts", f"{TUMBLING_MS} milliseconds")
        if job == "tumbling"
        else F.session_window("ts", f"{GAP_MS} milliseconds")
    )
    made = timed.groupBy(kind.alias("w"), "card").agg(F.count("*").alias("n"), F.sum("cents").alias("total"))
    start, end = (F.unix_millis(F.col("w").getField(edge)) for edge in ("start", "end"))
    return made.select("card", start.alias("window_start_ms"), end.alias("window_end_ms"), "n", "total")


def expected(job: Job, events: Events) -> Digest:
    """Return the digest of what must come out."""
    if job == "sliding":
        sums = oracles.lookback(events, LOOKBACK_MS)
        return digest(sums.id, sums.n, sums.total.astype(np.float64))
    made = oracles.tumbling(events, TUMBLING_MS) if job == "tumbling" else oracles.sessions(events, GAP_MS)
    return digest(made.card, made.start, made.end, made.n, made.total.astype(np.float64))


def _case(job: Job, sizes: Sizes, kind: str) -> Case[Sizes]:
    rivals = {} if job == "sliding" else {"spark_native": partial(native, job)}
    return Case(
        sizes,
        Sizes(60_000, keys=2_000, batches=3),
        on_purchases(
            {"process": partial(process_of, job)},
            partial(expected, job),
            _LOOKBACK if job == "sliding" else _WINDOW,
            rivals,
            lambda events: (
                f"id < {len(events)}" if job == "sliding" else f"{CARD} <= {int(events.card.max())}"
            ),
        ),
        over(*(("process", rival) for rival in rivals)),
        lambda _: {"window": kind},
    )


TUMBLING_WINDOWS: Final = _case("tumbling", Sizes(2_000_000), f"tumbling {TUMBLING_MS} ms")
SESSION_WINDOWS: Final = _case("session", Sizes(2_000_000), f"session, gap {GAP_MS} ms")
SLIDING_SUMS: Final = _case(
    "sliding",
    Sizes(1_000_000),
    f"per record, the last {LOOKBACK_MS} ms; Spark has no such operator on streams",
)
