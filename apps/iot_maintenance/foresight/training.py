"""Learning from lives that are over: remaining life with its calibration, and the risk of each component."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from millrace.models.tables import CannotTrain
from millrace_apps.iot_maintenance.foresight.distribution import Calibration, calibrated
from millrace_apps.iot_maintenance.foresight.models import ASKED

if TYPE_CHECKING:
    from collections.abc import Mapping

Floats = npt.NDArray[np.float64]
#: Parts that machines are held out in.
FOLDS: Final = 5
#: Lives are cut off at random with so much left, steps, where models are held to what a test asks.
_CUTS: Final = (5, 146)
_CUTS_A_LIFE: Final = 10
#: A life that is cut off has so many steps, at least.
_SHORTEST: Final = 25


class Examples(NamedTuple):
    """Steps of lives that are over.

    Attributes:
        x: Features, shape (n, features), float32; what is not known is no number.
        inputs: Names of the features.
        left: Life that was left, h, shape (n,).
        life: Which life, shape (n,).
    """

    x: npt.NDArray[np.float32]
    inputs: tuple[str, ...]
    left: Floats
    life: npt.NDArray[np.int64]


class Boosting(msgspec.Struct, frozen=True):
    """Settings of boosted trees.

    Attributes:
        models: Models with seeds of their own, whose mean is taken.
        rounds: Trees of each.
        rate: Learning rate.
        leaves: Most leaves of a tree.
        least: Fewest rows of a leaf.
        share: Share of the features that each split looks at.
        ridge: L2 penalty of leaves.
    """

    models: int = 1
    rounds: int = 250
    rate: float = 0.04
    leaves: int = 15
    least: int = 40
    share: float = 0.3
    ridge: float = 1.0

    def regressor(self, seed: int = 0) -> Any:
        """Return an untrained model of a quantity."""
        from sklearn.ensemble import HistGradientBoostingRegressor, VotingRegressor

        made = [
            (f"m{n}", HistGradientBoostingRegressor(random_state=seed + n, **self._settings()))
            for n in range(self.models)
        ]
        return VotingRegressor(made)

    def classifier(self, seed: int = 0) -> Any:
        """Return an untrained model of yes and no."""
        from sklearn.ensemble import HistGradientBoostingClassifier

        return HistGradientBoostingClassifier(random_state=seed, **self._settings())

    def _settings(self) -> dict[str, Any]:
        return {
            "max_iter": self.rounds,
            "learning_rate": self.rate,
            "max_leaf_nodes": self.leaves,
            "min_samples_leaf": self.least,
            "max_features": self.share,
            "l2_regularization": self.ridge,
            "early_stopping": False,
        }


#: How remaining life is learned, and the risk of components.
LIFE: Final = Boosting(models=3, least=150)
RISK: Final = Boosting(rounds=80, rate=0.06, leaves=4, least=5, share=0.5)


def named(rows: Sequence[Mapping[str, float]], wanted: Sequence[str] | None = None) -> tuple[str, ...]:
    """Return the names of all features of rows, in order.

    Args:
        rows: Features by name.
        wanted: Beginnings of names to take; ``None``: all.
    """
    found = sorted({name for row in rows for name in row})
    return tuple(n for n in found if wanted is None or n.startswith(tuple(wanted)))


def matrix_of(rows: Sequence[Mapping[str, float]], inputs: Sequence[str]) -> npt.NDArray[np.float32]:
    """Return features as models take them, shape (n, inputs); what is not known is no number."""
    missing = float("nan")
    return np.array([[row.get(name, missing) for name in inputs] for row in rows], dtype=np.float32).reshape(
        len(rows), len(inputs)
    )


def learnable(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return features with zeros for those that no row knows: nothing is learned of them."""
    unknown: npt.NDArray[np.bool_] = np.asarray(np.isnan(x).all(axis=0))
    return np.where(unknown[None, :], np.float32(0.0), x) if unknown.any() else x


