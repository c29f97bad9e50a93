"""Running statistics of one sensor, of its good values alone; extremes are since the last maintenance."""

from __future__ import annotations

from typing import ClassVar

from millrace.parts.moving import MovingStatistics


class Running(MovingStatistics, array_like=True):
    """The statistics of one sensor: of its last values, and of six panes of time.

    How many values, and how long a pane is, a plant may say.
    """

    last_n: ClassVar[int] = 5
    panes: ClassVar[int] = 6
    pane_ms: ClassVar[int] = 60_000
    alpha: ClassVar[float] = 0.02
    learn: ClassVar[int] = 30

    def begin_panes(self) -> None:
        """Begin the mean over time, and the trend, anew."""
        self.sums, self.counts, self.pane, self.trend = [], [], -1, None
