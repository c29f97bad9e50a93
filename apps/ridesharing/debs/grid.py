"""The grid of the challenge, and trips on it.

Cells are squares of 500 m (query 1) or 250 m (query 2); cell 1.1 lies at the north-west corner of a square of
150 km, x counts to the east and y to the south. As Jerzak and Ziekow, "The DEBS 2015 Grand Challenge",
DEBS '15 (doi:10.1145/2675743.2772598) have it: the centre of the 500 m cell 1.1 is at 41.474937 N,
74.913585 W, and 500 m are .004491556 degrees to the south and .005986 to the east.
"""

from __future__ import annotations

from typing import Final

import msgspec

_NORTH: Final = 41.474937 + 0.004491556 / 2
_WEST: Final = -74.913585 - 0.005986 / 2
#: Cells along each side by size, m; and their height and width, degrees.
CELLS: Final = {500: 300, 250: 600}
_HEIGHT: Final = {500: 0.004491556, 250: 0.004491556 / 2}
_WIDTH: Final = {500: 0.005986, 250: 0.005986 / 2}
#: A cell is one number, x · this + y.
BASE: Final = 1_000


class Trip(msgspec.Struct, frozen=True, gc=False):
    """A trip as it is known when it is over.

    Attributes:
        order: Its place in the file, of a fixed length: trips that end at one moment stand in this order.
        taxi: Who drove (``medallion``).
        pickup_ms: When it began, UTC ms.
        dropoff_ms: When it ended, UTC ms.
        from_lat: Where it began, degrees.
        from_lon: Where it began, degrees.
        to_lat: Where it ended, degrees.
        to_lon: Where it ended, degrees.
        cents: Fare and tip.
        city: All trips of a city are ranked together.
    """

    order: str
    taxi: str
    pickup_ms: int
    dropoff_ms: int
    from_lat: float
    from_lon: float
    to_lat: float
    to_lon: float
    cents: int
    city: str = "nyc"


class Grid:
    """Cells of one size.

    Args:
        metres: 500 or 250.

    Example:
        >>> grid = Grid(500)
        >>> cell = grid.cell(41.474937, -74.913585)
        >>> cell, name_of(cell)
        (1001, '1.1')
        >>> grid.cell(40.7, -75.5) is None
        True
    """

    def __init__(self, metres: int) -> None:
        self._most = CELLS[metres]
        self._height, self._width = _HEIGHT[metres], _WIDTH[metres]

    def cell(self, lat: float, lon: float) -> int | None:
        """Return the cell of a place (degrees); ``None`` outside the square."""
        x = int((lon - _WEST) / self._width // 1) + 1
        y = int((_NORTH - lat) / self._height // 1) + 1
        if 1 <= x <= self._most and 1 <= y <= self._most:
            return x * BASE + y
        return None


def name_of(cell: int) -> str:
    """Return a cell as the challenge writes it: ``x.y``."""
    return f"{cell // BASE}.{cell % BASE}"
