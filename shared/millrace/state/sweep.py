"""The sweep of expired values that nobody reads: on a grid of times, apart for each key group.

A value stays at most one step of the grid longer than it lives. The step is a 16th of the shortest
life, at least a minute: the price of not visiting a page for every single value. Groups have their
lines at different times, so that they are not all swept in one batch. What has been removed follows
from the time alone, not from the batches in which it passed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from millrace.time import NEVER, NO_WATERMARK

_MIN_STEP_MS: Final = 60_000


@dataclass(frozen=True)
class SweepGrid:
    """The lines at which expired values are removed.

    Attributes:
        step_ms: Distance of two lines, ms.
        offset_ms: Where the first line is, ms.
    """

    step_ms: int
    offset_ms: int = 0

    def line(self, now: int) -> int:
        """Return the last line at or before ``now`` (ms); before the first event there is none.

        >>> SweepGrid(100, 30).line(229), SweepGrid(100, 30).line(230)
        (130, 230)
        """
        if now == NO_WATERMARK:
            return NO_WATERMARK
        return now - (now - self.offset_ms) % self.step_ms

    def next(self, expiry: int) -> int:
        """Return the first line at or after ``expiry`` (ms): when the sweep takes it.

        >>> SweepGrid(100, 30).next(130), SweepGrid(100, 30).next(131)
        (130, 230)
        """
        if expiry >= NEVER - self.step_ms:
            return NEVER
        return expiry + (self.offset_ms - expiry) % self.step_ms

    def apart(self, label: int) -> SweepGrid:
        """Return the grid of the key group ``label``: the same step, lines at a time of its own."""
        return SweepGrid(self.step_ms, label * 2_654_435_761 % self.step_ms)


def grid_for(shortest_life_ms: int) -> SweepGrid:
    """Return the grid for states of which the shortest lives ``shortest_life_ms``."""
    return SweepGrid(max(_MIN_STEP_MS, shortest_life_ms // 16))
