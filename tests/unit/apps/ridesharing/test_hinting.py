"""Hints while the app runs: which free cars are sent where, by what is foreseen, for any cut and restart."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import h3
import msgspec
import pandas as pd
import pytest
from typer.testing import CliRunner

from millrace.host.memory_chain import MemoryChain
from millrace.topology import Link, Topology
from millrace_apps.generators.ridesharing import RidesProfile, World
from millrace_apps.generators.ridesharing.messages import Hint
from millrace_apps.ridesharing.config import DispatchConfig
from millrace_apps.ridesharing.contracts.events import PickUpPoint, SetVenue
from millrace_apps.ridesharing.contracts.records import Journey
from millrace_apps.ridesharing.demand.config import HintConfig
from millrace_apps.ridesharing.demand.hinting import Hinting
from millrace_apps.ridesharing.demand.process import QUARTER_MS
from millrace_apps.ridesharing.demand.records import DriverHint, Standing, StandingCar
from millrace_apps.ridesharing.evaluation.cli import app as evaluate
from millrace_apps.ridesharing.operations.rekeying import CannotBeRekeyed, by_settings
from millrace_apps.ridesharing.processes.geo import distance_m, travel_ms
from millrace_apps.ridesharing.settings import HintSettings, RidesharingSettings
from tests.cases import case_count
from tests.unit.apps.ridesharing.cases import (
    CONFIG,
    KM,
    LAT,
    LON,
    MINUTE,
    SECOND,
    START,
    answer,
    bring,
    dispatcher,
    ms,
    position,
    request,
)

CASES = case_count(30)
HERE = h3.latlng_to_cell(LAT, LON, 8)
CELLS = sorted(h3.grid_disk(HERE, 4))


def journey(name: str, at: int, cell: str, ahead_ms: int = 0) -> Journey:
    lat, lon = h3.cell_to_latlng(cell)
    return Journey(name, "all", "zone", "standard", at, at + ahead_ms, lat, lon, lat, lon)


def standing(at: int, *cars: StandingCar) -> Standing:
    return Standing("all", at, sorted(cars, key=lambda car: car.driver_id))


def car(name: str, cell: str, since_ms: int) -> StandingCar:
    return StandingCar(name, *h3.cell_to_latlng(cell), since_ms)


def ran(events: list[Journey | Standing], config: HintConfig, draws: Random | None = None) -> list[Any]:
    """The records that come out, in some cut, with restarts in between."""
    chain = MemoryChain(Topology({}, (Link(Hinting(config)),)), out_of_orderness_ms=0, records=True)
    found, left = [], list(events)
    while left:
        size = draws.choice((1, 3, 40)) if draws else len(left)
        batch = [("all", e.at_ms, e, "asks" if isinstance(e, Journey) else "standing") for e in left[:size]]
        found += chain.run_batch(batch)
        left = left[size:]
        if draws and draws.random() < 0.2:
            chain.restart()
    found += chain.advance_watermark(events[-1].at_ms + 1)
    return [(e.output, e.payload) for e in found]


def hints_of(found: list[Any]) -> list[DriverHint]:
    return [payload for output, payload in found if output == "hints"]


FIRST = START // QUARTER_MS * QUARTER_MS
#: Thirty ask in one quarter where nobody stands: some thirty are expected there in the next one.
CROWD = [journey(f"r{n}", FIRST + n * SECOND, CELLS[0]) for n in range(30)]


def test_cars_that_stand_where_nobody_asks_are_told_where_they_lack() -> None:
    near = min(h3.grid_ring(CELLS[0], 2))
    at = FIRST + QUARTER_MS + MINUTE
    cars = [car(f"d{n}", near, FIRST) for n in range(3)]
    (told, *more) = hints_of(ran([*CROWD, standing(at, *cars)], HintConfig()))
    assert len(more) == 2
    assert (told.driver_id, told.region, told.cell, told.at_ms) == ("d0", "all", CELLS[0], at)
    assert (told.lat, told.lon) == pytest.approx(h3.cell_to_latlng(CELLS[0]), abs=1e-5)
    assert told.until_ms > at


@pytest.mark.parametrize(
    ("since_ms", "cell"),
    [
        (FIRST + QUARTER_MS + MINUTE - 59_999, min(h3.grid_ring(CELLS[0], 2))),
        (FIRST, min(h3.grid_ring(CELLS[0], 4))),
        (FIRST, CELLS[0]),
    ],
    ids=["free for less than a minute", "too far", "there already"],
)
def test_who_is_not_sent(since_ms: int, cell: str) -> None:
    at = FIRST + QUARTER_MS + MINUTE
    assert not hints_of(ran([*CROWD, standing(at, car("d", cell, since_ms))], HintConfig()))


def test_who_asks_for_later_is_no_demand_of_now() -> None:
    later = [journey(f"r{n}", FIRST + n * SECOND, CELLS[0], 600_001) for n in range(30)]
    cars = standing(FIRST + QUARTER_MS + MINUTE, car("d", min(h3.grid_ring(CELLS[0], 2)), FIRST))
    assert not ran([*later, cars], HintConfig())


def test_a_driver_is_told_once_in_ten_minutes_and_counted_where_the_car_is_going() -> None:
    """Two to three requests are expected: two drivers are sent, d1 does not move, so d2 is sent in its place.

    minute   1      2      3
    d0       sent   nearer there
    d1       sent   stays  (counted where it stands from 90 s on)
    d2              new    sent
    """
    near, at = min(h3.grid_ring(CELLS[0], 2)), FIRST + QUARTER_MS
    few = [journey(f"r{n}", FIRST + n * SECOND, CELLS[0]) for n in range(6)]
    (lat, lon), (to_lat, to_lon) = h3.cell_to_latlng(near), h3.cell_to_latlng(CELLS[0])
    half = StandingCar("d0", (lat + to_lat) / 2, (lon + to_lon) / 2, FIRST)
    there = StandingCar("d0", to_lat, to_lon, FIRST)
    told = hints_of(ran([
        *few,
        standing(at + MINUTE, car("d0", near, FIRST), car("d1", near, FIRST)),
        standing(at + 2 * MINUTE, half, car("d1", near, FIRST)),
        standing(at + 3 * MINUTE, there, car("d1", near, FIRST), car("d2", near, FIRST)),
    ], HintConfig()))  # fmt: skip
    assert [(one.driver_id, one.at_ms - at) for one in told] == [
        ("d0", MINUTE), ("d1", MINUTE), ("d2", 3 * MINUTE)
    ]  # fmt: skip


def oracle(events: list[Journey | Standing], config: HintConfig) -> list[tuple[str, str, int]]:
    """Who is told what, from the whole list, written another way: greedy, over cars as a list of dicts."""
    asked: Counter[tuple[str, int]] = Counter()
    said: list[tuple[str, str, int, float, int]] = []
    told = []
    first = None
    for event in events:
        if isinstance(event, Journey):
            if event.pickup_at_ms - event.at_ms <= config.ahead_ms:
                cell = h3.latlng_to_cell(event.pickup_lat, event.pickup_lon, 8)
                asked[cell, event.at_ms // QUARTER_MS] += 1
                first = event.at_ms // QUARTER_MS if first is None else first
            continue
        now = event.at_ms
        short = expected_of(asked, now // QUARTER_MS, first, config)
        if not short:
            continue
        cars = []
        for one in event.cars:
            last = next((s for s in reversed(said) if s[0] == one.driver_id), None)
            at = h3.latlng_to_cell(one.lat, one.lon, 8)
            if last and last[2] >= one.since_ms and now <= last[4]:
                away = distance_m(one.lat, one.lon, *h3.cell_to_latlng(last[1]))
                if now - last[2] <= 90_000 or last[3] - away >= 100:
                    at = last[1]
            ready = now - one.since_ms >= config.stood_ms
            ready = ready and not (last and now - last[2] < config.rest_ms)
            cars.append({"car": one, "at": at, "ready": ready})
            short[at] = short.get(at, 0.0) - 1
        for each in cars:
            if not each["ready"]:
                continue
            at, best, gain = each["at"], None, 0.0
            for rings in range(1, config.rings + 1):
                for cell in sorted(h3.grid_ring(at, rings)):
                    more = short.get(cell, 0.0) - short[at] - 1.0 - 0.25 * (rings - 1)
                    if short.get(cell, 0.0) > 0 and more >= 1.0 and more > gain:
                        best, gain = cell, more
            if best is not None:
                one = each["car"]
                away = distance_m(one.lat, one.lon, *h3.cell_to_latlng(best))
                said.append((one.driver_id, best, now, away, now + 90_000 + travel_ms(away)))
                told.append((one.driver_id, best, now))
                short[best] -= 1
                short[at] += 1
    return told


def expected_of(
    asked: Counter[tuple[str, int]], quarter: int, first: int | None, config: HintConfig
) -> dict[str, float]:
    """Of the first day: what a cell had in a quarter so far, by how busy the city's last hour was."""
    if first is None or quarter <= first:
        return {}
    known = min(quarter - first, 672)
    past = range(quarter - known, quarter)
    city = {q: sum(n for (_, at), n in asked.items() if at == q) for q in past}
    hour = sum(city.get(q, 0) for q in range(quarter - 4, quarter))
    pace = (hour + 30) / (4 * sum(city.values()) / known + 30)
    cells = {cell for cell, at in asked if at < quarter}
    share = config.horizon_ms / QUARTER_MS
    return {
        cell: max(sum(asked[cell, q] for q in past) / known * pace, 0.02) * share for cell in sorted(cells)
    }


