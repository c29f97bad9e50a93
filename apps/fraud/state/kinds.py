"""Kinds of purchases: category, country, channel and merchant as one number.

A card's purchases are of few kinds. Its history has a table of them, and a byte for every purchase.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import compress
from typing import Any, Final, NamedTuple

from millrace.parts.lookback import link_of
from millrace.rules import Chosen, Field
from millrace_apps.fraud.contracts.events import Channel, Transaction

#: What a condition on a card's purchases can speak of.
PURCHASE_FIELDS: Final = {
    "mcc": Field("text", nullable=True),
    "country": Field("text", nullable=True),
    "channel": Field("text", nullable=True),
    "amount": Field("number", nullable=True),
}
#: Stands for a purchase of before kinds were kept.
UNKNOWN_KIND: Final = 0
_CHANNELS: Final[tuple[Channel | None, ...]] = (None, "terminal", "online")
_A: Final = ord("A")


class Purchase(NamedTuple):
    """A past purchase as far as conditions can ask of it.

    Attributes:
        mcc: Merchant category code; None where nothing is known of the purchase. So for the others.
        country: Country of the terminal.
        channel: At a terminal or online.
        merchant: Link of who was paid; 0: not known.
        amount: Amount in the app's currency; None: not known.
    """

    mcc: str | None
    country: str | None
    channel: Channel | None
    merchant: int
    amount: float | None = None


@lru_cache(maxsize=65_536)
def _number(mcc: str, country: str, channel: Channel | None, merchant: str | None) -> int:
    first, second = (ord(letter) - _A for letter in country)
    place = first * 26 + second + 1
    return (link_of(merchant) << 26) | (int(mcc) << 12) | (place << 2) | _CHANNELS.index(channel)


def kind_of(tx: Transaction) -> int:
    """Return the kind of a purchase: a number of 58 bits, above 0."""
    return _number(tx.mcc, tx.country, tx.channel, tx.merchant_id)


@lru_cache(maxsize=65_536)
def purchase_of(kind: int) -> Purchase:
    """Return what a kind says.

    >>> purchase_of(_number("5411", "DE", "online", None))
    Purchase(mcc='5411', country='DE', channel='online', merchant=0, amount=None)
    >>> purchase_of(UNKNOWN_KIND).mcc is None
    True
    """
    if kind == UNKNOWN_KIND:
        return Purchase(None, None, None, 0)
    first, second = divmod((kind >> 2 & 0x3FF) - 1, 26)
    country = chr(_A + first) + chr(_A + second)
    return Purchase(f"{kind >> 12 & 0x3FFF:04}", country, _CHANNELS[kind & 3], kind >> 26)


#: What is counted as different → what tells it of a kind.
TOLD_APART: Final[dict[str, Callable[[Purchase], Any]]] = {
    "mcc": lambda purchase: purchase.mcc,
    "country": lambda purchase: purchase.country,
    "merchant": lambda purchase: purchase.merchant or None,
}


def of_chosen(name: str, window_ms: int, where: Chosen) -> Callable[[Any, Transaction, int], float | None]:
    """Return what computes a window function over the purchases that a condition chooses.

    Args:
        name: The function: ``count``, ``sum``, ``mean``, ``largest`` or ``smallest``.
        window_ms: The window's length, ms.
        where: The condition.

    Returns:
        A function of the card's look, the transaction, and its cents (0 if it is no purchase).
    """
    run, by_amount, finish = where.run, "amount" in where.fields, _FINISH[name]

    @lru_cache(maxsize=4_096)
    def holds(kind: int) -> bool:
        return run(purchase_of(kind)) is True

    def chosen(kind: int, cents: int) -> bool:
        if not by_amount or not cents:
            return holds(kind)
        return run(purchase_of(kind)._replace(amount=cents / 100)) is True

    def compute(look: Any, tx: Transaction, cents: int) -> float | None:
        this, known = bool(cents) and chosen(kind_of(tx), cents), look.known
        found: list[int] = []
        if by_amount or not known:  # nothing is known of purchases of before kinds were kept
            start = look.start(window_ms)
            amounts = look.amounts_from(start)
            kinds = [known[n] for n in look.numbers_from(start)] or [UNKNOWN_KIND] * len(amounts)
            found = [amount for kind, amount in zip(kinds, amounts, strict=True) if chosen(kind, amount)]
        elif any(map(holds, known)):
            start = look.start(window_ms)
            good = {number for number, kind in enumerate(known) if holds(kind)}
            numbers = look.numbers_from(start)
            if name == "count":
                return float(sum(map(numbers.count, good)) + this)
            found = list(compress(look.amounts_from(start), map(good.__contains__, numbers)))
        if this:
            found.append(cents)
        value: float | None = finish(found)
        return value

    return compute


def of_different(what: str, window_ms: int) -> Callable[[Any, Transaction, int], float]:
    """Return what computes how many different ones a card's purchases of a window have.

    Args:
        what: One of :data:`TOLD_APART`.
        window_ms: The window's length, ms.
    """
    tell = TOLD_APART[what]

    @lru_cache(maxsize=4_096)
    def told(kind: int) -> Any:
        return tell(purchase_of(kind))

    def compute(look: Any, tx: Transaction, cents: int) -> float:
        known = look.known
        found = {told(known[number]) for number in set(look.numbers_from(look.start(window_ms)))}
        if cents:
            found.add(told(kind_of(tx)))
        return len(found) - (None in found)

    return compute


#: Window function → what it makes of the amounts, cents.
_FINISH: Final[dict[str, Callable[[list[int]], float | None]]] = {
    "count": len,
    "sum": lambda found: sum(found) / 100,
    "mean": lambda found: sum(found) / len(found) / 100 if found else None,
    "largest": lambda found: max(found, default=0) / 100,
    "smallest": lambda found: min(known) / 100 if (known := [one for one in found if one]) else None,
}
