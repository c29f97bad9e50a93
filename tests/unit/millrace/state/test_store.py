"""What a group's store finds, writes, measures and warns of; the clock that comes by ticks."""

from __future__ import annotations

import copy
import logging
import zlib
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millrace.state import list_state, map_state, page_index, value_state
from millrace.state import pages as pages_module
from millrace.state.cells import Cell, Header, PageInfo
from millrace.state.layout import ENGINE_SLOTS, PendingRow, TimerRecord
from millrace.state.pages import PagedStore
from millrace.state.specs import StateTypeError
from millrace.time import NEVER
from tests.cases import case_count
from tests.unit.millrace.state.cases import HOUR, MINUTE, Bed, DictBackend, layout_of


def keys(count: int) -> list[str]:
    return [f"11:card-{i:06}" for i in range(count)]


# -- size --------------------------------------------------------------------------------------------


def test_an_entry_costs_little_more_than_its_values() -> None:
    """W1: key "card-123456", a count and two floats; at most 1.5 times a plain map of them."""
    bed = Bed(count=value_state(int, default=0), mean=value_state(float, default=0.0),
              m2=value_state(float, default=0.0))  # fmt: skip
    plain = {}
    for key in keys(3_000):
        with bed.on(key) as s:
            s.count.value, s.mean.value, s.m2.value = 10, 50.123, 800.5
            plain[key[3:]] = [10, 50.123, 800.5]
    bed.commit(0)
    stored = len(bed.backend.header or b"") + sum(map(len, bed.backend.pages.values()))
    assert stored <= 1.5 * len(msgspec.msgpack.encode(plain))


def test_an_empty_engine_slot_costs_one_byte() -> None:
    layout = layout_of(n=value_state(int, default=0))
    assert len(layout.encode(layout.new())) == 1 + len(ENGINE_SLOTS) + 1


@settings(max_examples=case_count(60), deadline=None)
@given(st.integers(0, 200), st.lists(st.integers(0, 199), max_size=3), st.booleans())
def test_of_many_entries_the_one_that_cannot_be_read_back_is_named(
    count: int, wrong: list[int], with_life: bool
) -> None:
    """Looked at together they are refused where one by one they are, and the same key is named."""
    bed = Bed(x=value_state(int, default=0, ttl=MINUTE if with_life else None))
    for number in range(count):
        with bed.on(f"1:{number}", now=1) as s:
            s.x.value = "no number" if number in wrong else number
    named = [f"1:{number}" for number in range(count)]
    entries = [bed.store.open(key) for key in named]
    bad = sorted(number for number in set(wrong) if number < count)
    if bad:
        with pytest.raises(StateTypeError, match=f"for key '1:{bad[0]}': .*x"):
            bed.store.pack_entries(named, entries)
        return
    bed.store.pack_entries(named, entries)
    together = [opened.packed for opened in entries]
    for key, opened in zip(named, entries, strict=True):
        assert opened.touched
        bed.store.pack_entry(key, opened)
    assert together == [opened.packed for opened in entries]


def test_the_header_stays_small_with_many_pages() -> None:
    """A page takes some ten bytes in the header, and twice nine more with timers and expiries."""
    for ttl, limit in ((None, 12), (HOUR, 30)):
        bed = Bed(page_bytes=400, x=value_state(str, ttl=ttl))
        for i, key in enumerate(keys(4_000)):
            with bed.on(key, now=1_700_000_000_000) as s:
                s.x.value = "x" * 60
                if ttl is not None:
                    bed.cursor.entry.timers_.append(TimerRecord(1_700_000_000_000 + i, "t"))
        bed.commit(0)
        header = bed.backend.header
        assert header is not None
        pages = len(bed.backend.pages) - 1
        assert pages > 500
        assert len(header) / pages < limit


# -- finding -----------------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(st.sets(st.integers(0, 10**6), min_size=1, max_size=300), st.sampled_from([100, 300]))
def test_every_key_is_found_in_the_page_of_its_hash(numbers: set[int], page_bytes: int) -> None:
    bed = Bed(page_bytes=page_bytes, x=value_state(int, default=0))
    for n in numbers:
        with bed.on(str(n)) as s:
            s.x.value = n + 1
    bed.commit()
    header = msgspec.msgpack.decode(bed.backend.header or b"", type=Header)
    for info in header.pages if header.inline is None else []:
        for key in msgspec.msgpack.decode(bed.backend.pages[info.number], type=dict[str, Cell]):
            assert zlib.crc32(key.encode()) >> (32 - info.depth) == info.prefix
    for n in numbers:
        with bed.on(str(n)) as s:
            assert s.x.value == n + 1


