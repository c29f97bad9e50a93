"""``process_batch`` gives what ``process`` gives, event by event, whatever the batches and failures."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace import Context, KeyedProcess, Timer, arrival, minutes, side_output, value_state
from millrace.batch import Batch, BatchTimers
from millrace.process import ProcessDefinitionError
from millrace.testing import TestDriver
from millrace.testing.properties import UnfitEvents, same_as_process
from tests.cases import case_count

MINUTE = minutes(1)
CASES = case_count(150)


class Reading(msgspec.Struct, frozen=True):
    value: int
    timer: bool = False


class Totals(KeyedProcess[Reading, list[int]]):
    """Running total and largest value; the total lives a minute, the peak as long as it is looked at."""

    order = arrival(commutes=True)
    total = value_state(int, default=0, ttl=MINUTE)
    largest = value_state(int, default=-1)
    peak = value_state(int, default=0, ttl=MINUTE, refresh="read_write")
    high = side_output(int)

    def process(self, event: Reading, ctx: Context) -> None:
        if event.value == 13:
            raise ValueError("thirteen")
        self.total.value += event.value
        self.largest.value = max(self.largest.value, event.value)
        if event.value > self.peak.value:
            self.peak.value = event.value
        ctx.emit([self.total.value, self.largest.value])
        if event.value > 90:
            ctx.output(self.high, event.value)
        if event.timer:
            ctx.timers.after(MINUTE, "end")

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        ctx.emit([self.total.value, -1])


class BatchCall(Totals):
    name = "Totals"
    calls = 0

    def process_batch(self, batch: Batch[Reading]) -> None:
        type(self).calls += 1
        values = batch.column("value", int)
        if (values == 13).any() or any(event.timer for event in batch.events):
            raise ValueError("thirteen, or a timer")
        starts = batch.starts
        totals, largest = np.cumsum(values), np.empty(len(batch), dtype=int)
        totals -= np.repeat(totals[starts[:-1]] - values[starts[:-1]], np.diff(starts))
        totals += np.array(batch.read(self.total))[batch.key_of_row]
        for place, before in enumerate(batch.read(self.largest)):
            rows = slice(starts[place], starts[place + 1])
            largest[rows] = np.maximum(np.maximum.accumulate(values[rows]), before)
        batch.write(self.total, totals[starts[1:] - 1])
        batch.write(self.largest, largest[starts[1:] - 1])
        peaks = [max([peak, *values[starts[k] : starts[k + 1]].tolist()])
                 for k, peak in enumerate(batch.read(self.peak))]  # fmt: skip
        if any(peak > before for peak, before in zip(peaks, batch.read(self.peak), strict=True)):
            batch.write(self.peak, peaks)
        batch.emit([[t, m] for t, m in zip(totals.tolist(), largest.tolist(), strict=True)])
        rows = np.flatnonzero(values > 90).tolist()
        batch.output(self.high, [int(values[r]) for r in rows], rows)


Step = tuple[str, int, Reading]
steps = st.lists(
    st.lists(
        st.tuples(
            st.sampled_from("abc"),
            st.integers(0, 4 * MINUTE),
            st.builds(Reading, st.sampled_from([1, 5, 13, 50, 95]), st.booleans()),
        ),
        max_size=8,
    ),
    max_size=5,
)


def outcome(process: KeyedProcess[Any, Any], batches: list[list[Step]]) -> tuple[Counter[str], Any]:
    driver = TestDriver(process, out_of_orderness_ms=MINUTE)
    for batch in batches:
        driver.send_batch(batch)
    found: Counter[str] = Counter()
    for e in driver.emissions:
        payload = msgspec.json.decode(e.payload)
        if e.output == "dead_letters":
            del payload["error_digest"]
        found[repr((e.output, e.event_id, e.key, e.event_time, e.on_time, payload))] += 1
    return found, {key: (driver.state(key), driver.timers(key)) for key in "abc"}


@given(steps)
@settings(deadline=None, max_examples=150)
def test_a_batch_gives_what_its_events_give_one_by_one(batches: list[list[Step]]) -> None:
    assert outcome(BatchCall(), batches) == outcome(Totals(), batches)


def test_events_without_timers_and_failures_are_handled_together() -> None:
    before = BatchCall.calls
    batch = [(key, at, Reading(at)) for at in range(10) for key in "ab"]
    assert outcome(BatchCall(), [batch]) == outcome(Totals(), [batch])
    assert BatchCall.calls == before + 1


class Move(msgspec.Struct, frozen=True):
    """What to do with a timer: ``when`` is how long after the event."""

    do: str
    when: int
    name: str = ""


class Alarms(KeyedProcess[Move, list[int]]):
    """Sets, brings forward and deletes timers."""

    order = arrival(in_order_per_key=True)
    count = value_state(int, default=0)

    def process(self, event: Move, ctx: Context) -> None:
        self.count.value += 1
        ctx.emit([ctx.event_time, self.count.value])
        if event.do == "delete":
            ctx.timers.delete(event.name)
        elif event.do == "forward":
            ctx.timers.bring_forward(ctx.event_time + event.when, event.name)
        elif event.do == "at":
            ctx.timers.at(ctx.event_time + event.when, event.name)
        elif event.do == "own":
            ctx.timers.at(ctx.event_time + abs(event.when), "own", on_key_time=True)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        self.count.value += 100
        ctx.emit([timer.at, self.count.value, ctx.event_time])


class AlarmsTogether(Alarms):
    name = "Alarms"

    def process_batch(self, batch: Batch[Move]) -> None:
        if any(event.do == "own" for event in batch.events):
            raise NotImplementedError
        starts, counts = batch.starts.tolist(), []
        for place, before in enumerate(batch.read(self.count)):
            counts += [before + n + 1 for n in range(starts[place + 1] - starts[place])]
        times = batch.event_times.tolist()
        batch.emit([[at, count] for at, count in zip(times, counts, strict=True)])
        batch.write(self.count, [counts[end - 1] for end in starts[1:]])
        for row, event in enumerate(batch.events):
            if event.do == "at":
                batch.timers.at([times[row] + event.when], [row], name=event.name)
            elif event.do == "forward":
                batch.timers.bring_forward([times[row] + event.when], [row], name=event.name)
            elif event.do == "delete":
                batch.timers.delete([row], name=event.name)


moves = st.lists(
    st.tuples(
        st.sampled_from("ab"),
        st.integers(0, 2 * MINUTE),
        st.builds(
            Move,
            st.sampled_from(["at", "at", "forward", "forward", "delete", "none", "own"]),
            st.sampled_from([-MINUTE, 0, 1, 50, 1_000, MINUTE, 3 * MINUTE]),
            st.sampled_from("xy"),
        ),
    ),
    min_size=2,
    max_size=14,
)


@given(moves, st.sampled_from([0, 50, MINUTE, 5 * MINUTE]), st.integers(0, 99))
@settings(deadline=None, max_examples=CASES)
def test_timers_of_a_batch_are_those_of_its_events(
    events: list[tuple[str, int, Move]], bound: int, seed: int
) -> None:
    with contextlib.suppress(UnfitEvents):  # of some, none can be handled together
        same_as_process(AlarmsTogether(), events, bound_ms=bound, runs=4, seed=seed)


def test_timers_are_set_without_a_fallback_and_fire() -> None:
    driver = TestDriver(AlarmsTogether(), out_of_orderness_ms=MINUTE)
    driver.send_batch([(key, at, Move("at", 5, "x")) for at in range(4) for key in "ab"])
    assert driver.host.runner.together == 8
    assert driver.host.runner.fallbacks == 0
    driver.drain()
    assert sorted(v for v in driver.values() if len(v) == 3) == [[8, 104, 8], [8, 104, 8]]


def test_a_timer_that_the_batch_itself_passes_fires_at_its_end() -> None:
    driver = TestDriver(AlarmsTogether())
    driver.send_batch([("a", 1, Move("at", 5, "x")), ("b", 50, Move("none", 0))])
    assert [6, 101, 6] in driver.values()
    assert driver.host.runner.together == 2


def test_times_and_rows_that_do_not_fit_are_refused() -> None:
    timers = BatchTimers(3)
    with pytest.raises(ValueError, match="2 times for 3 rows"):
        timers.at([1, 2])


class Listing(KeyedProcess[int, list[int]]):
    """Lists what has come; all together it fails half-way, with the lists changed in place."""

    order = arrival(commutes=True)
    seen = value_state(list[int], default_factory=list)

    def process(self, event: int, ctx: Context) -> None:
        self.seen.value.append(event)
        ctx.emit(list(self.seen.value))

    def process_batch(self, batch: Batch[int]) -> None:
        for seen in batch.read(self.seen):
            seen.append(-1)
        raise ValueError("half-way")


def test_what_a_failing_batch_changed_in_place_is_taken_back() -> None:
    driver = TestDriver(Listing())
    driver.send_batch([("a", 1, 1), ("b", 1, 10)])
    driver.send_batch([("a", 2, 2), ("b", 2, 20)])
    assert sorted(driver.values()) == [[1], [1, 2], [10], [10, 20]]


class Silences(Totals):
    """As its base, in order; its timers are on the key's own time."""

    order = arrival(in_order_per_key=True)

    def process(self, event: Reading, ctx: Context) -> None:
        super().process(event, ctx)
        if event.timer:
            ctx.timers.after(MINUTE, "end", on_key_time=True)


