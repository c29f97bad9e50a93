"""Packing in front of the shuffle: keys, times, groups and kinds of rows, what was read of each source."""

from __future__ import annotations

import random
import sys
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import ModuleType
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millrace.dead_letters import kept_of
from millrace.host import packing
from millrace.host.chunks import (
    AHEAD,
    CONTROL,
    DATA,
    FORWARDED,
    FUTURE,
    NO_TIME,
    UNKNOWN_VERSION,
    WATERMARK,
    InputChunk,
    decode_input,
    decode_status,
    encode_columns,
    encode_emissions,
    encode_forwarded,
    encode_reports,
    encode_status,
    join_output,
    status_of,
)
from millrace.host.groups import encode_key, group_labels, key_group
from millrace.host.key_times import FIRST_MS, LAST_MS, KeyFields, KeyTimes, decode_all, read_inputs
from millrace.host.packing import Going, Packer, Repacker
from millrace.host.rows import Emission, Emissions
from millrace.host.system import SYSTEM_PREFIX
from millrace.privacy.masking import Masker
from millrace.time.clock import ClockSettings, ClockStatus, SourceReport, plausible
from tests.cases import case_count

LABELS = group_labels(4)


def arrow(values: Sequence[Any], **columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array(values, pa.binary()), *columns.values()], names=["_value", *columns]
    )


def unpacked(batch: pa.RecordBatch) -> list[tuple[int, InputChunk]]:
    assert batch.schema.names == ["_group", "_chunk"]
    return [(row["_group"], decode_input(row["_chunk"])) for row in batch.to_pylist()]


def packed(values: list[Any], packer: Packer, **columns: pa.Array) -> list[tuple[int, InputChunk]]:
    """Pack one Arrow batch: label and chunk of every row that comes out."""
    return [row for out in packer(iter([arrow(values, **columns)])) for row in unpacked(out)]


def event(user: Any, at: Any) -> bytes:
    return msgspec.json.encode({"user": user, "at": at, "more": [1, {"x": "\n"}]})


PACKER = Packer((KeyFields((("user", str),), ("at", int)),), labels=LABELS)


@settings(deadline=None)
@given(st.lists(st.tuples(st.text(max_size=5), st.integers(-(10**12), 10**12)), min_size=1, max_size=60))
def test_every_event_reaches_the_group_of_its_key_in_its_order(events: list[tuple[str, int]]) -> None:
    values = [event(user, at) for user, at in events]
    reached: dict[int, list[bytes]] = {}
    for label, chunk in packed(values, PACKER):
        assert chunk.reports is None  # of a bounded input nobody wants to know
        reached[label] = chunk.values
        assert chunk.keys == [encode_key((msgspec.json.decode(v)["user"],)) for v in chunk.values]
        assert chunk.times == [msgspec.json.decode(v)["at"] for v in chunk.values]
    expected: dict[int, list[bytes]] = {}
    for (user, _), value in zip(events, values, strict=True):
        expected.setdefault(LABELS[key_group(encode_key((user,)), 4)], []).append(value)
    assert reached == expected


@pytest.mark.parametrize(
    ("raw", "key", "time"),
    [
        (b"not json", None, NO_TIME),
        (b"", None, NO_TIME),
        (None, None, NO_TIME),
        (b"\xff", None, NO_TIME),
        (b"[" * 100_000, None, NO_TIME),
        (event(None, 5), None, 5),
        (event("a", None), "1:a", NO_TIME),
        (event(7, 5), None, NO_TIME),
        (event("a", 2**62), "1:a", NO_TIME),
        (event("é", 5), "2:é", 5),
    ],
)
def test_what_cannot_be_read_travels_with_what_is_known_of_it(
    raw: bytes | None, key: str | None, time: int
) -> None:
    found = {
        v: (k, t)
        for _, chunk in packed([event("z", 1), raw, event("z", 2)], PACKER)
        for k, t, v in zip(chunk.keys, chunk.times, chunk.values, strict=True)
    }
    assert found == {event("z", 1): ("1:z", 1), raw or b"": (key, time), event("z", 2): ("1:z", 2)}


def test_lines_within_an_event_do_not_shift_the_events_after_it() -> None:
    pretty = b'{"user": "a",\n"at": 1}'
    two = b'{"user":"b","at":2}\n{"user":"c","at":3}'
    chunks = packed([pretty, two, b"", event("d", 4)], PACKER)
    known = {v: (k, t) for _, c in chunks for k, t, v in zip(c.keys, c.times, c.values, strict=True)}
    assert known == {
        pretty: ("1:a", 1), two: (None, NO_TIME), b"": (None, NO_TIME), event("d", 4): ("1:d", 4),
    }  # fmt: skip


