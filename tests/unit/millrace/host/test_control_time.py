"""Control events that hold from an event time on: whatever the cut, an event finds what held at its time."""

from __future__ import annotations

import logging
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
    value_state,
)
from millrace.host.groups import encode_key
from millrace.host.memory import MemoryHost
from millrace.host.runner import Emission, Row, Runner
from millrace.testing import TestDriver
from millrace.time import END_OF_TIME, NO_WATERMARK
from tests.cases import case_count

CASES = case_count(150)


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
    assert driver.host.runner.controls.late == 1
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
        assert driver.host.runner.controls.late == 0


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
    assert driver.host.runner.controls.layout.waiting(driver.host._broadcast) == []
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


class Change(msgspec.Struct, frozen=True):
    """A control event that works on lists in place; it may fail after that."""

    what: str
    name: str
    by: int
    fails: bool = False


class Histories(KeyedProcess[Event, list[Any]]):
    """Tells what the lists are at each event, and of each control event the watermark that it saw."""

    order = event_time(clock="key", patience=1_000_000)
    control_type = Change
    lists = broadcast_state(str, list[int])
    seen = broadcast_state(int, int)

    def process(self, event: Event, ctx: Context) -> None:
        ctx.emit([ctx.event_time, self.lists.view(dict), sorted(self.seen.items())])

    def process_broadcast(self, control: Change, ctx: BroadcastContext) -> None:
        self.seen.put(control.by, ctx.watermark)
        found = self.lists.get(control.name)
        if control.what == "put" or found is None:
            self.lists.put(control.name, [control.by])
        elif control.what == "append":
            found.append(control.by)
        elif control.what == "remove":
            self.lists.remove(control.name)
        else:
            for _, numbers in self.lists.items():
                numbers.insert(0, control.by)
        if control.fails:
            raise ValueError("as it was told")


def lists_at(at: int, controls: list[tuple[int, Change]]) -> tuple[dict[str, list[int]], list[list[int]]]:
    """Return what the lists are at a time, and which watermarks were seen by then."""
    lists: dict[str, list[int]] = {}
    seen = []
    for since, change in sorted(controls, key=lambda c: c[0]):
        if since > at or change.fails:
            continue
        seen.append([change.by, since - 1])
        if change.what == "put" or change.name not in lists:
            lists[change.name] = [change.by]
        elif change.what == "append":
            lists[change.name] = [*lists[change.name], change.by]
        elif change.what == "remove":
            del lists[change.name]
        else:
            lists = {name: [change.by, *numbers] for name, numbers in lists.items()}
    return lists, sorted(seen)


def test_what_a_change_does_in_place_shows_in_no_version_before_it() -> None:
    whats = ["put", "append", "append", "remove", "all"]
    for seed in range(CASES):
        rng = random.Random(seed)
        controls = [
            (at, Change(rng.choice(whats), rng.choice("xy"), n, rng.random() < 0.2))
            for n, at in enumerate(rng.sample(range(1_000), 10))
        ]
        sent: list[tuple[int, str, int, Any]] = [(rng.randint(-500, at), "", at, c) for at, c in controls]
        sent += [(at, rng.choice("ab"), at, Event(at)) for at in rng.sample(range(1_000), 10)]
        sent.sort(key=lambda s: s[:3])
        host = MemoryHost(Histories(), out_of_orderness_ms=rng.choice([0, 50]))
        emitted: list[Emission] = []
        while sent:
            batch, sent = sent[: (n := rng.randint(1, 8))], sent[n:]
            for _, key, at, event in batch:
                if not key:
                    emitted += host.broadcast(event, at=at)
            emitted += host.run_batch([(key, at, event) for _, key, at, event in batch if key])
            if rng.random() < 0.3:
                packed = host.snapshot()
                host = MemoryHost(Histories(), out_of_orderness_ms=host._bound)
                host.restore(packed)
        emitted += host.drain()
        for at, lists, seen in said(emitted):
            assert (lists, seen) == lists_at(at, controls), f"seed {seed}: at {at}"
        failed = [e for e in emitted if e.output == "dead_letters"]
        assert len(failed) == sum(change.fails for _, change in controls)


def test_versions_are_made_when_they_are_asked_for_and_once_for_all_groups_that_keep_the_same() -> None:
    applied: list[int] = []
    made: list[int] = []

    def summed(entries: list[tuple[str, int]]) -> int:
        made.append(1)
        return sum(value for _, value in entries)

    class Counts(ByKey):
        def process(self, event: Event, ctx: Context) -> None:
            ctx.emit([self.limits.view(summed)])

        def process_broadcast(self, control: Limit, ctx: BroadcastContext) -> None:
            applied.append(control.to)
            super().process_broadcast(control, ctx)

    host = MemoryHost(Counts())
    for n in range(100):
        host.broadcast(Limit(f"l{n}", 1), at=1_000 + n)
    assert applied == []
    for turn in range(3):  # keys at all times, one after the other and again
        host.run_batch([(f"{turn}:{n}", 1_000 + n, Event(n)) for n in range(100)])
        found = host.run_batch([(f"{turn}:{n}", 1_001 + n, Event(n)) for n in range(100)])
        assert [msgspec.json.decode(e.payload) for e in found] == [[n + 1] for n in range(100)]
    assert (len(applied), len(made)) == (100, 100)
    host.broadcast(Limit("late", 1), at=2_000)
    host.broadcast(Limit("between", 1), at=1_050)
    host.run_batch([("new", 2_000, Event(1))])
    host.run_batch([("new", 2_001, Event(1))])
    assert len(applied) == 100 + 51, "those before the one between stand"
    controls = host.runner.controls
    stored = host._broadcast
    assert stored is not None
    for copy in (bytes(bytearray(stored)), bytes(bytearray(stored))):  # as each group reads its own
        controls.load(copy)
        controls.look_at(2_000)
    assert len(applied) == 151
    assert controls.pass_(stored, 1_099, report=True) is not None
    controls.look_at(2_000)
    assert len(applied) == 151, "what has been tried is what is kept"


def test_what_waits_is_applied_outside_of_any_key() -> None:
    class Peeks(Finds):
        n: Any = value_state(int, default=0)

        def process(self, event: Event, ctx: Context) -> None:
            self.n.value += 1
            super().process(event, ctx)

        def process_broadcast(self, control: Limit, ctx: BroadcastContext) -> None:
            self.limits.put("n", self.n.value)

    driver = TestDriver(Peeks())
    driver.broadcast(Limit("x", 5), at=5)
    driver.send_batch([("a", 1, Event(1)), ("a", 7, Event(7))])
    driver.drain()
    assert {tuple(map(tuple, limits)) for _, _, limits in driver.values()} == {()}
    assert [e.output for e in driver.emissions].count("dead_letters") == 1


def test_one_of_the_groups_that_share_a_runner_counts_what_is_late(caplog: pytest.LogCaptureFixture) -> None:
    runner = Runner(Finds(), encode=msgspec.json.encode, decode=msgspec.json.Decoder(Event).decode)
    row = Row(10, msgspec.json.encode(Limit("x", 5)), "c:0:1", None)
    for report in (False, True, False):
        runner.controls.take([row], None, 1_000, report=report)
    assert runner.controls.late == 1


def test_control_events_of_one_time_go_in_the_order_in_which_they_were_sent() -> None:
    driver = TestDriver(Finds())
    for n in range(12):
        driver.broadcast(Limit("x", 100 + n), at=50)
    driver.send("a", Event(1), at=60)
    driver.drain()
    assert driver.values()[0] == ["event", 60, [["x", 111]]]
