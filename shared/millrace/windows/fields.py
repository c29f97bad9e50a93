"""Input of an aggregate: a field of the event by name, a function of it, or the event itself."""

from __future__ import annotations

import operator
import types
import typing
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, Union

import msgspec

from millrace.errors import UserError

#: A field's name (``"amount"``, ``"card.country"``), a function of the event, or ``None``: the event.
Of = str | Callable[[Any], Any] | None


class WindowDefinitionError(UserError):
    """A window, trigger or aggregate is not complete or contradicts itself."""


class Selected(NamedTuple):
    """How to take a value from an event.

    Attributes:
        get: Takes the value; ``None`` where there is none.
        type: Its type, without ``None``; ``None`` where it is not known.
        nullable: Whether it may be ``None``.
    """

    get: Callable[[Any], Any]
    type: Any
    nullable: bool


def select(of: Of, event_type: Any, given: Any = None) -> Selected:
    """Return how to take ``of`` from events of ``event_type``.

    Args:
        of: A field's name, a function of the event, or ``None`` for the event itself.
        event_type: Type of the events.
        given: The value's type where the caller gives it.

    Raises:
        WindowDefinitionError: The event has no such field.

    Example:
        >>> class Click(msgspec.Struct):
        ...     ms: int
        ...     user: str | None = None
        >>> select("ms", Click).type, select("user", Click).nullable
        (<class 'int'>, True)
    """
    if of is None:
        tp, nullable = without_none(event_type)
        return Selected(_itself, given or _known(tp), nullable)
    if callable(of):
        return Selected(of, given, True)
    if not isinstance(of, str):
        raise WindowDefinitionError(
            f"an aggregate is of a field's name or a function of the event, not {of!r}"
        )
    tp, nullable = event_type, False
    for name in of.split("."):
        fields = fields_of(tp)
        if name not in fields:
            there = f"it has {', '.join(fields)}" if fields else "it has no fields"
            raise WindowDefinitionError(f"{getattr(tp, '__name__', tp)} has no field '{name}': {there}")
        tp, may_be_none = without_none(fields[name])
        if nullable and "." in of:
            raise WindowDefinitionError(
                f"'{of}' goes through a field that may be None: give a function of the event instead"
            )
        nullable = nullable or may_be_none
    return Selected(operator.attrgetter(of), given or _known(tp), nullable)


def fields_of(tp: Any) -> dict[str, Any]:
    """Return name → declared type of a struct's or dataclass's fields; empty for any other type."""
    if isinstance(tp, type) and issubclass(tp, msgspec.Struct):
        return {f.name: f.type for f in msgspec.structs.fields(tp)}
    if hasattr(tp, "__dataclass_fields__"):
        return typing.get_type_hints(tp)
    return {}


def without_none(tp: Any) -> tuple[Any, bool]:
    """Return a type without ``Annotated`` and ``None``, and whether it allowed ``None``.

    >>> without_none(int | None), without_none(str)
    ((<class 'int'>, True), (<class 'str'>, False))
    """
    while typing.get_origin(tp) is Annotated:
        tp = typing.get_args(tp)[0]
    if typing.get_origin(tp) not in (Union, types.UnionType):
        return tp, False
    kinds = [a for a in typing.get_args(tp) if a is not type(None)]
    nullable = len(kinds) < len(typing.get_args(tp))
    if len(kinds) == 1:
        return without_none(kinds[0])[0], nullable
    return Union[tuple(kinds)], nullable  # noqa: UP007 (made at run time)


def tuple_of(*parts: Any) -> Any:
    """Return the type of a tuple of these types."""
    return types.GenericAlias(tuple, parts)


def list_of(item: Any) -> Any:
    """Return the type of a list."""
    return types.GenericAlias(list, (item,))


def set_of(item: Any) -> Any:
    """Return the type of a set."""
    return types.GenericAlias(set, (item,))


def or_none(tp: Any) -> Any:
    """Return the type of a value that may be missing."""
    return Union[tp, None]  # noqa: UP007 (made at run time)


def _known(tp: Any) -> Any:
    return None if tp in (Any, object) else tp


def _itself(event: Any) -> Any:
    return event
