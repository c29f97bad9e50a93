"""A watermark that waits 2 seconds, a window that is forgiving for 5 more, and a place for what is too late.

The watermark is the newest event time less 2 seconds (and a millisecond). A window of 10 seconds has its
result when the watermark reaches its end. For 5 seconds more it takes late events, and each makes a new
revision of the result. What comes still later goes to the output `late`: it is never lost.
"""

from __future__ import annotations

import sys

import msgspec

from millrace import seconds
from millrace.playback import Playback, at, play
from millrace.topology import Input, read
from millrace.windows import collect, count, tumbling, window

TEACHES = "watermark, out-of-orderness, allowed lateness, late side output"


class Click(msgspec.Struct):
    """A click of a user."""

    user: str
    at: int
    page: str


per_ten_seconds = window(Click, tumbling(seconds(10)), allowed_lateness=seconds(5), key="user").aggregate(
    clicks=count(), pages=collect("page")
)
clicks = read(Input("clicks", key="user", event_time="at")).process(per_ten_seconds)

CLICKS = [
    Click("ann", at("10:00:04"), "a"),
    Click("ann", at("10:00:11"), "b"),
    Click("ann", at("10:00:09.500"), "c"),  # out of order, within the bound: the watermark is at 8.999
    Click("ann", at("10:00:13"), "d"),  # the watermark comes to 10.999: the first window has its result
    Click("ann", at("10:00:07"), "e"),  # late, but the window is kept until 14.999: a new revision
    Click("ann", at("10:00:18"), "f"),  # the watermark comes to 15.999: the first window is gone
    Click("ann", at("10:00:08"), "g"),  # too late
]


def main(engine: str = "memory") -> Playback:
    """Play the clicks, one a batch."""
    return play(clicks, CLICKS, engine, out_of_orderness="2 seconds").show()


if __name__ == "__main__":
    main(*sys.argv[1:])
