"""Rules of venues: points that riders ask for by name, tickets of short trips, zones at a border."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import h3
import msgspec
import pytest

from millrace.errors import UserError
from millrace.testing import TestDriver
from millrace_apps.ridesharing.config import DispatchConfig
from millrace_apps.ridesharing.contracts.events import (
    Event,
    PickUpPoint,
    RideRequest,
    SetVenue,
    ShortTrip,
    stream_of,
)
from millrace_apps.ridesharing.contracts.records import Offer, Trip
from millrace_apps.ridesharing.evaluation.replay import Faults
from millrace_apps.ridesharing.operations.rekeying import Rekeying
from millrace_apps.ridesharing.operations.venues import read_venues
from millrace_apps.ridesharing.processes.line import stand
from millrace_apps.ridesharing.processes.regions import Regions
from millrace_apps.ridesharing.state.book import Book, InMemory
from millrace_apps.ridesharing.state.entries import Car, Due, Head, Ride, ShortTripTicket, Spot
from millrace_apps.ridesharing.state.venues import Plan, Venues, keep_venue, regions_of
from millrace_apps.ridesharing.topic_audit.evidence import Evidence
from millrace_apps.ridesharing.topic_audit.lines import VenuesSaid
from millrace_apps.ridesharing.topic_audit.report import Audited, audit_topics
from tests.unit.apps.ridesharing.cases import (
    CONFIG,
    KM,
    LAT,
    LON,
    REGION,
    START,
    ZONE,
    Whole,
    answer,
    bring,
    cancel,
    dispatcher,
    ms,
    position,
    progress,
    request,
    status,
)
from tests.unit.apps.ridesharing.evenings import STEP_MS
from tests.unit.apps.ridesharing.evenings import evening as agents_evening
from tests.unit.apps.ridesharing.test_rekeying import in_books
from tests.unit.apps.ridesharing.test_venues import (
    POINTS,
    TERMINAL,
    Night,
    airport_of,
    asked,
    finished,
    gone,
    line,
    venue,
)

SHUT = PickUpPoint("C", TERMINAL - 0.1 * KM, LON, is_open=False)
#: A trip of at most 5 min and 2 km is short; who is back within 3 min is in front.
SHORT = ShortTrip(back_minutes=3, minutes=5, km=2)


def config(**more: Any) -> DispatchConfig:
    return msgspec.structs.replace(CONFIG, **more)


# -- points by name ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("named", "point", "why"),
    [("", "B", ""), ("A", "A", ""), ("B", "B", ""), ("C", "B", "closed"), ("the moon", "B", "unknown")],
)
def test_a_rider_meets_the_car_at_the_point_that_was_asked_for_else_at_the_nearest_open_one(
    named: str, point: str, why: str
) -> None:
    """The rider stands at B; the point is told to rider and driver, and why it is another one."""
    region = dispatcher()
    region.broadcast(venue(points=[*POINTS, SHUT]))
    bring(region, position("d1", 1), request("r1", 5, 1.1, pickup_point=named), until=11)
    (told,), (offer,) = region.values("pickups"), region.values("offers")
    place = next((p.lat, p.lon) for p in POINTS if p.name == point)
    assert (told.point, told.asked, told.why, told.lat, told.lon) == (point, named, why, *place)
    assert (offer.pickup_point, offer.pickup_why) == (point, why)
    assert (offer.pickup_lat, offer.pickup_lon) == place


@pytest.mark.parametrize("km", [-0.5, 1.0])
def test_a_point_asked_for_where_there_is_no_venue_loses_no_request(km: float) -> None:
    """South of the pen there is no venue; nor is there one at the terminal before it is published."""
    region = dispatcher()
    if km < 0:
        region.broadcast(venue())
    bring(region, position("d1", 1, 0.5), request("r1", 5, km, pickup_point="A"), until=11)
    (offer,) = region.values("offers")
    assert (offer.pickup_point, offer.pickup_why, offer.pickup_lat) == ("", "no_venue", LAT + km * KM)
    assert region.values("pickups") == []


def test_at_a_venue_without_an_open_point_the_rider_is_met_where_asked_for() -> None:
    region = dispatcher()
    region.broadcast(venue(points=[SHUT]))
    bring(region, position("d1", 1), request("r1", 5, 1.0, pickup_point="C"), until=11)
    (offer,) = region.values("offers")
    assert (offer.pickup_point, offer.pickup_why, offer.pickup_lat) == ("", "closed", TERMINAL)


def test_requests_and_offers_of_before_are_read_and_written_as_they_were() -> None:
    text = msgspec.json.encode(request("r1", 5))
    assert b"pickup_point" not in text
    assert msgspec.json.decode(text, type=RideRequest).pickup_point == ""
    region = dispatcher()
    bring(region, position("d1", 1), request("r1", 5), until=11)
    (offer,) = region.values("offers")
    assert b"pickup_point" not in msgspec.json.encode(offer)
    assert b"pickup_why" not in msgspec.json.encode(offer)


# -- short trips ---------------------------------------------------------------------------------------


def trip(
    driver: str, at: float, minutes: float, to_km: float, name: str = "r1", start_km: float = 1.0
) -> list[Event]:
    """Say yes to the first offer of a request, and finish the trip so many minutes after that."""
    over = at + minutes * 60
    return [
        answer(name, driver, at),
        *(position(driver, at + n, n / 100, state="approaching") for n in range(10, 101, 10)),
        progress(name, driver, at + 110, "started", start_km),
        *(position(driver, at + 110 + n, 1.0, state="on_trip") for n in range(0, int(over - at - 110), 20)),
        progress(name, driver, over, "finished", to_km),
    ]  # fmt: skip


def stands(driver: str, first: float, until: float, km: float = 0.0) -> list[Event]:
    return [position(driver, first + n * 20, km) for n in range(int((until - first) // 20) + 1)]


def after_trip(
    rule: ShortTrip | None = SHORT, *, minutes: float = 4.0, to_km: float = 2.0, back: float = 60.0,
    more: Sequence[Event] = (), until: float = 0.0, stays: float = 40.0,
) -> TestDriver:  # fmt: skip
    """d1 takes r1 from the line at 72 s and is back in the pen so many s after the trip; d2 and d3 wait."""
    region = dispatcher(config(reconcile_ms=0))
    region.broadcast(venue(short_trip=rule))
    over = 72 + minutes * 60
    last = until or over + back + 40
    others = [*stands("d1", 1, 61), *stands("d2", 5, last), *stands("d3", 6, last)]
    home = [*stands("d1", over + 10, over + back - 10, 0.6), *stands("d1", over + back, over + back + stays)]
    ride = [request("r1", 61, 1.0), *trip("d1", 72, minutes, to_km)]
    bring(region, *others, *ride, *home, *more, until=last)
    return region


def test_who_is_back_from_a_short_trip_in_time_is_first_in_line_and_is_told_so() -> None:
    """The trip takes 4 min and goes 1 km; the driver is back after one more."""
    region = after_trip()
    (ticket,) = region.values("tickets")
    over = 72 + 240
    assert (ticket.driver_id, ticket.venue, ticket.request_id) == ("d1", "airport", "r1")
    assert (ticket.at_ms, ticket.until_ms) == (ms(over), ms(over + 180))
    assert line(region) == ["d1", "d2", "d3"]
    last = [one for one in region.values("lines") if one.driver_id == "d1"][-1]
    assert (last.place, last.ticket, last.joined_ms) == (1, True, ms(over + 60))
    bring(region, request("r2", over + 101, 1.0), until=over + 121)
    assert asked(region, "r2")[0] == "d1"


@pytest.mark.parametrize(
    ("rule", "how"),
    [
        (None, {}),
        (ShortTrip(3, minutes=3), {}),
        (ShortTrip(3, km=0.9), {}),
        (ShortTrip(3, minutes=3, km=2), {}),
        (ShortTrip(3, minutes=5, km=0.9), {}),
        (ShortTrip(0.9, minutes=5), {}),
        (SHORT, {"minutes": 5.1}),
        (SHORT, {"to_km": 3.1}),
        (SHORT, {"back": 181.0}),
    ],
)
def test_a_trip_that_is_not_short_or_a_return_too_late_earns_nothing(
    rule: ShortTrip | None, how: dict[str, float]
) -> None:
    assert line(after_trip(rule, **how)) == ["d2", "d3", "d1"]


@pytest.mark.parametrize("rule", [ShortTrip(3, minutes=4), ShortTrip(3, km=1.01), ShortTrip(1, minutes=4)])
def test_bounds_of_a_short_trip_are_within_it(rule: ShortTrip) -> None:
    """4 min after the yes, 1 km from the pick-up, and 1 min until the driver is back."""
    assert line(after_trip(rule)) == ["d1", "d2", "d3"]


def test_a_ticket_counts_once() -> None:
    """d1 comes back with it, leaves the pen for longer than the grace, and comes back again."""
    over = 72 + 240
    away = [*stands("d1", over + 110, over + 190, -0.5), *stands("d1", over + 195, over + 240)]
    region = after_trip(ShortTrip(10, minutes=5), more=away, until=over + 240)
    assert len(region.values("tickets")) == 1
    assert line(region) == ["d2", "d3", "d1"]


def test_a_no_to_an_offer_costs_the_place_that_a_ticket_gave() -> None:
    """r2 is offered at 400 s, and refused at 403 s; lines are told at 420 s."""
    over = 72 + 240
    more = [request("r2", over + 81, 1.0), answer("r2", "d1", over + 91, "reject")]
    region = after_trip(more=more, until=over + 110, stays=50.0)
    assert asked(region, "r2") == ["d1", "d2"]
    assert line(region) == ["d2", "d3", "d1"]


def test_those_with_tickets_stand_in_the_order_of_their_return() -> None:
    """d1 has left the line before d2, and is back after it."""
    region = dispatcher(config(reconcile_ms=0, decline_costs_place=False))
    region.broadcast(venue(short_trip=ShortTrip(10, minutes=10)))
    start = [e for n, d in enumerate(("d1", "d2", "d3")) for e in stands(d, 1 + n, 61 + n)]
    rides = [request("r1", 61, 1.0), request("r2", 62, 1.0)]
    trips = [*trip("d1", 72, 4, 1.5, "r1"), *trip("d2", 73, 4, 1.5, "r2")]
    back = [*stands("d2", 330, 400), *stands("d1", 340, 400), *stands("d3", 70, 400)]
    bring(region, *start, *rides, *trips, *back, until=400)
    assert line(region) == ["d2", "d1", "d3"]


def test_a_trip_from_elsewhere_or_without_a_rider_earns_nothing() -> None:
    """d1 is asked from the line in both; r1 is finished with nobody aboard, r2 is of a rider elsewhere."""
    region = dispatcher(config(reconcile_ms=0, line_elsewhere=True, geofence_m=0.0))
    region.broadcast(venue(short_trip=ShortTrip(10, minutes=10)))
    south = trip("d1", 72, 3, 1.0, "r2", -0.5)
    bring(region, *stands("d1", 1, 61), request("r2", 61, -0.5), *south, until=260)
    assert [t.state for t in region.values("trips")][-2:] == ["in_progress", "completed"]
    assert region.values("tickets") == []
    bring(region, *stands("d1", 261, 340), request("r1", 341, 1.0), answer("r1", "d1", 352), until=360)
    bring(region, progress("r1", "d1", 400, "finished", 1.0), until=420)
    assert [t.state for t in region.values("trips")][-1] == "completed"
    assert region.values("tickets") == []


def test_a_ticket_of_a_venue_that_was_removed_is_none_at_that_of_the_same_name() -> None:
    over = 72 + 240
    region = dispatcher(config(reconcile_ms=0))
    rule = ShortTrip(10, minutes=5)
    region.broadcast(venue(short_trip=rule), gone(over + 20), venue(over + 30, short_trip=rule))
    last = over + 120
    events = [*stands("d1", 1, 61), *stands("d2", 5, last), request("r1", 61, 1.0), *trip("d1", 72, 4, 2.0)]
    bring(region, *events, *stands("d1", over + 60, last), until=last)
    assert len(region.values("tickets")) == 1
    assert line(region) == ["d2", "d1"]


def test_who_drops_the_rider_off_in_the_pen_is_in_front_at_once() -> None:
    region = dispatcher(config(reconcile_ms=0))
    region.broadcast(venue(short_trip=ShortTrip(1, minutes=5)))
    events = [*stands("d1", 1, 61), *stands("d2", 5, 340), request("r1", 61, 1.0), *trip("d1", 72, 4, 0.0)]
    bring(region, *events, *stands("d1", 320, 340), until=341)
    assert line(region) == ["d1", "d2"]
    assert region.values("lines")[-1].joined_ms == ms(5)
    assert {one.joined_ms for one in region.values("lines") if one.ticket} == {ms(72 + 240)}


def test_a_ticket_is_judged_by_the_time_of_the_position() -> None:
    """Also in the millisecond after its end, before its deadline is looked at."""
    kept = InMemory()
    assert keep_venue(venue(short_trip=SHORT), 0, kept, Regions()) == ""
    for late, has_ticket in ((0, True), (1, False)):
        book, at = Book(), ms(200) + late
        book.bring_over("d1", Car(LAT, LON, at, 0, True, ms(0)), 120_000)
        book.tickets["d1"] = ShortTripTicket("airport", ZONE, ms(100), ms(200))
        stand(book, Venues(kept.items()), "d1", at, 60_000)
        assert book.spots["d1"].ticket is has_ticket


def test_a_ticket_outlives_the_car_in_the_book_and_nothing_outlives_the_ticket() -> None:
    """The driver goes off line after the trip; when all is over, the region keeps nothing."""
    over = 72 + 240
    for back, first in ((150, "d1"), (0, "")):
        region = dispatcher(config(reconcile_ms=0, remember_ms=1_000))
        region.broadcast(venue(short_trip=SHORT))
        bring(region, *stands("d1", 1, 61), request("r1", 61, 1.0), *trip("d1", 72, 4, 2.0))
        bring(region, status("d1", over + 5, "offline"), until=over + 10)
        if back:
            again = [status("d1", over + back - 1, "online"), *stands("d1", over + back, over + 200)]
            bring(region, *stands("d2", over + 11, over + 200), *again, until=over + 200)
            assert line(region)[0] == first
        else:
            region.advance_watermark(ms(over + 190))
            (head,) = [entry.head for entry in _entries(region)]
            assert head is None or not head.tickets


def _entries(region: TestDriver) -> list[Any]:
    from tests.unit.apps.ridesharing.test_rekeying import entries_of

    return list(entries_of(region.host).values())


def test_a_ticket_goes_with_its_venue_where_regions_become_others() -> None:
    """The car is 4 km south by then, in another region than the venue."""
    where = h3.latlng_to_cell(TERMINAL, LON, 7)
    book = Book()
    book.tickets["d1"] = ShortTripTicket("airport", where, ms(5), ms(200))
    book.remind(ms(200) + 1, Due.FORGET, "t:d1", ms(200))
    book.head.blackouts[h3.latlng_to_cell(LAT - 4 * KM, LON, 7)] = ms(900)
    entries: dict[str, Any] = {"Dispatcher": in_books(all=book), "Gate": {}}
    Rekeying(config(regions=Regions(parent=7)))(entries)
    there = {key[0]: entry.head for key, entry in entries["Dispatcher"].items()}
    assert len(there) == 2
    assert [name for name, head in there.items() if head.tickets] == [where]
    due = {name: [d[2] for d in head.near] for name, head in there.items()}
    due[where] += [d[2] for of in entries["Dispatcher"][where,].far.values() for d in of]
    assert due[where] == ["t:d1"]


def test_what_was_kept_before_there_were_tickets_and_names_is_read() -> None:
    """State is written by place: what came later is missing at the end."""
    ride = Ride("r1", "ann", "standard", ZONE, LAT, LON, ms(1), ms(1), state="accepted", driver_id="d1")
    for kept, added in (
        (Head(seq=7), 2), (ride, 3), (Spot("airport", ms(5), ZONE, ms(6)), 1), (Plan((ZONE,), (), ()), 1),
    ):  # fmt: skip
        before = msgspec.to_builtins(kept)[:-added]
        assert msgspec.convert(before, type(kept)) == kept


# -- zones at a border ---------------------------------------------------------------------------------


def at_border(regions: Regions) -> tuple[str, str]:
    """Return a fine cell that is counted to one region and has places of another; and that place's region."""
    middle = h3.latlng_to_cell(LAT, LON, 7)
    for cell in h3.cell_to_children(middle, 9):
        for lat, lon in h3.cell_to_boundary(cell):
            inner = h3.cell_to_latlng(cell)
            near = tuple(a + 0.01 * (b - a) for a, b in zip((lat, lon), inner, strict=True))
            there = regions.of_place(*near)
            if h3.latlng_to_cell(*near, 9) == cell and there != regions.of_zone(cell):
                return cell, there
    raise AssertionError("no cell reaches out of its parent")


