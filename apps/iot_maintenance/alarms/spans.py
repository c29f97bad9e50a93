"""Windows in alarm rules: ``mean(value, 30 min)``, of each measuring point, in twelve panes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

#: A window is so many panes, the one that is filling included: the oldest twelfth leaves at once.
PANES: Final = 12
#: Windows that a rule may ask for, ms: from twelve milliseconds to a year.
LEAST_MS: Final = PANES
MOST_MS: Final = 366 * 86_400_000


class Span(msgspec.Struct, array_like=True, gc=False):
    """The values of one window.

    Attributes:
        pane: Number of the newest pane since the epoch.
        counts: How many values are in each pane, oldest first; the last one is ``pane``.
        sums: Their sums.
        lows: The least of each; of an empty one anything.
        highs: The largest of each; of an empty one anything.

    Example:
        >>> span = Span()
        >>> for second, value in ((0, 5.0), (1, 1.0), (11, 3.0), (12, 9.0)):
        ...     span.move(second * 1_000, 12_000)
        ...     span.add(value)
        >>> span.count, span.mean, span.low, span.high
        (3, 4.333333333333333, 1.0, 9.0)
    """

    pane: int = -1
    counts: list[int] = []
    sums: list[float] = []
    lows: list[float] = []
    highs: list[float] = []

    def move(self, at: int, length: int) -> None:
        """Move on to a time, ms; not before the one before.

        Args:
            at: The time, ms.
            length: Length of the window, ms.
        """
        pane = at * PANES // length
        gone = pane - self.pane
        if not gone and self.counts:
            return
        self.pane = pane
        parts: tuple[list[int], list[float], list[float], list[float]] = (
            self.counts,
            self.sums,
            self.lows,
            self.highs,
        )
        if not self.counts or not 0 < gone < PANES:
            for part in parts:
                part[:] = [0]
            return
        for part in parts:
            part += [0] * gone
            del part[:-PANES]

    def add(self, value: float) -> None:
        """Add a value of the time that was moved to."""
        if not self.counts[-1]:
            self.lows[-1] = self.highs[-1] = value
        self.counts[-1] += 1
        self.sums[-1] += value
        self.lows[-1] = min(self.lows[-1], value)
        self.highs[-1] = max(self.highs[-1], value)

    @property
    def count(self) -> int:
        """How many values there are."""
        return sum(self.counts)

    @property
    def mean(self) -> float | None:
        """Their mean."""
        count = sum(self.counts)
        return sum(self.sums) / count if count else None

    @property
    def low(self) -> float | None:
        """The least of them."""
        return min((v for v, n in zip(self.lows, self.counts, strict=True) if n), default=None)

    @property
    def high(self) -> float | None:
        """The largest of them."""
        return max((v for v, n in zip(self.highs, self.counts, strict=True) if n), default=None)


class SpanStore(msgspec.Struct, array_like=True):
    """The windows of a machine.

    Attributes:
        kept: Measuring point → length (ms) → window.
    """

    kept: dict[str, dict[int, Span]] = {}

    def of(self, subject: str, lengths: Iterable[int]) -> Mapping[int, Span]:
        """Return the windows of a measuring point that are asked for; others of it are forgotten."""
        found = self.kept.get(subject)
        if found is None:
            found = self.kept[subject] = {}
        wanted = frozenset(lengths)
        if found.keys() != wanted:
            found = self.kept[subject] = {length: found.get(length) or Span() for length in sorted(wanted)}
        return found
