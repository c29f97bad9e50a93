"""How a pattern is written, what is refused, and what a checkpoint's contract has of it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from pyspark import cloudpickle

from millrace import minutes
from millrace.patterns import (
    Pattern,
    PatternDefinitionError,
    begin,
    detect,
    skip_past_last,
    skip_to_first,
    skip_to_last,
)
from millrace.testing import TestDriver
from tests.unit.millrace.patterns.cases import Ev, names


def yes(event: Ev) -> bool:
    return True


a = begin("a").where(yes)
ab = a.followed_by("b").where(yes)

REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "a name twice": (lambda: detect(Ev, a.next("a").within(1)), "two parts are named 'a'"),
    "a name twice, in a group": (
        lambda: detect(Ev, a.next(begin("b").next("a")).within(1)),
        "two parts are named 'a'",
    ),
    "no name": (lambda: begin(""), "a part is a name or a pattern begun with begin(), not ''"),
    "no pattern": (lambda: detect(Ev, "a"), "detect() takes a pattern begun with begin(), not 'a'"),  # type: ignore[arg-type]
    "no part": (lambda: a.next(5), "a part is a name or a pattern begun with begin(), not 5"),  # type: ignore[arg-type]
    "a group that must not come": (lambda: a.not_next(ab), "what must not come is one event"),  # type: ignore[arg-type]
    "greedy on what comes once": (
        lambda: detect(Ev, a.greedy().next("b").within(1)),
        "greedy() on 'a', which has no choice how often it comes",
    ),
    "greedy on a fixed number": (lambda: detect(Ev, a.times(3).greedy().within(1)), "greedy() on 'a'"),
    "greedy on a group": (
        lambda: detect(Ev, a.next(begin("b")).one_or_more().greedy().within(1)),
        "greedy() is for single parts",
    ),
    "greedy and combinations": (
        lambda: detect(Ev, a.one_or_more().greedy().allow_combinations().within(1)),
        "greedy() and allow_combinations() on 'a' contradict each other",
    ),
    "until without a loop": (lambda: detect(Ev, a.until(yes)), "until() on 'a', which does not repeat"),
    "until twice": (lambda: a.one_or_more().until(yes).until(yes), "'a' has until() twice"),
    "consecutive without a loop": (
        lambda: detect(Ev, a.consecutive()),
        "consecutive() on 'a', which comes once",
    ),
    "combinations without a loop": (
        lambda: detect(Ev, a.allow_combinations()),
        "allow_combinations() on 'a'",
    ),
    "consecutive and combinations": (
        lambda: a.one_or_more().consecutive().allow_combinations(),
        "consecutive() and allow_combinations() contradict each other",
    ),
    "two quantifiers": (lambda: a.times(2).one_or_more(), "'a' has two quantifiers"),
    "times of nothing": (lambda: a.times(0), "times() of 'a': at least 1"),
    "times backwards": (lambda: a.times(3, 2), "times() of 'a': at least 1 and at most 2, not 3"),
    "must not come, optional": (
        lambda: detect(Ev, a.not_next("b").where(yes).optional()),
        "'b' must not come, so it has no quantifier",
    ),
    "must not come, anything": (lambda: detect(Ev, a.not_next("b").within(1)), "'b' forbids every event"),
    "must not come, after nothing": (
        lambda: detect(Ev, a.optional().not_followed_by("x").where(yes).next("b").within(1)),
        "'x' follows parts that are all optional",
    ),
    "not_followed_by at the end": (
        lambda: detect(Ev, a.not_followed_by("b").where(yes), keep_forever=True),
        "ends with not_followed_by() is complete when its time is over: add within()",
    ),
    "for ever": (lambda: detect(Ev, ab), "add within(...), or keep_forever=True if that is meant"),
    "nothing must come": (lambda: detect(Ev, a.optional().within(1)), "all parts are optional"),
    "no time": (lambda: a.within(0), "within() takes a positive timedelta or milliseconds, not 0"),
    "no time between": (lambda: a.gaps_within(0), "gaps_within() takes a positive timedelta or milliseconds"),
    "another time": (lambda: a.within(1, "last"), "'first_and_last' or 'previous_and_current', not 'last'"),
    "time before the first": (
        lambda: detect(Ev, begin("a").within(1, "previous_and_current").next("b").within(1)),
        "'a' begins the pattern, so no event is before it",
    ),
    "time of a group": (
        lambda: a.next(begin("b")).within(1, "previous_and_current"),
        "within(..., 'previous_and_current') is of a single part, not of a group",
    ),
    "time between in a group": (lambda: a.next(begin("b").gaps_within(1)), "gaps_within() is of the whole"),
    "time of what must not come between": (
        lambda: detect(Ev, a.not_next("x").where(yes).within(1, "previous_and_current").next("b").within(1)),
        "'x' must not come before the next part does: the time is the next part's",
    ),
    "some ways without time": (
        lambda: detect(Ev, a.next("b").within(1, "previous_and_current").next("c")),
        "add within(...), or keep_forever=True if that is meant",
    ),
    "time within a group": (lambda: a.next(begin("b").within(1)), "within() is of the whole pattern"),
    "skip to a part that is not there": (
        lambda: detect(Ev, ab.within(1), after_match=skip_to_first("c")),
        "skip to 'c', which is no part that takes events; there are a, b",
    ),
    "skip to a part that must not come": (
        lambda: detect(Ev, a.not_next("x").where(yes).next("b").within(1), after_match=skip_to_last("x")),
        "skip to 'x', which is no part",
    ),
    "or_where without where": (lambda: begin("a").or_where(yes), "or_where() of 'a': there is no where()"),
    "where of a group": (
        lambda: a.next(begin("b")).where(yes),
        "where() is of a single part, not of a group",
    ),
    "a condition that is none": (lambda: a.where(5), "where() of 'a': a condition is a function"),  # type: ignore[arg-type]
    "a condition of three": (
        lambda: a.where(lambda e, m, x: True),
        "takes (event) or (event, matched), not 3",
    ),
    "a subtype that is none": (lambda: a.subtype("Ev"), "subtype() of 'a' takes a class"),  # type: ignore[arg-type]
    "too many repetitions": (
        lambda: detect(Ev, begin(begin("a").times(200)).times(200).within(1)),
        "repeats its parts over 10,000 times",
    ),
    "select without a type": (
        lambda: detect(Ev, ab.within(1), select=lambda m: 1),
        "select= makes records of the type output=",
    ),
    "no partial matches": (
        lambda: detect(Ev, ab.within(1), max_partial_matches=0),
        "max_partial_matches is at least 1",
    ),
    "a key's column that is taken": (
        lambda: detect(Ev, ab.within(1), key="matched"),
        "'matched' cannot be the name of the key's column",
    ),
    "key's columns of one name": (
        lambda: detect(Ev, ab.within(1), key=("k", "k")),
        "columns of one name: k, k",
    ),
}


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_contradicts_itself_is_refused_in_one_line(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(PatternDefinitionError) as refused:
        make()
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_pattern_never_changes() -> None:
    first = begin("a")
    first.where(yes).one_or_more().next("b")
    assert first == begin("a")


def test_times_between_neighbours_are_in_the_contract_where_there_are_any() -> None:
    def of(pattern: Pattern) -> dict[str, Any]:
        described: dict[str, Any] = detect(Ev, pattern).describe()["pattern"]
        return described

    assert "gap_ms" not in str(of(ab.within(1)))
    assert of(ab.gaps_within(minutes(2)))["gap_ms"] == minutes(2)
    assert of(ab.within(timedelta(seconds=1), "previous_and_current"))["parts"][1]["gap_ms"] == 1_000


def test_a_pattern_whose_gaps_are_all_limited_needs_no_within() -> None:
    detect(Ev, ab.gaps_within(1))
    detect(Ev, ab.within(1, "previous_and_current"))


def test_within_takes_a_timedelta() -> None:
    assert ab.within(timedelta(minutes=2)).within_ms == minutes(2)


def test_a_condition_with_a_default_is_of_the_event_alone() -> None:
    limits = [5]
    pattern = begin("a").where(lambda e, limit=limits[0]: e.n > limit)
    driver = TestDriver(detect(Ev, pattern))
    driver.send("k", Ev("a", 6), at=1)
    driver.send("k", Ev("b", 5), at=2)
    driver.drain()
    assert [names(m.matched) for m in driver.values()] == ["a"]


def test_a_pattern_of_one_event_needs_no_within() -> None:
    assert detect(Ev, begin("a")).name == "ev_a"


def test_a_process_survives_pickling_with_its_functions() -> None:
    limit = 3
    process = detect(
        Ev,
        begin("a")
        .where(lambda e: e.n > limit)
        .followed_by("b")
        .where(lambda e, m: e.n > m["a"][0].n)
        .within(9),
        after_match=skip_past_last(),
        select=lambda m: names(m.matched),
        output=str,
    )
    again = cloudpickle.loads(cloudpickle.dumps(process))
    assert again.describe() == process.describe()
    driver = TestDriver(again)
    driver.send_batch([("k", 1, Ev("x", 4)), ("k", 2, Ev("y", 4)), ("k", 3, Ev("z", 5))])
    driver.drain()
    assert driver.values() == ["x z"]


def test_the_contract_knows_a_changed_pattern() -> None:
    def said(pattern: Pattern, **options: Any) -> dict[str, Any]:
        return detect(Ev, pattern.within(10), **options).describe()

    same = said(ab)
    assert said(begin("a").where(lambda e: False).followed_by("b").where(yes)) == same  # code is not compared
    assert msgspec.json.decode(msgspec.json.encode(same)) == same
    others = [
        said(a.next("b").where(yes)),
        said(a.followed_by("c").where(yes)),
        said(ab.one_or_more()),
        said(ab.optional()),
        said(ab, after_match=skip_past_last()),
        said(ab, after_match=skip_to_first("a")),
        said(begin("a").followed_by("b").where(yes)),
        said(begin(ab)),
    ]
    assert all(other != same for other in others)
    assert detect(Ev, ab.within(11)).describe() != same
    assert said(ab, max_partial_matches=5) == same


def test_processes_have_names_made_of_their_parts() -> None:
    assert detect(Ev, ab.within(1)).name == "ev_a_b"
    assert detect(Ev, ab.within(1), name="mine").name == "mine"
