"""Repositioning hints: where free cars will be wanted, by the forecast and who stands where."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import h3


class Hint(NamedTuple):
    """A free car would be wanted elsewhere.

    Attributes:
        driver_id: Whose car.
        cell: Where to, an H3 cell.
        short: By how many requests that cell was short of cars before.
    """

    driver_id: str
    cell: str
    short: float


def hints(
    expected: Mapping[str, float],
    free: Mapping[str, str],
    *,
    movable: Collection[str] | None = None,
    rings: int = 3,
    least: float = 1.0,
) -> list[Hint]:
    """Return hints for cars that stand where more stand than are asked for, each to where they lack most.

    A cell is short by what is expected there less the cars that stand there or are sent there. Car by car,
    each is sent to the cell within ``rings`` that is short by most, less a quarter of a request for each ring
    but the first, if that is more by ``least`` than what its own cell would then be short by.

    Args:
        expected: Cell → requests until the cars would be free again.
        free: Driver → the cell of their car, or where it is going.
        movable: Who may be sent; ``None``: all.
        rings: How far a car is sent, in cells.
        least: By how much shorter, in requests, another cell must be than the car's own.

    Example:
        >>> here = h3.latlng_to_cell(37.76, -122.43, 8)
        >>> there = h3.grid_ring(here, 1)[0]
        >>> [(h.driver_id, h.cell == there) for h in hints({there: 2.0}, {"a": here, "b": here, "c": here})]
        [('a', True), ('b', True)]
    """
    short = dict(expected)
    for cell in free.values():
        short[cell] = short.get(cell, 0.0) - 1.0
    found = []
    for driver, cell in sorted(free.items()):
        if movable is not None and driver not in movable:
            continue
        best, gain = cell, 0.0
        for away in range(1, rings + 1):
            for other in sorted(h3.grid_ring(cell, away)):
                lacks = short.get(other, 0.0)
                # Behind the move the car's own cell lacks one more, and the other one less.
                more = lacks - (short[cell] + 1.0) - 0.25 * (away - 1)
                if lacks > 0.0 and more >= least and more > gain:
                    best, gain = other, more
        if best != cell:
            found.append(Hint(driver, best, short[best]))
            short[best] -= 1.0
            short[cell] += 1.0
    return found
