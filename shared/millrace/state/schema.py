"""The schema of a state as plain data: declarations and types, described without names of code.

A description goes into the checkpoint's contract and, once per key group, beside the pages, so that a
process whose declarations have changed can read what an earlier version of it wrote, or refuse to
before it has read anything (:mod:`millrace.state.evolution`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

from msgspec import inspect

from millrace.state.slots import slot_form
from millrace.state.specs import StateSpec
from millrace.type_info import type_info

#: Types that hold items of one type.
_CONTAINERS: Final[dict[type, str]] = {
    inspect.ListType: "list",
    inspect.SetType: "set",
    inspect.FrozenSetType: "frozenset",
    inspect.VarTupleType: "tuple",
}
#: What limits the values of a type; a limit that is new refuses older values.
CONSTRAINTS: Final = ("gt", "ge", "lt", "le", "multiple_of", "pattern", "min_length", "max_length", "tz")
Described = str | dict[str, Any]


def describe_state(spec: StateSpec) -> dict[str, Any]:
    """Return a declaration as plain data, as it stands in a contract."""
    described: dict[str, Any] = {
        "kind": spec.kind,
        "type": describe_type(spec.type),
        "key_type": None if spec.key_type is None else describe_type(spec.key_type),
        "ttl_ms": "per_write" if spec.per_write else spec.ttl_ms,
    }
    if spec.expires:
        described["ttl_time"] = spec.ttl_time
    if spec.history_ms is not None:
        described["history_ms"] = spec.history_ms
    if spec.aliases:
        described["alias"] = list(spec.aliases)
    if spec.paged:
        described["paged"] = True
    return described


def describe_type(tp: Any) -> Described:
    """Return a type as plain data that does not change between runs.

    >>> describe_type(dict[str, int | None])
    {'dict': ['str', {'union': ['int', 'none']}]}
    """
    try:
        return _describe(type_info(tp), ())
    except TypeError:
        return str(tp)  # binding the process refuses it with a message of its own


def _describe(info: inspect.Type, inside: tuple[Any, ...]) -> Described:
    if isinstance(info, inspect.Metadata):
        return _describe(info.type, inside)
    if type(info) in _CONTAINERS:
        item: Any = info
        return {_CONTAINERS[type(info)]: _describe(item.item_type, inside), **_constraints(info)}
    if isinstance(info, inspect.TupleType):
        return {"tuple_of": [_describe(t, inside) for t in info.item_types]}
    if isinstance(info, inspect.DictType):
        key, value = _describe(info.key_type, inside), _describe(info.value_type, inside)
        return {"dict": [key, value], **_constraints(info)}
    if isinstance(info, inspect.UnionType):
        return {"union": [_describe(t, inside) for t in info.types]}
    if isinstance(info, inspect.EnumType):
        return {"enum": info.cls.__name__, "values": [m.value for m in info.cls]}
    if isinstance(info, inspect.LiteralType):
        return {"literal": list(info.values)}
    if hasattr(info, "fields"):
        return _describe_fields(info, inside)
    named = getattr(info, "cls", None)
    if named is not None:
        return {"custom": named.__qualname__}
    name = type(info).__name__.removesuffix("Type").lower()
    constraints = _constraints(info)
    return {"scalar": name, **constraints} if constraints else name


def stored_name(cls: type) -> str:
    """Return what a struct is called in descriptions: its ``__stored_as__``, else its name.

    >>> class Balance: __stored_as__ = "Account"  # a name of before
    >>> stored_name(Balance), stored_name(type("Loan", (Balance,), {}))
    ('Account', 'Loan')
    """
    named: str = cls.__dict__.get("__stored_as__", cls.__name__)
    return named


def _constraints(info: inspect.Type) -> dict[str, Any]:
    found = {c: getattr(info, c, None) for c in CONSTRAINTS}
    return {c: v for c, v in found.items() if v is not None}


def _describe_fields(info: Any, inside: tuple[Any, ...]) -> Described:
    cls = getattr(info, "cls", None)
    if cls is not None and cls in inside:
        return {"within": stored_name(cls)}
    form = (
        "array" if getattr(info, "array_like", False) or isinstance(info, inspect.NamedTupleType) else "map"
    )
    fields = []
    for field in info.fields:
        described = [field.encode_name, _describe(field.type, (*inside, cls))]
        fields.append(described if field.required else [*described, "default"])
    found: dict[str, Any] = {
        "struct": "dict" if cls is None else stored_name(cls),
        "form": form,
        "fields": fields,
    }
    if getattr(info, "tag", None) is not None:
        found["tag"] = [info.tag_field, info.tag]
    if getattr(getattr(cls, "__struct_config__", None), "omit_defaults", False):
        found["omit_defaults"] = True
    if getattr(info, "forbid_unknown_fields", False):
        found["forbid_unknown_fields"] = True
    return found


def schema_of(specs: Iterable[StateSpec]) -> bytes:
    """Return what the slots of an entry are, in order, as it is kept beside the pages.

    Lengths of lives are not part of it: they may change, and the bytes stay what they are.
    """
    slots = [described_slot(spec) for spec in specs]
    return json.dumps(slots, separators=(",", ":"), default=repr).encode()


def described_slot(spec: StateSpec) -> tuple[str, str, dict[str, Any]]:
    """Return what a slot is: the state's name, how it is packed, and what it holds."""
    state = describe_state(spec)
    kept = {k: v for k, v in state.items() if k not in ("ttl_ms", "history_ms", "alias")}
    return spec.stored_name, slot_form(spec), kept
