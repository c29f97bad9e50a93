"""Contracts of the ridesharing app: what comes in on its topics, a type for each.

What the app says stands in :mod:`millrace_apps.ridesharing.contracts.records`; handovers, which it says to
itself, stand here.

Fields stand in one order in all types, and what an event does not say stands in none: so the text of an
event begins with its time and then says whom it is. By that text events of one stream and one moment are
sorted where they are handled; of commands, those about drivers go before those about requests, and these
before those about zones.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

VehicleClass = Literal["standard", "xl", "premium", "accessible"]
#: How a rider and a driver stand to each other; ``none``: as anybody.
PairKind = Literal["favourite", "block", "none"]
DriverState = Literal["idle", "approaching", "waiting", "on_trip"]
Stage = Literal["arrived", "started", "finished"]
Action = Literal["assign", "cancel", "block", "unblock", "blackout", "lift", "end_trip"]

#: The end of the year 9999, UTC.
MAX_TIME_MS: Final = 253_402_300_799_999
#: The last number that an attempt may have: each is a bit of a whole number of 64.
LAST_ATTEMPT: Final = 63
#: So many offers a request may get; what operators assign by hand comes on top.
MOST_ATTEMPTS: Final = 60

#: Longest identity of anybody or anything, and so of a key.
MAX_KEY: Final = 128

Identifier = Annotated[str, Meta(min_length=1, max_length=MAX_KEY)]
#: An identity, or a word of why, that an event may do without.
Text = Annotated[str, Meta(max_length=MAX_KEY)]
Latitude = Annotated[float, Meta(ge=-90, le=90)]
Longitude = Annotated[float, Meta(ge=-180, le=180)]
TimeMs = Annotated[int, Meta(ge=0, le=MAX_TIME_MS)]
Attempt = Annotated[int, Meta(ge=1, le=1_000)]


class Position(msgspec.Struct, omit_defaults=True, kw_only=True, gc=False):
    """Where a driver is: the heartbeat of a driver on line; its key is the driver.

    Attributes:
        event_time_ms: When it was measured, UTC milliseconds.
        event_id: Its identity.
        driver_id: The driver.
        vehicle_class: Class of the car.
        lat: Where, degrees north.
        lon: Where, degrees east.
        state: What the driver's phone believes the driver is doing.
        mock: Whether the phone says that the position is not measured but made up.
        region: The region that it is for; set by the gate.
    """

    event_time_ms: TimeMs
    event_id: Identifier
    driver_id: Identifier
    vehicle_class: VehicleClass
    lat: Latitude
    lon: Longitude
    state: DriverState
    mock: bool = False
    region: Text = ""


class DriverStatus(msgspec.Struct, omit_defaults=True, kw_only=True, gc=False):
    """A driver comes on line or goes off line; its key is the driver.

    Attributes:
        event_time_ms: When, UTC milliseconds.
        event_id: Its identity.
        driver_id: The driver.
        vehicle_class: Class of the car.
        lat: Where, degrees north; the gate knows it of drivers who have been heard of.
        lon: Where, degrees east.
        status: Whether the driver is on line from now on.
        region: The region that it is for; set by the gate.
    """

    event_time_ms: TimeMs
    event_id: Identifier
    driver_id: Identifier
    vehicle_class: VehicleClass
    lat: Latitude | None = None
    lon: Longitude | None = None
    status: Literal["online", "offline"]
    region: Text = ""


class RideRequest(msgspec.Struct, omit_defaults=True, kw_only=True, gc=False):
    """A rider wants a ride; its key is the request.

    Attributes:
        event_time_ms: When it was asked for, UTC milliseconds.
        request_id: Its identity.
        rider_id: The rider.
        vehicle_class: Class of the car that is asked for.
        zone: H3 cell of the pick-up, resolution 7; all later events of the request repeat it.
        pickup_lat: Pick-up, degrees north.
        pickup_lon: Pick-up, degrees east.
        dropoff_lat: Drop-off, degrees north.
        dropoff_lon: Drop-off, degrees east.
        pickup_at_ms: When the rider wants to leave, UTC milliseconds; later than the request if booked ahead.
        quote_id: The quote whose multiplier the rider has taken; empty if there is none.
        pickup_point: Name of the point of a venue where the rider wants to be picked up; empty: the nearest.
        region: The region that it is for; set by the gate.
    """

    event_time_ms: TimeMs
    request_id: Identifier
    rider_id: Identifier
    vehicle_class: VehicleClass
    zone: Identifier
    pickup_lat: Latitude
    pickup_lon: Longitude
    dropoff_lat: Latitude
    dropoff_lon: Longitude
    pickup_at_ms: TimeMs
    quote_id: Text = ""
    pickup_point: Text = ""
    region: Text = ""


class QuoteRequest(msgspec.Struct, omit_defaults=True, kw_only=True, gc=False):
    """A rider asks what a ride would cost; its key is the quote.

    Attributes:
        event_time_ms: When, UTC milliseconds.
        quote_id: Its identity: that of the quote.
        rider_id: The rider.
        pickup_lat: Pick-up, degrees north.
        pickup_lon: Pick-up, degrees east.
        pickup_at_ms: When the rider wants to leave, UTC milliseconds; nothing: now.
    """

    event_time_ms: TimeMs
    quote_id: Identifier
    rider_id: Identifier
    pickup_lat: Latitude
    pickup_lon: Longitude
    pickup_at_ms: TimeMs = 0


class Answer(msgspec.Struct, omit_defaults=True, kw_only=True, gc=False):
    """A driver's answer to an offer, which may be over by then; its key is the request.

    Attributes:
        event_time_ms: When it was given, UTC milliseconds.
        event_id: Its identity.
        request_id: The request that was offered.
        driver_id: The driver.
        zone: The request's zone.
        offer_id: The offer.
        attempt: The offer's attempt.
        answer: Yes or no.
        reason: Why not: ``busy`` where the driver is not free.
        region: The region that it is for; set by the gate.
    """

    event_time_ms: TimeMs
    event_id: Identifier
    request_id: Identifier
    driver_id: Identifier
    zone: Identifier
    offer_id: Identifier
    attempt: Attempt
    answer: Literal["accept", "reject"]
    reason: Text = ""
    region: Text = ""


class Cancellation(msgspec.Struct, omit_defaults=True, kw_only=True, gc=False):
    """A rider or a driver calls a ride off; its key is the request.

    Attributes:
        event_time_ms: When, UTC milliseconds.
        event_id: Its identity.
        request_id: The request.
        driver_id: The driver who cancels; empty for a rider.
        zone: The request's zone.
        by: Who cancels.
        reason: Why.
        region: The region that it is for; set by the gate.
    """

    event_time_ms: TimeMs
    event_id: Identifier
    request_id: Identifier
    driver_id: Text = ""
    zone: Identifier
    by: Literal["rider", "driver"]
    reason: Identifier
    region: Text = ""


class Progress(msgspec.Struct, omit_defaults=True, kw_only=True, gc=False):
    """A driver is at the pick-up, sets off with the rider, or is at the drop-off; its key is the request.

    Attributes:
        event_time_ms: When, UTC milliseconds.
        event_id: Its identity.
        request_id: The request.
        driver_id: The driver.
        zone: The request's zone.
        lat: Where, degrees north.
        lon: Where, degrees east.
        stage: How far the trip is.
        region: The region that it is for; set by the gate.
    """

    event_time_ms: TimeMs
    event_id: Identifier
    request_id: Identifier
    driver_id: Identifier
    zone: Identifier
    lat: Latitude
    lon: Longitude
    stage: Stage
    region: Text = ""


class Command(msgspec.Struct, omit_defaults=True, kw_only=True, gc=False):
    """What an operator does by hand; its key is the driver, request or zone that it is about.

    Attributes:
        event_time_ms: When, UTC milliseconds.
        request_id: The request that is assigned or cancelled, or whose trip is ended.
        driver_id: The driver who is blocked or unblocked, or gets the request.
        zone: The zone that is blacked out, or the request's.
        reason: Why.
        command_id: Its identity.
        action: What the operator wants.
        operator: Who wants it.
        until_ms: Until when a block or blackout holds, UTC milliseconds.
        region: The region that it is for; set by the gate.
    """

    event_time_ms: TimeMs
    request_id: Text = ""
    driver_id: Text = ""
    zone: Text = ""
    reason: Identifier
    command_id: Identifier
    action: Action
    operator: Identifier
    until_ms: TimeMs = 0
    region: Text = ""


class Handover(msgspec.Struct, frozen=True, gc=False):
    """A region gives a driver away, asks its neighbours for one, or tells of a request; the gate reads it.

    Attributes:
        event_id: Its identity, of regions, driver or request, and time.
        driver_id: The driver; empty for what a region asks for.
        from_region: Who gives, or asks.
        region: Who gets, or is asked.
        vehicle_class: Class of the car.
        lat: Where the driver, or the pick-up, is, degrees north.
        lon: Where the driver, or the pick-up, is, degrees east.
        until_ms: Until when the driver may stay beyond the border, UTC ms.
        event_time_ms: When, UTC ms.
        free_since_ms: Since when the driver is free, UTC ms.
        seen_ms: When the driver was there, UTC ms.
        blocked_ms: Until when the driver is blocked, UTC ms.
        request_id: The request that a car is asked for.
        idle: Whether the driver's phone says that the driver is free.
        block_said_ms: When an operator has last blocked or unblocked the driver, UTC ms; 0: not of late.
        off_line_ms: Since when the driver is off line, UTC ms; 0: on line. Set by the gate, since the
            region that gives may not have been told.
        rider_id: Not empty: no car, but word of ``request_id``, whose rider that is.
        is_over: Of that request, whether it has ended; else a driver is searched for or bound from now on.
    """

    event_id: Annotated[str, Meta(min_length=1, max_length=4 * MAX_KEY)]
    driver_id: Text
    from_region: Text
    region: Identifier
    vehicle_class: VehicleClass
    lat: Latitude
    lon: Longitude
    until_ms: TimeMs
    event_time_ms: TimeMs
    free_since_ms: TimeMs
    seen_ms: TimeMs
    blocked_ms: TimeMs
    request_id: Text
    idle: bool = True
    block_said_ms: TimeMs = 0
    off_line_ms: TimeMs = 0
    rider_id: Text = ""
    is_over: bool = False


Event: TypeAlias = (
    Position | DriverStatus | RideRequest | Answer | Cancellation | Progress | Command | Handover
)

#: Input (and setting of its topic) → its events: what concerns the dispatch.
INPUTS: Final[dict[str, Any]] = {
    "locations": Position,
    "status": DriverStatus,
    "requests": RideRequest,
    "answers": Answer,
    "cancellations": Cancellation,
    "progress": Progress,
    "commands": Command,
    "handovers": Handover,
}
#: All that comes in: besides, what concerns prices.
GATE_INPUTS: Final[dict[str, Any]] = {**INPUTS, "quote_requests": QuoteRequest}
#: Of these, those that tell what time it is. The others are sent by people at a desk, and by the app itself;
#: and who asks for a price does not decide who comes too late for a ride.
CLOCKS: Final = tuple(INPUTS)[:6]
_STREAMS: Final[dict[type, str]] = {tp: name for name, tp in GATE_INPUTS.items()}


def stream_of(event: Event | QuoteRequest) -> str:
    """Return the input by which an event comes.

    >>> stream_of(Command(event_time_ms=0, reason="r", command_id="c", action="lift", operator="ann"))
    'commands'
    """
    return _STREAMS[type(event)]


def key_of(event: Event | QuoteRequest) -> str:
    """Return the key of an event's record: the driver, request, quote or zone that it is about.

    >>> key_of(Command(event_time_ms=0, driver_id="d1", zone="z", reason="r", command_id="c", action="block",
    ...                operator="ann"))
    'd1'
    """
    if isinstance(event, Position | DriverStatus):
        return event.driver_id
    if isinstance(event, Handover):
        return event.driver_id or event.request_id
    if isinstance(event, Command):
        of_driver = event.driver_id if event.action in ("block", "unblock") else ""
        return of_driver or event.request_id or event.zone
    return event.quote_id if isinstance(event, QuoteRequest) else event.request_id


def has_other_key(event: Event | QuoteRequest, key: str) -> bool:
    """Return whether an event whose key says what is known of it has come under another one.

    What a driver's phone says, and which requests and quotes have come before, is known by key. Of answers
    and steps of a trip nothing is.

    >>> has_other_key(DriverStatus(event_time_ms=0, event_id="e", driver_id="d1", vehicle_class="standard",
    ...                            status="offline"), "d2")
    True
    """
    known = isinstance(event, Position | DriverStatus | RideRequest | QuoteRequest)
    return known and key_of(event) != key


def identity_of(event: Event | QuoteRequest) -> str:
    """Return the identity of an event among those of its stream.

    >>> identity_of(Command(event_time_ms=0, reason="r", command_id="c1", action="lift", operator="ann"))
    'c1'
    """
    if isinstance(event, Command):
        return event.command_id
    if isinstance(event, QuoteRequest):
        return event.quote_id
    return event.request_id if isinstance(event, RideRequest) else event.event_id


_DAY_MS: Final = 86_400_000
#: How far after an event a time in it may be, ms. What is later would be waited for as long as that.
AHEAD_MS: Final[dict[str, int]] = {
    "pickup_at_ms": 31 * _DAY_MS,
    "until_ms": 366 * _DAY_MS,
    "blocked_ms": 366 * _DAY_MS,
    "seen_ms": _DAY_MS,
    "free_since_ms": _DAY_MS,
    "block_said_ms": _DAY_MS,
    "off_line_ms": _DAY_MS,
}


def too_far_ahead(event: Event | QuoteRequest) -> list[str]:
    """Return the times in an event that are further after it than they may be.

    >>> block = Command(event_time_ms=1_000, driver_id="d1", reason="r", command_id="c", action="block",
    ...                 operator="ann", until_ms=5_000)
    >>> too_far_ahead(block), too_far_ahead(msgspec.structs.replace(block, until_ms=MAX_TIME_MS))
    ([], ['until_ms'])
    """
    at = event.event_time_ms
    return [name for name, most in AHEAD_MS.items() if getattr(event, name, 0) > at + most]


class SetPolicy(msgspec.Struct, frozen=True, tag_field="kind", tag="set_policy"):
    """A control event: windows that end from a time on are decided by another policy, in all regions.

    Attributes:
        policy: The policy.
        from_ms: From which end of a window on, UTC milliseconds; 0: from when it arrives.
        command_id: Its identity.
        operator: Who wants it; who is named stands in the table ``operations``.
        reason: Why.
    """

    policy: Literal["fifo", "nearest", "optimal"]
    from_ms: TimeMs = 0
    command_id: Text = ""
    operator: Text = ""
    reason: Text = ""


class SetShadows(msgspec.Struct, frozen=True, tag_field="kind", tag="set_shadows"):
    """A control event: which policies are computed beside the one in force, to be compared with it.

    Attributes:
        policies: Their names; none turns shadow runs off.
    """

    policies: Annotated[list[Literal["fifo", "nearest", "optimal"]], Meta(max_length=3)]


class SetSurgeCap(msgspec.Struct, frozen=True, tag_field="kind", tag="set_surge_cap"):
    """A control event: no multiplier is larger than this, in all regions.

    Attributes:
        cap: The largest multiplier; 1: prices do not follow scarcity.
        command_id: Its identity.
        operator: Who wants it.
        reason: Why.
        from_ms: From when on, UTC milliseconds; 0: from when it arrives.
    """

    cap: Annotated[float, Meta(ge=1, le=10)]
    command_id: Identifier
    operator: Identifier
    reason: Identifier
    from_ms: TimeMs = 0


class SetPair(msgspec.Struct, frozen=True, tag_field="kind", tag="set_pair"):
    """A control event: a rider and a driver have each other for a favourite, or are never to meet again.

    Attributes:
        rider_id: The rider.
        driver_id: The driver.
        stands: What they are to each other from now on; ``none`` takes back what was said before.
        command_id: Its identity.
        operator: Who wants it: somebody at a desk, or the service that takes ratings.
        reason: Why.
        from_ms: From when on, UTC milliseconds; 0: from when it arrives.
    """

    rider_id: Identifier
    driver_id: Identifier
    stands: PairKind
    command_id: Identifier
    operator: Identifier
    reason: Identifier
    from_ms: TimeMs = 0


class PickUpPoint(msgspec.Struct, frozen=True, array_like=True):
    """A named place of a venue where riders and drivers meet.

    Attributes:
        name: Its name.
        lat: Where, degrees north.
        lon: Where, degrees east.
        is_open: Whether riders are sent there.
    """

    name: Identifier
    lat: Latitude
    lon: Longitude
    is_open: bool = True


class ShortTrip(msgspec.Struct, frozen=True):
    """Which trips from a venue's line are short; who drove one joins the line in front of those who did not.

    Of ``minutes`` and ``km`` one is set at least; where both are, both must hold.

    Attributes:
        back_minutes: So soon after the trip's end the driver must be back in the pen.
        minutes: A trip is short that ends so soon after the driver's yes; 0: however long it takes.
        km: A trip is short that ends so near to its pick-up, straight line, kilometres; 0: wherever it ends.
    """

    back_minutes: Annotated[float, Meta(gt=0, le=1_440)]
    minutes: Annotated[float, Meta(ge=0, le=1_440)] = 0.0
    km: Annotated[float, Meta(ge=0, le=1_000)] = 0.0


#: Cells of a zone or a pen, as texts; a whole region of the world is no venue.
Cells = Annotated[list[Identifier], Meta(max_length=500)]


class SetVenue(msgspec.Struct, frozen=True, tag_field="kind", tag="set_venue"):
    """A control event: a venue, an airport for example, is as it says here from a time on.

    Attributes:
        name: Its name.
        zone: H3 cells, resolutions 7 to 13, all in one region: who asks for a ride there is the venue's.
        pen: H3 cells of the same resolutions where drivers wait in line; none: there is no line.
        points: Where riders of the zone are picked up, within it; none: where they are.
        rule: Whose turn it is in the line: who has come first.
        short_trip: Which trips are short, and so earn a place in front; ``None``: none are.
        command_id: Its identity.
        operator: Who wants it.
        reason: Why.
        from_ms: From when on, UTC milliseconds; 0: from when it arrives.
    """

    name: Identifier
    zone: Annotated[list[Identifier], Meta(min_length=1, max_length=500)]
    pen: Cells
    points: Annotated[list[PickUpPoint], Meta(max_length=50)]
    command_id: Identifier
    operator: Identifier
    reason: Identifier
    from_ms: TimeMs = 0
    rule: Literal["fifo"] = "fifo"
    short_trip: ShortTrip | None = None


class DropVenue(msgspec.Struct, frozen=True, tag_field="kind", tag="drop_venue"):
    """A control event: a venue is no more from a time on, and nobody waits in its line.

    Attributes:
        name: Its name.
        command_id: Its identity.
        operator: Who wants it.
        reason: Why.
        from_ms: From when on, UTC milliseconds; 0: from when it arrives.
    """

    name: Identifier
    command_id: Identifier
    operator: Identifier
    reason: Identifier
    from_ms: TimeMs = 0


Control = SetPolicy | SetShadows | SetSurgeCap | SetPair | SetVenue | DropVenue
