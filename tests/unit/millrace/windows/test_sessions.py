"""Session windows: what merges, when they close, and which session a late event is judged by."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.testing import TestDriver
from millrace.windows import WindowDefinitionError, collect, count, session, sum_of, window
from tests.unit.millrace.windows.cases import BY_HAND, Drive, Ev, Restarting, tagged, windows


@pytest.fixture(params=[False, True], ids=["straight", "restarting"])
def drive(request: pytest.FixtureRequest) -> Drive:
    kind = Restarting if request.param else TestDriver

    def make(process: Any, bound: int = 0) -> TestDriver:
        return kind(process, out_of_orderness_ms=bound)

    return make


def counted(drive: Drive, gap: int, times: list[int], **options: Any) -> list[tuple[int, int, Any]]:
    driver = drive(window(Ev, session(gap, **options)).aggregate(n=count()), BY_HAND)
    for at in times:
        driver.send("k", Ev(), at=at)
    driver.advance_watermark(1 << 40)
    assert driver.is_empty()
    return windows(driver, "n")


def test_a_final_session_ends_a_gap_after_its_last_event(drive: Drive) -> None:
    """The gap is 5.

    ::

    k1: 0  1(third)  5            5(late)        30
    k2:                     11
    """
    driver = drive(window(Ev, session(5)).aggregate(n=count()))
    for key, at in [("k1", 0), ("k1", 5), ("k1", 1), ("k2", 11), ("k1", 5), ("k1", 30)]:
        driver.send(key, Ev(), at=at)
    assert [(r.key, r.window_start_ms, r.window_end_ms, r.n) for r in driver.values()] == [
        ("k1", 0, 10, 3),
        ("k2", 11, 16, 1),
    ]
    assert [late["lateness_ms"] for late in driver.values("late")] == [5]
    driver.advance_watermark(35)
    assert driver.is_empty()


def test_a_changelog_takes_back_the_sessions_that_merge(drive: Drive) -> None:
    driver = drive(window(Ev, session(5), emit="changelog").aggregate(n=count()))
    for at in (0, 5, 1):
        driver.send("k1", Ev(), at=at)
    assert [(r.change, r.window_start_ms, r.window_end_ms, r.n) for r in driver.values()] == [
        ("insert", 0, 5, 1),
        ("delete", 0, 5, 1),
        ("insert", 0, 10, 2),
        ("update_before", 0, 10, 2),
        ("update_after", 0, 10, 3),
    ]


def test_an_event_between_two_sessions_makes_one_of_them(drive: Drive) -> None:
    """Gap 60: events at 0 and 61 are apart until 30 comes; the other keys see parts of it."""
    driver = drive(window(Ev, session(60)).aggregate(n=count()), BY_HAND)
    script = [("d", 0), ("d", 30), ("a", 61), ("a", 91), ("b", 61), ("c", 0), ("c", 61)]
    for key, at in [*script, ("e", 0), ("e", 61), ("e", 30)]:
        driver.send(key, Ev(), at=at)
    driver.advance_watermark(1 << 40)
    found: dict[str, list[tuple[int, int, int]]] = {}
    for r in driver.values():
        found.setdefault(r.key, []).append((r.window_start_ms, r.window_end_ms, r.n))
    assert found == {
        "d": [(0, 90, 2)],
        "a": [(61, 151, 2)],
        "b": [(61, 121, 1)],
        "c": [(0, 60, 1), (61, 121, 1)],
        "e": [(0, 121, 3)],
    }


@pytest.mark.parametrize(
    ("gap", "times", "merging", "splitting"),
    [
        (10, [0, 10, 101], [(0, 20, 2), (101, 111, 1)], [(0, 10, 1), (10, 20, 1), (101, 111, 1)]),
        (10, [1, 2, 5, 9, 100, 101], [(1, 19, 4), (100, 111, 2)], [(1, 19, 4), (100, 111, 2)]),
        (10, [1, 15, 30, 100, 101, 95, 22, 10], [(1, 40, 5), (95, 111, 3)], [(1, 40, 5), (95, 111, 3)]),
        (
            1_000,
            [1, 2, 1_000, 5_000, 5_001, 10_000],
            [(1, 2_000, 3), (5_000, 6_001, 2), (10_000, 11_000, 1)],
            [(1, 2_000, 3), (5_000, 6_001, 2), (10_000, 11_000, 1)],
        ),
        (10_000, [0, 10_001], [(0, 10_000, 1), (10_001, 20_001, 1)], [(0, 10_000, 1), (10_001, 20_001, 1)]),
    ],
)
def test_a_gap_of_exactly_the_timeout_merges_unless_it_is_to_split(
    drive: Drive,
    gap: int,
    times: list[int],
    merging: list[tuple[int, int, int]],
    splitting: list[tuple[int, int, int]],
) -> None:
    assert counted(drive, gap, times) == merging
    assert counted(drive, gap, times, exact_gap="split") == splitting


def test_a_session_survives_a_restart_and_closes_when_its_end_itself_is_over(drive: Drive) -> None:
    """Gap 3 s; the watermark comes by hand: 12000, 17999, 18000."""
    driver = drive(window(Ev, session(3_000)).aggregate(total=sum_of("v")), BY_HAND)
    for v, at in [(1, 0), (2, 1_000), (3, 2_500)]:
        driver.send("key2", Ev(v), at=at)
    driver.restart()
    for v, at in [(1, 10), (2, 1_000), (3, 2_500)]:
        driver.send("key1", Ev(v), at=at)
    for v, at in [(4, 5_501), (5, 6_000), (5, 6_000), (6, 6_050)]:
        driver.send("key2", Ev(v), at=at)
    driver.advance_watermark(12_000)
    assert sorted((r.key, r.total, r.window_start_ms, r.window_end_ms) for r in driver.values()) == [
        ("key1", 6, 10, 5_500),
        ("key2", 6, 0, 5_500),
        ("key2", 20, 5_501, 9_050),
    ]
    driver.send_batch([("key2", 15_000, Ev(10)), ("key2", 15_000, Ev(20))])
    driver.advance_watermark(17_999)
    assert len(driver.values()) == 3
    driver.advance_watermark(18_000)
    assert windows(driver, "total")[3:] == [(15_000, 18_000, 30)]
    assert driver.is_empty()


def test_lateness_is_judged_by_the_merged_session(drive: Drive) -> None:
    """Gap 3 s: 1@4500 is behind the watermark, and its session is still open."""
    driver = drive(window(Ev, session(3_000)).aggregate(total=sum_of("v")), BY_HAND)

    def send(*times: int) -> None:
        for at in times:
            driver.send("k", Ev(), at=at)

    send(1_000)
    driver.advance_watermark(1_999)
    send(2_000)
    driver.advance_watermark(4_998)
    send(4_500, 8_500)
    driver.advance_watermark(7_400)
    send(7_000)
    driver.advance_watermark(11_501)
    assert windows(driver, "total") == [(1_000, 11_500, 5)]
    send(11_600)
    driver.advance_watermark(14_600)
    assert windows(driver, "total")[1:] == [(11_600, 14_600, 1)]
    send(10_000, 10_100)
    assert [late["lateness_ms"] for late in driver.values("late")] == [4_600, 4_500]
    send(14_500)
    driver.advance_watermark(20_000)
    assert windows(driver, "total")[2:] == [(14_500, 17_500, 1)]
    assert driver.is_empty()


def test_a_late_event_whose_own_gap_is_over_joins_the_open_session_that_it_touches(drive: Drive) -> None:
    """Gap 3 s: alone, 1@3000 would have ended at 6000; the session from 5000 on ends at 11000.

    ::

    k:   3000(late)  5000  8000 |7000
    """
    driver = drive(window(Ev, session(3_000)).aggregate(total=sum_of("v")), BY_HAND)
    driver.send_batch([("k", 5_000, Ev()), ("k", 8_000, Ev())])
    driver.advance_watermark(7_000)
    driver.send("k", Ev(), at=3_000)
    driver.advance_watermark(11_000)
    assert windows(driver, "total") == [(3_000, 11_000, 3)]
    assert driver.values("late") == []
    assert driver.is_empty()


def test_sessions_of_words_close_by_the_watermark_of_all(drive: Drive) -> None:
    """Gap 10 s, 30 s for stragglers, as in Spark's own example."""
    driver = drive(window(Ev, session(10_000)).aggregate(n=count()), 30_000)

    def send(*lines: tuple[str, int]) -> None:
        driver.send_batch([(word, at * 1_000, Ev()) for text, at in lines for word in text.split()])

    def closed() -> set[tuple[str, int, int, int]]:
        return {(r.key, r.window_start_ms // 1_000, r.window_end_ms // 1_000, r.n) for r in driver.values()}

    send(("hello world spark streaming", 40), ("world hello structured streaming", 41))
    send(("spark streaming", 25))
    send(("hello world", 0))
    assert len(driver.values("late")) == 2
    send(("spark streaming", 30))
    send(("hello apache spark", 60))
    assert closed() == set()
    send(("structured streaming", 90))
    assert closed() == {
        ("spark", 25, 50, 3),
        ("streaming", 25, 51, 4),
        ("hello", 40, 51, 2),
        ("world", 40, 51, 2),
        ("structured", 41, 51, 1),
    }


def test_a_session_folds_its_events_in_order_of_time(drive: Drive) -> None:
    """Gap 5: a1 b5 | c11 d12 e13 f14 | g20, and h1 too late."""
    driver = drive(window(Ev, session(5)).aggregate(tags=collect("tag")))
    for e in tagged("a1 b5 c11 d12 e13 f14 g20 h1"):
        driver.send(e.key, e.event, at=e.at)
    driver.advance_watermark(100)
    assert ["".join(r.tags) for r in driver.values()] == ["ab", "cdef", "g"]
    assert [late["event"]["tag"] for late in driver.values("late")] == ["h"]


def test_an_event_may_say_itself_how_long_it_keeps_its_session_open(drive: Drive) -> None:
    """Event a holds for 100, b for 5: c at 90 and d at 96 are in the session of a, e at 200 is not."""
    process = window(Ev, session(lambda e: e.gap)).aggregate(tags=collect("tag"))
    driver = drive(process, BY_HAND)
    for tag, at, gap in [("c", 90, 5), ("a", 0, 100), ("b", 10, 5), ("d", 96, 5), ("e", 200, 1)]:
        driver.send("k", Ev(tag=tag, gap=gap), at=at)
    driver.advance_watermark(1_000)
    assert [(a, b, "".join(t)) for a, b, t in windows(driver, "tags")] == [(0, 101, "abcd"), (200, 201, "e")]


def test_a_gap_that_is_not_positive_is_the_events_own_fault() -> None:
    driver = TestDriver(window(Ev, session(lambda e: e.gap)).aggregate(n=count()))
    driver.send("k", Ev(gap=0), at=1)
    [letter] = driver.values("dead_letters")
    assert "gap must be positive" in letter["error"]
    assert driver.is_empty()


def test_a_late_event_inside_allowed_lateness_reopens_a_session_that_has_closed(drive: Drive) -> None:
    """The gap is 10, the lateness 20.

    ::

    0  |10: [0, 10)=1|  5  |: refined to [0, 15), open again|  |15: [0, 15)=2|
    """
    driver = drive(window(Ev, session(10), allowed_lateness=20).aggregate(n=count()), BY_HAND)
    driver.send("k", Ev(), at=0)
    driver.advance_watermark(12)
    driver.send("k", Ev(), at=5)
    assert windows(driver, "n") == [(0, 10, 1)]
    driver.advance_watermark(15)
    driver.send("k", Ev(), at=4)
    assert [(r.window_end_ms, r.n, r.revision, r.pane) for r in driver.values()] == [
        (10, 1, 0, "on_time"),
        (15, 2, 1, "on_time"),
        (15, 3, 2, "late"),
    ]
    assert [e.on_time for e in driver.emissions] == [True, True, False]
    driver.advance_watermark(34)
    assert not driver.is_empty()
    driver.advance_watermark(35)
    assert driver.is_empty()


def test_a_changelog_takes_back_a_closed_session_that_a_late_event_stretches(drive: Drive) -> None:
    process = window(Ev, session(10), allowed_lateness=50, emit="changelog").aggregate(n=count())
    driver = drive(process, BY_HAND)
    driver.send("k", Ev(), at=0)
    driver.send("k", Ev(), at=20)
    driver.advance_watermark(40)
    driver.send("k", Ev(), at=10)
    assert [(r.change, r.window_start_ms, r.window_end_ms, r.n) for r in driver.values()[2:]] == [
        ("delete", 0, 10, 1),
        ("delete", 20, 30, 1),
        ("insert", 0, 30, 3),
    ]
    assert not any(e.on_time for e in driver.emissions[2:])


def test_sessions_are_cut_at_their_longest(drive: Drive) -> None:
    """Gap 10, at most 25: an event every 6 makes 0-24, 30-54 and 60."""
    driver = drive(window(Ev, session(10, max_length=25)).aggregate(n=count()), BY_HAND)
    for at in [*range(30, 61, 6), *range(0, 30, 6)]:
        driver.send("k", Ev(), at=at)
    driver.advance_watermark(1_000)
    assert windows(driver, "n") == [(0, 25, 5), (30, 55, 5), (60, 70, 1)]
    assert driver.is_empty()


def test_an_event_exactly_at_the_cut_begins_the_next_session(drive: Drive) -> None:
    driver = drive(window(Ev, session(10, max_length=20)).aggregate(n=count()), BY_HAND)
    for at in (0, 10, 20, 29):
        driver.send("k", Ev(), at=at)
    driver.advance_watermark(1_000)
    assert windows(driver, "n") == [(0, 20, 2), (20, 39, 2)]


def test_a_late_event_joins_a_cut_session_that_is_open_and_moves_no_start(drive: Drive) -> None:
    driver = drive(window(Ev, session(10, max_length=30)).aggregate(n=count()), BY_HAND)
    driver.send("k", Ev(), at=10)
    driver.send("k", Ev(), at=18)
    driver.advance_watermark(20)
    driver.send("k", Ev(), at=15)
    driver.send("k", Ev(), at=5)
    assert [late["lateness_ms"] for late in driver.values("late")] == [15]
    driver.advance_watermark(1_000)
    assert windows(driver, "n") == [(10, 28, 3)]
    assert driver.is_empty()


def test_sessions_end_where_time_is_a_multiple_and_others_begin(drive: Drive) -> None:
    """Gap 10, cut every 24: an event every 6, in any order.

    ::

        0  6  12  18 |24 30 36 42 |48
        [------------)[-----------)[------58)
    """
    process = window(Ev, session(10, cut_every=24), allowed_lateness=5).aggregate(n=count())
    driver = drive(process, BY_HAND)
    for at in [*range(30, 49, 6), *range(0, 30, 6)]:
        driver.send("k", Ev(), at=at)
    driver.advance_watermark(1_000)
    assert windows(driver, "n") == [(0, 24, 4), (24, 48, 4), (48, 58, 1)]
    assert driver.is_empty()


def test_a_session_is_cut_in_one_way() -> None:
    with pytest.raises(WindowDefinitionError, match="by max_length or by cut_every"):
        session(5, max_length=20, cut_every=20)
    with pytest.raises(WindowDefinitionError, match="cut_every"):
        session(5, cut_every=0)


def test_cut_sessions_take_no_allowed_lateness() -> None:
    with pytest.raises(WindowDefinitionError, match="take no allowed_lateness"):
        window(Ev, session(10, max_length=30), allowed_lateness=5).aggregate(n=count())
