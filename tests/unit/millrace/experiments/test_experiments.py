"""Experiments: independent deals, matured cohorts, intervals and a test of the deal that hold on any day."""

from __future__ import annotations

import math
import random
from collections import Counter
from typing import Any

import pytest

from millrace.experiments import (
    HOLDOUT,
    Experiment,
    ExperimentError,
    Exposure,
    Outcome,
    assign,
    compare,
    interval_of,
    sample_ratio,
    share,
)
from tests.cases import case_count

#: Experiments of a simulation; by command many more.
RUNS = case_count(150)
HALVES = {"control": 0.5, "new": 0.5}
PEOPLE = [f"person-{n}" for n in range(20_000)]


# -- who is in which arm -----------------------------------------------------------------------------


def test_an_arm_gets_its_share_and_everybody_stays_where_he_is() -> None:
    tried = Experiment("colour", {"control": 0.2, "red": 0.5, "blue": 0.3})
    counts = Counter(map(tried.arm, PEOPLE))
    assert {arm: round(n / len(PEOPLE), 2) for arm, n in counts.items()} == {
        "control": 0.2, "red": 0.5, "blue": 0.3}  # fmt: skip
    assert [tried.arm(p) for p in PEOPLE[:500]] == [
        Experiment("colour", dict(tried.arms)).arm(p) for p in PEOPLE[:500]
    ]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Experiment("a", HALVES), Experiment("b", HALVES)),
        (Experiment("a", HALVES), Experiment("a", HALVES, salt="again")),
        (Experiment("a", HALVES, holdout=0.5), Experiment("b", HALVES)),
    ],
)
def test_two_experiments_have_nothing_to_do_with_each_other(first: Experiment, second: Experiment) -> None:
    both = Counter((first.arm(p), second.arm(p)) for p in PEOPLE)
    ones, others = Counter(map(first.arm, PEOPLE)), Counter(map(second.arm, PEOPLE))
    for (one, other), n in both.items():
        if one == HOLDOUT:
            continue
        assert n / ones[one] == pytest.approx(others[other] / len(PEOPLE), abs=0.02)


def test_the_hold_out_is_the_same_for_all_experiments_and_in_none() -> None:
    tried = [Experiment(name, HALVES, salt=name, holdout=0.1) for name in ("a", "b", "c")]
    out = [{p for p in PEOPLE if one.arm(p) == HOLDOUT} for one in tried]
    assert out[0] == out[1] == out[2]
    assert len(out[0]) / len(PEOPLE) == pytest.approx(0.1, abs=0.01)
    more = {p for p in PEOPLE if Experiment("a", HALVES, holdout=0.2).arm(p) == HOLDOUT}
    assert out[0] < more, "who is out stays out when more are to be"


def test_a_salt_deals_anew() -> None:
    tried = Experiment("a", HALVES)
    assert [assign(p, tried) for p in PEOPLE[:99]] == [tried.arm(p) for p in PEOPLE[:99]]
    moved = sum(assign(p, tried, "second") != tried.arm(p) for p in PEOPLE)
    assert moved / len(PEOPLE) == pytest.approx(0.5, abs=0.02)


def test_any_text_has_its_place_below_one() -> None:
    odd = ["", "\0", "a\0b", "\ud800", "ü" * 10_000, *map(str, range(5_000))]
    assert all(0 <= share(a, "x") < 1 for a in odd)


@pytest.mark.parametrize(
    ("name", "more", "said"),
    [
        ("", {}, "needs a name"),
        ("a", {"arms": {}}, "at least"),
        ("a", {"arms": {"x": 0.5, "y": 0.6}}, "1.1 together"),
        ("a", {"arms": {"x": -0.5, "y": 1.5}}, "from 0 to 1"),
        ("a", {"arms": {"x": math.nan, "y": 1.0}}, "from 0 to 1"),
        ("a", {"arms": {"holdout": 0.5, "y": 0.5}}, "no arm is called"),
        ("a", {"holdout": 2.0}, "hold-out"),
    ],
)
def test_an_experiment_that_means_nothing_is_refused(name: str, more: dict[str, Any], said: str) -> None:
    with pytest.raises(ExperimentError, match=said):
        Experiment(name, **{"arms": HALVES, **more})


