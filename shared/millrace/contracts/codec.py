"""Events to bytes and back: JSON here, Avro and Protobuf in modules of their own."""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeVar

import msgspec

from millrace.contracts.registry import Registry
from millrace.contracts.schema import json_schema
from millrace.contracts.wire import CodecError, frame, unframe
from millrace.dead_letters import reason_of

T = TypeVar("T")


class Codec(Protocol[T]):
    """Writes events of one type as bytes, and reads them back."""

    def encode(self, event: T) -> bytes:
        """Return an event as bytes."""

    def decode(self, data: bytes) -> T:
        """Return the event that bytes are.

        Raises:
            CodecError: They are none; its reason is that of the dead letter.
        """


class JsonCodec(Generic[T]):
    """Events as JSON, plain or led by the id of their JSON Schema in a registry.

    Args:
        tp: Type of the events.
        registry: Where the schema is registered; without one, the bytes are the JSON and nothing else.
        subject: Under which name, as a rule the topic's with ``-value``.

    Example:
        >>> class Tick(msgspec.Struct):
        ...     price: float
        >>> JsonCodec(Tick).encode(Tick(1.5)), JsonCodec(Tick).decode(b'{"price": 2}')
        (b'{"price":1.5}', Tick(price=2.0))
    """

    def __init__(self, tp: type[T] | Any, registry: Registry | None = None, subject: str = "") -> None:
        self._encode = msgspec.json.Encoder().encode
        self._decode = msgspec.json.Decoder(tp).decode
        self._registry, self._subject = registry, subject
        self._schema = "" if registry is None else msgspec.json.encode(json_schema(tp)).decode()

    def encode(self, event: T) -> bytes:
        """Return an event as bytes."""
        if self._registry is None:
            return self._encode(event)
        schema_id = self._registry.register(self._subject, self._schema, "JSON")
        return frame(schema_id, self._encode(event))

    def decode(self, data: bytes) -> T:
        """Return the event that bytes are.

        Raises:
            CodecError: They are none.
        """
        if self._registry is not None:
            schema_id, data = unframe(data)
            self._registry.schema(schema_id)  # an id that nobody registered is refused
        try:
            found: T = self._decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise CodecError(reason_of(error), str(error)) from error
        return found


def converted(values: Any, tp: type[T] | Any) -> T:
    """Return the event that plain values are, checked by all rules of its type.

    Raises:
        CodecError: They break a rule; the reason is ``schema`` or, of bounds, ``range``.
    """
    try:
        found: T = msgspec.convert(values, tp)
    except msgspec.ValidationError as error:
        raise CodecError(reason_of(error), str(error)) from error
    return found