def test_a_zone_that_reaches_over_a_border_within_one_cell_is_refused_with_both_regions() -> None:
    """By its name the cell is of one region; a rider at its edge would ask in the other, where no line is."""
    regions = Regions(parent=7)
    cell, there = at_border(regions)
    assert regions_of(regions, (cell,)) == sorted((regions.of_zone(cell), there))
    found = keep_venue(venue(zone=[cell], points=[]), 0, InMemory(), regions)
    assert "more than one region" in found
    assert there in found
    assert keep_venue(venue(zone=[cell], points=[]), 0, InMemory(), Regions()) == ""
    whole = h3.cell_to_parent(cell, 7)
    assert keep_venue(venue(zone=[whole], points=[]), 0, InMemory(), regions) == ""


def test_a_zone_at_a_border_is_refused_where_it_is_published(tmp_path: Path) -> None:
    file, regions = tmp_path / "v.json", Regions(parent=7)
    cell, there = at_border(regions)
    file.write_bytes(msgspec.json.encode({"name": "v", "zone": {"cells": [cell]}}))
    with pytest.raises(UserError, match=f"v: the zone is in more than one region .*{there}.*: make"):
        read_venues(file, "ann", "opens", 0, regions)
    assert len(read_venues(file, "ann", "opens", 0, Regions())) == 1


