"""The Spark host's worker side: one key group's rows in, emissions out."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql import Row as SparkRow
from pyspark.sql import types as t
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from millrace.dead_letters import VERSION_HEADER, kept_of, reason_of
from millrace.host.chunks import (
    AHEAD,
    CONTROL,
    DATA,
    FORWARDED,
    FUTURE,
    NO_TIME,
    UNKNOWN_VERSION,
    WATERMARK,
    Forwarded,
    InputChunk,
    decode_input,
    decode_status,
    encode_emissions,
    encode_forwarded,
    encode_status,
)
from millrace.host.key_times import NOT_JSON, decode_all
from millrace.host.memory import LiveStore
from millrace.host.packing import keep_out_of_collection
from millrace.host.runner import Row, Runner, StreamTime, cause_order
from millrace.host.spark_clock import BatchClock
from millrace.host.spark_state import StateClient
from millrace.host.system import Drain, Idle, SystemMessage, Tick, decode_system
from millrace.inputs import Inputs
from millrace.process import KeyedProcess, order_of
from millrace.state.cells import CLOCK_PAGE, StateCorrupted, encode, read_clock
from millrace.state.keyring import KeyReference
from millrace.state.pages import PagedStore
from millrace.state.sealing import SealedBackend
from millrace.time import END_OF_TIME, NO_WATERMARK
from millrace.time.clock import ClockSettings, ClockState, ClockStatus, SourceReport, advance, ended

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
# Columns that are not there.
_nothing = itertools.repeat(None)
_nothing_judged = itertools.repeat((None, False))
#: Whether a row was on time, and whether it came after the batch's rows, by the byte that says so.
_judged = ((False, False), (True, False), (False, True), (True, True)).__getitem__
_data = itertools.repeat(DATA)


class JsonEvents:
    """Events as JSON bytes in the column ``_value``, decoded and validated here.

    Args:
        event_type: Type of the events.
        control_type: Type of control events, or ``None``.
        strict: Whether a number in quotes is refused where a number is wanted; columns that Spark
            wrote as JSON have ``"NaN"``.
        inputs: Of a process with several, input → type of its events.
    """

    def __init__(
        self,
        event_type: Any,
        control_type: Any,
        *,
        strict: bool = True,
        inputs: Mapping[str, Any] | None = None,
    ) -> None:
        self.event_type = event_type
        self.control_type = control_type
        self.strict = strict
        self.inputs = dict(inputs or {})

    def open(self) -> None:
        """Build the decoders; called in the worker."""
        self._inputs = Inputs(self.inputs, "the process", strict=self.strict) if self.inputs else None
        self._decoder: Any = None
        if self._inputs is None:
            self._decoder = msgspec.json.Decoder(self.event_type, strict=self.strict)
        self._decode: Callable[[bytes], Any] = (self._inputs or self._decoder).decode
        self._decode_control = msgspec.json.Decoder(self.control_type).decode

    def event(self, raw: bytes) -> Any:
        """Decode one event; raises one of ``NOT_JSON``."""
        return self._decode(raw)

    def all(self, raws: list[bytes]) -> list[Any] | None:
        """Decode all events at once; ``None`` where one of them cannot be decoded."""
        if self._inputs is None:
            return decode_all(self._decoder, raws)
        decoder = self._inputs.only(raws)
        if decoder is not None:
            return decode_all(decoder, [raw[1:] for raw in raws])
        try:
            return list(map(self._inputs.decode, raws))
        except NOT_JSON:
            return None

    def control(self, raw: bytes) -> Any:
        """Decode one control event."""
        return self._decode_control(raw)


class _Backend:
    """The bytes of one key group in Spark's state store; what is written is sent by :meth:`flush`."""

    __slots__ = ("_client", "_header", "_pages", "_unsent", "clock")

    def __init__(self, client: StateClient, header: Any, pages: Any) -> None:
        self._client = client
        self._header = header
        self._pages = pages
        #: The group's clock, which is read with its header; ``None``: it has none yet.
        self.clock: bytes | None = None
        self._unsent: list[Callable[[], object]] = []

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
        asked = [partial(self._pages.getValue, (page,)) for page in pages]
        return [_bytes(found) for found in self._client.read(asked)]

    def put_page(self, page: int, data: bytes) -> None:
        self.later(partial(self._pages.updateValue, (page,), (data,)))

    def delete_page(self, page: int) -> None:
        self.later(partial(self._pages.removeKey, (page,)))

    def later(self, request: Callable[[], object]) -> None:
        """Have a request sent with what is written."""
        self._unsent.append(request)

    def flush(self) -> None:
        """Send what was written."""
        unsent, self._unsent = self._unsent, []
        if unsent:
            self._client.write(unsent)


