"""One meaning, two hosts: the same process object in Spark and in memory gives the same outputs."""

from __future__ import annotations

import base64
import random
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from millrace import (
    BroadcastContext,
    Context,
    KeyedProcess,
    Timer,
    arrival,
    broadcast_state,
    keyed,
    map_state,
    side_output,
    value_state,
)
from millrace.connectors.kafka import with_source_id
from millrace.host.chunks import decode_input
from millrace.host.groups import encode_key, group_labels, key_group, spark_hash
from millrace.host.intake import control_order
from millrace.host.memory import MemoryHost
from millrace.host.runner import Emission, Row
from millrace.host.spark import ProcessedStream
from millrace.host.spark_input import KAFKA_PLACE, EventsOf, ProcessInput
from millrace.runtime.contract import ContractMismatch, check_contract
from millrace.state.cells import CLOCK_PAGE, SCHEMA_PAGE
from millrace.topology import KeyingError
from tests.spark.conftest import Emitted, StreamFactory

START = 1_700_000_000_000
SECOND = 1_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
BOUND = 10 * SECOND


class Order(msgspec.Struct):
    user: str
    shop: str
    at: int
    what: str
    n: int = 0


class Limit(msgspec.Struct):
    name: str
    above: int


class Orders(KeyedProcess[Order, list[Any]]):
    """Uses all there is: values, a map, times to live, every kind of timer, controls, failures."""

    order = arrival(in_order_per_key=True)
    control_type = Limit
    count = value_state(int, default=0)
    last = value_state(str, ttl=30 * SECOND)
    left = value_state(int, default=0)
    blob = value_state(str, ttl=MINUTE)
    seen = map_state(str, int, ttl=20 * SECOND)
    limits = broadcast_state(str, int)
    alerts = side_output(str)

    def process(self, event: Order, ctx: Context) -> None:
        if event.what == "nothing":
            return
        if event.what == "blob":
            self.blob.value = "x" * event.n
            ctx.emit(["blob", event.n])
            return
        self.count.value += 1
        self.seen.put(event.what, event.n)
        for name, above in self.limits.items():
            if event.n > above:
                ctx.output(self.alerts, f"{name}: {event.n} of {ctx.key[0]}")
        ctx.emit([event.what, event.n, self.count.value, self.last.value, list(self.seen.items())])
        self.last.value = event.what
        ctx.timers.after(5 * MINUTE, "end")
        if event.what == "at":
            ctx.timers.at(event.n, "at")
        elif event.what == "after":
            ctx.timers.after(event.n, f"a{event.n % 3}")
        elif event.what == "key":
            ctx.timers.after(event.n, "key", on_key_time=True)
        elif event.what == "chain":
            self.left.value = event.n
            ctx.timers.after(7 * SECOND, "chain")
        elif event.what == "boom":
            self.seen.clear()
            raise ValueError("boom")

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        ctx.emit(["timer", timer.name, timer.at, self.count.value, self.last.value, list(self.seen.items())])
        if timer.name == "end":
            self.count.clear()
        elif timer.name == "a2":
            raise ValueError("a2")
        elif timer.name == "chain" and self.left.value > 0:
            self.left.value -= 1
            # Of an odd number, the next is due at the very instant of this one.
            ctx.timers.at(timer.at + (self.left.value % 2) * 7 * SECOND, "chain")

    def process_broadcast(self, control: Limit, ctx: BroadcastContext) -> None:
        self.limits.put(control.name, control.above)
        if control.above == 13:
            raise ValueError("13")


