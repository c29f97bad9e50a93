"""What records of a join are made of, and which definitions are refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from millrace.host.spark_types import struct_type
from millrace.joins import (
    FOREVER,
    JoinDefinitionError,
    Match,
    asof_join,
    interval,
    interval_join,
    table_join,
    window_join,
)
from millrace.testing import TestDriver
from millrace.windows import count_tumbling, session, sliding, tumbling
from millrace.windows.fields import without_none


class A(msgspec.Struct):
    a: int
    b: str = "left b"
    c: float = 1.0


class B(msgspec.Struct):
    b: str | None = "right b"
    c: float = 2.0
    d: bool = True


class Odd(msgspec.Struct):
    c: str = "text"


class Taken(msgspec.Struct):
    left_ms: int


class Pair(msgspec.Struct):
    text: str


def asof(left: Any = A, right: Any = B, **how: Any) -> Any:
    return asof_join(left=left, right=right, **{"keep": FOREVER, "emit": "final", **how})


def run(process: Any, *, pair: bool = True) -> Any:
    driver = TestDriver(process)
    if pair:
        driver.send("k", B(), at=1, input="right")
    driver.send("k", A(1), at=2, input="left")
    driver.drain()
    assert driver.values("dead_letters") == []
    (row,) = driver.values()
    return row


@pytest.mark.parametrize(
    ("on_merge", "pair", "wanted"),
    [
        ("keep-left", True, {"a": 1, "b": "left b", "c": 1.0, "d": True}),
        ("keep-right", True, {"a": 1, "b": "right b", "c": 2.0, "d": True}),
        ("keep-left", False, {"a": 1, "b": "left b", "c": 1.0, "d": None}),
        ("keep-right", False, {"a": 1, "b": "left b", "c": 1.0, "d": None}),
    ],
)
def test_fields_of_one_name_are_taken_from_the_side_that_is_kept(
    on_merge: Any, pair: bool, wanted: dict[str, Any]
) -> None:
    """V23; where the kept side is missing, the other has the word."""
    row = msgspec.structs.asdict(run(asof(on_merge=on_merge), pair=pair))
    assert row == {**wanted, "left_ms": 2, "right_ms": 1 if pair else None}


def test_fields_of_one_name_may_be_an_error() -> None:
    with pytest.raises(JoinDefinitionError, match=r"^Overlapping columns: b, c\. "):
        asof(on_merge="raise")


def test_raise_is_content_where_no_name_is_on_both_sides() -> None:
    class Other(msgspec.Struct):
        x: int

    assert asof(A, Other, on_merge="raise").output_type.__struct_fields__ == (
        *("a", "b", "c", "x"),
        *("left_ms", "right_ms"),
    )


def test_a_function_makes_its_own_records() -> None:
    row = run(asof(on_merge=lambda left, right: Pair(f"{left.a} {right and right.d}"), record=Pair))
    assert row == Pair("1 True")


def test_a_function_of_three_is_told_of_the_match() -> None:
    told: list[Match] = []

    def merge(left: A, right: B | None, match: Match) -> Pair:
        told.append(match)
        return Pair(match.left_id)

    row = run(asof(on_merge=merge, record=Pair, emit="corrections"))
    assert told == [Match(left_ms=2, right_ms=1, left_id=row.text, revision=0)]
    assert len(row.text) == 16


def test_a_function_that_fails_puts_its_event_aside() -> None:
    def merge(left: A, right: B | None) -> Pair:
        raise ValueError("no pair")

    driver = TestDriver(asof(on_merge=merge, record=Pair))
    driver.send("k", A(1), at=1, input="left")
    driver.drain()
    assert [letter["error"] for letter in driver.values("dead_letters")] == ["ValueError: no pair"]


@pytest.mark.parametrize(
    ("process", "wanted"),
    [
        (asof(how="inner"), "a:bigint,b:string,c:double,d:boolean,left_ms:bigint,right_ms:bigint"),
        (
            asof(on_merge="keep-right", emit="corrections"),
            "a:bigint,b:string,c:double,d:boolean,left_ms:bigint,right_ms:bigint,"
            "left_id:string,revision:bigint",
        ),
        (
            window_join(left=A, right=B, assigner=tumbling(5), how="outer"),
            "a:bigint,b:string,c:double,d:boolean,window_start_ms:bigint,window_end_ms:bigint,"
            "left_ms:bigint,right_ms:bigint",
        ),
    ],
)
def test_records_have_types_that_spark_knows(process: Any, wanted: str) -> None:
    assert struct_type(process.output_type).simpleString() == f"struct<{wanted}>"


@pytest.mark.parametrize(
    ("how", "missing"),
    [
        ("inner", set()),
        ("left", {"d", "right_ms"}),
        ("right", {"a", "b", "left_ms"}),
        ("outer", {"a", "b", "d", "left_ms", "right_ms"}),
    ],
)
def test_fields_of_a_side_that_may_be_missing_may_be_none(how: Any, missing: set[str]) -> None:
    process = interval_join(left=A, right=B, within=interval(), how=how)
    types = {f.name: f.type for f in msgspec.structs.fields(process.output_type)}
    # b may be None on the right side itself, and is the right one's where there is no left.
    assert {name for name, tp in types.items() if without_none(tp)[1]} == missing


REFUSED = {
    "asof_join keeps the latest right event of every key": lambda: asof_join(left=A, right=B),
    "keep must be at least 1 ms": lambda: asof(keep=0),
    "keep is a timedelta or whole milliseconds, not 'ever'": lambda: asof(keep="ever"),
    "grace must be at least 0 ms": lambda: asof(grace=-1),
    "grace is a timedelta": lambda: asof(grace=True),
    "how of an as-of join is 'inner' or 'left', not 'outer'": lambda: asof(how="outer"),
    "emit is 'corrections' or 'final', not 'updates'": lambda: asof(emit="updates"),
    "an inner join cannot correct a row to none": lambda: asof(
        how="inner", emit="corrections", deletes=lambda b: not b.d
    ),
    "on_merge is 'keep-left', 'keep-right', 'raise' or a function": lambda: asof(on_merge="left"),
    "on_merge is a function: say with record=": lambda: asof(on_merge=lambda a, b: a),
    "record= goes with a function": lambda: asof(record=Pair),
    "the name 'left_ms' is taken": lambda: asof(Taken, A),
    "int has no fields": lambda: asof(int, A),
    "the field 'c' is str on one side and float on the other": lambda: interval_join(
        left=Odd, right=B, within=interval(), how="outer"
    ),
    "how is 'inner', 'left', 'right' or 'outer', not 'full'": lambda: interval_join(
        left=A, right=B, within=interval(), how="full"
    ),
    "within is interval": lambda: interval_join(left=A, right=B, within=5),
    "backward must be at least 0 ms": lambda: interval(backward=-1),
    "a window join is over tumbling": lambda: window_join(left=A, right=B, assigner=sliding(5)),
    "a window join is over": lambda: window_join(left=A, right=B, assigner=count_tumbling(5)),
    "and cut_every": lambda: window_join(left=A, right=B, assigner=session(5, cut_every=50)),
    "sessions without max_length": lambda: window_join(left=A, right=B, assigner=session(5, max_length=50)),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_meant_is_refused_at_once(message: str) -> None:
    with pytest.raises(JoinDefinitionError, match=message):
        REFUSED[message]()


def test_joins_have_names_of_their_own() -> None:
    assert asof().name == "a_asof_b"
    assert table_join(stream=A, table=B).name == "a_table_b"
    assert interval_join(left=A, right=B, within=interval()).name == "a_interval_b"
    assert window_join(left=A, right=B, assigner=tumbling(5)).name == "a_window_b"
    assert asof(name="status").name == "status"


def test_a_stream_may_be_joined_with_itself() -> None:
    process = interval_join(left=A, right=A, within=interval(backward=5))
    driver = TestDriver(process)
    driver.send("k", A(1), at=1, input="right")
    driver.send("k", A(2), at=2, input="left")
    driver.drain()
    assert [(r.a, r.left_ms, r.right_ms) for r in driver.values()] == [(2, 2, 1)]
