"""Riders: who asks for a ride, when, where and with how much patience, whatever the dispatcher does."""

from __future__ import annotations

from bisect import bisect_right
from typing import Final, Literal

from millrace_apps.generators.engine.randomness import substream
from millrace_apps.generators.ridesharing.city import HOUR_MS, TERMINAL_M, City, Zone, demand_factor
from millrace_apps.generators.ridesharing.draws import exponential, lognormal
from millrace_apps.generators.ridesharing.profile import NAME, RidesProfile
from millrace_apps.ridesharing.contracts.events import VehicleClass

#: Riders on file; a rider may ask again, even while waiting.
RIDERS: Final = 500_000
CLASSES: Final[tuple[tuple[float, VehicleClass], ...]] = ((0.78, "standard"), (0.92, "premium"), (1.0, "xl"))
CHANGED_MIND_SHARE: Final = 0.03
#: Until a driver is found, and from then to the driver's arrival: medians, s.
SEARCH_PATIENCE_S: Final = 240.0
PICKUP_PATIENCE_S: Final = 720.0
#: Whoever takes longer is a no-show, ms.
SLOWEST_BOARDING_MS: Final = 240_000

#: Of the riders who name a door one in so many names one that there is not.
WRONG_DOORS: Final = 5
NO_DOOR: Final = "door 9"
#: How far the hotels are from the terminal, metres to the east, and how wide their street is.
_HOTELS_M: Final = (500.0, 900.0)
_STREET_M: Final = 200.0

#: Nobody takes a quote of more than this.
MOST_TAKEN: Final = 1e6

RideStage = Literal["open", "assigned", "arrived", "aboard"]


class Ride:
    """One request from its birth to its end.

    Attributes:
        number: Its number in the run, from 0.
        request_id: Its identity.
        rider_id: The rider.
        vehicle_class: What is asked for.
        zone: H3 cell of the pick-up.
        pickup: Where from, metres.
        dropoff: Where to, metres.
        at_ms: When it is asked for, ms.
        pickup_at_ms: When the rider wants to leave, ms.
        search_ms: How long the rider waits for a driver to be found, ms.
        wait_ms: How long the rider then waits for the driver to come, ms.
        mind_ms: When the rider changes their mind, ms; 0: never.
        patience_ms: When the rider's patience ends, ms.
        no_show: The rider will not be at the pick-up.
        boarding_ms: From the driver's arrival until the trip begins, ms.
        stage: Where it stands.
        driver: Number of the driver who has it; -1: none.
        token: Changes with the stage; a timer of another token is out of date.
        quote_id: The quote that it carries; empty if there is none.
        from_airport: Whether the rider stands at the terminal.
        takes_below: The rider asks for a quote first and takes one of a smaller multiplier; 0: asks for none.
        pickup_point: The door that the rider names; empty: none.
        to_hotel: Whether it ends at a hotel near the terminal.
    """

    __slots__ = (
        "at_ms",
        "boarding_ms",
        "driver",
        "dropoff",
        "from_airport",
        "mind_ms",
        "no_show",
        "number",
        "patience_ms",
        "pickup",
        "pickup_at_ms",
        "pickup_point",
        "quote_id",
        "request_id",
        "rider_id",
        "search_ms",
        "stage",
        "takes_below",
        "to_hotel",
        "token",
        "vehicle_class",
        "wait_ms",
        "zone",
    )

    def __init__(self, number: int, request_id: str, at_ms: int) -> None:
        self.number = number
        self.request_id = request_id
        self.at_ms = self.pickup_at_ms = at_ms
        self.rider_id = ""
        self.vehicle_class: VehicleClass = "standard"
        self.zone = ""
        self.pickup = self.dropoff = (0.0, 0.0)
        self.search_ms = self.wait_ms = self.mind_ms = self.boarding_ms = self.patience_ms = 0
        self.no_show = False
        self.stage: RideStage = "open"
        self.driver = -1
        self.token = 0
        self.quote_id = ""
        self.takes_below = 0.0
        self.from_airport = self.to_hotel = False
        self.pickup_point = ""

    @property
    def leaves_ms(self) -> int:
        """When the rider goes if nothing happens, ms."""
        return min(self.patience_ms, self.mind_ms or self.patience_ms)


