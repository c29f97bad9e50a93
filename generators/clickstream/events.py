"""The streams of the web shop: clicks, customers, consents, refunds, requests for erasure, items."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from millrace_apps.generators.engine.simulated import StreamSpec

EventType = Literal[
    "page_view",
    "page_ping",
    "search",
    "add_to_cart",
    "remove_from_cart",
    "checkout",
    "purchase",
    "login",
    "logout",
]
PageType = Literal["home", "category", "search", "item", "cart", "checkout", "account"]
DeviceKind = Literal["desktop", "mobile", "tablet"]
CheckoutStep = Literal["address", "delivery", "payment"]
Gender = Literal["f", "m", "x"]
Purpose = Literal["analytics", "personalisation", "marketing"]
RefundKind = Literal["refund", "cancellation"]

#: The end of the year 9999, UTC.
_MAX_TIME_MS: Final = 253_402_300_799_999

Identifier = Annotated[str, Meta(min_length=1, max_length=128)]
Time = Annotated[int, Meta(ge=0, le=_MAX_TIME_MS)]
Money = Annotated[float, Meta(ge=0, le=1_000_000_000)]
Count = Annotated[int, Meta(ge=1)]
Stock = Annotated[int, Meta(ge=0)]
Currency = Annotated[str, Meta(pattern="^[A-Z]{3}$")]


class OrderLine(msgspec.Struct, frozen=True, gc=False):
    """One item of an order.

    Attributes:
        item_id: The item.
        category: Its category.
        price: Price of one piece, in the order's currency, at most two decimals.
        quantity: How many pieces.
        cost: What one piece costs the shop, likewise, where that is known.
    """

    item_id: Identifier
    category: str
    price: Money
    quantity: Count
    cost: Money | None = None


class Click(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Something that a visitor does in the shop; its key is the visitor.

    Attributes:
        event_id: Its identity; a repeat of the same event repeats it.
        event_type: What was done.
        event_time_ms: When it happened, by the shop's clock, UTC milliseconds.
        client_time_ms: The same moment by the clock of the visitor's device, which may be wrong.
        visitor_id: The cookie of a browser; a person has one per device.
        client_session_id: The session by the tracker in the browser: new after more than 30 minutes.
        client_session_number: How many sessions this browser has had, this one included.
        device: Kind of device.
        user_agent: What the browser calls itself.
        page_type: Kind of page.
        page_url: Address of the page.
        user_id: The account, while somebody is logged in.
        referrer: Page outside the shop that the visitor came from; on landing pages.
        utm_source: Where a landing came from, e.g. ``google``.
        utm_medium: How it came, e.g. ``cpc``.
        utm_campaign: For which campaign.
        click_id: Identity of the click on an advertisement.
        item_id: The item that is viewed, added or removed.
        category: Category of the page or item.
        price: Price of one piece, EUR, at most two decimals.
        quantity: How many pieces are added or removed.
        query: What is searched for.
        cart_id: The cart; a purchase ends it.
        step: Step of the checkout that is done.
        order_id: The order.
        amount: Value of what is ordered, tax included, in the order's currency, at most two decimals.
        lines: What is ordered.
        currency: The order's currency; without one, EUR.
        tax: The tax in the value.
        shipping: What the buyer pays for shipping, on top.
    """

    event_id: Identifier
    event_type: EventType
    event_time_ms: Time
    client_time_ms: int
    visitor_id: Identifier
    client_session_id: Identifier
    client_session_number: Count
    device: DeviceKind
    user_agent: str
    page_type: PageType
    page_url: str
    user_id: str | None = None
    referrer: str | None = None
    utm_source: str | None = None
    utm_medium: str | None = None
    utm_campaign: str | None = None
    click_id: str | None = None
    item_id: str | None = None
    category: str | None = None
    price: Money | None = None
    quantity: Count | None = None
    query: str | None = None
    cart_id: str | None = None
    step: CheckoutStep | None = None
    order_id: str | None = None
    amount: Money | None = None
    lines: tuple[OrderLine, ...] = ()
    currency: Currency | None = None
    tax: Money | None = None
    shipping: Money | None = None


