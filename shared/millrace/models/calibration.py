"""Calibration: scores to probabilities."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt

#: No model is surer than this of anything.
_SUREST: Final = 1e-4


class Calibration:
    """Scores to probabilities by a logistic curve over their log-odds (Platt): it keeps their order.

    Attributes:
        slope: Slope of the curve; above 0.
        intercept: Its intercept.

    Example:
        >>> scores = np.array([0.1] * 90 + [0.9] * 10)
        >>> positive = np.array([False] * 89 + [True] + [True] * 9 + [False])
        >>> found = Calibration.fit(scores, positive)
        >>> [round(p, 1) for p in found(np.array([0.1, 0.9])).tolist()]
        [0.0, 0.9]
    """

    def __init__(self, slope: float, intercept: float) -> None:
        self.slope, self.intercept = slope, intercept

    @classmethod
    def fit(cls, scores: Any, positive: Any, weights: Any = None) -> Calibration:
        """Return the curve that fits scores to what they were; the scores themselves if it falls.

        Args:
            scores: Scores between 0 and 1, shape (n,).
            positive: True for what the scores should find, shape (n,).
            weights: For how many each stands, shape (n,); ``None``: for one.
        """
        from sklearn.linear_model import LogisticRegression

        positive = np.asarray(positive, dtype=bool)
        if weights is not None:
            counted = np.asarray(weights) > 0
            scores, positive, weights = np.asarray(scores)[counted], positive[counted], weights[counted]
        if not 0 < int(positive.sum()) < len(positive):
            return cls(1.0, 0.0)
        curve = LogisticRegression(C=100.0).fit(_log_odds(scores)[:, None], positive, sample_weight=weights)
        slope, intercept = float(curve.coef_[0, 0]), float(curve.intercept_[0])
        return cls(slope, intercept) if slope > 0 else cls(1.0, 0.0)

    def one(self, score: float) -> float:
        """Return the probability for one score; NumPy would take longer for it than the trees."""
        p = min(max(score, _SUREST), 1 - _SUREST)
        return 1 / (1 + math.exp(-(self.slope * math.log(p / (1 - p)) + self.intercept)))

    def __call__(self, scores: Any) -> npt.NDArray[np.float64]:
        """Return probabilities, shape (n,)."""
        return np.asarray(1 / (1 + np.exp(-(self.slope * _log_odds(scores) + self.intercept))))


def _log_odds(scores: Any) -> npt.NDArray[np.float64]:
    p = np.clip(np.asarray(scores, dtype=float), _SUREST, 1 - _SUREST)
    return np.asarray(np.log(p / (1 - p)))
