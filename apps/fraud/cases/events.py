"""Contracts of the case work: alerts and dispositions come in; cases, the queue and labels go out.

The contract of an alert here is a part of what the alerts topic carries: further fields of it are ignored.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from millrace_apps.fraud.processes.currencies import MAX_AMOUNT

Verdict = Literal["fraud", "genuine", "unclear"]
Status = Literal["open", "fraud", "genuine", "unclear", "expired"]
Place = Literal["queued", "waiting", "done", "gone"]
ActKind = Literal["claim", "release", "contacted", "verified", "unblock"]
LabelSource = Literal["feedback", "correction"]

Identifier = Annotated[str, Meta(min_length=1, max_length=128)]
#: ``kind:ID`` of what the cards of a ring have in common; empty: a card's own.
Ring = Annotated[str, Meta(max_length=160)]
TimeMs = Annotated[int, Meta(ge=0, le=253_402_300_799_999)]

#: The queue of all cases that no other queue takes.
ONE_QUEUE: Final = "cards"
#: Reason of what a list blocked: the payment was stopped, whatever else it was.
LISTED: Final = "BLOCK_LIST"


class AlertReason(msgspec.Struct, frozen=True, gc=False):
    """Why a transaction was alerted; see the alert's own contract."""

    code: str
    value: float | None = None
    baseline: float | None = None
    limit: float | None = None
    weight: float | None = None

    @property
    def beside(self) -> bool:
        """Whether it only stands beside the others: a comparison with what is usual, suspicious or not.

        >>> AlertReason("AMOUNT", 9.0, 8.0, 0.0, 0.0).beside, AlertReason("SPREE", 4.0, 1.0, 4.0, 0.8).beside
        (True, False)
        """
        return self.weight == 0 and self.limit == 0 and not self.code.startswith("RULE:")


class AlertSeen(msgspec.Struct, frozen=True):
    """An alert, key ``card_id``.

    Attributes:
        card_id: The card, as a token.
        transaction_id: The transaction.
        event_time_ms: When it happened, UTC milliseconds.
        amount: Amount in currency units.
        score: How suspicious it is by the built-in reasons, 0 to 1.
        action: ``review`` or ``block``.
        reasons: Why, heaviest first.
        terminal_id: Where, if the alert says so.
        customer_id: Holder of the card, if the alert says so.
        model_score: A model's probability of fraud, if there was a model.
        country: Country of the terminal, if the alert says so.
        billing_amount: Amount in the app's currency, if it is known.
        billing_currency: That currency; without it the alert is of before there were several.
        ring: What several cards have in common that are used together, as ``device:ID``; empty: none.
    """

    card_id: Identifier
    transaction_id: Identifier
    event_time_ms: TimeMs
    amount: Annotated[float, Meta(ge=0, le=MAX_AMOUNT)]
    score: Annotated[float, Meta(ge=0, le=1)]
    action: str
    reasons: list[AlertReason] = msgspec.field(default_factory=list)
    terminal_id: str | None = None
    customer_id: str | None = None
    model_score: Annotated[float, Meta(ge=0, le=1)] | None = None
    country: str | None = None
    billing_amount: Annotated[float, Meta(ge=0, le=MAX_AMOUNT)] | None = None
    billing_currency: str | None = None
    ring: Ring = ""

    @property
    def codes(self) -> set[str]:
        """What was suspicious, comparisons left out."""
        return {reason.code for reason in self.reasons if not reason.beside}

    @property
    def worth(self) -> float:
        """Its amount in the app's currency; 0: it is not known."""
        return (self.billing_amount or 0.0) if self.billing_currency else self.amount


class CardBlock(msgspec.Struct, frozen=True, gc=False):
    """Until when a card is blocked.

    Attributes:
        card_id: The card.
        until_ms: Until when, UTC milliseconds.
    """

    card_id: Identifier
    until_ms: TimeMs


class Disposition(msgspec.Struct, frozen=True):
    """What an analyst decided on a case, key ``ring``, else ``card_id``.

    Attributes:
        disposition_id: Its identity; a repeat of the same decision repeats it.
        case_id: The case.
        card_id: Its card; of a ring that of its first alert.
        verdict: The decision; ``unclear`` closes the case without a label.
        by: Who decided.
        at_ms: When, UTC milliseconds.
        note: What else is to be known.
        ring: The ring, if the case is one's.
        block_ring: Whether ``fraud`` blocks what the cards of the ring have in common, too.
        elsewhere: Cards that cases of another subject block, as far as was known then: taking this verdict
            back leaves them blocked.
    """

    disposition_id: Identifier
    case_id: Identifier
    card_id: Identifier
    verdict: Verdict
    by: Annotated[str, Meta(min_length=1, max_length=64)]
    at_ms: TimeMs
    note: Annotated[str, Meta(max_length=500)] = ""
    ring: Ring = ""
    block_ring: bool = False
    elsewhere: list[CardBlock] = []


