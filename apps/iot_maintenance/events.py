"""Contracts of what comes in: readings, status, maintenance, errors, heartbeats, equipment, actions."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

#: The end of the year 9999, UTC.
MAX_TIME_MS: Final = 253_402_300_799_999

Identifier = Annotated[str, Meta(min_length=1, max_length=128)]
#: Milliseconds since the epoch, UTC.
EventTime = Annotated[int, Meta(ge=0, le=MAX_TIME_MS)]
#: What a sensor may measure: squares and sums of such values are far from where numbers end.
Measured = Annotated[float, Meta(ge=-1e15, le=1e15)]
#: Parts made between two messages: what a shift sums up fits the integers of the state.
Parts = Annotated[int, Meta(ge=0, le=1_000_000_000)]
#: At most ten years, ms.
Duration = Annotated[int, Meta(ge=0, le=315_360_000_000)]
#: Texts that are shown, and decide nothing.
Text = Annotated[str, Meta(max_length=128)]

#: Inputs whose times are told by hand, long ago or wrongly: they say nothing of how far time is.
DATED_BY_HAND: Final = ("equipment", "maintenance", "actions")

#: What an operator can do to an alarm (OPC UA Part 9, ISA-18.2).
Verb = Literal[
    "ack",
    "confirm",
    "shelve",
    "unshelve",
    "suppress",
    "unsuppress",
    "out_of_service",
    "in_service",
    "reset",
    "silence",
    "comment",
]


class Reading(msgspec.Struct, frozen=True, gc=False):
    """One value of one sensor, as JSON on ``iot.readings`` with the machine as its key.

    Attributes:
        reading_id: Its identity.
        sensor_id: The sensor.
        machine_id: The machine it sits on.
        gateway_id: The gateway it came through.
        quantity: What is measured, e.g. ``vibration``; one sensor of a quantity per machine.
        value: The value; ``None`` when the transmitter has none.
        unit: Unit of the value.
        event_time_ms: When it was measured.
    """

    reading_id: Identifier
    sensor_id: Identifier
    machine_id: Identifier
    gateway_id: Identifier
    quantity: Identifier
    value: Measured | None
    unit: Identifier
    event_time_ms: EventTime


class Status(msgspec.Struct, frozen=True, gc=False):
    """A machine's status, which holds until its next one.

    Attributes:
        status_id: Its identity.
        machine_id: The machine.
        status: What it does from now on, e.g. ``running``.
        produced: Parts made since the status before.
        rejected: How many of them were scrap.
        event_time_ms: Since when.
    """

    status_id: Identifier
    machine_id: Identifier
    status: Identifier
    event_time_ms: EventTime
    produced: Parts
    rejected: Parts


class Maintenance(msgspec.Struct, frozen=True, gc=False):
    """A component was replaced; its age begins at zero.

    Attributes:
        maintenance_id: Its identity.
        machine_id: The machine.
        component: What was replaced.
        kind: ``scheduled``, or ``corrective`` after a failure.
        duration_ms: How long the work took, ms.
        event_time_ms: When it was done.
    """

    maintenance_id: Identifier
    machine_id: Identifier
    component: Identifier
    event_time_ms: EventTime
    kind: Literal["scheduled", "corrective"]
    duration_ms: Duration


class MachineError(msgspec.Struct, frozen=True, gc=False):
    """An error that a machine's controller reports; the machine goes on.

    Attributes:
        error_id: Its identity.
        machine_id: The machine.
        code: The controller's code.
        event_time_ms: When.
    """

    error_id: Identifier
    machine_id: Identifier
    code: Identifier
    event_time_ms: EventTime


class Equipment(msgspec.Struct, frozen=True):
    """What a machine is, from a point in time on: master data.

    Attributes:
        machine_id: The machine.
        event_time_ms: Since when it is so.
        kind: Kind of machine, e.g. ``pump``; rules can be for kinds.
        attributes: Anything else, as text: model, age, product type.
    """

    machine_id: Identifier
    event_time_ms: EventTime
    kind: Text = ""
    attributes: Annotated[dict[Text, Annotated[str, Meta(max_length=1_000)]], Meta(max_length=64)] = {}


class Heartbeat(msgspec.Struct, frozen=True, gc=False):
    """A sign of life of a machine or a gateway; keyed by the gateway it comes through.

    Attributes:
        heartbeat_id: Its identity.
        device_id: The machine or the gateway.
        device_kind: Which of the two.
        gateway_id: The gateway.
        event_time_ms: When.
    """

    heartbeat_id: Identifier
    device_id: Identifier
    device_kind: Literal["machine", "gateway"]
    gateway_id: Identifier
    event_time_ms: EventTime


class Action(msgspec.Struct, frozen=True, gc=False):
    """What an operator does to an alarm; on ``iot.actions`` with the entity as its key.

    Attributes:
        action_id: Its identity: a repeat has no effect.
        entity_id: The machine or gateway that has the alarm.
        alarm: The alarm's name on that entity (``rule`` or ``rule/quantity``); ``*``: all of them.
        verb: What is done.
        operator: Who does it.
        event_time_ms: When it takes effect, on the clock of the events.
        duration_ms: How long a timed shelving or suppression lasts, ms; 0: shelving is one-shot,
            suppression without end.
        comment: Why.
    """

    action_id: Identifier
    entity_id: Identifier
    alarm: Identifier
    verb: Verb
    event_time_ms: EventTime
    operator: Text = ""
    duration_ms: Duration = 0
    comment: Annotated[str, Meta(max_length=2_000)] = ""
