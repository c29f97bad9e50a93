"""Arrival times: what is known of a leg held to sums made anew, causality, intervals, the evaluation."""

from __future__ import annotations

import json
from functools import partial
from math import cos, exp, hypot, log, radians
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import h3
import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from millrace.errors import UserError
from millrace.host.memory_chain import MemoryChain
from millrace.places import distance_m
from millrace.topology import Link, Topology
from millrace_apps.ridesharing.eta import report as report_module
from millrace_apps.ridesharing.eta.features import NAMES, Place, mercator
from millrace_apps.ridesharing.eta.interval import RATE, Spread, Width, spread_of
from millrace_apps.ridesharing.eta.report import carry_out
from millrace_apps.ridesharing.eta.times import Model
from millrace_apps.ridesharing.eta.training import columns_of, export, train
from millrace_apps.ridesharing.eta.travel import Estimate, Leg, TravelTimes
from millrace_apps.ridesharing.evaluation.cli import app as evaluate
from tests.cases import case_count

CASES = case_count(25)
_MINUTE = 60_000
_START = 1_211_500_800_000  # 2008-05-23T00:00Z


class Made(NamedTuple):
    """A leg as it was made."""

    name: str
    at: int
    end: int | None
    driver: str
    ends: tuple[float, float, float, float]


def some_legs(rng: Random, count: int, gap_ms: int = 5 * _MINUTE) -> list[Made]:
    """Legs among few places, no two things at one moment; some never end."""
    places = [
        (37.75 + rng.random() * 0.06, -122.45 + rng.random() * 0.06) for _ in range(rng.choice((2, 5, 30)))
    ]
    taken: set[int] = set()

    def moment(wanted: int) -> int:
        while wanted in taken:
            wanted += 1
        taken.add(wanted)
        return wanted

    found, at = [], _START
    for number in range(count):
        at = moment(at + rng.randrange(1, gap_ms))
        a, b = rng.choice(places), rng.choice(places)
        took = int(1_000 * (60 + 200 * hypot(a[0] - b[0], a[1] - b[1]) / 0.01) * exp(rng.gauss(0, 0.4)))
        end = None if rng.random() < 0.05 else moment(at + took)
        found.append(Made(f"t{number}", at, end, f"d{rng.randrange(4)}", (*a, *b)))
    return found


def events_of(legs: list[Made]) -> list[Leg]:
    found = [Leg("begin", one.name, "city", one.at, one.driver, *one.ends) for one in legs]
    found += [Leg("end", one.name, "city", one.end, one.driver, *one.ends) for one in legs if one.end]
    return sorted(found, key=lambda leg: leg.at_ms)


def chain_of(process: TravelTimes, bound_ms: int = 0) -> MemoryChain:
    return MemoryChain(Topology({}, (Link(process),)), out_of_orderness_ms=bound_ms, records=True)


def ran(events: list[Leg], process: TravelTimes, rng: Random | None = None) -> dict[str, Estimate]:
    """Run legs; with ``rng`` in disorder within a bound, in odd batches, with restarts."""
    bound = rng.choice((0, 10 * _MINUTE)) if rng else 0
    chain = chain_of(process, bound)
    if rng and bound:
        events = sorted(events, key=lambda leg: leg.at_ms + rng.randrange(bound))
    found: list[Any] = []
    place = 0
    while place < len(events):
        size = rng.choice((1, 3, 40)) if rng else 1_000
        found += chain.run_batch([("city", leg.at_ms, leg) for leg in events[place : place + size]])
        place += size
        if rng and rng.random() < 0.2:
            chain.restart()
    found += chain.drain()
    assert all(one.output == "main" for one in found), "nothing is late or dead"
    return {one.payload.leg_id: one.payload for one in found}


def km_of(a: tuple[float, ...]) -> float:
    return hypot((a[3] - a[1]) * 111.32 * cos(radians((a[0] + a[2]) / 2)), (a[2] - a[0]) * 111.32)


