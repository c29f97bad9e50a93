"""The two streams of the payments domain: transactions, and labels that become known later."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Channel = Literal["terminal", "online"]
Kind = Literal["purchase", "refund", "top_up"]
LabelSource = Literal["feedback", "chargeback", "correction"]

Identifier = Annotated[str, Meta(min_length=1, max_length=128)]
TimeMs = Annotated[int, Meta(ge=0, le=253_402_300_799_999)]


class Transaction(msgspec.Struct, frozen=True, gc=False):
    """A transaction of a card, key ``card_id``.

    The fields of a purchase at a terminal and of one online differ: the first has a position, the second a
    device, an IP address and a delivery address. A top-up has none of these.

    Attributes:
        transaction_id: Its identity; a repeat of the same event repeats it.
        event_time_ms: When it happened, UTC milliseconds.
        customer_id: The holder of the card.
        account_id: The account that pays; cards of one household share it.
        card_id: The card, as a token.
        merchant_id: Who is paid.
        terminal_id: Where: a terminal, a web shop's checkout or, for a top-up, a bank's desk.
        mcc: The merchant's category code, ISO 18245.
        channel: At a terminal or online.
        country: Country of the terminal, ISO 3166-1 alpha-2.
        latitude: The terminal's position, degrees north; None online.
        longitude: The terminal's position, degrees east; None online.
        device_id: The customer's device; None at a terminal.
        ip: The device's address; None at a terminal.
        address_id: Where the goods go, as a token; None at a terminal.
        amount: Amount in currency units, at most two decimals, above 0.
        currency: ISO 4217 code.
        kind: A purchase takes from the account's balance, a refund or top-up adds to it.
    """

    transaction_id: Identifier
    event_time_ms: TimeMs
    customer_id: Identifier
    account_id: Identifier
    card_id: Identifier
    merchant_id: Identifier
    terminal_id: Identifier
    mcc: Annotated[str, Meta(pattern="^[0-9]{4}$")]
    channel: Channel
    country: Annotated[str, Meta(pattern="^[A-Z]{2}$")]
    latitude: Annotated[float, Meta(ge=-90, le=90)] | None
    longitude: Annotated[float, Meta(ge=-180, le=180)] | None
    device_id: Identifier | None
    ip: Annotated[str, Meta(min_length=7, max_length=45)] | None
    address_id: Identifier | None
    amount: Annotated[float, Meta(gt=0, le=1_000_000_000)]
    currency: Literal["EUR"]
    kind: Kind


class Label(msgspec.Struct, frozen=True, gc=False):
    """What became known about a transaction, and when; key ``card_id``.

    A transaction without a label is one that nobody complained about. Of several labels the newest holds.

    Attributes:
        label_id: Its identity; a repeat of the same event repeats it.
        event_time_ms: When it became known, UTC milliseconds; never before the transaction.
        transaction_id: The transaction.
        transaction_time_ms: When that happened, UTC milliseconds.
        card_id: Its card.
        terminal_id: Its terminal.
        is_fraud: Whether it is held to be a fraud from now on.
        source: An investigator's feedback (hours), a holder's chargeback (weeks), or the correction of
            either.
        corrects: The label that a correction reverses; None otherwise.
    """

    label_id: Identifier
    event_time_ms: TimeMs
    transaction_id: Identifier
    transaction_time_ms: TimeMs
    card_id: Identifier
    terminal_id: Identifier
    is_fraud: bool
    source: LabelSource
    corrects: Identifier | None
