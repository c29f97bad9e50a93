"""Where entries live: pages of a key group, so that a batch writes what it touches.

A key group is one key of the engine's state store. Its entries live in *pages* of up to about
32 kB, found by a prefix of the key's hash and split when they outgrow that, so that a batch reads
and writes the pages of the keys it touches and not the whole group. The *header* lists the pages
with the earliest timer and the earliest expiry in each, which is all that is needed to know when the
group must be looked at again. A group of one page keeps it inside the header: one read, one write.

Nothing here knows an engine: a :class:`GroupBackend` holds bytes, be it a dict or Spark's RocksDB.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import msgspec

from millrace.errors import MillraceError
from millrace.state.layout import ENCODING_VERSION, EntryLayout
from millrace.time import NEVER

#: A page that grows past this many bytes is split in two.
PAGE_BYTES = 32_768
#: Entries larger than this are refused: one key has outgrown what a page can hold.
MAX_ENTRY_BYTES = 64 * 1024 * 1024
_MAX_DEPTH = 24


class StateCorrupted(MillraceError):
    """Stored state cannot be read back: the query must stop, nothing may be overwritten."""


class EntryTooLarge(MillraceError):
    """The state of one key has outgrown the limit."""


class WakeUp(NamedTuple):
    """What to change in the engine's timers of a group (event times, ms; ``None``: nothing)."""

    delete: int | None
    register: int | None


class GroupBackend(Protocol):
    """Bytes of one key group: a header and numbered pages."""

    def get_header(self) -> bytes | None:
        """Return the header, or ``None`` for a group never written."""

    def put_header(self, header: bytes) -> None:
        """Write the header."""

    def get_page(self, page: int) -> bytes:
        """Return a page that the header lists."""

    def put_page(self, page: int, data: bytes) -> None:
        """Write a page."""

    def delete_page(self, page: int) -> None:
        """Remove a page."""

    def clear(self) -> None:
        """Remove the header (its pages are gone already)."""


class Cell(msgspec.Struct, array_like=True, gc=False):
    """One key's entry in a page: its bytes, and when it must be looked at."""

    timer: int
    expiry: int
    body: msgspec.Raw


class PageInfo(msgspec.Struct, array_like=True, gc=False):
    """What the header knows of a page: the hashes it holds, and its earliest timer and expiry."""

    prefix: int
    depth: int
    timer: int = NEVER
    expiry: int = NEVER

    @property
    def number(self) -> int:
        """Its number in the backend: unique over all prefixes and depths."""
        return (1 << self.depth) | self.prefix


class Header(msgspec.Struct, array_like=True):
    """A group's header.

    Attributes:
        version: Version of the packed form.
        wake: When the engine was asked to call the group again, ms.
        pages: The group's pages, by prefix.
        inline: The cells, where there is one page only.
        broadcast: Digest of the group's broadcast state, 0 without: it tells whether a copy that is at
            hand is the one that is kept.
    """

    version: int
    wake: int
    pages: list[PageInfo]
    inline: dict[str, Cell] | None = None
    broadcast: int = 0


_header_decoder = msgspec.msgpack.Decoder(Header)
_page_decoder = msgspec.msgpack.Decoder(dict[str, Cell])
_encode = msgspec.msgpack.Encoder().encode
# msgspec lets the error of text that is not UTF-8 through as it is.
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError)


def _hash(key: str) -> int:
    return zlib.crc32(key.encode())


class OpenEntry:
    """An entry while a batch works on it."""

    __slots__ = ("before", "entry", "expiry", "page")

    def __init__(self, entry: Any, before: Cell | None, page: PageInfo) -> None:
        self.entry = entry
        self.before = before
        self.page = page
        self.expiry = NEVER if before is None else before.expiry


