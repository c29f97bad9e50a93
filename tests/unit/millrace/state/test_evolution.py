"""Declarations change, the kept bytes stay: what is read under other ones, and what is refused."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable
from types import GenericAlias
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.state import (
    aggregating_state,
    broadcast_state,
    list_state,
    map_state,
    page_index,
    reducing_state,
    value_state,
    versioned_state,
)
from millrace.state.broadcast import BroadcastLayout
from millrace.state.cells import StateCorrupted, read_header
from millrace.state.earlier_entries import StateSchemaMismatch
from millrace.state.evolution import state_differences
from millrace.state.layout import TimerRecord
from millrace.state.schema import describe_state, describe_type, schema_of
from millrace.time import NEVER
from tests.unit.millrace.state.cases import HOUR, MINUTE, Bed, DictBackend


class Known(msgspec.Struct, array_like=True):
    count: int
    inner: list[Known] = []


class BrowserState(msgspec.Struct, array_like=True):
    """The same under another name."""

    __stored_as__: ClassVar[str] = "Known"
    count: int
    inner: list[BrowserState] = []


class SubState(BrowserState, array_like=True):
    """Another one: a name is of one class."""


def test_a_renamed_struct_is_described_by_the_name_that_it_was_stored_under() -> None:
    assert schema_of([value_state(Known | None)]) == schema_of([value_state(BrowserState | None)])
    assert b"BrowserState" not in schema_of([value_state(BrowserState)])
    assert b'"struct":"SubState"' in schema_of([value_state(SubState)])


def reopened(before: Bed, **states: Any) -> Bed:
    """The same bytes under other declarations, at the same times."""
    bed = Bed(backend=before.backend, page_bytes=before.page_bytes, **states)
    bed.watermark, bed.processing_time = before.watermark, before.processing_time
    bed.store.due(bed.watermark)
    bed.store.due_processing(bed.processing_time)
    return bed


def number() -> Any:
    return value_state(int, default=0)


def text() -> Any:
    return value_state(str, default="")


# -- states that come, go, move and are renamed ------------------------------------------------------


def filled(**states: Any) -> Bed:
    bed = Bed(**states)
    for key in ("1:a", "1:b"):
        with bed.on(key) as s:
            s.n.value, s.t.value = 7, key
            s.m.put("x", 1)
            bed.cursor.entry.timers_.append(TimerRecord(50, "idle", True, 3))
            bed.cursor.entry.processing_timers_.append(TimerRecord(60, "tick"))
    bed.commit(0)
    return bed


def three() -> dict[str, Any]:
    return {"n": number(), "t": text(), "m": map_state(str, int)}


def test_states_may_be_reordered_added_and_removed() -> None:
    bed = reopened(filled(**three()), new=list_state(str), m=map_state(str, int), t=text())
    with bed.on("1:a") as s:
        assert (s.t.value, dict(s.m.items()), list(s.new)) == ("1:a", {"x": 1}, [])
        assert bed.cursor.entry.timers_ == [TimerRecord(50, "idle", True, 3)]
        s.new.append("added")
    assert sorted(bed.store.due(50)) == ["1:a", "1:b"]
    assert sorted(bed.store.due_processing(60)) == ["1:a", "1:b"]
    bed.commit()
    assert {k: (e.t, e.m, e.new) for k, e in bed.kept().items()} == {
        "1:a": ("1:a", {"x": 1}, ["added"]),
        "1:b": ("1:b", {"x": 1}, []),
    }


def test_a_state_that_is_renamed_reads_what_was_kept_under_its_alias() -> None:
    bed = reopened(filled(**three()), count=value_state(int, default=0, alias="n"), t=text())
    with bed.on("1:a") as s:
        assert s.count.value == 7
    bed.commit()
    again = reopened(bed, total=value_state(int, default=0, alias=("count", "n")), t=text())
    with again.on("1:b") as s:
        assert s.total.value == 7


def test_a_name_that_is_there_goes_before_an_alias() -> None:
    before = filled(**three())
    with pytest.raises(StateSchemaMismatch, match=r"states\.count and states\.n both read what was 'n'"):
        reopened(before, n=number(), count=value_state(int, default=0, alias="n"))


def test_a_key_of_which_nothing_is_left_is_forgotten() -> None:
    before = Bed(n=number(), t=text())
    with before.on() as s:
        s.n.value = 1
    before.commit()
    bed = reopened(before, t=text())
    with bed.on() as s:
        assert s.t.value == ""
    bed.commit()
    assert bed.backend.is_empty()


def test_pages_are_rewritten_as_they_are_touched_and_old_schemas_go_with_the_last() -> None:
    before = Bed(page_bytes=200, n=number(), t=text())
    for i in range(60):
        with before.on(f"2:{i:02}") as s:
            s.n.value, s.t.value = i, "x" * 20
    before.commit()
    assert len(before.backend.pages) > 8
    bed = reopened(before, t=text(), n=number())
    with bed.on("2:07") as s:
        s.n.value += 100
    bed.commit()
    assert bed.metrics.pages_written == 1
    schemas = msgspec.msgpack.decode(bed.backend.pages[0])
    assert len(schemas) == 2
    for i in range(60):
        with bed.on(f"2:{i:02}") as s:
            assert (s.n.value, s.t.value) == (107 if i == 7 else i, "x" * 20)
    bed.commit()
    schemas = msgspec.msgpack.decode(bed.backend.pages[0])
    assert [s.encode() if isinstance(s, str) else s for s in schemas] == [bed.layout.schema]


def test_three_generations_of_pages_are_read_side_by_side() -> None:
    backend = DictBackend()
    generations: list[Callable[[], dict[str, Any]]] = [
        lambda: {"n": number(), "t": text()},
        lambda: {"t": text(), "n": number(), "extra": list_state(int)},
        lambda: {"n": value_state(float, default=0.0), "t": text()},
    ]
    for generation, states in enumerate(generations):
        bed = Bed(backend=backend, page_bytes=200, **states())
        keys = range(60) if generation == 0 else [generation]
        for i in keys:
            with bed.on(f"2:{i:02}") as s:
                s.n.value, s.t.value = i + 1, "x" * 20
        bed.commit()
    assert len(msgspec.msgpack.decode(backend.pages[0])) == 3
    assert {k: (e.n, e.t) for k, e in bed.kept().items()} == {
        f"2:{i:02}": (i + 1, "x" * 20) for i in range(60)
    }


def test_a_default_that_comes_or_goes_leaves_what_was_written() -> None:
    before = Bed(a=value_state(int), b=number(), c=value_state(int))
    with before.on() as s:
        s.a.value, s.b.value = 5, 6
    before.commit()
    bed = reopened(before, a=number(), b=value_state(int), c=value_state(int, default=9))
    with bed.on() as s:
        assert (s.a.value, s.b.value, s.c.value) == (5, 6, 9)


# -- time to live ----------------------------------------------------------------------------------

LIVING: dict[str, tuple[Callable[..., Any], Callable[[Any], Any], Callable[[Any], Any]]] = {
    "value": (lambda **o: value_state(int, **o), lambda s: s.set(1), lambda s: s.value),
    "map": (lambda **o: map_state(str, int, **o), lambda s: s.put("a", 1), lambda s: s.get("a")),
    "list": (lambda **o: list_state(int, **o), lambda s: s.append(1), lambda s: next(iter(s), None)),
    "reducing": (lambda **o: reducing_state(int, max, **o), lambda s: s.add(1), lambda s: s.value),
    "versioned": (
        lambda **o: versioned_state(int, history=HOUR, **o),
        lambda s: s.put(1),
        lambda s: s.value,
    ),
}


@pytest.mark.parametrize("kind", LIVING)
def test_a_time_to_live_that_is_new_begins_with_the_upgrade(kind: str) -> None:
    declare, write, read = LIVING[kind]
    before = Bed(x=declare())
    with before.on(now=0) as s:
        write(s.x)
    before.commit(10 * HOUR)
    bed = reopened(before, x=declare(ttl=HOUR))
    with bed.on(now=11 * HOUR - 1) as s:
        assert read(s.x) == 1
    with bed.on(now=11 * HOUR) as s:
        assert read(s.x) is None
    bed.commit()
    bed.commit(11 * HOUR + bed.layout.sweep_slack_ms)
    assert bed.backend.is_empty()


@pytest.mark.parametrize("kind", LIVING)
def test_a_processing_time_to_live_that_is_new_begins_with_the_first_tick(kind: str) -> None:
    declare, write, read = LIVING[kind]
    before = Bed(x=declare())
    with before.on() as s:
        write(s.x)
    before.commit(10 * HOUR)
    bed = reopened(before, x=declare(ttl=HOUR, ttl_time="processing_time"))
    bed.commit()
    bed.tick(5 * HOUR)
    bed.processing_time = 6 * HOUR - 1
    with bed.on() as s:
        assert read(s.x) == 1
    bed.tick(6 * HOUR + bed.layout.processing_sweeps.step_ms)
    assert bed.backend.is_empty()


def test_a_time_to_live_that_is_new_reaches_every_key_though_none_is_touched() -> None:
    """Older pages are brought over some at a time, whichever keys the batches are about."""
    before = Bed(page_bytes=200, x=value_state(str), n=number())
    for i in range(400):
        with before.on(f"3:{i:03}", now=0) as s:
            s.x.value = "x" * 20
    before.commit(0)
    assert len(before.backend.pages) > 3 * 32
    bed = reopened(before, x=value_state(str, ttl=HOUR), n=number())
    for batch in range(10):
        bed.commit(batch)
        assert bed.metrics.pages_read <= 32
    bed.commit(HOUR + 10 + bed.layout.sweep_slack_ms)
    assert bed.backend.is_empty()


@pytest.mark.parametrize("lives_on", [False, True], ids=["restarts", "lives on"])
def test_pages_of_a_long_list_are_all_brought_over_and_none_is_read_for_that_any_more(
    monkeypatch: pytest.MonkeyPatch, lives_on: bool
) -> None:
    monkeypatch.setattr(page_index, "FLAT_PAGES", 20)
    before = Bed(page_bytes=200, x=value_state(str), n=number())
    for i in range(400):
        with before.on(f"3:{i:03}", now=0) as s:
            s.x.value, s.n.value = f"{i} {'x' * 20}", i
    before.commit(0)
    assert read_header(before.backend.header or b"").index_bits
    bed = reopened(before, n=number(), y=value_state(int), x=value_state(str))
    bed.lives_on = lives_on
    for batch in range(2):  # some are still as they were, in index pages
        with bed.on(f"3:{batch:03}", now=0) as s:
            s.y.value = batch
        bed.commit(batch)
        assert {k: (e.x, e.n) for k, e in bed.kept().items()} == {
            f"3:{i:03}": (f"{i} {'x' * 20}", i) for i in range(400)
        }
    for batch in range(2, 12):
        bed.commit(batch)
    assert len(msgspec.msgpack.decode(bed.backend.pages[0])) == 1
    already = bed.metrics.pages_read if lives_on else 0
    bed.commit(12)
    assert bed.metrics.pages_read == already
    kept = {k: (e.x, e.n, e.y) for k, e in bed.kept().items()}
    assert kept == {f"3:{i:03}": (f"{i} {'x' * 20}", i, i if i < 2 else None) for i in range(400)}


@pytest.mark.parametrize("kind", LIVING)
def test_a_time_to_live_that_goes_leaves_what_was_still_visible(kind: str) -> None:
    declare, write, read = LIVING[kind]
    for watermark, wanted in ((MINUTE - 1, 1), (MINUTE, None)):
        before = Bed(label=1, x=declare(ttl=MINUTE))
        with before.on(now=0) as s:
            write(s.x)
        before.commit(0)
        before.watermark = watermark
        bed = reopened(before, x=declare())
        with bed.on(now=100 * HOUR) as s:
            assert read(s.x) == wanted
        bed.commit(100 * HOUR)
        header = bed.backend.header
        expiries = [] if header is None else [page.expiry for page in read_header(header).pages]
        assert expiries == ([] if wanted is None else [None])
        bed.commit(200 * HOUR)  # no sweep takes it any more
        with bed.on(now=300 * HOUR) as s:
            assert read(s.x) == wanted


def test_a_time_to_live_may_change_its_length() -> None:
    before = Bed(x=value_state(int, ttl=HOUR))
    with before.on(now=0) as s:
        s.x.value = 1
    before.commit(0)
    bed = reopened(before, x=value_state(int, ttl=2 * HOUR))
    assert bed.store.metrics.pages_read == 0
    with bed.on(now=HOUR) as s:
        assert s.x.value is None  # as it was written
        s.x.value = 2
    with bed.on(now=3 * HOUR - 1) as s:
        assert s.x.value == 2


def test_another_clock_is_refused() -> None:
    before = Bed(x=value_state(int, ttl=HOUR))
    with before.on() as s:
        s.x.value = 1
    before.commit()
    with pytest.raises(StateSchemaMismatch, match=r'states.x.ttl_time was "event_time", is now "process'):
        reopened(before, x=value_state(int, ttl=HOUR, ttl_time="processing_time"))


# -- types that change -------------------------------------------------------------------------------


class Colour(enum.Enum):
    RED = "red"


class Colours(enum.Enum):
    RED = "red"
    BLUE = "blue"


def struct(fields: list[Any], name: str = "Account", **config: Any) -> Any:
    return msgspec.defstruct(name, fields, **config)


SMALL = [("a", int), ("b", str, "x")]
TAGGED = struct([("a", int)], "One", tag=True)
TAGGED_TOO = struct([("b", int)], "Two", tag=True)


class Pair(NamedTuple):
    a: int
    b: str = "x"


#: name → (type before, a value, type after, what is read)
READABLE: dict[str, tuple[Any, Any, Any, Any]] = {
    "int to float": (int, 3, float, 3.0),
    "int to optional": (int, 3, int | None, 3),
    "int to a wider union": (int, 3, float | str, 3.0),
    "list of int to list of float": (list[int], [1], list[float], [1.0]),
    "dict of int to dict of float": (dict[str, int], {"a": 1}, dict[str, float], {"a": 1.0}),
    "nested": (dict[str, list[int]], {"a": [1]}, dict[str, list[float | None]], {"a": [1.0]}),
    "a pair of int to a pair of float": (tuple[int, int], (1, 2), tuple[int, float], (1, 2.0)),
    "one more enumeration member": (Colour, Colour.RED, Colours, Colours.RED),
    "one more literal": (Literal["a"], "a", Literal["a", "b"], "a"),
    "anything": (int, 3, Any, 3),
    "a limit that goes": (Annotated[int, msgspec.Meta(ge=0)], 3, int, 3),
    "one more tagged struct": (TAGGED, TAGGED(1), TAGGED | TAGGED_TOO, TAGGED(1)),
    "field added": (struct(SMALL), {"a": 1}, struct([*SMALL, ("c", int, 5)]), {"a": 1, "b": "x", "c": 5}),
    "field removed": (struct(SMALL), {"a": 1, "b": "y"}, struct(SMALL[:1]), {"a": 1}),
    "field widened": (struct(SMALL), {"a": 1}, struct([("a", float), SMALL[1]]), {"a": 1.0, "b": "x"}),
    "fields moved": (struct(SMALL), {"a": 1, "b": "y"}, struct([("b", str), ("a", int)]), {"b": "y", "a": 1}),
    "all at once": (
        struct(SMALL),
        {"a": 1, "b": "y"},
        struct([("a", float | None), ("new", list[int], msgspec.field(default_factory=list))]),
        {"new": [], "a": 1.0},
    ),
    "positional field added at the end": (
        struct(SMALL, array_like=True),
        {"a": 1},
        struct([*SMALL, ("c", int, 5)], array_like=True),
        {"a": 1, "b": "x", "c": 5},
    ),
    "positional field removed at the end": (
        struct(SMALL, array_like=True),
        {"a": 1},
        struct(SMALL[:1], array_like=True),
        {"a": 1},
    ),
    "renamed struct": (struct(SMALL), {"a": 1}, struct(SMALL, "Renamed"), {"a": 1, "b": "x"}),
    "deep inside": (
        struct([("inner", list[struct(SMALL)])], "Outer"),  # type: ignore[misc]
        {"inner": [{"a": 1}]},
        struct([("inner", list[struct([("a", float)])])], "Outer"),  # type: ignore[misc]
        {"inner": [{"a": 1.0}]},
    ),
    "named tuple": (Pair, Pair(1), Pair, Pair(1)),
}  # fmt: skip


class Node(msgspec.Struct):
    n: int
    children: list[Node] = []


class WiderNode(msgspec.Struct):
    n: float
    children: list[WiderNode] = []


class NarrowNode(msgspec.Struct):
    n: str
    children: list[NarrowNode] = []


READABLE["a struct within itself"] = (Node, Node(1, [Node(2)]), WiderNode, WiderNode(1.0, [WiderNode(2.0)]))

#: name → (type before, type after, what the message says)
UNREADABLE: dict[str, tuple[Any, Any, str]] = {
    "str to int": (str, int, r'states.x.type was "str", is now "int"'),
    "float to int": (float, int, r'states.x.type was "float", is now "int"'),
    "optional to not": (int | None, int, r"states.x.type was \{.*none.*, is now \"int\""),
    "list to set": (list[int], set[int], r"states.x.type was \{\"list\""),
    "element": (list[int], list[str], r'states.x.type\[\] was "int", is now "str"'),
    "dict keys": (dict[str, int], dict[int, int], r"states.x.type was \{\"dict\""),
    "tuple length": (tuple[int, int], tuple[int, int, int], r"states.x.type was"),
    "enumeration member gone": (Colours, Colour, r'states.x.type can no longer be "blue"'),
    "literal gone": (Literal["a", "b"], Literal["a"], r'states.x.type can no longer be "b"'),
    "anything to something": (Any, int, r'states.x.type was "any", is now "int"'),
    "a new limit": (int, Annotated[int, msgspec.Meta(ge=0)], r"has a new limit \(ge=0\)"),
    "a tag gone": (TAGGED | TAGGED_TOO, TAGGED, r"states.x.type"),
    "another tag": (TAGGED, struct([("a", int)], "One", tag="other"), r"states.x.type.tag was"),
    "no default": (
        struct(SMALL[:1]),
        struct([*SMALL[:1], ("c", int)]),
        r"states.x.type.c is new and has no default",
    ),
    "field type": (struct(SMALL), struct([("a", str), SMALL[1]]), r'states.x.type.a was "int", is now "str"'),
    "form": (struct(SMALL), struct(SMALL, array_like=True), r"was packed as map, is now packed as array"),
    "positional in the middle": (
        struct(SMALL, array_like=True),
        struct(SMALL[1:], array_like=True),
        r"field 0 was 'a', is now 'b'; fields may come and go at the end only",
    ),
    "positional without default": (
        struct(SMALL[:1], array_like=True),
        struct([*SMALL[:1], ("c", int)], array_like=True),
        r"states.x.type.c is new and has no default",
    ),
    "unknown fields forbidden": (
        struct(SMALL),
        struct(SMALL[:1], forbid_unknown_fields=True),
        r"states.x.type.b is gone, and Account forbids unknown fields",
    ),
    "positional unknown fields forbidden": (
        struct(SMALL, array_like=True),
        struct(SMALL[:1], array_like=True, forbid_unknown_fields=True),
        r"states.x.type.b is gone, and Account forbids unknown fields",
    ),
    "left out where it was the default": (
        struct(SMALL, omit_defaults=True),
        struct([("a", int), ("b", str)]),
        r"states.x.type.b has no default any more",
    ),
    "struct to scalar": (struct(SMALL), int, r'states.x.type was "Account", is now "int"'),
    "deep inside": (
        struct([("inner", list[struct(SMALL)])], "Outer"),  # type: ignore[misc]
        struct([("inner", list[struct([("a", str)])])], "Outer"),  # type: ignore[misc]
        r'states.x.type.inner\[\].a was "int", is now "str"',
    ),
    "a struct within itself": (Node, NarrowNode, r'states.x.type.n was "int", is now "str"'),
}


def kinds(tp: Any) -> dict[str, tuple[Any, Callable[[Any, Any], Any], Callable[[Any], Any]]]:
    """Every kind of state of a type: declaration, write, read."""
    return {
        "value": (value_state(tp), lambda s, v: s.set(v), lambda s: s.value),
        "expiring": (value_state(tp, ttl=HOUR), lambda s, v: s.set(v), lambda s: s.value),
        "map": (map_state(int, tp), lambda s, v: s.put(1, v), lambda s: s.get(1)),
        "list": (list_state(tp, ttl=HOUR), lambda s, v: s.append(v), lambda s: next(iter(s))),
        "aggregating": (
            aggregating_state(tp, create=lambda: None, add=lambda a, v: v, result=lambda a: a),
            lambda s, v: s.add(v),
            lambda s: s.value,
        ),
        "versioned": (versioned_state(tp, history=5), lambda s, v: s.put(v), lambda s: s.value),
    }


def made(tp: Any, value: Any) -> Any:
    """A value of a type; a dict of fields where the type is packed by position."""
    if isinstance(value, dict) and getattr(getattr(tp, "__struct_config__", None), "array_like", False):
        return tp(**value)
    return msgspec.convert(value, tp)


@pytest.mark.parametrize("kind", ["value", "expiring", "map", "list", "aggregating", "versioned"])
@pytest.mark.parametrize("change", READABLE)
def test_a_type_may_be_widened(change: str, kind: str) -> None:
    before_type, value, after_type, wanted = READABLE[change]
    declared, write, _ = kinds(before_type)[kind]
    before = Bed(x=declared)
    with before.on() as s:
        write(s.x, made(before_type, value))
    before.commit()
    declared, _, read = kinds(after_type)[kind]
    bed = reopened(before, x=declared)
    with bed.on() as s:
        got = read(s.x)
    assert got == made(after_type, wanted)
    assert type(got) is type(made(after_type, wanted))


@pytest.mark.parametrize("change", UNREADABLE)
def test_a_type_that_cannot_be_read_is_refused_before_anything_is(change: str) -> None:
    before_type, after_type, message = UNREADABLE[change]
    described = {"x": describe_state(named(value_state(before_type)))}
    found = state_differences(described, {"x": describe_state(named(value_state(after_type)))})
    assert found, "not found by the contract"
    before = Bed(n=number(), x=value_state(before_type))
    with before.on() as s:
        s.n.value = 1
    before.commit()
    stored = before.backend.header
    with pytest.raises(StateSchemaMismatch, match=message) as refused:
        reopened(before, x=value_state(after_type))
    assert str(refused.value).startswith("Bed cannot read the state that was kept: states.x.type")
    assert before.backend.header == stored


def named(spec: Any, name: str = "x") -> Any:
    spec.name = name
    return spec


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (value_state(int), list_state(int), r'states.x.kind was "value", is now "list"'),
        (map_state(str, int), map_state(int, int), r'states.x.key_type was "str", is now "int"'),
    ],
)
def test_another_kind_of_state_is_refused(before: Any, after: Any, message: str) -> None:
    bed = Bed(x=before, n=number())
    with bed.on() as s:
        s.n.value = 1
    bed.commit()
    with pytest.raises(StateSchemaMismatch, match=message):
        reopened(bed, x=after)


def test_all_that_cannot_be_read_is_named_at_once() -> None:
    bed = filled(**three())
    with pytest.raises(StateSchemaMismatch, match=r"states\.n\.type was .*; states\.t\.type was"):
        reopened(bed, n=value_state(bool), t=value_state(int))


# -- any type to any type --------------------------------------------------------------------------

SCALARS = st.sampled_from([int, float, str, bool])
TYPES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        inner.map(lambda t: GenericAlias(list, (t,))),
        inner.map(lambda t: GenericAlias(dict, (str, t))),
        inner.map(lambda t: t | None),
        st.tuples(inner, inner).map(lambda ts: GenericAlias(tuple, ts)),
        st.lists(
            st.tuples(st.sampled_from("abc"), inner, st.booleans()), unique_by=lambda f: f[0], max_size=3
        ).flatmap(lambda fields: st.booleans().map(lambda array: _struct(fields, array=array))),
    ),
    max_leaves=6,
)


def _struct(fields: list[tuple[str, Any, bool]], *, array: bool) -> Any:
    # Fields without default stand first, as a struct wants it.
    ordered = sorted(fields, key=lambda f: (f[2], f[0]))
    return struct([(n, t | None, None) if opt else (n, t) for n, t, opt in ordered], array_like=array)


def _value(tp: Any, data: st.DataObject) -> Any:
    info = msgspec.inspect.type_info(tp)
    return _of(info, data)


def _of(info: Any, data: st.DataObject) -> Any:
    kind = type(info).__name__
    if kind == "UnionType":
        return _of(data.draw(st.sampled_from(info.types)), data)
    if kind == "ListType":
        return [_of(info.item_type, data) for _ in range(data.draw(st.integers(0, 2)))]
    if kind == "TupleType":
        return tuple(_of(t, data) for t in info.item_types)
    if kind == "DictType":
        return {k: _of(info.value_type, data) for k in data.draw(st.sets(st.sampled_from("xy")))}
    if kind == "StructType":
        return info.cls(**{f.name: _of(f.type, data) for f in info.fields})
    return {
        "IntType": 3,
        "FloatType": 2.5,
        "StrType": "s",
        "BoolType": True,
        "NoneType": None,
    }[kind]


@settings(max_examples=400, deadline=None)
@given(TYPES, TYPES, st.data())
def test_what_the_description_allows_can_be_read(before: Any, after: Any, data: st.DataObject) -> None:
    """Whenever no difference is named, every value of the older type is read as the newer one."""
    found = state_differences(
        {"x": describe_state(named(value_state(before)))}, {"x": describe_state(named(value_state(after)))}
    )
    packed = msgspec.msgpack.encode(_value(before, data))
    if not found:
        msgspec.msgpack.decode(packed, type=after)
    assert not state_differences(
        {"x": describe_state(named(value_state(before)))}, {"x": describe_state(named(value_state(before)))}
    )


NAMES = st.lists(st.sampled_from("abcdefg"), unique=True, min_size=1, max_size=6)


@settings(max_examples=100, deadline=None)
@given(st.lists(NAMES, min_size=1, max_size=4), st.sampled_from([80, 32_768]), st.data())
def test_any_history_of_declarations_keeps_what_stayed_declared(
    generations: list[list[str]], page_bytes: int, data: st.DataObject
) -> None:
    """States come, go and move at random; each generation changes some keys only."""
    kinds_of = dict(zip("abcdefg", ["value", "map", "list", "ttl", "value", "ttl", "map"], strict=True))
    declare: dict[str, Callable[[], Any]] = {
        "value": number,
        "map": lambda: map_state(str, int),
        "list": lambda: list_state(int),
        "ttl": lambda: value_state(int, ttl=HOUR),
    }
    backend = DictBackend()
    keys = [f"2:{i:02}" for i in range(8)]
    model: dict[str, dict[str, int]] = {k: {} for k in keys}
    for generation, names in enumerate(generations):
        bed = Bed(backend=backend, page_bytes=page_bytes, **{n: declare[kinds_of[n]]() for n in names})
        # All entries are read in each generation, so what is not declared is gone for good.
        for key in keys:
            with bed.on(key, now=generation) as s:
                for name in names:
                    wanted = model[key].get(name)
                    assert _read(kinds_of[name], getattr(s, name)) == wanted, (generation, key, name)
                if data.draw(st.booleans()):
                    name = data.draw(st.sampled_from(names))
                    _write(kinds_of[name], getattr(s, name), generation + 1)
                    model[key][name] = generation + 1
            model[key] = {n: v for n, v in model[key].items() if n in names}
        bed.commit(generation)


def _read(kind: str, state: Any) -> int | None:
    if kind == "map":
        return state.get("x")  # type: ignore[no-any-return]
    if kind == "list":
        return list(state)[-1] if len(state) else None
    return state.value or None


def _write(kind: str, state: Any, number: int) -> None:
    if kind == "map":
        state.put("x", number)
    elif kind == "list":
        state.append(number)
    else:
        state.value = number


# -- descriptions ------------------------------------------------------------------------------------


def test_a_description_is_plain_data_and_says_what_matters() -> None:
    inner = struct([("a", int), ("b", str, "x")], "Inner")
    spec = named(map_state(str, inner, ttl=MINUTE, alias="old"))
    described = describe_state(spec)
    assert json.loads(json.dumps(described)) == described
    assert described == {
        "kind": "map",
        "type": {"struct": "Inner", "form": "map", "fields": [["a", "int"], ["b", "str", "default"]]},
        "key_type": "str",
        "ttl_ms": MINUTE,
        "ttl_time": "event_time",
        "alias": ["old"],
    }
    assert describe_type(Node) == {
        "struct": "Node",
        "form": "map",
        "fields": [["n", "int"], ["children", {"list": {"within": "Node"}}, "default"]],
    }


def test_the_schema_of_a_layout_is_small_and_does_not_depend_on_lengths_of_lives() -> None:
    states = three()
    layout = Bed(**states).layout
    assert len(layout.schema) < 250
    assert schema_of([named(value_state(int, ttl=5))]) == schema_of([named(value_state(int, ttl=6))])


def test_a_damaged_schema_stops() -> None:
    bed = filled(**three())
    for damage in (b"\xc1", b"\x90", msgspec.msgpack.encode([b"{"]), msgspec.msgpack.encode([b"[1]"])):
        bed.backend.pages[0] = damage
        with pytest.raises(StateCorrupted):
            reopened(bed, t=text())


def test_broadcast_states_come_go_move_and_are_renamed() -> None:
    def layout(**specs: Any) -> BroadcastLayout:
        for name, spec in specs.items():
            spec.name = name
        return BroadcastLayout(list(specs.values()))

    packed = layout(a=broadcast_state(str, int), b=broadcast_state(int, str)).encode(
        {"a": {"x": 1}, "b": {2: "y"}}
    )
    moved = layout(b=broadcast_state(int, str), new=broadcast_state(str, str), a=broadcast_state(str, float))
    assert moved.decode(packed) == {"b": {2: "y"}, "new": {}, "a": {"x": 1.0}}
    renamed = layout(limits=broadcast_state(str, int, alias="a"))
    assert renamed.decode(packed) == {"limits": {"x": 1}}
    assert renamed.decode(None) == {"limits": {}}


def test_never_is_kept_by_an_upgrade() -> None:
    before = Bed(x=value_state(int, ttl="per_write"), n=number())
    with before.on() as s:
        s.x.value = 1
    before.commit(0)
    bed = reopened(before, x=value_state(int, ttl="per_write"))
    assert next(iter(bed.kept().values())).x == (NEVER, 1)
