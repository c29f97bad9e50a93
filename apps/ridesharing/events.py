"""Contracts of the ridesharing app: what comes in on its topics.

All inputs share one type, :class:`Signal`, since they go through one process: which fields a stream
must have stands in :data:`REQUIRED`. What the app says stands in :mod:`apps.ridesharing.records`.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

VehicleClass = Literal["standard", "xl", "premium"]
Stream = Literal[
    "",
    "locations",
    "status",
    "requests",
    "answers",
    "cancellations",
    "progress",
    "commands",
    "handovers",
]
#: The streams of signals, as the topics are named in the settings.
STREAMS: Final = (
    "locations",
    "status",
    "requests",
    "answers",
    "cancellations",
    "progress",
    "commands",
    "handovers",
)
#: Of these, those that tell what time it is: the others are sent by people at a desk, and by the app itself.
CLOCKS: Final = STREAMS[:6]
Action = Literal["assign", "cancel", "block", "unblock", "blackout", "lift"]

Identifier = Annotated[str, Meta(max_length=128)]
Latitude = Annotated[float, Meta(ge=-90, le=90)]
Longitude = Annotated[float, Meta(ge=-180, le=180)]
TimeMs = Annotated[int, Meta(ge=0)]


class Signal(msgspec.Struct, omit_defaults=True, gc=False):
    """Any input of the app; the fields that a stream does not have keep their defaults.

    Attributes:
        event_time_ms: When it happened, UTC milliseconds.
        stream: The stream that it came by; set by the gate.
        entity: The driver or the request that it is about: its key; set by the gate.
        event_id: Its identity, of a request ``request_id``.
        request_id: The request.
        driver_id: The driver.
        rider_id: The rider.
        vehicle_class: Class of the car that is, or is asked for.
        zone: H3 cell of the pick-up, resolution 7.
        lat: Where, degrees north.
        lon: Where, degrees east.
        state: What the driver's phone believes the driver is doing.
        status: Whether the driver is on line.
        pickup_lat: Pick-up, degrees north.
        pickup_lon: Pick-up, degrees east.
        dropoff_lat: Drop-off, degrees north.
        dropoff_lon: Drop-off, degrees east.
        pickup_at_ms: When the rider wants to leave; later than the request if booked ahead.
        offer_id: The offer that is answered.
        attempt: Its attempt.
        answer: Yes or no.
        by: Who cancels.
        reason: Why.
        stage: How far a trip is.
        command_id: Identity of a command.
        action: What an operator wants.
        operator: Who wants it.
        until_ms: Until when a block or blackout holds.
        region: The region that it is for; set by the gate, and by whoever writes handovers.
        from_region: Where a driver comes from, or who asks for one.
        free_since_ms: Since when a driver who is handed over is free, UTC ms.
        seen_ms: When that driver was there, UTC ms.
        blocked_ms: Until when that driver is blocked, UTC ms.
    """

    event_time_ms: TimeMs
    stream: Stream = ""
    entity: str = ""
    event_id: Identifier = ""
    request_id: Identifier = ""
    driver_id: Identifier = ""
    rider_id: Identifier = ""
    vehicle_class: VehicleClass | None = None
    zone: Identifier = ""
    lat: Latitude | None = None
    lon: Longitude | None = None
    state: Literal["idle", "approaching", "waiting", "on_trip"] | None = None
    status: Literal["online", "offline"] | None = None
    pickup_lat: Latitude | None = None
    pickup_lon: Longitude | None = None
    dropoff_lat: Latitude | None = None
    dropoff_lon: Longitude | None = None
    pickup_at_ms: TimeMs | None = None
    offer_id: Identifier = ""
    attempt: Annotated[int, Meta(ge=0, le=1_000)] = 0
    answer: Literal["accept", "reject"] | None = None
    by: Literal["rider", "driver"] | None = None
    reason: Identifier = ""
    stage: Literal["arrived", "started", "finished"] | None = None
    command_id: Identifier = ""
    action: Action | None = None
    operator: Identifier = ""
    until_ms: TimeMs = 0
    region: Identifier = ""
    from_region: Identifier = ""
    free_since_ms: TimeMs = 0
    seen_ms: TimeMs = 0
    blocked_ms: TimeMs = 0


#: Fields that an event of a stream must have, besides those of every signal.
REQUIRED: Final[dict[str, tuple[str, ...]]] = {
    "locations": ("event_id", "driver_id", "lat", "lon", "state", "vehicle_class"),
    "status": ("event_id", "driver_id", "status", "vehicle_class"),
    "requests": (
        "request_id",
        "rider_id",
        "zone",
        "vehicle_class",
        "pickup_lat",
        "pickup_lon",
        "dropoff_lat",
        "dropoff_lon",
        "pickup_at_ms",
    ),
    "answers": ("event_id", "request_id", "driver_id", "offer_id", "attempt", "answer", "zone"),
    "cancellations": ("event_id", "request_id", "by", "reason", "zone"),
    "progress": ("event_id", "request_id", "driver_id", "stage", "zone", "lat", "lon"),
    "commands": ("command_id", "action", "operator", "reason"),
    "handovers": ("event_id", "region"),
}


class SetPolicy(msgspec.Struct, frozen=True, tag_field="kind", tag="set_policy"):
    """A control event: windows that end from a time on are decided by another policy, in all regions.

    Attributes:
        policy: The policy.
        from_ms: From which end of a window on, UTC milliseconds; 0: from when it arrives.
    """

    policy: Literal["fifo", "nearest", "optimal"]
    from_ms: TimeMs = 0


class SetShadows(msgspec.Struct, frozen=True, tag_field="kind", tag="set_shadows"):
    """A control event: which policies are computed beside the one in force, to be compared with it.

    Attributes:
        policies: Their names; none turns shadow runs off.
    """

    policies: list[Literal["fifo", "nearest", "optimal"]]


Control = SetPolicy | SetShadows
