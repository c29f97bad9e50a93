"""Windows among other processes and on other clocks: chains, ticks, the end of input, failures."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from millrace import Context, KeyedProcess, Timer, arrival, value_state
from millrace.host.groups import encode_key
from millrace.host.memory import LiveStore
from millrace.host.memory_chain import MemoryChain
from millrace.host.rows import IS_AHEAD, Row
from millrace.host.runner import Runner
from millrace.testing import TestDriver
from millrace.windows import (
    count,
    global_window,
    lookback,
    max_of,
    session,
    sum_of,
    tumbling,
    watermark,
    window,
)
from tests.unit.millrace.windows.cases import BY_HAND, Ev, rows

PER_TEN = window(Ev, tumbling(10), key="user").aggregate(n=count(), total=sum_of("v"))
PER_THIRTY = window(PER_TEN.output_type, tumbling(30)).aggregate(windows=count(), total=sum_of("total"))


def final(emissions: list[Any]) -> list[dict[str, Any]]:
    return [msgspec.json.decode(e.payload) for e in emissions if e.output == "main"]


def run(chain: MemoryChain, batches: list[list[tuple[str, int, Ev]]]) -> list[Any]:
    emissions = []
    for batch in batches:
        emissions += chain.run_batch(batch)
    return emissions + chain.drain()


EVENTS = [("ann", at, Ev(1)) for at in range(0, 60, 4)] + [("bob", at, Ev(10)) for at in range(1, 60, 7)]


@pytest.mark.parametrize("cut", [1, 3, 10, len(EVENTS)])
def test_windows_over_results_of_windows_take_none_of_them_for_late(cut: int) -> None:
    """The results of a batch's closing windows are behind its watermark, and all are on time.

    ::

        ann, bob:  [0,10) [10,20) [20,30) | [30,40) [40,50) [50,60)
        by n:      [0 ........ 30)          [30 ............... 60)
    """
    events = sorted(EVENTS, key=lambda e: e[1])
    chain = MemoryChain(PER_TEN, ("user", PER_THIRTY))
    emissions = run(chain, [events[i : i + cut] for i in range(0, len(events), cut)])
    assert not [e for e in emissions if e.output.endswith(("late", "dead_letters"))]
    found = {(r["key"], r["window_start_ms"]): (r["windows"], r["total"]) for r in final(emissions)}
    assert found == {
        (user, start): (3, sum(e.v for u, at, e in EVENTS if u == user and start <= at < start + 30))
        for user in ("ann", "bob")
        for start in (0, 30)
    }


def test_a_look_back_over_results_of_sessions_runs_in_order_of_their_ends() -> None:
    sessions = window(Ev, session(5), key="user").aggregate(n=count())
    lately = window(sessions.output_type, lookback(30, keep="n")).aggregate(most=max_of("n"))
    chain = MemoryChain(sessions, ("user", lately))
    emissions = run(chain, [[("ann", at, Ev()) for at in (0, 1, 2, 20, 40, 41, 100)]])
    assert [(r["event_time_ms"], r["n"], r["most"]) for r in final(emissions)] == [
        (7, 3, 3),
        (25, 1, 3),
        (46, 2, 2),
        (105, 1, 1),
    ]


@pytest.mark.parametrize("restarts", [False, True])
def test_early_results_may_come_by_the_clock_on_the_wall(restarts: bool) -> None:
    trigger = watermark().early(every=1_000, clock="processing_time")
    driver = TestDriver(
        window(Ev, tumbling(100), trigger=trigger).aggregate(n=count()), out_of_orderness_ms=BY_HAND
    )

    def step(*times: int, tick: int) -> list[tuple[Any, ...]]:
        seen = len(driver.values())
        for at in times:
            driver.send("k", Ev(), at=at)
        if restarts:
            driver.restart()
        driver.advance_processing_time(tick)
        return rows(driver, "n", "pane")[seen:]

    driver.advance_processing_time(5_000)
    assert step(1, 2, tick=5_900) == []
    assert step(tick=6_000) == [(2, "early")]
    assert step(tick=9_000) == []
    assert step(3, tick=9_500) == []
    assert step(tick=10_000) == [(3, "early")]
    driver.advance_watermark(99)
    assert rows(driver, "n", "pane")[-1] == (3, "on_time")
    assert driver.is_empty()


def test_an_early_result_by_the_clock_on_the_wall_has_the_time_of_its_window() -> None:
    """Whatever event time has come to: a pane is of its window, as its last result is."""
    trigger = watermark().early(every=5, clock="processing_time")
    for kind, last in ((tumbling(1_000), 10_999), (session(100), 10_900)):
        driver = TestDriver(
            window(Ev, kind, trigger=trigger).aggregate(n=count()), out_of_orderness_ms=10_000
        )
        driver.advance_processing_time(0)
        driver.send_batch([("k", 10_800, Ev()), ("other", 15_500, Ev())])
        driver.advance_processing_time(10)
        driver.advance_watermark(10_999)
        found = [(e.event_time, e.payload) for e in driver.emissions if e.key == "1:k"]
        assert [at for at, _ in found] == [last, last]


def test_an_early_result_of_the_global_window_has_the_present_time() -> None:
    trigger = watermark().early(every=5, clock="processing_time")
    driver = TestDriver(window(Ev, global_window(), trigger=trigger).aggregate(n=count()))
    driver.advance_processing_time(0)
    driver.send("k", Ev(), at=50)
    driver.advance_processing_time(10)
    assert [e.event_time for e in driver.emissions] == [50]  # the watermark is 49


@pytest.mark.parametrize("ahead", [False, True])
def test_a_window_over_early_results_by_the_wall_speaks_once_of_each_window(ahead: bool) -> None:
    """An early result of [10000, 11000) is not of the 5500 that event time has come to."""
    trigger = watermark().early(every=5, clock="processing_time")
    first = window(Ev, tumbling(1_000), trigger=trigger, key="user").aggregate(n=count())
    second = window(first.output_type, tumbling(2_000)).aggregate(panes=count(), most=max_of("n"))
    chain = MemoryChain(first, ("user", second), out_of_orderness_ms=5_000)
    emissions: list[Any] = []
    for wall, at in enumerate([10_000, 10_500, 10_900, 12_500, 17_000, 18_000]):
        emissions += chain.run_batch([("ann", at, Ev())])
        emissions += chain.advance_processing_time(wall * 5)
        if ahead:
            emissions += chain.advance_watermark(at - 4_000)
    emissions += chain.drain()
    assert not [e for e in emissions if e.output.endswith(("late", "dead_letters"))]
    starts = [r["window_start_ms"] for r in final(emissions)]
    assert starts == sorted(set(starts))
    assert next(r["most"] for r in final(emissions)) == 3
    assert chain.is_empty()


class Ticked(KeyedProcess[Ev, Ev]):
    """Passes on, at each tick, how many events there were since the last."""

    order = arrival(commutes=True)
    processing_time = True
    n = value_state(int, default=0)

    def process(self, event: Ev, ctx: Context) -> None:
        self.n.value += 1
        ctx.processing_timers.bring_forward(0, "tell")

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        ctx.emit(Ev(self.n.value, ctx.key))
        self.n.clear()


@pytest.mark.parametrize("order", ["arrival", "event_time"])
def test_windows_over_what_ticks_bring_close_once(order: Any) -> None:
    """What a tick brings comes after all that the watermark has passed, and waits for it as events do."""
    windows = window(Ev, tumbling(10), order=order).aggregate(n=count(), total=sum_of("v"))
    chain = MemoryChain(Ticked(), ("tag", windows))
    emissions: list[Any] = []
    for wall, at in enumerate([3, 9, 10, 11, 19, 35]):
        emissions += chain.run_batch([("ann", at, Ev())])
        emissions += chain.advance_processing_time(wall)
        assert all(host.watermark == at - 1 for host in chain.hosts)
    emissions += chain.drain()
    assert not [e for e in emissions if e.output.endswith(("late", "dead_letters"))]
    found = [(r["window_start_ms"], r["n"], r["total"]) for r in final(emissions)]
    assert found == [(0, 2, 2), (10, 3, 3), (30, 1, 1)]


def test_what_a_tick_brings_comes_after_what_its_batch_passes() -> None:
    """A batch that ends at 50 and ticks: the timer of 40 before the tick's, whose records are of 51."""

    class Both(Ticked):
        def process(self, event: Ev, ctx: Context) -> None:
            super().process(event, ctx)
            ctx.timers.at(40, "by event time")

        def on_timer(self, timer: Timer, ctx: Context) -> None:
            ctx.emit(Ev(ctx.event_time, timer.name))

    runner = Runner(Both(), encode=lambda record: record)
    store = LiveStore(runner.layout)
    runner.run_batch(store, {"1:k": [Row(30, b"", "in:0:1", Ev())]}, 20, 5)
    store.commit(20, 5)
    runner.run_batch(store, {}, 20, 6, tick=True, ahead=50)
    assert [(e.payload.tag, e.event_time, e.on_time) for e in runner.emissions] == [
        ("by event time", 40, 1 | IS_AHEAD),
        ("tell", 51, 1 | IS_AHEAD),
    ]


