"""Multipliers counted anew from all that was asked and all cars that were free: what checks compare with."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import dropwhile, pairwise, takewhile
from typing import Final, NamedTuple

import h3

from millrace_apps.ridesharing.surge.config import SurgeConfig

_FAR: Final = 1 << 60


class Change(NamedTuple):
    """A cell has another multiplier from a time on, UTC ms."""

    cell: str
    from_ms: int
    multiplier: float


class Asking(NamedTuple):
    """A rider asked for a price in a cell at a time, UTC ms."""

    cell: str
    at_ms: int
    rider_id: str


class Free(NamedTuple):
    """What a cell had at the end of an epoch, UTC ms: free cars, riders who waited; and cars taken in it."""

    cell: str
    end_ms: int
    cars: int
    taken: int = 0
    waiting: int = 0


def recounted(
    asked: Iterable[Asking], free: Iterable[Free], config: SurgeConfig, until_ms: int, cap: float
) -> list[Change]:
    """Return every change of a multiplier up to a time, under one cap.

    Unlike the process, which keeps what the last five minutes need, this sums over everything at the end of
    every epoch, and knows by the list of changes alone how a multiplier has moved.

    Args:
        asked: Who asked for a price, except by a quote that was taken, and for what is booked ahead; of one
            rider what comes within five minutes of what counted does not.
        free: Cars and riders who waited.
        config: How prices follow scarcity.
        until_ms: The last end of an epoch, UTC ms.
        cap: The largest multiplier.
    """
    size, long = config.epoch_ms, config.epochs * config.epoch_ms
    asks, cars, taken, waiting = (defaultdict[str, Counter[int]](Counter) for _ in range(4))
    last: dict[tuple[str, str], int] = {}
    for cell, at, rider in sorted(asked, key=lambda one: one.at_ms):
        who = config.regions.of_zone(cell), rider
        if who not in last or at - last[who] >= long:
            last[who] = at
            asks[cell][at // size * size + size] += 1
    for cell, end, *numbers in free:
        for into, number in zip((cars, taken, waiting), numbers, strict=True):
            into[cell][end] += number
    known = {*asks, *cars, *taken, *waiting}
    near = {
        cell: _near(cell, config)
        for cell in known.union(*(h3.grid_disk(cell, config.rings) for cell in known))
    }
    ends = [end for told in (asks, cars, taken, waiting) for by_end in told.values() for end in by_end]
    changes: dict[str, list[Change]] = {cell: [] for cell in near}
    targets: dict[str, list[float]] = {cell: [1.0] * config.fall_epochs for cell in near}
    crowds: dict[str, dict[int, float]] = {cell: {} for cell in near}
    for end in range(min(ends, default=_FAR), until_ms + 1, size):
        lately = {c: _since(asks[c], end - long, end) for c in known}
        had = {c: (_since(taken[c], end - long, end), cars[c][end]) for c in known}
        for cell in near:
            waits = supply = stock = crowd = 0.0
            for ring, names in enumerate(near[cell]):
                share = config.neighbours**ring
                waits += share * sum(waiting[name][end] for name in names if name in known)
                crowd += share * sum(lately.get(name, 0) for name in names)
                supply += share * sum(had[name][0] for name in names if name in had)
                stock += share * sum(had[name][1] for name in names if name in had)
            targets[cell].append(config.target(crowd + config.queue * waits, supply + config.stock * stock))
            crowds[cell][end] = crowd
            now = _next(changes[cell], targets[cell], crowds[cell], end, config, cap)
            if now is not None:
                changes[cell].append(Change(cell, end, now))
    return sorted(change for found in changes.values() for change in found)


def _near(cell: str, config: SurgeConfig) -> list[set[str]]:
    """Return a cell and its neighbours in its region, ring by ring."""
    region = config.regions.of_zone
    rings = [set(h3.grid_ring(cell, ring)) for ring in range(config.rings + 1)]
    return [{one for one in ring if region(one) == region(cell)} for ring in rings]


def _since(by_end: Counter[int], after: int, until: int) -> int:
    return sum(number for end, number in by_end.items() if after < end <= until)


def _next(
    past: Sequence[Change],
    targets: Sequence[float],
    crowds: Mapping[int, float],
    end_ms: int,
    config: SurgeConfig,
    cap: float,
) -> float | None:
    """Return the multiplier that follows a cell's changes and what was asked for, if it is another one."""
    levels = [1.0, *(change.multiplier for change in past)]
    rises = [after > before for before, after in pairwise(levels)]
    now = levels[-1]
    first = next((n for n in reversed(range(len(rises))) if rises[n] != rises[-1]), -1) + 1
    rests = (end_ms - past[first].from_ms) if past else _FAR
    up = min(min(targets[-config.rise_epochs :]) / (1.0 + config.slack), cap)
    down = min(max(targets[-config.fall_epochs :]), cap)
    rose = [crowds[change.from_ms] for change, up_then in zip(past, rises, strict=True) if up_then]
    run = len(list(takewhile(bool, dropwhile(lambda r: not r, reversed(rises)))))
    there = bool(rose) and max(rose[-run:]) > 0 and crowds[end_ms] > config.gone * max(rose[-run:])
    if up >= now + config.band:
        moved = now if past and not rises[-1] and rests < config.rise_again_ms else min(now + config.step, up)
    elif (down <= now - config.band or down == 1.0) and not there:
        moved = now if past and rises[-1] and rests < config.hold_ms else max(now - config.step, down)
    else:
        return None
    return None if round(moved, 2) == now else round(moved, 2)


def in_force(changes: Iterable[Change]) -> dict[str, list[Change]]:
    """Return the changes of each cell in order of time."""
    found: dict[str, list[Change]] = defaultdict(list)
    for change in sorted(changes, key=lambda one: one.from_ms):
        found[change.cell].append(change)
    return found


def multiplier_at(changes: dict[str, list[Change]], cell: str, at_ms: int) -> float:
    """Return the multiplier of a cell at a time, UTC ms.

    >>> multiplier_at(in_force([Change("a", 10, 1.2), Change("a", 20, 1.4)]), "a", 19)
    1.2
    """
    past = [one.multiplier for one in changes.get(cell, ()) if one.from_ms <= at_ms]
    return past[-1] if past else 1.0
