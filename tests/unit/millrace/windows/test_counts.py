"""Count windows: so many events each, in order of event time, whatever order they come in."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.testing import TestDriver
from millrace.windows import (
    WindowDefinitionError,
    collect,
    count_hopping,
    count_sliding,
    count_tumbling,
    max_of,
    sum_of,
    window,
)
from tests.unit.millrace.windows.cases import BY_HAND, At, Ev, examples, fail_on_dead_letters, play, rows


def numbers(n: int) -> list[At]:
    return [At(10 * i, Ev(i)) for i in range(1, n + 1)]


@pytest.mark.parametrize("restarts", [False, True])
def test_count_windows_hop_over_events(restarts: bool) -> None:
    process = window(Ev, count_hopping(5, every=2)).aggregate(all=collect("v"))
    driver = play(process, numbers(11), cuts=range(11), restarts=restarts, bound=0)
    assert rows(driver, "all") == [
        ([1, 2, 3, 4, 5],),
        ([3, 4, 5, 6, 7],),
        ([5, 6, 7, 8, 9],),
        ([7, 8, 9, 10, 11],),
    ]
    queue = driver.state("k")["counted"].queue.totals  # type: ignore[index]
    assert [at // 10 for at, _ in queue.panes[queue.head :]] == [9, 10, 11]


def test_count_windows_carry_the_times_of_their_first_and_last_event() -> None:
    driver = play(window(Ev, count_tumbling(3)).aggregate(total=sum_of("v")), numbers(7))
    assert rows(driver, "window_start_ms", "window_end_ms", "total") == [(10, 31, 6), (40, 61, 15)]


def test_full_tumbling_count_windows_leave_nothing_behind() -> None:
    assert play(window(Ev, count_tumbling(3)).aggregate(total=sum_of("v")), numbers(6)).is_empty()


def test_a_key_that_went_idle_is_forgotten_where_asked_for() -> None:
    process = window(Ev, count_tumbling(3, idle=100)).aggregate(total=sum_of("v"))
    driver = TestDriver(process, out_of_orderness_ms=BY_HAND)
    driver.send_batch([("k", 10, Ev()), ("k", 60, Ev())])
    driver.advance_watermark(159)
    assert not driver.is_empty()
    driver.advance_watermark(160)
    assert driver.is_empty()
    assert driver.values() == []


@examples(40)
@given(
    size=st.integers(1, 9),
    every=st.integers(1, 9),
    n=st.integers(0, 40),
    seed=st.integers(0, 10),
    cuts=st.lists(st.integers(0, 40), max_size=4),
    restarts=st.booleans(),
)
def test_count_windows_agree_with_slices_of_the_sorted_events(
    size: int, every: int, n: int, seed: int, cuts: list[int], restarts: bool
) -> None:
    every = min(size, every)
    events = [At(i, Ev(random.Random(seed * 100 + i).randrange(50))) for i in range(n)]
    mixed = list(events)
    random.Random(seed).shuffle(mixed)
    process = window(Ev, count_hopping(size, every=every)).aggregate(
        total=sum_of("v"), high=max_of("v"), all=collect("v")
    )
    driver = play(process, mixed, cuts=cuts, restarts=restarts)
    fail_on_dead_letters(driver)
    values = [e.event.v for e in events]
    slices = [values[i : i + size] for i in range(0, n - size + 1, every)]
    assert rows(driver, "total", "high", "all") == [(sum(s), max(s), s) for s in slices]


def test_the_last_so_many_events_at_every_event() -> None:
    driver = play(window(Ev, count_sliding(3)).aggregate(all=collect("v")), numbers(5))
    assert rows(driver, "all") == [([1, 2, 3],), ([2, 3, 4],), ([3, 4, 5],)]


@pytest.mark.parametrize(("size", "every"), [(0, 1), (3, 4), (3, 0)])
def test_count_windows_that_cannot_be_are_refused(size: int, every: int) -> None:
    with pytest.raises(WindowDefinitionError, match="1 <= every <= size"):
        count_hopping(size, every=every)
