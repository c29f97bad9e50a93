"""The state of a card beside its profile: its last 24 hours, in whole cents."""

from __future__ import annotations

from bisect import bisect_right, insort
from typing import Final, Literal

import msgspec

from millrace.parts.contents import DIGEST_BYTES

DAY_MS: Final = 86_400_000


class Account(msgspec.Struct, array_like=True, gc=False):
    """Totals over a card's life as earlier versions kept them; a profile begins with them.

    Attributes:
        balance: Balance, cents.
        since: Time of the first purchase, ms.
        count: Purchases.
        total: Their sum, cents.
        squares_high: Sum of their squares, cents², in units of 2^60.
        squares_low: The rest of it.
        big_count: Purchases above 2.00.
        big_total: Their sum, cents.
        first_bucket: Bucket of ``buckets[0]``.
        buckets: Number of purchases above 2.00 by amount (see
            :func:`millrace_apps.fraud.state.amounts.bucket_of`).
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
