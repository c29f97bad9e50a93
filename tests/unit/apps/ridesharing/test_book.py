"""A book in parts says what a book in one entry says, whatever happens, and goes on from such a one."""

from __future__ import annotations

import base64
import json
import random
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from millrace.host.memory import MemoryHost
from millrace.host.runner import Emission
from millrace_apps.benchmarks.whole_region import WholeRegion
from millrace_apps.ridesharing.contracts.events import Event
from millrace_apps.ridesharing.processes.dispatcher import Dispatcher
from millrace_apps.ridesharing.state.book import Book
from millrace_apps.ridesharing.state.earlier import EarlierBook, EarlierCar, adopt
from millrace_apps.ridesharing.state.entries import Car, Due
from tests.cases import case_count
from tests.unit.apps.ridesharing.nights import BOUND_MS, night

CASES = case_count(40)
#: What a region had kept in the midst of some nights.
OF_BEFORE: Any = json.loads((Path(__file__).parent / "regions_of_before.json").read_text())
#: How late what comes behind the bound comes, ms.
_TOO_LATE_MS = 90_000


def _arrivals(seed: int) -> list[list[int]]:
    """Return the events of a night, by number, in batches as they come."""
    _, _, events = night(seed)
    draws = random.Random(seed + 1_000_000)
    delays = [0, 0, 3_000, BOUND_MS - 100]
    order = sorted(
        range(len(events)),
        key=lambda n: (
            events[n].event_time_ms + (draws.choice(delays) if draws.random() < 0.98 else _TOO_LATE_MS)
        ),
    )
    batches, place = [], 0
    while place < len(order):
        size = draws.choice([1, 5, 40, 400])
        batches.append(order[place : place + size])
        place += size
    return batches


def said(first: type[Dispatcher], seed: int, second: type[Dispatcher] | None = None) -> list[str]:
    """Return what comes of a night; ``second`` goes on in the midst from what ``first`` has kept."""
    config, region, events = night(seed)
    batches, found = _arrivals(seed), list[str]()
    host = MemoryHost(first(config), out_of_orderness_ms=BOUND_MS)
    draws = random.Random(seed)
    half = draws.randrange(len(batches)) if second is not None else -1
    for number, batch in enumerate(batches):
        found += _run(host, region, events, [batch])
        if number == half or draws.random() < 0.03:
            kept, process = host.snapshot(), second if second is not None and number >= half else first
            host = MemoryHost(process(config), out_of_orderness_ms=BOUND_MS)
            host.restore(kept)
    return found + _texts(host.drain())


def _run(
    host: MemoryHost, region: str, events: Sequence[Event], batches: Sequence[Sequence[int]]
) -> list[str]:
    found: list[str] = []
    for batch in batches:
        found += _texts(host.run_batch([(region, events[n].event_time_ms, events[n]) for n in batch]))
    return found


def _texts(emissions: Sequence[Emission]) -> list[str]:
    return [f"{e.output} {e.event_time} {e.payload.decode()}" for e in emissions]


def _halves(batches: list[list[int]], at: int) -> tuple[list[list[int]], list[list[int]]]:
    return batches[:at], batches[at:]


@pytest.mark.parametrize("seed", range(CASES))
def test_a_book_in_parts_and_one_in_an_entry_say_the_same(seed: int) -> None:
    assert said(Dispatcher, seed) == said(WholeRegion, seed)


