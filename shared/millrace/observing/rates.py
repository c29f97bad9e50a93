"""Rates of growing counts, over the last half minute, or the last batches where they take longer."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final

#: Over how long, ms: long enough for several batches, short enough to show a stall.
SPAN_MS: Final = 30_000


class Rates:
    """Takes counts that only grow, and says how fast they do.

    Args:
        from_zero: Whether a count that was not there before was 0; else nothing is known of it until it has
            been seen twice.
        span_ms: Over how long rates are taken, ms.

    Example:
        >>> rates = Rates(from_zero=True)
        >>> rates.see(0, {}); rates.see(2_000, {"main": 30})
        >>> rates.per_second()
        {'main': 15.0}
    """

    def __init__(self, *, from_zero: bool, span_ms: int = SPAN_MS) -> None:
        self._from_zero, self._span_ms = from_zero, span_ms
        self._seen: deque[tuple[int, dict[str, int]]] = deque()

    def see(self, at_ms: int, counts: Mapping[str, int], *, batch_ms: int = 0) -> None:
        """Take the counts of a moment.

        Args:
            at_ms: When, by a clock that only goes forward, ms; what is not after the last one is left out.
            counts: The counts, by name.
            batch_ms: How long a batch takes, ms: rates are taken over three at least, as counts stand still
                meanwhile.
        """
        if self._seen and at_ms <= self._seen[-1][0]:
            return
        self._seen.append((at_ms, dict(counts)))
        # One that is older than the span stays, so that the whole span is covered.
        span_ms = max(self._span_ms, 3 * batch_ms)
        while len(self._seen) > 2 and self._seen[1][0] <= at_ms - span_ms:
            self._seen.popleft()

    def per_second(self) -> dict[str, float]:
        """Return how much was added per second, by name; nothing of what was seen once."""
        if len(self._seen) < 2:
            return {}
        (first_ms, first), (at_ms, after) = self._seen[0], self._seen[-1]
        found = {}
        for name, count in after.items():
            since_ms, before = first_ms, first.get(name)
            if before is None and self._from_zero:
                before = 0
            elif before is None:  # it came later
                since_ms, before = next((at, seen[name]) for at, seen in self._seen if name in seen)
            if since_ms < at_ms:
                found[name] = max(0, count - before) / ((at_ms - since_ms) / 1_000)
        return found