def test_without_a_watermark_what_a_tick_brings_has_the_timers_own_time() -> None:
    chain = MemoryChain(Ticked(), ("tag", window(Ev, tumbling(10)).aggregate(n=count())),
                        out_of_orderness_ms=BY_HAND)  # fmt: skip
    rows = chain.hosts[0].rows_of([("ann", 3, Ev())])
    assert chain.hosts[0].run_rows(rows) == []
    (told,) = chain.hosts[0].advance_processing_time(7)
    assert told.event_time == 0


def test_only_a_process_that_asks_for_ticks_is_refused_without_them() -> None:
    by_the_wall = watermark().early(every=5, clock="processing_time")
    assert window(Ev, tumbling(10), trigger=by_the_wall).aggregate(n=count()).needs_ticks()
    assert not window(Ev, tumbling(10), trigger=watermark().early(every=5)).aggregate(n=count()).needs_ticks()


def test_the_end_of_input_closes_every_window() -> None:
    driver = TestDriver(window(Ev, tumbling(10), allowed_lateness=10**12).aggregate(n=count()))
    driver.send_batch([("a", 1, Ev()), ("b", 20, Ev())])
    driver.drain()
    assert sorted(rows(driver, "key", "n")) == [("a", 1), ("b", 1)]
    assert driver.is_empty()


