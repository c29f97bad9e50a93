"""Buckets of a card's amounts, and which of them are small."""

from __future__ import annotations

from typing import Final

from millrace_apps.fraud.processes.currencies import MAX_AMOUNT

#: A purchase is small up to this many cents …
SMALL_CENTS: Final = 200
#: … and up to this share of the median of the card's purchases above it (numerator, denominator).
SMALL_SHARE: Final = (3, 10)


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
MIDDLES: Final = tuple(map(bucket_middle, range(bucket_of(MAX_AMOUNT * 100) + 1)))
