"""Sessions of Snowplow's rules in the app: those of the process that its own rows prove, in any order."""

from __future__ import annotations

import random
from typing import Any

import pytest

from millrace_apps.clickstream.contracts.snowplow_events import TrackerEvent
from millrace_apps.clickstream.evaluation.tracked import live_sessions
from millrace_apps.clickstream.processes.rules import GA4, SNOWPLOW
from millrace_apps.clickstream.processes.snowplow import keep
from millrace_apps.clickstream.state.sessions import MOST_BEATS, Session, beat_of
from tests.unit.apps.clickstream.test_snowplow import DAY, event, rows_of, world


def _once(events: list[TrackerEvent]) -> list[TrackerEvent]:
    """Return events without those that say something else under a known identity."""
    first: dict[tuple[str | None, str], TrackerEvent] = {}
    for one in events:
        first.setdefault((one.visitor_id, one.event_id), one)
    return list(first.values())


def _proven(events: list[TrackerEvent]) -> dict[str, Any]:
    rows = rows_of(sorted(events, key=lambda e: e.collector_ms), 40)["sessions"].values()
    return {
        r.session_id: (r.start_ms, r.end_ms, r.total_events, r.page_views, r.engaged_time_s, r.is_engaged,
                       r.close_reason)
        for r in rows
    }  # fmt: skip


def _live(events: list[TrackerEvent], **how: Any) -> dict[str, Any]:
    return {
        r.session_id.rpartition(":")[2]: (
            r.start_ms, r.end_ms, r.events, r.page_views, r.attention_s, r.is_engaged, r.close_reason
        )
        for r in live_sessions(events, SNOWPLOW, **how)
    }  # fmt: skip


@pytest.mark.parametrize("seed", range(8))
def test_the_app_makes_the_sessions_of_the_process_that_snowplows_rows_prove(seed: int) -> None:
    draw = random.Random(seed)
    events = _once(world(seed))
    # Some sessions go on for longer than three days, and one has neither a view nor a ping.
    events += [
        event(at, id=f"x{at}", session_id="long", visitor_id="v9") for at in (0, DAY, 3 * DAY, 4 * DAY)
    ]
    events += [event(5, "link_click", id="l", session_id="none", visitor_id="v9", view=None)]
    wanted = _proven(events)
    assert len(wanted) > 10
    assert wanted["long"][-1] == "quarantined"
    assert "none" not in wanted
    assert _live(sorted(events, key=lambda e: e.collector_ms)) == wanted
    draw.shuffle(events)
    assert _live(events, batch=draw.randint(1, 60), out_of_orderness_ms=30 * DAY) == wanted


def test_what_was_sent_more_than_three_days_after_it_was_made_is_of_no_session() -> None:
    sent = event(1, id="late", sent_ms=event(1).created_ms + 3 * DAY + 1)
    (row,) = live_sessions([event(0), sent], SNOWPLOW)
    assert row.events == 1


@pytest.mark.parametrize("seed", range(5))
def test_of_too_many_events_the_first_ones_are_kept_in_whatever_order_they_come(seed: int) -> None:
    draw = random.Random(seed)
    events = [event(at, id=f"e{draw.randrange(60)}") for at in (draw.randrange(1_000) for _ in range(90))]
    least: dict[str, int] = {}
    for one in events:
        least[one.event_id] = min(one.collector_ms, least.get(one.event_id, one.collector_ms))
    wanted = dict(sorted(least.items(), key=lambda e: (e[1], e[0]))[:20])
    kept: dict[str, TrackerEvent] = {}
    for one in events:
        keep(kept, one, lambda e: (e.collector_ms,), 20)
        assert len(kept) <= 20
    assert {name: one.collector_ms for name, one in kept.items()} == wanted


def test_c9_a_page_left_open_for_months_makes_no_state_that_grows_and_says_so() -> None:
    beats = [*range(MOST_BEATS + 500)]
    random.Random(1).shuffle(beats)
    session = Session(0, 0)
    for beat in beats:
        session.ping(beat, 7)
    assert session.buckets == [beat_of(n, 7) for n in range(MOST_BEATS)]
    assert session.full
    assert session.attention_s(GA4) == 10 * (MOST_BEATS - 1) + 5


def test_c8_attention_to_three_tabs_at_once_is_counted_page_by_page() -> None:
    session = Session(0, 0)
    for page in (1, 2, 3):
        session.ping(100, page)
    assert session.attention_s(GA4) == 3 * 5


def test_a_trackers_session_that_is_over_never_begins_anew() -> None:
    again = [event(9 * DAY, id="again"), event(20 * DAY, id="later", session_id="next")]
    rows = live_sessions([event(0), event(1), event(8 * DAY, session_id="other"), *again], SNOWPLOW, batch=1)
    assert sorted((r.session_id, r.events) for r in rows) == [("v:next", 1), ("v:other", 1), ("v:s", 2)]
