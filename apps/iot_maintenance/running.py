"""Running statistics of one sensor, of its good values alone; extremes are since the last maintenance."""

from __future__ import annotations

from typing import ClassVar

from millrace.parts.moving import MovingStatistics


class Running(MovingStatistics, array_like=True):
    """The statistics of one sensor: of 5 values, of 6 minutes, the newest with a fiftieth of weight."""

    last_n: ClassVar[int] = 5
    panes: ClassVar[int] = 6
    pane_ms: ClassVar[int] = 60_000
    alpha: ClassVar[float] = 0.02
    learn: ClassVar[int] = 30

    def follow(self, at: int, value: float, pane_ms: int, last_n: int) -> float | None:
        """Add a value; see :meth:`add`.

        Args:
            at: Its time, ms; not before the one before.
            value: A finite number.
            pane_ms: Length of a pane, ms. Where it is another than before, the mean over time begins anew.
            last_n: The moving average by count is of so many values.
        """
        if self.sums and at // pane_ms < self.pane:
            self.sums, self.counts, self.pane, self.trend = [], [], -1, None
        return self.add(at, value, pane_ms=pane_ms, last_n=last_n)
