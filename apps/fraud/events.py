"""Contracts of the fraud app: what comes in, what goes out, what changes it while it runs.

The JSON Schema of the input, for producers in any language, is ``schemas/transaction.v1.schema.json``;
a test holds it equal to :class:`Transaction`.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

Kind = Literal["purchase", "refund", "top_up"]
Action = Literal["approve", "review", "block"]
ReasonCode = Literal[
    "AMOUNT_DEVIATION",
    "CARD_TESTING",
    "SPREE",
    "VELOCITY_1M",
    "VELOCITY_1H",
    "SPEND_1H",
    "SPEND_24H",
    "OVERDRAWN",
]

#: Amounts above this are refused; squares and sums of smaller ones fit the integers of the state.
MAX_AMOUNT: Final = 1_000_000_000
#: The end of the year 9999, UTC.
MAX_TIME_MS: Final = 253_402_300_799_999

Identifier = Annotated[str, Meta(min_length=1, max_length=128)]


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
        amount: Amount in currency units, at most two decimals.
        currency: ISO 4217 code.
        kind: A purchase takes from the card's balance, a refund or top-up adds to it.
        event_time_ms: When it happened, UTC milliseconds.
    """

    transaction_id: Identifier
    card_id: Identifier
    terminal_id: Identifier
    mcc: Annotated[str, Meta(pattern="^[0-9]{4}$")]
    country: Annotated[str, Meta(pattern="^[A-Z]{2}$")]
    amount: Annotated[float, Meta(gt=0, le=MAX_AMOUNT)]
    currency: Literal["EUR"]
    kind: Kind
    event_time_ms: Annotated[int, Meta(ge=0, le=MAX_TIME_MS)]

    def __post_init__(self) -> None:
        # The nearest double of a number with two decimals is what this division gives, exactly.
        amount = self.amount
        if round(amount * 100) / 100 != amount:
            raise ValueError(f"amount has at most two decimals, not {amount!r}")


class Reason(msgspec.Struct, frozen=True, gc=False):
    """Why a transaction is suspicious.

    Attributes:
        code: What was seen.
        value: The value of this transaction.
        baseline: The same for this card as it usually is.
        limit: The value from which on it counts, after this card's baseline and the thresholds.
        weight: How much it adds to the score, 0 to 1.
    """

    code: ReasonCode
    value: float
    baseline: float
    limit: float
    weight: float


class Decision(msgspec.Struct, frozen=True):
    """The main output: one per distinct transaction that came in time, with all that it rests on.

    Attributes:
        transaction_id: As in the transaction, like all fields down to ``event_time_ms``.
        purchases_before: Purchases of the card before this transaction.
        mean_before: Their mean amount.
        std_before: Their sample standard deviation (from two on).
        median_before: The median of those above 2.00, to within 6 %.
        per_hour_before: Purchases per hour since the first.
        zscore: How many deviations the amount of a purchase is above the mean.
        count_1m: Purchases in the minute up to and with this transaction; so for 1 h and 24 h.
        sum_1m: Their sum; so for 1 h and 24 h.
        small_count_1m: Of a small purchase (at most 2.00, and at most 30 % of the mean of the card's
            larger ones): how many such within the minute; else 0.
        large_count_5m: Of a large purchase (2.5 times the median or more): how many such within five
            minutes; else 0.
        balance: Balance of the card after this transaction.
        score: 0 (nothing suspicious) to 1.
        action: What to do.
        reasons: Why; empty where nothing is suspicious.
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


class Alert(msgspec.Struct, frozen=True):
    """A decision that somebody must look at.

    Attributes:
        card_id: The card.
        transaction_id: The transaction.
        event_time_ms: When it happened, UTC milliseconds.
        amount: Amount in currency units.
        currency: ISO 4217 code.
        score: 0 to 1.
        action: ``review`` or ``block``.
        reasons: Why, heaviest first.
        thresholds: All thresholds that were in force: name → value.
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


class SetThreshold(msgspec.Struct, frozen=True, tag_field="kind", tag="set_threshold"):
    """Control event: from the next batch on, use this threshold.

    Attributes:
        name: A field of :class:`apps.fraud.scoring.Thresholds`.
        value: Its value.
    """

    name: str
    value: Annotated[float, Meta(ge=0)]


class ResetThreshold(msgspec.Struct, frozen=True, tag_field="kind", tag="reset_threshold"):
    """Control event: go back to the threshold's default.

    Attributes:
        name: A field of :class:`apps.fraud.scoring.Thresholds`.
    """

    name: str


Control = SetThreshold | ResetThreshold
