"""Whether rows still look like those that a model learned from."""

from __future__ import annotations

import numpy as np
import pytest

from millrace.models.drift import age_days, profile_of, psi, shifts

DAY_MS = 86_400_000


def test_a_shift_of_a_feature_is_found_and_noise_is_not() -> None:
    rng = np.random.default_rng(1)
    profile = profile_of(rng.normal(size=(5_000, 2)), ("steady", "moved"))
    now = {"steady": rng.normal(size=2_000), "moved": rng.normal(loc=1.0, size=2_000)}
    found = shifts(profile, now)
    assert [(s.feature, s.shifted) for s in found] == [("moved", True), ("steady", False)]
    assert psi([1.0], [0.5, 0.5], [0.0, 2.0]) == pytest.approx(0.0)
    assert age_days(0, 3 * DAY_MS) == 3.0
