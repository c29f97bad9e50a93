"""What the shop says of its items: all of them when it opens, then what is sold out and comes back."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

from millrace_apps.clickstream.contracts.events import ItemChange
from millrace_apps.generators.clickstream import Catalogue, ClickstreamProfile, simulate
from millrace_apps.generators.engine.simulated import Simulated

PROFILE = ClickstreamProfile(seed=3, event_rate=2.0, items=200, sold_out=0.1, events=30_000)


def told(profile: ClickstreamProfile) -> list[Simulated]:
    return [event for event in simulate(profile) if event.stream == "items"]


def test_all_items_are_told_when_the_shop_opens_with_what_they_cost() -> None:
    catalogue = Catalogue(PROFILE.seed, PROFILE.items, PROFILE.item_skew)
    first = told(PROFILE)[: PROFILE.items]
    assert {e.key: (e.event.category, e.event.price) for e in first} == {
        item.item_id: (item.category, item.price) for item in catalogue.items
    }
    assert all(e.event.stock > 0 for e in first)
    assert all(PROFILE.start_ms <= e.event_time_ms < PROFILE.start_ms + 60_000 for e in first)


def test_an_item_is_sold_out_and_comes_back_in_turn() -> None:
    by: dict[str, list[ItemChange]] = {}
    for one in told(PROFILE):
        by.setdefault(one.key, []).append(one.event)
    for changes in by.values():
        for before, after in pairwise(changes):
            assert before.event_time_ms < after.event_time_ms
            assert (before.stock == 0) != (after.stock == 0)
    outages = Counter(item for item, changes in by.items() for c in changes if c.stock == 0)
    assert outages.total() > 100


def test_so_many_are_sold_out_at_a_time() -> None:
    """Less than is asked for where popular items would be sold out twice at once."""
    events = list(simulate(PROFILE))
    end, out_ms = events[-1].event_time_ms, 0
    since: dict[str, int] = {}
    for one in events:
        if one.stream == "items" and one.event.stock == 0:
            since[one.key] = one.event_time_ms
        elif one.stream == "items" and one.key in since:
            out_ms += one.event_time_ms - since.pop(one.key)
    out_ms += sum(end - at for at in since.values())
    share = out_ms / (end - PROFILE.start_ms) / PROFILE.items
    assert 0.03 < share < 0.11


def test_the_truth_of_a_change_says_what_the_change_says() -> None:
    for one in told(PROFILE):
        (truth,) = [truth for truth in one.truths if truth.kind == "item"]
        event = one.event
        assert (truth.kind, truth.entity) == ("item", event.item_id)
        said = (event.event_time_ms, event.category, event.price, event.stock)
        assert tuple(truth.detail[name] for name in ("at_ms", "category", "price", "stock")) == said


def test_what_people_do_is_the_same_with_and_without() -> None:
    without = list(simulate(replace(PROFILE, sold_out=0.0, events=3_000)))
    with_ = [event for event in simulate(replace(PROFILE, events=6_000)) if event.stream != "items"]
    assert [e.event for e in with_[:3_000]] == [e.event for e in without[: len(with_)]]
