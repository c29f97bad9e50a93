"""Sums over event time, and small figures that pages share."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.dashboard.steps import Steps, joined_steps


def test_joined_steps_leave_none_out() -> None:
    steps = [1, 2, 5, 6, 90]
    for most in (1, 2, 3, 10, 1_000):
        groups = joined_steps(steps, most, 1_000)
        assert sorted(s for _, members in groups for s in members) == steps
        assert len(groups) <= most
    assert joined_steps([], 5, 1_000) == []


@given(
    st.lists(st.tuples(st.integers(0, 10**7), st.sampled_from("ab")), min_size=1, max_size=200),
    st.integers(1, 70),
)
def test_lines_lose_nothing_and_are_no_longer_than_asked(added: list[tuple[int, str]], most: int) -> None:
    steps = Steps(60_000)
    for at, name in added:
        steps.add(at, name)
    lines = steps.lines(["a", "b"], per_ms=60_000, most=most)
    begins = [at for at, _ in lines[0].points]
    times = [at // 60_000 for at, _ in added]
    width = (begins[1] - begins[0]) / 60_000 if len(begins) > 1 else max(times) - min(times) + 1
    counts = Counter(name for _, name in added)
    for line in lines:
        assert len(line.points) <= most
        assert sum(v or 0 for _, v in line.points) * width == pytest.approx(counts[line.name])


def test_the_oldest_steps_go() -> None:
    steps = Steps(1_000, most=10)
    for second in range(100):
        steps.add(second * 1_000, "x")
    assert [begin for begin, _ in steps.groups(1_000)] == [n * 1_000 for n in range(90, 100)]
