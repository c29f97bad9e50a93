"""Interval joins: who meets whom, when those who stay alone are told, what is kept."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from millrace.joins import JoinProcess, interval, interval_join
from millrace.testing import TestDriver
from millrace.testing.properties import invariant, leaks, same_as_batch
from tests.unit.millrace.joins.cases import BY_HAND, Lt, Restarting, Rt, read, rows, send
from tests.unit.millrace.windows.cases import Drive


@pytest.fixture(params=[False, True], ids=["straight", "restarting"])
def drive(request: pytest.FixtureRequest) -> Drive:
    kind = Restarting if request.param else TestDriver
    return lambda process, bound=BY_HAND: kind(process, out_of_orderness_ms=bound)


def join(backward: int = 0, forward: int = 0, **how: Any) -> JoinProcess:
    return interval_join(left=Lt, right=Rt, within=interval(backward=backward, forward=forward), **how)


def pairs(driver: TestDriver) -> list[tuple[int, int]]:
    driver.advance_watermark(100)
    return sorted(rows(driver, "l", "r"))


def test_a_right_event_before_the_left_one_meets_it_within_backward(drive: Drive) -> None:
    """V24: right 7 and left 10 meet by a backward of 3, at the time of the later; right 6 is too old."""
    driver = drive(join(backward=3))
    send(driver, "r7 r6 l10")
    assert pairs(driver) == [(10, 7)]
    assert [e.event_time for e in driver.emissions] == [10]


def test_a_right_event_after_the_left_one_meets_it_within_forward(drive: Drive) -> None:
    """V24: left 7 and right 10 meet by a forward of 3; right 11 is too late."""
    driver = drive(join(forward=3))
    send(driver, "l7 r10 r11")
    assert pairs(driver) == [(7, 10)]
    assert [e.event_time for e in driver.emissions] == [10]


def test_a_left_event_meets_all_around_it(drive: Drive) -> None:
    """V24: 3 to both sides; two right events are of one time."""
    driver = drive(join(3, 3))
    send(driver, "r6 r7 r8:81 r8:82 r10 l10 r11:111 r11:112")
    assert pairs(driver) == [(10, r) for r in (7, 10, 81, 82, 111, 112)]


def test_without_an_interval_only_events_of_one_time_meet(drive: Drive) -> None:
    """V24: one pair first; one more right event, one more pair; one more left event, two more."""
    script = "r7 l6 l8 l7"
    for more, wanted in (("", 1), (" r7", 2), (" r7 l7", 4)):
        driver = drive(join())
        send(driver, script + more)
        assert pairs(driver) == [(7, 7)] * wanted


@pytest.mark.parametrize(
    ("how", "wanted"),
    [
        ("inner", [(50, 48)]),
        ("left", [(10, None), (50, 48)]),
        ("right", [(None, 30), (50, 48)]),
        ("outer", [(10, None), (None, 30), (50, 48)]),
    ],
)
def test_those_who_stay_alone_are_told_once(drive: Drive, how: str, wanted: list[Any]) -> None:
    driver = drive(join(5, 7, how=how))
    send(driver, "l10 r30 r48 l50")
    driver.advance_watermark(1_000)
    assert rows(driver, "l", "r") == wanted
    assert driver.is_empty()


def test_an_event_is_alone_when_the_watermark_has_passed_whoever_could_meet_it(drive: Drive) -> None:
    """V24: left 10 could meet right events up to 17, right 10 left ones up to 15."""
    driver = drive(join(5, 7, how="outer"))
    send(driver, "l10")
    send(driver, "r10", key="other")
    driver.advance_watermark(14)
    assert driver.values() == []
    driver.advance_watermark(15)
    assert rows(driver, "l", "r", "left_ms", "right_ms") == [(None, 10, None, 10)]
    driver.advance_watermark(16)
    send(driver, "r17:3")
    driver.advance_watermark(17)
    assert rows(driver, "l", "r", "left_ms", "right_ms")[1:] == [(10, 3, 10, 17)]
    assert [(e.event_time, e.on_time) for e in driver.emissions] == [(15, True), (17, True)]


def test_who_may_still_be_met_is_not_told_alone_with_who_may_not(drive: Drive) -> None:
    driver = drive(join(forward=3, how="left"))
    send(driver, "l9 l10 r13")
    driver.advance_watermark(100)
    assert rows(driver, "l", "r") == [(9, None), (10, 13)]


def test_backward_may_be_longer_than_the_bound(drive: Drive) -> None:
    driver = drive(join(backward=50), 1)
    send(driver, "r0 l20 l50 l51")
    driver.drain()
    assert rows(driver, "l", "r") == [(20, 0), (50, 0)]


def test_an_event_behind_the_watermark_is_late(drive: Drive) -> None:
    driver = drive(join(3, 3, how="outer"), 2)
    send(driver, "l10 r7 l7:1")
    assert [late["input"] for late in driver.values("late")] == ["right", "left"]


def test_events_are_forgotten_when_nobody_can_meet_them_any_more() -> None:
    for how in ("inner", "outer"):
        driver = TestDriver(join(16_000, 4_000, how=how))
        most = [0, 0]
        for at in range(0, 100_000, 500):
            driver.send_batch([("k", at, Lt("k", at)), ("k", at, Rt("k", at))])
            state = driver.state("k")
            assert state is not None
            most = [max(m, len(state[side])) for m, side in zip(most, ("lefts", "rights"), strict=True)]
        # Two a second, for the reach of the side and the sweep's 2 s.
        assert most[0] <= 14
        assert 32 <= most[1] <= 38


@pytest.mark.parametrize("how", ["inner", "left", "right", "outer"])
def test_results_hang_on_the_events_alone(how: str) -> None:
    text = "r5 l1 l7 l7 r7 l8 r20 l19 l22 r21 r30 l33 l34 r60"
    events = [(e.key, e.at, e.event) for key in ("a", "b") for e in read(text, key)]
    process = join(4, 3, how=how)
    invariant(process, events, bound_ms=15, runs=12, seed=1)
    same_as_batch(process, events, bound_ms=15)
    assert leaks(process, events) == []


def test_it_goes_to_another_worker_as_its_definition() -> None:
    process = join(4, 3, how="left")
    driver = TestDriver(pickle.loads(pickle.dumps(process)))  # noqa: S301
    send(driver, "l1 r3 l90")
    assert rows(driver, "l", "r") == [(1, 3)]
    assert process.describe() == {
        "join": "IntervalJoin",
        "how": "left",
        "within": {"backward_ms": 4, "forward_ms": 3},
    }
