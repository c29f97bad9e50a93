"""The rankings anew for every moment, from the trips of its windows alone: what the queries are held to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from millrace_apps.ridesharing.debs.grid import Grid, Trip, name_of

_MINUTE_MS = 60_000


def _placed(trips: Sequence[Trip], metres: int) -> list[tuple[Trip, int, int]]:
    grid = Grid(metres)
    found = []
    for trip in trips:
        start, end = grid.cell(trip.from_lat, trip.from_lon), grid.cell(trip.to_lat, trip.to_lon)
        if start is not None and end is not None:
            found.append((trip, start, end))
    return found


def routes(trips: Sequence[Trip], every: int = 1) -> Iterator[tuple[str, list[str]]]:
    """Yield a trip's place in the file and the ranking of query 1 after it, for trips within the grid.

    Args:
        trips: Trips in order of their end.
        every: For each so-manieth of them only.
    """
    placed = _placed(trips, 500)
    times = np.array([trip.dropoff_ms for trip, _, _ in placed], np.int64)
    names = [f"{name_of(start)}-{name_of(end)}" for _, start, end in placed]
    for place in range(0, len(placed), every):
        first = int(np.searchsorted(times, times[place] - 30 * _MINUTE_MS, side="right"))
        window = names[first : place + 1]
        newest = {name: number for number, name in enumerate(window)}
        ranked = sorted(Counter(window).items(), key=lambda pair: (-pair[1], -newest[pair[0]]))
        yield placed[place][0].order, [name for name, _ in ranked[:10]]


def areas(trips: Sequence[Trip], every: int = 1) -> Iterator[tuple[str, list[tuple[str, int, float, float]]]]:
    """Yield a trip's place in the file and the ranking of query 2 after it, for trips within the grid.

    Args:
        trips: Trips in order of their end.
        every: For each so-manieth of them only.
    """
    placed = _placed(trips, 250)
    times = np.array([trip.dropoff_ms for trip, _, _ in placed], np.int64)
    starts = np.array([start for _, start, _ in placed], np.int64)
    ends = np.array([end for _, _, end in placed], np.int64)
    cents = np.array([trip.cents for trip, _, _ in placed], np.int64)
    _, taxis = np.unique([trip.taxi for trip, _, _ in placed], return_inverse=True)
    for place in range(0, len(placed), every):
        now = times[place]
        newest: dict[int, int] = {}
        first = int(np.searchsorted(times, now - 30 * _MINUTE_MS, side="right"))
        # The last trip of each taxi: the first one of it, looked at from behind.
        _, behind = np.unique(taxis[first : place + 1][::-1], return_index=True)
        last = np.sort(place - behind)
        waits = Counter(ends[last].tolist())
        newest.update(zip(ends[last].tolist(), last.tolist(), strict=True))
        first = int(np.searchsorted(times, now - 15 * _MINUTE_MS, side="right"))
        began = starts[first : place + 1]
        found = []
        order = np.lexsort((cents[first : place + 1], began))
        cells, begins = np.unique(began[order], return_index=True)
        bounds = [*begins.tolist(), len(order)]
        for number, cell in enumerate(cells.tolist()):
            if cell not in waits:
                continue
            own = order[bounds[number] : bounds[number + 1]]
            median = float(np.median(cents[first + own])) / 100
            recent = max(newest[cell], first + int(own.max()))
            found.append((median / waits[cell], recent, name_of(cell), waits[cell], median))
        found.sort(reverse=True)
        yield placed[place][0].order, [(name, empty, median, p) for p, _, name, empty, median in found[:10]]
