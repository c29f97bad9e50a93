"""Exact sums of floats: the same in any order.

A sum is kept as a few floats whose exact sum is the exact sum of all that was added: the rounded sum,
what its rounding left over, and so on (Shewchuk 1997, "Adaptive Precision Floating-Point Arithmetic",
by way of :func:`math.fsum`), and the newest values as they came. Any order, any cut into batches and
any merge of windows gives the same last bit, and what is subtracted leaves no drift.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Final

#: How many floats a sum is kept as before they are made fewer: a little space saves most of the time.
_MOST: Final = 8
_SPLIT: Final = 134_217_729.0  # 2**27 + 1: cuts a float's 53 bits in two halves (Dekker 1971)


def add_exact(parts: list[float], x: float) -> None:
    """Add ``x`` to a sum in place.

    What is not finite, or overflows on the way, makes the sum infinite or NaN for good.

    >>> parts = []
    >>> for x in (1e100, 1.0, -1e100):
    ...     add_exact(parts, x)
    >>> rounded(parts)
    1.0
    """
    parts.append(x)
    if len(parts) > _MOST:
        shorten(parts)


def shorten(parts: list[float]) -> None:
    """Make a sum's floats as few as they can be, in place."""
    total = rounded(parts)
    if total - total:  # infinite or NaN: there is no rest
        parts[:] = [total]
        return
    fewer = []
    while total:
        fewer.append(total)
        parts.append(-total)
        total = math.fsum(parts)
    parts[:] = fewer


def rounded(parts: list[float]) -> float:
    """Return a sum, rounded once to the nearest float."""
    try:
        return math.fsum(parts)
    except (OverflowError, ValueError):  # too large, or infinities of both signs
        return sum(parts)


def add_all(parts: list[float], others: list[float]) -> list[float]:
    """Return a new sum: of ``parts`` and ``others``."""
    total = [*parts, *others]
    if len(total) > _MOST:
        shorten(total)
    return total


def subtract_all(parts: list[float], others: list[float]) -> None:
    """Take a sum out of another, in place."""
    parts += [-x for x in others]
    if len(parts) > _MOST:
        shorten(parts)


def add_square(parts: list[float], x: float) -> None:
    """Add ``x * x`` to a sum in place, without rounding the product (Dekker's product)."""
    product = x * x
    parts.append(product)
    if product - product == 0.0:
        c = _SPLIT * x
        high = c - (c - x)
        low = x - high
        parts.append(((high * high - product) + 2.0 * high * low) + low * low)
    if len(parts) > _MOST:
        shorten(parts)


def spread(n: int, total: list[float], squares: list[float], ddof: int) -> float | None:
    """Return the variance of ``n`` values from their sum and the sum of their squares.

    Args:
        n: Number of values.
        total: Their sum.
        squares: The sum of their squares.
        ddof: What is taken off ``n`` in the divisor: 1 for a sample, 0 for all there is.

    Returns:
        The variance, ``None`` for fewer than ``ddof + 1`` values. The two sums are exact, so nothing
        cancels out, however large the values are beside their spread. NaN where it, or a square on the way
        to it, is beyond the floats.
    """
    if n <= ddof:
        return None
    if not all(map(math.isfinite, (*total, *squares))):
        return math.nan
    first = sum(map(Fraction, total), Fraction(0))
    second = sum(map(Fraction, squares), Fraction(0))
    # Squares below the smallest floats are rounded: their difference may be less than nothing.
    try:
        return float(max((second - first * first / n) / (n - ddof), Fraction(0)))
    except OverflowError:
        return math.nan
