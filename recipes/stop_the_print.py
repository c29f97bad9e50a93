"""A 3D printer's bed gets too hot: the print is stopped before it does, not when it has.

Bed temperatures come once a minute. Level and trend are carried on, with an interval: when will 75 degrees be
crossed, and when at the earliest? If that is less than five minutes away the print is to be stopped, and that
is told once. What is known of a printer ends when nothing has been heard of it for an hour.
"""

from __future__ import annotations

import sys

import msgspec

from millrace import Context, KeyedProcess, hours, minutes, value_state
from millrace.operators import limit_forecast
from millrace.operators.crossing import CrossingState
from millrace.playback import Playback, at, play
from millrace.topology import Input, read

TEACHES = "a detector in a process of one's own, forecasts with an interval"

LIMIT = 75.0
FORECAST = limit_forecast(every=minutes(1), ahead=minutes(30), alpha=0.4, beta=0.3, learn=5)


class Reading(msgspec.Struct):
    """The temperature of a printer's bed."""

    printer: str
    at: int
    celsius: float


class StopPrint(msgspec.Struct):
    """A print that is to be stopped, and in how many minutes the limit would be crossed."""

    printer: str
    minutes: float
    earliest: float


class Bed(KeyedProcess[Reading, StopPrint]):
    """Looks ahead from each reading."""

    order = "event_time"
    ahead = value_state(CrossingState, ttl=hours(1))
    told = value_state(bool, ttl=hours(1))

    def process(self, event: Reading, ctx: Context) -> None:
        """Take a reading, and say if the print must be stopped."""
        state = self.ahead.value or FORECAST.new()
        found = FORECAST.add(state, event.celsius, ctx.event_time, above=LIMIT)
        self.ahead.value = state
        if found is not None and found.earliest_ms < minutes(5) and not self.told.value:
            self.told.value = True
            ends = found.in_ms / minutes(1), found.earliest_ms / minutes(1)
            ctx.emit(StopPrint(ctx.key, round(ends[0], 1), round(ends[1], 1)))


HOT = [60.1, 59.9, 60.2, 60.0, 60.4, 61.3, 62.6, 63.8, 65.1, 66.3, 67.8, 69.0]
COOL = [60.0, 60.3, 61.0, 62.2, 63.1, 63.6, 63.9, 63.8, 64.0, 63.9, 64.1, 64.0]
READINGS = [
    [Reading("mark", at(f"10:{m:02}:00"), HOT[m]), Reading("anne", at(f"10:{m:02}:05"), COOL[m])]
    for m in range(len(HOT))
]


beds = read(Input("readings", key="printer", event_time="at")).process(Bed())


def main(engine: str = "memory") -> Playback:
    """Play the readings."""
    return play(beds, READINGS, engine, out_of_orderness="10 seconds").show()


if __name__ == "__main__":
    main(*sys.argv[1:])
