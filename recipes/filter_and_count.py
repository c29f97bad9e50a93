"""A filter needs no state, a count does: the same requests through both.

Whether a request failed can be told from the request alone. How many failed can only be told by somebody
who remembers: the count goes on after the restart where it was, and the filter has nothing to go on from.
"""

from __future__ import annotations

import sys

import msgspec

from millrace import Context, KeyedProcess, arrival, days, value_state
from millrace.playback import Playback, Restart, at, play
from millrace.topology import Input, read

TEACHES = "stateless and stateful processing"


class Request(msgspec.Struct):
    """A request to a web page."""

    page: str
    at: int
    status: int


class Count(msgspec.Struct):
    """How many requests of a page have failed."""

    page: str
    failed: int


class Failed(KeyedProcess[Request, Request]):
    """Lets failed requests through; it declares no state and keeps nothing."""

    order = arrival(commutes=True)

    def process(self, event: Request, ctx: Context) -> None:
        """Look at one request."""
        if event.status >= 500:
            ctx.emit(event)


class FailedCount(KeyedProcess[Request, Count]):
    """Counts the failed requests of each page."""

    order = arrival(commutes=True)
    failed = value_state(int, default=0, ttl=days(1))

    def process(self, event: Request, ctx: Context) -> None:
        """Count one request if it failed."""
        if event.status >= 500:
            self.failed.value += 1
            ctx.emit(Count(ctx.key, self.failed.value))


REQUESTS = [
    [Request("cart", at("10:00:00"), 200), Request("cart", at("10:00:01"), 503)],
    [Request("home", at("10:00:02"), 500), Request("cart", at("10:00:03"), 500)],
    Restart(),
    [Request("home", at("10:00:04"), 200), Request("cart", at("10:00:05"), 502)],
]


requests = read(Input("requests", key="page", event_time="at"))


def main(engine: str = "memory") -> dict[str, Playback]:
    """Play the requests twice."""
    filtered, counted = requests.process(Failed()), requests.process(FailedCount())
    return {
        "filter": play(filtered, REQUESTS, engine).show("-- stateless: the failed requests"),
        "count": play(counted, REQUESTS, engine).show("-- stateful: how many have failed"),
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