def test_every_rider_in_a_zone_that_is_kept_asks_in_the_region_of_its_line() -> None:
    """Over many places of zones of all kinds: what is not refused has no rider in another region."""
    regions, kept = Regions(parent=7), 0
    for ring in range(6):
        for cell in h3.grid_ring(h3.latlng_to_cell(LAT, LON, 9), ring)[:6]:
            if keep_venue(venue(zone=[cell], points=[]), 0, state := InMemory(), regions):
                continue
            kept += 1
            venues = Venues(state.items())
            home = regions.of_zone(venues.home_of("airport", 1))
            for fine in h3.cell_to_children(cell, 11):
                lat, lon = h3.cell_to_latlng(fine)
                if venues.zone_of(lat, lon, 1):
                    assert regions.of_place(lat, lon) == home
    assert kept > 5


def test_a_short_trip_in_a_file_is_read_and_one_without_a_bound_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "v.json"
    for rule, why in (
        ({"back_minutes": 30, "minutes": 20, "km": 8}, ""),
        ({"back_minutes": 30}, "minutes, km or both"),
        ({"back_minutes": 0, "km": 8}, "has no venue"),
        ({"km": 8}, "has no venue"),
    ):
        file.write_bytes(msgspec.json.encode({"name": "v", "zone": {"cells": [ZONE]}, "short_trip": rule}))
        if why:
            with pytest.raises(UserError, match=why):
                read_venues(file, "ann", "opens", 0, Regions())
        else:
            (said,) = read_venues(file, "ann", "opens", 0, Regions())
            assert said.short_trip == ShortTrip(30.0, 20.0, 8.0)
            assert msgspec.json.decode(msgspec.json.encode(said), type=SetVenue) == said


