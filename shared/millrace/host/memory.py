"""The in-memory host: a process at work in milliseconds, with no engine.

It runs the same :class:`~millrace.host.runner.Runner` as Spark does, over entries that are packed
and unpacked in the same way, so that what a test sees here is what the cluster does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from millrace.dead_letters import NOT_JSON
from millrace.host.groups import encode_key
from millrace.host.rows import IS_AHEAD
from millrace.host.runner import Emission, Row, Runner, StreamTime
from millrace.inputs import event_decoder, event_encoder
from millrace.object_reuse import checked_encoder
from millrace.process import Key, KeyedProcess, ProcessDefinitionError, order_of
from millrace.state.backend import GroupBackend
from millrace.state.cells import Cell
from millrace.state.layout import EntryLayout
from millrace.state.page import Page
from millrace.state.pages import PagedStore, PageInfo
from millrace.time import END_OF_TIME, NEVER, NO_WATERMARK, less

#: Key, event time (ms), event, and the input where the event's type does not tell.
Event = tuple[Key, int, Any] | tuple[Key, int, Any, str | None]


class _Memory:
    """A key group's bytes in memory."""

    def __init__(self, header: bytes | None = None, pages: dict[int, bytes] | None = None) -> None:
        self.header = header
        self.pages = dict(pages or {})

    def get_header(self) -> bytes | None:
        return self.header

    def put_header(self, header: bytes) -> None:
        self.header = header

    def get_page(self, page: int) -> bytes:
        return self.pages[page]

    def get_pages(self, pages: Sequence[int]) -> list[bytes]:
        return [self.pages[page] for page in pages]

    def put_page(self, page: int, data: bytes) -> None:
        self.pages[page] = data

    def delete_page(self, page: int) -> None:
        self.pages.pop(page, None)

    def clear(self) -> None:
        self.header = None


class LiveStore(PagedStore):
    """The entries of all keys as one page that lives on from batch to batch and is packed on demand.

    Args:
        layout: How entries are packed.
        backend: What was packed, of an earlier store.
    """

    def __init__(self, layout: EntryLayout, backend: GroupBackend | None = None) -> None:
        self._memory = backend or _Memory()
        super().__init__(self._memory, layout)
        self._page = self._load(self._header.pages[0])

    @property
    def cells(self) -> dict[str, Cell]:
        """The packed entries by key."""
        return self._page.cells

    def pack(self) -> GroupBackend:
        """Pack everything as it would stand in a checkpoint."""
        super()._write_header(self._header.pages)
        return self._memory

    def _write_pages(self, dirty: list[Page]) -> list[PageInfo]:
        for page in dirty:
            page.settle()
        return self._header.pages

    def _write_header(self, pages: list[PageInfo]) -> None:
        pass


