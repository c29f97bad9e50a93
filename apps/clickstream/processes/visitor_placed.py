"""Clicks told to carts and persons, in order of time, when no earlier login can come any more.

```
browser   ··· view ··· login u1 ··· order ···· login u2 ·····   the view is u1's, though u2 may be read first
                │          │          │
watermark  ─────┴──────────┴──────────┴─►                       each is told when the watermark passes it
```

What is late is told at once, by what is known then.
"""

from __future__ import annotations

from bisect import insort
from typing import Final

from millrace import Context
from millrace_apps.clickstream.contracts.messages import (
    Absorb,
    Absorbed,
    Activity,
    CartChange,
    CartOwner,
    MarketingConsent,
    Purchase,
    Unlink,
)
from millrace_apps.clickstream.processes.visitor_sessions import VisitorSessions
from millrace_apps.clickstream.state.activity_counts import ActivityCounts, ActivityKind
from millrace_apps.clickstream.state.browser_state import SETTLED, BrowserState, Held
from millrace_apps.clickstream.state.consent import WITHDRAWN, may_offer, may_stitch
from millrace_apps.clickstream.state.ownership import NOBODY, Mark
from millrace_apps.clickstream.state.touches import brought_by, owner_by

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


class VisitorPlaced(VisitorSessions):
    """Tells carts and persons who came, and who did what."""

    def _holds(self, act: Held, known: BrowserState, ctx: Context) -> None:
        """Let what was done wait until it is settled by whom; what concerns no cart and no person goes."""
        kind = act.kind
        if kind == "purchase":
            known.held = [one for one in known.held if one.order_id != act.order_id]
        elif kind not in _ACTIVITIES or (kind == "page_view" and not act.item):
            return
        if act.at_ms > ctx.watermark:
            insort(known.held, act)
            ctx.timers.bring_forward(act.at_ms, SETTLED)
            return
        there = known.ownership
        come = there.next_after(act.at_ms) if there is not None and not there.at(act.at_ms) else None
        if come is None or come > known.placed:
            self._did(act, known, ctx)
            return
        kept, known.part, known.carts = (known.part, known.carts), None, []
        self._did(act, known, ctx)
        if known.part is not None or known.carts:  # whose it is has come
            self._comes(come, known, ctx)
        known.part, known.carts = kept

    def _place(self, until_ms: int | None, known: BrowserState, ctx: Context) -> int | None:
        """Tell who came, and who did what, up to a moment (UTC ms; None: of all), in order of time.

        Returns:
            When the next of it is, UTC ms; ``None``: there is nothing else.
        """
        while True:
            come = None if known.ownership is None else known.ownership.next_come(known.placed)
            act = known.held[0] if known.held else None
            if come is not None and (act is None or come[0] <= act.at_ms):
                if until_ms is not None and come[0] > until_ms:
                    return come[0]
                self._comes(come, known, ctx)
            elif act is not None:
                if until_ms is not None and act.at_ms > until_ms:
                    return act.at_ms
                self._did(known.held.pop(0), known, ctx)
            else:
                return None

    def _comes(self, come: Mark, known: BrowserState, ctx: Context) -> None:
        """Let an account be there, and what was done while nobody was known be its."""
        at, user = come
        known.placed = max(come, known.placed)
        person, browser = f"u:{user}", str(ctx.key)
        before = owner_by(known, at - 1) if self._rules.shared == "last" else NOBODY
        if before and before != user:
            ctx.emit(Unlink(f"u:{before}", at, browser, passed=True))
        if known.consent & WITHDRAWN or self.erased.value is not None:
            # Of what was said here, also before it was forgotten, the account knows what it was told then.
            granted = may_offer(known.allowed(at))
            revision = 0 if known.answers is None else known.answers.revision
            ctx.emit(MarketingConsent(person, at, browser, granted, revision))
        for cart in known.carts:
            ctx.output(self.carts, CartOwner(cart, at, browser, person))
        ctx.emit(Absorb(person, at, browser, known.part, known.carts))
        if known.part is not None:
            ctx.emit(Absorbed(f"v:{browser}", at, person))
        known.part, known.carts = None, []

    def _did(self, act: Held, known: BrowserState, ctx: Context) -> None:
        """Tell the cart and the person."""
        kind, at, cause, visitor, cart = act.kind, act.at_ms, act.cause, str(ctx.key), act.cart_id
        consent = known.allowed(at)
        stitch, marketing = may_stitch(consent), may_offer(consent)
        owner = (act.user_id if stitch else NOBODY) or owner_by(known, at)
        person, nobodys = self.person(owner or None, visitor), stitch and not owner
        channel = self._channel(at, known) if cart or marketing else ""
        if cart and kind in _CART:
            pieces = act.quantity * _CART[kind]
            stage = act.step or _STAGE.get(kind, "cart")
            change = CartChange(
                cart_id=cart,
                at_ms=at,
                cause=cause,
                visitor=visitor,
                person=person,
                stage=stage,
                cents=act.cents * pieces,
                marketing=marketing,
                order_id=act.order_id,
                item=act.item if pieces else "",
                pieces=pieces if act.item else 0,
                device=act.device,
                channel=channel,
            )
            ctx.output(self.carts, change)
            if nobodys:
                self._filled(known, cart, kind == "purchase")
        # By position: names take longer to be matched, and most events come through here.
        if kind == "purchase":
            touches = brought_by(known, owner, at, self._rules.shared)
            first, last = (touches[0], touches[-1]) if touches else ((0, ""), (0, ""))
            bought = Purchase(
                person, at, cause, visitor, act.order_id, cart, act.cents, act.quantity, *first, *last,
                marketing, True, act.device, channel,
            )  # fmt: skip
            ctx.emit(bought)
            if nobodys and marketing:
                self._part(known).bought(act.order_id, at, act.cents)
        elif stitch and (act.item or kind != "page_view"):
            did = Activity(
                person, _ACTIVITIES[kind], at, cause, visitor, act.item or act.query, act.category,
                act.device, act.step, cart, act.cents, act.quantity, marketing, channel,
            )  # fmt: skip
            ctx.emit(did)
            if nobodys:
                self._part(known).observe(did.kind, at, did.subject, did.category, act.cents)

    def _channel(self, at_ms: int, known: BrowserState) -> str:
        """Return the channel of the visit that goes on at a moment (UTC ms), by its landings up to then."""
        there = (s for s in reversed(known.book.sessions) if s.start_ms <= at_ms <= s.end_ms)
        session = next(there, None)
        if session is not None and session.client is None:
            # However many landings it has: the earliest is its own.
            first = session.campaign if session.campaign_ms <= at_ms else None
            return self._rules.channels.channel(first)
        start = at_ms if session is None else session.start_ms
        label = next((by for at, by, _ in known.all_touches() if start <= at <= at_ms), None)
        return self._rules.channels.channel(label)

    @staticmethod
    def _part(known: BrowserState) -> ActivityCounts:
        """Return what was done while nobody was known: it is somebody's when somebody logs in."""
        if known.part is None:
            known.part = ActivityCounts()
        return known.part

    @staticmethod
    def _filled(known: BrowserState, cart: str, bought: bool) -> None:
        carts = [other for other in known.carts if other != cart]
        known.carts = carts if bought else [*carts[1 - _CARTS :], cart]
