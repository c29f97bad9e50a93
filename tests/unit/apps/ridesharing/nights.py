"""Nights of a region by chance: all that drivers, riders, operators and neighbours can say, in any order.

Drivers fall silent, come back late, go off line in the midst of a trip and cross the border; riders book
ahead, ask twice and give up; pauses are as long as what is remembered, so that books end and begin.
"""

from __future__ import annotations

import random
from typing import Any, Final

import msgspec

from millrace_apps.ridesharing.config import DispatchConfig
from millrace_apps.ridesharing.contracts.events import Event, Handover
from millrace_apps.ridesharing.processes.matching import Rules
from millrace_apps.ridesharing.processes.regions import Regions
from millrace_apps.ridesharing.processes.riders import Asked
from tests.unit.apps.ridesharing.cases import (
    KM,
    LAT,
    LON,
    ZONE,
    answer,
    cancel,
    command,
    ms,
    position,
    progress,
    request,
    status,
)

#: Where the two regions meet: what is south of it is this one's.
BORDER: Final = LAT + 1.2 * KM
#: So long after it happened something may come, ms.
BOUND_MS: Final = 6_000
_WORDS: Final = ("idle", "idle", "idle", "approaching", "waiting", "on_trip")
_KINDS: Final = ("standard", "standard", "xl")


def night(seed: int) -> tuple[DispatchConfig, str, list[Event]]:
    """Return how rides are dispatched, the region, and what is said in it, in order of time."""
    draws = random.Random(seed)
    two = draws.random() < 0.4
    config = DispatchConfig(
        regions=Regions(lon_cuts=(), lat_cuts=((BORDER,),)) if two else Regions(),
        window_ms=draws.choice([2_000, 5_000, 10_000]),
        shadows=draws.choice([(), ("fifo",), ("fifo", "nearest")]),
        rules=Rules(radius_m=draws.choice([1_500, 3_000])),
        ttl_ms=draws.choice([7_300, 30_000, 60_000, 120_000]),
        attempts=draws.choice([2, 8]),
        patience_ms=draws.choice([40_000, 300_000]),
        approach_ms=draws.choice([20_000, 120_000]),
        trip_ms=draws.choice([90_000, 21_600_000]),
        overdue_ms=draws.choice([0, 60_000, 1_800_000]),
        reconcile_ms=draws.choice([0, 15_000, 90_000]),
        geofence_m=draws.choice([0.0, 400.0]),
        one_open_everywhere=draws.random() < 0.8,
        most_riders=draws.choice([2, 1_000]),
        places_ms=draws.choice([0, 30_000]),
        free_ms=draws.choice([0, 30_000]),
        remember_ms=draws.choice([20_000, 600_000]),
    )
    found: list[Event] = []
    start = 0.0
    for part in range(draws.choice([1, 1, 2])):
        long = draws.choice([60, 200, 400])
        found += _stretch(draws, start, long, f"{part}", config)
        start += long + draws.choice([30, 700, 5_000, 50_000])
    region = "r0-0" if two else "all"
    kept = [e for e in found if two or not isinstance(e, Handover)]
    if config.asks_everywhere:
        kept = [_asked(draws, e) if type(e).__name__ == "RideRequest" else e for e in kept]
    return config, region, sorted(kept, key=lambda e: e.event_time_ms)


