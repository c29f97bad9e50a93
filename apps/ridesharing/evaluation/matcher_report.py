"""Matcher benchmark: the time of a dispatch window by its size, for scattered riders and cars."""

from __future__ import annotations

import random
import time
from typing import Any, Final

import numpy as np

from millrace_apps.ridesharing.evaluation.replay import Optimum
from millrace_apps.ridesharing.processes.acceptance import STEPS_M, Acceptance, AcceptanceConfig, Tally
from millrace_apps.ridesharing.processes.geo import cell_of
from millrace_apps.ridesharing.processes.matching import FreeCar, Rider, Rules, fifo, optimal, problem

#: A town of about 5 by 5 km.
_LAT, _LON, _SPAN = 37.76, -122.45, 0.05
#: The first windows warm caches up and do not count.
_WARM: Final = 2
#: A day after the answers, ms.
_NOW: Final = 86_400_000


class _Kept(dict[str, Any]):
    """What a map state keeps, unpacked."""

    put = dict.__setitem__


def carry_out(riders: int, cars: int, windows: int, seed: int, *, acceptance: bool = False) -> dict[str, Any]:
    """Decide windows and measure each from its riders and cars to the match.

    Args:
        riders: Who waits in each window.
        cars: Who is free.
        windows: How many are measured.
        seed: Where everybody is.
        acceptance: Whether it counts who is likely to say yes, by answers of each driver and of the fleet.
    """
    tallies = _answers(cars, seed) if acceptance else _Kept()
    took, cpu, optimum, saved = [], [], Optimum(), []
    for number in range(windows + _WARM):
        draws = random.Random(f"{seed}-{number}")  # noqa: S311
        asking, free = _window(draws, riders, cars)
        demand = {cell_of(r.lat, r.lon): 1.0 for r in asking}
        began, worked = time.perf_counter(), time.process_time()
        doubts = (
            Acceptance(tallies, AcceptanceConfig(), _NOW).doubts([car.driver_id for car in free])
            if acceptance
            else None
        )
        given = problem(asking, free, Rules(), demand, doubts=doubts)
        match = optimal(given)
        if number >= _WARM:
            took.append((time.perf_counter() - began) * 1_000)
            cpu.append((time.process_time() - worked) * 1_000)
        else:  # the independent solver is slow
            optimum.take(given, match)
            saved.append(1 - given.pairs.value(match) / given.pairs.value(fifo(given)))
    return {
        "riders": riders,
        "cars": cars,
        "windows": windows,
        "acceptance": acceptance,
        "p50_ms": float(np.percentile(took, 50)),
        "p99_ms": float(np.percentile(took, 99)),
        "max_ms": float(max(took)),
        "p99_cpu_ms": float(np.percentile(cpu, 99)),
        "optimality_ratio": optimum.ratio,
        "saved_over_fifo": float(np.mean(saved)),
    }


def _answers(cars: int, seed: int) -> _Kept:
    """Return what drivers have answered before: some dozens each, of which they took some."""
    draws, kept = random.Random(f"{seed}-answers"), _Kept()  # noqa: S311
    for step in range(len(STEPS_M) + 1):
        kept[f"m:{step}"] = Tally(900.0 - 100 * step, 1_000.0, 0)
    kept["all"] = Tally(4_000.0, 5_000.0, 0)
    for n in range(cars):
        kept[f"d:d{n:05}"] = Tally(draws.uniform(5, 40), 40.0, draws.randrange(_NOW))
    return kept


def _window(draws: random.Random, riders: int, cars: int) -> tuple[list[Rider], list[FreeCar]]:
    def place() -> tuple[float, float]:
        return _LAT + _SPAN * draws.random(), _LON + 1.2 * _SPAN * draws.random()

    asking = [Rider(f"r{n:05}", *place(), "standard", draws.randrange(200_000)) for n in range(riders)]
    return asking, [FreeCar(f"d{n:05}", *place(), "standard") for n in range(cars)]
