"""Contracts of the outputs: messages to drivers and riders, and the rows of the tables.

Handovers, which it says to itself, are among its inputs:
:class:`millrace_apps.ridesharing.contracts.events.Handover`.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

#: State of a request; see :mod:`millrace_apps.ridesharing.state.lifecycle`.
RideState = Literal[
    "booked",
    "processing",
    "offered",
    "accepted",
    "arrived",
    "in_progress",
    "completed",
    "rider_cancelled",
    "no_show",
    "operator_cancelled",
    "no_drivers_available",
    "lost",
    "refused",
]
#: How an attempt to bring a rider and a driver together stands, or ended.
AttemptState = Literal[
    "offered",
    "accepted",
    "rejected",
    "expired",
    "withdrawn",
    "replaced",
    "driver_cancelled",
    "rider_cancelled",
    "no_show",
    "operator_cancelled",
    "completed",
    "lost",
]
ReleaseReason = Literal["expired", "rider_cancelled", "replaced", "no_show", "no_driver", "cancelled"]

#: Why a driver's word and the book, or the place of the car, differ.
MismatchReason = Literal[
    "start_lost", "finish_lost", "phone_behind", "too_far", "too_soon", "not_arrived", "elsewhere"
]
#: Why a rider is not sent to the point that was asked for: the venue has none of that name, it is closed, or
#: the rider is at no venue.
PointWhy = Literal["", "unknown", "closed", "no_venue"]
#: Why a position is not believed.
SuspectReason = Literal["mock", "impossible_speed"]
#: What came of it.
MismatchAction = Literal["started", "ended", "told", "refused", "searched_again"]

#: Attempts in these states hold the driver.
OPEN_ATTEMPTS: Final = frozenset({"offered", "accepted"})


class Offer(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A driver is asked to take a request.

    Attributes:
        offer_id: Its identity.
        request_id: The request.
        driver_id: The driver.
        attempt: How many attempts of this request there have been, this one included.
        expires_ms: Until when an answer counts, UTC milliseconds.
        event_time_ms: When it is made, UTC milliseconds.
        region: Who makes it.
        pickup_lat: Pick-up, degrees north.
        pickup_lon: Pick-up, degrees east.
        distance_m: Straight line to the pick-up, metres.
        expected_s: What the way to it should take, seconds; ``None``: arrival times are not learned.
        low_s: So long at least; nine of ten ways are between the two.
        high_s: So long at most.
        pickup_point: At a venue the name of the point where the rider will be; empty: at none.
        pickup_why: Why it is not the point that the rider has asked for; empty: it is, or none was.
    """

    offer_id: str
    request_id: str
    driver_id: str
    attempt: int
    expires_ms: int
    event_time_ms: int
    region: str
    pickup_lat: float
    pickup_lon: float
    distance_m: float
    expected_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    pickup_point: str = ""
    pickup_why: PointWhy = ""


class Assignment(msgspec.Struct, frozen=True, gc=False):
    """A request is given to a driver, who now drives to the pick-up.

    Attributes:
        request_id: The request.
        driver_id: The driver.
        attempt: The attempt that was accepted.
        event_time_ms: When, UTC milliseconds.
        eta_ms: Expected arrival at the pick-up, UTC milliseconds.
    """

    request_id: str
    driver_id: str
    attempt: int
    event_time_ms: int
    eta_ms: int


class Release(msgspec.Struct, frozen=True, gc=False):
    """An offer or assignment is taken back, a late accept is refused, or a request is given up.

    Attributes:
        request_id: The request.
        driver_id: The driver who is free again; empty if there is none.
        reason: Why.
        event_time_ms: When, UTC milliseconds.
    """

    request_id: str
    driver_id: str
    reason: ReleaseReason
    event_time_ms: int


