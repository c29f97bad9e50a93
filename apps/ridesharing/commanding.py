"""Commands of operators, as the command line and the page send them."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from apps.ridesharing.events import Action, Command, key_of, too_far_ahead
from millrace.errors import UserError
from millrace.operations.sending import send

if TYPE_CHECKING:
    from apps.ridesharing.settings import RidesharingSettings


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
        command_id=uuid.uuid4().hex[:12],
        action=action,
        operator=operator,
        reason=reason,
        event_time_ms=at_ms,
        until_ms=until_ms,
        request_id=request_id,
        driver_id=driver_id,
        zone=zone,
    )


def send_command(settings: RidesharingSettings, event: Command) -> None:
    """Send a command to the app.

    Raises:
        UserError: The app would not take it, or the broker does not.
    """
    if too_far_ahead(event):
        raise UserError("nothing was sent, since the app would not take it: it would hold for too long")
    send(settings.kafka, settings.topics.commands, Command, [(key_of(event), event)])
