"""A customer's own habits: what an amount is beside the amounts that this customer usually spends."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import Final

import msgspec

from millrace_apps.fraud.state.labels import DAY_MS, LONG_AGO_DAYS

#: How many of the latest amounts make the median.
REMEMBERED: Final = 60
#: From so many amounts on a median says something.
FROM: Final = 5
#: An amount is raised from this many times the median on, and counts for two weeks.
RAISED: Final = 2.0
#: An amount is high from this many times the median on, …
HIGH_RATIO: Final = 2.5
#: … or from this amount on, hundredths.
HIGH_CENTS: Final = 22_000
_TWO_WEEKS: Final = 14 * DAY_MS
_HOUR: Final = 3_600_000
#: Hours since the last transaction where there is none.
_NO_GAP_HOURS: Final = 999.0


def is_high(amount: float, ratio: float) -> bool:
    """Return whether an amount is high by itself: a stolen card is used so, whatever the terminal.

    Args:
        amount: Currency units.
        ratio: The amount in medians of the payer's earlier amounts.

    >>> is_high(250.0, 1.0), is_high(30.0, 2.6), is_high(30.0, 2.0)
    (True, True, False)
    """
    return ratio > HIGH_RATIO or amount * 100 > HIGH_CENTS


class Standing(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """How a transaction stands beside its customer's earlier ones.

    Attributes:
        ratio: The amount in medians of the customer's last 60 amounts before it; 1 without any.
        median: That median; 0 without any.
        seen: How many amounts it rests on.
        raised: Earlier transactions of the last 14 days of 2 medians and more …
        high: … above 2.5 …
        higher: … above 3 …
        highest: … above 4.
        high_last_days: Days since the last above 2.5, …
        high_first_days: … since the first of them.
        most: The largest ratio among the raised.
        gap_hours: Hours since the customer's last transaction.
    """

    ratio: float
    median: float
    seen: int
    raised: int
    high: int
    higher: int
    highest: int
    high_last_days: float
    high_first_days: float
    most: float
    gap_hours: float

    @property
    def is_raised(self) -> bool:
        """Whether the ratio counts as raised from now on."""
        return self.ratio > RAISED and self.seen >= FROM


class Habits(msgspec.Struct, array_like=True, gc=False):
    """What is kept of a customer's amounts.

    Attributes:
        recent: The last 60 amounts, hundredths, in order of time.
        ordered: The same in order of size.
        raised_at: When amounts were raised, ms, of the last 14 days.
        raised_by: How much, in thousandths of the median.
        last: Time of the last transaction, ms; -1 before the first.
    """

    recent: list[int] = []
    ordered: list[int] = []
    raised_at: list[int] = []
    raised_by: list[int] = []
    last: int = -1

    def observe(self, at: int, amount: float) -> Standing:
        """Return how a transaction stands, and remember it.

        Args:
            at: Event time, ms; not before the last one.
            amount: Currency units; its hundredths count.

        Example:
            >>> habits = Habits()
            >>> for day in range(5):
            ...     _ = habits.observe(day * DAY_MS, 10 + day / 100)
            >>> found = habits.observe(5 * DAY_MS, 50.1)
            >>> found.ratio, found.median, found.gap_hours, found.high
            (5.0, 10.02, 24.0, 0)
            >>> habits.observe(6 * DAY_MS, 9).high
            1
        """
        cents = round(amount * 100)
        ordered = self.ordered
        seen = len(ordered)
        if seen:
            middle = seen >> 1
            median = ordered[middle] if seen & 1 else (ordered[middle - 1] + ordered[middle]) / 2
        else:
            median = 0
        ratio = cents / median if median else 1.0
        raised_at = self.raised_at
        if raised_at and raised_at[0] <= at - _TWO_WEEKS:
            gone = bisect_right(raised_at, at - _TWO_WEEKS)
            del raised_at[:gone]
            del self.raised_by[:gone]
        gap = (at - self.last) / _HOUR if self.last >= 0 else _NO_GAP_HOURS
        standing = Standing(ratio, median / 100, seen, *self._raised(at), gap)
        self.last = at
        self._remember(at, cents, standing)
        return standing

    def _raised(self, at: int) -> tuple[int, int, int, int, float, float, float]:
        if not self.raised_at:
            return _NONE_RAISED
        high = higher = highest = 0
        first = last = LONG_AGO_DAYS
        for when, by in zip(self.raised_at, self.raised_by, strict=True):
            if by > 2500:
                last = (at - when) / DAY_MS
                if not high:
                    first = last
                high += 1
                if by > 3000:
                    higher += 1
                if by > 4000:
                    highest += 1
        return len(self.raised_at), high, higher, highest, last, first, max(self.raised_by) / 1000

    def _remember(self, at: int, cents: int, standing: Standing) -> None:
        if standing.is_raised:
            self.raised_at.append(at)
            self.raised_by.append(min(int(standing.ratio * 1000), 1_000_000))
        recent, ordered = self.recent, self.ordered
        recent.append(cents)
        insort(ordered, cents)
        if len(recent) > REMEMBERED:
            del ordered[bisect_left(ordered, recent.pop(0))]


_NONE_RAISED: Final = (0, 0, 0, 0, LONG_AGO_DAYS, LONG_AGO_DAYS, 0.0)
