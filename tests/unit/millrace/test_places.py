"""Distances on the Earth, beside the chord between points on a sphere: another way of thinking."""

from __future__ import annotations

import doctest
import math
import random

import pytest

from millrace import places
from millrace.places import EARTH_M, distance_m
from tests.cases import case_count

_CASES = case_count(3_000)


def by_chord(lat: float, lon: float, to_lat: float, to_lon: float) -> float:
    """The arc over the straight line between two points on the sphere."""
    a, b = (
        (math.cos(y) * math.cos(x), math.cos(y) * math.sin(x), math.sin(y))
        for y, x in ((math.radians(lat), math.radians(lon)), (math.radians(to_lat), math.radians(to_lon)))
    )
    return 2 * EARTH_M * math.asin(min(1.0, math.dist(a, b) / 2))


def some_place(rng: random.Random) -> tuple[float, float]:
    return rng.uniform(-90, 90), rng.uniform(-180, 180)


def test_distances_are_those_over_the_chord() -> None:
    rng = random.Random(5)
    for _ in range(_CASES):
        here, there = some_place(rng), some_place(rng)
        near = here[0] + rng.uniform(-1e-3, 1e-3), here[1] + rng.uniform(-1e-3, 1e-3)
        for other in (there, near):
            # Beside the opposite point the chord hardly grows.
            assert distance_m(*here, *other) == pytest.approx(by_chord(*here, *other), rel=1e-6, abs=1.0)


def test_opposite_places_are_half_the_way_round_and_a_place_is_at_itself() -> None:
    rng = random.Random(6)
    for _ in range(_CASES):
        lat, lon = some_place(rng)
        assert distance_m(lat, lon, -lat, lon + 180) == pytest.approx(math.pi * EARTH_M)
        assert distance_m(lat, lon, lat, lon) == 0.0


def test_a_degree_of_a_meridian_is_as_long_as_it_is_known_to_be() -> None:
    assert distance_m(0, 0, 1, 0) == pytest.approx(111_195, abs=1)
    assert pytest.approx(6_371_007.2, abs=0.1) == EARTH_M


def test_the_example_runs() -> None:
    assert doctest.testmod(places).failed == 0
