"""Event types as JSON Schema: readable, and the same bytes from the same types."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from millrace.errors import UserError
from millrace.privacy.fields import marks_of, structs_in

#: The dialect of the schemas.
DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_REF: Final = "#/$defs/"
#: What a schema says for people, and not about which events are valid.
ANNOTATIONS: Final = frozenset(
    {"$schema", "$id", "$comment", "$defs", "title", "description", "examples", "discriminator"}
)
_ROLE: Final = re.compile(r":\w+:`~?(?:[^`]*\.)?([^`.]+)`")
_ENTRY: Final = re.compile(r"(\w+)(?: \([^)]*\))?: (.*)")


class SchemaError(UserError):
    """A type has no JSON Schema, or a schema file cannot be used."""


def json_schema(tp: Any, *, identity: str | None = None) -> dict[str, Any]:
    """Return the JSON Schema of an event type; descriptions come from the docstrings' ``Attributes``.

    Args:
        tp: A msgspec struct, a union of structs, or any type that msgspec knows.
        identity: What goes into ``$id``, e.g. ``urn:millrace:fraud:transaction:1``.

    Raises:
        SchemaError: The type has no JSON Schema.

    Example:
        >>> class Tick(msgspec.Struct):
        ...     '''A price.
        ...
        ...     Attributes:
        ...         symbol: Of which share.
        ...     '''
        ...     symbol: str
        ...     price: float | None = None
        >>> made = json_schema(Tick)
        >>> made["required"], made["properties"]["symbol"]
        (['symbol'], {'description': 'Of which share.', 'type': 'string'})
    """
    try:
        raw = msgspec.json.schema(tp)
    except (TypeError, ValueError) as error:
        raise SchemaError(f"{getattr(tp, '__name__', tp)} has no JSON Schema: {error}") from error
    defs = {name: _described(found) for name, found in raw.pop("$defs", {}).items()}
    for struct in structs_in(tp):
        for field, mark in marks_of(struct).items():
            defs[struct.__name__]["properties"][field][str(mark)] = True
    top = str(raw.get("$ref", ""))
    if top.startswith(_REF) and len(raw) == 1:
        raw = defs[top.removeprefix(_REF)]
    head: dict[str, Any] = {"$schema": DIALECT}
    if identity is not None:
        head["$id"] = identity
    used = set(_references(raw, defs))
    kept = {name: found for name, found in sorted(defs.items()) if name in used}
    return {**head, **raw, **({"$defs": kept} if kept else {})}


def dumps(schema: Mapping[str, Any]) -> str:
    """Return a schema as the text of its file."""
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def resolved(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema with every reference replaced by what it refers to.

    Raises:
        SchemaError: A reference leads elsewhere than ``$defs``, or a type contains itself.

    Example:
        >>> resolved({"$ref": "#/$defs/N", "$defs": {"N": {"type": "integer"}}})
        {'type': 'integer'}
    """
    defs = schema.get("$defs", {})

    def walk(node: Any, inside: tuple[str, ...]) -> Any:
        if isinstance(node, list):
            return [walk(part, inside) for part in node]
        if not isinstance(node, dict):
            return node
        if "$ref" not in node:
            return {k: walk(v, inside) for k, v in node.items() if k != "$defs"}
        name = str(node["$ref"]).removeprefix(_REF)
        if name not in defs:
            raise SchemaError(f"{node['$ref']} is not in $defs: contracts stand for themselves")
        if name in inside:
            raise SchemaError(f"{name} contains itself: contracts describe events of bounded depth")
        beside = {k: v for k, v in node.items() if k not in ("$ref", "$defs")}
        return {**walk(defs[name], (*inside, name)), **beside}

    found: dict[str, Any] = walk(dict(schema), ())
    return found


def meaning(schema: Mapping[str, Any]) -> Any:
    """Return what a schema says about events, and nothing else: equal for equal contracts.

    Example:
        >>> meaning({"const": "EUR", "title": "x"}) == meaning({"enum": ["EUR"]})
        True
    """

    def walk(node: Any) -> Any:
        if isinstance(node, list):
            return [walk(part) for part in node]
        if not isinstance(node, dict):
            return node
        found = {k: walk(v) for k, v in node.items() if not _is_annotation(k) and k != "properties"}
        if "properties" in node:  # names, not keywords: a field may be called title
            found["properties"] = {name: walk(v) for name, v in node["properties"].items()}
        if "const" in found:
            found["enum"] = [found.pop("const")]
        if found.get("additionalProperties") is True:
            del found["additionalProperties"]
        for unordered in ("enum", "required", "anyOf"):
            if unordered in found:
                found[unordered] = sorted(found[unordered], key=lambda v: json.dumps(v, sort_keys=True))
        if found.get("required") == []:
            del found["required"]
        return found

    return walk(resolved(schema))


def _is_annotation(keyword: str) -> bool:
    """Return whether a keyword says nothing of which events are valid, as none does that begins with x-."""
    return keyword in ANNOTATIONS or keyword.startswith("x-")


def _references(node: Any, defs: Mapping[str, Any], seen: tuple[str, ...] = ()) -> Iterator[str]:
    if isinstance(node, list):
        for part in node:
            yield from _references(part, defs, seen)
    elif isinstance(node, dict):
        for name, value in node.items():
            if name == "$ref" and (found := str(value).removeprefix(_REF)) in defs and found not in seen:
                yield found
                yield from _references(defs[found], defs, (*seen, found))
            elif name != "$ref":
                yield from _references(value, defs, seen)


def _described(found: dict[str, Any]) -> dict[str, Any]:
    """Return a type's schema with its docstring cut up: what it is, and what each field is."""
    text, fields = _docstring(found.get("description", ""))
    made: dict[str, Any] = {"title": found["title"]} if "title" in found else {}
    if text:
        made["description"] = text
    rest = {k: v for k, v in found.items() if k not in made and k not in ("description", "properties")}
    made |= {k: rest.pop(k) for k in ("type", "additionalProperties", "required") if k in rest}
    if "properties" in found:
        made["properties"] = {
            name: {"description": fields[name], **value} if name in fields else value
            for name, value in found["properties"].items()
        }
    return {**made, **rest}


def _docstring(text: str) -> tuple[str, dict[str, str]]:
    """Return what a docstring says of a type and, under ``Attributes``, of each of its fields."""
    head, _, tail = inspect.cleandoc(text).partition("\nAttributes:\n")
    fields: dict[str, str] = {}
    name = ""
    for line in tail.splitlines():
        if line and not line.startswith(" "):
            break  # another section
        entry = _ENTRY.match(line.strip()) if line.startswith("    ") and line[4:5] != " " else None
        if entry:
            name = entry[1]
            fields[name] = entry[2]
        elif name:
            fields[name] += f" {line.strip()}"
    return _plain(head), {field: _plain(said) for field, said in fields.items()}


def _plain(text: str) -> str:
    return " ".join(_ROLE.sub(r"\1", text).replace("``", "").split())
