"""Deduplicate: the first of an id passes, repeats within the horizon are put aside and counted."""

from __future__ import annotations

import contextlib
import operator
from collections import Counter
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import UserError
from millrace.host.groups import context_key
from millrace.operators import deduplicate
from millrace.testing import TestDriver
from millrace.testing.properties import UnfitEvents, invariant, leaks, same_as_process
from tests.cases import case_count
from tests.unit.millrace.operators.cases import EVENTS, Ev, Event, examples, of_key, run

Order = Literal["event_time", "arrival"]
ORDERS: list[Order] = ["event_time", "arrival"]

V29 = [1, 2, 1, 1, 2, 3, 3, 1, 2]


def ids(driver: TestDriver, output: str = "main") -> list[int]:
    return [(r if output == "main" else r.event).id for r in driver.values(output)]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("by_key", [False, True])
@pytest.mark.parametrize("cut", [None, *range(1, 9)])
def test_v29_every_id_passes_once_also_over_a_restart(order: Order, by_key: bool, cut: int | None) -> None:
    """Ids 1 2 1 1 2 3 3 1 2, a second apart: 1 2 3 pass."""
    process = deduplicate(Ev, id=None if by_key else "id", within=60_000, order=order)
    events = [(str(number) if by_key else "k", 1_000 * i, Ev(number)) for i, number in enumerate(V29)]
    driver = run(process, events, restart_after=cut)
    assert ids(driver) == [1, 2, 3]
    assert ids(driver, "repeats") == [1, 1, 2, 3, 1, 2]
    assert [(r.first_ms, r.repeats) for r in driver.values("repeats") if r.event.id == 1] == [
        (0, 1),
        (0, 2),
        (0, 3),
    ]
    assert driver.is_empty()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("which", ["id", None])
def test_v29_repeats_extend_the_life_of_an_id_where_asked(order: Order, which: str | None) -> None:
    """Horizon 10.

    at       0    6    12   18   40
    plain    ✓    ·    ✓    ·    ✓
    refresh  ✓    ·    ·    ·    ✓
    """
    events = [("k", at, Ev(7, v=at)) for at in (0, 6, 12, 18, 40)]
    plain = run(deduplicate(Ev, id=which, within=10, order=order), events)
    assert [e.v for e in plain.values()] == [0, 12, 40]
    refreshed = run(deduplicate(Ev, id=which, within=10, order=order, refresh=True), events)
    assert [e.v for e in refreshed.values()] == [0, 40]
    assert [(r.first_ms, r.repeats) for r in refreshed.values("repeats")] == [(0, 1), (0, 2), (0, 3)]


@pytest.mark.parametrize(("at", "passes"), [(9, False), (10, True)])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("which", ["id", None])
def test_an_event_exactly_the_horizon_later_is_no_repeat(
    order: Order, which: str | None, at: int, passes: bool
) -> None:
    driver = run(deduplicate(Ev, id=which, within=10, order=order), [("k", 0, Ev(1)), ("k", at, Ev(1))])
    assert len(driver.values()) == 1 + passes


def test_ids_of_several_fields_and_of_functions() -> None:
    events = [("k", at, e) for at, e in enumerate([Ev(1, "a"), Ev(1, "b"), Ev(1, "a"), Ev(2, "a")])]
    assert ids(run(deduplicate(Ev, id=("id", "kind"), within=99), events)) == [1, 1, 2]
    assert ids(run(deduplicate(Ev, id=operator.attrgetter("id"), within=99), events)) == [1, 2]
    assert ids(run(deduplicate(Ev, id=operator.attrgetter("kind"), within=99), events)) == [1, 1]


def test_fields_do_not_run_into_each_other() -> None:
    class Two(msgspec.Struct):
        a: str
        b: str

    events = [("k", 0, Two("x", "yz")), ("k", 1, Two("xy", "z"))]
    assert len(run(deduplicate(Two, id=("a", "b"), within=99), events).values()) == 2


def test_the_first_by_event_time_passes_though_it_comes_second() -> None:
    events = [("k", 8, Ev(1, v=8)), ("k", 3, Ev(1, v=3)), ("k", 99, Ev(2))]
    waiting = run(deduplicate(Ev, id="id", within=50), events, bound=10)
    arriving = run(deduplicate(Ev, id="id", within=50, order="arrival"), events, bound=10)
    assert [e.v for e in waiting.values() if e.id == 1] == [3]
    assert [e.v for e in arriving.values() if e.id == 1] == [8]


