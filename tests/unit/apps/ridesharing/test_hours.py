"""The quick loop beside the app's own processes, and policies that are compared hour by hour."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pandas as pd
import pytest
from typer.testing import CliRunner

from millrace_apps.ridesharing.evaluation.cli import app as evaluate
from millrace_apps.ridesharing.evaluation.fleet import Fleet, Request
from millrace_apps.ridesharing.evaluation.hours import HOUR_MS, Hours, compare_day, misses
from millrace_apps.ridesharing.evaluation.quick import QuickLoop
from millrace_apps.ridesharing.evaluation.replay import run_replay
from millrace_apps.ridesharing.evaluation.replay_report import Plan
from tests.cases import case_count

CASES = case_count(4)
START = 1_211_414_400_000


def some_requests(rng: Random, count: int, every_ms: int) -> list[Request]:
    """Rides between two places and out of town, some of them asked for in one moment."""
    found, at = [], START + 1
    for number in range(count):
        at += rng.choice((0, rng.randrange(2 * every_ms), rng.randrange(2 * every_ms)))
        lat, lon = rng.choice(((37.76, -122.43), (37.79, -122.41), (37.70, -122.45)))
        to_lat, to_lon = rng.choice(((37.77, -122.42), (37.76, -122.43), (37.70, -122.45)))
        place = (lat + rng.gauss(0, 0.004), lon + rng.gauss(0, 0.004))
        to = (to_lat + rng.gauss(0, 0.004), to_lon + rng.gauss(0, 0.004))
        found.append(Request(f"r{number:05}", at, *place, *to, rng.randrange(300_000, 700_000)))
    return found


def plan_of(requests: list[Request], cars: int, **other: Any) -> Plan:
    given: dict[str, Any] = {
        "start_ms": START, "end_ms": requests[-1].at_ms + 1, "fleet": cars, "policy": "optimal",
        "window_ms": 10_000, "radius_m": 3_000.0, "seed": 1,
    }  # fmt: skip
    return Plan(**(given | other))


@pytest.mark.parametrize("seed", range(CASES))
@pytest.mark.parametrize(
    "tried",
    [
        {},
        {"policy": "fifo"},
        {"policy": "nearest", "radius_m": 1_500.0},
        {"fairness_ms": 600_000, "fairness_of_wait": 2.0},
        {"hints": True},
    ],
    ids=["optimal", "fifo", "nearest", "fairness", "hints"],
)
def test_the_quick_loop_serves_as_the_app_does(seed: int, tried: dict[str, Any]) -> None:
    """Who is picked up, and to the millisecond when; how long each driver stood idle."""
    rng = Random(seed)
    requests = some_requests(rng, 250, rng.choice((8_000, 20_000)))
    plan = plan_of(requests, rng.choice((25, 45)), **tried)
    follow = 0.5 if plan.hints else 0.0
    fleet = Fleet(requests, plan.fleet, plan.seed, plan.start_ms, plan.end_ms, follow=follow)
    run_replay(fleet, plan.config)
    loop = QuickLoop(requests, plan.fleet, plan.seed, plan.start_ms, plan.end_ms, plan.config, follow)
    loop.run()
    found = {requests[n].request_id: at for n, at in loop.pickups.items()}
    assert found == {name: served.pickup_ms for name, served in fleet.served.items()}
    assert len(found) > 40
    if plan.hints:
        assert fleet.followed > 0
    assert loop.idle_seconds() == pytest.approx(fleet.idle_seconds(), abs=0.02)
    way = sum(served.pickup_km for served in fleet.served.values())
    assert loop.pickup_m / 1_000 * 1.4 == pytest.approx(way)


@pytest.mark.parametrize("tried", [{}, {"fairness_ms": 600_000, "fairness_of_wait": 2.0}, {"hints": True}])
def test_a_copy_goes_on_as_what_it_was_copied_from_and_leaves_it_alone(tried: dict[str, Any]) -> None:
    requests = some_requests(Random(5), 400, 10_000)
    plan = plan_of(requests, 40, **tried)
    loop, whole = (QuickLoop(requests, 40, 1, plan.start_ms, plan.end_ms, plan.config, 0.5) for _ in range(2))
    whole.run()
    loop.run(START + 1_200_000)
    assert loop.now == START + 1_200_000
    copies = [loop.copy(plan.config), loop.copy(replace(plan, policy="fifo").config)]
    for copy in copies:
        copy.run()
    loop.run()
    assert copies[0].pickups == loop.pickups == whole.pickups
    assert copies[0].idle_seconds() == whole.idle_seconds()
    assert copies[1].pickups != whole.pickups
    before = {n: at for n, at in whole.pickups.items() if requests[n].at_ms < START + 600_000}
    assert before.items() <= copies[1].pickups.items()


def judged(
    policy: str, beside: str, requests: list[Request], **other: Any
) -> tuple[dict[str, Any], list[Any]]:
    plan = plan_of(requests, 30, policy=policy)
    hours = Hours(START, START + 3 * HOUR_MS, (30,), (1,), plan.config, replace(plan, policy=beside).config)
    return compare_day(requests, START, START + 3 * HOUR_MS, 30, 1, hours)


def test_a_policy_beside_itself_differs_in_no_hour() -> None:
    requests = some_requests(Random(3), 900, 12_000)
    run, rows = judged("optimal", "optimal", requests)
    assert run["policy"] == run["beside"]
    assert len(rows) == 6
    for row in rows:
        assert row["served_share"] == row["other_served_share"]
        assert row["paired_wait_s"] == row["other_paired_wait_s"]
        assert not row["missed"]
    assert sum(row["requests"] for row in rows) == 2 * len(requests)


def test_hours_are_read_from_an_own_past_and_from_the_same_state() -> None:
    """Both readings again, another way: whole loops by hand, one of them switched as the hour begins."""
    requests = some_requests(Random(4), 900, 18_000)
    run, rows = judged("optimal", "fifo", requests)
    plan = plan_of(requests, 30)
    about = (requests, 30, 1, START, START + 3 * HOUR_MS)
    fifo, optimal = replace(plan, policy="fifo").config, plan.config
    for hour in range(3):
        begin = START + hour * HOUR_MS
        of = [n for n, r in enumerate(requests) if begin <= r.at_ms < begin + HOUR_MS]
        first, own, same = QuickLoop(*about, optimal), QuickLoop(*about, fifo), QuickLoop(*about, optimal)
        first.run()
        own.run()
        same.config = optimal if hour else fifo
        for end in same.windows():
            if end == begin:
                same.config = fifo
        for reading, other in (("own", own), ("same", same)):
            (row,) = (r for r in rows if r["reading"] == reading and r["hour"].endswith(f"T{hour:02}"))
            both = [n for n in of if n in first.pickups and n in other.pickups]
            assert row["requests"] == len(of)
            assert row["both"] == len(both) > 0
            for field, one in (("paired_wait_s", first), ("other_paired_wait_s", other)):
                waits = [(one.pickups[n] - requests[n].at_ms) / 1_000 for n in both]
                assert row[field] == pytest.approx(sum(waits) / len(waits))
            assert row["served_share"] * len(of) == pytest.approx(sum(n in first.pickups for n in of))
            assert row["other_served_share"] * len(of) == pytest.approx(sum(n in other.pickups for n in of))
    assert run["policy"]["served_share"] == pytest.approx(len(first.pickups) / len(requests))
    assert any(r["served_share"] != r["other_served_share"] for r in rows)


@pytest.mark.parametrize(
    ("wait", "served", "missed"),
    [
        (102.0, 0.95, False),
        (102.01, 0.95, True),
        (90.0, 0.947, False),
        (90.0, 0.9469, True),
        (50.0, 1.0, False),
    ],
)
def test_an_hour_misses_by_waits_or_by_riders(wait: float, served: float, missed: bool) -> None:
    row = {
        "paired_wait_s": wait,
        "other_paired_wait_s": 100.0,
        "served_share": served,
        "other_served_share": 0.95,
    }
    assert misses(row) is missed


def test_the_command_reports_hours_of_each_day_fleet_and_seed(tmp_path: Path) -> None:
    requests = some_requests(Random(6), 700, 9_000)
    shift = 23 * HOUR_MS  # over midnight
    frame = pd.DataFrame([msgspec.to_builtins(r) for r in requests])
    frame = frame.assign(
        trip_id=frame["request_id"],
        pickup_time=pd.to_datetime(frame["at_ms"] + shift, unit="ms", utc=True),
        duration_s=frame["duration_ms"] / 1_000,
    ).rename(
        columns={"lat": "pickup_lat", "lon": "pickup_lon", "to_lat": "dropoff_lat", "to_lon": "dropoff_lon"}
    )
    trips, out = tmp_path / "t.parquet", tmp_path / "r.json"
    frame.to_parquet(trips)
    begin = pd.Timestamp(START + shift, unit="ms").isoformat(timespec="minutes")
    end = pd.Timestamp(START + shift + 2 * HOUR_MS, unit="ms").isoformat(timespec="minutes")
    arguments = [
        "hours", "--trips", str(trips), "--from", f"{begin}Z", "--to", f"{end}Z", "--fleet", "20",
        "--fleet", "35", "--seed", "4", "--least", "50", "--out", str(out), "--quiet",
    ]  # fmt: skip
    result = CliRunner().invoke(evaluate, arguments)
    assert result.exit_code == 0, result.output
    report = json.loads(out.read_text())
    assert [(run["day"][-2:], run["fleet"], run["seed"]) for run in report["runs"]] == [
        ("22", 20, 4), ("22", 35, 4), ("23", 20, 4), ("23", 35, 4),
    ]  # fmt: skip
    assert len(report["hours"]) == 8
    for reading in ("own", "same"):
        rows = [row for row in report["hours"] if row["reading"] == reading and row["requests"] >= 50]
        assert report[reading]["hours"] == len(rows) > 0
        assert report[reading]["missed"] == sum(row["missed"] for row in rows)
    refused = CliRunner().invoke(evaluate, [*arguments[:6], f"{begin}Z", *arguments[7:]])
    assert "is not after" in f"{refused.output}{refused.exception}"


def test_days_are_runs_of_their_own() -> None:
    config = plan_of(some_requests(Random(1), 9, 1), 1).config
    begin, midnight = START - HOUR_MS, START + 24 * HOUR_MS
    hours = Hours(begin, midnight + 2 * HOUR_MS, (1,), (1,), config, config)
    assert list(hours.days()) == [(begin, START), (START, midnight), (midnight, midnight + 2 * HOUR_MS)]
