"""The asset registry: measuring points, places, what is unknown, and what has never been heard."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from typer.testing import CliRunner

from millrace.errors import UserError
from millrace.testing import TestDriver
from millrace.testing.properties import invariant
from millrace_apps.iot_maintenance.alarms.rule import AlarmRule, Level
from millrace_apps.iot_maintenance.contracts.events import Equipment, MeasuringPoint, Reading
from millrace_apps.iot_maintenance.contracts.records import Liveness
from millrace_apps.iot_maintenance.operations.cli import app
from millrace_apps.iot_maintenance.operations.register_cli import read_assets
from millrace_apps.iot_maintenance.state.assets import Notice
from tests.unit.apps.iot_maintenance.monitor_cases import (
    GATEWAY,
    M1,
    MINUTE,
    SECOND,
    START,
    Event,
    beat,
    driver,
    equipment,
    history,
    monitor,
    rows,
    rule,
    send,
    until,
)

SILENT = AlarmRule("quiet", (Level(),), source="silence")


def measured(
    at: int,
    value: float,
    sensor: str = "s1",
    *,
    point: str = "",
    quantity: str = "vibration",
    machine: str = M1,
) -> Event:
    """A reading of a sensor."""
    event = Reading(
        f"{sensor}.{point}.{at}", sensor, machine, GATEWAY, quantity, value, "mm/s", START + at, point
    )
    return machine, START + at, event


def registered(at: int, *points: MeasuringPoint, machine: str = M1, **rest: Any) -> Event:
    """Master data of a machine."""
    rest = {"kind": "pump", "site": "north", "line": "filling"} | rest
    return machine, START + at, Equipment(machine, START + at, points=[*points], **rest)


def notices(target: TestDriver) -> list[tuple[str, str, str]]:
    found: list[Notice] = target.values("notices")
    return [(n.what, n.subject, n.state) for n in found]


def liveness(target: TestDriver) -> list[tuple[str, str, bool, int]]:
    found: list[Liveness] = target.values("liveness")
    return [(n.device_id, n.state, n.never_heard, (n.event_time_ms - START) // SECOND) for n in found]


# -- several measuring points ----------------------------------------------------------------------


def test_two_sensors_of_one_quantity_are_two_points_and_nothing_is_a_duplicate() -> None:
    """Two hundred readings of each, at the same instants: none is a repeat of the other's."""
    target = driver()
    for step in range(200):
        send(target, measured(step * SECOND, 1.0, "s1"), measured(step * SECOND, 9.0, "s2"))
    until(target, 300 * SECOND)
    assert target.values("dead_letters") == []
    assert {(r.sensor_id, r.point, r.average) for r in rows(target)[20:]} == {
        ("s1", "", 1.0),
        ("s2", "s2", 9.0),
    }


def test_three_axes_by_the_names_of_their_points() -> None:
    target = driver(rule(Level(above=5.0), quantities=("vibration",)))
    for step in range(100):
        for axis, value in (("x", 1.0), ("y", 2.0), ("z", 6.0)):
            send(target, measured(step * SECOND, value, "accelerometer", point=axis))
    until(target, 300 * SECOND)
    assert target.values("dead_letters") == []
    assert {(r.point, r.low, r.high) for r in rows(target)} == {("x", 1, 1), ("y", 2, 2), ("z", 6, 6)}
    assert [(e.alarm, e.quantity, e.point, e.change) for e in history(target)] == [
        ("hot/vibration@z", "vibration", "z", "active")
    ]


def test_a_repeat_and_a_contradiction_of_one_point_are_told_as_before() -> None:
    target = driver()
    send(target, measured(0, 1.0, "a"), measured(0, 2.0, "b"), measured(1_000, 1.0, "a"))
    send(target, measured(1_000, 2.0, "b"))
    target.send_batch([measured(1_000, 2.0, "b"), measured(1_000, 3.0, "b")])
    until(target, 60_000)
    assert sorted(d["reason"] for d in target.values("dead_letters")) == ["conflict", "duplicate"]


