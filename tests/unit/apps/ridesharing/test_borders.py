"""Drivers between regions: whatever overtakes a handover, no two regions have one driver."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, permutations
from typing import Any

import pytest

from millrace.testing import TestDriver
from millrace_apps.ridesharing.config import DispatchConfig
from millrace_apps.ridesharing.contracts.events import Command, DriverStatus, Event, Handover
from millrace_apps.ridesharing.evaluation.replay import Faults
from millrace_apps.ridesharing.processes.regions import Regions
from tests.unit.apps.ridesharing.cases import (
    KM,
    LAT,
    LON,
    Whole,
    as_read,
    command,
    dispatcher,
    ms,
    position,
    request,
    status,
)
from tests.unit.apps.ridesharing.evenings import evening

CONFIG = DispatchConfig(window_ms=10_000, regions=Regions(parent=7))
HERE = CONFIG.regions.of_place(LAT, LON)
#: A place in another region, within reach.
NORTH_KM = 2.5
THERE = CONFIG.regions.of_place(LAT + NORTH_KM * KM, LON)


def handover(
    driver: str, s: float, from_region: str, region: str, *, request: str = "", until: float = 0.0
) -> Handover:
    """A car here that is given to a region; without a driver: a region's wish for a car."""
    return Handover(
        event_id=f"{from_region}-{region}-{driver or request}-{s}", driver_id=driver, from_region=from_region,
        region=region, vehicle_class="standard", lat=LAT, lon=LON, until_ms=ms(until) if until else 0,
        event_time_ms=ms(s), free_since_ms=ms(0), seen_ms=ms(0), blocked_ms=0, request_id=request,
    )  # fmt: skip


def changes(driver: TestDriver) -> list[str]:
    """Return how a driver came and went in a region."""
    return [row.change for row in driver.values("drivers")]


def test_a_handover_that_a_position_has_overtaken_does_not_bring_the_driver_twice() -> None:
    """The gate knows of a handover before the region does.

    ::

        lent at 10 s    position at 12 s: is here, and nobody knows why    handover read at 15 s
        ───────────────────────────┬────────────────────────────────────────────┬─────────
                           goes home at once                              is gone, for good
    """
    region = dispatcher(CONFIG)
    region.send(THERE, position("d1", 12), at=ms(12))
    region.advance_watermark(ms(15))
    assert changes(region) == ["entered", "left"]
    region.send(THERE, handover("d1", 10, HERE, THERE, until=70), at=ms(10))
    region.advance_watermark(ms(20))
    assert changes(region) == ["entered", "left"]
    assert [row.why for row in region.values("ignored")] == ["the driver has gone on"]
    # Whom the neighbour lends again is here again.
    region.send(THERE, handover("d1", 30, HERE, THERE, until=90), at=ms(30))
    region.advance_watermark(ms(40))
    assert changes(region) == ["entered", "left", "entered"]


def test_a_region_whose_only_car_is_lent_knows_that_it_is_gone() -> None:
    region = dispatcher(CONFIG)
    region.send(HERE, position("d1", 1), at=ms(1))
    region.send(HERE, handover("", 2, THERE, HERE, request="r1"), at=ms(2))
    region.advance_watermark(ms(20))
    assert changes(region) == ["entered", "left"]
    # On its way when the gate did not know yet.
    region.send(HERE, position("d1", 21), at=ms(21))
    region.advance_watermark(ms(30))
    assert changes(region) == ["entered", "left"]


def offered_after(said: Sequence[Event], order: Sequence[int], cuts: Sequence[int]) -> bool:
    """Return whether a driver who has crossed the border is offered a ride there in the end.

    ::

        here until 10 s │ handover on its way │ then, in any order and cut: it, and what is said
        there                                 │                            position 30 s, rider 31 s

    Args:
        said: What the driver's phone or an operator says meanwhile.
        order: In which order that is read; the handover is the last by number.
        cuts: After how many of them the clock is moved on and a batch begins.
    """
    whole = Whole(CONFIG)
    whole.run([position("d1", -60), position("d1", 10, NORTH_KM)], 10.5)
    (handed,) = whole.of("handovers")
    all_said = [*said, as_read("handovers", handed)]
    batch: list[Event] = []
    for number, place in enumerate(order, 1):
        batch.append(all_said[place])
        if number in cuts:
            whole.run(batch, 12 + number)
            batch = []
    whole.run(batch, 20)
    whole.run([position("d1", 30, NORTH_KM), request("r1", 31, NORTH_KM)], 60)
    return [offer["driver_id"] for offer in whole.of("offers")] == ["d1"]


