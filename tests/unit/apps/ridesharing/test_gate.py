from __future__ import annotations

import random
from typing import Any

import h3
import msgspec
import pytest

from millrace import Context, KeyedProcess, days, hours, map_state, value_state
from millrace.dead_letters import reason_of
from millrace.places import distance_m
from millrace.testing import TestDriver
from millrace.testing.properties import invariant, leaks
from millrace_apps.ridesharing.config import DispatchConfig
from millrace_apps.ridesharing.contracts.events import (
    AHEAD_MS,
    INPUTS,
    MAX_KEY,
    MAX_TIME_MS,
    Event,
    Handover,
    Position,
    identity_of,
    key_of,
    stream_of,
)
from millrace_apps.ridesharing.processes.gate import Gate
from millrace_apps.ridesharing.processes.regions import Regions
from tests.unit.apps.ridesharing.cases import (
    LAT,
    LON,
    ZONE,
    Whole,
    answer,
    as_read,
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
HALVES = DispatchConfig(regions=NORTH_SOUTH, window_ms=10_000, most_m_per_s=0.0)


def gate(config: DispatchConfig | None = None) -> TestDriver:
    return TestDriver(Gate(config))


def send(driver: TestDriver, *events: Event) -> None:
    for event in events:
        # The gate writes into what it is given.
        driver.send(key_of(event), msgspec.structs.replace(event), at=event.event_time_ms)


def passed(driver: TestDriver) -> list[Any]:
    """What has passed the gate, by output in the order of the streams, of each as it came."""
    return [event for name in INPUTS for event in driver.values("main" if name == "locations" else name)]


def dead(driver: TestDriver) -> list[tuple[str, str]]:
    return [(d["reason"], d["error"]) for d in driver.values("dead_letters")]


def test_every_stream_goes_to_the_region_of_its_zone() -> None:
    driver = gate(HALVES)
    events = [
        request("south", 1, -3.0),
        request("north", 2, 5.0),
        answer("south", "d1", 3, zone="8728308f0ffffff"),
        cancel("south", 4),
        progress("south", "d1", 5, "arrived"),
        position("d1", 6, -3),
        status("d2", 7, "online", 5),
    ]
    send(driver, *events)
    regions = {(stream_of(e), key_of(e)): e.region for e in passed(driver)}
    assert regions["requests", "south"] == regions["locations", "d1"] == "r0-0"
    assert regions["requests", "north"] == regions["status", "d2"] == "r0-1"
    assert set(regions.values()) == {"r0-0", "r0-1"}
    assert len(regions) == len(events)
    assert dead(driver) == []


#: What an event of a stream must say, as the README has it.
MUST_SAY = {
    "locations": "event_time_ms event_id driver_id vehicle_class lat lon state",
    "status": "event_time_ms event_id driver_id vehicle_class status",
    "requests": "event_time_ms request_id rider_id vehicle_class zone pickup_lat pickup_lon dropoff_lat "
    "dropoff_lon pickup_at_ms",
    "answers": "event_time_ms event_id request_id driver_id zone offer_id attempt answer",
    "cancellations": "event_time_ms event_id request_id zone by reason",
    "progress": "event_time_ms event_id request_id driver_id zone lat lon stage",
    "commands": "event_time_ms reason command_id action operator",
}
SAID: dict[str, Event] = {
    "locations": position("d1", 1),
    "status": status("d1", 1, "online"),
    "requests": request("r1", 1),
    "answers": answer("r1", "d1", 1, reason="busy"),
    "cancellations": cancel("r1", 1, "driver", "d1"),
    "progress": progress("r1", "d1", 1, "arrived"),
    "commands": command("assign", 1, request_id="r1", driver_id="d1", zone=ZONE, until_ms=ms(2)),
}


@pytest.mark.parametrize("stream", MUST_SAY)
def test_what_an_event_must_say_it_must_say_and_the_error_names_it(stream: str) -> None:
    said = msgspec.to_builtins(SAID[stream])
    must = MUST_SAY[stream].split()
    assert as_read(stream, said | {"stream": stream, "entity": "x", "new": 1}) == SAID[stream]
    assert set(must) <= said.keys()
    for name in said:
        rest = {field: value for field, value in said.items() if field != name}
        if name not in must:
            as_read(stream, rest)
            continue
        with pytest.raises(msgspec.ValidationError, match=f"missing required field `{name}`") as missing:
            as_read(stream, rest)
        with pytest.raises(msgspec.ValidationError, match=name) as null:
            as_read(stream, rest | {name: None})
        assert {reason_of(missing.value), reason_of(null.value)} == {"schema"}
        if isinstance(said[name], str):
            with pytest.raises(msgspec.ValidationError, match=name):
                as_read(stream, rest | {name: ""})


@pytest.mark.parametrize(
    ("stream", "name", "most", "beyond"),
    [
        *(("locations", name, "x" * MAX_KEY, "x" * (MAX_KEY + 1)) for name in ("event_id", "driver_id")),
        *((stream, "event_time_ms", MAX_TIME_MS, MAX_TIME_MS + 1) for stream in MUST_SAY),
        ("locations", "lat", 90, 90.000001),
        ("progress", "lon", -180, -180.1),
        ("requests", "pickup_at_ms", MAX_TIME_MS, -1),
        ("answers", "attempt", 1, 0),
        ("answers", "reason", "x" * MAX_KEY, "x" * (MAX_KEY + 1)),
    ],
)
def test_bounds_are_those_of_the_contract(stream: str, name: str, most: Any, beyond: Any) -> None:
    said = msgspec.to_builtins(SAID[stream])
    as_read(stream, said | {name: most})
    with pytest.raises(msgspec.ValidationError, match=name) as error:
        as_read(stream, said | {name: beyond})
    assert reason_of(error.value) == "range"


def test_what_is_incomplete_or_for_nowhere_is_a_dead_letter_with_a_reason() -> None:
    driver = gate()
    under = position("d1", 3)
    driver.send("d2", under, at=under.event_time_ms)
    send(
        driver,
        answer("r1", "d1", 5, zone="nowhere"),
        answer("r1", "d1", 5.5, zone="85283083fffffff"),
        status("d3", 7, "offline", lat=None),
        command("block", 8, driver_id="d9"),
        request("r2", 9, ahead=32 * 86_400),
        command("blackout", 10, zone=ZONE, until_ms=ms(367 * 86_400)),
    )
    far = cancel("r1", 11)
    driver.send("k" * (MAX_KEY + 1), far, at=far.event_time_ms)
    assert [reason for reason, _ in dead(driver)] == [
        "schema", "range", "range", "schema", "range", "range", "range", "range",
    ]  # fmt: skip
    assert dead(driver)[5][1] == "requests: pickup_at_ms too long after the event"
    assert passed(driver) == []


def test_repeats_go_to_the_dead_letters_and_not_to_a_region() -> None:
    driver = gate()

    def events() -> list[Event]:
        by_hand = command("blackout", 2, zone=ZONE)
        first = [request("r1", 1), answer("r1", "d1", 2), position("d1", 3), status("d2", 4, "offline")]
        return [*first, cancel("r1", 5), progress("r1", "d1", 6, "arrived"), by_hand]

    send(driver, *events())
    driver.restart()
    send(driver, *events())
    assert len(passed(driver)) == 7
    assert [reason for reason, _ in dead(driver)] == ["duplicate"] * 7


def test_what_says_something_else_under_a_known_id_is_told_from_a_repeat() -> None:
    driver = gate()
    signals = [request("r1", 1), answer("r1", "d1", 2), position("d1", 3), status("d2", 4, "offline")]
    others = [
        msgspec.structs.replace(signals[0], rider_id="somebody else"),
        msgspec.structs.replace(signals[1], answer="reject"),
        msgspec.structs.replace(signals[2], lat=signals[2].lat + 0.1),
        msgspec.structs.replace(signals[3], vehicle_class="xl"),
    ]
    send(driver, *signals)
    driver.restart()
    send(driver, *others, *signals)
    assert len(passed(driver)) == 4
    assert [reason for reason, _ in dead(driver)] == ["conflict"] * 4 + ["duplicate"] * 4


def test_the_identity_of_a_request_is_nobody_elses_for_a_month() -> None:
    driver, day = gate(), 86_400
    first = request("r1", 1)
    send(driver, first, request("r1", 3 * 3_600), request("r1", 30 * day), request("r1", 63 * day))
    send(driver, msgspec.structs.replace(first, event_time_ms=ms(64 * day)))
    assert [r.event_time_ms for r in driver.values("requests")] == [ms(1), ms(63 * day)]
    assert [reason for reason, _ in dead(driver)] == ["conflict"] * 3


class _OldTrack(msgspec.Struct, array_like=True, gc=False):
    owner: str
    seen_ms: int
    sent_ms: int
    lat: float
    lon: float
    idle: bool


class _OldGate(KeyedProcess[Event, Position]):
    """What the gate kept before it kept what signals say."""

    name = "Gate"
    order = Gate.order
    inputs = Gate.inputs
    track = value_state(_OldTrack, ttl=days(1))
    seen = map_state(str, bool, ttl=hours(2))

    def process(self, event: Event, ctx: Context) -> None:
        if ctx.input == "locations":
            self.track.value = _OldTrack("all", event.event_time_ms, event.event_time_ms, 0.0, 0.0, True)
        else:
            self.seen.put(f"{ctx.input[:2]}{identity_of(event)}", True)


def test_what_an_earlier_version_has_seen_is_a_repeat_whatever_it_said() -> None:
    old, new = TestDriver(_OldGate()), gate()
    signals = [request("r1", 1), answer("r1", "d1", 2), position("d1", 3)]
    send(old, *signals)
    new.restore(old.snapshot())
    send(
        new,
        msgspec.structs.replace(signals[0], vehicle_class="xl"),
        msgspec.structs.replace(signals[1], answer="reject"),
        msgspec.structs.replace(signals[2], lat=1.0),
    )
    assert [reason for reason, _ in dead(new)] == ["duplicate"] * 3


def test_a_time_that_would_be_waited_for_for_years_is_refused() -> None:
    driver = gate()
    far = MAX_TIME_MS
    send(
        driver,
        msgspec.structs.replace(request("r1", 1), pickup_at_ms=far),
        msgspec.structs.replace(request("r2", 2), pickup_at_ms=ms(2) + AHEAD_MS["pickup_at_ms"]),
        msgspec.structs.replace(command("block", 3, driver_id="d1"), until_ms=far),
    )
    assert [reason for reason, _ in dead(driver)] == ["range"] * 2
    assert [r.request_id for r in driver.values("requests")] == ["r2"]


@pytest.mark.parametrize("zone", ["12345678901234567890", "-1", "f" * 128, "", "NaN"])
def test_a_zone_that_is_none_is_refused(zone: str) -> None:
    driver = gate()
    send(driver, msgspec.structs.replace(request("r1", 1), zone=zone))
    assert [reason for reason, _ in dead(driver)] == ["range"]


@pytest.mark.parametrize("zone", [ZONE, ZONE.upper(), f"0{ZONE}", h3.latlng_to_cell(LAT, LON, 10)])
def test_a_zone_has_one_name_however_it_is_written(zone: str) -> None:
    """Also where an operator has blacked it out."""
    driver = gate()
    send(driver, msgspec.structs.replace(request("r1", 1), zone=zone))
    assert [asked.zone for asked in driver.values("requests")] == [ZONE]
    for about, of in ((ZONE, zone), (zone, ZONE)):
        whole = Whole(DispatchConfig(window_ms=10_000))
        dark = command("blackout", 1, zone=about, until_ms=ms(600))
        whole.run([dark, position("d1", 2), request("r1", 3, zone=of)], 40)
        assert [trip["state"] for trip in whole.of("trips")] == ["processing"]


def test_a_key_that_is_nobodys_is_refused() -> None:
    driver = gate()
    signal = request("r1", 1)
    driver.send("k" * 129, signal, at=signal.event_time_ms, input="requests")
    assert [reason for reason, _ in dead(driver)] == ["range"]


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


def test_late_events_are_told_and_pass_all_the_same_unless_something_newer_is_known() -> None:
    driver = gate()
    send(driver, position("d1", 100), request("r1", 50), position("d1", 60, 1))
    assert [key_of(event) for event in passed(driver)] == ["d1", "r1"]
    assert [entry["lateness_ms"] for entry in driver.values("late")] == [49_999, 39_999]


def test_a_driver_stays_with_its_region_until_it_is_handed_over() -> None:
    driver = gate(HALVES)
    send(driver, position("d1", 0, -1), position("d1", 20, 3))
    handed = Handover("h1", "d1", "r0-0", "r0-1", "standard", 37.8, -122.42, 0, ms(21), ms(0), ms(20), 0, "")
    send(driver, handed, position("d1", 40, 3.2))
    assert [p.region for p in driver.values()] == ["r0-0", "r0-0", "r0-1"]
    assert driver.values("handovers") == [handed]
    again = msgspec.structs.replace(handed, event_id="h2", region="r0-0", event_time_ms=ms(30))
    send(driver, again, position("d1", 60, 1), handed)
    assert driver.values()[-1].region == "r0-0"
    assert driver.values("handovers") == [handed, again]
    assert driver.values("late") == [], "a handover is read after what caused it has passed"


def two_drivers() -> list[tuple[str, int, Event, str]]:
    found: list[Event] = [position(f"d{n}", s + n / 10, s / 100) for n in range(2) for s in range(0, 120, 7)]
    found += [request(f"r{s}", s) for s in range(5, 100, 20)]
    found += [answer("r5", "d1", 17), cancel("r25", 31)]
    return [(key_of(e), e.event_time_ms, e, stream_of(e)) for e in found]


def test_cuts_restarts_and_repeats_do_not_matter() -> None:
    invariant(Gate(HALVES), two_drivers(), bound_ms=5_000, duplicates=10, runs=8)


def test_the_gate_forgets() -> None:
    assert leaks(Gate(HALVES), two_drivers()) == []


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
    again = msgspec.convert(handover, Handover)
    whole.run([again, position("d1", 40, 3.2), request("r1", 41, 3.3)], 60)
    assert [(o["driver_id"], o["region"]) for o in whole.of("offers")] == [("d1", "r0-1")]
    assert [(d["region"], d["change"]) for d in whole.of("drivers")] == [
        ("r0-0", "entered"), ("r0-0", "left"), ("r0-1", "entered"),
    ]  # fmt: skip
    assert whole.of("main") == []


def test_a_handover_is_read_back_as_it_is_written_whatever_the_drivers_name() -> None:
    whole, name = Whole(HALVES), "d" * MAX_KEY
    first, second, third = (
        msgspec.structs.replace(position(name, s, km), event_id=f"e{s}")
        for s, km in ((0, -1), (20, 3), (40, 3.2))
    )
    whole.run([first, second], 20)
    (handover,) = whole.of("handovers")
    again = as_read("handovers", handover)
    assert msgspec.to_builtins(again) == handover
    whole.run([again, third, request("r1", 41, 3.3)], 60)
    assert [(o["driver_id"], o["region"]) for o in whole.of("offers")] == [(name, "r0-1")]


def test_a_region_without_a_car_borrows_one_across_the_border() -> None:
    whole = Whole(HALVES)
    beats = [position("d1", s, 0.2) for s in (0, 20, 40, 60)]
    whole.run([beats[0], request("r1", 1, 2.5)], 20)
    (wish,) = whole.of("handovers")
    assert (wish["driver_id"], wish["request_id"], wish["region"]) == ("", "r1", "r0-0")
    whole.run([msgspec.convert(wish, Handover), beats[1]], 30)
    lent = whole.of("handovers")[-1]
    assert (lent["driver_id"], lent["region"]) == ("d1", "r0-1")
    whole.run([msgspec.convert(lent, Handover), beats[2]], 50)
    assert [(o["driver_id"], o["region"]) for o in whole.of("offers")] == [("d1", "r0-1")]


@pytest.mark.parametrize("latitude", [0.0, 37.77, -54.8, 78.2])
def test_a_driver_is_reported_once_the_great_circle_is_as_long_as_asked(latitude: float) -> None:
    draws = random.Random(int(latitude))
    driver = gate(DispatchConfig(move_m=50.0, refresh_ms=10_000_000))
    wanted, here = [], None
    for n in range(300):
        event = position("d1", float(n))
        reach = draws.choice([0.0, 2e-4, 9e-4])
        event.lat = latitude + draws.uniform(-reach, reach)
        event.lon = 10.0 + draws.uniform(-reach, reach) / (1.0 if latitude < 60 else 0.2)
        if here is None or distance_m(*here, event.lat, event.lon) >= 50.0:
            here = (event.lat, event.lon)
            wanted.append(event.event_time_ms)
        send(driver, event)
    assert [s.event_time_ms for s in driver.values()] == wanted
    assert 10 < len(wanted) < 290
