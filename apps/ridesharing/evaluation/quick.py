"""The closed loop of a replay by the app's matcher alone: no gate, no offers, no books.

What decides waits is here as it is in the app: windows, who waits how long, demand that fades, the costs of
the matcher, idle time as a cost, cars that drive straight and wait where they end. Nobody says no, nothing is
late. A day takes some seconds, and can be copied at any window, so that two policies may go on from one
state.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from millrace.host.memory_chain import MemoryChain
from millrace.places import distance_m
from millrace_apps.ridesharing.config import DispatchConfig
from millrace_apps.ridesharing.contracts.records import Journey
from millrace_apps.ridesharing.demand.hinting import Hinting
from millrace_apps.ridesharing.demand.records import DriverHint, Standing, StandingCar
from millrace_apps.ridesharing.evaluation.fleet import HEARTBEAT_MS, Leg, Request
from millrace_apps.ridesharing.evaluation.in_memory import REGION, chain_of
from millrace_apps.ridesharing.processes.geo import CIRCUITY, DEMAND_RESOLUTION, SPEED_M_PER_MS, cell_of
from millrace_apps.ridesharing.processes.income import Idle, Income
from millrace_apps.ridesharing.processes.matching import SOLVERS, FreeCar, Rider, problem
from millrace_apps.ridesharing.state.book import faded, per_minute

#: A driver's yes comes so long after the offer, ms.
_YES_MS: Final = 1


class _Kept(dict[str, Idle]):
    """Idle times by driver."""

    put = dict.__setitem__


@dataclass(slots=True)
class QuickLoop:
    """Riders and cars, window by window.

    Args:
        requests: What is asked for, in order of time.
        size: Number of cars.
        seed: Where they start: at pick-ups, drawn at random, as in a replay.
        start_ms: When they come on line, UTC ms.
        until_ms: Until when idle time counts, UTC ms.
        config: How to dispatch: window, patience, rules, policy, income, and whether to give hints.
        follow: Share of the drivers who go where they are told that a free car would be wanted.

    Attributes:
        now: End of the last window, UTC ms.
        pickups: Number of a request → when its rider got in, UTC ms.
        pickup_m: Straight lines to pick-ups, summed, metres.
    """

    requests: Sequence[Request]
    size: int
    seed: int
    start_ms: int
    until_ms: int
    config: DispatchConfig
    follow: float = 0.0
    now: int = 0
    pickups: dict[int, int] = field(default_factory=dict)
    pickup_m: float = 0.0
    _cars: list[FreeCar] = field(default_factory=list)
    _free_ms: list[int] = field(default_factory=list)
    _idle_ms: list[int] = field(default_factory=list)
    _idled: _Kept = field(default_factory=_Kept)
    _waiting: list[int] = field(default_factory=list)
    _next: int = 0
    _demand: dict[int, float] = field(default_factory=dict)
    _demand_ms: int = 0
    _legs: dict[int, Leg] = field(default_factory=dict)
    _hinting: MemoryChain | None = None
    _followers: frozenset[int] = frozenset()
    _told: int = 0
    _wait_ms: int = 0

    def __post_init__(self) -> None:
        """Put the cars where they start."""
        if self._cars:
            return
        self.now = self.start_ms
        draws = np.random.default_rng(self.seed).integers(0, len(self.requests), self.size)
        for number, place in enumerate(draws.tolist()):
            at = self.requests[place]
            self._cars.append(FreeCar(f"driver-{number:05d}", at.lat, at.lon, "standard"))
        self._free_ms = [self.start_ms] * self.size
        self._idle_ms = [0] * self.size
        if self.config.standing_ms:
            self._hinting = chain_of(Hinting())
            drawn = np.random.default_rng([self.seed, 3]).random(self.size) < self.follow
            self._followers = frozenset(np.flatnonzero(drawn).tolist())

    def copy(self, config: DispatchConfig) -> QuickLoop:
        """Return the same moment, to go on from otherwise.

        Args:
            config: How to dispatch from now on.
        """
        hinting = None
        if self._hinting is not None:
            hinting = chain_of(Hinting())
            hinting.restore(self._hinting.snapshot())
        return replace(
            self,
            config=config,
            pickups=dict(self.pickups),
            _cars=list(self._cars),
            _free_ms=list(self._free_ms),
            _idle_ms=list(self._idle_ms),
            _idled=_Kept(self._idled),
            _waiting=list(self._waiting),
            _demand=dict(self._demand),
            _legs=dict(self._legs),
            _hinting=hinting,
        )

    @property
    def is_over(self) -> bool:
        """Whether nobody waits and nobody will."""
        return self._next >= len(self.requests) and not self._waiting

    def run(self, until_ms: int | None = None) -> None:
        """Go on to a time, or until nobody waits and nobody will.

        Args:
            until_ms: The last window ends then or before, UTC ms.
        """
        for _ in self.windows(until_ms):
            pass

    def windows(self, until_ms: int | None = None) -> Iterator[int]:
        """Go on, and yield the end of each window, UTC ms."""
        length = self.config.window_ms
        while not self.is_over:
            end = (self.now // length + 1) * length
            if until_ms is not None and end > until_ms:
                return
            self.now = end
            self._ask()
            if self._hinting is not None and end % self.config.standing_ms == 0:
                self._hint(self._hinting)
            if self._waiting:
                self._decide()
            yield end

    def idle_seconds(self) -> list[float]:
        """Return how long each driver was without a ride, seconds."""
        return [
            (idle + max(0, self.until_ms - free)) / 1_000
            for idle, free in zip(self._idle_ms, self._free_ms, strict=True)
        ]

    def _fade(self, now: int) -> None:
        if now > self._demand_ms:
            self._demand = faded(self._demand, now - self._demand_ms, self.config.rules.half_life_ms)
            self._demand_ms = now

    def _ask(self) -> None:
        """Take the requests up to now, and let those go who have waited for too long."""
        requests, now = self.requests, self.now
        while self._next < len(requests) and requests[self._next].at_ms <= now:
            one = requests[self._next]
            self._fade(one.at_ms)
            cell = cell_of(one.lat, one.lon, DEMAND_RESOLUTION)
            self._demand[cell] = self._demand.get(cell, 0.0) + 1.0
            self._waiting.append(self._next)
            self._next += 1
        patience = self.config.patience_ms
        self._waiting = [n for n in self._waiting if requests[n].at_ms + patience > now]

    def _decide(self) -> None:
        config, now, requests = self.config, self.now, self.requests
        free = [number for number, since in enumerate(self._free_ms) if since <= now]
        waiting = sorted(self._waiting, key=lambda n: (requests[n].at_ms, requests[n].request_id))
        waiting = waiting[: config.most_riders]
        self._fade(now)
        cars = [self._reported(number) for number in free]
        riders = [_rider(requests[n], now) for n in waiting]
        income = None if config.income is None else Income(self._idled, config.income, now)
        demand = per_minute(self._demand, config.rules.half_life_ms)
        given = problem(riders, cars, config.rules, demand)
        if income is not None and config.policy == "optimal":
            turns = income.costs_of([income.idle_of(self._cars[n].driver_id, self._free_ms[n]) for n in free])
            waited = np.array([rider.waiting_ms for rider in riders], np.int64)
            given, self._wait_ms = income.bear(given, turns, waited, self._wait_ms)
        match = SOLVERS[config.policy](given)
        served = set()
        for rider in np.flatnonzero(match >= 0).tolist():
            number = free[int(given.pairs.car[match[rider]])]
            if income is not None:
                income.took(self._cars[number].driver_id, now - self._free_ms[number])
            self._serve(waiting[rider], number)
            served.add(waiting[rider])
        self._waiting = [n for n in self._waiting if n not in served]

    def _serve(self, rider: int, number: int) -> None:
        """Send a car to a rider: it is free again where the ride ends, and then."""
        request, car = self.requests[rider], self._cars[number]
        leg = self._legs.pop(number, None)
        where = (car.lat, car.lon) if leg is None else leg.at(self.now + _YES_MS)
        metres = distance_m(*where, request.lat, request.lon)
        sets_off = self.now + _YES_MS
        arrives = sets_off + max(1, math.ceil(metres * CIRCUITY / SPEED_M_PER_MS))
        self.pickups[rider] = arrives
        self.pickup_m += metres
        self._idle_ms[number] += max(0, min(self.now, self.until_ms) - self._free_ms[number])
        self._cars[number] = FreeCar(car.driver_id, request.to_lat, request.to_lon, car.vehicle_class)
        self._free_ms[number] = arrives + request.duration_ms

    def _reported(self, number: int) -> FreeCar:
        """Return a free car where it was when it last sent a position."""
        car, leg = self._cars[number], self._legs.get(number)
        if leg is None:
            return car
        since = (self.now - self.start_ms + HEARTBEAT_MS * number // self.size) % HEARTBEAT_MS
        return FreeCar(car.driver_id, *leg.at(self.now - since), car.vehicle_class)

    def _hint(self, hinting: MemoryChain) -> None:
        """Say which cars stand free, and let those go who follow what they are told."""
        cars = []
        for number, since in enumerate(self._free_ms):
            if since <= self.now:
                car = self._reported(number)
                cars.append(StandingCar(car.driver_id, round(car.lat, 5), round(car.lon, 5), since))
        standing = Standing(REGION, self.now, cars)
        asked = self.requests[self._told : self._next]
        self._told = self._next
        events = [(REGION, one.at_ms, _journey(one), "asks") for one in asked]
        found = hinting.run_batch([*events, (REGION, self.now, standing, "standing")])
        found += hinting.advance_watermark(self.now)
        for hint in (one.payload for one in found if isinstance(one.payload, DriverHint)):
            number = int(hint.driver_id[7:])
            if number in self._followers:
                car, leg = self._cars[number], self._legs.get(number)
                where = (car.lat, car.lon) if leg is None else leg.at(self.now)
                takes = distance_m(*where, hint.lat, hint.lon) * CIRCUITY / SPEED_M_PER_MS
                self._legs[number] = Leg(*where, hint.lat, hint.lon, self.now, self.now + takes)


def _journey(request: Request) -> Journey:
    place = (request.lat, request.lon, request.to_lat, request.to_lon)
    return Journey(request.request_id, REGION, "", "standard", request.at_ms, request.at_ms, *place)


def _rider(request: Request, now: int) -> Rider:
    return Rider(
        request.request_id, request.lat, request.lon, "standard", now - request.at_ms,
        frozenset(), request.to_lat, request.to_lon,
    )  # fmt: skip
