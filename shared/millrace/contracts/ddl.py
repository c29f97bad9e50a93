"""Spark's column definitions (DDL) from a contract, as text: what ``from_json`` takes, without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from millrace.contracts.schema import SchemaError, resolved

_SCALARS: Final = {"string": "STRING", "integer": "BIGINT", "number": "DOUBLE", "boolean": "BOOLEAN"}
_FORMATS: Final = {"date-time": "TIMESTAMP", "date": "DATE"}


def spark_ddl(schema: Mapping[str, Any]) -> str:
    """Return the columns of a contract as Spark's DDL, in the order of its fields.

    Every column may be null: Spark's ``from_json`` gives null for what is missing, and checks no other rule
    of the contract.

    Args:
        schema: JSON Schema of an object, or of a union of objects (then: the columns of all of them).

    Raises:
        SchemaError: It is no object, or a field has no Spark type.

    Example:
        >>> spark_ddl({"type": "object", "properties": {"id": {"type": "string"},
        ...     "sizes": {"type": "array", "items": {"type": ["integer", "null"]}}}})
        '`id` STRING, `sizes` ARRAY<BIGINT>'
    """
    columns = _columns(resolved(schema), "the event")
    return ", ".join(f"{_quoted(name)} {kind}" for name, kind in columns.items())


def _columns(node: Mapping[str, Any], where: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in _alternatives(node):
        if part.get("type") != "object" or "properties" not in part:
            raise SchemaError(f"{where} is no object with fields, so it has no columns")
        for name, value in part["properties"].items():
            kind = _type(value, f"{where}.{name}" if where != "the event" else name)
            if found.setdefault(name, kind) != kind:
                raise SchemaError(f"{name} is {found[name]} in one kind of event and {kind} in another")
    return found


def _type(node: Mapping[str, Any], where: str) -> str:
    kinds = list(dict.fromkeys(_one(part, where) for part in _alternatives(node)))
    if kinds in (["BIGINT", "DOUBLE"], ["DOUBLE", "BIGINT"]):
        return "DOUBLE"
    if len(kinds) > 1 and all(part.get("type") == "object" for part in _alternatives(node)):
        return _struct(node, where)
    if len(kinds) != 1:
        raise SchemaError(f"{where} may be {' or '.join(kinds) or 'null only'}: a column has one type")
    return kinds[0]


def _one(node: Mapping[str, Any], where: str) -> str:
    kind = node.get("type")
    if kind is None and "enum" in node and all(isinstance(v, str) for v in node["enum"]):
        kind = "string"
    if kind is None and "enum" in node and all(type(v) is int for v in node["enum"]):
        kind = "integer"
    if kind == "string":
        if node.get("contentEncoding") == "base64":
            return "BINARY"
        return _FORMATS.get(str(node.get("format")), "STRING")
    if kind == "array":
        return f"ARRAY<{_type(node.get('items') or {}, f'{where}[]')}>"
    if kind == "object":
        if "properties" in node:
            return _struct(node, where)
        return f"MAP<STRING, {_type(_values(node), f'{where}{{}}')}>"
    if kind not in _SCALARS:
        raise SchemaError(f"{where} has no Spark type: a column is of one known type")
    return _SCALARS[kind]


def _struct(node: Mapping[str, Any], where: str) -> str:
    inside = ", ".join(f"{_quoted(name)}: {kind}" for name, kind in _columns(node, where).items())
    return f"STRUCT<{inside}>"


def _values(node: Mapping[str, Any]) -> Mapping[str, Any]:
    found = node.get("additionalProperties")
    return found if isinstance(found, dict) else {}


def _alternatives(node: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return what a value may be, null left out."""
    if "anyOf" in node:
        return [one for part in node["anyOf"] for one in _alternatives(part)]
    if "const" in node:
        node = {**{k: v for k, v in node.items() if k != "const"}, "enum": [node["const"]]}
    kinds = node["type"] if isinstance(node.get("type"), list) else [node.get("type")]
    if "enum" in node and None in node["enum"]:
        node = {**node, "enum": [v for v in node["enum"] if v is not None]}
    return [{**node, "type": kind} for kind in kinds if kind != "null"]


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
