from __future__ import annotations

import random

import msgspec
import pytest

from apps.ridesharing.config import DispatchConfig
from apps.ridesharing.events import Signal
from apps.ridesharing.gate import Gate
from apps.ridesharing.geo import distance_m
from apps.ridesharing.records import Handover
from apps.ridesharing.regions import Regions
from apps.ridesharing.replay import as_signal
from millrace.testing import TestDriver
from millrace.testing.properties import invariant, leaks
from tests.unit.apps.ridesharing.cases import (
    Whole,
    answer,
    cancel,
    command,
    ms,
    position,
    progress,
    request,
    status,
)

#: Two regions, the border 0.9 km north of the middle.
NORTH_SOUTH = Regions(lat_cuts=((37.7781,),))
HALVES = DispatchConfig(regions=NORTH_SOUTH, window_ms=10_000)


def gate(config: DispatchConfig | None = None) -> TestDriver:
    return TestDriver(Gate(config))


def send(driver: TestDriver, *signals: Signal) -> None:
    for s in signals:
        driver.send(s.entity, s, at=s.event_time_ms, input=s.stream)


def dead(driver: TestDriver) -> list[tuple[str, str]]:
    return [(d["reason"], d["error"]) for d in driver.values("dead_letters")]


def test_every_stream_goes_to_the_region_of_its_zone() -> None:
    driver = gate(HALVES)
    signals = [
        request("south", 1, -3.0),
        request("north", 2, 5.0),
        answer("south", "d1", 3, zone="8728308f0ffffff"),
        cancel("south", 4),
        progress("south", "d1", 5, "arrived"),
        position("d1", 6, -3),
        status("d2", 7, "online", 5),
    ]
    send(driver, *signals)
    regions = [s.region for s in driver.values()]
    assert regions[0] == regions[5] == "r0-0"
    assert regions[1] == regions[6] == "r0-1"
    assert set(regions) == {"r0-0", "r0-1"}
    assert dead(driver) == []


def test_what_is_incomplete_or_for_nowhere_is_a_dead_letter_with_a_reason() -> None:
    driver = gate()
    send(
        driver,
        request("r1", 1, pickup_lat=None),
        position("d1", 2, lat=None),
        msgspec.structs.replace(position("d1", 3), entity="d2"),
        position("d1", 4, vehicle_class=None),
        answer("r1", "d1", 5, zone="nowhere"),
        answer("r1", "d1", 5.5, zone="85283083fffffff"),
        cancel("r1", 6, by=None),  # type: ignore[arg-type]
        msgspec.structs.replace(status("d3", 7, "offline"), lat=None),
        command("block", 8, driver_id="d9"),
    )
    assert [reason for reason, _ in dead(driver)] == [
        "schema", "schema", "schema", "schema", "range", "range", "schema", "schema", "range",
    ]  # fmt: skip
    assert "pickup_lat" in dead(driver)[0][1]
    assert driver.values() == []


def test_repeats_go_to_the_dead_letters_and_not_to_a_region() -> None:
    driver = gate()
    signals = [request("r1", 1), answer("r1", "d1", 2), position("d1", 3), status("d2", 4, "offline")]
    send(driver, *signals)
    driver.restart()
    send(driver, *signals)
    assert len(driver.values()) == 4
    assert [reason for reason, _ in dead(driver)] == ["duplicate"] * 4


def test_of_positions_those_pass_that_say_something_new() -> None:
    driver = gate(DispatchConfig(refresh_ms=10_000, move_m=50))
    send(
        driver,
        position("d1", 0),
        position("d1", 4, 0.01),
        position("d1", 8, 0.06),
        position("d1", 9, 0.06, state="approaching"),
        position("d1", 12, 0.07, state="approaching"),
        position("d1", 19, 0.07, state="approaching"),
    )
    assert [(s.event_time_ms - ms(0)) / 1_000 for s in driver.values()] == [0, 8, 9, 19]


def test_late_signals_are_told_and_pass_all_the_same_unless_something_newer_is_known() -> None:
    driver = gate()
    send(driver, position("d1", 100), request("r1", 50), position("d1", 60, 1))
    assert [s.stream for s in driver.values()] == ["locations", "requests"]
    assert [entry["lateness_ms"] for entry in driver.values("late")] == [49_999, 39_999]


