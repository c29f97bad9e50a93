"""Identities hang on what a record is and on what caused it: not on cuts, order, restarts or timers."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from millrace import Context, KeyedProcess, Timer, arrival
from millrace.host.memory_chain import MemoryChain
from millrace.process import order_of
from millrace.testing import TestDriver
from millrace.windows import count, tumbling, watermark, window
from tests.unit.millrace.identity_cases import (
    BOUND,
    KINDS,
    REPEATING,
    SPAN,
    Ev,
    Player,
    assert_all_differ,
    cut,
    delayed,
    events_of,
    results,
)


def same_under_any_delivery(name: str, seed: int) -> int:
    """Check one random case; return how many records it has."""
    kind = KINDS[name]
    rng = random.Random(f"{name} {seed}")
    events = events_of(kind.process, rng, distinct=kind.distinct)
    bound = BOUND if kind.orders == "any" else 0
    finest = Player(kind.process, bound)
    for event in events:
        finest.batch([event])
    finest.step_to_the_end(random.Random(0))
    assert not [e for e in finest.emissions if e.output in ("late", "dead_letters")]
    assert_all_differ(finest.emissions)
    mixed = delayed(events, rng) if kind.orders == "any" else events
    other = Player(kind.process, bound)
    for batch in cut(mixed, rng):
        other.batch(batch)
        if rng.random() < 0.3:
            other.restart()
    if rng.random() < 0.5:
        other.drain()
    else:
        other.step_to_the_end(rng)
    assert results(other) == results(finest)
    assert not other.host.runner.unfired
    return len(finest.emissions)


@pytest.mark.parametrize("name", KINDS)
def test_records_and_identities_do_not_depend_on_cuts_order_restarts_or_how_the_end_comes(name: str) -> None:
    assert sum(same_under_any_delivery(name, seed) for seed in range(8)) > 0


def all_differ(name: str, seed: int) -> None:
    """Check one random case, with events beyond the bound, ticks, and restarts."""
    process = REPEATING[name]
    rng = random.Random(f"{name} {seed}")
    order = order_of(process)
    in_order = order.mode == "arrival" and order.in_order_per_key  # declared, so it holds
    events = delayed(events_of(process, rng), rng, 0 if in_order else 60)
    player = Player(process, rng.choice((0, 5, 30)))
    wall = 0
    for batch in cut(events, rng):
        player.batch(batch)
        if process.needs_ticks():
            wall += rng.randint(0, 6)
            player.tick(wall)
        if rng.random() < 0.2:
            player.restart()
    player.drain()
    assert not [e for e in player.emissions if e.output == "dead_letters"]
    assert_all_differ(player.emissions)


@pytest.mark.parametrize("name", REPEATING)
def test_no_two_records_have_one_identity(name: str) -> None:
    for seed in range(6):
        all_differ(name, seed)


@pytest.mark.parametrize("cuts", [[1, 1, 1, 1], [1, 2, 1], [4], [2, 2], [3, 1]])
def test_a_windows_identity_does_not_hang_on_which_window_set_the_timer(cuts: list[int]) -> None:
    """One timer stands for all windows of a key.

    ::

        k      5       12        40        [0,10) [10,20) [40,50)
        other     11
    """
    events = [("k", 5, Ev()), ("other", 11, Ev()), ("k", 12, Ev()), ("k", 40, Ev())]

    def ids(batches: list[int]) -> set[tuple[Any, ...]]:
        driver = TestDriver(window(Ev, tumbling(10)).aggregate(n=count()))
        left = list(events)
        for size in batches:
            driver.send_batch(left[:size])
            left = left[size:]
        driver.drain()
        return {(e.key, e.payload, e.event_id) for e in driver.emissions}

    assert ids(cuts) == ids([1] * 4)
    assert len(ids(cuts)) == 4


def test_what_a_record_is_stands_in_place_of_its_cause() -> None:
    class Says(KeyedProcess[Ev, str]):
        order = arrival(commutes=True)

        def process(self, event: Ev, ctx: Context) -> None:
            ctx.emit("plain")
            ctx.emit("one", identity="x")
            ctx.emit("two", identity="x")
            ctx.emit("three", identity="x", revision=1)
            ctx.emit("four", identity="y")

    def said(at: int) -> list[str | None]:
        driver = TestDriver(Says())
        driver.send("filler", Ev(), at=0)
        for _ in range(at):
            driver.send("filler", Ev(), at=0)
        driver.send("a", Ev(), at=at)
        return [e.event_id for e in driver.emissions][-5:]

    first, second = said(1), said(2)
    assert first[0] != second[0]
    assert first[1:] == second[1:]
    assert len({*first}) == 5


def test_a_record_of_a_timer_has_an_identity_where_the_source_has_none() -> None:
    """It is the timer's name and time; only a timer set for a past time would need what set it."""
    from millrace.host.memory import LiveStore
    from millrace.host.rows import Row
    from millrace.host.runner import Runner

    class Sets(KeyedProcess[Ev, str]):
        order = arrival(commutes=True)

        def process(self, event: Ev, ctx: Context) -> None:
            ctx.timers.after(event.v, f"{event.v}")

        def on_timer(self, timer: Timer, ctx: Context) -> None:
            ctx.emit(timer.name)

    runner = Runner(Sets(), encode=lambda record: record)
    store = LiveStore(runner.layout)
    rows = [Row(5, b"", None, Ev(v)) for v in (4, -4)]
    runner.run_batch(store, {"1:a": rows}, 0)
    store.commit(0)
    runner.run_batch(store, {}, 100)
    assert {e.payload: e.event_id is None for e in runner.emissions} == {"4": False, "-4": True}