class LifeFigures(NamedTuple):
    """How good a way of learning is on lives that it has not seen, each cut off at random.

    Attributes:
        rmse: Root mean squared error, h, of what was left.
        capped: The same of what was left up to the ceiling.
        coverage: Share of steps within the ceiling whose 90 % interval had what was left.
    """

    rmse: float
    capped: float
    coverage: float


class LifeModel(NamedTuple):
    """A trained model of remaining life.

    Attributes:
        estimator: The model.
        calibration: How far such models are from the truth on lives that they have not seen.
        figures: How good it is on such.
    """

    estimator: Any
    calibration: Calibration
    figures: LifeFigures


def out_of_fold(
    examples: Examples, how: Boosting, ceiling: float, *, folds: int = FOLDS, seed: int = 0
) -> Floats:
    """Return forecasts of every step by models that have not seen its life, h, shape (n,)."""
    parts = fold_of(examples.life, folds, seed)
    found = np.empty(len(parts))
    target = np.minimum(examples.left, ceiling)
    for fold in range(int(parts.max()) + 1):
        held = parts == fold
        model = how.regressor(seed).fit(learnable(examples.x[~held]), target[~held])
        found[held] = np.clip(model.predict(examples.x[held]), 0.0, ceiling)
    return found


def fold_of(group: npt.NDArray[Any], folds: int, seed: int) -> npt.NDArray[np.int64]:
    """Return the part in which each row is held out; rows of one group are in one part.

    Args:
        group: Which group, shape (n,).
        folds: How many parts.
        seed: Where the parts come from.

    Raises:
        CannotTrain: There are fewer groups than two.
    """
    names, place = np.unique(group, return_inverse=True)
    if len(names) < 2:
        raise CannotTrain("one machine alone teaches nothing of others: there must be two at least")
    order = np.random.default_rng(seed).permutation(len(names))
    part: npt.NDArray[np.int64] = order % min(folds, len(names))
    return part[place]


def figures_of(
    examples: Examples, forecasts: Floats, ceiling: float, *, seed: int = 0, seen: Floats | None = None
) -> LifeFigures:
    """Return how good forecasts of unseen lives are where these are cut off as a test's are."""
    rng = np.random.default_rng(seed)
    chosen = []
    for life in np.unique(examples.life):
        rows = np.flatnonzero(examples.life == life)
        left = examples.left[rows]
        longest = len(rows) - _SHORTEST
        cuts = np.unique(rng.integers(*_CUTS, _CUTS_A_LIFE))
        order = np.argsort(left)
        chosen.append(rows[order[cuts[cuts < longest]]])
    at = np.concatenate(chosen) if chosen else np.arange(0)
    if not len(at):
        at = np.arange(len(forecasts))
    off = forecasts[at] - examples.left[at]
    capped = forecasts[at] - np.minimum(examples.left[at], ceiling)
    return LifeFigures(
        float(np.sqrt(np.mean(off**2))),
        float(np.sqrt(np.mean(capped**2))),
        _cross_coverage(examples, forecasts, ceiling, seen),
    )


def seen_share(left: Floats) -> Floats:
    """Return how likely a step with so much left (h) is seen of a life that is cut off at random, shape (n,).

    >>> seen_share(np.array([0.0, 5.0, 145.0, 300.0])).round(3).tolist()
    [0.0, 0.007, 1.0, 1.0]
    """
    low, high = _CUTS
    found: Floats = np.clip((np.floor(left) - low + 1) / (high - low), 0.0, 1.0)
    return found


