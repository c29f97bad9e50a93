"""Clocks of keys on Spark: what they go by, what is behind them, and patience that changes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from millrace import Context, KeyedProcess, Timer, arrival, event_time, keyed
from millrace.host.spark import ProcessedStream
from millrace.host.system import Drain, encode_system
from millrace.topology import KeyingError
from tests.spark.conftest import StreamFactory

SCHEMA = "topic string, partition int, offset long, timestamp timestamp, value string, control boolean"
HOUR = 3_600_000
START = 1_767_225_600_000
DRAIN = Drain("stream")


class Beat(msgspec.Struct, frozen=True):
    who: str
    at: int


class Told(msgspec.Struct, frozen=True):
    plant: str
    what: str
    who: str
    at: int


class Devices(KeyedProcess[Beat, Told]):
    """Passes on what devices say, and tells a minute later, by the stream's clock, that it was there."""

    order = event_time(clock="key", patience=2 * HOUR)
    stream_timers = True

    def process(self, event: Beat, ctx: Context) -> None:
        ctx.emit(Told("p", "beat", event.who, event.at))
        ctx.timers.at(event.at + 60_000, "minute", clock="stream")

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        ctx.emit(Told("p", "minute", ctx.key, timer.at))


class Patient(Devices):
    name = "Devices"
    order = event_time(clock="key", patience=5 * HOUR)


class Plant(KeyedProcess[Told, Told]):
    """What all devices of a plant say, in the order of event time."""

    order = "event_time"

    def process(self, event: Told, ctx: Context) -> None:
        ctx.emit(event)


class AtOnce(Plant):
    order = arrival(corrects=True)


class Rows:
    """Rows of one partition, as Kafka has them."""

    def __init__(self) -> None:
        self.taken = 0

    def __call__(self, *events: tuple[str, int] | tuple[str, int, int]) -> list[dict[str, Any]]:
        """Return rows of (who, time, arrival), ms after the start; without an arrival they come at once."""
        return [self._row(who, at, *rest) for who, at, *rest in events]

    def _row(self, who: str, at: int, arrived: int | None = None) -> dict[str, Any]:
        return self._as_row({"who": who, "at": START + at}, at if arrived is None else arrived)

    def drain(self) -> list[dict[str, Any]]:
        return [self._as_row(None, 0)]

    def _as_row(self, event: Any, arrived: int) -> dict[str, Any]:
        self.taken += 1
        at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=START + arrived)
        value = encode_system(DRAIN) if event is None else msgspec.json.encode(event)
        return {
            "topic": "in", "partition": 0, "offset": self.taken, "value": value.decode(),
            "timestamp": at.isoformat(timespec="milliseconds"), "control": event is None,
        }  # fmt: skip


def devices(rows: DataFrame, process: KeyedProcess[Any, Any]) -> ProcessedStream:
    return keyed(
        rows, by="who", event_time="at", value="value", out_of_orderness=1_000, key_groups=3,
        control=F.col("control"), source_id=F.concat_ws(":", "topic", "partition", "offset"),
    ).process(process)  # fmt: skip


def said(stream: Any, output: str = "main") -> list[tuple[str, str, int]]:
    return [
        (e.payload["what"], e.payload["who"], e.payload["at"] - START)
        for e in stream.emitted
        if e.output == output
    ]


def test_a_device_goes_by_its_own_clock_and_one_that_is_fast_waits_for_time_alone(
    stream: StreamFactory,
) -> None:
    rows, run = Rows(), stream(SCHEMA, lambda df: devices(df, Devices()))
    for second in range(0, 60, 10):
        run.add(rows(
            ("prompt", second * 1_000),
            ("slow", second * 1_000 - HOUR, second * 1_000),
            ("fast", second * 1_000 + 30_000, second * 1_000),
        ))  # fmt: skip
    run.run()
    assert not [e for e in run.emitted if e.output == "late"]
    done = said(run)
    # All but the last of each: a second behind its newest. Of the fast one what time has come to.
    assert sorted(at for what, who, at in done if (what, who) == ("beat", "prompt")) == [
        n * 10_000 for n in range(5)
    ]
    assert sorted(at for what, who, at in done if (what, who) == ("beat", "slow")) == [
        n * 10_000 - HOUR for n in range(5)
    ]
    assert sorted(at for what, who, at in done if (what, who) == ("beat", "fast")) == [30_000, 40_000]
    # A minute is over by the stream's clock, though the slow device is an hour behind: at once.
    assert [at for what, who, at in done if (what, who) == ("minute", "slow")] == [
        n * 10_000 - HOUR + 60_000 for n in range(5)
    ]
    run.add(rows.drain())
    run.run()
    assert len([1 for what, *_ in said(run) if what == "beat"]) == 18
    assert all(header.inline == {} for header in run.headers())


