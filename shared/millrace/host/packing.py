"""Packing before the shuffle: a partition's rows in, one row per key group out.

This runs in Spark's workers, in front of the state operator (profile ``throughput``). It finds key,
event time and key group of each event, and makes one chunk of all the events of an Arrow batch that
go to the same group.
"""

from __future__ import annotations

import gc
import itertools
import operator
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
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
    WATERMARK,
    InputChunk,
    decode_forwarded,
    decode_output,
    encode_ahead,
)
from millrace.host.key_times import NOT_JSON, KeyFields, KeyTimes, pick, read_inputs
from millrace.host.system import IDLE_PREFIX, Idle, decode_system
from millrace.inputs import NO_INPUT

if TYPE_CHECKING:
    import pyarrow as pa

#: What a packed DataFrame has: where a chunk goes, its newest event time, the chunk. The group is never
#: null, as in single rows: Spark takes no state key that may be null after one that may not.
PACKED_SCHEMA: Final = "_group int not null, _watermark timestamp, _chunk binary"


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
        reader = KeyTimes(self.keys, ("", int), len(self.labels))
        for batch in batches:
            rows: list[tuple[int, bytes, str | None, int]] = []
            columns = (batch[name].to_pylist() for name in ("output", "records", "chunk"))
            for output, records, chunk in zip(*columns, strict=True):
                if output == self.output:
                    rows += self._events(chunk, reader)
                if output == FORWARDED:
                    rows += self._controls(chunk)
                elif output == WATERMARK:
                    rows += [(label, chunk, None, 0) for label in self.labels]
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

    def _events(self, packed: bytes, reader: KeyTimes) -> Iterator[tuple[int, bytes, None, int]]:
        chunk = decode_output(packed)
        keys, _, groups = reader.read(chunk.payloads, None, {})
        columns = (keys, chunk.times, chunk.event_ids, chunk.payloads, chunk.on_time)
        for group, rows in _by_group(groups, None, len(self.labels)):
            of_keys, times, causes, values, on_time = (list(pick(c, rows)) for c in columns)
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
    say when it came), ``_unknown_version``, ``_headers``, ``_input`` (place of the row's input; null where it
    has none) and columns of parts of the key.

    Args:
        inputs: What the rows are; of several inputs each row says which is its.
        labels: Label of each key group.
        skew_ms: How far an event's time may be ahead of its arrival, ms.
        keep_all_headers: Keep headers of every row, or of those without a key or a time.
        bound_ms: How far the watermark stays behind the newest event: every group is told, with the rows,
            which one they bring. ``None``: nothing is told.
    """

    inputs: tuple[KeyFields, ...]
    labels: tuple[int, ...]
    skew_ms: int | None = None
    keep_all_headers: bool = True
    bound_ms: int | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pack the batches of one partition."""
        import pyarrow as pa

        keep_out_of_collection()
        readers = [KeyTimes(of.keys, of.event_time, len(self.labels)) for of in self.inputs]

        def rows(groups: Sequence[int], newest: Sequence[int], chunks: Sequence[bytes]) -> pa.RecordBatch:
            times = [None if n == NO_TIME else n * 1000 for n in newest]
            columns = [
                pa.array(groups, pa.int32()),
                pa.array(times, pa.timestamp("us", "UTC")),
                pa.array(chunks, pa.binary()),
            ]
            return pa.RecordBatch.from_arrays(columns, names=["_group", "_watermark", "_chunk"])

        last = NO_TIME
        for batch in batches:
            if not batch.num_rows:
                continue
            groups, newest, chunks = self._pack(batch, readers)
            last = max([last, *newest])
            yield rows(groups, newest, chunks)
        if self.bound_ms is not None and last != NO_TIME:
            told = encode_ahead(last - self.bound_ms - 1)
            count = len(self.labels)
            yield rows(self.labels, [NO_TIME] * count, [told] * count)

    def _pack(
        self, batch: pa.RecordBatch, readers: list[KeyTimes]
    ) -> tuple[list[int], list[int], list[bytes]]:
        names = batch.schema.names
        values = [v or b"" for v in batch["_value"].to_pylist()]
        causes = batch["_source_id"].to_pylist() if "_source_id" in names else None
        control = batch["_control"].to_pylist() if "_control" in names else None
        given = {name: batch[name].to_pylist() for reader in readers for name in reader.given}
        inputs = batch["_input"].to_pylist() if "_input" in names else None
        if inputs is None:
            keys, times, groups = readers[0].read(values, control, given)
        else:
            keys, times, groups = read_inputs(readers, inputs, values, given)
        kinds = self._kinds(batch, times, control)
        headers = self._headers(batch["_headers"], keys, times, kinds) if "_headers" in names else None
        idle_at = _idle_at(values, control)
        marks = self._marks(inputs, control)
        if marks is not None:
            values = list(map(operator.add, marks, values))
        columns = (keys, times, kinds, causes, headers, values)
        labels, newest, chunks = [], [], []
        for group, rows in _by_group(groups, kinds, len(self.labels)):
            part = [None if c is None else list(pick(c, rows)) for c in columns]
            of_kind = None if part[2] is None else bytes(part[2])
            labels.append(self.labels[group])
            newest.append(max(idle_at, _newest(part[1], of_kind)))  # type: ignore[arg-type]
            chunks.append(InputChunk(part[0], part[1], of_kind, *part[3:]).encode())  # type: ignore[arg-type]
        return labels, newest, chunks

    def _marks(self, inputs: list[int | None] | None, control: list[bool] | None) -> Iterable[bytes] | None:
        """Return what goes in front of each row; ``None``: nothing."""
        if inputs is not None:
            of: dict[int | None, bytes] = {place: each.mark for place, each in enumerate(self.inputs)}
            marks: Iterable[bytes] = (of.get(place, NO_INPUT) for place in inputs)
        elif mark := self.inputs[0].mark:
            marks = itertools.repeat(mark)
        else:
            return None
        if control is None:
            return marks
        return (b"" if is_control else mark for is_control, mark in zip(control, marks, strict=False))

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


def keep_out_of_collection() -> None:
    """Take what is loaded out of the search for reference cycles.

    Spark's workers run a full collection after every task: tens of milliseconds with the libraries
    loaded, for nothing. A worker that has packed events gets a process with its own libraries later, so
    this looks again whenever modules have come.
    """
    global _frozen_modules
    modules = len(sys.modules)
    if modules > _frozen_modules:
        _frozen_modules = modules
        gc.collect()
        gc.freeze()


#: How many modules were loaded when the worker last froze what there was.
_frozen_modules = 0


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
