"""Machines, facts, readings and rules for the tests of the iot app."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from millrace.testing import TestDriver
from millrace_apps.iot_maintenance.alarms.record import AlarmEvent
from millrace_apps.iot_maintenance.alarms.rule import AlarmRule, Level
from millrace_apps.iot_maintenance.contracts.events import (
    Action,
    Equipment,
    Heartbeat,
    MachineError,
    Maintenance,
    Reading,
    Status,
)
from millrace_apps.iot_maintenance.contracts.records import EnrichedReading
from millrace_apps.iot_maintenance.processes.monitor import MachineMonitor, Monitoring

SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000
START = 1_767_600_000_000  # 2026-01-05 08:00 UTC, a Monday
M1 = "p01-l01-m001"
GATEWAY = "p01-l01-gw"
Event = tuple[str, int, Any]


def reading(
    at: int, value: float | None, quantity: str = "oil", *, unit: str = "degC", machine: str = M1
) -> Event:
    """A reading ``at`` ms after the start."""
    event = Reading(
        f"{machine}.{quantity}.{at}",
        f"{machine}.{quantity}",
        machine,
        GATEWAY,
        quantity,
        value,
        unit,
        START + at,
    )
    return machine, START + at, event


def status(at: int, text: str, produced: int = 0, rejected: int = 0, *, machine: str = M1) -> Event:
    """A status."""
    event = Status(f"{machine}.s{at}", machine, text, START + at, produced, rejected)
    return machine, START + at, event


def maintenance(at: int, component: str = "seal", *, machine: str = M1) -> Event:
    """A replacement."""
    event = Maintenance(f"{machine}.w{at}.{component}", machine, component, START + at, "scheduled", 0)
    return machine, START + at, event


def error(at: int, code: str = "E1", *, machine: str = M1) -> Event:
    """An error."""
    event = MachineError(f"{machine}.e{at}.{code}", machine, code, START + at)
    return machine, START + at, event


def equipment(at: int, kind: str = "pump", *, machine: str = M1, **attributes: str) -> Event:
    """Master data."""
    return machine, START + at, Equipment(machine, START + at, kind, attributes)


def beat(at: int, device: str = M1, gateway: str = GATEWAY) -> Event:
    """A heartbeat."""
    kind: Any = "gateway" if device == gateway else "machine"
    event = Heartbeat(f"{device}.k{at}", device, kind, gateway, START + at)
    return gateway, START + at, event


def action(
    at: int, verb: Any, alarm: str = "hot/oil", duration: int = 0, *, entity: str = M1, comment: str = ""
) -> Event:
    """What an operator does."""
    event = Action(
        f"{entity}.a{at}.{verb}.{alarm}", entity, alarm, verb, START + at, "ann", duration, comment
    )
    return entity, START + at, event


def rule(*levels: Level, id: str = "hot", quantities: tuple[str, ...] = ("oil",), **rest: Any) -> AlarmRule:
    """An alarm rule on the oil temperature."""
    return AlarmRule(id, levels or (Level(above=80.0),), quantities=quantities, **rest)


def monitor(*rules: AlarmRule, **rest: Any) -> MachineMonitor:
    """A monitor that believes what it reads, unless told otherwise, and looks for no silent sensors."""
    rest.setdefault("judge", False)
    rest.setdefault("sensor_least_ms", 10 * DAY)
    rest.setdefault("tree", "names")
    return MachineMonitor(Monitoring(rules=rules, **rest))


def driver(*rules: AlarmRule, bound: int = 0, **rest: Any) -> TestDriver:
    """A driver of such a monitor."""
    rest.setdefault("notice_ms", 0)  # what is in no registry is told at once
    return TestDriver(monitor(*rules, **rest), out_of_orderness_ms=bound)


def send(target: TestDriver, *events: Event) -> None:
    """Send events, each as a batch of its own."""
    for key, at, event in events:
        target.send(key, event, at=at)


def until(target: TestDriver, at: int) -> None:
    """Let time pass up to ``at`` ms after the start."""
    target.advance_watermark(START + at)


def rows(target: TestDriver) -> list[EnrichedReading]:
    """The enriched readings."""
    found: list[EnrichedReading] = target.values()
    return found


def final(found: Iterable[EnrichedReading]) -> dict[str, EnrichedReading]:
    """The last revision of each reading."""
    last: dict[str, EnrichedReading] = {}
    for row in found:
        if row.reading_id not in last or last[row.reading_id].revision < row.revision:
            last[row.reading_id] = row
    return last


def history(target: TestDriver) -> list[AlarmEvent]:
    """The alarms' history."""
    found: list[AlarmEvent] = target.values("alarms")
    return found


def told(target: TestDriver) -> list[tuple[int, str]]:
    """The alarms' history as seconds since the start and what happened."""
    return [((e.event_time_ms - START) // SECOND, e.change) for e in history(target)]
