"""What sensors say together held against what is true: by looking at every second of every machine."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from millrace_apps.iot_maintenance.evaluation.demo_foreseen import Causes, Scored
from millrace_apps.iot_maintenance.evaluation.demo_health import NORMAL, health_checks, judge_health
from tests.cases import case_count
from tests.unit.apps.iot_maintenance.test_demo_causes import beyond, degrading
from tests.unit.apps.iot_maintenance.test_demo_foreseen import END, MACHINES, OF_SENSOR, SECOND, world

CASES = case_count(150)


def interval(machine: str, second: int, score: float) -> dict[str, Any]:
    return {"machine_id": machine, "event_time_ms": second * SECOND, "score": score}


@pytest.mark.parametrize("seed", range(CASES))
def test_intervals_are_judged_as_by_what_is_true_of_a_machine_at_every_second(seed: int) -> None:
    rnd = random.Random(seed)
    truths, begun = world(rnd)
    since = {machine: rnd.randrange(0, 40) for machine in MACHINES}
    rows = [
        interval(machine, s, rnd.choice((0.1, 0.4, NORMAL, 0.9)))
        for machine in MACHINES
        for s in range(since[machine], END)
    ]
    rnd.shuffle(rows)
    # Cause → machine and second; the earlier ones come first.
    at: dict[str, set[tuple[str, int]]] = {name: set() for name in ("wear", "sensor", "limit", "status")}
    for truth in truths:
        detail = truth.detail
        if truth.kind == "worn":
            end = (detail["failure_ms"] or detail["service_ms"]) // SECOND
            at["wear"] |= {(truth.entity, s) for s in range(detail["onset_ms"] // SECOND, end + 4)}
            continue
        begin = detail["begin_ms"] // SECOND
        end = detail.get("end_ms", truth.last_event_time_ms) // SECOND
        end = END if truth.kind == "limit_exceeded" and end == begin else end
        name = "sensor" if truth.kind == "sensor_drift" else "limit"
        at[name] |= {(OF_SENSOR[truth.entity][0], s) for s in range(begin, end + 4)}
    for status in begun:
        if status["status_since_ms"] is not None:
            begin = status["status_since_ms"] // SECOND
            at["status"] |= {(status["machine_id"], begin + n) for n in range(3)}

    def cause(row: dict[str, Any]) -> str:
        place = row["machine_id"], row["event_time_ms"] // SECOND
        return next((name for name, places in at.items() if place in places), "")

    found = judge_health(Causes(truths, begun, END * SECOND), rows, END * SECOND)
    told = [row for row in rows if row["score"] > NORMAL]
    assert found.values == Counter(map(cause, rows))
    assert found.told == Counter(map(cause, told))
    alone = {(row["machine_id"], row["event_time_ms"] // SECOND) for row in told if not cause(row)}
    assert found.false == sum(not any((m, s - n) in alone for n in (1, 2, 3)) for m, s in alone)
    failures, leads = 0, []
    for truth in truths:
        if (
            truth.kind != "worn"
            or not truth.detail["failure_ms"]
            or truth.detail["failure_ms"] >= END * SECOND
        ):
            continue
        begin, end = truth.detail["onset_ms"] // SECOND, truth.detail["failure_ms"] // SECOND
        if since[truth.entity] > begin:
            continue
        failures += 1
        seconds = [row["event_time_ms"] // SECOND for row in told if row["machine_id"] == truth.entity]
        inside = [second for second in seconds if begin <= second < end]
        leads += [(end - min(inside)) * SECOND] if inside else []
    assert (found.failures, sorted(found.leads_ms)) == (failures, sorted(leads))


def test_the_report_says_how_often_and_how_long_before_in_the_time_of_machines() -> None:
    truths = [degrading("a", 20 * SECOND, 40 * SECOND, ["oil"]), beyond("b.oil", 50 * SECOND, 52 * SECOND)]
    rows = [interval(m, s, 0.9 if (m, s) in {("a", 30), ("b", 20), ("b", 51)} else 0.2)
            for m in MACHINES for s in range(10, END)]  # fmt: skip
    scored = judge_health(Causes(truths, [], END * SECOND), rows, END * SECOND)
    cause, wear, before = health_checks(scored, 720.0, 180.0)
    assert cause.note == "precision 67%; wear 1, limit 1; false alarms 1: 1 in a machine's month"
    assert cause.is_empty  # of so few nothing is said
    assert wear.found == "1.4 times"  # one in three against 24 of 100 seconds
    assert (before.found, before.note) == (1, "median 30 min of a machine's life ahead")


@pytest.mark.parametrize(
    ("told", "leads", "wrong"),
    [
        ({"wear": 60, "": 10}, 9, []),
        ({"wear": 10, "status": 15, "": 45}, 9, ["with a cause", "on the way"]),
        ({"wear": 14, "status": 46, "": 10}, 9, ["on the way"]),
        ({"wear": 60, "": 10}, 2, ["came before"]),
    ],
)
def test_what_comes_by_chance_does_not_hold(told: dict[str, int], leads: int, wrong: list[str]) -> None:
    values = Counter({"wear": 400, "status": 300, "": 1_300})
    found = health_checks(Scored(values, Counter(told), 5, 10, [SECOND] * leads), 720.0, 180.0)
    missed = [check.name for check in found if not check.holds]
    assert len(missed) == len(wrong)
    assert all(part in name for part, name in zip(wrong, missed, strict=True))
