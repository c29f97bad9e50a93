from __future__ import annotations

import random

import msgspec
import pytest

from millrace.host.memory import MemoryHost
from millrace.testing import TestDriver
from millrace.testing.properties import invariant, leaks
from millrace_apps.iot_maintenance.alarms.rule import AlarmRule, Level
from millrace_apps.iot_maintenance.contracts.events import Heartbeat
from millrace_apps.iot_maintenance.contracts.records import Liveness
from tests.unit.apps.iot_maintenance.monitor_cases import (
    DAY,
    GATEWAY,
    HOUR,
    M1,
    MINUTE,
    SECOND,
    START,
    Event,
    action,
    beat,
    driver,
    history,
    monitor,
    reading,
    send,
    until,
)

TIMEOUT = 10 * SECOND
SILENCE = AlarmRule("silent", (Level(),), source="silence", ack=False)


def live(target: TestDriver) -> list[tuple[int, str, str, str]]:
    """Seconds since the start, device, state and cause."""
    found: list[Liveness] = target.values("liveness")
    return [((r.event_time_ms - START) // SECOND, r.device_id, r.state, r.cause) for r in found]


def raised(target: TestDriver) -> list[str]:
    return [e.quantity for e in history(target) if e.change == "active"]


def test_a_device_is_silent_at_its_timeout_and_not_before() -> None:
    target = driver(SILENCE)
    send(target, beat(0), beat(4_000))
    until(target, 13_999)
    assert live(target) == []
    until(target, 14_000)
    assert live(target) == [(14, M1, "silent", "own")]
    assert raised(target) == [M1]
    send(target, beat(20_000))
    until(target, 20_000)
    assert live(target)[1:] == [(20, M1, "online", "own")]
    assert history(target)[-1].change == "inactive"


@pytest.mark.parametrize(("off", "silent"), [(-1, False), (0, False), (1, True)])
def test_a_heartbeat_at_the_very_instant_of_the_timeout_is_in_time(off: int, silent: bool) -> None:
    target = driver(SILENCE, bound=SECOND)
    send(target, beat(0), beat(TIMEOUT + off), beat(2 * TIMEOUT + off))
    until(target, 2 * TIMEOUT + off)
    assert bool(live(target)) is silent
    # Whatever it was: the next timeout works.
    until(target, 3 * TIMEOUT + off)
    assert live(target)[-1][2] == "silent"


def test_a_dead_gateway_is_one_alarm_and_not_one_for_every_machine() -> None:
    target = driver(SILENCE)
    machines = [f"p01-l01-m{n:03}" for n in range(1, 30)]
    for at in (0, 2, 4, 6):
        target.send_batch([beat(at * SECOND + n, m) for n, m in enumerate((*machines, GATEWAY))])
    until(target, MINUTE)
    assert {(device, cause) for _, device, _, cause in live(target) if device != GATEWAY} == {
        (m, "gateway") for m in machines
    }
    assert raised(target) == [GATEWAY]
    # It comes back, and one machine does not.
    back = [beat(70 * SECOND + n, m) for n, m in enumerate((*machines[1:], GATEWAY))]
    target.send_batch(back)
    target.send_batch([beat(75 * SECOND + n, m) for n, m in enumerate((*machines[1:], GATEWAY))])
    until(target, 84 * SECOND)
    assert raised(target) == [GATEWAY, machines[0]]
    assert live(target)[-1][1:] == (machines[0], "silent", "own")


def test_an_operator_acknowledges_a_silent_machine_at_its_gateway() -> None:
    target = driver(AlarmRule("silent", (Level(),), source="silence"))
    send(target, beat(0))
    until(target, TIMEOUT)
    send(target, action(TIMEOUT + 1, "ack", f"silent/{M1}", entity=GATEWAY), beat(TIMEOUT + 2))
    until(target, TIMEOUT + 2)
    assert [(e.entity_id, e.change) for e in history(target)] == [
        (GATEWAY, "active"),
        (GATEWAY, "ack"),
        (GATEWAY, "inactive"),
    ]


def test_a_machine_that_falls_silent_behind_a_living_gateway_is_its_own_alarm() -> None:
    target = driver(SILENCE)
    gateway = [beat(at * SECOND, GATEWAY) for at in range(0, 40, 2)]
    send(target, gateway[0], beat(1_000), *gateway[1:])
    until(target, 38 * SECOND)
    assert raised(target) == [M1]


def test_a_device_that_is_first_heard_while_all_others_are_silent_is_told_when_it_falls_silent_too() -> None:
    """The timer of a gateway is far away while all its devices are silent.

    ======= ============ =========== ============ ==============
    machine heard 0 s    silent 10 s
    gateway                          heard 20 s   silent 30 s
    ======= ============ =========== ============ ==============
    """
    target = driver(SILENCE)
    send(target, beat(0))
    until(target, 15_000)
    send(target, beat(20_000, GATEWAY))
    until(target, 30_000)
    assert live(target) == [(10, M1, "silent", "own"), (30, GATEWAY, "silent", "own")]


def test_silence_is_found_when_all_topics_are_silent() -> None:
    """Only the watermark goes on, as the ticker makes it."""
    target = driver(SILENCE)
    target.send_batch([beat(n, f"p01-l01-m{n:04}") for n in range(500)])
    until(target, TIMEOUT + 500)
    assert len(live(target)) == 500


def test_a_sensor_that_dies_on_a_living_machine_is_told() -> None:
    target = driver(SILENCE, sensor_least_ms=5 * SECOND, sensor_intervals=4.0)
    for at in range(0, 20_000, 500):
        if at < 6_000:
            send(target, reading(at, 1.0, "slow"))
        send(target, reading(at, 1.0, "fast"))
    assert live(target) == [(10, f"{M1}.slow", "silent", "own")]
    assert raised(target) == ["slow"]
    send(target, reading(21_000, 1.0, "slow"))
    until(target, 21_000)
    assert live(target)[-1][1:] == (f"{M1}.slow", "online", "own")


def test_sensors_that_are_silent_with_their_machine_are_no_alarms_of_their_own() -> None:
    target = driver(SILENCE, sensor_least_ms=5 * SECOND, sensor_intervals=4.0)
    for at in range(0, 6_000, 500):
        send(target, reading(at, 1.0, "a"), reading(at + 100, 1.0, "b"))
    until(target, MINUTE)
    assert {cause for _, _, _, cause in live(target)} == {"machine"}
    assert raised(target) == []
    # The machine is back with one sensor only: now the other is missed.
    for at in range(61_000, 75_000, 500):
        send(target, reading(at, 1.0, "a"))
    assert raised(target) == ["b"]


def races(count: int, seed: int, devices: int = 50) -> tuple[list[Event], dict[str, list[int]]]:
    """Heartbeats whose gaps are about the timeout: at it, one ms before and after, and anything."""
    rng = random.Random(seed)
    beats: dict[str, list[int]] = {}
    events = []
    for number in range(devices):
        at, name = rng.randrange(TIMEOUT), f"p01-l01-m{number:04}"
        times = beats[name] = []
        for _ in range(count // devices):
            times.append(at)
            gateway = f"gw{number % 7}"
            event = Heartbeat(f"{name}.{at}", name, "machine", gateway, START + at)
            events.append((gateway, START + at, event))
            at += rng.choice(
                [TIMEOUT, TIMEOUT, TIMEOUT - 1, TIMEOUT + 1, rng.randint(1, 2 * TIMEOUT), 1, 3 * TIMEOUT]
            )
    return events, beats


def expected(beats: dict[str, list[int]]) -> list[tuple[int, str, str]]:
    """What must be told, by the gaps between the heartbeats alone."""
    told = []
    for name, times in beats.items():
        for at, following in zip(times, [*times[1:], None], strict=True):
            if following is None or following - at > TIMEOUT:
                told.append((at + TIMEOUT, name, "silent"))
                if following is not None:
                    told.append((following, name, "online"))
    return sorted(told)


def run_races(count: int, seed: int, devices: int = 50) -> None:
    events, beats = races(count, seed, devices)
    rng = random.Random(seed)
    bound = rng.choice([0, 500, 2 * TIMEOUT])
    arriving = sorted(events, key=lambda e: (e[1] + rng.randint(0, bound), rng.random()))
    host = MemoryHost(monitor(), out_of_orderness_ms=bound)
    found = []
    while arriving:
        size = rng.randint(1, max(2, count // 50))
        found += host.run_batch(arriving[:size])
        del arriving[:size]
    last = max(times[-1] for times in beats.values())
    found += host.advance_watermark(START + last + TIMEOUT)
    decode = msgspec.json.Decoder(Liveness).decode
    told = [decode(e.payload) for e in found if e.output == "liveness"]
    assert sorted((r.event_time_ms - START, r.device_id, r.state) for r in told) == expected(beats)
    # Nothing is stuck: everybody is silent now, and is forgotten in its time.
    host.advance_watermark(START + last + 1_000 * DAY)
    assert not host.store.cells


@pytest.mark.parametrize("seed", range(6))
def test_no_race_of_heartbeats_with_their_timeout_leaves_a_device_stuck(seed: int) -> None:
    run_races(1_500, seed)


@pytest.mark.matrix
def test_no_race_in_a_million_leaves_a_device_stuck() -> None:
    for seed in range(100, 110):
        run_races(100_000, seed, devices=2_000)


@pytest.mark.matrix
def test_a_hundred_thousand_devices_that_fall_silent_at_once_are_all_told() -> None:
    host = MemoryHost(monitor(SILENCE), records=True)
    events = []
    for number in range(100_000):
        gateway, device = f"gw{number // 10}", f"m{number}"
        events.append((gateway, START, Heartbeat(device, device, "machine", gateway, START)))
    host.run_batch(events)
    assert len(host.snapshot()) < 2_048 * 100_000
    told = host.advance_watermark(START + TIMEOUT)
    assert sum(e.output == "liveness" for e in told) == 100_000
    assert {e.event_time for e in told} == {START + TIMEOUT}


def test_liveness_hangs_on_the_events_alone() -> None:
    events, _ = races(60, 3, devices=6)
    invariant(monitor(SILENCE), events, bound_ms=TIMEOUT, runs=4)


def test_a_late_heartbeat_is_put_aside() -> None:
    target = driver()
    send(target, beat(30_000), beat(5_000))
    assert [late["input"] for late in target.values("late")] == ["heartbeats"]


def test_gateways_and_their_devices_are_forgotten() -> None:
    assert leaks(monitor(SILENCE), [beat(at * SECOND, GATEWAY) for at in range(5)] + [beat(100)]) == []


def test_a_sensor_that_is_due_before_its_machine_is_looked_at_next_is_told_in_time() -> None:
    """A slow sensor is due in hours; a fast one beside it, which begins later, falls silent before."""
    target = driver(sensor_least_ms=5 * SECOND)
    send(target, *(reading(hour * HOUR, 1.0, "level") for hour in range(4)))
    send(target, *(reading(3 * HOUR + second * SECOND, 1.0, "flow") for second in range(1, 60)))
    send(target, reading(4 * HOUR, 1.0, "level"))
    until(target, 5 * HOUR)
    told = [(row.device_id, row.cause, row.event_time_ms - START) for row in target.values("liveness")]
    assert told == [
        (f"{M1}.flow", "machine", 3 * HOUR + (59 + 6) * SECOND),
        (f"{M1}.flow", "own", 4 * HOUR + 6 * SECOND),
    ]
