"""An order is to be paid within 30 minutes, shipped within a day and delivered within three: who is late?

Steps are handled in order of event time: a payment that was made in time and told late raises no alarm.
"""

from __future__ import annotations

import sys

import msgspec

from millrace import Context, KeyedProcess, Timer, days, hours, minutes, side_output, value_state
from millrace.playback import Playback, at, play
from millrace.topology import Input, read

TEACHES = "timers as deadlines, steps of a process, order of event time"

NEXT = {"placed": (minutes(30), "paid"), "paid": (days(1), "shipped"), "shipped": (days(3), "delivered")}


class Step(msgspec.Struct):
    """Something was done with an order."""

    order: str
    at: int
    step: str


class Done(msgspec.Struct):
    """An order was delivered."""

    order: str
    hours: float


class Missed(msgspec.Struct):
    """A step was not taken in time."""

    order: str
    step: str
    deadline: int


class OrderSteps(KeyedProcess[Step, Done]):
    """Follows each order from step to step."""

    order = "event_time"
    placed = value_state(int, default=0, ttl=days(30))
    missed = side_output(Missed)

    def process(self, event: Step, ctx: Context) -> None:
        """Take a step: its deadline is met, and the next one begins to run."""
        ctx.timers.delete(event.step)
        if event.step == "placed":
            self.placed.value = ctx.event_time
        if event.step in NEXT:
            ctx.timers.after(*NEXT[event.step])
        elif self.placed.value:
            ctx.emit(Done(ctx.key, (ctx.event_time - self.placed.value) / hours(1)))
            self.placed.clear()

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """Tell of a step that was not taken: its name is the timer's."""
        ctx.output(self.missed, Missed(ctx.key, timer.name, timer.at))


STEPS = [
    [Step("o-1", at("10:00"), "placed"), Step("o-2", at("10:05"), "placed")],
    [Step("o-3", at("10:40"), "placed")],
    [Step("o-3", at("10:50"), "paid"), Step("o-1", at("10:29"), "paid")],  # o-1: paid in time, told late
    [Step("o-1", at("18:00"), "shipped"), Step("o-3", at("day 2 15:00"), "shipped")],
    [Step("o-1", at("day 3 09:00"), "delivered"), Step("o-3", at("day 4 12:00"), "delivered")],
]


orders = read(Input("orders.steps", key="order", event_time="at")).process(OrderSteps())


def main(engine: str = "memory") -> Playback:
    """Play the steps, which are told up to 15 minutes late."""
    return play(orders, STEPS, engine, out_of_orderness="15 minutes").show()


if __name__ == "__main__":
    main(*sys.argv[1:])
