"""How the rows of one key run through a process, between its timers.

In arrival order they are taken in the batch that brings them: due timers, then the rows by event time, each
followed by timers that it set in the past. In event-time order they wait in the entry until the watermark
passes them, and rows and timers then run in one order of time. What another process emitted is merged with
the timers too, since it has the time of its cause and is not late.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from millrace.dead_letters import NOT_JSON, one_line, reason_of
from millrace.host.batch_call import Lives
from millrace.host.groups import context_key
from millrace.host.rollback import PackingRollback, Rollback
from millrace.host.rows import Row, common_of, in_order, json_of
from millrace.host.timer_service import TimerService
from millrace.process import KeyedProcess, ProcessDefinitionError, kept_states, order_of, soonest
from millrace.state.entry_store import EntryStore
from millrace.state.layout import EntryLayout, PendingRow
from millrace.state.paged import Parts
from millrace.state.pages import StateCorrupted
from millrace.time import END_OF_TIME, NEVER, NO_WATERMARK, less

#: In place of an event, where there is none.
_NO_EVENT: Final = object()

log = logging.getLogger(__name__)


class StreamTime(NamedTuple):
    """How far the stream is in a batch, for processes that do not go by its clock alone.

    Attributes:
        before: The stream's watermark at the batch's begin, ms.
        ahead: Its watermark at the batch's end, ms.
        reach: What holds all clocks back while a backlog is read, ms; ``NEVER``: nothing.
        bound_ms: How far clocks stay behind the newest event, ms.
        newest: The newest plausible event time (ms) that the batch brought to a key, by its text.
    """

    before: int
    ahead: int
    reach: int = NEVER
    bound_ms: int = 0
    newest: Mapping[str, int] = {}


class KeyRunner(TimerService):
    """Runs the rows of one key and the timers that are due between them, and keeps its entry."""

    def __init__(self, process: KeyedProcess[Any, Any], **options: Any) -> None:
        super().__init__(process, **options)
        self.layout = EntryLayout(kept_states(process), owner=process.name)
        #: Whether each key has a clock of its own.
        self._keeps_time = order_of(process).by_key
        #: What takes a key's events together, and what may expire between them.
        by_key = type(process).process_key is not KeyedProcess.process_key
        self._process_key = self.process.process_key if by_key else None
        looks = type(process).look_ahead is not KeyedProcess.look_ahead
        self._look_ahead = self.process.look_ahead if looks else None
        self._all_lives = Lives(process.states, all_kinds=True)
        self._paged = any(spec.paged for spec in process.states)
        #: How often ``process_batch`` or ``process_key`` failed, and its events went to ``process``.
        self.fallbacks = 0
        #: How many events ``process_batch`` and ``process_key`` have handled.
        self.together = 0
        #: Of a bounded input that is run at once: how far the watermark stays behind the events.
        self._bound: int | None = None
        #: The watermark that the batch ends with, for all keys but those whose own clock is further.
        self._ahead_of_all = NO_WATERMARK
        #: How far the stream is.
        self._time = StreamTime(NO_WATERMARK, NO_WATERMARK)

    def _run_key(
        self,
        store: EntryStore,
        key: str,
        rows: Sequence[Row],
        watermark: int,
        tick: bool,
        rollback: Rollback | None = None,
    ) -> None:
        opened = store.open(key)
        of_all, own = watermark, None
        if self._keeps_time and self._bound is None:
            watermark, self._ahead, own = self._own_clock(key, opened.entry, watermark)
        if rollback is None:
            rollback = Rollback(store, opened, watermark)
            if self._paged:
                rollback.parts = Parts(store, key)
        else:
            rollback.watermark = watermark
        self._cursor.parts = rollback.parts
        opened.touched = True
        mark = len(self.emissions)
        cursor, ctx = self._cursor, self._ctx
        entry = cursor.entry = opened.entry
        cursor.min_expiry = opened.expiry
        cursor.min_processing_expiry = opened.processing_expiry
        cursor.soonest = self._soonest(entry)
        cursor.soonest_processing = soonest(entry.processing_timers_) if entry.processing_timers_ else NEVER
        self._key = key
        self._common = common_of(self._stored, key)
        ctx.key = context_key(key)
        ctx.watermark, ctx.stream_watermark = watermark, self._time.before
        try:
            try:
                if self._bound is not None:
                    self._run_all(rollback, rows, self._bound)
                elif self._ahead > watermark or (self._streams and self._time.ahead > self._time.before):
                    self._run_twice(rollback, rows, watermark, tick)
                else:
                    self._stream_now = self._time.before
                    if self._waits:
                        self._run_waiting(rollback, rows, watermark, tick)
                    else:
                        self._run_arriving(rollback, rows, watermark, tick)
                if own is not None:
                    self._keep_clock(*own)
            finally:
                self._is_ahead = False
                opened.entry = cursor.entry
                opened.expiry = cursor.min_expiry
                opened.processing_expiry = cursor.min_processing_expiry
                cursor.entry = None
            store.pack_entry(key, opened)
            if rollback.parts is not None:
                rollback.parts.pack()
            store.let_go(opened)
        except (StateCorrupted, ProcessDefinitionError):
            raise
        except Exception:
            if rollback.packs:
                raise
            # A callback left what cannot be kept. Once more from the start: now the one is found that did.
            del self.emissions[mark:]
            packing = PackingRollback(store, opened, rollback, key, cursor)
            self._run_key(store, key, [self._anew(row) for row in rows], of_all, tick, packing)

    def _own_clock(self, key: str, entry: Any, watermark: int) -> tuple[int, int, tuple[int, int]]:
        """Return a key's watermarks before and after the batch, and its clock as it is to be kept.

        Its rows are judged as its own clock stood before them, or the stream's less the patience if that is
        further (which is what the process's watermark is); what waits goes as far as either comes.
        """
        clock, newest = (NO_WATERMARK, NO_WATERMARK) if entry.clock_ is None else entry.clock_[1]
        before, time = max(clock, watermark), self._time
        came = time.newest.get(key)
        if came is not None:
            newest = max(newest, came)
            clock = max(clock, less(min(newest, time.reach), time.bound_ms + 1))
        return before, max(clock, self._ahead_of_all), (clock, newest)

    def _keep_clock(self, clock: int, newest: int) -> None:
        """Keep a key's clock until nothing would be judged otherwise without it."""
        cursor, until = self._cursor, max(clock, less(newest, self._time.bound_ms + 1))
        if until <= self._ahead_of_all:
            cursor.entry.clock_ = None
        else:
            cursor.entry.clock_ = (until, (clock, newest))
            cursor.min_expiry = min(cursor.min_expiry, until)

    def _run_twice(self, rollback: Rollback, rows: Sequence[Row], watermark: int, tick: bool) -> None:
        """Run a key's rows at the watermark that the batch begins with, then what waits for the next one."""
        ahead = self._ahead
        after: list[Row] = []
        if rows and rows[0].on_time is not None:
            after = [row for row in rows if row.is_ahead]
            rows = [row for row in rows if not row.is_ahead]
        soon: list[Row] = []
        self._stream_now = self._time.before
        if self._waits:
            soon = self._run_waiting(rollback, rows, watermark, False)
        else:
            self._run_arriving(rollback, rows, watermark, False)
        self._stream_now = self._time.ahead
        if not (self._waits or after or tick):
            cursor, due = self._cursor, max(ahead, self._stream_now) if self._streams else ahead
            if cursor.soonest > due and not cursor.entry.pending_:
                return  # as for nearly all keys: nothing waits for where the batch ends
        self._is_ahead = True
        self._ctx.watermark = ahead
        rollback.log.append((ahead,))
        # The results of a tick have a time after all that this batch passes.
        if self._waits:
            self._run_waiting(rollback, after, ahead, tick, soon)
        else:
            self._run_arriving(rollback, after, ahead, tick)

    def _run_arriving(self, rollback: Rollback, rows: Sequence[Row], watermark: int, tick: bool) -> None:
        """Run the rows of a process in arrival order, with the timers that are due."""
        cursor, in_order = self._cursor, self._in_order
        if cursor.entry.pending_:  # an earlier version took its events in order of time
            self._run_waiting(rollback, (), watermark, False)
        from_source = not rows or rows[0].on_time is None
        due = max(watermark, self._stream_now) if self._streams else watermark
        if cursor.soonest <= due and from_source:
            self._fire(rollback, watermark)
        self._have_at_hand(rows)
        if self._process_key is not None and len(rows) > 1 and _on_time(rows, watermark):
            rows = self._run_of_key(rollback, rows, due)
        for row in rows:
            if cursor.soonest < row.event_time:
                if row.on_time is not None:
                    # It has the time of its cause: what was due before that goes before it.
                    self._fire(rollback, watermark, row.event_time)
                if in_order and cursor.soonest < row.event_time:
                    self._fire_on_key_time(rollback, row.event_time)
            on_time = row.on_time
            late = row.event_time <= watermark and not on_time
            self._handle_row(rollback, row, late, not late if on_time is None else on_time)
            if from_source and cursor.soonest <= due:
                self._fire(rollback, watermark)
        if cursor.soonest <= due:
            self._fire(rollback, watermark)
        if tick:
            self._fire_processing(rollback, watermark)

    def _run_of_key(self, rollback: Rollback, rows: Sequence[Row], due: int) -> Sequence[Row]:
        """Let ``process_key`` handle the rows of a key, none of which is late.

        Args:
            rollback: What undoes it.
            rows: Two or more rows, in order.
            due: Timers up to this, ms, fire between the rows.

        Returns:
            The rows that are to be handled one by one: none, or all.
        """
        cursor, process_key = self._cursor, self._process_key
        oldest, newest = rows[0].event_time, rows[-1].event_time
        if (
            process_key is None
            or rollback.packs
            or self.controls.waiting
            or self._fires_before(newest, due)
            or (
                oldest < newest
                and self._all_lives.end_between(cursor.entry, cursor.min_expiry, oldest, newest)
            )
        ):
            return rows
        mark = len(self.emissions)
        self._stand_at(rows[0], rows[0].on_time is not False)
        events = self._each_of(rows, due)
        try:
            process_key(events, self._ctx)
            if next(events, _NO_EVENT) is not _NO_EVENT:
                raise ProcessDefinitionError(f"{self._name}.process_key returns before its last event")
        except (StateCorrupted, ProcessDefinitionError):
            raise
        except (Exception, _TimerBetween) as error:
            if not isinstance(error, _TimerBetween):
                self._fell_back("process_key", error)
            self._take_back(rollback, mark)
            return [self._anew(row) for row in rows]
        rollback.log += [(row, False, row.on_time is not False) for row in rows]
        self.together += len(rows)
        return ()

    def _each_of(self, rows: Sequence[Row], due: int) -> Iterator[Any]:
        """Yield the rows' events; the context, which is at the first, is at the one that was last yielded."""
        cursor, first = self._cursor, rows[0]
        yield first.event
        for row in rows[1:]:
            at = row.event_time
            if (cursor.soonest <= due or cursor.soonest < at) and self._fires_before(at, due):
                raise _TimerBetween
            self._stand_at(row, row.on_time is not False)
            yield row.event

    def _have_at_hand(self, rows: Sequence[Row]) -> None:
        """Let the process ask ahead for what some rows of its key will want."""
        if self._look_ahead is None or len(rows) < 2:
            return
        try:
            self._look_ahead([row.event for row in rows])
        except (StateCorrupted, ProcessDefinitionError):
            raise
        except Exception as error:
            self._fell_back("look_ahead", error)

    def _fell_back(self, hook: str, error: BaseException) -> None:
        """Count and tell once that a hook failed: its events are handled one by one."""
        self.fallbacks += 1
        if self.fallbacks == 1 and not isinstance(error, NotImplementedError):
            told = one_line(error)
            log.warning("%s.%s fails (%s): its events are handled one by one", self._name, hook, told)

    def _run_all(self, rollback: Rollback, rows: Sequence[Row], bound_ms: int) -> None:
        """Run a key from its first event to the end of time."""
        cursor, ctx = self._cursor, self._ctx
        # Events that wait are run when the watermark has passed them, at one time before timers.
        behind = 0 if self._waits else bound_ms + 1
        for row in rows:
            passed = row.event_time - behind
            if passed > ctx.watermark:
                ctx.watermark = ctx.stream_watermark = passed
            due = self._stream_now = passed - 1 if self._waits else passed
            if cursor.soonest <= due:
                self._fire(rollback, due)
            if self._in_order and not self._waits and cursor.soonest < row.event_time:
                self._fire_on_key_time(rollback, row.event_time)
            self._handle_row(rollback, row, False, row.on_time is not False)
        ctx.watermark = ctx.stream_watermark = self._stream_now = END_OF_TIME
        if cursor.soonest <= END_OF_TIME:
            self._fire(rollback, END_OF_TIME)

    def _run_waiting(
        self, rollback: Rollback, rows: Sequence[Row], watermark: int, tick: bool, soon: Sequence[Row] = ()
    ) -> list[Row]:
        """Run what the watermark has passed in order of time, and keep the rest.

        At one time events go before timers: a timer at t stands for "all up to t has been seen".

        Args:
            rollback: What undoes a callback.
            rows: The batch's rows.
            watermark: The watermark, ms.
            tick: Whether processing time ticks.
            soon: Rows that were not late when they came, and that the watermark has passed since.

        Returns:
            Rows that need not be kept, since the batch ends at a watermark that passes them.
        """
        waiting: list[PendingRow] = self._cursor.entry.pending_
        before = len(waiting)
        late: list[Row] = []
        ready: list[Row] = list(soon)
        left: list[Row] = []
        for row in rows:
            if watermark < row.event_time <= self._ahead:
                left.append(row)
            elif row.event_time > watermark:
                on_time = row.on_time is not False
                raw = json_of(row)
                waiting.append(PendingRow(row.event_time, row.cause, raw, row.headers, on_time))
            elif row.on_time:
                ready.append(row)
            else:
                late.append(row)
        if rollback.packs:
            came = waiting[before:]
            del waiting[before:]
            self._let_wait(rollback, waiting, came)
        passed = [p for p in waiting if p.event_time <= watermark]
        if passed:
            waiting = [p for p in waiting if p.event_time > watermark]
            ready += filter(None, map(self._row_of, passed))
        if rollback.packs:
            self._cursor.entry.pending_ = waiting
            rollback.renew(self._cursor, watermark, self._key)
        if passed or soon:
            ready = in_order(ready)
        due = max(watermark, self._stream_now) if self._streams else watermark
        left_over: Sequence[Row] = ready
        self._have_at_hand(ready)
        if self._process_key is not None and len(ready) > 1:
            left_over = self._run_of_key(rollback, ready, due)
        for row in left_over:
            if self._cursor.soonest < row.event_time:
                self._fire(rollback, watermark, row.event_time)
            self._handle_row(rollback, row, False, row.on_time is not False)
        if self._cursor.soonest <= due:
            self._fire(rollback, watermark)
        if tick:
            self._fire_processing(rollback, watermark)
        for row in late:
            self._handle_row(rollback, row, True, False)
            if self._cursor.soonest <= due:
                self._fire(rollback, watermark)
        self._cursor.entry.pending_ = waiting
        return left

    def _let_wait(self, rollback: Rollback, waiting: list[PendingRow], rows: list[PendingRow]) -> None:
        """Let rows wait that came in this batch, but for those with which the entry could not be kept."""
        waiting += rows
        try:
            rollback.renew(self._cursor, self._ctx.watermark, self._key)
        except Exception as error:
            del waiting[len(waiting) - len(rows) :]
            if len(rows) == 1:
                self._put_kept_aside(rows[0], "process_error", "process", error)
                return
            half = len(rows) // 2
            self._let_wait(rollback, waiting, rows[:half])
            self._let_wait(rollback, waiting, rows[half:])

    def _row_of(self, kept: PendingRow) -> Row | None:
        """Return a row that has waited; ``None`` where it is no event any more, and has been put aside."""
        if self._decode is None:
            raise ProcessDefinitionError(f"{self._name} waits for event time: its host must decode events")
        try:
            event = self._decode(kept.raw)
        except NOT_JSON as error:
            self._put_kept_aside(kept, reason_of(error), "decode", error)
            return None
        return Row(kept.event_time, kept.raw, kept.cause, event, kept.headers, kept.on_time)


class _TimerBetween(BaseException):
    """A timer is due between two events of a key: no process is to catch it."""


def _on_time(rows: Sequence[Row], watermark: int) -> bool:
    """Return whether none of a key's rows, in order, is late."""
    if rows[0].on_time is None:
        return rows[0].event_time > watermark
    return all(row.on_time or row.event_time > watermark for row in rows)
