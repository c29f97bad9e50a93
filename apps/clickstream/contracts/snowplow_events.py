"""Events and rows of Snowplow's web tracker, for the comparison with Snowplow's own data model."""

from __future__ import annotations

import msgspec

Text = dict[str, str]


class TrackerEvent(msgspec.Struct, frozen=True, gc=False):
    """An event as Snowplow's pipeline stores it.

    Attributes:
        event_id: Identity, by the tracker.
        event_name: E.g. ``page_view``, ``page_ping``.
        session_id: ``domain_sessionid``; empty where the tracker gave none.
        collector_ms: When the collector got it, UTC ms: the time it is handled by.
        created_ms: When it was made, by the device's clock.
        sent_ms: When it was sent, by the device's clock.
        derived_ms: When it really was made: ``collector - (sent - created)``.
        page_view_id: The page view it belongs to.
        session_index: ``domain_sessionidx``.
        visitor_id: ``domain_userid``.
        user_id: The account.
        user_agent: What the browser calls itself.
        scroll: Of a ping: x from, x to, y from, y to; pixels.
        attributes: All further columns that have a value: name → value.
    """

    event_id: str
    event_name: str
    session_id: str
    collector_ms: int
    created_ms: int
    sent_ms: int
    derived_ms: int
    page_view_id: str | None = None
    session_index: int | None = None
    visitor_id: str | None = None
    user_id: str | None = None
    user_agent: str = ""
    scroll: tuple[int, ...] = ()
    attributes: Text = msgspec.field(default_factory=dict)


class TrackerSession(msgspec.Struct, frozen=True, gc=False):
    """A session as Snowplow's web model has it; a row by ``session_id``.

    Attributes:
        session_id: The tracker's session.
        visitor: ``visitor_id``, or empty.
        session_index: Number of the session of its visitor.
        visitor_id: Cookie of the browser.
        user_id: The account in its first page event.
        stitched_user_id: The account that the visitor was last known by, in any session.
        start_ms: Derived time of the first event; 5 s before it where that is a ping.
        end_ms: Derived time of the last event.
        page_views: Page views, those among them that only pings tell of.
        total_events: Events.
        event_counts: Name of event → how many.
        engaged_time_s: Time of attention.
        absolute_time_s: From start to end in whole seconds of the clock.
        is_engaged: Whether somebody was really there.
        close_reason: ``max_length``, or ``quarantined`` where later events were put aside.
        known_ms: When the account below was seen, ms.
        known_user_id: The last account seen in the session.
        revision: Grows with every version of this row.
        first: Attributes of the first page event.
        last: Those of the last page view.
    """

    session_id: str
    visitor: str
    session_index: int | None
    visitor_id: str | None
    user_id: str | None
    stitched_user_id: str | None
    start_ms: int
    end_ms: int
    page_views: int
    total_events: int
    event_counts: dict[str, int]
    engaged_time_s: int
    absolute_time_s: int
    is_engaged: bool
    close_reason: str
    known_ms: int
    known_user_id: str | None
    revision: int
    first: Text
    last: Text


class TrackerView(msgspec.Struct, frozen=True, gc=False):
    """A page view as Snowplow's web model has it; a row by ``session_id`` and ``page_view_id``.

    Attributes:
        page_view_id: The page view.
        event_id: Its event.
        session_id: Its session.
        session_index: Number of the session.
        visitor_id: Cookie of the browser.
        user_id: The account.
        number: Which view of its session.
        of: How many views its session has.
        created_ms: By the device's clock.
        collector_ms: By the collector.
        start_ms: Derived time.
        end_ms: Time of its last ping, or of itself.
        engaged_time_s: Time of attention.
        absolute_time_s: From start to end.
        scrolled: Farthest point seen: horizontal and vertical, pixels.
        seen: How much of the page was seen, of its width and height, 0 to 1; none where that is not known.
        attributes: Further attributes of the event.
    """

    page_view_id: str
    event_id: str
    session_id: str
    session_index: int | None
    visitor_id: str | None
    user_id: str | None
    number: int
    of: int
    created_ms: int
    collector_ms: int
    start_ms: int
    end_ms: int
    engaged_time_s: int
    absolute_time_s: int
    scrolled: tuple[int, ...]
    seen: tuple[float | None, ...]
    attributes: Text


class TrackerUser(msgspec.Struct, frozen=True, gc=False):
    """A visitor as Snowplow's web model has it; a row by ``visitor_id``.

    Attributes:
        visitor_id: Cookie of the browser.
        user_id: The account in the first session.
        start_ms: Start of the first session.
        end_ms: End of the last one.
        page_views: Page views of all sessions.
        sessions: How many.
        engaged_time_s: Their time of attention.
        revision: Grows with every version of this row.
        first: Attributes of the first session's first page event.
        last: Those of the last session's last page view.
    """

    visitor_id: str
    user_id: str | None
    start_ms: int
    end_ms: int
    page_views: int
    sessions: int
    engaged_time_s: int
    revision: int
    first: Text
    last: Text


class PutAside(msgspec.Struct, frozen=True, gc=False):
    """An event that counts for nothing, and why.

    Attributes:
        event_id: The event.
        session_id: Its session.
        reason: ``no_session``, ``sent_late``, ``bot``, ``duplicate`` or ``quarantined``.
        collector_ms: When it came.
    """

    event_id: str
    session_id: str
    reason: str
    collector_ms: int
