"""The clock on Spark: what its rule says, batch by batch, over restarts with other settings."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession

from millrace import Context, KeyedProcess, Timer, arrival, connect, keyed
from millrace.host.chunks import WATERMARK, status_of
from millrace.host.spark_clock import clock_settings_for
from millrace.host.spark_readers import numbered, readers_of
from millrace.runtime.clock_files import keep_settings, read_settings
from millrace.testing.partitions import Partition, Reader, Record, Row, reports
from millrace.time import NO_WATERMARK
from millrace.time.clock import ClockSettings, ClockState, ClockStatus, SourceReport, advance
from millrace.topology import KeyingError

SCHEMA = "topic string, partition int, offset long, timestamp timestamp, value string"
START = 1_700_000_000_000
BOUND = 50


class Seen(msgspec.Struct):
    """An event: who, and when."""

    who: str
    at: int


class Told(msgspec.Struct):
    """An event or a timer, and the watermark by which it came."""

    what: str
    at: int
    watermark: int


class Watch(KeyedProcess[Seen, Told]):
    """Tells of every event, and ten milliseconds later of nothing more."""

    order = arrival(commutes=True)

    def process(self, event: Seen, ctx: Context) -> None:
        ctx.emit(Told("event", event.at, ctx.watermark))
        ctx.timers.at(event.at + 10, f"{event.at}")

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        ctx.emit(Told("timer", timer.at, ctx.watermark))


def world(rng: random.Random) -> list[Partition]:
    """Return partitions as nobody promised: with dead letters, wrong clocks, arrivals that are not known."""
    made = []
    for n in range(3):
        partition = Partition(f"in:{n}")
        at = START + rng.randrange(2_000)
        for _ in range(rng.choice([5, 40, 150])):
            at += rng.choice([0, 1, 10, 40])
            wrong = rng.choice([0] * 30 + [5_000, -5_000])
            arrival_ms = rng.choice([at + 5] * 20 + [0, -1])
            kind = rng.choice(["event"] * 20 + ["dead"])
            partition.records.append(Record(at + wrong - rng.randint(0, BOUND), arrival_ms, kind))
            if rng.random() < 0.1:
                partition.records.append(Record(0, at, "hole"))
        made.append(partition)
    return made


def to_row(row: Row) -> dict[str, Any]:
    topic, partition = row.partition.split(":")
    event = {"who": f"w{row.offset % 7}", "at": row.record.time}
    value = msgspec.json.encode(event).decode() if row.record.kind == "event" else "no json"
    # A file's timestamps are text: seconds with three digits, UTC.
    return {
        "topic": topic,
        "partition": int(partition),
        "offset": row.offset,
        "timestamp": _text(row.record.arrival),
        "value": value,
    }


def newest_of(said: Sequence[SourceReport]) -> dict[str, int]:
    """Return the newest time of each source that has an event in a batch."""
    return {r.source: r.newest for r in said if r.is_clock and r.newest is not None}


def _text(ms: int) -> str:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)).isoformat(timespec="milliseconds")


class Watched:
    """A query whose batches are files, with what its clock said after each."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark, self._folder = spark, folder
        (folder / "input").mkdir(parents=True)
        self._files = 0
        self.said: dict[int, ClockStatus] = {}
        self.told: dict[int, list[Told]] = {}
        self.late: dict[int, int] = {}

    def add(self, rows: Sequence[Row]) -> None:
        path = self._folder / "input" / f"{self._files:05}.json"
        path.write_bytes(b"\n".join(msgspec.json.encode(to_row(row)) for row in rows))
        # Spark takes files by the time they were changed; a second apart leaves no doubt.
        os.utime(path, (1_000_000_000 + self._files, 1_000_000_000 + self._files))
        self._files += 1

    def run(self, settings: ClockSettings) -> None:
        source = self._spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        files = source.json(str(self._folder / "input"))
        stream = keyed(
            files,
            by="who",
            event_time="at",
            value="value",
            out_of_orderness=settings.bound_ms,
            clock_skew="off" if settings.skews[0] is None else settings.skews[0],
            max_offsets=settings.limits[0],
            full_batches=settings.full_batches,
            key_groups=3,
        ).process(Watch())
        assert stream.clock == settings

        def keep(frame: DataFrame, batch: int) -> None:
            (row,) = frame.filter(f"output = '{WATERMARK}'").collect()
            self.said[batch] = status_of(bytes(row["chunk"]))
            rows = stream.rows(frame).collect()
            self.told[batch] = [msgspec.json.decode(r.payload, type=Told) for r in rows if r.output == "main"]
            self.late[batch] = sum(r.output == "late" for r in rows)

        epochs = keep_settings(self._folder, settings)
        writer = (
            stream.raw.writeStream.option("checkpointLocation", str(self._folder / "checkpoint"))
            .foreachBatch(keep)
            .trigger(availableNow=True)
        )
        with clock_settings_for(self._spark, epochs):
            query = writer.start()
        try:
            assert query.awaitTermination(150)
        finally:
            query.stop()


