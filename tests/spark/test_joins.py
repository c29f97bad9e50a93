"""Joins on Spark: two streams, one watermark, corrections and late rows, as in memory."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from millrace import connect, keyed
from millrace.host.memory import MemoryHost
from millrace.host.runner import Emission
from millrace.host.spark import ProcessedStream
from millrace.joins import JoinProcess, asof_join, interval, interval_join, table_join, window_join
from millrace.windows import session
from tests.spark.conftest import Stream, StreamFactory
from tests.spark.mirror import comparable

START = 1_700_000_000_000
SECOND = 1_000
BOUND = 10 * SECOND
SCHEMA = "side string, source string, value string"


class Reading(msgspec.Struct, frozen=True):
    machine: str
    at: int
    celsius: float


class Status(msgspec.Struct, frozen=True):
    machine: str
    since: int
    status: str


def read(text: str) -> list[Reading | Status]:
    """Read a batch: ``"m1 r5 s4:on"`` is a reading of m1 at 5 s and a status of it since 4 s."""
    batch: list[Reading | Status] = []
    machine = ""
    for word in text.split():
        if word[0] == "m":
            machine = word
            continue
        at, _, what = word[1:].partition(":")
        time = START + int(at) * SECOND
        batch.append(Reading(machine, time, float(at)) if word[0] == "r" else Status(machine, time, what))
    return batch


BATCHES = [
    read("m1 r5 r8 s1:on m2 r5 s5:on m3 r6"),
    read("m1 s7:off r9 r12 m2 s30:off r29"),  # m1's status of 7 is out of order, and on time
    read("m1 r20 s2:late s19:late r18 m2 r31 s24:idle"),  # the watermark is just before 20
    read("m1 r61 m2 s70:on r75 m3 r75"),
    read("m4 r200"),
]

AS_OF = "as-of, corrections"
JOINS = {
    AS_OF: asof_join(left=Reading, right=Status, keep=60 * SECOND, grace=15 * SECOND, name="asof"),
    "table, final": table_join(
        stream=Reading,
        table=Status,
        keep=40 * SECOND,
        grace=2 * SECOND,
        how="left",
        deletes=lambda change: change.status == "off",
    ),
    "interval": interval_join(
        left=Reading,
        right=Status,
        within=interval(backward=6 * SECOND, forward=3 * SECOND),
        how="outer",
    ),
    "session": window_join(left=Reading, right=Status, assigner=session(5 * SECOND), how="left"),
}


def in_memory(process: JoinProcess) -> list[Emission]:
    host = MemoryHost(process, out_of_orderness_ms=BOUND)
    emissions: list[Emission] = []
    for batch in BATCHES:
        emissions += host.run_batch(
            [(e.machine, e.at if isinstance(e, Reading) else e.since, e) for e in batch]
        )
    return emissions


def on_spark(process: JoinProcess, stream: StreamFactory, restart_after: int = -1) -> Stream:
    def build(df: DataFrame) -> ProcessedStream:
        how: dict[str, Any] = {"by": "machine", "value": "value", "source_id": "source"}
        lefts, rights = (df.filter(F.col("side") == side) for side in ("left", "right"))
        return connect(
            left=keyed(lefts, event_time="at", out_of_orderness=BOUND, key_groups=4, **how),
            right=keyed(rights, event_time="since", key_groups=4, **how),
        ).process(process)

    made = stream(SCHEMA, build)
    made.views = ("main", "late")
    number = 0
    for index, batch in enumerate(BATCHES):
        rows = []
        for event in batch:  # named as the in-memory host names its own
            side = "left" if isinstance(event, Reading) else "right"
            value = msgspec.json.encode(event).decode()
            rows.append({"side": side, "source": f"memory:0:{number}", "value": value})
            number += 1
        made.add(rows)
        if index == restart_after:
            made.run()
    made.run()
    return made


def check(made: Stream, process: JoinProcess) -> None:
    """Compare with the in-memory host, and the typed view with the records."""
    expected = in_memory(process)
    assert comparable(made.emitted) == comparable(expected)
    assert {e.output for e in expected} <= {"main", "late"}
    assert made.late_drops == 0
    records = [msgspec.json.decode(e.payload) for e in expected if e.output == "main"]
    typed = [row.asDict() for row in made.typed["main"]]
    for row in typed:
        del row["_event_id"], row["_event_time"], row["_on_time"]
    assert sorted(map(repr, typed)) == sorted(map(repr, records))


MATRIX = pytest.mark.matrix


@pytest.mark.parametrize("name", ["table, final", "interval", pytest.param("session", marks=MATRIX)])
def test_a_join_gives_on_spark_what_it_gives_in_memory(stream: StreamFactory, name: str) -> None:
    check(on_spark(JOINS[name], stream), JOINS[name])


def test_a_status_out_of_order_corrects_readings_across_a_restart(stream: StreamFactory) -> None:
    made = on_spark(JOINS[AS_OF], stream, restart_after=0)
    of_m1 = [
        ((p["left_ms"] - START) // SECOND, p["status"], p["revision"], e.on_time)
        for e in made.emitted
        if e.output == "main" and (p := e.payload)["machine"] == "m1"
    ]
    assert of_m1 == [
        (5, "on", 0, True),
        (8, "on", 0, True),
        (8, "off", 1, False),
        (9, "off", 0, True),
        (12, "off", 0, True),
        (18, "off", 0, False),  # late, within the grace
        (20, "late", 0, True),
        (61, "late", 0, True),
    ]
    check(made, JOINS[AS_OF])


def test_bounded_frames_are_joined_at_once(spark: SparkSession) -> None:
    readings = spark.createDataFrame(
        [("m1", START + 1, 1.0), ("m1", START + 5, 2.0), ("m2", START + 5, 3.0)],
        "machine string, at long, celsius double",
    )
    statuses = spark.createDataFrame(
        [("m1", START + 2, "on"), ("m1", START + 5, "off")], "machine string, since long, status string"
    )
    joined = connect(
        left=keyed(readings, by="machine", event_time="at"),
        right=keyed(statuses, by="machine", event_time="since"),
    ).process(JOINS[AS_OF])
    rows = joined["main"].select("celsius", "status", "right_ms", "revision").collect()
    assert sorted(tuple(row) for row in rows) == [
        (1.0, None, None, 0),
        (2.0, "off", START + 5, 0),
        (3.0, None, None, 0),
    ]
