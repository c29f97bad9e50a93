"""One dispatch window: riders and cars in, pairs out, by a policy that can be switched.

The cost of a pair is the expected drive to the pick-up, and what the car is worth where it stands: a car
that is alone where riders come is dearer than one of ten; and what it costs that the ride leaves the car
where nobody asks. Leaving a rider unmatched costs a penalty that
grows with the wait (the age bonus), so that nobody far out starves. All are whole milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from millrace_apps.ridesharing.processes.acceptance import Doubts
from millrace_apps.ridesharing.processes.geo import (
    CIRCUITY,
    DEMAND_RESOLUTION,
    SPEED_M_PER_MS,
    PlaceIndex,
    cell_of,
    disk,
    search_resolution,
)
from millrace_apps.ridesharing.processes.solver import Pairs, solve
from millrace_apps.ridesharing.state.entries import Score

Policy = Literal["fifo", "nearest", "optimal"]
POLICIES: Final[tuple[Policy, ...]] = ("fifo", "nearest", "optimal")

Ints = npt.NDArray[np.int64]
#: Says what drives take: numbers of riders, of cars, and metres, each of shape (pairs,) → ms.
Drives = Callable[[Ints, Ints, npt.NDArray[np.float64]], Ints]


#: Within so many rings of a drop-off so many requests a minute are enough for a car; and beside a pick-up.
_DROP_RINGS: Final = 3
_ENOUGH_A_MINUTE: Final = 1.0


class Serves(msgspec.Struct, frozen=True, array_like=True):
    """Cars of a class may serve riders who have asked for another one.

    Attributes:
        vehicle_class: Class of the car.
        wanted: Class that is asked for.
        cost_ms: What that costs beside the drive, ms: the car is missed by those who ask for its own class.
    """

    vehicle_class: str
    wanted: str
    cost_ms: int


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """What the cost of a match is made of.

    Attributes:
        radius_m: Largest straight-line distance to a pick-up, metres.
        unmatched_ms: What it costs to leave a rider unmatched who has just asked, ms.
        age_weight: What each ms of waiting adds to that.
        car_value_ms: What a car is worth that more riders are expected for than there are cars, ms.
        drop_value_ms: What it costs that a ride ends where nobody asks, ms; 0: nothing.
        half_life_ms: Demand of so long ago counts half, ms.
        most_candidates: Of each rider so many of the nearest cars of each class are looked at.
        serves: Which classes serve which others; none: each serves its own alone.
        favourite_ms: So much longer a drive may be to have a favourite, ms.
        near_m: Where many ask, a rider who has not waited long is given cars within so many metres alone: one
            becomes free nearby before one from afar is there, and cars that are sent far are missed. 0: any.
        near_ms: So long that is for a rider, ms.
    """

    radius_m: float = 3_000.0
    unmatched_ms: int = 900_000
    age_weight: float = 0.5
    car_value_ms: int = 400_000
    drop_value_ms: int = 300_000
    half_life_ms: int = 600_000
    most_candidates: int = 64
    serves: tuple[Serves, ...] = ()
    favourite_ms: int = 120_000
    near_m: float = 0.0
    near_ms: int = 150_000

    def classes_for(self, wanted: str) -> dict[str, int]:
        """Return the classes of cars that serve a class that is asked for, and what that costs, ms.

        >>> Rules(serves=(Serves("xl", "standard", 60_000),)).classes_for("standard")
        {'standard': 0, 'xl': 60000}
        """
        return {wanted: 0} | {s.vehicle_class: s.cost_ms for s in self.serves if s.wanted == wanted}

    def fits(self, vehicle_class: str, wanted: str) -> bool:
        """Return whether a car of a class may serve who has asked for a class."""
        return vehicle_class == wanted or vehicle_class in self.classes_for(wanted)


class Rider(msgspec.Struct, frozen=True, gc=False):
    """A rider who waits for an offer; riders are in the order in which they have waited.

    Attributes:
        request_id: The request.
        lat: Pick-up, degrees.
        lon: Pick-up, degrees.
        vehicle_class: The class asked for.
        waiting_ms: How long the rider has waited, ms.
        excluded: Drivers who are not to be asked.
        to_lat: Drop-off, degrees; ``None``: not known.
        to_lon: Drop-off, degrees.
        favourites: Drivers whom the rider would rather have, or who would rather have the rider.
    """

    request_id: str
    lat: float
    lon: float
    vehicle_class: str
    waiting_ms: int
    excluded: frozenset[str] = frozenset()
    to_lat: float | None = None
    to_lon: float | None = None
    favourites: frozenset[str] = frozenset()


class FreeCar(msgspec.Struct, frozen=True, gc=False):
    """A car that can be offered a ride; cars are in the order of their drivers' names.

    Attributes:
        driver_id: The driver.
        lat: Where, degrees.
        lon: Where, degrees.
        vehicle_class: What it is.
    """

    driver_id: str
    lat: float
    lon: float
    vehicle_class: str


@dataclass(frozen=True, slots=True)
class Problem:
    """What a window has to decide.

    Attributes:
        pairs: Who may be given whom, at what cost.
        metres: Of each pair the straight-line distance, metres.
        takes: Of each pair how long the car needs to the rider, ms.
        extra: Of each pair what it costs beside the drive and the places, ms: another class, or, below 0,
            that the two are favourites.
        worth: What each car is worth where it stands, ms.
        drops: Of each rider what it costs where the ride ends, ms.
        doubts: Of each pair what it costs that the driver may not take it, ms; ``None``: nothing.
        turns: What each car costs for whose turn it is, ms; ``None``: nothing.
    """

    pairs: Pairs
    metres: npt.NDArray[np.float64]
    takes: Ints
    extra: Ints
    worth: Ints
    drops: Ints
    doubts: Ints | None = None
    turns: Ints | None = None

    @property
    def seems_m(self) -> npt.NDArray[np.float64]:
        """Of each pair how far off the car seems to who goes by distance alone, metres."""
        return self.metres + self.extra * (SPEED_M_PER_MS / CIRCUITY)

    def with_turns(self, turns: Ints) -> Problem:
        """Return the same, with what each car costs more, or less, for whose turn it is, ms, (cars,)."""
        cost = self.pairs.cost + turns[self.pairs.car]
        return replace(self, pairs=replace(self.pairs, cost=cost), turns=turns)

    def score(self, pair: int) -> Score:
        """Return what a pair costs, and of what that is made."""
        rider, car = self.pairs.rider[pair], self.pairs.car[pair]
        return Score(
            int(self.pairs.cost[pair]),
            int(self.takes[pair]),
            int(self.worth[car]),
            int(self.drops[rider]),
            int(self.extra[pair]),
            0 if self.doubts is None else int(self.doubts[pair]),
            0 if self.turns is None else int(self.turns[car]),
        )


def problem(
    riders: Sequence[Rider],
    cars: Sequence[FreeCar],
    rules: Rules,
    demand: Mapping[int, float],
    drives: Drives | None = None,
    doubts: Doubts | None = None,
) -> Problem:
    """Return the pairs within the radius and of a class that serves the rider, with their costs.

    Args:
        riders: Who waits.
        cars: Who is free.
        rules: The costs.
        demand: Cell (resolution 8) → requests a minute of late.
        drives: Says what drives take; ``None``: the same speed everywhere.
        doubts: Says what it costs that a driver may not take the ride; ``None``: all do.
    """
    penalty = np.array([rules.unmatched_ms + int(rules.age_weight * r.waiting_ms) for r in riders], np.int64)
    resolution = search_resolution(rules.radius_m)
    worth, drops = car_values(cars, rules, demand), drop_costs(riders, rules, demand)
    size, parts = len(cars), []
    kinds, asked_for = [c.vehicle_class for c in cars], [r.vehicle_class for r in riders]
    by_class = {kind: _numbers(kinds, kind) for kind in sorted(set(kinds))}
    indices = {
        kind: PlaceIndex([cars[n].lat for n in to], [cars[n].lon for n in to], resolution)
        for kind, to in by_class.items()
    }
    for wanted in sorted(set(asked_for)):
        of = _numbers(asked_for, wanted)
        lats, lons = [riders[n].lat for n in of], [riders[n].lon for n in of]
        # Each class by itself: cars of another one do not crowd those out that were asked for.
        for kind, more in rules.classes_for(wanted).items():
            if kind in indices:
                asker, place, away = indices[kind].within(lats, lons, rules.radius_m, rules.most_candidates)
                if len(asker):
                    parts.append(
                        (of[asker], by_class[kind][place], away, np.full(len(asker), more, np.int64))
                    )
    if not parts:
        none = np.zeros(0, np.int64)
        nobody = Pairs(len(riders), size, none, none, none, penalty)
        return Problem(nobody, np.zeros(0), none, none, worth, drops)
    rider, car, metres, extra = (np.concatenate(part) for part in zip(*parts, strict=True))
    if rules.near_m:
        near = metres <= reaches(riders, rules, demand)[rider]
        rider, car, metres, extra = rider[near], car[near], metres[near], extra[near]
    asked = _named(cars, [r.excluded for r in riders])
    code = rider * size + car
    order = np.argsort(code, kind="stable")
    order = order[~np.isin(code[order], asked)] if len(asked) else order
    rider, car, metres, extra = rider[order], car[order], metres[order], extra[order]
    liked = _named(cars, [r.favourites for r in riders])
    if len(liked):
        extra = extra - rules.favourite_ms * np.isin(code[order], liked)
    if drives is None:
        takes = (metres * (CIRCUITY / SPEED_M_PER_MS)).astype(np.int64)
    else:
        takes = drives(rider, car, metres)
    cost = takes + worth[car] + drops[rider] + extra
    doubted = None if doubts is None else doubts(car, metres)
    if doubted is not None:
        cost = cost + doubted
    pairs = Pairs(len(riders), size, rider, car, cost, penalty)
    return Problem(pairs, metres, takes, extra, worth, drops, doubted)


def reaches(riders: Sequence[Rider], rules: Rules, demand: Mapping[int, float]) -> npt.NDArray[np.float64]:
    """Return how far the cars may be that each rider is given now, metres, shape (riders,).

    Args:
        riders: Who waits.
        rules: What is near, and for how long that is enough.
        demand: Cell → requests a minute.
    """
    found = np.full(len(riders), rules.radius_m)
    for n, rider in enumerate(riders):
        if rider.waiting_ms < rules.near_ms:
            around = disk(cell_of(rider.lat, rider.lon, DEMAND_RESOLUTION), 1)
            if sum([demand[c] for c in around if c in demand]) >= _ENOUGH_A_MINUTE:
                found[n] = min(rules.near_m, rules.radius_m)
    return found


def _numbers(classes: Sequence[str], vehicle_class: str) -> Ints:
    return np.array([n for n, one in enumerate(classes) if one == vehicle_class], np.int64)


def _named(cars: Sequence[FreeCar], drivers: Sequence[frozenset[str]]) -> Ints:
    """Return the pairs, as rider · cars + car, of riders and the drivers that are named with each."""
    if not any(drivers):
        return np.zeros(0, np.int64)
    number = {car.driver_id: n for n, car in enumerate(cars)}
    return np.array(
        [n * len(cars) + number[d] for n, named in enumerate(drivers) for d in named if d in number], np.int64
    )


def car_values(cars: Sequence[FreeCar], rules: Rules, demand: Mapping[int, float]) -> Ints:
    """Return what each car is worth where it stands, ms: riders a minute over free cars, around it.

    Args:
        cars: The free cars.
        rules: The costs.
        demand: Cell → requests a minute.
    """
    if not rules.car_value_ms or not demand:
        return np.zeros(len(cars), np.int64)
    cells = [cell_of(car.lat, car.lon, DEMAND_RESOLUTION) for car in cars]
    there: dict[int, int] = {}
    for cell in cells:
        there[cell] = there.get(cell, 0) + 1
    value = {}
    for cell in there:
        around = disk(cell, 1)
        riders = sum([demand[c] for c in around if c in demand])
        value[cell] = 0  # nobody is expected around most cars
        if riders:
            cars_around = sum([there[c] for c in around if c in there])
            value[cell] = int(rules.car_value_ms * min(1.0, riders / cars_around))
    return np.array([value[cell] for cell in cells], np.int64)


def drop_costs(riders: Sequence[Rider], rules: Rules, demand: Mapping[int, float]) -> Ints:
    """Return what it costs that each ride leaves a car where few ask, ms.

    A car that ends where nobody is within reach of it waits, and is missed where it was: with the demand
    around the drop-off the cost falls to nothing.

    Args:
        riders: Who waits.
        rules: The costs.
        demand: Cell → requests a minute.
    """
    costs = np.zeros(len(riders), np.int64)
    if not rules.drop_value_ms or not demand:
        return costs
    for n, rider in enumerate(riders):
        if rider.to_lat is not None and rider.to_lon is not None:
            around = disk(cell_of(rider.to_lat, rider.to_lon, DEMAND_RESOLUTION), _DROP_RINGS)
            asked = sum([demand[c] for c in around if c in demand])
            costs[n] = int(rules.drop_value_ms * (1.0 - min(1.0, asked / _ENOUGH_A_MINUTE)))
    return costs


def fifo(given: Problem) -> Ints:
    """Return the match of first come, first served: each rider in turn gets the nearest car left."""
    pairs = given.pairs
    return _greedy(given, np.lexsort((pairs.car, given.seems_m, pairs.rider)))


def nearest(given: Problem) -> Ints:
    """Return the match of nearest pairs: of all pairs that are left the shortest, again and again."""
    pairs = given.pairs
    return _greedy(given, np.lexsort((pairs.car, pairs.rider, given.seems_m)))


def _greedy(given: Problem, order: Ints) -> Ints:
    """Make the pairs in an order, each if both are still there."""
    match, taken = [-1] * given.pairs.riders, [False] * given.pairs.cars
    riders, cars = given.pairs.rider[order].tolist(), given.pairs.car[order].tolist()
    for pair, rider, car in zip(order.tolist(), riders, cars, strict=True):
        if match[rider] < 0 and not taken[car]:
            match[rider], taken[car] = pair, True
    return np.array(match, np.int64)


def optimal(given: Problem) -> Ints:
    """Return the match with the least sum of costs and penalties."""
    return solve(given.pairs)


#: How a window is decided, by name.
SOLVERS: Final[dict[Policy, Callable[[Problem], Ints]]] = {
    "fifo": fifo,
    "nearest": nearest,
    "optimal": optimal,
}
