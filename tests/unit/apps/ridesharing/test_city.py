"""The city at a moment, held against plain loops over everything that was written."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import h3
import pytest

from millrace.dashboard.tables import open_table
from millrace.places import distance_m
from millrace_apps.ridesharing.contracts.records import Journey, Place, Trip
from millrace_apps.ridesharing.dashboard.places import City, Moment, read_city
from millrace_apps.ridesharing.state.lifecycle import TERMINAL, TRANSITIONS
from tests.cases import case_count
from tests.unit.apps.ridesharing.tables import USUAL, rides_folder
from tests.unit.millrace.dashboard.cases import Clock, put_records

#: Random worlds that are held against plain loops; more by hand.
CASES = case_count(12, "MILLRACE_CITY_CASES")
START, SECOND, MINUTE, HOUR = 1_767_369_600_000, 1_000, 60_000, 3_600_000
EVERY_MS = 30_000
#: So far back a request is looked for, so far a car before the newest, and so far a journey.
OPEN, CARS, JOURNEYS = 6 * HOUR, 190 * MINUTE, 9 * HOUR


class World(NamedTuple):
    """What was written."""

    places: list[Place]
    journeys: list[Journey]
    trips: list[Trip]

    @property
    def until(self) -> int:
        """The newest time in it."""
        return max(row.at_ms for rows in self for row in rows)  # type: ignore[attr-defined]


def world(seed: int) -> World:
    """A town of some hours: cars that come and fall silent, walks through the states, lost journeys."""
    draws = random.Random(seed)
    hours = draws.choice([0.3, 2, 5, 11])
    spread = draws.choice([0.005, 0.03, 0.1])

    def there() -> tuple[float, float]:
        return 37.75 + draws.uniform(-spread, spread), -122.4 + draws.uniform(-spread, spread)

    places, journeys, trips = [], [], []
    for n in range(draws.randrange(0, 12)):
        at = START + draws.randrange(0, 10 * MINUTE)
        while at < START + hours * HOUR:
            state: Any = draws.choice(["free", "free", "away", "offered", "accepted", "in_progress"])
            places.append(
                Place(f"d{n}", "all", at, *there(), state, "" if state in ("free", "away") else "r1")
            )
            at += draws.choice([25 * SECOND, 31 * SECOND, 31 * SECOND, 4 * MINUTE, 20 * MINUTE])
    for n in range(draws.randrange(1, 60)):
        name, at = f"r{n}", START + int(draws.random() * hours * HOUR)
        wanted = at if draws.random() < 0.8 else at + draws.randrange(-5, 40) * MINUTE
        pickup, dropoff = there(), there()
        zone = h3.latlng_to_cell(*pickup, 7)
        if draws.random() < 0.9:
            journeys.append(Journey(name, "all", zone, "standard", at, wanted, *pickup, *dropoff))
        asked, state, attempt, longest = at, "", 0, draws.choice([60, 900, 3_000])
        for revision in range(draws.randrange(1, 9)):
            if state in TERMINAL:
                break
            usual = draws.random() < 0.85
            before, state = state, USUAL[state] if usual else draws.choice(sorted(TRANSITIONS[state]))
            attempt += state == "offered"
            wait = at - asked if state == "in_progress" else 0
            driver = f"d{draws.randrange(12)}" if state not in ("processing", "booked") else ""
            trips.append(Trip(name, revision, "r", "all", zone, "standard", before, state, "c", driver,  # type: ignore[arg-type]
                              attempt, asked, wanted, at, wait))  # fmt: skip
            at += draws.randrange(0, longest) * SECOND
    return World(places, journeys, trips)


def written(root: Path, found: World, seed: int) -> City | None:
    """Write it in any order, cut into any files, and read it back as the page does."""
    draws = random.Random(seed)
    readers = []
    for name, rows in zip(World._fields, found, strict=True):
        left: list[Any] = list(rows)
        draws.shuffle(left)
        while left:
            cut = draws.randrange(1, 400)
            put_records(root, name, left[:cut])
            left = left[cut:]
        readers.append(open_table(root / "tables" / name, Clock()))
    return read_city(*readers, places_ms=EVERY_MS, ttl_ms=MINUTE)


def test_a_cell_has_the_newest_multiplier_by_then_and_the_usual_price_is_not_shown(tmp_path: Path) -> None:
    records = rides_folder(tmp_path)
    readers = [open_table(tmp_path / "tables" / name, Clock()) for name in (*World._fields, "surge")]
    found = read_city(*readers, places_ms=EVERY_MS, ttl_ms=MINUTE)
    assert found is not None
    plain = read_city(*readers[:3], places_ms=EVERY_MS, ttl_ms=MINUTE)
    assert plain is not None
    seen = set()
    for at in range(records.until_ms - 40 * MINUTE, records.until_ms + 1, 4 * MINUTE):
        moment = found.moment(at)
        wanted = {}
        for row in sorted(records.surge, key=lambda row: row.from_ms):
            if row.from_ms <= moment.at_ms:
                wanted[row.cell] = row.multiplier
        wanted = {name: m for name, m in wanted.items() if m > 1.0}
        assert {n: c.multiplier for n, c in moment.cells.items() if c.multiplier is not None} == wanted
        others = {n: c._replace(multiplier=None) for n, c in moment.cells.items()}
        assert {n: c for n, c in others.items() if any(c[:3]) or c.wait_ms} == {
            n: c for n, c in plain.moment(at).cells.items() if any(c[:3]) or c.wait_ms
        }
        seen |= wanted.keys()
    assert seen


def by_hand(found: World, at: int) -> Moment:
    """The same by loops, a question at a time."""
    cars = cars_by_hand(found, at)
    last: dict[str, Trip] = {}
    for trip in found.trips:
        known = last.get(trip.request_id)
        if at - OPEN < trip.at_ms <= at and (known is None or known.revision < trip.revision):
            last[trip.request_id] = trip
    kept = max((j.at_ms for j in found.journeys), default=0) - JOURNEYS
    ends = {j.request_id: j for j in found.journeys if kept < j.at_ms <= at}
    waiting = [
        t for t in last.values()
        if t.state in ("processing", "offered", "accepted") and max(t.requested_ms, t.pickup_at_ms) <= at
    ]  # fmt: skip
    riders = sorted(
        ((t.request_id, t.state, at - max(t.requested_ms, t.pickup_at_ms), t.driver_id, t.attempt, t.zone,
          *((j.pickup_lat, j.pickup_lon) if (j := ends.get(t.request_id)) else (None, None)))
         for t in waiting),
        key=lambda r: (-r[2], r[0]),
    )  # fmt: skip
    cells, zones = areas_by_hand(found, at, cars, waiting, ends)
    stuck = stuck_by_hand(found, at, list(last.values()), ends)
    return Moment(at, cars, cells, zones, riders, stuck)  # type: ignore[arg-type]


def cars_by_hand(found: World, at: int) -> list[Any]:
    cars = []
    for driver in sorted({p.driver_id for p in found.places}):
        heard = [p for p in found.places if p.driver_id == driver and at - 90 * SECOND < p.at_ms <= at]
        if heard:
            p = max(heard, key=lambda p: p.at_ms)
            cars.append((p.driver_id, p.at_ms, p.lat, p.lon, p.state, p.request_id))
    return cars


def areas_by_hand(
    found: World, at: int, cars: Sequence[Any], waiting: list[Trip], ends: dict[str, Journey]
) -> tuple[dict[str, Any], dict[str, Any]]:
    picked = [t for t in found.trips if t.state == "in_progress" and at - 15 * MINUTE < t.at_ms <= at]
    asked = [j for j in ends.values() if at - 15 * MINUTE < max(j.at_ms, j.pickup_at_ms) <= at]
    cell_of = {n: h3.latlng_to_cell(j.pickup_lat, j.pickup_lon, 8) for n, j in ends.items()}
    cells, zones = {}, {}
    free = [c for c in cars if c[4] == "free"]
    for cell in {*cell_of.values(), *(h3.latlng_to_cell(c[2], c[3], 8) for c in free)}:
        waits = [t.wait_ms for t in picked if cell_of.get(t.request_id) == cell]
        row = (
            sum(cell_of[j.request_id] == cell for j in asked),
            sum(cell_of.get(t.request_id) == cell for t in waiting),
            sum(h3.latlng_to_cell(c[2], c[3], 8) == cell for c in free),
            mean(waits) if waits else None,
        )
        if row != (0, 0, 0, None):
            cells[cell] = (*row, None)
    for zone in {*(t.zone for t in found.trips), *(h3.latlng_to_cell(c[2], c[3], 7) for c in free)}:
        waits = [t.wait_ms for t in picked if t.zone == zone]
        row = (
            sum(j.zone == zone for j in asked),
            sum(t.zone == zone for t in waiting if t.state != "accepted"),
            sum(h3.latlng_to_cell(c[2], c[3], 7) == zone for c in free),
            mean(waits) if waits else None,
        )
        if row != (0, 0, 0, None):
            zones[zone] = row
    return cells, zones


def stuck_by_hand(found: World, at: int, last: list[Trip], ends: dict[str, Journey]) -> list[Any]:
    stuck = []
    for t in last:
        if t.state not in ("accepted", "arrived", "in_progress"):
            continue
        usual: int | None = {"accepted": 15 * MINUTE, "arrived": 10 * MINUTE}.get(t.state)
        if t.state == "in_progress" and (j := ends.get(t.request_id)):
            metres = distance_m(j.pickup_lat, j.pickup_lon, j.dropoff_lat, j.dropoff_lon)
            usual = 2 * int(metres * 1.4 / (25_000 / 3_600_000)) + 10 * MINUTE
        heard = [
            p.at_ms for p in found.places
            if p.driver_id == t.driver_id and p.at_ms <= at and p.at_ms > newest_place(found) - CARS
        ]  # fmt: skip
        since, silent = at - t.at_ms, at - max(heard) if heard else None
        why = ["takes too long"] if usual is not None and since > usual else []
        if found.places and min(since, since if silent is None else silent) > 5 * MINUTE:
            why.append("the car is silent")
        if why:
            stuck.append((t.request_id, t.state, since, usual, t.driver_id, silent, ", ".join(why), t.zone))
    return sorted(stuck, key=lambda s: ("takes" not in s[6], -s[2], s[0]))


def newest_place(found: World) -> int:
    return max(p.at_ms for p in found.places)


@pytest.mark.parametrize("seed", range(CASES))
def test_the_city_is_what_plain_loops_find(tmp_path: Path, seed: int) -> None:
    found = world(seed)
    city = written(tmp_path, found, seed)
    assert city is not None
    assert city.until_ms == found.until
    oldest = min(row.at_ms for rows in found for row in rows)  # type: ignore[attr-defined]
    steps = range(oldest - oldest % EVERY_MS, found.until, EVERY_MS)
    assert city.since_ms == next((at for at in steps if at >= found.until - 3 * HOUR), found.until)
    draws = random.Random(seed)
    moments = [draws.randint(city.since_ms, city.until_ms) for _ in range(6)]
    for asked in (None, city.since_ms - HOUR, city.until_ms + HOUR, *moments):
        if asked is None or asked >= city.until_ms:
            at = city.until_ms
        else:
            at = max(city.since_ms, asked - asked % EVERY_MS)
        assert city.moment(asked) == by_hand(found, at)
