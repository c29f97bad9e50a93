"""Batches through the runner: atomic callbacks, dead letters, identities, broadcast state, any cut."""

from __future__ import annotations

import random
from collections import Counter
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
    map_state,
    side_output,
    value_state,
)
from millrace.host.memory import LiveStore
from millrace.host.runner import Row, Runner, in_order, make_event_id
from millrace.process import ProcessDefinitionError
from millrace.state.handles import StateAccessError
from millrace.testing import TestDriver
from millrace.time import NO_WATERMARK

MINUTE = 60_000
COMMUTES = arrival(commutes=True)
IN_ORDER = arrival(in_order_per_key=True)


# -- atomic callbacks ------------------------------------------------------------------------------


class Fragile(KeyedProcess[int, list[Any]]):
    """Sums; does all the damage it can and then fails on negative numbers."""

    order = IN_ORDER
    total = value_state(int, default=0)
    items = value_state(list[int], default_factory=list)
    recent = value_state(int, default=0, ttl=5 * MINUTE)
    seen = map_state(str, list[int])
    side = side_output(int)

    def process(self, event: int, ctx: Context) -> None:
        self.total.value += event
        self.items.value.append(event)
        self.recent.value = event
        if "k" not in self.seen:
            self.seen.put("k", [])
        kept = self.seen.get("k")
        assert kept is not None
        kept.append(event)
        ctx.timers.after(MINUTE, "t", on_key_time=True)
        ctx.timers.after(2 * MINUTE, f"n{event}", on_key_time=True)
        ctx.emit([self.total.value, self.items.value, self.recent.value, kept])
        ctx.output(self.side, event)
        if event < 0:
            self.items.value.clear()
            self.seen.clear()
            ctx.timers.delete("t")
            ctx.dead_letter("duplicate", "taken back with the rest")
            raise ValueError(f"no {event}\nplease")

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        self.items.value.append(1_000)
        ctx.emit([timer.name, timer.at, self.total.value, self.items.value])
        if timer.name == "n7":
            self.total.value = 10**6
            ctx.timers.after(5, "never")
            raise RuntimeError("seven")


def records(driver: TestDriver, *outputs: str) -> list[tuple[str, str, Any]]:
    return [
        (e.output, e.key, msgspec.json.decode(e.payload)) for e in driver.emissions if e.output in outputs
    ]


def test_a_callback_that_raises_leaves_no_trace_but_a_dead_letter() -> None:
    failing, without = TestDriver(Fragile()), TestDriver(Fragile())
    failing.send_batch([("a", 1, 1), ("a", 2, -5), ("a", 3, 3)])
    without.send_batch([("a", 1, 1), ("a", 3, 3)])
    assert records(failing, "main", "side") == records(without, "main", "side")
    assert failing.state("a") == without.state("a")
    assert failing.timers("a") == without.timers("a")
    (letter,) = failing.values("dead_letters")
    assert letter["reason"] == "process_error"
    assert letter["stage"] == "process"
    assert letter["process"] == "Fragile"
    assert letter["error"] == "ValueError: no -5 please"
    assert letter["key"] == "1:a"
    assert letter["event_time_ms"] == 2
    assert msgspec.convert(letter["value"], bytes, strict=False) == b"-5"


def test_the_first_event_of_a_key_may_fail() -> None:
    driver = TestDriver(Fragile())
    driver.send("a", -1, at=1)
    assert driver.is_empty()
    assert driver.values() == []
    driver.send("a", 2, at=2)
    assert driver.values() == [[2, [2], 2, [2]]]


def test_an_event_may_fail_on_state_of_an_earlier_batch() -> None:
    driver = TestDriver(Fragile())
    driver.send("a", 1, at=1)
    before = driver.state("a"), driver.timers("a")
    driver.send("a", -1, at=2)
    assert (driver.state("a"), driver.timers("a")) == before


def test_events_that_fail_at_the_same_place_have_the_same_digest() -> None:
    driver = TestDriver(Fragile())
    driver.send_batch([("a", 1, -1), ("b", 2, 1), ("b", 3, -2)])
    digests = {letter["error_digest"] for letter in driver.values("dead_letters")}
    assert len(digests) == 1
    assert digests != {""}


