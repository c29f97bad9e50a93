"""Pages of a key group against a plain dictionary, over a backend that checks how it is used.

``Group`` plays what surrounds a :class:`PagedStore`: the bytes in the backend, the engine that calls a
group in every batch, and a model that says what must be kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millrace.state import map_state, page_index, value_state
from millrace.state import pages as pages_module
from millrace.state.cells import INDEX, INDEX_PAGES, SCHEMA_PAGE, PageInfo, earliest, read_header
from millrace.state.layout import ENCODING_VERSION, EntryLayout, TimerRecord
from millrace.state.page_index import listed_by
from millrace.state.pages import EntryTooLarge, Header, PagedStore, StateCorrupted
from tests.cases import case_count

MINUTE = 60_000
CASES = case_count(100)


def layout() -> EntryLayout:
    """An entry with a plain value, a value and a map that expire, and timers."""
    specs: list[Any] = [
        value_state(str, default=""),
        value_state(int, ttl=10 * MINUTE),
        map_state(str, int, ttl=2 * MINUTE),
    ]
    for spec, name in zip(specs, ("text", "n", "seen"), strict=True):
        spec.name = name
    return EntryLayout(specs)


LAYOUT = layout()
SWEEPS = LAYOUT.sweeps.apart(0)


class CheckedBackend:
    """Bytes of a group in memory; refuses what Spark's store would not forgive, counts writes."""

    def __init__(self) -> None:
        self.header: bytes | None = None
        self.pages: dict[int, bytes] = {}
        self.read: list[int] = []
        self.written: list[int] = []
        self.header_writes = 0

    def get_header(self) -> bytes | None:
        return self.header

    def put_header(self, header: bytes) -> None:
        assert header, "Spark cannot tell empty bytes from none"
        self.header = header
        self.header_writes += 1

    def get_page(self, page: int) -> bytes:
        assert page in self.pages, f"page {page} was never written"
        self.read.append(page)
        return self.pages[page]

    def get_pages(self, pages: Sequence[int]) -> list[bytes]:
        return [self.get_page(page) for page in pages]

    def put_page(self, page: int, data: bytes) -> None:
        self.pages[page] = data
        self.written.append(page)

    def delete_page(self, page: int) -> None:
        assert page in self.pages, f"page {page} was never written"
        del self.pages[page]

    def clear(self) -> None:
        assert self.header is not None, "nothing to clear"
        self.header = None

    def forget_counts(self) -> None:
        self.read, self.written, self.header_writes = [], [], 0


@dataclass
class Kept:
    """What the model knows of a key."""

    text: str = ""
    n: tuple[int, int] | None = None
    seen: dict[str, tuple[int, int]] = field(default_factory=dict)
    timers: dict[str, int] = field(default_factory=dict)

    def visible(self, now: int) -> tuple[Any, ...]:
        n = self.n if self.n is not None and self.n[0] > now else None
        seen = {k: v for k, v in self.seen.items() if v[0] > now}
        return self.text, n, seen, self.timers

    def expiries(self) -> list[int]:
        return [e for e, _ in [*([self.n] if self.n else []), *self.seen.values()]]


NOTHING = Kept().visible(0)
#: An operation on a key: what, a number, how long after the watermark it happens.
Op = tuple[str, str, int, int]


