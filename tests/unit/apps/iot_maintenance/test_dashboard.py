"""The iot page's panels over a small folder of tables."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from functools import partial
from pathlib import Path

import msgspec
import pytest

from millrace.dashboard.data import AppData
from millrace.dashboard.views import Bars, Note, Table, TimeSeries
from millrace_apps.iot_maintenance.alarms.rule import SEVERITIES
from millrace_apps.iot_maintenance.app import app as iot
from millrace_apps.iot_maintenance.dashboard import page as dashboard
from millrace_apps.iot_maintenance.dashboard.data import STATES, alarms, silent, state_of
from millrace_apps.iot_maintenance.dashboard.machine import asset
from millrace_apps.iot_maintenance.processes.windows import WINDOW_MS, AlarmKpi
from millrace_apps.iot_maintenance.settings import IotSettings
from tests.unit.apps.iot_maintenance.tables import (
    EVIL,
    MACHINES,
    QUANTITIES,
    START_MS,
    IotRecords,
    alarm,
    iot_folder,
)
from tests.unit.millrace.dashboard.cases import (
    Clock,
    check_panels,
    figures,
    frame,
    panel_of,
    put_records,
    without_rows,
)

World = tuple[AppData, IotRecords, Clock]
shown = partial(panel_of, dashboard.page)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, IotRecords]:
    root = tmp_path_factory.mktemp("iot")
    return root, iot_folder(root)


@pytest.fixture(scope="module")
def world(made: tuple[Path, IotRecords]) -> World:
    """To be looked at, not to be written to."""
    root, records = made
    clock = Clock(records.until_ms)
    return AppData(iot, IotSettings(), root, clock), records, clock


@pytest.fixture
def own(made: tuple[Path, IotRecords], tmp_path: Path) -> World:
    """A copy that may be written to."""
    root, records = made
    shutil.copytree(root, tmp_path / "iot")
    clock = Clock(records.until_ms)
    return AppData(iot, IotSettings(), tmp_path / "iot", clock), records, clock


def test_every_panel_shows_something_of_a_full_folder_and_nothing_of_an_empty_one(
    world: World, tmp_path: Path
) -> None:
    data, _, clock = world
    check_panels(dashboard.page, data, AppData(iot, IotSettings(), tmp_path / "none", clock))


def test_tables_without_a_row_are_waited_for(own: World) -> None:
    data, _, clock = own
    assert without_rows(dashboard.page, data, clock) == {}


def test_the_headline_counts_what_is_there(world: World) -> None:
    data, records, _ = world
    found = figures(shown(data, "headline"))
    kept = frame(records.alarms)
    matter = kept[kept.retain & ~kept.shadow]
    assert found["readings"] == len(records.readings)
    assert found["active alarms"] == (matter.active & matter.announced).sum()
    told = matter[~matter.suppressed & ~matter.out_of_service & (matter.shelved == "")]
    assert found["unacknowledged"] == (~told.acked).sum()
    assert found["silent devices"] == 4


def test_readings_per_second_are_those_of_the_last_half_minute(own: World) -> None:
    data, records, clock = own
    table = data.table("readings")
    assert table is not None
    clock.now = table.newest_ms + 5_000  # type: ignore[operator]
    assert figures(shown(data, "headline"))["readings per second"] == pytest.approx(
        len(records.readings) / 30, rel=0.01
    )
    clock.later(60_000)
    assert figures(shown(data, "headline"))["readings per second"] == 0


def test_alarms_are_in_the_order_in_which_operators_look_at_them(world: World) -> None:
    data, records, _ = world
    found = shown(data, "alarms")
    assert isinstance(found, Table)
    order = [
        (STATES.index(str(row[0])), -SEVERITIES.index(str(row[1])), -int(row[5] or 0)) for row in found.rows
    ]
    assert order == sorted(order)
    assert found.rows[0][0] == "active, unacknowledged"
    matter = [a for a in records.alarms if a.retain and not a.shadow]
    assert len(found.rows) + found.more == len(matter)
    told = {r["alarm_id"]: STATES[n] for n in range(8) for r in alarms(data) if r["entity_id"] == MACHINES[0]
            and state_of(r) == STATES[n]}  # fmt: skip
    assert sorted(told.values()) == sorted(STATES)  # one of each on the first machine
    assert not {i for i in told if "tried" in i or "settled" in i}


def test_alarms_are_counted_by_state_and_severity(world: World) -> None:
    data, _, _ = world
    found = shown(data, "alarm-states")
    counts = Counter((state_of(r), r["severity"]) for r in alarms(data))
    assert [row[0] for row in found.rows] == list(STATES)
    for row in found.rows:
        assert list(row[1:5]) == [counts[row[0], s] for s in ("critical", "high", "medium", "low")]
        assert row[5] == sum(row[1:5])


def test_no_alarm_that_matters_is_said_so(tmp_path: Path) -> None:
    put_records(tmp_path, "alarms", [alarm(MACHINES[0], "x", "low", START_MS, retain=False)])
    found = shown(AppData(iot, IotSettings(), tmp_path, Clock()), "alarms")
    assert isinstance(found, Note)
    assert found.tone == "good"


def test_the_tree_shows_plants_and_lines_and_below_them_what_is_not_well(world: World) -> None:
    data, records, _ = world
    found = shown(data, "health")
    expected = {h.asset_id for h in records.health if h.asset_kind in ("plant", "line") or h.health != "good"}
    listed = [str(row[1]) for row in found.rows]
    assert len(listed) + found.more == len(expected)
    assert set(listed) <= expected
    for place, name in enumerate(listed):
        parent = next(h.parent_id for h in records.health if h.asset_id == name)
        assert not parent or parent in listed[:place]  # what something is part of stands before it
    assert {row[1]: (row[2], row[3]) for row in found.rows}["p01"] == next(
        (h.health, h.active) for h in records.health if h.asset_id == "p01"
    )


def test_an_asset_whose_parent_is_not_there_or_is_itself_is_shown(tmp_path: Path) -> None:
    from millrace_apps.iot_maintenance.processes.plant import AssetHealth

    put_records(tmp_path, "health", [
        AssetHealth("pump7", "machine", "pump7", "high", 1, START_MS),
        AssetHealth("p09-l01", "line", "p09", "good", 0, START_MS),
    ])  # fmt: skip
    found = shown(AppData(iot, IotSettings(), tmp_path, Clock()), "health")
    assert [row[1] for row in found.rows] == ["pump7", "p09-l01"]


def test_silent_devices_are_those_last_told_silent_their_own_silence_first(own: World) -> None:
    data, records, _ = own
    last = {row.device_id: row for row in sorted(records.liveness, key=lambda r: r.event_time_ms)}
    expected = {name for name, row in last.items() if row.state == "silent"}
    assert {name for name, _ in silent(data)} == expected
    rows = shown(data, "liveness").rows
    assert [row[2] for row in rows] == ["itself", "itself", "its gateway", "its gateway"]
    put_records(data.root, "liveness", [
        msgspec.structs.replace(row, state="online", event_time_ms=row.event_time_ms + 90_000)
        for row in last.values() if row.state == "silent"
    ])  # fmt: skip
    own[2].later()
    assert isinstance(shown(data, "liveness"), Note)


def test_the_alarm_system_is_measured_over_a_day_in_which_empty_windows_count(world: World) -> None:
    data, records, _ = world
    windows = frame([k for k in records.kpis if k.span == "10min"])
    day = windows[windows.start_ms > windows.start_ms.max() - 24 * 3_600_000]
    number = 144 * 2
    found = figures(shown(data, "alarm-kpis"))
    assert found["alarms in 10 min"] == pytest.approx(day.alarms.sum() / number, abs=0.005)
    assert found["most in 10 min"] == day.alarms.max() == 14
    assert found["time in flood"] == pytest.approx(day.flood.sum() / number)
    assert (found["chattering"], found["stale"], found["standing"]) == (1, 1, 8)
    # All alarms of the fixture are low, and a plant has one name for all of them.
    assert found["priorities"] == "low 100 %"
    assert found["ten most frequent"] == 1.0
    lines = shown(data, "alarm-rate")
    assert isinstance(lines, TimeSeries)
    for series in lines.series:
        assert len(series.points) == 144
        assert sum(v or 0 for _, v in series.points) == day[day.plant_id == series.name].alarms.sum()
    top = shown(data, "top-alarms")
    assert {b.label[:3]: b.value for b in top.bars} == day.groupby("plant_id").alarms.sum().to_dict()


def test_priorities_and_the_ten_most_frequent_alarms_are_those_of_the_windows(tmp_path: Path) -> None:
    rnd = random.Random(4)
    rows, counts = [], Counter[str]()
    by_name: Counter[str] = Counter()
    for n in range(30):
        of = Counter(rnd.choice(SEVERITIES) for _ in range(rnd.randrange(1, 15)))
        names = Counter(f"m{rnd.randrange(40)}:hot" for _ in range(of.total()))
        top = dict(sorted(names.items(), key=lambda item: (-item[1], item[0]))[:10])
        shares = {severity: of[severity] / of.total() for severity in SEVERITIES}
        counts, by_name = counts + of, by_name + Counter(top)
        start = START_MS + n * WINDOW_MS
        rows.append(AlarmKpi("p01", "10min", start, start + WINDOW_MS, of.total(), False, 0.0, [], [], 0,
                             shares, top, 1.0))  # fmt: skip
    put_records(tmp_path, "alarm_kpis", rows)
    found = figures(shown(AppData(iot, IotSettings(), tmp_path, Clock(START_MS)), "alarm-kpis"))
    total = counts.total()
    told = dict(part.rsplit(" ", 2)[:2] for part in str(found["priorities"]).split(", "))
    assert told == {severity: f"{counts[severity] / total * 100:.0f}" for severity in SEVERITIES}
    assert found["ten most frequent"] == pytest.approx(sum(n for _, n in by_name.most_common(10)) / total)


def test_what_stands_for_a_day_is_stale_though_nothing_else_happens_and_not_once_it_is_over(
    own: World,
) -> None:
    """Windows without an alarm have no row: a plant in which nothing happens tells of nothing."""
    data, records, clock = own
    before = figures(shown(data, "alarm-kpis"))["stale"]
    day = 24 * 3_600_000
    long, now = records.until_ms - day - 1, records.until_ms
    rows = [
        alarm(MACHINES[3], "stands/vibration", "low", long),
        alarm(MACHINES[3], "shelved/vibration", "low", long, shelved="timed", announced=False),
        alarm(MACHINES[3], "just/vibration", "low", now - day),
        alarm(MACHINES[3], "suppressed/vibration", "low", long, suppressed=True, announced=False),
        alarm(MACHINES[3], "tried/vibration", "low", long, shadow=True, announced=False),
        alarm(MACHINES[3], "over/vibration", "low", long, active=False, announced=False, level=0),
    ]
    put_records(data.root, "alarms", rows, key=["alarm_id"])
    clock.later()
    assert figures(shown(data, "alarm-kpis"))["stale"] == before + 2
    # Of the one that the plant has told of it is known by now that it is over.
    over = msgspec.structs.replace(alarm(MACHINES[3], "x", "low", long, active=False), alarm_id="old")
    put_records(data.root, "alarms", [over], key=["alarm_id"])
    clock.later()
    assert figures(shown(data, "alarm-kpis"))["stale"] == before + 1


def test_the_last_shift_is_all_machines_together(world: World) -> None:
    data, records, _ = world
    rows = frame(records.shifts)
    last = rows[rows.shift_start_ms == rows.shift_start_ms.max()]
    found = figures(shown(data, "shift"))
    availability = last.operating_ms.sum() / last.planned_ms.sum()
    # All machines have one ideal rate: weighting by time is the parts of what could have been made.
    performance = last.produced.sum() / (60 * last.operating_ms.sum() / 3_600_000)
    quality = (last.produced.sum() - last.rejected.sum()) / last.produced.sum()
    assert found["availability"] == pytest.approx(availability)
    assert found["performance"] == pytest.approx(performance)
    assert found["quality"] == pytest.approx(quality)
    assert found["OEE"] == pytest.approx(availability * performance * quality)
    assert found["failures"] == last.failures.sum()
    machines = shown(data, "shift-machines")
    oees = [row[1] for row in machines.rows]
    assert oees == sorted(oees)
    assert len(oees) == len(MACHINES)
    assert [len(s.points) for s in shown(data, "shift-trend").series] == [5] * 4


def test_readings_that_are_not_to_be_believed_are_counted_by_fault(world: World) -> None:
    data, records, _ = world
    found = shown(data, "sensors")
    assert isinstance(found, Bars)
    assert {b.label: b.value for b in found.bars} == {
        "missing, bad": sum(r.quality == "bad" for r in records.readings)
    }


def test_a_machine_is_shown_with_status_alarms_readings_and_shifts(world: World) -> None:
    data, records, _ = world
    machine = MACHINES[0]
    parts = {part.title: part.view for part in asset(data, machine)}
    assert list(parts)[:2] == ["Now", "Alarms"]
    last = max(
        (r for r in records.readings if r.machine_id == machine),
        key=lambda r: (r.event_time_ms, r.quantity == "current"),
    )
    now = figures(parts["Now"])
    assert (now["last reading"], now["errors in 24 h"]) == (last.event_time_ms, 1)
    assert now["seal, age"] == pytest.approx(3.8)
    for quantity in QUANTITIES:
        chart = parts[quantity.replace("_", " ").capitalize()]
        assert isinstance(chart, TimeSeries)
        own = [
            r for r in records.readings if (r.machine_id, r.quantity, r.revision) == (machine, quantity, 0)
        ]
        assert chart.series[0].points == [(r.event_time_ms, r.value) for r in own]  # bad ones have none: gaps
    alarms_of_it = parts["Alarms"]
    assert isinstance(alarms_of_it, Table)
    assert len(alarms_of_it.rows) == 8
    assert EVIL in {row[3] for row in alarms_of_it.rows}
    history = parts["What happened to its alarms"]
    assert isinstance(history, Table)
    assert len(history.rows) == sum(a.entity_id == machine for a in records.alarms)
    shifts = parts["Shifts"]
    assert isinstance(shifts, Table)
    names = [str(row[0]) for row in shifts.rows]
    assert names == sorted(names, reverse=True)


def test_a_line_shows_the_alarms_of_its_machines_and_a_sensor_its_machine(world: World) -> None:
    data, records, _ = world
    (alarms_of_line,) = asset(data, "p01-l01")
    expected = [a for a in records.alarms if a.line_id == "p01-l01" and a.retain and not a.shadow]
    assert isinstance(alarms_of_line.view, Table)
    assert len(alarms_of_line.view.rows) + alarms_of_line.view.more == len(expected)
    assert [p.title for p in asset(data, f"{MACHINES[0]}.vibration")] == [
        p.title for p in asset(data, MACHINES[0])
    ]
    assert asset(data, "nobody") == []


def test_what_is_made_of_a_table_is_made_anew_when_the_table_has_changed(own: World) -> None:
    data, _, clock = own
    before = alarms(data)
    assert alarms(data) is before
    put_records(data.root, "alarms", [alarm(MACHINES[0], "new", "critical", START_MS + 10**7)])
    clock.later()
    assert len(alarms(data)) == len(before) + 1
    assert alarms(data)[0]["alarm_id"].endswith(":new")
