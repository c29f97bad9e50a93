"""Arrival times in the running app: ways, what riders were told, the matcher's cost, the table made anew."""

from __future__ import annotations

import random
import re
from collections import defaultdict
from math import exp, log
from pathlib import Path
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

import h3
import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from typer.testing import CliRunner

from millrace.cli import build as commands
from millrace.host.runner import Emission
from millrace.models.exports import CHAMPION, Exports
from millrace.models.serving import ExportedModels
from millrace.testing.properties import invariant
from millrace_apps.ridesharing.config import DispatchConfig
from millrace_apps.ridesharing.contracts.records import Drive
from millrace_apps.ridesharing.eta.features import NAMES, Place
from millrace_apps.ridesharing.eta.times import PICKUP, PICKUP_NAME, READER, TRIP, UNTRIED, Times
from millrace_apps.ridesharing.evaluation.demo_arrivals import check_arrivals, ways_of
from millrace_apps.ridesharing.evaluation.replay import Faults
from millrace_apps.ridesharing.processes.arrivals import ArrivalConfig, Arrivals
from millrace_apps.ridesharing.processes.dispatcher import Dispatcher
from millrace_apps.ridesharing.processes.matching import FreeCar, Rider, Rules, problem
from millrace_apps.ridesharing.settings import ArrivalSettings, RidesharingSettings
from tests.cases import case_count
from tests.unit.apps.ridesharing.cases import (
    CONFIG,
    KM,
    LAT,
    LON,
    answer,
    bring,
    cancel,
    command,
    dispatcher,
    ms,
    position,
    progress,
    request,
)
from tests.unit.apps.ridesharing.evenings import Topics, evening
from tests.unit.apps.ridesharing.test_invariance import BOUND_MS
from tests.unit.apps.ridesharing.test_invariance import evening as short_evening

CASES = case_count(3)
ON = ArrivalConfig()
WITH = msgspec.structs.replace(CONFIG, arrivals=ON)
ZONE = ZoneInfo("UTC")


class Kept(dict[str, Any]):
    """A map state's likeness."""

    def put(self, key: str, value: Any) -> None:
        self[key] = value

    def remove(self, key: str) -> None:
        self.pop(key, None)


def trip_of(
    name: str, at: float, took: tuple[float, float], driver: str = "d", *, heard: bool = True, km: float = 1.0
) -> list[Any]:
    """A request whose car is so far north, and how long way and trip take; on the way it is heard of."""
    there, done = at + 12 + took[0], at + 12 + took[0] + took[1]
    steps = range(60, int(took[0]), 60) if heard else ()
    return [
        position(driver, at, km),
        *[position(driver, at + 12 + s, km - km * s / took[0], state="approaching") for s in steps],
        request(name, at),
        answer(name, driver, at + 12),
        progress(name, driver, there, "arrived"),
        progress(name, driver, there + 0.5, "started"),
        position(driver, done, 2.0, state="on_trip"),
        progress(name, driver, done, "finished", 2.0),
    ]


def test_a_way_is_told_when_the_car_sets_off_and_learned_from_when_it_is_there() -> None:
    """The first car is expected by one speed; the next after what the first ones took.

    accepted 12 ──── 400 s ──── arrived ── started ──── 300 s ──── finished
    """
    driver = dispatcher(WITH)
    for n in range(8):
        bring(driver, *trip_of(f"r{n}", 1_000.0 * n, (400.0, 300.0)), until=1_000.0 * n + 900)
    drives = driver.values("drives")
    assert [(d.request_id, d.way) for d in drives] == [
        (f"r{n}", w) for n in range(8) for w in ("pickup", "trip")
    ]
    ways = [d for d in drives if d.way == "pickup"]
    assert {d.took_s for d in ways} == {400.0}
    assert ways[0].expected_s == ways[0].straight_s == pytest.approx(201.6, abs=0.5)
    errors = [abs(d.expected_s - d.took_s) for d in ways]
    assert errors[1] < errors[0] / 2, "the second is expected by what the first took"
    assert max(errors[4:]) < 20 < errors[0]
    offers = [o for o in driver.values("offers") if o.request_id == "r7"]
    assert offers[0].expected_s == pytest.approx(ways[-1].expected_s, abs=0.5)
    assert offers[0].low_s < offers[0].expected_s < offers[0].high_s
    given = {a.request_id: (a.eta_ms - a.event_time_ms) / 1_000 for a in driver.values("assignments")}
    assert given["r7"] == pytest.approx(ways[-1].expected_s, abs=0.001)


