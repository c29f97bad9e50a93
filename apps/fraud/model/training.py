"""Training from tables: what was known when, in order of time, and what comes out of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from millrace.models.calibration import Calibration
from millrace.models.candidate import Candidate
from millrace.models.drift import profile_of
from millrace.models.tables import CannotTrain, TrainingTables, matrix
from millrace_apps.fraud.handbook.events import PaymentFeatures
from millrace_apps.fraud.model.estimator import CALIBRATED_ON, MODEL, ModelSpec
from millrace_apps.fraud.model.examples import Examples
from millrace_apps.fraud.model.feedback import PAYMENTS_A_DAY, FeedbackAt, Learning, pair_of, tells
from millrace_apps.fraud.model.known import Maturity, Verdict, known
from millrace_apps.fraud.model.metrics import Quality, alert_precision_of_days, quality
from millrace_apps.fraud.model.weeks import day_of
from millrace_apps.fraud.state.labels import DAY_MS

if TYPE_CHECKING:
    import numpy.typing as npt
    import pandas as pd

#: Payments that a model is trained on, days; and those held back to see how good it is.
TRAIN_DAYS: Final = 28
VALIDATE_DAYS: Final = 7
#: Fewer frauds teach nothing.
LEAST_FRAUDS: Final = 20
#: Longer than anything lasts, ms.
_NEVER_MS: Final = 2**62
_NEEDED: Final = ("transaction_id", "event_time_ms", "customer_id", "is_fraud", *MODEL.inputs)


@dataclass(frozen=True)
class HeldBack(Quality):
    """Measures of the days held back.

    Attributes:
        alert_precision: Share of frauds among the payments that investigators would look at, mean of days.
    """

    alert_precision: float

    def numbers(self) -> dict[str, float]:
        """Return the measures by name, those that are numbers."""
        return {k: v for k, v in asdict(self).items() if np.isfinite(v)}


@dataclass(frozen=True)
class Trained:
    """A trained model, and how good it was before it saw everything.

    Attributes:
        spec: The kind of model.
        model: The model, trained on all examples.
        calibration: From its scores to probabilities.
        validation: Measures on the newest examples, of a model trained on the older ones.
        rows: Examples.
        frauds: Frauds among them.
        since_ms: Event time of the oldest.
        until_ms: Event time of the newest payment that the model has seen, those of the feedback included.
        profile: Bins of the features and their shares, for drift.
        feedback_rows: Payments that the member which learns from feedback was trained on; 0: there is none.
        feedback_frauds: Frauds among them.
        alone: Of a pair: the measures without feedback on the same days; None: there was too little of it
            by then, and so ``validation`` is without, too.
    """

    spec: ModelSpec
    model: Any
    calibration: Calibration
    validation: HeldBack
    rows: int
    frauds: int
    since_ms: int
    until_ms: int
    profile: Mapping[str, Mapping[str, list[float]]]
    feedback_rows: int = 0
    feedback_frauds: int = 0
    alone: HeldBack | None = None

    @property
    def learning(self) -> Learning:
        """What it has learned from."""
        return Learning.TWO if self.feedback_rows else Learning.DELAYED

    def metrics(self) -> dict[str, float]:
        """Return the measures by name, those that are numbers."""
        return {f"validation_{k}": v for k, v in self.validation.numbers().items()}

    def candidate(self, tables: Mapping[str, int], facts: Mapping[str, str]) -> Candidate:
        """Return the model as the registry takes it.

        Args:
            tables: Table → the version of it that was read.
            facts: What else is to be told of the training.
        """
        own = {"spec": self.spec.name, "learning": self.learning.value, "frauds": self.frauds}
        about: dict[str, Any] = {"profile": dict(self.profile)}
        if self.feedback_rows:
            about["feedback"] = {"rows": self.feedback_rows, "frauds": self.feedback_frauds}
        return Candidate(
            estimator=self.model,
            inputs=self.spec.inputs,
            since_ms=self.since_ms,
            until_ms=self.until_ms,
            rows=self.rows,
            features_version=self.spec.features_version,
            calibration=self.calibration,
            metrics=self.metrics(),
            tables=tables,
            facts={**own, **facts},
            about=about,
        )


def read_features(tables: TrainingTables) -> pd.DataFrame:
    """Read what training needs of :class:`~millrace_apps.fraud.handbook.events.PaymentFeatures`' table."""
    assert set(_NEEDED) <= set(PaymentFeatures.__struct_fields__)  # noqa: S101 - a name was changed
    return tables.read("features", _NEEDED)


