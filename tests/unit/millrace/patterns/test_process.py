"""A pattern at work: its records, what is kept, what is dropped, failures, restarts, new versions."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.patterns import PatternProcess, Skip, begin, detect, no_skip, skip_past_last, skip_to_next
from millrace.process import ProcessDefinitionError
from millrace.testing import TestDriver
from millrace.testing.properties import invariant, leaks, same_as_batch
from tests.unit.millrace.patterns.cases import Ev, names


def a(letter: str) -> Any:
    return lambda event: event.name[0] == letter


ab = begin("a").where(a("a")).followed_by("b").where(a("b"))
any_b = begin("a").where(a("a")).followed_by_any("b").where(a("b")).followed_by("c").where(a("c"))


class Pair(msgspec.Struct, frozen=True):
    key: str
    first: int
    last: int


def kept(driver: TestDriver, key: str = "k") -> Any:
    state = driver.state(key)
    return None if state is None else state["partials"]


def test_a_match_has_key_events_and_times() -> None:
    driver = TestDriver(detect(Ev, ab.within(10), key="card"))
    driver.send_batch([("k", 1, Ev("a")), ("k", 2, Ev("x")), ("k", 3, Ev("b"))])
    driver.drain()
    (match,) = driver.values()
    assert (match.card, match.start_ms, match.end_ms) == ("k", 1, 3)
    assert match.matched == {"a": [Ev("a")], "b": [Ev("b")]}
    assert [e.event_time for e in driver.emissions] == [3]


def test_a_part_that_is_missing_is_not_among_the_matched() -> None:
    driver = TestDriver(detect(Ev, begin("a").where(a("a")).next("b").where(a("b")).optional().within(10)))
    driver.send("k", Ev("a"), at=1)
    driver.drain()
    assert [list(m.matched) for m in driver.values()] == [["a"]]


def test_select_makes_the_records() -> None:
    process = detect(
        Ev,
        ab.within(10),
        select=lambda m: Pair(m.key, m.matched["a"][0].n, m.matched["b"][0].n),
        output=Pair,
    )
    driver = TestDriver(process)
    driver.send_batch([("k", 1, Ev("a", 5)), ("k", 2, Ev("b", 7))])
    driver.drain()
    assert driver.values() == [Pair("k", 5, 7)]


def test_a_key_of_several_parts_has_a_column_for_each() -> None:
    driver = TestDriver(detect(Ev, ab.within(10), key=("user", "card")))
    driver.send_batch([(("u", "c"), 1, Ev("a")), (("u", "c"), 2, Ev("b"))])
    driver.drain()
    assert [(m.user, m.card) for m in driver.values()] == [("u", "c")]


def test_a_key_of_other_parts_than_named_stops_the_query() -> None:
    driver = TestDriver(detect(Ev, ab.within(10)))
    with pytest.raises(ProcessDefinitionError, match="the key has 2 parts and records name 1"):
        driver.send_batch([(("u", "c"), 1, Ev("a")), (("u", "c"), 2, Ev("b")), (("u", "c"), 9, Ev("x"))])


def test_nothing_is_kept_of_events_that_fit_nowhere() -> None:
    driver = TestDriver(detect(Ev, ab.within(10)))
    driver.send_batch([("k", at, Ev("x")) for at in range(5)])
    driver.advance_watermark(8)
    assert driver.is_empty()


def test_nothing_is_kept_after_the_last_match() -> None:
    driver = TestDriver(detect(Ev, ab.within(1_000)))
    driver.send_batch([("k", 1, Ev("a")), ("k", 2, Ev("b"))])
    driver.advance_watermark(2)
    assert len(driver.values()) == 1
    assert driver.is_empty()


def test_an_event_is_kept_once_however_many_partial_matches_have_it() -> None:
    """a+ over a1..a9: 45 partial matches over 9 events; all of them share what they have in common."""
    driver = TestDriver(
        detect(Ev, begin("a").where(a("a")).one_or_more().followed_by("b").where(a("b")).within(100))
    )
    driver.send_batch([("k", at, Ev("a", at)) for at in range(1, 10)])
    driver.advance_watermark(9)
    found = kept(driver)
    assert (len(found.live), len(found.nodes), len(found.events)) == (45, 45, 9)
    driver.send("k", Ev("b"), at=10)
    driver.advance_watermark(10)
    assert len(driver.values()) == 45
    assert len(kept(driver).live) == 9  # those that end with a9 may go on with another
    driver.drain()
    assert driver.is_empty()


def test_what_a_dead_partial_match_had_goes_with_it() -> None:
    """b2 and what leads to it goes when c ends it; a1 still waits for more."""
    driver = TestDriver(detect(Ev, any_b.within(100)))
    driver.send_batch([("k", 1, Ev("a", 1)), ("k", 2, Ev("b", 2)), ("k", 3, Ev("c", 3))])
    driver.advance_watermark(3)
    found = kept(driver)
    assert [stored.event for stored in found.events.values()] == [Ev("a", 1)]
    assert [node.uses for node in found.nodes.values()] == [1]


def test_what_a_partial_match_had_goes_when_its_time_is_over_though_another_goes_on() -> None:
    driver = TestDriver(detect(Ev, ab.within(10)))
    driver.send_batch([("k", 1, Ev("a", 1)), ("k", 5, Ev("a", 5))])
    driver.advance_watermark(10)
    found = kept(driver)
    assert [stored.event for stored in found.events.values()] == [Ev("a", 5)]
    assert (len(found.live), len(found.nodes)) == (1, 1)


def test_the_timer_stands_where_the_oldest_is_over() -> None:
    driver = TestDriver(detect(Ev, ab.within(10)))
    driver.send_batch([("k", 1, Ev("a", 1)), ("k", 5, Ev("a", 5))])
    driver.advance_watermark(6)
    assert driver.timers("k") == {"within": 10}
    driver.advance_watermark(10)
    assert [names(p.matched) for p in driver.values("timed_out")] == ["a"]
    assert driver.timers("k") == {"within": 14}
    driver.advance_watermark(14)
    assert driver.is_empty()


def test_too_many_partial_matches_drop_the_oldest_and_say_so() -> None:
    """Of a1..a5 with room for three: a1 goes when a4 comes, a2 when a5 comes."""
    driver = TestDriver(detect(Ev, ab.within(100), max_partial_matches=3))
    driver.send_batch([("k", at, Ev("a", at)) for at in range(1, 6)])
    driver.send("k", Ev("b"), at=9)
    driver.drain()
    assert [m.matched["a"][0].n for m in driver.values()] == [3, 4, 5]
    gone = [(o.key, o.dropped, o.start_ms, o.last_start_ms, o.at_ms) for o in driver.values("overflow")]
    assert gone == [("k", 1, 1, 1, 4), ("k", 1, 2, 2, 5)]
    assert driver.values("timed_out") == []


def test_what_is_dropped_is_counted_to_the_last_one() -> None:
    """All combinations of b's: 2**n of them; what is kept and what is dropped is all there was."""
    pattern = (
        begin("a").where(a("a")).followed_by("b").where(a("b")).one_or_more().allow_combinations()
        .followed_by("c").where(a("c")).within(100)
    )  # fmt: skip
    events = [("k", 0, Ev("a")), *(("k", at, Ev("b", at)) for at in range(1, 8))]
    driver = TestDriver(detect(Ev, pattern, max_partial_matches=20))
    driver.send_batch(events)
    driver.advance_watermark(7)
    found = kept(driver)
    assert len(found.live) == 20
    assert sum(o.dropped for o in driver.values("overflow")) > 0
    assert all(o.start_ms == 0 for o in driver.values("overflow"))
    driver.drain()
    assert len(driver.values("timed_out")) == 20
    assert driver.is_empty()


