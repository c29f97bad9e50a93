"""A group with a log of changes against a plain dictionary, and against the same group without one."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.checkpoints.figures import figures_of_group, sample_of_group
from millrace.checkpoints.groups import StoredGroup
from millrace.checkpoints.lookup import entry_in
from millrace.host.groups import encode_key
from millrace.host.station import HEADER
from millrace.state import change_log, value_state
from millrace.state.cells import SCHEMA_PAGE, Cell, StateCorrupted, encode, read_header
from millrace.state.change_log import LOG_PAGES, MOST_SEGMENTS, changes_of, segments_of
from millrace.state.layout import EntryLayout
from millrace.state.page_index import listed_by
from millrace.state.pages import PagedStore
from millrace.time import NEVER
from tests.cases import case_count
from tests.unit.millrace.state.test_pages import (
    BATCHES,
    KEYS,
    LAYOUT,
    SWEEPS,
    CheckedBackend,
    Group,
    Op,
)

CASES = case_count(150)
MINUTE = 60_000
#: Groups of how many pages have a log: those of the tests are small.
SMALL = {"LEAST_PAGES": 1, "MOST_TIMES": 1_000}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let small groups have a log."""
    for name, value in SMALL.items():
        monkeypatch.setattr(f"millrace.state.pages.{name}", value)


class LoggedBackend(CheckedBackend):
    """A backend that says which pages there are."""

    def find_pages(self, pages: Sequence[int]) -> list[bytes | None]:
        return [self.pages.get(page) for page in pages]

    def stored(self) -> StoredGroup:
        assert self.header is not None
        return StoredGroup(self.header, dict(self.pages))

    def segments(self) -> list[int]:
        return sorted(number for number in self.pages if number >= LOG_PAGES)


class Logged(Group):
    """A key group with a log; its store lives on from batch to batch, or is opened anew for each.

    Args:
        page_bytes: Size at which a page is split.
        log_bytes: Size at which the log ends.
        lives_on: Whether the store does.
    """

    def __init__(self, page_bytes: int, log_bytes: int, *, lives_on: bool) -> None:
        super().__init__(page_bytes)
        self.backend: LoggedBackend = LoggedBackend()
        self.log_bytes, self.lives_on = log_bytes, lives_on
        self.living: PagedStore | None = None

    def store(self) -> PagedStore:
        return PagedStore(self.backend, LAYOUT, page_bytes=self.page_bytes, log_bytes=self.log_bytes)

    def call(self, watermark: int, ops: list[Op]) -> None:
        fresh = self.store
        if self.lives_on:
            self.living = self.living or fresh()
            self.store = lambda: self.living  # type: ignore[method-assign,assignment,return-value]
        try:
            super().call(watermark, ops)
            if self.lives_on:
                assert self.living is not None
                self.living.wakes()
        finally:
            self.store = fresh  # type: ignore[method-assign]

    def due(self) -> list[int]:
        """When the group is to be woken."""
        return [at for at in self.store().wakes()[:2] if at is not None]

    def check_time(self) -> None:
        """A store that was opened anew may look too early: pages have times that the log has changed."""
        assert all(at > self.watermark for at in self.timers()), "a timer was missed"
        assert all(line > self.watermark for line in self.lines()), "a sweep was missed"
        due = self.due()
        if soonest := [*self.timers(), *self.lines()]:
            assert min(due) <= min(soonest), "nobody will look in time"
        if self.living is not None:
            wakes = [at for at in self.living.wakes()[:2] if at is not None]
            assert all(at > self.watermark for at in wakes), "what was due is not done"
            assert min(wakes, default=NEVER) >= min(due, default=NEVER), "a restart would look too late"

    def check_layout(self) -> None:
        backend = self.backend
        if backend.header is None:
            assert backend.pages == {}
            return
        header = read_header(backend.header)
        pages = [info.number for info in listed_by(header, backend.pages.__getitem__)]
        segments = backend.segments()
        assert segments == list(range(LOG_PAGES, LOG_PAGES + len(segments)))
        assert header.logged == bool(segments)
        assert len(segments) <= MOST_SEGMENTS
        assert sum(len(backend.pages[n]) for n in segments) <= self.log_bytes
        beside = [] if header.inline is not None else pages
        assert sorted(n for n in backend.pages if n < LOG_PAGES) == sorted([SCHEMA_PAGE, *beside])
        if header.logged:
            return
        for info in listed_by(header, backend.pages.__getitem__):
            self.check_page(info, header)

    def check_contents(self) -> None:
        super().check_contents()
        if self.backend.header is None:
            return
        stored = self.backend.stored()
        by_cell = {key: bytes(c.body) for _, cells, _ in stored.cells() for key, c in cells.items()}
        by_store = {key: LAYOUT.encode(entry) for key, entry in self.store().entries()}
        assert by_cell == by_store
        values = {HEADER: stored.header, **stored.pages}
        for key in KEYS:
            found = entry_in(key, lambda numbers: {n: values[n] for n in numbers if n in values})
            assert (found is None) == (key not in by_store)
            if found is not None:
                assert found[1] == len(by_store[key])
        for info, cells, _ in stored.cells():
            timers = [c.timer for c in cells.values() if c.timer is not None]
            assert info.timer == min(timers, default=None)


