"""Speed of travel between a card's payments, with the error of positions and clocks."""

from __future__ import annotations

from typing import Final

import msgspec

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


def speed_kmh(km: float, gap_ms: int) -> float:
    """Return the least speed of a journey, km/h.

    Args:
        km: Distance between the two positions, km.
        gap_ms: Time between the two, ms, in either order; 0 is a journey too.

    >>> speed_kmh(15.0, 0), round(speed_kmh(500.0, 0)), round(speed_kmh(500.0, 3_600_000))
    (0.0, 28800, 472)
    """
    return max(0.0, km - 2 * POSITION_KM) / ((abs(gap_ms) + CLOCK_MS) / 3_600_000)
