"""One type for everything that comes in, since all of it goes through one process.

The pipeline puts the stream and the entity in front of each record. Events of one instant are handled in the
order of the streams' names: facts before the readings that they hold for.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from apps.iot_maintenance.events import EventTime, Verb

Stream = Literal[
    "fact.equipment", "fact.error", "fact.maintenance", "fact.status", "heartbeat", "operator", "reading"
]
EQUIPMENT: Final = "fact.equipment"
ERROR: Final = "fact.error"
MAINTENANCE: Final = "fact.maintenance"
STATUS: Final = "fact.status"
HEARTBEAT: Final = "heartbeat"
OPERATOR: Final = "operator"
READING: Final = "reading"

#: Setting of a topic → its stream.
STREAMS: Final[dict[str, Stream]] = {
    "equipment": "fact.equipment",
    "errors": "fact.error",
    "maintenance": "fact.maintenance",
    "status": "fact.status",
    "heartbeats": "heartbeat",
    "actions": "operator",
    "readings": "reading",
}
#: Stream → fields that its events must have, besides the entity and the time.
REQUIRED: Final[dict[str, tuple[str, ...]]] = {
    EQUIPMENT: ("machine_id",),
    ERROR: ("error_id", "machine_id", "code"),
    MAINTENANCE: ("maintenance_id", "machine_id", "component", "kind"),
    STATUS: ("status_id", "machine_id", "status"),
    HEARTBEAT: ("heartbeat_id", "device_id", "device_kind", "gateway_id"),
    OPERATOR: ("action_id", "entity_id", "alarm", "verb"),
    READING: ("reading_id", "sensor_id", "machine_id", "gateway_id", "quantity", "unit"),
}

#: Stream → numbers that its events must have.
NUMBERS: Final[dict[str, tuple[str, ...]]] = {
    STATUS: ("produced", "rejected"),
    MAINTENANCE: ("duration_ms",),
    READING: ("value",),
}
#: What stands for a number that was not sent; a value that is null was.
NOT_SENT: Final = -1
NO_VALUE: Final = -1.7976931348623157e308

_Text = Annotated[str, Meta(max_length=128)]


class Signal(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Any event of the app; the fields of other streams than its own keep their defaults.

    Attributes:
        stream: The stream that it came by.
        entity: What it is about: the machine, of a heartbeat the gateway.
        event_time_ms: When it happened, UTC milliseconds.

    The other fields are those of :mod:`apps.iot_maintenance.events`.
    """

    stream: Stream
    entity: Annotated[str, Meta(min_length=1, max_length=128)]
    event_time_ms: EventTime
    reading_id: _Text = ""
    sensor_id: _Text = ""
    machine_id: _Text = ""
    gateway_id: _Text = ""
    quantity: _Text = ""
    value: float | None = NO_VALUE
    unit: _Text = ""
    status_id: _Text = ""
    status: _Text = ""
    produced: Annotated[int, Meta(ge=0)] = NOT_SENT
    rejected: Annotated[int, Meta(ge=0)] = NOT_SENT
    maintenance_id: _Text = ""
    component: _Text = ""
    kind: _Text = ""
    duration_ms: Annotated[int, Meta(ge=0)] = NOT_SENT
    error_id: _Text = ""
    code: _Text = ""
    attributes: dict[str, str] | None = None
    heartbeat_id: _Text = ""
    device_id: _Text = ""
    device_kind: Literal["", "machine", "gateway"] = ""
    action_id: _Text = ""
    entity_id: _Text = ""
    alarm: _Text = ""
    verb: Verb | None = None
    operator: _Text = ""
    comment: str = ""

    def __post_init__(self) -> None:
        named = self.reading_id and self.sensor_id and self.machine_id and self.gateway_id
        if self.stream == READING and named and self.quantity and self.unit and self.value != NO_VALUE:
            return  # nearly all are readings
        missing = [name for name in REQUIRED[self.stream] if not getattr(self, name)]
        missing += [
            name
            for name in NUMBERS.get(self.stream, ())
            if getattr(self, name) == (NO_VALUE if name == "value" else NOT_SENT)
        ]
        if missing:
            raise ValueError(f"a {self.stream.rpartition('.')[2]} needs {', '.join(missing)}")
        if self.stream == MAINTENANCE and self.kind not in ("scheduled", "corrective"):
            raise ValueError(f"maintenance is scheduled or corrective, not {self.kind!r}")


def signal(topic: str, event: Any) -> Signal:
    """Return an event as it goes through the monitor.

    Args:
        topic: Setting of its topic, e.g. ``readings``.
        event: One of :mod:`apps.iot_maintenance.events`, or a mapping with its fields.

    Example:
        >>> from apps.iot_maintenance.events import Status
        >>> found = signal("status", Status("s1", "m1", "running", 5, 0, 0))
        >>> found.stream, found.entity, found.status
        ('fact.status', 'm1', 'running')
    """
    fields = event if isinstance(event, dict) else msgspec.structs.asdict(event)
    named = "gateway_id" if topic == "heartbeats" else "entity_id" if topic == "actions" else "machine_id"
    return Signal(STREAMS[topic], fields[named], **fields)