def test_matches_that_wait_are_bounded_too() -> None:
    """a1 never gets its b; the matches after it wait for it until there are too many."""
    pattern = (
        begin("a").where(a("a")).followed_by("b").where(lambda e, m: e.name == "b" and e.n == m["a"][0].n)
    )
    process = detect(Ev, pattern.within(1_000), after_match=skip_to_next(), max_partial_matches=2)
    driver = TestDriver(process)
    driver.send("k", Ev("a", 0), at=1)
    for n in range(1, 4):
        driver.send_batch([("k", 10 * n, Ev("a", n)), ("k", 10 * n + 1, Ev("b", n))])
    driver.advance_watermark(40)
    assert [m.matched["a"][0].n for m in driver.values()] == [1, 2, 3]
    assert [(o.dropped, o.start_ms) for o in driver.values("overflow")] == [(1, 1)]


def test_a_condition_that_fails_puts_its_event_aside_and_nothing_else() -> None:
    def small(event: Ev) -> bool:
        if event.n < 0:
            raise ValueError("negative")
        return event.name[0] == "b"

    driver = TestDriver(detect(Ev, begin("a").where(a("a")).followed_by("b").where(small).within(100)))
    driver.send_batch([("k", 1, Ev("a")), ("k", 2, Ev("b", -1)), ("k", 3, Ev("b", 1))])
    driver.drain()
    assert [names(m.matched) for m in driver.values()] == ["a b"]
    assert [letter["error"] for letter in driver.values("dead_letters")] == ["ValueError: negative"]


