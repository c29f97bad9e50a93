"""The city at a moment of the last hours, from the tables of places, journeys and trips.

Cells with who asks, which cars are free and how long riders waited; where cars are and what they do; who
waits longest; where cars are short; which trips stand still.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from millrace.dashboard.values import mean
from millrace.places import distance_m
from millrace_apps.ridesharing.processes.geo import cell_of, travel_ms
from millrace_apps.ridesharing.processes.regions import zone_name

if TYPE_CHECKING:
    from millrace.dashboard.tables import DeltaReader

_MINUTE: Final = 60_000
#: Moments of the last so long can be looked at, ms.
REPLAY_MS: Final = 180 * _MINUTE
#: Steps between those moments, ms.
STEP_MS: Final = 30_000
#: Requests and pick-ups of so long before a moment count in its cells and zones, ms.
RECENT_MS: Final = 15 * _MINUTE
#: What has not moved on for so long is not looked for: by then the app has given it up, ms.
OPEN_MS: Final = 360 * _MINUTE
#: A car with a request that has not been heard of for so long stands out, ms.
SILENT_MS: Final = 5 * _MINUTE
#: A car may be so long on its way, or wait at the pick-up, before that stands out, ms.
ON_ITS_WAY_MS: Final = 15 * _MINUTE
AT_PICKUP_MS: Final = 10 * _MINUTE
#: A trip stands out after so many times its expected drive, and so long on top, ms.
DRIVES: Final = 2
ON_TOP_MS: Final = 10 * _MINUTE

_TOO_LONG: Final = "takes too long"

#: States of a request whose rider has no car yet.
SEARCHING: Final = ("processing", "offered")
#: States of a request whose rider is not picked up, and no car is there.
WAITING: Final = (*SEARCHING, "accepted")
#: States of a request that a driver is bound to, after the offer.
BOUND: Final = ("accepted", "arrived", "in_progress")

_PLACES: Final = ("driver_id", "at_ms", "lat", "lon", "state", "request_id")
_JOURNEYS: Final = (
    "request_id", "zone", "at_ms", "pickup_at_ms", "pickup_lat", "pickup_lon", "dropoff_lat", "dropoff_lon",
)  # fmt: skip
_TRIPS: Final = (
    "request_id", "revision", "zone", "state", "driver_id", "attempt", "requested_ms", "pickup_at_ms",
    "at_ms", "wait_ms",
)  # fmt: skip
_SURGE: Final = ("from_ms", "cell", "multiplier")
#: Shares of the places beyond which a map does not show at first, so that a few far out do not shrink it.
_STRAY: Final = (0.03, 0.97)
#: A map shows so much more than those, of its length and height, at either side.
_MARGIN: Final = 0.2
#: Moments that are kept: several panels, and several who look, share one.
_MOST_KEPT: Final = 16


class Car(NamedTuple):
    """A car as it was last heard of.

    Attributes:
        driver_id: The driver.
        at_ms: When it was there, UTC ms.
        lat: Where, degrees north.
        lon: Where, degrees east.
        state: What it did.
        request_id: Its request; empty if there was none.
    """

    driver_id: str
    at_ms: int
    lat: float
    lon: float
    state: str
    request_id: str


class Cell(NamedTuple):
    """An H3 cell of resolution 8.

    Attributes:
        asked: Requests whose riders wanted to leave there in the quarter of an hour before.
        waiting: Riders there who have not been picked up, and whose car is not there.
        free: Free cars in it.
        wait_ms: Mean wait of those picked up there in that quarter of an hour, ms; ``None``: nobody was.
        multiplier: What the usual price is multiplied by; ``None``: by nothing.
    """

    asked: int
    waiting: int
    free: int
    wait_ms: float | None
    multiplier: float | None = None


class Zone(NamedTuple):
    """A zone (an H3 cell of resolution 7): see :class:`Cell`; ``searching`` are riders without a car."""

    asked: int
    searching: int
    free: int
    wait_ms: float | None

    @property
    def missing(self) -> int:
        """How many riders without a car are more than its free cars."""
        return max(0, self.searching - self.free)


class Rider(NamedTuple):
    """A rider who has not been picked up.

    Attributes:
        request_id: The request.
        state: Its state.
        waited_ms: Since the rider wanted to leave, ms.
        driver_id: The driver who has an offer or is on the way; empty if there is none.
        attempt: Attempts so far.
        zone: Zone of the pick-up.
        lat: Pick-up, degrees north; ``None``: not known.
        lon: Pick-up, degrees east.
    """

    request_id: str
    state: str
    waited_ms: int
    driver_id: str
    attempt: int
    zone: str
    lat: float | None
    lon: float | None


class Stuck(NamedTuple):
    """A request that takes longer than it should, or whose car is silent.

    Attributes:
        request_id: The request.
        state: Its state.
        since_ms: How long it has been in it, ms.
        usual_ms: How long it may be before it stands out, ms; ``None``: the journey is not known.
        driver_id: The driver.
        silent_ms: How long nothing has been heard of the car, ms; ``None``: not in what is looked at.
        why: What stands out.
        zone: Zone of the pick-up.
    """

    request_id: str
    state: str
    since_ms: int
    usual_ms: int | None
    driver_id: str
    silent_ms: int | None
    why: str
    zone: str


class Moment(NamedTuple):
    """The city at a moment.

    Attributes:
        at_ms: The moment, event time, UTC ms.
        cars: The cars, by driver.
        cells: Cell (text) → what is in it; cells in which there is nothing have no entry.
        zones: Zone → the same of it.
        riders: Who has not been picked up, the longest first.
        stuck: Requests that stand still: those that take too long first, of each the longest.
    """

    at_ms: int
    cars: list[Car]
    cells: dict[str, Cell]
    zones: dict[str, Zone]
    riders: list[Rider]
    stuck: list[Stuck]


class Box(NamedTuple):
    """What a map has to show, degrees."""

    west: float
    south: float
    east: float
    north: float


class City:
    """The last hours of a city; safe to use from several threads.

    Args:
        places: Rows of the table ``places``, in any order.
        journeys: Of the table ``journeys``.
        trips: Of the table ``trips``.
        places_ms: How often it is written where a car is, ms; 0: never.
        ttl_ms: How long a position counts, ms: of an older one the car is not on the map.
        surge: Rows of the table ``surge``; ``None``: there are none.

    Raises:
        ValueError: There is no row in any of the first three.
    """

    def __init__(
        self,
        places: pa.Table,
        journeys: pa.Table,
        trips: pa.Table,
        places_ms: int,
        ttl_ms: int,
        surge: pa.Table | None = None,
    ) -> None:
        self._surge = [] if surge is None else sorted(_tuples(surge, _SURGE))
        self._places, self._journeys, self._trips = places, journeys, trips
        self._heard_ms = places_ms + ttl_ms
        self._tells_places = places_ms > 0 and places.num_rows > 0
        times = [pc.min_max(t["at_ms"]).as_py() for t in (places, journeys, trips) if t.num_rows]
        if not times:
            raise ValueError("there is no city without a row")
        #: The newest moment, UTC ms.
        self.until_ms: int = max(t["max"] for t in times)
        oldest = min(t["min"] for t in times) // STEP_MS * STEP_MS
        #: The oldest moment that can be looked at, at a step, UTC ms.
        self.since_ms: int = max(oldest, math.ceil((self.until_ms - REPLAY_MS) / STEP_MS) * STEP_MS)
        self._lock = threading.Lock()
        self._kept: dict[int, Moment] = {}

    def moment(self, at_ms: int | None = None) -> Moment:
        """Return the city at a moment; that of steps of half a minute, the newest one besides.

        Args:
            at_ms: When, UTC ms; brought to the step before it and into what is kept. ``None``: the newest.
        """
        until = self.until_ms
        at = until if at_ms is None or at_ms >= until else max(self.since_ms, at_ms // STEP_MS * STEP_MS)
        with self._lock:
            found = self._kept.get(at)
            if found is None:
                found = self._kept[at] = self._at(at)
                if len(self._kept) > _MOST_KEPT:  # what was looked at first goes first
                    del self._kept[next(iter(self._kept))]
            return found

    def box(self) -> Box | None:
        """Return what a map shows at first: where most places and pick-ups are; ``None``: there are none."""
        lats = [*_column(self._places, "lat"), *_column(self._journeys, "pickup_lat")]
        lons = [*_column(self._places, "lon"), *_column(self._journeys, "pickup_lon")]
        if not lats:
            return None
        south, north = pc.quantile(pa.chunked_array(lats), q=list(_STRAY)).to_pylist()
        west, east = pc.quantile(pa.chunked_array(lons), q=list(_STRAY)).to_pylist()
        along, up = (east - west) * _MARGIN, (north - south) * _MARGIN
        return Box(west - along, south - up, east + along, north + up)

    def _at(self, at: int) -> Moment:
        open_ = self._newest_steps(at)
        journeys = self._journeys_of([row["request_id"] for row in open_], at)
        cars = self._cars(at)
        riders = _riders(open_, journeys, at)
        stuck = self._stuck([row for row in open_ if row["state"] in BOUND], journeys, at)
        return Moment(at, cars, *self._areas(at, cars, riders, journeys), riders, stuck)

    def _newest_steps(self, at: int) -> list[dict[str, Any]]:
        """Return the newest step of each request that is open, and had a step lately."""
        rows = _between(self._trips, "at_ms", at - OPEN_MS, at)
        if not rows.num_rows:
            return []
        last = rows.group_by("request_id").aggregate([("revision", "max")])
        last = pa.table({"request_id": last["request_id"], "revision": last["revision_max"]})
        wanted = pc.field("state").isin([*WAITING, *BOUND])
        rows = rows.join(last, ["request_id", "revision"], join_type="left semi").filter(wanted)
        found: list[dict[str, Any]] = rows.to_pylist()
        return found

    def _journeys_of(self, open_: list[str], at: int) -> dict[str, dict[str, Any]]:
        """Return the journeys of requests that are open, or of which there were pick-ups or wishes lately."""
        names = [*open_, *(row["request_id"] for row in self._pickups(at))]
        leaves = pc.max_element_wise(self._journeys["at_ms"], self._journeys["pickup_at_ms"])
        lately = pc.and_(pc.greater(leaves, at - RECENT_MS), pc.less_equal(leaves, at))
        named = pc.is_in(self._journeys["request_id"], value_set=pa.array(names, pa.string()))
        rows = self._journeys.filter(pc.or_(lately, named)).to_pylist()
        return {row["request_id"]: row for row in rows if row["at_ms"] <= at}

    def _pickups(self, at: int) -> list[dict[str, Any]]:
        rows = _between(self._trips, "at_ms", at - RECENT_MS, at)
        found: list[dict[str, Any]] = rows.filter(pc.field("state") == "in_progress").to_pylist()
        return found

    def _cars(self, at: int) -> list[Car]:
        rows = _between(self._places, "at_ms", at - self._heard_ms, at)
        newest: dict[str, Car] = {}
        for row in _tuples(rows, _PLACES):
            car = Car(*row)
            if car.driver_id not in newest or newest[car.driver_id].at_ms < car.at_ms:
                newest[car.driver_id] = car
        return [newest[name] for name in sorted(newest)]

    def _areas(
        self, at: int, cars: list[Car], riders: list[Rider], journeys: Mapping[str, dict[str, Any]]
    ) -> tuple[dict[str, Cell], dict[str, Zone]]:
        asked = [
            row for row in journeys.values()
            if at - RECENT_MS < max(row["at_ms"], row["pickup_at_ms"]) <= at
        ]  # fmt: skip
        picked = self._pickups(at)
        free = [car for car in cars if car.state == "free"]
        known = {name: zone_name(cell_of(r["pickup_lat"], r["pickup_lon"])) for name, r in journeys.items()}
        cells = _counted(
            [known[row["request_id"]] for row in asked],
            [known[r.request_id] for r in riders if r.request_id in known],
            [zone_name(cell_of(car.lat, car.lon)) for car in free],
            [(known[r["request_id"]], r["wait_ms"]) for r in picked if r["request_id"] in known],
        )
        zones = _counted(
            [row["zone"] for row in asked],
            [r.zone for r in riders if r.state in SEARCHING],
            [zone_name(cell_of(car.lat, car.lon, 7)) for car in free],
            [(r["zone"], r["wait_ms"]) for r in picked],
        )
        return (
            self._priced({name: Cell(*figures) for name, figures in cells.items()}, at),
            {name: Zone(*figures) for name, figures in zones.items()},
        )

    def _priced(self, cells: dict[str, Cell], at: int) -> dict[str, Cell]:
        """Return cells with their multipliers, and besides those that have nothing else."""
        newest = {cell: multiplier for from_ms, cell, multiplier in self._surge if from_ms <= at}
        dear = {cell: multiplier for cell, multiplier in newest.items() if multiplier > 1.0}
        nothing = Cell(0, 0, 0, None)
        names = sorted({*cells, *dear})
        return {name: cells.get(name, nothing)._replace(multiplier=dear.get(name)) for name in names}

    def _stuck(
        self, bound: list[dict[str, Any]], journeys: Mapping[str, dict[str, Any]], at: int
    ) -> list[Stuck]:
        heard = self._last_heard({row["driver_id"] for row in bound}, at)
        found = []
        for row in bound:
            since = at - row["at_ms"]
            usual = _usual_ms(row["state"], journeys.get(row["request_id"]))
            seen = heard.get(row["driver_id"])
            silent = None if seen is None else at - seen
            why = []
            if usual is not None and since > usual:
                why.append(_TOO_LONG)
            quiet = since if silent is None else min(since, silent)
            if self._tells_places and quiet > SILENT_MS:
                why.append("the car is silent")
            if why:
                about = (row["request_id"], row["state"], since, usual, row["driver_id"], silent)
                found.append(Stuck(*about, ", ".join(why), row["zone"]))
        return sorted(found, key=lambda s: (not s.why.startswith(_TOO_LONG), -s.since_ms, s.request_id))

    def _last_heard(self, drivers: set[str], at: int) -> dict[str, int]:
        of_them = pc.is_in(self._places["driver_id"], value_set=pa.array(sorted(drivers), pa.string()))
        rows = self._places.filter(of_them).filter(pc.field("at_ms") <= at)
        found = rows.group_by("driver_id").aggregate([("at_ms", "max")])
        return dict(zip(found["driver_id"].to_pylist(), found["at_ms_max"].to_pylist(), strict=True))


def read_city(
    places: DeltaReader | None,
    journeys: DeltaReader | None,
    trips: DeltaReader | None,
    surge: DeltaReader | None = None,
    *,
    places_ms: int,
    ttl_ms: int,
) -> City | None:
    """Return the city of the last hours; ``None`` as long as nothing was written.

    Args:
        places: The table ``places``, if there is one.
        journeys: The table ``journeys``.
        trips: The table ``trips``.
        surge: The table ``surge``.
        places_ms: How often it is written where a car is, ms; 0: never.
        ttl_ms: How long a position counts, ms.
    """
    length = REPLAY_MS + OPEN_MS
    found = (
        _lately(places, _PLACES, REPLAY_MS + SILENT_MS * 2),
        _lately(journeys, _JOURNEYS, length),
        _lately(trips, _TRIPS, length),
    )
    prices = _lately(surge, _SURGE, length)
    return City(*found, places_ms, ttl_ms, prices) if any(t.num_rows for t in found) else None


def _lately(table: DeltaReader | None, names: tuple[str, ...], length: int) -> pa.Table:
    time = next(name for name in names if name in ("at_ms", "from_ms"))
    rows = None if table is None else table.lately(time, length, names)
    if rows is None or not rows.num_rows:
        return pa.table({name: pa.array([], _kind(name)) for name in names})
    return rows.select(names)


def _kind(name: str) -> pa.DataType:
    if name.endswith(("lat", "lon")) or name == "multiplier":
        return pa.float64()
    return pa.int64() if name.endswith("_ms") or name in ("revision", "attempt") else pa.string()


def _between(rows: pa.Table, column: str, after: int, until: int) -> pa.Table:
    return rows.filter((pc.field(column) > after) & (pc.field(column) <= until))


def _tuples(rows: pa.Table, names: tuple[str, ...]) -> list[tuple[Any, ...]]:
    return list(zip(*(rows[name].to_pylist() for name in names), strict=True))


def _column(rows: pa.Table, name: str) -> list[pa.Array]:
    return list(rows[name].chunks) if rows.num_rows else []


def _counted(
    asked: list[str], waiting: list[str], free: list[str], waits: list[tuple[str, int]]
) -> dict[str, tuple[int, int, int, float | None]]:
    """Return the figures of each area, in order of their names."""
    counts = [Counter(names) for names in (asked, waiting, free)]
    by_area: dict[str, list[int]] = {}
    for name, wait in waits:
        by_area.setdefault(name, []).append(wait)
    areas = sorted({*by_area, *(name for count in counts for name in count)})
    a, w, f = counts
    return {name: (a[name], w[name], f[name], mean(by_area.get(name, []))) for name in areas}


def _riders(open_: list[dict[str, Any]], journeys: Mapping[str, dict[str, Any]], at: int) -> list[Rider]:
    found = []
    for row in open_:
        waited = at - max(row["requested_ms"], row["pickup_at_ms"])
        if row["state"] not in WAITING or waited < 0:
            continue
        journey = journeys.get(row["request_id"], {})
        about = row["request_id"], row["state"], waited, row["driver_id"], row["attempt"], row["zone"]
        found.append(Rider(*about, journey.get("pickup_lat"), journey.get("pickup_lon")))
    return sorted(found, key=lambda r: (-r.waited_ms, r.request_id))


def _usual_ms(state: str, journey: Mapping[str, Any] | None) -> int | None:
    """Return how long a request may be in a state before it stands out, ms; ``None``: not known."""
    if state == "accepted":
        return ON_ITS_WAY_MS
    if state == "arrived":
        return AT_PICKUP_MS
    if journey is None:
        return None
    ends = journey["pickup_lat"], journey["pickup_lon"], journey["dropoff_lat"], journey["dropoff_lon"]
    return DRIVES * travel_ms(distance_m(*ends)) + ON_TOP_MS
