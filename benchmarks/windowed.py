"""`millrace bench w2`, `w3`, `w4`: tumbling, session and per-record windows, Spark's own beside ours."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from millrace import KeyedProcess, minutes, seconds
from millrace_apps.benchmarks import oracles
from millrace_apps.benchmarks.digest import Digest, digest
from millrace_apps.benchmarks.inputs import Events, make_events, write_batches
from millrace_apps.benchmarks.streams import combined, figures, read_batches, run_query
from millrace_apps.benchmarks.w1 import CARD, Input, bench_session, ours, streaming_settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Job = Literal["w2", "w3", "w4"]

TUMBLING_MS = minutes(1)
GAP_MS = seconds(10)
LOOKBACK_MS = minutes(5)

_WINDOW = (CARD, "window_start_ms", "window_end_ms", "n", "cast(total as double)")
_LOOKBACK = ("id", "n", "cast(total as double)")


@dataclass(frozen=True)
class Sizes:
    """How much is run.

    Attributes:
        rows: Events, a thousand per second of event time.
        keys: Cards.
        batches: Batches, the first to warm up included; one more completes the windows.
        repeats: Runs of each system, in alternating order; figures are medians.
        input: What ours reads; see :class:`millrace_apps.benchmarks.w1.Sizes`.
    """

    rows: int
    keys: int = 50_000
    batches: int = 8
    repeats: int = 1
    input: Input = "json"


SIZES: dict[Job, Sizes] = {
    "w2": Sizes(2_000_000),
    "w3": Sizes(2_000_000),
    "w4": Sizes(1_000_000),
}
QUICK = Sizes(60_000, keys=2_000, batches=3)


def windowed(job: Job, sizes: Sizes) -> dict[str, Any]:
    """Run a job of windows by ours and, where there is one, by Spark's own operator.

    Args:
        job: ``w2`` (tumbling), ``w3`` (session) or ``w4`` (per-record sliding).
        sizes: How much.
    """
    events = make_events(sizes.rows, sizes.keys)
    frames: dict[str, Callable[[DataFrame], DataFrame]] = {
        "process": partial(ours, process_of(job), sizes.input)
    }
    if job != "w4":
        frames["spark_native"] = partial(native, job)
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in frames}
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as name:
        folder = Path(name)
        cuts = write_batches(
            folder / "in", events, sizes.batches, with_json=sizes.input == "json", closing=True
        )
        measure = partial(_measured, job, events, expected(job, events), folder / "in", cuts)
        with bench_session(folder) as spark:
            for repeat in range(sizes.repeats):
                order = list(frames) if repeat % 2 == 0 else list(reversed(frames))
                for system in order:
                    runs[system].append(measure(spark, frames[system], folder / f"{system}-{repeat}"))
    found = {system: combined(of) for system, of in runs.items()}
    if "spark_native" not in found:
        return {"systems": found}
    ratio = found["process"]["rows_per_s"] / found["spark_native"]["rows_per_s"]
    return {"systems": found, "ratios": {"process_over_spark_native": ratio}}


def process_of(job: Job) -> KeyedProcess[Any, Any]:
    """Return the process of a job."""
    from millrace.windows import count, lookback, session, sum_of, tumbling, window
    from millrace_apps.benchmarks.w1_job import Purchase

    if job == "w4":
        last = window(Purchase, lookback(LOOKBACK_MS, keep="id"), key="card")
        return last.aggregate(n=count(), total=sum_of("cents"))
    kind = tumbling(TUMBLING_MS) if job == "w2" else session(GAP_MS)
    return window(Purchase, kind, key="card").aggregate(n=count(), total=sum_of("cents"))


def native(job: Job, events: DataFrame) -> DataFrame:
    """Return what Spark's own windows make of the events, with the columns of ours."""
    from pyspark.sql import functions as F

    timed = events.withColumn("ts", F.timestamp_millis("at")).withWatermark("ts", "1 milliseconds")
    kind = (
        F.window("ts", f"{TUMBLING_MS} milliseconds")
        if job == "w2"
        else F.session_window("ts", f"{GAP_MS} milliseconds")
    )
    made = timed.groupBy(kind.alias("w"), "card").agg(F.count("*").alias("n"), F.sum("cents").alias("total"))
    start, end = (F.unix_millis(F.col("w").getField(edge)) for edge in ("start", "end"))
    return made.select("card", start.alias("window_start_ms"), end.alias("window_end_ms"), "n", "total")


def expected(job: Job, events: Events) -> Digest:
    """Return the digest of what must come out."""
    if job == "w4":
        sums = oracles.lookback(events, LOOKBACK_MS)
        return digest(sums.id, sums.n, sums.total.astype(np.float64))
    made = oracles.tumbling(events, TUMBLING_MS) if job == "w2" else oracles.sessions(events, GAP_MS)
    return digest(made.card, made.start, made.end, made.n, made.total.astype(np.float64))


def _measured(
    job: Job,
    events: Events,
    wanted: Digest,
    files: Path,
    cuts: list[int],
    spark: SparkSession,
    frame: Callable[[DataFrame], DataFrame],
    checkpoint: Path,
) -> dict[str, Any]:
    # What the closing events make is left out.
    columns, where = (
        (_LOOKBACK, f"id < {len(events)}")
        if job == "w4"
        else (_WINDOW, f"{CARD} <= {int(events.card.max())}")
    )
    run = run_query(frame(read_batches(spark, files)), checkpoint, columns=columns, where=where)
    return figures(run, cuts, correct=run.digest == wanted)


def configuration(job: Job, sizes: Sizes) -> dict[str, Any]:
    """Return what the run hangs on, for the report."""
    window = {
        "w2": f"tumbling {TUMBLING_MS} ms",
        "w3": f"session, gap {GAP_MS} ms",
        "w4": f"per record, the last {LOOKBACK_MS} ms; Spark has no such operator on streams",
    }
    return {**asdict(sizes), "window": window[job], "exponent": 1.1, "settings": streaming_settings()}
