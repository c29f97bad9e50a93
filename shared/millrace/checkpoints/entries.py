"""Entries read without their process, by the schema that stands beside the pages."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import msgspec

from millrace.host.groups import decode_key
from millrace.state.cells import UNREADABLE, StateCorrupted
from millrace.state.layout import ENGINE_SLOTS, OWN_CLOCK, STREAM_TIMERS, PendingRow, TimerRecord
from millrace.state.paged import EXTENT, owner_of
from millrace.state.slots import EXPIRING
from millrace.time import NEVER, NO_WATERMARK


@dataclass(frozen=True)
class KeptState:
    """One state of a key.

    Attributes:
        name: Its name.
        kind: ``value``, ``list``, ``map``, …
        value: What is kept, as plain data: structs as maps of their fields.
        expires_at: When it expires (ms; ``None``: never); of lists and maps for each item.
    """

    name: str
    kind: str
    value: Any
    expires_at: Any = None


@dataclass(frozen=True)
class KeptEntry:
    """Everything that is kept for a key.

    Attributes:
        timers: Pending timers on event time.
        processing_timers: Pending timers on processing time.
        waiting: Events that wait for the watermark.
        states: States that hold something, by name.
        stream_timers: Pending timers on the stream's clock.
        clock: How far the key's own clock is, ms; ``None``: it has none, or is not ahead of the process's.
    """

    timers: list[TimerRecord] = field(default_factory=list)
    processing_timers: list[TimerRecord] = field(default_factory=list)
    waiting: list[PendingRow] = field(default_factory=list)
    states: dict[str, KeptState] = field(default_factory=dict)
    stream_timers: list[TimerRecord] = field(default_factory=list)
    clock: int | None = None

    def as_data(self) -> dict[str, Any]:
        """Return the entry as plain data, for JSON."""
        return {
            "states": {s.name: s.value for s in self.states.values()},
            "expires_at": {s.name: s.expires_at for s in self.states.values() if s.expires_at is not None},
            "timers": [_timer(t) for t in self.timers],
            "processing_timers": [_timer(t) for t in self.processing_timers],
            **({"stream_timers": [_timer(t) for t in self.stream_timers]} if self.stream_timers else {}),
            **({} if self.clock is None else {"clock": self.clock}),
            "waiting": [{"event_time": r.event_time, "source_id": r.cause, "event": _event(r.raw)}
                        for r in self.waiting],
        }  # fmt: skip


class EntryReader:
    """Reads entries of one schema.

    Args:
        schema: What the slots are (:func:`millrace.state.schema.schema_of`).

    Raises:
        StateCorrupted: It is no schema.
    """

    def __init__(self, schema: bytes) -> None:
        try:
            self.slots = [(str(name), str(form), dict(state)) for name, form, state in json.loads(schema)]
        except (ValueError, TypeError) as error:
            raise StateCorrupted(f"a schema of the kept state cannot be read: {error}") from error
        fields: list[Any] = list(ENGINE_SLOTS)
        fields += [(f"s{i}", Any) for i in range(len(self.slots))]
        self._decoder = msgspec.msgpack.Decoder(msgspec.defstruct("Kept", fields, array_like=True))

    def read(self, body: bytes | msgspec.Raw) -> KeptEntry:
        """Read an entry.

        Raises:
            StateCorrupted: The bytes are not one.
        """
        try:
            kept: Any = self._decoder.decode(body)
        except UNREADABLE as error:
            raise StateCorrupted(f"the state of a key cannot be read: {error}") from error
        states: dict[str, KeptState] = {}
        clock, timers = None, []
        for i, (name, form, state) in enumerate(self.slots):
            slot = getattr(kept, f"s{i}")
            if name == STREAM_TIMERS.name:
                timers = msgspec.convert(slot, list[TimerRecord])
            elif slot is None or slot == [] or slot == {} or name.endswith(EXTENT):
                continue
            elif name == OWN_CLOCK.name:
                clock = slot[1][0] if slot[1][0] != NO_WATERMARK else None
            else:
                states[name] = KeptState(name, state["kind"], *_unpacked(state["kind"], form, slot))
        return KeptEntry(
            kept.timers_, kept.processing_timers_, kept.pending_, states, stream_timers=timers, clock=clock
        )

    def extents(self, body: bytes | msgspec.Raw) -> list[tuple[int, int, str]]:
        """Return which parts the states of an entry have that are paged."""
        kept: Any = self._decoder.decode(body)
        found = []
        for i, (name, form, _) in enumerate(self.slots):
            slot = getattr(kept, f"s{i}")
            if name.endswith(EXTENT) and slot is not None:
                first, end, state = slot[1] if form == EXPIRING else slot
                found.append((first, end, state))
        return found


def whole_entries(parts: Iterable[tuple[str, KeptEntry, int]]) -> Iterator[tuple[str, KeptEntry, int]]:
    """Yield the entries of keys, each with the items that stand in parts of their own.

    Args:
        parts: Text, entry and size in bytes of what stands in a key group, in any order.

    Yields:
        Key text, entry, size of all its parts.
    """
    of_key: dict[str, list[tuple[tuple[str, int], KeptEntry, int]]] = {}
    for text, entry, size in parts:
        owner, part = owner_of(text)
        of_key.setdefault(owner, []).append((part or ("", -1), entry, size))
    for key, found in of_key.items():
        found.sort(key=lambda one: one[0])
        _, first, size = found[0]
        states = dict(first.states)
        for _, entry, more in found[1:]:
            size += more
            for name, state in entry.states.items():
                states[name] = state if name not in states else _joined(states[name], state)
        yield key, replace(first, states=states), size


def _joined(one: KeptState, other: KeptState) -> KeptState:
    """Return the items of two parts as one."""

    def both(a: Any, b: Any) -> Any:
        if a is None or b is None:
            return None
        return {**a, **b} if isinstance(a, dict) else [*a, *b]

    return replace(one, value=both(one.value, other.value), expires_at=both(one.expires_at, other.expires_at))


@lru_cache(maxsize=64)
def reader_of(schema: bytes) -> EntryReader:
    """Return the reader of a schema; one per worker."""
    return EntryReader(schema)


def _unpacked(kind: str, form: str, slot: Any) -> tuple[Any, Any]:
    """Return what a slot holds and when that expires."""
    if form == EXPIRING and kind == "map":
        return {k: v[1] for k, v in slot.items()}, {k: _time(v[0]) for k, v in slot.items()}
    if form == EXPIRING and kind == "list":
        return [v[1] for v in slot], [_time(v[0]) for v in slot]
    expires_at = None
    if form == EXPIRING:
        expires_at, slot = _time(slot[0]), slot[1]
    if kind == "versioned":
        slot = [{"valid_from": at, "value": value} for at, value in slot]
    return slot, expires_at


def _time(expiry: int) -> int | None:
    """Return an expiry as ms, ``None`` for one that has not begun or never comes."""
    return expiry if expiry <= NEVER // 2 else None


def _timer(timer: TimerRecord) -> dict[str, Any]:
    return {"at": timer.at, "name": timer.name, **({"on_key_time": True} if timer.on_key_time else {})}


def _event(raw: bytes) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return raw


def key_name(text: str) -> str:
    """Return a key as it is shown: its parts with a bar between them.

    >>> key_name("6:card-7"), key_name("1:a2:bc")
    ('card-7', 'a|bc')
    """
    return "|".join(decode_key(text))


def as_json(data: Any) -> str:
    """Return plain data as JSON text; bytes as base64, times in ISO 8601, keys of maps as text."""
    return msgspec.json.encode(_with_text_keys(data)).decode()


def _with_text_keys(data: Any) -> Any:
    if isinstance(data, dict):
        return {k if isinstance(k, str) else str(k): _with_text_keys(v) for k, v in data.items()}
    return [_with_text_keys(item) for item in data] if isinstance(data, list | tuple) else data
