"""Recorded rides and positions from files: what evaluations replay."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from millrace.errors import UserError
from millrace_apps.ridesharing.evaluation.fleet import Request
from millrace_apps.ridesharing.processes.regions import Regions

_TRIP_COLUMNS = (
    "trip_id",
    "pickup_time",
    "pickup_lat",
    "pickup_lon",
    "dropoff_lat",
    "dropoff_lon",
    "duration_s",
)


def read_requests(path: Path, start_ms: int, end_ms: int) -> list[Request]:
    """Return the requests of a time, ordered by pick-up time and trip; only plausible ones.

    Args:
        path: A Parquet file with trip_id, pickup_time, pickup_lat, pickup_lon, dropoff_lat,
            dropoff_lon, duration_s and, if there is one, the flag plausible.
        start_ms: First time, UTC ms.
        end_ms: End, exclusive, UTC ms.

    Raises:
        UserError: The file is missing, has other columns, or has no request in that time.
    """
    frame = read_table(path)
    missing = [name for name in _TRIP_COLUMNS if name not in frame.columns]
    if missing:
        raise UserError(f"{path} has no column {', '.join(missing)}")
    with _values_of(path):
        if "plausible" in frame.columns:
            if frame["plausible"].dtype != bool:
                raise ValueError("plausible is not true or false in every row")
            frame = frame[frame["plausible"]]
        frame = frame.assign(at_ms=_milliseconds(frame["pickup_time"]))
        frame = frame.astype(dict.fromkeys(_TRIP_COLUMNS[2:], "float64"))
        if not np.isfinite(frame[list(_TRIP_COLUMNS[2:])].to_numpy()).all():
            raise ValueError("a place or a duration is no number")
    frame = frame[(frame["at_ms"] >= start_ms) & (frame["at_ms"] < end_ms)]
    if frame.empty:
        raise UserError(f"{path} has no plausible request between {_text(start_ms)} and {_text(end_ms)}")
    frame = frame.sort_values(["at_ms", "trip_id"], kind="stable")
    columns = (frame[n].tolist() for n in ("trip_id", "at_ms", *_TRIP_COLUMNS[2:]))
    return [
        Request(str(name), int(at), lat, lon, to_lat, to_lon, int(seconds * 1_000))
        for name, at, lat, lon, to_lat, to_lon, seconds in zip(*columns, strict=True)
    ]


def read_positions(path: Path) -> pd.DataFrame:
    """Return positions ordered by time and cab: cab_id, at_ms, lat, lon, occupied.

    Args:
        path: CSV (also gzipped) or Parquet with cab_id, event_time, lat, lon, occupied; or with cab_id,
            ts (seconds), lat_e5, lon_e5, occupied.

    Raises:
        UserError: The file is missing or has other columns.
    """
    frame = read_table(path)
    if {"cab_id", "event_time", "lat", "lon", "occupied"} <= set(frame.columns):
        time, scale, places = "event_time", 1.0, ("lat", "lon")
    elif {"cab_id", "ts", "lat_e5", "lon_e5", "occupied"} <= set(frame.columns):
        time, scale, places = "ts", 1e5, ("lat_e5", "lon_e5")
    else:
        raise UserError(
            f"{path}: the columns are cab_id, event_time, lat, lon, occupied, or cab_id, ts, lat_e5, …"
        )
    with _values_of(path):
        frame = frame.assign(
            at_ms=_milliseconds(frame[time]),
            **{
                name: frame[of].astype("float64") / scale
                for name, of in zip(("lat", "lon"), places, strict=True)
            },
            occupied=frame["occupied"].astype(int).astype(bool),
            cab_id=frame["cab_id"].astype(str),
        )
    frame = frame.drop_duplicates(["cab_id", "at_ms"])
    ordered: pd.DataFrame = frame.sort_values(["at_ms", "cab_id"], kind="stable").reset_index(drop=True)
    return ordered[["cab_id", "at_ms", "lat", "lon", "occupied"]]


def cut(requests: list[Request], regions: int) -> Regions:
    """Return regions of about as many pick-ups each: strips of longitude, each cut along a latitude.

    Args:
        requests: Where rides begin.
        regions: 1, 2, or an even number.

    Raises:
        UserError: It is an odd number above 1.
    """
    if regions == 1:
        return Regions()
    if regions < 1 or regions % 2:
        raise UserError(f"--regions is 1 or an even number, not {regions}")
    frame = pd.DataFrame({"lat": [r.lat for r in requests], "lon": [r.lon for r in requests]})
    strips = regions // 2
    lon_cuts = tuple(float(frame["lon"].quantile(n / strips)) for n in range(1, strips))
    column = pd.cut(frame["lon"], [-float("inf"), *lon_cuts, float("inf")], labels=False, right=False)
    medians = frame.groupby(column)["lat"].median()
    lat_cuts = tuple((float(medians.get(n, 0.0)),) for n in range(strips))
    return Regions(lon_cuts=lon_cuts, lat_cuts=lat_cuts)


def read_table(path: Path) -> pd.DataFrame:
    """Return a file of CSV (also gzipped) or Parquet.

    Raises:
        UserError: It is missing, or cannot be read.
    """
    if not path.is_file():
        raise UserError(f"there is no file {path}")
    try:
        return pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
    except (ValueError, OSError) as error:
        raise UserError(f"{path} cannot be read: {' '.join(str(error).split())}") from error


@contextlib.contextmanager
def _values_of(path: Path) -> Iterator[None]:
    """Say which file it is of which a value is none of its column's.

    Raises:
        UserError: One is.
    """
    try:
        yield
    except (TypeError, ValueError, OverflowError) as error:
        raise UserError(f"{path} has a value that is none: {' '.join(str(error).split())}") from None


def _milliseconds(times: Any) -> Any:
    if pd.api.types.is_numeric_dtype(times):
        return (times * 1_000).astype("int64")
    found = pd.to_datetime(times, utc=True)
    return found.dt.as_unit("ms").astype("int64")


def _text(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1_000, UTC).strftime("%Y-%m-%dT%H:%MZ")
