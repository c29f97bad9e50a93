"""A series of hours, asked three things: where does it go, what is to come, and what was unusual?

A pump's power goes up by a kilowatt an hour, and is higher in two hours of every four. At five in the morning
of the second day it is far too high, once. A forecast knows level, trend and season. Behind it stands once a
process that tells every sixth hour where the series goes, and once an operator that scores what the forecast
did not expect: of a series that goes up, every value by itself would be unusual.
"""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from millrace import Context, KeyedProcess, days, hours
from millrace.operators import anomaly_scores, holt_winters, novelty
from millrace.playback import Playback, at, play
from millrace.topology import Input, read

TEACHES = "trend, anomaly and forecast of a series, an operator behind another one"


class Hour(msgspec.Struct):
    """What a pump took in an hour."""

    pump: str
    at: int
    kw: float


class Outlook(msgspec.Struct):
    """By how much a pump's power goes up in an hour, and what is expected of the next four."""

    pump: str
    trend: float
    ahead: list[float]


forecast = holt_winters(
    Hour, "kw", every=hours(1), season=4, ahead=4, alpha=0.1, gamma=0.05, idle=days(2), key="pump"
)
#: What it says, a record with fields of its own.
Expected: Any = forecast.output_type
unusual = anomaly_scores(
    Expected, "error", novelty(learn=12, resolution=0.5), idle=days(2), least=0.99, key="pump"
)


class EverySixHours(KeyedProcess[Expected, Outlook]):
    """Tells what the forecast says, but not every hour."""

    order = "event_time"

    def process(self, event: Expected, ctx: Context) -> None:
        """Tell at 00:00, 06:00, 12:00 and 18:00."""
        if ctx.event_time % hours(6) == 0:
            ctx.emit(Outlook(ctx.key, round(event.trend, 2), [round(kw, 1) for kw in event.ahead]))


WAVE = (0.0, 6.0, 6.0, 0.0)
HOURS = [
    Hour("p-1", at("00:00") + hours(h), 50.0 + h + WAVE[h % 4] + (h * 7 % 5 - 2) * 0.2 + (h == 29) * 25.0)
    for h in range(36)
]


expected = read(Input("power", key="pump", event_time="at")).process(forecast).key_by("pump")


def main(engine: str = "memory") -> dict[str, Playback]:
    """Play the hours through the forecast, and on."""
    ahead, scored = (play(expected.process(one), HOURS, engine) for one in (EverySixHours(), unusual))
    ahead.show("-- where it goes, and what is to come", inputs=False)
    return {"ahead": ahead, "unusual": scored.show("-- what was unusual", inputs=False)}


if __name__ == "__main__":
    main(*sys.argv[1:])