def test_a_sensor_that_the_registry_has_is_at_its_point() -> None:
    target = driver(rule(Level(above=5.0), quantities=("vibration",)))
    send(
        target,
        registered(
            0, MeasuringPoint("vibration", "drive end", "s1"), MeasuringPoint("vibration", "fan", "s2")
        ),
        measured(1_000, 1.0, "s1"),
        measured(1_000, 7.0, "s2"),
    )
    until(target, 2_000)
    assert [(r.sensor_id, r.point) for r in rows(target)] == [("s1", "drive end"), ("s2", "fan")]
    assert [e.alarm_id for e in history(target)] == [f"{M1}:hot/vibration@fan"]


def test_points_that_are_registered_later_go_on_with_what_was_measured() -> None:
    target = driver(rule(Level(above=5.0), quantities=("vibration",)))
    send(target, measured(0, 7.0, "s1"), measured(0, 1.0, "s2"), measured(1_000, 7.0, "s1"))
    points = MeasuringPoint("vibration", "de", "s1"), MeasuringPoint("vibration", "nde", "s2")
    send(target, registered(1_500, *points), measured(2_000, 7.0, "s1"), measured(2_000, 3.0, "s2"))
    until(target, 3_000)
    assert [(r.point, r.average) for r in rows(target)[-2:]] == [("de", 7.0), ("nde", 2.0)]
    assert [(e.alarm, e.change) for e in history(target) if e.change != "moved"] == [
        ("hot/vibration", "active"),
        ("hot/vibration", "removed"),
        ("hot/vibration@de", "active"),
    ]


def test_an_operator_acts_on_the_alarm_of_a_point() -> None:
    from tests.unit.apps.iot_maintenance.monitor_cases import action

    target = driver(rule(Level(above=5.0), quantities=("vibration",)))
    send(target, measured(0, 7.0, point="x"), measured(0, 7.0, point="y"))
    send(target, action(1_000, "ack", "hot/vibration@x"), action(1_000, "ack", "hot/flow@x"))
    until(target, 3_000)
    assert [(e.alarm, e.change, e.acked) for e in history(target)[2:]] == [
        ("hot/flow@x", "rejected", True),
        ("hot/vibration@x", "ack", True),
    ]


@pytest.mark.parametrize("seed", range(3))
def test_each_point_has_the_averages_of_its_own_values(seed: int) -> None:
    """3,000 readings of three machines with up to four sensors of two quantities; the mean by hand."""
    rng = random.Random(seed)
    target = driver()
    values: dict[Any, list[float]] = defaultdict(list)
    first: dict[Any, str] = {}
    wanted = {}
    batch = []
    for step in range(3_000):
        machine, quantity = rng.choice(["a", "b", "c"]), rng.choice(["flow", "speed"])
        sensor, point = rng.choice(["s1", "s2"]), rng.choice(["", "", "left"])
        # A named point is itself, whoever measures; else the first sensor has no name, the other its own.
        name = point or ("" if first.setdefault((machine, quantity), sensor) == sensor else sensor)
        value = float(rng.randrange(100))
        kept = values[machine, quantity, name]
        kept.append(value)
        event = measured(step * 100, value, sensor, point=point, quantity=quantity, machine=machine)
        wanted[event[2].reading_id] = name, fmean(kept[-5:])
        batch.append(event)
        if len(batch) == rng.choice([1, 50, 400]) or step == 2_999:
            target.send_batch(batch)
            batch = []
    target.send_batch(batch)
    until(target, 3_001 * 100)
    found = {r.reading_id: (r.point, r.average) for r in rows(target)}
    assert found.keys() == wanted.keys()
    for key, (name, average) in wanted.items():
        assert found[key] == (name, pytest.approx(average))


# -- places ----------------------------------------------------------------------------------------


def test_no_name_has_a_meaning_unless_the_plant_says_so() -> None:
    places = {}
    for tree in ("registry", "names"):
        target = driver(rule(Level(above=5.0), quantities=("vibration",)), tree=tree)
        send(target, measured(0, 7.0))
        until(target, 1_000)
        places[tree] = [(e.plant_id, e.line_id) for e in history(target)]
    assert places == {"registry": [("unregistered", "unregistered")], "names": [("p01", "p01-l01")]}


def test_the_registry_says_where_a_machine_is_and_where_it_is_now() -> None:
    """What stands when a machine moves is told there no more, but here."""
    target = driver(rule(Level(above=5.0), quantities=("vibration",)))
    send(target, registered(0), measured(1_000, 7.0), registered(2_000, site="south", line="press"))
    send(target, measured(3_000, 1.0))
    until(target, 4_000)
    assert [(e.change, e.plant_id, e.line_id, e.announced) for e in history(target)] == [
        ("active", "north", "filling", True),
        ("moved", "north", "filling", False),
        ("moved", "south", "press", True),
        ("inactive", "south", "press", False),
    ]


