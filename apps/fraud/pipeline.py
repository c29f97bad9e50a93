"""The fraud app's wiring: Kafka records in, decisions, alerts, late events and dead letters out."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from apps.fraud.process import CardMonitor
from apps.fraud.settings import FraudSettings
from millrace import keyed
from millrace.connectors.router import Outputs


def build(streams: Mapping[str, DataFrame], settings: FraudSettings) -> Outputs:
    """Wire the pipeline; nothing starts here.

    Args:
        streams: ``events``: Kafka records of the transactions and control topics, as
            :func:`millrace.connectors.kafka.kafka_stream` gives them.
        settings: The app's settings.

    Returns:
        Tables ``transactions`` (one row per decision), ``alerts``, ``late`` and ``dead_letters``; topics
        for alerts and dead letters.
    """
    decisions = keyed(
        streams["events"],
        value="value",
        by="card_id",
        event_time="event_time_ms",
        out_of_orderness=settings.stream.out_of_orderness,
        source_id="source_id",
        headers="headers",
        keep_headers=settings.stream.keep_headers,
        control=F.col("topic") == settings.topics.control,
        arrived_at="timestamp",
        max_future_skew=settings.stream.max_future_skew,
        key_groups=settings.spark.key_groups,
        profile=settings.stream.profile,
    ).process(CardMonitor())
    return Outputs(
        stream=decisions,
        tables={
            "main": "transactions",
            "alerts": "alerts",
            "late": "late",
            "dead_letters": "dead_letters",
        },
        topics={"alerts": settings.topics.alerts, "dead_letters": settings.topics.dead_letters},
    )