def test_one_key_of_many_pages_is_one_page_read_and_one_written() -> None:
    bed = Bed(page_bytes=400, x=value_state(int, default=0))
    for key in keys(2_000):
        with bed.on(key) as s:
            s.x.value = 1
    bed.commit()
    with bed.on(keys(2_000)[77]) as s:
        s.x.value = 2
    bed.commit()
    metrics = bed.metrics
    assert (metrics.pages_read, metrics.pages_written) == (1, 1)


# -- metrics and limits ------------------------------------------------------------------------------


def test_metrics_say_what_a_batch_wrote() -> None:
    bed = Bed(x=value_state(str, default=""))
    with bed.on("1:small") as s:
        s.x.value = "x"
    with bed.on("1:large") as s:
        s.x.value = "x" * 1_000
    bed.commit()
    metrics = bed.metrics
    stored = len(bed.backend.header or b"") + sum(map(len, bed.backend.pages.values()))
    assert (metrics.pages_read, metrics.pages_written, metrics.bytes_written) == (0, 0, stored)
    assert metrics.largest_entry_key == "1:large"
    assert 1_000 < metrics.largest_entry_bytes < 1_020
    assert metrics.largest_entry_bytes < metrics.largest_page_bytes < stored
    with bed.on("1:small") as s:
        assert s.x.value == "x"
    bed.commit()
    assert bed.metrics.bytes_written == 0


