"""The process of orders: one by its id, whatever events tell of it, with what is left after refunds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import ClassVar, Final
from zoneinfo import ZoneInfo

import msgspec

from millrace import Context, KeyedProcess, arrival, days, side_output, value_state
from millrace_apps.clickstream.contracts.messages import Booking, OrderRefunded, OrderTold, OrderValued
from millrace_apps.clickstream.processes.money import RATE_PARTS, Rates
from millrace_apps.clickstream.state.order_money import (
    MOST_REFUNDS,
    KeptOrder,
    KeptRefund,
    OrderMoney,
    booked,
    money_of,
    paid_back,
    reported,
    status_of,
)

#: An order is known for so long after something was last told of it: refunds come until then.
REMEMBERED: Final = days(400)
#: The same quarter of an hour is of the same day in all time zones, ms.
_QUARTER_MS: Final = 15 * 60_000


class OrderLineRow(msgspec.Struct, frozen=True, gc=False):
    """A line of an order.

    Attributes:
        item_id: The item.
        category: Its category.
        price_cents: Price of one piece, hundredths of the order's currency.
        cost_cents: What one piece costs the shop; ``None``: not known.
        quantity: How many pieces were ordered.
        back: How many of them were cancelled or came back.
    """

    item_id: str
    category: str
    price_cents: int
    cost_cents: int | None
    quantity: int
    back: int


class OrderRow(msgspec.Struct, frozen=True, gc=False):
    """An order; a row by ``order_id``, the highest ``revision`` holds. It names nobody.

    Sums are hundredths of ``currency``, those that end in ``reported_cents`` of the shop's own.

    Attributes:
        order_id: The order.
        at_ms: When it was made, UTC ms.
        day: Its day in the shop's time zone.
        currency: ISO 4217.
        status: ``placed``, ``cancelled``, ``refunded``, ``partly_cancelled`` or ``partly_refunded``.
        pieces: How many pieces were ordered.
        amount_cents: Value of what was ordered.
        tax_cents: Tax on that; ``None``: not told.
        shipping_cents: What the buyer paid for shipping, on top.
        cancelled_cents: What was cancelled of the value.
        refunded_cents: What was paid back of it besides.
        shipping_back_cents: What was paid back of shipping.
        net_cents: What is left of the value.
        cost_cents: What all pieces cost the shop; ``None``: of one it is not known.
        margin_cents: What is left, less tax where prices have it in them and the cost of what is left.
        rate: What one of ``currency`` was worth in the shop's own; ``None``: not known.
        amount_reported_cents: The value in the shop's currency; ``None``: no rate is known.
        net_reported_cents: What is left of it.
        margin_reported_cents: The margin.
        refunds: How many refunds and cancellations.
        unmatched: How many of them are left out: no rate of their currency is known.
        several: Whether events have told different things of it: the earliest holds.
        lines: What was ordered.
        revision: Grows with every row.
    """

    order_id: str
    at_ms: int
    day: str
    currency: str
    status: str
    pieces: int
    amount_cents: int
    tax_cents: int | None
    shipping_cents: int
    cancelled_cents: int
    refunded_cents: int
    shipping_back_cents: int
    net_cents: int
    cost_cents: int | None
    margin_cents: int | None
    rate: float | None
    amount_reported_cents: int | None
    net_reported_cents: int | None
    margin_reported_cents: int | None
    refunds: int
    unmatched: int
    several: bool
    lines: list[OrderLineRow]
    revision: int


def day_of(at_ms: int, zone: str) -> str:
    """Return the day of a moment in a time zone.

    >>> day_of(23 * 3_600_000, "UTC"), day_of(23 * 3_600_000, "Europe/Berlin")
    ('1970-01-01', '1970-01-02')
    """
    return _day(at_ms // _QUARTER_MS, zone)


@lru_cache(maxsize=4_096)
def _day(quarter: int, zone: str) -> str:
    return (
        datetime.fromtimestamp(quarter * _QUARTER_MS / 1_000, UTC)
        .astimezone(ZoneInfo(zone))
        .date()
        .isoformat()
    )


class Orders(KeyedProcess[OrderTold | OrderRefunded, OrderValued]):
    """Tells what an order is worth, to its row, its attribution and the book of its day.

    Args:
        rates: What currencies are worth in the shop's own.
        tax_included: Whether prices have tax in them.
        zone: Time zone of days.
    """

    name = "Purchases"
    # What is told is a function of the set of all tellings: the earliest of the order, each refund once.
    order = arrival(commutes=True)
    inputs: ClassVar = {"told": OrderTold, "refunded": OrderRefunded}
    kept = value_state(KeptOrder, ttl=REMEMBERED)
    order_rows = side_output(OrderRow)
    bookings = side_output(Booking)

    def __init__(self, rates: Rates | None = None, *, tax_included: bool = True, zone: str = "UTC") -> None:
        self._rates = rates or Rates()
        self._tax_included = tax_included
        self._zone = zone

    def process(self, event: OrderTold | OrderRefunded, ctx: Context) -> None:
        """Take down an order, or what was taken back of it; tell what changes by it."""
        order = self.kept.value or KeptOrder()
        before = self._books(order)
        news = self._told(event, order) if isinstance(event, OrderTold) else self._refunded(event, order)
        if not news:
            return
        if order.known:
            order.revision += 1
            money = money_of(order, tax_included=self._tax_included)
            ctx.output(self.order_rows, self._row(str(ctx.key), order, money), revision=order.revision)
            gross = reported(order.cents, order.rate) or 0
            net = reported(money.net, order.rate) or 0
            ctx.emit(
                OrderValued(str(ctx.key), order.at_ms, gross, gross - net, order.revision),
                revision=order.revision,
            )
            self._book(before, self._books(order), order, ctx)
        self.kept.value = order

    def on_late(self, event: OrderTold | OrderRefunded, ctx: Context) -> None:
        """Orders and refunds are never too late."""
        self.process(event, ctx)

    def _told(self, event: OrderTold, order: KeptOrder) -> bool:
        told = KeptOrder(
            True, event.at_ms, event.cause, event.currency or self._rates.shop, event.cents, event.tax,
            event.shipping, event.lines,
        )  # fmt: skip
        if not order.known:
            _take(order, told)
            order.rate = self._rates.rate(order.currency, order.at_ms) or 0
            return True
        differs = told.content() != order.content()
        news = differs and not order.several
        order.several = order.several or differs
        if _first(told) < _first(order):
            _take(order, told)
            order.rate = self._rates.rate(order.currency, order.at_ms) or 0
            return True
        return news

    def _refunded(self, event: OrderRefunded, order: KeptOrder) -> bool:
        """Take down what was taken back; of two of one identity the lesser holds, whichever came first."""
        pieces: Counter[str] = Counter()
        for item, number in event.pieces:
            pieces[item] += number
        refund = KeptRefund(
            event.at_ms, event.cancelled, event.cents, event.tax, event.shipping, event.currency,
            tuple(sorted(pieces.items())), self._rates.rate(event.currency, event.at_ms) or 0,
        )  # fmt: skip
        known = order.refunds.get(event.refund_id)
        if known is not None and known <= refund:
            return False
        order.refunds[event.refund_id] = refund
        if len(order.refunds) <= MOST_REFUNDS:
            return True
        # Those of the least identities are kept, whichever came first.
        beyond = max(order.refunds)
        del order.refunds[beyond]
        return beyond != event.refund_id

    def _books(self, order: KeptOrder) -> dict[str, Counter[str]]:
        """Return what an order adds to the books of days: day → figures."""
        books: dict[str, Counter[str]] = {}
        if order.known:
            money = money_of(order, tax_included=self._tax_included)
            books[f"{day_of(order.at_ms, self._zone)} {order.currency}"] = Counter(booked(order, money))
            for at_ms, figures in paid_back(order):
                day = f"{day_of(at_ms, self._zone)} {order.currency}"
                books.setdefault(day, Counter()).update(figures)
        return books

    def _book(
        self,
        before: Mapping[str, Counter[str]],
        after: Mapping[str, Counter[str]],
        order: KeptOrder,
        ctx: Context,
    ) -> None:
        """Tell the books what has changed."""
        for name in sorted({*before, *after}):
            change = Counter(after.get(name, {}))
            change.subtract(before.get(name, {}))
            figures = {figure: number for figure, number in sorted(change.items()) if number}
            if figures:
                ctx.output(self.bookings, Booking(name, ctx.event_time, figures), revision=order.revision)

    def _row(self, order_id: str, order: KeptOrder, money: OrderMoney) -> OrderRow:
        lines = [
            OrderLineRow(line.item_id, line.category, line.cents, line.cost, line.quantity, back)
            for line, back in zip(order.lines, money.pieces_back, strict=True)
        ]
        return OrderRow(
            order_id=order_id,
            at_ms=order.at_ms,
            day=day_of(order.at_ms, self._zone),
            currency=order.currency,
            status=status_of(order, money),
            pieces=sum(line.quantity for line in order.lines),
            amount_cents=order.cents,
            tax_cents=order.tax,
            shipping_cents=order.shipping,
            cancelled_cents=money.cancelled,
            refunded_cents=money.refunded,
            shipping_back_cents=money.shipping_back,
            net_cents=money.net,
            cost_cents=money.cost,
            margin_cents=money.margin,
            rate=order.rate / RATE_PARTS if order.rate else None,
            amount_reported_cents=reported(order.cents, order.rate),
            net_reported_cents=reported(money.net, order.rate),
            margin_reported_cents=reported(money.margin, order.rate),
            refunds=len(order.refunds),
            unmatched=money.unmatched,
            several=order.several,
            lines=lines,
            revision=order.revision,
        )


def _first(order: KeptOrder) -> tuple[int, str]:
    return order.at_ms, order.cause


def _take(order: KeptOrder, told: KeptOrder) -> None:
    for name in ("known", "at_ms", "cause", "currency", "cents", "tax", "shipping", "lines"):
        setattr(order, name, getattr(told, name))
