"""Lists that rules look into: allowed cards, blocked devices, each entry until a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields as fields_of
from functools import lru_cache
from operator import attrgetter
from typing import Any, Protocol

from millrace.rules import syntax
from millrace.rules.parser import parse
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


@lru_cache(maxsize=1024)
def looked_into(when: str, *, name: str = "listed") -> Mapping[str, frozenset[bool]]:
    """Return the lists that a rule looks into, each with what being on it does to the rule.

    Args:
        when: The rule's condition.
        name: Name of the function.

    Returns:
        List → ``True`` if a value that is on it can make the rule hold, ``False`` if it can keep the rule
        from holding; both where it hangs on more than that.

    Raises:
        RuleError: The text is no condition.

    Example:
        >>> found = looked_into("listed(card, 'hot') and not (amount < 5 or listed(card, 'vip'))")
        >>> {of: sorted(does) for of, does in found.items()}
        {'hot': [True], 'vip': [False]}
    """
    found: dict[str, frozenset[bool]] = {}

    def walk(node: syntax.Node, does: frozenset[bool]) -> None:
        if isinstance(node, syntax.Call) and node.name == name:
            last = node.arguments[-1] if node.arguments else None
            if isinstance(last, syntax.Literal):
                found[str(last.value)] = found.get(str(last.value), frozenset()) | does
        elif isinstance(node, syntax.Logic):
            for part in node.parts:
                walk(part, does)
        elif isinstance(node, syntax.Unary) and node.sign == "not":
            walk(node.of, frozenset(not one for one in does))
        else:
            for field in fields_of(node):
                value = getattr(node, field.name)
                for part in value if isinstance(value, tuple) else (value,):
                    if isinstance(part, syntax.Node):
                        walk(part, frozenset((True, False)))

    walk(parse(when), frozenset((True,)))
    return found
