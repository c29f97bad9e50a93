"""Messages between the app's processes: a type for each, by the key of whom it concerns.

The first process knows a browser by its cookie. What it learns goes to carts, to persons (``u:`` and the
account, or ``v:`` and a browser that nobody is known by), to some shards that count, and to orders.

What is told of one instant is handled in the order of the bytes, so of the tags: whose a browser is and what
is allowed there stands before what was done there, and that before an erasure.
"""

from __future__ import annotations

from functools import cache
from typing import Final, Literal
from zlib import crc32

import msgspec

from millrace_apps.clickstream.state.activity_counts import ActivityCounts, ActivityKind
from millrace_apps.clickstream.state.order_money import KeptLine

# -- to the shards -----------------------------------------------------------------------------------


class ItemCount(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="item"):
    """An item was viewed, put into a cart or sold, or a visitor is there; both where they come together.

    Attributes:
        shard: The shard that counts it.
        at_ms: When, UTC ms.
        cause: The click.
        item: The item; empty where only somebody is there.
        category: Its category.
        what: Viewed, put into a cart, or sold.
        quantity: How many times, or pieces.
        cents: What they cost.
        device: The visitor's kind of device, where it is newly there.
        there_from_ms: The first full minute at which it newly is among those of the last five minutes.
        there_to_ms: The last one; before the first where there is none.
        by: Of a search: a digest of the browser, to tell whether several have searched for it.
    """

    shard: str
    at_ms: int
    cause: str
    item: str = ""
    category: str = ""
    what: Literal["view", "sold", "add", "search"] = "view"
    quantity: int = 0
    cents: int = 0
    device: str = ""
    there_from_ms: int = 0
    there_to_ms: int = 0
    by: int = 0


class VisitCount(msgspec.Struct, frozen=True, gc=False, tag="visit"):
    """A visit is over; it counts in the hour in which it ended.

    Attributes:
        shard: The shard that counts it.
        at_ms: When it ended, UTC ms.
        source: Its campaign, or ``direct``.
        engaged: Whether it was engaged.
        converted: Whether it converted.
        orders: Its orders.
        views: Its page views.
        cents: What was bought.
    """

    shard: str
    at_ms: int
    source: str
    engaged: bool
    converted: bool
    orders: int
    views: int
    cents: int


# -- to the carts ------------------------------------------------------------------------------------


class CartChange(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="change"):
    """Something happened to a cart.

    Attributes:
        cart_id: The cart.
        at_ms: When, UTC ms.
        cause: The click.
        visitor: The browser.
        person: Whom it is known to be.
        stage: ``cart``, the step of the checkout that is done, or ``bought``.
        cents: How much the cart's value changed.
        marketing: Whether something may be offered there.
        order_id: The order, where it is bought.
        item: What was put in or taken out.
        pieces: How many pieces of it; less than 0: taken out.
        device: Kind of device.
        channel: The channel that the visit came by.
    """

    cart_id: str
    at_ms: int
    cause: str
    visitor: str
    person: str
    stage: str
    cents: int = 0
    marketing: bool = False
    order_id: str = ""
    item: str = ""
    pieces: int = 0
    device: str = ""
    channel: str = ""


class CartOwner(msgspec.Struct, frozen=True, gc=False, tag="owner"):
    """Somebody is known now by the browser in which a cart was filled.

    Attributes:
        cart_id: The cart.
        at_ms: Since when, UTC ms.
        visitor: The browser.
        person: Who.
    """

    cart_id: str
    at_ms: int
    visitor: str
    person: str


class EraseCart(msgspec.Struct, frozen=True, gc=False, tag="erase"):
    """Nothing may be known of a cart any more.

    Attributes:
        cart_id: The cart.
        at_ms: When it was asked for, UTC ms.
        request_id: The request.
    """

    cart_id: str
    at_ms: int
    request_id: str


# -- to the persons ----------------------------------------------------------------------------------


class Activity(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="does"):
    """Somebody did something in the shop, and it may be known of whom.

    Attributes:
        person: Who.
        kind: What; taking something out of the cart is a view.
        at_ms: When, UTC ms.
        cause: The click.
        visitor: The browser.
        subject: The item, or what was searched for.
        category: Category of the item.
        device: Kind of device.
        step: Step of the checkout that is done.
        cart_id: The cart.
        cents: Price of a piece.
        quantity: How many pieces.
        marketing: Whether something may be offered.
        channel: The channel that the visit came by.
    """

    person: str
    kind: ActivityKind
    at_ms: int
    cause: str
    visitor: str
    subject: str = ""
    category: str = ""
    device: str = ""
    step: str = ""
    cart_id: str = ""
    cents: int = 0
    quantity: int = 0
    marketing: bool = False
    channel: str = ""


