"""A sensor's temperature rises by more than 5 degrees within 30 seconds: the reading before must be known.

Readings come up to 5 seconds out of order. The process declares `order = "event_time"`: a reading waits
until the watermark has passed it, so that "the reading before" is the one before in time. The memory of a
reading ends after 30 seconds: a rise over a longer silence is no spike.
"""

from __future__ import annotations

import sys

import msgspec

from millrace import Context, KeyedProcess, seconds, value_state
from millrace.playback import Playback, at, play
from millrace.topology import Input, read

TEACHES = "order of event time, time to live as a rule"


class Reading(msgspec.Struct):
    """What a sensor measured."""

    sensor: str
    at: int
    celsius: float


class Spike(msgspec.Struct):
    """A rise that is too fast."""

    sensor: str
    before: float
    after: float


class Spikes(KeyedProcess[Reading, Spike]):
    """Compares each reading with the one before."""

    order = "event_time"
    before = value_state(float, ttl=seconds(30))

    def process(self, event: Reading, ctx: Context) -> None:
        """Compare, and remember."""
        before = self.before.value  # None: there was none in the last 30 seconds
        if before is not None and event.celsius - before > 5:
            ctx.emit(Spike(ctx.key, before, event.celsius))
        self.before.value = event.celsius


READINGS = [
    [Reading("oven", at("10:00:00"), 20.0), Reading("hall", at("10:00:02"), 19.0)],
    # Out of order: by arrival, 24 to 30 would be a spike; by event time it is 20, 24, 27, 30.
    [Reading("oven", at("10:00:10"), 24.0), Reading("oven", at("10:00:20"), 30.0)],
    [Reading("oven", at("10:00:16"), 27.0), Reading("hall", at("10:00:21"), 25.5)],
    # Six degrees more, and at once; then ten degrees more, after a long silence.
    [Reading("oven", at("10:00:30"), 36.0), Reading("hall", at("10:01:10"), 35.5)],
]


spikes = read(Input("readings", key="sensor", event_time="at")).process(Spikes())


def main(engine: str = "memory") -> Playback:
    """Play the readings."""
    return play(spikes, READINGS, engine, out_of_orderness="5 seconds").show()


if __name__ == "__main__":
    main(*sys.argv[1:])
