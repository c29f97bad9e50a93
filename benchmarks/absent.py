"""`millrace bench w8`: an alert for every silence of a card, one timer each; Spark's sessions beside."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from millrace import KeyedProcess, minutes
from millrace.operators import heartbeat
from millrace_apps.benchmarks import oracles
from millrace_apps.benchmarks.digest import Digest, digest
from millrace_apps.benchmarks.inputs import Events, make_events, write_batches
from millrace_apps.benchmarks.streams import combined, figures, read_batches, run_query
from millrace_apps.benchmarks.w1 import CARD, Input, bench_session, ours, streaming_settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

System = Literal["process", "process_event_time", "spark_native"]

TIMEOUT_MS = minutes(1)
_COLUMNS = (CARD, "since_ms", "deadline_ms")


@dataclass(frozen=True)
class Sizes:
    """How much is run.

    Attributes:
        rows: Events, a thousand per second of event time.
        keys: Cards.
        batches: Batches, the first to warm up included; one more completes all silences.
        repeats: Runs of each system, in alternating order; figures are medians.
        input: What ours reads; see :class:`millrace_apps.benchmarks.w1.Sizes`.
    """

    rows: int = 1_000_000
    keys: int = 50_000
    batches: int = 8
    repeats: int = 1
    input: Input = "json"


# Longer than the timeout: silences must end within it too.
QUICK = Sizes(150_000, keys=2_000, batches=3)


def absent(sizes: Sizes) -> dict[str, Any]:
    """Run ours, with events handled as they come and in event-time order, and Spark's session windows.

    A session of Spark that ends a timeout after its last event is a silence: the same rows.

    Args:
        sizes: How much.
    """
    events = make_events(sizes.rows, sizes.keys)
    frames: dict[System, Callable[[DataFrame], DataFrame]] = {
        "process": partial(ours, process_of("process"), sizes.input),
        "process_event_time": partial(ours, process_of("process_event_time"), sizes.input),
        "spark_native": native,
    }
    runs: dict[System, list[dict[str, Any]]] = {name: [] for name in frames}
    wanted = expected(events)
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as name:
        folder = Path(name)
        with_json = sizes.input == "json"
        cuts = write_batches(folder / "in", events, sizes.batches, with_json=with_json, closing=True)
        with bench_session(folder) as spark:
            for repeat in range(sizes.repeats):
                order = list(frames) if repeat % 2 == 0 else list(reversed(frames))
                for system in order:
                    made = frames[system](read_batches(spark, folder / "in"))
                    # What the closing events make is left out.
                    where = f"{CARD} <= {int(events.card.max())}"
                    run = run_query(made, folder / f"{system}-{repeat}", columns=_COLUMNS, where=where)
                    runs[system].append(figures(run, cuts, correct=run.digest == wanted))
    found = {system: combined(of) for system, of in runs.items()}
    native_rate = found["spark_native"]["rows_per_s"]
    ratios = {
        f"{system}_over_spark_native": found[system]["rows_per_s"] / native_rate
        for system in ("process", "process_event_time")
    }
    return {"systems": found, "ratios": ratios}


def process_of(system: System) -> KeyedProcess[Any, Any]:
    """Return ours: an alert when a card has had no purchase for a minute."""
    from millrace_apps.benchmarks.w1_job import Purchase

    return heartbeat(Purchase, timeout=TIMEOUT_MS, in_order=system == "process", key="card")


def native(events: DataFrame) -> DataFrame:
    """Return what Spark's sessions make of the events, with the columns of ours."""
    from pyspark.sql import functions as F

    timed = events.withColumn("ts", F.timestamp_millis("at")).withWatermark("ts", "1 milliseconds")
    made = timed.groupBy(F.session_window("ts", f"{TIMEOUT_MS} milliseconds").alias("w"), "card").count()
    end = F.unix_millis(F.col("w").getField("end"))
    return made.select("card", (end - TIMEOUT_MS).alias("since_ms"), end.alias("deadline_ms"))


def expected(events: Events) -> Digest:
    """Return the digest of what must come out."""
    card, since = oracles.silences(events, TIMEOUT_MS)
    return digest(card, since, since + TIMEOUT_MS)


def configuration(sizes: Sizes) -> dict[str, Any]:
    """Return what the run hangs on, for the report."""
    return {
        **asdict(sizes),
        "timeout_ms": TIMEOUT_MS,
        "spark_native": "session_window with the timeout as its gap",
        "exponent": 1.1,
        "settings": streaming_settings(),
    }
