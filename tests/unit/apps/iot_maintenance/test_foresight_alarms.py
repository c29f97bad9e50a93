"""Alarms of what is foreseen: against a loop over the rows of the tables; by the engine of all alarms."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millrace.host.memory import MemoryHost
from millrace.rules import RuleError
from millrace.testing import TestDriver
from millrace_apps.iot_maintenance.alarms.language import language
from millrace_apps.iot_maintenance.alarms.rule import AlarmRule, CompiledRule, Escalate, Level, Repeat
from millrace_apps.iot_maintenance.contracts.events import Action, Equipment, Maintenance, Status
from millrace_apps.iot_maintenance.contracts.records import EnrichedReading
from millrace_apps.iot_maintenance.evaluation.stream import Sent, run, settings_for, written
from millrace_apps.iot_maintenance.foresight.alarming import Ruling
from millrace_apps.iot_maintenance.foresight.forewarning import Forewarning
from millrace_apps.iot_maintenance.foresight.models import Forecaster
from millrace_apps.iot_maintenance.foresight.process import Foresight, Looking
from millrace_apps.iot_maintenance.operations.backtest import _why_not
from millrace_apps.iot_maintenance.state.assets import Standing
from tests.unit.apps.iot_maintenance.foresight_cases import HOUR, START, publish_both, streamed, wearing

Rows = list[dict[str, Any]]


def told(fleet: Any) -> list[str]:
    return [
        f"monitor.fleet_file={fleet}",
        "monitor.judge=false",
        "monitor.sensor_least=30d",
        "monitor.grace=0s",
    ]


def soon(rule_id: str, *levels: Level, **more: Any) -> AlarmRule:
    return AlarmRule(rule_id, levels, source="foresight", **more)


def alarms_of(
    events: list[Sent], exports: Path, rules: list[AlarmRule], *overrides: str, batch: int = 500
) -> tuple[Rows, dict[str, Rows]]:
    """The history of alarms of what is foreseen, and the tables."""
    with written(rules) as fleet:
        told = [
            f"monitor.fleet_file={fleet}",
            "monitor.judge=false",
            "monitor.sensor_least=30d",
            "monitor.grace=0s",
        ]
        settings = settings_for([*told, "foresight.on=true", f"foresight.exports={exports}", *overrides])
        wanted = ["alarm_history", "risks", "remaining_life"]
        tables = run(events, settings, wanted, engine="memory", batch=batch).rows
    mine = {rule.id for rule in rules}
    history = [row for row in tables["alarm_history"] if row["rule_id"] in mine]
    history.sort(key=lambda row: (row["entity_id"], row["event_time_ms"], row["number"]))
    return history, tables


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("exports")
    events = wearing(6, seed=9)
    publish_both(folder, streamed(events)["machine_features"], events)
    return folder


def by_loop(
    tables: dict[str, Rows], holds: Any, *, on_delay: int = 0, figure: str = "remaining_h"
) -> list[tuple[str, int, str]]:
    """When a condition on the rows of the tables begins and ceases, machine by machine."""
    lives = {(r["machine_id"], r["event_time_ms"]): r[figure] for r in tables["remaining_life"]}
    risks: dict[tuple[str, int], dict[str, float]] = {}
    for r in tables["risks"]:
        risks.setdefault((r["machine_id"], r["event_time_ms"]), {})[r["component"]] = r["probability"]
    found = []
    for machine in sorted({machine for machine, _ in risks}):
        active, since = False, None
        for at in sorted(at for of, at in risks if of == machine):
            if since is not None and not active and since + on_delay <= at:
                active = True
                found.append((machine, since + on_delay, "active"))
            if holds(lives.get((machine, at)), risks[machine, at]):
                since = at if since is None else since
                if not active and at - since >= on_delay:
                    active = True
                    found.append((machine, at, "active"))
            else:
                since = None
                if active:
                    active = False
                    found.append((machine, at, "inactive"))
        if since is not None and not active:
            found.append((machine, since + on_delay, "active"))
    return found


def changes(history: Rows, rule: str) -> list[tuple[str, int, str]]:
    return [
        (row["entity_id"], row["event_time_ms"], row["change"])
        for row in history
        if row["rule_id"] == rule and row["change"] in ("active", "inactive")
    ]


@pytest.mark.parametrize("seed", range(6))
def test_alarms_are_those_of_a_loop_over_the_tables_however_batches_are_cut(models: Path, seed: int) -> None:
    rng = random.Random(seed)
    hours, risk, delay = rng.randint(5, 50), rng.uniform(0.05, 0.9), rng.choice((0, 1, 3)) * HOUR
    events = wearing(5, seed=20 + seed)
    rules = [
        soon("short", Level("high", when=f"remaining_life < {hours}"), ack=False),
        soon("likely", Level("medium", when=f"risk('pump') > {risk}", on_delay=delay), ack=False),
        soon("any", Level("low", when=f"risk('*') > {risk} and remaining_life < {hours}"), ack=False),
    ]
    history, tables = alarms_of(events, models, rules)
    assert changes(history, "short") == by_loop(tables, lambda left, _: left < hours)
    wanted = by_loop(tables, lambda _, of: of["pump"] > risk, on_delay=delay)
    assert changes(history, "likely") == wanted
    wanted = by_loop(tables, lambda left, of: max(of.values()) > risk and left < hours)
    assert changes(history, "any") == wanted
    assert history
    for batch in (1, 7, rng.randrange(20, 300)):
        assert alarms_of(events, models, rules, batch=batch)[0] == history


@pytest.mark.parametrize("seed", range(6))
def test_by_the_interval_they_are_those_of_a_loop_over_its_begin_however_batches_are_cut(
    models: Path, seed: int
) -> None:
    rng = random.Random(100 + seed)
    hours, risk, delay = rng.randint(3, 40), rng.uniform(0.05, 0.9), rng.choice((0, 1, 3)) * HOUR
    events = wearing(5, seed=20 + seed)
    # Statuses, places and what operators do come by other ways than what is foreseen.
    events += [
        Sent("status", Status(f"s{n}", f"m{rng.randrange(5)}", rng.choice(("running", "paused")),
                              START + rng.randrange(80 * HOUR)))
        for n in range(30)
    ]  # fmt: skip
    events += [Sent("equipment", Equipment(f"m{n}", START + n, "", site="works")) for n in range(3)]
    events.sort(key=lambda sent: sent.event.event_time_ms)
    rules = [
        soon("short", Level("high", when=f"remaining_life < {hours}"), ack=False),
        soon("likely", Level("medium", when=f"risk('pump') > {risk}", on_delay=delay), ack=False),
        soon("any", Level("low", when=f"risk('*') > {risk} and remaining_life < {hours}"), ack=False),
        soon("quiet", Level("low", when=f"remaining_life < {hours + 5}"), suppress_in=("paused",), ack=False),
    ]
    by = ("foresight.judged_by=interval", "foresight.rate=0.5")
    history, tables = alarms_of(events, models, rules, *by)
    wanted = by_loop(tables, lambda left, _: left < hours, figure="low_h")
    assert changes(history, "short") == wanted
    wanted = by_loop(tables, lambda _, of: of["pump"] > risk, on_delay=delay, figure="low_h")
    assert changes(history, "likely") == wanted
    wanted = by_loop(tables, lambda left, of: max(of.values()) > risk and left < hours, figure="low_h")
    assert changes(history, "any") == wanted
    wanted = by_loop(tables, lambda left, _: left < hours + 5, figure="low_h")
    assert changes(history, "quiet") == wanted
    begun = [row for row in history if row["change"] == "active"]
    assert all(row["reason"].endswith("h remain at least") for row in begun)
    assert {r["plant_id"] for r in history} <= {"works", "unregistered"}
    quiet = [row for row in history if row["rule_id"] == "quiet"]
    assert all(not row["announced"] for row in quiet if row["status"] == "paused")
    for batch in (1, 7, rng.randrange(20, 300)):
        assert alarms_of(events, models, rules, *by, batch=batch)[0] == history


def test_by_the_interval_they_come_earlier_where_machines_failed_earlier_than_was_foreseen(
    models: Path,
) -> None:
    """The forecasts are the same; where lives came out shorter, the interval begins sooner."""
    # Machines of the fleet of which half fail long before the models think so.
    early = [
        one for one in wearing(8, seed=30)
        if one.topic == "readings" or int(one.event.machine_id[1:]) >= 4
    ] + [
        Sent("maintenance",
             Maintenance(f"early{n}", f"m{n}", "pump", START + (20 + n) * HOUR, "corrective", 0))
        for n in range(4)
    ]  # fmt: skip
    early.sort(key=lambda sent: sent.event.event_time_ms)
    rules = [soon("wear", Level("high", when="remaining_life < 10"), ack=False)]
    by = "foresight.judged_by=interval"
    still, _ = alarms_of(early, models, rules, by, "foresight.rate=0")
    moved, _ = alarms_of(early, models, rules, by, "foresight.rate=0.5")

    def first(history: Rows) -> dict[str, int]:
        found: dict[str, int] = {}
        for row in history:
            if row["change"] == "active":
                found.setdefault(row["entity_id"], row["event_time_ms"])
        return found

    later = [f"m{n}" for n in range(4, 8)]
    before, after = first(still), first(moved)
    assert all(after.get(machine, 0) <= before[machine] for machine in later if machine in before)
    assert any(after[machine] < before.get(machine, 1 << 62) for machine in later)


def test_operators_act_by_the_interval_as_by_the_forecast(models: Path) -> None:
    events = wearing(1, seed=5)
    rules = [soon("wear", Level("high", when="remaining_life < 60"))]
    by = "foresight.judged_by=interval"
    quiet, _ = alarms_of(events, models, rules, by)
    begun, minute = next(row["event_time_ms"] for row in quiet if row["change"] == "active"), 60_000
    acts = [
        act(begun + minute, "m0", "wear", "ack"),
        act(begun + 2 * minute, "m0", "wear", "shelve", duration_ms=30 * minute, comment="known"),
    ]
    sent = sorted([*events, *acts], key=lambda one: one.event.event_time_ms)
    history, _ = alarms_of(sent, models, rules, by)
    told = [(row["change"], (row["event_time_ms"] - begun) // minute) for row in history[:4]]
    assert told == [("active", 0), ("ack", 1), ("shelve", 2), ("unshelve", 32)]
    for batch in (1, 3, 17):
        assert alarms_of(sent, models, rules, by, batch=batch)[0] == history


def test_a_machine_of_which_only_late_master_data_came_is_forgotten() -> None:
    host = MemoryHost(Forewarning(None, keep_ms=9 * HOUR), out_of_orderness_ms=0, records=True)
    host.advance_watermark(START + 100 * HOUR)
    host.run_batch([("m1", START, Standing("m1", START, "works", "works.l1"), "places")])
    assert host.store.cells
    host.advance_watermark(START + 110 * HOUR)
    assert not host.store.cells


def test_they_say_what_is_foreseen_and_stand_with_the_machines_others(models: Path) -> None:
    events = wearing(2, seed=5)
    place = Sent("equipment", Equipment("m0", START, "pump", site="works", line="works.l1"))
    hot = AlarmRule("hot", (Level("low", above=55.0),), quantities=("heat",))
    words = {"cause": "it wears out", "response": "order a pump", "response_time": "4h"}
    wear = soon("wear", Level("high", when="remaining_life < 30"), **words)
    history, _ = alarms_of([place, *events], models, [wear, hot])
    first = next(row for row in history if row["rule_id"] == "wear" and row["entity_id"] == "m0")
    assert (first["plant_id"], first["line_id"], first["quantity"], first["category"]) == (
        "works", "works.l1", "", "process"
    )  # fmt: skip
    assert first["reason"].endswith("h remain")
    assert "fails soon with" in first["reason"]
    assert (first["cause"], first["response"]) == ("it wears out", "order a pump")
    assert first["respond_by_ms"] == first["event_time_ms"] + 4 * HOUR
    assert {row["plant_id"] for row in history if row["entity_id"] == "m1"} == {"unregistered"}
    assert {row["rule_id"] for row in history} == {"wear", "hot"}
    # One machine's history of both engines: an alarm's rows are told apart and in order.
    keys = [(row["alarm_id"], row["event_time_ms"], row["number"]) for row in history]
    assert len(keys) == len(set(keys))


def act(at: int, machine: str, alarm: str, verb: str, **more: Any) -> Sent:
    return Sent("actions", Action(f"a{at}{alarm}{verb}", machine, alarm, verb, at, "eva", **more))  # type: ignore[arg-type]


def test_operators_act_on_them_as_on_all_alarms(models: Path) -> None:
    events = wearing(1, seed=5)
    rules = [soon("wear", Level("high", when="remaining_life < 60"))]
    quiet, _ = alarms_of(events, models, rules)
    begun = next(row["event_time_ms"] for row in quiet if row["change"] == "active")
    minute = 60_000
    acts = [
        act(begun + minute, "m0", "wear", "ack"),
        act(begun + 2 * minute, "m0", "wear", "shelve", duration_ms=30 * minute, comment="known"),
        act(begun + 40 * minute, "m0", "*", "suppress", duration_ms=10 * minute, comment="tests"),
        act(begun + 55 * minute, "m0", "wear", "confirm"),
        act(begun + 55 * minute, "m0", "none", "ack"),
    ]
    sent = sorted([*events, *acts], key=lambda one: one.event.event_time_ms)
    history, _ = alarms_of(sent, models, rules)
    assert [(row["change"], (row["event_time_ms"] - begun) // minute) for row in history[:7]] == [
        ("active", 0),
        ("ack", 1),
        ("shelve", 2),
        ("unshelve", 32),
        ("suppress", 40),
        ("unsuppress", 50),
        ("rejected", 55),
    ]
    assert [row["announced"] for row in history[:7]] == [True, True, False, True, False, True, True]
    assert history[1]["operator"] == "eva"
    for batch in (1, 3, 17):
        assert alarms_of(sent, models, rules, batch=batch)[0] == history


def test_what_lacks_a_reason_is_refused_once(models: Path) -> None:
    events = wearing(1, seed=5)
    rules = [soon("wear", Level("high", when="remaining_life < 900"))]
    acts = [
        act(START + 3 * HOUR + 1, "m0", "*", "suppress"),
        act(START + 3 * HOUR + 2, "m0", "wear", "shelve"),
    ]
    sent = sorted([*events, *acts], key=lambda one: one.event.event_time_ms)
    with written(rules) as fleet:
        settings = settings_for(
            [*told(fleet), "foresight.on=true", f"foresight.exports={models}", "monitor.reasons=true"]
        )
        rows = run(sent, settings, ["alarm_history"], engine="memory").rows["alarm_history"]
    refused = [(row["alarm"], row["reason"]) for row in rows if row["change"] == "rejected"]
    assert refused == [("*", "suppress: it needs a reason"), ("wear", "shelve: it needs a reason")]
    assert not any(row["suppressed"] for row in rows)


def test_where_the_app_does_not_look_ahead_there_are_no_such_alarms() -> None:
    rules = [soon("wear", Level("high", when="remaining_life < 900"))]
    events = wearing(1, seed=5)
    acts = [act(START + 3 * HOUR + 1, "m0", "wear", "shelve", comment="known")]
    sent = sorted([*events, *acts], key=lambda one: one.event.event_time_ms)
    with written(rules) as fleet:
        settings = settings_for(told(fleet))
        rows = run(sent, settings, ["alarm_history"], engine="memory").rows["alarm_history"]
    assert [(row["change"], row["reason"]) for row in rows] == [
        ("rejected", "shelve: there is no such alarm")
    ]


def test_planned_work_holds_them_back_and_lets_them_go(models: Path) -> None:
    events = wearing(1, seed=5)
    rules = [soon("wear", Level("high", when="remaining_life < 900"), ack=False)]
    begun, at = START + 6 * HOUR + 1, START + 5 * HOUR + 1
    order = Action("p1", "m0", "pump", "plan", at, "eva", 2 * HOUR, "planned", start_ms=begun, suppress=True)
    plan = Sent("actions", order)
    sent = sorted([*events, plan], key=lambda one: one.event.event_time_ms)
    history, _ = alarms_of(sent, models, rules)
    assert [(row["change"], row["event_time_ms"] - START) for row in history[:3]] == [
        ("active", HOUR),
        ("suppress", 6 * HOUR + 1),
        ("unsuppress", 8 * HOUR + 1),
    ]


def reading(hour: int, status: str, heat: float = 50.0) -> EnrichedReading:
    at = START + hour * HOUR
    return EnrichedReading(
        f"r{hour}", "s", "m1", "heat", heat, "1", at, 0, False, False, "good", "", status, at, "pump",
        {"power": "7"}, {"pump": at - 48 * HOUR}, {}, {"e1": 3},
    )  # fmt: skip


def test_rules_ask_what_else_is_known_and_alarms_are_suppressed_by_status(models: Path) -> None:
    rule = soon(
        "old",
        Level("low", when="remaining_life > 0 and age_days('pump') >= 2 and errors('e1') > 2"
                          " and attribute('power') > 6 and status == 'running'"),
        suppress_in=("paused",), kinds=("pump",), ack=False,
    )  # fmt: skip
    other = soon("of other kinds", Level("low", when="remaining_life > 0"), kinds=("fan",))
    driver = TestDriver(Foresight(Looking(forecaster=Forecaster(str(models))), Ruling((rule,))))
    assert CompiledRule(other).kinds == {"fan"}
    for hour, status in enumerate(["running", "running", "paused", "paused", "running"], start=1):
        driver.send("m1", reading(hour, status), at=START + hour * HOUR, input="readings")
    driver.advance_watermark(START + 6 * HOUR)
    rows = driver.values("alarms")
    assert [(row.change, (row.event_time_ms - START) // HOUR) for row in rows] == [
        ("active", 1),
        ("suppress", 3),
        ("inactive", 3),
        ("active", 5),
    ]
    driver.drain()
    assert driver.is_empty()


def test_rules_of_readings_and_of_what_is_foreseen_do_not_mix() -> None:
    words = language("foresight")
    assert words.condition("risk('pump') > 0.5 and remaining_life < 10").text
    for text in ("value > 3", "mean(value, 5 min) > 1", "zscore > 2"):
        with pytest.raises(RuleError):
            words.condition(text)
    for source in ("reading", "machine", "error"):
        with pytest.raises(RuleError):
            language(source, ("heat",)).condition("risk('pump') > 0.5")  # type: ignore[arg-type]
    with pytest.raises(RuleError, match="limits and no_data are of readings"):
        CompiledRule(soon("x", Level("low", above=3.0)))
    with pytest.raises(RuleError, match="one condition"):
        CompiledRule(soon("x", Level("low")))
    ahead = soon("x", Level("low", when="remaining_life < 3"))
    assert "no table has what models said" in _why_not(ahead, is_foreseen=False)
    assert not _why_not(ahead, is_foreseen=True)


def test_levels_repeats_and_escalations_work_as_of_readings(models: Path) -> None:
    events = wearing(2, seed=11)
    rules = [
        soon(
            "wear",
            Level("low", when="remaining_life < 60"),
            Level(
                "critical", when="remaining_life < 20", until="remaining_life > 25", repeat=Repeat(2, "6h")
            ),
            escalate=Escalate("3h", "high"),
        )
    ]
    history, _ = alarms_of(events, models, rules)
    kinds = {row["change"] for row in history}
    assert {"active", "escalated", "raised"} <= kinds
    for batch in (1, 11):
        assert alarms_of(events, models, rules, batch=batch)[0] == history


def test_state_before_there_were_alarms_is_read(models: Path) -> None:
    """What is kept of a life is as it was; alarms stand beside it."""
    driver = TestDriver(Foresight(Looking(forecaster=Forecaster(str(models)))))
    driver.send("m1", reading(1, "running"), at=START + HOUR, input="readings")
    driver.advance_watermark(START + 2 * HOUR)
    assert driver.state("m1").keys() >= {"life", "around"}
    assert msgspec.to_builtins(driver.state("m1")["life"])
    assert not driver.values("alarms")
