"""What is kept of a card: totals over its life and its last 24 hours.

Money is whole cents and every total an exact integer that does not depend on order, so a result never
depends on how a stream was cut into batches.
"""

from __future__ import annotations

import copy
import math
from bisect import bisect_right, insort
from collections.abc import Iterable
from typing import Final, Literal

import msgspec

from apps.fraud.currencies import MAX_AMOUNT
from millrace.parts.contents import DIGEST_BYTES

DAY_MS: Final = 86_400_000

#: A purchase is small up to this many cents …
SMALL_CENTS: Final = 200
#: … and up to this share of the mean of the card's purchases that are above it (numerator, denominator).
SMALL_SHARE: Final = (3, 10)
#: So many purchases above ``SMALL_CENTS`` it takes to know that mean.
_KNOWN_FROM: Final = 3
# Squares of cents outgrow the 64 bits of a stored integer: their sum is kept in two.
_HALF: Final = 1 << 60


class Account(msgspec.Struct, array_like=True, gc=False):
    """Totals over a card's life, exact and independent of order.

    Attributes:
        balance: Balance, cents.
        since: Time of the first purchase, ms.
        count: Purchases.
        total: Their sum, cents.
        squares_high: Sum of their squares, cents², in units of 2^60.
        squares_low: The rest of it.
        big_count: Purchases above ``SMALL_CENTS``.
        big_total: Their sum, cents.
        first_bucket: Bucket of ``buckets[0]``.
        buckets: Number of purchases above ``SMALL_CENTS`` by amount (see :func:`bucket_of`).
        middle: Index in ``buckets`` of the bucket that holds the median.
        below: Purchases in the buckets before it.
    """

    balance: int = 0
    since: int = 0
    count: int = 0
    total: int = 0
    squares_high: int = 0
    squares_low: int = 0
    big_count: int = 0
    big_total: int = 0
    first_bucket: int = 0
    buckets: list[int] = msgspec.field(default_factory=list)
    middle: int = 0
    below: int = 0

    def add_purchase(self, time: int, cents: int) -> None:
        """Count a purchase."""
        if time < self.since or not self.count:
            self.since = time
        # As change(cents, 1), spelled out since it runs for every purchase: what can only be when
        # one is taken away is left out, and nothing is set that stays as it is.
        self.count += 1
        self.total += cents
        self.balance -= cents
        low = self.squares_low + cents * cents
        if low < _HALF:
            self.squares_low = low
        else:
            self.squares_high += low // _HALF
            self.squares_low = low % _HALF
        if cents > SMALL_CENTS:
            self.big_count += 1
            self.big_total += cents
            self._count_bucket(cents, 1)

    def without(self, purchases: Iterable[int], credited: int) -> Account:
        """Return a copy from before these purchases (cents each) and this sum of credits."""
        past = copy.copy(self)
        past.buckets = list(self.buckets)
        for cents in purchases:
            past.change(cents, -1)
        past.balance -= credited
        return past

    def change(self, cents: int, sign: int) -> None:
        """Count a purchase, or take it back."""
        self.count += sign
        self.total += sign * cents
        self.balance -= sign * cents
        low = self.squares_low + sign * cents * cents
        if not 0 <= low < _HALF:
            self.squares_high += low // _HALF
            low %= _HALF
        self.squares_low = low
        if cents > SMALL_CENTS:
            self.big_count += sign
            self.big_total += sign * cents
            self._count_bucket(cents, sign)

    def _count_bucket(self, cents: int, sign: int) -> None:
        buckets = self.buckets
        shift = cents.bit_length() - 4  # as bucket_of: it is above 16 cents
        at = (shift << 3) + (cents >> shift) - self.first_bucket
        if not 0 <= at < len(buckets):
            at = self._make_room(at + self.first_bucket)
        buckets[at] += sign
        middle, below = self.middle, self.below
        if at < middle:
            below += sign
            self.below = below
        target = (self.big_count + 1) >> 1
        if not below < target <= below + buckets[middle]:
            self._move_middle(target)

    def _move_middle(self, target: int) -> None:
        """Move on to the bucket of the purchase in this place, by one bucket that is not empty at most."""
        buckets, middle, below = self.buckets, self.middle, self.below
        while below >= target > 0:
            middle -= 1
            below -= buckets[middle]
        while below + buckets[middle] < target:
            below += buckets[middle]
            middle += 1
        self.middle, self.below = middle, below

    def _make_room(self, bucket: int) -> int:
        """Make ``buckets`` hold this bucket, and return its index."""
        buckets = self.buckets
        if not buckets:
            self.first_bucket = bucket
        missing = self.first_bucket - bucket
        if missing > 0:
            buckets[:0] = [0] * missing
            self.first_bucket = bucket
            self.middle += missing
        at = bucket - self.first_bucket
        buckets.extend([0] * (at + 1 - len(buckets)))
        return at

    def std_cents(self) -> float | None:
        """Return the sample standard deviation of the purchases, cents."""
        n = self.count
        if n < 2:
            return None
        squares = self.squares_low
        if self.squares_high:
            squares += self.squares_high * _HALF
        total = self.total
        return math.sqrt((n * squares - total * total) / (n * (n - 1)))

    def median_cents(self) -> float | None:
        """Return the (lower) median of the purchases above ``SMALL_CENTS``, cents.

        It is right to within 6 %: the middle of the median's bucket. Small ones are left out because a
        burst of them, as thieves test a card, would make ordinary amounts look large.
        """
        return _MIDDLES[self.first_bucket + self.middle] if self.big_count else None

    def is_small(self, cents: int) -> bool:
        """Return whether an amount is small, for anybody and for this card."""
        if cents > SMALL_CENTS:
            return False
        if self.big_count < _KNOWN_FROM:
            return True
        share, whole = SMALL_SHARE
        return cents * whole * self.big_count <= share * self.big_total


