"""Where a person ends and a bot begins, to the millisecond."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from pydantic import ValidationError

from millrace.testing import TestDriver
from millrace_apps.clickstream.processes.bots import PANES, Behaviour, BotRules, Pace
from millrace_apps.clickstream.processes.visitor import visitors
from millrace_apps.clickstream.settings import ClickstreamSettings
from millrace_apps.clickstream.state.browser_state import VisitorRules
from tests.unit.apps.clickstream.app_cases import HOUR, MINUTE, SECOND, START, click, send


@pytest.mark.parametrize(("span", "bot"), [(10 * SECOND - 1, "rate"), (10 * SECOND, "")])
def test_fifteen_events_in_less_than_ten_seconds_are_a_bots_and_in_ten_a_persons(span: int, bot: str) -> None:
    target = TestDriver(visitors(VisitorRules()))
    for n in range(15):
        send(target, click(n * span // 14, item_id=f"i{n}"))
    target.drain()
    assert {row.bot for row in target.values("sessions") if row.is_final} == {bot}


def bot_of(times: list[int], rules: BotRules = BotRules(), **fields: Any) -> str:  # noqa: B008
    target = TestDriver(visitors(VisitorRules(bots=rules)))
    views = [click(at, item_id=f"i{n}", **fields) for n, at in enumerate(times)]
    for start in range(0, len(views), 100):
        send(target, *views[start : start + 100])
    target.drain()
    (reason,) = {row.bot for row in target.values("sessions") if row.is_final}
    return str(reason)


NO_PACES = BotRules((), 0, 0.05, 0)


def test_c8_7200_pages_at_one_a_second_are_a_bots() -> None:
    draws = random.Random(1)
    times = [n * SECOND + draws.randrange(500) for n in range(7_200)]
    assert bot_of(times, BotRules(regular=0, alone=0)) == "rate/10m"
    assert bot_of(times, NO_PACES) == ""


@pytest.mark.parametrize(("events", "bot"), [(49, ""), (50, "rate/10m")])
def test_so_many_clicks_within_a_horizon_are_a_bots(events: int, bot: str) -> None:
    rules = replace(NO_PACES, paces=(Pace(50, 10 * MINUTE), Pace(10_000, HOUR)))
    assert bot_of([n * 10 * SECOND for n in range(events)], rules) == bot
    # As many in twice the time are none.
    assert bot_of([n * 20 * SECOND for n in range(events)], rules) == ""


def test_a_longer_horizon_finds_who_is_slower_than_a_shorter_one() -> None:
    rules = replace(NO_PACES, paces=(Pace(50, 10 * MINUTE), Pace(120, HOUR)))
    assert bot_of([n * 20 * SECOND for n in range(200)], rules) == "rate/1h"


@pytest.mark.parametrize(("spread_ms", "bot"), [(0, "regular"), (800, "regular"), (2_500, "")])
def test_pauses_like_a_clocks_are_a_bots(spread_ms: int, bot: str) -> None:
    draws, at, times = random.Random(3), 0, []
    for _ in range(40):
        at += 9 * SECOND + draws.randrange(spread_ms + 1)
        times.append(at)
    assert bot_of(times, replace(NO_PACES, regular=30)) == bot
    assert bot_of(times[:30], replace(NO_PACES, regular=30)) == ""


def test_views_and_nothing_else_for_an_hour_are_a_bots_and_anything_else_is_a_persons() -> None:
    draws = random.Random(5)
    times = [n * 9 * SECOND + draws.randrange(8 * SECOND) for n in range(200)]
    rules = replace(NO_PACES, alone=150)
    assert bot_of(times, rules) == "views_alone"
    assert bot_of(times[:149], rules) == ""
    for other in ("page_ping", "search", "add_to_cart"):
        one, ends = Behaviour(), list[str]()
        for n, at in enumerate(times):
            ends.append(one.take(other if n == 50 else "page_view", at, rules))
        assert not any(ends), other


def test_pings_come_by_themselves_and_are_no_bots() -> None:
    one = Behaviour()
    assert not any(one.take("page_ping", n * 100, BotRules()) for n in range(5_000))


def found_by_a_look_at_all(kinds: list[str], times: list[int], rules: BotRules) -> bool:
    """Whether some span of nine tenths of a horizon has too many clicks; counted from every click on."""
    clicks = sorted(at for kind, at in zip(kinds, times, strict=True) if kind != "page_ping")
    for pace in rules.paces:
        for first in clicks:
            if sum(first <= at < first + pace.within_ms * 9 // 10 for at in clicks) >= pace.events:
                return True
    return False


def never_too_many(kinds: list[str], times: list[int], rules: BotRules) -> bool:
    clicks = sorted(at for kind, at in zip(kinds, times, strict=True) if kind != "page_ping")
    return all(
        sum(first <= at < first + pace.within_ms for at in clicks) < pace.events
        for pace in rules.paces
        for first in clicks
    )


def check_paces(seed: int) -> str:
    draws = random.Random(seed)
    rules = replace(NO_PACES, paces=(Pace(draws.randrange(3, 12), 100), Pace(draws.randrange(6, 20), 300)))
    at, kinds, times = 0, [], []
    for _ in range(draws.randrange(1, 60)):
        at += draws.choice((0, 1, 5, 20, 60))
        kinds.append(draws.choice(("page_view", "page_view", "search", "page_ping")))
        times.append(at)
    one = Behaviour()
    said = [one.take(kind, t, rules) for kind, t in zip(kinds, times, strict=True)]
    if found_by_a_look_at_all(kinds, times, rules):
        assert any(said), seed
    if never_too_many(kinds, times, rules):
        assert not any(said), seed
    assert all(len(panes) <= PANES for panes in one.counts.values()), seed
    return next((reason for reason in said if reason), "")


def test_paces_find_who_is_too_fast_for_sure_and_nobody_who_is_not() -> None:
    """Between nine tenths of a horizon and all of it are looked at: in between either is right."""
    found = [check_paces(seed) for seed in range(1_500)]
    assert 300 < sum(map(bool, found)) < 1_200


def test_what_is_kept_of_a_browser_for_it_is_bounded_and_goes() -> None:
    one = Behaviour()
    for n in range(20_000):
        one.take("page_view", n * 7 * SECOND, BotRules())
    assert len(msgspec.msgpack.encode(one)) < 700
    for rules in (BotRules(), BotRules((Pace(5_000, 24 * HOUR),))):
        target = TestDriver(visitors(VisitorRules(bots=rules)))
        for n in range(40):
            send(target, click(n * 60 * SECOND + n * n * 100, item_id="i"))
        target.drain()
        assert target.is_empty()


def test_over_a_horizon_longer_than_repeats_a_browser_is_remembered_until_it_is_over() -> None:
    rules = replace(NO_PACES, paces=(Pace(60, 24 * HOUR),))
    visits = [visit * 5 * HOUR + n * 20 * SECOND + n * n for visit in range(4) for n in range(15)]
    target = TestDriver(visitors(VisitorRules(bots=rules)))
    for n, at in enumerate(visits):
        send(target, click(at, item_id=f"i{n}"))
        if n % 15 == 14:  # nothing else is known of it by then
            target.advance_watermark(START + at + 3 * HOUR)
    target.drain()
    final = {row.session_id: row.bot for row in target.values("sessions") if row.is_final}
    assert sorted(final.values()) == ["", "", "", "rate/1d"]


def test_settings_say_what_gives_bots_away() -> None:
    assert ClickstreamSettings().visitor_rules().bots == BotRules()
    told = {"visitors": {"bots": {"paces": [{"events": 9, "within": "2m"}], "regular": 0, "views_alone": 0}}}
    rules = ClickstreamSettings.model_validate(told).visitor_rules().bots
    assert (rules.paces, rules.regular, rules.alone) == ((Pace(9, 2 * MINUTE),), 0, 0)
    for within in ("59s", "25h"):
        with pytest.raises(ValidationError, match="1 minute to 1 day"):
            ClickstreamSettings.model_validate(
                {"visitors": {"bots": {"paces": [{"events": 9, "within": within}]}}}
            )
