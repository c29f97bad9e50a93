"""The frauds: who is hit, when, and with which purchases."""

from __future__ import annotations

from typing import Final, NamedTuple

from millrace_apps.generators.engine import Episode, substream
from millrace_apps.generators.fraud_pools import Card, Terminal

#: At least 8 purchases of at most 2.00 on one card within 60 s.
CARD_TESTING: Final = "card_testing"
#: One purchase of at least 8 times the card's usual amount, and at least 10 deviations above it.
AMOUNT_SPIKE: Final = "amount_spike"
#: At least 6 purchases of 3 to 5 times the usual amount within a minute.
SPREE: Final = "spree"
SCENARIOS: Final = (CARD_TESTING, AMOUNT_SPIKE, SPREE)

#: Ordinary purchases before an amount can be unusual: two more than ten, since some may come late.
MIN_HISTORY: Final = 12
#: A card that was hit has this long peace, so that one fraud does not hide the next, ms.
PEACE_MS: Final = 15 * 60_000
#: Shortest and longest duration: well below a minute, so that a demo of one minute holds whole episodes, ms.
_TESTING_SPAN_MS: Final = (5_000, 25_000)
_SPREE_SPAN_MS: Final = (8_000, 30_000)
#: Cards looked at before a strike is given up; with fewer than one card in ten suitable it may be.
_ATTEMPTS: Final = 64


class Planned(NamedTuple):
    """A fraudulent purchase that waits for its time; ``order`` makes plans of one instant sortable."""

    at_ms: int
    order: int
    card: Card
    terminal: Terminal
    cents: int
    episode: Episode


class Fraudster:
    """Begins episodes at random.

    Args:
        seed: The run's seed.
        rate: Episodes per 1,000 events.
        run: Prefix that makes the episodes' ids unique among runs.
        cards: Whom it may hit.
        terminals: Where it spends.
    """

    def __init__(
        self, seed: int, rate: float, run: str, cards: list[Card], terminals: list[Terminal]
    ) -> None:
        self._chance = rate / 1000
        self._run = run
        self._cards = cards
        self._terminals = terminals
        self._when = substream(seed, "fraud", "episode", "when").random
        self._draw = substream(seed, "fraud", "episode", "what").random
        self._episodes = 0
        self._planned = 0

    def strike(self, now_ms: int) -> list[Planned]:
        """Return the purchases of an episode that begins now: mostly none."""
        if self._when() >= self._chance:
            return []
        scenario = SCENARIOS[int(self._draw() * len(SCENARIOS))]
        card = self._victim(scenario, now_ms)
        if card is None:
            return []
        card.safe_until_ms = now_ms + PEACE_MS
        if scenario == CARD_TESTING:
            purchases = self._card_testing(now_ms)
        elif scenario == AMOUNT_SPIKE:
            purchases = [(now_ms, self._terminal(), self._spike_cents(card))]
        else:
            purchases = self._spree(now_ms, card)
        self._episodes += 1
        episode = Episode(f"{self._run}-e{self._episodes:06d}", scenario, card.card_id, len(purchases))
        planned = []
        for at_ms, terminal, cents in purchases:
            self._planned += 1
            planned.append(Planned(at_ms, self._planned, card, terminal, cents, episode))
        return planned

    def _victim(self, scenario: str, now_ms: int) -> Card | None:
        history = 0 if scenario == CARD_TESTING else MIN_HISTORY
        for _ in range(_ATTEMPTS):
            card = self._cards[int(self._draw() * len(self._cards))]
            if card.purchases >= history and card.safe_until_ms <= now_ms:
                return card
        return None

    def _card_testing(self, now_ms: int) -> list[tuple[int, Terminal, int]]:
        terminal = self._terminal()
        times = self._times(now_ms, 8 + int(self._draw() * 7), _TESTING_SPAN_MS)
        return [(at_ms, terminal, 10 + int(self._draw() * 191)) for at_ms in times]

    def _spree(self, now_ms: int, card: Card) -> list[tuple[int, Terminal, int]]:
        times = self._times(now_ms, 6 + int(self._draw() * 4), _SPREE_SPAN_MS)
        usual = card.usual_cents
        return [(at_ms, self._terminal(), round(usual * (3.1 + 1.8 * self._draw()))) for at_ms in times]

    def _spike_cents(self, card: Card) -> int:
        usual = card.usual_cents
        least = max(8 * usual, usual + 10 * card.spread_cents)
        return round(least * (1.05 + 0.6 * self._draw()))

    def _times(self, now_ms: int, size: int, spans_ms: tuple[int, int]) -> list[int]:
        """Return ``size`` times in order, the first now, the last within a span drawn from the range."""
        shortest, longest = spans_ms
        span_ms = shortest + int(self._draw() * (longest - shortest))
        return [now_ms, *sorted(now_ms + 1 + int(self._draw() * (span_ms - 1)) for _ in range(size - 1))]

    def _terminal(self) -> Terminal:
        return self._terminals[int(self._draw() * len(self._terminals))]
