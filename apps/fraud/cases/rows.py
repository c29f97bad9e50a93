"""Rows of tables as what they were written from, older ones too, whose later columns are empty."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, get_args

import msgspec

T = TypeVar("T", bound=msgspec.Struct)


def read_row(row: Mapping[str, Any], tp: type[T]) -> T:
    """Return a row as a struct: what was written before a field was there has the field's default.

    Args:
        row: The row; columns that are no fields are left out.
        tp: Type of the struct.

    Raises:
        msgspec.ValidationError: It cannot be one.

    Example:
        >>> from millrace_apps.fraud.cases.events import CaseEvent
        >>> read_row({"what": "claim", "by": "ann", "at_ms": 7, "note": "", "about": None}, CaseEvent)
        CaseEvent(what='claim', by='ann', at_ms=7, note='', about='')
    """
    return msgspec.convert(_filled(row, tp), tp)


def _filled(row: Mapping[str, Any], tp: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in msgspec.structs.fields(tp):
        value = row.get(field.name)
        if value is None:
            if field.required:
                found[field.name] = None
            continue
        of = next(iter(get_args(field.type)), None)
        if isinstance(value, list) and isinstance(of, type) and issubclass(of, msgspec.Struct):
            value = [_filled(one, of) for one in value]
        found[field.name] = value
    return found
