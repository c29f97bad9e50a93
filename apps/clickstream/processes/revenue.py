"""The process of books: what was ordered on a day, in each currency, and what is left of it."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from millrace import Context, KeyedProcess, days, value_state
from millrace_apps.clickstream.contracts.messages import Booking


class RevenueRow(msgspec.Struct, frozen=True, gc=False):
    """The orders of a day in a currency; a row by ``day`` and ``currency``, the highest ``revision`` holds.

    Cancellations and refunds count at the order's day, whenever they come; what was paid back on this day, of
    whichever day's orders, stands in ``paid_back_cents``. Sums are hundredths of ``currency``, those that end
    in ``reported_cents`` of the shop's own, of the orders whose rate is known.

    Attributes:
        day: The day in the shop's time zone.
        currency: ISO 4217.
        orders: Orders.
        cancelled_orders: Those of which nothing is sent.
        pieces: Pieces that were ordered.
        amount_cents: Value of what was ordered.
        tax_cents: Tax on that.
        shipping_cents: What buyers paid for shipping, on top.
        cancelled_cents: What was cancelled of the value.
        refunded_cents: What was paid back of it besides.
        shipping_back_cents: What was paid back of shipping.
        net_cents: What is left of the value.
        margin_cents: Margin of the orders whose costs are known.
        margin_orders: How many these are.
        reported_orders: Orders whose currency's rate is known.
        amount_reported_cents: Their value in the shop's currency.
        net_reported_cents: What is left of it.
        margin_reported_cents: Their margin, where costs are known.
        paid_back_cents: What was paid back on this day.
        paid_back_reported_cents: The same in the shop's currency.
        revision: Grows with every row.
    """

    day: str
    currency: str
    orders: int
    cancelled_orders: int
    pieces: int
    amount_cents: int
    tax_cents: int
    shipping_cents: int
    cancelled_cents: int
    refunded_cents: int
    shipping_back_cents: int
    net_cents: int
    margin_cents: int
    margin_orders: int
    reported_orders: int
    amount_reported_cents: int
    net_reported_cents: int
    margin_reported_cents: int
    paid_back_cents: int
    paid_back_reported_cents: int
    revision: int


class DayFigures(msgspec.Struct, array_like=True, gc=False):
    """What is kept of a day: its figures by name, and how many rows have been written."""

    __stored_as__: ClassVar[str] = "Book"

    figures: dict[str, int] = msgspec.field(default_factory=dict)
    revision: int = 0


class Revenue(KeyedProcess[Booking, RevenueRow]):
    """Adds up what orders say of their day."""

    name = "Revenue"
    # What is written together with attributions and boards has their order; sums have none.
    order = "event_time"
    book = value_state(DayFigures, ttl=days(800))

    def process(self, event: Booking, ctx: Context) -> None:
        """Add what an order says, or take it off."""
        book = self.book.value or DayFigures()
        for name, number in event.figures.items():
            book.figures[name] = book.figures.get(name, 0) + number
        book.revision += 1
        self.book.value = book
        day, _, currency = event.book.partition(" ")
        figures = {name: book.figures.get(name, 0) for name in RevenueRow.__struct_fields__[2:-1]}
        ctx.emit(RevenueRow(day, currency, **figures, revision=book.revision), revision=book.revision)

    def on_late(self, event: Booking, ctx: Context) -> None:
        """Refunds come when they come."""
        self.process(event, ctx)
