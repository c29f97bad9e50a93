"""Venues in a window of dispatch: whose turn it is in a line, and where riders are picked up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from millrace.places import distance_m
from millrace_apps.ridesharing.contracts.records import LinePlace, PickUp, VenuePoint, VenueShape
from millrace_apps.ridesharing.processes.line import LINE, holds
from millrace_apps.ridesharing.processes.matching import FreeCar
from millrace_apps.ridesharing.state.entries import Car, Ride, Spot
from millrace_apps.ridesharing.state.venues import NO_PLAN

if TYPE_CHECKING:
    from millrace_apps.ridesharing.processes.desk import Desk


class Turn(NamedTuple):
    """A driver in a line; turns are in the order of their fields.

    Attributes:
        is_behind: Whether the driver has no ticket of a short trip: who has one comes before.
        joined_ms: Since when the driver waits, ms.
        driver_id: The driver.
    """

    is_behind: bool
    joined_ms: int
    driver_id: str


def region_of(desk: Desk, driver_id: str, car: Car) -> str:
    """Return which region a free car belongs to: in a line, or in a pen, that of the venue."""
    regions = desk.config.regions
    if desk.venues:
        spot: Spot | None = desk.book.spots.get(driver_id) if desk.book.spots else None
        if spot is not None and holds(desk.venues, spot, desk.now, desk.config.pen_grace_ms):
            return regions.of_zone(spot.zone)
        if venue := desk.venues.pen_of(car.lat, car.lon, desk.now):
            return regions.of_zone(desk.venues.home_of(venue, desk.now))
    return regions.of_place(car.lat, car.lon)


def lines(desk: Desk) -> dict[str, list[Turn]]:
    """Return who waits in each line now, in the order of their turns."""
    found: dict[str, list[Turn]] = {}
    if desk.venues and desk.book.spots:
        for driver_id, spot in desk.book.spots.items():
            if holds(desk.venues, spot, desk.now, desk.config.pen_grace_ms):
                found.setdefault(spot.venue, []).append(Turn(not spot.ticket, spot.joined_ms, driver_id))
    return {venue: sorted(line) for venue, line in sorted(found.items())}


def serve_lines(
    desk: Desk, rides: Sequence[Ride], free: Sequence[FreeCar]
) -> tuple[list[Ride], list[FreeCar]]:
    """Offer the rides of venues to those whose turn it is, and return which rides and cars are left.

    Args:
        desk: The region's desk at the end of a window.
        rides: Who waits, those first who have waited longest.
        free: The cars that may be offered a ride.
    """
    waiting = lines(desk)
    if not waiting:
        return list(rides), list(free)
    cars = {car.driver_id: car for car in free}
    turns = {
        venue: [turn.driver_id for turn in line if turn.driver_id in cars] for venue, line in waiting.items()
    }
    left = []
    for ride in rides:
        line = turns.get(desk.venues.zone_of(ride.lat, ride.lon, desk.now), [])
        first = next((driver for driver in line if _may_serve(desk, ride, cars[driver])), "")
        if not first:
            left.append(ride)
            continue
        line.remove(first)
        car = cars.pop(first)
        desk.offer(ride, first, distance_m(car.lat, car.lon, ride.lat, ride.lon), LINE)
    return left, not_in_line(desk, list(cars.values()), waiting)


def not_in_line(
    desk: Desk, free: Sequence[FreeCar], waiting: dict[str, list[Turn]] | None = None
) -> list[FreeCar]:
    """Return the cars that may be given requests from anywhere."""
    if desk.config.line_elsewhere:
        return list(free)
    waiting = lines(desk) if waiting is None else waiting
    held = {turn.driver_id for line in waiting.values() for turn in line}
    return [car for car in free if car.driver_id not in held]


def meet_at_point(desk: Desk, ride: Ride, asked: str = "") -> None:
    """Send a rider at a venue to the point that was asked for, or the nearest open one, and tell the rider.

    Args:
        desk: The region's desk.
        ride: The request, whose pick-up becomes the point.
        asked: Name of the point that the rider wants; empty: any.
    """
    if not desk.venues:
        ride.point_why = "no_venue" if asked else ""
        return
    venue, point, why = desk.venues.point_for(ride.lat, ride.lon, ride.requested_ms, asked)
    ride.point_why = why
    if point is None:
        return
    walk = distance_m(ride.lat, ride.lon, point.lat, point.lon)
    ride.lat, ride.lon, ride.point = point.lat, point.lon, point.name
    about = (ride.request_id, ride.rider_id, desk.region, venue, point.name, point.lat, point.lon)
    desk.say("pickups", PickUp(*about, round(walk, 1), desk.now, asked, why))


def tell_lines(desk: Desk) -> None:
    """Tell everybody who waits in a line the place in it."""
    for venue, line in lines(desk).items():
        for place, turn in enumerate(line, 1):
            about = (venue, turn.driver_id, desk.region, place, len(line))
            desk.say("lines", LinePlace(*about, turn.joined_ms, desk.now, not turn.is_behind))


def tell_venues(desk: Desk) -> None:
    """Tell how the venues are whose line this region has, each version once, when it holds."""
    if not desk.venues:
        return
    shown, here = desk.book.head.shown, set()
    for name, version, home, digest in desk.venues.at(desk.now):
        if not home or desk.config.regions.of_zone(home) != desk.region:
            continue
        here.add(name)
        if shown.get(name) == digest:
            continue
        shown[name] = digest
        plan = version.plan or NO_PLAN
        points = [VenuePoint(point.name, point.lat, point.lon, point.is_open) for point in plan.points]
        about = (name, desk.region, version.from_ms, list(plan.zone), list(plan.pen), points)
        desk.say("shapes", VenueShape(*about, desk.now))
    for name in shown.keys() - here:  # it is another region's by now, or forgotten
        del shown[name]


def _may_serve(desk: Desk, ride: Ride, car: FreeCar) -> bool:
    rules = desk.config.rules
    return (
        rules.fits(car.vehicle_class, ride.vehicle_class)
        and ride.excluded.get(car.driver_id, 0) <= desk.now
        and car.driver_id not in desk.named(ride.rider_id).blocked
        and distance_m(car.lat, car.lon, ride.lat, ride.lon) <= rules.radius_m
    )
