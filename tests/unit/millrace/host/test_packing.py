"""Packing in front of the shuffle: keys, times, groups and kinds of rows, and nothing lost."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from types import ModuleType
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.host import packing
from millrace.host.chunks import (
    AHEAD,
    CONTROL,
    DATA,
    FUTURE,
    NO_TIME,
    InputChunk,
    decode_input,
    encode_emissions,
    join_output,
)
from millrace.host.groups import encode_key, group_labels, key_group
from millrace.host.key_times import KeyFields, decode_all
from millrace.host.packing import Packer
from millrace.host.runner import Emission

LABELS = group_labels(4)


def packed(
    values: list[Any], packer: Packer, **columns: pa.Array
) -> list[tuple[int, int | None, InputChunk]]:
    """Pack one Arrow batch: label, newest event time (ms) and chunk of every row that comes out."""
    batch = pa.RecordBatch.from_arrays(
        [pa.array(values, pa.binary()), *columns.values()], names=["_value", *columns]
    )
    found = []
    for out in packer(iter([batch])):
        for row in out.to_pylist():
            newest = row["_watermark"]
            ms = None if newest is None else round(newest.timestamp() * 1000)
            found.append((row["_group"], ms, decode_input(row["_chunk"])))
    return found


def event(user: Any, at: Any) -> bytes:
    return msgspec.json.encode({"user": user, "at": at, "more": [1, {"x": "\n"}]})


PACKER = Packer((KeyFields((("user", str),), ("at", int)),), labels=LABELS)


@settings(deadline=None)
@given(st.lists(st.tuples(st.text(max_size=5), st.integers(-(10**12), 10**12)), min_size=1, max_size=60))
def test_every_event_reaches_the_group_of_its_key_in_its_order(events: list[tuple[str, int]]) -> None:
    values = [event(user, at) for user, at in events]
    reached: dict[int, list[bytes]] = {}
    for label, newest, chunk in packed(values, PACKER):
        assert newest == max(chunk.times)
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
        for _, _, chunk in packed([event("z", 1), raw, event("z", 2)], PACKER)
        for k, t, v in zip(chunk.keys, chunk.times, chunk.values, strict=True)
    }
    assert found == {event("z", 1): ("1:z", 1), raw or b"": (key, time), event("z", 2): ("1:z", 2)}


def test_lines_within_an_event_do_not_shift_the_events_after_it() -> None:
    pretty = b'{"user": "a",\n"at": 1}'
    two = b'{"user":"b","at":2}\n{"user":"c","at":3}'
    chunks = packed([pretty, two, b"", event("d", 4)], PACKER)
    known = {v: (k, t) for _, _, c in chunks for k, t, v in zip(c.keys, c.times, c.values, strict=True)}
    assert known == {
        pretty: ("1:a", 1), two: (None, NO_TIME), b"": (None, NO_TIME), event("d", 4): ("1:d", 4),
    }  # fmt: skip


def test_events_cannot_be_decoded_together_that_hide_each_other() -> None:
    decoder = msgspec.json.Decoder(dict[str, int])
    assert decode_all(decoder, [b'{"a":1}', b'{"b":2}']) == [{"a": 1}, {"b": 2}]
    assert decode_all(decoder, [b'{"a":1}\n{"b":2}', b""]) is None
    assert decode_all(decoder, [b"", b'{"b":2}']) is None
    assert decode_all(decoder, [b'{"a":', b"1}"]) is None


def test_control_rows_go_to_every_group_and_move_no_watermark() -> None:
    values = [event("a", 5), b'{"limit": 1}', event("b", 6)]
    chunks = packed(values, PACKER, _control=pa.array([False, True, False]))
    assert sorted(label for label, _, _ in chunks) == sorted(LABELS)
    for _, newest, chunk in chunks:
        kinds = chunk.kinds or bytes(len(chunk.values))
        controls = [v for v, k in zip(chunk.values, kinds, strict=True) if k == CONTROL]
        assert controls == [b'{"limit": 1}']
        data = [t for t, k in zip(chunk.times, kinds, strict=True) if k == DATA]
        assert newest == (max(data) if data else None)


def test_an_event_far_ahead_of_its_arrival_is_marked_and_moves_no_watermark() -> None:
    packer = Packer((KeyFields((("user", str),), ("at", int)),), labels=(7,), skew_ms=10)
    arrived = pa.array([100.0, 100.0, float("inf")])
    ((_, newest, chunk),) = packed(
        [event("a", 110), event("a", 111), event("a", 120)], packer, _arrived=arrived
    )
    assert chunk.kinds == bytes([DATA, FUTURE, DATA])
    assert newest == 120


def test_the_newest_of_a_groups_events_moves_no_watermark_if_it_is_far_ahead_of_its_arrival() -> None:
    packer = Packer((KeyFields((("user", str),), ("at", int)),), labels=(7,), skew_ms=10)
    ((_, newest, chunk),) = packed(
        [event("a", 105), event("a", 999)], packer, _arrived=pa.array([100.0, 100.0])
    )
    assert chunk.kinds == bytes([DATA, FUTURE])
    assert newest == 105


def test_every_group_is_told_the_watermark_that_a_tasks_rows_bring() -> None:
    packer = Packer((KeyFields((("user", str),), ("at", int)),), labels=LABELS, skew_ms=10, bound_ms=20)
    values, arrived = [event("a", 105), event("b", 70), event("a", 999)], pa.array([100.0] * 3)
    batch = pa.RecordBatch.from_arrays([pa.array(values, pa.binary()), arrived], names=["_value", "_arrived"])
    *_, last = packer(iter([batch]))
    assert [(row["_group"], row["_watermark"]) for row in last.to_pylist()] == [(g, None) for g in LABELS]
    told = [decode_input(row["_chunk"]) for row in last.to_pylist()]
    assert {(*chunk.times, *(chunk.kinds or b"")) for chunk in told} == {(105 - 20 - 1, AHEAD)}


@pytest.mark.parametrize(("keep_all", "expected"), [(True, ["[1]", "text"]), (False, [None, "text"])])
def test_headers_are_kept_of_all_rows_or_of_unreadable_ones(
    keep_all: bool, expected: list[str | None]
) -> None:
    packer = Packer((KeyFields((("user", str),), ("at", int)),), labels=(7,), keep_all_headers=keep_all)
    ((_, _, chunk),) = packed([event("a", 1), b"no"], packer, _headers=pa.array(["[1]", "text"]))
    assert chunk.headers == expected


def test_headers_of_kafka_become_text_as_spark_writes_them() -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    headers = pa.array([[{"key": "id", "value": b"x"}], None], kind)
    packer = Packer((KeyFields((("user", str),), ("at", int)),), labels=(7,))
    ((_, _, chunk),) = packed([b"no", b"nor this"], packer, _headers=headers)
    assert chunk.headers == ['[{"key":"id","value":"eA=="}]', None]


def test_times_may_be_dates_and_keys_of_several_parts() -> None:
    packer = Packer((KeyFields((("a", str), ("b", int), ("c", bool)), ("t", datetime)),), labels=LABELS)
    when = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
    value = msgspec.json.encode({"a": "x", "b": -5, "c": True, "t": when})
    naive = b'{"a":"x","b":-5,"c":true,"t":"2026-01-02T03:04:05.678"}'
    ((label, newest, chunk),) = packed([value, naive], packer)
    assert chunk.keys == ["1:x2:-54:true"] * 2
    assert chunk.times == [round(when.timestamp() * 1000)] * 2
    assert newest == chunk.times[0]
    assert label == LABELS[key_group("1:x2:-54:true", 4)]


def test_the_event_time_may_be_the_key_too() -> None:
    packer = Packer((KeyFields((("at", int),), ("at", int)),), labels=LABELS)
    ((_, newest, chunk),) = packed([event("a", 5)], packer)
    assert (chunk.keys, chunk.times, newest) == (["1:5"], [5], 5)


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
    for label, _, chunk in packed(values, Packer(inputs, LABELS), **columns):
        kinds = chunk.kinds or bytes(len(chunk.values))
        found += zip(chunk.keys, chunk.times, kinds, chunk.values, strict=True)
        groups = {LABELS[key_group(key, 4)] for key in chunk.keys if key is not None}
        assert groups <= {label}
    assert sorted(found, key=repr) == sorted(expected, key=repr)
