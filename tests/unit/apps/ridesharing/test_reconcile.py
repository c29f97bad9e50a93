"""What phones say is held against the book, and what drivers report against where they are."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.testing import TestDriver
from millrace.testing.properties import invariant, leaks
from millrace_apps.ridesharing.contracts.events import Event
from millrace_apps.ridesharing.contracts.records import MismatchReason, Trip
from millrace_apps.ridesharing.processes.dispatcher import Dispatcher
from millrace_apps.ridesharing.processes.regions import Regions
from millrace_apps.ridesharing.state.book import Book
from millrace_apps.ridesharing.state.earlier import EarlierBook, adopt
from millrace_apps.ridesharing.state.entries import Ride
from tests.cases import case_count
from tests.unit.apps.ridesharing.cases import (
    CONFIG,
    LAT,
    LON,
    REGION,
    ZONE,
    Whole,
    answer,
    bring,
    cancel,
    command,
    dispatcher,
    ms,
    position,
    progress,
    request,
    states,
    status,
)

CASES = case_count(25)
#: A ride of 2 km that is under way from second 70 on.
UNDER_WAY: tuple[Event, ...] = (
    position("d1", 0),
    request("r1", 2),
    answer("r1", "d1", 12),
    progress("r1", "d1", 60, "arrived"),
    progress("r1", "d1", 70, "started"),
)


#: What a region says of rides and drivers.
SAID = ("trips", "attempts", "offers", "releases", "assignments", "mismatches", "drivers", "ignored")


def mismatches(driver: TestDriver) -> list[tuple[str, str, str, str]]:
    return [(m.said, m.state, m.reason, m.action) for m in driver.values("mismatches")]


def beats(state: str, first: int, last: int, km: float = 2.0, step: int = 10) -> list[Event]:
    return [position("d1", s, km, state=state) for s in range(first, last, step)]


def test_a_lost_finished_ends_the_trip_within_minutes_and_the_driver_is_dispatched_again() -> None:
    """R1, from the topics to the tables.

    ::

        phone   |…|on trip--------|idle---------|idle
        book    |…|in progress--------|completed|offered
                  70              300 390       400
    """
    whole = Whole()
    events = [*UNDER_WAY, *beats("on_trip", 80, 300, 1.5), *beats("idle", 300, 420), request("r2", 395, 2.0)]
    for event in sorted(events, key=lambda e: e.event_time_ms):
        whole.run([event], (event.event_time_ms - ms(0)) / 1_000)
    whole.run([], 425)
    trips = [(t["state"], t["cause"], t["at_ms"]) for t in whole.of("trips") if t["request_id"] == "r1"]
    assert trips[-1] == ("completed", "the phone says the trip is over", ms(390))
    (row,) = whole.of("mismatches")
    assert (row["request_id"], row["driver_id"], row["reason"]) == ("r1", "d1", "finish_lost")
    assert (row["said"], row["state"], row["since_ms"]) == ("idle", "in_progress", ms(300))
    assert [(o["request_id"], o["event_time_ms"]) for o in whole.of("offers")][1:] == [("r2", ms(400))]
    assert whole.of("main") == [], "the auditor has nothing to say"


def test_a_phone_that_says_so_for_a_moment_ends_nothing() -> None:
    driver = dispatcher()
    flickers = [*beats("idle", 100, 180), *beats("on_trip", 180, 200), *beats("idle", 200, 280)]
    bring(driver, *UNDER_WAY, *flickers, until=285)
    assert states(driver, "r1")[-1] == "in_progress"
    assert mismatches(driver) == []


def test_a_lost_started_begins_the_trip_and_no_rider_is_a_no_show() -> None:
    driver = dispatcher()
    bring(driver, *UNDER_WAY[:-1], *beats("on_trip", 80, 500, 1.0), until=500)
    assert states(driver, "r1")[-1] == "in_progress"
    assert mismatches(driver) == [("on_trip", "arrived", "start_lost", "started")]
    assert driver.values("trips")[-1].wait_ms == 78_000


@pytest.mark.parametrize(("believed", "end"), [(True, "in_progress"), (False, "no_show")])
def test_nobody_came_is_not_said_of_a_rider_who_is_aboard_by_the_phones_word(
    believed: bool, end: str
) -> None:
    """Arrived at 60 s, and nobody came by 360 s; what was reported at 300 s is lost.

    ::

        phone   |waiting…|on trip------------------|    or    |on trip------|waiting
                60       300          360          390        300           370
    """
    driver = dispatcher()
    waits, goes = beats("waiting", 70, 300, 0), beats("on_trip", 300, 500 if believed else 370, 0.2)
    more = [] if believed else beats("waiting", 370, 500, 0.2)
    bring(driver, *UNDER_WAY[:-1], *waits, *goes, *more, until=500)
    assert states(driver, "r1")[-1] == end
    assert driver.values("trips")[-1].at_ms == ms(390)
    assert [m.action for m in driver.values("mismatches")] == (["started"] if believed else [])


def test_a_driver_who_has_set_off_with_the_rider_is_not_replaced_for_going_the_wrong_way() -> None:
    """Off since 180 s, both reports are lost; whether the car comes nearer is looked at 132 and 252 s."""
    driver = dispatcher()
    comes = [position("d1", at, -1 + at / 150, state="approaching") for at in range(20, 150, 10)]
    stands = beats("waiting", 150, 180, 0)
    goes = [position("d1", at, (at - 180) / 100, state="on_trip") for at in range(180, 400, 10)]
    events = [position("d1", 0, -1.0), request("r1", 2), answer("r1", "d1", 12)]
    bring(driver, *events, *comes, *stands, *goes, until=400)
    assert states(driver, "r1") == ["processing", "offered", "accepted", "in_progress"]
    assert mismatches(driver) == [("on_trip", "accepted", "start_lost", "started")]


def test_a_phone_that_is_behind_is_told_of_once_and_the_trip_goes_on() -> None:
    driver = dispatcher()
    bring(driver, *UNDER_WAY, *beats("waiting", 80, 400, 0.5), until=400)
    assert states(driver, "r1")[-1] == "in_progress"
    assert mismatches(driver) == [("waiting", "in_progress", "phone_behind", "told")]


def test_who_goes_off_line_after_a_lost_finished_ends_the_trip_at_once() -> None:
    driver = dispatcher()
    bring(driver, *UNDER_WAY, position("d1", 300, 2.0), status("d1", 310, "offline"), until=311)
    assert states(driver, "r1")[-1] == "completed"
    assert [d.change for d in driver.values("drivers")] == ["entered", "offline"]


def test_who_goes_off_line_in_a_trip_still_finishes_it() -> None:
    driver = dispatcher()
    bring(driver, *UNDER_WAY, status("d1", 100, "offline"), until=300)
    assert states(driver, "r1")[-1] == "in_progress"


def test_a_silent_trip_is_lost_after_three_times_its_drive_and_half_an_hour() -> None:
    driver = dispatcher()
    bring(driver, *UNDER_WAY, until=70 + 1_800 + 3 * 400)
    assert states(driver, "r1")[-1] == "in_progress"
    driver.advance_watermark(ms(70 + 1_800 + 3 * 410))
    assert states(driver, "r1")[-1] == "lost"


def test_a_long_trip_that_is_heard_of_goes_on_until_the_last_hour() -> None:
    driver = dispatcher()
    bring(driver, *UNDER_WAY, *beats("on_trip", 80, 9_000, 1.0, step=60), until=9_000)
    assert states(driver, "r1")[-1] == "in_progress"
    driver.advance_watermark(ms(70 + 6 * 3_600))
    assert states(driver, "r1")[-1] == "lost"


def test_an_operator_ends_a_trip_and_leaves_a_trail() -> None:
    driver = dispatcher()
    end = command("end_trip", 200, request_id="r1", zone=ZONE)
    again = command("end_trip", 210, request_id="r1", zone=ZONE)
    early = command("end_trip", 65, request_id="r1", zone=ZONE)
    bring(driver, *UNDER_WAY, early, end, again, *beats("idle", 201, 230), request("r2", 215, 2.0), until=221)
    assert states(driver, "r1")[-1] == "completed"
    assert [(o.action, o.operator, o.outcome, o.detail) for o in driver.values("operations")] == [
        ("end_trip", "ann", "refused", "the request is arrived: cancel it"),
        ("end_trip", "ann", "done", ""),
        ("end_trip", "ann", "refused", "the request is over or unknown"),
    ]
    assert [(r.request_id, r.driver_id, r.reason) for r in driver.values("releases")] == [
        ("r1", "d1", "cancelled")
    ]
    assert driver.values("offers")[-1].request_id == "r2"


@pytest.mark.parametrize("stage", ["arrived", "started"])
def test_a_report_from_far_away_counts_for_nothing(stage: str) -> None:
    driver = dispatcher()
    events = [position("d1", 0, 2.5), request("r1", 2), answer("r1", "d1", 12)]
    bring(driver, *events, progress("r1", "d1", 20, stage, km=2.5), until=21)
    assert states(driver, "r1")[-1] == "accepted"
    assert mismatches(driver) == [(stage, "accepted", "too_far", "refused")]
    (row,) = driver.values("mismatches")
    assert row.distance_m == pytest.approx(2_500, rel=0.01)


def test_a_report_from_the_pick_up_of_a_car_that_was_elsewhere_a_moment_ago_counts_for_nothing() -> None:
    driver = dispatcher()
    events = [position("d1", 0, 2.5), request("r1", 2), answer("r1", "d1", 12)]
    bring(driver, *events, position("d1", 19, 2.4), progress("r1", "d1", 20, "arrived"), until=21)
    assert mismatches(driver) == [("arrived", "accepted", "too_far", "refused")]
    driver = dispatcher()
    bring(driver, *events, progress("r1", "d1", 20, "arrived"), until=21)
    assert mismatches(driver) == [("arrived", "accepted", "too_soon", "refused")]


def no_show(s: float) -> Event:
    return cancel("r1", s, "driver", "d1", "no_show")


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ([no_show(26)], "not_arrived"),
        ([progress("r1", "d1", 60, "arrived"), no_show(100)], "too_soon"),
        ([progress("r1", "d1", 60, "arrived"), position("d1", 170, 1.5), no_show(190)], "too_far"),
        ([progress("r1", "d1", 60, "arrived"), position("d1", 170, 0.1), no_show(190)], ""),
    ],
)
def test_nobody_came_only_where_the_driver_was_there_and_waited(events: list[Event], reason: str) -> None:
    driver = dispatcher()
    bring(driver, position("d1", 0, 0.1), request("r1", 2), answer("r1", "d1", 12), *events, until=200)
    if reason:
        assert mismatches(driver)[-1][2:] == (reason, "searched_again")
        assert "no_show" not in states(driver, "r1")
        assert "processing" in states(driver, "r1")[1:]
    else:
        assert mismatches(driver) == []
        assert states(driver, "r1")[-1] == "no_show"


@pytest.mark.parametrize(
    ("s", "km", "reasons"),
    [(400, 2, []), (400, 3, ["elsewhere"]), (75, 2, ["too_soon"]), (72, 0, ["elsewhere"])],
)
def test_a_trip_ends_where_the_driver_says_and_what_is_odd_is_told(
    s: int, km: float, reasons: list[str]
) -> None:
    driver = dispatcher()
    bring(driver, *UNDER_WAY, progress("r1", "d1", s, "finished", km=km), until=s + 1)
    assert states(driver, "r1")[-1] == "completed"
    assert [m.reason for m in driver.values("mismatches")] == reasons


def test_a_ride_that_begins_before_it_was_booked_for_is_no_sooner_over_for_that() -> None:
    """Booked for 402 s, begun at 70 s: 2 km in 334 s are no 2 km in 2 s; in 5 s they are too fast, too."""
    for over, reasons in ((404, []), (75, ["too_soon"])):
        driver = dispatcher()
        ride = [request("r1", 2, ahead=400), *UNDER_WAY[2:]]
        bring(driver, UNDER_WAY[0], *ride, progress("r1", "d1", over, "finished", km=2), until=over + 1)
        assert states(driver, "r1")[-1] == "completed"
        assert [m.reason for m in driver.values("mismatches")] == reasons


def test_a_trip_that_ends_before_it_began_is_too_soon() -> None:
    """The phone's clock was set back meanwhile: finished 2 km away at 65 s, after started at 70 s."""
    driver = dispatcher()
    bring(driver, *UNDER_WAY, until=80)
    late = progress("r1", "d1", 65, "finished", km=2)
    driver.send(REGION, late, at=late.event_time_ms)
    assert [m.reason for m in driver.values("mismatches")] == ["too_soon"]