def test_a_driver_stays_with_its_region_until_it_is_handed_over() -> None:
    driver = gate(HALVES)
    send(driver, position("d1", 0, -1), position("d1", 20, 3))
    handed = Signal(
        ms(21), "handovers", "d1", "h1", driver_id="d1", region="r0-1", from_region="r0-0",
        lat=37.8, lon=-122.42, seen_ms=ms(20), vehicle_class="standard",
    )  # fmt: skip
    send(driver, handed, position("d1", 40, 3.2))
    assert [(s.stream, s.region) for s in driver.values()] == [
        ("locations", "r0-0"),
        ("locations", "r0-0"),
        ("handovers", "r0-1"),
        ("locations", "r0-1"),
    ]
    send(driver, msgspec.structs.replace(handed, event_id="h2", region="r0-0", event_time_ms=ms(30)))
    assert driver.values()[-1].region == "r0-0"
    assert driver.values("late") == [], "a handover is read after what caused it has passed"


def signals_of_two_drivers() -> list[tuple[str, int, Signal, str]]:
    found = [position(f"d{n}", s + n / 10, s / 100) for n in range(2) for s in range(0, 120, 7)]
    found += [request(f"r{s}", s) for s in range(5, 100, 20)]
    found += [answer("r5", "d1", 17), cancel("r25", 31)]
    return [(s.entity, s.event_time_ms, s, s.stream) for s in found]


def test_cuts_restarts_and_repeats_do_not_matter() -> None:
    invariant(Gate(HALVES), signals_of_two_drivers(), bound_ms=5_000, duplicates=10, runs=8)


def test_the_gate_forgets() -> None:
    assert leaks(Gate(HALVES), signals_of_two_drivers()) == []


def test_a_driver_takes_less_than_100_bytes_at_the_gate() -> None:
    driver = gate()
    send(driver, *[position(f"driver-{n:08}", n / 100) for n in range(100)])
    cells = driver.host.store.cells.values()
    assert sum(len(bytes(cell.body)) for cell in cells) / 100 < 100


@pytest.mark.parametrize("borrow", [False, True])
def test_a_driver_who_crosses_the_border_is_handed_over_and_never_owned_twice(borrow: bool) -> None:
    whole = Whole(msgspec.structs.replace(HALVES, borrow=borrow))
    whole.run([position("d1", 0, -1), position("d1", 20, 3)], 20)
    (handover,) = whole.of("handovers")
    assert (handover["from_region"], handover["region"], handover["event_time_ms"]) == (
        "r0-0",
        "r0-1",
        ms(20) + 1,
    )
    # A position that was on its way to the old region does not bring the driver back there.
    whole.run([position("d1", 20.0005, 3.1)], 20.0005)
    again = as_signal(msgspec.convert(handover, Handover))
    whole.run([again, position("d1", 40, 3.2), request("r1", 41, 3.3)], 60)
    assert [(o["driver_id"], o["region"]) for o in whole.of("offers")] == [("d1", "r0-1")]
    assert [(d["region"], d["change"]) for d in whole.of("drivers")] == [
        ("r0-0", "entered"), ("r0-0", "left"), ("r0-1", "entered"),
    ]  # fmt: skip
    assert whole.of("main") == []


def test_a_region_without_a_car_borrows_one_across_the_border() -> None:
    whole = Whole(HALVES)
    beats = [position("d1", s, 0.2) for s in (0, 20, 40, 60)]
    whole.run([beats[0], request("r1", 1, 2.5)], 20)
    (wish,) = whole.of("handovers")
    assert (wish["driver_id"], wish["request_id"], wish["region"]) == ("", "r1", "r0-0")
    whole.run([as_signal(msgspec.convert(wish, Handover)), beats[1]], 30)
    lent = whole.of("handovers")[-1]
    assert (lent["driver_id"], lent["region"]) == ("d1", "r0-1")
    whole.run([as_signal(msgspec.convert(lent, Handover)), beats[2]], 50)
    assert [(o["driver_id"], o["region"]) for o in whole.of("offers")] == [("d1", "r0-1")]


@pytest.mark.parametrize("latitude", [0.0, 37.77, -54.8, 78.2])
def test_a_driver_is_reported_once_the_great_circle_is_as_long_as_asked(latitude: float) -> None:
    draws = random.Random(int(latitude))
    driver = gate(DispatchConfig(move_m=50.0, refresh_ms=10_000_000))
    wanted, here = [], None
    for n in range(300):
        signal = position("d1", float(n))
        reach = draws.choice([0.0, 2e-4, 9e-4])
        signal.lat = latitude + draws.uniform(-reach, reach)
        signal.lon = 10.0 + draws.uniform(-reach, reach) / (1.0 if latitude < 60 else 0.2)
        if here is None or distance_m(*here, signal.lat, signal.lon) >= 50.0:
            here = (signal.lat, signal.lon)
            wanted.append(signal.event_time_ms)
        send(driver, signal)
    assert [s.event_time_ms for s in driver.values()] == wanted
    assert 10 < len(wanted) < 290
