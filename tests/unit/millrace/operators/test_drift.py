"""Change detectors against river, and against their definitions computed from all values at once."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import UserError
from millrace.operators import Detector, adwin, cusum, drift, page_hinkley
from millrace.operators.detectors import AdwinState, Change
from millrace.testing import TestDriver
from millrace.testing.properties import invariant, leaks
from tests.unit.millrace.operators.cases import DAY, Ev, examples, run


def levels(*means: float, each: int = 200, seed: int = 7) -> list[float]:
    """Values whose mean changes every ``each`` of them."""
    rng = random.Random(seed)
    return [rng.gauss(mean, 1) for mean in means for _ in range(each)]


VALUES = levels(0, 3, 3.2, -1, 0)
#: Where river 0.26.1 found changes in VALUES; for ADWIN with the length of the window that was left.
RIVER_PAGE_HINKLEY = [202, 428, 552, 603, 812]
RIVER_ADWIN_EVERY = [
    (209, 114), (210, 83), (211, 60), (213, 54), (214, 47), (216, 41), (220, 37), (229, 38), (608, 65),
    (610, 59), (611, 52), (612, 45), (613, 38), (616, 33), (622, 31), (700, 93), (840, 201), (848, 177),
    (857, 154), (868, 133), (893, 126),
]  # fmt: skip
RIVER_ADWIN_32 = [(223, 40), (255, 64), (639, 48), (703, 96), (863, 160), (895, 128)]


def found(detector: Detector, values: list[float]) -> list[tuple[int, Change, Any]]:
    """Return where changes are found, and the state then."""
    state = detector.new()
    changes = []
    for i, x in enumerate(values):
        change = detector.add(state, x)
        if change is not None:
            changes.append((i, change, getattr(state, "n", 0)))
    return changes


def places(detector: Detector, values: list[float]) -> list[int]:
    return [i for i, _, _ in found(detector, values)]


def test_page_hinkley_finds_what_river_found() -> None:
    changes = found(page_hinkley(threshold=20, delta=0.05), VALUES)
    assert [i for i, _, _ in changes] == RIVER_PAGE_HINKLEY
    directions = [c.direction for _, c, _ in changes]
    assert (directions[0], *directions[3:]) == ("up", "down", "up")
    assert changes[0][1].mean == pytest.approx(0.0, abs=0.2)


@pytest.mark.parametrize(("every", "wanted"), [(1, RIVER_ADWIN_EVERY), (32, RIVER_ADWIN_32)])
def test_adwin_finds_what_river_found_and_keeps_as_much(every: int, wanted: list[tuple[int, int]]) -> None:
    assert [(i, n) for i, _, n in found(adwin(every=every), VALUES)] == wanted


@examples(40)
@given(
    values=st.lists(st.floats(-4, 4), max_size=60),
    threshold=st.floats(3, 20),
    delta=st.floats(0, 0.5),
    forget=st.sampled_from([1.0, 0.8]),
    direction=st.sampled_from(["up", "down", "both"]),
)
def test_page_hinkley_agrees_with_sums_over_all_values_since_the_last_change(
    values: list[float], threshold: float, delta: float, forget: float, direction: Any
) -> None:
    wanted, begun = [], 0
    for i in range(len(values)):
        x = np.array(values[begun : i + 1])
        away = x - np.cumsum(x) / np.arange(1, len(x) + 1)
        age = np.subtract.outer(np.arange(len(x)), np.arange(len(x)))
        weights = np.where(age >= 0, forget ** np.maximum(age, 0.0), 0.0)
        up, down = weights @ (away - delta), weights @ (away + delta)
        rise, fall = up[-1] - up.min(), down.max() - down[-1]
        if min(abs(rise - threshold), abs(fall - threshold)) < 1e-6:
            return  # rounding decides
        over = (rise > threshold and direction != "down") or (fall > threshold and direction != "up")
        if len(x) >= 5 and over:
            wanted.append(i)
            begun = i + 1
    detector = page_hinkley(threshold=threshold, delta=delta, min_n=5, forget=forget, direction=direction)
    assert places(detector, values) == wanted


@examples(40)
@given(values=st.lists(st.floats(-5, 5), max_size=60), threshold=st.floats(0.5, 8), slack=st.floats(0, 2))
def test_cusum_agrees_with_the_largest_sum_that_ends_now(
    values: list[float], threshold: float, slack: float
) -> None:
    """``max(0, S + z)`` is the largest of all sums of z that end with the newest value."""
    wanted, begun = [], 0
    for i in range(len(values)):
        z = (np.array(values[begun : i + 1]) - 0.3) / 1.7
        up = max(0.0, np.cumsum((z - slack)[::-1]).max())
        down = max(0.0, np.cumsum((-z - slack)[::-1]).max())
        if min(abs(up - threshold), abs(down - threshold)) < 1e-6:
            return  # rounding decides
        if up > threshold or down > threshold:
            wanted.append(i)
            begun = i + 1
    assert places(cusum(threshold=threshold, slack=slack, mean=0.3, stddev=1.7), values) == wanted


def test_cusum_learns_what_is_usual_and_learns_again_after_a_change() -> None:
    values = levels(10, 12, 12, each=300)
    changes = found(cusum(threshold=8), values)
    assert [c.direction for _, c, _ in changes] == ["up"]
    assert 300 <= changes[0][0] < 320
    assert changes[0][1].mean == pytest.approx(np.mean(values[:50]))
    state = cusum(threshold=8).new()
    for x in values[:50]:
        cusum(threshold=8).add(state, x)
    assert state.spread / 49 == pytest.approx(np.var(values[:50], ddof=1))


def test_cusum_tells_a_value_that_differs_from_a_constant() -> None:
    assert [c.direction for _, c, _ in found(cusum(learn=5), [4.0] * 30 + [3.9])] == ["down"]


@pytest.mark.parametrize("direction", ["up", "down"])
def test_only_the_changes_that_are_asked_for_are_told(direction: Any) -> None:
    for detector in (
        page_hinkley(threshold=20, direction=direction),
        cusum(threshold=8, direction=direction),
    ):
        changes = found(detector, levels(0, -4, 4))
        assert changes
        assert {c.direction for _, c, _ in changes} == {direction}


def cut(window: list[float], delta: float, min_side: int) -> bool:
    """Whether the window differs somewhere: every cut of it is looked at (Bifet and Gavaldà 2007)."""
    x = np.array(window)
    sure = math.log(2 * math.log(len(x)) / delta)
    for i in range(min_side, len(x) - min_side + 1):
        m = 1 / (i - min_side + 1) + 1 / (len(x) - i - min_side + 1)
        limit = math.sqrt(2 * m * x.var() * sure) + 2 / 3 * sure * m
        if abs(x[:i].mean() - x[i:].mean()) > limit:
            return True
    return False


@examples(30)
@given(values=st.lists(st.floats(0, 1) | st.floats(4, 5), max_size=60), delta=st.floats(0.001, 0.5))
def test_adwin_with_a_bucket_per_value_keeps_the_longest_window_that_does_not_differ(
    values: list[float], delta: float
) -> None:
    detector = adwin(delta=delta, every=1, buckets=1_000, min_side=3, min_n=6)
    state = detector.new()
    window: list[float] = []
    for x in values:
        window.append(x)
        change = detector.add(state, x)
        dropped = 0
        while len(window) > (3 if dropped else 6) and cut(window, delta, 3):
            window.pop(0)
            dropped += 1
        assert (change is not None) == (dropped > 0)
        assert state.n == len(window)
        assert state.total == pytest.approx(sum(window), abs=1e-6)
        assert state.spread / state.n == pytest.approx(np.var(window), abs=1e-6)


@pytest.mark.parametrize("step", [1.0, -1.0])
def test_page_hinkley_that_forgets_does_not_add_up_what_is_long_ago(step: float) -> None:
    """Distances of 1 add up to 5 at most, where each is 0.8 of itself a value later."""
    values = [0.0] * 50 + [step] * 50
    assert places(page_hinkley(threshold=10, delta=0, forget=1.0), values) != []
    assert places(page_hinkley(threshold=10, delta=0, forget=0.8), values) == []


def test_adwin_keeps_few_buckets_however_long_its_window_is() -> None:
    detector, state = adwin(), AdwinState()
    rng = random.Random(1)
    for _ in range(20_000):
        detector.add(state, rng.random())
    assert state.n > 10_000
    assert sum(map(len, state.levels)) <= 6 * math.log2(state.n)


DETECTORS = {
    "page_hinkley": page_hinkley(threshold=20, delta=0.05),
    "cusum": cusum(threshold=8),
    "adwin": adwin(every=4),
}


@pytest.mark.parametrize("name", DETECTORS)
@pytest.mark.parametrize("restart_every", [None, 37])
def test_a_process_tells_what_its_detector_finds_per_key(name: str, restart_every: int | None) -> None:
    values = levels(0, 4, each=100)
    driver = TestDriver(drift(Ev, "x", DETECTORS[name], idle=DAY, keep="id", key="pump", in_order=True))
    for i, x in enumerate(values):
        if restart_every and i % restart_every == 0:
            driver.restart()
        driver.send("changes", Ev(id=i, x=x), at=i)
        driver.send("stays", Ev(id=i, x=float(i % 2)), at=i)
        driver.send("lacks", Ev(id=i), at=i)
    rows = driver.values()
    wanted = found(DETECTORS[name], values)
    assert [(r.pump, r.id, r.event_time_ms, r.value) for r in rows] == [
        ("changes", i, i, values[i]) for i, _, _ in wanted
    ]
    assert {r.detector for r in rows} == {name}
    assert [(r.direction, r.mean, r.statistic, r.threshold, r.n) for r in rows] == [
        (c.direction, c.mean, c.statistic, c.threshold, c.n) for _, c, _ in wanted
    ]
    driver.drain()
    assert driver.is_empty()


@pytest.mark.parametrize("name", DETECTORS)
def test_changes_do_not_hang_on_how_events_are_brought(name: str) -> None:
    events = [("k", at, Ev(x=x)) for at, x in enumerate(levels(0, 6, each=60))]
    process = drift(Ev, "x", DETECTORS[name], idle=DAY)
    assert run(process, events).values()
    invariant(process, events, bound_ms=20, runs=4)
    assert leaks(process, events, bound_ms=20) == []


def test_a_key_begins_anew_after_it_was_idle() -> None:
    process = drift(Ev, "x", cusum(learn=5), idle=100, in_order=True)
    values = [1.0] * 10 + [50.0] * 10
    run_on = run(process, [("k", i, Ev(x=x)) for i, x in enumerate(values)])
    paused = run(process, [("k", i + (200 if i >= 10 else 0), Ev(x=x)) for i, x in enumerate(values)])
    assert (len(run_on.values()), len(paused.values())) == (1, 0)


def test_a_value_that_is_not_finite_is_a_dead_letter() -> None:
    driver = TestDriver(drift(Ev, "x", cusum(), idle=DAY, in_order=True))
    driver.send("k", Ev(x=math.nan), at=0)
    assert [d["reason"] for d in driver.values("dead_letters")] == ["process_error"]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: page_hinkley(threshold=0), "threshold must be positive"),
        (lambda: page_hinkley(threshold=1, forget=1.5), "forget is in"),
        (lambda: page_hinkley(threshold=1, direction="left"), "direction is 'up', 'down' or 'both'"),
        (lambda: cusum(mean=1.0), "both mean= and stddev="),
        (lambda: cusum(mean=1.0, stddev=0.0), "stddev must be positive"),
        (lambda: cusum(slack=-1.0), "slack must not be negative"),
        (lambda: cusum(learn=1), "learn is a whole number of at least 2"),
        (lambda: adwin(delta=1.0), "delta is in"),
        (lambda: adwin(min_n=1), "min_n is a whole number of at least 2"),
        (lambda: drift(Ev, "x", "adwin", idle=DAY), "drift needs a detector"),
        (lambda: drift(Ev, "kind", adwin(), idle=DAY), "drift needs a number"),
        (lambda: drift(Ev, "x", adwin(), idle=DAY, keep="value"), "no field 'value'"),
    ],
)
def test_what_contradicts_itself_is_refused_in_one_line(make: Any, says: str) -> None:
    with pytest.raises(UserError, match=says) as refused:
        make()
    assert "\n" not in str(refused.value)
