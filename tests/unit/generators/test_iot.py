"""The fleet of machines: its clockwork, its physics, its laws."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from dataclasses import replace
from itertools import islice, pairwise
from statistics import mean, median, pstdev
from typing import Any

import msgspec
import pytest

from millrace.errors import UserError
from millrace_apps.generators.engine.simulated import Simulated
from millrace_apps.generators.iot import DOMAIN, IotProfile, assets, simulate
from millrace_apps.generators.iot.agenda import Agenda
from millrace_apps.generators.iot.fleet import Fleet
from millrace_apps.generators.iot.laws import DAY_MS, HOUR_MS, Draws, Shifts, exponential, lognormal
from millrace_apps.generators.iot.models import CONVERSIONS
from millrace_apps.generators.iot.regimes import MAINTENANCE, OFF, OVERLOAD, RUNNING
from tests.unit.apps.iot_maintenance.cases import (
    CALM,
    DAY,
    MORNING_MS,
    WORN,
    digest,
    of,
    readings_by_regime,
    truths,
)


@pytest.fixture(scope="module")
def worn() -> list[Simulated]:
    return list(simulate(WORN))


@pytest.fixture(scope="module")
def calm() -> list[Simulated]:
    return list(simulate(DAY))


def test_same_profile_same_bytes_a_shorter_run_is_a_prefix_and_another_seed_differs() -> None:
    small = replace(WORN, events=6_000)
    whole = digest(simulate(small))
    assert whole == digest(simulate(small))
    assert digest(islice(simulate(small), 2_000)) == digest(simulate(replace(small, events=2_000)))
    assert whole != digest(simulate(replace(small, seed=6)))


def test_the_bytes_of_this_version_are_known() -> None:
    """A change of these bytes is a change of every stream that somebody keeps: say so in the change log."""
    assert digest(simulate(replace(WORN, events=3_000)))[:16] == "b83a6400bef70341"


def test_events_come_in_event_time_with_unique_ids_and_keep_their_types(worn: list[Simulated]) -> None:
    times = [event.event_time_ms for event in worn]
    assert times == sorted(times)
    assert times[0] >= WORN.start_ms
    ids: defaultdict[str, set[str]] = defaultdict(set)
    for event in worn:
        spec = DOMAIN.streams[event.stream]
        assert type(event.event) is spec.event_type
        assert getattr(event.event, spec.time_field) == event.event_time_ms
        ids[event.stream].add(getattr(event.event, spec.id_field))
    assert set(ids) == set(DOMAIN.streams)
    assert {stream: len(names) for stream, names in ids.items()} == Counter(e.stream for e in worn)
    for event in worn[::50]:
        copy = msgspec.json.decode(msgspec.json.encode(event.event), type=type(event.event))
        assert copy == event.event


def test_ids_differ_between_seeds_and_starts() -> None:
    def names(**other: int) -> set[str]:
        events = simulate(replace(WORN, events=300, **other))
        return {reading.reading_id for reading in of(events, "readings")}

    assert not names() & names(seed=6)
    assert not names() & names(start_ms=MORNING_MS + 1)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"machines": 1, "events": 500},
        {"machines": 333, "events": 5_000, "event_rate": 20_000.0},
        {"events": 3_000, "acceleration": 50_000.0},
        {"events": 1},
        {"machines": 40, "events": 5_000, "event_rate": 1_000.0, "acceleration": 60.0},
    ],
)
def test_the_last_event_is_not_before_the_time_that_the_profile_promises(changes: dict[str, Any]) -> None:
    profile = replace(WORN, **{"events": 8_000, **changes})
    assert profile.last_ms is not None
    last = 0
    for event in simulate(profile):
        last = event.event_time_ms
    assert last >= profile.last_ms


def test_readings_and_heartbeats_keep_the_event_rate() -> None:
    profile = IotProfile(seed=1, machines=31, event_rate=700.0, acceleration=1.0, **CALM)
    end_ms = profile.start_ms + 30_000
    size = sum(
        event.stream in ("readings", "heartbeats") and event.event_time_ms < end_ms
        for event in islice(simulate(profile), 22_500)
    )
    assert abs(size / 30 / 700 - 1) < 0.01


def test_every_sensor_samples_at_its_own_interval_to_the_millisecond() -> None:
    profile = IotProfile(seed=1, machines=7, event_rate=100.0, events=5_000, **CALM)
    by_sensor: defaultdict[str, list[int]] = defaultdict(list)
    for reading in of(simulate(profile), "readings"):
        by_sensor[reading.sensor_id].append(reading.event_time_ms)
    listed = {row["sensor_id"]: row for row in assets(profile)}
    assert set(by_sensor) == set(listed)
    for sensor_id, moments in by_sensor.items():
        for a, b in pairwise(moments):
            assert abs(b - a - listed[sensor_id]["interval_ms"]) <= 1


def test_every_device_and_gateway_has_a_heartbeat_in_every_interval() -> None:
    profile = IotProfile(seed=1, machines=7, event_rate=100.0, events=5_000, **CALM)
    by_device: defaultdict[str, list[int]] = defaultdict(list)
    for beat in of(simulate(profile), "heartbeats"):
        by_device[beat.device_id].append(beat.event_time_ms)
    assert len(by_device) == profile.machines + profile.gateways
    interval = 10 * profile.tick_ms
    assert all(abs(b - a - interval) <= 1 for moments in by_device.values() for a, b in pairwise(moments))


def test_the_asset_tree_is_a_tree() -> None:
    rows = list(assets(IotProfile(seed=1, machines=50, machines_per_line=4, lines_per_plant=3)))
    for child, parent in (("sensor_id", "machine_id"), ("machine_id", "line_id"), ("line_id", "plant_id")):
        parents: defaultdict[str, set[str]] = defaultdict(set)
        for row in rows:
            parents[row[child]].add(row[parent])
        assert all(len(above) == 1 for above in parents.values())
    assert len({row["machine_id"] for row in rows}) == 50
    assert len({row["gateway_id"] for row in rows}) == 13
    assert len({row["plant_id"] for row in rows}) == 5
    assert {row["unit"] for row in rows} <= set(CONVERSIONS)


# Physics


def test_every_machine_has_a_status_before_its_first_reading(worn: list[Simulated]) -> None:
    known: set[str] = set()
    for event in worn:
        if event.stream == "status":
            known.add(event.event.machine_id)
        elif event.stream == "readings":
            assert event.event.machine_id in known


def test_load_shows_in_current_power_and_temperature(calm: list[Simulated]) -> None:
    values = readings_by_regime(calm)
    for quantity in ("current", "power", "flow", "extruder_pressure", "vibration"):
        assert mean(values[quantity, OFF]) < 0.2 * mean(values[quantity, RUNNING])
        assert mean(values[quantity, RUNNING]) < 0.8 * mean(values[quantity, OVERLOAD])
    for quantity in ("motor_temperature", "exhaust_temperature", "oil_temperature", "bearing_temperature"):
        off, running, overload = (mean(values[quantity, regime]) for regime in (OFF, RUNNING, OVERLOAD))
        assert off < running < overload


def test_a_warm_machine_cools_down_slowly(calm: list[Simulated]) -> None:
    stopped: dict[str, int] = {}
    seen: set[str] = set()
    early, late = [], []
    for event in calm:
        if event.stream == "status":
            stopped.pop(event.event.machine_id, None)
            # A machine that is off at the begin is cold: what counts is one that has just worked.
            if event.event.status == OFF and event.event.machine_id in seen:
                stopped[event.event.machine_id] = event.event_time_ms
            seen.add(event.event.machine_id)
        elif event.stream == "readings" and event.event.quantity == "exhaust_temperature":
            since = event.event_time_ms - stopped.get(event.event.machine_id, event.event_time_ms)
            if 0 < since < 300_000:
                early.append(event.event.value)
            elif since > 7_200_000:
                late.append(event.event.value)
    assert early
    assert min(early) > 200
    assert max(late) < 40


def test_halls_have_a_daily_cycle(calm: list[Simulated]) -> None:
    """A bed that is off follows the hall: coldest at 03, warmest at 15 by the plant's clock."""
    rows = {row["sensor_id"]: row for row in assets(DAY)}
    by_hour: defaultdict[int, list[float]] = defaultdict(list)
    off: dict[str, int] = {}
    for event in calm:
        if event.stream == "status":
            off.pop(event.event.machine_id, None)
            if event.event.status == OFF:
                off[event.event.machine_id] = event.event_time_ms
        elif event.stream == "readings" and event.event.quantity == "motor_temperature":
            local = event.event_time_ms + rows[event.event.sensor_id]["utc_offset_ms"]
            if event.event_time_ms - off.get(event.event.machine_id, 1 << 60) > 2 * HOUR_MS:
                by_hour[local % DAY_MS // HOUR_MS].append(event.event.value)
    # 0.8 °C per °C of the hall, which is 20 - 5 °C at 03.
    assert abs(mean(by_hour[3]) - 16.0) < 0.4
    assert mean(by_hour[3]) < mean(by_hour[0]) < 20


def test_machines_stand_still_outside_the_shifts_of_their_plant(calm: list[Simulated]) -> None:
    plants = {machine.machine_id: machine.plant for machine in Fleet(DAY).machines}
    for status in of(calm, "status"):
        works = plants[status.machine_id].shifts.works(status.event_time_ms)
        # Scheduled services may be done at night.
        assert works == (status.status != OFF) or status.status == MAINTENANCE


def test_parts_are_made_while_running_and_few_are_scrap(calm: list[Simulated]) -> None:
    made = rejected = 0
    before: dict[str, str] = {}
    for status in of(calm, "status"):
        if before.get(status.machine_id) in (RUNNING, OVERLOAD):
            made, rejected = made + status.produced, rejected + status.rejected
        else:
            assert status.produced == status.rejected == 0
        assert status.rejected <= status.produced
        before[status.machine_id] = status.status
    assert made > 1_000
    assert 0.01 < rejected / made < 0.04


def test_noise_is_what_the_model_says() -> None:
    profile = IotProfile(seed=2, machines=2, event_rate=50.0, acceleration=1.0, events=4_000, **CALM)
    speed = [r.value for r in of(simulate(profile), "readings") if r.quantity == "speed"]
    # 3 rpm of noise and 60 rpm of droop times 3 % of load, within 20 % (an off machine has only the noise).
    assert 2.4 < pstdev(a - b for a, b in pairwise(speed)) / 2**0.5 < 3.6


# Laws


def test_draws_depend_on_their_names_alone_and_are_uniform() -> None:
    draws = Draws(1)
    numbers = [draws.uniform("x", i, 0) for i in range(4_000)]
    assert draws.uniform("x", 17, 0) == numbers[17]
    assert 0 < min(numbers) < 0.002
    assert 0.998 < max(numbers) < 1
    # Standard error of the mean of 4,000 uniform numbers: 0.0046.
    assert abs(mean(numbers) - 0.5) < 0.02
    assert abs(pstdev(numbers) - 12**-0.5) < 0.01


def test_exponential_and_lognormal_have_the_mean_and_median_asked_for() -> None:
    grid = [(i + 0.5) / 4_000 for i in range(4_000)]
    assert abs(mean(exponential(u, 3.0) for u in grid) / 3.0 - 1) < 0.01
    assert abs(median(lognormal(u, 5.0, 0.4) for u in grid) / 5.0 - 1) < 0.01


def test_faults_strike_as_often_as_asked() -> None:
    """A Poisson number of 40 per sensor and 1,000 hours, within four deviations.

    A few fall on sensors that are faulty already, and are not counted.
    """
    rates = {**CALM, "sensor_fault_rate": 40.0}
    profile = IotProfile(seed=3, machines=40, event_rate=100.0, acceleration=200.0, events=60_000, **rates)
    events = list(simulate(profile))
    hours = (events[-1].event_time_ms - profile.start_ms) / HOUR_MS * profile.acceleration
    struck = sum(truth.kind.startswith("sensor_") for truth, _ in truths(events).values())
    expected = 40.0 * hours / 1_000 * 240
    assert abs(struck - expected) < 4 * expected**0.5


@pytest.mark.parametrize("pattern", [0, 1, 2])
@pytest.mark.parametrize("offset_h", [0, -5, 9])
def test_shifts_end_and_begin_where_they_say(pattern: int, offset_h: int) -> None:
    shifts = Shifts(pattern, offset_h * HOUR_MS)
    begin_ms = 1_767_225_600_000
    for at_ms in range(begin_ms, begin_ms + 9 * DAY_MS, HOUR_MS // 2):
        following = shifts.next_ms(at_ms)
        assert shifts.works(following)
        assert (following == at_ms) == shifts.works(at_ms)
        if following > at_ms:
            assert not shifts.works(following - 1)
        end_ms = shifts.end_ms(at_ms)
        if pattern == 0:
            assert end_ms is None
        elif shifts.works(at_ms):
            assert end_ms is not None
            assert end_ms > at_ms
            assert shifts.works(end_ms - 1)
            assert not shifts.works(end_ms)


def test_the_first_of_january_2026_is_a_thursday_and_the_week_end_is_free() -> None:
    shifts = Shifts(2, 0)
    noon = 1_767_225_600_000 + 12 * HOUR_MS
    assert [day for day in range(7) if shifts.works(noon + day * DAY_MS)] == [0, 1, 4, 5, 6]


def test_what_is_planned_stays_bounded_over_a_long_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The only thing that could grow is the agenda: a machine plans a few actions, however long it runs."""
    agendas: list[Agenda] = []
    original = Agenda.__init__

    def remember(self: Agenda) -> None:
        original(self)
        agendas.append(self)

    monkeypatch.setattr(Agenda, "__init__", remember)
    stream = simulate(replace(WORN, machines=10, events=None, acceleration=20_000.0))
    sizes = []
    for _ in range(5):
        deque(islice(stream, 6_000), maxlen=0)
        sizes.append(len(agendas[0]))
    assert max(sizes) <= 15 * 10, sizes


@pytest.mark.parametrize(
    ("flaw", "says"),
    [
        ({"machines": 0}, "machines is a count"),
        ({"machines_per_line": 0}, "machines per line"),
        ({"lines_per_plant": 0}, "lines per plant"),
        ({"acceleration": 0.0}, "acceleration"),
        ({"failure_scale": -1.0}, "failure scale"),
        ({"sensor_fault_rate": -1.0}, "sensor_fault_rate is 0 to 10,000"),
        ({"outage_rate": float("nan")}, "outage_rate"),
        ({"false_error_rate": 1e9}, "false_error_rate"),
        ({"event_rate": 0.0}, "event rate is above 0"),
    ],
)
def test_a_parameter_out_of_range_is_named(flaw: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        IotProfile(**flaw)
