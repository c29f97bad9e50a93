"""What commands over alarms begin with: settings, tables, and the clock that operators go by."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apps.iot_maintenance.settings import IotSettings
from millrace.errors import UserError
from millrace.runtime.commands import app_table, command_settings

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

    That is now; where the newest alarm of the table is far from that, as in a replay, the time just after it:
    an action from the future would push the watermark, and everything after it would be late.
    """
    now = int(time.time() * 1000)
    try:
        rows = read_table(settings, "alarms")
    except NoTable:
        return now
    newest = max((row["event_time_ms"] for row in rows), default=now)
    return now if abs(now - newest) <= _FAR_MS else newest + 1
