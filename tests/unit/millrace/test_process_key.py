"""``process_key`` gives what ``process`` gives, event by event, whatever stands between the events."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace import (
    BroadcastContext,
    Context,
    KeyedProcess,
    Timer,
    arrival,
    broadcast_state,
    list_state,
    map_state,
    minutes,
    side_output,
    value_state,
)
from millrace.process import ProcessDefinitionError
from millrace.testing import TestDriver
from millrace.testing.properties import NotInvariant, UnfitEvents, same_as_process
from tests.cases import case_count

CASES = case_count(150)
MINUTE = minutes(1)


class Reading(msgspec.Struct, frozen=True):
    """What to do, and with which number."""

    value: int
    do: str = ""


class OneByOne(KeyedProcess[Reading, list[int]]):
    """Every kind of state, of timer and of output."""

    name = "Totals"
    order = arrival(in_order_per_key=True)
    total = value_state(int, default=0, ttl=MINUTE)
    count = value_state(int, default=0)
    seen = map_state(str, int, ttl=2 * MINUTE)
    last = list_state(int)
    high = side_output(int)

    def handle(self, event: Reading, ctx: Context, total: int, count: int) -> tuple[int, int]:
        """Do what both do with an event; return total and count after it."""
        if event.do == "fail":
            raise ValueError("told to")
        if event.do == "refuse":
            ctx.dead_letter("duplicate", "told to")
        total, count = total + event.value, count + 1
        ctx.emit([total, count, len(list(self.seen.keys())), ctx.watermark])
        if event.value > 50:
            ctx.output(self.high, event.value)
            ctx.emit([-total])
        if event.do == "map":
            self.seen.put(str(event.value), count)
        if event.do == "list":
            self.last.append(event.value)
        if event.do == "soon":
            ctx.timers.after(1, "soon")
        if event.do == "later":
            ctx.timers.after(MINUTE, "later")
        if event.do == "past":
            ctx.timers.at(ctx.event_time - 3 * MINUTE, "past")
        if event.do == "own":
            ctx.timers.at(ctx.event_time + 20, "own", on_key_time=True)
        if event.do == "delete":
            ctx.timers.delete("later")
        if event.do == "clock":
            ctx.processing_timers.at(1_000, "clock")
        if event.do == "clear":
            self.last.clear()
        return total, count

    def process(self, event: Reading, ctx: Context) -> None:
        total, count = self.handle(event, ctx, self.total.value, self.count.value)
        self.total.value, self.count.value = total, count

    def on_late(self, event: Reading, ctx: Context) -> None:
        ctx.emit([-7, event.value])

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        self.count.value += 100
        ctx.emit([self.total.value, self.count.value, timer.at])


class BatchCall(OneByOne):
    """The same, with what is read and written once."""

    def process_key(self, events: Iterator[Reading], ctx: Context) -> None:
        total, count = self.total.value, self.count.value
        for event in events:
            total, count = self.handle(event, ctx, total, count)
        self.total.value, self.count.value = total, count


class InEventTime(BatchCall):
    """The same in event-time order."""

    order = "event_time"  # type: ignore[assignment]

    def handle(self, event: Reading, ctx: Context, total: int, count: int) -> tuple[int, int]:
        return super().handle(Reading(event.value) if event.do == "own" else event, ctx, total, count)


DOES = [
    "",
    "",
    "",
    "",
    "fail",
    "refuse",
    "map",
    "list",
    "soon",
    "later",
    "past",
    "own",
    "delete",
    "clock",
    "clear",
]
events_of = st.lists(
    st.tuples(
        st.sampled_from("ab"),
        st.one_of(st.integers(0, 200), st.integers(0, 4 * MINUTE)),
        st.builds(Reading, st.sampled_from([1, 5, 60]), st.sampled_from(DOES)),
    ),
    min_size=2,
    max_size=14,
)


@pytest.mark.parametrize("process", [BatchCall, InEventTime])
@given(data=st.data())
@settings(deadline=None, max_examples=CASES)
def test_events_of_a_key_together_give_what_they_give_one_by_one(process: Any, data: st.DataObject) -> None:
    events = data.draw(events_of)
    bound = data.draw(st.sampled_from([0, 50, MINUTE, 3 * MINUTE]))
    with contextlib.suppress(UnfitEvents):  # of some, none can be handled together
        same_as_process(process(), events, bound_ms=bound, runs=4, seed=data.draw(st.integers(0, 99)))


def test_it_takes_the_events_of_a_key_that_are_on_time_and_each_stands_in_its_own_time() -> None:
    times: list[tuple[str, int, str]] = []

    class Looks(KeyedProcess[str, str]):
        order = arrival(commutes=True)

        def process(self, event: str, ctx: Context) -> None:
            times.append(("one", ctx.event_time, event))

        def process_key(self, events: Iterator[str], ctx: Context) -> None:
            times.extend(("of key", ctx.event_time, event) for event in events)

    driver = TestDriver(Looks())
    driver.send_batch([("a", 2, "y"), ("a", 1, "x"), ("b", 3, "z")])
    assert sorted(times) == [("of key", 1, "x"), ("of key", 2, "y"), ("one", 3, "z")]


def test_all_kinds_of_readings_are_handled_together_somewhere() -> None:
    for do in set(DOES) - {"fail", "past", "own"}:
        events = [("a", at, Reading(at, do)) for at in (1, 5, 9)]
        same_as_process(BatchCall(), events, bound_ms=MINUTE)


def test_what_raises_for_one_event_puts_that_one_aside_and_no_other() -> None:
    driver = TestDriver(BatchCall())
    driver.send_batch([("a", at, Reading(at, "fail" if at == 2 else "")) for at in (1, 2, 3)])
    assert [v[0] for v in driver.values()] == [1, 4]
    assert len(driver.values("dead_letters")) == 1


def test_an_event_that_is_not_taken_is_an_error() -> None:
    class Hasty(BatchCall):
        def process_key(self, events: Iterator[Reading], ctx: Context) -> None:
            next(events)

    driver = TestDriver(Hasty())
    with pytest.raises(ProcessDefinitionError, match="returns before its last event"):
        driver.send_batch([("a", 1, Reading(1)), ("a", 2, Reading(2))])


def test_a_timer_that_one_event_sets_fires_before_the_next() -> None:
    driver = TestDriver(BatchCall())
    driver.send_batch([("a", 1, Reading(1, "own")), ("a", 90, Reading(1))])
    assert [v[1] for v in driver.values()] == [1, 101, 102]


def test_control_events_that_come_into_force_between_events_are_seen_by_the_later_one() -> None:
    class Factor(KeyedProcess[int, int]):
        order = "event_time"
        factor = broadcast_state(str, int)
        total = value_state(int, default=0)

        def process_broadcast(self, control: int, ctx: BroadcastContext) -> None:
            self.factor.put("now", control)

        def process(self, event: int, ctx: Context) -> None:
            self.total.value += event * (self.factor.get("now") or 1)
            ctx.emit(self.total.value)

        def process_key(self, events: Iterator[int], ctx: Context) -> None:
            total, factor = self.total.value, None
            for event in events:
                factor = factor or (self.factor.get("now") or 1)
                total += event * factor
                ctx.emit(total)
            self.total.value = total

    driver = TestDriver(Factor())
    driver.broadcast(10, at=5)
    driver.send_batch([("a", 1, 1), ("a", 9, 1)])
    driver.drain()
    assert driver.values() == [1, 11]


def test_the_check_says_what_differs_and_refuses_events_that_show_nothing() -> None:
    class Wrong(BatchCall):
        def process_key(self, events: Iterator[Reading], ctx: Context) -> None:
            total, count = self.total.value, self.count.value
            for event in events:
                ctx.emit([total + event.value])
            self.total.value, self.count.value = total, count

    events = [("a", at, Reading(at)) for at in (1, 2, 3)]
    with pytest.raises(NotInvariant, match="process_key and process differ"):
        same_as_process(Wrong(), events)
    with pytest.raises(UnfitEvents, match="handled none"):
        same_as_process(Wrong(), [("a", 1, Reading(1)), ("b", 2, Reading(1))])
    with pytest.raises(UnfitEvents, match="neither"):
        same_as_process(OneByOne(), events)
