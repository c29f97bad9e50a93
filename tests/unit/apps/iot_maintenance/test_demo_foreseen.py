"""Scores and forecasts held against what is true: by looking at every second of every point."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from millrace.testing.world_ledger import WorldTruth
from millrace_apps.iot_maintenance.evaluation.demo_foreseen import (
    Causes,
    Foretold,
    Scored,
    checks,
    judge_forecasts,
    judge_scores,
)
from tests.cases import case_count
from tests.unit.apps.iot_maintenance.test_demo_causes import beyond, degrading

CASES = case_count(150)
SECOND = 1_000
END = 60
AHEAD = 6
MACHINES, QUANTITIES = ("a", "b"), ("oil", "speed", "flow")
#: Machine, quantity and sensor: one machine has two of a quantity.
POINTS = (*((m, q, f"{m}.{q}") for m in MACHINES for q in QUANTITIES), ("a", "oil", "a.oil.2"))
OF_SENSOR = {sensor: (machine, quantity) for machine, quantity, sensor in POINTS}


def faulty(sensor: str, begin: int, end: int) -> WorldTruth:
    detail = {"begin_ms": begin, "end_ms": end, "quantity": sensor.partition(".")[2]}
    return WorldTruth(f"{sensor}{begin}", "sensor_drift", sensor, "alarm", detail, [], [], begin, end)


def world(rnd: random.Random) -> tuple[list[WorldTruth], list[dict[str, Any]]]:
    """What is true of two machines of three sensors for a minute, and their statuses."""
    found = []
    for _ in range(rnd.randrange(5)):
        begin = rnd.randrange(50)
        end = begin + rnd.randrange(1, 30)
        shows, fails = rnd.sample(QUANTITIES, rnd.randrange(1, 3)), rnd.random() < 0.8
        found.append(degrading(rnd.choice(MACHINES), begin * SECOND, end * SECOND, shows, fails=fails))
    for _ in range(rnd.randrange(5)):
        begin, sensor = rnd.randrange(50), rnd.choice(POINTS)[2]
        end = None if rnd.random() < 0.3 else (begin + rnd.randrange(1, 9)) * SECOND
        found.append(beyond(sensor, begin * SECOND, end))
    for _ in range(rnd.randrange(4)):
        begin, sensor = rnd.randrange(50), rnd.choice(POINTS)[2]
        found.append(faulty(sensor, begin * SECOND, (begin + rnd.randrange(1, 9)) * SECOND))
    begun = [
        {"machine_id": machine, "status_since_ms": rnd.choice((None, rnd.randrange(END) * SECOND))}
        for machine in MACHINES
        for _ in range(4)
    ]
    return found, begun


def row(machine: str, quantity: str, second: int, **more: Any) -> dict[str, Any]:
    key = {"machine_id": machine, "quantity": quantity, "event_time_ms": second * SECOND}
    return {**key, "subject": quantity, **more}


def at_point(sensor: str, second: int, **more: Any) -> dict[str, Any]:
    """A row of a point: the second of a quantity has another subject."""
    machine, quantity = OF_SENSOR[sensor]
    subject = f"{quantity}@two" if sensor.endswith(".2") else quantity
    return row(machine, quantity, second, **{"subject": subject, **more})


@pytest.mark.parametrize("seed", range(CASES))
def test_scores_are_judged_as_by_what_is_true_at_every_second(seed: int) -> None:
    rnd = random.Random(seed)
    truths, begun = world(rnd)
    first = {sensor: rnd.randrange(0, 40) for sensor in OF_SENSOR}
    scores = [at_point(name, s, sensor_id=name) for name, since in first.items() for s in range(since, END)]
    told = [one for one in scores if rnd.random() < 0.1]
    rnd.shuffle(told)
    # Cause → sensor and second; the earlier ones come first.
    names = "wear", "sensor", "limit", "failure", "status"
    at: dict[str, set[tuple[str, int]]] = {name: set() for name in names}
    for truth in truths:
        detail = truth.detail
        if truth.kind == "worn":
            end = (detail["failure_ms"] or detail["service_ms"]) // SECOND
            for second in range(detail["onset_ms"] // SECOND, end + 4):
                at["wear"] |= {
                    (name, second) for m, q, name in POINTS if m == truth.entity and q in detail["quantities"]
                }
            if detail["failure_ms"]:
                of_it = [name for m, _, name in POINTS if m == truth.entity]
                at["failure"] |= {(name, end + n) for name in of_it for n in range(4)}
            continue
        begin = detail["begin_ms"] // SECOND
        end = detail.get("end_ms", truth.last_event_time_ms) // SECOND
        end = END if truth.kind == "limit_exceeded" and end == begin else end
        name = "sensor" if truth.kind == "sensor_drift" else "limit"
        at[name] |= {(truth.entity, second) for second in range(begin, end + 4)}
    for status in begun:
        if status["status_since_ms"] is not None:
            since = status["status_since_ms"] // SECOND
            of_it = [name for m, _, name in POINTS if m == status["machine_id"]]
            at["status"] |= {(name, since + n) for name in of_it for n in range(3)}

    def cause(one: dict[str, Any]) -> str:
        place = one["sensor_id"], one["event_time_ms"] // SECOND
        return next((name for name, places in at.items() if place in places), "")

    found = judge_scores(Causes(truths, begun, END * SECOND), scores, told, END * SECOND)
    assert found.values == Counter(map(cause, scores))
    assert found.told == Counter(map(cause, told))
    alone = {(r["sensor_id"], r["event_time_ms"] // SECOND) for r in told if not cause(r)}
    assert found.false == sum(not any((name, s - n) in alone for n in (1, 2, 3)) for name, s in alone)
    failures, leads = 0, []
    for truth in truths:
        if truth.kind == "worn" and truth.detail["failure_ms"] and truth.detail["failure_ms"] < END * SECOND:
            begin, end = truth.detail["onset_ms"] // SECOND, truth.detail["failure_ms"] // SECOND
            shows = truth.detail["quantities"]
            of_it = [name for m, q, name in POINTS if m == truth.entity and q in shows]
            if not any(first[name] <= begin for name in of_it):
                continue
            failures += 1
            seen = [r["event_time_ms"] // SECOND for r in told
                    if r["machine_id"] == truth.entity and r["quantity"] in shows]  # fmt: skip
            inside = [second for second in seen if begin <= second < end]
            leads += [(end - min(inside)) * SECOND] if inside else []
    assert (found.failures, sorted(found.leads_ms)) == (failures, sorted(leads))


@pytest.mark.parametrize("seed", range(CASES))
def test_forecasts_are_judged_as_by_every_second_that_follows(seed: int) -> None:
    rnd = random.Random(seed)
    truths, begun = world(rnd)
    scores = [at_point(name, s, sensor_id=name) for name in OF_SENSOR for s in range(10, END)]
    sides = {name: [rnd.choice(("none", "none", "above", "below")) for _ in range(END)]
             for name in OF_SENSOR if rnd.random() < 0.8}  # fmt: skip
    # Forecasts do not name the sensor: which it is stands in the scores of their point.
    said = [at_point(name, s, side=side) for name, of in sides.items() for s, side in enumerate(of)]
    rnd.shuffle(said)
    spans = []
    for t in truths:
        if t.kind == "limit_exceeded":
            begin, back = t.detail["begin_ms"] // SECOND, t.last_event_time_ms // SECOND
            spans.append((t.entity, begin, back if back > begin else END))
    reach = AHEAD + 2
    told = true = 0
    anew: dict[str, list[int]] = {}
    for point, of in sides.items():
        for second, side in enumerate(of):
            if side == "none" or (second and of[second - 1] == side):
                continue
            anew.setdefault(point, []).append(second)
            high = [(b, e) for p, b, e in spans if p == point and side == "above"]
            if second + reach > END or any(b <= second <= e for b, e in high):
                continue
            told += 1
            true += any(second < b <= second + reach for b, _ in high)
    at = [(p, s) for p in sides for s in range(10, END) if s + reach <= END]
    ahead = sum(any(p == q and s < b <= s + reach for q, b, _ in spans) for p, s in at)
    passed, leads = 0, []
    for point, begin, _ in spans:
        machine, quantity = OF_SENSOR[point]
        worn = any(
            t.kind == "worn" and t.entity == machine and quantity in t.detail["quantities"]
            and t.detail["onset_ms"] <= begin * SECOND
            and begin * SECOND <= (t.detail["failure_ms"] or t.detail["service_ms"]) + 3 * SECOND
            for t in truths
        )  # fmt: skip
        if worn and begin >= 10:
            passed += 1
            before = [s for s in anew.get(point, []) if begin - reach <= s < begin]
            leads += [(begin - before[0]) * SECOND] if before else []
    causes = Causes(truths, begun, END * SECOND)
    found = judge_forecasts(causes, said, scores, AHEAD * SECOND, END * SECOND)
    assert (found.told, found.true, found.passed) == (told, true, passed)
    assert found.chance == pytest.approx(ahead / len(at) if at else 0.0)
    assert sorted(found.leads_ms) == sorted(leads)


def test_the_report_says_how_often_and_how_long_before_in_the_time_of_machines() -> None:
    truths = [degrading("a", 20 * SECOND, 40 * SECOND, ["oil"]), beyond("a.oil", 35 * SECOND, None)]
    scores = [row(m, "oil", s) for m in MACHINES for s in range(10, END)]
    told = [row("a", "oil", 30), row("b", "oil", 50), row("b", "oil", 51)]
    said = [row("a", "oil", 31, side="above"), row("b", "oil", 31, side="above")]
    causes = Causes(truths, [], END * SECOND)
    scored = judge_scores(causes, scores, told, END * SECOND)
    foretold = judge_forecasts(causes, said, scores, AHEAD * SECOND, END * SECOND)
    found = {check.name: check for check in checks(scored, foretold, 720.0, 180.0)}
    note = "precision 33%; wear 1; false alarms 1: 1 in a machine's month"
    assert found["unusual values with a cause"].note == note
    # Of so few nothing is said; of as many again of either kind it is.
    assert found["unusual values with a cause"].is_empty
    many = checks(scored._replace(told=Counter({"wear": 7, "": 14})), foretold, 720.0, 180.0)[0]
    assert (many.ok, many.compared) == (False, 21)
    # One in three against 24 of 100 seconds.
    assert found["unusual values on the way to a failure"].found == "1.4 times"
    before = found["failures that unusual values came before"]
    assert (before.found, before.note) == (1, "median 30 min of a machine's life ahead")
    passed = found["limits passed that were foreseen"]
    assert (passed.found, passed.holds, passed.note) == (1, True, "median 12 min of a machine's life ahead")
    note = "precision 50%; false alarms 1: 1 in a machine's month"
    assert found["limits foreseen that were passed"].note == note


@pytest.mark.parametrize(
    ("wear", "other", "alone", "true", "told", "chance"),
    [(111, 122, 246, 11, 81, 0.055), (55, 237, 190, 23, 105, 0.039), (60, 203, 230, 4, 77, 0.04)],
)
def test_what_was_found_by_night_holds_and_what_comes_by_chance_does_not(
    wear: int, other: int, alone: int, true: int, told: int, chance: float
) -> None:
    """Figures of demos: few machines work, and half of what is unusual has no cause."""
    values = Counter({"wear": 3_000, "sensor": 5_000, "": 42_000})
    found = Scored(values, Counter({"wear": wear, "sensor": other, "": alone}), 9, 6, [SECOND] * 5)
    foretold = Foretold(told, true, chance, 11, [SECOND] * 3)
    assert all(check.holds for check in checks(found, foretold, 720.0, 180.0))
    of = found.told.total()
    by_chance = Counter({"wear": round(0.06 * of), "sensor": round(0.1 * of), "": round(0.84 * of)})
    many = Foretold(400, round(400 * chance), chance, 40, [SECOND])
    wrong = [check for check in checks(found._replace(told=by_chance), many, 720.0, 180.0) if not check.holds]
    assert [check.name for check in wrong] == [
        "unusual values with a cause",
        "unusual values on the way to a failure",
        "limits foreseen that were passed",
        "limits passed that were foreseen",
    ]


def test_of_few_limits_and_failures_none_may_be_found() -> None:
    """As in a demo of twelve seconds, whose checks hold or have nothing to compare."""
    scored = Scored(Counter({"": 900}), Counter(), 0, 2, [])
    for told, passed, holds in ((20, 2, True), (50, 2, False), (20, 5, False)):
        found = checks(scored, Foretold(told, 0, 0.01, passed, []), 10.0, 180.0)
        assert all(check.ok for check in found) == holds
