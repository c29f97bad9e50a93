"""Whether rows still look like those that a model learned from."""

from __future__ import annotations

import numpy as np
import pytest

from millrace.models.drift import MeanWatch, age_days, profile_of, psi, shifts

DAY_MS = 86_400_000


def test_a_shift_of_a_feature_is_found_and_noise_is_not() -> None:
    rng = np.random.default_rng(1)
    profile = profile_of(rng.normal(size=(5_000, 2)), ("steady", "moved"))
    now = {"steady": rng.normal(size=2_000), "moved": rng.normal(loc=1.0, size=2_000)}
    found = shifts(profile, now)
    assert [(s.feature, s.shifted) for s in found] == [("moved", True), ("steady", False)]
    assert psi([1.0], [0.5, 0.5], [0.0, 2.0]) == pytest.approx(0.0)
    assert age_days(0, 3 * DAY_MS) == 3.0


def test_a_change_of_the_mean_is_told_once_and_none_where_there_is_none() -> None:
    rng = np.random.default_rng(2)
    watch = MeanWatch("labels")
    assert watch.add_all((rng.random(2_000) < 0.05).astype(float)) == 0
    assert watch.add_all((rng.random(1_000) < 0.25).astype(float)) >= 1
    assert watch.mean == pytest.approx(0.25, abs=0.05)
