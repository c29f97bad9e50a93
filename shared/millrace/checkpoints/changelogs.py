"""The changelogs of Spark's state store: what one batch changed in one partition."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from millrace.checkpoints.sorted_table import StateFormatUnknown
from millrace.errors import MillraceError
from millrace.state.cells import StateCorrupted

_BLOCK: Final = struct.Struct("<8sBiii")
_MAGIC: Final = b"LZ4Block"
_LENGTH: Final = struct.Struct(">i")
_END, _PUT, _DELETE = 0x00, 0x01, 0x10
#: How a changelog begins whose versions have names, and one whose versions have none.
_NAMED: Final = (b"\x00\x02v3", b"\x00\x02v4")
_UNNAMED: Final = b"\x00\x02v2"


class Change(NamedTuple):
    """A change of the state.

    Attributes:
        key: Of what.
        value: What it is now; ``None``: it is gone.
    """

    key: bytes
    value: bytes | None


def read_lineage(changelog: bytes) -> list[tuple[int, str]] | None:
    """Return the versions that a changelog stands on, back to a snapshot.

    Args:
        changelog: The file's bytes: blocks of LZ4, at their head a version and a JSON list.

    Returns:
        (version, unique id) of each, or ``None`` where the file is packed in another way.
    """
    head = b""
    try:
        for block in _blocks(changelog):
            head += block
            if len(head) >= 2**16 + 8:
                break
    except MillraceError:
        return None
    return None if head[:4] not in _NAMED else _lineage(head)[0]


def _lineage(head: bytes) -> tuple[list[tuple[int, str]], int]:
    (length,) = struct.unpack_from(">H", head, 4)
    found = json.loads(head[6 : 6 + length])
    return [(int(i["version"]), str(i["checkpointUniqueId"])) for i in found], 6 + length


def read_changes(changelog: bytes) -> Iterator[Change]:
    """Yield what a changelog changes, in order.

    Args:
        changelog: The file's bytes.

    Raises:
        StateCorrupted: It is not whole.
        StateFormatUnknown: It is of a form that is not known here.
    """
    data = b"".join(_blocks(changelog))
    at = 4
    try:
        if data[:4] == _NAMED[1]:
            at = _lineage(data)[1]
        elif data[:4] != _UNNAMED:
            raise StateFormatUnknown(f"a changelog is of a form that is not read here ({data[:4]!r})")
        while (kind := data[at]) != _END:
            if kind not in (_PUT, _DELETE):
                raise StateFormatUnknown(f"a changelog has records that are not read here ({kind})")
            key, at = _part(data, at + 1)
            value, at = _part(data, at)
            if (value is None) == (kind == _PUT) or key is None:
                raise StateCorrupted("a changelog is damaged")
            yield Change(key, value)
    except (IndexError, struct.error, ValueError) as error:
        raise StateCorrupted(f"a changelog is not whole: {error}") from error
    if at + 1 != len(data):
        raise StateCorrupted("a changelog goes on behind its end")


def _part(data: bytes, at: int) -> tuple[bytes | None, int]:
    (length,) = _LENGTH.unpack_from(data, at)
    at += _LENGTH.size
    if length < 0:
        return None, at
    if at + length > len(data):
        raise StateCorrupted("a changelog is not whole")
    return data[at : at + length], at + length


def _blocks(packed: bytes) -> Iterator[bytes]:
    """Yield the blocks of a stream of LZ4 as Java writes it."""
    import pyarrow as pa

    at = 0
    while at < len(packed):
        if at + _BLOCK.size > len(packed):
            raise StateCorrupted("a changelog is not whole")
        magic, token, size, plain, _ = _BLOCK.unpack_from(packed, at)
        if magic != _MAGIC:
            raise StateFormatUnknown("a changelog is not packed with LZ4")
        at += _BLOCK.size
        block = packed[at : at + size]
        if not 0 <= size == len(block):
            raise StateCorrupted("a changelog is not whole")
        try:
            if token & 0xF0 == 0x20:
                block = pa.decompress(block, plain, codec="lz4_raw", asbytes=True)
        except OSError as error:
            raise StateCorrupted(f"a changelog cannot be unpacked: {error}") from error
        if len(block) != plain:
            raise StateCorrupted("a changelog cannot be unpacked")
        yield block
        at += size
