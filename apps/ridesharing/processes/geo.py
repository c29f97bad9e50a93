"""Places: distances, travel times, H3 cells, and the search for the drivers near a rider."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Final

import h3
import h3.api.basic_int as h3i
import numpy as np
import numpy.typing as npt

from millrace.places import EARTH_M
from millrace.places import distance_m as distance_m

#: The way on the road is so much longer than the straight line.
CIRCUITY: Final = 1.4
#: Speed of a car in town, metres per millisecond (25 km/h).
SPEED_M_PER_MS: Final = 25_000 / 3_600_000
#: Resolution of the cells that demand is counted in: a hexagon of about 0.7 km².
DEMAND_RESOLUTION: Final = 8
#: More rings than this are searched in larger cells.
_MOST_RINGS: Final = 6
#: Cells differ in size and are no perfect hexagons; so much of the shortest edge is counted on.
_EDGE_SAFETY: Final = 0.9

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def travel_ms(metres: float) -> int:
    """Return the expected time of a drive over a straight-line distance, ms.

    >>> travel_ms(1_000)
    201600
    """
    return int(metres * CIRCUITY / SPEED_M_PER_MS)


def cell_of(lat: float, lon: float, resolution: int = DEMAND_RESOLUTION) -> int:
    """Return the H3 cell of a place as a whole number."""
    return int(h3i.latlng_to_cell(lat, lon, resolution))


@functools.lru_cache(maxsize=65_536)
def disk(cell: int, rings: int) -> tuple[int, ...]:
    """Return a cell and all cells within so many rings of it, in ascending order."""
    return tuple(sorted(h3i.grid_disk(cell, rings)))


@functools.lru_cache(maxsize=4_096)
def _shortest_edge_m(cell: int) -> float:
    corners = h3i.cell_to_boundary(cell)
    sides = zip(corners, (*corners[1:], corners[0]), strict=True)
    return min(distance_m(*a, *b) for a, b in sides)


def reach_m(cell: int, rings: int) -> float:
    """Return how far a disk surely reaches: nothing outside it is nearer to any place in its middle cell.

    The centres of ring k + 1 lie on rows at least 1.5 · (k + 1) edges from the middle, and both cells
    stick out of their rows by one edge; so it is 1.5 · (k + 1) − 2 edges, of which 90 % are counted on.

    Args:
        cell: The middle cell.
        rings: Rings around it.
    """
    return max(0.0, (1.5 * (rings + 1) - 2) * _shortest_edge_m(cell) * _EDGE_SAFETY)


@functools.lru_cache(maxsize=4_096)
def rings_for(cell: int, radius_m: float) -> int:
    """Return how many rings around a cell hold everything within a radius of every place in it."""
    rings = 0
    while reach_m(cell, rings) < radius_m:
        rings += 1
    return rings


@functools.lru_cache(maxsize=64)
def search_resolution(radius_m: float) -> int:
    """Return the finest resolution of H3 in which a radius takes only some rings.

    >>> search_resolution(3_000), search_resolution(20_000)
    (8, 6)
    """
    for resolution in range(9, 1, -1):
        edge_m = h3.average_hexagon_edge_length(resolution, unit="m") * _EDGE_SAFETY
        if radius_m / edge_m <= 1.5 * (_MOST_RINGS + 1) - 2:
            return resolution
    return 1


class PlaceIndex:
    """Places by H3 cell: which of them are within a radius, and which is the nearest.

    Args:
        lats: Latitudes, degrees.
        lons: Longitudes, degrees.
        resolution: Of the cells.

    >>> index = PlaceIndex([37.770, 37.771, 37.900], [-122.42, -122.42, -122.42], 8)
    >>> _, near, away = index.within([37.7705], [-122.42], 500.0)
    >>> near.tolist(), [round(m) for m in away]
    ([0, 1], [56, 56])
    >>> index.nearest(37.89, -122.42)[0]
    2
    """

    def __init__(self, lats: Sequence[float], lons: Sequence[float], resolution: int) -> None:
        self._points = unit_vectors(lats, lons)
        self._size = len(lats)
        self._resolution = resolution
        cells: dict[int, list[int]] = {}
        for place, (lat, lon) in enumerate(zip(lats, lons, strict=True)):
            cells.setdefault(h3i.latlng_to_cell(lat, lon, resolution), []).append(place)
        self._cells = {cell: np.array(places, np.int64) for cell, places in cells.items()}

    def within(
        self, lats: Sequence[float], lons: Sequence[float], radius_m: float, most: int | None = None
    ) -> tuple[Ints, Ints, Floats]:
        """Return which places are within a radius of which askers, and how far away, metres.

        Args:
            lats: Where is asked, degrees.
            lons: Where is asked, degrees.
            radius_m: The radius, metres.
            most: Of each asker keep so many of the nearest; None: all.

        Returns:
            Asker, place and distance of each pair, sorted by asker and place.
        """
        asking: dict[int, list[int]] = {}
        for asker, (lat, lon) in enumerate(zip(lats, lons, strict=True)):
            asking.setdefault(h3i.latlng_to_cell(lat, lon, self._resolution), []).append(asker)
        points = unit_vectors(lats, lons)
        found: list[tuple[Ints, Ints, Floats]] = []
        for cell, askers in asking.items():  # askers of one cell share the search
            places = self._gather(cell, rings_for(cell, radius_m))
            if len(places):
                metres = _metres_between(points[:, askers], self._points[:, places])
                rows, columns = _nearest_of(metres, radius_m, most)
                found.append((np.array(askers, np.int64)[rows], places[columns], metres[rows, columns]))
        if not found:
            none = np.zeros(0, np.int64)
            return none, none, np.zeros(0)
        asker_of, place_of, away = (np.concatenate(parts) for parts in zip(*found, strict=True))
        order = np.argsort(asker_of * self._size + place_of, kind="stable")
        return asker_of[order], place_of[order], away[order]

    def nearest(self, lat: float, lon: float) -> tuple[int, float]:
        """Return the nearest place and its distance, metres; (-1, inf) if there is none.

        Ring by ring, until nothing outside can be nearer: a place of the next ring may be nearer than
        the nearest of this one. Of several as near it is the first.
        """
        point, cell = unit_vectors([lat], [lon]), h3i.latlng_to_cell(lat, lon, self._resolution)
        if not self._size:
            return -1, math.inf
        for rings in range(2 * _MOST_RINGS):
            places = self._gather(cell, rings)
            if len(places):
                away = _metres_between(point, self._points[:, places])[0]
                first = int(np.argmin(away))
                if away[first] <= reach_m(cell, rings):
                    return int(places[first]), float(away[first])
        away = _metres_between(point, self._points)[0]  # far from everything: look at all
        return int(np.argmin(away)), float(away.min())

    def _gather(self, cell: int, rings: int) -> Ints:
        cells = self._cells
        found = [cells[c] for c in disk(cell, rings) if c in cells]
        return np.sort(np.concatenate(found)) if found else np.zeros(0, np.int64)


def unit_vectors(lats: Sequence[float], lons: Sequence[float]) -> Floats:
    """Return places as points on the unit sphere, an array of shape (3, n)."""
    a, b = np.radians(np.asarray(lats, np.float64)), np.radians(np.asarray(lons, np.float64))
    return np.stack([np.cos(a) * np.cos(b), np.cos(a) * np.sin(b), np.sin(a)])


def _metres_between(points: Floats, others: Floats) -> Floats:
    """Return the distances of all pairs, metres: the chord, which within 50 km is the arc to 13 cm."""
    x: Floats
    x, y, z = (p[:, None] - o[None, :] for p, o in zip(points, others, strict=True))
    x *= x
    y *= y
    z *= z
    x += y
    x += z
    np.sqrt(x, out=x)
    x *= EARTH_M
    return x


def _nearest_of(metres: Floats, radius_m: float, most: int | None) -> tuple[Ints, Ints]:
    """Return rows and columns of the distances to keep."""
    if most is None or metres.shape[1] <= most:
        rows, columns = np.nonzero(metres <= radius_m)
        return rows, columns
    kept = np.argpartition(metres, most - 1, axis=1)[:, :most]
    rows = np.repeat(np.arange(len(metres)), most)
    columns = kept.ravel()
    inside = metres[rows, columns] <= radius_m
    return rows[inside], columns[inside]