def test_events_cannot_be_decoded_together_that_hide_each_other() -> None:
    decoder = msgspec.json.Decoder(dict[str, int])
    assert decode_all(decoder, [b'{"a":1}', b'{"b":2}']) == [{"a": 1}, {"b": 2}]
    assert decode_all(decoder, [b'{"a":1}\n{"b":2}', b""]) is None
    assert decode_all(decoder, [b"", b'{"b":2}']) is None
    assert decode_all(decoder, [b'{"a":', b"1}"]) is None


def test_control_rows_go_to_every_group() -> None:
    values = [event("a", 5), b'{"limit": 1}', event("b", 6)]
    chunks = packed(values, PACKER, _control=pa.array([False, True, False]))
    assert sorted(label for label, _ in chunks) == sorted(LABELS)
    for _, chunk in chunks:
        kinds = chunk.kinds or bytes(len(chunk.values))
        controls = [v for v, k in zip(chunk.values, kinds, strict=True) if k == CONTROL]
        assert controls == [b'{"limit": 1}']


def test_an_event_far_ahead_of_its_arrival_is_marked() -> None:
    packer = Packer((KeyFields((("user", str),), ("at", int)),), labels=(7,), future_ms=10)
    arrived = pa.array([100.0, 100.0, float("inf")])
    ((_, chunk),) = packed([event("a", 110), event("a", 111), event("a", 120)], packer, _arrived=arrived)
    assert chunk.kinds == bytes([DATA, FUTURE, DATA])


def test_times_of_events_that_are_columns_come_beside_them() -> None:
    """What no calendar has is no time."""
    given = [5, None, -62_135_596_800_001, 253_402_300_799_999, 253_402_300_800_000]
    columns = {"_time": pa.array(given, pa.int64()), "_key0": pa.array(list("abcde"))}
    packer = Packer((KeyFields((("_key0", None),), ("", int)),), labels=(7,))
    ((_, chunk),) = packed([b"{}"] * 5, packer, **columns)
    assert chunk.keys == [f"1:{key}" for key in "abcde"]
    assert chunk.times == [5, NO_TIME, NO_TIME, 253_402_300_799_999, NO_TIME]


@pytest.mark.parametrize(("keep_all", "expected"), [(True, ["[1]", "text"]), (False, [None, "text"])])
def test_headers_are_kept_of_all_rows_or_of_unreadable_ones(
    keep_all: bool, expected: list[str | None]
) -> None:
    packer = Packer((KeyFields((("user", str),), ("at", int)),), labels=(7,), keep_all_headers=keep_all)
    ((_, chunk),) = packed([event("a", 1), b"no"], packer, _headers=pa.array(["[1]", "text"]))
    assert chunk.headers == expected


def test_headers_of_kafka_become_text_as_spark_writes_them() -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    headers = pa.array([[{"key": "id", "value": b"x"}], None], kind)
    packer = Packer((KeyFields((("user", str),), ("at", int)),), labels=(7,))
    ((_, chunk),) = packed([b"no", b"nor this"], packer, _headers=headers)
    assert chunk.headers == ['[{"key":"id","value":"eA=="}]', None]


CARD = b"4111111111111111"


class ByDigits:
    """Opens what replaces card numbers by their last digits."""

    def open(self) -> Masker:
        return Masker(lambda number: f"card-{number[-4:]}")


def test_what_is_masked_is_in_no_chunk_neither_in_headers_nor_in_keys() -> None:
    values = [b'{"user":"%s","at":5}' % CARD, b'{"user":"%s' % CARD, b'{"kind":"%s"}' % CARD]
    records = [
        {"headers": [{"key": "x", "value": b"4111 1111 1111 1111"}], "key": CARD, "timestamp": 5}
    ] * len(values)
    packer = replace(PACKER, masking=ByDigits())
    found = packed(values, packer, _headers=pa.array(records), _control=pa.array([False, False, True]))
    chunks = [chunk for _, chunk in found]
    assert {key for chunk in chunks for key in chunk.keys} == {"9:card-1111", None}
    seen = {v for chunk in chunks for v in chunk.values}
    assert seen == {b'{"user":"card-1111","at":5}', b'{"user":"card-1111', b'{"kind":"card-1111"}'}
    kept = [kept_of(header) for chunk in chunks for header in chunk.headers or []]
    assert kept
    assert {(one.headers, one.key) for one in kept} == {('{"x":"card-1111"}', b"card-1111")}


def test_messages_of_the_engine_are_not_masked_and_what_only_looks_like_one_is() -> None:
    message = SYSTEM_PREFIX + b'"drain","incarnation":"%s"}' % CARD
    packer = replace(PACKER, masking=ByDigits())
    found = packed([message, message], packer, _control=pa.array([True, False]))
    seen = {v for _, chunk in found for v in chunk.values}
    assert seen == {message, message.replace(CARD, b"card-1111")}