def test_a_report_that_comes_late_is_not_held_against_where_the_car_has_gone_since() -> None:
    """Aboard at 70 s is heard of at 100 s, when the car is 500 m farther."""
    driver = dispatcher()
    away = [position("d1", at, (at - 70) / 50, state="on_trip") for at in (75, 85, 95)]
    bring(driver, *UNDER_WAY[:-1], *away, until=100)
    late = UNDER_WAY[-1]
    driver.send(REGION, late, at=late.event_time_ms)
    assert states(driver, "r1")[-1] == "in_progress"
    assert mismatches(driver) == []


def far_and_near(events: Sequence[Event]) -> tuple[list[str], list[str]]:
    """Bring events to the only region, and to one of two whose border is far away; return what both say."""
    found = []
    for regions in (Regions(), Regions(lat_cuts=((80.0,),))):
        alone = msgspec.structs.replace(CONFIG, regions=regions, one_open_everywhere=False, borrow=False)
        driver, name = dispatcher(alone), regions.of_place(LAT, LON)
        for event in events:
            driver.advance_watermark(event.event_time_ms - 1)
            driver.send(name, msgspec.structs.replace(event), at=event.event_time_ms)
        driver.drain()
        rows = [row for output in SAID for row in driver.values(output)]
        found.append([repr(row).replace(f"'{name}'", "here") for row in rows])
    return found[0], found[1]


