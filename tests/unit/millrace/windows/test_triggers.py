"""Results before the watermark, at it and after it: triggers, panes, revisions, retractions."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.testing import TestDriver
from millrace.windows import (
    WindowDefinitionError,
    collect,
    count,
    global_window,
    session,
    sum_of,
    tumbling,
    watermark,
    window,
)
from tests.unit.millrace.windows.cases import BY_HAND, Drive, Ev, Restarting, fail_on_dead_letters, rows


@pytest.fixture(params=[False, True], ids=["straight", "restarting"])
def drive(request: pytest.FixtureRequest) -> Drive:
    kind = Restarting if request.param else TestDriver

    def make(process: Any, bound: int = BY_HAND) -> TestDriver:
        return kind(process, out_of_orderness_ms=bound)

    return make


def send(driver: TestDriver, *events: tuple[int, int]) -> None:
    """Send (v, time), a batch each."""
    for v, at in events:
        driver.send("k", Ev(v), at=at)
    fail_on_dead_letters(driver)


def test_an_early_result_as_soon_as_it_is_large_enough_begins_the_window_anew(drive: Drive) -> None:
    """Window of 100, at 9 or more: 2@50 2@60 5@70 → 9; 3@80 → 3 at the end."""
    trigger = watermark().early(when=lambda r: r.total >= 9, discard=True)
    driver = drive(window(Ev, tumbling(100), trigger=trigger).aggregate(total=sum_of("v")))
    send(driver, (2, 50), (2, 60))
    assert driver.values() == []
    send(driver, (5, 70), (3, 80))
    assert rows(driver, "total", "pane", "revision") == [(9, "early", 0)]
    driver.advance_watermark(99)
    assert rows(driver, "total", "pane", "revision")[1:] == [(3, "on_time", 1)]
    assert driver.is_empty()


def test_an_early_result_before_the_event_that_would_make_it_too_large(drive: Drive) -> None:
    """At most 10: 3@10 5@20, then 3@30 would make 11 → 8; 3 at the end."""
    trigger = watermark().early(before=lambda r, e: r.total + e.v > 10, discard=True)
    driver = drive(window(Ev, tumbling(100), trigger=trigger).aggregate(total=sum_of("v")))
    send(driver, (3, 10), (5, 20), (3, 30))
    assert rows(driver, "total", "pane") == [(8, "early")]
    driver.advance_watermark(99)
    assert rows(driver, "total", "pane")[1:] == [(3, "on_time")]


def test_a_window_that_was_emptied_and_got_nothing_more_says_nothing_more(drive: Drive) -> None:
    trigger = watermark().early(count=2, discard=True)
    driver = drive(window(Ev, tumbling(100), trigger=trigger).aggregate(n=count()))
    send(driver, (1, 10), (1, 20))
    driver.advance_watermark(99)
    assert rows(driver, "n", "pane") == [(2, "early")]
    assert driver.is_empty()


def test_early_results_after_so_many_events_accumulate(drive: Drive) -> None:
    driver = drive(window(Ev, tumbling(100), trigger=watermark().early(count=2)).aggregate(n=count()))
    send(driver, *[(1, at) for at in range(10, 60, 10)])
    driver.advance_watermark(99)
    assert rows(driver, "n", "pane", "revision") == [
        (2, "early", 0),
        (4, "early", 1),
        (5, "on_time", 2),
    ]


def test_early_results_in_event_time_come_at_multiples_of_the_time_if_something_changed(drive: Drive) -> None:
    """Window of 100, every 30: events at 5 and 65; results when the watermark passes 30 and 90."""
    driver = drive(window(Ev, tumbling(100), trigger=watermark().early(every=30)).aggregate(n=count()))
    send(driver, (1, 5))
    driver.advance_watermark(29)
    assert driver.values() == []
    driver.advance_watermark(64)
    assert rows(driver, "n", "pane") == [(1, "early")]
    assert driver.emissions[-1].event_time == 30
    send(driver, (1, 65))
    driver.advance_watermark(99)
    assert rows(driver, "n", "pane")[1:] == [(2, "early"), (2, "on_time")]
    assert [e.event_time for e in driver.emissions] == [30, 90, 99]
    assert driver.is_empty()


def test_a_late_event_within_allowed_lateness_refines_the_result(drive: Drive) -> None:
    """A window of 10, lateness 5.

    ::

    1@3 |9: 1| 2@4: 3 |12| 4@9: 7 |13| 8@9: 15 |14: gone| 16@9: late
    """
    driver = drive(window(Ev, tumbling(10), allowed_lateness=5).aggregate(total=sum_of("v")))
    send(driver, (1, 3))
    driver.advance_watermark(9)
    send(driver, (2, 4))
    driver.advance_watermark(12)
    send(driver, (4, 9))
    driver.advance_watermark(13)
    send(driver, (8, 9))
    assert not driver.is_empty()
    driver.advance_watermark(14)
    assert driver.is_empty()
    send(driver, (16, 9))
    assert rows(driver, "total", "pane", "revision") == [
        (1, "on_time", 0),
        (3, "late", 1),
        (7, "late", 2),
        (15, "late", 3),
    ]
    assert [e.on_time for e in driver.emissions] == [True, False, False, False, False]
    assert [late["event"]["v"] for late in driver.values("late")] == [16]


def test_a_window_may_begin_within_allowed_lateness(drive: Drive) -> None:
    driver = drive(window(Ev, tumbling(10), allowed_lateness=5).aggregate(total=sum_of("v")))
    driver.advance_watermark(12)
    send(driver, (1, 3))
    assert rows(driver, "total", "pane", "revision") == [(1, "late", 0)]
    driver.advance_watermark(14)
    assert driver.is_empty()


def test_late_events_may_be_refined_several_at_once_and_the_rest_at_the_end(drive: Drive) -> None:
    trigger = watermark().late(count=2)
    driver = drive(window(Ev, tumbling(10), allowed_lateness=5, trigger=trigger).aggregate(n=count()))
    send(driver, (1, 3))
    driver.advance_watermark(9)
    send(driver, (1, 4), (1, 5), (1, 6))
    assert rows(driver, "n", "pane") == [(1, "on_time"), (3, "late")]
    driver.advance_watermark(14)
    assert rows(driver, "n", "pane")[2:] == [(4, "late")]
    assert not driver.emissions[-1].on_time
    assert driver.is_empty()


def test_a_changelog_adds_up_to_the_final_result(drive: Drive) -> None:
    driver = drive(
        window(Ev, tumbling(10), allowed_lateness=5, emit="changelog").aggregate(total=sum_of("v"))
    )
    send(driver, (1, 3), (2, 4), (0, 5))
    driver.advance_watermark(9)
    send(driver, (4, 6))
    assert rows(driver, "change", "total", "revision", "pane") == [
        ("insert", 1, 0, "early"),
        ("update_before", 1, 0, "early"),
        ("update_after", 3, 1, "early"),
        ("update_before", 3, 1, "late"),
        ("update_after", 7, 2, "late"),
    ]
    driver.advance_watermark(14)
    assert driver.is_empty()


def test_a_changelog_may_speak_at_triggers_only(drive: Drive) -> None:
    trigger = watermark().early(count=2)
    process = window(Ev, tumbling(10), trigger=trigger, emit="changelog").aggregate(n=count())
    driver = drive(process)
    send(driver, (1, 3), (1, 4), (1, 5))
    driver.advance_watermark(9)
    assert rows(driver, "change", "n") == [("insert", 2), ("update_before", 2), ("update_after", 3)]


def test_the_global_window_speaks_when_its_trigger_does(drive: Drive) -> None:
    trigger = watermark().early(count=3, discard=True)
    driver = drive(window(Ev, global_window(), trigger=trigger).aggregate(tags=collect("v")))
    send(driver, *[(v, v) for v in range(1, 8)])
    assert rows(driver, "tags") == [([1, 2, 3],), ([4, 5, 6],)]
    driver.advance_watermark((1 << 63) - 1)
    assert rows(driver, "tags")[2:] == [([7],)]
    assert driver.is_empty()


def test_early_results_of_sessions_follow_their_merging(drive: Drive) -> None:
    driver = drive(window(Ev, session(10), trigger=watermark().early(count=2)).aggregate(n=count()))
    send(driver, (1, 0), (1, 15), (1, 8))
    driver.advance_watermark(100)
    assert rows(driver, "window_start_ms", "window_end_ms", "n", "pane") == [
        (0, 25, 3, "early"),
        (0, 25, 3, "on_time"),
    ]


def test_each_result_of_a_window_has_an_identity_of_its_own() -> None:
    driver = TestDriver(
        window(Ev, tumbling(10), allowed_lateness=50, emit="changelog").aggregate(n=count()),
        out_of_orderness_ms=BY_HAND,
    )
    for _ in range(3):
        send(driver, (1, 3))
    driver.advance_watermark(20)
    send(driver, (1, 3), (1, 4))
    ids = [e.event_id for e in driver.emissions]
    assert len(ids) == len(set(ids)) == 9


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: watermark().early(), "early.. needs to know when"),
        (lambda: watermark().early(every=0), "must be positive"),
        (lambda: watermark().early(count=0), "at least 1"),
        (lambda: watermark().late(count=0), "at least 1"),
        (lambda: watermark().early(every=5, clock="wall"), "clock is"),  # type: ignore[arg-type]
    ],
)
def test_a_trigger_that_makes_no_sense_is_refused(make: Any, message: str) -> None:
    with pytest.raises(WindowDefinitionError, match=message):
        make()
