"""Models of several components, as one that is asked for one of them at a time."""

from __future__ import annotations

from math import exp
from typing import Any

import numpy as np
import numpy.typing as npt

from millrace.models.boosted import Boosted
from millrace.models.manifest import BrokenModel


class Risks:
    """Models of several components: the last features of a row say which of them is asked.

    Args:
        models: One of each component.
        shared: Number of features that all of them take.
    """

    def __init__(self, models: list[Boosted], shared: int) -> None:
        self._models, self._shared = models, shared

    @classmethod
    def of(cls, model: Any, inputs: int) -> Risks:
        """Return the models of a ``MultiOutputClassifier`` of boosted classifiers.

        Args:
            model: The trained model.
            inputs: Number of features of a row: those that all take, and one of each component.

        Raises:
            BrokenModel: It is something else, or its trees point outside of themselves.
        """
        parts = list(getattr(model, "estimators_", ()))
        shared = inputs - len(parts)
        if not parts or shared < 1:
            raise BrokenModel(f"{type(model).__name__} has not a model of each component")
        return cls([Boosted.of(part, shared) for part in parts], shared)

    def score(self, row: Any) -> float:
        """Return the probability that the component fails that a row asks for, shape (features,)."""
        asked = row[self._shared :]
        return _logistic(
            self._models[max(range(len(asked)), key=asked.__getitem__)].score(row[: self._shared])
        )

    def score_many(self, rows: Any) -> npt.NDArray[np.float64]:
        """Return the same of many rows, shape (n, features) → (n,)."""
        x = np.asarray(rows, dtype=np.float32)
        asked = x[:, self._shared :].argmax(axis=1)
        found = np.empty(len(x))
        for place, model in enumerate(self._models):
            here = asked == place
            if here.any():
                raw = model.score_many(x[here, : self._shared])
                found[here] = [_logistic(value) for value in raw.tolist()]
        return found


def _logistic(value: float) -> float:
    if value < 0:
        grown = exp(max(value, -700.0))
        return grown / (1.0 + grown)
    return 1.0 / (1.0 + exp(-min(value, 700.0)))
