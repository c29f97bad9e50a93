"""What brought an order follows from the times of events alone.

```
browser A   ······· landing ······ order ·········        the order is attributed by what happened up to it,
browser B   landing ········ login ······· logout ···     at A and at B, however and whenever it was read
```
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import Any

import pytest

from millrace_apps.clickstream.contracts.events import Click, Forget
from millrace_apps.clickstream.contracts.messages import Link, Purchase
from millrace_apps.clickstream.state.browser_state import VisitorRules
from millrace_apps.clickstream.state.profiles import LOOK_BACK_MS, Person, Touch
from tests.cases import case_count
from tests.unit.apps.clickstream.app_cases import (
    HOUR,
    MINUTE,
    SECOND,
    START,
    Run,
    click,
    consent,
    keyed,
    shop_chain,
)

BROWSERS = ("a", "b", "c")
ACCOUNTS = ("u1", "u2")
#: First seed: others than those of CI are played by another one.
FROM = int(os.environ.get("BY_TIME_FROM", "0"))


class Shop:
    """What a shop's people have done, looked at as a whole: no state, no order of reading."""

    def __init__(self, events: Sequence[Click], shared: str) -> None:
        self._events, self._shared = sorted(events, key=lambda e: e.event_time_ms), shared

    def _named(self, browser: str, after: int, until: int) -> list[str]:
        """Who was named in a browser after a moment and up to another, in order of time."""
        return [
            e.user_id for e in self._events
            if e.visitor_id == browser and e.user_id and after < e.event_time_ms <= until
        ]  # fmt: skip

    def _who(self, browser: str, at: int, until: int) -> str:
        """Who was in a browser at a moment, by what happened there up to a later one."""
        before = self._named(browser, -1, at)
        if self._shared == "last":
            return (self._named(browser, -1, until) or [""])[-1]
        outs = [
            e for e in self._events
            if e.visitor_id == browser and e.event_type == "logout" and e.event_time_ms < at
        ]  # fmt: skip
        if before and not (outs and not self._named(browser, outs[-1].event_time_ms, at)):
            return before[-1]
        return (self._named(browser, at, until) or [""])[0]

    def first_and_last(self, order: Click) -> tuple[str, str]:
        """By what an order came."""
        at = order.event_time_ms
        who = order.user_id or self._who(order.visitor_id, at, at)
        mine = []
        for one in (e for e in self._events if e.utm_source and e.event_time_ms <= at):
            owner = self._who(one.visitor_id, one.event_time_ms, at)
            if owner == who and (who or one.visitor_id == order.visitor_id):
                mine.append(one)
        near = [one for one in mine if one.event_time_ms > at - LOOK_BACK_MS]
        label = "{} / cpc / (none)".format
        return (
            label(mine[0].utm_source) if mine else "direct",
            label(near[-1].utm_source) if near else "direct",
        )

    def orders(self) -> dict[str, Click]:
        """Order → the first event that tells of it."""
        found: dict[str, Click] = {}
        for one in self._events:
            if one.event_type == "purchase":
                found.setdefault(str(one.order_id), one)
        return found


def story(draws: random.Random) -> list[Click]:
    """Logins, logouts, landings and orders of two accounts in three browsers; no two at one moment."""
    found, there = list[Click](), dict.fromkeys(BROWSERS, "")
    at = 10
    for number in range(draws.randrange(4, 26)):
        at += draws.choice((2, 300, 2 * SECOND, 20 * SECOND, 5 * MINUTE))
        browser = draws.choice(BROWSERS)
        what = draws.choice(("login", "logout", *["page_view"] * 3, *["purchase"] * 2))
        if what == "login":
            there[browser] = draws.choice(ACCOUNTS)
        named = there[browser] and (what in ("login", "logout") or draws.random() < 0.5)
        fields: dict[str, Any] = {"user_id": there[browser] if named else None}
        if what == "page_view":
            fields |= {"item_id": f"i{number}", "category": "toys"}
            if draws.random() < 0.6:
                fields |= {"utm_source": f"s{number}", "utm_medium": "cpc"}
        if what == "purchase":
            fields |= {"order_id": f"o{draws.choice((number, number, 1))}", "amount": 1.0}
        found.append(click(at, what, browser, id=f"e{number}", **fields))
        if what == "logout":
            there[browser] = ""
    return found


