"""Privacy marks of contract fields: those that hold a card number, and those that stay as they are.

A field says so in its type, and so does its JSON Schema, for all who write such events::

    class Payment(msgspec.Struct):
        payment_id: Annotated[str, Meta(max_length=64), IDENTITY]
        card_id: Annotated[str, Meta(max_length=64), CARD_NUMBER]
        note: str | None = None         # all other texts are looked through
"""

from __future__ import annotations

import typing
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any, Final, Literal

import msgspec


class Mark(StrEnum):
    """What a field's type says beside what is valid; the keyword of a JSON Schema that says the same."""

    card_number = "x-card-number"
    identity = "x-identity"


#: Marks a field that holds a card's number, or a token of one.
CARD_NUMBER: Final = Mark.card_number
#: Marks a field that identifies an event: one in ten long numbers has a card's check digit by chance, and an
#: identity that is changed is found by nobody.
IDENTITY: Final = Mark.identity

#: ``card``: the whole text is a number, or is looked through; ``kept``: nothing is replaced; ``number``: it
#: is a number of something else, and a text in its place is looked through.
Treatment = Literal["card", "kept", "number"]
_OF_MARK: Final[dict[Mark, Treatment]] = {CARD_NUMBER: "card", IDENTITY: "kept"}


def marks_of(tp: Any) -> dict[str, Mark]:
    """Return the fields of a struct that are marked, by the names that JSON has of them.

    Example:
        >>> from typing import Annotated
        >>> class Paid(msgspec.Struct):
        ...     card: Annotated[str, msgspec.Meta(min_length=1), CARD_NUMBER] | None
        ...     note: str
        >>> marks_of(Paid)
        {'card': <Mark.card_number: 'x-card-number'>}
    """
    hints = typing.get_type_hints(tp, include_extras=True)
    found = {f.encode_name: _mark_in(hints[f.name]) for f in msgspec.structs.fields(tp)}
    return {name: mark for name, mark in found.items() if mark is not None}


def structs_in(tp: Any) -> list[Any]:
    """Return a type that is a struct, or the structs of a union.

    >>> structs_in(int | None)
    []
    """
    if isinstance(tp, type) and issubclass(tp, msgspec.Struct):
        return [tp]
    return [one for part in typing.get_args(tp) for one in structs_in(part)]


def _mark_in(hint: Any) -> Mark | None:
    own = [one for one in getattr(hint, "__metadata__", ()) if isinstance(one, Mark)]
    inner = (_mark_in(part) for part in typing.get_args(hint))
    return own[0] if own else next((mark for mark in inner if mark is not None), None)


def treatments(types: Iterable[Any]) -> dict[str, Treatment]:
    """Return how the fields of events are treated: name → treatment; others are texts to look through.

    Args:
        types: Types of the events: structs, or unions of them. Of fields of one name what keeps least counts.

    Example:
        >>> from typing import Annotated
        >>> class Paid(msgspec.Struct):
        ...     card: Annotated[str, CARD_NUMBER]
        ...     at_ms: int | None
        ...     note: str
        >>> treatments([Paid])
        {'card': 'card', 'at_ms': 'number'}
    """
    found: dict[str, Treatment] = {}
    texts: set[str] = set()
    for struct in (struct for tp in types for struct in structs_in(tp)):
        marks = marks_of(struct)
        for name, said in _properties(msgspec.json.schema(struct)):
            treatment = _OF_MARK[marks[name]] if name in marks else _of_numbers(said)
            if treatment is None:
                texts.add(name)
            elif found.get(name) != "card":
                found[name] = treatment
    return {name: treatment for name, treatment in found.items() if treatment != "kept" or name not in texts}


def _of_numbers(said: Mapping[str, Any]) -> Treatment | None:
    kinds = {part.get("type") for part in (said, *said.get("anyOf", ()))} - {None, "null"}
    return "number" if kinds and kinds <= {"integer", "number"} else None


def _properties(schema: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the fields of a struct, and of those in it."""
    for one in (schema, *schema.get("$defs", {}).values()):
        yield from one.get("properties", {}).items()
