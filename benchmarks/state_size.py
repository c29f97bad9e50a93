"""`millrace bench state`: bytes of state per entity of an app, as packed for a checkpoint, without Spark."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import islice
from statistics import mean
from typing import Any, Final

from benchmarks.paged import GROUPS, PagedChain
from benchmarks.state_apps import BENCHES, entries_of, fleet_events, fleet_profile, machines, measure_devices
from benchmarks.streams import BenchmarkFailed
from millrace.host.memory import Event

_DAY_MS: Final = 86_400_000
#: Events of a batch, or half as many as there are entities: a batch writes most pages anew.
_BATCH: Final = 1_000
#: Each sensor of the devices whose growth is followed has a reading in so many seconds.
_SLOW_S: Final = 1_800
#: Events of a batch of theirs: a batch's length is part of how long what is over is kept.
_SLOW_BATCH: Final = 64
#: State is flat when the last third of the days has at most so much more than the second.
_FLAT: Final = 1.05


@dataclass(frozen=True)
class Sizes:
    """How much is run.

    Attributes:
        app: The app.
        entities: Devices, visitors, drivers or cards.
        days: Days over which the growth of a device's state is followed, iot only; 0: not at all.
        growing: Devices of that run.
    """

    app: str
    entities: int
    days: int = 0
    growing: int = 20


def sizes_of(app: str, entities: int | None, days: int | None, *, quick: bool) -> Sizes:
    """Return how much is run: what is given, else the app's usual, or little for a quick run."""
    bench = BENCHES[app]
    usual = Sizes(app, bench.quick if quick else bench.usual)
    if app == "iot":
        usual = replace(usual, days=3 if quick else 30, growing=4 if quick else 20)
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
        Bytes per entity and the targets; per process its entries; for devices their growth.
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
    if sizes.days:
        found["growth"] = growth(sizes.growing, sizes.days)
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


def growth(devices: int, days: int) -> dict[str, Any]:
    """Return bytes per device at the end of each day of a small fleet, and whether they stay what they are.

    Args:
        devices: How many.
        days: How many days.
    """
    from generators.iot.models import MODELS

    per_tick = sum(model.samples_per_tick for model in MODELS) / len(MODELS)
    profile = replace(
        fleet_profile(devices), event_rate=devices * per_tick / _SLOW_S, acceleration=1.0, events=None
    )
    chain, by_day = machines(profile), []
    for day in _by_day(fleet_events(profile), profile.start_ms, days):
        fill(chain, day, _SLOW_BATCH)
        ((count, total),) = measure_devices(chain).values()
        by_day.append(total / count)
    return {"days": days, "devices": devices, "bytes_per_device_by_day": by_day, **flatness(by_day)}


def flatness(by_day: list[float]) -> dict[str, Any]:
    """Return how the last third of some days compares with the third before it.

    >>> flatness([5.0, 9.0, 10.0, 10.0, 10.0, 10.0])
    {'bytes_per_device': 10.0, 'last_third_over_second': 1.0, 'flat': True}
    """
    third = len(by_day) // 3
    if not third:
        raise BenchmarkFailed("growth is judged by three days or more")
    ratio = mean(by_day[-third:]) / mean(by_day[-2 * third : -third])
    return {
        "bytes_per_device": round(mean(by_day[-third:]), 1),
        "last_third_over_second": round(ratio, 4),
        "flat": ratio <= _FLAT,
    }


def _by_day(events: Iterable[Event], start_ms: int, days: int) -> Iterator[list[Event]]:
    day: list[Event] = []
    end, left = start_ms + _DAY_MS, days
    for event in events:
        while event[1] >= end:
            yield day
            day, end, left = [], end + _DAY_MS, left - 1
            if not left:
                return
        day.append(event)


def configuration(sizes: Sizes) -> dict[str, Any]:
    """Return what the run hangs on, for the report."""
    return {**asdict(sizes), "key_groups": GROUPS, "shape": BENCHES[sizes.app].shape}