class Group:
    """A key group under an engine that calls it in every batch, with rows or without."""

    def __init__(self, page_bytes: int) -> None:
        self.backend = CheckedBackend()
        self.page_bytes = page_bytes
        self.model: dict[str, Kept] = {}
        self.watermark = 0

    def store(self) -> PagedStore:
        return PagedStore(self.backend, LAYOUT, page_bytes=self.page_bytes)

    def batch(self, watermark: int, ops: Iterable[Op] = ()) -> None:
        """One micro-batch, which ends at ``watermark``."""
        self.watermark = watermark
        self.call(watermark, list(ops))
        self.check()

    def call(self, watermark: int, ops: list[Op]) -> None:
        store = self.store()
        due = store.due(watermark)
        assert sorted(due) == sorted(
            k for k, kept in self.model.items() if any(at <= watermark for at in kept.timers.values())
        )
        for key in due:
            entry = store.open(key).entry
            entry.timers_[:] = [t for t in entry.timers_ if t.at > watermark]
            kept = self.model[key]
            kept.timers = {name: at for name, at in kept.timers.items() if at > watermark}
        for op in ops:
            self.apply(store, op, watermark)
        store.commit(watermark)

    def apply(self, store: PagedStore, op: Op, watermark: int) -> None:
        key, what, number, later = op
        opened = store.open(key)
        entry = opened.entry
        kept = self.model.setdefault(key, Kept())
        now = watermark + 1 + later
        if what == "text":
            entry.text = kept.text = "x" * number
        elif what == "n":
            entry.n = kept.n = (now + 10 * MINUTE, number)
            opened.expiry = min(opened.expiry, now + 10 * MINUTE)
        elif what == "put":
            entry.seen[f"k{number % 3}"] = kept.seen[f"k{number % 3}"] = (now + 2 * MINUTE, number)
            opened.expiry = min(opened.expiry, now + 2 * MINUTE)
        elif what == "timer":
            name = f"t{number % 2}"
            entry.timers_[:] = [t for t in entry.timers_ if t.name != name] + [TimerRecord(now, name)]
            kept.timers[name] = now
        elif what == "look":
            pass
        else:
            entry.text, entry.n = "", None
            entry.seen.clear()
            entry.timers_.clear()
            self.model[key] = Kept()

    # -- what must hold after every batch ------------------------------------------------------

    def check(self) -> None:
        self.check_time()
        self.check_layout()
        self.check_contents()

    def check_time(self) -> None:
        assert all(at > self.watermark for at in self.timers()), "a timer was missed"
        assert all(line > self.watermark for line in self.lines()), "a sweep was missed"
        assert all(at > self.watermark for at in self.due()), "what was due is not done"
        if soonest := [*self.timers(), *self.lines()]:
            assert min(self.due()) <= min(soonest), "nobody will look in time"

    def lines(self) -> list[int]:
        """When the sweep takes what is stored and expires."""
        return [SWEEPS.next(expiry) for expiry in self.stored_expiries()]

    def due(self) -> list[int]:
        """When the header says that pages are to be looked at: never too late, a sweep at times too early."""
        if self.backend.header is None:
            return []
        pages = read_header(self.backend.header).pages
        sweeps = [SWEEPS.next(p.expiry) for p in pages if p.expiry is not None]
        return [*sweeps, *(p.timer for p in pages if p.timer is not None)]

    def timers(self) -> list[int]:
        return [at for kept in self.model.values() for at in kept.timers.values()]

    def stored_expiries(self) -> list[int]:
        found = []
        for _, entry in self.store().entries():
            found += [] if entry.n is None else [entry.n[0]]
            found += [expiry for expiry, _ in entry.seen.values()]
        return found

    def check_layout(self) -> None:
        if self.backend.header is None:
            assert self.backend.pages == {}
            return
        header = read_header(self.backend.header)
        pages = listed_by(header, self.backend.pages.__getitem__)
        if header.inline is not None:
            assert [p.number for p in header.pages] == [1]
            assert sorted(self.backend.pages) == [SCHEMA_PAGE]
            assert header.inline, "an empty group keeps a header"
        else:
            indexes = [p for p in header.pages if p.schema == INDEX]
            numbers = [*(p.number for p in pages), *(INDEX_PAGES | p.number for p in indexes)]
            assert sorted(self.backend.pages) == sorted([SCHEMA_PAGE, *numbers])
            assert sum(2.0**-p.depth for p in pages) == 1, "pages do not cover every key once"
            assert sum(2.0**-p.depth for p in header.pages) == 1, "items of the header do not, either"
            for index in indexes:
                self.check_index(index, pages)
        for info in pages:
            self.check_page(info, header)

    def check_index(self, index: PageInfo, pages: list[PageInfo]) -> None:
        """Check what the header knows of an index page."""
        of_it = [
            p for p in pages if p.depth > index.depth and p.prefix >> p.depth - index.depth == index.prefix
        ]
        assert of_it, "an index page lists nothing"
        for name in ("timer", "expiry", "processing_timer", "processing_expiry"):
            assert getattr(index, name) == earliest(getattr(p, name) for p in of_it)

    def check_page(self, info: Any, header: Header) -> None:
        cells = header.inline
        if cells is None:
            data = self.backend.pages[info.number]
            cells = msgspec.msgpack.decode(data, type=dict[str, pages_module.Cell])
            assert len(data) <= self.page_bytes or len(cells) == 1
        assert info.timer == earliest(c.timer for c in cells.values())
        assert info.expiry == earliest(c.expiry for c in cells.values())

    def check_contents(self) -> None:
        found = {}
        for key, entry in self.store().entries():
            timers = {t.name: t.at for t in entry.timers_}
            found[key] = Kept(entry.text, entry.n, entry.seen, timers)
        seen = {k: v.visible(self.watermark) for k, v in found.items()}
        wanted = {k: v.visible(self.watermark) for k, v in self.model.items()}
        assert {k: v for k, v in seen.items() if v != NOTHING} == {
            k: v for k, v in wanted.items() if v != NOTHING
        }


