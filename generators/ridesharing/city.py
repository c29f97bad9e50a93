"""The city: zones on H3, who goes where at which hour, and how fast the traffic is."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, Literal

import h3

ZoneKind = Literal["centre", "nightlife", "residential", "station", "airport", "outskirts"]

ZONE_RESOLUTION: Final = 7
_SPOT_RESOLUTION: Final = 9
#: The centre of the map, degrees; flat land for 15 km around.
CENTRE: Final = (52.52, 13.405)
#: Degrees per metre, north and east; literals, so that no machine's cosine decides a coordinate.
DEGREES_NORTH: Final = 8.993204e-06
DEGREES_EAST: Final = 1.477968e-05
#: Local time is UTC plus this, all the year.
_UTC_OFFSET_MS: Final = 3_600_000
HOUR_MS: Final = 3_600_000
WEEK_HOURS: Final = 168
#: How much longer the way is than the straight line.
CIRCUITY: Final = 1.4

#: Demand by local hour, against the mean: two rush hours on working days, the night at week-ends.
_WEEKDAY: Final = (
    0.45, 0.30, 0.22, 0.20, 0.25, 0.45, 0.80, 1.35, 1.60, 1.25, 0.95, 0.95,
    1.05, 1.05, 1.00, 1.10, 1.30, 1.60, 1.75, 1.50, 1.25, 1.15, 1.05, 0.80,
)  # fmt: skip
_WEEKEND: Final = (
    1.50, 1.45, 1.30, 1.00, 0.60, 0.35, 0.35, 0.40, 0.55, 0.75, 0.90, 1.00,
    1.10, 1.10, 1.10, 1.10, 1.15, 1.30, 1.45, 1.50, 1.45, 1.50, 1.70, 1.75,
)  # fmt: skip
#: Mean speed on the road by local hour, km/h.
_SPEED_WEEKDAY: Final = (
    36, 37, 38, 38, 37, 34, 29, 22, 19, 22, 25, 25,
    24, 25, 25, 24, 21, 18, 19, 23, 27, 30, 32, 34,
)  # fmt: skip
_SPEED_WEEKEND: Final = (
    32, 33, 34, 36, 37, 37, 36, 35, 33, 31, 29, 27,
    26, 26, 26, 26, 26, 26, 26, 27, 28, 29, 30, 31,
)  # fmt: skip

#: How much faster or slower than the mean a kind of zone is.
_ZONE_SPEED: Final[dict[ZoneKind, float]] = {
    "centre": 0.75,
    "nightlife": 0.85,
    "station": 0.8,
    "residential": 1.0,
    "outskirts": 1.2,
    "airport": 1.3,
}
#: Parts of the day: night 0-5, morning 6-9, day 10-15, evening 16-19, late 20-23.
_PART_OF_HOUR: Final = (0,) * 6 + (1,) * 4 + (2,) * 6 + (3,) * 4 + (4,) * 4
#: Pull of a kind of zone by part of the day: as an origin, and as a destination.
_ORIGINS: Final[dict[ZoneKind, tuple[float, ...]]] = {
    "centre": (2.0, 1.0, 3.0, 4.0, 3.0),
    "nightlife": (6.0, 0.5, 1.0, 1.5, 3.0),
    "residential": (0.6, 3.0, 1.2, 1.0, 1.0),
    "station": (1.5, 4.0, 3.0, 4.0, 3.0),
    "airport": (0.5, 3.0, 3.0, 3.0, 2.0),
    "outskirts": (0.2, 0.8, 0.4, 0.3, 0.3),
}
_DESTINATIONS: Final[dict[ZoneKind, tuple[float, ...]]] = {
    "centre": (0.8, 4.0, 3.0, 1.5, 2.0),
    "nightlife": (1.5, 0.5, 1.0, 2.5, 5.0),
    "residential": (3.0, 0.8, 1.2, 3.0, 2.5),
    "station": (0.8, 4.0, 3.0, 3.0, 1.5),
    "airport": (1.5, 4.0, 3.0, 2.0, 1.0),
    "outskirts": (0.9, 0.3, 0.4, 0.8, 0.6),
}
#: Trips thin out by this distance, metres.
_REACH_M: Final = 1_200.0


@dataclass(frozen=True, slots=True)
class Zone:
    """One H3 cell of the city.

    Attributes:
        cell: Its H3 index.
        kind: What it is.
        x: Centre, metres east of the city's centre.
        y: Centre, metres north of the city's centre.
        spots: Points all over it, metres.
    """

    cell: str
    kind: ZoneKind
    x: float
    y: float
    spots: tuple[tuple[float, float], ...]


def hour_of_week(at_ms: int) -> int:
    """Return the local hour since Monday 0:00, 0 to 167.

    >>> hour_of_week(1_767_225_600_000)  # Thursday, 2026-01-01 01:00 local
    73
    """
    # 1970-01-01 was a Thursday.
    return ((at_ms + _UTC_OFFSET_MS) // HOUR_MS + 72) % WEEK_HOURS


def _of_week(weekday: Iterable[float], weekend: Iterable[float]) -> tuple[float, ...]:
    return tuple(weekday) * 5 + tuple(weekend) * 2


_DEMAND_WEEK: Final = _of_week(_WEEKDAY, _WEEKEND)
_MEAN_DEMAND: Final = sum(_DEMAND_WEEK) / WEEK_HOURS
_SPEED_WEEK: Final = _of_week(_SPEED_WEEKDAY, _SPEED_WEEKEND)


def demand_factor(at_ms: int) -> float:
    """Return the demand at this hour against the mean of the week."""
    return _DEMAND_WEEK[hour_of_week(at_ms)] / _MEAN_DEMAND


def degrees(x: float, y: float) -> tuple[float, float]:
    """Return latitude and longitude of a point in metres from the city's centre, to 0.1 m.

    >>> degrees(0.0, 0.0)
    (52.52, 13.405)
    """
    return round(CENTRE[0] + y * DEGREES_NORTH, 6), round(CENTRE[1] + x * DEGREES_EAST, 6)


def distance_m(x: float, y: float, to_x: float, to_y: float) -> float:
    """Return the straight line between two points, metres."""
    return math.sqrt((to_x - x) ** 2 + (to_y - y) ** 2)


class City:
    """Zones with demand and traffic; the same for every seed.

    Args:
        rings: Rings of zones around the centre.

    >>> len(City(rings=2).zones)
    19
    """

    def __init__(self, rings: int) -> None:
        centre = h3.latlng_to_cell(*CENTRE, ZONE_RESOLUTION)
        self.zones = tuple(
            _zone(cell, _kind(ring, position, rings))
            for ring in range(rings + 1)
            for position, cell in enumerate(sorted(h3.grid_ring(centre, ring)))
        )
        self._kinds = {zone.cell: zone.kind for zone in self.zones}
        self._origins = [
            list(accumulate(_ORIGINS[zone.kind][part] for zone in self.zones)) for part in range(5)
        ]
        self._destinations: dict[tuple[str, int], list[float]] = {}

    @property
    def airport(self) -> Airport:
        """The airport: 4.8 km from the centre in a city of any size, the pen 700 m from the terminal."""
        near = h3.grid_ring(h3.latlng_to_cell(*CENTRE, ZONE_RESOLUTION), 2)
        x, y = metres(*h3.cell_to_latlng(min(near)))
        return Airport((x, y), ((x - 100, y), (x + 100, y)), (x, y - 700))

    def origins(self, at_ms: int) -> list[float]:
        """Return the running sum of the zones' pull as origins at this time."""
        return self._origins[_PART_OF_HOUR[hour_of_week(at_ms) % 24]]

    def destinations(self, origin: Zone, at_ms: int) -> list[float]:
        """Return the running sum of the zones' pull as destinations from a zone at this time."""
        part = _PART_OF_HOUR[hour_of_week(at_ms) % 24]
        known = self._destinations.get((origin.cell, part))
        if known is None:
            known = self._destinations[origin.cell, part] = list(
                accumulate(
                    _DESTINATIONS[zone.kind][part]
                    * math.exp(-distance_m(origin.x, origin.y, zone.x, zone.y) / _REACH_M)
                    for zone in self.zones
                )
            )
        return known

    def zone_of(self, x: float, y: float) -> str:
        """Return the H3 index of the zone around a point, inside the city or not."""
        return str(h3.latlng_to_cell(*degrees(x, y), ZONE_RESOLUTION))

    def speed_kmh(self, x: float, y: float, at_ms: int) -> float:
        """Return the speed on the road at a point and time, km/h."""
        kind = self._kinds.get(self.zone_of(x, y), "outskirts")
        return _SPEED_WEEK[hour_of_week(at_ms)] * _ZONE_SPEED[kind]

    def travel_ms(self, start: tuple[float, float], end: tuple[float, float], at_ms: int) -> int:
        """Return how long a car takes from point to point when it starts at this time, ms.

        The speed is the mean of that at both ends.
        """
        kmh = (self.speed_kmh(*start, at_ms) + self.speed_kmh(*end, at_ms)) / 2
        return int(distance_m(*start, *end) * CIRCUITY * 3_600 / kmh)


