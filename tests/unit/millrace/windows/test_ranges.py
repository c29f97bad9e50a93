"""Tumbling, hopping and global windows: who is in, when they speak, what is late."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.testing import TestDriver
from millrace.windows import (
    collect,
    count,
    global_window,
    hopping,
    max_of,
    mean,
    min_of,
    sum_of,
    tumbling,
    window,
)
from tests.unit.millrace.windows.cases import BY_HAND, Drive, Ev, Restarting, tagged, windows


@pytest.fixture(params=[False, True], ids=["straight", "restarting"])
def drive(request: pytest.FixtureRequest) -> Drive:
    kind = Restarting if request.param else TestDriver

    def make(process: Any, bound: int = 0) -> TestDriver:
        return kind(process, out_of_orderness_ms=bound)

    return make


@pytest.mark.parametrize(
    ("at", "size", "step", "expected"),
    [
        (100, 10, 10, [(100, 110)]),
        (100, 60, 60, [(60, 120)]),
        (85, 15, 15, [(75, 90)]),
        (1, 20, 20, [(0, 20)]),
        (100, 30, 10, [(80, 110), (90, 120), (100, 130)]),
        (50, 30, 10, [(30, 60), (40, 70), (50, 80)]),
        (7, 10, 3, [(0, 10), (3, 13), (6, 16)]),
        (-1, 10, 10, [(-10, 0)]),
    ],
)
def test_an_event_is_in_the_windows_that_span_its_time(
    at: int, size: int, step: int, expected: list[tuple[int, int]]
) -> None:
    assert list(hopping(size, every=step).ranges(at)) == expected  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("at_s", "numbers"),
    [(13, {1, 2}), (-3, {-2, -1}), (3, {-1, 0}), (7, {0, 1}), (15, {2, 3}), (-5, {-2, -1})],
)
def test_hopping_windows_count_on_below_zero(at_s: int, numbers: set[int]) -> None:
    found = hopping(10_000, every=5_000).ranges(at_s * 1_000)  # type: ignore[union-attr]
    assert {start // 5_000 for start, _ in found} == numbers


@pytest.mark.parametrize(
    ("offset", "at", "start"), [(3, 2, -7), (3, 3, 3), (3, 12, 3), (-2, 0, -2), (13, 3, 3)]
)
def test_an_offset_moves_the_starts(offset: int, at: int, start: int) -> None:
    assert list(tumbling(10, offset=offset).ranges(at)) == [(start, start + 10)]  # type: ignore[union-attr]


def test_spark_and_these_windows_agree_on_edges(drive: Drive) -> None:
    """Events at −1 | 0 4 | 5 9 | 10 s in windows of 10 s every 5 s."""
    driver = drive(window(Ev, hopping(10, every=5)).aggregate(n=count()), BY_HAND)
    driver.send_batch([("k", at, Ev()) for at in (0, 4, 5, 9, 10, -1)])
    driver.advance_watermark(1_000)
    assert windows(driver, "n") == [(-10, 0, 1), (-5, 5, 3), (0, 10, 4), (5, 15, 3), (10, 20, 1)]
    assert driver.is_empty()


def test_an_event_at_the_end_of_a_window_closes_it(drive: Drive) -> None:
    """k: 1@100 [100 .. 110) 2@110."""
    driver = drive(window(Ev, tumbling(10)).aggregate(total=sum_of("v")))
    driver.send("k", Ev(1), at=100)
    assert driver.values() == []
    driver.send("k", Ev(2), at=110)
    assert windows(driver, "total") == [(100, 110, 1)]
    driver.advance_watermark(119)
    assert windows(driver, "total")[1:] == [(110, 120, 2)]
    assert driver.is_empty()


def test_one_watermark_closes_the_windows_of_all_keys(drive: Drive) -> None:
    """There are 2 ms for stragglers.

    ::

    k1: 1@100 3@105             2@110          2@112
    k2:    5@102  7@108                2@109
    """
    driver = drive(window(Ev, tumbling(10)).aggregate(total=sum_of("v")), 2)
    for key, at, v in [("k1", 100, 1), ("k1", 105, 3), ("k2", 102, 5), ("k2", 108, 7), ("k1", 110, 2)]:
        driver.send(key, Ev(v), at=at)
    driver.send("k2", Ev(2), at=109)
    assert driver.values() == []
    driver.send("k1", Ev(2), at=112)
    assert sorted((r.key, r.window_start_ms, r.total) for r in driver.values()) == [
        ("k1", 100, 4),
        ("k2", 100, 14),
    ]
    driver.advance_watermark(119)
    assert windows(driver, "total")[2:] == [(110, 120, 4)]


def test_hopping_windows_close_together_when_time_jumps(drive: Drive) -> None:
    driver = drive(window(Ev, hopping(10, every=5)).aggregate(total=sum_of("v")))
    driver.send("k", Ev(1), at=100)
    driver.send("k", Ev(2), at=110)
    assert windows(driver, "total") == [(95, 105, 1), (100, 110, 1)]


def test_several_aggregates_share_a_window(drive: Drive) -> None:
    process = window(Ev, tumbling(10)).aggregate(
        n=count(), total=sum_of("v"), average=mean("v"), high=max_of("v"), low=min_of("v"), all=collect("v")
    )
    driver = drive(process)
    for at, v in [(2, 1), (4, 4), (12, 2)]:
        driver.send("k", Ev(v), at=at)
    [row] = driver.values()
    assert (row.n, row.total, row.average, row.high, row.low, row.all) == (2, 5, 2.5, 4, 1, [1, 4])


def test_only_the_final_result_is_emitted_and_what_came_too_late_is_not_lost(drive: Drive) -> None:
    """k1 with 1 ms for stragglers: 0 1 2 1 0 5 0; the last comes when [0, 2) is gone."""
    driver = drive(window(Ev, tumbling(2)).aggregate(n=count()), 1)
    for at in (0, 1, 2, 1, 0, 5, 0):
        driver.send("k1", Ev(), at=at)
    assert windows(driver, "n") == [(0, 2, 4), (2, 4, 1)]
    [late] = driver.values("late")
    assert (late["lateness_ms"], late["watermark_ms"]) == (3, 3)


def test_every_update_is_emitted_where_asked_for(drive: Drive) -> None:
    driver = drive(window(Ev, tumbling(2), emit="updates").aggregate(n=count()), 1)
    for at in (0, 1, 2, 1, 0, 5, 0):
        driver.send("k1", Ev(), at=at)
    assert windows(driver, "n") == [
        (0, 2, 1),
        (0, 2, 2),
        (2, 4, 1),
        (0, 2, 3),
        (0, 2, 4),
        (4, 6, 1),
    ]
    assert [r.revision for r in driver.values()] == [0, 1, 0, 2, 3, 0]
    driver.advance_watermark(5)
    assert len(driver.values()) == 6
    assert driver.is_empty()


def test_late_is_who_finds_the_window_gone_not_who_is_behind_the_watermark(drive: Drive) -> None:
    """Watermarks stand between the events.

    ::

    1@1000 |1985| 1@1980 |1999| 1@1998(late) 1@2001 |2999| |3999|
    """
    driver = drive(window(Ev, tumbling(2_000)).aggregate(total=sum_of("v")), BY_HAND)
    driver.send("k", Ev(), at=1_000)
    driver.advance_watermark(1_985)
    driver.send("k", Ev(), at=1_980)
    driver.advance_watermark(1_999)
    assert windows(driver, "total") == [(0, 2_000, 2)]
    assert driver.emissions[-1].event_time == 1_999
    assert driver.emissions[-1].on_time
    driver.send("k", Ev(), at=1_998)
    assert [late["lateness_ms"] for late in driver.values("late")] == [1]
    driver.send("k", Ev(), at=2_001)
    driver.advance_watermark(2_999)
    assert len(driver.values()) == 1
    driver.advance_watermark(3_999)
    assert windows(driver, "total")[1:] == [(2_000, 4_000, 1)]
    assert driver.is_empty()


def test_a_late_event_goes_to_those_of_its_windows_that_are_still_open(drive: Drive) -> None:
    """Windows of 3 s every 1 s; 1@2400 comes twice when [0, 3000) is closed."""
    driver = drive(window(Ev, hopping(3_000, every=1_000)).aggregate(total=sum_of("v")), BY_HAND)
    driver.send("key2", Ev(), at=1_000)
    driver.advance_watermark(1_999)
    driver.send("key2", Ev(), at=2_000)
    driver.advance_watermark(3_000)
    assert windows(driver, "total") == [(-1_000, 2_000, 1), (0, 3_000, 2)]
    driver.send_batch([("key2", 2_400, Ev()), ("key2", 2_400, Ev())])
    driver.send_batch([("key1", 3_001, Ev()), ("key1", 3_001, Ev()), ("key2", 3_900, Ev())])
    driver.advance_watermark(6_000)
    later = sorted((r.key, r.window_end_ms, r.total) for r in driver.values()[2:])
    assert later == [
        ("key1", 4_000, 2),
        ("key1", 5_000, 2),
        ("key1", 6_000, 2),
        ("key2", 4_000, 5),
        ("key2", 5_000, 4),
        ("key2", 6_000, 1),
    ]
    driver.send("key1", Ev(), at=3_001)
    assert len(driver.values("late")) == 1
    assert driver.is_empty()


def test_hopping_windows_collect_in_order_of_time(drive: Drive) -> None:
    """a1 b4 c8 d12 e13 f14 g16, windows of 10 every 5; h1 comes when everything before 16 is over."""
    driver = drive(window(Ev, hopping(10, every=5)).aggregate(tags=collect("tag")))
    for e in tagged("a1 b4 c8 d12 e13 f14 g16 h1"):
        driver.send(e.key, e.event, at=e.at)
    driver.advance_watermark(100)
    assert [(r.window_start_ms // 5, "".join(r.tags)) for r in driver.values()] == [
        (-1, "ab"),
        (0, "abc"),
        (1, "cdef"),
        (2, "defg"),
        (3, "g"),
    ]
    assert len(driver.values("late")) == 1


def test_the_global_window_ends_with_the_input(drive: Drive) -> None:
    driver = drive(window(Ev, global_window()).aggregate(total=sum_of("v")), BY_HAND)
    driver.send("k", Ev(2), at=-5)
    driver.send("k", Ev(3), at=1 << 40)
    assert driver.values() == []
    driver.advance_watermark((1 << 63) - 1)
    assert [r.total for r in driver.values()] == [5]
    assert driver.is_empty()
