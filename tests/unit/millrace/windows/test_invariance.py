"""The result of a window hangs on the events: not on their order, cuts, restarts or repetitions of a run."""

from __future__ import annotations

import contextlib
import operator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.testing.properties import UnfitEvents, same_as_process
from millrace.windows import (
    WindowProcess,
    approx_count_distinct,
    collect,
    count,
    distinct,
    first,
    hopping,
    last,
    lookback,
    max_of,
    quantile,
    reduce,
    session,
    sliding,
    stddev,
    sum_of,
    top_n,
    tumbling,
    watermark,
    window,
)
from tests.unit.millrace.windows.cases import (
    At,
    Ev,
    by_key,
    examples,
    fail_on_dead_letters,
    play,
    ranges_of,
    rows,
    sessions_of,
)

BOUND = 20
EVENTS = st.lists(
    st.builds(
        At,
        st.integers(-30, 90),
        st.builds(
            Ev,
            v=st.integers(0, 9),
            tag=st.sampled_from(["a", "b", "c"]),
            x=st.floats(-10, 10) | st.none(),
            gap=st.integers(1, 15),
        ),
        st.sampled_from(["k1", "k2"]),
    ),
    max_size=30,
)
CUTS = st.lists(st.integers(1, 29), max_size=6)
DELAYS = st.lists(st.integers(0, BOUND), min_size=30, max_size=30)


def delayed(events: list[At], delays: list[int]) -> list[At]:
    """Return events in an order in which none comes more than ``BOUND`` behind another."""
    pairs = zip(events, delays, strict=False)
    return [e for e, _ in sorted(pairs, key=lambda p: p[0].at + p[1])]


def outcome(process: WindowProcess, events: list[At], **how: Any) -> list[Any]:
    driver = play(process, events, **how)
    fail_on_dead_letters(driver)
    assert driver.values("late") == []
    assert driver.is_empty()
    return sorted((e.key, e.event_time, e.payload) for e in driver.emissions)


KINDS: dict[str, WindowProcess] = {
    "tumbling": window(Ev, tumbling(10, offset=3)).aggregate(
        n=count(), s=stddev("x"), a=first("tag"), z=last("tag"), d=approx_count_distinct("v")
    ),
    "hopping": window(Ev, hopping(25, every=10)).aggregate(all=collect("tag"), best=top_n(2, "v", of="tag")),
    "days": window(Ev, tumbling(86_400_000, tz="Europe/Berlin")).aggregate(total=sum_of("x")),
    "session": window(Ev, session(7)).aggregate(total=sum_of("x"), all=collect("v")),
    "dynamic session": window(Ev, session(lambda e: e.gap)).aggregate(n=count(), high=max_of("tag")),
    "split session": window(Ev, session(5, exact_gap="split")).aggregate(n=count()),
    "session between cuts": window(Ev, session(7, cut_every=16)).aggregate(
        n=count(), all=collect("v"), some=distinct("tag", most=2)
    ),
    "cut session": window(Ev, session(7, max_length=20)).aggregate(n=count(), mid=quantile("x", 0.5)),
    "sliding": window(Ev, sliding(8)).aggregate(n=count(), high=max_of("x")),
    "lookback": window(Ev, lookback(8, keep="tag")).aggregate(total=sum_of("x"), z=last("v")),
    "reduce": window(Ev, tumbling(10)).aggregate(word=reduce(operator.add, "tag")),
    "in order": window(Ev, tumbling(10), order="event_time").aggregate(total=sum_of("x")),
}