class MemoryHost:
    """Runs one process over batches of events that are handed to it.

    Args:
        process: The process to run.
        out_of_orderness_ms: Bound by which the watermark stays behind the newest event, ms.
        records: Leave payloads as the records themselves, not as JSON, and give them no identities: for
            back-tests, which want the results and want them fast. Events and records must not be changed
            after they are handed over.

    Example:
        >>> from millrace import KeyedProcess, arrival, value_state
        >>> class Count(KeyedProcess[str, int]):
        ...     order = arrival(commutes=True)
        ...     n = value_state(int, default=0)
        ...     def process(self, event, ctx):
        ...         self.n.value += 1
        ...         ctx.emit(self.n.value)
        >>> host = MemoryHost(Count())
        >>> [e.payload for e in host.run_batch([("a", 1, "x"), ("a", 2, "y")])]
        [b'1', b'2']
    """

    def __init__(
        self, process: KeyedProcess[Any, Any], *, out_of_orderness_ms: int = 0, records: bool = False
    ) -> None:
        self._records = records
        #: Makes an event from its JSON.
        self.decode = event_decoder(process)
        self._encode = event_encoder(process)
        self._marks = bool(process.inputs)
        encode: Callable[[Any], Any] = _as_it_is if records else msgspec.json.encode
        if process.object_reuse and not records:
            encode = checked_encoder(process.name)
        self.runner = Runner(process, encode=encode, decode=self.decode, identify=not records)
        self.store = LiveStore(self.runner.layout)
        self.watermark = self._passed = NO_WATERMARK
        self.processing_time = NO_WATERMARK
        self._bound = out_of_orderness_ms
        #: The newest event time that has come, ms.
        self.newest = NO_WATERMARK
        self._sequence = 0
        self._broadcast: bytes | None = None
        order = order_of(process)
        self._keeps_time = order.by_key
        #: How far behind the watermark the process is, ms: its patience, or that of the first of its chain.
        self.lag_ms = self.runner.layout.lag_ms = order.patience_ms
        #: How far the process had come when it was less behind, ms.
        self._floor = NO_WATERMARK

    def run_batch(self, events: Iterable[Event]) -> list[Emission]:
        """Run one batch, then advance the watermark and fire what is due.

        Args:
            events: Tuples of key, event time (ms) and event, for a process with several inputs also the
                name of the event's input (``None``, or left out: its type tells).

        Returns:
            What was emitted, in order per key.

        Raises:
            InputError: An event's input is not known.
        """
        rows = self.rows_of(events)
        newest = self.newest
        if self._keeps_time:
            return self.run_rows(rows, to=less(newest, self._bound + 1))
        self.step(rows)
        if newest - self._bound - 1 > self.watermark and newest != NO_WATERMARK:
            return self.take() + self.advance_watermark(newest - self._bound - 1)
        return self.take()

    def rows_of(self, events: Iterable[Event]) -> dict[str, list[Row]]:
        """Return the rows of events by their key's text, and take note of the newest event time.

        Args:
            events: As :meth:`run_batch` takes them.

        Raises:
            InputError: An event's input is not known.
        """
        newest, sequence, bare = self.newest, self._sequence, self._records
        encode, reuses = self._encode, self.runner.process.object_reuse
        by_key: dict[Key, list[Row]] = {}
        for key, event_time, event, *named in events:
            if bare and not self._marks:
                row = Row(event_time, b"", None, event)
            else:
                cause = None if bare else f"memory:0:{sequence}"
                sequence += 1
                try:
                    raw = encode(event, *named)
                    row = Row(event_time, raw, cause, self._as_read(raw, event) if reuses else event)
                except (UnicodeEncodeError, RecursionError) as error:  # no JSON text could say it
                    raw = ascii(event).encode()
                    self.runner.dead_letter("malformed", "decode", error, raw, cause, event_time=event_time)
                    continue
            of_key = by_key.get(key)
            if of_key is None:
                by_key[key] = [row]
            else:
                of_key.append(row)
            if event_time > newest:
                newest = event_time
        self._sequence, self.newest = sequence, newest
        return {encode_key((k,) if isinstance(k, str) else tuple(k)): rows for k, rows in by_key.items()}

    def _as_read(self, raw: bytes, event: Any) -> Any:
        """Return an event as its source gives it, with a float where one is declared; or as it is."""
        try:
            return self.decode(raw)
        except NOT_JSON:
            return event

    def follow(self, before: MemoryHost) -> None:
        """Be as far behind the watermark as the process before it in a chain."""
        self.lag_ms = self.runner.layout.lag_ms = before.lag_ms

    def run_rows(
        self,
        rows: dict[str, list[Row]],
        *,
        to: int = NO_WATERMARK,
        newest: Mapping[str, int] | None = None,
        reach: int = NEVER,
    ) -> list[Emission]:
        """Run one batch of rows at the watermark as it stands, which then moves.

        Args:
            rows: Key text → rows.
            to: The watermark at the batch's end (ms; it never goes back).
            newest: Where keys have clocks of their own: what these go by, the newest plausible time (ms) of
                each key in the batch; ``None``: that of its rows.
            reach: Up to where a backlog lets them come, ms; ``NEVER``: it does not hold them.
        """
        self.move(rows, to, newest, reach)
        return self.take()

    def run_bounded(self, events: Iterable[Event]) -> list[Emission]:
        """Run a bounded input, whose events are all there, to the end of its timers: nothing is late."""
        self.runner.controls.load(None)
        self.runner.run_bounded(self.store, self.rows_of(events), self._bound)
        return self.take()

    def move(
        self, rows: dict[str, list[Row]], to: int, newest: Mapping[str, int] | None = None, reach: int = NEVER
    ) -> None:
        """Run a batch as :meth:`run_rows` does; :meth:`taken` has what it emits."""
        before, self.watermark = self.watermark, max(self.watermark, to)
        if newest is None and self._keeps_time:
            newest = {key: max(row.event_time for row in of_key) for key, of_key in rows.items()}
        self.step(rows, StreamTime(before, self.watermark, reach, self._bound, newest or {}))

    def advance_watermark(self, to: int) -> list[Emission]:
        """Move the watermark to ``to`` (ms; it never goes back) and fire the timers it passes."""
        return self.run_rows({}, to=to)

    def advance_processing_time(self, to: int) -> list[Emission]:
        """Bring a tick: processing time is ``to`` (ms; it never goes back), and its timers fire.

        Raises:
            ProcessDefinitionError: The process does not say that it uses processing time.
        """
        process = self.runner.process
        if not process.needs_ticks():
            raise ProcessDefinitionError(
                f"{process.name} does not use processing time: set `processing_time = True` in the class"
            )
        self.processing_time = max(self.processing_time, to)
        self.step({}, tick=True)
        return self.take()

    def drain(self) -> list[Emission]:
        """End a bounded input: the watermark moves to the end of time, and all timers fire.

        Those that a timer sets then fire up to :meth:`KeyedProcess.last_due`; ``runner.unfired`` counts the
        others by name.
        """
        return self.advance_watermark(END_OF_TIME)

    def broadcast(self, *controls: Any, at: int | None = None) -> list[Emission]:
        """Bring control events to every key.

        Args:
            controls: The events.
            at: The event time (ms) from which on they hold, for a process in event-time order; ``None``: now.
        """
        when = NO_WATERMARK if at is None else at
        rows = [
            Row(when, msgspec.json.encode(c), f"control:0:{self._sequence + i}", c)
            for i, c in enumerate(controls)
        ]
        self._sequence += len(controls)
        changed = self.runner.controls.take(rows, self._broadcast, self._own(self.watermark), report=True)
        self._broadcast = self._broadcast if changed is None else changed
        return self.take()

    def take(self) -> list[Emission]:
        """Return and forget what was emitted since the last call."""
        # Whether time was on its way is for the next process alone.
        return [e._replace(on_time=bool(e.on_time & 1)) if e.on_time & IS_AHEAD else e for e in self.taken()]

    def taken(self) -> list[Emission]:
        """Return and forget what was emitted, with whether time was on its way."""
        taken, self.runner.emissions = self.runner.emissions, []
        return taken

    def snapshot(self) -> bytes:
        """Return everything that is kept, packed; :meth:`restore` on a new host goes on from it."""
        memory = self.store.pack()
        return msgspec.msgpack.encode(
            _Snapshot(
                (memory.header, memory.pages),  # type: ignore[attr-defined]
                self.watermark,
                self.newest,
                self._sequence,
                self._broadcast,
                self.processing_time,
                self.lag_ms,
                self._own(self.watermark),
            )
        )

    def restore(self, snapshot: bytes) -> None:
        """Go on from a :meth:`snapshot`, also of an earlier version of the process.

        Where that was less behind the watermark, the process does not go back: it waits for the watermark.
        """
        kept = _snapshot.decode(snapshot)
        self.watermark = self._passed = kept.watermark
        self.newest, self._sequence, self._broadcast = kept.newest, kept.sequence, kept.broadcast
        self.processing_time, self._floor = kept.processing_time, kept.own
        self.store = LiveStore(self.runner.layout, _Memory(*kept.stored))
        if kept.lag_ms != self.lag_ms:
            self.store.tell_again()

    def _own(self, watermark: int) -> int:
        """Return how far the process is (ms) where the stream is at a watermark (ms)."""
        return max(self._floor, less(watermark, self.lag_ms))

    def step(self, rows: dict[str, list[Row]], time: StreamTime | None = None, *, tick: bool = False) -> None:
        """Run a batch; :meth:`taken` has what it emits.

        Args:
            rows: Key text → rows.
            time: From where to where the stream's time goes; ``None``: it stands still.
            tick: Whether a tick has come.
        """
        self.runner.controls.load(self._broadcast)
        before, self._passed = self._passed, self.watermark
        time = StreamTime(self.watermark, self.watermark) if time is None else time
        # Moved at once, time goes in one step; keys with clocks of their own move with their rows.
        begin = time.before if rows or self._keeps_time else time.ahead
        self._run(
            rows,
            self._own(begin),
            ahead=self._own(time.ahead),
            passed=self._own(before),
            time=time._replace(before=begin),
            tick=tick,
        )
        changed = self.runner.controls.pass_(self._broadcast, self._own(time.ahead), report=True)
        self._broadcast = self._broadcast if changed is None else changed

    def _run(self, rows: dict[str, list[Row]], watermark: int, *, ahead: int, **more: Any) -> None:
        """Run a batch from one watermark of the process to another, and keep what it leaves."""
        now = self.processing_time
        self.runner.run_batch(self.store, rows, watermark, now, ahead=ahead, **more)
        self.store.commit(ahead, now)


def _as_it_is(record: Any) -> Any:
    return record


class _Snapshot(msgspec.Struct, array_like=True):
    """What a host keeps: its store's header and pages, and its clocks."""

    stored: tuple[bytes | None, dict[int, bytes]]
    watermark: int
    newest: int
    sequence: int
    broadcast: bytes | None
    processing_time: int
    lag_ms: int = 0
    own: int = NO_WATERMARK


_snapshot = msgspec.msgpack.Decoder(_Snapshot)