class Customer(msgspec.Struct, frozen=True, gc=False):
    """Somebody signs up for an account; the key is the account.

    Attributes:
        change_id: Identity of the event.
        user_id: The account.
        gender: As stated.
        birth_year: Year of birth.
        country: ISO 3166-1 alpha-2.
        event_time_ms: When, UTC milliseconds.
    """

    change_id: Identifier
    user_id: Identifier
    gender: Gender
    birth_year: Annotated[int, Meta(ge=1900, le=2100)]
    country: Annotated[str, Meta(pattern="^[A-Z]{2}$")]
    event_time_ms: Time


class Consent(msgspec.Struct, frozen=True, gc=False):
    """A visitor gives or withdraws consent for some purposes; the others stay as they were.

    Who was never asked has given none. The key is the visitor.

    Attributes:
        consent_id: Identity of the event.
        visitor_id: The cookie that it holds for.
        user_id: The account, if somebody is logged in.
        purposes: What for.
        granted: Given, or withdrawn.
        event_time_ms: When, UTC milliseconds.
    """

    consent_id: Identifier
    visitor_id: Identifier
    user_id: str | None
    purposes: tuple[Purpose, ...]
    granted: bool
    event_time_ms: Time


class Refund(msgspec.Struct, frozen=True, gc=False):
    """Lines of an order come back and are paid for, or are not sent; nobody clicks: it has no session.

    Attributes:
        refund_id: Identity of the event.
        order_id: The order.
        visitor_id: The cookie that ordered; the key.
        user_id: The account that ordered, if any.
        lines: What came back or is not sent; none where the whole order is cancelled.
        amount: What is paid back of the value, in the order's currency, at most two decimals.
        event_time_ms: When, UTC milliseconds.
        kind: ``refund``: it came back; ``cancellation``: it is not sent.
        tax: The tax in it, where that is told.
        shipping: What is paid back of shipping.
        currency: Currency of the sums; without one, the order's.
    """

    refund_id: Identifier
    order_id: Identifier
    visitor_id: Identifier
    user_id: str | None
    lines: tuple[OrderLine, ...]
    amount: Money
    event_time_ms: Time
    kind: RefundKind = "refund"
    tax: Money | None = None
    shipping: Money = 0.0
    currency: Currency | None = None


class Erasure(msgspec.Struct, frozen=True, gc=False):
    """Somebody asks for the erasure of an account and all that is known with it; the key is the account.

    Attributes:
        request_id: Identity of the event.
        user_id: The account; it does nothing any more afterwards.
        event_time_ms: When, UTC milliseconds.
    """

    request_id: Identifier
    user_id: Identifier
    event_time_ms: Time


class ItemChange(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What is true of an item from a moment on, all of it; the key is the item.

    Attributes:
        change_id: Identity of the event.
        item_id: The item.
        event_time_ms: Since when, UTC milliseconds.
        category: Its category.
        price: Price of a piece, at most two decimals.
        currency: Currency of the price; without one, the shop's own.
        stock: Pieces that there are; without it, nobody counts them.
    """

    change_id: Identifier
    item_id: Identifier
    event_time_ms: Time
    category: str | None = None
    price: Money | None = None
    currency: Currency | None = None
    stock: Stock | None = None


STREAMS: Final = {
    "clicks": StreamSpec(
        topic="clickstream.clicks", event_type=Click, id_field="event_id", time_field="event_time_ms"
    ),
    "customers": StreamSpec(
        topic="clickstream.customers", event_type=Customer, id_field="change_id", time_field="event_time_ms"
    ),
    "consents": StreamSpec(
        topic="clickstream.consents", event_type=Consent, id_field="consent_id", time_field="event_time_ms"
    ),
    "refunds": StreamSpec(
        topic="clickstream.refunds", event_type=Refund, id_field="refund_id", time_field="event_time_ms"
    ),
    "erasures": StreamSpec(
        topic="clickstream.erasures", event_type=Erasure, id_field="request_id", time_field="event_time_ms"
    ),
    "items": StreamSpec(
        topic="clickstream.items", event_type=ItemChange, id_field="change_id", time_field="event_time_ms"
    ),
}
