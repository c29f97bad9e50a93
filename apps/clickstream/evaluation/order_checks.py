"""Orders, what came back of them and the books of days, compared with what a generator says is true."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, Final

from millrace.console.report import Check, equal, same
from millrace.testing.world_ledger import WorldTruth

Row = Mapping[str, Any]
#: What a book adds up of the rows of its orders.
_ADDED: Final = (
    "pieces", "amount_cents", "tax_cents", "shipping_cents", "cancelled_cents", "refunded_cents",
    "shipping_back_cents", "net_cents", "margin_cents", "amount_reported_cents", "net_reported_cents",
    "margin_reported_cents",
)  # fmt: skip


def value_of_lines(order: WorldTruth) -> int:
    """Return what the lines of an order are worth in the shop's currency, each by itself, cents."""
    rate = Decimal(order.detail["rate"])
    return sum(_cents(cents * quantity * rate) for _, cents, quantity, _ in order.detail["lines"])


def check_orders(
    orders: Sequence[Row],
    revenue: Sequence[Row],
    attributions: Sequence[Row],
    truths: Mapping[str, Sequence[WorldTruth]],
    *,
    until_ms: int,
) -> list[Check]:
    """Compare tables with a ledger; orders of which an event came late, never or after the end are left out.

    Args:
        orders: Rows of orders.
        revenue: Rows of books.
        attributions: Rows of what brought orders.
        truths: Kind → what the generator did.
        until_ms: Up to when everything has been said, UTC ms.
    """
    back: dict[str, list[WorldTruth]] = defaultdict(list)
    for truth in (*truths.get("refund", ()), *truths.get("cancellation", ())):
        back[truth.entity].append(truth)

    def is_sure(truth: WorldTruth) -> bool:
        return truth.last_event_time_ms <= until_ms and not truth.disturbed

    told = truths.get("order", ())
    sure = [t for t in told if is_sure(t)]
    unsure = {t.entity for t in told if not is_sure(t)}
    moved = {order for order, refunds in back.items() if not all(is_sure(t) for t in refunds)}
    firm = {t.entity: _Left(t, back.get(t.entity, ())) for t in sure if t.entity not in moved}
    held = {row["order_id"]: row for row in orders}
    of_shop = {row["order_id"]: row for row in attributions}
    changed = {name: left for name, left in firm.items() if left.refunds}
    return [
        same(
            "orders with tax, shipping and lines",
            {_ordered(t) for t in sure},
            {_row(row) for name, row in held.items() if name not in unsure},
        ),
        equal("no row of an order twice", 0, len(orders) - len(held), of=len(orders)),
        same(
            "what is left of orders",
            {(name, *left.figures()) for name, left in changed.items()},
            {(name, *_figures(held[name])) for name in changed if name in held},
            "cancelled, paid back, shipping paid back, net; standing",
        ),
        same(
            "margins of orders",
            {(name, left.margin, left.reported(left.margin)) for name, left in firm.items()},
            {
                (name, held[name]["margin_cents"], held[name]["margin_reported_cents"])
                for name in firm
                if name in held
            },
            "none where the cost of a line is not known",
        ),
        same(
            "refunds taken off",
            {(name, left.off()) for name, left in changed.items() if name in of_shop},
            {(name, of_shop[name]["refunded_cents"]) for name in changed if name in of_shop},
        ),
        _worth_the_same(held, of_shop),
        *_books(orders, revenue),
    ]


