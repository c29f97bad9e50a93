"""Contracts of the inputs: clicks, customers, consents, refunds, requests for erasure."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from millrace_apps.clickstream.processes.money import Currency

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
SubjectKind = Literal["browser", "account", "cart"]

PURPOSES: Final[tuple[Purpose, ...]] = ("analytics", "personalisation", "marketing")
#: The end of the year 9999, UTC.
MAX_TIME_MS: Final = 253_402_300_799_999

#: The most letters of a name or an identity.
MAX_NAME: Final = 128

Identifier = Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]
Time = Annotated[int, Meta(ge=0, le=MAX_TIME_MS)]
#: Before the year 1 no clock is, however wrong.
ClientTime = Annotated[int, Meta(ge=-62_135_596_800_000, le=MAX_TIME_MS)]
Money = Annotated[float, Meta(ge=0, le=1_000_000_000)]
#: Of one piece. Times the most of pieces, lines and orders it still fits the integers of the state.
Price = Annotated[float, Meta(ge=0, le=1_000_000)]
Pieces = Annotated[int, Meta(ge=1, le=10_000)]
Count = Annotated[int, Meta(ge=1, le=1_000_000_000)]
Stock = Annotated[int, Meta(ge=0, le=1_000_000_000)]
Lines = Meta(max_length=500)
#: The most of an identity that may be left out, of what is looked at, and of an address.
Name = Annotated[str, Meta(max_length=MAX_NAME)]
Text = Annotated[str, Meta(max_length=1_000)]
Address = Annotated[str, Meta(max_length=4_000)]


def to_cents(amount: float) -> int:
    """Return an amount of money as whole cents, hundredths of its currency.

    >>> to_cents(19.99)
    1999
    """
    return round(amount * 100)


class OrderLine(msgspec.Struct, frozen=True, gc=False):
    """One item of an order.

    Attributes:
        item_id: The item.
        category: Its category.
        price: Price of one piece, at most two decimals.
        quantity: How many pieces.
        cost: What one piece costs the shop, where that is to be known.
    """

    item_id: Identifier
    category: Name
    price: Price
    quantity: Pieces
    cost: Price | None = None


class Click(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Something that a visitor does in the shop; its key is the visitor.

    Attributes:
        event_id: Its identity; a repeat of the same event repeats it.
        event_type: What was done.
        event_time_ms: When it happened, by the shop's clock, UTC milliseconds.
        client_time_ms: The same moment by the clock of the visitor's device, which may be wrong.
        visitor_id: The cookie of a browser.
        client_session_id: The session, by the tracker in the browser.
        client_session_number: How many sessions this browser has had, this one included.
        device: Kind of device.
        user_agent: What the browser calls itself.
        page_type: Kind of page.
        page_url: Address of the page.
        user_id: The account, while somebody is logged in.
        referrer: Page outside the shop that the visitor came from.
        utm_source: Where a landing came from.
        utm_medium: How it came.
        utm_campaign: For which campaign.
        click_id: Identity of the click on an advertisement.
        item_id: The item that is viewed, added or removed.
        category: Category of the page or item.
        price: Price of one piece.
        quantity: How many pieces are added or removed.
        query: What is searched for.
        cart_id: The cart; a purchase ends it.
        step: Step of the checkout that is done.
        order_id: The order; without one every purchase is an order of its own.
        amount: Value of what is ordered, without shipping.
        lines: What is ordered.
        page_view_id: The page view that it belongs to, by the tracker; without one its address stands for it.
        client_sent_ms: When it was sent, by the clock of the visitor's device; without it, at once.
        currency: Currency of all sums of it; without one, the shop's own.
        tax: Tax on what is ordered.
        shipping: What shipping costs the buyer, on top of the value.
    """

    event_id: Identifier
    event_type: EventType
    event_time_ms: Time
    client_time_ms: ClientTime
    visitor_id: Identifier
    client_session_id: Identifier
    client_session_number: Count
    device: DeviceKind
    user_agent: Text
    page_type: PageType
    page_url: Address
    user_id: Name | None = None
    referrer: Address | None = None
    utm_source: Text | None = None
    utm_medium: Text | None = None
    utm_campaign: Text | None = None
    click_id: Text | None = None
    item_id: Name | None = None
    category: Name | None = None
    price: Price | None = None
    quantity: Pieces | None = None
    query: Text | None = None
    cart_id: Name | None = None
    step: CheckoutStep | None = None
    order_id: Name | None = None
    amount: Money | None = None
    lines: Annotated[list[OrderLine], Lines] = msgspec.field(default_factory=list)
    page_view_id: Name | None = None
    client_sent_ms: ClientTime | None = None
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