class CaseAct(msgspec.Struct, frozen=True):
    """What somebody did about a case beside deciding on it, key ``ring``, else ``card_id``.

    Attributes:
        act_id: Its identity; a repeat of the same act repeats it.
        case_id: The case.
        card_id: Its card; of a ring that of its first alert.
        what: ``claim``: looks at it, so that nobody else need; ``release``: gives it back; ``contacted``: has
            spoken with the holder; ``verified``: the holder stands by the payments, let them pass for a
            while; ``unblock``: take the card off the list of blocked ones.
        by: Who.
        at_ms: When, UTC milliseconds.
        note: What else is to be known.
        ring: The ring, if the case is one's.
        about: The card of the ring that is meant; empty: all of them.
        elsewhere: As in a disposition.
    """

    act_id: Identifier
    case_id: Identifier
    card_id: Identifier
    what: ActKind
    by: Annotated[str, Meta(min_length=1, max_length=64)]
    at_ms: TimeMs
    note: Annotated[str, Meta(max_length=500)] = ""
    ring: Ring = ""
    about: Annotated[str, Meta(max_length=128)] = ""
    elsewhere: list[CardBlock] = []


class CaseEvent(msgspec.Struct, frozen=True, gc=False):
    """A line of a case's history.

    Attributes:
        what: An act, or the verdict of a disposition.
        by: Who.
        at_ms: When, UTC milliseconds.
        note: What was noted.
        about: The card of a ring that it was about; empty: all of the case.
    """

    what: str
    by: str
    at_ms: int
    note: str = ""
    about: str = ""


class CaseTransaction(msgspec.Struct, frozen=True, gc=False):
    """An alerted transaction of a case.

    Attributes:
        transaction_id: The transaction.
        event_time_ms: When it happened, UTC milliseconds.
        amount: Amount in currency units.
        score: How suspicious it was, 0 to 1.
        action: ``review`` or ``block``.
        terminal_id: Where; empty if not known.
        label_id: The label that the disposition gave it; empty before.
        card_id: The card; empty in cases of before there were rings.
    """

    transaction_id: str
    event_time_ms: int
    amount: float
    score: float
    action: str
    terminal_id: str = ""
    label_id: str = ""
    card_id: str = ""


class CaseReason(msgspec.Struct, frozen=True, gc=False):
    """A reason of a case's alerts.

    Attributes:
        code: What was seen.
        alerts: In how many of the alerts.
        value: The value of the last of them.
        baseline: The card's own, beside it.
        beside: Whether it is a comparison only, suspicious or not.
    """

    code: str
    alerts: int
    value: float | None
    baseline: float | None
    beside: bool = False


class CaseCard(msgspec.Struct, frozen=True, gc=False):
    """A card of a case.

    Attributes:
        card_id: The card.
        alerts: Number of its alerts in the case.
        amount: Sum of their amounts, currency units.
        verified_until_ms: The holder stands by its payments up to then, UTC milliseconds.
        blocked_until_ms: Until when it is on the list of blocked ones by this case.
    """

    card_id: str
    alerts: int
    amount: float
    verified_until_ms: int | None = None
    blocked_until_ms: int | None = None