def _bytes(found: Any) -> bytes:
    """Return the bytes of a value that must be there; none where it is not, which nothing is stored as."""
    return b"" if found is None else bytes(found[0])


class _GroupBatch:
    """What one batch brought to one key group."""

    __slots__ = (
        "by_key", "controls", "drains", "forwarded", "idles", "newest", "reports", "speaks", "status", "tick",
    )  # fmt: skip

    def __init__(self, *, speaks: bool) -> None:
        self.speaks = speaks
        self.by_key: dict[str, list[Row]] = {}
        #: The newest plausible event time (ms) of each key, where keys have clocks of their own.
        self.newest: dict[str, int] = {}
        self.controls: list[Row] = []
        self.forwarded: list[Forwarded] = []
        self.tick = NO_WATERMARK
        #: What was read of each source.
        self.reports: list[SourceReport] = []
        #: How far the clock of the process before this one is.
        self.status: ClockStatus | None = None
        self.idles: list[Idle] = []
        #: Checkpoints whose input has ended.
        self.drains: set[str] = set()

    def see(self, keys: Iterable[str | None], times: Iterable[int]) -> None:
        """Take note of what the times of events are taken for."""
        newest = self.newest
        for key, time in zip(keys, times, strict=True):
            if key is not None and time > newest.get(key, NO_TIME):
                newest[key] = time

    def take(self, message: SystemMessage) -> None:
        """Take a message of the engine."""
        if isinstance(message, Tick):
            self.tick = max(self.tick, message.at)
        elif isinstance(message, Idle):
            self.idles.append(message)
        elif isinstance(message, Drain):
            self.drains.add(message.incarnation)


