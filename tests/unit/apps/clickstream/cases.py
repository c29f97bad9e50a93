"""Runs of the web shop and ways to look at them, shared by its tests."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from functools import cache

import msgspec

from millrace_apps.clickstream.contracts.events import Click
from millrace_apps.generators.clickstream import Catalogue, ClickstreamProfile, simulate
from millrace_apps.generators.clickstream.profile import Names
from millrace_apps.generators.clickstream.visits import Plan, Visits
from millrace_apps.generators.engine.simulated import Simulated, Truth

GAP_MS = 1_800_000
HOUR_MS = 3_600_000
#: Two and a half days with every scenario more often than by default.
PROFILE = ClickstreamProfile(
    seed=11,
    event_rate=0.2,
    people=1_500,
    items=2_000,
    boundaries=0.05,
    campaign_changes=0.05,
    shared=0.1,
    erasures=20,
    conversion=0.35,
    recovery=0.2,
    refunds=0.5,
)


@cache
def run() -> list[Simulated]:
    """Return 40,000 events of that profile."""
    return list(simulate(replace(PROFILE, events=40_000)))


@cache
def visits() -> list[Simulated]:
    """Return the complete events of 12,000 visits, with all that they lead to, however long after."""
    profile = ClickstreamProfile(seed=5)
    agenda: list[tuple[int, Plan]] = []
    plan = Visits(
        profile,
        Names(profile),
        Catalogue(5, profile.items, profile.item_skew),
        lambda at_ms, later: agenda.append((at_ms, later)),
    ).plan
    made = [event for number in range(12_000) for event in plan(profile.start_ms + number * 1_000)]
    while agenda:
        agenda.sort(key=lambda entry: -entry[0])
        made += agenda.pop()[1]()
    return made


def clicks_of_people(events: Iterable[Simulated]) -> list[Click]:
    """Return the clicks of all that are no bots."""
    return [
        event.event
        for event in events
        if event.stream == "clicks" and all(truth.kind != "bot" for truth in event.truths)
    ]


def truths_of(events: Iterable[Simulated], kind: str) -> list[Truth]:
    found = {t.truth_id: t for event in events for t in event.truths if t.kind == kind}
    return list(found.values())


def encoded(events: Iterable[Simulated]) -> bytes:
    return b"\n".join(msgspec.json.encode([e.stream, e.key, e.event, e.truths]) for e in events)


def sessionize(clicks: Iterable[Click]) -> dict[tuple[str, int], tuple[int, int, int]]:
    """Return end, events and page views by visitor and start, after a gap of more than 30 minutes."""
    by_visitor: defaultdict[str, list[Click]] = defaultdict(list)
    for click in clicks:
        by_visitor[click.visitor_id].append(click)
    found = {}
    for visitor, own in by_visitor.items():
        cuts = [
            0,
            *(i for i in range(1, len(own)) if own[i].event_time_ms - own[i - 1].event_time_ms > GAP_MS),
        ]
        for first, after in zip(cuts, [*cuts[1:], len(own)], strict=True):
            part = own[first:after]
            views = sum(click.event_type == "page_view" for click in part)
            found[visitor, part[0].event_time_ms] = (part[-1].event_time_ms, len(part), views)
    return found
