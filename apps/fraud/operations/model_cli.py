"""``millrace models fraud …``, and ``millrace fraud train|promote|rollback|models|measure``: the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Final

import typer

from millrace.errors import UserError
from millrace.models.commands import (
    LABEL_DELAY,
    AsOf,
    Delay,
    Learned,
    Root,
    To,
    Training,
    Uri,
    Which,
    command_line,
    opened,
    time_of,
    training,
)
from millrace.models.exports import CHALLENGER, CHAMPION
from millrace_apps.fraud.model.feedback import FEEDBACK_DAYS, PAYMENTS_A_DAY, FeedbackAt, Learning

if TYPE_CHECKING:
    from millrace.models.learner import Learner
    from millrace_apps.fraud.model.estimator import ModelSpec
    from millrace_apps.fraud.model.learner import Read
    from millrace_apps.fraud.model.training import Trained

Capacity = Annotated[int, typer.Option(min=1, help="Payments that investigators look at in a day.")]


def _learning() -> Learner:
    from millrace_apps.fraud.model.learner import LEARNER

    return LEARNER


def learn(
    of: Training,
    label_delay: Delay = LABEL_DELAY,
    days: Annotated[int, typer.Option(min=2, help="Days to learn from.")] = 35,
    kind: Annotated[
        Learning,
        typer.Option(
            "--learn",
            help="delayed: from labels older than the label delay. two: a second model, of investigators' "
            "recent answers, beside it; their probabilities are averaged.",
        ),
    ] = Learning.DELAYED,
    feedback_days: Annotated[
        int, typer.Option(min=1, help="Days of investigators' answers to learn from.")
    ] = FEEDBACK_DAYS,
    feedback_delay: Annotated[
        str, typer.Option(help="How long an answer may still be corrected: younger payments are left out.")
    ] = "0s",
    capacity: Capacity = PAYMENTS_A_DAY,
    seed: Annotated[int, typer.Option(help="Seed of the model.")] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Threads to train with.")] = 1,
) -> Learned:
    """Train a model on what was known, register it, and let it challenge the champion."""
    from millrace_apps.fraud.model.learner import ms_of, read_tables, spec_of
    from millrace_apps.fraud.model.training import train

    spec, read = spec_of(of.shop.model), read_tables(of.shop.model, of.tables)
    delay, now = ms_of(label_delay), of.until(read.newest_ms)
    known = read.known(now, delay, days=days, inputs=spec.inputs)
    answers = ms_of(feedback_delay)
    feedback = _feedback(read, feedback_days, answers, spec) if kind is Learning.TWO else None
    trained = train(
        known, delay, spec=spec, seed=seed, jobs=jobs, feedback=feedback, as_of_ms=now, capacity=capacity
    )
    facts = {"label_delay_ms": str(delay), "as_of_ms": str(now)}
    if trained.learning is Learning.TWO:
        facts |= {"feedback_days": str(feedback_days), "feedback_delay_ms": str(answers)}
    return Learned(trained.candidate(of.tables.versions, facts), _told(trained, kind))


def _feedback(read: Read, days: int, delay_ms: int, spec: ModelSpec) -> FeedbackAt | None:
    """Return what investigators had said by a time; None for recorded history: it has no sources."""
    from functools import partial

    from millrace_apps.fraud.model.training import feedback_examples

    if read.labels is None:
        return None
    return partial(
        feedback_examples, read.features, read.labels, days=days, inputs=spec.inputs, delay_ms=delay_ms
    )


def _told(trained: Trained, asked: Learning) -> list[str]:
    """Return what training is reported as."""
    lines = [f"{trained.rows:,} payments, {trained.frauds:,} frauds"]
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
    from millrace_apps.fraud.model.learner import EVER, ms_of, read_tables
    from millrace_apps.fraud.model.monitor import METRICS_TABLE, days_of, standing, write

    shop = opened(_learning, model, root, registry, exports)
    read = read_tables(shop.model, shop.tables())
    now, delay = time_of(as_of, read.newest_ms), ms_of(label_delay)
    found, lines = [], []
    for role in (CHAMPION, CHALLENGER):
        version = shop.registry.alias(role)
        if version is None:
            continue
        loaded = shop.load(version)
        known = read.known(now, delay, days=EVER, inputs=loaded.inputs)
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


_OWN: Final[Mapping[str, Callable[..., None]]] = {
    "train": training(_learning, learn),
    "measure": measure,
}
app = command_line("fraud", _learning, _OWN)
#: What these commands were called first.
older = command_line(
    "fraud",
    _learning,
    _OWN,
    {"list": "models", "train": "train", "promote": "promote", "rollback": "rollback", "measure": "measure"},
)
