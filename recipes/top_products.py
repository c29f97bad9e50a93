"""The ten products that sold best in each hour: counted per product, ranked per hour by a timer.

Two processes in a chain, one query: a window counts each product's pieces in each hour; its results get
another key, the hour, under which they wait for each other, until a timer at the end of the hour ranks them.
"""

from __future__ import annotations

import sys

import msgspec

from millrace import Context, KeyedProcess, Timer, arrival, hours, map_state
from millrace.playback import Playback, at, play
from millrace.topology import Input, read
from millrace.windows import sum_of, tumbling, window

TEACHES = "a chain by another key, timers, map state"


class Sale(msgspec.Struct):
    """Pieces of a product that were sold."""

    product: str
    at: int
    pieces: int


class Sold(msgspec.Struct):
    """A result of the window: what was sold in an hour."""

    product: str
    window_start_ms: int
    window_end_ms: int
    pieces: int


class Rank(msgspec.Struct):
    """A product's place in an hour."""

    hour: int
    place: int
    product: str
    pieces: int


class TopTen(KeyedProcess[Sold, Rank]):
    """Ranks the products of an hour when it is over."""

    order = arrival(commutes=True)
    pieces = map_state(str, int)

    def process(self, event: Sold, ctx: Context) -> None:
        """Wait for the other products of the hour."""
        self.pieces.put(event.product, event.pieces)
        ctx.timers.at(event.window_end_ms, "rank")

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """Rank, and forget the hour."""
        best = sorted(self.pieces.items(), key=lambda sold: (-sold[1], sold[0]))
        for place, (product, pieces) in enumerate(best[:10], start=1):
            ctx.emit(Rank(int(ctx.key), place, product, pieces))
        self.pieces.clear()


NAMES = ["ball", "bike", "book", "bulb", "cake", "chair", "clock", "jam", "lamp", "pen", "rug", "tea"]
SALES = [
    [Sale(product, at(f"{hour}:{10 + n + 20 * half}"), 1 + n * hour % 13 + half)
     for half in (0, 1) for n, product in enumerate(NAMES)]
    for hour in (10, 11)
]  # fmt: skip

per_hour = window(Sale, tumbling(hours(1)), key="product").aggregate(pieces=sum_of("pieces"))
sales = read(Input("sales", key="product", event_time="at")).process(per_hour)
best = sales.key_by("window_start_ms").process(TopTen())


def main(engine: str = "memory") -> Playback:
    """Play the sales of two hours."""
    return play(best, SALES, engine).show("-- of 48 sales", inputs=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