class Batch:
    """The rows of a micro-batch for both hosts, and the bad ones that only Spark can meet."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self.rows: list[dict[str, Any]] = []
        self.events: list[tuple[tuple[str, str], int, Order]] = []
        self.controls: list[Limit] = []

    def event(self, user: str, at: int, what: str, n: int = 0) -> None:
        event = Order(user, "s", at, what, n)
        self.events.append(((user, "s"), at, event))
        self._row(msgspec.json.encode(event), "")

    def control(self, name: str, above: int) -> None:
        self.controls.append(Limit(name, above))
        self._row(msgspec.json.encode(self.controls[-1]), "", control=True)

    def bad(self, raw: bytes | None, number: int) -> None:
        self._row(raw, f"bad:0:{number}")

    def number(self) -> None:
        """Name the rows as the memory host names its own: controls first, then events."""
        for row in sorted(self.rows, key=lambda row: not row["control"]):
            if not row["source"]:
                topic = "control" if row["control"] else "memory"
                row["source"] = f"{topic}:0:{self._sources.take()}"

    def _row(self, raw: bytes | None, source: str, *, control: bool = False) -> None:
        value = None if raw is None else base64.b64encode(raw).decode()
        arrived = datetime.fromtimestamp(START / 1000, UTC).isoformat()
        self.rows.append({"value": value, "source": source, "control": control, "arrived": arrived})


class Sources:
    def __init__(self) -> None:
        self._next = 0

    def take(self) -> int:
        self._next += 1
        return self._next - 1


SCHEMA = "value binary, source string, control boolean, arrived timestamp"


def orders(df: DataFrame) -> ProcessedStream:
    return keyed(
        df,
        by=("user", "shop"),
        event_time="at",
        value="value",
        out_of_orderness=BOUND,
        source_id="source",
        control=F.col("control"),
        arrived_at="arrived",
        max_future_skew="2 days",
        clock_skew="off",
        key_groups=3,
    ).process(Orders())


Bad = dict[int, tuple[str, bytes | None, str]]


def bad_rows(batch: Batch) -> Bad:
    """Add rows that cannot be handled; return offset → name, bytes and the reason of its dead letter."""
    good = msgspec.to_builtins(Order("bad", "s", START, "visit"))

    def raw(**change: Any) -> bytes:
        return msgspec.json.encode({k: v for k, v in {**good, **change}.items() if v is not ...})

    rows: list[tuple[str, bytes | None, str]] = [
        ("text", b"not json", "malformed"),
        ("cut", raw()[:-5], "malformed"),
        ("empty", b"", "malformed"),
        ("null", None, "malformed"),
        ("bytes", b"\xff\xfe\x00", "malformed"),
        ("utf8", raw(what="@").replace(b"@", b"\xff"), "malformed"),
        ("deep", b'{"x":' + b"[" * 100_000, "malformed"),
        ("array", b"[1]", "schema"),
        ("missing", raw(what=...), "schema"),
        ("type", raw(n="many"), "schema"),
        ("nokey", raw(user=...), "schema"),
        ("notime", raw(at=...), "schema"),
        ("float", raw(at=1.5), "schema"),
        ("future", raw(at=START + 49 * HOUR), "future"),
        ("huge", raw(at=2**62), "no_event_time"),
        ("tiny", raw(at=-(2**62)), "no_event_time"),
    ]
    for number, (_, content, _) in enumerate(rows):
        batch.bad(content, number)
    return {number: (name, content, reason) for number, (name, content, reason) in enumerate(rows)}


def random_batches(seed: int, count: int) -> list[Batch]:
    """Batches with disorder, late events, timers at and around the watermark, controls, failures."""
    rng = random.Random(seed)
    sources = Sources()
    head, batches = START, []
    for number in range(count):
        batch = Batch(sources)
        watermark = head - BOUND - 1 if number else START
        for _ in range(25):
            head += rng.choice([0, 0, 1, 100, SECOND, 2 * SECOND])
            at = head - rng.choice([0, 0, 0, 1, SECOND, 5 * SECOND, BOUND, BOUND + 1, BOUND + 2, HOUR])
            what = rng.choice(["visit", "visit", "at", "after", "key", "chain", "boom", "late?"])
            n = {
                "at": watermark + rng.choice([-HOUR, -1, 0, 1, 5 * SECOND]),
                "after": rng.choice([0, 1, 2, 3 * SECOND, 8 * SECOND, MINUTE + 1]),
                "key": rng.choice([0, 1, SECOND, 30 * SECOND]),
                "chain": rng.randint(1, 6),
            }.get(what, rng.randint(0, 100))
            batch.event(rng.choice("uvwxyz") + rng.choice(["", "é"]), at, what, n)
        if number == 1:
            for i in range(60):  # enough for the groups to be split into pages
                batch.event(f"blob-{i}", head, "blob", 3_000)
        if number in (2, 4):
            batch.control("low", 20 * number)
            batch.control("broken", 13)
        batches.append(batch)
    return batches


def in_memory(batches: list[Batch]) -> list[Emission]:
    host = MemoryHost(Orders(), out_of_orderness_ms=BOUND)
    emissions: list[Emission] = []
    for batch in batches:
        emissions += host.broadcast(*batch.controls) if batch.controls else []
        emissions += host.run_batch(batch.events)
    assert not host.store.cells
    return emissions


def comparable(emissions: list[Any]) -> Counter[str]:
    """What both hosts must agree on; a digest hashes line numbers of the host's own frames."""
    found = []
    for e in emissions:
        payload = e.payload if not isinstance(e.payload, bytes) else msgspec.json.decode(e.payload)
        if e.output == "dead_letters":
            payload = {k: v for k, v in payload.items() if k != "error_digest"}
        found.append(repr((e.output, e.event_id, e.key, e.event_time, e.on_time, payload)))
    return Counter(found)


