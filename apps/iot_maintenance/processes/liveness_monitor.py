"""State, timers and liveness that the monitor of machines is built on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Final, Literal

from millrace import (
    Context,
    KeyedProcess,
    broadcast_state,
    days,
    event_time,
    minutes,
    seconds,
    side_output,
    value_state,
)
from millrace.rules import ApproveRule, Entry, PublishRule, RollbackRule, SetRuleState
from millrace.time import NEVER
from millrace_apps.iot_maintenance.alarms.book import RuleSet, book_of
from millrace_apps.iot_maintenance.alarms.engine import Alarms, Engine
from millrace_apps.iot_maintenance.alarms.record import AlarmEvent
from millrace_apps.iot_maintenance.alarms.rule import AlarmRule
from millrace_apps.iot_maintenance.alarms.spans import SpanStore
from millrace_apps.iot_maintenance.contracts.events import Action, Heartbeat, Maintenance, Reading
from millrace_apps.iot_maintenance.contracts.records import EnrichedReading, Liveness, ShiftKpi
from millrace_apps.iot_maintenance.contracts.signals import INPUTS, Signal
from millrace_apps.iot_maintenance.processes.clocks import Clock, ClockOffset, ClockStore
from millrace_apps.iot_maintenance.processes.doubts import Doubts
from millrace_apps.iot_maintenance.processes.liveness import Gateway
from millrace_apps.iot_maintenance.processes.quality import Limits, Sensor
from millrace_apps.iot_maintenance.processes.shifts import Calendar
from millrace_apps.iot_maintenance.processes.statuses import VOCABULARY, Regime, Statuses
from millrace_apps.iot_maintenance.state.assets import (
    UNREGISTERED,
    Asset,
    Notice,
    Standing,
    What,
    place_by_name,
    quantity_of,
)
from millrace_apps.iot_maintenance.state.machine import WITH_POINTS, Machine, Silence
from millrace_apps.iot_maintenance.state.running import Running

#: Names of timers; those of one instant fire in this order.
ALARMS: Final = "alarms"
LIVE: Final = "live"
NOTICE: Final = "notice"
SHIFT: Final = "shift"
TELL_SHIFT: Final = "tell_shift"
TIDY: Final = "tidy"
TOGETHER: Final = "together"
WATCH: Final = "watch"
#: What is over is swept this often at most, ms.
_LEAST_TIDY_MS: Final = 60_000
_NO_LIMITS: Final = Limits()
#: Of so many measuring points what is known is remembered.
_MOST_KNOWN: Final = 100_000
#: Longer than an alarm waits or a shift lasts, ms.
_END_MS: Final = 366 * 86_400_000


@dataclass(frozen=True)
class Monitoring:
    """What the monitor is to do.

    Attributes:
        rules: Alarm rules that are there from the start.
        limits: Quantity → what is known of it.
        kinds_by_quantity: A machine that measures this is of this kind, unless master data say otherwise.
        ideal_per_h: Kind → parts per operating hour at best.
        statuses: What the words of controllers mean.
        grace_ms: How far behind the watermark facts and readings are still joined.
        keep_ms: A machine that nothing is heard of for so long is forgotten, its components' ages too.
        device_timeout_ms: A device whose heartbeat is missing for so long is silent ...
        device_timeouts: ... unless there is another time for its kind, ms.
        clock_limit_ms: How far a device's clock may be from its gateway's.
        window_ms: Length of moving means by time, and of trends, where a quantity says nothing else.
        values: Length of moving means by number.
        judge: Whether readings are judged by those before them.
        sensor_intervals: A sensor that is missing for so many of its intervals is silent ...
        sensor_least_ms: ... but not before this.
        calendar: The shifts.
        clock: Whether machines and gateways go by the clock of the stream, or by clocks of their own.
        patience_ms: With clocks of their own: how far these may stay behind the stream's.
        two_person: Whether a second person must approve a published rule before it is active.
        reasons: Whether shelving, suppressing and taking out of service need a reason.
        tree: Whether sites and lines stand in the registry alone, or in names of what is not in it.
        first_heard_ms: What is in the registry and has not been heard for so long is told.
        notice_ms: What is in no registry so long after it was met first is told, ms.
        foresees: Whether the app looks ahead, and has alarms of what it foresees.
    """

    rules: tuple[AlarmRule, ...] = ()
    limits: Mapping[str, Limits] = field(default_factory=dict)
    kinds_by_quantity: Mapping[str, str] = field(default_factory=dict)
    ideal_per_h: Mapping[str, float] = field(default_factory=dict)
    statuses: Statuses = field(default_factory=Statuses)
    grace_ms: int = minutes(1)
    keep_ms: int = days(400)
    device_timeout_ms: int = seconds(10)
    device_timeouts: Mapping[str, int] = field(default_factory=dict)
    clock_limit_ms: int = seconds(5)
    window_ms: int = minutes(6)
    values: int = 5
    judge: bool = True
    sensor_intervals: float = 6.0
    sensor_least_ms: int = seconds(5)
    calendar: Calendar = field(default_factory=Calendar)
    clock: Literal["stream", "key"] = "stream"
    patience_ms: int = minutes(10)
    two_person: bool = False
    reasons: bool = False
    tree: Literal["registry", "names"] = "registry"
    first_heard_ms: int = minutes(10)
    notice_ms: int = minutes(1)
    foresees: bool = False


class LivenessMonitor(KeyedProcess[Signal, EnrichedReading]):
    """The state of a machine or a gateway, and the part of its monitor that listens for silence.

    Args:
        monitoring: What to do.
    """

    # An alarm's delays, a trend and "nothing has come" hang on the order of events: they wait for the
    # watermark. Rows of late readings and corrections come at once.
    order = "event_time"
    # Who is silent is said by the stream's clock: that of who is silent stands still.
    stream_timers = True
    inputs: ClassVar = INPUTS
    control_type = PublishRule | SetRuleState | ApproveRule | RollbackRule
    alarms = side_output(AlarmEvent)
    liveness = side_output(Liveness)
    shifts = side_output(ShiftKpi)
    notices = side_output(Notice)
    replaced = side_output(Maintenance)
    clocks = side_output(ClockOffset)
    asked = side_output(Action)
    places = side_output(Standing)

    machine = value_state(Machine)
    conditions = value_state(Alarms)
    gateway = value_state(Gateway)
    asset = value_state(Asset)
    windows = value_state(SpanStore)
    offsets = value_state(ClockStore)
    doubts = value_state(Doubts)
    rules = broadcast_state(str, Entry)

    def __init__(self, monitoring: Monitoring) -> None:
        self._m = monitoring
        if monitoring.clock == "key":
            self.order = event_time(clock="key", patience=monitoring.patience_ms)  # type: ignore[assignment,misc]
        self._make = partial(book_of, monitoring.rules)
        self._tidy_ms = max(monitoring.grace_ms, _LEAST_TIDY_MS)
        #: Measuring point → what is known of it, length of its panes (ms), length of its mean by number.
        self._known: dict[str, tuple[Limits, int, int]] = {}
        silent = (limits.silent_ms for limits in monitoring.limits.values() if limits.silent_ms)
        self._least_ms = min((monitoring.sensor_least_ms, *silent))

    # -- silence -------------------------------------------------------------------------------

    def _know(self, subject: str) -> tuple[Limits, int, int]:
        """Return what is known of a measuring point, else of its quantity, and remember it."""
        limits = self._m.limits.get(subject) or self._m.limits.get(quantity_of(subject)) or _NO_LIMITS
        pane_ms = max(1, (limits.window_ms or self._m.window_ms) // Running.panes)
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        found = self._known[subject] = limits, pane_ms, limits.values or self._m.values
        return found

    def _limits(self, subject: str) -> Limits:
        return (self._known.get(subject) or self._know(subject))[0]

    def _timeout(self, subject: str, sensor: Sensor) -> int:
        limits = self._limits(subject)
        if limits.silent_ms:
            return limits.silent_ms
        if limits.by_exception:
            return _END_MS  # it need not speak
        return max(int(self._m.sensor_intervals * sensor.interval), self._m.sensor_least_ms)

    def _device_timeout(self, kind: Literal["machine", "gateway"]) -> int:
        return self._m.device_timeouts.get(kind, self._m.device_timeout_ms)

    def _watch(self, ctx: Context) -> None:
        """Look for sensors that have fallen silent."""
        machine = self.machine.value
        if machine is None:
            return
        at, rules = ctx.event_time, self._rules(ctx.event_time)
        # Mostly no alarm stands, and no sensor is silent: then there is nothing for an engine to do.
        ahead = partial(self._engine, ctx, rules=rules, is_ahead=True)
        engine = None if self.conditions.value is None else ahead()
        due = NEVER
        for subject, sensor in sorted(machine.sensors.items()):
            silence = machine.silences.get(subject)
            judge = sensor.at + self._timeout(subject, sensor) if silence is None else silence.judge
            if sensor.interval and judge <= at:
                engine = engine or ahead()
                judge = self._find_silent(machine, subject, sensor, engine, ctx)
            wait = rules.no_data.get(quantity_of(subject))
            if wait is not None:
                engine = engine or ahead()
                engine.no_data(subject, sensor.at)
                judge = min(judge, sensor.at + wait) if sensor.at + wait > at else judge
            if judge > at:
                due = min(due, judge)
        asset = self.asset.value if machine.registered == WITH_POINTS else None
        for subject, point in sorted(asset.points.items()) if asset is not None else ():
            if 0 < point.judge <= at:
                engine = engine or ahead()
                point.judge, point.silent = 0, True
                since = 0 if asset is None else asset.at
                self._tell_silence(machine, subject, "silent", True, since, at, ctx, never=True)
                engine.silent(subject, silent=True, reason="never heard")
            elif point.judge:
                due = min(due, point.judge)
        machine.watch_at = due
        if due != NEVER:
            ctx.timers.at(due, WATCH, clock="stream")
        self._wake(ctx)

    def _find_silent(
        self, machine: Machine, subject: str, sensor: Sensor, engine: Engine, ctx: Context
    ) -> int:
        """Tell that a sensor is silent; return when (ms) to look again."""
        others = [other.at for name, other in machine.sensors.items() if name != subject]
        # The machine was heard when this sensor was overdue already: then it is the sensor itself.
        own = not others or max(others) >= sensor.at + 2.0 * sensor.interval
        silence = machine.silences.get(subject)
        if silence is None or (own and not silence.own):
            machine.silences[subject] = Silence(sensor.at, own, NEVER, ctx.event_time)
            self._tell_silence(machine, subject, "silent", own, sensor.at, ctx.event_time, ctx)
            if own:
                engine.silent(subject, silent=True, reason="no readings")
        else:
            silence.judge = NEVER
        return NEVER

    def _heard(self, subject: str, machine: Machine, engine: Engine, ctx: Context) -> None:
        """Take that a machine of which sensors were silent is heard."""
        at = ctx.event_time
        if self._is_over(at + self._timeout(subject, machine.sensors[subject]), ctx):
            return
        silence = machine.silences.pop(subject, None)
        if silence is not None:
            told = max(at, silence.told)
            self._tell_silence(machine, subject, "online", silence.own, silence.since, told, ctx)
            engine.silent(subject, silent=False)
        soonest = machine.watch_at
        for name, other in machine.silences.items():
            if not other.own and other.judge == NEVER:
                # It was silent with its machine, which is back: it gets its time anew.
                other.judge = at + self._timeout(name, machine.sensors[name])
                soonest = min(soonest, other.judge)
        soonest = min(soonest, at + self._timeout(subject, machine.sensors[subject]))
        self._watch_from(machine, soonest, ctx)

    def _watch_from(self, machine: Machine, at: int, ctx: Context) -> None:
        """Look for silent sensors at ``at`` (ms), unless they are looked for before."""
        if at < machine.watch_at:
            machine.watch_at = at
            ctx.timers.at(at, WATCH, clock="stream")

    def _tell_silence(
        self,
        machine: Machine,
        subject: str,
        state: Any,
        own: bool,
        since: int,
        at: int,
        ctx: Context,
        *,
        never: bool = False,
    ) -> None:
        cause: Any = "own" if own else "machine"
        name = f"{ctx.key}.{subject}"
        place = self._place(ctx)
        row = Liveness(name, "sensor", machine.gateway, state, cause, at, since, *place, never)
        ctx.output(self.liveness, row)

    def _heartbeat(self, event: Heartbeat, ctx: Context) -> None:
        self._measure(event.device_id, event, ctx.event_time, ctx)
        gateway, asset = self.gateway.value, self.asset.value
        if gateway is None:
            gateway = self.gateway.value = Gateway()
            if asset is None:
                self._doubt("unknown_asset", "", ctx)
        if event.device_id not in gateway.devices:
            self._doubt("unknown_device", event.device_id, ctx)
        at, timeout = ctx.event_time, self._device_timeout(event.device_kind)
        is_machine = event.device_kind == "machine"
        is_over = self._is_over(at + timeout, ctx)
        rows = gateway.heard(
            event.device_id,
            event.gateway_id,
            is_machine,
            at,
            timeout,
            is_over=is_over,
            place=self._place(ctx),
        )
        if rows:
            self._tell_liveness(rows, ctx)
        # Far away while all that were known are silent: a device that is new brings it forward.
        pending, deadline = ctx.timers.pending(LIVE, clock="stream"), at + timeout
        if rows or pending is None or pending > deadline:
            ctx.timers.at(min(gateway.next_ms(), deadline), LIVE, clock="stream")

    def _is_over(self, deadline: int, ctx: Context) -> bool:
        """Return whether the stream has passed a deadline (ms) before the event that sets it came.

        What a machine that was cut off delivers is from the time of its silence: by the stream's clock it is
        silent still, until what it sends is of now.
        """
        return self._m.clock == "key" and deadline <= ctx.stream_watermark

    def _look(self, ctx: Context) -> None:
        """Look for devices of a gateway that have fallen silent, and forget those long gone."""
        gateway = self.gateway.value
        if gateway is None:
            return
        at = ctx.event_time
        timeouts = self._device_timeout("machine"), self._device_timeout("gateway")
        rows = gateway.silent(ctx.key, at, timeouts, place=self._place(ctx))
        self._tell_liveness(rows, ctx, is_ahead=True)
        gateway.forget(at - self._m.keep_ms)
        if gateway.devices:
            due = gateway.next_ms()
            if due == NEVER:
                due = min(device.last for device in gateway.devices.values()) + self._m.keep_ms
            ctx.timers.at(max(due, at + 1), LIVE, clock="stream")
        else:
            self.gateway.clear()
            if self.machine.value is None:
                self.conditions.clear()
                self._forget_doubts(ctx)

    def _tell_liveness(self, rows: list[Liveness], ctx: Context, *, is_ahead: bool = False) -> None:
        for row in rows:
            ctx.output(self.liveness, row)
        if rows:
            engine = self._engine(ctx, is_ahead=is_ahead)
            for row in rows:
                silent = row.state == "silent" and row.cause == "own"
                reason = "never heard" if row.never_heard else f"no heartbeat of a {row.device_kind}"
                engine.silent(row.device_id, silent=silent, reason=reason)
            self._wake(ctx)

    # -- clocks --------------------------------------------------------------------------------

    def _measure(self, device: str, event: Reading | Heartbeat, now: int, ctx: Context) -> None:
        """Measure a device's clock by when its gateway received an event."""
        if event.received_ms is None:
            return
        store = self.offsets.value
        if store is None:
            store = self.offsets.value = ClockStore()
        clock = store.kept.get(device)
        if clock is None:
            clock = store.kept[device] = Clock()
        was, limit = clock.wrong, self._m.clock_limit_ms
        if not clock.hear(now, event.event_time_ms, limit, event.received_ms):
            return
        ctx.output(self.clocks, ClockOffset(device, clock.offset, clock.wrong, now, *self._place(ctx)))
        if clock.wrong != was:
            side = "ahead" if clock.offset > 0 else "behind"
            engine = self._engine(ctx, at=now)
            engine.clock(device, wrong=clock.wrong, reason=f"{abs(clock.offset) / 1000:.1f} s {side}")
            self._wake(ctx)

    # -- helpers -------------------------------------------------------------------------------

    def _rules(self, at: int) -> RuleSet:
        return self.rules.view(self._make).at(at)

    def _engine(
        self,
        ctx: Context,
        *,
        at: int | None = None,
        status: str | None = None,
        rules: RuleSet | None = None,
        is_ahead: bool = False,
    ) -> Engine:
        at = ctx.event_time if at is None else at
        alarms = self.conditions.value
        if alarms is None:
            alarms = self.conditions.value = Alarms()
        machine = self.machine.value
        if status is None and machine is not None:
            status = machine.past.status_at(at)
        found = self._rules(at) if rules is None else rules
        is_ahead = is_ahead and self._m.clock == "key"
        return Engine(
            alarms,
            found,
            ctx.key,
            at,
            status,
            partial(ctx.output, self.alarms),
            is_ahead=is_ahead,
            place=self._place(ctx),
            regime=self._regime(machine, status, at),
            reasons=self._m.reasons,
        )

    def _regime(self, machine: Machine | None, status: str | None, at: int) -> Regime | None:
        """Return what a status of a machine means at ``at`` (ms)."""
        known = self._m.statuses
        if not known.vocabularies or machine is None:
            return known.regime(status)
        return known.regime(status, machine.past.as_of(at).attributes.get(VOCABULARY, ""))

    def _place(self, ctx: Context) -> tuple[str, str]:
        """Return the site and the line of the machine or gateway."""
        asset = self.asset.value
        if asset is not None and asset.site:
            return asset.site, asset.line or asset.site
        return place_by_name(ctx.key) if self._m.tree == "names" else (UNREGISTERED, UNREGISTERED)

    # -- what is in no registry ------------------------------------------------------------------

    def _doubt(self, what: What, name: str, ctx: Context) -> None:
        """Take that something is met which the registry does not have, or has not yet."""
        doubts = self.doubts.value
        if doubts is None:
            doubts = self.doubts.value = Doubts()
        at = ctx.event_time
        if doubts.add(what, name, at):
            due = self._told_at(doubts, what, name, at)
            if due != NEVER:
                ctx.timers.bring_forward(due, NOTICE)

    def _weigh(self, now: int, ctx: Context) -> None:
        """Tell what has been doubted for long enough at ``now`` (ms), and come back for the rest."""
        doubts = self.doubts.value
        if doubts is None:
            return
        waiting = sorted((self._told_at(doubts, *one), *one[:2]) for one in doubts.open())
        soonest = NEVER
        for due, what, name in waiting:
            if not doubts.may_tell(what):
                continue
            if due > now:
                soonest = min(soonest, due)
                continue
            doubts.tell(what, name, due)
            self._notice(what, name, "open", due, ctx)
        if soonest != NEVER:
            ctx.timers.bring_forward(soonest, NOTICE)

    def _told_at(self, doubts: Doubts, what: What, name: str, since: int) -> int:
        """Return when (ms) it is told that something met at ``since`` (ms) is unknown."""
        if what in ("unknown_asset", "unknown_status"):
            return since + self._m.notice_ms
        # Only where the registry says what there is of it.
        asset = self.asset.value
        if asset is None or not (asset.points if what == "unknown_point" else asset.has_devices):
            return NEVER
        return doubts.lacks(what, name, max(since, asset.at)) + self._m.notice_ms

    def _forget_doubts(self, ctx: Context) -> None:
        self.doubts.clear()
        ctx.timers.delete(NOTICE)

    def _notice(
        self, what: What, subject: str, state: Literal["open", "over"], at: int, ctx: Context
    ) -> None:
        ctx.output(self.notices, Notice(ctx.key, what, subject, state, at, *self._place(ctx)))

    def _wake(self, ctx: Context) -> None:
        """Have what alarms wait for done in time."""
        alarms = self.conditions.value
        if alarms is None:
            return
        if alarms.due != NEVER:
            ctx.timers.bring_forward(alarms.due, ALARMS)
        elif not alarms.conditions and max(alarms.suppressed_until, alarms.told_at) < ctx.event_time:
            if alarms.ahead:
                own = ctx.watermark
                alarms.ahead = {name: last for name, last in alarms.ahead.items() if last[0] > own}
            if not alarms.ahead:
                self.conditions.clear()

    def last_due(self, latest: int) -> int:
        """Return what is later than all that follows: alarms, shifts and watches end by themselves."""
        return latest + 2 * self._m.keep_ms + _END_MS

    def _opened(self, ctx: Context) -> Machine:
        """Return the machine, and see that it is swept once it falls silent."""
        machine = self.machine.value
        at = ctx.event_time
        if machine is None:
            machine = self.machine.value = Machine()
        if at > machine.seen:
            machine.seen = at
        wake = (at if at > ctx.watermark else ctx.watermark) + self._tidy_ms
        if wake < machine.tidy_at:
            machine.tidy_at = wake
            ctx.timers.at(wake, TIDY)
        return machine

    def _tidy(self, ctx: Context) -> None:
        """Forget what no late event can ask for, and a machine of which nothing has been heard for long."""
        machine = self.machine.value
        if machine is None:
            return
        at = ctx.event_time
        if at >= machine.seen + self._m.keep_ms:
            self.machine.clear()
            self.asset.clear()
            self.windows.clear()
            if self.gateway.value is None:
                self.offsets.clear()
            for name in (WATCH, TELL_SHIFT):
                ctx.timers.delete(name, clock="stream")
            for name in (SHIFT, TOGETHER):
                ctx.timers.delete(name)
            if self.gateway.value is None:
                self.conditions.clear()
                ctx.timers.delete(ALARMS)
                self._forget_doubts(ctx)
            return
        first = at - self._m.grace_ms
        machine.past.prune(first + 1)
        machine.kept.forget(first)
        quiet = machine.seen < at and not machine.kept
        machine.tidy_at = machine.seen + self._m.keep_ms if quiet else at + self._tidy_ms
        ctx.timers.at(machine.tidy_at, TIDY)
