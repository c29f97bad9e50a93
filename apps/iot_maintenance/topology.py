"""The iot app's topology: what comes in; readings, alarms, liveness and KPIs out."""

from __future__ import annotations

from millrace.time import ms
from millrace.time.held import HeldTime
from millrace.topology import Input, Topology, Upsert, read
from millrace_apps.iot_maintenance.contracts.events import DATED_BY_HAND
from millrace_apps.iot_maintenance.contracts.signals import KEYS, RECEIVED
from millrace_apps.iot_maintenance.foresight.links import alarms_of, tables_of, topics_of, with_foresight
from millrace_apps.iot_maintenance.processes.monitor import MachineMonitor
from millrace_apps.iot_maintenance.processes.plant import ForesightedPlant, PlantMonitor
from millrace_apps.iot_maintenance.settings import IotSettings, charts, forecasting, monitoring, scoring


def topology(settings: IotSettings) -> Topology:
    """Return the app's topology.

    Args:
        settings: The app's settings.

    Returns:
        Tables ``readings`` (enriched, every revision), ``alarm_history``, ``alarms`` (the state of each),
        ``liveness``, ``scores`` (how unusual each value is), ``anomalies`` (those that are), ``forecasts``
        (when each point crosses a limit), ``machine_health`` (what a machine's sensors say together),
        ``shifts`` and ``alarm_kpis`` (the newest revision of each), ``health`` (of each asset), ``notices``
        (of what is in no registry), ``clocks`` (how far each device's is off), ``work_orders`` (what was
        planned, and what became of it), ``late``, ``dead_letters`` and ``dead_alarms``; topics of results, of
        the readings too if one is named. Where the app looks ahead (``foresight.on``), the tables
        ``machine_features``, ``risks``, ``remaining_life``, ``maintenance_plan`` and ``maintenance`` as well.
    """
    names = settings.topics
    topics = {
        "main": names.alarms,
        "kpis": names.alarm_kpis,
        "health": names.health,
        "MachineMonitor.liveness": names.liveness,
        "MachineMonitor.shifts": names.shifts,
        "MachineMonitor.notices": names.notices,
        "MachineMonitor.anomalies": names.anomalies,
        "MachineMonitor.forecasts": names.forecasts,
        "MachineMonitor.machine_health": names.machine_health,
        "MachineMonitor.clocks": names.clocks,
        "MachineMonitor.orders": names.work_orders,
        "MachineMonitor.dead_letters": names.dead_letters,
    }
    if names.enriched:
        topics["MachineMonitor.main"] = names.enriched
    inputs = {
        name: Input(getattr(names, name), key, _time_of(name, settings), name not in DATED_BY_HAND)
        for name, key in KEYS.items()
    }
    made = read(inputs, control=names.control).process(
        MachineMonitor(monitoring(settings), scoring(settings), forecasting(settings), charts(settings))
    )
    ahead: dict[str, str | Upsert] = {}
    if settings.foresight.on:
        made = with_foresight(made, settings)
        ahead = tables_of(settings)
        topics |= topics_of(settings)
        alarms = {"machines": "MachineMonitor.alarms", "foreseen": alarms_of(settings)}
        judged = made.key_by("plant_id", output=alarms).process(ForesightedPlant())
    else:
        judged = made.key_by("plant_id", output="MachineMonitor.alarms").process(PlantMonitor())
    return judged.write(
        tables={
            **ahead,
            "MachineMonitor.main": "readings",
            "main": ("alarm_history", Upsert("alarms", ("alarm_id",), ("event_time_ms", "number"))),
            "kpis": Upsert("alarm_kpis", ("plant_id", "span", "start_ms"), "revision"),
            "health": Upsert("health", ("asset_id",), "event_time_ms"),
            "MachineMonitor.liveness": "liveness",
            "MachineMonitor.shifts": Upsert("shifts", ("machine_id", "shift_start_ms"), "revision"),
            "MachineMonitor.notices": Upsert("notices", ("asset_id", "what", "subject"), "event_time_ms"),
            "MachineMonitor.scores": "scores",
            "MachineMonitor.anomalies": "anomalies",
            "MachineMonitor.forecasts": Upsert("forecasts", ("machine_id", "subject"), "event_time_ms"),
            "MachineMonitor.machine_health": "machine_health",
            "MachineMonitor.clocks": Upsert("clocks", ("device_id",), "event_time_ms"),
            "MachineMonitor.orders": Upsert("work_orders", ("order_id",), "revision"),
            "MachineMonitor.late": "late",
            "MachineMonitor.dead_letters": "dead_letters",
            "dead_letters": "dead_alarms",
        },
        topics=topics,
    )


def _time_of(name: str, settings: IotSettings) -> str:
    """Return the field with the time of an input's events, held to their receipt where that is set."""
    told = settings.monitor
    if told.correct_clocks == "off" or name not in RECEIVED:
        return "event_time_ms"
    limit_ms = ms(told.clock_limit)
    return HeldTime("event_time_ms", "received_ms", limit_ms, behind=told.correct_clocks == "both")
