"""Alarms held against what is true of machines: by a list of every millisecond that explains one."""

from __future__ import annotations

import random
from typing import Any

import pytest

from millrace.testing.world_ledger import WorldTruth
from millrace_apps.iot_maintenance.evaluation.demo_causes import checks, degradations, judge
from tests.cases import case_count

CASES = case_count(150)
SECOND = 1_000
LAST = 60 * SECOND


def degrading(machine: str, begin: int, end: int, quantities: list[str], *, fails: bool = True) -> WorldTruth:
    times = {"failure_ms": end if fails else None, "service_ms": None if fails else end}
    detail: dict[str, Any] = {"component": "c", "onset_ms": begin, "quantities": quantities, **times}
    return WorldTruth(f"{machine}{begin}", "worn", machine, "alarm", detail, [], [], begin, end)


def beyond(sensor: str, begin: int, end: int | None) -> WorldTruth:
    detail = {"begin_ms": begin, "side": "high"}
    back = begin if end is None else end
    return WorldTruth(f"{sensor}{begin}", "limit_exceeded", sensor, "alarm", detail, [], [], begin, back)


def alarm(machine: str, quantity: str, at: int, **more: Any) -> dict[str, Any]:
    row = {"entity_id": machine, "quantity": quantity, "event_time_ms": at, "change": "active"}
    return {**row, "announced": True, "category": "process", **more}


@pytest.mark.parametrize("seed", range(CASES))
def test_alarms_are_judged_as_by_a_list_of_every_second(seed: int) -> None:
    rnd = random.Random(seed)
    machines, quantities = ("a", "b"), ("oil", "speed", "flow")
    truths = []
    for _ in range(rnd.randrange(6)):
        begin = rnd.randrange(50) * SECOND
        end = begin + rnd.randrange(1, 30) * SECOND
        shows = rnd.sample(quantities, rnd.randrange(1, 3))
        truths.append(degrading(rnd.choice(machines), begin, end, shows, fails=rnd.random() < 0.7))
    for _ in range(rnd.randrange(4)):
        begin = rnd.randrange(50) * SECOND
        open_ = rnd.random() < 0.3
        sensor = f"{rnd.choice(machines)}.{rnd.choice(quantities)}"
        truths.append(beyond(sensor, begin, None if open_ else begin + rnd.randrange(1, 9) * SECOND))
    rows = [
        alarm(
            rnd.choice(machines),
            rnd.choice((*quantities, "")),
            rnd.randrange(61) * SECOND,
            change=rnd.choice(("active", "active", "inactive")),
            announced=rnd.random() < 0.9,
            category=rnd.choice(("process", "process", "sensor")),
        )
        for _ in range(rnd.randrange(12))
    ]
    # Every second at which an alarm on this quantity of this machine is explained.
    explained: set[tuple[str, str, int]] = set()
    fails: list[tuple[str, list[str], int, int]] = []
    for truth in truths:
        detail = truth.detail
        if truth.kind == "worn":
            end = detail["failure_ms"] or detail["service_ms"]
            for second in range(detail["onset_ms"] // SECOND, end // SECOND + 4):
                explained |= {(truth.entity, q, second) for q in ("", *detail["quantities"])}
            if detail["failure_ms"] and detail["failure_ms"] < LAST:
                fails.append((truth.entity, ["", *detail["quantities"]], detail["onset_ms"], end))
        else:
            machine, quantity = truth.entity.split(".")
            end = truth.last_event_time_ms if truth.last_event_time_ms > detail["begin_ms"] else LAST
            for second in range(detail["begin_ms"] // SECOND - 3, end // SECOND + 4):
                explained.add((machine, quantity, second))
    told = [r for r in rows if r["change"] == "active" and r["announced"] and r["category"] == "process"]
    places = [(r["entity_id"], r["quantity"], r["event_time_ms"] // SECOND) for r in told]
    leads = []
    for machine, of, begin, end in fails:
        before = [s * SECOND for m, q, s in places if m == machine and q in of and begin <= s * SECOND < end]
        leads += [end - min(before)] if before else []
    found = judge(truths, rows, LAST)
    assert found.alarms == len(told)
    assert found.false == sum(place not in explained for place in places)
    assert found.failures == len(fails)
    assert sorted(found.leads_ms) == sorted(leads)


def test_the_report_counts_in_the_time_of_machines() -> None:
    truths = [degrading("a", 0, 20 * SECOND, ["oil"]), degrading("b", 0, 20 * SECOND, ["oil"])]
    rows = [alarm("a", "oil", at * SECOND) for at in (10, 11, 12)] + [alarm("c", "oil", 10 * SECOND)]
    failures, causes = checks(judge(truths, rows, LAST), machine_hours=720.0, acceleration=180.0)
    assert (failures.found, failures.holds, failures.note) == (
        1, True, "median 30 min of a machine's life ahead",
    )  # fmt: skip
    note = "precision 75%; 1 without one: 1 in a machine's month"
    assert (causes.found, causes.holds, causes.note) == (3, True, note)
    # Of few it says nothing.
    few = checks(judge(truths, rows[2:], LAST), machine_hours=720.0, acceleration=180.0)[1]
    assert few.is_empty


def test_truths_of_older_ledgers_say_nothing_of_quantities_and_are_left_out() -> None:
    old = degrading("a", 0, 9, ["oil"])
    del old.detail["quantities"]
    assert degradations([old]) == []
