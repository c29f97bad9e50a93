"""The tables of a snapshot of Spark's state store, as far as they must be read: RocksDB's block-based format.

A table is a file of sorted entries in blocks, with an index of the blocks at its end. It is mapped into
memory, so that what is read of it stays readable when its file is removed. Blocks have checksums that need a
library; what is kept here has one of its own (:mod:`millrace.state.envelope`), so these are not looked at.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal, NamedTuple

from millrace.errors import MillraceError
from millrace.state.cells import StateCorrupted

_MAGIC: Final = 0x88E241B785F4CFF7
_FOOTER: Final = 53
_TAIL: Final = struct.Struct("<IQ")
_TRAILER: Final = 5
#: What is added to a key: a number that grows with every write, and what was written.
_STAMP: Final = struct.Struct("<Q")
_GONE: Final = (0, 7)
_VALUE: Final = 1
_CODECS: Final[dict[int, Literal["snappy", "lz4_raw", "zstd"]]] = {1: "snappy", 4: "lz4_raw", 7: "zstd"}


class StateFormatUnknown(MillraceError):
    """Files of a state store are of a form that is not read here; Spark reads them."""


class Found(NamedTuple):
    """An entry of a table.

    Attributes:
        sequence: Of two entries of a key the one with the larger number holds.
        value: What is kept; ``None``: it was removed.
    """

    sequence: int
    value: bytes | None


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number and where it ends.

    >>> varint(bytes((0xAC, 0x02, 7)), 0)
    (300, 2)
    """
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7


