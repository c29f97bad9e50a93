"""What an event says, as eight bytes: to tell whether a repeat of an identity is the same event again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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


def packed(digests: Mapping[str, int | None]) -> bytes:
    """Return the digests of identities, in their order, as bytes: state that is packed and read at no cost.

    Args:
        digests: Identity → digest; ``None`` of those known from a time without digests, which go first.

    Example:
        >>> said = packed({"old": None, "a": 1, "b": 2})
        >>> len(said), unpacked(["old", "a", "b"], said)
        (16, {'old': None, 'a': 1, 'b': 2})
        >>> unpacked(["b"], said[-DIGEST_BYTES:])  # the oldest were forgotten
        {'b': 2}
    """
    return b"".join(one.to_bytes(DIGEST_BYTES, "big") for one in digests.values() if one is not None)


def unpacked(identities: Iterable[str], said: bytes) -> dict[str, int | None]:
    """Return the digests of identities, in their order, from the bytes of :func:`packed`.

    Args:
        identities: All that are known, the oldest first.
        said: The digests of the newest of them.
    """
    names = list(identities)
    whole: list[int | None] = [
        int.from_bytes(said[at : at + DIGEST_BYTES], "big") for at in range(0, len(said), DIGEST_BYTES)
    ]
    return dict(zip(names, [None] * (len(names) - len(whole)) + whole, strict=True))
