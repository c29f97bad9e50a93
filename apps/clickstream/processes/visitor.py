"""The visitor: one browser's clicks without repeats and bots, as sessions, with consent, and whose it is."""

from __future__ import annotations

from bisect import insort
from typing import Final

from millrace import Context, Timer
from millrace.parts.contents import digest_of as content_of
from millrace.process import EVENT_TIME_ORDER
from millrace_apps.clickstream.contracts.events import (
    Click,
    Consent,
    Customer,
    Erasure,
    Forget,
    ItemChange,
    Refund,
    ShopEvent,
    order_of,
    to_cents,
    told_apart,
)
from millrace_apps.clickstream.contracts.messages import Details, OrderRefunded
from millrace_apps.clickstream.processes.bots import Behaviour, is_crawler
from millrace_apps.clickstream.processes.visitor_told import VisitorTold
from millrace_apps.clickstream.processes.visitor_tracked import TrackedSessions
from millrace_apps.clickstream.state.browser_state import (
    MINUTE_MS,
    SETTLED,
    TICK,
    BrowserState,
    VisitorRules,
    said_the_same,
    seen_as,
    seen_at,
)
from millrace_apps.clickstream.state.sessions import Session, SessionBook

_NOTHING: Final = BrowserState()


class Visitors(VisitorTold):
    """Keeps what is known of a browser, and tells persons, carts, shards and orders what concerns them.

    Args:
        rules: What it is told; sessions must be such that order makes no difference to them.
    """

    name = "Visitors"

    # -- events ----------------------------------------------------------------------------------

    def process(self, event: ShopEvent, ctx: Context) -> None:
        """Handle an event that is in time."""
        if self._suppressed(event, ctx):
            return
        if isinstance(event, Click):
            known = self._first_of_its_kind(event, ctx)
            if known is not None:
                self._click(event, known, ctx)
        else:
            self._other(event, ctx)

    def on_late(self, event: ShopEvent, ctx: Context) -> None:
        """Let a late click change what it still may; the other streams are never too late."""
        if self._suppressed(event, ctx):
            return
        if not isinstance(event, Click):
            self._other(event, ctx)
            return
        rules = self._rules
        known = self.known.value
        if ctx.event_time <= ctx.watermark - rules.repeats_ms:
            self.emit_late(event, ctx)  # whether it is a repeat cannot be told any more
            if known is None or not known.bot:
                self._order(event, ctx)  # of an order it can
            return
        book = SessionBook() if known is None else known.book
        in_time = self._in_time(event, book, ctx)
        fresh = self._first_of_its_kind(event, ctx)
        if fresh is None:
            return
        if in_time:
            self._click(event, fresh, ctx)
        else:
            self.known.value = fresh
            self.emit_late(event, ctx)
            if not fresh.bot and not is_crawler(event.user_agent):
                self._only_counts(event, fresh, ctx)

    def _first_of_its_kind(self, event: ShopEvent, ctx: Context) -> BrowserState | None:
        """Return what is known, the event remembered; ``None`` for a repeat, or another's click."""
        if isinstance(event, Click) and event.visitor_id != ctx.key:
            ctx.dead_letter("schema", f"the key is {ctx.key!r}, the visitor {event.visitor_id!r}")
            return None
        known = self.known.value
        at = ctx.event_time
        if known is None:
            known = BrowserState()
        seen, identity, content = known.seen, told_apart(event), content_of(event)
        if seen:
            mark = seen.get(identity)
            if mark is not None and said_the_same(mark, content):
                ctx.dead_letter("duplicate", f"event {identity} has come before")
                return None
            if mark is not None:
                ctx.dead_letter("conflict", f"event {identity} has come before, and said something else")
                return None
            horizon = ctx.watermark - self._rules.repeats_ms
            while seen and seen_at(seen[oldest := next(iter(seen))]) <= horizon:
                del seen[oldest]
        seen[identity] = seen_as(at, content)
        if ctx.timers.pending(TICK) is None:
            ctx.timers.at(at + self._rules.sessions.ends_after(), TICK)
        return known

    def _click(self, event: Click, known: BrowserState, ctx: Context) -> None:
        rules, at, visitor = self._rules, ctx.event_time, str(ctx.key)
        campaign = rules.channels.landing(event)
        crawler = is_crawler(event.user_agent)
        before = self._marks.owned(known, visitor) if self._marks else {}
        was = known.bought.get(order_of(event)) if event.event_type == "purchase" else None
        if not crawler and not known.bot:
            known.bot = self._gives_away(event, known, at)
        buys = crawler or bool(known.bot) or self._buys(event, known, ctx)
        session = self._session_of(event, known, campaign, ctx)
        self.known.value = known
        if session is None:
            return
        over, opened = bool(session.number), not session.events
        self._enter(session, event, campaign, at, buys=buys)
        if crawler or known.bot:
            session.bot = "user_agent" if crawler else known.bot
        else:
            owner = self._known_person(event, known, campaign, ctx)
            session.user_id = self._owner_of(session, known)
            self._count(event, known, ctx, buys=buys)
            self._tell(event, known, owner, ctx, buys=buys)
            if self._marks:
                if was is not None and buys:  # an earlier event tells of the order
                    self._marks.drop(known, was.at_ms, "purchase")
                self._mark(event, known, ctx, buys=buys)
                self._tell_marks(before, known, ctx)
        if over and ctx.event_time <= ctx.watermark:
            if session.closed or session.end_ms + rules.sessions.ends_after() <= ctx.watermark:
                session.closed = session.closed or "inactivity"
                self._finish(session, known, ctx)
        elif opened:
            session.reported_ms = at
        elif at - session.reported_ms >= rules.provisional_ms:
            session.reported_ms = at
            self._write(session, known, ctx)
        self._wake(known, ctx)

    def _wake(self, known: BrowserState, ctx: Context) -> None:
        """Bring the timer forward to what is due next: it is never later than that."""
        due = known.book.due(self._rules.sessions, self._rules.session_lateness_ms)
        if due is None:
            return
        ctx.timers.bring_forward(due, TICK)

    def _gives_away(self, event: Click, known: BrowserState, at: int) -> str:
        """Return by what a browser has shown to be a bot; empty: it has not."""
        rules = self._rules.bots
        if self._too_fast(known, at):
            return "rate"
        if not rules.horizons and not rules.regular:
            return ""
        if known.behaviour is None:
            known.behaviour = Behaviour()
        return known.behaviour.take(event.event_type, at, rules)

    def _too_fast(self, known: BrowserState, at: int) -> bool:
        times, most = known.times, self._rules.rate_events
        if not times or at >= times[-1]:
            times.append(at)
        else:
            insort(times, at)
        if len(times) < most:
            return False
        del times[: len(times) - most]
        return times[-1] - times[0] < self._rules.rate_ms

    # -- time -------------------------------------------------------------------------------------

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """Close what has ended; forget repeats that cannot come any more."""
        known = self.known.value
        if known is None:
            return
        if timer.name == SETTLED:
            later = self._place(timer.at, known, ctx)
            if later is not None:
                ctx.timers.at(later, SETTLED)
            self.known.value = known
            return
        rules = self._rules
        for session in known.book.expire(timer.at, rules.sessions, rules.session_lateness_ms):
            self._finish(session, known, ctx)
            self._visited(session, ctx)
        self._renumber(known, ctx)
        seen = known.seen
        horizon = timer.at - rules.repeats_ms
        if seen and min(map(seen_at, seen.values())) <= horizon:
            known.seen = seen = {event: mark for event, mark in seen.items() if seen_at(mark) > horizon}
        marks, browser = self._marks, str(ctx.key)
        known.settle(horizon, (lambda until: marks.settle(known, until, horizon, browser)) if marks else None)
        due = known.book.due(rules.sessions, rules.session_lateness_ms)
        counted = self._counted_until(known)
        if due is None and not seen and timer.at < counted:
            ctx.timers.at(counted, TICK)
        elif due is None and not seen:
            known.times, known.minutes, known.bot, known.owners, known.behaviour = [], [], "", [], None
            if known == _NOTHING:
                self.known.clear()
                return
        else:
            # Never at this very time again: what is due then has been done.
            last = max(map(seen_at, seen.values()), default=0) + rules.repeats_ms
            ctx.timers.at(max(due if due is not None else last, timer.at + 1), TICK)
        self.known.value = known

    def _counted_until(self, known: BrowserState) -> int:
        """Return until when (UTC ms) what a browser did is looked at; 0 where repeats are known longer."""
        rules = self._rules.bots
        if known.behaviour is None or rules.longest_ms <= self._rules.repeats_ms:
            return 0
        last = known.behaviour.last_ms()
        return last + rules.longest_ms if last else 0

    def last_due(self, latest: int) -> int:
        """Return when (ms) the last session and the last known event are over: one timer stands for all."""
        known, rules = self.known.value, self._rules
        if known is None:
            return latest
        over = known.book.over(rules.sessions, rules.session_lateness_ms)
        # A millisecond more for each session that is over at one time with others: see on_timer().
        return (
            max(
                latest,
                over,
                max(map(seen_at, known.seen.values()), default=0) + rules.repeats_ms,
                self._counted_until(known),
            )
            + MINUTE_MS
        )

    # -- the other streams ------------------------------------------------------------------------

    def _other(self, event: ShopEvent, ctx: Context) -> None:
        if isinstance(event, Forget):
            self._forget(event, self.known.value, ctx)
            return
        known = self._first_of_its_kind(event, ctx)
        if known is None:
            return
        self.known.value = known
        if isinstance(event, Consent):
            self._consent(event, known, ctx)
        elif isinstance(event, Customer):
            ctx.emit(Details(f"u:{event.user_id}", ctx.event_time, event.gender, event.birth_year))
        elif isinstance(event, Refund):
            ctx.output(self.refunds, _refund(event))
        elif isinstance(event, ItemChange):
            self._item(event, ctx)
        elif isinstance(event, Erasure):
            self._forget_account(event.user_id, event.request_id, ctx)


