"""Moving statistics of a series of numbers: of the last few, of the last minutes, and with fading weights."""

from __future__ import annotations

import math
from math import sqrt
from typing import ClassVar, Final

import msgspec

_HOUR_MS: Final = 3_600_000


class MovingStatistics(msgspec.Struct, array_like=True):
    """What a series has been like of late: means, trend, extremes, and how unusual its newest value is.

    The mean of the last values; the mean and the trend over the last panes of time, the current one included;
    the least and the largest since a moment of one's own; and an exponentially weighted mean and variance, by
    which a value's z-score is told before it is in them. What is kept does not grow. A subclass says how much
    is looked back at (with ``array_like=True`` as well).

    Attributes:
        last_n: The moving average by count is of so many values.
        panes: The moving average by time, and the trend, are of so many panes.
        pane_ms: Length of a pane, ms.
        alpha: Weight of the newest value in the exponentially weighted mean and variance.
        learn: A z-score is given from so many values on: before, the variance says little.
        count: Values so far.
        last: The last values, oldest first, at most ``last_n``.
        pane: Number of the newest pane since the epoch.
        sums: Sums of the last panes, oldest first; the last one is ``pane``.
        counts: How many values are in each.
        low: Least value since the extremes began.
        high: Largest value since then.
        mean: Exponentially weighted mean.
        variance: Exponentially weighted variance.
        trend: Slope over the panes before the newest, per hour; found when a pane begins.

    Example:
        >>> kept = MovingStatistics()
        >>> for second in range(4):
        ...     _ = kept.add(second * 1_000, float(second))
        >>> kept.average, kept.average_by_time, kept.low, kept.high
        (1.5, 1.5, 0.0, 3.0)
        >>> kept.prune(6 * 60_000)
        >>> kept.average, kept.average_by_time
        (1.5, None)
    """

    last_n: ClassVar[int] = 5
    panes: ClassVar[int] = 6
    pane_ms: ClassVar[int] = 60_000
    alpha: ClassVar[float] = 0.02
    learn: ClassVar[int] = 30

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

    def add(self, at: int, value: float, pane_ms: int = 0, last_n: int = 0) -> float | None:
        """Add a value.

        Args:
            at: Its time, ms. One of an earlier pane is counted there, if that is still kept; in all else
                values count in the order in which they are added.
            value: A finite number.
            pane_ms: Length of a pane, ms, if another than the class has; always the same for one series.
            last_n: Length of the moving average by count, if another.

        Returns:
            Its z-score against what was before it; ``None`` while that is too little.
        """
        zscore = None
        count, variance = self.count, self.variance
        if count:
            alpha = self.alpha
            away = value - self.mean
            if count >= self.learn and variance > 0.0:
                zscore = away / sqrt(variance)
            step = alpha * away
            self.mean += step
            self.variance = (1.0 - alpha) * (variance + step * away)
        else:
            self.mean = value
        self.count = count + 1
        last = self.last
        last.append(value)
        if len(last) > (last_n or self.last_n):
            del last[: len(last) - (last_n or self.last_n)]
        low, high = self.low, self.high
        if low is None or value < low:
            self.low = value
        if high is None or value > high:
            self.high = value
        length = pane_ms or self.pane_ms
        place, pane = -1, at // length
        if pane != self.pane or not self.sums:
            if pane < self.pane and self.sums:
                place = pane - self.pane - 1
                if place < -len(self.sums):
                    return zscore
            else:
                self._begin(pane, length)
        self.sums[place] += value
        self.counts[place] += 1
        return zscore

    @property
    def average(self) -> float | None:
        """Mean of the last ``last_n`` values."""
        last = self.last
        return sum(last) / len(last) if last else None

    @property
    def average_by_time(self) -> float | None:
        """Mean of the values of the last ``panes`` panes, the newest included."""
        count = sum(self.counts)
        return sum(self.sums) / count if count else None

    def begin_extremes(self) -> None:
        """Begin the extremes anew."""
        self.low = self.high = None

    def prune(self, until: int) -> None:
        """Forget the panes that end at or before ``until`` (ms): the mean over time is of what is left."""
        gone = until // self.pane_ms - self.pane + len(self.sums) - 1
        if gone > 0:
            del self.sums[:gone], self.counts[:gone]

    def _begin(self, pane: int, length: int) -> None:
        """Begin a pane; those that are too old go."""
        gone = pane - self.pane
        if not self.sums or gone >= self.panes:
            self.sums, self.counts, self.trend = [0.0], [0], None
        else:
            self.trend = self._slope(length)
            self.sums += [0.0] * gone
            self.counts += [0] * gone
            if (more := len(self.sums) - self.panes) > 0:
                del self.sums[:more], self.counts[:more]
        self.pane = pane

    def _slope(self, length: int) -> float | None:
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
        return above / sum(w * (x - at) ** 2 for x, _, w in points) * _HOUR_MS / length


class Weighted(msgspec.Struct, array_like=True, gc=False):
    """Weighted mean and variance of the values so far: how much what is older counts is said at each value.

    It is what the operator ``ewm`` keeps: the weights of all before are known, so the mean may be that of a
    weighted mean from the first value on, and the variance without bias. :class:`MovingStatistics` keeps two
    numbers less, for one fixed ``alpha``.

    Attributes:
        at: Event time of the last value, ms.
        n: How many values there were.
        weight: Sum of their weights, the newest value's being 1 (``alpha`` where not adjusted).
        squares: Sum of the squares of their weights.
        mean: Their weighted mean.
        spread: The weighted sum of the squares of their distances from it.

    Example:
        >>> kept = Weighted()
        >>> for value in (1.0, 2.0, 4.0):
        ...     kept.add(value, 0, 0.5, 1.0)
        >>> round(kept.mean, 6), round(kept.variance(), 6), round(kept.score(5.0), 6)
        (3.0, 2.5, 1.264911)
    """

    at: int = 0
    n: int = 0
    weight: float = 0.0
    squares: float = 0.0
    mean: float = 0.0
    spread: float = 0.0

    def add(self, value: float, at: int, decay: float, weight: float) -> None:
        """Add a value.

        The mean and the sum of squares are updated together (West 1979, "Updating Mean and Variance
        Estimates"), so that nothing large is subtracted from something large.

        Args:
            value: The value.
            at: Its event time, ms.
            decay: What the weights of all before are multiplied by.
            weight: Its own weight.

        Raises:
            OverflowError: The value is too large to be squared.
        """
        if not self.n:
            weight = 1.0
        self.weight = self.weight * decay + weight
        self.squares = self.squares * decay * decay + weight * weight
        self.spread *= decay
        far = value - self.mean
        self.mean += far * (weight / self.weight)
        self.spread += weight * far * (value - self.mean)
        self.at, self.n = at, self.n + 1
        if not math.isfinite(self.spread):
            raise OverflowError(f"ewm: {value} is too large to be squared")

    def variance(self) -> float | None:
        """Return the unbiased variance; ``None`` where there is one value only."""
        freedom = self.weight - self.squares / self.weight
        return max(self.spread / freedom, 0.0) if self.n > 1 and freedom > 0 else None

    def score(self, value: float) -> float | None:
        """Return how many standard deviations a value is above the mean, ``None`` where there is none."""
        variance = self.variance() if self.n else None
        return (value - self.mean) / math.sqrt(variance) if variance else None
