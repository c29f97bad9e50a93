"""Riders who ask in several regions: one open request each, whatever the order, the cuts and the delays."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise, permutations
from typing import Any

import msgspec
import pytest

from millrace.host.runner import Emission
from millrace.testing import TestDriver
from millrace_apps.ridesharing.config import HOLD_MS, DispatchConfig
from millrace_apps.ridesharing.contracts.events import Event, Handover, RideRequest, stream_of
from millrace_apps.ridesharing.evaluation.replay import Courier, Faults
from millrace_apps.ridesharing.processes.regions import Regions
from millrace_apps.ridesharing.processes.riders import Riders
from millrace_apps.ridesharing.settings import DispatchSettings, RidesharingSettings
from millrace_apps.ridesharing.state.lifecycle import TERMINAL
from millrace_apps.ridesharing.topic_audit.evidence import OUTPUTS, Evidence
from millrace_apps.ridesharing.topic_audit.report import audit_topics
from millrace_apps.ridesharing.topology import topology
from tests.unit.apps.ridesharing.cases import (
    KM,
    LAT,
    SECOND,
    Whole,
    answer,
    as_read,
    cancel,
    ms,
    position,
    progress,
    request,
)

CONFIG = DispatchConfig(
    window_ms=5_000, regions=Regions(parent=7), ahead_ms=60_000, patience_ms=60_000, borrow=False
)
#: Kilometres north of the middle: a region each.
PLACES = (0.0, 2.5, 5.0)
assert len({CONFIG.regions.of_place(LAT + km * KM, -122.42) for km in PLACES}) == len(PLACES)


def asks(rider: str, name: str, s: float, place: int, *, ahead: float = 0.0) -> RideRequest:
    return msgspec.structs.replace(request(name, s, PLACES[place], ahead=ahead), rider_id=rider)


def calls_off(asked: RideRequest, s: float) -> Event:
    return msgspec.structs.replace(cancel(asked.request_id, s), zone=asked.zone)


class City:
    """The app in several regions, with a car in each that is heard of, and word that takes its time.

    Args:
        word_s: So many seconds word from region to region is on its way, at least.
        evidence: Takes what comes and what is said.
    """

    def __init__(self, word_s: float = 2.0, evidence: Evidence | None = None) -> None:
        self.app, self.now, self._word_s, self._evidence = Whole(CONFIG), 0.0, word_s, evidence
        self._on_its_way: list[tuple[float, Event]] = []

    def until(self, s: float, *events: Event, step: float = 1.0) -> list[Emission]:
        """Bring events, and let time pass by steps."""
        found: list[Emission] = []
        brought = list(events)
        while self.now < s:
            self.now = min(s, self.now + step)
            brought += [event for at, event in self._on_its_way if at <= self.now]
            self._on_its_way = [(at, event) for at, event in self._on_its_way if at > self.now]
            if self._evidence is not None:
                for event in brought:
                    self._evidence.take(stream_of(event), event, ms(self.now))
            said = self.app.run([msgspec.structs.replace(event) for event in brought], self.now)
            if self._evidence is not None:
                self._evidence.passed(ms(self.now))
            found, brought = found + said, []
            for one in said:
                if one.output == "handovers":
                    word = as_read("handovers", msgspec.json.decode(one.payload))
                    self._on_its_way.append((self.now + self._word_s, word))
                if self._evidence is not None and one.output in OUTPUTS:
                    self._evidence.read(one.output, None, one.payload, ms(self.now))
        return found

    def states(self, name: str) -> list[str]:
        return [trip["state"] for trip in self.app.of("trips") if trip["request_id"] == name]

    def cause(self, name: str) -> str:
        return str([trip["cause"] for trip in self.app.of("trips") if trip["request_id"] == name][-1])


def cars(s: float) -> list[Event]:
    return [position(f"d{n}", s, km) for n, km in enumerate(PLACES)]


def test_a_rider_who_asks_on_both_sides_of_a_border_gets_one_car() -> None:
    """The second request is held back, and refused.

    ::

        here    r1 ─ 2 s ─ searched for ─────────────────────────────────
        there                 r2 ─ 4 s ─ held back ─ 24 s ─ refused
    """
    city = City()
    city.until(1, *cars(1))
    city.until(40, asks("ann", "r1", 2, 0), asks("ann", "r2", 4, 1))
    assert city.states("r1")[:2] == ["processing", "offered"]
    assert city.states("r2") == ["booked", "refused"]
    assert city.cause("r2") == "the rider has request r1"
    assert {offer["request_id"] for offer in city.app.of("offers")} == {"r1"}
    told = [r for r in city.app.of("releases") if r["request_id"] == "r2"]
    assert [(r["driver_id"], r["reason"]) for r in told] == [("", "cancelled")]


@pytest.mark.parametrize("word_s", [1.0, 15.0])
def test_who_calls_off_one_request_and_asks_elsewhere_gets_a_car_when_word_has_come(word_s: float) -> None:
    city = City(word_s)
    first = asks("ann", "r1", 2, 0)
    city.until(1, *cars(1))
    city.until(30, first, calls_off(first, 5), asks("ann", "r2", 6, 1))
    assert city.states("r1")[-1] == "rider_cancelled"
    assert [state for state in city.states("r2") if state != "booked"][:2] == ["processing", "offered"]
    assert city.states("r2").count("booked") == (word_s > 1)
    searched = next(t for t in city.app.of("trips") if (t["request_id"], t["state"]) == ("r2", "processing"))
    assert searched["at_ms"] <= ms(6 + word_s + 2)


def test_what_is_called_off_while_it_is_held_back_is_over() -> None:
    city = City()
    first, second = asks("ann", "r1", 2, 0), asks("ann", "r2", 4, 1)
    city.until(1, *cars(1))
    city.until(8, first, second, calls_off(second, 7))
    city.until(40, calls_off(first, 9))
    assert city.states("r2") == ["booked", "rider_cancelled"]
    assert city.states("r1")[-1] == "rider_cancelled"


def test_a_booking_elsewhere_waits_until_the_ride_before_it_is_over() -> None:
    """It begins when word has come that the other one has ended.

    ::

        here    r1 ─ 70 s ──────── searched for ──────── called off, 100 s
        there   booked for 140 s: searched for from 80 s ─── no, from word of that on
    """
    city = City()
    booked, now = asks("ann", "later", 2, 1, ahead=138), asks("ann", "r1", 70, 0)
    city.until(60, *cars(1), booked)
    city.until(99, now, *cars(65))
    assert city.states("later") == ["booked"]
    city.until(115, calls_off(now, 100), *cars(99.5))
    assert city.states("later")[:2] == ["booked", "processing"]


@pytest.mark.parametrize("later_s", [0.0, 0.001, 2.0])
def test_of_two_bookings_on_both_sides_of_a_border_one_is_searched_for(later_s: float) -> None:
    """The second is due before word of the first has come."""
    city = City(word_s=9.0)
    first, second = asks("ann", "r1", 2, 0, ahead=138), asks("ann", "r2", 3, 1, ahead=137 + later_s)
    city.until(85, *cars(1), first, second)
    assert city.states("r1")[:2] == ["booked", "processing"]
    assert city.states("r2") == ["booked"]
    city.until(130, *cars(84), calls_off(first, 100))
    assert city.states("r2")[:2] == ["booked", "processing"]


@pytest.mark.parametrize("later_s", [0.0, 0.001, 0.002])
def test_what_is_searched_for_within_a_millisecond_holds_back_what_is_booked_elsewhere(
    later_s: float,
) -> None:
    """Asked for at 70 s, for a minute later: it is searched for then, a second before the booking.

    Word of the search takes 2 s, so that it cannot be that.
    """
    city = City()
    booked, now = asks("ann", "later", 2, 1, ahead=129), asks("ann", "r1", 70, 0, ahead=60 + later_s)
    city.until(60, *cars(1), booked)
    city.until(99, now, *cars(65))
    assert "processing" in city.states("r1")
    assert city.states("later") == ["booked"]


def test_while_a_booking_is_searched_for_nothing_else_is_elsewhere() -> None:
    city = City()
    city.until(85, *cars(1), asks("ann", "later", 2, 1, ahead=138))
    assert city.states("later")[:2] == ["booked", "processing"]
    city.until(120, asks("ann", "r1", 86, 0))
    assert city.states("r1") == ["booked", "refused"]


def test_riders_do_not_get_in_each_others_way_and_one_region_has_no_marks() -> None:
    city = City()
    city.until(1, *cars(1))
    city.until(20, asks("ann", "r1", 2, 0), asks("bob", "r2", 3, 1), asks("ann", "r3", 4, 0))
    assert city.states("r2")[:2] == ["processing", "offered"]
    assert city.states("r3") == ["refused"], "by its own region, at once"


@dataclass
class Spans:
    """When requests were open, by rider: an account from the trips alone, kept another way than the app's."""

    of: dict[str, list[tuple[int, int, str, str]]] = field(default_factory=lambda: defaultdict(list))

    @classmethod
    def read(cls, trips: list[dict[str, Any]]) -> Spans:
        spans, begun = cls(), dict[str, int]()
        for trip in sorted(trips, key=lambda t: (t["request_id"], t["revision"])):
            name, state = trip["request_id"], trip["state"]
            if state not in TERMINAL and state != "booked":
                begun.setdefault(name, trip["at_ms"])
            elif state in TERMINAL and name in begun:
                spans.of[trip["rider_id"]].append((begun.pop(name), trip["at_ms"], name, trip["region"]))
        assert not begun, "all have ended"
        return spans


