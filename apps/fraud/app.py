"""The fraud app as the runtime knows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from apps.fraud.events import Alert, Control, Correction, Decision, Label, Transaction
from apps.fraud.settings import FraudSettings
from millrace.runtime.apps import App, Topic, Topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from millrace.connectors.router import Outputs


def topics(settings: FraudSettings) -> Topics:
    """Return the topics of the app; control topics have one partition, so that they are in order."""
    names, partitions = settings.topics, settings.topics.partitions
    return Topics(
        reads=(
            Topic(names.transactions, partitions, event_time="event_time_ms"),
            # A label has the time of its transaction.
            Topic(names.labels, partitions, event_time="transaction_time_ms", clock=False),
            Topic(names.control, 1),
        ),
        writes=(Topic(names.alerts, partitions), Topic(names.dead_letters, 1)),
        control=names.control,
    )


def build(streams: Mapping[str, DataFrame], settings: FraudSettings) -> Outputs:
    """Wire the pipeline (see :func:`apps.fraud.pipeline.build`); Spark is imported only here."""
    from apps.fraud.pipeline import build as wire

    return wire(streams, settings)


app = App(
    name="fraud",
    summary="Card payments decided on as they come: exact windows, rules changed while running, reasons.",
    settings=FraudSettings,
    build=build,
    topics=topics,
    demo="apps.fraud.demo:spec",
    dashboard="apps.fraud.dashboard:page",
    evaluate="apps.fraud.evaluate_cli:app",
    contracts={
        "transaction.v1": Transaction,
        "label.v1": Label,
        "control.v1": Control,
        "decision.v1": Decision,
        "alert.v1": Alert,
        "correction.v1": Correction,
    },
)