def anew(legs: list[Made], hours_off: int = 0) -> dict[str, tuple[dict[str, float], float]]:
    """What is known of each leg, from a list of all that had ended: by name, and the table's seconds."""
    tables: dict[str, float] = {}
    found = {}

    def cells(one: Made, level: int) -> tuple[str, str]:
        return h3.latlng_to_cell(*one.ends[:2], level), h3.latlng_to_cell(*one.ends[2:], level)

    def value(one: Made) -> float:
        return log((one.end - one.at) / 1_000 / (120 + 150 * km_of(one.ends) ** 0.85))  # type: ignore[operator]

    def mean(ones: list[Made], prior: float, weight: float) -> float:
        return (sum(map(value, ones)) + prior * weight) / (len(ones) + weight)

    def week_hour(one: Made) -> int:
        return (one.at + hours_off * 3_600_000) // 3_600_000 % 168

    for leg in sorted(legs, key=lambda one: one.at):
        past = [one for one in legs if one.end is not None and one.end < leg.at and one.at < leg.at]

        def late(ones: list[Made], scale_min: float, weight: float, now: int = leg.at) -> float:
            shares = [exp((one.end - now) / scale_min / _MINUTE) for one in ones]  # type: ignore[operator]
            rests = [value(one) - tables[one.name] for one in ones]
            return sum(s * r for s, r in zip(shares, rests, strict=True)) / (sum(shares) + weight)

        everywhere = mean(past, 0.0, 1.0)
        begins = mean([o for o in past if cells(o, 8)[0] == cells(leg, 8)[0]], everywhere, 10)
        ends = mean([o for o in past if cells(o, 8)[1] == cells(leg, 8)[1]], everywhere, 10)
        pair = begins + ends - everywhere
        told: dict[str, float] = {"of_from": begins, "of_to": ends}
        for level, weight in ((7, 10), (8, 5), (9, 4)):
            pair = mean([o for o in past if cells(o, level) == cells(leg, level)], pair, weight)
            told[f"of_pair_{level}"] = pair
        told["of_hour"] = mean([o for o in past if week_hour(o) == week_hour(leg)], everywhere, 20)
        tables[leg.name] = told["of_pair_8"] + told["of_hour"] - everywhere
        theirs = sorted((o for o in past if o.driver == leg.driver), key=lambda one: one.end or 0)
        told["of_driver"] = sum(value(o) - tables[o.name] for o in theirs) / (len(theirs) + 20)
        told["driver_legs"] = len(theirs)
        told["driver_now"] = late(theirs, 120, 3)
        told["city_15"], told["city_60"] = late(past, 15, 10), late(past, 60, 10)
        # A place remembers its legs, and where a leg begins and where it ends are apart.
        told["from_now"] = late([o for o in past if cells(o, 7)[0] == cells(leg, 7)[0]], 30, 5)
        told["to_now"] = late([o for o in past if cells(o, 7)[1] == cells(leg, 7)[1]], 30, 5)
        told["begun_15"] = sum(exp((o.at - leg.at) / 15 / _MINUTE) for o in legs if o.at < leg.at)
        told["idle_min"], told["moved_km"] = -1.0, -1.0
        if theirs:
            last = theirs[-1]
            told["idle_min"] = min((leg.at - (last.end or 0)) / _MINUTE, 600.0)
            told["moved_km"] = km_of((*last.ends[2:], *leg.ends[:2]))
        told["km"] = km_of(leg.ends)
        local = pd.Timestamp(leg.at + hours_off * 3_600_000, unit="ms")
        told["hour"] = local.hour + local.minute / 60 + local.second / 3600 + local.microsecond / 3.6e9
        told["weekday"] = local.weekday()
        found[leg.name] = (told, (120 + 150 * km_of(leg.ends) ** 0.85) * exp(tables[leg.name]))
    return found


@pytest.mark.parametrize("seed", range(CASES))
def test_what_is_known_of_a_leg_is_made_anew_from_those_that_had_ended(seed: int) -> None:
    rng = Random(seed)
    legs = some_legs(rng, rng.choice((5, 40, 90)))
    zone, off = rng.choice((("UTC", 0), ("America/Los_Angeles", -7), ("Asia/Tokyo", 9)))
    told = ran(events_of(legs), TravelTimes(zone, tell_features=True), rng)
    assert len(told) == len(legs)
    for name, (wanted, table_s) in anew(legs, off).items():
        features = dict(zip(NAMES, told[name].features, strict=True))
        assert features["hour"] == pytest.approx(wanted.pop("hour"), abs=1e-5)
        assert {n: features[n] for n in wanted} == pytest.approx(wanted, rel=1e-9, abs=1e-9), name
        assert told[name].table_s == pytest.approx(table_s)


def test_directions_on_the_map_are_true() -> None:
    """A step to the north and one as long to the east are equally long on the map, wherever they are made."""
    for lat in (-55.0, 0.0, 37.7, 60.0):
        x, y = mercator(lat, 10.0)
        step = 1e-4
        north = mercator(lat + step, 10.0)[1] - y
        east = mercator(lat, 10.0 + step / cos(radians(lat)))[0] - x
        assert north == pytest.approx(east, rel=1e-4)


