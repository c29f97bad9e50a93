"""Hour by hour: a policy beside another, over days, fleets and seeds, by the quick loop.

A policy changes where cars are, and with that what the next hour costs whatever is done then. So an hour
can be read in two ways. **own**: each policy has had the day to itself; the hour is what its own past makes
of it. **same**: both go on from the state in which the first one has left the city at the hour's begin; the
hour is what the policy does in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np

from millrace_apps.ridesharing.config import DispatchConfig
from millrace_apps.ridesharing.evaluation.fleet import Request
from millrace_apps.ridesharing.evaluation.quick import QuickLoop
from millrace_apps.ridesharing.evaluation.recorded import read_requests
from millrace_apps.ridesharing.topic_audit.fairness import gini

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
#: An hour misses the aim where riders whom both serve wait longer by more than this, seconds,
MORE_WAIT_S: Final = 2.0
#: or fewer are served by more than this share.
FEWER_SERVED: Final = 0.003
#: In each reading of an hour.
READINGS: Final = ("own", "same")


@dataclass(frozen=True)
class Hours:
    """What is compared.

    Attributes:
        start_ms: First request, UTC ms; each UTC day is a run by itself.
        end_ms: End of the requests, UTC ms.
        fleets: Numbers of cars.
        seeds: Where the cars start.
        config: How is dispatched.
        beside: How it is compared with.
        least: Hours with fewer requests are not judged.
        follow: Share of the drivers who follow hints.
    """

    start_ms: int
    end_ms: int
    fleets: Sequence[int]
    seeds: Sequence[int]
    config: DispatchConfig
    beside: DispatchConfig
    least: int = 200
    follow: float = 0.3

    def days(self) -> Iterator[tuple[int, int]]:
        """Yield begin and end of each run, UTC ms."""
        start = self.start_ms
        while start < self.end_ms:
            end = min(self.end_ms, (start // DAY_MS + 1) * DAY_MS)
            yield start, end
            start = end


def carry_out(trips: Path, hours: Hours, *, quiet: bool = True) -> dict[str, Any]:
    """Run all days, fleets and seeds, and return the report.

    Args:
        trips: Parquet of recorded trips.
        hours: What is compared.
        quiet: Show no progress.

    Returns:
        ``own`` and ``same`` → hours judged, hours that miss the aim, and by how much waits and shares served
        differ at worst; ``runs``: a row a day, fleet and seed; ``hours``: a row an hour of a run and reading.

    Raises:
        UserError: The file is missing, or has no request on one of the days.
    """
    runs, rows = [], []
    days = [(start, end, read_requests(trips, start, end)) for start, end in hours.days()]
    total = sum((end - start) // HOUR_MS for start, end, _ in days) * len(hours.fleets) * len(hours.seeds)
    with _progress(total, quiet=quiet) as advance:
        for start, end, requests in days:
            for fleet in hours.fleets:
                for seed in hours.seeds:
                    run, found = compare_day(requests, start, end, fleet, seed, hours, advance)
                    runs.append(run)
                    rows += [{"day": run["day"], "fleet": fleet, "seed": seed, **row} for row in found]
    return {
        **{reading: summary(rows, reading, hours.least) for reading in READINGS},
        "runs": runs,
        "hours": rows,
    }


def compare_day(
    requests: list[Request],
    start_ms: int,
    end_ms: int,
    fleet: int,
    seed: int,
    hours: Hours,
    advance: Callable[[], None] = lambda: None,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Run a day by both policies, and each hour by the other from the state that the first one has left.

    Args:
        requests: The day's requests, in order.
        start_ms: Its begin, UTC ms.
        end_ms: Its end, UTC ms.
        fleet: Number of cars.
        seed: Where they start.
        hours: What is compared.
        advance: Called after each hour.

    Returns:
        A row of the run, and one for each hour and reading.
    """
    asked = np.array([r.at_ms for r in requests])
    first, other = (
        QuickLoop(requests, fleet, seed, start_ms, end_ms, config, hours.follow)
        for config in (hours.config, hours.beside)
    )
    alone: dict[int, dict[int, int]] = {}
    for begin in range(start_ms, end_ms, HOUR_MS):
        end = min(begin + HOUR_MS, end_ms)
        first.run(begin)
        branch = first.copy(hours.beside)
        branch.run(end + hours.config.patience_ms)
        alone[begin] = branch.pickups
        other.run(end)
        advance()
    first.run()
    other.run()
    rows = []
    for begin in range(start_ms, end_ms, HOUR_MS):
        of = np.flatnonzero((asked >= begin) & (asked < begin + HOUR_MS)).tolist()
        hour = datetime.fromtimestamp(begin / 1_000, UTC).strftime("%Y-%m-%dT%H")
        for reading, pickups in zip(READINGS, (other.pickups, alone[begin]), strict=True):
            found = pair(asked, of, first.pickups, pickups)
            rows.append({"hour": hour, "reading": reading, **found, "missed": misses(found)})
    return {
        "day": datetime.fromtimestamp(start_ms / 1_000, UTC).strftime("%Y-%m-%d"),
        "fleet": fleet,
        "seed": seed,
        "policy": figures(first, asked),
        "beside": figures(other, asked),
    }, rows


