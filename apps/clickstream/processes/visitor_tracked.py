"""Sessions of a browser as Snowplow's tracker names them and Snowplow's model judges them.

What a session is, is said by the very functions that Snowplow's own rows prove: ``refused``, ``keep``,
``judged`` and ``summarise`` of :mod:`millrace_apps.clickstream.processes.snowplow`. Its events are kept until
it is over, at most so many.
"""

from __future__ import annotations

from typing import Final

import msgspec

from millrace import Context
from millrace_apps.clickstream.contracts.events import Click, order_of
from millrace_apps.clickstream.contracts.snowplow_events import TrackerEvent
from millrace_apps.clickstream.processes.snowplow import judged, keep, longest, refused, summarise
from millrace_apps.clickstream.processes.visitor_sessions import VisitorSessions
from millrace_apps.clickstream.state.browser_state import Bought, BrowserState
from millrace_apps.clickstream.state.sessions import Judged, Kept, Session, SessionBook

#: What of a session is counted from its events, whenever a row is made of them.
_COUNTED: Final = (
    "events", "views", "buckets", "ping_pages", "converted", "added", "orders", "cents", "campaign",
    "campaign_ms", "landing", "exit", "exit_ms", "device", "marks",
)  # fmt: skip


def kept_of(event: Click, campaign: str | None) -> Kept:
    """Return what is kept of a click."""
    sent = event.client_time_ms if event.client_sent_ms is None else event.client_sent_ms
    return Kept(
        event_id=event.event_id,
        event_type=event.event_type,
        event_time_ms=event.event_time_ms,
        client_time_ms=event.client_time_ms,
        client_sent_ms=sent,
        page_view_id=event.page_view_id or event.page_url,
        page_url=event.page_url,
        page_type=event.page_type,
        device=event.device,
        campaign=campaign,
        step=event.step,
        amount=event.amount,
        quantity=event.quantity,
        user_id=event.user_id,
        order_id=order_of(event) if event.event_type == "purchase" else "",
    )


def tracked(event: Kept, client: str) -> TrackerEvent:
    """Return a click as Snowplow's pipeline would store it.

    Args:
        event: The click.
        client: The tracker's name of its session.
    """
    return TrackerEvent(
        event_id=event.event_id,
        event_name=event.event_type,
        session_id=client,
        collector_ms=event.event_time_ms,
        created_ms=event.client_time_ms,
        sent_ms=event.client_sent_ms,
        derived_ms=event.event_time_ms - (event.client_sent_ms - event.client_time_ms),
        page_view_id=event.page_view_id,
        user_id=event.user_id,
    )


class TrackedSessions(VisitorSessions):
    """Lets the tracker's sessions be those of a browser."""

    def _session_of(
        self, event: Click, known: BrowserState, campaign: str | None, ctx: Context
    ) -> Session | None:
        kept = kept_of(event, campaign)
        if refused(tracked(kept, event.client_session_id), self._rules.sessions) is not None:
            self.emit_late(event, ctx)
            return None
        session = known.book.tracked(ctx.event_time, event.client_session_id)
        if session is None:
            self.emit_late(event, ctx)
        elif session.closed:
            session.ignored += 1
            session.closed = "quarantined"
            self._write(session, known, ctx)
            return None
        return session

    def _in_time(self, event: Click, book: SessionBook, ctx: Context) -> bool:
        starts = [s.start_ms for s in book.sessions if s.client == event.client_session_id]
        return min([ctx.event_time, *starts]) + longest(self._rules.sessions) >= ctx.watermark

    def _kept(self, event: Click, campaign: str | None, at: int) -> Kept:
        kept = kept_of(event, campaign)
        if event.event_type == "purchase" and event.currency:
            return msgspec.structs.replace(kept, amount=self._amount(event, at) / 100)
        return kept

    def _enter(
        self, session: Session, event: Click | Kept, campaign: str | None, at: int, *, buys: bool = True
    ) -> None:
        kept = event if isinstance(event, Kept) else self._kept(event, campaign, at)
        aside = keep(session.kept, kept, _precedence, self._rules.most_events)
        session.full = session.full or (aside is not None and aside[1] == "full")
        session.start_ms, session.end_ms = min(session.start_ms, at), max(session.end_ms, at)
        session.events = len(session.kept)

    def _judge(self, session: Session, known: BrowserState) -> None:
        """Make of the events that are kept what rows say; what came too long after the start is left out."""
        if not session.kept:
            return
        rules = self._rules.sessions
        within, late = judged(
            (tracked(event, session.client or "") for event in session.kept.values()), session.start_ms, rules
        )
        session.ignored = len(late)
        row, _ = summarise(within, rules, quarantined=bool(late))
        counted = Session(session.start_ms, session.start_ms)
        for event in sorted((session.kept[e.event_id] for e in within), key=_in_order):
            first = known.bought.get(event.order_id)
            buys = first is None or (first.at_ms, first.cause) == (event.event_time_ms, event.event_id)
            super()._enter(counted, event, event.campaign, event.event_time_ms, buys=buys)
        for name in _COUNTED:
            setattr(session, name, getattr(counted, name))
        if row is None:
            session.judged = None
            return
        session.judged = Judged(
            row.start_ms, row.end_ms, row.total_events, row.page_views, row.engaged_time_s, row.is_engaged
        )
        session.views = row.page_views

    def _take_back(self, session: Session, before: Bought) -> None:
        if not session.kept:  # what its events are kept of is judged anew
            super()._take_back(session, before)

    def _write(self, session: Session, known: BrowserState, ctx: Context) -> None:
        self._judge(session, known)
        if session.judged is not None:
            super()._write(session, known, ctx)

    def _finish(self, session: Session, known: BrowserState, ctx: Context) -> None:
        self._judge(session, known)
        session.kept = {}
        if session.ignored:
            session.closed = "quarantined"
        if session.judged is not None:
            super()._finish(session, known, ctx)

    def _withdraw(self, session: Session, known: BrowserState, ctx: Context) -> None:
        """A tracker's session has its name whenever it begins: its row is written anew, and not another."""

    def _visited(self, session: Session, ctx: Context) -> None:
        if session.judged is not None:
            super()._visited(session, ctx)

    def _named(self, session: Session, start_ms: int, ctx: Context) -> str:
        return f"{ctx.key}:{session.client}"

    def _figures(self, session: Session) -> tuple[int, int, int, int]:
        judged = session.judged
        if judged is None:
            return super()._figures(session)
        return judged.start_ms, judged.end_ms, judged.events, judged.views


def _precedence(event: Kept) -> tuple[int, ...]:
    """Of several events of one identity the first to be collected counts."""
    made, sent = event.client_time_ms, event.client_sent_ms
    return event.event_time_ms, made, event.event_time_ms - (sent - made), sent


def _in_order(event: Kept) -> tuple[int, str]:
    return event.event_time_ms, event.event_id
