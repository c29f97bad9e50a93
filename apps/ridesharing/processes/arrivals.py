"""Arrival times, learned: ways to riders and trips with them, for matcher, drivers and riders.

Of every way that begins it is kept what it should take; while the car moves its rider is told anew; when it
ends it is said how wrong that was, and what it took becomes the estimate of the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol
from zoneinfo import ZoneInfo

import h3
import msgspec
import numpy as np
import numpy.typing as npt

from millrace.places import distance_m
from millrace_apps.ridesharing.contracts.records import Arrival, Drive
from millrace_apps.ridesharing.eta.features import Driver, Place, Sum, Told, means_of
from millrace_apps.ridesharing.eta.interval import Width
from millrace_apps.ridesharing.eta.times import (
    MODEL_NAME,
    PICKUP,
    PICKUP_NAME,
    TRIP,
    UNTRIED,
    Expected,
    Model,
    Sums,
    Times,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from millrace_apps.ridesharing.processes.matching import Drives, FreeCar, Rider
    from millrace_apps.ridesharing.state.book import Book
    from millrace_apps.ridesharing.state.entries import Car, Ride

#: What a way is learned from: what a driver has said, and nothing that the book found out later.
_SAID: Final = ("driver arrived", "rider aboard", "trip finished")
#: So often at most it is kept what a rider was told, for how wrong that was: the first times, and the last.
MOST_TOLD: Final = 240
_MOVING: Final = ("accepted", "in_progress")
_CELLS: Final = (7, 8)


class ArrivalConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How arrival times are learned and told.

    Attributes:
        every_ms: While a car moves its rider is told anew so often, ms of event time.
        zone: Time zone of the city, for hours of the week.
        exports: Folder of the exported models; empty: the table alone.
        pickup: Name of the model of ways to the pick-up.
        trip: Name of the model of trips.
        poll_s: How often the folder is looked into, seconds.
    """

    every_ms: int = 15_000
    zone: str = "UTC"
    exports: str = ""
    pickup: str = PICKUP_NAME
    trip: str = MODEL_NAME
    poll_s: float = 0.5

    def models(self) -> dict[str, Model | None]:
        """Return who is asked, by kind of way."""
        if not self.exports:
            return {PICKUP.name: None, TRIP.name: None}
        names = {PICKUP.name: self.pickup, TRIP.name: self.trip}
        return {kind: Model(self.exports, name, self.poll_s) for kind, name in names.items()}


class Way(msgspec.Struct, array_like=True):
    """A way that a car is on.

    Attributes:
        kind: ``pickup`` or ``trip``.
        driver_id: Who drives.
        at_ms: When it began, UTC ms.
        place: Its ends.
        told: What was known of it.
        expected: What it should take.
        metres: Its straight line, metres.
        counts: Whether it is learned from: whoever is booked for later needs not hurry.
        seen_ms: When the car was where its rider was last told of, UTC ms.
        said: When the car was to arrive, as its rider has been told, UTC ms.
    """

    kind: Literal["pickup", "trip"]
    driver_id: str
    at_ms: int
    place: Place
    told: Told
    expected: Expected
    metres: float
    counts: bool
    seen_ms: int
    said: list[int]


