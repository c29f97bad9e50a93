"""The spending profile of a card: its balance, and what its purchases usually are.

Money is whole cents and every total an exact integer that does not depend on order, so a result never
depends on how a stream was cut into batches. Purchases count the less the older they are
(:mod:`millrace_apps.fraud.state.decay`), one extreme purchase counts as a large one, and what was declined,
paid back or found to be a fraud does not count (see :mod:`millrace_apps.fraud.processes.cards`).
"""

from __future__ import annotations

import copy
import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from typing import Final

import msgspec

from millrace.parts.lookback import link_of
from millrace_apps.fraud.state.amounts import MIDDLES, SMALL_CENTS, SMALL_SHARE, bucket_of
from millrace_apps.fraud.state.card import Account
from millrace_apps.fraud.state.decay import DAY_MS, SPANS, decay_of
from millrace_apps.fraud.state.totals import HALF, Totals, carried

#: A purchase that is so many times the median, and more, counts as if it were so many times: in buckets,
#: of which there are eight to every doubling.
_EXTREME: Final = 16
#: So many purchases above ``SMALL_CENTS`` it takes to know what is large.
_KNOWN_FROM: Final = 3
#: Half-life of what is usual for a card unless told otherwise, days.
HALF_LIFE_DAYS: Final = 30


class Change(msgspec.Struct, array_like=True, frozen=True, gc=False, order=True):
    """Something that becomes known of a payment.

    Attributes:
        known: When, ms.
        transaction_id: The payment.
        at: Its time, ms.
        terminal: Link of its terminal; 0: not told.
        cents: Its amount, cents; 0: not told.
    """

    known: int
    transaction_id: str
    at: int
    terminal: int
    cents: int

    @property
    def link(self) -> int:
        """The link of the payment."""
        return link_of(self.transaction_id)


