"""Control events that hold from an event time on, on Spark: told by a field or a column, through a chain."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from millrace import BroadcastContext, Context, KeyedProcess, broadcast_state, keyed
from millrace.host.spark import ProcessedStream
from millrace.host.system import Idle, encode_system
from millrace.topology import KeyingError
from tests.spark.conftest import StreamFactory

SCHEMA = "value string, control boolean, stamp timestamp"


class Limit(msgspec.Struct):
    """A control event."""

    to: int
    since: str | int | None = None


class Event(msgspec.Struct):
    who: str
    at: int


class Found(msgspec.Struct):
    who: str
    at: int
    limits: list[int]


class First(KeyedProcess[Event, Found]):
    order = "event_time"
    control_type = Limit
    limits = broadcast_state(str, list[int])

    def process(self, event: Event, ctx: Context) -> None:
        ctx.emit(Found(event.who, event.at, self.limits.get("all") or []))

    def process_broadcast(self, control: Limit, ctx: BroadcastContext) -> None:
        self.limits.put("all", [*(self.limits.get("all") or []), control.to])


class Second(KeyedProcess[Found, Found]):
    order = "event_time"
    control_type = Limit
    limits = broadcast_state(str, list[int])

    def process(self, event: Found, ctx: Context) -> None:
        assert event.limits == (self.limits.get("all") or [])  # both links have the same at one time
        ctx.emit(event)

    process_broadcast = First.process_broadcast  # type: ignore[assignment]


def rows(*events: Event | Limit | Idle, stamp: str = "2000-01-01T00:00:00Z") -> list[dict[str, Any]]:
    found = []
    for event in events:
        is_event = isinstance(event, Event)
        value = encode_system(event) if isinstance(event, Idle) else msgspec.json.encode(event)
        found.append({"value": value.decode(), "control": not is_event, "stamp": stamp})
    return found


def watched(df: DataFrame, told: str | Column) -> ProcessedStream:
    stream = keyed(
        df, by="who", event_time="at", value="value", control=F.col("control"), control_time=told,
        out_of_orderness=100, key_groups=3,
    ).process(First())  # fmt: skip
    return stream.key_by("who").process(Second())


def test_a_field_tells_from_when_on_it_holds_and_both_links_agree(stream: StreamFactory) -> None:
    run = stream(SCHEMA, lambda df: watched(df, "since"))
    run.add(rows(Limit(1), Limit(2, 500), Limit(3, "1970-01-01T00:00:01Z"), Event("a", 100)))
    run.add(rows(Event("a", 499), Event("b", 500), Event("a", 999), Event("b", 1_000)))
    run.run()
    run.add(rows(Limit(4, 700)))  # time is at 899: it holds from now on
    run.add(rows(Event("b", 1_500), Idle(3_000)))
    run.run()
    run.add(rows(Event("a", 5_000)))
    run.run()
    found = {(e.payload["at"], tuple(e.payload["limits"])) for e in run.emitted if e.output == "main"}
    assert found == {(100, (1,)), (499, (1,)), (500, (1, 2)), (999, (1, 2, 4)), (1_000, (1, 2, 4, 3)),
                     (1_500, (1, 2, 4, 3))}  # fmt: skip
    assert not [e for e in run.emitted if e.output.endswith("dead_letters")]


def test_a_column_tells_it_too(stream: StreamFactory) -> None:
    run = stream(SCHEMA, lambda df: watched(df, F.col("stamp")))
    run.add(rows(Limit(1), stamp="1970-01-01T00:00:00.500Z"))
    run.add(rows(Event("a", 499), Event("a", 500), Event("a", 5_000)))
    run.run()
    found = {(e.payload["at"], tuple(e.payload["limits"])) for e in run.emitted if e.output == "main"}
    assert found == {(499, ()), (500, (1,))}


def test_it_is_of_control_rows(stream: StreamFactory) -> None:
    how: dict[str, Any] = {"by": "who", "event_time": "at", "value": "value"}
    run = stream(SCHEMA, lambda df: keyed(df, control_time="since", **how).process(First()))
    run.add(rows(Event("a", 1)))
    with pytest.raises(KeyingError, match="control_time` is of control rows"):
        run.run()
