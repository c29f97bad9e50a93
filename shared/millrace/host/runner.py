"""The meaning of a process: how rows, timers and the clocks of one batch run through it.

Both hosts use this one runner; they differ in where rows come from and where entries are kept. In
arrival order a key's rows are taken in the batch that brings them: due timers, then the rows by event
time, each followed by timers that it set in the past. In event-time order they wait in the entry until
the watermark passes them, and rows and timers then run in one order of time. What another process
emitted is merged with the timers too, since it has the time of its cause and is not late. A callback is
atomic: if it raises, its outputs are taken back, its state is restored, and the event goes to the dead
letters.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, Literal, NamedTuple

import msgspec

from millrace.batch import Batch
from millrace.dead_letters import (
    NOT_JSON,
    DeadLetter,
    check_given,
    error_digest,
    kept_of,
    one_line,
    position,
    reason_of,
    shortened,
)
from millrace.host.batch_call import BatchCall, Lives, split_batch
from millrace.host.controls import Controls
from millrace.host.groups import context_key
from millrace.host.rows import (
    IS_AHEAD,
    Emission,
    Emissions,
    Row,
    as_json,
    cause_order,
    common_of,
    event_id,
    event_ids,
    in_order,
    is_bare,
    json_of,
    make_event_id,
    new_emission,
)
from millrace.inputs import inputs_of, unmarked
from millrace.process import (
    Context,
    KeyedProcess,
    ProcessDefinitionError,
    Timer,
    Timers,
    check_process,
    kept_states,
    next_timer,
    order_of,
    soonest,
)
from millrace.state import HANDLES
from millrace.state.entry_store import EntryStore
from millrace.state.handles import Cursor
from millrace.state.layout import EntryLayout, PendingRow, TimerRecord
from millrace.state.paged import Parts
from millrace.state.pages import OpenEntry, StateCorrupted
from millrace.time import END_OF_TIME, NEVER, NO_WATERMARK, less

__all__ = [
    "Emission", "Row", "Runner", "StreamTime", "cause_order", "context_key", "in_order",
    "make_event_id",
]  # fmt: skip


Domain = Literal["event_time", "processing_time", "stream_time"]
#: Where an entry has the timers of each domain.
TIMERS: Final[dict[Domain, str]] = {
    "event_time": "timers_", "processing_time": "processing_timers_", "stream_time": "stream_timers_",
}  # fmt: skip
#: What a domain is called in identities.
_CLOCKS: Final[dict[Domain, str]] = {
    "event_time": "timer", "processing_time": "processing-timer", "stream_time": "stream-timer",
}  # fmt: skip
#: In place of an event, where there is none.
_NO_EVENT: Final = object()
#: In place of a hash: a timer that has to be told apart was set by an event without an identity.
_UNKNOWN: Final = -1

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


class Runner:
    """Runs one process.

    Args:
        process: The process; it is copied, so the caller's object stays as it is.
        encode: Makes the payload of an emission from the emitted record, at once: what a process
            does to the record afterwards no longer shows.
        decode: Makes an event from the original bytes of its row; ``None`` where rows have none and
            events do not change.
        identify: Whether records get identities.
        bare: Output → classes of its records that are left as they are: nobody can change them, and they
            stay here.
        by_columns: Whether the host takes emissions by columns: those of ``process_batch`` are in
            ``columns`` then, and all others are plain tuples.
    """

    def __init__(
        self,
        process: KeyedProcess[Any, Any],
        *,
        encode: Callable[[Any], Any],
        decode: Callable[[Any], Any] | None = None,
        identify: bool = True,
        bare: Mapping[str, Collection[type]] | None = None,
        by_columns: bool = False,
    ) -> None:
        check_process(process)
        self.process = copy.copy(process)
        self.layout = EntryLayout(kept_states(process), owner=process.name)
        self.emissions: list[Emission] = []
        #: What ``process_batch`` emitted, where the host takes columns.
        self.columns: list[Emissions] = []
        self._by_columns = by_columns
        self._encode = encode
        #: Output → what makes the payload of its records, where some are left as they are; so of ``main``.
        self._encodes = {output: _but_for(classes, encode) for output, classes in (bare or {}).items()}
        self._encode_main = self._encodes.get("main", encode)
        self._decode = decode
        self._cursor = Cursor()
        for spec in process.states:
            self.process.__dict__[spec.name] = HANDLES[spec.kind](self._cursor, spec)
        order = order_of(process)
        timers = Timers(self._cursor, order, streams=process.stream_timers)
        processing_timers = Timers(self._cursor, order, "processing_time")
        timers.again = processing_timers.again = self._again
        self._ctx = _RunningContext(timers, processing_timers, self._emit, self._reject)
        self._ctx.emit = self._emit_main  # type: ignore[method-assign]
        self._ctx.cause_of = lambda: self._cause
        self._process = self.process.process
        #: Outputs that a callback may emit to → the names that identities have.
        self._outputs = process.stored_outputs()
        del self._outputs["dead_letters"]
        self._in_order = order.in_order_per_key
        self._waits = order.mode == "event_time"
        #: What control events make of the broadcast state.
        self.controls = Controls(self.process, self._cursor, self._put_control_aside, waits=self._waits)
        #: Whether each key has a clock of its own, and whether there are timers on the stream's.
        self._keeps_time = order.by_key
        self._streams = process.stream_timers
        self._identify = identify
        self._batched = type(process).process_batch is not KeyedProcess.process_batch
        if self._batched and self._waits:
            raise ProcessDefinitionError(f"{process.name}: process_batch is for processes in arrival order")
        self._lives = Lives(process.states)
        #: What takes a key's events together, and what may expire between them.
        by_key = type(process).process_key is not KeyedProcess.process_key
        self._process_key = self.process.process_key if by_key else None
        looks = type(process).look_ahead is not KeyedProcess.look_ahead
        self._look_ahead = self.process.look_ahead if looks else None
        self._all_lives = Lives(process.states, all_kinds=True)
        self._paged = any(spec.paged for spec in process.states)
        self._name, self._stored = process.name, process.stored_as
        self._inputs = inputs_of(process)
        self._name_of = None if self._inputs is None else self._inputs.name_of
        # The state of the callback that is running.
        self._key = ""
        #: What the identities of the key's records have in common.
        self._common = ""
        self._row: Row | None = None
        self._cause: str | None = None
        self._on_time = True
        #: Whether it is a timer that may not be the first of its name and time.
        self._is_behind = False
        #: How many records it has emitted so far: to the main output, to others.
        self._main = 0
        self._index: dict[str, int] = {}
        self._muted = False
        #: How often ``process_batch`` or ``process_key`` failed, and its events went to ``process``.
        self.fallbacks = 0
        #: How many events ``process_batch`` and ``process_key`` have handled.
        self.together = 0
        #: How many timers, by name, were set at the end of the input for later than that, and do not fire.
        self.unfired: Counter[str] = Counter()
        #: Of a bounded input that is run at once: how far the watermark stays behind the events.
        self._bound: int | None = None
        #: The watermark that a batch ends with, and whether the key has come to it.
        self._ahead = NO_WATERMARK
        self._is_ahead = False
        #: The same for all keys but those whose own clock is further, and how far the stream is.
        self._ahead_of_all = NO_WATERMARK
        self._time = StreamTime(NO_WATERMARK, NO_WATERMARK)
        #: Up to when timers on the stream's clock are due.
        self._stream_now = NO_WATERMARK
        #: The watermark that the batch before ended with: timers up to it have fired.
        self._passed = NO_WATERMARK

    # -- a batch -------------------------------------------------------------------------------

    def run_batch(
        self,
        store: EntryStore,
        rows: dict[str, list[Row]],
        watermark: int,
        processing_time: int = NO_WATERMARK,
        *,
        tick: bool = False,
        ahead: int = NO_WATERMARK,
        passed: int | None = None,
        time: StreamTime | None = None,
    ) -> None:
        """Run the rows of one batch (key text → rows) and all timers that are due.

        Rows are judged late by the watermark that the batch begins with. What waits for the one that it ends
        with is done after them, as a batch without rows would do it.

        Args:
            store: Where the entries are.
            rows: Rows by key.
            watermark: The batch's watermark, ms.
            processing_time: The last tick of processing time, ms; ``NO_WATERMARK`` before the first.
            tick: Whether this batch brought that tick.
            ahead: The watermark that the batch ends with, ms, where that is known already.
            passed: The watermark that the batch before ended with, ms, where this one begins with another.
            time: How far the stream is, where its watermark is another than that of the process, or its
                keys have clocks of their own.
        """
        self._ahead = self._ahead_of_all = ahead = max(watermark, ahead)
        self._time = StreamTime(watermark, ahead) if time is None else time
        self._passed = watermark if passed is None else passed
        self._cursor.processing_now = processing_time
        self._ctx.processing_time = None if processing_time == NO_WATERMARK else processing_time
        due = dict.fromkeys(store.due(ahead))
        if tick:
            due.update(dict.fromkeys(store.due_processing(processing_time)))
        store.fetch(rows)
        with _collector_paused():
            if self._batched and rows:
                rows = self._run_together(store, rows, due, watermark)
            for key, of_key in rows.items():
                self._run_key(store, key, in_order(of_key), watermark, tick)
            for key in due:
                if key not in rows:
                    self._run_key(store, key, (), watermark, tick)
        self.controls.rest()

    def _run_together(
        self,
        store: EntryStore,
        rows: dict[str, list[Row]],
        due: dict[str, None],
        watermark: int,
    ) -> dict[str, list[Row]]:
        """Let ``process_batch`` handle what it can; return the rows that are left, by key."""
        together, left = split_batch(store, rows, due, watermark, self._lives)
        if not together.rows:
            return left
        self._ctx.watermark = watermark
        try:
            done = together.run(self.process, self._cursor, watermark, self._inputs)
            emitted = self._emissions_of(done, together)
            soon = self._set_timers(done, together, watermark)
            together.keep(store, done, self._cursor, self.process)
        except (StateCorrupted, ProcessDefinitionError):
            raise
        except Exception as error:
            # One of the events is at fault: one by one, the others are handled and it is put aside.
            if not isinstance(error, _TimerInBatch):
                self._fell_back("process_batch", error)
            together.restore(store)
            return {**{key: list(map(self._anew, of_key)) for key, of_key in together.by_key()}, **left}
        if self._by_columns:
            self.columns += emitted
        else:
            for of_output in emitted:
                self.emissions += of_output.each()
        self.together += len(together.rows)
        due.update(dict.fromkeys(soon))
        return left

    def _set_timers(self, done: Batch[Any], together: BatchCall, watermark: int) -> list[str]:
        """Set the timers that ``process_batch`` asked for; return the keys with one that this batch fires.

        Raises:
            _TimerInBatch: One fires before its key's next row.
        """
        soon = []
        for row, what, when, name in sorted(done.timers.asked, key=lambda asked: asked[0]):
            opened = together.opened_at(self._cursor, row)
            self._stand_at(together.rows[row], True)
            self._cursor.soonest = NEVER
            if what == "delete":
                self._ctx.timers.delete(name)
                continue
            getattr(self._ctx.timers, what)(when, name)
            first = self._soonest(opened.entry)
            if first <= watermark or (self._streams and first <= self._time.before):
                raise _TimerInBatch
            if first <= self._ahead:
                soon.append(together.keys[together.key_of[row]])
        return soon

    def _emissions_of(self, done: Batch[Any], together: BatchCall) -> list[Emissions]:
        made: list[Emissions] = []
        commons = [common_of(self._stored, key) for key in together.keys]
        for output, records, of in done.emitted:
            if output not in self._outputs:
                raise ProcessDefinitionError(f"{self._name} emits to '{output}', which it does not declare")
            payloads = list(map(self._encodes.get(output, self._encode), records))
            rows, key_of = together.rows, together.key_of
            indexes = None
            if of is not None:
                rows, key_of = [rows[place] for place in of], [key_of[place] for place in of]
                indexes = _numbered(of)
            causes, name = [row.cause for row in rows], self._outputs[output]
            ids = event_ids(map(commons.__getitem__, key_of), causes, name, indexes)
            keys = list(map(together.keys.__getitem__, key_of))
            times = [row.event_time for row in rows]
            made.append(Emissions(output, ids, keys, times, b"\x01" * len(rows), payloads))
        return made

    def run_bounded(self, store: EntryStore, rows: dict[str, list[Row]], bound_ms: int) -> None:
        """Run all rows of a bounded input, each key's from first to last, then let every timer fire.

        The watermark follows each key's own events, as it would if every event were a batch.

        Args:
            store: Where the entries are, empty.
            rows: Rows by key.
            bound_ms: How far the watermark stays behind the newest event, ms.
        """
        self._bound = bound_ms
        try:
            with _collector_paused():
                for key, of_key in rows.items():
                    self._run_key(store, key, in_order(of_key), NO_WATERMARK, tick=False)
        finally:
            self._bound = None
            self.controls.rest()

    def dead_letter(
        self,
        reason: Any,
        stage: Any,
        error: BaseException | str,
        raw: bytes | None,
        cause: str | None,
        *,
        key: str | None = None,
        event_time: int | None = None,
        headers: str | None = None,
        timer_cause: str | None = None,
        index: int = 0,
    ) -> None:
        """Put one event aside; ``timer_cause`` and ``index`` tell apart what has no position of its own."""
        topic, partition, offset = position(cause)
        kept = kept_of(headers)
        letter = DeadLetter(
            reason=reason,
            stage=stage,
            process=self._name,
            error=one_line(error) if isinstance(error, BaseException) else shortened(error),
            error_digest=error_digest(error) if isinstance(error, BaseException) else "",
            key=key,
            event_time_ms=event_time,
            topic=topic,
            partition=partition,
            offset=offset,
            value=raw if raw is None or self._inputs is None or stage == "broadcast" else unmarked(raw),
            headers=kept.headers,
            kafka_key=kept.key,
            timestamp_ms=kept.timestamp_ms,
        )
        root = cause or timer_cause
        identity = (
            None if root is None else make_event_id(self._stored, key or "", root, "dead_letters", index)
        )
        self.emissions.append(
            Emission("dead_letters", identity, key or "", event_time or 0, False, self._encode(letter))
        )

    # -- a key ---------------------------------------------------------------------------------

    def _run_key(
        self,
        store: EntryStore,
        key: str,
        rows: Sequence[Row],
        watermark: int,
        tick: bool,
        guard: _Guard | None = None,
    ) -> None:
        opened = store.open(key)
        of_all, own = watermark, None
        if self._keeps_time and self._bound is None:
            watermark, self._ahead, own = self._own_clock(key, opened.entry, watermark)
        if guard is None:
            guard = _Guard(store, opened, watermark)
            if self._paged:
                guard.parts = Parts(store, key)
        else:
            guard.watermark = watermark
        self._cursor.parts = guard.parts
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
                    self._run_all(guard, rows, self._bound)
                elif self._ahead > watermark or (self._streams and self._time.ahead > self._time.before):
                    self._run_twice(guard, rows, watermark, tick)
                else:
                    self._stream_now = self._time.before
                    if self._waits:
                        self._run_waiting(guard, rows, watermark, tick)
                    else:
                        self._run_arriving(guard, rows, watermark, tick)
                if own is not None:
                    self._keep_clock(*own)
            finally:
                self._is_ahead = False
                opened.entry = cursor.entry
                opened.expiry = cursor.min_expiry
                opened.processing_expiry = cursor.min_processing_expiry
                cursor.entry = None
            store.pack_entry(key, opened)
            if guard.parts is not None:
                guard.parts.pack()
            store.let_go(opened)
        except (StateCorrupted, ProcessDefinitionError):
            raise
        except Exception:
            if guard.packs:
                raise
            # A callback left what cannot be kept. Once more from the start: now the one is found that did.
            del self.emissions[mark:]
            packing = _PackingGuard(store, opened, guard, key, cursor)
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

    def _run_twice(self, guard: _Guard, rows: Sequence[Row], watermark: int, tick: bool) -> None:
        """Run a key's rows at the watermark that the batch begins with, then what waits for the next one."""
        ahead = self._ahead
        after: list[Row] = []
        if rows and rows[0].on_time is not None:
            after = [row for row in rows if row.is_ahead]
            rows = [row for row in rows if not row.is_ahead]
        soon: list[Row] = []
        self._stream_now = self._time.before
        if self._waits:
            soon = self._run_waiting(guard, rows, watermark, False)
        else:
            self._run_arriving(guard, rows, watermark, False)
        self._stream_now = self._time.ahead
        if not (self._waits or after or tick):
            cursor, due = self._cursor, max(ahead, self._stream_now) if self._streams else ahead
            if cursor.soonest > due and not cursor.entry.pending_:
                return  # as for nearly all keys: nothing waits for where the batch ends
        self._is_ahead = True
        self._ctx.watermark = ahead
        guard.log.append((ahead,))
        # The results of a tick have a time after all that this batch passes.
        if self._waits:
            self._run_waiting(guard, after, ahead, tick, soon)
        else:
            self._run_arriving(guard, after, ahead, tick)

    def _run_arriving(self, guard: _Guard, rows: Sequence[Row], watermark: int, tick: bool) -> None:
        """Run the rows of a process in arrival order, with the timers that are due."""
        cursor, in_order = self._cursor, self._in_order
        if cursor.entry.pending_:  # an earlier version took its events in order of time
            self._run_waiting(guard, (), watermark, False)
        from_source = not rows or rows[0].on_time is None
        due = max(watermark, self._stream_now) if self._streams else watermark
        if cursor.soonest <= due and from_source:
            self._fire(guard, watermark)
        self._have_at_hand(rows)
        if self._process_key is not None and len(rows) > 1 and _on_time(rows, watermark):
            rows = self._run_of_key(guard, rows, due)
        for row in rows:
            if cursor.soonest < row.event_time:
                if row.on_time is not None:
                    # It has the time of its cause: what was due before that goes before it.
                    self._fire(guard, watermark, row.event_time)
                if in_order and cursor.soonest < row.event_time:
                    self._fire_on_key_time(guard, row.event_time)
            on_time = row.on_time
            late = row.event_time <= watermark and not on_time
            self._handle_row(guard, row, late, not late if on_time is None else on_time)
            if from_source and cursor.soonest <= due:
                self._fire(guard, watermark)
        if cursor.soonest <= due:
            self._fire(guard, watermark)
        if tick:
            self._fire_processing(guard, watermark)

    def _run_of_key(self, guard: _Guard, rows: Sequence[Row], due: int) -> Sequence[Row]:
        """Let ``process_key`` handle the rows of a key, none of which is late.

        Args:
            guard: What undoes it.
            rows: Two or more rows, in order.
            due: Timers up to this, ms, fire between the rows.

        Returns:
            The rows that are to be handled one by one: none, or all.
        """
        cursor, process_key = self._cursor, self._process_key
        oldest, newest = rows[0].event_time, rows[-1].event_time
        if (
            process_key is None
            or guard.packs
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
            self._take_back(guard, mark)
            return [self._anew(row) for row in rows]
        guard.log += [(row, False, row.on_time is not False) for row in rows]
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

    def _fires_before(self, event_time: int, due: int) -> bool:
        """Return whether a timer fires before the key's event of a time (ms); some do up to ``due``."""
        cursor = self._cursor
        if self._waits:
            return cursor.soonest < event_time
        if cursor.soonest <= due:
            return True
        if cursor.soonest >= event_time:
            return False
        return self._in_order and any(t.on_key_time and t.at < event_time for t in cursor.entry.timers_)

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

    def _run_all(self, guard: _Guard, rows: Sequence[Row], bound_ms: int) -> None:
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
                self._fire(guard, due)
            if self._in_order and not self._waits and cursor.soonest < row.event_time:
                self._fire_on_key_time(guard, row.event_time)
            self._handle_row(guard, row, False, row.on_time is not False)
        ctx.watermark = ctx.stream_watermark = self._stream_now = END_OF_TIME
        if cursor.soonest <= END_OF_TIME:
            self._fire(guard, END_OF_TIME)

    def _run_waiting(
        self, guard: _Guard, rows: Sequence[Row], watermark: int, tick: bool, soon: Sequence[Row] = ()
    ) -> list[Row]:
        """Run what the watermark has passed in order of time, and keep the rest.

        At one time events go before timers: a timer at t stands for "all up to t has been seen".

        Args:
            guard: What undoes a callback.
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
        if guard.packs:
            came = waiting[before:]
            del waiting[before:]
            self._let_wait(guard, waiting, came)
        passed = [p for p in waiting if p.event_time <= watermark]
        if passed:
            waiting = [p for p in waiting if p.event_time > watermark]
            ready += filter(None, map(self._row_of, passed))
        if guard.packs:
            self._cursor.entry.pending_ = waiting
            guard.renew(self._cursor, watermark, self._key)
        if passed or soon:
            ready = in_order(ready)
        due = max(watermark, self._stream_now) if self._streams else watermark
        left_over: Sequence[Row] = ready
        self._have_at_hand(ready)
        if self._process_key is not None and len(ready) > 1:
            left_over = self._run_of_key(guard, ready, due)
        for row in left_over:
            if self._cursor.soonest < row.event_time:
                self._fire(guard, watermark, row.event_time)
            self._handle_row(guard, row, False, row.on_time is not False)
        if self._cursor.soonest <= due:
            self._fire(guard, watermark)
        if tick:
            self._fire_processing(guard, watermark)
        for row in late:
            self._handle_row(guard, row, True, False)
            if self._cursor.soonest <= due:
                self._fire(guard, watermark)
        self._cursor.entry.pending_ = waiting
        return left

    def _let_wait(self, guard: _Guard, waiting: list[PendingRow], rows: list[PendingRow]) -> None:
        """Let rows wait that came in this batch, but for those with which the entry could not be kept."""
        waiting += rows
        try:
            guard.renew(self._cursor, self._ctx.watermark, self._key)
        except Exception as error:
            del waiting[len(waiting) - len(rows) :]
            if len(rows) == 1:
                self._put_kept_aside(rows[0], "process_error", "process", error)
                return
            half = len(rows) // 2
            self._let_wait(guard, waiting, rows[:half])
            self._let_wait(guard, waiting, rows[half:])

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

    def _handle_row(self, guard: _Guard, row: Row, late: bool, on_time: bool) -> None:
        mark = len(self.emissions)
        try:
            self._call(row, late, on_time)
            guard.log.append((row, late, on_time))
        except (StateCorrupted, ProcessDefinitionError):
            raise  # the class is wrong, not the event: stop before the whole stream is put aside
        except Exception as error:
            self._take_back(guard, mark)
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

    def _fire(self, guard: _Guard, until: int, before: int = NEVER) -> None:
        """Fire what is due in order of time: by the process's clock up to ``until``, and by the stream's.

        Args:
            guard: What undoes a callback.
            until: The watermark, ms.
            before: Only timers before this, ms.
        """
        cursor, until = self._cursor, min(until, before - 1)
        last = until if until < END_OF_TIME else self._last_due()
        if not self._streams:
            while (timer := next_timer(cursor.entry.timers_, last)) is not None:
                self._handle_timer(guard, timer, "event_time")
        else:
            of_stream = last if until >= END_OF_TIME else min(self._stream_now, before - 1)
            while (found := self._next_timer(last, of_stream)) is not None:
                self._handle_timer(guard, *found)
        cursor.soonest = self._soonest(cursor.entry)
        if until >= END_OF_TIME >= cursor.soonest:
            self._leave_unfired(guard)

    def _next_timer(self, until: int, of_stream: int) -> tuple[TimerRecord, Domain] | None:
        """Return the next timer that is due by the process's clock, or by the stream's."""
        entry = self._cursor.entry
        own, other = next_timer(entry.timers_, until), next_timer(entry.stream_timers_, of_stream)
        if other is not None and (own is None or (other.at, other.name) < (own.at, own.name)):
            return other, "stream_time"
        return None if own is None else (own, "event_time")

    def _soonest(self, entry: Any) -> int:
        """Return when the first timer on event time is due, be it by the stream's clock."""
        first = soonest(entry.timers_) if entry.timers_ else NEVER
        return min(first, soonest(entry.stream_timers_)) if self._streams else first

    def _event_timers(self) -> list[TimerRecord]:
        entry = self._cursor.entry
        return [*entry.timers_, *entry.stream_timers_] if self._streams else entry.timers_

    def _last_due(self) -> int:
        """Return how far (ms) the time of a key goes on at the end of the input.

        Whatever is pending now has been set by the key's events, or by timers before the end.
        """
        cursor = self._cursor
        pending = [t.at for t in self._event_timers() if t.at <= END_OF_TIME]
        if not pending:
            return NO_WATERMARK
        cursor.now = min(pending)
        latest: int = max(pending)
        return min(max(latest, self.process.last_due(latest)), END_OF_TIME)

    def _leave_unfired(self, guard: _Guard) -> None:
        """Keep timers that are set for later than the end as what is never due, and say so."""
        for timer in self._event_timers():
            if timer.at <= END_OF_TIME:
                timer.at = NEVER
                if timer.name not in self.unfired:
                    log.warning("%s: its timer '%s' sets itself, or is set by timers, beyond the end of the "
                                "input, and does not fire any more (KeyedProcess.last_due says up to when "
                                "timers do)", self._name, timer.name)  # fmt: skip
                self.unfired[timer.name] += 1
        self._cursor.soonest = NEVER
        guard.renew(self._cursor, self._ctx.watermark, self._key)

    def _fire_processing(self, guard: _Guard, watermark: int) -> None:
        """Fire what is due at this tick; what is set meanwhile waits for the next one."""
        cursor = self._cursor
        if cursor.soonest_processing > cursor.processing_now:
            return
        due = [t for t in cursor.entry.processing_timers_ if t.at <= cursor.processing_now]
        for timer in sorted(due, key=lambda t: (t.at, t.name)):
            if timer in cursor.entry.processing_timers_:  # not deleted or moved by the one before
                self._handle_timer(guard, timer, "processing_time")
        cursor.soonest_processing = soonest(cursor.entry.processing_timers_)
        if cursor.soonest <= watermark or (self._streams and cursor.soonest <= self._stream_now):
            self._fire(guard, watermark)

    def _fire_on_key_time(self, guard: _Guard, event_time: int) -> None:
        """Fire timers that the key's own event passes, and what stands before them."""
        while True:
            timers = [t for t in self._cursor.entry.timers_ if t.on_key_time and t.at < event_time]
            timer = next_timer(timers, NEVER)
            if timer is None:
                break
            self._handle_timer(guard, timer, "event_time")
        self._cursor.soonest = self._soonest(self._cursor.entry)

    def _handle_timer(self, guard: _Guard, timer: TimerRecord, domain: Domain) -> None:
        mark = len(self.emissions)
        try:
            self._call_timer(timer, domain)
            guard.log.append((timer, domain))
        except (StateCorrupted, ProcessDefinitionError):
            raise
        except Exception as error:
            self._take_back(guard, mark)
            self._remove(timer, domain)
            guard.renew(self._cursor, self._ctx.watermark, self._key)
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

    def _take_back(self, guard: _Guard, mark: int) -> None:
        """Undo a failed callback: restore the last snapshot and repeat what succeeded since."""
        del self.emissions[mark:]
        cursor, watermark = self._cursor, self._ctx.watermark
        guard.restore(cursor)
        cursor.soonest = self._soonest(cursor.entry)
        self._ctx.watermark = guard.watermark
        self._muted = True
        try:
            for done in guard.log:
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
        guard.renew(cursor, watermark, self._key)

    def _anew(self, row: Row) -> Row:
        """Return a row with its event as it came, since a process may have changed it."""
        if self._decode is None or is_bare(row.raw):
            return row
        return msgspec.structs.replace(row, event=self._decode(row.raw))

    # -- what callbacks call -------------------------------------------------------------------

    def _emit_main(
        self, record: Any, *, on_time: bool | None = None, revision: int = 0, identity: str | None = None
    ) -> None:
        if identity is not None:
            self._emit("main", record, on_time, revision, identity)
            return
        if self._muted:
            return
        cause, index, key = self._cause, self._main, self._key
        self._main = index + 1
        found = None
        if cause is not None:
            found = event_id(self._common, cause, "main", index, revision)
        judged: int = self._on_time if on_time is None else on_time
        if self._is_ahead:
            judged |= IS_AHEAD
        made = ("main", found, key, self._ctx.event_time, judged, self._encode_main(record))
        self.emissions.append(made if self._by_columns else new_emission(made))  # type: ignore[arg-type]

    def _emit(
        self, output: str, record: Any, on_time: bool | None, revision: int, identity: str | None
    ) -> None:
        if identity is None and output == "main":
            self._emit_main(record, on_time=on_time, revision=revision)
            return
        if output not in self._outputs:
            raise ProcessDefinitionError(f"{self._name} emits to '{output}', which it does not declare")
        if self._muted:
            return
        cause, place = self._cause, output
        if identity is not None:
            cause = f"\x1eis:{identity}" if self._identify else None
            place = f"{output}\x1e{identity}\x1e{revision}"
        index = self._index.get(place, 0)
        self._index[place] = index + 1
        found = None
        if cause is not None:
            found = event_id(self._common, cause, self._outputs[output], index, revision)
        payload = self._encodes.get(output, self._encode)(record)
        at = self._ctx.event_time
        judged: int = self._on_time if on_time is None else on_time
        if self._is_ahead:
            judged |= IS_AHEAD
        made = (output, found, self._key, at, judged, payload)
        self.emissions.append(made if self._by_columns else new_emission(made))  # type: ignore[arg-type]

    def _reject(self, reason: Any, error: str) -> None:
        if self._row is None:
            raise ProcessDefinitionError(f"{self._name}: dead_letter() is for events, a timer has none")
        check_given(reason, error)
        if not self._muted:
            index = self._index.get("dead_letters", 0)
            self._index["dead_letters"] = index + 1
            self._put_aside(self._row, reason, error, index)

    def _put_aside(self, row: Row, reason: Any, error: BaseException | str, index: int = 0) -> None:
        self.dead_letter(
            reason,
            "process",
            error,
            json_of(row),
            row.cause,
            key=self._key,
            event_time=row.event_time,
            headers=row.headers,
            index=index,
        )

    def _put_control_aside(self, row: Row, error: Exception) -> None:
        self.dead_letter("process_error", "broadcast", error, row.raw, row.cause, headers=row.headers)

    def _put_kept_aside(self, row: PendingRow, reason: Any, stage: Any, error: BaseException) -> None:
        self.dead_letter(
            reason,
            stage,
            error,
            row.raw,
            row.cause,
            key=self._key,
            event_time=row.event_time,
            headers=row.headers,
        )

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


def _numbered(rows: Sequence[int]) -> list[int] | None:
    """Return the number of each record among those of its row; ``None``: it is the only one everywhere.

    >>> _numbered([1, 4, 1, 1]), _numbered([1, 4])
    ([0, 0, 1, 2], None)
    """
    if len(set(rows)) == len(rows):
        return None
    seen: Counter[int] = Counter()
    numbers = []
    for row in rows:
        numbers.append(seen[row])
        seen[row] += 1
    return numbers


class _TimerInBatch(Exception):
    """A timer that ``process_batch`` sets is due at once."""


class _TimerBetween(BaseException):
    """A timer is due between two events of a key: no process is to catch it."""


def _but_for(classes: Collection[type], encode: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return what leaves records of some classes as they are, and encodes the others."""
    left = frozenset(classes)

    def encode_others(record: Any) -> Any:
        return record if record.__class__ in left else encode(record)

    return encode_others


def _on_time(rows: Sequence[Row], watermark: int) -> bool:
    """Return whether none of a key's rows, in order, is late."""
    if rows[0].on_time is None:
        return rows[0].event_time > watermark
    return all(row.on_time or row.event_time > watermark for row in rows)


class _RunningContext(Context):
    """A context whose ``emit`` is the runner's own method: a call less for every record."""

    __slots__ = ("cause_of", "emit")

    cause_of: Callable[[], str | None]

    @property
    def cause(self) -> str | None:
        """Identity of the current event."""
        return self.cause_of()


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """Put off the search for reference cycles.

    A batch's entries and emissions stay until its end. The collector, which is called for every 700
    objects more, would look at them again and again and find nothing: a quarter of all time. What
    cycles a process makes are found after the batch.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class _Guard:
    """Lets a failed callback be undone at no cost to those that succeed.

    It keeps the entry's bytes as they were when the key's batch began and the callbacks that ran
    since. A process is deterministic, so restoring the bytes and running those callbacks again, with
    their outputs muted, gives the state just before the one that failed. The snapshot is renewed at
    each failure: no callback is repeated more than once.
    """

    __slots__ = (
        "_body", "_expiry", "_new", "_processing_expiry", "_store", "begun", "log", "parts", "watermark",
    )  # fmt: skip

    #: Whether what a callback leaves is packed at once.
    packs = False

    def __init__(self, store: EntryStore, opened: OpenEntry, watermark: int) -> None:
        self._store = store
        #: The watermark at which the snapshot was taken, ms.
        self.watermark = watermark
        #: The key's parts, where it has states that are paged.
        self.parts: Parts | None = None
        self._body: bytes | msgspec.Raw | None = None if opened.before is None else opened.before.body
        if opened.touched:  # the batch has run this key before
            self._body = opened.packed or None
            opened.packed = None
        self._new = type(opened.entry)
        self._expiry = opened.expiry
        self._processing_expiry = opened.processing_expiry
        #: Rows (with late, on time) and timers (with their clock) that were handled, and watermarks.
        self.log: list[tuple[Any, ...]] = []

    def first(self) -> tuple[bytes | msgspec.Raw | None, int, int]:
        """Return what the key began with: the packed entry, ``None`` for a new one, and its expiries."""
        found: tuple[bytes | msgspec.Raw | None, int, int] | None = getattr(self, "begun", None)
        return found or (self._body, self._expiry, self._processing_expiry)

    def restore(self, cursor: Cursor) -> None:
        entry = cursor.entry = self._new() if self._body is None else self._store.decode(self._body)
        cursor.min_expiry, cursor.min_processing_expiry = self._expiry, self._processing_expiry
        cursor.soonest_processing = soonest(entry.processing_timers_)
        if self.parts is not None:
            self.parts.restore()

    def renew(self, cursor: Cursor, watermark: int, key: str) -> None:
        """Take the snapshot anew.

        Raises:
            StateTypeError: The entry could not be packed, or not be read back.
            EntryTooLarge: It is beyond the limit.
        """
        body = self._store.encode(cursor.entry)
        self._store.check(body, key)
        if self.parts is not None:
            self.parts.renew()
        self.begun = self.first()
        self.watermark, self._body = watermark, body
        self._expiry, self._processing_expiry = cursor.min_expiry, cursor.min_processing_expiry
        self.log.clear()


class _PackingGuard(_Guard):
    """Finds the callback that leaves what cannot be kept: it packs the entry after each.

    It costs what packing costs, so it is for the keys alone of which a batch could not be kept.

    Args:
        store: Where the entries are.
        opened: The key's entry, which is taken back to how it was when the key's batch began.
        before: The guard of the run that failed.
        key: The key.
        cursor: Where the entry is while it is worked on.
    """

    __slots__ = ()
    packs = True

    def __init__(
        self, store: EntryStore, opened: OpenEntry, before: _Guard, key: str, cursor: Cursor
    ) -> None:
        body, opened.expiry, opened.processing_expiry = before.first()
        opened.entry = type(opened.entry)() if body is None else store.decode(body)
        opened.packed = None
        super().__init__(store, opened, before.watermark)
        self._body = body
        self.parts = before.parts
        if self.parts is not None:
            self.parts.restore(to_the_beginning=True)
        self.log = _PackingLog(lambda: self.renew(cursor, self.watermark, key))


class _PackingLog(list[tuple[Any, ...]]):
    """Keeps nothing: what was handled is in the snapshot, which is taken anew."""

    def __init__(self, renew: Callable[[], None]) -> None:
        super().__init__()
        self._renew = renew

    def append(self, _handled: tuple[Any, ...]) -> None:
        self._renew()


def _timer_cause(timer: TimerRecord, domain: Domain) -> str | None:
    """Return what a timer is: text that no event of a source is called by."""
    if timer.again == _UNKNOWN:
        return None
    return f"\x1e{_CLOCKS[domain]}:{timer.at}:{timer.again:x}:{timer.name}"