def test_spark_gives_what_memory_gives_over_restarts_and_ends_empty(stream: StreamFactory) -> None:
    batches = random_batches(seed=7, count=6)
    reasons = bad_rows(batches[1])
    for far in (HOUR, 2 * HOUR):  # the first lets everything end, the second shows that it has
        batches.append(Batch(batches[0]._sources))
        batches[-1].event("nobody", START + 24 * far, "nothing")
    for batch in batches:
        batch.number()
    spark_stream = stream(SCHEMA, orders)
    for part in (batches[:2], batches[2:3], batches[3:]):  # each in a query of its own
        for batch in part:
            rows = list(batch.rows)
            random.Random(1).shuffle(rows)
            spark_stream.add(rows)
        spark_stream.run()
        if part is not None and len(part) == 2:
            assert len(spark_stream.state("pages")) > 2, "the test does not reach several pages"
    emitted = spark_stream.emitted
    bad = [e for e in emitted if e.output == "dead_letters" and e.payload["stage"] in ("decode", "time")]
    check_bad(bad, reasons)
    rest = [e for e in emitted if e not in bad]
    assert comparable(rest) == comparable(in_memory(batches))
    kinds = Counter(e.output for e in rest)
    assert kinds["late"] > 10
    assert kinds["alerts"] > 10
    assert kinds["dead_letters"] > 10
    assert {e.payload[1] for e in rest if e.output == "main" and e.payload[0] == "timer"} >= {
        "at", "a0", "a1", "key", "chain", "end",
    }  # fmt: skip
    assert spark_stream.late_drops == 0
    # What may stay of a group is a header without entries, timers or pages, which knows its broadcast state.
    for header in spark_stream.headers():
        assert (len(header.pages), header.inline) == (1, {})
        assert header.broadcast
    # Besides them there is page 0, what the entries are, for as long as there is a header, and the clock.
    assert {row["user_map_key"]["page"] for row in spark_stream.state("pages")} <= {SCHEMA_PAGE, CLOCK_PAGE}
    (clock,) = spark_stream.clocks()
    assert clock.watermark == clock.furthest - BOUND - 1


def check_bad(letters: list[Emitted], bad: Bad) -> None:
    reasons = {e.payload["offset"]: e.payload["reason"] for e in letters}
    assert {name: reasons.get(number) for number, (name, _, _) in bad.items()} == {
        name: reason for name, _, reason in bad.values()
    }
    assert len(letters) == len({e.event_id for e in letters}) == len(bad)
    for e in letters:
        assert (e.payload["process"], e.payload["topic"], e.payload["partition"]) == ("Orders", "bad", 0)
        assert base64.b64decode(e.payload["value"]) == (bad[e.payload["offset"]][1] or b"")


# -- columns ---------------------------------------------------------------------------------------


class Wrapped(msgspec.Struct):
    """A record whose only field has the name that scalars get."""

    value: int


class Address(msgspec.Struct):
    city: str
    codes: list[int]


class Visit(msgspec.Struct):
    user: str | None
    at: int | None
    big: int | None = None
    amount: float | None = None
    tags: list[str] = []
    home: Address | None = None


class Sum(msgspec.Struct):
    user: str
    big: int | None
    amount: float | None
    tags: list[str]
    city: str | None
    codes: list[int]
    when: datetime


