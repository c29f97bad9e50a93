"""``millrace models fraud …``, and ``millrace fraud train|promote|rollback|models|measure``: the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from apps.fraud.model.estimator import FEATURES_VERSION, MODEL
from apps.fraud.model.feedback import FEEDBACK_DAYS, PAYMENTS_A_DAY, FeedbackAt, Learning
from apps.fraud.model.live import LIVE_MODEL, LIVE_NAME, LIVE_READER
from millrace.errors import UserError
from millrace.models.commands import (
    LABEL_DELAY,
    AsOf,
    Delay,
    Root,
    TableVersion,
    To,
    Uri,
    Which,
    command_line,
    entered,
    opened,
    time_of,
)
from millrace.models.gates import Gate, Judged
from millrace.models.learner import AppModel, Learner, Question
from millrace.models.loading import Reader
from millrace.models.serving import CHALLENGER, CHAMPION
from millrace.models.tables import TrainingTables, parse_versions

if TYPE_CHECKING:
    import pandas as pd

    from apps.fraud.model.estimator import ModelSpec
    from apps.fraud.model.training import Trained

Capacity = Annotated[int, typer.Option(min=1, help="Payments that investigators look at in a day.")]
#: Without labels nobody has said that anything is a fraud.
_LABELS: Final = ("transaction_id", "event_time_ms", "is_fraud", "source")
#: All days that there are.
_EVER: Final = 36_500


def train(
    root: Root = None,
    registry: Uri = None,
    exports: To = None,
    model: Which = None,
    label_delay: Delay = LABEL_DELAY,
    as_of: AsOf = None,
    table_version: TableVersion = None,
    days: Annotated[int, typer.Option(min=2, help="Days to learn from.")] = 35,
    learn: Annotated[
        Learning,
        typer.Option(
            help="delayed: from labels older than the label delay. two: a second model, of investigators' "
            "recent answers, beside it; their probabilities are averaged."
        ),
    ] = Learning.DELAYED,
    feedback_days: Annotated[
        int, typer.Option(min=1, help="Days of investigators' answers to learn from.")
    ] = FEEDBACK_DAYS,
    capacity: Capacity = PAYMENTS_A_DAY,
    seed: Annotated[int, typer.Option(help="Seed of the model.")] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Threads to train with.")] = 1,
) -> None:
    """Train a model on what was known, register it, and let it challenge the champion."""
    from apps.fraud.model.training import examples
    from apps.fraud.model.training import train as train_on

    shop = opened(LEARNER, model, root, registry, exports)
    spec, tables = _spec(shop.model), shop.tables(parse_versions(table_version or ()))
    features, said = _read(shop.model, tables)
    tables.check_wanted()
    delay, now = _ms(label_delay), time_of(as_of, features["event_time_ms"].max())
    known = examples(features, now, delay, labels=said, days=days, inputs=spec.inputs)
    feedback = _feedback(features, said, feedback_days, spec) if learn is Learning.TWO else None
    trained = train_on(
        known, delay, spec=spec, seed=seed, jobs=jobs, feedback=feedback, as_of_ms=now, capacity=capacity
    )
    facts = {"label_delay_ms": str(delay), "as_of_ms": str(now)}
    if trained.learning is Learning.TWO:
        facts["feedback_days"] = str(feedback_days)
    version, champion = shop.enter(trained.candidate(tables.versions, facts))
    for line in (*_told(version, trained, learn), entered(shop, version, champion)):
        typer.echo(line)


def _feedback(
    features: pd.DataFrame, labels: pd.DataFrame | None, days: int, spec: ModelSpec
) -> FeedbackAt | None:
    """Return what investigators had said by a time; None for recorded history: it has no sources."""
    from functools import partial

    from apps.fraud.model.training import feedback_examples

    if labels is None:
        return None
    return partial(feedback_examples, features, labels, days=days, inputs=spec.inputs)


def _told(version: int, trained: Trained, asked: Learning) -> list[str]:
    """Return what training is reported as."""
    lines = [f"version {version}: {trained.rows:,} payments, {trained.frauds:,} frauds"]
    if trained.feedback_rows:
        rows, frauds = trained.feedback_rows, trained.feedback_frauds
        lines.append(f"beside it a model of feedback: {rows:,} payments, {frauds:,} frauds; averaged")
    elif asked is Learning.TWO:
        lines.append("there is too little feedback for a model of its own: the delayed labels' stands alone")
    found = ", ".join(f"{k} {v:.3f}" for k, v in trained.validation.numbers().items())
    lines.append(f"held-back week: {found or 'too little is known to judge it'}")
    if trained.alone is not None:
        found = ", ".join(f"{k} {v:.3f}" for k, v in trained.alone.numbers().items())
        lines.append(f"without feedback: {found or 'too little is known to judge it'}")
    elif trained.feedback_rows:
        lines.append("there was too little feedback before that week: it is judged without")
    return lines


def measure(
    root: Root = None,
    registry: Uri = None,
    exports: To = None,
    model: Which = None,
    label_delay: Delay = LABEL_DELAY,
    as_of: AsOf = None,
    capacity: Capacity = PAYMENTS_A_DAY,
) -> None:
    """Write how champion and challenger did, a row per day whose labels are known: the table model_metrics.

    Both are judged on payments after their training by the features that were stored when these came, so the
    challenger's scores are those that it would have given.
    """
    from apps.fraud.model.monitor import METRICS_TABLE, days_of, standing, write
    from apps.fraud.model.training import examples

    shop = opened(LEARNER, model, root, registry, exports)
    features, said = _read(shop.model, shop.tables())
    now, delay = time_of(as_of, features["event_time_ms"].max()), _ms(label_delay)
    found, lines = [], []
    for role in (CHAMPION, CHALLENGER):
        version = shop.registry.alias(role)
        if version is None:
            continue
        loaded = shop.load(version)
        known = examples(features, now, delay, labels=said, days=_EVER, inputs=loaded.inputs)
        judged = list(days_of(role, loaded, known, known.alerted.tolist(), now - delay, capacity))
        found += [day.metrics for day in judged]
        if judged:
            lines.append(standing(role, judged, capacity))
    if not found:
        raise UserError("no day is over whose labels are known and that no model was trained on")
    write(found, shop.root)
    for line in lines:
        typer.echo(line)
    typer.echo(f"{len(found)} days in {shop.root / 'tables' / METRICS_TABLE}")


def judged(question: Question) -> Judged:
    """Return the payments after the training of both models, scored by both, a day a group."""
    from apps.fraud.model.training import examples
    from apps.fraud.model.weeks import day_of

    shop, two = question.workshop, (question.champion, question.challenger)
    features, said = _read(shop.model, shop.tables())
    now, delay = time_of(question.as_of, features["event_time_ms"].max()), _ms(question.label_delay)
    since = max(model.trained_until_ms for model in two) + 1
    later = features[features["event_time_ms"] >= since]
    known = [examples(later, now, delay, labels=said, days=_EVER, inputs=m.inputs) for m in two]
    scores = [model.score_many(part.x) for model, part in zip(two, known, strict=True)]
    return Judged(known[0].fraud, scores[0], scores[1], day_of(known[0].at), "payments", "days")


def _spec(model: AppModel) -> ModelSpec:
    return LIVE_MODEL if model.name == LIVE_NAME else MODEL


def _read(model: AppModel, tables: TrainingTables) -> tuple[pd.DataFrame, pd.DataFrame | None]:
    """Read features and labels."""
    from apps.fraud.model.live import LIVE_COLUMNS, flat
    from apps.fraud.model.training import read_features

    if model.name != LIVE_NAME:
        return read_features(tables), None
    return flat(tables.read("transactions", LIVE_COLUMNS)), tables.read("labels", _LABELS)


def _ms(text: str) -> int:
    from millrace.time import ms
    from millrace.time.durations import parse_duration

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
    train=train,
    judged=judged,
    gates=(Gate(metric="average_precision", min_groups=5),),
    columns={"learned": "learning", "frauds": "frauds", "AP": "validation_ap"},
    limits=_LIMITS,
    commands={"measure": measure},
)
app = command_line(LEARNER)
#: What these commands were called first.
older = command_line(
    LEARNER, {name: name for name in ("train", "promote", "rollback", "measure")} | {"list": "models"}
)