Batches = list[list[Any]]


def batches(draws: random.Random, events: list[Click], bound: int) -> Batches:
    """The events in any order within the bound, in any cut, with repeats."""
    found: Batches = [[consent(0, visitor=browser) for browser in BROWSERS]]
    rest = sorted(events, key=lambda e: (e.event_time_ms + draws.uniform(0, bound), draws.random()))
    rest += draws.sample(rest, min(2, len(rest))) if bound else []
    while rest:
        cut = draws.choice((1, 2, 3, 7, 100))
        found.append(rest[:cut])
        rest = rest[cut:]
    # Time goes on in another browser, without which nothing of the last events is settled.
    last = max(e.event_time_ms for e in events) - START + bound + 5
    return [*found, [click(last, visitor="z", id="end")]]


def check(seed: int) -> int:
    draws = random.Random(seed)
    shared = draws.choice(("split", "split", "last"))
    bound = draws.choice((0, SECOND, MINUTE, 10 * MINUTE))
    rules = VisitorRules(shared=shared, rate_events=1_000)  # type: ignore[arg-type]
    events = story(draws)
    shop, cut = Shop(events, shared), batches(draws, events, bound)
    drained = draws.random() < 0.5

    chain = shop_chain(rules, (), bound_ms=bound)
    emitted = [one for batch in cut for one in chain.run_batch(keyed(*batch))]
    found = Run([*emitted, *(chain.drain() if drained else ())], chain.is_empty())
    told = {r["order_id"]: (r["first_touch"], r["last_touch"]) for r in found.table("orders", "order_id")}
    # Of an order that several browsers tell of the earliest telling holds.
    wanted = {name: shop.first_and_last(one) for name, one in shop.orders().items()}
    assert told == wanted, (seed, shared)
    return len(wanted)


@pytest.mark.parametrize("block", range(2))
def test_orders_are_attributed_as_a_look_at_all_events_says(block: int) -> None:
    cases = case_count(120) // 2
    first = FROM + block * cases
    assert sum(check(seed) for seed in range(first, first + cases)) > cases


def test_an_order_of_nobodys_is_not_the_next_accounts_though_that_was_read_before() -> None:
    """After a logout, and names nobody: by its time nobody was there, and nobody's landing brought it."""
    events = [
        click(1, utm_source="ad"), click(2, "login", user_id="u1"), click(3, "logout", user_id="u1"),
        click(20, "login", user_id="u2"), click(4, utm_source="mail"),
        click(10, "purchase", order_id="o1", amount=1.0), click(100, visitor="z"),
    ]  # fmt: skip
    chain = shop_chain(VisitorRules(), (), bound_ms=SECOND)
    found = chain.run_batch(keyed(consent(0)))
    found += [one for event in events for one in chain.run_batch(keyed(event))]
    (row,) = Run([*found, *chain.drain()], chain.is_empty()).table("orders", "order_id")
    assert (row["first_touch"], row["last_touch"]) == ("mail / (none) / (none)",) * 2


def test_an_order_counts_what_was_a_persons_before_the_browser_was_anothers() -> None:
    """By the last one: the tablet was ann's when she ordered on the phone, though bob was read before."""
    events = [
        consent(0, visitor="tablet"), consent(0, visitor="phone"),
        click(1, "login", "phone", user_id="ann"), click(2, visitor="tablet", utm_source="ad"),
        click(3, "login", "tablet", user_id="ann"), click(50, "login", "tablet", user_id="bob"),
        click(10, "purchase", "phone", order_id="o1", amount=1.0, user_id="ann"),
        click(60, "purchase", "phone", order_id="o2", amount=1.0, user_id="ann"),
    ]  # fmt: skip
    chain = shop_chain(VisitorRules(shared="last"), (), bound_ms=SECOND)
    found = [one for event in events for one in chain.run_batch(keyed(event))]
    run = Run([*found, *chain.drain()], chain.is_empty())
    told = {row["order_id"]: row["first_touch"] for row in run.table("orders", "order_id")}
    assert told == {"o1": "ad / (none) / (none)", "o2": "direct"}
    assert run.empty


