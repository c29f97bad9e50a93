"""The fleet, what is to come, how right models were, and what can be done: held against plain loops."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from millrace.dashboard.data import AppData
from millrace.dashboard.page import ActionRefused
from millrace.dashboard.views import Bars, Table, TimeSeries
from millrace_apps.iot_maintenance.alarms.rule import SEVERITIES
from millrace_apps.iot_maintenance.app import app as iot
from millrace_apps.iot_maintenance.contracts.events import Action
from millrace_apps.iot_maintenance.dashboard import page as dashboard
from millrace_apps.iot_maintenance.dashboard import work as dashboard_work
from millrace_apps.iot_maintenance.dashboard.fleet import STANDINGS, fleet
from millrace_apps.iot_maintenance.dashboard.foresight import judged_lives, judged_risks, quality
from millrace_apps.iot_maintenance.dashboard.machine import asset
from millrace_apps.iot_maintenance.operations.operating import events_clock
from millrace_apps.iot_maintenance.settings import IotSettings
from tests.unit.apps.iot_maintenance.tables import HOUR, MACHINES, MINUTE, START_MS, IotRecords, iot_folder
from tests.unit.millrace.dashboard.cases import Clock, frame, panel_of, put_checkpoint, put_records

shown = partial(panel_of, dashboard.page)
World = tuple[AppData, IotRecords]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    root = tmp_path_factory.mktemp("iot")
    records = iot_folder(root)
    return AppData(iot, IotSettings(), root, Clock(records.until_ms)), records


def last_of(rows: list[Any], **where: Any) -> Any:
    found = [r for r in rows if all(getattr(r, name) == value for name, value in where.items())]
    return max(found, key=lambda r: r.event_time_ms, default=None)


def test_the_fleet_has_what_was_last_told_of_each_machine(world: World) -> None:
    data, records = world
    found = fleet(data)
    assert sorted(m.machine_id for m in found) == sorted(MACHINES)
    for m in found:
        name = m.machine_id
        told = [a for a in records.alarms if a.entity_id == name and a.active and a.announced]
        assert m.alarms == len(told)
        assert m.severity == max((a.severity for a in told), key=SEVERITIES.index, default="")
        health = last_of(records.machine_health, machine_id=name)
        assert m.health is not None
        assert (m.health["event_time_ms"], m.health["score"]) == (health.event_time_ms, health.score)
        assert m.life is not None
        assert m.life["remaining_h"] == last_of(records.lives, machine_id=name).remaining_h
        last = last_of(records.risks, machine_id=name).event_time_ms
        worst = max(r.probability for r in records.risks if r.machine_id == name and r.event_time_ms == last)
        assert m.risk is not None
        assert (m.risk["event_time_ms"], m.risk["probability"]) == (last, worst)
        crossing = last_of(records.crossings, machine_id=name)
        assert (m.crossing is None) == (crossing.side == "none")
        assert (m.plan is None) == (name not in {p.machine_id for p in records.plans})
        opened = [o for o in records.orders if o.machine_id == name
                  and o.state in ("planned", "in work", "overdue")]  # fmt: skip
        soonest = min(opened, key=lambda o: o.start_ms, default=None)
        assert (m.order and m.order["order_id"]) == (soonest and soonest.order_id)
    order = [list(STANDINGS).index(m.standing) for m in found]
    assert order == sorted(order)


def test_the_standings_count_each_machine_once(world: World) -> None:
    data, _ = world
    bars = shown(data, "standings")
    assert isinstance(bars, Bars)
    assert [b.label for b in bars.bars] == list(STANDINGS)
    assert sum(b.value for b in bars.bars) == len(MACHINES)
    table = shown(data, "fleet")
    assert isinstance(table, Table)
    assert [row[1] for row in table.rows].count("critical or high alarm") == bars.bars[0].value
    assert len(table.actions) == len(table.rows)


def test_what_comes_later_is_folded_in_whatever_its_order(tmp_path: Path) -> None:
    records = iot_folder(tmp_path)
    clock = Clock(records.until_ms)
    data = AppData(iot, IotSettings(), tmp_path, clock)
    assert fleet(data)
    more = [r for r in records.lives if r.machine_id in MACHINES[:3]]
    at = max(r.event_time_ms for r in more)
    rnd = random.Random(3)
    added = [
        type(r)(r.machine_id, at + rnd.randrange(1, 50) * MINUTE, 1.0 + n, 0.5, 9.0 + n, 72.0, 0.9, 1, "3")
        for n, r in enumerate(more)
    ]
    rnd.shuffle(added)
    for part in (added[:7], added[7:40], added[40:]):
        put_records(tmp_path, "remaining_life", part)
        clock.later()
        fleet(data)
    newest = {m: max(r.event_time_ms for r in added if r.machine_id == m) for m in MACHINES[:3]}
    for m in fleet(data):
        if m.machine_id in newest:
            assert m.life is not None
            assert m.life["event_time_ms"] == newest[m.machine_id]


def test_limits_that_will_be_crossed_are_in_the_order_of_their_time(world: World) -> None:
    data, records = world
    rows = shown(data, "crossings").rows
    expected = [c for c in records.crossings if c.side != "none"]
    assert len(rows) == len(expected)
    assert [r[4] for r in rows] == sorted(r[4] for r in rows)


def test_plans_without_an_order_before_their_date_stand_out(world: World) -> None:
    data, records = world
    table = shown(data, "plan")
    assert [r[0] for r in table.rows] == sorted(p.latest_ms for p in records.plans)
    starts: dict[str, list[int]] = defaultdict(list)
    for o in records.orders:
        if o.state in ("planned", "in work", "overdue"):
            starts[o.machine_id].append(o.start_ms)
    for row, tone in zip(table.rows, table.tones, strict=True):
        in_time = bool(starts[row[1]]) and min(starts[row[1]]) <= row[0]
        assert tone == ("good" if in_time else "warn")


def test_only_open_orders_can_be_moved_or_cancelled(world: World) -> None:
    data, records = world
    table = shown(data, "orders")
    opened = sum(o.state in ("planned", "in work", "overdue") for o in records.orders)
    acts = [bool(a) for a in table.actions]
    assert acts == [True] * opened + [False] * (len(acts) - opened)
    assert len(table.rows) == len(records.orders)
    begins = [row[3] for row in table.rows[:opened]]
    assert begins == sorted(begins)


def next_failure(records: IotRecords, machine: str, at: int, component: str = "") -> int | None:
    """When a machine broke next, before the work on it began."""
    ends = [
        r.event_time_ms - r.duration_ms for r in records.repairs
        if r.machine_id == machine and r.kind == "corrective" and r.event_time_ms - r.duration_ms > at
        and component in ("", r.component)
    ]  # fmt: skip
    return min(ends, default=None)


def is_broken(records: IotRecords, machine: str, at: int) -> bool:
    return any(
        r.event_time_ms - r.duration_ms <= at < r.event_time_ms
        for r in records.repairs
        if r.machine_id == machine and r.kind == "corrective"
    )


def test_models_are_judged_by_the_failures_that_came_after(world: World) -> None:
    data, records = world
    lives: dict[str, list[tuple[float, bool]]] = defaultdict(list)
    for r in records.lives:
        end = next_failure(records, r.machine_id, r.event_time_ms)
        if end is not None and not is_broken(records, r.machine_id, r.event_time_ms):
            truth = min((end - r.event_time_ms) / HOUR, 72.0)
            lives[r.model].append((abs(truth - r.remaining_h), r.low_h <= truth <= r.high_h))
    newest = max(r.event_time_ms for r in [*records.risks, *records.repairs])  # type: ignore[attr-defined]
    risks: dict[tuple[str, str], list[tuple[float, bool]]] = defaultdict(list)
    for k in records.risks:
        if k.event_time_ms + 24 * HOUR <= newest and not is_broken(records, k.machine_id, k.event_time_ms):
            end = next_failure(records, k.machine_id, k.event_time_ms, k.component)
            failed = end is not None and end - k.event_time_ms <= 24 * HOUR
            risks[k.model, k.component].append((k.probability, failed))
    found, _ = quality(data)
    of_lives = {r.model: r for r in found if r.what == "remaining life"}
    assert of_lives.keys() == lives.keys() == {"1", "2"}
    for model, pairs in lives.items():
        r = of_lives[model]
        assert r.judged == len(pairs)
        assert r.mean_error_h == pytest.approx(sum(e for e, _ in pairs) / len(pairs))
        assert r.inside == pytest.approx(sum(i for _, i in pairs) / len(pairs))
    of_risks = {(r.model, r.what): r for r in found if r.what != "remaining life"}
    assert of_risks.keys() == risks.keys()
    for key, chances in risks.items():
        r = of_risks[key]
        assert r.judged == len(chances)
        assert r.brier == pytest.approx(sum((p - f) ** 2 for p, f in chances) / len(chances))
        assert r.inside == pytest.approx(sum(f for _, f in chances) / len(chances))


def test_a_failure_at_the_moment_of_a_forecast_is_not_what_it_foresaw() -> None:
    at = START_MS
    row = {
        "machine_id": "m",
        "event_time_ms": at,
        "ceiling_h": 10.0,
        "remaining_h": 1.0,
        "low_h": 0.0,
        "high_h": 2.0,
    }
    risk = {"machine_id": "m", "component": "a", "event_time_ms": at, "horizon_h": 1.0, "probability": 0.5}

    def repairs(*ends: int) -> Any:
        import pandas as pd

        kinds = [
            {"machine_id": "m", "component": "a", "event_time_ms": e, "kind": "corrective"} for e in ends
        ]
        return pd.DataFrame(kinds)

    import pandas as pd

    assert judged_lives(pd.DataFrame([row]), repairs(at)).empty
    assert list(judged_lives(pd.DataFrame([row]), repairs(at, at + 2 * HOUR))["truth_h"]) == [2.0]
    assert list(judged_risks(pd.DataFrame([risk]), repairs(at, at + HOUR), at + HOUR)["failed"]) == [True]
    assert list(judged_risks(pd.DataFrame([risk]), repairs(at, at + HOUR + 1), at + HOUR)["failed"]) == [
        False
    ]
    assert judged_risks(pd.DataFrame([risk]), repairs(at + 1), at + HOUR - 1).empty


def test_the_intervals_so_far_are_those_of_the_lives_that_ended(world: World) -> None:
    data, _ = world
    view = shown(data, "intervals")
    assert isinstance(view, TimeSeries)
    _, judged = quality(data)
    assert judged is not None
    assert view.series[0].points[-1][1] == pytest.approx(judged["inside"].mean())


def test_a_machine_is_shown_with_what_is_to_come(world: World) -> None:
    data, records = world
    name = MACHINES[0]  # rising to 5.0
    parts = {p.title: p.view for p in asset(data, name)}
    assert {
        "Maintenance",
        "Remaining life",
        "Risk",
        "Sensors together",
        "What has to do with it",
    } <= parts.keys()
    chart = parts["Vibration"]
    assert isinstance(chart, TimeSeries)
    lines = {s.name: s.points for s in chart.series}
    bands = {b.name: b.points for b in chart.bands}
    crossing = next(c for c in records.crossings if c.machine_id == name)
    at = crossing.event_time_ms
    assert lines["expected"] == [(at, 3.0), (at + 1.5 * HOUR, 5.0)]
    # At the soonest it is at the limit; by what crosses after four hours it is a quarter of the way.
    assert bands["crosses between"] == [
        (at, 3.0, 3.0), (at + HOUR, 3.5, 5.0), (at + 4 * HOUR, 5.0, 5.0),
    ]  # fmt: skip
    assert [5.0, 5.0] in [[value for _, value in s.points] for s in chart.series if s.look == "limit"]
    assert len(bands["nothing new"]) == 14
    life = parts["Remaining life"]
    assert isinstance(life, TimeSeries)
    assert len(life.series[0].points) == len(life.bands[0].points) == 90
    assert sum(b.value for b in parts["What has to do with it"].bars) == pytest.approx(1.0)  # type: ignore[union-attr]
    alarms = parts["Alarms"]
    assert isinstance(alarms, Table)
    assert len(alarms.actions) == len(alarms.rows)


# -- what can be done --------------------------------------------------------------------------------


class Sent:
    """Takes what would go to the broker."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.actions: list[Action] = []
        monkeypatch.setattr(dashboard_work, "send_action", lambda _, action: self.actions.append(action))


