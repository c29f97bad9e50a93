"""Values come from types: those at the bounds are allowed, those beyond are not."""

from __future__ import annotations

import enum
import json
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta

from millrace.chaos.values import STRANGE, allowed, joined, refused
from millrace.dead_letters import NOT_JSON
from millrace_apps.clickstream.contracts.events import Click, Refund
from millrace_apps.fraud.contracts.events import Control, Transaction
from millrace_apps.iot_maintenance.contracts.signals import INPUTS
from millrace_apps.ridesharing.contracts.events import INPUTS as RIDES


class Colour(enum.Enum):
    red = "r"
    green = "g"


class Line(msgspec.Struct):
    item: Annotated[str, Meta(min_length=1, max_length=3)]
    pieces: Annotated[int, Meta(gt=0, lt=5)]


#: Type → what must be among the values that are allowed, and among those that are not.
CASES: list[tuple[Any, set[Any], set[Any]]] = [
    (Annotated[int, Meta(ge=-3, le=9)], {-3, 9}, {-4, 10}),
    (Annotated[int, Meta(gt=0, lt=5)], {1, 4}, {0, 5}),
    (Annotated[int, Meta(ge=1, le=100, multiple_of=7)], {7, 98}, {6, 99}),
    (Annotated[float, Meta(ge=-0.5, le=2.5)], {-0.5, 2.5}, {-2.0, 6.0}),
    (Annotated[float, Meta(gt=0, le=1)], {5e-324, 1}, {2}),
    (Annotated[str, Meta(min_length=2, max_length=4)], {"xx", "xxxx", "\U0001f600" * 4}, {"x", "xxxxx"}),
    (Annotated[str, Meta(pattern="^[A-Z]{2}$")], {"AA"}, {"\u00e9\n!"}),
    (Literal["a", "b", 3], {"a", "b", 3}, {"no such thing"}),
    (Colour, {"r", "g"}, {"no such thing"}),
    (bool, {True, False}, set()),
    (int | None, {None, 0, 2**63, -(2**63) - 1}, set()),
    (str, {"", "a\x00b", "12345678901234567890"}, set()),
    (float, {1e21, 1.7976931348623157e308}, set()),
    (datetime, {"9999-12-31T23:59:59.999Z"}, set()),
]


def fits(raw: bytes, tp: Any) -> bool:
    try:
        msgspec.json.decode(raw, type=tp)
    except NOT_JSON:
        return False
    return True


@pytest.mark.parametrize(("tp", "inside", "outside"), CASES)
def test_the_outermost_values_are_there_and_the_next_ones_are_refused(
    tp: Any, inside: set[Any], outside: set[Any]
) -> None:
    found, beyond = allowed(tp), refused(tp)
    assert inside <= {json.loads(value.raw) for value in found}
    assert outside <= {json.loads(value.raw) for value in beyond}
    assert [value for value in found if not fits(value.raw, tp)] == []
    assert [value for value in beyond if fits(value.raw, tp)] == []


@pytest.mark.parametrize(
    "tp",
    [
        list[Line],
        Annotated[list[Line], Meta(min_length=1, max_length=3)],
        tuple[Line, ...],
        dict[str, int],
        Annotated[dict[Annotated[str, Meta(max_length=2)], bool], Meta(max_length=3)],
        set[int],
        tuple[int, str],
        Line,
    ],
)
def test_containers_have_every_outermost_value_of_what_is_in_them(tp: Any) -> None:
    found = allowed(tp)
    assert len(found) > (0 if tp == tuple[int, str] else 3)
    # An entry that slips in although it is refused is told by its contract when it is sent.
    assert sum(fits(value.raw, tp) for value in found) > 0.9 * len(found)
    assert [value for value in refused(tp) if fits(value.raw, tp)] == []
    for value in found:
        json.loads(value.raw)


@pytest.mark.parametrize("tp", [Transaction, Click, Refund, *INPUTS.values(), *RIDES.values(), Control])
def test_every_field_of_the_apps_has_values_at_its_bounds_and_none_is_without_any(tp: Any) -> None:
    info = msgspec.inspect.type_info(tp)
    structs = info.types if isinstance(info, msgspec.inspect.UnionType) else (info,)
    for struct in structs:
        for field in struct.fields:
            assert allowed(field.type), field.name
            assert [v.label for v in allowed(field.type) if v.raw == b""] == []


@pytest.mark.parametrize("tp", [Transaction, Click, Refund, *INPUTS.values(), *RIDES.values()])
def test_every_number_text_and_list_of_the_apps_has_a_bound(tp: Any) -> None:
    """So that none of them brings what the state cannot keep."""

    def unbounded(info: msgspec.inspect.Type, at: str) -> list[str]:
        if isinstance(info, msgspec.inspect.Metadata):
            return unbounded(info.type, at)
        if isinstance(info, msgspec.inspect.UnionType):
            return [found for one in info.types for found in unbounded(one, at)]
        if isinstance(info, msgspec.inspect.StructType):
            return [found for one in info.fields for found in unbounded(one.type, f"{at}.{one.name}")]
        if isinstance(info, msgspec.inspect.IntType | msgspec.inspect.FloatType):
            lower = info.ge is not None or info.gt is not None
            upper = info.le is not None or info.lt is not None
            return [] if lower and upper else [at]
        if isinstance(info, msgspec.inspect.StrType):
            return [] if info.max_length is not None or info.pattern is not None else [at]
        if isinstance(info, msgspec.inspect.ListType | msgspec.inspect.VarTupleType):
            return ([] if info.max_length is not None else [at]) + unbounded(info.item_type, f"{at}[]")
        if isinstance(info, msgspec.inspect.DictType):
            own = [] if info.max_length is not None else [at]
            return own + unbounded(info.key_type, f"{at}*") + unbounded(info.value_type, f"{at}[]")
        return []

    assert unbounded(msgspec.inspect.type_info(tp), "") == []


def test_strange_values_are_strange_in_many_ways() -> None:
    raws = [value.raw for value in STRANGE]
    assert len({value.label for value in STRANGE}) == len(STRANGE)
    for wanted in (b"NaN", b"null", b"[]", b"{}", b"", b'"\\ud800"', str(2**63).encode(), str(2**53).encode(),
                   str(-(10**21)).encode(), b'""', b'"a\\u0000b"'):  # fmt: skip
        assert wanted in raws, wanted
    assert max(map(len, raws)) >= 1_000_000
    assert joined({"a": b"1", 'q"': b"[]"}) == b'{"a":1,"q\\"":[]}'
