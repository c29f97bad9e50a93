"""Ways to bring the same events: orders, cuts, restarts, repeats, and the simpler ones of each."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from millrace.host.memory import Event
from millrace.process import Key

__all__ = ["Delivery", "Event", "cut", "in_some_order", "simpler"]


@dataclass(frozen=True)
class Delivery:
    """A way to bring events: batches of their places, and after which of them is a restart."""

    batches: tuple[tuple[int, ...], ...]
    restarts: frozenset[int] = frozenset()

    def describe(self, events: Sequence[Event]) -> list[str]:
        """Return the delivery as lines of text."""
        lines = []
        for number, batch in enumerate(self.batches):
            inside = "; ".join(
                f"{events[place][0]!r} at {events[place][1]}: {events[place][2]!r}" for place in batch
            )
            lines.append(f"  batch {number}: {inside}")
            if number in self.restarts:
                lines.append("  restart")
        return lines


def simpler(delivery: Delivery) -> Iterable[Delivery]:
    """Yield deliveries that are a little simpler: the boldest first."""
    batches, restarts = delivery.batches, delivery.restarts
    size = sum(map(len, batches))
    part = max(1, size // 2)
    while True:
        for low in range(0, size, part):
            yield _without(delivery, range(low, low + part))
        if part == 1:
            break
        part //= 2
    for number in sorted(restarts):
        yield replace(delivery, restarts=restarts - {number})
    for number in range(len(batches) - 1):
        joined = (*batches[:number], batches[number] + batches[number + 1], *batches[number + 2 :])
        yield Delivery(joined, frozenset(r - (r > number) for r in restarts if r != number))


def _without(delivery: Delivery, gone: range) -> Delivery:
    """Return a delivery less the events of some positions, counted through all batches."""
    batches: list[tuple[int, ...]] = []
    restarts = set()
    position = itertools.count()
    for number, batch in enumerate(delivery.batches):
        left = tuple(place for place in batch if next(position) not in gone)
        if left:
            batches.append(left)
        if number in delivery.restarts and batches:
            restarts.add(len(batches) - 1)
    return Delivery(tuple(batches), frozenset(restarts))


def in_some_order(
    rng: random.Random, events: Sequence[Event], bound_ms: int, duplicates: int, *, per_key: bool
) -> list[int]:
    """Return places of events in an order in which none comes more than the bound behind another."""
    arrives = [
        (event[1] + rng.randint(0, bound_ms), rng.random(), place) for place, event in enumerate(events)
    ]
    taken = [place for _, _, place in sorted(arrives)]
    if per_key:
        of_key: dict[Key, list[int]] = {}
        for place, event in enumerate(events):
            of_key.setdefault(event[0], []).append(place)
        following = {key: iter(of) for key, of in of_key.items()}
        taken = [next(following[events[place][0]]) for place in taken]
    for _ in range(min(duplicates, len(events))):
        first = rng.randrange(len(taken))
        # As late as the bound allows: before the first that is further ahead.
        limit = events[taken[first]][1] + bound_ms
        end = next((i for i in range(len(taken)) if events[taken[i]][1] > limit), len(taken))
        taken.insert(rng.randint(first + 1, max(first + 1, end)), taken[first])
    return taken


def cut(rng: random.Random, taken: Sequence[int], *, cuts: bool, restarts: bool) -> Delivery:
    """Return events cut into batches: in random places, or one by one."""
    edges = set(range(1, len(taken)))
    if cuts:
        edges = {edge for edge in edges if rng.random() < 0.4}
    borders = [0, *sorted(edges), len(taken)]
    batches = tuple(tuple(taken[low:high]) for low, high in itertools.pairwise(borders) if high > low)
    again = {number for number in range(len(batches)) if restarts and rng.random() < 0.5}
    return Delivery(batches, frozenset(again))