def test_a_timer_that_raises_is_taken_back_and_does_not_fire_again() -> None:
    driver = TestDriver(Fragile())
    driver.send("a", 7, at=0)
    driver.advance_watermark(MINUTE)
    before = driver.state("a")
    driver.advance_watermark(2 * MINUTE)
    assert driver.state("a") == before
    assert driver.timers("a") == {}
    (letter,) = driver.values("dead_letters")
    assert (letter["stage"], letter["error"]) == ("timer", "RuntimeError: seven")
    assert (letter["key"], letter["event_time_ms"]) == ("1:a", 2 * MINUTE)
    assert msgspec.json.decode(msgspec.convert(letter["value"], bytes, strict=False)) == {
        "timer": "n7",
        "at": 2 * MINUTE,
    }


EVENTS = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(-4, 8), st.integers(1, 90_000)), min_size=1, max_size=25
)


@settings(max_examples=120, deadline=None)
@given(EVENTS, st.integers(0, 2**32))
def test_results_are_those_of_the_input_without_the_failing_events(
    steps: list[tuple[str, int, int]], seed: int
) -> None:
    """Many failures in one batch, of events and of timers, with restarts in between."""
    now, events = 0, []
    for key, number, step in steps:
        now += step
        events.append((key, now, number))
    cut = random.Random(seed)
    failing, without = TestDriver(Fragile()), TestDriver(Fragile())
    while events:
        n = cut.randint(1, len(events))
        batch, events = events[:n], events[n:]
        failing.send_batch(batch)
        without.send_batch([e for e in batch if e[2] >= 0])
        # What failed moved the watermark all the same.
        without.advance_watermark(batch[-1][1] - 1)
        if cut.random() < 0.5:
            failing.restart()
        for key in "ab":
            assert failing.state(key) == without.state(key)
            assert failing.timers(key) == without.timers(key)
    assert Counter(map(repr, records(failing, "main", "side"))) == Counter(
        map(repr, records(without, "main", "side"))
    )
    failed = [x for x in failing.values("dead_letters") if x["stage"] == "process"]
    assert len(failed) == sum(number < 0 for _, number, _ in steps)
    assert len(failing.emissions) == len({e.event_id for e in failing.emissions if e.event_id}) + sum(
        e.event_id is None for e in failing.emissions
    )


class Tally(msgspec.Struct):
    n: int


class KeepsTheEvent(KeyedProcess[Tally, int]):
    """Keeps the event itself as state and adds to it in place."""

    order = IN_ORDER
    kept = value_state(Tally)

    def process(self, event: Tally, ctx: Context) -> None:
        if self.kept.value is None:
            self.kept.value = event
        else:
            self.kept.value.n += event.n
        ctx.emit(self.kept.value.n)
        if event.n == 13:
            raise ValueError("13")


def test_state_that_holds_an_event_is_restored_to_what_it_was() -> None:
    driver = TestDriver(KeepsTheEvent())
    driver.send_batch([("a", 1, Tally(1)), ("a", 2, Tally(2)), ("a", 3, Tally(13)), ("a", 4, Tally(4))])
    assert driver.values() == [1, 3, 7]


class ChangesTheEvent(KeyedProcess[Tally, int]):
    order = IN_ORDER

    def process(self, event: Tally, ctx: Context) -> None:
        event.n += 1
        raise ValueError("no")


def test_a_dead_letter_holds_the_event_as_it_came() -> None:
    driver = TestDriver(ChangesTheEvent())
    driver.send("a", Tally(1), at=1)
    (letter,) = driver.values("dead_letters")
    assert msgspec.json.decode(msgspec.convert(letter["value"], bytes, strict=False)) == {"n": 1}


def test_a_mistake_in_the_class_stops_and_does_not_eat_the_stream() -> None:
    class Wrong(KeyedProcess[str, str]):
        order = COMMUTES

        def process(self, event: str, ctx: Context) -> None:
            ctx.timers.at(5, "t", on_key_time=True)

    driver = TestDriver(Wrong())
    with pytest.raises(ProcessDefinitionError):
        driver.send("a", "x", at=1)


