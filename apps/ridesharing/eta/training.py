"""A model of how much longer a leg takes than where nothing is known, learned from legs that have ended."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from millrace.errors import UserError
from millrace.models.exports import CHAMPION, Exports
from millrace_apps.ridesharing.eta.features import FEATURES_VERSION, NAMES
from millrace_apps.ridesharing.eta.interval import Spread, spread_of
from millrace_apps.ridesharing.eta.times import MODEL_NAME

#: Of the legs, in order of time, those that the spread is taken from: the last fifth.
_LEARNED: Final = 0.8
_LEAST: Final = 1_000
#: Two boosted models, each of which sees other features at each split; their mean is taken.
_SEEDS: Final = 2
#: Trees of each.
ROUNDS: Final = 900


class Trained(NamedTuple):
    """A model of legs.

    Attributes:
        estimator: scikit-learn's model: features → logarithm of what a leg takes over :func:`unknown_s`.
        spread: How its estimates are spread.
        legs: How many it has learned from.
        until_ms: When the last of them ended, UTC ms.
        mae_s: Mean error on the newest fifth when the rest was learned from, seconds.
        straight_mae_s: The same where nothing is known.
    """

    estimator: Any
    spread: Spread
    legs: int
    until_ms: int
    mae_s: float
    straight_mae_s: float


def boosted(rounds: int = ROUNDS) -> Any:
    """Return the model before it has learned, which makes so many trees of each kind."""
    from sklearn.ensemble import HistGradientBoostingRegressor, VotingRegressor

    return VotingRegressor(
        [
            (
                f"m{seed}",
                HistGradientBoostingRegressor(
                    loss="absolute_error",
                    learning_rate=0.03,
                    max_iter=rounds,
                    max_leaf_nodes=63,
                    min_samples_leaf=100,
                    max_features=0.4,
                    random_state=seed,
                ),
            )
            for seed in range(_SEEDS)
        ]
    )


def train(
    features: npt.NDArray[np.float64], nothing_s: npt.NDArray[np.float64], took_s: npt.NDArray[np.float64],
    until_ms: int, rounds: int = ROUNDS,
) -> Trained:  # fmt: skip
    """Learn from legs.

    Args:
        features: By :data:`millrace_apps.ridesharing.eta.features.NAMES`, in order of time, shape (n, names).
        nothing_s: What such legs take where nothing is known, seconds, shape (n,).
        took_s: What they took, seconds, shape (n,).
        until_ms: When the last of them ended, UTC ms.
        rounds: Trees of each boosted model.

    Raises:
        UserError: There are too few.
    """
    count = len(took_s)
    if count < _LEAST:
        raise UserError(f"{count:,} legs have ended by then: {_LEAST:,} are needed to learn from")
    target = np.log(took_s / nothing_s)
    cut = int(count * _LEARNED)
    # Trees compare floats of 32 bits where they are served: they learn from the same.
    features = features.astype(np.float32)
    held_out = boosted(rounds).fit(features[:cut], target[:cut])
    estimates = nothing_s[cut:] * np.exp(held_out.predict(features[cut:]))
    spread = spread_of(estimates, took_s[cut:])
    wrong = [float(np.abs(one - took_s[cut:]).mean()) for one in (estimates, nothing_s[cut:])]
    return Trained(boosted(rounds).fit(features, target), spread, count, until_ms, *wrong)


def export(trained: Trained, folder: Path, version: str = "1") -> None:
    """Let workers find a model as the champion."""
    Exports(str(folder), MODEL_NAME).publish_estimator(
        CHAMPION,
        trained.estimator,
        version=version,
        inputs=tuple(NAMES),
        features_version=FEATURES_VERSION,
        kind="regressor",
        trained_until_ms=trained.until_ms,
        about={"spread": msgspec.to_builtins(trained.spread), "legs": trained.legs},
    )


def columns_of(rows: Sequence[Sequence[float]]) -> npt.NDArray[np.float64]:
    """Return rows of features as an array, shape (n, names)."""
    return np.asarray(rows, dtype=np.float64).reshape(len(rows), len(NAMES))
