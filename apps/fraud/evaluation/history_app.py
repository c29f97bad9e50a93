"""The features' pipeline as an app of its own, for recorded payments: they bring their labels along.

It is not among the installed apps: ``millrace evaluate fraud`` runs it through
:func:`millrace.runtime.replay.run_records`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

from pydantic import Field

from apps.fraud.handbook.events import Payment, PaymentFeatures
from apps.fraud.handbook.process import CustomerHistory, TerminalHistory
from millrace.runtime.apps import App, Topic, Topics
from millrace.runtime.settings import AppSettings, Duration, Section
from millrace.time import ms

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from millrace.connectors.router import Outputs


class HistoryTopics(Section):
    """Names of the topics, as they stand in the records."""

    payments: str = "fraud.history"
    control: str = "fraud.history-control"


class HistorySettings(AppSettings):
    """What the pipeline can be told."""

    topics: HistoryTopics = HistoryTopics()
    label_delay: Duration = Field(
        default=timedelta(days=7), description="how long after a payment its label becomes known"
    )


def topics(settings: HistorySettings) -> Topics:
    """Return the topics of the pipeline."""
    names = settings.topics
    return Topics(reads=(Topic(names.payments), Topic(names.control, 1)), control=names.control)


def build(streams: Mapping[str, DataFrame], settings: HistorySettings) -> Outputs:
    """Wire the pipeline: payments → customer's history → terminal's history → table ``features``.

    Args:
        streams: ``events``: records as Kafka has them.
        settings: The settings.
    """
    from pyspark.sql import functions as F

    from millrace import keyed
    from millrace.connectors.router import Outputs

    history = (
        keyed(
            streams["events"],
            value="value",
            by="customer_id",
            event_time="event_time_ms",
            out_of_orderness=settings.stream.out_of_orderness,
            source_id="source_id",
            headers="headers",
            keep_headers=settings.stream.keep_headers,
            control=F.col("topic") == settings.topics.control,
            key_groups=settings.spark.key_groups,
        )
        .process(CustomerHistory())
        .key_by("terminal_id")
        .process(TerminalHistory(ms(settings.label_delay)))
    )
    return Outputs(
        stream=history,
        tables={
            "main": "features",
            "late": "late",
            "dead_letters": "dead_letters",
            "CustomerHistory.late": "customer_late",
            "CustomerHistory.dead_letters": "customer_dead_letters",
        },
    )


app = App(
    name="fraud-history",
    summary="Features of recorded payments.",
    settings=HistorySettings,
    build=build,
    topics=topics,
    contracts={"payment.v1": Payment, "features.v1": PaymentFeatures},
)
