"""Hashes of what an event says: to tell whether a repeat of an identity is the same event again."""

from __future__ import annotations

from typing import Any, Final
from zlib import adler32, crc32

import msgspec

_encode: Final = msgspec.msgpack.Encoder().encode
#: Bytes of a digest where many stand together.
DIGEST_BYTES: Final = 8


def digest_of(event: Any) -> int:
    """Return a digest of what an event says, however it was written: a whole number of 64 bits.

    Two checksums, since one is made of every event: it tells accidents, not forgeries.

    Args:
        event: Anything that msgspec encodes.

    Example:
        >>> class Sale(msgspec.Struct):
        ...     number: str
        ...     cents: int
        >>> read = msgspec.json.decode(b'{"cents": 5, "number": "s1"}', type=Sale)
        >>> digest_of(Sale("s1", 5)) == digest_of(read)
        True
        >>> digest_of(Sale("s1", 5)) == digest_of(Sale("s1", 6))
        False
    """
    said = _encode(event)
    return crc32(said) << 32 | adler32(said)
