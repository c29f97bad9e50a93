from __future__ import annotations

import itertools
import math
import random

import h3
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace_apps.ridesharing.processes.geo import (
    PlaceIndex,
    cell_of,
    disk,
    distance_m,
    reach_m,
    rings_for,
    search_resolution,
)
from millrace_apps.ridesharing.processes.matching import (
    FreeCar,
    Policy,
    Rider,
    Rules,
    car_values,
    drop_costs,
    fifo,
    nearest,
    optimal,
    problem,
    reaches,
)
from millrace_apps.ridesharing.processes.solver import Pairs, solve

LAT, LON = 37.77, -122.42


def scattered(count: int, seed: int, spread: float = 0.06) -> list[tuple[float, float]]:
    draws = random.Random(seed)
    return [(LAT + spread * draws.uniform(-1, 1), LON + spread * draws.uniform(-1, 1)) for _ in range(count)]


@pytest.mark.parametrize(("resolution", "rings"), [(7, 1), (8, 1), (8, 3), (8, 5), (9, 2), (9, 6)])
@pytest.mark.parametrize("middle", [(37.77, -122.42), (52.5, 13.4), (-33.9, 151.2), (1.3, 103.8)])
def test_a_disk_of_cells_reaches_at_least_as_far_as_is_said(
    resolution: int, rings: int, middle: tuple[float, float]
) -> None:
    draws = random.Random(resolution * 10 + rings)
    reached = 0
    for _ in range(300):
        lat, lon = (x + draws.uniform(-0.02, 0.02) for x in middle)
        cell = cell_of(lat, lon, resolution)
        reach = reach_m(cell, rings)
        angle = draws.uniform(0, 2 * math.pi)
        away = reach * draws.uniform(0.9, 0.9999)
        to_lat = lat + away * math.cos(angle) / 111_195
        to_lon = lon + away * math.sin(angle) / 111_195 / math.cos(math.radians(lat))
        if distance_m(lat, lon, to_lat, to_lon) <= reach:
            reached += 1
            assert cell_of(to_lat, to_lon, resolution) in disk(cell, rings)
    assert reached > 200


@pytest.mark.parametrize("radius", [300.0, 1_000.0, 3_000.0, 8_000.0, 20_000.0])
def test_search_takes_few_rings_and_enough(radius: float) -> None:
    cell = cell_of(LAT, LON, search_resolution(radius))
    rings = rings_for(cell, radius)
    assert reach_m(cell, rings) >= radius
    assert rings <= 7


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("radius", [500.0, 3_000.0, 8_000.0])
def test_places_within_a_radius_are_those_that_brute_force_finds(seed: int, radius: float) -> None:
    places, askers = scattered(150, seed), scattered(25, seed + 100, 0.1)
    index = PlaceIndex(*zip(*places, strict=True), search_resolution(radius))
    asker, place, metres = index.within(*zip(*askers, strict=True), radius)
    wanted = [
        (a, p)
        for (a, from_), (p, to) in itertools.product(enumerate(askers), enumerate(places))
        if distance_m(*from_, *to) <= radius
    ]
    assert list(zip(asker.tolist(), place.tolist(), strict=True)) == wanted
    for a, p, m in zip(asker.tolist(), place.tolist(), metres.tolist(), strict=True):
        assert m == pytest.approx(distance_m(*askers[a], *places[p]), abs=0.05)


@pytest.mark.parametrize("most", [1, 5, 40])
def test_of_many_places_the_nearest_are_kept(most: int) -> None:
    places, askers = scattered(200, 1), scattered(10, 2)
    index = PlaceIndex(*zip(*places, strict=True), 8)
    asker, place, _ = index.within(*zip(*askers, strict=True), 5_000.0, most)
    for number, here in enumerate(askers):
        away = sorted((distance_m(*here, *there), p) for p, there in enumerate(places))
        wanted = {p for m, p in away[:most] if m <= 5_000.0}
        assert {int(p) for a, p in zip(asker, place, strict=True) if a == number} == wanted