def pair(asked: Any, of: Sequence[int], first: dict[int, int], other: dict[int, int]) -> dict[str, Any]:
    """Return an hour's requests side by side.

    Args:
        asked: Of each request when it was made, UTC ms.
        of: The requests of the hour.
        first: Request → when its rider got in, by the first policy, UTC ms.
        other: The same by the other one.

    >>> pair([0, 0, 0], [0, 1, 2], {0: 4_000, 1: 9_000}, {0: 6_000, 2: 1_000})["both"]
    1
    """
    both = [n for n in of if n in first and n in other]
    waits = [np.array([(one[n] - asked[n]) / 1_000 for n in both]) for one in (first, other)]
    return {
        "requests": len(of),
        "served_share": sum(n in first for n in of) / max(1, len(of)),
        "other_served_share": sum(n in other for n in of) / max(1, len(of)),
        "both": len(both),
        "paired_wait_s": float(waits[0].mean()) if both else 0.0,
        "other_paired_wait_s": float(waits[1].mean()) if both else 0.0,
    }


def misses(row: dict[str, Any]) -> bool:
    """Return whether an hour misses the aim: longer waits of whom both serve, or fewer served, than beside.

    >>> row = {"paired_wait_s": 70.0, "other_paired_wait_s": 68.1}
    >>> [misses(row | {"served_share": share, "other_served_share": 0.98}) for share in (0.978, 0.976)]
    [False, True]
    """
    waits_more = row["paired_wait_s"] - row["other_paired_wait_s"]
    return bool(
        waits_more > MORE_WAIT_S or row["other_served_share"] - row["served_share"] > FEWER_SERVED + 1e-12
    )


def summary(rows: Sequence[dict[str, Any]], reading: str, least: int) -> dict[str, Any]:
    """Return what is to be said of a reading: hours with enough requests, and those that miss the aim.

    Args:
        rows: Of :func:`compare_day`.
        reading: Which.
        least: So many requests are enough.
    """
    judged = [row for row in rows if row["reading"] == reading and row["requests"] >= least]
    waits = [row["paired_wait_s"] - row["other_paired_wait_s"] for row in judged]
    served = [row["served_share"] - row["other_served_share"] for row in judged]
    return {
        "hours": len(judged),
        "missed": sum(row["missed"] for row in judged),
        "missed_by_far": sum(w > 10.0 or s < -0.01 for w, s in zip(waits, served, strict=True)),
        "wait_more_s": float(np.mean(waits)) if judged else 0.0,
        "served_more": float(np.mean(served)) if judged else 0.0,
        "worst_wait_more_s": max(waits, default=0.0),
        "worst_served_more": min(served, default=0.0),
    }


def figures(loop: QuickLoop, asked: Any) -> dict[str, float]:
    """Return the figures of a day: share served, waits (s), pick-ups (km by air), Gini of idle time."""
    waits = np.array([(at - asked[n]) / 1_000 for n, at in loop.pickups.items()])
    return {
        "served_share": len(waits) / max(1, len(loop.requests)),
        "mean_wait_s": float(waits.mean()) if len(waits) else 0.0,
        "p95_wait_s": float(np.percentile(waits, 95)) if len(waits) else 0.0,
        "mean_pickup_air_km": loop.pickup_m / max(1, len(waits)) / 1_000,
        "idle_gini": gini(loop.idle_seconds()),
    }


@contextmanager
def _progress(total: int, *, quiet: bool) -> Iterator[Callable[[], None]]:
    if quiet:
        yield lambda: None
        return
    from rich.progress import Progress

    with Progress(transient=True) as bar:
        task = bar.add_task("hours", total=total)
        yield lambda: bar.advance(task)