def test_a_leg_is_not_told_by_what_comes_later() -> None:
    legs = some_legs(Random(3), 120)
    cut = legs[60].at
    later = [one if (one.end or 0) < cut else one._replace(end=(one.end or cut) + 7_777) for one in legs]
    before, after = (ran(events_of(some), TravelTimes(tell_features=True)) for some in (legs, later))
    early = [one.name for one in legs if one.at <= cut]
    assert [before[n] for n in early] == [after[n] for n in early]
    assert any(before[one.name] != after[one.name] for one in legs[61:]), "later ones do learn from it"


def test_of_an_end_without_a_beginning_nothing_is_learned() -> None:
    legs = some_legs(Random(1), 20)
    stray = Leg("end", "who", "city", legs[0].at - 1, "d0", *legs[0].ends)
    ends_twice = [e for e in events_of(legs) for _ in range(2 if e.what == "end" else 1)]
    process = TravelTimes(tell_features=True)
    assert ran([stray, *ends_twice], process) == ran(events_of(legs), process)


def trained(folder: Path, legs: list[Made]) -> Any:
    told = ran(events_of(legs), TravelTimes(tell_features=True))
    ended = [one for one in legs if one.end]
    model = train(
        columns_of([told[one.name].features for one in ended]),
        np.array([told[one.name].straight_s for one in ended]),
        np.array([(one.end - one.at) / 1_000 for one in ended if one.end]),
        ended[-1].at,
        rounds=150,
    )
    export(model, folder)
    return model


def test_the_model_is_asked_and_intervals_follow_what_came_true(tmp_path: Path) -> None:
    legs = some_legs(Random(5), 1_400, _MINUTE)
    model = trained(tmp_path, legs)
    process = TravelTimes("UTC", Model(str(tmp_path)), tell_features=True)
    told = ran(events_of(legs), process, Random(7))
    rows = columns_of([told[one.name].features for one in legs])
    nothing = np.array([told[one.name].straight_s for one in legs])
    wanted = nothing * np.exp(model.estimator.predict(rows.astype(np.float32)))
    assert [told[one.name].model_s for one in legs] == pytest.approx(wanted.tolist(), rel=1e-5)
    assert {one.model_version for one in told.values()} == {"1"}
    # Intervals, from the list of events: each end moves its side's factor of the hour of its beginning.
    low, high = [1.0] * 24, [1.0] * 24
    begun: dict[str, tuple[int, float, float]] = {}
    of = {one.name: one for one in legs}
    for event in events_of(legs):
        hour = of[event.leg_id].at // 3_600_000 % 24
        if event.what == "begin":
            estimate = told[event.leg_id]
            assert estimate.model_s
            down, up = model.spread.of(estimate.model_s)
            mine = estimate.model_s * exp(down * low[hour]), estimate.model_s * exp(up * high[hour])
            assert (estimate.low_s, estimate.high_s) == pytest.approx(mine)
            begun[event.leg_id] = (event.at_ms, *mine)
        else:
            at, down_s, up_s = begun[event.leg_id]
            took = (event.at_ms - at) / 1_000
            low[hour] += RATE * ((took < down_s) - 0.05) / 0.05
            high[hour] += RATE * ((took > up_s) - 0.05) / 0.05


def test_too_few_legs_are_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="1,000 are needed"):
        trained(tmp_path, some_legs(Random(5), 300))


