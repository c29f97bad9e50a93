"""Packing before the shuffle: a partition's rows in, one row per key group out.

This runs in Spark's workers, in front of the state operator. It finds key, event time and key group of
each event, makes one chunk of all the events of an Arrow batch that go to the same group, and tells every
group what it has read of each source, from which the group's clock follows.
"""

from __future__ import annotations

import gc
import itertools
import operator
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import msgspec
import numpy as np

from millrace.host.chunks import (
    CHUNK_BYTES,
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
    encode_reports,
    parts_of,
)
from millrace.host.groups import station_of
from millrace.host.key_times import FIRST_MS, LAST_MS, KeyFields, KeyTimes, pick, read_inputs
from millrace.host.system import SYSTEM_PREFIX
from millrace.inputs import NO_INPUT
from millrace.time import ms_of
from millrace.time.clock import ClockSettings, SourceReport, merged

if TYPE_CHECKING:
    import pyarrow as pa

    from millrace.contracts.formats import Formatted

#: What a packed DataFrame has: where a chunk goes, and the chunk. The group is never null: Spark takes no
#: state key that may be null after one that may not.
PACKED_SCHEMA: Final = "_group int not null, _chunk binary"


#: Input of a state operator behind another: a chunk, or what only passes. Here, too, the group is never null:
#: state that was written anew has such keys, and Spark takes no key that may be null after one that may not.
CHAINED_SCHEMA: Final = "_group int not null, _chunk binary, _passes string, _records long"


class Going(NamedTuple):
    """An output whose records go on to a process.

    Attributes:
        output: Its name.
        keys: Fields of its records that make the key, with their types.
        mark: What leads its records, to say by which input of the process they come.
    """

    output: str
    keys: tuple[tuple[str, Any], ...]
    mark: bytes = b""


