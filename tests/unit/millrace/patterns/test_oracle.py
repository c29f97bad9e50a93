"""Random patterns over random events, against an oracle that knows no automaton."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millrace.patterns import (
    Pattern,
    PatternDefinitionError,
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
from millrace.testing.properties import invariant, leaks
from tests.unit.millrace.patterns.cases import Ev, oracle

LETTERS = "abc"
WITHIN = 7


def one_of(letters: str) -> Any:
    return lambda e: e.name in letters


def one_of_and_more(letters: str) -> Any:
    """A condition on what was matched before: its number is no smaller than any so far."""
    return lambda e, m: e.name in letters and all(e.n >= o.n for taken in m.values() for o in taken)


def at_least(n: int) -> Any:
    return lambda e: e.n >= n


conditions = st.builds(
    lambda make, letters: make("".join(letters)),
    st.sampled_from([one_of, one_of, one_of_and_more]),
    st.sets(st.sampled_from(LETTERS), min_size=1, max_size=2).map(sorted),
)


@st.composite
def parts(draw: st.DrawFn, pattern: Pattern) -> Pattern:
    """The last part of a pattern with a condition and whatever it may have."""
    if draw(st.integers(0, 5)):
        pattern = pattern.where(draw(conditions))
    quantifier = draw(st.sampled_from(["", "", "", "times", "range", "more", "or_more"]))
    if quantifier == "times":
        pattern = pattern.times(2)
    elif quantifier == "range":
        pattern = pattern.times(draw(st.integers(1, 2)), 3)
    elif quantifier == "more":
        pattern = pattern.one_or_more()
    elif quantifier == "or_more":
        pattern = pattern.times_or_more(2)
    inner = draw(st.sampled_from(["", "", "consecutive", "combinations"])) if quantifier else ""
    if inner == "consecutive":
        pattern = pattern.consecutive()
    elif inner == "combinations":
        pattern = pattern.allow_combinations()
    optional = draw(st.integers(0, 3)) == 0
    if optional:
        pattern = pattern.optional()
    loops = quantifier in ("range", "more", "or_more")
    if (loops or optional) and inner != "combinations" and draw(st.integers(0, 2)) == 0:
        pattern = pattern.greedy()
    if quantifier and draw(st.integers(0, 4)) == 0:
        pattern = pattern.until(at_least(3))
    return draw(timed_part(pattern)) if quantifier or len(pattern.parts) > 1 else pattern


@st.composite
def timed_part(draw: st.DrawFn, pattern: Pattern) -> Pattern:
    """The last part of a pattern, sometimes with a time since the event before."""
    if draw(st.integers(0, 3)):
        return pattern
    return pattern.within(draw(st.integers(1, WITHIN)), "previous_and_current")


@st.composite
def patterns(draw: st.DrawFn) -> Pattern:
    pattern = draw(parts(begin("p0")))
    for number in range(1, draw(st.integers(1, 4))):
        kind = draw(
            st.sampled_from(
                ["next", "followed_by", "followed_by", "followed_by_any", "not_next", "not_followed_by"]
            )
        )
        pattern = getattr(pattern, kind)(f"p{number}")
        negated = kind.startswith("not")
        pattern = pattern.where(draw(conditions)) if negated else draw(parts(pattern))
    if pattern.parts[-1].negated:
        pattern = draw(timed_part(pattern))
    if draw(st.integers(0, 3)) == 0:
        pattern = pattern.gaps_within(draw(st.integers(1, WITHIN)))
        if draw(st.booleans()):
            return pattern
    return pattern.within(WITHIN)


events = st.lists(
    st.tuples(st.integers(0, 3), st.builds(Ev, st.sampled_from(LETTERS), st.integers(0, 4))), max_size=9
)


def timed(steps: list[tuple[int, Ev]]) -> list[tuple[int, Ev]]:
    """Events in the order in which the host has them: by time, then by their bytes."""
    at, found = 100, []
    for step, event in steps:
        at += step
        found.append((at, event))
    return sorted(found, key=lambda e: (e[0], f'{{"name":"{e[1].name}","n":{e[1].n}}}'))


@st.composite
def skips(draw: st.DrawFn, pattern: Pattern) -> Skip:
    names = pattern.names()
    kinds = [no_skip(), skip_to_next(), skip_past_last()]
    kinds += [skip_to_first(n) for n in names] + [skip_to_last(n) for n in names]
    return draw(st.sampled_from(kinds))


#: A group's parts: how each follows the one before (the first: the group), and its letters.
group_parts = st.lists(
    st.tuples(st.sampled_from(["next", "followed_by", "followed_by_any"]), conditions), min_size=1, max_size=2
)
INNER = {"next": "consecutive", "followed_by": "", "followed_by_any": "allow_combinations"}


def in_order(matched: dict[str, list[Ev]]) -> list[Ev]:
    return sorted((e for taken in matched.values() for e in taken), key=lambda e: e.n)


@settings(deadline=None, max_examples=100, suppress_health_check=list(HealthCheck))
@given(
    content=group_parts,
    entry=st.sampled_from(["next", "followed_by", "followed_by_any"]),
    inner=st.sampled_from(sorted(INNER)),
    least=st.integers(1, 2),
    more=st.booleans(),
    letters=st.text(LETTERS, max_size=5),
)
def test_a_repeated_group_is_its_parts_written_out(
    content: list[tuple[str, Any]], entry: str, inner: str, least: int, more: bool, letters: str
) -> None:
    """(x y){2} is x y x y; (x y)+ is all of x y, x y x y, ... that fit in."""
    rows = [("k", 100 + n, Ev(letter, n)) for n, letter in enumerate(f"a{letters}c")]

    def content_of(pattern: Pattern | None, how: str, tag: str) -> Pattern:
        for number, (contiguity, condition) in enumerate(content):
            name = f"{tag}{number}"
            if pattern is None:
                pattern = begin(name)
            else:
                pattern = getattr(pattern, how if not number else contiguity)(name)
            pattern = pattern.where(condition)
        assert pattern is not None
        return pattern

    def found(pattern: Pattern) -> list[list[Ev]]:
        process = detect(Ev, pattern.followed_by("end").where(one_of("c")).within(WITHIN))
        driver = TestDriver(process)
        driver.send_batch(rows)
        driver.drain()
        return sorted(in_order(m.matched) for m in driver.values())

    def written_out(times: int) -> Pattern:
        pattern = begin("start").where(one_of("a"))
        for number in range(times):
            pattern = content_of(pattern, inner if number else entry, f"g{number}_")
        return pattern

    group = getattr(begin("start").where(one_of("a")), entry)(content_of(None, entry, "g"))
    group = group.times_or_more(least) if more else group.times(least)
    if INNER[inner] and (more or least > 1):
        group = getattr(group, INNER[inner])()
    wanted: list[list[Ev]] = []
    for times in range(least, len(rows) + 1 if more else least + 1):
        wanted += found(written_out(times))
    assert found(group) == sorted(wanted)


def as_text(matched: dict[str, list[Ev]]) -> str:
    return " ".join(f"{name}:{[(e.name, e.n) for e in taken]}" for name, taken in sorted(matched.items()))


def definable(pattern: Pattern) -> bool:
    try:
        detect(Ev, pattern)
    except PatternDefinitionError:
        return False
    return True


checked = settings(
    deadline=None, max_examples=150, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow]
)


@checked
@given(data=st.data(), pattern=patterns().filter(definable), steps=events)
def test_matches_are_those_of_the_definition(
    data: st.DataObject, pattern: Pattern, steps: list[tuple[int, Ev]]
) -> None:
    skip = data.draw(skips(pattern))
    given_events = timed(steps)
    driver = TestDriver(detect(Ev, pattern, after_match=skip, max_partial_matches=100_000))
    driver.send_batch([("k", at, event) for at, event in given_events])
    driver.drain()
    found = [as_text(m.matched) for m in driver.values()]
    wanted = [as_text(m) for m in oracle(pattern, given_events, skip)]
    assert driver.values("dead_letters") == []
    if skip == no_skip():  # they come as they are complete; with any other, in order of their starts
        found, wanted = sorted(found), sorted(wanted)
    assert found == wanted, (pattern.describe(), skip)
    assert driver.is_empty()


@checked
@given(
    kinds=st.lists(st.sampled_from(["followed_by", "followed_by_any"]), min_size=1, max_size=2),
    letters=st.lists(st.sampled_from(LETTERS), min_size=3, max_size=3),
    limits=st.lists(st.none() | st.integers(1, 6), min_size=2, max_size=2),
    gap=st.none() | st.integers(1, 6),
    steps=events,
)
def test_what_times_out_is_what_had_no_event_in_time(
    kinds: list[str], letters: list[str], limits: list[int | None], gap: int | None,
    steps: list[tuple[int, Ev]],
) -> None:  # fmt: skip
    """A way to take events times out unless an event in time has taken it over (``followed_by``)."""
    pattern = begin("p0").where(one_of(letters[0]))
    for number, kind in enumerate(kinds):
        pattern = getattr(pattern, kind)(f"p{number + 1}").where(one_of(letters[number + 1]))
        limit = limits[number]
        pattern = pattern if limit is None else pattern.within(limit, "previous_and_current")
    pattern = (pattern if gap is None else pattern.gaps_within(gap)).within(WITHIN)
    came = timed(steps)
    wanted: list[tuple[list[tuple[str, int]], int]] = []

    def go_on(taken: list[int]) -> None:
        if len(taken) > len(kinds):
            return
        at, limit = came[taken[-1]][0], limits[len(taken) - 1] or gap or WITHIN
        end = min(at + limit, came[taken[0]][0] + WITHIN)
        later = [
            place
            for place in range(taken[-1] + 1, len(came))
            if came[place][0] < end and came[place][1].name in letters[len(taken)]
        ]
        relaxed = kinds[len(taken) - 1] == "followed_by"
        if not (later and relaxed):
            wanted.append(([(came[p][1].name, came[p][1].n) for p in taken], end))
        for place in later[:1] if relaxed else later:
            go_on([*taken, place])

    for place, (_, event) in enumerate(came):
        if event.name in letters[0]:
            go_on([place])
    driver = TestDriver(detect(Ev, pattern, max_partial_matches=100_000))
    driver.send_batch([("k", at, event) for at, event in came])
    driver.drain()
    over = [
        ([(e.name, e.n) for taken in p.matched.values() for e in taken], p.deadline_ms)
        for p in driver.values("timed_out")
    ]
    assert sorted(over) == sorted(wanted)
    assert [limit for _, limit in over] == sorted(limit for _, limit in over), "told at their time"
    assert driver.is_empty()


@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(data=st.data(), pattern=patterns().filter(definable), steps=events, seed=st.integers(0, 99))
def test_any_order_any_cut_any_restart_gives_the_same(
    data: st.DataObject, pattern: Pattern, steps: list[tuple[int, Ev]], seed: int
) -> None:
    process = detect(Ev, pattern, after_match=data.draw(skips(pattern)), max_partial_matches=3)
    rows = [("k" if event.n % 2 else "m", at, event) for at, event in timed(steps)]
    invariant(process, rows, bound_ms=5, runs=4, seed=seed)
    assert leaks(process, rows) == []


@pytest.mark.parametrize("skip", [no_skip(), skip_past_last()])
def test_oracle_of_a_known_case_is_what_everyone_says(skip: Skip) -> None:
    pattern = begin("a").where(one_of("a")).times(3)
    six = [(at, Ev("a", at)) for at in range(1, 7)]
    found = [[e.n for e in m["a"]] for m in oracle(pattern, six, skip)]
    every = [[1, 2, 3], [2, 3, 4], [3, 4, 5], [4, 5, 6]]
    assert found == (every if skip == no_skip() else [every[0], every[3]])
