"""Speed of travel between a card's payments, with the error of positions and clocks."""

from __future__ import annotations

import math
from typing import Final

import msgspec

EARTH_KM: Final = 6371.0088
#: A position is right to so many km, a terminal's clock to so many ms: both are given to the traveller.
POSITION_KM: Final = 10.0
CLOCK_MS: Final = 60_000


class Place(msgspec.Struct, array_like=True, gc=False):
    """Where a card was last.

    Attributes:
        time: When, ms.
        latitude: Degrees north.
        longitude: Degrees east.
        fastest_kmh: The fastest that the card was before, as far as a traveller can be, km/h.
    """

    time: int
    latitude: float
    longitude: float
    fastest_kmh: float = 0.0


def distance_km(a: Place, latitude: float, longitude: float) -> float:
    """Return the great-circle distance on a sphere of the Earth's mean radius, km (haversine formula).

    >>> round(distance_km(Place(0, 52.52, 13.405), 48.8566, 2.3522))    # Berlin, Paris
    877
    """
    phi, other = math.radians(a.latitude), math.radians(latitude)
    half = math.sin((other - phi) / 2) ** 2
    half += math.cos(phi) * math.cos(other) * math.sin(math.radians(longitude - a.longitude) / 2) ** 2
    return 2 * EARTH_KM * math.asin(min(1.0, math.sqrt(half)))


def speed_kmh(km: float, gap_ms: int) -> float:
    """Return the least speed of a journey, km/h.

    Args:
        km: Distance between the two positions, km.
        gap_ms: Time between the two, ms, in either order; 0 is a journey too.

    >>> speed_kmh(15.0, 0), round(speed_kmh(500.0, 0)), round(speed_kmh(500.0, 3_600_000))
    (0.0, 28800, 472)
    """
    return max(0.0, km - 2 * POSITION_KM) / ((abs(gap_ms) + CLOCK_MS) / 3_600_000)
