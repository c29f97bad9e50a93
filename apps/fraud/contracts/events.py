"""Contracts of the fraud app: what comes in, what goes out, what changes it while it runs.

The JSON Schema of the input, for producers in any language, is ``schemas/transaction.v2.schema.json``;
a test holds it equal to :class:`Transaction`.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from millrace.privacy.fields import CARD_NUMBER, IDENTITY
from millrace.rules import (
    ApproveRule,
    PublishRule,
    PutListEntry,
    RemoveListEntry,
    RollbackRule,
    SetRuleState,
)
from millrace_apps.fraud.contracts.control_events import (
    ApproveChange,
    Propose,
    RejectChange,
    ResetThreshold,
    SetThreshold,
    UndoChange,
)
from millrace_apps.fraud.contracts.feature_types import CardFeatures, EntityFeatures
from millrace_apps.fraud.processes.currencies import MAX_AMOUNT, check_decimals
from millrace_apps.fraud.state.labels import LabelRisk, TerminalLabels

Kind = Literal["purchase", "refund", "top_up"]
Channel = Literal["terminal", "online"]
Action = Literal["approve", "review", "block"]
LabelSource = Literal["feedback", "chargeback", "correction"]
AuthorisationStatus = Literal["approved", "declined", "captured", "reversed"]
#: The end of the year 9999, UTC.
MAX_TIME_MS: Final = 253_402_300_799_999

#: Units of one currency that one of another may be worth.
MAX_RATE: Final = 1_000_000

Identifier = Annotated[str, Meta(min_length=1, max_length=128)]
Currency = Annotated[str, Meta(pattern="^[A-Z]{3}$")]
#: What identifies an event, and what refers to it: never taken for a card number.
EventId = Annotated[str, Meta(min_length=1, max_length=128), IDENTITY]
#: A card: its number becomes a token where it is read, a token stays as it is.
CardId = Annotated[str, Meta(min_length=1, max_length=128), CARD_NUMBER]


def to_cents(amount: float) -> int:
    """Return an amount in currency units as whole hundredths.

    >>> to_cents(19.99)
    1999
    """
    return round(amount * 100)


class Transaction(msgspec.Struct, frozen=True, gc=False):
    """A card transaction, as JSON on the topic ``fraud.transactions`` with the card as its key.

    Attributes:
        transaction_id: Its identity; a repeat of the same event repeats it.
        card_id: The card.
        terminal_id: Where it happened.
        mcc: Merchant category code, ISO 18245.
        country: Country of the terminal, ISO 3166-1 alpha-2.
        amount: Amount in currency units, with no more decimals than the currency has.
        currency: ISO 4217 code.
        kind: A purchase takes from the card's balance, a refund or top-up adds to it.
        event_time_ms: When it happened, UTC milliseconds.
        customer_id: The holder of the card.
        account_id: The account that pays; cards of a household may share it.
        merchant_id: Who is paid.
        channel: At a terminal or online.
        latitude: Position of the terminal, degrees north; None online.
        longitude: Position of the terminal, degrees east; None online.
        device_id: The customer's device; None at a terminal.
        ip: The device's address; None at a terminal.
        address_id: Where the goods go; None at a terminal.
        utc_offset_min: How far the local time where it happened is ahead of UTC, minutes; None: not known,
            its hour and weekday are those of UTC then.
        home_country: Where the card's holder lives; None: not known, learned by the card's purchases then.
        billing_amount: What the holder is billed, in units of ``billing_currency``, where the issuer says so.
        billing_currency: ISO 4217 code; with an amount, or not at all.
        billing_rate: Units of it that one unit of ``currency`` was billed at, where the issuer says so.
    """

    transaction_id: EventId
    card_id: CardId
    terminal_id: Identifier
    mcc: Annotated[str, Meta(pattern="^[0-9]{4}$")]
    country: Annotated[str, Meta(pattern="^[A-Z]{2}$")]
    amount: Annotated[float, Meta(gt=0, le=MAX_AMOUNT)]
    currency: Currency
    kind: Kind
    event_time_ms: Annotated[int, Meta(ge=0, le=MAX_TIME_MS)]
    customer_id: Identifier | None = None
    account_id: Identifier | None = None
    merchant_id: Identifier | None = None
    channel: Channel | None = None
    latitude: Annotated[float, Meta(ge=-90, le=90)] | None = None
    longitude: Annotated[float, Meta(ge=-180, le=180)] | None = None
    device_id: Identifier | None = None
    ip: Annotated[str, Meta(min_length=2, max_length=45)] | None = None
    address_id: Identifier | None = None
    utc_offset_min: Annotated[int, Meta(ge=-720, le=840)] | None = None
    home_country: Annotated[str, Meta(pattern="^[A-Z]{2}$")] | None = None
    billing_amount: Annotated[float, Meta(gt=0, le=MAX_AMOUNT)] | None = None
    billing_currency: Currency | None = None
    billing_rate: Annotated[float, Meta(gt=0, le=MAX_RATE)] | None = None

    def __post_init__(self) -> None:
        check_decimals("amount", self.amount, self.currency)
        if self.billing_amount is not None:
            if self.billing_currency is None:
                raise ValueError("billing_amount needs billing_currency")
            check_decimals("billing_amount", self.billing_amount, self.billing_currency)


class Label(msgspec.Struct, frozen=True, gc=False):
    """What became known about a transaction, and when: JSON on ``fraud.labels`` with the card as its key.

    Attributes:
        label_id: Its identity; a repeat of the same event repeats it.
        event_time_ms: When it became known, UTC milliseconds; never before the transaction.
        transaction_id: The transaction.
        transaction_time_ms: When that happened, UTC milliseconds.
        card_id: Its card.
        terminal_id: Its terminal.
        is_fraud: Whether it is held to be a fraud from then on.
        source: An investigator's feedback (hours), a holder's chargeback (weeks), or the correction of
            either.
        corrects: The label that a correction reverses; None otherwise.
    """

    label_id: EventId
    event_time_ms: Annotated[int, Meta(ge=0, le=MAX_TIME_MS)]
    transaction_id: EventId
    transaction_time_ms: Annotated[int, Meta(ge=0, le=MAX_TIME_MS)]
    card_id: CardId
    terminal_id: Identifier
    is_fraud: bool
    source: LabelSource
    corrects: EventId | None = None

    def __post_init__(self) -> None:
        if self.event_time_ms < self.transaction_time_ms:
            raise ValueError("a label cannot become known before its transaction")


class Authorisation(msgspec.Struct, frozen=True, gc=False):
    """What became of a payment after it was decided on: JSON on ``fraud.authorisations``, by card.

    ::

        decision ──► approved ──► captured ──► reversed (a part, or all)
                └──► declined     └ never: the hold ends

    Attributes:
        authorisation_id: Its identity; a repeat of the same event repeats it.
        event_time_ms: When it happened, UTC milliseconds; never before the transaction.
        transaction_id: The transaction.
        transaction_time_ms: When that happened, UTC milliseconds.
        card_id: Its card.
        status: ``approved`` or ``declined`` is the response that the customer got; ``captured``: the merchant
            was paid; ``reversed``: money came back, before or after that.
        amount: The transaction's amount in the app's currency; as it came where that is not known.
        settled_amount: Of ``captured``: how much was paid in all; of ``reversed``: how much came back;
            None: all of it.
        terminal_id: Its terminal; None: that one does not learn that a payment was declined.
    """

    authorisation_id: EventId
    event_time_ms: Annotated[int, Meta(ge=0, le=MAX_TIME_MS)]
    transaction_id: EventId
    transaction_time_ms: Annotated[int, Meta(ge=0, le=MAX_TIME_MS)]
    card_id: CardId
    status: AuthorisationStatus
    amount: Annotated[float, Meta(gt=0, le=MAX_AMOUNT)]
    settled_amount: Annotated[float, Meta(ge=0, le=MAX_AMOUNT)] | None = None
    terminal_id: Identifier | None = None

    def __post_init__(self) -> None:
        if self.event_time_ms < self.transaction_time_ms:
            raise ValueError("an authorisation cannot change before its transaction")
        for name, amount in (("amount", self.amount), ("settled_amount", self.settled_amount)):
            if amount is not None and round(amount * 100) / 100 != amount:
                raise ValueError(f"{name} has at most two decimals, not {amount!r}")
        if self.settled_amount is not None and self.status not in ("captured", "reversed"):
            raise ValueError("only what is captured or reversed has a settled_amount")


class CardErasure(msgspec.Struct, frozen=True, gc=False):
    """All that is kept of a card is to be forgotten: JSON on ``fraud.erasures`` with the card as its key.

    Attributes:
        erasure_id: Its identity.
        event_time_ms: When it was asked for, UTC milliseconds.
        card_id: The card.
    """

    erasure_id: EventId
    event_time_ms: Annotated[int, Meta(ge=0, le=MAX_TIME_MS)]
    card_id: CardId


class Erased(msgspec.Struct, frozen=True, gc=False):
    """That the state of a card is gone.

    Attributes:
        erasure_id: By which request.
        event_time_ms: When that was asked for, UTC milliseconds.
    """

    erasure_id: str
    event_time_ms: int


class LateTransaction(msgspec.Struct, frozen=True, gc=False):
    """A transaction behind the watermark.

    Attributes:
        event: The transaction.
        lateness_ms: How far behind it is.
        watermark_ms: The watermark, UTC milliseconds.
    """

    event: Transaction
    lateness_ms: int
    watermark_ms: int


class Reason(msgspec.Struct, frozen=True, gc=False):
    """Why a transaction is suspicious.

    Attributes:
        code: What was seen; ``RULE:`` and a rule's reason where a rule holds.
        value: The value of this transaction.
        baseline: The same for this card (terminal, device) as it usually is.
        limit: The value from which on it counts, after the baseline and the thresholds.
        weight: How much it adds to the score, 0 to 1; 0: told beside the others, as a comparison.
    """

    code: str
    value: float
    baseline: float
    limit: float
    weight: float


class Decision(msgspec.Struct, frozen=True, gc=False):
    """The main output: one per distinct transaction that came in time, with all that it rests on.

    Attributes:
        transaction_id: As in the transaction, like all fields down to ``event_time_ms``.
        purchases_before: Purchases of the card before this transaction: of the last 90 to 120 days (three to
            four half-lives, ``features.half_life``), without those that were declined, paid back or found to
            be frauds, as far as that was known then. So for the four that follow.
        mean_before: Their mean amount; each counts half as much for every half-life since its day, one of
            four times the median or more as one of four times the median.
        std_before: Their standard deviation (from two on), in the same way.
        median_before: The median of those above 2.00, weighted as well, to within 6 %.
        per_hour_before: Purchases per hour since the first, of newer days the more.
        zscore: How many deviations the amount of a purchase is above the mean.
        count_1m: Purchases in the minute up to and with this transaction; so for 1 h and 24 h.
        sum_1m: Their sum; so for 1 h and 24 h.
        small_count_1m: Of a small purchase (at most 2.00, and at most 30 % of the median of the card's
            larger ones): how many such within the minute; else 0.
        large_count_5m: Of a large purchase (2.5 times the median or more): how many such within five
            minutes; else 0.
        balance: Balance of the card after this transaction: what was paid, or is held.
        score: 0 (nothing suspicious) to 1.
        action: What to do.
        reasons: Why, heaviest first; empty where nothing is suspicious. Where somebody must look there are at
            least three: those of weight 0 compare the transaction with what is usual for the card.
        customer_id: As in the transaction, like all fields down to ``address_id``.
        card: What else is known of the card.
        account: What is known of the account; None where that stage is left out or there is none. So for the
            terminal, the device and the IP ``address``.
        windows: What the window functions of the rules that hold gave, by their text.
        rules: Rules in force that hold, as ``id@version``.
        shadow_rules: Rules in shadow that would.
        rules_version: Which set of rules was asked; empty: there was none.
        rule_action: What the rules alone would do.
        model_score: The model's probability of fraud; None without a model.
        model_version: Which model.
        features_version: Which definition of the features.
        challenger_score: What the model in shadow would say; it has no effect.
        challenger_version: Which model that is.
        card_labels: What was known of the card's transactions; None: nothing.
        terminal_labels: What was known of the terminal's; None where that stage is left out.
        control_group: Whether it would have been blocked, and is let through to learn what it is.
        excluded_1m: Purchases of the minute before that do not count in what is usual for the card: they were
            declined, paid back or found to be frauds; so for 1 h and 24 h.
        utc_offset_min: As in the transaction, like ``home_country``.
        customer: What is known of the customer; None where that stage is left out or there is none.
        merchant: The same of the merchant.
        billing_amount: Amount in the app's currency, by which all features go; None: not known, and nothing
            that hangs on it was looked at.
        billing_currency: The app's currency; empty in decisions of before there were several.
        billing_rate: Units of it per unit of ``currency``; None: not told, or not known.
    """

    transaction_id: str
    card_id: str
    terminal_id: str
    mcc: str
    country: str
    amount: float
    currency: str
    kind: Kind
    event_time_ms: int
    purchases_before: int
    mean_before: float | None
    std_before: float | None
    median_before: float | None
    per_hour_before: float | None
    zscore: float | None
    count_1m: int
    sum_1m: float
    count_1h: int
    sum_1h: float
    count_24h: int
    sum_24h: float
    small_count_1m: int
    large_count_5m: int
    balance: float
    score: float
    action: Action
    reasons: list[Reason]
    customer_id: str | None
    account_id: str | None
    merchant_id: str | None
    channel: Channel | None
    latitude: float | None
    longitude: float | None
    device_id: str | None
    ip: str | None
    address_id: str | None
    card: CardFeatures
    account: EntityFeatures | None
    terminal: EntityFeatures | None
    device: EntityFeatures | None
    address: EntityFeatures | None
    windows: dict[str, float]
    rules: list[str]
    shadow_rules: list[str]
    rules_version: str
    rule_action: Action
    model_score: float | None
    model_version: str | None
    features_version: str
    challenger_score: float | None
    challenger_version: str | None
    card_labels: LabelRisk | None = None
    terminal_labels: TerminalLabels | None = None
    control_group: bool = False
    excluded_1m: int = 0
    excluded_1h: int = 0
    excluded_24h: int = 0
    utc_offset_min: int | None = None
    home_country: str | None = None
    customer: EntityFeatures | None = None
    merchant: EntityFeatures | None = None
    billing_amount: float | None = None
    billing_currency: str = ""
    billing_rate: float | None = None


class Alert(msgspec.Struct, frozen=True, gc=False):
    """A decision that somebody must look at.

    Attributes:
        card_id: The card.
        transaction_id: The transaction.
        event_time_ms: When it happened, UTC milliseconds.
        amount: Amount in currency units.
        currency: ISO 4217 code.
        score: 0 to 1.
        action: ``review`` or ``block``.
        reasons: Why, heaviest first; at least three.
        thresholds: All thresholds that were in force: name → value.
        rules: Rules in force that hold, as ``id@version``.
        rules_version: Which set of rules was asked.
        model_score: The model's probability of fraud; None without a model.
        model_version: Which model.
        features_version: Which definition of the features.
        terminal_id: As in the transaction, like the two that follow.
        device_id: None at a terminal.
        ip: None at a terminal.
        country: As in the transaction.
        billing_amount: Amount in the app's currency; None: not known.
        billing_currency: The app's currency; empty in alerts of before there were several.
        ring: What several cards have in common where a reason says that they are used together, as
            ``device:ID`` or ``terminal:ID``; else empty.
    """

    card_id: str
    transaction_id: str
    event_time_ms: int
    amount: float
    currency: str
    score: float
    action: Action
    reasons: list[Reason]
    thresholds: dict[str, float]
    rules: list[str]
    rules_version: str
    model_score: float | None
    model_version: str | None
    features_version: str
    terminal_id: str
    device_id: str | None
    ip: str | None
    country: str = ""
    billing_amount: float | None = None
    billing_currency: str = ""
    ring: str = ""


class Correction(msgspec.Struct, frozen=True):
    """What a transaction that came late would have been; no decision that was issued is changed.

    Attributes:
        transaction_id: The late transaction.
        card_id: Its card.
        event_time_ms: When it happened, UTC milliseconds.
        lateness_ms: How far it was behind the watermark.
        amount: Amount in units of its currency.
        kind: Purchase, refund or top-up.
        would_be: What the card's own history would have said at its time.
        score: The score of that.
        reasons: Its reasons.
        decided_after: Decisions of this card that were issued for a later time of the 24 hours after it, and
            did not know it.
        until_ms: The last of them.
    """

    transaction_id: str
    card_id: str
    event_time_ms: int
    lateness_ms: int
    amount: float
    kind: Kind
    would_be: Action
    score: float
    reasons: list[Reason]
    decided_after: int
    until_ms: int


class SetRate(msgspec.Struct, frozen=True, tag_field="kind", tag="set_rate"):
    """Control event: what one unit of a currency is worth, for payments from a time on.

    Attributes:
        currency: ISO 4217 code.
        rate: Units of the app's currency.
        from_ms: Event time from which on, UTC milliseconds; another of the same time replaces it.
        by: Who says so.
        at_ms: When, UTC milliseconds.
    """

    currency: Currency
    rate: Annotated[float, Meta(gt=0, le=MAX_RATE)]
    from_ms: Annotated[int, Meta(ge=0, le=MAX_TIME_MS)]
    by: Annotated[str, Meta(max_length=128)] = ""
    at_ms: Annotated[int, Meta(ge=0, le=MAX_TIME_MS)] = 0


Control = (
    SetThreshold
    | ResetThreshold
    | SetRate
    | Propose
    | ApproveChange
    | RejectChange
    | UndoChange
    | PublishRule
    | SetRuleState
    | ApproveRule
    | RollbackRule
    | PutListEntry
    | RemoveListEntry
)