def ask_at_random(seed: int) -> None:
    """Riders who ask, book and call off at random, in all regions, by a courier who loses the order."""
    draws = random.Random(seed)
    faults = Faults(draws.choice([0, 0.2]), draws.choice([0, 0.1, 0.4]), seed=seed)
    courier, evidence = Courier(draws, faults, 5_000), Evidence(CONFIG, margin_ms=-1)
    city = City(draws.choice([0.5, 3, 9]), evidence)
    asked: dict[str, RideRequest] = {}
    open_: dict[str, str] = {}
    now = 0
    for number in range(120):
        now += 5
        happened: list[Event] = cars(now - draws.random()) if number % 4 == 0 else []
        if number < 60 and draws.random() < 0.4:
            name, ahead = f"r{number}", draws.choice([0, 0, 0, 90.0])
            at = now - draws.randint(0, 4_999) / 1_000
            asked[name] = asks(draws.choice(["ann", "bob"]), name, at, draws.randrange(3), ahead=ahead)
            happened.append(asked[name])
        ends = draws.random() < 0.3 or number > 100
        if asked and ends:
            name = draws.choice(sorted(asked))
            at = max(
                now - draws.randint(0, 4_999) / 1_000, asked[name].event_time_ms / SECOND - ms(0) / SECOND
            )
            if name in open_:
                done = progress(name, open_[name], at, "finished", zone=asked[name].zone)
                happened.append(done)
            else:
                happened.append(calls_off(asked[name], at))
        brought = [event for _, _, event, _ in courier.carry(happened, ms(now))]
        for one in city.until(now, *brought, step=draws.choice([1, 2.5, 5])):
            if one.output == "offers" and draws.random() < 0.6:
                offer = msgspec.json.decode(one.payload)
                name = offer["request_id"]
                yes = answer(name, offer["driver_id"], (offer["event_time_ms"] - ms(0)) / SECOND + 1,
                             attempt=offer["attempt"], zone=asked[name].zone)  # fmt: skip
                city._on_its_way.append((city.now + 1, yes))
                open_[name] = offer["driver_id"]
        if draws.random() < 0.1:
            city.app.chain.restart()
    while any(asked) and now < 40_000:
        now += 300
        city.until(now, *cars(now - 299), step=20)
        if {t["request_id"] for t in city.app.of("trips") if t["state"] in TERMINAL} == set(asked):
            break
    trips = city.app.of("trips")
    spans = Spans.read(trips)
    for rider, of in spans.of.items():
        of.sort()
        for before, after in pairwise(of):
            assert after[0] >= before[1], (seed, rider, before, after)
    for trip in trips:
        if trip["state"] == "refused":
            near = [
                name for begins, ends, name, region in spans.of[trip["rider_id"]]
                if begins <= trip["at_ms"] <= ends + (HOLD_MS if region != trip["region"] else 0)
            ]  # fmt: skip
            assert near, (seed, trip)
    found = audit_topics(evidence).by_reason()
    wrong = {"two_requests", "no_cause", "unheard", "overtime", "forbidden_step", "not_told"} & found.keys()
    assert not wrong, (seed, found)


