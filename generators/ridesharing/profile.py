"""The parameters of a ridesharing world."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from millrace_apps.generators.engine.profile import Profile, check

NAME: Final = "ridesharing"
#: A driver works on this share of the days …
WORKDAYS: Final = 0.8
#: … for 6 to 9 hours.
SHIFT_HOURS: Final = (6.0, 9.0)
#: Share of the fleet that is on line, in the mean over a week.
ONLINE_SHARE: Final = WORKDAYS * sum(SHIFT_HOURS) / 2 / 24

_SHARES: Final = (
    "prebooked",
    "no_shows",
    "offline_in_trip",
    "lost_heartbeats",
    "vanishing",
    "late_accepts",
    "cancel_races",
    "no_approach",
    "breakdowns",
    "quoted",
    "stale_quotes",
    "airport",
    "named_points",
    "hotel_rides",
    "follow_hints",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class RidesProfile(Profile):
    """What a city with its riders and drivers is made from.

    The event rate holds in the mean over a week: by far most events are positions, and there are as many
    drivers on line as the hour has.

    Attributes:
        drivers: Size of the fleet, off line ones included; 0: as many as the event rate asks for.
        location_interval_ms: Time between two positions of a driver, ms.
        requests_per_hour: Requests in the mean over a week; 0: 1.2 for each driver on line.
        rings: Rings of H3 cells (resolution 7, 2.4 km apart) around the centre; 0: 2 to 8, by the fleet.
        prebooked: Share of the requests that are booked 20 to 60 minutes ahead.
        no_shows: Share of the riders who are not at the pick-up.
        offline_in_trip: Share of the trips in which the driver goes off line.
        lost_heartbeats: Share of shifts and of trips with 30 to 300 s without a position.
        vanishing: Share of shifts that end without a word.
        late_accepts: Share of the accepts that come after the offer's end.
        cancel_races: Share of the accepts with a cancellation of the rider within 200 ms.
        no_approach: Share of the assigned drivers who stay where they are.
        breakdowns: Share of the assigned drivers who cancel on their way.
        quoted: Share of the riders who ask what it costs before they request.
        elasticity: Of those who are told a multiplier the share ``multiplier ** elasticity`` requests.
        stale_quotes: Share of those who then request so late that the quote is over.
        airport: Share of the requests that begin at the terminal of the city's airport; with any, idle
            drivers go to wait in a pen near it, twice as many as that.
        named_points: Share of the riders at the terminal who name the door where they want to be picked up,
            one in five of them a door that there is not.
        hotel_rides: Share of the riders at the terminal who go to a hotel near it; who has driven one goes
            back to the pen.
        follow_hints: Share of the drivers who go where an app says that a free car would be wanted.
    """

    drivers: int = 0
    location_interval_ms: int = 4_000
    requests_per_hour: float = 0.0
    rings: int = 0
    prebooked: float = 0.04
    no_shows: float = 0.02
    offline_in_trip: float = 0.01
    lost_heartbeats: float = 0.02
    vanishing: float = 0.03
    late_accepts: float = 0.01
    cancel_races: float = 0.01
    no_approach: float = 0.005
    breakdowns: float = 0.01
    quoted: float = 0.0
    elasticity: float = -0.5
    stale_quotes: float = 0.02
    airport: float = 0.0
    named_points: float = 0.0
    hotel_rides: float = 0.0
    follow_hints: float = 0.3

    def __post_init__(self) -> None:
        # The two-argument form: a slotted dataclass is a second class, which super() alone does not find.
        super(RidesProfile, self).__post_init__()
        for name in _SHARES:
            check(0 <= getattr(self, name) <= 1, f"{name} is a share between 0 and 1", getattr(self, name))
        check(-10 <= self.elasticity <= 0, "the elasticity is between -10 and 0", self.elasticity)
        check(0 <= self.drivers <= 1_000_000, "drivers is a count up to 1,000,000", self.drivers)
        interval = self.location_interval_ms
        check(100 <= interval <= 600_000, "the location interval is 100 to 600,000 ms", interval)
        check(0 <= self.rings <= 10, "rings is a count between 0 and 10", self.rings)
        requests = self.requests_per_hour
        check(0 <= requests <= 1e7, "requests per hour is between 0 and 10,000,000", requests)
        check(
            self.fleet <= 1_000_000,
            "the fleet is at most 1,000,000 drivers, lower the event rate",
            self.fleet,
        )

    @property
    def fleet(self) -> int:
        """Number of drivers, on line or not."""
        wanted = self.event_rate * self.location_interval_ms / 1000 / ONLINE_SHARE
        return self.drivers or max(1, round(wanted))

    @property
    def hourly_requests(self) -> float:
        """Requests per hour in the mean over a week."""
        return self.requests_per_hour or 1.2 * self.fleet * ONLINE_SHARE

    @property
    def city_rings(self) -> int:
        """Rings of zones: a zone for every eight drivers on line, within the size of real cities."""
        if self.rings:
            return self.rings
        wanted = self.fleet * ONLINE_SHARE / 8
        return next((rings for rings in range(2, 8) if 3 * rings * (rings + 1) + 1 >= wanted), 8)