def test_older_master_data_do_not_take_the_place_of_newer() -> None:
    target = driver(rule(Level(above=5.0), quantities=("vibration",)))
    send(target, registered(5_000), measured(6_000, 1.0))
    send(target, registered(-50 * MINUTE, site="south"))  # late, beyond any grace
    send(target, measured(7_000, 9.0))
    until(target, 8_000)
    assert [(e.plant_id, e.line_id) for e in history(target)] == [("north", "filling")]
    assert target.values("late") == []


def test_master_data_from_when_a_machine_was_built_are_taken() -> None:
    target = driver(rule(Level(above=5.0), quantities=("vibration",)))
    send(target, measured(0, 1.0), measured(10_000, 1.0), registered(-900 * MINUTE), measured(11_000, 9.0))
    until(target, 12_000)
    assert [(e.plant_id, e.line_id) for e in history(target)] == [("north", "filling")]
    assert rows(target)[-1].kind == "pump"
    assert notices(target) == [("unknown_asset", "", "open"), ("unknown_asset", "", "over")]


# -- unknown, and never heard ----------------------------------------------------------------------


def test_readings_of_a_machine_that_is_in_no_registry_are_told_once() -> None:
    target = driver()
    send(target, *(measured(at, 1.0) for at in range(0, 50_000, 1_000)))
    send(target, equipment(60_000, "pump"), *(measured(at, 1.0) for at in range(61_000, 70_000, 1_000)))
    until(target, 80_000)
    assert notices(target) == [("unknown_asset", "", "open"), ("unknown_asset", "", "over")]


def test_a_point_that_the_registry_does_not_have_is_told_once() -> None:
    target = driver()
    send(target, registered(0, MeasuringPoint("vibration", "de")), measured(1_000, 1.0, point="de"))
    send(target, *(measured(at, 1.0, point="nde") for at in range(2_000, 9_000, 1_000)))
    more = MeasuringPoint("vibration", "de"), MeasuringPoint("vibration", "nde")
    send(target, registered(9_500, *more))
    until(target, 10_000)
    assert notices(target) == [
        ("unknown_point", "vibration@nde", "open"),
        ("unknown_point", "vibration@nde", "over"),
    ]


def test_a_point_that_has_never_been_heard_is_an_alarm_until_it_is() -> None:
    target = driver(SILENT, first_heard_ms=MINUTE)
    send(target, registered(0, MeasuringPoint("vibration", "de"), MeasuringPoint("vibration", "nde")))
    send(target, *(measured(at, 1.0, point="de") for at in range(0, 200_000, 1_000)))
    send(target, measured(200_500, 1.0, point="nde"))
    until(target, 201_000)
    name = f"{M1}.vibration@nde"
    assert liveness(target) == [(name, "silent", True, 60), (name, "online", False, 200)]
    assert [(e.alarm, e.change, e.reason) for e in history(target)] == [
        ("quiet/vibration@nde", "active", "never heard"),
        ("quiet/vibration@nde", "inactive", "never heard"),
    ]


def test_a_device_that_has_never_been_heard_is_an_alarm_until_it_is() -> None:
    target = driver(SILENT, first_heard_ms=MINUTE)
    gateway = Equipment(GATEWAY, START, "gateway", site="north", line="l1", devices=[GATEWAY, M1, "m9"])
    send(target, (GATEWAY, START, gateway))
    for at in range(1_000, 100_000, 1_000):
        send(target, beat(at, GATEWAY), beat(at, M1))
    send(target, beat(100_000, "m9"), beat(100_000, GATEWAY), beat(100_000, M1), beat(100_100, "m77"))
    until(target, 105_000)
    assert liveness(target) == [("m9", "silent", True, 60), ("m9", "online", False, 100)]
    assert [(e.alarm, e.change, e.plant_id) for e in history(target)] == [
        ("quiet/m9", "active", "north"),
        ("quiet/m9", "inactive", "north"),
    ]
    assert notices(target) == [("unknown_device", "m77", "open")]


