"""Query 2: the ten areas where a taxi earns most: what trips from there bring, over the taxis there."""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from typing import Any, Final

import msgspec

from millrace import Context, KeyedProcess, event_time, value_state
from millrace_apps.ridesharing.debs.grid import Grid, Trip, name_of

#: Trips that ended so long ago or less tell what a trip from their start brings.
EARNED_MS: Final = 15 * 60_000
#: A taxi is empty so long after its last trip, unless it has come with another.
EMPTY_MS: Final = 30 * 60_000
TOP: Final = 10
_LOWEST: Final = (float("-inf"), 0, 0)


class Area(msgspec.Struct, frozen=True, gc=False):
    """An area of the ranking.

    Attributes:
        cell: ``x.y``.
        empty: Taxis that are empty there.
        median: Of fare and tip of the trips from there, in the currency of the trips.
        profit: ``median`` over ``empty``.
    """

    cell: str
    empty: int
    median: float
    profit: float


class TopAreas(msgspec.Struct, gc=False):
    """The ranking after a trip that changed it, or a figure in it.

    Attributes:
        order: The trip's place in the file.
        pickup_ms: When the trip began, UTC ms.
        dropoff_ms: When it ended, UTC ms.
        areas: The most profitable first; of equal ones the one with the newest trip that counts in it.
    """

    order: str
    pickup_ms: int
    dropoff_ms: int
    areas: list[Area]


class Areas(msgspec.Struct, array_like=True, dict=True):
    """Trips of the last 30 minutes.

    Attributes:
        first: Number of the oldest trip that is kept; they are numbered as they come.
        times: When each trip ended, ms, 64 bits each.
        starts: The cells where they began, 32 bits each.
        ends: The cells where they ended, 32 bits each.
        cents: Fares and tips, 64 bits each.
        taxis: Who drove them.
        told: The ranking that was told last: cell, empty taxis, twice the median in cents.
    """

    first: int = 0
    times: bytes = b""
    starts: bytes = b""
    ends: bytes = b""
    cents: bytes = b""
    taxis: list[str] = msgspec.field(default_factory=list)
    told: list[tuple[int, int, int]] = msgspec.field(default_factory=list)


class _Cell:
    """What is known of a cell: fares by size, numbers of the trips that began there, of taxis that wait."""

    __slots__ = ("began", "fares", "key", "waits")

    def __init__(self) -> None:
        self.fares: list[int] = []
        self.began: list[int] = []
        self.waits: list[int] = []
        #: Its place in the ranking; ``None``: it has none.
        self.key: tuple[float, int, int] | None = None


