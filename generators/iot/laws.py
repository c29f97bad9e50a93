"""Random laws of rare events, each drawn by name and number, and the shifts of a plant.

A rare happening draws its numbers from what it is (purpose, entity, how many before), not from a shared
sequence: what happens to one machine changes no other, and no scenario changes another.
"""

from __future__ import annotations

from hashlib import blake2b
from math import exp, log
from typing import Final

from millrace_apps.generators.engine.randomness import normal

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
#: 1970-01-01 was a Thursday, day 3 of a week that begins on Monday.
_FIRST_WEEKDAY: Final = 3


class Draws:
    """Uniform numbers by name: equal names give equal numbers, in any order of asking.

    Args:
        seed: The run's seed.

    >>> draws = Draws(7)
    >>> draws.uniform("life", "p01-l01-m001", 0) == Draws(7).uniform("life", "p01-l01-m001", 0)
    True
    """

    def __init__(self, seed: int) -> None:
        self._key = f"iot:{seed}:"

    def uniform(self, purpose: str, entity: str | int, number: int) -> float:
        """Return a number in (0, 1) that depends on the arguments and the seed alone."""
        text = f"{self._key}{purpose}:{entity}:{number}".encode()
        whole = int.from_bytes(blake2b(text, digest_size=7).digest(), "big") >> 4
        return (whole + 0.5) / 4_503_599_627_370_496  # 2**52


def exponential(uniform: float, mean: float) -> float:
    """Return a value of the exponential law with this mean."""
    return -mean * log(1.0 - uniform)


def lognormal(uniform: float, median: float, sigma: float) -> float:
    """Return a value of the lognormal law; ``sigma`` is the deviation of the logarithm."""
    return median * exp(sigma * normal(uniform))


def weibull_life(uniform: float, scale: float, shape: float, age: float = 0.0) -> float:
    """Return the age at which a component's degradation begins, given that it has come to ``age``.

    Weibull law with hazard ``shape/scale · (t/scale)^(shape - 1)``; see IEC 61649.

    >>> weibull_life(0.5, 1000, 1.0) < weibull_life(0.5, 1000, 1.0, age=500)
    True
    """
    return float(scale * ((age / scale) ** shape - log(1.0 - uniform)) ** (1.0 / shape))


class Shifts:
    """When a plant works: all the time, 06-22 every day, or 06-22 from Monday to Friday, by its own clock.

    Args:
        pattern: 0, 1 or 2 in this order.
        offset_ms: The plant's clock less UTC, ms; without daylight saving time.

    >>> Shifts(1, 0).end_ms(7 * HOUR_MS) == 22 * HOUR_MS
    True
    """

    __slots__ = ("offset_ms", "pattern")

    def __init__(self, pattern: int, offset_ms: int) -> None:
        self.pattern = pattern
        self.offset_ms = offset_ms

    def works(self, at_ms: int) -> bool:
        """Return whether the plant works at this time (ms since the epoch, UTC)."""
        if self.pattern == 0:
            return True
        day, in_day = divmod(at_ms + self.offset_ms, DAY_MS)
        if self.pattern == 2 and (day + _FIRST_WEEKDAY) % 7 >= 5:
            return False
        return 6 * HOUR_MS <= in_day < 22 * HOUR_MS

    def end_ms(self, at_ms: int) -> int | None:
        """Return when the working time around ``at_ms`` ends, ms; None for never."""
        if self.pattern == 0:
            return None
        day = (at_ms + self.offset_ms) // DAY_MS
        return day * DAY_MS + 22 * HOUR_MS - self.offset_ms

    def next_ms(self, at_ms: int) -> int:
        """Return the first working time at or after ``at_ms``, ms."""
        if self.works(at_ms):
            return at_ms
        day, in_day = divmod(at_ms + self.offset_ms, DAY_MS)
        if in_day >= 6 * HOUR_MS:
            day += 1
        while self.pattern == 2 and (day + _FIRST_WEEKDAY) % 7 >= 5:
            day += 1
        return day * DAY_MS + 6 * HOUR_MS - self.offset_ms
