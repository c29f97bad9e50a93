"""Joins against pandas, for any order of arrival, any cuts and restarts that the bound and grace allow."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.joins import FOREVER, asof_join, interval, interval_join, window_join
from millrace.testing import TestDriver
from millrace.windows import hopping, session, tumbling
from tests.unit.millrace.joins.cases import (
    CUTS,
    EVENTS,
    At,
    Lt,
    Rt,
    as_of,
    delayed,
    frame,
    in_interval,
    play,
    rows,
    with_outer,
)
from tests.unit.millrace.windows.cases import examples, ranges_of

BOUND = 12
COLUMNS = ("key", "l", "r", "left_ms", "right_ms")
HOW = st.sampled_from(["inner", "left", "right", "outer"])
#: How often a join forgets, ms: usually once a second at most; at once shows what it forgets too early.
SWEEPS = st.sampled_from([1, 4, 1_000])


def delays(most: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, most), min_size=24, max_size=24)


def last_words(driver: TestDriver) -> list[tuple[Any, ...]]:
    """Return the last revision of every left event's row; revisions must follow each other."""
    last: dict[str, tuple[Any, ...]] = {}
    revisions: dict[str, int] = {}
    main = [e for e in driver.emissions if e.output == "main"]
    for row, emission in zip(driver.values(), main, strict=True):
        assert row.revision == revisions.get(row.left_id, -1) + 1
        assert row.revision == 0 or not emission.on_time
        revisions[row.left_id] = row.revision
        last[row.left_id] = tuple(getattr(row, c) for c in COLUMNS)
    return sorted(last.values(), key=repr)


@pytest.mark.parametrize("emit", ["corrections", "final"])
@pytest.mark.parametrize("grace", [0, 9])
@examples(25)
@given(
    events=EVENTS,
    late=delays(BOUND + 9),
    cuts=CUTS,
    restarts=st.booleans(),
    keep=st.sampled_from([None, 1, 15]),
    inner=st.booleans(),
    deletes=st.booleans(),
    sweep=SWEEPS,
)
def test_an_as_of_join_is_what_pandas_makes_of_the_whole(
    emit: str,
    grace: int,
    events: list[At],
    late: list[int],
    cuts: list[int],
    restarts: bool,
    keep: int | None,
    inner: bool,
    deletes: bool,
    sweep: int,
) -> None:
    inner = inner and not (deletes and emit == "corrections")
    process = asof_join(
        left=Lt,
        right=Rt,
        how="inner" if inner else "left",
        # What is deleted is forgotten; with neither a deletion nor an end, versions stay (see below).
        keep=keep or 1_000,
        grace=grace,
        emit=emit,  # type: ignore[arg-type]
        deletes=(lambda right: right.r < 0) if deletes else None,
    )
    process._sweep = sweep  # type: ignore[attr-defined]
    arriving = delayed(events, [d % (BOUND + grace + 1) for d in late])
    driver = play(process, arriving, cuts=cuts, restarts=restarts, bound=BOUND)
    assert driver.values("late") == []
    wanted = as_of(events, keep, inner=inner, deletes=deletes)
    found = last_words(driver) if emit == "corrections" else sorted(rows(driver, *COLUMNS), key=repr)
    assert found == wanted


@examples(30)
@given(
    events=EVENTS,
    late=delays(BOUND),
    cuts=CUTS,
    restarts=st.booleans(),
    backward=st.integers(0, 20),
    forward=st.integers(0, 20),
    how=HOW,
    sweep=SWEEPS,
)
def test_an_interval_join_is_all_pairs_less_those_too_far_apart(
    events: list[At],
    late: list[int],
    cuts: list[int],
    restarts: bool,
    backward: int,
    forward: int,
    how: Any,
    sweep: int,
) -> None:
    process = interval_join(left=Lt, right=Rt, within=interval(backward=backward, forward=forward), how=how)
    process._sweep = sweep  # type: ignore[attr-defined]
    driver = play(process, delayed(events, late), cuts=cuts, restarts=restarts, bound=BOUND)
    assert driver.values("late") == []
    assert sorted(rows(driver, *COLUMNS), key=repr) == in_interval(events, backward, forward, how)
    for row, emission in zip(driver.values(), driver.emissions, strict=True):
        if row.left_ms is None:
            assert emission.event_time == row.right_ms + backward
        elif row.right_ms is None:
            assert emission.event_time == row.left_ms + forward
        else:
            assert emission.event_time == max(row.left_ms, row.right_ms)


