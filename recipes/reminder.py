"""A reminder ten minutes after a cart was filled, on three clocks: event, ingestion and processing time.

A phone fills carts in a tunnel and sends them when it is out again: what happened at 10:00 arrives at 10:30.
Ten minutes after it happened (event time), after it arrived (ingestion time), or after it was handled
(processing time) are three answers. A replay gives the first two again; the third hangs on the clock on the
wall, which comes as ticks, so that at least the ticks can be replayed.
"""

from __future__ import annotations

import sys

import msgspec

from millrace import Context, KeyedProcess, Timer, arrival, minutes
from millrace.playback import Playback, Tick, at, play
from millrace.topology import Input, read

TEACHES = "the three clocks, timers, ticks"


class Cart(msgspec.Struct):
    """A user has filled a cart."""

    user: str
    at: int
    arrived: int


class Reminder(msgspec.Struct):
    """A user is to be reminded."""

    user: str
    due: int


class Remind(KeyedProcess[Cart, Reminder]):
    """Reminds on the clock that is the event time of the stream."""

    order = arrival(in_order_per_key=True)

    def process(self, event: Cart, ctx: Context) -> None:
        """Set the timer; another cart moves it."""
        ctx.timers.after(minutes(10), "remind")

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """Remind."""
        ctx.emit(Reminder(ctx.key, timer.at))


class RemindByTheWall(Remind):
    """Reminds on the clock on the wall."""

    processing_time = True

    def process(self, event: Cart, ctx: Context) -> None:
        """Set the timer on the other clock."""
        ctx.processing_timers.after(minutes(10), "remind")


CARTS = [
    Cart("ann", at("10:00"), arrived=at("10:30")),
    Cart("bob", at("10:29"), arrived=at("10:31")),
    Cart("cem", at("10:42"), arrived=at("10:43")),
]


by_event_time = read(Input("carts", key="user", event_time="at")).process(Remind())
by_arrival = read(Input("carts", key="user", event_time="arrived")).process(Remind())
by_the_wall = read(Input("carts", key="user", event_time="at"), control="control").process(RemindByTheWall())


def main(engine: str = "memory") -> dict[str, Playback]:
    """Play the carts by each clock."""
    ticks = [Tick(at("10:32")), CARTS[:2], Tick(at("10:40")), Tick(at("10:42")), CARTS[2], Tick(at("10:55"))]
    return {
        "event": play(by_event_time, CARTS, engine).show("-- ten minutes after it happened"),
        "ingestion": play(by_arrival, CARTS, engine).show("-- ten minutes after it arrived"),
        "processing": play(by_the_wall, ticks, engine).show("-- ten minutes after it was handled"),
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
