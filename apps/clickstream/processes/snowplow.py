"""Snowplow's web data model as processes: page views, sessions, visitors.

Everything is judged when a session ends, from what is kept of its events, so the order in which they came
makes no difference. Rules: :data:`millrace_apps.clickstream.processes.rules.SNOWPLOW`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Final, Protocol, TypeVar

import msgspec

from millrace import Context, KeyedProcess, Timer, arrival, days, side_output, value_state
from millrace_apps.clickstream.contracts.snowplow_events import (
    PutAside,
    Text,
    TrackerEvent,
    TrackerSession,
    TrackerUser,
    TrackerView,
)
from millrace_apps.clickstream.processes.bots import is_crawler
from millrace_apps.clickstream.processes.rules import DAY_MS, SNOWPLOW, SessionRules

_CLOSE = "close"
#: How long a session is remembered after its end, so that later events are known to be too late.
_REMEMBERED = days(730)
_PAGE_EVENTS = ("page_view", "page_ping")
#: So many events of a session are kept until it is judged.
MOST_EVENTS: Final = 5_000


class SessionEvents(msgspec.Struct, gc=False):
    """What is kept of a session.

    Attributes:
        since_ms: When the collector got its first event.
        events: Its events by identity; none once it is closed.
        closed: Whether it has ended.
        quarantined: Events that came too late for it.
        full: Whether it had more events than are kept.
    """

    __stored_as__: ClassVar[str] = "Book"

    since_ms: int
    events: dict[str, TrackerEvent] = msgspec.field(default_factory=dict)
    closed: bool = False
    quarantined: int = 0
    full: bool = False

    def keep(self, event: TrackerEvent) -> tuple[TrackerEvent, str] | None:
        """Keep an event; return what is put aside instead, and why."""
        self.since_ms = min(self.since_ms, event.collector_ms)
        aside = keep(self.events, event, _precedence, MOST_EVENTS)
        self.full = self.full or (aside is not None and aside[1] == "full")
        return aside


class _Identified(Protocol):
    @property
    def event_id(self) -> str: ...


_E = TypeVar("_E", bound=_Identified)


def keep(
    events: dict[str, _E], event: _E, precedence: Callable[[_E], tuple[Any, ...]], most: int
) -> tuple[_E, str] | None:
    """Keep an event of a session; return what is put aside instead, and why; in whatever order events come.

    Args:
        events: Those that are kept, by identity.
        event: The event.
        precedence: Of several of one identity the first by this counts; and of too many the first ones.
        most: So many are kept.
    """
    before = events.get(event.event_id)
    if before is not None and precedence(event) >= precedence(before):
        return event, "duplicate"
    events[event.event_id] = event
    if before is not None:
        return before, "duplicate"
    if len(events) <= most:
        return None
    last = max(events.values(), key=lambda e: (*precedence(e), e.event_id))
    return events.pop(last.event_id), "full"


def judged(
    events: Iterable[TrackerEvent], since_ms: int, rules: SessionRules
) -> tuple[list[TrackerEvent], list[TrackerEvent]]:
    """Return the events of a session that count, and those too long after its start.

    Args:
        events: All of them.
        since_ms: When the first one was collected, ms.
        rules: How long a session may be.
    """
    last = since_ms + longest(rules)
    within: list[TrackerEvent] = []
    late: list[TrackerEvent] = []
    for event in events:
        (within if event.collector_ms <= last else late).append(event)
    return within, late


def longest(rules: SessionRules) -> int:
    """Return how long a tracker's session may be, ms."""
    return rules.max_length_ms or 3 * DAY_MS


def refused(event: TrackerEvent, rules: SessionRules) -> str | None:
    """Return why an event is of no session, whichever; ``None`` where it may be of one."""
    if not event.session_id:
        return "no_session"
    late = rules.days_late_ms
    if late is not None and event.sent_ms - event.created_ms > late:
        return "sent_late"
    return "bot" if is_crawler(event.user_agent) else None


