"""Intake of a batch: chunks become rows, control events and messages of the engine.

Nothing here knows an engine.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from millrace.contracts.formats import why_unreadable
from millrace.dead_letters import VERSION_HEADER, kept_of, reason_of
from millrace.host.chunks import (
    AHEAD,
    CONTROL,
    DATA,
    FUTURE,
    NO_TIME,
    UNKNOWN_VERSION,
    Forwarded,
    InputChunk,
    decode_status,
)
from millrace.host.key_times import NOT_JSON, decode_all
from millrace.host.runner import Row, Runner, cause_order
from millrace.host.system import Drain, Idle, SystemMessage, Tick, decode_system
from millrace.inputs import NO_INPUT, Inputs
from millrace.process import KeyedProcess, order_of
from millrace.state.cells import StateCorrupted
from millrace.time import NO_WATERMARK
from millrace.time.clock import ClockSettings, ClockState, ClockStatus, SourceReport, advance, ended

# Columns that are not there.
_nothing = itertools.repeat(None)
_nothing_judged = itertools.repeat((None, False))
#: Whether a row was on time, and whether it came after the batch's rows, by the byte that says so.
_judged = ((False, False), (True, False), (False, True), (True, True)).__getitem__
_was_on_time, _is_ahead = (tuple(column).__getitem__ for column in zip(*map(_judged, range(4)), strict=True))
_data = itertools.repeat(DATA)


class JsonEvents:
    """Events as JSON bytes in the column ``_value``, decoded and validated here.

    Args:
        event_type: Type of the events.
        control_type: Type of control events, or ``None``.
        strict: Whether a number in quotes is refused where a number is wanted; columns that Spark
            wrote as JSON have ``"NaN"``.
        inputs: Of a process with several, input → type of its events.
        formatted: The inputs (``""``: the only one) whose events came in another format: those that could
            not be read say why.
    """

    def __init__(
        self,
        event_type: Any,
        control_type: Any,
        *,
        strict: bool = True,
        inputs: Mapping[str, Any] | None = None,
        formatted: Collection[str] = (),
    ) -> None:
        self.formatted = frozenset(formatted)
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

    def why(self, raw: bytes, error: Exception) -> tuple[str, Exception | str, bytes]:
        """Return why an event could not be decoded: the reason, the error, and its bytes as they came."""
        mark = b"" if self._inputs is None else raw[:1]
        if self.formatted and mark != NO_INPUT:
            name = self._inputs.name_of(mark) if self._inputs is not None else ""
            found = why_unreadable(raw[len(mark) :]) if name in self.formatted else None
            if found is not None:
                return found[0], found[1], mark + found[2]
        return reason_of(error), error, raw

    def control(self, raw: bytes) -> Any:
        """Decode one control event."""
        return self._decode_control(raw)


class Brought:
    """What one batch brought to a process, or to one key group of it.

    Args:
        speaks: Whether it is the place that speaks for all of control events, which every group sees.
        hands_on: Whether control events go on to the next process from here; unless given, from the place
            that speaks for all.
    """

    __slots__ = (
        "by_key", "controls", "drains", "forwarded", "hands_on", "idles", "newest", "reports", "speaks",
        "status", "tick",
    )  # fmt: skip

    def __init__(self, *, speaks: bool, hands_on: bool | None = None) -> None:
        self.speaks = speaks
        self.hands_on = speaks if hands_on is None else hands_on
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


class Handed(NamedTuple):
    """Records that go on as they are, a column each.

    Attributes:
        keys: The texts of their keys.
        times: Event times, ms.
        causes: Their identities.
        events: The records.
        judged: Whether they are on time, with ``IS_AHEAD``.
        mark: The input that they come by.
    """

    keys: list[str]
    times: list[int]
    causes: list[str | None]
    events: list[Any]
    judged: list[int]
    mark: bytes


class Intake:
    """Makes rows of the chunks that a process is given.

    Args:
        process: The process.
        events: How rows become events; opened here.
        runner: What runs the process; events that cannot be read are put aside there.
        forwards: Whether control events go on to another process.
        refuses: Whether a control event that comes to the end of the topology is nobody's.
    """

    def __init__(
        self,
        process: KeyedProcess[Any, Any],
        events: JsonEvents,
        runner: Runner,
        *,
        forwards: bool,
        refuses: bool = True,
    ) -> None:
        self._process = process
        self._runner = runner
        self._forwards = forwards
        self._refuses = refuses and not forwards
        self._events = events
        self._keeps_time = order_of(process).by_key
        events.open()

    def read(self, chunk: InputChunk, batch: Brought) -> None:
        """Decode the rows of a chunk; what cannot be decoded goes to the dead letters."""
        keys, times, kinds, _, headers, raws, on_time, reports, believed, *_ = chunk
        if reports is not None:
            batch.reports += reports
            if not raws:
                return
        if self._keeps_time:
            batch.see(keys, times if believed is None else believed)
        events = self._events.all(raws) if kinds is None else None
        if events is None or not all(keys) or NO_TIME in times:
            self._read_each(chunk, batch)
            return
        by_key: dict[Any, list[Row]] = batch.by_key  # of every one there is a key
        columns: list[Any] = [times, raws, chunk.identities() or _nothing, events]
        if headers is not None or on_time is not None:
            columns.append(headers or _nothing)
        if on_time is not None:
            columns += [map(_was_on_time, on_time), map(_is_ahead, on_time)]
        for key, row in zip(keys, map(Row, *columns), strict=True):
            of_key = by_key.get(key)
            if of_key is None:
                by_key[key] = [row]
            else:
                of_key.append(row)

    def take(self, handed: Handed, batch: Brought) -> None:
        """Take records of another process as they are."""
        keys, times, causes, events, on_time, mark = handed
        if self._keeps_time:
            batch.see(keys, times)
        by_key = batch.by_key
        judged = map(_was_on_time, on_time), map(_is_ahead, on_time)
        rows = map(Row, times, itertools.repeat(mark), causes, events, _nothing, *judged)
        for key, row in zip(keys, rows, strict=True):
            of_key = by_key.get(key)
            if of_key is None:
                by_key[key] = [row]
            else:
                of_key.append(row)

    def _read_each(self, chunk: InputChunk, batch: Brought) -> None:
        """Decode rows one by one: some are control events, or cannot be decoded."""
        keys, times, kinds, _, headers, raws, on_time, *_ = chunk
        causes = chunk.identities()
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
                reason, told, came = self._events.why(raw, error)
                self._put_aside(reason, "decode", told, came, cause, key, time, header)
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

    def _read_control(self, raw: bytes, cause: Any, header: Any, time: int, batch: Brought) -> None:
        try:
            message = decode_system(raw)
            if message is not None:
                batch.take(message)
            elif self._events.control_type is not None:
                batch.controls.append(Row(time, raw, cause, self._events.control(raw), header))
            elif self._refuses and batch.speaks:
                self._put_aside("schema", "broadcast", f"{self._process.name} takes no control events", raw,
                                cause, None, NO_TIME, header)  # fmt: skip
            if self._forwards and batch.hands_on:
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


def moved(
    name: str, before: ClockState, settings: ClockSettings | None, batch: Brought
) -> tuple[ClockState, ClockStatus]:
    """Return how far a process's clock goes in a batch, and what there is to say about it.

    Args:
        name: The process.
        before: Its clock as the batch before left it.
        settings: What the clock goes by; ``None``: it is that of the process before this one.
        batch: What the batch brought.
    """
    if settings is not None:
        if settings.incarnation and settings.incarnation in batch.drains:
            return ended(before, settings)
        after, said = advance(before, batch.reports, settings, batch.idles)
        if batch.speaks:  # only for whoever watches, and all groups find the same
            said = msgspec.structs.replace(said, sources=_newest(batch.reports))
        return after, said
    status = batch.status
    if status is None:  # never: what comes to a group comes with its clock
        raise StateCorrupted(f"{name} was not told how far its input is")
    # A link's rows are judged by what the link itself had come to.
    after = ClockState(max(before.watermark, status.watermark)).behind(status.lag_ms, before)
    return after, msgspec.structs.replace(status, before=before.watermark, watermark=after.watermark)


def _newest(reports: Iterable[SourceReport]) -> dict[str, int]:
    """Return the newest plausible time of each source that is a clock, ms."""
    found: dict[str, int] = {}
    for report in reports:
        if report.is_clock and report.newest is not None:
            found[report.source] = max(report.newest, found.get(report.source, report.newest))
    return found


def control_order(row: Row) -> tuple[Any, ...]:
    """Sort control events the same way in every group: by partition and offset, else by identity."""
    return *cause_order(row.cause), row.raw


def _told_version(header: str | None) -> str:
    """Return what is wrong with an event of an unknown version."""
    headers = msgspec.json.decode(kept_of(header).headers or "{}")
    return f"{VERSION_HEADER} {headers.get(VERSION_HEADER, '')} is none that is read here"