@pytest.mark.parametrize("seed", range(CASES, CASES + CASES // 2))
def test_a_book_in_one_entry_is_taken_apart_in_the_midst_of_a_night(seed: int) -> None:
    assert said(WholeRegion, seed, Dispatcher) == said(WholeRegion, seed)


@pytest.mark.parametrize("seed", sorted(OF_BEFORE))
def test_what_the_version_before_has_kept_is_gone_on_from(seed: str) -> None:
    """The snapshots are of the version that kept one entry, half a night each, without what came since."""
    config, region, events = night(int(seed))
    found: list[list[str]] = []
    for process in (Dispatcher, WholeRegion):
        host = MemoryHost(process(config), out_of_orderness_ms=BOUND_MS)
        before, after = _halves(_arrivals(int(seed)), OF_BEFORE[seed]["batches"])
        if process is Dispatcher:
            host.restore(zlib.decompress(base64.b64decode(OF_BEFORE[seed]["kept"])))
        else:
            _run(host, region, events, before)
        found.append(_run(host, region, events, after) + _texts(host.drain()))
    assert len(found[0]) > 40
    # Attempts of before have no score; those that were made since have one.
    scores = [re.compile(r',"cost_ms":.*}$').sub("}", line) for line in found[1]]
    assert [re.sub(r',"cost_ms":null.*}$', "}", line) for line in found[0]] == [
        bare if '"cost_ms":null' in line else whole
        for line, bare, whole in zip(found[0], scores, found[1], strict=True)
    ]


def test_a_silent_driver_with_a_ride_of_a_book_of_before_is_looked_at_when_it_was_to_be() -> None:
    """Seen at 0, stale from 30 s on; on a ride then, and so to be looked at every 30 s: next at 67 s."""
    was = EarlierCar(0.0, 0.0, 0, "xl", "r1", 5, True, True, 0, 2)
    heard = EarlierCar(0.0, 0.0, 50_000, "xl", "", 5, True, True, 0, 2)
    deadlines = [(37_500, int(Due.STALE), "d1", 1), (67_500, int(Due.STALE), "d1", 2)]
    deadlines.append((61_000, int(Due.STALE), "d2", 2))
    book = Book()
    book.draw_near(40_000)
    adopt(EarlierBook(cars={"d1": was, "d2": heard}, deadlines=deadlines), book, 30_000)
    found = {}
    while book.next_ms < 100_000:
        at = book.next_ms
        for due, driver_id, _ in book.all_due(at, 30_000):
            found[driver_id] = at, due
            book.leave(driver_id)
    assert found == {"d1": (67_500, Due.STALE), "d2": (80_000, Due.STALE)}


def test_deadlines_come_in_order_of_time_whenever_they_were_set() -> None:
    draws = random.Random(5)
    for _ in range(200):
        book, left, now = Book(), list[tuple[int, int, str, int]](), 1_000_000
        book.draw_near(now)
        for _ in range(draws.randrange(1, 200)):
            due = (now + int(10 ** draws.uniform(0, 7.5)), draws.randrange(9), f"r{draws.randrange(5)}", 1)
            book.remind(due[0], Due(due[1]), *due[2:])
            left.append(due)
            if draws.random() < 0.1:
                assert book.next_ms <= min(left)[0]
                now = max(now, min(left)[0] + draws.choice([0, 0, 5, 30_000]))
                wanted = sorted(due for due in left if due[0] <= now)
                assert list(book.all_due(now, 1)) == [due[1:] for due in wanted]
                left = [due for due in left if due[0] > now]
        while left:
            now = book.next_ms
            wanted = sorted(due for due in left if due[0] <= now)
            assert list(book.all_due(now, 1)) == [due[1:] for due in wanted]
            left = [due for due in left if due[0] > now]
        assert book.next_ms > now
        assert not book.head.far


def test_who_falls_silent_is_found_in_the_second_and_nobody_else() -> None:
    draws, ttl = random.Random(6), 30_000
    book, seen = Book(), dict[str, int]()
    start = 1_000_000
    book.draw_near(start)
    for n in range(500):
        seen[f"d{n}"] = start + draws.randrange(20_000)
        book.enter(f"d{n}", Car(0.0, 0.0, seen[f"d{n}"], 0, True, start), ttl, start)
    gone: dict[str, int] = {}
    for second in range(start, start + 120_000, 1_000):
        for name in draws.sample(sorted(seen), 60):
            if name not in gone and second < start + 60_000:
                seen[name] = book.cars[name].seen_ms = max(seen[name], second - draws.randrange(900))
        if book.next_ms > second:
            continue
        for due, name, _ in book.all_due(second, ttl):
            assert due == Due.STALE
            gone[name] = second
            book.leave(name)
    assert gone == {name: -(-(at + ttl) // 1_000) * 1_000 for name, at in seen.items()}
    assert len(book.cars) == 0
