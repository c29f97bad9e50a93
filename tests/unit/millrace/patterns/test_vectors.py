"""What a pattern means, scenario by scenario: V27, V28, and what the tests of Flink's CEP say further.

A text is one key's events in order; a name's first letter says what it is. Times go 1, 2, 3 unless given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from millrace.patterns import (
    Pattern,
    Skip,
    begin,
    detect,
    no_skip,
    skip_past_last,
    skip_to_first,
    skip_to_last,
    skip_to_next,
)
from millrace.testing import TestDriver
from tests.unit.millrace.patterns.cases import Ev, matches, names, read, run


def a(letter: str) -> Callable[[Ev], bool]:
    """The condition that an event's name has a letter."""
    return lambda event: letter in event.name


def is_high(event: Ev) -> bool:
    return event.n >= 9


def start(letter: str) -> Pattern:
    return begin(letter).where(a(letter))


class Case(NamedTuple):
    """A pattern, the events, the matches that must come out, in that order."""

    pattern: Pattern
    events: str
    found: list[str]
    skip: Skip = no_skip()


ab = start("a").next("b").where(a("b"))
any_pair = begin("first").followed_by_any("second")
c_then = start("c").followed_by("a").where(a("a"))
many = c_then.one_or_more()
zero = many.optional()
a_not_b = start("a").not_followed_by("b").where(a("b"))
a_not_next_b = start("a").not_next("b").where(a("b"))
two_then_two = begin("start").where(a("a")).times(2).next("end").where(a("b")).times(2)
run_then_b = start("a").one_or_more().consecutive().greedy().next("b").where(a("b"))
pair_in_time = start("a").followed_by("b").where(a("b")).within(10)
optional_b = start("a").next("b").where(a("b")).one_or_more().consecutive()


def then(pattern: Pattern, letter: str, how: str = "followed_by") -> Pattern:
    return getattr(pattern, how)(letter).where(a(letter))


