"""Entries of a region's book: drivers and requests."""

from __future__ import annotations

from enum import IntEnum
from typing import Final, TypeAlias, get_args

import msgspec

from millrace.time import NEVER
from millrace_apps.ridesharing.contracts.events import VehicleClass
from millrace_apps.ridesharing.contracts.records import PointWhy

#: Classes by the numbers that they are kept by.
_KINDS: Final[tuple[str, ...]] = get_args(VehicleClass)
_SECOND_MS: Final = 1_000

#: When, what for, about what, and the mark: of a ride its revision.
Deadline: TypeAlias = tuple[int, int, str, int]


class Due(IntEnum):
    """What a deadline is for; of several at one time, in this order."""

    BOOKED = 0
    OFFER = 1
    APPROACH = 2
    NO_SHOW = 3
    TRIP = 4
    STALE = 5
    LIFT = 6
    FORGET = 7
    GIVE_UP = 8


class Car(msgspec.Struct, array_like=True, gc=False):
    """A driver on line, or off line in a trip.

    Attributes:
        lat: Where, degrees.
        lon: Where, degrees.
        seen_ms: When that was, ms.
        kind: What the car is: the number of a class, or its name where it has none.
        idle: Whether the driver's phone says so.
        free_since_ms: Since when the driver is free, ms.
        stay_ms: Until when the driver may stay beyond the border, ms.
        online: False: is to be forgotten after the trip.
        request_id: The request that the driver is offered or has; empty: free.
        watch_ms: Not before then it is looked whether the driver has fallen silent, ms; 0: as soon as may be.
    """

    lat: float
    lon: float
    seen_ms: int
    kind: int | str
    idle: bool
    free_since_ms: int
    stay_ms: int = 0
    online: bool = True
    request_id: str = ""
    watch_ms: int = 0

    @property
    def vehicle_class(self) -> str:
        """What the car is."""
        return _KINDS[self.kind] if isinstance(self.kind, int) else self.kind

    def silent_at(self, ttl_ms: int) -> int:
        """Return when the driver becomes stale unless heard of before, ms: on a whole second, mostly.

        Many drivers share a second, and so a timer; whether a position is fresh is judged to the ms.
        """
        silent = self.seen_ms + ttl_ms
        return self.watch_ms if silent <= self.watch_ms else whole_second(silent)


def kind_of(vehicle_class: str) -> int | str:
    """Return what a class is kept by.

    >>> kind_of("xl"), kind_of("a class of tomorrow")
    (1, 'a class of tomorrow')
    """
    return _KINDS.index(vehicle_class) if vehicle_class in _KINDS else vehicle_class


class Spot(msgspec.Struct, array_like=True, gc=False):
    """A driver's place in the line of a venue.

    Attributes:
        venue: The venue.
        joined_ms: Since when, ms.
        zone: A zone of the venue (an H3 cell of resolution 7): whose region it is, the line is.
        away_ms: Since when the driver is out of the pen, or not free by the phone's word, ms; 0: neither.
        ticket: Whether a short trip was before it: its turn comes before that of those without.
    """

    venue: str
    joined_ms: int
    zone: str
    away_ms: int = 0
    ticket: bool = False


class ShortTripTicket(msgspec.Struct, array_like=True, gc=False):
    """What a driver has earned by a short trip from the line of a venue: to join it once in front.

    Attributes:
        venue: The venue.
        zone: A zone of the venue, as of :class:`Spot`.
        earned_ms: When the trip ended, ms.
        until_ms: By when the driver must join, ms.
    """

    venue: str
    zone: str
    earned_ms: int
    until_ms: int


