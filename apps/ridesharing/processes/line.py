"""The line of a venue: who joins it, and who keeps a place.

A driver who is free joins the line with the first position in the pen, at its event time, and keeps the place
while free there, or away for no longer than the grace. Who is offered a request keeps the place until
the driver has taken it or let it go.
"""

from __future__ import annotations

from millrace_apps.ridesharing.state.book import Book
from millrace_apps.ridesharing.state.entries import Car, Spot
from millrace_apps.ridesharing.state.venues import Venues


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
    if car is None or car.request_id:
        return
    here = venues.pen_of(car.lat, car.lon, at_ms) if car.idle and car.online else ""
    spot: Spot | None = book.spots.get(driver_id) if book.spots else None
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
        book.spots[driver_id] = Spot(here, at_ms, venues.home_of(here, at_ms))


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
