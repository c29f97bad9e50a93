"""What the fraud app tells the core of its models: what they read, are judged on and must show."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from apps.fraud.model.estimator import FEATURES_VERSION, MODEL
from apps.fraud.model.live import LATER_COLUMNS, LIVE_COLUMNS, LIVE_MODEL, LIVE_NAME, LIVE_READER, flat
from apps.fraud.model.training import examples, read_features
from apps.fraud.model.weeks import day_of
from millrace.models.commands import time_of
from millrace.models.gates import Gate, Judged
from millrace.models.learner import AppModel, Learner, Question
from millrace.models.loading import Reader
from millrace.models.tables import TrainingTables
from millrace.time import ms
from millrace.time.durations import parse_duration

if TYPE_CHECKING:
    import pandas as pd

    from apps.fraud.model.estimator import ModelSpec

#: Without labels nobody has said that anything is a fraud.
_LABELS: Final = ("transaction_id", "event_time_ms", "is_fraud", "source")
#: All days that there are.
EVER: Final = 36_500


def judged(question: Question) -> Judged:
    """Return the payments after the training of both models, scored by both, a day a group."""
    shop, two = question.workshop, (question.champion, question.challenger)
    features, said = read_tables(shop.model, shop.tables())
    now, delay = time_of(question.as_of, features["event_time_ms"].max()), ms_of(question.label_delay)
    since = max(model.trained_until_ms for model in two) + 1
    later = features[features["event_time_ms"] >= since]
    known = [examples(later, now, delay, labels=said, days=EVER, inputs=m.inputs) for m in two]
    scores = [model.score_many(part.x) for model, part in zip(two, known, strict=True)]
    return Judged(known[0].fraud, scores[0], scores[1], day_of(known[0].at), "payments", "days", "frauds")


def spec_of(model: AppModel) -> ModelSpec:
    """Return the kind of a model."""
    return LIVE_MODEL if _is_live(model) else MODEL


def read_tables(model: AppModel, tables: TrainingTables) -> tuple[pd.DataFrame, pd.DataFrame | None]:
    """Read features and labels."""
    if not _is_live(model):
        return read_features(tables), None
    return flat(tables.read("transactions", LIVE_COLUMNS, LATER_COLUMNS)), tables.read("labels", _LABELS)


def _is_live(model: AppModel) -> bool:
    return "transactions" in model.tables


def ms_of(text: str) -> int:
    """Return a duration, ms."""
    return ms(parse_duration(text))


#: Models of the one cannot be asked about the other.
_MODELS: Final = {
    "transactions": AppModel(
        LIVE_NAME,
        LIVE_READER,
        ("transactions", "labels"),
        "The probability that a card payment is a fraud, from what its decision rested on.",
    ),
    "features": AppModel(
        f"{LIVE_NAME}-history",
        Reader(features_version=FEATURES_VERSION),
        ("features",),
        "The probability that a payment of recorded history is a fraud.",
    ),
}
_LIMITS: Final = (
    "Labels come late: a fraud of a new kind is known after the label delay at the earliest.",
    "Features of a card, terminal or device that has no history say little.",
    "What nobody has spoken of is taken for genuine, so frauds that nobody noticed are learned as genuine.",
    "It scores purchases, not refunds.",
)
LEARNER: Final[Learner] = Learner(
    app="fraud",
    models=_MODELS,
    judged=judged,
    gates=(Gate(metric="average_precision", min_groups=5),),
    columns={"learned": "learning", "frauds": "frauds", "AP": "validation_ap"},
    limits=_LIMITS,
)
