"""The features' pipeline as an app of its own, for recorded payments: they bring their labels along.

It is not among the installed apps: ``millrace evaluate fraud`` runs it through
:func:`millrace.runtime.replay.run_records`.
"""

from __future__ import annotations

from datetime import timedelta

from pydantic import Field

from millrace.runtime.apps import App, Topic, Topics
from millrace.runtime.settings import AppSettings, Duration, Section
from millrace.time import ms
from millrace.topology import Input, Topology, read
from millrace_apps.fraud.handbook.events import Payment, PaymentFeatures
from millrace_apps.fraud.handbook.process import CustomerHistory, TerminalHistory


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


def topology(settings: HistorySettings) -> Topology:
    """Return the topology: payments → customer's history → terminal's history → table ``features``."""
    names = settings.topics
    return (
        read(Input(names.payments, "customer_id"), control=names.control)
        .process(CustomerHistory())
        .key_by("terminal_id")
        .process(TerminalHistory(ms(settings.label_delay)))
        .write(
            tables={
                "main": "features",
                "late": "late",
                "dead_letters": "dead_letters",
                "CustomerHistory.late": "customer_late",
                "CustomerHistory.dead_letters": "customer_dead_letters",
            }
        )
    )


app = App(
    name="fraud-history",
    summary="Features of recorded payments.",
    settings=HistorySettings,
    topology=topology,
    topics=topics,
    contracts={"payment.v1": Payment, "features.v1": PaymentFeatures},
)
