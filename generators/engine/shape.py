"""Rate over time: how a stream swells and ebbs while its bytes stay the same.

A shape multiplies the rate by a factor that changes with time. Only the moments of sending follow it: the
events and their order are those of a constant rate. Time is the stream's own: at ``--speed 60`` an hour of
a shape passes in a minute.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Final

from millrace.errors import UserError
from millrace_apps.generators.engine.terms import Term, parse_term

_DAY_S: Final = 86_400.0
_HOUR_S: Final = 3_600.0
#: 1970-01-05 was the first Monday of the epoch.
_MONDAY_S: Final = 4 * _DAY_S

_SHAPES: Final = {
    "constant": (),
    "ramp": ("start", "end", "over"),
    "burst": ("every", "length", "times"),
    "sine": ("period", "depth"),
    "day": ("low", "peak"),
    "week": ("low", "peak", "weekend"),
}


class Shape(ABC):
    """A factor of the rate over time."""

    @abstractmethod
    def progress(self, seconds: float) -> float:
        """Return the integral of the factor: how much of a constant stream is sent by then, seconds."""

    def when(self, progress: float) -> float:
        """Return the time at which so much is sent, seconds: the inverse of :meth:`progress`."""
        low, high = 0.0, max(progress, 1.0)
        while self.progress(high) < progress:
            low, high = high, high * 2
        # To a microsecond, or to what a float can tell apart.
        while high - low > 1e-6 + 1e-12 * high:
            middle = (low + high) / 2
            if self.progress(middle) < progress:
                low = middle
            else:
                high = middle
        return high


class Constant(Shape):
    """The rate as it is."""

    def progress(self, seconds: float) -> float:
        """Return the time itself."""
        return seconds

    def when(self, progress: float) -> float:
        """Return the progress itself."""
        return progress


class Ramp(Shape):
    """A straight line from one factor to another, which then stays."""

    def __init__(self, start: float, end: float, over_s: float) -> None:
        self._start, self._end, self._over_s = start, end, over_s

    def progress(self, seconds: float) -> float:
        """Return the area under the ramp."""
        inside = min(seconds, self._over_s)
        area = inside * (self._start + (self._end - self._start) * inside / self._over_s / 2)
        return area + (seconds - inside) * self._end


class Burst(Shape):
    """``times`` the rate for ``length_s`` at the beginning of every ``every_s``."""

    def __init__(self, every_s: float, length_s: float, times: float) -> None:
        self._every_s, self._length_s, self._times = every_s, length_s, times

    def progress(self, seconds: float) -> float:
        """Return the time, with that inside bursts counted more than once."""
        periods, rest = divmod(seconds, self._every_s)
        bursting = periods * self._length_s + min(rest, self._length_s)
        return seconds + bursting * (self._times - 1)


class Sine(Shape):
    """A wave around the rate: up first, ``depth`` of it, 1 once a period."""

    def __init__(self, period_s: float, depth: float) -> None:
        self._period_s, self._depth = period_s, depth

    def progress(self, seconds: float) -> float:
        """Return the area under the wave."""
        turn = 2 * math.pi * seconds / self._period_s
        return seconds + self._depth * self._period_s / (2 * math.pi) * (1 - math.cos(turn))


class Week(Shape):
    """A wave a day with its highest point at an hour, on Saturday and Sunday times a factor; 1 on average.

    Args:
        start_s: Time of the stream's start, seconds since the epoch, UTC.
        low: Lowest factor of a day, as a share of its highest.
        peak: Hour of the highest, UTC.
        weekend: Factor of Saturday and Sunday.
    """

    def __init__(self, start_s: float, low: float, peak: float, weekend: float) -> None:
        self._start_s, self._peak_s, self._weekend = start_s, peak * _HOUR_S, weekend
        self._depth = (1 - low) / (1 + low)
        self._scale = 7 / (5 + 2 * weekend)

    def progress(self, seconds: float) -> float:
        """Return the area under the days since the start."""
        return self._area(self._start_s + seconds) - self._area(self._start_s)

    def _area(self, at_s: float) -> float:
        days, rest = divmod(at_s - _MONDAY_S, _DAY_S)
        weeks, weekday = divmod(days, 7)
        before = min(weekday, 5) + max(weekday - 5, 0) * self._weekend
        today = 1.0 if weekday < 5 else self._weekend
        # A whole day has the area of a constant one, wherever its peak is.
        swing = math.sin(2 * math.pi * (rest - self._peak_s) / _DAY_S)
        swing += math.sin(2 * math.pi * self._peak_s / _DAY_S)
        area = rest + self._depth * _DAY_S / (2 * math.pi) * swing
        return self._scale * ((weeks * (5 + 2 * self._weekend) + before) * _DAY_S + today * area)


def parse_shape(text: str, start_ms: int) -> Shape:
    """Return the shape that a text writes.

    Args:
        text: ``constant``, ``ramp(start=0.1, end=1, over=10m)``, ``burst(every=1m, length=5s, times=10)``,
            ``sine(period=1h, depth=0.5)``, ``day(low=0.2, peak=18)`` or
            ``week(low=0.2, peak=18, weekend=0.6)``.
        start_ms: Where the stream starts, ms since the epoch, UTC.

    Raises:
        UserError: If it is no such shape.

    >>> parse_shape("ramp(start=0, end=2, over=10s)", 0).progress(10.0)
    10.0
    """
    term = parse_term(text, _SHAPES, "--shape")
    if term.name == "constant":
        return Constant()
    if term.name == "ramp":
        start = term.number("start", 0.1, low=0, high=1000)
        end = term.number("end", 1.0, low=0.001, high=1000)
        return Ramp(start, end, term.duration_ms("over", 600_000) / 1000)
    if term.name == "burst":
        return _burst(term)
    if term.name == "sine":
        depth = term.number("depth", 0.5, low=0, high=1)
        return Sine(term.duration_ms("period", 3_600_000) / 1000, depth)
    weekend = term.number("weekend", 0.6, low=0, high=10) if term.name == "week" else 1.0
    low, peak = term.number("low", 0.2, low=0, high=1), term.number("peak", 18, low=0, high=24)
    return Week(start_ms / 1000, low, peak, weekend)


def _burst(term: Term) -> Burst:
    every, length = term.duration_ms("every", 60_000), term.duration_ms("length", 5_000)
    if length >= every:
        raise UserError(f"length of burst(…) is less than every, got {length:g} and {every:g} ms")
    return Burst(every / 1000, length / 1000, term.number("times", 10, low=1, high=10_000))
