"""Windows among other processes and on other clocks: chains, ticks, the end of input, failures."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from millrace.host.groups import encode_key
from millrace.host.memory import MemoryChain
from millrace.host.rows import Row
from millrace.testing import TestDriver
from millrace.windows import count, lookback, max_of, session, sum_of, tumbling, watermark, window
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
