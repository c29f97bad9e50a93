"""Breakdown times of a machine, by its statuses: what a repair that is booked at its end does not say."""

from __future__ import annotations

from typing import Final

import msgspec

from millrace.time import NEVER
from millrace_apps.iot_maintenance.processes.statuses import Regime

#: So many of the last breakdowns are kept: repairs are booked late.
KEPT: Final = 4


class Breakdowns(msgspec.Struct, array_like=True, gc=False):
    """The last times in which a machine was broken, or being repaired after that.

    Attributes:
        spans: Begin and end of each, ms, in order; the end of one that lasts is ``NEVER``.

    Example:
        >>> known = Breakdowns()
        >>> for at, regime in ((100, "failed"), (200, "maintenance"), (500, "producing")):
        ...     known.turn(at, regime)
        >>> known.spans, known.begin_of(500, 300), known.begin_of(900, 50)
        ([(100, 500)], 100, 850)
    """

    spans: list[tuple[int, int]] = []

    def turn(self, at: int, regime: Regime | None) -> None:
        """Take what a machine does from ``at`` (ms) on; ``None``: nobody has said what its word means."""
        is_open = bool(self.spans) and self.spans[-1][1] == NEVER
        if regime == "failed" and not is_open:
            self.spans = [*self.spans[1 - KEPT :], (at, NEVER)]
        elif is_open and regime not in ("failed", "maintenance", None):
            self.spans[-1] = self.spans[-1][0], at

    def begin_of(self, done: int, took: int) -> int:
        """Return when that broke which was repaired, ms.

        Args:
            done: When it was repaired, ms.
            took: How long the work took, ms.

        Returns:
            The begin of the first breakdown in which there was work; where there was none, that of the work.
        """
        began = done - took
        return next((begin for begin, end in self.spans if begin <= done and end >= began), began)
