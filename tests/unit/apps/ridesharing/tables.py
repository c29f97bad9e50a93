"""A folder as the ridesharing app leaves it, small and seeded: trips, attempts, windows, cars, violations."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import h3

from millrace_apps.ridesharing.contracts.records import (
    Attempt,
    DriverChange,
    Ignored,
    Journey,
    LinePlace,
    Operation,
    PickUp,
    Place,
    Supply,
    Trip,
    VenuePoint,
    VenueShape,
    Violation,
    WindowReport,
)
from millrace_apps.ridesharing.state.lifecycle import TERMINAL, TRANSITIONS
from millrace_apps.ridesharing.surge.records import Fare, Multiplier, Quote
from tests.unit.millrace.dashboard.cases import put_checkpoint, put_records

START_MS = 1_767_369_600_000
SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000
REGIONS = ("north", "south")
#: What follows where a ride goes well.
USUAL = {
    "": "processing", "booked": "processing", "processing": "offered", "offered": "accepted",
    "accepted": "arrived", "arrived": "in_progress", "in_progress": "completed",
}  # fmt: skip
#: A reason as an attacker would wish it to be.
EVIL = "<img src=x onerror=window.harmed=1>"


class RidesRecords(NamedTuple):
    """What was written."""

    trips: list[Trip]
    attempts: list[Attempt]
    windows: list[WindowReport]
    supply: list[Supply]
    drivers: list[DriverChange]
    places: list[Place]
    journeys: list[Journey]
    surge: list[Multiplier]
    quotes: list[Quote]
    fares: list[Fare]

    @property
    def until_ms(self) -> int:
        """Time of the last step."""
        return max(t.at_ms for t in self.trips)


def trips(random: Random) -> list[Trip]:
    """Walks through the table of states, each stopped somewhere."""
    found = []
    for n in range(300):
        region = "north" if random.random() < 0.7 else "south"
        at, state, attempt, wait = START_MS + n * 12 * SECOND, "", 0, 0
        asked = at
        for revision in range(random.randrange(2, 14)):
            if state in TERMINAL and state:
                break
            goes_well = random.random() < 0.85
            before, state = state, USUAL[state] if goes_well else random.choice(sorted(TRANSITIONS[state]))
            attempt += state == "offered"
            wait = at - asked if state == "in_progress" else wait
            found.append(Trip(
                f"r{n:03}", revision, f"rider-{n}", region, "872830828ffffff", "standard", before, state,
                "a cause", f"d{n % 40}" if attempt else "", attempt, asked, asked, at, wait,
            ))  # fmt: skip
            at += random.randrange(5, 200) * SECOND
    return found


def attempts(random: Random, of: list[Trip]) -> list[Attempt]:
    states = ("accepted", "completed", "rejected", "expired", "offered")
    return [
        Attempt(t.request_id, t.attempt, 0, t.driver_id, t.region, random.choice(states), "optimal",  # type: ignore[arg-type]
                t.at_ms, 0, 0, random.uniform(50, 2_500), 3_000.0, 500, 120_000, "standard", "standard",
                60_000)
        for t in of if t.state == "offered"
    ]  # fmt: skip


def windows(random: Random) -> list[WindowReport]:
    """The policy in force is fifo at first and optimal then; both are computed beside each other."""
    found = []
    for n in range(200):
        for region in REGIONS:
            policy = "fifo" if n < 50 else "optimal"
            best, riders = random.randrange(100_000, 200_000), random.randrange(1, 9)
            first = best + random.randrange(1, 90_000)
            done, shadow = (first, best) if policy == "fifo" else (best, first)
            given, other = riders - 1, random.randrange(riders + 1)
            waits = random.randrange(99_000), random.randrange(99_000)
            beside = "optimal" if policy == "fifo" else "fifo"
            found.append(WindowReport(
                region, START_MS + n * 10 * SECOND, policy, riders, int(n == 9), 40, 20, 3, 17, riders * 9,
                given, done, 700.0 * given, -1 if policy == "fifo" else shadow, -1,
                shadow if policy == "fifo" else -1, random.randrange(90_000), given * waits[0],
                **{f"shadow_{beside}_matched": other, f"shadow_{beside}_wait_ms": other * waits[1]},
            ))  # fmt: skip
    return found


def places(random: Random, until_ms: int) -> list[Place]:
    """A place of each driver every half minute of the last 40 minutes, those of two only at first."""
    found = []
    for n in range(40):
        lat, lon = 37.77 + random.uniform(-0.03, 0.03), -122.42 + random.uniform(-0.03, 0.03)
        state = ("free", "free", "accepted", "in_progress", "away")[n % 5]
        for step in range(80 if n > 1 else 5):
            lat, lon = lat + random.uniform(-0.002, 0.002), lon + random.uniform(-0.002, 0.002)
            at = until_ms - (79 - step) * 30 * SECOND - n * 100
            request_id = "" if state in ("free", "away") else f"r{n:03}"
            found.append(Place(f"d{n}", "north", at, round(lat, 5), round(lon, 5), state, request_id))  # type: ignore[arg-type]
    return found


def journeys(random: Random, of: list[Trip]) -> list[Journey]:
    """Where the riders of the trips want to go: a mile or two."""
    found = []
    for t in of:
        if t.revision == 0:
            a, b, c, d = (random.uniform(-0.025, 0.025) for _ in range(4))
            ends = 37.77 + a, -122.42 + b, 37.77 + c, -122.42 + d
            found.append(Journey(t.request_id, t.region, t.zone, "standard", t.at_ms, t.at_ms, *ends))
    return found


def surge(random: Random, of: list[Journey], until_ms: int) -> list[Multiplier]:
    """Cells of pick-ups become dearer by .2 a half minute, and some of them usual again."""
    found = []
    for n, name in enumerate(sorted({h3.latlng_to_cell(j.pickup_lat, j.pickup_lon, 8) for j in of})[::3]):
        at, level = until_ms - random.randrange(5, 60) * MINUTE, 1.0
        steps = random.randrange(1, 6)
        for up in [0.2] * steps + [-0.2] * (steps if n % 3 == 0 else 0):
            before, level = level, round(level + up, 2)
            found.append(Multiplier("all", name, at, level, before, 2.0, 9.0, 0.5, 3.0, "scarce"))
            at += 30 * SECOND
    return found


def quotes_and_fares(of: list[Trip]) -> tuple[list[Quote], list[Fare]]:
    """Three of four riders ask first; one of five leaves, one of seven comes too late."""
    quotes, fares = [], []
    for n, t in enumerate(t for t in of if t.revision == 0):
        name, at, cell = f"q{n}", t.at_ms - MINUTE, "88283082adfffff"
        multiplier = 1.0 + n % 4 / 5
        if n % 4:
            quotes.append(Quote(name, t.rider_id, "all", cell, at, multiplier, at + 5 * MINUTE, "why"))
        if n % 5:
            outcome = "none" if n % 4 == 0 else "expired" if n % 7 == 0 else "locked"
            about = t.request_id, t.rider_id, name if n % 4 else "", "all", cell, t.at_ms, multiplier
            fares.append(Fare(*about, outcome, "why"))  # type: ignore[arg-type]
    return quotes, fares


def in_line(until_ms: int) -> list[LinePlace]:
    """Three wait at the airport now, and did half a minute ago; who waited at the station has left."""
    found = [LinePlace("station", "d9", "north", 1, 1, until_ms - HOUR, until_ms - 10 * MINUTE)]
    for at in (until_ms - 30 * SECOND, until_ms):
        for place in (1, 2, 3):
            joined = until_ms - (40 - 10 * place) * MINUTE
            found.append(LinePlace("airport", f"d{place}", "north", place, 3, joined, at))
    return found


def venue_shapes(until_ms: int) -> list[VenueShape]:
    """An airport whose second door opens 20 min before the end, and a station that is closed then."""
    zone = [*map(str, h3.grid_disk(h3.latlng_to_cell(37.77, -122.42, 9), 1))]
    pen = [*map(str, h3.grid_disk(h3.latlng_to_cell(37.765, -122.42, 10), 1))]
    pen += map(str, h3.grid_disk(h3.latlng_to_cell(37.762, -122.42, 11), 1))
    late = until_ms - 20 * MINUTE
    found = []
    for from_ms, is_open in ((START_MS - HOUR, False), (late, True)):
        doors = [VenuePoint("door 1", 37.77, -122.42, True), VenuePoint("door <2>", 37.771, -122.42, is_open)]
        found.append(VenueShape("airport", "north", from_ms, zone, pen, doors, from_ms))
    station = [*map(str, h3.grid_disk(h3.latlng_to_cell(37.78, -122.43, 10), 1))]
    return [
        *found,
        VenueShape("station", "north", START_MS - HOUR, station, station, [], START_MS),
        VenueShape("station", "north", late, [], [], [], late),
    ]


def sent_to_points(of: list[Trip]) -> list[PickUp]:
    """Every third of some riders is sent to door 1, the others to door 2."""
    first = [t for t in of if t.revision == 0][:30]
    at = ("airport", "door 1", 52.5, 13.4, 60.0), ("airport", "door 2", 52.5, 13.5, 30.0)
    asked: tuple[tuple[Any, ...], ...] = (("door 1", ""), ("", ""), ("the moon", "unknown"))
    return [
        PickUp(t.request_id, t.rider_id, t.region, *at[n % 3 > 0], t.at_ms, *asked[n % 3])
        for n, t in enumerate(first)
    ]


def rides_folder(root: Path, *, violations: int = 2) -> RidesRecords:
    """Write everything that the page can show; return it."""
    random = Random(3)
    walked = sorted(trips(random), key=lambda t: (t.at_ms, t.revision))
    supply = [
        Supply(region, zone, START_MS + n * MINUTE, cars, random.randrange(cars))
        for n in range(20) for region in REGIONS for zone in ("a", "b", "c")
        if (cars := random.randrange(1, 9)) and not (n == 19 and region == "south")
    ]  # fmt: skip
    drivers = [
        DriverChange(f"d{n % 40}", random.choice(REGIONS), change, START_MS + n * SECOND, 5_000)  # type: ignore[arg-type]
        for n, change in enumerate(["entered"] * 60 + ["left"] * 20 + ["stale"] * 5)
    ]
    until_ms, more = max(t.at_ms for t in walked), Random(4)
    found = RidesRecords(
        walked, attempts(random, walked), windows(random), supply, drivers,
        places(more, until_ms), journeys(more, walked), [], [], [],
    )  # fmt: skip
    quotes, fares = quotes_and_fares(walked)
    found = found._replace(surge=surge(more, found.journeys, until_ms), quotes=quotes, fares=fares)
    for at in range(0, len(walked), 300):
        put_records(root, "trips", walked[at : at + 300])
    wrong = [
        Violation(1 + n, ("d:d7", "r:r003")[n % 2], f"two open: {EVIL}", START_MS + n)
        for n in range(violations)
    ]
    by_hand = [
        Operation(f"c{n}", "north", "block", "ann", EVIL, "", f"d{n}", "", 0, outcome, "", START_MS + n)  # type: ignore[arg-type]
        for n, outcome in enumerate(("done", "refused"))
    ]
    late = [Ignored("answers", f"e{n}", "r1", "d1", "the offer is over", True, START_MS) for n in range(4)]
    for table, records in (
        ("windows", found.windows), ("supply", supply), ("drivers", drivers),
        ("places", found.places), ("journeys", found.journeys), ("surge", found.surge),
        ("quotes", found.quotes), ("fares", found.fares),
        ("violations", wrong), ("operations", by_hand), ("ignored", late),
        ("lines", in_line(until_ms)), ("pickups", sent_to_points(walked)),
    ):  # fmt: skip
        if records:
            put_records(root, table, records)
    put_records(root, "assignments", found.attempts, key=["request_id", "attempt"])
    put_checkpoint(root, {"ridesharing.requests": {"0": 300}}, batch=3, watermark=found.until_ms)
    return found