class Consent(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A visitor gives or withdraws consent for some purposes; the others stay as they were.

    Attributes:
        consent_id: Identity of the event.
        visitor_id: The cookie that it holds for; the key.
        user_id: The account, if somebody is logged in.
        purposes: What for.
        granted: Given, or withdrawn.
        event_time_ms: When, UTC milliseconds.
        told: The browser in which it was said, where the app itself tells another one of the same person.
    """

    consent_id: Identifier
    visitor_id: Identifier
    user_id: Name | None
    purposes: Annotated[tuple[Purpose, ...], Meta(max_length=16)]
    granted: bool
    event_time_ms: Time
    told: Name = ""


class Refund(msgspec.Struct, frozen=True, gc=False):
    """An order is cancelled, or lines of it come back and are paid for; nobody clicks: it has no session.

    Attributes:
        refund_id: Identity of the event.
        order_id: The order.
        visitor_id: The cookie that ordered; the key.
        user_id: The account that ordered, if any.
        lines: What came back, or will not be sent.
        amount: What is paid back of the order's value.
        event_time_ms: When, UTC milliseconds.
        kind: ``refund``: something came back. ``cancellation``: it is not sent at all; without lines that is
            the whole order, whatever the amount.
        tax: The tax in it; without it, the order's tax by the share of its value.
        shipping: What is paid back of shipping.
        currency: Currency of the sums; without one, the order's.
    """

    refund_id: Identifier
    order_id: Identifier
    visitor_id: Identifier
    user_id: Name | None
    lines: Annotated[tuple[OrderLine, ...], Lines]
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
        user_id: The account.
        event_time_ms: When, UTC milliseconds.
    """

    request_id: Identifier
    user_id: Identifier
    event_time_ms: Time


class Forget(msgspec.Struct, frozen=True, gc=False):
    """A browser's cookie, an account or a cart is forgotten: its state goes; the key is its name.

    The app sends one for each cookie and cart of an account that is erased, and ``millrace clickstream
    forget`` sends one for the account, and one for each of its cookies and carts.

    Attributes:
        request_id: The request that it follows from.
        subject: The name of the cookie, account or cart.
        event_time_ms: When it was asked for, UTC milliseconds.
        kind: What has that name. Requests of an earlier version say so by the first letters of the subject:
            ``p:u:`` and the account, ``c:`` and the cart, or the cookie as it is.
    """

    request_id: Identifier
    subject: Identifier
    event_time_ms: Time
    kind: SubjectKind | None = None


class ItemChange(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What is true of an item from a moment on, all of it; the key is the item.

    Attributes:
        change_id: Identity of the event.
        item_id: The item.
        event_time_ms: Since when, UTC milliseconds.
        category: Its category, where that is known.
        price: Price of a piece.
        currency: Currency of the price; without one, the shop's own.
        stock: Pieces that there are; without it, nobody counts them.
    """

    change_id: Identifier
    item_id: Identifier
    event_time_ms: Time
    category: Name | None = None
    price: Price | None = None
    currency: Currency | None = None
    stock: Stock | None = None


ShopEvent = Click | Consent | Customer | Refund | Erasure | Forget | ItemChange

#: Input (and setting of its topic) → its events.
INPUTS: Final[dict[str, Any]] = {
    "clicks": Click,
    "consents": Consent,
    "customers": Customer,
    "refunds": Refund,
    "erasures": Erasure,
    "forget": Forget,
    "items": ItemChange,
}
_IDENTITY: Final[dict[type, str]] = {
    Click: "event_id",
    Consent: "consent_id",
    Customer: "change_id",
    Refund: "refund_id",
    Erasure: "request_id",
    Forget: "request_id",
    ItemChange: "change_id",
}


def identity_of(event: ShopEvent) -> str:
    """Return the identity of an event among those of its kind.

    >>> identity_of(Erasure("r1", "u1", 0))
    'r1'
    """
    return getattr(event, _IDENTITY[type(event)])  # type: ignore[no-any-return]


#: What the identities of all events but clicks begin with where those of one key are told apart.
_APART: Final[dict[type, str]] = {
    Click: "click ",
    Consent: "consent ",
    Customer: "customer ",
    Refund: "refund ",
    Erasure: "erasure ",
    Forget: "forget ",
    ItemChange: "item ",
}
_LEDS: Final = tuple(_APART.values())


def told_apart(event: ShopEvent) -> str:
    """Return the identity of an event among those of all kinds that come under one key.

    A browser, an account and an item may have the same name, and a click and an answer about consent the same
    identity. A click's is as it is, unless it looks like another's.

    >>> told_apart(Erasure("r1", "u1", 0)), identity_of(Erasure("r1", "u1", 0))
    ('erasure r1', 'r1')
    """
    identity = identity_of(event)
    if isinstance(event, Click) and not identity.startswith(_LEDS):
        return identity
    return _APART[type(event)] + identity


def order_of(event: Click) -> str:
    """Return the order that a purchase tells of; without an identity each purchase is one of its own."""
    return event.order_id or event.event_id