def test_in_arrival_order_nothing_waits() -> None:
    driver = run(
        deduplicate(Ev, id="id", within=50, order="arrival"), [("k", 8, Ev(1))], bound=1_000, drain=False
    )
    assert ids(driver) == [1]


def test_in_arrival_order_an_older_use_of_an_id_does_not_shorten_the_memory_of_the_newer() -> None:
    events = [("k", 100, Ev(1, v=1)), ("k", 20, Ev(1, v=2)), ("k", 105, Ev(1, v=3))]
    driver = run(deduplicate(Ev, id="id", within=10, order="arrival"), events, bound=100)
    assert [e.v for e in driver.values()] == [1, 2]


def test_in_arrival_order_the_horizon_goes_both_ways() -> None:
    events = [("k", 100, Ev(1, v=1)), ("k", 91, Ev(1, v=2)), ("k", 90, Ev(1, v=3)), ("k", 99, Ev(1, v=4))]
    driver = run(deduplicate(Ev, id="id", within=10, order="arrival"), events, bound=100)
    assert [e.v for e in driver.values()] == [1, 3]


@pytest.mark.parametrize("which", ["id", None])
def test_in_arrival_order_an_older_repeat_does_not_set_the_horizon_back(which: str | None) -> None:
    events = [("k", at, Ev(1, v=at)) for at in (100, 95, 108)]
    driver = run(deduplicate(Ev, id=which, within=10, order="arrival", refresh=True), events, bound=100)
    assert [e.v for e in driver.values()] == [100]


def test_a_late_repeat_goes_to_the_late_events() -> None:
    driver = run(deduplicate(Ev, id="id", within=50), [("k", 5, Ev(1)), ("k", 90, Ev(2)), ("k", 5, Ev(1))])
    assert (ids(driver), len(driver.values("late"))) == ([1, 2], 1)


def test_an_event_without_an_id_is_a_dead_letter() -> None:
    class MayLack(msgspec.Struct):
        id: str | None

    driver = TestDriver(deduplicate(MayLack, id="id", within=50, order="arrival"))
    for at, value in enumerate(["a", None, None]):
        driver.send("k", MayLack(value), at=at)
    assert [e.id for e in driver.values()] == ["a"]
    assert [d["error"] for d in driver.values("dead_letters")] == [
        "ValueError: deduplicate: the event has no id"
    ] * 2


@examples(case_count(120))
@given(events=EVENTS, within=st.integers(1, 60), refresh=st.booleans(), seed=st.integers(0, 1_000))
def test_looking_at_many_keys_together_is_looking_at_each_by_itself(
    events: list[Event], within: int, refresh: bool, seed: int
) -> None:
    """In any order, with repeats and older events, timers there are none; the same is kept and comes out."""
    process = deduplicate(Ev, within=within, refresh=refresh, order="arrival")
    sent = [(f"{key}{event.id}", at, event) for key, at, event in events]
    with contextlib.suppress(UnfitEvents):
        same_as_process(process, sent, bound_ms=150, runs=6, seed=seed)


@examples(case_count(120))
@given(events=EVENTS, within=st.integers(1, 60), refresh=st.booleans(), size=st.integers(1, 25))
def test_in_arrival_order_what_passes_follows_from_what_came_before(
    events: list[Event], within: int, refresh: bool, size: int
) -> None:
    """An oracle that knows no state: a key's last mark decides, a batch is sorted by time within a key."""
    process = deduplicate(Ev, within=within, refresh=refresh, order="arrival")
    driver = TestDriver(process, out_of_orderness_ms=1_000)
    marks: dict[str, tuple[int, int, int]] = {}  # mark, first, until when it is known
    wanted: list[tuple[str, str, Any]] = []
    for start in range(0, len(events), size):
        batch = events[start : start + size]
        driver.send_batch(batch)
        for key, at, event in sorted(batch, key=lambda e: (e[0], e[1], msgspec.json.encode(e[2]))):
            mark, first, until = marks.get(key, (0, 0, at))
            if until <= at or abs(at - mark) >= within:
                wanted.append(("main", key, event.v))
                if until <= at or at > mark:
                    marks[key] = at, at, max(at + within, until)
            else:
                wanted.append(("repeats", key, first))
                if refresh and at > mark:
                    marks[key] = at, first, max(at + within, until)
    found = [
        (e.output, context_key(e.key), record["v"] if e.output == "main" else record["first_ms"])
        for e in driver.emissions
        for record in [msgspec.json.decode(e.payload)]
    ]
    assert Counter(found) == Counter(wanted)


