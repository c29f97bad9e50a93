"""What a server takes from a job: the interval of a median holds it, whatever law the shares follow."""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Callable

import pytest

from millrace_apps.benchmarks.compare import order
from millrace_apps.benchmarks.serving_beside import slowdown
from tests.cases import case_count

#: Law → how a share is drawn; its median is 0.05 in all of them.
LAWS: dict[str, Callable[[random.Random], float]] = {
    "normal": lambda chance: chance.gauss(0.05, 0.1),
    "skew": lambda chance: 0.05 + 0.1 * (chance.expovariate(1.0) - 0.6931471805599453),
    "heavy": lambda chance: 0.05 + 0.02 * chance.gauss(0, 1) / max(1e-9, abs(chance.gauss(0, 1))),
}


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("count", [6, 10, 12, 17])
def test_the_interval_holds_the_median_as_often_as_it_says(law: str, count: int) -> None:
    chance, held, runs = random.Random(count), 0, case_count(3_000)
    for _ in range(runs):
        shares = [max(-0.9, LAWS[law](chance)) for _ in range(count)]
        found = slowdown([(200.0, 200.0 * (1 + share)) for share in shares])
        assert found["low"] <= found["median"] <= found["high"]
        held += found["low"] - 1e-4 <= 0.05 <= found["high"] + 1e-4
    # A fourth of a per cent is what so many runs leave to chance at three standard deviations and a half.
    assert held / runs > found["confidence"] - 3.5 * (0.05 * 0.95 / runs) ** 0.5


@pytest.mark.parametrize("count", range(1, 24))
def test_no_smaller_interval_is_told_and_none_where_there_are_too_few(count: int) -> None:
    """The oracle throws all coins: the chance that as many of them or fewer fall on one side."""
    throws = list(itertools.product([0, 1], repeat=min(count, 14)))
    found = slowdown([(100.0, 100.0 + n) for n in range(count)])
    if count < 6:
        assert (found["low"], found["high"], found["confidence"]) == (None, None, 0.0)
        return
    left_out = round(found["low"] * 100)
    assert round(found["high"] * 100) == count - 1 - left_out
    if count <= 14:

        def outside(most: int) -> float:
            return 2 * sum(sum(throw) <= most for throw in throws) / len(throws)

        assert outside(left_out) <= 0.05 < outside(left_out + 1)
        assert found["confidence"] == pytest.approx(1 - outside(left_out), abs=6e-4)


def test_the_median_is_of_pairs_and_sides_take_turns() -> None:
    pairs = [(100.0, 102.0), (400.0, 404.0), (50.0, 55.0)]
    assert slowdown(pairs)["median"] == pytest.approx(statistics.median([0.02, 0.01, 0.1]))
    first = [sides[0] for sides in order(12)]
    assert first == [0, 1] * 6
