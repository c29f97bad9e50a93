"""Gates: what a challenger must show beside the champion on the same rows."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from millrace.errors import UserError
from millrace.models.calibration import Calibration
from millrace.models.gates import CannotCompare, Gain, Gate, Judged, gain_of, judge, read_gates, verdict_of

RANKING = Gate(metric="average_precision", min_groups=5)


def two_models(gain: float, days: int = 14) -> Judged:
    rng = np.random.default_rng(3)
    fraud = rng.random(days * 150) < 0.05
    day = np.repeat(np.arange(days), 150)
    champion = fraud + rng.normal(scale=0.7, size=len(fraud))
    challenger = fraud * (1 + gain) + rng.normal(scale=0.7, size=len(fraud))
    return Judged(fraud, champion, challenger, day, "payments", "days", "frauds")


def test_only_a_gain_that_is_no_accident_is_proven() -> None:
    def proven(judged: Judged) -> bool:
        return judge([RANKING], judged, rounds=40)[0].passed

    assert proven(two_models(1.0))
    assert not proven(two_models(-0.5))
    same = two_models(0.0)
    assert not proven(Judged(same.truth, same.champion, same.champion, same.groups))


def test_too_little_cannot_be_compared() -> None:
    (verdict,) = judge([RANKING], two_models(1.0, days=3))
    assert not verdict.passed
    assert verdict.why == "average_precision: 3 days, 2 fewer than the 5 that are needed"
    few = Gate(metric="average_precision", min_rows=2_101)
    assert judge([few], two_models(1.0))[0].why.endswith(
        "2,100 payments, 1 fewer than the 2,101 that are needed"
    )


def resampled(judged: Judged, measure: Any, confidence: float, rounds: int, seed: int) -> tuple[float, float]:
    """The interval of the gain, by copying rows in place of weighing them."""
    groups = sorted(set(judged.groups.tolist()))
    places = {group: np.flatnonzero(judged.groups == group) for group in groups}
    rng = np.random.default_rng(seed)
    gains = []
    for _ in range(rounds):
        drawn = [groups[n] for n in rng.integers(0, len(groups), len(groups)).tolist()]
        rows = np.concatenate([places[group] for group in drawn])
        gains.append(
            measure(judged.truth[rows], judged.challenger[rows])
            - measure(judged.truth[rows], judged.champion[rows])
        )
    tail = 100 * (1 - confidence) / 2
    return float(np.percentile(gains, tail)), float(np.percentile(gains, 100 - tail))


@pytest.mark.parametrize("gain", [-0.5, 0.0, 0.4])
@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_the_interval_of_a_ranking_equals_that_of_rows_copied_day_by_day(
    gain: float, confidence: float
) -> None:
    from sklearn.metrics import average_precision_score, roc_auc_score

    judged = two_models(gain)
    for metric, measure in (("average_precision", average_precision_score), ("roc_auc", roc_auc_score)):
        found = gain_of(judged, Gate(metric=metric, confidence=confidence), rounds=30, seed=5)
        low, high = resampled(judged, measure, confidence, 30, 5)
        assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))
        assert found.champion == pytest.approx(measure(judged.truth, judged.champion))
        assert found.challenger == pytest.approx(measure(judged.truth, judged.challenger))


def test_of_errors_the_lower_ones_are_better() -> None:
    from sklearn.metrics import mean_absolute_error, root_mean_squared_error

    rng = np.random.default_rng(1)
    hours = rng.uniform(10, 90, 300)
    judged = Judged(hours, hours + rng.normal(0, 9, 300), hours + rng.normal(0, 4, 300), np.arange(300) // 10)
    for metric, measure in (
        ("mean_absolute_error", mean_absolute_error),
        ("root_mean_squared_error", root_mean_squared_error),
    ):
        gate = Gate(metric=metric, better="lower", margin=2.0, confidence=None)
        found = gain_of(judged, gate)
        expected = measure(hours, judged.champion) - measure(hours, judged.challenger)
        assert found.low == found.high == pytest.approx(expected)
        assert judge([gate], judged)[0].passed
        assert not judge([Gate(metric=metric, better="higher", confidence=None)], judged)[0].passed
        low, high = resampled(judged, lambda t, p, m=measure: -m(t, p), 0.95, 25, 0)
        sure = gain_of(judged, Gate(metric=metric, better="lower"), rounds=25)
        assert (sure.low, sure.high) == (pytest.approx(low), pytest.approx(high))


def test_ten_thousand_gains_pass_exactly_when_a_plain_rule_says_so() -> None:
    """And a refusal says by how much: the margin is met by what is missing, and by nothing less."""
    random = Random(2)
    passed = 0
    for _ in range(10_000):
        low, high = sorted(random.randrange(-40, 40) for _ in range(2))
        margin = random.randrange(-20, 20)
        sure = random.random() < 0.5
        gate = Gate(metric="m", margin=margin / 16, confidence=0.9 if sure else None)
        gain = Gain(0.5, 0.5, low / 16, high / 16 if sure else low / 16)
        verdict = verdict_of(gate, gain, "rows")
        assert verdict.passed is (Fraction(low, 16) > Fraction(margin, 16))
        passed += verdict.passed
        short = f"{(margin - low) / 16:.4f} short of more than {margin / 16:+.4f}"
        assert (short in verdict.why) is not verdict.passed
    assert 2_000 < passed < 8_000


def test_every_gate_must_be_passed() -> None:
    judged = two_models(1.0)
    found = judge([RANKING, Gate(metric="roc_auc", margin=0.5)], judged, rounds=20)
    assert f" on 2,100 payments of 14 days with {judged.truth.sum()} frauds; gain between " in found[0].why
    assert [verdict.passed for verdict in found] == [True, False]
    assert found[1].why.startswith("roc_auc 0.")
    with pytest.raises(CannotCompare, match="no gate"):
        judge([], judged)


def test_what_cannot_be_measured_is_not_compared() -> None:
    judged = two_models(1.0)
    nothing = Judged(judged.truth & False, judged.champion, judged.challenger, judged.groups, "payments")
    with pytest.raises(CannotCompare, match="nothing of what is to be found is among them"):
        judge([Gate(metric="average_precision")], nothing)
    with pytest.raises(CannotCompare, match="no measure f7; there are: average_precision, brier"):
        judge([Gate(metric="f7")], judged)
    with pytest.raises(CannotCompare, match="not scored the same rows"):
        Judged(judged.truth, judged.champion[1:], judged.challenger, judged.groups)


def test_an_app_has_measures_of_its_own() -> None:
    judged = two_models(1.0)
    found = judge(
        [Gate(metric="share_above", confidence=None)],
        judged,
        measures={"share_above": lambda truth, predicted, weights: float(np.mean(predicted > 0.5))},
    )
    assert found[0].passed


def test_gates_are_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "gates.yaml"
    file.write_text("- {metric: roc_auc, margin: 0.01, min_rows: 100}\n- {metric: brier, better: lower}\n")
    assert read_gates(file) == (
        Gate(metric="roc_auc", margin=0.01, min_rows=100),
        Gate(metric="brier", better="lower"),
    )
    for text, told in (
        ("[]", "no gate"), ("- {metric: m, sure: 1}", "sure"), ("metric: m", "holds no gates"),
        ("- {metric: m, confidence: 1.0}", "holds no gates"), ("- {metric: m, better: more}", "more"),
    ):  # fmt: skip
        file.write_text(text)
        with pytest.raises(UserError, match=told):
            read_gates(file)
    with pytest.raises(UserError, match="cannot be read"):
        read_gates(tmp_path / "none.yaml")


def test_a_row_that_stands_for_several_counts_as_so_many_rows() -> None:
    judged = two_models(0.5)
    rng = np.random.default_rng(8)
    weights = rng.integers(0, 4, len(judged.truth))
    copied = [np.repeat(column, weights) for column in (judged.truth, judged.champion, judged.challenger)]
    many = Judged(copied[0], copied[1], copied[2], np.repeat(judged.groups, weights))
    one = Judged(
        judged.truth, judged.champion, judged.challenger, judged.groups, weights=weights.astype(float)
    )
    assert gain_of(one, RANKING, rounds=20) == pytest.approx(gain_of(many, RANKING, rounds=20))
    assert gain_of(one, RANKING, rounds=20) != pytest.approx(gain_of(judged, RANKING, rounds=20))
    with pytest.raises(CannotCompare, match="same rows"):
        Judged(judged.truth, judged.champion, judged.challenger, judged.groups, weights=np.ones(3))


def test_a_curve_over_rows_that_stand_for_several_is_that_of_their_copies() -> None:
    rng = np.random.default_rng(9)
    scores, weights = rng.random(400), rng.integers(0, 4, 400)
    positive = rng.random(400) < scores**2
    copied = Calibration.fit(np.repeat(scores, weights), np.repeat(positive, weights))
    found = Calibration.fit(scores, positive, weights.astype(float))
    assert (found.slope, found.intercept) == pytest.approx((copied.slope, copied.intercept), rel=1e-3)
