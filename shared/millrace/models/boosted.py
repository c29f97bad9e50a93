"""Boosted trees as plain tuples and arrays: checked once, then scored fast, one row or many.

scikit-learn follows the indices in a file of trees unchecked; here they are checked, and a row is scored in a
fraction of a millisecond.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from millrace.models.manifest import BrokenModel

#: Types that files of boosted trees hold beside those that skops trusts; checked here before they are used.
BOOSTED: Final = (
    "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",
    "sklearn.utils._bunch.Bunch",
)

#: So few rows are scored one by one: NumPy's calls cost more than all steps of all trees.
_FEW: Final = 4
#: Of so many rows and trees, multiplied, the steps are made together at most: what they need fits the caches.
_TOGETHER: Final = 1 << 14


class Boosted:
    """The trees of one boosted model, or of several whose mean is taken.

    Args:
        trees: For each tree its nodes, as scikit-learn has them.
        base: What the trees' values are added to.
        models: Of how many models they are.
    """

    def __init__(self, trees: list[Any], base: float, models: int) -> None:
        self._base, self._models = base, models
        self._nested = [_nested(nodes) for nodes in trees]
        starts = np.cumsum([0, *(len(nodes) for nodes in trees)])
        self._roots = starts[:-1]
        joined = np.concatenate(trees)
        here = np.arange(len(joined))
        start = np.repeat(starts[:-1], np.diff(starts))
        leaf = joined["is_leaf"].astype(bool)
        self._feature = np.where(leaf, 0, joined["feature_idx"])
        self._threshold = joined["num_threshold"].astype(np.float64)
        self._missing = joined["missing_go_to_left"].astype(bool)
        left = np.where(leaf, here, joined["left"] + start)
        right = np.where(leaf, here, joined["right"] + start)
        #: Of node n where it goes on to: at 2 n right, at 2 n + 1 left.
        self._ways = np.column_stack((right, left)).reshape(-1)
        self._depth = max(map(_depth, self._nested))
        self._value = joined["value"].astype(np.float64)

    @classmethod
    def of(cls, model: Any, inputs: int) -> Boosted:
        """Return the trees of a ``HistGradientBoosting`` model, or of a ``VotingRegressor`` of such.

        Args:
            model: The trained model.
            inputs: Number of features that it is to take.

        Raises:
            BrokenModel: It is something else, or its trees point outside of themselves.
        """
        models = list(getattr(model, "estimators_", ())) or [model]
        trees: list[Any] = []
        base = 0.0
        for one in models:
            stages = vars(one).get("_predictors")
            if not stages or any(len(stage) != 1 for stage in stages):
                raise BrokenModel(f"{type(one).__name__} is no boosted model of one output")
            base += float(np.asarray(vars(one)["_baseline_prediction"]).reshape(-1)[0])
            for (tree,) in stages:
                _check(tree.nodes, inputs)
                trees.append(tree.nodes)
        if not np.isfinite(base):
            raise BrokenModel("the model begins with no number")
        return cls(trees, base, len(models))

    def score(self, row: Any) -> float:
        """Return what the trees say of one row, shape (features,)."""
        x = np.asarray(row, dtype=np.float32).tolist()
        total = self._base
        for node in self._nested:
            while node.__class__ is tuple:
                feature, threshold, left, right, missing = node
                value = x[feature]
                node = left if (missing if value != value else value <= threshold) else right
            total += node
        return total / self._models

    def score_many(self, rows: Any) -> npt.NDArray[np.float64]:
        """Return the same of many rows, shape (n, features) → (n,)."""
        if len(rows) <= _FEW:
            return np.array([self.score(row) for row in rows])
        x = np.asarray(rows, dtype=np.float32).astype(np.float64)
        size = max(1, _TOGETHER // len(self._roots))
        parts = [self._together(x[at : at + size]) for at in range(0, len(x), size)]
        return np.concatenate(parts) / self._models

    def _together(self, x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return the sums over all trees, of which a step is made at once."""
        rows, trees = len(x), len(self._roots)
        begin = np.repeat(np.arange(rows) * x.shape[1], trees)
        flat, holes = x.reshape(-1), bool(np.isnan(x).any())
        at = np.tile(self._roots, rows)
        for _ in range(self._depth):
            values = flat.take(begin + self._feature.take(at))
            left = values <= self._threshold.take(at)
            if holes:
                left |= np.isnan(values) & self._missing.take(at)
            at = self._ways.take(2 * at + left)
        total = np.empty((rows, trees + 1))
        total[:, 0] = self._base
        total[:, 1:] = self._value.take(at).reshape(rows, trees)
        # One after the other, as a single row's are added.
        return np.add.accumulate(total, axis=1)[:, -1]


def _nested(nodes: Any) -> Any:
    """Return a tree as (feature, threshold, left, right, missing goes left), and a leaf as its number."""
    made: list[Any] = nodes["value"].tolist()
    columns = [nodes[name].tolist() for name in ("feature_idx", "num_threshold", "left", "right")]
    missing, leaf = nodes["missing_go_to_left"].astype(bool).tolist(), nodes["is_leaf"].tolist()
    for at in range(len(made) - 1, -1, -1):  # children stand behind their parents, so they are made by now
        if not leaf[at]:
            feature, threshold, left, right = (column[at] for column in columns)
            made[at] = (feature, threshold, made[left], made[right], missing[at])
    return made[0]


def _depth(tree: Any) -> int:
    """Return how many steps the longest way to a leaf has."""
    if tree.__class__ is not tuple:
        return 0
    return 1 + max(_depth(tree[2]), _depth(tree[3]))


def _check(nodes: Any, inputs: int) -> None:
    """Refuse a tree that leads outside of itself, or in circles."""
    names = set(getattr(nodes.dtype, "names", None) or ())
    needed = {"value", "feature_idx", "num_threshold", "missing_go_to_left", "left", "right", "is_leaf"}
    if nodes.ndim != 1 or not len(nodes) or not needed <= names:
        raise BrokenModel("a tree of the model is none")
    count, here = len(nodes), np.arange(len(nodes))
    inner = ~nodes["is_leaf"].astype(bool)
    left, right = nodes["left"][inner].astype(np.int64), nodes["right"][inner].astype(np.int64)
    feature = nodes["feature_idx"][inner]
    good = (
        bool(np.all((left > here[inner]) & (left < count) & (right > here[inner]) & (right < count)))
        and bool(np.all((feature >= 0) & (feature < inputs)))
        and bool(np.all(np.isfinite(nodes["value"])))
        and not bool(np.any(np.isnan(nodes["num_threshold"][inner])))
        and ("is_categorical" not in names or not nodes["is_categorical"].any())
    )
    if not good:
        raise BrokenModel("a tree of the model points outside of itself")
