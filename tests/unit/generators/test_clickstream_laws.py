"""The laws of the web shop: funnel, visits, arrivals, catalogue, responses to offers."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import islice, pairwise
from statistics import median, quantiles

import pytest

from millrace_apps.generators.clickstream import ClickstreamProfile, responds, simulate
from millrace_apps.generators.clickstream.catalogue import CATEGORIES, Catalogue
from millrace_apps.generators.clickstream.checkout import steps_done
from millrace_apps.generators.clickstream.seasons import Arrivals, activity
from millrace_apps.generators.clickstream.simulation import VISIT_EVENTS
from millrace_apps.generators.engine.randomness import substream
from millrace_apps.generators.engine.simulated import Simulated
from tests.unit.apps.clickstream.cases import (
    GAP_MS,
    HOUR_MS,
    visits,
)


@pytest.fixture(scope="module", name="visits")
def _visits() -> list[Simulated]:
    return visits()


def test_funnel_keeps_the_ratios_of_retailrocket(visits: list[Simulated]) -> None:
    """2.6 carts and 0.84 purchases per 100 views; for 900 and 300, 3 standard errors are 10 and 17 %."""
    kinds: Counter[str] = Counter()
    for event in visits:
        if event.stream == "clicks":
            click = event.event
            kinds["view"] += click.page_type == "item" and click.event_type == "page_view"
            kinds["cart"] += click.event_type == "add_to_cart"
            kinds["bought"] += len(click.lines)
    assert kinds["view"] > 25_000
    assert kinds["cart"] / kinds["view"] == pytest.approx(69_332 / 2_664_312, rel=0.12)
    assert kinds["bought"] / kinds["view"] == pytest.approx(22_457 / 2_664_312, rel=0.2)


def test_events_per_visit_are_what_the_rate_is_reckoned_with(visits: list[Simulated]) -> None:
    assert len(visits) / 12_000 == pytest.approx(VISIT_EVENTS, rel=0.04)


def test_steps_of_the_checkout_lose_carts_one_after_the_other() -> None:
    done = Counter(steps_done(0.3, (i + 0.5) / 10_000) for i in range(10_000))
    assert done[3, True] == 3_000
    reached = [sum(n for (steps, _), n in done.items() if steps >= k) for k in range(4)]
    assert reached == [10_000, 5_477, 4_384, 3_726]
    assert steps_done(0, 0.0) == (0, False)
    assert steps_done(1, 0.999) == (3, True)


def test_pauses_have_the_quartiles_of_the_recsys_clicks() -> None:
    from millrace_apps.generators.clickstream.browsing import _PAUSES_MS

    assert quantiles(_PAUSES_MS, n=4) == pytest.approx([24_800, 55_700, 128_600], rel=0.05)
    assert min(_PAUSES_MS) >= 1_000
    assert max(_PAUSES_MS) < GAP_MS - 60_000


def test_visits_are_as_long_as_in_the_recsys_clicks(visits: list[Simulated]) -> None:
    """Of the sessions with two clicks or more: 43.6 % have two, 20.4 % three, 10 % seven or more."""
    lengths: Counter[str] = Counter()
    for event in visits:
        if event.stream == "clicks" and event.event.page_type == "item":
            lengths[event.event.event_id[:-4]] += event.event.event_type == "page_view"
    several = [n for n in lengths.values() if n >= 2]
    assert len(several) / len(lengths) == pytest.approx(0.55, abs=0.02)
    assert several.count(2) / len(several) == pytest.approx(0.436, abs=0.02)
    assert several.count(3) / len(several) == pytest.approx(0.204, abs=0.02)
    assert sum(several) / len(several) == pytest.approx(3.91, rel=0.04)
    assert median(several) == 3


def test_arrivals_follow_hour_and_weekday_and_keep_their_mean() -> None:
    week = 7 * 24 * HOUR_MS
    # 1970-01-05 was a Monday.
    start = 4 * 24 * HOUR_MS
    arrivals = Arrivals(0.05, start, 1.0, substream(1, "test"))
    times: list[int] = []
    while not times or times[-1] < start + week:
        times.append(arrivals.next_ms())
    assert times == sorted(times)
    assert len(times) == pytest.approx(0.05 * week / 1000, rel=0.03)
    hours = Counter(at // HOUR_MS for at in times[:-1])
    for hour, number in hours.items():
        expected = 180 * activity(hour * HOUR_MS, 1.0)
        assert abs(number - expected) < 5 * max(expected, 4) ** 0.5
    evening, night = activity(start + 19 * HOUR_MS, 1.0), activity(start + 2 * HOUR_MS, 1.0)
    assert evening > 20 * night
    assert activity(start, 1.0) / activity(start + 24 * HOUR_MS, 1.0) == pytest.approx(1.23 / 0.97)
    mean = sum(activity(hour * HOUR_MS, 1.0) for hour in range(168)) / 168
    assert mean == pytest.approx(1.0)


def test_without_a_season_arrivals_are_a_poisson_process() -> None:
    arrivals = Arrivals(10.0, 0, 0.0, substream(2, "test"))
    times = [arrivals.next_ms() for _ in range(20_000)]
    assert times[-1] / 1000 == pytest.approx(2_000, rel=0.03)
    seconds = Counter(at // 1000 for at in times)
    counts = [seconds[second] for second in range(1_900)]
    average = sum(counts) / len(counts)
    variance = sum((number - average) ** 2 for number in counts) / len(counts)
    assert variance / average == pytest.approx(1.0, abs=0.12)


@pytest.mark.parametrize(("rate", "seconds"), [(200.0, 60), (10.0, 1_800)])
def test_the_rate_is_kept_from_the_opening_on(rate: float, seconds: int) -> None:
    """In the first minute as in the first half hour, though visits go on for minutes; bots come on top."""
    profile = ClickstreamProfile(seed=4, event_rate=rate, bots=0)
    number = int(rate * seconds)
    last = next(islice(simulate(profile), number - 1, None))
    assert (last.event_time_ms - profile.start_ms) / 1000 == pytest.approx(seconds, rel=0.06)


def test_popularity_is_zipf_and_every_category_has_items() -> None:
    catalogue = Catalogue(3, 2_000, 1.0)
    drawn = Counter(catalogue.popular((i + 0.5) / 50_000).item_id for i in range(50_000))
    harmonic = sum(1 / rank for rank in range(1, 2_001))
    for rank in (1, 2, 10):
        assert drawn[catalogue.items[rank - 1].item_id] == pytest.approx(50_000 / rank / harmonic, rel=0.02)
    sections = Counter(item.category for item in catalogue.items)
    assert sections.keys() == {name for name, _, _, _ in CATEGORIES}
    assert sections["clothing"] == pytest.approx(440, rel=0.2)
    assert len({item.item_id for item in catalogue.items}) == 2_000


def test_prices_lie_around_the_median_of_their_category() -> None:
    catalogue = Catalogue(3, 5_000, 1.0)
    for name, _, cents, _ in CATEGORIES:
        prices = [item.cents for item in catalogue.items if item.category == name]
        assert median(prices) == pytest.approx(cents, rel=0.2)
        assert min(prices) > 0


def test_what_is_looked_at_next_is_what_the_catalogue_calls_related() -> None:
    catalogue = Catalogue(3, 500, 1.0)
    for item in catalogue.items[:20]:
        expected: Counter[str] = Counter()
        for other, share in catalogue.related(item):
            expected[other.item_id] += round(share * 1_000)
        drawn = Counter(catalogue.next_to(item, (i + 0.5) / 1_000).item_id for i in range(1_000))
        assert all(abs(drawn[name] - expected[name]) <= 1 for name in drawn | expected)


def test_a_recommender_can_learn_what_goes_together(visits: list[Simulated]) -> None:
    profile = ClickstreamProfile(seed=5)
    catalogue = Catalogue(5, profile.items, profile.item_skew)
    items = {item.item_id: item for item in catalogue.items}
    views = [
        (e.event.event_id[:-4], e.event.item_id)
        for e in visits
        if e.stream == "clicks" and e.event.page_type == "item" and e.event.event_type == "page_view"
    ]
    pairs = [(a[1], b[1]) for a, b in pairwise(views) if a[0] == b[0]]
    related = sum(b in {other.item_id for other, _ in catalogue.related(items[a])} for a, b in pairs)
    # 52 of 100 steps go to a related item, and some revisits do by chance.
    assert 0.50 < related / len(pairs) < 0.65


def test_an_offer_adds_its_uplift_to_the_share_that_buys() -> None:
    """20,000 visitors: the standard error of a share is 0.2 to 0.3 points."""
    visitors = [f"visitor-{number}" for number in range(20_000)]

    def share(profile: ClickstreamProfile, offer: str | None) -> float:
        return sum(responds(profile, visitor, offer) for visitor in visitors) / len(visitors)

    up = ClickstreamProfile(seed=9, recovery=0.075, offer_uplift=0.05)
    down = replace(up, offer_uplift=-0.05)
    assert share(up, None) == pytest.approx(0.075, abs=0.008)
    assert share(up, "ten-percent") == pytest.approx(0.125, abs=0.01)
    assert share(down, "ten-percent") == pytest.approx(0.025, abs=0.005)
    assert share(replace(up, offer_uplift=0), "ten-percent") == share(up, None) == share(down, None)


def test_a_response_depends_on_visitor_and_offer_alone_and_an_offer_harms_nobody() -> None:
    profile = ClickstreamProfile(seed=9, offer_uplift=0.3)
    visitors = [f"visitor-{number}" for number in range(500)]
    first = {(visitor, offer): responds(profile, visitor, offer) for visitor in visitors for offer in "ab"}
    again = {key: responds(profile, *key) for key in reversed(first)}
    assert first == again
    assert any(first[visitor, "a"] != first[visitor, "b"] for visitor in visitors)
    assert all(first[visitor, "a"] for visitor in visitors if responds(profile, visitor, None))