def test_times_may_be_dates_and_keys_of_several_parts() -> None:
    packer = Packer((KeyFields((("a", str), ("b", int), ("c", bool)), ("t", datetime)),), labels=LABELS)
    when = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
    value = msgspec.json.encode({"a": "x", "b": -5, "c": True, "t": when})
    naive = b'{"a":"x","b":-5,"c":true,"t":"2026-01-02T03:04:05.678"}'
    ((label, chunk),) = packed([value, naive], packer)
    assert chunk.keys == ["1:x2:-54:true"] * 2
    assert chunk.times == [round(when.timestamp() * 1000)] * 2
    assert label == LABELS[key_group("1:x2:-54:true", 4)]


def test_the_event_time_may_be_the_key_too() -> None:
    packer = Packer((KeyFields((("at", int),), ("at", int)),), labels=LABELS)
    ((_, chunk),) = packed([event("a", 5)], packer)
    assert (chunk.keys, chunk.times) == (["1:5"], [5])


def test_a_worker_takes_what_it_loads_later_out_of_its_collections_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    frozen: list[str] = []
    monkeypatch.setattr(packing.gc, "freeze", lambda: frozen.append("all"))
    monkeypatch.setattr(packing, "_frozen_modules", 0)
    packing.keep_out_of_collection()
    packing.keep_out_of_collection()
    assert len(frozen) == 1
    monkeypatch.setitem(sys.modules, "a_process_of_an_app", ModuleType("a_process_of_an_app"))
    packing.keep_out_of_collection()
    packing.keep_out_of_collection()
    assert len(frozen) == 2


def test_an_empty_batch_gives_nothing() -> None:
    assert packed([], PACKER) == []


def test_emissions_come_out_of_their_chunks_as_they_went_in() -> None:
    emissions = [
        Emission("main", "i1", "1:a", 1, True, b"{}"),
        Emission("late", None, "1:b", -2, False, b'"x"'),
        Emission("main", "i2", "1:c", 3, False, b"[1]"),
    ]
    chunks = encode_emissions(emissions)
    assert [(output, n) for output, n, _ in chunks] == [("main", 2), ("late", 1)]
    found = [
        Emission(output, *row[:3], row[3] == 1, row[4])
        for output, _, chunk in chunks
        for row in zip(*join_output([chunk]), strict=True)
    ]
    assert found == [emissions[0], emissions[2], emissions[1]]
    both = join_output([chunks[0][2], chunks[1][2]])
    assert both.payloads == [b"{}", b"[1]", b'"x"']


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from([0, 1, 2, None]), st.integers(0, 9), st.booleans()), min_size=1))
def test_rows_of_several_inputs_are_found_as_by_an_input_at_a_time(rows: list[tuple[Any, int, bool]]) -> None:
    """Each input has its own key and time, the third one a key beside it; some rows are control events."""
    inputs = (
        KeyFields((("user", str),), ("at", int), b"\x01"),
        KeyFields((("name", int),), ("since", datetime), b"\x02"),
        KeyFields((("_key0", None),), ("at", int), b"\x03"),
    )
    values, given, controls, expected = [], [], [], []
    for place, n, control in rows:
        at = datetime.fromtimestamp(n, UTC)
        value = [event(f"u{n}", n), msgspec.json.encode({"name": n, "since": at}), event("x", n)][place or 0]
        is_control = control and place is None
        values.append(value)
        given.append(f"k{n}" if place == 2 and n else None)
        controls.append(is_control)
        keys = [f"u{n}", str(n), f"k{n}" if n else None]
        key = None if place is None or keys[place] is None else encode_key((keys[place],))
        time = NO_TIME if place is None else n * 1000 if place == 1 else n
        mark = b"" if is_control else bytes([0 if place is None else place + 1])
        kind = CONTROL if is_control else DATA
        expected += [(key, time, kind, mark + value)] * (len(LABELS) if is_control else 1)
    columns = {
        "_input": pa.array([place for place, _, _ in rows], pa.int32()),
        "_key0": pa.array(given, pa.string()),
        "_control": pa.array(controls),
    }
    found: list[Any] = []
    for label, chunk in packed(values, Packer(inputs, LABELS), **columns):
        kinds = chunk.kinds or bytes(len(chunk.values))
        found += zip(chunk.keys, chunk.times, kinds, chunk.values, strict=True)
        groups = {LABELS[key_group(key, 4)] for key in chunk.keys if key is not None}
        assert groups <= {label}
    assert sorted(found, key=repr) == sorted(expected, key=repr)


# -- what a task has read of its sources ---------------------------------------------------------------

UNKNOWN_ARRIVAL = float("inf")


@dataclass(frozen=True)
class Told:
    """What the clock goes by, as a task learns it."""

    settings: ClockSettings

    def now(self) -> ClockSettings:
        return self.settings


