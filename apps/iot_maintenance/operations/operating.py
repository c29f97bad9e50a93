"""Settings, tables and event-time clock of the commands over alarms."""

from __future__ import annotations

import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millrace.dashboard.progress import read_progress
from millrace.errors import UserError
from millrace.operations.sending import send
from millrace.runtime.commands import app_table, command_settings
from millrace_apps.iot_maintenance.alarms.engine import HOLDS_BACK
from millrace_apps.iot_maintenance.contracts.events import Action, Verb
from millrace_apps.iot_maintenance.processes.orders import USUAL_MS
from millrace_apps.iot_maintenance.settings import IotSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

#: An events' clock that is so far from this one is that of a replay or a simulation, ms.
_FAR_MS = 60_000


class NoTable(UserError):
    """A table has not been written yet."""


def settings_of(bootstrap: str | None, root: Path | None, overrides: Sequence[str] | None) -> IotSettings:
    """Return the app's settings with what a command was given.

    Args:
        bootstrap: The broker.
        root: The app's folder.
        overrides: ``key=value``.
    """
    return command_settings(IotSettings, "iot", bootstrap=bootstrap, root=root, overrides=overrides)


def read_table(settings: IotSettings, name: str) -> list[dict[str, Any]]:
    """Return the rows of one of the app's tables.

    Raises:
        NoTable: It is not there.
    """
    found = app_table(settings.storage.path(), name)
    if found is None:
        place = settings.storage.path("tables", name)
        raise NoTable(f"{place} is no table yet: has `millrace run iot` written there? (--root)")
    rows: list[dict[str, Any]] = found.to_pylist()
    return rows


def events_now_ms(settings: IotSettings) -> int:
    """Return what time it is on the clock of the events.

    That is now; where the stream is far from that, as in a replay or where nothing comes in, how far it is:
    an action from its future would wait until then.
    """
    try:
        newest = max((row["event_time_ms"] for row in read_table(settings, "alarms")), default=None)
    except NoTable:
        newest = None
    return events_clock(settings.storage.local_root, newest, int(time.time() * 1000))


def events_clock(root: Path | None, newest_alarm_ms: int | None, now_ms: int) -> int:
    """Return what time it is on the clock of the events of a job in a folder.

    Args:
        root: The job's folder; ``None``: it is not on this machine.
        newest_alarm_ms: Time of its newest alarm, if there is one.
        now_ms: This machine's time.
    """
    progress = None if root is None else read_progress(root)
    watermark = None if progress is None else progress.watermark_ms
    after = None if newest_alarm_ms is None else newest_alarm_ms + 1
    stands = max((at for at in (watermark, after) if at is not None), default=now_ms)
    return now_ms if abs(now_ms - stands) <= _FAR_MS else stands


def action_on(
    settings: IotSettings,
    verb: Verb,
    alarm: str,
    *,
    operator: str,
    at_ms: int | None = None,
    duration_ms: int = 0,
    comment: str = "",
    role: str = "",
) -> Action:
    """Return an action on an alarm; the same of commands and page.

    Args:
        settings: The app's settings.
        verb: What is done.
        alarm: Entity and alarm, ``ENTITY:ALARM``.
        operator: Who does it.
        at_ms: When, on the clock of the events; default now.
        duration_ms: How long, where that is asked.
        comment: Why.
        role: As what.

    Raises:
        UserError: It names no alarm, or a reason is missing.
    """
    entity, colon, name = alarm.partition(":")
    if not (entity and colon and name):
        raise UserError(f"'{alarm}' names no alarm: write ENTITY:ALARM, or ENTITY:* for all of a machine")
    if verb in HOLDS_BACK and settings.monitor.reasons and not comment.strip():
        raise UserError(f"{verb.replace('_', '-')} needs a reason (monitor.reasons): say why")
    at = events_now_ms(settings) if at_ms is None else at_ms
    return Action(uuid.uuid4().hex, entity, name, verb, at, operator, duration_ms, comment, role)


def plan_of(
    settings: IotSettings,
    machine: str,
    component: str,
    *,
    operator: str,
    start_ms: int | None = None,
    at_ms: int | None = None,
    duration_ms: int = 0,
    comment: str = "",
    suppress: bool = False,
    role: str = "",
) -> Action:
    """Return the action that plans work on a component of a machine, or moves what was planned.

    Args:
        settings: The app's settings.
        machine: The machine.
        component: The component.
        operator: Who plans it.
        start_ms: When the work begins; default at once.
        at_ms: When it is planned, on the clock of the events; default now.
        duration_ms: How long it takes; 0: an hour.
        comment: Why.
        suppress: Whether the machine's alarms are suppressed meanwhile.
        role: As what, where a rule says who may suppress its alarms.

    Raises:
        UserError: It would be over already, or suppressing alarms needs a reason and there is none.
    """
    at = events_now_ms(settings) if at_ms is None else at_ms
    if suppress and settings.monitor.reasons and not comment.strip():
        raise UserError("suppressing alarms needs a reason (monitor.reasons): say why")
    if start_ms is not None and start_ms + (duration_ms or USUAL_MS) <= at:
        raise UserError("the work would be over already by the clock of the events")
    return Action(
        action_id=uuid.uuid4().hex,
        entity_id=machine,
        alarm=component,
        verb="plan",
        event_time_ms=at,
        operator=operator,
        duration_ms=duration_ms,
        comment=comment,
        role=role,
        start_ms=start_ms,
        suppress=suppress,
    )


def cancel_of(
    settings: IotSettings,
    machine: str,
    component: str,
    *,
    operator: str,
    at_ms: int | None = None,
    comment: str = "",
) -> Action:
    """Return the action that cancels planned work.

    Args:
        settings: The app's settings.
        machine: The machine.
        component: The component.
        operator: Who cancels it.
        at_ms: When, on the clock of the events; default now.
        comment: Why.
    """
    at = events_now_ms(settings) if at_ms is None else at_ms
    return Action(uuid.uuid4().hex, machine, component, "unplan", at, operator, 0, comment)


def send_action(settings: IotSettings, action: Action) -> None:
    """Send an action to the app.

    Raises:
        NotSent: The broker did not take it.
    """
    send(settings.kafka, settings.topics.actions, Action, [(action.entity_id, action)])
