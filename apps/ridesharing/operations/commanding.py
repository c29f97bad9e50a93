"""Commands of operators, as the command line and the page send them."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from millrace.errors import UserError
from millrace.operations import sending
from millrace_apps.ridesharing.contracts.events import (
    Action,
    Command,
    Control,
    PairKind,
    SetPair,
    SetPolicy,
    SetSurgeCap,
    key_of,
    too_far_ahead,
)

if TYPE_CHECKING:
    from millrace_apps.ridesharing.settings import RidesharingSettings


def command_of(
    action: Action,
    operator: str,
    reason: str,
    at_ms: int,
    *,
    until_ms: int = 0,
    request_id: str = "",
    driver_id: str = "",
    zone: str = "",
) -> Command:
    """Return a command with an identity of its own.

    Args:
        action: What is wanted.
        operator: Who wants it.
        reason: Why.
        at_ms: When, event time, UTC ms.
        until_ms: Until when a block or blackout holds, UTC ms.
        request_id: The request that it is about.
        driver_id: The driver.
        zone: The zone, or the request's.

    >>> command_of("end_trip", "ann", "phone lost", 7, request_id="r1", zone="87283082affffff").request_id
    'r1'
    """
    return Command(
        command_id=identity(),
        action=action,
        operator=operator,
        reason=reason,
        event_time_ms=at_ms,
        until_ms=until_ms,
        request_id=request_id,
        driver_id=driver_id,
        zone=zone,
    )


def policy_of(policy: str, operator: str, reason: str, from_ms: int = 0) -> SetPolicy:
    """Return a switch of the policy of all regions, with an identity of its own.

    Args:
        policy: The policy.
        operator: Who wants it.
        reason: Why.
        from_ms: From when on, event time, UTC ms; 0: from when it is read.
    """
    return SetPolicy(policy, from_ms, identity(), operator, reason)  # type: ignore[arg-type]


def cap_of(cap: float, operator: str, reason: str, from_ms: int = 0) -> SetSurgeCap:
    """Return another cap of the multipliers of all regions, with an identity of its own.

    Args:
        cap: The largest multiplier, 1 to 10.
        operator: Who wants it.
        reason: Why.
        from_ms: From when on, event time, UTC ms; 0: from when it is read.

    >>> cap_of(1.5, "ann", "storm").cap
    1.5
    """
    return SetSurgeCap(cap, identity(), operator, reason, from_ms)


def pair_of(
    stands: PairKind, rider_id: str, driver_id: str, operator: str, reason: str, from_ms: int = 0
) -> SetPair:
    """Return what a rider and a driver are to each other, with an identity of its own.

    Args:
        stands: What they are.
        rider_id: The rider.
        driver_id: The driver.
        operator: Who wants it.
        reason: Why.
        from_ms: From when on, event time, UTC ms; 0: from when it is read.

    >>> pair_of("block", "rider-7", "d1", "ann", "complaint").stands
    'block'
    """
    return SetPair(rider_id, driver_id, stands, identity(), operator, reason, from_ms)


def identity() -> str:
    """Return an identity for a command: nobody else's."""
    return uuid.uuid4().hex[:12]


def send_control(settings: RidesharingSettings, event: Control) -> None:
    """Send what holds in all regions, to the only partition of its topic.

    Raises:
        UserError: The app would not take it, or the broker does not.
    """
    sending.send(settings.kafka, settings.topics.control, Control, [("", event)], partition=0)


def send_command(settings: RidesharingSettings, event: Command) -> None:
    """Send a command to the app.

    Raises:
        UserError: The app would not take it, or the broker does not.
    """
    if too_far_ahead(event):
        raise UserError("nothing was sent, since the app would not take it: it would hold for too long")
    sending.send(settings.kafka, settings.topics.commands, Command, [(key_of(event), event)])
