"""Limits for payments, set and changed while the query runs: broadcast state, the same for all keys.

Rules come as control events, go to every key, and hold from the batch that brings them, also after a restart.
"""

from __future__ import annotations

import sys
from typing import ClassVar

import msgspec

from millrace import BroadcastContext, Context, KeyedProcess, arrival, broadcast_state
from millrace.playback import Control, Playback, Restart, at, play
from millrace.topology import Input, read

TEACHES = "broadcast (global) state, control events"


class Payment(msgspec.Struct):
    """A payment by card."""

    card: str
    at: int
    amount: float


class Limit(msgspec.Struct):
    """A rule: payments above are told; ``None`` takes the rule back."""

    name: str
    above: float | None


class Alarm(msgspec.Struct):
    """A payment above a limit."""

    rule: str
    card: str
    amount: float


class Limits(KeyedProcess[Payment, Alarm]):
    """Compares payments with the rules of the moment."""

    order = arrival(commutes=True)
    control_type: ClassVar = Limit
    limits = broadcast_state(str, float)

    def process(self, event: Payment, ctx: Context) -> None:
        """Compare a payment with every rule."""
        for name, above in self.limits.items():
            if event.amount > above:
                ctx.emit(Alarm(name, ctx.key, event.amount))

    def process_broadcast(self, control: Limit, ctx: BroadcastContext) -> None:
        """Put a rule in, or take it out: the only place where that can be done."""
        if control.above is None:
            self.limits.remove(control.name)
        else:
            self.limits.put(control.name, control.above)


EVENTS = [
    [Payment("c-1", at("10:00:00"), 500), Payment("c-2", at("10:00:01"), 80)],
    Control(Limit("large", 100)),
    [Payment("c-1", at("10:00:02"), 500), Payment("c-2", at("10:00:03"), 80)],
    Control(Limit("large", 50)),
    Restart(),
    [Payment("c-1", at("10:00:04"), 500), Payment("c-2", at("10:00:05"), 80)],
    Control(Limit("large", None)),
    [Payment("c-1", at("10:00:06"), 500)],
]


alarms = read(Input("payments", key="card", event_time="at"), control="limits").process(Limits())


def main(engine: str = "memory") -> Playback:
    """Play payments and rules."""
    return play(alarms, EVENTS, engine).show()


if __name__ == "__main__":
    main(*sys.argv[1:])