def _cross_coverage(
    examples: Examples, forecasts: Floats, ceiling: float, seen: Floats | None, miss: float = 0.1
) -> float:
    """Return how often intervals that half of the lives give hold for the other half."""
    from millrace_apps.iot_maintenance.foresight.distribution import value_at

    lives = np.unique(examples.life)
    weights = np.ones(len(forecasts)) if seen is None else seen
    inside, total = 0.0, 0.0
    for half in (0, 1):
        learned = np.isin(examples.life, lives[half::2])
        within = examples.left <= ceiling
        part = learned & within
        kept = calibrated(forecasts[part], examples.left[part], ceiling, weights[part])
        rows = np.flatnonzero(~learned & within)
        columns = (forecasts[rows].tolist(), examples.left[rows].tolist(), weights[rows].tolist())
        for forecast, left, weight in zip(*columns, strict=True):
            values = kept.spread(forecast)
            low, high = value_at(values, miss / 2, ceiling), value_at(values, 1 - miss / 2, ceiling)
            inside += weight * (low <= left <= high)
            total += weight
    return inside / total if total else float("nan")


def learn_life(
    examples: Examples,
    ways: Sequence[tuple[Boosting, float]],
    *,
    folds: int = FOLDS,
    seed: int = 0,
    cut: bool = False,
    told: Callable[[str], None] = lambda line: None,
) -> tuple[LifeModel, int]:
    """Choose among ways of learning by lives that are held out, and learn from all lives by the best.

    Args:
        examples: Steps of lives that are over.
        ways: Settings, and the ceiling, h: what is longer is not told apart.
        folds: Parts in which lives are held out.
        seed: Where parts and models come from.
        cut: Whether intervals are for lives that are cut off at random, of whose ends little is seen; else
            for lives that are seen as a whole, as those of a fleet are.
        told: Called with a line on each way.

    Returns:
        The model, and which of the ways it was learned by.
    """
    seen = seen_share(examples.left) if cut else None
    best: tuple[float, int, LifeFigures, Floats] | None = None
    for place, (how, ceiling) in enumerate(ways):
        forecasts = out_of_fold(examples, how, ceiling, folds=folds, seed=seed)
        figures = figures_of(examples, forecasts, ceiling, seed=seed, seen=seen)
        told(f"ceiling {ceiling:g} h, {how}: {figures}")
        if best is None or figures.rmse < best[0]:
            best = figures.rmse, place, figures, forecasts
    if best is None:
        raise CannotTrain("there is no way to learn")
    _, place, figures, forecasts = best
    how, ceiling = ways[place]
    within = examples.left <= ceiling
    weights = None if seen is None else seen[within]
    calibration = calibrated(forecasts[within], examples.left[within], ceiling, weights)
    estimator = how.regressor(seed).fit(learnable(examples.x), np.minimum(examples.left, ceiling))
    return LifeModel(estimator, calibration, figures), place


class RiskModel(NamedTuple):
    """A trained model of the risk of each component.

    Attributes:
        estimator: The model.
        inputs: What it takes; the last of them say which component is asked about.
        components: The components it knows.
    """

    estimator: Any
    inputs: tuple[str, ...]
    components: tuple[str, ...]


def learn_risk(
    x: npt.NDArray[np.float32],
    inputs: Sequence[str],
    fails: Mapping[str, npt.NDArray[np.bool_]],
    how: Boosting,
    *,
    seed: int = 0,
) -> RiskModel:
    """Learn how likely each component fails.

    Args:
        x: Features, shape (n, features).
        inputs: Their names.
        fails: Component → whether it failed within the horizon, shape (n,).
        how: Settings.
        seed: Where models come from.

    Raises:
        CannotTrain: No component failed, or all did always.
    """
    from sklearn.multioutput import MultiOutputClassifier

    known = [name for name, truth in sorted(fails.items()) if 0 < int(truth.sum()) < len(truth)]
    if not known:
        raise CannotTrain("no component failed within the horizon: there is nothing to learn")
    truth = np.column_stack([fails[name] for name in known]).astype(int)
    estimator = MultiOutputClassifier(how.classifier(seed)).fit(learnable(x), truth)
    asked = tuple(f"{ASKED}{name}" for name in known)
    return RiskModel(estimator, (*inputs, *asked), tuple(known))
