"""Index pages: where a key group's list of pages is long, parts of it stand in cells of their own.

The header lists the pages of a group, and is read and written with every batch. Beyond
:data:`FLAT_PAGES` it lists *index pages* in their place, each with the earliest times of all it lists; a
batch reads those of the keys that it touches and of what is due. An index page lists all pages whose
hashes begin with the same bits, as many for the whole group, and one more when one of them has become long.
A page that has no more bits than that stands in the header itself.

What stands where follows from what is stored alone, never from what a batch has read.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from millrace.state.backend import CommitMetrics, GroupBackend
from millrace.state.cells import (
    INDEX,
    INDEX_PAGES,
    Header,
    PageInfo,
    StateCorrupted,
    encode,
    read_index,
    summarize,
)

#: More pages than this do not stand in the header.
FLAT_PAGES: Final = 1_024
#: Bits of the first index pages, and how many pages one may list, or as many as there may be of itself.
_FIRST_BITS: Final = 5
#: Bits of a key's hash.
_HASH_BITS: Final = 32
_LISTED: Final = 128


class PageIndex:
    """The pages of a group as far as they are known; those of an index page that was not read are one item.

    Args:
        header: The group's header; its ``pages`` are changed as index pages are read.
        get_pages: Reads index pages by their numbers.
        metrics: What was read and written.
    """

    def __init__(
        self, header: Header, get_pages: Callable[[Sequence[int]], list[bytes]], metrics: CommitMetrics
    ) -> None:
        self._header = header
        self._get_pages = get_pages
        self._metrics = metrics
        #: Index pages that were read or written: number → bytes.
        self._known: dict[int, bytes] = {}
        self._starts: list[int] | None = None
        #: What the header lists of the pages as they were written last; ``None``: of others.
        self._items: list[PageInfo] | None = [*header.pages] if header.index_bits else None

    def changed(self) -> None:
        """Take note that the list of pages is another one."""
        self._starts = self._items = None

    def replace(self, info: PageInfo, parts: Sequence[PageInfo]) -> None:
        """Put the parts of a page in its place."""
        pages, starts = self._header.pages, self._known_starts()
        place = bisect_right(starts, _start(info)) - 1
        if pages[place] is not info:
            raise StateCorrupted(f"page {info.number} is not among those of its key group")
        pages[place : place + 1] = parts
        starts[place : place + 1] = map(_start, parts)
        if info.depth <= self._header.index_bits:
            self._items = None  # the header lists the page itself

    def _known_starts(self) -> list[int]:
        if self._starts is None:
            self._starts = [_start(p) for p in self._header.pages]
        return self._starts

    def known(self, wanted: Callable[[PageInfo], bool]) -> list[PageInfo]:
        """Return the pages that are ``wanted``, judged by their times; reads what may list some."""
        if self._header.index_bits:
            self._read(p for p in self._header.pages if p.schema == INDEX and wanted(p))
        return [p for p in self._header.pages if wanted(p) and p.schema != INDEX]

    def all(self) -> list[PageInfo]:
        """Return all pages, by prefix."""
        return self.known(lambda _: True)

    def of_key(self, key: str) -> PageInfo:
        """Return the page that a key's text belongs to.

        Raises:
            StateCorrupted: There is none.
        """
        info = self._item(key)
        if info.schema == INDEX:
            self._read((info,))
            info = self._item(key)
        return info

    def of_keys(self, keys: Iterable[str]) -> list[PageInfo]:
        """Return the pages that some keys belong to; index pages that list them are read at once."""
        if self._header.index_bits:
            keys = list(keys)
            self._read({p.number: p for p in map(self._item, keys) if p.schema == INDEX}.values())
        pages, starts = self._header.pages, self._known_starts()
        # As _item(…), which is a call for every key.
        hashes = [zlib.crc32(key.encode()) for key in keys]
        found = [pages[bisect_right(starts, bits) - 1] for bits in hashes]
        for bits, info in zip(hashes, found, strict=True):
            if info.depth > _HASH_BITS or bits >> (_HASH_BITS - info.depth) != info.prefix:
                raise StateCorrupted("a key group's pages do not cover all keys")
        return found

    def _item(self, key: str) -> PageInfo:
        pages = self._header.pages
        if len(pages) == 1:
            return pages[0]
        bits = zlib.crc32(key.encode())
        try:
            info = pages[bisect_right(self._known_starts(), bits) - 1]
            if bits >> (32 - info.depth) == info.prefix:
                return info
        except ValueError:
            pass  # a depth that is none
        raise StateCorrupted("a key group's pages do not cover all keys")

    def _read(self, items: Iterable[PageInfo]) -> None:
        """Put the pages that index pages list in the place of these."""
        wanted = list(items)
        if not wanted:
            return
        pages, starts = self._header.pages, self._known_starts()
        found = self._get_pages([INDEX_PAGES | p.number for p in wanted])
        for item, data in zip(wanted, found, strict=True):
            listed = read_index(data, item, len(self._header.schemas))
            place = bisect_left(starts, _start(item))
            pages[place : place + 1] = listed
            starts[place : place + 1] = map(_start, listed)
            self._known[INDEX_PAGES | item.number] = data
            self._metrics.pages_read += 1

    def write(
        self, pages: list[PageInfo], backend: GroupBackend, touched: Iterable[PageInfo]
    ) -> list[PageInfo]:
        """Write the index pages that have changed.

        Args:
            pages: The pages, by prefix, as they are now; of others it was told by :meth:`changed`.
            backend: Where to.
            touched: The pages that have changed since they were written last.

        Returns:
            What the header is to list.
        """
        header = self._header
        header.pages = pages
        bits = header.index_bits
        if self._items is not None:
            if not bits and len(pages) <= FLAT_PAGES:
                return pages
            if bits and self._write_listing(self._items, touched, bits, backend):
                return self._items
        bits = bits or (_FIRST_BITS if len(pages) > FLAT_PAGES else 0)
        items, listed = _divided(pages, bits)
        while any(len(of_one) > _most(bits) for of_one in listed.values()):
            bits += 1
            items, listed = _divided(self.all(), bits)
        if bits and not any(item.schema == INDEX for item in items):
            bits = 0
        header.index_bits = bits
        for number in self._known.keys() - listed.keys():
            backend.delete_page(number)
            del self._known[number]
        for number, of_one in listed.items():
            self._put(number, of_one, backend)
        self._items = items
        return items

    def _write_listing(
        self, items: list[PageInfo], touched: Iterable[PageInfo], bits: int, backend: GroupBackend
    ) -> bool:
        """Write the index pages that list some pages, or return that others are wanted: one is too long."""
        starts, pages = self._known_starts(), self._header.pages
        found: dict[int, list[PageInfo]] = {}
        for prefix in {p.prefix >> (p.depth - bits) for p in touched if p.depth > bits}:
            low, high = (bisect_left(starts, at << (32 - bits)) for at in (prefix, prefix + 1))
            found[prefix] = pages[low:high]
            if len(found[prefix]) > _most(bits):
                return False
        starts_of_items = [_start(item) for item in items] if found else []
        for prefix, of_one in found.items():
            item = items[bisect_left(starts_of_items, prefix << (32 - bits))]
            summarize(item, of_one)
            self._put(INDEX_PAGES | item.number, of_one, backend)
        return True

    def _put(self, number: int, listed: list[PageInfo], backend: GroupBackend) -> None:
        """Write an index page, if it is not as it was."""
        data = encode(listed)
        if data != self._known.get(number):
            self._known[number] = data
            backend.put_page(number, data)
            self._metrics.pages_written += 1
            self._metrics.bytes_written += len(data)


def _most(bits: int) -> int:
    """Return how many pages an index page may list."""
    return max(_LISTED, 1 << bits)


def _start(info: PageInfo) -> int:
    """Return the first hash that belongs to a page."""
    return info.prefix << (32 - info.depth)


def _divided(pages: list[PageInfo], bits: int) -> tuple[list[PageInfo], dict[int, list[PageInfo]]]:
    """Return what the header lists, and by its number what each index page does that is known."""
    if not bits:
        return pages, {}
    items: list[PageInfo] = []
    listed: dict[int, list[PageInfo]] = {}
    for page in pages:
        if page.depth <= bits:
            items.append(page)
            continue
        prefix = page.prefix >> (page.depth - bits)
        number = INDEX_PAGES | 1 << bits | prefix
        if number not in listed:
            listed[number] = []
            items.append(PageInfo(prefix, bits, schema=INDEX))
        listed[number].append(page)
    for item in items:
        if (of_one := listed.get(INDEX_PAGES | item.number)) is not None:
            summarize(item, of_one)
    return items, listed


def listed_by(header: Header, page: Callable[[int], bytes]) -> list[PageInfo]:
    """Return all pages of a group.

    Args:
        header: The group's header.
        page: Gives the bytes of an index page by its number.

    Raises:
        StateCorrupted: An index page cannot be read.
    """
    count = len(header.schemas)
    return [
        info
        for item in header.pages
        for info in (
            read_index(page(INDEX_PAGES | item.number), item, count) if item.schema == INDEX else (item,)
        )
    ]