def test_a_phone_that_is_behind_again_is_told_of_again_in_whatever_regions() -> None:
    words = [*beats("waiting", 80, 200, 0.5), *beats("on_trip", 200, 300, 0.5)]
    one, other = far_and_near([*UNDER_WAY, *words, *beats("waiting", 300, 420, 0.5)])
    assert sum("phone_behind" in row for row in one) == 2
    assert one == other


@pytest.mark.parametrize("seed", range(1_000, 1_000 + CASES // 2))
def test_a_border_that_is_far_away_changes_nothing(seed: int) -> None:
    one, other = far_and_near([event for _, _, event in sorted(evening(seed), key=lambda e: e[1])])
    assert one == other


def twice(first: Event, second: Event) -> tuple[Event, Event]:
    return first, msgspec.structs.replace(second, rider_id=first.rider_id)  # type: ignore[union-attr]


def test_a_rider_who_asks_twice_gets_one_car() -> None:
    """R2: the request that is open stands, the second is refused and the rider is told."""
    whole = Whole()
    cars = [position(f"d{n}", n) for n in range(2)]
    whole.run([*cars, *twice(request("r1", 3), request("r2", 4))], 20)
    assert [o["request_id"] for o in whole.of("offers")] == ["r1"]
    refused = [(t["state"], t["cause"]) for t in whole.of("trips") if t["request_id"] == "r2"]
    assert refused == [("refused", "the rider has request r1")]
    assert [(r["request_id"], r["reason"]) for r in whole.of("releases")] == [("r2", "cancelled")]
    assert whole.of("main") == []


def test_who_has_no_open_request_any_more_may_ask_again() -> None:
    driver = dispatcher()
    first, second = twice(request("r1", 3), request("r2", 21))
    bring(driver, position("d1", 0), first, cancel("r1", 15), second, until=22)
    assert states(driver, "r2") == ["processing"]
    driver.advance_watermark(ms(30))
    assert states(driver, "r2")[-1] == "offered"


def test_a_ride_that_is_booked_waits_for_the_one_before_and_is_refused_where_that_does_not_end() -> None:
    first, booked = twice(request("r1", 3), request("r2", 4, ahead=700))
    driver = dispatcher()
    bring(driver, position("d1", 0), first, booked, answer("r1", "d1", 12), *UNDER_WAY[3:], until=200)
    assert states(driver, "r2") == ["booked"]
    bring(driver, progress("r1", "d1", 400, "finished", km=2), until=420)
    assert states(driver, "r2")[:2] == ["booked", "processing"]
    driver = dispatcher()
    lasting = beats("on_trip", 80, 700, 1.0)
    bring(
        driver, position("d1", 0), first, booked, answer("r1", "d1", 12), *UNDER_WAY[3:], *lasting, until=705
    )
    assert states(driver, "r2") == ["booked", "refused"]


def test_an_operator_cannot_give_a_rider_a_second_car() -> None:
    first, booked = twice(request("r1", 3), request("r2", 4, ahead=3_000))
    by_hand = command("assign", 20, request_id="r2", driver_id="d2", zone=ZONE)
    driver = dispatcher()
    bring(driver, position("d1", 0), position("d2", 1, 1.0), first, booked, by_hand, until=21)
    assert driver.values("operations")[0].detail == "the rider has request r1"


def test_riders_of_a_book_of_before_are_found_by_its_rides() -> None:
    first, second = twice(request("r1", 3), request("r2", 20))
    old = EarlierBook(rides={"r1": Ride("r1", first.rider_id, "standard", ZONE, 0, 0, 0, 0, "processing")})  # type: ignore[union-attr]
    assert old.riders is None
    book = Book()
    adopt(old, book, 1_000)
    assert book.open_request_of(second.rider_id) == "r1"  # type: ignore[union-attr]


def evening(seed: int) -> list[tuple[str, int, Event]]:
    """Trips whose reports get lost and whose phones say what they like, riders who ask twice."""
    draws = random.Random(seed)
    found: list[Event] = []
    for n in range(3):
        words = ["idle", "approaching", "waiting", "on_trip"]
        word = "idle"
        for t in range(0, 900, 10):
            word = draws.choice(words) if draws.random() < 0.05 else word
            found.append(position(f"d{n}", t + n / 10, draws.choice([0, 0.1, 0.5]), state=word))
    for n in range(8):
        at, name = draws.uniform(1, 400), f"r{n}"
        asked = request(name, at, draws.uniform(-0.3, 0.3), ahead=draws.choice([0, 0, 0, 650]))
        found.append(msgspec.structs.replace(asked, rider_id=f"rider-{draws.randrange(4)}"))
        for attempt in range(1, 4):
            found += [answer(name, f"d{d}", at + draws.uniform(5, 45), attempt=attempt) for d in range(3)]
        for stage, after in (("arrived", 60), ("started", 80), ("finished", 300)):
            if draws.random() < (0.3 if stage == "finished" else 0.7):
                km = draws.choice([0, 0, 2])
                found += [progress(name, f"d{d}", at + after + d / 10, stage, km) for d in range(3)]
        if draws.random() < 0.3:
            after = draws.uniform(20, 200)
            found += [cancel(name, at + after, "driver", f"d{d}", "no_show") for d in range(3)]
        if draws.random() < 0.3:
            found.append(command("end_trip", at + draws.uniform(90, 300), request_id=name, zone=ZONE))
    return [(REGION, event.event_time_ms, event) for event in found]


def aboard_since(words: Sequence[tuple[int, str]], after: int, until: int) -> int:
    """Return since when a phone has said, between two times, that the rider is aboard; 0: it does not."""
    since = 0
    for at, word in words:
        if after < at <= until:
            since = (since or at) if word == "on_trip" else 0
    return since


def check_against_the_words(seed: int) -> set[str]:
    """Judge every trip by all that phones have said, after the fact; return the reasons of mismatches."""
    driver = dispatcher()
    events = sorted(evening(seed), key=lambda e: e[1])
    for _, at, event in events:
        driver.advance_watermark(at - 1)
        driver.send(REGION, msgspec.structs.replace(event), at=at)
    driver.drain()
    trips = driver.values("trips")
    words: dict[str, list[tuple[int, str]]] = {}
    for _, at, event in events:
        if hasattr(event, "state"):
            words.setdefault(event.driver_id, []).append((at, event.state))
    before: dict[str, Trip] = {}
    for trip in trips:
        if trip.cause in ("rider did not come", "driver does not approach"):
            last = before[trip.request_id]
            waited = max(last.at_ms, last.pickup_at_ms) + CONFIG.no_show_ms + CONFIG.reconcile_ms
            since = aboard_since(words[last.driver_id], last.at_ms, trip.at_ms)
            is_patient = trip.state == "no_show" and trip.at_ms >= waited
            assert is_patient or not since or trip.at_ms - since >= CONFIG.reconcile_ms, (seed, trip)
        before[trip.request_id] = trip
    open_of: dict[str, str] = {}
    begun: dict[str, tuple[int, str]] = {}
    ends: list[tuple[str, str, int, int, str]] = []
    for trip in trips:
        if trip.state not in ("booked", "refused") and trip.before in ("", "booked"):
            assert trip.rider_id not in open_of, "two open requests of one rider"
            open_of[trip.rider_id] = trip.request_id
        if trip.state == "refused":
            assert open_of[trip.rider_id] != trip.request_id
        elif open_of.get(trip.rider_id) == trip.request_id and trip.state in (
            "completed", "rider_cancelled", "no_show", "operator_cancelled", "no_drivers_available", "lost",
        ):  # fmt: skip
            del open_of[trip.rider_id]
        if trip.state == "in_progress":
            begun[trip.request_id] = (trip.at_ms, trip.driver_id)
        elif trip.request_id in begun:
            start, who = begun.pop(trip.request_id)
            ends.append((trip.request_id, who, start, trip.at_ms, trip.cause))
    assert not open_of
    for name, who, start, end, cause in ends:
        # The first run of idle words that lasts 90 s, found by cutting the words into runs.
        since, due = 0, None
        for at, word in words[who]:
            if start <= at and due is None:
                since = (since or at) if word == "idle" else 0
                due = at if since and at - since >= 90_000 else None
        if cause == "the phone says the trip is over":
            assert end == due, (seed, name)
        elif due is not None:
            assert end <= due, (seed, name, cause)
    return {m.reason for m in driver.values("mismatches")}


@settings(max_examples=CASES, deadline=None)
@given(seed=st.integers(0, 1_000_000))
def test_trips_end_when_the_words_of_the_phone_say_so_and_riders_have_one_request(seed: int) -> None:
    check_against_the_words(seed)


def test_the_evenings_have_mismatches_of_every_kind_that_phones_make() -> None:
    reasons = set.union(*(check_against_the_words(seed) for seed in range(40)))
    assert reasons == set(MismatchReason.__args__)  # type: ignore[attr-defined]


@pytest.mark.parametrize("seed", range(3))
def test_order_cuts_and_restarts_do_not_matter_and_nothing_is_kept(seed: int) -> None:
    invariant(Dispatcher(CONFIG), evening(seed), bound_ms=8_000, runs=3, seed=seed)
    assert leaks(Dispatcher(CONFIG), evening(seed), bound_ms=8_000) == []
