"""What phones say is held against the book, and what drivers report against where they are."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.testing import TestDriver
from millrace.testing.properties import invariant, leaks
from millrace_apps.ridesharing.contracts.events import Event
from millrace_apps.ridesharing.contracts.records import MismatchReason
from millrace_apps.ridesharing.processes.dispatcher import Dispatcher
from millrace_apps.ridesharing.state.book import Book
from millrace_apps.ridesharing.state.earlier import EarlierBook, adopt
from millrace_apps.ridesharing.state.entries import Ride
from tests.cases import case_count
from tests.unit.apps.ridesharing.cases import (
    CONFIG,
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