class Purchase(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="does-purchase"):
    """Somebody bought something.

    Attributes:
        person: Who.
        at_ms: When, UTC ms.
        cause: The click.
        visitor: The browser.
        order_id: The order.
        cart_id: The cart.
        cents: Its value.
        quantity: How many pieces.
        first_ms: When whoever is there was first brought to this browser.
        first: By what; empty for nothing.
        last_ms: When that was for the last time.
        last: By what.
        marketing: Whether something may be offered.
        decided: What the browser tells of its touches is all that counts of them.
        device: Kind of device.
        channel: The channel that the visit came by.
    """

    person: str
    at_ms: int
    cause: str
    visitor: str
    order_id: str = ""
    cart_id: str = ""
    cents: int = 0
    quantity: int = 0
    first_ms: int = 0
    first: str = ""
    last_ms: int = 0
    last: str = ""
    marketing: bool = False
    decided: bool = False
    device: str = ""
    channel: str = ""


class Link(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="browser-linked"):
    """A browser is known to be somebody's, and by what it came.

    Attributes:
        person: Whose it is.
        at_ms: When that was known, UTC ms.
        visitor: The browser.
        first_ms: When its first touch was.
        first: Its first touch; empty for none.
        last_ms: When its last touch was.
        last: Its last touch.
        touches: When (UTC ms) and by what the account came in this browser, in order of time; in their place
            an earlier version told the first and the last one.
        revision: Of several the highest says what holds; 0: of an earlier version.
        spans: Of each touch since when it is known to be the account's, and until when (UTC ms; 0: for good);
            empty: each since it was.
        past: The browser is somebody else's by now.
    """

    person: str
    at_ms: int
    visitor: str
    first_ms: int = 0
    first: str = ""
    last_ms: int = 0
    last: str = ""
    touches: list[tuple[int, str]] = []
    revision: int = 0
    spans: list[tuple[int, int]] = []
    past: bool = False


class Absorb(msgspec.Struct, frozen=True, gc=False, tag="browser-absorbed"):
    """Somebody is there in a browser, and what was done in it while nobody was known by it is theirs.

    Attributes:
        person: Who.
        at_ms: Since when, UTC ms.
        visitor: The browser.
        part: What was done; None: nothing.
        carts: The carts that were filled.
    """

    person: str
    at_ms: int
    visitor: str
    part: ActivityCounts | None
    carts: list[str]


class Marked(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="browser-marked"):
    """Which steps of funnels somebody has done in a browser.

    Attributes:
        person: Who.
        at_ms: When that was known, UTC ms.
        visitor: The browser.
        marks: Step → when it was done, UTC ms: all that was done there after ``since_ms``.
        since_ms: Of what was done up to here nothing else is said.
        revision: Of several tellings of a browser the highest holds.
        forgotten: The browser is forgotten: its name is to be kept no more.
    """

    person: str
    at_ms: int
    visitor: str
    marks: dict[str, list[int]]
    since_ms: int
    revision: int
    forgotten: bool = False


class Absorbed(msgspec.Struct, frozen=True, gc=False, tag="browser-went"):
    """What was done in a browser while nobody was known by it is part of somebody else's profile now.

    Attributes:
        person: The browser.
        at_ms: When that was known, UTC ms.
        into: Whose profile it is part of.
    """

    person: str
    at_ms: int
    into: str


class Unlink(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="browser-unlinked"):
    """A browser is nobody's any more.

    Attributes:
        person: Whose it was.
        at_ms: When, UTC ms.
        visitor: The browser.
        forgotten: Nothing may be known of it any more, nor that it was this person's.
        passed: It is somebody else's, and tells itself until when its touches were this person's.
    """

    person: str
    at_ms: int
    visitor: str
    forgotten: bool = False
    passed: bool = False


class Details(msgspec.Struct, frozen=True, gc=False, tag="account"):
    """What somebody said of himself with an account.

    Attributes:
        person: Who.
        at_ms: When, UTC ms.
        gender: As stated.
        birth_year: As stated.
    """

    person: str
    at_ms: int
    gender: str
    birth_year: int


class MarketingConsent(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="consent"):
    """From a moment on something may be offered in a browser, or may not.

    Attributes:
        person: Whom the browser is known to be.
        at_ms: The moment, UTC ms.
        visitor: The browser.
        granted: Whether it may.
        revision: Of what is said of one moment that with the highest holds: an older answer that comes later
            changes what follows from the newer ones.
    """

    person: str
    at_ms: int
    visitor: str
    granted: bool
    revision: int = 0


