"""Riders, drivers and the city: demand, shifts, answers, trips, truths, and the loop with a dispatcher."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import islice, pairwise
from statistics import mean, median
from typing import Any

import h3
import msgspec
import pytest

from millrace.errors import UserError
from millrace_apps.generators.engine import substream
from millrace_apps.generators.engine.simulated import Simulated, Truth
from millrace_apps.generators.ridesharing import DOMAIN, NearestDispatcher, RidesProfile, World, simulate
from millrace_apps.generators.ridesharing.city import (
    PEN_M,
    TERMINAL_M,
    City,
    degrees,
    demand_factor,
    distance_m,
    hour_of_week,
    metres,
)
from millrace_apps.generators.ridesharing.draws import chance
from millrace_apps.generators.ridesharing.drivers import DAY_MS, acceptance, answer_delay_ms, shift_of
from millrace_apps.generators.ridesharing.emitter import quote_of
from millrace_apps.generators.ridesharing.fleet import GPS_ERROR_M
from millrace_apps.generators.ridesharing.messages import Offer
from millrace_apps.generators.ridesharing.profile import ONLINE_SHARE
from millrace_apps.generators.ridesharing.riders import Demand
from millrace_apps.generators.ridesharing.simulation import live
from millrace_apps.ridesharing.contracts.events import Position

#: Friday, 2026-01-02 17:00 local time.
FRIDAY_MS = 1_767_369_600_000
HOUR_MS = 3_600_000
#: Few positions and many rides, with every oddity often enough to be seen.
BUSY = RidesProfile(
    seed=5,
    start_ms=FRIDAY_MS,
    drivers=1_600,
    location_interval_ms=30_000,
    prebooked=0.05,
    no_shows=0.05,
    offline_in_trip=0.05,
    lost_heartbeats=0.1,
    vanishing=0.2,
    late_accepts=0.05,
    cancel_races=0.05,
    no_approach=0.03,
    breakdowns=0.05,
    quoted=0.5,
    stale_quotes=0.1,
    airport=0.02,
    named_points=0.5,
    hotel_rides=0.5,
)
BUSY_EVENTS = 60_000

Key = tuple[str, str]


def run_world(profile: RidesProfile, events: int) -> tuple[World, NearestDispatcher, list[Simulated]]:
    world, dispatcher = World(profile), NearestDispatcher()
    return world, dispatcher, list(islice(live(world, dispatcher), events))


@pytest.fixture(scope="module")
def busy() -> tuple[World, NearestDispatcher, list[Simulated]]:
    return run_world(BUSY, BUSY_EVENTS)


@pytest.fixture(scope="module")
def events(busy: tuple[World, NearestDispatcher, list[Simulated]]) -> list[Simulated]:
    return busy[2]


@pytest.fixture(scope="module")
def truths(events: list[Simulated]) -> dict[str, list[tuple[Truth, Simulated]]]:
    """Truth id → the truth and its events."""
    found: defaultdict[str, list[tuple[Truth, Simulated]]] = defaultdict(list)
    for event in events:
        for truth in event.truths:
            found[truth.truth_id].append((truth, event))
    return found


def of(events: list[Simulated], stream: str) -> list[Any]:
    return [event.event for event in events if event.stream == stream]


def by_kind(truths: dict[str, list[tuple[Truth, Simulated]]], kind: str) -> list[list[Simulated]]:
    return [[event for _, event in hits] for hits in truths.values() if hits[0][0].kind == kind]


# The domain.


def test_every_event_is_of_its_streams_type_and_survives_json(events: list[Simulated]) -> None:
    assert {event.stream for event in events} == set(DOMAIN.streams)
    for event in events[::7]:
        spec = DOMAIN.streams[event.stream]
        assert type(event.event) is spec.event_type
        assert msgspec.json.decode(msgspec.json.encode(event.event), type=spec.event_type) == event.event
        assert getattr(event.event, spec.time_field) == event.event_time_ms


def test_events_come_in_event_time_and_never_share_an_id(events: list[Simulated]) -> None:
    times = [event.event_time_ms for event in events]
    assert times == sorted(times)
    assert times[0] >= BUSY.start_ms
    ids = {(e.stream, getattr(e.event, DOMAIN.streams[e.stream].id_field)) for e in events}
    assert len(ids) == len(events)


def test_ids_differ_between_seeds_and_starts() -> None:
    def ids(profile: RidesProfile) -> set[str]:
        found = simulate(replace(profile, events=300))
        return {str(getattr(e.event, DOMAIN.streams[e.stream].id_field)) for e in found}

    profile = RidesProfile(seed=1, drivers=100, start_ms=FRIDAY_MS)
    assert not ids(profile) & ids(replace(profile, seed=2))
    assert not ids(profile) & ids(replace(profile, start_ms=FRIDAY_MS + 1))


def test_equal_profiles_give_equal_bytes_and_a_shorter_run_is_a_prefix() -> None:
    def lines(count: int) -> list[bytes]:
        profile = replace(BUSY, drivers=300, events=count)
        return [msgspec.json.encode(event) for event in simulate(profile)]

    whole = lines(6_000)
    assert len(whole) == 6_000
    assert whole == lines(6_000)
    assert whole[:2_500] == lines(2_500)


def test_requests_and_shifts_do_not_depend_on_who_dispatches(events: list[Simulated]) -> None:
    world = World(BUSY)
    alone = world.advance(events[-1].event_time_ms)
    assert of(alone, "quote_requests") == of(events, "quote_requests")[: len(of(alone, "quote_requests"))]
    asked = {event.quote_id for event in of(alone, "quote_requests")}

    def unasked(found: list[Simulated]) -> list[Any]:
        return [r for r in of(found, "requests") if quote_of(r.request_id) not in asked]

    assert unasked(alone) == unasked(events)[: len(unasked(alone))]
    assert not of(alone, "answers")
    first = {event.driver_id: event for event in reversed(of(events, "status")) if event.status == "online"}
    for status in of(alone, "status"):
        if status.status == "online" and first[status.driver_id].event_id == status.event_id:
            assert first[status.driver_id] == status


@pytest.mark.parametrize("share", ["no_shows", "lost_heartbeats", "vanishing", "breakdowns", "cancel_races"])
def test_switching_an_oddity_off_leaves_requests_and_other_drivers_alone(share: str) -> None:
    profile = replace(BUSY, drivers=200)
    off: dict[str, Any] = {share: 0.0}
    step = profile.start_ms + 600_000
    plain, odd = World(replace(profile, **off)).advance(step), World(profile).advance(step)
    assert of(plain, "requests") == of(odd, "requests")
    plain_at = {e.event_id: e for e in of(plain, "locations")}
    both = [e for e in of(odd, "locations") if e.event_id in plain_at]
    assert len(both) > 0.9 * len(plain_at)
    assert all(plain_at[e.event_id] == e for e in both)


def test_the_truth_is_not_in_the_bytes(events: list[Simulated]) -> None:
    for event in events:
        for truth in event.truths:
            assert truth.kind in DOMAIN.scenarios
            assert truth.truth_id.encode() not in msgspec.json.encode(event.event)


@pytest.mark.parametrize(
    ("field", "value"),
    [("no_shows", 1.5), ("drivers", -1), ("location_interval_ms", 5), ("rings", 99), ("event_rate", 1e9)],
)
def test_a_wrong_parameter_is_one_clear_line(field: str, value: Any) -> None:
    with pytest.raises(UserError) as caught:
        RidesProfile(**{field: value})
    assert str(value) in str(caught.value) or field == "event_rate"
    assert "\n" not in str(caught.value)


# The city.


def test_zones_are_h3_cells_around_the_centre() -> None:
    city = City(rings=4)
    assert len(city.zones) == 61
    assert len({zone.cell for zone in city.zones}) == 61
    assert Counter(zone.kind for zone in city.zones)["airport"] == 1
    for zone in city.zones:
        assert city.zone_of(zone.x, zone.y) == zone.cell
        inside = sum(city.zone_of(*spot) == zone.cell for spot in zone.spots)
        # H3's children overlap their parent's border a little.
        assert inside / len(zone.spots) > 0.85


def test_metres_and_degrees_agree_with_h3() -> None:
    for x, y in ((1_000.0, 0.0), (0.0, 1_000.0), (-6_000.0, 6_000.0)):
        real = h3.great_circle_distance(degrees(0, 0), degrees(x, y), unit="m")
        assert real == pytest.approx(distance_m(0, 0, x, y), rel=0.002)


def test_the_hour_of_week_is_local_and_begins_on_monday() -> None:
    assert hour_of_week(FRIDAY_MS) == 4 * 24 + 17
    assert hour_of_week(FRIDAY_MS + 2 * DAY_MS + 6 * HOUR_MS) == 6 * 24 + 23
    assert hour_of_week(FRIDAY_MS + 2 * DAY_MS + 7 * HOUR_MS) == 0


def test_traffic_is_slow_in_the_rush_hour_and_in_the_centre() -> None:
    city = City(rings=4)
    night = FRIDAY_MS + 10 * HOUR_MS
    assert city.speed_kmh(0, 0, FRIDAY_MS) < 0.6 * city.speed_kmh(0, 0, night)
    edge = next(zone for zone in city.zones if zone.kind == "outskirts")
    assert city.speed_kmh(edge.x, edge.y, FRIDAY_MS) > 1.4 * city.speed_kmh(0, 0, FRIDAY_MS)
    # 2 km straight are 2.8 km of road, at 13.5 km/h in the centre and 18 in a residential zone or faster.
    assert 400 < city.travel_ms((0, 0), (2_000, 0), FRIDAY_MS) / 1000 < 800


# Riders.


@pytest.fixture(scope="module")
def week() -> list[Any]:
    profile = RidesProfile(seed=3, drivers=600, requests_per_hour=60, start_ms=FRIDAY_MS, rings=3)
    demand = Demand(profile, City(3), "r")
    rides = []
    while (ride := demand.next_ride()).at_ms < FRIDAY_MS + 7 * DAY_MS:
        rides.append(ride)
    return rides


def test_demand_follows_the_hour_of_the_week(week: list[Any]) -> None:
    hours = Counter(hour_of_week(ride.at_ms) for ride in week)
    # 60 an hour over 168 hours; a Poisson total of 10,080 has a standard deviation of 100.
    assert sum(hours.values()) == pytest.approx(60 * 168, abs=400)
    for hour, number in hours.items():
        at = FRIDAY_MS + (hour - hour_of_week(FRIDAY_MS)) * HOUR_MS
        expected = 60 * demand_factor(at)
        assert abs(number - expected) < 4.5 * math.sqrt(expected) + 2
    assert hours[4 * 24 + 18] > 3 * hours[1 * 24 + 3]
    # The change of rate on the hour is no moment of its own.
    first_minute = sum(ride.at_ms % HOUR_MS < 60_000 for ride in week)
    assert first_minute / len(week) == pytest.approx(1 / 60, abs=0.006)


def test_gaps_are_exponential_within_an_hour() -> None:
    profile = RidesProfile(seed=8, requests_per_hour=20_000, drivers=10, start_ms=FRIDAY_MS, rings=2)
    demand = Demand(profile, City(2), "r")
    times = [demand.next_ride().at_ms for _ in range(4_000)]
    gaps = [b - a for a, b in pairwise(times)]
    expected = HOUR_MS / (20_000 * demand_factor(FRIDAY_MS))
    assert mean(gaps) == pytest.approx(expected, rel=0.06)
    # An exponential time is above its mean in 1/e of the cases.
    assert sum(gap > expected for gap in gaps) / len(gaps) == pytest.approx(1 / math.e, abs=0.03)


def test_rides_have_the_stated_shares_and_patience(week: list[Any]) -> None:
    classes = Counter(ride.vehicle_class for ride in week)
    assert classes["standard"] / len(week) == pytest.approx(0.78, abs=0.02)
    assert classes["premium"] / len(week) == pytest.approx(0.14, abs=0.02)
    assert mean(ride.no_show for ride in week) == pytest.approx(0.02, abs=0.006)
    assert mean(ride.pickup_at_ms > ride.at_ms for ride in week) == pytest.approx(0.04, abs=0.008)
    assert mean(ride.mind_ms > 0 for ride in week) == pytest.approx(0.03, abs=0.008)
    assert median(ride.search_ms for ride in week) / 1000 == pytest.approx(240, rel=0.04)
    assert median(ride.wait_ms for ride in week) / 1000 == pytest.approx(720, rel=0.04)


def test_rides_start_in_the_zone_that_they_name_and_are_mostly_short(week: list[Any]) -> None:
    for ride in week[::20]:
        assert h3.latlng_to_cell(*degrees(*ride.pickup), 7) == ride.zone
    lengths = [distance_m(*ride.pickup, *ride.dropoff) for ride in week]
    # Real taxi trips have a median of about 2.2 km (San Francisco, 2008).
    assert 1_500 < median(lengths) < 3_500


def test_at_night_people_leave_where_they_go_out_and_in_the_morning_where_they_live(week: list[Any]) -> None:
    city = City(3)
    kinds = {zone.cell: zone.kind for zone in city.zones}

    def share(kind: str, hours: range) -> float:
        rides = [ride for ride in week if hour_of_week(ride.at_ms) % 24 in hours]
        return sum(kinds.get(ride.zone) == kind for ride in rides) / len(rides)

    assert share("nightlife", range(6)) > 2 * share("nightlife", range(6, 10))
    assert share("residential", range(6, 10)) > 1.5 * share("residential", range(6))


# Drivers.


def test_shifts_never_overlap_and_cover_the_stated_share_of_the_day() -> None:
    total = 0
    for number in range(400):
        shifts = [shift for day in range(20_000, 20_020) if (shift := shift_of(1, number, day))]
        for (_, end), (begin, _) in pairwise(shifts):
            assert end + HOUR_MS < begin
        assert all(6 * HOUR_MS <= last - first <= 9 * HOUR_MS for first, last in shifts)
        total += sum(last - first for first, last in shifts)
    assert total / (400 * 20 * DAY_MS) == pytest.approx(ONLINE_SHARE, abs=0.01)


def test_nobody_comes_online_after_the_end_of_the_shift() -> None:
    """A shift that ends within the first interval is over before the driver's turn to come on line.

    shift:    |-------------|
    stream:              |──┼── spread ──▶ first position
    """
    profile = RidesProfile(seed=3, drivers=2_000, location_interval_ms=600_000, requests_per_hour=1, rings=2)
    world = World(profile)
    events = world.advance(profile.start_ms + HOUR_MS)
    times = [event.event_time_ms for event in events]
    assert times == sorted(times)
    for status in of(events, "status"):
        if status.status == "online":
            number, day = int(status.driver_id[-6:]), status.event_time_ms // DAY_MS
            shifts = [shift_of(profile.seed, number, d) for d in (day - 1, day)]
            assert any(shift and shift[0] <= status.event_time_ms < shift[1] for shift in shifts)


def test_answers_take_the_stated_time() -> None:
    draw = substream(1, "test").random
    delays = [answer_delay_ms(draw()) for _ in range(20_000)]
    assert min(delays) >= 1_200
    assert max(delays) == 12_000
    # 1.2 s + an exponential time of mean 2.8 s, cut at 10.8 s: 2.8 × (1 − e^(−10.8/2.8)) on top.
    assert mean(delays) / 1000 == pytest.approx(1.2 + 2.8 * (1 - math.exp(-10.8 / 2.8)), abs=0.08)


def test_drivers_accept_less_when_far_or_tired() -> None:
    assert acceptance(0.5, 0) > acceptance(2, 0) > acceptance(2, 1) > acceptance(8, 1) > 0


def test_the_share_of_accepts_follows_the_law() -> None:
    profile = RidesProfile(seed=2, drivers=4_000, start_ms=FRIDAY_MS, rings=3, late_accepts=0, cancel_races=0)
    world = World(replace(profile, requests_per_hour=600_000))
    start = world.advance(profile.start_ms + 5_000)
    waiting = of(start, "requests")
    drivers = [event for event in of(start, "status") if event.status == "online"]
    now = world.now_ms
    expected = asked = 0.0
    for request, driver in zip(waiting, drivers, strict=False):
        km = h3.great_circle_distance(
            (request.pickup_lat, request.pickup_lon), (driver.lat, driver.lon), unit="km"
        )
        world.receive(Offer(request.request_id, request.request_id, driver.driver_id, 1, now + 15_000, now))
        # Nobody can know how tired a driver is: half of the shift in the mean.
        expected += 0.96 * acceptance(km, 0.5)
        asked += 1
    answers = of(world.advance(now + 14_000), "answers")
    accepted = sum(answer.answer == "accept" for answer in answers)
    assert asked > 800
    # Three standard deviations of a binomial count, and a margin for the fatigue.
    assert abs(accepted - expected) < 3 * math.sqrt(asked) / 2 + 0.02 * asked


def test_positions_come_at_the_interval_and_move_like_cars(events: list[Simulated]) -> None:
    seen: defaultdict[str, list[Position]] = defaultdict(list)
    for event in of(events, "locations"):
        seen[event.driver_id].append(event)
    gaps: Counter[int] = Counter()
    for track in seen.values():
        for a, b in pairwise(track):
            gap = b.event_time_ms - a.event_time_ms
            gaps[gap] += 1
            metres = h3.great_circle_distance((a.lat, a.lon), (b.lat, b.lon), unit="m")
            # 120 km/h straight is faster than any road here; twice the largest error of a position.
            assert metres < gap / 1000 * 33 + 2 * 3.7 * 1.5 * GPS_ERROR_M
    assert gaps[30_000] / gaps.total() > 0.97


def test_a_position_says_what_the_driver_does(events: list[Simulated]) -> None:
    aboard: set[str] = set()
    for event in events:
        if event.stream == "progress" and event.event.stage != "arrived":
            (aboard.add if event.event.stage == "started" else aboard.discard)(event.event.driver_id)
        elif event.stream == "locations":
            assert (event.event.state == "on_trip") == (event.event.driver_id in aboard)


# The life of a ride under the reference dispatcher.


def test_a_trip_goes_arrived_started_finished_by_one_driver(events: list[Simulated]) -> None:
    stages: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
    for event in of(events, "progress"):
        stages[event.request_id].append((event.stage, event.driver_id))
    finished = [steps for steps in stages.values() if steps[-1][0] == "finished"]
    assert len(finished) > 300
    for steps in finished:
        assert [stage for stage, _ in steps][-3:] == ["arrived", "started", "finished"]
        assert len({driver for _, driver in steps[-3:]}) == 1


def test_every_request_has_one_fate_or_is_open(
    busy: tuple[World, NearestDispatcher, list[Simulated]], truths: dict[str, list[tuple[Truth, Simulated]]]
) -> None:
    world, _, events = busy
    fates: Counter[str] = Counter()
    ended: Counter[str] = Counter()
    for hits in truths.values():
        truth = hits[0][0]
        if truth.kind in ("served", "cancelled", "no_driver", "no_show"):
            ended[truth.entity] += 1
            fates[truth.kind] += 1
    assert set(ended.values()) == {1}
    requests = {event.request_id for event in of(events, "requests")}
    assert set(ended) <= requests
    # A no-show is true at the car's arrival, and ends when the dispatcher gives up.
    waiting = fates["no_show"] - world.fates["no_show"]
    assert 0 <= waiting < 20
    assert len(requests) - len(ended) + waiting == pytest.approx(world.open_rides, abs=3)
    assert fates["served"] / len(ended) > 0.6


def test_the_reference_never_gives_anybody_away_twice(
    busy: tuple[World, NearestDispatcher, list[Simulated]],
) -> None:
    world, _, events = busy
    assert world.conflicts == 0
    assert not [answer for answer in of(events, "answers") if answer.reason == "busy"]


def test_every_truth_has_its_events(
    events: list[Simulated], truths: dict[str, list[tuple[Truth, Simulated]]]
) -> None:
    kinds = Counter(hits[0][0].kind for hits in truths.values())
    assert set(kinds) == set(DOMAIN.scenarios)
    for hits in truths.values():
        assert all(truth == hits[0][0] for truth, _ in hits)
    end_ms = events[-1].event_time_ms
    finished = {event.request_id for event in of(events, "progress") if event.stage == "finished"}
    for race in by_kind(truths, "cancel_race"):
        # Only the end of the run cuts one in two.
        assert {hit.stream for hit in race} == {"answers", "cancellations"} or (
            end_ms - race[0].event_time_ms <= 200
        )
    for truth, _ in (hits[0] for hits in truths.values() if hits[0][0].kind == "offline_in_trip"):
        streams = [event.stream for _, event in truths[truth.truth_id]]
        assert streams == (["status", "progress"] if truth.entity in finished else ["status"])


def test_a_race_is_within_200_ms(truths: dict[str, list[tuple[Truth, Simulated]]]) -> None:
    orders: Counter[str] = Counter()
    for hits in by_kind(truths, "cancel_race"):
        if len(hits) == 2:
            assert hits[1].event_time_ms - hits[0].event_time_ms <= 200
            orders[hits[0].stream] += 1
    assert set(orders) == {"answers", "cancellations"}


def test_a_driver_who_goes_offline_in_a_trip_finishes_it_unseen(
    events: list[Simulated], truths: dict[str, list[tuple[Truth, Simulated]]]
) -> None:
    found = [hits for hits in by_kind(truths, "offline_in_trip") if len(hits) == 2]
    assert len(found) >= 5
    for offline, finished in found:
        driver = offline.event.driver_id
        assert (offline.event.status, finished.event.stage) == ("offline", "finished")
        assert finished.event.driver_id == driver
        between = events[events.index(offline) + 1 : events.index(finished)]
        assert not [e for e in between if e.stream in ("locations", "status") and e.key == driver]


def test_lost_heartbeats_are_gaps_of_the_stated_length(
    events: list[Simulated], truths: dict[str, list[tuple[Truth, Simulated]]]
) -> None:
    positions: defaultdict[str, list[int]] = defaultdict(list)
    for event in of(events, "locations"):
        positions[event.driver_id].append(event.event_time_ms)
    found = [hits[0] for hits in truths.values() if hits[0][0].kind == "lost_heartbeats"]
    assert len(found) > 10
    for truth, event in found:
        silent = truth.detail["until_ms"] - truth.detail["from_ms"]
        assert 0 < silent <= 300_000 + BUSY.location_interval_ms
        between = [t for t in positions[event.key] if truth.detail["from_ms"] <= t < truth.detail["until_ms"]]
        assert between == []


def test_no_position_is_missing_without_a_truth() -> None:
    profile = replace(BUSY, drivers=300, lost_heartbeats=0.8, vanishing=0.0, offline_in_trip=0.0)
    last: dict[str, int] = {}
    missed = Counter[str]()
    for event in World(profile).advance(FRIDAY_MS + 8 * HOUR_MS):
        if event.stream not in ("locations", "status"):
            continue
        gap = event.event_time_ms - last.get(event.key, event.event_time_ms)
        last[event.key] = event.event_time_ms
        if event.stream == "status" and event.event.status == "online":
            continue
        told = any(truth.kind == "lost_heartbeats" for truth in event.truths)
        assert told or gap <= profile.location_interval_ms
        missed[event.stream] += told
    # Silences end in the middle of a shift, or the shift ends first.
    assert missed["locations"] > 30
    assert missed["status"] > 0


def test_a_vanished_driver_sends_nothing_more_and_never_logs_out(
    events: list[Simulated], truths: dict[str, list[tuple[Truth, Simulated]]]
) -> None:
    found = by_kind(truths, "vanished")
    assert len(found) >= 3
    for (last,) in found:
        after = events[events.index(last) + 1 :]
        assert all(e.event.status == "online" for e in after if e.key == last.key and e.stream == "status")


# State.


def test_state_does_not_grow_with_the_run() -> None:
    world, dispatcher = World(replace(BUSY, drivers=400)), NearestDispatcher()
    stream = live(world, dispatcher)
    sizes = []
    for _ in range(6):
        for _ in range(10_000):
            next(stream)
        sizes.append((world.open_rides, world.pending, dispatcher.size))
    assert sum(world.fates.values()) > 500
    for size in zip(*sizes, strict=True):
        assert max(size[3:]) < 1.5 * max(size[:3]) + 20


def test_a_decision_depends_on_what_it_is_about_alone() -> None:
    drawn = [chance(1, "answer", n) for n in range(5_000)]
    assert drawn == [chance(1, "answer", n) for n in range(5_000)]
    assert mean(drawn) == pytest.approx(0.5, abs=0.015)
    assert len(set(drawn)) == 5_000


# The airport.


def test_riders_at_the_terminal_name_doors_and_nobody_else_does(
    events: list[Simulated], truths: dict[str, list[tuple[Truth, Simulated]]]
) -> None:
    there = {hits[0][0].entity for hits in truths.values() if hits[0][0].kind == "at_airport"}
    named = {r.request_id: r.pickup_point for r in of(events, "requests") if r.pickup_point}
    told = {t.entity: t for hits in truths.values() for t, _ in hits if t.kind == "named_point"}
    assert {name: t.detail["point"] for name, t in told.items()} == named
    assert named.keys() < there
    assert 0.3 < len(named) / len(there) < 0.7
    kinds = {(door, told[name].expected) for name, door in named.items()}
    assert kinds == {("door 1", "there"), ("door 2", "there"), ("door 9", "unknown")}


def test_rides_to_hotels_are_short_and_their_drivers_go_back_to_the_pen() -> None:
    profile = replace(BUSY, drivers=300, airport=0.3, vanishing=0.0, location_interval_ms=20_000)
    found = run_world(profile, 60_000)[2]
    city = City(profile.city_rings)
    (x, y), pen = city.airport.terminal, city.airport.pen
    hotels = {
        r.request_id
        for r in of(found, "requests")
        if 450 < (distance_m(*metres(r.dropoff_lat, r.dropoff_lon), x, y)) < 950
        and distance_m(*metres(r.pickup_lat, r.pickup_lon), x, y) < 2 * TERMINAL_M
    }
    ends = [(e.event_time_ms, e.event.driver_id) for e in found
            if e.stream == "progress" and e.event.stage == "finished"
            and e.event.request_id in hotels]  # fmt: skip
    assert len(ends) > 5
    back = 0
    for at, driver in ends:
        after = [e.event for e in found if e.stream == "locations" and e.key == driver
                 and at < e.event_time_ms < at + 600_000]  # fmt: skip
        back += any(distance_m(*metres(p.lat, p.lon), *pen) < 2 * PEN_M for p in after)
    assert back > 0.6 * len(ends)


def test_who_is_on_line_when_the_stream_begins_may_wait_in_the_pen() -> None:
    profile = replace(BUSY, drivers=300, airport=0.3)
    pen = City(profile.city_rings).airport.pen
    first = {
        s.driver_id: s for s in reversed(of(World(profile).advance(profile.start_ms + 30_000), "status"))
    }
    there = [s for s in first.values() if distance_m(*metres(s.lat, s.lon), *pen) < 2 * PEN_M]
    assert 0.4 < len(there) / len(first) < 0.8
    none = World(replace(profile, airport=0.0)).advance(profile.start_ms + 30_000)
    assert not [s for s in of(none, "status") if distance_m(*metres(s.lat, s.lon), *pen) < PEN_M]
