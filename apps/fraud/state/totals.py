"""Weighted sums over purchases: whole numbers, which add up to the same in any order."""

from __future__ import annotations

from typing import Final

import msgspec

from millrace_apps.fraud.state.amounts import SMALL_CENTS, bucket_of

# Squares of cents, and sums of weighted ones, outgrow the 64 bits of a stored integer: they are kept in two.
HALF: Final = 1 << 60


class Totals(msgspec.Struct, array_like=True, gc=False):
    """Sums over purchases, weighted.

    Attributes:
        count: How many.
        weight: Their weights.
        total_high: The sum of their amounts, cents, in units of 2^60.
        total_low: The rest of it.
        squares_high: The sum of their squares, cents², in units of 2^60.
        squares_low: The rest of it.
        small_total: The sum of those of at most ``SMALL_CENTS``, cents.
        small_squares: The sum of their squares.
        big_count: How many are above ``SMALL_CENTS``.
        first_bucket: Bucket of ``buckets[0]``.
        buckets: Weights of those above ``SMALL_CENTS`` by amount (see
            :func:`millrace_apps.fraud.state.amounts.bucket_of`).
    """

    count: int = 0
    weight: int = 0
    total_high: int = 0
    total_low: int = 0
    squares_high: int = 0
    squares_low: int = 0
    small_total: int = 0
    small_squares: int = 0
    big_count: int = 0
    first_bucket: int = 0
    buckets: list[int] = msgspec.field(default_factory=list)

    def add(self, cents: int, sign: int, weight: int) -> None:
        """Count a purchase (sign 1), or take it back (-1)."""
        self.count += sign
        self.weight += sign * weight
        weighted = sign * weight * cents
        self.total_high, self.total_low = carried(self.total_high, self.total_low + weighted)
        weighted *= cents
        self.squares_high, self.squares_low = carried(self.squares_high, self.squares_low + weighted)
        if cents > SMALL_CENTS:
            self.big_count += sign
            self.weigh(bucket_of(cents), sign * weight)
        else:
            self.small_total += sign * weight * cents
            self.small_squares += sign * weight * cents * cents

    def weigh(self, bucket: int, weight: int) -> None:
        """Add a weight to a bucket."""
        self.put(bucket, weight)

    def put(self, bucket: int, weight: int) -> int:
        """Add a weight to a bucket; return how many buckets came in front of the others."""
        buckets = self.buckets
        if not buckets:
            self.first_bucket = bucket
        moved = max(0, self.first_bucket - bucket)
        if moved:
            buckets[:0] = [0] * moved
            self.first_bucket = bucket
        at = bucket - self.first_bucket
        if at >= len(buckets):
            buckets.extend([0] * (at + 1 - len(buckets)))
        buckets[at] += weight
        return moved

    def merge(self, other: Totals, sign: int, times: int) -> None:
        """Add all of another's, or take it away, its weights so many times as heavy."""
        factor = sign * times
        self.count += sign * other.count
        self.weight += factor * other.weight
        total = _whole(other.total_high, other.total_low)
        self.total_high, self.total_low = carried(self.total_high, self.total_low + factor * total)
        squares = _whole(other.squares_high, other.squares_low)
        self.squares_high, self.squares_low = carried(self.squares_high, self.squares_low + factor * squares)
        self.small_total += factor * other.small_total
        self.small_squares += factor * other.small_squares
        self.big_count += sign * other.big_count
        for place, weight in enumerate(other.buckets):
            if weight:
                self.put(other.first_bucket + place, factor * weight)

    def scale(self, up: int, down: int = 1) -> None:
        """Make all weights ``up / down`` times as heavy, rounded down."""
        self.weight = self.weight * up // down
        total = _whole(self.total_high, self.total_low) * up // down
        self.total_high, self.total_low = divmod(total, HALF)
        squares = _whole(self.squares_high, self.squares_low) * up // down
        self.squares_high, self.squares_low = divmod(squares, HALF)
        self.small_total = self.small_total * up // down
        self.small_squares = self.small_squares * up // down
        self.buckets = [weight * up // down for weight in self.buckets]


def _whole(high: int, low: int) -> int:
    return high * HALF + low


def carried(high: int, low: int) -> tuple[int, int]:
    """Return the two parts of a number that has outgrown the lower one.

    >>> carried(1, 5), carried(1, -1) == (0, HALF - 1), carried(0, HALF + 2)
    ((1, 5), True, (1, 2))
    """
    return (high, low) if 0 <= low < HALF else (high + low // HALF, low % HALF)
