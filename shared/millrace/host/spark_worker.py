"""The Spark host's worker side: one key group's rows in, emissions out."""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark import TaskContext
from pyspark.sql import Row as SparkRow
from pyspark.sql import types as t
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from millrace.host.chunks import (
    FORWARDED,
    WATERMARK,
    decode_input,
    encode_columns,
    encode_emissions,
    encode_forwarded,
    encode_status,
)
from millrace.host.intake import Brought, Intake, JsonEvents, control_order, moved
from millrace.host.memory import LiveStore
from millrace.host.packing import keep_out_of_collection
from millrace.host.runner import Runner, StreamTime
from millrace.host.spark_clock import BatchClock
from millrace.host.spark_state import StateClient
from millrace.process import KeyedProcess
from millrace.state.cells import CLOCK_PAGE, encode, read_clock
from millrace.state.envelope import EnvelopeBackend
from millrace.state.keyring import KeyReference
from millrace.state.pages import PagedStore
from millrace.time import END_OF_TIME, NO_WATERMARK
from millrace.time.clock import ClockState

if TYPE_CHECKING:
    import pyarrow as pa

#: What the state operator gives: an output, how many records of it, and these as a chunk.
OUTPUT_SCHEMA = t.StructType(
    [
        t.StructField("output", t.StringType()),
        t.StructField("records", t.LongType()),
        t.StructField("chunk", t.BinaryType()),
    ]
)
_BYTES = t.StructType([t.StructField("data", t.BinaryType())])
_PAGE = t.StructType([t.StructField("page", t.LongType())])

#: Broadcast states by digest: a worker reads one from the state store once, not for every group and batch.
_COPIES = 16
_broadcast_copies: dict[int, bytes] = {}
_OutputRow = SparkRow(*OUTPUT_SCHEMA.fieldNames())


class _Backend:
    """The bytes of one key group in Spark's state store; what is written is sent by :meth:`flush`."""

    __slots__ = ("_changes", "_client", "_header", "_pages", "_unsent", "clock")

    def __init__(self, client: StateClient, header: Any, pages: Any) -> None:
        self._client = client
        self._header = header
        self._pages = pages
        #: The group's clock, which is read with its header; ``None``: it has none yet.
        self.clock: bytes | None = None
        self._unsent: list[Callable[[], object]] = []
        self._changes: list[tuple[tuple[int], bytes | None]] = []

    def get_header(self) -> bytes | None:
        self.flush()
        asked = [self._header.get, partial(self._pages.getValue, (CLOCK_PAGE,))]
        header, clock = self._client.read(asked)
        self.clock = None if clock is None else bytes(clock[0])
        return None if header is None else bytes(header[0])

    def put_header(self, header: bytes) -> None:
        self.later(partial(self._header.update, (header,)))

    def clear(self) -> None:
        self.later(self._header.clear)

    def get_page(self, page: int) -> bytes:
        return self.get_pages([page])[0]

    def get_pages(self, pages: Sequence[int]) -> list[bytes]:
        self.flush()
        return [found or b"" for found in self._client.get([(page,) for page in pages])]

    def put_page(self, page: int, data: bytes) -> None:
        self._changes.append(((page,), data))

    def delete_page(self, page: int) -> None:
        self._changes.append(((page,), None))

    def later(self, request: Callable[[], object]) -> None:
        """Have a request sent with what is written."""
        self._unsent.append(request)

    def flush(self) -> None:
        """Send what was written."""
        unsent, self._unsent = self._unsent, []
        if unsent:
            self._client.write(unsent)
        changes, self._changes = self._changes, []
        if changes:
            self._client.put(changes)


def _bytes(found: Any) -> bytes:
    """Return the bytes of a value that must be there; none where it is not, which nothing is stored as."""
    return b"" if found is None else bytes(found[0])


