"""Drivers: shifts, ways, and whether and how fast they take an offer."""

from __future__ import annotations

from typing import Final, Literal

from millrace_apps.generators.ridesharing.city import HOUR_MS
from millrace_apps.generators.ridesharing.draws import chance, exponential
from millrace_apps.generators.ridesharing.messages import Offer
from millrace_apps.generators.ridesharing.profile import SHIFT_HOURS, WORKDAYS, RidesProfile
from millrace_apps.generators.ridesharing.riders import CLASSES
from millrace_apps.ridesharing.contracts.events import DriverState, VehicleClass

Duty = Literal["off", "idle", "offered", "accepted", "approaching", "waiting", "on_trip"]

#: What a driver makes of an offer: take it, take it too late, take it just when the rider cancels, take it
#: and stay where they are, refuse it, or not look.
Intent = Literal["accept", "late", "race", "no_approach", "reject", "ignore"]

#: What a driver's phone reports for each duty.
REPORTED: Final[dict[Duty, DriverState]] = {
    "idle": "idle",
    "offered": "idle",
    "accepted": "idle",
    "approaching": "approaching",
    "waiting": "waiting",
    "on_trip": "on_trip",
}
DAY_MS: Final = 24 * HOUR_MS
#: Nothing odd is ahead.
NEVER: Final = 1 << 62
#: Hours (UTC) at which shifts begin, each as likely: most on line from noon to midnight.
_SHIFT_STARTS: Final = (
    3,
    4,
    4,
    5,
    5,
    6,
    6,
    7,
    8,
    9,
    10,
    11,
    12,
    13,
    14,
    14,
    15,
    15,
    16,
    16,
    17,
    18,
    19,
    20,
    21,
    22,
)

#: Acceptance law: the share taken next door, at the start of a shift …
ACCEPT_NEAR: Final = 0.96
#: … halves at this distance to the pick-up, km …
ACCEPT_HALF_KM: Final = 6.0
#: … and falls by this part until the end of the shift.
ACCEPT_FATIGUE: Final = 0.25
#: This share of the offers is not even looked at.
IGNORED_SHARE: Final = 0.04
#: Quickest answer, and the mean of what comes on top, s.
ANSWER_MIN_S: Final = 1.2
ANSWER_MEAN_S: Final = 2.8
#: Answers before this are in time for any dispatcher that gives 15 s.
_ANSWER_CAP_MS: Final = 12_000


class Driver:
    """One driver: a state machine with a position.

    Attributes:
        number: Its number in the fleet, from 0.
        driver_id: Its identity.
        vehicle_class: What the car is.
        duty: What the driver does.
        session: Counts shifts; positions of an earlier one have stopped.
        token: Changes with the duty; a timer of another token is out of date.
        shift: First and last ms of the shift.
        ends: The shift is over once the driver is free.
        pings: Positions measured so far, lost ones included.
        odd_ms: Next moment at which positions stop or come back, ms.
        silent_until_ms: Positions are lost until then, ms.
        silent_from_ms: Positions are lost from then on, ms.
        vanishes: The shift ends without a word.
        ride: Request id that the driver is busy with; empty: none.
        offer: The offer to be answered or accepted last.
        heard: Id of the last offer that was heard; a repeat is not heard again.
        released: Request that was taken from the driver last, and when, ms.
        gone: Went off line in a trip, which still goes on.
        intent: What the driver makes of the offer.
        zone: Zone of the request offered last.
        origin: Start of the way, metres.
        target: End of the way, metres.
        left_ms: When the way began, ms.
        there_ms: When it ends, ms.
        rest_ms: An idle driver stands until then, ms.
    """

    __slots__ = (
        "driver_id",
        "duty",
        "ends",
        "gone",
        "heard",
        "intent",
        "left_ms",
        "number",
        "odd_ms",
        "offer",
        "origin",
        "pings",
        "released",
        "rest_ms",
        "ride",
        "session",
        "shift",
        "silent_from_ms",
        "silent_until_ms",
        "target",
        "there_ms",
        "token",
        "vanishes",
        "vehicle_class",
        "zone",
    )

    def __init__(self, number: int, vehicle_class: VehicleClass) -> None:
        self.number = number
        self.driver_id = f"driver-{number:06d}"
        self.vehicle_class = vehicle_class
        self.duty: Duty = "off"
        self.session = self.token = self.pings = 0
        self.shift = (0, 0)
        self.ends = self.vanishes = self.gone = False
        self.intent: Intent = "ignore"
        self.odd_ms = NEVER
        self.silent_from_ms = self.silent_until_ms = NEVER
        self.ride = self.zone = self.heard = ""
        self.released = ("", 0)
        self.offer: Offer | None = None
        self.origin = self.target = (0.0, 0.0)
        self.left_ms = self.there_ms = self.rest_ms = 0

    def be(self, duty: Duty) -> int:
        """Change the duty, make all timers of the one before out of date, and return the new token."""
        self.duty = duty
        self.token += 1
        return self.token

    def position(self, at_ms: int) -> tuple[float, float]:
        """Return where the driver is, metres."""
        if at_ms >= self.there_ms:
            return self.target
        done = (at_ms - self.left_ms) / (self.there_ms - self.left_ms)
        (x, y), (to_x, to_y) = self.origin, self.target
        return x + done * (to_x - x), y + done * (to_y - y)

    def drive(self, target: tuple[float, float], at_ms: int, takes_ms: int) -> None:
        """Set off to a point."""
        self.origin = self.position(at_ms)
        self.target = target
        self.left_ms, self.there_ms = at_ms, at_ms + takes_ms

    def stop(self, at_ms: int) -> None:
        """Stand still."""
        self.origin = self.target = self.position(at_ms)
        self.left_ms = self.there_ms = at_ms

    def is_stale(self, request_id: str, at_ms: int) -> bool:
        """Tell whether a message of this time was taken back already: topics have no common order."""
        return self.released[0] == request_id and at_ms <= self.released[1]

    def fatigue(self, at_ms: int) -> float:
        """Return which part of the shift is over, 0 to 1."""
        first, last = self.shift
        return min(max((at_ms - first) / max(last - first, 1), 0.0), 1.0)


