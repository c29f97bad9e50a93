"""Exponential decay of purchases by their day: half as much for every half-life.

Weights are whole numbers that hang on the day alone, not on the present (forward decay: Cormode and others,
ICDE 2009), so sums of them are exact, the same in any order, and stay as they are when a day ends. Days
stand in spans of a half-life; a weight within a span goes from :data:`ONE` to twice that, and a span counts
twice as much as the one before it. Of the last :data:`SPANS` spans purchases count, older ones do not.
"""

from __future__ import annotations

from functools import cache
from itertools import accumulate
from typing import Final

DAY_MS: Final = 86_400_000
#: The weight of a purchase on the first day of a span, within the span.
ONE: Final = 64
#: So many spans count: what is older than their length, and up to one more, counts no more.
SPANS: Final = 4


class Decay:
    """Weights by half-life.

    Args:
        days: The half-life, days.

    Attributes:
        days: The half-life, days.
        weights: Of each day of a span its weight.

    Example:
        >>> weights = Decay(30).weights
        >>> weights[0], weights[15], weights[29]
        (64, 91, 125)
    """

    __slots__ = ("_sums", "days", "weights")

    def __init__(self, days: int) -> None:
        self.days = days
        self.weights = tuple(round(ONE * 2 ** (day / days)) for day in range(days))
        #: The weighted ms of the days before each day of a span; at last of a whole span.
        self._sums = tuple(DAY_MS * total for total in accumulate(self.weights, initial=0))

    def time(self, span: int, since: int, until: int) -> int:
        """Return a time in weighted ms: each day counts as a purchase of that day does.

        Args:
            span: The newest span; what is before the first of the :data:`SPANS` up to it is left out.
            since: From here, ms.
            until: To here, ms.
        """
        # This runs for every transaction.
        days, weights, sums = self.days, self.weights, self._sums
        first = (span - SPANS + 1) * days
        start = first * DAY_MS
        if until <= start:
            return 0
        day, rest = divmod(until, DAY_MS)
        spans, day = divmod(day - first, days)
        lasted = ((1 << spans) - 1) * sums[-1] + (sums[day] + weights[day] * rest << spans)
        if since > start:
            day, rest = divmod(since, DAY_MS)
            spans, day = divmod(day - first, days)
            lasted -= ((1 << spans) - 1) * sums[-1] + (sums[day] + weights[day] * rest << spans)
        return lasted


@cache
def decay_of(days: int) -> Decay:
    """Return the weights of a half-life, days."""
    return Decay(days)
