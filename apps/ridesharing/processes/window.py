"""The end of a dispatch window: who waits, who is free, who gets whom."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from millrace_apps.ridesharing.contracts.records import Place, Supply, WindowReport
from millrace_apps.ridesharing.demand.records import Standing, StandingCar
from millrace_apps.ridesharing.processes.dispatch_region import DispatchRegion
from millrace_apps.ridesharing.processes.geo import cell_of
from millrace_apps.ridesharing.processes.matching import SOLVERS, FreeCar, Policy, Problem, Rider, problem
from millrace_apps.ridesharing.processes.neighbours import ask_neighbours, grant_wishes
from millrace_apps.ridesharing.processes.regions import ZONE_RESOLUTION, zone_name
from millrace_apps.ridesharing.processes.venues import not_in_line, serve_lines, tell_lines
from millrace_apps.ridesharing.state.book import Book, per_minute
from millrace_apps.ridesharing.state.entries import Car, Ride
from millrace_apps.ridesharing.surge.records import FreeCars

#: Decides a problem by a policy: of each rider the number of the pair, or -1.
Decide = Callable[[Problem, Policy], npt.NDArray[np.int64]]
#: Digits of a degree that places are written with: a metre.
PLACE_DIGITS: Final = 5


def close_window(
    region: DispatchRegion, switches: Sequence[tuple[int, Policy]], decide: Decide, shadows: Sequence[str]
) -> None:
    """Match those who wait with those who are free, and offer the rides.

    Args:
        region: The region at the end of the window.
        switches: From when on which policy holds, the newest first; before them the configured one.
        decide: What decides.
        shadows: Policies to compute beside it.
    """
    book, config, now = region.book, region.config, region.now
    book.fade(now, config.rules.half_life_ms)
    waiting = waiting_rides(book, now)
    rides = waiting[: config.most_riders]
    if rides:
        rides, free = serve_lines(region, rides, free_cars(book, now, config.ttl_ms))
    if rides:
        riders = [_rider(region, ride) for ride in rides]
        demand = per_minute(book.demand, config.rules.half_life_ms)
        drives = None if region.arrivals is None else region.arrivals.drives(riders, free, now)
        doubts = (
            None if region.acceptance is None else region.acceptance.doubts([car.driver_id for car in free])
        )
        given = problem(riders, free, config.rules, demand, drives, doubts)
        policy = next((policy for start, policy in switches if start <= now), _usual(region))
        if region.income is not None and policy == "optimal":
            waited = np.array([rider.waiting_ms for rider in riders], np.int64)
            turns, head = region.income.costs(free, book.cars), book.head
            given, head.wait_ms = region.income.bear(given, turns, waited, head.wait_ms)
        match = decide(given, policy)
        region.emit("windows", _report(region, len(waiting), rides, free, given, policy, match, shadows))
        for number in np.flatnonzero(match >= 0).tolist():
            pair = int(match[number])
            car = free[int(given.pairs.car[pair])]
            metres, score = float(given.metres[pair]), given.score(pair)
            region.offer(rides[number], car.driver_id, metres, policy, score)
        ask_neighbours(region, [ride for ride in rides if ride.state == "processing"])
    if book.wishes:
        grant_wishes(region, not_in_line(region, free_cars(book, now, config.ttl_ms)))


def _usual(region: DispatchRegion) -> Policy:
    """Return the policy that holds where no operator has switched: an experiment's, else the configured."""
    plan = region.config.switchback
    if plan is None:
        return region.config.policy
    # A window has everything in (end − length, end]: one that ends with a block is that block's.
    arm: Any = plan.arm(region.name, region.now - 1)
    return arm  # type: ignore[no-any-return]


def waiting_rides(book: Book, now: int) -> list[Ride]:
    """Return the rides that look for a driver, those first who have waited longest."""
    waiting = [ride for ride in book.waiting() if book.blackouts.get(ride.zone, 0) <= now]
    return sorted(waiting, key=lambda ride: (ride.searching_ms, ride.request_id))


def free_cars(book: Book, now: int, ttl_ms: int) -> list[FreeCar]:
    """Return the cars that may be offered a ride, by driver."""
    return [
        FreeCar(driver_id, car.lat, car.lon, car.vehicle_class)
        for driver_id, car in sorted(book.cars.items())
        if not car.request_id
        and car.online
        and car.idle
        and now - car.seen_ms <= ttl_ms
        and book.blocked.get(driver_id, 0) <= now
    ]


def supply_of_zones(region: DispatchRegion) -> None:
    """Say how many cars each zone has, and how many of them are free."""
    book, now = region.book, region.now
    blocked, heard_after = book.blocked, now - region.config.ttl_ms
    there: dict[int, int] = {}
    unbound: dict[int, int] = {}
    for driver_id, car in book.cars.items():
        if car.seen_ms > heard_after:
            cell = cell_of(car.lat, car.lon, ZONE_RESOLUTION)
            there[cell] = there.get(cell, 0) + 1
            if car.idle and not car.request_id and (not blocked or blocked.get(driver_id, 0) <= now):
                unbound[cell] = unbound.get(cell, 0) + 1
    for cell in sorted(there):
        region.emit("supply", Supply(region.name, zone_name(cell), now, there[cell], unbound.get(cell, 0)))


