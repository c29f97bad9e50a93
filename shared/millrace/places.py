"""Places on the Earth: great-circle distances, by h3."""

from __future__ import annotations

import math
from typing import Final

import h3

__all__ = ["EARTH_M", "degrees_east", "distance_m"]

_POLE: Final = (90.0, 0.0)
_QUARTER_M: Final[float] = h3.great_circle_distance((0.0, 0.0), _POLE, unit="m")
#: The radius that distances are measured with, metres: of a sphere with the Earth's surface.
EARTH_M: Final[float] = _QUARTER_M / (math.pi / 2)


def distance_m(lat: float, lon: float, to_lat: float, to_lon: float) -> float:
    """Return the great-circle distance of two places, metres.

    Args:
        lat: Of one place, degrees north.
        lon: Degrees east.
        to_lat: Of the other.
        to_lon: The same.

    >>> round(distance_m(37.77, -122.42, 37.78, -122.42))
    1112
    """
    found: float = h3.great_circle_distance((lat, lon), (to_lat, to_lon), unit="m")
    # Of places that are opposite, rounding may leave the root of a number below zero.
    return found if found == found else 2 * _QUARTER_M


def degrees_east(lon: float, to_lon: float) -> float:
    """Return how far one longitude is east of another by the shorter way, degrees; west of it: below 0.

    Args:
        lon: From there, degrees east.
        to_lon: To there, degrees east.

    >>> degrees_east(10.0, 12.5), degrees_east(179.5, -179.5), degrees_east(-179.5, 179.5)
    (2.5, 1.0, -1.0)
    """
    east = to_lon - lon
    if east > 180.0:
        return east - 360.0
    return east + 360.0 if east < -180.0 else east
