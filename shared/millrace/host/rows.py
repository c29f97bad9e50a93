"""Rows and emissions: input and output of a runner, with their order and identities."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import msgspec

from millrace.dead_letters import position


class Row(msgspec.Struct, frozen=True, gc=False):
    """One event of a batch.

    Attributes:
        event_time: Event time, ms.
        raw: Original bytes: they break ties between events of one time, stand in dead letters, and
            make the event anew after a failure, since a process may keep and change the event itself.
        cause: The event's identity in its source, or ``None``.
        event: The decoded event.
        headers: Original headers as JSON text, for dead letters.
        on_time: Of what another process emitted: whether it was on time, which was judged where the
            event came in. ``None`` for events of a source: judged here.
        is_ahead: Of what another process emitted: whether it had come to the watermark that the batch ends
            with.
    """

    event_time: int
    raw: bytes
    cause: str | None
    event: Any
    headers: str | None = None
    on_time: bool | None = None
    is_ahead: bool = False


#: Bit of an emission's ``on_time``: the process had come to the watermark that the batch ends with.
IS_AHEAD: Final = 2


class Emission(NamedTuple):
    """One record that a process emitted.

    Attributes:
        output: Name of the output.
        event_id: Identity of the record, the same when the batch is run again; ``None`` where the
            source names no identity of its events.
        key: The key's text.
        event_time: Time of its cause, ms.
        on_time: False for what a late event caused, and for refinements and corrections; with ``IS_AHEAD``.
        payload: The record as the host's encoder left it.
    """

    output: str
    event_id: str | None
    key: str
    event_time: int
    on_time: bool
    payload: Any


class Emissions(NamedTuple):
    """Records that a process emitted to one output, as columns of one length; see :class:`Emission`."""

    output: str
    event_ids: list[str | None]
    keys: list[str]
    event_times: list[int]
    on_time: bytes
    payloads: list[Any]

    def each(self) -> Iterable[Emission]:
        """Return the records one by one."""
        output, ids, keys, times, on_time, payloads = self
        return map(Emission, itertools.repeat(output), ids, keys, times, map(bool, on_time), payloads)


# As Emission(...), which goes through a function in Python: one is made for every event.
new_emission: Final[Callable[[tuple[Any, ...]], Emission]] = functools.partial(tuple.__new__, Emission)


# As blake2b(…, digest_size=16), which reads its arguments for as long as it hashes.
_fresh_hash: Final = blake2b(digest_size=16).copy


def make_event_id(process: str, key: str, cause: str, output: str, index: int, revision: int = 0) -> str:
    """Return the identity of an output record: 32 hexadecimal digits."""
    return event_id(common_of(process, key), cause, output, index, revision)


def common_of(process: str, key: str) -> str:
    """Return what the identities of one key have in common, for :func:`event_id`."""
    return f"{process}\x1f{key}\x1f"


def event_id(common: str, cause: str, output: str, index: int, revision: int = 0) -> str:
    """Return an identity; see :func:`make_event_id`."""
    text = f"{common}{cause}\x1f{output}\x1f{index}"
    if revision:
        text = f"{text}\x1f{revision}"
    hashed = _fresh_hash()
    hashed.update(text.encode())
    return hashed.hexdigest()


def event_ids(
    commons: Iterable[str], causes: Iterable[str | None], output: str, indexes: Iterable[int] | None = None
) -> list[str | None]:
    r"""Return the identities of records of one output, as :func:`event_id` does of each.

    Args:
        commons: What the identities of each record's key have in common.
        causes: What each comes of; a record of nothing has no identity.
        output: The output.
        indexes: Its number among those of one cause; ``None``: 0 of all.

    >>> event_ids(["P\x1f1:a\x1f"], ["in:0:1"], "main") == [make_event_id("P", "1:a", "in:0:1", "main", 0)]
    True
    """
    made: list[str | None] = []
    add, fresh = made.append, _fresh_hash
    for common, cause, index in zip(commons, causes, indexes or itertools.repeat(0), strict=False):
        if cause is None:
            add(None)
            continue
        hashed = fresh()
        hashed.update(f"{common}{cause}\x1f{output}\x1f{index}".encode())
        add(hashed.hexdigest())
    return made


def in_order(rows: list[Row]) -> list[Row]:
    """Return the rows of a key by event time; ties by payload bytes, then by position in the source."""
    if len(rows) == 1:
        return rows
    if len({row.event_time for row in rows}) == len(rows):
        return sorted(rows, key=_time)
    return sorted(rows, key=lambda r: (r.event_time, json_of(r), cause_order(r.cause)))


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


def is_bare(raw: bytes) -> bool:
    """Return whether the bytes of a row are none, or say no more than by which input its event came.

    >>> is_bare(b""), is_bare(b"A"), is_bare(b"7"), is_bare(b"A7")
    (True, True, False, False)
    """
    return len(raw) < 2 and not raw.isdigit()


def json_of(row: Row) -> bytes:
    """Return a row's event as JSON, also where it came as it is."""
    return row.raw + as_json(row.event) if is_bare(row.raw) else row.raw


def as_json(value: Any) -> bytes:
    """Return anything as JSON."""
    return msgspec.json.encode(value, enc_hook=str)  # the text of whatever JSON does not know
