"""One definition of visits, over a stream and over a table of the same clicks: the same rows.

The process does not know what it reads. Over a stream, visits come as the watermark passes them; over a
bounded DataFrame all come at once, with no state store and no checkpoint. So history is filled in by the code
that runs live. The rows are the same as long as no event of the stream is late.
"""

from __future__ import annotations

import msgspec

from millrace import minutes
from millrace.windows import collect, count, session, window
from millrace_apps.recipes.kit import Results, Run, at, script

TEACHES = "bounded and unbounded data, batch equals stream"


class Click(msgspec.Struct):
    """A click on a page."""

    user: str
    at: int
    page: str


#: A visit ends when its user has clicked nothing for 30 minutes.
visits = window(Click, session(minutes(30)), key="user").aggregate(clicks=count(), pages=collect("page"))

CLICKS = [
    [Click("ann", at("10:00"), "home"), Click("bob", at("10:02"), "help")],
    [Click("ann", at("10:06"), "cart"), Click("ann", at("10:04"), "shop")],  # out of order
    [Click("bob", at("10:50"), "home")],
    [Click("ann", at("11:30"), "home")],
]


def main(run: Run) -> dict[str, Results]:
    """Play the clicks as a stream, then as a table, and compare."""

    def play(title: str, *, bounded: bool) -> Results:
        clicks = run.keyed(CLICKS, by="user", out_of_orderness=minutes(5), bounded=bounded)
        return clicks.process(visits).show(title)

    stream = play("-- unbounded: a stream", bounded=False)
    table = play("-- bounded: a table", bounded=True)
    same = sorted(map(str, stream["main"])) == sorted(map(str, table["main"]))
    run.say("the same rows" if same else "other rows")
    return {"stream": stream, "table": table}


if __name__ == "__main__":
    script(__file__)