@pytest.mark.parametrize("kind", KINDS)
@examples(25)
@given(events=EVENTS, delays=DELAYS, cuts=CUTS, restarts=st.booleans())
def test_results_do_not_depend_on_order_cuts_and_restarts(
    kind: str, events: list[At], delays: list[int], cuts: list[int], restarts: bool
) -> None:
    process = KINDS[kind]
    in_order = sorted(events, key=lambda e: e.at)
    whole = outcome(process, in_order, bound=BOUND)
    mixed = delayed(events, delays)
    assert outcome(process, mixed, cuts=cuts, restarts=restarts, bound=BOUND) == whole
    assert outcome(process, mixed, cuts=range(30), bound=BOUND) == whole
    assert outcome(process, events, cuts=cuts) == whole


@examples(25)
@given(
    events=EVENTS, size=st.integers(1, 40), step=st.integers(1, 40), offset=st.integers(-50, 50), cuts=CUTS
)
def test_hopping_windows_agree_with_a_loop_over_all_windows(
    events: list[At], size: int, step: int, offset: int, cuts: list[int]
) -> None:
    step = min(size, step)
    process = window(Ev, hopping(size, every=step, offset=offset)).aggregate(n=count(), total=sum_of("v"))
    driver = play(process, events, cuts=cuts, restarts=True)
    expected: dict[tuple[str, int, int], list[int]] = {}
    for e in events:
        for start, end in ranges_of(e.at, size, step, offset):
            expected.setdefault((e.key, start, end), []).append(e.event.v)
    found = rows(driver, "key", "window_start_ms", "window_end_ms", "n", "total")
    assert sorted(found) == sorted((*w, len(vs), sum(vs)) for w, vs in expected.items())


@examples(25)
@given(events=EVENTS, cuts=CUTS, own_gaps=st.booleans())
def test_sessions_agree_with_one_pass_over_the_sorted_events(
    events: list[At], cuts: list[int], own_gaps: bool
) -> None:
    gap = (lambda e: e.gap) if own_gaps else 7
    process = window(Ev, session(gap)).aggregate(total=sum_of("v"))
    driver = play(process, events, cuts=cuts, restarts=True)
    expected = [
        (key, start, end, sum(e.event.v for e in inside))
        for key, of_key in by_key(events).items()
        for start, end, inside in sessions_of(of_key, gap if callable(gap) else lambda _: 7)
    ]
    assert sorted(rows(driver, "key", "window_start_ms", "window_end_ms", "total")) == sorted(expected)


