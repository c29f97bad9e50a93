"""Work orders: planned, begun, overdue, done, cancelled; alarms suppressed meanwhile."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import structs

from millrace.errors import UserError
from millrace.testing import TestDriver
from millrace.testing.properties import invariant
from millrace_apps.iot_maintenance.contracts.events import Action, Maintenance
from millrace_apps.iot_maintenance.operations.cli_rows import print_rows
from millrace_apps.iot_maintenance.operations.operating import action_on, plan_of
from millrace_apps.iot_maintenance.processes.orders import (
    FARTHEST_MS,
    MOST_OPEN,
    USUAL_MS,
    WorkOrder,
    open_orders_of,
)
from millrace_apps.iot_maintenance.settings import IotSettings
from tests.cases import case_count
from tests.unit.apps.iot_maintenance.monitor_cases import (
    DAY,
    HOUR,
    M1,
    MINUTE,
    START,
    Event,
    action,
    driver,
    history,
    maintenance,
    monitor,
    reading,
    rule,
    send,
    until,
)

KEEP = 10 * DAY
CASES = case_count(60)


def plan(
    at: int,
    component: str = "seal",
    *,
    start: int | None = None,
    length: int = 0,
    suppress: bool = False,
    comment: str = "",
    name: str = "",
    machine: str = M1,
) -> Event:
    """Work that is planned ``at`` ms after the start, for ``start`` ms after it."""
    name = name or f"{machine}.p{at}.{component}"
    begin = None if start is None else START + start
    event = Action(name, machine, component, "plan", START + at, "ann", length, comment, "", begin, suppress)
    return machine, START + at, event


def unplan(at: int, component: str = "seal", *, name: str = "") -> Event:
    event = Action(name or f"{M1}.u{at}.{component}", M1, component, "unplan", START + at, "bob")
    return M1, START + at, event


def orders(target: TestDriver) -> list[WorkOrder]:
    found: list[WorkOrder] = target.values("orders")
    return found


def states(target: TestDriver) -> list[tuple[int, str, str]]:
    """Minutes since the start, component, state."""
    return [((r.event_time_ms - START) // MINUTE, r.component, r.state) for r in orders(target)]


def test_work_is_planned_begun_and_done_when_its_component_is_replaced() -> None:
    target = driver()
    send(target, plan(0, start=HOUR, length=2 * HOUR), maintenance(90 * MINUTE, "valve"))
    send(target, maintenance(100 * MINUTE), maintenance(110 * MINUTE))
    until(target, 5 * HOUR)
    assert states(target) == [(0, "seal", "planned"), (60, "seal", "in work"), (100, "seal", "done")]
    assert [r.revision for r in orders(target)] == [0, 1, 2]
    assert len({r.order_id for r in orders(target)}) == 1


def test_work_that_nobody_does_is_overdue_and_may_be_done_then() -> None:
    target = driver()
    send(target, plan(0, start=HOUR))
    until(target, 3 * HOUR)
    assert states(target) == [(0, "seal", "planned"), (60, "seal", "in work"), (120, "seal", "overdue")]
    assert orders(target)[0].end_ms - orders(target)[0].start_ms == USUAL_MS
    send(target, maintenance(4 * HOUR))
    until(target, 5 * HOUR)
    assert states(target)[3:] == [(240, "seal", "done")]


def test_what_was_replaced_before_it_was_planned_is_another_replacement() -> None:
    target = driver(grace_ms=HOUR)
    send(target, maintenance(10 * MINUTE), plan(20 * MINUTE, start=30 * MINUTE))
    until(target, 25 * MINUTE)
    send(target, maintenance(15 * MINUTE))  # told late, and from before
    until(target, 31 * MINUTE)
    assert states(target) == [(20, "seal", "planned"), (30, "seal", "in work")]
    send(target, maintenance(29 * MINUTE))  # told late: it was done before its time
    assert states(target)[2:] == [(31, "seal", "done")]


def test_planning_again_moves_the_order_and_cancelling_ends_it() -> None:
    target = driver()
    send(target, plan(0, start=HOUR), plan(MINUTE, start=2 * HOUR), unplan(90 * MINUTE), unplan(91 * MINUTE))
    until(target, 5 * HOUR)
    assert states(target) == [
        (0, "seal", "planned"), (1, "seal", "planned"), (90, "seal", "cancelled"), (91, "seal", "rejected"),
    ]  # fmt: skip
    assert [r.operator for r in orders(target)] == ["ann", "ann", "bob", "bob"]
    assert orders(target)[3].reason == "unplan: there is no open order"


def test_a_repeat_has_no_effect_whenever_it_comes() -> None:
    target = driver()
    first = plan(0, start=HOUR)
    send(target, first, first, plan(MINUTE, start=2 * HOUR), first, unplan(3 * MINUTE), first)
    until(target, 4 * HOUR)
    assert states(target) == [(0, "seal", "planned"), (1, "seal", "planned"), (3, "seal", "cancelled")]


def test_what_is_no_order_is_rejected_and_says_why() -> None:
    target = driver(reasons=True)
    send(
        target,
        plan(HOUR, "*"),
        plan(HOUR, "a", start=0, length=HOUR),
        plan(HOUR, "b", start=HOUR + FARTHEST_MS),
        plan(HOUR, "c", suppress=True),
        *(plan(HOUR, f"d{n:02}", start=2 * HOUR) for n in range(MOST_OPEN + 1)),
    )
    until(target, HOUR + 1)
    found = {r.component: r.reason for r in orders(target) if r.state == "rejected"}
    assert found == {
        "*": "plan: an order is for one component",
        "a": "plan: it would be over already",
        "b": "plan: it is more than a year away",
        "c": "plan: suppressing alarms needs a reason",
        f"d{MOST_OPEN:02}": f"plan: there are {MOST_OPEN} open orders",
    }


def test_alarms_are_suppressed_while_work_is_done_and_not_longer() -> None:
    target = driver(rule(id="hot"))
    send(target, plan(0, start=HOUR, length=HOUR, suppress=True), reading(70 * MINUTE, 99.0))
    until(target, 75 * MINUTE)
    assert not history(target)[-1].announced
    assert history(target)[-1].suppressed
    send(target, maintenance(80 * MINUTE))
    until(target, 81 * MINUTE)
    last = history(target)[-1]
    assert (last.change, last.announced, last.suppressed) == ("unsuppress", True, False)
    assert last.comment == "work on seal is over"


@pytest.mark.parametrize(("role", "held"), [("", False), ("fitter", False), ("supervisor", True)])
def test_work_suppresses_alarms_that_are_for_a_role_where_it_was_planned_in_it(role: str, held: bool) -> None:
    """As of whoever suppresses them by hand; the other alarms of the machine are suppressed in any case."""
    guarded = rule(id="guarded", quantities=("oil", "load"), roles=("supervisor",))
    target = driver(rule(id="hot"), guarded)
    planned = plan(0, start=HOUR, length=HOUR, suppress=True)[2]
    send(target, (M1, START, structs.replace(planned, role=role)), reading(10 * MINUTE, 99.0))
    send(target, reading(70 * MINUTE, 99.0, "load"))
    until(target, 75 * MINUTE)
    newest = {e.alarm: e for e in history(target)}
    assert newest["hot/oil"].suppressed
    assert [newest[name].suppressed for name in ("guarded/oil", "guarded/load")] == [held, held]
    assert [newest[name].announced for name in ("guarded/oil", "guarded/load")] == [not held, not held]
    send(target, maintenance(80 * MINUTE))
    until(target, 81 * MINUTE)
    assert not any(e.suppressed for e in {e.alarm: e for e in history(target)}.values())


def test_the_suppression_of_an_operator_is_not_ended_by_work_that_is_done() -> None:
    target = driver(rule(id="hot"))
    send(target, plan(0, start=HOUR, length=HOUR, suppress=True), reading(70 * MINUTE, 99.0))
    send(target, action(75 * MINUTE, "suppress", "*", 8 * HOUR), maintenance(80 * MINUTE))
    until(target, 90 * MINUTE)
    assert history(target)[-1].suppressed


def test_an_order_that_stays_overdue_is_forgotten_and_nothing_is_kept() -> None:
    target = driver(keep_ms=KEEP)
    send(target, plan(0, start=HOUR))
    until(target, 2 * HOUR + KEEP - 1)
    assert not target.is_empty()
    until(target, 3 * HOUR + 2 * KEEP)
    assert target.is_empty()
    assert states(target)[-1][2] == "overdue"


# -- against a list that is walked through minute by minute ------------------------------------------


Row = tuple[str, int, int, str, int, int]


def oracle(events: Sequence[Event]) -> list[Row]:
    """Every row of events that come in order, by looking at each component for itself."""
    acts = [e for _, _, e in events if isinstance(e, Action)]
    done = [e for _, _, e in events if isinstance(e, Maintenance)]
    rows: list[Row] = []
    for component in {a.alarm for a in acts}:
        plans = [(a.event_time_ms, 1, a) for a in acts if a.alarm == component]
        repairs = [(m.event_time_ms, 0, m) for m in done if m.component == component]
        walk = _Walk()
        for at, _, event in sorted([*plans, *repairs], key=lambda c: c[:2]):
            walk.step(at, event)
        walk.pass_to(START + 400 * DAY)
        rows += walk.rows
    return sorted(rows)


class _Walk:
    """Walks through what happened to one component."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.said: set[str] = set()
        self.name, self.revision, self.start, self.end, self.state = "", 0, 0, 0, ""

    def tell(self, at: int, now: str) -> None:
        self.state = now
        self.rows.append((self.name, self.revision, at, now, self.start, self.end))
        self.revision += 1

    def pass_to(self, at: int) -> None:
        if self.state == "planned" and self.start <= at:
            self.tell(self.start, "in work")
        if self.state == "in work" and self.end <= at:
            self.tell(self.end, "overdue")
        if self.state == "overdue" and self.end + KEEP <= at:
            self.state = ""

    def step(self, at: int, event: Any) -> None:
        self.pass_to(at)
        is_open = self.state in ("planned", "in work", "overdue")
        if isinstance(event, Maintenance):
            if is_open:
                self.tell(at, "done")
            return
        if event.action_id in self.said:
            return
        self.said.add(event.action_id)
        if event.verb == "unplan":
            if is_open:
                self.tell(at, "cancelled")
            return
        begin = at if event.start_ms is None else event.start_ms
        over = begin + (event.duration_ms or USUAL_MS)
        if over <= at:
            return
        if not is_open:
            self.name, self.revision = event.action_id, 0
        self.start, self.end = begin, over
        self.tell(at, "planned")
        if begin <= at:
            self.tell(at, "in work")


