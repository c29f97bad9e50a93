"""The envelope around each value of the state store: a checksum, or encryption.

A key group's header, pages and broadcast state are wrapped where the host hands them to the engine and
unwrapped where it takes them back; nothing inside knows of it. The first byte of a wrapped value is one
that no MessagePack value begins with, so that state from before there was a wrapping still opens.

=====  ================  ========================================================================
bytes  form              what follows
=====  ================  ========================================================================
C1 01  with a checksum   CRC-32 of the value (4 bytes), the value
C1 02  encrypted         key id (4), salt (16), nonce (12), value encrypted with AES-256-GCM, tag (16)
=====  ================  ========================================================================

An encrypted value is bound to its place: the process, the key group, and which of the group's values it
is. Copied to another place it does not open. It is not bound to a partition, so whole groups may move, nor
to a checkpoint, so a savepoint may be restored as it is; for a process of another name or another number of
key groups, values are opened for the old place and wrapped for the new one.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

import msgspec

from millrace.state.backend import GroupBackend
from millrace.state.cells import CLOCK_PAGE, StateCorrupted
from millrace.state.keyring import KEYS_VARIABLE, Keyring, StateKeyError, sealing_key_id

_MARK: Final = 0xC1
_CHECKED: Final = b"\xc1\x01"
_ENCRYPTED: Final = b"\xc1\x02"
_FROM: Final = 2
_CRC_BYTES: Final = 4


class Place(NamedTuple):
    """Where a value belongs.

    Attributes:
        process: Name of the process.
        group: Label of the key group.
        kind: Which of the group's values.
        number: Which of its pages.
    """

    process: str
    group: int
    kind: Literal["header", "page", "broadcast"]
    number: int = 0

    def __str__(self) -> str:
        page = "the clock" if self.number == CLOCK_PAGE else f"page {self.number}"
        what = {"header": "the header", "broadcast": "the broadcast state"}.get(self.kind, page)
        return f"{what} of key group {self.group} of {self.process}"


def wrap(data: bytes, place: Place, ring: Keyring | None) -> bytes:
    """Return a value as it is to be stored: encrypted if there are keys, else with a checksum.

    >>> place = Place("Balance", 7, "page", 3)
    >>> stored = wrap(b"value", place, None)
    >>> stored[:2].hex(), unwrap(stored, place, None)
    ('c101', b'value')
    """
    if ring is None:
        return b"%b%b%b" % (_CHECKED, zlib.crc32(data).to_bytes(_CRC_BYTES, "big"), data)
    return _ENCRYPTED + ring.seal(data, _bound(_ENCRYPTED, place))


def unwrap(stored: bytes, place: Place, ring: Keyring | None) -> bytes:
    """Return a value as it was before :func:`wrap`.

    Args:
        stored: The value as it was found.
        place: Where it was found.
        ring: The keys; with them, a value that is not encrypted is refused, as anyone can write one.

    Raises:
        StateCorrupted: It is not what was written there.
        StateKeyError: It was encrypted with a key that is not at hand.
    """
    if not stored:
        raise StateCorrupted(f"{place} is missing")
    form = stored[:_FROM]
    if form == _ENCRYPTED:
        return _decrypted(stored, place, ring)
    if ring is not None:
        raise StateCorrupted(f"{place} is not encrypted, and all state of this process is: it is not ours")
    if form == _CHECKED:
        data = stored[_FROM + _CRC_BYTES :]
        if stored[_FROM : _FROM + _CRC_BYTES] != zlib.crc32(data).to_bytes(_CRC_BYTES, "big"):
            raise StateCorrupted(f"{place} is damaged: its checksum does not fit")
        return data
    if stored[0] == _MARK:
        raise StateCorrupted(f"{place} is damaged, or was written by a later version")
    return stored  # from before there were checksums


def _decrypted(stored: bytes, place: Place, ring: Keyring | None) -> bytes:
    sealed = stored[_FROM:]
    if ring is None:
        raise StateKeyError(
            f"{place} is encrypted with key {sealing_key_id(sealed)}: set state.encryption.key_file "
            f"or {KEYS_VARIABLE}"
        )
    try:
        return ring.open(sealed, _bound(_ENCRYPTED, place))
    except StateCorrupted as error:
        raise StateCorrupted(f"{place} cannot be decrypted: {error}") from None
    except StateKeyError as error:
        raise StateKeyError(f"{place} cannot be decrypted: {error}") from None


def key_of(stored: bytes) -> str | None:
    """Return the id of the key that a stored value is encrypted with, ``None`` where it is in clear."""
    return sealing_key_id(stored[_FROM:]) if stored[:_FROM] == _ENCRYPTED else None


def _bound(form: bytes, place: Place) -> bytes:
    """Return what a value is bound to, as bytes that no other place has."""
    return form + msgspec.msgpack.encode(tuple(place))


class EnvelopeBackend:
    """Wraps what goes into a key group's backend and unwraps what comes out of it.

    Args:
        backend: Where the bytes are.
        process: Name of the process.
        group: Label of the key group.
        ring: The keys; ``None``: values get a checksum.
    """

    __slots__ = ("_backend", "_group", "_process", "_ring")

    def __init__(self, backend: GroupBackend, process: str, group: int, ring: Keyring | None) -> None:
        self._backend = backend
        self._process = process
        self._group = group
        self._ring = ring

    def get_header(self) -> bytes | None:
        """Return the header, or ``None`` for a group never written."""
        stored = self._backend.get_header()
        return None if stored is None else unwrap(stored, self._place("header"), self._ring)

    def put_header(self, header: bytes) -> None:
        """Write the header."""
        self._backend.put_header(wrap(header, self._place("header"), self._ring))

    def get_page(self, page: int) -> bytes:
        """Return a page that the header lists; where it is missing, the backend returns empty bytes."""
        return self.get_pages([page])[0]

    def get_pages(self, pages: Sequence[int]) -> list[bytes]:
        """Return several pages; see :meth:`get_page`."""
        stored = self._backend.get_pages(pages)
        return [
            unwrap(data, self._place("page", page), self._ring)
            for page, data in zip(pages, stored, strict=True)
        ]

    def put_page(self, page: int, data: bytes) -> None:
        """Write a page."""
        self._backend.put_page(page, wrap(data, self._place("page", page), self._ring))

    def delete_page(self, page: int) -> None:
        """Remove a page."""
        self._backend.delete_page(page)

    def clear(self) -> None:
        """Remove the header (its pages are gone already)."""
        self._backend.clear()

    def wrap_broadcast(self, data: bytes) -> bytes:
        """Return the group's broadcast state as it is to be stored."""
        return wrap(data, self._place("broadcast"), self._ring)

    def unwrap_broadcast(self, stored: bytes) -> bytes:
        """Return the group's broadcast state as it was before :meth:`wrap_broadcast`."""
        return unwrap(stored, self._place("broadcast"), self._ring)

    def unwrap_clock(self, stored: bytes) -> bytes:
        """Return the group's clock as it was before it was put into its page."""
        return unwrap(stored, self._place("page", CLOCK_PAGE), self._ring)

    def _place(self, kind: Literal["header", "page", "broadcast"], number: int = 0) -> Place:
        return Place(self._process, self._group, kind, number)
