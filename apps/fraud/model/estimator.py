"""Feature sets, and the scikit-learn pipelines over them, to a probability."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from millrace.models.calibration import Calibration
from millrace_apps.fraud.handbook.events import HANDBOOK, OWN

#: The Handbook's model inputs: the amount and the 14 features.
HANDBOOK_INPUTS: Final = ("amount", *HANDBOOK)
#: Ours: the same and what :mod:`millrace_apps.fraud.handbook.habits` and
#: :mod:`millrace_apps.fraud.state.labels` add.
INPUTS: Final = (*HANDBOOK_INPUTS, *OWN)

#: Version of the definitions of recorded history's features; raised when the meaning of one changes, and kept
#: with models. Those of the live stream have that of decisions.
FEATURES_VERSION: Final = 1


@dataclass(frozen=True)
class ModelSpec:
    """A kind of model.

    Attributes:
        name: Its name.
        inputs: The features it takes, in order.
        trees: Trees of its forest.
        features_version: Version of the definitions of its features.
    """

    name: str
    inputs: tuple[str, ...]
    trees: int
    features_version: int = FEATURES_VERSION

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

    def fit(self, x: Any, fraud: Any, seed: int, *, weight: Any = None, jobs: int = 1) -> Any:
        """Return a trained pipeline.

        Args:
            x: Features, shape (n, features).
            fraud: True for frauds, shape (n,).
            seed: Seed of the forest.
            weight: With which weight each is learned from, shape (n,); ``None``: with one.
            jobs: Threads to train with.
        """
        made = self.build(seed, jobs=jobs)
        forest = made.steps[-1][0]
        return made.fit(x, fraud, **({} if weight is None else {f"{forest}__sample_weight": weight}))


HANDBOOK_MODEL: Final = ModelSpec("handbook", HANDBOOK_INPUTS, 100)
MODEL: Final = ModelSpec("millrace", INPUTS, 100)


#: From these probabilities on somebody looks at a payment, and it is stopped.
REVIEW_FROM: Final = 0.2
BLOCK_FROM: Final = 0.8
#: Share of the training rows, the newest, on which probabilities are calibrated.
CALIBRATED_ON: Final = 0.3


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
