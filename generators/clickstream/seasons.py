"""Begins of visits: a Poisson process whose rate follows the hour and the weekday."""

from __future__ import annotations

import math
import random
from typing import Final

_HOUR_MS: Final = 3_600_000
_RUSH_STEP_MS: Final = 2_000
#: 1970-01-01 was a Thursday.
_EPOCH_WEEKDAY: Final = 3

#: Activity by hour of the day, UTC, and by weekday from Monday, relative to the mean: shares of the clicks
#: in the example data of bol.com (github.com/bolcom/serenade, Apache-2.0; June 2020).
HOURS: Final = (
    *(0.15, 0.06, 0.05, 0.06, 0.14, 0.33, 0.65, 0.95, 1.22, 1.31, 1.37, 1.58),
    *(1.48, 1.46, 1.51, 1.38, 1.31, 1.61, 1.83, 1.94, 1.66, 1.06, 0.57, 0.31),
)
WEEKDAYS: Final = (1.23, 0.97, 0.97, 0.94, 0.83, 0.81, 1.25)
_MEAN: Final = sum(HOURS) * sum(WEEKDAYS) / (24 * 7)


def activity(at_ms: int, season: float) -> float:
    """Return the activity in an hour relative to the mean over the week.

    Args:
        at_ms: A moment in the hour, ms since the epoch, UTC.
        season: 0 is always 1, 1 is as measured.

    >>> activity(0, 0.0), activity(19 * 3_600_000, 1.0) > 10 * activity(0, 1.0)
    (1.0, True)
    """
    hour = at_ms // _HOUR_MS
    measured = HOURS[hour % 24] * WEEKDAYS[(hour // 24 + _EPOCH_WEEKDAY) % 7] / _MEAN
    return 1.0 + season * (measured - 1.0)


def rush(open_ms: int) -> float:
    """Return how many times the usual number of visits begin so long after the opening.

    A visit goes on for minutes, so a shop that opens empty would have too few events at first. This is the
    fitted solution of the convolution with the moments of a visit's events: with it the rate of events is the
    same from the first seconds on.

    Args:
        open_ms: Time since the opening, ms.

    >>> round(rush(0), 1), round(rush(60_000), 1), round(rush(3_600_000), 2)
    (4.3, 1.7, 1.02)
    """
    return 1 + 1.4 / (1 + open_ms / 60_000) + 1.9 * math.exp(-open_ms / 4_000)


class Arrivals:
    """Moments of a Poisson process with the rhythm of day and week.

    Args:
        per_second: Mean rate over a week, per second.
        start_ms: No moment comes before it, ms since the epoch, UTC.
        season: How strong the rhythm is, 0 to 1.
        numbers: Random numbers.
        opening: Begin with the rush of :func:`rush`.
    """

    def __init__(
        self,
        per_second: float,
        start_ms: int,
        season: float,
        numbers: random.Random,
        *,
        opening: bool = False,
    ) -> None:
        self._per_ms = per_second / 1000
        self._start_ms = start_ms
        self._season = season
        self._opening = opening
        self._draw = numbers.random
        self._at = float(start_ms)
        self._enter(start_ms)

    def _enter(self, at_ms: int) -> None:
        """Set the rate from a moment on, and until when it holds."""
        self._rate = self._per_ms * activity(at_ms, self._season)
        self._until = (at_ms // _HOUR_MS + 1) * _HOUR_MS
        open_ms = at_ms - self._start_ms
        if self._opening and open_ms < _HOUR_MS:
            self._until = min(self._until, at_ms + _RUSH_STEP_MS)
            self._rate *= rush(open_ms + _RUSH_STEP_MS // 2)

    def next_ms(self) -> int:
        """Return the next moment, ms since the epoch, UTC."""
        # A unit-exponential amount of expected arrivals is used up step by step: exact at any rate.
        wanted = -math.log(1.0 - self._draw())
        while (self._until - self._at) * self._rate < wanted:
            wanted -= (self._until - self._at) * self._rate
            self._at = float(self._until)
            self._enter(self._until)
        self._at += wanted / self._rate
        return int(self._at)
