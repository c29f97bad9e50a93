"""The mean price of every three trades of a stock: windows that are full when they have enough events.

A window by count has no end in time. Its trades are taken in order of event time, and the two that are
left at the end make no window: only full windows speak.
"""

from __future__ import annotations

import sys

import msgspec

from millrace import days
from millrace.playback import Playback, at, play
from millrace.topology import Input, read
from millrace.windows import count_tumbling, last, mean, window

TEACHES = "count windows, aggregates"


class Trade(msgspec.Struct):
    """A trade at an exchange."""

    symbol: str
    at: int
    price: float


#: Three trades each; a symbol that is not traded for a day is forgotten.
every_three = window(Trade, count_tumbling(3, idle=days(1)), key="symbol").aggregate(
    average=mean("price"), close=last("price")
)
trades = read(Input("trades", key="symbol", event_time="at")).process(every_three)

TRADES = [
    [Trade("MILL", at("10:00:00"), 100.0), Trade("RACE", at("10:00:00"), 8.0)],
    [Trade("MILL", at("10:00:02"), 104.0), Trade("MILL", at("10:00:01"), 102.0)],
    [Trade("RACE", at("10:00:03"), 10.0), Trade("MILL", at("10:00:04"), 110.0)],
    [Trade("RACE", at("10:00:05"), 12.0), Trade("MILL", at("10:00:09"), 120.0)],
]


def main(engine: str = "memory") -> Playback:
    """Play the trades, which come up to two seconds out of order."""
    return play(trades, TRADES, engine, out_of_orderness="2 seconds").show()


if __name__ == "__main__":
    main(*sys.argv[1:])
