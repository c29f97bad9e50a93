"""Borders between regions: drivers are handed over, and lent where the neighbour needs one.

A region that hands a driver over strikes them off first; the gate learns of it through the topic of
handovers and from then on sends the driver to the new owner. In between nobody owns the driver: for some
moments a car less, and never one car twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from millrace.places import distance_m
from millrace_apps.ridesharing.contracts.events import Handover
from millrace_apps.ridesharing.processes.dispatch_region import DispatchRegion
from millrace_apps.ridesharing.processes.geo import CIRCUITY, SPEED_M_PER_MS
from millrace_apps.ridesharing.processes.matching import FreeCar
from millrace_apps.ridesharing.processes.reconcile import sign_off
from millrace_apps.ridesharing.processes.venues import region_of
from millrace_apps.ridesharing.state.book import Book
from millrace_apps.ridesharing.state.entries import Car, Due, Ride, Wish, kind_of

#: Neighbours are asked for the same rider again after so long, ms.
_ASK_AGAIN_MS = 20_000
#: The gate surely knows of a handover after so long, ms.
_DEPARTED_MS = 600_000
#: Edges of two zones, metres: so far a disk of zones is counted on for each ring.
_RING_M = 1_900.0
_MS_PER_M = CIRCUITY / SPEED_M_PER_MS


def cross_border(region: DispatchRegion, driver_id: str) -> None:
    """Hand a driver over who is free and in another region."""
    car = region.book.cars.get(driver_id)
    if car is None or car.request_id or not car.online:
        return
    other = region_of(region, driver_id, car)
    if other != region.name and region.now >= car.stay_ms:
        _hand_over(region, driver_id, car, other, 0, "")


def take_handover(region: DispatchRegion, event: Handover) -> None:
    """Take a driver over, or a neighbour's wish."""
    book = region.book
    if not event.driver_id:
        until = event.event_time_ms + 2 * region.config.window_ms + 1_000
        wish = Wish(event.from_region, event.lat, event.lon, event.vehicle_class, until)
        book.wishes[event.request_id] = wish
        return
    car = book.cars.get(event.driver_id)
    if car is not None:
        region.ignore("handovers", event.event_id, "", event.driver_id, "the driver is here already")
        _take_block(region, event)
        if _is_off_line(book, event):
            sign_off(region, event.driver_id)
        return
    if book.departed.get(event.driver_id, -1) >= event.event_time_ms:
        # Its position was here first, and has gone on: somebody else has the driver by now.
        region.ignore("handovers", event.event_id, "", event.driver_id, "the driver has gone on")
        return
    book.departed.pop(event.driver_id, None)
    _take_block(region, event)
    if _is_off_line(book, event):
        sign_off(region, event.driver_id)
        region.ignore("handovers", event.event_id, "", event.driver_id, "the driver is off line")
        return
    book.off_line.pop(event.driver_id, None)
    since, kind = event.free_since_ms or region.now, kind_of(event.vehicle_class)
    car = Car(event.lat, event.lon, event.seen_ms, kind, event.idle, since, event.until_ms)
    region.take_in(event.driver_id, car)


def _is_off_line(book: Book, event: Handover) -> bool:
    """Return whether a driver has gone off line since being given away.

    The gate says so of what it had heard before the handover. What it heard behind it came here, and may have
    been handled first: a handover is often behind the watermark.
    """
    driver_id = event.driver_id
    went_off_here: bool = abs(book.off_line.get(driver_id, -1)) >= event.event_time_ms - 1
    said: int = book.said.get(driver_id, 0)
    return went_off_here or event.off_line_ms > said


def _take_block(region: DispatchRegion, event: Handover) -> None:
    """Take over what operators have said of a driver, unless a later order has come here already."""
    book, driver_id = region.book, event.driver_id
    remember = max(region.now + region.config.remember_ms, event.blocked_ms)
    if event.block_said_ms and not book.order(f"d:{driver_id}", event.block_said_ms, remember):
        return
    if event.blocked_ms > region.now:
        book.blocked[driver_id] = event.blocked_ms
        book.remind(event.blocked_ms, Due.LIFT, f"d:{driver_id}")
    elif event.block_said_ms:
        book.blocked.pop(driver_id, None)


def ask_neighbours(region: DispatchRegion, unmatched: Sequence[Ride]) -> None:
    """Ask the regions within reach for a car, for riders who have waited a window in vain."""
    config = region.config
    if not config.borrow or config.regions.is_one:
        return
    rings = max(1, round(config.rules.radius_m / _RING_M))
    for ride in unmatched:
        waited = region.now - ride.searching_ms >= config.window_ms
        if not waited or region.now - ride.wanted_ms < _ASK_AGAIN_MS:
            continue
        ride.wanted_ms = region.now
        for other in config.regions.near(ride.lat, ride.lon, rings):
            wanted = {"seen_ms": region.now, "request_id": ride.request_id}
            _emit_handover(region, other, ride.request_id, ride.vehicle_class, ride.lat, ride.lon, wanted)


def grant_wishes(region: DispatchRegion, free: Sequence[FreeCar]) -> None:
    """Lend each neighbour's rider the nearest car that this region has left, if one is within reach."""
    book, left = region.book, list(free)
    for request_id, wish in book.take_wishes():
        if wish.until_ms < region.now:
            continue
        classes = region.config.rules.classes_for(wish.vehicle_class)
        near = [
            (classes[car.vehicle_class] + metres * _MS_PER_M, car.driver_id, car)
            for car in left
            if car.vehicle_class in classes
            and (metres := distance_m(car.lat, car.lon, wish.lat, wish.lon)) <= region.config.rules.radius_m
        ]
        _, driver_id, chosen = min(near, key=lambda x: x[:2], default=(0, "", None))
        if chosen is None:
            continue
        left.remove(chosen)
        stay = region.now + region.config.stay_ms
        _hand_over(region, driver_id, book.cars[driver_id], wish.region, stay, request_id)


def _hand_over(
    region: DispatchRegion, driver_id: str, car: Car, other: str, stay_ms: int, request_id: str
) -> None:
    book = region.book
    given: dict[str, Any] = {
        "driver_id": driver_id,
        "until_ms": stay_ms,
        "free_since_ms": car.free_since_ms,
        "seen_ms": car.seen_ms,
        "blocked_ms": book.blocked.pop(driver_id, 0),
        "request_id": request_id,
        "idle": car.idle,
        "block_said_ms": book.ordered.get(f"d:{driver_id}", 0),
    }
    _emit_handover(region, other, driver_id, car.vehicle_class, car.lat, car.lon, given)
    region.forget(driver_id, "left")
    book.departed[driver_id] = region.now
    book.remind(region.now + _DEPARTED_MS, Due.FORGET, f"d:{driver_id}", region.now)


def _emit_handover(
    region: DispatchRegion,
    other: str,
    about: str,
    vehicle_class: str,
    lat: float,
    lon: float,
    given: dict[str, Any],
) -> None:
    region.book.next_seq()
    said: dict[str, Any] = {
        "event_id": f"{region.name}-{other}-{about}-{region.now}",
        "from_region": region.name,
        "region": other,
        "vehicle_class": vehicle_class,
        "lat": lat,
        "lon": lon,
        # It is read after this moment: at the same time it would be behind the watermark that caused it.
        "event_time_ms": region.now + 1,
    }
    nothing: dict[str, Any] = {"driver_id": "", "until_ms": 0, "free_since_ms": 0, "blocked_ms": 0}
    region.emit("handovers", Handover(**(nothing | said | given)))
