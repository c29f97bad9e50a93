"""Key groups taken apart and put together: what the store reads is what was kept, in any number of groups."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace import (
    Context,
    KeyedProcess,
    Timer,
    aggregating_state,
    arrival,
    event_time,
    list_state,
    map_state,
    reducing_state,
    value_state,
    versioned_state,
)
from millrace.checkpoints.entries import EntryReader, as_json, key_name
from millrace.checkpoints.figures import added, figures_of_group
from millrace.checkpoints.groups import StoredGroup, packed_group
from millrace.host.groups import encode_key, key_group
from millrace.host.memory import MemoryHost, _Memory
from millrace.state.backend import CommitMetrics
from millrace.state.cells import SCHEMA_PAGE, Cell, StateCorrupted, encode
from millrace.state.layout import EntryLayout
from millrace.state.page_index import PageIndex
from millrace.state.pages import PagedStore
from millrace.time import hours
from millrace.time.clock import from_watermark

HOUR = hours(1)


class Shop(msgspec.Struct):
    name: str
    visits: int = 0


class Visit(msgspec.Struct):
    who: str
    n: int


class Keeper(KeyedProcess[Visit, int]):
    """Keeps state of every kind, some of it for an hour."""

    order = arrival(commutes=True)
    total = value_state(int, default=0)
    shop = value_state(Shop, ttl=HOUR)
    seen = map_state(int, str, ttl=HOUR)
    bare = map_state(str, int)
    last = list_state(int)
    brief = list_state(int, ttl=HOUR)
    most = reducing_state(int, max)
    all = aggregating_state(list[int], create=list, add=lambda kept, n: [*kept, n], result=len)
    rate = versioned_state(float, history=HOUR)
    unused = value_state(str)

    def process(self, event: Visit, ctx: Context) -> None:
        self.total.value += event.n
        self.shop.value = Shop("corner", event.n)
        self.seen.put(event.n, "x" * event.n)
        self.bare.put("n", event.n)
        self.last.append(event.n)
        self.brief.append(event.n)
        self.most.add(event.n)
        self.all.add(event.n)
        self.rate.put(event.n / 2, ctx.event_time)
        ctx.timers.after(HOUR * 2, "late")
        ctx.timers.after(HOUR, "soon")

    def on_timer(self, timer: Timer, ctx: Context) -> None: ...


def host_with(events: list[tuple[str, int, Visit]]) -> MemoryHost:
    host = MemoryHost(Keeper())
    host.run_batch(events)
    return host


def kept_of(*amounts: int) -> dict[str, Any]:
    host = host_with([("ann", 1_000 + i, Visit("ann", n)) for i, n in enumerate(amounts)])
    (cell,) = host.store.cells.values()
    return EntryReader(host.runner.layout.schema).read(cell.body).as_data()


def test_every_kind_of_state_is_read_without_its_process() -> None:
    data = kept_of(3, 5)
    assert data["states"] == {
        "total": 8,
        "shop": {"name": "corner", "visits": 5},
        "seen": {3: "xxx", 5: "xxxxx"},
        "bare": {"n": 5},
        "last": [3, 5],
        "brief": [3, 5],
        "most": 5,
        "all": [3, 5],
        "rate": [{"valid_from": 1_000, "value": 1.5}, {"valid_from": 1_001, "value": 2.5}],
    }
    assert data["expires_at"] == {
        "shop": 1_001 + HOUR,
        "seen": {3: 1_000 + HOUR, 5: 1_001 + HOUR},
        "brief": [1_000 + HOUR, 1_001 + HOUR],
    }  # fmt: skip
    assert [(t["name"], t["at"]) for t in data["timers"]] == [
        ("late", 1_001 + 2 * HOUR), ("soon", 1_001 + HOUR),
    ]  # fmt: skip
    assert msgspec.json.decode(as_json(data))["states"]["seen"] == {"3": "xxx", "5": "xxxxx"}


def test_events_that_wait_are_shown() -> None:
    class Waiting(Keeper):
        order = "event_time"

    host = MemoryHost(Waiting(), out_of_orderness_ms=100)
    host.run_batch([("ann", 1_000, Visit("ann", 1))])
    (cell,) = host.store.cells.values()
    (row,) = EntryReader(host.runner.layout.schema).read(cell.body).as_data()["waiting"]
    assert row == {"event_time": 1_000, "source_id": "memory:0:0", "event": {"who": "ann", "n": 1}}


def test_the_clock_of_a_key_and_its_timers_on_the_streams_are_shown_beside_its_states() -> None:
    class Own(Keeper):
        order = event_time(clock="key", patience=10_000)
        stream_timers = True

        def process(self, event: Visit, ctx: Context) -> None:
            ctx.timers.at(9_000, "later", clock="stream")

    host = MemoryHost(Own(), out_of_orderness_ms=100)
    host.run_batch([("ann", 1_000, Visit("ann", 1)), ("ann", 2_000, Visit("ann", 2))])
    (cell,) = host.store.cells.values()
    found = EntryReader(host.runner.layout.schema).read(cell.body).as_data()
    assert (found["clock"], found["stream_timers"]) == (1_899, [{"at": 9_000, "name": "later"}])
    assert not {"clock_", "stream_timers_"} & found["states"].keys()


def test_what_is_no_entry_is_refused() -> None:
    reader = EntryReader(EntryLayout(Keeper.states).schema)
    with pytest.raises(StateCorrupted, match="the state of a key cannot be read"):
        reader.read(b"\xc1")
    with pytest.raises(StateCorrupted, match="schema of the kept state cannot be read"):
        EntryReader(b"{")


def groups_of(host: MemoryHost, groups: int, page_bytes: int = 400) -> dict[int, StoredGroup]:
    """Return the entries of a host as they would stand in so many key groups."""
    parts: dict[int, dict[str, Cell]] = {}
    for key, cell in host.store.cells.items():
        parts.setdefault(key_group(key, groups), {})[key] = cell
    schema = host.runner.layout.schema
    return {number: packed_group(cells, schema, page_bytes=page_bytes) for number, cells in parts.items()}


def store_of(group: StoredGroup, label: int = 0) -> PagedStore:
    return PagedStore(_Memory(group.header, group.pages), EntryLayout(Keeper.states), label=label)


names = st.text(min_size=1, max_size=8)


@given(
    st.lists(st.tuples(names, st.integers(0, 20)), min_size=1, max_size=60),
    st.sampled_from([1, 3, 16]),
    st.integers(60, 600),
)
def test_any_entries_in_any_number_of_groups_are_read_by_the_store_as_they_were(
    visits: list[tuple[str, int]], groups: int, page_bytes: int
) -> None:
    host = host_with([(who, 1_000 + i, Visit(who, n)) for i, (who, n) in enumerate(visits)])
    found: dict[str, bytes] = {}
    layout = host.runner.layout
    for number, group in groups_of(host, groups, page_bytes).items():
        for key, entry in store_of(group).entries():
            assert key_group(key, groups) == number
            assert key not in found
            found[key] = layout.encode(entry)
    assert found == {key: bytes(cell.body) for key, cell in host.store.cells.items()}


@given(st.lists(names, min_size=1, max_size=80, unique=True), st.integers(60, 600))
def test_every_key_is_in_the_page_where_the_store_looks_for_it(keys: list[str], page_bytes: int) -> None:
    host = host_with([(who, 1_000, Visit(who, 1)) for who in keys])
    (group,) = groups_of(host, 1, page_bytes).values()
    store = store_of(group)
    for who in keys:
        text = encode_key((who,))
        assert store.open(text).entry.total == 1
        info = PageIndex(group.read_header, lambda _: [], CommitMetrics()).of_key(text)
        assert any(text in cells for at, cells, _ in group.cells() if at.number == info.number)


def test_a_group_that_was_put_together_goes_on_splitting_and_folding() -> None:
    host = host_with([(f"k{i}", 1_000, Visit("", i)) for i in range(40)])
    (group,) = groups_of(host, 1, 400).values()
    memory = _Memory(group.header, dict(group.pages))
    layout = EntryLayout(Keeper.states)
    store = PagedStore(memory, layout, page_bytes=400)
    for key in host.store.cells:
        entry, nothing = store.open(key).entry, layout.new()
        for name in layout.type.__struct_fields__:
            setattr(entry, name, getattr(nothing, name))
    store.commit(0)
    assert memory.header is None
    assert memory.pages == {}


def test_a_page_says_when_its_first_timer_and_its_first_expiry_are_due() -> None:
    cells = {
        "1:a": Cell(500, None, msgspec.Raw(b"\x90")),
        "1:b": Cell(None, 300, msgspec.Raw(b"\x90"), 80, 70),
        "1:c": Cell(None, None, msgspec.Raw(b"\x90")),
    }
    (page,) = packed_group(cells, b"[]").read_header.pages
    assert (page.timer, page.expiry, page.processing_timer, page.processing_expiry) == (500, 300, 80, 70)
    (page,) = packed_group({"1:c": cells["1:c"]}, b"[]").read_header.pages
    assert (page.timer, page.expiry, page.processing_timer, page.processing_expiry) == (None,) * 4


def test_a_group_keeps_its_broadcast_state_its_tick_and_its_clock_without_any_key() -> None:
    clock = encode(from_watermark(900, 99))
    group = packed_group({}, b"[]", broadcast=b"rules", processing_time=77, clock=clock)
    header = group.read_header
    assert (header.processing_time, group.broadcast, group.clock) == (77, b"rules", clock)
    assert header.broadcast & 1
    assert list(group.pages) == [SCHEMA_PAGE]


def test_damaged_groups_are_refused() -> None:
    host = host_with([(f"k{i}", 1_000, Visit("", i)) for i in range(40)])
    (group,) = groups_of(host, 1, 400).values()
    without_page = StoredGroup(group.header, {0: group.pages[0]})
    with pytest.raises(StateCorrupted, match=r"page \d+ of a key group is not there"):
        list(without_page.cells())
    with pytest.raises(StateCorrupted, match="no schemas"):
        StoredGroup(group.header, {}).schemas()
    with pytest.raises(StateCorrupted, match="header cannot be read"):
        list(StoredGroup(b"\xc1").cells())


def test_figures_add_up_over_groups_and_name_the_largest() -> None:
    host = host_with([(f"k{i}", 1_000 + i, Visit("", i)) for i in range(60)])
    parts = [figures_of_group(n, g, 3) for n, g in groups_of(host, 8, 400).items()]
    total = added(parts, 3)
    sizes = {key_name(key): len(bytes(cell.body)) for key, cell in host.store.cells.items()}
    assert total.entries == 60
    assert total.entry_bytes == sum(sizes.values())
    assert total.timers == 120
    assert total.next_timer_ms == 1_000 + HOUR
    assert total.states["shop"] == 60
    assert "unused" not in total.states
    assert total.largest_keys == sorted(((n, k) for k, n in sizes.items()), reverse=True)[:3]
    assert total.pages == sum(len(list(g.cells())) for g in groups_of(host, 8, 400).values())
    assert len(total.largest_pages) == 3