def reporting(
    *,
    skew: int | None = 0,
    clocks: tuple[bool, ...] = (True,),
    future_ms: int | None = None,
    labels: tuple[int, ...] = LABELS,
) -> Packer:
    """A packer of the events of so many inputs as are told to be clocks or not."""
    marks = [b""] if len(clocks) == 1 else [bytes([n]) for n in range(1, len(clocks) + 1)]
    return Packer(
        tuple(KeyFields((("user", str),), ("at", int), mark) for mark in marks),
        labels,
        future_ms=future_ms,
        clock=Told(ClockSettings(bound_ms=0, skews=(skew,), clocks=(clocks,))),
    )


def reports_of(packer: Packer, *batches: pa.RecordBatch) -> list[SourceReport]:
    """What the groups are told of one task: all the same, each once, with the last that the task gives."""
    outs = [unpacked(out) for out in packer(iter(batches))]
    if not outs:
        return []
    *earlier, last = outs
    assert all(chunk.reports is None for out in earlier for _, chunk in out)
    assert sorted(label for label, _ in last) == sorted(packer.labels)
    told = [chunk.reports for _, chunk in last]
    assert all(reports == told[0] for reports in told)
    assert told[0] is not None
    assert len({(r.reader, r.source) for r in told[0]}) == len(told[0])
    return sorted(told[0], key=lambda r: r.source)


def place(topics: Sequence[str | None], partitions: Sequence[int | None], offsets: Sequence[int]) -> Any:
    return {
        "_source": pa.array(topics, pa.string()),
        "_partition": pa.array(partitions, pa.int32()),
        "_offset": pa.array(offsets, pa.int64()),
    }


def test_every_group_is_told_what_a_task_has_read_with_its_rows_or_without() -> None:
    """Rows in `a`'s group only; the others get a chunk that says nothing else."""
    (last,) = reporting()(iter([arrow([event("a", 5), event("a", 3)])]))
    report = SourceReport(0, "", None, None, 2, True, 5, None)
    own = LABELS[key_group("1:a", 4)]
    found = dict(unpacked(last))
    assert sorted(found) == sorted(LABELS)
    assert found.pop(own) == InputChunk(
        ["1:a"] * 2, [5, 3], None, None, None, [event("a", 5), event("a", 3)], None, [report]
    )
    assert set(map(tuple, map(chunk_without_reports, found.values()))) == {((), (), None, None, None, ())}
    assert all(chunk.reports == [report] for chunk in found.values())
    assert decode_input(encode_reports([report])) in found.values()


def chunk_without_reports(chunk: InputChunk) -> tuple[Any, ...]:
    columns = (chunk.keys, chunk.times, chunk.kinds, chunk.causes, chunk.headers, chunk.values)
    return tuple(None if c is None else tuple(c) for c in columns)


def test_a_task_without_rows_tells_nothing() -> None:
    packer = reporting()
    assert list(packer(iter([]))) == []
    assert list(packer(iter([arrow([]), arrow([])]))) == []


def test_arrow_batches_without_rows_take_nothing_from_what_is_told() -> None:
    batches = [arrow([]), arrow([event("a", 1)]), arrow([]), arrow([event("b", 9)]), arrow([])]
    assert reports_of(reporting(), *batches) == [SourceReport(0, "", None, None, 2, True, 9, None)]
    assert len(list(reporting()(iter(batches)))) == 2  # as many as had rows: no batch for the reports alone


def test_offsets_are_the_first_and_the_last_whatever_lies_between() -> None:
    """Offsets of a compacted topic, or with markers of transactions between them."""
    batch = arrow([event("a", n) for n in (4, 2, 3)], **place(["in"] * 3, [0] * 3, [12, 40, 17]))
    assert reports_of(reporting(), batch) == [SourceReport(0, "in:0", 12, 40, 3, True, 4, None)]


def test_sources_in_one_arrow_batch_and_in_several_are_told_apart_and_together() -> None:
    one = arrow(
        [event("a", 10), event("b", 99), event("c", 12), event("d", 7)],
        **place(["in", "in", "other", "in"], [0, 1, 0, 0], [5, 70, 5, 6]),
        _arrived=pa.array([20.0, 98.0, 30.0, UNKNOWN_ARRIVAL]),
    )
    two = arrow([event("e", 11)], **place(["in"], [0], [8]), _arrived=pa.array([25.0]))
    three = arrow([event("f", 1)], **place(["in"], [1], [69]), _arrived=pa.array([97.0]))
    assert reports_of(reporting(), one, two, three) == [
        SourceReport(0, "in:0", 5, 8, 3, True, 11, 25),
        SourceReport(0, "in:1", 69, 70, 2, True, 98, 98),
        SourceReport(0, "other:0", 5, 5, 1, True, 12, 30),
    ]


