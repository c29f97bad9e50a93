"""Trips and results of the challenge from files."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from millrace.errors import UserError
from millrace_apps.ridesharing.debs.grid import Trip

#: Columns of the challenge's files, in their order.
COLUMNS: Final = (
    "medallion", "hack_license", "pickup_datetime", "dropoff_datetime", "trip_time_in_secs", "trip_distance",
    "pickup_longitude", "pickup_latitude", "dropoff_longitude", "dropoff_latitude", "payment_type",
    "fare_amount", "surcharge", "mta_tax", "tip_amount", "tolls_amount", "total_amount",
)  # fmt: skip
_NEEDED: Final = (
    "medallion", "pickup_datetime", "dropoff_datetime", "pickup_longitude", "pickup_latitude",
    "dropoff_longitude", "dropoff_latitude", "fare_amount", "tip_amount",
)  # fmt: skip


def read_trips(path: Path) -> tuple[list[Trip], int]:
    """Return the trips of a file in order of their end, of one end as they stand; and how many were left out.

    Args:
        path: Parquet or CSV (also gzipped) with the challenge's columns; CSV with or without their names.

    Raises:
        UserError: The file is missing, cannot be read, has other columns, or no trip.
    """
    frame = _read(path)
    if missing := [name for name in _NEEDED if name not in frame.columns]:
        raise UserError(f"{path} has no column {', '.join(missing)}")
    told = len(frame)
    numbers = frame[list(_NEEDED[3:])].apply(pd.to_numeric, errors="coerce").astype(float)
    times = [_milliseconds(frame[name]) for name in ("pickup_datetime", "dropoff_datetime")]
    whole = np.isfinite(numbers.to_numpy(float)).all(axis=1) & frame["medallion"].notna().to_numpy()
    for time in times:
        whole &= time.notna().to_numpy()
    frame = pd.DataFrame(
        {
            "taxi": frame["medallion"].astype(str),
            "pickup_ms": times[0],
            "dropoff_ms": times[1],
            "from_lat": numbers["pickup_latitude"],
            "from_lon": numbers["pickup_longitude"],
            "to_lat": numbers["dropoff_latitude"],
            "to_lon": numbers["dropoff_longitude"],
            "cents": (numbers["fare_amount"] * 100).round() + (numbers["tip_amount"] * 100).round(),
        }
    )[whole]
    if frame.empty:
        raise UserError(f"{path} has no trip")
    frame = frame.astype({"pickup_ms": "int64", "dropoff_ms": "int64", "cents": "int64"})
    frame = frame.sort_values("dropoff_ms", kind="stable")
    columns = [frame[name].tolist() for name in frame.columns]
    return [Trip(f"{n:012d}", *row) for n, row in enumerate(zip(*columns, strict=True))], told - len(frame)


def read_results(path: Path, query: int) -> list[tuple[object, ...]]:
    """Return results as the challenge writes them, without their delay: the times and the ranking.

    Args:
        path: Parquet, or CSV with or without names of columns: pick-up and drop-off time, then for query 1
            the ten routes' cells (start and end), for query 2 the ten areas' cell, empty taxis, median and
            profit, empty or ``NULL`` where there are fewer; what comes behind is not looked at.
        query: 1 or 2.

    Raises:
        UserError: The file is missing, cannot be read, or has too few columns.
    """
    width = 2 + (20 if query == 1 else 40)
    frame = _read(path, names=False)
    if len(frame.columns) < width:
        raise UserError(
            f"{path} has {len(frame.columns)} columns, results of query {query} have {width} or more"
        )
    times = [_milliseconds(frame.iloc[:, place]) for place in (0, 1)]
    rest = frame.iloc[:, 2:width]
    rows = zip(times[0].tolist(), times[1].tolist(), rest.itertuples(index=False), strict=True)
    return [(pickup, dropoff, *_ranking(list(row), query)) for pickup, dropoff, row in rows]


def _ranking(row: list[object], query: int) -> list[object]:
    step = 2 if query == 1 else 4
    found: list[object] = []
    for place in range(0, len(row), step):
        part = row[place : place + step]
        if pd.isna(part[0]) or str(part[0]).strip().upper() in ("", "NULL"):  # type: ignore[call-overload]
            break
        if query == 1:
            found.append(f"{_cell(part[0])}-{_cell(part[1])}")
        else:
            found.append(
                (_cell(part[0]), int(float(str(part[1]))), *(round(float(str(p)), 6) for p in part[2:]))
            )
    return found


def _cell(told: object) -> str:
    """Return a cell as ``x.y``."""
    return str(told).strip()


def _read(path: Path, *, names: bool = True) -> pd.DataFrame:
    if not path.is_file():
        raise UserError(f"there is no file {path}")
    try:
        if path.suffix == ".parquet":
            return pd.read_parquet(path)
        with_names = "medallion" in pd.read_csv(path, nrows=0).columns or (
            not names and "pickup_datetime" in pd.read_csv(path, nrows=0).columns
        )
        told = pd.read_csv(
            path, header=0 if with_names else None, dtype=None if names else str, float_precision="round_trip"
        )
    except (OSError, ValueError, pd.errors.ParserError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    if names and not with_names:
        if len(told.columns) < len(COLUMNS):
            raise UserError(f"{path} has {len(told.columns)} columns, trips have {len(COLUMNS)}")
        told.columns = pd.Index([*COLUMNS, *map(str, range(len(COLUMNS), len(told.columns)))])
    return told


def _milliseconds(column: pd.Series[Any]) -> pd.Series[float]:
    """Return times as ms since the epoch (UTC), NaN where there is none."""
    times = pd.to_datetime(column, utc=True, errors="coerce", format="ISO8601")
    found: pd.Series[float] = (times - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(milliseconds=1)
    return found.astype(float).round()
