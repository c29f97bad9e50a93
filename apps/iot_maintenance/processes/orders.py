"""Work orders: what operators have planned to replace and when, and whether it was done."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

import msgspec

from millrace import Context, side_output, value_state
from millrace_apps.iot_maintenance.alarms.engine import HOLDS_BACK
from millrace_apps.iot_maintenance.contracts.events import Action, Maintenance
from millrace_apps.iot_maintenance.processes.machine_health import Charted

#: Name of the timer of the next begin or end.
WORK: Final = "work"
#: What operators do about work orders, not about alarms.
PLANNING: Final = frozenset({"plan", "unplan"})
#: Open orders of a machine; more are refused.
MOST_OPEN: Final = 32
#: How long work takes that nobody has said the length of, ms.
USUAL_MS: Final = 3_600_000
#: Work is over so soon at the latest, ms.
FARTHEST_MS: Final = 366 * 86_400_000
#: Of so many actions it is known that they came before.
_REMEMBERED: Final = 64

OrderState = Literal["planned", "in work", "overdue", "done", "cancelled", "rejected"]


#: States of an order that can be moved, cancelled or done.
OPEN: Final = frozenset({"planned", "in work", "overdue"})


class WorkOrder(msgspec.Struct, frozen=True, gc=False):
    """What has become of work that was planned; of an order the row of the highest revision counts.

    Attributes:
        order_id: Its identity: that of the action that planned it first.
        revision: Which row of the order it is, from 0.
        machine_id: The machine.
        component: What is to be replaced.
        event_time_ms: When this became so.
        state: ``planned``; ``in work`` from its begin to its end; ``overdue`` when the end is over and nobody
            has said that the component was replaced; ``done``, ``cancelled``; ``rejected``: it was no order.
        start_ms: When the work is to begin.
        end_ms: When it is to be over.
        suppress: Whether the machine's alarms are suppressed meanwhile.
        operator: Who planned, moved or cancelled it last.
        comment: Why.
        reason: Why it was rejected.
    """

    order_id: str
    revision: int
    machine_id: str
    component: str
    event_time_ms: int
    state: OrderState
    start_ms: int
    end_ms: int
    suppress: bool
    operator: str
    comment: str
    reason: str = ""


class OpenOrder(msgspec.Struct, array_like=True):
    """An order that is neither done nor cancelled.

    Attributes:
        order_id: Its identity.
        planned: When it was planned first, ms: what was replaced before is not this.
        start: When the work is to begin, ms.
        end: When it is to be over, ms.
        suppress: Whether alarms are suppressed meanwhile.
        operator: Who planned or moved it last.
        comment: Why.
        state: What was told of it last.
        revision: Number of its last row.
        holds_back: Until when it has suppressed the machine's alarms, ms; 0: it has not.
        role: As what the operator acts, where rules say who may suppress their alarms.
    """

    order_id: str
    planned: int
    start: int = 0
    end: int = 0
    suppress: bool = False
    operator: str = ""
    comment: str = ""
    state: OrderState = "planned"
    revision: int = -1
    holds_back: int = 0
    role: str = ""

    def due(self, keep_ms: int) -> int:
        """Return when it changes by itself next, ms; one that is overdue is forgotten after ``keep_ms``."""
        if self.state == "planned":
            return self.start
        return self.end if self.state == "in work" else self.end + keep_ms


class Orders(msgspec.Struct, array_like=True):
    """The open orders of a machine.

    Attributes:
        open: Component → its order.
        acted: The last actions on them, so that a repeat has no effect.
        acted_at: When the last one was, ms.
    """

    open: dict[str, OpenOrder] = {}
    acted: list[str] = []
    acted_at: int = -1


class Ordered(Charted):
    """The part of the monitor that keeps work orders: one open order for each component of a machine.

    An order is done by the first replacement of its component after it was planned. Begin and end are told
    when the machine's time passes them; an order that stays overdue for as long as a silent machine is kept
    is forgotten, and stays overdue in its table.
    """

    orders = side_output(WorkOrder)

    work = value_state(Orders)

    def _plan(self, event: Action, at: int, ctx: Context) -> None:
        """Take at ``at`` (ms) what an operator plans, moves or cancels."""
        orders = self.work.value
        if orders is None:
            orders = self.work.value = Orders()
        if event.action_id in orders.acted:
            return
        orders.acted = [*orders.acted[1 - _REMEMBERED :], event.action_id]
        orders.acted_at = max(orders.acted_at, at)
        component, order = event.alarm, orders.open.get(event.alarm)
        if event.verb == "unplan":
            if order is None:
                self._refuse(event, at, "there is no open order", ctx)
            else:
                order.operator, order.comment = event.operator, event.comment
                self._end_order(component, orders, "cancelled", at, ctx)
        elif why := self._refused(event, at, orders):
            self._refuse(event, at, why, ctx)
        else:
            if order is None:
                order = orders.open[component] = OpenOrder(event.action_id, at)
            else:
                self._let_alarms_go(component, order, at, ctx)
            order.start, order.end = _when(event, at)
            order.suppress, order.state = event.suppress, "planned"
            order.operator, order.comment, order.role = event.operator, event.comment, event.role
            self._tell_order(component, order, at, ctx)
            self._pass(component, orders, at, ctx)
        self._sleep(orders, ctx)

    def _refused(self, event: Action, at: int, orders: Orders) -> str:
        """Return why a plan is none; empty if it is one."""
        start, end = _when(event, at)
        if event.alarm == "*":
            return "an order is for one component"
        if event.suppress and self._m.reasons and not event.comment.strip():
            return "suppressing alarms needs a reason"
        if end <= at:
            return "it would be over already"
        if max(start, end) > at + FARTHEST_MS:
            return "it is more than a year away"
        if event.alarm not in orders.open and len(orders.open) >= MOST_OPEN:
            return f"there are {MOST_OPEN} open orders"
        return ""

    def _work(self, ctx: Context) -> None:
        """Begin and end what is due."""
        orders = self.work.value
        if orders is None:
            return
        for component in sorted(orders.open):
            self._pass(component, orders, ctx.event_time, ctx)
        if not orders.open and ctx.event_time >= orders.acted_at + self._m.keep_ms:
            self.work.clear()
        else:
            self._sleep(orders, ctx)

    def _sleep(self, orders: Orders, ctx: Context) -> None:
        """Wait for what changes by itself next."""
        keep = self._m.keep_ms
        due = min((order.due(keep) for order in orders.open.values()), default=orders.acted_at + keep)
        ctx.timers.at(due, WORK)

    def _pass(self, component: str, orders: Orders, at: int, ctx: Context) -> None:
        """Take that time has come to ``at`` (ms)."""
        order = orders.open[component]
        if order.state == "planned" and order.start <= at:
            order.state = "in work"
            self._tell_order(component, order, at, ctx)
            if order.suppress and order.end > at:
                why = order.comment or f"planned work on {component}"
                self._hold_back("suppress", order, at, order.end - at, why, ctx)
                order.holds_back = order.end
        if order.state == "in work" and order.end <= at:
            order.state, order.holds_back = "overdue", 0
            self._tell_order(component, order, at, ctx)
        if order.state == "overdue" and order.due(self._m.keep_ms) <= at:
            del orders.open[component]

    def _replaced(self, event: Maintenance, at: int, ctx: Context) -> None:
        """Take at ``at`` (ms) that a component was replaced: its order is done."""
        orders = self.work.value
        order = None if orders is None else orders.open.get(event.component)
        if orders is not None and order is not None and event.event_time_ms >= order.planned:
            orders.acted_at = max(orders.acted_at, at)
            self._end_order(event.component, orders, "done", at, ctx)
            self._sleep(orders, ctx)

    def _end_order(self, component: str, orders: Orders, state: OrderState, at: int, ctx: Context) -> None:
        order = orders.open.pop(component)
        order.state = state
        self._tell_order(component, order, at, ctx)
        self._let_alarms_go(component, order, at, ctx)

    def _let_alarms_go(self, component: str, order: OpenOrder, at: int, ctx: Context) -> None:
        """End the suppression that an order has begun, unless another is in force since."""
        alarms, until = self.conditions.value, order.holds_back
        order.holds_back = 0
        if alarms is not None and until > at and alarms.suppressed_until == until:
            self._hold_back("unsuppress", order, at, 0, f"work on {component} is over", ctx)

    def _hold_back(
        self,
        verb: Literal["suppress", "unsuppress"],
        order: OpenOrder,
        at: int,
        length: int,
        why: str,
        ctx: Context,
    ) -> None:
        identity = f"{order.order_id}/{order.revision}/{verb}"
        action = Action(identity, ctx.key, "*", verb, at, order.operator, length, why, order.role)
        self._engine(ctx, at=at).act(action)
        self._wake(ctx)
        self._pass_on(action, ctx)

    def _pass_on(self, action: Action, ctx: Context) -> None:
        """Have alarms of what is foreseen know what is done about all alarms of the machine."""
        lacks = self._m.reasons and action.verb in HOLDS_BACK and not action.comment.strip()
        if self._m.foresees and action.alarm == "*" and not lacks:  # else it was refused
            ctx.output(self.asked, action)

    def _tell_order(self, component: str, order: OpenOrder, at: int, ctx: Context) -> None:
        order.revision += 1
        row = WorkOrder(
            order_id=order.order_id,
            revision=order.revision,
            machine_id=ctx.key,
            component=component,
            event_time_ms=at,
            state=order.state,
            start_ms=order.start,
            end_ms=order.end,
            suppress=order.suppress,
            operator=order.operator,
            comment=order.comment,
        )
        ctx.output(self.orders, row, revision=order.revision, identity=f"order:{order.order_id}")

    def _refuse(self, event: Action, at: int, why: str, ctx: Context) -> None:
        start, end = _when(event, at)
        row = WorkOrder(
            order_id=event.action_id,
            revision=0,
            machine_id=ctx.key,
            component=event.alarm,
            event_time_ms=at,
            state="rejected",
            start_ms=start,
            end_ms=end,
            suppress=event.suppress,
            operator=event.operator,
            comment=event.comment,
            reason=f"{event.verb}: {why}",
        )
        ctx.output(self.orders, row, identity=f"order:{event.action_id}")


def _when(event: Action, at: int) -> tuple[int, int]:
    """Return when work begins that is planned at ``at``, and when it is over, ms."""
    start = at if event.start_ms is None else event.start_ms
    return start, start + (event.duration_ms or USUAL_MS)


def open_orders_of(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the orders that are neither done, cancelled nor rejected, the soonest first."""
    found = [row for row in rows if row["state"] in OPEN]
    return sorted(found, key=lambda row: (row["start_ms"], row["machine_id"], row["component"]))


def orders_over(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the other orders, the newest first."""
    return sorted((row for row in rows if row["state"] not in OPEN), key=lambda row: -row["event_time_ms"])