@pytest.mark.parametrize("seed", range(5))
def test_nearest_looks_one_ring_further_than_the_first_it_finds(seed: int) -> None:
    """A place of ring k + 1 may be nearer than one of ring k: brute force decides."""
    places = scattered(40, seed)
    index = PlaceIndex(*zip(*places, strict=True), 9)
    for here in scattered(60, seed + 50, 0.2):
        found, metres = index.nearest(*here)
        best = min(range(len(places)), key=lambda p: (distance_m(*here, *places[p]), p))
        assert found == best
        assert metres == pytest.approx(distance_m(*here, *places[best]), rel=1e-4)
    assert PlaceIndex([], [], 8).nearest(LAT, LON) == (-1, math.inf)


def make_pairs(riders: int, cars: int, seed: int, share: float = 0.6) -> Pairs:
    draws = np.random.default_rng(seed)
    mask = draws.random((riders, cars)) < share
    rider, car = np.nonzero(mask)
    cost = draws.integers(0, 1_000, len(rider))
    return Pairs(riders, cars, rider, car, cost, draws.integers(100, 1_500, riders))


def brute_force(pairs: Pairs) -> int:
    """The least objective over all ways to match, one rider after the other."""
    of = {(int(r), int(c)): int(x) for r, c, x in zip(pairs.rider, pairs.car, pairs.cost, strict=True)}

    def best(rider: int, taken: frozenset[int]) -> int:
        if rider == pairs.riders:
            return 0
        options = [int(pairs.penalty[rider]) + best(rider + 1, taken)]
        for car in range(pairs.cars):
            if (rider, car) in of and car not in taken:
                options.append(of[rider, car] + best(rider + 1, taken | {car}))
        return min(options)

    return best(0, frozenset())


@settings(max_examples=60, deadline=None)
@given(
    riders=st.integers(0, 5), cars=st.integers(0, 5), seed=st.integers(0, 10_000), share=st.floats(0.1, 1.0)
)
def test_the_solver_is_optimal_densely_and_sparsely(riders: int, cars: int, seed: int, share: float) -> None:
    pairs = make_pairs(riders, cars, seed, share)
    wanted = brute_force(pairs)
    for dense_cells in (10_000, 0):
        match = solve(pairs, dense_cells=dense_cells)
        made = match[match >= 0]
        assert pairs.value(match) == wanted
        assert len(set(pairs.car[made].tolist())) == len(made)
        assert all(pairs.rider[pair] == rider for rider, pair in enumerate(match.tolist()) if pair >= 0)


@pytest.mark.parametrize(("riders", "cars"), [(60, 200), (120, 120), (200, 60)])
def test_twenty_nearest_lose_little_where_it_is_tight_and_nothing_where_it_is_not(
    riders: int, cars: int
) -> None:
    pairs = make_pairs(riders, cars, 5, 0.9)
    exact, cut = pairs.value(solve(pairs)), pairs.value(solve(pairs, dense_cells=0, top_k=20))
    assert exact <= cut <= exact * 1.01


def test_equal_costs_are_decided_by_the_order_of_riders_and_cars() -> None:
    same = Pairs(
        2, 3, np.array([0, 0, 0, 1, 1, 1]), np.array([0, 1, 2, 0, 1, 2]), np.full(6, 7), np.full(2, 50)
    )
    matches = {tuple(solve(same).tolist()) for _ in range(5)}
    assert len(matches) == 1


def window(seed: int, riders: int = 30, cars: int = 20) -> tuple[list[Rider], list[FreeCar]]:
    draws = random.Random(seed)
    asking = [
        Rider(f"r{n:03}", *place, draws.choice(["standard", "xl"]), draws.randrange(300_000))
        for n, place in enumerate(scattered(riders, seed, 0.03))
    ]
    free = [
        FreeCar(f"d{n:03}", *place, draws.choice(["standard", "xl"]))
        for n, place in enumerate(scattered(cars, seed + 1, 0.03))
    ]
    return asking, free