class SilencesTogether(Silences):
    name = "Silences"
    calls = 0
    process_batch = BatchCall.process_batch


def test_a_key_whose_timer_its_own_events_may_fire_is_not_handled_together() -> None:
    """The timer stands at 1:00, the key's next events are at 1:01 and 1:02; the watermark is far behind."""
    first = [("a", 0, Reading(1, timer=True)), ("b", 0, Reading(2))]
    after = [(key, MINUTE + at, Reading(5)) for at in (1_000, 2_000) for key in "ab"]
    found = outcome(SilencesTogether(), [first, after])
    assert found == outcome(Silences(), [first, after])
    assert any("-1]" in record for record in found[0]), "the timer has fired between"
    assert SilencesTogether.calls == 2


class Raised(KeyedProcess[int, int]):
    """The largest number of a key so far, which lives a minute after the event that was it."""

    order = arrival(commutes=True)
    largest = value_state(int, default=0, ttl=MINUTE)
    beaten = side_output(int, stored_as="second_bests")

    def process(self, event: int, ctx: Context) -> None:
        if event > self.largest.value:
            self.largest.value = event
            ctx.emit(event)
        else:
            ctx.output(self.beaten, event)
            ctx.output(self.beaten, -event)


class RaisedTogether(Raised):
    name = "Raised"

    def process_batch(self, batch: Batch[int]) -> None:
        key_of, largest = batch.key_of_row.tolist(), batch.read(self.largest)
        won, lost = [], []
        for row, (key, event) in enumerate(zip(key_of, batch.events, strict=True)):
            if event > largest[key]:
                largest[key] = event
                won.append(row)
            else:
                lost += [row, row]
        batch.write(self.largest, [batch.events[row] for row in won], won)
        batch.emit([batch.events[row] for row in won], won)
        signs = [1, -1] * (len(lost) // 2)
        batch.output(
            self.beaten, [sign * batch.events[row] for sign, row in zip(signs, lost, strict=True)], lost
        )


numbers = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 2 * MINUTE), st.integers(0, 9)), min_size=2, max_size=20
)


