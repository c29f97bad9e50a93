"""Running statistics of one sensor, of its good values alone.

Averages over the last values and over the last minutes, the trend, extremes since the last maintenance, and
how unusual a value is: its distance from an exponentially weighted mean in exponentially weighted standard
deviations, both as they were before it.
"""

from __future__ import annotations

from math import sqrt
from typing import Final

import msgspec

#: The moving average by count is of so many values.
COUNT: Final = 5
#: The moving average by time, and the trend, are of so many panes, the current one included.
PANES: Final = 6
PANE_MS: Final = 60_000
#: Weight of the newest value in the exponentially weighted mean and variance.
ALPHA: Final = 0.02
_KEPT: Final = 1.0 - ALPHA
#: A z-score is given from so many values on: before, the variance says little.
LEARN: Final = 30
HOUR_MS: Final = 3_600_000


class Running(msgspec.Struct, array_like=True):
    """The statistics of one sensor.

    Attributes:
        count: Good values so far.
        last: The last values, oldest first, at most ``COUNT``.
        pane: Number of the newest pane since the epoch.
        sums: Sums of the last panes, oldest first; the last one is ``pane``.
        counts: How many values are in each.
        low: Least value since the last maintenance.
        high: Largest value since the last maintenance.
        mean: Exponentially weighted mean.
        variance: Exponentially weighted variance.
        trend: Slope over the panes before the newest, per hour; found when a pane begins.

    Example:
        >>> running = Running()
        >>> for second in range(4):
        ...     _ = running.add(second * 1_000, float(second))
        >>> running.average, running.average_by_time, running.low, running.high
        (1.5, 1.5, 0.0, 3.0)
    """

    count: int = 0
    last: list[float] = []
    pane: int = -1
    sums: list[float] = []
    counts: list[int] = []
    low: float | None = None
    high: float | None = None
    mean: float = 0.0
    variance: float = 0.0
    trend: float | None = None

    def add(self, at: int, value: float) -> float | None:
        """Add a good value.

        Args:
            at: Its time, ms; not before the one before.
            value: The value.

        Returns:
            Its z-score against what was before it; ``None`` while that is too little.
        """
        zscore = None
        count, variance = self.count, self.variance
        if count:
            away = value - self.mean
            if count >= LEARN and variance > 0.0:
                zscore = away / sqrt(variance)
            step = ALPHA * away
            self.mean += step
            self.variance = _KEPT * (variance + step * away)
        else:
            self.mean = value
        self.count = count + 1
        last = self.last
        last.append(value)
        if len(last) > COUNT:
            del last[0]
        pane = at // PANE_MS
        if pane != self.pane:
            self._begin(pane)
        self.sums[-1] += value
        self.counts[-1] += 1
        low, high = self.low, self.high
        if low is None or value < low:
            self.low = value
        if high is None or value > high:
            self.high = value
        return zscore

    @property
    def average(self) -> float | None:
        """Mean of the last ``COUNT`` values."""
        last = self.last
        return sum(last) / len(last) if last else None

    @property
    def average_by_time(self) -> float | None:
        """Mean of the values of the last ``PANES`` panes, the current one included."""
        count = sum(self.counts)
        return sum(self.sums) / count if count else None

    def maintained(self) -> None:
        """Begin the extremes anew: something was replaced."""
        self.low = self.high = None

    def _begin(self, pane: int) -> None:
        """Begin a pane; those that are too old go."""
        gone = pane - self.pane
        if self.pane < 0 or gone >= PANES:
            self.sums, self.counts, self.trend = [0.0], [0], None
        else:
            self.trend = self._slope()
            self.sums += [0.0] * gone
            self.counts += [0] * gone
            if (more := len(self.sums) - PANES) > 0:
                del self.sums[:more], self.counts[:more]
        self.pane = pane

    def _slope(self) -> float | None:
        """Return the least-squares slope of the panes' means, each weighted by its values, per hour."""
        weight = at = value = 0.0
        points = [
            (float(place), total / count, count)
            for place, (total, count) in enumerate(zip(self.sums, self.counts, strict=True))
            if count
        ]
        if len(points) < 2:
            return None
        for x, y, w in points:
            weight, at, value = weight + w, at + w * x, value + w * y
        at, value = at / weight, value / weight
        above = sum(w * (x - at) * (y - value) for x, y, w in points)
        return above / sum(w * (x - at) ** 2 for x, _, w in points) * HOUR_MS / PANE_MS
