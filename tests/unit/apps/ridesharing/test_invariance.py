"""The order of arrival, cuts into batches and restarts do not matter; poison does not spread."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace import Context
from millrace.testing import TestDriver
from millrace.testing.properties import invariant, leaks
from millrace_apps.ridesharing.contracts.events import Command, Event
from millrace_apps.ridesharing.contracts.records import Journal
from millrace_apps.ridesharing.processes.auditor import Auditor
from millrace_apps.ridesharing.processes.dispatcher import Dispatcher
from tests.unit.apps.ridesharing.cases import (
    CONFIG,
    REGION,
    Whole,
    answer,
    cancel,
    command,
    dispatcher,
    position,
    progress,
    request,
    status,
)

BOUND_MS = 8_000


def evening(seed: int, riders: int = 6, cars: int = 4) -> list[tuple[str, int, Event]]:
    """Riders and drivers who answer, refuse, cancel, drive and go home as chance has it."""
    draws = random.Random(seed)
    found: list[Event] = []
    for n in range(cars):
        found += [position(f"d{n}", t + n / 10, draws.uniform(-1.5, 1.5)) for t in range(0, 200, 40)]
        if draws.random() < 0.3:
            found.append(status(f"d{n}", draws.uniform(50, 190), "offline"))
    for n in range(riders):
        at, name = draws.uniform(1, 90), f"r{n}"
        found.append(request(name, at, draws.uniform(-1, 1), ahead=draws.choice([0, 0, 0, 700])))
        for attempt in range(1, 4):
            who, what = f"d{draws.randrange(cars)}", draws.choice(["accept", "accept", "reject"])
            found.append(answer(name, who, at + draws.uniform(5, 45), what, attempt))
        if draws.random() < 0.4:
            found.append(cancel(name, at + draws.uniform(1, 60)))
        for stage, after in (("arrived", 40), ("started", 60), ("finished", 120)):
            found.append(progress(name, f"d{draws.randrange(cars)}", at + after + draws.random(), stage))
    found.append(command("block", 20, driver_id="d0", until_ms=found[0].event_time_ms + 60_000))
    return [(REGION, s.event_time_ms, s) for s in found]


@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_any_order_and_any_cut_give_the_same_offers_trips_and_journal(seed: int) -> None:
    invariant(Dispatcher(CONFIG), evening(seed), bound_ms=BOUND_MS, runs=3, seed=seed)


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_kept_for_ever(seed: int) -> None:
    assert leaks(Dispatcher(CONFIG), evening(seed), bound_ms=BOUND_MS) == []


def test_the_journal_of_any_evening_raises_no_alarm_and_the_auditor_does_not_mind_the_order() -> None:
    driver = dispatcher(CONFIG, BOUND_MS)
    events = sorted(evening(7, riders=12), key=lambda e: e[1])
    driver.send_batch(events)
    driver.drain()
    journal = [(j.subject, j.at_ms, j) for j in driver.values() if isinstance(j, Journal)]
    assert len(journal) > 50
    invariant(Auditor(), journal, bound_ms=BOUND_MS, runs=4)


def test_an_event_that_cannot_be_handled_goes_to_the_dead_letters_and_harms_nobody_else() -> None:
    """Poison: an event that makes the dispatcher raise is undone and put aside."""
    good = evening(3)

    class Brittle(Dispatcher):
        name = "Dispatcher"

        def process(self, event: Event, ctx: Context) -> None:
            super().process(event, ctx)
            if isinstance(event, Command) and event.reason == "poison":
                raise ValueError("what it has done is undone")

    def run(events: list[tuple[str, int, Any]]) -> Any:
        driver = TestDriver(Brittle(CONFIG), out_of_orderness_ms=BOUND_MS)
        driver.send_batch(events)
        driver.drain()
        return driver

    times = [at for _, at, _ in good[:3]]
    about = {"driver_id": "d1", "reason": "poison", "command_id": "c1", "operator": "ann"}
    block = Command(event_time_ms=times[0], action="block", until_ms=times[0] + 600_000, **about)
    poison = [(REGION, at, msgspec.structs.replace(block, event_time_ms=at)) for at in times]
    clean, poisoned = run(good), run([*good, *poison])
    for output in ("trips", "offers", "attempts", "releases", "windows"):
        assert poisoned.values(output) == clean.values(output)
    assert [d["reason"] for d in poisoned.values("dead_letters")] == ["process_error"] * 3


def test_a_region_in_one_process_and_the_whole_chain_agree() -> None:
    events = sorted(evening(11), key=lambda e: e[1])
    alone, whole = dispatcher(), Whole()
    for _, at, event in events:
        alone.advance_watermark(at - 1)
        alone.send(REGION, msgspec.structs.replace(event, region=REGION), at=at)
        whole.run([event], (at - events[0][1]) / 1_000)
    whole.emissions += whole.chain.drain()
    alone.drain()
    trips = [msgspec.to_builtins(t) for t in alone.values("trips")]
    assert sorted(map(str, trips)) == sorted(map(str, whole.of("trips")))
    assert whole.of("main") == []
