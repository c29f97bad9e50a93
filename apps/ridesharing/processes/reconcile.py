"""Reconciliation: what a driver's phone says, held against the book, and against where the car is.

A phone says what its driver is doing with every position. Where that and the book differ for longer than
a message takes, one of the two has lost something: the book follows the phone, and a row says why. What a
driver reports (at the pick-up, aboard, at the drop-off, nobody came) counts where the car can have been.
"""

from __future__ import annotations

from typing import Final

from millrace.places import distance_m
from millrace_apps.ridesharing.contracts.events import Cancellation, DriverState, Progress
from millrace_apps.ridesharing.contracts.records import Mismatch, MismatchAction, MismatchReason
from millrace_apps.ridesharing.processes.dispatch_region import DispatchRegion
from millrace_apps.ridesharing.processes.geo import travel_ms
from millrace_apps.ridesharing.state.book import OFF_LINE_MS
from millrace_apps.ridesharing.state.entries import Car, Due, Ride

#: State of a ride → what its driver's phone must not say for long, and why that is odd.
ODD: Final[dict[str, dict[DriverState, MismatchReason]]] = {
    "accepted": {"on_trip": "start_lost"},
    "arrived": {"on_trip": "start_lost"},
    "in_progress": {"idle": "finish_lost", "approaching": "phone_behind", "waiting": "phone_behind"},
}


def is_odd(ride: Ride, phone: DriverState) -> bool:
    """Return whether what a phone says differs from the book, or has done so before."""
    return ride.odd_ms != 0 or phone in ODD.get(ride.state, ())


def hear_phone(region: DispatchRegion, driver_id: str, phone: DriverState, at_ms: int) -> None:
    """Hold a phone's word against the book; follow the phone where it has differed for long enough.

    Args:
        region: The region.
        driver_id: Whose phone.
        phone: What it says the driver is doing.
        at_ms: When it says so, ms.
    """
    ride = _ride_of(region, driver_id)
    if ride is None or not region.config.reconcile_ms:
        return
    reason = ODD.get(ride.state, {}).get(phone)
    if reason is None:
        ride.odd, ride.odd_ms = "", 0
    elif ride.odd != reason:
        ride.odd, ride.odd_ms = reason, at_ms
    elif ride.odd_ms > 0 and at_ms - ride.odd_ms >= region.config.reconcile_ms:
        _follow(region, ride, phone, reason)


def sign_off(region: DispatchRegion, driver_id: str) -> None:
    """Take a driver off line until a status says otherwise; a trip that is under way is driven to its end."""
    book = region.book
    book.off_line[driver_id] = region.now
    book.remind(region.now + OFF_LINE_MS, Due.FORGET, f"o:{driver_id}", region.now)
    car = book.cars.get(driver_id)
    if car is None:
        return
    ride = book.rides.get(car.request_id)
    if ride is None:
        region.forget(driver_id, "offline")
        return
    car.online = False
    if _ends_by_going(region, ride):
        return
    if ride.state == "offered":
        region.again(ride, "driver went off line", "expired", "withdrawn", anew=False)
    elif ride.state in ("accepted", "arrived"):
        region.again(ride, "driver went off line", "replaced", "replaced", anew=True)
    # In a trip the driver finishes it; the rider is aboard.


def _ends_by_going(region: DispatchRegion, ride: Ride) -> bool:
    """End the trip of a driver who goes off line after the phone has said that it is over.

    Returns:
        Whether the trip has ended by that.
    """
    if ride.state != "in_progress" or ride.odd != "finish_lost" or ride.odd_ms <= 0:
        return False
    _follow(region, ride, "idle", "finish_lost")
    return True


def waits_for_phone(region: DispatchRegion, ride: Ride, due: Due, again_ms: int, latest_ms: int) -> bool:
    """Return whether a driver keeps a ride for now whose phone says that the rider is aboard.

    What was reported may be lost: the phone is believed when it has said so for long enough, and until then
    it is no sign that nobody came, or that the car goes the wrong way.

    Args:
        region: The region.
        ride: The ride, before the rider is aboard by the book.
        due: What is due: it is looked at again.
        again_ms: When, ms.
        latest_ms: From then on nothing is waited for, ms.
    """
    if ride.odd != "start_lost" or ride.odd_ms <= 0 or region.now >= latest_ms:
        return False
    if region.now - ride.odd_ms < region.config.reconcile_ms:
        region.book.remind(again_ms, due, ride.request_id, ride.revision)
        return True
    car = region.book.cars.get(ride.driver_id)
    if car is None or region.now - car.seen_ms > region.config.ttl_ms:
        return False
    _follow(region, ride, "on_trip", "start_lost")
    return True


def refuse_progress(region: DispatchRegion, ride: Ride, car: Car | None, event: Progress) -> bool:
    """Return whether a report of a driver is refused, after saying so; what is odd and counts is said too."""
    config = region.config
    if not config.geofence_m:
        return False
    if event.stage == "finished":
        _check_finish(region, ride, event)
        return False
    metres = distance_m(event.lat, event.lon, ride.lat, ride.lon)
    # The report's own place, and the last one that the gate has let pass, unless that is of another time: of
    # a report that comes late the car has gone on since.
    if car is not None and abs(event.event_time_ms - car.seen_ms) <= config.refresh_ms:
        metres = max(metres, distance_m(car.lat, car.lon, ride.lat, ride.lon))
    if metres > config.geofence_m:
        _emit_doubt(region, ride, event.stage, "too_far", "refused", metres, event.event_time_ms)
        return True
    if _is_too_soon(region, ride.distance_m, event.event_time_ms - ride.offered_ms):
        _emit_doubt(region, ride, event.stage, "too_soon", "refused", ride.distance_m, event.event_time_ms)
        return True
    return False


