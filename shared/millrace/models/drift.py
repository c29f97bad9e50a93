"""Whether rows, scores and labels still look like those that the model learned from.

Two means. The population stability index compares values with the training's quantiles, bin by bin; above
0.25 a feature has shifted (a rule of thumb in credit scoring, e.g. Siddiqi, *Credit Risk Scorecards*, 2006).
ADWIN (Bifet and Gavaldà, 2007; river's) watches a stream of numbers and tells when their mean has changed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

_DAY_MS: Final = 86_400_000
#: From here on a feature has shifted.
SHIFTED: Final = 0.25
#: An empty bin counts as this share.
_LEAST: Final = 1e-4
#: How sure ADWIN must be: false alarms are rarer than one in so many looks.
_DELTA: Final = 1e-4


def psi(edges: Sequence[float], expected: Sequence[float], values: Any) -> float:
    """Return the population stability index of values against the shares that are expected per bin.

    Args:
        edges: Inner edges of the bins, ascending; a value at an edge belongs below it.
        expected: Share per bin, one more than edges.
        values: The values now.

    >>> round(psi([1.0], [0.5, 0.5], [0, 0, 2, 2]), 6)
    0.0
    >>> round(psi([1.0], [0.5, 0.5], [2, 2, 2, 0]), 3)
    0.275
    """
    counts = np.bincount(np.searchsorted(np.asarray(edges), np.asarray(values), side="left"),
                         minlength=len(edges) + 1)  # fmt: skip
    now = np.maximum(counts / max(1, counts.sum()), _LEAST)
    then = np.maximum(np.asarray(expected, dtype=float), _LEAST)
    return float(np.sum((now - then) * np.log(now / then)))


def psi_of_counts(then: Mapping[int, int], now: Mapping[int, int]) -> float:
    """Return the population stability index of counts per bin against earlier ones.

    >>> round(psi_of_counts({0: 50, 1: 50}, {0: 1, 1: 3}), 3)
    0.275
    """
    before, after = max(1, sum(then.values())), max(1, sum(now.values()))
    total = 0.0
    for bin_ in sorted({*then, *now}):
        was = max(then.get(bin_, 0) / before, _LEAST)
        found = max(now.get(bin_, 0) / after, _LEAST)
        total += (found - was) * math.log(found / was)
    return total


@dataclass(frozen=True)
class Shift:
    """A feature's distance from what the model learned from.

    Attributes:
        feature: Its name.
        psi: Its population stability index.
    """

    feature: str
    psi: float

    @property
    def shifted(self) -> bool:
        """Whether it has shifted."""
        return self.psi >= SHIFTED


def shifts(profile: Mapping[str, Mapping[str, Sequence[float]]], columns: Any) -> list[Shift]:
    """Return how far each feature has moved, the farthest first.

    Args:
        profile: Feature → its ``edges`` and ``shares`` in training (see :func:`profile_of`).
        columns: Features now: anything whose items are columns.
    """
    found = [Shift(name, psi(p["edges"], p["shares"], columns[name])) for name, p in profile.items()]
    return sorted(found, key=lambda shift: (-shift.psi, shift.feature))


def profile_of(x: Any, inputs: Sequence[str], bins: int = 10) -> dict[str, dict[str, list[float]]]:
    """Return bins of each feature and their shares: what later payments are compared with.

    Args:
        x: Features of training, shape (n, features).
        inputs: Names of the features.
        bins: How many bins; fewer where values repeat.
    """
    found = {}
    steps = np.linspace(0, 1, bins + 1)[1:-1]
    for column, name in zip(np.asarray(x, dtype=float).T, inputs, strict=True):
        edges = np.unique(np.quantile(column, steps))
        counts = np.bincount(np.searchsorted(edges, column, side="left"), minlength=len(edges) + 1)
        found[name] = {"edges": edges.tolist(), "shares": (counts / len(column)).tolist()}
    return found


class MeanWatch:
    """Tells when the mean of a stream has changed: of scores, of labels, of errors.

    Args:
        name: What is watched.
        least: Values before which nothing is told.

    Example:
        >>> watch = MeanWatch("score")
        >>> any(watch.add(x) for x in [0.1, 0.2] * 500)
        False
        >>> any(watch.add(x) for x in [0.7, 0.8] * 200)
        True
    """

    def __init__(self, name: str, *, least: int = 200) -> None:
        from river import drift

        self.name = name
        detector: Any = drift.ADWIN
        self._detector = detector(delta=_DELTA, grace_period=least)
        self.changes = 0

    def add(self, value: float) -> bool:
        """Take a value; return whether the mean has changed with it."""
        self._detector.update(float(value))
        changed = bool(self._detector.drift_detected)
        self.changes += changed
        return changed

    def add_all(self, values: Iterable[float]) -> int:
        """Take values; return how many changes there were."""
        return sum(self.add(value) for value in values)

    @property
    def mean(self) -> float:
        """Mean of what has come since the last change."""
        return float(self._detector.estimation)


def age_days(trained_until_ms: int, now_ms: int) -> float:
    """Return how old a model's newest example is, days.

    Args:
        trained_until_ms: Event time of that example.
        now_ms: The present, event time.
    """
    return max(0.0, (now_ms - trained_until_ms) / _DAY_MS)