class KeyGroupProcessor(StatefulProcessor):
    """Hosts a :class:`~millrace.KeyedProcess` over the keys of a group.

    The parameter names of the handlers are part of Spark's protocol: its worker passes them by name.

    Args:
        process: The process; pickled with this object, bound to state in the worker.
        events: How rows become events.
        speaker: Label of the group that speaks for all of control events, which all groups see.
        forwards: Whether control events go on to another process.
        refuses: Whether no process takes any.
        keys: Where the keys are that state is encrypted with; ``None``: it is kept in clear.
        clock: What the clock goes by; ``None``: it is that of the process before this one.
    """

    def __init__(
        self,
        process: KeyedProcess[Any, Any],
        events: JsonEvents,
        *,
        speaker: int,
        forwards: bool = False,
        refuses: bool = True,
        keys: KeyReference | None = None,
        clock: BatchClock | None = None,
    ) -> None:
        self._process = process
        self._keys = keys
        self._clock = clock
        self._forwards, self._refuses = forwards, refuses
        self._uses_ticks = process.needs_ticks()
        self._events = events
        self._speaker = speaker
        self._has_broadcast = process.keeps_broadcast()

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the group's state; called on the driver for the schema and in every task."""
        self._handle = handle
        self._header = handle.getValueState("header", _BYTES)
        self._pages = handle.getMapState("pages", _PAGE, _BYTES)
        self._client = StateClient(self._pages)
        self._broadcast = handle.getValueState("broadcast", _BYTES) if self._has_broadcast else None
        leave_collection_to_spark()
        self._open()

    def _open(self) -> None:
        encode = msgspec.json.Encoder().encode
        self._runner = Runner(self._process, encode=encode, decode=self._events.event, by_columns=True)
        self._intake = Intake(
            self._process, self._events, self._runner, forwards=self._forwards, refuses=self._refuses
        )
        keep_out_of_collection()

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[SparkRow]:
        """Run one batch of a group's rows."""
        batch = Brought(speaks=int(key[0]) == self._speaker)
        for row in rows:
            passes = row[2] if len(row) > 2 else None
            if passes is None:
                self._intake.read(decode_input(row[1]), batch)
            else:
                yield _OutputRow(passes, row[3], row[1])
        yield from self._run(key, batch)

    def close(self) -> None:
        """Nothing to release."""

    def _run(self, key: Any, batch: Brought) -> Iterator[SparkRow]:
        runner = self._runner
        label = int(key[0])
        # Not in init(): Spark calls that on the driver too, and hangs when it raises there.
        ring = None if self._keys is None else self._keys.ring()
        stored = _Backend(self._client, self._header, self._pages)
        backend = EnvelopeBackend(stored, self._process.stored_as, label, ring)
        store = PagedStore(backend, runner.layout, label=label)
        kept = None if stored.clock is None else backend.unwrap_clock(stored.clock)
        before = ClockState() if kept is None else read_clock(kept)
        settings = None if self._clock is None else self._clock.now()
        after, status = moved(self._process.name, before, settings, batch)
        if after != before:
            backend.put_page(CLOCK_PAGE, encode(after))
        watermark, ahead = before.own(), after.own()
        runner.layout.lag_ms = after.lag_ms
        if after.lag_ms != before.lag_ms and runner.layout.streams:
            store.tell_again()
        bound_ms = 0 if settings is None else settings.bound_ms
        time = StreamTime(status.before, status.watermark, status.reach, bound_ms, batch.newest)
        tick = self._uses_ticks and batch.tick > store.processing_time
        if tick:
            store.processing_time = batch.tick
        stored_broadcast = changed = None
        if self._broadcast is not None:
            stored_broadcast, changed = self._run_broadcast(self._broadcast, backend, store, batch, watermark)
        runner.run_batch(
            store, batch.by_key, watermark, store.processing_time, tick=tick, ahead=ahead, time=time
        )
        if self._broadcast is not None:
            passed = runner.controls.pass_(stored_broadcast, ahead, report=batch.speaks)
            changed = changed if passed is None else passed
            if changed is not None:
                self._broadcast.update((backend.wrap_broadcast(changed),))
                store.broadcast = int.from_bytes(hashlib.blake2b(changed, digest_size=7).digest(), "big") | 1
        store.commit(ahead, store.processing_time)
        stored.flush()
        for output, records, chunk in _taken(runner):
            yield _OutputRow(output, records, chunk)
        if batch.forwarded:
            yield _OutputRow(FORWARDED, len(batch.forwarded), encode_forwarded(batch.forwarded))
        if batch.speaks:
            late, runner.controls.late = runner.controls.late, 0
            if late:
                status = msgspec.structs.replace(status, control_late=status.control_late + late)
            yield _OutputRow(WATERMARK, 0, encode_status(status))

    def _run_broadcast(
        self, state: Any, backend: EnvelopeBackend, store: PagedStore, batch: Brought, watermark: int
    ) -> tuple[bytes | None, bytes | None]:
        """Take control events, and make the broadcast state readable; all groups keep the same.

        Returns:
            The broadcast state, and the same again if it has changed.
        """
        stored = _broadcast_copies.get(store.broadcast)
        if stored is None and store.broadcast:
            stored = backend.unwrap_broadcast(_bytes(state.get()))
            if len(_broadcast_copies) >= _COPIES:
                _broadcast_copies.clear()
            _broadcast_copies[store.broadcast] = stored
        if not batch.controls:
            self._runner.controls.load(stored)
            return stored, None
        batch.controls.sort(key=control_order)
        # Every group applies the same control events; one of them speaks for all.
        changed = self._runner.controls.take(batch.controls, stored, watermark, report=batch.speaks)
        return stored if changed is None else changed, changed


