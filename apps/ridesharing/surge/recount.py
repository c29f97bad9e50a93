"""Multipliers counted anew from all that was asked and all cars that were free: what checks compare with."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
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
    """A cell had so many free cars at the end of an epoch, UTC ms."""

    cell: str
    end_ms: int
    cars: int


def recounted(
    asked: Iterable[Asking], free: Iterable[Free], config: SurgeConfig, until_ms: int, cap: float
) -> list[Change]:
    """Return every change of a multiplier up to a time, under one cap.

    Unlike the process, which keeps what the last five minutes need, this sums over everything at the end of
    every epoch, and knows by the list of changes alone how a multiplier has moved.

    Args:
        asked: Who asked for a price, except by a quote that was taken, and for what is booked ahead; of one
            rider what comes within five minutes of what counted does not.
        free: Free cars.
        config: How prices follow scarcity.
        until_ms: The last end of an epoch, UTC ms.
        cap: The largest multiplier.
    """
    size, long = config.epoch_ms, config.epochs * config.epoch_ms
    asks, cars = defaultdict[str, Counter[int]](Counter), defaultdict[str, Counter[int]](Counter)
    last: dict[tuple[str, str], int] = {}
    for cell, at, rider in sorted(asked, key=lambda one: one.at_ms):
        who = config.regions.of_zone(cell), rider
        if who not in last or at - last[who] >= long:
            last[who] = at
            asks[cell][at // size * size + size] += 1
    for cell, end, count in free:
        cars[cell][end] += count
    near = {cell: set(h3.grid_disk(cell, 1)) for cell in {*asks, *cars}}
    ends = [end for told in (*asks.values(), *cars.values()) for end in told]
    cells = sorted(set().union(*near.values())) if near else []
    if not config.regions.is_one:
        region = config.regions.of_zone
        near = {cell: {one for one in around if region(one) == region(cell)} for cell, around in near.items()}
    changes: dict[str, list[Change]] = {cell: [] for cell in cells}
    for end in range(min(ends, default=_FAR), until_ms + 1, size):
        demand, supply = defaultdict[str, float](float), defaultdict[str, float](float)
        for told, into, over in ((asks, demand, 1.0), (cars, supply, float(config.epochs))):
            for cell, by_end in told.items():
                number = sum(n for at, n in by_end.items() if end - long < at <= end) / over
                for other in near[cell]:
                    into[other] += number if other == cell else number * config.neighbours
        for cell in cells:
            now = _next(changes[cell], config.target(demand[cell], supply[cell], cap), end, config)
            if now is not None:
                changes[cell].append(Change(cell, end, now))
    return sorted(change for found in changes.values() for change in found)


def _next(past: Sequence[Change], target: float, end_ms: int, config: SurgeConfig) -> float | None:
    """Return the multiplier that follows a cell's changes, if it is another one."""
    levels = [1.0, *(change.multiplier for change in past)]
    rises = [after > before for before, after in pairwise(levels)]
    now, up = levels[-1], target > levels[-1]
    turns = bool(rises) and rises[-1] != up
    if turns and not up and end_ms - past[-1].from_ms < config.hold_ms:
        return None
    if turns and up:
        first = max((n for n, rose in enumerate(rises) if rose), default=-1) + 1
        if end_ms - past[first].from_ms < config.rise_again_ms:
            return None
    band = config.turn_band if turns and now > 1.0 else config.band
    if abs(target - now) <= band and not (target == 1.0 and now > 1.0):
        return None
    moved = round(max(now - config.step, min(now + config.step, target)), 2)
    return None if moved == now else moved


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
