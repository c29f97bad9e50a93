"""Demand foreseen: what is known of a quarter held to counts made anew, the evaluation to its rows."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import h3
import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from millrace.host.memory_chain import MemoryChain
from millrace.topology import Link, Topology
from millrace_apps.ridesharing.demand.process import (
    DAY,
    NAMES,
    QUARTER_MS,
    WEEK,
    Ask,
    Demand,
    Foreseen,
    interval,
)
from millrace_apps.ridesharing.evaluation.cli import app as evaluate
from tests.cases import case_count

CASES = case_count(20)
_START = 1_211_414_400_000  # 2008-05-22T00:00Z
_RESOLUTION = 8


def some_asks(rng: Random, steps: list[int], count: int) -> list[Ask]:
    """Requests in few cells, some beside each other; on the bounds of quarters, in bursts, with gaps."""
    places = [(37.75 + 0.004 * rng.randrange(6), -122.45 + 0.005 * rng.randrange(6)) for _ in range(5)]
    at, found = _START + rng.randrange(3 * QUARTER_MS), []
    for number in range(count):
        at += rng.choice(steps)
        if rng.random() < 0.2:
            at = -(-at // QUARTER_MS) * QUARTER_MS - rng.choice((0, 1))
        at = max(at, found[-1].at_ms if found else 0)
        found.append(Ask(f"r{number}", "city", at, *rng.choice(places[: rng.choice((2, 5))])))
    return found


def ran(asks: list[Ask], until: int, rng: Random, zone: str = "UTC") -> list[Foreseen]:
    bound = rng.choice((0, 2 * QUARTER_MS))
    chain = MemoryChain(
        Topology({}, (Link(Demand(zone, _RESOLUTION, tell_features=True)),)),
        out_of_orderness_ms=bound,
        records=True,
    )
    left = sorted(asks, key=lambda ask: ask.at_ms - rng.randrange(bound + 1))
    found: list[Any] = []
    while left:
        size = rng.choice((1, 3, 50))
        found += chain.run_batch([("city", ask.at_ms, ask) for ask in left[:size]])
        left = left[size:]
        if rng.random() < 0.2:
            chain.restart()
    found += chain.advance_watermark(until)
    assert all(one.output == "main" for one in found), "nothing is late or dead"
    return [one.payload for one in found]


def anew(asks: list[Ask], quarter: int, off_h: int) -> dict[str, dict[str, float]]:
    """What is known of a quarter before it begins, by cell, from the list of all requests."""
    first = min(ask.at_ms for ask in asks) // QUARTER_MS
    past = [
        (h3.latlng_to_cell(ask.lat, ask.lon, _RESOLUTION), ask.at_ms // QUARTER_MS)
        for ask in asks
        if quarter - WEEK <= ask.at_ms // QUARTER_MS < quarter
    ]

    def count(q: int, cell: str | None = None) -> int:
        return sum(1 for c, at in past if at == q and cell in (None, c))

    found = {}
    same = [quarter - DAY * day for day in range(1, 8) if quarter - DAY * day >= first]
    near = [q + off for q in same for off in (-1, 0, 1) if quarter - WEEK <= q + off < quarter]
    hours = [q - back for q in same for back in (1, 2, 3, 4) if q - back >= quarter - WEEK]
    if not near:
        near = list(range(max(first, quarter - WEEK), quarter))
    usual_city = sum(map(count, near)) / len(near)
    usual_hour = 4 * (sum(map(count, hours)) / len(hours) if hours else usual_city)
    hour = sum(count(quarter - back) for back in (1, 2, 3, 4))
    local = pd.Timestamp(quarter * QUARTER_MS + off_h * 3_600_000, unit="ms")
    for cell in {c for c, _ in past}:
        usual = sum(count(q, cell) for q in near) / len(near)
        pace = (hour + 30) / (usual_hour + 30)
        found[cell] = {
            **{f"last_{back}": count(quarter - back, cell) for back in (1, 2, 3, 4)},
            "last_hour": sum(count(quarter - back, cell) for back in (1, 2, 3, 4)),
            "last_day": sum(c == cell and at >= quarter - DAY for c, at in past),
            "around": sum(count(quarter - 1, c) for c in h3.grid_ring(cell, 1)),
            "city": count(quarter - 1),
            "city_hour": hour,
            "yesterday": count(quarter - DAY, cell),
            "yesterday_after": count(quarter - DAY + 1, cell),
            "week": count(quarter - WEEK, cell),
            "usual": usual,
            "usual_days": len(same),
            "usual_city": usual_city,
            "city_pace": pace,
            "by_table": max(usual * pace, 0.02),
            "days": min((quarter - first) / DAY, 7),
            "quarter": local.hour * 4 + local.minute // 15,
            "weekday": local.weekday(),
        }
    return found


def check(asks: list[Ask], rng: Random) -> None:
    zone, off = rng.choice((("UTC", 0), ("America/Los_Angeles", -7), ("Asia/Kolkata", 5.5)))
    until = asks[-1].at_ms + rng.choice((0, QUARTER_MS, 5 * QUARTER_MS))
    told: dict[int, dict[str, Foreseen]] = {}
    for one in ran(asks, until, rng, zone):
        assert one.cell not in told.setdefault(one.start_ms // QUARTER_MS, {}), "told once"
        told[one.start_ms // QUARTER_MS][one.cell] = one
    first, last = asks[0].at_ms // QUARTER_MS, until // QUARTER_MS
    assert sorted(told) == list(range(first + 1, last + 1)), "a quarter is foreseen as the one before ends"
    for quarter in sorted({*rng.sample(sorted(told), min(8, len(told))), max(told)}) if told else []:
        wanted = anew(asks, quarter, off)  # type: ignore[arg-type]
        assert set(told[quarter]) == set(wanted)
        for cell, known in wanted.items():
            one = told[quarter][cell]
            features = dict(zip(NAMES, one.features, strict=True))
            assert {name: features[name] for name in known} == pytest.approx(known), (quarter, cell)
            assert one.last == known["last_1"]
            assert one.expected == one.table == pytest.approx(known["by_table"])
            low, high = interval(np.array([one.expected]))
            assert (one.low, one.high) == (low[0], high[0])


@pytest.mark.parametrize("seed", range(CASES))
def test_what_is_known_of_a_quarter_is_counted_anew(seed: int) -> None:
    rng = Random(seed)
    steps = rng.choice(([0, 1, 60_000], [60_000, 5 * QUARTER_MS], [0, QUARTER_MS, 20 * QUARTER_MS]))
    check(some_asks(rng, steps, rng.choice((1, 8, 60))), rng)


@pytest.mark.parametrize("seed", range(max(2, CASES // 10)))
def test_a_cell_that_nobody_asked_in_for_a_week_is_forgotten(seed: int) -> None:
    rng = Random(seed)
    asks = some_asks(rng, [QUARTER_MS, 40 * QUARTER_MS], 60)
    assert asks[-1].at_ms - asks[0].at_ms > WEEK * QUARTER_MS
    check(asks, rng)


def test_a_city_that_falls_silent_costs_nothing_after_a_week() -> None:
    process = Demand(resolution=_RESOLUTION, tell_features=True)
    chain = MemoryChain(Topology({}, (Link(process),)), records=True)
    chain.run_batch([("city", _START, Ask("r", "city", _START, 37.7, -122.4))])
    told = chain.advance_watermark(_START + 3 * WEEK * QUARTER_MS)
    assert WEEK <= len(told) <= WEEK + 2
    assert chain.advance_watermark(_START + 6 * WEEK * QUARTER_MS) == []
    again = _START + 6 * WEEK * QUARTER_MS + 1
    chain.run_batch([("city", again, Ask("s", "city", again, 37.7, -122.4))])
    (one,) = chain.advance_watermark(again + QUARTER_MS)
    features = dict(zip(NAMES, one.payload.features, strict=True))
    assert (features["days"], features["usual_days"]) == (1 / DAY, 0), "and begins anew"


def test_bounds_hold_nine_of_ten() -> None:
    rng = np.random.default_rng(1)
    for expected in (0.02, 0.5, 3.0, 40.0):
        low, high = interval(np.full(20_000, expected))
        came = rng.poisson(expected, 20_000)
        assert np.mean((low <= came) & (came <= high)) >= 0.89


def parquet_of(asks: list[Ask], file: Path) -> Path:
    pd.DataFrame(
        {
            "trip_id": [ask.request_id for ask in asks],
            "pickup_time": pd.to_datetime([ask.at_ms for ask in asks], unit="ms", utc=True),
            "pickup_lat": [ask.lat for ask in asks],
            "pickup_lon": [ask.lon for ask in asks],
            "dropoff_lat": 37.7,
            "dropoff_lon": -122.4,
            "duration_s": 60,
        }
    ).to_parquet(file)
    return file


def a_rhythm(days: int) -> list[Ask]:
    """Requests that come and go with the hour of the day, more in some cells."""
    rng = np.random.default_rng(4)
    found = []
    for quarter in range(days * DAY):
        for place in range(12):
            rate = (0.3 + place / 4) * (1.0 + np.sin(quarter / DAY * 2 * np.pi))
            for _ in range(rng.poisson(rate)):
                at = _START + quarter * QUARTER_MS + int(rng.integers(QUARTER_MS))
                found.append(Ask("", "city", at, 37.7 + 0.01 * place, -122.4))
    found.sort(key=lambda ask: ask.at_ms)
    return [Ask(f"r{n}", "city", ask.at_ms, ask.lat, ask.lon) for n, ask in enumerate(found)]


def test_the_evaluation_is_that_of_its_rows_and_better_than_what_is_simpler(tmp_path: Path) -> None:
    asks = a_rhythm(5)
    out, scores = tmp_path / "r.json", tmp_path / "scores.parquet"
    arguments = [
        "demand", "--trips", str(parquet_of(asks, tmp_path / "t.parquet")),
        "--train-until", "2008-05-25T12:00Z",
        "--test-from", "2008-05-25T12:00Z", "--out", str(out), "--scores", str(scores), "--zone", "UTC",
    ]  # fmt: skip
    result = CliRunner().invoke(evaluate, arguments)
    assert result.exit_code == 0, result.output
    report, rows = json.loads(out.read_text()), pd.read_parquet(scores)
    cut, end = pd.Timestamp("2008-05-25T12:00Z").value // 1_000_000, asks[-1].at_ms // QUARTER_MS * QUARTER_MS
    judged = [ask for ask in asks if cut <= ask.at_ms < end]
    assert report["requests"] == rows["requests"].sum() == len(judged)
    heard: dict[float, int] = {}
    for ask in asks:
        heard.setdefault(ask.lat, ask.at_ms // QUARTER_MS)
    assert report["trained"] == sum(cut // QUARTER_MS - first - 1 for first in heard.values())
    assert report["tested"] == len(rows) == 12 * (end - cut) // QUARTER_MS
    error = (rows["expected"] - rows["requests"]).abs()
    assert report["mae"] == pytest.approx(error.mean(), abs=1e-4)
    assert report["wape"] == pytest.approx(error.sum() / rows["requests"].sum(), abs=1e-4)
    assert report["mae"] < min(report["table_mae"], report["last_mae"], report["week_mae"])
    assert report["poisson_deviance"] < report["table_poisson_deviance"]
    assert report["coverage_90"] >= 0.88
    # What comes after a quarter has begun does not change what was foreseen of it.
    half = judged[len(judged) // 2].at_ms // QUARTER_MS * QUARTER_MS
    fewer = [ask for ask in asks if ask.at_ms < half or int(ask.request_id[1:]) % 2]
    parquet_of(fewer, tmp_path / "t.parquet")
    assert CliRunner().invoke(evaluate, arguments).exit_code == 0
    again = pd.read_parquet(scores)
    pd.testing.assert_frame_equal(
        again[again["start_ms"] < half].drop(columns="requests"),
        rows[rows["start_ms"] < half].drop(columns="requests"),
    )


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"--test-from": "2008-05-21T00:00Z"}, "before --train-until"),
        ({"--test-from": "2009-05-22T00:00Z"}, "no whole quarter"),
        ({"--train-until": "2008-05-22T00:30Z"}, "are needed"),
        ({"--resolution": "12"}, "from 5 to 10"),
    ],
)
def test_what_cannot_be_judged_is_told(tmp_path: Path, changed: dict[str, str], words: str) -> None:
    file = parquet_of(a_rhythm(1), tmp_path / "t.parquet")
    arguments = {
        "--trips": str(file), "--train-until": "2008-05-22T12:00Z", "--test-from": "2008-05-22T12:00Z",
        "--out": str(tmp_path / "r.json"),
    } | changed  # fmt: skip
    result = CliRunner().invoke(evaluate, ["demand", *[word for pair in arguments.items() for word in pair]])
    assert result.exit_code != 0
    assert words in f"{result.output}{result.exception}"
    assert not (tmp_path / "r.json").exists()
