"""What contracts say of their fields: which hold a card number, and which are left as they are.

A field says so in its type, and its JSON Schema for all who write such events::

    class Payment(msgspec.Struct):
        payment_id: Annotated[str, Meta(max_length=64, extra_json_schema=IDENTITY)]
        card_id: Annotated[str, Meta(max_length=64, extra_json_schema=CARD_NUMBER)]
        note: str | None = None         # all other texts are looked through
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Literal

import msgspec

#: Marks a field that holds a card's number, or a token of one.
CARD_NUMBER: Final = {"x-card-number": True}
#: Marks a field that identifies an event: one in ten long numbers has a card's check digit by chance, and an
#: identity that is changed is found by nobody.
IDENTITY: Final = {"x-identity": True}

#: ``card``: the whole text is a number, or is looked through; ``kept``: nothing is replaced; ``number``: it
#: is a number of something else, and a text in its place is looked through.
Treatment = Literal["card", "kept", "number"]


def treatments(types: Iterable[Any]) -> dict[str, Treatment]:
    """Return how the fields of events are treated: name → treatment; others are texts to look through.

    Args:
        types: Types of the events; of fields of one name what keeps least counts.

    Example:
        >>> from typing import Annotated
        >>> from msgspec import Meta
        >>> class Paid(msgspec.Struct):
        ...     card: Annotated[str, Meta(extra_json_schema=CARD_NUMBER)]
        ...     at_ms: int | None
        ...     note: str
        >>> treatments([Paid])
        {'card': 'card', 'at_ms': 'number'}
    """
    found: dict[str, Treatment] = {}
    texts: set[str] = set()
    for tp in types:
        for name, said in _properties(msgspec.json.schema(tp)):
            treatment = _treatment(said)
            if treatment is None:
                texts.add(name)
            elif found.get(name) != "card":
                found[name] = treatment
    return {name: treatment for name, treatment in found.items() if treatment != "kept" or name not in texts}


def _treatment(said: Mapping[str, Any]) -> Treatment | None:
    parts = [said, *said.get("anyOf", ())]
    if any("x-card-number" in part for part in parts):
        return "card"
    if any("x-identity" in part for part in parts):
        return "kept"
    kinds = {part.get("type") for part in parts} - {None, "null"}
    return "number" if kinds and kinds <= {"integer", "number"} else None


def _properties(schema: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for one in (schema, *schema.get("$defs", {}).values()):
        yield from one.get("properties", {}).items()
