"""A batch that ends at the watermark of its rows does what it and an empty one after it do."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from millrace import Context, KeyedProcess, Timer, arrival, side_output, value_state
from millrace.batch import Batch
from millrace.host.groups import encode_key, key_part
from millrace.host.memory import MemoryHost
from millrace.host.memory_chain import MemoryChain
from millrace.host.rows import IS_AHEAD, Emission, Row
from millrace.time import NO_WATERMARK

BOUND_MS = 20


class Reading(msgspec.Struct):
    machine: str
    value: int


class Sum(msgspec.Struct):
    machine: str
    plant: str
    total: int


class Kept(msgspec.Struct, array_like=True):
    total: int = 0
    seen: list[int] = []


class InOrder(KeyedProcess[Reading, Sum]):
    """Waits for event time; its timers refine, and events of value 13 and some timers fail."""

    name = "InOrder"
    order: Any = "event_time"
    told = side_output(Sum)
    kept = value_state(Kept, ttl=100)

    def process(self, event: Reading, ctx: Context) -> None:
        kept = self._kept()
        kept.total += event.value
        kept.seen.append(ctx.event_time)
        ctx.emit(Sum(event.machine, f"p{event.value % 2}", kept.total))
        if event.value == 13:
            raise ValueError("thirteen")
        ctx.timers.at(ctx.event_time + event.value, f"t{event.value % 3}")
        if event.value % 5 == 0:
            ctx.timers.at(ctx.event_time - 1, "past")

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        kept = self._kept()
        kept.total += 1000
        made = Sum(str(ctx.key), "p0", kept.total)
        ctx.emit(made, on_time=bool(timer.at % 2))
        ctx.output(self.told, made)
        if timer.at % 11 == 0:
            raise ValueError("eleven")

    def on_late(self, event: Reading, ctx: Context) -> None:
        self.emit_late(event, ctx)
        ctx.emit(Sum(event.machine, "p1", -event.value))

    def _kept(self) -> Kept:
        kept = self.kept.value
        if kept is None:
            kept = self.kept.value = Kept()
        return kept


class Arriving(InOrder):
    name = "Arriving"
    order = arrival(corrects=True)


class Count(msgspec.Struct):
    total: int = 0


class Plants(KeyedProcess[Sum, Sum]):
    """Says in which order sums have come, and whether they were late."""

    name = "Plants"
    order: Any = "event_time"
    kept = value_state(Count)
    said = side_output(dict[str, int])

    def process(self, event: Sum, ctx: Context) -> None:
        self._add(event.total, ctx)
        ctx.timers.at(ctx.event_time + abs(event.total) % 7, "soon")

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        self._add(1, ctx)

    def on_late(self, event: Sum, ctx: Context) -> None:
        self._add(-event.total, ctx)

    def _add(self, more: int, ctx: Context) -> None:
        kept = self.kept.value
        if kept is None:
            kept = self.kept.value = Count()
        kept.total = (kept.total * 31 + more) % 1_000_003
        ctx.output(self.said, {"at": ctx.event_time, "so_far": kept.total, "on_time": int(ctx.on_time)})
        ctx.emit(Sum(str(ctx.key), "all", kept.total))


class PlantsArriving(Plants):
    name = "Plants"
    order = arrival(corrects=True)


class Ahead:
    """A chain as the Spark host runs it: each batch ends at the watermark that its rows bring."""

    def __init__(self, *links: tuple[str, KeyedProcess[Any, Any]]) -> None:
        self.hosts = [MemoryHost(process, out_of_orderness_ms=BOUND_MS) for _, process in links]
        self.keys = [key for key, _ in links]
        self.watermark = NO_WATERMARK

    def run_batch(self, events: list[tuple[str, int, Reading]]) -> list[Emission]:
        first = self.hosts[0]
        rows = first.rows_of(events)
        ahead = max(self.watermark, first.newest - BOUND_MS - 1)
        passed: list[Emission] = []
        for place, host in enumerate(self.hosts):
            host.runner.run_batch(host.store, rows, self.watermark, ahead=ahead)
            host.store.commit(ahead)
            emitted, host.runner.emissions = host.runner.emissions, []
            if place + 1 == len(self.hosts):
                break
            rows = {}
            for e in emitted:
                if e.output != "main":
                    passed.append(e._replace(output=f"{host.runner.process.name}.{e.output}"))
                    continue
                following = self.hosts[place + 1]
                event = following.decode(e.payload)
                key = encode_key((key_part(getattr(event, self.keys[place + 1])),))
                on_time, is_ahead = bool(e.on_time & 1), bool(e.on_time & IS_AHEAD)
                row = Row(e.event_time, e.payload, e.event_id, event, None, on_time, is_ahead)
                rows.setdefault(key, []).append(row)
        self.watermark = ahead
        return [e._replace(on_time=bool(e.on_time & 1)) for e in passed + emitted]

    def drain(self) -> list[Emission]:
        processes = [host.runner.process for host in self.hosts]
        chain = MemoryChain(processes[0], *zip(self.keys[1:], processes[1:], strict=True))
        chain.hosts = self.hosts
        return chain.drain()


def stream(seed: int, count: int = 120) -> list[list[tuple[str, int, Reading]]]:
    """Return events with disorder in and beyond the bound, in batches."""
    rng = random.Random(seed)
    at, batches = 1_000, []
    while count > 0:
        batch = []
        for _ in range(rng.choice((1, 1, 3, 10, 30))):
            at += rng.choice((0, 1, 1, 5, 40))
            late = rng.choice((0, 0, 0, 5, 15, 60))
            machine = f"m{rng.randrange(4)}"
            batch.append((machine, at - late, Reading(machine, rng.randrange(20))))
            count -= 1
        batches.append(batch)
    return batches


def by_key(emissions: list[Emission]) -> dict[tuple[str, str], list[Any]]:
    """Return what each output has of each key, in order."""
    found: dict[tuple[str, str], list[Any]] = {}
    for e in emissions:
        found.setdefault((e.output, e.key), []).append(tuple(e))
    return found


CHAINS: dict[str, Callable[[], list[tuple[str, KeyedProcess[Any, Any]]]]] = {
    "waits": lambda: [("machine", InOrder())],
    "arrives": lambda: [("machine", Arriving())],
    "waits, waits": lambda: [("machine", InOrder()), ("plant", Plants())],
    "waits, arrives": lambda: [("machine", InOrder()), ("plant", PlantsArriving())],
    "arrives, waits": lambda: [("machine", Arriving()), ("plant", Plants())],
    "arrives, arrives": lambda: [("machine", Arriving()), ("plant", PlantsArriving())],
}


@pytest.mark.parametrize("name", CHAINS)
def test_a_batch_ends_at_the_watermark_that_it_brings(name: str) -> None:
    for seed in range(15):
        links = CHAINS[name]()
        first, *rest = links
        wanted = MemoryChain(first[1], *rest, out_of_orderness_ms=BOUND_MS)
        found = Ahead(*CHAINS[name]())
        for number, batch in enumerate(stream(seed)):
            expected = by_key(wanted.run_batch(batch))
            assert by_key(found.run_batch(batch)) == expected, f"seed {seed}, batch {number}"
        assert by_key(found.drain()) == by_key(wanted.drain())


class BatchCall(KeyedProcess[Reading, Sum]):
    """Has events handled together, of which the one of value 13 fails; timers are set by single ones."""

    name = "BatchCall"
    order = arrival(commutes=True)
    kept = value_state(int, default=0)

    def process_batch(self, batch: Batch[Reading]) -> None:
        if any(event.value == 13 for event in batch.events):
            raise ValueError("thirteen")
        totals = batch.read(self.kept)
        made = [total + 1 for total in totals]
        batch.write(self.kept, made)

    def process(self, event: Reading, ctx: Context) -> None:
        if event.value == 13:
            raise ValueError("thirteen")
        self.kept.value += 1
        if event.value == 7:
            ctx.timers.at(ctx.event_time + 5, "later")

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        self.kept.value += 1000
        ctx.emit(Sum("", "", self.kept.value))


def test_what_a_timer_did_stays_when_an_event_of_the_same_batch_fails() -> None:
    host = MemoryHost(BatchCall())
    host.run_batch([("m", 100, Reading("m", 13)), ("m", 101, Reading("m", 7))])  # handled one by one
    (key,) = host.store.cells
    host.watermark = 150  # the timer at 106 is due when the next batch begins
    failing = Reading("m", 13)
    emitted = host.run_rows({key: [Row(200, msgspec.json.encode(failing), "x", failing)]})
    assert [e.output for e in emitted] == ["main", "dead_letters"]
    assert host.store.decode(host.store.cells[key].body).kept == 1001