class Profile(Totals):
    """What is known of a card: sums over the purchases of its last spans, weighted as the newest span has it.

    Attributes:
        balance: Balance, cents.
        since: Time of the first purchase that counts, ms; 0: there is none.
        big_weight: The sum of ``buckets``.
        middle: Index in ``buckets`` of the bucket that holds the median.
        below: Weights in the buckets before it.
        half_life: Half-life of the weights, days; 0: there are none yet.
        span: The newest span.
        older: Sums of the spans before it, the newest first, each weighted by itself; the last of
            :data:`millrace_apps.fraud.state.decay.SPANS` of them does not count any more.
        waiting: What becomes known of payments and is not in force for all yet, in order of its time.
        excluded: Purchases of the last weeks that do not count: time (ms), cents and link of each, in order.
    """

    balance: int = 0
    since: int = 0
    big_weight: int = 0
    middle: int = 0
    below: int = 0
    half_life: int = 0
    span: int = 0
    older: list[Totals] = msgspec.field(default_factory=list)
    waiting: list[Change] = msgspec.field(default_factory=list)
    excluded: list[tuple[int, int, int]] = msgspec.field(default_factory=list)

    def arrive(self, time: int) -> None:
        """Begin the span of a time (ms), if that is later than the newest."""
        span = time // DAY_MS // self.half_life
        if span > self.span:
            self._advance(span)

    def buy(self, time: int, cents: int) -> None:
        """Count a purchase.

        Args:
            time: When, ms.
            cents: Its amount, cents.
        """
        # As change(time, cents, 1), spelled out since it runs for every purchase.
        decay = decay_of(self.half_life)
        span, day = divmod(time // DAY_MS, decay.days)
        self.balance -= cents
        if span != self.span:
            self.change(time, cents, 1)
            return
        if time < self.since or not self.since:
            self.since = time
        weight = decay.weights[day] << SPANS - 1
        self.count += 1
        self.weight += weight
        weighted = weight * cents
        low = self.total_low + weighted
        if low < HALF:
            self.total_low = low
        else:
            self.total_high, self.total_low = carried(self.total_high, low)
        low = self.squares_low + weighted * cents
        if low < HALF:
            self.squares_low = low
        else:
            self.squares_high, self.squares_low = carried(self.squares_high, low)
        if cents > SMALL_CENTS:
            self.big_count += 1
            shift = cents.bit_length() - 4  # as bucket_of: it is above 16 cents
            self.weigh((shift << 3) + (cents >> shift), weight)
        else:
            self.small_total += weighted
            self.small_squares += weighted * cents

    def change(self, time: int, cents: int, sign: int) -> None:
        """Count a purchase (sign 1), or take it back (-1); the balance stays.

        Args:
            time: When it was, ms.
            cents: Its amount, cents.
            sign: 1 or -1.
        """
        decay = decay_of(self.half_life)
        span, day = divmod(time // DAY_MS, decay.days)
        if span > self.span:
            self._advance(span)
        behind = self.span - span
        if 0 < behind <= SPANS:
            self.older.extend(Totals() for _ in range(behind - len(self.older)))
            self.older[behind - 1].add(cents, sign, decay.weights[day])
        if sign > 0 and (time < self.since or not self.since):
            self.since = time
        if behind >= SPANS:
            return
        self.add(cents, sign, decay.weights[day] << SPANS - 1 - behind)

    def weigh(self, bucket: int, weight: int) -> None:
        """Add a weight to a bucket, and move on to the bucket of the median."""
        buckets = self.buckets
        at = bucket - self.first_bucket
        if 0 <= at < len(buckets):
            buckets[at] += weight
        else:
            self.middle += self.put(bucket, weight)
            at = bucket - self.first_bucket
        self.big_weight += weight
        middle, below = self.middle, self.below
        if at < middle:
            below += weight
            self.below = below
        target = (self.big_weight + 1) >> 1
        if not below < target <= below + buckets[middle]:
            self._move_middle(target)

    def _move_middle(self, target: int) -> None:
        """Move on to the bucket in which the weights of all up to it reach ``target``."""
        buckets, middle, below = self.buckets, self.middle, self.below
        while below >= target > 0:
            middle -= 1
            below -= buckets[middle]
        while below + buckets[middle] < target:
            below += buckets[middle]
            middle += 1
        self.middle, self.below = middle, below

    def find_middle(self) -> None:
        """Find the median anew, and forget buckets at either end that are empty."""
        buckets = self.buckets
        first, end = 0, len(buckets)
        while end and not buckets[end - 1]:
            end -= 1
        while first < end and not buckets[first]:
            first += 1
        self.first_bucket += first
        self.buckets = buckets[first:end]
        self.big_weight = sum(self.buckets)
        self.middle = self.below = 0
        if self.buckets:
            self._move_middle((self.big_weight + 1) >> 1)

    def _advance(self, span: int) -> None:
        """Begin a span: purchases of the ones before count half as much for each, those of one no more."""
        if span - self.span > SPANS:
            self.merge(copy.deepcopy(self), -1, 1)
            self.older, self.span = [], span
        while self.span < span:
            newest = Totals()
            newest.merge(self, 1, 1)
            for place, totals in enumerate(self.older[: SPANS - 1]):
                newest.merge(totals, -1, 1 << SPANS - 2 - place)
            newest.scale(1, 1 << SPANS - 1)
            if len(self.older) >= SPANS - 1:
                self.merge(self.older[SPANS - 2], -1, 1)
            self.scale(1, 2)
            self.older = [newest, *self.older[: SPANS - 1]]
            self.span += 1
        self.find_middle()

    def go_back(self) -> None:
        """Go back to the span before, where nothing of this one is in it any more."""
        self.scale(2)
        if len(self.older) >= SPANS:
            self.merge(self.older[SPANS - 1], 1, 1)
        self.older = self.older[1:]
        self.span -= 1
        self.find_middle()

    def without(self, purchases: Iterable[tuple[int, int]], credited: int, at: int) -> Profile:
        """Return a copy as of a time.

        Args:
            purchases: What is later: time (ms) and cents each.
            credited: Refunds and top-ups that are later, cents.
            at: The time, ms.
        """
        past, left_out = self.copied(), [payment[:2] for payment in self.excluded]
        for time, cents in purchases:
            if (time, cents) in left_out:  # only what is late comes before what became known of a later one
                left_out.remove((time, cents))
                continue
            past.change(time, cents, -1)
            past.balance += cents
        past.balance -= credited
        for _ in range(min(SPANS, past.span - at // DAY_MS // past.half_life)):
            past.go_back()
        return past

    def copied(self) -> Profile:
        """Return a copy that can be changed."""
        past = copy.copy(self)
        past.buckets, past.excluded = list(self.buckets), list(self.excluded)
        past.older = [copy.copy(totals) for totals in self.older]
        for totals in past.older:
            totals.buckets = list(totals.buckets)
        return past

    def count_payment(self, payment: tuple[int, int, int], times: list[int], *, counts: bool) -> None:
        """Have a purchase count, or not.

        Args:
            payment: Its time (ms), cents, and link (:func:`millrace.parts.lookback.link_of`).
            times: The times of all purchases of the last weeks whose amounts are known, ms, ascending.
            counts: Whether it counts from now on.
        """
        excluded, (time, cents, _) = self.excluded, payment
        place = bisect_left(excluded, payment)
        if counts != (excluded[place : place + 1] == [payment]) or not (counts or self._holds(time, cents)):
            return
        self.change(time, cents, 1 if counts else -1)
        if counts:
            del excluded[place]
            return
        excluded.insert(place, payment)
        if time == self.since:
            gone = Counter(at for at, _, _ in excluded)
            for at in times[bisect_left(times, time) :]:
                gone[at] -= 1
                if gone[at] < 0:
                    self.since = at
                    return
            self.since = 0

    def excluded_beside(self, change: Change, cents: int) -> int:
        """Return how many purchases of one time and amount do not count, beside one.

        Args:
            change: What has become known of that one.
            cents: Its amount, cents.
        """
        alike = [link for at, amount, link in self.excluded if (at, amount) == (change.at, cents)]
        return len(alike) - (change.link in alike)

    def _holds(self, time: int, cents: int) -> bool:
        """Return whether a purchase can be taken out: not what has been restated as one lot since."""
        span, day = divmod(time // DAY_MS, self.half_life)
        weight = decay_of(self.half_life).weights[day] << max(0, SPANS - 1 - self.span + span)
        if self.span - span >= SPANS:
            return True
        if cents <= SMALL_CENTS:
            return self.count > self.big_count and self.small_total >= weight * cents
        at = bucket_of(cents) - self.first_bucket
        return 0 <= at < len(self.buckets) and self.buckets[at] >= weight

    def wait(self, change: Change) -> None:
        """Remember that something becomes known; what does at once of one payment is one change."""
        waiting, told = self.waiting, (change.known, change.transaction_id, change.at)
        place = bisect_left(waiting, told, key=_told)
        if place < len(waiting) and _told(waiting[place]) == told:
            waiting[place] = max(waiting[place], change)
        else:
            waiting.insert(place, change)

    def forget(self, until: int) -> None:
        """Forget purchases that do not count up to a time (ms): nothing becomes known of them any more."""
        excluded = self.excluded
        if excluded and excluded[0][0] <= until:
            self.excluded = [payment for payment in excluded if payment[0] > until]

    def left_out(self, time: int, length: int) -> int:
        """Return how many purchases of (time - length, time] do not count.

        Args:
            time: The end of the window, ms.
            length: Its length, ms.
        """
        excluded = self.excluded
        return bisect_left(excluded, (time + 1,)) - bisect_left(excluded, (time - length + 1,))

    def usual(self) -> tuple[float, float | None, float | None]:
        """Return mean, sample standard deviation and median (see :meth:`median_cents`) of some purchases.

        Mean and deviation are exact unless there is a purchase of four times the median or more: then every
        such purchase counts as four times the median, and they are right to within 6 %.
        """
        n, weight = self.count, self.weight
        median = self.median_cents()
        beyond = self.middle + _EXTREME + 1
        extreme = sum(self.buckets[beyond:]) if len(self.buckets) > beyond else 0
        if not extreme:
            total = self.total_low + self.total_high * HALF
            if n < 2:
                return total / weight, None, median
            squares = self.squares_low + self.squares_high * HALF
            spread = (weight * squares - total * total) * n
            return total / weight, math.sqrt(spread / (weight * weight * (n - 1))), median
        # In half cents, which the middles of buckets are whole numbers of.
        first = self.first_bucket
        total, squares = 2 * self.small_total, 4 * self.small_squares
        for place, some in enumerate(self.buckets[:beyond]):
            if some:
                value = int(2 * MIDDLES[first + place])
                total += some * value
                squares += some * value * value
        value = int(2 * MIDDLES[first + beyond - 1])
        total += extreme * value
        squares += extreme * value * value
        spread = (weight * squares - total * total) * n
        return total / weight / 2, math.sqrt(spread / (4 * weight * weight * (n - 1))), median

    def median_cents(self) -> float | None:
        """Return the (lower, weighted) median of the purchases above ``SMALL_CENTS``, cents.

        It is right to within 6 %: the middle of the median's bucket. Small ones are left out because a
        burst of them, as thieves test a card, would make ordinary amounts look large.
        """
        return MIDDLES[self.first_bucket + self.middle] if self.big_count else None

    def per_hour(self, time: int) -> float | None:
        """Return the purchases in an hour up to a time (ms); the newer a day the more it says."""
        if time <= self.since:
            return None
        lasted = decay_of(self.half_life).time(self.span, self.since, time)
        return self.weight * 3_600_000 / lasted if lasted > 0 else None

    def is_small(self, cents: int) -> bool:
        """Return whether an amount is small, for anybody and for this card."""
        if cents > SMALL_CENTS:
            return False
        if self.big_count < _KNOWN_FROM:
            return True
        share, whole = SMALL_SHARE
        return cents * whole <= share * MIDDLES[self.first_bucket + self.middle]


def _told(change: Change) -> tuple[int, str, int]:
    return change.known, change.transaction_id, change.at


def begun(half_life: int, time: int, account: Account | None = None) -> Profile:
    """Return the profile of a card that had none, from the totals that an earlier version kept of it, if any.

    Its purchases until then count as one lot of that day.

    Args:
        half_life: Half-life of the weights, days.
        time: When it begins, ms.
        account: What an earlier version kept.

    Example:
        >>> old = Account(balance=-3_00, since=5, count=2, total=3_00, squares_low=5_00_00)
        >>> begun(30, 10, old).usual()[0]
        150.0
    """
    made = Profile(half_life=half_life, span=time // DAY_MS // half_life)
    if account is None or not account.count:
        made.balance = 0 if account is None else account.balance
        return made
    small, count = account.total - account.big_total, account.count - account.big_count
    made = Profile(
        account.count,
        account.count,
        *divmod(account.total, HALF),
        account.squares_high,
        account.squares_low,
        small,
        small * small // count if count else 0,
        account.big_count,
        account.first_bucket,
        account.buckets,
        balance=account.balance,
        since=account.since,
        half_life=half_life,
        span=made.span,
    )
    decay = decay_of(half_life)
    made.scale(decay.weights[time // DAY_MS % half_life] << SPANS - 1)
    made.find_middle()
    return made


def restated(kept: Profile, half_life: int, time: int) -> Profile:
    """Return a profile by another half-life: what has been bought so far counts as one lot of that day.

    Args:
        kept: The profile.
        half_life: The new half-life, days.
        time: When it is in force, ms.
    """
    made = kept.copied()
    made.older, made.excluded = [], []
    made.half_life, made.span = half_life, time // DAY_MS // half_life
    one = decay_of(half_life).weights[time // DAY_MS % half_life] << SPANS - 1
    if made.weight:
        made.scale(one * made.count, made.weight)
    made.find_middle()
    return made
