"""Thresholds of review and block: the definition by hand, and the choice against trying all pairs."""

from __future__ import annotations

import itertools
from random import Random

import numpy as np
import pytest

from millrace_apps.fraud.operations.economics import (
    NEVER,
    Costs,
    EconomicsError,
    Scored,
    block_pays,
    choose,
    outcome,
)

DAY = 86_400_000
Row = tuple[int, str, float, float, bool]


def rows(seed: int, n: int = 60, days: int = 3, levels: int = 12) -> list[Row]:
    """Random labelled transactions with few different scores, so that many are equal."""
    random = Random(seed)
    found = []
    for _ in range(n):
        fraud = random.random() < 0.2
        level = min(levels, max(1, round(random.gauss(8 if fraud else 4, 3))))
        amount = random.randrange(1, 400) / 2
        found.append(
            (random.randrange(days * DAY), f"card-{random.randrange(15)}", amount, level / levels, fraud)
        )
    found[0] = (0, *found[0][1:4], True)
    found[1] = (days * DAY - 1, *found[1][1:])
    return found


def cost_by_hand(found: list[Row], review_from: float, block_from: float, costs: Costs) -> tuple[float, int]:
    """The cost of a pair of thresholds, transaction by transaction; and how many looks it takes."""
    cost, looked = 0.0, set()
    for at, card, amount, score, fraud in found:
        if score >= block_from:
            cost += 0 if fraud else costs.false_block + costs.margin * amount
        elif score >= review_from:
            looked.add((at // DAY, card))
            cost += (1 - costs.review_saves) * amount if fraud else 0
        elif fraud:
            cost += amount
    return cost + costs.review * len(looked), len(looked)


@pytest.mark.parametrize("seed", range(4))
def test_the_outcome_is_what_going_through_transactions_one_by_one_gives(seed: int) -> None:
    found, costs = rows(seed), Costs(review=3.0, false_block=7.0, margin=0.05, review_saves=0.6)
    for review_from, block_from in itertools.combinations_with_replacement([0.2, 0.5, 0.75, NEVER], 2):
        result = outcome(Scored.of(found), review_from, block_from, costs)
        cost, looks = cost_by_hand(found, review_from, block_from, costs)
        assert result.cost == pytest.approx(cost, abs=0.006)
        assert result.reviews_per_day * 3 == pytest.approx(looks)
        blocked = [r for r in found if r[3] >= block_from]
        genuine = [r for r in found if not r[4]]
        assert result.false_block_rate == pytest.approx(sum(not r[4] for r in blocked) / len(genuine))
        flagged = [r for r in found if r[3] >= review_from]
        if flagged:
            assert result.precision == pytest.approx(sum(r[4] for r in flagged) / len(flagged))
        assert result.recall == pytest.approx(sum(r[4] for r in flagged) / sum(r[4] for r in found))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("capacity", [0, 2, 5, 100])
def test_the_choice_is_the_cheapest_of_all_pairs_that_fit_the_day(seed: int, capacity: int) -> None:
    found, costs = rows(seed), Costs(review=4.0, false_block=15.0, margin=0.02, review_saves=0.7)
    scores = [*sorted({r[3] for r in found}), NEVER]
    cheapest = min(
        cost
        for review_from, block_from in itertools.combinations_with_replacement(scores, 2)
        for cost, looks in [cost_by_hand(found, review_from, block_from, costs)]
        if looks <= capacity * 3
    )
    best, curve = choose(Scored.of(found), costs, capacity)
    assert best.cost == pytest.approx(cheapest, abs=0.006)
    assert best.reviews_per_day <= capacity
    assert best in curve
    assert all(o.reviews_per_day <= capacity for o in curve)


def some_known(seed: int) -> tuple[list[Row], list[float]]:
    """Random payments, and for how many each stands: 0 where it is not known what it was."""
    random, found = Random(seed + 1_000), rows(seed)
    weight = [random.choice([0.0, 1.0, 2.5]) for _ in found]
    weight[0] = 1.0
    return found, weight


def weighted(found: list[Row], weight: list[float]) -> Scored:
    return Scored(*(getattr(Scored.of(found), n) for n in Scored.__struct_fields__[:5]), np.array(weight))


def cost_of_known(
    found: list[Row], weight: list[float], review_from: float, block_from: float, costs: Costs
) -> tuple[float, int]:
    """As :func:`cost_by_hand`, where a look costs whatever it shows, and the rest of what is known only."""
    cost, looked = 0.0, set()
    for (at, card, amount, score, fraud), stands_for in zip(found, weight, strict=True):
        if review_from <= score < block_from:
            looked.add((at // DAY, card))
        one, _ = cost_by_hand(
            [(at, card, amount, score, fraud)], review_from, block_from,
            Costs(0.0, costs.false_block, costs.margin, costs.review_saves),
        )  # fmt: skip
        cost += stands_for * one
    return cost + costs.review * len(looked), len(looked)


@pytest.mark.parametrize("seed", range(4))
def test_looks_count_of_all_payments_and_what_they_were_of_the_known_by_weight(seed: int) -> None:
    (found, weight), costs = some_known(seed), Costs(3.0, 7.0, 0.05, 0.6)
    for review_from, block_from in itertools.combinations_with_replacement([0.2, 0.5, 0.75, NEVER], 2):
        result = outcome(weighted(found, weight), review_from, block_from, costs)
        cost, looks = cost_of_known(found, weight, review_from, block_from, costs)
        assert result.cost == pytest.approx(cost, abs=0.006)
        assert result.reviews_per_day * 3 == pytest.approx(looks)
        assert result.blocks_per_day * 3 == pytest.approx(sum(r[3] >= block_from for r in found))
        flagged = [(r[4], w) for r, w in zip(found, weight, strict=True) if r[3] >= review_from]
        if hits := sum(w for fraud, w in flagged if fraud):
            assert result.precision == pytest.approx(hits / sum(w for _, w in flagged))
        if flagged:
            assert result.unknown_share == pytest.approx(sum(w == 0 for _, w in flagged) / len(flagged))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("capacity", [0, 2, 100])
def test_the_choice_over_partly_known_payments_is_the_cheapest_of_all_pairs(seed: int, capacity: int) -> None:
    (found, weight), costs = some_known(seed), Costs(4.0, 15.0, 0.02, 0.7)
    scores = [*sorted({r[3] for r in found}), NEVER]
    cheapest = min(
        cost
        for review_from, block_from in itertools.combinations_with_replacement(scores, 2)
        for cost, looks in [cost_of_known(found, weight, review_from, block_from, costs)]
        if looks <= capacity * 3
    )
    best, _ = choose(weighted(found, weight), costs, capacity)
    assert best.cost == pytest.approx(cheapest, abs=0.006)


def test_a_payment_that_is_not_known_is_neither() -> None:
    found = Scored.of([(0, "a", 9.0, 0.9, True), (1, "b", 9.0, 0.9, None)])
    assert found.weights.tolist() == [1.0, 0.0]
    with pytest.raises(EconomicsError, match="no labelled fraud"):
        choose(weighted([(0, "a", 1.0, 0.5, True)], [0.0]), Costs(), 1)


def test_a_limit_on_false_blocks_is_kept() -> None:
    found = Scored.of(rows(1))
    free, _ = choose(found, Costs(false_block=0.1), 1)
    bound, _ = choose(found, Costs(false_block=0.1), 1, most_false_blocks=0.01)
    assert free.false_block_rate > 0.01 >= bound.false_block_rate
    assert bound.cost >= free.cost


def test_more_capacity_never_costs_more() -> None:
    found = Scored.of(rows(2))
    costs = [choose(found, Costs(), capacity)[0].cost for capacity in (0, 1, 2, 4, 8, 100)]
    assert costs == sorted(costs, reverse=True)


def test_looking_that_saves_less_than_it_costs_is_not_done() -> None:
    found = [(0, "a", 1.0, 0.5, True), (1, "b", 1.0, 0.5, False), (2, "c", 2.0, 0.9, True)]
    best, _ = choose(Scored.of(found), Costs(review=50.0, false_block=100.0), 10)
    assert (best.reviews_per_day, best.block_from) == (0.0, 0.9)


def test_many_scores_are_chosen_from_in_reasonable_time() -> None:
    random = np.random.default_rng(0)
    n = 20_000
    fraud = random.random(n) < 0.01
    score = np.where(fraud, random.beta(4, 2, n), random.beta(1, 12, n))
    amount = random.lognormal(4, 1, n)
    found = Scored(random.integers(0, 7 * DAY, n), random.integers(0, 3_000, n), amount, score, fraud)
    best, _ = choose(found, Costs(), 5)
    assert best.cost < outcome(found, NEVER, NEVER, Costs()).cost / 2
    assert best.reviews_per_day <= 5


@pytest.mark.parametrize(
    ("probability", "amount", "pays"), [(0.5, 100.0, True), (0.01, 100.0, False), (0.01, 10_000.0, False),
                                        (0.05, 10_000.0, True)]
)  # fmt: skip
def test_blocking_pays_from_a_probability_that_hangs_on_the_amount(
    probability: float, amount: float, pays: bool
) -> None:
    assert block_pays(probability, amount, Costs(false_block=10.0, margin=0.02)) is pays


@pytest.mark.parametrize("known", ["all", "none", "frauds"])
def test_one_payment_alone_is_decided_on_or_refused(known: str) -> None:
    fraud = {"all": False, "none": None, "frauds": True}[known]
    one = Scored.of([(0, "a", 100.0, 0.5, fraud)])
    if not fraud:
        with pytest.raises(EconomicsError, match="no labelled fraud"):
            choose(one, Costs(), 1)
        return
    best, curve = choose(one, Costs(), 1, most_false_blocks=0.0)
    assert (best.block_from, best.cost, best.saved, best.false_block_rate) == (0.5, 0.0, 100.0, 0.0)
    assert {o.cost for o in curve} == {0.0, 35.0}  # not blocked it is looked at: 5, and 30 of 100 are gone


def test_equal_scores_stand_or_fall_together() -> None:
    tied = Scored.of([(n, f"c{n}", 10.0 * (n + 1), 0.7, n % 2 == 0) for n in range(6)])
    best, _ = choose(tied, Costs(review=1.0, false_block=0.0, margin=0.0), 100)
    assert (best.block_from, best.caught_share, best.cost) == (0.7, 1.0, 0.0)


def test_what_makes_no_sense_is_refused() -> None:
    for costs in ({"review": float("nan")}, {"false_block": float("inf")}, {"margin": -0.1}):
        with pytest.raises(EconomicsError, match="not negative"):
            Costs(**costs)
    with pytest.raises(EconomicsError, match="from 0 to 1"):
        choose(Scored.of([(0, "a", 1.0, 0.5, True)]), Costs(), 1, most_false_blocks=-0.1)
    with pytest.raises(EconomicsError, match="not negative"):
        Costs(review=-1)
    with pytest.raises(EconomicsError, match="shares"):
        Costs(review_saves=1.5)
    with pytest.raises(EconomicsError, match="no labelled fraud"):
        choose(Scored.of([(0, "a", 1.0, 0.5, False)]), Costs(), 1)
    with pytest.raises(EconomicsError, match="below reviewing"):
        outcome(Scored.of([(0, "a", 1.0, 0.5, False)]), 0.5, 0.4, Costs())
    with pytest.raises(EconomicsError, match="no labelled transaction"):
        outcome(Scored.of([]), 0.5, 0.6, Costs())
    with pytest.raises(EconomicsError, match="capacity"):
        choose(Scored.of([(0, "a", 1.0, 0.5, True)]), Costs(), -1)
