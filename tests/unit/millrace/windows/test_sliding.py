"""Windows that slide from event to event, and ranges that look back from each."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.testing import TestDriver
from millrace.windows import (
    WindowDefinitionError,
    approx_count_distinct,
    collect,
    count,
    count_distinct,
    first,
    lookback,
    max_of,
    mean,
    quantile,
    sliding,
    sum_of,
    top_n,
    window,
)
from tests.unit.millrace.windows.cases import At, Ev, examples, fail_on_dead_letters, play, rows, tagged

MIXED = tagged("A10 B15 C16 D18 E30 F40 G55 H56 I58 J58 K62 L63 M63 N63 O76 P77 Q80 R2 S3 T5 U8")
SPANS = {
    -8: "R", -7: "RS", -5: "RST", -2: "RSTU",  # windows may begin before zero
    0: "ARSTU", 3: "ASTU", 4: "ATU", 5: "ABTU", 6: "ABCU", 8: "ABCDU", 9: "ABCD", 11: "BCD", 16: "CD",
    17: "D", 20: "E", 30: "EF", 31: "F", 45: "G", 46: "GH", 48: "GHIJ", 52: "GHIJK", 53: "GHIJKLMN",
    56: "HIJKLMN", 57: "IJKLMN", 59: "KLMN", 63: "LMN", 66: "O", 67: "OP", 70: "OPQ", 77: "PQ", 78: "Q",
    171: "V",
}  # fmt: skip


def tags(driver: TestDriver) -> dict[int, str]:
    """Return start → tags of the windows; no window comes twice."""
    fail_on_dead_letters(driver)
    found = rows(driver, "window_start_ms", "tags")
    assert len({start for start, _ in found}) == len(found)
    return {start: "".join(sorted(inside)) for start, inside in found}


def test_a_window_ends_with_each_event_and_one_begins_after_it() -> None:
    """Width 10, 15 for stragglers: A@23, then B@20, then C@27.

    ::

        B@20: [10 .. 20]      A@23: [13 .. 23]      C@27: [17 .. 27]
        after B: [21 .. 31]   after A: [24 .. 34]   after C: nothing comes
    """
    driver = play(
        window(Ev, sliding(10)).aggregate(tags=collect("tag")), tagged("A23 B20 C27"), cuts=[1, 2], bound=15
    )
    assert tags(driver) == {10: "B", 13: "AB", 17: "ABC", 21: "AC", 24: "C"}
    assert rows(driver, "window_end_ms") == [(21,), (24,), (28,), (32,), (35,)]
    assert driver.is_empty()


def test_sliding_windows_begin_before_zero_and_late_events_are_put_aside() -> None:
    """No time for stragglers: C@5 and C@9 come after B@20."""
    driver = play(
        window(Ev, sliding(10)).aggregate(tags=collect("tag")),
        tagged("A1 A3 B20 C5 C9"),
        cuts=range(5),
        bound=0,
    )
    assert tags(driver) == {-9: "A", -7: "AA", 2: "A", 10: "B"}
    assert len(driver.values("late")) == 2


@pytest.mark.parametrize("seed", range(20))
def test_sliding_windows_are_the_same_in_any_order(seed: int) -> None:
    mixed = list(MIXED)
    rng = random.Random(seed)
    rng.shuffle(mixed)
    cuts = rng.sample(range(1, 21), 5)
    driver = play(
        window(Ev, sliding(10)).aggregate(tags=collect("tag")),
        [*mixed, *tagged("V181")],
        cuts=cuts,
        restarts=bool(seed % 2),
        bound=100,
    )
    assert tags(driver) == SPANS
    assert driver.is_empty()


def test_windows_are_closed_when_the_watermark_has_passed_their_last_instant() -> None:
    driver = TestDriver(window(Ev, sliding(10)).aggregate(tags=collect("tag")), out_of_orderness_ms=5)
    for e in tagged("110 210 314 415 520 622 730"):
        driver.send(e.key, e.event, at=e.at)
    expected = {0: "12", 4: "123", 5: "1234", 10: "12345", 11: "345", 12: "3456"}
    assert tags(driver) == expected


@examples(50)
@given(
    times=st.lists(st.integers(0, 60), max_size=25),
    width=st.integers(1, 20),
    cuts=st.lists(st.integers(0, 25), max_size=4),
    restarts=st.booleans(),
)
def test_sliding_windows_agree_with_all_ranges_tried_one_by_one(
    times: list[int], width: int, cuts: list[int], restarts: bool
) -> None:
    events = [At(at, Ev(v=i)) for i, at in enumerate(times)]
    process = window(Ev, sliding(width)).aggregate(n=count(), total=sum_of("v"), high=max_of("v"))
    driver = play(process, events, cuts=cuts, restarts=restarts)
    fail_on_dead_letters(driver)
    starts = {at - width for at in times} | {at + 1 for at in times}
    expected = []
    for start in sorted(starts):
        inside = [e.event.v for e in events if start <= e.at <= start + width]
        if inside:
            expected.append((start, start + width + 1, len(inside), sum(inside), max(inside)))
    assert rows(driver, "window_start_ms", "window_end_ms", "n", "total", "high") == expected
    assert driver.is_empty()


# -- looking back ----------------------------------------------------------------------------------

INSIDE = {
    "right": lambda t, at, w: t - w < at <= t,
    "both": lambda t, at, w: t - w <= at <= t,
    "left": lambda t, at, w: t - w <= at < t,
}


@pytest.mark.parametrize(
    ("closed", "expected"), [("right", [1, 2, 3, 3, 1]), ("both", [1, 2, 4, 4, 1]), ("left", [0, 1, 2, 2, 0])]
)
def test_each_event_gets_what_was_there_before_it(closed: Any, expected: list[int]) -> None:
    """Width 10, events at 0 5 10 10 30: (0, 10] leaves 0 out, and both at 10 see each other."""
    driver = play(
        window(Ev, lookback(10, closed=closed, keep="tag")).aggregate(n=count()), tagged("a0 b5 c10 d10 e30")
    )
    assert rows(driver, "n") == [(n,) for n in expected]
    assert rows(driver, "event_time_ms", "tag") == [(0, "a"), (5, "b"), (10, "c"), (10, "d"), (30, "e")]
    assert driver.is_empty()


@examples(50)
@given(
    events=st.lists(st.tuples(st.integers(0, 80), st.integers(-9, 9), st.sampled_from("abc")), max_size=30),
    width=st.integers(1, 30),
    closed=st.sampled_from(["right", "both", "left"]),
    cuts=st.lists(st.integers(0, 30), max_size=4),
    restarts=st.booleans(),
)
def test_looking_back_agrees_with_a_scan_at_every_event(
    events: list[tuple[int, int, str]], width: int, closed: Any, cuts: list[int], restarts: bool
) -> None:
    sent = [At(at, Ev(v, tag, x=v / 7)) for at, v, tag in events]
    process = window(Ev, lookback(width, closed=closed, keep=("v", "tag"))).aggregate(
        n=count(), total=sum_of("v"), high=max_of("v"), tags=count_distinct("tag"), mid=quantile("v", 0.5),
        about=approx_count_distinct("tag"), best=top_n(2, "v", of="v"), old=first("v"), avg=mean("x"),
    )  # fmt: skip
    driver = play(process, sent, cuts=cuts, restarts=restarts)
    fail_on_dead_letters(driver)
    found = rows(driver, "event_time_ms", "v", "tag", "n", "total", "high", "tags", "about", "best", "mid")
    expected = []
    for e in sent:
        inside = [x for x in sent if INSIDE[closed](e.at, x.at, width)]
        values = sorted(x.event.v for x in inside)
        names = len({x.event.tag for x in inside})
        n = len(values)
        mid = (values[(n - 1) // 2] + values[n // 2]) / 2 if n else None
        expected.append(
            (e.at, e.event.v, e.event.tag, n, sum(values), values[-1] if n else None, names, names,
             values[::-1][:2], mid)
        )  # fmt: skip
    assert sorted(found) == sorted(expected)
    assert driver.is_empty()


def test_an_event_behind_the_watermark_gets_no_result_and_changes_none() -> None:
    driver = TestDriver(window(Ev, lookback(10)).aggregate(n=count()), out_of_orderness_ms=0)
    for at in (10, 20, 15, 21):
        driver.send("k", Ev(), at=at)
    driver.advance_watermark(100)
    assert rows(driver, "event_time_ms", "n") == [(10, 1), (20, 1), (21, 2)]
    assert len(driver.values("late")) == 1


def test_the_state_of_a_key_is_the_events_that_it_looks_back_on_and_no_more() -> None:
    driver = TestDriver(
        window(Ev, lookback(100)).aggregate(total=sum_of("v"), high=max_of("v")), out_of_orderness_ms=0
    )
    for at in range(0, 100_000, 10):
        driver.send("k", Ev(), at=at)
    [cell] = driver.host.store.cells.values()
    assert len(bytes(cell.body)) < 2_000
    driver.advance_watermark(100_000 + 100)
    assert driver.is_empty()


def test_an_event_costs_a_fixed_number_of_steps_however_many_there_are() -> None:
    merges = 0

    def larger(a: int, b: int) -> int:
        nonlocal merges
        merges += 1
        return max(a, b)

    from millrace.parts.queue import AggregateQueue
    from millrace.windows import reduce

    fifo = AggregateQueue([reduce(larger, "v").bind_sliding(Ev)])
    queue = fifo.new()
    for at in range(5_000):
        fifo.add(queue, at, Ev(at % 97), new_pane=True)
        fifo.prune(queue, at - 1_000)
        fifo.value(queue)
    assert merges <= 4 * 5_000


@pytest.mark.parametrize("kind", [sliding(10), lookback(10)])
def test_windows_by_event_have_one_final_result(kind: Any) -> None:
    for options in ({"emit": "updates"}, {"allowed_lateness": 5}, {"order": "arrival"}):
        with pytest.raises(WindowDefinitionError, match="leave out"):
            window(Ev, kind, **options).aggregate(n=count())
