"""Emitted records as typed columns: some read by Arrow, the others by msgspec, all as they were written."""

from __future__ import annotations

from datetime import UTC, date, datetime
from enum import Enum
from typing import Any, Literal
from uuid import UUID

import msgspec
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millrace.host.chunks import OutputChunk
from millrace.host.json_columns import MISFIT, is_unread, read, read_fitting
from millrace.host.spark_records import TypedColumns
from millrace.host.spark_types import META_FIELDS


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Part(msgspec.Struct, rename="camel"):
    part_name: str
    share: float | None = None


class Photo(msgspec.Struct):
    taken_at: datetime
    raw: bytes
    colour: Colour


class Wide(msgspec.Struct, rename={"kind_of": "kindOf"}):
    """Fields that Arrow reads and fields that it does not, in turns."""

    name: str
    windows: dict[str, float]
    count: int
    kind_of: Literal["a", "b"]
    photos: list[Photo]
    parts: list[Part]
    day: date
    colour: Colour
    identity: UUID
    one: Part | None = None
    counts: dict[str, int] | None = None
    yes: bool | None = None


class Sparse(msgspec.Struct, omit_defaults=True):
    """What is not written has a default, and not no value."""

    name: str
    colour: str = "red"
    count: int | None = 7


class Nested(msgspec.Struct):
    sparse: Sparse
    name: str
    all_of: list[Sparse] = []
    by_name: dict[str, Sparse] = {}


class Mapped(msgspec.Struct):
    windows: dict[str, float]


TEXTS = st.text(max_size=8)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
INTS = st.integers(-(2**63), 2**63 - 1)
PARTS = st.builds(Part, TEXTS, st.none() | NUMBERS)
TIMES = st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
COLOURS = st.sampled_from(Colour)
SPARSE = st.builds(Sparse, TEXTS, TEXTS, st.none() | INTS)
NESTED = st.builds(
    Nested, SPARSE, TEXTS, st.lists(SPARSE, max_size=2), st.dictionaries(TEXTS, SPARSE, max_size=2)
)
WIDE = st.builds(
    Wide,
    TEXTS,
    st.dictionaries(TEXTS, NUMBERS, max_size=3),
    INTS,
    st.sampled_from(["a", "b"]),
    st.lists(st.builds(Photo, TIMES, st.binary(max_size=4), COLOURS), max_size=2),
    st.lists(PARTS, max_size=3),
    st.dates(date(1970, 1, 1), date(2200, 1, 1)),
    COLOURS,
    st.uuids(),
    st.none() | PARTS,
    st.none() | st.dictionaries(TEXTS, INTS, max_size=2),
    st.none() | st.booleans(),
)


def columns(tp: Any, values: list[Any]) -> list[dict[str, Any]]:
    """Write records as a process does, and return the rows of their table."""
    payloads = [msgspec.json.encode(value) for value in values]
    ids = [f"e{place}" for place in range(len(values))]
    chunk = OutputChunk(ids, ["1:a"] * len(ids), [5] * len(ids), b"\x01" * len(ids), payloads)
    meta = {field.name for field in META_FIELDS}
    typed = TypedColumns(tp)
    table = typed.table(chunk)
    assert read(through_a_file(typed.unread(chunk))).equals(table, check_metadata=True)
    rows = table.to_pylist(maps_as_pydicts="strict")
    return [{name: value for name, value in row.items() if name not in meta} for row in rows]


def through_a_file(rows: pa.Table) -> pa.Table:
    """Return rows as whoever finds them in a file has them."""
    into = pa.BufferOutputStream()
    with pa.ipc.new_file(into, rows.schema) as written:
        written.write_table(rows)
    with pa.ipc.open_file(into.getvalue()) as found:
        return found.read_all()


def plain(value: Any) -> Any:
    """Return a record as a table has it: by walking over it, not by what it was written as."""
    if isinstance(value, msgspec.Struct):
        fields = msgspec.structs.fields(value)
        return {field.encode_name: plain(getattr(value, field.name)) for field in fields}
    if isinstance(value, dict):
        return {name: plain(of) for name, of in value.items()}
    if isinstance(value, Enum | UUID):
        return str(value.value if isinstance(value, Enum) else value)
    return [plain(of) for of in value] if isinstance(value, list) else value


@given(st.lists(WIDE, min_size=1, max_size=5))
def test_a_record_of_all_kinds_of_fields(records: list[Wide]) -> None:
    assert columns(Wide, records) == [plain(record) for record in records]


@given(st.lists(SPARSE, min_size=1, max_size=3))
def test_what_is_left_out_has_its_default(records: list[Sparse]) -> None:
    assert columns(Sparse, records) == [plain(record) for record in records]


@given(st.lists(NESTED, min_size=1, max_size=3))
@example([Nested(Sparse("", "red", 7), "", [Sparse("", "red", 7)], {"a": Sparse("", "red", 7)})])
def test_what_is_left_out_of_a_part_has_its_default(records: list[Nested]) -> None:
    assert columns(Nested, records) == [plain(record) for record in records]


@given(st.lists(PARTS, min_size=1, max_size=3))
def test_a_record_that_arrow_reads_whole(records: list[Part]) -> None:
    assert columns(Part, records) == [plain(record) for record in records]


