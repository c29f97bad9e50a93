"""The book of a region: its drivers, its requests, and what is due when."""

from __future__ import annotations

from enum import IntEnum
from heapq import heappush
from typing import Final

import msgspec

from apps.ridesharing.geo import DEMAND_RESOLUTION, cell_of
from millrace.parts.deadlines import take_due

#: Demand below this weight is forgotten.
_LEAST_DEMAND = 0.02
_SECOND_MS = 1_000
#: So long a driver who went off line stays so, whatever the phone sends, ms.
OFF_LINE_MS: Final = 43_200_000


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


#: As a plain number: compared with for every deadline.
_STALE = int(Due.STALE)


class Car(msgspec.Struct, array_like=True, gc=False):
    """A driver on line, or off line in a trip.

    Attributes:
        lat: Where, degrees.
        lon: Where, degrees.
        seen_ms: When that was, ms.
        vehicle_class: What the car is.
        request_id: The request that the driver is offered or has; empty: free.
        free_since_ms: Since when the driver is free, ms.
        idle: Whether the driver's phone says so.
        online: False: is to be forgotten after the trip.
        stay_ms: Until when the driver may stay beyond the border, ms.
        entered_ms: Since when the driver is in this book, ms.
    """

    lat: float
    lon: float
    seen_ms: int
    vehicle_class: str
    request_id: str
    free_since_ms: int
    idle: bool
    online: bool
    stay_ms: int
    entered_ms: int


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


class Book(msgspec.Struct, array_like=True):
    """Everything that a region keeps.

    Attributes:
        cars: Driver → car.
        rides: Request → ride.
        closed: Request → how it ended.
        deadlines: (time, what for, about, mark), a heap; the mark is the ride's revision.
        demand: Cell → weight of the requests of late.
        demand_ms: When those weights held, ms.
        blocked: Driver → until when, ms.
        blackouts: Zone → until when, ms.
        wishes: Request of a neighbour → what is wished.
        departed: Driver who was handed over → when. Positions from before the gate knew are not theirs.
        searching: How many of the rides look for a driver.
        seq: Number of journal entries and handovers so far.
        off_line: Driver who went off line → when, ms; less than 0: a position since then has been told of.
        riders: Rider → the open request; ``None``: an earlier version did not keep it.
        said: Driver who has lately come on line or gone off → when, by the phone, ms.
        ordered: ``d:`` and a driver, or ``z:`` and a zone → when it was last blocked or let go by hand, ms.
    """

    cars: dict[str, Car] = {}
    rides: dict[str, Ride] = {}
    closed: dict[str, Closed] = {}
    deadlines: list[tuple[int, int, str, int]] = []
    demand: dict[int, float] = {}
    demand_ms: int = 0
    blocked: dict[str, int] = {}
    blackouts: dict[str, int] = {}
    wishes: dict[str, Wish] = {}
    departed: dict[str, int] = {}
    searching: int = 0
    seq: int = 0
    riders: dict[str, str] | None = None
    off_line: dict[str, int] = {}
    said: dict[str, int] = {}
    ordered: dict[str, int] = {}

    def remind(self, at_ms: int, due: Due, about: str, mark: int = 0) -> None:
        """Set a deadline."""
        heappush(self.deadlines, (at_ms, int(due), about, mark))

    def watch(self, driver_id: str, car: Car, ttl_ms: int, now_ms: int) -> None:
        """Set the deadline at which a driver who is not heard of becomes stale: on a whole second.

        Many drivers share a second, and so a timer; whether a position is fresh is judged to the ms.
        """
        self.remind(_whole_second(max(car.seen_ms + ttl_ms, now_ms)), Due.STALE, driver_id, car.entered_ms)

    def next_due(self, now_ms: int, ttl_ms: int) -> tuple[int, str, int] | None:
        """Take and return the next deadline up to a time, or None.

        Most are of drivers who have been heard of meanwhile: those are put off, and not returned.

        Args:
            now_ms: That time.
            ttl_ms: As of :meth:`watch`.

        Returns:
            What for (a :class:`Due`), about what, and the mark.
        """
        cars = self.cars

        def later(deadline: tuple[int, int, str, int]) -> int:
            at, due, about, mark = deadline
            if due == _STALE:
                car = cars.get(about)
                if car is not None and car.entered_ms == mark and car.seen_ms + ttl_ms > now_ms:
                    return _whole_second(car.seen_ms + ttl_ms)
            return at

        due = take_due(self.deadlines, now_ms, later)
        return None if due is None else due[1:]

    def open_request_of(self, rider_id: str) -> str:
        """Return the request of a rider for which a driver is searched or bound; empty: none."""
        return self._riders().get(rider_id, "")

    def mark_rider(self, ride: Ride, before: str, *, is_over: bool) -> None:
        """Remember, or forget, which request of a rider is open; what is booked for later is not."""
        riders = self._riders()
        if is_over:
            if riders.get(ride.rider_id) == ride.request_id:
                del riders[ride.rider_id]
        elif before in ("", "booked") and ride.state != "booked":
            riders.setdefault(ride.rider_id, ride.request_id)

    def _riders(self) -> dict[str, str]:
        if self.riders is None:
            self.riders = {}
            for ride in self.rides.values():
                if ride.state not in ("", "booked"):
                    self.riders.setdefault(ride.rider_id, ride.request_id)
        return self.riders

    def ask(self, lat: float, lon: float, now_ms: int, half_life_ms: int) -> None:
        """Count a request as demand."""
        self.fade(now_ms, half_life_ms)
        cell = cell_of(lat, lon, DEMAND_RESOLUTION)
        self.demand[cell] = self.demand.get(cell, 0.0) + 1.0

    def fade(self, now_ms: int, half_life_ms: int) -> None:
        """Let demand grow old."""
        passed = now_ms - self.demand_ms
        if passed <= 0:
            return
        factor = 0.5 ** (passed / half_life_ms)
        self.demand = {c: w * factor for c, w in self.demand.items() if w * factor >= _LEAST_DEMAND}
        self.demand_ms = now_ms

    def order(self, about: str, said_ms: int, until_ms: int) -> bool:
        """Remember when a block or its end was ordered, unless a later order has been carried out.

        Args:
            about: ``d:`` and the driver, or ``z:`` and the zone.
            said_ms: When it was ordered, ms.
            until_ms: Until when it is to be remembered, ms.

        Returns:
            Whether it is the newest.
        """
        if self.ordered.get(about, said_ms) > said_ms:
            return False
        self.ordered[about] = said_ms
        self.remind(until_ms, Due.FORGET, f"c:{about}", said_ms)
        return True

    @property
    def is_over(self) -> bool:
        """Whether nothing is kept that anything could come of."""
        people = (self.cars, self.rides, self.closed, self.departed, self.off_line, self.said)
        return not any((*people, self.blocked, self.blackouts, self.ordered, self.wishes))


def _whole_second(at_ms: int) -> int:
    return -(-at_ms // _SECOND_MS) * _SECOND_MS
