"""The visitor: one browser's clicks without repeats and bots, as sessions, with consent, and whose it is."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from typing import ClassVar, Final
from zlib import crc32

import msgspec

from apps.clickstream.bots import is_crawler
from apps.clickstream.consent import (
    WITHDRAWN,
    Answer,
    Answers,
    ConsentChange,
    Step,
    bits_of,
    may_offer,
    may_stitch,
    names,
)
from apps.clickstream.events import (
    INPUTS,
    Click,
    Consent,
    Customer,
    Forget,
    Refund,
    ShopEvent,
    identity_of,
    to_cents,
)
from apps.clickstream.funnels import FunnelResult, result, step_of
from apps.clickstream.known import (
    MINUTE_MS,
    NOW_MINUTES,
    Known,
    VisitorRules,
    arm_of,
    campaign_of,
    newly_covered,
    said_the_same,
    seen_as,
    seen_at,
)
from apps.clickstream.messages import (
    Activity,
    ActivityKind,
    CartChange,
    Details,
    EraseCart,
    ErasePerson,
    ItemCount,
    Link,
    MarketingConsent,
    OrderRefunded,
    Purchase,
    ToCart,
    ToPerson,
    ToShard,
    Unlink,
    VisitCount,
    shard_of,
)
from apps.clickstream.rows import Erased, Identity, SessionRow, digest_of
from apps.clickstream.sessions import Session, SessionBook
from millrace import Context, KeyedProcess, Timer, arrival, days, side_output, value_state
from millrace.parts.contents import digest_of as content_of
from millrace.process import EVENT_TIME_ORDER

_TICK: Final = "tick"
#: So many sessions of a browser that nobody is known by are kept, to be given a name later.
_PAST: Final = 5
#: What of a browser's clicks profiles and offers look at.
_ACTIVITIES: Final[dict[str, ActivityKind]] = {
    "page_view": "view",
    "search": "search",
    "add_to_cart": "add_to_cart",
    "remove_from_cart": "view",
    "checkout": "checkout",
}


_NOTHING: Final = Known()


class Visitors(KeyedProcess[ShopEvent, ToPerson]):
    """Keeps what is known of a browser, and tells persons, carts, shards and orders what concerns them.

    Args:
        rules: What it is told; sessions must be such that order makes no difference to them.
    """

    name = "Visitors"
    # Every field of a session is a sum, a least, a greatest or a set, and a row that an event of an earlier
    # time changes is written again: what stands in the tables in the end hangs on the events alone.
    order = arrival(corrects=True)
    inputs: ClassVar = INPUTS
    known = value_state(Known, ttl=days(395))
    sessions = side_output(SessionRow)
    funnels = side_output(FunnelResult)
    consents = side_output(ConsentChange)
    identities = side_output(Identity)
    erasures = side_output(Erased)
    carts = side_output(ToCart)
    counts = side_output(ToShard)
    refunds = side_output(OrderRefunded)

    def __init__(self, rules: VisitorRules | None = None) -> None:
        self._rules = rules or VisitorRules()
        funnels = self._rules.funnels
        later = {step for f in funnels for step in f.steps[1:]}
        self._first_steps = {f.steps[0] for f in funnels} - later
        self._steps = {step for f in funnels for step in f.steps}

    # -- events ----------------------------------------------------------------------------------

    def process(self, event: ShopEvent, ctx: Context) -> None:
        """Handle an event that is in time."""
        if isinstance(event, Click):
            known = self._first_of_its_kind(event, ctx)
            if known is not None:
                self._click(event, known, ctx)
        else:
            self._other(event, ctx)

    def on_late(self, event: ShopEvent, ctx: Context) -> None:
        """Let a late click change what it still may; the other streams are never too late."""
        if not isinstance(event, Click):
            self._other(event, ctx)
            return
        rules = self._rules
        known = self.known.value
        if ctx.event_time <= ctx.watermark - rules.repeats_ms:
            self.emit_late(event, ctx)  # whether it is a repeat cannot be told any more
            return
        book = SessionBook() if known is None else known.book
        in_time = rules.sessions.commutes and book.in_time(
            ctx.event_time, rules.sessions, ctx.watermark, rules.session_lateness_ms
        )
        fresh = self._first_of_its_kind(event, ctx)
        if fresh is None:
            return
        if in_time:
            self._click(event, fresh, ctx)
        else:
            self.known.value = fresh
            self.emit_late(event, ctx)
            if not fresh.bot and not is_crawler(event.user_agent):
                self._count(event, fresh, ctx)

    def _first_of_its_kind(self, event: ShopEvent, ctx: Context) -> Known | None:
        """Return what is known, the event remembered; ``None`` for a repeat, or another's click."""
        if isinstance(event, Click) and event.visitor_id != ctx.key:
            ctx.dead_letter("schema", f"the key is {ctx.key!r}, the visitor {event.visitor_id!r}")
            return None
        known = self.known.value
        at = ctx.event_time
        if known is None:
            known = Known()
        seen, identity, content = known.seen, identity_of(event), content_of(event)
        if isinstance(event, Consent):
            identity = f"consent {identity}"  # a click may have the same, and is something else
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
        if ctx.timers.pending(_TICK) is None:
            ctx.timers.at(at + self._rules.sessions.ends_after(), _TICK)
        return known

    def _session_of(self, event: Click, known: Known, campaign: str | None, ctx: Context) -> Session | None:
        session, merged = known.book.enter(ctx.event_time, self._rules.sessions)
        if merged or (session.number and ctx.event_time < session.start_ms):
            self._merged(session, merged, known, ctx)
        return session

    def _click(self, event: Click, known: Known, ctx: Context) -> None:
        rules, at = self._rules, ctx.event_time
        kind = event.event_type
        campaign = campaign_of(event)
        crawler = is_crawler(event.user_agent)
        if not crawler and not known.bot and self._too_fast(known, at):
            known.bot = "rate"
        session = self._session_of(event, known, campaign, ctx)
        self.known.value = known
        if session is None:
            return
        over, opened = bool(session.number), not session.events
        self._enter(session, event, campaign, at)
        if crawler or known.bot:
            session.bot = "user_agent" if crawler else known.bot
        else:
            self._known_person(event, known, campaign, ctx)
            session.user_id = known.user_id
            self._count(event, known, ctx)
            self._tell(event, known, kind, ctx)
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

    def _wake(self, known: Known, ctx: Context) -> None:
        """Bring the timer forward to what is due next: it is never later than that."""
        due = known.book.due(self._rules.sessions, self._rules.session_lateness_ms)
        if due is None:
            return
        ctx.timers.bring_forward(due, _TICK)

    def _enter(self, session: Session, event: Click, campaign: str | None, at: int) -> None:
        """Let an event count for its session; order makes no difference."""
        rules = self._rules.sessions
        kind, page = event.event_type, event.page_url
        session.span(at, page)
        session.device = event.device
        if kind == "page_view":
            session.views += 1
        elif kind == "page_ping":
            session.ping(at // rules.heartbeat_ms, crc32(page.encode()))
        if kind in rules.conversions:
            session.converted = True
        if campaign is not None:
            session.arrive(campaign, at)
        step = step_of(kind, event.page_type, event.step)
        if step is not None and step in self._steps:
            session.mark(step, at, first_only=step in self._first_steps)
        if kind == "purchase":
            session.orders += 1
            session.cents += to_cents(event.amount or 0.0)
        elif kind == "add_to_cart":
            session.added += event.quantity or 0
        elif kind == "remove_from_cart":
            session.added -= event.quantity or 0

    def _too_fast(self, known: Known, at: int) -> bool:
        times, most = known.times, self._rules.rate_events
        if not times or at >= times[-1]:
            times.append(at)
        else:
            insort(times, at)
        if len(times) < most:
            return False
        del times[: len(times) - most]
        return times[-1] - times[0] < self._rules.rate_ms

    # -- whose it is ------------------------------------------------------------------------------

    def _known_person(self, event: Click, known: Known, campaign: str | None, ctx: Context) -> None:
        at = ctx.event_time
        touched = campaign is not None and known.touch(campaign, at)
        user = event.user_id
        if user and user != known.user_id and may_stitch(known.consent):
            known.user_id = user
            touched = True
            self._identity(known, user, ctx)
            there = {session.start_ms for session in known.book.sessions}
            for past in (*(s for s in known.past if s.start_ms not in there), *known.book.sessions):
                past.user_id = user
                if past.written:
                    self._write(past, known, ctx)
                if past.number:  # it is over, and stands among the funnels, by whose arm is another's now
                    self._funnel_rows(past, past.start_ms, known, ctx)
            known.past = []
        if touched and known.user_id is not None:
            ctx.emit(
                Link(
                    f"u:{known.user_id}", at, ctx.key, known.first_ms, known.first, known.last_ms, known.last
                )
            )

    def _identity(self, known: Known, user: str, ctx: Context, *, deleted: bool = False) -> None:
        known.book.revision += 1
        row = Identity(ctx.key, user, ctx.event_time, known.book.revision, deleted)
        ctx.output(self.identities, row, revision=known.book.revision)

    def person(self, known: Known, visitor: str) -> str:
        """Return whom an event concerns: the account where that is known and allowed, or the browser."""
        return f"u:{known.user_id}" if known.user_id is not None else f"v:{visitor}"

    # -- what others are told ---------------------------------------------------------------------

    def _count(self, event: Click, known: Known, ctx: Context) -> None:
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
                    shard_of(item), at, cause, item, event.category or "", "view", 1, 0, device, low, high
                ),
            )
        elif news:
            ctx.output(
                self.counts, ItemCount(shard_of(ctx.key), at, cause, "", "", "view", 0, 0, device, low, high)
            )
        if kind == "purchase":
            for line in event.lines:
                cents = to_cents(line.price) * line.quantity
                ctx.output(
                    self.counts,
                    ItemCount(shard_of(line.item_id), at, cause, line.item_id, line.category, "sold",
                              line.quantity, cents),
                )  # fmt: skip

    def _tell(self, event: Click, known: Known, kind: str, ctx: Context) -> None:
        """Tell the cart and the person."""
        at, cause, visitor = ctx.event_time, event.event_id, ctx.key
        cents, quantity = 0, event.quantity or 1
        if kind == "purchase":
            cents, quantity = to_cents(event.amount or 0.0), sum(line.quantity for line in event.lines)
        elif event.price is not None:
            cents = to_cents(event.price)
        cart, step = event.cart_id or "", event.step or ""
        person, marketing = self.person(known, visitor), may_offer(known.consent)
        if event.cart_id is not None and kind in _CART:
            worth = cents * quantity * _CART[kind]
            stage = step or _STAGE.get(kind, "cart")
            ctx.output(self.carts, CartChange(cart, at, cause, visitor, person, stage, worth, marketing))
        # By position: names take longer to be matched, and most events come through here.
        if kind == "purchase":
            ctx.emit(
                Purchase(person, at, cause, visitor, event.order_id or "", cart, cents, quantity,
                         known.first_ms, known.first, known.last_ms, known.last, marketing)
            )  # fmt: skip
        elif kind in _ACTIVITIES and may_stitch(known.consent) and (event.item_id or kind != "page_view"):
            ctx.emit(
                Activity(person, _ACTIVITIES[kind], at, cause, visitor, event.item_id or event.query or "",
                         event.category or "", event.device, step, cart, cents, quantity, marketing)
            )  # fmt: skip

    # -- rows -------------------------------------------------------------------------------------

    def _merged(self, session: Session, merged: Sequence[Session], known: Known, ctx: Context) -> None:
        """Take back the rows of sessions that are part of another now."""
        for gone in merged:
            if gone.written:
                self._withdraw(gone, known, ctx)

    def _write(self, session: Session, known: Known, ctx: Context) -> None:
        if session.written and session.written_ms != session.start_ms:
            self._withdraw(session, known, ctx)
        session.written_ms = session.start_ms
        self._row(session, session.start_ms, known, ctx)

    def _withdraw(self, session: Session, known: Known, ctx: Context) -> None:
        known.past = [past for past in known.past if past.start_ms != session.written_ms]
        self._row(session, session.written_ms, known, ctx, deleted=True)
        self._funnel_rows(session, session.written_ms, known, ctx, deleted=True)

    def _row(
        self, session: Session, start_ms: int, known: Known, ctx: Context, *, deleted: bool = False
    ) -> None:
        book, rules = known.book, self._rules.sessions
        book.revision += 1
        row = SessionRow(
            f"{ctx.key}:{start_ms}", ctx.key, session.user_id, book.number_of(session),
            session.start_ms, session.end_ms, session.events, session.views, session.attention_s(rules),
            session.engaged(rules), session.converted, session.added, session.orders, session.cents,
            session.campaign, session.landing, session.exit, session.device, rules.name,
            "merged" if deleted else session.closed, bool(session.closed) and not deleted,
            session.ignored, session.bot, book.revision, deleted,
        )  # fmt: skip
        ctx.output(self.sessions, row, revision=book.revision)

    def _funnel_rows(
        self, session: Session, start_ms: int, known: Known, ctx: Context, *, deleted: bool = False
    ) -> None:
        if session.bot:
            return
        arm = arm_of(self.person(known, ctx.key), self._rules)
        for funnel in self._rules.funnels:
            row = result(funnel, session.marks, f"{ctx.key}:{start_ms}", ctx.key, arm, known.book.revision,
                         deleted=deleted)  # fmt: skip
            if row is not None:
                ctx.output(self.funnels, row, revision=known.book.revision)

    def _finish(self, session: Session, known: Known, ctx: Context) -> None:
        """Write the final row of a session, its way through the funnels, and count it."""
        self._write(session, known, ctx)
        self._funnel_rows(session, session.start_ms, known, ctx)
        if known.user_id is None and not session.bot:
            known.past = [s for s in known.past if s.start_ms != session.start_ms][1 - _PAST :]
            known.past.append(msgspec.structs.replace(session))

    # -- time -------------------------------------------------------------------------------------

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """Close what has ended; forget repeats that cannot come any more."""
        known = self.known.value
        if known is None:
            return
        rules = self._rules
        for session in known.book.expire(timer.at, rules.sessions, rules.session_lateness_ms):
            self._finish(session, known, ctx)
            self._visited(session, ctx)
        seen = known.seen
        horizon = timer.at - rules.repeats_ms
        if seen and min(map(seen_at, seen.values())) <= horizon:
            known.seen = seen = {event: mark for event, mark in seen.items() if seen_at(mark) > horizon}
        due = known.book.due(rules.sessions, rules.session_lateness_ms)
        if due is None and not seen:
            known.times, known.minutes, known.bot = [], [], ""
            if known == _NOTHING:
                self.known.clear()
                return
        else:
            # Never at this very time again: what is due then has been done.
            last = max(map(seen_at, seen.values()), default=0) + rules.repeats_ms
            ctx.timers.at(max(due if due is not None else last, timer.at + 1), _TICK)
        self.known.value = known

    def last_due(self, latest: int) -> int:
        """Return when (ms) the last session and the last known event are over: one timer stands for all."""
        known, rules = self.known.value, self._rules
        if known is None:
            return latest
        over = known.book.over(rules.sessions, rules.session_lateness_ms)
        # A millisecond more for each session that is over at one time with others: see on_timer().
        return (
            max(latest, over, max(map(seen_at, known.seen.values()), default=0) + rules.repeats_ms)
            + MINUTE_MS
        )

    def _visited(self, session: Session, ctx: Context) -> None:
        """Count a visit that is over, in the hour in which it ended."""
        if session.bot:
            return
        ctx.output(
            self.counts,
            VisitCount(
                shard_of(ctx.key), ctx.event_time, session.campaign or "direct",
                session.engaged(self._rules.sessions), session.converted, session.orders, session.views,
                session.cents,
            ),
        )  # fmt: skip

    # -- the other streams ------------------------------------------------------------------------

    def _other(self, event: ShopEvent, ctx: Context) -> None:
        if isinstance(event, Forget):
            self._forget(event, self.known.value, ctx)
            return
        known = self._first_of_its_kind(event, ctx)
        if known is None:
            return
        self.known.value = known
        identity = identity_of(event)
        if isinstance(event, Consent):
            self._consent(event, known, ctx)
        elif isinstance(event, Customer):
            ctx.emit(Details(f"u:{event.user_id}", ctx.event_time, event.gender, event.birth_year))
        elif isinstance(event, Refund):
            ctx.output(self.refunds, OrderRefunded(event.order_id, identity, to_cents(event.amount)))
        else:
            ctx.emit(ErasePerson(f"u:{event.user_id}", ctx.event_time, identity))

    def _consent(self, event: Consent, known: Known, ctx: Context) -> None:
        """Take an answer; it is judged by when it was said, not by when it came."""
        before, identity = known.consent, event.consent_id
        answers = known.answers or Answers(before & ~WITHDRAWN)
        said = Answer(ctx.event_time, identity, bits_of(event.purposes), event.granted, event.user_id or None)
        steps = answers.take(said, ctx.watermark - self._rules.repeats_ms)
        for step in steps:
            answers.revision += 1
            self._answered(step, answers.revision, ctx, again=step.answer is not said)
        known.answers = answers
        known.consent = after = answers.in_force | before & WITHDRAWN
        if may_offer(before) and not may_offer(after):
            known.consent = after = after | WITHDRAWN
        # Whoever is given leave for the first time has nothing that must be lifted.
        if may_offer(before) != may_offer(after) and after & WITHDRAWN:
            ctx.emit(MarketingConsent(self.person(known, ctx.key), ctx.event_time, ctx.key, may_offer(after)))
        own = next(step for step in steps if step.answer is said)
        # Also where it has been given again since.
        if may_stitch(own.before) and not may_stitch(own.after):
            self._unlink(identity, known, ctx)
        self.known.value = known

    def _answered(self, step: Step, revision: int, ctx: Context, *, again: bool) -> None:
        answer = step.answer
        row = ConsentChange(
            answer.consent_id, ctx.key, answer.user_id, answer.granted, names(answer.bits),
            names(step.after), bool(step.before & ~step.after), answer.at_ms, revision,
        )  # fmt: skip
        ctx.output(self.consents, row, revision=revision if again else 0)

    def _unlink(self, cause: str, known: Known, ctx: Context) -> None:
        """From now on the browser is nobody's, and what was kept of its person on its account goes."""
        ctx.emit(ErasePerson(f"v:{ctx.key}", ctx.event_time, cause))
        if known.user_id is not None:
            ctx.emit(Unlink(f"u:{known.user_id}", ctx.event_time, ctx.key))
            self._identity(known, known.user_id, ctx, deleted=True)
            known.user_id = None

    def _forget(self, event: Forget, known: Known | None, ctx: Context) -> None:
        subject, cause = ctx.key, event.request_id
        erased = Erased(cause, digest_of(subject), known is not None, ctx.event_time)
        ctx.output(self.erasures, erased)
        if known is not None and known.user_id is not None:
            self._identity(known, known.user_id, ctx, deleted=True)
        self.known.clear()
        ctx.timers.delete(_TICK)
        if subject.startswith("c:"):
            ctx.output(self.carts, EraseCart(subject[2:], ctx.event_time, cause))
        else:
            person = subject[2:] if subject.startswith("p:") else f"v:{subject}"
            ctx.emit(ErasePerson(person, ctx.event_time, cause))


_CART: Final[dict[str, int]] = {"add_to_cart": 1, "remove_from_cart": -1, "checkout": 0, "purchase": 0}
_STAGE: Final = {"purchase": "bought"}


class VisitorsInOrder(Visitors):
    """The same in order of time: for rules that look at it, and where topics differ on what was first."""

    name = "VisitorsInOrder"
    order = EVENT_TIME_ORDER

    def _session_of(self, event: Click, known: Known, campaign: str | None, ctx: Context) -> Session | None:
        if self._rules.sessions.commutes:
            return super()._session_of(event, known, campaign, ctx)
        client = event.client_session_id if self._rules.sessions.client else None
        book = known.book
        session, ended = book.follow(ctx.event_time, self._rules.sessions, campaign, client)
        if ended is not None:
            self._finish(ended, known, ctx)
            self._visited(ended, ctx)
        return session


def visitors(rules: VisitorRules) -> Visitors:
    """Return the process for some rules."""
    waits = rules.in_order or not rules.sessions.commutes
    return VisitorsInOrder(rules) if waits else Visitors(rules)