def test_a_timer_for_later_keeps_nothing_of_what_set_it() -> None:
    driver = TestDriver(KINDS["idle"].process)
    driver.send("a", Ev(), at=10)
    driver.advance_watermark(10)
    (cell,) = driver.host.store.cells.values()
    entry = driver.host.runner.layout.decode(cell.body)
    assert [t.again for t in entry.timers_] == [0, 0]


def test_backtests_have_no_identities() -> None:
    from millrace.host.memory import MemoryHost

    host = MemoryHost(window(Ev, tumbling(10)).aggregate(n=count()), records=True)
    emissions = host.run_batch([("a", 1, Ev())]) + host.drain()
    assert [e.event_id for e in emissions] == [None]


def test_an_early_result_and_the_last_of_a_window_that_say_the_same_are_two() -> None:
    process = window(Ev, tumbling(10), trigger=watermark().early(count=1)).aggregate(n=count())
    driver = TestDriver(process)
    driver.send("a", Ev(), at=1)
    driver.drain()
    assert [r.pane for r in driver.values()] == ["early", "on_time"]
    assert len({e.event_id for e in driver.emissions}) == 2


def test_timers_set_by_what_is_behind_in_a_chain_differ_from_those_that_have_fired() -> None:
    """The first link says that what a late event caused is on time; the second sets the timer of 6 again."""

    class First(KeyedProcess[Ev, Ev]):
        order = arrival(commutes=True)

        def process(self, event: Ev, ctx: Context) -> None:
            ctx.emit(event)

        def on_late(self, event: Ev, ctx: Context) -> None:
            ctx.emit(event, on_time=True)

    class Second(KeyedProcess[Ev, str]):
        order = arrival(commutes=True)

        def process(self, event: Ev, ctx: Context) -> None:
            ctx.timers.at(6, "six")

        def on_timer(self, timer: Timer, ctx: Context) -> None:
            ctx.emit("six")

    for first in (arrival(commutes=True), "event_time"):
        second: Any = type("Second", (Second,), {"order": first})
        chain = MemoryChain(First(), ("tag", second()))
        emissions = chain.run_batch([("k", 5, Ev())])
        emissions += chain.run_batch([("k", 20, Ev(tag="b"))])
        emissions += chain.run_batch([("k", 5, Ev())])
        found = [e for e in emissions if e.output == "main" and e.key == "1:a"]
        assert [e.event_time for e in found] == [6, 6]
        assert_all_differ(found)


@pytest.mark.parametrize("seed", range(20))
def test_identities_of_a_chain_do_not_depend_on_cuts(seed: int) -> None:
    """A window, and behind it one timer for each of its results."""
    windows = window(Ev, tumbling(10), key="user").aggregate(n=count())
    result: Any = windows.output_type

    class Each(KeyedProcess[result, str]):
        order = arrival(commutes=True)

        def process(self, event: Any, ctx: Context) -> None:
            ctx.emit(f"{event.n}")
            ctx.timers.after(event.n, f"{event.window_start_ms}")

        def on_timer(self, timer: Timer, ctx: Context) -> None:
            ctx.emit(timer.name)

    rng = random.Random(seed)
    events = sorted((rng.randint(0, SPAN), rng.choice("ab")) for _ in range(20))

    def run(sizes: list[int]) -> Counter[Any]:
        chain = MemoryChain(windows, ("user", Each()))
        emissions, left = [], [(key, at, Ev()) for at, key in events]
        for size in sizes:
            emissions += chain.run_batch(left[:size])
            left = left[size:]
        emissions += chain.run_batch(left) + chain.drain()
        assert_all_differ(emissions)
        return Counter(emissions)

    assert run([rng.randint(0, 8) for _ in range(6)]) == run([1] * 20)


def test_timers_set_by_a_timer_that_fires_again_differ_from_those_of_before() -> None:
    """A late event at 5 has the timers of 6 and of 8 fire again."""

    class Two(KeyedProcess[Ev, str]):
        order = arrival(commutes=True)

        def process(self, event: Ev, ctx: Context) -> None:
            ctx.timers.at(6, "six")

        def on_late(self, event: Ev, ctx: Context) -> None:
            self.process(event, ctx)

        def on_timer(self, timer: Timer, ctx: Context) -> None:
            ctx.emit(timer.name)
            if timer.name == "six":
                ctx.timers.after(2, "eight")

    driver = TestDriver(Two())
    driver.send("k", Ev(), at=5)
    driver.send("other", Ev(), at=20)
    driver.send("k", Ev(), at=5)
    driver.send("k", Ev(), at=5)
    found = [e for e in driver.emissions if e.key == "1:k"]
    assert [e.event_time for e in found] == [6, 8] * 3
    assert_all_differ(found)
