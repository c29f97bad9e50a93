"""Trips in, rankings out, as a topology: in memory, or as a query of Spark's."""

from __future__ import annotations

from typing import Any, Final

from millrace import KeyedProcess
from millrace.kafka.admin import SENT_TIME
from millrace.runtime.apps import App, Topic, Topics
from millrace.runtime.settings import AppSettings
from millrace.topology import Input, Topology, read
from millrace_apps.ridesharing.debs.areas import ProfitableAreas, TopAreas
from millrace_apps.ridesharing.debs.routes import FrequentRoutes, TopRoutes

TRIPS: Final = "debs.trips"
_CONTROL: Final = "debs.control"
#: Query → what it is run by, and what it tells.
QUERIES: Final[dict[int, tuple[type[KeyedProcess[Any, Any]], type[TopRoutes] | type[TopAreas]]]] = {
    1: (FrequentRoutes, TopRoutes),
    2: (ProfitableAreas, TopAreas),
}


def app_of(query: int) -> App:
    """Return a query as an app that writes the table ``results``.

    Args:
        query: 1 or 2.
    """

    def topology(_settings: AppSettings) -> Topology:
        wired = read(Input(TRIPS, "city", "dropoff_ms"), control=_CONTROL).process(QUERIES[query][0]())
        return wired.write(tables={"main": "results", "late": "late", "dead_letters": "dead_letters"})

    def topics(_settings: AppSettings) -> Topics:
        reads = (Topic(TRIPS, 1, SENT_TIME, event_time="dropoff_ms"), Topic(_CONTROL, 1))
        return Topics(reads=reads, writes=(), control=_CONTROL)

    return App(
        name=f"debs-{query}",
        summary=f"Query {query} of the DEBS 2015 Grand Challenge.",
        settings=AppSettings,
        topology=topology,
        topics=topics,
    )
