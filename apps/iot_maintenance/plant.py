"""The alarms of a plant together: KPIs of the alarm system, and the health of lines and machines.

KPIs after ISA-18.2: how many alarms an operator gets in ten minutes, floods, chattering and stale alarms,
the alarms that come most, and how they are spread over priorities. A window with nothing in it has no row.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from apps.iot_maintenance.alarms.record import AlarmEvent
from apps.iot_maintenance.alarms.rule import SEVERITIES
from millrace import Context, KeyedProcess, Timer, side_output, value_state

WINDOW_MS: Final = 600_000
DAY_MS: Final = 86_400_000
MINUTE_MS: Final = 60_000
#: More alarms than this in ten minutes are a flood; so many of one alarm in a minute are chattering.
FLOOD: Final = 10
CHATTER: Final = 3
_TOP: Final = 10
_WINDOW: Final = "window"
_DAY: Final = "day"
_HEALTH: Final = "health"


class AlarmKpi(msgspec.Struct, frozen=True):
    """How the alarm system of a plant did in ten minutes, or in a day.

    Attributes:
        plant_id: The plant.
        span: ``10min`` or ``day``.
        start_ms: Begin, by UTC.
        end_ms: End.
        alarms: Alarms announced.
        flood: Ten minutes: more than ten of them. A day: whether any ten minutes were.
        flood_share: Share of the ten-minute windows of the day that were floods.
        chattering: Alarms that came three times or more within a minute.
        stale: Alarms active for more than 24 hours at the end.
        standing: Alarms active at the end.
        by_severity: Share of each priority.
        top: The alarms that came most, and how often.
        top_share: Their share.
    """

    plant_id: str
    span: Literal["10min", "day"]
    start_ms: int
    end_ms: int
    alarms: int
    flood: bool
    flood_share: float
    chattering: list[str]
    stale: list[str]
    standing: int
    by_severity: dict[str, float]
    top: dict[str, int]
    top_share: float


class AssetHealth(msgspec.Struct, frozen=True, gc=False):
    """The health of a machine, line or plant, whenever it changes.

    Attributes:
        asset_id: The asset.
        asset_kind: Its level in the tree.
        parent_id: What it is part of; empty for a plant.
        health: ``good``, or the severity of the worst alarm announced on it or below it.
        active: How many alarms are announced on it and below it.
        event_time_ms: Since when.
    """

    asset_id: str
    asset_kind: Literal["sensor", "machine", "line", "plant"]
    parent_id: str
    health: str
    active: int
    event_time_ms: int


class Count(msgspec.Struct):
    """Alarms of a window.

    Attributes:
        start: Its begin, ms.
        alarms: How many.
        severities: How many of each severity.
        of: How often each alarm came.
        last: When each alarm came last, ms: at most ``CHATTER`` times.
        chattering: Those that chatter.
        floods: Windows of ten minutes that were floods; of a day.
    """

    start: int
    alarms: int = 0
    severities: list[int] = msgspec.field(default_factory=lambda: [0, 0, 0, 0])
    of: dict[str, int] = {}
    last: dict[str, list[int]] = {}
    chattering: list[str] = []
    floods: int = 0

    def add(self, alarm: str, severity: int, at: int) -> None:
        """Count an alarm."""
        self.alarms += 1
        self.severities[severity] += 1
        self.of[alarm] = self.of.get(alarm, 0) + 1
        times = self.last.setdefault(alarm, [])
        times.append(at)
        del times[:-CHATTER]
        if len(times) == CHATTER and at - times[0] <= MINUTE_MS and alarm not in self.chattering:
            self.chattering.append(alarm)

    def result(self, plant: str, span: Literal["10min", "day"], standing: dict[str, list[int]]) -> AlarmKpi:
        """Return what is said of the window."""
        size = WINDOW_MS if span == "10min" else DAY_MS
        end = self.start + size
        top = dict(sorted(self.of.items(), key=lambda item: (-item[1], item[0]))[:_TOP])
        total = max(self.alarms, 1)
        return AlarmKpi(
            plant,
            span,
            self.start,
            end,
            self.alarms,
            self.alarms > FLOOD if span == "10min" else self.floods > 0,
            self.floods * WINDOW_MS / DAY_MS if span == "day" else float(self.alarms > FLOOD),
            sorted(self.chattering),
            sorted(name for name, (since, _) in standing.items() if end - since > DAY_MS),
            len(standing),
            {name: n / total for name, n in zip(SEVERITIES, self.severities, strict=True)},
            top,
            sum(top.values()) / total,
        )


class Asset(msgspec.Struct, array_like=True):
    """An asset with alarms on it or below it.

    Attributes:
        kind: Its level in the tree.
        parent: What it is part of.
        counts: Announced alarms of each severity.
        told: What was told of it last: severity and number.
    """

    kind: Literal["sensor", "machine", "line", "plant"]
    parent: str
    counts: list[int]
    told: tuple[str, int] = ("good", 0)

    def now(self) -> tuple[str, int]:
        """Return its health and how many alarms it has."""
        worst = max((place for place, n in enumerate(self.counts) if n), default=-1)
        return ("good" if worst < 0 else SEVERITIES[worst]), sum(self.counts)


class PlantState(msgspec.Struct):
    """What is kept of a plant.

    Attributes:
        standing: Announced alarm → since when, ms, and its severity.
        assets: The assets that have alarms.
        changed: Those of them that have changed at this instant.
        window: The present ten minutes.
        day: The present day.
    """

    standing: dict[str, list[int]] = {}
    assets: dict[str, Asset] = {}
    changed: dict[str, bool] = {}
    window: Count | None = None
    day: Count | None = None


class PlantMonitor(KeyedProcess[AlarmEvent, AlarmEvent]):
    """Passes the alarms of a plant on, counts them, and rolls them up the asset tree."""

    # What the machines' monitor says of one plant comes in the order of its time; counts close by time.
    order = "event_time"
    #: The same rows once more: they go to a table that has the newest of each alarm.
    newest = side_output(AlarmEvent)
    kpis = side_output(AlarmKpi)
    health = side_output(AssetHealth)
    plant = value_state(PlantState)

    def process(self, event: AlarmEvent, ctx: Context) -> None:
        """Take a change of an alarm."""
        ctx.emit(event)
        ctx.output(self.newest, event)
        plant = self.plant.value
        was = None if plant is None else plant.standing.get(event.alarm_id)
        if not event.announced and was is None:
            return
        if plant is None:
            plant = self.plant.value = PlantState()
        severity = SEVERITIES.index(event.severity)
        if event.announced and (was is None or event.change == "re_alarm"):
            self._count(plant, event, severity, ctx)
        if event.announced:
            plant.standing[event.alarm_id] = [was[0] if was else ctx.event_time, severity]
        else:
            del plant.standing[event.alarm_id]
        if was is not None:
            self._roll_up(plant, event, was[1], -1)
        if event.announced:
            self._roll_up(plant, event, severity, 1)
        # Told once for all that happens at this instant: a flood would tell it a thousand times.
        ctx.timers.at(ctx.event_time, _HEALTH)

    def on_late(self, event: AlarmEvent, ctx: Context) -> None:
        """Take a change that a late action made: now is its time."""
        self.process(event, ctx)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """End ten minutes, or a day."""
        plant = self.plant.value
        if plant is None:
            return
        if timer.name == _HEALTH:
            self._tell_health(plant, ctx)
        elif timer.name == _WINDOW and plant.window is not None:
            window, plant.window = plant.window, None
            ctx.output(self.kpis, window.result(ctx.key, "10min", plant.standing))
            if plant.day is not None:
                plant.day.floods += window.alarms > FLOOD
        elif timer.name == _DAY and plant.day is not None:
            day, plant.day = plant.day, None
            ctx.output(self.kpis, day.result(ctx.key, "day", plant.standing))
        self._forget(plant)

    def _count(self, plant: PlantState, event: AlarmEvent, severity: int, ctx: Context) -> None:
        at = ctx.event_time
        if plant.window is None:
            plant.window = Count(at - at % WINDOW_MS)
            ctx.timers.at(plant.window.start + WINDOW_MS - 1, _WINDOW)
        if plant.day is None:
            plant.day = Count(at - at % DAY_MS)
            ctx.timers.at(plant.day.start + DAY_MS, _DAY)
        plant.window.add(event.alarm_id, severity, at)
        plant.day.add(event.alarm_id, severity, at)

    def _roll_up(self, plant: PlantState, event: AlarmEvent, severity: int, by: int) -> None:
        """Count an alarm at all assets above it."""
        machine = event.entity_id
        if event.quantity and event.category != "liveness":
            _count(plant, f"{machine}.{event.quantity}", "sensor", machine, severity, by)
        _count(plant, machine, "machine", event.line_id, severity, by)
        _count(plant, event.line_id, "line", event.plant_id, severity, by)
        _count(plant, event.plant_id, "plant", "", severity, by)

    def _tell_health(self, plant: PlantState, ctx: Context) -> None:
        """Tell the health of the assets in which it has changed."""
        changed, plant.changed = plant.changed, {}
        for name in sorted(changed):
            asset = plant.assets[name]
            now = asset.now()
            if now != asset.told:
                asset.told = now
                row = AssetHealth(name, asset.kind, asset.parent, now[0], now[1], ctx.event_time)
                ctx.output(self.health, row)
            if not now[1]:
                del plant.assets[name]

    def _forget(self, plant: PlantState) -> None:
        if not (plant.standing or plant.assets or plant.window or plant.day):
            self.plant.clear()


def _count(
    plant: PlantState,
    name: str,
    kind: Literal["sensor", "machine", "line", "plant"],
    parent: str,
    severity: int,
    by: int,
) -> None:
    asset = plant.assets.get(name)
    if asset is None:
        asset = plant.assets[name] = Asset(kind, parent, [0, 0, 0, 0])
    asset.counts[severity] += by
    plant.changed[name] = True