def run(data: AppData, name: str, values: Mapping[str, str]) -> str:
    action = dashboard.page.action(name)
    return action.run(data, action.checked(values))


def test_alarms_are_acted_on_as_the_commands_do(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    data, records = world
    sent = Sent(monkeypatch)
    alarm = f"{MACHINES[0]}:vibration-high/vibration"
    said = run(data, "ack", {"alarm": alarm, "by": "ann"})
    run(data, "shelve", {"alarm": alarm, "for": "30m", "note": "known", "by": "ann"})
    run(data, "comment", {"alarm": alarm, "note": "looked at it", "by": "bob"})
    run(data, "act", {"alarm": alarm, "what": "out_of_service", "by": "bob", "role": "engineer", "note": "n"})
    assert "ann" in said
    assert [(a.verb, a.operator, a.duration_ms, a.comment, a.role) for a in sent.actions] == [
        ("ack", "ann", 0, "", ""),
        ("shelve", "ann", 30 * MINUTE, "known", ""),
        ("comment", "bob", 0, "looked at it", ""),
        ("out_of_service", "bob", 0, "n", "engineer"),
    ]
    assert {(a.entity_id, a.alarm) for a in sent.actions} == {(MACHINES[0], "vibration-high/vibration")}
    # By the clock of the events, however long ago they were.
    assert {a.event_time_ms for a in sent.actions} == {records.until_ms}


def test_work_is_planned_moved_and_cancelled_from_the_page(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, _ = world
    sent = Sent(monkeypatch)
    about = {"machine": MACHINES[0], "component": "seal", "by": "ann"}
    suppressing = {"alarms": "suppress", "note": "n", "role": "fitter"}
    run(data, "plan", {**about, **suppressing, "start": "2026-01-02T06:00Z", "for": "2h"})
    run(data, "plan", about)
    run(data, "unplan", about)
    first, second, third = sent.actions
    assert (first.verb, first.alarm, first.duration_ms, first.suppress) == ("plan", "seal", 2 * HOUR, True)
    assert (first.start_ms, first.role) == (START_MS + 30 * HOUR, "fitter")
    assert (second.start_ms, second.suppress) == (None, False)
    assert (third.verb, third.operator) == ("unplan", "ann")


@pytest.mark.parametrize(
    ("name", "values", "why"),
    [
        ("shelve", {"alarm": "m:a", "for": "soon", "by": "ann"}, "soon"),
        ("ack", {"alarm": "nothing", "by": "ann"}, "names no alarm"),
        ("act", {"alarm": "m:a", "what": "explode", "by": "ann"}, "one of"),
        ("plan", {"machine": "m", "component": "seal", "start": "2020-01-01", "by": "ann"}, "over already"),
        ("plan", {"machine": "m", "component": "seal", "start": "when it rains", "by": "ann"}, "rains"),
        ("comment", {"alarm": "m:a", "by": "ann"}, "missing"),
        ("ack", {"alarm": "m:a"}, "missing"),
        ("ack", {"alarm": "m:a", "by": "ann"}, "no broker"),
    ],
)
def test_what_cannot_be_done_is_said(world: World, name: str, values: dict[str, str], why: str) -> None:
    data, _ = world
    with pytest.raises(ActionRefused, match=why):
        run(data, name, values)


def test_actions_go_by_how_far_the_stream_is(tmp_path: Path) -> None:
    now = START_MS + 1_000 * HOUR
    assert events_clock(None, None, now) == now
    assert events_clock(tmp_path, None, now) == now
    assert events_clock(tmp_path, START_MS, now) == START_MS + 1
    put_checkpoint(tmp_path, {"iot.readings": {"0": 3}}, watermark=START_MS + HOUR)
    assert events_clock(tmp_path, START_MS, now) == START_MS + HOUR
    assert events_clock(tmp_path, None, START_MS + HOUR + 30_000) == START_MS + HOUR + 30_000
    assert frame([]).empty