def test_a_source_is_called_what_its_columns_say() -> None:
    rows = [event("a", 1), event("b", 2), event("c", 3)]
    named = pa.array(["x", "x", None], pa.string())
    assert [(r.source, r.rows) for r in reports_of(reporting(), arrow(rows, _source=named))] == [
        ("", 1),
        ("x", 2),
    ]
    nameless = pa.array([None] * 3, pa.string())
    assert [r.source for r in reports_of(reporting(), arrow(rows, _source=nameless))] == [""]
    halves = place(["x", None, "x"], [1, 1, None], [0, 1, 2])
    assert [r.source for r in reports_of(reporting(), arrow(rows, **halves))] == [":1", "x:", "x:1"]


def test_rows_of_a_source_without_offsets_are_counted() -> None:
    batches = [arrow([event("a", 1)] * n, _source=pa.array(["x"] * n)) for n in (3, 4)]
    assert reports_of(reporting(), *batches) == [SourceReport(0, "x", None, None, 7, True, 1, None)]


def test_control_rows_are_told_and_are_no_clock() -> None:
    """They count for whether a batch is full; neither their time nor their arrival says anything."""
    batch = arrow(
        [b'{"user":"a","at":900}', b'{"$millrace":"idle","at":800}'],
        **place(["control", "control"], [0, 0], [3, 4]),
        _control=pa.array([True, True]),
        _arrived=pa.array([50.0, 60.0]),
    )
    assert reports_of(reporting(), batch) == [SourceReport(0, "control:0", 3, 4, 2, False, None, None)]


def test_a_control_row_among_events_of_a_source_changes_only_its_offsets() -> None:
    batch = arrow(
        [event("a", 7), b'{"user":"a","at":900}', event("a", 6)],
        **place(["in"] * 3, [0] * 3, [3, 9, 4]),
        _control=pa.array([False, True, False]),
        _arrived=pa.array([10.0, 99.0, 11.0]),
    )
    assert reports_of(reporting(), batch) == [SourceReport(0, "in:0", 3, 9, 3, True, 7, 11)]


def test_a_source_of_which_nothing_can_be_read_has_no_time_and_holds_back_all_the_same() -> None:
    batch = arrow([b"no", None], **place(["in"] * 2, [0] * 2, [3, 4]), _arrived=pa.array([10.0, 12.0]))
    assert reports_of(reporting(), batch) == [SourceReport(0, "in:0", 3, 4, 2, True, None, 12)]


def test_an_event_too_far_ahead_moves_no_time_and_one_within_is_taken_for_its_arrival() -> None:
    rows = [event("a", 999), event("a", 111), event("a", 90)]
    arrived = pa.array([100.0, 100.0, 101.0])
    told = reports_of(reporting(future_ms=10), arrow(rows, _arrived=arrived))
    assert told == [SourceReport(0, "", None, None, 3, True, 90, 101)]
    (within,) = reports_of(reporting(future_ms=11), arrow(rows, _arrived=arrived))
    assert (within.newest, within.arrival) == (100, 101)


def test_events_of_a_version_that_is_not_known_have_no_time() -> None:
    batch = arrow(
        [event("a", 90), event("a", 5)],
        _unknown_version=pa.array([True, False]),
        _arrived=pa.array([100.0, 99.0]),
    )
    assert reports_of(reporting(), batch) == [SourceReport(0, "", None, None, 2, True, 5, 100)]
    assert UNKNOWN_VERSION in {k for _, c in packed_rows(batch) for k in c.kinds or b""}


def packed_rows(batch: pa.RecordBatch) -> Iterable[tuple[int, InputChunk]]:
    return [row for out in reporting()(iter([batch])) for row in unpacked(out)]


def test_inputs_that_are_no_clocks_move_no_time_and_hold_none_back() -> None:
    columns = place(["labels", "in", "labels"], [0, 0, 0], [1, 2, 3])
    batch = arrow(
        [event("a", 70), event("a", 50), event("a", 60)],
        **columns,
        _input=pa.array([1, 0, 1], pa.int32()),
        _arrived=pa.array([80.0, 55.0, 81.0]),
    )
    assert reports_of(reporting(clocks=(True, False)), batch) == [
        SourceReport(0, "in:0", 2, 2, 1, True, 50, 55),
        SourceReport(0, "labels:0", 1, 3, 2, False, None, None),
    ]
    alone = arrow([event("a", 70)], _arrived=pa.array([80.0]))
    assert reports_of(reporting(clocks=(False,)), alone) == [
        SourceReport(0, "", None, None, 1, False, None, None)
    ]


@pytest.mark.parametrize(
    ("skew", "newest"), [(0, 100), (7, 107), (-20, 80), (None, 500), (1_000, 500)], ids=str
)
def test_how_far_a_fast_clock_may_take_time_with_it(skew: int | None, newest: int) -> None:
    batch = arrow([event("a", 500), event("b", 30)], _arrived=pa.array([100.0, 100.0]))
    (report,) = reports_of(reporting(skew=skew), batch)
    assert (report.newest, report.arrival) == (newest, 100)


