"""Mutants of the ridesharing app's hints to drivers, and of what the generator's agents make of them."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_HINTING: Final = "apps/ridesharing/demand/hinting.py"
_TESTS: Final = ("tests/unit/apps/ridesharing/test_hinting.py",)

MUTANTS: Final = (
    Mutant(
        "ridesharing hints: a driver is told again every minute",
        _HINTING,
        "now - car.since_ms >= config.stood_ms and not rests",
        "now - car.since_ms >= config.stood_ms",
        "who was told rests",
        _TESTS,
    ),
    Mutant(
        "ridesharing hints: who has just become free is sent",
        _HINTING,
        "now - car.since_ms >= config.stood_ms and not rests",
        "not rests",
        "a car is sent when it has stood",
        _TESTS,
    ),
    Mutant(
        "ridesharing hints: a car is counted where it was sent though it does not move",
        _HINTING,
        "now <= sent.at_ms + _SETS_OFF_MS or away <= sent.away_m - _NEARER_M",
        "away >= 0",
        "a car that does not come nearer is counted where it stands",
        _TESTS,
    ),
    Mutant(
        "ridesharing hints: a car on its way is counted where it was",
        _HINTING,
        "                return sent.cell\n",
        "                pass\n",
        "a car on its way is counted where it goes",
        _TESTS,
    ),
    Mutant(
        "ridesharing hints: who asks for later is demand of now",
        _HINTING,
        "event.pickup_at_ms - event.at_ms <= self.config.ahead_ms",
        "event.pickup_at_ms",
        "what is booked is no demand of now",
        _TESTS,
    ),
    Mutant(
        "ridesharing hints: who waits in a line is sent away",
        "apps/ridesharing/processes/window.py",
        "        for car in not_in_line(region, free_cars(book, now, region.config.ttl_ms))\n    ]\n",
        "        for car in free_cars(book, now, region.config.ttl_ms)\n    ]\n",
        "who waits in a line is told nothing",
        _TESTS,
    ),
    Mutant(
        "ridesharing hints: all of the generator's drivers follow",
        "generators/ridesharing/fleet.py",
        'chance(self._seed, "follows", driver.number) < self._profile.follow_hints',
        'chance(self._seed, "follows", driver.number) < 2',
        "a share of the drivers follows",
        _TESTS,
    ),
)
