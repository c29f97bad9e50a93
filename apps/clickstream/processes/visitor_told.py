"""What shards, carts and persons are told of a click."""

from __future__ import annotations

from bisect import insort
from typing import Final
from zlib import crc32

from millrace import Context
from millrace_apps.clickstream.contracts.events import Click, ItemChange, order_of, to_cents
from millrace_apps.clickstream.contracts.messages import (
    SHOP,
    Activity,
    CartChange,
    ItemCount,
    ItemFacts,
    Looked,
    Purchase,
    shard_of,
)
from millrace_apps.clickstream.processes.funnels import step_of
from millrace_apps.clickstream.processes.visitor_identity import VisitorIdentity
from millrace_apps.clickstream.state.activity_counts import ActivityCounts, ActivityKind
from millrace_apps.clickstream.state.consent import may_offer, may_stitch
from millrace_apps.clickstream.state.known import (
    MINUTE_MS,
    NOW_MINUTES,
    SETTLED,
    Bought,
    Held,
    Known,
    newly_covered,
)

#: What of a browser's clicks profiles and offers look at.
_ACTIVITIES: Final[dict[str, ActivityKind]] = {
    "page_view": "view",
    "search": "search",
    "add_to_cart": "add_to_cart",
    "remove_from_cart": "view",
    "checkout": "checkout",
}
_CART: Final[dict[str, int]] = {"add_to_cart": 1, "remove_from_cart": -1, "checkout": 0, "purchase": 0}
_STAGE: Final = {"purchase": "bought"}
#: So many carts are remembered until somebody is known by their browser.
_CARTS: Final = 3


def search_term(query: str | None) -> str:
    """Return what was searched for as boards count it: case and spaces make no difference.

    >>> search_term("  Red   SHOES "), search_term(None)
    ('red shoes', '')
    """
    return " ".join((query or "").lower().split())[:80]


def search_of(shard: str, at: int, cause: str, term: str, visitor: str) -> ItemCount:
    """Return what the shards are told of a search."""
    return ItemCount(shard, at, cause, term, "", "search", 1, by=crc32(visitor.encode()))