class Region(Protocol):
    """A region at one moment, as far as arrival times are concerned."""

    @property
    def book(self) -> Book:
        """Its book."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def now(self) -> int:
        """The moment, UTC ms."""

    @property
    def emit(self) -> Callable[[str, Any], None]:
        """Where records go: output and record."""


class Arrivals:
    """Arrival times of one region at one moment.

    Args:
        table: Sums that stay.
        late: Sums of late.
        drivers: What is kept of drivers.
        widths: How wide intervals are.
        ways: Request → the way of its car.
        zone: Time zone of the city.
        models: Kind of way → who is asked.
    """

    __slots__ = ("_pickups", "_trips", "_ways")

    def __init__(
        self,
        table: Sums[Sum],
        late: Sums[Sum],
        drivers: Sums[Driver],
        widths: Sums[Width],
        ways: Sums[Way],
        zone: ZoneInfo,
        models: dict[str, Model | None],
    ) -> None:
        kept = (table, late, drivers, widths)
        self._pickups = Times(PICKUP, *kept, zone, models[PICKUP.name], UNTRIED)
        self._trips = Times(TRIP, *kept, zone, models[TRIP.name], UNTRIED)
        self._ways = ways

    # -- what is expected ------------------------------------------------------------------------

    def expect(self, ride: Ride, driver_id: str, car: Car, now: int) -> Expected:
        """Return what a car's way to a pick-up should take."""
        return self._pickups.tell(Place(car.lat, car.lon, ride.lat, ride.lon), now, driver_id)[1]

    def drives(self, riders: Sequence[Rider], cars: Sequence[FreeCar], now: int) -> Drives | None:
        """Return what says how long drives take, by the table; ``None``: nothing has been learned yet."""
        table = _Read(self._pickups.table)
        if table.get("all") is None:
            return None
        hour, shift_s = self._pickups.hour(now), PICKUP.shift_s
        from_cells, from_of = _cells_of([(car.lat, car.lon) for car in cars])
        to_cells, to_of = _cells_of([(rider.lat, rider.lon) for rider in riders])

        def value(code: int) -> float:
            begins, ends = from_cells[code // len(to_cells)], to_cells[code % len(to_cells)]
            pairs = [f"{a}>{b}" for a, b in zip(begins, ends, strict=True)]
            return exp(means_of(pairs, f"from:{begins[1]}", f"to:{ends[1]}", hour, table).value)

        def takes(
            rider: npt.NDArray[np.int64], car: npt.NDArray[np.int64], metres: npt.NDArray[np.float64]
        ) -> npt.NDArray[np.int64]:
            codes, place = np.unique(from_of[car] * len(to_cells) + to_of[rider], return_inverse=True)
            factors = np.array([value(code) for code in codes.tolist()])
            straight_s = metres * (PICKUP.nothing_s(1.0) - shift_s) / 1_000 + shift_s
            seconds = np.maximum(straight_s * factors[place] - shift_s, 0.0)
            whole: npt.NDArray[np.int64] = (seconds * 1_000).astype(np.int64)
            return whole

        return takes

    # -- what happens ----------------------------------------------------------------------------

    def set_off(self, region: Region, ride: Ride, car: Car) -> Expected:
        """Take down that a car sets off to a pick-up, and tell the rider."""
        place = Place(car.lat, car.lon, ride.lat, ride.lon)
        return self._begin(region, ride, "pickup", place, ride.pickup_at_ms <= region.now, region.now)

    def moved(self, region: Region, ride: Ride, driver_id: str, before: str, cause: str) -> None:
        """Take down that a request has another state: its car has arrived, set off again, or is off it."""
        if before not in ("accepted", "arrived", "in_progress"):
            return
        way = self._ways.get(ride.request_id)
        if way is not None:
            self._ways.remove(ride.request_id)
            is_there = "completed" if way.kind == "trip" else ("arrived", "in_progress")
            if ride.state in is_there and way.driver_id == driver_id and cause in _SAID:
                self._end(region, ride, way)
        if ride.state == "in_progress" and ride.to_lat is not None and ride.to_lon is not None:
            place = Place(ride.lat, ride.lon, ride.to_lat, ride.to_lon)
            self._begin(region, ride, "trip", place, cause in _SAID, region.now)

    def tell_riders(self, region: Region) -> None:
        """Tell those whose car has moved since when it arrives: by how much is left of the way."""
        book = region.book
        for request_id in sorted(name for name, ride in book.rides.items() if ride.state in _MOVING):
            ride, way = book.rides[request_id], self._ways.get(request_id)
            car = book.cars.get(ride.driver_id)
            if way is None or car is None or car.seen_ms <= way.seen_ms or car.seen_ms > region.now:
                continue
            to = way.place
            left_m = distance_m(car.lat, car.lon, to.to_lat, to.to_lon)
            way.seen_ms = car.seen_ms
            self._emit_arrival(region, ride, way, left_m, left_m / max(way.metres, 1.0))
            self._ways.put(request_id, way)

    def _begin(
        self,
        region: Region,
        ride: Ride,
        kind: Literal["pickup", "trip"],
        place: Place,
        counts: bool,
        now: int,
    ) -> Expected:
        times = self._pickups if kind == "pickup" else self._trips
        told, expected = times.tell(place, now, ride.driver_id)
        times.begin(now)
        metres = distance_m(place.from_lat, place.from_lon, place.to_lat, place.to_lon)
        way = Way(
            kind=kind,
            driver_id=ride.driver_id,
            at_ms=now,
            place=place,
            told=told,
            expected=expected,
            metres=metres,
            counts=counts,
            seen_ms=now,
            said=[],
        )
        self._emit_arrival(region, ride, way, metres, 1.0)
        self._ways.put(ride.request_id, way)
        return expected

    def _emit_arrival(self, region: Region, ride: Ride, way: Way, left_m: float, share: float) -> None:
        """Tell a rider when the car arrives; a share of the way is left, and the same share of the time."""
        one = way.expected
        low, high = one.low_s or 0.0, one.high_s or 0.0
        arrives, not_before, not_after = (
            max(region.now, way.seen_ms + round(s * share * 1_000)) for s in (one.seconds, low, high)
        )
        way.said[MOST_TOLD - 1 :] = [arrives]
        about, by = (
            (ride.request_id, way.driver_id, region.name, way.kind, region.now),
            one.version or "table",
        )
        region.emit("arrivals", Arrival(*about, arrives, not_before, not_after, round(left_m, 1), by))

    def _end(self, region: Region, ride: Ride, way: Way) -> None:
        at_ms = region.now  # what comes late is taken as of when it came, here as everywhere
        took_s = (at_ms - way.at_ms) / 1_000
        if took_s <= 0:
            return
        one = way.expected
        wrong = [abs(said - at_ms) / 1_000 for said in way.said]
        held = one.low_s is not None and one.high_s is not None and one.low_s <= took_s <= one.high_s
        row = Drive(
            request_id=ride.request_id,
            driver_id=way.driver_id,
            region=region.name,
            way=way.kind,
            began_ms=way.at_ms,
            ended_ms=at_ms,
            took_s=took_s,
            expected_s=round(one.seconds, 3),
            low_s=round(one.low_s or 0.0, 3),
            high_s=round(one.high_s or 0.0, 3),
            held=held,
            straight_s=round(one.straight_s, 3),
            table_s=round(one.table_s, 3),
            model_s=one.model_s,
            by=one.version or "table",
            told=len(way.said),
            told_wrong_s=round(sum(wrong) / len(wrong), 3),
            last_wrong_s=round(wrong[-1], 3),
            learned=way.counts,
            features=way.told.features,
        )
        region.emit("drives", row)
        if way.counts:
            times = self._pickups if way.kind == "pickup" else self._trips
            times.end(way.told, one, way.place, took_s, at_ms, way.driver_id)


class _Read:
    """A table that is looked into once for each name."""

    __slots__ = ("_found", "_of")

    def __init__(self, of: Sums[Sum]) -> None:
        self._of, self._found = of, dict[str, Any]()

    def get(self, key: str, /) -> Sum | None:
        """Return a sum."""
        if key not in self._found:
            self._found[key] = self._of.get(key)
        found: Sum | None = self._found[key]
        return found


def _cells_of(places: Sequence[tuple[float, float]]) -> tuple[list[tuple[str, ...]], npt.NDArray[np.int64]]:
    """Return the cells that places are in, each once, and of each place the number of its cells."""
    known: dict[tuple[str, ...], int] = {}
    of = [
        known.setdefault(tuple(h3.latlng_to_cell(lat, lon, level) for level in _CELLS), len(known))
        for lat, lon in places
    ]
    return list(known), np.array(of, np.int64)
