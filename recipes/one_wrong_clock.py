"""One device's clock is half an hour ahead: whose events are late, and what helps?

Three sensors report once in five minutes, and the hottest value of ten minutes is told. If the watermark
believes every event, the sensor that is ahead takes everybody's time with it: what the others say is late,
and lost to their results. If an event counts as no later than it was received, only the wrong one is wrong.
"""

from __future__ import annotations

import sys

import msgspec

from millrace import minutes
from millrace.playback import Playback, at, play
from millrace.topology import Input, read
from millrace.windows import max_of, tumbling, window

TEACHES = "watermark, the time of arrival, a clock that is ahead"


class Reading(msgspec.Struct):
    """A temperature, with the sensor's own time and when the gateway received it."""

    sensor: str
    at: int
    received: int
    celsius: float


hottest = window(Reading, tumbling(minutes(10)), key="sensor").aggregate(hottest=max_of("celsius"))
sensors = read(Input("readings", key="sensor", event_time="at")).process(hottest)

#: How far the sensors' clocks are ahead, minutes.
AHEAD = {"hall": 0, "oven": 0, "roof": 30}


def readings(minute: int) -> list[Reading]:
    """Return what the sensors send in a minute."""
    received = at("10:00") + minutes(minute)
    return [
        Reading(sensor, received + minutes(ahead), received, 20.0 + 5 * n + minute / 5)
        for n, (sensor, ahead) in enumerate(AHEAD.items())
    ]


READINGS = [readings(minute) for minute in range(0, 30, 5)]


def main(engine: str = "memory") -> dict[str, Playback]:
    """Play the readings, at first believing every clock."""
    believed = play(sensors, READINGS, engine, out_of_orderness="1 minute")
    held = play(sensors, READINGS, engine, out_of_orderness="1 minute", arrived_at="received")
    return {
        "believed": believed.show("-- every clock is believed", inputs=False),
        "held": held.show("-- no event is later than it was received", inputs=False),
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
