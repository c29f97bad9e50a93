"""The inputs of the monitor: what comes in, by what it is keyed, and in what order it is handled."""

from __future__ import annotations

from typing import Any, Final

from millrace_apps.iot_maintenance.contracts.events import (
    Action,
    Equipment,
    Heartbeat,
    MachineError,
    Maintenance,
    PartCount,
    Reading,
    Status,
)

#: What holds from an instant on.
Fact = Equipment | MachineError | Maintenance | Status
Signal = Fact | Heartbeat | Action | Reading | PartCount

#: Input (and setting of its topic) → its events. Those of one instant are handled in this order: facts before
#: the readings that they hold for.
INPUTS: Final[dict[str, Any]] = {
    "equipment": Equipment,
    "errors": MachineError,
    "maintenance": Maintenance,
    "status": Status,
    "heartbeats": Heartbeat,
    "actions": Action,
    "readings": Reading,
    "counts": PartCount,
}
#: Input → field of what it is about: the machine, of a heartbeat the gateway.
KEYS: Final[dict[str, str]] = {
    **dict.fromkeys(INPUTS, "machine_id"),
    "heartbeats": "gateway_id",
    "actions": "entity_id",
}

#: Inputs whose events say when their gateway received them.
RECEIVED: Final = ("readings", "heartbeats")


def as_row(name: str, event: Any) -> tuple[str, int, Any]:
    """Return an event as a host takes it: its key, its time (ms) and itself.

    Args:
        name: Its input.
        event: One of :mod:`millrace_apps.iot_maintenance.contracts.events`.

    Example:
        >>> found = as_row("status", Status("s1", "m1", "running", 5, 0, 0))
        >>> found[:2]
        ('m1', 5)
    """
    return getattr(event, KEYS[name]), event.event_time_ms, event
