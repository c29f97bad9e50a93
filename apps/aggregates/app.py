"""The aggregates app as the runtime knows it."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from millrace.runtime.apps import App, Topic, Topics
from millrace_apps.aggregates.life import PublishAggregation, RemoveAggregation
from millrace_apps.aggregates.settings import AggregateSettings
from millrace_apps.aggregates.windowing import LimitReached, Result

if TYPE_CHECKING:
    from millrace.host.packing import Masking
    from millrace.topology import Topology


def topics(settings: AggregateSettings) -> Topics:
    """Return the topics of the app; the control topic has one partition, so that it is in order."""
    from millrace_apps.aggregates.topology import topology as wired

    names, partitions = settings.topics, settings.topics.partitions
    inputs = wired(settings).inputs.values()
    reads = [Topic(one.topic, partitions, event_time=one.event_time, clock=one.clock) for one in inputs]
    return Topics(
        reads=(*reads, Topic(names.control, 1)),
        writes=(Topic(names.results, partitions), Topic(names.dead_letters, 1)),
        control=names.control,
    )


def topology(settings: AggregateSettings) -> Topology:
    """Return the app's topology (see :func:`millrace_apps.aggregates.topology.topology`)."""
    from millrace_apps.aggregates.topology import topology as wired

    return wired(settings)


def masking(settings: AggregateSettings) -> Masking | None:
    """Return what the apps whose topics are read do to their events before anything keeps them."""
    from millrace.runtime.commands import settings_of
    from millrace_apps.aggregates.masking import Several
    from millrace_apps.aggregates.sources import inputs_of

    apps = {known.app.name: known.app for known in inputs_of(settings).values()}
    made = [app.masking(settings_of(name)) for name, app in apps.items() if app.masking is not None]
    return reduce(Several, [one for one in made if one is not None]) if any(made) else None


app = App(
    name="aggregates",
    summary="Aggregations over the topics of all apps, published and removed while it runs.",
    settings=AggregateSettings,
    topology=topology,
    topics=topics,
    masking=masking,
    contracts={
        "control.v2": PublishAggregation | RemoveAggregation,
        "result.v2": Result,
        "limit_reached.v1": LimitReached,
    },
)