def made(seed: int) -> list[Event]:
    """A history of a machine: each event of its own minute and component."""
    rnd = random.Random(seed)
    found: list[Event] = []
    at = 0
    for _ in range(rnd.randrange(3, 25)):
        at += rnd.choice((MINUTE, 5 * MINUTE, HOUR, 5 * HOUR)) + 1
        component = rnd.choice(("seal", "valve", "bearing"))
        kind = rnd.random()
        if kind < 0.55:
            start = rnd.choice((None, at + rnd.randrange(6 * HOUR), at - rnd.randrange(2 * HOUR)))
            length = rnd.choice((0, 10 * MINUTE + 7, 3 * HOUR + 11))
            found.append(plan(at, component, start=start, length=length, suppress=rnd.random() < 0.3))
        elif kind < 0.7:
            found.append(unplan(at, component))
        elif kind < 0.95 or not found:
            found.append(maintenance(at, component))
        elif isinstance(found[-1][2], Action):
            found.append(found[-1])
    return found


@pytest.mark.parametrize("seed", range(CASES))
def test_orders_are_those_of_a_list_walked_through(seed: int) -> None:
    events = made(seed)
    target = driver(keep_ms=KEEP)
    send(target, *events)
    until(target, 30 * DAY)
    found = sorted(
        (r.order_id, r.revision, r.event_time_ms, r.state, r.start_ms, r.end_ms)
        for r in orders(target)
        if r.state != "rejected"
    )
    assert found == oracle(events)


