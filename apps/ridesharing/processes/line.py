"""The line of a venue: who joins it, who keeps a place, and who may come back in front.

A driver who is free joins the line with the first position in the pen, at its event time, and keeps the place
while free there, or away for no longer than the grace. Who is offered a request keeps the place until
the driver has taken it or let it go; who was away then, and comes back in time, is back.

Where a venue says which trips are short, a driver whose trip from the line was one gets a ticket: who is back
in the pen in time joins in front of all who have none, behind those with one who were back before. It is
spent then.
"""

from __future__ import annotations

from typing import Final

from millrace.places import distance_m
from millrace_apps.ridesharing.state.book import Book
from millrace_apps.ridesharing.state.entries import Car, Ride, ShortTripTicket, Spot
from millrace_apps.ridesharing.state.venues import Venues

#: What stands in place of a policy where it was somebody's turn in a line.
LINE: Final = "line"
_MINUTE_MS: Final = 60_000


def stand(book: Book, venues: Venues, driver_id: str, at_ms: int, grace_ms: int) -> None:
    """Let a driver join or leave a line, by where the car is.

    Args:
        book: The region's book.
        venues: The venues.
        driver_id: The driver.
        at_ms: When the car was there, or the driver became free there, ms.
        grace_ms: So long a driver may be out of the pen, ms.
    """
    if not venues:
        return
    car: Car | None = book.cars.get(driver_id)
    spot: Spot | None = book.spots.get(driver_id) if book.spots else None
    if car is None or (car.request_id and (spot is None or not spot.away_ms)):
        return
    here = venues.pen_of(car.lat, car.lon, at_ms) if car.idle and car.online else ""
    if car.request_id:
        if spot is not None and here == spot.venue and holds(venues, spot, at_ms, grace_ms):
            spot.away_ms = 0
        return
    if spot is not None:
        if (here and here != spot.venue) or not holds(venues, spot, at_ms, grace_ms):
            book.lose_spot(driver_id)
        elif not here:
            spot.away_ms = spot.away_ms or at_ms
            return
        else:
            spot.away_ms = 0
            return
    if here:
        spent = _spend(book, venues, driver_id, here, at_ms)
        book.spots[driver_id] = Spot(here, at_ms, venues.home_of(here, at_ms), 0, spent)


def _spend(book: Book, venues: Venues, driver_id: str, venue: str, at_ms: int) -> bool:
    """Return whether a driver joins the line of a venue with a ticket, which is spent by that."""
    ticket = book.tickets.get(driver_id)
    if ticket is None or ticket.venue != venue or not ticket.earned_ms <= at_ms <= ticket.until_ms:
        return False
    del book.tickets[driver_id]
    return venues.has_line(venue, ticket.earned_ms, at_ms)


def ticket_for(venues: Venues, ride: Ride, car: Car, at_ms: int) -> ShortTripTicket | None:
    """Return what a driver has earned by a trip that ends; ``None``: nothing, it was not short.

    Args:
        venues: The venues.
        ride: The trip, before it is over.
        car: The driver's car, where it is now.
        at_ms: When it ends, ms.
    """
    venue = ride.from_line
    if not venue or ride.state != "in_progress" or not venues.has_line(venue, ride.accepted_ms, at_ms):
        return None
    short = venues.short_trip(venue, at_ms)
    if short is None or (short.minutes and at_ms - ride.accepted_ms > short.minutes * _MINUTE_MS):
        return None
    if short.km and distance_m(ride.lat, ride.lon, car.lat, car.lon) > short.km * 1_000:
        return None
    until = at_ms + int(short.back_minutes * _MINUTE_MS)
    return ShortTripTicket(venue, venues.home_of(venue, at_ms), at_ms, until)


def holds(venues: Venues, spot: Spot, at_ms: int, grace_ms: int) -> bool:
    """Return whether a place in a line still counts at a time.

    Args:
        venues: The venues.
        spot: The place.
        at_ms: The time, ms.
        grace_ms: So long a driver may be out of the pen, ms.
    """
    if spot.away_ms and at_ms - spot.away_ms > grace_ms:
        return False
    return venues.has_line(spot.venue, spot.joined_ms, at_ms)
