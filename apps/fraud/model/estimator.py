"""From features to a probability: the feature sets, and the scikit-learn pipelines over them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from apps.fraud.handbook.events import HANDBOOK, OWN

#: The Handbook's model inputs: the amount and the 14 features.
HANDBOOK_INPUTS: Final = ("amount", *HANDBOOK)
#: Ours: the same and what :mod:`apps.fraud.handbook.habits` and :mod:`apps.fraud.labels` add.
INPUTS: Final = (*HANDBOOK_INPUTS, *OWN)

#: Version of the feature definitions; raised when the meaning of a feature changes, and kept with models.
FEATURES_VERSION: Final = 1


@dataclass(frozen=True)
class ModelSpec:
    """A kind of model.

    Attributes:
        name: Its name.
        inputs: The features it takes, in order.
        trees: Trees of its forest.
    """

    name: str
    inputs: tuple[str, ...]
    trees: int

    def build(self, seed: int, *, jobs: int = 1) -> Any:
        """Return an untrained pipeline.

        Args:
            seed: Seed of the forest.
            jobs: Threads to train with.
        """
        from sklearn.ensemble import (
            ExtraTreesClassifier,
            RandomForestClassifier,
        )
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        if self is HANDBOOK_MODEL:
            # As published: standardised inputs, the library's defaults (chapters 3 and 5).
            forest = RandomForestClassifier(self.trees, random_state=seed, n_jobs=jobs)
            return make_pipeline(StandardScaler(), forest)
        # Splits at random thresholds among half of the features: forests of best splits fit the noise of
        # some hundred frauds. Chosen on test weeks of June and July 2018; see MODEL.md.
        forest = ExtraTreesClassifier(
            self.trees, min_samples_leaf=3, max_features=0.5, random_state=seed, n_jobs=jobs
        )
        return make_pipeline(forest)


HANDBOOK_MODEL: Final = ModelSpec("handbook", HANDBOOK_INPUTS, 100)
MODEL: Final = ModelSpec("millrace", INPUTS, 100)


def matrix(columns: Any, inputs: Sequence[str]) -> npt.NDArray[np.float32]:
    """Return features as the array that models take, shape (n, features).

    Args:
        columns: Anything whose items are columns: a table, a data frame, a dict of arrays.
        inputs: The features, in order.
    """
    return np.column_stack([np.asarray(columns[name], dtype=np.float32) for name in inputs])


#: From these probabilities on somebody looks at a payment, and it is stopped.
REVIEW_FROM: Final = 0.2
BLOCK_FROM: Final = 0.8
#: Share of the training rows, the newest, on which probabilities are calibrated.
CALIBRATED_ON: Final = 0.3
#: No forest is surer than this of anything.
_SUREST: Final = 1e-4


class Calibration:
    """Scores to probabilities by a logistic curve over their log-odds (Platt): it keeps their order.

    Attributes:
        slope: Slope of the curve; above 0.
        intercept: Its intercept.

    Example:
        >>> scores = np.array([0.1] * 90 + [0.9] * 10)
        >>> fraud = np.array([False] * 89 + [True] + [True] * 9 + [False])
        >>> found = Calibration.fit(scores, fraud)
        >>> [round(p, 1) for p in found(np.array([0.1, 0.9])).tolist()]
        [0.0, 0.9]
    """

    def __init__(self, slope: float, intercept: float) -> None:
        self.slope, self.intercept = slope, intercept

    @classmethod
    def fit(cls, scores: Any, fraud: Any) -> Calibration:
        """Return the curve that fits scores to what they were; the scores themselves if it falls."""
        from sklearn.linear_model import LogisticRegression

        fraud = np.asarray(fraud, dtype=bool)
        if not 0 < int(fraud.sum()) < len(fraud):
            return cls(1.0, 0.0)
        curve = LogisticRegression(C=100.0).fit(_log_odds(scores)[:, None], fraud)
        slope, intercept = float(curve.coef_[0, 0]), float(curve.intercept_[0])
        return cls(slope, intercept) if slope > 0 else cls(1.0, 0.0)

    def one(self, score: float) -> float:
        """Return the probability for one score; NumPy would take longer for it than the trees."""
        p = min(max(score, _SUREST), 1 - _SUREST)
        return 1 / (1 + math.exp(-(self.slope * math.log(p / (1 - p)) + self.intercept)))

    def __call__(self, scores: Any) -> npt.NDArray[np.float64]:
        """Return probabilities."""
        return np.asarray(1 / (1 + np.exp(-(self.slope * _log_odds(scores) + self.intercept))))


def _log_odds(scores: Any) -> npt.NDArray[np.float64]:
    p = np.clip(np.asarray(scores, dtype=float), _SUREST, 1 - _SUREST)
    return np.asarray(np.log(p / (1 - p)))


class HeldOut(NamedTuple):
    """The newest rows of a training, scored by a model of the older ones.

    Attributes:
        rows: The rows.
        scores: Their scores, shape (n,).
    """

    rows: npt.NDArray[np.int64]
    scores: npt.NDArray[np.float64]


def held_out(x: Any, fraud: Any, rows: Any, *, spec: ModelSpec = MODEL, jobs: int = 1) -> HeldOut | None:
    """Hold a model of the older rows to the newer ones: its own rows would say that it is always right.

    Args:
        x: Features of all payments.
        fraud: True for frauds.
        rows: Rows of training, in order of time.
        spec: The kind of model.
        jobs: Threads to train with.

    Returns:
        The newer rows and their scores; ``None`` where the older ones teach nothing.
    """
    cut = int(len(rows) * (1 - CALIBRATED_ON))
    older, newer = rows[:cut], rows[cut:]
    if not 0 < int(np.sum(fraud[older])) < len(older):
        return None
    model = spec.build(0, jobs=jobs).fit(x[older], fraud[older])
    return HeldOut(newer, np.asarray(model.predict_proba(x[newer])[:, 1], dtype=float))


def calibration_of(held: HeldOut | None, fraud: Any) -> Calibration:
    """Return the curve that fits the scores of rows held out.

    Args:
        held: The rows; ``None``: the scores are taken as they are.
        fraud: True for frauds, of all payments.
    """
    return Calibration(1.0, 0.0) if held is None else Calibration.fit(held.scores, fraud[held.rows])


def decide(
    probability: Any, review_from: float = REVIEW_FROM, block_from: float = BLOCK_FROM
) -> npt.NDArray[np.str_]:
    """Return approve, review or block for each probability.

    Args:
        probability: Probabilities of fraud.
        review_from: From here on somebody looks.
        block_from: From here on it is blocked.

    >>> decide(np.array([0.01, 0.5, 0.95])).tolist()
    ['approve', 'review', 'block']
    """
    p = np.asarray(probability)
    return np.where(p >= block_from, "block", np.where(p >= review_from, "review", "approve"))
