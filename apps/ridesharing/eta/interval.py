"""Prediction intervals of arrival times that keep their coverage.

Split conformal by size of the estimate: of legs that the model has not learned from, the quantiles of the
logarithm of truth over estimate. What comes true then widens or narrows them for each hour of the day by
itself (adaptive conformal inference, Gibbs and Candès 2021).
"""

from __future__ import annotations

from bisect import bisect_right
from math import exp
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

_PARTS: Final = 10
_HOURS: Final = 24
#: How fast an hour of the day follows what came true.
RATE: Final = 0.004
_NARROWEST, _WIDEST = 0.3, 4.0


class Spread(msgspec.Struct, array_like=True, frozen=True):
    """Quantiles of the logarithm of truth over estimate, by size of the estimate.

    Attributes:
        bounds: Where the next part begins, seconds, rising; one less than there are parts.
        low: Lower quantile of each part.
        high: Upper quantile of each part.
    """

    bounds: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    def of(self, seconds: float) -> tuple[float, float]:
        """Return the quantiles for an estimate."""
        part = bisect_right(self.bounds, seconds)
        return self.low[part], self.high[part]


def spread_of(estimates: npt.NDArray[Any], truths: npt.NDArray[Any], coverage: float = 0.9) -> Spread:
    """Return the spread of estimates that were made without the truth.

    Args:
        estimates: Seconds, shape (n,).
        truths: Seconds, shape (n,).
        coverage: Share of truths that intervals are to hold.

    Example:
        >>> spread = spread_of(np.full(200, 100.0), np.linspace(90, 110, 200))
        >>> [round(value, 2) for value in spread.of(100.0)]
        [-0.1, 0.09]
    """
    order = np.argsort(estimates, kind="stable")
    parts = [part for part in np.array_split(order, max(1, min(_PARTS, len(order) // 100))) if len(part)]
    miss = (1.0 - coverage) / 2
    low, high = [], []
    for part in parts:
        ratios = np.sort(np.log(truths[part] / estimates[part]))
        # The next one has a place among these, and may be outside of all.
        down = max(0, int(np.floor(miss * (len(ratios) + 1))) - 1)
        low.append(float(ratios[down]))
        high.append(float(ratios[len(ratios) - 1 - down]))
    return Spread(tuple(float(estimates[part[0]]) for part in parts[1:]), tuple(low), tuple(high))


class Width(msgspec.Struct, array_like=True):
    """How much wider than the spread intervals are, by hour of the day and side, as what came true has it.

    Attributes:
        low: Factor of the lower side, by hour.
        high: Factor of the upper side, by hour.
    """

    low: list[float] = msgspec.field(default_factory=lambda: [1.0] * _HOURS)
    high: list[float] = msgspec.field(default_factory=lambda: [1.0] * _HOURS)

    def interval(self, seconds: float, spread: Spread, hour: int) -> tuple[float, float]:
        """Return the interval of an estimate, seconds.

        Args:
            seconds: The estimate.
            spread: Its spread.
            hour: Local hour of the day.
        """
        low, high = spread.of(seconds)
        return seconds * exp(low * self.low[hour]), seconds * exp(high * self.high[hour])

    def learn(self, hour: int, *, below: bool, above: bool, coverage: float = 0.9) -> None:
        """Take a leg that has ended.

        Args:
            hour: Local hour of the day in which it began.
            below: It took less than its interval said.
            above: It took longer.
            coverage: Share of truths that intervals are to hold.
        """
        miss = (1.0 - coverage) / 2
        for factors, missed in ((self.low, below), (self.high, above)):
            moved = factors[hour] + RATE * ((1.0 if missed else 0.0) - miss) / miss
            factors[hour] = min(max(moved, _NARROWEST), _WIDEST)
