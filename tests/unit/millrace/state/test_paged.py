"""Maps and lists in parts: what they hold is what a dict and a list hold, whatever happens in between."""

from __future__ import annotations

import ast
import random
import zlib
from collections.abc import Sequence
from enum import Enum
from typing import Any, ClassVar

import msgspec
import pytest

from millrace import Context, KeyedProcess, arrival, list_state, map_state, side_output
from millrace.host.memory import LiveStore, MemoryHost
from millrace.host.rows import Row
from millrace.host.runner import Runner
from millrace.process import kept_states
from millrace.state.backend import CommitMetrics
from millrace.state.evolution import state_differences
from millrace.state.handles import hash_of
from millrace.state.layout import EntryLayout
from millrace.state.paged import PART_ITEMS, owner_of, part_text
from millrace.state.pages import PagedStore
from millrace.state.schema import describe_state
from millrace.testing import TestDriver
from tests.cases import case_count

CASES = case_count(60)


class Do(msgspec.Struct):
    """What is to be done."""

    what: str
    key: str = ""
    value: int = 0
    ttl: int = 0


class Told(msgspec.Struct):
    """What a process saw."""

    text: str


class Both(KeyedProcess[Do, str]):
    """Does as it is told with a map and a list."""

    order = arrival(in_order_per_key=True)
    paged: ClassVar[bool] = True
    seen = side_output(Told)
    items = map_state(str, int, ttl="per_write", paged=True)
    plain = map_state(str, int, paged=True)
    row = list_state(int, ttl="per_write", paged=True)
    read = map_state(str, int, ttl=3_600_000, refresh="read_write", paged=True)
    heard = list_state(int, ttl=3_600_000, refresh="read_write", paged=True)

    def process(self, event: Do, ctx: Context) -> None:
        items, plain, row = self.items, self.plain, self.row
        more: dict[str, Any] = {"ttl": event.ttl} if event.ttl else {}
        if event.what == "put":
            items.put(event.key, event.value, **more)
            plain.put(event.key, event.value)
            self.read.put(event.key, event.value)
            self.heard.append(event.value)
        elif event.what == "many":
            for n in range(event.value):
                items.put(f"{event.key}{n}", n, **more)
                plain.put(f"{event.key}{n}", n)
                row.append(n, **more)
                self.read.put(f"{event.key}{n}", n)
        elif event.what == "each":
            for key, value in items.items():
                items.put(f"{key}+"[:6], value, **more)
                items.get(event.key)
            for key in plain:
                if event.value or plain.get(key, 0):
                    plain.remove(key)
            for value in row:
                row.append(value, **more)
            ctx.emit(f"{bool(items)} {bool(plain)} {bool(row)}")
        elif event.what == "read":
            ctx.emit(f"{self.read.get(event.key)} {sorted(self.read.items())[:3] if event.value else 0}")
            ctx.emit(f"{list(self.heard) if event.value % 2 else 0}")
        elif event.what == "remove":
            items.remove(event.key)
            plain.remove(event.key)
        elif event.what == "few":
            for key in sorted(plain)[event.value :]:
                plain.remove(key)
                items.remove(key)
        elif event.what == "clear":
            items.clear()
            plain.clear()
            row.clear()
            self.read.clear()
            self.heard.clear()
        elif event.what == "append":
            row.append(event.value, **more)
        elif event.what == "replace":
            row.replace(range(event.value), **more)
        elif event.what == "fail":
            items.put("failed", 1)
            plain.clear()
            row.append(-1)
            raise ValueError("as told")
        elif event.what == "wrong":
            plain.put(event.key, "no number")  # type: ignore[arg-type]
        found = items.get(event.key), event.key in items, plain.get(event.key, -1), event.key in plain
        ctx.emit(f"{event.what} {event.key} {found} {len(items)} {len(plain)} {len(row)}")
        if event.what == "look":
            ctx.emit(f"{sorted(items.items())} {sorted(plain.items())} {list(row)}")


class BothPlain(Both):
    """The same with states that are not paged: what they hold is the truth."""

    name = "Both"
    items = map_state(str, int, ttl="per_write")
    plain = map_state(str, int)
    row = list_state(int, ttl="per_write")
    read = map_state(str, int, ttl=3_600_000, refresh="read_write")
    heard = list_state(int, ttl=3_600_000, refresh="read_write")