def bucket_of(cents: int) -> int:
    """Return the bucket of an amount: exact below 16 cents, then eight to every doubling.

    >>> bucket_of(15), bucket_of(16), bucket_of(17), bucket_of(18)
    (15, 16, 16, 17)
    """
    if cents < 16:
        return cents
    shift = cents.bit_length() - 4
    return (shift << 3) + (cents >> shift)


def bucket_middle(bucket: int) -> float:
    """Return the middle of a bucket, cents.

    >>> bucket_middle(15), bucket_middle(16)
    (15.0, 16.5)
    """
    if bucket < 16:
        return float(bucket)
    shift = (bucket >> 3) - 1
    return ((bucket - (shift << 3)) << shift) + ((1 << shift) - 1) / 2


#: The middle of every bucket that an amount can be in.
_MIDDLES: Final = tuple(map(bucket_middle, range(bucket_of(MAX_AMOUNT * 100) + 1)))


class Recent(msgspec.Struct, array_like=True, gc=False):
    """The last 24 hours of a card, sorted by time.

    Attributes:
        until: Event time from which on nothing of this is needed, ms.
        base: Sum of the purchases that were removed, cents.
        times: Times of the purchases, ms, ascending.
        totals: ``base`` and all purchases up to this one, cents: a window's sum is a difference.
        credits: Refunds and top-ups that a later event may still precede: (time ms, cents), in order
            of time.
        seen: Transaction → event time (ms) from which on it may be forgotten.
        said: What each of them said, eight bytes each, in the order of ``seen``: of the newest only, where an
            earlier version has seen the others. As bytes it is packed and read at no cost.
    """

    until: int = 0
    base: int = 0
    times: list[int] = msgspec.field(default_factory=list)
    totals: list[int] = msgspec.field(default_factory=list)
    credits: list[tuple[int, int]] = msgspec.field(default_factory=list)
    seen: dict[str, int] = msgspec.field(default_factory=dict)
    said: bytes = b""

    def remember(self, transaction_id: str, now: int, content: int) -> Literal["new", "same", "other"]:
        """Remember a transaction for 24 hours from ``now`` (ms).

        Args:
            transaction_id: Its identity.
            now: Now, ms.
            content: Digest of what it says.

        Returns:
            Whether it is ``new``, or of a known one the ``same`` again, or something ``other``.
        """
        seen = self.seen
        known = seen.get(transaction_id)
        digest = content.to_bytes(DIGEST_BYTES, "big")
        if known is not None:
            place = self._place(list(seen).index(transaction_id))
            if known > now:
                return "same" if place < 0 or self.said[place : place + DIGEST_BYTES] == digest else "other"
            del seen[transaction_id]  # so that it is inserted last: see prune()
            if place >= 0:
                self.said = self.said[:place] + self.said[place + DIGEST_BYTES :]
        due = seen[transaction_id] = now + DAY_MS
        self.said += digest
        if due > self.until:
            self.until = due
        return "new"

    def _place(self, number: int) -> int:
        """Return where the digest of one of ``seen`` begins, by its number; negative where it has none."""
        return DIGEST_BYTES * number - (DIGEST_BYTES * len(self.seen) - len(self.said))

    def prune(self, watermark: int) -> None:
        """Remove what no event after the watermark (ms) can see."""
        seen = self.seen
        # Dues ascend but for the disorder of the input, so one behind a later due is removed soon after.
        if seen and seen[next(iter(seen))] <= watermark:
            while seen and seen[first := next(iter(seen))] <= watermark:
                del seen[first]
            self.said = self.said[max(0, len(self.said) - DIGEST_BYTES * len(seen)) :] if seen else b""
        times = self.times
        if times and times[0] <= watermark - DAY_MS:
            gone = bisect_right(times, watermark - DAY_MS)
            self.base = self.totals[gone - 1]
            del times[:gone]
            del self.totals[:gone]
        if self.credits and self.credits[0][0] <= watermark:
            self.credits = [c for c in self.credits if c[0] > watermark]

    def add_credit(self, time: int, cents: int) -> None:
        """Insert a refund or top-up."""
        insort(self.credits, (time, cents))

    def add_purchase(self, at: int, time: int, cents: int) -> None:
        """Insert a purchase at index ``at``."""
        totals = self.totals
        before = totals[at - 1] if at else self.base
        if at == len(totals):
            totals.append(before + cents)
            self.times.append(time)
        else:
            totals[at:] = [before + cents, *(total + cents for total in totals[at:])]
            self.times.insert(at, time)

    def amounts(self, start: int, end: int) -> list[int]:
        """Return the purchases from index ``start`` up to ``end``, cents each."""
        totals = self.totals[start:end]
        before = [self.totals[start - 1] if start else self.base, *totals]
        return [total - last for total, last in zip(totals, before, strict=False)]
