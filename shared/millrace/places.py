"""Places on the Earth: great-circle distances, by h3."""

from __future__ import annotations

import math
from typing import Final

import h3

__all__ = ["EARTH_M", "distance_m"]

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