def _stretch(draws: random.Random, start: float, long: int, part: str, config: DispatchConfig) -> list[Event]:
    found: list[Event] = []
    cars, riders = draws.randrange(1, 9), draws.randrange(1, 9)
    for n in range(cars):
        name, kind, word, km = f"d{n}", draws.choice(_KINDS), "idle", draws.uniform(-1.5, 1.5)
        if draws.random() < 0.3:
            found.append(status(name, start + draws.uniform(0, 20), "online", km, vehicle_class=kind))
        at = start + draws.uniform(0, 10)
        while at < start + long:
            word = draws.choice(_WORDS) if draws.random() < 0.15 else word
            km += draws.uniform(-0.15, 0.15)
            found.append(position(name, at, km, vehicle_class=kind, state=word))
            at += draws.choice([1, 4, 10, 10, 45]) if draws.random() < 0.95 else draws.uniform(60, 300)
        for _ in range(draws.choice([0, 0, 1, 3])):
            what = draws.choice(["offline", "online"])
            found.append(status(name, start + draws.uniform(0, long), what, km, vehicle_class=kind))
    for n in range(riders):
        found += _ride(draws, f"r{part}{n}", start + draws.uniform(0, long), cars)
    for _ in range(draws.choice([0, 2, 5])):
        at, driver, name = (
            start + draws.uniform(0, long),
            f"d{draws.randrange(cars)}",
            f"r{part}{draws.randrange(riders)}",
        )
        what = draws.choice(["assign", "cancel", "block", "unblock", "blackout", "lift", "end_trip"])
        until = ms(at + draws.choice([5, 60, 900]))
        about: dict[str, Any] = {"driver_id": driver, "request_id": name, "zone": ZONE, "until_ms": until}
        if what in ("block", "unblock"):
            about["request_id"] = ""
        found.append(command(what, at, **about))
    for n in range(draws.choice([0, 2, 6])):
        found.append(_handover(draws, f"h{part}{n}", start + draws.uniform(0, long), cars))
    return found


def _ride(draws: random.Random, name: str, at: float, cars: int) -> list[Event]:
    more: dict[str, Any] = {"vehicle_class": draws.choice(_KINDS)}
    asked = request(name, at, draws.uniform(-1, 1), ahead=draws.choice([0, 0, 0, 90, 700]), **more)
    found: list[Event] = [msgspec.structs.replace(asked, rider_id=f"rider-{draws.randrange(6)}")]
    if draws.random() < 0.1:
        found.append(msgspec.structs.replace(asked, event_time_ms=asked.event_time_ms + 5_000))
    who = f"d{draws.randrange(cars)}"
    for attempt in range(1, 5):
        for n in range(cars):
            if draws.random() < 0.5:
                what = draws.choice(["accept", "accept", "accept", "reject"])
                reason = draws.choice(["", "busy"]) if what == "reject" else ""
                when = at + draws.uniform(1, 15 * attempt + 10)
                found.append(answer(name, f"d{n}", when, what, attempt, reason=reason))
    if draws.random() < 0.3:
        found.append(cancel(name, at + draws.uniform(1, 90)))
    if draws.random() < 0.2:
        why = draws.choice(["no_show", "accident"])
        found.append(cancel(name, at + draws.uniform(20, 200), "driver", who, why))
    for stage, after in (("arrived", 40), ("started", 60), ("finished", 120)):
        for n in range(cars):
            if draws.random() < 0.8:
                km = draws.uniform(-1, 2)
                found.append(progress(name, f"d{n}", at + after + draws.uniform(0, 30), stage, km))
    return found


def _handover(draws: random.Random, name: str, at: float, cars: int) -> Handover:
    """A driver who comes from the other region, or a rider there whom no car is left for."""
    wish = draws.random() < 0.4
    return Handover(
        event_id=name,
        driver_id="" if wish else f"d{draws.randrange(cars + 2)}",
        from_region="r0-1",
        region="r0-0",
        vehicle_class="standard",
        lat=LAT + draws.uniform(0.8, 1.4) * KM,
        lon=LON,
        until_ms=draws.choice([0, ms(at + 60)]),
        event_time_ms=ms(at),
        free_since_ms=draws.choice([0, ms(at - 30)]),
        seen_ms=ms(at - draws.choice([0, 5, 200])),
        blocked_ms=draws.choice([0, 0, ms(at + 40)]),
        request_id=f"elsewhere-{name}" if wish else "",
        block_said_ms=draws.choice([0, ms(at - 10)]),
        off_line_ms=draws.choice([0, 0, ms(at - 3)]),
    )


def _asked(draws: random.Random, asked: Any) -> Asked:
    """A request as it comes by way of its rider, who may have another one open elsewhere."""
    other = draws.choice(["", "", "", "elsewhere"])
    return Asked(**msgspec.structs.asdict(asked), other=other, marks=draws.choice([0, 0, 1]))
