"""Which cars serve whom, which riders and drivers would rather have each other, and which never meet."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from millrace.places import distance_m
from millrace.runtime.settings import SettingsError, load_settings
from millrace.testing import TestDriver
from millrace_apps.ridesharing.config import DispatchConfig
from millrace_apps.ridesharing.contracts.events import Control, SetPair, SetPolicy
from millrace_apps.ridesharing.evaluation.replay import Faults
from millrace_apps.ridesharing.processes.dispatch_region import DispatchRegion
from millrace_apps.ridesharing.processes.dispatcher import Dispatcher
from millrace_apps.ridesharing.processes.matching import (
    FreeCar,
    Rider,
    Rules,
    Serves,
    fifo,
    nearest,
    optimal,
    problem,
)
from millrace_apps.ridesharing.processes.regions import Regions
from millrace_apps.ridesharing.processes.switches import Switch, switch_of
from millrace_apps.ridesharing.settings import RidesharingSettings
from millrace_apps.ridesharing.state.book import Book
from millrace_apps.ridesharing.state.entries import Car, Head, Ride
from millrace_apps.ridesharing.state.pairs import MOST_PAIRS, Pair, by_rider, keep_pair, named, stands
from tests.cases import case_count
from tests.unit.apps.ridesharing.cases import (
    CONFIG,
    LAT,
    LON,
    REGION,
    ZONE,
    answer,
    bring,
    command,
    dispatcher,
    ms,
    position,
    request,
)
from tests.unit.apps.ridesharing.evenings import evening

CASES = case_count(300)
KINDS = ("standard", "xl", "premium", "accessible")
CITY = (Serves("xl", "standard", 60_000), Serves("premium", "standard", 90_000),
        Serves("accessible", "standard", 200_000), Serves("accessible", "xl", 30_000))  # fmt: skip
MIXED = msgspec.structs.replace(
    CONFIG, rules=msgspec.structs.replace(CONFIG.rules, serves=CITY, favourite_ms=120_000)
)


def pair(kind: Any, driver: str, rider: str = "rider-r1", at: float = 0.0, name: str = "p1") -> SetPair:
    return SetPair(rider, driver, kind, name, "ann", "a test", ms(at) if at else 0)


# -- the cost of a pair ---------------------------------------------------------------------------


def by_hand(riders: list[Rider], cars: list[FreeCar], rules: Rules) -> dict[tuple[int, int], int]:
    """Every pair that may be made, with what it costs beside the drive, one after the other."""
    found = {}
    for r, rider in enumerate(riders):
        for c, car in enumerate(cars):
            extra = 0
            if car.vehicle_class != rider.vehicle_class:
                both = (car.vehicle_class, rider.vehicle_class)
                costs = [s.cost_ms for s in rules.serves if (s.vehicle_class, s.wanted) == both]
                if not costs:
                    continue
                extra = costs[0]
            if car.driver_id in rider.excluded:
                continue
            if distance_m(rider.lat, rider.lon, car.lat, car.lon) > rules.radius_m:
                continue
            found[r, c] = extra - (rules.favourite_ms if car.driver_id in rider.favourites else 0)
    return found


def test_the_pairs_and_what_they_cost_are_those_found_one_by_one() -> None:
    for seed in range(CASES):
        draws = random.Random(seed)
        serves = tuple(
            Serves(car, wanted, draws.randrange(400_000))
            for car in KINDS for wanted in KINDS[:3] if car != wanted and draws.random() < 0.4
        )  # fmt: skip
        rules = Rules(serves=serves, favourite_ms=draws.randrange(300_000), car_value_ms=0, drop_value_ms=0)

        def place(draws: random.Random = draws) -> tuple[float, float]:
            return LAT + draws.uniform(-0.03, 0.03), LON + draws.uniform(-0.03, 0.03)

        cars = [FreeCar(f"d{n}", *place(), draws.choice(KINDS)) for n in range(draws.randrange(14))]
        names = [car.driver_id for car in cars] + ["gone"]

        def some(draws: random.Random = draws, names: list[str] = names) -> frozenset[str]:
            return frozenset(draws.sample(names, min(len(names), draws.randrange(4))))

        riders = [
            Rider(f"r{n}", *place(), draws.choice(KINDS), draws.randrange(300_000), some(), favourites=some())
            for n in range(draws.randrange(10))
        ]
        given = problem(riders, cars, rules, {})
        found = zip(given.pairs.rider.tolist(), given.pairs.car.tolist(), given.extra.tolist(), strict=True)
        assert {(r, c): extra for r, c, extra in found} == by_hand(riders, cars, rules)
        assert (given.pairs.cost == given.takes + given.extra).all()
        order = given.pairs.rider * len(cars) + given.pairs.car
        assert order.tolist() == sorted(set(order.tolist()))


@pytest.mark.parametrize("policy", [fifo, nearest, optimal])
def test_a_car_of_another_class_goes_where_its_own_is_further_off_than_it_costs(policy: Any) -> None:
    rider = Rider("r1", LAT, LON, "standard", 0)
    own, other = FreeCar("d1", LAT + 0.01, LON, "standard"), FreeCar("d2", LAT, LON, "xl")
    for cost_ms, driver in ((60_000, "d2"), (600_000, "d1")):
        rules = Rules(serves=(Serves("xl", "standard", cost_ms),))
        given = problem([rider], [own, other], rules, {})
        assert [own, other][int(given.pairs.car[policy(given)[0]])].driver_id == driver


@pytest.mark.parametrize("policy", [fifo, nearest, optimal])
def test_a_favourite_is_worth_so_much_longer_a_drive(policy: Any) -> None:
    """A kilometre takes 202 s."""
    near, far = FreeCar("d1", LAT, LON, "standard"), FreeCar("d2", LAT + 0.009, LON, "standard")
    rider = Rider("r1", LAT, LON, "standard", 0, favourites=frozenset({"d2"}))
    for worth, driver in ((190_000, "d1"), (215_000, "d2")):
        given = problem([rider], [near, far], Rules(favourite_ms=worth), {})
        assert [near, far][int(given.pairs.car[policy(given)[0]])].driver_id == driver


# -- the dispatcher --------------------------------------------------------------------------------


def offered(driver: TestDriver) -> list[tuple[str, str]]:
    return [(o.request_id, o.driver_id) for o in driver.values("offers")]


def test_by_default_each_class_serves_its_own_alone() -> None:
    driver = dispatcher()
    bring(driver, position("d1", 0, vehicle_class="xl"), request("r1", 2), until=30)
    assert offered(driver) == []


def test_an_xl_serves_a_standard_rider_where_it_may_and_no_alarm_is_raised() -> None:
    driver = dispatcher(MIXED)
    bring(driver, position("d1", 0, vehicle_class="xl"), request("r1", 2), until=30)
    assert offered(driver) == [("r1", "d1")]
    assert [j.fits for j in driver.values() if j.step == "open"] == [True]
    first = driver.values("attempts")[0]
    assert (first.vehicle_class, first.wanted_class) == ("xl", "standard")


def test_who_needs_an_accessible_car_gets_no_other() -> None:
    driver = dispatcher(MIXED)
    others = [position(f"d{n}", n / 10, vehicle_class=kind) for n, kind in enumerate(KINDS[:3])]
    asked = request("r1", 2, vehicle_class="accessible")
    bring(driver, *others, asked, position("d9", 15, 2.5, vehicle_class="accessible"), until=30)
    assert offered(driver) == [("r1", "d9")]


def test_who_is_never_to_meet_is_not_matched_and_not_assigned_from_then_on() -> None:
    driver = dispatcher()
    bring(driver, position("d1", 0, 0.1))
    driver.broadcast(pair("block", "d1"))
    bring(driver, request("r1", 2), request("r2", 3), until=30)
    assert offered(driver) == [("r2", "d1")]
    told = [(o.action, o.outcome, o.detail, o.driver_id) for o in driver.values("operations")]
    assert ("pair", "done", "block: rider rider-r1", "d1") in told
    driver.broadcast(pair("none", "d1", name="p2"))
    bring(driver, answer("r2", "d1", 31, "reject"), position("d1", 32, 0.1), until=45)
    assert offered(driver)[-1] == ("r1", "d1")


def test_an_assignment_by_hand_of_two_who_are_never_to_meet_is_refused() -> None:
    driver = dispatcher(MIXED)
    driver.broadcast(pair("block", "d1"))
    assign = command("assign", 5, request_id="r1", driver_id="d1")
    bring(driver, position("d1", 0, 0.1), request("r1", 2), assign, until=9)
    assert [(o.outcome, o.detail) for o in driver.values("operations") if o.action == "assign"] == [
        ("refused", "the rider and the driver are not to meet")
    ]


def test_a_favourite_is_asked_first() -> None:
    driver = dispatcher()
    driver.broadcast(pair("favourite", "d2"))
    bring(driver, position("d1", 0, 0.1), position("d2", 1, 0.4), request("r1", 2), until=20)
    assert offered(driver) == [("r1", "d2")]


def test_what_holds_from_later_on_holds_from_then_on_and_over_restarts() -> None:
    driver = dispatcher()
    driver.broadcast(pair("block", "d1", at=15))
    bring(driver, position("d1", 0, 0.1), request("r1", 2), answer("r1", "d1", 12, "reject"), until=12.5)
    assert offered(driver) == [("r1", "d1")]
    driver.restart()
    again = request("r2", 14)
    bring(driver, msgspec.structs.replace(again, rider_id="rider-r1"), until=60)
    assert offered(driver) == [("r1", "d1")]


def test_more_pairs_than_are_kept_are_refused_and_the_trail_says_so() -> None:
    kept: dict[str, Any] = {}

    class Kept(dict[str, Any]):
        def put(self, key: str, value: Any) -> None:
            self[key] = value

        def remove(self, key: str) -> None:
            self.pop(key, None)

    kept = Kept()
    for n in range(MOST_PAIRS):
        assert keep_pair(pair("block", f"d{n}"), 0, kept) == ""
    assert "kept already" in keep_pair(pair("block", "another"), 0, kept)
    assert keep_pair(pair("favourite", "d7"), 0, kept) == ""
    assert keep_pair(pair("none", "d7"), 9, kept) == ""
    assert len(kept) == MOST_PAIRS
    assert keep_pair(pair("none", "d7"), 9, kept) == ""


def test_pairs_who_are_nothing_to_each_other_any_more_take_no_room() -> None:
    class Kept(dict[str, Any]):
        put, remove = dict.__setitem__, dict.pop

    kept = Kept()
    for n in range(MOST_PAIRS):
        assert keep_pair(pair("block", f"d{n}"), 10, kept) == ""
    for n in range(1, MOST_PAIRS):
        assert keep_pair(pair("none", f"d{n}"), 20, kept) == ""
    keep_pair(msgspec.structs.replace(pair("none", "d0"), from_ms=90), 20, kept)
    assert keep_pair(pair("block", "another"), 80, kept) == ""
    assert {(one.driver_id, one.stands[-1][1]) for one in kept.values()} == {
        ("d0", "none"),
        ("another", "block"),
    }


def test_what_is_late_is_handled_after_what_was_said_of_a_pair_before_it() -> None:
    driver = dispatcher()
    bring(driver, position("d1", 0, 0.1), request("r1", 2), until=3)
    driver.broadcast(pair("block", "d1"))
    driver.send(REGION, command("assign", 2.5, request_id="r1", driver_id="d1"), at=ms(2.5))
    driver.advance_watermark(ms(30))
    assert [o.detail for o in driver.values("operations") if o.action == "assign"] == [
        "the rider and the driver are not to meet"
    ]
    assert offered(driver) == []


def test_the_journal_says_who_is_never_to_meet_of_a_ride_given_by_hand_too() -> None:
    """The auditor is to see it where the dispatcher does not."""
    said: list[tuple[str, Any]] = []
    book = Book(head=Head())
    car = Car(LAT, LON, ms(0), 0, True, ms(0))
    known = {"ann": {"d1": ((0, "block"),)}}
    region = DispatchRegion(book, CONFIG, REGION, ms(1), lambda *one: said.append(one), pairs=known)  # type: ignore[arg-type]
    region.take_in("d1", car)
    region.open_ride(Ride("r1", "ann", "standard", ZONE, LAT, LON, ms(1), ms(1)))
    region.assign(book.rides["r1"], "d1", 0.0)
    assert [one.apart for name, one in said if name == "main" and one.step == "open"] == [True]


def test_the_trail_has_every_pair_of_many_that_come_at_once_and_what_came_before_them() -> None:
    driver = dispatcher()
    bring(driver, position("d1", 0, 0.1))
    later = [SetPair(f"r{n}", "d9", "block", f"later{n}", "ann", "test", ms(9_000)) for n in range(300)]
    now = [SetPair(f"r{n}", "d8", "block", f"now{n}", "ann", "test") for n in range(300)]
    driver.broadcast(*later, SetPolicy("fifo", 0, "c1", "ann", "a test"), *now)
    bring(driver, request("r1", 2), until=60)
    told = [o.command_id for o in driver.values("operations")]
    assert sorted(told) == sorted(["c1", *(one.command_id for one in now)])


def test_of_too_many_switches_those_are_forgotten_that_have_been_in_force_longest() -> None:
    class Kept(dict[str, Any]):
        put, remove = dict.__setitem__, dict.pop

    kept = Kept()
    for n in range(MOST_PAIRS + 200):
        kept.put(f"{n:020d} c{n}", Switch(f"c{n}", "policy", "fifo", "ann", "", n))
    switch_of(SetPolicy("fifo", 7_000, "later", "ann", ""), 50, kept)
    assert len(kept) == MOST_PAIRS + 200
    assert not any(one.command_id == "c0" for one in kept.values())
    for name in [name for name in kept if int(name[:20]) <= 50]:
        kept.remove(name)
    for n in range(60):
        switch_of(SetPolicy("fifo", 0, f"now{n}", "ann", ""), 50, kept)
    assert len(kept) == MOST_PAIRS + 200
    assert not any(one.command_id == "later" for one in kept.values())
    assert sum(one.command_id.startswith("now") for one in kept.values()) == 60


def test_what_is_said_of_a_pair_last_holds_from_its_time_on_whatever_was_said_before() -> None:
    """Against the whole history, looked through anew at every moment."""

    class Kept(dict[str, Any]):
        def put(self, key: str, value: Any) -> None:
            self[key] = msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=Pair)

        def remove(self, key: str) -> None:
            self.pop(key, None)

    for seed in range(CASES):
        draws = random.Random(seed)
        kept, said, watermark = Kept(), list[tuple[int, str]](), 0
        for n in range(12):
            watermark += draws.randrange(4)
            kind: Any = draws.choice(["block", "favourite", "none"])
            begins = draws.choice([0, watermark + draws.randrange(12)])
            keep_pair(SetPair("ann", "d1", kind, f"c{n}", "bob", "test", begins), watermark, kept)
            said.append((max(begins, watermark), kind))
            for now in range(watermark, watermark + 20):
                # The last word whose time has come, of those that no later word of an earlier time undoes.
                holds = "none"
                for place in range(len(said) - 1, -1, -1):
                    at, what = said[place]
                    undone = any(later <= at for later, _ in said[place + 1 :])
                    if at <= now and not undone:
                        holds = what
                        break
                assert stands(by_rider(kept.items()), "ann", "d1", now) == holds
                who = named(by_rider(kept.items()), "ann", now)
                assert (who.blocked, who.favourites) == (
                    frozenset({"d1"} if holds == "block" else ()),
                    frozenset({"d1"} if holds == "favourite" else ()),
                )
        assert len(kept) <= 1


def test_a_switch_of_pairs_is_none_of_the_policy() -> None:
    driver = dispatcher()
    driver.broadcast(pair("favourite", "d1"), SetPolicy("fifo", 0, "c2", "ann", "a test"))
    bring(driver, position("d1", 0, 0.1), request("r1", 2), until=20)
    assert [w.policy for w in driver.values("windows")] == ["fifo"]


@pytest.mark.parametrize(("seed", "parent"), [(1, -1), (2, -1), (3, 6), (4, 6)])
def test_evenings_of_pairs_and_classes_violate_nothing_and_some_would(seed: int, parent: int) -> None:
    """With delays, repeats, restarts; the audit from the topics knows who is never to meet."""
    config = DispatchConfig(rules=Rules(serves=CITY), regions=Regions(parent=parent))
    faults = Faults(duplicates=0.1, late=0.1, restarts=5, seed=seed)
    whole = evening(seed, steps=120, operators=0.2, faults=faults, pairs=0.8, config=config)
    assert whole.audited().rows == []
    assert len(whole.rows["control"]) > 50
    strict = msgspec.structs.replace(config, rules=Rules())
    whole.config = strict
    assert "class" in whole.audited().by_reason()


# -- settings --------------------------------------------------------------------------------------


def of(*serves: str) -> Rules:
    told = [f"dispatch.serves={msgspec.json.encode(serves).decode()}"]
    found = load_settings(RidesharingSettings, app="ridesharing", overrides=told, env={})
    return found.dispatch_config().rules


def test_the_matrix_is_a_setting() -> None:
    assert of("xl:standard:60s", "accessible:standard:2m").serves == (
        Serves("accessible", "standard", 120_000), Serves("xl", "standard", 60_000),
    )  # fmt: skip
    assert of().serves == ()


@pytest.mark.parametrize(
    "wrong",
    ["xl", "xl:standard", "xl:xl:5s", "xl:lorry:5s", "bus:xl:5s", "xl:standard:2h", "xl:standard:x",
     "standard:accessible:60s"],
)  # fmt: skip
def test_what_is_no_matrix_is_refused(wrong: str) -> None:
    with pytest.raises(SettingsError, match=r"dispatch\.serves"):
        of(wrong)


def test_a_pair_comes_by_the_control_topic_as_it_is_sent() -> None:
    said = pair("block", "d1")
    assert msgspec.json.decode(msgspec.json.encode(said), type=Control) == said
    assert Dispatcher(CONFIG).control_type is Control
    assert REGION == "all"
