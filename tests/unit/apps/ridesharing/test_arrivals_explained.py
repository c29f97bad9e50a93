"""Arrival times explained from what stands on topics and in tables alone: each offer, each way, each telling.

The app runs through evenings with repeats, what comes late, regions, operators, restarts, odd cuts, and no
drain. Its records are then read sorted by time: what had been learned by a moment is a list of ways, and each
estimate is made of that list anew, by its definition.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable
from math import atan, cos, degrees, exp, hypot, log, pi, radians, sinh
from typing import Any, NamedTuple

import h3
import msgspec
import pytest

from millrace.host.runner import Emission
from millrace.places import distance_m
from millrace_apps.ridesharing.config import DispatchConfig
from millrace_apps.ridesharing.eta.features import NAMES
from millrace_apps.ridesharing.eta.interval import RATE
from millrace_apps.ridesharing.evaluation.demo_arrivals import ways_of as ways_in
from millrace_apps.ridesharing.evaluation.replay import Faults
from millrace_apps.ridesharing.processes.arrivals import ArrivalConfig
from millrace_apps.ridesharing.processes.geo import CIRCUITY, SPEED_M_PER_MS
from millrace_apps.ridesharing.processes.regions import Regions
from tests.cases import case_count
from tests.unit.apps.ridesharing.evenings import Topics, evening

CASES = case_count(4)
#: Pick-ups: so much is added before times are compared, seconds.
SHIFT_S = 30.0
Row = dict[str, Any]


class Spot(NamedTuple):
    """A place."""

    lat: float
    lon: float

    def cell(self, level: int) -> str:
        return str(h3.latlng_to_cell(self.lat, self.lon, level))


class Way(NamedTuple):
    """A way to a pick-up that was learned from."""

    ended_ms: int
    begins: Spot
    ends: Spot
    hour: int
    value: float
    below: bool
    above: bool


class Evening(Topics):
    """Topics with all that was said besides, in the order in which it was said."""

    def __init__(self, config: DispatchConfig) -> None:
        super().__init__(config)
        self.said: dict[str, list[Row]] = defaultdict(list)

    def say(self, said: Iterable[Emission], came: int) -> None:
        said = list(said)
        for e in said:
            self.said[e.output].append(msgspec.json.decode(e.payload))
        super().say(said, came)


def flat_km(a: Spot, b: Spot) -> float:
    return hypot((b.lon - a.lon) * cos(radians((a.lat + b.lat) / 2)), b.lat - a.lat) * 111.32


def table_s(begins: Spot, ends: Spot, hour: int, past: list[Way]) -> float:
    """What a way to a pick-up should take, with the shift, by the ways that had ended."""

    def mean(ones: list[Way], prior: float, weight: float) -> float:
        return (sum(one.value for one in ones) + prior * weight) / (len(ones) + weight)

    everywhere = mean(past, 0.0, 1.0)
    value = (
        mean([w for w in past if w.begins.cell(8) == begins.cell(8)], everywhere, 10)
        + mean([w for w in past if w.ends.cell(8) == ends.cell(8)], everywhere, 10)
        - everywhere
    )
    for level, weight in ((7, 10), (8, 5)):
        pair = begins.cell(level), ends.cell(level)
        value = mean([w for w in past if (w.begins.cell(level), w.ends.cell(level)) == pair], value, weight)
    value += mean([w for w in past if w.hour == hour], everywhere, 20) - everywhere
    return (flat_km(begins, ends) * CIRCUITY / SPEED_M_PER_MS + SHIFT_S) * exp(value)


def interval_s(seconds: float, hour: int, past: list[Way]) -> tuple[float, float]:
    """Between half and twice of it at first; each miss widens its side, each hit narrows both."""
    low = high = 1.0
    for way in (w for w in past if w.hour % 24 == hour % 24):
        low = min(max(low + (RATE * 19 if way.below else -RATE), 0.3), 4.0)
        high = min(max(high + (RATE * 19 if way.above else -RATE), 0.3), 4.0)
    return max(0.0, seconds * exp(-0.7 * low) - SHIFT_S), max(0.0, seconds * exp(0.7 * high) - SHIFT_S)


def ways_of(found: Evening) -> dict[str, list[Way]]:
    """The ways to pick-ups that were learned from, by region and in the order in which they ended."""
    spots = {r["request_id"]: Spot(r["pickup_lat"], r["pickup_lon"]) for r in found.said["journeys"]}
    ways: dict[str, list[Way]] = defaultdict(list)
    for row in found.said["drives"]:
        if row["way"] != "pickup" or not row["learned"]:
            continue
        ends = spots[row["request_id"]]
        begins = began_at(row)
        nothing = flat_km(begins, ends) * CIRCUITY / SPEED_M_PER_MS + SHIFT_S
        below, above = row["took_s"] < row["low_s"], row["took_s"] > row["high_s"]
        hour = row["began_ms"] // 3_600_000 % 168
        value = log((row["took_s"] + SHIFT_S) / nothing)
        ways[row["region"]].append(Way(row["ended_ms"], begins, ends, hour, value, below, above))
    for each in ways.values():
        each.sort(key=lambda way: way.ended_ms)
    return ways


def began_at(row: Row) -> Spot:
    """Where a way begins, by its features: Mercator's map turned back."""
    x, y = row["features"][:2]
    return Spot(degrees(atan(sinh(y / 111.32 * pi / 180))), x / 111.32)


