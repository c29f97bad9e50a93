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
    from millrace_apps.ridesharing.processes.dispatch_region import DispatchRegion


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


def region_of(region: DispatchRegion, driver_id: str, car: Car) -> str:
    """Return which region a free car belongs to: in a line, or in a pen, that of the venue."""
    regions = region.config.regions
    if region.venues:
        spot: Spot | None = region.book.spots.get(driver_id) if region.book.spots else None
        if spot is not None and holds(region.venues, spot, region.now, region.config.pen_grace_ms):
            return regions.of_zone(spot.zone)
        if venue := region.venues.pen_of(car.lat, car.lon, region.now):
            return regions.of_zone(region.venues.home_of(venue, region.now))
    return regions.of_place(car.lat, car.lon)


def lines(region: DispatchRegion) -> dict[str, list[Turn]]:
    """Return who waits in each line now, in the order of their turns."""
    found: dict[str, list[Turn]] = {}
    if region.venues and region.book.spots:
        for driver_id, spot in region.book.spots.items():
            if holds(region.venues, spot, region.now, region.config.pen_grace_ms):
                found.setdefault(spot.venue, []).append(Turn(not spot.ticket, spot.joined_ms, driver_id))
    return {venue: sorted(line) for venue, line in sorted(found.items())}


def serve_lines(
    region: DispatchRegion, rides: Sequence[Ride], free: Sequence[FreeCar]
) -> tuple[list[Ride], list[FreeCar]]:
    """Offer the rides of venues to those whose turn it is, and return which rides and cars are left.

    Args:
        region: The region at the end of a window.
        rides: Who waits, those first who have waited longest.
        free: The cars that may be offered a ride.
    """
    waiting = lines(region)
    if not waiting:
        return list(rides), list(free)
    cars = {car.driver_id: car for car in free}
    turns = {
        venue: [turn.driver_id for turn in line if turn.driver_id in cars] for venue, line in waiting.items()
    }
    left = []
    for ride in rides:
        line = turns.get(region.venues.zone_of(ride.lat, ride.lon, region.now), [])
        first = next((driver for driver in line if _may_serve(region, ride, cars[driver])), "")
        if not first:
            left.append(ride)
            continue
        line.remove(first)
        car = cars.pop(first)
        region.offer(ride, first, distance_m(car.lat, car.lon, ride.lat, ride.lon), LINE)
    return left, not_in_line(region, list(cars.values()), waiting)


def not_in_line(
    region: DispatchRegion, free: Sequence[FreeCar], waiting: dict[str, list[Turn]] | None = None
) -> list[FreeCar]:
    """Return the cars that may be given requests from anywhere."""
    if region.config.line_elsewhere:
        return list(free)
    waiting = lines(region) if waiting is None else waiting
    held = {turn.driver_id for line in waiting.values() for turn in line}
    return [car for car in free if car.driver_id not in held]


def meet_at_point(region: DispatchRegion, ride: Ride, asked: str = "") -> None:
    """Send a rider at a venue to the point that was asked for, or the nearest open one, and tell the rider.

    Args:
        region: The region.
        ride: The request, whose pick-up becomes the point.
        asked: Name of the point that the rider wants; empty: any.
    """
    if not region.venues:
        ride.point_why = "no_venue" if asked else ""
        return
    venue, point, why = region.venues.point_for(ride.lat, ride.lon, ride.requested_ms, asked)
    ride.point_why = why
    if point is None:
        return
    walk = distance_m(ride.lat, ride.lon, point.lat, point.lon)
    ride.lat, ride.lon, ride.point = point.lat, point.lon, point.name
    about = (ride.request_id, ride.rider_id, region.name, venue, point.name, point.lat, point.lon)
    region.emit("pickups", PickUp(*about, round(walk, 1), region.now, asked, why))


def tell_lines(region: DispatchRegion) -> None:
    """Tell everybody who waits in a line the place in it."""
    for venue, line in lines(region).items():
        for place, turn in enumerate(line, 1):
            about = (venue, turn.driver_id, region.name, place, len(line))
            region.emit("lines", LinePlace(*about, turn.joined_ms, region.now, not turn.is_behind))


def tell_venues(region: DispatchRegion) -> None:
    """Tell how the venues are whose line this region has, each version once, when it holds."""
    if not region.venues:
        return
    shown, here = region.book.head.shown, set()
    for name, version, home, digest in region.venues.at(region.now):
        if not home or region.config.regions.of_zone(home) != region.name:
            continue
        here.add(name)
        if shown.get(name) == digest:
            continue
        shown[name] = digest
        plan = version.plan or NO_PLAN
        points = [VenuePoint(point.name, point.lat, point.lon, point.is_open) for point in plan.points]
        about = (name, region.name, version.from_ms, list(plan.zone), list(plan.pen), points)
        region.emit("shapes", VenueShape(*about, region.now))
    for name in shown.keys() - here:  # it is another region's by now, or forgotten
        del shown[name]


def _may_serve(region: DispatchRegion, ride: Ride, car: FreeCar) -> bool:
    rules = region.config.rules
    return (
        rules.fits(car.vehicle_class, ride.vehicle_class)
        and ride.excluded.get(car.driver_id, 0) <= region.now
        and car.driver_id not in region.named(ride.rider_id).blocked
        and distance_m(car.lat, car.lon, ride.lat, ride.lon) <= rules.radius_m
    )
