"""Baselines of anomaly scores: the benchmark's windowed Gaussian, and a z-score that fades."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from millrace.parts.moving import MovingStatistics

#: The benchmark's: a window of so many values, moved by so many at a time.
_WINDOW: Final = 6_400
_STEP: Final = 100


def windowed_gaussian(values: Sequence[float]) -> list[float]:
    """Score values as numenta/NAB does (detectors/gaussian): tail of a normal distribution of a window."""
    found, low, mean, deviation = [], 0, 0.0, 1.0
    count, spread = 0, 0.0
    for row, value in enumerate(values):
        if not row:
            found.append(0.0)
        else:
            found.append(1.0 - 0.5 * math.erfc(abs(value - mean) / deviation / 1.4142))
        if row < _WINDOW:
            count += 1
            away = value - mean
            mean += away / count
            spread += away * (value - mean)
            deviation = math.sqrt(spread / count) or 1e-6
        elif (row + 1 - _WINDOW) % _STEP == 0:
            low += _STEP
            window = values[low : low + _WINDOW]
            mean = math.fsum(window) / _WINDOW
            deviation = math.sqrt(math.fsum((x - mean) ** 2 for x in window) / _WINDOW) or 1e-6
    return found


def ewma(values: Sequence[float]) -> list[float]:
    """Score values by how many deviations they are from an exponentially weighted mean."""
    kept, found = MovingStatistics(), []
    for row, value in enumerate(values):
        zscore = kept.add(row, value)
        away = 0.0 if zscore is None else abs(zscore)
        found.append(away / (away + 5.0))
    return found


BASELINES: Final[dict[str, Callable[[Sequence[float]], list[float]]]] = {
    "windowed_gaussian": windowed_gaussian,
    "ewma": ewma,
}
