"""Labels of a terminal's transactions, as of when they became known.

A transaction is *pending* until somebody says what it was. Labels come in two ways: by themselves, as
events of a stream, at the time they became known (:meth:`LabelLog.learn`); or, in recorded history, on
the transaction itself, sealed until a delay is over (:meth:`LabelLog.uncover`). Features see what has
been learned or uncovered and nothing else.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Final

import msgspec

DAY_MS: Final = 86_400_000

#: Labels of a log, one byte a transaction.
PENDING: Final = 0
GENUINE: Final = 1
FRAUD: Final = 2
#: Nobody will say what it was: it was declined.
DECLINED: Final = 4
#: Added for an amount that is high by itself (see :mod:`millrace_apps.fraud.handbook.habits`).
HIGH: Final = 8
#: Added to a label that nobody knows yet.
SEALED: Final = 16

_GENUINE_HIGH: Final = GENUINE + HIGH
FRAUD_HIGH: Final = FRAUD + HIGH
_DECLINED_HIGH: Final = DECLINED + HIGH

#: Stands for "days since" what has not happened within the memory of a log, which is shorter.
LONG_AGO_DAYS: Final = 90.0
#: Times are counted anew from here on: then they still take four bytes.
_REBASE_MS: Final = 2**31


class LabelRisk(msgspec.Struct, frozen=True, gc=False):
    """What the known labels of a terminal (or of a card) say before a transaction.

    A *run* is the known frauds of usual amounts since the last transaction known to be genuine: a
    compromised terminal has one, a terminal at which a stolen card was used has not. Days are elapsed days
    unless told otherwise, ``LONG_AGO_DAYS`` where there is nothing.

    Attributes:
        fraud_run: How many frauds are in the run.
        run_first_days: Days since the first of the run.
        run_last_days: Days since the last of the run.
        run_open_days: Days since the genuine transaction before the run: it began no earlier.
        run_first_midnights: Midnights (UTC) since the first of the run.
        run_open_midnights: Midnights since the genuine transaction before the run.
        frauds: Known frauds of usual amounts, as far as the log goes back.
        frauds_high: Known frauds of high amounts.
        last_label: The newest known transaction: 0 none, 1 genuine, 2 fraud, 3 fraud of a high amount.
        last_label_days: Days since that transaction.
        genuine_days: Days since the newest transaction known to be genuine.
        pending: Transactions of which nothing is known yet; not those that were declined.
        known: Transactions of which something is known.
    """

    fraud_run: int
    run_first_days: float
    run_last_days: float
    run_open_days: float
    run_first_midnights: int
    run_open_midnights: int
    frauds: int
    frauds_high: int
    last_label: int
    last_label_days: float
    genuine_days: float
    pending: int
    known: int


class TerminalLabels(LabelRisk, frozen=True, gc=False):
    """The same of a terminal, with the Handbook's windows of 1, 7 and 30 days, which end the label delay ago.

    Attributes:
        count_1d: Transactions in the window of a day; so for 7 d and 30 d.
        risk_1d: Share of known frauds among them; so for 7 d and 30 d.
    """

    count_1d: int
    risk_1d: float
    count_7d: int
    risk_7d: float
    count_30d: int
    risk_30d: float


class LabelLog(msgspec.Struct, array_like=True, gc=False):
    """The last weeks of a terminal: when, and what is known of each transaction.

    Attributes:
        base: Times are counted from here, ms since the epoch: small numbers are short in the state.
        times: Event times, ascending, ms since ``base``.
        labels: A label per transaction.
        uncovered: How many of the oldest have had their sealed labels uncovered.
    """

    base: int = 0
    times: list[int] = []
    labels: bytearray = msgspec.field(default_factory=bytearray)
    uncovered: int = 0

    def last(self) -> int:
        """Return the time of the newest transaction, ms; 0 for none."""
        return self.base + self.times[-1] if self.times else 0

    def add(self, at: int, label: int = PENDING, *, high: bool = False, sealed: bool = False) -> None:
        """Add a transaction; one that comes out of order goes to its place.

        Args:
            at: Event time, ms.
            label: What it was, if that is on the record.
            high: Whether its amount was high.
            sealed: Whether the label is not known yet.
        """
        if not self.times:
            self.base = at
        t, times = at - self.base, self.times
        kept = label + (HIGH if high else 0) + (SEALED if sealed else 0)
        if not times or t >= times[-1]:
            times.append(t)
            self.labels.append(kept)
            return
        place = bisect_right(times, t)
        times.insert(place, t)
        self.labels.insert(place, kept)
        self.uncovered += place < self.uncovered

    def until(self, at: int) -> LabelLog:
        """Return a copy without the transactions after a time (ms)."""
        end = bisect_right(self.times, at - self.base)
        return LabelLog(self.base, self.times[:end], self.labels[:end], min(self.uncovered, end))

    def uncover(self, until: int, *, unlabelled_is_genuine: bool = False) -> None:
        """Make the sealed labels of transactions up to a time known.

        Args:
            until: Event time, ms, of the latest whose label is known now.
            unlabelled_is_genuine: Take those that nobody has spoken of for genuine.
        """
        times, labels, index = self.times, self.labels, self.uncovered
        bound, count = until - self.base, len(times)
        while index < count and times[index] <= bound:
            label = labels[index] & ~SEALED
            if unlabelled_is_genuine and label & ~HIGH == PENDING:
                label |= GENUINE
            labels[index] = label
            index += 1
        self.uncovered = index

    def learn(self, at: int, label: int) -> bool:
        """Take a label that has become known; the latest word counts.

        Args:
            at: Event time of the transaction, ms.
            label: ``FRAUD`` or ``GENUINE``.

        Returns:
            Whether the transaction is still remembered.

        Example:
            >>> log = LabelLog()
            >>> log.add(1_000)
            >>> log.learn(1_000, FRAUD), log.learn(2_000, FRAUD)
            (True, False)
        """
        t, labels = at - self.base, self.labels
        index = bisect_left(self.times, t)
        if index == len(self.times) or self.times[index] != t:
            return False
        # Of several at the same millisecond take one that says something else; they have no names here.
        same = range(index, bisect_right(self.times, t))
        place = next((i for i in same if labels[i] & ~HIGH != label), index)
        labels[place] = label | labels[place] & HIGH
        return True

    def decline(self, at: int, *, declined: bool = True) -> None:
        """Take it that a transaction was declined, or was not after all; what is known of it stays.

        Nobody complains of what was declined, so silence says nothing of it.

        Args:
            at: Event time of the transaction, ms.
            declined: Whether it was.

        Example:
            >>> log = LabelLog()
            >>> log.add(1_000)
            >>> log.decline(1_000)
            >>> log.uncover(2_000, unlabelled_is_genuine=True)
            >>> found = log.risk(2_000)
            >>> found.known, found.pending
            (0, 0)
        """
        t, labels = at - self.base, self.labels
        was, now = (PENDING, DECLINED) if declined else (DECLINED, PENDING)
        for place in range(bisect_left(self.times, t), bisect_right(self.times, t)):
            if labels[place] & ~HIGH == was:
                labels[place] = now | labels[place] & HIGH
                if not declined:
                    self.uncovered = min(self.uncovered, place)
                return

    def forget(self, before: int) -> None:
        """Remove the transactions up to a time.

        Args:
            before: Event time, ms.
        """
        times = self.times
        bound = before - self.base
        if not times or times[0] > bound:
            return
        index = bisect_right(times, bound)
        del times[:index]
        del self.labels[:index]
        self.uncovered = max(0, self.uncovered - index)
        if times and (shift := times[0]) > _REBASE_MS:
            self.times = [t - shift for t in times]
            self.base += shift

    def risk(self, at: int) -> LabelRisk:
        """Return what is known now.

        Args:
            at: The present, event time in ms.

        Example:
            >>> log = LabelLog()
            >>> log.add(0, GENUINE)
            >>> log.add(DAY_MS, FRAUD)
            >>> log.add(2 * DAY_MS, FRAUD, sealed=True)
            >>> found = log.risk(3 * DAY_MS)
            >>> found.fraud_run, found.run_first_days, found.run_open_days, found.pending
            (1, 2.0, 3.0, 1)
        """
        labels, times, base = self.labels, self.times, self.base
        now = at - base
        size = len(labels)
        frauds, high = labels.count(FRAUD), labels.count(FRAUD_HIGH)
        genuine = labels.count(GENUINE) + labels.count(_GENUINE_HIGH)
        known = frauds + high + genuine
        pending = size - known - labels.count(DECLINED) - labels.count(_DECLINED_HIGH)
        if not known:
            return LabelRisk(0, *_NO_RUN, 0, 0, 0, LONG_AGO_DAYS, LONG_AGO_DAYS, pending, 0)
        last_genuine = max(labels.rfind(GENUINE), labels.rfind(_GENUINE_HIGH)) if genuine else -1
        genuine_days = (now - times[last_genuine]) / DAY_MS if genuine else LONG_AGO_DAYS
        if not frauds and not high:
            return LabelRisk(0, *_NO_RUN, 0, 0, 1, genuine_days, genuine_days, pending, known)
        last_fraud = labels.rfind(FRAUD)
        last_high = labels.rfind(FRAUD_HIGH)
        last = max(last_genuine, last_fraud, last_high)
        run, of_run = 0, _NO_RUN
        if last_fraud > last_genuine:
            run = labels.count(FRAUD, last_genuine + 1)
            first = labels.find(FRAUD, last_genuine + 1)
            today = at // DAY_MS
            of_run = (
                (now - times[first]) / DAY_MS,
                (now - times[last_fraud]) / DAY_MS,
                genuine_days,
                today - (base + times[first]) // DAY_MS,
                today - (base + times[last_genuine]) // DAY_MS if genuine else int(LONG_AGO_DAYS),
            )
        return LabelRisk(
            run,
            *of_run,
            frauds,
            high,
            1 if last == last_genuine else 2 if last == last_fraud else 3,
            (now - times[last]) / DAY_MS,
            genuine_days,
            pending,
            known,
        )


#: First, last, opening in days; first, opening in midnights.
_NO_RUN: Final = (LONG_AGO_DAYS, LONG_AGO_DAYS, LONG_AGO_DAYS, int(LONG_AGO_DAYS), int(LONG_AGO_DAYS))