def test_without_arrival_times_nothing_is_told_of_them() -> None:
    driver = dispatcher(CONFIG)
    bring(driver, *trip_of("r", 0.0, (400.0, 300.0)), until=900)
    assert driver.values("trips")[-1].state == "completed"
    assert driver.values("arrivals") == driver.values("drives") == []
    assert b"expected_s" not in msgspec.json.encode(driver.values("offers")[0])


def test_while_the_car_moves_its_rider_is_told_by_what_is_left() -> None:
    driver = dispatcher(WITH)
    moving = [position("d", s, 1.0 - s / 250, state="approaching") for s in (62, 122, 182)]
    events = [*trip_of("r", 0.0, (240.0, 300.0), heard=False), *moving]
    bring(driver, *events, until=900)
    told = [a for a in driver.values("arrivals") if a.way == "pickup"]
    first = told[0].arrives_ms - told[0].at_ms
    assert [a.at_ms for a in told[1:]] == [ms(75), ms(135), ms(195)], "at the next quarter of a minute"
    for a, (s, left) in zip(told[1:], ((62, 0.752), (122, 0.512), (182, 0.272)), strict=True):
        assert a.left_m == pytest.approx(1_000 * left, abs=1)
        assert a.arrives_ms - ms(s) == pytest.approx(first * left, abs=300)
        assert a.low_ms <= a.arrives_ms <= a.high_ms
    way = next(d for d in driver.values("drives") if d.way == "pickup")
    off = [abs(a.arrives_ms - way.ended_ms) / 1_000 for a in told]
    assert (way.told, way.told_wrong_s) == (4, pytest.approx(sum(off) / 4, abs=0.001))
    assert way.last_wrong_s == pytest.approx(off[-1])


def test_of_a_rider_who_is_told_very_often_the_last_time_counts_as_the_last() -> None:
    driver = dispatcher(msgspec.structs.replace(WITH, arrivals=ArrivalConfig(every_ms=1_000)))
    moving = [position("d", s, 1.0 - s / 500, state="approaching") for s in range(13, 411)]
    events = [*trip_of("r", 0.0, (400.0, 300.0), heard=False), *moving]
    bring(driver, *sorted(events, key=lambda e: e.event_time_ms), until=900)
    told = [a for a in driver.values("arrivals") if a.way == "pickup"]
    way = next(d for d in driver.values("drives") if d.way == "pickup")
    off = [abs(a.arrives_ms - way.ended_ms) / 1_000 for a in told]
    assert len(off) > 350
    assert (way.told, way.last_wrong_s) == (240, pytest.approx(off[-1]))
    assert way.told_wrong_s == pytest.approx(sum([*off[:239], off[-1]]) / 240, abs=0.001)
    tables = [driver.values(name) for name in ("arrivals", "drives", "trips")]
    frames = [pd.DataFrame([msgspec.to_builtins(row) for row in rows]) for rows in tables]
    assert all(check.ok for check in check_arrivals(*frames)[:4])


def test_a_model_that_does_not_say_how_wrong_it_is_has_the_interval_of_what_is_untried() -> None:
    class Silent:
        def estimate(self, features: list[float], nothing_s: float) -> tuple[float, str, None]:
            return 100.0, "7", None

    times = Times(PICKUP, *(Kept() for _ in range(4)), ZONE, Silent(), UNTRIED)  # type: ignore[arg-type]
    expected = times.tell(Place(LAT, LON, LAT + KM, LON), ms(0), "d")[1]
    assert (expected.seconds, expected.version) == (70.0, "7")
    assert expected.low_s == pytest.approx(100 * exp(-0.7) - 30)
    assert expected.high_s == pytest.approx(100 * exp(0.7) - 30)


