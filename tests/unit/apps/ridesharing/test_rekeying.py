"""Regions split and merge while the app is stopped: nothing is lost, and nobody is dispatched twice."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import h3
import msgspec
import pytest

from millrace.checkpoints.gathering import Entries, gathered, scattered
from millrace.host.memory import LiveStore, MemoryHost
from millrace.host.runner import Emission
from millrace.inputs import event_decoder, event_encoder
from millrace.process import kept_states
from millrace.state.layout import EntryLayout, PendingRow
from millrace.testing import TestDriver
from millrace.time import NEVER
from millrace_apps.ridesharing.config import DispatchConfig
from millrace_apps.ridesharing.contracts.events import DriverStatus, Event, Handover, Position, RideRequest
from millrace_apps.ridesharing.evaluation.replay import Chain, Faults, memory_chain
from millrace_apps.ridesharing.operations.rekeying import CannotBeRekeyed, Rekeying
from millrace_apps.ridesharing.processes.acceptance import Acceptance, AcceptanceConfig, Tally
from millrace_apps.ridesharing.processes.dispatcher import Dispatcher
from millrace_apps.ridesharing.processes.gate import Gate, Track
from millrace_apps.ridesharing.processes.income import Idle
from millrace_apps.ridesharing.processes.matching import Rules
from millrace_apps.ridesharing.processes.regions import Regions
from millrace_apps.ridesharing.processes.riders import RiderRequest, Riders
from millrace_apps.ridesharing.state.book import Book
from millrace_apps.ridesharing.state.entries import Car, Closed, Due, Head, Ride
from millrace_apps.ridesharing.state.lifecycle import TERMINAL
from tests.cases import case_count
from tests.unit.apps.ridesharing.cases import LAT, LON, ZONE, request
from tests.unit.apps.ridesharing.evenings import evening

SEEDS = range(min(10, case_count(2)))
ONE = Regions()
FINE, COARSE = Regions(parent=7), Regions(parent=6)
CUT = Regions(lon_cuts=(LON,), lat_cuts=((LAT,), ()))


def config(regions: Regions, *, everywhere: bool = False) -> DispatchConfig:
    return DispatchConfig(
        regions=regions, window_ms=5_000, rules=Rules(radius_m=3_000), one_open_everywhere=everywhere
    )


def entries_of(host: MemoryHost) -> Entries:
    layout = EntryLayout(kept_states(host.runner.process))
    host.store.pack()
    return gathered(layout, [(text, cell.body) for text, cell in host.store.cells.items()])


class Behind(Chain):
    """Processes whose watermark is behind: something waits for it whenever they stop."""

    def run(self, events: list[tuple[str, int, Event, str]], until: int) -> list[Emission]:
        return super().run(events, until - 7_000)


def rekeyed(chain: Chain, to: DispatchConfig, kind: type[Chain] = Chain) -> Chain:
    """Processes with other regions that go on from what these have kept."""
    made = kind(lambda: memory_chain(Dispatcher(to)))
    old, new = chain._chain.hosts, made._chain.hosts
    work = Rekeying(to)
    entries = {h.runner.process.name: entries_of(h) for h in old if h.runner.process.name in work.processes}
    before, remembered = held(entries["Dispatcher"]), noted(entries["Dispatcher"])
    of = next(h for h in old if h.runner.process.name == "Dispatcher").runner.process.config.regions
    assert all(of.has(region) for (region,) in entries["Dispatcher"])
    work(entries)
    assert held(entries["Dispatcher"]) == before
    after = noted(entries["Dispatcher"])
    assert after <= remembered
    # Who went, and has come to the other one since; and where asked was and nobody is, as ever.
    on_line = {name for e in entries["Dispatcher"].values() for name in e.cars}
    back = {("0", f"{mark}:{name}") for name in on_line for mark in "do"}
    assert {about for about in remembered - after if about[0] != "4"} <= back
    all_agree(entries, to)
    for was, host in zip(old, new, strict=True):
        host.restore(was.snapshot())
        name = host.runner.process.name
        if name in entries:
            host.store = LiveStore(host.runner.layout)
            for text, entry in scattered(host.runner.layout, entries[name]):
                opened = host.store.open(text)
                opened.entry = entry
            host.store.commit(host.watermark)
    return made


def all_agree(entries: dict[str, Entries], to: DispatchConfig) -> None:
    """Nobody speaks of a region that there is none of, or of another one than the gate."""
    owners = {key[0]: entry.track[1].owner for key, entry in entries["Gate"].items() if entry.track}
    decode, rides = event_decoder(Dispatcher(to)), dict[str, str]()
    for (region,), entry in entries["Dispatcher"].items():
        assert to.regions.has(region)
        assert {owners.get(driver, region) for driver in entry.cars} <= {region}
        rides |= dict.fromkeys(entry.rides, region)
        for event in (decode(row.raw) for row in entry.pending_):
            assert event.region == region
            if isinstance(event, Position | DriverStatus | Handover):
                assert owners[event.driver_id] == region
    for entry in entries.get("Riders", {}).values():
        waiting = [event_decoder(Riders(to))(row.raw) for row in entry.pending_]
        asked = [event for event in waiting if isinstance(event, RideRequest)]
        for name, known in entry.requests[1].items() if entry.requests else ():
            assert known.region == rides.get(name, known.region)
            assert to.regions.has(known.region) or (name not in rides and not known.asked)
            if known.asked:
                asked.append(msgspec.json.decode(known.asked, type=RideRequest))
                assert asked[-1].region == known.region
        assert all(event.region == to.regions.of_zone(event.zone) for event in asked)


def held(entries: Entries) -> list[Counter[Any]]:
    """What all regions have of drivers, rides, riders and events that wait: each as often as it is there."""
    cars = Counter((name, msgspec.json.encode(car)) for e in entries.values() for name, car in e.cars.items())
    rides = Counter((name, msgspec.json.encode(r)) for e in entries.values() for name, r in e.rides.items())
    riders = Counter(item for e in entries.values() for item in e.riders.items())
    waiting = Counter(
        row.cause for e in entries.values() for row in e.pending_ if b'"is_over"' not in row.raw
    )
    assert max([0, *cars.values(), *rides.values(), *riders.values(), *waiting.values()]) <= 1
    due = Counter(d for e in entries.values() for d in deadlines(e) if d[2] in e.rides)
    return [cars, rides, riders, due]


def noted(entries: Entries) -> set[tuple[str, str]]:
    """What any region remembers, each with the deadline by which it forgets; without the times."""
    found: set[tuple[str, str]] = set()
    for entry in entries.values():
        forgotten = {(due[2], due[3]) for due in deadlines(entry) if due[1] == Due.FORGET}
        lifted = {due[2] for due in deadlines(entry) if due[1] == Due.LIFT}
        head = entry.head or Head()
        assert {(about, abs(at)) for about, at in entry.notes.items()} <= forgotten
        assert {(f"r:{name}", 0) for name in entry.closed} <= forgotten
        assert {f"d:{who}" for who in head.blocked} | {f"z:{zone}" for zone in head.blackouts} <= lifted
        kept = (entry.notes, entry.closed, head.blocked, head.blackouts, head.demand)
        found |= {(str(n), str(about)) for n, shelf in enumerate(kept) for about in shelf}
        counts = Counter(about[0] for about in entry.notes)
        names = {"d": "departed", "o": "off_line", "s": "said", "c": "ordered"}
        sizes = {names[kind]: n for kind, n in counts.items()} | sizes_of(entry) | {"spots": len(entry.spots)}
        assert {name: n for name, n in sizes.items() if n} == head.sizes
    return found


def sizes_of(entry: Any) -> dict[str, int]:
    return {name: len(getattr(entry, name)) for name in ("cars", "rides", "closed", "riders")}


def deadlines(entry: Any) -> list[Any]:
    far = [tuple(d) for together in entry.far.values() for d in together]
    return far if entry.head is None else [*far, *map(tuple, entry.head.near)]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("regions", "everywhere"),
    [
        ((ONE, FINE, ONE), False),
        ((COARSE, FINE, COARSE), True),
        ((ONE, CUT, COARSE, FINE, ONE), False),
        ((CUT, FINE, CUT), True),
    ],
    ids=["one to many and back", "finer and coarser", "any to any", "cuts to cells"],
)
def test_nothing_is_lost_and_nobody_is_dispatched_twice(
    seed: int, regions: tuple[Regions, ...], everywhere: bool
) -> None:
    steps = 60
    every = steps // len(regions)
    configs = [config(one, everywhere=everywhere) for one in regions]

    def between(step: int, chain: Chain) -> Chain:
        number, left = divmod(step + 1, every)
        if left or number >= len(configs):
            return chain
        return rekeyed(chain, configs[number], Chain if number == len(configs) - 1 else Behind)

    faults = Faults(duplicates=0.05, late=0.03, restarts=1, seed=seed)
    topics = evening(seed, steps=steps, faults=faults, operators=0.2, config=configs[0], between=between)
    audited = topics.audited()
    assert audited.rows == []
    ended = Counter(row["request_id"] for row in topics.rows["trips"] if row["state"] in TERMINAL)
    assert ended
    assert max(ended.values()) == 1
    told = Counter((row["request_id"], row["attempt"]) for row in topics.rows["offers"])
    assert max(told.values()) == 1


def test_deadlines_go_with_what_they_are_about() -> None:
    south = Ride("r1", "ann", "standard", ZONE, LAT, LON, 0, 0, "accepted", driver_id="d1")
    entries: dict[str, Entries] = {"Dispatcher": a_region(south), "Gate": {}}
    entry = entries["Dispatcher"][("all",)]
    far_north = str(h3.latlng_to_cell(LAT + 0.2, LON, 7))
    entry.rides["r2"] = Ride("r2", "bob", "standard", far_north, LAT + 0.2, LON, 0, 0, "processing")
    entry.closed["r3"] = Closed("completed", 0)
    entry.head.sizes |= {"rides": 2, "closed": 1}
    near = [(5, Due.OFFER, "r1", 1), (6, Due.GIVE_UP, "r2", 1), (7, Due.FORGET, "r:r3", 0)]
    entry.head.near = [(at, int(due), about, mark) for at, due, about, mark in near]
    entry.head.horizon_ms = 20_000
    entry.far = {1 << 20: [(30_000, int(Due.TRIP), "r1", 1)]}
    entry.head.far, entry.head.far_ms = {1: 1}, 20_000
    Rekeying(config(FINE))(entries)
    after = {key[0]: sorted(deadlines(entry)) for key, entry in entries["Dispatcher"].items()}
    forget = (7, int(Due.FORGET), "r:r3", 0)
    assert after == {
        ZONE: [(5, int(Due.OFFER), "r1", 1), forget, (30_000, int(Due.TRIP), "r1", 1)],
        far_north: [(6, int(Due.GIVE_UP), "r2", 1), forget],
    }
    timers = {key[0]: {t.name: t.at for t in e.timers_} for key, e in entries["Dispatcher"].items()}
    assert timers == {ZONE: {"due": 5}, far_north: {"due": 6}}


def a_region(ride: Ride) -> Entries:
    layout = EntryLayout(kept_states(Dispatcher()))
    entry = layout.new()
    entry.head = Head(sizes={"rides": 1, "cars": 1})
    entry.rides = {ride.request_id: ride}
    entry.cars = {"d1": Car(LAT, LON, 0, 0, True, 0, request_id=ride.request_id)}
    return {("all",): entry}


def test_what_cannot_be_given_to_a_region_is_refused_by_name() -> None:
    ride = Ride("r1", "ann", "standard", "no zone", LAT, LON, 0, 0, "accepted", driver_id="d1")
    with pytest.raises(CannotBeRekeyed, match="request r1 belongs to no region: 'no zone' is no H3 cell"):
        Rekeying(config(FINE))({"Dispatcher": a_region(ride), "Gate": {}})


def test_a_driver_with_a_ride_goes_with_it_wherever_the_car_is() -> None:
    ride = Ride("r1", "ann", "standard", ZONE, LAT, LON, 0, 0, "accepted", driver_id="d1")
    entries = {"Dispatcher": a_region(ride), "Gate": {}}
    entries["Dispatcher"][("all",)].cars["d1"].lat = LAT + 1.0
    Rekeying(config(FINE))(entries)
    (region,) = entries["Dispatcher"]
    assert region == (ZONE,)


def in_books(**books: Book) -> Entries:
    entries: Entries = {}
    for region, book in books.items():
        entry = entries[(region.replace("_", "-"),)] = EntryLayout(kept_states(Dispatcher())).new()
        entry.head, entry.cars, entry.rides, entry.closed, entry.riders, *others = book.maps()
        entry.notes, entry.far, entry.spots = others
    return entries


def at_gate(driver_id: str, lat: float) -> Entries:
    entry = EntryLayout(kept_states(Gate())).new()
    entry.track = (NEVER, Track("elsewhere", 0, 0, LAT, LON, True, (lat, LON)))
    return {(driver_id,): entry}


def waits(event: Event) -> PendingRow:
    return PendingRow(
        event.event_time_ms, "m:0:1", event_encoder(Dispatcher(config(FINE)))(event), None, True
    )


def test_a_handover_waits_where_the_gate_sends_its_driver() -> None:
    given = Handover("h1", "d1", "x", "all", "standard", LAT, LON, 0, 1_000, 0, 900, 0, "")
    entries: dict[str, Entries] = {"Dispatcher": in_books(all=Book()), "Gate": at_gate("d1", LAT + 0.2)}
    entries["Dispatcher"][("all",)].pending_ = [waits(given)]
    Rekeying(config(FINE))(entries)
    owner = FINE.of_place(LAT + 0.2, LON)
    assert entries["Gate"][("d1",)].track[1].owner == owner
    assert [region for (region,), entry in entries["Dispatcher"].items() if entry.pending_] == [owner]


@pytest.mark.parametrize("one", ["off_line", "departed"])
def test_who_has_come_to_the_other_region_has_not_gone_from_the_one_of_both(one: str) -> None:
    left, came = Book(), Book()
    getattr(left, one).update({"d1": 1_000, "d2": 1_000})
    came.bring_over("d1", Car(LAT, LON, 50_000, 0, True, 0), 60_000)
    entries = {"Dispatcher": in_books(r0_0=left, r0_1=came), "Gate": {}}
    Rekeying(config(ONE))(entries)
    (entry,) = entries["Dispatcher"].values()
    assert entry.cars.keys() == {"d1"}
    assert [about[2:] for about in entry.notes] == ["d2"]


def test_a_block_goes_where_its_silent_driver_will_be_heard() -> None:
    book = Book()
    book.blocked["d1"] = 10**9
    book.bring_over("d2", Car(LAT, LON, 50_000, 0, True, 0), 60_000)
    entries = {"Dispatcher": in_books(all=book), "Gate": at_gate("d1", LAT + 0.2)}
    Rekeying(config(FINE))(entries)
    assert entries["Dispatcher"][(FINE.of_place(LAT + 0.2, LON),)].head.blocked == {"d1": 10**9}


@pytest.mark.parametrize("first", [True, False])
def test_of_a_driver_on_two_books_the_car_with_the_ride_stays(first: bool) -> None:
    with_ride, free = Book(), Book()
    with_ride.rides["r1"] = Ride("r1", "ann", "standard", ZONE, LAT, LON, 0, 0, "in_progress", driver_id="d1")
    with_ride.bring_over("d1", Car(LAT, LON, 50_000, 0, True, 0, request_id="r1"), 60_000)
    free.bring_over("d1", Car(LAT, LON, 60_000, 0, True, 0), 60_000)
    books = (with_ride, free) if first else (free, with_ride)
    entries = {"Dispatcher": in_books(r0_0=books[0], r0_1=books[1]), "Gate": {}}
    Rekeying(config(ONE))(entries)
    (entry,) = entries["Dispatcher"].values()
    assert entry.cars["d1"].request_id == "r1"


def test_what_is_no_event_waits_on_to_become_a_dead_letter() -> None:
    row = PendingRow(1_000, "m:0:1", b"\x01{}", None, True)
    entries: dict[str, Entries] = {"Dispatcher": in_books(all=Book()), "Gate": {}, "Riders": {}}
    entries["Dispatcher"][("all",)].pending_ = [row]
    entry = entries["Riders"][("ann",)] = EntryLayout(kept_states(Riders())).new()
    entry.pending_ = [row]
    Rekeying(config(FINE))(entries)
    assert [waiting for e in entries["Dispatcher"].values() for waiting in e.pending_] == [row]
    assert entry.pending_ == [row]


def test_nothing_is_kept_of_a_region_that_only_gets_deadlines_of_what_is_gone() -> None:
    book = Book()
    book.bring_over("d1", Car(LAT, LON, 50_000, 0, True, 0), 60_000)
    book.ask(LAT + 0.2, LON, 0, 60_000)
    book.draw_near(0)
    book.remind(100_000, Due.FORGET, "r:gone")
    entries = {"Dispatcher": in_books(all=book), "Gate": {}}
    Rekeying(config(FINE))(entries)
    entry = entries["Dispatcher"][(FINE.of_place(LAT + 0.2, LON),)]
    assert (entry.head, entry.far, entry.timers_) == (None, {}, [])


def test_what_is_kept_of_a_rider_names_the_region_of_now() -> None:
    """What is said of a request again goes where its ride is: in another region it would be another ride."""
    asked = request("r1", 1.0)
    asked.region = COARSE.of_zone(asked.zone)
    to = config(FINE, everywhere=True)
    entry = EntryLayout(kept_states(Riders())).new()
    entry.requests = (NEVER, {"r1": RiderRequest(asked.region, 5, "r0", 1, msgspec.json.encode(asked))})
    entry.pending_ = [PendingRow(1_000, "m:0:1", event_encoder(Riders(to))(asked), None, True)]
    Rekeying(to)({"Dispatcher": {}, "Gate": {}, "Riders": {("ann",): entry}})
    known = entry.requests[1]["r1"]
    said = [msgspec.json.decode(known.asked, type=RideRequest)]
    said += [event_decoder(Riders(to))(row.raw) for row in entry.pending_]
    assert [known.region, *(event.region for event in said)] == [FINE.of_zone(asked.zone)] * 3


def test_word_from_a_region_of_before_leaves_a_request_where_it_is() -> None:
    """It was said before the regions changed, and is read after."""
    to = config(FINE, everywhere=True)
    booked = request("r1", 1.0, ahead=7_200.0)
    booked.region = FINE.of_zone(booked.zone)
    at = booked.event_time_ms
    begun = Handover(
        "h1", "", "old", "old", "standard", LAT, LON, 0, at + 1_000, 0, 0, 0, "r1", rider_id=booked.rider_id
    )
    other = msgspec.structs.replace(
        booked, request_id="r2", event_time_ms=at + 2_000, pickup_at_ms=at + 2_000
    )
    driver = TestDriver(Riders(to))
    driver.send_batch([("ann", event.event_time_ms, event) for event in (booked, begun, other)])
    driver.advance_watermark(at + 3_000)
    assert [(asked.request_id, asked.other) for asked in driver.values()] == [("r1", ""), ("r2", "")]


def test_a_booking_that_waits_for_a_ride_that_has_just_ended_hears_of_it() -> None:
    """The ride has ended in its region; word of it is read after the regions have changed."""
    to = config(FINE, everywhere=True)
    booked = request("r2", 1.0, ahead=7_200.0)
    at = booked.event_time_ms
    layout = EntryLayout(kept_states(Riders()))
    entry = layout.new()
    waiting = RiderRequest("old", booked.pickup_at_ms, "r1", 1, msgspec.json.encode(booked))
    entry.requests = (NEVER, {"r1": RiderRequest("older", at - 1, "", 0, b""), "r2": waiting})
    Rekeying(to)({"Dispatcher": {}, "Gate": {}, "Riders": {("ann",): entry}})
    over = Handover(
        "h1", "", "older", "older", "standard", LAT, LON, 0, at, 0, 0, 0, "r1", rider_id="ann", is_over=True
    )
    host = MemoryHost(Riders(to))
    ((text, entry),) = scattered(layout, {("ann",): entry})
    host.store.open(text).entry = entry
    host.store.commit(host.watermark)
    said = host.run_batch([("ann", at, over)]) + host.drain()
    assert [json.loads(e.payload).get("marks") for e in said if e.output == "main"][:1] == [2]
    assert json.loads(said[0].payload)["region"] == FINE.of_zone(booked.zone)


def test_what_drivers_have_answered_is_added_up_and_goes_with_them() -> None:
    """Of random regions that become one, and of one that becomes many, against sums over all answers."""
    for seed in range(case_count(60)):
        draws = random.Random(seed)
        layout, answers, to = EntryLayout(kept_states(Dispatcher())), AcceptanceConfig(), config(ONE)
        entries: dict[str, Entries] = {"Dispatcher": {}, "Gate": {}}
        heard = list[tuple[str, bool, int]]()
        for region in draws.sample(["a", "b", "c"], 3):
            entry, kept = layout.new(), Tallied()
            for at in sorted(draws.randrange(10**9) for _ in range(draws.randrange(6))):
                heard.append((f"d{draws.randrange(3)}", draws.random() < 0.5, at))
                Acceptance(kept, answers, at).hear(heard[-1][0], 400.0, yes=heard[-1][1])
                kept_idle = entry.idled.get("d0", (0, Idle()))[1]
                entry.idled["d0"] = (at, Idle(kept_idle.until(at, 4 * 3_600_000) + 1_000, at))
            entry.answered = {name: (tally.at_ms, tally) for name, tally in kept.items()}
            entries["Dispatcher"][region,] = entry
        Rekeying(to)(entries)
        (entry,) = entries["Dispatcher"].values()
        now = 10**9
        for about in ["all", "m:0", "d:d0", "d:d1", "d:d2"]:
            of = [one for one in heard if about[:2] != "d:" or one[0] == about[2:]]
            known = entry.answered.get(about, (0, Tally()))[1].faded(now, answers.half_life_ms)
            yes = sum(said * 0.5 ** ((now - at) / answers.half_life_ms) for _, said, at in of)
            assert known.yes == pytest.approx(yes)
        idle = sum(1_000 * 0.5 ** ((now - at) / (4 * 3_600_000)) for _, _, at in heard)
        assert entry.idled.get("d0", (0, Idle()))[1].until(now, 4 * 3_600_000) == pytest.approx(idle)


class Tallied(dict[str, Tally]):
    def put(self, key: str, value: Tally) -> None:
        self[key] = value


def test_what_is_known_of_a_driver_goes_where_the_driver_is_and_of_the_fleet_to_all() -> None:
    ride = Ride("r1", "ann", "standard", ZONE, LAT, LON, 0, 0, "accepted", driver_id="d1")
    entries: dict[str, Entries] = {"Dispatcher": a_region(ride), "Gate": {}}
    entry = entries["Dispatcher"][("all",)]
    entry.cars["d2"] = Car(LAT + 0.2, LON, 0, 0, True, 0)
    entry.head.sizes["cars"] = 2
    entry.answered = {name: (9, Tally(1.0, 2.0, 5)) for name in ("all", "d:d1", "d:d2")}
    entry.idled = {name: (9, Idle(7.0, 5)) for name in ("d1", "d2")}
    Rekeying(config(FINE))(entries)
    after = {key[0]: (set(e.answered), set(e.idled)) for key, e in entries["Dispatcher"].items()}
    far_north = str(h3.latlng_to_cell(LAT + 0.2, LON, 7))
    assert after == {ZONE: ({"all", "d:d1"}, {"d1"}), far_north: ({"all", "d:d2"}, {"d2"})}


def test_what_a_region_without_cars_has_learned_goes_where_its_drivers_are_now() -> None:
    ride = Ride("r1", "ann", "standard", ZONE, LAT, LON, 0, 0, "accepted", driver_id="d1")
    entries: dict[str, Entries] = {"Dispatcher": a_region(ride), "Gate": {}}
    empty = EntryLayout(kept_states(Dispatcher())).new()
    empty.answered = {"all": (9, Tally(1.0, 2.0, 5)), "d:d1": (9, Tally(1.0, 2.0, 5))}
    entries["Dispatcher"][("north",)] = empty
    Rekeying(config(FINE))(entries)
    assert {key: set(e.answered) for key, e in entries["Dispatcher"].items()} == {(ZONE,): {"all", "d:d1"}}
