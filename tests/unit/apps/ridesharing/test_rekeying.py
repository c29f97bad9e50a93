"""Regions split and merge while the app is stopped: nothing is lost, and nobody is dispatched twice."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import h3
import msgspec
import pytest

from millrace.host.memory import LiveStore, MemoryHost
from millrace.inspect.gathering import Entries, gathered, scattered
from millrace.process import kept_states
from millrace.state.layout import EntryLayout
from millrace_apps.ridesharing.config import DispatchConfig
from millrace_apps.ridesharing.evaluation.replay import Chain, Faults, memory_chain
from millrace_apps.ridesharing.operations.rekeying import CannotBeRekeyed, Rekeying
from millrace_apps.ridesharing.processes.dispatcher import Dispatcher
from millrace_apps.ridesharing.processes.matching import Rules
from millrace_apps.ridesharing.processes.regions import Regions
from millrace_apps.ridesharing.state.entries import Car, Closed, Due, Head, Ride
from millrace_apps.ridesharing.state.lifecycle import TERMINAL
from tests.unit.apps.ridesharing.cases import LAT, LON, ZONE
from tests.unit.apps.ridesharing.evenings import evening

SEEDS = range(min(10, int(os.environ.get("MILLRACE_CASES", "2"))))
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


def rekeyed(chain: Chain, to: DispatchConfig) -> Chain:
    """Processes with other regions that go on from what these have kept."""
    made = Chain(lambda: memory_chain(Dispatcher(to)))
    old, new = chain._chain.hosts, made._chain.hosts
    work = Rekeying(to)
    entries = {h.runner.process.name: entries_of(h) for h in old if h.runner.process.name in work.processes}
    before, remembered = held(entries["Dispatcher"]), noted(entries["Dispatcher"])
    work(entries)
    assert held(entries["Dispatcher"]) == before
    assert noted(entries["Dispatcher"]) == remembered
    owners = {key[0]: entry.track[1].owner for key, entry in entries["Gate"].items() if entry.track}
    for (region,), entry in entries["Dispatcher"].items():
        assert to.regions.has(region)
        assert {owners.get(driver, region) for driver in entry.cars} <= {region}
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
        sizes = {**{names[kind]: n for kind, n in counts.items()}, **sizes_of(entry)}
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
        return rekeyed(chain, configs[number]) if not left and number < len(configs) else chain

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
