"""Lists that rules look into: allowed cards, blocked devices, each entry until a time."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import Any, Protocol

from millrace.rules.words import Constant, FieldName, Function, Getter


class HasLists(Protocol):
    """What a rule with ``listed`` is asked about.

    Attributes:
        lists: List → value → event time until which it is on it, ms.
        event_time_ms: Event time, ms.
    """

    lists: Mapping[str, Mapping[str, int]]
    event_time_ms: int


def listed(fields: Mapping[str, Any], *, name: str = "listed") -> Function:
    """Return the function ``listed(field, 'list')``: whether a field's value is on a list now.

    Args:
        fields: The language's fields.
        name: Name of the function.

    Example:
        >>> from types import SimpleNamespace as Event
        >>> from millrace.rules import Field, Language
        >>> fields = {"card": Field("text")}
        >>> stolen = Language(fields, (listed(fields),)).condition("listed(card, 'stolen')")
        >>> lists = {"stolen": {"c-1": 2_000}}
        >>> [stolen.holds(Event(card="c-1", lists=lists, event_time_ms=at)) for at in (1_999, 2_000)]
        [True, False]
    """

    def bind(field: str, of: str) -> Getter:
        get = attrgetter(fields[field].attribute or field)

        def on_list(event: HasLists) -> bool:
            values = event.lists.get(of)
            return bool(values) and values.get(get(event), 0) > event.event_time_ms  # type: ignore[union-attr]

        return on_list

    takes = (FieldName("text"), Constant("text"))
    return Function(name, takes, "boolean", bind, about="whether the field's value is on the list now")
