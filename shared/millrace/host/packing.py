"""Packing before the shuffle: a partition's rows in, one row per key group out.

This runs in Spark's workers, in front of the state operator (profile ``throughput``). It finds key,
event time and key group of each event, and makes one chunk of all the events of an Arrow batch that
go to the same group.
"""

from __future__ import annotations

import gc
import itertools
import operator
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from millrace.host.chunks import (
    CONTROL,
    DATA,
    FORWARDED,
    FUTURE,
    NO_TIME,
    UNKNOWN_VERSION,
    InputChunk,
    decode_forwarded,
    decode_output,
)
from millrace.host.groups import key_part
from millrace.host.system import IDLE_PREFIX, Idle, decode_system

if TYPE_CHECKING:
    import pyarrow as pa

#: What a packed DataFrame has: where a chunk goes, its newest event time, the chunk. The group is never
#: null, as in single rows: Spark takes no state key that may be null after one that may not.
PACKED_SCHEMA: Final = "_group int not null, _watermark timestamp, _chunk binary"
#: Years 1 to 9999, as Spark's timestamps and Python's: an event of another time has none.
FIRST_MS, LAST_MS = -62_135_596_800_000, 253_402_300_799_999
#: Keys whose text and group a worker remembers.
_REMEMBERED = 262_144
# Nesting without end is refused with RecursionError, text that is not UTF-8 with UnicodeDecodeError.
NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


#: Input of a state operator behind another: a chunk, or what only passes.
CHAINED_SCHEMA: Final = "_group int, _chunk binary, _passes string, _records long"


