"""Broken versions of valid JSON events, each with the reason that a dead letter must give."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any, Final

import msgspec

from millrace_apps.generators.engine.message import Fault, Generated

#: Variant → the dead letter's reason, where it is not ``schema``.
_REASONS: Final = {
    "truncated_json": "malformed",
    "not_utf8": "malformed",
    "out_of_range": "range",
}


class StructCorruptor:
    """Breaks events of any event type in the ways that its fields allow, each as likely as the others.

    Args:
        event_type: The events' type, a :class:`msgspec.Struct`.
        id_field: Field that holds the event's id.
        run: Prefix that makes the broken messages' ids unique among runs.
    """

    def __init__(self, event_type: type, *, id_field: str, run: str) -> None:
        fields = msgspec.json.schema(event_type)
        schema = fields["$defs"][event_type.__name__] if "$ref" in fields else fields
        numbers = [name for name, field in schema["properties"].items() if _is_number(field)]
        self._id_field, self._run = id_field, run
        self._required = tuple(schema.get("required", [id_field]))
        self._numbers = numbers
        self._breakers: dict[str, Callable[[dict[str, Any], random.Random], tuple[str, bytes]]] = {
            "truncated_json": self._truncated,
            "not_utf8": self._not_utf8,
            "wrong_type": self._wrong_type,
            "missing_field": self._missing_field,
        }
        if not numbers:
            del self._breakers["wrong_type"]
        if schema["properties"][id_field].get("type") != "string":
            del self._breakers["not_utf8"]
        self._breakers["wrong_root"] = self._root
        self._beyond = {name: found for name in numbers if (found := _beyond(schema["properties"][name]))}
        if self._beyond:
            self._breakers["out_of_range"] = self._out_of_range

    def __call__(self, event: Generated, number: int, numbers: random.Random) -> Generated:
        """Return a broken message modelled on ``event``, the ``number``-th of its run."""
        variants = tuple(self._breakers)
        variant = variants[int(numbers.random() * len(variants))]
        own_id, fields = self._own(event, "m", number)
        detail, value = self._breakers[variant](fields, numbers)
        fault = Fault("malformed", "dead_letter", detail=detail, reason=_REASONS.get(variant, "schema"))
        return _odd(event, own_id, value, fault)

    def drift(self, event: Generated, number: int, numbers: random.Random) -> Generated | None:
        """Return the event with a new field, or beside it one with a renamed or retyped field.

        Renaming and retyping need a required or a numeric field; where there is none a field is added.
        """
        chance, which = numbers.random(), numbers.random()
        own_id, fields = self._own(event, "s", number)
        if chance < 1 / 3 and self._required:
            name = self._required[int(which * len(self._required))]
            renamed = {f"{name}_v2" if key == name else key: value for key, value in fields.items()}
            fault = Fault("drifted", "dead_letter", detail=f"renamed:{name}", reason="schema")
            return _odd(event, own_id, _dump(renamed), fault)
        present = [name for name in self._numbers if fields.get(name) is not None]
        if chance < 2 / 3 and present:
            name = present[int(which * len(present))]
            fields[name] = {"value": fields[name], "unit": "1"}
            fault = Fault("drifted", "dead_letter", detail=f"retyped:{name}", reason="schema")
            return _odd(event, own_id, _dump(fields), fault)
        # The event's own bytes with one field more, so that nothing else is written in another way.
        event.value = event.value[:-1] + b',"added_in_v2":"%d"}' % number
        event.fault = Fault("drifted", "accepted", detail="added:added_in_v2")
        return event

    def unknown_version(self, event: Generated, number: int, _numbers: random.Random) -> Generated:
        """Return a message whose header names a schema version that does not exist."""
        own_id, fields = self._own(event, "v", number)
        fault = Fault("unknown_version", "dead_letter", detail="schema_version=999", reason="unknown_version")
        odd = _odd(event, own_id, _dump(fields), fault)
        odd.headers = [(n, b"999" if n == "schema_version" else text) for n, text in odd.headers]
        return odd

    def _own(self, event: Generated, letter: str, number: int) -> tuple[str, dict[str, Any]]:
        own_id, fields = f"{self._run}-{letter}{number:09d}", json.loads(event.value)
        if isinstance(fields.get(self._id_field), str):
            fields[self._id_field] = own_id
        return own_id, fields

    def _truncated(self, fields: dict[str, Any], numbers: random.Random) -> tuple[str, bytes]:
        value = _dump(fields)
        return "truncated_json", value[: 1 + int(numbers.random() * (len(value) - 1))]

    def _not_utf8(self, fields: dict[str, Any], _numbers: random.Random) -> tuple[str, bytes]:
        # In a field that is read: of a field that it does not know a reader may skip the text unseen.
        fields[self._id_field] += "~"
        # 0xff occurs nowhere in UTF-8.
        return "not_utf8", _dump(fields).replace(b'~"', b'\xff"', 1)

    def _wrong_type(self, fields: dict[str, Any], numbers: random.Random) -> tuple[str, bytes]:
        name = self._numbers[int(numbers.random() * len(self._numbers))]
        fields[name] = "twelve"
        return f"wrong_type:{name}", _dump(fields)

    def _missing_field(self, fields: dict[str, Any], numbers: random.Random) -> tuple[str, bytes]:
        name = self._required[int(numbers.random() * len(self._required))]
        del fields[name]
        return f"missing_field:{name}", _dump(fields)

    def _out_of_range(self, fields: dict[str, Any], numbers: random.Random) -> tuple[str, bytes]:
        names = list(self._beyond)
        name = names[int(numbers.random() * len(names))]
        values = self._beyond[name]
        fields[name] = values[int(numbers.random() * len(values))]
        return f"out_of_range:{name}", _dump(fields)

    def _root(self, fields: dict[str, Any], _numbers: random.Random) -> tuple[str, bytes]:
        return "wrong_root", _dump([fields])


def _dump(fields: dict[str, Any] | list[dict[str, Any]]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def _odd(event: Generated, own_id: str, value: bytes, fault: Fault) -> Generated:
    headers = [(name, own_id.encode() if name == "ce_id" else text) for name, text in event.headers]
    odd = Generated(own_id, event.key, value, headers, event.event_time_ms, "", 0, fault=fault)
    return odd.beside(event)


def _beyond(field: Any) -> list[float]:
    """Return values just outside of the bounds of a number's schema."""
    low = [field[name] - 1 for name in ("minimum", "exclusiveMinimum") if name in field]
    return low + [field[name] + 1 for name in ("maximum", "exclusiveMaximum") if name in field]


def _is_number(field: Any) -> bool:
    return isinstance(field, dict) and field.get("type") in ("integer", "number")
