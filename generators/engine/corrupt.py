"""Broken versions of valid JSON events, each with the reason that a dead letter must give."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any, Final

from generators.engine.message import Fault, Generated

_TEXTS: Final = ("", "twelve", "12.50", "NaN")


class JsonCorruptor:
    """Breaks events of one JSON contract in every way of :attr:`VARIANTS`, each as likely as the others.

    Args:
        id_field: Field that holds the event's id; a broken message gets an id of its own.
        required: Fields that the contract requires.
        number: A field that must be a positive number.
    """

    VARIANTS: Final = ("truncated_json", "not_utf8", "wrong_type", "missing_field", "negative_amount")

    def __init__(self, *, id_field: str, required: Sequence[str], number: str) -> None:
        self._id_field = id_field
        self._required = tuple(required)
        self._number = number
        self._breakers: dict[str, Callable[[dict[str, Any], random.Random], tuple[str, bytes]]] = {
            "truncated_json": self._truncated,
            "not_utf8": self._not_utf8,
            "wrong_type": self._wrong_type,
            "missing_field": self._missing_field,
            "negative_amount": self._negative,
        }

    def __call__(self, event: Generated, number: int, numbers: random.Random) -> Generated:
        """Return a broken message modelled on ``event``, the ``number``-th of its stream."""
        variant = self.VARIANTS[int(numbers.random() * len(self.VARIANTS))]
        own_id = f"{event.transaction_id.rpartition('-')[0]}-m{number:09d}"
        fields = json.loads(event.value)
        fields[self._id_field] = own_id
        detail, value = self._breakers[variant](fields, numbers)
        reason = "malformed" if variant in ("truncated_json", "not_utf8") else "schema"
        # The header still names the message: that is how it is found again among the dead letters.
        headers = [(name, own_id.encode() if name == "ce_id" else text) for name, text in event.headers]
        fault = Fault("malformed", "dead_letter", detail=detail, reason=reason)
        return Generated(own_id, event.key, value, headers, event.event_time_ms, "", 0, fault=fault)

    def _truncated(self, fields: dict[str, Any], numbers: random.Random) -> tuple[str, bytes]:
        value = _dump(fields)
        return "truncated_json", value[: 1 + int(numbers.random() * (len(value) - 1))]

    def _not_utf8(self, fields: dict[str, Any], _numbers: random.Random) -> tuple[str, bytes]:
        own_id = str(fields[self._id_field]).encode()
        # 0xff occurs nowhere in UTF-8.
        return "not_utf8", _dump(fields).replace(own_id, own_id[:-1] + b"\xff", 1)

    def _wrong_type(self, fields: dict[str, Any], numbers: random.Random) -> tuple[str, bytes]:
        fields[self._number] = _TEXTS[int(numbers.random() * len(_TEXTS))]
        return f"wrong_type:{self._number}", _dump(fields)

    def _missing_field(self, fields: dict[str, Any], numbers: random.Random) -> tuple[str, bytes]:
        name = self._required[int(numbers.random() * len(self._required))]
        del fields[name]
        return f"missing_field:{name}", _dump(fields)

    def _negative(self, fields: dict[str, Any], _numbers: random.Random) -> tuple[str, bytes]:
        fields[self._number] = -abs(fields[self._number])
        return f"negative:{self._number}", _dump(fields)


def _dump(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()
