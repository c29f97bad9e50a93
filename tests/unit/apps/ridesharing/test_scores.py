"""What a pair cost in its window is kept with its attempt."""

from __future__ import annotations

import math
from itertools import groupby
from typing import Any

import h3
import pytest

from millrace_apps.ridesharing.dashboard.story import _attempt
from millrace_apps.ridesharing.evaluation.fleet import Fleet, Request
from millrace_apps.ridesharing.evaluation.replay import run_replay
from millrace_apps.ridesharing.evaluation.replay_report import Plan
from millrace_apps.ridesharing.evaluation.willing import Willing
from millrace_apps.ridesharing.processes.geo import travel_ms
from tests.unit.apps.ridesharing.cases import START, bring, command, dispatcher, position, request
from tests.unit.apps.ridesharing.test_audit import line_of_requests

PARTS = ("drive_ms", "place_ms", "drop_ms", "class_ms", "doubt_ms", "turn_ms")
Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def replayed() -> tuple[list[Request], Plan, Rows]:
    """A quarter of an hour with few cars and drivers who say no; every change of every attempt."""
    requests = line_of_requests(60, 15)
    plan = Plan(
        start_ms=START,
        end_ms=START + 900_000,
        fleet=8,
        policy="optimal",
        window_ms=10_000,
        radius_m=3_000,
        seed=3,
        declines=True,
        acceptance=True,
        fairness_ms=60_000,
    )
    fleet = Fleet(requests, plan.fleet, plan.seed, plan.start_ms, plan.end_ms, willing=Willing(1))
    return requests, plan, run_replay(fleet, plan.config).records["attempts"]


def test_the_parts_make_the_whole_and_each_counts_somewhere(replayed: tuple[Any, Plan, Rows]) -> None:
    rows = replayed[2]
    assert len(rows) > 60
    for row in rows:
        assert row["cost_ms"] == sum(row[name] for name in PARTS)
        assert row["drive_ms"] == pytest.approx(travel_ms(row["distance_m"]), abs=30)
        assert abs(row["turn_ms"]) <= 60_000
        assert 0 < row["doubt_ms"] < 30_000
    for name in ("place_ms", "drop_ms", "turn_ms"):
        assert len({row[name] for row in rows}) > 3, name


def test_an_attempt_keeps_its_score_to_its_end_and_the_next_one_has_its_own(
    replayed: tuple[Any, Plan, Rows],
) -> None:
    about = sorted(replayed[2], key=lambda row: (row["request_id"], row["attempt"], row["revision"]))
    scores = {
        name: [tuple(row[part] for part in ("cost_ms", *PARTS)) for row in rows]
        for name, rows in groupby(about, key=lambda row: (row["request_id"], row["attempt"]))
    }
    assert all(len(set(found)) == 1 for found in scores.values())
    assert max(map(len, scores.values())) > 2
    again = [(scores[request_id, 1], scores[request_id, 2]) for request_id, n in scores if n == 2]
    assert any(first[0] != second[0] for first, second in again)


def test_what_a_drop_off_costs_is_what_all_requests_so_far_say(
    replayed: tuple[list[Request], Plan, Rows],
) -> None:
    """Requests a minute within three rings of the drop-off, each for less by its age; one is enough."""
    requests, plan, rows = replayed
    ends = {r.request_id: h3.latlng_to_cell(r.to_lat, r.to_lon, 8) for r in requests}
    began = [(r.at_ms, h3.latlng_to_cell(r.lat, r.lon, 8)) for r in requests]
    half_life = plan.config.rules.half_life_ms
    for row in rows:
        now, around = row["offered_ms"], set(h3.grid_disk(ends[row["request_id"]], 3))
        weight = sum(0.5 ** ((now - at) / half_life) for at, cell in began if at <= now and cell in around)
        asked = weight * math.log(2) / (half_life / 60_000)
        wanted = plan.config.rules.drop_value_ms * (1 - min(1.0, asked))
        assert row["drop_ms"] == pytest.approx(wanted, abs=1_500)


def test_who_is_assigned_by_hand_has_no_score_and_the_story_says_none() -> None:
    driver = dispatcher()
    by_hand = command("assign", 4, request_id="r1", driver_id="d1")
    bring(driver, position("d1", 1), request("r1", 2), by_hand, until=5)
    (row,) = driver.values("attempts")
    assert (row.policy, row.cost_ms, row.drive_ms) == ("manual", None, None)


def test_the_story_of_a_request_says_what_its_car_cost(replayed: tuple[Any, Plan, Rows]) -> None:
    row = next(row for row in replayed[2] if row["drive_ms"] and row["drop_ms"] and row["turn_ms"])
    said = _attempt(row)[4]
    assert f"cost {row['cost_ms'] / 1_000:.0f} s: drive {row['drive_ms'] / 1_000:.0f}" in said
    assert f"drop-off {row['drop_ms'] / 1_000:.0f}" in said
    assert "cost" not in _attempt({**row, "cost_ms": None})[4]
