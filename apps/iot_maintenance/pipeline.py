"""The iot app's wiring: Kafka records in; readings, alarms, liveness and KPIs out."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from apps.iot_maintenance.plant import PlantMonitor
from apps.iot_maintenance.process import MachineMonitor
from apps.iot_maintenance.settings import IotSettings, IotTopics, monitoring
from apps.iot_maintenance.signals import STREAMS
from millrace.connectors.router import Outputs, Upsert
from millrace.runtime.wiring import keyed_records


def wrapped(names: IotTopics) -> Column:
    """Return a record's JSON with its stream and its entity in front: what all signals have in common.

    The entity is the Kafka key; of a heartbeat, which has the device as its key, the gateway. A value that is
    no JSON object, or has no entity, stays as it is, and becomes a dead letter.
    """
    topic, text = F.col("topic"), F.col("value").cast("string")
    stream = F.lit(None).cast("string")
    for name, of in STREAMS.items():
        stream = F.when(topic == getattr(names, name), F.lit(of)).otherwise(stream)
    gateway = F.get_json_object(text, "$.gateway_id")
    entity = F.when(topic == names.heartbeats, gateway).otherwise(F.col("key").cast("string"))
    head = F.to_json(F.struct(stream.alias("stream"), entity.alias("entity")))
    joined = F.concat(F.regexp_replace(head, r"\}$", ""), F.lit(","), F.substr(text, F.lit(2)))
    fits = F.startswith(text, F.lit("{")) & entity.isNotNull() & stream.isNotNull()
    return F.when(fits, joined.cast("binary")).otherwise(F.col("value"))


def build(streams: Mapping[str, DataFrame], settings: IotSettings) -> Outputs:
    """Wire the pipeline; nothing starts here.

    Args:
        streams: ``events``: Kafka records of all topics, as
            :func:`millrace.connectors.kafka.kafka_stream` gives them.
        settings: The app's settings.

    Returns:
        Tables ``readings`` (enriched, every revision), ``alarm_history``, ``alarms`` (the state of each),
        ``liveness``, ``shifts``, ``alarm_kpis``, ``health`` (of each asset), ``late``, ``dead_letters`` and
        ``dead_alarms``; topics of results, of the readings too if one is named.
    """
    names = settings.topics
    control = F.col("topic") == names.control
    records = streams["events"].withColumn("value", F.when(control, F.col("value")).otherwise(wrapped(names)))
    stream = (
        keyed_records(records, settings, by="entity", control=control)
        .process(MachineMonitor(monitoring(settings)))
        .key_by("plant_id", output="alarms")
        .process(PlantMonitor())
    )
    topics = {
        "main": names.alarms,
        "kpis": names.alarm_kpis,
        "health": names.health,
        "MachineMonitor.liveness": names.liveness,
        "MachineMonitor.shifts": names.shifts,
        "MachineMonitor.dead_letters": names.dead_letters,
    }
    if names.enriched:
        topics["MachineMonitor.main"] = names.enriched
    return Outputs(
        stream=stream,
        tables={
            "MachineMonitor.main": "readings",
            "main": "alarm_history",
            "newest": Upsert("alarms", ("alarm_id",), "event_time_ms"),
            "kpis": "alarm_kpis",
            "health": Upsert("health", ("asset_id",), "event_time_ms"),
            "MachineMonitor.liveness": "liveness",
            "MachineMonitor.shifts": "shifts",
            "MachineMonitor.late": "late",
            "MachineMonitor.dead_letters": "dead_letters",
            "dead_letters": "dead_alarms",
        },
        topics=topics,
    )
