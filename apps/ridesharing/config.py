"""Configuration of the processes, as plain values that travel to Spark's workers."""

from __future__ import annotations

from typing import Final

import msgspec

from millrace.experiments.switchback import Switchback
from millrace_apps.ridesharing.processes.acceptance import AcceptanceConfig
from millrace_apps.ridesharing.processes.arrivals import ArrivalConfig
from millrace_apps.ridesharing.processes.income import IncomeConfig
from millrace_apps.ridesharing.processes.matching import Policy, Rules
from millrace_apps.ridesharing.processes.regions import Regions

#: So long a request waits for word of the end of its rider's open one in another region, ms.
HOLD_MS: Final = 20_000


class DispatchConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How rides are dispatched. All times are ms of event time.

    Attributes:
        regions: How the world is cut.
        policy: How a window is decided, until a control event says otherwise.
        shadows: Policies that are computed beside it, to be compared.
        rules: Costs of a match.
        window_ms: Length of a dispatch window.
        most_riders: So many riders, those who have waited longest, are decided on in one window.
        ttl_ms: A driver without a position for so long is stale.
        offer_ms: How long a driver has to answer.
        attempts: After so many offers there is no driver for a request.
        cool_down_ms: So long a driver is not asked again for a request that was refused.
        patience_ms: After so long without a driver a search ends.
        ahead_ms: A ride that is booked is searched for from so long before its pick-up.
        no_show_ms: How long a driver waits for the rider at the pick-up.
        approach_ms: A driver must have come nearer in each such time.
        trip_ms: A trip of which nothing is heard for so long is lost.
        remember_ms: How long a request that has ended is remembered.
        borrow: Whether regions ask each other for cars near the border.
        stay_ms: How long a borrowed car may stay without a ride.
        refresh_ms: A driver who stands still is reported to the region so often.
        move_m: A driver who has moved so far, metres, is reported at once.
        one_open: Whether a rider has one open request at a time, and a second is refused.
        one_open_everywhere: Whether that is so across regions, too.
        reconcile_ms: After so long the book follows a phone that says otherwise; 0: never.
        geofence_m: What drivers report counts within so many metres of where it happens; 0: anywhere.
        least_wait_ms: So long a driver must have waited before nobody came.
        most_m_per_s: No car is faster, m/s; 0: any speed will do.
        believe_ms: Positions too far from the last are believed once they have agreed for so long.
        overdue_ms: So long after three times its drive a silent trip is lost; 0: only after ``trip_ms``.
        places_ms: In each such time it is written once where a car is; 0: never.
        arrivals: How arrival times are learned and told; ``None``: they are not.
        free_ms: At the end of each such time it is told which cells have free cars; 0: never.
        standing_ms: At the end of each such time it is told which cars stand free; 0: never.
        acceptance: How it is learned which drivers take what, and what a no costs; ``None``: it is not.
        income: How much it counts who has been idle for long; ``None``: it does not.
        pen_grace_ms: So long a driver may be out of a venue's pen, or busy by the phone's word, and keep the
            place in its line.
        decline_costs_place: Whether who lets an offer from the line go has to join it anew.
        line_elsewhere: Whether drivers in a line are given requests from outside the venue.
        switchback: The experiment by which policies take turns in each region; ``None``: they do not.
    """

    regions: Regions = Regions()
    policy: Policy = "optimal"
    shadows: tuple[Policy, ...] = ()
    rules: Rules = Rules()
    window_ms: int = 5_000
    most_riders: int = 1_000
    ttl_ms: int = 120_000
    offer_ms: int = 15_000
    attempts: int = 8
    cool_down_ms: int = 600_000
    patience_ms: int = 300_000
    ahead_ms: int = 600_000
    no_show_ms: int = 300_000
    approach_ms: int = 120_000
    trip_ms: int = 21_600_000
    remember_ms: int = 600_000
    borrow: bool = True
    stay_ms: int = 60_000
    refresh_ms: int = 10_000
    move_m: float = 50.0
    one_open: bool = True
    one_open_everywhere: bool = True
    reconcile_ms: int = 90_000
    geofence_m: float = 400.0
    least_wait_ms: int = 120_000
    most_m_per_s: float = 70.0
    believe_ms: int = 300_000
    overdue_ms: int = 1_800_000
    places_ms: int = 30_000
    free_ms: int = 30_000
    standing_ms: int = 0
    arrivals: ArrivalConfig | None = None
    acceptance: AcceptanceConfig | None = None
    income: IncomeConfig | None = None
    switchback: Switchback | None = None
    pen_grace_ms: int = 60_000
    decline_costs_place: bool = True
    line_elsewhere: bool = False

    @property
    def asks_everywhere(self) -> bool:
        """Whether a rider's open request may be in a region that another one is asked for in."""
        return self.one_open and self.one_open_everywhere and not self.regions.is_one
