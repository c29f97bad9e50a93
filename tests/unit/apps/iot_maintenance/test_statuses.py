"""What words of controllers mean, and figures of shifts by the book: OEE, MTBF, MTTR, parts."""

from __future__ import annotations

import random
from typing import Any

import pytest

from millrace.testing import TestDriver
from millrace.testing.properties import invariant
from millrace_apps.iot_maintenance.contracts.events import Equipment, PartCount
from millrace_apps.iot_maintenance.contracts.records import ShiftKpi
from millrace_apps.iot_maintenance.processes.statuses import Statuses
from tests.unit.apps.iot_maintenance.monitor_cases import (
    DAY,
    HOUR,
    M1,
    MINUTE,
    SECOND,
    START,
    Event,
    driver,
    equipment,
    history,
    monitor,
    reading,
    rule,
    send,
    status,
    until,
)

#: From the start, 08:00, to the end of the first shift, 14:00.
FIRST = 6 * HOUR


def counted(
    at: int, produced: int, rejected: int = 0, *, absolute: bool = False, machine: str = M1, name: str = ""
) -> Event:
    """A count of parts."""
    event = PartCount(name or f"{machine}.{at}", machine, START + at, produced, rejected, absolute)
    return machine, START + at, event


def shifts(target: TestDriver) -> dict[int, ShiftKpi]:
    """The newest revision of each shift, by when it begins after the first one."""
    newest: dict[int, ShiftKpi] = {}
    for kpi in sorted(target.values("shifts"), key=lambda k: k.revision):
        newest[(kpi.shift_start_ms - START + 2 * HOUR) // (8 * HOUR)] = kpi
    return newest


# -- words -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("running", "broken", "stopped"),
    [("Execute", "Aborted", "Stopped"), ("Running", "FAILED", "Idle"), ("producing", "failed", "idle")],
)
def test_packml_and_the_regimes_own_names_are_known_whatever_their_case(
    running: str, broken: str, stopped: str
) -> None:
    target = driver()
    send(target, status(0, running), status(3 * HOUR, broken), status(4 * HOUR, stopped))
    send(target, status(5 * HOUR, running))
    until(target, FIRST + 1)
    kpi = shifts(target)[0]
    assert (kpi.operating_ms, kpi.down_ms, kpi.failures, kpi.repairs) == (4 * HOUR, HOUR, 1, 1)
    assert kpi.availability == pytest.approx(4 / 6)
    assert (kpi.mtbf_h, kpi.mttr_h) == (4.0, 1.0)
    assert target.values("notices")[1:] == []


def test_a_plant_maps_its_own_words_and_a_machine_those_of_its_controller() -> None:
    words = Statuses({"Läuft": "producing"}, {"old press": {"3": "producing", "Läuft": "idle"}})
    found = {}
    for vocabulary in ("", "old press"):
        target = driver(statuses=words)
        send(target, (M1, START, Equipment(M1, START, "press", {"vocabulary": vocabulary})))
        send(target, status(0, "läuft"), status(2 * HOUR, "3"))
        until(target, FIRST + 1)
        kpi = shifts(target)[0]
        found[vocabulary] = kpi.operating_ms // HOUR, kpi.unknown_ms // HOUR, kpi.planned_ms // HOUR
    assert found == {"": (2, 4, 2), "old press": (4, 0, 6)}


def test_a_word_that_nobody_has_mapped_is_told_once_and_is_no_availability_of_nothing() -> None:
    target = driver()
    send(target, equipment(0, "press"), status(0, "Fährt"), status(HOUR, "idle"), status(2 * HOUR, "Fährt"))
    send(target, status(3 * HOUR, "Spült"), status(5 * HOUR, "running"))
    until(target, FIRST + 1)
    told = [(n.what, n.subject, n.event_time_ms - START) for n in target.values("notices")]
    assert told == [("unknown_status", "Fährt", 0), ("unknown_status", "Spült", 3 * HOUR)]
    kpi = shifts(target)[0]
    assert (kpi.unknown_ms, kpi.planned_ms, kpi.operating_ms) == (4 * HOUR, 2 * HOUR, HOUR)
    assert kpi.availability == pytest.approx(1 / 2)


def test_a_whole_shift_of_an_unknown_word_has_no_availability_at_all() -> None:
    target = driver()
    send(target, status(0, "Fährt"))
    until(target, FIRST + 1)
    assert shifts(target)[0].availability is None


