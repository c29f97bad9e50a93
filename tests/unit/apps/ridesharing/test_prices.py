"""Prices in the whole app: who is quoted by which region, what cars count, caps, policies, their trail."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import h3
import msgspec
import pytest

from millrace.testing import TestDriver
from millrace_apps.ridesharing.config import DispatchConfig
from millrace_apps.ridesharing.contracts.events import Control, QuoteRequest, SetPolicy, SetSurgeCap
from millrace_apps.ridesharing.processes.dispatcher import Dispatcher
from millrace_apps.ridesharing.processes.gate import Gate
from millrace_apps.ridesharing.processes.matching import Rules
from millrace_apps.ridesharing.processes.regions import EVERYWHERE, Regions
from millrace_apps.ridesharing.settings import RidesharingSettings, SurgeSettings
from millrace_apps.ridesharing.surge.config import SurgeConfig
from millrace_apps.ridesharing.surge.process import Surge
from millrace_apps.ridesharing.surge.records import Asked, FreeCars
from millrace_apps.ridesharing.topology import topology
from tests.unit.apps.ridesharing.cases import (
    KM,
    LAT,
    LON,
    REGION,
    START,
    Whole,
    answer,
    bring,
    ms,
    position,
    request,
    status,
)

CELL = str(h3.latlng_to_cell(LAT, LON, 8))
#: Borders through the middle of the scenario.
HALVES = Regions(lon_cuts=(LON,), lat_cuts=((), ()))


def quote(name: str, s: float, km: float = 0.0, **more: Any) -> QuoteRequest:
    fields = {"rider_id": f"rider-{name}", "pickup_lat": LAT + km * KM, "pickup_lon": LON} | more
    return QuoteRequest(event_time_ms=ms(s), quote_id=name, **fields)


def to_gate(*events: Any, config: DispatchConfig | None = None) -> TestDriver:
    driver = TestDriver(Gate(config or DispatchConfig()))
    for event in events:
        key = event.quote_id if isinstance(event, QuoteRequest) else event.request_id
        driver.send(key, event, at=event.event_time_ms)
    return driver


def test_who_asks_and_who_requests_is_told_to_the_region_of_the_cell_with_the_quote() -> None:
    driver = to_gate(quote("q1", 1), request("r1", 2, ahead=900, quote_id="q1"))
    assert driver.values("asks") == [
        Asked("quote", "q1", "rider-q1", EVERYWHERE, CELL),
        Asked("request", "r1", "rider-r1", EVERYWHERE, CELL, "q1", 900_000),
    ]
    assert [r.quote_id for r in driver.values("requests")] == ["q1"]


def test_nobody_is_told_who_asks_where_there_are_no_prices() -> None:
    driver = to_gate(quote("q1", 1), request("r1", 2), config=DispatchConfig(free_ms=0))
    assert driver.values("asks") == []
    assert [r.request_id for r in driver.values("requests")] == ["r1"]


def test_a_cell_has_one_region_wherever_in_it_somebody_asks() -> None:
    draws = Random(3)
    places = [(LAT + draws.uniform(-0.02, 0.02), LON + draws.uniform(-0.02, 0.02)) for _ in range(400)]
    driver = to_gate(
        *(quote(f"q{n}", n, pickup_lat=lat, pickup_lon=lon) for n, (lat, lon) in enumerate(places)),
        config=DispatchConfig(regions=HALVES),
    )
    regions: dict[str, set[str]] = {}
    for asked in driver.values("asks"):
        regions.setdefault(asked.cell, set()).add(asked.region)
    assert {len(found) for found in regions.values()} == {1}
    assert set().union(*regions.values()) == {"r0-0", "r1-0"}


@pytest.mark.parametrize(("again", "reason"), [({}, "duplicate"), ({"rider_id": "x"}, "conflict")])
def test_a_quote_is_asked_for_once(again: dict[str, Any], reason: str) -> None:
    driver = to_gate(quote("q1", 1), quote("q1", 1, **again))
    assert len(driver.values("asks")) == 1
    assert [letter["reason"] for letter in driver.values("dead_letters")] == [reason]


def test_who_wants_to_leave_in_a_year_is_put_aside() -> None:
    driver = to_gate(quote("q1", 1, pickup_at_ms=ms(1) + 366 * 86_400_000))
    assert not driver.values("asks")
    assert [letter["reason"] for letter in driver.values("dead_letters")] == ["range"]


@pytest.mark.parametrize("seed", range(8))
def test_free_cars_are_those_that_could_be_offered_a_ride_by_the_region_of_their_cell(seed: int) -> None:
    draws = Random(seed)
    config = DispatchConfig(regions=HALVES, ttl_ms=60_000, borrow=False)
    driver = TestDriver(Dispatcher(config))
    events = []
    for n in range(40):
        name, s = f"d{n % 15}", draws.uniform(0, 118)
        lon = LON + draws.choice((-1e-4, -1e-3, -0.02)) + draws.uniform(-0.002, 0.001)
        events.append(
            position(name, s, draws.uniform(-3, 3), lon=lon, state=draws.choice(("idle", "on_trip")))
        )
    for event in sorted(events, key=lambda e: e.event_time_ms):
        event.region = "r0-0"
    # A car that crosses the border leaves this region's book.
    here = [e for e in events if HALVES.of_place(e.lat, e.lon) == "r0-0"]
    last = {e.driver_id: e for e in sorted(here, key=lambda e: e.event_time_ms)}
    bring_to(driver, "r0-0", here, 120)
    wanted: dict[str, Counter[str]] = {}
    for event in last.values():
        if event.state == "idle" and ms(120) - event.event_time_ms <= 60_000:
            cell = h3.latlng_to_cell(event.lat, event.lon, 8)
            wanted.setdefault(HALVES.of_zone(cell), Counter())[cell] += 1
    told = [one for one in driver.values("free") if one.at_ms == ms(120)]
    assert {one.region: one.cells for one in told} == wanted
    assert {one.source for one in told} <= {"r0-0"}


def bring_to(driver: TestDriver, region: str, events: list[Any], until: float) -> None:
    for event in sorted(events, key=lambda e: e.event_time_ms):
        driver.advance_watermark(event.event_time_ms - 1)
        driver.send(region, event, at=event.event_time_ms)
    driver.advance_watermark(ms(until))


def test_a_car_on_its_way_or_off_line_is_not_free() -> None:
    driver = TestDriver(Dispatcher(DispatchConfig()))
    bring(
        driver, position("d1", 1), position("d2", 2, 0.5), request("r1", 5), status("d2", 31, "offline"),
        position("d1", 40), until=90,
    )  # fmt: skip
    counts = {(one.at_ms - START) // 1_000: sum(one.cells.values()) for one in driver.values("free")}
    assert counts[30] == 1, "the other has an offer"
    assert max((n for at, n in counts.items() if at > 31), default=0) <= 1


def test_cars_that_are_taken_and_riders_who_wait_are_told_once_and_as_they_are() -> None:
    """One car: the first rider is offered it, the others wait; it is free again, taken again, and gone.

    ::

        d1   |--------offered-----rejects-offered-accepts------------|
        r1       x----------------x         r2 has it
        told     30: r1 bound     60: r2 bound, r1 waits     90: nobody bound
    """
    driver = TestDriver(Dispatcher(DispatchConfig()))
    bring(
        driver, position("d1", 1), request("r1", 5), request("r2", 20, 2.0), answer("r1", "d1", 19, "reject"),
        answer("r2", "d1", 28), position("d1", 55), request("r3", 70), until=91,
    )  # fmt: skip
    told = {(one.at_ms - START) // 1_000: one for one in driver.values("free")}
    far = str(h3.latlng_to_cell(LAT + 2 * KM, LON, 8))
    assert sorted(told) == [30, 60, 90]
    assert (told[30].cells, told[30].taken, told[30].waiting) == ({}, {CELL: 1}, {CELL: 1})
    assert (told[60].cells, told[60].taken, told[60].waiting) == ({}, {}, {CELL: 1})
    assert (told[90].cells, told[90].taken, told[90].waiting) == ({}, {}, {CELL: 2})
    assert far != CELL


def test_who_waits_is_told_where_there_is_no_car() -> None:
    driver = TestDriver(Dispatcher(DispatchConfig()))
    bring(driver, request("r1", 5), request("r2", 40), until=400)
    counts = {(one.at_ms - START) // 1_000: sum(one.waiting.values()) for one in driver.values("free")}
    assert counts[30] == 1
    assert counts[60] == counts[300] == 2
    assert counts[330] == 1
    assert driver.is_empty() or max(counts) <= 360


def test_a_car_from_afar_is_sent_when_none_has_come_free_nearby() -> None:
    """Thirty ask in one place, all cars are 2 km away: once many ask, nobody has one before its time."""
    first = {}
    for near_m in (0.0, 1_000.0):
        config = DispatchConfig(rules=Rules(near_m=near_m, near_ms=60_000))
        driver = TestDriver(Dispatcher(config))
        cars = [position(f"d{n:02}", 1, 2.0) for n in range(30)]
        bring(
            driver,
            *cars,
            *(request(f"r{n:02}", 10 + n / 10) for n in range(30)),
            request("alone", 11, 2.2),
            until=110,
        )
        offers = driver.values("offers")
        first[near_m] = min(one.event_time_ms for one in offers if one.request_id > "r05")
        assert min(one.event_time_ms for one in offers if one.request_id == "alone") <= ms(15)
    assert first[0.0] <= ms(15)
    assert ms(70) <= first[1_000.0] <= ms(75)


# -- switches -----------------------------------------------------------------------------------


def switched(*controls: Control, later: float = 100) -> TestDriver:
    driver = TestDriver(Dispatcher(DispatchConfig()))
    for second in range(0, 40, 10):
        driver.send(REGION, position("d1", second), at=ms(second))
    driver.broadcast(*controls)
    for second in range(40, int(later), 10):
        driver.send(REGION, position("d1", second), at=ms(second))
        driver.advance_watermark(ms(second) + 1)
    return driver


def test_a_switch_is_told_once_by_a_region_when_it_holds_with_who_and_why() -> None:
    driver = switched(
        SetPolicy("fifo", 0, "c1", "ann", "a test"),
        SetSurgeCap(1.5, "c2", "bob", "a storm", ms(200)),
        later=400,
    )
    found = driver.values("operations")
    told = [(o.action, o.detail, o.operator, o.reason, o.outcome, o.region) for o in found]
    assert told == [
        ("policy", "fifo", "ann", "a test", "done", REGION),
        ("surge_cap", "1.5", "bob", "a storm", "done", REGION),
    ]
    times = [o.at_ms for o in found]
    assert ms(30) <= times[0] <= ms(60)
    assert ms(200) <= times[1] <= ms(230)


def test_a_cap_is_refused_where_there_are_no_prices() -> None:
    driver = TestDriver(Dispatcher(DispatchConfig(free_ms=0)))
    driver.send(REGION, position("d1", 0), at=ms(0))
    driver.broadcast(SetSurgeCap(1.5, "c1", "ann", "a storm"), SetPolicy("fifo", 0, "c2", "ann", "a test"))
    driver.advance_watermark(ms(90))
    told = [(o.action, o.outcome, o.detail) for o in driver.values("operations")]
    assert told == [("surge_cap", "refused", "surge.on is not set"), ("policy", "done", "fifo")]
    assert not driver.values("free")


def test_a_switch_that_nobody_stands_for_is_not_told_and_holds() -> None:
    driver = switched(SetPolicy("fifo"))
    driver.send(REGION, request("r1", 101), at=ms(101))
    driver.advance_watermark(ms(120))
    assert driver.values("operations") == []
    assert {w.policy for w in driver.values("windows")} == {"fifo"}


def test_a_region_that_was_empty_does_not_tell_anew_what_it_told() -> None:
    driver = switched(SetPolicy("fifo", 0, "c1", "ann", "a test"))
    day = 86_400
    for at in (2 * day, 9 * day, 30 * day):
        driver.send(REGION, position("d1", at), at=ms(at))
        driver.advance_watermark(ms(at + 90))
    assert len(driver.values("operations")) == 1


def test_no_price_is_above_a_cap_from_the_moment_on_that_it_holds() -> None:
    driver = TestDriver(Surge(SurgeConfig()))
    for n in range(0, 180, 2):
        driver.send("all", Asked("quote", f"q{n:03}", f"p{n}", "all", CELL), at=ms(n))
        if n == 150:
            driver.broadcast(SetSurgeCap(1.257, "c1", "ann", "a storm", ms(161)))
    driver.advance_watermark(ms(200))
    prices = {q.at_ms: q.multiplier for q in driver.values()}
    assert prices[ms(160)] > 1.5
    assert {m for at, m in prices.items() if at > ms(161)} == {1.25}
    lowered = [m for m in driver.values("multipliers") if m.why == "the cap was set to 1.25"]
    assert {(m.from_ms, m.multiplier) for m in lowered} == {(ms(161), 1.25)}
    assert CELL in {m.cell for m in lowered}


@pytest.mark.parametrize("at_s", [0.0, 60.0])
def test_of_two_caps_of_one_moment_the_last_holds(at_s: float) -> None:
    """The identities are chance, so that it is not they that decide."""
    for first, second in (("a", "b"), ("b", "a")):
        driver = TestDriver(Surge(SurgeConfig()))
        driver.send("all", Asked("quote", "first", "p", "all", CELL), at=ms(0))
        start = ms(at_s) if at_s else 0
        driver.broadcast(
            *(SetSurgeCap(c, n, "ann", "a storm", start) for c, n in ((1.1, first), (1.3, second)))
        )
        for n in range(1, 300):
            driver.send("all", Asked("quote", f"q{n:03}", f"p{n}", "all", CELL), at=ms(n))
        driver.advance_watermark(ms(300))
        assert max(q.multiplier for q in driver.values() if q.at_ms >= ms(at_s)) == 1.3


def test_a_plan_of_many_caps_does_not_undo_the_one_in_force() -> None:
    driver = TestDriver(Surge(SurgeConfig()))
    driver.broadcast(SetSurgeCap(1.1, "now", "ann", "a storm", 0))
    driver.send("all", Asked("quote", "first", "p", "all", CELL), at=ms(0))
    plan = [SetSurgeCap(2.0 + n / 100, f"c{n}", "ann", "week", ms(3_600 * (n + 1))) for n in range(60)]
    driver.broadcast(*plan)
    for n in range(1, 200):
        driver.send("all", Asked("quote", f"q{n:03}", f"p{n}", "all", CELL), at=ms(n))
    driver.advance_watermark(ms(200))
    assert max(q.multiplier for q in driver.values()) == 1.1


def test_a_cap_that_holds_later_changes_nothing_before() -> None:
    driver = TestDriver(Surge(SurgeConfig(cap=1.2)))
    driver.broadcast(SetSurgeCap(2.0, "c1", "ann", "a feast", ms(300)))
    driver.broadcast(SetSurgeCap(1.5, "c2", "ann", "it is over", ms(900)))
    for n in range(0, 1_000, 2):
        driver.send("all", Asked("quote", f"q{n:03}", f"p{n}", "all", CELL), at=ms(n))
    prices = {q.at_ms: q.multiplier for q in driver.values()}
    assert max(m for at, m in prices.items() if at < ms(300)) == 1.2
    assert max(m for at, m in prices.items() if at < ms(900)) == 2.0
    assert {m for at, m in prices.items() if at >= ms(900)} == {1.5}
    caps = {(m.from_ms >= ms(300)) + (m.from_ms >= ms(900)): m.cap for m in driver.values("multipliers")}
    assert caps == {0: 1.2, 1: 2.0, 2: 1.5}


def test_nobody_is_quoted_unless_it_is_asked_for() -> None:
    plain, on = RidesharingSettings(), RidesharingSettings(surge=SurgeSettings(on=True, cap=2.5))
    names = [[link.name for link in topology(settings).links] for settings in (plain, on)]
    assert names == [["Gate", "Dispatcher", "Auditor"], ["Gate", "Dispatcher", "Surge", "Auditor"]]
    assert [settings.dispatch_config().free_ms for settings in (plain, on)] == [0, 30_000]
    assert [settings.dispatch_config().rules.near_m for settings in (plain, on)] == [0.0, 1_000.0]
    assert on.dispatch_config().rules.near_ms * 2 == on.dispatch_config().patience_ms
    assert not {"quotes", "fares", "surge"} & {str(table) for _, table in topology(plain).written}
    assert {plain.topics.quotes, plain.topics.fares, plain.topics.surge} & set(
        topology(plain).topics.values()
    ) == set()


def test_prices_are_usual_under_a_cap_of_one_until_an_operator_sets_another() -> None:
    driver = TestDriver(Surge(SurgeConfig(cap=1.0)))
    for n in range(200):
        driver.send("all", Asked("quote", f"q{n:03}", f"p{n}", "all", CELL), at=ms(n))
        if n == 100:
            driver.broadcast(SetSurgeCap(3.0, "c1", "ann", "a storm"))
    prices = {q.at_ms: q.multiplier for q in driver.values()}
    assert {m for at, m in prices.items() if at < ms(100)} == {1.0}
    assert max(prices.values()) > 1.2


def test_who_asks_late_is_quoted_as_of_now() -> None:
    driver = TestDriver(Surge(SurgeConfig()))
    for n in range(100):
        driver.send("all", Asked("quote", f"q{n:03}", f"p{n}", "all", CELL), at=ms(n))
    driver.send("all", Asked("quote", "late", "p", "all", CELL), at=ms(3))
    (told,) = [q for q in driver.values() if q.quote_id == "late"]
    assert told.at_ms == ms(99) - 1
    assert told.multiplier == driver.values()[-2].multiplier > 1.0
    assert driver.values("late") == []


def test_a_rider_who_asks_again_and_again_counts_once_in_five_minutes() -> None:
    driver = TestDriver(Surge(SurgeConfig()))
    for n in range(0, 600, 3):
        driver.send("all", Asked("quote", f"q{n:03}", "p", "all", CELL), at=ms(n))
    driver.advance_watermark(ms(700))
    assert sum(count.asked for count in driver.values("counts")) == 2
    assert len(driver.values()) == 200
    assert max(q.multiplier for q in driver.values()) < 1.5


def test_a_quote_of_the_running_app_is_kept_by_its_request() -> None:
    app = Whole(DispatchConfig(), SurgeConfig(balance=0.5))
    asks = [quote(f"q{n}", 1 + n / 2) for n in range(300)]
    app.run(asks, until=160)
    quotes = {q["quote_id"]: q for q in app.of("Surge.main")}
    dear = max(quotes.values(), key=lambda q: q["multiplier"])
    assert dear["multiplier"] > 1.0
    name = dear["quote_id"]
    taken = msgspec.structs.replace(request("r1", 170, quote_id=name), rider_id=f"rider-{name}")
    app.run([taken, request("r2", 171, quote_id=name)], until=180)
    fares = {f["request_id"]: f for f in app.of("Surge.fares")}
    assert (fares["r1"]["outcome"], fares["r1"]["multiplier"]) == ("locked", dear["multiplier"])
    assert fares["r2"]["outcome"] == "foreign"
    assert {t["request_id"] for t in app.of("trips")} == {"r1", "r2"}


def test_what_regions_say_of_cells_beyond_their_border_counts_where_the_cell_is() -> None:
    config = SurgeConfig(regions=HALVES)
    driver = TestDriver(Surge(config))
    west = next(c for c in h3.grid_disk(CELL, 6) if HALVES.of_zone(c) == "r0-0")
    driver.send("r0-0", FreeCars("r0-0", "r1-0", ms(30), {west: 2}), at=ms(30))
    driver.send("r0-0", FreeCars("r0-0", "r0-0", ms(30), {west: 3}), at=ms(30))
    driver.send("r0-0", Asked("quote", "q1", "p", "r0-0", west), at=ms(31))
    driver.advance_watermark(ms(600))
    assert [c.free for c in driver.values("counts") if c.end_ms == ms(30)] == [5]
    cells = {m.cell for m in driver.values("multipliers")} | {c.cell for c in driver.values("counts")}
    assert {HALVES.of_zone(cell) for cell in cells} == {"r0-0"}


def test_prices_of_one_region_do_not_touch_cells_of_another() -> None:
    border = next(
        c for c in sorted(h3.grid_disk(CELL, 6))
        if HALVES.of_zone(c) == "r0-0" and any(HALVES.of_zone(o) == "r1-0" for o in h3.grid_ring(c, 1))
    )  # fmt: skip
    driver = TestDriver(Surge(SurgeConfig(regions=HALVES)))
    for n in range(100):
        driver.send("r0-0", Asked("quote", f"q{n}", f"p{n}", "r0-0", border), at=ms(n))
    driver.advance_watermark(ms(200))
    told = {m.cell for m in driver.values("multipliers")}
    assert border in told
    assert {HALVES.of_zone(cell) for cell in told} == {"r0-0"}