class Demand:
    """Requests in the order of time: a Poisson process whose rate follows the hour of the week.

    Args:
        profile: Rate and shares.
        city: Where.
        prefix: What request ids begin with.

    >>> from millrace_apps.generators.ridesharing.profile import RidesProfile
    >>> demand = Demand(RidesProfile(seed=7, drivers=100), City(rings=2), "run-r")
    >>> first, second = demand.next_ride(), demand.next_ride()
    >>> first.request_id, first.at_ms <= second.at_ms
    ('run-r00000000', True)
    """

    def __init__(self, profile: RidesProfile, city: City, prefix: str) -> None:
        self._profile = profile
        self._city = city
        self._prefix = prefix
        self._number = 0
        self._at_ms = float(profile.start_ms)
        names = ("gap", "origin", "spot", "jitter_x", "jitter_y", "destination", "to_spot", "to_jitter_x")
        more = (
            "to_jitter_y",
            "class",
            "rider",
            "booking",
            "ahead",
            "search",
            "wait",
            "mind",
            "no_show",
            "board",
            "quoted",
            "price",
            "flown",
            "named",
            "door",
            "hotel",
        )
        self._draw = {name: substream(profile.seed, NAME, "demand", name).random for name in (*names, *more)}

    def next_ride(self) -> Ride:
        """Return the next request."""
        draw = self._draw
        at_ms = self._next_ms(exponential(draw["gap"]()))
        ride = Ride(self._number, f"{self._prefix}{self._number:08d}", at_ms)
        self._number += 1
        self._places(ride)
        ride.rider_id = f"rider-{int(draw['rider']() * RIDERS):06d}"
        kind = draw["class"]()
        ride.vehicle_class = next(name for upto, name in CLASSES if kind < upto)
        booked, ahead = draw["booking"]() < self._profile.prebooked, draw["ahead"]()
        if booked:
            ride.pickup_at_ms = at_ms + 60_000 * (20 + int(40 * ahead))
        ride.search_ms = int(1000 * lognormal(SEARCH_PATIENCE_S, 0.4, draw["search"]()))
        ride.wait_ms = int(1000 * lognormal(PICKUP_PATIENCE_S, 0.35, draw["wait"]()))
        mind = draw["mind"]()
        if mind < CHANGED_MIND_SHARE:
            ride.mind_ms = at_ms + 3_000 + int(117_000 * mind / CHANGED_MIND_SHARE)
        ride.no_show = draw["no_show"]() < self._profile.no_shows
        ride.boarding_ms = min(15_000 + int(60_000 * exponential(draw["board"]())), SLOWEST_BOARDING_MS)
        if draw["quoted"]() < self._profile.quoted:
            ride.takes_below = takes_below(draw["price"](), self._profile.elasticity)
        return ride

    def _next_ms(self, units: float) -> int:
        """Use up exponential time at each hour's rate; exact where the rate changes on the hour."""
        at = self._at_ms
        while True:
            per_ms = self._profile.hourly_requests * demand_factor(int(at)) / HOUR_MS
            hour_end = (int(at) // HOUR_MS + 1) * HOUR_MS
            if (needed := units / per_ms) < hour_end - at:
                break
            units -= (hour_end - at) * per_ms
            at = float(hour_end)
        self._at_ms = at + needed
        return int(self._at_ms)

    def _places(self, ride: Ride) -> None:
        draw, city = self._draw, self._city
        origin = city.zones[_pick(city.origins(ride.at_ms), draw["origin"]())]
        to = city.zones[_pick(city.destinations(origin, ride.at_ms), draw["destination"]())]
        ride.pickup = point_in(origin, draw["spot"](), draw["jitter_x"](), draw["jitter_y"]())
        ride.dropoff = point_in(to, draw["to_spot"](), draw["to_jitter_x"](), draw["to_jitter_y"]())
        if self._profile.airport and draw["flown"]() < self._profile.airport:
            x, y = city.airport.terminal
            east, north = draw["flown"]() - 0.5, draw["flown"]() - 0.5
            ride.pickup = (x + 2 * TERMINAL_M * east, y + 2 * TERMINAL_M * north)
            ride.from_airport = True
            self._of_airport(ride)
        ride.zone = city.zone_of(*ride.pickup)

    def _of_airport(self, ride: Ride) -> None:
        """Decide which door the rider names, and whether the ride is a short one."""
        draw, airport = self._draw, self._city.airport
        if draw["named"]() < self._profile.named_points:
            place, doors = draw["door"](), [f"door {n}" for n in range(1, len(airport.doors) + 1)]
            right = 1 - 1 / WRONG_DOORS
            ride.pickup_point = NO_DOOR if place >= right else doors[int(place / right * len(doors))]
        if draw["hotel"]() < self._profile.hotel_rides:
            (x, y), (near, far) = airport.terminal, _HOTELS_M
            east, north = near + (far - near) * draw["hotel"](), _STREET_M * (draw["hotel"]() - 0.5)
            ride.dropoff, ride.to_hotel = (x + east, y + north), True


def takes_below(uniform: float, elasticity: float) -> float:
    """Return below which multiplier a rider takes a quote, so that the share ``m ** elasticity`` takes m.

    Args:
        uniform: The rider's number in [0, 1).
        elasticity: Zero or below.

    >>> takes_below(0.25, -0.5), takes_below(0.9, 0.0) == MOST_TAKEN
    (16.0, True)
    """
    if elasticity == 0.0 or uniform == 0.0:
        return MOST_TAKEN
    return float(min(uniform ** (1.0 / elasticity), MOST_TAKEN))


def point_in(zone: Zone, spot: float, jitter_x: float, jitter_y: float) -> tuple[float, float]:
    """Return a point of a zone at three uniform numbers, metres."""
    x, y = zone.spots[int(spot * len(zone.spots))]
    # Spots are 350 m apart.
    return x + 350 * (jitter_x - 0.5), y + 350 * (jitter_y - 0.5)


def _pick(running: list[float], uniform: float) -> int:
    return bisect_right(running, uniform * running[-1], 0, len(running) - 1)
