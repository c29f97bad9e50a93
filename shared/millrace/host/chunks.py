"""Chunks: many rows of a key group as one value.

Spark moves rows one by one where Python state is concerned: its serializers build and take apart every
row of an Arrow batch in Python. A chunk is what one row carries instead: the columns of all the rows
that go the same way, packed with MessagePack. Nothing here knows an engine.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from millrace.host.rows import Emission, Emissions
from millrace.time.clock import ClockStatus, SourceReport

T = TypeVar("T")

#: Kinds of input rows.
DATA, CONTROL, FUTURE, UNKNOWN_VERSION = 0, 1, 2, 3
#: The kind of a row whose time is the watermark that the batch ends with; it goes to every key group.
AHEAD: Final = 4
#: The output by which a process says how far its clock is: to the next one of a chain, and to the sink.
WATERMARK: Final = "$watermark"
#: The output by which a process hands control events on to the next one of a chain.
FORWARDED: Final = "$control"
#: A control event on its way: bytes, identity in its source, headers, event time.
Forwarded = tuple[bytes, str | None, str | None, int]
#: A chunk has no more bytes of events than this, unless a single one has.
CHUNK_BYTES: Final = 4 << 20
#: Stands for "no event time" in columns of event times, which have no nulls.
NO_TIME: Final = -(2**63)


class InputChunk(NamedTuple):
    """Rows on their way to a key group, as columns of one length.

    Attributes:
        keys: Key texts, ``None`` where a row has none.
        times: Event times, ms; ``NO_TIME`` where a row has none.
        kinds: One byte per row, ``None`` where all are ``DATA``.
        causes: Identities of the rows in their source, ``None`` where the source has none.
        headers: Headers as text, ``None`` where no row has any.
        values: The events as bytes.
        on_time: One byte per row of what another process emitted, 1 where it was on time, plus
            ``IS_AHEAD``; ``None`` for events of a source, whose lateness is yet to be judged.
        reports: What a task read of its sources in this batch, once for every key group.
        believed: What the events' times are taken for by the clocks of their keys, ms; ``NO_TIME``: they
            move none. ``None``: the times as they are.
        source: What the rows are of, if they have ``offsets``.
        offsets: Where they stand there, in place of ``causes``: a row's identity is ``source:offset``.
    """

    keys: list[str | None]
    times: list[int]
    kinds: bytes | None
    causes: list[str | None] | None
    headers: list[str | None] | None
    values: list[bytes]
    on_time: bytes | None = None
    reports: list[SourceReport] | None = None
    believed: list[int] | None = None
    source: str = ""
    offsets: list[int] | None = None

    def identities(self) -> list[str | None] | list[str] | None:
        """Return the identities of the rows in their source, ``None`` where it has none.

        >>> InputChunk(["1:a"], [5], None, None, None, [b"{}"], source="in:0", offsets=[7]).identities()
        ['in:0:7']
        """
        if self.offsets is None:
            return self.causes
        source = self.source
        return [f"{source}:{offset}" for offset in self.offsets]

    def encode(self) -> bytes:
        """Pack the chunk."""
        return _encode(tuple(self))


class OutputChunk(NamedTuple):
    """Emissions of one output of a key group, as columns of one length; see :class:`Emission`.

    Attributes:
        event_ids: Identities.
        keys: Key texts.
        times: Event times, ms.
        on_time: One byte per row, 1 where it was on time, plus ``IS_AHEAD``.
        payloads: The records as JSON.
    """

    event_ids: list[str | None]
    keys: list[str]
    times: list[int]
    on_time: bytes
    payloads: list[bytes]

    def __add__(self, other: Any) -> OutputChunk:
        """Return this chunk with the rows of another after its own."""
        return OutputChunk(*(a + b for a, b in zip(self, other, strict=True)))

    def part(self, start: int, end: int) -> OutputChunk:
        """Return some of the rows."""
        own = slice(start, end)
        return OutputChunk(
            self.event_ids[own], self.keys[own], self.times[own], self.on_time[own], self.payloads[own]
        )


_encode = msgspec.msgpack.Encoder().encode
_output_of = operator.itemgetter(0)
_input = msgspec.msgpack.Decoder(
    tuple[
        list[str | None],
        list[int],
        bytes | None,
        list[str | None] | None,
        list[str | None] | None,
        list[bytes],
        bytes | None,
        list[SourceReport] | None,
        list[int] | None,
        str,
        list[int] | None,
    ]
)
_output = msgspec.msgpack.Decoder(tuple[list[str | None], list[str], list[int], bytes, list[bytes]])


_status = msgspec.msgpack.Decoder(ClockStatus)
_forwarded = msgspec.msgpack.Decoder(list[Forwarded])


def encode_reports(reports: list[SourceReport]) -> bytes:
    """Pack what a task read of its sources, for a key group that gets no rows of it."""
    return InputChunk([], [], None, None, None, [], None, reports).encode()


def encode_status(status: ClockStatus) -> bytes:
    """Pack how far the clock of a process is, as rows on their way to a key group of the next one."""
    told = _encode(status)
    return InputChunk([None], [status.watermark], bytes([AHEAD]), None, None, [told]).encode()


def decode_status(told: bytes) -> ClockStatus:
    """Unpack the value of a row of the kind ``AHEAD``."""
    return _status.decode(told)


def status_of(chunk: bytes) -> ClockStatus:
    """Return how far a process's clock is, from the chunk of its output ``WATERMARK``."""
    return decode_status(decode_input(chunk).values[0])