@pytest.mark.parametrize("arrived", [UNKNOWN_ARRIVAL, None])
@pytest.mark.parametrize("skew", [0, -20, 7, None])
def test_an_event_that_does_not_say_when_it_came_is_taken_at_its_word(
    arrived: float | None, skew: int | None
) -> None:
    batch = arrow([event("a", 500)], _arrived=pa.array([arrived], pa.float64()))
    packer = reporting(skew=skew, future_ms=1)
    assert reports_of(packer, batch) == [SourceReport(0, "", None, None, 1, True, 500, None)]
    last_of_all = arrow([event("a", 253_402_300_799_999)], _arrived=pa.array([arrived], pa.float64()))
    assert reports_of(packer, last_of_all)[0].newest == 253_402_300_799_999


def test_times_before_1970_are_times() -> None:
    batch = arrow(
        [event("a", -5), event("a", -62_135_596_800_000)], _arrived=pa.array([UNKNOWN_ARRIVAL, 9.0])
    )
    assert reports_of(reporting(), batch) == [SourceReport(0, "", None, None, 2, True, -5, 9)]


def test_each_connected_stream_goes_by_its_own_skew_and_clocks() -> None:
    settings = ClockSettings(
        bound_ms=0, limits=(None, 10), skews=(0, 3, None), clocks=((True,), (True,), (False,))
    )
    batch = arrow([event("a", 500)], _arrived=pa.array([100.0]))
    told = [
        Packer(PACKER.inputs, LABELS, clock=Told(settings), place=at, readers={"": reader})
        for at, reader in ((0, 0), (1, 1), (2, 1))
    ]
    assert [reports_of(packer, batch) for packer in told] == [
        [SourceReport(0, "", None, None, 1, True, 100, 100)],
        [SourceReport(1, "", None, None, 1, True, 103, 100)],
        [SourceReport(1, "", None, None, 1, False, None, None)],
    ]


@dataclass(frozen=True)
class Record:
    """A row of the property test; ``at`` is ``None`` where it cannot be read."""

    source: str | None
    offset: int
    at: int | None
    arrived: float | None
    of: int | None
    kind: int

    def value(self) -> bytes:
        return b"no" if self.at is None else event(f"u{self.offset % 5}", self.at)


RECORDS = st.builds(
    Record,
    st.sampled_from(["x", "x", "y", "z", None]),
    st.integers(0, 30),
    st.sampled_from([None, -50, 0, 1, 80, 120, 121, 140]) | st.integers(-200, 300),
    st.sampled_from([None, UNKNOWN_ARRIVAL, 1.0, 60.0, 100.0, 130.0]),
    st.sampled_from([0, 0, 1, None]),
    st.sampled_from([DATA, DATA, DATA, CONTROL, UNKNOWN_VERSION]),
)


def batch_of(records: Sequence[Record]) -> pa.RecordBatch:
    return arrow(
        [r.value() for r in records],
        _source=pa.array([r.source for r in records], pa.string()),
        _offset=pa.array([r.offset for r in records], pa.int64()),
        _arrived=pa.array([r.arrived for r in records], pa.float64()),
        _input=pa.array([None if r.kind == CONTROL else r.of for r in records], pa.int32()),
        _control=pa.array([r.kind == CONTROL for r in records]),
        _unknown_version=pa.array([r.kind == UNKNOWN_VERSION for r in records]),
    )


def expected_report(
    source: str, records: list[Record], clocks: tuple[bool, ...], skew: int | None, future_ms: int | None
) -> SourceReport:
    """The same by the definition, a row at a time."""
    newest: list[int] = []
    arrivals: list[int] = []
    is_clock = False
    for r in records:
        if r.kind == CONTROL or r.of is None or not clocks[r.of]:
            continue
        is_clock = True
        came = None if r.arrived is None or r.arrived == UNKNOWN_ARRIVAL else int(r.arrived)
        arrivals += [] if came is None else [came]
        if r.kind == UNKNOWN_VERSION or r.at is None:
            continue
        if came is not None and future_ms is not None and r.at > came + future_ms:
            continue
        newest.append(plausible(r.at, came, skew))
    offsets = sorted(r.offset for r in records)
    return SourceReport(
        0,
        source,
        offsets[0],
        offsets[-1],
        len(records),
        is_clock,
        max(newest, default=None),
        max(arrivals, default=None),
    )


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.lists(RECORDS, max_size=12), max_size=4),
    st.sampled_from([None, 0, -20, 15]),
    st.sampled_from([None, 0, 20]),
    st.sampled_from([(True, True), (True, False), (False, True), (False, False)]),
)
def test_reports_say_of_each_source_what_its_rows_say_one_by_one(
    cuts: list[list[Record]], skew: int | None, future_ms: int | None, clocks: tuple[bool, ...]
) -> None:
    """Several sources over several Arrow batches, rows of all kinds, in any cut."""
    packer = reporting(skew=skew, clocks=clocks, future_ms=future_ms)
    by_source: dict[str, list[Record]] = {}
    for record in (r for cut in cuts for r in cut):
        by_source.setdefault(record.source or "", []).append(record)
    expected = [
        expected_report(source, records, clocks, skew, future_ms)
        for source, records in sorted(by_source.items())
    ]
    assert reports_of(packer, *map(batch_of, cuts)) == expected
    together = [r for cut in cuts for r in cut]
    random.Random(len(together)).shuffle(together)
    assert reports_of(packer, batch_of(together)) == expected


