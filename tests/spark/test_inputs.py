"""Processes with several inputs on Spark: as in memory, through restarts."""

from __future__ import annotations

import base64
from collections import Counter
from typing import Any, ClassVar

import msgspec
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from millrace import Context, KeyedProcess, Timer, connect, keyed, value_state
from millrace.contracts.avro import AvroCodec
from millrace.contracts.registry import ConfluentRegistry
from millrace.dead_letters import DeadLetter
from millrace.host.memory import MemoryHost
from millrace.host.spark import KeyedStream, ProcessedStream
from millrace.topology import KeyingError
from tests.spark.conftest import Emitted, StreamFactory
from tests.unit.millrace.contracts.local_registry import local_registry

START = 1_700_000_000_000
SECOND = 1_000


class Reading(msgspec.Struct):
    machine: str
    at: int
    value: float


class Status(msgspec.Struct):
    unit: str
    since: int
    text: str


class Latest(KeyedProcess[Status | Reading, str]):
    """The status that held at each reading; a status at the same instant is in force."""

    order = "event_time"
    inputs: ClassVar = {"status": Status, "readings": Reading}
    status = value_state(str, default="unknown", ttl=3_600_000)

    def process(self, event: Any, ctx: Context) -> None:
        if ctx.input == "status":
            self.status.value = event.text
            return
        if event.value < 0:
            raise ValueError("negative")
        ctx.emit(f"{event.value:g} while {self.status.value}")
        ctx.timers.after(SECOND, "silent")

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        ctx.emit(f"silent while {self.status.value}")


class Last(KeyedProcess[Reading, str]):
    order = "event_time"

    def process(self, event: Reading, ctx: Context) -> None:
        ctx.emit(f"{event.value}")


class Note(msgspec.Struct):
    at: str
    since: int


class Noted(KeyedProcess[Reading | Note, str]):
    """What is a time in one input is a key in the other."""

    order = "event_time"
    inputs: ClassVar = {"readings": Reading, "notes": Note}

    def process(self, event: Any, ctx: Context) -> None:
        ctx.emit(ctx.input)


SCHEMA = "topic string, n bigint, value binary"


def reading(at: int, value: float, machine: str = "m1") -> tuple[str, Any]:
    return "readings", Reading(machine, START + at, value)


def status(at: int, text: str, unit: str = "m1") -> tuple[str, Any]:
    return "status", Status(unit, START + at, text)


BATCHES = [
    [reading(0, 1.0), status(0, "on"), reading(500, 2.0, "m2"), ("readings", b"no json")],
    [status(9_000, "off", "m2"), reading(8_000, -1.0), reading(8_500, 3.0)],
    [reading(30_000, 4.0), reading(30_000, 5.0, "m2"), status(2_000, "too late")],
    [reading(60_000, 6.0), status(60_000, "on", "m3")],
]


def joined() -> Any:
    def build(df: DataFrame) -> ProcessedStream:
        df = df.withColumn("id", F.concat_ws(":", "topic", F.lit("0"), "n"))
        of = {name: df.filter(F.col("topic") == name) for name in ("status", "readings")}
        return connect(
            readings=keyed(of["readings"], by="machine", event_time="at", value="value",
                           out_of_orderness=10 * SECOND, source_id="id"),
            status=keyed(of["status"], by="unit", event_time="since", value="value",
                         out_of_orderness=5 * SECOND, source_id="id"),
        ).process(Latest())  # fmt: skip

    return build


def one_scan() -> Any:
    """The same from one stream with both inputs, one of which is keyed by an expression."""

    def build(df: DataFrame) -> ProcessedStream:
        unit = F.get_json_object(F.col("value").cast("string"), "$.unit")
        return keyed(
            df.withColumn("id", F.concat_ws(":", "topic", F.lit("0"), "n")),
            tag="topic",
            by={"readings": "machine", "status": unit},
            event_time={"readings": "at", "status": "since"},
            value="value",
            out_of_orderness=10 * SECOND,
            source_id="id",
            record_key=F.col("topic").cast("binary"),
        ).process(Latest())

    return build


def in_memory() -> Counter[Any]:
    host = MemoryHost(Latest(), out_of_orderness_ms=10 * SECOND)
    emissions = []
    for batch in BATCHES:
        rows = []
        for name, event in batch:
            if isinstance(event, bytes):
                continue
            key = event.unit if name == "status" else event.machine
            rows.append((key, event.since if name == "status" else event.at, event, name))
        emissions += host.run_batch(rows)
    return counted(Emitted(*e[:5], msgspec.json.decode(e.payload)) for e in emissions)


