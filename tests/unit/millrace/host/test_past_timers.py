"""A timer set in the past sees what its setter saw, whatever was swept, in whatever batches."""

from __future__ import annotations

import itertools
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace import (
    Context,
    KeyedProcess,
    Timer,
    arrival,
    list_state,
    map_state,
    minutes,
    reducing_state,
    value_state,
    versioned_state,
)
from millrace.host.groups import encode_key
from millrace.host.memory_chain import MemoryChain
from millrace.host.runner import Row, Runner
from millrace.inputs import event_decoder
from millrace.state.pages import PagedStore
from millrace.testing import TestDriver
from millrace.time import END_OF_TIME, NO_WATERMARK
from tests.unit.millrace.state.cases import DictBackend

MINUTE = minutes(1)


class Step(msgspec.Struct):
    """Adds ``number``, and sets a timer ``delay`` ms away, or behind."""

    number: int
    delay: int
    name: str


class Watching(KeyedProcess[Step, list[Any]]):
    """Says what it sees of every kind of state in every callback."""

    order = "event_time"
    total = value_state(int, default=0, ttl=2 * MINUTE)
    names = value_state(list[str], default_factory=list, ttl=3 * MINUTE)
    seen = map_state(str, int, ttl=4 * MINUTE)
    recent = list_state(int, ttl=minutes(1.5))
    most = reducing_state(int, max, ttl=minutes(2.5))
    version = versioned_state(int, history=2 * MINUTE)
    read = value_state(int, default=0, ttl=2 * MINUTE, refresh="read_write")

    def process(self, event: Step, ctx: Context) -> None:
        self.add(event.number, event.name)
        self.say(ctx, "event")
        ctx.timers.at(ctx.event_time + event.delay, event.name, on_key_time=True)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        self.say(ctx, f"{timer.name} {timer.at}")
        self.add(100, timer.name)
        if self.total.value % 3 == 0:
            ctx.timers.at(timer.at - 7 * MINUTE, "back", on_key_time=True)

    def add(self, number: int, name: str) -> None:
        if self.total.value < 1_000:
            self.total.value += number
        self.names.value = [*self.names.value, name][-3:]
        self.seen.put(name, number)
        self.recent.append(number)
        self.most.add(number)
        self.version.put(number)
        self.read.value = max(self.read.value, number)

    def say(self, ctx: Context, what: str) -> None:
        if what.startswith("back"):  # or it would set itself anew for ever
            self.total.value = 1
        versions = [(v.value, v.valid_from) for v in self.version.versions()]
        ctx.emit([what, ctx.event_time, self.total.value, self.names.value, list(self.seen.items()),
                  list(self.recent), self.most.value, versions, self.read.value])  # fmt: skip


class WatchingArrival(Watching):
    order = arrival(in_order_per_key=True)
    name = "Watching"


Step_ = tuple[str, int, Step]
events_of = st.lists(
    st.tuples(
        st.sampled_from("ab"),
        st.integers(0, 12 * MINUTE),
        st.builds(
            Step,
            st.integers(0, 5),
            st.one_of(st.integers(-12 * MINUTE, 6 * MINUTE), st.sampled_from([-1, 0, 1])),
            st.sampled_from("xy"),
        ),
    ),
    max_size=9,
)


def run(
    process: KeyedProcess[Any, Any], batches: list[list[Any]], bound: int, label: int, ahead: bool
) -> Any:
    """Run batches over a key group that is opened anew for each; return what every key emitted, in order."""
    backend, watermark, found, newest = DictBackend(), NO_WATERMARK, [], NO_WATERMARK
    for batch in [*batches, None]:
        runner = Runner(process, encode=msgspec.json.encode, decode=event_decoder(process))
        runner.controls.load(None)
        rows: dict[str, list[Row]] = {}
        for key, at, event, cause in batch or ():
            raw = msgspec.json.encode(event)
            rows.setdefault(encode_key((key,)), []).append(Row(at, raw, cause, event))
            newest = max(newest, at)
        reached = END_OF_TIME if batch is None else max(watermark, newest - bound - 1)
        steps = (
            [(rows, watermark, reached)] if ahead else [(rows, watermark, watermark), ({}, reached, reached)]
        )
        for of, now, then in steps:
            store = PagedStore(backend, runner.layout, label=label, page_bytes=300)
            runner.run_batch(store, of, now, ahead=then, passed=watermark)
            store.commit(then)
        watermark = reached
        found += runner.emissions
    return {key: [(e.output, e.event_id, e.event_time, e.payload) for e in found if e.key == key]
            for key in {e.key for e in found}}  # fmt: skip


