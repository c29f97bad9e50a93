"""Boosted trees as arrays: what scikit-learn says, one row or many, the very same number."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

from millrace.models.boosted import _TOGETHER, Boosted


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("holes", [False, True])
def test_many_rows_have_the_scores_of_each_alone_and_of_scikit_learn(seed: int, holes: bool) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(600, 5))
    if holes:
        x[rng.random(x.shape) < 0.2] = np.nan
    y = np.nan_to_num(x[:, 0]) + rng.normal(size=600) > 0
    leaves = (2, 8, 31)[seed % 3]
    model = HistGradientBoostingClassifier(max_iter=1 + 20 * seed, max_leaf_nodes=leaves, random_state=0)
    model.fit(x, y)
    boosted = Boosted.of(model, 5)
    rows = x[:100]
    many = boosted.score_many(rows)
    assert many == pytest.approx(model.decision_function(rows.astype(np.float32)), abs=1e-9)
    for size in (1, 3, 5, 40):
        assert (boosted.score_many(rows[:size]) == many[:size]).all()
    assert [boosted.score(row) for row in rows] == many.tolist()


def test_more_rows_than_are_scored_together_are_scored_part_by_part() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(_TOGETHER // 4, 3))
    model = HistGradientBoostingRegressor(max_iter=30, random_state=0).fit(x[:500], x[:500, 0])
    boosted = Boosted.of(model, 3)
    found = boosted.score_many(x)
    assert found.shape == (len(x),)
    assert found[-9:].tolist() == [boosted.score(row) for row in x[-9:]]
    assert len(boosted.score_many(x[:0])) == 0


def test_trees_that_never_divide_say_the_same_of_all() -> None:
    model = HistGradientBoostingRegressor(max_iter=3).fit(np.zeros((30, 2)), np.arange(30.0))
    assert len(set(Boosted.of(model, 2).score_many(np.zeros((9, 2))).tolist())) == 1