# -- what is told of venues ----------------------------------------------------------------------------


def test_each_version_of_a_venue_is_told_once_when_it_holds() -> None:
    region = dispatcher()
    region.broadcast(venue(), venue(100, points=[*POINTS, SHUT]), gone(200))
    bring(region, *stands("d1", 1, 280), until=290)
    told = region.values("shapes")
    assert [(s.from_ms, len(s.zone), len(s.pen), len(s.points)) for s in told] == [
        (0, 7, 7, 2), (ms(100), 7, 7, 3), (ms(200), 0, 0, 0),
    ]  # fmt: skip
    assert [p.is_open for p in told[1].points] == [True, True, False]
    assert all(0 <= s.at_ms - s.from_ms <= 30_000 for s in told[1:])


def told_and_audited(
    settings: DispatchConfig, events: Sequence[Event], until: float
) -> tuple[Night, Audited]:
    """Bring events one by one to the app with the airport; return what was said, and what the audit finds."""
    night, app = Night(settings), Whole(settings)
    night.switch(venue(1), START)
    night.say(app.chain.switch(venue(1)), START)
    for event in sorted(events, key=lambda e: e.event_time_ms):
        at = event.event_time_ms
        night.bring([(stream_of(event), event)], at)
        night.say(app.run([event], (at - START) / 1_000), at)
    night.say(app.run([], until), ms(until))
    return night, night.audited()


