"""`millrace bench state`: bytes of state per entity of an app, as packed for a checkpoint, without Spark."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from itertools import islice
from statistics import mean
from typing import Any, Final

from millrace.host.memory import Event
from millrace_apps.benchmarks.paged import GROUPS, PagedChain
from millrace_apps.benchmarks.state_apps import BENCHES, Growing, entries_of
from millrace_apps.benchmarks.streams import BenchmarkFailed

#: Events of a batch, or half as many as there are entities: a batch writes most pages anew.
_BATCH: Final = 1_000
#: State is flat when the last third of the days has at most so much more than the second.
_FLAT: Final = 1.05

#: The processes, filled → entity → how many are kept, and their bytes.
Measure = Callable[[PagedChain], dict[str, tuple[int, float]]]


@dataclass(frozen=True)
class Sizes:
    """How much is run.

    Attributes:
        app: The app.
        entities: Devices, visitors, drivers or cards.
        days: Days over which the growth of state is followed, where it is; 0: not at all.
        growing: Entities of that run.
    """

    app: str
    entities: int
    days: int = 0
    growing: int = 0


def sizes_of(app: str, entities: int | None, days: int | None, *, quick: bool) -> Sizes:
    """Return how much is run: what is given, else the app's usual, or little for a quick run."""
    bench = BENCHES[app]
    usual = Sizes(app, bench.quick if quick else bench.usual)
    if bench.growing is not None:
        followed, growing = bench.growing.quick if quick else bench.growing.usual
        usual = replace(usual, days=followed, growing=growing)
    return replace(
        usual,
        entities=usual.entities if entities is None else entities,
        days=usual.days if days is None else days,
    )


def state_size(sizes: Sizes) -> dict[str, Any]:
    """Fill an app's processes with its generator's events and weigh what they keep.

    Args:
        sizes: How much.

    Returns:
        Bytes per entity and the targets; per process its entries; the growth where it is followed.
    """
    bench = BENCHES[sizes.app]
    chain = bench.make(sizes.entities)
    began = time.process_time()
    events = fill(chain, bench.events(sizes.entities), max(_BATCH, sizes.entities // 2))
    measured = bench.measure(chain)
    if not all(count for count, _ in measured.values()):
        raise BenchmarkFailed(f"nothing is kept of {', '.join(measured)}: run more")
    bytes_per = {entity: total / count for entity, (count, total) in measured.items()}
    found: dict[str, Any] = {
        "bytes_per": bytes_per,
        "targets": bench.targets,
        "within_targets": all(bytes_per[entity] <= most for entity, most in bench.targets.items()),
        "kept": {entity: count for entity, (count, _) in measured.items()},
        "events": events,
        "processes": {host.runner.process.name: _of_process(host) for host in chain.paged},
        "cpu_us_per_event": (time.process_time() - began) / max(events, 1) * 1e6,
    }
    if sizes.days and bench.growing is not None:
        found["growth"] = growth(bench.growing, bench.measure, sizes.growing, sizes.days)
    return found


def _of_process(host: Any) -> dict[str, Any]:
    """Return what a process keeps; headers and schemas stand beside the entries."""
    kept = entries_of(host)
    return {
        "entries": kept.count,
        "bytes_per_entry": kept.mean,
        "largest_entry_bytes": kept.largest,
        "stored_bytes": host.size,
    }


def fill(chain: PagedChain, events: Iterable[Event], batch: int) -> int:
    """Run events through the processes in batches; return how many there were."""
    total, left = 0, iter(events)
    while part := list(islice(left, batch)):
        chain.run_batch(part)
        total += len(part)
    return total


def growth(growing: Growing, measure: Measure, entities: int, days: int) -> dict[str, Any]:
    """Return bytes per entity at the end of each day of a few, and whether they stay what they are.

    Args:
        growing: What they do.
        measure: How they are weighed.
        entities: How many.
        days: How many days.
    """
    chain = growing.make(entities, days)
    by_day: dict[str, list[float]] = {}
    for day in growing.by_day(entities, days):
        fill(chain, day, growing.batch)
        for entity, (count, total) in measure(chain).items():
            by_day.setdefault(entity, []).append(total / count if count else 0.0)
    judged = {entity: flatness(sizes) for entity, sizes in by_day.items()}
    return {
        "days": days,
        "entities": entities,
        "bytes_by_day": by_day,
        "of": judged,
        "flat": all(of["flat"] for of in judged.values()),
    }


def flatness(by_day: list[float]) -> dict[str, Any]:
    """Return how the last third of some days compares with the third before it.

    >>> flatness([5.0, 9.0, 10.0, 10.0, 10.0, 10.0])
    {'bytes': 10.0, 'last_third_over_second': 1.0, 'flat': True}
    """
    third = len(by_day) // 3
    if not third:
        raise BenchmarkFailed("growth is judged by three days or more")
    ratio = mean(by_day[-third:]) / mean(by_day[-2 * third : -third])
    return {
        "bytes": round(mean(by_day[-third:]), 1),
        "last_third_over_second": round(ratio, 4),
        "flat": ratio <= _FLAT,
    }


def configuration(sizes: Sizes) -> dict[str, Any]:
    """Return what the run hangs on, for the report."""
    return {**asdict(sizes), "key_groups": GROUPS, "shape": BENCHES[sizes.app].shape}
