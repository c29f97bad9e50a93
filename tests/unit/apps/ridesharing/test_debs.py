"""The queries of the DEBS 2015 Grand Challenge, held to rankings made anew for every moment."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from millrace.errors import UserError
from millrace.host.memory_chain import MemoryChain
from millrace.runtime.settings import load_settings
from millrace_apps.ridesharing.debs import oracle
from millrace_apps.ridesharing.debs.grid import CELLS, Grid, Trip, name_of
from millrace_apps.ridesharing.debs.pipeline import QUERIES, app_of
from millrace_apps.ridesharing.debs.report import carry_out
from millrace_apps.ridesharing.debs.trips import COLUMNS, read_results, read_trips
from millrace_apps.ridesharing.evaluation.cli import app as evaluate
from tests.cases import case_count

CASES = case_count(40)
_MINUTE = 60_000
_NORTH, _WEST = 40.75, -73.99


def some_trips(rng: Random) -> list[Trip]:
    """Trips of few taxis among few cells: ends at one moment, on bounds of windows, outside the grid."""
    found, at = [], 1_356_998_400_000
    places = [(_NORTH + 0.003 * n, _WEST + 0.004 * n) for n in range(rng.choice((2, 4, 20)))]
    places.append((0.0, 0.0))
    steps = [0, 0, 1_000, 20_000, _MINUTE]
    if rng.random() < 0.5:
        steps += [15 * _MINUTE, 15 * _MINUTE - 1, 30 * _MINUTE]
    for number in range(rng.choice((rng.randrange(1, 160), 400))):
        at += rng.choice(steps)
        (from_lat, from_lon), (to_lat, to_lon) = rng.choice(places), rng.choice(places)
        found.append(
            Trip(
                f"{number:012d}", f"t{rng.randrange(6)}", at - rng.randrange(20) * _MINUTE, at,
                from_lat, from_lon, to_lat, to_lon, rng.choice((0, 100, 250, 251, 1_000, -500)),
            )
        )  # fmt: skip
    return found


def plain(told: dict[str, Any], query: int) -> list[object]:
    if query == 1:
        return list(told["routes"])
    return [(a["cell"], a["empty"], a["median"], a["profit"]) for a in told["areas"]]


def ran(trips: list[Trip], query: int, rng: Random) -> list[dict[str, Any]]:
    """Run a query in batches, with restarts, trips in disorder within the bound, and some twice."""
    app = app_of(query)
    bound = rng.choice((0, 5 * _MINUTE))
    chain = MemoryChain(
        app.topology(load_settings(app.settings, app=app.name, env={})), out_of_orderness_ms=bound
    )
    left = sorted(trips, key=lambda t: (t.dropoff_ms - rng.randrange(bound + 1), t.order))
    rows, place, found = [(t.city, t.dropoff_ms, t) for t in left], 0, []
    while place < len(rows):
        size = rng.choice((1, 2, 30, 200))
        found += chain.run_batch(rows[place : place + size])
        place += size
        if rng.random() < 0.2:
            chain.restart()
    found += chain.drain()
    assert not [e for e in found if e.output not in ("main",)], "nothing is late or dead"
    return [msgspec.json.decode(e.payload) for e in found]


@pytest.mark.parametrize("query", [1, 2])
@pytest.mark.parametrize("seed", range(CASES))
def test_rankings_are_those_made_anew_wherever_batches_are_cut(seed: int, query: int) -> None:
    rng = Random(seed)
    trips = some_trips(rng)
    told = {one["order"]: one for one in ran(trips, query, rng)}
    now: list[object] = []
    seen: set[str] = set()
    before: list[object] = []
    anew = oracle.routes(trips) if query == 1 else oracle.areas(trips)
    for order, wanted in anew:
        if order in told:
            now = plain(told[order], query)
            seen.add(order)
        assert now == wanted, order
        assert (order in told) == (wanted != before), "told when it changes, and then only"
        before = list(wanted)
    assert seen == set(told)
    of = {trip.order: trip for trip in trips}
    assert all(one["dropoff_ms"] == of[order].dropoff_ms for order, one in told.items())


def test_the_grid_is_that_of_the_challenge() -> None:
    for metres, most in CELLS.items():
        grid = Grid(metres)
        south, east = 0.004491556 * metres / 500, 0.005986 * metres / 500
        top = 41.474937 + 0.004491556 / 2, -74.913585 - 0.005986 / 2
        for x in (1, 2, 150, most):
            for y in (1, 7, most):
                cell = grid.cell(top[0] - (y - 0.5) * south, top[1] + (x - 0.5) * east)
                assert cell is not None
                assert name_of(cell) == f"{x}.{y}"
        for x, y in ((0, 5), (5, 0), (most + 1, 5), (5, most + 1)):
            assert grid.cell(top[0] - (y - 0.5) * south, top[1] + (x - 0.5) * east) is None
        assert grid.cell(0.0, 0.0) is None


def test_medians_and_ties_by_hand() -> None:
    """Two fares of 1.00 and 2.50 make 1.75; two taxis wait at home, one of which leaves again."""
    home, away = (_NORTH, _WEST), (_NORTH + 0.1, _WEST + 0.1)
    grid = Grid(250)
    name = name_of(grid.cell(*home) or 0)
    far = name_of(grid.cell(*away) or 0)

    def trip(n: int, taxi: str, minute: int, start: Any, end: Any, cents: int) -> Trip:
        return Trip(f"{n:012d}", taxi, minute * _MINUTE, minute * _MINUTE, *start, *end, cents)

    trips = [
        trip(0, "a", 0, home, home, 100),
        trip(1, "b", 1, home, home, 250),
        trip(2, "b", 2, home, away, 250),
        trip(3, "c", 20, away, away, 300),
    ]
    rows = list(oracle.areas(trips))
    assert [ranking for _, ranking in rows] == [
        [(name, 1, 1.0, 1.0)],
        [(name, 2, 1.75, 0.875)],
        [(name, 1, 2.5, 2.5)],
        [(far, 2, 3.0, 1.5)],
    ]


def file_of(trips: list[Trip], path: Path, *, names: bool = True) -> Path:
    rows = [
        {
            **dict.fromkeys(COLUMNS, "x"), "medallion": t.taxi,
            "pickup_datetime": _time(t.pickup_ms), "dropoff_datetime": _time(t.dropoff_ms),
            "pickup_longitude": t.from_lon, "pickup_latitude": t.from_lat,
            "dropoff_longitude": t.to_lon, "dropoff_latitude": t.to_lat,
            "fare_amount": (t.cents - 50) / 100, "tip_amount": 0.5,
        }
        for t in trips
    ]  # fmt: skip
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if names:
            writer.writeheader()
        writer.writerows(rows)
    return path


def _time(ms: int) -> str:
    return str(pa.scalar(ms, pa.timestamp("ms")).as_py())


@pytest.mark.parametrize("names", [True, False])
def test_trips_of_a_file_with_or_without_names_are_the_same(names: bool, tmp_path: Path) -> None:
    trips = some_trips(Random(3))
    found, unreadable = read_trips(file_of(trips, tmp_path / "t.csv", names=names))
    assert (found, unreadable) == (trips, 0)


def test_what_is_no_trip_is_counted_and_what_is_no_file_of_trips_is_refused(tmp_path: Path) -> None:
    path = file_of(some_trips(Random(3))[:5], tmp_path / "t.csv")
    lines = path.read_text().splitlines()
    lines[2] = lines[2].replace("2013", "never", 1)
    path.write_text("\n".join(lines) + "\n")
    found, unreadable = read_trips(path)
    assert (len(found), unreadable) == (4, 1)
    (tmp_path / "few.csv").write_text("1,2,3\n")
    (tmp_path / "none.csv").write_text(",".join(COLUMNS) + "\n")
    pq.write_table(pa.table({"a": [1]}), tmp_path / "other.parquet")
    (tmp_path / "broken.parquet").write_bytes(b"no Parquet")
    for name, why in (
        ("few.csv", "3 columns"), ("none.csv", "no trip"), ("other.parquet", "has no column medallion"),
        ("broken.parquet", "cannot be read"), ("absent.parquet", "no file"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=why):
            read_trips(tmp_path / name)


def expected_file(path: Path, told: list[dict[str, Any]], query: int) -> Path:
    lines = []
    for one in told:
        row: list[object] = [_time(one["pickup_ms"]), _time(one["dropoff_ms"])]
        ranking = plain(one, query)
        for place in range(10):
            if place >= len(ranking):
                row += ["NULL"] * (2 if query == 1 else 4)
            elif query == 1:
                row += str(ranking[place]).split("-")
            else:
                row += ranking[place]  # type: ignore[arg-type]
        lines.append(",".join(map(str, [*row, 0.003])))
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("query", [1, 2])
def test_results_are_held_to_those_expected_and_a_wrong_one_is_seen(query: int, tmp_path: Path) -> None:
    rng = Random(11)
    trips = some_trips(rng)
    path = file_of(trips, tmp_path / "t.csv")
    told = ran(trips, query, Random(1))
    expected = expected_file(tmp_path / "e.csv", told, query)
    out, results = tmp_path / "r.json", tmp_path / "r.parquet"
    args = ["debs", "--trips", str(path), "--query", str(query), "--out", str(out)]
    done = CliRunner().invoke(
        evaluate, [*args, "--expected", str(expected), "--results", str(results), "--repeat", "3"]
    )
    assert done.exit_code == 0, done.output
    report = json.loads(out.read_text())
    assert report["equal"]
    assert (report["expected_rows"], report["expected_wrong"]) == (len(told), 0)
    assert (report["oracle_wrong"], report["told_twice"], report["repeats_alike"]) == (0, 0, True)
    assert [plain(r, query) for r in pq.read_table(results).to_pylist()] == [plain(r, query) for r in told]
    lines = expected.read_text().splitlines()
    expected.write_text("\n".join([*lines[:-1], lines[-1].replace(".", ".9", 1)]) + "\n")
    done = CliRunner().invoke(evaluate, [*args, "--expected", str(expected), "--quiet"])
    assert done.exit_code != 0
    report = json.loads(out.read_text())
    assert (report["expected_wrong"], report["first_difference"]["row"]) == (1, len(told) - 1)


def test_results_with_too_few_columns_are_refused(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("2013-01-01 00:00:00,2013-01-01 00:00:00,1.1,1.2\n")
    with pytest.raises(UserError, match="22 or more"):
        read_results(tmp_path / "e.csv", 1)


def test_a_query_that_does_not_look_at_the_windows_end_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from millrace_apps.ridesharing.debs import routes

    monkeypatch.setattr(routes, "WINDOW_MS", routes.WINDOW_MS - 1)
    at = 1_356_998_400_000
    one = Trip("0" * 12, "a", at, at, _NORTH, _WEST, _NORTH, _WEST, 100)
    later = [
        msgspec.structs.replace(one, order=f"{n:012d}", dropoff_ms=at + after, to_lat=_NORTH + n / 10)
        for n, after in ((1, 1), (2, 30 * _MINUTE - 1))
    ]
    report = carry_out(file_of([one, *later], tmp_path / "t.csv"), 1)
    assert report["oracle_wrong"] == 1
    assert not report["equal"]


def test_queries_are_named_in_the_report_of_both_hosts() -> None:
    assert set(QUERIES) == {1, 2}
    assert [app_of(query).name for query in QUERIES] == ["debs-1", "debs-2"]
