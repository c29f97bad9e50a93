"""Sessions: known vectors, the rule sets, and another way to the same result."""

from __future__ import annotations

import random
from typing import Any

import pytest

from millrace.testing import TestDriver
from millrace.testing.properties import invariant
from millrace_apps.clickstream.evaluation.files import expected_sessions, sessions_of
from millrace_apps.clickstream.processes.rules import (
    GA4,
    SNOWPLOW,
    SessionRules,
    UnknownRules,
    next_midnight,
    rules_named,
    universal,
)
from millrace_apps.clickstream.processes.sessionize import BareClick, Sessionize
from millrace_apps.clickstream.processes.visitor import visitors
from millrace_apps.clickstream.state.browser_state import VisitorRules
from millrace_apps.clickstream.state.sessions import Session, SessionBook
from tests.unit.apps.clickstream.app_cases import DAY, HOUR, MINUTE, SECOND, START, click, send

#: The vectors are in units; a unit of a minute keeps gaps within what the rules allow.
U = MINUTE


def driver(gap: int, *, bound: int = 0, lateness: int = 0) -> TestDriver:
    rules = SessionRules(name="test", gap_ms=gap * U)
    return TestDriver(Sessionize(rules, lateness_ms=lateness * U), out_of_orderness_ms=bound * U)


def put(target: TestDriver, *units: int, key: str = "k1") -> None:
    for unit in units:
        target.send(key, BareClick(key, "x", unit * U), at=unit * U)