class ConsentSaid(msgspec.Struct, frozen=True, gc=False, tag="consent-said"):
    """Somebody who is logged in has answered the question for consent: it holds in all browsers.

    Attributes:
        person: Who.
        at_ms: When, UTC ms.
        consent_id: The answer.
        visitor: The browser.
        bits: What for, as bits.
        granted: Given, or withdrawn.
    """

    person: str
    at_ms: int
    consent_id: str
    visitor: str
    bits: int
    granted: bool


class ErasePerson(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="erase"):
    """Nothing may be known of somebody any more.

    Attributes:
        person: Who.
        at_ms: When it was asked for, UTC ms.
        request_id: The request.
        withdrawn: It follows from an answer about consent: what was said of that is kept.
    """

    person: str
    at_ms: int
    request_id: str
    withdrawn: bool = False


# -- to the offers -----------------------------------------------------------------------------------


class CapsGo(msgspec.Struct, frozen=True, gc=False, tag="caps-go"):
    """What was offered in a browser while nobody was known by it is somebody's now.

    Attributes:
        person: The browser.
        at_ms: When that was known, UTC ms.
        into: Whose it is.
    """

    person: str
    at_ms: int
    into: str


class CapsBought(msgspec.Struct, frozen=True, gc=False, tag="caps-purchase"):
    """Somebody has bought something, in whichever browser, who logged in to this one before.

    It names nobody: that a login took along what was offered before it says its moment.

    Attributes:
        person: The browser.
        at_ms: When, UTC ms.
        cause: The click.
        subject: The order.
        cents: Its value.
        since_ms: When (UTC ms) who has bought it logged in to the browser while nobody was known by it.
    """

    person: str
    at_ms: int
    cause: str
    subject: str
    cents: int
    since_ms: list[int]


class CapsBack(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="caps-back"):
    """A browser is not a person's any more, nor what was offered in it before a login.

    Attributes:
        person: Whose it was.
        at_ms: When, UTC ms.
        visitor: The browser.
        forgotten: Nothing may be known of it any more.
    """

    person: str
    at_ms: int
    visitor: str
    forgotten: bool = False


class Shopping(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="shopping"):
    """What rules of offers look at: what somebody did, and what is known of the person at that moment.

    Attributes:
        person: Who.
        kind: What; ``abandoned`` is a cart that was left.
        at_ms: When, UTC ms.
        cause: The click.
        visitor: The browser.
        subject: Item, search, order or cart.
        category: Category of the item.
        device: Kind of device.
        stage: Step of the checkout that is done, or how far the cart that was left had come.
        cents: Price of a piece, or worth of order or cart.
        quantity: How many pieces.
        gender: As stated with the account.
        birth_year: As stated with the account.
        counts: Features of the person by name.
        since_ms: When something last happened to the cart that was left, UTC ms.
        channel: The channel that the visit came by.
    """

    person: str
    kind: Literal["view", "search", "add_to_cart", "checkout", "purchase", "abandoned"]
    at_ms: int
    cause: str = ""
    visitor: str = ""
    subject: str = ""
    category: str = ""
    device: str = ""
    stage: str = ""
    cents: int = 0
    quantity: int = 0
    gender: str = ""
    birth_year: int = 0
    counts: dict[str, int] = msgspec.field(default_factory=dict)
    since_ms: int = 1 << 62
    channel: str = ""


# -- to the recommender ------------------------------------------------------------------------------