@pytest.mark.parametrize(
    ("events", "ways"),
    [
        ([cancel("r", 100.0)], []),
        ([cancel("r", 100.0, "driver", "d", "broken_down")], []),
        ([progress("r", "d", 300, "arrived"), cancel("r", 310.0)], ["pickup"]),
        ([progress("r", "d", 300, "started")], ["pickup"]),
        ([progress("r", "d", 300, "started"),
          command("end_trip", 400, request_id="r", zone="87283082affffff")], ["pickup"]),
    ],
    ids=["rider leaves", "driver leaves", "rider leaves there", "never said to be there", "ended by hand"],
)  # fmt: skip
def test_only_what_drivers_have_ended_is_a_way(events: list[Any], ways: list[str]) -> None:
    driver = dispatcher(WITH)
    begins = [position("d", 0.0, 1.0), request("r", 0.0), answer("r", "d", 12)]
    moves = [position("d", s, 0.9 - s / 350, state="approaching") for s in (90, 170, 250, 290)]
    bring(driver, *begins, *moves, *events, until=600)
    assert [d.way for d in driver.values("drives")] == ways


def test_of_a_ride_that_is_booked_for_later_nothing_is_learned() -> None:
    driver = dispatcher(WITH)
    booked = request("r", 0.0, ahead=500)
    moves = [position("d", s, 0.9 - s / 550, state="approaching") for s in range(60, 480, 60)]
    begins = [position("d", 0, 1.0), booked, answer("r", "d", 12)]
    bring(driver, *begins, *moves, progress("r", "d", 480, "arrived"), until=490)
    bring(driver, position("e", 491, 1.0), request("q", 491.0), until=502)
    assert [d.learned for d in driver.values("drives")] == [False]
    assert next(o for o in driver.values("offers") if o.request_id == "q").expected_s == pytest.approx(
        201.6, abs=0.5
    )


@pytest.mark.parametrize("seed", range(CASES))
def test_any_order_and_any_cut_give_the_same_arrival_times(seed: int) -> None:
    invariant(Dispatcher(WITH), short_evening(seed), bound_ms=BOUND_MS, runs=2, seed=seed)


def places_of(row: dict[str, Any]) -> Place:
    """Where a way begins and ends, from its features: Mercator's map turned back."""
    from math import atan, degrees, pi, sinh

    known = dict(zip(NAMES, row["features"], strict=True))

    def back(x: float, y: float) -> tuple[float, float]:
        return degrees(atan(sinh(y / 111.32 * pi / 180))), x / 111.32

    return Place(*back(known["from_x"], known["from_y"]), *back(known["to_x"], known["to_y"]))


