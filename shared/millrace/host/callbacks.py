"""One callback at a time, each atomic: of an event, of a late one, of a timer; a failure is taken back."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from hashlib import blake2b
from typing import Any, Final, Literal

import msgspec

from millrace.host.collector import Collector
from millrace.host.controls import Controls
from millrace.host.rollback import Rollback
from millrace.host.rows import Row, as_json, is_bare
from millrace.process import KeyedProcess, ProcessDefinitionError, Timer, order_of, soonest
from millrace.state import HANDLES
from millrace.state.layout import TimerRecord
from millrace.state.pages import StateCorrupted
from millrace.time import END_OF_TIME, NEVER, NO_WATERMARK

Domain = Literal["event_time", "processing_time", "stream_time"]
#: Where an entry has the timers of each domain.
TIMERS: Final[dict[Domain, str]] = {
    "event_time": "timers_", "processing_time": "processing_timers_", "stream_time": "stream_timers_",
}  # fmt: skip
#: What a domain is called in identities.
_CLOCKS: Final[dict[Domain, str]] = {
    "event_time": "timer", "processing_time": "processing-timer", "stream_time": "stream-timer",
}  # fmt: skip
#: In place of a hash: a timer that has to be told apart was set by an event without an identity.
_UNKNOWN: Final = -1


class Callbacks(Collector):
    """Calls a process: ``process``, ``on_late``, ``on_timer``; what a failed call did is taken back.

    Args:
        process: The process.
        encode: See :class:`~millrace.host.collector.Collector`, as the others.
        decode: Makes an event from the original bytes of its row; ``None`` where rows have none and
            events do not change.
        identify: Whether records get identities.
        bare: Output → classes of its records that are left as they are.
        by_columns: Whether the host takes emissions by columns.
    """

    def __init__(
        self,
        process: KeyedProcess[Any, Any],
        *,
        encode: Callable[[Any], Any],
        decode: Callable[[Any], Any] | None,
        identify: bool,
        bare: Mapping[str, Collection[type]] | None,
        by_columns: bool,
    ) -> None:
        super().__init__(process, encode=encode, identify=identify, bare=bare, by_columns=by_columns)
        self._decode = decode
        for spec in process.states:
            self.process.__dict__[spec.name] = HANDLES[spec.kind](self._cursor, spec)
        self._process = self.process.process
        self._ctx.timers.again = self._ctx.processing_timers.again = self._again
        order = order_of(process)
        self._in_order = order.in_order_per_key
        self._waits = order.mode == "event_time"
        #: What control events make of the broadcast state.
        self.controls = Controls(self.process, self._cursor, self._put_control_aside, waits=self._waits)
        #: Whether there are timers on the stream's clock.
        self._streams = process.stream_timers
        self._name_of = None if self._inputs is None else self._inputs.name_of
        #: Whether a timer runs that may not be the first of its name and time.
        self._is_behind = False
        #: The watermark that a batch ends with.
        self._ahead = NO_WATERMARK
        #: The watermark that the batch before ended with: timers up to it have fired.
        self._passed = NO_WATERMARK

    def _handle_row(self, rollback: Rollback, row: Row, late: bool, on_time: bool) -> None:
        mark = len(self.emissions)
        try:
            self._call(row, late, on_time)
            rollback.log.append((row, late, on_time))
        except (StateCorrupted, ProcessDefinitionError):
            raise  # the class is wrong, not the event: stop before the whole stream is put aside
        except Exception as error:
            self._take_back(rollback, mark)
            self._put_aside(row, "process_error", error)

    def _call(self, row: Row, late: bool, on_time: bool) -> None:
        self._stand_at(row, on_time)
        if late:
            self.process.on_late(row.event, self._ctx)
        else:
            self._process(row.event, self._ctx)

    def _stand_at(self, row: Row, on_time: bool) -> None:
        """Let the context and the states be those of a row."""
        ctx, cursor = self._ctx, self._cursor
        cursor.now = ctx.event_time = row.event_time
        cursor.turn += 1
        if self.controls.waiting:
            self.controls.look_at(row.event_time)
        self._row = row
        self._cause = row.cause
        self._main = 0
        if self._index:
            self._index = {}
        self._on_time = ctx.on_time = on_time
        if self._name_of is not None:
            ctx.input = self._name_of(row.raw)

    def _handle_timer(self, rollback: Rollback, timer: TimerRecord, domain: Domain) -> None:
        mark = len(self.emissions)
        try:
            self._call_timer(timer, domain)
            rollback.log.append((timer, domain))
        except (StateCorrupted, ProcessDefinitionError):
            raise
        except Exception as error:
            self._take_back(rollback, mark)
            self._remove(timer, domain)
            rollback.renew(self._cursor, self._ctx.watermark, self._key)
            self.dead_letter(
                "process_error",
                "timer",
                error,
                as_json({"timer": timer.name, "at": timer.at}),
                None,
                key=self._key,
                event_time=self._time_of(timer, domain),
                timer_cause=_timer_cause(timer, domain) if self._identify else None,
            )

    def _call_timer(self, timer: TimerRecord, domain: Domain) -> None:
        self._remove(timer, domain)
        ctx, cursor = self._ctx, self._cursor
        cursor.now = ctx.event_time = self._time_of(timer, domain)
        cursor.turn += 1
        if self.controls.waiting:
            self.controls.look_at(ctx.event_time)
        self._row = None
        self._cause = _timer_cause(timer, domain) if self._identify else None
        self._is_behind = timer.again != 0 and domain != "processing_time"
        self._main = 0
        self._index = {}
        self._on_time = ctx.on_time = True
        ctx.input = ""
        self.process.on_timer(Timer(timer.at, timer.name, domain), ctx)

    def _time_of(self, timer: TimerRecord, domain: Domain) -> int:
        """Return a timer's event time: on processing time, the first that the batch does not pass.

        So the next process of a chain, which comes to the same watermark, is not behind it.
        """
        if domain != "processing_time":
            # One that was set in the past is no earlier than what set it: what a value's life was by then
            # may be over and swept, in one cut into batches and not in another.
            return timer.at + timer.behind
        ahead = self._ahead
        return min(ahead + 1, END_OF_TIME) if ahead != NO_WATERMARK else max(timer.at, 0)

    def _remove(self, timer: TimerRecord, domain: Domain) -> None:
        timers = getattr(self._cursor.entry, TIMERS[domain])
        timers[:] = [t for t in timers if t.name != timer.name]

    def _take_back(self, rollback: Rollback, mark: int) -> None:
        """Undo a failed callback: restore the last snapshot and repeat what succeeded since."""
        del self.emissions[mark:]
        cursor, watermark = self._cursor, self._ctx.watermark
        rollback.restore(cursor)
        cursor.soonest = self._soonest(cursor.entry)
        self._ctx.watermark = rollback.watermark
        self._muted = True
        try:
            for done in rollback.log:
                if len(done) == 1:
                    (self._ctx.watermark,) = done
                elif len(done) == 2:
                    self._call_timer(*done)
                else:
                    row, late, on_time = done
                    self._call(self._anew(row), late, on_time)
        finally:
            self._muted = False
            self._ctx.watermark = watermark
        rollback.renew(cursor, watermark, self._key)

    def _anew(self, row: Row) -> Row:
        """Return a row with its event as it came, since a process may have changed it."""
        if self._decode is None or is_bare(row.raw):
            return row
        return msgspec.structs.replace(row, event=self._decode(row.raw))

    def _soonest(self, entry: Any) -> int:
        """Return when the first timer on event time is due, be it by the stream's clock."""
        first = soonest(entry.timers_) if entry.timers_ else NEVER
        return min(first, soonest(entry.stream_timers_)) if self._streams else first

    def _again(self, when: int, domain: str) -> int:
        """Return 0 for a timer that is the first of its name and time to fire, else what tells it apart.

        Events of a key that are on time go before the timers of their time, and timers in order of time: a
        timer set for later has not fired there. Whatever comes of something behind may have come before.
        The decision hangs on nothing else, so no cut changes it. A timer on the stream's clock may have fired
        before whatever sets it again came.
        """
        row = self._row
        if domain == "processing_time":
            if when > self._cursor.processing_now:
                return 0
        elif domain == "stream_time":
            pass
        elif row is None:
            # Where a key's own events fire timers, one of them may be ahead of an earlier one.
            if when > self._cursor.now and not self._is_behind and (self._waits or not self._in_order):
                return 0
        elif (
            self._on_time
            and when >= row.event_time
            and (row.on_time is None or row.event_time > self._passed)
        ):
            return 0  # what another process emits may be on time, and yet behind what it has emitted before
        if self._cause is None:
            return _UNKNOWN
        return int.from_bytes(blake2b(self._cause.encode(), digest_size=7).digest(), "big") | 1


def _timer_cause(timer: TimerRecord, domain: Domain) -> str | None:
    """Return what a timer is: text that no event of a source is called by."""
    if timer.again == _UNKNOWN:
        return None
    return f"\x1e{_CLOCKS[domain]}:{timer.at}:{timer.again:x}:{timer.name}"