def test_a_control_event_for_a_process_without_a_handler_stops() -> None:
    class NoHandler(KeyedProcess[str, str]):
        order = COMMUTES
        limits = broadcast_state(str, int)

        def process(self, event: str, ctx: Context) -> None: ...

    with pytest.raises(ProcessDefinitionError, match="overrides no handler"):
        TestDriver(NoHandler()).broadcast({"x": 1})


# -- state of another type than declared -----------------------------------------------------------


class Mistyped(KeyedProcess[str, str]):
    order = COMMUTES
    n = value_state(int, default=0)
    m = map_state(str, int)

    def process(self, event: str, ctx: Context) -> None:
        wrong: Any = {"float": 1.5, "text": "x", "none": None}.get(event)
        if event == "timer":
            ctx.timers.at(10**9 + 0.5)  # type: ignore[arg-type]
        elif event == "name":
            ctx.timers.at(10**9, 5)  # type: ignore[arg-type]
        elif event == "map":
            self.m.put("a", wrong)
        elif event == "key":
            self.m.put(3, 1)  # type: ignore[arg-type]
        elif event == "object":
            self.n.value = object()  # type: ignore[assignment]
        else:
            self.n.value = wrong


@pytest.mark.parametrize("what", ["float", "text", "none", "map", "key", "object"])
def test_state_of_another_type_than_declared_is_never_kept(what: str) -> None:
    """Kept, it could not be read back, and no fixed version of the process could go on from it."""
    driver = TestDriver(Mistyped())
    driver.send("a", what, at=1)
    (letter,) = driver.values("dead_letters")
    assert (letter["reason"], letter["stage"]) == ("process_error", "process")
    assert letter["error"].startswith("StateTypeError: Mistyped keeps")
    assert driver.is_empty()


@pytest.mark.parametrize("what", ["timer", "name"])
def test_a_timer_of_a_wrong_type_is_refused_where_it_is_set(what: str) -> None:
    driver = TestDriver(Mistyped())
    driver.send("a", what, at=1)
    assert [letter["reason"] for letter in driver.values("dead_letters")] == ["process_error"]
    assert driver.is_empty()


# -- dead letters by hand, identities --------------------------------------------------------------


class Rejects(KeyedProcess[str, str]):
    order = IN_ORDER
    seen = map_state(str, bool)
    side = side_output(str)

    def process(self, event: str, ctx: Context) -> None:
        if event == "timer":
            ctx.timers.after(0)
        elif event in self.seen:
            ctx.dead_letter("duplicate", f"{event} was here")
        else:
            self.seen.put(event, True)
            ctx.emit(event)
            ctx.emit(event)
            ctx.output(self.side, event)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        ctx.dead_letter("duplicate", "a timer is no event")


def row(event: Any, at: int, cause: str | None = None, raw: bytes = b"") -> Row:
    return Row(at, raw, cause, event)


def run(
    process: KeyedProcess[Any, Any], *batches: dict[str, list[Row]], watermark: int = NO_WATERMARK
) -> Any:
    """Run batches, each in a runner of its own, as Spark's tasks do."""
    store, emissions = LiveStore(Runner(process, encode=msgspec.json.encode).layout), []
    for batch in batches:
        runner = Runner(process, encode=msgspec.json.encode)
        runner.controls.load(None)
        runner.run_batch(store, batch, watermark)
        store.commit(watermark)
        emissions += runner.emissions
    return emissions


def test_a_process_may_put_an_event_aside_with_its_original_bytes_and_position() -> None:
    original = b' {"no": "matter what"} '
    emissions = run(
        Rejects(),
        {"1:a": [row("x", 1, "p:0:7", original), row("x", 2, "payments:v2:3:8", original)]},
    )
    (letter,) = [msgspec.json.decode(e.payload) for e in emissions if e.output == "dead_letters"]
    assert letter["reason"] == "duplicate"
    assert letter["error"] == "x was here"
    assert msgspec.convert(letter["value"], bytes, strict=False) == original
    assert (letter["topic"], letter["partition"], letter["offset"]) == ("payments:v2", 3, 8)


