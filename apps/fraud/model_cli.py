"""``millrace fraud train|promote|rollback|models``: the life of a model."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from apps.fraud.model.feedback import FEEDBACK_DAYS, PAYMENTS_A_DAY, FeedbackAt, Learning
from millrace.errors import MillraceError, UserError

if TYPE_CHECKING:
    import pandas as pd

    from apps.fraud.model.estimator import ModelSpec
    from apps.fraud.model.registry import Registry
    from apps.fraud.model.source import LoadedModel
    from apps.fraud.model.training import Trained

app = typer.Typer(help="Models: train, promote, roll back, list.", no_args_is_help=True, add_completion=False)


class Kind(StrEnum):
    """What models learn from."""

    TRANSACTIONS = "transactions"
    FEATURES = "features"


Root = Annotated[Path, typer.Option("--root", help="Where the app keeps its tables and models.")]
Uri = Annotated[str | None, typer.Option("--registry", help="MLflow registry; default: SQLite in the root.")]
Delay = Annotated[str, typer.Option("--label-delay", help="How long labels take.")]
AsOf = Annotated[
    str | None, typer.Option("--as-of", help="Know nothing later, e.g. 2026-11-01T00:00; default: now.")
]
From = Annotated[Kind, typer.Option("--table", help="Learn from decisions, or from recorded history.")]
Capacity = Annotated[int, typer.Option(min=1, help="Payments that investigators look at in a day.")]
ROOT = Path(".millrace/fraud")
#: Without labels nobody has said that anything is a fraud.
_LABELS = ("transaction_id", "event_time_ms", "is_fraud", "source")


class NotProven(MillraceError):
    """The challenger is not better than the champion beyond doubt."""


@app.command()
def train(
    root: Root = ROOT,
    registry: Uri = None,
    label_delay: Delay = "7d",
    as_of: AsOf = None,
    table: From = Kind.TRANSACTIONS,
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
    from apps.fraud.model.scorer import CHAMPION
    from apps.fraud.model.training import examples
    from apps.fraud.model.training import train as train_on

    spec = _spec(table)
    features, said, versions = _tables(root, table)
    delay, now = _ms(label_delay), _time(as_of, features)
    known = examples(features, now, delay, labels=said, days=days, inputs=spec.inputs)
    feedback = _feedback(features, said, feedback_days, spec) if learn is Learning.TWO else None
    trained = train_on(
        known, delay, spec=spec, seed=seed, jobs=jobs, feedback=feedback, as_of_ms=now, capacity=capacity
    )
    models = _registry(registry, root, table)
    data = {**versions, "label_delay_ms": str(delay), "as_of_ms": str(now)}
    if trained.learning is Learning.TWO:
        data["feedback_days"] = str(feedback_days)
    version = models.register(trained, data)
    for line in _told(version, trained, learn):
        typer.echo(line)
    if models.alias(CHAMPION) is None:
        typer.echo(f"there is no champion yet: millrace fraud promote {version}")
    else:
        models.challenge(version)
        typer.echo(f"it scores beside the champion now; when it is better: millrace fraud promote {version}")


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


@app.command()
def promote(
    version: Annotated[int, typer.Argument(help="The version that shall decide.")],
    root: Root = ROOT,
    registry: Uri = None,
    label_delay: Delay = "7d",
    as_of: AsOf = None,
    table: From = Kind.TRANSACTIONS,
) -> None:
    """Make a version the champion, if it ranks new payments better beyond doubt.

    Both models are judged on the payments after their training whose labels are known, by the features that
    were stored when the payments came. The whole confidence interval of the gain must be above 0. Where there
    is no champion, any version may become it.
    """
    from apps.fraud.model.scorer import CHAMPION

    models = _registry(registry, root, table)
    before = models.alias(CHAMPION)
    if before is not None and before != version:
        features, said, _ = _tables(root, table)
        gain = _gain(models, before, version, features, said, _time(as_of, features), _ms(label_delay))
        typer.echo(
            f"average precision {gain.champion:.4f} → {gain.challenger:.4f} on {gain.rows:,} payments of "
            f"{gain.days} days with {gain.frauds:,} frauds; gain between {gain.low:+.4f} and {gain.high:+.4f}"
        )
        if not gain.proven:
            raise NotProven(f"version {version} is not better than {before} beyond doubt: nothing changed")
    models.promote(version)
    typer.echo(f"version {version} decides now" + ("" if before is None else f", {before} did before"))


@app.command()
def rollback(root: Root = ROOT, registry: Uri = None, table: From = Kind.TRANSACTIONS) -> None:
    """Let the champion before this one decide again."""
    now, before = _registry(registry, root, table).rollback()
    typer.echo(f"version {now} decides again, version {before} does no more")


@app.command()
def models(root: Root = ROOT, registry: Uri = None, table: From = Kind.TRANSACTIONS) -> None:
    """List the registered versions."""
    from millrace.console.report import print_table

    entries = _registry(registry, root, table).entries()
    if not entries:
        typer.echo("there are no models yet: millrace fraud train")
        return
    names = ("version", "aliases", "learned", "registered", "trained until", "rows", "frauds", "AP", "data")
    rows = []
    for entry in entries:
        about = entry.about
        ap = about.get("validation_ap")
        rows.append(
            (
                str(entry.version),
                ", ".join(entry.aliases) or "–",
                about.get("learning", Learning.DELAYED.value),
                _day(entry.created_ms),
                _day(int(about.get("trained_until_ms", 0))),
                about.get("rows", ""),
                about.get("frauds", ""),
                "–" if ap is None else f"{float(ap):.3f}",
                ", ".join(
                    f"{k}@{v}"
                    for k, v in sorted(about.items())
                    if k in ("transactions", "features", "labels")
                ),
            )
        )
    print_table("models", names, rows, right=("version", "rows", "frauds", "AP"))


@app.command()
def measure(
    root: Root = ROOT,
    registry: Uri = None,
    label_delay: Delay = "7d",
    as_of: AsOf = None,
    table: From = Kind.TRANSACTIONS,
    capacity: Capacity = PAYMENTS_A_DAY,
) -> None:
    """Write how champion and challenger did, a row per day whose labels are known: the table model_metrics.

    Both are judged on payments after their training by the features that were stored when these came, so the
    challenger's scores are those that it would have given.
    """
    from apps.fraud.model.monitor import METRICS_TABLE, days_of, standing, write
    from apps.fraud.model.scorer import CHALLENGER, CHAMPION
    from apps.fraud.model.source import RegistrySource
    from apps.fraud.model.training import examples

    models = _registry(registry, root, table)
    features, said, _ = _tables(root, table)
    now, delay = _time(as_of, features), _ms(label_delay)
    found, lines = [], []
    for role in (CHAMPION, CHALLENGER):
        version = models.alias(role)
        if version is None:
            continue
        model = RegistrySource(models.uri, models.name).load(str(version))
        known = examples(features, now, delay, labels=said, days=36_500, inputs=model.inputs)
        judged = list(days_of(role, model, known, known.alerted.tolist(), now - delay, capacity))
        found += [day.metrics for day in judged]
        if judged:
            lines.append(standing(role, judged, capacity))
    if not found:
        raise UserError("no day is over whose labels are known and that no model was trained on")
    write(found, root)
    for line in lines:
        typer.echo(line)
    typer.echo(f"{len(found)} days in {root / 'tables' / METRICS_TABLE}")


def _gain(
    models: Registry,
    champion: int,
    challenger: int,
    features: pd.DataFrame,
    labels: pd.DataFrame | None,
    as_of_ms: int,
    delay_ms: int,
) -> Any:
    """Compare two versions on payments after the training of both."""
    from apps.fraud.model.promotion import compare
    from apps.fraud.model.source import RegistrySource
    from apps.fraud.model.training import examples
    from apps.fraud.model.weeks import day_of

    source = RegistrySource(models.uri, models.name)
    two: list[LoadedModel] = [source.load(str(version)) for version in (champion, challenger)]
    since = max(model.trained_until_ms for model in two) + 1
    later = features[features["event_time_ms"] >= since]
    known = [examples(later, as_of_ms, delay_ms, labels=labels, days=36_500, inputs=m.inputs) for m in two]
    scores = [model.score_many(part.x) for model, part in zip(two, known, strict=True)]
    return compare(known[0].fraud, scores[0], scores[1], day_of(known[0].at))


def _spec(table: Kind) -> ModelSpec:
    from apps.fraud.model.estimator import MODEL
    from apps.fraud.model.live import LIVE_MODEL

    return LIVE_MODEL if table is Kind.TRANSACTIONS else MODEL


def _tables(root: Path, table: Kind) -> tuple[pd.DataFrame, pd.DataFrame | None, dict[str, str]]:
    """Read features and labels; return them with the versions of their tables."""
    from apps.fraud.model.live import LIVE_COLUMNS, flat
    from apps.fraud.model.training import read_features, read_table

    tables = root / "tables"
    if table is Kind.FEATURES:
        features, version = read_features(tables / table)
        return features, None, {table.value: str(version)}
    decisions, version = read_table(tables / table, LIVE_COLUMNS)
    said, of_labels = read_table(tables / "labels", _LABELS)
    return flat(decisions), said, {table.value: str(version), "labels": str(of_labels)}


def _registry(uri: str | None, root: Path, table: Kind) -> Registry:
    from apps.fraud.model.live import LIVE_NAME
    from apps.fraud.model.registry import Registry, default_uri

    # Models of the one cannot be asked about the other.
    name = LIVE_NAME if table is Kind.TRANSACTIONS else f"{LIVE_NAME}-history"
    return Registry(uri or default_uri(root / "models"), name)


def _ms(text: str) -> int:
    from millrace.time import ms
    from millrace.time.durations import parse_duration

    return ms(parse_duration(text))


def _time(text: str | None, features: pd.DataFrame) -> int:
    if text is None:
        return int(features["event_time_ms"].max()) + 1
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise UserError(f"--as-of {text}: write a time as 2026-11-01T00:00") from None
    return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)


def _day(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d}"
