"""The alarms of a plant together: passed on, counted, and rolled up to the health of lines and machines.

Nothing waits for a machine that is behind the others: alarms and health are told at once, windows when the
stream has passed their ends, and once more where such a machine changes them.
KPIs after ISA-18.2: how many alarms an operator gets in ten minutes, floods, chattering and stale alarms,
the alarms that come most, and how they are spread over priorities. A window with nothing in it has no row.
An alarm that was held back (shelved, suppressed, out of service) and is told again is no new one, and no
younger.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal

import msgspec

from millrace import Context, KeyedProcess, Timer, arrival, side_output, value_state
from millrace.time import NO_WATERMARK
from millrace_apps.iot_maintenance.alarms.record import AlarmEvent
from millrace_apps.iot_maintenance.alarms.rule import SEVERITIES
from millrace_apps.iot_maintenance.processes.windows import DAY_MS, WINDOW_MS, AlarmKpi, Windows
from millrace_apps.iot_maintenance.state.earlier import PLANT_OF_VERSION_1

#: Names of timers: the first is on the process's own clock, the others are on the stream's.
_CLOSE: Final = "close"
_HEALTH: Final = "health"
_TELL: Final = "tell"


class AssetHealth(msgspec.Struct, frozen=True, gc=False):
    """The health of a machine, line or plant, whenever an alarm on it or below it changes.

    Attributes:
        asset_id: The asset.
        asset_kind: Its level in the tree.
        parent_id: What it is part of; empty for a plant.
        health: ``good``, or the severity of the worst alarm announced on it or below it.
        active: How many alarms are announced on it and below it.
        event_time_ms: When an alarm on it or below it last changed; of a later row never earlier.
    """

    asset_id: str
    asset_kind: Literal["sensor", "machine", "line", "plant"]
    parent_id: str
    health: str
    active: int
    event_time_ms: int


class Asset(msgspec.Struct, array_like=True):
    """An asset with alarms on it or below it.

    Attributes:
        kind: Its level in the tree.
        parent: What it is part of.
        counts: Announced alarms of each severity.
        at: When one of them last changed, ms.
        told: What was told of it last: health, number of alarms, and of when, ms.
    """

    kind: Literal["sensor", "machine", "line", "plant"]
    parent: str
    counts: list[int]
    at: int = 0
    told: tuple[str, int, int] | None = None

    def now(self) -> tuple[str, int, int]:
        """Return its health, how many alarms it has, and since when (ms)."""
        worst = max((place for place, n in enumerate(self.counts) if n), default=-1)
        return ("good" if worst < 0 else SEVERITIES[worst]), sum(self.counts), self.at


class PlantState(msgspec.Struct):
    """What is kept of a plant.

    Attributes:
        windows: Its windows that are open, and the alarms that stand.
        assets: The assets that have alarms, and those of which a machine that is behind may yet tell.
        changed: Those that have changed since they were told.
    """

    windows: Windows = msgspec.field(default_factory=Windows)
    assets: dict[str, Asset] = {}
    changed: dict[str, bool] = {}


class PlantMonitor(KeyedProcess[AlarmEvent, AlarmEvent]):
    """Passes the alarms of a plant on, counts them, and rolls them up the asset tree.

    The changes of one alarm come in their order; machines may be apart, by as much as the process before this
    one allows. Results are then told anew, by revision.
    """

    version = 2
    converts: ClassVar = {1: PLANT_OF_VERSION_1}
    order = arrival(corrects=True)
    stream_timers = True
    kpis = side_output(AlarmKpi)
    health = side_output(AssetHealth)
    plant = value_state(PlantState)

    def process(self, event: AlarmEvent, ctx: Context) -> None:
        """Take a change of an alarm."""
        ctx.emit(event)
        plant, alarm, at = self.plant.value, event.alarm_id, event.event_time_ms
        was = None if plant is None else plant.windows.standing.get(alarm)
        if not event.announced and was is None and (plant is None or alarm not in plant.windows.held):
            return
        if plant is None:
            plant = self.plant.value = PlantState()
        windows, severity = plant.windows, SEVERITIES.index(event.severity)
        # Windows up to here are told for good: what is on time belongs to none of them.
        closed = NO_WATERMARK if ctx.on_time else ctx.watermark
        end = at - at % WINDOW_MS + WINDOW_MS - 1
        now: int | None = severity
        if windows.is_late(at):
            ctx.timers.bring_forward(ctx.event_time, _TELL, clock="stream")
        age = at if event.active_since_ms is None else event.active_since_ms
        if event.announced:
            is_known = windows.release(alarm, at, closed) == age or event.change == "moved"
            if (was is None and not is_known) or event.change == "re_alarm":
                windows.begins(alarm, severity, at, closed)
                ctx.timers.bring_forward(end, _TELL, clock="stream")
            windows.stands(alarm, severity, at, age)
        else:
            released = windows.release(alarm, at, closed)
            age = windows.ends(alarm, at, closed) if was is not None else released
            if event.active and event.change != "moved":
                windows.hold(alarm, at, age, bool(event.shelved))
            now = None
        ctx.timers.bring_forward(end, _CLOSE)
        before = None if was is None else was[1]
        if before != now:
            self._roll_up(plant, event, before, now)
            # Told once for all that happens at this instant: a flood would tell it a thousand times.
            ctx.timers.bring_forward(ctx.event_time, _HEALTH, clock="stream")

    def on_late(self, event: AlarmEvent, ctx: Context) -> None:
        """Take a change that a late action made: now is its time."""
        self.process(event, ctx)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """Tell what is due, and forget what nothing can change any more."""
        plant = self.plant.value
        if plant is None:
            return
        windows = plant.windows
        if timer.name == _HEALTH:
            self._tell_health(plant, ctx)
            return
        rows = (
            windows.rows_upto(ctx.key, timer.at) if timer.name == _TELL else windows.close(ctx.key, timer.at)
        )
        for row in rows:
            ctx.output(self.kpis, row, revision=row.revision, identity=f"{row.span}:{row.start_ms}")
        if timer.name == _CLOSE:
            plant.assets = {
                name: asset
                for name, asset in plant.assets.items()
                if any(asset.counts) or asset.at > timer.at or name in plant.changed
            }
            # A machine that is behind may yet tell of earlier than what was told of these last.
            rest = (asset.at for asset in plant.assets.values() if not any(asset.counts))
            if (due := min((at for at in rest if at > timer.at), default=None)) is not None:
                ctx.timers.bring_forward(due, _CLOSE)
        if (due := windows.next_told()) is not None:
            ctx.timers.bring_forward(due, _TELL, clock="stream")
        if (due := windows.next_closed()) is not None:
            ctx.timers.bring_forward(due, _CLOSE)
        if not (windows or plant.assets):
            self.plant.clear()

    def last_due(self, latest: int) -> int:
        """Return the end of the last day that can be open."""
        return latest + 2 * DAY_MS

    def _roll_up(self, plant: PlantState, event: AlarmEvent, before: int | None, now: int | None) -> None:
        """Count an alarm at all assets above it, instead of what it was."""
        machine = event.entity_id
        places: list[tuple[str, Literal["sensor", "machine", "line", "plant"], str]] = [
            (machine, "machine", event.line_id),
            (event.line_id, "line", event.plant_id),
            (event.plant_id, "plant", ""),
        ]
        if event.quantity and event.category not in ("liveness", "clock"):
            places.insert(0, (f"{machine}.{event.quantity}", "sensor", machine))
        for name, kind, parent in places:
            asset = plant.assets.get(name)
            if asset is None:
                asset = plant.assets[name] = Asset(kind, parent, [0] * len(SEVERITIES))
            if before is not None:
                asset.counts[before] -= 1
            if now is not None:
                asset.counts[now] += 1
            asset.at = max(asset.at, event.event_time_ms)
            plant.changed[name] = True

    def _tell_health(self, plant: PlantState, ctx: Context) -> None:
        """Tell the health of the assets in which it has changed."""
        changed, plant.changed = plant.changed, {}
        for name in sorted(changed):
            asset = plant.assets[name]
            now = asset.now()
            if now != asset.told:
                asset.told = now
                ctx.output(self.health, AssetHealth(name, asset.kind, asset.parent, *now))
            if not now[1]:
                if asset.at <= ctx.watermark:
                    del plant.assets[name]
                else:  # another machine may tell of earlier, which must not be taken for newer
                    ctx.timers.bring_forward(asset.at, _CLOSE)
        if not (plant.windows or plant.assets):
            self.plant.clear()


class ForesightedPlant(PlantMonitor):
    """The same where alarms are of what is foreseen as well."""

    name = "PlantMonitor"
    inputs: ClassVar[Mapping[str, Any]] = {"machines": AlarmEvent, "foreseen": AlarmEvent}
