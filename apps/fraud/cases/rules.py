"""Case rules: when alerts become a case, its queue, and the consequences of a disposition."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec

from millrace.errors import UserError
from millrace.rules import Condition, Constant, Field, Function, Language
from millrace_apps.fraud.cases.events import ONE_QUEUE, AlertSeen, CaseAct, Disposition

_HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 24 * _HOUR_MS
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,63}")


class CaseRefused(UserError):
    """What cannot be done with a case; the event goes to the dead letters with this message."""


class AlertFacts(NamedTuple):
    """What the condition of a queue is asked about: the alert that opens a case.

    Attributes:
        amount: Amount in currency units.
        score: How suspicious it is, 0 to 1.
        action: ``review`` or ``block``.
        country: Country of the terminal, if the alert says so.
        customer: Holder of the card, if the alert says so.
        codes: What was suspicious.
        ring: What the cards of the case have in common: ``device``, ``terminal``; None: it is a card's.
    """

    amount: float
    score: float
    action: str
    country: str | None
    customer: str | None
    codes: set[str]
    ring: str | None = None


def _has(code: str) -> Callable[[Any], bool]:
    return lambda facts: code in facts.codes


#: What the conditions of queues can say.
QUEUE_LANGUAGE: Final = Language(
    {
        "amount": Field("number", about="of the alert that opens the case, currency units"),
        "score": Field("number", about="how suspicious it is, 0 to 1"),
        "action": Field("text", about="review or block"),
        "country": Field("text", nullable=True, about="of the terminal"),
        "customer": Field("text", nullable=True, about="holder of the card"),
        "ring": Field("text", nullable=True, about="what a ring's cards have in common: device, terminal"),
    },
    (Function("reason", (Constant("text"),), "boolean", _has, about="whether the alert has the reason"),),
)


@lru_cache(maxsize=256)
def _condition(when: str) -> Condition:
    return QUEUE_LANGUAGE.condition(when)


class QueueRule(msgspec.Struct, frozen=True):
    """A queue beside the one for all.

    Attributes:
        name: Its name.
        when: Which cases it takes, by the alert that opens them.
        capacity: Cases that can be looked at on a day.

    Example:
        >>> QueueRule("abroad", "country in ('FR', 'IT') and amount > 500").takes(
        ...     AlertFacts(600.0, 0.9, "review", "FR", None, {"SPREE"}))
        True
    """

    name: str
    when: str
    capacity: int = 100

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or self.name == ONE_QUEUE:
            raise CaseRefused(
                f"no queue can be called {self.name!r}: letters, digits, . _ -; not {ONE_QUEUE}"
            )
        if self.capacity < 1:
            raise CaseRefused(f"queue {self.name} has a capacity below 1")
        try:
            _condition(self.when)
        except UserError as error:
            raise CaseRefused(f"queue {self.name}: {error}") from None

    def takes(self, facts: AlertFacts) -> bool:
        """Say whether it takes the case that an alert opens."""
        return bool(_condition(self.when).holds(facts))


class CaseRules(msgspec.Struct, frozen=True):
    """How alerts become cases, and what follows from what is said of them.

    Attributes:
        gap_ms: An alert within this of the case's last one belongs to it, ms.
        open_for_ms: A case that nobody decided on expires this long after its last alert, ms.
        followed_ms: An alert so long after its card was found to be in foreign hands opens a case that
            follows that one, ms; what the list blocked meanwhile is noted there, and nobody need look.
        kept_ms: A decided case can be decided otherwise for this long, ms.
        most_alerts: A card's case with so many alerts takes no more; the next one opens another.
        most_ring_alerts: The same of the case of a ring.
        rings: Whether alerts that say that a ring is at work go to its case; else to their cards'.
        exposure: What a card in foreign hands is going to lose beyond what was alerted, currency units.
        least_review: Suspicion of an alert to review: what a rule says alone has no score of its own.
        least_block: The same of an alert to block.
        least_followed: The same of one whose card was found to be in foreign hands.
        quiet_ms: After ``genuine``, alerts of the same pattern are noted for so long, and open no case, ms.
        block_ms: How long a card is blocked that was found to be in foreign hands, ms; 0: it is not.
        block_rings: Whether what the cards of such a ring have in common is blocked, too.
        verified_ms: How long payments pass that the holder stands by, ms.
        claim_ms: How long a case belongs to who claimed it, ms.
        queues: Queues beside the one for all; a case is in the first that takes it.
    """

    gap_ms: int = _DAY_MS
    open_for_ms: int = 7 * _DAY_MS
    followed_ms: int = 7 * _DAY_MS
    kept_ms: int = 30 * _DAY_MS
    most_alerts: int = 50
    most_ring_alerts: int = 200
    rings: bool = True
    exposure: float = 250.0
    least_review: float = 0.3
    least_block: float = 0.6
    least_followed: float = 0.8
    quiet_ms: int = 3 * _DAY_MS
    block_ms: int = 30 * _DAY_MS
    block_rings: bool = False
    verified_ms: int = _DAY_MS
    claim_ms: int = 4 * _HOUR_MS
    queues: tuple[QueueRule, ...] = ()

    def __post_init__(self) -> None:
        lengths = (self.gap_ms, self.open_for_ms, self.followed_ms, self.kept_ms, self.most_alerts,
                   self.most_ring_alerts, self.verified_ms, self.claim_ms)  # fmt: skip
        if min(lengths) < 1 or min(self.quiet_ms, self.block_ms) < 0:
            raise CaseRefused("every length of time and number of the case rules is at least 1")
        if self.followed_ms > self.kept_ms:
            raise CaseRefused("a case cannot be followed for longer than it is kept")
        if self.quiet_ms > self.kept_ms:
            raise CaseRefused("alerts cannot be noted in a case for longer than it is kept")
        names = [queue.name for queue in self.queues]
        if len(set(names)) < len(names):
            raise CaseRefused("two queues have one name")

    def suspicion(self, alert: AlertSeen) -> float:
        """Return how suspicious an alert is: the highest of what reasons, a model and its action say.

        >>> CaseRules().suspicion(AlertSeen("card-1", "tx-1", 0, 9.0, 0.0, "block", model_score=0.7))
        0.7
        """
        least = self.least_block if alert.action == "block" else self.least_review
        return max(alert.score, alert.model_score or 0.0, least)

    def ring_of(self, alert: AlertSeen) -> str:
        """Return the ring whose case an alert belongs to, as ``kind:ID``; empty: it belongs to its card's."""
        return alert.ring if self.rings else ""

    def key_of(self, event: AlertSeen | Disposition | CaseAct) -> str:
        """Return the key of an event: the ring that it is about, else its card.

        >>> CaseRules().key_of(AlertSeen("card-1", "tx-1", 0, 9.0, 0.9, "review", ring="device:d-7"))
        'device:d-7'
        """
        ring = self.ring_of(event) if isinstance(event, AlertSeen) else event.ring
        return ring or event.card_id

    def most_of(self, ring: str) -> int:
        """Return how many alerts the case of a ring takes, or (empty) that of a card."""
        return self.most_ring_alerts if ring else self.most_alerts

    def priority(self, score: float, amount: float, cards: int = 1) -> float:
        """Return what is expected to be saved by looking at a case, in currency units.

        >>> CaseRules(exposure=250.0).priority(0.8, 50.0), CaseRules(exposure=250.0).priority(0.8, 50.0, 3)
        (240.0, 640.0)
        """
        return round(score * (amount + self.exposure * cards), 2)

    def queue_of(self, alert: AlertSeen) -> str:
        """Return the queue of the case that an alert opens.

        >>> CaseRules(queues=(QueueRule("big", "amount > 500"),)).queue_of(
        ...     AlertSeen("card-1", "tx-1", 0, 900.0, 0.5, "review"))
        'big'
        """
        if not self.queues:
            return ONE_QUEUE
        ring = self.ring_of(alert).partition(":")[0] or None
        facts = AlertFacts(alert.amount, self.suspicion(alert), alert.action, alert.country,
                           alert.customer_id, alert.codes, ring)  # fmt: skip
        return next((queue.name for queue in self.queues if queue.takes(facts)), ONE_QUEUE)

    def capacities(self) -> dict[str, int]:
        """Return queue → cases that can be looked at on a day, of the queues beside the one for all."""
        return {queue.name: queue.capacity for queue in self.queues}