def examples(
    features: pd.DataFrame,
    as_of_ms: int,
    label_delay_ms: int,
    *,
    labels: pd.DataFrame | None = None,
    authorisations: pd.DataFrame | None = None,
    days: int = TRAIN_DAYS + VALIDATE_DAYS,
    inputs: tuple[str, ...] = MODEL.inputs,
) -> Examples:
    """Return the payments that are known at a time to be genuine or frauds: at least the label delay old.

    What was stopped and nobody has looked at is neither, and left out; see
    :mod:`millrace_apps.fraud.model.known`.

    Args:
        features: Features of payments, with ``action`` and ``control_group`` of their decisions.
        as_of_ms: The time, ms; nothing that became known later is used.
        label_delay_ms: How long the slowest labels take, ms: younger payments are left out.
        labels: Labels with ``transaction_id``, ``event_time_ms`` (when it became known), ``is_fraud`` and
            ``source``; the newest known word counts, and what passed and nobody has spoken of is genuine.
            Without them ``is_fraud`` of the features counts.
        authorisations: What became of payments, if that is known.
        days: How far to go back.
        inputs: The features to take.
    """
    until = as_of_ms - label_delay_ms
    at = features["event_time_ms"]
    chosen = features[(at <= until) & (at > until - days * DAY_MS)]
    chosen = chosen.sort_values(["event_time_ms", "transaction_id"], ignore_index=True)
    if labels is None:
        return _examples(chosen, chosen["is_fraud"], inputs)
    maturity = Maturity.of(label_delay_ms)
    return _known(chosen, known(chosen, labels, as_of_ms, maturity, authorisations=authorisations), inputs)


def feedback_examples(
    features: pd.DataFrame,
    labels: pd.DataFrame,
    as_of_ms: int,
    *,
    days: int,
    inputs: tuple[str, ...] = MODEL.inputs,
    delay_ms: int = 0,
) -> Examples:
    """Return the payments that investigators had spoken of by a time, however young, blocked ones as well.

    Args:
        features: Features of payments.
        labels: Labels as for :func:`examples`, with their ``source``; those of ``feedback`` choose the
            payments. What counts is the newest word known, which may be a correction.
        as_of_ms: The time, ms; nothing that became known later is used.
        days: How far to go back, by the payments' event time.
        inputs: The features to take.
        delay_ms: How long an answer may still be corrected, ms: payments that are younger are left out.
    """
    at = features["event_time_ms"]
    chosen = features[(at > as_of_ms - days * DAY_MS) & (at <= as_of_ms)]
    chosen = chosen.sort_values(["event_time_ms", "transaction_id"], ignore_index=True)
    # Of silence nothing is ever known here: what is known is what investigators have spoken of.
    found = known(chosen, labels, as_of_ms, Maturity.of(_NEVER_MS, delay_ms))
    return _known(chosen, found.assign(weight=1.0), inputs)


def _known(chosen: pd.DataFrame, found: pd.DataFrame, inputs: tuple[str, ...]) -> Examples:
    """Return those of which something is known."""
    sure = found["verdict"] != Verdict.UNKNOWN
    weight = found.loc[sure, "weight"].to_numpy(dtype=np.float64)
    alike = bool((weight == 1).all())
    said = found.loc[sure, "verdict"] == Verdict.FRAUD
    return _examples(chosen[sure], said, inputs, None if alike else weight)


def _examples(
    chosen: pd.DataFrame,
    said: pd.Series,
    inputs: tuple[str, ...],
    weight: npt.NDArray[np.float64] | None = None,
) -> Examples:
    fraud = (said == True).to_numpy(dtype=bool)  # noqa: E712 - null is genuine
    return Examples(
        matrix(chosen, inputs),
        fraud,
        chosen["customer_id"].to_numpy(),
        chosen["event_time_ms"].to_numpy(dtype=np.int64),
        chosen["alerted"].to_numpy(dtype=bool) if "alerted" in chosen else np.zeros(len(chosen), dtype=bool),
        weight,
    )


