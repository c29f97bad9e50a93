"""Regions made of H3 cells, and the region of a place."""

from __future__ import annotations

import functools
from typing import Final

import h3.api.basic_int as h3i
import msgspec

#: Resolution of the cells that regions are made of: the zones of the requests, 5 km².
ZONE_RESOLUTION: Final = 7
#: The only region, where there are no others.
EVERYWHERE: Final = "all"


class Regions(msgspec.Struct, frozen=True):
    """How the world is cut into regions.

    Without any cut there is one region. ``parent`` makes the H3 cells of a coarser resolution the regions.
    ``lat_cuts`` and ``lon_cuts`` cut along latitudes and longitudes: a zone belongs to the side that
    its middle is on, so that a border runs along cells.

    Attributes:
        parent: Resolution of the H3 cells that are the regions (0 to 7); -1: no such cells.
        lon_cuts: Longitudes, degrees, ascending.
        lat_cuts: For each strip between them (one more than the cuts) its latitudes, degrees, ascending.

    >>> halves = Regions(lon_cuts=(-122.42,), lat_cuts=((37.77,), ()))
    >>> halves.of_place(37.70, -122.45), halves.of_place(37.80, -122.45), halves.of_place(37.80, -122.30)
    ('r0-0', 'r0-1', 'r1-0')
    """

    parent: int = -1
    lon_cuts: tuple[float, ...] = ()
    lat_cuts: tuple[tuple[float, ...], ...] = ()

    @property
    def is_one(self) -> bool:
        """Whether there is no more than one region."""
        return self.parent < 0 and not self.lat_cuts

    def has(self, name: str) -> bool:
        """Return whether there is, or may be, a region of this name."""
        if self.is_one:
            return name == EVERYWHERE
        if self.parent < 0:
            return name in {f"r{n}-{m}" for n, cuts in enumerate(self.lat_cuts) for m in range(len(cuts) + 1)}
        try:
            cell = int(h3i.str_to_int(name))
            return bool(h3i.is_valid_cell(cell)) and h3i.get_resolution(cell) == self.parent
        except (ValueError, OverflowError):
            return False

    def of_place(self, lat: float, lon: float) -> str:
        """Return the region of a place."""
        if self.is_one:
            return EVERYWHERE
        return self.of_cell(int(h3i.latlng_to_cell(lat, lon, ZONE_RESOLUTION)))

    def of_zone(self, zone: str) -> str:
        """Return the region of a zone (an H3 cell as text).

        Raises:
            ValueError: It is no cell of this resolution or a finer one.
        """
        try:
            cell = int(h3i.str_to_int(zone))
            known = h3i.is_valid_cell(cell)
        except (OverflowError, ValueError):  # it does not fit 64 bits, or is no number
            known = False
        if not known or h3i.get_resolution(cell) < ZONE_RESOLUTION:
            raise ValueError(f"{zone!r} is no H3 cell of resolution {ZONE_RESOLUTION}")
        if self.is_one:
            return EVERYWHERE
        return self.of_cell(int(h3i.cell_to_parent(cell, ZONE_RESOLUTION)))

    def of_cell(self, cell: int) -> str:
        """Return the region of a cell of resolution 7."""
        return _region_of(self, cell)

    def near(self, lat: float, lon: float, rings: int = 2) -> tuple[str, ...]:
        """Return the other regions that have a zone within so many rings of a place, in order."""
        cell = int(h3i.latlng_to_cell(lat, lon, ZONE_RESOLUTION))
        return _near(self, cell, rings)


def zone_name(cell: int) -> str:
    """Return a cell as text, as it stands in events."""
    return str(h3i.int_to_str(cell))


@functools.lru_cache(maxsize=65_536)
def zone_of(cell: str) -> str:
    """Return the zone that a cell is in, or is, as it stands in events: one name for each, however written.

    Args:
        cell: A valid H3 cell of resolution 7 or finer, as text.

    >>> zone_of("872830828FFFFFF"), zone_of("89283082813ffff")
    ('872830828ffffff', '872830828ffffff')
    """
    return zone_name(int(h3i.cell_to_parent(h3i.str_to_int(cell), ZONE_RESOLUTION)))


@functools.lru_cache(maxsize=65_536)
def _region_of(regions: Regions, cell: int) -> str:
    if regions.parent >= 0:
        return str(h3i.int_to_str(h3i.cell_to_parent(cell, regions.parent)))
    lat, lon = h3i.cell_to_latlng(cell)
    column = sum(lon >= cut for cut in regions.lon_cuts)
    row = sum(lat >= cut for cut in regions.lat_cuts[column])
    return f"r{column}-{row}"


@functools.lru_cache(maxsize=65_536)
def _near(regions: Regions, cell: int, rings: int) -> tuple[str, ...]:
    own = regions.of_cell(cell)
    return tuple(sorted({regions.of_cell(int(c)) for c in h3i.grid_disk(cell, rings)} - {own}))