class _Ranking:
    """The same, as it is worked on."""

    def __init__(self, kept: Areas) -> None:
        self._kept = kept
        self.first = kept.first
        self.times, self.cents = array("q", kept.times), array("q", kept.cents)
        self.starts, self.ends = array("i", kept.starts), array("i", kept.ends)
        self.taxis = kept.taxis
        self.told = kept.told
        self.cells: dict[int, _Cell] = {}
        #: Taxi → number of its last trip.
        self.last: dict[str, int] = {}
        #: What is to be ranked anew.
        self._changed: set[int] = set()
        #: The worst first: profit, newest trip, cell.
        self.ranks: list[tuple[float, int, int]] = []
        self.gone_earned = self.gone = 0
        newest = self.times[-1] if self.times else 0
        for place, time in enumerate(self.times):
            if time <= newest - EARNED_MS:
                self.gone_earned = place + 1
            else:
                self._earn(place)
            self._end(place)
        self._rank()

    def _cell(self, cell: int) -> _Cell:
        self._changed.add(cell)
        found = self.cells.get(cell)
        if found is None:
            found = self.cells[cell] = _Cell()
        return found

    def _earn(self, place: int) -> None:
        area = self._cell(self.starts[place])
        insort(area.fares, self.cents[place])
        area.began.append(self.first + place)

    def _end(self, place: int) -> None:
        """Let the taxi of a trip wait where the trip ended, and no more where it was."""
        number, taxi = self.first + place, self.taxis[place]
        before = self.last.get(taxi)
        if before is not None:
            waits = self._cell(self.ends[before - self.first]).waits
            del waits[bisect_left(waits, before)]
        self.last[taxi] = number
        self._cell(self.ends[place]).waits.append(number)

    def add(self, trip: Trip, start: int, end: int) -> bool:
        """Count a trip, leave out what is older than the windows; say whether the ranking is another."""
        time, times = trip.dropoff_ms, self.times
        until, place, count = time - EARNED_MS, self.gone_earned, len(times)
        while place < count and times[place] <= until:
            area = self._cell(self.starts[place])
            fares = area.fares
            del fares[bisect_left(fares, self.cents[place])]
            del area.began[0]  # the oldest trip is the first to go
            place += 1
        self.gone_earned = place
        until, place = time - EMPTY_MS, self.gone
        while place < count and times[place] <= until:
            taxi, number = self.taxis[place], self.first + place
            if self.last.get(taxi) == number:
                del self.last[taxi]
                waits = self._cell(self.ends[place]).waits
                del waits[bisect_left(waits, number)]
            place += 1
        self.gone = place
        times.append(time)
        self.starts.append(start)
        self.ends.append(end)
        self.cents.append(trip.cents)
        self.taxis.append(trip.taxi)
        self._earn(count)
        self._end(count)
        if not self._rank():
            return False
        told = self._read()
        changed = told != self.told
        self.told = told
        return changed

    def _rank(self) -> bool:
        """Rank what has changed anew; say whether the first ten may be others."""
        ranks, cells = self.ranks, self.cells
        bound = ranks[-TOP] if len(ranks) >= TOP else _LOWEST
        touched = False
        for cell in self._changed:
            area = cells[cell]
            before, key = area.key, None
            fares, waits, began = area.fares, area.waits, area.began
            if fares and waits:
                half = len(fares) >> 1
                twice = fares[half] + fares[~half]
                newest = began[-1] if began[-1] > waits[-1] else waits[-1]
                key = (twice / len(waits), newest, cell)
            elif not fares and not waits:
                del cells[cell]
            if before is not None:
                touched = touched or before >= bound
                del ranks[bisect_left(ranks, before)]
            if key is not None:
                touched = touched or key >= bound
                insort(ranks, key)
            area.key = key
        self._changed.clear()
        return touched

    def _read(self) -> list[tuple[int, int, int]]:
        found = []
        for _, _, cell in reversed(self.ranks[-TOP:]):
            area = self.cells[cell]
            half = len(area.fares) >> 1
            found.append((cell, len(area.waits), area.fares[half] + area.fares[~half]))
        return found

    def keep(self) -> Areas:
        """Return what is kept."""
        kept, gone = self._kept, self.gone
        if gone:
            for column in (self.times, self.starts, self.ends, self.cents, self.taxis):
                del column[:gone]
            self.first += gone
            self.gone_earned -= gone
            self.gone = 0
        kept.first, kept.taxis, kept.told = self.first, self.taxis, self.told
        kept.times, kept.cents = self.times.tobytes(), self.cents.tobytes()
        kept.starts, kept.ends = self.starts.tobytes(), self.ends.tobytes()
        return kept


class ProfitableAreas(KeyedProcess[Trip, TopAreas]):
    """Tells the ranking after each trip that changes it, or a figure in it; all trips of a city have one key.

    Trips that begin or end outside the grid do not count. t being the end of the trip that has come, an
    area's profit is the median of fare and tip of the trips that began there and ended in (t - 15 min, t],
    over the taxis whose last trip ended there in (t - 30 min, t]. An area without such a taxi has none.
    """

    order = event_time()
    kept = value_state(Areas, default_factory=Areas)

    def __init__(self) -> None:
        self._grid = Grid(250)

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
            if add(trip, start, end):
                emit(TopAreas(trip.order, trip.pickup_ms, trip.dropoff_ms, _areas(ranking.told)))
        self.kept.value = ranking.keep()


def _areas(told: list[tuple[int, int, int]]) -> list[Area]:
    return [Area(name_of(cell), empty, twice / 200, twice / 200 / empty) for cell, empty, twice in told]