# -- behind another process ----------------------------------------------------------------------------


def test_every_group_behind_a_process_is_told_how_far_its_clock_is() -> None:
    status = ClockStatus(5, 9, 12, 11, True, "in:3")
    told = encode_status(status)
    assert status_of(told) == status
    control = encode_forwarded([(b'{"limit":1}', "c:0:1", None, NO_TIME)])
    ((_, _, chunk),) = encode_emissions([Emission("main", "i1", "1:z", 7, True, event("a", 7))])
    columns = {
        "output": pa.array([WATERMARK, "main", FORWARDED]),
        "records": pa.array([0, 1, 1], pa.int64()),
        "chunk": pa.array([told, chunk, control], pa.binary()),
    }
    repack = Repacker((Going("main", (("user", str),)),), LABELS, {"main": "main"})
    (out,) = repack(iter([pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))]))
    kinds: dict[int, list[int]] = {label: [] for label in LABELS}
    for row in out.to_pylist():
        if row["_passes"] is None:
            part = decode_input(row["_chunk"])
            kinds[row["_group"]] += part.kinds or bytes(len(part.values))
            assert part.reports is None
            if part.kinds == bytes([AHEAD]):
                assert decode_status(part.values[0]) == status
    own = LABELS[key_group("1:a", 4)]
    assert {label: sorted(found) for label, found in kinds.items()} == {
        label: sorted([AHEAD, CONTROL, *([DATA] if label == own else [])]) for label in LABELS
    }


def test_an_output_goes_to_all_who_take_it_and_passes_if_it_is_wanted() -> None:
    ((_, count, chunk),) = encode_emissions([Emission("main", "i1", "1:z", 7, True, event("a", 7))])
    columns = {
        "output": pa.array(["main"]),
        "records": pa.array([count], pa.int64()),
        "chunk": pa.array([chunk], pa.binary()),
    }
    takes = (Going("main", (("user", str),), b"\x01"), Going("main", (("at", int),), b"\x02"))
    repack = Repacker(takes, LABELS, {"main": "First.main"})
    (out,) = repack(iter([pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))]))
    found = []
    for row in out.to_pylist():
        if row["_passes"] is None:
            part = decode_input(row["_chunk"])
            found += list(zip(part.keys, part.values, strict=True))
    assert sorted(found) == [("1:7", b"\x02" + event("a", 7)), ("1:a", b"\x01" + event("a", 7))]
    assert [row["_passes"] for row in out.to_pylist() if row["_passes"]] == ["First.main"]


# -- keys and times -----------------------------------------------------------------------------------


NUMBERED = st.one_of(
    st.builds(
        lambda k, t: msgspec.json.encode({"k": k, "t": t}),
        st.sampled_from(["a", "b", "ä", None]),
        st.none() | st.integers(0, 9) | st.sampled_from([-(2**62), 2**62, FIRST_MS, LAST_MS, LAST_MS + 1]),
    ),
    st.sampled_from([b"{}", b"{", b"", b'{"k":"a"}', b'{"k":1,"t":2}']),
)


@given(st.lists(st.tuples(NUMBERED, st.sampled_from([0, 0, 0, 1, None])), max_size=8), st.booleans())
@example([(b'{"k":"a","t":1}', 0)] * 3, True)
@example([(b'{"k":"a","t":1}', None)] * 3, True)
def test_key_time_and_group_are_those_that_each_event_has_by_itself(
    rows: list[tuple[bytes, int | None]], twice: bool
) -> None:
    """Batches are read in one go where nothing in them is odd; an event by itself tells what is right."""

    def readers() -> list[KeyTimes]:
        return [KeyTimes((("k", str),), ("t", int), 7), KeyTimes((("t", int),), ("t", int), 7)]

    def alone(raw: bytes, place: int | None) -> tuple[str | None, int, int]:
        own = zlib.crc32(raw) % 7
        if place is None:
            return None, NO_TIME, own
        try:
            read = msgspec.json.decode(raw)
            time, key = read.get("t"), read.get("k") if place == 0 else read.get("t")
            if not (time is None or isinstance(time, int)) or not (key is None or isinstance(key, str | int)):
                raise TypeError
            if place == 0 and isinstance(key, int):
                raise TypeError
        except (msgspec.DecodeError, TypeError):
            return None, NO_TIME, own
        at = time if time is not None and FIRST_MS <= time <= LAST_MS else NO_TIME
        if key is None:
            return None, at, own
        text = encode_key((str(key),))
        return text, at, zlib.crc32(text.encode()) % 7

    made = readers()
    for _ in range(1 + twice):  # once more with keys that are known by then
        found = read_inputs(made, [place for _, place in rows], [raw for raw, _ in rows], {})
        assert list(zip(*found, strict=True)) == [alone(raw, place) for raw, place in rows]


