"""The ridesharing app's wiring: signals in, offers, assignments, trips, alarms and tables out."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from apps.ridesharing.auditor import Auditor
from apps.ridesharing.config import DispatchConfig
from apps.ridesharing.dispatcher import Dispatcher
from apps.ridesharing.gate import Gate
from apps.ridesharing.settings import RidesharingSettings, RidesTopics
from millrace.connectors.router import Outputs, Upsert
from millrace.runtime.wiring import keyed_records

#: The streams of signals, as the topics are named in the settings.
STREAMS = (
    "locations",
    "status",
    "requests",
    "answers",
    "cancellations",
    "progress",
    "commands",
    "handovers",
)


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
    control = F.col("topic") == topics.control
    journal = (
        keyed_records(
            streams["events"].withColumn("value", _signal(topics, control)),
            settings,
            by="entity",
            control=control,
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


def _signal(topics: RidesTopics, control: Column) -> Column:
    """Return the event with its stream and its key in it: one source is read once, whatever is in it.

    What is no JSON object stays as it is, and becomes a dead letter.
    """
    text = F.rtrim(F.col("value").cast("string"))
    key = F.coalesce(F.col("key").cast("string"), F.lit(""))
    of = F.get_json_object(text, "$.driver_id"), F.get_json_object(text, "$.request_id")
    about = F.coalesce(F.nullif(of[0], F.lit("")), of[1], key)
    stream = F.lit(None).cast("string")
    for name in STREAMS:
        stream = F.when(F.col("topic") == getattr(topics, name), F.lit(name)).otherwise(stream)
    entity = F.when(F.col("topic") == topics.handovers, about).otherwise(key)
    added = F.to_json(F.struct(stream.alias("stream"), entity.alias("entity")))
    joined = F.concat(text.substr(F.lit(1), F.length(text) - 1), F.lit(","), added.substr(2, 1_000_000))
    is_object = ~control & stream.isNotNull() & text.startswith("{") & text.endswith("}")
    return F.when(is_object, joined.cast("binary")).otherwise(F.col("value"))