def refuse_no_show(region: DispatchRegion, ride: Ride, car: Car | None, event: Cancellation) -> bool:
    """Return whether a driver's word that nobody came is refused, after saying so."""
    config = region.config
    if not config.geofence_m:
        return False
    # A car that is not heard of is nowhere.
    there = car is not None and region.now - car.seen_ms <= config.ttl_ms
    metres = distance_m(car.lat, car.lon, ride.lat, ride.lon) if car is not None and there else -1.0
    reason: MismatchReason
    if ride.state != "arrived":
        reason = "not_arrived"
    elif region.now < max(ride.arrived_ms, ride.pickup_at_ms) + config.least_wait_ms:
        reason = "too_soon"
    elif metres < 0 or metres > config.geofence_m:
        reason = "too_far"
    else:
        return False
    _emit_doubt(region, ride, "no_show", reason, "searched_again", metres, event.event_time_ms)
    return True


def finish_trip(region: DispatchRegion, ride: Ride, cause: str) -> str:
    """End a trip as completed, and return whose it was.

    Args:
        region: The region.
        ride: The trip.
        cause: What ended it.
    """
    driver_id = ride.driver_id
    car = region.book.cars.get(driver_id)
    if car is not None:
        car.idle = True
    region.free(ride, "completed")
    ride.driver_id = driver_id
    region.move(ride, "completed", cause)
    return driver_id


def start_trip(region: DispatchRegion, ride: Ride, at_ms: int, cause: str) -> None:
    """Begin a trip; it is lost where nothing is heard of it for too long."""
    config = region.config
    ride.started_ms, ride.wait_ms = at_ms, max(0, at_ms - ride.pickup_at_ms)
    region.move(ride, "in_progress", cause)
    most = config.trip_ms
    if config.overdue_ms and ride.to_lat is not None and ride.to_lon is not None:
        takes = travel_ms(distance_m(ride.lat, ride.lon, ride.to_lat, ride.to_lon))
        most = min(most, 3 * takes + config.overdue_ms)
    ride.ends_ms = region.now + config.trip_ms
    region.book.remind(region.now + most, Due.TRIP, ride.request_id, ride.revision)


def check_trip(region: DispatchRegion, ride: Ride) -> None:
    """Give a trip up that should be over, unless its driver is still heard of."""
    car, config = region.book.cars.get(ride.driver_id), region.config
    heard = car is not None and region.now - car.seen_ms <= config.ttl_ms
    if heard and config.overdue_ms and region.now < ride.ends_ms:
        at = min(ride.ends_ms, region.now + config.overdue_ms)
        region.book.remind(at, Due.TRIP, ride.request_id, ride.revision)
        return
    region.end(ride, "lost", "nothing heard of the trip", "cancelled", "lost")


def _follow(region: DispatchRegion, ride: Ride, phone: DriverState, reason: MismatchReason) -> None:
    since = ride.odd_ms
    action: MismatchAction = "ended" if reason == "finish_lost" else "started"
    if reason == "phone_behind":
        action = "told"
    _emit_doubt(region, ride, phone, reason, action, -1.0, since)
    if reason == "phone_behind":
        ride.odd_ms = -1  # said once; it is the phone that has lost something
        return
    ride.odd, ride.odd_ms = "", 0
    if reason == "finish_lost":
        finish_trip(region, ride, "the phone says the trip is over")
    else:
        start_trip(region, ride, since, "the phone says the rider is aboard")


def _check_finish(region: DispatchRegion, ride: Ride, event: Progress) -> None:
    """Say where a trip ends elsewhere than asked for, or sooner than any car drives; it ends all the same."""
    config, at = region.config, event.event_time_ms
    driven = distance_m(ride.lat, ride.lon, event.lat, event.lon)
    if ride.state != "in_progress":
        _emit_doubt(region, ride, event.stage, "start_lost", "ended", driven, at)
    elif _is_too_soon(region, driven, at - (ride.started_ms or ride.pickup_at_ms + ride.wait_ms)):
        _emit_doubt(region, ride, event.stage, "too_soon", "ended", driven, at)
    if ride.to_lat is None or ride.to_lon is None:
        return
    metres = distance_m(event.lat, event.lon, ride.to_lat, ride.to_lon)
    if metres > config.geofence_m:
        _emit_doubt(region, ride, event.stage, "elsewhere", "ended", metres, at)


def _is_too_soon(region: DispatchRegion, metres: float, elapsed_ms: int) -> bool:
    """Return whether no car drives so far in a time."""
    most = region.config.most_m_per_s
    return most > 0 and metres - region.config.geofence_m > most * max(0, elapsed_ms) / 1_000


def _ride_of(region: DispatchRegion, driver_id: str) -> Ride | None:
    car = region.book.cars.get(driver_id)
    return region.book.rides.get(car.request_id) if car is not None and car.request_id else None


def _emit_doubt(
    region: DispatchRegion,
    ride: Ride,
    said: str,
    reason: MismatchReason,
    action: MismatchAction,
    metres: float,
    since_ms: int,
) -> None:
    about = (ride.request_id, ride.driver_id, region.name, said, ride.state, reason, action)
    region.emit("mismatches", Mismatch(*about, round(metres, 1), since_ms, region.now))