@dataclass(frozen=True)
class Repacker:
    """Gives what a process emitted new keys; pass it to ``mapInArrow``.

    The batches have the columns output, records and chunk. Records of ``output`` become events of the
    next process, with the time of their cause; all others pass it by, under ``names``.

    Args:
        output: The output whose records go on.
        keys: Fields of its records that make the key, with their types.
        labels: Label of each key group.
        names: Output → name under which it passes; outputs that stand not here are dropped.
    """

    output: str
    keys: tuple[tuple[str, Any], ...]
    labels: tuple[int, ...]
    names: dict[str, str]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pack the chunks of one partition anew."""
        import pyarrow as pa

        keep_out_of_collection()
        reader = _KeyTimes(self.keys, ("", int), len(self.labels))
        for batch in batches:
            rows: list[tuple[int, bytes, str | None, int]] = []
            columns = (batch[name].to_pylist() for name in ("output", "records", "chunk"))
            for output, records, chunk in zip(*columns, strict=True):
                if output == self.output:
                    rows += self._events(chunk, reader)
                if output == FORWARDED:
                    rows += self._controls(chunk)
                elif output in self.names:
                    label = self.labels[zlib.crc32(chunk) % len(self.labels)]
                    rows.append((label, chunk, self.names[output], records))
            if rows:
                groups, chunks, passes, counts = zip(*rows, strict=True)
                yield pa.RecordBatch.from_arrays(
                    [
                        pa.array(groups, pa.int32()),
                        pa.array(chunks, pa.binary()),
                        pa.array(passes, pa.string()),
                        pa.array(counts, pa.int64()),
                    ],
                    names=["_group", "_chunk", "_passes", "_records"],
                )

    def _events(self, packed: bytes, reader: _KeyTimes) -> Iterator[tuple[int, bytes, None, int]]:
        chunk = decode_output(packed)
        keys, _, groups = reader.read(chunk.payloads, None)
        columns = (keys, chunk.times, chunk.event_ids, chunk.payloads, chunk.on_time)
        for group, rows in _by_group(groups, None, len(self.labels)):
            of_keys, times, causes, values, on_time = (list(_pick(c, rows)) for c in columns)
            part = InputChunk(of_keys, times, None, causes, None, values, bytes(on_time))
            yield self.labels[group], part.encode(), None, len(rows)

    def _controls(self, packed: bytes) -> Iterator[tuple[int, bytes, None, int]]:
        raws, causes, headers = map(list, zip(*decode_forwarded(packed), strict=True))
        count = len(raws)
        part = InputChunk(
            [None] * count, [NO_TIME] * count, bytes([CONTROL]) * count, causes, headers, raws
        ).encode()
        for label in self.labels:
            yield label, part, None, count


@dataclass(frozen=True)
class Packer:
    """Packs Arrow batches; pass it to ``mapInArrow``.

    The batches have the columns ``_value`` (the event's JSON), ``_source_id``, and, where they are
    wanted, ``_control`` (whether a row is a control event), ``_arrived`` (ms; infinite where a row does not
    say when it came), ``_unknown_version`` and ``_headers``.

    Args:
        keys: Fields that make the key, with their types (str, int or bool).
        event_time: Field of the event time, with its type (int or datetime).
        labels: Label of each key group.
        skew_ms: How far an event's time may be ahead of its arrival, ms.
        keep_all_headers: Keep headers of every row, or of those without a key or a time.
        mark: What goes in front of each event to say by which input it came.
    """

    keys: tuple[tuple[str, Any], ...]
    event_time: tuple[str, Any]
    labels: tuple[int, ...]
    skew_ms: int | None = None
    keep_all_headers: bool = True
    mark: bytes = b""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pack the batches of one partition."""
        import pyarrow as pa

        keep_out_of_collection()
        reader = _KeyTimes(self.keys, self.event_time, len(self.labels))
        for batch in batches:
            if not batch.num_rows:
                continue
            groups, newest, chunks = self._pack(batch, reader)
            yield pa.RecordBatch.from_arrays(
                [
                    pa.array(groups, pa.int32()),
                    pa.array([None if n == NO_TIME else n * 1000 for n in newest], pa.timestamp("us", "UTC")),
                    pa.array(chunks, pa.binary()),
                ],
                names=["_group", "_watermark", "_chunk"],
            )

    def _pack(self, batch: pa.RecordBatch, reader: _KeyTimes) -> tuple[list[int], list[int], list[bytes]]:
        names = batch.schema.names
        values = [v or b"" for v in batch["_value"].to_pylist()]
        causes = batch["_source_id"].to_pylist() if "_source_id" in names else None
        control = batch["_control"].to_pylist() if "_control" in names else None
        keys, times, groups = reader.read(values, control)
        kinds = self._kinds(batch, times, control)
        headers = self._headers(batch["_headers"], keys, times, kinds) if "_headers" in names else None
        idle_at = _idle_at(values, control)
        if self.mark:
            marks = (
                itertools.repeat(self.mark) if control is None else (b"" if c else self.mark for c in control)
            )
            values = list(map(operator.add, marks, values))
        columns = (keys, times, kinds, causes, headers, values)
        labels, newest, chunks = [], [], []
        for group, rows in _by_group(groups, kinds, len(self.labels)):
            part = [None if c is None else list(_pick(c, rows)) for c in columns]
            of_kind = None if part[2] is None else bytes(part[2])
            labels.append(self.labels[group])
            newest.append(max(idle_at, _newest(part[1], of_kind)))  # type: ignore[arg-type]
            chunks.append(InputChunk(part[0], part[1], of_kind, *part[3:]).encode())  # type: ignore[arg-type]
        return labels, newest, chunks

    def _headers(
        self, column: pa.Array, keys: list[str | None], times: list[int], kinds: list[int] | None
    ) -> list[str | None] | None:
        """Return the headers that are wanted as text: JSON of what is not text already."""
        count = len(keys)
        wanted: Sequence[int] = range(count)
        if not self.keep_all_headers:
            odd = () if kinds is None else [i for i in wanted if kinds[i] in (FUTURE, UNKNOWN_VERSION)]
            wanted = [*odd, *(i for i in wanted if keys[i] is None or times[i] == NO_TIME)]
        if not wanted:
            return None
        texts: list[str | None] = [None] * count
        for i in wanted:
            found = column[i].as_py()
            if found is not None:
                texts[i] = found if isinstance(found, str) else msgspec.json.encode(found).decode()
        return texts

    def _kinds(self, batch: pa.RecordBatch, times: list[int], control: list[bool] | None) -> list[int] | None:
        """Return the kind of each row, ``None`` where all are data."""
        kinds = None
        if self.skew_ms is not None:
            arrived = batch["_arrived"].to_numpy(zero_copy_only=False)
            ahead = np.array(times, dtype=np.float64) > arrived + self.skew_ms
            if ahead.any():
                kinds = np.where(ahead, FUTURE, DATA)
        if "_unknown_version" in batch.schema.names:
            unknown = batch["_unknown_version"].to_numpy(zero_copy_only=False)
            if unknown.any():
                kinds = np.where(unknown, UNKNOWN_VERSION, DATA if kinds is None else kinds)
        if control is not None and any(control):
            at = np.array([bool(c) for c in control])
            kinds = np.where(at, CONTROL, DATA if kinds is None else kinds)
        return None if kinds is None else kinds.tolist()


class _KeyTimes:
    """Finds key text, event time and key group of events."""

    def __init__(self, keys: Sequence[tuple[str, Any]], event_time: tuple[str, Any], groups: int) -> None:
        fields = [(f"key{i}", tp | None, msgspec.field(name=name, default=None))
                  for i, (name, tp) in enumerate(dict(keys).items())]  # fmt: skip
        same = [f"key{i}" for i, (name, _) in enumerate(dict(keys).items()) if name == event_time[0]]
        self._timed = event_time[0] != ""
        if not same and self._timed:
            fields.append(("time", event_time[1] | None, msgspec.field(name=event_time[0], default=None)))
        self._decoder = msgspec.json.Decoder(msgspec.defstruct("KeyTime", fields, gc=False))
        self._time = operator.attrgetter(same[0] if same else "time")
        self._is_ms = event_time[1] is not datetime
        place = {name: f"key{i}" for i, name in enumerate(dict(keys))}
        self._key = operator.attrgetter(*(place[name] for name, _ in keys))
        self._one = len(keys) == 1
        self._groups = groups
        self._known: dict[Any, tuple[str, int]] = {}

    def read(
        self, values: list[bytes], control: list[bool] | None
    ) -> tuple[list[str | None], list[int], list[int]]:
        """Return key texts, event times (ms) and key groups of events."""
        found = decode_all(self._decoder, values)
        if found is None:
            found = [self._try(v) for v in values]
        if control is not None and any(control):
            found = [None if c else f for c, f in zip(control, found, strict=True)]
        keys: list[str | None] = []
        times: list[int] = []
        groups: list[int] = []
        known, key_of, time_of, is_ms = self._known, self._key, self._time, self._is_ms
        timed = self._timed
        for event, raw in zip(found, values, strict=True):
            time = time_of(event) if timed and event is not None else None
            if time is None:
                times.append(NO_TIME)
            else:
                at = time if is_ms else _ms_of(time)
                times.append(at if FIRST_MS <= at <= LAST_MS else NO_TIME)
            key = None if event is None else key_of(event)
            place = known.get(key) if key is not None else None
            if place is None:
                place = self._place(key)
                if place is None:
                    keys.append(None)
                    # An event without a key still needs a place: by its bytes.
                    groups.append(zlib.crc32(raw) % self._groups)
                    continue
            keys.append(place[0])
            groups.append(place[1])
        return keys, times, groups

    def _try(self, raw: bytes) -> Any:
        try:
            return self._decoder.decode(raw)
        except NOT_JSON:
            return None

    def _place(self, key: Any) -> tuple[str, int] | None:
        parts = (key,) if self._one else key
        if key is None or any(p is None for p in parts):
            return None
        texts = [key_part(p) for p in parts]
        text = "".join(f"{len(t.encode())}:{t}" for t in texts)
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        place = self._known[key] = (text, zlib.crc32(text.encode()) % self._groups)
        return place


def decode_all(decoder: Any, values: list[bytes]) -> list[Any] | None:
    """Decode all events at once; ``None`` where one of them has to be looked at by itself.

    A line is an event: a line break within one, or an empty one, could shift others.

    >>> decode_all(msgspec.json.Decoder(), [b"1", b"[2]"]), decode_all(msgspec.json.Decoder(), [b"1", b""])
    ([1, [2]], None)
    """
    lines = b"\n".join(values)
    if lines.count(b"\n") != len(values) - 1:
        return None
    try:
        found = decoder.decode_lines(lines)
    except NOT_JSON:
        return None
    return found if len(found) == len(values) else None


def keep_out_of_collection() -> None:
    """Take what is loaded out of the search for reference cycles.

    Spark's workers run a full collection after every task: tens of milliseconds with the libraries
    loaded, for nothing.
    """
    global _frozen
    if not _frozen:
        _frozen = True
        gc.collect()
        gc.freeze()


_frozen = False


def _ms_of(time: datetime) -> int:
    return int((time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp() * 1000)


def _newest(times: list[int], kinds: bytes | None) -> int:
    """Return the newest event time that may move the watermark."""
    if kinds is None:
        return max(times)
    return max((t for t, k in zip(times, kinds, strict=True) if k == DATA), default=NO_TIME)


def _idle_at(values: list[bytes], control: list[bool] | None) -> int:
    """Return what event time has come to by the engine's messages among the control events."""
    at = NO_TIME
    if control is not None:
        for value, is_control in zip(values, control, strict=True):
            if is_control and value.startswith(IDLE_PREFIX):
                try:
                    message = decode_system(value)
                except NOT_JSON:
                    continue  # a dead letter, at its group
                at = max(at, message.at) if isinstance(message, Idle) else at
    return at


def _pick(column: Sequence[Any], rows: list[int]) -> tuple[Any, ...]:
    if len(rows) == 1:
        return (column[rows[0]],)
    return operator.itemgetter(*rows)(column)  # type: ignore[no-any-return]


def _by_group(groups: list[int], kinds: list[int] | None, count: int) -> Iterator[tuple[int, list[int]]]:
    """Yield each group with the numbers of its rows in order; control rows go to every group."""
    at = np.array(groups, dtype=np.int64)
    controls: list[int] = []
    rows = np.arange(len(groups))
    if kinds is not None:
        is_control = np.array(kinds) == CONTROL
        controls = rows[is_control].tolist()
        at, rows = at[~is_control], rows[~is_control]
    order = np.argsort(at, kind="stable")
    at, rows = at[order], rows[order]
    cuts = np.flatnonzero(np.diff(at)) + 1
    found = dict(
        zip(
            at[np.concatenate(([0], cuts))].tolist() if len(at) else [],
            [part.tolist() for part in np.split(rows, cuts)],
            strict=False,
        )
    )
    if not controls:
        yield from found.items()
        return
    for group in range(count):
        yield group, sorted(controls + found.get(group, []))