@pytest.mark.parametrize("seed", range(6))
def test_every_policy_makes_pairs_once_and_the_optimal_one_is_the_cheapest(seed: int) -> None:
    riders, cars = window(seed)
    found = problem(riders, cars, Rules(), {})
    for rider, car, metres in zip(found.pairs.rider, found.pairs.car, found.metres, strict=True):
        assert riders[rider].vehicle_class == cars[car].vehicle_class
        assert metres <= 3_000
    values = {}
    for name, policy in (("fifo", fifo), ("nearest", nearest), ("optimal", optimal)):
        match = policy(found)
        made = found.pairs.car[match[match >= 0]]
        assert len(set(made.tolist())) == len(made)
        values[name] = found.pairs.value(match)
    assert values["optimal"] <= min(values.values())


def test_fifo_serves_who_came_first_and_nearest_the_shortest_pair() -> None:
    riders = [Rider("r1", LAT + 0.02, LON, "standard", 9_000), Rider("r2", LAT, LON, "standard", 1_000)]
    cars = [FreeCar("d1", LAT + 0.001, LON, "standard")]
    found = problem(riders, cars, Rules(), {})
    assert fifo(found).tolist() == [0, -1]
    assert nearest(found).tolist() == [-1, 1]


def test_who_was_asked_before_and_refused_is_left_out() -> None:
    riders = [Rider("r1", LAT, LON, "standard", 0, frozenset({"d1", "gone"}))]
    cars = [FreeCar("d1", LAT, LON, "standard"), FreeCar("d2", LAT + 0.01, LON, "standard")]
    found = problem(riders, cars, Rules(), {})
    assert found.pairs.car.tolist() == [1]


def test_age_lets_the_one_who_waits_go_first_when_there_is_one_car() -> None:
    cars = [FreeCar("d1", LAT, LON, "standard")]
    near, far = Rider("near", LAT, LON, "standard", 0), Rider("far", LAT + 0.018, LON, "standard", 1_000_000)
    assert optimal(problem([far, near], cars, Rules(age_weight=0.5), {})).tolist() == [0, -1]
    assert optimal(problem([far, near], cars, Rules(age_weight=0.0), {})).tolist() == [-1, 1]


def test_a_car_alone_where_riders_come_is_spared() -> None:
    busy = [FreeCar("d1", LAT, LON, "standard")]
    many = [FreeCar(f"e{n}", LAT + 0.03, LON, "standard") for n in range(5)]
    demand = {cell_of(LAT, LON): 3.0}
    values = car_values([*busy, *many], Rules(), demand)
    assert values[0] == Rules().car_value_ms
    assert set(values[1:].tolist()) == {0}
    between = Rider("r1", LAT + 0.014, LON, "standard", 0)
    chosen = {}
    for value in (0, 400_000):
        found = problem([between], [*busy, *many], Rules(car_value_ms=value), demand)
        chosen[value] = int(found.pairs.car[optimal(found)[0]])
    assert chosen[0] == 0
    assert chosen[400_000] > 0


def test_of_two_riders_the_one_who_leaves_the_car_where_others_ask_has_it() -> None:
    """The other's ride is a little nearer, and ends where nobody asks: with one car it has to wait."""
    cars = [FreeCar("d1", LAT, LON, "standard")]
    out = Rider("out", LAT + 0.001, LON, "standard", 0, to_lat=LAT + 0.5, to_lon=LON)
    into = Rider("into", LAT + 0.002, LON, "standard", 0, to_lat=LAT, to_lon=LON)
    unknown = Rider("unknown", LAT + 0.002, LON, "standard", 0)
    demand = {cell_of(LAT, LON): 0.25}
    told = [drop_costs([out, into, unknown], Rules(drop_value_ms=value), demand) for value in (0, 400_000)]
    assert [one.tolist() for one in told] == [[0, 0, 0], [400_000, 300_000, 0]]
    matches = [
        optimal(problem([out, into], cars, Rules(car_value_ms=0, drop_value_ms=value), demand)).tolist()
        for value in (0, 400_000)
    ]
    assert matches == [[0, -1], [-1, 1]]


