"""Sessions of bare clicks: a visitor, a time, an item. For data that has no more, and for comparisons."""

from __future__ import annotations

import msgspec

from millrace import Context, KeyedProcess, Timer, arrival, days, value_state
from millrace_apps.clickstream.processes.rules import CloseReason, SessionRules, UnknownRules
from millrace_apps.clickstream.state.sessions import Session, SessionBook

_CLOSE = "close"


class BareClick(msgspec.Struct, frozen=True, gc=False):
    """A click, with the visitor as its key.

    Attributes:
        visitor_id: The visitor.
        item_id: What was clicked.
        event_time_ms: When, UTC milliseconds.
    """

    visitor_id: str
    item_id: str
    event_time_ms: int


class BareSession(msgspec.Struct, frozen=True, gc=False):
    """A session; the row with the highest ``revision`` of a ``session_id`` holds.

    Attributes:
        session_id: Its identity.
        visitor_id: The visitor.
        session_start_ms: Time of the first event, UTC ms.
        session_end_ms: Time of the last one.
        events: How many.
        close_reason: Why it ended; ``merged``: it is part of an earlier one, and does not count.
        revision: Grows with every row of the visitor.
    """

    session_id: str
    visitor_id: str
    session_start_ms: int
    session_end_ms: int
    events: int
    close_reason: CloseReason
    revision: int


class Sessionize(KeyedProcess[BareClick, BareSession]):
    """Cuts every visitor's clicks into sessions.

    Args:
        rules: When a session ends; a pause, and perhaps midnight or a longest length.
        lateness_ms: How long after its end a session may still be changed by late events, ms.

    Example:
        >>> from millrace.testing import TestDriver
        >>> from millrace_apps.clickstream.processes.rules import GA4
        >>> driver = TestDriver(Sessionize(GA4))
        >>> for at in (0, 30 * 60_000, 60 * 60_000 + 1):
        ...     driver.send("v", BareClick("v", "tea", at), at=at)
        >>> driver.drain()
        >>> [(s.session_start_ms, s.session_end_ms, s.events, s.close_reason) for s in driver.values()]
        [(0, 1800000, 2, 'inactivity'), (3600001, 3600001, 1, 'inactivity')]
    """

    name = "Sessionize"
    order = arrival(commutes=True)
    book = value_state(SessionBook, ttl=days(30))

    def __init__(self, rules: SessionRules, *, lateness_ms: int = 0) -> None:
        if not rules.commutes:
            raise UnknownRules(f"bare clicks do not tell what the rules '{rules.name}' look at")
        self._rules = rules
        self._lateness = lateness_ms

    def process(self, event: BareClick, ctx: Context) -> None:
        """Count a click."""
        at = ctx.event_time
        book = self.book.value or SessionBook()
        session, merged = book.enter(at, self._rules)
        session.span(at, "")
        self.book.value = book
        if merged or session.written:
            self._corrected(book, session, merged, ctx)
        # Never later than what is due, but not moved with every click either: it fires, finds the session
        # open, and is set anew.
        due = book.due(self._rules, self._lateness)
        if due is not None:
            ctx.timers.bring_forward(due, _CLOSE)

    def on_late(self, event: BareClick, ctx: Context) -> None:
        """Let a late click change its session, if that is not over for good."""
        book = self.book.value or SessionBook()
        if book.in_time(ctx.event_time, self._rules, ctx.watermark, self._lateness):
            self.process(event, ctx)
        else:
            self.emit_late(event, ctx)

    def _corrected(self, book: SessionBook, session: Session, merged: list[Session], ctx: Context) -> None:
        for gone in merged:
            if gone.written:
                self._withdraw(book, gone, ctx)
            session.number = min(filter(None, (session.number, gone.number)), default=0)
        if session.written and session.written_ms != session.start_ms:
            self._withdraw(book, session, ctx)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """Close what has ended; forget what is over for good."""
        book = self.book.value
        if book is None:
            return
        for session in book.expire(timer.at, self._rules, self._lateness):
            self._emit(book, session, session.closed, ctx)
        due = book.due(self._rules, self._lateness)
        if due is None:
            self.book.clear()
            return
        self.book.value = book
        ctx.timers.at(due, _CLOSE)

    def last_due(self, latest: int) -> int:
        """Return when (ms) the last session is over for good."""
        book = self.book.value
        return latest if book is None else max(latest, book.over(self._rules, self._lateness))

    def _withdraw(self, book: SessionBook, session: Session, ctx: Context) -> None:
        """Say that the row of a session, as it was written, is none any more."""
        session.start_ms, start = session.written_ms, session.start_ms
        self._emit(book, session, "merged", ctx)
        session.start_ms, session.written_ms = start, -1

    def _emit(self, book: SessionBook, session: Session, reason: str, ctx: Context) -> None:
        row = BareSession(
            f"{ctx.key}:{session.start_ms}",
            ctx.key,
            session.start_ms,
            session.end_ms,
            session.events,
            reason,  # type: ignore[arg-type]
            book.revision,
        )
        ctx.emit(row, revision=book.revision)
        session.written_ms = session.start_ms
        book.revision += 1