@dataclass(frozen=True, slots=True)
class Airport:
    """Where riders of the airport stand, and where drivers wait for them.

    Attributes:
        terminal: Its middle, metres from the city's centre.
        doors: Where riders can be picked up, metres.
        pen: Middle of the pen, metres.
    """

    terminal: tuple[float, float]
    doors: tuple[tuple[float, float], ...]
    pen: tuple[float, float]


#: Riders and waiting drivers are within so many metres of the terminal, and of the middle of the pen.
TERMINAL_M: Final = 150.0
PEN_M: Final = 100.0


def _zone(cell: str, kind: ZoneKind) -> Zone:
    spots = tuple(
        metres(*h3.cell_to_latlng(spot)) for spot in sorted(h3.cell_to_children(cell, _SPOT_RESOLUTION))
    )
    x, y = metres(*h3.cell_to_latlng(cell))
    return Zone(cell, kind, x, y, spots)


def metres(lat: float, lon: float) -> tuple[float, float]:
    """Return a place in metres from the city's centre."""
    # To the millimetre, so that the last bits of H3's trigonometry do not matter.
    return round((lon - CENTRE[1]) / DEGREES_EAST, 3), round((lat - CENTRE[0]) / DEGREES_NORTH, 3)


def _kind(ring: int, position: int, rings: int) -> ZoneKind:
    if ring == 0:
        return "centre"
    if ring == 1:
        return ("centre", "nightlife", "centre", "station", "centre", "nightlife")[position]
    if ring == rings:
        return "airport" if position == 0 and rings > 1 else "outskirts"
    if ring == 2 and position % 6 == 3:
        return "nightlife"
    return "residential"