def test_a_large_entry_is_warned_of_once(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    monkeypatch.setattr(pages_module, "WARN_ENTRY_BYTES", 1_000)
    bed = Bed(items=list_state(str))
    with caplog.at_level(logging.WARNING, "millrace.state"):
        for n in range(4):
            with bed.on("1:hot") as s:
                s.items.append("x" * 600)
            bed.commit()
            assert len(caplog.records) == min(n, 1)
    message = caplog.records[0].getMessage()
    assert message.startswith("Bed keeps 1,2")
    assert "bytes for key '1:hot'" in message
    assert "spread the key" in message


# -- processing time ---------------------------------------------------------------------------------


def test_timers_on_processing_time_are_due_by_ticks_and_read_only_their_pages() -> None:
    bed = Bed(page_bytes=400, x=value_state(int, default=0))
    for i, key in enumerate(keys(500)):
        with bed.on(key) as s:
            s.x.value = 1
            if i in (7, 450):
                bed.cursor.entry.processing_timers_.append(TimerRecord(1_000 + i, "t"))
    bed.commit(0)
    assert bed.store.due(NEVER - 1) == []
    assert bed.store.due_processing(1_006) == []
    assert bed.store.metrics.pages_read == 0
    assert bed.store.due_processing(1_007) == [keys(500)[7]]
    assert bed.store.metrics.pages_read == 1
    assert set(bed.store.due_processing(1_450)) == {keys(500)[7], keys(500)[450]}


def test_a_row_that_waits_is_due_as_a_timer_is() -> None:
    bed = Bed(x=value_state(int, default=0))
    with bed.on("1:a"):
        bed.cursor.entry.pending_.append(PendingRow(70, "t:0:1", b"{}"))
        bed.cursor.entry.timers_.append(TimerRecord(90, "t"))
    with bed.on("1:b"):
        bed.cursor.entry.pending_.append(PendingRow(80, None, b"{}", "[]", False))
    bed.commit(0)
    (page,) = msgspec.msgpack.decode(bed.backend.header or b"", type=Header).pages
    assert page.timer == 70
    assert bed.store.due(69) == []
    assert bed.store.due(70) == ["1:a"]
    assert sorted(bed.store.due(80)) == ["1:a", "1:b"]
    kept = bed.kept()
    assert kept["1:b"].pending_ == [PendingRow(80, None, b"{}", "[]", False)]


OPS = st.lists(
    st.tuples(
        st.sampled_from("abcdef"),
        st.sampled_from(["set", "timer", "delete", "forget", "ttl", "tick"]),
        st.integers(0, 5 * MINUTE),
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(OPS, st.sampled_from([80, 32_768]))
def test_the_header_knows_the_earliest_times_of_every_page(
    ops: list[tuple[str, str, int]], page_bytes: int
) -> None:
    """Timers on both clocks and expiries come, move and go; ticks sweep."""
    bed = Bed(
        page_bytes=page_bytes,
        text=value_state(str, default=""),
        seen=map_state(int, int, ttl=2 * MINUTE, ttl_time="processing_time"),
    )
    bed.processing_time = now = 10 * HOUR
    for key, what, number in ops:
        if what == "tick":
            now += number
            bed.tick(now)
        else:
            with bed.on(key) as s:
                entry = bed.cursor.entry
                if what == "set":
                    s.text.value = "x" * (number % 50)
                elif what == "timer":
                    entry.timers_.append(TimerRecord(number, str(number)))
                    entry.processing_timers_.append(TimerRecord(number * 2, str(number)))
                elif what == "delete":
                    entry.timers_[:], entry.processing_timers_[:] = entry.timers_[1:], []
                elif what == "ttl":
                    s.seen.put(number, 1, ttl=number + 1)
                else:
                    s.text.clear(), s.seen.clear(), entry.timers_.clear(), entry.processing_timers_.clear()
            bed.commit()
        check_times(bed)
    bed.tick(now + HOUR)
    assert all(not e.seen for e in bed.kept().values())


def check_times(bed: Bed) -> None:
    if bed.backend.header is None:
        return
    header = msgspec.msgpack.decode(bed.backend.header, type=Header)
    for info in header.pages:
        cells = header.inline
        if cells is None:
            cells = msgspec.msgpack.decode(bed.backend.pages[info.number], type=dict[str, Cell])
        for name in ("timer", "expiry", "processing_timer", "processing_expiry"):
            times = [t for c in cells.values() if (t := getattr(c, name)) is not None]
            assert getattr(info, name) == min(times, default=None), name
        line = bed.store._processing_sweeps.line(bed.processing_time)
        for cell in cells.values():
            entry = bed.layout.decode(cell.body)
            assert cell.timer == min((t.at for t in entry.timers_), default=None)
            assert cell.processing_timer == min((t.at for t in entry.processing_timers_), default=None)
            expiries = [e for e, _ in entry.seen.values()]
            assert all(e > line for e in expiries)
            if expiries:
                assert cell.processing_expiry is not None
                assert cell.processing_expiry <= min(expiries)


LIFE = st.lists(
    st.tuples(
        st.sampled_from("abcdefghijkl"),
        st.sampled_from(["set", "set", "forget", "forget all", "ttl", "timer", "broadcast", "end batch"]),
        st.integers(0, 3 * MINUTE),
    ),
    max_size=50,
)


@settings(max_examples=600, deadline=None)
@given(LIFE, st.sampled_from([80, 200, 32_768]), st.booleans())
@example(
    [
        ("d", "set", 65532),
        ("h", "set", 21),
        ("a", "end batch", 0),
        ("a", "forget all", 0),
        ("d", "set", 1),
        ("a", "end batch", 0),
    ],
    80,
    False,
)
@example(
    [("a", "broadcast", 1), ("a", "end batch", 0), ("a", "broadcast", 0), ("a", "end batch", 0)], 80, False
)
@example([("a", "timer", 5), ("a", "end batch", 0), ("b", "set", 1), ("a", "end batch", 5)], 80, False)
@example(
    [
        ("a", "set", 1),
        ("a", "end batch", 0),
        *((key, "timer", MINUTE) for key in "abcdefgh"),
        ("a", "end batch", 1),
        ("a", "end batch", MINUTE),
    ],
    80,
    False,
)
@example(
    [
        ("a", "set", 49),
        ("a", "timer", MINUTE),
        ("b", "set", 49),
        ("a", "end batch", 1),
        ("b", "forget", 0),
        ("a", "end batch", 1),
        ("a", "set", 10),
        ("a", "end batch", 1),
        ("a", "end batch", MINUTE),
    ],
    80,
    False,
)
@example(
    [
        *((key, "set", 49) for key in "abcdefghijkl"),
        ("a", "end batch", 0),
        *((key, "timer", MINUTE) for key in "af"),
        ("a", "end batch", 1),
    ],
    80,
    True,
)
def test_a_store_that_lives_on_writes_what_one_that_restarts_does(
    ops: list[tuple[str, str, int]], page_bytes: int, listed: bool
) -> None:
    """Also through emptiness, splits and folds, byte for byte; so does one that lets go of entries.

    The lists of pages stand in the header, or in pages of their own.
    """
    with pytest.MonkeyPatch.context() as patch:
        if listed:
            short_lists(patch)
        live_on_and_restart(ops, page_bytes)


@settings(max_examples=600, deadline=None)
@given(LIFE, LIFE, st.sampled_from([80, 200]), st.booleans())
@example(
    [(key, "set", 49) for key in "abcdefghijkl"],
    [
        ("a", "set", 1),
        ("a", "end batch", 0),
        *((key, "set", 2) for key in "bcdefghijkl"),
        ("a", "end batch", 0),
        ("a", "set", 49),
        ("a", "end batch", 0),
    ],
    80,
    True,
)
def test_a_store_that_lives_on_brings_over_what_one_that_restarts_does(
    before: list[tuple[str, str, int]], ops: list[tuple[str, str, int]], page_bytes: int, listed: bool
) -> None:
    """From the states of an earlier version of its process, some pages with each batch."""
    older = Bed(page_bytes=page_bytes, n=value_state(int, default=0), text=value_state(str, default=""))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("millrace.state.pages._RENEWED_PER_BATCH", 2)
        if listed:
            short_lists(patch)
        for key, _, number in before:
            with older.on(key) as s:
                s.text.value, s.n.value = "y" * (number % 50), number
        older.commit(0)
        live_on_and_restart(ops, page_bytes, older.backend)


def short_lists(patch: pytest.MonkeyPatch) -> None:
    """Have lists of pages in index pages from the fourth page on, three in each."""
    patch.setattr(page_index, "FLAT_PAGES", 3)
    patch.setattr(page_index, "_FIRST_BITS", 1)
    patch.setattr(page_index, "_LISTED", 3)


def live_on_and_restart(
    ops: list[tuple[str, str, int]], page_bytes: int, begun: DictBackend | None = None
) -> None:

    def bed(*, lives_on: bool, lets_go: bool = False) -> Bed:
        states = {"text": value_state(str, default=""), "seen": map_state(int, int, ttl=2 * MINUTE)}
        backend = copy.deepcopy(begun)
        return Bed(backend=backend, page_bytes=page_bytes, lives_on=lives_on, lets_go=lets_go, **states)

    beds = bed(lives_on=False), bed(lives_on=True), bed(lives_on=False, lets_go=True)
    now = 0
    for key, what, number in ops:
        now += number if what == "end batch" else 0
        for of in beds:
            for one in "abcdefghijkl" if what == "forget all" else key:
                with of.on(one, now=now) as s:
                    timers = of.cursor.entry.timers_
                    if what == "set":
                        s.text.value = "x" * (number % 50)
                    elif what == "ttl":
                        s.seen.put(number % 3, number)
                    elif what == "timer":
                        timers.append(TimerRecord(now + number, str(number)))
                    elif what.startswith("forget"):
                        s.text.clear(), s.seen.clear(), timers.clear()
            if what == "broadcast":
                of.store.broadcast = number % 2
        if what == "end batch":
            due = [sorted(of.store.due(now)) for of in beds]
            kept = beds[0].kept().items()
            assert due == [sorted(k for k, e in kept if any(t.at <= now for t in e.timers_))] * 3
            for of in beds:
                for one in due[0]:
                    with of.on(one, now=now):
                        timers = of.cursor.entry.timers_
                        timers[:] = [timer for timer in timers if timer.at > now]
                of.commit(now)
            # Who knows the pages from before may think that there is something to do earlier, never later.
            for exact, thought in zip(beds[0]._store().wakes(), beds[1].store.wakes(), strict=True):
                assert exact is None or (thought is not None and thought <= exact)
            restarted, live, forgetful = (of.backend for of in beds)
            assert (restarted.header, restarted.pages) == (live.header, live.pages)
            assert (restarted.header, restarted.pages) == (forgetful.header, forgetful.pages)


@settings(max_examples=500, deadline=None)
@given(OPS, st.sampled_from([80, 200]), st.booleans())
@example([("a", "set", 132), ("d", "set", 21), ("a", "set", 0), ("a", "set", 0)], 80, False)
def test_a_store_that_lives_on_is_swept_by_ticks_as_one_that_restarts(
    ops: list[tuple[str, str, int]], page_bytes: int, listed: bool
) -> None:
    """Timers and lives on processing time, byte for byte; wakes are those of a look at all pages."""
    with pytest.MonkeyPatch.context() as patch:
        if listed:
            short_lists(patch)
        live_on_by_ticks(ops, page_bytes)


def live_on_by_ticks(ops: list[tuple[str, str, int]], page_bytes: int) -> None:

    def bed(*, lives_on: bool) -> Bed:
        seen = map_state(int, int, ttl=2 * MINUTE, ttl_time="processing_time")
        return Bed(page_bytes=page_bytes, lives_on=lives_on, text=value_state(str, default=""), seen=seen)

    beds = bed(lives_on=False), bed(lives_on=True)
    now = 10 * HOUR
    for of in beds:
        of.processing_time = now
    for key, what, number in ops:
        now += number if what == "tick" else 0
        for of in beds:
            due = of.store.due_processing(now)
            for one in {*due, key} if what != "tick" else due:
                with of.on(one) as s:
                    timers = of.cursor.entry.processing_timers_
                    timers[:] = [timer for timer in timers if timer.at > now]
                    if one != key or what == "tick":
                        continue
                    if what == "set":
                        s.text.value = "x" * (number % 50)
                    elif what == "timer":
                        timers.append(TimerRecord(now + number, str(number)))
                    elif what == "ttl":
                        s.seen.put(number, 1, ttl=number + 1)
                    else:
                        s.text.clear(), s.seen.clear(), timers.clear()
            of.commit(processing_time=now)
        restarted, live = (of.backend for of in beds)
        assert (restarted.header, restarted.pages) == (live.header, live.pages)
        assert beds[0]._store().wakes() == beds[1].store.wakes()


def test_an_entry_that_was_let_go_of_is_freed_and_is_as_it_was_when_it_is_opened_again() -> None:
    bed = Bed(lets_go=True, x=value_state(int, default=0), y=value_state(str, ttl=HOUR))
    with bed.on(now=5) as s:
        s.x.value, s.y.value = 7, "kept"
        bed.cursor.entry.timers_.append(TimerRecord(9, "t"))
    opened = bed.store._open["1:k"]
    assert opened.entry is None
    bed.lets_go = False
    with bed.on(now=6) as s:
        assert (s.x.value, s.y.value) == (7, "kept")
        assert [timer.at for timer in bed.cursor.entry.timers_] == [9]
        s.x.value = 8
    bed.commit(0)
    assert bed.store.due(8) == []
    assert bed.store.due(9) == ["1:k"]
    with bed.on(now=7) as s:
        assert s.x.value == 8


def test_keys_that_were_fetched_together_are_found_anew_after_their_page_was_split() -> None:
    bed = Bed(page_bytes=200, lives_on=True, x=value_state(str, default=""))
    for round_ in range(4):
        if round_ < 3:
            bed.store.fetch(keys(40))
        for key in keys(40):
            with bed.on(key) as s:
                s.x.value += f"{round_}" * (5, 20, 80, 5)[round_]
        bed.commit()
    assert len(bed.backend.pages) > 3
    fresh = Bed(backend=bed.backend, page_bytes=200, x=value_state(str, default=""))
    for key in keys(40):
        with fresh.on(key) as s:
            assert s.x.value == "0" * 5 + "1" * 20 + "2" * 80 + "3" * 5


def test_a_header_is_written_only_in_the_batch_that_changes_what_it_keeps_beside_the_pages() -> None:
    bed = Bed(lives_on=True, x=value_state(int, default=0))
    with bed.on() as s:
        s.x.value = 1
    bed.commit(0)
    written = []
    for digest in (5, 5, 6, 5, 5):
        bed.store.broadcast = digest
        before = bed.store.metrics.bytes_written
        bed.commit(0)
        written.append(bed.store.metrics.bytes_written > before)
        assert bed._store().broadcast == digest
    assert written == [True, False, True, True, False]


def test_a_group_that_was_emptied_and_filled_again_can_be_read() -> None:
    bed = Bed(lives_on=True, x=value_state(int, default=0))
    for value in (1, 0, 2):
        with bed.on() as s:
            s.x.value = value
        bed.commit()
        assert bed.backend.is_empty() == (value == 0)
    assert list(bed.backend.pages) == [0]
    assert [e.x for e in bed.kept().values()] == [2]


# -- the shape of the tree ---------------------------------------------------------------------------


def test_a_header_whose_pages_have_no_schema_stops() -> None:
    backend = DictBackend()
    layout = layout_of(x=value_state(int, default=0))
    for schema in (-1, 1, 2**40):
        header = Header(3, [PageInfo(0, 0, schema=schema)], {}, 0, [layout.schema_digest])
        backend.header = msgspec.msgpack.encode(header)
        with pytest.raises(pages_module.StateCorrupted, match="names no schema"):
            PagedStore(backend, layout)