class Attempt(msgspec.Struct, frozen=True, gc=False):
    """A row of the table of assignments, by request and attempt: the newest revision counts.

    Attributes:
        request_id: The request.
        attempt: 1, 2, …
        revision: 0, 1, …: the row with the highest is what holds.
        driver_id: The driver.
        region: Who made it.
        state: How it stands.
        policy: By which policy it was made; ``manual`` by an operator, ``line`` by whose turn it was at a
            venue.
        offered_ms: When it was offered (manually: assigned), UTC ms.
        accepted_ms: When it was accepted, UTC ms.
        closed_ms: When it ended, UTC ms; 0 while it is open.
        distance_m: Straight line to the pick-up when it was offered, metres.
        radius_m: How far it was allowed to be, metres.
        location_age_ms: How old the driver's position was then, ms.
        ttl_ms: How old it was allowed to be, ms.
        vehicle_class: Class of the car.
        wanted_class: Class that was asked for.
        idle_ms: How long the driver had been free when it was offered, ms.
        cost_ms: What the pair cost in its window, by which it was chosen, ms; below, of what that is made.
            ``None``, as all below: by hand, or by whose turn it was at a venue.
        drive_ms: The drive to the pick-up.
        place_ms: What the car was worth where it stood.
        drop_ms: That the ride ends where nobody asks.
        class_ms: That the car is of another class; below 0: the two are favourites.
        doubt_ms: That the driver might not take it.
        turn_ms: Whose turn it was; below 0: the driver's.
    """

    request_id: str
    attempt: int
    revision: int
    driver_id: str
    region: str
    state: AttemptState
    policy: str
    offered_ms: int
    accepted_ms: int
    closed_ms: int
    distance_m: float
    radius_m: float
    location_age_ms: int
    ttl_ms: int
    vehicle_class: str
    wanted_class: str
    idle_ms: int
    cost_ms: int | None = None
    drive_ms: int | None = None
    place_ms: int | None = None
    drop_ms: int | None = None
    class_ms: int | None = None
    doubt_ms: int | None = None
    turn_ms: int | None = None


class Trip(msgspec.Struct, frozen=True, gc=False):
    """A row of the table of trips, by request, and a message on the topic of trips: a state and how it came.

    Attributes:
        request_id: The request.
        revision: 0, 1, …: the row with the highest is what holds.
        rider_id: The rider.
        region: Who has it.
        zone: Zone of the pick-up.
        vehicle_class: The class asked for.
        before: State before; empty for a new request.
        state: State from now on.
        cause: What brought it about.
        driver_id: The driver, if there is one.
        attempt: Attempts so far.
        requested_ms: When it was asked for, UTC ms.
        pickup_at_ms: When the rider wants to leave, UTC ms.
        at_ms: Since when the state holds, UTC ms.
        wait_ms: From the time the rider wanted to leave to the pick-up, ms; 0 before it.
    """

    request_id: str
    revision: int
    rider_id: str
    region: str
    zone: str
    vehicle_class: str
    before: str
    state: RideState
    cause: str
    driver_id: str
    attempt: int
    requested_ms: int
    pickup_at_ms: int
    at_ms: int
    wait_ms: int


class WindowReport(msgspec.Struct, frozen=True, gc=False):
    """What a dispatch window of a region decided, and what other policies would have.

    Attributes:
        region: The region.
        window_end_ms: Its end, UTC ms; it has everything in (end − length, end].
        policy: The policy in force.
        riders: Who waited for an offer.
        deferred: How many of them were too many for one window.
        drivers_online: Drivers that the region knows, not stale.
        drivers_free: Of those, who could be offered a ride.
        drivers_offered: Of those, with an open offer.
        drivers_busy: Of those, with an accepted request.
        candidates: Pairs that could have been made.
        matched: Pairs that were.
        objective_ms: Costs of the pairs made and penalties of the riders left, ms.
        pickup_m: Straight-line distances of the pairs made, metres.
        shadow_fifo_ms: What ``fifo`` would have had as objective, ms; -1: not computed.
        shadow_nearest_ms: The same of ``nearest``.
        shadow_optimal_ms: The same of ``optimal``.
        longest_wait_ms: How long the rider has waited who waits longest, ms.
        wait_ms: Of the pairs made how long their riders will have waited when the car is there, ms, summed.
        shadow_fifo_matched: Pairs that ``fifo`` would have made; -1: not computed.
        shadow_nearest_matched: The same of ``nearest``.
        shadow_optimal_matched: The same of ``optimal``.
        shadow_fifo_wait_ms: What ``wait_ms`` would have been with ``fifo``, ms; -1: not computed.
        shadow_nearest_wait_ms: The same of ``nearest``.
        shadow_optimal_wait_ms: The same of ``optimal``.
    """

    region: str
    window_end_ms: int
    policy: str
    riders: int
    deferred: int
    drivers_online: int
    drivers_free: int
    drivers_offered: int
    drivers_busy: int
    candidates: int
    matched: int
    objective_ms: int
    pickup_m: float
    shadow_fifo_ms: int
    shadow_nearest_ms: int
    shadow_optimal_ms: int
    longest_wait_ms: int
    wait_ms: int
    shadow_fifo_matched: int = -1
    shadow_nearest_matched: int = -1
    shadow_optimal_matched: int = -1
    shadow_fifo_wait_ms: int = -1
    shadow_nearest_wait_ms: int = -1
    shadow_optimal_wait_ms: int = -1


