"""The interval of a share: figures that are printed elsewhere, and how often it holds the truth."""

from __future__ import annotations

from random import Random

import pytest

from millrace.experiments.shares import share_interval


@pytest.mark.parametrize(
    ("did", "of", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_it_is_what_newcombe_prints(did: int, of: int, low: float, high: float) -> None:
    """Newcombe, Statistics in Medicine 17 (1998), 857: table I, method 3."""
    assert share_interval(did, of) == (pytest.approx(low, abs=5e-5), pytest.approx(high, abs=5e-5))


def test_of_nobody_there_is_none() -> None:
    assert share_interval(0, 0) is None


@pytest.mark.parametrize("truth", [0.02, 0.3, 0.9])
def test_it_holds_the_truth_about_as_often_as_it_says(truth: float) -> None:
    random = Random(3)
    held = 0
    for _ in range(3_000):
        found = share_interval(sum(random.random() < truth for _ in range(60)), 60)
        assert found
        held += found[0] <= truth <= found[1]
    assert 0.92 < held / 3_000 < 0.98