@pytest.mark.parametrize("seed", range(3))
def test_orders_hang_on_no_cut_order_or_restart(seed: int) -> None:
    invariant(monitor(rule(id="hot"), keep_ms=KEEP), made(seed), bound_ms=HOUR, runs=3)


# -- what commands and the page send -----------------------------------------------------------------


def test_what_would_be_refused_is_not_sent() -> None:
    settings = IotSettings(monitor={"reasons": True})  # type: ignore[arg-type]
    made = plan_of(settings, M1, "seal", operator="ann", start_ms=START + HOUR, at_ms=START, role="fitter")
    assert (made.verb, made.alarm, made.start_ms, made.role) == ("plan", "seal", START + HOUR, "fitter")
    with pytest.raises(UserError, match="over already"):
        plan_of(settings, M1, "seal", operator="ann", start_ms=START - HOUR, at_ms=START)
    with pytest.raises(UserError, match="needs a reason"):
        plan_of(settings, M1, "seal", operator="ann", at_ms=START, suppress=True)
    with pytest.raises(UserError, match="names no alarm"):
        action_on(settings, "ack", "m1", operator="ann", at_ms=START)
    with pytest.raises(UserError, match="needs a reason"):
        action_on(settings, "shelve", "m1:hot", operator="ann", at_ms=START)


def test_open_orders_are_in_the_order_of_their_begin() -> None:
    rows = [
        {"state": state, "start_ms": n, "machine_id": "m", "component": "c"}
        for n, state in enumerate(("done", "overdue", "cancelled", "in work", "rejected", "planned"))
    ]
    assert [r["start_ms"] for r in open_orders_of(rows)] == [1, 3, 5]


def test_what_devices_are_called_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"device": "pump[a]\x1b[2J"}, {"device": "[/b]"}, {"device": "two\nlines"}]
    print_rows("devices", rows, {"device": lambda row: row["device"]}, as_json=False)
    shown = capsys.readouterr().out
    for said in ("pump[a]?[2J", "[/b]", "two ", "lines"):
        assert said in shown
