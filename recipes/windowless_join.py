"""Orders and payments meet in either order, without a window: whoever comes first waits for the other.

A process with two inputs. A timer tells what has waited a day in vain, so that nothing stays for ever.
"""

from __future__ import annotations

import sys
from typing import ClassVar

import msgspec

from millrace import Context, KeyedProcess, Timer, arrival, days, side_output, value_state
from millrace.playback import Playback, at, play
from millrace.topology import Input, read

TEACHES = "two inputs, state cleared by hand, timers against leaks"


class Order(msgspec.Struct):
    """Something was ordered."""

    order: str
    at: int
    item: str


class Payment(msgspec.Struct):
    """An order was paid."""

    order: str
    at: int
    amount: float


class Both(msgspec.Struct):
    """An order with its payment, as far as they have come."""

    order: str
    item: str | None = None
    amount: float | None = None


class PaidOrders(KeyedProcess[Order | Payment, Both]):
    """Joins each order with its payment."""

    inputs: ClassVar = {"orders": Order, "payments": Payment}
    order = arrival(commutes=True)
    met = value_state(Both)
    alone = side_output(Both)

    def process(self, event: Order | Payment, ctx: Context) -> None:
        """Keep what has come; when both are there, emit and forget."""
        met = self.met.value or Both(ctx.key)
        met.item = event.item if isinstance(event, Order) else met.item
        met.amount = event.amount if isinstance(event, Payment) else met.amount
        self.met.value = met
        ctx.timers.after(days(1), "waited")
        if met.item is not None and met.amount is not None:
            ctx.emit(met)
            self.met.clear()
            ctx.timers.delete("waited")

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """Give up waiting."""
        ctx.output(self.alone, self.met.value)
        self.met.clear()


EVENTS = [
    [Order("1", at("10:00"), "lamp"), Payment("2", at("10:05"), 30.0), Order("3", at("10:06"), "chair")],
    [Payment("1", at("10:20"), 12.5), Order("2", at("10:21"), "table")],
]


inputs = {name: Input(name, key="order", event_time="at") for name in ("orders", "payments")}
paid = read(inputs).process(PaidOrders())


def main(engine: str = "memory") -> Playback:
    """Play both inputs."""
    return play(paid, EVENTS, engine).show()


if __name__ == "__main__":
    main(*sys.argv[1:])
