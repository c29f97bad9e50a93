"""What surge does to a city in a shock: waits, rides served, and how often prices turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from millrace_apps.ridesharing.config import DispatchConfig
from millrace_apps.ridesharing.evaluation.replay import run_replay
from millrace_apps.ridesharing.processes.matching import Rules
from millrace_apps.ridesharing.settings import RidesharingSettings
from millrace_apps.ridesharing.surge.config import SurgeConfig
from millrace_apps.ridesharing.surge.records import Multiplier
from millrace_apps.ridesharing.surge.world import City, World

#: Elasticities of riders and of drivers that are reported; the first pair is what the report begins with.
PAIRS: Final = ((-0.5, 0.3), (-0.25, 0.3), (-1.0, 0.3), (-0.25, 0.1), (-0.5, 0.1), (-1.0, 0.1))
_HOUR_MS: Final = 3_600_000


def carry_out(
    world: World,
    config: SurgeConfig | None = None,
    pairs: Sequence[tuple[float, float]] = PAIRS,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Run a city without surge, then with it for each pair of elasticities.

    Args:
        world: The city; the same requests, riders' minds and cars in all runs.
        config: How prices follow scarcity.
        pairs: Elasticities of riders and of drivers.
        say: Is told what is done.

    Returns:
        The report: ``p95_lower``, ``served_more``, ``sign_changes`` of the first pair, and all ``runs``.
    """
    config = config or SurgeConfig()
    without = _run(world, None, -0.5, 0.3)
    say(f"without surge: {without['served']:.1%} served, p95 {without['p95_s']:.0f} s")
    near = _run(world, None, -0.5, 0.3, near=True)
    say(f"without surge, near cars first: {near['served']:.1%} served, p95 {near['p95_s']:.0f} s")
    runs = []
    for riders, drivers in pairs:
        run = _run(world, config, riders, drivers, near=True)
        names = ("p95", "shock_p95", "p95_all", "mean")
        lower = {f"{name}_lower": _lower(run, without, name) for name in names}
        run = {
            "riders": riders,
            "drivers": drivers,
            **run,
            **lower,
            "p95_lower_than_near": _lower(run, near, "p95"),
            "served_more": round(run["served"] - without["served"], 4),
        }
        runs.append(run)
        say(f"riders {riders:+}, drivers {drivers:+}: {run['served']:.1%} served, p95 {run['p95_s']:.0f} s")
    first = runs[0]
    told = (
        *("p95_lower", "shock_p95_lower", "p95_all_lower", "mean_lower", "p95_lower_than_near"),
        *("served_more", "sign_changes", "sign_changes_mean"),
    )
    return {
        "seed": world.seed,
        **{name: first[name] for name in told},
        "without": without,
        "without_near": near,
        "runs": runs,
    }


def _lower(run: dict[str, Any], other: dict[str, Any], name: str) -> float:
    """Return by which share a wait is lower than in another run."""
    return round(1 - float(run[f"{name}_s"]) / float(other[f"{name}_s"]), 4)


def _run(
    world: World, config: SurgeConfig | None, riders: float, drivers: float, *, near: bool = False
) -> dict[str, Any]:
    requests = world.requests()
    most = int(world.cars * (config.cap if config else 1.0) ** drivers) + 1
    city = City(
        requests, most, world.seed, world.start_ms, world.until_ms,
        usual=world.cars, prices=config, riders_e=riders, drivers_e=drivers,
    )  # fmt: skip
    rules = Rules(near_m=RidesharingSettings().surge.near_km * 1_000 if near else 0.0)
    told = DispatchConfig(window_ms=10_000, rules=rules)
    run_replay(city, told)
    return figures(world, city, told.patience_ms / 1_000)


def figures(world: World, city: City, patience_s: float) -> dict[str, Any]:
    """Return what became of those who asked.

    Args:
        world: The city.
        city: What happened in it.
        patience_s: So long who got no car has waited, seconds.
    """
    begins, ends = world.shock_ms
    waits = {r.request_id: (city.served[r.request_id].pickup_ms - r.at_ms) / 1_000
             for r in city.requests if r.request_id in city.served}  # fmt: skip
    shock = [r.request_id for r in city.requests if begins <= r.at_ms < ends]
    every = np.array(list(waits.values()))
    within = np.array([waits[name] for name in shock if name in waits])
    # Who gave up has waited at least so long: no run gains by leaving those out who waited longest.
    of_all = np.array([waits.get(name, patience_s) for name in sorted(city.taken)])
    paid = [quote.multiplier for quote in city.quotes.values()]
    drives = np.array([s.pickup_ms - s.accepted_ms for s in city.served.values()]) / 1_000
    turned = sign_changes(city.priced)
    return {
        "asked": len(city.requests),
        "took": len(city.taken),
        "completed": len(waits),
        "served": round(len(waits) / len(city.requests), 4),
        "gave_up": round(1 - len(waits) / max(len(city.taken), 1), 4),
        "shock_served": round(len(within) / max(len(shock), 1), 4),
        "mean_s": round(float(every.mean()), 1),
        "p95_s": round(float(np.percentile(every, 95)), 1),
        "p95_all_s": round(float(np.percentile(of_all, 95)), 1),
        "shock_mean_s": round(float(within.mean()), 1),
        "shock_p95_s": round(float(np.percentile(within, 95)), 1),
        "drive_mean_s": round(float(drives.mean()), 1),
        "drive_p95_s": round(float(np.percentile(drives, 95)), 1),
        "multiplier_mean": round(float(np.mean(paid)), 3),
        "multiplier_most": float(np.max(paid)),
        "sign_changes": max(turned.values(), default=0),
        "sign_changes_mean": round(float(np.mean(list(turned.values()))), 3) if turned else 0.0,
        # What is earned where rides cost a minute's price by their length: of rides in the shock, too.
        "fares": round(sum(city.quotes[r.request_id].multiplier * r.duration_ms / 60_000
                           for r in city.requests if r.request_id in city.served)),
    }  # fmt: skip


def sign_changes(told: Sequence[Multiplier]) -> dict[tuple[str, int], int]:
    """Return how often the multiplier of a cell turns round, by cell and hour in which it moves.

    Example:
        >>> moves = [(0, 1.0, 1.1), (60_000, 1.1, 1.2), (120_000, 1.2, 1.1), (4_000_000, 1.1, 1.2)]
        >>> told = [Multiplier("c", "a", at, to, before, to, 0.0, 0.0, 3.0, "") for at, before, to in moves]
        >>> sign_changes(told) == {("a", 0): 1, ("a", 1): 1}
        True
    """
    found: dict[tuple[str, int], int] = {}
    rising: dict[str, bool] = {}
    for one in sorted(told, key=lambda m: m.from_ms):
        place = (one.cell, one.from_ms // _HOUR_MS)
        up = one.multiplier > one.before
        found[place] = found.get(place, 0) + (one.cell in rising and rising[one.cell] != up)
        rising[one.cell] = up
    return found
