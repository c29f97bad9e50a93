"""Cells: keys and encodings of a key group's pages and header in the state store.

Times that are not there are nil, which takes one byte.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

import msgspec

from millrace.errors import MillraceError
from millrace.state.layout import ENCODING_VERSION
from millrace.time import NEVER
from millrace.time.clock import ClockState


class StateCorrupted(MillraceError):
    """Stored state cannot be read back: the query must stop, nothing may be overwritten."""


class Cell(msgspec.Struct, array_like=True, gc=False):
    """One key's entry in a page: its bytes, and when it must be looked at (ms)."""

    timer: int | None
    expiry: int | None
    body: msgspec.Raw
    processing_timer: int | None = None
    processing_expiry: int | None = None


class PageInfo(msgspec.Struct, array_like=True, gc=False):
    """What the header knows of a page.

    Attributes:
        prefix: The first bits of the hashes it holds.
        depth: How many bits.
        timer: Its earliest event-time timer, ms.
        expiry: No event-time expiry in it is before this, ms.
        processing_timer: Its earliest timer on processing time, ms.
        processing_expiry: No processing-time expiry in it is before this, ms.
        schema: Place of its schema among those of the header; ``INDEX``: this is an index page, which lists
            all pages of its prefix (see :mod:`millrace.state.page_index`), and the times are theirs.
    """

    prefix: int
    depth: int
    timer: int | None = None
    expiry: int | None = None
    processing_timer: int | None = None
    processing_expiry: int | None = None
    schema: int = 0

    @property
    def number(self) -> int:
        """Its number in the backend: unique over all prefixes and depths, never 0.

        That of an index page is above ``INDEX_PAGES``.
        """
        return (1 << self.depth) | self.prefix


class Header(msgspec.Struct, array_like=True):
    """A group's header.

    Attributes:
        version: Version of the packed form.
        pages: The group's pages, by prefix.
        inline: The cells, where there is one page only.
        broadcast: Digest of the group's broadcast state, 0 without: it tells whether a copy that is at
            hand is the one that is kept.
        schemas: Digests of the schemas that its pages are written in; the schemas themselves stand in
            page 0.
        processing_time: The last tick of processing time that the group has seen, ms.
        index_bits: First bits of the hashes that an index page is for, 0 where there are no index pages.
        logged: Whether there is a log of changes that its pages do not have
            (see :mod:`millrace.state.change_log`); then it has no index pages.
    """

    version: int
    pages: list[PageInfo]
    inline: dict[str, Cell] | None = None
    broadcast: int = 0
    schemas: list[int] = []
    processing_time: int | None = None
    index_bits: int = 0
    logged: bool = False


#: Bits of a key's hash, by the first of which it has its page.
_HASH_BITS: Final = 32
#: In the place of a page's schema: what it names is an index page.
INDEX: Final = -1
#: Numbers of index pages are above this, those of pages below.
INDEX_PAGES: Final = 1 << 40
#: The page that holds the group's schemas.
SCHEMA_PAGE: Final = 0
#: The page that holds the group's clock: it changes with every batch, and is small.
CLOCK_PAGE: Final = -3

# msgspec lets the error of text that is not UTF-8 through as it is.
UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError)

encode: Final = msgspec.msgpack.Encoder().encode
_decode_infos = msgspec.msgpack.Decoder(list[PageInfo]).decode
_decode_page = msgspec.msgpack.Decoder(dict[str, Cell]).decode
_decode_clock = msgspec.msgpack.Decoder(ClockState).decode
_decode_schemas = msgspec.msgpack.Decoder(list[bytes]).decode


class _TimedHeader(msgspec.Struct, array_like=True):
    """A header of version 2, when the engine kept the clock: ``wake`` was the time of its timer."""

    version: int
    wake: int | None
    pages: list[PageInfo]
    inline: dict[str, Cell] | None = None
    broadcast: int = 0
    schemas: list[int] = []
    processing_time: int | None = None


class _FlatHeader(msgspec.Struct, array_like=True):
    """A header as it is kept where it lists all pages itself."""

    version: int
    pages: list[PageInfo]
    inline: dict[str, Cell] | None = None
    broadcast: int = 0
    schemas: list[int] = []
    processing_time: int | None = None


class _IndexedHeader(msgspec.Struct, array_like=True):
    """A header as it is kept where it lists index pages."""

    version: int
    pages: list[PageInfo]
    index_bits: int
    broadcast: int
    schemas: list[int]
    processing_time: int | None


class _Versioned(msgspec.Struct, array_like=True):
    """The beginning of a header."""

    version: int


_decode_first = msgspec.msgpack.Decoder(_Versioned).decode
#: The version of headers when the engine kept the clock.
_TIMED: Final = 2
#: The versions of headers that list index pages, and of those of a group with a log: an older millrace
#: refuses them, none misreads them.
_INDEXED: Final = -ENCODING_VERSION
_LOGGED: Final = -100 - ENCODING_VERSION
_decode_flat = msgspec.msgpack.Decoder(_FlatHeader).decode
_decode_indexed = msgspec.msgpack.Decoder(_IndexedHeader).decode