@pytest.mark.parametrize("seed", range(8))
def test_whatever_riders_do_in_whatever_regions_each_has_one_open_request(seed: int) -> None:
    ask_at_random(seed)


def test_of_requests_that_have_ended_nothing_is_kept() -> None:
    """Whatever is heard first of a request: that it is searched for, or that it has ended."""
    city = City()
    one, two, later = asks("ann", "r1", 2, 0), asks("ann", "r2", 4, 1), asks("ann", "r3", 5, 2, ahead=90)
    city.until(130, *cars(1), one, two, later, calls_off(one, 30), calls_off(two, 31))
    city.until(300, calls_off(later, 131))
    word = [as_read("handovers", w) for w in city.app.of("handovers") if w["rider_id"]]
    assert [(w.request_id, w.is_over) for w in word if isinstance(w, Handover)] == [
        ("r2", True), ("r1", True), ("r3", False), ("r3", True)
    ]  # fmt: skip
    for order in permutations(word):
        riders = TestDriver(Riders(CONFIG))
        for event in (one, two, later):
            event.region = CONFIG.regions.of_zone(event.zone)
            riders.send("ann", event, at=event.event_time_ms, input="requests")
        riders.advance_watermark(ms(140))
        assert not riders.is_empty()
        for event in order:
            riders.send("ann", event, at=event.event_time_ms, input="notices")
        riders.advance_watermark(ms(150))
        assert riders.is_empty(), order