def test_who_is_told_what_is_what_an_oracle_says_for_any_cut_and_restart() -> None:
    told = 0
    for seed in range(CASES):
        draws = Random(seed)
        config = HintConfig(rings=draws.choice((1, 3)), stood_ms=draws.choice((0, MINUTE)),
                            rest_ms=draws.choice((2, 10)) * MINUTE)  # fmt: skip
        events: list[Journey | Standing] = []
        cars = {
            f"d{n:02}": [*h3.cell_to_latlng(draws.choice(CELLS)), FIRST] for n in range(draws.randrange(25))
        }
        at, busy = FIRST, draws.sample(CELLS, 6)
        for number in range(90):
            at += draws.choice((5, 30, 60, 300)) * SECOND + draws.randrange(SECOND)
            if draws.random() < 0.6:
                ahead = draws.choice((0, 0, 600_000, 600_001))
                events.append(journey(f"r{number}", at, draws.choice(busy), ahead))
                continue
            for place in cars.values():
                if draws.random() < 0.3:
                    place[0], place[1] = h3.cell_to_latlng(draws.choice(CELLS))
                if draws.random() < 0.1:
                    place[2] = at
            there = [StandingCar(name, *place) for name, place in cars.items() if draws.random() < 0.9]
            if there:
                events.append(standing(at, *there))
        if not events:
            continue
        found = ran(events, config, draws)
        assert all(output in ("main", "hints") for output, _ in found), "nothing is late or dead"
        assert [(h.driver_id, h.cell, h.at_ms) for h in hints_of(found)] == oracle(events, config)
        told += len(hints_of(found))
    assert told > CASES


