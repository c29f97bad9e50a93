"""Grace of interval and window joins: who is late, whose rows are not on time, when somebody is alone.

The oracles know the watermark that each event met, and try all pairs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.joins import JoinDefinitionError, JoinProcess, interval, interval_join, window_join
from millrace.testing import TestDriver
from millrace.testing.properties import leaks
from millrace.windows import hopping, session, tumbling
from tests.unit.millrace.joins.cases import BY_HAND, CUTS, EVENTS, At, Lt, Restarting, Rt, rows, send
from tests.unit.millrace.windows.cases import Drive, examples, ranges_of

HOW = st.sampled_from(["inner", "left", "right", "outer"])
GRACES = st.sampled_from([0, 1, 5, 15])
COLUMNS = ("key", "l", "r", "left_ms", "right_ms")


@pytest.fixture(params=[False, True], ids=["straight", "restarting"])
def drive(request: pytest.FixtureRequest) -> Drive:
    kind = Restarting if request.param else TestDriver
    return lambda process, bound=BY_HAND: kind(process, out_of_orderness_ms=bound)


def near(backward: int, forward: int, grace: Any, how: Any = "inner") -> JoinProcess:
    within = interval(backward=backward, forward=forward)
    return interval_join(left=Lt, right=Rt, within=within, grace=grace, how=how)


def said(driver: TestDriver, *columns: str) -> list[tuple[Any, ...]]:
    """Return these columns of the main output, with time and whether it is on time."""
    main = [e for e in driver.emissions if e.output == "main"]
    return [(*row, e.event_time, e.on_time) for row, e in zip(rows(driver, *columns), main, strict=True)]


def test_a_late_event_within_the_grace_meets_those_before_and_after_it(drive: Drive) -> None:
    """The watermark is at 20; with a grace of 12, left 10 and right 13 are taken, and right 8 is late.

    ::

        left              l14   l17
        (late)   l10  r13           r8
    """
    driver = drive(near(3, 4, 12))
    send(driver, "l14 l17")
    driver.advance_watermark(20)
    send(driver, "l10 r13 r8")
    assert said(driver, "l", "r") == [(10, 13, 13, False), (14, 13, 13, False)]
    assert [late["lateness_ms"] for late in driver.values("late")] == [12]
    driver.advance_watermark(1_000)  # it is swept once a second at most
    assert driver.is_empty()


def test_nobody_is_alone_before_the_grace_is_over(drive: Drive) -> None:
    """Left 10 could meet rights up to 14, taken until the watermark is at 22; right 30 has nobody."""
    driver = drive(near(3, 4, 8, "outer"))
    send(driver, "l10 l11")
    driver.advance_watermark(21)
    assert driver.values() == []
    send(driver, "r14")
    driver.advance_watermark(22)
    assert said(driver, "l", "r") == [(10, 14, 14, False), (11, 14, 14, False)]
    send(driver, "r30")
    driver.advance_watermark(40)
    assert len(driver.values()) == 2
    driver.advance_watermark(41)
    assert said(driver, "l", "r")[2:] == [(None, 30, 41, True)]


def test_a_window_takes_events_until_its_grace_is_over(drive: Drive) -> None:
    """[0, 10) is complete at 9 and takes events until 14; who has nobody is told then."""
    driver = drive(window_join(left=Lt, right=Rt, assigner=tumbling(10), grace=5, how="outer"))
    send(driver, "l1 r2", key="k")
    send(driver, "l3", key="alone")
    driver.advance_watermark(9)
    assert said(driver, "l", "r") == [(1, 2, 9, True)]
    driver.advance_watermark(13)
    send(driver, "r4")
    assert said(driver, "l", "r")[1:] == [(1, 4, 4, False)]
    driver.advance_watermark(14)
    assert said(driver, "l", "r")[2:] == [(3, None, 14, True)]
    send(driver, "r5")
    assert [late["lateness_ms"] for late in driver.values("late")] == [9]
    assert driver.is_empty()


def test_a_session_has_its_rows_when_it_can_no_longer_grow(drive: Drive) -> None:
    """Right 8 makes one session of two that were complete: their rows have its bounds."""
    driver = drive(window_join(left=Lt, right=Rt, assigner=session(5), grace=10, how="left"))
    send(driver, "l0 r3 l13")
    driver.advance_watermark(17)
    assert driver.values() == []
    send(driver, "r8")
    driver.advance_watermark(27)
    assert driver.values() == []
    driver.advance_watermark(28)
    bounds = ("window_start_ms", "window_end_ms", "l", "r")
    assert sorted(rows(driver, *bounds)) == [(0, 18, 0, 3), (0, 18, 0, 8), (0, 18, 13, 3), (0, 18, 13, 8)]
    assert driver.is_empty()


# -- oracles ---------------------------------------------------------------------------------------


class Came(NamedTuple):
    """An event, the watermark that it met, and in which batch."""

    at: int
    event: Lt | Rt
    watermark: int
    batch: int

    @property
    def late(self) -> bool:
        return self.at <= self.watermark

    @property
    def handled(self) -> tuple[int, ...]:
        """When a join in order of time handles it: a late one after all that the watermark has passed."""
        return (self.watermark, 1, self.batch, self.at) if self.late else (self.at, 0, 0, 0)


def arrivals(events: Sequence[At], cuts: Sequence[int], bound: int) -> list[list[Came]]:
    """Return the batches of a list of events; the watermark follows the newest event of those before."""
    edges = [0, *sorted(c for c in set(cuts) if 0 < c < len(events)), len(events)]
    newest, watermark, found = None, -(1 << 62), []
    for number, (low, high) in enumerate(itertools.pairwise(edges)):
        found.append([Came(e.at, e.event, watermark, number) for e in events[low:high]])
        times = [e.at for e in events[low:high]] + ([] if newest is None else [newest])
        if times:
            newest = max(times)
            watermark = max(watermark, newest - bound - 1)
    return found


def result(process: JoinProcess, batches: list[list[Came]], *columns: str, bound: int, restarts: bool) -> Any:
    """Return the rows of a join, with time and whether they are on time, and how many events were late."""
    driver = (Restarting if restarts else TestDriver)(process, out_of_orderness_ms=bound)
    for batch in batches:
        driver.send_batch([(c.event.key, c.at, c.event) for c in batch])
    driver.advance_watermark(1 << 50)
    assert driver.values("dead_letters") == []
    assert driver.is_empty()
    return sorted(said(driver, *columns), key=repr), len(driver.values("late"))


Pair = Callable[[Came, Came], list[Any]]


def joined(
    came: list[Came], how: str, meet: Callable[[Came, Came], bool], row: Callable[..., Any]
) -> list[Any]:
    """Return the rows of all pairs that meet, and of those who are in none."""
    lefts = [c for c in came if isinstance(c.event, Lt)]
    rights = [c for c in came if isinstance(c.event, Rt)]
    found, paired = [], set()
    for a, b in itertools.product(lefts, rights):
        if a.event.key == b.event.key and meet(a, b):
            found.append(row(a, b))
            paired |= {id(a), id(b)}
    if how in ("left", "outer"):
        found += [row(a, None) for a in lefts if id(a) not in paired]
    if how in ("right", "outer"):
        found += [row(None, b) for b in rights if id(b) not in paired]
    return found


def columns_of(a: Came | None, b: Came | None) -> tuple[Any, ...]:
    left, right = a and a.event, b and b.event
    key = (left or right).key  # type: ignore[union-attr]
    return key, left and left.l, right and right.r, a and a.at, b and b.at


@examples(60)
@given(
    events=EVENTS,
    cuts=CUTS,
    restarts=st.booleans(),
    backward=st.integers(0, 20),
    forward=st.integers(0, 20),
    grace=GRACES,
    how=HOW,
    bound=st.sampled_from([0, 3, 12]),
    sweep=st.sampled_from([1, 4, 1_000]),
)
def test_an_interval_join_with_a_grace_is_all_pairs_of_what_was_taken(
    events: list[At], cuts: list[int], restarts: bool, backward: int, forward: int, grace: int, how: Any,
    bound: int, sweep: int,
) -> None:  # fmt: skip
    batches = arrivals(events, cuts, bound)
    taken = [c for batch in batches for c in batch if c.at + grace > c.watermark]

    def row(a: Came | None, b: Came | None) -> Any:
        if a is None or b is None:
            over = a.at + forward if a else b.at + backward  # type: ignore[union-attr]
            return (*columns_of(a, b), over + grace, True)
        last = max(a, b, key=lambda c: c.handled)
        return (*columns_of(a, b), last.at, not last.late)

    def meet(a: Came, b: Came) -> bool:
        return -backward <= b.at - a.at <= forward

    process = near(backward, forward, grace, how)
    process._sweep = sweep  # type: ignore[attr-defined]
    found, late = result(process, batches, *COLUMNS, bound=bound, restarts=restarts)
    assert found == sorted(joined(taken, how, meet, row), key=repr)
    assert late == len(events) - len(taken)


@examples(40)
@given(
    events=EVENTS,
    cuts=CUTS,
    restarts=st.booleans(),
    step=st.integers(1, 12),
    times=st.integers(1, 3),
    grace=GRACES,
    how=HOW,
    bound=st.sampled_from([0, 3, 12]),
)
def test_a_window_join_with_a_grace_is_all_pairs_of_what_each_window_took(
    events: list[At], cuts: list[int], restarts: bool, step: int, times: int, grace: int, how: Any, bound: int
) -> None:
    size = step * times
    assigner = tumbling(size) if times == 1 else hopping(size, every=step)
    batches = arrivals(events, cuts, bound)
    wanted: list[Any] = []
    came = [c for batch in batches for c in batch]
    windows = {window for c in came for window in ranges_of(c.at, size, step)}
    taken: set[int] = set()
    for start, end in windows:
        inside = [c for c in came if start <= c.at < end and end - 1 + grace > c.watermark]
        taken |= {id(c) for c in inside}
        for key in ("k1", "k2"):
            of_key = [c for c in inside if c.event.key == key]

            def row(a: Came | None, b: Came | None, start: int = start, end: int = end) -> Any:
                head = (columns_of(a, b)[0], start, *columns_of(a, b)[1:])
                if a is None or b is None:
                    return (*head, end - 1 + grace, True)
                after = [c for c in (a, b) if end - 1 <= c.watermark]
                if not after:
                    return (*head, end - 1, True)
                return (*head, max(after, key=lambda c: (c.batch, c.at)).at, False)

            has_left = any(isinstance(c.event, Lt) for c in of_key)
            has_right = any(isinstance(c.event, Rt) for c in of_key)
            alone = how if not (has_left and has_right) else "inner"
            wanted += joined(of_key, alone, lambda a, b: True, row)
    process = window_join(left=Lt, right=Rt, assigner=assigner, grace=grace, how=how)
    columns = ("key", "window_start_ms", *COLUMNS[1:])
    found, late = result(process, batches, *columns, bound=bound, restarts=restarts)
    assert found == sorted(wanted, key=repr)
    assert late == len(came) - len(taken)


@examples(40)
@given(
    events=EVENTS,
    cuts=CUTS,
    restarts=st.booleans(),
    gap=st.integers(1, 15),
    grace=GRACES,
    how=HOW,
    bound=st.sampled_from([0, 3, 12]),
)
def test_a_session_join_with_a_grace_is_all_pairs_of_the_sessions_that_came_to_be(
    events: list[At], cuts: list[int], restarts: bool, gap: int, grace: int, how: Any, bound: int
) -> None:
    batches = arrivals(events, cuts, bound)
    wanted: list[Any] = []
    late = 0
    for key in ("k1", "k2"):
        sessions: list[list[Came]] = []
        for batch in batches:
            for c in sorted((c for c in batch if c.event.key == key), key=lambda c: c.at):
                # What has gone by the watermark that this event met is nobody's any more.
                here = [s for s in sessions if max(o.at for o in s) + gap + grace > c.watermark]
                met = [s for s in here if min(o.at for o in s) - gap <= c.at <= max(o.at for o in s) + gap]
                merged = [o for s in met for o in s] + [c]
                if max(o.at for o in merged) + gap + grace <= c.watermark:
                    late += 1
                    continue
                sessions = [s for s in sessions if not any(s is m for m in met)] + [merged]
        for s in sessions:
            start, end = min(c.at for c in s), max(c.at for c in s) + gap

            def row(a: Came | None, b: Came | None, start: int = start, end: int = end) -> Any:
                return (*columns_of(a, b), start, end, end + grace, True)

            one_sided = len({type(c.event) for c in s}) == 1
            wanted += joined(s, how if one_sided else "inner", lambda a, b: True, row)
    process = window_join(left=Lt, right=Rt, assigner=session(gap), grace=grace, how=how)
    columns = (*COLUMNS, "window_start_ms", "window_end_ms")
    found, told = result(process, batches, *columns, bound=bound, restarts=restarts)
    assert found == sorted(wanted, key=repr)
    assert told == late


@pytest.mark.parametrize("grace", [timedelta(milliseconds=6), 6])
@pytest.mark.parametrize("assigner", [None, tumbling(10), hopping(20, every=5), session(4)])
def test_after_the_grace_nothing_is_left(assigner: Any, grace: Any) -> None:
    came = [At(5, Rt("k")), At(1, Lt("k")), At(30, Lt("k")), At(26, Rt("k")), At(24, Lt("k"))]
    events = [(e.key, e.at, e.event) for e in came]
    if assigner is None:
        process = near(4, 3, grace, "outer")
    else:
        process = window_join(left=Lt, right=Rt, assigner=assigner, grace=grace, how="outer")
    assert leaks(process, events) == []
    assert process.describe()["grace_ms"] == 6


def test_a_join_without_a_grace_has_the_contract_that_it_had() -> None:
    assert "grace_ms" not in near(4, 3, 0).describe()
    assert "grace_ms" not in window_join(left=Lt, right=Rt, assigner=tumbling(10)).describe()


@pytest.mark.parametrize("grace", [-1, 1.5, True])
def test_a_grace_is_a_duration(grace: Any) -> None:
    with pytest.raises(JoinDefinitionError, match="grace"):
        near(4, 3, grace)
    with pytest.raises(JoinDefinitionError, match="grace"):
        window_join(left=Lt, right=Rt, assigner=tumbling(10), grace=grace)