def write_header(header: Header, listed: list[PageInfo]) -> bytes:
    """Return a header as it is kept, with what it lists: pages, and index pages in the place of others."""
    beside = (header.broadcast, header.schemas, header.processing_time)
    if header.index_bits:
        return encode(_IndexedHeader(_INDEXED, listed, header.index_bits, *beside))
    version = _LOGGED if header.logged else header.version
    return encode(_FlatHeader(version, listed, header.inline, *beside))


def read_header(stored: bytes, *, older: bool = False) -> Header:
    """Read a header.

    Args:
        stored: Its bytes.
        older: Read one of version 2, too: to look at it, or to bring it over.

    Raises:
        StateCorrupted: It is not one, or of another version.
    """
    try:
        version = _decode_first(stored).version
        if version == _TIMED and older:
            before = msgspec.msgpack.decode(stored, type=_TimedHeader)
            beside = (before.inline, before.broadcast, before.schemas, before.processing_time)
            header = Header(ENCODING_VERSION, before.pages, *beside)
        elif version in (ENCODING_VERSION, _LOGGED):
            flat = _decode_flat(stored)
            beside = (flat.inline, flat.broadcast, flat.schemas, flat.processing_time)
            header = Header(ENCODING_VERSION, flat.pages, *beside, logged=version == _LOGGED)
        elif version == _INDEXED:
            long = _decode_indexed(stored)
            beside = (None, long.broadcast, long.schemas, long.processing_time)
            header = Header(ENCODING_VERSION, long.pages, *beside, index_bits=long.index_bits)
        else:
            raise StateCorrupted(
                f"state was written with encoding version {version}, this is {ENCODING_VERSION}"
            )
    except UNREADABLE as error:
        raise StateCorrupted(f"a key group's header cannot be read: {error}") from error
    if not header.pages or not all(
        0 <= p.schema < len(header.schemas) or (p.schema == INDEX and p.depth == header.index_bits > 0)
        for p in header.pages
    ):
        raise StateCorrupted("a key group's header names no schema for its pages")
    if not all(0 <= p.depth <= _HASH_BITS and 0 <= p.prefix < 1 << p.depth for p in header.pages):
        raise StateCorrupted("a key group's header names pages that cannot be")
    return header


def read_index(data: bytes, index: PageInfo, schemas: int) -> list[PageInfo]:
    """Read an index page.

    Args:
        data: Its bytes.
        index: What the header knows of it.
        schemas: How many schemas the header has.

    Raises:
        StateCorrupted: The bytes are none, or it lists what cannot be.
    """
    try:
        infos = _decode_infos(data)
    except UNREADABLE as error:
        raise StateCorrupted(f"an index page of a key group cannot be read: {error}") from error
    if not all(
        index.depth < p.depth <= _HASH_BITS
        and p.prefix >> (p.depth - index.depth) == index.prefix
        and 0 <= p.schema < schemas
        for p in infos
    ) or sum(1 << (_HASH_BITS - p.depth) for p in infos) != 1 << (_HASH_BITS - index.depth):
        raise StateCorrupted("an index page of a key group lists pages that cannot be")
    return infos


def read_page(data: bytes, number: int) -> dict[str, Cell]:
    """Read the cells of a page.

    Raises:
        StateCorrupted: The bytes are not a page.
    """
    try:
        return _decode_page(data)
    except UNREADABLE as error:
        raise StateCorrupted(f"page {number} of a key group cannot be read: {error}") from error


def read_schemas(data: bytes) -> list[bytes]:
    """Read the schemas of a group.

    Raises:
        StateCorrupted: The bytes are none.
    """
    try:
        return _decode_schemas(data)
    except UNREADABLE as error:
        raise StateCorrupted(f"the schemas of a key group cannot be read: {error}") from error


def read_clock(data: bytes) -> ClockState:
    """Read the clock of a group.

    Raises:
        StateCorrupted: The bytes are none.
    """
    try:
        return _decode_clock(data)
    except UNREADABLE as error:
        raise StateCorrupted(f"the clock of a key group cannot be read: {error}") from error


def earliest(times: Iterable[int | None]) -> int | None:
    """Return the earliest of some times, ``None`` where there is none."""
    return min((t for t in times if t is not None), default=None)


def present(time: int) -> int | None:
    """Return a time as it is stored: nil for ``NEVER``."""
    return None if time == NEVER else time


def absent(time: int | None) -> int:
    """Return a stored time as numbers go: ``NEVER`` for nil."""
    return NEVER if time is None else time


def summarize(info: PageInfo, kept: Collection[Cell | PageInfo]) -> None:
    """Write into ``info`` the earliest times of what it holds: cells, or pages that it lists."""
    info.timer = min([c.timer for c in kept if c.timer is not None], default=None)
    info.expiry = min([c.expiry for c in kept if c.expiry is not None], default=None)
    info.processing_timer = min(
        [c.processing_timer for c in kept if c.processing_timer is not None], default=None
    )
    info.processing_expiry = min(
        [c.processing_expiry for c in kept if c.processing_expiry is not None], default=None
    )
