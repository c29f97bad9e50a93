"""Triggers: when a window has results, at the watermark, before it, and after it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from millrace.windows.assigners import Duration, duration_ms
from millrace.windows.fields import WindowDefinitionError


@dataclass(frozen=True)
class Trigger:
    """When a window has results; begin with :func:`watermark`.

    Attributes:
        every_ms: Early results at multiples of this time (ms) in which something was added.
        clock: The clock of ``every_ms``.
        count: Early results after so many events.
        when: An early result as soon as this holds of the result.
        before: An early result before an event is added for which this holds: (result, event).
        discard: Whether the window begins anew after an early result.
        late_count: A refinement after so many late events; what is left over comes when the window is
            forgotten.
    """

    every_ms: int | None = None
    clock: Literal["event_time", "processing_time"] = "event_time"
    count: int | None = None
    when: Callable[[Any], bool] | None = None
    before: Callable[[Any, Any], bool] | None = None
    discard: bool = False
    late_count: int = 1

    @property
    def is_early(self) -> bool:
        """Whether there are results before the watermark."""
        return any(x is not None for x in (self.every_ms, self.count, self.when, self.before))

    def early(
        self,
        *,
        every: Duration | None = None,
        count: int | None = None,
        when: Callable[[Any], bool] | None = None,
        before: Callable[[Any, Any], bool] | None = None,
        clock: Literal["event_time", "processing_time"] = "event_time",
        discard: bool = False,
    ) -> Trigger:
        """Return this trigger with results also before the watermark; whichever comes first.

        Args:
            every: At multiples of this time (``timedelta`` or ms) if something was added since the last
                result: at whole multiples since the epoch in event time, so long after the first
                addition in processing time.
            count: After so many events since the last result.
            when: As soon as this holds of the result, e.g. ``lambda r: r.total >= 100``.
            before: Before adding an event for which this holds, e.g.
                ``lambda r, e: r.total + e.amount > 100``: the result is that without the event.
            clock: The clock of ``every``.
            discard: The window begins anew after each early result, and what follows counts only what
                came since (Beam: discarding); otherwise results accumulate.
        """
        if clock not in ("event_time", "processing_time"):
            raise WindowDefinitionError(f"clock is 'event_time' or 'processing_time', not {clock!r}")
        if count is not None and count < 1:
            raise WindowDefinitionError(f"early(count=...) is at least 1, not {count!r}")
        changed = replace(
            self,
            every_ms=None if every is None else duration_ms(every, "early(every=...)"),
            clock=clock,
            count=count,
            when=when,
            before=before,
            discard=discard,
        )
        if not changed.is_early:
            raise WindowDefinitionError("early() needs to know when: every=, count=, when= or before=")
        return changed

    def late(self, *, count: int) -> Trigger:
        """Return this trigger with one refinement per ``count`` late events instead of one for each."""
        if count < 1:
            raise WindowDefinitionError(f"late(count=...) is at least 1, not {count!r}")
        return replace(self, late_count=count)


#: The trigger of a window that names none.
AT_WATERMARK: Final = Trigger()


def watermark() -> Trigger:
    """A result when the watermark reaches a window's end, and one for each late event after it."""
    return AT_WATERMARK
