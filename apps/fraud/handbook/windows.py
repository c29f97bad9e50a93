"""The 14 features of the *Fraud Detection Handbook*, computed one transaction at a time from keyed state.

Le Borgne, Siblini, Lebichot, Bontempi, *Reproducible Machine Learning for Credit Card Fraud Detection:
Practical Handbook* (Université Libre de Bruxelles, 2022), chapter 3, defines them over a table, with
pandas: two flags of the time; per customer number and mean amount over (t - w, t], the transaction
itself included; per terminal number and share of frauds over (t - delay - w, t - delay], for w of 1, 7
and 30 days. What is computed here equals that to the last bit, so also the rounding of pandas' running sum
(compensated, see :meth:`CustomerWindows.observe`); transactions of one time are in order of their
identity.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

import msgspec

from millrace_apps.fraud.state.labels import DAY_MS, DECLINED, FRAUD, FRAUD_HIGH, HIGH, LabelLog, LabelRisk

#: Lengths of the windows, days.
WINDOW_DAYS: Final = (1, 7, 30)
#: From the first day of the epoch, a Thursday, to the Monday before it.
_MONDAY: Final = 3
HOUR_MS: Final = 3_600_000
#: A terminal's log goes back so much further than the label delay: the longest window, and a week.
MEMORY_MS: Final = 37 * DAY_MS


_W1, _W7, _W30 = (days * DAY_MS for days in WINDOW_DAYS)


def during_weekend(at: int) -> int:
    """Return 1 on a Saturday or Sunday, else 0.

    Args:
        at: UTC ms.

    >>> during_weekend(1_522_540_800_000)  # Sunday, 2018-04-01
    1
    """
    return 1 if (at // DAY_MS + _MONDAY) % 7 >= 5 else 0


def during_night(at: int) -> int:
    """Return 1 up to and with the hour of six, else 0.

    The Handbook's text says "between 0 and 6", its code includes 6:59; the published table follows the code.

    Args:
        at: UTC ms.

    >>> during_night(6 * 3_600_000 + 59 * 60_000), during_night(7 * 3_600_000)
    (1, 0)
    """
    return 1 if at // HOUR_MS % 24 <= 6 else 0


class RunningSum(msgspec.Struct, array_like=True, gc=False):
    """A sum over a moving window as pandas keeps it: Kahan's compensation, one for each direction.

    Attributes:
        total: The sum, rounded as its history has it.
        added: Compensation of what was added.
        removed: Compensation of what was removed.
        start: Where the window began at the last transaction, an index into the customer's history.
    """

    total: float = 0.0
    added: float = 0.0
    removed: float = 0.0
    start: int = 0


class CustomerWindows(msgspec.Struct, array_like=True, gc=False):
    """A customer's transactions of the last 30 days, and their sums over 1, 7 and 30 days.

    Attributes:
        base: Times are counted from here, ms since the epoch: small numbers are short in the state.
        times: Event times, ascending, ms since ``base``.
        amounts: Amounts: whole hundredths, or currency units where they are none (which is longer).
        one: Sum over the last day.
        seven: Sum over the last 7 days.
        thirty: Sum over the last 30 days.
        same: How many of the last transactions had the same amount, without a break.
    """

    base: int = 0
    times: list[int] = []
    amounts: list[int | float] = []
    one: RunningSum = msgspec.field(default_factory=RunningSum)
    seven: RunningSum = msgspec.field(default_factory=RunningSum)
    thirty: RunningSum = msgspec.field(default_factory=RunningSum)
    same: int = 0

    def observe(self, at: int, amount: float) -> tuple[int, float, int, float, int, float]:
        """Count a transaction; return number and mean amount over 1, 7 and 30 days.

        The mean is a quotient of pandas' running sum. That sum takes a window's new amount in and the
        old ones out with Kahan's compensation, begins anew when the window was empty, and gives the
        product where all amounts of the window are the same; each of these shows in the last bit.

        Args:
            at: Event time, ms; not before the last one.
            amount: Currency units.

        Example:
            >>> windows = CustomerWindows()
            >>> windows.observe(0, 10.0), windows.observe(86_400_000, 30.0)
            ((1, 10.0, 1, 10.0, 1, 10.0), (1, 30.0, 2, 20.0, 2, 20.0))
        """
        times, amounts = self.times, self.amounts
        cents = round(amount * 100)
        kept = cents if cents / 100 == amount else amount
        last = len(times)
        if not last:
            self.base = at
        t = at - self.base
        self.same = same = self.same + 1 if last and amounts[-1] == kept else 1
        times.append(t)
        amounts.append(kept)
        n1, sum1 = self._slide(self.one, t - _W1, last, amount, same)
        n7, sum7 = self._slide(self.seven, t - _W7, last, amount, same)
        n30, sum30 = self._slide(self.thirty, t - _W30, last, amount, same)
        return n1, sum1 / n1, n7, sum7 / n7, n30, sum30 / n30

    def _slide(
        self, window: RunningSum, bound: int, last: int, amount: float, same: int
    ) -> tuple[int, float]:
        """Move a window on to the newest transaction, at index ``last``; return number and sum."""
        times = self.times
        start = before = window.start
        while times[start] <= bound:  # ends at the newest, which is after the bound
            start += 1
        window.start = start
        if start == last:
            window.total, window.added, window.removed = amount, 0.0, 0.0
            return 1, amount
        total = window.total
        if start != before:
            removed = window.removed
            for kept in self.amounts[before:start]:
                y = -(kept / 100 if type(kept) is int else kept) - removed
                moved = total + y
                removed = moved - total - y
                total = moved
            window.removed = removed
        y = amount - window.added
        moved = total + y
        window.added = moved - total - y
        window.total = moved
        count = last + 1 - start
        return count, amount * count if same >= count else moved

    def forget(self, index: int) -> None:
        """Remove the transactions before ``index``, which no window holds, and count times anew."""
        times = self.times
        shift = times[index]
        self.times = [t - shift for t in times[index:]]
        self.base += shift
        del self.amounts[:index]
        for window in (self.one, self.seven, self.thirty):
            window.start -= index


def terminal_windows(log: LabelLog, at: int, delay: int) -> tuple[int, float, int, float, int, float]:
    """Return number and share of known frauds over the windows of 1, 7 and 30 days that ended ``delay`` ago.

    What was declined is in none of them.

    Args:
        log: The terminal's transactions before this one, the labels known by now uncovered.
        at: Event time, ms.
        delay: Label delay, ms.

    Example:
        >>> log = LabelLog()
        >>> log.add(0, FRAUD)
        >>> terminal_windows(log, 7 * DAY_MS, 7 * DAY_MS)
        (1, 1.0, 1, 1.0, 1, 1.0)
    """
    times, labels = log.times, log.labels
    t = at - log.base - delay
    end = bisect_right(times, t)
    if not end:
        return 0, 0.0, 0, 0.0, 0, 0.0
    start30 = bisect_right(times, t - _W30, 0, end)
    start7 = bisect_right(times, t - _W7, start30, end)
    start1 = bisect_right(times, t - _W1, start7, end)
    n1, n7, n30 = end - start1, end - start7, end - start30
    if declined := _declined(labels, start30, end):
        n1, n7, n30 = (
            n1 - _declined(labels, start1, end),
            n7 - _declined(labels, start7, end),
            n30 - declined,
        )
    frauds = labels.count(FRAUD, start30, end) + labels.count(FRAUD_HIGH, start30, end)
    if not frauds:
        return n1, 0.0, n7, 0.0, n30, 0.0
    frauds7 = labels.count(FRAUD, start7, end) + labels.count(FRAUD_HIGH, start7, end)
    frauds1 = labels.count(FRAUD, start1, end) + labels.count(FRAUD_HIGH, start1, end)
    return (
        n1,
        frauds1 / n1 if n1 else 0.0,
        n7,
        frauds7 / n7 if n7 else 0.0,
        n30,
        frauds / n30 if n30 else 0.0,
    )


def _declined(labels: bytearray, start: int, end: int) -> int:
    return labels.count(DECLINED, start, end) + labels.count(DECLINED + HIGH, start, end)


def look_at_labels(
    log: LabelLog, at: int, delay: int, *, unlabelled_is_genuine: bool, mature: int = 0
) -> tuple[tuple[int, float, int, float, int, float], LabelRisk]:
    """Return what is known of a terminal's transactions, and forget what no window holds any more.

    Recorded history and the live stream both look through this.

    Args:
        log: The terminal's transactions before this one, with the labels that have been learned.
        at: Event time, ms.
        delay: Label delay, ms.
        unlabelled_is_genuine: Take those that nobody has spoken of for genuine, after the delay …
        mature: … or after this, if it is longer, ms.
    """
    log.uncover(at - max(delay, mature), unlabelled_is_genuine=unlabelled_is_genuine)
    log.forget(at - delay - MEMORY_MS)
    return terminal_windows(log, at, delay), log.risk(at)
