"""Adaptive fraudsters: one who is blocked leaves the card, and after that the way of the fraud."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from millrace_apps.fraud.contracts.events import Transaction
from millrace_apps.fraud.loop.world import HOUR_MS, Card, Town

#: How much of a stolen card's use is over at most, where nobody blocks it.
_USES: Final = 4
#: What a thief believes of a way that was never tried, and where every belief goes back to.
_HOPE: Final = 0.6
#: So much of what was seen of a way is forgotten in a day; and how much a single try tells.
_FORGOTTEN, _TELLS = 0.04, 0.35
#: Chance that a thief tries something else though the way works.
_CURIOUS: Final = 0.05


class Way(NamedTuple):
    """A way of stealing.

    Attributes:
        name: Its name.
        online: In a shop online, or at a terminal.
        low: Amount, in mean amounts of the card, from …
        high: … to.
        places: So many accomplices' places; 0: anywhere.
        shared: Whether one device is used for many cards; else each card has a new one.
    """

    name: str
    online: bool
    low: float
    high: float
    places: int
    shared: bool = False


#: The ways there are. Each can be learned from, none is what the built-in reasons look for.
WAYS: Final = (
    Way("counter", False, 1.6, 3.0, 2),
    Way("tills", False, 2.6, 3.9, 0),
    Way("gadgets", True, 2.2, 3.6, 0),
    Way("vouchers", True, 0.6, 1.4, 2),
    Way("ring", True, 1.0, 2.2, 0, shared=True),
    Way("drops", True, 1.4, 2.4, 3, shared=True),
)


class Tried(NamedTuple):
    """What a thief has tried.

    Attributes:
        thief: Who.
        way: In which way, as a number.
        transaction: The payment.
    """

    thief: int
    way: int
    transaction: Transaction


class Thief:
    """One thief.

    Args:
        number: Which.
        seed: Seed of the world.
        town: The town.
    """

    def __init__(self, number: int, seed: int, town: Town) -> None:
        self.number, self._town = number, town
        self._rng = np.random.default_rng([seed, 3, number])
        self._believed = [_HOPE] * len(WAYS)
        self._card: Card | None = None
        self._uses = self._made = 0
        self.way = number % len(WAYS)

    def attempt(self, day: int, at: int) -> Tried:
        """Try something within an hour.

        Args:
            day: The day, from 0.
            at: Beginning of the hour, ms.
        """
        rng = self._rng
        if self._card is None or self._uses >= _USES:
            self._card, self._uses = self._town.cards[int(rng.integers(0, len(self._town.cards)))], 0
        self._uses += 1
        self._made += 1
        way, card = WAYS[self.way], self._card
        amount = card.mean * float(rng.uniform(way.low, way.high))
        name = f"f-{self.number:02}-{self._made:05}"
        tool = f"t{self.number}-{day // 10}" if way.shared else f"{card.card_id}-{self._made - self._uses}"
        found = self._town.payment(
            name, card, at + int(rng.integers(0, HOUR_MS)), amount, self._place(way),
            device=f"device-{tool}" if way.online else None, ip=f"ip-{tool}", address=f"address-{tool}",
        )  # fmt: skip
        return Tried(self.number, self.way, found)

    def _place(self, way: Way) -> int:
        among = self._town.shops if way.online else self._town.size.terminals
        if not way.places:
            return int(self._rng.integers(0, among))
        first = WAYS.index(way) * 7 % among
        return (first + int(self._rng.integers(0, way.places))) % among

    def told(self, tried: Tried, *, passed: bool) -> None:
        """Learn whether a payment passed."""
        believed = self._believed
        believed[tried.way] += _TELLS * (passed - believed[tried.way])
        if not passed:
            self._card = None
        if (not passed and believed[self.way] < _HOPE) or self._rng.random() < _CURIOUS:
            hopes = [b + float(self._rng.uniform(0, 0.2)) for b in believed]
            self.way = int(np.argmax(hopes))

    def sleep(self) -> None:
        """Let a day pass: what was seen is forgotten slowly."""
        self._believed = [b + _FORGOTTEN * (_HOPE - b) for b in self._believed]