def random_events(rng: random.Random) -> list[tuple[str, int, Do]]:
    at, events = 0, []
    kinds = (
        ["put"] * 8
        + ["remove"] * 4
        + ["append"] * 5
        + ["read"] * 4
        + ["many", "few", "replace", "clear", "look", "each"]
        + ["fail", "wrong"]
    )
    for _ in range(rng.randint(5, 60)):
        at += rng.choice([0, 1, 1_000, 50_000, 400_000, 1_500_000])
        what = rng.choice(kinds)
        value = rng.choice([0, 3, 70, 200]) if what in ("many", "few", "replace") else rng.randrange(9)
        ttl = rng.choice([0, 0, 1_000, 100_000, 10_000_000])
        late = rng.choice([0, 0, 0, 3_000])
        events.append((rng.choice(["k", "other"]), at - late, Do(what, f"i{rng.randrange(40)}", value, ttl)))
    return events


def said(
    process: KeyedProcess[Any, Any], events: list[Any], rng: random.Random
) -> tuple[list[Any], MemoryHost]:
    host = MemoryHost(process, out_of_orderness_ms=10_000)
    found = []
    left = list(events)
    while left:
        cut = rng.randint(1, 8)
        batch, left = left[:cut], left[cut:]
        found += host.run_batch(batch)
        if rng.random() < 0.3:
            before = host.store.pack()
            host.store = LiveStore(host.runner.layout, before)
    return [(e.output, e.key, e.event_time, strip(e.payload)) for e in found], host


def strip(payload: bytes) -> Any:
    told = msgspec.json.decode(payload)
    return {k: v for k, v in told.items() if k != "error_digest"} if isinstance(told, dict) else told