class Operation(msgspec.Struct, frozen=True, gc=False):
    """What an operator did by hand: the trail of audit.

    Attributes:
        command_id: The command.
        region: Who carried it out.
        action: What was wanted.
        operator: Who wanted it.
        reason: Why.
        request_id: About which request.
        driver_id: About which driver.
        zone: About which zone.
        until_ms: Until when it holds, UTC ms.
        outcome: ``done`` or ``refused``.
        detail: Why it was refused; of a policy or a cap that holds now, which.
        at_ms: When, UTC ms.
    """

    command_id: str
    region: str
    action: str
    operator: str
    reason: str
    request_id: str
    driver_id: str
    zone: str
    until_ms: int
    outcome: Literal["done", "refused"]
    detail: str
    at_ms: int


class Ignored(msgspec.Struct, frozen=True, gc=False):
    """An event that came too late or out of order to change anything, or was compensated.

    Attributes:
        stream: Its stream.
        event_id: Its identity.
        request_id: The request.
        driver_id: The driver.
        why: Why it changed nothing.
        compensated: Whether the driver was told by a release.
        at_ms: When, UTC ms.
    """

    stream: str
    event_id: str
    request_id: str
    driver_id: str
    why: str
    compensated: bool
    at_ms: int


class Mismatch(msgspec.Struct, frozen=True, gc=False):
    """A driver's phone or report says other than the book, or than can be.

    Attributes:
        request_id: The request.
        driver_id: The driver.
        region: Who has it.
        said: What was said: a state of the phone, a stage of the trip, or ``no_show``.
        state: State of the request in the book then.
        reason: What is wrong about it.
        action: What came of it.
        distance_m: Of a report: how far from where it should have been, metres; -1: unknown.
        since_ms: Since when it has been said, UTC ms.
        at_ms: When it was found, UTC ms.
    """

    request_id: str
    driver_id: str
    region: str
    said: str
    state: str
    reason: MismatchReason
    action: MismatchAction
    distance_m: float
    since_ms: int
    at_ms: int


class Suspect(msgspec.Struct, frozen=True, gc=False):
    """A position that is not believed; it goes to no region.

    Attributes:
        driver_id: The driver.
        reason: ``mock``: the phone says it is made up; ``impossible_speed``: too far from the last one.
        lat: Where it is said to be, degrees north.
        lon: Where it is said to be, degrees east.
        distance_m: How far that is from the last position that was believed, metres.
        elapsed_ms: How long after that, ms.
        event_time_ms: When, UTC ms.
    """

    driver_id: str
    reason: SuspectReason
    lat: float
    lon: float
    distance_m: float
    elapsed_ms: int
    event_time_ms: int


class DriverChange(msgspec.Struct, frozen=True, gc=False):
    """A driver came on line, went off, became stale, was handed over, blocked or freed.

    Attributes:
        driver_id: The driver.
        region: The region that had, or has, the driver.
        change: What happened.
        at_ms: When, UTC ms.
        idle_ms: How long the driver had been free, ms, where that ended.
    """

    driver_id: str
    region: str
    change: Literal["entered", "left", "offline", "stale", "blocked", "unblocked"]
    at_ms: int
    idle_ms: int


