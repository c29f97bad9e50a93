"""Versions of venues, held against a plain line of time: what is said last holds, from its time on."""

from __future__ import annotations

import random
from typing import Any

import h3
import msgspec
import pytest

from millrace.errors import UserError
from millrace.places import distance_m
from millrace_apps.ridesharing.config import DispatchConfig
from millrace_apps.ridesharing.contracts.events import DropVenue, PickUpPoint, Position, SetVenue, ShortTrip
from millrace_apps.ridesharing.dashboard.venues import edges
from millrace_apps.ridesharing.operations.venues import Area
from millrace_apps.ridesharing.processes.regions import Regions
from millrace_apps.ridesharing.state.book import InMemory
from millrace_apps.ridesharing.state.venues import MOST_VENUES, Venues, keep_venue, regions_of
from millrace_apps.ridesharing.topic_audit.evidence import Evidence
from millrace_apps.ridesharing.topic_audit.lines import VenuesSaid
from tests.cases import case_count
from tests.unit.apps.ridesharing.cases import LAT, LON, ms
from tests.unit.apps.ridesharing.test_venues import PEN, POINTS, TERMINAL, ZONE, venue

CASES = case_count(400)
#: Times of a case are whole numbers below this.
_END = 40


def said_of(draws: random.Random, number: int, at: int) -> SetVenue | DropVenue:
    """Something that is said of a venue; what its short trips are says which it is."""
    about: Any = f"c{number}", "ann", "test"
    from_ms = draws.choice([0, at, at + draws.randrange(12), draws.randrange(_END)])
    if draws.random() < 0.4:
        return DropVenue("airport", *about, from_ms)
    pen = PEN if draws.random() < 0.8 else []
    rule = ShortTrip(float(number + 1), km=1.0)
    return SetVenue("airport", ZONE, pen, POINTS, *about, from_ms=from_ms, short_trip=rule)


class Line:
    """What holds at each time, written down time by time."""

    def __init__(self) -> None:
        self.holds: list[SetVenue | None] = [None] * (_END + 20)

    def say(self, said: SetVenue | DropVenue, watermark: int) -> bool:
        """Take what is said; return whether it is refused."""
        start = max(said.from_ms, watermark)
        before = self.holds[start - 1] if start else None
        if isinstance(said, DropVenue) and before is None and not any(self.holds[start:]):
            return True
        for at in range(start, len(self.holds)):
            self.holds[at] = said if isinstance(said, SetVenue) else None
        return False

    def rule(self, at: int) -> ShortTrip | None:
        one = self.holds[at]
        return None if one is None else one.short_trip

    def has_line(self, since: int, at: int) -> bool:
        return all(one is not None and one.pen for one in self.holds[since : at + 1])


def check_versions(seed: int) -> int:
    """Say things of a venue as time goes on; return how often something planned was taken back."""
    draws, kept, line = random.Random(seed), InMemory(), Line()
    at = taken_back = 0
    for number in range(draws.randrange(2, 9)):
        at += draws.choice([0, 0, 1, 3, 8])
        if at >= _END:
            break
        said = said_of(draws, number, at)
        planned = any(line.holds[at + 1 :]) and line.holds[at] is None
        refused = keep_venue(said, at, kept, Regions())
        assert (refused == "there is no such venue") == line.say(said, at), (seed, number)
        taken_back += planned and not any(line.holds[at:])
        venues = Venues(kept.items())
        for _ in range(4):
            now = draws.randrange(at, _END + 10)
            since = draws.randrange(now + 1)
            assert venues.short_trip("airport", now) == line.rule(now), (seed, number, now)
            assert venues.has_line("airport", since, now) == line.has_line(since, now), (seed, since, now)
            assert bool(venues.zone_of(TERMINAL, LON, now)) == (line.holds[now] is not None)
        assert sum(len(one.versions) for _, one in kept.items()) <= number + 2
    return taken_back


def test_what_is_said_last_of_a_venue_holds_from_its_time_on() -> None:
    taken_back = sum(check_versions(seed) for seed in range(CASES))
    assert taken_back >= CASES // 100


@pytest.mark.parametrize("drop_s", [50.0, 100.0])
def test_a_venue_that_is_to_come_is_taken_back_as_if_it_had_never_been_said(drop_s: float) -> None:
    kept = InMemory()
    assert keep_venue(venue(100), ms(0), kept, Regions()) == ""
    assert keep_venue(DropVenue("airport", "c", "ann", "test", ms(drop_s)), ms(0), kept, Regions()) == ""
    assert not kept
    assert "no such venue" in keep_venue(DropVenue("airport", "c", "ann", "test"), ms(0), kept, Regions())