@pytest.mark.parametrize("process", [Watching, WatchingArrival], ids=["event time", "in order"])
@settings(max_examples=30, deadline=None)
@given(events_of, st.integers(0, 4 * MINUTE), st.integers(0, 63), st.integers(0, 2**32), st.booleans())
def test_what_callbacks_see_hangs_neither_on_cuts_nor_on_sweeps(
    process: Any, events: list[Step_], bound: int, label: int, seed: int, ahead: bool
) -> None:
    rng = random.Random(seed)
    ordered = sorted(events, key=lambda e: (e[1], msgspec.json.encode(e[2])))
    named = [(*event, f"in:0:{n}") for n, event in enumerate(ordered)]
    if process is Watching:  # any order within the bound
        named.sort(key=lambda e: e[1] + rng.randint(0, bound))
    batches: list[list[Any]] = [[]]
    for event in named:
        if rng.random() < 0.5:
            batches.append([])
        batches[-1].append(event)
    whole = run(process(), [sorted(named, key=lambda e: e[1])], bound, 0, False)
    assert run(process(), batches, bound, label, ahead) == whole


class Back(KeyedProcess[str, str]):
    """Sets a timer a minute behind, which says what it sees."""

    order = arrival(in_order_per_key=True)
    last = value_state(str, ttl=1_000)

    def process(self, event: str, ctx: Context) -> None:
        before, self.last.value = self.last.value, event
        ctx.emit(f"{event} after {before}")
        if event == "back":
            ctx.timers.after(-MINUTE, "t")

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        ctx.emit(f"{timer.at} sees {self.last.value} at {ctx.event_time}")


def test_a_timer_set_in_the_past_is_at_the_time_of_what_set_it() -> None:
    driver = TestDriver(Back())
    for at, event in [(5 * MINUTE, "x"), (5 * MINUTE + 500, "back"), (6 * MINUTE, "y")]:
        driver.send("k", event, at=at)
    assert driver.values() == [
        "x after None", "back after x", f"{4 * MINUTE + 500} sees back at {5 * MINUTE + 500}", "y after None",
    ]  # fmt: skip


class Named(msgspec.Struct):
    name: str


class First(KeyedProcess[str, Named]):
    order = arrival(in_order_per_key=True)

    def process(self, event: str, ctx: Context) -> None:
        ctx.emit(Named("all"))
        ctx.timers.after(-5 * MINUTE, "t", on_key_time=True)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        ctx.emit(Named("all"))


class Second(KeyedProcess[Named, int]):
    order = arrival(commutes=True)
    seen = map_state(str, int, ttl=90_000)

    def process(self, event: Named, ctx: Context) -> None:
        ctx.emit(len(self.seen))
        self.seen.put(str(ctx.event_time), 1)


@pytest.mark.parametrize("cuts", [(0, 1, 2, 3, 4), (0, 4), (0, 2, 4)])
def test_what_it_emits_is_of_that_time_in_the_next_link_too(cuts: tuple[int, ...]) -> None:
    """The first link's events are at 0, 1, 2 and 3 min; the second forgets after a minute and a half."""
    chain = MemoryChain(First(), ("name", Second()))
    events = [("k", minute * MINUTE, "x") for minute in range(4)]
    found = []
    for start, end in itertools.pairwise(cuts):
        found += chain.run_batch(events[start:end])
    found += chain.drain()
    assert [e.event_time for e in found] == [m * MINUTE for m in (0, 0, 1, 1, 2, 2, 3, 3)]
    assert [e.payload for e in found] == [b"0", b"1", b"1", b"2", b"1", b"2", b"1", b"2"]


class Earliest(KeyedProcess[int, str]):
    """Every event sets the one timer to the earliest number so far."""

    order = arrival(commutes=True)
    numbers = list_state(int)

    def process(self, event: int, ctx: Context) -> None:
        self.numbers.append(event)
        ctx.timers.at(min(self.numbers), "t")

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        ctx.emit(f"{timer.at} at {ctx.event_time}")


@pytest.mark.parametrize("order", list(itertools.permutations([10, 20, 30])))
def test_a_timer_that_later_events_set_once_more_stays_at_its_time(order: tuple[int, ...]) -> None:
    driver = TestDriver(Earliest(), out_of_orderness_ms=100)
    for at in order:
        driver.send("k", at, at=at)
    driver.drain()
    assert driver.values() == ["10 at 10"]
