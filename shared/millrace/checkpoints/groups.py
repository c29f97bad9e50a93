"""Unpacking of key groups into the entries of their keys, and packing of these.

Nothing here decodes an entry: what is moved to other groups stays as the process has packed it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from millrace.state.backend import CommitMetrics
from millrace.state.cells import (
    SCHEMA_PAGE,
    Cell,
    Header,
    PageInfo,
    StateCorrupted,
    encode,
    read_header,
    read_page,
    read_schemas,
    write_header,
)
from millrace.state.change_log import Changes, by_page, changes_of, put_on, segments_of
from millrace.state.layout import ENCODING_VERSION
from millrace.state.page import Page
from millrace.state.page_index import PageIndex, listed_by
from millrace.state.pages import PAGE_BYTES

_MAX_DEPTH = 24


@dataclass
class StoredGroup:
    """A key group as it stands in the state store.

    Attributes:
        header: Its header.
        pages: Number → bytes; page 0 has the schemas.
        broadcast: Its copy of the broadcast state.
        clock: How far its clock is.
    """

    header: bytes
    pages: dict[int, bytes] = field(default_factory=dict)
    broadcast: bytes | None = None
    clock: bytes | None = None

    @property
    def read_header(self) -> Header:
        """The header, read."""
        return read_header(self.header, older=True)

    def schemas(self) -> list[bytes]:
        """Return the schemas that its pages are written in."""
        if SCHEMA_PAGE not in self.pages:
            raise StateCorrupted("a key group has no schemas beside its pages")
        return read_schemas(self.pages[SCHEMA_PAGE])

    def page(self, number: int) -> dict[str, Cell]:
        """Return the cells of a page that the header lists."""
        return read_page(self.bytes_of(number), number)

    def bytes_of(self, number: int) -> bytes:
        """Return a page that is listed."""
        if number not in self.pages:
            raise StateCorrupted(f"page {number} of a key group is not there")
        return self.pages[number]

    def cells(self) -> Iterator[tuple[PageInfo, dict[str, Cell], int]]:
        """Yield every page: what is known of it, the cells of its keys as of now, its size in bytes."""
        header = self.read_header
        if header.inline is not None:
            yield header.pages[0], header.inline, len(self.header)
            return
        logged = self.logged(header)
        for info in listed_by(header, self.bytes_of):
            yield info, self.cells_of(info, logged), len(self.pages[info.number])

    def logged(self, header: Header) -> dict[int, tuple[PageInfo, list[Changes]]]:
        """Return what its log says of each page, by the page's number; nothing where there is no log.

        Args:
            header: Its header, read.

        Raises:
            StateCorrupted: The log cannot be read.
        """
        if not header.logged:
            return {}
        segments = segments_of(lambda numbers: [self.pages.get(number) for number in numbers])
        return by_page(changes_of(segments), PageIndex(header, lambda _: [], CommitMetrics()))

    def cells_of(
        self, info: PageInfo, logged: Mapping[int, tuple[PageInfo, list[Changes]]]
    ) -> dict[str, Cell]:
        """Return the cells of a page that the header lists as of now, and bring its times up to date."""
        cells = self.page(info.number)
        if info.number in logged:
            put_on(cells, logged[info.number][1], info)
        return cells


def packed_group(
    cells: Mapping[str, Cell],
    schema: bytes,
    *,
    broadcast: bytes | None = None,
    processing_time: int | None = None,
    clock: bytes | None = None,
    page_bytes: int = PAGE_BYTES,
) -> StoredGroup:
    """Put a key group together.

    Args:
        cells: Its entries by key, all in one schema.
        schema: What their slots are.
        broadcast: The broadcast state, in its packed form.
        processing_time: The last tick of processing time that the group has seen, ms.
        clock: How far its clock is, in its packed form.
        page_bytes: Size at which a page is split.

    Example:
        >>> import msgspec
        >>> group = packed_group({"1:a": Cell(500, None, msgspec.Raw(b"x"))}, b"[]")
        >>> [(info.number, info.timer) for info, _, _ in group.cells()]
        [(1, 500)]
    """
    root = Page(PageInfo(0, 0), dict(cells))
    root.stale = True
    packed = {page.info.number: (page, data) for page, data in _split(root, page_bytes)}
    infos = sorted((page.info for page, _ in packed.values()), key=lambda p: p.prefix << (32 - p.depth))
    digest = int.from_bytes(hashlib.blake2b(schema, digest_size=7).digest(), "big")
    header = Header(ENCODING_VERSION, infos, schemas=[digest], processing_time=processing_time)
    if broadcast is not None:
        header.broadcast = int.from_bytes(hashlib.blake2b(broadcast, digest_size=7).digest(), "big") | 1
    pages = {SCHEMA_PAGE: encode([schema])}
    if len(infos) == 1:
        header.inline = root.cells
    else:
        pages.update((number, data) for number, (_, data) in packed.items())
    return StoredGroup(write_header(header, infos), pages, broadcast, clock)


def _split(page: Page, page_bytes: int) -> Iterator[tuple[Page, bytes]]:
    data = encode(page.cells)
    if len(data) > page_bytes and len(page.cells) > 1 and page.info.depth < _MAX_DEPTH:
        halves = page.split()
        if all(half.cells for half in halves):  # an empty page would stay for ever: nobody would load it
            for half in halves:
                yield from _split(half, page_bytes)
            return
    page.settle()
    yield page, data
