"""Paged entries of a key group: a batch writes the pages that it touches.

A key group is one key of the engine's state store. Its entries live in *pages* of up to about
8 kB, found by a prefix of the key's hash and split when they outgrow that, so that a batch reads
and writes the pages of the keys it touches and not the whole group. The *header* lists the pages
with the earliest timer and the earliest expiry in each, which is all that is needed to know what a
batch must look at. A group of one page keeps it inside the header: one read, one write.
What the bytes mean stands beside them, in page 0, written when a group is begun and when its process
has changed.

Nothing here knows an engine: a :class:`GroupBackend` holds bytes, be it a dict or Spark's RocksDB.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from millrace.errors import MillraceError
from millrace.state.backend import CommitMetrics, GroupBackend
from millrace.state.cells import (
    INDEX,
    SCHEMA_PAGE,
    UNREADABLE,
    Cell,
    Header,
    PageInfo,
    StateCorrupted,
    absent,
    encode,
    read_header,
    read_page,
    summarize,
    write_header,
)
from millrace.state.change_log import (
    LEAST_PAGES,
    LOG_PAGES,
    MOST_OF_PAGES,
    MOST_SEGMENTS,
    MOST_TIMES,
    Changes,
    by_page,
    changes_of,
    put_on,
    segments_of,
    with_times_of,
)
from millrace.state.generations import Schemas
from millrace.state.layout import ENCODING_VERSION, EntryLayout
from millrace.state.page import OpenEntry, Page, passed
from millrace.state.page_index import PageIndex
from millrace.state.page_times import (
    EXPIRY,
    PROCESSING_EXPIRY,
    PROCESSING_TIMER,
    TIME_OF,
    TIMER,
    PageTimes,
)
from millrace.time import NEVER, NO_WATERMARK

__all__ = [
    "MAX_ENTRY_BYTES",
    "PAGE_BYTES",
    "WARN_ENTRY_BYTES",
    "Cell",
    "CommitMetrics",
    "EntryTooLarge",
    "GroupBackend",
    "Header",
    "OpenEntry",
    "PageInfo",
    "PagedStore",
    "StateCorrupted",
]

#: A page that grows past this many bytes is split in two. Small batches pay for bytes, most of all on their
#: way to Python, and less for requests, which go together; but the header lists all pages.
PAGE_BYTES = 8_192
#: An entry larger than this is worth a warning: every batch that touches its key rewrites it.
WARN_ENTRY_BYTES = 1024 * 1024
#: Entries larger than this are refused: one key has outgrown what a page can hold.
MAX_ENTRY_BYTES = 64 * 1024 * 1024
_MAX_DEPTH = 24
#: Older pages that one batch of a group renews of its own accord.
_RENEWED_PER_BATCH = 32

_log = logging.getLogger("millrace.state")


class EntryTooLarge(MillraceError):
    """The state of one key has outgrown the limit."""


class PagedStore:
    """The entries of one key group, for one batch or for several, each ended by :meth:`commit`.

    Args:
        backend: Where the bytes are.
        layout: How entries are packed.
        page_bytes: Size at which a page is split.
        label: The key group's number: groups are swept at different times.
        log_bytes: So long the group's log may become before its pages are written; 0: they always are.

    Raises:
        StateCorrupted: What is kept is not a key group, or of another version.
        StateSchemaMismatch: It was written under declarations that ``layout`` cannot read.
    """

    def __init__(
        self,
        backend: GroupBackend,
        layout: EntryLayout,
        *,
        page_bytes: int = PAGE_BYTES,
        label: int = 0,
        log_bytes: int = 0,
    ) -> None:
        self._backend = backend
        self._layout = layout
        self._page_bytes = page_bytes
        self._sweeps = layout.sweeps.apart(label)
        self._processing_sweeps = layout.processing_sweeps.apart(label)
        self._open: dict[str, OpenEntry] = {}
        self._loaded: dict[int, Page] = {}
        #: The pages of keys that were fetched.
        self._page_of: dict[str, Page] = {}
        #: The page of all keys, once it is loaded, of a group that has only one.
        self._only: Page | None = None
        self._watermark = self._processing_time = NO_WATERMARK
        #: What was read and written so far.
        self.metrics = CommitMetrics()
        self._stored = backend.get_header()
        if self._stored is None:
            root = PageInfo(0, 0)
            self._header = Header(ENCODING_VERSION, [root], {})
        else:
            self._header = read_header(self._stored)
        self._beside_before = self._beside()
        #: No time of any page is before these: its first timer, first expiry, both on processing time.
        #: ``None``: not known.
        self._first: tuple[int, int, int, int] | None = None
        #: The times of all pages, of a store that lives on from batch to batch.
        self._times: PageTimes | None = None
        #: The pages that this batch has changed.
        self._changed: dict[Page, None] = {}
        self._log_bytes = log_bytes
        #: The entries that this batch has changed.
        self._changes: Changes = {}
        #: The segments of the log, and their bytes.
        self._segments = self._segment_bytes = 0
        #: The pages whose changes are in the log alone; of those that are not loaded what it has of them.
        self._unwritten: dict[Page, None] = {}
        self._unloaded: dict[int, tuple[PageInfo, list[Changes]]] = {}
        self._schemas = Schemas(layout, self._header.schemas, backend)
        self._index = PageIndex(self._header, backend.get_pages, self.metrics)
        if self._schemas.several:
            self._index.all()  # any of them may be in an older schema
        if self._header.logged:
            self._read_log()

    def _read_log(self) -> None:
        """Take note of what the log has, for when the pages are loaded that it is of."""
        find = getattr(self._backend, "find_pages", None)
        if find is None:
            raise StateCorrupted("a key group has a log of changes, which is read in a station alone")
        segments = segments_of(find)
        self._segments, self._segment_bytes = len(segments), sum(map(len, segments))
        self._unloaded = by_page(changes_of(segments), self._index)
        for info, log in self._unloaded.values():
            with_times_of(info, log)

    def _beside(self) -> tuple[int, int | None]:
        """Return what the header keeps beside the pages."""
        return self._header.broadcast, self._header.processing_time

    @property
    def broadcast(self) -> int:
        """Digest of the group's broadcast state, 0 where there is none."""
        return self._header.broadcast

    @broadcast.setter
    def broadcast(self, digest: int) -> None:
        self._header.broadcast = digest

    @property
    def processing_time(self) -> int:
        """The last tick of processing time that the group has seen, ms; ``NO_WATERMARK`` before the first."""
        seen = self._header.processing_time
        return NO_WATERMARK if seen is None else seen

    @processing_time.setter
    def processing_time(self, tick: int) -> None:
        self._header.processing_time = tick

    # -- reading -------------------------------------------------------------------------------

    def fetch(self, keys: Iterable[str]) -> None:
        """Get the pages of some keys at once, which :meth:`open` would get one by one."""
        if len(self._header.pages) > 1:
            keys = list(keys)
            infos = self._index.of_keys(keys)
            self._fetch(infos)
            loaded = self._loaded
            for key, info in zip(keys, infos, strict=True):
                self._page_of[key] = loaded[info.number]

    def _fetch(self, infos: Iterable[PageInfo]) -> None:
        wanted = {info.number: info for info in infos}
        numbers = [number for number in wanted if number not in self._loaded]
        for number, data in zip(numbers, self._backend.get_pages(numbers) if numbers else (), strict=True):
            self._take(wanted[number], data)

    def _load(self, info: PageInfo) -> Page:
        page = self._loaded.get(info.number)
        if page is None:
            stands = self._header.inline is not None
            page = self._take(info, None if stands else self._backend.get_page(info.number))
        return page

    def _take(self, info: PageInfo, data: bytes | None) -> Page:
        """Read a page from its bytes, or from the header where it stands there."""
        number = info.number
        if data is None:
            cells = self._header.inline or {}
        else:
            cells = read_page(data, number)
            self.metrics.pages_read += 1
        page = Page(info, cells)
        if number in self._unloaded:
            put_on(cells, self._unloaded.pop(number)[1], info)
            self._note((info,))
            self._unwritten[page] = None
        if info.schema != self._schemas.now:
            self._renew(page)
        self._loaded[number] = page
        if len(self._header.pages) == 1:
            self._only = page
        return page

    def _renew(self, page: Page) -> None:
        """Bring a page that was written under other declarations to those of now."""
        older = self._schemas.reader(page.info.schema)
        cells: dict[str, Cell] = {}
        for key, cell in page.cells.items():
            try:
                entry = older.decode(cell.body, self._watermark, self._processing_time)
            except UNREADABLE as error:
                raise StateCorrupted(f"the older state of a key cannot be read: {error}") from error
            times = self._layout.expire(entry, NO_WATERMARK)
            if not self._layout.is_empty(entry):
                cells[key] = self._cell(entry, self.encode(entry), *times)
        page.cells = cells
        page.info.schema = self._schemas.now
        page.stale = True
        self._changed[page] = None

    def open(self, key: str) -> OpenEntry:
        """Return the entry of ``key`` for reading and writing; a new one where there is none."""
        opened = self._open.get(key)
        if opened is None:
            page = self._only or self._page_of.get(key) or self._load(self._index.of_key(key))
            cell = page.cells.get(key)
            if cell is None:
                opened = OpenEntry(self._layout.type(), None, page)
            else:
                expiry, processing_expiry = absent(cell.expiry), absent(cell.processing_expiry)
                opened = OpenEntry(self.decode(cell.body), cell, page, expiry, processing_expiry)
            self._open[key] = opened
        elif opened.cell is not None:  # it was let go of
            opened.entry = self.decode(opened.cell.body)
            opened.cell = None
        return opened

    def decode(self, body: bytes | msgspec.Raw) -> Any:
        """Unpack an entry; unreadable bytes stop the query."""
        try:
            return self._layout.decode(body)
        except UNREADABLE as error:
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

    def check(self, body: bytes, key: str) -> None:
        """Refuse a packed entry that could not be read back."""
        self._layout.check(body, key)

    def pack_entry(self, key: str, opened: OpenEntry) -> None:
        """Pack an entry as :meth:`commit` is to keep it.

        Raises:
            StateTypeError: It could not be packed, or not be read back.
            EntryTooLarge: It is beyond the limit.
        """
        if self._layout.is_empty(opened.entry):
            opened.packed = b""
            return
        body, before = self.encode(opened.entry), opened.before
        if before is not None and before.body == msgspec.Raw(body):
            opened.packed = before.body
            return
        self._layout.check(body, key)
        opened.packed = body

    def pack_entries(self, keys: Sequence[str], entries: Sequence[OpenEntry]) -> None:
        """Pack several entries as :meth:`pack_entry` packs each.

        Raises:
            StateTypeError: One could not be packed, or not be read back.
            EntryTooLarge: One is beyond the limit.
        """
        layout, encode = self._layout, self.encode
        bodies: list[bytes] = []
        packed: list[str] = []
        for key, opened in zip(keys, entries, strict=True):
            opened.touched = True
            if layout.is_empty(opened.entry):
                opened.packed = b""
                continue
            body, before = encode(opened.entry), opened.before
            if before is not None and before.body == msgspec.Raw(body):
                opened.packed = before.body
                continue
            opened.packed = body
            bodies.append(body)
            packed.append(key)
        layout.check_all(bodies, packed)

    def let_go(self, opened: OpenEntry) -> None:
        """Forget an entry that has been packed; :meth:`open` unpacks it if the batch comes back to its key.

        The entries of a group's batch are megabytes of small objects: what one took in memory is there for
        the next one, and near the processor.
        """
        if opened.packed:
            opened.cell = self._cell(opened.entry, opened.packed, opened.expiry, opened.processing_expiry)
            opened.entry = None

    def _pages_of(self, infos: Iterable[PageInfo]) -> list[Page]:
        """Return some pages, those that are not at hand yet got at once."""
        wanted = list(infos)
        if len(self._header.pages) > 1:
            self._fetch(wanted)
        return [self._load(info) for info in wanted]

    def _firsts(self) -> tuple[int, int, int, int]:
        """Return times that no page has an earlier one than; ``NEVER`` where there is none.

        All pages are looked through only where that is not known: most batches have nothing due in a group.
        """
        if self._times is not None:
            return self._times.firsts()
        if self._first is None or self._schemas.several:
            self._first = _least((NEVER, NEVER, NEVER, NEVER), self._header.pages)
        return self._first

    def _note(self, infos: Iterable[PageInfo]) -> None:
        """Take note of the times of pages that have changed."""
        if self._times is not None:
            for info in infos:
                self._times.note(info)
        elif self._first is not None:
            self._first = _least(self._first, infos)

    def _until(self, *lines: tuple[int, int]) -> list[Page]:
        """Return the pages that have a time of a kind up to its line (ms), of any of these, by prefix."""
        if self._times is not None:
            return self._pages_of(self._times.until(*lines))
        firsts = self._firsts()
        if all(firsts[kind] > line for kind, line in lines):
            return []
        self._first = None
        of_page = [(TIME_OF[kind], line) for kind, line in lines]

        def wanted(info: PageInfo) -> bool:
            return any((at := time(info)) is not None and at <= line for time, line in of_page)

        return self._pages_of(self._index.known(wanted))

    def tell_again(self) -> None:
        """Find anew when each key is due: how far the process is behind the stream's clock has changed."""
        self._first = None
        for page in self._pages_of(self._index.all()):
            for key, cell in page.cells.items():
                timer = self._layout.timer(self.decode(cell.body))
                if timer != cell.timer:
                    cell.timer = timer
                    page.stale = True
                    self._changed[page] = None
                    self._changes[key] = cell

    def due(self, watermark: int) -> list[str]:
        """Return the keys that have a timer or a waiting row at or before ``watermark`` (ms)."""
        self._watermark = watermark
        keys: list[str] = []
        for page in self._until((TIMER, watermark)):
            keys.extend(k for k, c in page.cells.items() if c.timer is not None and c.timer <= watermark)
        return keys

    def due_processing(self, processing_time: int) -> list[str]:
        """Return the keys that have a timer on processing time at or before ``processing_time`` (ms)."""
        self._processing_time = processing_time
        keys: list[str] = []
        for page in self._until((PROCESSING_TIMER, processing_time)):
            times = ((key, cell.processing_timer) for key, cell in page.cells.items())
            keys.extend(key for key, at in times if at is not None and at <= processing_time)
        return keys

    @property
    def pages_at_hand(self) -> int:
        """How many of its pages have been read or written since it was opened."""
        return len(self._loaded)

    def wakes(self) -> tuple[int | None, int | None, int | None, int | None]:
        """Return when the group has something to do next that no row brings; ``None``: never.

        Returns:
            Its first timer, the line at which the first expired value is removed, and both on processing
            time, ms; or somewhat before, and what there is to do is told exactly then.
        """
        pages = self._header.pages
        if self._schemas.several and any(
            self._schemas.reader(p.schema).begins_lives for p in pages if p.schema != self._schemas.now
        ):
            return NO_WATERMARK, None, None, None  # at once: some pages are still to be brought over
        if self._times is None and not self._schemas.several and all(p.schema != INDEX for p in pages):
            self._times = PageTimes(pages)
        timer, expiry, processing_timer, processing_expiry = self._firsts()
        return (
            None if timer == NEVER else timer,
            None if expiry == NEVER else self._sweeps.next(expiry),
            None if processing_timer == NEVER else processing_timer,
            None if processing_expiry == NEVER else self._processing_sweeps.next(processing_expiry),
        )

    def entries(self) -> Iterator[tuple[str, Any]]:
        """Iterate over all stored entries (key, unpacked entry), for inspection."""
        for info in self._index.all():
            for key, cell in self._load(info).cells.items():
                yield key, self.decode(cell.body)

    # -- keeping -------------------------------------------------------------------------------

    def commit(self, watermark: int, processing_time: int = NO_WATERMARK) -> None:
        """Write what changed.

        Args:
            watermark: The watermark, ms.
            processing_time: The last tick of processing time, ms.
        """
        self._watermark, self._processing_time = watermark, processing_time
        for key, opened in self._open.items():
            self._keep(key, opened)
        self._open.clear()
        self._page_of.clear()
        if self._schemas.several:
            self._bring_over()
        self._note(page.info for page in self._changed)
        self._sweep()
        if (self._changed or self._beside() != self._beside_before) and not self._append():
            self._write()
        self._changed.clear()
        self._changes.clear()
        self._beside_before = self._beside()

    def _keep(self, key: str, opened: OpenEntry) -> None:
        body, before = opened.packed, opened.before
        if body is None:
            self.pack_entry(key, opened)
            body = opened.packed
        if before is not None and body is before.body:
            return  # as it was
        page = opened.page
        if not body:
            if before is not None:
                page.remove(key)
                self._changed[page] = None
                self._changes[key] = None
            return
        if len(body) > self.metrics.largest_entry_bytes:
            self._measure(key, len(body))
        cell = opened.cell
        if cell is None:
            cell = self._cell(opened.entry, body, opened.expiry, opened.processing_expiry)
        page.put(key, cell)
        self._changed[page] = None
        self._changes[key] = cell

    def _cell(self, entry: Any, body: bytes | msgspec.Raw, expiry: int, processing_expiry: int) -> Cell:
        layout = self._layout
        timer = layout.timer(entry) if entry.timers_ or entry.pending_ or layout.streams else None
        expires = None if expiry == NEVER else expiry
        if processing_expiry == NEVER and not entry.processing_timers_:
            return Cell(timer, expires, msgspec.Raw(body))
        return Cell(
            timer,
            expires,
            msgspec.Raw(body),
            layout.processing_timer(entry) if entry.processing_timers_ else None,
            None if processing_expiry == NEVER else processing_expiry,
        )

    def _measure(self, key: str, size: int) -> None:
        self.metrics.largest_entry_key, self.metrics.largest_entry_bytes = key, size
        if size > WARN_ENTRY_BYTES and key not in self._layout.warned:
            self._layout.warned.add(key)
            _log.warning(
                "%s keeps %s bytes for key '%s', which are rewritten whenever it changes: "
                "shorten its windows or time to live, or spread the key",
                self._layout.owner,
                f"{size:,}",
                key,
            )

    def _bring_over(self) -> None:
        """Renew some of the older pages in which a life must begin, though nobody touches them.

        Where the list of pages is long, any: as long as there are some, each batch reads all of it.
        """
        left = _RENEWED_PER_BATCH
        for info in self._header.pages:
            older = info.schema != self._schemas.now
            if not (older and left):
                continue
            if self._header.index_bits or self._schemas.reader(info.schema).begins_lives:
                self._load(info)
                left -= 1

    def _sweep(self) -> None:
        """Remove expired values from pages that are due, also of keys never touched again."""
        line = self._sweeps.line(self._watermark)
        processing_line = self._processing_sweeps.line(self._processing_time)
        for page in self._until((EXPIRY, line), (PROCESSING_EXPIRY, processing_line)):
            if self._layout.only_value is not None:
                self._sweep_values(page, line, self._layout.only_value)
            for key in [k for k, c in page.cells.items() if passed(c, line, processing_line)]:
                self._expire(page, key, line, processing_line)

    def _sweep_values(self, page: Page, line: int, name: str) -> None:
        """Remove entries that have expired from a page whose entries are a value each.

        Those that have timers, waiting rows or a value that lives on are left to who looks at one by one.
        """
        cells, decode = page.cells, self.decode
        gone = []
        for key, cell in cells.items():
            if (expiry := cell.expiry) is not None and expiry <= line and cell.timer is None:
                value = None if cell.processing_timer is not None else getattr(decode(cell.body), name)
                if value is not None and value[0] <= line:
                    gone.append(key)
        if gone:
            for key in gone:
                del cells[key]
                self._changes[key] = None
            page.stale = True
            self._changed[page] = None

    def _expire(self, page: Page, key: str, line: int, processing_line: int) -> None:
        entry = self.decode(page.cells[key].body)
        times = self._layout.expire(entry, line, processing_line, self._processing_time)
        if self._layout.is_empty(entry):
            page.remove(key)
            self._changes[key] = None
        else:
            cell = self._changes[key] = self._cell(entry, self._layout.encode(entry), *times)
            page.put(key, cell)
        self._changed[page] = None

    # -- writing -------------------------------------------------------------------------------

    def _append(self) -> bool:
        """Add what this batch has changed to the log, and return whether it may be.

        That hangs on what is stored and on the batch alone, not on what is at hand.
        """
        header, changed = self._header, self._changed
        if (
            not self._log_bytes
            or self._stored is None
            or len(header.pages) == 1  # it stands in the header
            or header.index_bits
            or self._schemas.several
            or self._schemas.changed
            or self._beside() != self._beside_before
            or self._segments == MOST_SEGMENTS
            or not any(self._changes.values())  # what has gone is not to stay in the log
        ):
            return False
        pages = header.pages
        if not self._segments and not LEAST_PAGES <= len(changed) <= len(pages) <= MOST_TIMES * len(changed):
            return False
        data = encode(self._changes)
        if self._segment_bytes + len(data) > min(
            self._log_bytes, MOST_OF_PAGES * len(pages) * self._page_bytes
        ):
            return False
        if not self._segments:
            header.logged = True
            self._put_header(write_header(header, pages))
        self._put(LOG_PAGES + self._segments, data)
        self._segments += 1
        self._segment_bytes += len(data)
        for page in changed:
            page.settle()
        self._unwritten.update(changed)
        self._note(page.info for page in changed)
        return True

    def end_log(self) -> None:
        """Write the pages of the log, if there is one, between two batches: nobody may add to it for long."""
        if self._segments:
            self._write()
            self._changed.clear()

    def _write(self) -> None:
        """Write the pages that have changed, and those of the log, which ends with it."""
        header = self._header
        if self._segments:
            self._pages_of([info for info, _ in self._unloaded.values()])
            self._changed = {**self._unwritten, **self._changed}
            self._unwritten.clear()
            for number in range(self._segments):
                self._backend.delete_page(LOG_PAGES + number)
            self._segments = self._segment_bytes = 0
        dirty = list(self._changed)
        header.logged = False
        self._write_header(self._write_pages(dirty) if dirty else header.pages)

    def _write_pages(self, dirty: list[Page]) -> list[PageInfo]:
        """Write the pages that changed; split what has grown, fold what is empty; return all pages."""
        packed: dict[int, bytes] = {}
        for page in dirty:
            parts = self._fit(page, packed)
            if len(parts) > 1:
                self._replace(page.info, parts)
            # Once more: only now the times of pages that were renewed are known.
            self._note(parts)
        pages = self._header.pages
        if emptied := {p.info.number for p in dirty if not p.cells}:
            pages = self._fold(pages, emptied, packed)
        for number, data in packed.items():
            if number > 1:  # page 1 holds all there is, and stands in the header
                self._put(number, data)
                self.metrics.pages_written += 1
        return pages

    def _replace(self, info: PageInfo, parts: list[PageInfo]) -> None:
        """Put the parts of a page that was split in its place."""
        self._index.replace(info, parts)
        self._only = None
        if self._times is not None:
            self._times.forget(info.number)
        if info.number > 1:
            self._backend.delete_page(info.number)

    def _fold(self, pages: list[PageInfo], emptied: set[int], packed: dict[int, bytes]) -> list[PageInfo]:
        """Return the pages after empty ones were folded; have gone what is gone, and packed what is new."""
        before = {p.number for p in pages}
        pages = self._merge_empty(pages, emptied)
        after = {p.number for p in pages}
        for number in before - after:
            packed.pop(number, None)
            self._loaded.pop(number, None)
            if number > 1:
                self._backend.delete_page(number)
        for number in after - before:
            packed[number] = encode(self._loaded[number].cells)
        if before != after:
            self._only = self._times = self._first = None
            self._index.changed()
        return pages

    def _put(self, number: int, data: bytes) -> None:
        self._backend.put_page(number, data)
        self.metrics.bytes_written += len(data)

    def _write_header(self, pages: list[PageInfo]) -> None:
        header, backend = self._header, self._backend
        header.pages = pages
        if len(pages) == 1:
            cells = self._load(pages[0]).cells
            if not cells and not header.broadcast and header.processing_time is None:
                self._index.write(pages, backend, ())
                if self._stored is not None:
                    backend.delete_page(SCHEMA_PAGE)
                    backend.clear()
                    self._schemas.forget()
                self._stored = None
                return
            header.inline = cells
        else:
            header.inline = None
        schemas = self._schemas.used_by(pages)
        if schemas != header.schemas:
            self._index.changed()  # all pages name their schema by another place
        header.schemas = schemas
        if self._schemas.changed:
            self._put(SCHEMA_PAGE, self._schemas.written())
        touched = (page.info for page in self._changed)
        data = write_header(header, self._index.write(pages, backend, touched))
        if data != self._stored:
            self._put_header(data)

    def _put_header(self, data: bytes) -> None:
        self._backend.put_header(data)
        self._stored = data
        self.metrics.bytes_written += len(data)

    def _fit(self, page: Page, packed: dict[int, bytes]) -> list[PageInfo]:
        """Split a page as often as its size asks for; return what stands in its place."""
        data = encode(page.cells)
        info = page.info
        if len(data) > self._page_bytes and len(page.cells) > 1 and info.depth < _MAX_DEPTH:
            del self._loaded[info.number]
            halves = page.split()
            self._loaded.update((half.info.number, half) for half in halves)
            return [part for half in halves for part in self._fit(half, packed)]
        page.settle()
        packed[info.number] = data
        self.metrics.largest_page_bytes = max(self.metrics.largest_page_bytes, len(data))
        return [info]

    def _merge_empty(self, pages: list[PageInfo], emptied: set[int]) -> list[PageInfo]:
        """Fold a page that this batch emptied into its sibling, so that a group that empties leaves no pages.

        What is in memory from batches before must not matter: a store that lives on has more of it than one
        that was opened for this batch.
        """
        by_place = {(p.depth, p.prefix): p for p in pages if p.schema != INDEX}
        left = [p for p in by_place.values() if p.number in emptied]
        while left:
            info = left.pop()
            here, beside = (info.depth, info.prefix), (info.depth, info.prefix ^ 1)
            sibling = by_place.get(beside)
            if sibling is None or by_place.get(here) is not info:
                continue
            cells = self._load(sibling).cells
            parent = PageInfo(info.prefix >> 1, info.depth - 1, schema=self._schemas.now)
            summarize(parent, cells.values())
            self._loaded[parent.number] = Page(parent, cells)
            del by_place[here], by_place[beside]
            by_place[parent.depth, parent.prefix] = parent
            if not cells:
                emptied.add(parent.number)
            # The page beside the parent may have waited for it to have no more parts.
            of_parent = parent, by_place.get((parent.depth, parent.prefix ^ 1))
            left += [p for p in of_parent if p is not None and p.number in emptied]
        kept = [p for p in pages if p.schema == INDEX]
        return sorted([*kept, *by_place.values()], key=lambda p: p.prefix << (_MAX_DEPTH - p.depth))


def _least(times: tuple[int, int, int, int], infos: Iterable[PageInfo]) -> tuple[int, int, int, int]:
    """Return the least of some times and those of pages."""
    timer, expiry, processing_timer, processing_expiry = times
    for info in infos:
        if (at := info.timer) is not None and at < timer:
            timer = at
        if (at := info.expiry) is not None and at < expiry:
            expiry = at
        if (at := info.processing_timer) is not None and at < processing_timer:
            processing_timer = at
        if (at := info.processing_expiry) is not None and at < processing_expiry:
            processing_expiry = at
    return timer, expiry, processing_timer, processing_expiry
