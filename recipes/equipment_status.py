"""Sensor readings with the status that their machine had at that moment: a join as of the event's time.

Not the status that is known when the reading comes, but the one that was valid when it was taken. The
reading is told at once; a status that comes late corrects it, with a higher revision.
"""

from __future__ import annotations

import sys

import msgspec

from millrace import days, minutes
from millrace.joins import Match, asof_join
from millrace.playback import Playback, at, play
from millrace.topology import Input, read

TEACHES = "as-of join, versioned state, grace, corrections"


class Reading(msgspec.Struct):
    """What a sensor of a machine measured."""

    machine: str
    at: int
    celsius: float


class Status(msgspec.Struct):
    """What a machine does from now on."""

    machine: str
    at: int
    status: str


class ReadingWithStatus(msgspec.Struct):
    """A reading with the status that its machine had."""

    machine: str
    at: int
    celsius: float
    status: str | None
    revision: int


def known(reading: Reading, status: Status | None, match: Match) -> ReadingWithStatus:
    """Return the joined record."""
    now = status.status if status is not None else None
    return ReadingWithStatus(reading.machine, reading.at, reading.celsius, now, match.revision)


#: A status is valid for a day at most, and may come up to ten minutes late.
with_status = asof_join(
    left=Reading, right=Status, keep=days(1), grace=minutes(10), on_merge=known, record=ReadingWithStatus
)
inputs = {name: Input(f"plant.{name}", key="machine", event_time="at") for name in with_status.inputs}
joined = read(inputs).process(with_status)

EVENTS = [
    Status("press", at("10:00:00"), "idle"),
    Reading("press", at("10:01:00"), 21.0),
    Reading("press", at("10:03:00"), 58.0),
    Status("press", at("10:02:00"), "pressing"),  # late: the last reading was taken while pressing
    [Reading("press", at("10:04:00"), 61.0), Reading("oven", at("10:04:00"), 180.0)],
]


def main(engine: str = "memory") -> Playback:
    """Play readings and statuses."""
    return play(joined, EVENTS, engine, out_of_orderness="30 seconds").show()


if __name__ == "__main__":
    main(*sys.argv[1:])
