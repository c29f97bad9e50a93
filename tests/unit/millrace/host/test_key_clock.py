"""Clocks of keys: against a model that is written apart, and against what they are for."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from millrace import Context, KeyedProcess, Timer, arrival, event_time, side_output, value_state
from millrace.host.groups import context_key, encode_key
from millrace.host.memory import MemoryHost
from millrace.host.memory_chain import MemoryChain
from millrace.host.runner import Emission
from millrace.process import Order, ProcessDefinitionError, kept_states
from millrace.state.layout import EntryLayout
from millrace.testing import TestDriver
from millrace.time import END_OF_TIME, NEVER, NO_WATERMARK
from millrace.topology import KeyingError
from millrace_apps.benchmarks.paged import PagedHost
from tests.cases import case_count

CASES = case_count(150)


class Event(msgspec.Struct, frozen=True):
    """What comes: when it happened, and the timers that it sets, as times."""

    at: int
    own: int | None = None
    stream: int | None = None


class Seen(msgspec.Struct, frozen=True):
    """What was called, and the watermark that it saw."""

    what: str
    at: int
    watermark: int


class Recorder(KeyedProcess[Event, Seen]):
    """Tells each callback, and sets the timers that events name."""

    order = event_time(clock="key", patience=50)
    stream_timers = True
    count = value_state(int, default=0, ttl=timedelta(days=9))

    def __init__(self, patience_ms: int = 50) -> None:
        self.order = event_time(clock="key", patience=patience_ms)  # type: ignore[misc]

    def process(self, event: Event, ctx: Context) -> None:
        self._told("event", ctx)
        self._set(event, ctx)

    def on_late(self, event: Event, ctx: Context) -> None:
        self._told("late", ctx)
        self._set(event, ctx)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        assert ctx.event_time >= timer.at
        self._told(timer.domain, ctx)

    def _set(self, event: Event, ctx: Context) -> None:
        if event.own is not None:
            ctx.timers.at(event.own, "own")
        if event.stream is not None:
            ctx.timers.at(event.stream, "stream", clock="stream")

    def _told(self, what: str, ctx: Context) -> None:
        ctx.emit(Seen(what, ctx.event_time, ctx.watermark))

    def last_due(self, latest: int) -> int:
        return latest


class Model:
    """One key, as the rule says it in words; times are plain numbers, `None` where there is none."""

    def __init__(self, patience: int, bound: int) -> None:
        self.patience, self.bound = patience, bound
        self.clock: int | None = None
        self.newest: int | None = None
        self.stream: int | None = None
        self.waiting: list[tuple[int, bytes, Event]] = []
        self.timers: dict[str, tuple[int, int]] = {}
        self.said: list[Seen] = []

    def batch(self, events: list[Event], believed: int | None, to: int | None, reach: int | None) -> None:
        before = self._watermark()
        late = [e for e in events if before is not None and e.at <= before]
        self.waiting += [(e.at, msgspec.json.encode(e), e) for e in events if e not in late]
        self.waiting.sort(key=lambda row: row[:2])
        for event in sorted(late, key=lambda e: (e.at, msgspec.json.encode(e))):
            self._call("late", event.at, before)
            self._set(event, event.at)
            self._run(before, self.stream, before)
        if believed is not None:
            self.newest = believed if self.newest is None else max(self.newest, believed)
            reached = self.newest if reach is None else min(self.newest, reach)
            come = reached - self.bound - 1
            self.clock = come if self.clock is None else max(self.clock, come)
        if to is not None:
            self.stream = to if self.stream is None else max(self.stream, to)
        after = self._watermark()
        self._run(after, self.stream, after)

    def _watermark(self) -> int | None:
        known = [] if self.clock is None else [self.clock]
        if self.stream is not None:
            known.append(self.stream if self.stream >= END_OF_TIME else self.stream - self.patience)
        return max(known, default=None)

    def _run(self, own: int | None, stream: int | None, watermark: int | None) -> None:
        """Do what is due, what is first in time first; at one time events, then timers by name."""
        while True:
            due: list[tuple[int, int, str]] = []
            if self.waiting and own is not None and self.waiting[0][0] <= own:
                due.append((self.waiting[0][0], 0, ""))
            for name, (at, _) in self.timers.items():
                until = own if name == "own" else stream
                if until is not None and at <= until:
                    due.append((at, 1, name))
            if not due:
                return
            at, _, name = min(due)
            if name == "":
                event = self.waiting.pop(0)[2]
                self._call("event", at, watermark)
                self._set(event, at)
            else:
                _, called = self.timers.pop(name)
                self._call("event_time" if name == "own" else "stream_time", called, watermark)

    def _set(self, event: Event, now: int) -> None:
        for name, at in (("own", event.own), ("stream", event.stream)):
            if at is None:
                continue
            behind = max(now - at, 0)
            if name in self.timers and self.timers[name][0] == at:
                behind = min(behind, self.timers[name][1] - at)
            self.timers[name] = (at, at + behind)

    def _call(self, what: str, at: int, watermark: int | None) -> None:
        self.said.append(Seen(what, at, NO_WATERMARK if watermark is None else watermark))


def said_by(emissions: Iterable[Emission]) -> dict[str, list[Seen]]:
    found: dict[str, list[Seen]] = {}
    for e in emissions:
        assert e.output == "main", e
        found.setdefault(context_key(e.key), []).append(msgspec.json.decode(e.payload, type=Seen))
    return found


def world(rng: random.Random) -> list[tuple[list[tuple[str, Event, int | None]], int | None, int | None]]:
    """Return batches: events by key with what each is taken for, the watermark after it, what holds it."""
    batches = []
    stream = rng.choice([None, -500, 0])
    for _ in range(rng.randint(1, 9)):
        rows: list[tuple[str, Event, int | None]] = []
        for _ in range(rng.randint(0, 6)):
            at = rng.randint(-30, 200)
            own = at + rng.randint(-40, 60) if rng.random() < 0.4 else None
            on_stream = at + rng.randint(-40, 60) if rng.random() < 0.4 else None
            believed = None if rng.random() < 0.15 else at - rng.choice([0, 0, 0, 7, 80])
            rows.append((rng.choice("abc"), Event(at, own, on_stream), believed))
        if rng.random() < 0.7:
            stream = rng.randint(-30, 260) if stream is None else stream + rng.randint(0, 90)
        reach = rng.choice([None, None, rng.randint(-20, 220), NO_WATERMARK])
        batches.append((rows, stream, reach))
    if rng.random() < 0.5:
        batches.append(([], END_OF_TIME, None))
    return batches


@pytest.mark.parametrize("host_type", [MemoryHost, PagedHost])
def test_a_key_goes_by_its_clock_as_the_rule_says(host_type: type[MemoryHost]) -> None:
    for seed in range(CASES):
        rng = random.Random(seed)
        patience, bound = rng.choice([0, 1, 20, 90, 1_000]), rng.choice([0, 5, 30])
        host = host_type(Recorder(patience), out_of_orderness_ms=bound)
        models = {key: Model(patience, bound) for key in "abc"}
        emitted: list[Emission] = []
        for rows, to, reach in world(rng):
            newest: dict[str, int] = {}
            for key, _, believed in rows:
                if believed is not None:
                    text = encode_key((key,))
                    newest[text] = max(believed, newest.get(text, believed))
            by_key = host.rows_of([(key, event.at, event) for key, event, _ in rows])
            emitted += host.run_rows(
                by_key,
                to=NO_WATERMARK if to is None else to,
                newest=newest,
                reach=NEVER if reach is None else reach,
            )
            for key, model in models.items():
                own = [event for of, event, _ in rows if of == key]
                believed = [b for of, _, b in rows if of == key and b is not None]
                held = (
                    -(10**15) if reach == NO_WATERMARK else reach
                )  # nothing is known: as far back as can be
                model.batch(own, max(believed, default=None), to, held)
            if host_type is MemoryHost and rng.random() < 0.3:
                packed = host.snapshot()
                host = MemoryHost(Recorder(patience), out_of_orderness_ms=bound)
                host.restore(packed)
        found = said_by(emitted)
        for key, model in models.items():
            wanted = [msgspec.structs.replace(s, watermark=shown(s.watermark)) for s in model.said]
            got = [msgspec.structs.replace(s, watermark=shown(s.watermark)) for s in found.get(key, [])]
            assert got == wanted, f"seed {seed}, key {key}"


def shown(watermark: int) -> int:
    """Return a watermark; far back is far back."""
    return max(watermark, -(10**9))


# -- what it is for ------------------------------------------------------------------------------


class Sums(KeyedProcess[Event, Seen]):
    """The running number of events of a key, in their order."""

    order = event_time(clock="key", patience=10**7)
    seen = value_state(list[int], default_factory=list)

    def process(self, event: Event, ctx: Context) -> None:
        self.seen.value = [*self.seen.value, event.at][-5:]
        ctx.emit(Seen(str(self.seen.value), ctx.event_time, 0))


class ByStream(Sums):
    order = "event_time"


def fleet(seed: int, *, bound: int, delays: dict[str, int]) -> list[tuple[int, str, Event]]:
    """Return what devices send (arrival, key, event): each in order within the bound, with its delay."""
    rng = random.Random(seed)
    sent = []
    for key, delay in delays.items():
        for n in range(40):
            at = n * 100 + rng.randint(0, 60)
            sent.append((at + delay + rng.randint(0, bound), key, Event(at)))
    return sorted(sent, key=lambda s: (s[0], s[1], s[2].at))


def in_batches(sent: list[tuple[int, str, Event]], rng: random.Random) -> list[list[tuple[str, int, Event]]]:
    batches, left = [], [(key, event.at, event) for _, key, event in sent]
    while left:
        n = rng.randint(1, 40)
        batches.append(left[:n])
        left = left[n:]
    return batches


@pytest.mark.parametrize("seed", range(20))
def test_devices_that_are_hours_behind_have_no_late_row_and_the_same_results_at_any_cut(seed: int) -> None:
    bound, rng = 150, random.Random(seed)
    delays = {"prompt": 0, "slow": 50_000, "slower": 3_000_000}
    sent = fleet(seed, bound=bound, delays=delays)
    found = []
    for _ in range(3):
        driver = TestDriver(Sums(), out_of_orderness_ms=bound)
        for batch in in_batches(sent, rng):
            driver.send_batch(batch)
            if rng.random() < 0.2:
                driver.restart()
        driver.drain()
        assert driver.values("late") == []
        assert driver.is_empty() is False  # the lists stay; nothing else does
        assert all(
            driver.host.runner.layout.decode(c.body).clock_ is None for c in driver.host.store.cells.values()
        )
        found.append(
            {key: [e.payload for e in driver.emissions if e.key == f"{len(key)}:{key}"] for key in delays}
        )
    assert found[0] == found[1] == found[2]
    by_stream = TestDriver(ByStream(), out_of_orderness_ms=bound)
    for batch in in_batches(sent, rng):
        by_stream.send_batch(batch)
    assert len(by_stream.values("late")) > 60  # the clock is what makes the difference


def test_one_fast_key_leaves_the_others_alone() -> None:
    right = [(key, at, Event(at)) for at in range(0, 4_000, 50) for key in "abc"]
    fast = [(key, at + 900_000, Event(at + 900_000)) if key == "a" else (key, at, e) for key, at, e in right]
    said = []
    for sent in (right, fast):
        driver = TestDriver(Sums(), out_of_orderness_ms=10)
        for event in sent:
            driver.send_batch([event])
        assert driver.values("late") == []
        said.append([e.payload for e in driver.emissions if e.key != "1:a"])
    assert said[0] == said[1]


def test_the_last_events_of_a_silent_key_wait_for_the_patience_and_its_clock_is_forgotten_then() -> None:
    driver = TestDriver(Recorder(1_000))
    driver.send("a", Event(100), at=100)
    driver.send("b", Event(1_100), at=1_100)
    assert driver.values() == []
    driver.advance_watermark(1_100)
    assert [s.what for s in driver.values()] == ["event"]
    driver.advance_watermark(100_000)  # a sweep comes once a minute at most
    driver.advance_watermark(200_000)
    assert driver.is_empty()


def test_an_entry_that_a_backlog_holds_back_keeps_its_clock() -> None:
    """C is far behind what was seen: gone, the key would be judged by less than it has seen."""
    host = MemoryHost(Recorder(100))
    rows = host.rows_of([("a", 5_000, Event(5_000))])
    host.run_rows(rows, to=10, reach=50)
    kept = host.runner.layout.decode(host.store.cells["1:a"].body)
    assert kept.clock_ == (4_999, (49, 5_000))


def test_a_timer_on_the_streams_clock_does_not_wait_for_a_silent_key() -> None:
    driver = TestDriver(Recorder(100_000))
    driver.send("a", Event(100, own=200, stream=300), at=100)
    driver.send("a", Event(150), at=150)
    driver.advance_watermark(290)
    assert [s.what for s in driver.values()] == ["event"]
    driver.advance_watermark(300)
    assert [(s.what, s.at) for s in driver.values()] == [("event", 100), ("stream_time", 300)]
    assert driver.timers("a") == {"own": 200}
    assert driver.timers("a", "stream_time") == {}
    driver.send("a", Event(170), at=170)  # older than the timer, and not late
    driver.drain()
    assert [(s.what, s.at) for s in driver.values()[2:]] == [
        ("event", 150), ("event", 170), ("event_time", 200),
    ]  # fmt: skip


def test_a_timer_on_the_streams_clock_that_fires_again_has_another_identity() -> None:
    driver = TestDriver(Recorder(100_000))
    driver.send("a", Event(100, stream=300), at=100)
    driver.send("a", Event(101), at=101)
    driver.advance_watermark(400)
    driver.send("a", Event(150, stream=300), at=150)
    driver.drain()
    ids = [e.event_id for e in driver.emissions]
    assert [s.what for s in driver.values()].count("stream_time") == 2
    assert len(set(ids)) == len(ids)


def test_what_fails_is_undone_and_the_clock_of_the_key_stays() -> None:
    class Fails(Recorder):
        def process(self, event: Event, ctx: Context) -> None:
            self.count.value += 1
            if event.at == 50:
                raise ValueError("fifty")
            ctx.emit(Seen("event", self.count.value, 0))

    driver = TestDriver(Fails(1_000))
    driver.send_batch([("a", at, Event(at)) for at in (10, 50, 60, 70)])
    driver.send("a", Event(69), at=69)
    assert [(s.what, s.at) for s in driver.values()] == [("event", 1), ("event", 2), ("late", 69)]
    assert [letter["event_time_ms"] for letter in driver.values("dead_letters")] == [50]


# -- behind it -----------------------------------------------------------------------------------


class Passed(KeyedProcess[Seen, Seen]):
    order = "event_time"
    stream_timers = True
    late_ones = side_output(Seen)

    def process(self, event: Seen, ctx: Context) -> None:
        ctx.emit(event)
        ctx.timers.at(ctx.event_time + 10, "after", clock="stream")

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        ctx.emit(Seen("after", ctx.event_time, ctx.watermark))


class AtOnce(Passed):
    order = arrival(corrects=True)


@pytest.mark.parametrize("seed", range(10))
def test_behind_it_nothing_that_was_on_time_is_late_and_event_time_waits_for_the_patience(seed: int) -> None:
    rng, bound = random.Random(seed), 150
    sent = fleet(seed, bound=bound, delays={"prompt": 0, "slow": 2_000, "slower": 900_000})
    chain = MemoryChain(Sums(), ("what", Passed()), out_of_orderness_ms=bound)
    emitted: list[Emission] = []
    for batch in in_batches(sent, rng):
        emitted += chain.run_batch(batch)
    before = len([e for e in emitted if e.output == "main"])
    emitted += chain.drain()
    outputs = Counter(e.output for e in emitted)
    assert outputs == Counter({"main": 2 * len(sent)})
    assert before < len(sent)
    at_once = MemoryChain(Sums(), ("what", AtOnce()), out_of_orderness_ms=bound)
    emitted = []
    for batch in in_batches(sent, rng):
        emitted += at_once.run_batch(batch)
    assert len([e for e in emitted if e.output == "main" and b"after" not in e.payload]) > len(sent) - 60
    assert all(isinstance(e.on_time, bool) for e in emitted)


# -- what is refused -----------------------------------------------------------------------------


def test_only_what_reads_a_stream_has_clocks_of_its_keys() -> None:
    with pytest.raises(KeyingError, match='Recorder has clock="key", and takes what another'):
        MemoryChain(Sums(), ("what", Recorder()))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"clock": "keys"}, '"stream" or "key", not \'keys\''),
        ({"patience": 5}, 'is for clock="key"'),
        ({"clock": "key", "patience": -1}, "between 0 and 100 years"),
        ({"clock": "key", "patience": timedelta(days=99_999)}, "between 0 and 100 years"),
        ({"clock": "key", "patience": "1 h"}, "a timedelta or milliseconds"),
        ({"clock": "key", "patience": True}, "a timedelta or milliseconds"),
    ],
)
def test_an_order_that_is_none_is_refused(how: dict[str, Any], message: str) -> None:
    with pytest.raises(ProcessDefinitionError, match=message):
        event_time(**how)


def test_orders_say_what_they_are() -> None:
    assert event_time() == Order("event_time", in_order_per_key=True)
    assert event_time(clock="key").patience_ms == 3_600_000
    assert event_time(clock="key", patience=timedelta(minutes=1)).patience_ms == 60_000


class Undeclared(KeyedProcess[Event, Seen]):
    order = "event_time"

    def process(self, event: Event, ctx: Context) -> None:
        ctx.timers.at(event.at, clock="stream" if event.own is None else "other")  # type: ignore[arg-type]


class Mixed(Recorder):
    def process(self, event: Event, ctx: Context) -> None:
        ctx.timers.at(event.at, on_key_time=True, clock="stream")


@pytest.mark.parametrize(
    ("process", "event", "message"),
    [
        (Undeclared(), Event(1), "stream_timers = True"),
        (Undeclared(), Event(1, own=1), 'clock="own" or clock="stream"'),
        (Mixed(), Event(1), "on_key_time timers"),
    ],
)
def test_a_timer_on_a_clock_that_the_process_does_not_have_is_refused(
    process: KeyedProcess[Any, Any], event: Event, message: str
) -> None:
    driver = TestDriver(process)
    with pytest.raises(ProcessDefinitionError, match=message):
        driver.host.run_rows(driver.host.rows_of([("a", 1, event)]), to=END_OF_TIME)


def test_timers_on_the_streams_clock_are_looked_after_like_others() -> None:
    class Handles(KeyedProcess[Event, Seen]):
        order = "event_time"
        stream_timers = True

        def process(self, event: Event, ctx: Context) -> None:
            ctx.timers.after(50, "x", clock="stream")
            ctx.timers.bring_forward(event.at + 20, "x", clock="stream")
            ctx.timers.bring_forward(event.at + 30, "x", clock="stream")
            ctx.timers.at(event.at + 5, "y", clock="stream")
            ctx.timers.delete("y", clock="stream")
            pending = ctx.timers.pending("x", clock="stream")
            ctx.emit(Seen("set", pending or 0, 0))
            assert ctx.timers.pending("x") is None

        def on_timer(self, timer: Timer, ctx: Context) -> None:
            ctx.emit(Seen(timer.domain, timer.at, 0))

    driver = TestDriver(Handles())
    driver.send("a", Event(100), at=100)
    driver.drain()
    assert [(s.what, s.at) for s in driver.values()] == [("set", 120), ("stream_time", 120)]
    assert driver.is_empty()


def test_an_entry_pays_for_clocks_only_where_there_are_some() -> None:
    plain, own = EntryLayout(kept_states(ByStream())), EntryLayout(kept_states(Sums()))
    assert len(own.encode(own.new())) == len(plain.encode(plain.new())) + 1
    assert [s.name for s in kept_states(Recorder())] == ["count", "clock_", "stream_timers_"]


def test_a_process_that_waits_longer_after_a_restart_does_not_go_back() -> None:
    first = MemoryHost(Recorder(50))
    first.run_rows(first.rows_of([("a", 10, Event(10, stream=1_200))]), to=1_000)
    packed = first.snapshot()
    host = MemoryHost(Recorder(500))
    host.restore(packed)
    rows = host.rows_of([("b", at, Event(at)) for at in (950, 951)])
    assert [(seen.what, seen.at) for seen in said_by(host.run_rows(rows, to=1_100))["b"]] == [("late", 950)]
    host.restore(host.snapshot())
    assert host.runner.layout.lag_ms == 500
    assert said_by(host.run_rows({}, to=1_199)) == {}
    (seen,) = said_by(host.run_rows({}, to=1_200))["a"]
    assert (seen.what, seen.at, seen.watermark) == ("stream_time", 1_200, 950)
    (seen,) = said_by(host.run_rows({}, to=1_451))["b"]
    assert (seen.what, seen.at) == ("event", 951)


class SetByBoth(KeyedProcess[Event, int]):
    """An event and a timer on the stream's clock set one and the same timer."""

    order = event_time(clock="key", patience=1_000)
    stream_timers = True

    def process(self, event: Event, ctx: Context) -> None:
        if event.own is not None:
            ctx.timers.at(event.own, "both")
        if event.stream is not None:
            ctx.timers.at(event.stream, "stream", clock="stream")

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        if timer.domain == "stream_time":
            ctx.timers.at(100, "both")
        else:
            ctx.emit(timer.at)


def test_a_timer_that_several_set_is_the_same_whoever_comes_first() -> None:
    def run(cut: bool) -> list[Emission]:
        host = MemoryHost(SetByBoth())
        found = host.run_rows(host.rows_of([("a", 1, Event(1, stream=50)), ("a", 3, Event(3))]), to=0)
        if cut:
            found += host.run_rows({}, to=60)  # "stream" fires before the events are read
        found += host.run_rows(host.rows_of([("a", 5, Event(5, own=100)), ("a", 70, Event(70))]), to=60)
        return found + host.drain()

    first, second = run(cut=False), run(cut=True)
    assert [e.event_id for e in first] == [e.event_id for e in second]
    assert len(first) == 1


def test_no_host_tells_whether_time_was_on_its_way() -> None:
    class Plain(KeyedProcess[Event, int]):
        order = arrival(commutes=True)

        def process(self, event: Event, ctx: Context) -> None:
            ctx.timers.at(event.at + 5)

        def on_timer(self, timer: Timer, ctx: Context) -> None:
            ctx.emit(timer.at)

    host = MemoryHost(Plain())
    (emission,) = host.run_rows(host.rows_of([("a", 1, Event(1))]), to=100)
    assert emission.on_time is True