class Supply(msgspec.Struct, frozen=True, gc=False):
    """How many cars a zone has at the end of a minute; zones without any have no row.

    Attributes:
        region: The region that has the drivers.
        zone: H3 cell, resolution 7.
        minute_ms: End of the minute, UTC ms.
        cars: Drivers on line who are not stale.
        free: Those of them who could take a ride.
    """

    region: str
    zone: str
    minute_ms: int
    cars: int
    free: int


class Place(msgspec.Struct, frozen=True, gc=False):
    """Where a car was: of each car that is heard of, one in each ``dispatch.places`` of event time at most.

    Attributes:
        driver_id: The driver.
        region: The region that has the driver.
        at_ms: When the car was there, UTC ms; of one driver each time once.
        lat: Where, degrees north, to a metre.
        lon: Where, degrees east.
        state: State of the driver's request when this was written; without one ``free``, or ``away`` where no
            ride could be offered: blocked, going off line, or busy by the phone's word.
        request_id: The driver's request; empty if there is none.
    """

    driver_id: str
    region: str
    at_ms: int
    lat: float
    lon: float
    state: Literal["free", "away", "offered", "accepted", "arrived", "in_progress"]
    request_id: str


class PickUp(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A rider at a venue is told at which point the car will be; offers have its place.

    Attributes:
        request_id: The request.
        rider_id: The rider.
        region: Who has it.
        venue: The venue.
        point: Name of the point.
        lat: Where it is, degrees north.
        lon: Where it is, degrees east.
        walk_m: How far it is from where the rider has asked to be picked up, straight line, metres.
        at_ms: When, UTC ms.
        asked: Name of the point that the rider has asked for; empty: none.
        why: Why it is another one; empty: it is that one, or none was asked for.
    """

    request_id: str
    rider_id: str
    region: str
    venue: str
    point: str
    lat: float
    lon: float
    walk_m: float
    at_ms: int
    asked: str = ""
    why: PointWhy = ""


class LinePlace(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A driver who waits in the line of a venue is told the place in it, every ``dispatch.places``.

    Attributes:
        venue: The venue.
        driver_id: The driver.
        region: The region that has the driver.
        place: 1, 2, …: whose turn it is.
        length: How many wait.
        joined_ms: Since when the driver waits, UTC ms.
        at_ms: When this is told, UTC ms.
        ticket: Whether the driver has come back from a short trip, and waits in front of those who have not.
    """

    venue: str
    driver_id: str
    region: str
    place: int
    length: int
    joined_ms: int
    at_ms: int
    ticket: bool = False


class Ticket(msgspec.Struct, frozen=True, gc=False):
    """A driver whose trip from the line of a venue was short may join it again in front, once.

    Attributes:
        driver_id: The driver.
        venue: The venue.
        region: Who has its line.
        request_id: The trip.
        until_ms: By when the driver must be back in the pen, UTC ms.
        at_ms: When the trip ended, UTC ms.
    """

    driver_id: str
    venue: str
    region: str
    request_id: str
    until_ms: int
    at_ms: int


class VenuePoint(msgspec.Struct, frozen=True, gc=False):
    """A point of a venue: its name, where it is, degrees, and whether riders are sent there."""

    name: str
    lat: float
    lon: float
    is_open: bool


class VenueShape(msgspec.Struct, frozen=True, gc=False):
    """How a venue is from a time on, told by the region that has its line, when it holds there.

    Attributes:
        venue: The venue.
        region: The region.
        from_ms: From when on, UTC ms.
        zone: H3 cells of its requests; none: there is no such venue any more.
        pen: H3 cells where drivers wait in line.
        points: Where riders are picked up.
        at_ms: When this is told, UTC ms.
    """

    venue: str
    region: str
    from_ms: int
    zone: list[str]
    pen: list[str]
    points: list[VenuePoint]
    at_ms: int


class Journey(msgspec.Struct, frozen=True, gc=False):
    """From where to where somebody wants to go: once for each request.

    Attributes:
        request_id: The request.
        region: Who has it.
        zone: Zone of the pick-up.
        vehicle_class: The class asked for.
        at_ms: When it was asked for, UTC ms.
        pickup_at_ms: When the rider wants to leave, UTC ms.
        pickup_lat: Pick-up, degrees north.
        pickup_lon: Pick-up, degrees east.
        dropoff_lat: Drop-off, degrees north.
        dropoff_lon: Drop-off, degrees east.
    """

    request_id: str
    region: str
    zone: str
    vehicle_class: str
    at_ms: int
    pickup_at_ms: int
    pickup_lat: float
    pickup_lon: float
    dropoff_lat: float
    dropoff_lon: float


class Arrival(msgspec.Struct, frozen=True, gc=False):
    """A rider is told when the car arrives: when it sets off, and anew while it moves.

    Attributes:
        request_id: The request.
        driver_id: The driver.
        region: Who has it.
        way: To the pick-up, or the trip.
        at_ms: When this is told, UTC ms.
        arrives_ms: When the car arrives, UTC ms.
        low_ms: Not before then; nine of ten arrive between the two.
        high_ms: Not after then.
        left_m: What is left of the way, straight line, metres.
        by: Version of the model, or ``table``.
    """

    request_id: str
    driver_id: str
    region: str
    way: Literal["pickup", "trip"]
    at_ms: int
    arrives_ms: int
    low_ms: int
    high_ms: int
    left_m: float
    by: str


class Drive(msgspec.Struct, frozen=True, gc=False):
    """A way has ended: what it took, and how wrong it was what was told of it.

    Attributes:
        request_id: The request.
        driver_id: The driver.
        region: Who has it.
        way: To the pick-up, or the trip.
        began_ms: When it began, UTC ms.
        ended_ms: When the car was there, UTC ms.
        took_s: What it took, seconds.
        expected_s: What it should take when it began.
        low_s: So long at least.
        high_s: So long at most.
        held: Whether it took between the two.
        straight_s: What it should take by the straight line.
        table_s: By the table.
        model_s: By the model; ``None``: there was none.
        by: Version of the model, or ``table``: what ``expected_s`` is from.
        told: How often the rider was told when the car arrives, 240 at most.
        told_wrong_s: By how much that was wrong, mean of the first 239 times and the last, seconds.
        last_wrong_s: By how much the last of it was.
        learned: Whether it is learned from: of a ride that was booked for later nobody hurries.
        features: What was known of it when it began, as models learn from it.
    """

    request_id: str
    driver_id: str
    region: str
    way: Literal["pickup", "trip"]
    began_ms: int
    ended_ms: int
    took_s: float
    expected_s: float
    low_s: float
    high_s: float
    held: bool
    straight_s: float
    table_s: float
    model_s: float | None
    by: str
    told: int
    told_wrong_s: float
    last_wrong_s: float
    learned: bool
    features: list[float]


class Journal(msgspec.Struct, frozen=True, gc=False):
    """One step of a commitment, as the auditor reads it: once by driver and once by request.

    Attributes:
        subject: ``d:`` and the driver, or ``r:`` and the request.
        seq: Counts the steps of a region, so that those of one time stay in order.
        step: What happened.
        request_id: The request.
        driver_id: The driver; empty if there is none.
        attempt: The attempt.
        region: Who says so.
        state: State of the trip from now on, of a step of a request.
        before: State before.
        at_ms: When, UTC ms.
        deadline_ms: When the step must be over at the latest, UTC ms; 0: no limit.
        age_ms: Of an offer: age of the driver's position, ms.
        ttl_ms: How old it may be, ms.
        distance_m: Of an offer: straight line to the pick-up, metres.
        radius_m: How long it may be, metres.
        fits: Of an offer: whether the class of the car serves the one asked for.
        apart: Of an offer: whether rider and driver are never to meet.
    """

    subject: str
    seq: int
    step: str
    request_id: str
    driver_id: str
    attempt: int
    region: str
    state: str
    before: str
    at_ms: int
    deadline_ms: int
    age_ms: int = 0
    ttl_ms: int = 0
    distance_m: float = 0.0
    radius_m: float = 0.0
    fits: bool = True
    apart: bool = False


class Violation(msgspec.Struct, frozen=True, gc=False):
    """An invariant that does not hold: an alarm.

    Attributes:
        invariant: Its number, as in the README.
        subject: Driver or request.
        detail: What was found.
        at_ms: When, UTC ms.
    """

    invariant: int
    subject: str
    detail: str
    at_ms: int
