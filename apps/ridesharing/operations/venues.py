"""Venues as people write them down, and as they stand on the control topic."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import h3
import msgspec

from millrace.dead_letters import NOT_JSON
from millrace.errors import UserError
from millrace_apps.ridesharing.contracts.events import (
    Control,
    DropVenue,
    Identifier,
    Latitude,
    Longitude,
    PickUpPoint,
    SetVenue,
    ShortTrip,
)
from millrace_apps.ridesharing.operations.commanding import identity
from millrace_apps.ridesharing.processes.regions import ZONE_RESOLUTION, Regions
from millrace_apps.ridesharing.state.book import InMemory
from millrace_apps.ridesharing.state.venues import FINEST, keep_venue

if TYPE_CHECKING:
    from millrace_apps.ridesharing.settings import RidesharingSettings

#: An area that is drawn is cut into so many cells at most.
_MOST_CELLS: Final = 300


Corners = Annotated[list[tuple[Latitude, Longitude]], msgspec.Meta(min_length=3, max_length=1_000)]


class Area(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A place, by its corners or by H3 cells.

    Attributes:
        polygon: Its corners, each latitude and longitude, degrees.
        cells: H3 cells, resolutions 7 to 13.
    """

    polygon: Corners | None = None
    cells: list[Identifier] | None = None

    def to_cells(self) -> list[str]:
        """Return its cells: of a polygon those that have a part of it, the finest that are not too many.

        Raises:
            UserError: It has neither corners nor cells, or both, or is too large.

        >>> corners = [(37.770, -122.420), (37.770, -122.417), (37.772, -122.417), (37.772, -122.420)]
        >>> len(Area(polygon=corners).to_cells())
        217
        """
        if (self.polygon is None) == (self.cells is None):
            raise UserError("an area has either a polygon or cells")
        if self.polygon is None:
            return list(self.cells or ())
        shape, finest = h3.LatLngPoly(self.polygon), list[str]()
        # From the coarsest on, since a cell has seven of the next resolution: what is far too large, or none
        # that has a size (one that crosses itself, or has a pole in it), is not cut up.
        for resolution in range(FINEST + 1):
            try:
                found = h3.h3shape_to_cells_experimental(shape, resolution, contain="overlap")
            except (MemoryError, h3.H3BaseException):
                break
            if len(found) > _MOST_CELLS:
                break
            if resolution >= ZONE_RESOLUTION:
                finest = found
        if not finest:
            raise UserError("the polygon is too large for a venue")
        return sorted(finest)


class Written(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A venue as it stands in a file.

    Attributes:
        name: Its name.
        zone: Whose requests are the venue's.
        pen: Where drivers wait in line; nothing: there is no line.
        points: Where riders are picked up: name, latitude, longitude, and ``false`` where it is closed.
        short_trip: Which trips from the line are short; nothing: none are.
    """

    name: Identifier
    zone: Area
    pen: Area | None = None
    points: list[PickUpPoint] = []
    short_trip: ShortTrip | None = None


def read_venues(path: Path, operator: str, reason: str, from_ms: int, regions: Regions) -> list[SetVenue]:
    """Read venues from a JSON file: one, or a list.

    Args:
        path: The file.
        operator: Who publishes them.
        reason: Why.
        from_ms: From when on they hold, UTC ms; 0: from when they are read.
        regions: How the world is cut.

    Raises:
        UserError: There is no such file, or something in it is no venue.
    """
    try:
        found = msgspec.json.decode(path.read_bytes(), type=list[Written] | Written)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except NOT_JSON as error:
        raise UserError(f"{path} has no venue: {error}") from None
    said = []
    for one in found if isinstance(found, list) else [found]:
        pen = one.pen.to_cells() if one.pen is not None else []
        venue = SetVenue(
            name=one.name,
            zone=one.zone.to_cells(),
            pen=pen,
            points=one.points,
            command_id=identity(),
            operator=operator,
            reason=reason,
            from_ms=from_ms,
            short_trip=one.short_trip,
        )
        if refused := keep_venue(venue, 0, InMemory(), regions):
            raise UserError(f"{one.name}: {refused}")
        said.append(venue)
    if not said:
        raise UserError(f"{path} has no venue: its list is empty")
    return said


def published(settings: RidesharingSettings) -> dict[str, list[SetVenue | DropVenue]]:
    """Return what the control topic says of venues: of each by time, what has been taken back left out."""
    from millrace.operations.reading import Stored, read_topics

    found: dict[str, list[SetVenue | DropVenue]] = {}

    def take(record: Stored) -> None:
        try:
            said = msgspec.json.decode(record.value or b"", type=Control)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return  # a dead letter of the app's
        if isinstance(said, SetVenue | DropVenue):
            said = msgspec.structs.replace(said, from_ms=said.from_ms or record.at_ms)
            before = [one for one in found.get(said.name, ()) if one.from_ms < said.from_ms]
            found[said.name] = [*before, said]

    read_topics(settings.kafka, [settings.topics.control], take)
    return dict(sorted(found.items()))
