"""Which timers of a key fire: by the watermark, by the key's own events, at ticks, at the end of time."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

from millrace.host.callbacks import Callbacks, Domain
from millrace.host.rollback import Rollback
from millrace.process import KeyedProcess, next_timer, soonest
from millrace.state.layout import TimerRecord
from millrace.time import END_OF_TIME, NEVER, NO_WATERMARK

log = logging.getLogger(__name__)


class TimerService(Callbacks):
    """Fires the timers of the key whose entry the cursor is at, in order of time, then of name."""

    def __init__(self, process: KeyedProcess[Any, Any], **options: Any) -> None:
        super().__init__(process, **options)
        #: Up to when timers on the stream's clock are due.
        self._stream_now = NO_WATERMARK
        #: How many timers, by name, were set at the end of the input for later than that, and do not fire.
        self.unfired: Counter[str] = Counter()

    def _fire(self, rollback: Rollback, until: int, before: int = NEVER) -> None:
        """Fire what is due in order of time: by the process's clock up to ``until``, and by the stream's.

        Args:
            rollback: What undoes a callback.
            until: The watermark, ms.
            before: Only timers before this, ms.
        """
        cursor, until = self._cursor, min(until, before - 1)
        last = until if until < END_OF_TIME else self._last_due()
        if not self._streams:
            while (timer := next_timer(cursor.entry.timers_, last)) is not None:
                self._handle_timer(rollback, timer, "event_time")
        else:
            of_stream = last if until >= END_OF_TIME else min(self._stream_now, before - 1)
            while (found := self._next_timer(last, of_stream)) is not None:
                self._handle_timer(rollback, *found)
        cursor.soonest = self._soonest(cursor.entry)
        if until >= END_OF_TIME >= cursor.soonest:
            self._leave_unfired(rollback)

    def _next_timer(self, until: int, of_stream: int) -> tuple[TimerRecord, Domain] | None:
        """Return the next timer that is due by the process's clock, or by the stream's."""
        entry = self._cursor.entry
        own, other = next_timer(entry.timers_, until), next_timer(entry.stream_timers_, of_stream)
        if other is not None and (own is None or (other.at, other.name) < (own.at, own.name)):
            return other, "stream_time"
        return None if own is None else (own, "event_time")

    def _event_timers(self) -> list[TimerRecord]:
        entry = self._cursor.entry
        return [*entry.timers_, *entry.stream_timers_] if self._streams else entry.timers_

    def _fires_before(self, event_time: int, due: int) -> bool:
        """Return whether a timer fires before the key's event of a time (ms); some do up to ``due``."""
        cursor = self._cursor
        if self._waits:
            return cursor.soonest < event_time
        if cursor.soonest <= due:
            return True
        if cursor.soonest >= event_time:
            return False
        return self._in_order and any(t.on_key_time and t.at < event_time for t in cursor.entry.timers_)

    def _last_due(self) -> int:
        """Return how far (ms) the time of a key goes on at the end of the input.

        Whatever is pending now has been set by the key's events, or by timers before the end.
        """
        cursor = self._cursor
        pending = [t.at for t in self._event_timers() if t.at <= END_OF_TIME]
        if not pending:
            return NO_WATERMARK
        cursor.now = min(pending)
        latest: int = max(pending)
        return min(max(latest, self.process.last_due(latest)), END_OF_TIME)

    def _leave_unfired(self, rollback: Rollback) -> None:
        """Keep timers that are set for later than the end as what is never due, and say so."""
        for timer in self._event_timers():
            if timer.at <= END_OF_TIME:
                timer.at = NEVER
                if timer.name not in self.unfired:
                    log.warning("%s: its timer '%s' sets itself, or is set by timers, beyond the end of the "
                                "input, and does not fire any more (KeyedProcess.last_due says up to when "
                                "timers do)", self._name, timer.name)  # fmt: skip
                self.unfired[timer.name] += 1
        self._cursor.soonest = NEVER
        rollback.renew(self._cursor, self._ctx.watermark, self._key)

    def _fire_processing(self, rollback: Rollback, watermark: int) -> None:
        """Fire what is due at this tick; what is set meanwhile waits for the next one."""
        cursor = self._cursor
        if cursor.soonest_processing > cursor.processing_now:
            return
        due = [t for t in cursor.entry.processing_timers_ if t.at <= cursor.processing_now]
        for timer in sorted(due, key=lambda t: (t.at, t.name)):
            if timer in cursor.entry.processing_timers_:  # not deleted or moved by the one before
                self._handle_timer(rollback, timer, "processing_time")
        cursor.soonest_processing = soonest(cursor.entry.processing_timers_)
        if cursor.soonest <= watermark or (self._streams and cursor.soonest <= self._stream_now):
            self._fire(rollback, watermark)

    def _fire_on_key_time(self, rollback: Rollback, event_time: int) -> None:
        """Fire timers that the key's own event passes, and what stands before them."""
        while True:
            timers = [t for t in self._cursor.entry.timers_ if t.on_key_time and t.at < event_time]
            timer = next_timer(timers, NEVER)
            if timer is None:
                break
            self._handle_timer(rollback, timer, "event_time")
        self._cursor.soonest = self._soonest(self._cursor.entry)
