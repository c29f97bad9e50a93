"""Who has asked to be forgotten is in no state of any process, but as a key of the list of such requests."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from millrace.host.memory_chain import MemoryChain
from millrace.state.paged import owner_of
from millrace_apps.clickstream.contracts.events import Click, Consent, Customer, Erasure, Forget, Refund
from millrace_apps.clickstream.processes.funnels import PURCHASE, Funnel
from millrace_apps.clickstream.processes.offer_rules import Condition, OfferRule, OfferStep
from millrace_apps.clickstream.recommend.process import Recommending
from millrace_apps.clickstream.state.browser_state import VisitorRules
from tests.cases import case_count
from tests.unit.apps.clickstream.app_cases import (
    DAY,
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
from tests.unit.apps.clickstream.test_caps import rule

#: Browser → whose it is.
HOMES = {"phone-of-ann": "account-ann", "laptop-of-ann": "account-ann", "tablet-of-bob": "account-bob"}
ASKS = "account-ann"
#: One that is begun and waits, one for each search, and one for a cart that was left.
RULES: tuple[OfferRule, ...] = (
    OfferRule(
        name="two-views", offer="o", within="2h", counts=("view", "add_to_cart"), cap=50, cap_within="7d",
        cool_down="0m", control=0.0,
        steps=(OfferStep("one", (Condition("kind", is_="view"),)),
               OfferStep("two", (Condition("kind", is_="add_to_cart"),))),
    ),
    rule("searched", "search", cap=50, cap_within="7d", cool_down="0m"),
    rule("left", "abandoned", cap=50, cap_within="7d", cool_down="0m"),
)  # fmt: skip
BACK: dict[str, Any] = {"Entities.forget": Forget, "Entities.consents": Consent}


def story(draws: random.Random) -> list[Any]:
    """What two people do in three browsers before one of them asks to be forgotten."""
    found: list[Any] = [consent(n, visitor=browser) for n, browser in enumerate(HOMES)]
    found.append(Customer("k1", ASKS, "f", 1990, "DE", START + 5))
    there, at = set[str](), 10
    kinds = [*["login"] * 3, "logout", "page_view", "page_view", "search", "add_to_cart", "add_to_cart",
             "purchase", "refund", "withdrawn", "given"]  # fmt: skip
    for number in range(draws.randrange(6, 26)):
        at += draws.choice((300, 20 * SECOND, 4 * MINUTE, 40 * MINUTE, 9 * HOUR))
        browser, what = draws.choice([*HOMES]), draws.choice(kinds)
        account = HOMES[browser]
        user = account if browser in there else None
        if what in ("withdrawn", "given"):
            purposes = draws.choice((("marketing",), ("personalisation", "marketing")))
            found.append(consent(at, purposes, browser, granted=what == "given",
                                 user=user if draws.random() < 0.4 else None))  # fmt: skip
            continue
        if what == "refund":
            found.append(Refund(f"r{number}", f"o{number - 2}", browser, user, (), 1.0, START + at))
            continue
        if what == "login":
            there.add(browser)
        fields: dict[str, Any] = {"user_id": account if browser in there and what != "page_view" else None}
        if what in ("page_view", "add_to_cart"):
            fields |= {"item_id": f"i{number % 5}", "price": 1.0 + number}
        if what in ("add_to_cart", "purchase"):
            fields |= {"cart_id": f"cart-{browser}"}
        if what == "search":
            fields |= {"query": f"q{number}"}
        if what == "purchase":
            fields |= {"order_id": f"o{number}", "amount": 2.0}
        landed = {"page_url": f"https://shop.example/x?utm_source=s{number}"} if draws.random() < 0.3 else {}
        found.append(click(at, what, browser, id=f"e{number}", **fields, **landed))
        if what == "logout":
            there.discard(browser)
    return [*found, Erasure("asked", ASKS, START + at + draws.choice((1, MINUTE, HOUR)))]


def known(events: list[Any], browser: str) -> bool:
    """Whether it is certain that somebody was known in a browser, after the last withdrawal there."""
    last, allowed = "", True
    for event in events:
        if isinstance(event, Consent) and event.user_id and not event.granted:
            return False  # it holds in all of a person's browsers, where it is told over a topic
        if getattr(event, "visitor_id", "") != browser:
            continue
        if isinstance(event, Consent) and "personalisation" in event.purposes:
            allowed, last = event.granted, last if event.granted else ""
        elif isinstance(event, Click) and allowed and event.user_id:
            last = event.user_id
    return bool(last)


def names_left(chain: MemoryChain, name: str) -> list[str]:
    """The processes whose state has a name, but as a key."""
    found = []
    for host in chain.hosts:
        kept = host.snapshot()
        # Parts of maps have keys of their own, with what stands in them.
        keys = sum(str(key).count(name) for key in host.store.cells if owner_of(key)[1] is None)
        if kept.count(name.encode()) > keys:
            found.append(host.runner.process.name)
    return found


@pytest.mark.parametrize("block", range(4))
def test_who_asks_to_be_forgotten_is_in_no_state_of_any_process(block: int) -> None:
    """Account, browsers and carts, with all that the app can be told to keep."""
    cases, forgot = case_count(40), 0
    for seed in range(block * cases // 4, (block + 1) * cases // 4):
        draws = random.Random(seed)
        rules = VisitorRules(
            recommends=True, by_device=True, by_channel=True, rate_events=1_000,
            shared=draws.choice(("split", "last")),  # type: ignore[arg-type]
            ways=(Funnel("persons", PURCHASE.steps, 7 * DAY),),
        )  # fmt: skip
        chain = shop_chain(
            rules, RULES, holdout=0.0, merges_caps=draws.random() < 0.7, recommending=Recommending(),
            bound_ms=draws.choice((0, MINUTE)),
        )  # fmt: skip
        events, found = story(draws), list[Any]()
        todo = [[event] for event in events]
        before = None
        while todo:
            batch = todo.pop(0)
            if isinstance(batch[0], Erasure):
                before = Run(found, False)
            told = chain.run_batch(keyed(*batch))
            found += told
            back = [msgspec.json.decode(e.payload, type=BACK[e.output]) for e in told if e.output in BACK]
            todo = [back, *todo] if back else todo
        assert before is not None
        # What waits for its time is through, and who was lately known in a browser is known there no more.
        told = chain.advance_watermark(events[-1].event_time_ms + 3 * DAY)
        back = [msgspec.json.decode(e.payload, type=BACK[e.output]) for e in told if e.output in BACK]
        if back:
            chain.run_batch(keyed(*back))
            chain.advance_watermark(events[-1].event_time_ms + 3 * DAY + HOUR)
        mine = [browser for browser, home in HOMES.items() if home == ASKS and known(events, browser)]
        seen = {r["visitor_id"] for r in before.rows("Visitors.owner_changes") if r["user_id"] == ASKS}
        assert seen >= {*mine}
        for name in (ASKS, *mine, *(f"cart-{browser}" for browser in mine)):
            assert names_left(chain, name) == [], (seed, name)
        forgot += len(mine)
    assert forgot >= cases // 4 // 2


def test_what_is_looked_for_in_state_is_found_there() -> None:
    """Before anybody asks to be forgotten, the names are in the state of most processes."""
    chain = shop_chain(VisitorRules(recommends=True), RULES, holdout=0.0, recommending=Recommending())
    events = [consent(0, visitor="phone-of-ann"), click(1, "login", "phone-of-ann", user_id=ASKS)]
    events += [click(MINUTE, visitor="phone-of-ann", item_id="a", user_id=ASKS)]
    events += [click(2 * MINUTE, visitor="other")]
    for event in events:
        chain.run_batch(keyed(event))
    assert {"Entities", "Recommender"} <= set(names_left(chain, "phone-of-ann"))
    assert "Visitors" in names_left(chain, ASKS)


@pytest.mark.parametrize("merges", [False, True])
def test_a_browser_that_is_forgotten_has_no_name_with_the_offers_of_its_account(merges: bool) -> None:
    """What was said there about offers, and what was begun there, is known to the account."""
    chain = shop_chain(VisitorRules(), RULES, holdout=0.0, merges_caps=merges)
    gone, other = "browser-gone", "browser-kept"
    events = [consent(0, visitor=gone), consent(0, visitor=other)]
    events += [click(1, "login", gone, user_id=ASKS), click(1, "login", other, user_id=ASKS)]
    events += [consent(2, ("marketing",), gone, granted=False), consent(3, ("marketing",), gone)]
    events += [click(4, visitor=gone, item_id="a", user_id=ASKS), click(MINUTE, visitor="else")]
    for event in events:
        chain.run_batch(keyed(event))
    assert "Results" in names_left(chain, gone)
    chain.run_batch(keyed(Forget("r1", gone, START + 2 * MINUTE, "browser")))
    # A bit later: what it had begun would still be waited for.
    chain.advance_watermark(START + 2 * MINUTE)
    assert names_left(chain, gone) == []
    assert names_left(chain, other) != []
