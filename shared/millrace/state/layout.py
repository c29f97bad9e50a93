"""Packed entries: the state of one key as a typed MessagePack array, built from the declarations.

An *entry* is everything that is kept for one key: its pending timers on both clocks, the rows that
wait for the watermark, then a slot per declared state. It is encoded as an array without names; what
stood where is kept once per key group (:mod:`millrace.state.schema`), so that states may be added,
removed and reordered.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from types import GenericAlias
from typing import Any, Final

import msgspec

from millrace.parts.versions import forget_versions
from millrace.state.schema import schema_of
from millrace.state.slots import (
    empty_slot,
    expire_slot,
    next_forgetting,
    slot_field,
    versions_of,
)
from millrace.state.specs import StateDeclarationError, StateSpec, StateTypeError, is_mutable
from millrace.state.sweep import grid_for
from millrace.time import END_OF_TIME, NEVER, NO_WATERMARK

#: So many small entries are looked at together.
_CHECKED_AT_ONCE: Final = 64
#: Version of the packed form; part of the checkpoint's contract.
ENCODING_VERSION = 3


class TimerRecord(msgspec.Struct, array_like=True, gc=False):
    """A pending timer of one key.

    Attributes:
        at: Event time (processing time) at which it is due, ms.
        name: Its name; a key has at most one pending timer of a name.
        on_key_time: Whether the key's own later event may fire it before the watermark does.
        again: 0 for a timer set for later, which is the only one of its name and time that ever fires. One
            that is set for a time that may be over already could be the second to fire there: then this
            is a hash of what set it, and tells the two apart.
        behind: How far in the past it was set (event time, ms): the callback that set it is so much later.
    """

    at: int
    name: str
    on_key_time: bool = False
    again: int = 0
    behind: int = 0


class PendingRow(msgspec.Struct, array_like=True, gc=False):
    """A row that waits until the watermark passes it, of a process in event-time order.

    Attributes:
        event_time: Its event time, ms.
        cause: Its identity in its source, or ``None``.
        raw: Its original bytes.
        headers: Its original headers as JSON text.
        on_time: Whether it was on time when it came.
    """

    event_time: int
    cause: str | None
    raw: bytes
    headers: str | None = None
    on_time: bool = True


#: What stands before the states in every entry; one byte each while there is none.
ENGINE_SLOTS: tuple[tuple[str, Any], ...] = (
    ("timers_", list[TimerRecord]),
    ("processing_timers_", list[TimerRecord]),
    ("pending_", list[PendingRow]),
)


#: Beside the states of a process whose keys have clocks of their own: (how far the clock has come, the newest
#: plausible time; ms). It may go when the stream's clock, less the patience, has come that far.
OWN_CLOCK: Final = StateSpec("value", tuple[int, int], per_write=True, name="clock_")
#: Beside the states of a process that sets timers on the stream's clock.
STREAM_TIMERS: Final = StateSpec("list", TimerRecord, name="stream_timers_")


class EntryLayout:
    """Encoder, decoder and empty value of a process's entries.

    Args:
        specs: The declared states in order; broadcast states are not part of an entry.
        owner: Name of the process, for messages.
    """

    def __init__(self, specs: Sequence[StateSpec], *, owner: str = "a process") -> None:
        self.owner = owner
        self.specs = [s for s in specs if s.kind != "broadcast"]
        fields: list[tuple[str, Any, Any]] = [
            (name, tp, msgspec.field(default_factory=list)) for name, tp in ENGINE_SLOTS
        ]
        for spec in self.specs:
            fields.append((spec.name, *slot_field(spec)))
        self.type = msgspec.defstruct("Entry", fields, array_like=True)
        try:
            self._decoder = msgspec.msgpack.Decoder(self.type)
        except TypeError as error:
            raise StateDeclarationError(
                f"a declared state has a type that cannot be kept: {error}"
            ) from error
        self._all_decoder = msgspec.msgpack.Decoder(GenericAlias(list, (self.type,)))
        self._encoder = msgspec.msgpack.Encoder()
        self._expiring = [s for s in self.specs if s.expires]
        self._versioned = [s for s in self.specs if s.kind == "versioned"]
        # A read of an expiring state puts a mutable default in place (see ValueState).
        self._settled = [s for s in self._expiring if s.kind == "value" and is_mutable(s.default())]
        on_event_time = [s.ttl_ms or NEVER for s in self._expiring if not s.on_processing_time]
        on_event_time += [s.history_ms or NEVER for s in self._versioned]
        on_processing_time = [s.ttl_ms or NEVER for s in self._expiring if s.on_processing_time]
        #: Whether anything goes with event time, and with processing time.
        self.has_ttl = bool(on_event_time)
        self.has_processing_ttl = bool(on_processing_time)
        #: When the sweeps are, on either clock.
        self.sweeps = grid_for(_shortest(on_event_time))
        self.processing_sweeps = grid_for(_shortest(on_processing_time))
        self.empty = self.type()
        #: What the slots are, as it stands beside the pages, and its digest.
        self.schema = schema_of(self.specs)
        self.schema_digest = int.from_bytes(hashlib.blake2b(self.schema, digest_size=7).digest(), "big")
        #: Readers of older schemas that were met, and keys that were warned of: once per worker.
        self.older: dict[bytes, Any] = {}
        #: Whether keys have timers on the stream's clock, and how far behind that clock the process is, ms.
        self.streams = STREAM_TIMERS in self.specs
        self.lag_ms = 0
        self.warned: set[str] = set()
        #: Name of the only state, where that is a value that goes with event time: all that a sweep looks at.
        self.only_value: str | None = None
        if not self.streams and len(self.specs) == 1 and self._expiring:
            (only,) = self.specs
            if only.kind == "value" and not only.on_processing_time:
                self.only_value = only.name

    @property
    def sweep_slack_ms(self) -> int:
        """How much longer than it lives a value may stay before it is swept, ms."""
        return self.sweeps.step_ms

    def new(self) -> Any:
        """Return a fresh entry with every slot at its default."""
        return self.type()

    def encode(self, entry: Any) -> bytes:
        """Pack an entry.

        Raises:
            StateTypeError: A value is of a type that cannot be packed at all.
        """
        try:
            return self._encoder.encode(entry)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise StateTypeError(f"{self.owner} keeps state that cannot be kept: {error}") from error

    def check(self, body: bytes, key: str) -> None:
        """Refuse a packed entry that could not be read back: kept, it would end its checkpoint.

        Raises:
            StateTypeError: A value is not of its declared type.
        """
        try:
            self._decoder.decode(body)
        except (msgspec.DecodeError, RecursionError) as error:
            names = [*(name.rstrip("_") for name, _ in ENGINE_SLOTS), *(s.name for s in self.specs)]
            what = re.sub(r"\$\[(\d+)\]", lambda m: names[int(m[1])], str(error), count=1)
            raise StateTypeError(
                f"{self.owner} keeps something else than it declares for key '{key}': {what}"
            ) from error

    def check_all(self, bodies: Sequence[bytes], keys: Sequence[str]) -> None:
        """Refuse packed entries of which one could not be read back, as :meth:`check` does each.

        Raises:
            StateTypeError: A value of one is not of its declared type.
        """
        for low in range(0, len(bodies), _CHECKED_AT_ONCE):
            part = bodies[low : low + _CHECKED_AT_ONCE]
            try:
                # One list of all of them: its length, and what is in it.
                self._all_decoder.decode(b"\xdc%b%b" % (len(part).to_bytes(2, "big"), b"".join(part)))
            except (msgspec.DecodeError, RecursionError):
                for body, key in zip(part, keys[low:], strict=False):
                    self.check(body, key)

    def decode(self, body: bytes | msgspec.Raw) -> Any:
        """Unpack an entry; raises ``msgspec.ValidationError`` where the bytes are not one."""
        return self._decoder.decode(body)

    def is_empty(self, entry: Any) -> bool:
        """Return whether nothing is kept, so that the key itself can be forgotten."""
        if self._settled:
            self._settle(entry)
        elif self.only_value is not None and getattr(entry, self.only_value) is not None:
            return False  # as most of such entries are
        return entry == self.empty  # type: ignore[no-any-return]

    def _settle(self, entry: Any) -> None:
        """Take back the defaults that were put in place by a read, and did not change."""
        for spec in self._settled:
            slot = getattr(entry, spec.name)
            if slot is not None and slot[1] == spec.default():
                setattr(entry, spec.name, None)

    def expire(
        self,
        entry: Any,
        line: int,
        processing_line: int = NO_WATERMARK,
        processing_now: int = NO_WATERMARK,
    ) -> tuple[int, int]:
        """Remove what expired at ``line`` (event time) and ``processing_line`` (ms).

        Args:
            entry: The entry, changed in place.
            line: Event time of the sweep.
            processing_line: Processing time of the sweep.
            processing_now: The present on that clock.

        Returns:
            The earliest expiries left: event time, processing time (ms, ``NEVER`` without one).
        """
        earliest, processing_earliest = NEVER, NEVER
        for spec in self._expiring:
            slot = getattr(entry, spec.name)
            if spec.on_processing_time:
                slot, left = expire_slot(spec, slot, processing_line, processing_now)
                processing_earliest = min(processing_earliest, left)
            else:
                slot, left = expire_slot(spec, slot, line, line)
                earliest = min(earliest, left)
            setattr(entry, spec.name, slot)
        for spec in self._versioned:
            versions = versions_of(spec, getattr(entry, spec.name))
            if versions:
                history = spec.history_ms or 0
                forget_versions(versions, line - history)
                earliest = min(earliest, next_forgetting(versions, history))
            if not versions:
                setattr(entry, spec.name, empty_slot(spec))
        return earliest, processing_earliest

    def timer(self, entry: Any) -> int | None:
        """Return when (event time, ms) the entry's first timer or waiting row is due.

        It is told by the clock of the process, also for timers on the stream's, which is ahead of it.
        """
        timers: list[TimerRecord] = entry.timers_
        first = None
        if timers:
            first = timers[0].at if len(timers) == 1 else min([t.at for t in timers])
        if entry.pending_:
            row = min([r.event_time for r in entry.pending_])
            first = row if first is None or row < first else first
        if self.streams and entry.stream_timers_:
            due = min([t.at for t in entry.stream_timers_])
            if due < END_OF_TIME:
                due = max(due - self.lag_ms, NO_WATERMARK + 1)
            first = due if first is None or due < first else first
        return first

    @staticmethod
    def processing_timer(entry: Any) -> int | None:
        """Return when (processing time, ms) the entry's first timer on that clock is due."""
        return min([t.at for t in entry.processing_timers_]) if entry.processing_timers_ else None


def _shortest(lives: list[int]) -> int:
    """Return the shortest of some lives (ms); where only writes name one, it may be any."""
    shortest = min(lives, default=0)
    return 0 if shortest == NEVER else shortest
