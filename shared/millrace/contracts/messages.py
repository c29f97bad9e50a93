"""Values in and out of Protobuf messages, field by field as the messages' descriptors say."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Set
from typing import Any, Final

TIMESTAMP: Final = "google.protobuf.Timestamp"
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND: Final = datetime.timedelta(microseconds=1)


class Shape:
    """How the fields of one message are filled and read.

    Args:
        descriptor: The message's descriptor.
        nullable: Full names of the fields of which not written means null.
    """

    def __init__(self, descriptor: Any, nullable: Set[str]) -> None:
        self._is_time = descriptor.full_name == TIMESTAMP
        self._scalars: list[str] = []
        self._lists: list[tuple[str, Shape | None]] = []
        self._maps: list[tuple[str, Shape | None]] = []
        self._messages: list[tuple[str, Shape]] = []
        for field in () if self._is_time else descriptor.fields:
            inside = field.message_type
            if inside is not None and inside.GetOptions().map_entry:
                value = inside.fields_by_name["value"].message_type
                self._maps.append((field.name, Shape(value, nullable) if value else None))
            elif _is_repeated(field):
                self._lists.append((field.name, Shape(inside, nullable) if inside else None))
            elif inside is not None:
                self._messages.append((field.name, Shape(inside, nullable)))
            else:
                self._scalars.append(field.name)
        self._nulls = {f.name: None for f in descriptor.fields if f.full_name in nullable}
        self._readers: dict[str, Callable[[Any], Any]] = {
            **{name: _list_reader(shape) for name, shape in self._lists},
            **{name: _map_reader(shape) for name, shape in self._maps},
            **{name: inner.read for name, inner in self._messages},
        }

    def fill(self, message: Any, values: Any) -> None:
        """Put values into an empty message.

        Args:
            message: The message.
            values: Field → value; None is left out. For a timestamp: an aware datetime.
        """
        if self._is_time:
            # Whole microseconds: a float of seconds would round them.
            micros = (values - _EPOCH) // _MICROSECOND
            message.seconds, message.nanos = micros // 1_000_000, micros % 1_000_000 * 1_000
            return
        for name in self._scalars:
            if (value := values.get(name)) is not None:
                setattr(message, name, value)
        for name, shape in self._lists:
            held = getattr(message, name)
            if shape is None:
                held.extend(values[name])
            else:
                for item in values[name]:
                    shape.fill(held.add(), item)
        for name, shape in self._maps:
            held = getattr(message, name)
            for key, item in values[name].items():
                if shape is None:
                    held[key] = item
                else:
                    shape.fill(held[key], item)
        for name, inner in self._messages:
            if (value := values.get(name)) is not None:
                held = getattr(message, name)
                held.SetInParent()  # an empty message is there, too
                inner.fill(held, value)

    def read(self, message: Any) -> Any:
        """Return the values of a message: field → value, without those that were not written."""
        if self._is_time:
            micros = message.seconds * 1_000_000 + message.nanos // 1_000
            return _EPOCH + datetime.timedelta(microseconds=micros)
        found: dict[str, Any] = dict(self._nulls)
        for name, _ in self._lists:
            found[name] = []
        for name, _ in self._maps:
            found[name] = {}
        for field, value in message.ListFields():  # those that were written
            reader = self._readers.get(field.name)
            found[field.name] = value if reader is None else reader(value)
        return found


def _list_reader(shape: Shape | None) -> Callable[[Any], Any]:
    return list if shape is None else lambda held: [shape.read(item) for item in held]


def _map_reader(shape: Shape | None) -> Callable[[Any], Any]:
    return dict if shape is None else lambda held: {key: shape.read(item) for key, item in held.items()}


def _is_repeated(field: Any) -> bool:
    # Protobuf 6.31 has is_repeated; label, its way before, is gone from 7 on.
    found = getattr(field, "is_repeated", None)
    return bool(field.label == field.LABEL_REPEATED if found is None else found)
