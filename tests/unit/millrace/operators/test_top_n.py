"""Top-n: ranks of items per window, the same in any order; a changelog that can be followed."""

from __future__ import annotations

import operator
from typing import Any

import msgspec
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import UserError
from millrace.host.memory_chain import MemoryChain
from millrace.operators import top_n
from millrace.testing import TestDriver
from millrace.testing.properties import invariant, leaks, same_as_batch
from millrace.windows import (
    count,
    first,
    global_window,
    hopping,
    max_of,
    mean,
    min_of,
    reduce,
    session,
    sum_of,
    tumbling,
    watermark,
    window,
)
from millrace.windows import top_n as best_of
from tests.unit.millrace.operators.cases import EVENTS, HOUR, MINUTE, Ev, Event, examples, in_order, run


class Tip(msgspec.Struct, frozen=True):
    driver: str
    amount: float


TIPS = [
    (0, "1", 1.0), (5, "1", 5.0), (90, "1", 10.0), (90, "2", 20.0), (70, "3", 0.0),
    (70, "4", 0.0), (80, "4", 1.0), (100, "5", 10.0),
]  # fmt: skip


def ranks(driver: TestDriver) -> list[tuple[int, int, Any, Any]]:
    return [(r.window_end_ms, r.rank, r.item, r.value) for r in driver.values()]


@pytest.mark.parametrize("cut", [None, *range(1, 8)])
def test_v30_the_driver_with_the_most_tips_of_every_hour(cut: int | None) -> None:
    process = top_n(Tip, 1, item="driver", by=sum_of("amount"), window=tumbling(HOUR))
    events = [("all", minute * MINUTE, Tip(driver, amount)) for minute, driver, amount in TIPS]
    driver = run(process, events, bound=HOUR, restart_after=cut)
    assert ranks(driver) == [(HOUR, 1, "1", 6.0), (2 * HOUR, 1, "2", 20.0)]
    assert driver.is_empty()


def test_v30_the_same_in_two_stages() -> None:
    """Add up per driver, then rank the sums of all: the second keeps one record and not one per driver."""

    class Shift(msgspec.Struct):
        driver: str
        amount: float
        city: str = "all"

    hourly = window(Shift, tumbling(HOUR), key="driver").aggregate(total=sum_of("amount"), city=first("city"))
    best = window(hourly.output_type, tumbling(HOUR), key="city", name="best").aggregate(
        best=best_of(1, "total", of="driver")
    )
    chain = MemoryChain(hourly, ("city", best), out_of_orderness_ms=HOUR)
    out = []
    for minute, driver, amount in TIPS:
        out += chain.run_batch([(driver, minute * MINUTE, Shift(driver, amount))])
    out += chain.drain()
    rows = [msgspec.json.decode(e.payload) for e in out]
    assert [(r["window_end_ms"], r["best"]) for r in rows] == [(HOUR, ["1"]), (2 * HOUR, ["2"])]
    assert chain.is_empty()


def test_of_equals_the_smaller_item_is_first() -> None:
    events = [("k", at, Ev(item=item)) for at, item in enumerate("dcbaaadd")]
    driver = run(top_n(Ev, 3, item="item", window=tumbling(10)), events)
    assert ranks(driver) == [(10, 1, "a", 3), (10, 2, "d", 3), (10, 3, "b", 1)]


def test_what_has_no_item_or_no_value_is_not_ranked() -> None:
    class May(msgspec.Struct):
        item: str | None
        x: float | None

    events = [("k", at, e) for at, e in enumerate([May(None, 9.0), May("a", None), May("b", 1.0)])]
    driver = run(top_n(May, 3, item="item", by=mean("x"), window=tumbling(10)), events)
    assert ranks(driver) == [(10, 1, "b", 1.0)]
    nan = [("k", 0, Ev(item="a", x=float("inf"))), ("k", 1, Ev(item="a", x=float("-inf")))]
    driver = TestDriver(top_n(Ev, 3, item="item", by=sum_of("x"), window=tumbling(10)))
    for key, at, event in nan:  # as JSON a number that is none could not be told
        driver.host.run_batch([(key, at, event)])
    driver.drain()
    assert driver.values() == []