class Columns(KeyedProcess[Visit, Sum]):
    order = arrival(commutes=True)
    total = value_state(int, default=0)
    wrapped = side_output(Wrapped)
    numbers = side_output(int)
    texts = side_output(str)

    def process(self, event: Visit, ctx: Context) -> None:
        if event.big == -1:
            raise ValueError("minus one")
        self.total.value += 1
        city, codes = (None, []) if event.home is None else (event.home.city, event.home.codes)
        when = datetime.fromtimestamp(ctx.event_time / 1000, UTC)
        ctx.emit(Sum(ctx.key, event.big, event.amount, event.tags, city, codes, when))
        ctx.output(self.wrapped, Wrapped(self.total.value))
        ctx.output(self.numbers, self.total.value)
        ctx.output(self.texts, 'say "so"')


COLUMNS = (
    "user string, at timestamp, big bigint, amount double, tags array<string>, "
    "home struct<city: string, codes: array<bigint>>, id string"
)
VIEWS = ("main", "wrapped", "numbers", "texts", "late", "dead_letters")
BIG = 2**53 + 1


def iso(at: int) -> str:
    return datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="milliseconds")


def test_columns_as_events_and_outputs_as_typed_columns(stream: StreamFactory) -> None:
    spark_stream = stream(
        COLUMNS,
        lambda df: keyed(df, by="user", event_time="at", out_of_orderness="1 second", source_id="id").process(
            Columns()
        ),
    )
    spark_stream.views = VIEWS
    full = {"big": BIG, "amount": 0.1, "tags": ["x"], "home": {"city": "Bern", "codes": [BIG, 2]}}
    rows = [
        {"user": "a", "at": iso(START + 1), **full, "id": "r1"},
        {"user": "a", "at": iso(START + 2), "big": None, "amount": None, "tags": [], "id": "r2"},
        {"user": "b", "at": iso(START + 3), **full, "id": "r3"},
        {"user": None, "at": iso(START + 4), **full, "id": "r4"},
        {"user": "a", "at": None, **full, "id": "r5"},
        {"user": "a", "at": iso(START + 6), **full, "tags": None, "id": "r6"},
        {"user": "a", "at": iso(START + 7), **full, "big": -1, "id": "r7"},
        {"user": "c", "at": iso(START + 9), **full, "amount": "NaN", "id": "r10"},
    ]
    spark_stream.add(rows)
    spark_stream.add([{"user": "a", "at": iso(START + HOUR), "tags": [], "id": "r8"}])
    spark_stream.add([{"user": "a", "at": iso(START + 8), **full, "id": "r9"}])
    spark_stream.run()
    typed = spark_stream.typed
    got = sorted(typed["main"], key=lambda r: r._event_time)
    assert [(r.user, r.big, r.amount, r.tags, r.city, r.codes) for r in got] == [
        ("a", BIG, 0.1, ["x"], "Bern", [BIG, 2]),
        ("a", None, None, [], None, []),
        ("b", BIG, 0.1, ["x"], "Bern", [BIG, 2]),
        ("c", BIG, None, ["x"], "Bern", [BIG, 2]),  # JSON has no NaN
        ("a", None, None, [], None, []),
    ]
    times = [START + 1, START + 2, START + 3, START + 9, START + HOUR]
    assert [r.when for r in got] == [r._event_time for r in got] == list(map(naive, times))
    assert all(r._event_id and r._on_time for r in got)
    assert sorted(r.value for r in typed["wrapped"]) == [1, 1, 1, 2, 3]
    assert sorted(r.value for r in typed["numbers"]) == [1, 1, 1, 2, 3]
    assert {r.value for r in typed["texts"]} == {'say "so"'}
    (late,) = typed["late"]
    assert (late.event.user, late.event.big, late.event.at) == ("a", BIG, START + 8)
    assert late.lateness_ms == HOUR - SECOND - 1 - 8
    assert late._on_time is False
    check_letters(typed["dead_letters"], full)
    assert spark_stream.late_drops == 0


def naive(at: int) -> datetime:
    return datetime.fromtimestamp(at / 1000, UTC).replace(tzinfo=None)


def check_letters(letters: list[Any], full: dict[str, Any]) -> None:
    by_error = {letter.error: letter for letter in letters}
    assert len(by_error) == len(letters) == 4
    assert by_error["the event has no key"].reason == "schema"
    assert by_error["the event has no event time"].reason == "no_event_time"
    assert by_error["ValidationError: Expected `array`, got `null` - at `$.tags`"].reason == "schema"
    failed = by_error["ValueError: minus one"]
    assert (failed.reason, failed.stage, failed.key, failed.event_time_ms) == (
        "process_error",
        "process",
        "1:a",
        START + 7,
    )
    for letter in letters:  # columns have no original bytes: all of the row as JSON stands for them
        kept = msgspec.json.decode(bytes(letter.value))
        assert (kept["home"], kept["amount"]) == (full["home"], 0.1)


