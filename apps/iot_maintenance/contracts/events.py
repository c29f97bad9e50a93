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
#: Where a counter stands: what a shift sums up of it fits, too.
Counted = Annotated[int, Meta(ge=0, le=1_000_000_000_000_000)]
#: At most ten years, ms.
Duration = Annotated[int, Meta(ge=0, le=315_360_000_000)]
#: Texts that are shown, and decide nothing.
Text = Annotated[str, Meta(max_length=128)]

Attributes = Annotated[dict[Text, Annotated[str, Meta(max_length=1_000)]], Meta(max_length=64)]

#: Inputs whose times are told by hand, long ago or wrongly: they say nothing of how far time is.
DATED_BY_HAND: Final = ("equipment", "maintenance", "actions")

#: What an operator can do to an alarm (OPC UA Part 9, ISA-18.2).
AlarmVerb = Literal[
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
#: The same, and what an operator does about planned work.
Verb = Literal[AlarmVerb, "plan", "unplan"]


class Reading(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One value of one sensor, as JSON on ``iot.readings`` with the machine as its key.

    Attributes:
        reading_id: Its identity.
        sensor_id: The sensor.
        machine_id: The machine it sits on.
        gateway_id: The gateway it came through.
        quantity: What is measured, e.g. ``vibration``.
        value: The value; ``None`` when the transmitter has none.
        unit: Unit of the value.
        event_time_ms: When it was measured.
        point: Where on the machine, if the quantity is measured in several places. Unless given, the asset
            registry says so by the sensor; else a second sensor of a quantity is a point of its own.
        received_ms: When the gateway received it, by the gateway's clock: so the machine's is measured.
    """

    reading_id: Identifier
    sensor_id: Identifier
    machine_id: Identifier
    gateway_id: Identifier
    quantity: Identifier
    value: Measured | None
    unit: Identifier
    event_time_ms: EventTime
    point: Text = ""
    received_ms: EventTime | None = None


class Status(msgspec.Struct, frozen=True, gc=False):
    """A machine's status, which holds until its next one.

    Attributes:
        status_id: Its identity.
        machine_id: The machine.
        status: What it does from now on, by the words of its controller, e.g. ``running``.
        produced: Parts made since the status before, unless the machine has a stream of counts.
        rejected: How many of them were scrap.
        event_time_ms: Since when.
    """

    status_id: Identifier
    machine_id: Identifier
    status: Identifier
    event_time_ms: EventTime
    produced: Parts = 0
    rejected: Parts = 0


class PartCount(msgspec.Struct, frozen=True, gc=False):
    """How many parts a machine has made, on ``iot.counts``: since the count before, or by its counters.

    Attributes:
        count_id: Its identity.
        machine_id: The machine.
        event_time_ms: When it was counted.
        produced: Parts since the count before; of an absolute count: where the counter stands.
        rejected: The same of scrap.
        absolute: Whether these are counters that go on; one that falls has begun anew at zero.
    """

    count_id: Identifier
    machine_id: Identifier
    event_time_ms: EventTime
    produced: Counted
    rejected: Counted = 0
    absolute: bool = False


class Maintenance(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A component was replaced; its age begins at zero.

    Attributes:
        maintenance_id: Its identity.
        machine_id: The machine.
        component: What was replaced.
        kind: ``scheduled``, or ``corrective`` after a failure.
        duration_ms: How long the work took, ms.
        event_time_ms: When it was done.
        failed_ms: When the machine failed, of what is corrective. Unless it is given, the monitor adds when
            the machine's status turned to broken before the work was done, else when the work began.
    """

    maintenance_id: Identifier
    machine_id: Identifier
    component: Identifier
    event_time_ms: EventTime
    kind: Literal["scheduled", "corrective"]
    duration_ms: Duration
    failed_ms: EventTime | None = None


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


class MeasuringPoint(msgspec.Struct, frozen=True):
    """A place at which a machine is measured: what the asset registry expects to hear.

    Attributes:
        quantity: What is measured there.
        point: Its name, where the machine has several of the quantity.
        sensor_id: The sensor that is there; readings of it belong here though they name no point.
        interval_ms: How often it is to be heard, ms; 0: nobody has said.
        attributes: Anything else, as text, e.g. a limit: of this point before those of the machine.
    """

    quantity: Identifier
    point: Text = ""
    sensor_id: Text = ""
    interval_ms: Duration = 0
    attributes: Attributes = {}


class Equipment(msgspec.Struct, frozen=True):
    """What a machine or gateway is, from a point in time on: its master data in the asset registry.

    Each one says all there is to say; what an earlier one said, and it does not, holds no more.

    Attributes:
        machine_id: The machine, or the gateway.
        event_time_ms: Since when it is so.
        kind: Kind of machine, e.g. ``pump``; rules can be for kinds.
        attributes: Anything else, as text: model, age, product type.
        site: The site (plant) that it is in.
        line: The line of it; empty: none.
        points: Where it is measured; empty: nobody has said.
        devices: Of a gateway: the devices that are to be heard through it, it among them if it speaks itself.
    """

    machine_id: Identifier
    event_time_ms: EventTime
    kind: Text = ""
    attributes: Attributes = {}
    site: Text = ""
    line: Text = ""
    points: Annotated[list[MeasuringPoint], Meta(max_length=256)] = []
    devices: Annotated[list[Identifier], Meta(max_length=10_000)] = []


class Heartbeat(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A sign of life of a machine or a gateway; keyed by the gateway it comes through.

    Attributes:
        heartbeat_id: Its identity.
        device_id: The machine or the gateway.
        device_kind: Which of the two.
        gateway_id: The gateway.
        event_time_ms: When.
        received_ms: When the gateway received it, by the gateway's clock; of its own: whoever hears it.
    """

    heartbeat_id: Identifier
    device_id: Identifier
    device_kind: Literal["machine", "gateway"]
    gateway_id: Identifier
    event_time_ms: EventTime
    received_ms: EventTime | None = None


class Action(msgspec.Struct, frozen=True, gc=False):
    """What an operator does to an alarm, or plans; on ``iot.actions`` with the entity as its key.

    Attributes:
        action_id: Its identity: a repeat has no effect.
        entity_id: The machine or gateway that has the alarm.
        alarm: The alarm's name on that entity (``rule`` or ``rule/quantity``); ``*``: all of them. Of
            ``plan`` and ``unplan``: the component.
        verb: What is done.
        operator: Who does it.
        event_time_ms: When it takes effect, on the clock of the events.
        duration_ms: How long a timed shelving or suppression lasts, ms; 0: shelving is one-shot,
            suppression without end; of planned work: how long it takes, 0: an hour.
        comment: Why; shelving, suppressing and taking out of service may need it.
        role: As what the operator acts, where a rule says who may.
        start_ms: When planned work begins; ``None``: at once.
        suppress: Whether the machine's alarms are suppressed during planned work.
    """

    action_id: Identifier
    entity_id: Identifier
    alarm: Identifier
    verb: Verb
    event_time_ms: EventTime
    operator: Text = ""
    duration_ms: Duration = 0
    comment: Annotated[str, Meta(max_length=2_000)] = ""
    role: Text = ""
    start_ms: EventTime | None = None
    suppress: bool = False
