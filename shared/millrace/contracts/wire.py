"""The Confluent wire format: a zero byte, the schema's id as four bytes, and for Protobuf which message.

Format: https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/index.html
(section "Wire format").
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, Literal

from millrace.errors import MillraceError

_HEAD: Final = struct.Struct(">bI")
_FIRST_MESSAGE: Final = b"\x00"
_MOST_INDEXES: Final = 32


class CodecError(MillraceError):
    """An event's bytes cannot be read.

    Attributes:
        reason: What a dead letter says: ``malformed`` (no event ever had such bytes), ``schema`` (an event
            that breaks its contract), ``range`` (by a value outside of its bounds) or ``unknown_version`` (of
            a schema that the registry does not know).
    """

    def __init__(
        self, reason: Literal["malformed", "schema", "range", "unknown_version"], message: str
    ) -> None:
        super().__init__(message)
        self.reason = reason


def frame(schema_id: int, payload: bytes) -> bytes:
    r"""Return a payload led by the id of its schema.

    Example:
        >>> frame(7, b"x")
        b'\x00\x00\x00\x00\x07x'
    """
    return _HEAD.pack(0, schema_id) + payload


def unframe(data: bytes) -> tuple[int, bytes]:
    r"""Return the id of the schema, and the payload.

    Raises:
        CodecError: The bytes are not of this format.

    Example:
        >>> unframe(b"\x00\x00\x00\x00\x07x")
        (7, b'x')
    """
    if len(data) < _HEAD.size or data[0] != 0:
        raise CodecError("malformed", "the bytes do not begin with a zero byte and the id of a schema")
    return _HEAD.unpack_from(data)[1], data[_HEAD.size :]


def with_indexes(indexes: Sequence[int], payload: bytes) -> bytes:
    r"""Return a Protobuf payload led by which message of its file it is.

    Args:
        indexes: Position of the message in its file, then of the one nested in it, and so on.
        payload: The message.

    Example:
        >>> with_indexes([0], b"x"), with_indexes([1, 0], b"x")
        (b'\x00x', b'\x04\x02\x00x')
    """
    if list(indexes) == [0]:
        return _FIRST_MESSAGE + payload
    return b"".join(_zigzag(n) for n in (len(indexes), *indexes)) + payload


def split_indexes(data: bytes) -> tuple[list[int], bytes]:
    r"""Return which message a Protobuf payload is, and the payload.

    Raises:
        CodecError: The bytes do not begin with message indexes.

    Example:
        >>> split_indexes(b"\x00x"), split_indexes(b"\x04\x02\x00x")
        (([0], b'x'), ([1, 0], b'x'))
    """
    count, at = _read_zigzag(data, 0)
    if count == 0:
        return [0], data[at:]
    if not 0 < count <= _MOST_INDEXES:
        raise CodecError("malformed", f"{count} message indexes: the bytes are not of this format")
    indexes = []
    for _ in range(count):
        index, at = _read_zigzag(data, at)
        indexes.append(index)
    return indexes, data[at:]


def _zigzag(number: int) -> bytes:
    value, found = number << 1 if number >= 0 else ~(number << 1), bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _read_zigzag(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for n in range(5):
        if at + n >= len(data):
            break
        byte = data[at + n]
        value |= (byte & 0x7F) << 7 * n
        if byte < 0x80:
            return value >> 1 ^ -(value & 1), at + n + 1
    raise CodecError("malformed", "the message indexes are cut off")