class Pair(msgspec.Struct):
    user: str
    shop: str
    at: int


# -- the plan --------------------------------------------------------------------------------------


def test_spark_finds_key_text_group_and_partition_as_python_does(spark: SparkSession) -> None:
    parts = [("a", "bc"), ("ab", "c"), ("", ""), ("né", "日本"), ("💥", "x" * 300), ("1:a", "2:b")]
    parts += [(f"user-{i}", str(i % 7)) for i in range(200)]
    df = spark.createDataFrame(
        [(user, shop, START) for user, shop in parts], "user string, shop string, at bigint"
    )

    class Pairs(KeyedProcess[Pair, str]):
        order = arrival(commutes=True)

        def process(self, event: Pair, ctx: Context) -> None: ...

    for groups in (1, 7, 64):
        stream = keyed(df, by=("user", "shop"), event_time="at", key_groups=groups)
        arriving = ProcessInput(stream, (EventsOf(Pairs.name, Pairs.event_type, stream.by[""]),))
        routed = arriving.packed(None)
        of_group = [(r._group, key) for r in routed.collect() for key in decode_input(r._chunk).keys]
        labels = group_labels(groups)
        keys = [encode_key(p) for p in parts]
        assert sorted(of_group) == sorted((labels[key_group(key, groups)], key) for key in keys)
    for partitions in (2, 5):
        placed = routed.repartition(partitions, "_group").select("_chunk", F.spark_partition_id().alias("p"))
        for r in placed.collect():
            assert {key_group(key, 64) % partitions for key in decode_input(r._chunk).keys} == {r.p}


def test_spark_hashes_integers_as_python_does(spark: SparkSession) -> None:
    values = [0, 1, 42, -1, 2**31 - 1, -(2**31), *group_labels(64)]
    df = spark.createDataFrame([(v,) for v in values], "v int").select(F.hash("v").alias("h"))
    assert [r.h for r in df.collect()] == spark_hash(np.array(values, dtype=np.int64)).tolist()


def test_every_group_applies_control_events_in_one_order_whatever_their_source() -> None:
    causes = ["c:0:10", "c:0:9", "c:1:1", "b:0:3", None, "hand-made", "c:0:x"]
    rows = [Row(0, str(i).encode(), cause, None) for i, cause in enumerate(causes)]
    wanted = sorted(rows, key=control_order)
    for seed in range(20):
        random.Random(seed).shuffle(rows)
        assert sorted(rows, key=control_order) == wanted
    of_c = [row.cause for row in wanted if row.cause in ("c:0:9", "c:0:10", "c:1:1")]
    assert of_c == ["c:0:9", "c:0:10", "c:1:1"]


class OneOrder(KeyedProcess[Pair, str]):
    name = "Swapped"
    order = arrival(commutes=True)
    spent = value_state(float, default=0.0)
    earned = value_state(float, default=0.0)

    def process(self, event: Pair, ctx: Context) -> None: ...


class OtherType(KeyedProcess[Pair, str]):
    name = "Swapped"
    order = arrival(commutes=True)
    spent = value_state(str, default="")
    earned = value_state(float, default=0.0)

    def process(self, event: Pair, ctx: Context) -> None: ...


@pytest.mark.parametrize(
    ("process", "by", "difference"),
    [(OtherType(), ("user",), "spent"), (OneOrder(), ("user", "shop"), "key was")],
)
def test_state_is_not_read_as_another_state_or_of_another_key(
    spark: SparkSession, tmp_path: Path, process: KeyedProcess[Any, Any], by: tuple[str, ...], difference: str
) -> None:
    df = spark.createDataFrame([], "user string, shop string, at bigint")
    check_contract(tmp_path, contract(df, OneOrder(), ("user",)))
    check_contract(tmp_path, contract(df, OneOrder(), ("user",)))
    with pytest.raises(ContractMismatch, match=difference):
        check_contract(tmp_path, contract(df, process, by))


def contract(df: DataFrame, process: KeyedProcess[Any, Any], by: tuple[str, ...]) -> dict[str, Any]:
    return keyed(df, by=by, event_time="at").process(process).contract()


