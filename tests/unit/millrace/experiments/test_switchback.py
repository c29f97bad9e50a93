"""Switchback experiments: who is in which arm when, and what may be said of it."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.experiments import ExperimentError, Observation, Switchback, compare_blocks

BLOCK = 1_800_000
PLAN = Switchback("matching", ("fifo", "optimal"), BLOCK, guard_ms=600_000)


@given(unit=st.text(max_size=8), at=st.integers(-(10**12), 10**13), salt=st.text(max_size=4))
def test_an_arm_holds_for_a_block_and_each_pair_of_blocks_has_both(unit: str, at: int, salt: str) -> None:
    plan = Switchback("m", ("a", "b"), BLOCK, salt=salt)
    block = plan.block(at)
    begin = block * BLOCK
    assert begin <= at < begin + BLOCK
    assert plan.arm(unit, at) == plan.arm(unit, begin) == plan.arm(unit, begin + BLOCK - 1)
    other = (block ^ 1) * BLOCK
    assert {plan.arm(unit, at), plan.arm(unit, other)} == {"a", "b"}


def test_units_names_and_salts_are_dealt_apart_and_each_half_the_time() -> None:
    def deal(plan: Switchback, unit: str) -> list[bool]:
        return [plan.arm(unit, 2 * n * BLOCK) == "fifo" for n in range(4_000)]

    first = deal(PLAN, "north")
    assert 0.47 < sum(first) / 4_000 < 0.53
    arms = ("fifo", "optimal")
    for other in (
        deal(PLAN, "south"),
        deal(Switchback("b", arms, BLOCK), "north"),
        deal(Switchback("matching", arms, BLOCK, salt="2"), "north"),
    ):
        assert 0.46 < sum(a == b for a, b in zip(first, other, strict=True)) / 4_000 < 0.54


@pytest.mark.parametrize(
    "wrong",
    [("", ("a", "b"), 10, 0), ("m", ("a", "a"), 10, 0), ("m", ("a", "b"), 0, 0), ("m", ("a", "b"), 10, 10),
     ("m", ("a", "b"), 10, -1), ("m", ("a",), 10, 0)],
)  # fmt: skip
def test_what_means_nothing_is_refused(wrong: tuple[str, tuple[str, str], int, int]) -> None:
    with pytest.raises(ExperimentError):
        Switchback(*wrong)


def by_hand(
    plan: Switchback, seen: list[Observation], broken: set[tuple[str, int]]
) -> tuple[int, float | None, float | None]:
    """Pairs, difference and standard error, pair by pair."""
    blocks: dict[tuple[str, int], list[float]] = defaultdict(list)
    for one in seen:
        if one.at_ms - one.at_ms // plan.block_ms * plan.block_ms >= plan.guard_ms:
            blocks[one.unit, one.at_ms // plan.block_ms].append(one.value)
    found = []
    for unit, number in {(unit, block // 2) for unit, block in blocks}:
        both = [(unit, 2 * number), (unit, 2 * number + 1)]
        if any(place in broken or place not in blocks for place in both):
            continue
        means = {plan.arm(unit, block * plan.block_ms): sum(blocks[unit, block]) / len(blocks[unit, block])
                 for _, block in both}  # fmt: skip
        found.append(means[plan.arms[1]] - means[plan.arms[0]])
    if not found:
        return 0, None, None
    mean = sum(found) / len(found)
    if len(found) < 4:
        return len(found), mean, None
    variance = sum((x - mean) ** 2 for x in found) / (len(found) - 1)
    return len(found), mean, math.sqrt(variance / len(found))


@settings(deadline=None, max_examples=150)
@given(seed=st.integers(0, 10**6))
def test_what_is_compared_is_what_is_counted_pair_by_pair_in_any_order(seed: int) -> None:
    from scipy import stats

    draws = random.Random(seed)
    plan = Switchback("m", ("a", "b"), 100, guard_ms=draws.choice([0, 30]), salt=str(seed))
    seen = [
        Observation(draws.choice("xyz"), draws.randrange(draws.choice([300, 2_000])), draws.gauss(5, 2))
        for _ in range(draws.randrange(200))
    ]
    broken = {(draws.choice("xyz"), draws.randrange(20)) for _ in range(draws.randrange(4))}
    pairs, difference, error = by_hand(plan, seen, broken)
    draws.shuffle(seen)
    found = compare_blocks(plan, seen, broken=broken)
    assert found.pairs == pairs
    assert found.difference == (None if difference is None else pytest.approx(difference))
    if error is None or difference is None:
        assert found.low is None
        assert not found.is_decided
    else:
        half = float(stats.t.interval(0.95, pairs - 1)[1]) * error
        assert (found.low, found.high) == (
            pytest.approx(difference - half),
            pytest.approx(difference + half),
        )


def test_between_equal_arms_the_interval_holds_nothing_nineteen_times_of_twenty() -> None:
    """Blocks differ by their hour; riders of a block are alike: to count riders would find much too often."""
    held = 0
    for seed in range(400):
        draws = random.Random(seed)
        plan = Switchback("m", ("a", "b"), 100, salt=str(seed))
        seen = []
        for unit, block in product("xy", range(16)):
            hour, of_block = math.sin(block / 3) * 5, draws.gauss(0, 2)
            mean = hour + of_block
            seen += [Observation(unit, block * 100 + n, mean + draws.gauss(0, 1)) for n in range(0, 100, 10)]
        found = compare_blocks(plan, seen)
        held += not found.is_decided
    assert 0.92 <= held / 400 <= 0.98


def test_what_the_block_before_has_left_is_not_judged() -> None:
    """An arm makes waits 10 s longer, for a quarter of the block after it, too."""

    def seen(guard: int) -> float:
        plan = Switchback("m", ("a", "b"), 100, guard_ms=guard)
        found = []
        for at in range(0, 8_000, 5):
            arm, before = plan.arm("x", at), plan.arm("x", at - 100)
            held = before if at % 100 < 25 else arm
            found.append(Observation("x", at, 10.0 if held == "b" else 0.0))
        difference = compare_blocks(plan, found).difference
        assert difference is not None
        return difference

    assert seen(0) < 9.0
    assert seen(25) == pytest.approx(10.0)


def test_of_a_pair_with_a_broken_block_neither_counts_for_an_arm() -> None:
    plan = Switchback("m", ("a", "b"), 100)
    seen = [Observation("x", block * 100 + 50, 1e6 if block in (4, 5) else 1.0) for block in range(12)]
    found = compare_blocks(plan, seen, broken=[("x", 4)])
    assert {(one.blocks, one.observations, one.mean) for one in found.arms.values()} == {(5, 5, 1.0)}
    assert (found.pairs, found.broken) == (5, 1)
