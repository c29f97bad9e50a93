"""Random histories with events that cannot be handled give what they would give if those did nothing.

Events fail in many ways: they raise, emit what cannot be encoded, set timers that cannot be, leave state that
cannot be kept. Whatever they did before that is undone, in whichever link and hook it was, on every host.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import pytest

from millrace import (
    Context,
    KeyedProcess,
    Timer,
    arrival,
    list_state,
    map_state,
    reducing_state,
    side_output,
    value_state,
)
from millrace.batch import Batch
from millrace.host.key_times import KeyFields
from millrace.host.memory_chain import MemoryChain
from millrace.state import pages as pages_module
from millrace.time.clock import ClockSettings
from millrace.topology import Input, Topology, read
from tests.cases import case_count
from tests.unit.millrace.host.test_station import Runs

CASES = case_count(64)
LIMIT = 3_000
BOUND = 20


class Move(msgspec.Struct):
    """An event: ``poison`` names how it fails, ``skip``: it does nothing; ``deep``: in the second link."""

    key: str
    other: str
    at: int
    number: int = 0
    timer: int | None = None
    poison: str = ""
    deep: bool = False


class Said(msgspec.Struct):
    number: int
    total: int
    seen: int
    sum: int | None
    what: Any = None


def fail(process: Any, ctx: Context, kind: str) -> None:
    """Fail in one of many ways, most of which show only when the state is packed."""
    if kind == "raise":
        raise ValueError("poison")
    if kind == "number":
        process.total.value += 2**70
    elif kind == "negative":
        process.total.value -= 2**90  # so far that nothing else in the batch brings it back
    elif kind == "type":
        process.seen.put("x", "text")
    elif kind == "surrogate":
        process.words.append("\ud800")
    elif kind == "large":
        process.words.append("x" * LIMIT)
    elif kind == "reduce":
        process.sum.add(2**64)
    elif kind == "output":
        ctx.emit(Said(0, 0, 0, None, what=object()))
    elif kind == "output text":
        ctx.emit(Said(0, 0, 0, None, what="\udfff"))
    elif kind == "side":
        ctx.output(process.side, 2**70)
        ctx.output(process.side, object())
    elif kind == "timer time":
        ctx.timers.at(2**63)
    elif kind == "timer name":
        ctx.timers.at(5, "\ud800")
    elif kind == "timer float":
        ctx.timers.at(1.5)  # type: ignore[arg-type]
    elif kind == "recursion":
        deep: list[Any] = []
        for _ in range(100_000):
            deep = [deep]
        process.anything.value = deep


KINDS = (
    "raise", "number", "negative", "type", "surrogate", "large", "reduce", "output", "output text", "side",
    "timer time", "timer name", "timer float", "recursion",
)  # fmt: skip


class Books(KeyedProcess[Move, Said]):
    name = "Books"
    order = arrival(in_order_per_key=True)
    total = value_state(int, default=0)
    seen = map_state(str, int, ttl=60)
    words = list_state(str)
    sum = reducing_state(int, lambda a, b: a + b)
    anything = value_state(Any)
    side = side_output(int)
    is_deep = False

    def process(self, event: Move, ctx: Context) -> None:
        if event.poison == "skip" and event.deep == self.is_deep:
            return
        event.number += 1  # what a callback does to its event must not show when it is called again
        self.total.value += event.number
        self.seen.put(str(event.number), ctx.event_time)
        self.words.append(str(event.number))
        self.sum.add(event.number)
        if event.timer is not None:
            ctx.timers.after(event.timer, f"t{event.number % 2}")
        ctx.emit(Said(event.number, self.total.value, len(self.seen), self.sum.value))
        if event.poison and event.deep == self.is_deep:
            fail(self, ctx, event.poison)
        ctx.output(self.side, event.number)

    def on_late(self, event: Move, ctx: Context) -> None:
        self.process(event, ctx)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        self.words.append("t")
        ctx.emit(Said(-1, self.total.value, len(self.seen), self.sum.value, timer.name))


class BooksInTime(Books):
    name = "Books"
    order = "event_time"


class BooksTogether(Books):
    """Takes a key's events together: one that fails is found among them."""

    name = "Books"

    def process_key(self, events: Iterator[Move], ctx: Context) -> None:
        for event in events:
            self.process(event, ctx)


class Columns(KeyedProcess[Move, Said]):
    """Takes the events of all keys together."""

    name = "Books"
    order = arrival(commutes=True)
    total = value_state(int, default=0)
    words = value_state(str, default="")
    is_deep = False

    def _step(self, event: Move, total: int) -> int:
        if event.poison == "skip" and event.deep == self.is_deep:
            return total
        if event.poison and event.deep == self.is_deep:
            if event.poison == "raise":
                raise ValueError("poison")
            return 2**70
        return total + event.number

    def process(self, event: Move, ctx: Context) -> None:
        before = self.total.value
        self.total.value = total = self._step(event, before)
        if event.poison != "skip" or event.deep != self.is_deep:
            ctx.emit(Said(event.number, 0, 0, None))
        if total != before:
            self.words.value = "moved"

    def on_late(self, event: Move, ctx: Context) -> None:
        self.process(event, ctx)

    def process_batch(self, batch: Batch[Move]) -> None:
        starts = batch.starts.tolist()
        totals, words = batch.read(self.total), batch.read(self.words)
        for number, (start, end) in enumerate(itertools.pairwise(starts)):
            before = totals[number]
            for event in batch.events[start:end]:
                totals[number] = self._step(event, totals[number])
            if totals[number] != before:
                words[number] = "moved"
        batch.write(self.total, totals)
        batch.write(self.words, words)
        said = [
            (place, Said(event.number, 0, 0, None))
            for place, event in enumerate(batch.events)
            if event.poison != "skip" or event.deep != self.is_deep
        ]
        batch.emit([record for _, record in said], rows=[place for place, _ in said])


