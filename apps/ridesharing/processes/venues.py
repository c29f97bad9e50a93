"""Venues in a window of dispatch: whose turn it is in a line, and where riders are picked up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from millrace_apps.ridesharing.contracts.records import LinePlace, PickUp
from millrace_apps.ridesharing.processes.geo import distance_m
from millrace_apps.ridesharing.processes.line import holds
from millrace_apps.ridesharing.processes.matching import FreeCar
from millrace_apps.ridesharing.state.entries import Car, Ride, Spot

if TYPE_CHECKING:
    from millrace_apps.ridesharing.processes.desk import Desk

#: What stands in place of a policy where it was somebody's turn in a line.
LINE: Final = "line"


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


def lines(desk: Desk) -> dict[str, list[tuple[int, str]]]:
    """Return who waits in each line now: since when, and the driver, in the order of their turns."""
    found: dict[str, list[tuple[int, str]]] = {}
    if desk.venues and desk.book.spots:
        for driver_id, spot in desk.book.spots.items():
            if holds(desk.venues, spot, desk.now, desk.config.pen_grace_ms):
                found.setdefault(spot.venue, []).append((spot.joined_ms, driver_id))
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
    turns = {venue: [driver for _, driver in line if driver in cars] for venue, line in waiting.items()}
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
    desk: Desk, free: Sequence[FreeCar], waiting: dict[str, list[tuple[int, str]]] | None = None
) -> list[FreeCar]:
    """Return the cars that may be given requests from anywhere."""
    if desk.config.line_elsewhere:
        return list(free)
    waiting = lines(desk) if waiting is None else waiting
    held = {driver for line in waiting.values() for _, driver in line}
    return [car for car in free if car.driver_id not in held]


def meet_at_point(desk: Desk, ride: Ride) -> None:
    """Send a rider at a venue to the nearest point that is open, and tell the rider."""
    if not desk.venues:
        return
    venue, point = desk.venues.point_for(ride.lat, ride.lon, ride.requested_ms)
    if point is None:
        return
    walk = distance_m(ride.lat, ride.lon, point.lat, point.lon)
    ride.lat, ride.lon = point.lat, point.lon
    about = (ride.request_id, ride.rider_id, desk.region, venue, point.name, point.lat, point.lon)
    desk.say("pickups", PickUp(*about, round(walk, 1), desk.now))


def tell_lines(desk: Desk) -> None:
    """Tell everybody who waits in a line the place in it."""
    for venue, line in lines(desk).items():
        for place, (joined, driver_id) in enumerate(line, 1):
            about = (venue, driver_id, desk.region, place, len(line))
            desk.say("lines", LinePlace(*about, joined, desk.now))


def _may_serve(desk: Desk, ride: Ride, car: FreeCar) -> bool:
    rules = desk.config.rules
    return (
        rules.fits(car.vehicle_class, ride.vehicle_class)
        and ride.excluded.get(car.driver_id, 0) <= desk.now
        and car.driver_id not in desk.named(ride.rider_id).blocked
        and distance_m(car.lat, car.lon, ride.lat, ride.lon) <= rules.radius_m
    )
