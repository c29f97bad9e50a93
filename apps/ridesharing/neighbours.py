"""Borders between regions: drivers are handed over, and lent where the neighbour needs one.

A region that hands a driver over strikes them off first; the gate learns of it through the topic of
handovers and from then on sends the driver to the new owner. In between nobody owns the driver: for some
moments a car less, and never one car twice.
"""

from __future__ import annotations

from collections.abc import Sequence

from apps.ridesharing.book import Car, Due, Ride, Wish
from apps.ridesharing.desk import Desk
from apps.ridesharing.events import Handover
from apps.ridesharing.geo import distance_m
from apps.ridesharing.matching import FreeCar

#: Neighbours are asked for the same rider again after so long, ms.
_ASK_AGAIN_MS = 20_000
#: The gate surely knows of a handover after so long, ms.
_DEPARTED_MS = 600_000
#: Edges of two zones, metres: so far a disk of zones is counted on for each ring.
_RING_M = 1_900.0


def cross_border(desk: Desk, driver_id: str) -> None:
    """Hand a driver over who is free and in another region."""
    car = desk.book.cars.get(driver_id)
    if car is None or car.request_id or desk.now < car.stay_ms or not car.online:
        return
    region = desk.config.regions.of_place(car.lat, car.lon)
    if region != desk.region:
        _hand_over(desk, driver_id, car, region, 0, "")


def take_handover(desk: Desk, event: Handover) -> None:
    """Take a driver over, or a neighbour's wish."""
    book = desk.book
    if not event.driver_id:
        until = event.event_time_ms + 2 * desk.config.window_ms + 1_000
        wish = Wish(event.from_region, event.lat, event.lon, event.vehicle_class, until)
        book.wishes[event.request_id] = wish
        return
    car = book.cars.get(event.driver_id)
    if car is not None:
        desk.ignore("handovers", event.event_id, "", event.driver_id, "the driver is here already")
        return
    if book.departed.get(event.driver_id, -1) >= event.event_time_ms:
        # Its position was here first, and has gone on: somebody else has the driver by now.
        desk.ignore("handovers", event.event_id, "", event.driver_id, "the driver has gone on")
        return
    book.departed.pop(event.driver_id, None)
    since, now = event.free_since_ms or desk.now, desk.now
    lat, lon, kind = event.lat, event.lon, event.vehicle_class
    car = Car(lat, lon, event.seen_ms, kind, "", since, True, True, event.until_ms, now)
    book.cars[event.driver_id] = car
    book.watch(event.driver_id, car, desk.config.ttl_ms, now)
    if event.blocked_ms > desk.now:
        book.blocked[event.driver_id] = event.blocked_ms
        book.remind(event.blocked_ms, Due.LIFT, f"d:{event.driver_id}")
    desk.change(event.driver_id, "entered")


def ask_neighbours(desk: Desk, unmatched: Sequence[Ride]) -> None:
    """Ask the regions within reach for a car, for riders who have waited a window in vain."""
    config = desk.config
    if not config.borrow or config.regions.is_one:
        return
    rings = max(1, round(config.rules.radius_m / _RING_M))
    for ride in unmatched:
        waited = desk.now - ride.searching_ms >= config.window_ms
        if not waited or desk.now - ride.wanted_ms < _ASK_AGAIN_MS:
            continue
        ride.wanted_ms = desk.now
        for region in config.regions.near(ride.lat, ride.lon, rings):
            _say(desk, "", region, ride.vehicle_class, ride.lat, ride.lon, 0, 0, desk.now, 0, ride.request_id)


def grant_wishes(desk: Desk, free: Sequence[FreeCar]) -> None:
    """Lend each neighbour's rider the nearest car that this region has left, if one is within reach."""
    book, left = desk.book, list(free)
    wishes = sorted(book.wishes.items())
    book.wishes = {}
    for request_id, wish in wishes:
        if wish.until_ms < desk.now:
            continue
        near = [
            (distance_m(car.lat, car.lon, wish.lat, wish.lon), car.driver_id, car)
            for car in left
            if car.vehicle_class == wish.vehicle_class
        ]
        metres, driver_id, chosen = min(near, key=lambda x: x[:2], default=(0.0, "", None))
        if chosen is None or metres > desk.config.rules.radius_m:
            continue
        left.remove(chosen)
        stay = desk.now + desk.config.stay_ms
        _hand_over(desk, driver_id, book.cars[driver_id], wish.region, stay, request_id)


def _hand_over(desk: Desk, driver_id: str, car: Car, region: str, stay_ms: int, request_id: str) -> None:
    blocked = desk.book.blocked.pop(driver_id, 0)
    _say(
        desk,
        driver_id,
        region,
        car.vehicle_class,
        car.lat,
        car.lon,
        stay_ms,
        car.free_since_ms,
        car.seen_ms,
        blocked,
        request_id,
    )
    desk.forget(driver_id, car, "left")
    desk.book.departed[driver_id] = desk.now
    desk.book.remind(desk.now + _DEPARTED_MS, Due.FORGET, f"d:{driver_id}", desk.now)


def _say(
    desk: Desk,
    driver_id: str,
    region: str,
    vehicle_class: str,
    lat: float,
    lon: float,
    until_ms: int,
    free_since_ms: int,
    seen_ms: int,
    blocked_ms: int,
    request_id: str,
) -> None:
    desk.book.seq += 1
    # It is read after this moment: at the same time it would be behind the watermark that caused it.
    desk.say(
        "handovers",
        Handover(
            f"{desk.region}-{region}-{driver_id or request_id}-{desk.now}",
            driver_id,
            desk.region,
            region,
            vehicle_class,  # type: ignore[arg-type]  # as it came
            lat,
            lon,
            until_ms,
            desk.now + 1,
            free_since_ms,
            seen_ms,
            blocked_ms,
            request_id,
        ),
    )