CASES = {
    # V27
    "followed_by takes the first that fits": Case(
        begin("first").followed_by("second"), "a b c d e", ["a b", "b c", "c d", "d e"]
    ),
    "followed_by_any takes any that fits": Case(
        any_pair, "a b c d e",
        ["a b", "a c", "b c", "a d", "b d", "c d", "a e", "b e", "c e", "d e"],
    ),
    "next: directly after": Case(ab, "a1 b1", ["a1 b1"]),
    "next: something between": Case(ab, "a1 c1 b1", []),
    # V28
    "every three in a row": Case(
        start("a").times(3), "a1 a2 a3 a4 a5 a6", ["a1 a2 a3", "a2 a3 a4", "a3 a4 a5", "a4 a5 a6"]
    ),
    "skip_past_last: no event twice": Case(
        start("a").times(3), "a1 a2 a3 a4 a5 a6", ["a1 a2 a3", "a4 a5 a6"], skip_past_last()
    ),
    "no_skip, any": Case(
        then(start("a"), "b", "followed_by_any"), "a1 b1 a2 b2", ["a1 b1", "a1 b2", "a2 b2"]
    ),
    "skip_to_next: one match per first event": Case(
        then(start("a"), "b", "followed_by_any"), "a1 b1 a2 b2", ["a1 b1", "a2 b2"], skip_to_next()
    ),
    "a run at the end, every length": Case(
        ab.one_or_more(), "a1 b1 b2 b3", ["a1 b1", "a1 b1 b2", "a1 b1 b2 b3"]
    ),
    "a run at the end, the first": Case(ab.one_or_more(), "a1 b1 b2 b3", ["a1 b1"], skip_to_next()),
    "skip_to_first": Case(
        two_then_two, "ab1 ab2 ab3 ab4 ab5 ab6", ["ab1 ab2 ab3 ab4", "ab3 ab4 ab5 ab6"], skip_to_first("end")
    ),
    "skip_to_last": Case(
        two_then_two, "ab1 ab2 ab3 ab4 ab5 ab6 ab7", ["ab1 ab2 ab3 ab4", "ab4 ab5 ab6 ab7"],
        skip_to_last("end"),
    ),
    # after-match strategies, further
    "skip_past_last: of several that complete together the earlier events": Case(
        then(then(then(start("a"), "b", "followed_by_any"), "c", "followed_by_any"), "d"),
        "a1 a2 b1 b2 c1 c2 d1 d2", ["a1 b1 c1 d1"], skip_past_last(),
    ),
    "skip_past_last: what is dead holds nothing back": Case(ab, "a1 c a2 b2", ["a2 b2"], skip_past_last()),
    "skip_to_first at the start skips nothing": Case(
        ab, "a1 b1 a2 b2", ["a1 b1", "a2 b2"], skip_to_first("a")
    ),
    "skip_to_first of a part that is missing skips nothing": Case(
        then(optional_b.optional(), "c", "next"), "a c", ["a c"], skip_to_first("b")
    ),
    "skip_to_first drops longer runs of the same start": Case(
        optional_b, "a1 b1 a2 b2 b3 a3 b4", ["a1 b1", "a2 b2", "a3 b4"], skip_to_first("b")
    ),
    "skip_to_last drops them too": Case(
        optional_b, "a1 b1 a2 b2 b3 a3 b4", ["a1 b1", "a2 b2", "a3 b4"], skip_to_last("b")
    ),
    "run then b, no_skip": Case(run_then_b, "a1 a2 a3 b1", ["a1 a2 a3 b1", "a2 a3 b1", "a3 b1"]),
    "run then b, skip_to_first": Case(
        run_then_b, "a1 a2 a3 b1", ["a1 a2 a3 b1", "a2 a3 b1", "a3 b1"], skip_to_first("a")
    ),
    "run then b, skip_to_last": Case(
        run_then_b, "a1 a2 a3 b1", ["a1 a2 a3 b1", "a3 b1"], skip_to_last("a")
    ),
    "run then b, skip_past_last": Case(run_then_b, "a1 a2 a3 b1", ["a1 a2 a3 b1"], skip_past_last()),
    "an earlier start goes first, though it completes later": Case(
        start("a").followed_by("c").where(a("c")).followed_by("b")
        .where(lambda e, m: e.name[0] == "b" and e.n == m["a"][0].n),
        "a1 c1 a2 c2 b2 b1", ["a1 c1 b1", "a2 c2 b2"], skip_to_first("c"),
    ),
    # greedy
    "greedy run in the middle": Case(then(zero.greedy(), "d"), "c a1 a2 a3 d", ["c a1 a2 a3 d"]),
    "greedy run, others between": Case(
        then(zero.greedy(), "d"), "c x1 a1 x2 a2 x3 a3 d", ["c a1 a2 a3 d"]
    ),
    "greedy run, others after": Case(then(many.greedy(), "d"), "c a1 a2 x d", ["c a1 a2 d"]),
    "greedy run that may be missing": Case(then(zero.greedy(), "d"), "c x d", ["c d"]),
    "greedy run that must come": Case(then(many.greedy(), "d"), "c x d", []),
    "greedy before an optional part": Case(
        then(then(zero.greedy(), "d").optional(), "e"), "c a1 a2 d e", ["c a1 a2 d e", "c a1 a2 e"]
    ),
    "greedy until": Case(
        then(zero.greedy().until(is_high), "d"), "c a1 a2 a3 a9 d", ["c a1 a2 a3 d"]
    ),
    "greedy until, ended before it began": Case(
        then(zero.greedy().until(is_high), "d"), "c a9 a1 a2 d", ["c d"]
    ),
    "greedy that must come, ended before": Case(then(many.greedy().until(is_high), "d"), "c a9 a1 a2 d", []),
    "greedy at the end: when it could not go on": Case(zero.greedy(), "c a1 a2 x a3", ["c a1 a2"]),
    "greedy at the end, consecutive": Case(zero.consecutive().greedy(), "c a1 a2 x a3", ["c a1 a2"]),
    "greedy range at the end": Case(c_then.times(2, 5).greedy(), "c a1 a2 a3 a4 x", ["c a1 a2 a3 a4"]),
    "greedy range that is full": Case(c_then.times(1, 2).greedy(), "c a1 a2 a3", ["c a1 a2"]),
    "greedy before a group": Case(
        then(zero.greedy().followed_by(start("d").followed_by("e").where(a("e"))).times(2), "f"),
        "c a1 a2 x a3 d1 e1 d2 e2 f", ["c a1 a2 a3 d1 d2 e1 e2 f"],
    ),
    "not greedy: every length": Case(then(many, "d"), "c a1 a2 d", ["c a1 a2 d", "c a1 d"]),
    # times
    "times in a range": Case(
        then(c_then.times(2, 3), "d"), "c a1 a2 a3 a4 d", ["c a1 a2 a3 d", "c a1 a2 d"]
    ),
    "times, consecutive": Case(then(c_then.times(2).consecutive(), "d"), "c a1 x a2 a3 d", []),
    "times, all combinations": Case(
        then(c_then.times(2).allow_combinations(), "d"), "c a1 a2 a3 d", ["c a1 a2 d", "c a1 a3 d"]
    ),
    "times or more": Case(then(c_then.times_or_more(2), "d"), "c a1 a2 a3 d", ["c a1 a2 a3 d", "c a1 a2 d"]),
    "optional times": Case(then(c_then.times(2).optional(), "d"), "c a1 d", ["c d"]),
    "optional": Case(then(c_then.optional(), "d"), "c a1 d", ["c a1 d", "c d"]),
    "the same event may not come twice in a match": Case(
        begin("x").where(a("a")).followed_by("y").where(a("a")), "a1", []
    ),
    "equal events are different events": Case(
        then(many, "d"), "c a1@2 a1@3 d", ["c a1 a1 d", "c a1 d"]
    ),
    # until
    "until: what ends it may come next": Case(
        many.until(is_high).followed_by("end").where(is_high), "c a1 a2 a9 a3", ["c a1 a2 a9", "c a1 a9"]
    ),
    "until, combinations": Case(
        many.allow_combinations().until(is_high).followed_by("end").where(is_high), "c a1 a2 a3 a9 a4",
        ["c a1 a2 a3 a9", "c a1 a2 a9", "c a1 a3 a9", "c a1 a9"],
    ),
    "until, zero or more": Case(
        zero.until(is_high).followed_by("end").where(is_high), "c a1 a2 a9 a3",
        ["c a1 a2 a9", "c a1 a9", "c a9"],
    ),
    "until ends a run, not what has yet to begin": Case(
        start("c").followed_by_any("a").where(a("a")).one_or_more().until(is_high), "c a1 a2 a9 a3",
        ["c a1", "c a1 a2", "c a2", "c a3"],
    ),
    # what must not come
    "not_next": Case(
        then(then(a_not_next_b, "c", "followed_by_any"), "d"), "a1 c1 b1 c2 d", ["a1 c1 d", "a1 c2 d"]
    ),
    "not_next, and it comes": Case(then(then(a_not_next_b, "c"), "d"), "a1 b1 c1 c2 d", []),
    "not_next at the end, and it comes": Case(
        then(start("a"), "c").followed_by("d").where(a("d")).not_next("b").where(a("b")), "a1 c1 d b1", []
    ),
    "not_next at the end: a match when another comes": Case(
        then(start("a"), "d").not_next("b").where(a("b")), "a1 d1 x b1", ["a1 d1"]
    ),
    "not_followed_by": Case(
        then(then(a_not_b, "c", "followed_by_any"), "d"), "a1 c1 b1 c2 d", ["a1 c1 d"]
    ),
    "not_followed_by before an optional part": Case(
        then(then(a_not_b, "c", "followed_by_any").optional(), "d"), "a1 c1 b1 c2 d", ["a1 c1 d"]
    ),
    "not_followed_by before an optional end": Case(
        then(a_not_b, "c", "followed_by_any").optional(), "a1 c1 b1 c2", ["a1", "a1 c1"]
    ),
    "not_followed_by before optional times": Case(
        then(then(a_not_b, "c", "followed_by_any").times(2).optional(), "d"), "a1 d1 e b1 c1 c2 d2", ["a1 d1"]
    ),
    "not_followed_by after times holds among them too": Case(
        then(start("a").followed_by_any("b").where(a("b")).times(2).not_followed_by("c").where(a("c")), "d"),
        "a1 b1 c b2 d", [],
    ),
    "not_followed_by before one or more holds up to the first": Case(
        then(then(start("a").not_followed_by("c").where(a("c")), "b", "followed_by_any").one_or_more(), "d"),
        "a1 b1 c1 b4 b5 b6 d1", ["a1 b1 b4 b5 b6 d1", "a1 b1 b4 b5 d1", "a1 b1 b4 d1", "a1 b1 d1"],
    ),
    "not_followed_by the event that would be taken": Case(
        a_not_b.followed_by("end"), "a1 b1 c1", []
    ),
    # conditions
    "where twice: both": Case(start("a").where(is_high), "a1 b9 a9", ["a9"]),
    "or_where: one of them": Case(start("a").or_where(a("b")), "a1 b1 c1", ["a1", "b1"]),
    "subtype": Case(begin("x").subtype(Ev), "a1", ["a1"]),
    "a condition on a missing part sees no events": Case(
        then(many.optional(), "d").where(lambda e, m: len(m["a"]) < 2), "c a1 a2 d", ["c a1 d", "c d"]
    ),
    # groups
    "a group twice": Case(
        then(start("c").followed_by(start("d").followed_by("e").where(a("e"))).times(2), "f"),
        "c d1 e1 d2 e2 f", ["c d1 d2 e1 e2 f"],
    ),
    "an optional group": Case(
        then(start("c").followed_by(start("d").next("e").where(a("e"))).optional(), "f"),
        "c d1 e1 f", ["c d1 e1 f", "c f"],
    ),
    "a group, all or nothing": Case(
        then(start("c").followed_by(start("d").next("e").where(a("e"))).optional(), "f"), "c d1 x f", ["c f"]
    ),
    "a group again and again, consecutive": Case(
        then(begin(start("d").next("e").where(a("e"))).one_or_more().consecutive(), "f"),
        "d1 e1 d2 e2 f", ["d1 d2 e1 e2 f", "d1 e1 f", "d2 e2 f"],
    ),
    "a group again, consecutive, something between": Case(
        then(begin(start("d").next("e").where(a("e"))).one_or_more().consecutive(), "f"),
        "d1 e1 x d2 e2 f", ["d1 e1 f", "d2 e2 f"],
    ),
    "a group again, relaxed": Case(
        then(begin(start("d").next("e").where(a("e"))).one_or_more(), "f"),
        "d1 e1 x d2 e2 f", ["d1 d2 e1 e2 f", "d1 e1 f", "d2 e2 f"],
    ),
    "a group again, all combinations": Case(
        then(begin(start("d").next("e").where(a("e"))).one_or_more().allow_combinations(), "f"),
        "d1 e1 d2 e2 d3 e3 f",
        ["d1 d2 d3 e1 e2 e3 f", "d1 d2 e1 e2 f", "d1 d3 e1 e3 f", "d1 e1 f", "d2 d3 e2 e3 f", "d2 e2 f",
         "d3 e3 f"],
    ),
    "a group until": Case(
        then(begin(start("d").followed_by("e").where(a("e"))).one_or_more().until(is_high), "f"),
        "d1 e1 d2 x9 e2 f", ["d1 e1 f"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_pattern(case: Case) -> None:
    assert matches(case.pattern, case.events, after_match=case.skip) == case.found


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_pattern_with_a_restart_after_every_event(case: Case) -> None:
    driver = TestDriver(detect(Ev, case.pattern, after_match=case.skip, keep_forever=True))
    for at, event in read(case.events):
        driver.send("k", event, at=at)
        driver.restart()
    driver.drain()
    assert [names(m.matched) for m in driver.values()] == case.found


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_nothing_is_left_when_its_time_is_over(case: Case) -> None:
    driver = run(case.pattern.within(1_000), case.events, after_match=case.skip)
    assert set(case.found) <= {names(m.matched) for m in driver.values()}
    assert driver.is_empty()


in_ten = start("s").followed_by_any("m").where(a("m")).followed_by_any("e").where(a("e")).within(10)


def test_v27_within_ten() -> None:
    """What began is over ten after it began; what is over is told, at that moment.

    ::

        1   2   3   4   11      12   13
        s1  s2  m   x   e1           e2
        [---------------)                   s1: over at 11
            [-----------|-------)           s2: over at 12
    """
    driver = run(in_ten, "s1@1 s2@2 m@3 x@4 e1@11 e2@13")
    assert [names(m.matched) for m in driver.values()] == ["s2 m e1"]
    over = [(names(p.matched), p.start_ms, p.end_ms, p.deadline_ms) for p in driver.values("timed_out")]
    assert over == [("s1", 1, 1, 11), ("s1 m", 1, 3, 11), ("s2", 2, 2, 12), ("s2 m", 2, 3, 12)]
    assert driver.is_empty()


def test_v27_tells_what_is_over_when_the_watermark_has_come_by() -> None:
    driver = TestDriver(detect(Ev, in_ten))
    driver.send("k", Ev("s", 1), at=1)
    driver.send("other", Ev("x"), at=10)  # the watermark is 9
    assert driver.values("timed_out") == []
    driver.advance_watermark(10)  # nothing at 10 or before can come any more
    assert [p.deadline_ms for p in driver.values("timed_out")] == [11]


@pytest.mark.parametrize(
    ("events", "found", "over"),
    [
        ("a1@1 b1@10", ["a1 b1"], []),
        ("a1@1 b1@11", [], ["a1"]),
        ("a1@1 x@10 b1@11", [], ["a1"]),
        ("a1@1 a2@5 b1@12", ["a2 b1"], ["a1"]),
    ],
)
def test_a_match_comes_in_less_than_within(events: str, found: list[str], over: list[str]) -> None:
    driver = run(pair_in_time, events)
    assert [names(m.matched) for m in driver.values()] == found
    assert [names(p.matched) for p in driver.values("timed_out")] == over


@pytest.mark.parametrize(
    ("events", "found"),
    [
        ("a1@1", ["a1"]),
        ("a1@1 x@5 x@20", ["a1"]),
        ("a1@1 b1@10", []),
        ("a1@1 b1@11", ["a1"]),
        ("a1@1 a2@5 b1@12", ["a1"]),
    ],
)
def test_not_followed_by_at_the_end_is_a_match_when_its_time_is_over(events: str, found: list[str]) -> None:
    driver = run(a_not_b.within(10), events)
    assert [names(m.matched) for m in driver.values()] == found
    assert driver.is_empty()


def test_its_match_has_the_time_at_which_it_is_known() -> None:
    driver = TestDriver(detect(Ev, a_not_b.within(10)))
    driver.send("k", Ev("a"), at=100)
    driver.advance_watermark(108)
    assert driver.values() == []
    driver.advance_watermark(109)
    assert [(e.output, e.event_time) for e in driver.emissions] == [("main", 109)]


def test_a_greedy_run_at_the_end_is_a_match_when_its_time_is_over() -> None:
    driver = run(zero.greedy().within(10), "c1@1 a1@2 a2@3")
    assert [names(m.matched) for m in driver.values()] == ["c1 a1 a2"]
    assert driver.values("timed_out") == []


def test_what_has_been_a_match_is_not_told_as_timed_out() -> None:
    driver = run(ab.one_or_more().within(10), "a1 b1 b2")
    assert [names(m.matched) for m in driver.values()] == ["a1 b1", "a1 b1 b2"]
    assert driver.values("timed_out") == []


def test_a_match_that_waits_for_an_earlier_one_comes_when_that_is_over() -> None:
    """a1 could still become a match before a2's; its time is over at 11, before that of any event."""
    pattern = start("a").followed_by("b").where(lambda e, m: e.name[0] == "b" and e.n == m["a"][0].n)
    driver = TestDriver(detect(Ev, pattern.within(10), after_match=skip_past_last()))
    for at, event in read("a1@1 a2@3 b2@4"):
        driver.send("k", event, at=at)
    driver.advance_watermark(9)
    assert driver.values() == []
    driver.advance_watermark(10)
    assert [(names(m.matched), m.end_ms) for m in driver.values()] == [("a2 b2", 4)]
    assert driver.is_empty()


# -- time between neighbours ---------------------------------------------------------------------------

NEIGHBOURS = "previous_and_current"
by_steps = start("s").followed_by("m").where(a("m")).followed_by("e").where(a("e"))


def test_neighbours_within_nine() -> None:
    """As Flink's NFAITCase (testSimplePatternWithTimeWindowWithinPreviousAndCurrent): 3 to 11 is less than 9.

    ::

        1   2   3   4   11   13
        s1  s2  m   x   e1   e2
                [-----------)        m: an event for e in less than 9
    """
    driver = run(by_steps.within(9, NEIGHBOURS), "s1@1 s2@2 m@3 x@4 e1@11 e2@13", keep_forever=True)
    assert [names(m.matched) for m in driver.values()] == ["s1 m e1", "s2 m e1"]
    assert driver.is_empty()


def test_neighbours_that_come_too_late_time_out_at_their_time() -> None:
    """Each gap is short enough, but one; all gaps together may be long."""
    driver = run(by_steps.gaps_within(10), "s1@1 m1@10 e1@19 s2@30 m2@39 e2@49")
    assert [names(m.matched) for m in driver.values()] == ["s1 m1 e1"]
    over = [(names(p.matched), p.start_ms, p.end_ms, p.deadline_ms) for p in driver.values("timed_out")]
    assert over == [("s2 m2", 30, 39, 49)]
    assert driver.is_empty()


@pytest.mark.parametrize(
    ("events", "found"),
    [
        ("s@1 m@4 e@23", ["s m e"]),
        ("s@1 m@5 e@8", []),
        ("s@1 m@4 e@24", []),
        ("s@1 m@4 m2@5 e@8", ["s m e"]),
    ],
)
def test_a_parts_own_time_goes_before_that_of_all(events: str, found: list[str]) -> None:
    """An m comes in less than 4 after the s, and an e in less than 20 after the m."""
    own = start("s").followed_by("m").where(a("m")).within(4, NEIGHBOURS).followed_by("e").where(a("e"))
    driver = run(own.gaps_within(20), events)
    assert [names(m.matched) for m in driver.values()] == found
    assert driver.is_empty()


def test_each_event_of_a_repeated_part_comes_in_time_after_the_last() -> None:
    clicks = start("a").one_or_more().greedy().within(5, NEIGHBOURS)
    driver = run(clicks, "a1@1 a2@5 a3@9 a4@14 a5@15", after_match=skip_past_last())
    assert [(names(m.matched), m.end_ms) for m in driver.values()] == [("a1 a2 a3", 9), ("a4 a5", 15)]
    assert driver.is_empty()


def test_nothing_for_so_long_after_the_last_event_is_a_match_when_that_is_over() -> None:
    """It is known at 12, 10 after the last a, however long the a's have gone on."""
    silent = start("a").one_or_more().greedy().not_followed_by("b").where(a("b")).gaps_within(10)
    driver = TestDriver(detect(Ev, silent, after_match=skip_past_last()))
    for at, event in read("a1@1 a2@3"):
        driver.send("k", event, at=at)
    driver.advance_watermark(11)
    assert driver.values() == []
    driver.advance_watermark(12)
    assert [(names(m.matched), m.end_ms) for m in driver.values()] == [("a1 a2", 3)]
    assert [e.event_time for e in driver.emissions] == [12]
    assert driver.is_empty()


def test_what_must_not_come_for_a_time_may_come_after_it() -> None:
    """No b for 5 after the last a, of which more may come for 20: the b at 9 forbids nothing.

    ::

        1      3          9
        a1     a2         b1
               [----)            no b
               [-------- ... --) no further a: it is known that a2 was the last
    """
    pattern = (
        start("a").times_or_more(2).greedy().consecutive().within(20, NEIGHBOURS)
        .not_followed_by("b").where(a("b")).within(5, NEIGHBOURS)
    )  # fmt: skip
    driver = run(pattern, "a1@1 a2@3 x@30")
    assert [names(m.matched) for m in driver.values()] == ["a1 a2"]
    assert [e.event_time for e in driver.emissions if e.output == "main"] == [22]
    assert [names(m.matched) for m in run(pattern, "a1@1 a2@3 b@7").values()] == []
    assert [names(m.matched) for m in run(pattern, "a1@1 a2@3 b@8").values()] == ["a1 a2"]


def test_the_first_event_of_a_group_that_repeats_comes_in_time_after_the_last() -> None:
    """(a b)+ with 5 before each a of a further round, and 3 before each b."""
    rounds = begin(
        start("a").times(1, 2).within(5, NEIGHBOURS).next("b").where(a("b")).within(3, NEIGHBOURS)
    ).one_or_more().consecutive()  # fmt: skip
    end = rounds.next("e").where(a("e")).within(50, NEIGHBOURS)
    found = [names(m.matched) for m in run(end, "a1@1 b1@3 a2@7 b2@9 e@20").values()]
    assert found == ["a1 a2 b1 b2 e", "a2 b2 e"]
    found = [names(m.matched) for m in run(end, "a1@1 b1@3 a2@8 b2@9 e@20").values()]
    assert found == ["a2 b2 e"]


def test_a_way_that_is_over_leaves_the_others() -> None:
    """After s an m may come for 4, and an e for 20: at 5 only the e may."""
    own = (
        start("s").followed_by("m").where(a("m")).within(4, NEIGHBOURS).optional()
        .followed_by("e").where(a("e")).within(20, NEIGHBOURS)
    )  # fmt: skip
    driver = run(own, "s@1 m@5 e@8 s2@100 x@110")
    assert [names(m.matched) for m in driver.values()] == ["s e"]
    assert [(names(p.matched), p.deadline_ms) for p in driver.values("timed_out")] == [("s2", 120)]
    assert driver.is_empty()


def test_keys_do_not_see_each_other() -> None:
    driver = TestDriver(detect(Ev, ab.within(10)))
    driver.send("x", Ev("a"), at=1)
    driver.send("y", Ev("b"), at=2)
    driver.send("x", Ev("b"), at=3)
    driver.drain()
    assert [m.key for m in driver.values()] == ["x"]


def test_events_are_matched_in_order_of_time() -> None:
    driver = TestDriver(detect(Ev, ab.within(10)), out_of_orderness_ms=5)
    driver.send("k", Ev("b"), at=103)
    driver.send("k", Ev("a"), at=101)
    driver.drain()
    found: list[Any] = driver.values()
    assert [names(m.matched) for m in found] == ["a b"]