def orders_of(*events: Any, bound: int = HOUR) -> dict[str, tuple[str, str]]:
    """First and last touch of orders, of events that are read one by one."""
    chain = shop_chain(VisitorRules(rate_events=1_000), (), bound_ms=bound)
    found = [one for event in events for one in chain.run_batch(keyed(event))]
    run = Run([*found, *chain.drain()], chain.is_empty())
    return {
        row["order_id"]: (row["first_touch"].partition(" / ")[0], row["last_touch"].partition(" / ")[0])
        for row in run.table("orders", "order_id")
    }


def test_an_order_finds_its_touch_though_more_landings_after_it_were_read_first_than_are_kept() -> None:
    landings = [click(at, utm_source=f"s{at}") for at in (1, 5, *range(100, 130))]
    assert orders_of(consent(0), *landings, buy(6)) == {"o1": ("s1", "s5")}


def buy(at: int, order: str = "o1", **fields: Any) -> Click:
    return click(at, "purchase", order_id=order, amount=1.0, **fields)


@pytest.mark.parametrize("at", [3, 9])
def test_an_order_counts_though_its_browser_is_forgotten_before_it_is_settled(at: int) -> None:
    forgotten = Forget("r1", "v1", START + at)
    found = orders_of(consent(0), click(1, utm_source="ad"), buy(5), forgotten)
    assert found == {"o1": ("ad", "ad")}


def test_who_withdraws_consent_has_made_the_orders_of_before() -> None:
    """By who was there: afterwards nobody is known to have been, and the first landing is anybody's."""
    told = [
        consent(0), click(1, utm_source="x", user_id="u2"), click(2, "logout", user_id="u2"),
        click(3, "login", user_id="u1"), click(4, utm_source="y"), buy(5),
        consent(8, ("personalisation",), granted=False),
    ]  # fmt: skip
    assert orders_of(*told) == {"o1": ("y", "y")}
    assert orders_of(*told, bound=0) == {"o1": ("y", "y")}


def test_a_person_counts_a_touch_from_when_it_was_known_to_be_theirs_until_it_was_not() -> None:
    person = Person()
    person.touched(Link("u:u1", 5, "v2", touches=[(5, "ad")], revision=1, spans=[(20, 30)]))
    found = {at: person.attribution(Purchase("u:u1", at, "c", "v1"))[0] for at in (19, 20, 29, 30)}
    assert found == {19: "", 20: "ad", 29: "ad", 30: ""}
    person.passed(29)
    assert person.lasts == {"v2": [Touch(5, "ad", 20, 30)]}
    person.passed(30)
    assert (person.firsts, person.lasts) == ({}, {})


def test_a_browser_that_was_anothers_in_between_brings_its_person_all_the_same() -> None:
    """By the last one: that ann is back there is read before the watermark has passed that bob came."""
    came = (("tablet", 3, "ann"), ("tablet", 50, "bob"), ("tablet", 60, "ann"), ("phone", 65, "ann"))
    events = [
        consent(0, visitor="tablet"), consent(0, visitor="phone"),
        click(2, visitor="tablet", utm_source="ad"),
        *(click(at, "login", browser, user_id=user) for browser, at, user in came),
        click(70, "purchase", "phone", order_id="o1", amount=1.0, user_id="ann"),
    ]  # fmt: skip
    chain = shop_chain(VisitorRules(shared="last"), (), bound_ms=HOUR)
    found = [one for event in events for one in chain.run_batch(keyed(event))]
    (row,) = Run([*found, *chain.drain()], chain.is_empty()).table("orders", "order_id")
    assert row["first_touch"] == "ad / (none) / (none)"
