"""Snowplow's web model: each rule by itself, and any order of the events."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millrace.host.memory_chain import MemoryChain
from millrace.testing import TestDriver
from millrace_apps.clickstream.contracts.snowplow_events import (
    TrackerEvent,
    TrackerSession,
    TrackerUser,
    TrackerView,
)
from millrace_apps.clickstream.evaluation.snowplow_files import (
    SESSION_COLUMNS,
    BadFile,
    compare,
    read_events,
)
from millrace_apps.clickstream.processes.rules import SNOWPLOW
from millrace_apps.clickstream.processes.snowplow import TrackerSessions, TrackerUsers, summarise

DAY = 86_400_000
T0 = 1_614_600_000_000


def event(
    at: int, name: str = "page_view", *, id: str | None = None, view: str | None = "p1", **fields: Any
) -> TrackerEvent:
    made = T0 + at
    given: dict[str, Any] = {
        "event_id": id or f"{name}-{at}",
        "event_name": name,
        "session_id": "s",
        "collector_ms": made,
        "created_ms": made,
        "sent_ms": made,
        "derived_ms": made,
        "page_view_id": view,
        "visitor_id": "v",
        "user_agent": "Mozilla/5.0 (X11; Linux x86_64; rv:144.0) Gecko/20100101 Firefox/144.0",
    }
    return TrackerEvent(**{**given, **fields})


def world(seed: int) -> list[TrackerEvent]:
    """Return events of some visitors: views, pings and clicks, some of them twice, late or by a crawler."""
    draw = random.Random(seed)
    events = []
    for number in range(240):
        visitor, session = f"v{draw.randrange(6)}", draw.randrange(4)
        at = session * 12 * 3_600_000 + draw.randrange(40 * 60_000)
        name = draw.choice(("page_view", "page_view", "page_ping", "link_click"))
        made = event(
            at,
            name,
            id=f"e{number if draw.random() > 0.05 else max(number - 1, 0)}",
            view=f"p{draw.randrange(5)}",
            session_id=f"{visitor}-{session}",
            session_index=session + 1,
            visitor_id=visitor,
            user_id=f"u{visitor}" if session > 1 and draw.random() < 0.5 else None,
            sent_ms=T0 + at + (4 * DAY if draw.random() < 0.03 else 0),
            scroll=(0, draw.randrange(900), 0, draw.randrange(3_000)) if name == "page_ping" else (),
            attributes={"page_title": f"t{number}", "geo_country": draw.choice(("DE", "FR"))},
        )
        events.append(made)
    return events


def rows_of(order: list[TrackerEvent], batch: int) -> dict[str, dict[Any, Any]]:
    """Return the newest version of every row of the three tables."""
    chain = MemoryChain(
        TrackerSessions(SNOWPLOW), ("visitor", TrackerUsers()), out_of_orderness_ms=1000 * DAY
    )
    found: list[Any] = []
    for start in range(0, len(order), batch):
        found += chain.run_batch([(e.session_id, e.collector_ms, e) for e in order[start : start + batch]])
    found += chain.drain()
    keys = {
        "sessions": (TrackerSession, "session_id"),
        "TrackerSessions.page_views": (TrackerView, "page_view_id"),
        "main": (TrackerUser, "visitor_id"),
    }
    tables: dict[str, dict[Any, Any]] = {output: {} for output in keys}
    for emission in found:
        if emission.output not in keys:
            continue
        cls, key = keys[emission.output]
        row: Any = msgspec.json.decode(emission.payload, type=cls)
        name = (getattr(row, "session_id", ""), getattr(row, key))
        before = tables[emission.output].get(name)
        if before is None or getattr(row, "revision", 0) >= getattr(before, "revision", 0):
            tables[emission.output][name] = row
    return {
        output: {name: msgspec.structs.replace(row, **({"revision": 0} if hasattr(row, "revision") else {}))
                 for name, row in rows.items()}
        for output, rows in tables.items()
    }  # fmt: skip


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_order_and_the_cuts_of_the_events_make_no_difference(seed: int) -> None:
    events = world(seed)
    draw = random.Random(seed)
    wanted = rows_of(sorted(events, key=lambda e: e.collector_ms), 40)
    assert {output: len(rows) > 5 for output, rows in wanted.items()} == dict.fromkeys(wanted, True)
    draw.shuffle(events)
    assert rows_of(events, draw.randint(1, 60)) == wanted


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_counts_of_sessions_and_users_are_those_of_their_events(seed: int) -> None:
    found = rows_of(world(seed), 50)
    sent = {(e.session_id, e.event_id): e for e in world(seed) if e.sent_ms - e.created_ms <= 3 * DAY}
    per_session = Counter(e.session_id for e in sent.values())
    sessions = {row.session_id: row for row in found["sessions"].values()}
    assert {name: row.total_events for name, row in sessions.items()} == {
        name: n for name, n in per_session.items() if name in sessions
    }
    for user in found["main"].values():
        own = [row for row in sessions.values() if row.visitor_id == user.visitor_id]
        assert (user.sessions, user.page_views) == (len(own), sum(row.page_views for row in own))
        assert user.engaged_time_s == sum(row.engaged_time_s for row in own)


def driven(*events: TrackerEvent) -> TestDriver:
    driver = TestDriver(TrackerSessions(), out_of_orderness_ms=30 * DAY)
    for one in events:
        driver.send(one.session_id, one, at=one.collector_ms)
    driver.drain()
    return driver


def aside(driver: TestDriver) -> list[tuple[str, str]]:
    return [(row.event_id, row.reason) for row in driver.values("put_aside")]


def test_a_session_of_neither_views_nor_pings_is_none() -> None:
    assert driven(event(0, "link_click"), event(5, "page_view", view=None)).values() == []


def test_an_event_sent_more_than_three_days_after_it_was_made_is_dropped() -> None:
    driver = driven(
        event(0),
        event(1, sent_ms=T0 + 1 + 3 * DAY),
        event(2, "link_click", sent_ms=T0 + 2 + 3 * DAY + 1),
    )
    assert aside(driver) == [("link_click-2", "sent_late")]
    assert driver.values()[0].total_events == 2


def test_what_comes_more_than_three_days_after_the_start_is_quarantined_then_and_later() -> None:
    driver = TestDriver(TrackerSessions())
    for at in (0, 3 * DAY, 3 * DAY + 1):
        driver.send("s", event(at), at=T0 + at)
    driver.advance_watermark(T0 + 9 * DAY)
    driver.send("s", event(10 * DAY), at=T0 + 10 * DAY)
    driver.drain()
    (row,) = driver.values()
    assert (row.total_events, row.end_ms, row.close_reason) == (2, T0 + 3 * DAY, "quarantined")
    assert sorted(reason for _, reason in aside(driver)) == ["quarantined", "quarantined"]


def test_of_repeats_the_one_that_was_collected_first_counts() -> None:
    late = event(50, id="x", derived_ms=T0 + 7)
    driver = driven(late, event(40, id="x", derived_ms=T0 + 3))
    assert aside(driver) == [("x", "duplicate")]
    assert driver.values()[0].start_ms == T0 + 3


def test_a_stray_ping_makes_one_view_that_starts_five_seconds_earlier() -> None:
    row, views = summarise([event(0, "page_ping")], SNOWPLOW)
    assert row is not None
    assert (row.start_ms, row.page_views, row.engaged_time_s, row.absolute_time_s) == (T0 - 5_000, 1, 5, 5)
    assert views == []


def test_time_of_attention_is_ten_seconds_a_heartbeat_and_five_for_the_first() -> None:
    pings = [event(at, "page_ping") for at in (10_000, 12_000, 20_000, 40_000)]
    row, views = summarise([event(0), *pings], SNOWPLOW)
    assert row is not None
    assert row.engaged_time_s == views[0].engaged_time_s == 10 * (3 - 1) + 5
    assert (views[0].end_ms, views[0].absolute_time_s) == (T0 + 40_000, 40)


def test_crawlers_are_put_aside() -> None:
    driver = driven(
        event(0, user_agent="Mozilla/5.0 (compatible; bingbot/2.0; +http://www.bing.com/bingbot.htm)")
    )
    assert aside(driver) == [("page_view-0", "bot")]


def test_a_later_account_is_written_into_earlier_sessions() -> None:
    rows, _ = zip(
        *(
            summarise([event(i, session_id=f"s{i}", user_id=u)], SNOWPLOW)
            for i, u in enumerate(("a", None, "b"))
        ),
        strict=True,
    )
    driver = TestDriver(TrackerUsers())
    for row in rows:
        driver.send("v", row, at=T0)
    held = {r.session_id: r.stitched_user_id for r in driver.values("sessions")}
    assert held == {"s0": "b", "s1": "b", "s2": "b"}
    assert driver.values()[-1].user_id == "a"
    assert driver.values()[-1].sessions == 3


def test_a_session_is_forgotten_after_two_years() -> None:
    driver = TestDriver(TrackerSessions())
    driver.send("s", event(0), at=T0)
    driver.advance_watermark(T0 + 900 * DAY)
    assert driver.is_empty()


@pytest.mark.parametrize(
    ("text", "said"),
    [("", "has no rows"), ("a,b\n1,2\n", "no column event_id"), (None, "cannot be read")],
)
def test_a_file_that_is_no_file_of_events_is_refused_in_one_line(
    tmp_path: Path, text: str | None, said: str
) -> None:
    path = tmp_path / "events.csv"
    if text is not None:
        path.write_text(text)
    with pytest.raises(BadFile, match=said):
        read_events(path)


COLUMNS = (
    "event_id,event_name,domain_sessionid,collector_tstamp,derived_tstamp,dvce_created_tstamp,"
    "dvce_sent_tstamp,domain_userid,contexts_com_snowplowanalytics_snowplow_web_page_1_0_0,page_title"
)


def test_events_are_read_in_order_of_the_collector(tmp_path: Path) -> None:
    at = "2021-03-01 10:00:0"
    lines = [
        f'e{n},page_view,s,{at}{9 - n},{at}{n},{at}{n},{at}{n},v,"[{{""id"": ""p{n}""}}]",NULL'
        for n in (1, 2)
    ]
    (tmp_path / "events.csv").write_text("\n".join([COLUMNS, *lines]))
    second, first = read_events(tmp_path / "events.csv")
    assert (first.event_id, first.page_view_id, first.visitor_id) == ("e1", "p1", "v")
    assert (second.event_id, second.collector_ms - second.derived_ms) == ("e2", 5_000)
    assert first.attributes == {}


def test_a_value_that_is_no_time_is_refused_with_its_line(tmp_path: Path) -> None:
    at = "2021-03-01 10:00:00"
    (tmp_path / "bad.csv").write_text(f"{COLUMNS}\ne,page_view,s,yesterday,{at},{at},{at},v,,\n")
    with pytest.raises(BadFile, match="line 2"):
        read_events(tmp_path / "bad.csv")


def test_a_row_that_is_wrong_missing_or_too_many_is_told(tmp_path: Path) -> None:
    path = tmp_path / "expected.csv"
    path.write_text("domain_sessionid,page_views,default_channel_group\na,2,x\nb,1,x\n")
    row, _ = summarise([event(0, session_id="a")], SNOWPLOW)
    other, _ = summarise([event(0, session_id="c")], SNOWPLOW)
    assert row is not None
    assert other is not None
    found = compare("sessions", [row, other], path, SESSION_COLUMNS, "domain_sessionid")
    assert (found.expected, found.matching, found.mismatches) == (2, 0, 3)
    assert [(d.key, d.column) for d in found.differences] == [("a", "page_views"), ("b", "row"), ("c", "row")]
    assert found.not_compared == ["default_channel_group"]


def test_the_rules_can_be_told_other_conversions() -> None:
    row, _ = summarise([event(0)], replace(SNOWPLOW, conversions=frozenset({"page_view"})))
    assert row is not None
    assert row.is_engaged