@dataclass(frozen=True)
class Repacker:
    """Gives what a process emitted new keys; pass it to ``mapInArrow``.

    The batches have the columns output, records and chunk. Records of what is taken become events of the
    next process, with the time of their cause; all others pass it by, under ``names``.

    Args:
        takes: The outputs whose records go on.
        labels: Label of each key group.
        names: Output → name under which it passes; outputs that stand not here are dropped.
    """

    takes: tuple[Going, ...]
    labels: tuple[int, ...]
    names: dict[str, str]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pack the chunks of one partition anew."""
        import pyarrow as pa

        keep_out_of_collection()
        takes: dict[str, list[tuple[bytes, KeyTimes]]] = {}
        for going in self.takes:
            reader = KeyTimes(going.keys, ("", int), len(self.labels))
            takes.setdefault(going.output, []).append((going.mark, reader))
        for batch in batches:
            rows: list[tuple[int, bytes, str | None, int]] = []
            columns = (batch[name].to_pylist() for name in ("output", "records", "chunk"))
            for output, records, chunk in zip(*columns, strict=True):
                for mark, reader in takes.get(output, ()):
                    rows += self._events(chunk, mark, reader)
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

    def _events(self, packed: bytes, mark: bytes, reader: KeyTimes) -> Iterator[tuple[int, bytes, None, int]]:
        chunk = decode_output(packed)
        keys, _, groups = reader.read(chunk.payloads, None, {})
        events = [mark + payload for payload in chunk.payloads] if mark else chunk.payloads
        columns = (keys, chunk.times, chunk.event_ids, events, chunk.on_time)
        for group, rows in _by_group(groups, None, len(self.labels)):
            of_keys, times, causes, values, on_time = (list(pick(c, rows)) for c in columns)
            part = InputChunk(of_keys, times, None, causes, None, values, bytes(on_time))
            yield self.labels[group], part.encode(), None, len(rows)

    def _controls(self, packed: bytes) -> Iterator[tuple[int, bytes, None, int]]:
        raws, causes, headers, times = map(list, zip(*decode_forwarded(packed), strict=True))
        count = len(raws)
        part = InputChunk([None] * count, times, bytes([CONTROL]) * count, causes, headers, raws).encode()
        for label in self.labels:
            yield label, part, None, count


class ClockNow(Protocol):
    """Where a task learns what the clock goes by in its batch."""

    def now(self) -> ClockSettings:
        """Return the settings of the batch that is running."""


class Masks(Protocol):
    """What replaces something in messages, such as card numbers, before anything keeps it."""

    def messages(self, values: list[bytes], column: pa.Array | None = None) -> list[bytes]:
        """Return messages without it; ``column`` has the same ones, as Arrow has them."""

    def value(self, value: Any) -> Any:
        """Return texts and bytes, and lists and dicts of them, without it."""


class Masking(Protocol):
    """Where a task opens what replaces something in messages."""

    def open(self) -> Masks:
        """Return what replaces it; called once per task."""


@dataclass(frozen=True)
class Packer:
    """Packs Arrow batches; pass it to ``mapInArrow``.

    The batches have the columns ``_value`` (the event's JSON), ``_source_id``, and, where they are
    wanted, ``_time`` (event time, ms, of events that are columns), ``_control`` (whether a row is a control
    event), ``_arrived`` (ms; infinite where a row does not say when it came), ``_source``, ``_partition``
    and ``_offset`` (where a row stands in its source), ``_unknown_version``, ``_headers``,
    ``_input`` (place of the row's input; null where it has none) and columns of parts of the key.

    Args:
        inputs: What the rows are; of several inputs each row says which is its.
        labels: Label of each key group.
        future_ms: How far an event's time may be ahead of its arrival, ms.
        keep_all_headers: Keep headers of every row, or of those without a key or a time.
        clock: What the clock goes by: every group is told, with the rows, what the task has read of each
            source. ``None``: nothing is told.
        place: Place of this stream among those that are connected.
        readers: What reads it, by number, of each topic (``""``: of all others): streams made of one Kafka
            source share its limit.
        by_key: Whether keys have clocks of their own: the groups are told what each row is taken for.
        by_locality: Whether the groups are stations: an event goes to that of its key's locality.
        masking: What is done to events, headers and keys before anything else.
        formats: Format of each input's events, where they are not JSON alone.
        by_place: Whether an event's identity is where it stands, ``source:partition:offset``, which is in no
            column of its own then.
    """

    inputs: tuple[KeyFields, ...]
    labels: tuple[int, ...]
    future_ms: int | None = None
    keep_all_headers: bool = True
    clock: ClockNow | None = None
    place: int = 0
    readers: Mapping[str, int] = field(default_factory=lambda: {"": 0})
    by_key: bool = False
    by_locality: bool = False
    masking: Masking | None = None
    formats: tuple[Formatted | None, ...] = ()
    by_place: bool = False

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pack the batches of one partition."""
        import pyarrow as pa

        keep_out_of_collection()
        readers = [KeyTimes(of.keys, of.event_time, len(self.labels)) for of in self.inputs]
        sources = None if self.clock is None else SourcesRead(self.place, self.readers, self.clock.now())
        masks = None if self.masking is None else self.masking.open()
        as_json = [None if of is None else of.open() for of in self.formats]

        def rows(chunks: Iterable[tuple[int, bytes]]) -> pa.RecordBatch:
            groups, packed = zip(*chunks, strict=True)
            columns = [pa.array(groups, pa.int32()), pa.array(packed, pa.binary())]
            return pa.RecordBatch.from_arrays(columns, names=["_group", "_chunk"])

        # The last batch waits until it is known to be the last: what was read of the sources rides in it.
        waiting: list[tuple[int, InputChunk]] | None = None
        for batch in batches:
            if not batch.num_rows:
                continue
            if waiting is not None:
                yield rows((label, chunk.encode()) for label, chunk in waiting)
            waiting = self._pack(batch, readers, sources, masks, as_json)
        if waiting is None:
            return
        reports = None if sources is None else sources.reports()
        # Of several chunks of a group the first tells it.
        tells = {label: place for place, (label, _) in reversed(list(enumerate(waiting)))}
        chunks = [
            (label, (chunk._replace(reports=reports) if tells[label] == place else chunk).encode())
            for place, (label, chunk) in enumerate(waiting)
        ]
        if reports is not None:
            told = encode_reports(reports)
            chunks += [(label, told) for label in self.labels if label not in tells]
        yield rows(chunks)

    def _pack(
        self,
        batch: pa.RecordBatch,
        readers: list[KeyTimes],
        sources: SourcesRead | None,
        masks: Masks | None,
        as_json: Sequence[Callable[[bytes], bytes] | None],
    ) -> list[tuple[int, InputChunk]]:
        names = batch.schema.names
        values: list[bytes] = batch["_value"].to_pylist()
        if batch["_value"].null_count:
            values = [v or b"" for v in values]
        causes = batch["_source_id"].to_pylist() if "_source_id" in names else None
        control = batch["_control"].to_pylist() if "_control" in names else None
        if control is not None and not any(control):
            control = None
        given = {name: batch[name].to_pylist() for reader in readers for name in reader.given}
        inputs = batch["_input"].to_pylist() if "_input" in names else None
        if any(as_json):
            values = _as_json(values, inputs, control, batch, as_json)
        if masks is not None:
            values = _masked(values, None if any(as_json) else batch["_value"], control, masks)
            given = masks.value(given)
        if inputs is None:
            keys, times, groups = readers[0].read(values, control, given)
        else:
            keys, times, groups = read_inputs(readers, inputs, values, given)
        if self.by_locality:
            count = len(self.labels)
            groups = [
                of_bytes if key is None else station_of(key, count)
                for key, of_bytes in zip(keys, groups, strict=True)
            ]
        if "_time" in names:
            times = [_within_years(time) for time in batch["_time"].to_pylist()]
        if control is not None and "_control_time" in names:
            _put_control_times(times, control, batch["_control_time"].to_pylist(), values)
        at = np.array(times, dtype=np.int64)
        kinds = self._kinds(batch, at, control)
        headers = None
        if "_headers" in names:
            headers = self._headers(batch["_headers"], keys, at, kinds, masks)
        found = list(_by_source(batch)) if sources is not None or self.by_place else []
        source, offsets = "", None
        if self.by_place and len(found) == 1:
            source, offsets = found[0][0], batch["_offset"].to_pylist()
        elif self.by_place:
            causes = _places(found, batch["_offset"].to_numpy())
        seen = None if sources is None else sources.add(batch, at, kinds, inputs, found)
        marks = self._marks(inputs, control)
        if marks is not None:
            values = list(map(operator.add, marks, values))
        told: list[int] | None = None
        if self.by_key and seen is not None:
            plausible, counts = seen
            told = np.where(counts, plausible, NO_TIME).tolist()
            told = None if told == times else told
        columns = (keys, times, kinds, causes, headers, values, told, offsets)
        chunks = []
        for group, part in self._parts(columns, groups, kinds, values):
            of_keys, of_times, of_kinds, of_causes, of_headers, of_values, believed, places = part
            chunk = InputChunk(
                of_keys,
                of_times,
                None if of_kinds is None else bytes(of_kinds),
                of_causes,
                of_headers,
                of_values,
                believed=believed,
                source=source,
                offsets=places,
            )
            chunks.append((self.labels[group], chunk))
        return chunks

    def _parts(
        self,
        columns: Sequence[Sequence[Any] | None],
        groups: list[int],
        kinds: list[int] | None,
        values: list[bytes],
    ) -> Iterator[tuple[int, list[Any]]]:
        """Yield each group with its rows of some columns, in parts no larger than a chunk is to be."""
        whole = sum(map(len, values)) <= CHUNK_BYTES
        if whole and (kinds is None or CONTROL not in kinds):
            # Put in order once, a group's rows are cut out.
            order, cuts = _in_groups(
                np.array(groups, dtype=np.int16 if len(self.labels) < 1 << 15 else np.int64)
            )
            rows = order.tolist()
            ordered = [None if column is None else pick(column, rows) for column in columns]
            for low, high in cuts:
                yield groups[rows[low]], [None if column is None else column[low:high] for column in ordered]
            return
        found = _by_group(groups, kinds, len(self.labels))
        for group, of_group in found if whole else _in_parts(found, values):
            yield group, [None if column is None else pick(column, of_group) for column in columns]

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
        self,
        column: pa.Array,
        keys: list[str | None],
        times: np.ndarray,
        kinds: list[int] | None,
        masks: Masks | None,
    ) -> list[str | None] | None:
        """Return the headers that are wanted as text: JSON of what is not text already."""
        count = len(keys)
        wanted: Sequence[int] = range(count)
        if not self.keep_all_headers:
            wanted = [] if kinds is None else [i for i in wanted if kinds[i] in (FUTURE, UNKNOWN_VERSION)]
            untimed = times == NO_TIME
            if untimed.any() or not all(keys):
                wanted += [i for i, none in enumerate(untimed.tolist()) if none or keys[i] is None]
        if not wanted:
            return None
        texts: list[str | None] = [None] * count
        for i in wanted:
            found = column[i].as_py()
            if masks is not None:
                found = masks.value(found)
            if found is not None:
                texts[i] = found if isinstance(found, str) else msgspec.json.encode(found).decode()
        return texts

    def _kinds(
        self, batch: pa.RecordBatch, times: np.ndarray, control: list[bool] | None
    ) -> list[int] | None:
        """Return the kind of each row, ``None`` where all are data."""
        kinds = None
        if self.future_ms is not None:
            arrived = batch["_arrived"].to_numpy(zero_copy_only=False)
            ahead = times.astype(np.float64) > arrived + self.future_ms
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


def _masked(
    values: list[bytes], column: pa.Array | None, control: list[bool] | None, masks: Masks
) -> list[bytes]:
    """Return messages as they may be kept; those of the engine stay as they are."""
    masked = masks.messages(values, column)
    if control is None or masked is values or not any(control):
        return masked
    return [
        value if is_control and value.startswith(SYSTEM_PREFIX) else made
        for value, made, is_control in zip(values, masked, control, strict=True)
    ]


def _as_json(
    values: list[bytes],
    inputs: list[int | None] | None,
    control: list[bool] | None,
    batch: pa.RecordBatch,
    formats: Sequence[Callable[[bytes], bytes] | None],
) -> list[bytes]:
    """Return the events of other formats as JSON; control events are that, and unknown versions not read."""
    asis = set() if control is None else {row for row, is_control in enumerate(control) if is_control}
    if "_unknown_version" in batch.schema.names:
        asis |= {row for row, unknown in enumerate(batch["_unknown_version"].to_pylist()) if unknown}
    made = []
    for row, value in enumerate(values):
        place = 0 if inputs is None else inputs[row]
        read = None if place is None or row in asis else formats[place]
        made.append(value if read is None else read(value))
    return made


def _put_control_times(
    times: list[int], control: list[bool], told: list[str | None], values: list[bytes]
) -> None:
    """Give control events the times from which on they hold; messages of the engine have none."""
    for row, text in enumerate(told):
        if control[row] and text and not values[row].startswith(SYSTEM_PREFIX):
            times[row] = _within_years(_as_ms(text))


def _as_ms(text: str) -> int | None:
    """Return a time in ms: a number of them, or a date and a time.

    >>> _as_ms("1700000000000"), _as_ms("2023-11-14T22:13:20Z"), _as_ms("tomorrow")
    (1700000000000, 1700000000000, None)
    """
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return ms_of(datetime.fromisoformat(text))
    except ValueError:
        return None


def _within_years(time: int | None) -> int:
    return time if time is not None and FIRST_MS <= time <= LAST_MS else NO_TIME


class SourcesRead:
    """What a task has read of its sources so far.

    Args:
        place: Place of the stream among those that are connected.
        readers: What reads it, by number: topic → reader, ``""`` for all others.
        settings: What the clock goes by.
    """

    def __init__(self, place: int, readers: Mapping[str, int], settings: ClockSettings) -> None:
        self._readers = readers
        self._skew_ms = settings.skews[place]
        self._clocks = settings.clocks[place]
        self._read: dict[str, SourceReport] = {}

    def reports(self) -> list[SourceReport]:
        """Return a report of each source."""
        return list(self._read.values())

    def add(
        self,
        batch: pa.RecordBatch,
        at: np.ndarray,
        kinds: list[int] | None,
        inputs: list[int | None] | None,
        found: Iterable[tuple[str, Any]] | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Take note of the rows of an Arrow batch; return their plausible times, and which of them count.

        Args:
            batch: The rows.
            at: Their event times, ms.
            kinds: Their kinds; ``None``: all are data.
            inputs: Places of their inputs; ``None``: there is one.
            found: Their sources, each with its rows, where these are known already.
        """
        names = batch.schema.names
        arrived = batch["_arrived"].to_numpy(zero_copy_only=False) if "_arrived" in names else None
        is_clock = self._of_clocks(len(at), inputs)
        valid = is_clock & (at != NO_TIME)
        timed = None
        if kinds is not None:
            of_kind = np.array(kinds)
            is_clock = is_clock & (of_kind != CONTROL)
            valid &= of_kind == DATA
            timed = (of_kind == CONTROL) & (at != NO_TIME)
        if arrived is not None and self._skew_ms is not None:
            at = np.minimum(at, np.where(np.isfinite(arrived), arrived + self._skew_ms, LAST_MS)).astype(
                np.int64
            )
        offsets = batch["_offset"].to_numpy(zero_copy_only=False) if "_offset" in names else None
        for source, rows in _by_source(batch) if found is None else found:
            self._note(source, rows, at, valid, is_clock, arrived, offsets, timed)
        return at, valid

    def _note(
        self,
        source: str,
        rows: Any,
        at: np.ndarray,
        valid: np.ndarray,
        is_clock: np.ndarray,
        arrived: np.ndarray | None,
        offsets: np.ndarray | None,
        timed: np.ndarray | None,
    ) -> None:
        times = at[rows][valid[rows]]
        controls = times[:0] if timed is None else at[rows][timed[rows]]
        of_clocks = is_clock[rows]
        came = None if arrived is None else arrived[rows][of_clocks]
        came = None if came is None else came[np.isfinite(came)]
        own = None if offsets is None else offsets[rows]
        report = SourceReport(
            self._readers.get(source.rpartition(":")[0], self._readers[""]),
            source,
            None if own is None else int(own.min()),
            None if own is None else int(own.max()),
            len(of_clocks),
            bool(of_clocks.any()),
            int(times.max()) if len(times) else None,
            int(came.max()) if came is not None and len(came) else None,
            int(controls.max()) if len(controls) else None,
        )
        before = self._read.get(source)
        self._read[source] = report if before is None else merged(before, report)

    def _of_clocks(self, count: int, inputs: list[int | None] | None) -> np.ndarray:
        """Return which rows are of an input that is a clock."""
        if inputs is None:
            return np.full(count, self._clocks[0])
        if all(self._clocks) and None not in inputs:
            return np.full(count, True)
        return np.array([place is not None and self._clocks[place] for place in inputs])


def _by_source(batch: pa.RecordBatch) -> Iterator[tuple[str, Any]]:
    """Yield each source of an Arrow batch, nearly always one, with its rows."""
    import pyarrow as pa
    import pyarrow.compute as pc

    names = [name for name in ("_source", "_partition") if name in batch.schema.names]
    if not names:
        yield "", slice(None)
        return
    columns = [batch[name] for name in names]
    if all(column.null_count == 0 and pc.all(pc.equal(column, column[0])).as_py() for column in columns):
        yield ":".join(str(column[0].as_py()) for column in columns), slice(None)
        return
    texts = [column.cast(pa.string()).to_pylist() for column in columns]
    rows_of: dict[tuple[str | None, ...], list[int]] = {}
    for row, parts in enumerate(zip(*texts, strict=True)):
        rows_of.setdefault(parts, []).append(row)
    for parts, rows in rows_of.items():
        yield ":".join(part or "" for part in parts), np.array(rows)


def _in_parts(found: Iterable[tuple[int, list[int]]], values: list[bytes]) -> Iterator[tuple[int, list[int]]]:
    """Yield the rows of each group in parts that are no larger than a chunk is to be."""
    for group, rows in found:
        for part in parts_of(rows, [len(values[row]) for row in rows]):
            yield group, list(part)


def _places(found: Iterable[tuple[str, Any]], offsets: np.ndarray) -> list[str | None]:
    """Return where each row stands, ``source:partition:offset``."""
    places: list[str | None] = [None] * len(offsets)
    for source, rows in found:
        for row, offset in zip(rows.tolist(), offsets[rows].tolist(), strict=True):
            places[row] = f"{source}:{offset}"
    return places


def _in_groups(at: np.ndarray) -> tuple[np.ndarray, list[tuple[int, int]]]:
    """Return rows by their group, in order within each, and where each group's begin and end there."""
    order = np.argsort(at, kind="stable")
    cuts = (np.flatnonzero(np.diff(at[order])) + 1).tolist()
    return order, list(itertools.pairwise([0, *cuts, len(at)])) if len(at) else []


def _by_group(groups: list[int], kinds: list[int] | None, count: int) -> Iterator[tuple[int, list[int]]]:
    """Yield each group with the numbers of its rows in order; control rows go to every group."""
    at = np.array(groups, dtype=np.int64)
    controls: list[int] = []
    rows = np.arange(len(groups))
    if kinds is not None:
        is_control = np.array(kinds) == CONTROL
        controls = rows[is_control].tolist()
        at, rows = at[~is_control], rows[~is_control]
    order, cuts = _in_groups(at)
    at, rows = at[order], rows[order]
    found = {int(at[low]): rows[low:high].tolist() for low, high in cuts}
    if not controls:
        yield from found.items()
        return
    for group in range(count):
        yield group, sorted(controls + found.get(group, []))