class ItemFacts(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What the catalogue says of an item.

    Attributes:
        at_ms: Since when, UTC ms.
        cause: The change that says so.
        category: Its category.
        cents: Price of a piece in the shop's currency.
        stock: Pieces that there are.
    """

    at_ms: int
    cause: str
    category: str | None = None
    cents: int | None = None
    stock: int | None = None


class Looked(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """An item was looked at, or bought, in a browser whose visits may be kept; or it has changed.

    Attributes:
        shop: The shop.
        at_ms: When, UTC ms.
        cause: The click.
        visitor: The browser.
        person: Whom it is known to be.
        item: The item; empty: none was looked at.
        bought: What was bought.
        forget: Nothing may be known of the visit any more.
        told: What is true of the item from now on; there is no visitor then.
    """

    shop: str
    at_ms: int
    cause: str
    visitor: str
    person: str
    item: str = ""
    bought: list[str] = []
    forget: bool = False
    told: ItemFacts | None = None


# -- to the boards -----------------------------------------------------------------------------------


class ShardWindow(msgspec.Struct, frozen=True, gc=False):
    """What a shard has counted for a board in a window.

    Attributes:
        window: The board and the window's end.
        board: What is ranked.
        start_ms: The window's start, UTC ms.
        end_ms: Its end.
        shard: The shard.
        counts: Item, category, device or source → number.
    """

    window: str
    board: str
    start_ms: int
    end_ms: int
    shard: str
    counts: dict[str, int]


# -- to the orders -----------------------------------------------------------------------------------


class OrderPlaced(msgspec.Struct, frozen=True, gc=False):
    """An order, and by what the person came that made it.

    Attributes:
        order_id: The order.
        at_ms: When, UTC ms.
        cents: Its value.
        first: First touch; empty for none.
        last: Last touch before it.
    """

    order_id: str
    at_ms: int
    cents: int
    first: str
    last: str


class OrderRefunded(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Something of an order was cancelled, or paid back.

    Attributes:
        order_id: The order.
        refund_id: The refund; it counts once.
        cents: What is paid back of its value, hundredths of the currency.
        at_ms: When, UTC ms.
        cancelled: Whether it was never sent; without pieces that is all of the order.
        tax: The tax in it; -1: not told.
        shipping: What is paid back of shipping.
        currency: Currency of the sums; empty for the order's.
        pieces: Item and how many pieces of it.
    """

    order_id: str
    refund_id: str
    cents: int
    at_ms: int = 0
    cancelled: bool = False
    tax: int = -1
    shipping: int = 0
    currency: str = ""
    pieces: list[tuple[str, int]] = []


class OrderTold(msgspec.Struct, frozen=True, gc=False):
    """An event tells of an order; several may.

    Attributes:
        order_id: The order.
        at_ms: When it was made, UTC ms.
        cause: The event.
        currency: Currency of the sums; empty for the shop's.
        cents: Value of what is ordered, hundredths of it.
        tax: Tax on that; None: not told.
        shipping: What shipping costs the buyer, on top.
        lines: What is ordered.
    """

    order_id: str
    at_ms: int
    cause: str
    currency: str
    cents: int
    tax: int | None
    shipping: int
    lines: list[KeptLine]


class OrderValued(msgspec.Struct, frozen=True, gc=False):
    """What an order is worth, in the shop's currency.

    Attributes:
        order_id: The order.
        at_ms: When it was made, UTC ms.
        cents: Its value, cents; 0 where its currency's rate is not known.
        back_cents: What was taken back of it.
        revision: The highest holds.
    """

    order_id: str
    at_ms: int
    cents: int
    back_cents: int
    revision: int


class Booking(msgspec.Struct, frozen=True, gc=False):
    """What is added to the book of a day and currency, or taken off.

    Attributes:
        book: Day and currency, as ``2026-01-31 EUR``.
        at_ms: When that is known, UTC ms.
        figures: Figure → number; see :data:`~millrace_apps.clickstream.state.order_money.FIGURES`.
    """

    book: str
    at_ms: int
    figures: dict[str, int]


ToShard = ItemCount | VisitCount
ToCart = CartChange | CartOwner | EraseCart
ToBrowsers = Link | Unlink | Absorb | Absorbed | Marked
ToPerson = Activity | Purchase | ToBrowsers | Details | MarketingConsent | ConsentSaid | ErasePerson
ToOffers = Shopping | MarketingConsent | ConsentSaid | ErasePerson | CapsGo | CapsBought | CapsBack

#: There is one shop: all its visits are one key's.
SHOP: Final = "shop"
#: How many shards count, unless told otherwise; an item is always in the same one, so a ranking of all is one
#: of their rankings.
SHARDS: Final = 16


def shard_of(name: str, shards: int = SHARDS) -> str:
    """Return the shard that counts something.

    Args:
        name: What is counted.
        shards: How many there are.

    >>> shard_of("item-1") == shard_of("item-1"), shard_of("item-1", 1)
    (True, 's:00')
    """
    return _names(shards)[crc32(name.encode()) % shards]


def of_segment(name: str, segment: str) -> str:
    """Return the name of a board, or of a shard that counts for it, of one segment of the visits.

    >>> of_segment("views/1h", "device: mobile"), segment_of("s:03@device: mobile"), segment_of("s:03")
    ('views/1h@device: mobile', 'device: mobile', '')
    """
    return f"{name}@{segment}" if segment else name


def segment_of(name: str) -> str:
    """Return the segment of a board or shard; empty for that of all."""
    return name.partition("@")[2]


@cache
def _names(shards: int) -> tuple[str, ...]:
    return tuple(f"s:{number:02}" for number in range(shards))
