"""Recorded requests in a closed loop with cars of which some follow hints, beside cars that wait."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import h3
import numpy as np

from millrace.errors import UserError
from millrace.host.memory_chain import MemoryChain
from millrace.places import distance_m
from millrace_apps.ridesharing.config import DispatchConfig
from millrace_apps.ridesharing.contracts.events import Event, RideRequest
from millrace_apps.ridesharing.demand.hints import hints
from millrace_apps.ridesharing.demand.process import QUARTER_MS, Ask
from millrace_apps.ridesharing.demand.report import learned
from millrace_apps.ridesharing.evaluation.fleet import Fleet, Leg
from millrace_apps.ridesharing.evaluation.in_memory import REGION, run
from millrace_apps.ridesharing.evaluation.recorded import read_requests
from millrace_apps.ridesharing.evaluation.replay import run_replay
from millrace_apps.ridesharing.processes.geo import CIRCUITY, SPEED_M_PER_MS

_END_MS: Final = 100_000 * 96 * QUARTER_MS
#: Hints are given so often, to cars that have stood for so long, ms.
_EVERY_MS: Final = 60_000
_STOOD_MS: Final = 60_000


@dataclass
class Hinted(Fleet):
    """The fleet of a replay, of which a share goes where the forecast wants cars.

    Attributes:
        demand: The process that foresees, as it stands before the first request; ``None``: all cars wait.
        resolution: H3 resolution of its cells.
        share: Share of the drivers who follow hints.
        horizon_ms: For so long a car is counted on: requests of so long are held against it.
        hinted: How many hints were followed.
    """

    demand: MemoryChain | None = None
    resolution: int = 8
    share: float = 0.3
    horizon_ms: int = 600_000
    hinted: int = 0
    foreseen: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Draw who follows hints."""
        super().__post_init__()
        draws = np.random.default_rng([self.seed, 3]).random(self.size)
        self._follow = {
            name for name, drawn in zip(sorted(self.drivers), draws, strict=True) if drawn < self.share
        }
        self._gave_ms = self.start_ms
        self._held: list[Ask] = []

    def until(self, ms: int) -> list[Event]:
        """Return what happens up to a time, and let it happen."""
        happened = super().until(ms)
        if self.demand is not None:
            self._held += [
                Ask(event.request_id, REGION, event.event_time_ms, event.pickup_lat, event.pickup_lon)
                for event in happened
                if isinstance(event, RideRequest)
            ]
            if ms >= self._gave_ms + _EVERY_MS:
                self._gave_ms = ms
                self._hint(self.demand, ms)
        return happened

    def _hint(self, demand: MemoryChain, ms: int) -> None:
        asks, self._held = (
            [ask for ask in self._held if ask.at_ms < ms],
            [a for a in self._held if a.at_ms >= ms],
        )
        for one in run(demand, asks, ms):
            self.foreseen[one.cell] = one.expected
        share = self.horizon_ms / QUARTER_MS
        expected = {cell: requests * share for cell, requests in self.foreseen.items()}
        free, mine = {}, set()
        for name, driver in self.drivers.items():
            if driver.request_id:
                continue
            # Who is on the way already counts where they go.
            lat, lon = driver.leg.to_lat, driver.leg.to_lon
            free[name] = h3.latlng_to_cell(lat, lon, self.resolution)
            stands = (
                driver.leg.ends_ms <= ms and ms - max(driver.free_since_ms, driver.leg.ends_ms) >= _STOOD_MS
            )
            if stands and name in self._follow:
                mine.add(name)
        for hint in hints(expected, free, movable=mine):
            driver = self.drivers[hint.driver_id]
            (lat, lon), (to_lat, to_lon) = driver.leg.at(ms), h3.cell_to_latlng(hint.cell)
            drive = distance_m(lat, lon, to_lat, to_lon) * CIRCUITY / SPEED_M_PER_MS
            driver.leg = Leg(lat, lon, to_lat, to_lon, ms, ms + drive)
            self.hinted += 1


def carry_out(
    trips: Path,
    train_until_ms: int,
    start_ms: int,
    end_ms: int,
    *,
    cars: int,
    seeds: Sequence[int] = (1, 2, 3),
    share: float = 0.3,
    zone: str = "UTC",
    resolution: int = 8,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Replay requests with and without hints, for each seed.

    Args:
        trips: Parquet of recorded trips.
        train_until_ms: Quarters that ended by then are learned from, UTC ms.
        start_ms: First request that is replayed, UTC ms; not before ``train_until_ms``.
        end_ms: End of the requests, UTC ms.
        cars: Number of cars.
        seeds: Where the cars start, and who follows hints.
        share: Share of the drivers who do.
        zone: Time zone of the city.
        resolution: H3 resolution of the cells.
        say: Is told what is done.

    Returns:
        The report: ``wait_lower`` (mean of the seeds) and ``runs``.

    Raises:
        UserError: The times contradict each other, or there is too little to learn from.
    """
    if start_ms < train_until_ms or end_ms <= start_ms:
        raise UserError("--train-until, --from and --to are not in this order")
    requests = read_requests(trips, start_ms, end_ms)
    asks = [
        Ask(r.request_id, REGION, r.at_ms, r.lat, r.lon)
        for r in read_requests(trips, 0, _END_MS)
        if r.at_ms < start_ms
    ]
    runs = []
    with tempfile.TemporaryDirectory(prefix="millrace-demand-") as folder:
        demand, _, cut = learned(asks, train_until_ms, Path(folder), zone=zone, resolution=resolution)
        before = run(demand, asks[cut:], start_ms)
        known = {one.cell: one.expected for one in before if one.start_ms + QUARTER_MS > start_ms}
        began = demand.snapshot()
        for seed in seeds:
            row: dict[str, Any] = {"seed": seed}
            for name, chain in (("none", None), ("hints", demand)):
                if chain is not None:
                    chain.restore(began)
                fleet = Hinted(
                    requests, cars, seed, start_ms, end_ms,
                    demand=chain, resolution=resolution, share=share, foreseen=dict(known),
                )  # fmt: skip
                run_replay(fleet, DispatchConfig(window_ms=10_000))
                waits = [fleet.served[r.request_id].pickup_ms - r.at_ms for r in requests
                         if r.request_id in fleet.served]  # fmt: skip
                row[name] = {
                    "served": round(len(waits) / len(requests), 4),
                    "mean_s": round(float(np.mean(waits)) / 1_000, 1),
                    "p95_s": round(float(np.percentile(waits, 95)) / 1_000, 1),
                    "hints": fleet.hinted,
                }
            row["wait_lower"] = round(1 - row["hints"]["mean_s"] / row["none"]["mean_s"], 4)
            runs.append(row)
            say(f"seed {seed}: mean wait {row['none']['mean_s']} s, with hints {row['hints']['mean_s']} s")
    return {
        "requests": len(requests),
        "cars": cars,
        "wait_lower": round(float(np.mean([row["wait_lower"] for row in runs])), 4),
        "served_more": round(
            float(np.mean([row["hints"]["served"] - row["none"]["served"] for row in runs])), 4
        ),
        "runs": runs,
    }
