"""Running and moving aggregates and exponential weights, against pandas and sums written out."""

from __future__ import annotations

import contextlib
import math
import operator
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import UserError
from millrace.operators import ewm, moving, running
from millrace.testing import TestDriver
from millrace.testing.properties import UnfitEvents, invariant, leaks, same_as_process
from millrace.windows import collect, count, max_of, mean, min_of, reduce, stddev, sum_of, variance
from tests.unit.millrace.operators.cases import EVENTS, MINUTE, Ev, Event, examples, of_key, run

IDLE = 10_000


def series(events: list[Event], key: str) -> pd.Series[float]:
    """Return the values of a key in the order of its events."""
    return pd.Series([math.nan if e.x is None else e.x for _, _, e in of_key(events, key)], dtype=float)


def same(found: list[Any], wanted: Any) -> bool:
    """Compare numbers, ``None`` standing for what is not there."""
    left = np.array([math.nan if v is None else v for v in found], dtype=float)
    return bool(np.allclose(left, np.asarray(wanted, dtype=float), rtol=1e-9, atol=1e-9, equal_nan=True))


@examples(15)
@given(events=EVENTS, cut=st.integers(0, 24))
def test_running_aggregates_agree_with_pandas(events: list[Event], cut: int) -> None:
    process = running(Ev, idle=IDLE, keep="id").aggregate(
        n=count("x"), total=sum_of("x"), avg=mean("x"), var=variance("x"), high=max_of("x"), low=min_of("x")
    )
    driver = run(process, events, bound=200, restart_after=cut)
    for key in ("k1", "k2"):
        rows = [r for r in driver.values() if r.key == key]
        values = series(events, key)
        so_far = values.expanding(min_periods=0)
        assert [(r.event_time_ms, r.id) for r in rows] == [(at, e.id) for _, at, e in of_key(events, key)]
        assert same([r.n for r in rows], so_far.count())
        assert same([r.total for r in rows], so_far.sum())
        assert same([r.avg for r in rows], so_far.mean())
        assert same([r.high for r in rows], so_far.max())
        assert same([r.low for r in rows], so_far.min())
        exact = [values[: i + 1].dropna().var() for i in range(len(values))]
        assert same([r.var for r in rows], exact)


@examples(15)
@given(events=EVENTS, before=st.booleans(), seed=st.integers(0, 99))
def test_running_aggregates_of_a_key_together_are_those_of_its_events(
    events: list[Event], before: bool, seed: int
) -> None:
    begun = running(Ev, idle=IDLE, in_order=True, before=before)
    process = begun.aggregate(n=count("x"), total=sum_of("x"), all=collect("id"))
    with contextlib.suppress(UnfitEvents):  # of some, none can be handled together
        same_as_process(process, events, bound_ms=200, seed=seed)


def test_running_aggregates_of_what_was_before_leave_the_event_out() -> None:
    process = running(Ev, idle=IDLE, before=True, keep="v").aggregate(n=count(), most=max_of("v"))
    driver = run(process, [("k", at, Ev(v=v)) for at, v in enumerate([3, 9, 1])])
    assert [(r.v, r.n, r.most) for r in driver.values()] == [(3, 0, None), (9, 1, 3), (1, 2, 9)]


def test_aggregates_that_hang_on_order_get_it() -> None:
    process = running(Ev, idle=IDLE).aggregate(word=reduce(operator.add, "kind"), all=collect("v"))
    events = [("k", at, Ev(kind=k, v=at)) for at, k in [(7, "c"), (2, "a"), (5, "b")]]
    driver = run(process, events, bound=100)
    assert [(r.word, r.all) for r in driver.values()] == [("a", [2]), ("ab", [2, 5]), ("abc", [2, 5, 7])]


def test_a_key_begins_anew_after_it_was_idle() -> None:
    process = running(Ev, idle=10, in_order=True).aggregate(n=count())
    driver = run(process, [("k", at, Ev()) for at in (0, 9, 18, 28, 30)], drain=False)
    assert [r.n for r in driver.values()] == [1, 2, 3, 1, 2]


def test_in_order_a_result_comes_with_its_event() -> None:
    driver = TestDriver(running(Ev, idle=IDLE, in_order=True).aggregate(n=count()), out_of_orderness_ms=1_000)
    driver.send("k", Ev(), at=5)
    assert [r.n for r in driver.values()] == [1]


@examples(15)
@given(events=EVENTS, size=st.integers(1, 6), cut=st.integers(0, 24))
def test_moving_aggregates_agree_with_pandas(events: list[Event], size: int, cut: int) -> None:
    process = moving(Ev, size, idle=IDLE).aggregate(avg=mean("v"), dev=stddev("v"), high=max_of("v"))
    driver = run(process, events, bound=200, restart_after=cut)
    for key in ("k1", "k2"):
        rows = [r for r in driver.values() if r.key == key]
        last = pd.Series([e.v for _, _, e in of_key(events, key)], dtype=float).rolling(size)
        full = slice(size - 1, None)
        assert same([r.avg for r in rows], last.mean()[full])
        assert same([r.high for r in rows], last.max()[full])
        if size > 1:
            assert np.allclose([r.dev for r in rows], last.std()[full], atol=1e-6)


@examples(30)
@given(
    values=st.lists(st.floats(-100, 100), min_size=1, max_size=25),
    # Between the two what is left of the weights before is no number any more.
    alpha=st.floats(0.05, 0.999) | st.just(1.0),
    adjust=st.booleans(),
)
def test_weights_per_event_agree_with_pandas(values: list[float], alpha: float, adjust: bool) -> None:
    events = [("k", at, Ev(x=x)) for at, x in enumerate(values)]
    rows = run(ewm(Ev, "x", alpha=alpha, adjust=adjust, idle=IDLE), events).values()
    wanted = pd.Series(values).ewm(alpha=alpha, adjust=adjust)
    assert same([r.mean for r in rows], wanted.mean())
    if alpha < 1:  # with 1 only the last value counts, and there is no variance
        assert np.allclose([r.variance for r in rows[1:]], wanted.var()[1:], rtol=1e-6, atol=1e-6)
    assert rows[0].variance is None