def test_a_device_that_was_never_heard_is_waited_for_no_more_once_it_is_deregistered() -> None:
    target = driver(SILENT, first_heard_ms=MINUTE)
    for at, devices in ((0, (GATEWAY, "m9")), (90_000, (GATEWAY,))):
        send(target, (GATEWAY, START + at, Equipment(GATEWAY, START + at, "gateway", devices=[*devices])))
        send(target, *(beat(at + more, GATEWAY) for at_ in (0,) for more in range(at_, 89_000, 1_000)))
    until(target, 180_000)
    assert [(e.alarm, e.change) for e in history(target) if e.alarm == "quiet/m9"] == [
        ("quiet/m9", "active"),
        ("quiet/m9", "inactive"),
    ]


def test_a_gateway_nobody_registered_is_told() -> None:
    target = driver()
    send(target, beat(0, GATEWAY), beat(1_000, M1), beat(2_000, GATEWAY))
    until(target, 3_000)
    assert notices(target) == [("unknown_asset", "", "open")]


def test_what_the_registry_brings_about_hangs_on_no_cut() -> None:
    rng = random.Random(11)
    events = []
    for step in range(300):
        at = step * SECOND
        machine = rng.choice([M1, "m2"])
        kind = rng.random()
        if kind < 0.03:
            points = [
                MeasuringPoint("vibration", p, s) for p, s in (("de", "s1"), ("nde", "s2"), ("top", "s3"))
            ]
            few = tuple(rng.sample(points, rng.randint(0, 3)))
            events.append(registered(at, *few, machine=machine, site=rng.choice(["north", "south"])))
        elif kind < 0.05:
            devices = tuple(sorted({GATEWAY, *rng.sample([M1, "m2", "m9"], 2)}))
            events.append(
                (GATEWAY, START + at, Equipment(GATEWAY, START + at, "gateway", devices=[*devices]))
            )
        elif kind < 0.3:
            events.append(beat(at, rng.choice([GATEWAY, M1])))
        else:
            point = rng.choice(["", "", "top"])
            value = rng.choice([1.0, 9.0])
            events.append(measured(at, value, rng.choice(["s1", "s2"]), point=point, machine=machine))
    rules = (rule(Level(above=5.0), quantities=("vibration",)), SILENT)
    made = monitor(*rules, first_heard_ms=MINUTE, sensor_least_ms=5 * SECOND)
    invariant(made, events, bound_ms=3 * SECOND, runs=4)


# -- by command ------------------------------------------------------------------------------------


def test_a_file_of_assets_is_sent_to_the_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from millrace.operations import sending

    sent: list[Any] = []
    monkeypatch.setattr(sending, "send", lambda kafka, topic, contract, events: sent.append((topic, events)))
    file = tmp_path / "plant.yaml"
    file.write_text(
        "- {machine_id: press-7, event_time_ms: 5, site: north, "
        "points: [{quantity: vibration, point: fan}]}\n"
        "- {machine_id: gw-3, kind: gateway, devices: [gw-3, press-7]}\n"
    )
    done = CliRunner().invoke(app, ["register", str(file), "--root", str(tmp_path)])
    assert (done.exit_code, done.output) == (0, "2 assets sent to iot.equipment\n")
    ((topic, ((key, press), (_, gateway))),) = sent
    assert (topic, key) == ("iot.equipment", "press-7")
    assert press == Equipment("press-7", 5, site="north", points=[MeasuringPoint("vibration", "fan")])
    assert gateway.devices == ["gw-3", "press-7"]
    assert gateway.event_time_ms > START


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: b", "no list of assets"),
        ("- {machine: m1}", "there is no 'machine'"),
        ("- {kind: pump}", "machine_id"),
        ("- {machine_id: m1, points: [{point: x}]}", "quantity"),
        ("- {machine_id: m1, points: [{quantity: oil, sensor: s1}]}", "asset 1: there is no 'sensor'"),
        ("- {machine_id: m1, points: [{quantity: oil}, {quantity: oil}]}", "asset 1: oil is measured twice"),
        ("- {machine_id: m0}\n- {machine_id: m1, points: 3}", "asset 2"),
        ("- [", "plant.yaml"),
    ],
)
def test_a_file_that_is_no_list_of_assets_is_refused_in_one_line(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "plant.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match=why) as refused:
        read_assets(file, 0)
    assert "\n" not in str(refused.value)