class Score(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What it cost in a window to bring a rider and a car together, ms; all parts but the drive may be 0.

    Attributes:
        cost_ms: All of it: what was weighed against other pairs, and against leaving the rider unmatched.
        drive_ms: The drive to the pick-up.
        place_ms: What the car is worth where it stands.
        drop_ms: That the ride ends where nobody asks.
        class_ms: That the car is of another class; below 0: the two are favourites.
        doubt_ms: That the driver may not take it.
        turn_ms: Whose turn it is: below 0, the driver's.
    """

    cost_ms: int
    drive_ms: int
    place_ms: int
    drop_ms: int
    class_ms: int
    doubt_ms: int
    turn_ms: int


class Ride(msgspec.Struct, array_like=True):
    """A request that has not ended.

    Attributes:
        request_id: The request.
        rider_id: The rider.
        vehicle_class: The class asked for.
        zone: Zone of the pick-up.
        lat: Pick-up, degrees.
        lon: Pick-up, degrees.
        requested_ms: When it was asked for, ms.
        pickup_at_ms: When the rider wants to leave, ms.
        state: Its state.
        revision: Number of its changes.
        driver_id: The driver it is offered to, or who has it.
        attempt: Attempts so far.
        attempt_revision: Changes of this attempt.
        policy: Who made this attempt.
        offered_ms: When, ms.
        accepted_ms: When it was accepted, ms.
        expires_ms: End of the offer, ms.
        distance_m: Straight line at the offer, metres.
        age_ms: Age of the driver's position at the offer, ms.
        idle_ms: How long the driver had been free, ms.
        searching_ms: Since when a driver is searched for, ms.
        excluded: Driver → until when not to be asked, ms.
        answered: Bit n: attempt n has been answered, or released.
        approach_m: Distance of the driver at the last look, metres.
        approach_ms: When that was, ms.
        limit_ms: When the driver must have arrived, ms.
        wait_ms: From the wanted time to the pick-up, ms.
        wanted_ms: When the neighbours were last asked for a car, ms.
        to_lat: Drop-off, degrees; ``None``: an earlier version did not keep it.
        to_lon: Drop-off, degrees.
        arrived_ms: When the driver was at the pick-up, ms.
        ends_ms: When the trip is lost whatever is heard, ms.
        odd: What is odd about what the driver's phone says; empty: nothing.
        odd_ms: Since when, ms; -1: it has been said.
        other: The rider's open request in another region, as far as is known; empty: none.
        marks: How often that has changed.
        held_ms: Since when it waits for that, ms.
        point: At a venue the name of the point of the pick-up; empty: none.
        point_why: Why it is not the one that was asked for; empty: it is, or none was.
        from_line: The venue in whose line the driver waited who has it; empty: none.
        score: What this attempt's pair cost in its window; ``None``: it was made by hand, or by a line.
        started_ms: When the trip began, ms; 0: it has not, or an earlier version has seen that.
    """

    request_id: str
    rider_id: str
    vehicle_class: str
    zone: str
    lat: float
    lon: float
    requested_ms: int
    pickup_at_ms: int
    state: str = ""
    revision: int = -1
    driver_id: str = ""
    attempt: int = 0
    attempt_revision: int = 0
    policy: str = ""
    offered_ms: int = 0
    accepted_ms: int = 0
    expires_ms: int = 0
    distance_m: float = 0.0
    age_ms: int = 0
    idle_ms: int = 0
    searching_ms: int = 0
    excluded: dict[str, int] = {}
    answered: int = 0
    approach_m: float = 0.0
    approach_ms: int = 0
    limit_ms: int = 0
    wait_ms: int = 0
    wanted_ms: int = 0
    to_lat: float | None = None
    to_lon: float | None = None
    arrived_ms: int = 0
    ends_ms: int = 0
    odd: str = ""
    odd_ms: int = 0
    other: str = ""
    marks: int = 0
    held_ms: int = 0
    point: str = ""
    point_why: PointWhy = ""
    from_line: str = ""
    score: Score | None = None
    started_ms: int = 0


class Closed(msgspec.Struct, array_like=True, gc=False):
    """A request that has ended, remembered for what may still come of it.

    Attributes:
        state: How it ended.
        answered: As of :class:`Ride`.
    """

    state: str
    answered: int


class Wish(msgspec.Struct, array_like=True, gc=False):
    """A neighbour's request that a car is asked for.

    Attributes:
        region: The neighbour.
        lat: Pick-up, degrees.
        lon: Pick-up, degrees.
        vehicle_class: The class asked for.
        until_ms: After that it is no longer wanted, ms.
    """

    region: str
    lat: float
    lon: float
    vehicle_class: str
    until_ms: int


class Head(msgspec.Struct, array_like=True):
    """What of a region's book is no driver's and no request's, and what is near.

    Attributes:
        near: Deadlines before ``horizon_ms``, a heap.
        horizon_ms: Deadlines from then on stand in parts, ms.
        far: Stretch of time → how many deadlines of it stand in parts.
        far_ms: Begin of the first such stretch, ms.
        silent: Of each place of the map of cars, when somebody there may have fallen silent, ms; or 0.
        silent_ms: The first of them, ms.
        sizes: Map → how many entries it has; those without are not named.
        looked_for: Request → whether a driver is searched for; else it is offered to one. Others are neither.
        searching: How many of the rides look for a driver.
        seq: Number of journal entries and handovers so far.
        demand: Cell → weight of the requests of late.
        demand_ms: When those weights held, ms.
        blocked: Driver → until when, ms.
        blackouts: Zone → until when, ms.
        wishes: Request of a neighbour → what is wished.
        tickets: Driver → what a short trip has earned, wherever the car is.
        shown: Venue → digest of how it was told last.
        wait_ms: How long riders wait of late, ms, where it counts whose turn it is; else 0.
    """

    near: list[Deadline] = []
    horizon_ms: int = 0
    far: dict[int, int] = {}
    far_ms: int = NEVER
    silent: list[int] = []
    silent_ms: int = NEVER
    sizes: dict[str, int] = {}
    looked_for: dict[str, bool] = {}
    searching: int = 0
    seq: int = 0
    demand: dict[int, float] = {}
    demand_ms: int = 0
    blocked: dict[str, int] = {}
    blackouts: dict[str, int] = {}
    wishes: dict[str, Wish] = {}
    tickets: dict[str, ShortTripTicket] = {}
    shown: dict[str, int] = {}
    wait_ms: int = 0


def whole_second(at_ms: int) -> int:
    """Return the first whole second that is not before a time, ms."""
    return -(-at_ms // _SECOND_MS) * _SECOND_MS