@given(st.lists(st.builds(Mapped, st.dictionaries(TEXTS, NUMBERS)), min_size=1, max_size=3))
def test_a_record_of_which_arrow_reads_nothing(records: list[Mapped]) -> None:
    assert columns(Mapped, records) == [plain(record) for record in records]


@pytest.mark.parametrize(("tp", "values"), [(int, [1, -5]), (list[float], [[1.5], []]), (str, ["é", ""])])
def test_what_is_no_record_is_one_column(tp: Any, values: list[Any]) -> None:
    assert columns(tp, values) == [{"value": value} for value in values]


class Numbered(msgspec.Struct):
    place: int
    note: str | None
    windows: dict[str, float]


@pytest.mark.parametrize("count", [3_999, 4_000, 4_001, 8_000, 9_500])
def test_a_large_chunk_is_the_same_rows_in_their_order(count: int) -> None:
    """Records are parsed some thousands at a time; neither the seams nor the last, short part shows."""
    records = [Numbered(i, None if i % 7 else "x" * (i % 5), {"w": i / 3}) for i in range(count)]
    ids: list[str | None] = [f"e{place}" for place in range(count)]
    chunk = OutputChunk(
        list(ids),
        ["1:a"] * count,
        list(range(count)),
        bytes(place % 2 for place in range(count)),
        list(map(msgspec.json.encode, records)),
    )
    table = TypedColumns(Numbered).table(chunk)
    assert table.schema == TypedColumns(Numbered).schema
    rows = table.to_pylist(maps_as_pydicts="strict")
    told, when, on_time = (field.name for field in META_FIELDS)
    assert [plain(record) for record in records] == [
        {name: row[name] for name in ("place", "note", "windows")} for row in rows
    ]
    assert [row[told] for row in rows] == ids
    assert [round(row[when].timestamp() * 1000) for row in rows] == list(range(count))
    assert [row[on_time] for row in rows] == [place % 2 == 1 for place in range(count)]


class Priced(msgspec.Struct, rename={"by_day": "byDay"}):
    """Maps whose values may be none, and that may be none themselves."""

    count: int
    by_day: dict[str, float | None] | None
    names: dict[str, str]


def made_of(tp: Any, name: str) -> Any:
    """Return a record that has a name."""
    if tp is Priced:
        return Priced(1, {name: None, "x": float("nan")} if name == "e1" else None, {"é": name})
    if tp is Numbered:
        return Numbered(1, None, {name: 0.5})
    return Part(name, 0.5) if tp is Part else Mapped({name: 0.5})


def chunk_of(count: int, tp: Any = Part) -> OutputChunk:
    """Return so many records."""
    ids: list[str | None] = [f"e{place}" for place in range(count)]
    payloads: list[bytes] = [msgspec.json.encode(made_of(tp, name)) for name in ids]
    return OutputChunk(ids, ["1:a"] * count, [5] * count, b"\x01" * count, payloads)


@pytest.mark.parametrize(
    ("tp", "count", "left"),
    [
        (Part, 4_000, True),
        (Part, 4_001, False),
        (Mapped, 3, False),
        (Numbered, 3, True),
        (Numbered, 4_001, False),
        (Priced, 3, True),
        (Priced, 4_001, False),
    ],
)
def test_what_is_left_in_its_json_for_now(tp: Any, count: int, left: bool) -> None:
    """Of many records nothing, since they wait in memory; nor where Arrow reads none of the columns."""
    typed = TypedColumns(tp)
    rows = typed.unread(chunk_of(count, tp))
    assert is_unread(rows) == left
    assert read(rows).equals(typed.table(chunk_of(count, tp)))


def test_maps_that_wait_have_what_was_written() -> None:
    rows = read(TypedColumns(Priced).unread(chunk_of(2, Priced))).to_pylist(maps_as_pydicts="strict")
    assert [row["byDay"] for row in rows] == [None, {"e1": None, "x": None}]
    assert [row["names"] for row in rows] == [{"é": "e0"}, {"é": "e1"}]


def test_a_map_that_does_not_fit_is_told_of_when_it_is_read() -> None:
    typed = TypedColumns(Numbered)
    chunk = chunk_of(3, Numbered)
    payloads = [*chunk.payloads]
    payloads[1] = b'{"place":1,"note":null,"windows":{"e":"text"}}'
    chunk = OutputChunk(chunk.event_ids, chunk.keys, chunk.times, chunk.on_time, payloads)
    rows = typed.unread(chunk)
    with pytest.raises(MISFIT):
        read(rows)
    found, misfits = read_fitting(rows)
    assert (found.num_rows, [misfit.event_id for misfit in misfits]) == (2, ["e1"])
    assert found.equals(typed.fitting(chunk)[0])


def test_rows_that_are_chosen_before_they_are_read() -> None:
    typed = TypedColumns(Part)
    rows = typed.unread(chunk_of(5))
    wanted = pa.array([True, False, False, True, False])
    assert read(rows.filter(wanted)).equals(typed.table(chunk_of(5)).filter(wanted))
    nothing = read(rows.filter(pa.array([False] * 5)))
    assert nothing.schema == typed.schema
    assert not nothing.num_rows
