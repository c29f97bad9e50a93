"""The links that look ahead, as the app's topology has them."""

from __future__ import annotations

from pathlib import Path

from millrace.time import ms
from millrace.topology import Topology, Upsert
from millrace_apps.iot_maintenance.foresight.alarming import Ruling
from millrace_apps.iot_maintenance.foresight.baseline import read_baseline
from millrace_apps.iot_maintenance.foresight.forewarning import Forewarning
from millrace_apps.iot_maintenance.foresight.lifetimes import Lifetimes, Promises
from millrace_apps.iot_maintenance.foresight.models import Forecaster
from millrace_apps.iot_maintenance.foresight.process import Foresight, Looking
from millrace_apps.iot_maintenance.settings import IotSettings, monitoring

#: Output → its table.
TABLES: dict[str, str | Upsert] = {
    "MachineMonitor.replaced": "maintenance",
    "Foresight.main": "machine_features",
    "Foresight.risks": "risks",
    "Foresight.dead_letters": "dead_features",
    "Lifetimes.main": "remaining_life",
    "Lifetimes.plans": Upsert("maintenance_plan", ("machine_id",), "event_time_ms"),
    "Lifetimes.dead_letters": "dead_forecasts",
}


def tables_of(settings: IotSettings) -> dict[str, str | Upsert]:
    """Return output → its table of what looks ahead."""
    behind = {"Forewarning.dead_letters": "dead_warnings"} if by_interval(settings) else {}
    return {**TABLES, **behind}


def by_interval(settings: IotSettings) -> bool:
    """Return whether alarms and plans go by the interval of remaining life."""
    return settings.foresight.judged_by == "interval"


def alarms_of(settings: IotSettings) -> str:
    """Return the output of the alarms of what is foreseen."""
    return "Forewarning.alarms" if by_interval(settings) else "Foresight.alarms"


def looking(settings: IotSettings) -> Looking:
    """Return how far and by what the app looks ahead.

    Raises:
        NotABaseline: The baseline's file cannot be read.
    """
    told = settings.foresight
    folder = told.folder(Path(settings.storage.path("models")))
    return Looking(
        every_ms=ms(told.every),
        keep_ms=ms(settings.monitor.keep),
        baseline=read_baseline(told.baseline),
        forecaster=None if folder is None else Forecaster(folder, told.risk, told.life),
    )


def with_foresight(made: Topology, settings: IotSettings) -> Topology:
    """Return a topology with the links that look ahead behind the monitor of machines.

    Raises:
        NotABaseline: The baseline's file cannot be read.
    """
    told = settings.foresight
    behind = by_interval(settings)
    promises = Promises(told.coverage, told.rate, told.cost_early, told.cost_late, behind)
    taken = {
        "replaced": "MachineMonitor.replaced",
        "readings": "MachineMonitor.main",
        "asked": "MachineMonitor.asked",
        "places": "MachineMonitor.places",
    }
    keys = dict.fromkeys(taken, "machine_id") | {"asked": "entity_id"}
    ruling = Ruling.of(monitoring(settings))
    judged = {"truths": "Foresight.truths", "forecasts": "Foresight.forecasts"}
    ahead = (
        made.key_by(keys, output=taken)
        .process(Foresight(looking(settings), ruling, passes_on=behind))
        .key_by("fleet", output=judged)
        .process(Lifetimes(promises))
    )
    if not behind:
        return ahead
    told_of = {
        "turns": "Foresight.turns",
        "lives": "Lifetimes.main",
        "steps": "Foresight.steps",
        "asked": "MachineMonitor.asked",
        "places": "MachineMonitor.places",
    }
    keys = dict.fromkeys(told_of, "machine_id") | {"asked": "entity_id"}
    return ahead.key_by(keys, output=told_of).process(Forewarning(ruling, ms(settings.monitor.keep)))


def topics_of(settings: IotSettings) -> dict[str, str]:
    """Return output → topic of what is foreseen."""
    names = settings.topics
    return {
        "Foresight.risks": names.risks,
        "Lifetimes.main": names.remaining_life,
        "Lifetimes.plans": names.maintenance_plan,
    }
