"""The fraud app's wiring: Kafka records in, decisions, alerts, late events and dead letters out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from apps.fraud.entity_stages import stages
from apps.fraud.settings import FraudSettings
from apps.fraud.tokens import read_key, tokenised
from millrace.connectors.router import Outputs
from millrace.runtime.wiring import keyed_records

if TYPE_CHECKING:
    from apps.fraud.scorer import Scorer


def build(streams: Mapping[str, DataFrame], settings: FraudSettings) -> Outputs:
    """Wire the pipeline; nothing starts here.

    Args:
        streams: ``events``: Kafka records of the transactions and control topics, as
            :func:`millrace.connectors.kafka.kafka_stream` gives them.
        settings: The app's settings; ``features.entities`` says which stages follow the card's,
            ``model.registry`` which models are asked.

    Returns:
        Tables ``transactions`` (one row per decision), ``alerts``, ``late``, ``corrections`` and
        ``dead_letters``; topics for alerts and dead letters.
    """
    events = streams["events"]
    if settings.privacy.token_key_file is not None:
        events = tokenised(events, read_key(settings.privacy.token_key_file))
    first, rest = stages(settings.features.stages, *_models(settings))
    stream = keyed_records(
        events, settings, by="card_id", control=F.col("topic") == settings.topics.control
    ).process(first)
    for key, stage in rest:
        stream = stream.key_by(key).process(stage)
    # Late events, repeats and what cannot be read end in the first stage; a later one has dead letters only
    # where its own code fails.
    source = f"{first.name}." if rest else ""
    tables = {
        "main": "transactions",
        "alerts": "alerts",
        f"{source}late": "late",
        f"{source}corrections": "corrections",
        f"{source}dead_letters": "dead_letters",
    }
    later = [stage.name for _, stage in rest]
    for name in later:
        output = "dead_letters" if name == later[-1] else f"{name}.dead_letters"
        tables[output] = f"dead_letters_{name.removesuffix('Monitor').removeprefix('Decision').lower()}"
    return Outputs(
        stream=stream,
        tables=tables,
        topics={"alerts": settings.topics.alerts, f"{source}dead_letters": settings.topics.dead_letters},
    )


def _models(settings: FraudSettings) -> tuple[Scorer | None, Scorer | None]:
    """Return the champion's and the challenger's scorer; None without a registry: rules only."""
    model = settings.model
    if not model.registry:
        return None, None
    from apps.fraud.model.live import StreamScorer
    from apps.fraud.model.scorer import CHALLENGER

    return StreamScorer(model.registry, name=model.name), StreamScorer(model.registry, CHALLENGER, model.name)
