"""Activity counts of a profile: by the hour, the last items, categories, money."""

from __future__ import annotations

from bisect import insort
from typing import Final, Literal, Protocol

import msgspec

from millrace.parts.panes import forget_panes

#: What a person does in the shop that profiles and offers look at.
ActivityKind = Literal["view", "search", "add_to_cart", "checkout"]

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 86_400_000
#: So many of the last items are kept.
LAST_ITEMS: Final = 10
#: So many orders are known by their identity.
LAST_ORDERS: Final = 16
#: Rolling counts are kept by the hour for so long, ms.
ROLLING_MS: Final = 7 * DAY_MS
_EVENTS: Final = {"view": 0, "search": 1, "add_to_cart": 2, "checkout": 3}
_PURCHASE: Final = 4
#: Views, searches, adds to the cart, steps of the checkout, purchases.
NUMBERS: Final = 5


class _Counts(Protocol):
    hours: dict[int, list[int]]
    items: list[tuple[int, str]]
    categories: dict[str, int]
    viewed_cents: int
    viewed: int
    spent_cents: int
    orders: int
    seen_ms: int
    told: dict[str, tuple[int, int]]


class Counted:
    """What is counted for a profile, of a person or of what nobody did yet; order makes no difference."""

    __slots__ = ()

    def observe(
        self: _Counts, kind: ActivityKind, at_ms: int, subject: str, category: str, cents: int
    ) -> None:
        """Let what was done count.

        Args:
            kind: What.
            at_ms: When, UTC ms.
            subject: The item that was viewed; empty for none.
            category: Its category.
            cents: Its price, cents.
        """
        _count(self, at_ms, _EVENTS[kind])
        if kind == "view" and subject:
            insort(self.items, (at_ms, subject))
            del self.items[:-LAST_ITEMS]
            self.categories[category] = self.categories.get(category, 0) + 1
            self.viewed_cents += cents
            self.viewed += 1

    def bought(self: _Counts, order_id: str, at_ms: int, cents: int) -> bool:
        """Let an order count, once, whatever tells of it.

        Args:
            order_id: The order.
            at_ms: When it was, UTC ms.
            cents: Its value, cents.

        Returns:
            Whether nothing earlier has told of it.
        """
        known = self.told.get(order_id)
        if known is not None:
            if known <= (at_ms, cents):
                return False
            _unbuy(self, *known)
        self.told[order_id] = (at_ms, cents)
        _forget_orders(self.told)
        _count(self, at_ms, _PURCHASE)
        self.spent_cents += cents
        self.orders += 1
        return True

    def add(self: _Counts, other: _Counts) -> None:
        """Let all that was counted elsewhere count here, too."""
        newest = max([*self.hours, *other.hours], default=0)
        for hour, counts in other.hours.items():
            own = self.hours.setdefault(hour, [0] * NUMBERS)
            self.hours[hour] = [a + b for a, b in zip(own, counts, strict=True)]
        forget_panes(self.hours, newest - ROLLING_MS // HOUR_MS)
        self.items = sorted([*self.items, *other.items])[-LAST_ITEMS:]
        for category, views in other.categories.items():
            self.categories[category] = self.categories.get(category, 0) + views
        self.viewed_cents += other.viewed_cents
        self.viewed += other.viewed
        self.spent_cents += other.spent_cents
        self.orders += other.orders
        self.seen_ms = max(self.seen_ms, other.seen_ms)
        for order_id, told in other.told.items():
            known = self.told.get(order_id)
            if known is not None:  # it was counted in both
                _unbuy(self, *max(known, told))
            self.told[order_id] = told if known is None else min(known, told)
        _forget_orders(self.told)


def _unbuy(counted: _Counts, at_ms: int, cents: int) -> None:
    counts = counted.hours.get(at_ms // HOUR_MS)
    if counts is not None:
        counts[_PURCHASE] -= 1
    counted.spent_cents -= cents
    counted.orders -= 1


def _forget_orders(told: dict[str, tuple[int, int]]) -> None:
    while len(told) > LAST_ORDERS:
        del told[min(told, key=lambda name: (told[name], name))]


def _count(counted: _Counts, at_ms: int, place: int) -> None:
    hour = at_ms // HOUR_MS
    counts = counted.hours.get(hour)
    if counts is None:
        counts = counted.hours[hour] = [0] * NUMBERS
        forget_panes(counted.hours, hour - ROLLING_MS // HOUR_MS)
    counts[place] += 1
    if at_ms > counted.seen_ms:
        counted.seen_ms = at_ms


class ActivityCounts(Counted, msgspec.Struct, array_like=True, gc=False):
    """What was done in a browser while nobody was known by it; fields as those of :class:`Person`."""

    hours: dict[int, list[int]] = msgspec.field(default_factory=dict)
    items: list[tuple[int, str]] = msgspec.field(default_factory=list)
    categories: dict[str, int] = msgspec.field(default_factory=dict)
    viewed_cents: int = 0
    viewed: int = 0
    spent_cents: int = 0
    orders: int = 0
    seen_ms: int = 0
    told: dict[str, tuple[int, int]] = msgspec.field(default_factory=dict)
