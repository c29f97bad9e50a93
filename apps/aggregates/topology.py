"""The topology of the aggregates app: events in, results of windows out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millrace.time import ms
from millrace.topology import Input, Topology, read
from millrace_apps.aggregates.selecting import selecting
from millrace_apps.aggregates.sources import inputs_of, source_of
from millrace_apps.aggregates.windowing import Windowing

if TYPE_CHECKING:
    from millrace_apps.aggregates.settings import AggregateSettings


def topology(settings: AggregateSettings) -> Topology:
    """Return the app's topology.

    Returns:
        Tables ``results`` (a row for each thing that is said of a window), ``limits`` (which aggregation has
        reached one), ``late``, ``dead_letters`` and ``dead_windows``; topics of results and dead letters.
    """
    names = settings.topics
    known = inputs_of(settings)
    sources = {name: source_of(one.input.topic, one, settings) for name, one in known.items()}
    clocks = any(one.input.clock for one in known.values())
    inputs = {
        name: Input(one.input.topic, one.input.key, str(one.input.event_time), one.input.clock or not clocks)
        for name, one in known.items()
    }
    types = {source.topic: source.type for source in sources.values()}
    return (
        read(inputs, control=names.control)
        .process(selecting(sources, ms(settings.repeats_within)))
        .key_by(("name", "shard"))
        .process(Windowing(types))
        .write(
            tables={
                "main": "results",
                "limits": "limits",
                "late": "late",
                "Selecting.dead_letters": "dead_letters",
                "dead_letters": "dead_windows",
            },
            topics={"main": names.results, "Selecting.dead_letters": names.dead_letters},
        )
    )