class _Left:
    """What is left of an order, by the ledger."""

    def __init__(self, order: WorldTruth, refunds: Iterable[WorldTruth]) -> None:
        detail = order.detail
        self.refunds = list(refunds)
        self.rate = Decimal(detail["rate"])
        self.cents: int = detail["amount_cents"]
        self.cancelled = self._sum("amount_cents", "cancellation")
        self.paid_back = self._sum("amount_cents", "refund")
        self.shipping = self._sum("shipping_cents", "cancellation", "refund")
        self.net: int = self.cents - self.cancelled - self.paid_back
        self.whole = any(t.kind == "cancellation" and t.detail["whole"] for t in self.refunds)
        self.margin = self._margin(detail)

    def _sum(self, name: str, *kinds: str) -> int:
        return sum(t.detail[name] for t in self.refunds if t.kind in kinds)

    def _margin(self, detail: Mapping[str, Any]) -> int | None:
        if any(cost is None for _, _, _, cost in detail["lines"]):
            return None
        back: Counter[str] = Counter()
        tax = Decimal(detail["tax_cents"])
        for refund in self.refunds:
            back.update(dict(refund.detail["lines"]))
            known = refund.detail["tax_cents"]
            share = Decimal(detail["tax_cents"]) * refund.detail["amount_cents"] / self.cents
            tax -= known if known is not None else _cents(share)
        kept: int = sum(cost * (many - back[item]) for item, _, many, cost in detail["lines"])
        return self.net - kept - (0 if self.whole else int(tax))

    def reported(self, cents: int | None) -> int | None:
        """Return a sum in the shop's currency."""
        return None if cents is None else _cents(cents * self.rate)

    def off(self) -> int:
        """Return what was taken off in the shop's currency."""
        return _cents(self.cents * self.rate) - _cents(self.net * self.rate)

    def figures(self) -> tuple[object, ...]:
        """Return what its row must say."""
        way = "cancelled" if self.cancelled else "refunded"
        standing = way if self.net == 0 else f"partly_{way}"
        return self.cancelled, self.paid_back, self.shipping, self.net, standing


def _figures(row: Row) -> tuple[object, ...]:
    names = ("cancelled_cents", "refunded_cents", "shipping_back_cents", "net_cents", "status")
    return tuple(row[name] for name in names)


def _ordered(truth: WorldTruth) -> tuple[object, ...]:
    told = truth.detail
    value = _cents(told["amount_cents"] * Decimal(told["rate"]))
    return (
        truth.entity, told["currency"], told["amount_cents"], told["tax_cents"], told["shipping_cents"],
        value, tuple(tuple(line) for line in told["lines"]),
    )  # fmt: skip


def _row(row: Row) -> tuple[object, ...]:
    lines = tuple((o["item_id"], o["price_cents"], o["quantity"], o["cost_cents"]) for o in row["lines"])
    return (
        row["order_id"], row["currency"], row["amount_cents"], row["tax_cents"], row["shipping_cents"],
        row["amount_reported_cents"], lines,
    )  # fmt: skip


def _worth_the_same(orders: Mapping[str, Row], attributions: Mapping[str, Row]) -> Check:
    """Compare what an order is worth in both tables that say so."""
    both = [(orders[name], row) for name, row in attributions.items() if name in orders]
    strange = len(attributions) - len(both)
    wrong = strange + sum(
        (order["amount_reported_cents"] or 0, order["net_reported_cents"] or 0)
        != (row["amount_cents"], row["net_cents"])
        for order, row in both
    )
    return equal("orders worth other than what brought them says", 0, wrong, of=len(attributions))


def _books(orders: Sequence[Row], revenue: Sequence[Row]) -> list[Check]:
    """Compare the books of days with the orders that stand in them."""
    made: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    back: Counter[str] = Counter()
    for order in {row["order_id"]: row for row in orders}.values():
        book = made[order["day"], order["currency"]]
        book.update({name: order[name] or 0 for name in _ADDED})
        book["orders"] += 1
        book["cancelled_orders"] += order["status"] == "cancelled"
        book["margin_orders"] += order["margin_cents"] is not None
        book["reported_orders"] += order["rate"] is not None
        back[order["currency"]] += order["refunded_cents"]
    paid: Counter[str] = Counter()
    for row in revenue:
        paid[row["currency"]] += row["paid_back_cents"]
    names = [*_ADDED, "orders", "cancelled_orders", "margin_orders", "reported_orders"]
    expected = {(day, currency, *(book[n] for n in names)) for (day, currency), book in made.items()}
    found = {(r["day"], r["currency"], *(r[n] for n in names)) for r in revenue if r["orders"]}
    days = [(row["day"], row["currency"]) for row in revenue]
    return [
        same("books of days add up their orders", expected, found, "by day and currency"),
        equal("no book twice", 0, len(days) - len(set(days)), of=len(days)),
        same("paid back by currency", _some(back), _some(paid), "of whichever day's orders"),
    ]


def _some(sums: Counter[str]) -> set[tuple[str, int]]:
    return {(name, cents) for name, cents in sums.items() if cents}


def _cents(number: Decimal) -> int:
    return int(number.quantize(Decimal(1), ROUND_HALF_UP))