def table_anew(row: dict[str, Any], past: list[dict[str, Any]]) -> float:
    """What a way should take by the table, from a list of those that had ended, seconds."""
    shift = 30.0 if row["way"] == "pickup" else 0.0

    def value(one: dict[str, Any]) -> float:
        return log((one["took_s"] + shift) / (one["straight_s"] + shift))

    def cells(one: dict[str, Any], level: int) -> tuple[str, str]:
        p = places_of(one)
        return h3.latlng_to_cell(p.from_lat, p.from_lon, level), h3.latlng_to_cell(p.to_lat, p.to_lon, level)

    def mean(ones: list[dict[str, Any]], prior: float, weight: float) -> float:
        return (sum(map(value, ones)) + prior * weight) / (len(ones) + weight)

    hour = row["began_ms"] // 3_600_000 % 168
    everywhere = mean(past, 0.0, 1.0)
    begins = mean([o for o in past if cells(o, 8)[0] == cells(row, 8)[0]], everywhere, 10)
    ends = mean([o for o in past if cells(o, 8)[1] == cells(row, 8)[1]], everywhere, 10)
    pair = begins + ends - everywhere
    for level, weight in ((7, 10), (8, 5)):
        pair = mean([o for o in past if cells(o, level) == cells(row, level)], pair, weight)
    of_hour = mean([o for o in past if o["began_ms"] // 3_600_000 % 168 == hour], everywhere, 20)
    return max(1.0, (row["straight_s"] + shift) * exp(pair + of_hour - everywhere) - shift)


def rows_of(emissions: list[Emission], output: str) -> list[dict[str, Any]]:
    return [msgspec.json.decode(e.payload) for e in emissions if e.output == output]


@pytest.mark.parametrize("seed", range(CASES))
def test_ways_of_any_evening_are_those_that_the_trips_tell_and_the_audit_holds(seed: int) -> None:
    """Agents, operators, repeats and restarts: each way, its table made anew, what its rider was told."""
    said: list[Emission] = []

    class All(Topics):
        def say(self, found: Any, came: int) -> None:
            found = list(found)
            said.extend(found)
            super().say(found, came)

    draws = random.Random(seed)
    faults = Faults(duplicates=0.05, restarts=draws.choice([0, 2]), seed=seed)
    topics = evening(seed, faults=faults, operators=draws.choice([0.0, 0.1]),
                     config=DispatchConfig(arrivals=ON), steps=200, topics=All)  # fmt: skip
    assert topics.audited().count == 0
    drives, trips = rows_of(said, "drives"), rows_of(said, "trips")
    _, ended = ways_of(trips)
    names = ("request_id", "way", "driver_id", "began_ms", "ended_ms")
    assert sorted(map(tuple, ended)) == sorted(tuple(d[n] for n in names) for d in drives)
    assert len(drives) > 5
    told: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for a in rows_of(said, "arrivals"):
        told[a["request_id"], a["driver_id"] + a["way"]].append(a)
    for row in draws.sample(drives, min(len(drives), 15)):
        past = [
            d for d in drives if d["way"] == row["way"] and d["learned"] and d["ended_ms"] < row["began_ms"]
        ]
        sure = not any(
            d["ended_ms"] == row["began_ms"] and d["request_id"] != row["request_id"] for d in drives
        )
        if sure:
            assert row["table_s"] == pytest.approx(table_anew(row, past), abs=0.02), row["request_id"]
        about = [
            a for a in told[row["request_id"], row["driver_id"] + row["way"]] if a["at_ms"] >= row["began_ms"]
        ]
        off = [abs(a["arrives_ms"] - row["ended_ms"]) / 1_000 for a in about if a["at_ms"] <= row["ended_ms"]]
        assert row["told_wrong_s"] == pytest.approx(sum(off) / len(off), abs=0.002)
        assert row["held"] == (row["low_s"] - 1e-3 <= row["took_s"] <= row["high_s"] + 1e-3)


@pytest.mark.parametrize("seed", range(CASES * 4))
def test_the_matcher_costs_a_pair_as_its_way_is_told(seed: int) -> None:
    rng = Random(seed)
    kept = [Kept() for _ in range(4)]
    times = Times(PICKUP, *kept, ZONE, None, UNTRIED)
    spread = rng.choice((0.01, 0.03))

    def place() -> tuple[float, float]:
        return LAT + rng.uniform(-1, 1) * spread, LON + rng.uniform(-1, 1) * spread

    at = ms(0)
    for n in range(rng.choice((1, 40, 200))):
        ends = Place(*place(), *place())
        told, expected = times.tell(ends, at, f"d{n % 5}")
        at += rng.randrange(1, 3_600_000)
        times.end(told, expected, ends, expected.straight_s * exp(rng.gauss(0, 0.5)), at, f"d{n % 5}")
    riders = [Rider(f"r{n}", *place(), "standard", 0) for n in range(rng.choice((1, 7)))]
    cars = [FreeCar(f"c{n}", *place(), "standard") for n in range(rng.choice((1, 20)))]
    arrivals = Arrivals(*kept, Kept(), ZONE, {"pickup": None, "trip": None})
    rules = Rules(radius_m=20_000, car_value_ms=0)
    pairs = problem(riders, cars, rules, {}, arrivals.drives(riders, cars, at)).pairs
    assert len(pairs.cost) == len(riders) * len(cars)
    for r, c, cost in zip(pairs.rider, pairs.car, pairs.cost, strict=True):
        way = Place(cars[c].lat, cars[c].lon, riders[r].lat, riders[r].lon)
        wanted = times.tell(way, at, "d0")[1].table_s
        # The straight line of estimates is of a flat map, that of pairs of a round earth.
        assert max(cost, 1_000) == pytest.approx(wanted * 1_000, rel=0.004, abs=400)


def test_before_anything_was_learned_the_matcher_goes_by_one_speed() -> None:
    arrivals = Arrivals(*(Kept() for _ in range(5)), ZONE, {"pickup": None, "trip": None})
    assert arrivals.drives([], [], ms(0)) is None


def test_a_nearer_car_that_takes_longer_is_not_sent() -> None:
    """North of the rider streets are slow: the car 1.0 km north loses against the one 1.3 km south."""
    driver = dispatcher(WITH)
    for n in range(24):
        km, took = ((1.0, 600.0), (-1.3, 200.0))[n % 2]
        begun = 1_000.0 * n
        bring(driver, *trip_of(f"r{n}", begun, (took, 200.0), f"x{n}", km=km), until=begun + 900)
    at = 30_000.0
    bring(driver, position("near", at, 1.0), position("far", at, -1.3), request("q", at + 1), until=at + 30)
    assert next(o for o in driver.values("offers") if o.request_id == "q").driver_id == "far"
    plain = dispatcher(CONFIG)
    bring(plain, position("near", at, 1.0), position("far", at, -1.3), request("q", at + 1), until=at + 30)
    assert plain.values("offers")[0].driver_id == "near"


def test_ways_to_riders_and_trips_are_learned_apart() -> None:
    kept = [Kept() for _ in range(4)]
    pickups, trips = (Times(kind, *kept, ZONE, None, UNTRIED) for kind in (PICKUP, TRIP))
    place = Place(LAT, LON, LAT + KM, LON)
    before = trips.tell(place, ms(0), "d")[1]
    told, expected = pickups.tell(place, ms(0), "d")
    pickups.end(told, expected, place, 900.0, ms(900), "d")
    assert trips.tell(place, ms(1_000), "d")[1] == before
    assert pickups.tell(place, ms(1_000), "d")[1].table_s > expected.table_s


@pytest.mark.parametrize("seed", range(CASES))
def test_intervals_of_the_table_come_to_hold_nine_of_ten(seed: int) -> None:
    rng = np.random.default_rng(seed)
    times = Times(PICKUP, Kept(), Kept(), Kept(), Kept(), ZONE, None, UNTRIED)
    held, at = [], ms(0)
    for n in range(3_000):
        place = Place(LAT, LON, LAT + rng.uniform(0.3, 2) * KM, LON)
        told, expected = times.tell(place, at, f"d{n % 50}")
        took = float(expected.straight_s * exp(rng.normal(0.3, 0.25)))
        assert expected.low_s is not None
        assert expected.high_s is not None
        held.append(expected.low_s <= took <= expected.high_s)
        times.end(told, expected, place, took, at + int(took * 1_000), f"d{n % 50}")
        at += 1_000
    assert np.mean(held[1_500:]) == pytest.approx(0.9, abs=0.03)


@pytest.mark.parametrize(
    ("given", "words"), [({"zone": "Nowhere/Land"}, "is no time zone"), ({"every": "-1s"}, "every")]
)
def test_settings_that_cannot_be_are_told(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ArrivalSettings(on=True, **given)


def test_settings_reach_the_processes(tmp_path: Path) -> None:
    assert RidesharingSettings().dispatch_config().arrivals is None
    told = RidesharingSettings(arrivals=ArrivalSettings(on=True, zone="Asia/Tokyo", exports=str(tmp_path)))
    assert told.dispatch_config().arrivals == ArrivalConfig(zone="Asia/Tokyo"), "no model unless it is wanted"
    asked = RidesharingSettings(arrivals=ArrivalSettings(on=True, learned=True, exports=str(tmp_path)))
    assert asked.dispatch_config().arrivals == msgspec.structs.replace(ON, exports=str(tmp_path))


# -- learning from what the stream has kept -----------------------------------------------------------


def ways_of_a_city(count: int, seed: int) -> list[Drive]:
    """Ways to riders as the app writes them: two drivers in five take twice as long, mornings are slow."""
    rng = Random(seed)
    times = Times(PICKUP, *(Kept() for _ in range(4)), ZONE, None, UNTRIED)
    rows, at = [], ms(0)
    for n in range(count):
        at += rng.randrange(1, 120_000)
        driver = f"d{rng.randrange(25)}"
        place = Place(LAT, LON, LAT + rng.uniform(0.3, 2.5) * KM, LON + rng.uniform(-1, 1) * KM)
        told, one = times.tell(place, at, driver)
        slow = 2.0 if int(driver[1:]) % 5 < 2 else 1.0
        took = round(one.straight_s * slow * exp(rng.gauss(0, 0.1)), 3)
        ended = at + int(took * 1_000)
        about = (f"r{n}", driver, "all", "pickup", at, ended, took)
        figures = (one.seconds, one.low_s or 0.0, one.high_s or 0.0, True, one.straight_s, one.table_s, None)
        rows.append(Drive(*about, *figures, "table", 1, 0.0, 0.0, n % 50 > 0, told.features))
        times.end(told, one, place, took, ended, driver)
    return rows


def models(root: Path, *words: str) -> Any:
    return CliRunner().invoke(commands(), ["models", "ridesharing", *words, "--root", str(root)])


@pytest.mark.long
def test_a_model_of_ways_is_trained_promoted_and_tells_offers(tmp_path: Path) -> None:
    rows = ways_of_a_city(1_300, 1)
    table = pa.Table.from_pylist([msgspec.structs.asdict(row) for row in rows])
    table = table.set_column(
        table.schema.get_field_index("model_s"), "model_s", pa.nulls(len(rows), pa.float64())
    )
    write_deltalake(tmp_path / "tables" / "drives", table)
    found = models(tmp_path, "train", "--model", "pickup", "--rounds", "40")
    assert found.exit_code == 0, found.output
    assert "1,274 ways" in found.output, "of rides that were booked for later nothing is learned"
    wrong, straight = re.findall(r"by ([\d.]+) s", found.output)
    assert float(wrong) < 0.8 * float(straight)
    assert models(tmp_path, "promote", "1", "--model", "pickup").exit_code == 0
    folder = next(path.parent for path in tmp_path.rglob("champion.json")).parent
    asked = ArrivalConfig(exports=str(folder), poll_s=1e9)
    driver = dispatcher(msgspec.structs.replace(CONFIG, arrivals=asked))
    bring(driver, *trip_of("r", 0.0, (400.0, 300.0)), until=900)
    way = next(d for d in driver.values("drives") if d.way == "pickup")
    assert way.by == "1"
    assert way.expected_s == pytest.approx(way.model_s, abs=0.001)
    champion = Exports(str(folder), PICKUP_NAME).find(CHAMPION)
    assert champion is not None
    model = ExportedModels(Exports(str(folder), PICKUP_NAME), READER).load(champion.manifest)
    score = model.score_many(np.array([way.features], np.float32))[0]
    assert way.model_s == pytest.approx((way.straight_s + 30) * exp(score) - 30, rel=1e-4)
    assert way.low_s < way.expected_s < way.high_s
    offer = driver.values("offers")[0]
    assert offer.expected_s is not None
    assert next(d for d in driver.values("drives") if d.way == "trip").by == "table", "of trips there is none"
    # A challenger is judged by ways after the training of both.
    again = models(tmp_path, "train", "--model", "pickup", "--rounds", "20")
    assert again.exit_code == 0, again.output
    refused = models(tmp_path, "promote", "2", "--model", "pickup")
    assert refused.exit_code != 0


def test_without_ways_training_says_what_to_do(tmp_path: Path) -> None:
    found = models(tmp_path, "train", "--model", "eta")
    assert found.exit_code != 0
    assert "run the app" in f"{found.output}{found.exception}"
