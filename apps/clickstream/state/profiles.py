"""Persons: where they came from, what they look at, what they paid for; features for later use."""

from __future__ import annotations

from bisect import insort
from typing import Final

import msgspec

from millrace.parts.panes import panes_between
from millrace.parts.top import best
from millrace_apps.clickstream.contracts.messages import Link, Purchase
from millrace_apps.clickstream.state.activity_counts import HOUR_MS, NUMBERS, ActivityCounts, Counted
from millrace_apps.clickstream.state.registers import Register

#: So many browsers of a person are known to have been logged in to lately, and so many logins of each.
_CAME_TO: Final = 16
_COMES: Final = 32
#: So many of the last touches of a browser are kept: some may be after a purchase that still waits.
_LASTS: Final = 8
_DAY_MS: Final = 86_400_000
#: A touch so long before an order has not brought it, ms.
LOOK_BACK_MS: Final = 90 * _DAY_MS


class Touch(msgspec.Struct, array_like=True, frozen=True, order=True, gc=False):
    """A landing that somebody was brought by.

    Attributes:
        at_ms: When, ms.
        label: Source, medium and campaign.
        from_ms: Since when it is known to be the person's, ms; 0: since it was.
        until_ms: Until when, ms; 0: for good.
    """

    at_ms: int
    label: str
    from_ms: int = 0
    until_ms: int = 0

    def counts(self, at_ms: int) -> bool:
        """Tell whether it was, and was known to be the person's, at a moment, UTC ms."""
        return max(self.at_ms, self.from_ms) <= at_ms and (not self.until_ms or at_ms < self.until_ms)


class Person(Counted, msgspec.Struct, array_like=True, gc=False):
    """What is kept of a person.

    Attributes:
        visitors: Browsers that are known to be this person's → since when, ms; 0: that is not settled.
        firsts: Browser → its first touch.
        lasts: Browser → its last touches.
        purchases: Purchases that wait until all before them is known.
        carts: The last carts, so that they can be forgotten, too.
        gender: As stated with the account.
        birth_year: As stated with the account.
        hours: Hour → views, searches, adds to the cart, steps of the checkout, purchases.
        items: The last items viewed: (time, item), latest last.
        categories: Category → views in all.
        viewed_cents: Sum of the prices of what was viewed, cents.
        viewed: How many views that are.
        spent_cents: Money spent, cents.
        orders: Orders in all.
        seen_ms: Time of the latest event, ms.
        written_ms: When its row was last written.
        revision: How many rows have been written.
        register: What the person has said about consent, in whichever browser.
        parts: Browser → what was done there before it was known to be this person's; it goes where the
            browser is the person's no more.
        told: The last orders: identity → when they were (ms), and their value.
        touched_by: Browser → the revision of what was told of its touches.
        unwritten: Whether something is not in its row yet.
        came: Browser → when (UTC ms) the person logged in there while nobody was known by it, as long as what
            was offered there before may wait for a purchase; kept where caps are merged.
    """

    visitors: dict[str, int] = msgspec.field(default_factory=dict)
    firsts: dict[str, Touch] = msgspec.field(default_factory=dict)
    lasts: dict[str, list[Touch]] = msgspec.field(default_factory=dict)
    purchases: list[Purchase] = msgspec.field(default_factory=list)
    carts: list[str] = msgspec.field(default_factory=list)
    gender: str = ""
    birth_year: int = 0
    hours: dict[int, list[int]] = msgspec.field(default_factory=dict)
    items: list[tuple[int, str]] = msgspec.field(default_factory=list)
    categories: dict[str, int] = msgspec.field(default_factory=dict)
    viewed_cents: int = 0
    viewed: int = 0
    spent_cents: int = 0
    orders: int = 0
    seen_ms: int = 0
    written_ms: int = 0
    revision: int = 0
    register: Register = msgspec.field(default_factory=Register)
    parts: dict[str, ActivityCounts] = msgspec.field(default_factory=dict)
    told: dict[str, tuple[int, int]] = msgspec.field(default_factory=dict)
    touched_by: dict[str, int] = msgspec.field(default_factory=dict)
    unwritten: bool = False
    came: dict[str, list[int]] = msgspec.field(default_factory=dict)

    def comes(self, visitor: str, at_ms: int, kept_ms: int) -> None:
        """Take down a login in a browser by which nobody was known.

        Args:
            visitor: The browser.
            at_ms: When, UTC ms.
            kept_ms: For how long it is known, ms.
        """
        insort(self.came.setdefault(visitor, []), at_ms)
        newest = max(times[-1] for times in self.came.values())
        kept = {
            name: [at for at in times[-_COMES:] if at + kept_ms > newest] for name, times in self.came.items()
        }
        latest = sorted((times[-1], name) for name, times in kept.items() if times)
        self.came = {name: kept[name] for _, name in latest[-_CAME_TO:]}

    def whole(self) -> Person | ActivityCounts:
        """Return what the person did, with what was done before somebody was known by its browsers."""
        if not self.parts:
            return self
        whole = ActivityCounts()
        whole.add(self)
        for part in self.parts.values():
            whole.add(part)
        return whole

    def forget_profile(self) -> None:
        """Forget what was counted; browsers, answers about consent and carts, for an erasure, stay."""
        self.hours, self.items, self.categories, self.parts = {}, [], {}, {}
        self.told, self.came = {}, {}
        self.viewed_cents = self.viewed = self.spent_cents = self.orders = self.seen_ms = self.written_ms = 0
        self.gender, self.birth_year, self.unwritten = "", 0, False

    def touched(self, link: Link) -> None:
        """Take down the touches of a browser."""
        if link.revision:
            if link.revision > self.touched_by.get(link.visitor, 0):
                self.touched_by[link.visitor] = link.revision
                spans = link.spans or [(0, 0)] * len(link.touches)
                told = [Touch(*one, *span) for one, span in zip(link.touches, spans, strict=True)]
                self.firsts.pop(link.visitor, None)
                if told:
                    self.firsts[link.visitor] = told[0]
                self.lasts[link.visitor] = told
            return
        if link.first:
            first = Touch(link.first_ms, link.first)
            before = self.firsts.get(link.visitor)
            self.firsts[link.visitor] = first if before is None else min(before, first)
        if link.last:
            lasts = self.lasts.setdefault(link.visitor, [])
            last = Touch(link.last_ms, link.last)
            if last not in lasts:
                insort(lasts, last)
                del lasts[:-_LASTS]

    def attribution(self, purchase: Purchase, look_back_ms: int = LOOK_BACK_MS) -> tuple[str, str]:
        """Return the first and last touch of a purchase, over all browsers known by then; empty for none.

        Args:
            purchase: The purchase.
            look_back_ms: A last touch so long before it has not brought it, ms. The first one is by what the
                person became known, however long ago.
        """
        at, own = purchase.at_ms, purchase.visitor
        touches = [
            touch
            for visitor in {*self.firsts, *self.lasts} - ({own} if purchase.decided else set())
            for touch in (*self.lasts.get(visitor, ()), self.firsts.get(visitor))
            if touch is not None and touch.counts(at)
        ]
        if purchase.decided or own not in self.touched_by:  # or it has told of all its touches
            told = ((purchase.first_ms, purchase.first), (purchase.last_ms, purchase.last))
            touches += [Touch(*one) for one in told if one[1] and one[0] <= at]
        first = min(touches, default=None)
        last = max((t for t in touches if at - look_back_ms < t.at_ms), default=None)
        return (first.label if first else ""), (last.label if last else "")

    def passed(self, until_ms: int) -> None:
        """Forget touches that were the person's until a moment (UTC ms): of orders by then all is known."""
        for visitor, own in list(self.lasts.items()):
            kept = [touch for touch in own if not touch.until_ms or touch.until_ms > until_ms]
            if len(kept) == len(own):
                continue
            self.firsts.pop(visitor, None)
            if kept:
                self.lasts[visitor], self.firsts[visitor] = kept, kept[0]
            else:
                del self.lasts[visitor]

    def features(self, now_ms: int) -> dict[str, int]:
        """Return what rules of offers may ask about a person.

        Args:
            now_ms: The moment, ms.
        """
        day, whole = now_ms // HOUR_MS - 23, self.whole()
        sums = [0] * NUMBERS
        for hour, counts in whole.hours.items():
            if hour >= day:
                for place, number in enumerate(counts):
                    sums[place] += number
        return {
            "views_24h": sums[0],
            "adds_24h": sums[2],
            "orders_7d": sum(counts[4] for counts in whole.hours.values()),
            "orders": whole.orders,
            "price_level_cents": whole.viewed_cents // whole.viewed if whole.viewed else 0,
        }


