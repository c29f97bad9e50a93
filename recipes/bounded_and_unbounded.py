"""One definition of visits, over a stream and over a table of the same clicks: the same rows.

The process does not know what it reads. Over a stream, visits come as the watermark passes them; over a
bounded DataFrame all come at once, with no state store and no checkpoint. So history is filled in by the code
that runs live. The rows are the same as long as no event of the stream is late.
"""

from __future__ import annotations

import sys

import msgspec

from millrace import minutes
from millrace.playback import Playback, at, play
from millrace.topology import Input, read
from millrace.windows import collect, count, session, window

TEACHES = "bounded and unbounded data, batch equals stream"


class Click(msgspec.Struct):
    """A click on a page."""

    user: str
    at: int
    page: str


#: A visit ends when its user has clicked nothing for 30 minutes.
visit = window(Click, session(minutes(30)), key="user").aggregate(clicks=count(), pages=collect("page"))
visits = read(Input("clicks", key="user", event_time="at")).process(visit)

CLICKS = [
    [Click("ann", at("10:00"), "home"), Click("bob", at("10:02"), "help")],
    [Click("ann", at("10:06"), "cart"), Click("ann", at("10:04"), "shop")],  # out of order
    [Click("bob", at("10:50"), "home")],
    [Click("ann", at("11:30"), "home")],
]


def main(engine: str = "memory") -> dict[str, Playback]:
    """Play the clicks as a stream, then as a table, and compare."""
    stream = play(visits, CLICKS, engine, out_of_orderness="5 minutes").show("-- unbounded: a stream")
    table = play(visits, CLICKS, engine, bounded=True).show("-- bounded: a table")
    same = sorted(map(str, stream.values())) == sorted(map(str, table.values()))
    print("the same rows" if same else "other rows")
    return {"stream": stream, "table": table}


if __name__ == "__main__":
    main(*sys.argv[1:])
