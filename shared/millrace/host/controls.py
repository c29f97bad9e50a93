"""Control events: what they make of the broadcast state, from now on or from an event time on.

Every key group keeps the same broadcast state and sees the same control events. In event-time order those
that have a time wait for it beside the state, and whoever reads the state at an event time finds the version
of that time. Versions are made when they are first asked for; groups that keep the same share them.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, Final, NamedTuple

import msgspec

from millrace.host.rows import Row, cause_order
from millrace.process import BroadcastContext, KeyedProcess, ProcessDefinitionError
from millrace.state.broadcast import BroadcastLayout, BroadcastMap, Drafts
from millrace.state.handles import Cursor
from millrace.state.layout import PendingRow
from millrace.time import NO_WATERMARK, less

#: How many broadcast states stay unpacked: what groups had before a batch and have after it, and some more.
_KEPT: Final = 4

log = logging.getLogger(__name__)
_time = attrgetter("event_time")


class _Version(NamedTuple):
    """What a control event left.

    Attributes:
        maps: The broadcast state from its time on.
        error: Why it left what was there before, if it failed.
    """

    maps: dict[str, BroadcastMap]
    error: Exception | None = None


class _Loaded:
    """An unpacked broadcast state.

    Attributes:
        base: What holds now.
        waiting: The control events whose time is to come, in its order.
        versions: What the first of them leave, as far as somebody has asked.
    """

    __slots__ = ("base", "versions", "waiting")

    def __init__(
        self, base: dict[str, BroadcastMap], waiting: list[PendingRow], versions: list[_Version]
    ) -> None:
        self.base = base
        self.waiting = waiting
        self.versions = versions


class Controls:
    """Applies the control events of one process.

    Args:
        process: The process, with its handles.
        cursor: Where the handles look.
        tell: Puts a control event aside that has failed.
        waits: Whether control events wait for their time.
    """

    def __init__(
        self,
        process: KeyedProcess[Any, Any],
        cursor: Cursor,
        tell: Callable[[Row, Exception], None],
        *,
        waits: bool,
    ) -> None:
        self.layout = BroadcastLayout(process.states)
        #: How many control events came when time had passed theirs.
        self.late = 0
        #: The control events of what is loaded that wait for their time.
        self.waiting: list[PendingRow] = []
        self._process = process
        self._cursor = cursor
        self._tell = tell
        self._waits = waits
        self._ctx = BroadcastContext()
        self._decode: Callable[[bytes], Any] = msgspec.json.Decoder(process.control_type or Any).decode
        self._kept: dict[bytes | None, _Loaded] = {}
        self._now = _Loaded({}, [], [])

    def load(self, stored: bytes | None) -> None:
        """Make a kept broadcast state readable in callbacks.

        All key groups keep the same, and a worker runs many of them: what is unpacked stays, with the views
        that were made of it.
        """
        found = self._kept.get(stored)
        if found is None:
            found = _Loaded(self.layout.decode(stored), self.layout.waiting(stored), [])
        self._keep(stored, found)

    def rest(self) -> None:
        """Have callbacks read what holds now."""
        self._cursor.broadcast = self._now.base

    def look_at(self, event_time: int) -> None:
        """Have callbacks read what holds at an event time (ms)."""
        place = bisect_right(self.waiting, event_time, key=_time)
        self._cursor.broadcast = self._version(place - 1).maps if place else self._now.base

    def take(
        self, rows: Iterable[Row], stored: bytes | None, watermark: int, *, report: bool
    ) -> bytes | None:
        """Take control events in order; return the broadcast state to keep, ``None`` if unchanged.

        In event-time order those that have a time (``NO_WATERMARK``: none) wait for it, and :meth:`pass_`
        applies them; behind the watermark they are late, and hold from now on like all others.

        Args:
            rows: Control events of this batch.
            stored: The packed broadcast state as it was kept.
            watermark: The batch's watermark, ms.
            report: Whether this group tells of those that fail or are late (all groups see the same ones, one
                of them speaks).
        """
        self.load(stored)
        before = self._now
        base, waiting = before.base, list(before.waiting)
        for row in rows:
            if self._waits and row.event_time > watermark:  # none has no time: that is before all others
                waiting.append(PendingRow(row.event_time, row.cause, row.raw, row.headers))
                continue
            if report and self._waits and row.event_time != NO_WATERMARK:
                self._tell_late(row, watermark)
            base, error = self._after(base, row, watermark)
            if report and error is not None:
                self._tell(row, error)
        if base is before.base and len(waiting) == len(before.waiting):
            return None
        waiting.sort(key=lambda row: (row.event_time, cause_order(row.cause), row.raw))
        versions = before.versions[: _alike(before.waiting, waiting)] if base is before.base else []
        return self._become(stored, base, waiting, versions)

    def pass_(self, stored: bytes | None, watermark: int, *, report: bool) -> bytes | None:
        """Apply the control events whose time has come; return what to keep, ``None`` if unchanged.

        Args:
            stored: The packed broadcast state as it was kept.
            watermark: What no key is behind any more, ms.
            report: Whether this group tells of those that fail.
        """
        self.load(stored)
        count = bisect_right(self.waiting, watermark, key=_time)
        if not count:
            return None
        base = self._version(count - 1).maps
        if report:
            for row, version in zip(self.waiting[:count], self._now.versions, strict=False):
                if version.error is not None:
                    self._tell(_row(row), version.error)
        return self._become(stored, base, self.waiting[count:], self._now.versions[count:])

    def _become(
        self,
        stored: bytes | None,
        base: dict[str, BroadcastMap],
        waiting: list[PendingRow],
        versions: list[_Version],
    ) -> bytes | None:
        packed = self.layout.encode(base, waiting)
        if packed == stored:
            return None
        self._keep(packed, self._kept.get(packed) or _Loaded(base, waiting, versions))
        return packed

    def _keep(self, packed: bytes | None, loaded: _Loaded) -> None:
        self._kept.pop(packed, None)
        self._kept[packed] = self._now = loaded
        if len(self._kept) > _KEPT:
            del self._kept[next(iter(self._kept))]
        self.waiting = loaded.waiting
        self._cursor.broadcast = loaded.base

    def _version(self, place: int) -> _Version:
        """Return what the control event at a place among those that wait leaves."""
        versions, waiting = self._now.versions, self.waiting
        while len(versions) <= place:
            row = waiting[len(versions)]
            before = versions[-1].maps if versions else self._now.base
            versions.append(_Version(*self._after(before, _row(row), less(row.event_time, 1))))
        return versions[place]

    def _after(
        self, maps: dict[str, BroadcastMap], row: Row, watermark: int
    ) -> tuple[dict[str, BroadcastMap], Exception | None]:
        """Return the broadcast state after a control event; where it fails, as it was, and why."""
        cursor = self._cursor
        entry, standing = cursor.entry, cursor.broadcast
        drafts = Drafts(self.layout, maps)
        cursor.entry, cursor.broadcast = None, drafts
        self._ctx.watermark, self._ctx.cause = watermark, row.cause
        try:
            event = self._decode(row.raw) if row.event is None else row.event
            self._process.process_broadcast(event, self._ctx)
            return drafts.result(), None
        except ProcessDefinitionError:
            raise
        except Exception as error:
            return maps, error
        finally:
            cursor.entry, cursor.broadcast = entry, standing

    def _tell_late(self, row: Row, watermark: int) -> None:
        self.late += 1
        log.warning("%s: a control event of %d is %d ms behind the watermark, and holds from now on: %s",
                    self._process.name, row.event_time, watermark - row.event_time, row.cause)  # fmt: skip


def _row(kept: PendingRow) -> Row:
    return Row(kept.event_time, kept.raw, kept.cause, None, kept.headers)


def _alike(some: list[PendingRow], others: list[PendingRow]) -> int:
    """Return how many rows are the same in both, from the first on."""
    for place, (one, other) in enumerate(zip(some, others, strict=False)):
        if one != other:
            return place
    return min(len(some), len(others))
