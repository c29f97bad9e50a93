"""Two models for two kinds of labels, after Dal Pozzolo et al.

Investigators say within hours what the payments were that they were alerted to: few labels, of payments
that looked suspicious. All other labels come weeks later. One model for both drowns the few in the many;
a model of each, their probabilities averaged, ranks better (Dal Pozzolo, Boracchi, Caelen, Alippi, Bontempi,
"Credit Card Fraud Detection: A Realistic Modeling and a Novel Learning Strategy", IEEE TNNLS 2018).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from apps.fraud.model.estimator import MODEL, ModelSpec
from apps.fraud.model.training import CannotTrain, Examples

#: Weight of the feedback's model; half is what the paper takes.
WEIGHT: Final = 0.5
#: Fewer frauds in the feedback do not make a model.
LEAST_FEEDBACK: Final = 5


@dataclass(frozen=True)
class TwoModels:
    """A model of recent feedback and one of delayed labels.

    Attributes:
        delayed: The model of the delayed labels.
        feedback: The model of the feedback; ``None`` where there is too little.
        weight: Its weight.
    """

    delayed: Any
    feedback: Any | None
    weight: float = WEIGHT

    def score_many(self, rows: Any) -> npt.NDArray[np.float64]:
        """Return probabilities, shape (n,)."""
        late = np.asarray(self.delayed.predict_proba(rows)[:, 1], dtype=float)
        if self.feedback is None:
            return late
        soon = np.asarray(self.feedback.predict_proba(rows)[:, 1], dtype=float)
        return self.weight * soon + (1 - self.weight) * late


def feedback_of(known: Examples, since_ms: int) -> Examples:
    """Return the examples that investigators have spoken of: those alerted on, not older than a time.

    Args:
        known: Payments and what investigators said of them.
        since_ms: Event time of the oldest, ms.
    """
    return known.chosen(known.alerted & (known.at >= since_ms))


def train_two(
    feedback: Examples, delayed: Examples, *, spec: ModelSpec = MODEL, seed: int = 0, jobs: int = 1
) -> TwoModels:
    """Train both models.

    Args:
        feedback: Payments that investigators have spoken of.
        delayed: Payments whose labels have come the long way.
        spec: The kind of both.
        seed: Their seed.
        jobs: Threads to train with.

    Raises:
        CannotTrain: The delayed labels know no frauds, or nothing else.
    """
    if not _tells(delayed, 1):
        raise CannotTrain("the delayed labels know no frauds, or nothing else")
    late = spec.build(seed, jobs=jobs).fit(delayed.x, delayed.fraud)
    soon = None
    if _tells(feedback, LEAST_FEEDBACK):
        soon = spec.build(seed, jobs=jobs).fit(feedback.x, feedback.fraud)
    return TwoModels(late, soon)


def _tells(known: Examples, least: int) -> bool:
    frauds = int(known.fraud.sum())
    return least <= frauds < len(known)


def alert_precision_of_days(scores: Any, fraud: Any, days: Any, capacity: int) -> Sequence[float]:
    """Return for each day the share of frauds among the ``capacity`` highest scores: what investigators see.

    >>> alert_precision_of_days([0.9, 0.1, 0.8, 0.7], [1, 0, 0, 1], [0, 0, 1, 1], 1)
    [1.0, 0.0]
    """
    scores, fraud, days = np.asarray(scores), np.asarray(fraud, dtype=float), np.asarray(days)
    found = []
    for day in np.unique(days):
        rows = np.flatnonzero(days == day)
        top = rows[np.argsort(-scores[rows], kind="stable")][:capacity]
        found.append(float(fraud[top].mean()))
    return found