def test_a_timer_has_no_event_to_put_aside() -> None:
    driver = TestDriver(Rejects())
    driver.send("a", "timer", at=1)
    with pytest.raises(ProcessDefinitionError, match="a timer has none"):
        driver.advance_watermark(1)


def test_identities_are_the_same_when_a_batch_runs_again_and_differ_otherwise() -> None:
    batch = {"1:a": [row("x", 1, "p:0:1"), row("y", 2, "p:0:2")], "1:b": [row("x", 1, "p:0:3")]}
    first, again = run(Rejects(), batch), run(Rejects(), batch)
    assert first == again
    assert len({e.event_id for e in first}) == len(first) == 9


def test_identities_do_not_depend_on_the_cut() -> None:
    whole = run(Rejects(), {"1:a": [row("x", 1, "p:0:1"), row("y", 2, "p:0:2")]})
    cut = run(Rejects(), {"1:a": [row("x", 1, "p:0:1")]}, {"1:a": [row("y", 2, "p:0:2")]})
    assert [e.event_id for e in whole] == [e.event_id for e in cut]


def test_an_identity_depends_on_process_key_cause_output_and_index() -> None:
    class Other(Rejects):
        pass

    ids = [
        emission.event_id
        for process, key, cause in [
            (Rejects(), "1:a", "p:0:1"),
            (Other(), "1:a", "p:0:1"),
            (Rejects(), "1:b", "p:0:1"),
            (Rejects(), "1:a", "p:1:0"),
        ]
        for emission in run(process, {key: [row("x", 1, cause)]})
    ]
    assert len(ids) == len(set(ids)) == 12


def test_an_identity_depends_on_the_revision() -> None:
    ids = {make_event_id("P", "1:a", "p:0:1", "main", 0, revision) for revision in range(3)}
    assert len(ids) == 3


def test_without_a_source_identity_there_is_none_of_the_outputs() -> None:
    emissions = run(Rejects(), {"1:a": [row("x", 1), row("x", 2)]})
    assert [e.event_id for e in emissions] == [None] * 4


class SetsTimers(KeyedProcess[int, str]):
    order = IN_ORDER

    def process(self, event: int, ctx: Context) -> None:
        ctx.timers.at(event, "t")

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        ctx.emit("fired")
        raise_at = 666
        if timer.at == raise_at:
            raise ValueError("666")


def test_timers_of_one_name_and_time_set_by_different_events_have_different_identities() -> None:
    emissions = run(
        SetsTimers(),
        {"1:a": [row(10, 101, "p:0:1"), row(10, 102, "p:0:2")]},
        {"1:a": [row(10, 103, "p:0:3")]},
        watermark=100,
    )
    assert len({e.event_id for e in emissions}) == len(emissions) == 3
    assert None not in {e.event_id for e in emissions}


def test_a_failed_timers_dead_letter_has_an_identity() -> None:
    batch = {"1:a": [row(666, 1_001, "p:0:1"), row(666, 1_002, "p:0:2")]}
    first, again = run(SetsTimers(), batch, watermark=1_000), run(SetsTimers(), batch, watermark=1_000)
    assert [e.output for e in first] == ["dead_letters"] * 2
    assert [e.event_id for e in first] == [e.event_id for e in again]
    assert len({e.event_id for e in first}) == 2
    assert None not in {e.event_id for e in first}
    letters = [msgspec.json.decode(e.payload) for e in first]
    assert [(x.get("topic"), x.get("offset")) for x in letters] == [(None, None)] * 2


def test_two_dead_letters_of_one_event_have_different_identities() -> None:
    class Twice(KeyedProcess[str, str]):
        order = COMMUTES

        def process(self, event: str, ctx: Context) -> None:
            ctx.dead_letter("duplicate", "once")
            ctx.dead_letter("schema", "twice")

    emissions = run(Twice(), {"1:a": [row("x", 1, "p:0:1")]})
    assert len({e.event_id for e in emissions}) == 2


# -- order -----------------------------------------------------------------------------------------


class Lists(KeyedProcess[str, str]):
    order = COMMUTES

    def process(self, event: str, ctx: Context) -> None:
        ctx.emit(event)


