"""The cards and terminals of the fraud domain, made once before the first event."""

from __future__ import annotations

import math
from typing import Final

from millrace.errors import UserError
from millrace_apps.generators.engine import substream

#: Countries that pay in euro with their rough share of cards; every amount of the stream is in euro.
_HOME: Final = (
    ("DE", 24),
    ("FR", 20),
    ("IT", 17),
    ("ES", 14),
    ("NL", 6),
    ("BE", 4),
    ("AT", 4),
    ("PT", 4),
    ("GR", 3),
    ("FI", 2),
    ("IE", 2),
)
#: Merchant category codes (ISO 18245) with their rough share of terminals.
_MCCS: Final = (
    ("5411", 20),  # groceries
    ("5812", 12),  # restaurants
    ("5814", 10),  # fast food
    ("5541", 8),  # service stations
    ("5912", 7),  # pharmacies
    ("5651", 6),  # clothing
    ("5732", 5),  # electronics
    ("5942", 4),  # books
    ("4111", 6),  # local transport
    ("5816", 5),  # digital goods: games
    ("5999", 5),  # miscellaneous retail
    ("7011", 4),  # hotels
    ("5311", 4),  # department stores
    ("7832", 3),  # cinemas
    ("4511", 1),  # airlines
)
_BANK_MCC: Final = "6540"  # stored value card load
_ABROAD_SHARE: Final = 0.1
_ABROAD_COUNTRIES: Final = 40
_MIN_MEAN_CENTS: Final = 500
_MAX_MEAN_CENTS: Final = 10_000


class Terminal:
    """Where a transaction takes place; ``json`` is its part of the payload."""

    __slots__ = ("country", "json", "mcc", "terminal_id")

    def __init__(self, terminal_id: str, mcc: str, country: str) -> None:
        self.terminal_id = terminal_id
        self.mcc = mcc
        self.country = country
        self.json = f'"terminal_id":"{terminal_id}","mcc":"{mcc}","country":"{country}",'


class Card:
    """A card with its habits and what has happened to it; amounts in cents."""

    __slots__ = (
        "balance",
        "bank",
        "card_id",
        "json",
        "key",
        "last_purchase",
        "mean",
        "purchases",
        "safe_until_ms",
        "sum_cents",
        "sum_squares",
        "usual",
        "weight",
    )

    def __init__(
        self, card_id: str, mean: float, weight: float, bank: Terminal, usual: tuple[Terminal, ...]
    ) -> None:
        self.card_id = card_id
        self.key = card_id.encode()
        self.json = f'"card_id":"{card_id}",'
        self.mean = mean
        self.weight = weight
        self.bank = bank
        self.usual = usual
        self.balance = 0
        self.purchases = 0
        self.sum_cents = 0
        self.sum_squares = 0
        self.last_purchase: tuple[Terminal, int] | None = None
        #: No fraud before this event time, ms.
        self.safe_until_ms = 0

    @property
    def usual_cents(self) -> float:
        """Mean of the card's ordinary purchases so far, or its habit if that is more, cents."""
        return max(self.mean, self.sum_cents / self.purchases if self.purchases else 0.0)

    @property
    def spread_cents(self) -> float:
        """Standard deviation of the ordinary purchases so far, or the habit's if that is more, cents."""
        habit = self.mean / 2
        if self.purchases < 2:
            return habit
        mean = self.sum_cents / self.purchases
        variance = max(self.sum_squares / self.purchases - mean * mean, 0.0)
        # As a sample's deviation: the larger of the two usual definitions.
        return max(habit, math.sqrt(variance * self.purchases / (self.purchases - 1)))


def make_pools(
    seed: int, card_count: int, terminal_count: int, card_skew: float
) -> tuple[list[Card], list[Terminal]]:
    """Return the cards and terminals of a run.

    Args:
        seed: The run's seed.
        card_count: Number of cards.
        terminal_count: Number of terminals, besides one for top-ups per country.
        card_skew: Zipf exponent of the cards' activity.
    """
    terminals = _terminals(seed, terminal_count)
    home = sorted({country for country, _ in _HOME})
    at_home = {c: [t for t in terminals if t.country == c] or terminals for c in home}
    banks = {country: Terminal(f"topup-{country}", _BANK_MCC, country) for country in home}
    countries, means = substream(seed, "fraud", "pool", "country"), substream(seed, "fraud", "pool", "mean")
    weights, habits = substream(seed, "fraud", "pool", "weight"), substream(seed, "fraud", "pool", "usual")
    ranks = list(range(1, card_count + 1))
    substream(seed, "fraud", "pool", "rank").shuffle(ranks)
    names, shares = zip(*_HOME, strict=True)
    cards = []
    for number, rank in enumerate(ranks):
        country = countries.choices(names, shares)[0]
        mean = _MIN_MEAN_CENTS + (_MAX_MEAN_CENTS - _MIN_MEAN_CENTS) * means.random()
        weight = (0.2 + 1.6 * weights.random()) / math.pow(rank, card_skew)
        usual = tuple(habits.choices(at_home[country], k=8))
        cards.append(Card(f"card-{number:07d}", mean, weight, banks[country], usual))
    return cards, terminals


def _terminals(seed: int, terminal_count: int) -> list[Terminal]:
    abroad = _countries_abroad(seed)
    categories, places = substream(seed, "fraud", "pool", "mcc"), substream(seed, "fraud", "pool", "place")
    mccs, mcc_shares = zip(*_MCCS, strict=True)
    home, home_shares = zip(*_HOME, strict=True)
    terminals = []
    for number in range(terminal_count):
        mcc = categories.choices(mccs, mcc_shares)[0]
        is_abroad, pick = places.random() < _ABROAD_SHARE, places.random()
        country = abroad[int(pick * len(abroad))] if is_abroad else places.choices(home, home_shares)[0]
        terminals.append(Terminal(f"term-{number:06d}", mcc, country))
    return terminals


def _countries_abroad(seed: int) -> list[str]:
    try:
        from faker import Faker
    except ModuleNotFoundError as error:
        raise UserError("the generators need the apps extra: pip install 'millrace[apps]'") from error
    fake = Faker("en_US")
    fake.seed_instance(substream(seed, "fraud", "pool", "abroad").getrandbits(64))
    home = {country for country, _ in _HOME}
    found: dict[str, None] = {}
    while len(found) < _ABROAD_COUNTRIES:
        country = fake.country_code()
        if country not in home:
            found[country] = None
    return list(found)
