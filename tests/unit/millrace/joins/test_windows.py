"""Window joins: left and right events of one window."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import pytest

from millrace.joins import JoinProcess, window_join
from millrace.testing import TestDriver
from millrace.testing.properties import invariant, leaks, same_as_batch
from millrace.windows import hopping, session, tumbling
from tests.unit.millrace.joins.cases import BY_HAND, Lt, Restarting, Rt, read, rows, send
from tests.unit.millrace.windows.cases import Drive

WINDOW = ("window_start_ms", "window_end_ms", "l", "r")


@pytest.fixture(params=[False, True], ids=["straight", "restarting"])
def drive(request: pytest.FixtureRequest) -> Drive:
    kind = Restarting if request.param else TestDriver
    return lambda process, bound=BY_HAND: kind(process, out_of_orderness_ms=bound)


def join(assigner: Any, **how: Any) -> JoinProcess:
    return window_join(left=Lt, right=Rt, assigner=assigner, **how)


def test_events_of_one_tumbling_window_meet_when_it_is_complete(drive: Drive) -> None:
    """Pairs of [0, 10), and none over its end.

    ::

        left    l1   l9 | l10
        right   r0      | r19
    """
    driver = drive(join(tumbling(10)))
    send(driver, "l9 r0 l1 l10 r19")
    driver.advance_watermark(8)
    assert driver.values() == []
    driver.advance_watermark(9)
    assert rows(driver, *WINDOW) == [(0, 10, 1, 0), (0, 10, 9, 0)]
    assert [e.event_time for e in driver.emissions] == [9, 9]
    driver.advance_watermark(19)
    assert rows(driver, *WINDOW, "left_ms", "right_ms")[2:] == [(10, 20, 10, 19, 10, 19)]
    assert driver.is_empty()


@pytest.mark.parametrize(
    ("how", "wanted"),
    [
        ("inner", [(20, 30, 21, 22)]),
        ("left", [(0, 10, 1, None), (0, 10, 2, None), (20, 30, 21, 22)]),
        ("right", [(10, 20, None, 11), (20, 30, 21, 22)]),
        ("outer", [(0, 10, 1, None), (0, 10, 2, None), (10, 20, None, 11), (20, 30, 21, 22)]),
    ],
)
def test_who_has_nobody_in_its_window_is_told_where_asked_for(
    drive: Drive, how: str, wanted: list[Any]
) -> None:
    driver = drive(join(tumbling(10), how=how))
    send(driver, "l2 l1 r11 r22 l21")
    driver.advance_watermark(100)
    assert rows(driver, *WINDOW) == wanted
    assert driver.is_empty()


def test_in_hopping_windows_a_pair_meets_in_each_window_that_has_both(drive: Drive) -> None:
    driver = drive(join(hopping(10, every=5)))
    send(driver, "l6 r8 r11")
    driver.advance_watermark(100)
    assert rows(driver, *WINDOW) == [(0, 10, 6, 8), (5, 15, 6, 8), (5, 15, 6, 11)]


def test_a_session_is_made_of_the_events_of_both_sides(drive: Drive) -> None:
    """The right events connect two left ones that are more than the gap apart.

    ::

        left    l0              l10          l30
        right        r4    r7
    """
    driver = drive(join(session(5), how="outer"))
    send(driver, "l0 l10 r7 r4 l30")
    driver.advance_watermark(15)
    assert rows(driver, *WINDOW) == [(0, 15, 0, 4), (0, 15, 0, 7), (0, 15, 10, 4), (0, 15, 10, 7)]
    driver.advance_watermark(35)
    assert rows(driver, *WINDOW)[4:] == [(30, 35, 30, None)]
    assert driver.is_empty()


def test_a_sessions_gap_may_be_said_by_the_event(drive: Drive) -> None:
    driver = drive(join(session(lambda event: 20 if isinstance(event, Lt) else 2)))
    send(driver, "l0 r20 r23")
    driver.advance_watermark(100)
    assert rows(driver, *WINDOW) == [(0, 22, 0, 20)]


def test_an_event_whose_windows_are_complete_is_late(drive: Drive) -> None:
    driver = drive(join(hopping(10, every=5), how="left"))
    send(driver, "l6")
    driver.advance_watermark(9)
    send(driver, "l7 r3")
    assert [(late["input"], late["event"]) for late in driver.values("late")] == [
        ("right", '{"key":"k","r":3}')
    ]
    driver.advance_watermark(100)
    assert rows(driver, *WINDOW) == [(0, 10, 6, None), (5, 15, 6, None), (5, 15, 7, None)]


@pytest.mark.parametrize("assigner", [tumbling(10), hopping(20, every=5), session(4)], ids=lambda a: a.label)
@pytest.mark.parametrize("how", ["inner", "outer"])
def test_results_hang_on_the_events_alone(assigner: Any, how: str) -> None:
    text = "r5 l1 l7 l7 r7 l8 r20 l19 l22 r21 r30 l33 l34 r60"
    events = [(e.key, e.at, e.event) for key in ("a", "b") for e in read(text, key)]
    process = join(assigner, how=how)
    invariant(process, events, bound_ms=15, runs=10, seed=1)
    same_as_batch(process, events, bound_ms=15)
    assert leaks(process, events) == []


@pytest.mark.parametrize("assigner", [tumbling(10), hopping(20, every=5), session(4)], ids=lambda a: a.label)
def test_it_goes_to_another_worker_as_its_definition(assigner: Any) -> None:
    process = join(assigner)
    driver = TestDriver(pickle.loads(pickle.dumps(process)))  # noqa: S301
    send(driver, "l6 r8 l90")
    assert (6, 8) in rows(driver, "l", "r")
    assert process.describe()["join"] == type(process).__name__
    assert process.describe()["assigner"] == dataclasses.asdict(assigner)


def test_the_contract_of_a_gap_by_function_is_the_same_in_every_run() -> None:
    described = [join(session(lambda event: 5)).describe() for _ in range(2)]
    assert described[0] == described[1]
    assert described[0]["assigner"]["gap"] == "function"