class Case(msgspec.Struct, frozen=True):
    """A case as it is now; a row with a higher ``revision`` replaces one of the same ``case_id``.

    Attributes:
        case_id: Its identity: subject and first alert.
        card_id: The card; of a ring that of its first alert.
        customer_id: Its holder, if known; of a ring none.
        queue: The queue it is in.
        status: ``open``, a verdict, or ``expired``: nobody looked in time.
        opened_ms: Time of its first alert, UTC milliseconds.
        updated_ms: When this revision came about.
        alerts: Number of its alerts.
        amount: Sum of the alerted amounts, currency units.
        score: The largest suspicion of its alerts, 0 to 1.
        priority: What is expected to be saved by looking: the queue's order.
        reasons: What was seen, the most frequent first.
        transactions: The alerted transactions, in the order in which they came.
        verdict_by: Who decided.
        verdict_ms: When, UTC milliseconds.
        note: What the analyst noted.
        revision: Counts the changes, from 1.
        follows: The case of the subject that was found to be fraud before it, if this one follows it.
        claimed_by: Who looks at it now; ``None``: nobody.
        claimed_until_ms: Until when, UTC milliseconds.
        looked_by: Who was the first to look at it.
        looked_ms: When, UTC milliseconds.
        blocked_until_ms: Until when a card is on the list of blocked ones by this case.
        history: Who did what, the newest last.
        subject: What it is about: ``card:ID``, or ``device:ID``, ``terminal:ID`` of a ring.
        cards: Its cards, in the order in which they came.
        ring_blocked_until_ms: Until when what the ring has in common is on the list of blocked ones.
    """

    case_id: str
    card_id: str
    customer_id: str | None
    queue: str
    status: Status
    opened_ms: int
    updated_ms: int
    alerts: int
    amount: float
    score: float
    priority: float
    reasons: list[CaseReason]
    transactions: list[CaseTransaction]
    verdict_by: str | None
    verdict_ms: int | None
    note: str
    revision: int
    follows: str | None = None
    claimed_by: str | None = None
    claimed_until_ms: int | None = None
    looked_by: str | None = None
    looked_ms: int | None = None
    blocked_until_ms: int | None = None
    history: list[CaseEvent] = []
    subject: str = ""
    cards: list[CaseCard] = []
    ring_blocked_until_ms: int | None = None

    @property
    def ring(self) -> str:
        """The ring that it is about; empty: it is a card's."""
        return "" if self.subject.startswith("card:") else self.subject

    @property
    def blocks(self) -> dict[str, int]:
        """Its cards → until when it blocks them, UTC milliseconds; 0: it does not."""
        if not self.cards:  # of before there were rings
            return {self.card_id: self.blocked_until_ms or 0}
        return {card.card_id: card.blocked_until_ms or 0 for card in self.cards}

    @property
    def about(self) -> str:
        """What it is about, in words: the card, or ``ring of 12 cards via device d-7``."""
        if not self.ring:
            return self.card_id
        kind, _, name = self.ring.partition(":")
        return f"ring of {len(self.cards)} card{'s' * (len(self.cards) != 1)} via {kind} {name}"

    def claimed_by_other(self, by: str, at_ms: int) -> bool:
        """Say whether somebody else looks at it at a time."""
        return self.claimed_by not in (None, by) and at_ms < (self.claimed_until_ms or 0)


class CaseLabel(msgspec.Struct, frozen=True, gc=False):
    """What a disposition says of one transaction: feedback of an investigator, as a label, key ``card_id``.

    Attributes:
        label_id: Its identity.
        event_time_ms: When it became known, UTC milliseconds.
        transaction_id: The transaction.
        transaction_time_ms: When that happened.
        card_id: Its card.
        terminal_id: Its terminal; ``unknown`` where the alert did not say.
        is_fraud: Whether it is held to be a fraud from now on.
        source: ``feedback``, or ``correction`` of an earlier one.
        corrects: The label that a correction reverses.
    """

    label_id: str
    event_time_ms: int
    transaction_id: str
    transaction_time_ms: int
    card_id: str
    terminal_id: str
    is_fraud: bool
    source: LabelSource
    corrects: str | None = None


class QueueEntry(msgspec.Struct, frozen=True, gc=False):
    """Where a case stands; a row with a higher ``revision`` replaces one of the same ``case_id``.

    Attributes:
        case_id: The case.
        card_id: Its card.
        queue: The queue.
        day_ms: The day for which this holds, UTC milliseconds of its begin.
        place: ``queued``: among those that the day's capacity is for; ``waiting``: below them; ``done``:
            decided; ``gone``: expired, or put out because too many waited.
        priority: What is expected to be saved by looking; the queue is ordered by it, highest first.
        revision: Counts the changes of this entry, from 1.
    """

    case_id: str
    card_id: str
    queue: str
    day_ms: int
    place: Place
    priority: float
    revision: int


class QueueDay(msgspec.Struct, frozen=True, gc=False):
    """A day of the queue that is over.

    Attributes:
        queue: The queue.
        day_ms: The day, UTC milliseconds of its begin.
        capacity: How many cases could be looked at.
        opened: Cases opened on this day.
        decided: Cases decided on this day.
        confirmed: Of them, frauds.
        expired: Cases that nobody looked at in time.
        put_out: Cases that were put out because too many waited.
        left: Cases open at its end.
    """

    queue: str
    day_ms: int
    capacity: int
    opened: int
    decided: int
    confirmed: int
    expired: int
    put_out: int
    left: int


class ServiceDay(msgspec.Struct, frozen=True, gc=False):
    """What one person did for a queue on a day that is over.

    Attributes:
        queue: The queue.
        day_ms: The day, UTC milliseconds of its begin.
        person: Who.
        looked: Cases that this person was the first to look at.
        look_ms: How long they had been open by then, all together, ms.
        look_most_ms: The longest of them.
        decided: Cases that this person decided.
        confirmed: Of them, frauds.
        decide_ms: How long they had been open by then, all together, ms.
        decide_most_ms: The longest of them.
    """

    queue: str
    day_ms: int
    person: str
    looked: int
    look_ms: int
    look_most_ms: int
    decided: int
    confirmed: int
    decide_ms: int
    decide_most_ms: int