class TrackerSessions(KeyedProcess[TrackerEvent, TrackerSession]):
    """Makes a session of the events that the tracker gave one session id.

    Args:
        rules: How long a session may be, what is too late, what is engaged.
    """

    name = "TrackerSessions"
    order = arrival(commutes=True)
    book = value_state(SessionEvents, ttl=_REMEMBERED)
    page_views = side_output(TrackerView)
    put_aside = side_output(PutAside)

    def __init__(self, rules: SessionRules = SNOWPLOW) -> None:
        self._rules = rules
        self._longest = longest(rules)

    def process(self, event: TrackerEvent, ctx: Context) -> None:
        """Keep an event of a session that is open."""
        reason = refused(event, self._rules)
        aside = (event, reason) if reason is not None else self._kept(event, ctx)
        if aside is not None:
            put, why = aside
            ctx.output(self.put_aside, PutAside(put.event_id, put.session_id, why, put.collector_ms))

    def _kept(self, event: TrackerEvent, ctx: Context) -> tuple[TrackerEvent, str] | None:
        book = self.book.value
        if book is not None and book.closed:
            return event, "quarantined"
        since = None if book is None else book.since_ms
        book = book or SessionEvents(event.collector_ms)
        aside = book.keep(event)
        if book.since_ms != since:
            ctx.timers.at(book.since_ms + self._longest + 1, _CLOSE)
        self.book.value = book
        return aside

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """Close the session: its views and its row."""
        book = self.book.value
        if book is None or book.closed:
            return
        within, late = judged(book.events.values(), book.since_ms, self._rules)
        for event in late:
            aside = PutAside(event.event_id, event.session_id, "quarantined", event.collector_ms)
            ctx.output(self.put_aside, aside)
        row, views = summarise(within, self._rules, quarantined=bool(late))
        for view in views:
            ctx.output(self.page_views, view)
        if row is not None:
            ctx.emit(row)
        self.book.value = SessionEvents(book.since_ms, closed=True, full=book.full)


class Sessions(msgspec.Struct, gc=False):
    """The sessions of a visitor, by id, and how often its row has been written."""

    rows: dict[str, TrackerSession] = msgspec.field(default_factory=dict)
    revision: int = 0


class TrackerUsers(KeyedProcess[TrackerSession, TrackerUser]):
    """Makes a row per visitor, and writes into all its sessions whom it turned out to be."""

    name = "TrackerUsers"
    order = arrival(commutes=True)
    kept = value_state(Sessions, ttl=_REMEMBERED)
    sessions = side_output(TrackerSession)

    def process(self, event: TrackerSession, ctx: Context) -> None:
        """Add a session; what is known by it is written into the earlier ones."""
        if event.visitor_id is None:
            ctx.output(self.sessions, event)
            return
        kept = self.kept.value or Sessions()
        kept.rows[event.session_id] = event
        kept.revision += 1
        self.kept.value = kept
        stitched = _last_known(kept.rows.values())
        for identity, row in sorted(kept.rows.items()):
            if identity == event.session_id or row.stitched_user_id != stitched:
                row = msgspec.structs.replace(row, stitched_user_id=stitched, revision=row.revision + 1)
                kept.rows[identity] = row
                ctx.output(self.sessions, row)
        ctx.emit(_user(event.visitor_id, list(kept.rows.values()), kept.revision))


def _precedence(event: TrackerEvent) -> tuple[Any, ...]:
    """Of several events of one identity the first to be collected counts."""
    return event.collector_ms, event.created_ms, event.derived_ms, event.sent_ms


def _in_order(event: TrackerEvent) -> tuple[Any, ...]:
    return event.derived_ms, event.created_ms, event.event_id


def _last_known(rows: Any) -> str | None:
    known = [(row.known_ms, row.known_user_id) for row in rows if row.known_user_id is not None]
    return max(known)[1] if known else None


