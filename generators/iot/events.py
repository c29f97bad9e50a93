"""The events of the iot domain: readings, status, maintenance, errors, heartbeats and the asset registry."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

#: What a machine does; ``failed``: broken down and waiting for repair.
Regime: TypeAlias = Literal["off", "idle", "setup", "running", "overload", "maintenance", "failed"]
OFF: Final = "off"
IDLE: Final = "idle"
SETUP: Final = "setup"
RUNNING: Final = "running"
OVERLOAD: Final = "overload"
MAINTENANCE: Final = "maintenance"
FAILED: Final = "failed"

#: Words of plants for what their machines do: the regimes' own, PackML's, and those of a plant in Germany.
VOCABULARIES: Final[tuple[tuple[str, dict[Regime, str]], ...]] = (
    ("", {}),
    ("packml", {
        "off": "Off", "idle": "Idle", "setup": "Resetting", "running": "Execute", "overload": "Execute",
        "maintenance": "Maintenance", "failed": "Aborted",
    }),
    ("werk", {
        "off": "Aus", "idle": "Bereit", "setup": "Rüsten", "running": "Läuft", "overload": "Überlast",
        "maintenance": "Wartung", "failed": "Störung",
    }),
)  # fmt: skip

_Id: TypeAlias = Annotated[str, Meta(min_length=1)]
EventTime: TypeAlias = Annotated[
    int, Meta(ge=0, description="Event time, milliseconds since the epoch, UTC.")
]
MachineId: TypeAlias = Annotated[str, Meta(min_length=1, description="The machine: plant-line-machine.")]
GatewayId: TypeAlias = Annotated[str, Meta(min_length=1, description="The gateway that sent it.")]


class Reading(msgspec.Struct, frozen=True, gc=False):
    """One value of one sensor."""

    reading_id: Annotated[_Id, Meta(description="Unique; its last part counts the sensor's samples.")]
    sensor_id: Annotated[_Id, Meta(description="The sensor: machine.quantity.")]
    machine_id: MachineId
    gateway_id: GatewayId
    quantity: Annotated[_Id, Meta(description="What is measured, e.g. vibration.")]
    value: Annotated[float | None, Meta(description="The value; null when the transmitter has none.")]
    unit: Annotated[_Id, Meta(description="Unit of the value, e.g. mm/s.")]
    event_time_ms: EventTime


class Status(msgspec.Struct, frozen=True, gc=False):
    """A machine's status, which holds until its next one."""

    status_id: Annotated[_Id, Meta(description="Unique.")]
    machine_id: MachineId
    status: Annotated[str, Meta(description="What the machine does from now on, in its plant's words.")]
    produced: Annotated[int, Meta(ge=0, description="Parts made since the status before.")]
    rejected: Annotated[int, Meta(ge=0, description="How many of them were scrap.")]
    event_time_ms: EventTime


class Maintenance(msgspec.Struct, frozen=True, gc=False):
    """A component was replaced; its age begins at zero."""

    maintenance_id: Annotated[_Id, Meta(description="Unique.")]
    machine_id: MachineId
    component: Annotated[_Id, Meta(description="The component, e.g. bearing.")]
    kind: Annotated[Literal["scheduled", "corrective"], Meta(description="By plan, or after a failure.")]
    duration_ms: Annotated[int, Meta(ge=0, description="How long the work took, ms.")]
    event_time_ms: EventTime


class MachineError(msgspec.Struct, frozen=True, gc=False):
    """An error that a machine's controller reports; the machine goes on."""

    error_id: Annotated[_Id, Meta(description="Unique.")]
    machine_id: MachineId
    code: Annotated[_Id, Meta(description="The controller's error code.")]
    event_time_ms: EventTime


class Heartbeat(msgspec.Struct, frozen=True, gc=False):
    """A sign of life of a machine's controller or of a gateway."""

    heartbeat_id: Annotated[_Id, Meta(description="Unique; its last part counts the intervals.")]
    device_id: Annotated[_Id, Meta(description="The machine or the gateway.")]
    device_kind: Annotated[Literal["machine", "gateway"], Meta(description="Which of the two.")]
    gateway_id: GatewayId
    event_time_ms: EventTime


class MeasuringPoint(msgspec.Struct, frozen=True):
    """A place at which a machine is measured."""

    quantity: Annotated[_Id, Meta(description="What is measured there.")]
    point: Annotated[str, Meta(description="Its name, where a machine has several of the quantity.")]
    sensor_id: Annotated[_Id, Meta(description="The sensor that is there.")]
    interval_ms: Annotated[int, Meta(ge=0, description="How often it is to be heard, ms.")]


class Equipment(msgspec.Struct, frozen=True):
    """A machine or gateway as the asset registry has it."""

    machine_id: Annotated[_Id, Meta(description="The machine, or the gateway.")]
    kind: Annotated[str, Meta(description="Kind of machine, or gateway.")]
    site: Annotated[str, Meta(description="The plant.")]
    line: Annotated[str, Meta(description="The line.")]
    attributes: Annotated[dict[str, str], Meta(description="What else is known: the words of its statuses.")]
    points: Annotated[tuple[MeasuringPoint, ...], Meta(description="Where it is measured.")]
    devices: Annotated[tuple[str, ...], Meta(description="Of a gateway: who is heard through it.")]
    event_time_ms: EventTime