@pytest.mark.parametrize("emit", ["final", "changelog"])
def test_a_late_event_within_the_lateness_changes_the_ranking(emit: Any) -> None:
    process = top_n(Ev, 2, item="item", window=tumbling(10), allowed_lateness=10, emit=emit)
    driver = TestDriver(process)
    for at, item in [(1, "a"), (2, "a"), (3, "b"), (15, "z")]:
        driver.send("k", Ev(item=item), at=at)
    for item in "ccc":
        driver.send("k", Ev(item=item), at=5)
    driver.send("k", Ev(item="c"), at=25)
    driver.send("k", Ev(item="c"), at=6)
    driver.drain()
    last = follow(driver)[("k", 0)] if emit == "changelog" else final(driver)[("k", 0)]
    assert last == [(1, "c", 3), (2, "a", 2)]
    assert [late["event"]["item"] for late in driver.values("late")] == ["c"]
    assert {e.on_time for e in driver.emissions if e.output == "main"} == {True, False}
    assert driver.is_empty()


def final(driver: TestDriver) -> dict[tuple[str, int], list[tuple[int, str, Any]]]:
    """Return the last ranking of each window."""
    kept: dict[tuple[str, int], dict[int, Any]] = {}
    for r in driver.values():
        kept.setdefault((r.key, r.window_start_ms), {})[r.rank] = (r.rank, r.item, r.value)
    return {w: [of[rank] for rank in sorted(of)] for w, of in kept.items()}


def follow(driver: TestDriver) -> dict[tuple[str, int], list[tuple[int, str, Any]]]:
    """Apply a changelog row by row, each to a row that is there or not as it says."""
    kept: dict[tuple[str, int], dict[str, tuple[int, Any]]] = {}
    for r in driver.values():
        of = kept.setdefault((r.key, r.window_start_ms), {})
        if r.change in ("insert", "update_after"):
            assert r.item not in of
            of[r.item] = (r.rank, r.value)
        else:
            assert of.pop(r.item) == (r.rank, r.value)
    return {w: sorted((rank, item, value) for item, (rank, value) in of.items()) for w, of in kept.items()}


#: How items are ranked, and the same in pandas and of a list.
MEASURES: dict[str, Any] = {
    "count": (count(), lambda g: g.size(), len),
    "sum": (sum_of("v"), lambda g: g["v"].sum(), sum),
    "max": (max_of("v"), lambda g: g["v"].max(), max),
    "min": (min_of("v"), lambda g: g["v"].min(), min),
}