def test_where_nothing_is_known_of_demand_all_drop_offs_are_alike() -> None:
    far = Rider("out", LAT, LON, "standard", 0, to_lat=LAT + 0.5, to_lon=LON)
    assert drop_costs([far], Rules(), {}).tolist() == [0]


@pytest.mark.parametrize("seed", range(10))
def test_the_cost_of_a_drop_off_falls_with_the_demand_around_it(seed: int) -> None:
    draws = random.Random(seed)
    riders = [
        Rider(f"r{n}", LAT, LON, "standard", 0, to_lat=LAT + draws.uniform(-0.05, 0.05), to_lon=LON)
        for n in range(20)
    ]
    demand = {cell_of(LAT + draws.uniform(-0.05, 0.05), LON): draws.uniform(0, 0.5) for _ in range(6)}
    cells = {h3.int_to_str(cell): asked for cell, asked in demand.items()}
    for rider, cost in zip(riders, drop_costs(riders, Rules(drop_value_ms=300_000), demand), strict=True):
        home = h3.latlng_to_cell(rider.to_lat, rider.to_lon, 8)
        near = sum(asked for cell, asked in cells.items() if h3.grid_distance(home, cell) <= 3)
        assert cost == pytest.approx(300_000 * max(0.0, 1 - near), abs=1)


@pytest.mark.parametrize("seed", range(20))
def test_where_many_ask_who_has_not_waited_long_has_only_the_cars_nearby(seed: int) -> None:
    draws = random.Random(seed)
    near_m, near_ms = draws.choice((500.0, 1_000.0, 9_000.0)), draws.choice((60_000, 150_000))
    rules = Rules(near_m=near_m, near_ms=near_ms, most_candidates=1_000)
    riders = [
        Rider(f"r{n}", lat, lon, draws.choice(("standard", "xl")), draws.randrange(0, 2 * near_ms, 10_000))
        for n, (lat, lon) in enumerate(scattered(30, seed, 0.03))
    ]
    cars = [
        FreeCar(f"d{n}", lat, lon, draws.choice(("standard", "xl")))
        for n, (lat, lon) in enumerate(scattered(60, 100 + seed, 0.03))
    ]
    demand = {cell_of(*place): draws.uniform(0, 0.6) for place in scattered(40, 200 + seed, 0.03)}
    found = problem(riders, cars, rules, demand)
    wanted, held_back = set(), 0
    for n, rider in enumerate(riders):
        home = h3.latlng_to_cell(rider.lat, rider.lon, 8)
        around = sum(m for cell, m in demand.items() if h3.grid_distance(home, h3.int_to_str(cell)) <= 1)
        keeps_near = rider.waiting_ms < near_ms and around >= 1.0
        held_back += keeps_near
        for k, car in enumerate(cars):
            away = distance_m(rider.lat, rider.lon, car.lat, car.lon)
            if car.vehicle_class == rider.vehicle_class and away <= (
                min(near_m, 3_000) if keeps_near else 3_000
            ):
                wanted.add((n, k))
    assert set(zip(found.pairs.rider.tolist(), found.pairs.car.tolist(), strict=True)) == wanted
    assert 0 < held_back < len(riders)
    every = problem(riders, cars, Rules(most_candidates=1_000), demand)
    assert set(reaches(riders, Rules(near_m=1_000.0, near_ms=0), demand).tolist()) == {3_000.0}
    assert len(every.metres) >= len(found.metres)


@pytest.mark.parametrize("policy", ["fifo", "nearest", "optimal"])
def test_a_window_is_decided_the_same_whatever_the_run(policy: Policy) -> None:
    from millrace_apps.ridesharing.processes.matching import SOLVERS

    riders, cars = window(3, 80, 60)
    found = [SOLVERS[policy](problem(riders, cars, Rules(), {})).tolist() for _ in range(3)]
    assert found[0] == found[1] == found[2]


def test_nobody_waits_or_nobody_is_free() -> None:
    for riders, cars in (([], []), (window(1)[0], []), ([], window(1)[1])):
        found = problem(riders, cars, Rules(), {})
        for policy in (fifo, nearest, optimal):
            assert policy(found).tolist() == [-1] * len(riders)
