"""The cursor of a process's state handles: current entry, current times, and when it expires."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from millrace.errors import MillraceError
from millrace.state.slots import UNSTARTED, started
from millrace.state.specs import StateSpec
from millrace.time import NEVER, NO_WATERMARK, ms


class StateAccessError(MillraceError):
    """State was used outside a callback, or written where it is read-only."""


class Cursor:
    """Points at the current entry and time; shared by the handles of one process instance.

    Attributes:
        entry: The entry of the current key.
        now: Event time of the callback, ms.
        processing_now: The last tick of processing time, ms; ``NO_WATERMARK`` before the first.
        min_expiry: No event-time expiry of the entry is before this, ms.
        min_processing_expiry: No processing-time expiry of the entry is before this, ms.
        soonest: No timer of the entry is before this (event time or the stream's, ms): as long as it is not
            reached, nobody has to look through the timers.
        soonest_processing: The same for timers on processing time.
        broadcast: The group's broadcast state: name → map; drafts while ``process_broadcast`` runs.
    """

    __slots__ = (
        "broadcast",
        "entry",
        "min_expiry",
        "min_processing_expiry",
        "now",
        "parts",
        "processing_now",
        "soonest",
        "soonest_processing",
        "turn",
    )

    def __init__(self) -> None:
        self.entry: Any = None
        self.now: int = 0
        #: The parts of the key, where it has states that are paged.
        self.parts: Any = None
        #: Number of the callback that is running.
        self.turn: int = 0
        self.processing_now: int = NO_WATERMARK
        self.min_expiry: int = NEVER
        self.min_processing_expiry: int = NEVER
        self.soonest: int = NEVER
        self.soonest_processing: int = NEVER
        self.broadcast: dict[str, Any] = {}


class Life:
    """How long what a state holds lives, and on which clock.

    Args:
        cursor: Where the clocks are.
        spec: The state's declaration.
    """

    __slots__ = ("_cursor", "_name", "_processing", "_ttl", "on_read")

    def __init__(self, cursor: Cursor, spec: StateSpec) -> None:
        self._cursor = cursor
        self._name = spec.name
        self._ttl = spec.ttl_ms
        self._processing = spec.on_processing_time
        #: Whether a read starts the life anew.
        self.on_read = spec.refresh == "read_write"

    def now(self) -> int:
        """Return the present on this life's clock, ms."""
        return self._cursor.processing_now if self._processing else self._cursor.now

    def until(self, ttl: timedelta | int | None = None) -> int:
        """Return when (ms) what is written now expires, and have the sweep know of it."""
        life = self._ttl if ttl is None else self._checked(ttl)
        if life is None:
            return NEVER
        cursor = self._cursor
        if not self._processing:
            expiry = cursor.now + life
            if expiry < cursor.min_expiry:
                cursor.min_expiry = expiry
            return expiry if expiry < NEVER else NEVER
        if cursor.processing_now == NO_WATERMARK:
            # Nobody knows the time yet: the life starts when the first tick brings it (slots.py).
            cursor.min_processing_expiry = NO_WATERMARK
            return max(NEVER - life, UNSTARTED + 1)
        expiry = min(cursor.processing_now + life, UNSTARTED)
        if expiry < cursor.min_processing_expiry:
            cursor.min_processing_expiry = expiry
        return expiry

    def longer(self, expiry: int, ttl: timedelta | int | None = None) -> int:
        """Return when (ms) what is written or read now expires: at least as late as it did.

        A write of an earlier time that comes later must not end what a later one has begun.
        """
        new = self.until(ttl)
        if self._processing and expiry > UNSTARTED:
            expiry = started(expiry, self._cursor.processing_now)
            if NEVER > expiry > UNSTARTED and new < NEVER:  # neither has started: what is less lives longer
                return min(expiry, new)
        return max(expiry, new)

    def _checked(self, ttl: timedelta | int) -> int:
        life = ms(ttl)
        if life <= 0:
            raise ValueError(f"state '{self._name}': a time to live must be positive, not {ttl!r}")
        return life


def refuse_ttl(spec_name: str, ttl: timedelta | int | None) -> None:
    """Refuse a write's time to live where the declaration keeps no expiry."""
    if ttl is not None:
        raise StateAccessError(
            f"state '{spec_name}' keeps no expiry: declare it with a ttl, or with ttl='per_write', "
            "to give one write a ttl"
        )
