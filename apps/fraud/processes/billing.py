"""Amounts of payments in the currency that the app reckons in.

It is in that currency, or its issuer says what was billed, or a rate is known; else its amount is not known,
and it is decided on by all that is no amount.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from millrace_apps.fraud.contracts.events import Transaction
from millrace_apps.fraud.processes.currencies import Rates, rate_at, turned

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

#: Columns that say what was billed; tables of before there were several currencies have them not.
BILLED: Final = ("billing_amount", "billing_currency")


def in_currency(tx: Transaction, currency: str, rates: Rates) -> Transaction:
    """Return a payment with its amount in the app's currency, as far as it is known.

    Args:
        tx: The payment, as it came.
        currency: The app's currency.
        rates: Currency → its rates, in order of time.

    Returns:
        With ``billing_currency`` the app's, and ``billing_amount`` ``None`` where it is not known; as it came
        where it is in that currency and nobody says that something else was billed.
    """
    if tx.billing_currency is None and tx.currency == currency:
        return tx
    amount, rate = tx.billing_amount, tx.billing_rate
    if tx.billing_currency != currency:
        amount, rate = _turned(tx, currency, rates)
    return msgspec.structs.replace(tx, billing_amount=amount, billing_currency=currency, billing_rate=rate)


def _turned(tx: Transaction, currency: str, rates: Rates) -> tuple[float | None, float | None]:
    if tx.currency == currency:
        return tx.amount, 1.0
    for amount, of in ((tx.billing_amount, tx.billing_currency), (tx.amount, tx.currency)):
        if amount is not None and of is not None:
            rate = rate_at(rates.get(of, ()), tx.event_time_ms)
            if rate is not None:
                return turned(amount, rate), rate
    return None, None


def billed(tx: Transaction) -> float | None:
    """Return a payment's amount in the app's currency; ``None``: it is not known."""
    return tx.amount if tx.billing_currency is None else tx.billing_amount


def cents_of(tx: Transaction) -> int:
    """Return a payment's amount in the app's currency as whole hundredths; 0: it is not known."""
    amount = tx.amount if tx.billing_currency is None else tx.billing_amount
    return 0 if amount is None else round(amount * 100)


def billed_amounts(column: Callable[[str], Iterable[Any]], names: Collection[str]) -> npt.NDArray[np.float64]:
    """Return the amounts of rows in the app's currency; NaN: it is not known.

    Args:
        column: Name of a column → its values: ``amount``, and :data:`BILLED` where they are there.
        names: The columns that are there.

    >>> rows = {"amount": [9.0, 8.0], "billing_amount": [None, 7.0], "billing_currency": ["EUR", None]}
    >>> billed_amounts(rows.__getitem__, rows).tolist()
    [nan, 8.0]
    """
    import numpy as np

    amount = np.asarray(column("amount"), np.float64)
    if not all(name in names for name in BILLED):
        return amount
    told = np.array([isinstance(of, str) and of != "" for of in column("billing_currency")], np.bool_)
    return np.where(told, np.asarray(column("billing_amount"), np.float64), amount)


def worths(column: Callable[[str], Iterable[Any]], names: Collection[str]) -> npt.NDArray[np.float64]:
    """Return what :func:`billed_amounts` does, with 0 where it is not known."""
    import numpy as np

    found = billed_amounts(column, names)
    return np.where(np.isnan(found), 0.0, found)
