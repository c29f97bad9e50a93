"""Query 1: the ten routes with the most trips that ended within the last 30 minutes."""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from typing import Any, Final

import msgspec

from millrace import Context, KeyedProcess, event_time, value_state
from millrace_apps.ridesharing.debs.grid import BASE, Grid, Trip, name_of

WINDOW_MS: Final = 30 * 60_000
TOP: Final = 10
_CELLS: Final = BASE * BASE


class TopRoutes(msgspec.Struct, gc=False):
    """The ranking after a trip that changed it.

    Attributes:
        order: The trip's place in the file.
        pickup_ms: When the trip began, UTC ms.
        dropoff_ms: When it ended, UTC ms.
        routes: The routes as ``x.y-x.y``, the most frequent first; of equal ones that with the newest trip.
    """

    order: str
    pickup_ms: int
    dropoff_ms: int
    routes: list[str]


class Routes(msgspec.Struct, array_like=True, dict=True):
    """Trips of the last 30 minutes.

    Attributes:
        first: Number of the oldest trip that is kept; they are numbered as they come.
        times: When each trip ended, ms, 64 bits each.
        routes: Its route: start · 10⁶ + end, 64 bits each.
        top: The ranking that was told last.
    """

    first: int = 0
    times: bytes = b""
    routes: bytes = b""
    top: list[int] = msgspec.field(default_factory=list)


class _Ranking:
    """The same, as it is worked on: routes by how many trips they have, each with its newest trip.

    Of a number of trips, the newest trips of the routes that have so many are kept in order, so that the
    ranking is read off from the largest number down.
    """

    def __init__(self, kept: Routes) -> None:
        self._kept = kept
        self.first = kept.first
        self.times, self.routes = array("q", kept.times), array("q", kept.routes)
        #: How many of the kept ones are gone: they are cut off now and then.
        self.gone = 0
        #: Route → number of its trips, and its newest trip.
        self.counts: dict[int, int] = {}
        self.newest: dict[int, int] = {}
        for place, route in enumerate(self.routes):
            self.counts[route] = self.counts.get(route, 0) + 1
            self.newest[route] = self.first + place
        most = max(self.counts.values(), default=0)
        self.levels: list[list[int]] = [[] for _ in range(most + 1)]
        for route, count in self.counts.items():
            self.levels[count].append(self.newest[route])
        for level in self.levels:
            level.sort()
        self.top = kept.top

    def add(self, route: int, time: int) -> bool:
        """Count a trip, leave out what is older than the window; say whether the ranking is another."""
        until = time - WINDOW_MS
        counts, newest, levels = self.counts, self.newest, self.levels
        times, routes = self.times, self.routes
        gone, end = self.gone, len(times)
        # The last one of the ranking: what stays below it before and after does not change it.
        bound = self._bound()
        looks = False
        while gone < end and times[gone] <= until:
            old = routes[gone]
            gone += 1
            count = counts[old]
            trip = newest[old]
            level = levels[count]
            del level[bisect_left(level, trip)]
            looks = looks or (count, trip) >= bound
            if count == 1:
                del counts[old], newest[old]
            else:
                counts[old] = count - 1
                insort(levels[count - 1], trip)
        self.gone = gone
        number = self.first + end
        times.append(time)
        routes.append(route)
        count = counts.get(route, 0)
        if count:
            level = levels[count]
            del level[bisect_left(level, newest[route])]
        count += 1
        counts[route], newest[route] = count, number
        if count == len(levels):
            levels.append([])
        levels[count].append(number)
        if not looks and (count, number) < bound:
            return False
        top = self._read()
        changed = top != self.top
        self.top = top
        return changed

    def _bound(self) -> tuple[int, int]:
        """Return number and newest trip of the last route of the ranking; of a short one the least."""
        top = self.top
        if len(top) < TOP:
            return (0, 0)
        last = top[-1]
        return self.counts[last], self.newest[last]

    def _read(self) -> list[int]:
        found: list[int] = []
        routes, first = self.routes, self.first
        for level in reversed(self.levels[1:]):
            for number in reversed(level):
                found.append(routes[number - first])
                if len(found) == TOP:
                    return found
        return found

    def keep(self) -> Routes:
        """Return what is kept."""
        kept = self._kept
        if self.gone:
            del self.times[: self.gone], self.routes[: self.gone]
            self.first += self.gone
            self.gone = 0
        kept.first, kept.top = self.first, self.top
        kept.times, kept.routes = self.times.tobytes(), self.routes.tobytes()
        return kept


class FrequentRoutes(KeyedProcess[Trip, TopRoutes]):
    """Tells the ranking after each trip that changes it; all trips of a city have one key.

    Trips that begin or end outside the grid do not count. A route's rank is that of what has ended in
    (t - 30 min, t], t being the end of the trip that has come.
    """

    order = event_time()
    kept = value_state(Routes, default_factory=Routes)

    def __init__(self) -> None:
        self._grid = Grid(500)

    def process(self, event: Trip, ctx: Context) -> None:
        """Count a trip."""
        self.process_key([event], ctx)

    def process_key(self, events: Any, ctx: Context) -> None:
        """Count trips, one after the other."""
        cell = self._grid.cell
        kept = self.kept.value
        ranking: _Ranking | None = kept.__dict__.get("ranking")
        if ranking is None:
            ranking = kept.__dict__["ranking"] = _Ranking(kept)
        add, emit = ranking.add, ctx.emit
        for trip in events:
            start = cell(trip.from_lat, trip.from_lon)
            if start is None:
                continue
            end = cell(trip.to_lat, trip.to_lon)
            if end is None:
                continue
            if add(start * _CELLS + end, trip.dropoff_ms):
                emit(TopRoutes(trip.order, trip.pickup_ms, trip.dropoff_ms, _names(ranking.top)))
        self.kept.value = ranking.keep()


def _names(routes: list[int]) -> list[str]:
    return [f"{name_of(route // _CELLS)}-{name_of(route % _CELLS)}" for route in routes]
