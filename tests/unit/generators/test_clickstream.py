"""The web shop as a stream: the same bytes, in order, within its contract, in bounded memory."""

from __future__ import annotations

import doctest
import hashlib
import importlib
import pkgutil
from collections import Counter
from dataclasses import replace
from itertools import islice, pairwise
from typing import Any

import msgspec
import pytest

import millrace_apps.generators.clickstream
from millrace.errors import UserError
from millrace_apps.generators.clickstream import DOMAIN, ClickstreamProfile, simulate
from millrace_apps.generators.clickstream.simulation import Shop
from millrace_apps.generators.engine.simulated import Simulated, Truth
from tests.unit.apps.clickstream.cases import (
    HOUR_MS,
    PROFILE,
    encoded,
    run,
)


@pytest.fixture(scope="module")
def events() -> list[Simulated]:
    return run()


def test_equal_profiles_give_equal_bytes_and_another_seed_or_start_shares_no_identifier() -> None:
    profile = ClickstreamProfile(seed=3, items=500, events=800)
    assert encoded(simulate(profile)) == encoded(simulate(profile))
    first = {e.event.event_id for e in simulate(profile) if e.stream == "clicks"}
    for other in (replace(profile, seed=4), replace(profile, start_ms=profile.start_ms + 1)):
        seen = [e.event for e in simulate(other) if e.stream == "clicks"]
        assert not first & {click.event_id for click in seen}
        assert encoded(simulate(other)) != encoded(simulate(profile))


def test_the_bytes_are_the_same_on_every_machine_and_python() -> None:
    """Taken with Python 3.11; another digest means another stream for everybody who has a seed."""
    profile = ClickstreamProfile(seed=1, event_rate=2.0, events=3_000, season=1.0, start_ms=1_767_258_000_000)
    found = hashlib.blake2b(encoded(simulate(profile)), digest_size=16).hexdigest()
    assert found == "37e6ef4e5b270a97bd774ecd4b3afdac"


def test_a_shorter_run_is_the_beginning_of_a_longer_one() -> None:
    profile = ClickstreamProfile(seed=3, items=500)
    longer = list(islice(simulate(profile), 900))
    for size in (0, 1, 899):
        assert list(simulate(replace(profile, events=size))) == longer[:size]


def test_bots_change_nothing_of_what_people_do() -> None:
    profile = ClickstreamProfile(seed=3, items=500, event_rate=5)
    alone = list(islice(simulate(replace(profile, bots=0)), 2_000))
    mixed = list(islice(simulate(replace(profile, bots=0.5)), 4_000))
    end = min(alone[-1].event_time_ms, mixed[-1].event_time_ms)
    rest = [e for e in mixed if all(t.kind != "bot" for t in e.truths)]
    assert len(rest) < len(mixed)
    uplift = "uplift"

    def shown(found: list[Simulated]) -> list[tuple[Any, list[str]]]:
        return [
            (e.event, [t.truth_id for t in e.truths if t.kind != uplift])
            for e in found
            if e.event_time_ms < end
        ]

    assert shown(rest) == shown(alone)


def test_events_come_in_event_time_with_unique_ids_and_the_key_of_their_stream(
    events: list[Simulated],
) -> None:
    assert all(before.event_time_ms <= after.event_time_ms for before, after in pairwise(events))
    # Of items nothing is said unless some are sold out: see test_clickstream_stock.
    assert {event.stream for event in events} == set(DOMAIN.streams) - {"items"}
    ids: Counter[str] = Counter()
    for event in events:
        spec = DOMAIN.streams[event.stream]
        assert type(event.event) is spec.event_type
        assert getattr(event.event, spec.time_field) == event.event_time_ms
        ids[getattr(event.event, spec.id_field)] += 1
        by = "user_id" if event.stream in ("customers", "erasures") else "visitor_id"
        assert event.key == getattr(event.event, by)
    assert max(ids.values()) == 1


def test_every_event_keeps_its_contract(events: list[Simulated]) -> None:
    for event in events[::3]:
        kind = DOMAIN.streams[event.stream].event_type
        assert msgspec.json.decode(msgspec.json.encode(event.event), type=kind) == event.event


def test_the_truth_is_not_in_the_bytes(events: list[Simulated]) -> None:
    for event in events[::3]:
        text = msgspec.json.encode(event.event)
        assert all(truth.truth_id.encode() not in text for truth in event.truths)


def test_every_kind_of_truth_is_described_and_occurs(events: list[Simulated]) -> None:
    # Offers and lists are an app's (test_clickstream_loop), items are told where some are sold out.
    found = {truth.kind for event in events for truth in event.truths}
    assert found == set(DOMAIN.scenarios) - {"offer", "item", "list"}


def test_one_truth_says_the_same_at_all_its_events(events: list[Simulated]) -> None:
    said: dict[str, Truth] = {}
    for event in events:
        for truth in event.truths:
            assert said.setdefault(truth.truth_id, truth) == truth


@pytest.mark.parametrize(
    "module", [module.name for module in pkgutil.iter_modules(millrace_apps.generators.clickstream.__path__)]
)
def test_examples_of_docstrings_run(module: str) -> None:
    name = f"millrace_apps.generators.clickstream.{module}"
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_memory_does_not_grow_with_the_run() -> None:
    """Two weeks pass; what is kept is people, and visits, returns and refunds to come."""
    shop = Shop(replace(PROFILE, event_rate=0.02, people=100))
    sizes = []
    for place, event in enumerate(shop.run()):
        if place % 4_000 == 3_999:
            sizes.append((len(shop._agenda), len(shop._visits._population._persons)))
        if place == 24_000:
            days = (event.event_time_ms - PROFILE.start_ms) / 24 / HOUR_MS
            break
    assert days > 12
    assert max(plans for plans, _ in sizes) < 60
    assert all(persons <= 100 for _, persons in sizes)


@pytest.mark.parametrize(
    ("setting", "rule"),
    [
        ({"people": 1}, "people is a count between 2"),
        ({"items": 3}, "items is a count between 24"),
        ({"known": 1.5}, "known is a share"),
        ({"recovery": 0.9, "offer_uplift": 0.2}, "the uplift of an offer is between -0.9 and"),
        ({"bots": -1}, "bots is 0 to 10"),
        ({"heartbeat_s": -1}, "heartbeat is 0 to 300"),
        ({"erasures": 2000}, "erasures is 0 to 1,000"),
        ({"sold_out": 0.6}, "sold_out is a share"),
        ({"event_rate": 0}, "event rate is above 0"),
    ],
)
def test_a_wrong_setting_is_refused_in_one_line(setting: dict[str, Any], rule: str) -> None:
    with pytest.raises(UserError, match=rule) as refused:
        ClickstreamProfile(**setting)
    assert "\n" not in str(refused.value)
