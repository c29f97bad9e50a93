"""`millrace bench region`: positions of a city of one region, its book in parts and in one entry, by turns.

The store is the one that a key group has on Spark, opened for each batch, over bytes in memory.
"""

from __future__ import annotations

import random
import time
from dataclasses import asdict, dataclass
from hashlib import blake2b
from statistics import median
from typing import Any, Final

from millrace.host.runner import Emission
from millrace_apps.benchmarks.paged import PagedHost
from millrace_apps.benchmarks.whole_region import WholeRegion
from millrace_apps.ridesharing.config import DispatchConfig
from millrace_apps.ridesharing.contracts.events import Position, RideRequest
from millrace_apps.ridesharing.processes.dispatcher import Dispatcher

_START_MS: Final = 1_767_369_600_000
_LAT, _LON = 37.77, -122.42
#: The city reaches so far from its middle, degrees: 40 km.
_REACH: Final = 0.18
#: As the app has it, ms.
_BOUND_MS: Final = 500


@dataclass(frozen=True)
class Sizes:
    """How much is measured.

    Attributes:
        drivers: Drivers of the region.
        positions: Positions of a batch.
        few: Positions of a small batch.
        rate: Positions a second of event time.
        riders: Requests of a batch.
        batches: Batches of each size, of which the median counts.
    """

    drivers: int = 50_000
    positions: int = 10_000
    few: int = 250
    rate: int = 5_000
    riders: int = 0
    batches: int = 15


QUICK: Final = Sizes(2_000, 400, 50, 200, 3, 4)


def configuration(sizes: Sizes) -> dict[str, Any]:
    """Return what is measured, for the report."""
    return asdict(sizes)


def region(sizes: Sizes) -> dict[str, Any]:
    """Measure batches of positions of some of the drivers, chance has it whose.

    Returns:
        Of the book in one entry (``whole``) and in parts, of large batches and of small ones (``…_few``): ms
        of processor time of a batch, bytes read and written, those of events that wait for the watermark,
        bytes of all; and whether both said the same.
    """
    hosts = {
        "whole": PagedHost(WholeRegion(_config()), out_of_orderness_ms=_BOUND_MS),
        "parts": PagedHost(Dispatcher(_config()), out_of_orderness_ms=_BOUND_MS),
    }
    for host in hosts.values():
        _count_reads(host)
    said = {name: blake2b() for name in hosts}
    took: dict[str, dict[str, list[float]]] = {}
    draws, now, number = random.Random(1), float(_START_MS), 0
    everybody = list(range(sizes.drivers))
    draws.shuffle(everybody)
    plan = [(everybody[at : at + 5_000], "") for at in range(0, sizes.drivers, 5_000)]
    for size, name in ((sizes.positions, ""), (sizes.few, "_few")):
        plan += [([draws.randrange(sizes.drivers) for _ in range(size)], "warm") for _ in range(2)]
        plan += [([draws.randrange(sizes.drivers) for _ in range(size)], name) for _ in range(sizes.batches)]
    first = len(range(0, sizes.drivers, 5_000))
    for place, (drivers, name) in enumerate(plan):
        events: list[Any] = []
        for driver in drivers:
            now += 1_000 / sizes.rate
            events.append(_position(draws, driver, int(now)))
        if place >= first:
            for _ in range(sizes.riders):
                number += 1
                events.append(_request(draws, number, int(now)))
        for which, host in hosts.items():  # by turns, so that both have the same minutes of the machine
            ms, read, written, emissions = _batch(host, events)
            for e in emissions:
                said[which].update(f"{e.output} {e.event_time} ".encode() + e.payload)
            if place >= first and name != "warm":
                waits = sum(len(row.raw) for _, row in _waiting(host))
                found = took.setdefault(which + name, {"ms": [], "read": [], "written": [], "waiting": []})
                for key, value in (("ms", ms), ("read", read), ("written", written), ("waiting", waits)):
                    found[key].append(value)
    correct = len({digest.hexdigest() for digest in said.values()}) == 1
    stored = {name: host.size for name, host in hosts.items()}
    return {
        name: {
            "cpu_ms": round(median(of["ms"]), 2),
            "bytes_read": int(median(of["read"])),
            "bytes_written": int(median(of["written"])),
            "bytes_waiting": int(median(of["waiting"])),
            "stored_bytes": stored[name.removesuffix("_few")],
            "correct": correct,
        }
        for name, of in took.items()
    }


def _config() -> DispatchConfig:
    return DispatchConfig(places_ms=0, free_ms=0)


def _batch(host: PagedHost, events: list[Any]) -> tuple[float, int, int, list[Emission]]:
    rows = host.rows_of([("all", event.event_time_ms, event) for event in events])
    counted = host.counted  # type: ignore[attr-defined]
    counted.update(read=0, written=0)
    before = time.process_time()
    emissions = host.run_rows(rows, to=host.newest - _BOUND_MS - 1)
    ms = (time.process_time() - before) * 1e3
    return ms, counted["read"], counted["written"], emissions


def _count_reads(host: PagedHost) -> None:
    """Have a host count the bytes of the pages and headers that are read and written."""
    counted = host.counted = {"read": 0, "written": 0}  # type: ignore[attr-defined]
    for stored in host.groups:

        def get_pages(pages: Any, of: Any = stored.get_pages) -> list[bytes]:
            found: list[bytes] = of(pages)
            counted["read"] += sum(map(len, found))
            return found

        def get_page(page: int, of: Any = stored.get_page) -> bytes:
            found: bytes = of(page)
            counted["read"] += len(found)
            return found

        def put_page(page: int, data: bytes, of: Any = stored.put_page) -> None:
            counted["written"] += len(data)
            of(page, data)

        def get_header(of: Any = stored.get_header) -> bytes | None:
            found: bytes | None = of()
            counted["read"] += len(found or b"")
            return found

        def put_header(header: bytes | None, of: Any = stored.put_header) -> None:
            counted["written"] += len(header or b"")
            of(header)

        stored.get_pages, stored.get_page, stored.put_page = get_pages, get_page, put_page  # type: ignore[method-assign]
        stored.get_header, stored.put_header = get_header, put_header  # type: ignore[method-assign]


def _waiting(host: PagedHost) -> list[tuple[str, Any]]:
    entry = host.read("3:all")
    return [] if entry is None else [("all", row) for row in entry.pending_]


def _position(draws: random.Random, driver: int, at: int) -> Position:
    lat, lon = _LAT + draws.uniform(-_REACH, _REACH), _LON + draws.uniform(-_REACH, _REACH)
    name = f"d{driver}"
    about = {"event_id": f"{name}-{at}", "driver_id": name, "vehicle_class": "standard", "state": "idle"}
    return Position(event_time_ms=at, lat=lat, lon=lon, region="all", **about)  # type: ignore[arg-type]


def _request(draws: random.Random, number: int, at: int) -> RideRequest:
    lat, lon = _LAT + draws.uniform(-_REACH, _REACH), _LON + draws.uniform(-_REACH, _REACH)
    return RideRequest(
        event_time_ms=at,
        request_id=f"r{number}",
        rider_id=f"rider-{number}",
        vehicle_class="standard",
        zone="872830828ffffff",
        pickup_lat=lat,
        pickup_lon=lon,
        dropoff_lat=lat,
        dropoff_lon=lon + 0.01,
        pickup_at_ms=at,
        region="all",
    )
