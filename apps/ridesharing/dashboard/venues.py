"""Venues on the map of the city: zones and pens by their cells, pick-up points, and how long each line is.

How venues are stands in the table ``venues``, a row for each version; how long lines are in ``lines``. Both
are looked at as of the moment that the map shows.
"""

from __future__ import annotations

import functools
from bisect import bisect_right
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import h3

from millrace.dashboard.data import AppData
from millrace.dashboard.views import Mark, MarkKind, Outline
from millrace_apps.ridesharing.dashboard.places import REPLAY_MS

if TYPE_CHECKING:
    import pyarrow as pa

    from millrace.dashboard.tables import DeltaReader

#: How the points of venues look.
POINT_KIND: Final = MarkKind("pick-up point", "star", "ink")
#: A line of which nothing has been told for so long is empty, ms: longer than between two tellings.
EMPTY_MS: Final = 90_000
#: So many of the newest versions of venues are kept, and so many venues drawn.
_MOST_VERSIONS: Final = 2_000
_MOST_DRAWN: Final = 50
#: Outlines have so many corners together; those of further venues are left out, their points are drawn.
MOST_CORNERS: Final = 20_000
_SHAPES: Final = ("venue", "from_ms", "zone", "pen", "points", "at_ms")
_LINES: Final = ("venue", "place", "length", "joined_ms", "at_ms")
#: Corners of an area, longitude and latitude, degrees.
Ring = tuple[tuple[float, float], ...]


class Shape(NamedTuple):
    """A venue from a time on; without a zone there is none any more.

    Attributes:
        from_ms: From when on, UTC ms.
        zone: H3 cells of its requests.
        pen: H3 cells where drivers wait.
        points: Name, latitude, longitude, and whether it is open.
    """

    from_ms: int
    zone: tuple[str, ...]
    pen: tuple[str, ...]
    points: tuple[tuple[str, float, float, bool], ...]


class Told(NamedTuple):
    """A line as it was told: when, UTC ms; how many waited; since when the first did, UTC ms."""

    at_ms: int
    length: int
    first_ms: int


class Shapes:
    """The venues by what was told of them; each row of the table is added once.

    >>> shapes = Shapes()
    >>> shapes.put("sfo", Shape(5, ("872830828ffffff",), (), ()))
    >>> shapes.put("sfo", Shape(9, (), (), ()))
    >>> list(shapes.at(4)), [name for name, _ in shapes.at(5)], list(shapes.at(9))
    ([], ['sfo'], [])
    """

    def __init__(self) -> None:
        self._venues: dict[str, list[Shape]] = {}
        self._newest_ms = 0

    def add(self, rows: pa.Table) -> Shapes:
        """Add the rows of a file of the table ``venues``."""
        for row in rows.to_pylist():
            points = tuple((p["name"], p["lat"], p["lon"], p["is_open"]) for p in row["points"])
            self.put(row["venue"], Shape(row["from_ms"], tuple(row["zone"]), tuple(row["pen"]), points))
        self.forget()
        return self

    @property
    def count(self) -> int:
        """How many versions are kept."""
        return sum(map(len, self._venues.values()))

    def put(self, venue: str, shape: Shape) -> None:
        """Keep how a venue is from a time on; of one time what is told last holds."""
        kept = [one for one in self._venues.get(venue, ()) if one.from_ms != shape.from_ms]
        self._venues[venue] = sorted([*kept, shape], key=lambda one: one.from_ms)
        self._newest_ms = max(self._newest_ms, shape.from_ms)

    def at(self, at_ms: int) -> list[tuple[str, Shape]]:
        """Return the venues that there are at a moment, by name."""
        found = []
        for name, versions in sorted(self._venues.items()):
            place = bisect_right(versions, at_ms, key=lambda one: one.from_ms) - 1
            if place >= 0 and versions[place].zone:
                found.append((name, versions[place]))
        return found

    def forget(self) -> None:
        """Forget versions that were over before what can be looked at, and venues that are no more."""
        oldest = self._newest_ms - REPLAY_MS
        for name, versions in list(self._venues.items()):
            first = max(0, bisect_right(versions, oldest, key=lambda one: one.from_ms) - 1)
            left = versions[max(first, len(versions) - _MOST_VERSIONS) :]
            if len(left) == 1 and not left[0].zone and left[0].from_ms <= oldest:
                del self._venues[name]
            else:
                self._venues[name] = left