def test_the_audit_knows_who_has_come_back_while_an_offer_was_open() -> None:
    """d1 is away from 65 s, asked at 121 s, back at 123 s, and asked again when the rider has withdrawn."""
    seen = [position("d1", at) for at in range(1, 62, 10)]
    seen += [position("d1", at, -0.5) for at in range(65, 116, 10)]
    seen += [position("d1", 123), *[position("d2", at) for at in range(5, 130, 20)]]
    more = [request("r1", 112, 1.0), cancel("r1", 127), request("r2", 128, 1.0)]
    night, audited = told_and_audited(config(), [*seen, *more], 140)
    assert [o["driver_id"] for o in night.rows["offers"]] == ["d1", "d1"]
    assert audited.by_reason() == {}


def test_the_audit_knows_no_ticket_of_a_venue_that_was_removed_meanwhile() -> None:
    """d1 earns one, the airport goes and comes back, and d1 is in its pen after d2."""
    over, rule = 72 + 240, ShortTrip(20, minutes=5)
    of = config(reconcile_ms=0)
    night, app = Night(of), Whole(of)
    for said in (venue(1, short_trip=rule), gone(over + 20), venue(over + 60, short_trip=rule)):
        night.switch(said, START)
        night.say(app.chain.switch(said), START)
    rides = [request("r1", 61, 1.0), *trip("d1", 72, 4, 2.0), request("r2", over + 76, 1.0)]
    seen = [*stands("d1", 1, 61), *stands("d2", 5, over + 80), *stands("d1", over + 10, over + 50, 0.6)]
    back = [position("d1", over + 74), *stands("d3", 6, 61)]
    for event in sorted([*rides, *seen, *back], key=lambda e: e.event_time_ms):
        at = event.event_time_ms
        night.bring([(stream_of(event), event)], at)
        night.say(app.run([event], (at - START) / 1_000), at)
    night.say(app.run([], over + 90), ms(over + 90))
    assert night.rows["offers"][-1]["driver_id"] == "d2"
    assert night.audited().by_reason() == {}


