"""Riders and drivers as agents: what they answer, the reference dispatcher, and apps that make no sense."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import h3
import msgspec
import pytest

from millrace_apps.generators.engine import substream
from millrace_apps.generators.engine.simulated import Simulated
from millrace_apps.generators.ridesharing import DOMAIN, NearestDispatcher, RidesProfile, World
from millrace_apps.generators.ridesharing.city import degrees, distance_m
from millrace_apps.generators.ridesharing.dispatch import STALE_MS
from millrace_apps.generators.ridesharing.messages import Assignment, Message, Offer, Quote
from millrace_apps.generators.ridesharing.riders import takes_below
from millrace_apps.generators.ridesharing.rides import QUOTE_PATIENCE_MS
from millrace_apps.ridesharing.contracts.events import Answer, Position, QuoteRequest, RideRequest
from millrace_apps.ridesharing.contracts.records import Release

#: Friday, 2026-01-02 17:00 local time.
FRIDAY_MS = 1_767_369_600_000
HOUR_MS = 3_600_000


def of(events: list[Simulated], stream: str) -> list[Any]:
    return [event.event for event in events if event.stream == stream]


# Agents and whatever app.


def first_request(world: World) -> tuple[RideRequest, list[str]]:
    """Advance until somebody asks; return the request and the drivers on line, nearest first."""
    drivers: dict[str, float] = {}
    where: dict[str, tuple[float, float]] = {}
    while True:
        for event in world.advance(world.now_ms + 1_000):
            if event.stream in ("status", "locations"):
                where[event.key] = (event.event.lat, event.event.lon)
            elif event.stream == "requests" and event.event.pickup_at_ms == event.event.event_time_ms:
                request = event.event
                spot = (request.pickup_lat, request.pickup_lon)
                drivers = {name: h3.great_circle_distance(spot, at) for name, at in where.items()}
                return request, sorted(drivers, key=lambda name: drivers[name])


CALM = RidesProfile(
    seed=4,
    start_ms=FRIDAY_MS,
    drivers=400,
    location_interval_ms=60_000,
    no_shows=0,
    offline_in_trip=0,
    lost_heartbeats=0,
    vanishing=0,
    late_accepts=0,
    cancel_races=0,
    no_approach=0,
    breakdowns=0,
)


def offer(request: RideRequest, driver: str, now: int, attempt: int = 1) -> Offer:
    return Offer(f"{request.request_id}-{attempt}", request.request_id, driver, attempt, now + 15_000, now)


def accepted(world: World) -> tuple[RideRequest, str, list[str]]:
    """Offer the first request to one driver after the other until one accepts."""
    request, drivers = first_request(world)
    for attempt, driver in enumerate(drivers, start=1):
        world.receive(offer(request, driver, world.now_ms, attempt))
        answers = of(world.advance(world.now_ms + 13_000), "answers")
        if answers and answers[0].answer == "accept":
            return request, driver, drivers
        world.receive(Release(request.request_id, driver, "expired", world.now_ms))
    raise AssertionError("nobody accepts")


def test_agents_do_the_same_given_the_same_messages_in_any_order_of_receipt() -> None:
    def play(reverse: bool) -> list[bytes]:
        world = World(CALM)
        seen = world.advance(FRIDAY_MS + 120_000)
        drivers = [e.event.driver_id for e in seen if e.stream == "status"]
        messages: list[Message] = [
            offer(request, driver, world.now_ms + 100)
            for request, driver in zip(of(seen, "requests"), drivers, strict=False)
        ]
        assert len(messages) >= 3
        # For one request, all at once: given to two drivers, and taken back from a third.
        contested, at = of(seen, "requests")[-1].request_id, world.now_ms + 50
        messages += [Assignment(contested, driver, 1, at) for driver in drivers[-3:]]
        messages.append(Release(contested, drivers[-2], "replaced", at))
        for message in reversed(messages) if reverse else messages:
            world.receive(message)
        return [msgspec.json.encode(e) for e in world.advance(world.now_ms + 60_000)]

    assert play(reverse=False) == play(reverse=True)


def test_the_cut_of_advances_does_not_matter() -> None:
    end = FRIDAY_MS + 90_000
    whole = World(CALM).advance(end)
    world, pieces = World(CALM), []
    for step in (1, 7, 999, 1_000, 12_345, 40_000, 90_000):
        pieces += world.advance(FRIDAY_MS + step)
    assert pieces == whole


def test_an_assignment_brings_the_driver_to_the_pickup_and_the_rider_home() -> None:
    world = World(CALM)
    request, driver, _ = accepted(world)
    world.receive(Assignment(request.request_id, driver, 1, world.now_ms))
    progress = of(world.advance(world.now_ms + 3 * HOUR_MS), "progress")
    assert [event.stage for event in progress] == ["arrived", "started", "finished"]
    assert {(event.request_id, event.driver_id) for event in progress} == {(request.request_id, driver)}
    assert (progress[-1].lat, progress[-1].lon) == (request.dropoff_lat, request.dropoff_lon)


def test_a_repeated_offer_or_assignment_changes_nothing() -> None:
    request, drivers = first_request(world := World(CALM))
    made = offer(request, drivers[0], world.now_ms)
    for _ in range(3):
        world.receive(made)
    assert len(of(world.advance(world.now_ms + 13_000), "answers")) <= 1
    world = World(CALM)
    request, driver, _ = accepted(world)
    for _ in range(2):
        world.receive(Assignment(request.request_id, driver, 1, world.now_ms))
    world.advance(world.now_ms + 1)
    assert world.conflicts == 0


def test_an_assignment_that_was_taken_back_already_changes_nothing() -> None:
    """Topics have no common order.

    app:   assignment(t) → release(t + 1)
    agent: release(t + 1), assignment(t), and the driver stays where they are
    """
    world = World(CALM)
    request, driver, _ = accepted(world)
    world.receive(Release(request.request_id, driver, "replaced", world.now_ms + 1))
    world.advance(world.now_ms + 10)
    world.receive(Assignment(request.request_id, driver, 1, world.now_ms - 10))
    world.receive(offer(request, driver, world.now_ms - 10, attempt=70))
    after = world.advance(world.now_ms + 600_000)
    assert of(after, "progress") == of(after, "answers") == []
    assert {e.state for e in of(after, "locations") if e.driver_id == driver} == {"idle"}


def test_a_refused_offer_that_is_sent_again_is_not_answered_again() -> None:
    world = World(CALM)
    request, drivers = first_request(world)
    for attempt, driver in enumerate(drivers, start=1):
        made = offer(request, driver, world.now_ms, attempt)
        world.receive(made)
        answers = of(world.advance(world.now_ms + 13_000), "answers")
        if answers and answers[0].answer == "reject":
            break
        world.receive(Release(request.request_id, driver, "expired", world.now_ms))
    else:
        raise AssertionError("nobody refuses")
    world.receive(msgspec.structs.replace(made, event_time_ms=world.now_ms))
    assert of(world.advance(world.now_ms + 20_000), "answers") == []


def test_a_second_assignment_of_a_request_or_driver_is_a_conflict() -> None:
    world = World(CALM)
    request, driver, drivers = accepted(world)
    other = next(name for name in reversed(drivers) if name != driver)
    world.receive(Assignment(request.request_id, driver, 1, world.now_ms))
    world.receive(Assignment(request.request_id, other, 2, world.now_ms + 1))
    world.advance(world.now_ms + 2)
    assert world.conflicts == 1


def test_a_busy_driver_refuses_at_once() -> None:
    world = World(CALM)
    request, driver, _ = accepted(world)
    world.receive(Assignment(request.request_id, driver, 1, world.now_ms))
    world.receive(offer(request, driver, world.now_ms + 10, attempt=99))
    (answer,) = of(world.advance(world.now_ms + 11), "answers")
    assert (answer.answer, answer.reason) == ("reject", "busy")


@pytest.mark.parametrize("reason", ["expired", "rider_cancelled", "replaced", "no_driver", "cancelled"])
def test_a_release_frees_the_driver_for_the_next_offer(reason: Any) -> None:
    world = World(CALM)
    request, driver, _ = accepted(world)
    world.receive(Assignment(request.request_id, driver, 1, world.now_ms))
    world.receive(Release(request.request_id, driver, reason, world.now_ms + 5_000))
    states = [e for e in of(world.advance(world.now_ms + 200_000), "locations") if e.driver_id == driver]
    assert states[-1].state == "idle"
    assert (world.fates.total() > 0) == (reason in ("rider_cancelled", "no_driver", "cancelled"))


def test_a_release_does_not_end_a_trip_that_has_begun() -> None:
    world = World(CALM)
    request, driver, _ = accepted(world)
    world.receive(Assignment(request.request_id, driver, 1, world.now_ms))
    while not any(e.stage == "started" for e in of(world.advance(world.now_ms + 1_000), "progress")):
        pass
    world.receive(Release(request.request_id, driver, "cancelled", world.now_ms))
    assert [e.stage for e in of(world.advance(world.now_ms + 2 * HOUR_MS), "progress")] == ["finished"]


def test_a_driver_whose_accept_nobody_confirms_is_idle_again_after_a_minute() -> None:
    world = World(CALM)
    request, driver, _ = accepted(world)
    world.advance(world.now_ms + 61_000)
    world.receive(offer(request, driver, world.now_ms, attempt=50))
    answers = of(world.advance(world.now_ms + 13_000), "answers")
    assert [answer.reason for answer in answers] != ["busy"]


def test_a_rider_whom_nobody_serves_gives_up_and_leaves_nothing_behind() -> None:
    world = World(replace(CALM, requests_per_hour=60, prebooked=0))
    events = world.advance(FRIDAY_MS + 2 * HOUR_MS)
    assert {event.reason for event in of(events, "cancellations")} <= {"no_driver", "changed_mind"}
    assert world.open_rides < 30
    assert world.fates["no_driver"] > 100


def test_messages_about_nobody_are_ignored() -> None:
    world = World(CALM)
    world.receive(Offer("o", "r", "driver-999999", 1, 5, 5))
    world.receive(Assignment("r", "driver-000000", 1, 5))
    world.receive(Release("r", "", "no_driver", 5))
    world.advance(FRIDAY_MS + 1_000)
    assert (world.conflicts, world.open_rides) == (0, 0)
    assert world.ignored == 2


def chaos(world: World, until_ms: int, seed: int) -> list[Simulated]:
    """Let an app without sense offer, assign and release whatever it has heard of, late and early."""
    draw = substream(seed, "chaos").random
    seen: list[Simulated] = []
    drivers: list[str] = []
    requests: list[str] = []

    def one_of(names: list[str]) -> str:
        # Mostly one of the newest, so that something comes of it.
        return names[-1 - int(min(len(names), 40) * draw() ** 2)]

    while world.now_ms < until_ms:
        for event in world.advance(world.now_ms + 1_000):
            seen.append(event)
            if event.stream == "status":
                drivers.append(event.key)
            elif event.stream == "requests":
                requests.append(event.key)
        for _ in range(1 if requests and drivers else 0):
            request, driver, at = (
                one_of(requests),
                one_of(drivers),
                world.now_ms + int(6_000 * draw()) - 2_000,
            )
            kind, attempt = draw(), 1 + int(3 * draw())
            if kind < 0.5:
                world.receive(
                    Offer(f"{request}-{driver}-{attempt}", request, driver, attempt, at + 15_000, at)
                )
            elif kind < 0.9:
                world.receive(Assignment(request, driver, attempt, at))
            else:
                reasons: tuple[Any, ...] = ("expired", "replaced", "cancelled", "no_driver", "no_show")
                world.receive(Release(request, driver, reasons[int(5 * draw())], at))
    return seen


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_app_can_make_the_agents_do_what_is_impossible(seed: int) -> None:
    profile = replace(
        CALM, seed=seed, requests_per_hour=600, no_shows=0.1, breakdowns=0.2, offline_in_trip=0.2
    )
    world = World(profile)
    events = chaos(world, FRIDAY_MS + HOUR_MS, seed)
    times = [event.event_time_ms for event in events]
    assert times == sorted(times)
    ids = [(e.stream, getattr(e.event, DOMAIN.streams[e.stream].id_field)) for e in events]
    assert len(set(ids)) == len(ids)
    stage: dict[str, tuple[str, str]] = {}
    aboard: dict[str, str] = {}
    over: set[str] = set()
    for event in events:
        if event.stream == "progress":
            step = event.event
            before, driver = stage.get(step.request_id, ("", step.driver_id))
            assert step.request_id not in over
            if step.stage == "started":
                assert before == "arrived"
                assert step.driver_id not in aboard
                aboard[step.driver_id] = step.request_id
            elif step.stage == "finished":
                assert (before, driver) == ("started", step.driver_id)
                del aboard[step.driver_id]
                over.add(step.request_id)
            stage[step.request_id] = (step.stage, step.driver_id)
        elif event.stream == "cancellations" and event.event.by == "rider":
            assert event.event.request_id not in over
            assert stage.get(event.event.request_id, ("",))[0] != "started"
            over.add(event.event.request_id)
    assert sum(step == "finished" for step, _ in stage.values()) >= 5
    assert world.conflicts > 0


# The reference dispatcher.


def location(driver: str, x: float, y: float, at_ms: int = 0) -> Position:
    lat, lon = degrees(x, y)
    return Position(
        event_time_ms=at_ms,
        event_id=f"{driver}-{at_ms}",
        driver_id=driver,
        vehicle_class="standard",
        lat=lat,
        lon=lon,
        state="idle",
    )


def ride_request(x: float, y: float, at_ms: int = 0) -> RideRequest:
    (lat, lon), (to_lat, to_lon) = degrees(x, y), degrees(x, y + 900)
    return RideRequest(
        event_time_ms=at_ms,
        request_id="r-1",
        rider_id="rider",
        vehicle_class="standard",
        zone="z",
        pickup_lat=lat,
        pickup_lon=lon,
        dropoff_lat=to_lat,
        dropoff_lon=to_lon,
        pickup_at_ms=at_ms,
    )


def test_the_nearest_driver_is_found_even_one_ring_farther_out() -> None:
    # r at the western edge of its 1 km cell: the car of the same cell is farther than that of the next one.
    dispatcher = NearestDispatcher()
    dispatcher.observe(location("same-cell", 950, 500))
    dispatcher.observe(location("next-cell", -60, 500))
    dispatcher.observe(ride_request(10, 500))
    (made,) = dispatcher.decide(1_000)
    assert isinstance(made, Offer)
    assert made.driver_id == "next-cell"


def test_the_search_agrees_with_looking_at_everybody() -> None:
    draw = substream(9, "test").random
    for _ in range(40):
        dispatcher = NearestDispatcher()
        cars = {f"d{n:03d}": (8_000 * draw() - 4_000, 8_000 * draw() - 4_000) for n in range(30)}
        for name, spot in cars.items():
            dispatcher.observe(location(name, *spot))
        x, y = 8_000 * draw() - 4_000, 8_000 * draw() - 4_000
        dispatcher.observe(ride_request(x, y))
        (made,) = dispatcher.decide(1_000)
        assert made.driver_id == min(cars, key=lambda name: distance_m(x, y, *cars[name]))


def test_a_driver_without_recent_position_or_of_another_class_gets_no_offer() -> None:
    dispatcher = NearestDispatcher()
    dispatcher.observe(location("old", 0, 0))
    dispatcher.observe(msgspec.structs.replace(location("xl", 0, 0, STALE_MS), vehicle_class="xl"))
    dispatcher.observe(ride_request(0, 0, STALE_MS))
    assert dispatcher.decide(STALE_MS + 1) == []


def test_an_accept_of_an_expired_offer_is_compensated() -> None:
    dispatcher = NearestDispatcher()
    dispatcher.observe(location("d", 0, 0))
    dispatcher.observe(ride_request(0, 0))
    (made,) = dispatcher.decide(1_000)
    assert isinstance(made, Offer)
    (expired,) = dispatcher.decide(made.expires_ms)
    dispatcher.observe(
        Answer(
            event_time_ms=made.expires_ms + 300,
            event_id="a",
            request_id="r-1",
            driver_id="d",
            zone="z",
            offer_id=made.offer_id,
            attempt=1,
            answer="accept",
        )
    )
    (compensation,) = dispatcher.decide(made.expires_ms + 1_000)
    assert expired == Release("r-1", "d", "expired", made.expires_ms)
    assert compensation == Release("r-1", "d", "expired", made.expires_ms + 300)


# Quotes.


def asking(**other: Any) -> tuple[World, list[QuoteRequest]]:
    """A world of riders who all ask for a quote first, and what was asked in its first ten minutes."""
    world = World(replace(CALM, quoted=1.0, requests_per_hour=600.0, **other))
    return world, of(world.advance(world.now_ms + 600_000), "quote_requests")


def quotes_of(asked: list[QuoteRequest], multiplier: float, now: int, valid_ms: int = 300_000) -> list[Quote]:
    return [Quote(one.quote_id, multiplier, now + valid_ms, now) for one in asked]


def taken(world: World, until_ms: int) -> dict[str, RideRequest]:
    return {r.quote_id: r for r in of(world.advance(until_ms), "requests") if r.quote_id}


def test_who_hears_no_quote_requests_without_one_after_a_while() -> None:
    world, asked = asking()
    first = world.now_ms
    found = of(world.advance(first + QUOTE_PATIENCE_MS), "requests")
    assert {r.request_id.replace("-r", "-q") for r in found} >= {one.quote_id for one in asked[-20:]}
    assert {r.quote_id for r in found} == {""}


@pytest.mark.parametrize("elasticity", [-0.25, -0.5, -1.0, 0.0])
def test_of_those_who_are_told_a_multiplier_the_share_of_the_elasticity_requests(elasticity: float) -> None:
    world, asked = asking(elasticity=elasticity, stale_quotes=0.0)
    asked = [one for one in asked if one.event_time_ms > world.now_ms - QUOTE_PATIENCE_MS]
    again = quotes_of(asked, 9.0, world.now_ms)
    for quote in (*quotes_of(asked, 2.0, world.now_ms), *again):  # who has heard one hears no other
        world.receive(quote)
    now = world.now_ms
    found = taken(world, now + 60_000)
    share = len(found) / len(asked)
    assert share == pytest.approx(2.0**elasticity, abs=0.2)
    assert set(found) <= {one.quote_id for one in asked}
    assert all(now + 2_000 <= r.event_time_ms <= now + 20_000 for r in found.values())
    assert world.fates["left"] == len(asked) - len(found)


def test_who_dawdles_requests_when_the_quote_is_over() -> None:
    world, asked = asking(stale_quotes=1.0)
    asked = [one for one in asked if one.event_time_ms > world.now_ms - QUOTE_PATIENCE_MS]
    now = world.now_ms
    for quote in quotes_of(asked, 1.0, now, valid_ms=60_000):
        world.receive(quote)
    assert taken(world, now + 60_001) == {}
    found = taken(world, now + 120_000)
    assert set(found) == {one.quote_id for one in asked}
    assert all(r.event_time_ms > now + 60_000 for r in found.values())


def test_the_share_that_takes_a_multiplier_is_that_of_the_elasticity() -> None:
    drawn = [n / 10_000 for n in range(10_000)]
    for elasticity in (-0.25, -0.5, -1.0):
        for multiplier in (1.0, 1.5, 3.0):
            share = sum(multiplier < takes_below(u, elasticity) for u in drawn) / len(drawn)
            assert share == pytest.approx(multiplier**elasticity, abs=1e-3)