LOG_SIZES = st.sampled_from([0, 60, 300, 2_000, 1 << 20])


@settings(max_examples=CASES, deadline=None)
@given(BATCHES, st.sampled_from([60, 150, 400]), LOG_SIZES, st.booleans())
def test_a_group_with_a_log_keeps_what_a_dictionary_keeps(
    batches: list[tuple[int, list[Op]]], page_bytes: int, log_bytes: int, lives_on: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SMALL.items():
            patch.setattr(f"millrace.state.pages.{name}", value)
        group = Logged(page_bytes, log_bytes, lives_on=lives_on)
        now = 1_000_000
        for step, ops in batches:
            now += step
            group.batch(now, ops)
        group.batch(now, [(key, "forget", 0, 0) for key in KEYS])
        if group.living is not None:
            group.living.end_log()
        assert group.backend.header is None
        assert group.backend.pages == {}


@settings(max_examples=CASES, deadline=None)
@given(BATCHES, st.sampled_from([60, 150, 400]), LOG_SIZES, st.integers(0, 4))
def test_what_is_stored_does_not_hang_on_what_is_at_hand(
    batches: list[tuple[int, list[Op]]], page_bytes: int, log_bytes: int, restarts: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SMALL.items():
            patch.setattr(f"millrace.state.pages.{name}", value)
        one, two = (Logged(page_bytes, log_bytes, lives_on=on) for on in (True, False))
        plain = Logged(page_bytes, 0, lives_on=False)
        now = 1_000_000
        for number, (step, ops) in enumerate(batches):
            now += step
            for group in (one, two, plain):
                group.call(now, ops)
            assert cells_of(one.backend) == cells_of(two.backend) == cells_of(plain.backend)
            assert one.backend.pages == two.backend.pages
            assert one.backend.header == two.backend.header
            if restarts and number % restarts == 0:
                one.living = None


def cells_of(backend: LoggedBackend) -> dict[str, bytes]:
    """The cells of all keys, packed."""
    if backend.header is None:
        return {}
    return {k: encode(cell) for _, cells, _ in backend.stored().cells() for k, cell in cells.items()}


# -- when there is one ----------------------------------------------------------------------------------


TEXT = value_state(str, default="")
TEXT.name = "text"
TEXTS = EntryLayout([TEXT])


def write(backend: Any, texts: dict[str, str], *, layout: EntryLayout = TEXTS, **options: Any) -> PagedStore:
    """Run one batch that writes texts."""
    store = PagedStore(backend, layout, page_bytes=100, **{"log_bytes": 4_000, **options})
    for key, text in texts.items():
        store.open(key).entry.text = text
    store.commit(0)
    return store


def texts_of(backend: LoggedBackend, layout: EntryLayout = TEXTS) -> dict[str, str]:
    return {key: entry.text for key, entry in PagedStore(backend, layout, page_bytes=100).entries()}


ALL = {f"1:{n}": f"text {n}" for n in range(60)}


@pytest.fixture
def logged() -> LoggedBackend:
    """A group with two segments."""
    backend = LoggedBackend()
    write(backend, ALL)
    write(backend, {f"1:{n}": "new" for n in range(10)})
    write(backend, {f"1:{n}": "newer" for n in range(5)})
    assert len(backend.segments()) == 2
    return backend


WANTED = {**ALL, **{f"1:{n}": "new" for n in range(10)}, **{f"1:{n}": "newer" for n in range(5)}}


def test_a_sample_of_all_pages_says_what_the_whole_group_says() -> None:
    backend = LoggedBackend()
    keys = [encode_key((f"k{n}",)) for n in range(60)]
    write(backend, dict.fromkeys(keys[:-1], "text"))
    write(backend, {keys[0]: "", keys[1]: "much longer than it was", keys[-1]: "not on any page"})
    assert backend.segments()
    stored = backend.stored()
    values = {HEADER: stored.header, **stored.pages}

    def read(numbers: Sequence[int]) -> dict[int, bytes]:
        return {n: values[n] for n in numbers if n in values}

    sampled = sample_of_group(0, read, 5, random.Random(1), 1_000)
    assert sampled is not None
    found, pages = sampled
    whole = figures_of_group(0, stored, 5)
    assert pages == whole.pages
    assert found.entries == whole.entries == len(keys) - 1
    assert (found.entry_bytes, found.largest_keys) == (whole.entry_bytes, whole.largest_keys)


def test_a_batch_writes_one_segment_and_no_page(logged: LoggedBackend) -> None:
    logged.forget_counts()
    write(logged, {"1:1": "once more", "1:40": "too"})
    assert logged.written == [LOG_PAGES + 2]
    assert logged.header_writes == 0
    assert texts_of(logged) == {**WANTED, "1:1": "once more", "1:40": "too"}


def test_a_batch_without_changes_writes_nothing(logged: LoggedBackend) -> None:
    logged.forget_counts()
    write(logged, {})
    write(logged, {"1:1": "newer"})
    assert (logged.written, logged.header_writes) == ([], 0)


def test_a_long_log_ends_with_its_pages_each_written_once(logged: LoggedBackend) -> None:
    logged.forget_counts()
    write(logged, {f"1:{n}": "last" for n in range(12)}, log_bytes=10)
    assert logged.segments() == []
    assert not read_header(logged.header or b"").logged
    assert len(set(logged.written)) == len(logged.written)
    assert texts_of(logged) == {**WANTED, **{f"1:{n}": "last" for n in range(12)}}


def test_a_log_has_so_many_segments_and_no_more(logged: LoggedBackend) -> None:
    for number in range(200):
        write(logged, {"1:3": f"at {number}"}, log_bytes=1 << 20)
        assert len(logged.segments()) <= MOST_SEGMENTS
    assert texts_of(logged)["1:3"] == "at 199"


def test_what_only_goes_does_not_stay_in_the_log(logged: LoggedBackend) -> None:
    """Whoever is forgotten is not to be found in a segment that nobody comes back to."""
    write(logged, {"1:3": ""})
    assert logged.segments() == []
    assert not any(b"newer" in data for data in logged.pages.values() if b"1:3" in data)
    assert "1:3" not in texts_of(logged)


def test_a_log_that_nobody_adds_to_may_be_ended(logged: LoggedBackend) -> None:
    store = PagedStore(logged, TEXTS, page_bytes=100, log_bytes=4_000)
    store.end_log()
    assert logged.segments() == []
    assert texts_of(logged) == WANTED
    store.open("1:59").entry.text = "after it"
    store.commit(0)
    assert texts_of(logged) == {**WANTED, "1:59": "after it"}


def test_small_changes_of_many_pages_have_no_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the pages would be written for it at last, and the log besides."""
    monkeypatch.setattr("millrace.state.pages.LEAST_PAGES", change_log.LEAST_PAGES)
    monkeypatch.setattr("millrace.state.pages.MOST_TIMES", 2)
    backend = LoggedBackend()
    write(backend, ALL)
    write(backend, {"1:1": "x", "1:2": "x", "1:3": "x", "1:4": "x"})
    assert backend.segments() == []
    write(backend, {f"1:{n}": "x" for n in range(50)})
    assert len(backend.segments()) == 1


def test_another_version_ends_the_log_and_reads_it(logged: LoggedBackend) -> None:
    n = value_state(int, default=0)
    n.name = "n"
    newer = EntryLayout([TEXT, n])
    assert texts_of(logged, newer) == WANTED
    write(logged, {"1:1": "by the newer"}, layout=newer)
    assert logged.segments() == []
    assert texts_of(logged, newer) == {**WANTED, "1:1": "by the newer"}


@pytest.mark.parametrize("lost", [0, 1])
def test_a_segment_that_is_lost_before_others_stops_the_query(logged: LoggedBackend, lost: int) -> None:
    write(logged, {"1:7": "third"})
    del logged.pages[LOG_PAGES + lost]
    with pytest.raises(StateCorrupted, match="a segment of a key group's log is missing"):
        PagedStore(logged, TEXTS)
    with pytest.raises(StateCorrupted, match="a segment of a key group's log is missing"):
        list(logged.stored().cells())


def test_a_log_without_any_segment_stops_the_query(logged: LoggedBackend) -> None:
    for number in logged.segments():
        del logged.pages[number]
    with pytest.raises(StateCorrupted, match="its segments are missing"):
        PagedStore(logged, TEXTS)


def test_a_segment_that_cannot_be_read_stops_the_query(logged: LoggedBackend) -> None:
    logged.pages[LOG_PAGES + 1] = b"\xc1"
    with pytest.raises(StateCorrupted, match="segment 1 of a key group's log cannot be read"):
        PagedStore(logged, TEXTS)


def test_a_backend_without_a_log_refuses_one(logged: LoggedBackend) -> None:
    plain = CheckedBackend()
    plain.header, plain.pages = logged.header, logged.pages
    with pytest.raises(StateCorrupted, match="read in a station alone"):
        PagedStore(plain, TEXTS)


def test_an_older_millrace_refuses_the_header(logged: LoggedBackend) -> None:
    version = msgspec.msgpack.decode(logged.header or b"")[0]
    assert version not in (2, 3, -3)


def test_segments_are_read_in_their_order() -> None:
    cells = [Cell(None, None, msgspec.Raw(encode(n))) for n in range(3)]
    found = changes_of([encode({"a": cells[0], "b": cells[1]}), encode({"a": None, "c": cells[2]})])
    assert found == [{"a": cells[0], "b": cells[1]}, {"a": None, "c": cells[2]}]
    kept = {LOG_PAGES + n: bytes([n + 1]) for n in range(MOST_SEGMENTS)}
    assert segments_of(lambda numbers: [kept.get(n) for n in numbers]) == list(kept.values())


def test_a_sweep_takes_what_the_log_alone_has() -> None:
    group = Logged(60, 1 << 20, lives_on=False)
    group.batch(1_000_000, [(key, "text", 3, 0) for key in KEYS])
    group.batch(1_000_001, [(key, "n", 1, 0) for key in KEYS[:8]])
    assert group.backend.segments()
    group.batch(SWEEPS.next(1_000_002 + 10 * MINUTE) + 1)
    assert all(entry.n is None for _, entry in group.store().entries())
