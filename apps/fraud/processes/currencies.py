"""Currencies: their decimals, what they are worth from when on, and amounts turned from one into another.

Amounts are turned by exact decimals, halves away from zero.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from decimal import ROUND_HALF_UP, Decimal
from typing import Final

import msgspec

#: Amounts above this are refused; squares and sums of smaller ones fit the integers of the state.
MAX_AMOUNT: Final = 1_000_000_000
#: The decimals of currencies that have not two (ISO 4217).
_DECIMALS: Final = {
    code: decimals
    for decimals, codes in {
        0: "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF",
        3: "BHD IQD JOD KWD LYD OMR TND",
        4: "CLF UYW",
    }.items()
    for code in codes.split()
}
_CENT: Final = Decimal("0.01")
#: Of each currency so many rates are kept, the newest.
MOST_RATES: Final = 400


class Rate(msgspec.Struct, frozen=True, gc=False):
    """What one unit of a currency is worth from a time on.

    Attributes:
        from_ms: That time, UTC milliseconds.
        rate: Units of the app's currency.
    """

    from_ms: int
    rate: float


Rates = Mapping[str, Sequence[Rate]]


def decimals_of(currency: str) -> int:
    """Return how many decimals a currency has.

    >>> decimals_of("EUR"), decimals_of("JPY"), decimals_of("KWD")
    (2, 0, 3)
    """
    return _DECIMALS.get(currency, 2)


def check_decimals(name: str, amount: float, currency: str) -> None:
    """Refuse an amount that its currency does not have.

    Raises:
        ValueError: It has more decimals.

    >>> check_decimals("amount", 19.99, "EUR")
    """
    # The nearest double of a number with so many decimals is what this division gives, exactly.
    scale = 100 if currency not in _DECIMALS else 10 ** _DECIMALS[currency]
    if round(amount * scale) / scale != amount:
        most = {0: "no", 2: "at most two"}.get(decimals_of(currency), f"at most {decimals_of(currency)}")
        raise ValueError(f"{name} has {most} decimals, not {amount!r}")


def put_rate(rates: Sequence[Rate], rate: Rate) -> list[Rate]:
    """Return the rates of a currency with one more, in order of time; one of the same time is replaced.

    >>> [r.rate for r in put_rate([Rate(0, 0.9), Rate(9, 0.8)], Rate(9, 0.7))]
    [0.9, 0.7]
    """
    kept = sorted([*(r for r in rates if r.from_ms != rate.from_ms), rate], key=lambda r: r.from_ms)
    return kept[-MOST_RATES:]


def rate_at(rates: Sequence[Rate], time: int) -> float | None:
    """Return the rate in force at a time, ms; ``None``: there was none yet."""
    place = bisect_right(rates, time, key=lambda r: r.from_ms)
    return rates[place - 1].rate if place else None


def turned(amount: float, rate: float) -> float:
    """Return an amount at a rate, with two decimals; at least 0.01, and at most what amounts may be.

    >>> turned(10_000, 0.0061), turned(1.005, 1.0), turned(0.001, 3.0), turned(1e9, 3.0)
    (61.0, 1.01, 0.01, 1000000000.0)
    """
    exact = Decimal(repr(amount)) * Decimal(repr(rate))
    return min(max(float(exact.quantize(_CENT, ROUND_HALF_UP)), 0.01), float(MAX_AMOUNT))
