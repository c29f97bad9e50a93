"""The iot app's wiring: Kafka records in; readings, alarms, liveness and KPIs out."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from apps.iot_maintenance.events import DATED_BY_HAND
from apps.iot_maintenance.plant import PlantMonitor
from apps.iot_maintenance.process import MachineMonitor
from apps.iot_maintenance.settings import IotSettings, monitoring
from apps.iot_maintenance.signals import KEYS
from millrace.connectors.router import Outputs, Upsert
from millrace.runtime.wiring import keyed_records


def build(streams: Mapping[str, DataFrame], settings: IotSettings) -> Outputs:
    """Wire the pipeline; nothing starts here.

    Args:
        streams: ``events``: Kafka records of all topics, as
            :func:`millrace.connectors.kafka.kafka_stream` gives them.
        settings: The app's settings.

    Returns:
        Tables ``readings`` (enriched, every revision), ``alarm_history``, ``alarms`` (the state of each),
        ``liveness``, ``shifts`` and ``alarm_kpis`` (the newest revision of each), ``health`` (of each asset),
        ``late``, ``dead_letters`` and ``dead_alarms``; topics of results, of the readings too if one is
        named.
    """
    names = settings.topics
    stream = (
        keyed_records(
            streams["events"],
            settings,
            by=KEYS,
            topics={name: getattr(names, name) for name in KEYS},
            control=F.col("topic") == names.control,
            clock=dict.fromkeys(DATED_BY_HAND, False),
        )
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
            "kpis": Upsert("alarm_kpis", ("plant_id", "span", "start_ms"), "revision"),
            "health": Upsert("health", ("asset_id",), "event_time_ms"),
            "MachineMonitor.liveness": "liveness",
            "MachineMonitor.shifts": Upsert("shifts", ("machine_id", "shift_start_ms"), "revision"),
            "MachineMonitor.late": "late",
            "MachineMonitor.dead_letters": "dead_letters",
            "dead_letters": "dead_alarms",
        },
        topics=topics,
    )
