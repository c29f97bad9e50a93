"""Forests as plain arrays, and their scores as probabilities."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from millrace.models.calibration import Calibration
from millrace.models.forest import Forest
from millrace.models.manifest import BrokenModel
from tests.unit.millrace.models.cases import data


@pytest.mark.parametrize("kind", ["ExtraTreesClassifier", "RandomForestClassifier"])
@pytest.mark.parametrize("leaf", [1, 5])
def test_a_forest_as_arrays_scores_as_scikit_learn_does(kind: str, leaf: int) -> None:
    x, fraud = data()
    from sklearn import ensemble, pipeline

    model = pipeline.make_pipeline(getattr(ensemble, kind)(7, min_samples_leaf=leaf, random_state=1)).fit(
        x, fraud
    )
    forest = Forest.of(model, 3)
    others = data(seed=9)[0]
    expected = model.predict_proba(others)[:, 1]
    np.testing.assert_allclose(forest.score_many(others), expected, rtol=0, atol=1e-12)
    one_by_one = [forest.score(row) for row in others.tolist()]
    np.testing.assert_allclose(one_by_one, expected, rtol=0, atol=1e-12)


@dataclass
class Tree:
    """A tree as a file may claim it to be."""

    children_left: Any = field(default_factory=lambda: np.array([1, -1, -1]))
    children_right: Any = field(default_factory=lambda: np.array([2, -1, -1]))
    feature: Any = field(default_factory=lambda: np.array([0, -2, -2]))
    threshold: Any = field(default_factory=lambda: np.array([0.5, -2.0, -2.0]))
    value: Any = field(default_factory=lambda: np.array([[[0.5, 0.5]], [[1.0, 0.0]], [[0.0, 1.0]]]))
    node_count: int = 3
    max_depth: int = 1


class Trees:
    classes_ = (False, True)

    def __init__(self, tree: Tree) -> None:
        self.estimators_ = [type("Estimator", (), {"tree_": tree})()]


@pytest.mark.parametrize(
    "wrong",
    [
        {"children_left": np.array([7, -1, -1])},
        {"children_left": np.array([-5, -1, -1])},
        {"children_right": np.array([0, -1, -1])},
        {"children_right": np.array([2, -1, 1])},
        {"feature": np.array([3, -2, -2])},
        {"feature": np.array([-1, -2, -2])},
        {"value": np.array([[[0.5, 0.5]], [[np.nan, 0.0]], [[0.0, 1.0]]])},
        {"value": np.array([[[0.5, 0.5]], [[0.0, 0.0]], [[0.0, 1.0]]])},
        {"threshold": np.array([0.5])},
    ],
)
def test_a_tree_that_leads_outside_of_itself_is_refused(wrong: dict[str, Any]) -> None:
    assert Forest.of(Trees(Tree()), 3).score([1.0, 0.0, 0.0]) == 1.0
    with pytest.raises(BrokenModel, match="outside"):
        Forest.of(Trees(Tree(**wrong)), 3)


def test_what_is_no_forest_is_refused() -> None:
    with pytest.raises(BrokenModel, match="no forest"):
        Forest.of(object(), 3)


def test_a_calibrated_score_keeps_its_order_and_means_a_probability() -> None:
    rng = np.random.default_rng(0)
    p = rng.uniform(0.01, 0.6, 20_000)
    fraud = rng.random(20_000) < p
    squeezed = p**2
    curve = Calibration.fit(squeezed, fraud)
    got = curve(squeezed)
    np.testing.assert_allclose([curve.one(s) for s in squeezed[:50]], got[:50], rtol=1e-12)
    assert (np.diff(got[np.argsort(squeezed)]) >= 0).all()
    for low in (0.1, 0.3, 0.5):
        bin_ = (got >= low) & (got < low + 0.1)
        assert fraud[bin_].mean() == pytest.approx(got[bin_].mean(), abs=0.04)
