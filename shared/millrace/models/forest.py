"""A trained forest as plain arrays: checked once, then scored fast, one row or many.

scikit-learn's ``predict_proba`` takes milliseconds for one row, most of it before the first tree. And a file
of trees is only as good as its indices: scikit-learn follows them unchecked. Here they are checked.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from millrace.models.manifest import BrokenModel

_LEAF: Final = -1


class Forest:
    """The trees of a forest, one after the other.

    Args:
        feature: Feature that each node looks at, of leaves anything.
        threshold: Rows with at most this go left.
        left: Place of the left child; of a leaf its own.
        right: Place of the right child; of a leaf its own.
        value: Share of the second class in each node.
        roots: Places of the roots.
        depth: Longest way from a root to a leaf.
        inputs: Number of features.
    """

    def __init__(
        self,
        feature: npt.NDArray[np.int64],
        threshold: npt.NDArray[np.float64],
        left: npt.NDArray[np.int64],
        right: npt.NDArray[np.int64],
        value: npt.NDArray[np.float64],
        roots: npt.NDArray[np.int64],
        depth: int,
        inputs: int,
    ) -> None:
        self._feature, self._threshold, self._value = feature, threshold, value
        self._children = np.stack([right, left], axis=1).ravel()
        self._roots, self._depth = roots, depth
        self._trees = _nested(feature, threshold, left, right, value, roots)
        self.inputs = inputs

    @classmethod
    def of(cls, model: Any, inputs: int) -> Forest:
        """Return the trees of a scikit-learn forest of two classes, or of a pipeline of one step.

        Args:
            model: The trained model.
            inputs: Number of features that it is to take.

        Raises:
            BrokenModel: It is something else, or its trees point outside of themselves.
        """
        steps = getattr(model, "steps", None)
        if steps is not None:
            if len(steps) != 1:
                raise BrokenModel(f"a pipeline of {len(steps)} steps is no forest")
            model = steps[0][1]
        trees = [estimator.tree_ for estimator in getattr(model, "estimators_", ())]
        if not trees or list(getattr(model, "classes_", ())) != [False, True]:
            raise BrokenModel(f"{type(model).__name__} is no forest that tells True from False")
        columns: list[list[npt.NDArray[Any]]] = [[], [], [], [], []]
        roots, depth, offset = [], 0, 0
        for tree in trees:
            _check(tree, inputs)
            here = np.arange(tree.node_count)
            leaf = tree.children_left == _LEAF
            share = tree.value[:, 0, :]
            for column, part in zip(
                columns,
                (
                    np.where(leaf, 0, tree.feature),
                    tree.threshold,
                    np.where(leaf, here, tree.children_left) + offset,
                    np.where(leaf, here, tree.children_right) + offset,
                    share[:, 1] / share.sum(axis=1),
                ),
                strict=True,
            ):
                column.append(part)
            roots.append(offset)
            depth = max(depth, int(tree.max_depth))
            offset += tree.node_count
        feature, threshold, left, right, value = (np.concatenate(column) for column in columns)
        return cls(feature, threshold, left, right, value, np.array(roots), depth, inputs)

    def score(self, row: Any) -> float:
        """Return the share of the second class that the trees expect for one row.

        Args:
            row: Its features, in order.
        """
        # For one row NumPy's calls cost more than all steps of all trees.
        x = np.asarray(row, dtype=np.float32).tolist()
        total = 0.0
        for node in self._trees:
            while node.__class__ is tuple:
                feature, threshold, left, right = node
                node = left if x[feature] <= threshold else right
            total += node
        return total / len(self._trees)

    def score_many(self, rows: Any) -> npt.NDArray[np.float64]:
        """Return the same for many rows, shape (n,).

        Args:
            rows: Features, shape (n, features).
        """
        x = np.asarray(rows, dtype=np.float32)
        total = np.zeros(len(x))
        every = np.arange(len(x))
        feature, threshold, children = self._feature, self._threshold, self._children
        for root in self._roots.tolist():
            at = np.full(len(x), root)
            for _ in range(self._depth):
                moved = children[2 * at + (x[every, feature[at]] <= threshold[at])]
                if np.array_equal(moved, at):
                    break
                at = moved
            total += self._value[at]
        return total / len(self._roots)


def _nested(
    feature: npt.NDArray[Any],
    threshold: npt.NDArray[Any],
    left: npt.NDArray[Any],
    right: npt.NDArray[Any],
    value: npt.NDArray[Any],
    roots: npt.NDArray[Any],
) -> list[Any]:
    """Return each tree as (feature, threshold, left, right), and a leaf as its number."""
    nodes: list[Any] = value.tolist()
    columns = zip(feature.tolist(), threshold.tolist(), left.tolist(), right.tolist(), strict=True)
    for at, (looks_at, limit, down, up) in reversed(list(enumerate(columns))):
        if down != at:  # children stand behind their parents, so they are made by now
            nodes[at] = (looks_at, limit, nodes[down], nodes[up])
    return [nodes[root] for root in roots.tolist()]


def _check(tree: Any, inputs: int) -> None:
    """Refuse a tree that leads outside of itself, or in circles."""
    count = tree.node_count
    left, right, feature = tree.children_left, tree.children_right, tree.feature
    here = np.arange(count)
    inner = left != _LEAF
    good = (
        count > 0
        and len(left) == len(right) == len(feature) == len(tree.threshold) == len(tree.value) == count
        and tree.value.shape[1:] == (1, 2)
        and bool(np.all((right == _LEAF) == ~inner))
        # Children stand behind their parents, so no way is longer than the tree.
        and bool(np.all((left[inner] > here[inner]) & (left[inner] < count)))
        and bool(np.all((right[inner] > here[inner]) & (right[inner] < count)))
        and bool(np.all((feature[inner] >= 0) & (feature[inner] < inputs)))
        and bool(np.all(np.isfinite(tree.value)) and np.all(tree.value.sum(axis=2) > 0))
        and 0 <= tree.max_depth < count + 1
    )
    if not good:
        raise BrokenModel("a tree of the model points outside of itself")