#: What is said while a handover is on its way, at 9.9 s late.
MEANWHILE: tuple[tuple[Event, ...], ...] = (
    (status("d1", 11, "offline", NORTH_KM),),
    (status("d1", 9.9, "offline", NORTH_KM),),
    (status("d1", 11, "offline", NORTH_KM), position("d1", 12, NORTH_KM)),
    (status("d1", 9.9, "offline", NORTH_KM), status("d1", 11, "online", NORTH_KM)),
    (status("d1", 11, "offline", NORTH_KM), status("d1", 11.5, "online", NORTH_KM)),
    (status("d1", 9.8, "online", NORTH_KM), status("d1", 9.9, "offline", NORTH_KM)),
    (status("d1", 9.8, "offline", NORTH_KM), status("d1", 9.9, "online", NORTH_KM)),
    (command("block", 11, driver_id="d1", until_ms=ms(300)),),
    (command("block", 9.9, driver_id="d1", until_ms=ms(300)),),
    (command("block", 9.9, driver_id="d1", until_ms=ms(300)), command("unblock", 11, driver_id="d1")),
    (command("unblock", 9.9, driver_id="d1"), command("block", 11, driver_id="d1", until_ms=ms(300))),
    (command("block", 9.8, driver_id="d1", until_ms=ms(300)), command("unblock", 9.9, driver_id="d1")),
    (command("block", 11, driver_id="d1", until_ms=ms(25)), position("d1", 12, NORTH_KM)),
)


def _name(said: Any) -> str:
    def of(event: Event) -> str:
        kind = event.action if isinstance(event, Command) else getattr(event, "status", "position")
        return f"{kind} {(event.event_time_ms - ms(0)) / 1_000:g}"

    return ", ".join(of(event) for event in said)


def works(said: Sequence[Event]) -> bool:
    """Return whether a driver works by what was said: of statuses and of orders the newest holds."""
    statuses = sorted((e for e in said if isinstance(e, DriverStatus)), key=lambda e: e.event_time_ms)
    orders = sorted((e for e in said if isinstance(e, Command)), key=lambda e: e.event_time_ms)
    on_line = not statuses or statuses[-1].status == "online"
    return on_line and not (orders and orders[-1].action == "block" and orders[-1].until_ms > ms(60))


@pytest.mark.parametrize("said", MEANWHILE, ids=_name)
def test_what_is_said_of_a_driver_while_a_handover_is_on_its_way_reaches_the_new_region(
    said: tuple[Event, ...],
) -> None:
    size = len(said) + 1
    for order in permutations(range(size)):
        for cuts in (c for n in range(size) for c in combinations(range(1, size), n)):
            assert offered_after(said, order, cuts) == works(said), (order, cuts)


@pytest.mark.parametrize("blocked", [False, True])
def test_a_driver_who_is_busy_or_blocked_stays_so_beyond_the_border(blocked: bool) -> None:
    whole = Whole(CONFIG)
    orders = [command("block", 2, driver_id="d1", until_ms=ms(300))] if blocked else []
    state = "idle" if blocked else "on_trip"
    whole.run([position("d1", -60), *orders, position("d1", 10, NORTH_KM, state=state)], 10.5)
    (handed,) = whole.of("handovers")
    assert (handed["idle"], handed["blocked_ms"]) == (blocked, ms(300) if blocked else 0)
    whole.run([as_read("handovers", handed), request("r1", 12, NORTH_KM)], 40)
    assert whole.of("offers") == []


@pytest.mark.parametrize("seed", [12, 14, 15])
def test_in_an_evening_of_many_small_regions_nobody_has_two_rides(seed: int) -> None:
    faults = Faults(duplicates=0.1, late=0.05 * (seed - 12), restarts=5, seed=seed)
    audited = evening(
        seed, steps=130, faults=faults, config=DispatchConfig(regions=Regions(parent=7))
    ).audited()
    assert "two_commitments" not in audited.by_reason(), audited.rows
    assert audited.counts["handovers"] > 20
    assert audited.offers.offers > 20
