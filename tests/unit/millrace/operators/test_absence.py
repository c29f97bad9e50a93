"""Absence: an alert when what is expected does not come in time, once, by the watermark."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import UserError
from millrace.operators import absence, heartbeat
from millrace.operators.base import OperatorProcess
from millrace.testing import TestDriver
from millrace.testing.properties import invariant, leaks
from tests.unit.millrace.operators.cases import EVENTS, HOUR, MINUTE, Ev, Event, examples, of_key, run


class Ride(msgspec.Struct, frozen=True):
    kind: str
    driver: int = 0


def is_start(event: Any) -> bool:
    return bool(event.kind == "start")


def is_end(event: Any) -> bool:
    return bool(event.kind == "end")


def rides(**how: Any) -> OperatorProcess:
    """Alert when a ride is not over two hours after its start."""
    return absence(Ride, start=is_start, end=is_end, within=2 * HOUR, keep="driver", key="ride", **how)


START, END = Ride("start", 7), Ride("end", 7)


def alerts(driver: TestDriver) -> list[tuple[str, int, int]]:
    return [(r.ride, r.since_ms, r.deadline_ms) for r in driver.values()]


@pytest.mark.parametrize("end_first", [False, True])
@pytest.mark.parametrize("cut", [None, 1])
def test_v30_a_ride_that_ends_in_time_makes_no_alert_and_leaves_nothing(
    end_first: bool, cut: int | None
) -> None:
    events = [("r", 0, START), ("r", MINUTE, END)]
    driver = run(
        rides(), events[::-1] if end_first else events, bound=3 * HOUR, restart_after=cut, drain=False
    )
    driver.advance_watermark(MINUTE)
    assert driver.values() == []
    assert driver.is_empty()


@pytest.mark.parametrize("end_first", [False, True])
@pytest.mark.parametrize("cut", [None, 1])
def test_v30_a_ride_that_ends_after_three_hours_makes_one_alert(end_first: bool, cut: int | None) -> None:
    events = [("r", 0, START), ("r", 3 * HOUR, END)]
    driver = run(rides(), events[::-1] if end_first else events, bound=3 * HOUR, restart_after=cut)
    assert alerts(driver) == [("r", 0, 2 * HOUR)]
    assert driver.values()[0].driver == 7
    assert driver.values("late") == []
    assert driver.is_empty()


@pytest.mark.parametrize("cut", [False, True])
def test_v30_a_ride_without_an_end_makes_an_alert_when_the_watermark_comes_to_two_hours(cut: bool) -> None:
    driver = run(rides(), [("r", 0, START)], drain=False)
    driver.advance_watermark(2 * HOUR - 1)
    assert driver.values() == []
    if cut:
        driver.restart()
    driver.advance_watermark(2 * HOUR)
    assert alerts(driver) == [("r", 0, 2 * HOUR)]
    assert driver.emissions[-1].event_time == 2 * HOUR
    assert driver.is_empty()


@pytest.mark.parametrize("in_order", [False, True])
def test_v30_an_end_alone_leaves_nothing(in_order: bool) -> None:
    driver = run(rides(in_order=in_order), [("r", 0, END)], drain=False)
    driver.advance_watermark(0)
    assert (driver.values(), driver.is_empty()) == ([], True)


@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize(("at", "n"), [(2 * HOUR, 0), (2 * HOUR + 1, 1)])
def test_an_end_at_the_deadline_itself_is_in_time(in_order: bool, at: int, n: int) -> None:
    assert len(run(rides(in_order=in_order), [("r", 0, START), ("r", at, END)]).values()) == n


def test_in_order_an_alert_comes_with_the_keys_own_later_event() -> None:
    driver = run(rides(in_order=True), [("r", 0, START), ("r", 3 * HOUR, END)], bound=24 * HOUR, drain=False)
    assert alerts(driver) == [("r", 0, 2 * HOUR)]
    assert driver.is_empty()


def test_another_start_keeps_the_deadline_or_restarts_it() -> None:
    events = [("r", 0, START), ("r", HOUR, START), ("r", 2 * HOUR + MINUTE, END)]
    assert alerts(run(rides(), events)) == [("r", 0, 2 * HOUR)]
    assert alerts(run(rides(again="restart"), events)) == []
    assert alerts(run(rides(again="restart"), events[:2])) == [("r", HOUR, 3 * HOUR)]


def test_what_comes_after_all_is_told_as_long_as_it_is_remembered() -> None:
    events = [("r", 0, START), ("r", 3 * HOUR, END)]
    driver = run(rides(remember=HOUR), events)
    assert [(r.ride, r.since_ms, r.back_ms, r.overdue_ms) for r in driver.values("back")] == [
        ("r", 0, 3 * HOUR, HOUR)
    ]
    assert driver.is_empty()
    forgotten = run(rides(remember=HOUR), [events[0], ("r", 3 * HOUR + 1, END)])
    assert (len(forgotten.values()), forgotten.values("back"), forgotten.is_empty()) == (1, [], True)


def test_another_start_after_an_alert_begins_another_wait() -> None:
    driver = run(rides(remember=10 * HOUR), [("r", 0, START), ("r", 3 * HOUR, START)])
    assert alerts(driver) == [("r", 0, 2 * HOUR), ("r", 3 * HOUR, 5 * HOUR)]
    assert driver.values("back") == []
    assert driver.is_empty()


@pytest.mark.parametrize("ended", [False, True])
def test_a_wait_that_begins_while_an_alert_is_remembered_is_not_forgotten_with_it(ended: bool) -> None:
    """It is remembered for an hour, until three.

    start 0 ------- alert 2h --- (end) --- start 2.5h ------------- alert 4.5h
    """
    end = [("r", 2 * HOUR + MINUTE, END)] if ended else []
    driver = run(rides(remember=HOUR), [("r", 0, START), *end, ("r", 5 * HOUR // 2, START)])
    assert alerts(driver) == [("r", 0, 2 * HOUR), ("r", 5 * HOUR // 2, 9 * HOUR // 2)]
    assert len(driver.values("back")) == ended


def test_nothing_is_left_once_what_was_overdue_came() -> None:
    driver = run(
        rides(remember=24 * HOUR), [("r", 0, START), ("r", 3 * HOUR, END), ("s", 4 * HOUR, END)], drain=False
    )
    assert (len(driver.values("back")), driver.timers("r"), driver.is_empty()) == (1, {}, False)
    driver.advance_watermark(4 * HOUR)
    assert driver.is_empty()


def test_one_event_may_end_a_wait_and_begin_the_next() -> None:
    process = absence(Ev, start=lambda e: e.v > 0, end=lambda e: e.v < 9, within=10)
    driver = run(process, [("k", 0, Ev(v=1)), ("k", 8, Ev(v=2)), ("k", 15, Ev(v=-1))])
    assert driver.values() == []
    driver = run(process, [("k", 0, Ev(v=1)), ("k", 8, Ev(v=2)), ("k", 19, Ev(v=-1))])
    assert [r.since_ms for r in driver.values()] == [8]


def test_a_key_of_several_parts_has_a_column_for_each() -> None:
    process = absence(Ride, start=is_start, end=is_end, within=5, key=("city", "ride"))
    driver = TestDriver(process)
    driver.send(("Rome", "r"), START, at=0)
    driver.drain()
    assert [(r.city, r.ride) for r in driver.values()] == [("Rome", "r")]


def test_a_silent_key_makes_one_alert_for_each_silence() -> None:
    """Timeout 10.

    events   0  5         20 29 39           60
    alerts          15                49
    """
    events = [("k", at, Ev(v=at)) for at in (0, 5, 20, 29, 39, 60)]
    for in_order in (False, True):
        driver = run(heartbeat(Ev, timeout=10, keep="v", remember=100, in_order=in_order), events)
        assert [(r.since_ms, r.deadline_ms, r.v) for r in driver.values()] == [
            (5, 15, 5),
            (39, 49, 39),
            (60, 70, 60),
        ]
        assert [(r.back_ms, r.overdue_ms) for r in driver.values("back")] == [(20, 5), (60, 11)]
        assert driver.is_empty()


def unanswered(events: list[Event], key: str, within: int, restart: bool) -> list[tuple[int, int]]:
    """Walk through a key's events by time; one beyond all others ends the last wait."""
    found: list[tuple[int, int]] = []
    since: int | None = None
    for _, at, event in [*of_key(events, key), (key, 10**6, Ev(kind="end"))]:
        if since is not None and at > since + within:
            found.append((since, since + within))
            since = None
        if event.kind == "end":
            since = None
        elif event.kind == "start" and (since is None or restart):
            since = at
    return found