KEYS = [f"1:{c}" for c in "abcdefghijklmnopqrstuvwxyz"]
OPS = st.tuples(
    st.sampled_from(KEYS),
    st.sampled_from(["text", "text", "n", "put", "timer", "timer", "look", "forget", "forget"]),
    st.integers(0, 60),
    st.sampled_from([0, 1, 2, MINUTE // 2, 5 * MINUTE]),
)
BATCHES = st.lists(
    st.tuples(st.sampled_from([0, 1, 2, 999, MINUTE, 3 * MINUTE, 60 * MINUTE]), st.lists(OPS, max_size=12)),
    max_size=15,
)


@pytest.fixture(params=["listed in the header", "listed in index pages"])
def lists(request: pytest.FixtureRequest) -> Iterator[None]:
    """Pages as they are listed: index pages are there for groups of hundreds of pages, here of four."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "listed in index pages":
            patch.setattr(page_index, "FLAT_PAGES", 3)
            patch.setattr(page_index, "_FIRST_BITS", 1)
            patch.setattr(page_index, "_LISTED", 3)
        yield


@pytest.mark.usefixtures("lists")
@settings(max_examples=CASES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(BATCHES, st.sampled_from([60, 150, 400, 32_768]))
def test_a_group_keeps_what_a_dictionary_keeps(batches: list[tuple[int, list[Op]]], page_bytes: int) -> None:
    group = Group(page_bytes)
    now = 1_000_000
    for step, ops in batches:
        now += step
        group.batch(now, ops)
    group.batch(now, [(key, "forget", 0, 0) for key in KEYS])
    assert group.backend.header is None
    assert group.backend.pages == {}


@settings(max_examples=60, deadline=None)
@given(BATCHES, st.sampled_from([60, 400, 32_768]))
def test_time_alone_empties_a_group_of_all_that_expires(
    batches: list[tuple[int, list[Op]]], page_bytes: int
) -> None:
    """No row comes any more; batches without one, each no later than needed, leave nothing."""
    group = Group(page_bytes)
    now = 1_000_000
    for step, ops in batches:
        now += step
        group.batch(now, [op for op in ops if op[1] != "text"])
    while times := [*group.timers(), *group.lines()]:
        assert min(times) > now
        now = min(times)
        group.batch(now)
    assert group.backend.header is None
    assert group.backend.pages == {}


@settings(max_examples=60, deadline=None)
@given(BATCHES, st.sampled_from([60, 400, 32_768]))
def test_a_batch_in_which_nothing_is_due_reads_and_writes_nothing(
    batches: list[tuple[int, list[Op]]], page_bytes: int
) -> None:
    """Every group is called in every batch: one that nothing concerns costs its header's reading."""
    group = Group(page_bytes)
    now = 1_000_000
    for step, ops in batches:
        now += step
        group.batch(now, ops)
        not_yet = min([*group.due(), now + MINUTE]) - 1
        group.backend.forget_counts()
        group.call(not_yet, [])
        assert (group.backend.read, group.backend.written, group.backend.header_writes) == ([], [], 0)


def filled(count: int, *, page_bytes: int = 400, size: int = 40) -> Group:
    group = Group(page_bytes)
    group.batch(0, [(f"3:{i:03}", "text", size, 0) for i in range(count)])
    return group


def test_a_small_group_is_one_read_and_one_write() -> None:
    group = filled(3)
    group.backend.forget_counts()
    group.batch(1, [("3:001", "text", 5, 0)])
    assert group.backend.read == group.backend.written == []
    assert group.backend.header_writes == 1


def test_only_touched_pages_are_written() -> None:
    group = filled(200)
    pages = len(group.backend.pages)
    assert pages > 20
    group.backend.forget_counts()
    store = group.store()
    store.open("3:007").entry.text = "changed"
    store.commit(1)
    assert len(group.backend.read) == 1
    assert len(group.backend.written) == 1
    assert len(group.backend.pages) == pages


def test_looking_at_a_key_writes_nothing() -> None:
    group = filled(200)
    group.backend.forget_counts()
    store = group.store()
    for i in range(200):
        assert store.open(f"3:{i:03}").entry.text
    store.open("3:999")
    store.commit(1)
    assert group.backend.written == []
    assert group.backend.header_writes == 0


def test_a_timer_reads_only_the_pages_that_hold_it() -> None:
    group = filled(200)
    group.batch(0, [("3:007", "timer", 0, 99)])
    group.backend.forget_counts()
    store = group.store()
    assert store.due(99) == []
    assert group.backend.read == []
    assert store.due(100) == ["3:007"]
    assert len(group.backend.read) == 1


def test_a_timer_is_due_at_its_time_and_not_before() -> None:
    group = Group(400)
    group.batch(0, [("1:a", "timer", 0, 9), ("1:b", "timer", 0, 10), ("1:c", "text", 1, 0)])
    assert group.store().due(9) == []
    assert group.store().due(10) == ["1:a"]
    assert sorted(group.store().due(11)) == ["1:a", "1:b"]


def test_the_header_says_when_the_first_timer_of_a_page_is_due() -> None:
    group = Group(400)

    def timer() -> int | None:
        assert group.backend.header is not None
        (page,) = msgspec.msgpack.decode(group.backend.header, type=Header).pages
        return page.timer

    group.batch(0, [("1:a", "timer", 0, 99)])
    assert timer() == 100
    group.batch(0, [("1:b", "timer", 0, 49)])
    assert timer() == 50
    group.batch(0, [("1:b", "forget", 0, 0)])
    assert timer() == 100
    group.batch(0, [("1:b", "timer", 0, 149)])
    assert timer() == 100
    group.batch(100)
    assert timer() == 150


def test_a_sweep_takes_a_value_at_the_first_line_after_its_expiry() -> None:
    group = Group(400)
    group.batch(0, [("1:a", "put", 1, 0)])
    expiry = 1 + 2 * MINUTE
    (line,) = group.lines()
    assert expiry <= line < expiry + MINUTE
    group.batch(line - 1)
    assert group.stored_expiries() == [expiry]
    group.batch(line)
    assert group.backend.header is None


def test_keys_whose_hashes_collide_share_a_page() -> None:
    """'plumless' and 'buckeroo' are a known pair with the same CRC-32: no split can part them."""
    group = Group(60)
    keys = ["plumless", "buckeroo", "other"]
    group.batch(0, [(key, "text", 60, 0) for key in keys[2:]])
    store = group.store()
    for key in keys:
        store.open(key).entry.text = "x" * 60
    store.commit(0)
    assert {k: e.text for k, e in group.store().entries()} == dict.fromkeys(keys, "x" * 60)
    store = group.store()
    for key in keys:
        store.open(key).entry.text = ""
    store.commit(0)
    assert group.backend.header is None
    assert group.backend.pages == {}


# -- what cannot be read stops the query ---------------------------------------------------------


@pytest.mark.parametrize("header", [b"\xc1", b"not a header", b"", b"\x93\x03", b"\x93\x03\x90\xc0"])
def test_an_unreadable_header_stops(header: bytes) -> None:
    backend = CheckedBackend()
    backend.header = header
    with pytest.raises(StateCorrupted):
        PagedStore(backend, LAYOUT).open("1:a")


def test_state_of_another_encoding_version_stops() -> None:
    group = filled(3)
    assert group.backend.header is not None
    kept = msgspec.msgpack.decode(group.backend.header)
    kept[0] = ENCODING_VERSION + 1
    group.backend.header = msgspec.msgpack.encode(kept)
    with pytest.raises(StateCorrupted, match=f"version {ENCODING_VERSION + 1}"):
        group.store()


def test_pages_that_do_not_cover_a_key_stop() -> None:
    group = filled(100)
    assert group.backend.header is not None
    kept = msgspec.msgpack.decode(group.backend.header)
    kept[1] = kept[1][:1] + kept[1][2:]
    group.backend.header = msgspec.msgpack.encode(kept)
    store = group.store()
    with pytest.raises(StateCorrupted, match="cover"):
        [store.open(f"3:{i:03}") for i in range(100)]


@pytest.mark.parametrize("damage", [b"\xc1", b"", b"\x81\xa1\xff\x93\x00\x00\xc0", b"\x81\xa1a\x92\x00\x00"])
def test_an_unreadable_page_stops(damage: bytes) -> None:
    group = filled(100)
    for number in group.backend.pages.keys() - {SCHEMA_PAGE}:
        group.backend.pages[number] = damage
    with pytest.raises(StateCorrupted):
        group.store().open("3:001")


@pytest.mark.parametrize(
    "damage",
    [b"\xc0", b"\x91\x05", b"\x96\x90\x90\x90\xa1\xff\xc0\x80", b"\x96\x90\x90\x90\xa1a\x01\x80"],
)
def test_an_unreadable_entry_stops(damage: bytes) -> None:
    group = filled(1)
    assert group.backend.header is not None
    header = msgspec.msgpack.decode(group.backend.header, type=Header)
    assert header.inline is not None
    header.inline["3:000"].body = msgspec.Raw(damage)
    group.backend.header = msgspec.msgpack.encode(header)
    with pytest.raises(StateCorrupted):
        group.store().open("3:000")


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_damaged_bytes_either_read_or_stop_with_state_corrupted(data: st.DataObject) -> None:
    group = filled(4)
    group.batch(0, [("3:001", "timer", 1, 50), ("3:002", "put", 1, 0)])
    assert group.backend.header is not None
    damaged = bytearray(group.backend.header)
    for at in data.draw(st.lists(st.integers(0, len(damaged) - 1), min_size=1, max_size=3)):
        damaged[at] = data.draw(st.integers(0, 255))
    group.backend.header = bytes(damaged)
    try:
        store = group.store()
        store.due(100)
        list(store.entries())
        store.open("3:001")
    except StateCorrupted:
        return


def test_an_entry_beyond_the_limit_is_refused_and_nothing_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pages_module, "MAX_ENTRY_BYTES", 1_000)
    group = filled(2)
    before = group.backend.header
    store = group.store()
    store.open("3:001").entry.text = "x" * 1_001
    with pytest.raises(EntryTooLarge, match="the limit is 1,000"):
        store.commit(1)
    assert group.backend.header == before


def test_of_a_thousand_pages_a_batch_reads_and_writes_few_and_a_short_header() -> None:
    """Index pages come by themselves, and go again with what they list."""
    backend = CheckedBackend()

    def batch(watermark: int, texts: dict[str, str]) -> PagedStore:
        store = PagedStore(backend, LAYOUT, page_bytes=80)
        backend.forget_counts()
        for key, text in texts.items():
            store.open(key).entry.text = text
        store.commit(watermark)
        return store

    keys = {f"5:k{n:04}": "x" * 70 for n in range(3_000)}
    batch(1, keys)
    assert backend.header is not None
    header = read_header(backend.header)
    pages = listed_by(header, backend.pages.__getitem__)
    assert len(pages) > 2_000
    assert len(header.pages) <= 1 << header.index_bits <= 128
    assert len(backend.header) < 2_000

    store = batch(2, {"5:k0077": "y" * 70})
    read, written = list(backend.read), list(backend.written)
    assert len(read) == 2, "an index page, and a page"
    assert written == read[1:], "no time has changed"
    assert store.metrics.pages_read == 2
    found = {key: entry.text for key, entry in PagedStore(backend, LAYOUT).entries()}
    assert found == {**keys, "5:k0077": "y" * 70}

    batch(3, dict.fromkeys(keys, ""))
    assert backend.header is None
    assert backend.pages == {}


@pytest.mark.parametrize("damage", ["bytes", "gone", "elsewhere", "schema", "nothing"])
def test_an_index_page_that_cannot_be_stops(monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    monkeypatch.setattr(page_index, "FLAT_PAGES", 3)
    group = filled(300)
    index = max(group.backend.pages)
    assert index > INDEX_PAGES
    listed = msgspec.msgpack.decode(group.backend.pages[index], type=list[PageInfo])
    if damage == "elsewhere":
        listed[0].prefix ^= 1 << listed[0].depth - 1
    elif damage == "schema":
        listed[0].schema = 1
    elif damage == "gone":
        del listed[0]
    elif damage == "nothing":
        listed = []
    group.backend.pages[index] = b"\xc1" if damage == "bytes" else msgspec.msgpack.encode(listed)
    with pytest.raises(StateCorrupted, match="key group"):
        list(group.store().entries())