def vehicle_class(seed: int, number: int) -> VehicleClass:
    """Return the class of a driver's car; the shares are those of the requests."""
    drawn = chance(seed, "class", number)
    return next(name for upto, name in CLASSES if drawn < upto)


def shift_of(seed: int, number: int, day: int) -> tuple[int, int] | None:
    """Return the shift that a driver begins on a day, ms, or None for a day off.

    Shifts are 6 to 9 hours long and never reach into the next one.

    Args:
        seed: The run's seed.
        number: The driver.
        day: Days since 1970-01-01, UTC.
    """
    if chance(seed, "works", number, day) >= WORKDAYS:
        return None
    # A driver has usual hours; that also keeps two shifts apart.
    hour = _SHIFT_STARTS[int(chance(seed, "hours", number) * len(_SHIFT_STARTS))]
    first = day * DAY_MS + int((hour + 2 * chance(seed, "begins", number, day)) * HOUR_MS)
    shortest, longest = SHIFT_HOURS
    hours = shortest + (longest - shortest) * chance(seed, "lasts", number, day)
    return first, first + int(hours * HOUR_MS)


def acceptance(distance_km: float, fatigue: float) -> float:
    """Return how likely a driver takes an offer.

    Args:
        distance_km: Straight line to the pick-up, km.
        fatigue: Part of the shift that is over, 0 to 1.

    >>> round(acceptance(0, 0), 2), round(acceptance(6, 0), 2), round(acceptance(0, 1), 2)
    (0.96, 0.48, 0.72)
    """
    return ACCEPT_NEAR * (1 - ACCEPT_FATIGUE * fatigue) / (1 + (distance_km / ACCEPT_HALF_KM) ** 2)


def answer_delay_ms(uniform: float) -> int:
    """Return how long a driver takes to answer, ms: 1.2 s and an exponential time, at most 12 s.

    >>> answer_delay_ms(0.0), answer_delay_ms(0.999999)
    (1200, 12000)
    """
    return min(int(1000 * (ANSWER_MIN_S + ANSWER_MEAN_S * exponential(uniform))), _ANSWER_CAP_MS)


def decide(
    profile: RidesProfile, about: tuple[int, int, int], km: float, fatigue: float, *, can_race: bool
) -> Intent:
    """Return what a driver makes of an offer.

    Args:
        profile: Seed and shares.
        about: Numbers of driver, request and attempt: equal ones give the same decision.
        km: Straight line to the pick-up, km.
        fatigue: Part of the shift that is over, 0 to 1.
        can_race: Whether the rider is there to cancel at the same time.

    >>> from collections import Counter
    >>> shares = Counter(decide(RidesProfile(), (1, n, 1), 1.0, 0.5, can_race=True) for n in range(1_000))
    >>> shares["accept"] > 700 > shares["reject"] > 100 > shares["ignore"] > 20
    True
    """
    seed = profile.seed
    if chance(seed, "ignore", *about) < IGNORED_SHARE:
        return "ignore"
    if chance(seed, "accept", *about) >= acceptance(km, fatigue):
        return "reject"
    # Three numbers, so that one share does not move what another one decides.
    if chance(seed, "late", *about) < profile.late_accepts:
        return "late"
    if chance(seed, "race", *about) < profile.cancel_races and can_race:
        return "race"
    return "no_approach" if chance(seed, "no_approach", *about) < profile.no_approach else "accept"