def _taken(runner: Runner) -> Iterator[tuple[str, int, bytes]]:
    """Yield all that was emitted as chunks: outputs, numbers of records, chunks; it is forgotten."""
    columns, runner.columns = runner.columns, []
    emissions, runner.emissions = runner.emissions, []
    for of_output in columns:
        yield from encode_columns(of_output)
    yield from encode_emissions(emissions)


def leave_collection_to_spark() -> None:
    """Have a worker look for reference cycles no more but when Spark has it do so: after each task.

    Else it looks whenever a group's batch is done, at all that has been made since and is still there.
    """
    if TaskContext.get() is not None:
        gc.disable()


class BoundedGroups(KeyGroupProcessor):
    """Runs a process over a bounded DataFrame, a key group at a time; pass it to ``applyInArrow``.

    Args:
        bound_ms: How far the watermark stays behind the newest event, ms.
        arguments: Those of :class:`KeyGroupProcessor`.
    """

    def __init__(self, *arguments: Any, bound_ms: int, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._bound_ms = bound_ms

    def __call__(self, key: Any, rows: pa.Table) -> pa.Table:
        """Run all rows of a group."""
        import pyarrow as pa

        self._open()
        batch = Brought(speaks=key[0].as_py() == self._speaker)
        found: list[tuple[str, int, bytes]] = []
        columns = [column.to_pylist() for column in rows.columns]
        for row in zip(*columns, strict=True):
            passes = row[2] if len(row) > 2 else None
            if passes is None:
                self._intake.read(decode_input(row[1]), batch)
            else:
                found.append((passes, row[3], row[1]))
        runner, kept = self._runner, None
        runner.controls.load(None)
        if self._has_broadcast and batch.controls:
            batch.controls.sort(key=control_order)
            kept = runner.controls.take(batch.controls, None, NO_WATERMARK, report=batch.speaks)
        runner.run_bounded(LiveStore(runner.layout), batch.by_key, self._bound_ms)
        runner.controls.pass_(kept, END_OF_TIME, report=batch.speaks)
        found += _taken(runner)
        if batch.forwarded:
            found.append((FORWARDED, len(batch.forwarded), encode_forwarded(batch.forwarded)))
        outputs, records, chunks = zip(*found, strict=True) if found else ((), (), ())
        return pa.table(
            {
                "output": pa.array(outputs, pa.string()),
                "records": pa.array(records, pa.int64()),
                "chunk": pa.array(chunks, pa.binary()),
            }
        )
