"""Shifts of machines, alarms of plants, and what is kept of them."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from millrace.host.memory import MemoryHost
from millrace.testing import TestDriver
from millrace.testing.properties import invariant, leaks
from millrace_apps.iot_maintenance.alarms.record import AlarmEvent
from millrace_apps.iot_maintenance.contracts.records import ShiftKpi
from millrace_apps.iot_maintenance.processes.anomalies import Scoring
from millrace_apps.iot_maintenance.processes.liveness_monitor import Monitoring
from millrace_apps.iot_maintenance.processes.monitor import MachineMonitor
from millrace_apps.iot_maintenance.processes.plant import AssetHealth, PlantMonitor
from millrace_apps.iot_maintenance.processes.shifts import Calendar
from millrace_apps.iot_maintenance.processes.windows import AlarmKpi
from tests.unit.apps.iot_maintenance.monitor_cases import (
    DAY,
    HOUR,
    MINUTE,
    SECOND,
    START,
    Event,
    driver,
    equipment,
    error,
    maintenance,
    reading,
    rule,
    send,
    status,
    until,
)


def shifts(target: TestDriver) -> list[ShiftKpi]:
    found: list[ShiftKpi] = target.values("shifts")
    return found


def test_a_shift_is_counted_from_the_status_history() -> None:
    """The start is 08:00; the shift is from 06:00 to 14:00.

    08:00 running, 10:00 failed, 11:00 maintenance, 12:00 running, 13:00 off
    """
    target = driver(ideal_per_h={"pump": 60})
    send(
        target,
        equipment(0, "pump"),
        status(0, "running"),
        status(2 * HOUR, "failed", 100, 4),
        status(3 * HOUR, "maintenance"),
        status(4 * HOUR, "running"),
        status(5 * HOUR, "off", 50, 0),
    )
    until(target, 6 * HOUR)
    (kpi,) = shifts(target)
    assert (kpi.shift, kpi.shift_end_ms - kpi.shift_start_ms) == ("2026-01-05T06:00", 8 * HOUR)
    assert (kpi.planned_ms, kpi.operating_ms, kpi.down_ms) == (5 * HOUR, 3 * HOUR, 2 * HOUR)
    assert (kpi.failures, kpi.repairs, kpi.produced, kpi.rejected) == (1, 1, 150, 4)
    assert kpi.availability == pytest.approx(3 / 5)
    assert kpi.performance == pytest.approx(150 / 180)
    assert kpi.quality == pytest.approx(146 / 150)
    assert kpi.oee == pytest.approx(3 / 5 * 150 / 180 * 146 / 150)
    assert (kpi.mtbf_h, kpi.mttr_h) == (pytest.approx(3.0), pytest.approx(2.0))


def test_a_status_goes_on_over_the_end_of_a_shift() -> None:
    target = driver()
    send(target, status(0, "running"), status(10 * HOUR, "off"), reading(13 * HOUR, 1.0))
    until(target, 20 * HOUR)
    assert [k.by_status_ms for k in shifts(target)] == [
        {"running": 6 * HOUR},
        {"off": 4 * HOUR, "running": 4 * HOUR},
    ]


def test_shifts_nobody_is_heard_in_are_not_told_and_do_not_count() -> None:
    target = driver()
    send(target, status(0, "running"), status(10 * DAY, "off"))
    until(target, 10 * DAY + 8 * HOUR)
    told = shifts(target)
    assert [k.by_status_ms for k in told[:1]] == [{"running": 6 * HOUR}]
    assert len(told) == 2
    assert told[-1].by_status_ms == {"off": 6 * HOUR}


def test_what_is_counted_since_a_machine_is_known_goes_on_after_shifts_that_nobody_is_heard_in() -> None:
    """Five hours of operation and one of a breakdown; ten days later six hours more, until 14:00."""
    target = driver()
    send(target, status(0, "running"), status(2 * HOUR, "failed"), status(3 * HOUR, "running"))
    send(target, status(10 * DAY, "running"))
    until(target, 10 * DAY + 8 * HOUR)
    assert [(k.mtbf_h, k.mttr_h) for k in shifts(target)] == [(5.0, 1.0), (11.0, 1.0)]


@pytest.mark.parametrize(
    ("day", "hours"), [("2026-03-28", [8, 8, 7]), ("2026-10-24", [8, 8, 9]), ("2026-06-01", [8, 8, 8])]
)
def test_shifts_follow_the_clock_of_the_place(day: str, hours: list[int]) -> None:
    calendar = Calendar((360, 840, 1320), "Europe/Berlin")
    noon = datetime.fromisoformat(f"{day}T07:00").replace(tzinfo=ZoneInfo("Europe/Berlin"))
    at = int(noon.astimezone(UTC).timestamp() * 1000)
    found = []
    for _ in range(3):
        start, end = calendar.shift(at)
        assert start <= at < end
        found.append((end - start) // HOUR)
        at = end
    assert found == hours


def alarm(at: int, name: str, announced: bool, *, severity: str = "high", **rest: Any) -> Any:
    entity = rest.pop("entity", "p01-l01-m001")
    fields = dict.fromkeys(AlarmEvent.__struct_fields__, False)
    fields |= {
        "alarm_id": f"{entity}:{name}",
        "entity_id": entity,
        "alarm": name,
        "rule_id": name.partition("/")[0],
        "quantity": name.partition("/")[2],
        "category": "process",
        "change": "active" if announced else "inactive",
        "event_time_ms": START + at,
        "number": 0,
        "active": announced,
        "announced": announced,
        "shelved": "",
        "level": int(announced),
        "severity": severity,
        "value": None,
        "limit": None,
        "active_since_ms": None,
        "reason": "",
        "operator": "",
        "comment": "",
        "title": "",
        "status": "",
        "plant_id": "p01",
        "line_id": entity[:7],
        **rest,
    }
    return "p01", START + at, AlarmEvent(**fields)


def plant(*events: Any, drain: bool = True) -> TestDriver:
    target = TestDriver(PlantMonitor())
    for key, at, event in events:
        target.send(key, event, at=at)
    if drain:
        target.drain()
    return target


def test_more_than_ten_alarms_in_ten_minutes_are_a_flood() -> None:
    ten = [alarm(n * SECOND, f"a{n}", True) for n in range(10)]
    calm = plant(*ten)
    flood = plant(*ten, alarm(11 * SECOND, "one-more", True))
    for target, alarms in ((calm, 10), (flood, 11)):
        window, day = target.values("kpis")
        assert (window.span, window.alarms, window.flood) == ("10min", alarms, alarms > 10)
        assert (day.span, day.alarms, day.flood) == ("day", alarms, alarms > 10)
        assert day.flood_share == pytest.approx((alarms > 10) / 144)


def test_an_alarm_that_comes_three_times_in_a_minute_chatters() -> None:
    toggling = [alarm(at * SECOND, "a", at % 20 == 0) for at in range(0, 60, 10)]
    slow = [alarm(at * SECOND + 5, "b", at % 80 == 0) for at in range(0, 400, 40)]
    window = plant(*sorted([*toggling, *slow], key=lambda e: e[1])).values("kpis")[0]
    assert window.chattering == ["p01-l01-m001:a"]
    assert window.top == {"p01-l01-m001:b": 5, "p01-l01-m001:a": 3}


def test_alarms_that_stand_for_more_than_a_day_are_stale_and_priorities_are_shares() -> None:
    found = plant(
        alarm(0, "old", True, severity="low"),
        alarm(0, "short", True, severity="critical"),
        alarm(SECOND, "short", False, severity="critical"),
        alarm(DAY + 20 * HOUR, "new", True, severity="low"),
    ).values("kpis")
    days: list[AlarmKpi] = [k for k in found if k.span == "day"]
    assert [k.standing for k in days] == [1, 2]
    assert days[0].by_severity == {"low": 0.5, "medium": 0.0, "high": 0.0, "critical": 0.5}
    assert days[-1].stale == ["p01-l01-m001:old"]


def held(at: int, name: str, *, since: int = 0, **rest: Any) -> Any:
    """An alarm that is active and held back."""
    more = {"active": True, "active_since_ms": START + since, "change": "suppress", **rest}
    return alarm(at, name, False, **more)


def again(at: int, name: str, *, since: int = 0, **rest: Any) -> Any:
    """An alarm that is told again."""
    more = {"active_since_ms": START + since, "change": "unsuppress", **rest}
    return alarm(at, name, True, **more)


def test_an_alarm_that_is_told_again_after_twenty_stops_is_one_alarm() -> None:
    stops: list[Any] = []
    for n in range(20):
        stops += [held(10_000 * n + 5_000, "a"), again(10_000 * n + 8_000, "a")]
    window, day = plant(alarm(0, "a", True, active_since_ms=START), *stops).values("kpis")
    for kpi in (window, day):
        assert (kpi.alarms, kpi.flood, kpi.chattering, kpi.top) == (1, False, [], {"p01-l01-m001:a": 1})


def test_an_alarm_that_became_active_while_it_was_held_back_is_one_when_it_is_told() -> None:
    found = plant(held(0, "a"), again(5_000, "a"), held(6_000, "a"), again(7_000, "a")).values("kpis")
    assert [kpi.alarms for kpi in found] == [1, 1]


def test_an_alarm_that_comes_back_while_it_is_shelved_is_a_new_one() -> None:
    events = [
        alarm(0, "a", True, active_since_ms=START),
        held(1_000, "a", shelved="timed"),
        alarm(2_000, "a", False),
        held(3_000, "a", since=3_000, shelved="timed"),
        again(4_000, "a", since=3_000),
    ]
    assert [kpi.alarms for kpi in plant(*events).values("kpis")] == [2, 2]


def test_an_alarm_of_three_days_that_is_shelved_again_and_again_is_stale() -> None:
    events = [alarm(0, "a", True, active_since_ms=START)]
    for hour in range(4, 72, 8):
        events += [held(hour * HOUR, "a", shelved="timed", change="shelve")]
        events += [again(hour * HOUR + 7 * HOUR, "a", change="unshelve")]
    # Something else happens each day, so that each has a row.
    events += [alarm(day * DAY + HOUR, f"b{day}", True) for day in range(3)]
    days = [k for k in plant(*sorted(events, key=lambda e: e[1])).values("kpis") if k.span == "day"]
    newest = {k.start_ms: k for k in sorted(days, key=lambda k: k.revision)}
    stale = [[name for name in kpi.stale if name.endswith(":a")] for _, kpi in sorted(newest.items())]
    assert stale == [[], ["p01-l01-m001:a"], ["p01-l01-m001:a"]]
    assert sum(kpi.alarms for kpi in newest.values()) == 1 + 3


def test_health_rolls_up_from_the_sensor_to_the_plant_and_back() -> None:
    target = plant(
        alarm(1, "hot/oil", True, severity="high"),
        alarm(2, "slow", True, severity="critical", entity="p01-l02-m001"),
        alarm(3, "hot/oil", False, severity="high"),
        alarm(4, "slow", False, severity="critical", entity="p01-l02-m001"),
        drain=False,
    )
    target.advance_watermark(START + 10)
    told: list[AssetHealth] = target.values("health")
    last = {h.asset_id: (h.health, h.active) for h in told if h.event_time_ms <= START + 2}
    assert last == {
        "p01-l01-m001.oil": ("high", 1),
        "p01-l01-m001": ("high", 1),
        "p01-l01": ("high", 1),
        "p01-l02-m001": ("critical", 1),
        "p01-l02": ("critical", 1),
        "p01": ("critical", 2),
    }
    final = {h.asset_id: (h.health, h.active) for h in told}
    assert set(final.values()) == {("good", 0)}
    assert {h.parent_id for h in told if h.asset_kind == "line"} == {"p01"}


def test_a_plants_results_hang_on_the_events_alone_and_nothing_is_left() -> None:
    rng = random.Random(3)
    events = []
    for at in range(0, 3 * HOUR, 2 * MINUTE):
        events.append(alarm(at, f"a{rng.randint(0, 5)}/q", rng.random() < 0.5))
    rows = {"health": ("asset_id",), "kpis": ("span", "start_ms")}
    invariant(PlantMonitor(), events, bound_ms=MINUTE, runs=3, upsert_by=rows, ignore=("revision",))
    ended = [*events, *(alarm(4 * HOUR + n, f"a{n}/q", False) for n in range(6))]
    assert leaks(PlantMonitor(), ended) == []


# -- how much is kept ------------------------------------------------------------------------------


def fleet_day(machines: int, day: int) -> list[Event]:
    """What a fleet says in a day at a slow rate: six sensors, status, maintenance and errors."""
    rng = random.Random(day)
    events: list[Event] = []
    names = [f"p01-l01-m{n:03}" for n in range(machines)]
    for hour in range(0, 24, 2):
        at = day * DAY + hour * HOUR
        for machine in names:
            for n in range(6):
                events.append(reading(at + n, rng.gauss(50, 1), f"quantity{n}", machine=machine))
            events.append(status(at + 7, rng.choice(["running", "idle"]), machine=machine))
    for machine in names:
        events.append(error(day * DAY + 8, "E101", machine=machine))
        events.append(maintenance(day * DAY + 9, rng.choice(["seal", "bearing", "motor"]), machine=machine))
    return sorted(events, key=lambda e: e[1])


@pytest.mark.parametrize(
    ("scoring", "most"), [(Scoring(enabled=False), 2_048), (Scoring(), 2_048 + 6 * 1_024)]
)
def test_state_of_a_device_is_small_and_flat_over_thirty_days(scoring: Scoring, most: int) -> None:
    """Two KiB a machine; with scores and forecasts of its six sensors a KiB more for each at most."""
    machines = 4
    monitoring = Monitoring(rules=(rule(quantities=("quantity0",)),), sensor_least_ms=10 * DAY)
    host = MemoryHost(MachineMonitor(monitoring, scoring), out_of_orderness_ms=SECOND)
    sizes = []
    for day in range(30):
        host.run_batch(fleet_day(machines, day))
        host.advance_watermark(START + (day + 1) * DAY - HOUR)
        host.snapshot()  # packs everything as it would be kept
        sizes.append(max(len(cell.body) for cell in host.store.cells.values()))
    settled = sizes[5:]
    assert max(settled) <= most
    assert max(settled) - min(settled) <= 0.05 * max(settled)