@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.matrix) for n in range(2, 30))])
def test_the_clock_says_on_spark_what_its_rule_says(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    reader = Reader(world(rng), 20)
    settings = ClockSettings(BOUND, (20,), skews=(0,))
    watched, state, expected, late = Watched(spark, tmp_path), ClockState(), [], []
    newest: list[dict[str, int]] = []
    for run in range(3):
        for _ in range(5):
            rows = reader.batch()
            if rows:
                watched.add(rows)
                late.append(sum(r.record.time <= state.watermark for r in rows if r.record.kind == "event"))
                state, status = advance(state, reports(rows, skew_ms=settings.skews[0]), settings)
                expected.append(status)
                newest.append(newest_of(reports(rows, skew_ms=settings.skews[0])))
        watched.run(settings)
        reader.limit = (50, 7, 20)[run]
        settings = msgspec.structs.replace(
            settings, limits=(reader.limit,), skews=((-3, None, 0)[run],), bound_ms=(20, 80, 50)[run]
        )
    said = [watched.said[batch] for batch in sorted(watched.said)]
    assert [msgspec.structs.replace(status, sources={}) for status in said] == expected
    assert [status.sources for status in said] == newest
    assert [watched.late[batch] for batch in sorted(watched.late)] == late
    if seed == 1:  # a world with both
        assert {status.is_full for status in expected} == {True, False}
    for batch, status in enumerate(expected):
        # Events are judged by the watermark before; timers fire up to the one at the end, in the same batch.
        for told in watched.told[batch]:
            if told.what == "timer":
                assert told.at <= status.watermark
            elif status.before != NO_WATERMARK:
                assert (told.at > status.before, told.watermark) == (True, status.before)
    fired = [told.at for batch in watched.told.values() for told in batch if told.what == "timer"]
    events = [told.at for batch in watched.told.values() for told in batch if told.what == "event"]
    assert {at + 10 for at in events if at + 10 <= expected[-1].watermark} <= {*fired}


def test_a_batch_planned_before_a_restart_runs_again_under_its_own_settings(
    spark: SparkSession, tmp_path: Path
) -> None:
    watched = Watched(spark, tmp_path)
    rows = [Row("in:0", n, Record(START + n, START + n)) for n in range(10)]
    settings = ClockSettings(BOUND, (100,))
    watched.add(rows[:5])
    watched.run(settings)
    watched.add(rows[5:])
    watched.run(settings)
    planned = watched.said[1]
    # As if the second batch had been cut off before its commit, and the bound is another one since.
    for name in ("1", ".1.crc"):
        (tmp_path / "checkpoint" / "commits" / name).unlink(missing_ok=True)
    watched.run(ClockSettings(5, (100,)))
    assert watched.said[1] == planned
    assert [epoch.first_batch for epoch in read_settings(tmp_path)] == [0, 2]
    watched.add([Row("in:0", 10, Record(START + 10, START + 10))])
    watched.run(ClockSettings(5, (100,)))
    assert watched.said[2].watermark == START + 10 - 5 - 1


def test_times_before_1970_are_times(spark: SparkSession, tmp_path: Path) -> None:
    watched = Watched(spark, tmp_path)
    for batch, times in enumerate([(-5_000, -4_000), (-3_000, -4_500), (100,)]):
        watched.add([Row("in:0", 2 * batch + n, Record(at, START)) for n, at in enumerate(times)])
    watched.run(ClockSettings(BOUND, (100,)))
    assert [watched.said[batch].watermark for batch in range(3)] == [-4_051, -3_051, 49]
    assert [watched.late[batch] for batch in range(3)] == [0, 1, 0]
    fired = [told.at for batch in range(3) for told in watched.told[batch] if told.what == "timer"]
    assert sorted(fired) == [-4_990, -3_990, -2_990]


def test_kafkas_columns_and_limit_are_found_in_the_stream(spark: SparkSession) -> None:
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", "nowhere:1")
        .option("subscribe", "a,b")
        .option("maxOffsetsPerTrigger", 70)
        .load()
    )
    how: dict[str, Any] = {"by": "who", "event_time": "at", "value": "value"}
    stream = keyed(records, **how).process(Watch())
    assert stream.clock == ClockSettings(0, (70,))
    assert keyed(records, max_offsets=9, **how).process(Watch()).clock.limits == (9,)

    class Two(KeyedProcess[Seen, Told]):
        order = arrival(commutes=True)
        inputs = {"left": Seen, "right": Seen}  # noqa: RUF012

        def process(self, event: Seen, ctx: Context) -> None: ...

    # Two streams of one source share its limit; those of two sources have their own.
    sides = {"left": "a", "right": "b"}
    parts = {side: keyed(records.filter(f"topic = '{topic}'"), **how) for side, topic in sides.items()}
    assert connect(**parts).process(Two()).clock.limits == (70,)
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", "nowhere:1")
    other = reader.option("subscribe", "c")
    apart = connect(left=parts["left"], right=keyed(other.load(), clock=False, **how)).process(Two()).clock
    assert (apart.limits, apart.clocks) == ((70, None), ((True,), (False,)))
    with pytest.raises(KeyingError, match="no input is a clock"):
        keyed(records, clock=False, **how).process(Watch())


