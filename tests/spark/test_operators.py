"""The operators on Spark: V29 and V30 as streams over restarts, and every operator's typed rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from millrace import KeyedProcess, keyed
from millrace.host.memory import MemoryHost
from millrace.operators import (
    absence,
    adwin,
    cusum,
    deduplicate,
    drift,
    ewm,
    heartbeat,
    holt_winters,
    moving,
    page_hinkley,
    running,
    top_n,
)
from millrace.windows import count, hopping, max_of, mean, sum_of, tumbling, variance
from tests.spark.conftest import StreamFactory
from tests.spark.mirror import comparable
from tests.spark.test_vectors import (
    EPOCH,
    WINDOW,
    Ev,
    Restart,
    Script,
    Watermark,
    each,
    events,
    in_memory,
    on_spark,
    rows_of,
)

LONG = 1_000_000
HOUR = 3_600_000


def starts(event: Ev) -> bool:
    return event.tag == "start"


def ends(event: Ev) -> bool:
    return event.tag == "end"


def tips(*rows: tuple[int, str, int]) -> list[Ev]:
    """One batch of (minute, driver, tip), a tenth of the time."""
    return events(*(("all", minute * 6_000, v, driver) for minute, driver, v in rows))


V29 = [1, 2, 1, 1, 2, 3, 3, 1, 2]

SCRIPTS = {
    "V29: repeats of an id, and their life where they extend it": Script(
        lambda: deduplicate(Ev, id="v", within=2_000, refresh=True),
        [
            events(*(("k", 1_000 * i, v) for i, v in enumerate(V29[:4]))),
            Restart(),
            events(*(("k", 1_000 * i, v) for i, v in enumerate(V29[4:], 4)), ("m", 9_000, 1)),
            events(("m", 1_000, 1), ("m", 8_000, 1)),
        ],
        ("key", "v", "at"),
        # 1 comes at 0, 2, 3 and 7 s, 2 at 1, 4 and 8 s: in the horizon of 2 s of the last one, or after it.
        [
            *(("k", 1, EPOCH + at) for at in (0, 2_000, 7_000)),
            *(("k", 2, EPOCH + at) for at in (1_000, 4_000, 8_000)),
            ("k", 3, EPOCH + 5_000),
            *(("m", 1, EPOCH + at) for at in (1_000, 8_000)),
        ],
    ),
    "V29 in arrival order": Script(
        lambda: deduplicate(Ev, id="v", within=60_000, order="arrival"),
        [
            *each(*(("k", 1_000 * i, v) for i, v in enumerate(V29[:5]))),
            Restart(),
            events(*(("k", 1_000 * i, v) for i, v in enumerate(V29[5:], 5))),
        ],
        ("key", "v", "at"),
        [("k", 1, EPOCH), ("k", 2, EPOCH + 1_000), ("k", 3, EPOCH + 5_000)],
    ),
    "V30: rides that take too long": Script(
        lambda: absence(Ev, start=starts, end=ends, within=2 * HOUR // 10, keep="v"),
        [
            events(("in time", 0, 1, "start"), ("end first", 6_000, 1, "end"), ("no start", 6_000, 1, "end")),
            events(("in time", 6_000, 1, "end"), ("end first", 0, 1, "start"), ("no end", 0, 2, "start")),
            Watermark(6_000),
            events(("late end", 7_000, 3, "start"), ("late end", 3 * HOUR // 10, 3, "end")),
            Restart(),
            Watermark(2 * HOUR // 10),
        ],
        ("key", "v"),
        [("no end", 2), ("late end", 3)],
    ),
    "V30: the largest sum of every hour": Script(
        lambda: top_n(Ev, 1, item="tag", by=sum_of("v"), window=tumbling(HOUR // 10)),
        [
            tips((0, "1", 1), (5, "1", 5), (90, "1", 10), (90, "2", 20)),
            Restart(),
            tips((70, "3", 0), (70, "4", 0), (80, "4", 1), (100, "5", 10)),
        ],
        (*WINDOW, "rank", "item", "value"),
        [("all", 0, 360_000, 1, "1", 6), ("all", 360_000, 720_000, 1, "2", 20)],
    ),
    "a ranking as a changelog": Script(
        lambda: top_n(Ev, 2, item="tag", by=max_of("v"), window=tumbling(10_000), emit="changelog"),
        [
            events(("k", 1_000, 1, "a")),
            events(("k", 2_000, 2, "b")),
            Restart(),
            events(("k", 3_000, 3, "c")),
        ],
        ("rank", "item", "value", "change"),
        [
            (1, "a", 1, "insert"),
            (1, "a", 1, "update_before"),
            (2, "a", 1, "update_after"),
            (1, "b", 2, "insert"),
            (2, "a", 1, "delete"),
            (1, "b", 2, "update_before"),
            (2, "b", 2, "update_after"),
            (1, "c", 3, "insert"),
        ],
    ),
    "a forecast": Script(
        lambda: holt_winters(Ev, "v", season=2, every=1_000, idle=LONG, ahead=2, keep="tag"),
        [
            events(*(("k", 1_000 * i, 10 + i + 5 * (i % 2), "x") for i in range(3))),
            Restart(),
            events(*(("k", 1_000 * i, 10 + i + 5 * (i % 2), "y") for i in range(3, 6))),
            events(("k", 8_000, 18, "z")),
        ],
        ("tag", "value"),
        [("y", 18.0), ("y", 14.0), ("y", 20.0), ("z", 18.0)],
    ),
    "change by an adaptive window": Script(
        lambda: drift(Ev, "v", adwin(every=4), idle=LONG, keep="tag"),
        [
            events(*(("k", 100 * i, i % 3, "calm") for i in range(60))),
            Restart(),
            events(*(("k", 100 * i, 20 + i % 3, "high") for i in range(60, 80))),
        ],
        ("tag", "direction", "detector"),
        [("high", "up", "adwin")] * 3,
    ),
}


#: Left to the matrix: what differs little from the others.
LONG_WAY = ("V29 in arrival order", "a ranking as a changelog", "a forecast", "change by an adaptive window",
            "V30: rides that take too long")  # fmt: skip


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.matrix] * (name in LONG_WAY)) for name in SCRIPTS]
)
def test_an_operator_gives_on_spark_what_it_gives_in_memory(stream: StreamFactory, name: str) -> None:
    script = SCRIPTS[name]
    expected = in_memory(script)
    wanted = sorted(script.rows, key=repr)
    assert rows_of(script, expected) == wanted
    made = on_spark(script, stream)
    assert rows_of(script, made.emitted) == wanted
    assert comparable(made.emitted) == comparable(expected)
    assert made.late_drops == 0


#: Every operator, of events of one kind, for its typed rows.
OPERATORS: dict[str, Callable[[], KeyedProcess[Any, Any]]] = {
    "deduplicate": lambda: deduplicate(Ev, id=("v", "tag"), within=3_000),
    "absence": lambda: absence(Ev, start=starts, end=ends, within=2_000, keep=("v", "at")),
    "heartbeat": lambda: heartbeat(Ev, timeout=900, keep="tag"),
    "top_n": lambda: top_n(Ev, 2, item="tag", by=mean("v"), window=hopping(4_000, every=2_000)),
    "running": lambda: running(Ev, idle=LONG).aggregate(n=count(), avg=mean("v"), var=variance("v")),
    "moving": lambda: moving(Ev, 3, idle=LONG).aggregate(avg=mean("v")),
    "ewm": lambda: ewm(Ev, "v", half_life=2_000, idle=LONG),
    "holt_winters": lambda: holt_winters(Ev, "v", season=3, ahead=2, idle=LONG),
    "page_hinkley": lambda: drift(Ev, "v", page_hinkley(threshold=2, min_n=4), idle=LONG),
    "cusum": lambda: drift(Ev, "v", cusum(learn=4, threshold=2), idle=LONG),
}
KINDS = ["start", "other", "end"]
ROWS = [
    Ev(key, EPOCH + 500 * i + (2_000 if i > 9 else 0), i % 4 + (i // 15) * 9, KINDS[i % 3])
    for i in range(30)
    for key in ("k1", "k2")
    if (i + len(key)) % 7
]


def plain(value: Any) -> Any:
    """Return a row of Spark as plain data."""
    if hasattr(value, "asDict"):
        return {name: plain(v) for name, v in value.asDict().items() if not name.startswith("_")}
    if isinstance(value, list):
        return [plain(v) for v in value]
    return None if isinstance(value, float) and math.isnan(value) else value


@pytest.mark.parametrize("name", OPERATORS)
def test_the_typed_rows_of_a_bounded_run_are_those_of_memory(spark: SparkSession, name: str) -> None:
    process = OPERATORS[name]()
    host = MemoryHost(process)
    emissions = host.run_batch([(e.key, e.at, e) for e in ROWS]) + host.drain()
    frame = spark.createDataFrame(
        [msgspec.to_builtins(e) for e in ROWS], "key string, at long, v int, tag string"
    )
    stream = keyed(frame, by="key", event_time="at", key_groups=2).process(process)
    outputs = {"main", *(tag.name for tag in process.side_outputs)}
    assert {e.output for e in emissions} <= outputs
    for output in outputs:
        wanted = [msgspec.json.decode(e.payload) for e in emissions if e.output == output]
        found = [plain(row) for row in stream[output].collect()]
        assert sorted(map(repr, found)) == sorted(map(repr, wanted))
        assert wanted or output != "main"
