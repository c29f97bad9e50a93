"""Every kind of window over the same eight events, side by side.

The events are letters; a result shows a window and the letters that are in it, in order of time. Windows
are half-open: an event at the end of one is in the next.
"""

from __future__ import annotations

import sys

import msgspec

from millrace import minutes, seconds
from millrace.playback import Playback, at, play
from millrace.topology import Input, read
from millrace.windows import (
    collect,
    count_hopping,
    count_tumbling,
    global_window,
    hopping,
    lookback,
    session,
    sliding,
    tumbling,
    watermark,
    window,
)

TEACHES = "tumbling, hopping, session, sliding, look-back, count and global windows"


class Letter(msgspec.Struct):
    """An event with a name of one letter."""

    user: str
    at: int
    name: str


LETTERS = [Letter("k", at(f"10:00:{second}"), name)
           for name, second in zip("abcdefgh", ("01", "04", "08", "10", "15", "16", "31", "33"), strict=True)
]  # fmt: skip

WINDOWS = {
    "tumbling: 10 s, side by side": window(Letter, tumbling(seconds(10))).aggregate(all=collect("name")),
    "hopping: 10 s, a new one every 5 s": window(Letter, hopping(seconds(10), every=seconds(5))).aggregate(
        all=collect("name")
    ),
    "session: until 6 s pass without an event": window(Letter, session(seconds(6))).aggregate(
        all=collect("name")
    ),
    "sliding: 4 s, one for every set of events": window(Letter, sliding(seconds(4))).aggregate(
        all=collect("name")
    ),
    "look-back: at each event, the last 10 s": window(Letter, lookback(seconds(10), keep="name")).aggregate(
        all=collect("name")
    ),
    "count: every 3 events": window(Letter, count_tumbling(3, idle=minutes(5))).aggregate(
        all=collect("name")
    ),
    "count, hopping: 3 events, a new one every 2": window(
        Letter, count_hopping(3, every=2, idle=minutes(5))
    ).aggregate(all=collect("name")),
    "global: one for all time, told every 4 events": window(
        Letter, global_window(), trigger=watermark().early(count=4)
    ).aggregate(all=collect("name")),
}


letters = read(Input("letters", key="user", event_time="at"))


def main(engine: str = "memory") -> dict[str, Playback]:
    """Play the letters through each."""
    return {
        title: play(letters.process(process), [LETTERS], engine).show(f"-- {title}", inputs=False)
        for title, process in WINDOWS.items()
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