class PagedStore:
    """The entries of one key group for the time of one batch.

    Args:
        backend: Where the bytes are.
        layout: How entries are packed.
        page_bytes: Size at which a page is split.
    """

    def __init__(self, backend: GroupBackend, layout: EntryLayout, *, page_bytes: int = PAGE_BYTES) -> None:
        self._backend = backend
        self._layout = layout
        self._page_bytes = page_bytes
        self._open: dict[str, OpenEntry] = {}
        self._loaded: dict[int, dict[str, Cell]] = {}
        self._dirty: set[int] = set()
        stored = backend.get_header()
        self._header = self._read_header(stored)
        self._stored = stored
        self._broadcast_before = self._header.broadcast
        if self._header.inline is not None:
            self._loaded[self._header.pages[0].number] = self._header.inline

    @staticmethod
    def _read_header(stored: bytes | None) -> Header:
        if stored is None:
            return Header(ENCODING_VERSION, NEVER, [PageInfo(0, 0)], {})
        try:
            header = _header_decoder.decode(stored)
        except _UNREADABLE as error:
            raise StateCorrupted(f"a key group's header cannot be read: {error}") from error
        if header.version != ENCODING_VERSION:
            raise StateCorrupted(
                f"state was written with encoding version {header.version}, this is {ENCODING_VERSION}"
            )
        return header

    @property
    def broadcast(self) -> int:
        """Digest of the group's broadcast state, 0 where there is none."""
        return self._header.broadcast

    @broadcast.setter
    def broadcast(self, digest: int) -> None:
        self._header.broadcast = digest

    def _page_of(self, key: str) -> PageInfo:
        pages = self._header.pages
        if len(pages) == 1:
            return pages[0]
        bits = _hash(key)
        for info in pages:
            if bits >> (32 - info.depth) == info.prefix:
                return info
        raise StateCorrupted("a key group's pages do not cover all keys")

    def _cells(self, info: PageInfo) -> dict[str, Cell]:
        number = info.number
        found = self._loaded.get(number)
        if found is None:
            try:
                found = _page_decoder.decode(self._backend.get_page(number))
            except _UNREADABLE as error:
                raise StateCorrupted(f"page {number} of a key group cannot be read: {error}") from error
            self._loaded[number] = found
        return found

    def open(self, key: str) -> OpenEntry:
        """Return the entry of ``key`` for reading and writing; a new one where there is none."""
        found = self._open.get(key)
        if found is not None:
            return found
        info = self._page_of(key)
        cell = self._cells(info).get(key)
        if cell is None:
            opened = OpenEntry(self._layout.new(), None, info)
        else:
            opened = OpenEntry(self.decode(cell.body), cell, info)
        self._open[key] = opened
        return opened

    def decode(self, body: bytes | msgspec.Raw) -> Any:
        """Unpack an entry; unreadable bytes stop the query."""
        try:
            return self._layout.decode(body)
        except _UNREADABLE as error:
            raise StateCorrupted(f"the state of a key cannot be read: {error}") from error

    def encode(self, entry: Any) -> bytes:
        """Pack an entry, refusing one beyond the limit."""
        body = self._layout.encode(entry)
        if len(body) > MAX_ENTRY_BYTES:
            raise EntryTooLarge(
                f"the state of one key takes {len(body):,} bytes, the limit is {MAX_ENTRY_BYTES:,}: "
                "shorten its windows or time to live, or spread the key"
            )
        return body

    def due(self, watermark: int) -> list[str]:
        """Return the keys that have a timer at or before ``watermark`` (ms)."""
        keys: list[str] = []
        for info in self._header.pages:
            if info.timer <= watermark:
                keys.extend(k for k, c in self._cells(info).items() if c.timer <= watermark)
        return keys

    def entries(self) -> Iterator[tuple[str, Any]]:
        """Iterate over all stored entries (key, unpacked entry), for inspection."""
        for info in self._header.pages:
            for key, cell in self._cells(info).items():
                yield key, self.decode(cell.body)

    def commit(self, watermark: int) -> WakeUp:
        """Write what changed; return which timer of the engine to delete and which to register.

        A timer that stands earlier than needed is left alone: the group is then woken once for
        nothing, which costs less than moving the engine's timer in every batch.
        """
        for key, opened in self._open.items():
            self._keep(key, opened)
        self._open.clear()
        if self._layout.has_ttl:
            self._sweep(watermark)
        pages = self._write_pages() if self._dirty else self._header.pages
        asked = self._header.wake
        needed = self._needed(pages)
        stands = NEVER not in (asked, needed) and watermark < asked <= needed
        if not stands:
            self._header.wake = needed
        changed = self._header.wake != asked or self._header.broadcast != self._broadcast_before
        if self._dirty or changed:
            self._write_header(pages)
        if stands or needed == asked:
            return WakeUp(None, None)
        return WakeUp(None if asked == NEVER else asked, None if needed == NEVER else needed)

    def _needed(self, pages: list[PageInfo]) -> int:
        """Return when the group must be looked at: its first timer or sweep, ms."""
        slack = self._layout.sweep_slack_ms
        timer = min(p.timer for p in pages)
        expiry = min(p.expiry for p in pages)
        return min(timer, expiry + slack if expiry < NEVER - slack else NEVER)

    def _keep(self, key: str, opened: OpenEntry) -> None:
        entry = opened.entry
        cells = self._cells(opened.page)
        if self._layout.is_empty(entry):
            if opened.before is not None:
                del cells[key]
                self._dirty.add(opened.page.number)
            return
        body = self.encode(entry)
        before = opened.before
        timer = min((t.at for t in entry.timers_), default=NEVER)
        if before is not None and bytes(before.body) == body and before.expiry == opened.expiry:
            return
        self._layout.check(body, key)
        cells[key] = Cell(timer, opened.expiry, msgspec.Raw(body))
        self._dirty.add(opened.page.number)

    def _sweep(self, watermark: int) -> None:
        """Remove expired values from pages that are due, also of keys never touched again."""
        slack = self._layout.sweep_slack_ms
        for info in self._header.pages:
            if info.expiry > watermark - slack and info.number not in self._dirty:
                continue
            cells = self._cells(info)
            for key in [k for k, c in cells.items() if c.expiry <= watermark - slack]:
                entry = self.decode(cells[key].body)
                expiry = self._layout.purge(entry, watermark)
                if self._layout.is_empty(entry):
                    del cells[key]
                else:
                    cells[key] = Cell(cells[key].timer, expiry, msgspec.Raw(self._layout.encode(entry)))
                self._dirty.add(info.number)

    def _write_pages(self) -> list[PageInfo]:
        """Split what has grown, fold what is empty, then write the difference; return all pages."""
        before = {p.number for p in self._header.pages if p.depth > 0}
        pages: list[PageInfo] = []
        packed: dict[int, bytes] = {}
        for info in self._header.pages:
            pages.extend(self._fit(info, packed) if info.number in self._dirty else [info])
        pages = self._merge_empty(pages)
        for number in before - {p.number for p in pages}:
            self._backend.delete_page(number)
        for number in (p.number for p in pages if p.depth > 0):
            if number in self._dirty or number not in before:
                self._backend.put_page(number, packed.get(number) or _encode(self._loaded[number]))
        return pages

    def _write_header(self, pages: list[PageInfo]) -> None:
        header, backend = self._header, self._backend
        header.pages = pages
        if len(pages) == 1:
            cells = self._loaded[pages[0].number]
            if not cells and not header.broadcast:
                if self._stored is not None:
                    backend.clear()
                return
            header.inline = cells
        else:
            header.inline = None
        data = _encode(header)
        if data != self._stored:
            backend.put_header(data)

    def _fit(self, info: PageInfo, packed: dict[int, bytes]) -> list[PageInfo]:
        """Split a page as often as its size asks for; return what stands in its place."""
        cells = self._loaded[info.number]
        data = _encode(cells)
        if len(data) > self._page_bytes and len(cells) > 1 and info.depth < _MAX_DEPTH:
            del self._loaded[info.number]
            return [page for half in self._split(info, cells) for page in self._fit(half, packed)]
        packed[info.number] = data
        info.timer = min((c.timer for c in cells.values()), default=NEVER)
        info.expiry = min((c.expiry for c in cells.values()), default=NEVER)
        return [info]

    def _split(self, info: PageInfo, cells: dict[str, Cell]) -> list[PageInfo]:
        depth = info.depth + 1
        halves = [PageInfo(info.prefix << 1, depth), PageInfo((info.prefix << 1) | 1, depth)]
        parts: list[dict[str, Cell]] = [{}, {}]
        for key, cell in cells.items():
            parts[(_hash(key) >> (32 - depth)) & 1][key] = cell
        for half, part in zip(halves, parts, strict=True):
            self._loaded[half.number] = part
        return halves

    def _merge_empty(self, pages: list[PageInfo]) -> list[PageInfo]:
        """Fold an empty page into its sibling, so that a group that empties leaves no pages."""
        merged = True
        while merged and len(pages) > 1:
            merged = False
            by_place = {(p.depth, p.prefix): p for p in pages}
            for info in pages:
                sibling = by_place.get((info.depth, info.prefix ^ 1))
                empty = info.number in self._loaded and not self._loaded[info.number]
                if sibling is None or not empty:
                    continue
                parent = PageInfo(info.prefix >> 1, info.depth - 1, sibling.timer, sibling.expiry)
                self._loaded[parent.number] = self._cells(sibling)
                pages = [p for p in pages if p not in (info, sibling)] + [parent]
                pages.sort(key=lambda p: p.prefix << (_MAX_DEPTH - p.depth))
                merged = True
                break
        return pages
