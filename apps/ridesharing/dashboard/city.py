"""The city on the page: its map, who waits longest, where cars are short, trips that stand still."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import h3

from millrace.dashboard.data import AppData
from millrace.dashboard.page import Action, ActionRefused, Field, Panel
from millrace.dashboard.values import bounded
from millrace.dashboard.views import (
    Area,
    AreaMap,
    Cell,
    Column,
    Layer,
    Mark,
    MarkKind,
    Offer,
    Table,
    Tone,
    View,
)
from millrace.time import ms
from millrace_apps.ridesharing.dashboard.places import STEP_MS, City, Moment, Rider, Stuck, read_city
from millrace_apps.ridesharing.dashboard.venues import POINT_KIND, drawn

if TYPE_CHECKING:
    from collections.abc import Mapping

    from millrace_apps.ridesharing.dashboard.places import Box, Car

_LAYERS: Final = (
    Layer("demand", about="Requests of the last quarter of an hour, by where riders want to leave."),
    Layer("waiting", about="Riders who are not picked up, and whose car is not there yet."),
    Layer("free cars", about="Cars that could be offered a ride."),
    Layer("mean wait", "duration", "Of the pick-ups of the last quarter of an hour."),
    Layer("surge", "number", "What the usual price is multiplied by; cells without it have the usual price."),
)
#: State of a car → its kind of mark; riders who wait are the last kind.
_KINDS: Final = {
    "free": MarkKind("free", "circle", "s2"),
    "offered": MarkKind("with an offer", "diamond", "s4"),
    "accepted": MarkKind("on the way", "up", "s0"),
    "arrived": MarkKind("at the pick-up", "down", "s3"),
    "in_progress": MarkKind("with a rider", "square", "ink"),
    "away": MarkKind("not to be had", "ring", "soft"),
    "waiting": MarkKind("rider who waits", "cross", "bad"),
}
#: The kinds of marks of cars.
CAR_KINDS: Final = tuple(kind for name, kind in _KINDS.items() if name != "waiting")
_NUMBER: Final = {name: number for number, name in enumerate(_KINDS)}
#: A map's edges are brought outward to this, degrees: it does not shift with every row.
_ROUND: Final = 0.01
_SHOWN: Final = 25
#: Who waits longer than this stands out, ms; and much longer.
_LONG_MS, _TOO_LONG_MS = 240_000, 480_000
END_TRIP: Final = "end-trip"
#: Events that are further from this machine's time than this have a clock of their own, ms.
_FAR_MS: Final = 600_000


def city(data: AppData) -> City | None:
    """Return the last hours of the city; ``None`` as long as nothing was written."""
    tables = [data.table(name) for name in ("places", "journeys", "trips", "surge")]
    version = tuple(None if t is None else (id(t), t.version) for t in tables)
    dispatch = data.settings.dispatch
    every, ttl = ms(dispatch.places), ms(dispatch.location_ttl)
    return data.once(
        "city",
        (version, every, ttl),
        lambda: read_city(*tables, places_ms=every, ttl_ms=ttl),
    )


def city_map(data: AppData, at_ms: int | None = None) -> View | None:
    """Return the map at a moment, UTC ms; ``None``: the newest."""
    found = city(data)
    box = None if found is None else found.box()
    if found is None or box is None:
        return None
    moment = found.moment(at_ms)
    areas = [
        Area(name, outline(name), (c.asked, c.waiting, c.free, c.wait_ms, c.multiplier))
        for name, c in moment.cells.items()
    ]  # fmt: skip
    outlines, points = drawn(data, moment.at_ms, len(_KINDS))
    return AreaMap(
        layers=_LAYERS,
        areas=areas,
        kinds=(*_KINDS.values(), POINT_KIND) if points else tuple(_KINDS.values()),
        marks=[*map(_car_mark, moment.cars), *_rider_marks(moment), *points],
        outlines=outlines,
        box=rounded(box),
        at_ms=moment.at_ms,
        since_ms=found.since_ms,
        until_ms=found.until_ms,
        step_ms=STEP_MS,
    )


def outline(cell: str) -> list[tuple[float, float]]:
    """Return the corners of an H3 cell, longitude and latitude, to a metre.

    >>> outline("88283082adfffff")[0]
    (-122.38563, 37.776)
    """
    return [(round(lon, 5), round(lat, 5)) for lat, lon in h3.cell_to_boundary(cell)]


def rounded(box: Box) -> tuple[float, float, float, float]:
    """Return a box with its edges brought outward to hundredths of a degree."""
    west, south = (math.floor(edge / _ROUND) * _ROUND for edge in (box.west, box.south))
    east, north = (math.ceil(edge / _ROUND) * _ROUND for edge in (box.east, box.north))
    return west, south, east, north


def longest(data: AppData, at_ms: int | None = None) -> View | None:
    """Return who waits longest."""
    found = city(data)
    riders = [] if found is None else found.moment(at_ms).riders
    columns = (Column("request", "key"), Column("has waited", "duration"), Column("state"),
               Column("driver", "key"), Column("attempts", "count"))  # fmt: skip
    rows: list[list[Cell]] = [
        [r.request_id, r.waited_ms, r.state, r.driver_id or None, r.attempt] for r in riders
    ]
    return bounded(columns, rows, [_tone(r) for r in riders], most=_SHOWN)


def shortage(data: AppData, at_ms: int | None = None) -> View | None:
    """Return the zones, those first in which most cars are missing."""
    found = city(data)
    zones = {} if found is None else found.moment(at_ms).zones
    order = sorted(zones.items(), key=lambda z: (-z[1].missing, -z[1].searching, -z[1].asked, z[0]))
    columns = (
        Column("zone"), Column("missing", "count"), Column("without a car", "count"),
        Column("free cars", "count"), Column("requests", "count"), Column("mean wait", "duration"),
    )  # fmt: skip
    rows: list[list[Cell]] = [[name, z.missing, z.searching, z.free, z.asked, z.wait_ms] for name, z in order]
    tones: list[Tone] = ["warn" if z.missing else "plain" for _, z in order]
    return bounded(columns, rows, tones, most=_SHOWN)


def stuck(data: AppData) -> View | None:
    """Return what stands still now, with what can be done about it."""
    return _stuck(data, None)


def stuck_then(data: AppData, at_ms: int) -> View | None:
    """Return what stood still at a moment, UTC ms."""
    return _stuck(data, at_ms)


def _stuck(data: AppData, at_ms: int | None) -> Table | None:
    found = city(data)
    rides = [] if found is None else found.moment(at_ms).stuck
    columns = (Column("request", "key"), Column("state"), Column("for", "duration"),
               Column("at most", "duration"), Column("driver", "key"), Column("last heard of", "duration"),
               Column("what stands out"), Column("zone"))  # fmt: skip
    rows: list[list[Cell]] = [
        [
            s.request_id,
            s.state.replace("_", " "),
            s.since_ms,
            s.usual_ms,
            s.driver_id,
            s.silent_ms,
            s.why,
            s.zone,
        ]
        for s in rides
    ]
    offers = [_offers(s) for s in rides] if at_ms is None else ()
    return bounded(columns, rows, ["warn"] * len(rows), most=_SHOWN, actions=offers)


def _offers(ride: Stuck) -> tuple[Offer, ...]:
    """Return what is offered: a trip is ended only when its rider is aboard."""
    about = {"request": ride.request_id, "zone": ride.zone}
    return (Offer(END_TRIP, about),) if ride.state == "in_progress" else ()


# -- what can be done ------------------------------------------------------------------------------


def do_end_trip(data: AppData, values: Mapping[str, str]) -> str:
    """End a trip by hand, as the command does."""
    from millrace_apps.ridesharing.operations.commanding import command_of, send_command

    if data.broker is None:
        raise ActionRefused("no broker is named: start the dashboard with --bootstrap to end trips")
    request_id, zone, by = values["request"], values["zone"], values["by"]
    event = command_of("end_trip", by, values["reason"], now_of(data), request_id=request_id, zone=zone)
    send_command(data.settings, event)
    return f"ending {request_id} is sent, by {by}; its outcome will stand under 'By hand'"


def now_of(data: AppData) -> int:
    """Return what time it is on the clock of the events that the page shows, UTC ms."""
    found, now = city(data), data.now_ms()
    is_near = found is None or abs(now - found.until_ms) <= _FAR_MS
    return now if found is None or is_near else found.until_ms


ACTIONS: Final = (
    Action(
        END_TRIP,
        "End trip",
        (
            Field("request", "Request", hidden=True),
            Field("zone", "Zone", hidden=True),
            Field("reason", "Why"),
            Field("by", "Your name"),
        ),
        do_end_trip,
        about="The trip is completed and its driver free. Who did it and why stands in the table operations.",
    ),
)

PANELS: Final = (
    Panel("map", "The city", city_map, width="full", empty="nobody has been heard of yet", replay=city_map,
          about="Cells (H3, resolution 8), cars, and venues with their lines as of the newest event, or of "
          "any half minute of the last three hours: move the slider, or play."),
    Panel("longest", "Who waits longest", longest, empty="nobody waits", replay=longest,
          about="Riders who wanted to leave by now, and whose car is not there."),
    Panel("shortage", "Shortage by zone", shortage, empty="no riders and no free cars", replay=shortage,
          about="Missing: riders without a car less free cars, by zone (H3, resolution 7). Requests and "
          "pick-ups are those of the last quarter of an hour."),
    Panel("stuck", "Trips that stand still", stuck, width="full", empty="none", replay=stuck_then,
          about="More than 15 min on the way, 10 min at the pick-up, or, with a rider, twice the expected "
          "drive and 10 min; or nothing heard of the car for 5 min."),
)  # fmt: skip


# -- marks -----------------------------------------------------------------------------------------


def _car_mark(car: Car) -> Mark:
    return Mark(car.driver_id, car.lon, car.lat, car_number(car.state), car_said(car), car.driver_id)


def car_number(state: str) -> int:
    """Return the number of the kind of marks of cars in a state."""
    return _NUMBER[state]


def car_said(car: Car) -> str:
    """Return what is said of a car."""
    doing = _KINDS[car.state].name
    seen = datetime.fromtimestamp(car.at_ms / 1_000, UTC).strftime("%H:%M:%S")
    return (
        f"{car.driver_id}, {doing}"
        + (f", request {car.request_id}" if car.request_id else "")
        + f", at {seen}"
    )


def _rider_marks(moment: Moment) -> list[Mark]:
    return [
        Mark(f"rider {r.request_id}", r.lon, r.lat, _NUMBER["waiting"],
             f"request {r.request_id}, {r.state}, for {r.waited_ms // 1_000} s", r.request_id)
        for r in moment.riders if r.lat is not None and r.lon is not None
    ]  # fmt: skip


def _tone(rider: Rider) -> Tone:
    return "bad" if rider.waited_ms > _TOO_LONG_MS else "warn" if rider.waited_ms > _LONG_MS else "plain"