class SortedTable:
    """A table.

    Args:
        path: Its file.

    Raises:
        FileNotFoundError: It is not there.
        StateCorrupted: It is no table, or not whole.
        StateFormatUnknown: It is of a form that is not known here.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with path.open("rb") as file:
            try:
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except ValueError:
                raise StateCorrupted(f"{path} is empty") from None
        try:
            self._open()
        except (IndexError, struct.error, ValueError, OSError) as error:
            raise StateCorrupted(f"{path} cannot be read: {error}") from error

    def _open(self) -> None:
        if len(self._data) < _FOOTER:
            raise StateCorrupted(f"{self._path} is no table of RocksDB")
        footer = self._data[-_FOOTER:]
        version, magic = _TAIL.unpack(footer[-_TAIL.size :])
        if magic != _MAGIC:
            raise StateCorrupted(f"{self._path} is no table of RocksDB, or not whole")
        if not 2 <= version <= 5:
            raise StateFormatUnknown(
                f"{self._path} is a table of RocksDB's format {version}; 2 to 5 are read"
            )
        offset, at = varint(footer, 1)
        size, at = varint(footer, at)
        about = self._properties(offset, size)
        offset, at = varint(footer, at)
        size, at = varint(footer, at)
        self._index = self._block(offset, size)
        if about.get(b"rocksdb.block.based.table.index.type", bytes(4)) != bytes(4):
            raise StateFormatUnknown(f"{self._path} has an index in parts, which is not read")
        self._bare_keys = _number(about.get(b"rocksdb.index.key.is.user.key", b"\0")) == 1
        self._deltas = _number(about.get(b"rocksdb.index.value.is.delta.encoded", b"\0")) == 1
        self._restarts = _restarts(self._index)
        #: Whether each block has a whole key in the index, as RocksDB writes it unless told otherwise.
        self._each = _number(about.get(b"rocksdb.num.data.blocks", b"\0")) == len(self._restarts)
        self._first = next(iter(self.entries()), (b"", None))[0]

    def _properties(self, offset: int, size: int) -> dict[bytes, bytes]:
        named = dict(_entries(self._block(offset, size)))
        if (handle := named.get(b"rocksdb.properties")) is None:
            raise StateCorrupted(f"{self._path} does not say what it is")
        at, end = varint(handle, 0)
        size, _ = varint(handle, end)
        return dict(_entries(self._block(at, size)))

    def _block(self, offset: int, size: int) -> bytes:
        """Return a block, unpacked."""
        end = offset + size
        if end + _TRAILER > len(self._data):
            raise StateCorrupted(f"{self._path} is not whole")
        kind = self._data[end]
        if kind == 0:
            return self._data[offset:end]
        if kind not in _CODECS:
            raise StateFormatUnknown(f"{self._path} is packed in a way that is not read here ({kind})")
        import pyarrow as pa

        packed = self._data[offset:end]
        plain, at = varint(packed, 0)
        found: bytes = pa.decompress(packed[at:], plain, codec=_CODECS[kind], asbytes=True)
        return found

    def _blocks(self, at: int) -> Iterator[tuple[int, int]]:
        """Yield the blocks from a place of the index on."""
        index, end = self._index, len(self._index) - 4 - 4 * len(self._restarts)
        offset = size = 0
        while at < end:
            shared, at = varint(index, at)
            rest, at = varint(index, at)
            if not self._deltas:
                _, at = varint(index, at)
            at += rest
            if not self._deltas or shared == 0:
                offset, at = varint(index, at)
                size, at = varint(index, at)
            else:
                change, at = varint(index, at)
                offset += size + _TRAILER
                size += change >> 1 ^ -(change & 1)
            yield offset, size

    def _place(self, key: bytes) -> int:
        """Return where in the index the blocks begin that may hold a key."""
        low, high = 0, len(self._restarts)
        while low < high:
            middle = (low + high) // 2
            if self._separator(self._restarts[middle]) < key:
                low = middle + 1
            else:
                high = middle
        if self._each:
            return self._restarts[low] if low < len(self._restarts) else len(self._index)
        return self._restarts[max(0, low - 1)]

    def _separator(self, at: int) -> bytes:
        index = self._index
        _, at = varint(index, at)
        rest, at = varint(index, at)
        if not self._deltas:
            _, at = varint(index, at)
        return index[at : at + rest] if self._bare_keys else index[at : at + rest - _STAMP.size]

    def get(self, key: bytes) -> Found | None:
        """Return the newest entry of a key, ``None`` where there is none.

        Raises:
            StateCorrupted: The table cannot be read there.
        """
        if key < self._first:
            return None
        try:
            for offset, size in self._blocks(self._place(key)):
                for stamped, value in _entries(self._block(offset, size)):
                    own = stamped[: -_STAMP.size]
                    if own == key:
                        return self._found(stamped, value)
                    if own > key:
                        return None
        except (IndexError, struct.error, ValueError, OSError) as error:
            raise StateCorrupted(f"{self._path} cannot be read: {error}") from error
        return None

    def entries(self) -> Iterator[tuple[bytes, Found]]:
        """Yield all entries in the order of their keys; of one key the newest first."""
        for offset, size in self._blocks(0):
            for stamped, value in _entries(self._block(offset, size)):
                yield stamped[: -_STAMP.size], self._found(stamped, value)

    def _found(self, stamped: bytes, value: bytes) -> Found:
        (stamp,) = _STAMP.unpack(stamped[-_STAMP.size :])
        kind = stamp & 0xFF
        if kind != _VALUE and kind not in _GONE:
            raise StateFormatUnknown(f"{self._path} has entries of a kind that is not read here ({kind})")
        return Found(stamp >> 8, value if kind == _VALUE else None)


def _number(stored: bytes) -> int:
    return varint(stored, 0)[0]


def _restarts(block: bytes) -> tuple[int, ...]:
    """Return where a block has whole keys."""
    (count,) = struct.unpack_from("<I", block, len(block) - 4)
    count &= 0x7FFF_FFFF
    return struct.unpack_from(f"<{count}I", block, len(block) - 4 - 4 * count)


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of a block, in order."""
    (count,) = struct.unpack_from("<I", block, len(block) - 4)
    end = len(block) - 4 - 4 * (count & 0x7FFF_FFFF)
    at, key = 0, b""
    while at < end:
        shared, at = varint(block, at)
        rest, at = varint(block, at)
        length, at = varint(block, at)
        key = key[:shared] + block[at : at + rest]
        at += rest
        yield key, block[at : at + length]
        at += length