def test_rules_know_the_regime_whatever_the_words_are() -> None:
    """A stopped machine suppresses its alarms by regime, and expressions can ask for it."""
    from millrace_apps.iot_maintenance.alarms.rule import Level

    hot = rule(Level(above=80.0), suppress_in=("off", "maintenance", "failed"))
    works = rule(Level(when="value > 80 and regime == 'producing'"), id="works")
    target = driver(hot, works)
    send(target, status(0, "Execute"), reading(1_000, 90.0), status(2_000, "Aborted"), reading(3_000, 91.0))
    until(target, 4_000)
    assert [(e.alarm, e.change, e.announced) for e in history(target)] == [
        ("hot/oil", "active", True),
        ("works/oil", "active", True),
        ("hot/oil", "suppress", False),
        ("works/oil", "inactive", False),
    ]


# -- by the book -----------------------------------------------------------------------------------


def test_maintenance_by_plan_is_no_loss_of_availability_and_repair_is() -> None:
    target = driver()
    send(target, status(0, "running"), status(HOUR, "maintenance"), status(2 * HOUR, "running"))
    send(target, status(3 * HOUR, "failed"), status(4 * HOUR, "maintenance"), status(5 * HOUR, "running"))
    until(target, FIRST + 1)
    kpi = shifts(target)[0]
    assert (kpi.planned_stop_ms, kpi.down_ms, kpi.planned_ms) == (HOUR, 2 * HOUR, 5 * HOUR)
    assert kpi.availability == pytest.approx(3 / 5)
    assert (kpi.mtbf_h, kpi.mttr_h) == (3.0, 2.0)


def test_parts_of_a_machine_that_runs_through_shifts_count_where_they_were_made() -> None:
    """It runs from 08:00 to 06:00 and says then what it has made: 60 an hour, as well as it can.

    6 hours of the first shift, 8 of the second, 8 of the third: 360, 480 and 480.
    """
    target = driver(ideal_per_h={"pump": 60})
    send(target, equipment(0, "pump"), status(0, "running"), *(reading(n * HOUR, 1.0) for n in range(1, 22)))
    send(target, status(22 * HOUR, "idle", 1_320, 132), reading(23 * HOUR, 1.0))
    until(target, 31 * HOUR)
    found = shifts(target)
    assert [found[n].produced for n in range(3)] == [360, 480, 480]
    assert [found[n].rejected for n in range(3)] == [36, 48, 48]
    assert [found[n].performance for n in range(3)] == [1.0] * 3
    assert [found[n].oee for n in range(3)] == [pytest.approx(0.9)] * 3
    assert [found[n].revision for n in range(3)] == [1, 1, 0]


def test_counters_go_on_and_one_that_falls_has_begun_anew() -> None:
    target = driver(ideal_per_h={"pump": 60})
    send(target, equipment(0, "pump"), status(0, "running", 77))
    for at, made, scrap in ((0, 9_000, 50), (HOUR, 9_060, 53), (2 * HOUR, 40, 1), (3 * HOUR, 100, 1)):
        send(target, counted(at, made, scrap, absolute=True))
    send(target, status(4 * HOUR, "idle", 500, 5))  # has counters: what its statuses say is not counted
    until(target, FIRST + 1)
    kpi = shifts(target)[0]
    assert (kpi.produced, kpi.rejected) == (77 + 60 + 40 + 60, 3 + 1)


def test_increments_count_once_each() -> None:
    target = driver()
    send(target, status(0, "running"), *(counted(at * MINUTE, 2, at % 2) for at in range(1, 61)))
    send(target, counted(30 * MINUTE, 2, 0), counted(70 * MINUTE, 9, name=f"{M1}.{60 * MINUTE}"))
    until(target, FIRST + 1)
    kpi = shifts(target)[0]
    assert (kpi.produced, kpi.rejected) == (120, 30)
    reasons = sorted(d["reason"] for d in target.values("dead_letters"))
    assert reasons in (["conflict"], ["conflict", "duplicate"])


def test_counts_before_any_status_are_not_lost() -> None:
    target = driver()
    send(target, counted(0, 5), counted(HOUR, 7), status(2 * HOUR, "running"))
    until(target, FIRST + 1)
    kpi = shifts(target)[0]
    assert (kpi.produced, kpi.operating_ms, kpi.unknown_ms) == (12, 4 * HOUR, 2 * HOUR)
    assert kpi.by_status_ms == {"running": 4 * HOUR}