@pytest.mark.parametrize(
    "kind", [tumbling(10), session(10), lookback(10)], ids=["tumbling", "session", "lookback"]
)
def test_an_event_that_an_aggregate_fails_on_leaves_no_trace(kind: Any) -> None:
    """The first aggregate has taken the event when the second fails."""

    def picky(event: Ev) -> int:
        if event.v == 13:
            raise ValueError("thirteen")
        return event.v

    process = window(Ev, kind).aggregate(n=count(), total=sum_of(picky, type=int))
    driver = TestDriver(process, out_of_orderness_ms=BY_HAND)
    driver.send_batch([("k", at, Ev(v)) for at, v in [(1, 5), (2, 13), (3, 7)]])
    driver.drain()
    assert [letter["error"] for letter in driver.values("dead_letters")] == ["ValueError: thirteen"]
    assert rows(driver, "n", "total")[-1] == (2, 12)
    assert driver.is_empty()


def test_a_predicate_that_fails_puts_its_event_aside() -> None:
    trigger = watermark().early(when=lambda r: 1 // (2 - r.n) > 5)
    driver = TestDriver(
        window(Ev, tumbling(10), trigger=trigger).aggregate(n=count()), out_of_orderness_ms=BY_HAND
    )
    driver.send_batch([("k", 1, Ev(1)), ("k", 2, Ev(2))])
    driver.drain()
    assert len(driver.values("dead_letters")) == 1
    assert rows(driver, "n") == [(1,)]


def test_a_correction_from_another_process_does_not_speak_for_a_session_that_is_about_to_close() -> None:
    """Gap 10: the watermark goes to 20 with the batch that brings 5, a correction, to the session of 0."""
    driver = TestDriver(
        window(Ev, session(10), allowed_lateness=50).aggregate(n=count()), out_of_orderness_ms=BY_HAND
    )
    driver.send("k", Ev(), at=0)
    driver.host.watermark = 20
    row = Row(5, msgspec.json.encode(Ev()), "first:1", Ev(), on_time=False)
    driver.emissions += driver.host.run_rows({encode_key(("k",)): [row]})
    assert rows(driver, "window_start_ms", "window_end_ms", "n", "pane") == [(0, 15, 2, "on_time")]
    driver.drain()
    assert driver.is_empty()
