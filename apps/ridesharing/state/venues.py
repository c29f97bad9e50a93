"""Venues: places such as an airport with a zone, a pen where drivers wait in line, and pick-up points.

What is said of a venue comes by the control topic and every region keeps it, as it does pairs. The last word
holds, from its time on; what was to hold later is taken back by it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import h3.api.basic_int as h3i
import msgspec

from millrace.parts.contents import digest_of
from millrace.places import degrees_east, distance_m
from millrace_apps.ridesharing.contracts.events import DropVenue, PickUpPoint, SetVenue, ShortTrip
from millrace_apps.ridesharing.contracts.records import PointWhy
from millrace_apps.ridesharing.processes.geo import cell_of, disk
from millrace_apps.ridesharing.processes.regions import ZONE_RESOLUTION, Regions, zone_name

#: So many venues are kept: every group of keys keeps them all.
MOST_VENUES: Final = 50
#: The finest cells that a venue is made of.
FINEST: Final = 13
#: What is so near to the edge of a cell is not looked at, share of the way to its middle.
_EDGE: Final = 0.001


class Plan(msgspec.Struct, frozen=True, array_like=True):
    """A venue as it is for a while.

    Attributes:
        zone: H3 cells of its requests.
        pen: H3 cells where drivers wait; none: there is no line.
        points: Where riders are picked up.
        short_trip: Which trips are short; ``None``: none are.
    """

    zone: tuple[str, ...]
    pen: tuple[str, ...]
    points: tuple[PickUpPoint, ...]
    short_trip: ShortTrip | None = None


#: How a venue is that is none.
NO_PLAN: Final = Plan((), (), ())


class Version(msgspec.Struct, frozen=True, array_like=True):
    """What is so of a venue from a time on.

    Attributes:
        from_ms: From when on, UTC ms.
        since_ms: Since when the venue has a line without a break, or would have, UTC ms.
        plan: How it is; ``None``: there is none.
    """

    from_ms: int
    since_ms: int
    plan: Plan | None


class Venue(msgspec.Struct, frozen=True, array_like=True):
    """A venue by its versions.

    Attributes:
        versions: What holds from when on, by time.
    """

    versions: tuple[Version, ...]


def keep_venue(said: SetVenue | DropVenue, watermark: int, kept: Any, regions: Regions) -> str:
    """Keep what is said of a venue; return why not, or nothing.

    Args:
        said: What is said.
        watermark: How far the region is, UTC ms: nothing holds from before.
        kept: Name → venue, which is written to: broadcast state.
        regions: How the world is cut: a venue's zone is in one region, which has its line.
    """
    known = kept.get(said.name)
    from_ms = max(said.from_ms, watermark, 0)
    before = () if known is None else known.versions
    # The last that began before now is kept: another word of this moment goes on from it, too.
    over = [n for n, one in enumerate(before) if one.from_ms < watermark]
    left = [one for one in before[over[-1] if over else 0 :] if one.from_ms < from_ms]
    if isinstance(said, DropVenue):
        if left and left[-1].plan is not None:
            kept.put(said.name, Venue((*left, Version(from_ms, from_ms, None))))
        elif all(one.plan is None or one.from_ms < from_ms for one in before):
            return "there is no such venue"
        elif left:  # what was to come is taken back, and that is all
            kept.put(said.name, Venue(tuple(left)))
        else:
            kept.remove(said.name)
        return ""
    if refused := _is_wrong(said, regions):
        return refused
    if known is None and not _has_room(kept, watermark):
        return f"{MOST_VENUES} venues are kept already"
    was = left[-1].plan if left else None
    goes_on = was is not None and bool(was.pen)
    plan = Plan(tuple(said.zone), tuple(said.pen), tuple(said.points), said.short_trip)
    since = left[-1].since_ms if goes_on else from_ms
    kept.put(said.name, Venue((*left, Version(from_ms, since, plan))))
    return ""


def _has_room(kept: Any, watermark: int) -> bool:
    over = [n for n, v in kept.items() if v.versions[-1].plan is None and v.versions[-1].from_ms <= watermark]
    if len(kept) >= MOST_VENUES:
        for name in over:
            kept.remove(name)
    return len(kept) < MOST_VENUES


def _is_wrong(said: SetVenue, regions: Regions) -> str:
    """Return what is wrong about a venue; nothing: it can be one."""
    if not said.zone:
        return "it has no zone"
    cells = [_cell(name) for name in (*said.zone, *said.pen)]
    if None in cells:
        wrong = (*said.zone, *said.pen)[cells.index(None)]
        return f"{wrong!r} is no H3 cell of resolution {ZONE_RESOLUTION} to {FINEST}"
    if len(parts := regions_of(regions, tuple(said.zone))) > 1:
        return f"the zone is in more than one region ({', '.join(parts)}): make a venue of each part"
    if len({point.name for point in said.points}) < len(said.points):
        return "two points have one name"
    inside = _Area(said.zone)
    for point in said.points:
        if not inside.has(point.lat, point.lon):
            return f"point {point.name} is not in the zone"
    short = said.short_trip
    if short is not None and not (short.minutes or short.km):
        return "a short trip has minutes, km or both: else every trip is one"
    return ""


@functools.lru_cache(maxsize=256)
def regions_of(regions: Regions, zone: tuple[str, ...]) -> list[str]:
    """Return the regions that requests from a zone may belong to, in order.

    A request belongs to the cell of resolution 7 that its place is in. A finer cell may reach out of the one
    that it is counted to, so that it is asked for its middle, its corners and the middles of its edges.

    Args:
        regions: How the world is cut.
        zone: Valid H3 cells of resolution 7 or finer.
    """
    found = {regions.of_zone(name) for name in zone}
    if regions.is_one:
        return sorted(found)
    for cell in map(h3i.str_to_int, zone):
        if h3i.get_resolution(cell) == ZONE_RESOLUTION:
            continue
        middle, corners = h3i.cell_to_latlng(cell), h3i.cell_to_boundary(cell)
        for (a, b), (c, d) in zip(corners, (*corners[1:], corners[0]), strict=True):
            for lat, lon in ((a, b), ((a + c) / 2, b + degrees_east(b, d) / 2)):
                to_lat, to_lon = middle
                place = lat + (to_lat - lat) * _EDGE, lon + degrees_east(lon, to_lon) * _EDGE
                found.add(regions.of_place(*place))
    return sorted(found)


def _cell(name: str) -> int | None:
    try:
        cell = int(h3i.str_to_int(name))
    except (ValueError, OverflowError):
        return None
    known = h3i.is_valid_cell(cell) and ZONE_RESOLUTION <= h3i.get_resolution(cell) <= FINEST
    return cell if known else None


class _Area:
    """A place made of cells of some resolutions."""

    __slots__ = ("_by_resolution",)

    def __init__(self, cells: Iterable[str]) -> None:
        found: dict[int, set[int]] = {}
        for cell in map(h3i.str_to_int, cells):
            found.setdefault(h3i.get_resolution(cell), set()).add(int(cell))
        self._by_resolution = sorted(found.items())

    def has(self, lat: float, lon: float) -> bool:
        return any(cell_of(lat, lon, resolution) in cells for resolution, cells in self._by_resolution)


class _Held(NamedTuple):
    """A version of a venue; one that is no more has the home of the version before."""

    version: Version
    zone: _Area
    pen: _Area
    home: str
    digest: int


class Venues:
    """The venues that are kept, asked by place and time; false if there have been none.

    Args:
        entries: Name → venue.

    >>> plan = Plan(("872830828ffffff",), ("8a2830828a8ffff",), (PickUpPoint("A", 37.7752, -122.4201),))
    >>> venues = Venues([("sfo", Venue((Version(5, 5, plan),)))])
    >>> lat, lon = h3i.cell_to_latlng(h3i.str_to_int("8a2830828a8ffff"))
    >>> venues.pen_of(lat, lon, 4), venues.pen_of(lat, lon, 5), venues.has_line("sfo", 4, 9)
    ('', 'sfo', False)
    """

    __slots__ = ("_names", "_near", "_pens_near")

    def __init__(self, entries: Iterable[tuple[str, Venue]]) -> None:
        #: Name → how it is from when on, the newest first.
        self._names: dict[str, list[_Held]] = {}
        #: Cell of resolution 7 → names of venues that may have something of their zone, or pen, there.
        self._near: dict[int, list[str]] = {}
        self._pens_near: dict[int, list[str]] = {}
        for name, venue in sorted(entries):
            held, home = self._names.setdefault(name, []), ""
            for version in venue.versions:
                plan = version.plan or NO_PLAN
                home = zone_name(_parent(plan.zone[0])) if plan.zone else home
                about = _Area(plan.zone), _Area(plan.pen), home, digest_of(version)
                held.insert(0, _Held(version, *about))
                for near, cells in ((self._near, plan.zone), (self._pens_near, plan.pen)):
                    # A fine cell may reach out of the coarse one that it belongs to.
                    for cell in {one for name_of in cells for one in disk(_parent(name_of), 1)}:
                        if name not in near.setdefault(cell, []):
                            near[cell].append(name)

    def __bool__(self) -> bool:
        return bool(self._names)

    def pen_of(self, lat: float, lon: float, at_ms: int) -> str:
        """Return the venue in whose pen a place is at a time, the first by name; empty: none."""
        return self._where(self._pens_near, "pen", lat, lon, at_ms)

    def zone_of(self, lat: float, lon: float, at_ms: int) -> str:
        """Return the venue in whose zone a place is at a time, the first by name; empty: none."""
        return self._where(self._near, "zone", lat, lon, at_ms)

    def _where(self, near: dict[int, list[str]], what: str, lat: float, lon: float, at_ms: int) -> str:
        if not near:
            return ""
        for name in near.get(cell_of(lat, lon, ZONE_RESOLUTION), ()):
            held = self._at(name, at_ms)
            if held is not None and getattr(held, what).has(lat, lon):
                return name
        return ""

    def home_of(self, name: str, at_ms: int) -> str:
        """Return a zone (an H3 cell of resolution 7) of a venue: whose region it is, the line is."""
        held = self._at(name, at_ms)
        return held.home if held is not None else ""

    def has_line(self, name: str, since_ms: int, at_ms: int) -> bool:
        """Return whether a venue has a line at a time, and has had it without a break since another."""
        held = self._at(name, at_ms)
        if held is None or held.version.plan is None:
            return False
        return bool(held.version.plan.pen) and held.version.since_ms <= since_ms

    def short_trip(self, name: str, at_ms: int) -> ShortTrip | None:
        """Return which trips from the line of a venue are short at a time; ``None``: none are."""
        held = self._at(name, at_ms)
        return None if held is None or held.version.plan is None else held.version.plan.short_trip

    def point_for(
        self, lat: float, lon: float, at_ms: int, asked: str = ""
    ) -> tuple[str, PickUpPoint | None, PointWhy]:
        """Return the venue of a place at a time, where its riders are sent, and why not where they asked for.

        That is the open point of the name that was asked for, else the open point that is nearest.

        Args:
            lat: Where the rider is, degrees.
            lon: Where the rider is, degrees.
            at_ms: The time, ms.
            asked: Name of the point that the rider wants; empty: any.
        """
        name = self.zone_of(lat, lon, at_ms)
        held = self._at(name, at_ms) if name else None
        if held is None or held.version.plan is None:
            return name, None, "no_venue" if asked else ""
        points = held.version.plan.points
        named = next((point for point in points if point.name == asked), None)
        if named is not None and named.is_open:
            return name, named, ""
        nearest = min(
            (point for point in points if point.is_open),
            key=lambda p: (round(distance_m(lat, lon, p.lat, p.lon), 1), p.name),
            default=None,
        )
        return name, nearest, "" if not asked else "unknown" if named is None else "closed"

    def at(self, at_ms: int) -> Iterator[tuple[str, Version, str, int]]:
        """Yield how each venue is at a time: its name, what is so, a zone of its own, and a digest of it."""
        for name in self._names:
            held = self._at(name, at_ms)
            if held is not None:
                yield name, held.version, held.home, held.digest

    def _at(self, name: str, at_ms: int) -> _Held | None:
        return next((one for one in self._names.get(name, ()) if one.version.from_ms <= at_ms), None)


def _parent(cell: str) -> int:
    return int(h3i.cell_to_parent(h3i.str_to_int(cell), ZONE_RESOLUTION))