# -- mistakes are refused before anything starts -----------------------------------------------------


class Plain(KeyedProcess[Pair, str]):
    order = arrival(commutes=True)

    def process(self, event: Pair, ctx: Context) -> None: ...


class NoStruct(KeyedProcess[str, str]):
    order = arrival(commutes=True)

    def process(self, event: str, ctx: Context) -> None: ...


@pytest.mark.parametrize(
    ("arguments", "process", "message"),
    [
        ({"by": "nobody", "event_time": "at"}, Plain(), "no column nobody"),
        ({"by": "user", "event_time": "when"}, Plain(), "no column when"),
        ({"by": [], "event_time": "at"}, Plain(), "no key"),
        ({"by": "user", "event_time": "at", "key_groups": 0}, Plain(), "at least 1"),
        ({"by": "user", "event_time": "at", "max_future_skew": 1}, Plain(), "arrived_at"),
        ({"by": "user", "event_time": "at", "control": "any"}, Plain(), "need `value`"),
        ({"by": "user", "event_time": "user"}, Plain(), "timestamp"),
        ({"by": "user", "event_time": "at", "value": "value"}, NoStruct(), "msgspec struct"),
        ({"by": "user", "event_time": "at"}, NoStruct(), "msgspec struct"),
        ({"by": "zzz", "event_time": "at", "value": "value"}, Plain(), "no field zzz"),
        ({"by": "user", "event_time": "at", "source_id": KAFKA_PLACE}, Plain(), "here are others"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(
    spark: SparkSession, arguments: dict[str, Any], process: KeyedProcess[Any, Any], message: str
) -> None:
    df = spark.createDataFrame([], "user string, shop string, at bigint, value binary")
    with pytest.raises(KeyingError, match=message):
        keyed(df, **arguments).process(process)


def test_an_output_that_does_not_exist_is_refused(spark: SparkSession) -> None:
    df = spark.createDataFrame([], "user string, shop string, at bigint")
    stream = keyed(df, by="user", event_time="at").process(Plain())
    with pytest.raises(KeyingError, match=r"no output 'alerts'; it has main, late, dead_letters"):
        stream["alerts"]


class Passed(KeyedProcess[Order, Order]):
    order = arrival(commutes=True)

    def process(self, event: Order, ctx: Context) -> None:
        ctx.emit(event)


def test_records_of_kafka_have_the_identity_of_their_place_with_and_without_a_column_for_it(
    spark: SparkSession,
) -> None:
    """Records of two topics and three partitions, two of which cannot be read."""
    values = [msgspec.json.encode(Order(f"u{n % 5}", "s", START + n, "", n)) for n in range(40)]
    values[7] = values[23] = b"no order"
    when = datetime.fromtimestamp(START / 1_000, UTC)
    rows = [(bytearray(value), f"in-{n % 2}", n % 3, n // 2, when) for n, value in enumerate(values)]
    records = spark.createDataFrame(
        rows, "value binary, topic string, partition int, offset bigint, timestamp timestamp"
    ).repartition(3, "partition")
    how: dict[str, Any] = {"by": "user", "event_time": "at", "value": "value"}
    by_place = keyed(records, source_id=KAFKA_PLACE, **how).process(Passed())
    by_column = keyed(with_source_id(records), source_id="source_id", **how).process(Passed())
    found, wanted = ([tuple(row) for row in s.rows(s.raw).collect()] for s in (by_place, by_column))
    assert sorted(map(repr, found)) == sorted(map(repr, wanted))
    assert len({row[1] for row in found}) == len(found) > 30
    letters = [msgspec.json.decode(bytes(row[5])) for row in found if row[0] == "dead_letters"]
    assert {(letter["topic"], letter["partition"], letter["offset"]) for letter in letters} == {
        ("in-1", 1, 3), ("in-1", 2, 11),
    }  # fmt: skip


def test_a_source_of_ones_own_is_not_known_by_kafkas_place(spark: SparkSession) -> None:
    schema = "value binary, topic string, partition int, offset bigint, timestamp timestamp"
    with pytest.raises(KeyingError, match="here are others"):
        keyed(
            spark.createDataFrame([], schema), by="user", event_time="at", value="value",
            source_id=KAFKA_PLACE, source="topic",
        )  # fmt: skip
