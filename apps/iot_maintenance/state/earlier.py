"""Earlier versions of the state of the app's processes, for ``millrace convert``."""

from __future__ import annotations

from typing import Any, Final

from millrace.state.conversion import Conversion, EarlierEntry
from millrace.state.layout import TimerRecord
from millrace.time import NEVER
from millrace_apps.iot_maintenance.processes.liveness_monitor import LIVE, WATCH
from millrace_apps.iot_maintenance.processes.windows import DAY_MS, FLOOD, WINDOW_MS


def _machine(entry: EarlierEntry) -> None:
    """Bring a machine or gateway of version 1 over: silences are told by the stream's clock now.

    Then a gateway's timer was not always brought forward to the device that is due first.
    """
    known = {timer.name for timer in entry.stream_timers}
    moved = [timer for timer in entry.timers if timer.name in (LIVE, WATCH)]
    entry.timers[:] = [timer for timer in entry.timers if timer.name not in (LIVE, WATCH)]
    entry.stream_timers += [timer for timer in moved if timer.name not in known]
    devices = entry.states.get("gateway", [{}])[0].values()
    due = min((judge for _, judge, *_ in devices), default=NEVER)
    for timer in entry.stream_timers:
        if timer.name == LIVE:
            timer.at = min(timer.at, due)


MACHINE_OF_VERSION_1: Final = Conversion(rewrite=_machine)


def _plant(entry: EarlierEntry) -> None:
    """Bring a plant of version 1, which had one window of each span and told it once, into what it is now.

    Then events ran in order of time: no alarm that ended before the watermark stood at the end of a window
    that is open, and what an open window counted was not told yet.
    """
    was: dict[str, Any] | None = entry.states.get("plant")
    due = {timer.name: timer.at for timer in entry.timers}
    entry.timers.clear()
    if was is None:
        return
    day, ten = was.get("day"), was.get("window")
    if ten is not None and day is not None and ten.get("alarms", 0) > FLOOD:
        day = {**day, "floods": day.get("floods", 0) + 1}  # counted when the window ended, now when it is one
    spans = (("10min", WINDOW_MS, ten), ("day", DAY_MS, day))
    opened = {span: {window["start"]: window} for span, _, window in spans if window is not None}
    # When an asset last changed was not kept: no later than now.
    now = entry.watermark or 0
    entry.states["plant"] = {
        "windows": {"standing": was.get("standing", {}), "ended": [], "open": opened},
        "assets": {
            name: [kind, parent, counts, now, [*told, now]]
            for name, (kind, parent, counts, told) in was.get("assets", {}).items()
        },
        "changed": was.get("changed", {}),
    }
    if ends := [window["start"] + size - 1 for _, size, window in spans if window is not None]:
        entry.timers.append(TimerRecord(min(ends), "close"))
        entry.stream_timers.append(TimerRecord(min(ends), "tell"))
    if "health" in due:
        entry.stream_timers.append(TimerRecord(due["health"], "health"))


PLANT_OF_VERSION_1: Final = Conversion(rewrite=_plant, rewrites=("plant",))