def encode_forwarded(controls: list[Forwarded]) -> bytes:
    """Pack control events."""
    return _encode(controls)


def decode_forwarded(chunk: bytes) -> list[Forwarded]:
    """Unpack control events."""
    return _forwarded.decode(chunk)


def decode_input(chunk: bytes) -> InputChunk:
    """Unpack rows."""
    return InputChunk(*_input.decode(chunk))


def decode_output(chunk: bytes) -> OutputChunk:
    """Unpack emissions."""
    return OutputChunk(*_output.decode(chunk))


def join_output(chunks: Iterable[bytes]) -> OutputChunk:
    """Unpack the emissions of several chunks as one.

    >>> one = encode_emissions([Emission("main", None, "1:a", 5, True, b"1")])[0][2]
    >>> join_output([one, one]).payloads
    [b'1', b'1']
    """
    ids: list[str | None] = []
    keys: list[str] = []
    times: list[int] = []
    on_time = bytearray()
    payloads: list[bytes] = []
    for chunk in map(_output.decode, chunks):
        ids += chunk[0]
        keys += chunk[1]
        times += chunk[2]
        on_time += chunk[3]
        payloads += chunk[4]
    return OutputChunk(ids, keys, times, bytes(on_time), payloads)


def encode_emissions(emissions: Sequence[Emission]) -> list[tuple[str, int, bytes]]:
    """Pack emissions: one chunk per output, several where they are large.

    Returns:
        Tuples of output, number of records and chunk.
    """
    by_output: dict[str, Sequence[Emission]] = {}
    names = set(map(_output_of, emissions))
    if len(names) == 1:
        by_output[names.pop()] = emissions
    else:
        for emission in emissions:
            of = by_output.get(emission[0])
            if of is None:
                by_output[emission[0]] = [emission]
            else:
                of.append(emission)  # type: ignore[attr-defined]
    made = []
    for output, records in by_output.items():
        _, ids, keys, times, on_time, payloads = zip(*records, strict=True)
        made += encode_columns(Emissions(output, ids, keys, times, bytes(on_time), payloads))  # type: ignore[arg-type]
    return made


def encode_columns(emitted: Emissions) -> list[tuple[str, int, bytes]]:
    """Pack records of one output that are columns; the result is that of :func:`encode_emissions`."""
    output, columns, payloads = emitted.output, emitted[1:], emitted.payloads
    if sum(map(len, payloads)) <= CHUNK_BYTES:
        return [(output, len(payloads), _encode(columns))]
    made, start = [], 0
    for part in parts_of(payloads, list(map(len, payloads))):
        end = start + len(part)
        made.append((output, len(part), _encode([column[start:end] for column in columns])))
        start = end
    return made


def parts_of(rows: Sequence[T], sizes: Sequence[int]) -> Iterable[Sequence[T]]:
    """Return rows in parts that are no larger than a chunk is to be, nearly always in one.

    What moves a chunk copies it, into buffers that grow by doubling: some dozens of events of a megabyte, as
    dead letters of one output, would be more than a JVM of the usual size has.

    Args:
        rows: The rows.
        sizes: How many bytes each has.

    >>> [len(part) for part in parts_of("abcd", [5, CHUNK_BYTES, 7, 8])]
    [1, 1, 2]
    """
    if sum(sizes) <= CHUNK_BYTES:
        return (rows,)
    parts, first, size = [], 0, 0
    for place, own in enumerate(sizes):
        if size + own > CHUNK_BYTES and place > first:
            parts.append(rows[first:place])
            first, size = place, 0
        size += own
    return [*parts, rows[first:]]