# -- the dispatcher, the generator and the replay --------------------------------------------------


def test_the_dispatcher_says_which_cars_stand_free_and_who_waits_in_a_line_does_not() -> None:
    config = msgspec.structs.replace(CONFIG, standing_ms=MINUTE)
    driver = dispatcher(config)
    zone = [h3.latlng_to_cell(LAT + 2 * KM, LON, 9)]
    pen = sorted(h3.grid_disk(h3.latlng_to_cell(LAT + KM, LON, 10), 1))
    point = PickUpPoint("A", *h3.cell_to_latlng(zone[0]))
    driver.broadcast(SetVenue("airport", zone, pen, [point], "v", "ann", "opens"))
    bring(
        driver, position("d1", 1), position("d2", 2, 0.1), position("pen", 3, 1.0),
        position("away", 4, 0.2, state="on_trip"), until=70,
    )  # fmt: skip
    (told,) = driver.values("standing")
    assert (told.region, told.at_ms) == ("all", ms(60))
    assert [(one.driver_id, one.since_ms) for one in told.cars] == [("d1", ms(1)), ("d2", ms(2))]
    bring(driver, request("r1", 71), answer("r1", "d1", 82), until=125)
    (again,) = driver.values("standing")[1:]
    assert [one.driver_id for one in again.cars] == ["d2"]
    without = dispatcher(DispatchConfig(window_ms=10_000))
    bring(without, position("d1", 1), until=70)
    assert not without.values("standing")


def test_regions_do_not_change_under_what_was_counted_in_them() -> None:
    with pytest.raises(CannotBeRekeyed, match=r"hints\.on"):
        by_settings(RidesharingSettings(hints=HintSettings(on=True)))


def test_a_share_of_the_generators_drivers_goes_where_it_is_told() -> None:
    went = 0
    for share in (0.0, 0.3, 1.0):
        world = World(RidesProfile(seed=3, drivers=120, rings=2, start_ms=START, follow_hints=share))
        world.advance(START + MINUTE)
        idle = [d for d in world._fleet.drivers if d.duty == "idle"]
        for one in idle:
            world.receive(Hint(one.driver_id, 52.52, 13.405, START + MINUTE))
        world.advance(START + MINUTE + 1)
        gone = sum(abs(d.target[0]) < 1 and abs(d.target[1]) < 1 for d in idle)
        assert gone == {0.0: 0, 1.0: len(idle)}.get(share, gone)
        went += 0 < gone < len(idle)
    assert went == 1


def busy_middle(folder: Path) -> Path:
    """A file of trips that begin in the middle of the town, and end all over it."""
    draws, start = Random(1), pd.Timestamp("2008-05-18T02:00Z")
    rows = [
        {
            "trip_id": n,
            "pickup_time": start + pd.Timedelta(seconds=27 * n),
            "pickup_lat": LAT + 0.005 * draws.uniform(-1, 1),
            "pickup_lon": LON,
            "dropoff_lat": LAT + 2 * KM * draws.uniform(-1, 1),
            "dropoff_lon": LON + 0.02 * draws.uniform(-1, 1),
            "duration_s": draws.randrange(200, 600),
        }
        for n in range(200)
    ]
    pd.DataFrame(rows).to_parquet(folder / "busy.parquet")
    return folder / "busy.parquet"


def test_a_replay_with_hints_says_what_they_brought(tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    given = ["--trips", str(busy_middle(tmp_path)), "--from", "2008-05-18T02:00Z",
             "--to", "2008-05-18T03:30Z", "--fleet", "12", "--hints", "--follow", "1",
             "--out", str(out), "--quiet"]  # fmt: skip
    done = CliRunner().invoke(evaluate, ["replay", *given])
    assert done.exit_code == 0, done.output
    report = json.loads(out.read_text())
    assert report["invariant_violations"] == 0
    assert 0 < report["hints"]["followed"] <= report["hints"]["told"]
    assert report["wait_lower"] == pytest.approx(1 - report["mean_wait_s"] / report["without"]["mean_wait_s"])