class VisitorsInOrder(Visitors):
    """The same in order of time: for rules that look at it, and where topics differ on what was first."""

    name = "VisitorsInOrder"
    order = EVENT_TIME_ORDER

    def _session_of(
        self, event: Click, known: BrowserState, campaign: str | None, ctx: Context
    ) -> Session | None:
        if self._rules.sessions.commutes:
            return super()._session_of(event, known, campaign, ctx)
        session, ended = known.book.follow(ctx.event_time, self._rules.sessions, campaign)
        if ended is not None:
            self._finish(ended, known, ctx)
            self._visited(ended, ctx)
        return session


class VisitorsTracked(TrackedSessions, Visitors):
    """The same with sessions as Snowplow's tracker and model have them, in whatever order."""

    name = "VisitorsTracked"


class VisitorsTrackedInOrder(TrackedSessions, Visitors):
    """So, in order of time: where topics differ on what was first."""

    name = "VisitorsTrackedInOrder"
    order = EVENT_TIME_ORDER


def _refund(event: Refund) -> OrderRefunded:
    return OrderRefunded(
        event.order_id, event.refund_id, to_cents(event.amount), event.event_time_ms,
        event.kind == "cancellation", -1 if event.tax is None else to_cents(event.tax),
        to_cents(event.shipping), event.currency or "",
        [(line.item_id, line.quantity) for line in event.lines],
    )  # fmt: skip


def visitors(rules: VisitorRules) -> Visitors:
    """Return the process for some rules."""
    if rules.sessions.client:
        return VisitorsTrackedInOrder(rules) if rules.in_order else VisitorsTracked(rules)
    waits = rules.in_order or not rules.sessions.commutes
    return VisitorsInOrder(rules) if waits else Visitors(rules)