def test_who_lets_an_offer_go_in_the_moment_of_the_next_is_taken_from_no_line() -> None:
    """d1 is asked for r1 at 15 s, leaves the pen, says nothing, and is asked from elsewhere at 30 s."""
    seen = [position("d1", at) for at in (1, 10)] + [position("d1", at, -0.5) for at in (20, 28)]
    asks = [request("r1", 11, 1.0), request("r2", 26, -0.5)]
    night, audited = told_and_audited(config(window_ms=5_000), [*seen, *asks], 34)
    offers = [(o["request_id"], o["event_time_ms"]) for o in night.rows["offers"]]
    assert offers == [("r1", ms(15)), ("r2", ms(30))]
    assert audited.by_reason() == {}


def test_a_region_that_was_empty_does_not_tell_a_venue_anew() -> None:
    region = dispatcher(config(ttl_ms=30_000, remember_ms=1_000))
    region.broadcast(venue())
    bring(region, *stands("d1", 1, 100), until=300)
    assert region.timers(REGION) == {}
    bring(region, *stands("d1", 301, 400), until=410)
    assert [s.from_ms for s in region.values("shapes")] == [0]


def test_a_venue_is_told_by_the_region_that_has_its_line_and_no_other() -> None:
    regions = Regions(lat_cuts=((LAT - 2 * KM,),))
    for km in (0.0, -4.0):
        region = dispatcher(config(regions=regions, borrow=False))
        name = regions.of_place(LAT + km * KM, LON)
        region.broadcast(venue())
        for event in stands("d1", 1, 81, km):
            region.advance_watermark(event.event_time_ms - 1)
            region.send(name, event, at=event.event_time_ms)
        region.advance_watermark(ms(90))
        assert [s.region for s in region.values("shapes")] == ([name] if km == 0.0 else [])


# -- the audit from the topics -------------------------------------------------------------------------


