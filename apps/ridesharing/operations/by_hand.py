"""Operators' commands in a region: assign, cancel, end, block, black out; each leaves a trail."""

from __future__ import annotations

from millrace.places import distance_m
from millrace_apps.ridesharing.contracts.events import LAST_ATTEMPT, Command
from millrace_apps.ridesharing.contracts.records import Operation
from millrace_apps.ridesharing.processes.dispatch_region import DispatchRegion
from millrace_apps.ridesharing.processes.neighbours import cross_border
from millrace_apps.ridesharing.processes.reconcile import finish_trip
from millrace_apps.ridesharing.state.entries import Due

#: Why an order that comes late is not carried out.
_OVERTAKEN = "a later order has been carried out"


def carry_out(region: DispatchRegion, event: Command) -> None:
    """Carry out a command, or say why not."""
    refused = {
        "assign": _assign,
        "cancel": _cancel,
        "block": _block,
        "unblock": _unblock,
        "blackout": _black_out,
        "lift": _lift_blackout,
        "end_trip": _end_trip,
    }[event.action](region, event)
    region.emit(
        "operations",
        Operation(
            command_id=event.command_id,
            region=region.name,
            action=event.action,
            operator=event.operator,
            reason=event.reason,
            request_id=event.request_id,
            driver_id=event.driver_id,
            zone=event.zone,
            until_ms=event.until_ms,
            outcome="refused" if refused else "done",
            detail=refused,
            at_ms=region.now,
        ),
    )


def lift(region: DispatchRegion, about: str) -> None:
    """End a block or blackout whose time has come."""
    kind, _, name = about.partition(":")
    held = region.book.blocked if kind == "d" else region.book.blackouts
    if name in held and held[name] <= region.now:
        del held[name]
        if kind == "d":
            region.change(name, "unblocked")


def _assign(region: DispatchRegion, event: Command) -> str:
    book = region.book
    ride, car = book.rides.get(event.request_id), book.cars.get(event.driver_id)
    if ride is None:
        return "the request is over or unknown"
    if ride.state not in ("booked", "processing", "offered"):
        return f"the request is {ride.state}"
    if other := region.other_request(ride):
        return f"the rider has request {other}"
    if ride.attempt >= LAST_ATTEMPT:
        return "the request has had too many attempts"
    if car is None or not car.online:
        return "the driver is not on line in this region"
    if car.request_id and car.request_id != event.request_id:
        return f"the driver has request {car.request_id}"
    if book.blocked.get(event.driver_id, 0) > region.now:
        return "the driver is blocked"
    if event.driver_id in region.named(ride.rider_id).blocked:
        return "the rider and the driver are not to meet"
    if ride.state == "offered":
        offered_to = ride.driver_id
        region.free(ride, "withdrawn")
        region.search(ride, "offer withdrawn by an operator", anew=False)
        if offered_to != event.driver_id:
            region.release(ride.request_id, offered_to, "replaced")
    region.assign(ride, event.driver_id, distance_m(car.lat, car.lon, ride.lat, ride.lon))
    return ""


def _cancel(region: DispatchRegion, event: Command) -> str:
    ride = region.book.rides.get(event.request_id)
    if ride is None:
        return "the request is over or unknown"
    if ride.state == "in_progress":
        return "the rider is aboard"
    ending = "withdrawn" if ride.state == "offered" else "operator_cancelled"
    region.end(ride, "operator_cancelled", f"operator: {event.reason}", "cancelled", ending)  # type: ignore[arg-type]
    return ""


def _end_trip(region: DispatchRegion, event: Command) -> str:
    ride = region.book.rides.get(event.request_id)
    if ride is None:
        return "the request is over or unknown"
    if ride.state != "in_progress":
        return f"the request is {ride.state}: cancel it"
    if event.driver_id and event.driver_id != ride.driver_id:
        return f"the driver is {ride.driver_id}"
    driver_id = finish_trip(region, ride, f"operator: {event.reason}")
    region.release(event.request_id, driver_id, "cancelled")
    cross_border(region, driver_id)
    return ""


def _block(region: DispatchRegion, event: Command) -> str:
    if event.until_ms <= region.now:
        return "until_ms is over"
    if not _is_newest(region, f"d:{event.driver_id}", event):
        return _OVERTAKEN
    region.book.blocked[event.driver_id] = event.until_ms
    region.book.remind(event.until_ms, Due.LIFT, f"d:{event.driver_id}")
    region.change(event.driver_id, "blocked")
    return ""


def _unblock(region: DispatchRegion, event: Command) -> str:
    if not _is_newest(region, f"d:{event.driver_id}", event):
        return _OVERTAKEN
    if region.book.blocked.pop(event.driver_id, None) is None:
        return "the driver is not blocked"
    region.change(event.driver_id, "unblocked")
    return ""


def _black_out(region: DispatchRegion, event: Command) -> str:
    if event.until_ms <= region.now:
        return "until_ms is over"
    if not _is_newest(region, f"z:{event.zone}", event):
        return _OVERTAKEN
    region.book.blackouts[event.zone] = event.until_ms
    region.book.remind(event.until_ms, Due.LIFT, f"z:{event.zone}")
    return ""


def _lift_blackout(region: DispatchRegion, event: Command) -> str:
    if not _is_newest(region, f"z:{event.zone}", event):
        return _OVERTAKEN
    if region.book.blackouts.pop(event.zone, None) is None:
        return "there is no blackout"
    return ""


def _is_newest(region: DispatchRegion, about: str, event: Command) -> bool:
    """Return whether no later order about a driver or zone has been carried out: the last word holds."""
    until = max(region.now + region.config.remember_ms, event.until_ms)
    return region.book.order(about, event.event_time_ms, until)