def counted(emitted: Any) -> Counter[Any]:
    """Return what does not hang on where the events came from."""
    found: Counter[Any] = Counter()
    for e in emitted:
        payload = e.payload
        if e.output == "dead_letters":
            payload = (payload["reason"], payload["value"], payload["event_time_ms"])
        found[e.output, e.key, e.event_time, e.on_time, repr(payload)] += 1
    return found


#: A record of neither topic, whose time must move no watermark.
STRAY = msgspec.json.encode(Reading("m1", START + 10**9, 1.0))


@pytest.mark.parametrize("scan", [joined, one_scan])
def test_two_inputs_give_what_the_memory_host_gives(stream: StreamFactory, scan: Any) -> None:
    running = stream(SCHEMA, scan())
    n = 0
    for batch in BATCHES:
        rows = []
        for name, event in [*batch, ("stray", STRAY)]:
            raw = event if isinstance(event, bytes) else msgspec.json.encode(event)
            rows.append({"topic": name, "n": n, "value": base64.b64encode(raw).decode()})
            n += 1
        rows.append({"topic": "readings", "n": n, "value": None})
        n += 1
        running.add(rows)
        if batch is not BATCHES[0] and batch is not BATCHES[2]:
            running.run()  # with a restart in the middle

    found = counted(e for e in running.emitted if e.output != "dead_letters")
    expected = in_memory()
    letters = {entry: n for entry, n in expected.items() if entry[0] == "dead_letters"}
    assert found == expected - Counter(letters)
    assert running.late_drops == 0
    on_spark = [e.payload for e in running.emitted if e.output == "dead_letters"]
    strays = [("schema", STRAY)] * len(BATCHES) if scan is one_scan else []
    assert sorted((letter["reason"], base64.b64decode(letter["value"])) for letter in on_spark) == [
        *[("malformed", b"")] * len(BATCHES),
        ("malformed", b"no json"),
        ("process_error", msgspec.json.encode(Reading("m1", START + 8_000, -1.0))),
        *strays,
    ]
    assert running.output is not None
    contract = running.output.contract()
    if scan is one_scan:
        assert (contract["key"], contract["inputs"]) == (["(expression) = machine"], ["status", "readings"])
        assert {letter["topic"] for letter in on_spark} == {"readings", "stray"}
        for letter in on_spark:
            assert base64.b64decode(letter["kafka_key"]).decode() == letter["topic"]
    else:
        assert contract["key"] == ["unit = machine"]
        assert "inputs" not in contract


def test_columns_of_bounded_frames_are_joined_at_once(spark: Any) -> None:
    readings = spark.createDataFrame(
        [("m1", START + 1, 1.0), ("m1", START + 5, 2.0)], "machine string, at long, value double"
    )
    changes = spark.createDataFrame([("m1", START + 3, "on")], "unit string, since long, text string")
    made = connect(
        readings=keyed(readings, by="machine", event_time="at"),
        status=keyed(changes, by="unit", event_time="since"),
    ).process(Latest())

    assert sorted(row.value for row in made["main"].collect()) == [
        "1 while unknown", "2 while on", "silent while on",
    ]  # fmt: skip


def test_a_bounded_frame_brings_all_inputs_at_once(spark: Any) -> None:
    rows = [
        ("readings", Reading("m1", START + 1, 1.0)),
        ("readings", Reading("m1", START + 5, 2.0)),
        ("status", Status("m1", START + 3, "on")),
    ]
    records = spark.createDataFrame(
        [(name, msgspec.json.encode(e)) for name, e in rows], "topic string, value binary"
    )
    made = keyed(
        records, tag="topic", by={"readings": "machine", "status": "unit"},
        event_time={"readings": "at", "status": "since"}, value="value",
    ).process(Latest())  # fmt: skip

    assert sorted(row.value for row in made["main"].collect()) == [
        "1 while unknown", "2 while on", "silent while on",
    ]  # fmt: skip


