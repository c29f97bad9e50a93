"""Snowplow's events through the process of visitors itself: the sessions that the running app would tell."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, get_args

import msgspec

from millrace.host.memory import MemoryHost
from millrace_apps.clickstream.contracts.events import Click, EventType
from millrace_apps.clickstream.contracts.rows import SessionRow
from millrace_apps.clickstream.contracts.snowplow_events import TrackerEvent
from millrace_apps.clickstream.processes.bots import BY_NAME_ALONE
from millrace_apps.clickstream.processes.rules import SNOWPLOW, SessionRules
from millrace_apps.clickstream.processes.visitor import visitors
from millrace_apps.clickstream.state.browser_state import VisitorRules

_KINDS: Final = frozenset(get_args(EventType))
#: Columns of Snowplow's sessions that the app's rows have, too.
LIVE_COLUMNS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "domain_sessionid": lambda r: r.session_id.rpartition(":")[2],
    "domain_userid": lambda r: r.visitor_id or None,
    "start_tstamp": lambda r: r.start_ms,
    "end_tstamp": lambda r: r.end_ms,
    "page_views": lambda r: r.page_views,
    "total_events": lambda r: r.events,
    "engaged_time_in_s": lambda r: r.attention_s,
    "is_engaged": lambda r: r.is_engaged,
}


def click_of(event: TrackerEvent, visitor: str) -> Click:
    """Return an event of Snowplow's as a click of the shop; what no shop knows counts as a mere event.

    Args:
        event: It has a session.
        visitor: The cookie by which its browser is known.
    """
    known: Any = event.event_name if event.event_name in _KINDS else "logout"
    paged = event.event_name in ("page_view", "page_ping") and event.page_view_id is not None
    return Click(
        event_id=event.event_id,
        event_type=known if paged or known not in ("page_view", "page_ping") else "logout",
        event_time_ms=event.collector_ms,
        client_time_ms=event.created_ms,
        visitor_id=visitor,
        client_session_id=event.session_id,
        client_session_number=event.session_index or 1,
        device="desktop",
        user_agent=event.user_agent,
        page_type="home",
        page_url="/",
        page_view_id=event.page_view_id,
        client_sent_ms=_sent(event),
    )


def _sent(event: TrackerEvent) -> int:
    """Return when it was sent: by a file's derived time, which is ``collector - (sent - created)``."""
    late = event.sent_ms - event.created_ms > (SNOWPLOW.days_late_ms or 0)
    return event.sent_ms if late else event.created_ms + event.collector_ms - event.derived_ms


def browsers(events: Iterable[TrackerEvent]) -> dict[str, str]:
    """Return the cookie of each session's first event: one that is renewed in a session makes nobody else."""
    first: dict[str, TrackerEvent] = {}
    for event in events:
        before = first.get(event.session_id)
        named = before is not None and bool(before.visitor_id)
        if before is None or (event.visitor_id and (not named or event.collector_ms < before.collector_ms)):
            first[event.session_id] = event
    return {session: event.visitor_id or "" for session, event in first.items()}


def live_sessions(
    events: Sequence[TrackerEvent], rules: SessionRules, *, batch: int = 40, out_of_orderness_ms: int = 0
) -> list[SessionRow]:
    """Return the sessions that the process of visitors makes, the newest row of each.

    Args:
        events: Events of Snowplow's, in the order in which they come; those without a session are left out.
        rules: What sessions are judged by.
        batch: Events in a batch.
        out_of_orderness_ms: How far they may come out of order, ms.
    """
    told = VisitorRules(sessions=rules, rate_events=1_000_000, bots=BY_NAME_ALONE)
    host = MemoryHost(visitors(told), out_of_orderness_ms=out_of_orderness_ms)
    known = browsers(events)
    clicks = [click_of(e, known[e.session_id]) for e in events if e.session_id]
    found = []
    for start in range(0, len(clicks), batch):
        found += host.run_batch([(c.visitor_id, c.event_time_ms, c) for c in clicks[start : start + batch]])
    found += host.drain()
    newest: dict[str, SessionRow] = {}
    for emission in found:
        if emission.output == "sessions":
            row = msgspec.json.decode(emission.payload, type=SessionRow)
            if row.session_id not in newest or row.revision > newest[row.session_id].revision:
                newest[row.session_id] = row
    return [row for row in newest.values() if not row.deleted and not row.bot]
