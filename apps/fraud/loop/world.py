"""The genuine life of a small town: cards, terminals, shops; the same whatever is decided on it."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from millrace_apps.fraud.contracts.events import Transaction

DAY_MS: Final = 86_400_000
HOUR_MS: Final = 3_600_000
#: The first day of every world, UTC ms: 2026-01-01.
BEGIN_MS: Final = 1_767_225_600_000
#: A city of some kilometres: nobody travels faster than a train.
_LATITUDE, _LONGITUDE, _WIDE = 52.5, 13.4, 0.05
#: Share of genuine payments that are online, at a place that is not usual, by a device that is new, large.
_ONLINE, _ELSEWHERE, _NEW_DEVICE, _LARGE = 0.35, 0.15, 0.04, 0.04
#: How busy the hours of a day are.
_HOURS: Final = np.array(
    [1, 1, 1, 1, 1, 2, 4, 6, 8, 9, 9, 10, 11, 10, 9, 9, 10, 11, 10, 8, 6, 4, 2, 1], float
)


class Size(NamedTuple):
    """How large a world is.

    Attributes:
        cards: Cards.
        terminals: Terminals; a third as many shops are online.
        payments: Genuine payments of a mean day.
        thieves: Thieves.
        attempts: What each of them tries on a mean day.
        looks: Alerts that investigators can look at on a day.
        trees: Trees of a model.
    """

    cards: int = 350
    terminals: int = 70
    payments: int = 400
    thieves: int = 8
    attempts: float = 2.5
    looks: int = 8
    trees: int = 16


#: A world for a look, or for a test.
QUICK: Final = Size(cards=150, terminals=36, payments=160, thieves=5, attempts=2.0, looks=3, trees=12)


class Card(NamedTuple):
    """A card and its holder's habits.

    Attributes:
        card_id: Its identity.
        mean: Mean amount, currency units.
        usual: Terminals where the holder usually is, then usual shops, as numbers.
        pace: Payments of a mean day.
    """

    card_id: str
    mean: float
    usual: tuple[tuple[int, ...], tuple[int, ...]]
    pace: float


class Town:
    """Cards and places, and what the holders buy.

    Args:
        seed: The same one makes the same town, and the same genuine payments on each day.
        size: How large it is.
    """

    def __init__(self, seed: int, size: Size) -> None:
        self._seed, self.size = seed, size
        rng = np.random.default_rng([seed, 1])
        self.shops = max(2, size.terminals // 3)
        paces = rng.uniform(0.3, 1.7, size.cards)
        paces *= size.payments / paces.sum()
        self.cards = [
            Card(
                f"card-{n:04}",
                float(rng.uniform(10, 90)),
                (
                    tuple(map(int, rng.integers(0, size.terminals, 6))),
                    tuple(map(int, rng.integers(0, self.shops, 3))),
                ),
                float(paces[n]),
            )
            for n in range(size.cards)
        ]
        self._places = rng.uniform(-_WIDE, _WIDE, (size.terminals, 2))

    def opening(self) -> list[Transaction]:
        """Return what the holders pay in before the first day: nobody is overdrawn."""
        return [
            Transaction(
                f"open-{n:04}", card.card_id, "bank", "6540", "DE", 1_000_000.0, "EUR", "top_up", BEGIN_MS - 1
            )
            for n, card in enumerate(self.cards)
        ]

    def genuine(self, day: int) -> list[Transaction]:
        """Return the genuine payments of a day, in order of time."""
        rng = np.random.default_rng([self._seed, 2, day])
        who = np.repeat(np.arange(len(self.cards)), rng.poisson([card.pace for card in self.cards]))
        times = np.sort(_times(rng, len(who)))
        rng.shuffle(who)
        return [
            self._bought(rng, self.cards[n], f"g-{day:03}-{place:05}", BEGIN_MS + day * DAY_MS + int(at))
            for place, (n, at) in enumerate(zip(who.tolist(), times.tolist(), strict=True))
        ]

    def _bought(self, rng: np.random.Generator, card: Card, name: str, at: int) -> Transaction:
        online, elsewhere, device, large = (
            rng.random(4) < (_ONLINE, _ELSEWHERE, _NEW_DEVICE, _LARGE)
        ).tolist()
        usual = card.usual[online]
        place = int(rng.integers(0, self.shops if online else self.size.terminals))
        if not elsewhere:
            place = usual[int(rng.integers(0, len(usual)))]
        amount = card.mean * float(rng.lognormal(-0.125, 0.5)) * (float(rng.uniform(2, 5)) if large else 1.0)
        own = f"device-{card.card_id}"
        return self.payment(
            name, card, at, amount, place,
            device=None if not online else f"{own}-{at}" if device else own, ip=f"ip-{card.card_id}",
        )  # fmt: skip

    def payment(
        self,
        name: str,
        card: Card,
        at: int,
        amount: float,
        place: int,
        *,
        device: str | None,
        ip: str,
        address: str | None = None,
    ) -> Transaction:
        """Return a payment; with a device it is online, at the shop of that number, else at a terminal."""
        online = device is not None
        north, east = (0.0, 0.0) if online else self._places[place].tolist()
        where = f"shop-{place:02}" if online else f"terminal-{place:02}"
        return Transaction(
            name,
            card.card_id,
            where,
            "5999" if online else "5411",
            "DE",
            max(1, round(amount * 100)) / 100,
            "EUR",
            "purchase",
            at,
            customer_id=f"customer-{card.card_id}",
            account_id=f"account-{card.card_id}",
            merchant_id=where,
            channel="online" if online else "terminal",
            latitude=None if online else _LATITUDE + north,
            longitude=None if online else _LONGITUDE + east,
            device_id=device,
            ip=ip if online else None,
            address_id=(address or f"home-{card.card_id}") if online else None,
        )


def _times(rng: np.random.Generator, n: int) -> npt.NDArray[np.int64]:
    """Return times of a day, ms: more by day than by night."""
    hours = rng.choice(24, n, p=_HOURS / _HOURS.sum())
    return np.asarray(hours * HOUR_MS + rng.integers(0, HOUR_MS, n), dtype=np.int64)
