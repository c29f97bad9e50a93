"""Orders, what is left of them, and the books of their days, against sums made of everything at once."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable
from datetime import date, datetime
from decimal import ROUND_HALF_UP, Decimal
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest

from millrace.testing import TestDriver
from millrace_apps.clickstream.contracts.messages import Booking, OrderRefunded, OrderTold, OrderValued
from millrace_apps.clickstream.processes.money import RateEntry, Rates, rates_of
from millrace_apps.clickstream.processes.orders import OrderRow, Orders
from millrace_apps.clickstream.processes.revenue import Revenue, RevenueRow
from millrace_apps.clickstream.state.order_money import FIGURES, MOST_REFUNDS, KeptLine
from tests.unit.apps.clickstream.app_cases import DAY, HOUR, START

ZONE = "Europe/Berlin"
#: Pounds change their worth with the second day; yen have none.
RATES: Rates = rates_of(
    "EUR",
    [
        RateEntry("GBP", date(2025, 1, 1), 1.15),
        RateEntry("GBP", date(2026, 1, 2), 1.25),
        RateEntry("CHF", date(2025, 1, 1), 1.0637),
    ],
)
Told = OrderTold | OrderRefunded


def line(item: str, cents: int, quantity: int = 1, cost: int | None = None) -> KeptLine:
    return KeptLine(item, "toys", cents, quantity, cost)


def told(
    order: str = "o1", at: int = 0, cents: int = 1_190, currency: str = "", tax: int | None = 190,
    shipping: int = 490, lines: Iterable[KeptLine] = (), cause: str = "e1",
) -> OrderTold:  # fmt: skip
    return OrderTold(order, START + at, cause, currency, cents, tax, shipping, list(lines))


def refunded(
    order: str = "o1", refund: str = "r1", cents: int = 0, at: int = HOUR, **other: Any
) -> OrderRefunded:
    return OrderRefunded(order, refund, cents, START + at, **other)


def driver(*, bound_ms: int = 0, tax_included: bool = True) -> TestDriver:
    return TestDriver(Orders(RATES, tax_included=tax_included, zone=ZONE), out_of_orderness_ms=bound_ms)


def sent(events: Iterable[Told]) -> list[tuple[str, int, Told, str]]:
    return [(e.order_id, e.at_ms, e, "told" if isinstance(e, OrderTold) else "refunded") for e in events]


def last(target: TestDriver) -> OrderRow:
    return max(target.values("order_rows"), key=lambda row: row.revision)


def after(*events: Told, tax_included: bool = True) -> OrderRow:
    target = driver(tax_included=tax_included)
    target.send_batch(sent(events))
    return last(target)


def test_an_order_has_its_lines_tax_shipping_and_margin() -> None:
    row = after(told(lines=[line("a", 595, 2, 300)]))
    assert (row.status, row.currency, row.pieces, row.day) == ("placed", "EUR", 2, "2026-01-01")
    assert (row.amount_cents, row.tax_cents, row.shipping_cents) == (1_190, 190, 490)
    assert (row.net_cents, row.cost_cents, row.margin_cents) == (1_190, 600, 400)
    assert [(one.item_id, one.price_cents, one.quantity, one.back) for one in row.lines] == [("a", 595, 2, 0)]


def test_where_prices_have_no_tax_in_them_margin_is_not_less_by_it() -> None:
    assert after(told(lines=[line("a", 595, 2, 300)]), tax_included=False).margin_cents == 590


def test_a_margin_is_told_where_the_cost_of_every_line_is_known() -> None:
    row = after(told(lines=[line("a", 595, cost=300), line("b", 595)]))
    assert (row.cost_cents, row.margin_cents, row.margin_reported_cents) == (None, None, None)


def test_an_order_is_worth_what_its_currency_was_when_it_was_made() -> None:
    first, second = after(told(currency="GBP")), after(told(currency="GBP", at=DAY))
    assert (first.rate, first.amount_reported_cents) == (1.15, 1_369)  # 1,368.5: half a cent goes up
    assert (second.rate, second.amount_reported_cents) == (1.25, 1_488)


def test_an_order_whose_rate_nobody_knows_is_told_in_its_own_currency_alone() -> None:
    row = after(told(currency="JPY", lines=[line("a", 595, 2, 300)]))
    assert (row.currency, row.amount_cents, row.margin_cents) == ("JPY", 1_190, 400)
    assert (row.rate, row.amount_reported_cents, row.net_reported_cents) == (None, None, None)


def test_a_cancellation_without_lines_is_of_all_that_is_left_and_of_shipping() -> None:
    """One piece had come back before; ``amount`` says nothing."""
    row = after(
        told(lines=[line("a", 595, 2, 300)]),
        refunded(cents=595, pieces=[("a", 1)]),
        refunded(refund="r2", cancelled=True),
    )
    assert (row.status, row.refunded_cents, row.cancelled_cents, row.net_cents) == ("cancelled", 595, 595, 0)
    assert (row.shipping_back_cents, row.margin_cents, row.lines[0].back) == (490, 0, 2)


def test_a_cancellation_with_lines_is_of_these() -> None:
    row = after(told(lines=[line("a", 595, 2, 300)]), refunded(cents=595, cancelled=True, pieces=[("a", 1)]))
    assert (row.status, row.cancelled_cents, row.refunded_cents, row.net_cents) == (
        "partly_cancelled", 595, 0, 595,
    )  # fmt: skip
    assert (row.margin_cents, row.lines[0].back) == (200, 1)


def test_tax_that_a_refund_does_not_tell_is_the_share_of_its_value() -> None:
    of_all = told(lines=[line("a", 595, 2, 300)])
    assert after(of_all, refunded(cents=595, pieces=[("a", 1)])).margin_cents == 595 - 95 - 300
    assert after(of_all, refunded(cents=595, tax=30, pieces=[("a", 1)])).margin_cents == 595 - 160 - 300


def test_a_refund_in_another_currency_is_brought_into_the_orders() -> None:
    row = after(told(cents=10_000), refunded(cents=1_000, currency="GBP"))
    assert (row.refunded_cents, row.net_cents, row.unmatched) == (1_150, 8_850, 0)


def test_a_refund_in_a_currency_without_a_rate_is_counted_and_left_out() -> None:
    row = after(told(cents=10_000), refunded(cents=1_000, currency="JPY"))
    assert (row.refunds, row.unmatched, row.refunded_cents, row.status) == (1, 1, 0, "placed")


def test_an_order_is_told_with_what_came_before_it() -> None:
    target = driver()
    target.send_batch(sent([refunded(cents=1_190)]))
    assert not target.values("order_rows")
    assert not target.values("bookings")
    target.send_batch(sent([told()]))
    assert (last(target).status, last(target).net_cents) == ("refunded", 0)


def test_what_is_told_again_says_nothing_and_what_differs_is_marked() -> None:
    target = driver()
    target.send_batch(sent([told(), told(), told(cause="e2", at=5)]))
    assert [row.several for row in target.values("order_rows")] == [False]
    target.send_batch(sent([told(cause="e3", at=9, cents=5)]))
    assert [(row.several, row.amount_cents) for row in target.values("order_rows")] == [
        (False, 1_190), (True, 1_190),
    ]  # fmt: skip
    assert len(target.values("bookings")) == 1


def test_so_many_refunds_are_kept_whichever_came_first() -> None:
    several = [refunded(refund=f"r{n:04}", cents=1) for n in range(MOST_REFUNDS + 40)]
    for seed in range(3):
        random.Random(seed).shuffle(several)
        target = driver()
        target.send_batch(sent([told(), *several]))
        assert (last(target).refunds, last(target).refunded_cents) == (MOST_REFUNDS, MOST_REFUNDS)
        # Those of the least identities: of one more nothing is told.
        rows = len(target.values("order_rows"))
        target.send_batch(sent([refunded(refund="r9999", cents=1)]))
        assert len(target.values("order_rows")) == rows


# -- against sums made of everything at once ---------------------------------------------------------


def half_up(number: Decimal) -> int:
    """Whole hundredths; halves away from zero."""
    return int(number.quantize(Decimal(1), ROUND_HALF_UP))


def rate_of(currency: str, at_ms: int) -> Decimal | None:
    """What the rates above say."""
    if currency == "GBP":
        return Decimal("1.15") if at_ms < START + DAY else Decimal("1.25")
    return {"EUR": Decimal(1), "": Decimal(1), "CHF": Decimal("1.0637")}.get(currency)


def day_of(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1_000, ZoneInfo(ZONE)).strftime("%Y-%m-%d")


class Sum:
    """An order by all that is told of it."""

    def __init__(self, tellings: list[OrderTold], refunds: list[OrderRefunded], tax_included: bool) -> None:
        first = min(tellings, key=lambda t: (t.at_ms, t.cause))
        self.at, self.first, self.currency = first.at_ms, first, first.currency or "EUR"
        self.rate = rate_of(self.currency, first.at_ms)
        contents = {(t.currency or "EUR", t.cents, t.tax, t.shipping, str(t.lines)) for t in tellings}
        self.several = len(contents) > 1
        by_id: dict[str, list[OrderRefunded]] = defaultdict(list)
        for one in refunds:
            by_id[one.refund_id].append(one)
        one_each = [min(same, key=self._weight) for same in by_id.values()]
        self.refunds = len(one_each)
        usable = [r for r in one_each if self._factor(r) is not None]
        self.unmatched = len(one_each) - len(usable)
        self.usable = usable
        all_of_it = [r for r in usable if r.cancelled and not r.pieces]
        self.refunded = sum(self._own(r, r.cents) for r in usable if not r.cancelled)
        in_part = sum(self._own(r, r.cents) for r in usable if r.cancelled and r.pieces)
        self.cancelled = max(in_part, first.cents - self.refunded) if all_of_it else in_part
        self.net = first.cents - self.refunded - self.cancelled
        back = sum(self._own(r, r.shipping) for r in usable)
        self.shipping_back = max(back, first.shipping) if all_of_it else back
        self.whole = bool(all_of_it)
        self.back = self._back()
        self.tax = self._tax()
        costs = [one.cost for one in first.lines]
        self.cost = self.margin = None
        if costs and None not in costs:
            self.cost = sum((one.cost or 0) * one.quantity for one in first.lines)
            left = sum(
                (one.cost or 0) * (one.quantity - gone)
                for one, gone in zip(first.lines, self.back, strict=True)
            )
            self.margin = self.net - left - ((self.tax or 0) if tax_included else 0)

    def _weight(self, one: OrderRefunded) -> tuple[Any, ...]:
        pieces: dict[str, int] = defaultdict(int)
        for item, number in one.pieces:
            pieces[item] += number
        return (one.at_ms, one.cancelled, one.cents, one.tax, one.shipping, one.currency,
                tuple(sorted(pieces.items())))  # fmt: skip

    def _factor(self, one: OrderRefunded) -> Decimal | None:
        if one.currency in ("", self.currency):
            return Decimal(1)
        theirs = rate_of(one.currency, one.at_ms)
        return theirs / self.rate if theirs and self.rate else None

    def _own(self, one: OrderRefunded, cents: int) -> int:
        factor = self._factor(one)
        assert factor is not None
        return half_up(cents * factor)

    def _back(self) -> list[int]:
        if self.whole:
            return [one.quantity for one in self.first.lines]
        heap = [item for r in self.usable for item, number in r.pieces for _ in range(number)]
        found = []
        for one in self.first.lines:
            gone = 0
            while gone < one.quantity and one.item_id in heap:
                heap.remove(one.item_id)
                gone += 1
            found.append(gone)
        return found

    def _tax(self) -> int | None:
        if self.first.tax is None or self.whole:
            return None if self.first.tax is None else 0
        known = sum(self._own(r, r.tax) for r in self.usable if r.tax >= 0)
        unknown = sum(self._own(r, r.cents) for r in self.usable if r.tax < 0)
        share = half_up(Decimal(self.first.tax) * unknown / self.first.cents) if self.first.cents else 0
        return self.first.tax - known - share

    def reported(self, cents: int | None) -> int | None:
        return None if cents is None or self.rate is None else half_up(cents * self.rate)

    def status(self) -> str:
        taken = self.refunded + self.cancelled
        if self.whole or (self.first.cents > 0 and not self.refunded and self.cancelled >= self.first.cents):
            return "cancelled"
        if self.first.cents > 0 and taken >= self.first.cents:
            return "refunded"
        return "partly_refunded" if self.refunded else "partly_cancelled" if self.cancelled else "placed"

    def row(self, name: str) -> dict[str, Any]:
        first = self.first
        return {
            "order_id": name, "at_ms": self.at, "day": day_of(self.at), "currency": self.currency,
            "status": self.status(), "pieces": sum(one.quantity for one in first.lines),
            "amount_cents": first.cents, "tax_cents": first.tax, "shipping_cents": first.shipping,
            "cancelled_cents": self.cancelled, "refunded_cents": self.refunded,
            "shipping_back_cents": self.shipping_back, "net_cents": self.net, "cost_cents": self.cost,
            "margin_cents": self.margin, "rate": None if self.rate is None else float(self.rate),
            "amount_reported_cents": self.reported(first.cents),
            "net_reported_cents": self.reported(self.net),
            "margin_reported_cents": self.reported(self.margin),
            "refunds": self.refunds, "unmatched": self.unmatched, "several": self.several,
            "lines": [
                {"item_id": one.item_id, "category": one.category, "price_cents": one.cents,
                 "cost_cents": one.cost, "quantity": one.quantity, "back": gone}
                for one, gone in zip(first.lines, self.back, strict=True)
            ],
        }  # fmt: skip

    def paid_back(self) -> Iterable[tuple[str, int]]:
        return [(day_of(r.at_ms), self._own(r, r.cents)) for r in self.usable if not r.cancelled]


def some(rng: random.Random) -> list[Told]:
    """What is told of some orders: again, of other times, in several currencies; refunds without an order."""
    events: list[Told] = []
    for number in range(rng.randint(1, 4)):
        order, currency = f"o{number}", rng.choice(("", "EUR", "GBP", "CHF", "JPY"))
        lines = [
            line(rng.choice("ab"), rng.randrange(1, 9_999), rng.randint(1, 3),
                 rng.choice((None, 0, 250)) if rng.random() < 0.2 else rng.randrange(5_000))
            for _ in range(rng.randint(0, 3))
        ]  # fmt: skip
        cents = rng.choice((0, sum(one.cents * one.quantity for one in lines), rng.randrange(9_999)))
        for telling in range(rng.choice((0, 1, 1, 1, 2, 3))):
            changed = cents + 7 if rng.random() < 0.2 else cents
            one = told(
                order, rng.randrange(2 * DAY), changed, currency, rng.choice((None, 0, cents // 6)),
                rng.choice((0, 490)), lines, f"e{telling}",
            )  # fmt: skip
            events += [one] * rng.choice((1, 1, 2))
        for refund in range(rng.choice((0, 0, 1, 2, 3))):
            for _ in range(rng.choice((1, 1, 1, 2))):
                one_back = refunded(
                    order, f"r{refund}", rng.randrange(cents + 1), rng.randrange(3 * DAY),
                    cancelled=rng.random() < 0.4, tax=rng.choice((-1, -1, 0, 40)),
                    shipping=rng.choice((0, 490)), currency=rng.choice(("", "", "", "GBP", "EUR", "JPY")),
                    pieces=[(rng.choice("abc"), rng.randint(1, 2)) for _ in range(rng.randrange(3))],
                )  # fmt: skip
                events += [one_back] * rng.choice((1, 1, 2))
    rng.shuffle(events)
    return events


def sums(events: list[Told], *, tax_included: bool) -> dict[str, Sum]:
    found = {}
    for order in sorted({e.order_id for e in events}):
        own = [e for e in events if e.order_id == order]
        tellings = [e for e in own if isinstance(e, OrderTold)]
        if tellings:
            refunds = [e for e in own if isinstance(e, OrderRefunded)]
            found[order] = Sum(tellings, refunds, tax_included)
    return found


def books(found: Iterable[Sum]) -> dict[tuple[str, str], dict[str, int]]:
    """The books of days and currencies, each figure a sum over orders."""
    made: dict[tuple[str, str], dict[str, int]] = defaultdict(lambda: dict.fromkeys(FIGURES, 0))
    for one in found:
        book, rated = made[day_of(one.at), one.currency], one.rate is not None
        book["orders"] += 1
        book["cancelled_orders"] += one.status() == "cancelled"
        book["pieces"] += sum(part.quantity for part in one.first.lines)
        book["amount_cents"] += one.first.cents
        book["tax_cents"] += one.first.tax or 0
        book["shipping_cents"] += one.first.shipping
        book["cancelled_cents"] += one.cancelled
        book["refunded_cents"] += one.refunded
        book["shipping_back_cents"] += one.shipping_back
        book["net_cents"] += one.net
        book["margin_cents"] += one.margin or 0
        book["margin_orders"] += one.margin is not None
        book["reported_orders"] += rated
        book["amount_reported_cents"] += one.reported(one.first.cents) or 0
        book["net_reported_cents"] += one.reported(one.net) or 0
        book["margin_reported_cents"] += one.reported(one.margin) or 0
        for day, cents in one.paid_back():
            made[day, one.currency]["paid_back_cents"] += cents
            made[day, one.currency]["paid_back_reported_cents"] += one.reported(cents) or 0
    return made


def in_cuts(target: TestDriver, rest: list[Any], rng: random.Random) -> None:
    while rest:
        cut = rng.randint(1, 6)
        target.send_batch(rest[:cut])
        rest = rest[cut:]
        if rng.random() < 0.2:
            target.restart()


def compare(seed: int) -> int:
    """Compare orders and books of one seed; returns how many orders."""
    rng = random.Random(seed)
    events, tax_included = some(rng), rng.random() < 0.8
    # A bound of 0 makes much of it late.
    target = driver(bound_ms=rng.choice((0, 3 * DAY)), tax_included=tax_included)
    in_cuts(target, sent(events), rng)
    target.advance_watermark(START + 10 * DAY)
    expected = sums(events, tax_included=tax_included)
    rows: dict[str, OrderRow] = {}
    for row in target.values("order_rows"):
        assert row.order_id not in rows or row.revision > rows[row.order_id].revision, seed
        rows[row.order_id] = row
    found = {name: msgspec.to_builtins(row) for name, row in rows.items()}
    for row in found.values():
        row.pop("revision")
    assert found == {name: one.row(name) for name, one in expected.items()}, seed
    valued: dict[str, OrderValued] = {one.order_id: one for one in target.values()}
    assert {
        name: (one.at_ms, one.cents, one.back_cents) for name, one in valued.items()
    } == {
        name: (one.at, gross := one.reported(one.first.cents) or 0, gross - (one.reported(one.net) or 0))
        for name, one in expected.items()
    }, seed  # fmt: skip
    bookings: list[Booking] = target.values("bookings")
    rng.shuffle(bookings)
    ledger = TestDriver(Revenue(), out_of_orderness_ms=rng.choice((0, 3 * DAY)))
    in_cuts(ledger, [(one.book, one.at_ms, one) for one in bookings], rng)
    ledger.advance_watermark(START + 10 * DAY)
    final: dict[tuple[str, str], RevenueRow] = {}
    for book in sorted(ledger.values(), key=lambda one: one.revision):
        final[book.day, book.currency] = book
    added_up = books(expected.values())
    # Of a day whose orders turned out to be of another the row stays, with nothing.
    for name, book in final.items():
        assert {figure: getattr(book, figure) for figure in FIGURES} == added_up[name], (seed, name)
    assert not any(any(added_up[name].values()) for name in set(added_up) - set(final)), seed
    return len(expected)


def test_orders_and_books_are_sums_of_all_that_was_told_in_any_order_and_cut() -> None:
    assert sum(compare(seed) for seed in range(120)) > 200


def test_books_name_their_figures_in_the_order_of_the_row() -> None:
    assert RevenueRow.__struct_fields__ == ("day", "currency", *FIGURES, "revision")


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kathmandu", "America/St_Johns", "Australia/Lord_Howe"])
def test_a_day_is_that_of_the_shops_time_zone(zone: str) -> None:
    """By the quarter of an hour: offsets are whole quarters, changes of the clocks too."""
    from millrace_apps.clickstream.processes.orders import day_of as found

    rng = random.Random(zone)
    for _ in range(2_000):
        at = rng.randrange(0, 2 * START)
        assert found(at, zone) == datetime.fromtimestamp(at / 1_000, ZoneInfo(zone)).date().isoformat()
    assert all(a <= b for a, b in pairwise(found(START + hour * HOUR, zone) for hour in range(100)))