@examples(30)
@given(events=EVENTS, half_life=st.integers(1, 100), cut=st.integers(0, 24))
def test_weights_by_event_time_agree_with_sums_written_out(
    events: list[Event], half_life: int, cut: int
) -> None:
    driver = run(ewm(Ev, "x", half_life=half_life, idle=IDLE), events, bound=200, restart_after=cut)
    for key in ("k1", "k2"):
        rows = [r for r in driver.values() if r.key == key]
        there = [(at, e.x) for _, at, e in of_key(events, key) if e.x is not None]
        assert [(r.event_time_ms, r.value) for r in rows] == there
        for i, row in enumerate(rows):
            at = np.array([t for t, _ in there[: i + 1]], dtype=float)
            x = np.array([v for _, v in there[: i + 1]], dtype=float)
            w = 0.5 ** ((at[-1] - at) / half_life)
            center = (w @ x) / w.sum()
            assert row.mean == pytest.approx(center, rel=1e-9, abs=1e-9)
            freedom = w.sum() - (w @ w) / w.sum()
            if i and freedom > 1e-6:
                assert row.variance == pytest.approx((w @ (x - center) ** 2) / freedom, rel=1e-6, abs=1e-6)
    if all(e.x is not None for _, _, e in events) and len({at for _, at, _ in events}) == len(events):
        times = pd.to_datetime([at for _, at, _ in of_key(events, "k1")], unit="ms")
        if len(times):
            wanted = series(events, "k1").ewm(halflife=pd.Timedelta(half_life, "ms"), times=times).mean()
            assert same([r.mean for r in driver.values() if r.key == "k1"], wanted)


def test_a_score_is_of_the_mean_and_deviation_before() -> None:
    values = [10.0, 12.0, 11.0, 30.0]
    rows = run(
        ewm(Ev, "x", half_life=MINUTE, idle=IDLE * MINUTE),
        [("k", MINUTE * i, Ev(x=x)) for i, x in enumerate(values)],
    ).values()
    assert rows[0].score is rows[1].score is None
    before = rows[2]
    assert rows[3].score == pytest.approx((30.0 - before.mean) / math.sqrt(before.variance))


@pytest.mark.parametrize("value", [math.inf, math.nan, 1e200])
def test_a_value_that_would_spoil_all_later_ones_is_a_dead_letter(value: float) -> None:
    driver = TestDriver(ewm(Ev, "x", alpha=0.5, idle=IDLE, in_order=True))
    for at, x in enumerate([1.0, value, 3.0]):
        driver.send("k", Ev(x=x), at=at)
    assert [r.mean for r in driver.values()] == [1.0, pytest.approx(7 / 3)]
    assert len(driver.values("dead_letters")) == 1


PROCESSES = {
    "running": running(Ev, idle=IDLE, keep="item").aggregate(n=count(), total=sum_of("x"), s=stddev("v")),
    "running before": running(Ev, idle=15, before=True).aggregate(n=count(), high=max_of("v")),
    "running in order": running(Ev, idle=IDLE, in_order=True).aggregate(n=count()),
    "moving": moving(Ev, 3, idle=IDLE).aggregate(avg=mean("x"), low=min_of("v")),
    "ewm by time": ewm(Ev, "x", half_life=20, idle=40),
    "ewm by event": ewm(Ev, "v", alpha=0.3, adjust=False, idle=IDLE, keep=("id", "kind")),
}


@examples(10)
@given(events=EVENTS, seed=st.integers(0, 1_000))
@pytest.mark.parametrize("name", PROCESSES)
def test_results_do_not_hang_on_how_events_are_brought(name: str, events: list[Event], seed: int) -> None:
    invariant(PROCESSES[name], events, bound_ms=30, runs=4, seed=seed)
    assert leaks(PROCESSES[name], events, bound_ms=30) == []


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: running(Ev, idle=IDLE).aggregate(), "needs at least one"),
        (lambda: running(Ev, idle=IDLE).aggregate(n=3), "n= is an aggregate"),
        (lambda: running(Ev, idle=IDLE).aggregate(key=count()), "two columns of the result are named 'key'"),
        (lambda: running(Ev, idle=0), "idle must be positive"),
        (lambda: running(Ev, idle=IDLE, keep="nope").aggregate(n=count()), "no field 'nope'"),
        (lambda: ewm(Ev, "x", idle=IDLE), "either half_life= .* or alpha="),
        (lambda: ewm(Ev, "x", idle=IDLE, half_life=5, alpha=0.5), "either half_life= .* or alpha="),
        (lambda: ewm(Ev, "x", idle=IDLE, half_life=5, adjust=False), "adjust=False is for alpha="),
        (lambda: ewm(Ev, "x", idle=IDLE, alpha=1.5), "alpha is in"),
        (lambda: ewm(Ev, "x", idle=IDLE, alpha=math.nan), "alpha is a finite number"),
        (lambda: ewm(Ev, "kind", idle=IDLE, alpha=0.5), "ewm needs a number"),
        (lambda: ewm(Ev, "x", idle=IDLE, alpha=0.5, keep="nope"), "no field 'nope'"),
    ],
)
def test_what_contradicts_itself_is_refused_in_one_line(make: Any, says: str) -> None:
    with pytest.raises(UserError, match=says) as refused:
        make()
    assert "\n" not in str(refused.value)
