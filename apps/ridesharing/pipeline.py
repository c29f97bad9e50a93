"""The ridesharing app's wiring: signals in, offers, assignments, trips, alarms and tables out."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from apps.ridesharing.auditor import Auditor
from apps.ridesharing.config import DispatchConfig
from apps.ridesharing.dispatcher import Dispatcher
from apps.ridesharing.events import CLOCKS, STREAMS
from apps.ridesharing.gate import Gate
from apps.ridesharing.settings import RidesharingSettings
from millrace.connectors.router import Outputs, Upsert
from millrace.runtime.wiring import keyed_records


def build(
    streams: Mapping[str, DataFrame], settings: RidesharingSettings, config: DispatchConfig | None = None
) -> Outputs:
    """Wire the pipeline; nothing starts here.

    Args:
        streams: ``events``: Kafka records of the signals and the control topic.
        settings: The app's settings.
        config: What the processes are told, in place of what the settings say.
    """
    told, topics = config or settings.dispatch_config(), settings.topics
    journal = (
        keyed_records(
            streams["events"],
            settings,
            by=_keys(),
            topics={name: getattr(topics, name) for name in STREAMS},
            control=F.col("topic") == topics.control,
            clock={name: name in CLOCKS for name in STREAMS},
        )
        .process(Gate(told))
        .key_by("region")
        .process(Dispatcher(told))
        .key_by("subject")
        .process(Auditor())
    )
    return Outputs(
        stream=journal,
        tables={
            "main": "violations",
            "Dispatcher.attempts": Upsert("assignments", key=("request_id", "attempt"), newest="revision"),
            "Dispatcher.trips": "trips",
            "Dispatcher.offers": "offers",
            "Dispatcher.releases": "releases",
            "Dispatcher.windows": "windows",
            "Dispatcher.operations": "operations",
            "Dispatcher.ignored": "ignored",
            "Dispatcher.drivers": "drivers",
            "Dispatcher.handovers": "handovers",
            "Dispatcher.supply": "supply",
            "Gate.late": "late",
            "Gate.dead_letters": "dead_letters",
            "Dispatcher.dead_letters": "dispatcher_dead_letters",
            "dead_letters": "auditor_dead_letters",
        },
        topics={
            "main": topics.violations,
            "Dispatcher.offers": topics.offers,
            "Dispatcher.assignments": topics.assignments,
            "Dispatcher.releases": topics.releases,
            "Dispatcher.trips": topics.trips,
            "Dispatcher.handovers": topics.handovers,
            "Gate.dead_letters": topics.dead_letters,
        },
    )


def _keys() -> dict[str, Column]:
    """Return the key of each stream: the driver or the request that a signal is about."""
    key, value = F.col("key").cast("string"), F.col("value").cast("string")
    driver, request = F.get_json_object(value, "$.driver_id"), F.get_json_object(value, "$.request_id")
    # What the app sends itself has the key of its sender: whom it concerns stands in it.
    about = F.coalesce(F.nullif(driver, F.lit("")), request, key)
    return {**dict.fromkeys(STREAMS, key), "handovers": about}
