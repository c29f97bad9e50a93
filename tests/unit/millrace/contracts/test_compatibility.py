"""Who can read what whom wrote: every rule in both directions, and against the classes themselves."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millrace.contracts import Mode, breaks, json_schema
from millrace_apps.fraud.contracts.control_events import ResetThreshold, SetThreshold
from millrace_apps.fraud.contracts.events import Control, Transaction


def event(required: tuple[str, ...] = ("x",), **fields: Any) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": list(required)}


TEXT, WHOLE, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}

#: Old, new, reasons of backward, reasons of forward.
CASES: dict[str, tuple[Any, Any, list[str], list[str]]] = {
    "same": (event(x=TEXT), event(x=TEXT), [], []),
    "optional field is new": (event(x=TEXT), event(x=TEXT, y=TEXT), [], []),
    "required field is new": (
        event(x=TEXT),
        event(("x", "y"), x=TEXT, y=TEXT),
        ["y: a does not have it, b requires it: give it a default"],
        [],
    ),
    "required field is gone": (
        event(("x", "y"), x=TEXT, y=TEXT),
        event(x=TEXT),
        [],
        ["y: b does not have it, a requires it: give it a default"],
    ),
    "field becomes optional": (
        event(x=TEXT),
        event((), x=TEXT),
        [],
        ["x: b may leave it out, a requires it: give it a default"],
    ),
    "type is widened": (event(x=WHOLE), event(x=NUMBER), [], ["x: b writes number, a reads integer"]),
    "type is another": (
        event(x=WHOLE),
        event(x=TEXT),
        ["x: a writes integer, b reads string"],
        ["x: b writes string, a reads integer"],
    ),
    "null is allowed": (
        event(x=TEXT),
        event(x={"anyOf": [TEXT, {"type": "null"}]}),
        [],
        ["x: b writes null, a reads string"],
    ),
    "null by a list of types": (
        event(x={"type": ["string", "null"]}),
        event(x=TEXT),
        ["x: a writes null, b reads string"],
        [],
    ),
    "value is new": (
        event(x={"enum": ["p", "q"]}),
        event(x={"enum": ["p", "q", "r"]}),
        [],
        ['x: b writes "r", which a refuses'],
    ),
    "set becomes any text": (
        event(x={"const": "p"}),
        event(x=TEXT),
        [],
        ['x: b writes any string, a reads only "p"'],
    ),
    "set of texts keeps the length": (
        event(x={"enum": ["pp"]}),
        event(x={**TEXT, "minLength": 2}),
        [],
        ['x: b writes any string, a reads only "pp"'],
    ),
    "bound is wider": (
        event(x={**NUMBER, "maximum": 5}),
        event(x={**NUMBER, "maximum": 9}),
        [],
        ["x: b keeps 9, a demands maximum 5"],
    ),
    "bound is new": (
        event(x=WHOLE),
        event(x={**WHOLE, "minimum": 0}),
        ["x: a keeps no limit, b demands minimum 0"],
        [],
    ),
    "bound is exclusive": (
        event(x={**NUMBER, "minimum": 0}),
        event(x={**NUMBER, "exclusiveMinimum": 0}),
        ["x: a keeps 0, b demands exclusiveMinimum 0"],
        [],
    ),
    "longer": (
        event(x={**TEXT, "maxLength": 5}),
        event(x={**TEXT, "maxLength": 9}),
        [],
        ["x: b keeps 9, a demands maxLength 5"],
    ),
    "pattern": (
        event(x={**TEXT, "pattern": "^a"}),
        event(x={**TEXT, "pattern": "^b"}),
        ["x: a keeps pattern ^a, b demands pattern ^b"],
        ["x: b keeps pattern ^b, a demands pattern ^a"],
    ),
    "pattern is gone": (
        event(x={**TEXT, "pattern": "^a"}),
        event(x=TEXT),
        [],
        ["x: b keeps no pattern, a demands pattern ^a"],
    ),
    "in a list": (
        event(x={"type": "array", "items": WHOLE}),
        event(x={"type": "array", "items": NUMBER}),
        [],
        ["x[]: b writes number, a reads integer"],
    ),
    "in a map": (
        event(x={"type": "object", "additionalProperties": NUMBER}),
        event(x={"type": "object", "additionalProperties": WHOLE}),
        ["x{}: a writes number, b reads integer"],
        [],
    ),
    "in an object": (
        event(x=event(y=TEXT, required=())),
        event(x=event(("y",), y=TEXT)),
        ["x.y: a may leave it out, b requires it: give it a default"],
        [],
    ),
    "closed": (
        event(x=TEXT, y=TEXT),
        {**event(x=TEXT), "additionalProperties": False},
        ["y: a writes it, b takes no others"],
        [],
    ),
    "keyword that is not compared": (
        event(x=TEXT),
        event(x={**TEXT, "not": {"const": "p"}}),
        ["x: b has not, which is not compared: it must be as in a"],
        [],
    ),
    "nothing": (
        event(x=TEXT),
        event((), x=False),
        ["x: a writes string, b reads nothing"],
        ["x: b may leave it out, a requires it: give it a default"],
    ),
    "a tuple's part": (
        event(
            x={"type": "array", "prefixItems": [TEXT, WHOLE], "minItems": 2, "maxItems": 2, "items": False}
        ),
        event(
            x={"type": "array", "prefixItems": [TEXT, NUMBER], "minItems": 2, "maxItems": 2, "items": False}
        ),
        [],
        ["x[1]: b writes number, a reads integer"],
    ),
    "anything": (event(x=TEXT), event(x={}), [], ["x: b writes any value, a reads string"]),
}


@pytest.mark.parametrize("name", CASES)
def test_reasons_of_each_direction(name: str) -> None:
    old, new, backward, forward = CASES[name]
    told = {m: [f"{b.where}: {b.why}" for b in breaks(old, new, m, names=("a", "b"))] for m in Mode}
    assert told[Mode.backward] == backward
    assert told[Mode.forward] == forward
    assert told[Mode.full] == backward + forward


def test_a_new_member_of_a_union_is_unknown_to_the_old_reader() -> None:
    new = json_schema(ResetThreshold | SetThreshold)
    old = {**new, "anyOf": [new["anyOf"][0]]}
    assert breaks(old, new) == []
    (found, *_) = breaks(old, new, Mode.forward)
    assert found.where in ("kind", "value")
    assert str(found).startswith("not forward compatible: ")


def test_every_contract_reads_itself() -> None:
    for tp in (Transaction, Control):
        assert breaks(json_schema(tp), json_schema(tp), Mode.full) == []


FIELD = st.sampled_from([TEXT, WHOLE, NUMBER, {"type": "boolean"}, {"type": ["integer", "null"]},
                         {"enum": ["p", "q"]}, {"enum": ["p"]}, {**WHOLE, "minimum": 1},
                         {**TEXT, "minLength": 2}, {**NUMBER, "exclusiveMaximum": 3}])  # fmt: skip
VALUE = st.sampled_from(["p", "q", "pp", 0, 1, 2, 2.5, True, None])
SCHEMA = st.builds(
    lambda fields, required: event(tuple(f for f in fields if f in required), **fields),
    st.dictionaries(st.sampled_from("xyz"), FIELD),
    st.sets(st.sampled_from("xyz")),
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(old=SCHEMA, new=SCHEMA, value=st.dictionaries(st.sampled_from("xyz"), VALUE))
def test_no_break_means_that_what_the_old_took_the_new_takes(old: Any, new: Any, value: Any) -> None:
    if breaks(old, new):
        return
    known = {name: v for name, v in value.items() if name in old["properties"]}
    if jsonschema.Draft202012Validator(old).is_valid(known):
        assert jsonschema.Draft202012Validator(new).is_valid(known), json.dumps([old, new, known])


def test_the_classes_behave_as_the_rules_say() -> None:
    class Before(msgspec.Struct):
        a: int

    class After(msgspec.Struct):
        a: float
        b: str = "none"

    class Strict(msgspec.Struct):
        a: float
        b: str

    written = msgspec.json.encode(Before(1))
    assert breaks(json_schema(Before), json_schema(After)) == []
    assert msgspec.json.decode(written, type=After) == After(1.0)
    assert [b.where for b in breaks(json_schema(Before), json_schema(Strict))] == ["b"]
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(written, type=Strict)
