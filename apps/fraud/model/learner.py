"""The fraud models as the core's registry sees them: training data, metrics, gates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from millrace.models.commands import time_of
from millrace.models.gates import Gate, Judged
from millrace.models.learner import AppModel, Learner, Question
from millrace.models.loading import Reader
from millrace.models.tables import TrainingTables
from millrace.time import ms
from millrace.time.durations import parse_duration
from millrace_apps.fraud.model.estimator import FEATURES_VERSION, MODEL
from millrace_apps.fraud.model.known import AUTHORISATION_COLUMNS, LABEL_COLUMNS
from millrace_apps.fraud.model.live import (
    DECIDED_COLUMNS,
    LATER_COLUMNS,
    LIVE_COLUMNS,
    LIVE_MODEL,
    LIVE_NAME,
    LIVE_READER,
    flat,
)
from millrace_apps.fraud.model.training import examples, read_features
from millrace_apps.fraud.model.weeks import day_of

if TYPE_CHECKING:
    import pandas as pd

    from millrace_apps.fraud.model.estimator import ModelSpec
    from millrace_apps.fraud.model.examples import Examples

#: All days that there are.
EVER: Final = 36_500


def judged(question: Question) -> Judged:
    """Return the payments after the training of both models, scored by both, a day a group."""
    shop, two = question.workshop, (question.champion, question.challenger)
    read = read_tables(shop.model, shop.tables())
    now, delay = time_of(question.as_of, read.newest_ms), ms_of(question.label_delay)
    since = max(model.trained_until_ms for model in two) + 1
    known = [read.known(now, delay, since=since, days=EVER, inputs=m.inputs) for m in two]
    scores = [model.score_many(part.x) for model, part in zip(two, known, strict=True)]
    of_both = known[0]
    names = ("payments", "days", "frauds")
    return Judged(of_both.fraud, scores[0], scores[1], day_of(of_both.at), *names, of_both.weight)


def spec_of(model: AppModel) -> ModelSpec:
    """Return the kind of a model."""
    return LIVE_MODEL if _is_live(model) else MODEL


class Read(NamedTuple):
    """What a model is trained on and judged by.

    Attributes:
        features: Features of payments, with what was decided on them.
        labels: What was said of them; ``None`` for recorded history, which brings it on the payments.
        authorisations: What became of them; ``None``: there is no such table.
    """

    features: pd.DataFrame
    labels: pd.DataFrame | None = None
    authorisations: pd.DataFrame | None = None

    @property
    def newest_ms(self) -> Any:
        """Event time of the newest payment, UTC ms."""
        return self.features["event_time_ms"].max()

    def known(
        self, as_of_ms: int, delay_ms: int, *, days: int, inputs: tuple[str, ...], since: int = 0
    ) -> Examples:
        """Return the payments of which something was known.

        See :func:`~millrace_apps.fraud.model.training.examples`.

        Args:
            as_of_ms: When, ms.
            delay_ms: How long the slowest labels take, ms.
            days: How far to go back.
            inputs: The features to take.
            since: Event time of the oldest payment, ms.
        """
        table = self.features
        return examples(
            table[table["event_time_ms"] >= since] if since else table,
            as_of_ms,
            delay_ms,
            labels=self.labels,
            authorisations=self.authorisations,
            days=days,
            inputs=inputs,
        )


def read_tables(model: AppModel, tables: TrainingTables) -> Read:
    """Read features, labels and authorisations."""
    if not _is_live(model):
        return Read(read_features(tables))
    return Read(
        flat(tables.read("transactions", LIVE_COLUMNS, optional=(*LATER_COLUMNS, *DECIDED_COLUMNS))),
        tables.read("labels", LABEL_COLUMNS),
        tables.find("authorisations", AUTHORISATION_COLUMNS),
    )


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
    "What passed and nobody has spoken of is taken for genuine, so frauds that nobody noticed are learned as "
    "genuine.",
    "What was blocked and nobody has looked at is not learned from: without a control group nothing is known "
    "of it.",
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
