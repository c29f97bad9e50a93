"""The population of the world of payments: cards, holders, accounts, devices; merchants with terminals."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from millrace_apps.generators.engine.randomness import normal, substream
from millrace_apps.generators.fraud.names import ORDINARY, scattered

if TYPE_CHECKING:
    from millrace_apps.fraud.contracts.events import Transaction
    from millrace_apps.generators.engine.simulated import Truth
    from millrace_apps.generators.fraud.profile import FraudProfile

#: What the random numbers go by; not the domain's name, so that equal seeds make the same world as ever.
NUMBERS: Final = "payments"

#: Mean amount of a card's purchases: uniform between these, as in the Handbook, cents.
_MEAN_CENTS: Final = (500, 10_000)
#: Terminals of a city lie around its centre; the farthest two are below 60 km apart.
_SPREAD_DEGREES: Final = 0.05
_SHOPS_SHARE: Final = 0.2
_LARGEST_MERCHANT: Final = 4
_SHARED_ACCOUNT: Final = 0.3
_TWO_DEVICES: Final = 0.4
_USUAL_TERMINALS: Final = 8
_CARDS_PER_MOBILE_IP: Final = 200
#: More than there are kinds of fraud: another kind takes none of the others' cards.
_VICTIM_CLASSES: Final = 12


class Place(NamedTuple):
    """A city with its weight, degrees north and degrees east, and how far its winter time is ahead of UTC."""

    country: str
    weight: int
    latitude: float
    longitude: float
    offset_min: int = 60


class Money(NamedTuple):
    """What a shop abroad asks for.

    Attributes:
        country: Where it is.
        currency: Its currency.
        rate: Euros that one unit of it is billed at; steady, since the world is none of exchanges.
    """

    country: str
    currency: str
    rate: float


#: Large cities of the euro area, weighted by the rough size of their countries' card markets.
PLACES: Final = (
    Place("DE", 8, 52.52, 13.41),  # Berlin
    Place("DE", 6, 53.55, 9.99),  # Hamburg
    Place("DE", 6, 48.14, 11.58),  # Munich
    Place("DE", 4, 50.94, 6.96),  # Cologne
    Place("FR", 12, 48.86, 2.35),  # Paris
    Place("FR", 4, 45.76, 4.84),  # Lyon
    Place("FR", 4, 43.30, 5.37),  # Marseille
    Place("IT", 7, 41.90, 12.50),  # Rome
    Place("IT", 6, 45.46, 9.19),  # Milan
    Place("IT", 4, 40.85, 14.27),  # Naples
    Place("ES", 7, 40.42, -3.70),  # Madrid
    Place("ES", 5, 41.39, 2.17),  # Barcelona
    Place("ES", 2, 37.39, -5.98),  # Seville
    Place("NL", 6, 52.37, 4.90),  # Amsterdam
    Place("BE", 4, 50.85, 4.35),  # Brussels
    Place("AT", 4, 48.21, 16.37),  # Vienna
    Place("PT", 3, 38.72, -9.14, 0),  # Lisbon
    Place("GR", 3, 37.98, 23.73, 120),  # Athens
    Place("FI", 2, 60.17, 24.94, 120),  # Helsinki
    Place("IE", 3, 53.35, -6.26, 0),  # Dublin
)
#: Web shops outside of the euro area, and their share of all.
ABROAD: Final = (
    Money("GB", "GBP", 1.15),
    Money("US", "USD", 0.92),
    Money("CH", "CHF", 1.05),
    Money("SE", "SEK", 0.088),
)
_ABROAD_SHARE: Final = 0.15
#: Merchant category codes (ISO 18245) with their rough share.
_TERMINAL_MCCS: Final = (
    ("5411", 22),  # groceries
    ("5812", 14),  # restaurants
    ("5814", 12),  # fast food
    ("5541", 9),  # service stations
    ("5912", 8),  # pharmacies
    ("5651", 7),  # clothing
    ("5732", 5),  # electronics
    ("4111", 8),  # local transport
    ("5999", 5),  # miscellaneous retail
    ("7011", 5),  # hotels
    ("7832", 5),  # cinemas
)
_SHOP_MCCS: Final = (
    ("5816", 20),  # digital goods: games
    ("5942", 16),  # books
    ("5732", 16),  # electronics
    ("5651", 20),  # clothing
    ("5311", 14),  # department stores
    ("4511", 6),  # airlines
    ("5999", 8),  # miscellaneous retail
)


class Watcher(Protocol):
    """Who sees the purchases of cards or terminals: a kind of fraud.

    Attributes:
        draw_label: Draws what a label says.
    """

    draw_label: Callable[[], float]

    def saw(
        self, watch: Watch, event: Transaction, card: Card, terminal: Terminal
    ) -> tuple[Truth | None, Transaction]:
        """Take note of a genuine purchase under a watch."""


class Watch:
    """Lets a scheme see the genuine purchases of a card or terminal for a while.

    Args:
        scheme: Who looks.
        until_ms: End, event time, ms.
        left: After so many that it made something of, it ends too.
        truth: What they are a part of, if known.
    """

    __slots__ = ("left", "scheme", "seen", "truth", "until_ms")

    def __init__(self, scheme: Watcher, until_ms: float, left: int, truth: Truth | None = None) -> None:
        self.scheme = scheme
        self.until_ms = until_ms
        self.left = left
        self.truth = truth
        self.seen: list[tuple[Card, str]] = []

    def covers(self, at_ms: int) -> bool:
        """Say whether the watch is still on."""
        return self.left > 0 and at_ms < self.until_ms


class Terminal:
    """Where a purchase takes place; a web shop's checkout has no position (``place`` is -1).

    ``money`` is what is asked for there; None: euros.
    """

    __slots__ = (
        "country",
        "latitude",
        "longitude",
        "mcc",
        "merchant",
        "money",
        "place",
        "terminal_id",
        "watch",
    )

    def __init__(self, terminal_id: str, merchant: Merchant, country: str, place: int) -> None:
        self.terminal_id = terminal_id
        self.merchant = merchant
        self.mcc = merchant.mcc
        self.country = country
        self.place = place
        self.latitude: float | None = None
        self.longitude: float | None = None
        self.money: Money | None = None
        self.watch: Watch | None = None


class Merchant:
    """Who is paid; all its terminals are in one city."""

    __slots__ = ("mcc", "merchant_id", "terminals")

    def __init__(self, merchant_id: str, mcc: str) -> None:
        self.merchant_id = merchant_id
        self.mcc = mcc
        self.terminals: list[Terminal] = []


class Account:
    """What a household pays from; the balance knows of genuine transactions only, cents."""

    __slots__ = ("account_id", "balance")

    def __init__(self, account_id: str) -> None:
        self.account_id = account_id
        self.balance = 0


class Card:
    """A card with its habits and its state; amounts in cents."""

    __slots__ = (
        "account",
        "address_id",
        "card_id",
        "customer_id",
        "devices",
        "home",
        "home_country",
        "ip",
        "mean",
        "mobile_ip",
        "moving_until_ms",
        "owed",
        "place",
        "safe_until_ms",
        "usual",
        "watch",
        "weight",
    )

    def __init__(self, card_id: str, customer_id: str, account: Account, home: int) -> None:
        self.card_id = card_id
        self.customer_id = customer_id
        self.account = account
        self.home = self.place = home
        self.home_country = PLACES[home].country
        self.address_id = ""
        self.ip = self.mobile_ip = ""
        self.devices: list[str] = []
        self.mean = self.weight = 0.0
        self.usual: tuple[Terminal, ...] = ()
        #: On the way to ``place`` until then, event time, ms.
        self.moving_until_ms = 0
        #: A purchase that will be given back.
        self.owed: tuple[Terminal, int] | None = None
        #: No fraud before this event time, ms.
        self.safe_until_ms = 0
        self.watch: Watch | None = None


class World:
    """Everybody and everything, made once before the first event.

    Args:
        profile: Seed and sizes.
    """

    def __init__(self, profile: FraudProfile) -> None:
        self._seed = profile.seed
        self.merchants: list[Merchant] = []
        self.shops: list[Terminal] = []
        self.at_place: list[list[Terminal]] = [[] for _ in PLACES]
        self.banks = {place.country: _bank(place.country) for place in PLACES}
        shops = max(3, round(profile.terminals * _SHOPS_SHARE))
        self._make_shops(shops)
        self._make_terminals(shops, profile.terminals)
        self.terminals = [terminal for here in self.at_place for terminal in here]
        self.devices_made = 0
        self.cards = self._make_cards(profile.cards, profile.card_skew)
        #: Which kind of fraud may hit which cards, by the kind's number: drawn, so that ids do not tell.
        self.victims: list[list[Card]] = [[] for _ in range(_VICTIM_CLASSES + 1)]
        victims = self.numbers("victims")
        for card in self.cards:
            self.victims[1 + int(victims.random() * _VICTIM_CLASSES)].append(card)

    def numbers(self, *purpose: str) -> Random:
        """Return the random numbers for one purpose of the world."""
        return substream(self._seed, NUMBERS, "world", *purpose)

    def _merchant(self, mccs: tuple[tuple[str, int], ...], uniform: float) -> Merchant:
        merchant = Merchant(f"merchant-{len(self.merchants):06d}", mccs[_pick(mccs, uniform)][0])
        self.merchants.append(merchant)
        return merchant

    def _make_shops(self, count: int) -> None:
        numbers, abroad = self.numbers("shops"), self.numbers("abroad")
        for number in range(count):
            merchant = self._merchant(_SHOP_MCCS, numbers.random())
            place = _pick_place(numbers.random())
            shop = Terminal(f"term-{number:06d}", merchant, PLACES[place].country, -1)
            if (chance := abroad.random() / _ABROAD_SHARE) < 1:
                shop.money = ABROAD[int(chance * len(ABROAD))]
                shop.country = shop.money.country
            merchant.terminals.append(shop)
            self.shops.append(shop)

    def _make_terminals(self, first: int, end: int) -> None:
        numbers = self.numbers("terminals")
        newest: dict[int, Merchant] = {}
        for number in range(first, end):
            place = _pick_place(numbers.random())
            joins, category = numbers.random() < 0.5, numbers.random()
            merchant = newest.get(place)
            if merchant is None or not joins or len(merchant.terminals) == _LARGEST_MERCHANT:
                merchant = newest[place] = self._merchant(_TERMINAL_MCCS, category)
            city = PLACES[place]
            terminal = Terminal(f"term-{number:06d}", merchant, city.country, place)
            north, east = normal(numbers.random()), normal(numbers.random())
            terminal.latitude = round(city.latitude + _SPREAD_DEGREES * north, 5)
            terminal.longitude = round(city.longitude + _SPREAD_DEGREES * east, 5)
            merchant.terminals.append(terminal)
            self.at_place[place].append(terminal)

    def _make_cards(self, count: int, skew: float) -> list[Card]:
        means, weights, usual = self.numbers("mean"), self.numbers("weight"), self.numbers("usual")
        households, ranks = self.numbers("household"), self.numbers("rank")
        mobile = [random_ip(households.random()) for _ in range(count // _CARDS_PER_MOBILE_IP + 1)]
        order = shuffled(list(range(1, count + 1)), ranks)
        cards: list[Card] = []
        joined = True
        for number, rank in enumerate(order):
            draws = [households.random() for _ in range(6)]
            joins = not joined and draws[0] < _SHARED_ACCOUNT
            card = self._second_card(number, cards[-1], draws) if joins else self._new_card(number, draws)
            joined = joins or not cards
            low, high = _MEAN_CENTS
            card.mean = low + (high - low) * means.random()
            card.weight = (0.2 + 1.6 * weights.random()) / math.pow(rank, skew)
            here = self.at_place[card.home]
            card.usual = tuple(here[int(usual.random() * len(here))] for _ in range(_USUAL_TERMINALS))
            card.mobile_ip = mobile[int(draws[5] * len(mobile))]
            cards.append(card)
        return cards

    def _new_card(self, number: int, draws: list[float]) -> Card:
        home = self.terminals[int(draws[1] * len(self.terminals))].place
        card = Card(f"card-{number:07d}", f"cust-{number:07d}", Account(f"acct-{number:07d}"), home)
        card.address_id = f"addr-{scattered(number, ORDINARY)}"
        card.ip = random_ip(draws[2])
        card.devices = [self.new_device() for _ in range(2 if draws[3] < _TWO_DEVICES else 1)]
        return card

    def _second_card(self, number: int, first: Card, draws: list[float]) -> Card:
        """Return a card on the same account: of the same holder, or of another one of the household."""
        same = draws[1] < 0.4
        customer = first.customer_id if same else f"cust-{number:07d}"
        card = Card(f"card-{number:07d}", customer, first.account, first.home)
        card.address_id, card.ip = first.address_id, first.ip
        shared = same or draws[2] < 0.3
        card.devices = list(first.devices) if shared else [self.new_device()]
        return card

    def new_device(self) -> str:
        """Return the id of a device that nobody has had yet."""
        self.devices_made += 1
        return f"dev-{scattered(self.devices_made, ORDINARY)}"


def shuffled(items: list[int], numbers: Random) -> list[int]:
    """Return the items in random order; ``Random.shuffle`` may differ between Python versions."""
    for last in range(len(items) - 1, 0, -1):
        other = int(numbers.random() * (last + 1))
        items[last], items[other] = items[other], items[last]
    return items


def random_ip(uniform: float) -> str:
    """Return an address of the private block 10.0.0.0/8, which belongs to nobody.

    >>> random_ip(0.5)
    '10.128.0.0'
    """
    number = int(uniform * (1 << 24))
    return f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"


def distance_km(here: Terminal, there: Terminal) -> float:
    """Return the great-circle distance of two terminals with positions, km (haversine formula)."""
    if here.latitude is None or here.longitude is None or there.latitude is None or there.longitude is None:
        raise ValueError("a web shop has no position")
    north, other_north = math.radians(here.latitude), math.radians(there.latitude)
    east = math.radians(there.longitude - here.longitude)
    half = math.sin((other_north - north) / 2) ** 2
    half += math.cos(north) * math.cos(other_north) * math.sin(east / 2) ** 2
    return 2 * 6_371.0 * math.asin(math.sqrt(half))


def _bank(country: str) -> Terminal:
    merchant = Merchant(f"bank-{country}", "6540")  # stored value card load
    return Terminal(f"topup-{country}", merchant, country, -1)


def _pick(shares: tuple[tuple[str, int], ...], uniform: float) -> int:
    left = uniform * sum(share for _, share in shares)
    for index, (_, share) in enumerate(shares):
        left -= share
        if left < 0:
            return index
    return len(shares) - 1


def _pick_place(uniform: float) -> int:
    return _pick(tuple((place.country, place.weight) for place in PLACES), uniform)