def evidence(
    offered_to: str, *, rule: ShortTrip | None = SHORT, minutes: float = 4.0, back: float = 60.0, **offer: Any
) -> Evidence:
    """d1 has had a trip from the line and is back; d2 waits all the time; r2 is offered to one of the two."""
    found = Evidence(config(reconcile_ms=0), margin_ms=-1)
    found.switch(venue(1, short_trip=rule), ms(0))
    over, now = 72 + minutes * 60, 72 + minutes * 60 + back + 60
    events = [
        *stands("d1", 2, 61), *stands("d2", 5, now), request("r1", 61, 1.0), *trip("d1", 72, minutes, 2.0),
        *stands("d1", over + 10, over + back - 10, 0.6), *stands("d1", over + back, now),
        request("r2", now - 10, 1.0),
    ]  # fmt: skip
    for event in sorted(events, key=lambda e: e.event_time_ms):
        found.take(stream_of(event), event, event.event_time_ms)
    steps = [
        ("r1", "", "processing", "", 61), ("r1", "processing", "offered", "d1", 70),
        ("r1", "offered", "accepted", "d1", 72), ("r1", "accepted", "in_progress", "d1", 182),
        ("r1", "in_progress", "completed", "d1", over),
        ("r2", "", "processing", "", now - 10), ("r2", "processing", "offered", offered_to, now),
    ]  # fmt: skip
    revisions: dict[str, int] = {}
    for name, before, state, driver, at in steps:
        n = revisions[name] = revisions.get(name, -1) + 1
        begun = ms(61) if name == "r1" else ms(now - 10)
        about = (f"rider-{name}", "all", ZONE, "standard", before, state, "why", driver, int(bool(driver)))
        found.hear("trips", Trip(name, n, *about, begun, begun, ms(at), 0))
    for name, driver, at in (("r1", "d1", 70), ("r2", offered_to, now)):
        place = {"pickup_lat": POINTS[0].lat, "pickup_lon": LON, "distance_m": 1_000.0} | (
            offer if name == "r2" else {}
        )
        found.hear("offers", Offer(f"{name}-o1", name, driver, 1, ms(at) + 15_000, ms(at), "all", **place))
    return found


@pytest.mark.parametrize(
    ("driver", "how", "reason"),
    [
        ("d1", {}, ""),
        ("d2", {}, "out_of_turn"),
        ("d1", {"back": 200.0}, "out_of_turn"),
        ("d2", {"back": 200.0}, ""),
        ("d1", {"minutes": 6.0}, "out_of_turn"),
        ("d2", {"minutes": 6.0}, ""),
        ("d1", {"rule": None}, "out_of_turn"),
        ("d2", {"rule": None}, ""),
        ("d1", {"rule": ShortTrip(3, km=0.9)}, "out_of_turn"),
        ("d2", {"rule": ShortTrip(3, km=1.1)}, "out_of_turn"),
    ],
)
def test_the_audit_finds_a_ticket_that_was_not_honoured_and_a_turn_that_was_not_earned(
    driver: str, how: dict[str, Any], reason: str
) -> None:
    rows = audit_topics(evidence(driver, **how), settle_ms=60_000).rows
    ours = [row for row in rows if row.reason in ("out_of_turn", "taken_from_line", "pick_up")]
    assert [row.reason for row in ours] == ([reason] if reason else [])
    if driver == "d2" and reason:
        assert "came back from a short trip" in ours[0].detail


@pytest.mark.parametrize(
    ("told", "reason"), [({"pickup_point": "A"}, ""), ({"pickup_point": "B"}, "pick_up"), ({}, "")]
)
def test_the_audit_holds_the_name_of_the_point_against_its_place(told: dict[str, str], reason: str) -> None:
    rows = audit_topics(evidence("d1", **told), settle_ms=60_000).rows
    assert [row.reason for row in rows if row.reason == "pick_up"] == ([reason] if reason else [])


