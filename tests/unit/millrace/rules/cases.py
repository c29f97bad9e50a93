"""A language, and a second reading of it, for the tests of rules."""

from __future__ import annotations

import operator
from typing import Any

import msgspec

from millrace.rules import Field, FieldName, Function, Language, Window, Word, listed

MINUTE = 60_000


class Event(msgspec.Struct):
    """What rules are asked about."""

    amount: float = 0.0
    limit: float | None = None
    mcc: str = "5411"
    device: str | None = None
    online: bool = False
    card: str = "c-1"
    windows: dict[tuple[str, int], float] = {}
    lists: dict[str, dict[str, int]] = {}
    event_time_ms: int = 0


FIELDS = {
    "amount": Field("number"),
    "limit": Field("number", nullable=True),
    "mcc": Field("text"),
    "device": Field("text", nullable=True),
    "online": Field("boolean"),
    "card": Field("text"),
}


def _total(field: str, entity: str, window_ms: int) -> Any:
    return lambda event: event.windows.get((entity, window_ms), 0.0)


TOTAL = Function(
    "sum",
    (FieldName("number", ("amount",)), Word(("card", "device")), Window(MINUTE, 30 * 86_400_000)),
    "number",
    _total,
)
LANGUAGE = Language(
    FIELDS, (TOTAL, listed(FIELDS)), actions=("review", "block"), two_person=frozenset({"block"})
)

_COMPARE = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq}
_COMPARE["!="] = operator.ne


def written(tree: Any) -> str:
    """Return a tree (nested tuples) as a rule's text, with a bracket around every part."""
    kind, *rest = tree
    if kind == "field":
        return str(rest[0])
    if kind == "value":
        return repr(rest[0]) if isinstance(rest[0], str) else f"{rest[0]:g}"
    if kind == "window":
        return f"sum(amount, {rest[0]}, {rest[1]} min)"
    if kind == "not":
        return f"(not {written(rest[0])})"
    if kind == "in":
        return f"({written(rest[0])} in ({', '.join(map(repr, rest[1]))}))"
    if kind == "missing":
        return f"({rest[0]} is missing)"
    if kind == "between":
        return f"({' '.join((written(rest[0]), 'between', written(rest[1]), 'and', written(rest[2])))})"
    return f"({f' {kind} '.join(written(part) for part in rest)})"


def meant(tree: Any, event: Event) -> Any:
    """Return what a tree means for an event: Kleene's logic by numbers, 0 false, 1 true, a half unknown."""
    kind, *rest = tree
    if kind == "field":
        return getattr(event, rest[0])
    if kind == "value":
        return rest[0]
    if kind == "window":
        return event.windows.get((rest[0], rest[1] * MINUTE), 0.0)
    if kind == "missing":
        return float(getattr(event, rest[0]) is None)
    if kind == "not":
        return 1 - meant(rest[0], event)
    if kind in ("and", "or"):
        truths = [meant(part, event) for part in rest]
        return min(truths) if kind == "and" else max(truths)
    if kind == "in":
        value = meant(rest[0], event)
        return 0.5 if value is None else float(value in rest[1])
    values = [meant(part, event) for part in rest]
    if kind in _COMPARE:
        return 0.5 if None in values else float(_COMPARE[kind](*values))
    if kind == "between":
        return 0.5 if None in values else float(values[1] <= values[0] <= values[2])
    if None in values:
        return None
    a, b = values
    if kind in "/%" and not b:
        return None
    return {"+": a + b, "-": a - b, "*": a * b, "/": b and a / b, "%": b and a % b}[kind]
