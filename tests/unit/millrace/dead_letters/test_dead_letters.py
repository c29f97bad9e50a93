"""Dead letters: every reason is reached, and what Kafka knew of an event goes with it."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, ClassVar

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from msgspec import Meta

from millrace import BroadcastContext, Context, KeyedProcess, arrival, broadcast_state, value_state
from millrace.connectors.driver_writer import _add_columns
from millrace.connectors.records import dead_letter_record, is_dead_letters
from millrace.connectors.router import DeadLetterLimit, TooManyDeadLetters
from millrace.dead_letters import DeadLetter, Kept, kept_of, reason_of
from millrace.dead_letters.letters import DeadLetterTable
from millrace.host.chunks import CONTROL, NO_TIME, InputChunk, decode_input, decode_output
from millrace.host.intake import Brought, Intake, JsonEvents
from millrace.host.key_times import KeyFields
from millrace.host.memory import MemoryHost
from millrace.host.packing import Packer
from millrace.host.runner import Runner
from millrace.host.spark_records import TypedColumns
from millrace.host.spark_worker import BoundedGroups
from millrace.runtime.apps import app_version
from millrace.time.clock import ClockSettings, SourceReport
from tests.unit.millrace.dead_letters.cases import letter

START = 1_767_225_600_000
HEADERS = pa.struct(
    [
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("key", pa.binary()),
        ("timestamp", pa.int64()),
    ]
)


class Payment(msgspec.Struct, frozen=True):
    payment_id: Annotated[str, Meta(max_length=8)]
    card: str
    cents: Annotated[int, Meta(gt=0)]
    at: int


class Payments(KeyedProcess[Payment, str]):
    """Takes every payment once; 13 is more than it can bear."""

    order = arrival(commutes=True)
    seen = value_state(list[str], default_factory=list)

    def process(self, event: Payment, ctx: Context) -> None:
        if event.payment_id in self.seen.value:
            ctx.dead_letter("duplicate", f"{event.payment_id} has come before")
            return
        if event.cents == 13:
            raise ValueError("thirteen")
        self.seen.value = [*self.seen.value, event.payment_id]
        ctx.emit(event.payment_id)

    def on_late(self, event: Payment, ctx: Context) -> None:
        ctx.dead_letter("late", f"{ctx.watermark - event.at} ms behind")


@pytest.mark.parametrize(
    ("tp", "raw", "reason"),
    [
        (Annotated[int, Meta(ge=0)], b"-1", "range"),
        (Annotated[int, Meta(lt=5)], b"7", "range"),
        (Annotated[float, Meta(gt=0)], b"-1.5", "range"),
        (Annotated[float, Meta(le=-2.5)], b"1", "range"),
        (Annotated[int, Meta(multiple_of=5)], b"3", "range"),
        (Annotated[int, Meta(ge=0, le=9)], b"9" * 30, "range"),
        (Annotated[str, Meta(min_length=1)], b'""', "range"),
        (Annotated[list[int], Meta(max_length=1)], b"[1,2]", "range"),
        (float, b"1e999", "range"),
        (Annotated[str, Meta(pattern="^a$")], b'"b >= 3"', "schema"),
        (tuple[int, int], b"[1]", "schema"),
        (int, b"1.5", "schema"),
        (int, b'"1"', "schema"),
        (datetime, b'"2020-13-01T00:00:00Z"', "schema"),
        (Payment, b'{"card":"c"}', "schema"),
        (int, b"1,", "malformed"),
        (str, b'"\xff"', "malformed"),
        (list[Any], b"[" * 100_000, "malformed"),
    ],
)
def test_an_event_that_cannot_be_decoded_is_malformed_or_breaks_a_bound_or_another_rule(
    tp: Any, raw: bytes, reason: str
) -> None:
    with pytest.raises((msgspec.DecodeError, UnicodeDecodeError, RecursionError)) as found:
        msgspec.json.decode(raw, type=tp)
    assert reason_of(found.value) == reason


def test_what_was_kept_of_a_record_is_read_in_every_form_it_was_written_in() -> None:
    assert kept_of(None) == Kept()
    assert kept_of("no JSON") == Kept("no JSON")
    assert kept_of('{"some": "object"}') == Kept('{"some": "object"}')
    assert kept_of('[{"key":"a","value":"eA=="}]') == Kept('{"a":"x"}')
    assert kept_of("{}") == Kept()
    assert kept_of('{"headers":[],"timestamp":7}') == Kept(timestamp_ms=7)
    assert kept_of('{"key":"eQ==","headers":[{"key":"a"}]}') == Kept('{"a":""}', b"y")


def run_on_workers(values: list[bytes], records: list[Any], **columns: list[Any]) -> list[DeadLetter]:
    """Pack events as in front of a shuffle, run them as behind it, and return the dead letters."""
    packer = Packer(
        (KeyFields((("card", str),), ("at", int)),), labels=(7,), future_ms=60_000, keep_all_headers=False
    )
    count = len(values)
    arrays = {
        "_value": pa.array(values, pa.binary()),
        "_source_id": pa.array([f"payments:0:{n}" for n in range(count)]),
        "_headers": pa.array(records, HEADERS),
        "_arrived": pa.array([float(START)] * count),
        **{name: pa.array(column) for name, column in columns.items()},
    }
    batch = pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))
    rows = pa.Table.from_batches(packer(iter([batch]))).select(["_group", "_chunk"])
    groups = BoundedGroups(Payments(), JsonEvents(Payment, None), speaker=7, bound_ms=0)
    found = groups((pa.scalar(7),), rows).to_pylist()
    letters = [payload for row in found if row["output"] == "dead_letters"
               for payload in decode_output(row["chunk"]).payloads]  # fmt: skip
    return msgspec.json.decode(b"[" + b",".join(letters) + b"]", type=list[DeadLetter])


def test_every_reason_is_reached_and_unreadable_events_keep_key_time_and_headers() -> None:
    good = {"payment_id": "p", "card": "c", "cents": 1, "at": START}

    def raw(**change: Any) -> bytes:
        return msgspec.json.encode({name: v for name, v in {**good, **change}.items() if v is not None})

    cases = {
        "malformed": raw()[:-4],
        "schema": raw(cents="1"),
        "range": raw(cents=0),
        "unknown_version": raw(payment_id="p2"),
        "no_event_time": raw(at=2**62),
        "future": raw(at=START + 3_600_000),
        "process_error": raw(payment_id="p3", cents=13),
        "duplicate": raw(),
    }
    values = [raw(), *cases.values()]
    names = ["first", *cases]
    records = [
        {"headers": [{"key": "ce_id", "value": n.encode()}, {"key": "schema_version", "value": b"9"}],
         "key": b"k-" + n.encode(), "timestamp": START + place}
        for place, n in enumerate(names)
    ]  # fmt: skip
    unknown = [n == "unknown_version" for n in names]
    letters = run_on_workers(values, records, _unknown_version=unknown)
    assert {letter.reason: letter.value for letter in letters} == cases
    assert {letter.reason: letter.offset for letter in letters} == {n: names.index(n) for n in cases}
    for found in letters:
        if found.reason in ("malformed", "unknown_version", "no_event_time", "future"):
            place = names.index(found.reason)
            assert found.headers == f'{{"ce_id":"{found.reason}","schema_version":"9"}}'
            assert (found.kafka_key, found.timestamp_ms) == (b"k-" + found.reason.encode(), START + place)
        else:  # its key and time could be read: nothing was carried along for it
            assert (found.headers, found.kafka_key, found.timestamp_ms) == (None, None, None)
    by_reason = {found.reason: found for found in letters}
    assert by_reason["unknown_version"].error == "schema_version 9 is none that is read here"
    assert by_reason["range"].error == "ValidationError: Expected `int` >= 1 - at `$.cents`"


def test_an_event_of_an_unknown_version_moves_no_clock() -> None:
    class Told:
        def now(self) -> ClockSettings:
            return ClockSettings(bound_ms=0)

    packer = Packer((KeyFields((("card", str),), ("at", int)),), labels=(7,), clock=Told())
    batch = pa.RecordBatch.from_arrays(
        [pa.array([b'{"card":"c","at":5}', b'{"card":"c","at":9}']), pa.array([False, True])],
        names=["_value", "_unknown_version"],
    )
    (out,) = packer(iter([batch]))
    (chunk,) = map(decode_input, out["_chunk"].to_pylist())
    assert chunk.reports == [SourceReport(0, "", None, None, 2, True, 5, None)]


def test_a_process_may_send_late_events_to_the_dead_letters() -> None:
    host = MemoryHost(Payments())
    host.run_batch([("c", START, Payment("p1", "c", 5, START))])
    (late,) = host.run_batch([("c", START - 10, Payment("p2", "c", 5, START - 10))])
    found = msgspec.json.decode(late.payload, type=DeadLetter)
    assert (late.output, found.reason, found.error) == ("dead_letters", "late", "9 ms behind")


# -- what Kafka and tables get -----------------------------------------------------------------------


def test_a_dead_letter_in_kafka_has_its_key_and_says_who_wrote_it() -> None:
    found = DeadLetter(
        "schema", "decode", "Payments", "no", key="1:c", topic="payments", partition=3, offset=4,
        value=b"{}", headers='{"a":"b"}', kafka_key=b"k", timestamp_ms=12,
    )  # fmt: skip
    stamp = {"dlq.app": "fraud", "dlq.version": "1.0"}
    key, value, headers = dead_letter_record(found, b"c", "id-1", stamp)
    assert (key, value) == (b"k", b"{}")
    assert dict(headers) == {
        "event_id": b"id-1", "dlq.reason": b"schema", "dlq.stage": b"decode", "dlq.process": b"Payments",
        "dlq.error": b"no", "dlq.headers": b'{"a":"b"}', "dlq.timestamp": b"12",
        "dlq.source": b"payments:3:4", "dlq.app": b"fraud", "dlq.version": b"1.0",
    }  # fmt: skip
    bare = DeadLetter("schema", "decode", "Payments", "no")
    key, value, headers = dead_letter_record(bare, b"c", None, {})
    assert (key, value) == (b"c", None)
    assert [name for name, _ in headers] == [
        "dlq.reason", "dlq.stage", "dlq.process", "dlq.error", "dlq.source",
    ]  # fmt: skip


def test_dead_letters_of_every_link_of_a_chain_are_dead_letters() -> None:
    assert [is_dead_letters(o) for o in ("dead_letters", "Cards.dead_letters", "late", "Cards.late")] == [
        True, True, False, False,
    ]  # fmt: skip
    limit = DeadLetterLimit(ratio=0.5, from_records=100)
    limit.check(1, {"main": 60, "Cards.dead_letters": 30, "dead_letters": 30})
    with pytest.raises(TooManyDeadLetters, match="61 of 121 records"):
        limit.check(2, {"main": 60, "Cards.dead_letters": 31, "dead_letters": 30})


def test_the_version_of_an_app_is_that_of_its_package() -> None:
    assert app_version("fraud") != "unknown"
    assert app_version("no-such-app") == "unknown"


def old_table(path: Path) -> None:
    """Write a table as a version did that kept neither key nor timestamp."""
    schema = TypedColumns(DeadLetter).schema
    old = pa.schema([field for field in schema if field.name not in ("kafka_key", "timestamp_ms")])
    write_deltalake(str(path), pa.Table.from_pylist([letter(1)], schema=old))


def test_a_table_of_an_earlier_version_is_read_and_written_on(tmp_path: Path) -> None:
    path = tmp_path / "dead_letters"
    old_table(path)
    (before,) = DeadLetterTable(str(path)).read()
    assert (before.kafka_key, before.timestamp_ms, before.key) == (None, None, "5:key-1")
    table, schema = DeltaTable(path), TypedColumns(DeadLetter).schema
    _add_columns(table, schema)
    version = table.version()
    _add_columns(table, schema)
    assert table.version() == version
    rows = pa.Table.from_pylist([letter(2, kafka_key=b"k", timestamp_ms=9)], schema=schema)
    write_deltalake(table, rows, mode="append")
    kept = {(one.kafka_key, one.timestamp_ms) for one in DeadLetterTable(str(path)).read()}
    assert kept == {(None, None), (b"k", 9)}


class Ruled(KeyedProcess[int | str, int]):
    """Has two inputs, so that its events are led by a byte; control events are not."""

    order = arrival(commutes=True)
    inputs: ClassVar = {"a": int, "b": str}
    control_type: ClassVar[Any] = int
    limit = broadcast_state(str, int)

    def process(self, event: int | str, ctx: Context) -> None:
        ctx.emit(1)

    def process_broadcast(self, control: int, ctx: BroadcastContext) -> None:
        raise ValueError(control)


@pytest.mark.parametrize("raw", [b"\x01{}", b"\x08", b"\x02[1", b"{}", b"7"])
def test_the_dead_letter_of_a_control_event_keeps_all_its_bytes(raw: bytes) -> None:
    runner = Runner(Ruled(), encode=msgspec.json.encode)
    events = JsonEvents(Ruled.event_type, int, inputs=Ruled.inputs)
    intake, brought = Intake(Ruled(), events, runner, forwards=False), Brought(speaks=True)
    intake.read(InputChunk([None], [NO_TIME], bytes([CONTROL]), ["c:0:5"], None, [raw]), brought)
    runner.controls.take(brought.controls, None, 0, report=True)
    (letter,) = [msgspec.json.decode(e.payload, type=DeadLetter) for e in runner.emissions]
    assert (letter.stage, letter.value, letter.offset) == ("broadcast", raw, 5)


@pytest.mark.parametrize(
    ("value", "headers", "key", "whole", "kept_key"),
    [
        (b"x" * 800_000, None, b"k", True, b"k"),
        (b"x" * 900_000, None, b"k", False, b"k"),
        (b"x", "h" * 950_000, b"k", False, b"k"),
        (b"x", None, b"k" * 950_000, False, b""),
        (None, None, b"k", True, b"k"),
    ],
)
def test_a_letter_that_its_topic_would_not_take_leaves_its_bytes_in_the_table(
    value: bytes | None, headers: str | None, key: bytes, whole: bool, kept_key: bytes
) -> None:
    made = DeadLetter("schema", "decode", "Taps", "wrong", value=value, headers=headers, kafka_key=key)
    sent_key, sent, sent_headers = dead_letter_record(made, b"c", "id-1", {"dlq.app": "taps"})
    named = dict(sent_headers)
    assert (sent_key, sent) == (kept_key, value if whole else None)
    assert ("dlq.left_out" in named) == (not whole)
    assert whole or named["dlq.left_out"] == str(len(value or b"")).encode()
    assert {"dlq.reason", "dlq.stage", "dlq.app", "event_id"} <= named.keys()
    size = len(sent_key) + len(sent or b"") + sum(len(n) + len(v or b"") for n, v in sent_headers)
    assert size < 1_000_000


class Tells(KeyedProcess[Payment, str]):
    """Puts every payment aside, in ways that its context does not want."""

    order = arrival(commutes=True)
    seen = value_state(int, default=0)

    def process(self, event: Payment, ctx: Context) -> None:
        self.seen.value += 1
        given: Any = {
            1: ("fraudulent", "no such reason"),
            2: ("conflict", None),
            3: (["conflict"], "a list"),
            4: ("conflict", "ä" * 2_000_000),
        }[event.cents]
        ctx.dead_letter(*given)


@pytest.mark.parametrize("cents", [1, 2, 3, 4])
def test_whatever_a_process_puts_aside_can_be_read_and_sent(cents: int) -> None:
    """Else the batch could not be written, now and after each restart."""
    host = MemoryHost(Tells())
    (made,) = host.run_batch([("a", START, Payment("p1", "a", cents, START))])
    assert made.output == "dead_letters"
    (found,) = TypedColumns(DeadLetter).records([made.payload])
    assert found.reason == ("conflict" if cents == 4 else "process_error")
    _, value, headers = dead_letter_record(found, "a", "x", {})
    assert value is not None
    assert sum(len(text) for _, text in headers if isinstance(text, bytes)) < 3_000
    assert bool(host.store.cells) is (cents == 4), "what the others left is taken back"