def test_of_a_streams_inputs_one_is_avro_and_the_other_json(
    spark: Any,
) -> None:
    readings = [Reading("m1", START + 1, 1.0), Reading("m1", START + 5, 2.0)]
    with local_registry() as registry:
        codec = AvroCodec(Reading, ConfluentRegistry({"url": registry.url}), "readings-value")
        change = msgspec.json.encode(Status("m1", START + 3, "on"))
        broken = codec.encode(readings[0])[:-1]
        rows = [("readings", codec.encode(one)) for one in readings]
        rows += [("status", change), ("readings", broken), ("readings", msgspec.json.encode(readings[0]))]
        made = keyed(
            spark.createDataFrame(rows, "topic string, value binary"), tag="topic", value="value",
            by={"readings": "machine", "status": "unit"},
            event_time={"readings": "at", "status": "since"},
            format={"readings": "avro"}, registry=registry.url,
        ).process(Latest())  # fmt: skip
        found = made.rows(made.raw).collect()
    main = sorted(msgspec.json.decode(row.payload) for row in found if row.output == "main")
    assert main == ["1 while unknown", "2 while on", "silent while on"]
    letters = [msgspec.json.decode(r.payload, type=DeadLetter) for r in found if r.output == "dead_letters"]
    assert {(one.value, one.reason) for one in letters} == {
        (broken, "malformed"), (msgspec.json.encode(readings[0]), "malformed"),
    }  # fmt: skip
    assert all(one.error.startswith("CodecError: ") for one in letters)


def test_a_format_without_its_registry_or_values_is_refused(spark: Any) -> None:
    df = spark.createDataFrame([(b"{}",)], "value binary")
    with pytest.raises(KeyingError, match="are of `value`, the column"):
        keyed(df, by="machine", event_time="at", format="avro", registry="http://x")
    stream = keyed(df, by="machine", event_time="at", value="value", format="avro")
    with pytest.raises(KeyingError, match="Last's events: avro needs `registry`"):
        stream.process(Last())


def test_one_stream_with_all_inputs_must_fit_its_process(spark: Any) -> None:
    df = spark.createDataFrame([("readings", b"{}")], "topic string, value binary")
    by: dict[str, Any] = {"readings": "machine", "status": "unit"}
    times = {"readings": "at", "status": "since"}

    def stream(**changed: Any) -> KeyedStream:
        return keyed(df, **{"tag": "topic", "by": by, "event_time": times, "value": "value", **changed})

    with pytest.raises(KeyingError, match="`tag` and a key for each input in `by` go together"):
        stream(tag=None)
    with pytest.raises(KeyingError, match="`tag` and a key for each input in `by` go together"):
        stream(by="machine", event_time="at")
    with pytest.raises(KeyingError, match="needs `value`"):
        stream(value=None)
    with pytest.raises(KeyingError, match="keys of as many parts"):
        stream(by={"readings": "machine", "status": ["unit", "text"]})
    with pytest.raises(KeyingError, match="names no field of status"):
        stream(event_time={"readings": "at"})
    with pytest.raises(KeyingError, match="has the inputs status, readings; connected are readings"):
        stream(by={"readings": "machine"}).process(Latest())
    with pytest.raises(KeyingError, match=r"Latest.status's event type has no field at"):
        stream(event_time="at").process(Latest())
    # Where workers read the events, what is a time in one input may be a key in the other.
    noted = stream(by={"readings": "machine", "notes": "at"}, event_time={"readings": "at", "notes": "since"})
    noted.process(Noted())
    with pytest.raises(KeyingError, match="it brings all inputs of a process by itself"):
        connect(left=stream(), right=keyed(df, by="machine", event_time="at", value="value"))


def test_streams_that_do_not_fit_are_refused(spark: Any) -> None:
    df = spark.createDataFrame([("m1", START, 1.0)], "machine string, at long, value double")
    of = keyed(df, by="machine", event_time="at")

    with pytest.raises(KeyingError, match="takes two streams or more"):
        connect(readings=of)
    with pytest.raises(KeyingError, match="same number of key groups"):
        connect(readings=of, status=keyed(df, by="machine", event_time="at", key_groups=8))
    with pytest.raises(KeyingError, match="keys of as many fields"):
        connect(readings=of, status=keyed(df, by=["machine", "value"], event_time="at"))
    with pytest.raises(KeyingError, match="has the inputs status, readings; connected are readings, state"):
        connect(readings=of, state=of).process(Latest())
    with pytest.raises(KeyingError, match=r"Latest.status reads unit, since, text, which the stream"):
        connect(readings=of, status=of).process(Latest())
    with pytest.raises(KeyingError, match="give it all of them by connect"):
        of.process(Latest())
