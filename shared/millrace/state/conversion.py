"""Conversion of state that an earlier version of a process kept, entry by entry.

State that changes as :mod:`millrace.state.evolution` allows needs nothing of this. Where it has become
something else, the process says per version of before what is to be done (``KeyedProcess.converts``), and
``millrace convert`` does it to every entry of a stopped query's checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from millrace.state.cells import StateCorrupted
from millrace.state.earlier_entries import OlderLayout
from millrace.state.evolution import state_differences
from millrace.state.layout import ENGINE_SLOTS, STREAM_TIMERS, EntryLayout, PendingRow, TimerRecord
from millrace.state.paged import EXTENT
from millrace.state.schema import described_slot
from millrace.state.slots import BARE, EXPIRING, slot_form
from millrace.state.specs import StateDeclarationError
from millrace.time import NEVER


@dataclass
class EarlierEntry:
    """What a version of before has kept for a key; a conversion changes it in place.

    Attributes:
        key: The parts of the key, as text; other parts move the entry there.
        watermark: How far the clock is, ms; ``None``: there was no event yet.
        states: Name (the one it has now) → what is kept, as plain data: structs as maps of their fields,
            those that are packed by position as lists. Only states that hold something; what is taken out
            is gone. Items of maps and lists with a time to live are pairs (expiry, item).
        timers: Pending timers on event time.
        processing_timers: Pending timers on processing time.
        stream_timers: Pending timers on the stream's clock; the process says ``stream_timers = True``.
        waiting: Events that wait for the watermark: as their bytes, after the byte that says by which input
            they come, where there are several.
    """

    key: tuple[str, ...]
    watermark: int | None
    states: dict[str, Any] = field(default_factory=dict)
    timers: list[TimerRecord] = field(default_factory=list)
    processing_timers: list[TimerRecord] = field(default_factory=list)
    stream_timers: list[TimerRecord] = field(default_factory=list)
    waiting: list[PendingRow] = field(default_factory=list)


@dataclass(frozen=True)
class Conversion:
    """How what a version of before kept becomes what this one keeps.

    Attributes:
        states: Stored name of a state then → now; those that are not named keep theirs.
        timers: Name of a timer then → now, on all clocks.
        rewrite: Brings an entry into its new shape, after names have been changed.
        rewrites: Stored names of the states that ``rewrite`` gives the form of now, as plain data or as
            values of their types. All others are read as they were kept.

    Example:
        >>> from millrace import KeyedProcess, arrival, value_state
        >>> from millrace.state.conversion import Conversion
        >>> def in_cents(entry):
        ...     entry.states["cents"] = round(entry.states["cents"] * 100)
        >>> class Sum(KeyedProcess[int, int]):
        ...     version = 2
        ...     order = arrival(commutes=True)
        ...     cents = value_state(int, default=0)
        ...     converts = {1: Conversion(states={"euros": "cents"}, rewrite=in_cents, rewrites=("cents",))}
        ...     def process(self, event, ctx):
        ...         self.cents.value += event
    """

    states: Mapping[str, str] = field(default_factory=dict)
    timers: Mapping[str, str] = field(default_factory=dict)
    rewrite: Callable[[EarlierEntry], None] | None = None
    rewrites: Sequence[str] = ()

    def state_differences(self, kept: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
        """Return what keeps the converted states from being read as those of now, a text each.

        Args:
            kept: Name → description of the states of then.
            now: Those of now.
        """
        found = {self.states.get(name, name): about for name, about in kept.items()}
        if len(found) < len(kept):
            return ["two states of before become one"]
        return state_differences({**found, **{n: now[n] for n in self.rewrites if n in now}}, now)


class Converter:
    """Converts the entries of one schema.

    Args:
        layout: How entries are packed now.
        schema: What the slots were (:func:`millrace.state.schema.schema_of`).
        conversion: What is to be done.

    Raises:
        StateDeclarationError: The conversion names a state that the process does not have.
        StateSchemaMismatch: What it leaves cannot be read as it is declared now.
        StateCorrupted: The schema is none.
    """

    def __init__(self, layout: EntryLayout, schema: bytes, conversion: Conversion) -> None:
        self._layout, self._conversion = layout, conversion
        self._now = now = {spec.stored_name: spec for spec in layout.specs}
        if odd := [name for name in conversion.rewrites if name not in now]:
            raise StateDeclarationError(
                f"{layout.owner} has no state {odd[0]} that a conversion could rewrite"
            )
        try:
            slots = [(str(name), str(form), dict(state)) for name, form, state in json.loads(schema)]
        except (ValueError, TypeError) as error:
            raise StateCorrupted(f"a schema of the kept state cannot be read: {error}") from error
        #: Slot by slot: the name it has now, how it is packed, and what stands in it where nothing is kept.
        self._slots: list[tuple[str, str, str]] = []
        described: list[Any] = []
        for name, form, state in slots:
            to = conversion.states.get(name, name)
            self._slots.append((to, form, state["kind"]))
            described.append([to, form, described_slot(now[to])[2] if to in conversion.rewrites else state])
        known = {to for to, _, _ in self._slots}
        made = [name for name in conversion.rewrites if name not in known]
        if layout.streams and STREAM_TIMERS.name not in known:
            made.append(STREAM_TIMERS.name)
        for name in made:
            spec = now[name]
            self._slots.append((name, slot_form(spec), spec.kind))
            described.append(described_slot(spec))
        self._read = len(slots)
        fields: list[Any] = [*ENGINE_SLOTS, *((f"s{i}", Any) for i in range(len(slots)))]
        self._decoder = msgspec.msgpack.Decoder(msgspec.defstruct("Kept", fields, array_like=True))
        self._older = OlderLayout(layout, json.dumps(described, separators=(",", ":")).encode())

    def convert(
        self, key: tuple[str, ...], body: bytes | msgspec.Raw, watermark: int | None, now: int, tick: int
    ) -> tuple[tuple[str, ...], Any]:
        """Return the key and the entry as they stand now.

        Args:
            key: The parts of the key.
            body: The packed entry.
            watermark: How far the stream's clock is, ms.
            now: How far the process's clock is, ms: a life that is new to a state begins here.
            tick: The last tick of processing time, ms.

        Raises:
            StateCorrupted: The entry cannot be read, or what the conversion made of it.
        """
        try:
            kept: Any = self._decoder.decode(body)
            entry, expiries = self._opened(key, kept, watermark)
            renamed = self._conversion.timers
            for timer in (*entry.timers, *entry.processing_timers, *entry.stream_timers):
                timer.name = renamed.get(timer.name, timer.name)
            if self._conversion.rewrite is not None:
                self._conversion.rewrite(entry)
            if entry.key != key and any(name.endswith(EXTENT) for name in entry.states):
                raise StateDeclarationError(
                    "its items stand in parts of their own, which stay where they are"
                )
            return entry.key, self._older.decode(self._packed(entry, expiries), now, tick)
        except Exception as error:
            said = f"the state of the key {'|'.join(key)} of {self._layout.owner} cannot be converted"
            raise StateCorrupted(f"{said}: {type(error).__name__}: {error}") from error

    def _opened(
        self, key: tuple[str, ...], kept: Any, watermark: int | None
    ) -> tuple[EarlierEntry, dict[str, int]]:
        """Return an entry with its states by the names of now, and when values expire."""
        entry = EarlierEntry(key, watermark, {}, kept.timers_, kept.processing_timers_, waiting=kept.pending_)
        expiries: dict[str, int] = {}
        for place, (name, form, kind) in enumerate(self._slots[: self._read]):
            slot = getattr(kept, f"s{place}")
            if name == STREAM_TIMERS.name:
                entry.stream_timers = msgspec.convert(slot, list[TimerRecord])
            elif slot is None or slot == [] or slot == {}:
                continue
            elif form == EXPIRING and kind not in ("map", "list"):
                expiries[name], entry.states[name] = slot
            else:
                entry.states[name] = slot
        return entry, expiries

    def _packed(self, entry: EarlierEntry, expiries: Mapping[str, int]) -> bytes:
        left = dict(entry.states)
        slots = [entry.timers, entry.processing_timers, entry.waiting]
        for name, form, kind in self._slots:
            if name == STREAM_TIMERS.name:
                slots.append(entry.stream_timers)
                continue
            value = left.pop(name, None)
            if value is None:
                value = self._nothing(name, form, kind)
            elif form == EXPIRING and kind not in ("map", "list"):
                value = (expiries.get(name, NEVER), value)
            slots.append(value)
        if left:
            raise StateDeclarationError(f"there is no state {next(iter(left))}: name it in `rewrites`")
        if entry.stream_timers and not self._layout.streams:
            raise StateDeclarationError("the process has no timers on the stream's clock")
        return msgspec.msgpack.encode(slots)

    def _nothing(self, name: str, form: str, kind: str) -> Any:
        """Return what stands in a slot where nothing is kept."""
        if kind in ("map", "list"):
            return {} if kind == "map" else []
        if form != BARE:
            return None
        return [] if kind == "versioned" else self._now[name].default() if name in self._now else None
