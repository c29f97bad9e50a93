"""Control events that hold from an event time on: whatever the cut, an event finds what held at its time."""

from __future__ import annotations

import logging
import os
import random
from typing import Any

import msgspec
import pytest

from millrace import (
    BroadcastContext,
    Context,
    KeyedProcess,
    Timer,
    arrival,
    broadcast_state,
    event_time,
)
from millrace.host.groups import encode_key
from millrace.host.memory import MemoryHost
from millrace.host.runner import Emission
from millrace.testing import TestDriver
from millrace.time import END_OF_TIME, NO_WATERMARK

CASES = int(os.environ.get("MILLRACE_CASES", "150"))


class Limit(msgspec.Struct, frozen=True):
    """A control event; one of 13 fails after it has written."""

    name: str
    to: int


class Event(msgspec.Struct, frozen=True):
    n: int


class Finds(KeyedProcess[Event, list[Any]]):
    """Tells what the limits are at each event, and at a timer ten milliseconds later."""

    order: Any = "event_time"
    control_type = Limit
    limits = broadcast_state(str, int)

    def process(self, event: Event, ctx: Context) -> None:
        ctx.emit(["event", ctx.event_time, sorted(self.limits.items())])
        ctx.timers.after(10)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        ctx.emit(["timer", ctx.event_time, self.limits.view(sorted)])

    def process_broadcast(self, control: Limit, ctx: BroadcastContext) -> None:
        self.limits.put(control.name, control.to)
        if control.to == 13:
            raise ValueError("thirteen")


class ByKey(Finds):
    order = event_time(clock="key", patience=1_000_000)


def wanted(at: int, controls: list[tuple[int, Limit]]) -> list[list[Any]]:
    """Return the limits at a time, by trying all controls in the order of their times."""
    found: dict[str, int] = {}
    for since, control in sorted(controls, key=lambda c: c[0]):
        if since <= at and control.to != 13:
            found[control.name] = control.to
    return [list(item) for item in sorted(found.items())]


def said(emissions: list[Emission]) -> list[Any]:
    return [msgspec.json.decode(e.payload) for e in emissions if e.output == "main"]


@pytest.mark.parametrize("process", [Finds, ByKey])
def test_an_event_finds_what_held_at_its_time_at_any_cut(process: type[Finds]) -> None:
    for seed in range(CASES):
        rng = random.Random(seed)
        bound = rng.choice([0, 20, 100])
        times = rng.sample(range(1_000), 12)
        sent: list[tuple[int, str, int, Any]] = [
            (at + rng.randint(0, bound), rng.choice("ab"), at, Event(at)) for at in times
        ]
        # Each comes before anything is as far as its time; two never have one time.
        controls = [
            (at, Limit(rng.choice("xy"), rng.choice([5, 7, 13]))) for at in rng.sample(range(1_000), 6)
        ]
        sent += [(rng.randint(-500, at), "", at, control) for at, control in controls]
        sent.sort(key=lambda s: s[:3])
        host = MemoryHost(process(), out_of_orderness_ms=bound)
        emitted: list[Emission] = []
        while sent:
            batch, sent = sent[: (n := rng.randint(1, 6))], sent[n:]
            for _, key, at, event in batch:
                if not key:
                    emitted += host.broadcast(event, at=at)
            emitted += host.run_batch([(key, at, event) for _, key, at, event in batch if key])
            if rng.random() < 0.3:
                packed = host.snapshot()
                host = MemoryHost(process(), out_of_orderness_ms=bound)
                host.restore(packed)
        emitted += host.drain()
        assert not [e for e in emitted if e.output == "late"]
        found = said(emitted)
        assert sorted(at for what, at, _ in found if what == "event") == sorted(times)
        for what, at, limits in found:
            assert limits == wanted(at, controls), f"seed {seed}: {what} at {at}"
        failed = [e for e in emitted if e.output == "dead_letters"]
        assert len(failed) == sum(control.to == 13 for _, control in controls)


def test_one_that_comes_behind_the_watermark_holds_from_now_on_and_is_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    driver = TestDriver(Finds(), out_of_orderness_ms=100)
    driver.send("a", Event(0), at=1_000)
    driver.send("a", Event(0), at=1_050)
    with caplog.at_level(logging.WARNING):
        driver.broadcast(Limit("x", 5), at=500)
    driver.drain()
    assert driver.host.runner.control_late == 1
    assert "a control event of 500 is 449 ms behind the watermark" in caplog.text
    assert [limits for what, _, limits in driver.values() if what == "event"] == [[["x", 5]]] * 2


def test_without_a_time_and_in_arrival_order_it_holds_at_once() -> None:
    class Arriving(Finds):
        order = arrival(commutes=True)

    for process, at in ((Arriving(), 5_000), (Finds(), None)):
        driver = TestDriver(process)
        driver.broadcast(Limit("x", 5), at=at)
        driver.send("a", Event(0), at=10)
        driver.drain()
        assert driver.values()[0][2] == [["x", 5]]
        assert driver.host.runner.control_late == 0


def test_what_waits_is_kept_over_a_restart_and_a_broadcast_state_without_it_is_what_it_was() -> None:
    driver = TestDriver(Finds())
    driver.broadcast(Limit("x", 5), at=NO_WATERMARK)
    kept = driver.host._broadcast
    driver.broadcast(Limit("y", 7), at=100)
    driver.restart()
    driver.send_batch([("a", at, Event(0)) for at in (99, 100)])
    driver.advance_watermark(101)
    assert [limits for what, _, limits in driver.values() if what == "event"] == [
        [["x", 5]], [["x", 5], ["y", 7]],
    ]  # fmt: skip
    assert driver.host.runner.broadcast_layout.waiting(driver.host._broadcast) == []
    fresh = TestDriver(Finds())
    fresh.broadcast(Limit("x", 5))
    assert kept == fresh.host._broadcast


def test_one_that_cannot_be_read_any_more_goes_to_the_dead_letters_when_its_time_comes() -> None:
    host = MemoryHost(Finds())
    host.broadcast(Limit("x", 5), at=100)
    packed = host.snapshot()

    class Other(msgspec.Struct):
        wants: int

    class Newer(Finds):
        control_type = Other

    newer = MemoryHost(Newer())
    newer.restore(packed)
    assert newer.advance_watermark(99) == []
    (letter,) = newer.advance_watermark(100)
    assert (letter.output, msgspec.json.decode(letter.payload)["value"]) != ("main", None)
    assert newer.advance_watermark(END_OF_TIME) == []


def test_what_fails_beside_a_version_is_undone_with_the_version_that_held() -> None:
    class Fails(Finds):
        def process(self, event: Event, ctx: Context) -> None:
            super().process(event, ctx)
            if event.n == 50:
                raise ValueError("fifty")

    driver = TestDriver(Fails())
    driver.broadcast(Limit("x", 5), at=20)
    driver.broadcast(Limit("x", 7), at=60)
    driver.send_batch([("a", at, Event(at)) for at in (10, 30, 50, 70)])
    driver.drain()
    assert [(at, limits) for what, at, limits in driver.values() if what == "event"] == [
        (10, []), (30, [["x", 5]]), (70, [["x", 7]]),
    ]  # fmt: skip
    assert encode_key(("a",)) in {e.key for e in driver.emissions}