class Profile(msgspec.Struct, frozen=True, gc=False):
    """Features of a person; a row by ``person``, the highest ``revision`` holds.

    Attributes:
        person: ``u:`` and the account, or ``v:`` and the browser.
        visitors: Browsers that are known to be this person's.
        views_1d: Item views of the last 24 hours, by whole hours; so for the others.
        searches_1d: Searches.
        adds_1d: Items put into the cart.
        orders_7d: Orders of the last 7 days.
        orders: Orders in all.
        spent_cents: Money spent, cents.
        last_items: The last items viewed, latest first.
        top_category: The category viewed most; of equals the lesser name.
        price_level_cents: Mean price of what was viewed.
        seen_ms: Time of the latest event, UTC ms.
        revision: Grows with every row.
        deleted: Nothing may be known of this person any more.
    """

    person: str
    visitors: list[str]
    views_1d: int
    searches_1d: int
    adds_1d: int
    orders_7d: int
    orders: int
    spent_cents: int
    last_items: list[str]
    top_category: str
    price_level_cents: int
    seen_ms: int
    revision: int
    deleted: bool = False


def profile_row(name: str, person: Person, *, deleted: bool = False) -> Profile:
    """Return the row of a person.

    Args:
        name: The person: ``u:`` and the account, or ``v:`` and the browser.
        person: What is kept.
        deleted: Whether the row is to go.
    """
    if deleted:
        return Profile(
            person=name,
            visitors=[],
            views_1d=0,
            searches_1d=0,
            adds_1d=0,
            orders_7d=0,
            orders=0,
            spent_cents=0,
            last_items=[],
            top_category="",
            price_level_cents=0,
            seen_ms=0,
            revision=person.revision,
            deleted=True,
        )
    whole = person.whole()
    hour = whole.seen_ms // HOUR_MS
    day = panes_between(whole.hours, hour - 23, hour + 1, 1)
    top = best(whole.categories.items(), 1)
    return Profile(
        person=name,
        visitors=sorted(visitor for visitor, since in person.visitors.items() if since),
        views_1d=sum(c[0] for c in day),
        searches_1d=sum(c[1] for c in day),
        adds_1d=sum(c[2] for c in day),
        orders_7d=sum(c[4] for c in whole.hours.values()),
        orders=whole.orders,
        spent_cents=whole.spent_cents,
        last_items=[item for _, item in reversed(whole.items)],
        top_category=top[0][0] if top else "",
        price_level_cents=whole.viewed_cents // whole.viewed if whole.viewed else 0,
        seen_ms=whole.seen_ms,
        revision=person.revision,
    )
