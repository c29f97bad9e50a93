"""Positions that cannot be, that are made up, or that come from who is off line, get nobody a ride."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.places import distance_m
from millrace.testing import TestDriver
from millrace.testing.properties import invariant, leaks
from millrace_apps.ridesharing.contracts.events import Event, Position, QuoteRequest
from millrace_apps.ridesharing.processes.dispatcher import Dispatcher
from millrace_apps.ridesharing.processes.gate import Gate
from millrace_apps.ridesharing.topic_audit.evidence import Evidence
from tests.cases import case_count
from tests.unit.apps.ridesharing.cases import (
    CONFIG,
    LAT,
    LON,
    REGION,
    Whole,
    bring,
    dispatcher,
    ms,
    position,
    request,
    status,
)

CASES = case_count(50)


def gate_of(*events: Any) -> TestDriver:
    driver = TestDriver(Gate())
    for event in events:
        driver.send(event.driver_id, msgspec.structs.replace(event), at=event.event_time_ms)
    return driver


def test_a_jump_of_100_km_in_6_s_gets_no_ride() -> None:
    whole = Whole()
    there, here = position("d1", 0, 100), position("d1", 6, 0)
    whole.run([there, here, request("r1", 7)], 20)
    assert whole.of("offers") == []
    (row,) = gate_of(there, here).values("suspects")
    assert (row.driver_id, row.reason, row.elapsed_ms) == ("d1", "impossible_speed", 6_000)
    assert row.distance_m == pytest.approx(100_000, rel=0.01)


def test_a_position_that_the_phone_made_up_gets_no_ride() -> None:
    whole = Whole()
    made_up = position("d1", 0, 0.1, mock=True)
    whole.run([made_up, position("d2", 1, 2.0), request("r1", 7)], 20)
    assert [o["driver_id"] for o in whole.of("offers")] == ["d2"]
    assert [row.reason for row in gate_of(made_up).values("suspects")] == ["mock"]


def test_who_is_back_after_one_wrong_position_is_believed_at_once() -> None:
    driver = gate_of(position("d1", 0), position("d1", 10, 50), position("d1", 20, 0.1))
    assert len(driver.values()) == 2
    assert len(driver.values("suspects")) == 1


def test_positions_that_agree_for_five_minutes_are_believed() -> None:
    """The first one was the wrong one."""
    driver = gate_of(position("d1", 0, 5_000), *[position("d1", s) for s in range(10, 400, 20)])
    assert len(driver.values("suspects")) == 15
    assert driver.values()[1].event_time_ms - driver.values()[0].event_time_ms == 310_000


def test_a_status_brings_no_car_to_where_no_car_gets() -> None:
    """A phone that may not jump by a position may not by going on line again."""
    there, whole = position("d1", 0, 100), Whole()
    driver = gate_of(there, status("d1", 6, "online"))
    whole.run([there, status("d1", 6, "online"), request("r1", 7)], 20)  # it writes into what it is given
    assert whole.of("offers") == []
    (row,) = driver.values("suspects")
    assert (row.driver_id, row.reason, row.elapsed_ms) == ("d1", "impossible_speed", 6_000)
    (passed,) = driver.values("status")
    assert (passed.lat, passed.lon) == (there.lat, there.lon)


@pytest.mark.parametrize("place", [{}, {"lat": None, "lon": None}])
def test_who_goes_off_line_and_is_far_away_an_hour_later_is_believed(place: dict[str, None]) -> None:
    """What was said without a place, or where the driver was then, is held against nobody later.

    d1: here (0 s) - off line (10 s) ... on line 100 km away (3,610 s) - a position there (3,620 s)
    """
    whole = Whole()
    off, on = status("d1", 10, "offline", **place), status("d1", 3_610, "online", 100, **place)
    events = [position("d1", 0), off, on, position("d1", 3_620, 100.1), request("r1", 3_621, 100)]
    assert gate_of(*events[:-1]).values("suspects") == []
    whole.run(events, 3_640)
    assert [o["driver_id"] for o in whole.of("offers")] == ["d1"]


def test_a_position_is_held_to_where_the_driver_went_on_line() -> None:
    driver = gate_of(status("d1", 0, "online"), position("d1", 6, 100), position("d1", 12, 0.3))
    assert [row.reason for row in driver.values("suspects")] == ["impossible_speed"]
    assert [p.event_time_ms for p in driver.values()] == [position("d1", 12).event_time_ms]


@pytest.mark.parametrize("order", [1, -1])
def test_a_position_in_the_millisecond_of_a_status_is_no_repeat(order: int) -> None:
    driver = gate_of(*[status("d1", 0, "online"), position("d1", 0, 0.01, state="on_trip")][::order])
    assert driver.values("dead_letters") == []
    assert [p.state for p in driver.values()] == ["on_trip"]


def test_what_is_known_by_key_changes_nothing_under_another_key() -> None:
    """Whose phone it is, and whether a request or a quote has come before, is known by key alone."""
    driver, asked = TestDriver(Gate()), QuoteRequest(
        event_time_ms=ms(3), quote_id="q1", rider_id="rider-r1", pickup_lat=LAT, pickup_lon=LON,
        pickup_at_ms=ms(3),
    )  # fmt: skip
    for key, event in (
        ("d1", position("d1", 0)), ("d2", position("d2", 0)), ("d2", status("d1", 5, "offline")),
        ("r1", request("r1", 1)), ("r2", request("r1", 1)), ("q2", asked),
    ):  # fmt: skip
        driver.send(key, msgspec.structs.replace(event), at=event.event_time_ms)
    assert driver.values("status") == []
    assert [r.request_id for r in driver.values("requests")] == ["r1"]
    assert [a.subject for a in driver.values("asks")] == ["r1"]
    assert [(row["reason"], row["error"]) for row in driver.values("dead_letters")] == [
        ("schema", "status: an event about d1 needs that as its key"),
        ("schema", "requests: an event about r1 needs that as its key"),
        ("schema", "quote_requests: an event about q1 needs that as its key"),
    ]
    evidence = Evidence(CONFIG)
    evidence.read("status", "d2", msgspec.json.encode(status("d1", 5, "offline")), ms(5))
    evidence.read("requests", "r2", msgspec.json.encode(request("r1", 1)), ms(1))
    assert dict(evidence.unreadable) == {"status": 1, "requests": 1}


@pytest.mark.parametrize("order", [1, -1])
def test_a_ping_after_going_off_line_brings_nobody_back_whatever_comes_first(order: int) -> None:
    driver = dispatcher(bound_ms=5_000)
    events: list[Event] = [position("d1", 0), status("d1", 10, "offline"), position("d1", 12)]
    for event in events[::order]:
        driver.send(REGION, event, at=event.event_time_ms)
    bring(driver, position("d1", 21), request("r1", 22), until=40)
    assert driver.values("offers") == []
    assert [d.change for d in driver.values("drivers")] == ["entered", "offline"]
    (row,) = driver.values("ignored")
    assert (row.stream, row.driver_id, row.why) == ("locations", "d1", "the driver is off line")
    bring(driver, status("d1", 50, "online"), until=65)
    assert [o.driver_id for o in driver.values("offers")] == ["d1"]


def drive(seed: int) -> list[Position]:
    """A car that drives, jumps, and stands elsewhere for a while."""
    draws, km, at, found = random.Random(seed), 0.0, 0.0, []
    for _ in range(80):
        at += draws.choice([4, 10, 60])
        km += draws.uniform(-0.2, 0.2)
        if draws.random() < 0.06:
            km += draws.choice([-40, 40, 3])
        shown = km + (draws.choice([30, -200]) if draws.random() < 0.05 else 0)
        found.append(position("d1", at, shown, mock=draws.random() < 0.05))
    return found


@settings(max_examples=CASES, deadline=None)
@given(seed=st.integers(0, 1_000_000))
def test_what_is_believed_is_what_a_car_can_have_driven(seed: int) -> None:
    """By all positions at once: of each the speed from the last that was believed, and how long it agreed."""
    sent = drive(seed)
    driver = gate_of(*sent)
    doubted = {s.event_time_ms: s.reason for s in driver.values("suspects")}

    def can(a: Position, b: Position) -> bool:
        seconds = (b.event_time_ms - a.event_time_ms) / 1_000
        return distance_m(a.lat, a.lon, b.lat, b.lon) <= 250 + 70 * seconds

    assert {p.event_time_ms for p in sent if p.mock} == {t for t, why in doubted.items() if why == "mock"}
    real = [p for p in sent if not p.mock]
    for n, here in enumerate(real):
        before = next((p for p in reversed(real[:n]) if p.event_time_ms not in doubted), None)
        run = [here]
        for p in reversed(real[:n]):
            if p.event_time_ms not in doubted or not can(p, run[-1]):
                break
            run.append(p)
        agreed = here.event_time_ms - run[-1].event_time_ms
        wrong = before is not None and not can(before, here) and (agreed < 300_000 or len(run) == 1)
        assert (doubted.get(here.event_time_ms) == "impossible_speed") == wrong


@pytest.mark.parametrize("seed", range(3))
def test_order_between_drivers_cuts_and_restarts_do_not_matter(seed: int) -> None:
    told = [("d1", p.event_time_ms, p, "locations") for p in drive(seed)]
    invariant(Gate(), told, bound_ms=5_000, runs=4, seed=seed)
    assert leaks(Gate(), told) == []


def test_who_is_off_line_is_forgotten_in_the_end() -> None:
    told: list[Event] = [position("d1", 0), status("d1", 10, "offline"), position("d1", 20)]
    assert leaks(Dispatcher(CONFIG), [(REGION, e.event_time_ms, e) for e in told], bound_ms=5_000) == []
