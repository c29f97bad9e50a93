"""The challenge's queries over a file of trips: what they tell, held to the oracle, and how fast."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import dropwhile, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from millrace.operations.report import write_parquet
from millrace_apps.ridesharing.debs import oracle
from millrace_apps.ridesharing.debs.areas import EMPTY_MS, TopAreas
from millrace_apps.ridesharing.debs.grid import Trip
from millrace_apps.ridesharing.debs.pipeline import QUERIES, TRIPS, app_of
from millrace_apps.ridesharing.debs.routes import TopRoutes
from millrace_apps.ridesharing.debs.trips import read_results, read_trips

if TYPE_CHECKING:
    from millrace.runtime.replay import Record

Host = Literal["memory", "spark"]
Told = TopRoutes | TopAreas
#: Trips of a batch.
_BATCH: Final = 10_000
#: After so many trips of a file its rankings are held to the oracle; of a larger one after each n-th trip.
_CHECKED: Final = 20_000
_DECIMALS: Final = 6


def carry_out(
    path: Path,
    query: int,
    *,
    expected: Path | None = None,
    results: Path | None = None,
    host: Host = "memory",
    repeat: int = 1,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Run a query over a file of trips.

    Args:
        path: The trips (see :func:`millrace_apps.ridesharing.debs.trips.read_trips`).
        query: 1 or 2.
        expected: Results that are to be the same, as the challenge writes them.
        results: Parquet for the results of the file's trips.
        host: Where the query runs: in this process, or on Spark.
        repeat: Times that the trips come, each time moved on until all windows are empty again.
        say: Is told what is done.

    Returns:
        The report: ``equal`` says whether all rankings are the oracle's (and those expected, and the same
        each time), ``trips_per_s`` how many trips were read in a second.

    Raises:
        UserError: A file cannot be read.
    """
    trips, unreadable = read_trips(path)
    wanted = None if expected is None else read_results(expected, query)
    say(f"{len(trips):,} trips, {repeat} times")
    told, figures = (_in_memory if host == "memory" else _on_spark)(trips, query, repeat)
    first, alike = _first_time(told, len(trips), _period(trips), repeat)
    say(f"{len(first):,} rankings; the oracle's for up to {_CHECKED:,} of the trips")
    held = _held(first, trips, query)
    found = {
        "query": query,
        "host": host,
        "trips": len(trips),
        "unreadable": unreadable,
        "repeat": repeat,
        "results": len(first),
        **held,
        "repeats_alike": alike,
        **figures,
    }
    equal = held["oracle_checked"] > 0 and held["oracle_wrong"] == 0 and alike
    if wanted is not None:
        compared = _beside(_rows(first), wanted)
        found |= compared
        equal = equal and compared["expected_wrong"] == 0
    if results is not None:
        _write(first, results)
    return {**found, "equal": equal}


def _period(trips: Sequence[Trip]) -> int:
    """Return by how much trips are moved on so that no window has any from before, ms."""
    return trips[-1].dropoff_ms - min(t.pickup_ms for t in trips) + EMPTY_MS + 1


def _repeated(trips: Sequence[Trip], repeat: int) -> Iterator[Trip]:
    period = _period(trips)
    for time_number in range(repeat):
        by = time_number * period
        for number, trip in enumerate(trips):
            yield (
                trip
                if not time_number
                else msgspec.structs.replace(
                    trip,
                    order=f"{time_number * len(trips) + number:012d}",
                    pickup_ms=trip.pickup_ms + by,
                    dropoff_ms=trip.dropoff_ms + by,
                )
            )


def _in_memory(trips: Sequence[Trip], query: int, repeat: int) -> tuple[list[Told], dict[str, Any]]:
    from millrace.host.memory import MemoryHost

    host = MemoryHost(QUERIES[query][0](), records=True)
    rows = [(trip.city, trip.dropoff_ms, trip) for trip in _repeated(trips, repeat)]
    emitted = []
    began, cpu = time.perf_counter(), time.process_time()
    for place in range(0, len(rows), _BATCH):
        emitted += host.run_batch(rows[place : place + _BATCH])
    emitted += host.drain()
    took, used = time.perf_counter() - began, time.process_time() - cpu
    told: list[Any] = [one.payload for one in emitted if one.output == "main"]
    return told, {
        "seconds": round(took, 3),
        "trips_per_s": round(len(rows) / took),
        "trips_per_cpu_s": round(len(rows) / max(used, 1e-9)),
    }