class KeyGroupProcessor(StatefulProcessor):
    """Hosts a :class:`~millrace.KeyedProcess` over the keys of a group.

    The parameter names of the handlers are part of Spark's protocol: its worker passes them by name.

    Args:
        process: The process; pickled with this object, bound to state in the worker.
        events: How rows become events.
        speaker: Label of the group that speaks for all of control events, which all groups see.
        forwards: Whether control events go on to another process.
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
        keys: KeyReference | None = None,
        clock: BatchClock | None = None,
    ) -> None:
        self._process = process
        self._keys = keys
        self._clock = clock
        self._forwards = forwards
        self._uses_ticks = process.needs_ticks()
        self._keeps_time = order_of(process).by_key
        self._events = events
        self._speaker = speaker
        self._has_broadcast = process.control_type is not None or any(
            s.kind == "broadcast" for s in process.states
        )

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the group's state; called on the driver for the schema and in every task."""
        self._handle = handle
        self._header = handle.getValueState("header", _BYTES)
        self._pages = handle.getMapState("pages", _PAGE, _BYTES)
        self._client = StateClient(self._pages)
        self._broadcast = handle.getValueState("broadcast", _BYTES) if self._has_broadcast else None
        self._open()

    def _open(self) -> None:
        self._runner = Runner(self._process, encode=msgspec.json.encode, decode=self._events.event)
        self._events.open()
        keep_out_of_collection()

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[SparkRow]:
        """Run one batch of a group's rows."""
        batch = _GroupBatch(speaks=int(key[0]) == self._speaker)
        for row in rows:
            passes = row[2] if len(row) > 2 else None
            if passes is None:
                self._read(decode_input(row[1]), batch)
            else:
                yield _OutputRow(passes, row[3], row[1])
        yield from self._run(key, batch)

    def close(self) -> None:
        """Nothing to release."""

    def _run(self, key: Any, batch: _GroupBatch) -> Iterator[SparkRow]:
        runner = self._runner
        label = int(key[0])
        # Not in init(): Spark calls that on the driver too, and hangs when it raises there.
        ring = None if self._keys is None else self._keys.ring()
        stored = _Backend(self._client, self._header, self._pages)
        backend = SealedBackend(stored, self._process.name, label, ring)
        store = PagedStore(backend, runner.layout, label=label)
        kept = None if stored.clock is None else backend.unseal_clock(stored.clock)
        before = ClockState() if kept is None else read_clock(kept)
        settings = None if self._clock is None else self._clock.now()
        after, status = self._move_clock(before, settings, batch)
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
                self._broadcast.update((backend.seal_broadcast(changed),))
                store.broadcast = int.from_bytes(hashlib.blake2b(changed, digest_size=7).digest(), "big") | 1
        store.commit(ahead, store.processing_time)
        stored.flush()
        emissions, runner.emissions = runner.emissions, []
        for output, records, chunk in encode_emissions(emissions):
            yield _OutputRow(output, records, chunk)
        if batch.forwarded:
            yield _OutputRow(FORWARDED, len(batch.forwarded), encode_forwarded(batch.forwarded))
        if batch.speaks:
            late, runner.controls.late = runner.controls.late, 0
            if late:
                status = msgspec.structs.replace(status, control_late=status.control_late + late)
            yield _OutputRow(WATERMARK, 0, encode_status(status))

    def _move_clock(
        self, before: ClockState, settings: ClockSettings | None, batch: _GroupBatch
    ) -> tuple[ClockState, ClockStatus]:
        """Return how far the clock goes in this batch, and what there is to say about it."""
        if settings is not None:
            if settings.incarnation and settings.incarnation in batch.drains:
                return ended(before, settings)
            return advance(before, batch.reports, settings, batch.idles)
        status = batch.status
        if status is None:  # never: what comes to a group comes with its clock
            raise StateCorrupted(f"{self._process.name} was not told how far its input is")
        # A link's rows are judged by what the link itself had come to.
        after = ClockState(max(before.watermark, status.watermark)).behind(status.lag_ms, before)
        return after, msgspec.structs.replace(status, before=before.watermark, watermark=after.watermark)

    def _run_broadcast(
        self, state: Any, backend: SealedBackend, store: PagedStore, batch: _GroupBatch, watermark: int
    ) -> tuple[bytes | None, bytes | None]:
        """Take control events, and make the broadcast state readable; all groups keep the same.

        Returns:
            The broadcast state, and the same again if it has changed.
        """
        stored = _broadcast_copies.get(store.broadcast)
        if stored is None and store.broadcast:
            stored = backend.unseal_broadcast(_bytes(state.get()))
            if len(_broadcast_copies) >= _COPIES:
                _broadcast_copies.clear()
            _broadcast_copies[store.broadcast] = stored
        if not batch.controls:
            self._runner.controls.load(stored)
            return stored, None
        batch.controls.sort(key=_control_order)
        # Every group applies the same control events; one of them speaks for all.
        changed = self._runner.controls.take(batch.controls, stored, watermark, report=batch.speaks)
        return stored if changed is None else changed, changed

    def _read(self, chunk: InputChunk, batch: _GroupBatch) -> None:
        """Decode the rows of a chunk; what cannot be decoded goes to the dead letters."""
        keys, times, kinds, causes, headers, raws, on_time, reports, believed = chunk
        if reports is not None:
            batch.reports += reports
            if not raws:
                return
        if self._keeps_time:
            batch.see(keys, times if believed is None else believed)
        events = self._events.all(raws) if kinds is None else None
        if events is None or None in keys or NO_TIME in times:
            self._read_each(chunk, batch)
            return
        by_key = batch.by_key
        judged = _nothing_judged if on_time is None else map(_judged, on_time)
        for key, time, raw, cause, event, header, (was_on_time, is_ahead) in zip(
            keys, times, raws, causes or _nothing, events, headers or _nothing, judged, strict=False
        ):
            row = Row(time, raw, cause, event, header, was_on_time, is_ahead)
            of_key = by_key.get(key)
            if of_key is None:
                by_key[key] = [row]
            else:
                of_key.append(row)

    def _read_each(self, chunk: InputChunk, batch: _GroupBatch) -> None:
        """Decode rows one by one: some are control events, or cannot be decoded."""
        keys, times, kinds, causes, headers, raws, on_time, _, _ = chunk
        decode = self._events.event
        judged = _nothing_judged if on_time is None else map(_judged, on_time)
        for key, time, kind, cause, header, raw, (was_on_time, is_ahead) in zip(
            keys, times, kinds or _data, causes or _nothing, headers or _nothing, raws, judged, strict=False
        ):
            if kind == AHEAD:
                batch.status = decode_status(raw)
                continue
            if kind == CONTROL:
                self._read_control(raw, cause, header, time, batch)
                continue
            if kind == UNKNOWN_VERSION:  # whether its bytes fit a known version proves nothing
                self._put_aside("unknown_version", "decode", _told_version(header), raw, cause, key, time,
                                header)  # fmt: skip
                continue
            try:
                event = decode(raw)
            except NOT_JSON as error:
                self._put_aside(reason_of(error), "decode", error, raw, cause, key, time, header)
                continue
            if time == NO_TIME or key is None:
                what = "event time" if key is not None else "key"
                self._put_aside("no_event_time" if key is not None else "schema", "time",
                                f"the event has no {what}", raw,
                                cause, key, time, header)  # fmt: skip
            elif kind == FUTURE:
                self._put_aside("future", "time", "the event's time is too far ahead of its arrival",
                                raw, cause, key, time, header)  # fmt: skip
            else:
                row = Row(time, raw, cause, event, header, was_on_time, is_ahead)
                batch.by_key.setdefault(key, []).append(row)

    def _read_control(self, raw: bytes, cause: Any, header: Any, time: int, batch: _GroupBatch) -> None:
        try:
            message = decode_system(raw)
            if message is not None:
                batch.take(message)
            elif self._events.control_type is not None:
                batch.controls.append(Row(time, raw, cause, self._events.control(raw), header))
            elif not self._forwards and batch.speaks:
                self._put_aside("schema", "broadcast", f"{self._process.name} takes no control events", raw,
                                cause, None, NO_TIME, header)  # fmt: skip
            if self._forwards and batch.speaks:
                batch.forwarded.append((raw, cause, header, time))
        except NOT_JSON as error:
            if batch.speaks:
                self._put_aside(reason_of(error), "broadcast", error, raw, cause, None, NO_TIME, header)

    def _put_aside(
        self,
        reason: str,
        stage: str,
        error: BaseException | str,
        raw: bytes,
        cause: Any,
        key: Any,
        time: int,
        header: Any,
    ) -> None:
        self._runner.dead_letter(
            reason,
            stage,
            error,
            raw,
            cause,
            key=key,
            event_time=None if time == NO_TIME else time,
            headers=header,
        )


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
        batch = _GroupBatch(speaks=key[0].as_py() == self._speaker)
        found: list[tuple[str, int, bytes]] = []
        columns = [column.to_pylist() for column in rows.columns]
        for row in zip(*columns, strict=True):
            passes = row[2] if len(row) > 2 else None
            if passes is None:
                self._read(decode_input(row[1]), batch)
            else:
                found.append((passes, row[3], row[1]))
        runner, kept = self._runner, None
        runner.controls.load(None)
        if self._has_broadcast and batch.controls:
            batch.controls.sort(key=_control_order)
            kept = runner.controls.take(batch.controls, None, NO_WATERMARK, report=batch.speaks)
        runner.run_bounded(LiveStore(runner.layout), batch.by_key, self._bound_ms)
        runner.controls.pass_(kept, END_OF_TIME, report=batch.speaks)
        found += encode_emissions(runner.emissions)
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


def _control_order(row: Row) -> tuple[Any, ...]:
    """Sort control events the same way in every group: by partition and offset, else by identity."""
    return *cause_order(row.cause), row.raw


def _told_version(header: str | None) -> str:
    """Return what is wrong with an event of an unknown version."""
    headers = msgspec.json.decode(kept_of(header).headers or "{}")
    return f"{VERSION_HEADER} {headers.get(VERSION_HEADER, '')} is none that is read here"
