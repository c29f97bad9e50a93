"""The part of the monitor that counts what machines make: statuses, parts and shifts."""

from __future__ import annotations

from millrace import Context
from millrace.parts.contents import digest_of
from millrace_apps.iot_maintenance.contracts.events import PartCount, Status
from millrace_apps.iot_maintenance.processes.liveness_monitor import SHIFT, TELL_SHIFT
from millrace_apps.iot_maintenance.processes.orders import Ordered
from millrace_apps.iot_maintenance.processes.shifts import Regimes, ShiftState
from millrace_apps.iot_maintenance.processes.statuses import VOCABULARY
from millrace_apps.iot_maintenance.state.machine import Machine


class Producing(Ordered):
    """Counts the statuses of machines and the parts that they make, shift by shift."""

    def _count_status(self, machine: Machine, event: Status, ctx: Context) -> None:
        shift = self._shift(machine, event.status, ctx)
        regimes = self._regimes(machine, ctx.event_time)
        if not shift.has_counts:
            self._made(shift, machine, event.produced, event.rejected, ctx)
        shift.change(ctx.event_time, event.status, regimes)
        regime = regimes(event.status)
        machine.breakdowns.turn(ctx.event_time, regime)
        if regime is None:
            asset = self.asset.value
            if asset is None or event.status not in asset.words:
                self._doubt("unknown_status", event.status, ctx)

    def _count_parts(self, event: PartCount, ctx: Context) -> None:
        """Count the parts that a machine's counters say it has made."""
        machine = self._opened(ctx)
        identity = f"c{event.count_id}"
        if identity in machine.past.told:
            again = machine.past.contradicts(identity, ctx.event_time, digest_of(event))
            ctx.dead_letter("conflict" if again else "duplicate", f"{ctx.input}: this has come before")
            return
        machine.past.contradicts(identity, ctx.event_time, digest_of(event))
        shift = self._shift(machine, "", ctx)
        shift.heard = shift.has_counts = True
        produced, rejected = event.produced, event.rejected
        if event.absolute:
            produced, rejected = shift.counter(produced, rejected)
        self._made(shift, machine, produced, rejected, ctx)

    def _made(self, shift: ShiftState, machine: Machine, produced: int, rejected: int, ctx: Context) -> None:
        """Count parts, and tell shifts that are over anew if some of them were made there."""
        for over in shift.parts(ctx.event_time, produced, rejected):
            self._emit_shift(over, machine, ctx)

    def _shift(self, machine: Machine, status: str, ctx: Context) -> ShiftState:
        """Return the shift that the machine is in, begun with a status if it is its first."""
        at, calendar, shift = ctx.event_time, self._m.calendar, machine.shift
        if shift is None or at > shift.end:
            start, end = calendar.shift(at)
            if shift is None:
                shift = machine.shift = ShiftState(start, end, status, at)
            else:
                shift.resume(at, start, end)
        if ctx.timers.pending(SHIFT) is None:
            self._time_shift(shift, ctx)
        return shift

    def _regimes(self, machine: Machine, at: int) -> Regimes:
        """Return what the words of a machine mean at ``at`` (ms)."""
        known = self._m.statuses
        if not known.vocabularies:
            return known.regime
        vocabulary = machine.past.as_of(at).attributes.get(VOCABULARY, "")
        return lambda word: known.regime(word, vocabulary)

    def _close_shift(self, ctx: Context) -> None:
        machine = self.machine.value
        if machine is None or machine.shift is None:
            return
        shift = machine.shift
        if not shift.heard and machine.seen < shift.start:
            return  # nothing was heard in a whole shift: it goes on with the next status
        self._emit_shift(shift, machine, ctx)
        shift.begin(self._m.calendar, self._regimes(machine, ctx.event_time))
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
        regimes = self._regimes(machine, shift.end)
        kpi = shift.result(ctx.key, self._m.calendar, self._m.ideal_per_h.get(kind), regimes)
        if kpi is not None:
            ctx.output(self.shifts, kpi, revision=kpi.revision, identity=f"shift:{kpi.shift_start_ms}")

    def _time_shift(self, shift: ShiftState, ctx: Context) -> None:
        """Have a shift told when it ends: by the machine's clock, and before by the stream's."""
        ctx.timers.at(shift.end, SHIFT)
        if self._m.clock == "key":
            ctx.timers.at(shift.end, TELL_SHIFT, clock="stream")
