"""The fraud app's wiring: Kafka records in, decisions, alerts, late events and dead letters out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from apps.fraud.entity_stages import stages
from apps.fraud.judging import WATCHED
from apps.fraud.model.prequential import PrequentialMetrics
from apps.fraud.settings import FraudSettings
from apps.fraud.tokens import read_key, tokenised
from millrace.connectors.router import Outputs, Upsert
from millrace.runtime.wiring import keyed_records

if TYPE_CHECKING:
    from apps.fraud.scorer import Scorer


def build(streams: Mapping[str, DataFrame], settings: FraudSettings) -> Outputs:
    """Wire the pipeline; nothing starts here.

    Args:
        streams: ``events``: Kafka records of the topics of transactions, labels and control, as
            :func:`millrace.connectors.kafka.kafka_stream` gives them.
        settings: The app's settings; ``features.entities`` says which stages follow the card's,
            ``model.registry`` which models are asked.

    Returns:
        Tables ``transactions`` (one row per decision), ``alerts``, ``labels``, ``late``, ``corrections`` and
        ``dead_letters``; topics for alerts and dead letters.
    """
    events = streams["events"]
    if settings.privacy.token_key_file is not None:
        events = tokenised(events, read_key(settings.privacy.token_key_file))
    measures, labels = settings.model.measure, settings.labels.rules()
    first, rest = stages(settings.features.stages, *_models(settings), labels, measures=measures)
    names = settings.topics
    stream = keyed_records(
        events,
        settings,
        by={"transactions": "card_id", "labels": "card_id"},
        # A label has the time of its transaction, long ago: it says nothing of how far time is.
        clock={"labels": False},
        event_time={"transactions": "event_time_ms", "labels": "transaction_time_ms"},
        control=F.col("topic") == names.control,
        topics={"transactions": names.transactions, "labels": names.labels},
    ).process(first)
    for key, stage in rest:
        stream = stream.key_by(key).process(stage)
    if measures:
        metrics = PrequentialMetrics(labels.delay_ms, features=WATCHED)
        stream = stream.key_by("model", output="outcomes").process(metrics)
    tables = _tables([first.name, *(stage.name for _, stage in rest)], measures=measures)
    topics = {"alerts": names.alerts, "dead_letters": names.dead_letters}
    return Outputs(
        stream=stream,
        tables=tables,
        topics={o: topics[t] for o, t in tables.items() if isinstance(t, str) and t in topics},
    )


def _tables(names: Sequence[str], *, measures: bool) -> dict[str, str | Upsert]:
    """Return output → table; an output is led by the name of its stage, unless that is the last of all.

    Late events, repeats and what cannot be read end in the first stage; a later one has dead letters only
    where its own code fails.
    """
    last = "" if measures else names[-1]

    def of(name: str, output: str) -> str:
        return output if name == last else f"{name}.{output}"

    first, desk = names[0], names[-1]
    tables: dict[str, str | Upsert] = {
        of(desk, "main"): "transactions",
        of(desk, "alerts"): "alerts",
        of(first, "labels"): "labels",
        of(first, "late_transactions"): "late",
        of(first, "corrections"): "corrections",
        of(first, "dead_letters"): "dead_letters",
    }
    for name in names[1:]:
        stage = name.removesuffix("Monitor").removeprefix("Decision").lower()
        tables[of(name, "dead_letters")] = f"dead_letters_{stage}"
    if measures:
        tables |= {
            "main": Upsert("model_metrics", ("model", "day_ms"), "revision"),
            "late": "late_outcomes",
            "dead_letters": "dead_letters_metrics",
        }
    return tables


def _models(settings: FraudSettings) -> tuple[Scorer | None, Scorer | None]:
    """Return the champion's and the challenger's scorer; None without a registry: rules only."""
    model = settings.model
    if not model.registry:
        return None, None
    from apps.fraud.model.live import StreamScorer
    from apps.fraud.model.scorer import CHALLENGER

    return StreamScorer(model.registry, name=model.name), StreamScorer(model.registry, CHALLENGER, model.name)
