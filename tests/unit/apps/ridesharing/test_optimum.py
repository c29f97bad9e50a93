from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from millrace_apps.ridesharing.evaluation.fleet import Fleet
from millrace_apps.ridesharing.evaluation.replay import Optimum, run_replay
from millrace_apps.ridesharing.evaluation.replay_report import Plan, measure
from millrace_apps.ridesharing.processes.geo import cell_of
from millrace_apps.ridesharing.processes.matching import (
    SOLVERS,
    FreeCar,
    Policy,
    Problem,
    Rider,
    Rules,
    problem,
)
from tests.cases import case_count
from tests.unit.apps.ridesharing.cases import LAT, LON, START
from tests.unit.apps.ridesharing.test_audit import line_of_requests


def window(draws: random.Random, riders: int, cars: int) -> Problem:
    """A window of scattered riders and cars."""

    def place() -> tuple[float, float]:
        return LAT + 0.04 * draws.uniform(-1, 1), LON + 0.05 * draws.uniform(-1, 1)

    asking = [Rider(f"r{n:03}", *place(), "standard", draws.randrange(200_000)) for n in range(riders)]
    free = [FreeCar(f"d{n:03}", *place(), "standard") for n in range(cars)]
    return problem(asking, free, Rules(), {cell_of(r.lat, r.lon): 1.0 for r in asking})


def judged(windows: list[Problem], policy: Policy) -> Optimum:
    optimum = Optimum()
    for given in windows:
        optimum.take(given, SOLVERS[policy](given))
    return optimum


def test_first_come_first_served_does_not_pass_for_the_optimum_where_cars_are_scarce() -> None:
    """Of 60 riders three can be served: the penalties of the others are nearly all of either sum."""
    draws = random.Random(5)
    windows = [window(draws, 60, 3) for _ in range(20)]
    whole = [
        sum(given.pairs.value(SOLVERS[policy](given)) for given in windows) for policy in ("fifo", "optimal")
    ]
    assert whole[0] < 1.02 * whole[1]
    assert judged(windows, "fifo").ratio > 1.2
    assert judged(windows, "optimal").ratio == 1.0


@pytest.mark.parametrize(("policy", "least", "most"), [("fifo", 1.05, 10.0), ("optimal", 1.0, 1.0)])
def test_a_replay_with_few_cars_says_by_which_policy_it_was(
    policy: Policy, least: float, most: float
) -> None:
    requests = line_of_requests(60, 15)
    plan = Plan(
        start_ms=START,
        end_ms=START + 900_000,
        fleet=4,
        policy=policy,
        window_ms=10_000,
        radius_m=3_000,
        seed=3,
    )
    fleet = Fleet(requests, plan.fleet, plan.seed, plan.start_ms, plan.end_ms)
    report = measure(plan, run_replay(fleet, plan.config))
    assert least <= report["optimality_ratio"] <= most


def by_all_ways(given: Problem) -> tuple[int, int]:
    """Return the least objective over all ways to match, and the penalties in it."""
    pairs = given.pairs
    of = {(int(r), int(c)): int(x) for r, c, x in zip(pairs.rider, pairs.car, pairs.cost, strict=True)}
    found = []
    for ways in itertools.product(range(-1, pairs.cars), repeat=pairs.riders):
        taken = [car for car in ways if car >= 0]
        if len(set(taken)) == len(taken) and all((n, car) in of for n, car in enumerate(ways) if car >= 0):
            out = sum(int(pairs.penalty[n]) for n, car in enumerate(ways) if car < 0)
            found.append((sum(of[n, car] for n, car in enumerate(ways) if car >= 0) + out, out))
    return min(found)


def test_it_is_what_all_ways_to_match_say() -> None:
    draws, numbers = random.Random(11), np.random.default_rng(11)
    compared = 0
    for _ in range(case_count(300)):
        given = window(draws, draws.randint(1, 4), draws.randint(0, 4))
        least, left_out = by_all_ways(given)
        # Any match: pairs in some order, each if both are still there, some of them left out.
        order, match, taken = numbers.permutation(len(given.metres)), [-1] * given.pairs.riders, set[int]()
        for pair in order[: draws.randint(0, len(order))].tolist():
            rider, car = int(given.pairs.rider[pair]), int(given.pairs.car[pair])
            if match[rider] < 0 and car not in taken:
                match[rider] = pair
                taken.add(car)
        optimum = Optimum()
        optimum.take(given, np.array(match, np.int64))
        chosen = given.pairs.value(np.array(match, np.int64))
        assert (optimum.chosen_ms, optimum.best_ms) == (chosen - left_out, least - left_out)
        assert optimum.ratio >= 1.0
        compared += chosen > least
    assert compared > 0
