"""The clickstream app as the runtime knows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millrace.rules import RuleEvent
from millrace.runtime.apps import App, Topic, Topics
from millrace_apps.clickstream.contracts.events import (
    Click,
    Consent,
    Customer,
    Erasure,
    Forget,
    ItemChange,
    Refund,
)
from millrace_apps.clickstream.recommend.records import Recommendation
from millrace_apps.clickstream.settings import ClickstreamSettings
from millrace_apps.clickstream.state.offers import Offer

if TYPE_CHECKING:
    from millrace.topology import Topology


def topics(settings: ClickstreamSettings) -> Topics:
    """Return the topics of the app; control topics have one partition, so that they are in order."""
    names, partitions = settings.topics, settings.topics.partitions
    streams = (names.clicks, names.customers, names.consents, names.refunds, names.erasures)
    results = (names.offers, *((names.recommendations,) if settings.recommend.on else ()))
    return Topics(
        reads=(
            *(Topic(name, partitions, event_time="event_time_ms") for name in streams),
            Topic(names.forget, 1, event_time="event_time_ms", clock=False),
            Topic(names.items, 1, event_time="event_time_ms", clock=False),
            Topic(names.control, 1),
        ),
        writes=(*(Topic(name, partitions) for name in results), Topic(names.dead_letters, 1)),
        control=names.control,
    )


def topology(settings: ClickstreamSettings) -> Topology:
    """Return the app's topology (see :func:`millrace_apps.clickstream.topology.topology`)."""
    from millrace_apps.clickstream.topology import topology as wired

    return wired(settings)


app = App(
    name="clickstream",
    summary="A web shop's clicks: sessions, funnels, left carts, offers with caps, top products.",
    settings=ClickstreamSettings,
    topology=topology,
    topics=topics,
    demo="millrace_apps.clickstream.demo:spec",
    dashboard="millrace_apps.clickstream.dashboard.page:page",
    evaluate="millrace_apps.clickstream.evaluation.cli:app",
    models="millrace_apps.clickstream.recommend.model_cli:app",
    rules="millrace_apps.clickstream.recommend.app_rules:RULES",
    serve="millrace_apps.clickstream.recommend.serve:questions",
    contracts={
        "click.v3": Click,
        "customer.v1": Customer,
        "consent.v2": Consent,
        "refund.v3": Refund,
        "erasure.v1": Erasure,
        "forget.v2": Forget,
        "item_change.v1": ItemChange,
        "control.v1": RuleEvent,
        "offer.v2": Offer,
        "recommendation.v2": Recommendation,
    },
    narrowed=dict.fromkeys(
        ("click.v2", "consent.v2", "refund.v2"),
        "numbers, times and lengths have the bounds that what is kept of them needs",
    ),
)
