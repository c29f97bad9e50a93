"""The fraud app as the runtime knows it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from millrace.runtime.apps import App, Topic, Topics
from millrace_apps.fraud.contracts.events import (
    Alert,
    Authorisation,
    CardErasure,
    Control,
    Correction,
    Decision,
    Label,
    Transaction,
)
from millrace_apps.fraud.settings import FraudSettings

if TYPE_CHECKING:
    from millrace.privacy.records import CardNumbers
    from millrace.topology import Topology


def topics(settings: FraudSettings) -> Topics:
    """Return the topics of the app; control topics have one partition, so that they are in order."""
    names, partitions = settings.topics, settings.topics.partitions
    return Topics(
        reads=(
            Topic(names.transactions, partitions, event_time="event_time_ms"),
            # A label has the time of its transaction, and so has an authorisation.
            Topic(names.labels, partitions, event_time="transaction_time_ms", clock=False),
            Topic(names.authorisations, partitions, event_time="transaction_time_ms", clock=False),
            Topic(names.control, 1),
            # What is asked for now is no clock for payments.
            Topic(names.erasures, 1, event_time="event_time_ms", clock=False),
        ),
        writes=(Topic(names.alerts, partitions), Topic(names.dead_letters, 1)),
        control=names.control,
    )


def topology(settings: FraudSettings) -> Topology:
    """Return the app's topology (see :func:`millrace_apps.fraud.topology.topology`)."""
    from millrace_apps.fraud.topology import topology as wired

    return wired(settings)


def settle(
    settings: FraudSettings, plan: Literal["station", "chain"], links: Sequence[str] | None
) -> FraudSettings:
    """Return the settings with the entities that decide with the card, where these were left to the plan."""
    return settings.model_copy(update={"features": settings.features.settled(plan, links)})


def begin(settings: FraudSettings) -> str | None:
    """Make a key for tokens, and have the models of a registry exported, where that has never been done."""
    from millrace_apps.fraud.operations.tokens import make_key

    registry, folder = settings.model.registry, settings.exports
    if registry and folder is not None:
        from millrace.models.beginning import export_first

        export_first("fraud", "transactions", settings.model.name, registry, Path(folder))
    return make_key(settings)


def masking(settings: FraudSettings) -> CardNumbers | None:
    """Return what replaces card numbers by tokens, unless that is off."""
    from millrace_apps.fraud.operations.tokens import card_numbers

    return card_numbers(settings, [Transaction, Label, Authorisation, CardErasure, Control])


app = App(
    name="fraud",
    summary="Card payments decided on as they come: exact windows, rules changed while running, reasons.",
    settings=FraudSettings,
    topology=topology,
    topics=topics,
    settle=settle,
    masking=masking,
    begin=begin,
    demo="millrace_apps.fraud.demo:spec",
    dashboard="millrace_apps.fraud.dashboard.page:page",
    evaluate="millrace_apps.fraud.evaluation.cli:app",
    evaluations={"fraud-loop": "millrace_apps.fraud.evaluation.loop_cli:app"},
    models="millrace_apps.fraud.operations.model_cli:app",
    rules="millrace_apps.fraud.operations.app_rules:RULES",
    contracts={
        "transaction.v2": Transaction,
        "label.v1": Label,
        "erasure.v1": CardErasure,
        "authorisation.v1": Authorisation,
        "control.v4": Control,
        "decision.v2": Decision,
        "alert.v2": Alert,
        "correction.v1": Correction,
    },
    narrowed=dict.fromkeys(
        ("control.v2",),
        "numbers, times and lengths have the bounds that what is kept of them needs",
    ),
)
