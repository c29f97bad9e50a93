"""The iot app as the runtime knows it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from millrace.rules import RuleEvent
from millrace.runtime.apps import App, Topic, Topics
from millrace_apps.iot_maintenance.alarms.record import AlarmEvent
from millrace_apps.iot_maintenance.contracts.events import (
    DATED_BY_HAND,
    Action,
    Equipment,
    Heartbeat,
    MachineError,
    Maintenance,
    PartCount,
    Reading,
    Status,
)
from millrace_apps.iot_maintenance.contracts.records import EnrichedReading, Liveness, ShiftKpi
from millrace_apps.iot_maintenance.foresight.records import MaintenancePlan, RemainingLife, Risk
from millrace_apps.iot_maintenance.processes.anomalies import PointScore
from millrace_apps.iot_maintenance.processes.clocks import ClockOffset
from millrace_apps.iot_maintenance.processes.forecasts import PointForecast
from millrace_apps.iot_maintenance.processes.machine_health import MachineHealth
from millrace_apps.iot_maintenance.processes.orders import WorkOrder
from millrace_apps.iot_maintenance.processes.plant import AssetHealth
from millrace_apps.iot_maintenance.processes.windows import AlarmKpi
from millrace_apps.iot_maintenance.settings import IotSettings
from millrace_apps.iot_maintenance.state.assets import Notice

if TYPE_CHECKING:
    from millrace.topology import Topology


def topics(settings: IotSettings) -> Topics:
    """Return the topics of the app; the control topic has one partition, so that it is in order."""
    names, partitions = settings.topics, settings.topics.partitions
    events = ("equipment", "status", "maintenance", "errors", "heartbeats", "readings", "actions", "counts")
    results = [
        *("alarms", "alarm_kpis", "health", "liveness", "shifts", "notices", "clocks"),
        *("anomalies", "forecasts", "machine_health", "work_orders"),
    ]
    if names.enriched:
        results.append("enriched")
    if settings.foresight.on:
        results += ["risks", "remaining_life", "maintenance_plan"]
    reads = [
        Topic(getattr(names, name), partitions, event_time="event_time_ms", clock=name not in DATED_BY_HAND)
        for name in events
    ]
    return Topics(
        reads=(*reads, Topic(names.control, 1)),
        writes=(*(Topic(getattr(names, name), partitions) for name in results), Topic(names.dead_letters, 1)),
        control=names.control,
    )


def topology(settings: IotSettings) -> Topology:
    """Return the app's topology (see :func:`millrace_apps.iot_maintenance.topology.topology`)."""
    from millrace_apps.iot_maintenance.topology import topology as wired

    return wired(settings)


def begin(settings: IotSettings) -> None:
    """Let a job that begins find the models that a registry has and that were never exported."""
    told = settings.foresight
    folder = told.folder(Path(settings.storage.path("models")))
    if not told.on or not told.registry or folder is None:
        return
    from millrace.models.beginning import export_first

    for model, name in (("risk", told.risk), ("life", told.life)):
        export_first("iot", model, name, told.registry, Path(folder))


app = App(
    name="iot",
    summary="Machines watched: status as of event time, alarms that replay, silence noticed, KPIs.",
    settings=IotSettings,
    topology=topology,
    topics=topics,
    demo="millrace_apps.iot_maintenance.demo:spec",
    dashboard="millrace_apps.iot_maintenance.dashboard.page:page",
    begin=begin,
    models="millrace_apps.iot_maintenance.foresight.model_cli:app",
    evaluate="millrace_apps.iot_maintenance.evaluation.cli:app",
    rules="millrace_apps.iot_maintenance.operations.app_rules:RULES",
    contracts={
        "reading.v3": Reading,
        "status.v3": Status,
        "part_count.v1": PartCount,
        "maintenance.v3": Maintenance,
        "machine_error.v1": MachineError,
        "equipment.v3": Equipment,
        "heartbeat.v2": Heartbeat,
        "action.v4": Action,
        "control.v2": RuleEvent,
        "enriched_reading.v2": EnrichedReading,
        "alarm.v2": AlarmEvent,
        "liveness.v2": Liveness,
        "notice.v1": Notice,
        "clock_offset.v1": ClockOffset,
        "shift_kpi.v3": ShiftKpi,
        "alarm_kpi.v2": AlarmKpi,
        "asset_health.v1": AssetHealth,
        "point_score.v1": PointScore,
        "point_forecast.v1": PointForecast,
        "machine_health.v2": MachineHealth,
        "work_order.v1": WorkOrder,
        "risk.v1": Risk,
        "remaining_life.v1": RemainingLife,
        "maintenance_plan.v1": MaintenancePlan,
    },
    narrowed=dict.fromkeys(
        ("reading.v2", "status.v2", "maintenance.v2", "equipment.v2", "action.v2"),
        "numbers, times and lengths have the bounds that what is kept of them needs",
    ),
)