def test_the_events_of_many_keys_are_handled_together_repeats_included() -> None:
    driver = TestDriver(deduplicate(Ev, within=100, order="arrival"), out_of_orderness_ms=50)
    driver.send_batch([("a", 1, Ev(1)), ("b", 2, Ev(2)), ("a", 9, Ev(1)), ("a", 30, Ev(1))])
    driver.send_batch([("b", 40, Ev(2)), ("c", 41, Ev(3))])
    assert driver.host.runner.together == 6
    assert driver.host.runner.fallbacks == 0
    assert ids(driver) == [1, 2, 3]
    assert [(r.first_ms, r.repeats) for r in driver.values("repeats")] == [(1, 1), (1, 2), (2, 1)]


def first_ones(events: list[Event], key: str, within: int, refresh: bool) -> list[tuple[int, Ev]]:
    """Look at all earlier events for each one: what passes is not within the horizon of what passed."""
    passed: list[tuple[int, Ev]] = []
    seen: list[tuple[int, Ev]] = []
    for _, at, event in of_key(events, key):
        marks = [t for t, e in (seen if refresh else passed) if e.id == event.id]
        if not marks or at - max(marks) >= within:
            passed.append((at, event))
        seen.append((at, event))
    return passed


@examples(40)
@given(events=EVENTS, within=st.integers(1, 60), refresh=st.booleans())
def test_what_passes_agrees_with_a_look_at_all_earlier_events(
    events: list[Event], within: int, refresh: bool
) -> None:
    driver = run(deduplicate(Ev, id="id", within=within, refresh=refresh), events, bound=200)
    for key in ("k1", "k2"):
        found = [
            (e.event_time, e.payload)
            for e in driver.emissions
            if e.output == "main" and context_key(e.key) == key
        ]
        wanted = first_ones(events, key, within, refresh)
        assert found == [(at, msgspec.json.encode(e)) for at, e in wanted]
    assert len(driver.values()) + len(driver.values("repeats")) == len(events)


@examples(12)
@given(events=EVENTS, seed=st.integers(0, 1_000), refresh=st.booleans())
def test_what_passes_does_not_hang_on_how_events_are_brought(
    events: list[Event], seed: int, refresh: bool
) -> None:
    process = deduplicate(Ev, id="id", within=15, refresh=refresh)
    invariant(process, events, bound_ms=30, runs=4, seed=seed)
    assert leaks(process, events, bound_ms=30) == []


@examples(12)
@given(events=EVENTS, copies=st.lists(st.integers(0, 24), max_size=20), seed=st.integers(0, 1_000))
def test_copies_of_an_event_may_come_in_any_order_in_arrival_order(
    events: list[Event], copies: list[int], seed: int
) -> None:
    """A producer that sends again: the same event at the same time."""
    once = [(key, at, Ev(number)) for number, (key, at, _) in enumerate(events)]
    sent = once + [once[i] for i in copies if i < len(once)]
    process = deduplicate(Ev, id="id", within=40, order="arrival")
    invariant(process, sent, bound_ms=30, runs=4, seed=seed)
    assert leaks(process, sent, bound_ms=30) == []


def test_what_is_kept_of_an_id_is_gone_after_the_horizon_though_nothing_comes_any_more() -> None:
    driver = run(deduplicate(Ev, id="id", within=1_000_000), [("k", 0, Ev(1))], drain=False)
    driver.advance_watermark(999_999)
    assert not driver.is_empty()
    driver.advance_watermark(1_000_000 + 1_000_000 // 16 + 1)
    assert driver.is_empty()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"id": "nothing"}, "no field 'nothing'"),
        ({"id": ("id", "nothing")}, "no field 'nothing'"),
        ({"id": "x"}, "an id is str or int, and 'x' is float"),
        ({"id": ()}, "names no field"),
        ({"within": 0}, "within must be positive"),
        ({"within": 1.5}, "within is a timedelta or whole milliseconds"),
        ({"order": "any"}, "order is 'event_time' or 'arrival'"),
    ],
)
def test_what_contradicts_itself_is_refused_in_one_line(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says) as refused:
        deduplicate(Ev, **{"within": 10, **arguments})
    assert "\n" not in str(refused.value)