def free_by_cell(region: DispatchRegion) -> None:
    """Tell each region which of its cells have free cars, cars bound of late, and riders who wait."""
    book, since = region.book, region.now - region.config.free_ms
    places = {
        "cells": [(car.lat, car.lon) for car in free_cars(book, region.now, region.config.ttl_ms)],
        "taken": [
            (car.lat, car.lon)
            for _, car in sorted(book.cars.items())
            if car.request_id
            and (ride := book.rides.get(car.request_id))
            and since <= ride.offered_ms < region.now
        ],
        "waiting": [(ride.lat, ride.lon) for ride in book.waiting()],
    }
    found: dict[str, dict[str, dict[str, int]]] = {}
    for what, where in places.items():
        for lat, lon in where:
            name = zone_name(cell_of(lat, lon))
            of_region = found.setdefault(region.config.regions.of_zone(name), {part: {} for part in places})
            of_region[what][name] = of_region[what].get(name, 0) + 1
    for name, parts in sorted(found.items()):
        told = {part: dict(sorted(cells.items())) for part, cells in parts.items()}
        region.emit("free", FreeCars(name, region.name, region.now, **told))


def standing_cars(region: DispatchRegion) -> None:
    """Tell which cars stand free, but for those that wait in the line of a venue."""
    book, now = region.book, region.now
    cars = [
        StandingCar(
            car.driver_id,
            round(car.lat, PLACE_DIGITS),
            round(car.lon, PLACE_DIGITS),
            book.cars[car.driver_id].free_since_ms,
        )
        for car in not_in_line(region, free_cars(book, now, region.config.ttl_ms))
    ]
    if cars:
        region.emit("standing", Standing(region.name, now, cars))


def places_of_cars(region: DispatchRegion) -> None:
    """Say where each car is that was heard of since that was last said."""
    book, now = region.book, region.now
    since = now - region.config.places_ms
    for driver_id, car in sorted(book.cars.items()):
        if car.seen_ms > since:
            where = round(car.lat, PLACE_DIGITS), round(car.lon, PLACE_DIGITS)
            state: Any = _state_of(book, driver_id, car, now)
            region.emit("places", Place(driver_id, region.name, car.seen_ms, *where, state, car.request_id))
    tell_lines(region)


def _state_of(book: Book, driver_id: str, car: Car, now: int) -> str:
    ride: Ride | None = book.rides.get(car.request_id) if car.request_id else None
    if ride is not None:
        return ride.state
    can_be_asked = car.idle and car.online and book.blocked.get(driver_id, 0) <= now
    return "free" if can_be_asked else "away"


def _rider(region: DispatchRegion, ride: Ride) -> Rider:
    now, named = region.now, region.named(ride.rider_id)
    excluded = named.blocked.union(d for d, until in ride.excluded.items() if until > now)
    return Rider(
        ride.request_id,
        ride.lat,
        ride.lon,
        ride.vehicle_class,
        now - ride.searching_ms,
        excluded,
        ride.to_lat,
        ride.to_lon,
        named.favourites,
    )


def _report(
    region: DispatchRegion,
    waiting: int,
    rides: Sequence[Ride],
    free: Sequence[FreeCar],
    given: Problem,
    policy: Policy,
    match: npt.NDArray[np.int64],
    shadows: Sequence[str],
) -> WindowReport:
    book, now = region.book, region.now
    waited = np.array([now - ride.searching_ms for ride in rides], np.int64)
    beside: dict[str, int] = {}
    for name in (name for name in SOLVERS if name in shadows):
        other = SOLVERS[name](given)
        beside[f"shadow_{name}_ms"] = given.pairs.value(other)
        beside[f"shadow_{name}_matched"] = int((other >= 0).sum())
        beside[f"shadow_{name}_wait_ms"] = _waits(given, other, waited)
    online = bound = offered = 0
    for car in book.cars.values():
        online += now - car.seen_ms <= region.config.ttl_ms
        if car.request_id:
            bound += 1
            offered += book.is_offered(car.request_id)
    made = match[match >= 0]
    return WindowReport(
        region=region.name,
        window_end_ms=now,
        policy=policy,
        riders=len(rides),
        deferred=waiting - len(rides),
        drivers_online=online,
        drivers_free=len(free),
        drivers_offered=offered,
        drivers_busy=bound - offered,
        candidates=len(given.metres),
        matched=len(made),
        objective_ms=given.pairs.value(match),
        pickup_m=round(float(given.metres[made].sum()), 1),
        longest_wait_ms=int(waited.max()),
        wait_ms=_waits(given, match, waited),
        **{"shadow_fifo_ms": -1, "shadow_nearest_ms": -1, "shadow_optimal_ms": -1} | beside,
    )


def _waits(given: Problem, match: npt.NDArray[np.int64], waited: npt.NDArray[np.int64]) -> int:
    """Return how long the riders of pairs will have waited when the car is there, ms, summed."""
    served = match >= 0
    return int(waited[served].sum() + given.takes[match[served]].sum())