@examples(25)
@given(events=EVENTS, cuts=CUTS, own_gaps=st.booleans(), cut_every=st.integers(1, 40))
def test_cut_sessions_are_those_of_the_events_between_two_cuts(
    events: list[At], cuts: list[int], own_gaps: bool, cut_every: int
) -> None:
    gap = (lambda e: e.gap) if own_gaps else 7
    process = window(Ev, session(gap, cut_every=cut_every)).aggregate(total=sum_of("v"))
    driver = play(process, events, cuts=cuts, restarts=True)
    expected = [
        (key, start, min(end, (part + 1) * cut_every), sum(e.event.v for e in inside))
        for key, of_key in by_key(events).items()
        for part in {e.at // cut_every for e in of_key}
        for start, end, inside in sessions_of(
            [e for e in of_key if e.at // cut_every == part], gap if callable(gap) else lambda _: 7
        )
    ]
    assert sorted(rows(driver, "key", "window_start_ms", "window_end_ms", "total")) == sorted(expected)


LAST_WORD = {
    "updates": window(Ev, tumbling(10), allowed_lateness=1_000, emit="updates"),
    "early": window(Ev, tumbling(10), allowed_lateness=1_000, trigger=watermark().early(count=2)),
    "late by two": window(Ev, tumbling(10), allowed_lateness=1_000, trigger=watermark().late(count=2)),
}


@pytest.mark.parametrize("mode", ["tumbling", "session"])
@examples(25)
@given(events=EVENTS, cuts=CUTS, bound=st.integers(0, 30))
def test_a_changelog_adds_up_to_the_batch_result_however_late_events_are(
    mode: str, events: list[At], cuts: list[int], bound: int
) -> None:
    kind = tumbling(10) if mode == "tumbling" else session(7)
    process = window(Ev, kind, allowed_lateness=1_000, emit="changelog").aggregate(
        n=count(), total=sum_of("v")
    )
    driver = play(process, events, cuts=cuts, restarts=True, bound=bound)
    fail_on_dead_letters(driver)
    assert driver.values("late") == []
    columns = ("key", "window_start_ms", "window_end_ms", "n", "total")
    left: dict[tuple[Any, ...], int] = {}
    for change, *row in rows(driver, "change", *columns):
        left[tuple(row)] = left.get(tuple(row), 0) + (1 if change in ("insert", "update_after") else -1)
        assert left[tuple(row)] >= 0, "taken back before it was said"
    batch = play(window(Ev, kind).aggregate(n=count(), total=sum_of("v")), events)
    assert sorted(row for row, n in left.items() for _ in range(n)) == sorted(rows(batch, *columns))
    assert driver.is_empty()


@pytest.mark.parametrize("mode", ["updates", "early", "late by two"])
@examples(25)
@given(events=EVENTS, cuts=CUTS, bound=st.integers(0, 30))
def test_the_last_revision_of_a_window_is_the_batch_result(
    mode: str, events: list[At], cuts: list[int], bound: int
) -> None:
    driver = play(
        LAST_WORD[mode].aggregate(n=count(), total=sum_of("v")), events, cuts=cuts, restarts=True, bound=bound
    )
    fail_on_dead_letters(driver)
    last_of: dict[tuple[Any, ...], tuple[int, int, int]] = {}
    for key, start, revision, n, total in rows(driver, "key", "window_start_ms", "revision", "n", "total"):
        assert revision == (last_of[key, start][0] + 1 if (key, start) in last_of else 0)
        last_of[key, start] = (revision, n, total)
    batch = play(window(Ev, tumbling(10)).aggregate(n=count(), total=sum_of("v")), events)
    assert {w: v[1:] for w, v in last_of.items()} == {
        (k, s): (n, t) for k, s, n, t in rows(batch, "key", "window_start_ms", "n", "total")
    }
    assert driver.is_empty()


@examples(25)
@given(events=EVENTS, cuts=CUTS)
def test_events_are_in_windows_or_late_and_never_lost(events: list[At], cuts: list[int]) -> None:
    driver = play(window(Ev, tumbling(10)).aggregate(n=count()), events, cuts=cuts, bound=3)
    assert sum(n for (n,) in rows(driver, "n")) + len(driver.values("late")) == len(events)
    driver = play(window(Ev, session(4)).aggregate(n=count()), events, cuts=cuts, bound=3)
    assert sum(n for (n,) in rows(driver, "n")) + len(driver.values("late")) == len(events)


SPEAKING: dict[str, WindowProcess] = {
    "at its end": window(Ev, tumbling(10, offset=3)).aggregate(n=count(), all=collect("v")),
    "every second event": window(Ev, tumbling(10), trigger=watermark().early(count=2)).aggregate(n=count()),
    "at every event": window(Ev, tumbling(10), emit="updates", allowed_lateness=5).aggregate(n=count()),
    "with what no longer holds": window(Ev, tumbling(10), emit="changelog").aggregate(total=sum_of("v")),
    "in order": window(Ev, tumbling(10), order="event_time").aggregate(all=collect("v")),
}


@pytest.mark.parametrize("how", SPEAKING)
@examples(40)
@given(events=EVENTS, bound=st.sampled_from([0, BOUND]), seed=st.integers(0, 99))
def test_a_keys_events_together_give_what_they_give_one_by_one(
    how: str, events: list[At], bound: int, seed: int
) -> None:
    rows = [(e.key, e.at, e.event) for e in events]
    with contextlib.suppress(UnfitEvents):  # of some, none can be handled together
        same_as_process(SPEAKING[how], rows, bound_ms=bound, runs=4, seed=seed)
