"""Orders on their way through a warehouse: each step is an event, and some orders go wrong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice
from math import exp
from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from millrace_apps.generators.engine.profile import Profile, check
from millrace_apps.generators.engine.randomness import digest, normal, substream
from millrace_apps.generators.engine.simulated import Domain, Simulated, StreamSpec, Truth
from millrace_apps.generators.small.slots import Plans

Step: TypeAlias = Literal["created", "paid", "picked", "packed", "shipped", "delivered", "cancelled"]
#: Step → median time since the step before, hours of the warehouse.
STEPS: Final[dict[Step, float]] = {
    "created": 0.0,
    "paid": 0.2,
    "picked": 3.0,
    "packed": 0.5,
    "shipped": 4.0,
    "delivered": 30.0,
}
#: Deviation of the logarithm of those times.
SIGMA: Final = 0.4
#: A step is overdue after this many times its median: beyond 99.9 % of ordinary ones (e^(3.7 · 0.4) = 4.4).
OVERDUE: Final = 5.0

STUCK: Final = "stuck"
ABANDONED: Final = "abandoned"
SKIPPED: Final = "step_skipped"
SWAPPED: Final = "steps_swapped"
PAID_TWICE: Final = "paid_twice"
SCENARIOS: Final = {
    STUCK: "a step comes after six to ten times its median time",
    ABANDONED: "an order stops after a step and never goes on",
    SKIPPED: "a step between the first and the last is missing",
    SWAPPED: "two steps come in the wrong order",
    PAID_TWICE: "the order is paid a second time, with another event",
}
_CANCELLED_SHARE: Final = 0.03
#: Most events of one order: all steps, and a second payment.
_MOST_EVENTS: Final = len(STEPS) + 1


class OrderStep(msgspec.Struct, frozen=True, gc=False):
    """One step of one order."""

    event_id: Annotated[str, Meta(min_length=1, description="Unique.")]
    order_id: Annotated[str, Meta(min_length=1, description="The order.")]
    step: Annotated[Step, Meta(description="What has been done.")]
    warehouse: Annotated[str, Meta(min_length=1, description="Where.")]
    amount: Annotated[float, Meta(gt=0, description="The order's value in euro, to the cent.")]
    event_time_ms: Annotated[int, Meta(ge=0, description="Event time, milliseconds since the epoch, UTC.")]


@dataclass(frozen=True, kw_only=True, slots=True)
class OrdersProfile(Profile):
    """What a stream of orders is made from.

    ``event_rate`` is reached once the first orders are delivered; orders come evenly from the begin.

    Attributes:
        warehouses: Number of warehouses.
        acceleration: How many times faster than in reality the steps follow each other.
        deviation_rate: Orders that go wrong per 1,000 orders.
    """

    warehouses: int = 5
    acceleration: float = 600.0
    deviation_rate: float = 20.0

    def __post_init__(self) -> None:
        # The two-argument form: a slotted dataclass is a second class, which super() alone does not find.
        super(OrdersProfile, self).__post_init__()
        check(1 <= self.warehouses <= 10_000, "warehouses is a count between 1 and 10,000", self.warehouses)
        check(0 < self.acceleration <= 1e6, "acceleration is above 0, up to 1,000,000", self.acceleration)
        rate = self.deviation_rate
        check(0 <= rate <= 1_000, "deviation rate is 0 to 1,000 per 1,000 orders", rate)

    @property
    def order_ms(self) -> float:
        """Time between two orders, ms."""
        return len(STEPS) * 1000.0 / self.event_rate

    @property
    def last_ms(self) -> int | None:
        """A time, ms, that the last event does not come before: were each order all its events at once."""
        if self.events is None:
            return None
        return self.start_ms + int(max(self.events - 1, 0) // _MOST_EVENTS * self.order_ms)


class _Order:
    """An order with the steps that are still to come, each with its time."""

    __slots__ = ("amount", "done", "order_id", "steps", "truths", "warehouse")

    def __init__(self, order_id: str, warehouse: str, amount: float) -> None:
        self.order_id = order_id
        self.warehouse = warehouse
        self.amount = amount
        self.steps: list[tuple[int, Step]] = []
        self.truths: tuple[Truth, ...] = ()
        self.done = 0


class Warehouse:
    """Orders come in and go through their steps.

    Args:
        profile: How fast, and how many go wrong.
    """

    def __init__(self, profile: OrdersProfile) -> None:
        self._profile = profile
        self._run = digest("orders", profile.seed, profile.start_ms)[:10]
        self._amount = substream(profile.seed, "orders", "amount").random
        self._where = substream(profile.seed, "orders", "warehouse").random
        self._pace = substream(profile.seed, "orders", "pace").random
        self._cancel = substream(profile.seed, "orders", "cancel").random
        self._when = substream(profile.seed, "orders", "deviation", "when").random
        self._what = substream(profile.seed, "orders", "deviation", "what").random
        self._plans: Plans[_Order] = Plans()

    @property
    def open_orders(self) -> int:
        """How many orders have steps still to come."""
        return len(self._plans)

    def events(self) -> Iterator[Simulated]:
        """Yield steps, without end."""
        for number in count():
            created_ms = self._profile.start_ms + int(number * self._profile.order_ms)
            while (due := self._plans.due(created_ms)) is not None:
                yield self._step(due[1])
            yield self._step(self._order(number, created_ms))

    def _step(self, order: _Order) -> Simulated:
        """Let an order's next step happen, and plan the one after it."""
        at_ms, step = order.steps.pop(0)
        event_id = f"{order.order_id}-{order.done}"
        order.done += 1
        if order.steps:
            self._plans.add(order.steps[0][0], order)
        event = OrderStep(event_id, order.order_id, step, order.warehouse, order.amount, at_ms)
        return Simulated("steps", order.order_id, event, at_ms, order.truths)

    def _order(self, number: int, at_ms: int) -> _Order:
        amount = round(40 * exp(0.8 * normal(self._amount())), 2)
        warehouse = f"w{1 + int(self._profile.warehouses * self._where()):02d}"
        order = _Order(f"{self._run}-{number:09d}", warehouse, amount)
        # All draws come first and always, so that no decision shifts the numbers of the next order.
        paces = [exp(SIGMA * normal(self._pace())) for _ in STEPS]
        cancels, deviates = self._cancel(), self._when()
        draws = [self._what() for _ in range(3)]
        hours = {step: median * pace for (step, median), pace in zip(STEPS.items(), paces, strict=True)}
        steps: list[Step] = list(STEPS)
        if deviates < self._profile.deviation_rate / 1000:
            steps = self._deviate(order, steps, hours, draws)
        elif cancels < _CANCELLED_SHARE:
            # In time: before anything has left the house.
            cut = 1 + int(cancels / _CANCELLED_SHARE * 4)
            steps = [*steps[:cut], "cancelled"]
        order.steps = self._timed(steps, hours, at_ms)
        return order

    def _timed(self, steps: list[Step], hours: dict[Step, float], at_ms: int) -> list[tuple[int, Step]]:
        timed: list[tuple[int, Step]] = []
        for step in steps:
            # At least a millisecond apart: the order of an order's steps is that of their times.
            wait_ms = int(hours.get(step, 0.5) * 3_600_000 / self._profile.acceleration)
            at_ms += max(wait_ms, 1) if timed else 0
            timed.append((at_ms, step))
        return timed

    def _deviate(
        self, order: _Order, steps: list[Step], hours: dict[Step, float], draws: list[float]
    ) -> list[Step]:
        """Return the steps of an order that goes wrong; ``hours`` is changed where it takes too long."""
        kind = list(SCENARIOS)[int(len(SCENARIOS) * draws[0])]
        place = 1 + int(draws[1] * (len(steps) - 2))
        step = steps[place]
        detail: dict[str, object] = {"step": step}
        if kind == STUCK:
            hours[step] = STEPS[step] * (6 + 4 * draws[2])
        elif kind == ABANDONED:
            steps = steps[: place + 1]
        elif kind == SKIPPED:
            steps.remove(step)
        elif kind == SWAPPED:
            detail["before"] = steps[place + 1]
            steps[place], steps[place + 1] = steps[place + 1], steps[place]
        else:
            detail["step"] = "paid"
            steps.insert(2, "paid")
        detail["size"] = len(steps)
        truth = Truth(
            truth_id=f"{order.order_id}-d",
            kind=kind,
            entity=order.order_id,
            expected="alert",
            detail=detail,
        )
        order.truths = (truth,)
        return steps


def simulate(profile: OrdersProfile) -> Iterator[Simulated]:
    """Yield the steps of orders in event time.

    Args:
        profile: What the warehouses do; equal profiles give equal steps.

    >>> first = next(simulate(OrdersProfile(seed=1)))
    >>> first.stream, first.event.step
    ('steps', 'created')
    """
    return islice(Warehouse(profile).events(), profile.events)


ORDERS: Final = Domain(
    name="orders",
    description="orders step by step: stuck, abandoned, with steps missing, swapped or done twice",
    streams={
        "steps": StreamSpec(
            topic="orders.steps", event_type=OrderStep, id_field="event_id", time_field="event_time_ms"
        )
    },
    profile=OrdersProfile,
    simulate=simulate,
    scenarios=SCENARIOS,
)