class First(KeyedProcess[Move, Move]):
    """Hands on what it is given."""

    name = "First"
    order = arrival(in_order_per_key=True)
    count = value_state(int, default=0)

    def process(self, event: Move, ctx: Context) -> None:
        self.count.value += 1
        ctx.emit(event)

    def on_late(self, event: Move, ctx: Context) -> None:
        self.process(event, ctx)


def deep(process: type[KeyedProcess[Any, Any]]) -> KeyedProcess[Any, Any]:
    class Deep(process):  # type: ignore[misc,valid-type]
        name = "Books"
        order = process.order
        is_deep = True

    return Deep()


def single(process: type[KeyedProcess[Any, Any]]) -> Topology:
    return read(Input("moves", "key", "at")).process(process())


def chained(process: type[KeyedProcess[Any, Any]]) -> Topology:
    return read(Input("moves", "key", "at")).process(First()).key_by("other").process(deep(process))


def history(rng: random.Random, *, is_deep: bool) -> list[list[Move]]:
    """Batches of events, some of which fail."""
    batches, now = [], 0
    for _ in range(rng.randint(1, 5)):
        batch = []
        for _ in range(rng.randint(1, 8)):
            now += rng.randint(0, 12)
            poison = rng.choice(KINDS) if rng.random() < 0.3 else ""
            timer = rng.choice([None, None, -5, 3, 40])
            at = max(0, now - rng.choice([0, 0, 0, 10, 60]))
            key, other = rng.choice("ab"), rng.choice("xy")
            batch.append(Move(key, other, at, rng.randint(0, 5), timer, poison, is_deep))
        batches.append(batch)
    return batches


def harmless(batches: list[list[Move]]) -> list[list[Move]]:
    """The same history, in which what would fail does nothing."""
    return [
        [msgspec.structs.replace(move, poison="skip" if move.poison else "") for move in batch]
        for batch in batches
    ]


Outcome = tuple[Counter[tuple[Any, ...]], Counter[tuple[Any, ...]], Any]


def told(output: str, event_id: str | None, key: str, at: int, payload: bytes) -> tuple[Any, ...]:
    return output, event_id, key, at, payload


def in_memory(topology: Topology, batches: Sequence[Sequence[Move]], seed: int) -> Outcome:
    rng, chain = random.Random(seed), MemoryChain(topology, out_of_orderness_ms=BOUND)
    emissions = []
    for batch in batches:
        emissions += chain.run_batch([(m.key, m.at, msgspec.structs.replace(m)) for m in batch])
        if rng.random() < 0.3:
            chain.restart()
    emissions += chain.drain()  # or what waits would be kept, too
    kept = [sorted((key, bytes(cell.body)) for key, cell in host.store.cells.items()) for host in chain.hosts]
    return split(emissions, kept)


def in_station(topology: Topology, batches: Sequence[Sequence[Move]], seed: int) -> Outcome:
    rng = random.Random(seed)
    fields = KeyFields((("key", str),), ("at", int))
    runs = Runs(topology, fields, ClockSettings(BOUND, incarnation="end"), rng=rng, key_groups=2)
    offset = 0
    # The last one lets all that waits before it be handled.
    for batch in (*batches, [Move("z", "z", 1_000_000)]):
        rows = []
        for move in batch:
            value = msgspec.json.encode(move).decode()
            rows.append({"value": value, "source": f"memory:0:{offset}", "control": False, "time": None})
            offset += 1
        runs.batch(rows, controls=False)
    return split(runs.emissions, None)


def split(emissions: Sequence[Any], kept: Any) -> Outcome:
    """Return what was said, what was put aside (which, and where it was), and what is kept."""
    said: Counter[tuple[Any, ...]] = Counter()
    aside: Counter[tuple[Any, ...]] = Counter()
    for e in emissions:
        if e.output.endswith("dead_letters"):
            letter = msgspec.json.decode(e.payload)
            aside[letter["process"], letter["stage"], letter["reason"], letter["offset"], e.event_id] += 1
        else:
            said[told(e.output, e.event_id, e.key, e.event_time, e.payload)] += 1
    return said, aside, kept


Host = Callable[[Topology, Sequence[Sequence[Move]], int], Outcome]


@pytest.mark.parametrize("host", [in_memory, in_station])
@pytest.mark.parametrize("wired", [single, chained])
@pytest.mark.parametrize("process", [Books, BooksInTime, BooksTogether, Columns])
def test_events_that_fail_leave_no_trace_but_their_dead_letters(
    monkeypatch: pytest.MonkeyPatch, process: Any, wired: Any, host: Host
) -> None:
    monkeypatch.setattr(pages_module, "MAX_ENTRY_BYTES", LIMIT)
    for seed in range(CASES // 16 + 1):
        rng = random.Random(seed)
        batches = history(rng, is_deep=wired is chained)
        found = host(wired(process), batches, seed)
        expected = host(wired(process), harmless(batches), seed)
        assert found[0] == expected[0], seed
        assert found[2] == expected[2], seed
        assert not expected[1], seed
        offsets = [place for place, move in enumerate(itertools.chain.from_iterable(batches)) if move.poison]
        assert {place[:3] for place in found[1]} <= {("Books", "process", "process_error")}, seed
        assert found[1].total() == len(found[1]) == len(offsets), seed
        if wired is single:
            assert sorted(place[3] for place in found[1]) == offsets, seed
        else:
            assert all(place[4] for place in found[1]), seed