def places_of(found: Evening) -> dict[str, list[tuple[int, int, Spot]]]:
    """Where drivers said that they are: when it came, of when it is, and where."""
    places: dict[str, list[tuple[int, int, Spot]]] = defaultdict(list)
    for stream in ("locations", "status", "progress", "handovers"):
        for row in found.rows[stream]:
            if row.get("lat") is not None and row.get("driver_id"):
                at = row["seen_ms"] if stream == "handovers" else row["event_time_ms"]
                places[row["driver_id"]].append((at, row["_came_ms"], Spot(row["lat"], row["lon"])))
    return places


def unexplained(found: Evening) -> tuple[int, list[str]]:
    """How many offers were explained, and what is wrong with the others."""
    ways, places = ways_of(found), places_of(found)
    count, wrong = 0, []
    for offer in found.said["offers"]:
        at, to = offer["event_time_ms"], Spot(offer["pickup_lat"], offer["pickup_lon"])
        hour = at // 3_600_000 % 168
        cars = {
            spot for seen, _, spot in places[offer["driver_id"]]
            if at - 200_000 <= seen <= at and abs(distance_m(*spot, *to) - offer["distance_m"]) < 0.06
        }  # fmt: skip
        if not cars:
            wrong.append(f"{offer['offer_id']}: no car is so far away")
            continue
        tries = []
        for car in cars:
            for past in (
                [w for w in ways[offer["region"]] if w.ended_ms <= at],
                [w for w in ways[offer["region"]] if w.ended_ms < at],
            ):
                seconds = table_s(car, to, hour, past)
                low, high = interval_s(seconds, hour, past)
                tries.append((max(1.0, seconds - SHIFT_S), low, high))
        said = offer["expected_s"], offer["low_s"], offer["high_s"]
        if any(all(abs(a - b) < 0.02 for a, b in zip(said, one, strict=True)) for one in tries):
            count += 1
        else:
            wrong.append(f"{offer['offer_id']}: {said}, not {tries}")
    return count, wrong


def begun_otherwise(found: Evening) -> list[str]:
    """Ways to pick-ups that were said to begin among others than began in the quarter of an hour before."""
    region = {r["request_id"]: r["region"] for r in found.said["journeys"]}
    began = [(region[name], at) for name, way, _, at in ways_in(found.said["trips"])[0] if way == "pickup"]
    wrong = []
    for row in (r for r in found.said["drives"] if r["way"] == "pickup"):
        at = row["began_ms"]
        before = [at - other for where, other in began if where == row["region"] and other <= at]
        if before.count(0) > 1:
            continue  # of one moment nobody says which came first
        wanted = sum(exp(-ago / 900_000) for ago in before if ago)
        if abs(row["features"][NAMES.index("begun_15")] - wanted) > 1e-6:
            wrong.append(f"{row['request_id']}: not {wanted}")
    return wrong


@pytest.mark.parametrize("seed", range(CASES))
def test_every_offer_of_any_evening_is_explained_and_nothing_is_dispatched_twice(seed: int) -> None:
    draws = random.Random(seed)
    faults = Faults(
        draws.choice([0, 0.05]), draws.choice([0, 0, 0.05, 0.3]), restarts=draws.choice([0, 3]), seed=seed
    )
    regions = draws.choice([Regions(), Regions(), Regions(parent=7)])
    config = DispatchConfig(
        arrivals=ArrivalConfig(every_ms=draws.choice([5_000, 15_000])), regions=regions,
        free_ms=draws.choice([0, 60_000]),
    )  # fmt: skip
    found = evening(seed, faults=faults, operators=draws.choice([0.0, 0.1, 0.3]), config=config, steps=150,
                    topics=Evening)  # fmt: skip
    assert isinstance(found, Evening)
    assert found.audited().count == 0
    explained, wrong = unexplained(found)
    assert wrong == []
    assert explained > 10
    assert begun_otherwise(found) == []
