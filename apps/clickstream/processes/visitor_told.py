"""Clicks told to shards, and held for their cart and person."""

from __future__ import annotations

from bisect import insort
from zlib import crc32

import msgspec

from millrace import Context
from millrace_apps.clickstream.contracts.events import Click, ItemChange, order_of, to_cents
from millrace_apps.clickstream.contracts.messages import (
    SHOP,
    ItemCount,
    ItemFacts,
    Looked,
    of_segment,
    shard_of,
)
from millrace_apps.clickstream.processes.funnels import step_of
from millrace_apps.clickstream.processes.visitor_identity import VisitorIdentity
from millrace_apps.clickstream.state.browser_state import (
    MINUTE_MS,
    NOW_MINUTES,
    Bought,
    BrowserState,
    Held,
    newly_covered,
)
from millrace_apps.clickstream.state.consent import may_stitch


def search_term(query: str | None) -> str:
    """Return what was searched for as boards count it: case and spaces make no difference.

    >>> search_term("  Red   SHOES "), search_term(None)
    ('red shoes', '')
    """
    return " ".join((query or "").lower().split())[:80]


def search_of(shard: str, at: int, cause: str, term: str, visitor: str) -> ItemCount:
    """Return what the shards are told of a search."""
    return ItemCount(shard, at, cause, term, "", "search", 1, by=crc32(visitor.encode()))


def _for_channel(count: ItemCount, channel: str) -> ItemCount:
    """Return what the shard is told that counts for a channel."""
    return msgspec.structs.replace(count, shard=of_segment(count.shard, f"channel: {channel}"))


class VisitorTold(VisitorIdentity):
    """Tells others what concerns them."""

    def _shard(self, name: str) -> str:
        return shard_of(name, self._rules.shards)

    def _counts(self, count: ItemCount, device: str, ctx: Context) -> None:
        """Tell a shard, and where it is asked for the one that counts for a kind of device."""
        ctx.output(self.counts, count)
        if self._rules.by_device and count.quantity:
            shard = of_segment(count.shard, f"device: {device}")
            own = msgspec.structs.replace(count, shard=shard, device="", there_from_ms=0, there_to_ms=0)
            ctx.output(self.counts, own)

    def _did(self, act: Held, known: BrowserState, ctx: Context) -> None:
        """Tell the cart and the person, and where it is asked for the shards that count for the channel."""
        super()._did(act, known, ctx)
        if self._rules.by_channel:
            self._counts_for_channel(act, known, ctx)

    def _counts_for_channel(self, act: Held, known: BrowserState, ctx: Context) -> None:
        """Tell the shards that count for a channel; of which one it is hangs on all landings before it.

        Args:
            act: What was done, when no landing of before can come any more, or what is late.
            known: What is known of its browser.
            ctx: The context.
        """
        kind, at, cause = act.kind, act.at_ms, act.cause
        first, counts = known.bought.get(act.order_id), list[ItemCount]()
        if kind == "page_view" and act.item:
            counts = [ItemCount(self._shard(act.item), at, cause, act.item, act.category, "view", 1)]
        elif kind == "search" and (term := search_term(act.query)):
            counts = [search_of(self._shard(term), at, cause, term, str(ctx.key))]
        elif kind == "purchase" and first is not None and first.cause == cause:
            counts = [
                ItemCount(self._shard(item), at, cause, item, category, "sold", pieces, cents)
                for item, category, pieces, cents in first.lines
            ]
        if not counts:
            return
        channel = self._channel(at, known)
        if first is not None:
            known.bought[act.order_id] = msgspec.structs.replace(first, channel=channel)
        for count in counts:
            ctx.output(self.counts, _for_channel(count, channel))

    def _buys(self, event: Click, known: BrowserState, ctx: Context) -> bool:
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
                self._counts(count, event.device, ctx)
                if before.channel:
                    ctx.output(self.counts, _for_channel(count, before.channel))
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

    def _count(self, event: Click, known: BrowserState, ctx: Context, *, buys: bool = True) -> None:
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
            # By position: one is made for every view.
            viewed = ItemCount(
                self._shard(item), at, cause, item, event.category or "", "view", 1, 0, device, low, high
            )
            self._counts(viewed, event.device, ctx)
        elif news:
            ctx.output(
                self.counts,
                ItemCount(self._shard(ctx.key), at, cause, "", "", "view", 0, 0, device, low, high),
            )
        if kind == "add_to_cart" and item is not None:
            added = ItemCount(self._shard(item), at, cause, item, event.category or "", "add", 1)
            ctx.output(self.counts, added)
        if kind == "search" and (term := search_term(event.query)):
            self._counts(search_of(self._shard(term), at, cause, term, ctx.key), event.device, ctx)
        if kind == "purchase" and buys:
            for item, category, pieces, cents in self._sold(event, at):
                count = ItemCount(self._shard(item), at, cause, item, category, "sold", pieces, cents)
                self._counts(count, event.device, ctx)

    def _tell(
        self, event: Click, known: BrowserState, owner: str | None, ctx: Context, *, buys: bool = True
    ) -> None:
        """Tell the recommender of it, and hold it for its cart and person.

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
        if self._rules.recommends and may_stitch(known.allowed(at)):
            person = self.person(owner, visitor)
            if kind == "page_view" and event.item_id:
                ctx.output(self.looks, Looked(SHOP, at, cause, visitor, person, event.item_id))
            elif kind == "purchase" and event.lines:
                bought = [line.item_id for line in event.lines]
                ctx.output(self.looks, Looked(SHOP, at, cause, visitor, person, "", bought))
        self._holds(self._act_of(event, at), known, ctx)

    def _act_of(self, event: Click, at: int) -> Held:
        """Return what a click does to carts and persons; ``at`` is when, UTC ms."""
        kind, cents, quantity = event.event_type, 0, event.quantity or 1
        if kind == "purchase":
            cents, quantity = self._amount(event, at), sum(line.quantity for line in event.lines)
        elif event.price is not None:
            cents = self._rules.rates.worth(to_cents(event.price), event.currency, at) or 0
        # By position: one is made for every click.
        return Held(
            at, event.event_id, order_of(event) if kind == "purchase" else "", event.user_id or "", cents,
            kind, event.item_id or "", event.query or "", event.category or "", event.device,
            event.step or "", event.cart_id or "", quantity,
        )  # fmt: skip

    def _only_counts(self, event: Click, known: BrowserState, ctx: Context) -> None:
        """Tell the shards of a click that comes too late for anybody else."""
        buys = self._buys(event, known, ctx)
        self._count(event, known, ctx, buys=buys)
        if self._rules.by_channel and buys:
            self._counts_for_channel(self._act_of(event, ctx.event_time), known, ctx)

    def _mark(self, event: Click, known: BrowserState, ctx: Context, *, buys: bool) -> None:
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
