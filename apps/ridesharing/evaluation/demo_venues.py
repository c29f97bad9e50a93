"""The demo's airport: it is published when the agents begin, and what came of its riders and its line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import h3

from millrace.console.report import Check, equal
from millrace_apps.ridesharing.contracts.events import PickUpPoint, SetVenue, ShortTrip
from millrace_apps.ridesharing.processes.geo import distance_m

if TYPE_CHECKING:
    import pandas as pd

    from millrace.testing.world_ledger import ReadLedger
    from millrace_apps.ridesharing.topic_audit.report import Audited

#: The middle of the generator's city; its airport is in the first H3 cell of the second ring around it.
_CENTRE: Final = (52.52, 13.405)
_RING: Final = 2
#: Degrees of 700 m to the north, and of 100 m to the east there.
_PEN_NORTH: Final = 700 * 8.993204e-06
_DOOR_EAST: Final = 100 * 1.477968e-05
#: A driver from the pen has reached the rider so long after saying yes, ms, and so many of them do.
_REACHES_MS: Final = 300_000
_REACH: Final = 0.5
_REACHED: Final = ("arrived", "in_progress", "completed", "no_show")
#: A trip to a hotel is short. So near to the limits it is not judged, metres and ms.
SHORT: Final = ShortTrip(back_minutes=30, minutes=20, km=2)
_ABOUT_M: Final = 50.0
_ABOUT_MS: Final = 5_000


def airport() -> SetVenue:
    """Return the airport of the generator's city: zone, pen and two doors.

    >>> venue = airport()
    >>> [point.name for point in venue.points], len(venue.pen)
    (['door 1', 'door 2'], 37)
    """
    centre = h3.latlng_to_cell(*_CENTRE, 7)
    lat, lon = h3.cell_to_latlng(min(h3.grid_ring(centre, _RING)))
    sides = [(1, -_DOOR_EAST), (2, _DOOR_EAST)]
    doors = [PickUpPoint(f"door {n}", round(lat, 6), round(lon + east, 6)) for n, east in sides]
    pen = h3.grid_disk(h3.latlng_to_cell(lat - _PEN_NORTH, lon, 10), 3)
    zone = h3.grid_disk(h3.latlng_to_cell(lat, lon, 9), 2)
    why = "demo-airport", "demo", "the demo has an airport"
    return SetVenue("airport", sorted(zone), sorted(pen), doors, *why, short_trip=SHORT)


def check_venues(
    pickups: pd.DataFrame, journeys: pd.DataFrame, tickets: pd.DataFrame, attempts: pd.DataFrame,
    trips: pd.DataFrame, ledger: ReadLedger, audited: Audited, last_ms: int,
) -> list[Check]:  # fmt: skip
    """Compare what riders and drivers of the airport were told with where they stood.

    Args:
        pickups: Which riders were sent to which point.
        journeys: Where riders have asked to be picked up, and want to go.
        tickets: Whom a short trip lets join the line in front.
        attempts: Offers, each with its newest state.
        trips: The newest state of each request.
        ledger: What the generator did.
        audited: What was found by the topics alone.
        last_ms: What has happened later is not counted on, UTC ms.
    """
    stood = {t.entity for t in ledger.truths if t.kind == "at_airport" and t.last_event_time_ms <= last_ms}
    zone, told = set(airport().zone), list(pickups["request_id"]) if len(pickups) else []
    asked = zip(*(journeys[c] for c in ("request_id", "pickup_lat", "pickup_lon")), strict=True)
    there = {name for name, lat, lon in asked if h3.latlng_to_cell(lat, lon, 9) in zone}
    out_of_turn = sum(row.reason in ("out_of_turn", "taken_from_line") for row in audited.rows)
    return [
        Check(
            "riders at the airport are told where to meet, once, and no others",
            f"{len(there):,}",
            f"{len(told):,}",
            sorted(told) == sorted(there) and stood <= there,
            compared=len(stood | there),
        ),
        equal("offers to drivers in line out of turn", 0, out_of_turn, of=audited.offers.from_lines),
        _reached(attempts, trips, last_ms),
        _named(pickups, ledger, last_ms),
        _short(tickets, attempts, journeys, pickups, last_ms),
    ]


def _named(pickups: pd.DataFrame, ledger: ReadLedger, last_ms: int) -> Check:
    """Return whether riders who named a door are sent there; who named one that there is not, to another."""
    doors = {point.name for point in airport().points}
    named = {t.entity: str(t.detail["point"]) for t in ledger.truths
             if t.kind == "named_point" and t.last_event_time_ms <= last_ms}  # fmt: skip
    told = {}
    if len(pickups):
        frame = pickups.reindex(columns=["request_id", "point", "asked", "why"]).fillna("")
        told = {name: (point, asked, why) for name, point, asked, why in frame.to_numpy().tolist()}
    right = 0
    for name, door in named.items():
        point, asked, why = told.get(name, ("", "", ""))
        there = point == door and not why if door in doors else point in doors and why == "unknown"
        right += asked == door and there
    return equal("riders who named a door are sent there", len(named), right)


def _places(frame: pd.DataFrame, lat: str, lon: str) -> dict[str, tuple[float, float]]:
    """Return a place of each request."""
    columns = (frame[name].tolist() for name in ("request_id", lat, lon))
    return {name: (north, east) for name, north, east in zip(*columns, strict=True)}


def _short(
    tickets: pd.DataFrame, attempts: pd.DataFrame, journeys: pd.DataFrame, pickups: pd.DataFrame, last_ms: int
) -> Check:
    """Return whether who has driven from the line to somewhere near may join it in front, and nobody else."""
    sure, may = set[str](), set[str]()
    if len(attempts) and len(journeys) and len(pickups):
        ends = _places(journeys, "dropoff_lat", "dropoff_lon")
        doors = _places(pickups, "lat", "lon")
        driven = attempts[(attempts["policy"] == "line") & (attempts["state"] == "completed")]
        columns = (driven[name].tolist() for name in ("request_id", "accepted_ms", "closed_ms"))
        for name, accepted_ms, closed_ms in zip(*columns, strict=True):
            if name not in doors or name not in ends:
                continue  # that is another check's
            takes = closed_ms - accepted_ms
            away = distance_m(*doors[name], *ends[name])
            if takes <= SHORT.minutes * 60_000 + _ABOUT_MS and away <= SHORT.km * 1_000 + _ABOUT_M:
                may.add(name)
                near = takes <= SHORT.minutes * 60_000 - _ABOUT_MS and away <= SHORT.km * 1_000 - _ABOUT_M
                if near and closed_ms <= last_ms:
                    sure.add(name)
    given = list(tickets["request_id"]) if len(tickets) else []
    holds = sure <= set(given) <= may and len(set(given)) == len(given)
    wanted = f"{len(sure):,}" if len(sure) == len(may) else f"{len(sure):,} to {len(may):,}"
    name = "short trips from the line give a place in front, once, and no others do"
    ended = int((attempts["state"] == "completed").sum()) if len(attempts) else 0
    return Check(name, wanted, f"{len(given):,}", holds, compared=ended)


def _reached(attempts: pd.DataFrame, trips: pd.DataFrame, last_ms: int) -> Check:
    """Return whether drivers who said yes in the line come to their riders."""
    states = dict(zip(trips["request_id"], trips["state"], strict=True)) if len(trips) else {}
    said_yes = set[str]()
    if len(attempts):
        of_line = attempts[(attempts["policy"] == "line") & (attempts["accepted_ms"] > 0)]
        stays = of_line["state"].isin(["accepted", "completed", "no_show"])
        said_yes = set(of_line[stays & (of_line["accepted_ms"] <= last_ms - _REACHES_MS)]["request_id"])
    there = sum(states.get(name) in _REACHED for name in said_yes)
    wanted = f"at least {_REACH:.0%} of {len(said_yes):,}"
    name = "drivers from the line who have come to their riders"
    return Check(name, wanted, f"{there:,}", there >= _REACH * len(said_yes), compared=len(said_yes))