class VisitorTold(VisitorIdentity):
    """Tells others what concerns them."""

    def _shard(self, name: str) -> str:
        return shard_of(name, self._rules.shards)

    def _buys(self, event: Click, known: Known, ctx: Context) -> bool:
        """Tell of the order, and whether the event is the first in time that does; others are no purchase."""
        if event.event_type != "purchase":
            return True
        self._order(event, ctx)
        at = ctx.event_time
        told = Bought(at, event.event_id, self._amount(event, at), self._sold(event, at))
        first, before = known.buys(order_of(event), told)
        if before is not None:
            for item, category, pieces, cents in before.lines:
                count = ItemCount(
                    self._shard(item), before.at_ms, before.cause, item, category, "sold", -pieces, -cents
                )
                ctx.output(self.counts, count)
            self._unbuy(before, known, ctx)
        return first

    def _sold(self, event: Click, at: int) -> list[tuple[str, str, int, int]]:
        """Return what is bought: item, category, pieces and what they cost in the shop's currency, cents."""
        worth, currency = self._rules.rates.worth, event.currency
        return [
            (line.item_id, line.category, line.quantity,
             worth(to_cents(line.price) * line.quantity, currency, at) or 0)
            for line in event.lines
        ]  # fmt: skip

    def _count(self, event: Click, known: Known, ctx: Context, *, buys: bool = True) -> None:
        """Tell the shards what is viewed and sold, and who is there."""
        kind, at, cause = event.event_type, ctx.event_time, event.event_id
        minute = at // MINUTE_MS
        minutes = known.minutes
        low = high = 0
        news = minute not in minutes
        if news:
            low, high = newly_covered(minutes, minute)
            insort(minutes, minute)
            del minutes[: -2 * NOW_MINUTES]
            low, high = low * MINUTE_MS, high * MINUTE_MS
        item, device = event.item_id, event.device if news else ""
        if kind == "page_view" and item is not None:
            # Presence goes along where there is a message anyway: shards are added up.
            ctx.output(
                self.counts,
                ItemCount(
                    self._shard(item), at, cause, item, event.category or "", "view", 1, 0, device, low, high
                ),
            )
        elif news:
            ctx.output(
                self.counts,
                ItemCount(self._shard(ctx.key), at, cause, "", "", "view", 0, 0, device, low, high),
            )
        if kind == "add_to_cart" and item is not None:
            added = ItemCount(self._shard(item), at, cause, item, event.category or "", "add", 1)
            ctx.output(self.counts, added)
        if kind == "search" and (term := search_term(event.query)):
            ctx.output(self.counts, search_of(self._shard(term), at, cause, term, ctx.key))
        if kind == "purchase" and buys:
            for item, category, pieces, cents in self._sold(event, at):
                count = ItemCount(self._shard(item), at, cause, item, category, "sold", pieces, cents)
                ctx.output(self.counts, count)

    def _tell(
        self, event: Click, known: Known, owner: str | None, ctx: Context, *, buys: bool = True
    ) -> None:
        """Tell the cart and the person.

        Args:
            event: The click.
            known: What is known of its browser.
            owner: Whose it is; None: nobody's who is known.
            ctx: The context.
            buys: Whether it is the first that tells of its order, if it tells of one.
        """
        kind = event.event_type
        if kind == "purchase" and not buys:
            return
        at, cause, visitor = ctx.event_time, event.event_id, ctx.key
        cents, quantity = 0, event.quantity or 1
        if kind == "purchase":
            cents, quantity = self._amount(event, at), sum(line.quantity for line in event.lines)
        elif event.price is not None:
            cents = self._rules.rates.worth(to_cents(event.price), event.currency, at) or 0
        order = order_of(event) if kind == "purchase" else ""
        cart, step = event.cart_id or "", event.step or ""
        consent = known.allowed(at)
        person, marketing = self.person(owner, visitor), may_offer(consent)
        if event.cart_id is not None and kind in _CART:
            worth = cents * quantity * _CART[kind]
            stage = step or _STAGE.get(kind, "cart")
            pieces = quantity * _CART[kind]
            change = CartChange(
                cart, at, cause, visitor, person, stage, worth, marketing, order,
                event.item_id or "" if pieces else "", pieces if event.item_id else 0,
            )  # fmt: skip
            ctx.output(self.carts, change)
            if owner is None and may_stitch(consent):
                self._filled(known, cart, kind == "purchase")
        if self._rules.recommends and may_stitch(consent):
            if kind == "page_view" and event.item_id:
                ctx.output(self.looks, Looked(SHOP, at, cause, visitor, person, event.item_id))
            elif kind == "purchase" and event.lines:
                bought = [line.item_id for line in event.lines]
                ctx.output(self.looks, Looked(SHOP, at, cause, visitor, person, "", bought))
        # By position: names take longer to be matched, and most events come through here.
        if kind == "purchase":
            ctx.emit(
                Purchase(
                    person, at, cause, visitor, order, cart, cents, quantity, marketing=marketing, apart=True
                )
            )
            # By what it came is told once no login in time can be before it.
            known.held = [one for one in known.held if one.order_id != order]
            insort(known.held, Held(at, cause, order, event.user_id or "", cents))
            ctx.timers.bring_forward(known.held[0].at_ms, SETTLED)
            if owner is None and may_stitch(consent) and marketing:
                self._part(known).bought(order, at, cents)
        elif kind in _ACTIVITIES and may_stitch(consent) and (event.item_id or kind != "page_view"):
            act = Activity(
                person, _ACTIVITIES[kind], at, cause, visitor, event.item_id or event.query or "",
                event.category or "", event.device, step, cart, cents, quantity, marketing,
            )  # fmt: skip
            ctx.emit(act)
            if owner is None:
                self._part(known).observe(act.kind, at, act.subject, act.category, cents)

    def _mark(self, event: Click, known: Known, ctx: Context, *, buys: bool) -> None:
        """Take down which step of persons' funnels a click is, where it may be known of whom."""
        kind, at = event.event_type, ctx.event_time
        step = step_of(kind, event.page_type, event.step)
        if step in self._marks.steps and (buys or kind != "purchase") and may_stitch(known.allowed(at)):
            self._marks.take(known, at, step)

    def _item(self, event: ItemChange, ctx: Context) -> None:
        """Tell the shop what is true of an item."""
        if not self._rules.recommends:
            return
        at, price = event.event_time_ms, event.price
        cents = None if price is None else self._rules.rates.worth(to_cents(price), event.currency, at)
        facts = ItemFacts(at, event.change_id, event.category, cents, event.stock)
        ctx.output(self.looks, Looked(SHOP, at, event.change_id, "", "", event.item_id, told=facts))

    def _part(self, known: Known) -> ActivityCounts:
        """Return what was done while nobody was known: it is somebody's when somebody logs in."""
        if known.part is None:
            known.part = ActivityCounts()
        return known.part

    def _filled(self, known: Known, cart: str, bought: bool) -> None:
        carts = [other for other in known.carts if other != cart]
        known.carts = carts if bought else [*carts[1 - _CARTS :], cart]
