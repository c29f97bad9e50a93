"""`millrace bench absence-alerts`: one timer per silence of a card; Spark's sessions beside."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from millrace import KeyedProcess, minutes
from millrace.operators import heartbeat
from millrace_apps.benchmarks import oracles
from millrace_apps.benchmarks.case import CARD, Case, Sizes, on_purchases, over
from millrace_apps.benchmarks.digest import Digest, digest
from millrace_apps.benchmarks.inputs import Events
from millrace_apps.benchmarks.w1_job import Purchase

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

System = Literal["process", "process_event_time"]

TIMEOUT_MS = minutes(1)


def process_of(system: System) -> KeyedProcess[Any, Any]:
    """Return ours: an alert when a card has had no purchase for a minute."""
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


#: Events handled as they come, in event-time order, and Spark's sessions: one that ends a timeout after its
#: last event is a silence.
CASE = Case(
    Sizes(1_000_000),
    # Longer than the timeout: silences must end within it too.
    Sizes(150_000, keys=2_000, batches=3),
    on_purchases(
        {
            "process": partial(process_of, "process"),
            "process_event_time": partial(process_of, "process_event_time"),
        },
        expected,
        (CARD, "since_ms", "deadline_ms"),
        {"spark_native": native},
        lambda events: f"{CARD} <= {int(events.card.max())}",
    ),
    over(("process", "spark_native"), ("process_event_time", "spark_native")),
    lambda _: {"timeout_ms": TIMEOUT_MS, "spark_native": "session_window with the timeout as its gap"},
)