def venues_at(data: AppData, at_ms: int) -> list[tuple[str, Shape]]:
    """Return the venues at a moment, UTC ms, by name; a bounded number of them."""
    table = data.table("venues")
    if table is None or not table.rows:
        return []
    return table.fold("shapes", list(_SHAPES), Shapes, Shapes.add).at(at_ms)[:_MOST_DRAWN]


def lines_at(data: AppData, at_ms: int) -> dict[str, Told]:
    """Return the lines at a moment, UTC ms, by venue; those that are empty have no entry."""
    table = data.table("lines")
    if table is None or not table.rows:
        return {}
    told = data.once("lines of venues", (id(table), table.version), lambda: _by_venue(table))
    found = {}
    for venue, words in told.items():
        place = bisect_right(words, at_ms, key=lambda one: one.at_ms) - 1
        if place >= 0 and at_ms - words[place].at_ms <= EMPTY_MS:
            found[venue] = words[place]
    return found


def _by_venue(table: DeltaReader) -> dict[str, list[Told]]:
    import pyarrow.compute as pc

    found: dict[str, list[Told]] = {}
    rows = table.lately("at_ms", REPLAY_MS, _LINES)
    for row in rows.filter(pc.field("place") == 1).to_pylist():
        found.setdefault(row["venue"], []).append(Told(row["at_ms"], row["length"], row["joined_ms"]))
    return {venue: sorted(words) for venue, words in found.items()}


def drawn(data: AppData, at_ms: int, kind: int) -> tuple[list[Outline], list[Mark]]:
    """Return what is drawn of the venues at a moment: outlines of zones and pens, and marks of points.

    Args:
        data: The app's data.
        at_ms: The moment, UTC ms.
        kind: Number of the kind of marks that points are.
    """
    lines, outlines, marks, left = lines_at(data, at_ms), list[Outline](), list[Mark](), MOST_CORNERS
    for name, shape in venues_at(data, at_ms):
        is_open = sum(point[3] for point in shape.points)
        said = f"{name}, zone; {is_open} of {len(shape.points)} pick-up points open"
        found = [Outline(f"{name} zone", "zone", edges(shape.zone), said, name)]
        if shape.pen:
            waits = _line(name, lines.get(name), at_ms)
            found.append(Outline(f"{name} pen", "pen", edges(shape.pen), *waits))
        left -= sum(len(ring) for one in found for ring in one.rings)
        outlines += found if left >= 0 else ()
        for point, lat, lon, opened in shape.points:
            about = point if opened else f"{point} (closed)"
            marks.append(Mark(f"point {name} {point}", lon, lat, kind, f"{name}, {about}", text=about))
    return outlines, marks


def _line(name: str, told: Told | None, at_ms: int) -> tuple[str, str]:
    """Return what is said of a pen, and what is written into it."""
    if told is None:
        return f"{name}, pen: nobody in line", "0 in line"
    waited = max(0, at_ms - told.first_ms) // 60_000
    return f"{name}, pen: {told.length} in line, the first for {waited} min", f"{told.length} in line"


@functools.lru_cache(maxsize=256)
def edges(cells: tuple[str, ...]) -> tuple[Ring, ...]:
    """Return the edges of an area of H3 cells, to a metre: a closed line around each part, and each hole.

    Cells of several resolutions are joined by resolution.

    >>> [len(ring) for ring in edges(("8a2830828a8ffff",))]
    [6]
    """
    by_resolution: dict[int, set[str]] = {}
    for cell in cells:
        by_resolution.setdefault(h3.get_resolution(cell), set()).add(h3.int_to_str(h3.str_to_int(cell)))
    found: list[Ring] = []
    for _, of in sorted(by_resolution.items()):
        parts: Any = h3.cells_to_h3shape(sorted(of), tight=False)
        for part in parts:
            found += [tuple((round(b, 5), round(a, 5)) for a, b in r) for r in (part.outer, *part.holes)]
    return tuple(found)