@given(st.permutations([(5, b"b"), (1, b"z"), (5, b"a"), (3, b"m"), (5, b"c")]))
def test_rows_of_a_key_run_by_time_then_bytes_however_they_arrive(arrived: list[tuple[int, bytes]]) -> None:
    emissions = run(Lists(), {"1:a": [row(raw.decode(), at, "p:0:1", raw) for at, raw in arrived]})
    assert [msgspec.json.decode(e.payload) for e in emissions] == ["z", "m", "a", "b", "c"]


@given(st.permutations(["p:0:1", "p:0:2", "p:1:1"]))
def test_equal_rows_run_by_identity(causes: list[str]) -> None:
    emissions = run(Rejects(), {"1:a": [row("x", 1, cause, b"x") for cause in causes]})
    assert emissions == run(Rejects(), {"1:a": [row("x", 1, c, b"x") for c in sorted(causes)]})


# -- broadcast state -------------------------------------------------------------------------------


class Limit(msgspec.Struct):
    name: str
    value: int


class Limited(KeyedProcess[int, list[int]]):
    """Emits the limits that an event exceeds."""

    order = COMMUTES
    control_type = Limit
    limits = broadcast_state(str, int)

    def process(self, event: int, ctx: Context) -> None:
        if event == -1:
            self.limits.put("sneaky", 1)
        assert len(self.limits) == len(list(self.limits.items()))
        ctx.emit(sorted(v for _, v in self.limits.items() if v < event))

    def process_broadcast(self, control: Limit, ctx: BroadcastContext) -> None:
        if control.value == 0:
            self.limits.remove(control.name)
        else:
            self.limits.put(control.name, control.value)
        if control.value == 13:
            self.limits.remove("a")
            raise ValueError("13")


def test_a_control_event_is_visible_to_every_key_from_its_batch_on() -> None:
    driver = TestDriver(Limited())
    driver.send("k", 100, at=1)
    driver.broadcast(Limit("a", 10), Limit("b", 20))
    driver.send("k", 100, at=2)
    driver.restart()
    driver.send("other", 15, at=3)
    driver.broadcast(Limit("a", 0))
    driver.send("k", 100, at=4)
    assert driver.values() == [[], [10, 20], [10], [20]]


def test_broadcast_state_is_read_only_outside_its_handler() -> None:
    driver = TestDriver(Limited())
    driver.broadcast(Limit("a", 10))
    driver.send("k", -1, at=1)
    (letter,) = driver.values("dead_letters")
    assert letter["error"].startswith(StateAccessError.__name__)
    driver.send("k", 100, at=2)
    assert driver.values() == [[10]]


def test_a_control_event_that_fails_is_taken_back_and_the_next_one_counts() -> None:
    driver = TestDriver(Limited())
    driver.broadcast(Limit("a", 10), Limit("x", 13), Limit("b", 20))
    driver.send("k", 100, at=1)
    assert driver.values() == [[10, 20]]
    (letter,) = driver.values("dead_letters")
    assert (letter["stage"], letter["reason"], letter["error"]) == (
        "broadcast",
        "process_error",
        "ValueError: 13",
    )


def test_only_the_group_that_speaks_reports_a_failing_control_event() -> None:
    for report in (True, False):
        runner = Runner(Limited(), encode=msgspec.json.encode)
        runner.controls.take([row(Limit("x", 13), 0, "c:0:1")], None, NO_WATERMARK, report=report)
        assert len(runner.emissions) == int(report)


# -- any cut, any restart --------------------------------------------------------------------------


class Visits(KeyedProcess[str, list[Any]]):
    """Counts per page with a time to live, a chain of timers and an end after silence."""

    order = IN_ORDER
    count = value_state(int, default=0)
    last = value_state(str, default="-", ttl=7 * MINUTE)
    pages = map_state(str, int, ttl=3 * MINUTE)

    def process(self, event: str, ctx: Context) -> None:
        self.count.value += 1
        self.pages.put(event, (self.pages.get(event) or 0) + 1)
        ctx.emit([ctx.event_time, event, self.count.value, self.last.value, list(self.pages.items())])
        self.last.value = event
        ctx.timers.after(10 * MINUTE, "end", on_key_time=True)
        if event == "p":
            ctx.timers.after(MINUTE, "tick", on_key_time=True)
        elif event == "q":
            ctx.timers.delete("tick")

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        ctx.emit([timer.name, timer.at, self.count.value, self.last.value, list(self.pages.items())])
        if timer.name == "end":
            self.count.clear()
            ctx.timers.delete("tick")
        else:
            self.pages.put("t", timer.at)
            ctx.timers.at(timer.at + 2 * MINUTE, "tick", on_key_time=True)