def test_several_readers_in_one_dataframe_are_told_apart_by_their_topics(spark: SparkSession) -> None:
    def read(topics: str, limit: int | None, option: str = "subscribe") -> DataFrame:
        reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", "nowhere:1")
        reader = reader if limit is None else reader.option("maxOffsetsPerTrigger", limit)
        return reader.option(option, topics).load()

    def readers(df: DataFrame, **more: Any) -> tuple[tuple[int | None, ...], tuple[dict[str, int], ...]]:
        stream = keyed(df, by="who", event_time="at", value="value", **more)
        found = numbered([readers_of(df, stream.limit, "0")])
        assert stream.process(Watch()).clock.limits == found.limits
        return found.limits, found.of

    both = read("a,b", 70).unionByName(read("c", 9))
    assert readers(both) == ((70, 9), ({"a": 0, "b": 0, "c": 1, "": 0},))
    assert readers(both, max_offsets=5) == ((5,), ({"": 0},))
    assert readers(both, max_offsets={"a, b": 8, "c": 3}) == (
        (8, 3, None),
        ({"a": 0, "b": 0, "c": 1, "": 2},),
    )
    # Whose a row is cannot be known of a pattern, or of a topic that two read: the smallest counts for all.
    assert readers(both.unionByName(read("x.*", 4, "subscribePattern"))) == ((4,), ({"": 0},))
    assert readers(both.unionByName(read("a", None))) == ((9,), ({"": 0},))
    for wrong, message in (({"a": 1, "a,b": 2}, "names a twice"), ({"": 1}, "names no topic")):
        with pytest.raises(KeyingError, match=message):
            keyed(both, by="who", event_time="at", value="value", max_offsets=wrong).process(Watch())