@given(numbers, st.sampled_from([0, 50, MINUTE, 5 * MINUTE]), st.integers(0, 99))
@settings(deadline=None, max_examples=CASES)
def test_what_is_written_at_some_rows_is_what_their_events_write(
    events: list[tuple[str, int, int]], bound: int, seed: int
) -> None:
    """Values of some keys only, each at the time of its own row: their lives begin there."""
    with contextlib.suppress(UnfitEvents):
        same_as_process(RaisedTogether(), events, bound_ms=bound, runs=4, seed=seed)


def test_a_life_begins_at_the_row_that_writes_and_not_at_the_last_one() -> None:
    """7 is written at 0:00, the key's last event of the batch is at 0:50: at 1:00 the 7 is forgotten."""
    driver = TestDriver(RaisedTogether(), out_of_orderness_ms=5 * MINUTE)
    driver.send_batch([("k", 0, 7), ("k", 50_000, 1)])
    driver.send_batch([("k", MINUTE - 1, 2), ("k", MINUTE, 3)])
    driver.send_batch([("k", MINUTE, 4)])
    assert (driver.values(), driver.values("beaten")) == ([7, 3, 4], [1, -1, 2, -2])


def test_identities_have_the_name_that_an_output_is_stored_under_also_in_columns() -> None:
    events = [("a", 1, 5), ("a", 2, 3), ("b", 3, 4)]
    together, alone = TestDriver(RaisedTogether()), TestDriver(Raised())
    together.send_batch(events)
    alone.send_batch(events)
    assert together.host.runner.together == 3
    found = [{(e.output, e.event_id) for e in driver.emissions} for driver in (together, alone)]
    assert found[0] == found[1]
    assert len(found[0]) == 4