# -- what the arms have done -------------------------------------------------------------------------

TRIED = Experiment("t", HALVES)
DAY = 10


def test_only_cohorts_whose_time_is_over_are_compared_and_each_subject_once_from_its_first_exposure() -> None:
    exposures = [
        Exposure("t", "a", "new", 50),
        Exposure("t", "a", "new", 10),  # came later, was earlier
        Exposure("t", "b", "control", 20),
        Exposure("t", "c", "control", 91),  # matures at 101
        Exposure("t", "d", "holdout", 1),
        Exposure("other", "e", "new", 1),
        Exposure("t", "f", "new", 1),
        Exposure("t", "f", "control", 2),  # in both
    ]
    outcomes = [
        Outcome("a", 10),  # not after it
        Outcome("a", 11),
        Outcome("a", 20, 4.0),  # the end of its time counts
        Outcome("a", 21, 100.0),  # over
        Outcome("b", 20),
        Outcome("c", 95),
        Outcome("d", 5),
        Outcome("f", 5),
    ]
    found = compare(TRIED, exposures, outcomes, until_ms=100, matures_ms=10)
    assert {arm: (f.exposed, f.matured, f.mean) for arm, f in found.arms.items()} == {
        "control": (2, 1, 0.0),
        "new": (1, 1, 5.0),
    }
    assert found.crossed == 1
    (beside,) = found.comparisons
    assert (beside.arm, beside.difference, beside.low) == ("new", 5.0, None)
    later = compare(TRIED, exposures, outcomes, until_ms=101, matures_ms=10)
    assert (later.arms["control"].matured, later.arms["control"].mean) == (2, 0.5)


def test_an_effect_is_seen_before_it_has_matured_by_nobody() -> None:
    """Buyers are known at once, all others after a week: of what is decided so far all have bought."""
    exposures = [Exposure("t", p, TRIED.arm(p), 0) for p in PEOPLE[:2_000]]
    bought = [Outcome(e.subject, 3) for n, e in enumerate(exposures) if n % 3 == 0]
    early = compare(TRIED, exposures, bought, until_ms=6, matures_ms=7)
    assert [f.mean for f in early.arms.values()] == [None, None]
    assert early.comparisons[0].difference is None
    whole = compare(TRIED, exposures, bought, until_ms=7, matures_ms=7)
    assert all(f.mean == pytest.approx(1 / 3, abs=0.05) for f in whole.arms.values())


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ExperimentError, match="no arm old"):
        compare(TRIED, [], [], until_ms=1, matures_ms=1, control="old")
    with pytest.raises(ExperimentError, match="no arm blue, in which a was"):
        compare(TRIED, [Exposure("t", "a", "blue", 1)], [], until_ms=1, matures_ms=1)


def _daily(seed: int, base: float, effect: float, days: int = 40, a_day: int = 60) -> list[tuple[Any, Any]]:
    """Each day's figures of an experiment: sums of both arms, as somebody who looks daily sees them."""
    draw, found = random.Random(seed), []
    counts = {"control": [0, 0], "new": [0, 0]}
    for _ in range(days):
        for _ in range(a_day):
            arm = "new" if draw.random() < 0.5 else "control"
            counts[arm][0] += draw.random() < base + (effect if arm == "new" else 0.0)
            counts[arm][1] += 1
        found.append((tuple(counts["new"]), tuple(counts["control"])))
    return found


def _interval(new: tuple[int, int], control: tuple[int, int]) -> tuple[float, float]:
    """The interval of a day, by the same way as compare(), from its sums."""
    (b1, n1), (b0, n0) = new, control
    v1, v0 = ((b + 1) / (n + 2) * (1 - (b + 1) / (n + 2)) for b, n in (new, control))
    half = interval_of(v1, n1, v0, n0)
    return b1 / n1 - b0 / n0 - half, b1 / n1 - b0 / n0 + half


