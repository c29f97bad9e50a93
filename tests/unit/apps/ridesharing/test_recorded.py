"""Recorded rides and positions: whatever stands in a file is read, or told in a line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from millrace.errors import UserError
from millrace_apps.ridesharing.evaluation.recorded import read_positions, read_requests

TRIPS = {
    "trip_id": ["a", "b"],
    "pickup_time": ["2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"],
    "pickup_lat": [50.0, 50.1],
    "pickup_lon": [8.0, 8.1],
    "dropoff_lat": [50.0, 50.1],
    "dropoff_lon": [8.0, 8.1],
    "duration_s": [60.0, 61.0],
    "plausible": [True, True],
}
POSITIONS = {
    "cab_id": [1, 2],
    "event_time": ["2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"],
    "lat": [50.0, 50.1],
    "lon": [8.0, 8.1],
    "occupied": [0, 1],
}
IN_E5 = {
    "cab_id": [1, 2],
    "ts": [0, 60],
    "lat_e5": [5_000_000, 5_010_000],
    "lon_e5": [8, 9],
    "occupied": [0, 1],
}
_END_MS = 1 << 50


def written(folder: Path, columns: dict[str, list[Any]], suffix: str) -> Path:
    path = folder / f"file{suffix}"
    frame = pd.DataFrame(columns)
    frame.to_parquet(path) if suffix == ".parquet" else frame.to_csv(path, index=False)
    return path


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_what_is_right_is_read_of_both_kinds_of_files(tmp_path: Path, suffix: str) -> None:
    requests = read_requests(written(tmp_path, TRIPS, suffix), 0, _END_MS)
    assert [(r.request_id, r.lat, r.duration_ms) for r in requests] == [
        ("a", 50.0, 60_000),
        ("b", 50.1, 61_000),
    ]
    assert requests[1].at_ms - requests[0].at_ms == 60_000
    told = read_positions(written(tmp_path, POSITIONS, suffix))
    assert told.to_dict("list") == {
        "cab_id": ["1", "2"],
        "at_ms": [1_767_225_600_000, 1_767_225_660_000],
        "lat": [50.0, 50.1],
        "lon": [8.0, 8.1],
        "occupied": [False, True],
    }
    scaled = read_positions(written(tmp_path, IN_E5, suffix))
    assert (scaled["lat"].tolist(), scaled["at_ms"].tolist()) == ([50.0, 50.1], [0, 60_000])


@pytest.mark.parametrize(
    ("columns", "column"),
    [(of, name) for of in (TRIPS, POSITIONS, IN_E5) for name in of if name not in ("trip_id", "cab_id")],
    ids=str,
)
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_value_that_is_none_of_its_column_is_told_with_the_file(
    tmp_path: Path, columns: dict[str, list[Any]], column: str, suffix: str
) -> None:
    path = written(tmp_path, columns | {column: [str(columns[column][0]), "x"]}, suffix)
    with pytest.raises(UserError, match=str(path)) as told:
        read_requests(path, 0, _END_MS) if columns is TRIPS else read_positions(path)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("value", [None, float("inf")])
@pytest.mark.parametrize("column", ["pickup_lat", "dropoff_lon", "duration_s"])
def test_a_trip_without_a_number_is_told(tmp_path: Path, column: str, value: float | None) -> None:
    path = written(tmp_path, TRIPS | {column: [TRIPS[column][0], value]}, ".csv")
    with pytest.raises(UserError, match="no number"):
        read_requests(path, 0, _END_MS)


def test_a_file_that_is_neither_csv_nor_parquet_is_told_in_a_line(tmp_path: Path) -> None:
    for name in ("none.parquet", "none.csv"):
        (tmp_path / name).write_bytes(bytes(range(256)) * 9)
        with pytest.raises(UserError) as told:
            read_positions(tmp_path / name)
        assert "\n" not in str(told.value)
