"""Drift of a model's input, scores and labels against what it learned from.

The population stability index compares values with the training's quantiles, bin by bin; above 0.25 a feature
has shifted (a rule of thumb in credit scoring, e.g. Siddiqi, *Credit Risk Scorecards*, 2006). Detectors of
changes in a stream of numbers, ADWIN among them, are operators: :func:`millrace.operators.drift`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

_DAY_MS: Final = 86_400_000
#: From here on a feature has shifted.
SHIFTED: Final = 0.25
#: An empty bin counts as this share.
_LEAST: Final = 1e-4


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


def age_days(trained_until_ms: int, now_ms: int) -> float:
    """Return how old a model's newest example is, days.

    Args:
        trained_until_ms: Event time of that example.
        now_ms: The present, event time.
    """
    return max(0.0, (now_ms - trained_until_ms) / _DAY_MS)
