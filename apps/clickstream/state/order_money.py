"""Money of an order after cancellations and refunds: lines, tax, shipping, margin.

All of it is a function of the order and of the set of what was taken back, so that neither order nor repeats
make a difference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from millrace_apps.clickstream.processes.money import worth

#: So many refunds of an order are kept, those of the least identities: more come from a fault.
MOST_REFUNDS: Final = 500


class KeptLine(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A line of an order; sums are of one piece, hundredths of the order's currency.

    Attributes:
        item_id: The item.
        category: Its category.
        cents: Its price.
        quantity: How many pieces.
        cost: What it costs the shop; ``None``: not known.
    """

    item_id: str
    category: str
    cents: int
    quantity: int
    cost: int | None = None


class KeptRefund(msgspec.Struct, array_like=True, frozen=True, gc=False, order=True):
    """What was taken back of an order; sums are hundredths of its currency.

    Attributes:
        at_ms: When, UTC ms.
        cancelled: Whether it was never sent.
        cents: What is paid back of the value.
        tax: The tax in it; -1: not told.
        shipping: What is paid back of shipping.
        currency: The currency of the sums; empty for the order's.
        pieces: Item and how many pieces of it.
        rate: What its currency was worth then, in parts of
            :data:`~millrace_apps.clickstream.processes.money.RATE_PARTS`; 0: not known, or nobody asks.
    """

    at_ms: int
    cancelled: bool
    cents: int
    tax: int = -1
    shipping: int = 0
    currency: str = ""
    pieces: tuple[tuple[str, int], ...] = ()
    rate: int = 0

    @property
    def whole(self) -> bool:
        """Whether it is the cancellation of all that was ordered."""
        return self.cancelled and not self.pieces


class KeptOrder(msgspec.Struct, array_like=True, gc=False):
    """An order and what was taken back of it, which may be known before the order.

    Attributes:
        known: Whether the order itself has been told.
        at_ms: When it was made, UTC ms.
        cause: The event that tells of it; of several the first.
        currency: Its currency.
        cents: Value of what is ordered, hundredths of it.
        tax: Tax on that; ``None``: not told.
        shipping: What shipping costs the buyer, on top of it.
        lines: What is ordered.
        refunds: Identity → what was taken back.
        several: Whether events have told different things of it.
        rate: What the currency was worth when the order was first told, in parts of
            :data:`~millrace_apps.clickstream.processes.money.RATE_PARTS`; 0: not known.
        revision: How many rows have been written.
    """

    known: bool = False
    at_ms: int = 0
    cause: str = ""
    currency: str = ""
    cents: int = 0
    tax: int | None = None
    shipping: int = 0
    lines: list[KeptLine] = msgspec.field(default_factory=list)
    refunds: dict[str, KeptRefund] = msgspec.field(default_factory=dict)
    several: bool = False
    rate: int = 0
    revision: int = 0

    def content(self) -> tuple[object, ...]:
        """Return what events tell of it that must be the same in all of them."""
        return self.currency, self.cents, self.tax, self.shipping, self.lines


class OrderMoney(NamedTuple):
    """What an order is worth; sums are hundredths of its currency.

    Attributes:
        cancelled: What was cancelled of its value.
        refunded: What was paid back of it besides.
        net: What is left of it.
        shipping_back: What was paid back of shipping.
        tax_net: Tax on what is left; ``None``: not told.
        cost: What the pieces cost the shop that were ordered; ``None``: of one of them it is not known.
        margin: What is left less tax, where prices have it in them, and cost of the pieces that are left.
        pieces_back: Of each line, how many pieces were taken back.
        unmatched: How many refunds are in a currency of which no rate is known; they are left out.
        whole: Whether all of it is cancelled.
    """

    cancelled: int
    refunded: int
    net: int
    shipping_back: int
    tax_net: int | None
    cost: int | None
    margin: int | None
    pieces_back: list[int]
    unmatched: int
    whole: bool

    @property
    def back(self) -> int:
        """What was taken back of its value, in whichever way."""
        return self.cancelled + self.refunded


def money_of(order: KeptOrder, *, tax_included: bool = True) -> OrderMoney:
    """Return what is left of an order.

    Args:
        order: The order.
        tax_included: Whether prices have tax in them.

    Example:
        >>> order = KeptOrder(True, cents=1_190, tax=190, lines=[KeptLine("tea", "", 595, 2, 300)])
        >>> money_of(order).margin
        400
        >>> order.refunds["r"] = KeptRefund(5, False, 595, pieces=(("tea", 1),))
        >>> left = money_of(order)
        >>> left.net, left.tax_net, left.margin, left.pieces_back
        (595, 95, 200, [1])
    """
    taken, unmatched = _taken(order)
    whole = any(refund.whole for refund in taken)
    refunded = sum(refund.cents for refund in taken if not refund.cancelled)
    cancelled = sum(refund.cents for refund in taken if refund.cancelled and not refund.whole)
    shipping_back = sum(refund.shipping for refund in taken)
    if whole:
        cancelled = max(cancelled, order.cents - refunded)
        shipping_back = max(shipping_back, order.shipping)
    net = order.cents - cancelled - refunded
    pieces = _pieces_back(order.lines, taken, whole=whole)
    tax = _tax_left(order, taken, whole=whole)
    cost, cost_left = _costs(order.lines, pieces)
    margin = None
    if cost_left is not None:
        margin = net - cost_left - ((tax or 0) if tax_included else 0)
    return OrderMoney(
        cancelled=cancelled,
        refunded=refunded,
        net=net,
        shipping_back=shipping_back,
        tax_net=tax,
        cost=cost,
        margin=margin,
        pieces_back=pieces,
        unmatched=unmatched,
        whole=whole,
    )


