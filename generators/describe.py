"""The text of `millrace generate describe DOMAIN`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from millrace_apps.generators.domain_command import help_of
from millrace_apps.generators.domains import load
from millrace_apps.generators.engine.profile import Profile


def description(name: str) -> str:
    """Return what a domain has: streams with their fields, parameters with defaults, kinds of truth.

    Raises:
        UserError: If there is no such domain.
    """
    return "\n".join(_domain(name))


def as_data(name: str) -> dict[str, Any]:
    """Return the same as plain data.

    Raises:
        UserError: If there is no such domain.

    Example:
        >>> as_data("iot")["streams"]["readings"]["identified_by"]
        'reading_id'
    """
    domain = load(name)
    texts = {**help_of(Profile), **help_of(domain.profile)}
    return {
        "domain": domain.name,
        "about": domain.description,
        "streams": {
            stream: {
                "topic": spec.topic,
                "version": spec.schema_version,
                "identified_by": spec.id_field,
                "fields": _fields(spec.event_type),
            }
            for stream, spec in domain.streams.items()
        },
        "parameters": {
            field.name: {"default": str(field.default), "about": texts.get(field.name, "")}
            for field in dataclasses.fields(domain.profile)
        },
        "truths": dict(domain.scenarios),
    }


def _domain(name: str) -> Iterator[str]:
    domain = load(name)
    yield f"{domain.name}: {domain.description}"
    for stream, spec in domain.streams.items():
        yield f"\n{stream} → {spec.topic}, version {spec.schema_version}, identified by {spec.id_field}"
        for field, kind in _fields(spec.event_type).items():
            yield f"  {field:<24}{kind}"
    yield from _parameters(domain.profile)
    if domain.scenarios:
        yield from _truths(domain.scenarios)


def _truths(scenarios: Mapping[str, str]) -> Iterator[str]:
    yield "\nwhat really happens"
    for kind, text in scenarios.items():
        yield f"  {kind:<24}{text}"


def _parameters(profile: type[Any]) -> Iterator[str]:
    yield "\nparameters"
    texts = {**help_of(Profile), **help_of(profile)}
    for field in dataclasses.fields(profile):
        yield f"  {field.name:<24}{field.default!s:<15} {texts.get(field.name, '')}".rstrip()


def _fields(event_type: type) -> dict[str, str]:
    schema = msgspec.json.schema(event_type)
    top = schema["$defs"][event_type.__name__] if "$ref" in schema else schema
    return {name: _kind(field) for name, field in top["properties"].items()}


def _kind(field: Mapping[str, Any]) -> str:
    if "enum" in field:
        return " | ".join(map(str, field["enum"]))
    if "anyOf" in field:
        return " or ".join(_kind(one) for one in field["anyOf"])
    if "$ref" in field:
        return str(field["$ref"]).rpartition("/")[2]
    if field.get("type") == "array":
        return f"list of {_kind(field.get('items') or {})}"
    return str(field.get("type", "any"))