# -- what the audit takes for a venue -------------------------------------------------------------------


@pytest.mark.parametrize(
    "more",
    [
        {"points": [POINTS[0], POINTS[0]]},
        {"pen": [h3.latlng_to_cell(LAT, LON, 14)]},
        {"zone": [*ZONE, h3.latlng_to_cell(TERMINAL, LON, 15)]},
        {"pen": ["8fffffffffffff0"]},
        {"points": [PickUpPoint("C", LAT, LON)]},
    ],
)
def test_what_regions_refuse_is_no_venue_to_the_audit(more: dict[str, Any]) -> None:
    assert keep_venue(venue(1, **more), 0, InMemory(), Regions()) != ""
    assert VenuesSaid(_heard(venue(1, **more))).where("zone", TERMINAL, LON, ms(600)) == ("", True)


def test_the_audit_is_not_sure_of_a_venue_that_may_have_found_no_room() -> None:
    others = [venue(1, f"v{n}", zone=[h3.latlng_to_cell(0.0, n, 9)], points=[]) for n in range(MOST_VENUES)]
    assert VenuesSaid(_heard(*others[1:], venue(1))).where("zone", TERMINAL, LON, ms(600)) == (
        "airport",
        True,
    )
    assert VenuesSaid(_heard(*others, venue(1))).where("zone", TERMINAL, LON, ms(600)) == ("airport", False)


def _heard(*said: SetVenue) -> Evidence:
    found = Evidence(DispatchConfig(), margin_ms=-1)
    for one in said:
        found.switch(one, ms(0))
    found.close()
    return found


# -- where the map begins anew --------------------------------------------------------------------------


def test_a_zone_on_both_sides_of_the_180th_meridian_is_in_one_region() -> None:
    """Taveuni, which the meridian goes through: beside it cells have corners on both sides."""
    regions = Regions(parent=5)
    beside = [h3.latlng_to_cell(-16.85 + n * 0.003, 180.0, 9) for n in range(40)]
    split = [c for c in beside if max(lon for _, lon in h3.cell_to_boundary(c)) > 179.0
             and min(lon for _, lon in h3.cell_to_boundary(c)) < -179.0]  # fmt: skip
    assert len(split) > 10
    for cell in split:
        near = {regions.of_place(*h3.cell_to_latlng(c)) for c in h3.grid_disk(cell, 2)}
        assert set(regions_of(regions, (cell,))) <= near


def test_a_polygon_over_the_180th_meridian_has_the_cells_of_its_place() -> None:
    corners = [(-16.80, 179.999), (-16.80, -179.999), (-16.802, -179.999), (-16.802, 179.999)]
    cells = Area(polygon=corners).to_cells()
    assert 50 < len(cells) <= 300
    assert all(distance_m(*h3.cell_to_latlng(cell), -16.801, 180.0) < 400 for cell in cells)


def test_positions_over_the_180th_meridian_are_evidence() -> None:
    """A car that drives east over the meridian, 15 m/s."""
    evidence = Evidence(DispatchConfig(), margin_ms=-1)
    for n in range(60):
        lon = 179.996 + n * 0.00014
        place = {"lat": -16.8, "lon": lon if lon <= 180 else lon - 360}
        seen = Position(event_time_ms=ms(n), event_id=f"e{n}", driver_id="d1", vehicle_class="standard",
                        state="idle", **place)  # fmt: skip
        evidence.take("locations", msgspec.structs.replace(seen), ms(n))
    evidence.close()
    fixes = evidence.fixes("d1")
    assert fixes is not None
    assert len(fixes.at_ms) == 60


def test_a_cell_that_is_written_in_two_ways_is_drawn_once() -> None:
    assert edges((PEN[0], PEN[0].upper())) == edges((PEN[0],))


@pytest.mark.parametrize(
    "corners",
    [
        [(0.0, 0.0), (10.0, 10.0), (10.0, 0.0), (0.0, 10.0)],
        [(90.0, 0.0), (80.0, 0.0), (80.0, 90.0)],
        [(-90.0, -180.0), (-90.0, 180.0), (90.0, 180.0), (90.0, -180.0)],
    ],
)
def test_a_polygon_that_crosses_itself_or_has_a_pole_is_too_large_and_no_traceback(
    corners: list[tuple[float, float]],
) -> None:
    with pytest.raises(UserError, match="too large for a venue"):
        Area(polygon=corners).to_cells()