def status_of(order: KeptOrder, money: OrderMoney) -> str:
    """Return how an order stands: ``placed``, ``cancelled``, ``refunded``, or one of these in part."""
    if money.whole or (money.cancelled >= order.cents > 0 and not money.refunded):
        return "cancelled"
    if money.back >= order.cents > 0:
        return "refunded"
    if money.refunded:
        return "partly_refunded"
    return "partly_cancelled" if money.cancelled else "placed"


def _taken(order: KeptOrder) -> tuple[list[KeptRefund], int]:
    """Return what was taken back in the order's own currency, and how much cannot be brought into it."""
    taken, unmatched = [], 0
    for refund in order.refunds.values():
        if refund.currency in ("", order.currency):
            taken.append(refund)
        elif refund.rate and order.rate:
            across = {
                name: _across(getattr(refund, name), refund.rate, order.rate)
                for name in ("cents", "tax", "shipping")
            }
            taken.append(msgspec.structs.replace(refund, **across))
        else:
            unmatched += 1
    return taken, unmatched


def _across(cents: int, theirs: int, own: int) -> int:
    return cents if cents < 0 else (2 * cents * theirs + own) // (2 * own)


def _pieces_back(lines: Sequence[KeptLine], taken: Sequence[KeptRefund], *, whole: bool) -> list[int]:
    if whole:
        return [line.quantity for line in lines]
    back: dict[str, int] = {}
    for refund in taken:
        for item, pieces in refund.pieces:
            back[item] = back.get(item, 0) + pieces
    found = []
    for line in lines:
        # Of an item on several lines, those of the first come back first.
        mine = min(back.get(line.item_id, 0), line.quantity)
        back[line.item_id] = back.get(line.item_id, 0) - mine
        found.append(mine)
    return found


def _tax_left(order: KeptOrder, taken: Sequence[KeptRefund], *, whole: bool) -> int | None:
    if order.tax is None or whole:
        return None if order.tax is None else 0
    told = sum(refund.tax for refund in taken if refund.tax >= 0)
    untold = sum(refund.cents for refund in taken if refund.tax < 0)
    share = (2 * order.tax * untold + order.cents) // (2 * order.cents) if order.cents else 0
    return order.tax - told - share


def _costs(lines: Sequence[KeptLine], back: Sequence[int]) -> tuple[int | None, int | None]:
    """Return what the pieces cost that were ordered, and those that are left."""
    if not lines or any(line.cost is None for line in lines):
        return None, None
    all_of_it = sum((line.cost or 0) * line.quantity for line in lines)
    left = sum((line.cost or 0) * (line.quantity - taken) for line, taken in zip(lines, back, strict=True))
    return all_of_it, left


# -- books -------------------------------------------------------------------------------------------

#: What a book of a day adds up, in the order of its figures.
FIGURES: Final = (
    "orders", "cancelled_orders", "pieces", "amount_cents", "tax_cents", "shipping_cents", "cancelled_cents",
    "refunded_cents", "shipping_back_cents", "net_cents", "margin_cents", "margin_orders",
    "reported_orders", "amount_reported_cents", "net_reported_cents", "margin_reported_cents",
    "paid_back_cents", "paid_back_reported_cents",
)  # fmt: skip
Figures = Mapping[str, int]


def booked(order: KeptOrder, money: OrderMoney) -> Figures:
    """Return what an order adds to the book of its day; what was paid back stands in :func:`paid_back`.

    Args:
        order: The order.
        money: What is left of it.
    """
    figures = {
        "orders": 1,
        "cancelled_orders": int(status_of(order, money) == "cancelled"),
        "pieces": sum(line.quantity for line in order.lines),
        "amount_cents": order.cents,
        "tax_cents": order.tax or 0,
        "shipping_cents": order.shipping,
        "cancelled_cents": money.cancelled,
        "refunded_cents": money.refunded,
        "shipping_back_cents": money.shipping_back,
        "net_cents": money.net,
    }
    if money.margin is not None:
        figures |= {"margin_orders": 1, "margin_cents": money.margin}
    if order.rate:
        figures |= {
            "reported_orders": 1,
            "amount_reported_cents": worth(order.cents, order.rate),
            "net_reported_cents": worth(money.net, order.rate),
        }
        if money.margin is not None:
            figures["margin_reported_cents"] = worth(money.margin, order.rate)
    return figures


def paid_back(order: KeptOrder) -> list[tuple[int, Figures]]:
    """Return what was paid back of an order, each with when (UTC ms): refunds alone, in its currency."""
    found: list[tuple[int, Figures]] = []
    for refund in _taken(order)[0]:
        if not refund.cancelled:
            figures = {"paid_back_cents": refund.cents}
            if order.rate:
                figures["paid_back_reported_cents"] = worth(refund.cents, order.rate)
            found.append((refund.at_ms, figures))
    return found


def reported(cents: int | None, rate: int) -> int | None:
    """Return a sum in the shop's currency; ``None`` where sum or rate is not known.

    >>> reported(200, RATE_PARTS // 2), reported(200, 0), reported(None, RATE_PARTS)
    (100, None, None)
    """
    return None if cents is None or not rate else worth(cents, rate)
