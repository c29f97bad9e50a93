"""Patterns on Spark: what the in-memory host says, across batches, restarts and two partitions."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest
from pyspark.sql import functions as F

from millrace import keyed
from millrace.patterns import Pattern, begin, detect, no_skip, skip_past_last
from millrace.testing import TestDriver
from tests.spark.conftest import StreamFactory

#: A watermark of 0 means "none yet" to the engine.
EPOCH = 1_699_920_000_000
KEYS = ("ann", "bob", "cat", "dan")


class Step(msgspec.Struct, frozen=True):
    user: str
    at: int
    kind: str
    n: int = 0


def of(kind: str) -> Any:
    return lambda step: step.kind == kind


def same_n(step: Step, matched: dict[str, list[Step]]) -> bool:
    return step.kind == "c" and step.n == matched["a"][0].n


PATTERNS: dict[str, Pattern] = {
    "a b* c, strict": begin("a").where(of("a")).next("b").where(of("b")).one_or_more().optional()
    .consecutive().greedy().next("c").where(of("c")).within(60_000),
    "a c of one number, no x": begin("a").where(of("a")).not_followed_by("x").where(of("x"))
    .followed_by_any("c").where(same_n).within(40_000),
    "a and no c": begin("a").where(of("a")).not_followed_by("c").where(of("c")).within(15_000),
}  # fmt: skip


def steps() -> list[Step]:
    """A hundred steps of four users, the same every time; times of one user are distinct."""
    kinds = "abbcaacabx"
    return [
        Step(KEYS[i % 4], EPOCH + i * 1_700, kinds[(i * 7 + i // 9) % 10], i // 4 % 2) for i in range(100)
    ]


def in_memory(pattern: Pattern, skip: Any) -> Counter[str]:
    driver = TestDriver(detect(Step, pattern, after_match=skip, key="user"))
    for step in steps():
        driver.send(step.user, step, at=step.at)
    driver.advance_watermark(END - 1)
    return Counter(repr((e.output, e.event_time, msgspec.json.decode(e.payload))) for e in driver.emissions)


#: The last event: of a user of its own, after everything.
END = EPOCH + 10_000_000


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("a b* c, strict", marks=pytest.mark.matrix),
        "a and no c",
        pytest.param("a c of one number, no x", marks=pytest.mark.matrix),
    ],
)
def test_matches_are_those_of_the_memory_host(name: str, stream: StreamFactory) -> None:
    """Five batches, a restart after the second; partial matches live through both."""
    pattern, skip = PATTERNS[name], skip_past_last() if "strict" in name else no_skip()

    def build(source: Any) -> Any:
        events = source.select("user", "kind", "n", F.col("at"))
        by_user = keyed(events, by="user", event_time="at", out_of_orderness="0 seconds")
        return by_user.process(detect(Step, pattern, after_match=skip, key="user"))

    run = stream("user string, at long, kind string, n long", build)
    given = steps()
    rows = [msgspec.to_builtins(step) for step in given]
    for first in (0, 25):
        run.add(rows[first : first + 25])
    run.run()
    for first in (50, 75):
        run.add(rows[first : first + 25])
    run.add([{"user": "end", "at": END, "kind": "z", "n": 0}])
    run.run()
    found = Counter(repr((e.output, e.event_time, e.payload)) for e in run.emitted)
    wanted = in_memory(pattern, skip)
    assert found == wanted
    assert any("'main'" in text for text in wanted)


def test_matches_are_rows_with_a_column_of_events(spark: Any) -> None:
    """Over a bounded DataFrame: ``matched`` is a map from the part's name to its events."""
    rows = [msgspec.to_builtins(step) for step in steps()]
    frame = spark.createDataFrame(rows, "user string, at long, kind string, n long")
    matches = keyed(frame, by="user", event_time="at").process(
        detect(Step, PATTERNS["a b* c, strict"], key="user")
    )["main"]
    found = Counter(
        (
            r.user,
            r.start_ms,
            r.end_ms,
            tuple((name, tuple(e.n for e in r.matched[name])) for name in ("a", "c")),
        )
        for r in matches.collect()
    )
    driver = TestDriver(detect(Step, PATTERNS["a b* c, strict"], key="user"))
    driver.send_batch([(s.user, s.at, s) for s in steps()])
    driver.drain()
    wanted = Counter(
        (
            m.user,
            m.start_ms,
            m.end_ms,
            tuple((name, tuple(e.n for e in m.matched[name])) for name in ("a", "c")),
        )
        for m in driver.values()
    )
    assert found == wanted
    assert found
