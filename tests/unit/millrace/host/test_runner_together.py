"""What ``process_batch`` handles together gives what ``process`` gives beside timers, ticks and chains.

Each case is a random history of batches of a random process, run by two runners: one with
``process_batch``, one without. Outputs per key in order, with their identities, and the kept state are
compared after each batch.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, ClassVar

import msgspec
import pytest

from millrace import Context, KeyedProcess, Timer, arrival, side_output, value_state, versioned_state
from millrace.batch import Batch
from millrace.host.groups import encode_key
from millrace.host.memory import MemoryHost
from millrace.host.rows import Row
from millrace.testing import TestDriver
from millrace.time import END_OF_TIME, NO_WATERMARK
from tests.cases import case_count

TTL_MS = 30
CASES = case_count(250)


class Step(msgspec.Struct):
    """What an event does: its kind, and how far from it a timer is set, ms."""

    value: int
    kind: str = ""
    delay: int = 0


class Kept(msgspec.Struct, array_like=True):
    seen: list[int] = []


class Sums(KeyedProcess[Step, list[int]]):
    """Sums of every life that a state may have; events set, move and delete timers, and some fail."""

    order = arrival(in_order_per_key=True)
    processing_time = True
    total = value_state(int, default=0)
    recent = value_state(int, default=0, ttl=TTL_MS)
    refreshed = value_state(int, default=0, ttl=TTL_MS, refresh="read_write")
    listed = value_state(Kept, default_factory=Kept, ttl=TTL_MS)
    per_write = value_state(int, default=0, ttl="per_write")
    ticked = value_state(int, default=0, ttl=TTL_MS, ttl_time="processing_time")
    big = side_output(int)

    def process(self, event: Step, ctx: Context) -> None:
        value, event.value = event.value, -1
        self.total.value += value
        self.recent.value += value
        self.ticked.value += value
        kept = self.listed.value
        kept.seen = [*kept.seen[-3:], value]
        self.listed.value = kept
        ctx.emit([self.total.value, self.recent.value, self.refreshed.value, self.per_write.value,
                  self.ticked.value, int(ctx.on_time), *kept.seen])  # fmt: skip
        if value % 3 == 0:
            ctx.output(self.big, value)
        at = ctx.event_time + event.delay
        match event.kind:
            case "timer":
                ctx.timers.at(at, f"t{value % 2}")
            case "on key time" if type(self).order.in_order_per_key:
                ctx.timers.at(at, f"k{value % 2}", on_key_time=True)
            case "tick":
                ctx.processing_timers.after(event.delay, "tick")
            case "delete":
                ctx.timers.delete("t0")
            case "refresh":
                self.refreshed.value = value
            case "life":
                self.per_write.set(value, ttl=5 + event.delay % 40)
            case "fail":
                raise ValueError("told to")

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        self.total.value += 1000
        self.recent.value += 1000
        ctx.emit([timer.at, self.total.value, self.recent.value, self.refreshed.value])
        if timer.name == "t1" and timer.at % 4 == 0:
            ctx.timers.after(7, "t0")

    def on_late(self, event: Step, ctx: Context) -> None:
        self.emit_late(event, ctx)
        self.total.value -= event.value


class SumsTogether(Sums):
    name = "Sums"
    together = 0

    def process_batch(self, batch: Batch[Step]) -> None:
        kinds = {event.kind for event in batch.events}
        values = batch.column("value", int).tolist()
        for event in batch.events:
            event.value = -1
        listed = batch.read(self.listed)
        kept = [batch.read(state) for state in (self.total, self.recent, self.ticked)]
        refreshed, per_write = batch.read(self.refreshed), batch.read(self.per_write)
        on_time = batch.events and 1
        made: list[list[int]] = []
        for row, key in enumerate(batch.key_of_row.tolist()):
            for sums in kept:
                sums[key] += values[row]
            listed[key].seen = [*listed[key].seen[-3:], values[row]]
            made.append([kept[0][key], kept[1][key], refreshed[key], per_write[key], kept[2][key], on_time,
                         *listed[key].seen])  # fmt: skip
        if kinds - {"", "timer", "delete"}:
            raise NotImplementedError("ticks, failures and lives of one's own are for single events")
        for row, event in enumerate(batch.events):
            if event.kind == "timer":
                at = int(batch.event_times[row]) + event.delay
                batch.timers.at([at], [row], name=f"t{values[row] % 2}")
            elif event.kind == "delete":
                batch.timers.delete([row], name="t0")
        type(self).together += len(batch)
        for state, values_of_keys in zip((self.total, self.recent, self.ticked), kept, strict=True):
            batch.write(state, values_of_keys)
        batch.write(self.listed, listed)
        batch.emit(made)
        rows = [row for row, value in enumerate(values) if value % 3 == 0]
        batch.output(self.big, [values[row] for row in rows], rows)


class SumsByKey(Sums):
    """The total is read and written once; all else, whose lives hang on the event, at each event."""

    name = "Sums"
    together = 0

    def process_key(self, events: Iterator[Step], ctx: Context) -> None:
        for number, event in enumerate(events):
            self.process(event, ctx)
            if number:
                type(self).together += 1


class WaitingSums(Sums):
    name = "Sums"
    order = "event_time"  # type: ignore[assignment]


class WaitingSumsByKey(SumsByKey):
    name = "Sums"
    order = "event_time"  # type: ignore[assignment]


class Loose(Sums):
    name = "Sums"
    order = arrival(commutes=True)


class LooseTogether(SumsTogether):
    name = "Sums"
    order = arrival(commutes=True)


Processes = tuple[type[KeyedProcess[Any, Any]], type[KeyedProcess[Any, Any]]]
PAIRS: dict[str, Processes] = {
    "in order": (Sums, SumsTogether),
    "loose": (Loose, LooseTogether),
    "by key": (Sums, SumsByKey),
    "by key, in event-time order": (WaitingSums, WaitingSumsByKey),
}


class History:
    """Random batches: rows of a source or of another process, what is due ahead of them, ticks."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.chained = rng.random() < 0.5
        self.keys = [encode_key((f"k{n}",)) for n in range(rng.choice((1, 2, 4)))]
        self.special = rng.choice((0.0, 0.05, 0.3))
        self.span = rng.choice((5, 40, 100))
        self.watermark, self.tick, self.now, self.sequence = NO_WATERMARK, NO_WATERMARK, 1_000, 0

    def batch(self) -> tuple[dict[str, list[Row]], dict[str, Any]]:
        """Return the rows of the next batch and the arguments that it is run with."""
        rng, watermark = self.rng, self.watermark
        ahead = NO_WATERMARK
        if rng.random() < 0.7:
            ahead = max(watermark, self.now + rng.randrange(-10, 2 * self.span))
        rows: dict[str, list[Row]] = {}
        special = rng.random() < 0.7
        for _ in range(rng.choice((0, 1, 3, 8))):
            row = self._row(watermark, ahead, self.special if special else 0.0)
            if row is not None:
                rows.setdefault(rng.choice(self.keys), []).append(row)
        tick = rng.random() < 0.3
        if tick:
            self.tick = max(self.tick, self.now) + rng.randrange(1, 40)
        arguments = {"watermark": watermark, "ahead": ahead, "tick": tick, "processing_time": self.tick}
        self.watermark = max(watermark, ahead)
        if rng.random() < 0.2:
            self.watermark = max(self.watermark, self.now)
        self.now += rng.randrange(self.span)
        return rows, arguments

    def _row(self, watermark: int, ahead: int, special: float) -> Row | None:
        rng = self.rng
        at = self.now + rng.randrange(-self.span // 2, self.span)
        kinds = ("timer", "timer", "on key time", "tick", "delete", "refresh", "life", "fail")
        kind = rng.choice(kinds) if rng.random() < special else ""
        event = Step(rng.randrange(1, 50), kind, rng.randrange(-10, 3 * self.span))
        self.sequence += 1
        on_time, is_ahead = None, False
        if self.chained:
            on_time, is_ahead = rng.random() < 0.9, at <= ahead and rng.random() < 0.3
        return Row(at, msgspec.json.encode(event), f"in:0:{self.sequence}", event, None, on_time, is_ahead)


def copied(rows: dict[str, list[Row]]) -> dict[str, list[Row]]:
    """Return rows with events of their own: processes change them."""
    return {
        key: [msgspec.structs.replace(r, event=msgspec.json.decode(r.raw, type=Step)) for r in of_key]
        for key, of_key in rows.items()
    }


def outcome(host: MemoryHost) -> tuple[dict[tuple[str, str], list[Any]], dict[str, Any]]:
    """Return what each output has of each key, in order, and what is kept."""
    found: dict[tuple[str, str], list[Any]] = {}
    for e in host.take():
        payload = msgspec.json.decode(e.payload)
        if e.output == "dead_letters":
            del payload["error_digest"]
        found.setdefault((e.output, e.key), []).append((e.event_id, e.event_time, e.on_time, payload))
    kept = {key: msgspec.msgpack.decode(cell.body) for key, cell in host.store.cells.items()}
    return found, kept


def check(seed: int, pair: Processes) -> None:
    """Hold the two processes of a pair equal over a history."""
    history = History(seed)
    hosts = [MemoryHost(make()) for make in pair]
    for number in range(history.rng.randrange(2, 12)):
        rows, arguments = history.batch()
        if number == 11:
            arguments["ahead"] = END_OF_TIME
        for host in hosts:
            host.runner.run_batch(host.store, copied(rows), **arguments)
            host.store.commit(max(arguments["watermark"], arguments["ahead"]), arguments["processing_time"])
        one_by_one, together = map(outcome, hosts)
        assert together == one_by_one, f"seed {seed}, batch {number}"


@pytest.mark.parametrize("name", PAIRS)
def test_a_batch_ahead_of_its_timers_gives_what_its_events_give_one_by_one(name: str) -> None:
    together: Any = PAIRS[name][1]
    before = together.together
    for seed in range(CASES):
        check(seed, PAIRS[name])
    assert together.together > before + CASES // 2


class Lived(KeyedProcess[int, int]):
    """A running total that lives 30 ms."""

    order = arrival(commutes=True)
    total = value_state(int, default=0, ttl=TTL_MS)

    def process(self, event: int, ctx: Context) -> None:
        self.total.value += event
        ctx.emit(self.total.value)


class LivedTogether(Lived):
    name = "Lived"
    keys: ClassVar[list[list[str]]] = []

    def process_batch(self, batch: Batch[int]) -> None:
        type(self).keys.append(batch.keys)
        totals, made = batch.read(self.total), []
        for event, key in zip(batch.events, batch.key_of_row.tolist(), strict=True):
            totals[key] += event
            made.append(totals[key])
        batch.write(self.total, totals)
        batch.emit(made)


@pytest.mark.parametrize(
    ("times", "alone"),
    [((29, 29), False), ((29, 30), True), ((30, 31), False), ((0, 5, 29), False), ((31, 45, 61), True)],
)
def test_a_key_whose_value_expires_between_its_rows_is_not_handled_together(
    times: tuple[int, ...], alone: bool
) -> None:
    """What is written at 0 lives until 30; each row of the batch writes it anew.

    a  w.........................R|R      29, 30: the first reads it, the second does not
    """
    found = []
    for process in (Lived(), LivedTogether()):
        driver = TestDriver(process, out_of_orderness_ms=1_000)
        driver.send("a", 1, at=0)
        LivedTogether.keys.clear()
        driver.send_batch([("a", at, 1) for at in times] + [("b", 500, 1), ("b", 501, 1)])
        found.append((sorted(driver.values()), driver.state("a"), driver.state("b")))
    assert found[0] == found[1]
    assert LivedTogether.keys == [["b"] if alone else ["a", "b"]]


class Timed(Lived):
    """As its base, and a timer 100 ms after each event of one."""

    def process(self, event: int, ctx: Context) -> None:
        super().process(event, ctx)
        if event == 1:
            ctx.timers.after(100, "end")

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        ctx.emit(-1)


class TimedTogether(LivedTogether, Timed):
    name = "Timed"

    def process_batch(self, batch: Batch[int]) -> None:
        if 1 in batch.events:
            raise NotImplementedError("it sets a timer")
        super().process_batch(batch)


def test_only_keys_with_a_timer_that_is_due_are_handled_one_by_one() -> None:
    """Timers stand at 100 (a) and 200 (b); the batch with events at 101 and 102 goes from 90 to 110."""
    for make in (Timed, TimedTogether):
        host = MemoryHost(make())
        host.run_batch([("a", 0, 1), ("b", 100, 1)])
        LivedTogether.keys.clear()
        rows = host.rows_of([(key, at, 2) for at in (101, 102) for key in "ab"])
        host.take()
        host.runner.run_batch(host.store, rows, 90, ahead=110)
        by_key: dict[str, list[bytes]] = {}
        for e in host.take():
            by_key.setdefault(e.key, []).append(e.payload)
        assert list(by_key.values()) in (
            [[b"2", b"4", b"-1"], [b"3", b"5"]],
            [[b"3", b"5"], [b"2", b"4", b"-1"]],
        )
    assert LivedTogether.keys == [["b"]]


class Refreshed(Lived):
    """A mark that every read keeps alive."""

    mark = value_state(int, default=0, ttl=TTL_MS, refresh="read_write")

    def process(self, event: int, ctx: Context) -> None:
        if event == 7:
            self.mark.value = 1
        ctx.emit(self.mark.value)


class RefreshedTogether(Refreshed):
    name = "Refreshed"

    def process_batch(self, batch: Batch[int]) -> None:
        if 7 in batch.events:
            raise NotImplementedError("it sets the mark")
        marks = batch.read(self.mark)
        batch.emit([marks[key] for key in batch.key_of_row.tolist()])


@pytest.mark.parametrize("make", [Refreshed, RefreshedTogether])
def test_a_read_of_all_rows_keeps_a_value_alive_from_the_last_of_them(make: Any) -> None:
    driver = TestDriver(make(), out_of_orderness_ms=1_000)
    driver.send("a", 7, at=0)
    driver.send_batch([("a", 10, 0), ("a", 25, 0)])
    driver.send("a", 0, at=54)
    assert driver.values() == [1, 1, 1, 1]


class Appending(KeyedProcess[int, int]):
    """Appends to a list in place, and never assigns it."""

    order = arrival(commutes=True)
    seen = value_state(list[int], default_factory=list, ttl=TTL_MS)

    def process(self, event: int, ctx: Context) -> None:
        self.seen.value.append(event)


class AppendingTogether(Appending):
    name = "Appending"

    def process_batch(self, batch: Batch[int]) -> None:
        seen = batch.read(self.seen)
        for event, key in zip(batch.events, batch.key_of_row.tolist(), strict=True):
            seen[key].append(event)


@pytest.mark.parametrize("make", [Appending, AppendingTogether])
def test_a_value_that_a_batch_changed_in_place_is_swept_when_its_life_ends(make: Any) -> None:
    host = MemoryHost(make())
    host.run_batch([("a", 0, 1), ("a", 1, 2)])
    assert len(host.store.cells) == 1
    host.advance_watermark(10_000_000)
    assert not host.store.cells


def test_an_event_that_a_failing_batch_changed_is_handled_as_it_came() -> None:
    class Spoils(SumsTogether):
        name = "Sums"

        def process_batch(self, batch: Batch[Step]) -> None:
            for event in batch.events:
                event.value = 99
            raise ValueError("half-way")

    driver = TestDriver(Spoils())
    driver.send("a", Step(5), at=1)
    assert driver.values()[0][0] == 5


def test_a_state_that_is_no_value_is_not_read_by_a_batch() -> None:
    class Reads(Lived):
        versions = versioned_state(int, history=TTL_MS)

        def process_batch(self, batch: Batch[int]) -> None:
            batch.read(self.versions)

    driver = TestDriver(Reads())
    driver.send("a", 5, at=1)
    assert driver.values() == [5]
    assert driver.host.runner.fallbacks == 1