def test_values_and_rows_that_do_not_fit_are_refused() -> None:
    batch: Batch[int] = Batch(lambda: ["a"], [1, 2], [1, 2], [0, 2], 0, None)
    with pytest.raises(ValueError, match="1 values for 2 rows"):
        batch.write(Raised.largest, [1], [0, 1])


class Wrong(Totals):
    def __init__(self, how: str) -> None:
        self.how = how

    def process_batch(self, batch: Batch[Reading]) -> None:
        if self.how == "few":
            batch.write(self.total, [])
        elif self.how == "rows":
            batch.emit([1], [0, 1])
        elif self.how == "twice":
            batch.emit([[0, 0]] * len(batch))
            batch.emit([[0, 0]] * len(batch))
        else:
            batch._emit("nowhere", [1] * len(batch), None)


def test_the_first_failure_of_process_batch_is_warned_of_and_all_are_counted(caplog) -> None:
    driver = TestDriver(Wrong("few"))
    for at in (1, 2):
        driver.send("a", Reading(2), at=at)

    assert driver.host.runner.fallbacks == 2
    (warning,) = caplog.messages
    assert warning.startswith("Wrong.process_batch fails (")


@pytest.mark.parametrize("how", ["few", "rows", "twice"])
def test_a_batch_that_contradicts_itself_falls_back_to_its_events(how: str) -> None:
    driver = TestDriver(Wrong(how))
    driver.send_batch([("a", 1, Reading(2)), ("b", 1, Reading(3))])
    assert driver.values() == [[2, 2], [3, 3]]


def test_an_output_that_is_not_declared_stops_the_query() -> None:
    with pytest.raises(ProcessDefinitionError, match="nowhere"):
        TestDriver(Wrong("output")).send("a", Reading(1), at=1)


def test_process_batch_is_refused_in_event_time_order() -> None:
    class Waiting(BatchCall):
        order = "event_time"

    with pytest.raises(ProcessDefinitionError, match="arrival order"):
        TestDriver(Waiting())


class Marked(KeyedProcess[int, int]):
    """Says the last mark, which lives a minute; only numbers above 0 are marks."""

    order = arrival(in_order_per_key=True)
    mark = value_state(int, default=0, ttl=MINUTE)

    def process(self, event: int, ctx: Context) -> None:
        if event:
            self.mark.value = event
        ctx.emit(self.mark.value)


class MarkedTogether(Marked):
    name = "Marked"

    def process_batch(self, batch: Batch[int]) -> None:
        marks = batch.read(self.mark)
        if any(batch.events):
            raise NotImplementedError("there are new marks")
        batch.emit([marks[k] for k in batch.key_of_row.tolist()])


@pytest.mark.parametrize("process", [Marked, MarkedTogether])
def test_a_value_that_ends_between_two_events_of_a_batch_is_seen_by_the_first_alone(process: type) -> None:
    driver = TestDriver(process())
    driver.send("k", 7, at=0)
    driver.send_batch([("k", MINUTE - 10, 0), ("k", MINUTE - 1, 0), ("k", MINUTE, 0)])
    assert driver.values() == [7, 7, 7, 0]
