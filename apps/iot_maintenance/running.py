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
