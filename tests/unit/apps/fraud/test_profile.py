"""What is usual for a card: weights by day, exact in any order, and what earlier versions kept."""

from __future__ import annotations

import statistics
from random import Random
from typing import Any

import pytest
from pydantic import ValidationError

from millrace_apps.fraud.settings import FeatureSettings
from millrace_apps.fraud.state.amounts import SMALL_CENTS, bucket_of
from millrace_apps.fraud.state.card import Account
from millrace_apps.fraud.state.decay import ONE, SPANS, Decay
from millrace_apps.fraud.state.profile import Profile, begun, restated
from tests.unit.apps.fraud.cases import DAY, HOUR, START_MS


def bought(purchases: list[tuple[int, int]], half_life: int = 30) -> Profile:
    made = begun(half_life, purchases[0][0])
    for time, cents in purchases:
        made.arrive(time)
        made.buy(time, cents)
    return made


def said(profile: Profile, at: int) -> tuple[Any, ...]:
    return (
        profile.usual() if profile.count else None,
        profile.per_hour(at),
        profile.count,
        profile.weight,
        profile.big_weight,
    )


def of_before(cents: list[int]) -> Account:
    """What an earlier version kept of purchases."""
    large = [c for c in cents if c > SMALL_CENTS]
    first = min(map(bucket_of, large))
    buckets = [0] * (max(map(bucket_of, large)) - first + 1)
    for c in large:
        buckets[bucket_of(c) - first] += 1
    squares = divmod(sum(c * c for c in cents), 1 << 60)
    return Account(
        -sum(cents), START_MS, len(cents), sum(cents), *squares, len(large), sum(large), first, buckets
    )


@pytest.mark.parametrize("days", [1, 7, 30])
def test_a_half_life_halves(days: int) -> None:
    weights = Decay(days).weights
    assert (len(weights), weights[0]) == (days, ONE)
    for day, weight in enumerate(weights):
        assert weight == pytest.approx(ONE * 2 ** (day / days), rel=0.01)
    span = 100
    start = (span - SPANS + 1) * days * DAY
    decay = Decay(days)
    # The newest span is worth eight of the oldest; all that is before it nothing.
    of_span = [decay.time(span, start + n * days * DAY, start + (n + 1) * days * DAY) for n in range(SPANS)]
    assert [time // of_span[0] for time in of_span] == [1, 2, 4, 8]
    assert decay.time(span, 0, start) == 0
    assert decay.time(span, 0, start + HOUR) == decay.time(span, start, start + HOUR) == ONE * HOUR


def test_what_is_usual_is_the_same_in_any_order_of_what_comes_and_goes() -> None:
    for case in range(40):
        random = Random(f"profile {case}")
        half_life = random.choice([1, 3, 30])
        span = random.choice([DAY, 20 * DAY, 200 * DAY])
        all_of = sorted(
            (
                START_MS + random.randrange(span),
                random.choice([50, 150, 900, 2_200, 90_000, random.randrange(1, 10**7)]),
            )
            for _ in range(40)
        )
        out = set(random.sample(range(40), 10))
        kept = [p for n, p in enumerate(all_of) if n not in out]
        end = all_of[-1][0]
        expected = bought(kept, half_life)
        expected.arrive(end)
        # All of them, some taken out at once, some later, and some put back on the way.
        made = begun(half_life, all_of[0][0])
        late = [all_of[n] for n in out if random.random() < 0.5]
        for n, (time, cents) in enumerate(all_of):
            made.arrive(time)
            made.buy(time, cents)
            if n in out and (time, cents) not in late:
                made.change(time, cents, -1)
            if random.random() < 0.2 and (counted := [p for p in all_of[: n + 1] if p in kept or p in late]):
                again = random.choice(counted)
                made.change(*again, -1)
                made.change(*again, 1)
        random.shuffle(late)
        for time, cents in late:
            made.change(time, cents, -1)
        made.since = expected.since
        assert said(made, end + HOUR) == said(expected, end + HOUR), f"case {case}"


def test_a_card_that_is_not_used_for_long_begins_anew() -> None:
    made = bought([(START_MS, 900), (START_MS + DAY, 1_900)])
    made.arrive(START_MS + 400 * DAY)
    assert (made.count, made.weight, made.big_weight, made.buckets) == (0, 0, 0, [])
    assert made.balance == -2_800


def test_a_profile_begins_with_what_an_earlier_version_kept() -> None:
    cents = [120, 1_850, 2_000, 2_150, 2_200, 2_500]
    made = begun(30, START_MS + 40 * DAY, of_before(cents))
    mean, std, median = made.usual()
    assert (mean, std) == (pytest.approx(statistics.fmean(cents)), pytest.approx(statistics.stdev(cents)))
    assert median == pytest.approx(2_150, rel=0.0625)
    assert (made.count, made.balance, made.since) == (6, -sum(cents), START_MS)
    assert begun(30, START_MS, Account(balance=77)).balance == 77
    # It is one lot of the day on which it begins, and fades as such.
    later = START_MS + 70 * DAY
    made.arrive(later)
    made.buy(later, 5_000)
    weighted = (2 * 5_000 + 6 * statistics.fmean(cents)) / 8
    assert made.usual()[0] == pytest.approx(weighted, rel=0.05)


def test_another_half_life_makes_one_lot_of_what_was_bought_before() -> None:
    now = START_MS + 30 * DAY
    kept = bought([(START_MS + n * DAY, 2_000 + n) for n in range(30)])
    made = restated(kept, 7, now)
    assert made.usual() == pytest.approx(kept.usual(), rel=1e-3)
    assert (made.count, made.balance, made.half_life) == (kept.count, kept.balance, 7)
    # What becomes known of a purchase of before takes nothing out that is not in it.
    for n in range(30):
        at = START_MS + n * DAY
        made.count_payment((at, 2_000 + n, n), [START_MS + m * DAY for m in range(30)], counts=False)
    made.usual()
    assert made.count >= 0
    assert min([made.weight, *made.buckets]) >= 0


@pytest.mark.parametrize("half_life", ["0d", "36h", "61d"])
def test_a_half_life_is_whole_days(half_life: str) -> None:
    with pytest.raises(ValidationError, match="whole days"):
        FeatureSettings.model_validate({"half_life": half_life})
