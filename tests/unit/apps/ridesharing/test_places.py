"""Where cars are, and from where to where riders want to go, as it is written for the map."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from millrace.testing import TestDriver
from millrace.testing.properties import invariant
from millrace_apps.ridesharing.contracts.events import Event, Position, RideRequest
from millrace_apps.ridesharing.contracts.records import DriverChange, Place, Trip
from millrace_apps.ridesharing.processes.dispatcher import Dispatcher
from tests.cases import case_count
from tests.unit.apps.ridesharing.cases import (
    CONFIG,
    REGION,
    SECOND,
    START,
    answer,
    bring,
    cancel,
    command,
    dispatcher,
    position,
    request,
    status,
)

#: Random evenings that are held against plain loops; more by hand.
CASES = case_count(60, "MILLRACE_PLACES_CASES")
EVERY_MS = CONFIG.places_ms


def evening(seed: int) -> list[Event]:
    """Drivers who come, fall silent, go home and are blocked; no two events in one millisecond.

    Phones say they drive though nobody has told the book, so that trips begin and end by reconciliation.
    """
    draws = random.Random(seed)
    drivers = [f"d{n}" for n in range(draws.randint(1, 5))]
    found: list[Event] = []
    for driver in drivers:
        at = draws.uniform(0, 120)
        while at < 600:
            state = draws.choice(["idle", "idle", "idle", "approaching", "on_trip", "on_trip"])
            found.append(position(driver, at, draws.uniform(-1.5, 1.5), state=state))
            if draws.random() < 0.08:
                what = draws.choice(["offline", "online"])
                found.append(status(driver, at + draws.uniform(0.1, 9), what, draws.uniform(-1.5, 1.5)))
            at += draws.choice([5, 10, 20, 28, 95, 260]) * draws.uniform(0.8, 1.2)
    for n in range(draws.randint(0, 6)):
        name, at = f"r{n}", draws.uniform(1, 400)
        found.append(request(name, at, draws.uniform(-1, 1)))
        for attempt in range(1, 4):
            what = draws.choice(["accept", "accept", "reject"])
            found += [answer(name, d, at + draws.uniform(5, 45), what, attempt) for d in drivers]
        if draws.random() < 0.3:
            found.append(cancel(name, at + draws.uniform(1, 200)))
    for n in range(draws.randint(0, 3)):
        at = draws.uniform(1, 500)
        until = START + int((at + draws.uniform(1, 200)) * SECOND)
        about = {"driver_id": draws.choice(drivers), "command_id": f"b{n}"}
        found.append(command("block", at, until_ms=until, **about))
    at_once: dict[int, Event] = {}
    for event in found:
        at_once.setdefault(event.event_time_ms, event)
    return [event for _, event in sorted(at_once.items())]


def told(events: list[Event]) -> TestDriver:
    driver = dispatcher()
    driver.send_batch([(REGION, e.event_time_ms, msgspec.structs.replace(e)) for e in events])
    driver.drain()
    return driver


def by_hand(events: list[Event], said: TestDriver) -> Iterator[Place]:
    """Each car at the end of each half minute, looked up in what was sent, and in the other tables."""
    drivers = sorted({e.driver_id for e in events if isinstance(e, Position)})
    last = max((c.at_ms for c in said.values("drivers")), default=START)
    for end in range(START // EVERY_MS * EVERY_MS, last + 2 * EVERY_MS, EVERY_MS):
        for driver in drivers:
            found = place_of(driver, end, events, said)
            if found is not None:
                yield found


def place_of(driver: str, end: int, events: list[Event], said: TestDriver) -> Place | None:
    changes: list[DriverChange] = [
        c for c in said.values("drivers")
        if c.driver_id == driver and c.at_ms <= end and "blocked" not in c.change
    ]  # fmt: skip
    if not changes or changes[-1].change != "entered":
        return None
    heard: list[Any] = [
        e for e in events
        if getattr(e, "driver_id", "") == driver and changes[-1].at_ms <= e.event_time_ms <= end
        and (isinstance(e, Position) or getattr(e, "status", "") == "online")
    ]  # fmt: skip
    newest = heard[-1]
    if newest.event_time_ms <= end - EVERY_MS:
        return None
    state, request_id = "away", ""
    if getattr(newest, "state", "idle") == "idle":
        blocks = [o.until_ms for o in said.values("operations") if o.driver_id == driver and o.at_ms <= end]
        state = "away" if blocks and blocks[-1] > end else "free"
    # What a window that ends then matches comes after this was written.
    steps = [t for t in said.values("trips") if t.at_ms < end or (t.at_ms == end and t.cause != "matched")]
    newest_of: dict[str, Trip] = {t.request_id: t for t in steps}
    for name, step in newest_of.items():
        if step.driver_id == driver and step.state in ("offered", "accepted", "arrived", "in_progress"):
            state, request_id = step.state, name
    at, lat, lon = newest.event_time_ms, round(newest.lat, 5), round(newest.lon, 5)
    return Place(driver, REGION, at, lat, lon, state, request_id)  # type: ignore[arg-type]


def test_each_half_minute_says_where_those_are_who_were_heard_of() -> None:
    seen: set[str] = set()
    for seed in range(CASES):
        events = evening(seed)
        said = told(events)
        expected = list(by_hand(events, said))
        assert said.values("places") == expected, seed
        seen |= {place.state for place in expected}
    assert seen == {"free", "away", "offered", "accepted", "in_progress"}


@pytest.mark.parametrize("seed", range(3))
def test_places_do_not_hang_on_cuts_order_or_restarts(seed: int) -> None:
    events = evening(seed)
    assert told(events).values("places")
    invariant(Dispatcher(CONFIG), [(REGION, e.event_time_ms, e) for e in events], bound_ms=8_000, runs=3)


def test_a_driver_has_one_place_in_half_a_minute_however_often_the_phone_speaks() -> None:
    """d1 |..........|..........|   a position each second, a row each half minute: the newest."""
    driver = dispatcher()
    bring(driver, *(position("d1", s, s / 100) for s in range(1, 60)), until=61)
    assert [(p.at_ms - START) / SECOND for p in driver.values("places")] == [30, 59]


def test_who_stands_still_is_written_again_and_who_falls_silent_is_not() -> None:
    driver = dispatcher()
    bring(driver, *(position("d1", s) for s in (1, 11, 31, 41)), position("d2", 2), until=200)
    rows = [(p.driver_id, (p.at_ms - START) / SECOND) for p in driver.values("places")]
    assert rows == [("d1", 11), ("d2", 2), ("d1", 41)]


def test_where_nobody_wants_to_know_nothing_is_written() -> None:
    driver = dispatcher(msgspec.structs.replace(CONFIG, places_ms=0))
    bring(driver, *(position("d1", s) for s in range(1, 90)), until=200)
    assert driver.values("places") == []


@pytest.mark.parametrize("seed", range(20))
def test_a_journey_is_written_for_each_request_once(seed: int) -> None:
    events = evening(seed)
    again = [
        msgspec.structs.replace(e, event_time_ms=e.event_time_ms + 1)
        for e in events if isinstance(e, RideRequest)
    ]  # fmt: skip
    journeys = told(sorted([*events, *again], key=lambda e: e.event_time_ms)).values("journeys")
    wanted = [
        (e.request_id, REGION, e.zone, e.vehicle_class, e.event_time_ms, e.pickup_at_ms,
         e.pickup_lat, e.pickup_lon, e.dropoff_lat, e.dropoff_lon)
        for e in events if isinstance(e, RideRequest)
    ]  # fmt: skip
    assert [msgspec.structs.astuple(j) for j in journeys] == wanted