@settings(deadline=None, max_examples=case_count(60))
@given(
    st.lists(
        st.tuples(
            st.sampled_from([event("a", 5), event("b", 7), event("a", 9), b"broken", event(None, 3), b""]),
            st.sampled_from(["in", "other"]),
            st.integers(0, 1),
            st.sampled_from([DATA, DATA, DATA, FUTURE, CONTROL]),
        ),
        min_size=1,
        max_size=40,
    ),
    st.booleans(),
    st.booleans(),
)
def test_rows_that_are_known_by_their_place_have_the_identity_that_a_column_would_tell(
    rows: list[tuple[bytes, str, int, int]], one_source: bool, large: bool
) -> None:
    """The same rows with and without a column of identities, of one source and of several."""
    if one_source:
        rows = [(value, "in", 0, kind) for value, _, _, kind in rows]
    ahead = [float(time) for time in (0 if kind == FUTURE else 10**9 for _, _, _, kind in rows)]
    columns = {
        **place(
            [topic for _, topic, _, _ in rows], [part for _, _, part, _ in rows], range(7, 7 + len(rows))
        ),
        "_arrived": pa.array(ahead, pa.float64()),
        "_control": pa.array([kind == CONTROL for _, _, _, kind in rows]),
    }
    causes = [f"{topic}:{part}:{7 + row}" for row, (_, topic, part, _) in enumerate(rows)]
    values = [value + b" " * 40 * large for value, _, _, _ in rows]
    packer = replace(PACKER, clock=Told(ClockSettings(0)), future_ms=1)
    by_column = packed(values, packer, **columns, _source_id=pa.array(causes))
    by_place = packed(values, replace(packer, by_place=True), **columns)

    def seen(chunk: InputChunk) -> InputChunk:
        return chunk._replace(causes=chunk.identities(), source="", offsets=None)  # type: ignore[arg-type]

    assert [(label, seen(chunk)) for label, chunk in by_place] == by_column
    if one_source:
        assert all(chunk.causes is None for _, chunk in by_place if chunk.values)


def test_rows_by_place_of_one_source_carry_no_text_for_each() -> None:
    batch = {**place(["in"] * 2, [3] * 2, [8, 9])}
    found = packed([event("a", 1), event("a", 2)], replace(PACKER, by_place=True), **batch)
    ((_, chunk),) = found
    assert (chunk.causes, chunk.source, chunk.offsets) == (None, "in:3", [8, 9])
    assert chunk.identities() == ["in:3:8", "in:3:9"]


@settings(deadline=None, max_examples=case_count(60))
@given(
    st.lists(
        st.tuples(
            st.sampled_from([None, "i1", "i2"]),
            st.sampled_from(["1:a", "1:b"]),
            st.integers(-5, 5),
            st.binary(max_size=30),
        ),
        min_size=1,
        max_size=20,
    ),
    st.integers(1, 60),
)
def test_columns_are_packed_as_records_one_by_one_are(
    rows: list[tuple[str | None, str, int, bytes]], most: int
) -> None:
    ids, keys, times, payloads = map(list, zip(*rows, strict=True))
    columns = Emissions("main", ids, keys, times, b"\x01" * len(rows), payloads)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("millrace.host.chunks.CHUNK_BYTES", most)
        assert encode_columns(columns) == encode_emissions(list(columns.each()))


def test_what_is_large_goes_in_several_chunks_and_the_group_is_told_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("millrace.host.packing.CHUNK_BYTES", 1_000)
    monkeypatch.setattr("millrace.host.chunks.CHUNK_BYTES", 1_000)
    events = [event("a", at) + b" " * (900 if at % 2 else 300) for at in range(20)]
    batch = pa.record_batch({"_value": pa.array(events, pa.binary())})
    packer = Packer(PACKER.inputs, group_labels(1), clock=Told(ClockSettings(0)))
    (made,) = packer(iter([batch]))
    chunks = [decode_input(chunk) for chunk in made["_chunk"].to_pylist()]
    assert len(chunks) > 8
    assert [value for chunk in chunks for value in chunk.values] == events
    assert [chunk.reports is not None for chunk in chunks] == [True] + [False] * (len(chunks) - 1)
    emissions = [Emission("main", f"i{n}", "1:a", n, True, value) for n, value in enumerate(events)]
    sent = encode_emissions(emissions)
    assert len(sent) == len(chunks)
    assert sum(count for _, count, _ in sent) == len(events)
    assert list(join_output(chunk for _, _, chunk in sent).payloads) == events
