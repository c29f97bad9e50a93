"""Traffic of web sites by the minute: requests, visitors of the last five minutes, and an alarm at a rush.

A map in state keeps each address for five minutes: what is in it are the visitors. A timer tells the minute
and sets itself for the next one, until nobody is left. Three times the usual requests are a rush.
"""

from __future__ import annotations

import sys

import msgspec

from millrace import Context, KeyedProcess, Timer, map_state, minutes, seconds, side_output, value_state
from millrace.playback import Playback, at, play
from millrace.topology import Input, read

TEACHES = "map state with a life per entry, a timer that repeats, side output"


class Request(msgspec.Struct):
    """A request of an address to a site."""

    site: str
    at: int
    address: str


class Minute(msgspec.Struct):
    """A site's traffic."""

    site: str
    end: int
    requests: int
    visitors: int


class Monitor(KeyedProcess[Request, Minute]):
    """Counts requests by minute and visitors by the last five."""

    order = "event_time"
    seen = map_state(str, int, ttl=minutes(5))
    requests = value_state(int, default=0)
    usual = value_state(float, ttl=minutes(2))
    rush = side_output(Minute)

    def process(self, event: Request, ctx: Context) -> None:
        """Count a request; the first one starts the timer."""
        self.seen.put(event.address, ctx.event_time)
        self.requests.value += 1
        ctx.timers.bring_forward(ctx.event_time // minutes(1) * minutes(1) + minutes(1) - 1, "minute")

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """Tell the minute, and begin the next one, unless nobody is left."""
        minute = Minute(ctx.key, timer.at + 1, self.requests.value, len(self.seen))
        ctx.emit(minute)
        usual = self.usual.value
        if usual is not None and minute.requests > 3 * usual:
            ctx.output(self.rush, minute)
        self.usual.value = minute.requests if usual is None else 0.7 * usual + 0.3 * minute.requests
        self.requests.clear()
        if minute.visitors:
            ctx.timers.after(minutes(1), "minute")

    def last_due(self, latest: int) -> int:
        """At the end of the input, the minutes go on until nobody is left."""
        return latest + minutes(5)


REQUESTS = [
    [Request("news", at("10:00:10"), "ann"), Request("news", at("10:00:14"), "bob")],
    [Request("news", at("10:00:59.999"), "ann"), Request("shop", at("10:01:00"), "cem")],
    [Request("news", at("10:02:05") + seconds(2 * n), address) for n, address in enumerate("abcdefghij")],
    [Request("news", at("10:03:30"), "bob")],
]


sites = read(Input("requests", key="site", event_time="at")).process(Monitor())


def main(engine: str = "memory") -> Playback:
    """Play the requests."""
    return play(sites, REQUESTS, engine).show()


if __name__ == "__main__":
    main(*sys.argv[1:])