def in_windows(events: list[At], size: int, step: int, how: str) -> list[tuple[Any, ...]]:
    """Return the rows of a join over hopping windows, by pandas."""

    def side(kind: type, number: str, time: str, name: str) -> pd.DataFrame:
        made = frame(events, kind, number, time)
        made["window_start_ms"] = [[w for w, _ in ranges_of(int(at), size, step)] for at in made[time]]
        return made.explode("window_start_ms", ignore_index=True).reset_index(names=name)

    left, right = side(Lt, "l", "left_ms", "left"), side(Rt, "r", "right_ms", "right")
    pairs = left.merge(right, on=["key", "window_start_ms"])
    return with_outer(pairs, left, right, how, "window_start_ms")


@examples(25)
@given(
    events=EVENTS,
    late=delays(BOUND),
    cuts=CUTS,
    restarts=st.booleans(),
    step=st.integers(1, 12),
    times=st.integers(1, 3),
    how=HOW,
)
def test_a_window_join_is_a_join_by_window(
    events: list[At], late: list[int], cuts: list[int], restarts: bool, step: int, times: int, how: Any
) -> None:
    size = step * times
    assigner = tumbling(size) if times == 1 else hopping(size, every=step)
    process = window_join(left=Lt, right=Rt, assigner=assigner, how=how)
    driver = play(process, delayed(events, late), cuts=cuts, restarts=restarts, bound=BOUND)
    found = rows(driver, "key", "window_start_ms", *COLUMNS[1:])
    assert sorted(found, key=repr) == in_windows(events, size, step, how)


@examples(25)
@given(
    events=EVENTS,
    late=delays(BOUND),
    cuts=CUTS,
    restarts=st.booleans(),
    gap=st.integers(1, 15),
    how=HOW,
)
def test_a_session_join_is_a_join_by_session(
    events: list[At], late: list[int], cuts: list[int], restarts: bool, gap: int, how: Any
) -> None:
    process = window_join(left=Lt, right=Rt, assigner=session(gap), how=how)
    driver = play(process, delayed(events, late), cuts=cuts, restarts=restarts, bound=BOUND)
    wanted: list[tuple[Any, ...]] = []
    for key in {e.key for e in events}:
        of_key = pd.DataFrame(
            [(e.at, isinstance(e.event, Rt), getattr(e.event, "r", None), getattr(e.event, "l", None))
             for e in events if e.key == key], columns=["at", "right", "r", "l"],
        ).sort_values("at", kind="stable")  # fmt: skip
        for _, inside in of_key.groupby((of_key["at"].diff() > gap).cumsum()):
            lefts, rights = inside[~inside["right"]], inside[inside["right"]]
            pairs = [(a.l, b.r, a.at, b.at) for a in lefts.itertuples() for b in rights.itertuples()]
            if how in ("left", "outer") and rights.empty:
                pairs += [(a.l, None, a.at, None) for a in lefts.itertuples()]
            if how in ("right", "outer") and lefts.empty:
                pairs += [(None, b.r, None, b.at) for b in rights.itertuples()]
            bounds = (inside["at"].min(), inside["at"].max() + gap)
            wanted += [(key, *bounds, *pair) for pair in pairs]
    found = rows(driver, "key", "window_start_ms", "window_end_ms", *COLUMNS[1:])
    plain = [tuple(v if v is None or isinstance(v, str) else int(v) for v in row) for row in wanted]
    assert sorted(found, key=repr) == sorted(plain, key=repr)


@examples(25)
@given(events=EVENTS, cuts=CUTS, emit=st.sampled_from(["corrections", "final"]), grace=st.integers(0, 9))
def test_every_event_is_joined_or_late(events: list[At], cuts: list[int], emit: Any, grace: int) -> None:
    process = asof_join(left=Lt, right=Rt, keep=1_000, emit=emit, grace=grace)
    driver = play(process, events, cuts=cuts, restarts=True, bound=3)
    late = sum(e["input"] == "left" for e in driver.values("late"))
    joined = len(last_words(driver)) if emit == "corrections" else len(driver.values())
    assert joined + late == sum(isinstance(e.event, Lt) for e in events)


@examples(25)
@given(events=EVENTS, cuts=CUTS, final=st.booleans())
def test_a_version_for_ever_is_all_that_stays(events: list[At], cuts: list[int], final: bool) -> None:
    process = asof_join(left=Lt, right=Rt, keep=FOREVER, emit="final" if final else "corrections")
    driver = TestDriver(process, out_of_orderness_ms=100)
    driver.send_batch([(e.key, e.at, e.event) for e in events])
    driver.drain()
    for key in ("k1", "k2"):
        rights = [e.at for e in events if e.key == key and isinstance(e.event, Rt)]
        state = driver.state(key)
        assert ([at for at, _ in state["versions"]] if state else []) == ([max(rights)] if rights else [])
        assert state is None or state["lefts"] == []
        assert driver.timers(key) == {}