@examples(40)
@given(events=EVENTS, within=st.integers(1, 60), restart=st.booleans())
def test_alerts_agree_with_a_walk_through_the_sorted_events(
    events: list[Event], within: int, restart: bool
) -> None:
    process = absence(Ev, start=is_start, end=is_end, within=within, again="restart" if restart else "keep")
    driver = run(process, events, bound=200)
    for key in ("k1", "k2"):
        found = [(r.since_ms, r.deadline_ms) for r in driver.values() if r.key == key]
        assert found == unanswered(events, key, within, restart)


@examples(30)
@given(events=EVENTS, timeout=st.integers(1, 40))
def test_silences_agree_with_the_gaps_between_events(events: list[Event], timeout: int) -> None:
    driver = run(heartbeat(Ev, timeout=timeout), events, bound=200)
    for key in ("k1", "k2"):
        times = [at for _, at, _ in of_key(events, key)]
        gaps = itertools.pairwise([*times, 10**6])
        wanted = [before for before, after in gaps if after - before > timeout]
        assert [r.since_ms for r in driver.values() if r.key == key] == wanted


@examples(12)
@given(events=EVENTS, seed=st.integers(0, 1_000))
@pytest.mark.parametrize("in_order", [False, True])
def test_alerts_do_not_hang_on_how_events_are_brought(events: list[Event], seed: int, in_order: bool) -> None:
    for process in (
        absence(Ev, start=is_start, end=is_end, within=20, keep="id", remember=15, in_order=in_order),
        heartbeat(Ev, timeout=12, keep=("item", "v"), remember=30, in_order=in_order),
    ):
        invariant(process, events, bound_ms=30, runs=4, seed=seed)
        assert leaks(process, events, bound_ms=30) == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"start": "start"}, "start= and end= are functions"),
        ({"within": 0}, "within must be positive"),
        ({"again": "never"}, "again is 'keep' or 'restart'"),
        ({"keep": "nothing"}, "the event has no field 'nothing'"),
        ({"keep": "key"}, "the event has no field 'key'"),
        ({"keep": "kind", "key": "kind"}, "two columns of the result are named 'kind'"),
        ({"key": "not a name"}, "cannot be the name of a column"),
        ({"remember": -1}, "remember must not be negative"),
    ],
)
def test_what_contradicts_itself_is_refused_in_one_line(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says) as refused:
        absence(Ev, **{"start": is_start, "end": is_end, "within": 10, **arguments})
    assert "\n" not in str(refused.value)