def held(target: TestDriver) -> list[tuple[str, int, int, int]]:
    newest: dict[str, Any] = {}
    for row in target.values():
        newest[row.session_id] = max(newest.get(row.session_id, row), row, key=lambda r: r.revision)
    rows = [r for r in newest.values() if r.close_reason != "merged"]
    return sorted((r.visitor_id, r.session_start_ms // U, r.session_end_ms // U, r.events) for r in rows)


def test_v13_a_session_is_final_once_and_what_is_too_late_is_put_aside() -> None:
    """Gap 5, no bound.

    ::

        k1   0   1     5        11              30
             [0 ------ 5]      [11]            [30]
    """
    target = driver(5, bound=5)
    put(target, 0, 5, 1, 11, 30)
    target.drain()
    assert held(target) == [("k1", 0, 5, 3), ("k1", 11, 11, 1), ("k1", 30, 30, 1)]
    put(target, 5)
    assert len(target.values("late")) == 1


def test_v14_an_event_between_two_sessions_makes_one_of_them() -> None:
    target = driver(10, bound=30)
    put(target, 0, 11, 5)
    target.drain()
    assert held(target) == [("k1", 0, 11, 3)]


@pytest.mark.parametrize(
    ("gap", "units", "sessions"),
    [
        (10, (0, 10, 101), [(0, 10, 2), (101, 101, 1)]),
        (10, (1, 2, 5, 9, 100, 101), [(1, 9, 4), (100, 101, 2)]),
        (10, (1, 15, 30, 100, 101, 95, 22, 10), [(1, 30, 5), (95, 101, 3)]),
        (400, (1, 2, 400, 2000, 2001, 4000), [(1, 400, 3), (2000, 2001, 2), (4000, 4000, 1)]),
    ],
)
def test_v15_a_pause_of_exactly_the_gap_merges(gap: int, units: tuple[int, ...], sessions: list[Any]) -> None:
    target = driver(gap, bound=10_000)
    put(target, *units)
    target.drain()
    assert [row[1:] for row in held(target)] == sessions


def test_v16_sessions_go_on_after_a_restart() -> None:
    target = driver(3, bound=100)
    put(target, 0, 1, 2, key="key2")
    target.restart()
    put(target, 0, 1, 2)
    put(target, 5, 6, key="key2")
    target.advance_watermark(12 * U)
    put(target, 15, key="key2")
    target.advance_watermark(18 * U - 1)
    assert ("key2", 15, 15, 1) not in held(target)
    target.advance_watermark(18 * U)
    assert held(target) == [("k1", 0, 2, 3), ("key2", 0, 6, 5), ("key2", 15, 15, 1)]
    assert target.is_empty()


def test_v19_lateness_is_judged_by_the_session_that_an_event_would_be_in() -> None:
    """Gap 3 (in seconds here: minutes); the watermark is moved by hand.

    ::

        1  2  4.5 | wm 7.4 | 7 joins, for its session ends at 11.5 | wm 11.5 | 10 is late
    """
    rules = SessionRules(name="test", gap_ms=3 * U)
    target = TestDriver(Sessionize(rules), out_of_orderness_ms=100 * U)
    for unit in (1.0, 2.0, 4.5, 8.5):
        target.send("k", BareClick("k", "x", int(unit * U)), at=int(unit * U))
    target.advance_watermark(int(7.4 * U))
    target.send("k", BareClick("k", "x", 7 * U), at=7 * U)
    target.advance_watermark(int(11.5 * U))
    assert [(r.session_start_ms, r.session_end_ms, r.events) for r in target.values()] == [
        (U, int(8.5 * U), 5)
    ]
    target.advance_watermark(int(14.6 * U))
    target.send("k", BareClick("k", "x", 10 * U), at=10 * U)
    assert len(target.values("late")) == 1


def test_v20_a_session_of_rows_in_any_order_within_the_delay() -> None:
    target = driver(10, bound=30)
    put(target, 40, 41, 25, 30, 60, 90)
    target.drain()
    assert [row[1:] for row in held(target)] == [(25, 41, 4), (60, 60, 1), (90, 90, 1)]


def test_v21_a_late_event_outside_of_every_open_session_is_put_aside() -> None:
    target = driver(5)
    put(target, 1, 5, 11, 12, 13, 14, 20, 1)
    target.drain()
    assert [row[1:] for row in held(target)] == [(1, 5, 2), (11, 14, 4), (20, 20, 1)]
    assert len(target.values("late")) == 1


def test_a_late_event_within_the_lateness_merges_sessions_that_were_final() -> None:
    target = driver(5, lateness=60)
    put(target, 0, 8, 30)
    assert held(target)[:2] == [("k1", 0, 0, 1), ("k1", 8, 8, 1)]
    put(target, 4)
    assert held(target) == [("k1", 0, 8, 3)]
    target.advance_watermark(200 * U)
    assert target.is_empty()


@pytest.mark.parametrize("seed", range(6))
def test_the_same_sessions_as_pandas_in_any_order_within_the_bound(seed: int) -> None:
    import pandas as pd

    draw = random.Random(seed)
    clicks = [(f"v{draw.randrange(8)}", draw.randrange(6 * HOUR)) for _ in range(400)]
    # Within the bound of two hours whatever the order: they come in the order of their hours' halves.
    clicks.sort(key=lambda c: c[1] + draw.randrange(2 * HOUR))
    target = TestDriver(Sessionize(GA4), out_of_orderness_ms=2 * HOUR)
    for start in range(0, len(clicks), 37):
        batch = clicks[start : start + 37]
        target.send_batch([(v, at, BareClick(v, "x", at)) for v, at in batch])
        if draw.random() < 0.3:
            target.restart()
    target.drain()
    assert target.values("late") == []
    rows = pd.DataFrame([{f: getattr(r, f) for f in r.__struct_fields__} for r in target.values()])
    found = sessions_of(rows).drop(columns="close_reason")
    frame = pd.DataFrame(clicks, columns=["visitor_id", "at"])
    pd.testing.assert_frame_equal(found, expected_sessions(frame, 30 * MINUTE), check_dtype=False)


def test_sessions_hang_on_the_events_alone() -> None:
    draw = random.Random(5)
    events = [
        (f"v{n % 3}", at := draw.randrange(3 * HOUR), BareClick(f"v{n % 3}", str(n), at)) for n in range(60)
    ]
    invariant(Sessionize(GA4), events, bound_ms=HOUR, seed=1, upsert_by={"main": ["session_id"]},
              ignore=["revision"])  # fmt: skip


# -- rule sets ---------------------------------------------------------------------------------------


def session_rows(rules: SessionRules, *events: Any, bound: int = 0) -> list[Any]:
    target = TestDriver(visitors(VisitorRules(sessions=rules)), out_of_orderness_ms=bound)
    for event in events:
        send(target, event)
    target.drain()
    newest: dict[str, Any] = {}
    for row in target.values("sessions"):
        newest[row.session_id] = row
    return sorted((r for r in newest.values() if not r.deleted), key=lambda r: r.start_ms)


MIDNIGHT = DAY - START % DAY


def test_ga4_splits_neither_at_midnight_nor_by_campaigns() -> None:
    rows = session_rows(
        GA4,
        click(MIDNIGHT - 5 * MINUTE, utm_source="google"),
        click(MIDNIGHT + 5 * MINUTE, utm_source="bing"),
    )
    assert [(r.events, r.campaign) for r in rows] == [(2, "google / (none) / (none)")]


def test_universal_splits_at_midnight_of_its_zone_and_by_another_campaign() -> None:
    rows = session_rows(
        universal("UTC"),
        click(MIDNIGHT - 9 * MINUTE, utm_source="google"),
        click(MIDNIGHT - 8 * MINUTE),
        click(MIDNIGHT - 7 * MINUTE, utm_source="google"),
        click(MIDNIGHT - 6 * MINUTE, utm_source="bing"),
        click(MIDNIGHT),
        click(MIDNIGHT + HOUR),
    )
    assert [(r.events, r.close_reason) for r in rows] == [
        (3, "campaign"),
        (1, "midnight"),
        (1, "inactivity"),
        (1, "inactivity"),
    ]
    assert [r.number for r in rows] == [1, 2, 3, 4]


def test_universal_knows_the_days_of_its_zone() -> None:
    at = MIDNIGHT - HOUR  # midnight in Berlin in winter
    assert len(session_rows(universal("Europe/Berlin"), click(at - 1), click(at))) == 2
    assert len(session_rows(universal("Europe/London"), click(at - 1), click(at))) == 1


def test_days_of_a_zone_have_23_to_25_hours() -> None:
    march, october = 1_774_656_000_000, 1_792_800_000_000  # 28 March and 24 October 2026, 0:00 UTC
    lengths = []
    for start in (march, october):
        first = next_midnight("Europe/Berlin", start)
        lengths.append((next_midnight("Europe/Berlin", first) - first) // HOUR)
    assert lengths == [23, 25]


def test_rules_of_the_tracker_follow_its_session_ids_and_put_aside_what_comes_after_three_days() -> None:
    rows = session_rows(
        SNOWPLOW,
        click(0, client_session_id="a"),
        click(2 * DAY, client_session_id="a"),
        click(3 * DAY + 1, client_session_id="a"),
        click(3 * DAY + 2, client_session_id="b"),
    )
    assert [(r.events, r.ignored, r.close_reason) for r in rows] == [
        (2, 1, "quarantined"),
        (1, 0, "max_length"),
    ]


def test_order_makes_no_difference_to_rules_that_wait() -> None:
    rows = [
        click(MIDNIGHT - 3 * MINUTE, utm_source="google"),
        click(MIDNIGHT - 2 * MINUTE, utm_source="bing"),
        click(MIDNIGHT + MINUTE),
    ]
    expected = session_rows(universal("UTC"), *rows, bound=HOUR)
    draw = random.Random(3)
    for _ in range(5):
        draw.shuffle(rows)
        assert session_rows(universal("UTC"), *rows, bound=HOUR) == expected


@pytest.mark.parametrize(
    ("length", "views", "kind", "engaged"),
    [
        (10 * SECOND, 1, "search", False),
        (10 * SECOND + 1, 1, "search", True),
        (0, 2, "page_view", True),
        (0, 1, "purchase", True),
        (0, 1, "search", False),
    ],
)
def test_engaged_by_ga4(length: int, views: int, kind: str, engaged: bool) -> None:
    events = [click(0, id=f"view{n}") for n in range(views)] + [click(length, kind, id="last")]
    (row,) = session_rows(GA4, *events[: None if kind != "page_view" else views])
    assert row.is_engaged is engaged


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: rules_named("flow"), "ga4, universal, snowplow"),
        (lambda: universal("Mars/Olympus"), "no time zone"),
        (lambda: SessionRules(name="x", gap_ms=8 * HOUR), "7 h 55 min"),
        (lambda: SessionRules(name="x", gap_ms=None), "a pause that ends them"),
        (lambda: Sessionize(universal("UTC")), "bare clicks"),
    ],
)
def test_rules_that_mean_nothing_are_refused(make: Any, said: str) -> None:
    with pytest.raises(UnknownRules, match=said):
        make()


def test_a_book_of_one_session_is_small() -> None:
    import msgspec

    book = SessionBook(
        [Session(START, START + HOUR, events=40, landing="https://shop.example/item/item-000123")]
    )
    assert len(msgspec.msgpack.encode(book)) < 200