def _on_spark(trips: Sequence[Trip], query: int, repeat: int) -> tuple[list[Told], dict[str, Any]]:
    from millrace.runtime.replay import run_records
    from millrace.runtime.settings import load_settings

    app = app_of(query)
    overrides = ["stream.out_of_orderness=0s", "stream.max_future_skew=36500d"]
    settings = load_settings(app.settings, app=app.name, overrides=overrides, env={})
    with tempfile.TemporaryDirectory(prefix="millrace-debs-") as folder:
        ran = run_records(app, settings, Path(folder), _records(_repeated(trips, repeat)), drain=True)
        rows = ran.table("results").to_pylist()
    told = msgspec.convert(rows, list[QUERIES[query][1]])  # type: ignore[misc]
    told.sort(key=lambda one: one.order)
    return told, {
        "seconds": round(ran.seconds, 3),
        "trips_per_s": round(ran.events_per_s),
        "warm_trips_per_s": round(ran.warm_events_per_s),
        "batches": ran.batches,
    }


def _records(trips: Iterable[Trip]) -> Iterator[list[Record]]:
    from itertools import islice

    from millrace.runtime.replay import Record

    encode, left = msgspec.json.Encoder().encode, iter(trips)
    while some := list(islice(left, 5 * _BATCH)):
        yield [Record(TRIPS, encode(trip), trip.city.encode(), trip.dropoff_ms) for trip in some]


def _first_time(told: Sequence[Told], count: int, period: int, repeat: int) -> tuple[list[Told], bool]:
    """Return the rankings of the first time, and whether those of every other time are the same."""
    times: list[list[Told]] = [[] for _ in range(repeat)]
    for one in told:
        times[int(one.order) // count].append(one)

    def plain(number: int) -> list[tuple[int, int, int, object]]:
        by = number * period
        return [
            (int(one.order) - number * count, one.pickup_ms - by, one.dropoff_ms - by, _ranking(one))
            for one in times[number]
        ]

    first = plain(0)

    # What a file ends with may be what it begins with, and is not told again then; before there is any
    # ranking the first time tells nothing, and every other that there is none any more.
    def again(number: int) -> list[tuple[int, int, int, object]]:
        return list(dropwhile(lambda one: one[3] == [], plain(number)))

    return times[0], all(again(number) in (first, first[1:]) for number in range(1, repeat))


def _ranking(one: Told) -> list[object]:
    if isinstance(one, TopRoutes):
        return list(one.routes)
    return [(a.cell, a.empty, round(a.median, _DECIMALS), round(a.profit, _DECIMALS)) for a in one.areas]


def _held(told: Sequence[Told], trips: Sequence[Trip], query: int) -> dict[str, Any]:
    """Hold the ranking that is in force after trips to the oracle's, and what is told to what has changed."""
    every = -(-len(trips) // _CHECKED)
    said = {one.order: _ranking(one) for one in told}
    orders = sorted(said)
    place, now, checked, wrong, superfluous = 0, list[object](), 0, 0, 0
    for before, after in pairwise(orders):
        superfluous += said[before] == said[after]
    anew = oracle.routes(trips, every) if query == 1 else oracle.areas(trips, every)
    for order, ranking in anew:
        while place < len(orders) and orders[place] <= order:
            now = said[orders[place]]
            place += 1
        wanted = [
            one
            if isinstance(one, str)
            else (one[0], one[1], round(one[2], _DECIMALS), round(one[3], _DECIMALS))
            for one in ranking
        ]
        checked += 1
        wrong += now != wanted
    return {"oracle_checked": checked, "oracle_wrong": wrong, "told_twice": superfluous}


def _rows(told: Sequence[Told]) -> list[tuple[object, ...]]:
    return [(float(one.pickup_ms), float(one.dropoff_ms), *_ranking(one)) for one in told]


def _beside(rows: Sequence[tuple[object, ...]], wanted: Sequence[tuple[object, ...]]) -> dict[str, Any]:
    """Compare results with those expected, one by one in their order."""
    differ = [n for n, (a, b) in enumerate(zip(rows, wanted, strict=False)) if a != b]
    found: dict[str, Any] = {
        "expected_rows": len(wanted),
        "expected_wrong": len(differ) + abs(len(rows) - len(wanted)),
    }
    if differ:
        found["first_difference"] = {
            "row": differ[0],
            "found": list(rows[differ[0]]),
            "expected": list(wanted[differ[0]]),
        }
    return found


def _write(told: Sequence[Told], path: Path) -> None:
    """Write results as a table: the times as such, and the ranking as a list."""
    import pyarrow as pa

    table = pa.Table.from_pylist([msgspec.to_builtins(one) for one in told])
    for name in ("pickup", "dropoff"):
        at = table.column(f"{name}_ms").cast(pa.timestamp("ms", "UTC"))
        table = table.append_column(f"{name}_datetime", at)
    write_parquet(path, table)
