"""Card transactions with frauds among them: cards with habits, terminals, balances, episodes of fraud."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from heapq import heappop, heappush
from itertools import count
from typing import Final

from millrace_apps.generators.engine import Episode, Generated, Profile, deliver, substream
from millrace_apps.generators.engine.corrupt import JsonCorruptor
from millrace_apps.generators.engine.message import Headers
from millrace_apps.generators.engine.profile import check
from millrace_apps.generators.engine.randomness import digest, normal
from millrace_apps.generators.fraud_episodes import Fraudster, Planned
from millrace_apps.generators.fraud_labels import TOPIC as LABELS_TOPIC
from millrace_apps.generators.fraud_labels import FraudLabels
from millrace_apps.generators.fraud_pools import Card, Terminal, make_pools

DOMAIN: Final = "fraud"
TOPIC: Final = "fraud.transactions"
SCHEMA_VERSION: Final = "1"
EVENT_TYPE: Final = "millrace.fraud.transaction"
DESCRIPTION: Final = "card transactions: card testing, amount spikes and sprees among normal purchases"
SOURCE: Final = "millrace/generators/fraud"

#: Every field of a transaction, in the order of its bytes; the contract requires all of them.
FIELDS: Final = (
    "transaction_id",
    "card_id",
    "terminal_id",
    "mcc",
    "country",
    "amount",
    "currency",
    "kind",
    "event_time_ms",
)

_REFUND_SHARE: Final = 0.01
_ABROAD_SHARE: Final = 0.02


@dataclass(frozen=True, kw_only=True, slots=True)
class FraudProfile(Profile):
    """What a stream of card transactions is made from.

    Attributes:
        cards: Number of cards.
        terminals: Number of terminals.
        card_skew: Zipf exponent of the cards' activity; 0: all within a factor of nine.
        fraud_rate: Fraud episodes begun per 1,000 events.
        label_scale: Factor on the delays of labels (:mod:`millrace_apps.generators.payments.labels`); 0:
            there are none.
    """

    cards: int = 2_000
    terminals: int = 500
    card_skew: float = 0.0
    fraud_rate: float = 0.5
    label_scale: float = 0.0

    def __post_init__(self) -> None:
        # The two-argument form: a slotted dataclass is a second class, which super() alone does not find.
        super(FraudProfile, self).__post_init__()
        check(1 <= self.cards <= 10_000_000, "cards is a count between 1 and 10,000,000", self.cards)
        check(
            1 <= self.terminals <= 1_000_000, "terminals is a count between 1 and 1,000,000", self.terminals
        )
        check(0 <= self.card_skew <= 5, "card skew is an exponent between 0 and 5", self.card_skew)
        rate = self.fraud_rate
        check(0 <= rate <= 100, "fraud rate is 0 to 100 episodes per 1,000 events", rate)
        scale = self.label_scale
        check(0 <= scale <= 10, "label scale is 0 (no labels) to 10", scale)


def fraud_events(profile: FraudProfile, labels_topic: str = LABELS_TOPIC) -> Iterator[Generated]:
    """Return the messages of a run in their order of sending, faults and labels among them.

    Args:
        profile: What the stream is made from; equal profiles give equal bytes.
        labels_topic: Topic of the labels, if there are any.

    >>> first = next(fraud_events(FraudProfile(seed=7, cards=10, terminals=5)))
    >>> first.key.startswith(b"card-"), first.labels.scenario
    (True, None)
    """
    corrupt = JsonCorruptor(id_field="transaction_id", required=FIELDS, number="amount")
    if not profile.label_scale:
        return deliver(DOMAIN, profile, simulate(profile), corrupt)
    labels = FraudLabels(DOMAIN, profile.seed, profile.label_scale, labels_topic)
    return labels.among(deliver(DOMAIN, profile, labels.heard(simulate(profile)), corrupt))


def simulate(profile: FraudProfile) -> Iterator[Generated]:
    """Yield valid transactions in event time, one per slot of the event rate."""
    simulation = _Simulation(profile)
    events = count() if profile.events is None else range(profile.events)
    last = None if profile.events is None else profile.events - 1
    for sequence in events:
        yield simulation.step(sequence, is_last=sequence == last)


class _Simulation:
    """Cards that buy, get refunds and top up; a fraudster that strikes now and then."""

    def __init__(self, profile: FraudProfile) -> None:
        self._profile = profile
        self._cards, self._terminals = make_pools(
            profile.seed, profile.cards, profile.terminals, profile.card_skew
        )
        self._activity: list[float] = []
        total = 0.0
        for card in self._cards:
            total += card.weight
            self._activity.append(total)
        self._total = total
        # Part of every id: runs with another seed or start must not look like repeats of this one.
        run = digest(DOMAIN, profile.seed, profile.start_ms)[:10]
        self._fraudster = Fraudster(profile.seed, profile.fraud_rate, run, self._cards, self._terminals)
        self._planned: list[Planned] = []
        self._encode = _Encoder(run).encode
        self._draw_card = substream(profile.seed, DOMAIN, "card").random
        self._draw_kind = substream(profile.seed, DOMAIN, "kind").random
        self._draw_terminal = substream(profile.seed, DOMAIN, "terminal").random
        self._draw_abroad = substream(profile.seed, DOMAIN, "abroad").random
        self._draw_amount = substream(profile.seed, DOMAIN, "amount").random
        self._draw_top_up = substream(profile.seed, DOMAIN, "top_up").random

    def step(self, sequence: int, *, is_last: bool) -> Generated:
        """Return the event with this number."""
        slot_ms = self._profile.slot_ms(sequence)
        planned = self._planned
        for plan in self._fraudster.strike(slot_ms):
            heappush(planned, plan)
        # The last event keeps its slot, so that the stream ends where its profile says.
        if planned and planned[0].at_ms <= slot_ms and not is_last:
            at_ms, _, card, terminal, cents, episode = heappop(planned)
            card.balance -= cents
            return self._encode(sequence, at_ms, card, terminal, cents, "purchase", episode)
        card = self._cards[bisect_right(self._activity, self._draw_card() * self._total)]
        return self._ordinary(sequence, slot_ms, card)

    def _ordinary(self, sequence: int, at_ms: int, card: Card) -> Generated:
        # All draws come first and always, so that no decision shifts the numbers of the next event.
        kind_draw, terminal_draw, abroad_draw = self._draw_kind(), self._draw_terminal(), self._draw_abroad()
        amount_draw, top_up_draw = self._draw_amount(), self._draw_top_up()
        if kind_draw < _REFUND_SHARE and card.last_purchase is not None:
            terminal, cents = card.last_purchase
            card.last_purchase = None
            card.balance += cents
            return self._encode(sequence, at_ms, card, terminal, cents, "refund", None)
        cents = ordinary_cents(card.mean, amount_draw)
        if card.balance < cents:
            cents = _top_up_cents(card, cents, top_up_draw)
            card.balance += cents
            return self._encode(sequence, at_ms, card, card.bank, cents, "top_up", None)
        if abroad_draw < _ABROAD_SHARE:
            terminal = self._terminals[int(terminal_draw * len(self._terminals))]
        else:
            terminal = card.usual[int(terminal_draw * len(card.usual))]
        card.balance -= cents
        card.purchases += 1
        card.sum_cents += cents
        card.sum_squares += cents * cents
        card.last_purchase = (terminal, cents)
        return self._encode(sequence, at_ms, card, terminal, cents, "purchase", None)


def ordinary_cents(mean: float, uniform: float) -> int:
    """Return an ordinary amount in cents: normal(mean, mean / 2), drawn again around the mean if too small.

    As in the simulator of the Fraud Detection Handbook, but from 0.3 of the mean on and not from 0: people
    who spend 50 at a time do not pay in cents.

    Args:
        mean: The card's mean amount in cents.
        uniform: A random number in [0, 1).
    """
    scaled = 1 + 0.5 * normal(uniform)
    if scaled < 0.3:
        # The draw's fraction within its quantile is unused so far: a uniform number of its own.
        scaled = 0.3 + 1.4 * (uniform * 4096 % 1.0)
    return max(1, round(mean * scaled))


def _top_up_cents(card: Card, wanted: int, uniform: float) -> int:
    """Return a round sum that pays for what is wanted and for 15 to 25 purchases more."""
    target = wanted + card.mean * (15 + 10 * uniform)
    return math.ceil((target - card.balance) / 1_000) * 1_000


class _Encoder:
    """Writes transactions as bytes; all that repeats is formatted once."""

    def __init__(self, run: str) -> None:
        self._prefix = f"{run}-"
        self._second = -1
        self._time = ""
        self._fixed: Headers = [
            ("ce_specversion", b"1.0"),
            ("ce_type", EVENT_TYPE.encode()),
            ("ce_source", SOURCE.encode()),
            ("content-type", b"application/json"),
            ("schema_version", SCHEMA_VERSION.encode()),
        ]

    def encode(
        self,
        sequence: int,
        at_ms: int,
        card: Card,
        terminal: Terminal,
        cents: int,
        kind: str,
        episode: Episode | None,
    ) -> Generated:
        """Return the message of one transaction."""
        transaction_id = f"{self._prefix}{sequence:010d}"
        value = (
            f'{{"transaction_id":"{transaction_id}",{card.json}{terminal.json}'
            f'"amount":{cents // 100}.{cents % 100:02d},"currency":"EUR",'
            f'"kind":"{kind}","event_time_ms":{at_ms}}}'
        ).encode()
        second, milli = divmod(at_ms, 1000)
        if second != self._second:
            self._second = second
            self._time = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        version, event_type, source, content_type, schema_version = self._fixed
        headers = [
            version,
            ("ce_id", transaction_id.encode()),
            event_type,
            source,
            ("ce_time", f"{self._time}.{milli:03d}Z".encode()),
            content_type,
            schema_version,
        ]
        return Generated(transaction_id, card.key, value, headers, at_ms, kind, cents, episode)
