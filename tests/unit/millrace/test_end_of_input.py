"""The end of the input: what is pending fires, what timers set then fires up to there, and it ends."""

from __future__ import annotations

import logging
import random
from typing import Any

import pytest

from millrace import Context, KeyedProcess, Timer, arrival, value_state
from millrace.host.memory import LiveStore, MemoryHost
from millrace.host.runner import Runner
from millrace.testing import TestDriver
from millrace.time import NEVER
from millrace.windows import count, tumbling, window
from tests.unit.millrace.identity_cases import Ev


class Beat(KeyedProcess[int, int]):
    """A timer that always sets itself again; events may set another for later."""

    order = arrival(commutes=True)

    def process(self, event: int, ctx: Context) -> None:
        ctx.timers.bring_forward(ctx.event_time + 10, "beat")
        if event:
            ctx.timers.after(event, "far")

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        ctx.emit(timer.at)
        if timer.name == "beat":
            ctx.timers.after(10, "beat")


class BeatInOrder(Beat):
    order = "event_time"


@pytest.mark.parametrize("process", [Beat(), BeatInOrder()])
def test_a_timer_that_sets_itself_ends_with_the_input(process: Beat, caplog: Any) -> None:
    """Beat at 11, 21, 31, ...; far at 36: time goes on to it, and no further."""
    driver = TestDriver(process)
    driver.send_batch([("a", 1, 35), ("b", 1, 0)])
    with caplog.at_level(logging.WARNING):
        driver.drain()
    assert sorted((e.key, e.event_time) for e in driver.emissions) == [
        *(("1:a", at) for at in (11, 21, 31, 36)),
        ("1:b", 11),
    ]
    assert driver.host.runner.unfired == {"beat": 2}
    (said,) = caplog.messages
    assert process.name in said
    assert "'beat'" in said


def test_what_does_not_fire_stays_and_does_not_fire_later_either() -> None:
    driver = TestDriver(Beat())
    driver.send("a", 0, at=1)
    driver.drain()
    assert driver.timers("a") == {"beat": NEVER}
    driver.restart()
    driver.drain()
    assert driver.values() == [11]
    assert driver.host.runner.unfired == {}


def test_an_event_after_the_end_sets_a_timer_that_fires() -> None:
    class Late(Beat):
        def on_late(self, event: int, ctx: Context) -> None:
            self.process(event, ctx)

    driver = TestDriver(Late())
    driver.send("a", 0, at=1)
    driver.drain()
    driver.send("a", 0, at=50)
    assert driver.values() == [11, 60]
    assert driver.host.runner.unfired == {"beat": 2}


def test_timers_and_waiting_events_run_in_one_order_to_the_last_event() -> None:
    """Between events the beat goes on as ever: 11, then 21 and 31 before the event at 35."""
    driver = TestDriver(BeatInOrder(), out_of_orderness_ms=1_000)
    driver.send_batch([("a", 35, 0), ("a", 1, 0)])
    assert driver.values() == []
    driver.drain()
    assert driver.values() == [11, 21, 31, 41]


def test_a_bounded_run_ends_as_the_stream_does() -> None:
    host = MemoryHost(Beat())
    rows = host.rows_of([("a", 1, 35), ("a", 50, 0)])
    runner = Runner(Beat(), encode=lambda record: record)
    runner.run_bounded(LiveStore(runner.layout), rows, 0)
    # The one pending at 51 is the last: 51 is when the beat of 41 was due again.
    assert [e.payload for e in runner.emissions] == [11, 21, 31, 36, 41, 51]
    assert runner.unfired == {"beat": 1}


def test_a_failed_timer_before_the_end_changes_nothing_of_it() -> None:
    class Fails(Beat):
        def on_timer(self, timer: Timer, ctx: Context) -> None:
            super().on_timer(timer, ctx)
            if timer.name == "far":
                raise ValueError("far")

    driver = TestDriver(Fails())
    driver.send("a", 35, at=1)
    driver.drain()
    assert driver.values() == [11, 21, 31]
    assert len(driver.values("dead_letters")) == 1
    assert driver.timers("a") == {"beat": NEVER}


class Tangle(KeyedProcess[int, str]):
    """Timers that set others, themselves, earlier and later ones, or delete them, as their time says."""

    order = arrival(commutes=True)
    n = value_state(int, default=0)

    def process(self, event: int, ctx: Context) -> None:
        self._set(event, ctx)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        self.n.value += 1
        ctx.emit(f"{timer.name}{timer.at} {self.n.value}")
        self._set(timer.at * 31 + len(timer.name), ctx)

    def _set(self, seed: int, ctx: Context) -> None:
        rng = random.Random(seed)
        for _ in range(rng.randint(1, 2)):
            name = rng.choice("abcd")
            if rng.random() < 0.1:
                ctx.timers.delete(name)
            else:
                ctx.timers.after(rng.randint(1, 40), name)


def a_tangle_ends(seed: int) -> None:
    """Check a case: the watermark by steps to the latest timer pending at the end, against a drain."""
    rng = random.Random(seed)
    events, at = [], 0
    for _ in range(rng.randint(1, 6)):
        at += rng.randint(0, 60)
        events.append((at, rng.getrandbits(20)))
    drained, stepped = (TestDriver(Tangle(), out_of_orderness_ms=5) for _ in range(2))
    for driver in (drained, stepped):
        for when, event in events:
            driver.send("k", event, at=when)
    end = max(stepped.timers("k").values(), default=0)
    drained.drain()
    while stepped.host.watermark < end:
        stepped.advance_watermark(min(end, stepped.host.watermark + rng.randint(1, 30)))
    assert drained.emissions == stepped.emissions
    left = [name for name, due in stepped.timers("k").items() if due > end]
    assert dict.fromkeys(left, 1) == drained.host.runner.unfired


def test_the_end_is_as_if_the_watermark_went_to_the_latest_pending_timer() -> None:
    for seed in range(50):
        a_tangle_ends(seed)


def test_one_timer_that_goes_from_window_to_window_closes_all_of_them_at_the_end() -> None:
    driver = TestDriver(window(Ev, tumbling(10)).aggregate(n=count()), out_of_orderness_ms=10**6)
    driver.send_batch([("k", at, Ev()) for at in (5, 500, 90_000)])
    assert driver.timers("k") == {"window": 9}
    driver.drain()
    assert [r.window_start_ms for r in driver.values()] == [0, 500, 90_000]
    assert driver.is_empty()
    assert not driver.host.runner.unfired
