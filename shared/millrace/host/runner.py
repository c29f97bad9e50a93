"""The meaning of a process: how rows, timers and the clocks of one batch run through it.

Both hosts use this one runner; they differ in where rows come from and where entries are kept. It stands on
four floors, each of which knows only those below: :mod:`~millrace.host.collector` (what is emitted),
:mod:`~millrace.host.callbacks` (a callback, which is atomic: if it raises, its outputs are taken back, its
state is restored, and the event goes to the dead letters), :mod:`~millrace.host.timer_service` (which timers
fire) and :mod:`~millrace.host.key_runner` (a key's rows between its timers). They are classes that extend one
another and not objects that call one another, since each of these calls would be one more for every event.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from millrace.batch import Batch
from millrace.host.batch_call import BatchCall, Lives, split_batch
from millrace.host.garbage_collection import collector_paused
from millrace.host.groups import context_key
from millrace.host.key_runner import KeyRunner, StreamTime
from millrace.host.rows import (
    Emission,
    Emissions,
    Row,
    cause_order,
    common_of,
    event_ids,
    in_order,
    make_event_id,
)
from millrace.process import KeyedProcess, ProcessDefinitionError, check_process
from millrace.state.entry_store import EntryStore
from millrace.state.pages import StateCorrupted
from millrace.time import NEVER, NO_WATERMARK

__all__ = [
    "Emission", "Row", "Runner", "StreamTime", "cause_order", "context_key", "in_order",
    "make_event_id",
]  # fmt: skip


class Runner(KeyRunner):
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
        super().__init__(
            process, encode=encode, decode=decode, identify=identify, bare=bare, by_columns=by_columns
        )
        self._batched = type(process).process_batch is not KeyedProcess.process_batch
        if self._batched and self._waits:
            raise ProcessDefinitionError(f"{process.name}: process_batch is for processes in arrival order")
        self._lives = Lives(process.states)

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
        with collector_paused():
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
            with collector_paused():
                for key, of_key in rows.items():
                    self._run_key(store, key, in_order(of_key), NO_WATERMARK, tick=False)
        finally:
            self._bound = None
            self.controls.rest()


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
