"""The monitor of machines and gateways: joins, judges, counts and alarms, in the order of event time."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from operator import attrgetter
from typing import Any, ClassVar, Final

from apps.iot_maintenance.alarms.rule import Facts, alarm_language
from apps.iot_maintenance.earlier import MACHINE_OF_VERSION_1
from apps.iot_maintenance.events import Action, Heartbeat, MachineError, Maintenance, Reading, Status
from apps.iot_maintenance.machine_health import Charted, Learned
from apps.iot_maintenance.past import DAY_MS, Known
from apps.iot_maintenance.quality import Judged, Limits, Sensor
from apps.iot_maintenance.records import EnrichedReading
from apps.iot_maintenance.running import Running
from apps.iot_maintenance.shifts import ShiftState
from apps.iot_maintenance.signals import Fact, Signal
from apps.iot_maintenance.state import Kept, Machine, corrected, pack, unpack
from apps.iot_maintenance.watch import (
    ALARMS,
    LIVE,
    SHIFT,
    TELL_SHIFT,
    TOGETHER,
    WATCH,
    Monitoring,
)
from millrace import BroadcastContext, Context, Timer
from millrace.parts.contents import digest_of
from millrace.rules import apply_rule
from millrace.time import NEVER

__all__ = ["MachineMonitor", "Monitoring"]

_at = attrgetter("at")
_NO_LIMITS: Final = Limits()


def _identity(event: Fact) -> str:
    """Return what a fact is told from others of its machine by."""
    if isinstance(event, Status):
        return f"s{event.status_id}"
    if isinstance(event, Maintenance):
        return f"m{event.maintenance_id}"
    return f"e{event.error_id}" if isinstance(event, MachineError) else f"q{event.event_time_ms}"


class MachineMonitor(Charted):
    """Watches machines, and the gateways that they are heard through.

    The key is a machine for all but heartbeats, whose key is the gateway. What comes behind the watermark
    but within the grace is joined, and corrects what should have known it; it is in no alarm, statistic or
    KPI, which are what they were when their time passed.

    Args:
        monitoring: What to do.
        scoring: How values are scored; by default as the settings have it.
        forecasting: How far ahead is looked; the same.
        charts: What is normal for machines; nothing unless given.
    """

    version = 2
    converts: ClassVar = {1: MACHINE_OF_VERSION_1}

    def describe(self) -> dict[str, Any]:
        """Return what the state hangs on."""
        return {"grace_ms": self._m.grace_ms}

    def process_broadcast(self, control: Any, ctx: BroadcastContext) -> None:
        """Change the rules; they hold from the event time that the change names."""
        apply_rule(alarm_language(two_person=self._m.two_person), control, self.rules)

    # -- events --------------------------------------------------------------------------------

    def process(self, event: Signal, ctx: Context) -> None:
        """Handle an event in its place in time."""
        if isinstance(event, Reading):
            self._reading(event, ctx)
        elif isinstance(event, Heartbeat):
            self._heartbeat(event, ctx)
        elif isinstance(event, Action):
            engine = self._engine(ctx)
            engine.act(event)
            self._wake(ctx)
        else:
            self._fact(event, ctx)

    def on_late(self, event: Signal, ctx: Context) -> None:
        """Join what is within the grace; an operator's action takes effect now."""
        if isinstance(event, Action):
            engine = self._engine(ctx, at=ctx.watermark)
            engine.act(event)
            self._wake(ctx)
        elif isinstance(event, Heartbeat) or ctx.event_time + self._m.grace_ms <= ctx.watermark:
            self.emit_late(event, ctx)
        elif isinstance(event, Reading):
            self._late_reading(event, ctx)
        else:
            self._late_fact(event, ctx)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """Do what is due."""
        name = timer.name
        if name == ALARMS:
            self._engine(ctx).time()
            self._wake(ctx)
        elif name == TOGETHER:
            self._together(ctx)
        elif name == WATCH:
            self._watch(ctx)
        elif name == LIVE:
            self._look(ctx)
        elif name == SHIFT:
            self._close_shift(ctx)
        elif name == TELL_SHIFT:
            self._tell_shift(timer.at, ctx)
        else:
            self._tidy(ctx)

    # -- readings ------------------------------------------------------------------------------

    def _reading(self, event: Reading, ctx: Context) -> None:
        at, quantity = ctx.event_time, event.quantity
        machine = self._opened(ctx)
        sensor = machine.sensors.get(quantity)
        if sensor is None:
            sensor = machine.sensors[quantity] = Sensor()
            machine.running[quantity] = Running()
            machine.gateway = event.gateway_id
            if not machine.mark:
                machine.mark = self._m.kinds_by_quantity.get(quantity, "")
        elif sensor.at == at:
            self._repeated(event, machine.kept.of_time(at), ctx)
            return
        before_at, before = sensor.at, sensor.value
        limits = self._m.limits.get(quantity, _NO_LIMITS)
        judged = sensor.judge(at, event.value, event.unit, limits, self._m.judge)
        running = machine.running[quantity]
        zscore = None
        if judged.value is not None:
            zscore = running.add(at, judged.value)
        known = machine.past.as_of(at)
        learned = self._learn(event, quantity, judged.value, sensor.interval, known, machine.mark, ctx)
        row = self._row(event, machine, known, judged, running, zscore)
        ctx.emit(row)
        if self._m.grace_ms:
            self._keep(machine, row, ctx)
        self._judge(event, machine, known, judged, running, zscore, learned, before_at, before, ctx)
        if machine.watch_at == NEVER and sensor.interval:
            self._watch_from(machine, at + self._timeout(sensor), ctx)

    def _judge(
        self,
        event: Reading,
        machine: Machine,
        known: Known,
        judged: Judged,
        running: Running,
        zscore: float | None,
        learned: Learned,
        before_at: int,
        before: float,
        ctx: Context,
    ) -> None:
        """Let the alarms see a reading: process alarms what is believed, sensor alarms what is not."""
        at, quantity, value = ctx.event_time, event.quantity, judged.value
        rules = self.rules.view(self._make).at(at)
        wrong = judged.quality == "bad" or judged.fault in ("unit", "spike")
        looks = value is not None and quantity in rules.of
        if looks and rules.no_data and quantity in rules.no_data:
            self._watch_from(machine, at + rules.no_data[quantity], ctx)
        alarms = self.conditions.value
        held = alarms is not None and rules.concern(quantity, alarms.conditions, alarms.rules)
        together = quantity in rules.together
        if not (wrong or held or machine.silences):
            safe = rules.safe.get(quantity)
            calm = value is None or not looks or (safe is not None and safe[0] <= value <= safe[1])
            if calm and not together:
                return  # nearly all readings end here: no rule can take an interest in them
            if calm or value is None or rules.is_safe_for(known.kind or machine.mark, quantity, value):
                if together:
                    ctx.timers.at(at, TOGETHER)
                self._wake(ctx)
                return
        engine = self._engine(ctx, status=known.status, rules=rules)
        if machine.silences:
            self._heard(event, machine, engine, ctx)
        if wrong or held:
            engine.fault(quantity, judged.fault, bad=wrong)
        if looks:
            facts = Facts(at, status=known.status, kind=known.kind or machine.mark)
            facts.quantity, facts.value, facts.known = quantity, value, known
            if self._m.clock == "key":
                facts.stream_ms = ctx.stream_watermark
            facts.zscore, facts.trend = zscore, running.trend
            facts.anomaly_score, facts.crosses_in_h, facts.health_score = learned
            facts.minimum, facts.maximum = running.low, running.high
            facts.average, facts.average_by_time = running.average, running.average_by_time
            if value is not None and before_at >= 0 and running.count > 1:
                facts.rate = (value - before) * 60_000 / (at - before_at)
            engine.reading(facts)
        if together:
            ctx.timers.at(at, TOGETHER)
        self._wake(ctx)

    def _together(self, ctx: Context) -> None:
        """Judge the machine's readings together, once all of an instant are there."""
        machine = self.machine.value
        if machine is None:
            return
        at = ctx.event_time
        known, rules = machine.past.as_of(at), self._rules(at)
        facts = Facts(at, status=known.status, kind=known.kind or machine.mark)
        facts.known = known
        facts.latest = {q: sensor.value for q, sensor in machine.sensors.items() if sensor.count}
        if self.conditions.value is None and not rules.machine_trips(facts):
            return  # as nearly always
        self._engine(ctx, status=known.status, rules=rules).machine(facts)
        self._wake(ctx)

    def _row(
        self,
        event: Reading,
        machine: Machine,
        known: Known,
        judged: Judged,
        running: Running | None,
        zscore: float | None,
        *,
        late: bool = False,
    ) -> EnrichedReading:
        at = event.event_time_ms
        # By position: one is made for every reading.
        return EnrichedReading(
            event.reading_id,
            event.sensor_id,
            event.machine_id,
            event.quantity,
            event.value,
            event.unit,
            at,
            0,
            False,
            late,
            judged.quality,
            judged.fault,
            known.status,
            known.status_since_ms,
            known.kind or machine.mark,
            known.attributes,
            known.last_maintenance_ms,
            {component: (at - last) / DAY_MS for component, last in known.last_maintenance_ms.items()},
            known.errors_24h,
            None if running is None else running.average,
            None if running is None else running.average_by_time,
            None if running is None else running.trend,
            None if running is None else running.low,
            None if running is None else running.high,
            zscore,
        )

    # -- corrections ---------------------------------------------------------------------------

    def _keep(self, machine: Machine, row: EnrichedReading, ctx: Context) -> None:
        """Keep a reading for as long as a late fact may correct its row."""
        kept = machine.kept
        kept.add(Kept(row.event_time_ms, 0, pack(row)))
        sealed, upto = kept.sealed, ctx.watermark - self._m.grace_ms
        if sealed and sealed[0].last <= upto:
            kept.forget(upto)

    def _late_reading(self, event: Reading, ctx: Context) -> None:
        machine = self._opened(ctx)
        at, kept = ctx.event_time, machine.kept.all()
        low, high = bisect_left(kept, at, key=_at), bisect_right(kept, at, key=_at)
        if any(unpack(k.row).quantity == event.quantity for k in kept[low:high]):
            self._repeated(event, kept[low:high], ctx)
            return
        # By itself, without what came before and after it.
        limits = self._m.limits.get(event.quantity, _NO_LIMITS)
        judged = Sensor().judge(at, event.value, event.unit, limits)
        row = self._row(event, machine, machine.past.as_of(at), judged, None, None, late=True)
        ctx.emit(row)
        kept.insert(high, Kept(at, 0, pack(row)))
        machine.kept.replace(kept)

    def _repeated(self, event: Reading, kept: list[Kept], ctx: Context) -> None:
        """Put a reading aside where its sensor's quantity has one of this time."""
        said = event.reading_id, event.sensor_id, event.value, event.unit
        before = [part for part in (unpack(k.row) for k in kept) if part.quantity == event.quantity]
        what = f"sensor {event.sensor_id} has a reading of this time"
        if all((part.reading_id, part.sensor_id, part.value, part.unit) == said for part in before):
            ctx.dead_letter("duplicate", what)
        else:
            ctx.dead_letter("conflict", f"{what}, which says something else")

    def _is_news(self, machine: Machine, event: Fact, ctx: Context) -> bool:
        """Let a machine learn a fact; one that changes nothing is put aside."""
        at = ctx.event_time
        contradicts = machine.past.contradicts(_identity(event), at, digest_of(event))
        if machine.learn(event):
            return True
        what = f"{ctx.input}: this has come before"
        if contradicts:
            ctx.dead_letter("conflict", f"{what}, and said something else")
        else:
            ctx.dead_letter("duplicate", what)
        return False

    def _late_fact(self, event: Fact, ctx: Context) -> None:
        """Take a fact that came late, and correct the rows of readings that should have known it."""
        machine = self._opened(ctx)
        past, at = machine.past, ctx.event_time
        kept = machine.kept.all()
        after = kept[bisect_left(kept, at, key=_at) :]
        before = [past.as_of(k.at) for k in after]
        if not self._is_news(machine, event, ctx):
            return
        changed = False
        for k, was in zip(after, before, strict=True):
            now = past.as_of(k.at)
            if now != was:
                changed = True
                k.revision += 1
                row = corrected(unpack(k.row), now, k.revision, machine.mark)
                ctx.emit(row, on_time=False, revision=k.revision)
        if changed:
            machine.kept.replace(kept)

    # -- facts ---------------------------------------------------------------------------------

    def _fact(self, event: Fact, ctx: Context) -> None:
        """Take a fact in its place in time."""
        machine = self._opened(ctx)
        at = ctx.event_time
        if not self._is_news(machine, event, ctx):
            return
        if isinstance(event, Status):
            self._count_status(machine, event, ctx)
        elif isinstance(event, Maintenance):
            for running in machine.running.values():
                running.begin_extremes()
        if isinstance(event, MachineError):
            rules = self._rules(at)
            if rules.errors:
                known = machine.past.as_of(at)
                facts = Facts(at, status=known.status, kind=known.kind or machine.mark)
                facts.code, facts.known = event.code, known
                self._engine(ctx, status=known.status, rules=rules).error(facts)
        elif self.conditions.value is not None:
            self._engine(ctx).status_changed()
        self._wake(ctx)

    def _count_status(self, machine: Machine, event: Status, ctx: Context) -> None:
        at, calendar = ctx.event_time, self._m.calendar
        shift = machine.shift
        if shift is None or at > shift.end:
            start, end = calendar.shift(at)
            if shift is None:
                shift = machine.shift = ShiftState(start, end, event.status, at)
            else:
                shift.resume(at, start, end)
        if ctx.timers.pending(SHIFT) is None:
            self._time_shift(shift, ctx)
        shift.change(at, event.status, event.produced, event.rejected)

    def _close_shift(self, ctx: Context) -> None:
        machine = self.machine.value
        if machine is None or machine.shift is None:
            return
        shift = machine.shift
        if not shift.heard and machine.seen < shift.start:
            return  # nothing was heard in a whole shift: it goes on with the next status
        self._emit_shift(shift, machine, ctx)
        shift.begin(self._m.calendar)
        self._time_shift(shift, ctx)

    def _tell_shift(self, end: int, ctx: Context) -> None:
        """Tell a shift by the stream's clock, as far as the machine has been heard so far."""
        machine = self.machine.value
        if machine is None or machine.shift is None or machine.shift.end != end:
            return
        shift = machine.shift
        if shift.heard or machine.seen >= shift.start:
            self._emit_shift(shift, machine, ctx)

    def _emit_shift(self, shift: ShiftState, machine: Machine, ctx: Context) -> None:
        kind = machine.past.kind_at(shift.end) or machine.mark
        kpi = shift.result(ctx.key, self._m.calendar, self._m.ideal_per_h.get(kind))
        if kpi is not None:
            ctx.output(self.shifts, kpi, revision=kpi.revision, identity=f"shift:{kpi.shift_start_ms}")

    def _time_shift(self, shift: ShiftState, ctx: Context) -> None:
        """Have a shift told when it ends: by the machine's clock, and before by the stream's."""
        ctx.timers.at(shift.end, SHIFT)
        if self._m.clock == "key":
            ctx.timers.at(shift.end, TELL_SHIFT, clock="stream")