@pytest.mark.parametrize("start", range(0, CASES, max(1, CASES // 6)))
def test_random_operations_give_what_plain_states_give(start: int) -> None:
    for seed in range(start, min(CASES, start + max(1, CASES // 6))):
        events = random_events(random.Random(seed))
        paged, host = said(Both(), events, random.Random(seed))
        plain, _ = said(BothPlain(), events, random.Random(seed))
        assert paged == plain, seed
        host.run_batch([("k", 10**9, Do("clear")), ("other", 10**9, Do("clear"))])
        host.drain()
        assert not host.store.cells, seed


def test_a_part_says_whose_it_is() -> None:
    for owner in ("6:card-7", "1:a2:bc", "2:\x1f1", "0:", "4:1:\x1fa"):
        assert owner_of(owner) == (owner, None)
        assert owner_of(part_text(owner, "seen", 12)) == (owner, ("seen", 12))


def test_a_map_of_before_becomes_paged_and_does_not_go_back() -> None:
    old = TestDriver(BothPlain())
    old.send_batch([("k", 1, Do("many", "x", 300))])
    new = MemoryHost(Both())
    new.restore(old.host.snapshot())
    emitted = new.run_batch([("k", 2, Do("put", "x7", 70)), ("k", 3, Do("look"))])
    expected = old.host.run_batch([("k", 2, Do("put", "x7", 70)), ("k", 3, Do("look"))])
    assert [e.payload for e in emitted] == [e.payload for e in expected]
    (owner, *_), parts = [t for t in new.store.cells if owner_of(t)[1] is None], new.store.cells
    assert len(parts) > 10
    assert len(bytes(parts[owner].body)) < 200

    def described(process: KeyedProcess[Any, Any]) -> dict[str, Any]:
        return {s.name: describe_state(s) for s in kept_states(process)}

    assert state_differences(described(BothPlain()), described(Both())) == []
    (plain, *_) = state_differences(described(Both()), described(BothPlain()))
    assert plain.startswith("states.items was paged")


class Bytes:
    """A key group in memory that counts what is read."""

    def __init__(self) -> None:
        self.header: bytes | None = None
        self.pages: dict[int, bytes] = {}
        self.read = self.requests = 0

    def get_header(self) -> bytes | None:
        return self.header

    def put_header(self, header: bytes) -> None:
        self.header = header

    def get_page(self, page: int) -> bytes:
        return self.get_pages([page])[0]

    def get_pages(self, pages: Any) -> list[bytes]:
        found = [self.pages[page] for page in pages]
        self.requests += 1
        self.read += sum(map(len, found))
        return found

    def put_page(self, page: int, data: bytes) -> None:
        self.pages[page] = data

    def delete_page(self, page: int) -> None:
        self.pages.pop(page, None)

    def clear(self) -> None:
        self.header = None


def one_batch(backend: Bytes, *events: Do) -> tuple[CommitMetrics, list[str]]:
    """Run a batch over a store that is opened for it, as on Spark."""
    runner = Runner(Both(), encode=msgspec.json.encode, decode=msgspec.json.Decoder(Do).decode)
    store = PagedStore(backend, runner.layout)
    rows = [Row(n, msgspec.json.encode(e), f"m:0:{n}", e) for n, e in enumerate(events)]
    runner.run_batch(store, {"1:k": rows}, -(2**62))
    store.commit(-(2**62))
    return store.metrics, [msgspec.json.decode(e.payload) for e in runner.emissions]


def test_one_entry_of_many_costs_what_its_part_holds() -> None:
    backend = Bytes()
    one_batch(backend, Do("many", "x", 20_000))
    stored = sum(map(len, backend.pages.values()))
    assert stored > 500_000
    backend.read = 0
    runner = Runner(Both(), encode=msgspec.json.encode)
    layout = EntryLayout(kept_states(Both()))
    assert layout.schema == runner.layout.schema

    class Only(Both):
        name = "Both"

        def process(self, event: Do, ctx: Context) -> None:
            self.plain.put(event.key, event.value)
            ctx.emit(f"{self.plain.get(event.key)}")

    only = Runner(Only(), encode=msgspec.json.encode, decode=msgspec.json.Decoder(Do).decode)
    store = PagedStore(backend, only.layout)
    only.run_batch(store, {"1:k": [Row(1, b"{}", None, Do("put", "x77", 5))]}, -(2**62))
    store.commit(-(2**62))
    assert backend.read < 60_000
    assert store.metrics.pages_written <= 4
    assert [e.payload for e in only.emissions] == [b'"5"']


def test_what_cannot_be_kept_takes_its_event_aside_and_nothing_else() -> None:
    driver = TestDriver(Both())
    driver.send_batch(
        [("k", 1, Do("many", "x", 100)), ("k", 2, Do("wrong", "x5")), ("k", 3, Do("put", "y", 1))]
    )
    assert driver.state("k")["plain"] == {**{f"x{n}": n for n in range(100)}, "y": 1}  # type: ignore[index]
    assert [letter["reason"] for letter in driver.values("dead_letters")] == ["process_error"]


def test_parts_grow_with_what_they_hold_and_shrink_again() -> None:
    host = MemoryHost(Both())

    def parts(state: str) -> int:
        return sum(1 for t in host.store.cells if (owner_of(t)[1] or ("", 0))[0] == state)

    host.run_batch([("k", 1, Do("many", "x", 5_000))])
    assert 5_000 / PART_ITEMS <= parts("plain") <= 5_000 / 8
    host.run_batch([("k", 2, Do("few", value=3))])
    assert parts("plain") <= 3
    host.run_batch([("k", 3, Do("few", value=0))])
    assert parts("plain") == 0


class Sliced(KeyedProcess[Do, str]):
    """Goes through a map by places, and asks ahead for what it needs."""

    order = arrival(commutes=True)
    items = map_state(str, int, paged=True)

    def look_ahead(self, events: Sequence[Do]) -> None:
        self.items.fetch([e.key for e in events])

    def process(self, event: Do, ctx: Context) -> None:
        if event.what == "put":
            self.items.put(event.key, event.value)
        elif event.what == "remove":
            self.items.remove(event.key)
        elif event.what == "get":
            ctx.emit(f"{self.items.get(event.key)}")
        else:
            ctx.emit(f"{sorted(self.items.some(event.value, int(event.key)))}")


class SlicedPlain(Sliced):
    name = "Sliced"
    items = map_state(str, int)


@pytest.mark.parametrize("seed", range(12))
def test_every_entry_stands_at_one_place_whatever_the_map_holds(seed: int) -> None:
    rng = random.Random(seed)
    paged, plain = MemoryHost(Sliced()), MemoryHost(SlicedPlain())
    there: dict[str, int] = {}
    at = 0
    for _ in range(8):
        grown = rng.choice([0, 3, 60, 700])
        there = dict(rng.sample(sorted(there.items()), min(len(there), rng.choice([0, 5, 10**6]))))
        left = {f"i{rng.randrange(2_000)}": rng.randrange(9) for _ in range(grown)}
        events = [Do("remove", f"i{n}") for n in range(2_000) if f"i{n}" not in there]
        events += [Do("put", key, value) for key, value in left.items()]
        there |= left
        of = 1 << rng.randrange(8)
        events += [Do("some", f"{of}", place) for place in range(of)]
        rows = [("k", at + n, e) for n, e in enumerate(events)]
        at += len(events)
        found = [msgspec.json.decode(e.payload) for e in paged.run_batch(rows)]
        assert found == [msgspec.json.decode(e.payload) for e in plain.run_batch(rows)]
        assert sorted(item for text in found for item in ast.literal_eval(text)) == sorted(there.items())


class Kind(str, Enum):  # noqa: UP042  (its text is not its value)
    NEAR = "near"
    FAR = "far"


@pytest.mark.parametrize("key", [*Kind, "near", 7, ("a", 1), 2**70])
def test_an_item_stands_where_earlier_versions_put_it(key: object) -> None:
    assert hash_of(key) == zlib.crc32(f"{key}".encode())


@pytest.mark.parametrize(("place", "of"), [(0, 0), (0, 3), (4, 4), (-1, 2)])
def test_places_are_a_power_of_two_counted_from_nothing(place: int, of: int) -> None:
    driver = TestDriver(Sliced())
    driver.send_batch([("k", 1, Do("put", "x", 1)), ("k", 2, Do("some", f"{of}", place))])
    assert [letter["error"] for letter in driver.values("dead_letters")] == [
        f"ValueError: place {place} of {of}: there must be 1, 2, 4, … places, counted from 0"
    ]


def sliced_batch(backend: Bytes, process: type[Sliced], *events: Do) -> list[str]:
    runner = Runner(process(), encode=msgspec.json.encode, decode=msgspec.json.Decoder(Do).decode)
    store = PagedStore(backend, runner.layout)
    rows = [Row(n, msgspec.json.encode(e), f"m:0:{n}", e) for n, e in enumerate(events)]
    runner.run_batch(store, {"1:k": rows}, -(2**62))
    store.commit(-(2**62))
    return [msgspec.json.decode(e.payload) for e in runner.emissions]


def test_a_place_costs_what_its_parts_hold_and_what_is_asked_for_ahead_is_read_at_once() -> None:
    class Blind(Sliced):
        name = "Sliced"
        look_ahead = KeyedProcess.look_ahead

    backend = Bytes()
    sliced_batch(backend, Sliced, *(Do("put", f"i{n}", n) for n in range(20_000)))
    stored = sum(map(len, backend.pages.values()))
    backend.read = 0
    sliced_batch(backend, Sliced, Do("some", "64", 7))
    assert 0 < backend.read < stored / 4  # seven parts of 400, each in a page of its own
    asked = [Do("get", f"i{n * 61}") for n in range(300)]
    for process, most in ((Sliced, 6), (Blind, 10**6)):
        backend.requests = 0
        assert sliced_batch(backend, process, *asked) == [f"{n * 61}" for n in range(300)]
        assert backend.requests <= most
    assert backend.requests > 20


def test_who_fails_to_ask_ahead_is_answered_all_the_same() -> None:
    class Clumsy(Sliced):
        name = "Sliced"

        def look_ahead(self, events: Sequence[Do]) -> None:
            raise ValueError("no idea")

    driver = TestDriver(Clumsy())
    driver.send_batch([("k", 1, Do("put", "x", 5)), ("k", 2, Do("get", "x"))])
    assert driver.values() == ["5"]
    assert driver.values("dead_letters") == []


class Short(KeyedProcess[Do, str]):
    """Keeps items for a second."""

    order = arrival(commutes=True)
    items = map_state(str, int, ttl=1_000, paged=True)

    def process(self, event: Do, ctx: Context) -> None:
        for number in range(event.value):
            self.items.put(f"i{number}", number)


@pytest.mark.parametrize("count", [1, PART_ITEMS, PART_ITEMS + 1, 2 * PART_ITEMS + 3, 1_000])
def test_items_expire_wherever_they_have_moved_and_leave_nothing(count: int) -> None:
    host = MemoryHost(Short())
    host.run_batch([("k", 1, Do("", value=count))])
    assert host.store.cells
    host.run_batch([("other", 10**7, Do(""))])
    host.run_batch([("other", 2 * 10**7, Do(""))])
    assert not host.store.cells


class Walks(KeyedProcess[str, int]):
    """Changes what it goes through."""

    order = arrival(commutes=True)
    items = map_state(str, int, paged=True)
    row = list_state(int, paged=True)

    def process(self, event: str, ctx: Context) -> None:
        if event == "fill":
            for number in range(10_000):
                self.items.put(f"i{number}", number)
                self.row.append(number)
        elif event == "remove":
            for key in self.items:
                self.items.remove(key)
        elif event == "put":
            for key in self.items:
                self.items.put(f"again {key}", 1)
        elif event == "append":
            for value in self.row:
                self.row.append(value)
        ctx.emit(len(self.items))
        ctx.emit(len(self.row))


def test_what_is_removed_while_it_is_gone_through_is_all_removed_and_leaves_nothing() -> None:
    driver = TestDriver(Walks())
    driver.send_batch([("k", 1, "fill")])
    driver.send_batch([("k", 2, "remove")])
    assert driver.values("main") == [10_000, 10_000, 0, 10_000]
    assert not [t for t in driver.host.store.cells if (owner_of(t)[1] or ("", 0))[0] == "items"]
    assert driver.state("k")["items"] == {}  # type: ignore[index]
    (owner,) = [t for t in driver.host.store.cells if owner_of(t)[1] is None]
    assert driver.host.runner.layout.decode(driver.host.store.cells[owner].body).items_parts_ is None


def test_what_is_added_while_it_is_gone_through_is_not_seen() -> None:
    driver = TestDriver(Walks())
    driver.send_batch([("k", 1, "fill"), ("k", 2, "put"), ("k", 3, "append")])
    assert driver.values("main") == [10_000, 10_000, 20_000, 10_000, 20_000, 20_000]


class Refreshed(KeyedProcess[str, int]):
    """Keeps what is read."""

    order = arrival(commutes=True)
    items = map_state(str, int, ttl=3_600_000, refresh="read_write", paged=True)
    row = list_state(int, ttl=3_600_000, refresh="read_write", paged=True)

    def process(self, event: str, ctx: Context) -> None:
        if event == "put":
            self.items.put("a", 1)
            self.row.append(1)
        elif event == "get":
            ctx.emit((self.items.get("a") or 0) + sum(self.row))
        elif event == "all":
            ctx.emit(sum(self.items.values()) + sum(self.row))


@pytest.mark.parametrize("how", ["get", "all"])
def test_items_that_are_read_live_on_where_a_read_renews_them(how: str) -> None:
    driver = TestDriver(Refreshed())
    driver.send_batch([("k", 1, "put")])
    for hour in range(1, 12):
        driver.send_batch([("k", hour * 3_000_000, how)])
    assert driver.values("main") == [2] * 11
    for hour in range(100, 102):
        driver.send_batch([("other", hour * 3_600_000, "")])
    assert driver.is_empty()


class Two(KeyedProcess[Do, str]):
    """Writes to two maps, one of which may not be kept."""

    order = arrival(commutes=True)
    first = map_state(str, int, paged=True)
    second = map_state(str, int, paged=True)

    def process(self, event: Do, ctx: Context) -> None:
        self.first.put(event.key, event.value)
        self.second.put(event.key, "no number" if event.what == "wrong" else 1)  # type: ignore[arg-type]
        ctx.emit(f"{sorted(self.first.items())}")


def test_of_an_event_that_leaves_what_cannot_be_kept_nothing_is_kept_in_any_part() -> None:
    driver = TestDriver(Two())
    driver.send_batch([("k", 1, Do("put", "a", 1))])
    driver.send_batch([("k", 2, Do("wrong", "b", 2))])
    driver.send_batch([("k", 3, Do("put", "c", 3))])
    assert len(driver.values("dead_letters")) == 1
    assert driver.values() == ["[('a', 1)]", "[('a', 1), ('c', 3)]"]