def test_a_rider_takes_less_than_200_bytes_while_a_request_is_open() -> None:
    riders = TestDriver(Riders(CONFIG))
    for number in range(100):
        event = asks(f"rider-{number:06}", f"request-{number:06}", number / 10, 0)
        event.region = CONFIG.regions.of_zone(event.zone)
        riders.send(event.rider_id, event, at=event.event_time_ms, input="requests")
    riders.advance_watermark(ms(20))
    assert 0 < sum(len(bytes(cell.body)) for cell in riders.host.store.cells.values()) / 100 < 200


@pytest.mark.parametrize(
    ("resolution", "everywhere", "has_riders"), [(7, True, True), (7, False, False), (-1, True, False)]
)
def test_the_link_of_riders_is_there_where_a_rider_may_ask_in_two_regions(
    resolution: int, everywhere: bool, has_riders: bool
) -> None:
    dispatch = DispatchSettings(region_resolution=resolution, one_open_everywhere=everywhere)
    settings = RidesharingSettings(dispatch=dispatch)
    processes = [link.process.name for link in topology(settings).links]
    assert processes == ["Gate", *(["Riders"] if has_riders else []), "Dispatcher", "Auditor"]


def test_an_audit_finds_a_rider_with_a_car_on_both_sides() -> None:
    """The topics of an app whose regions do not ask one another."""
    assert DispatchConfig(one_open=False, regions=CONFIG.regions).asks_everywhere is False
    loose = msgspec.structs.replace(CONFIG, one_open=False)
    evidence = Evidence(CONFIG, margin_ms=-1)
    app = Whole(loose)
    brought = [*cars(1), asks("ann", "r1", 2, 0), asks("ann", "r2", 4, 1)]
    for event in brought:
        evidence.take(stream_of(event), event, ms(10))
    for one in app.run(brought, 30):
        if one.output in OUTPUTS:
            evidence.read(one.output, None, one.payload, ms(30))
    assert "two_requests" in audit_topics(evidence).by_reason()