def visits_of(events: list[tuple[int, str]]) -> list[Any]:
    """What ``Visits`` must emit for one key: a loop over one time line, written another way."""
    out: list[Any] = []
    count, last, pages = 0, (-(10**12), "-"), list[tuple[int, str, int]]()  # pages: written at, page, n
    end = tick = None

    def live(now: int) -> list[list[Any]]:
        return [[page, n] for at, page, n in pages if now < at + 3 * MINUTE]

    def wrote(now: int, page: str, n: int) -> None:
        kept = [p for p in pages if now < p[0] + 3 * MINUTE]
        place = next((i for i, p in enumerate(kept) if p[1] == page), len(kept))
        kept[place : place + 1] = [(now, page, n)]
        pages[:] = kept

    for at, event in [*events, (10**15, "")]:
        while (due := min((t for t in (end, tick) if t is not None), default=at)) < at:
            seen = last[1] if due < last[0] + 7 * MINUTE else "-"
            name = "end" if due == end else "tick"
            out.append([name, due, count, seen, live(due)])
            if name == "end":
                count, end, tick = 0, None, None
            else:
                wrote(due, "t", due)
                tick = due + 2 * MINUTE
        if not event:
            return out
        count += 1
        wrote(at, event, dict(live(at)).get(event, 0) + 1)
        out.append([at, event, count, last[1] if at < last[0] + 7 * MINUTE else "-", live(at)])
        last = (at, event)
        end = at + 10 * MINUTE
        if event == "p":
            tick = at + MINUTE
        elif event == "q":
            tick = None
    raise AssertionError("unreachable")


VISITS = st.lists(
    st.tuples(
        st.sampled_from("abc"),
        st.sampled_from(["p", "q", "r", "s"]),
        st.sampled_from([1, 999, MINUTE, MINUTE // 2, 2 * MINUTE, 3 * MINUTE, 10 * MINUTE, 15 * MINUTE]),
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(VISITS, st.integers(0, 2**32), st.sampled_from([0, 5 * MINUTE]))
def test_any_cut_and_any_restart_give_what_one_time_line_gives(
    steps: list[tuple[str, str, int]], seed: int, bound: int
) -> None:
    now, events = 0, []
    for key, page, step in steps:
        now += step
        events.append((key, now, page))
    wanted = {key: visits_of([(at, page) for k, at, page in events if k == key]) for key in "abc"}
    cut = random.Random(seed)
    driver = TestDriver(Visits(), out_of_orderness_ms=bound)
    left = list(events)
    while left:
        n = cut.randint(1, len(left))
        batch, left = left[:n], left[n:]
        cut.shuffle(batch)
        driver.send_batch(batch)
        if cut.random() < 0.5:
            driver.restart()
    driver.advance_watermark(now + 20 * MINUTE)
    got = {
        key: [msgspec.json.decode(e.payload) for e in driver.emissions if e.key == f"1:{key}"]
        for key in "abc"
    }
    assert got == wanted
    ids = [e.event_id for e in driver.emissions]
    assert len(set(ids)) == len(ids)
    driver.advance_watermark(now + 60 * MINUTE)
    assert driver.is_empty(), "state or timers leak"


def test_of_two_equal_events_in_one_batch_the_one_that_came_first_is_taken_first() -> None:
    """As text the offsets are the other way round: 10 before 9."""
    rows = [row("same", 5, cause=f"topic:0:{offset}", raw=b"same") for offset in (10, 9, 100)]
    assert [r.cause for r in in_order(rows)] == ["topic:0:9", "topic:0:10", "topic:0:100"]
