"""Operators' commands in a region: assign, cancel, end, block, black out; each leaves a trail."""

from __future__ import annotations

from millrace.places import distance_m
from millrace_apps.ridesharing.contracts.events import LAST_ATTEMPT, Command
from millrace_apps.ridesharing.contracts.records import Operation
from millrace_apps.ridesharing.processes.desk import Desk
from millrace_apps.ridesharing.processes.neighbours import cross_border
from millrace_apps.ridesharing.processes.reconcile import finish_trip
from millrace_apps.ridesharing.state.entries import Due

#: Why an order that comes late is not carried out.
_OVERTAKEN = "a later order has been carried out"


def carry_out(desk: Desk, event: Command) -> None:
    """Carry out a command, or say why not."""
    refused = {
        "assign": _assign,
        "cancel": _cancel,
        "block": _block,
        "unblock": _unblock,
        "blackout": _black_out,
        "lift": _lift_blackout,
        "end_trip": _end_trip,
    }[event.action](desk, event)
    desk.say(
        "operations",
        Operation(
            command_id=event.command_id,
            region=desk.region,
            action=event.action,
            operator=event.operator,
            reason=event.reason,
            request_id=event.request_id,
            driver_id=event.driver_id,
            zone=event.zone,
            until_ms=event.until_ms,
            outcome="refused" if refused else "done",
            detail=refused,
            at_ms=desk.now,
        ),
    )


def lift(desk: Desk, about: str) -> None:
    """End a block or blackout whose time has come."""
    kind, _, name = about.partition(":")
    held = desk.book.blocked if kind == "d" else desk.book.blackouts
    if name in held and held[name] <= desk.now:
        del held[name]
        if kind == "d":
            desk.change(name, "unblocked")


def _assign(desk: Desk, event: Command) -> str:
    book = desk.book
    ride, car = book.rides.get(event.request_id), book.cars.get(event.driver_id)
    if ride is None:
        return "the request is over or unknown"
    if ride.state not in ("booked", "processing", "offered"):
        return f"the request is {ride.state}"
    if other := desk.other_request(ride):
        return f"the rider has request {other}"
    if ride.attempt >= LAST_ATTEMPT:
        return "the request has had too many attempts"
    if car is None or not car.online:
        return "the driver is not on line in this region"
    if car.request_id and car.request_id != event.request_id:
        return f"the driver has request {car.request_id}"
    if book.blocked.get(event.driver_id, 0) > desk.now:
        return "the driver is blocked"
    if event.driver_id in desk.named(ride.rider_id).blocked:
        return "the rider and the driver are not to meet"
    if ride.state == "offered":
        offered_to = ride.driver_id
        desk.free(ride, "withdrawn")
        desk.search(ride, "offer withdrawn by an operator", anew=False)
        if offered_to != event.driver_id:
            desk.release(ride.request_id, offered_to, "replaced")
    desk.assign(ride, event.driver_id, distance_m(car.lat, car.lon, ride.lat, ride.lon))
    return ""


def _cancel(desk: Desk, event: Command) -> str:
    ride = desk.book.rides.get(event.request_id)
    if ride is None:
        return "the request is over or unknown"
    if ride.state == "in_progress":
        return "the rider is aboard"
    ending = "withdrawn" if ride.state == "offered" else "operator_cancelled"
    desk.end(ride, "operator_cancelled", f"operator: {event.reason}", "cancelled", ending)  # type: ignore[arg-type]
    return ""


def _end_trip(desk: Desk, event: Command) -> str:
    ride = desk.book.rides.get(event.request_id)
    if ride is None:
        return "the request is over or unknown"
    if ride.state != "in_progress":
        return f"the request is {ride.state}: cancel it"
    if event.driver_id and event.driver_id != ride.driver_id:
        return f"the driver is {ride.driver_id}"
    driver_id = finish_trip(desk, ride, f"operator: {event.reason}")
    desk.release(event.request_id, driver_id, "cancelled")
    cross_border(desk, driver_id)
    return ""


def _block(desk: Desk, event: Command) -> str:
    if event.until_ms <= desk.now:
        return "until_ms is over"
    if not _is_newest(desk, f"d:{event.driver_id}", event):
        return _OVERTAKEN
    desk.book.blocked[event.driver_id] = event.until_ms
    desk.book.remind(event.until_ms, Due.LIFT, f"d:{event.driver_id}")
    desk.change(event.driver_id, "blocked")
    return ""


def _unblock(desk: Desk, event: Command) -> str:
    if not _is_newest(desk, f"d:{event.driver_id}", event):
        return _OVERTAKEN
    if desk.book.blocked.pop(event.driver_id, None) is None:
        return "the driver is not blocked"
    desk.change(event.driver_id, "unblocked")
    return ""


def _black_out(desk: Desk, event: Command) -> str:
    if event.until_ms <= desk.now:
        return "until_ms is over"
    if not _is_newest(desk, f"z:{event.zone}", event):
        return _OVERTAKEN
    desk.book.blackouts[event.zone] = event.until_ms
    desk.book.remind(event.until_ms, Due.LIFT, f"z:{event.zone}")
    return ""


def _lift_blackout(desk: Desk, event: Command) -> str:
    if not _is_newest(desk, f"z:{event.zone}", event):
        return _OVERTAKEN
    if desk.book.blackouts.pop(event.zone, None) is None:
        return "there is no blackout"
    return ""


def _is_newest(desk: Desk, about: str, event: Command) -> bool:
    """Return whether no later order about a driver or zone has been carried out: the last word holds."""
    until = max(desk.now + desk.config.remember_ms, event.until_ms)
    return desk.book.order(about, event.event_time_ms, until)
