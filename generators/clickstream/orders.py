"""Costs of an order besides its items (tax, shipping, another currency), and its returns."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final
from zlib import crc32

import msgspec

from millrace_apps.clickstream.contracts.events import OrderLine, Refund, RefundKind
from millrace_apps.generators.clickstream.catalogue import Item
from millrace_apps.generators.clickstream.profile import DOMAIN_NAME, ClickstreamProfile, Names
from millrace_apps.generators.clickstream.trail import Trail
from millrace_apps.generators.clickstream.visitors import Person
from millrace_apps.generators.engine.randomness import normal, substream
from millrace_apps.generators.engine.simulated import Simulated, Truth

#: What a unit of another currency is worth, EUR.
RATES: Final[Mapping[str, str]] = {"GBP": "1.15", "CHF": "1.06", "SEK": "0.088"}
#: Currency, and its share of the orders in another one than EUR, summed up.
_CURRENCIES: Final = (("GBP", 0.5), ("CHF", 0.8), ("SEK", 1.0))
#: Prices have tax in them: that of books and of all else, percent of the price without it.
_TAX, _BOOK_TAX = 19, 7
#: Shipping, EUR cents, of orders below a value.
_SHIPPING, _FREE_FROM = 490, 5_000
#: Of one item in so many nobody knows what it costs the shop.
_UNKNOWN_COST: Final = 50
_HOUR_MS: Final = 3_600_000
#: After which time orders are cancelled: median and spread of a lognormal law.
_CANCEL_MS, _CANCEL_SPREAD = _HOUR_MS // 3, 0.6
_REFUND_SPREAD: Final = 0.7
#: Share of the returns that are of all pieces; of the cancellations.
_FULL_REFUND_SHARE, _WHOLE_SHARE = 0.6, 0.6


@dataclass(frozen=True, slots=True)
class Order:
    """What is ordered and what it costs; sums are hundredths of its currency.

    Attributes:
        order_id: Identity.
        currency: ISO 4217; ``None``: EUR, of which events say nothing.
        lines: What is ordered.
        cents: Value of that.
        taxes: The tax in each line.
        shipping: What the buyer pays for shipping.
    """

    order_id: str
    currency: str | None
    lines: tuple[OrderLine, ...]
    cents: int
    taxes: tuple[int, ...]
    shipping: int

    @property
    def pieces(self) -> int:
        """How many pieces are ordered."""
        return sum(line.quantity for line in self.lines)

    def first(self, pieces: int) -> tuple[OrderLine, ...]:
        """Return the lines of the first so many pieces."""
        found = []
        for line in self.lines:
            mine = min(line.quantity, pieces)
            pieces -= mine
            if mine:
                found.append(msgspec.structs.replace(line, quantity=mine))
        return tuple(found)

    @property
    def rate(self) -> Fraction:
        """What a unit of the currency is worth, EUR."""
        return Fraction(RATES[self.currency]) if self.currency else Fraction(1)

    @property
    def eur_cents(self) -> int:
        """Value of what is ordered, EUR cents."""
        return half_up(self.cents * self.rate)

    def truth(self) -> Truth:
        """Return what is true about it."""
        return Truth(
            truth_id=f"truth-{self.order_id}",
            kind="order",
            entity=self.order_id,
            expected="booked",
            detail={
                "currency": self.currency or "EUR",
                "rate": RATES[self.currency] if self.currency else "1",
                "amount_cents": self.cents,
                "tax_cents": sum(self.taxes),
                "shipping_cents": self.shipping,
                "lines": [
                    [line.item_id, cents_of(line.price), line.quantity,
                     None if line.cost is None else cents_of(line.cost)]
                    for line in self.lines
                ],
            },
        )  # fmt: skip


def half_up(number: Fraction) -> int:
    """Return the whole number next to one that is not negative; halves go up.

    >>> half_up(Fraction(5, 2)), half_up(Fraction(7, 3))
    (3, 2)
    """
    return math.floor(number + Fraction(1, 2))


def cents_of(price: float) -> int:
    """Return a price as whole hundredths."""
    return round(price * 100)


def cost_share(item_id: str) -> Fraction | None:
    """Return what an item costs the shop, of its price without tax; ``None``: nobody knows.

    >>> cost_share("item-000007")
    Fraction(3, 4)
    """
    number = crc32(item_id.encode())
    return None if number % _UNKNOWN_COST == 0 else Fraction(45 + number % 31, 100)


def order_of(order_id: str, items: Sequence[tuple[Item, int]], currency: str | None) -> Order:
    """Return the order of what lies in a cart.

    Args:
        order_id: Its identity.
        items: Items, each with how many pieces.
        currency: In what it is paid; ``None``: EUR.
    """
    rate = Fraction(RATES[currency]) if currency else Fraction(1)
    lines, taxes = [], []
    for item, quantity in items:
        cents = half_up(item.cents / rate)
        share = cost_share(item.item_id)
        without = Fraction(cents * 100, 100 + _percent(item.category))
        cost = None if share is None else half_up(without * share) / 100
        lines.append(OrderLine(item.item_id, item.category, cents / 100, quantity, cost))
        taxes.append(tax_in(lines[-1]))
    value = sum(item.cents * quantity for item, quantity in items)
    shipping = half_up(_SHIPPING / rate) if value < _FREE_FROM else 0
    total = sum(cents_of(line.price) * line.quantity for line in lines)
    return Order(order_id, currency, tuple(lines), total, tuple(taxes), shipping)


def tax_in(line: OrderLine) -> int:
    """Return the tax in a line, hundredths.

    >>> tax_in(OrderLine("i", "toys", 5.95, 2)), tax_in(OrderLine("i", "books", 10.7, 1))
    (190, 70)
    """
    percent = _percent(line.category)
    return half_up(Fraction(cents_of(line.price) * line.quantity * percent, 100 + percent))


def _percent(category: str) -> int:
    return _BOOK_TAX if category == "books" else _TAX


class Back:
    """What will come back of an order, or not be sent; dropped if the buyer has been erased by then.

    Args:
        trail: The visit of the purchase.
        person: Who bought, if it is somebody with an account.
        order: The order.
        pieces: How many of its pieces; the first ones.
        kind: Whether they come back or are not sent.
    """

    __slots__ = ("_kind", "_life", "_order", "_person", "_pieces", "_user_id", "_visitor_id")

    def __init__(
        self, trail: Trail, person: Person | None, order: Order, pieces: int, kind: RefundKind
    ) -> None:
        self._visitor_id = trail.visitor_id
        self._user_id = trail.device.user_id
        self._person = person
        self._life = person.life if person else 0
        self._order = order
        self._pieces = pieces
        self._kind = kind

    def happen(self, names: Names, number: int, at_ms: int) -> list[Simulated]:
        """Return the event, or nothing."""
        if self._person is not None and self._person.life != self._life:
            return []
        order, cancelled = self._order, self._kind == "cancellation"
        whole = self._pieces == order.pieces
        lines = order.first(self._pieces)
        cents = sum(cents_of(line.price) * line.quantity for line in lines)
        shipping = order.shipping if whole else 0
        # Who cancels says nothing of tax; the desk of returns does.
        tax = None if cancelled else sum(map(tax_in, lines))
        named = () if whole and cancelled else lines
        refund_id = names.of(self._kind, number)
        event = Refund(
            refund_id=refund_id,
            order_id=order.order_id,
            visitor_id=self._visitor_id,
            user_id=self._user_id,
            lines=named,
            amount=cents / 100,
            event_time_ms=at_ms,
            kind=self._kind,
            tax=None if tax is None else tax / 100,
            shipping=shipping / 100,
            currency=order.currency,
        )
        detail: dict[str, Any] = {
            "amount_cents": cents,
            "tax_cents": tax,
            "shipping_cents": shipping,
            "currency": order.currency or "EUR",
            "whole": whole,
            "lines": [[line.item_id, line.quantity] for line in lines],
        }
        truth = Truth(
            truth_id=f"truth-{refund_id}",
            kind=self._kind,
            entity=order.order_id,
            expected="net_of_refund",
            detail=detail,
        )
        return [Simulated("refunds", self._visitor_id, event, at_ms, (truth,))]


class Settlement:
    """Decides in which currency orders are paid, and what comes back of them.

    Args:
        profile: Which shares do.
        names: Makes identifiers.
        later: Takes what is to happen at a later time.
    """

    def __init__(
        self,
        profile: ClickstreamProfile,
        names: Names,
        later: Callable[[int, Callable[[], list[Simulated]]], None],
    ) -> None:
        def draws(purpose: str) -> Callable[[], float]:
            return substream(profile.seed, DOMAIN_NAME, purpose).random

        self._profile, self._names, self._later = profile, names, later
        self._refund_after_ms = profile.refund_after_h * _HOUR_MS
        self._draw_refund = draws("refund")
        self._draw_cancel = draws("cancel")
        self._draw_currency = draws("currency")
        self._numbers = dict[str, int]()

    def currency(self) -> str | None:
        """Return in which currency the next order is paid; ``None``: EUR."""
        foreign, which = self._draw_currency(), self._draw_currency()
        if foreign >= self._profile.foreign:
            return None
        return next(name for name, bound in _CURRENCIES if which < bound)

    def follow(self, trail: Trail, person: Person | None, order: Order) -> None:
        """Have come back what does of an order that was just made."""
        chance, when, full, part = (self._draw_cancel() for _ in range(4))
        cancelled = chance < self._profile.cancellations
        if cancelled:
            pieces = order.pieces if full < _WHOLE_SHARE else 1 + int(part * (order.pieces - 1))
            delay = int(_CANCEL_MS * math.exp(_CANCEL_SPREAD * normal(when)))
            self._plan(trail, person, order, pieces, "cancellation", delay)
        chance, when, full, part = (self._draw_refund() for _ in range(4))
        # What is never sent cannot come back.
        if chance < self._profile.refunds and not cancelled:
            pieces = order.pieces if full < _FULL_REFUND_SHARE else 1 + int(part * (order.pieces - 1))
            delay = int(self._refund_after_ms * math.exp(_REFUND_SPREAD * normal(when)))
            self._plan(trail, person, order, pieces, "refund", delay)

    def _plan(
        self, trail: Trail, person: Person | None, order: Order, pieces: int, kind: RefundKind, delay: int
    ) -> None:
        back = Back(trail, person, order, pieces, kind)
        number, at_ms = self._numbers.get(kind, 0), trail.at_ms + delay
        self._numbers[kind] = number + 1
        self._later(at_ms, lambda: back.happen(self._names, number, at_ms))