@pytest.mark.parametrize("seed", range(40))
def test_shifts_equal_a_look_at_every_minute_of_the_history(seed: int) -> None:
    """Statuses at whole minutes over four days, parts evenly made in between: minute by minute, by hand."""
    rng = random.Random(seed)
    means = {"running": 1, "Execute": 1, "idle": 0, "Held": 0, "setup": 0, "off": 0, "maintenance": 0}
    means |= {"failed": 0, "Fährt": 0}
    at, said = 0, []
    while at < 4 * DAY:
        said.append((at, rng.choice([*means])))
        at += MINUTE * rng.choice([1, 7, 30, 200, 500])
    target = driver(ideal_per_h={"pump": 60})
    send(target, equipment(0, "pump"))
    batch = []
    for n, (at, word) in enumerate(said):
        # 2 a minute of whatever it did: what statuses say is believed.
        took = (at - said[n - 1][0]) // MINUTE if n else 0
        batch.append(status(at, word, 2 * took, took))
    batch += [reading(hour * HOUR, 1.0) for hour in range(said[-1][0] // HOUR)]  # it is heard in every shift
    batch.sort(key=lambda event: event[1])
    for low in range(0, len(batch), 20):
        target.send_batch(batch[low : low + 20])
    last = said[-1][0]
    until(target, last + 9 * HOUR)
    minutes: dict[int, dict[str, int]] = {}
    broken, n = False, 0
    failures = repairs = operating = down = 0
    totals: dict[int, tuple[int, int, int, int]] = {}
    for minute in range(last // MINUTE):
        at = minute * MINUTE
        while n + 1 < len(said) and said[n + 1][0] <= at:
            n += 1
        word, begins = said[n][1], said[n][0] == at
        shift = minutes.setdefault((at + 2 * HOUR) // (8 * HOUR), dict.fromkeys(WANTED, 0))
        if begins and word == "failed" and not broken:
            broken = True
            shift["failures"] += 1
            failures += 1
        elif begins and broken and word not in ("failed", "maintenance", "Fährt"):
            broken = False
            repairs += 1
        is_planned_stop = word == "maintenance" and not broken
        producing = word in ("running", "Execute")
        shift["operating_ms"] += MINUTE * producing
        shift["planned_stop_ms"] += MINUTE * is_planned_stop
        shift["unknown_ms"] += MINUTE * (word == "Fährt")
        shift["down_ms"] += MINUTE * (word == "failed" or (word == "maintenance" and broken))
        shift["planned_ms"] += MINUTE * (word not in ("off", "Fährt") and not is_planned_stop)
        shift["produced"] += 2
        shift["rejected"] += 1
        operating, down = operating + producing, down + broken
        totals[(at + 2 * HOUR) // (8 * HOUR)] = operating, down, failures, repairs
    found = shifts(target)
    for number in sorted(minutes)[:-2]:
        kpi = found[number]
        assert {name: getattr(kpi, name) for name in WANTED} == minutes[number], number
        operating, down, failures, repairs = totals[number]
        assert kpi.mtbf_h == (pytest.approx(operating / 60 / failures) if failures else None)
        if number + 1 not in minutes or not repairs:
            continue
        assert kpi.mttr_h == pytest.approx(down / 60 / repairs)


WANTED = (
    *("operating_ms", "planned_stop_ms", "unknown_ms", "down_ms", "planned_ms"),
    *("produced", "rejected", "failures"),
)


def test_shifts_and_parts_hang_on_no_cut() -> None:
    rng = random.Random(2)
    events: list[Any] = [equipment(0, "pump")]
    for step in range(150):
        at = step * 11 * MINUTE
        word = rng.choice(["Execute", "Held", "Aborted", "maintenance", "off", "Fährt"])
        events.append(status(at, word, rng.randrange(50), 0, machine=rng.choice([M1, "m2"])))
        made = counted(at + SECOND, step * 10, absolute=True, machine="m2") if step > 70 else None
        events += [made] if made is not None else []
    made = monitor(ideal_per_h={"pump": 60}, statuses=Statuses({"x": "off"}))
    invariant(made, events, bound_ms=MINUTE, runs=4)