def by_pandas(events: list[Event], measure: str, n: int, size: int) -> dict[Any, Any]:
    frame = pd.DataFrame(
        [(key, at // size * size, e.item, e.v) for key, at, e in events], columns=["key", "w", "item", "v"]
    )
    found = MEASURES[measure][1](frame.groupby(["key", "w", "item"])).rename("value").reset_index()
    found = found.sort_values(["value", "item"], ascending=[False, True])
    return {
        window: [(rank, r.item, r.value) for rank, r in enumerate(rows.head(n).itertuples(), 1)]
        for window, rows in found.groupby(["key", "w"])
    }


def by_sorting(events: list[Event], measure: str, n: int, size: int) -> dict[Any, Any]:
    values: dict[tuple[str, int], dict[str, list[int]]] = {}
    for key, at, e in events:
        values.setdefault((key, at // size * size), {}).setdefault(e.item, []).append(e.v)
    found = {}
    for window_, items in values.items():
        ranked = sorted(items, key=lambda item: (-MEASURES[measure][2](items[item]), item))[:n]
        found[window_] = [(i + 1, item, MEASURES[measure][2](items[item])) for i, item in enumerate(ranked)]
    return found


@examples(10)
@given(events=EVENTS.filter(bool), n=st.integers(1, 4), size=st.integers(5, 60))
@pytest.mark.parametrize("measure", MEASURES)
def test_rankings_agree_with_pandas(measure: str, events: list[Event], n: int, size: int) -> None:
    process = top_n(Ev, n, item="item", by=MEASURES[measure][0], window=tumbling(size))
    assert final(run(process, events, bound=200)) == by_pandas(events, measure, n, size)


@examples(25)
@given(events=EVENTS.filter(bool), n=st.integers(1, 3), cut=st.integers(0, 24))
@pytest.mark.parametrize("measure", MEASURES)
def test_a_changelog_followed_gives_the_ranking_after_every_event(
    measure: str, events: list[Event], n: int, cut: int
) -> None:
    """Items also fall (min): one that was not among the best must come back."""
    process = top_n(Ev, n, item="item", by=MEASURES[measure][0], window=tumbling(50), emit="changelog")
    driver = TestDriver(process, out_of_orderness_ms=500)
    for number, (key, at, event) in enumerate(events):
        if number == cut:
            driver.restart()
        driver.send(key, event, at=at)
        assert follow(driver) == by_sorting(events[: number + 1], measure, n, 50)
    driver.drain()
    assert driver.is_empty()


def test_an_item_that_falls_gives_its_place_to_one_that_was_not_among_the_best() -> None:
    events = [("k", at, Ev(item=item, v=v)) for at, (item, v) in enumerate([("a", 5), ("b", 3), ("a", 1)])]
    driver = run(
        top_n(Ev, 1, item="item", by=min_of("v"), window=tumbling(50), emit="changelog"), events, bound=99
    )
    assert [(r.item, r.value, r.change) for r in driver.values()] == [
        ("a", 5, "insert"),
        ("a", 5, "delete"),
        ("b", 3, "insert"),
    ]


def test_a_refinement_that_waited_for_more_late_events_is_not_on_time() -> None:
    process = top_n(
        Ev, 1, item="item", window=tumbling(10), allowed_lateness=20, trigger=watermark().late(count=9)
    )
    driver = run(process, [("k", at, Ev(item="a")) for at in (1, 15, 2)])
    first_window = [e for e in driver.emissions if e.event_time < 19 or not e.on_time]
    assert [(e.on_time, msgspec.json.decode(e.payload)["value"]) for e in first_window] == [
        (True, 1),
        (False, 2),
    ]


def test_an_early_trigger_says_when_the_changelog_speaks() -> None:
    process = top_n(
        Ev, 1, item="item", window=tumbling(100), emit="changelog", trigger=watermark().early(count=2)
    )
    events = [("k", at, Ev(item=item)) for at, item in enumerate("abbcc")]
    driver = run(process, events, bound=500)
    assert [(r.item, r.value, r.change) for r in driver.values()] == [
        ("a", 1, "insert"),
        ("a", 1, "delete"),
        ("b", 2, "insert"),
    ]


PROCESSES = {
    "final": top_n(Ev, 2, item="item", window=tumbling(30, offset=7)),
    "hopping": top_n(Ev, 2, item="item", by=sum_of("x"), window=hopping(40, every=20)),
    "changelog": top_n(Ev, 2, item="item", by=sum_of("v"), window=tumbling(30), emit="changelog"),
    "global": top_n(Ev, 2, item="id", by=max_of("v"), window=global_window(), emit="changelog"),
    "function": top_n(Ev, 1, item=operator.attrgetter("kind"), item_type=str, window=tumbling(50)),
}


@examples(10)
@given(events=EVENTS, seed=st.integers(0, 1_000))
@pytest.mark.parametrize("name", PROCESSES)
def test_a_ranking_does_not_hang_on_how_events_are_brought(name: str, events: list[Event], seed: int) -> None:
    process = PROCESSES[name]
    logged = name in ("changelog", "global")
    how = {"upsert_by": {"main": ["window_start_ms", "item"]}, "ignore": ["revision"]} if logged else {}
    invariant(process, events, bound_ms=30, runs=4, seed=seed, **how)  # type: ignore[arg-type]
    assert leaks(process, events, bound_ms=30) == []
    if not logged:
        same_as_batch(process, in_order(events), bound_ms=30)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"n": 0}, "n is a whole number of at least 1"),
        ({"item": "nothing"}, "no field 'nothing'"),
        ({"item": "x"}, "an item is str or int, not float"),
        ({"item": operator.attrgetter("item")}, "item_type=str"),
        ({"by": sum_of("kind")}, "sum_of needs numbers"),
        ({"by": first("kind")}, "an aggregate that gives a number"),
        ({"by": reduce(operator.sub, "v")}, "the same in any order"),
        ({"by": "v"}, "by= is an aggregate"),
        ({"window": session(10)}, "tumbling, hopping and calendar windows"),
        ({"trigger": watermark().early(count=2)}, "emit='changelog'"),
        ({"emit": "updates"}, "emit='changelog'"),
        (
            {"emit": "changelog", "trigger": watermark().early(when=lambda r: True)},
            "neither when=, before= nor discard=",
        ),
        ({"key": "rank"}, "two columns of the result are named 'rank'"),
    ],
)
def test_what_contradicts_itself_is_refused_in_one_line(arguments: dict[str, Any], says: str) -> None:
    given_ = {"n": 2, "item": "item", "window": tumbling(10), **arguments}
    with pytest.raises(UserError, match=says) as refused:
        top_n(Ev, given_.pop("n"), **given_)
    assert "\n" not in str(refused.value)