@pytest.mark.parametrize(("link", "lag"), [(Plant, 2 * HOUR), (AtOnce, 0)])
def test_behind_it_nothing_is_late_and_order_costs_the_patience(
    stream: StreamFactory, link: type[Plant], lag: int
) -> None:
    rows = Rows()
    run = stream(SCHEMA, lambda df: devices(df, Devices()).key_by("plant").process(link()))
    for minute in range(0, 300, 30):
        at = minute * 60_000
        run.add(rows(("prompt", at), ("slow", at - HOUR - HOUR // 2, at)))
    run.run()
    assert not [e for e in run.emitted if e.output in ("late", "Devices.late", "dead_letters")]
    passed = [at for what, _, at in said(run) if what == "beat"]
    newest = 270 * 60_000 - 1_001
    if lag:
        assert passed == sorted(passed)
        assert max(passed) <= newest - lag
        assert len(passed) == len([at for at in range(0, 270, 30) if at * 60_000 <= newest - lag]) + len(
            [at for at in range(0, 270, 30) if at * 60_000 - HOUR - HOUR // 2 <= newest - lag]
        )
    else:
        assert len(passed) == 18
    run.add(rows.drain())
    run.run()
    assert len([1 for what, *_ in said(run) if what == "beat"]) == 20


def test_patience_may_change_and_what_waits_for_the_streams_clock_is_found(stream: StreamFactory) -> None:
    rows, process = Rows(), [Devices(), Patient(), Devices()]
    run = stream(SCHEMA, lambda df: devices(df, process[0]))
    run.add(rows(("a", 0), ("b", 10)))
    run.add(rows(("a", 5_000), ("b", 5_010)))
    run.run()
    assert sorted(said(run)) == [("beat", "a", 0), ("beat", "b", 10)]
    process.pop(0)
    run.add(rows(("a", 58_000)))
    run.add(rows(("other", 61_501)))
    run.run()
    # b is silent: its timer comes by the stream's clock, to the millisecond of 60,010, not before.
    assert [s for s in said(run) if s[0] == "minute"] == [("minute", "b", 60_010)]
    process.pop(0)
    run.add(rows(("other", 5 * HOUR)))
    run.run()
    # Two hours of patience: what b said last is due. Nothing goes back.
    assert ("beat", "b", 5_010) in said(run)
    assert len(run.clocks()) == 1


def test_only_what_reads_a_stream_may_have_clocks_of_its_keys(stream: StreamFactory) -> None:
    class Again(Plant):
        order = event_time(clock="key")

    run = stream(SCHEMA, lambda df: devices(df, Devices()).key_by("plant").process(Again()))
    run.add(Rows()(("a", 0)))
    with pytest.raises(KeyingError, match='Again has clock="key"'):
        run.run()


def test_inputs_that_are_no_clock_move_no_keys_clock(stream: StreamFactory) -> None:
    rows = Rows()

    def build(df: DataFrame) -> ProcessedStream:
        how: dict[str, Any] = {"event_time": "at", "value": "value", "key_groups": 3}
        return keyed(
            df, by={"beats": "who", "notes": "who"}, tag=F.col("topic"),
            clock={"notes": False}, **how,
        ).process(Noted())  # fmt: skip

    class Noted(KeyedProcess[Any, Told]):
        order = event_time(clock="key", patience=2 * HOUR)
        inputs = {"beats": Beat, "notes": Beat}  # noqa: RUF012

        def process(self, event: Beat, ctx: Context) -> None:
            ctx.emit(Told("p", ctx.input, event.who, event.at))

    run = stream(SCHEMA, build)
    beats, notes = rows(("a", 0), ("a", 100)), rows(("a", 50_000))
    run.add([{**row, "topic": "beats"} for row in beats] + [{**row, "topic": "notes"} for row in notes])
    run.add([{**row, "topic": "beats"} for row in rows(("a", 200))])
    run.run()
    assert said(run) == [("beats", "a", 0), ("beats", "a", 100)]
    assert not [e for e in run.emitted if e.output == "late"]