def test_a_select_that_fails_in_a_timer_leaves_nothing_behind() -> None:
    """What is over then goes to timed_out, and the error to the dead letters; later matches go on."""

    def refuse_first(match: Any) -> str:
        if match.matched["a"][0].n == 1:
            raise ValueError("not this one")
        return names(match.matched)

    pattern = begin("a").where(a("a")).not_followed_by("b").where(a("b")).within(10)
    driver = TestDriver(detect(Ev, pattern, select=refuse_first, output=str))
    driver.send_batch([("k", 1, Ev("a", 1)), ("k", 15, Ev("a", 2))])
    driver.advance_watermark(20)
    assert [names(p.matched) for p in driver.values("timed_out")] == ["a"]
    assert [letter["error"] for letter in driver.values("dead_letters")] == ["ValueError: not this one"]
    driver.advance_watermark(24)
    assert driver.values() == ["a"]
    assert driver.is_empty()


def test_late_events_are_told_and_not_matched() -> None:
    driver = TestDriver(detect(Ev, ab.within(100)), out_of_orderness_ms=5)
    driver.send("k", Ev("a"), at=100)
    driver.send("k", Ev("x"), at=200)
    driver.send("k", Ev("b"), at=110)
    driver.drain()
    assert driver.values() == []
    assert len(driver.values("late")) == 1


def test_an_event_type_may_get_a_field_while_partial_matches_are_kept() -> None:
    class Old(msgspec.Struct):
        name: str

    class New(msgspec.Struct):
        name: str
        n: int = 7

    def of(event_type: Any) -> PatternProcess:
        return detect(event_type, ab.within(100), name="pair")

    before = TestDriver(of(Old))
    before.send_batch([("k", 1, Old("a"))])
    before.advance_watermark(1)
    after = TestDriver(of(New))
    after.restore(before.snapshot())
    after.send("k", New("b", 8), at=5)
    after.drain()
    (match,) = after.values()
    assert [event.n for events in match.matched.values() for event in events] == [7, 8]


@pytest.mark.parametrize("skip", [no_skip(), skip_past_last()])
@settings(deadline=None, max_examples=25)
@given(
    letters=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 4)), max_size=12),
    seed=st.integers(0, 1_000),
)
def test_results_hang_on_the_events_alone(skip: Skip, letters: list[tuple[str, int]], seed: int) -> None:
    process = detect(Ev, any_b.within(12), after_match=skip, max_partial_matches=4)
    at, events = 100, []
    for n, (letter, step) in enumerate(letters):
        at += step
        events.append(("k" if n % 3 else "m", at, Ev(letter, n)))
    invariant(process, events, bound_ms=10, runs=4, seed=seed)
    same_as_batch(process, events, bound_ms=10)
    assert leaks(process, events, bound_ms=10) == []


def test_at_the_end_of_the_input_ways_on_that_end_by_time_are_all_waited_for() -> None:
    """Alone, `a` is a match that waits for two things, of which one is over before the other."""
    pattern = begin("a").next("b").optional().greedy().within(1, "previous_and_current")
    pattern = pattern.next("c").times(2).optional().until(lambda e: e.n > 9).gaps_within(2).within(7)
    for skip in (no_skip(), skip_past_last()):
        driver = TestDriver(detect(Ev, pattern, after_match=skip))
        driver.send("k", Ev("a"), at=0)
        driver.drain()
        assert driver.is_empty()
        assert not driver.host.runner.unfired
