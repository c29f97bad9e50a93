"""The kinds of fraud: whom each one hits, when, and with which purchases.

A scheme plans purchases of its own (:class:`Purchase`), or lays a :class:`Watch` on a card or terminal and
is told of the genuine purchases there. Each has random numbers of its own and chooses among cards of its
own, so that one fraud does not hide another and leaving a scheme out does not move the others. Only what
happens at a compromised terminal or merchant happens to whoever shops there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heappush
from typing import ClassVar, Final, NamedTuple, TypeAlias

from millrace_apps.fraud.contracts.events import Transaction
from millrace_apps.generators.engine.randomness import substream
from millrace_apps.generators.engine.simulated import Truth
from millrace_apps.generators.fraud.names import scattered
from millrace_apps.generators.fraud.profile import SCENARIOS, FraudProfile
from millrace_apps.generators.fraud.world import NUMBERS, Card, Terminal, Watch, World, random_ip

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 86_400_000

#: A card that was hit has this long peace, scaled as frauds are, ms.
_PEACE_MS: Final = 7 * DAY_MS
#: Cards looked at before a strike is given up.
_ATTEMPTS: Final = 32


class Equipment(NamedTuple):
    """What an online purchase is made with."""

    device: str
    ip: str
    address: str


class Purchase(NamedTuple):
    """A fraudulent purchase that waits for its time; at a terminal if it has no equipment."""

    scheme: Scheme
    card: Card
    terminal: Terminal
    cents: int
    equipment: Equipment | None
    truth: Truth


#: What is to be done at a time: a purchase, or a call that plans more.
Action: TypeAlias = "Purchase | Callable[[int], None]"


class Plans:
    """What the schemes have planned, in order of time; made the same whatever else is planned."""

    def __init__(self) -> None:
        self.waiting: list[tuple[int, int, int, Action]] = []

    def add(self, at_ms: int, scheme: Scheme, action: Action) -> None:
        """Plan an action."""
        scheme.planned += 1
        heappush(self.waiting, (at_ms, scheme.number, scheme.planned, action))


class Scheme:
    """One kind of fraud.

    Args:
        profile: Seed, rate and scale.
        world: Everybody.
        plans: Where purchases are planned.
        run: Prefix that makes ids unique among runs.
    """

    #: Its name in :data:`~millrace_apps.generators.fraud.profile.SCENARIOS`.
    kind: ClassVar[str]
    #: Its share of all frauds begun.
    share: ClassVar[float]

    def __init__(self, profile: FraudProfile, world: World, plans: Plans, run: str) -> None:
        self.number = 1 + list(SCENARIOS).index(self.kind)
        self.planned = self.made = 0
        self._world, self._plans, self._run = world, plans, run
        self._scale = profile.fraud_scale
        self._chance = profile.fraud_rate * self.share / 1000
        self.draw = substream(profile.seed, NUMBERS, self.kind, "what").random
        self.draw_label = substream(profile.seed, NUMBERS, self.kind, "label").random
        self.draw_when = substream(profile.seed, NUMBERS, self.kind, "when").random
        self.next_slot: float = -1
        self.advance()
        self.cards = world.victims[self.number]
        self._episodes = self._devices = 0

    def advance(self) -> None:
        """Draw the slot of the next strike: gaps are geometric, as if every slot drew alone."""
        uniform = self.draw_when()
        if self._chance <= 0:
            self.next_slot = math.inf
        else:
            self.next_slot += 1 + int(math.log1p(-uniform) / math.log1p(-self._chance))

    def strike(self, now_ms: int) -> None:
        """Begin a fraud, if there is somebody to hit."""
        raise NotImplementedError

    def saw(
        self, watch: Watch, event: Transaction, card: Card, terminal: Terminal
    ) -> tuple[Truth | None, Transaction]:
        """Take note of a genuine purchase under a watch.

        Returns:
            What it becomes a part of, if anything, and the purchase as it is sent.
        """
        raise NotImplementedError

    def next_id(self) -> str:
        """Return the id of the scheme's next transaction."""
        self.made += 1
        return f"{self._run}-{scattered(self.made, self.number)}"

    def _truth(self, entity: str, cards: list[Card], events: int | None, **detail: object) -> Truth:
        self._episodes += 1
        known: dict[str, object] = {"cards": [card.card_id for card in cards]}
        if events is not None:
            known["events"] = events
        return Truth(
            truth_id=f"{self._run}-{self.kind}-{self._episodes:06d}",
            kind=self.kind,
            entity=entity,
            expected="fraud",
            detail=known | detail,
        )

    def _victim(self, now_ms: int) -> Card | None:
        cards = self.cards
        for _ in range(_ATTEMPTS if cards else 0):
            card = cards[int(self.draw() * len(cards))]
            if card.safe_until_ms <= now_ms and (card.watch is None or not card.watch.covers(now_ms)):
                card.safe_until_ms = now_ms + round(_PEACE_MS * self._scale)
                return card
        return None

    def _between(self, low: float, high: float) -> float:
        return low + (high - low) * self.draw()

    def _count(self, low: int, high: int) -> int:
        return low + int(self.draw() * (high - low + 1))

    def _span(self, low_ms: int, high_ms: int) -> int:
        """Return a duration, scaled, at least 1 ms."""
        return max(1, round(self._between(low_ms, high_ms) * self._scale))

    def _times(self, now_ms: int, count: int, span_ms: int) -> list[int]:
        """Return so many times in order, the first now, all within a span."""
        return [now_ms, *sorted(now_ms + 1 + int(self.draw() * span_ms) for _ in range(count - 1))]

    def _shop(self) -> Terminal:
        return self._world.shops[int(self.draw() * len(self._world.shops))]

    def _stolen(self) -> Equipment:
        """Return a device, an IP address and a delivery address that nobody has had yet."""
        self._devices += 1
        tail = scattered(self._devices, self.number)
        return Equipment(f"dev-{tail}", random_ip(self.draw()), f"addr-{tail}")

    def _own(self, card: Card) -> Equipment:
        return Equipment(card.devices[0], card.ip, card.address_id)

    def _buy(
        self,
        at_ms: int,
        card: Card,
        terminal: Terminal,
        cents: float,
        equipment: Equipment | None,
        truth: Truth,
    ) -> None:
        self._plans.add(at_ms, self, Purchase(self, card, terminal, round(cents), equipment, truth))