def train(
    known: Examples,
    label_delay_ms: int,
    *,
    spec: ModelSpec = MODEL,
    seed: int = 0,
    jobs: int = 1,
    validate_days: int = VALIDATE_DAYS,
    feedback: FeedbackAt | None = None,
    as_of_ms: int | None = None,
    capacity: int = PAYMENTS_A_DAY,
) -> Trained:
    """Train a model, and tell how good such a model is on payments it has not seen.

    The newest days are held back; between them and what the judged model is trained on the label delay
    passes, as it does in life. The model that is returned is then trained on all. With feedback it is a pair
    (see :mod:`millrace_apps.fraud.model.feedback`); where that is too little, that of delayed labels alone.

    Args:
        known: Examples, in order of time.
        label_delay_ms: How long labels take, ms.
        spec: The kind of model.
        seed: Its seed.
        jobs: Threads to train with.
        validate_days: Days held back.
        feedback: What investigators had said by a time; None: it is not learned from.
        as_of_ms: The time of the training, ms, for the feedback; None: the label delay after the newest
            example.
        capacity: Payments that investigators look at in a day, for the alert precision.

    Raises:
        CannotTrain: There are too few frauds.
    """
    frauds = int(known.fraud.sum())
    if frauds < LEAST_FRAUDS or frauds == len(known):
        raise CannotTrain(
            f"{len(known):,} payments with {frauds} known frauds are not enough to learn from: "
            f"at least {LEAST_FRAUDS} frauds are needed, older than the label delay"
        )
    end = int(known.at[-1]) + 1
    held = known.part(end - validate_days * DAY_MS, end)
    seen = known.part(0, int(held.at[0]) - label_delay_ms)
    older, newer = _cut(known)
    now = end - 1 + label_delay_ms if as_of_ms is None else as_of_ms
    said = _NOTHING if feedback is None else _said(feedback, now, held, newer)
    fit = partial(_fit, spec=spec, jobs=jobs)
    judge = partial(_validate, seen, held, fit=partial(fit, seed=seed), capacity=capacity)
    return Trained(
        spec=spec,
        model=fit(known, said.now, seed=seed),
        calibration=_calibration(older, newer, said.earlier, fit=partial(fit, seed=0)),
        validation=judge(said.then),
        rows=len(known),
        frauds=frauds,
        since_ms=int(known.at[0]),
        until_ms=end - 1 if said.now is None else max(end - 1, int(said.now.at[-1])),
        profile=profile_of(known.x, spec.inputs),
        feedback_rows=0 if said.now is None else len(said.now),
        feedback_frauds=0 if said.now is None else int(said.now.fraud.sum()),
        alone=None if said.then is None else judge(None),
    )


class _Said(NamedTuple):
    """Feedback as it was at three times; None where it was too little."""

    now: Examples | None
    then: Examples | None
    earlier: Examples | None


_NOTHING: Final = _Said(None, None, None)


def _said(feedback: FeedbackAt, as_of_ms: int, held: Examples, newer: Examples) -> _Said:
    """Return the feedback now, before the days held back, and before those that are calibrated on."""
    now, then, earlier = (feedback(at) for at in (as_of_ms, int(held.at[0]), int(newer.at[0])))
    if not tells(earlier):
        # Feedback has only begun: what is said of payments that are not calibrated on does as well.
        earlier = now.chosen((now.at < newer.at[0]) | (now.at > newer.at[-1]))
    if not (tells(now) and tells(earlier)):
        return _NOTHING
    return _Said(now, then if tells(then) else None, earlier)


def _cut(known: Examples) -> tuple[Examples, Examples]:
    """Return the older examples, and the newer that are calibrated on."""
    cut = int(len(known) * (1 - CALIBRATED_ON))
    return known.chosen(slice(cut)), known.chosen(slice(cut, None))


def _fit(delayed: Examples, feedback: Examples | None, *, spec: ModelSpec, seed: int, jobs: int) -> Any:
    """Return a model of delayed labels, or a pair."""
    late = spec.fit(delayed.x, delayed.fraud, seed, weight=delayed.learned, jobs=jobs)
    if feedback is None:
        return late
    return pair_of(late, spec.fit(feedback.x, feedback.fraud, seed, jobs=jobs))


def _calibration(
    older: Examples, newer: Examples, feedback: Examples | None, *, fit: Callable[..., Any]
) -> Calibration:
    """Hold a model of the older examples to the newer: its own would say that it is always right."""
    if not _both_kinds(older):
        return Calibration(1.0, 0.0)
    scores = fit(older, feedback).predict_proba(newer.x)[:, 1]
    return Calibration.fit(scores, newer.fraud, newer.weight)


def _validate(
    seen: Examples, held: Examples, feedback: Examples | None, *, fit: Callable[..., Any], capacity: int
) -> HeldBack:
    if not _both_kinds(seen):
        return HeldBack(*[float("nan")] * 5)
    scores, days = fit(seen, feedback).predict_proba(held.x)[:, 1], day_of(held.at)
    found = quality(held.fraud, scores, held.cards, days, held.weight)
    precisions = alert_precision_of_days(scores, held.fraud, days, capacity)
    return HeldBack(**asdict(found), alert_precision=float(np.mean(precisions)))


def _both_kinds(known: Examples) -> bool:
    return 0 < int(known.fraud.sum()) < len(known)
