"""Drivers between regions: whatever overtakes a handover, no two regions have one driver."""

from __future__ import annotations

import pytest

from apps.ridesharing.config import DispatchConfig
from apps.ridesharing.events import Handover
from apps.ridesharing.regions import Regions
from apps.ridesharing.replay import Faults
from millrace.testing import TestDriver
from tests.unit.apps.ridesharing.cases import KM, LAT, LON, dispatcher, ms, position
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


@pytest.mark.parametrize("seed", [12, 14, 15])
def test_in_an_evening_of_many_small_regions_nobody_has_two_rides(seed: int) -> None:
    faults = Faults(duplicates=0.1, late=0.05 * (seed - 12), restarts=5, seed=seed)
    audited = evening(
        seed, steps=130, faults=faults, config=DispatchConfig(regions=Regions(parent=7))
    ).audited()
    assert "two_commitments" not in audited.by_reason(), audited.rows
    assert audited.counts["handovers"] > 20
    assert audited.offers.offers > 20
