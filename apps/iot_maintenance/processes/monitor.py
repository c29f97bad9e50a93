"""The monitor of machines and gateways: joins, judges, counts and alarms, in the order of event time."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from operator import attrgetter
from typing import Any, ClassVar

import msgspec

from millrace import BroadcastContext, Context, Timer
from millrace.parts.contents import digest_of
from millrace.rules import apply_rule
from millrace_apps.iot_maintenance.alarms.book import RuleSet
from millrace_apps.iot_maintenance.alarms.language import FORESIGHT, Facts
from millrace_apps.iot_maintenance.alarms.rule import alarm_language
from millrace_apps.iot_maintenance.alarms.spans import Span, SpanStore
from millrace_apps.iot_maintenance.contracts.events import (
    Action,
    Equipment,
    Heartbeat,
    MachineError,
    Maintenance,
    PartCount,
    Reading,
    Status,
)
from millrace_apps.iot_maintenance.contracts.records import EnrichedReading
from millrace_apps.iot_maintenance.contracts.signals import Fact, Signal
from millrace_apps.iot_maintenance.processes.liveness_monitor import (
    ALARMS,
    LIVE,
    NOTICE,
    SHIFT,
    TELL_SHIFT,
    TOGETHER,
    WATCH,
    Monitoring,
)
from millrace_apps.iot_maintenance.processes.machine_health import Learned
from millrace_apps.iot_maintenance.processes.orders import PLANNING, WORK
from millrace_apps.iot_maintenance.processes.quality import Judged, Sensor
from millrace_apps.iot_maintenance.processes.registering import Registering
from millrace_apps.iot_maintenance.state.assets import point_of, quantity_of, subject_of
from millrace_apps.iot_maintenance.state.earlier import MACHINE_OF_VERSION_1
from millrace_apps.iot_maintenance.state.machine import (
    REGISTERED,
    UNASKED,
    UNKNOWN,
    WITH_POINTS,
    Kept,
    Machine,
    RowPart,
    corrected,
    pack,
    unpack,
)
from millrace_apps.iot_maintenance.state.past import DAY_MS, MachineAsOf
from millrace_apps.iot_maintenance.state.running import Running

__all__ = ["MachineMonitor", "Monitoring"]

_at = attrgetter("at")


def _identity(event: Fact) -> str:
    """Return what a fact is told from others of its machine by."""
    if isinstance(event, Status):
        return f"s{event.status_id}"
    if isinstance(event, Maintenance):
        return f"m{event.maintenance_id}"
    return f"e{event.error_id}" if isinstance(event, MachineError) else f"q{event.event_time_ms}"


def _with_failure(event: Maintenance, machine: Machine) -> Maintenance:
    """Return a replacement with when its machine failed, if it did."""
    done = event.event_time_ms
    if event.kind != "corrective":
        failed = None
    elif event.failed_ms is None:
        failed = max(machine.breakdowns.begin_of(done, event.duration_ms), 0)
    else:
        failed = min(event.failed_ms, done)
    return msgspec.structs.replace(event, failed_ms=failed)


def _is_of(part: RowPart, subject: str) -> bool:
    return subject_of(part.quantity, part.point) == subject


def _latest(machine: Machine) -> dict[str, float]:
    """Return the latest good value of each quantity: of several measuring points the one heard last."""
    latest: dict[str, float] = {}
    at: dict[str, int] = {}
    for subject, sensor in sorted(machine.sensors.items()):
        quantity = quantity_of(subject)
        if sensor.count and sensor.at >= at.get(quantity, -1):
            latest[quantity], at[quantity] = sensor.value, sensor.at
    return latest


class MachineMonitor(Registering):
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
            self._act(event, ctx.event_time, ctx)
        elif isinstance(event, PartCount):
            self._count_parts(event, ctx)
        else:
            self._fact(event, ctx)

    def on_late(self, event: Signal, ctx: Context) -> None:
        """Join what is within the grace; an operator's action takes effect now."""
        if isinstance(event, Reading | Heartbeat):  # a clock that is behind makes all of its events late
            device = event.machine_id if isinstance(event, Reading) else event.device_id
            self._measure(device, event, ctx.watermark, ctx)
        if isinstance(event, Action):
            self._act(event, ctx.watermark, ctx)
        elif isinstance(event, Equipment):
            self._late_fact(event, ctx)  # master data are dated when a machine was built
        elif isinstance(event, Heartbeat | PartCount) or ctx.event_time + self._m.grace_ms <= ctx.watermark:
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
        elif name == NOTICE:
            self._weigh(ctx.event_time, ctx)
        elif name == SHIFT:
            self._close_shift(ctx)
        elif name == TELL_SHIFT:
            self._tell_shift(timer.at, ctx)
        elif name == WORK:
            self._work(ctx)
        else:
            self._tidy(ctx)

    def _act(self, event: Action, at: int, ctx: Context) -> None:
        """Do at ``at`` (ms) what an operator asks for."""
        if event.verb in PLANNING:
            self._plan(event, at, ctx)
            return
        rule = self._rules(at).rule_of(event.alarm) if self._m.foresees else None
        if rule is not None and rule.rule.source == FORESIGHT:
            ctx.output(self.asked, event)
            return
        self._engine(ctx, at=at).act(event)
        self._wake(ctx)
        self._pass_on(event, ctx)

    # -- readings ------------------------------------------------------------------------------

    def _reading(self, event: Reading, ctx: Context) -> None:
        at, subject = ctx.event_time, event.quantity
        machine = self._opened(ctx)
        sensor = machine.sensors.get(subject)
        if sensor is None or sensor.name != event.sensor_id or event.point:
            subject = self._subject(event, machine)
            sensor = machine.sensors.get(subject)
        if event.received_ms is not None:
            self._measure(event.machine_id, event, at, ctx)
        if sensor is None:
            sensor = self._first(event, subject, machine, ctx)
        elif sensor.at == at:
            self._repeated(event, subject, machine.kept.of_time(at), ctx)
            return
        before_at, before = sensor.at, sensor.value
        limits, pane_ms, last_n = self._known.get(subject) or self._know(subject)
        known = machine.past.as_of(at)
        # Only of a value that is the same again it matters whether the machine works.
        works = event.value == sensor.raw and self._regime(machine, known.status, at) == "producing"
        judged = sensor.judge(at, event.value, event.unit, limits, self._m.judge, works)
        running = machine.running[subject]
        zscore = None
        if judged.value is not None:
            if running.pane > at // pane_ms:
                running.begin_panes()  # they are of another length than they were
            zscore = running.add(at, judged.value, pane_ms, last_n)
        learned = self._learn(event, subject, judged.value, sensor.interval, known, machine.mark, ctx)
        row = self._row(event, subject, machine, known, judged, running, zscore, at)
        ctx.emit(row)
        if self._m.grace_ms:
            self._keep(machine, row, ctx)
        self._judge(event, subject, machine, known, judged, running, zscore, learned, before_at, before, ctx)
        if machine.watch_at > at + self._least_ms and sensor.interval:
            self._watch_from(machine, at + self._timeout(subject, sensor), ctx)

    def _subject(self, event: Reading, machine: Machine) -> str:
        """Return what a reading is of: its quantity, with the measuring point where there are several."""
        quantity, point = event.quantity, event.point
        if point:
            return subject_of(quantity, point)
        if machine.registered == WITH_POINTS:
            asset = self.asset.value
            found = None if asset is None else asset.subject(event.sensor_id, quantity)
            if found is not None:
                return found
        subject = subject_of(quantity, "")
        sensor = machine.sensors.get(subject)
        if sensor is None or not sensor.name or sensor.name == event.sensor_id:
            return subject
        return subject_of(quantity, event.sensor_id)

    def _first(self, event: Reading, subject: str, machine: Machine, ctx: Context) -> Sensor:
        """Take that a measuring point is heard for the first time."""
        sensor = machine.sensors[subject] = Sensor()
        machine.running[subject] = Running()
        machine.gateway = event.gateway_id
        if not event.point:
            sensor.name = event.sensor_id
        if not machine.mark:
            machine.mark = self._m.kinds_by_quantity.get(event.quantity, "")
        if machine.registered == UNASKED:
            machine.registered = REGISTERED if machine.past.equipment else UNKNOWN
            if machine.registered == UNKNOWN:
                self._doubt("unknown_asset", "", ctx)
        asset = self.asset.value if machine.registered == WITH_POINTS else None
        point = None if asset is None else asset.points.get(subject)
        if point is None and (self.asset.value is None or subject not in self.asset.value.told):
            self._doubt("unknown_point", subject, ctx)
        if asset is not None and point is not None:
            if point.silent:
                self._tell_silence(machine, subject, "online", True, asset.at, ctx.event_time, ctx)
                self._engine(ctx).silent(subject, silent=False)
                self._wake(ctx)
            point.judge, point.silent = 0, False
        return sensor

    def _judge(
        self,
        event: Reading,
        subject: str,
        machine: Machine,
        known: MachineAsOf,
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
        spans = self._spans(subject, quantity, at, value, rules) if rules.windows else {}
        if looks and rules.no_data and quantity in rules.no_data:
            self._watch_from(machine, at + rules.no_data[quantity], ctx)
        alarms = self.conditions.value
        held = alarms is not None and rules.concern(subject, alarms.conditions, alarms.rules)
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
            self._heard(subject, machine, engine, ctx)
        if wrong or held:
            engine.fault(subject, judged.fault, bad=wrong)
        if looks:
            facts = Facts(at, status=known.status, kind=known.kind or machine.mark, regime=engine.regime)
            facts.quantity, facts.value, facts.known = quantity, value, known
            facts.subject, facts.spans = subject, spans
            asset = self.asset.value if machine.registered == WITH_POINTS else None
            if asset is not None and subject in asset.points:
                facts.attributes = asset.points[subject].attributes
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

    def _spans(
        self, subject: str, quantity: str, at: int, value: float | None, rules: RuleSet
    ) -> Mapping[int, Span]:
        """Count a value in the windows that rules ask for, and return these by their length (ms)."""
        wanted = rules.windows.get(quantity)
        if wanted is None:
            return {}
        windows = self.windows.value
        if windows is None:
            windows = self.windows.value = SpanStore()
        spans = windows.of(subject, wanted)
        for length, span in spans.items():
            span.move(at, length)
            if value is not None:
                span.add(value)
        return spans

    def _together(self, ctx: Context) -> None:
        """Judge the machine's readings together, once all of an instant are there."""
        machine = self.machine.value
        if machine is None:
            return
        at = ctx.event_time
        known, rules = machine.past.as_of(at), self._rules(at)
        regime = self._regime(machine, known.status, at)
        facts = Facts(at, status=known.status, kind=known.kind or machine.mark, regime=regime)
        facts.known = known
        facts.latest = _latest(machine)
        if self.conditions.value is None and not rules.machine_trips(facts):
            return  # as nearly always
        self._engine(ctx, status=known.status, rules=rules).machine(facts)
        self._wake(ctx)

    def _row(
        self,
        event: Reading,
        subject: str,
        machine: Machine,
        known: MachineAsOf,
        judged: Judged,
        running: Running | None,
        zscore: float | None,
        at: int,
        *,
        late: bool = False,
    ) -> EnrichedReading:
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
            "" if subject == event.quantity else point_of(subject),
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
        subject = self._subject(event, machine)
        if any(_is_of(unpack(k.row), subject) for k in kept[low:high]):
            self._repeated(event, subject, kept[low:high], ctx)
            return
        # By itself, without what came before and after it.
        limits = self._limits(subject)
        judged = Sensor().judge(at, event.value, event.unit, limits)
        row = self._row(event, subject, machine, machine.past.as_of(at), judged, None, None, at, late=True)
        ctx.emit(row)
        kept.insert(high, Kept(at, 0, pack(row)))
        machine.kept.replace(kept)

    def _repeated(self, event: Reading, subject: str, kept: list[Kept], ctx: Context) -> None:
        """Put a reading aside where its measuring point has one of this time."""
        said = event.reading_id, event.sensor_id, event.value, event.unit
        before = [part for part in (unpack(k.row) for k in kept) if _is_of(part, subject)]
        what = f"sensor {event.sensor_id} has a reading of this time"
        if all((part.reading_id, part.sensor_id, part.value, part.unit) == said for part in before):
            ctx.dead_letter("duplicate", what)
        else:
            ctx.dead_letter("conflict", f"{what}, which says something else")

    def _is_news(self, machine: Machine, event: Fact, now: int, ctx: Context) -> bool:
        """Let a machine learn a fact, at ``now`` (ms); one that changes nothing is put aside."""
        at = ctx.event_time
        contradicts = machine.past.contradicts(_identity(event), at, digest_of(event))
        if machine.learn(event):
            if isinstance(event, Equipment):
                self._register(event, machine, now, ctx)
            elif isinstance(event, Maintenance):
                ctx.output(self.replaced, _with_failure(event, machine))
                self._replaced(event, now, ctx)
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
        if not self._is_news(machine, event, ctx.watermark, ctx):
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
        if not self._is_news(machine, event, at, ctx):
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
                engine = self._engine(ctx, status=known.status, rules=rules)
                kind = known.kind or machine.mark
                facts = Facts(at, status=known.status, kind=kind, regime=engine.regime)
                facts.code, facts.known = event.code, known
                engine.error(facts)
        elif self.conditions.value is not None:
            self._engine(ctx).status_changed()
        self._wake(ctx)