def summarise(
    events: list[TrackerEvent], rules: SessionRules, *, quarantined: bool = False
) -> tuple[TrackerSession | None, list[TrackerView]]:
    """Return the row of a session and the rows of its page views.

    Args:
        events: Its events without repeats, in any order.
        rules: What is engaged, and what a ping says.
        quarantined: Whether events came that were too late for it.

    Returns:
        No session where nothing was viewed: neither a page view nor a ping with the id of one.
    """
    paged = sorted(
        (e for e in events if e.event_name in _PAGE_EVENTS and e.page_view_id is not None), key=_in_order
    )
    if not paged:
        return None, []
    first, pings = paged[0], [e for e in paged if e.event_name == "page_ping"]
    viewed = [e for e in paged if e.event_name == "page_view"]
    # Of views of one instant the one with the lesser identity is the last one, too.
    last = min(viewed, key=lambda e: (-e.derived_ms, -e.created_ms, e.event_id)) if viewed else first
    start, end = min(e.derived_ms for e in events), max(e.derived_ms for e in events)
    stray = rules.min_visit_ms if first.event_name == "page_ping" else 0
    buckets = {(e.page_view_id, e.created_ms // rules.heartbeat_ms) for e in pings}
    attention = rules.attention_s(len(buckets), len({page for page, _ in buckets}))
    pages = len({e.page_view_id for e in paged})
    visitor = _visitor(events)
    known = [(e.collector_ms, e.user_id) for e in events if e.user_id is not None]
    known_ms, known_user = max(known) if known else (0, None)
    engaged = first.session_id in rules.engaged_sessions or rules.engaged(
        views=pages,
        length_ms=end - start,
        attention_s=attention,
        converted=any(e.event_name in rules.conversions for e in events),
    )
    row = TrackerSession(
        session_id=first.session_id,
        visitor=visitor or "",
        session_index=first.session_index,
        visitor_id=visitor,
        user_id=first.user_id,
        stitched_user_id=None,
        start_ms=start - stray,
        end_ms=end,
        page_views=pages,
        total_events=len(events),
        event_counts=dict(sorted(Counter(e.event_name for e in events).items())),
        engaged_time_s=attention,
        absolute_time_s=_seconds(start, end) + stray // 1_000,
        is_engaged=engaged,
        close_reason="quarantined" if quarantined else "max_length",
        known_ms=known_ms,
        known_user_id=known_user,
        revision=0,
        first=first.attributes,
        last=last.attributes,
    )
    return row, _views(viewed, pings, rules, visitor)


def _visitor(events: list[TrackerEvent]) -> str | None:
    """Return whose session it is: a cookie that is renewed within a session makes nobody else of anybody."""
    first = min((e for e in events if e.visitor_id is not None), key=_precedence, default=None)
    return None if first is None else first.visitor_id


def _views(
    viewed: list[TrackerEvent], pings: list[TrackerEvent], rules: SessionRules, visitor: str | None
) -> list[TrackerView]:
    ids = list(dict.fromkeys(e.page_view_id for e in viewed))
    first = {identity: next(e for e in viewed if e.page_view_id == identity) for identity in ids}
    rows = []
    for number, event in enumerate(sorted(first.values(), key=_in_order), 1):
        mine = [p for p in pings if p.page_view_id == event.page_view_id]
        end = max((p.derived_ms for p in mine), default=event.derived_ms)
        buckets = len({p.created_ms // rules.heartbeat_ms for p in mine})
        rows.append(
            TrackerView(
                page_view_id=event.page_view_id or "",
                event_id=event.event_id,
                session_id=event.session_id,
                session_index=event.session_index,
                visitor_id=visitor,
                user_id=event.user_id,
                number=number,
                of=len(first),
                created_ms=event.created_ms,
                collector_ms=event.collector_ms,
                start_ms=event.derived_ms,
                end_ms=end,
                engaged_time_s=rules.attention_s(buckets, 1) if mine else 0,
                absolute_time_s=_seconds(event.derived_ms, end),
                scrolled=_farthest(mine),
                seen=_seen([event, *mine]),
                attributes=event.attributes,
            )
        )
    return rows


def _farthest(pings: list[TrackerEvent]) -> tuple[int, ...]:
    scrolls = [p.scroll for p in pings if p.scroll]
    return (max((s[1] for s in scrolls), default=0), max((s[3] for s in scrolls), default=0))


def _seen(events: list[TrackerEvent]) -> tuple[float | None, ...]:
    """Return the shares of a page that were within the browser's window, to the right and down."""
    return tuple(
        _share(far, _largest(events, f"br_view{side}"), _largest(events, f"doc_{side}"))
        for far, side in zip(_farthest(events), ("width", "height"), strict=True)
    )


def _largest(events: list[TrackerEvent], name: str) -> float | None:
    found = [float(e.attributes[name]) for e in events if name in e.attributes]
    return max(found) if found else None


def _share(far: int, window: float | None, page: float | None) -> float | None:
    if not page or window is None:
        return None
    return min(far + window, page) / page


def _seconds(start: int, end: int) -> int:
    """Return the difference of two times in seconds of the clock, as databases count it."""
    return end // 1_000 - start // 1_000


def _user(visitor: str, rows: list[TrackerSession], revision: int) -> TrackerUser:
    start, end = min(r.start_ms for r in rows), max(r.end_ms for r in rows)
    first = max((r for r in rows if r.start_ms == start), key=lambda r: r.session_id)
    last = max((r for r in rows if r.end_ms == end), key=lambda r: r.session_id)
    return TrackerUser(
        visitor_id=visitor,
        user_id=first.user_id,
        start_ms=start,
        end_ms=end,
        page_views=sum(r.page_views for r in rows),
        sessions=len(rows),
        engaged_time_s=sum(r.engaged_time_s for r in rows),
        revision=revision,
        first=first.first,
        last=last.last,
    )


__all__ = ["Text", "TrackerSessions", "TrackerUsers", "summarise"]
