"""Conformal intervals of remaining life, kept right by what comes true.

Where a forecast stands, the distribution is that of the errors that models of other machines' lives made with
forecasts like it (split conformal, by forecast). What was true is told as the share of the distribution below
it; where the intervals miss more often than they may, they are made wider, and narrower where they miss less
(adaptive conformal inference, Gibbs and Candès 2021), for each side by itself.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    import numpy.typing as npt

#: Shares of the distribution whose values are kept.
LEVELS: Final = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.975, 0.99, 0.995
)  # fmt: skip
#: The ends of what can be: nothing is left, all is.
_ALL: Final = (0.0, *LEVELS, 1.0)
#: Forecasts are taken together so that each part has as many.
_PARTS: Final = 12


class Calibration(msgspec.Struct, frozen=True):
    """How far the truth was from forecasts.

    Attributes:
        centres: Forecasts, h, in order.
        errors: Of each: truth less forecast, h, at each of :data:`LEVELS`.
        ceiling: Longest life that is forecast, h: what is longer is not told apart.

    Example:
        >>> flat = Calibration((50.0,), (tuple(100 * (level - 0.5) for level in LEVELS),), 125.0)
        >>> values = flat.spread(60.0)
        >>> round(value_at(values, 0.5, flat.ceiling)), round(value_at(values, 0.9, flat.ceiling))
        (60, 100)
        >>> round(level_of(values, 100.0, flat.ceiling), 3)
        0.9
    """

    centres: tuple[float, ...]
    errors: tuple[tuple[float, ...], ...]
    ceiling: float

    def spread(self, forecast: float) -> list[float]:
        """Return the lives, h, at each of :data:`LEVELS` around a forecast (h); they never fall."""
        place = bisect_right(self.centres, forecast)
        if place == 0 or place == len(self.centres):
            errors: Sequence[float] = self.errors[min(place, len(self.errors) - 1)]
        else:
            low, high = self.centres[place - 1], self.centres[place]
            part = (forecast - low) / (high - low)
            below, above = self.errors[place - 1], self.errors[place]
            errors = [b + part * (a - b) for b, a in zip(below, above, strict=True)]
        return [min(max(forecast + error, 0.0), self.ceiling) for error in errors]


def calibrated(
    forecasts: npt.NDArray[Any],
    truths: npt.NDArray[Any],
    ceiling: float,
    weights: npt.NDArray[Any] | None = None,
) -> Calibration:
    """Return how far forecasts of lives that their models had not seen were from the truth.

    Args:
        forecasts: The forecasts, h, shape (n,).
        truths: What was true, h, shape (n,); at most the ceiling.
        ceiling: Longest life that is forecast, h.
        weights: For how much each counts, shape (n,), where these are no fair sample; ``None``: for one.

    Raises:
        CannotTrain: There is no forecast that counts.
    """
    import numpy as np

    weights = np.ones(len(forecasts)) if weights is None else weights
    kept = np.flatnonzero(weights > 0)
    if not len(kept):
        from millrace.models.tables import CannotTrain

        raise CannotTrain("lives are too few or too short to learn intervals from")
    order = kept[np.argsort(forecasts[kept], kind="stable")]
    parts = [part for part in np.array_split(order, min(_PARTS, max(len(order) // 50, 1))) if len(part)]
    centres: list[float] = []
    errors: list[tuple[float, ...]] = []
    for part in parts:
        centre = float(np.average(forecasts[part], weights=weights[part]))
        if centres and centre <= centres[-1]:
            continue
        found = truths[part] - forecasts[part]
        rising = np.argsort(found, kind="stable")
        # As split conformal has it: the next error has a place among these, and may be the largest.
        upto = np.cumsum(weights[part][rising])
        shares = upto / (upto[-1] + weights[part].max())
        at = np.minimum(np.searchsorted(shares, np.array(LEVELS) - 1e-12), len(rising) - 1)
        centres.append(centre)
        errors.append(tuple(float(value) for value in found[rising][at]))
    return Calibration(tuple(centres), tuple(errors), ceiling)


def value_at(values: Sequence[float], level: float, ceiling: float) -> float:
    """Return the life, h, that a share of a distribution is below.

    Args:
        values: Lives at each of :data:`LEVELS`, h.
        level: The share; at 0 and below nothing is left, at 1 and above all is.
        ceiling: Longest life that is forecast, h.
    """
    if level <= 0.0:
        return 0.0
    if level >= 1.0:
        return ceiling
    place = bisect_right(_ALL, level)
    low, high = _ALL[place - 1], _ALL[place]
    below = 0.0 if place == 1 else values[place - 2]
    above = ceiling if place == len(_ALL) - 1 else values[place - 1]
    return below + (level - low) / (high - low) * (above - below)


def level_of(values: Sequence[float], truth: float, ceiling: float) -> float:
    """Return the share of a distribution that is below what was true.

    Args:
        values: Lives at each of :data:`LEVELS`, h.
        truth: What was true, h.
        ceiling: Longest life that is forecast, h.
    """
    ends = (0.0, *values, ceiling)
    if truth >= ceiling:
        return 1.0
    place = bisect_right(ends, truth)
    if place == 0:
        return 0.0
    low, high = ends[place - 1], ends[place]
    return _ALL[place - 1] + (truth - low) / (high - low) * (_ALL[place] - _ALL[place - 1])


class Adaptive(msgspec.Struct, array_like=True):
    """How often intervals may miss on either side, as what came true has it.

    Attributes:
        below: Share of the distribution that is left out below; at 0 and under it nothing is.
        above: The same above.
        lives: Lives that have come true.

    Example:
        >>> kept = Adaptive(0.05, 0.05)
        >>> kept.learn([0.01, 0.02], miss=0.1, rate=0.05)
        >>> round(kept.below, 4), round(kept.above, 4)
        (0.0025, 0.0525)
    """

    below: float
    above: float
    lives: int = 0

    def learn(self, levels: Sequence[float], *, miss: float, rate: float) -> None:
        """Take a life that came to its end.

        Args:
            levels: For each of its forecasts the share of the distribution below what was true.
            miss: Share of forecasts that intervals may miss, on both sides together.
            rate: How fast they follow.
        """
        if not levels:
            return
        low = sum(level < self.below for level in levels) / len(levels)
        high = sum(level > 1.0 - self.above for level in levels) / len(levels)
        self.below += rate * (miss / 2 - low)
        self.above += rate * (miss / 2 - high)
        self.lives += 1

    def interval(self, values: Sequence[float], ceiling: float) -> tuple[float, float]:
        """Return the interval, h, of a distribution (its values at :data:`LEVELS`)."""
        low = value_at(values, self.below, ceiling)
        return low, max(low, value_at(values, 1.0 - self.above, ceiling))
