"""Event formats of a stream: Avro, Protobuf or JSON of a registry, made JSON in the workers.

An event that cannot be read stays as it came, led by why, until it is a dead letter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import msgspec

from millrace.contracts.codec import Codec, JsonCodec
from millrace.contracts.registry import ConfluentRegistry
from millrace.contracts.wire import CodecError
from millrace.dead_letters import one_line
from millrace.errors import UserError
from millrace.inputs import event_json

Format = Literal["json", "avro", "protobuf"]
FORMATS: Final = ("json", "avro", "protobuf")
#: No JSON text has this byte.
_NUL: Final = b"\x00"


@dataclass(frozen=True)
class Formatted:
    """Events of one type in the wire format of a schema registry.

    Args:
        kind: Their format.
        type: Their type.
        registry: Configuration of the registry's client, at least its ``url``.
    """

    kind: Format
    type: Any
    registry: Mapping[str, Any] = field(repr=False)  # it may hold a password

    def codec(self) -> Codec[Any]:
        """Return what reads and writes them.

        Raises:
            UserError: A package is missing, or the client does not take its configuration.
            SchemaError: The type has no schema in the format.
        """
        registry = ConfluentRegistry(self.registry)
        if self.kind == "avro":
            from millrace.contracts.avro import AvroCodec

            return AvroCodec(self.type, registry, "")
        if self.kind == "protobuf":
            from millrace.contracts.protobuf import ProtobufCodec

            return ProtobufCodec(self.type, registry, "")
        return JsonCodec(self.type, registry)

    def open(self) -> Callable[[bytes], bytes]:
        """Return what makes JSON of an event, in a worker.

        A registry that does not answer raises ``RegistryError`` there: that is no event's fault.
        """
        decode = self.codec().decode

        def as_json(data: bytes) -> bytes:
            try:
                return event_json(decode(data))
            except CodecError as error:
                return unreadable(error, data)

        return as_json


def unreadable(error: CodecError, data: bytes) -> bytes:
    """Return an event that cannot be read, led by why: no decoder of JSON takes that for an event."""
    return _NUL + msgspec.json.encode((error.reason, one_line(error))) + _NUL + data


def why_unreadable(raw: bytes) -> tuple[str, str, bytes] | None:
    """Return reason, message and the bytes as they came of what :func:`unreadable` made, else ``None``.

    Example:
        >>> why_unreadable(unreadable(CodecError("schema", "no number"), b"x"))
        ('schema', 'CodecError: no number', b'x')
        >>> why_unreadable(b"{}")
    """
    if not raw.startswith(_NUL):
        return None
    told, _, data = raw[1:].partition(_NUL)
    reason, message = msgspec.json.decode(told, type=tuple[str, str])
    return reason, message, data


def format_of(
    name: str, kind: Format, registry: str | Mapping[str, Any] | None, event_type: Any
) -> Formatted | None:
    """Return the format of a stream's events; ``None``: they are JSON and nothing else.

    Args:
        name: What the events are, for errors.
        kind: The format.
        registry: Address of the schema registry, or configuration of its client.
        event_type: Type of the events.

    Raises:
        UserError: There is no such format, it needs a registry, or a package is missing.
        SchemaError: The type has no schema in the format.
    """
    if kind not in FORMATS:
        raise UserError(f"the format of {name} is one of {', '.join(FORMATS)}, not {kind!r}")
    if registry is None:
        if kind != "json":
            raise UserError(f"{name}: {kind} needs `registry`, the address of the schema registry")
        return None
    config = {"url": registry} if isinstance(registry, str) else dict(registry)
    made = Formatted(kind, event_type, config)
    made.codec()  # what it lacks is said here, not by every worker
    return made
