"""Recorded positions through the app's pipeline on Spark, compared with a computation in pandas."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h3
import msgspec
import numpy as np
import pandas as pd

from millrace_apps.ridesharing.config import DispatchConfig
from millrace_apps.ridesharing.evaluation.recorded import read_positions
from millrace_apps.ridesharing.processes.regions import ZONE_RESOLUTION

if TYPE_CHECKING:
    from millrace.runtime.replay import Record

_MINUTE_MS = 60_000
#: Positions of one batch.
_BATCH = 50_000


def carry_out(gps: Path, ttl_ms: int, *, quiet: bool) -> dict[str, Any]:
    """Run positions through Spark and compare what comes out.

    Args:
        gps: The file.
        ttl_ms: A car silent for so long is stale, ms.
        quiet: Show no progress.

    Returns:
        The report: whether zone counts and exclusions are those of pandas, and how fast it was.
    """
    from millrace.runtime.replay import run_records
    from millrace.runtime.settings import load_settings
    from millrace_apps.ridesharing.app import app
    from millrace_apps.ridesharing.settings import RidesharingSettings
    from millrace_apps.ridesharing.topology import topology

    positions = read_positions(gps)
    wanted_counts, wanted_stale = zone_counts(positions, ttl_ms), stale_drivers(positions, ttl_ms)
    overrides = [
        "stream.out_of_orderness=0s",
        "stream.max_future_skew=36500d",
    ]
    settings = load_settings(RidesharingSettings, app="ridesharing", overrides=overrides, env={})
    # Every position goes to the region: the gate would hold back what moves a car by less than it cares for.
    config = DispatchConfig(ttl_ms=ttl_ms, refresh_ms=0, move_m=0.0, most_m_per_s=0.0)
    told = replace(app, topology=lambda given: topology(given, config))
    with tempfile.TemporaryDirectory(prefix="millrace-rides-") as folder, _status(quiet):
        batches = _batches(positions, settings.topics.locations)
        ran = run_records(told, settings, Path(folder), batches, drain=True)
        supply = ran.table("supply", ["zone", "minute_ms", "cars", "free"]).to_pandas()
        changes = ran.table("drivers", ["driver_id", "change", "at_ms"]).to_pandas()
    stale = changes[changes["change"] == "stale"].groupby("driver_id").size()
    wrong = differing_counts(supply, wanted_counts)
    gaps = gaps_of(positions)
    return {
        "fixes": len(positions),
        "drivers": int(positions["cab_id"].nunique()),
        "ttl_s": ttl_ms / 1_000,
        "zone_minutes": len(wanted_counts),
        "zone_minutes_wrong": wrong,
        "exclusions": int(stale.sum()),
        "exclusions_wrong": int(stale.sub(wanted_stale, fill_value=0).abs().sum()),
        "excluded_share_of_gaps": float((gaps >= ttl_ms).mean()) if len(gaps) else 0.0,
        "equal": not wrong and bool(stale.sub(wanted_stale, fill_value=0).eq(0).all()),
        "events_per_s": ran.events_per_s,
        "warm_events_per_s": ran.warm_events_per_s,
        "batches": ran.batches,
        "wall_s": ran.seconds,
    }


def differing_counts(found: pd.DataFrame, wanted: pd.DataFrame) -> int:
    """Return how many minutes of zones differ, are there in one table alone, or twice.

    Args:
        found: minute_ms, zone, cars, free.
        wanted: The same.
    """
    key = ["minute_ms", "zone"]
    mine, theirs = (
        frame[[*key, "cars", "free"]].assign(time=frame.groupby(key).cumcount()) for frame in (found, wanted)
    )
    both = theirs.merge(mine, on=[*key, "time"], how="outer", suffixes=("", "_found"), indicator=True)
    equal = (both["cars"] == both["cars_found"]) & (both["free"] == both["free_found"])
    return int(((both["_merge"] != "both") | ~equal).sum())


def gaps_of(positions: pd.DataFrame) -> pd.Series[Any]:
    """Return the time from each position to the next of the same car, ms."""
    ordered = positions.sort_values(["cab_id", "at_ms"])
    gaps: pd.Series[Any] = ordered.groupby("cab_id")["at_ms"].diff().dropna()
    return gaps


def stale_drivers(positions: pd.DataFrame, ttl_ms: int) -> pd.Series[Any]:
    """Return how often each car became stale: at each gap of the time to live or more, and at its end."""
    ordered = positions.sort_values(["cab_id", "at_ms"])
    gap = ordered.groupby("cab_id")["at_ms"].diff(-1).abs().fillna(np.inf)
    # A position at the very moment of expiry is still in time.
    counts: pd.Series[Any] = (gap > ttl_ms).groupby(ordered["cab_id"]).sum()
    return counts[counts > 0]


def zone_counts(positions: pd.DataFrame, ttl_ms: int) -> pd.DataFrame:
    """Return cars and free cars by minute and zone; a position holds until the next, or for the time to live.

    Args:
        positions: cab_id, at_ms, lat, lon, occupied.
        ttl_ms: How long a position holds at most, ms.
    """
    ordered = positions.sort_values(["cab_id", "at_ms"]).reset_index(drop=True)
    following = ordered.groupby("cab_id")["at_ms"].shift(-1).fillna(np.inf).to_numpy()
    starts = ordered["at_ms"].to_numpy()
    until = np.minimum(following, starts + ttl_ms)
    first = -(-starts // _MINUTE_MS)  # the first end of a minute at or after the position
    count = np.maximum(0, np.ceil(until / _MINUTE_MS) - first).astype(np.int64)
    rows = np.repeat(np.arange(len(ordered)), count)
    step = np.arange(len(rows)) - np.repeat(np.cumsum(count) - count, count)
    zone = [
        h3.latlng_to_cell(a, b, ZONE_RESOLUTION) for a, b in zip(ordered["lat"], ordered["lon"], strict=True)
    ]
    frame = pd.DataFrame(
        {
            "minute_ms": (first[rows] + step) * _MINUTE_MS,
            "zone": np.array(zone, dtype=object)[rows],
            "free": ~ordered["occupied"].to_numpy()[rows],
        }
    )
    grouped = frame.groupby(["minute_ms", "zone"])["free"]
    return grouped.agg(cars="size", free="sum").reset_index()


def _batches(positions: pd.DataFrame, topic: str) -> Iterator[list[Record]]:
    from millrace.runtime.replay import Record

    batch: list[Record] = []
    columns = (positions[n].tolist() for n in ("cab_id", "at_ms", "lat", "lon", "occupied"))
    for cab, at, lat, lon, occupied in zip(*columns, strict=True):
        value = msgspec.json.encode(
            {
                "event_id": f"{cab}-{at}",
                "driver_id": cab,
                "lat": lat,
                "lon": lon,
                "state": "on_trip" if occupied else "idle",
                "vehicle_class": "standard",
                "event_time_ms": at,
            }
        )
        batch.append(Record(topic, value, cab.encode(), at))
        if len(batch) == _BATCH:
            yield batch
            batch = []
    yield batch


def _status(quiet: bool) -> Any:
    from rich.console import Console

    return Console(stderr=True, quiet=quiet).status("running the pipeline")