@pytest.mark.parametrize(("base", "effect"), [(0.3, 0.0), (0.05, 0.0), (0.2, 0.1)])
def test_the_interval_holds_the_truth_on_all_days_together_as_often_as_it_says(
    base: float, effect: float
) -> None:
    """One that is made for a single look is wrong on some day in about a quarter of all experiments."""
    wrong = naive = 0
    for seed in range(RUNS):
        looks = [look for look in _daily(seed, base, effect) if min(look[0][1], look[1][1]) >= 30]
        wrong += any(not low <= effect <= high for low, high in (_interval(*look) for look in looks))
        naive += any(
            abs(b1 / n1 - b0 / n0 - effect)
            > 1.96 * math.sqrt(b1 / n1 * (1 - b1 / n1) / n1 + b0 / n0 * (1 - b0 / n0) / n0)
            for (b1, n1), (b0, n0) in looks
        )
    assert wrong / RUNS <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / RUNS)
    assert naive / RUNS > 0.12, "the looks are such that they matter"


def test_an_effect_that_is_there_is_found() -> None:
    found = sum(
        any(low > 0 for low, _ in (_interval(*d) for d in _daily(seed, 0.2, 0.1)[5:])) for seed in range(50)
    )
    assert found >= 45


def test_the_figures_of_compare_are_those_of_its_sums() -> None:
    draw = random.Random(3)
    exposures = [Exposure("t", p, TRIED.arm(p), 0) for p in PEOPLE[:900]]
    bought = [Outcome(e.subject, 1) for e in exposures if draw.random() < (0.4 if e.arm == "new" else 0.2)]
    report = compare(TRIED, exposures, bought, until_ms=9, matures_ms=5)
    buyers = {o.subject for o in bought}
    sums = {
        arm: (
            sum(e.subject in buyers for e in exposures if e.arm == arm),
            sum(e.arm == arm for e in exposures),
        )
        for arm in HALVES
    }
    (beside,) = report.comparisons
    assert (beside.low, beside.high) == pytest.approx(_interval(sums["new"], sums["control"]))
    assert beside.is_decided


def test_money_has_an_interval_as_well() -> None:
    draw = random.Random(5)
    exposures = [Exposure("t", p, TRIED.arm(p), 0) for p in PEOPLE[:6_000]]
    spent = [Outcome(e.subject, 1, draw.expovariate(1 / (30 if e.arm == "new" else 20))) for e in exposures]
    (beside,) = compare(TRIED, exposures, spent, until_ms=9, matures_ms=5).comparisons
    assert beside.low is not None
    assert beside.high is not None
    assert 0 < beside.low < 10 < beside.high


# -- the deal ----------------------------------------------------------------------------------------


def test_a_fair_deal_is_hardly_ever_called_odd_though_it_is_looked_at_daily() -> None:
    odd = 0
    for seed in range(RUNS):
        draw, counts = random.Random(seed), [0, 0]
        for _ in range(40):
            new = sum(draw.random() < 0.3 for _ in range(100))
            counts = [counts[0] + new, counts[1] + 100 - new]
            if not sample_ratio({"a": counts[0], "b": counts[1]}, {"a": 0.3, "b": 0.7}).ok:
                odd += 1
                break
    assert odd <= max(2, RUNS * 0.002)


@pytest.mark.parametrize(
    ("found", "expected", "ok"),
    [
        ({}, {"a": 0.5, "b": 0.5}, True),
        ({"a": 3}, {"a": 0.5, "b": 0.5}, True),
        ({"a": 5_000, "b": 4_700}, {"a": 0.5, "b": 0.5}, True),
        ({"a": 50_000, "b": 48_000}, {"a": 0.5, "b": 0.5}, False),
        ({"a": 80}, {"a": 0.5, "b": 0.5}, False),
        ({"a": 10, "b": 1}, {"a": 1.0, "b": 0.0}, False),
        ({"a": 10}, {"a": 1.0, "b": 0.0}, True),
    ],
)
def test_a_deal_is_odd_where_an_arm_lacks_its_subjects(
    found: dict[str, int], expected: dict[str, float], ok: bool
) -> None:
    assert sample_ratio(found, expected).ok is ok
