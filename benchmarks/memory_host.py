"""`millrace bench memory-host`: events per second and core of a running aggregate, without any engine."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import msgspec

from millrace import Context, KeyedProcess, arrival, days, value_state
from millrace.host.memory import MemoryHost
from millrace.host.rows import Emission
from millrace_apps.benchmarks import oracles
from millrace_apps.benchmarks.inputs import Events, card_name, make_events


@dataclass(frozen=True)
class Sizes:
    """How much is run.

    Attributes:
        events: Events.
        keys: Cards.
        batch: Events per batch.
        repeats: Runs, each with a new host; the figure is their median.
    """

    events: int = 1_000_000
    keys: int = 50_000
    batch: int = 10_000
    repeats: int = 3


QUICK = Sizes(events=50_000, keys=5_000, batch=10_000, repeats=1)


class Spent(msgspec.Struct, gc=False):
    """An event: a number and an amount."""

    id: int
    cents: int


class Sum(msgspec.Struct, gc=False):
    """A card's number of events and their sum, this one included."""

    id: int
    n: int
    total: int


class Kept(msgspec.Struct, array_like=True, gc=False):
    """What is kept of a card."""

    n: int = 0
    total: int = 0


class RunningSum(KeyedProcess[Spent, Sum]):
    """Count and sum per card, forgotten after a day without an event."""

    order = arrival(commutes=True)
    kept = value_state(Kept, default_factory=Kept, ttl=days(1))

    def process(self, event: Spent, ctx: Context) -> None:
        """Add one event."""
        kept = self.kept.value
        kept.n += 1
        kept.total += event.cents
        self.kept.value = kept
        ctx.emit(Sum(event.id, kept.n, kept.total))


def memory_host(sizes: Sizes) -> dict[str, Any]:
    """Measure the in-memory host, on one core.

    Args:
        sizes: How much.

    Returns:
        The figures of back-tests, which take records as they are, and beside them, under ``as_on_spark``,
        those of runs that pack events and records as JSON and give records identities, as Spark's do.
    """
    events = make_events(sizes.events, sizes.keys)
    batches = _batches(events, sizes.batch)
    plain = _measure(events, batches, sizes.repeats, records=True)
    packed = _measure(events, batches, sizes.repeats, records=False)
    return {
        **plain,
        "as_on_spark": packed,
        "correct": plain["correct"] and packed["correct"],
    }


def _measure(
    events: Events, batches: list[list[tuple[str, int, Spent]]], repeats: int, *, records: bool
) -> dict[str, Any]:
    rates, cpu_rates, correct = [], [], True
    for _ in range(repeats):
        host = MemoryHost(RunningSum(), records=records)
        emitted: list[list[Emission]] = []
        start, cpu = time.perf_counter(), time.process_time()
        for batch in batches:
            emitted.append(host.run_batch(batch))
        rates.append(len(events) / (time.perf_counter() - start))
        cpu_rates.append(len(events) / (time.process_time() - cpu))
        correct = correct and _is_correct(events, emitted)
    return {
        "events_per_s": median(rates),
        "events_per_cpu_s": median(cpu_rates),
        "events_per_s_min": min(rates),
        "events_per_s_max": max(rates),
        "correct": correct,
        "keys_in_state": len(host.store.cells),
    }


def _batches(events: Events, size: int) -> list[list[tuple[str, int, Spent]]]:
    rows = [
        (card_name(card), at, Spent(number, cents))
        for number, (card, cents, at) in enumerate(
            zip(events.card.tolist(), events.cents.tolist(), events.at.tolist(), strict=True)
        )
    ]
    return [rows[i : i + size] for i in range(0, len(rows), size)]


def _is_correct(events: Events, emitted: list[list[Emission]]) -> bool:
    """Say whether every event's sum is that of the oracle, whose window is all time."""
    sums = oracles.lookback(events, int(events.at[-1] - events.at[0]) + 1)
    wanted = dict(zip(sums.id.tolist(), zip(sums.n.tolist(), sums.total.tolist(), strict=True), strict=True))
    decode = msgspec.json.Decoder(Sum).decode
    payloads = [e.payload for batch in emitted for e in batch]
    found = [p if isinstance(p, Sum) else decode(p) for p in payloads]
    return len(found) == len(wanted) and {s.id: (s.n, s.total) for s in found} == wanted


def configuration(sizes: Sizes) -> dict[str, Any]:
    """Return what the run hangs on, for the report."""
    return {**asdict(sizes), "ttl_ms": days(1), "exponent": 1.1}
