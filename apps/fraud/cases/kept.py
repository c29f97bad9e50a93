"""The state of a case."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from millrace_apps.fraud.cases.events import (
    ONE_QUEUE,
    AlertReason,
    AlertSeen,
    Case,
    CaseCard,
    CaseEvent,
    CaseReason,
    CaseTransaction,
    Status,
)
from millrace_apps.fraud.cases.rules import CaseRules

#: Reasons shown of a case.
_MOST_REASONS = 8
#: Lines of a case's history.
_MOST_EVENTS = 50


class KeptCase(msgspec.Struct):
    """A case as it is kept in state.

    Attributes:
        customer_id: Holder of the card, if known.
        status: Where it stands.
        opened_ms: Time of its first alert.
        last_ms: Time of its last alert.
        transactions: Its alerted transactions.
        reasons: Code → in how many alerts, with the last values.
        revision: Counts the changes.
        verdict_by: Who decided.
        verdict_ms: When.
        note: What was noted.
        dispositions: Identities of the dispositions that were taken.
        queue: The queue it is in.
        follows: The case before it that was found to be fraud.
        claimed_by: Who looks at it now.
        claimed_until_ms: Until when.
        looked_by: Who was the first to look at it.
        looked_ms: When.
        blocked_until_ms: Until when the card is blocked by this case.
        history: Who did what.
        acts: Identity of an act → hash of what it said.
        ring: The ring that it is about, as ``kind:ID``; empty: a card.
        card_id: Of a ring the card of its first alert.
        cleared: Cards of a ring whose holders stand by their payments → up to when, ms.
        blocked: Cards of a ring that are blocked by this case → until when, ms.
        ring_blocked_until_ms: Until when what the ring has in common is blocked by this case.
    """

    customer_id: str | None
    status: Status
    opened_ms: int
    last_ms: int
    transactions: list[CaseTransaction]
    reasons: dict[str, CaseReason]
    revision: int = 0
    verdict_by: str | None = None
    verdict_ms: int | None = None
    note: str = ""
    dispositions: list[str] = msgspec.field(default_factory=list)
    queue: str = ONE_QUEUE
    follows: str | None = None
    claimed_by: str | None = None
    claimed_until_ms: int | None = None
    looked_by: str | None = None
    looked_ms: int | None = None
    blocked_until_ms: int | None = None
    history: list[CaseEvent] = msgspec.field(default_factory=list)
    acts: dict[str, str] = msgspec.field(default_factory=dict)
    ring: str = ""
    card_id: str = ""
    cleared: dict[str, int] = msgspec.field(default_factory=dict)
    blocked: dict[str, int] = msgspec.field(default_factory=dict)
    ring_blocked_until_ms: int | None = None

    def card_of(self, transaction: CaseTransaction, key: str) -> str:
        """Return the card of a transaction, of a case under a key."""
        return transaction.card_id or key

    def cards(self, key: str) -> list[CaseCard]:
        """Return its cards, in the order in which they came."""
        counts: dict[str, tuple[int, float]] = {}
        for t in self.transactions:
            alerts, amount = counts.get(self.card_of(t, key), (0, 0.0))
            counts[self.card_of(t, key)] = alerts + 1, amount + t.amount
        return [
            CaseCard(card, alerts, round(amount, 2), self.cleared.get(card), self.blocks_until(card) or None)
            for card, (alerts, amount) in counts.items()
        ]

    def says_fraud(self, transaction: CaseTransaction, status: str) -> bool:
        """Say whether a transaction is a fraud by a verdict: not where the card's holder stands by it."""
        return status == "fraud" and transaction.event_time_ms >= self.cleared.get(transaction.card_id, 0)

    def blocks_until(self, card: str) -> int:
        """Return until when this case blocks a card, ms; 0: it does not."""
        return self.blocked.get(card, 0) if self.ring else self.blocked_until_ms or 0

    def set_block(self, card: str, until_ms: int | None) -> None:
        """Keep until when this case blocks a card; ``None``: it does not."""
        if not self.ring:
            self.blocked_until_ms = until_ms
            return
        self.blocked = {name: at for name, at in self.blocked.items() if name != card}
        if until_ms is not None:
            self.blocked[card] = until_ms
        self.blocked_until_ms = max(self.blocked.values(), default=None)

    def claimed_by_other(self, by: str, at_ms: int) -> bool:
        """Say whether somebody else looks at it at a time."""
        return self.claimed_by not in (None, by) and at_ms < (self.claimed_until_ms or 0)

    def mark_viewed(self, by: str, at_ms: int) -> None:
        """Note who was the first to look at it."""
        if self.looked_ms is None:
            self.looked_by, self.looked_ms = by, at_ms

    def note_act(self, what: str, by: str, at_ms: int, note: str, about: str = "") -> None:
        """Add a line to its history."""
        self.history = [*self.history, CaseEvent(what, by, at_ms, note, about)][-_MOST_EVENTS:]

    def add(self, transaction: CaseTransaction, reasons: Iterable[AlertReason]) -> None:
        """Add an alerted transaction and its reasons."""
        self.transactions.append(transaction)
        self.opened_ms = min(self.opened_ms, transaction.event_time_ms)
        self.last_ms = max(self.last_ms, transaction.event_time_ms)
        self.reasons = _with_reasons(self.reasons, reasons)

    def told(self, case_id: str, key: str, rules: CaseRules, at_ms: int) -> Case:
        """Return it as it is emitted, of a time (ms) when it changed."""
        cards = self.cards(key)
        amount = round(sum(t.amount for t in self.transactions), 2)
        score = max(t.score for t in self.transactions)
        lost = {t.card_id for t in self.transactions if self.says_fraud(t, "fraud")}
        return Case(
            case_id=case_id,
            card_id=self.card_id or key,
            customer_id=self.customer_id,
            queue=self.queue,
            status=self.status,
            opened_ms=self.opened_ms,
            updated_ms=at_ms,
            alerts=len(self.transactions),
            amount=amount,
            score=score,
            priority=rules.priority(score, amount, len(lost)),
            reasons=reasons_of(self.reasons),
            transactions=self.transactions,
            verdict_by=self.verdict_by,
            verdict_ms=self.verdict_ms,
            note=self.note,
            revision=self.revision,
            follows=self.follows,
            claimed_by=self.claimed_by,
            claimed_until_ms=self.claimed_until_ms,
            looked_by=self.looked_by,
            looked_ms=self.looked_ms,
            blocked_until_ms=self.blocked_until_ms,
            history=self.history,
            subject=self.ring or f"card:{key}",
            cards=cards,
            ring_blocked_until_ms=self.ring_blocked_until_ms,
        )

    def has_pattern_of(self, alert: AlertSeen) -> bool:
        """Say whether an alert says nothing that its alerts have not said."""
        known = {code for code, reason in self.reasons.items() if not reason.beside}
        most = max(t.amount for t in self.transactions)
        blocked = any(t.action == "block" for t in self.transactions)
        return alert.codes <= known and alert.amount <= most and (blocked or alert.action != "block")


def _with_reasons(kept: dict[str, CaseReason], reasons: Iterable[AlertReason]) -> dict[str, CaseReason]:
    found = dict(kept)
    for reason in reasons:
        before = found[reason.code].alerts if reason.code in found else 0
        found[reason.code] = CaseReason(reason.code, before + 1, reason.value, reason.baseline, reason.beside)
    return found


def reasons_of(kept: dict[str, CaseReason]) -> list[CaseReason]:
    """Return the reasons of a case, the most frequent first, comparisons behind them.

    >>> kept = {c: CaseReason(c, n, 1.0, 1.0, b) for c, n, b in
    ...         [("AMOUNT", 9, True), ("SPREE", 1, False), ("CARD_TESTING", 3, False)]}
    >>> [r.code for r in reasons_of(kept)]
    ['CARD_TESTING', 'SPREE', 'AMOUNT']
    """
    ordered = sorted(kept.values(), key=lambda r: (r.beside, -r.alerts, r.code))
    return ordered[:_MOST_REASONS]
