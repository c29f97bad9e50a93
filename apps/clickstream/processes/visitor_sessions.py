"""Sessions of a browser: their events, their rows, their ways through the funnels, their visits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from zlib import crc32

import msgspec

from millrace import Context
from millrace_apps.clickstream.contracts.events import Click, to_cents
from millrace_apps.clickstream.contracts.messages import VisitCount, shard_of
from millrace_apps.clickstream.contracts.rows import SessionRow
from millrace_apps.clickstream.processes.funnels import result, step_of
from millrace_apps.clickstream.processes.visitor_base import VisitorBase
from millrace_apps.clickstream.state.browser_state import Bought, BrowserState, arm_of
from millrace_apps.clickstream.state.sessions import Kept, Session, SessionBook

#: So many sessions of a browser that nobody is known by are kept, to be given a name later.
_PAST: Final = 5


class VisitorSessions(VisitorBase):
    """Enters events into sessions, and writes what becomes of those."""

    def _session_of(
        self, event: Click, known: BrowserState, campaign: str | None, ctx: Context
    ) -> Session | None:
        session, merged = known.book.enter(ctx.event_time, self._rules.sessions)
        if merged:
            session.thin(self._begins)
        if merged or (session.number and ctx.event_time < session.start_ms):
            self._merged(session, merged, known, ctx)
        return session

    def _enter(
        self, session: Session, event: Click | Kept, campaign: str | None, at: int, *, buys: bool = True
    ) -> None:
        """Let an event count for its session; order makes no difference.

        Args:
            session: The session.
            event: The event.
            campaign: The campaign that it brings.
            at: Its time, UTC ms.
            buys: Whether it is the first that tells of its order, if it tells of one.
        """
        rules = self._rules.sessions
        kind, page = event.event_type, event.page_url
        session.span(at, page)
        session.device = event.device
        if kind == "page_view":
            session.views += 1
        elif kind == "page_ping":
            session.ping(at // rules.heartbeat_ms, crc32(page.encode()))
        counts = buys or kind != "purchase"
        if counts and kind in rules.conversions:
            session.converted = True
        if campaign is not None:
            session.arrive(campaign, at)
        step = step_of(kind, event.page_type, event.step)
        if counts and step is not None and step in self._steps:
            session.mark(step, at, every_ms=self._begins.get(step, 0))
        if kind == "purchase":
            if counts:
                session.orders += 1
                session.cents += self._amount(event, at)
        elif kind == "add_to_cart":
            session.added += event.quantity or 0
        elif kind == "remove_from_cart":
            session.added -= event.quantity or 0

    def _amount(self, event: Click | Kept, at: int) -> int:
        """Return the value of what is bought in the shop's currency, cents; 0 where its rate is not known."""
        cents = to_cents(event.amount or 0.0)
        return self._rules.rates.worth(cents, event.currency, at) or 0 if isinstance(event, Click) else cents

    def _unbuy(self, before: Bought, known: BrowserState, ctx: Context) -> None:
        """Take an order back from the session that it was counted in: an earlier event tells of it."""
        there = {(session.start_ms, session.client): session for session in known.book.sessions}
        past = [there.get((s.start_ms, s.client), s) for s in known.past]
        for session in {id(session): session for session in (*past, *known.book.sessions)}.values():
            if session.start_ms <= before.at_ms <= session.end_ms and session.orders and not session.bot:
                self._take_back(session, before)
                if session.written:
                    self._write(session, known, ctx)
                if session.number:
                    self._funnel_rows(session, session.start_ms, known, ctx)
        known.past = [msgspec.structs.replace(session) for session in past]

    def _take_back(self, session: Session, before: Bought) -> None:
        session.unbuy(before.at_ms, before.cents, conversions=self._rules.sessions.conversions)

    def _named(self, session: Session, start_ms: int, ctx: Context) -> str:
        return f"{ctx.key}:{start_ms}"

    def _figures(self, session: Session) -> tuple[int, int, int, int]:
        """Return start and end (UTC ms), events and page views, as rows have them."""
        return session.start_ms, session.end_ms, session.events, session.views

    def _in_time(self, event: Click, book: SessionBook, ctx: Context) -> bool:
        """Tell whether the session of a late click may still change."""
        rules = self._rules
        return rules.sessions.commutes and book.in_time(
            ctx.event_time, rules.sessions, ctx.watermark, rules.session_lateness_ms
        )

    def _merged(self, session: Session, merged: Sequence[Session], known: BrowserState, ctx: Context) -> None:
        """Take back the rows of sessions that are part of another now."""
        for gone in merged:
            if gone.written:
                self._withdraw(gone, known, ctx)
        self._renumber(known, ctx)

    def _renumber(self, known: BrowserState, ctx: Context) -> None:
        """Write the sessions again that are another one of their visitor's now."""
        changed = known.book.renumber()
        for session in changed:
            if session.written:
                self._write(session, known, ctx)
        numbers = {(session.start_ms, session.client): session.number for session in changed}
        for past in known.past:
            past.number = numbers.get((past.start_ms, past.client), past.number)

    def _write(self, session: Session, known: BrowserState, ctx: Context) -> None:
        if session.written and session.written_ms != session.start_ms:
            self._withdraw(session, known, ctx)
        session.written_ms = session.start_ms
        self._row(session, session.start_ms, known, ctx)

    def _withdraw(self, session: Session, known: BrowserState, ctx: Context) -> None:
        known.past = [past for past in known.past if past.start_ms != session.written_ms]
        self._row(session, session.written_ms, known, ctx, deleted=True)
        self._funnel_rows(session, session.written_ms, known, ctx, deleted=True)

    def _row(
        self, session: Session, start_ms: int, known: BrowserState, ctx: Context, *, deleted: bool = False
    ) -> None:
        book, rules = known.book, self._rules.sessions
        book.revision += 1
        row = SessionRow(
            self._named(session, start_ms, ctx), ctx.key, session.user_id, book.number_of(session),
            *self._figures(session), session.attention_s(rules),
            session.engaged(rules), session.converted, session.added, session.orders, session.cents,
            session.campaign, session.landing, session.exit, session.device, rules.name,
            "merged" if deleted else session.closed, bool(session.closed) and not deleted,
            session.ignored, session.bot, book.revision, deleted, session.full,
            self._rules.channels.channel(session.campaign),
        )  # fmt: skip
        ctx.output(self.sessions, row, revision=book.revision)

    def _funnel_rows(
        self, session: Session, start_ms: int, known: BrowserState, ctx: Context, *, deleted: bool = False
    ) -> None:
        if session.bot:
            return
        arm = arm_of(self.person(session.user_id, ctx.key), self._rules)
        for funnel in self._rules.funnels:
            name = self._named(session, start_ms, ctx)
            row = result(funnel, session.marks, name, ctx.key, arm, known.book.revision, deleted=deleted)
            if row is not None:
                ctx.output(self.funnels, row, revision=known.book.revision)

    def _finish(self, session: Session, known: BrowserState, ctx: Context) -> None:
        """Write the final row of a session, its way through the funnels, and count it."""
        self._write(session, known, ctx)
        self._funnel_rows(session, session.start_ms, known, ctx)
        if not session.bot and (session.user_id is None or known.unsettled(ctx.watermark)):
            known.past = [
                s for s in known.past if (s.start_ms, s.client) != (session.start_ms, session.client)
            ][1 - _PAST :]
            known.past.append(msgspec.structs.replace(session))

    def _visited(self, session: Session, ctx: Context) -> None:
        """Count a visit that is over, in the hour in which it ended."""
        if session.bot:
            return
        ctx.output(
            self.counts,
            VisitCount(
                shard_of(ctx.key, self._rules.shards), ctx.event_time, session.campaign or "direct",
                session.engaged(self._rules.sessions), session.converted, session.orders, session.views,
                session.cents,
            ),
        )  # fmt: skip