@pytest.mark.parametrize("seed", range(max(3, CASES // 10)))
def test_intervals_come_to_hold_nine_of_ten_though_the_spread_was_wrong(seed: int) -> None:
    rng = np.random.default_rng(seed)
    spread = Spread((), (-0.2,), (0.2,))
    width, held = Width(), []
    for number, ratio in enumerate(rng.normal(0.1, 0.4, 8_000)):
        low, high = width.interval(100.0, spread, 5)
        truth = 100.0 * exp(ratio)
        held.append(low <= truth <= high)
        width.learn(5, below=truth < low, above=truth > high)
        assert width.low[4] == width.high[6] == 1.0, number
    assert np.mean(held[4_000:]) == pytest.approx(0.9, abs=0.02)


def test_the_spread_holds_what_it_was_not_made_from() -> None:
    rng = np.random.default_rng(2)
    estimates = rng.uniform(100, 2_000, 12_000)
    truths = estimates * np.exp(rng.normal(0, 100 / np.sqrt(estimates) / 10))
    spread = spread_of(estimates[:6_000], truths[:6_000])
    held = [
        low <= log(t / e) <= high
        for e, t in zip(estimates[6_000:], truths[6_000:], strict=True)
        for low, high in [spread.of(e)]
    ]
    assert np.mean(held) == pytest.approx(0.9, abs=0.015)
    assert spread.high[0] > spread.high[-1], "short legs are spread wider"


def parquet_of(legs: list[Made], file: Path) -> Path:
    ended = [one for one in legs if one.end]
    pd.DataFrame(
        {
            "trip_id": [one.name for one in ended],
            "cab_id": [one.driver for one in ended],
            "pickup_time": pd.to_datetime([one.at for one in ended], unit="ms", utc=True),
            **{
                name: [one.ends[n] for one in ended]
                for n, name in enumerate(("pickup_lat", "pickup_lon", "dropoff_lat", "dropoff_lon"))
            },
            "duration_s": [(one.end - one.at) // 1_000 for one in ended if one.end],
        }
    ).to_parquet(file)
    return file


def test_the_evaluation_judges_later_trips_by_earlier_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_module, "train", partial(train, rounds=150))
    legs = some_legs(Random(11), 2_600, _MINUTE)
    file = parquet_of(legs, tmp_path / "trips.parquet")
    cut = pd.Timestamp(legs[1_800].at, unit="ms").strftime("%Y-%m-%dT%H:%MZ")
    out, scores = tmp_path / "r.json", tmp_path / "scores.parquet"
    arguments = ["eta", "--trips", str(file), "--train-until", cut, "--test-from", cut]
    result = CliRunner().invoke(
        evaluate, [*arguments, "--out", str(out), "--scores", str(scores), "--zone", "UTC"]
    )
    assert result.exit_code == 0, result.output
    report, rows = json.loads(out.read_text()), pd.read_parquet(scores)
    error = (rows["eta_s"] - rows["duration_s"]).abs()
    assert report["tested"] == len(rows) > 600
    until = pd.Timestamp(cut).value // 1_000_000
    assert report["trained"] == sum(
        o.end is not None and o.at + (o.end - o.at) // 1_000 * 1_000 <= until for o in legs
    )
    assert report["mae_s"] == pytest.approx(error.mean(), abs=0.01)
    assert report["mape"] == pytest.approx((error / rows["duration_s"]).mean(), abs=1e-4)
    held = (rows["low_s"] <= rows["duration_s"]) & (rows["duration_s"] <= rows["high_s"])
    assert report["coverage_90"] == pytest.approx(held.mean(), abs=1e-4)
    assert report["mae_s"] < report["straight_mae_s"]
    assert 0.8 < report["coverage_90"] < 0.97
    assert rows["at_ms"].min() >= pd.Timestamp(cut).value // 1_000_000
    # Trips after the test do not change it, nor does how long the last ones took.
    again = carry_out(
        parquet_of([one if one.at < legs[2_400].at else one._replace(end=(one.end or 0) + 60_000 if one.end
                    else None) for one in legs], tmp_path / "other.parquet"),
        pd.Timestamp(cut).value // 1_000_000,
        pd.Timestamp(cut).value // 1_000_000,
        legs[2_400].at,
        scores=tmp_path / "again.parquet",
    )  # fmt: skip
    assert again["tested"] < report["tested"]
    same = pd.read_parquet(tmp_path / "again.parquet")
    pd.testing.assert_frame_equal(same, rows.head(len(same)))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"--test-from": "2008-05-22T00:00Z"}, "before --train-until"),
        ({"--test-from": "2009-05-22T00:00Z"}, "no trip to judge"),
        ({"--train-until": "2008-05-22T00:00Z"}, "are needed to learn from"),
        ({"--trips": "/nowhere.parquet"}, "nowhere"),
    ],
)
def test_what_cannot_be_judged_is_told(tmp_path: Path, changed: dict[str, str], words: str) -> None:
    file = parquet_of(some_legs(Random(2), 60), tmp_path / "trips.parquet")
    arguments = {
        "--trips": str(file), "--train-until": "2008-05-23T01:00Z", "--test-from": "2008-05-23T01:00Z",
        "--out": str(tmp_path / "r.json"),
    } | changed  # fmt: skip
    result = CliRunner().invoke(evaluate, ["eta", *[word for pair in arguments.items() for word in pair]])
    assert result.exit_code != 0
    assert words in f"{result.output}{result.exception}"
    assert not (tmp_path / "r.json").exists()


def test_a_leg_over_the_180th_meridian_is_as_long_as_elsewhere() -> None:
    draws = Random(8)
    for _ in range(200):
        lat, begins = draws.uniform(-60, 60), 179.99 + draws.uniform(0, 0.02)
        north, east = draws.uniform(-0.05, 0.05), draws.uniform(-0.05, 0.05)
        lon, to_lon = ((value + 180) % 360 - 180 for value in (begins, begins + east))
        leg = Place(lat, lon, lat + north, to_lon)
        assert leg.km == pytest.approx(distance_m(lat, lon, lat + north, to_lon) / 1_000, rel=0.01)
        assert leg.offset()[0] * east >= 0
