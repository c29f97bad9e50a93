"""The meaning of a process: how rows, timers and the watermark of one batch run through it.

Both hosts use this one runner; they differ in where rows come from and where entries are kept. For
each key it fires the timers that the watermark has passed, then takes the rows in order of event
time, each followed by timers that it set in the past. A callback is atomic: if it raises, its
outputs are taken back, its state is restored, and the event goes to the dead letters.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import hashlib
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from millrace.dead_letters import DeadLetter, error_digest, one_line, position, readable_headers
from millrace.host.groups import decode_key
from millrace.process import (
    BroadcastContext,
    Context,
    KeyedProcess,
    ProcessDefinitionError,
    Timer,
    Timers,
    check_process,
    next_timer,
    soonest,
)
from millrace.state.handles import BroadcastState, Cursor, MapState, ValueState
from millrace.state.layout import BroadcastLayout, EntryLayout, TimerRecord
from millrace.state.pages import OpenEntry, StateCorrupted
from millrace.time import NEVER

_HANDLES: dict[str, Any] = {"value": ValueState, "map": MapState, "broadcast": BroadcastState}


class Row(msgspec.Struct, frozen=True, gc=False):
    """One event of a batch.

    Attributes:
        event_time: Event time, ms.
        raw: Original bytes: they break ties between events of one time, stand in dead letters, and
            make the event anew after a failure, since a process may keep and change the event itself.
        cause: The event's identity in its source, or ``None``.
        event: The decoded event.
        headers: Original headers as JSON text, for dead letters.
    """

    event_time: int
    raw: bytes
    cause: str | None
    event: Any
    headers: str | None = None


class Emission(NamedTuple):
    """One record that a process emitted.

    Attributes:
        output: Name of the output.
        event_id: Identity of the record, the same when the batch is run again; ``None`` where the
            source names no identity of its events.
        key: The key's text.
        event_time: Time of its cause, ms.
        on_time: False for what a late event caused.
        payload: The record as the host's encoder left it.
    """

    output: str
    event_id: str | None
    key: str
    event_time: int
    on_time: bool
    payload: Any


class EntryStore(Protocol):
    """Where a batch finds and leaves the entries of its keys."""

    def open(self, key: str) -> OpenEntry:
        """Return the entry of a key, a new one where there is none."""

    def decode(self, body: bytes | msgspec.Raw) -> Any:
        """Unpack an entry."""

    def encode(self, entry: Any) -> bytes:
        """Pack an entry."""

    def due(self, watermark: int) -> list[str]:
        """Return the keys with a timer at or before ``watermark``."""


# As Emission(...), which goes through a function in Python: one is made for every event.
_new_emission: Final[Callable[[tuple[Any, ...]], Emission]] = functools.partial(tuple.__new__, Emission)


def make_event_id(process: str, key: str, cause: str, output: str, index: int) -> str:
    """Return the identity of an output record: 32 hexadecimal digits."""
    return _event_id(_identities(process, key), cause, output, index)


def _identities(process: str, key: str) -> Any:
    """Return a hash of what the identities of one key have in common, for :func:`_event_id` to copy."""
    return hashlib.blake2b(f"{process}\x1f{key}\x1f".encode(), digest_size=16)


def _event_id(identities: Any, cause: str, output: str, index: int) -> str:
    identity = identities.copy()
    identity.update(f"{cause}\x1f{output}\x1f{index}".encode())
    return identity.hexdigest()  # type: ignore[no-any-return]


class Runner:
    """Runs one process.

    Args:
        process: The process; it is copied, so the caller's object stays as it is.
        encode: Makes the payload of an emission from the emitted record, at once: what a process
            does to the record afterwards no longer shows.
        decode: Makes an event from the original bytes of its row; ``None`` where rows have none and
            events do not change.
    """

    def __init__(
        self,
        process: KeyedProcess[Any, Any],
        *,
        encode: Callable[[Any], Any],
        decode: Callable[[Any], Any] | None = None,
    ) -> None:
        check_process(process)
        self.process = copy.copy(process)
        self.layout = EntryLayout(process.states, owner=process.name)
        self.broadcast_layout = BroadcastLayout(process.states)
        self.emissions: list[Emission] = []
        self._encode = encode
        self._decode = decode
        self._cursor = Cursor()
        for spec in process.states:
            self.process.__dict__[spec.name] = _HANDLES[spec.kind](self._cursor, spec)
        timers = Timers(self._cursor, process.order)
        timers._origin = self._origin
        self._ctx = Context(timers, self._emit, self._reject)
        self._broadcast_ctx = BroadcastContext()
        self._outputs = {"main", "late", *(tag.name for tag in process.side_outputs)}
        self._in_order = process.order.in_order_per_key
        self._name = process.name
        # The state of the callback that is running.
        self._key = ""
        self._identities = _identities(self._name, "")
        self._row: Row | None = None
        self._cause: str | None = None
        self._on_time = True
        self._index: dict[str, int] = {}
        self._muted = False

    # -- a batch -------------------------------------------------------------------------------

    def run_batch(self, store: EntryStore, rows: dict[str, list[Row]], watermark: int) -> None:
        """Run the rows of one batch (key text → rows) and all timers due at ``watermark``."""
        due = store.due(watermark)
        with _collector_paused():
            for key, of_key in rows.items():
                self._run_key(store, key, in_order(of_key), watermark)
            for key in due:
                if key not in rows:
                    self._run_key(store, key, (), watermark)

    def load_broadcast(self, stored: bytes | None) -> None:
        """Make the kept broadcast state readable in callbacks."""
        self._cursor.broadcast = self.broadcast_layout.decode(stored)

    def run_broadcast(
        self, rows: Iterable[Row], stored: bytes | None, watermark: int, *, report: bool
    ) -> bytes | None:
        """Apply control events in order; return the broadcast state to keep, ``None`` if unchanged.

        Args:
            rows: Control events of this batch.
            stored: The packed broadcast state as it was kept.
            watermark: The batch's watermark, ms.
            report: Whether this group reports failing control events (all groups see the same ones,
                one of them speaks).
        """
        cursor = self._cursor
        self.load_broadcast(stored)
        self._broadcast_ctx.watermark = watermark
        changed = False
        for row in rows:
            before = self.broadcast_layout.encode(cursor.broadcast)
            cursor.broadcast_writable = True
            try:
                self.process.process_broadcast(row.event, self._broadcast_ctx)
                changed = True
            except ProcessDefinitionError:
                raise
            except Exception as error:
                cursor.broadcast = self.broadcast_layout.decode(before)
                if report:
                    self.dead_letter(
                        "process_error", "broadcast", error, row.raw, row.cause, headers=row.headers
                    )
            finally:
                cursor.broadcast_writable = False
        return self.broadcast_layout.encode(cursor.broadcast) if changed else None

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
        letter = DeadLetter(
            reason=reason,
            stage=stage,
            process=self._name,
            error=one_line(error) if isinstance(error, BaseException) else error,
            error_digest=error_digest(error) if isinstance(error, BaseException) else "",
            key=key,
            event_time_ms=event_time,
            topic=topic,
            partition=partition,
            offset=offset,
            value=raw,
            headers=readable_headers(headers),
        )
        root = cause or timer_cause
        identity = None if root is None else make_event_id(self._name, key or "", root, "dead_letters", index)
        self.emissions.append(
            Emission("dead_letters", identity, key or "", event_time or 0, False, self._encode(letter))
        )

    # -- a key ---------------------------------------------------------------------------------

    def _run_key(self, store: EntryStore, key: str, rows: Sequence[Row], watermark: int) -> None:
        opened = store.open(key)
        guard = _Guard(store, opened)
        cursor, ctx = self._cursor, self._ctx
        cursor.entry = opened.entry
        cursor.min_expiry = opened.expiry
        cursor.soonest = soonest(opened.entry.timers_)
        self._key = key
        self._identities = _identities(self._name, key)
        ctx.key = context_key(key)
        ctx.watermark = watermark
        in_order = self._in_order
        try:
            if cursor.soonest <= watermark:
                self._fire(guard, watermark)
            for row in rows:
                if in_order and cursor.soonest < row.event_time:
                    self._fire_on_key_time(guard, row.event_time)
                mark = len(self.emissions)
                try:
                    self._call(row)
                except (StateCorrupted, ProcessDefinitionError):
                    raise  # the class is wrong, not the event: stop before the whole stream is put aside
                except Exception as error:
                    self._take_back(guard, mark)
                    self._put_aside(row, "process_error", error)
                else:
                    guard.log.append(row)
                if cursor.soonest <= watermark:
                    self._fire(guard, watermark)
        finally:
            opened.entry = cursor.entry
            opened.expiry = cursor.min_expiry
            cursor.entry = None

    def _call(self, row: Row) -> None:
        ctx = self._ctx
        self._cursor.now = ctx.event_time = row.event_time
        self._row = row
        self._cause = row.cause
        self._index = {}
        if row.event_time <= ctx.watermark:
            self._on_time = False
            self.process.on_late(row.event, ctx)
        else:
            self._on_time = True
            self.process.process(row.event, ctx)

    def _fire(self, guard: _Guard, watermark: int) -> None:
        cursor = self._cursor
        while (timer := next_timer(cursor.entry.timers_, watermark)) is not None:
            self._handle_timer(guard, timer)
        cursor.soonest = soonest(cursor.entry.timers_)

    def _fire_on_key_time(self, guard: _Guard, event_time: int) -> None:
        while True:
            timers = [t for t in self._cursor.entry.timers_ if t.on_key_time and t.at < event_time]
            timer = next_timer(timers, NEVER)
            if timer is None:
                break
            self._handle_timer(guard, timer)
        self._cursor.soonest = soonest(self._cursor.entry.timers_)

    def _handle_timer(self, guard: _Guard, timer: TimerRecord) -> None:
        mark = len(self.emissions)
        try:
            self._call_timer(timer)
        except (StateCorrupted, ProcessDefinitionError):
            raise
        except Exception as error:
            self._take_back(guard, mark)
            self._remove(timer)
            guard.renew(self._cursor.entry, self._cursor.min_expiry)
            self.dead_letter(
                "process_error",
                "timer",
                error,
                _json({"timer": timer.name, "at": timer.at}),
                None,
                key=self._key,
                event_time=timer.at,
                timer_cause=_timer_cause(timer),
            )
        else:
            guard.log.append(timer)

    def _call_timer(self, timer: TimerRecord) -> None:
        self._remove(timer)
        ctx = self._ctx
        self._cursor.now = ctx.event_time = timer.at
        self._row = None
        self._cause = _timer_cause(timer)
        self._index = {}
        self._on_time = True
        self.process.on_timer(Timer(timer.at, timer.name), ctx)

    def _remove(self, timer: TimerRecord) -> None:
        timers = self._cursor.entry.timers_
        timers[:] = [t for t in timers if t.name != timer.name]

    def _take_back(self, guard: _Guard, mark: int) -> None:
        """Undo a failed callback: restore the last snapshot and repeat what succeeded since."""
        del self.emissions[mark:]
        cursor = self._cursor
        cursor.entry, cursor.min_expiry = guard.restore()
        cursor.soonest = soonest(cursor.entry.timers_)
        self._muted = True
        try:
            for done in guard.log:
                if isinstance(done, Row):
                    self._call(done if self._decode is None else _renewed(done, self._decode(done.raw)))
                else:
                    self._call_timer(done)
        finally:
            self._muted = False
        guard.renew(cursor.entry, cursor.min_expiry)

    # -- what callbacks call -------------------------------------------------------------------

    def _emit(self, output: str, record: Any) -> None:
        if output not in self._outputs:
            raise ProcessDefinitionError(f"{self._name} emits to '{output}', which it does not declare")
        if self._muted:
            return
        index = self._index.get(output, 0)
        self._index[output] = index + 1
        cause = self._cause
        identity = None if cause is None else _event_id(self._identities, cause, output, index)
        payload = self._encode(record)
        self.emissions.append(
            _new_emission((output, identity, self._key, self._ctx.event_time, self._on_time, payload))
        )

    def _reject(self, reason: Any, error: str) -> None:
        if self._row is None:
            raise ProcessDefinitionError(f"{self._name}: dead_letter() is for events, a timer has none")
        if not self._muted:
            index = self._index.get("dead_letters", 0)
            self._index["dead_letters"] = index + 1
            self._put_aside(self._row, reason, error, index)

    def _put_aside(self, row: Row, reason: Any, error: BaseException | str, index: int = 0) -> None:
        self.dead_letter(
            reason,
            "process",
            error,
            row.raw or _json(row.event),
            row.cause,
            key=self._key,
            event_time=row.event_time,
            headers=row.headers,
            index=index,
        )

    def _origin(self) -> int:
        if self._cause is None:
            return 0
        return int.from_bytes(hashlib.blake2b(self._cause.encode(), digest_size=7).digest(), "big")


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

    __slots__ = ("_body", "_expiry", "_new", "_store", "log")

    def __init__(self, store: EntryStore, opened: OpenEntry) -> None:
        self._store = store
        self._body: bytes | msgspec.Raw | None = None if opened.before is None else opened.before.body
        self._new = type(opened.entry)
        self._expiry = opened.expiry
        self.log: list[Row | TimerRecord] = []

    def restore(self) -> tuple[Any, int]:
        entry = self._new() if self._body is None else self._store.decode(self._body)
        return entry, self._expiry

    def renew(self, entry: Any, expiry: int) -> None:
        self._body = self._store.encode(entry)
        self._expiry = expiry
        self.log = []


def in_order(rows: list[Row]) -> list[Row]:
    """Return the rows of a key by event time; ties by payload bytes, then by position in the source."""
    if len(rows) == 1:
        return rows
    if len({row.event_time for row in rows}) == len(rows):
        return sorted(rows, key=_time)
    return sorted(rows, key=lambda r: (r.event_time, r.raw or _json(r.event), cause_order(r.cause)))


def cause_order(cause: str | None) -> tuple[str, int, int, str]:
    """Return what sorts identities by topic, partition and offset; others by their text.

    As text, offset 1000 is before 999, and a repeat before what it repeats: which of the two is taken
    would hang on whether one batch has both.

    >>> sorted(["in:0:1000", "in:0:999"], key=cause_order)
    ['in:0:999', 'in:0:1000']
    """
    topic, partition, offset = position(cause)
    return topic or "", partition or 0, offset or 0, cause or ""


_time = operator.attrgetter("event_time")


def _renewed(row: Row, event: Any) -> Row:
    return msgspec.structs.replace(row, event=event)


def _json(value: Any) -> bytes:
    return msgspec.json.encode(value, enc_hook=str)  # the text of whatever JSON does not know


def _timer_cause(timer: TimerRecord) -> str | None:
    return f"timer:{timer.name}:{timer.at}:{timer.origin:x}" if timer.origin else None


def context_key(text: str) -> Any:
    """Return what a process sees as its key: the one part as a string, several as a tuple."""
    parts = decode_key(text)
    return parts[0] if len(parts) == 1 else parts
