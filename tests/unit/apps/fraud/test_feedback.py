"""A model of investigators' answers beside that of delayed labels: what it learns, and how it is kept."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from millrace.models.exports import Exports
from millrace.models.forest import Forest
from millrace.models.gates import Judged, gain_of, judge
from millrace.models.loading import LoadedModel, Reader
from millrace.models.manifest import Manifest
from millrace.models.registry import Entry, manifest_of
from millrace.models.serving import ExportedModels, ModelHolder
from millrace.models.tables import matrix
from millrace_apps.fraud.model.estimator import FEATURES_VERSION, INPUTS, ModelSpec
from millrace_apps.fraud.model.feedback import LEAST_FEEDBACK, Learning, NotAPair, pair_of, tells
from millrace_apps.fraud.model.learner import LEARNER
from millrace_apps.fraud.model.monitor import days_of, standing
from millrace_apps.fraud.model.training import Trained, examples, feedback_examples, train
from millrace_apps.fraud.model.weeks import day_of
from millrace_apps.fraud.operations.model_cli import _told
from millrace_apps.fraud.state.labels import DAY_MS

HOUR_MS = 3_600_000
SPEC = ModelSpec("small", INPUTS, 12)
DELAY_MS = 7 * DAY_MS
#: The day on which frauds begin to look otherwise, and that of the training.
CHANGE, NOW = 32, 38
PER_DAY = 150


class World:
    """Payments of which the highest in one feature are frauds; from a day on the highest in another, too.

    Holders complain of frauds six days later. Investigators answer within hours: of payments that are high in
    either feature, and of a few others.
    """

    def __init__(self, *, drifts: bool, answered: float = 1.0, days: int = 60, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        rows = days * PER_DAY
        table = pd.DataFrame({name: rng.normal(size=rows) for name in INPUTS})
        table["transaction_id"] = [f"{n:06}" for n in range(rows)]
        table["event_time_ms"] = np.sort(rng.integers(0, days * DAY_MS, rows))
        table["customer_id"] = rng.integers(0, 60, rows).astype(str)
        table["is_fraud"] = None
        old, new = table[INPUTS[0]], table[INPUTS[1]]
        changed = (table["event_time_ms"] >= CHANGE * DAY_MS) & drifts
        self.truth = (old > 1.7) | ((new > 1.7) & changed)
        looked_at = rng.random(rows) < np.where((old > 1.5) | (new > 1.5), 1.0, 0.05) * answered
        table["alerted"] = looked_at
        self.features = table
        self.labels = pd.concat(
            [
                self._said(looked_at, "feedback", rng.integers(HOUR_MS, 12 * HOUR_MS, rows)),
                self._said(self.truth & ~looked_at, "chargeback", np.full(rows, 6 * DAY_MS)),
            ],
            ignore_index=True,
        )

    def _said(self, rows: Any, source: str, after: Any) -> pd.DataFrame:
        chosen: pd.DataFrame = self.features[["transaction_id"]][rows].copy()
        chosen["event_time_ms"] = self.features["event_time_ms"][rows] + after[rows]
        chosen["is_fraud"] = self.truth[rows]
        chosen["source"] = source
        return chosen

    def feedback(self, as_of_ms: int, days: int = 14) -> Any:
        return feedback_examples(self.features, self.labels, as_of_ms, days=days, inputs=INPUTS)

    def trained(self, *, two: bool, day: int = NOW, days: int = 14) -> Trained:
        known = examples(self.features, day * DAY_MS, DELAY_MS, labels=self.labels, inputs=INPUTS)
        feedback = partial(self.feedback, days=days) if two else None
        return train(known, DELAY_MS, spec=SPEC, feedback=feedback, as_of_ms=day * DAY_MS)

    def weeks_after(self, model: Any, day: int = NOW) -> tuple[Any, Any, Any]:
        """What the payments of the two weeks after a day were, their scores, their days."""
        at = self.features["event_time_ms"]
        rows = ((at >= day * DAY_MS) & (at < (day + 14) * DAY_MS)).to_numpy()
        scores = model.predict_proba(matrix(self.features[rows], INPUTS))[:, 1]
        return self.truth[rows], scores, day_of(at[rows])


@pytest.fixture(scope="module")
def drifting() -> World:
    return World(drifts=True)


@pytest.fixture(scope="module")
def pair(drifting: World) -> Trained:
    return drifting.trained(two=True, days=7)


@pytest.fixture(scope="module")
def alone(drifting: World) -> Trained:
    return drifting.trained(two=False)


def test_the_pair_is_the_mean_of_its_members_and_leaves_them_as_they_are() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(300, 4))
    from sklearn.ensemble import ExtraTreesClassifier

    late = ExtraTreesClassifier(7, random_state=0).fit(x, x[:, 0] > 1)
    soon = ExtraTreesClassifier(7, random_state=1).fit(x, x[:, 1] > 1)
    expected = (late.predict_proba(x) + soon.predict_proba(x)) / 2
    both = pair_of(late, soon)
    np.testing.assert_allclose(both.predict_proba(x), expected, atol=1e-12)
    np.testing.assert_allclose(Forest.of(both, 4).score_many(x), expected[:, 1], atol=1e-12)
    assert (len(both.estimators_), len(late.estimators_), len(soon.estimators_)) == (14, 7, 7)
    with pytest.raises(NotAPair, match="as many trees"):
        pair_of(late, ExtraTreesClassifier(5, random_state=0).fit(x, x[:, 0] > 1))


def test_feedback_finds_frauds_of_a_new_kind_before_delayed_labels_show_them(
    drifting: World, pair: Trained, alone: Trained
) -> None:
    """The training is 6 days after the change, the delay 7 days: no delayed label speaks of the new kind."""
    assert alone.until_ms < CHANGE * DAY_MS
    fraud, with_feedback, days = drifting.weeks_after(pair.model)
    _, without, _ = drifting.weeks_after(alone.model)
    from sklearn.metrics import average_precision_score

    assert average_precision_score(fraud, with_feedback) > average_precision_score(fraud, without) + 0.1
    judged = Judged(fraud, without, with_feedback, days, "payments", "days")
    assert [verdict.passed for verdict in judge(LEARNER.gates, judged, rounds=40)] == [True]


def test_without_a_change_the_pair_is_no_worse_beyond_doubt() -> None:
    still = World(drifts=False)
    fraud, with_feedback, days = still.weeks_after(still.trained(two=True).model)
    _, without, _ = still.weeks_after(still.trained(two=False).model)
    gain = gain_of(Judged(fraud, without, with_feedback, days), LEARNER.gates[0], rounds=40)
    assert gain.challenger > 0.9
    assert gain.low > -0.1


def test_the_pairs_probabilities_are_calibrated_as_one(drifting: World, pair: Trained) -> None:
    still = World(drifts=False, seed=3)
    trained = still.trained(two=True)
    fraud, scores, _ = still.weeks_after(trained.model)
    calibrated = trained.calibration(scores)
    assert calibrated.mean() == pytest.approx(fraud.mean(), rel=0.35)
    assert np.mean((calibrated - fraud) ** 2) < np.mean((scores - fraud) ** 2)
    assert pair.calibration.slope > 0


def test_with_too_little_feedback_the_delayed_labels_model_stands_alone_and_it_is_said() -> None:
    silent = World(drifts=True, answered=0.001)
    two, delayed = silent.trained(two=True), silent.trained(two=False)
    assert (two.learning, two.feedback_rows, two.alone) == (Learning.DELAYED, 0, None)
    rows = matrix(silent.features, INPUTS)
    np.testing.assert_array_equal(two.model.predict_proba(rows), delayed.model.predict_proba(rows))
    assert (two.calibration.slope, two.until_ms) == (delayed.calibration.slope, delayed.until_ms)
    assert any("too little feedback" in line for line in _told(two, Learning.TWO))
    assert not any("feedback" in line for line in _told(delayed, Learning.DELAYED))


def test_feedback_that_has_only_begun_is_learned_from_and_judged_without() -> None:
    """Investigators begin on day 33: nothing of theirs is known before the days that are held back."""
    begun = World(drifts=True)
    labels = begun.labels
    of_payment = labels["transaction_id"].map(begun.features.set_index("transaction_id")["event_time_ms"])
    sources = np.where(of_payment < 33 * DAY_MS, "chargeback", labels["source"])
    begun.labels = labels.assign(source=sources)
    trained = begun.trained(two=True)
    assert (trained.learning, trained.alone) == (Learning.TWO, None)
    assert "judged without" in _told(trained, Learning.TWO)[-1]
    assert trained.calibration.slope != 1.0


def test_training_reports_the_pair_beside_the_model_without_feedback(pair: Trained, alone: Trained) -> None:
    assert pair.learning is Learning.TWO
    assert pair.alone == alone.validation
    assert 0 <= pair.validation.alert_precision <= 1
    assert "validation_alert_precision" in pair.metrics()
    told = _told(pair, Learning.TWO)
    assert "alert_precision" in told[2]
    assert told[3].startswith("without feedback: auc")
    assert f"{pair.feedback_rows:,} payments" in told[1]


def test_feedback_is_what_was_said_by_then_of_the_last_days_and_the_newest_word_counts() -> None:
    features = World(drifts=False, days=5).features
    ids, at = features["transaction_id"], features["event_time_ms"]
    words = [
        (0, 1 * DAY_MS, True, "feedback"),
        (0, 3 * DAY_MS, False, "correction"),
        (1, 1 * DAY_MS, True, "chargeback"),
        (400, 3 * DAY_MS, True, "feedback"),
        (401, 4 * DAY_MS + 1, True, "feedback"),
        (402, 3 * DAY_MS, False, "feedback"),
    ]
    labels = pd.DataFrame(
        [(ids[n], known, fraud, source) for n, known, fraud, source in words],
        columns=["transaction_id", "event_time_ms", "is_fraud", "source"],
    )

    def said(as_of: int, days: int) -> list[tuple[int, bool]]:
        found = feedback_examples(features, labels, as_of, days=days, inputs=INPUTS)
        return list(zip(found.at.tolist(), found.fraud.tolist(), strict=True))

    assert said(2 * DAY_MS, 14) == [(at[0], True)]
    assert said(4 * DAY_MS, 14) == [(at[0], False), (at[400], True), (at[402], False)]
    assert said(4 * DAY_MS, 2) == [(at[400], True), (at[402], False)]
    assert said(4 * DAY_MS + 1, 2) == [(at[400], True), (at[401], True), (at[402], False)]


def test_a_model_of_feedback_needs_frauds_and_others() -> None:
    found = World(drifts=False).feedback(20 * DAY_MS)
    frauds, others = found.chosen(found.fraud), found.chosen(~found.fraud)
    few = LEAST_FEEDBACK - 1
    assert tells(found)
    assert not tells(frauds)
    assert not tells(others)
    assert not tells(found.chosen(np.r_[np.flatnonzero(found.fraud)[:few], np.flatnonzero(~found.fraud)]))
    assert not tells(found.chosen(np.r_[np.flatnonzero(found.fraud), np.flatnonzero(~found.fraud)[:few]]))


READER = Reader(features_version=FEATURES_VERSION)


def stored(trained: Trained, version: int) -> tuple[Manifest, bytes]:
    """A model as the registry gives it, with what versions of before the exports have: no kind, no digest."""
    import skops.io

    about = {
        "inputs": list(INPUTS), "features_version": FEATURES_VERSION, "slope": trained.calibration.slope,
        "intercept": trained.calibration.intercept, "trained_until_ms": trained.until_ms,
        "profile": dict(trained.profile), "learning": trained.learning.value, "features": "4",
    }  # fmt: skip
    content = skops.io.dumps(trained.model)
    entry = Entry(version, (), 0, {"validation_ap": "0.5"})
    return manifest_of("fraud-history", entry, about, content, {"skops": "1"}, ("features",)), content


def loaded(trained: Trained, version: int) -> LoadedModel:
    return READER.read(*stored(trained, version))


def test_the_files_of_a_pair_are_loaded_as_any_models_and_score_the_same(
    drifting: World, pair: Trained
) -> None:
    model, (manifest, _) = loaded(pair, 2), stored(pair, 2)
    rows = matrix(drifting.features[:200], INPUTS)
    expected = pair.calibration(pair.model.predict_proba(rows)[:, 1])
    np.testing.assert_allclose(model.score_many(rows), expected, atol=1e-9)
    np.testing.assert_allclose([model.score(row) for row in rows[:20]], expected[:20], atol=1e-9)
    assert (model.about["learning"], model.trained_until_ms) == ("two", pair.until_ms)
    assert (manifest.kind, manifest.tables, manifest.metrics) == (
        "classifier",
        {"features": 4},
        {"validation_ap": 0.5},
    )


def test_what_a_training_hands_over_says_what_the_registry_kept_before(pair: Trained) -> None:
    candidate = pair.candidate({"features": 4}, {"label_delay_ms": "7"})
    assert (candidate.inputs, candidate.rows, candidate.until_ms) == (INPUTS, pair.rows, pair.until_ms)
    assert candidate.facts == {
        "spec": "small", "learning": "two", "frauds": pair.frauds, "label_delay_ms": "7",
    }  # fmt: skip
    assert candidate.about["feedback"] == {"rows": pair.feedback_rows, "frauds": pair.feedback_frauds}
    assert candidate.about["profile"] == pair.profile
    assert candidate.metrics == pair.metrics()


def test_the_stream_takes_the_pair_when_its_alias_moves_and_goes_back(
    drifting: World, pair: Trained, alone: Trained, tmp_path: Path
) -> None:
    exports = Exports(str(tmp_path), "fraud-history")
    versions = {"1": stored(alone, 1), "2": stored(pair, 2)}
    now = 0.0
    holder = ModelHolder(ExportedModels(exports, READER), poll_s=0.5, clock=lambda: now)
    payment = drifting.features.iloc[0]
    found = []
    for champion in ("1", "2", "1"):
        exports.publish("champion", *versions[champion])
        now += 1.0
        holder.poll()
        scores = holder.score(lambda inputs: [[float(payment[name]) for name in inputs]])
        assert scores is not None
        found.append(scores)
    assert [scores.version for scores in found] == ["1", "2", "1"]
    assert found[0] == found[2] != found[1]
    assert (holder.swaps, holder.failures) == (3, 0)


def test_no_day_is_judged_that_the_feedback_of_the_pair_has_shown(drifting: World, pair: Trained) -> None:
    """The delayed labels end on day 31; answers reach up to the day of the training."""
    assert (NOW - 1) * DAY_MS < pair.until_ms < NOW * DAY_MS
    model = loaded(pair, 2)
    known = examples(drifting.features, 60 * DAY_MS, DELAY_MS, labels=drifting.labels, days=99, inputs=INPUTS)
    judged = list(days_of("challenger", model, known, known.alerted.tolist(), 50 * DAY_MS, capacity=10))
    assert [day.metrics.day_ms // DAY_MS for day in judged] == list(range(NOW, 50))
    for day in judged:
        rows = known.at // DAY_MS == day.metrics.day_ms // DAY_MS
        ranked = sorted(
            zip(-model.score_many(known.x[rows]), known.fraud[rows], strict=True), key=lambda r: r[0]
        )
        assert day.alert_precision == pytest.approx(sum(f for _, f in ranked[:10]) / 10)
    said = standing("challenger", judged, 10)
    assert said.startswith("challenger, version 2: 12 days, average precision 0.")
    assert said.endswith("frauds among the 10 highest of a day")