@pytest.mark.parametrize(
    ("begin", "driver", "violations"), [(None, "d1", 1), (0, "d1", 0), (0, "d3", 1), (-10_000, "d1", 1)]
)
def test_who_may_have_waited_before_anything_was_read_may_be_first(
    begin: int | None, driver: str, violations: int
) -> None:
    """d2 is heard of before d1, both at the begin; d3 comes five minutes later."""
    found = Evidence(
        config(reconcile_ms=0), margin_ms=-1, **({} if begin is None else {"begin_ms": ms(begin)})
    )
    found.switch(venue(1), ms(0))
    now = 460
    events = [*stands("d2", 5, now), *stands("d1", 6, now), *stands("d3", 310, now), request("r2", 450, 1.0)]
    for event in sorted(events, key=lambda e: e.event_time_ms):
        found.take(stream_of(event), event, event.event_time_ms)
    for n, (before, state, who) in enumerate((("", "processing", ""), ("processing", "offered", driver))):
        about = ("rider-r2", "all", ZONE, "standard", before, state, "why", who, n, ms(450), ms(450))
        found.hear("trips", Trip("r2", n, *about, ms(450 + n * 10), 0))
    place = {"pickup_lat": POINTS[0].lat, "pickup_lon": LON, "distance_m": 1_000.0}
    found.hear("offers", Offer("r2-o1", "r2", driver, 1, ms(now) + 15_000, ms(now), "all", **place))
    rows = audit_topics(found, settle_ms=60_000).rows
    assert sum(row.reason == "out_of_turn" for row in rows) == violations


def test_a_venue_of_two_regions_is_one_or_none_for_the_audit() -> None:
    """It was published when regions were others, or refused: the point and the rider's place are right."""
    regions = Regions(parent=7)
    cell, _ = at_border(regions)
    lat, lon = h3.cell_to_latlng(cell)
    door = PickUpPoint("A", lat + 0.1 * KM, lon)
    for of, places in ((Regions(), 1), (regions, 2)):
        found = Evidence(config(regions=of), margin_ms=-1)
        found.switch(venue(1, zone=[cell], points=[door]), ms(0))
        found.take("locations", position("d1", 5), ms(5))
        found.close()
        ride = request("r1", 50, pickup_lat=lat, pickup_lon=lon)
        meets = VenuesSaid(found).meeting_places(ride)
        assert len(meets) == places
        assert meets[door.lat, door.lon] == {"A"}


class Evening(Night):
    """Every second rider names a door, and some of them one that there is not."""

    def bring(self, brought: Iterable[tuple[str, Event]], came: int) -> None:
        brought = list(brought)
        for _, event in brought:
            if isinstance(event, RideRequest):
                number = sum(event.request_id.encode())
                event.pickup_point = ("", "door 1", "", "door 2", "", "door 3", "", "the moon")[number % 8]
        super().bring(brought, came)


def at_airport(seed: int, *, faults: Faults | None = None, regions: Regions | None = None) -> Evening:
    """An evening of 80 minutes at the airport, whose short trips are those of at most 20 minutes."""
    kept: list[Evening] = []

    def keep(of: DispatchConfig) -> Evening:
        kept.append(Evening(of))
        kept[-1].said["tickets"] = []
        return kept[-1]

    def between(step: int, chain: Any) -> Any:
        if step == 60:
            rule = ShortTrip(back_minutes=20, minutes=20)
            said = msgspec.structs.replace(airport_of(2), from_ms=0, short_trip=rule)
            kept[0].switch(said, START + 61 * STEP_MS)
            chain.switch(said)
        return chain

    more = {"airport": 0.3, "drivers": 240, "requests_per_hour": 80.0}
    of = DispatchConfig(places_ms=30_000, regions=regions or Regions())
    agents_evening(seed, steps=1_000, faults=faults, config=of, topics=keep, between=between, world=more)
    return kept[0]


def test_tickets_and_points_hold_by_the_topics_in_an_evening_at_the_airport() -> None:
    night = at_airport(3)
    assert finished(night)[1] >= 6
    assert len(night.said["tickets"]) >= 3
    assert any(row.get("ticket") for row in night.said["lines"])
    assert {row.get("why", "") for row in night.said["pickups"]} == {"", "unknown"}
    assert night.audited().by_reason() == {}


@pytest.mark.matrix
@pytest.mark.parametrize("seed", range(30, 38))
def test_tickets_hold_by_the_topics_whatever_goes_wrong_on_the_way(seed: int) -> None:
    faults = Faults(duplicates=0.1, late=0.05 * (seed % 2), restarts=5, seed=seed)
    night = at_airport(seed, faults=faults, regions=Regions(parent=7) if seed % 4 == 0 else None)
    assert finished(night)[1] >= 1
    assert night.audited().by_reason() == {}
